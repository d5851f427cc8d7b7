//! Thread clustering (§3.1): threads that share data go to one node, "provided that these threads
//! would not aggressively compete for the node's shared resources".
//!
//! The paper uses Kamali's variant without giving it. This variant is nearpage's own:
//!
//! - The *sharing* of two threads is the sum, over pages on which both were sampled, of the smaller number of samples.
//!   A thread's sharing with a node is the sum of its sharing with that node's threads.
//! - Two threads on different nodes *swap* if this increases the sharing of both together with their nodes: by at least
//!   as many samples as a decision about a page needs, and by a quarter of what the two share with any thread. The most
//!   profitable swap comes first, then the next, until none is left. A thread moves at most once per decision.
//! - *Contention*: no swap may raise the memory traffic of a node's threads (MAPTU) above both the traffic of the more
//!   loaded of the two nodes and the mean over nodes plus the tolerated imbalance (35 %, the threshold of step 3).
//! - *CPU load* stays balanced: nodes keep their number of threads, and a swap may increase the difference between the
//!   nodes' run times by at most a hundredth of the epoch (footnote 3: "We never want to sacrifice CPU load balance in
//!   favour of clustering"). No thread leaves or enters a node whose threads wait for CPUs while another node would run
//!   them sooner: there, the kernel still has to spread threads, and pinning would prevent it.

use nearpage_recording::ThreadIndex;

use super::parameters::CarrefourParameters;
use super::profile::Profiled;
use crate::{Epoch, ThreadCounts, ThreadMove};

/// A swap must gain one sample in this number of the samples that the two threads share with others.
const SHARING_PER_GAIN: u64 = 4;

struct Clustering<'a> {
    threads: &'a [ThreadCounts],
    /// Node of each thread after the swaps so far.
    node: Vec<u16>,
    /// By node: its threads wait for CPUs, and the kernel has yet to spread them.
    crowded: Vec<bool>,
    /// `[thread × threads + thread]`.
    sharing: Vec<u64>,
    epoch_ns: u64,
    traffic_tolerated: f64,
    gain_least: u64,
}

/// Swaps of threads, as two moves each.
pub fn swaps(
    epoch: &Epoch<'_>,
    pages: &[Profiled],
    (nodes, cpus_per_node): (usize, u32),
    parameters: &CarrefourParameters,
) -> Vec<ThreadMove> {
    let threads = epoch.threads;
    let traffic: u64 = threads.iter().map(memory_accesses).sum();
    let tolerance = 1.0 + parameters.imbalance_percent as f64 / 100.0;
    let mut clustering = Clustering {
        threads,
        node: threads.iter().map(|thread| thread.node).collect(),
        crowded: crowded(epoch, nodes, cpus_per_node),
        sharing: sharing(threads, pages),
        epoch_ns: epoch.duration_ns,
        traffic_tolerated: tolerance * traffic as f64 / nodes as f64,
        gain_least: parameters.samples,
    };
    let mut moved = vec![false; threads.len()];
    let mut moves = Vec::new();
    while let Some((a, b)) = clustering.best(&moved) {
        clustering.node.swap(a, b);
        for thread in [a, b] {
            moved[thread] = true;
            moves.push(ThreadMove {
                thread: threads[thread].thread,
                node: clustering.node[thread],
                rule: "shares data with threads of the node, which can bear its traffic",
            });
        }
    }
    moves
}

fn memory_accesses(thread: &ThreadCounts) -> u64 {
    thread.reads + thread.writes
}

/// Nodes with threads that would get a CPU sooner on another node. All CPUs of such a node are busy for at least nine
/// tenths of the time.
fn crowded(epoch: &Epoch<'_>, nodes: usize, cpus_per_node: u32) -> Vec<bool> {
    let (mut threads, mut busy_ns) = (vec![0; nodes], vec![0; nodes]);
    for thread in epoch.threads {
        threads[usize::from(thread.node)] += 1;
        busy_ns[usize::from(thread.node)] += thread.busy_ns;
    }
    let cpus = u64::from(cpus_per_node);
    let in_use = threads.iter().filter(|&&threads| threads > 0);
    let fewest = in_use.min().copied().unwrap_or(0);
    let is_crowded = |(&threads, &busy_ns): (&u64, &u64)| {
        cpus > 0
            && threads > cpus
            && threads > fewest + 1
            && 10 * busy_ns >= 9 * cpus * epoch.duration_ns
    };
    threads.iter().zip(&busy_ns).map(is_crowded).collect()
}

