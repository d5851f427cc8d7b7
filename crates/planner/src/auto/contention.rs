//! Time that threads take for accesses to nodes: the machine's controllers, directories and links are queues that all
//! threads share.
//!
//! A phase of threads that run side by side takes as long as the slowest thread. A thread takes its computation and,
//! for each miss, the unloaded latency and the longest wait on the way. In a time `T`, a station that serves other
//! requests in `s` each is busy with them for Σ s. A request waits there for Σ s² ÷ 2 (T − Σ s) (Pollaczek and
//! Khinchine; by the arrival theorem of closed queues a request meets the others that are under way). It never waits
//! longer than the longest request takes, once for each other request that may be under way. Waits shrink as `T` grows,
//! so there is one `T` at which threads take the assumed time. Bisection finds it. No phase is shorter than its busiest
//! station.
//!
//! A CPU that does not wait for each miss runs on for a window of instructions ([`Overlap`]). So several misses of a
//! thread are under way at a time, and their latencies overlap with each other and with computation.
//!
//! What the busiest thread does beyond the next busiest, it does alone: a master prepares each step for the others, or
//! runs on when they are done. So its excess has no queues, and adds to the time of the phase in which all run.

mod overlap;

use std::collections::BTreeMap;

use nearpage_machine::{Machine, Request, Timing};
use nearpage_recording::ThreadIndex;

use crate::context::Context;
use crate::effect::{Access, Count, Part};
use overlap::Overlap;
pub(crate) use overlap::Pace;

/// Accesses of threads by the node of the memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Demand {
    /// By [`Part`] and thread: position of the thread's node, and accesses to each node's memory.
    threads: [BTreeMap<ThreadIndex, (usize, Vec<f64>)>; 2],
}

impl Demand {
    /// Adds another demand, scaled.
    pub fn add_scaled(&mut self, other: &Self, factor: f64) {
        for (own, other) in self.threads.iter_mut().zip(&other.threads) {
            for (&thread, (reader, counts)) in other {
                let empty = || (*reader, vec![0.0; counts.len()]);
                let (_, sums) = own.entry(thread).or_insert_with(empty);
                for (sum, count) in sums.iter_mut().zip(counts) {
                    *sum += factor * count;
                }
            }
        }
    }

    /// Scales each thread's accesses after initialisation.
    pub fn scale_use(&mut self, factors: &[f64]) {
        for (thread, (_, counts)) in &mut self.threads[Part::Use as usize] {
            let factor = factors.get(thread.0 as usize).copied().unwrap_or(1.0);
            counts.iter_mut().for_each(|count| *count *= factor);
        }
    }
}

impl Count for Demand {
    fn count(&mut self, context: &Context, access: Access) {
        let empty = || (access.reader, vec![0.0; context.machine.nodes.len()]);
        let part = &mut self.threads[access.part as usize];
        let (_, counts) = part.entry(access.thread).or_insert_with(empty);
        counts[access.memory] += access.count;
    }
}

/// Times of threads: initialisation, what the busiest thread does alone, and the phase in which all run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time {
    /// With the time of the slowest thread in the phase: the program's time if the others wait for it only at the end.
    pub slowest_ns: f64,
    /// With the mean time of all threads in the phase: the program's time follows it if threads wait for each other step
    /// by step, each time for another thread. Initialisation has no such steps: mostly one thread does it, and the
    /// others begin afterwards.
    pub mean_ns: f64,
}

/// A machine's queues and latencies.
pub(crate) struct Contention {
    latency_ns: Vec<Vec<f64>>,
    overlap: Overlap,
    /// Stations on the way of a request, and the time that each is busy with it, `[CPU's node][memory's node]`.
    ways: Vec<Vec<Vec<(usize, f64)>>>,
    /// Longest time that each station is busy with a request.
    longest_ns: Vec<f64>,
}

/// Work of a station.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Sum of the times for which requests keep it busy.
    busy_ns: f64,
    /// Sum of the squares of these times.
    squares_ns2: f64,
}

impl std::iter::Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |sum, load| Self {
            busy_ns: sum.busy_ns + load.busy_ns,
            squares_ns2: sum.squares_ns2 + load.squares_ns2,
        })
    }
}

/// Halvings of the interval by bisection: to a millionth.
const HALVINGS: usize = 20;

