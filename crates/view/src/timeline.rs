//! Timeline of a recording: the CPU of each thread, traffic between nodes, memory by node, and cost by function.

use std::ops::Range;

use nearpage_recording::AccessBatch;
use serde::Serialize;

use crate::point::{Point, Scale};

/// Number of parts of the recording's time.
pub const PARTS: usize = 240;
/// Maximum number of threads in the timeline; a screen has no room for more.
const THREADS_MAX: usize = 1024;

/// The CPU on which a thread mostly ran in a part of the time, by a majority vote (Boyer and Moore). The result is
/// certain if the CPU had more than half of the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Vote {
    cpu: u32,
    lead: u32,
}

impl Vote {
    fn cast(&mut self, cpu: u32, votes: u32) {
        if self.cpu == cpu || self.lead == 0 {
            *self = Self {
                cpu,
                lead: votes + if self.cpu == cpu { self.lead } else { 0 },
            };
        } else if votes > self.lead {
            *self = Self {
                cpu,
                lead: votes - self.lead,
            };
        } else {
            self.lead -= votes;
        }
    }
}

/// Accesses that a node's memory served, by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Served {
    /// Accesses of the node's own CPUs.
    pub local: f64,
    /// Accesses of other nodes' CPUs.
    pub remote: f64,
    /// Part of the accesses that is known to have come from memory or another node's cache. Each transfers a line.
    pub lines: f64,
}

/// Values of a point's level that mean memory or another node's cache.
const FROM_MEMORY: std::ops::RangeInclusive<usize> = 5..=7;

/// Timeline of all threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Votes, `[thread][part]`.
    votes: Vec<Vote>,
    /// Accesses, `[CPU's node][page's node]`; positions start at 1, and 0 is unknown.
    traffic: Vec<Vec<f64>>,
    /// Accesses that each node's memory served: `[part][node]`.
    memory: Vec<Served>,
    /// Time lost by each function with a colour, in nanoseconds.
    pub(crate) functions_cost_ns: Vec<f64>,
    /// Begin of the first part, in nanoseconds since the recording began.
    from_ns: u64,
    part_ns: u64,
    parts: usize,
}

/// A timeline for the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineForm {
    /// Number of parts of the time.
    pub parts: usize,
    /// Begin of the first part, in nanoseconds since the recording began.
    pub from_ns: u64,
    /// Length of a part, in nanoseconds.
    pub part_ns: u64,
    /// CPU of each thread in each part; −1 without accesses.
    pub cpus: Vec<Vec<i64>>,
    /// Accesses, `[CPU's node][page's node]`; positions start at 1, and 0 is unknown.
    pub traffic: Vec<Vec<f64>>,
    /// Accesses that each node's memory served, `[part][node]`, without accesses whose CPU's or page's node is unknown.
    pub memory: Vec<Vec<Served>>,
}

impl Timeline {
    /// An empty timeline of some ticks, in `parts` parts.
    pub(crate) fn new(scale: &Scale, ticks: &Range<u32>, parts: usize) -> Self {
        let threads = scale.thread_slots.len().min(THREADS_MAX);
        Self {
            functions_cost_ns: vec![0.0; scale.functions],
            from_ns: u64::from(ticks.start) * scale.tick_ns,
            part_ns: (ticks.len() as u64 * scale.tick_ns)
                .div_ceil(parts as u64)
                .max(1),
            parts,
            votes: vec![Vote::default(); threads * parts],
            traffic: vec![vec![0.0; scale.nodes + 1]; scale.nodes + 1],
            memory: vec![Served::default(); scale.nodes * parts],
        }
    }