fn sharing(threads: &[ThreadCounts], pages: &[Profiled]) -> Vec<u64> {
    let position = |thread: ThreadIndex| threads.iter().position(|other| other.thread == thread);
    let mut sharing = vec![0; threads.len() * threads.len()];
    for page in pages.iter().filter(|page| page.by_thread.len() > 1) {
        let users: Vec<(usize, u32)> = page
            .by_thread
            .iter()
            .filter_map(|&(thread, count)| Some((position(thread)?, count)))
            .collect();
        for (at, &(a, of_a)) in users.iter().enumerate() {
            for &(b, of_b) in &users[..at] {
                let common = u64::from(of_a.min(of_b));
                sharing[a * threads.len() + b] += common;
                sharing[b * threads.len() + a] += common;
            }
        }
    }
    sharing
}

impl Clustering<'_> {
    /// The most profitable of the allowed swaps; of equal swaps, the first.
    fn best(&self, moved: &[bool]) -> Option<(usize, usize)> {
        let mut best = None;
        let free = |thread: &usize| !moved[*thread];
        for a in (0..self.threads.len()).filter(free) {
            for b in (a + 1..self.threads.len()).filter(free) {
                let gain = self.gain(a, b).filter(|_| self.allowed(a, b));
                if let Some(gain) = gain.filter(|&gain| best.is_none_or(|(most, _)| gain > most)) {
                    best = Some((gain, (a, b)));
                }
            }
        }
        best.map(|(_, swap)| swap)
    }

    /// Gain in sharing by a swap; `None` if it is too small.
    fn gain(&self, a: usize, b: usize) -> Option<u64> {
        let count = self.threads.len();
        if self.node[a] == self.node[b] {
            return None;
        }
        let (mut before, mut after, mut all) = (0, 0, 0);
        for other in (0..count).filter(|&other| other != a && other != b) {
            let (with_a, with_b) = (
                self.sharing[a * count + other],
                self.sharing[b * count + other],
            );
            all += with_a + with_b;
            if self.node[other] == self.node[a] {
                before += with_a;
                after += with_b;
            } else if self.node[other] == self.node[b] {
                before += with_b;
                after += with_a;
            }
        }
        let least = self.gain_least.max(all.div_ceil(SHARING_PER_GAIN)).max(1);
        after.checked_sub(before).filter(|&gain| gain >= least)
    }

    /// Do memory traffic and CPU load allow a swap?
    fn allowed(&self, a: usize, b: usize) -> bool {
        if [a, b]
            .iter()
            .any(|&thread| self.crowded[usize::from(self.node[thread])])
        {
            return false;
        }
        let sum = |node: u16, of: &dyn Fn(&ThreadCounts) -> u64| -> u64 {
            let threads = self.threads.iter().zip(&self.node);
            threads
                .filter(|&(_, &other)| other == node)
                .map(|(thread, _)| of(thread))
                .sum()
        };
        let sides = |of: &dyn Fn(&ThreadCounts) -> u64| {
            let before = [self.node[a], self.node[b]].map(|node| sum(node, of));
            let [of_a, of_b] = [a, b].map(|thread| of(&self.threads[thread]));
            let after = [before[0] - of_a + of_b, before[1] - of_b + of_a];
            (before, after)
        };
        let (before, after) = sides(&memory_accesses);
        let bears = before[0].max(before[1]) as f64;
        let traffic = after[0].max(after[1]) as f64;
        let (ran, would_run) = sides(&|thread| thread.busy_ns);
        traffic <= bears.max(self.traffic_tolerated)
            && would_run[0].abs_diff(would_run[1]) <= ran[0].abs_diff(ran[1]) + self.epoch_ns / 100
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Copies;

    /// Threads numbered in order, two per node, each with a number of reads and a run time.
    fn threads(figures: &[(u64, u64)]) -> Vec<ThreadCounts> {
        let thread = |(number, &(reads, busy_ns)): (usize, &(u64, u64))| ThreadCounts {
            thread: ThreadIndex(number as u32),
            application: 0,
            node: (number / 2) as u16,
            busy_ns,
            reads,
            writes: 0,
        };
        figures.iter().enumerate().map(thread).collect()
    }

    fn shared(page: u32, by: &[(u32, u32)]) -> Profiled {
        Profiled {
            page,
            copies: Copies::at(0),
            by_thread: by
                .iter()
                .map(|&(thread, count)| (ThreadIndex(thread), count))
                .collect(),
            stores: 0,
        }
    }

    fn moves(threads: &[ThreadCounts], pages: &[Profiled]) -> Vec<(u32, u16)> {
        let epoch = Epoch {
            duration_ns: 1000,
            threads,
            ..Epoch::default()
        };
        let nodes = threads.iter().map(|thread| usize::from(thread.node) + 1);
        let machine = (nodes.max().unwrap_or(0), 1);
        swaps(&epoch, pages, machine, &CarrefourParameters::default())
            .iter()
            .map(|moved| (moved.thread.0, moved.node))
            .collect()
    }

    /// Pages such that threads 0 and 2 share one page, and threads 1 and 3 another.
    fn crossed() -> Vec<Profiled> {
        vec![shared(7, &[(0, 4), (2, 9)]), shared(9, &[(1, 3), (3, 3)])]
    }

    #[test]
    fn threads_that_share_end_up_on_one_node() {
        let even = threads(&[(100, 1000); 4]);
        assert_eq!(moves(&even, &crossed()), [(0, 1), (3, 0)]);
        // Threads that share are on one node already.
        let together = [shared(7, &[(0, 4), (1, 9)]), shared(9, &[(2, 3), (3, 3)])];
        assert_eq!(moves(&even, &together), []);
        // One shared sample may be noise; two are enough.
        assert_eq!(moves(&even, &[shared(7, &[(0, 1), (2, 1)])]), []);
        assert_eq!(moves(&even, &[shared(7, &[(0, 2), (2, 2)])]).len(), 2);
        // All threads share equally, so no swap gains.
        assert_eq!(
            moves(&even, &[shared(7, &[(0, 9), (1, 9), (2, 9), (3, 9)])]),
            []
        );
    }

    #[test]
    fn threads_that_would_compete_stay_apart() {
        // Threads 0 and 2 make most of the traffic. On one node they would have 1350, which is 1.35 times the mean of
        // 1000 and just allowed.
        for (traffic, expected) in [(675, 2), (676, 0)] {
            let rest = 1000 - traffic;
            let uneven = threads(&[(traffic, 1000), (rest, 1000), (traffic, 1000), (rest, 1000)]);
            let found = moves(&uneven, &[shared(7, &[(0, 4), (2, 4)])]);
            assert_eq!(found.len(), expected, "{traffic}");
        }
    }

    #[test]
    fn cpu_load_stays_balanced() {
        // Threads 1 and 3 run for x: with 0 and 2 together, one node would run for 2000 and the other for 2 x.
        for (idle, expected) in [(1000, 2), (990, 2), (989, 0), (0, 0)] {
            let busy = threads(&[(0, 1000), (0, idle), (0, 1000), (0, idle)]);
            let found = moves(&busy, &[shared(7, &[(0, 4), (2, 4)])]);
            let difference = 2 * (1000 - idle);
            assert_eq!(
                found.len(),
                if difference <= 10 { 2 } else { 0 }.min(expected),
                "{idle}"
            );
        }
    }

    #[test]
    fn threads_that_wait_for_cpus_are_the_kernels_to_spread() {
        // Three threads share the CPU of node 0 and one has that of node 1.
        let uneven = |ran_ns: u64| {
            let mut threads = threads(&[(100, ran_ns); 4]);
            threads[2].node = 0;
            threads
        };
        let pages = [shared(7, &[(0, 4), (3, 9)])];
        assert_eq!(moves(&uneven(300), &pages), []);
        // The CPU is idle at times, so no thread waits for long.
        assert_eq!(moves(&uneven(299), &pages).len(), 2);
        // Three threads on two nodes cannot be spread more evenly.
        let mut even = threads(&[(100, 500); 3]);
        assert_eq!(moves(&even, &[shared(7, &[(0, 4), (2, 9)])]).len(), 2);
        even.truncate(2);
        assert_eq!(moves(&even, &[shared(7, &[(0, 4), (1, 9)])]), []);
    }

    proptest! {
        #[test]
        fn nodes_keep_their_number_of_threads(
            samples in prop::collection::vec((0u32..20, 0u32..8, 1u32..9), 0..60),
        ) {
            let mut pages: Vec<Profiled> = (0..20).map(|page| shared(page, &[])).collect();
            for (page, thread, count) in samples {
                let by_thread = &mut pages[page as usize].by_thread;
                if !by_thread.iter().any(|&(other, _)| other == ThreadIndex(thread)) {
                    by_thread.push((ThreadIndex(thread), count));
                }
            }
            let threads = threads(&[(10, 1000); 8]);
            let found = moves(&threads, &pages);
            prop_assert_eq!(&found, &moves(&threads, &pages));
            let mut node: Vec<u16> = threads.iter().map(|thread| thread.node).collect();
            for &(thread, to) in &found {
                prop_assert_ne!(node[thread as usize], to);
                node[thread as usize] = to;
            }
            for number in 0..4 {
                prop_assert_eq!(node.iter().filter(|&&other| other == number).count(), 2);
            }
        }
    }
}