impl Contention {
    pub fn new(machine: &Machine, timing: &Timing) -> Self {
        let nodes = machine.nodes.len();
        let line_ns = |bandwidth: f64| f64::from(timing.line_bytes) / bandwidth * 1e9;
        let controller = timing.memory_bandwidth_bytes_per_s.map_or(0.0, line_ns);
        // Stations have numbers in this order: controllers, directories, links.
        let way = |cpu: usize, memory: usize| {
            let mut way = vec![(memory, controller), (nodes + cpu, timing.directory_ns)];
            if cpu != memory {
                way.push((nodes + memory, timing.directory_ns));
            }
            let links = timing.link_bytes(Request::Line, cpu, memory).into_iter();
            way.extend(links.map(|(link, bytes)| {
                let link = usize::from(link);
                let bandwidth = timing.links[link].2;
                (2 * nodes + link, bytes as f64 / bandwidth * 1e9)
            }));
            way.retain(|&(_, service_ns)| service_ns > 0.0);
            way
        };
        let ways = (0..nodes)
            .map(|cpu| (0..nodes).map(|memory| way(cpu, memory)).collect())
            .collect();
        let stations = 2 * nodes + timing.links.len();
        Self {
            overlap: Overlap::new(timing),
            ..Self::of_ways(timing.latency_ns.clone(), ways, stations)
        }
    }

    fn of_ways(
        latency_ns: Vec<Vec<f64>>,
        ways: Vec<Vec<Vec<(usize, f64)>>>,
        stations: usize,
    ) -> Self {
        let mut longest_ns = vec![0.0_f64; stations];
        for &(station, service_ns) in ways.iter().flatten().flatten() {
            longest_ns[station] = longest_ns[station].max(service_ns);
        }
        Self {
            latency_ns,
            overlap: Overlap::NONE,
            ways,
            longest_ns,
        }
    }

    /// Unloaded latencies, `[CPU's node][memory's node]`, by position.
    pub fn latency_ns(&self) -> &[Vec<f64>] {
        &self.latency_ns
    }

    /// The same machine with CPUs that wait for each miss.
    pub fn without_overlap(self) -> Self {
        Self {
            overlap: Overlap::NONE,
            ..self
        }
    }

    /// Time of a demand: the initialisation, then the use, which lasts `runtime_scale` times as long as recorded.
    pub fn time_ns(
        &self,
        demand: &Demand,
        pace: impl Fn(ThreadIndex) -> Pace,
        runtime_scale: f64,
    ) -> Time {
        let [initialisation, used] = [Part::Initialisation, Part::Use];
        let misses_alone = |thread| Pace {
            compute_ns: 0.0,
            ..pace(thread)
        };
        let first = self.phase_ns(&demand.threads[initialisation as usize], misses_alone);
        let used = &demand.threads[used as usize];
        let excess = self.excess(used, &pace);
        let mut alone_ns = 0.0;
        let mut together = used.clone();
        if let Some((busiest, share)) = excess
            && let Some((reader, counts)) = together.get_mut(&busiest)
        {
            let own = counts.iter().map(|count| share * count).collect();
            counts.iter_mut().for_each(|count| *count *= 1.0 - share);
            let alone = BTreeMap::from([(busiest, (*reader, own))]);
            alone_ns = self
                .phase_ns(&alone, |one| pace(one).part(share))
                .slowest_ns;
        }
        let phase = self.phase_ns(&together, |thread| match excess {
            Some((busiest, share)) if busiest == thread => pace(thread).part(1.0 - share),
            _ => pace(thread),
        });
        let before_ns = first.slowest_ns + runtime_scale * alone_ns;
        Time {
            slowest_ns: before_ns + runtime_scale * phase.slowest_ns,
            mean_ns: before_ns + runtime_scale * phase.mean_ns,
        }
    }

    /// The busiest thread, and the share of its work by which it exceeds the next busiest; none if there is one thread.
    /// Work is computation and misses, each of which counts as the mean latency, so that it depends on no placement.
    fn excess(
        &self,
        threads: &BTreeMap<ThreadIndex, (usize, Vec<f64>)>,
        pace: impl Fn(ThreadIndex) -> Pace,
    ) -> Option<(ThreadIndex, f64)> {
        let pairs = self.latency_ns.iter().flatten();
        let each_ns = pairs.clone().sum::<f64>() / pairs.count().max(1) as f64;
        let mut works: Vec<(f64, ThreadIndex)> = threads
            .iter()
            .map(|(&thread, (_, counts))| {
                let waited_ns = each_ns * counts.iter().sum::<f64>();
                (pace(thread).compute_ns + waited_ns, thread)
            })
            .collect();
        works.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
        let &[(most_ns, busiest), (next_ns, _), ..] = works.as_slice() else {
            return None;
        };
        Some((busiest, 1.0 - next_ns / most_ns.max(f64::MIN_POSITIVE)))
    }