    /// Adds a batch and its points.
    pub(crate) fn add(&mut self, scale: &Scale, batch: &AccessBatch, points: &[Point]) {
        for row in 0..batch.len() {
            let since_ns = batch.time_ns[row].saturating_sub(scale.begin_ns);
            let part = self.part(since_ns);
            let counted_as = scale.counted_as.get(batch.thread[row].0 as usize);
            let thread = counted_as.map_or(usize::MAX, |thread| thread.0 as usize);
            let vote = self
                .votes
                .get_mut(thread.saturating_mul(self.parts).saturating_add(part));
            if let Some(vote) = vote {
                vote.cast(batch.cpu[row].0, 1);
            }
        }
        for point in points {
            let (cpu, page) = (point.cpu_node(), point.page_node());
            if let Some(sum) = self.traffic.get_mut(cpu).and_then(|row| row.get_mut(page)) {
                *sum += f64::from(point.weight);
            }
            if cpu > 0 && page > 0 {
                self.serve(scale, point);
            }
            if let Some(sum) = self.functions_cost_ns.get_mut(usize::from(point.function)) {
                *sum += f64::from(point.cost_ns);
            }
        }
    }

    /// Part that contains a time since the recording began.
    fn part(&self, since_ns: u64) -> usize {
        let part = since_ns.saturating_sub(self.from_ns) / self.part_ns;
        (part as usize).min(self.parts - 1)
    }

    /// Adds an access whose CPU's and page's nodes are known.
    fn serve(&mut self, scale: &Scale, point: &Point) {
        let part = self.part(u64::from(point.tick) * scale.tick_ns);
        let nodes = self.memory.len() / self.parts;
        let node = point.page_node() - 1;
        if node >= nodes {
            return;
        }
        let served = &mut self.memory[part * nodes + node];
        let weight = f64::from(point.weight);
        match point.cpu_node() == point.page_node() {
            true => served.local += weight,
            false => served.remote += weight,
        }
        if FROM_MEMORY.contains(&point.level()) {
            served.lines += weight;
        }
    }

    /// Adds another timeline, whose parts may differ. Each of its parts is divided among the parts that it overlaps, by
    /// the share of time.
    pub(crate) fn append(&mut self, other: &Self) {
        for part in 0..other.parts {
            let begin_ns = other.from_ns + part as u64 * other.part_ns;
            let end_ns = begin_ns + other.part_ns;
            self.append_votes(other, part, self.part(begin_ns + other.part_ns / 2));
            for mine in self.part(begin_ns)..=self.part(end_ns - 1) {
                // The first and the last part also get the time before and after this timeline.
                let from_ns = match mine {
                    0 => begin_ns,
                    _ => begin_ns.max(self.from_ns + mine as u64 * self.part_ns),
                };
                let to_ns = match mine + 1 == self.parts {
                    true => end_ns,
                    false => end_ns.min(self.from_ns + (mine as u64 + 1) * self.part_ns),
                };
                let share = (to_ns - from_ns) as f64 / other.part_ns as f64;
                self.append_memory(other, part, mine, share);
            }
        }
        let sums = self.traffic.iter_mut().flatten();
        for (sum, other) in sums.zip(other.traffic.iter().flatten()) {
            *sum += other;
        }
        let functions = self.functions_cost_ns.iter_mut();
        for (sum, other) in functions.zip(&other.functions_cost_ns) {
            *sum += other;
        }
    }

    fn append_votes(&mut self, other: &Self, part: usize, mine: usize) {
        let votes = self.votes.iter_mut().skip(mine).step_by(self.parts);
        let others = other.votes.iter().skip(part).step_by(other.parts);
        for (vote, other) in votes.zip(others) {
            if other.lead > 0 {
                vote.cast(other.cpu, other.lead);
            }
        }
    }

    fn append_memory(&mut self, other: &Self, part: usize, mine: usize, share: f64) {
        let nodes = self.memory.len() / self.parts;
        let sums = &mut self.memory[mine * nodes..(mine + 1) * nodes];
        for (sum, other) in sums.iter_mut().zip(&other.memory[part * nodes..]) {
            sum.local += share * other.local;
            sum.remote += share * other.remote;
            sum.lines += share * other.lines;
        }
    }

