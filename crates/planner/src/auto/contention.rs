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

use std::collections::BTreeMap;

use nearpage_machine::{Machine, Request, Timing};
use nearpage_recording::ThreadIndex;

use crate::context::Context;
use crate::effect::{Access, Count, Part};

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
}

impl Count for Demand {
    fn count(&mut self, context: &Context, access: Access) {
        let empty = || (access.reader, vec![0.0; context.machine.nodes.len()]);
        let part = &mut self.threads[access.part as usize];
        let (_, counts) = part.entry(access.thread).or_insert_with(empty);
        counts[access.memory] += access.count;
    }
}

/// Times of threads, initialisation plus use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time {
    /// Time of the slowest thread: the program's time if the others wait for it only at the end.
    pub slowest_ns: f64,
    /// Time of the slowest thread in initialisation, plus mean time of all threads afterwards: the program's time
    /// follows it if threads wait for each other step by step, each time for another thread. Initialisation has no
    /// such steps: mostly one thread does it, and the others begin afterwards.
    pub mean_ns: f64,
}

/// How far a CPU runs ahead of its misses, as in the simulator.
#[derive(Clone, Copy, Debug)]
struct Overlap {
    /// Most misses of a CPU that are under way at a time.
    misses_max: u32,
    /// Time in which a CPU executes a window of instructions; 0 if it waits for each miss.
    window_ns: f64,
    /// Lines that the prefetcher requests ahead of a stream's miss; 0: there is none. All misses are taken to be of
    /// streams, as samples do not tell which misses follow each other.
    lines_ahead: f64,
}

/// Largest mean of a distribution whose probability of 0 is not rounded to 0, or nearly so.
const MISSES_A_WINDOW_MAX: f64 = 700.0;

impl Overlap {
    const NONE: Self = Self {
        misses_max: 1,
        window_ns: 0.0,
        lines_ahead: 0.0,
    };

    fn new(timing: &Timing) -> Self {
        Self {
            misses_max: timing.outstanding_misses.max(1),
            window_ns: timing.run_ahead_instructions() as f64 * timing.instruction_ns(),
            lines_ahead: timing
                .prefetcher
                .map_or(0.0, |one| f64::from(one.steps_ahead)),
        }
    }

    /// What a CPU does while a miss is under way, if the mean time of computation between misses is `gap_ns`. The number
    /// of other misses in the window after it is Poisson's, and their addresses are taken to be known in time: samples
    /// tell neither when a thread's misses follow each other, nor which of them need the data of others.
    fn under_way(&self, gap_ns: f64) -> UnderWay {
        if self.window_ns <= 0.0 {
            return UnderWay::ONE;
        }
        let mean = (self.window_ns / gap_ns.max(f64::MIN_POSITIVE)).min(MISSES_A_WINDOW_MAX);
        // Probability that exactly, and that at most, so many misses follow the first.
        let mut exactly = (-mean).exp();
        let mut at_most = 0.0;
        let mut count = 1.0;
        for following in 1..self.misses_max {
            at_most += exactly;
            count += 1.0 - at_most;
            exactly *= mean / f64::from(following);
        }
        at_most += exactly;
        // If no more may be under way, the CPU stops at the next miss. Otherwise it stops at the window's end.
        let computed_ns = gap_ns * (count - at_most).max(0.0);
        let ahead = self.lines_ahead.min(f64::from(self.misses_max) - count);
        UnderWay {
            count: count + ahead,
            computed_ns: computed_ns + ahead * gap_ns,
        }
    }

    /// Time of a thread's misses, given as numbers and latencies, and of its computation. `gap_ns`: mean time of
    /// computation between its misses.
    ///
    /// Misses under way at a time stop the CPU once. Of latencies from 0 to the shortest, each moment passes for all
    /// misses; of those up to the next one, it passes for all but the shortest misses, of which fewer are under way at
    /// a time; and so on.
    fn time_ns(&self, misses: impl Iterator<Item = (f64, f64)>, pace: Pace) -> f64 {
        let Pace { compute_ns, gap_ns } = pace;
        if self.window_ns <= 0.0 {
            let latencies = misses.map(|(count, latency_ns)| count * latency_ns);
            return compute_ns + latencies.sum::<f64>();
        }
        let mut misses: Vec<(f64, f64)> = misses.collect();
        let all: f64 = misses.iter().map(|(count, _)| count).sum();
        misses.sort_unstable_by(|one, other| one.1.total_cmp(&other.1));
        let mut longer = all;
        let (mut stopped_ns, mut passed_ns) = (0.0, 0.0_f64);
        for (count, latency_ns) in misses {
            let under_way = self.under_way(gap_ns * all / longer.max(f64::MIN_POSITIVE));
            let from_ns = passed_ns.max(under_way.computed_ns);
            stopped_ns += (latency_ns - from_ns).max(0.0) * longer / under_way.count;
            passed_ns = latency_ns;
            longer = (longer - count).max(0.0);
        }
        compute_ns + stopped_ns
    }
}

/// How a thread computes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Computation while several threads run.
    pub compute_ns: f64,
    /// Mean time of computation between two of its misses, whenever they are.
    pub gap_ns: f64,
}

/// What a CPU does while a miss is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Number of misses under way, this one included.
    count: f64,
    /// Computation.
    computed_ns: f64,
}

impl UnderWay {
    const ONE: Self = Self {
        count: 1.0,
        computed_ns: 0.0,
    };
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
        let second = self.phase_ns(&demand.threads[used as usize], &pace);
        Time {
            slowest_ns: first.slowest_ns + runtime_scale * second.slowest_ns,
            mean_ns: first.slowest_ns + runtime_scale * second.mean_ns,
        }
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
        /// More accesses never take less time, nor does any phase take less than its longest thread unloaded, whose
        /// misses overlap as far as they may, or its busiest station.
        #[test]
        fn time_grows_with_demand(
            counts in prop::collection::vec((0usize..4, prop::collection::vec(0.0f64..1e6, 4)), 1..9),
            more in 0.0f64..1e6,
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
            grown[0].1[2] += more;
            let threads: Vec<(usize, &[f64])> = grown.iter().map(|(node, row)| (*node, row.as_slice())).collect();
            prop_assert!(contention.time_ns(&demand(&threads), |_| pace(0.0), 1.0).slowest_ns >= time * (1.0 - 1e-5));
        }
    }
}