    fn phase_ns(
        &self,
        threads: &BTreeMap<ThreadIndex, (usize, Vec<f64>)>,
        pace: impl Fn(ThreadIndex) -> Pace,
    ) -> Time {
        let threads: Vec<BusyThread> = threads
            .iter()
            .map(|(&thread, (reader, counts))| self.busy_thread(*reader, counts, pace(thread)))
            .collect();
        let all = Requests {
            loads: (0..self.longest_ns.len())
                .map(|station| threads.iter().map(|own| own.loads[station]).sum())
                .collect(),
            under_way: threads.iter().map(|own| own.under_way).sum(),
        };
        let all = &all;
        let each = |time_ns: f64| {
            let threads = threads.iter();
            threads.map(move |own| self.thread_ns(own, all, time_ns))
        };
        let needed = |time_ns: f64| each(time_ns).fold(0.0, f64::max);
        let mut low = all
            .loads
            .iter()
            .map(|load| load.busy_ns)
            .fold(0.0, f64::max);
        let mut high = needed(0.0).max(low);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if needed(middle) > middle {
                low = middle;
            } else {
                high = middle;
            }
        }
        Time {
            slowest_ns: high,
            mean_ns: each(high).sum::<f64>() / threads.len().max(1) as f64,
        }
    }

    fn busy_thread<'a>(&self, reader: usize, counts: &'a [f64], pace: Pace) -> BusyThread<'a> {
        let mut loads = vec![Load::default(); self.longest_ns.len()];
        for (memory, count) in counts.iter().enumerate() {
            for &(station, service_ns) in &self.ways[reader][memory] {
                loads[station].busy_ns += count * service_ns;
                loads[station].squares_ns2 += count * service_ns * service_ns;
            }
        }
        BusyThread {
            reader,
            counts,
            under_way: self.overlap.under_way(pace.gap_ns).count,
            pace,
            loads,
        }
    }

    /// Time of a thread among requests of all threads, in a phase of `phase_ns`.
    fn thread_ns(&self, own: &BusyThread, all: &Requests, phase_ns: f64) -> f64 {
        // A request waits for all others, those of its own thread included.
        let wait_ns = |station: usize| {
            let of_others = |all: f64, own_load: f64| (all - own_load / own.under_way).max(0.0);
            let (all_load, own_load) = (all.loads[station], own.loads[station]);
            let busy_ns = of_others(all_load.busy_ns, own_load.busy_ns);
            let squares_ns2 = of_others(all_load.squares_ns2, own_load.squares_ns2);
            let free_ns = (phase_ns - busy_ns).max(0.0);
            let most_ns = (all.under_way - 1.0).max(0.0) * self.longest_ns[station];
            if 2.0 * free_ns * most_ns <= squares_ns2 {
                most_ns
            } else {
                squares_ns2 / (2.0 * free_ns)
            }
        };
        let with_latency = |(memory, &count): (usize, &f64)| {
            let way = self.ways[own.reader][memory].iter();
            let wait_ns = way
                .map(|&(station, _)| wait_ns(station))
                .fold(0.0, f64::max);
            (count, self.latency_ns[own.reader][memory] + wait_ns)
        };
        let misses = own.counts.iter().enumerate().map(with_latency);
        self.overlap.time_ns(misses, own.pace)
    }
}

/// A thread of a phase.
struct BusyThread<'a> {
    /// Position of its node.
    reader: usize,
    /// Misses by the memory's node.
    counts: &'a [f64],
    pace: Pace,
    /// What it asks of each station.
    loads: Vec<Load>,
    /// Its misses that are under way at a time.
    under_way: f64,
}

/// What all threads of a phase ask of each station, and their misses that are under way at a time.
struct Requests {
    loads: Vec<Load>,
    under_way: f64,
}