    /// The timeline for the page.
    pub fn form(&self) -> TimelineForm {
        let cpu = |vote: &Vote| match vote.lead {
            0 => -1,
            _ => i64::from(vote.cpu),
        };
        TimelineForm {
            parts: self.parts,
            from_ns: self.from_ns,
            part_ns: self.part_ns,
            cpus: self
                .votes
                .chunks(self.parts)
                .map(|parts| parts.iter().map(cpu).collect())
                .collect(),
            traffic: self.traffic.clone(),
            memory: match self.memory.len() / self.parts {
                0 => Vec::new(),
                nodes => self.memory.chunks(nodes).map(<[Served]>::to_vec).collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use nearpage_machine::CpuId;
    use nearpage_recording::{Access, Tables, ThreadIndex};
    use proptest::prelude::*;

    use super::*;
    use crate::point::tests::{access, thread};
    use crate::space::Space;

    proptest! {
        /// A CPU with more than half of the votes wins, even if the votes are counted in several parts.
        #[test]
        fn a_majority_wins(cpus in prop::collection::vec(0..3u32, 1..60), cut in any::<prop::sample::Index>()) {
            let majority = (0..3u32).find(|cpu| {
                2 * cpus.iter().filter(|other| *other == cpu).count() > cpus.len()
            });
            let count = |cpus: &[u32]| {
                let mut vote = Vote::default();
                cpus.iter().for_each(|&cpu| vote.cast(cpu, 1));
                vote
            };
            let (first, second) = cpus.split_at(cut.index(cpus.len()));
            let mut both = count(first);
            let second = count(second);
            both.cast(second.cpu, second.lead);
            if let Some(cpu) = majority {
                prop_assert_eq!(count(&cpus).cpu, cpu);
                prop_assert_eq!(both.cpu, cpu);
            }
        }
    }

    #[test]
    fn parts_of_other_lengths_keep_their_sums_and_times() {
        let scale = crate::point::tests::scale(10, 1200, 1, 2);
        let mut fine = Timeline::new(&scale, &(0..300), 30);
        for part in 0..30 {
            fine.memory[2 * part].local = 10.0;
            fine.votes[part] = Vote { cpu: 3, lead: 1 };
        }
        // A part of 75 ns contains seven and a half parts of 10 ns.
        let mut whole = Timeline::new(&scale, &(0..1200), 16);
        whole.append(&fine);
        let local: Vec<f64> = whole
            .form()
            .memory
            .iter()
            .map(|part| part[0].local)
            .collect();
        assert_eq!(local[..5], [75.0, 75.0, 75.0, 75.0, 0.0]);
        let cpus = &whole.form().cpus[0];
        assert_eq!(cpus[..5], [3, 3, 3, 3, -1]);
        // Time before the first part counts for the first part.
        let mut later = Timeline::new(&scale, &(100..1200), 11);
        later.append(&fine);
        assert_eq!(later.form().memory[0][0].local, 200.0);
        assert_eq!(
            later
                .form()
                .memory
                .iter()
                .map(|part| part[0].local)
                .sum::<f64>(),
            300.0
        );
    }

    /// Threads that a program creates for every step count as one thread, as in reports. Each had a colour of its own
    /// before, and the timeline showed only the first.
    #[test]
    fn threads_that_are_created_anew_have_one_colour() {
        let tables = Tables {
            threads: vec![
                thread(0, "main", 0),
                thread(1, "step", 0),
                thread(2, "step", 1),
                thread(3, "step", 0),
                thread(4, "step", 1),
            ],
            ..Tables::default()
        };
        let space = Space::new(&tables, 4096);
        let machine = nearpage_machine::preset("opteron-4").unwrap();
        let scale = Scale::new(&space, &tables, &machine, 1, (0, 1000));
        assert_eq!(
            (scale.threads, &scale.thread_slots[..]),
            (3, &[0, 1, 2, 1, 2][..])
        );
        let mut timeline = Timeline::new(&scale, &(0..scale.ticks), 2);
        let mut batch = AccessBatch::default();
        for (time_ns, index, cpu) in [(10, 1, 3), (900, 3, 5)] {
            batch.push(Access {
                time_ns,
                thread: ThreadIndex(index),
                cpu: CpuId(cpu),
                ..access()
            });
        }
        timeline.add(&scale, &batch, &[]);
        assert_eq!(timeline.form().cpus[1], [3, 5]);
    }
}