#[cfg(test)]
mod mixes;

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;
    use proptest::prelude::*;

    use super::*;

    /// Threads with their node's position and accesses by node, all after initialisation.
    fn demand(threads: &[(usize, &[f64])]) -> Demand {
        let mut demand = Demand::default();
        for (number, (reader, counts)) in threads.iter().enumerate() {
            let thread = ThreadIndex(number as u32);
            demand.threads[Part::Use as usize].insert(thread, (*reader, counts.to_vec()));
        }
        demand
    }

    fn pace(compute_ns: f64) -> Pace {
        Pace {
            compute_ns,
            gap_ns: 0.0,
        }
    }

    fn contention(name: &str) -> Contention {
        let machine = preset(name).expect(name);
        let timing = machine.timing().expect("figures");
        Contention::new(&machine, &timing)
    }

    #[test]
    fn alone_a_thread_waits_for_nobody() {
        let contention = contention("opteron-4");
        let one = demand(&[(0, &[1000.0, 100.0, 0.0, 0.0])]);
        let time = contention.time_ns(&one, |_| pace(5000.0), 1.0).slowest_ns;
        let expected = 5000.0 + 1000.0 * 102.0 + 100.0 * contention.latency_ns[0][1];
        assert!((time / expected - 1.0).abs() < 1e-5, "{time} {expected}");
    }

    /// A master prepares each step alone, for threads that then wait for far memory longer than it ever works.
    #[test]
    fn what_the_busiest_does_beyond_the_next_it_does_alone() {
        let contention = contention("opteron-4");
        let local_ns = contention.latency_ns[0][0];
        let workers = |of_master: f64| {
            demand(&[
                (0, &[of_master, 0.0, 0.0, 0.0]),
                (3, &[1000.0, 0.0, 0.0, 0.0]),
            ])
        };
        let time_ns = |of_master| contention.time_ns(&workers(of_master), |_| pace(0.0), 1.0);
        let (alike, more) = (time_ns(1000.0), time_ns(4000.0));
        for (alike_ns, more_ns) in [
            (alike.slowest_ns, more.slowest_ns),
            (alike.mean_ns, more.mean_ns),
        ] {
            let alone_ns = more_ns - alike_ns;
            let expected_ns = 3000.0 * local_ns;
            assert!(
                (alone_ns / expected_ns - 1.0).abs() < 1e-3,
                "{alone_ns} {expected_ns}"
            );
        }
    }

    /// Others that touch a stack of their own do not make the initialisation of one thread shorter.
    #[test]
    fn all_threads_wait_for_the_one_that_initialises() {
        let contention = contention("opteron-4");
        let mut demand = demand(&[(0, &[10.0, 0.0, 0.0, 0.0]), (1, &[0.0, 10.0, 0.0, 0.0])]);
        let initialisation = &mut demand.threads[Part::Initialisation as usize];
        initialisation.insert(ThreadIndex(0), (0, vec![0.0, 5000.0, 0.0, 0.0]));
        initialisation.insert(ThreadIndex(1), (1, vec![0.0, 1.0, 0.0, 0.0]));
        let alone_ns = 5000.0 * contention.latency_ns[0][1];
        let time = contention.time_ns(&demand, |_| pace(0.0), 1.0);
        assert!(time.mean_ns >= alone_ns, "{time:?}");
    }

    #[test]
    fn a_saturated_controller_serves_its_bandwidth() {
        let ways = vec![vec![vec![(0, 100.0)], vec![(1, 100.0)]]; 2];
        let contention = Contention::of_ways(vec![vec![10.0; 2]; 2], ways, 2);
        let crowded = demand(&[
            (0, &[1000.0, 0.0]),
            (0, &[1000.0, 0.0]),
            (1, &[1000.0, 0.0]),
            (1, &[1000.0, 0.0]),
        ]);
        let spread = demand(&[
            (0, &[500.0, 500.0]),
            (0, &[500.0, 500.0]),
            (1, &[500.0, 500.0]),
            (1, &[500.0, 500.0]),
        ]);
        let (crowded, spread) = (
            contention.time_ns(&crowded, |_| pace(0.0), 1.0).slowest_ns,
            contention.time_ns(&spread, |_| pace(0.0), 1.0).slowest_ns,
        );
        assert!((400_000.0..450_000.0).contains(&crowded), "{crowded}");
        assert!((200_000.0..330_000.0).contains(&spread), "{spread}");
    }

    proptest! {
        /// More accesses of all threads never take less time, nor does any phase take less than its longest thread
        /// unloaded, whose misses overlap as far as they may, or its busiest station.
        #[test]
        fn time_grows_with_demand(
            counts in prop::collection::vec((0usize..4, prop::collection::vec(0.0f64..1e6, 4)), 1..9),
            more in 1.0f64..100.0,
        ) {
            let contention = contention("carrefour-a");
            let threads: Vec<(usize, &[f64])> = counts.iter().map(|(node, row)| (*node, row.as_slice())).collect();
            let time = contention.time_ns(&demand(&threads), |_| pace(0.0), 1.0);
            prop_assert!(time.mean_ns <= time.slowest_ns * (1.0 + 1e-5), "{:?}", time);
            let time = time.slowest_ns;
            let unloaded = threads
                .iter()
                .map(|(node, row)| row.iter().zip(&contention.latency_ns[*node]).map(|(count, ns)| count * ns).sum::<f64>())
                .fold(0.0, f64::max);
            let unloaded = unloaded / f64::from(contention.overlap.misses_max);
            prop_assert!(time >= unloaded * (1.0 - 1e-5), "{} {}", time, unloaded);
            let mut grown = counts.clone();
            grown.iter_mut().flat_map(|(_, row)| row).for_each(|count| *count *= more);
            let threads: Vec<(usize, &[f64])> = grown.iter().map(|(node, row)| (*node, row.as_slice())).collect();
            prop_assert!(contention.time_ns(&demand(&threads), |_| pace(0.0), 1.0).slowest_ns >= time * (1.0 - 1e-5));
        }
    }
}
