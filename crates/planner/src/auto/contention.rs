//! Time that threads take for accesses to nodes: the machine's controllers, directories and links are queues that all
//! threads share.
//!
//! A phase of threads that run side by side takes as long as the slowest thread. A thread takes its computation and,
//! for each miss, the unloaded latency and the longest wait on the way. In a time `T`, a station that serves requests
//! of other threads in `s` each is busy with them for Σ s. A request waits there for Σ s² ÷ 2 (T − Σ s) (Pollaczek and
//! Khinchine; by the arrival theorem of closed queues a request meets those that other threads have under way). It
//! never waits longer than the longest request of each other thread takes, since each thread waits for its own request.
//! Waits shrink as `T` grows, so there is one `T` at which threads take the assumed time. Bisection finds it. No phase
//! is shorter than its busiest station.

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
    /// Mean time of all threads: the program's time follows it if threads wait for each other step by step, each time
    /// for another thread.
    pub mean_ns: f64,
}

/// A machine's queues and latencies.
pub(crate) struct Contention {
    latency_ns: Vec<Vec<f64>>,
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
        Self::of_ways(
            timing.latency_ns.clone(),
            ways,
            2 * nodes + timing.links.len(),
        )
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
            ways,
            longest_ns,
        }
    }

    /// Unloaded latencies, `[CPU's node][memory's node]`, by position.
    pub fn latency_ns(&self) -> &[Vec<f64>] {
        &self.latency_ns
    }

    /// Time of a demand: the initialisation, then the use, which lasts `runtime_scale` times as long as recorded.
    /// `compute_ns`: computation of each thread during the use.
    pub fn time_ns(
        &self,
        demand: &Demand,
        compute_ns: impl Fn(ThreadIndex) -> f64,
        runtime_scale: f64,
    ) -> Time {
        let [initialisation, used] = [Part::Initialisation, Part::Use];
        let first = self.phase_ns(&demand.threads[initialisation as usize], |_| 0.0);
        let second = self.phase_ns(&demand.threads[used as usize], compute_ns);
        Time {
            slowest_ns: first.slowest_ns + runtime_scale * second.slowest_ns,
            mean_ns: first.mean_ns + runtime_scale * second.mean_ns,
        }
    }

    fn phase_ns(
        &self,
        threads: &BTreeMap<ThreadIndex, (usize, Vec<f64>)>,
        compute_ns: impl Fn(ThreadIndex) -> f64,
    ) -> Time {
        // Load of each station, by thread and in total.
        let load_of = |(reader, counts): &(usize, Vec<f64>)| {
            let mut loads = vec![Load::default(); self.longest_ns.len()];
            for (memory, count) in counts.iter().enumerate() {
                for &(station, service_ns) in &self.ways[*reader][memory] {
                    loads[station].busy_ns += count * service_ns;
                    loads[station].squares_ns2 += count * service_ns * service_ns;
                }
            }
            loads
        };
        let own: Vec<Vec<Load>> = threads.values().map(load_of).collect();
        let all: Vec<Load> = (0..self.longest_ns.len())
            .map(|station| own.iter().map(|own| own[station]).sum())
            .collect();
        let others = threads.len().saturating_sub(1) as f64;
        let each = |time_ns: f64| {
            let wait = |station: usize, own: &[Load]| {
                let busy_ns = (all[station].busy_ns - own[station].busy_ns).max(0.0);
                let squares_ns2 = (all[station].squares_ns2 - own[station].squares_ns2).max(0.0);
                let free_ns = (time_ns - busy_ns).max(0.0);
                let most_ns = others * self.longest_ns[station];
                if 2.0 * free_ns * most_ns <= squares_ns2 {
                    most_ns
                } else {
                    squares_ns2 / (2.0 * free_ns)
                }
            };
            let of_thread = |number: usize, thread: ThreadIndex, reader: usize, counts: &[f64]| {
                let own = &own[number];
                let misses: f64 = counts
                    .iter()
                    .enumerate()
                    .map(|(memory, count)| {
                        let way = self.ways[reader][memory].iter();
                        let waits = way.map(|&(at, _)| wait(at, own));
                        count * (self.latency_ns[reader][memory] + waits.fold(0.0, f64::max))
                    })
                    .sum();
                compute_ns(thread) + misses
            };
            let numbered = threads.iter().enumerate();
            numbered
                .map(|(number, (&thread, (reader, counts)))| {
                    of_thread(number, thread, *reader, counts)
                })
                .collect::<Vec<f64>>()
        };
        let needed = |time_ns: f64| each(time_ns).into_iter().fold(0.0, f64::max);
        let mut low = all.iter().map(|load| load.busy_ns).fold(0.0, f64::max);
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
            mean_ns: each(high).iter().sum::<f64>() / threads.len().max(1) as f64,
        }
    }
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

    fn contention(name: &str) -> Contention {
        let machine = preset(name).expect(name);
        let timing = machine.timing().expect("figures");
        Contention::new(&machine, &timing)
    }

    #[test]
    fn alone_a_thread_waits_for_nobody() {
        let contention = contention("opteron-4");
        let one = demand(&[(0, &[1000.0, 100.0, 0.0, 0.0])]);
        let time = contention.time_ns(&one, |_| 5000.0, 1.0).slowest_ns;
        let expected = 5000.0 + 1000.0 * 102.0 + 100.0 * contention.latency_ns[0][1];
        assert!((time / expected - 1.0).abs() < 1e-5, "{time} {expected}");
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
            contention.time_ns(&crowded, |_| 0.0, 1.0).slowest_ns,
            contention.time_ns(&spread, |_| 0.0, 1.0).slowest_ns,
        );
        assert!((400_000.0..450_000.0).contains(&crowded), "{crowded}");
        assert!((200_000.0..330_000.0).contains(&spread), "{spread}");
    }

    proptest! {
        /// More accesses never take less time, nor does any phase take less than its longest thread
        /// unloaded or its busiest station.
        #[test]
        fn time_grows_with_demand(
            counts in prop::collection::vec((0usize..4, prop::collection::vec(0.0f64..1e6, 4)), 1..9),
            more in 0.0f64..1e6,
        ) {
            let contention = contention("carrefour-a");
            let threads: Vec<(usize, &[f64])> = counts.iter().map(|(node, row)| (*node, row.as_slice())).collect();
            let time = contention.time_ns(&demand(&threads), |_| 0.0, 1.0);
            prop_assert!(time.mean_ns <= time.slowest_ns * (1.0 + 1e-5), "{:?}", time);
            let time = time.slowest_ns;
            let unloaded = threads
                .iter()
                .map(|(node, row)| row.iter().zip(&contention.latency_ns[*node]).map(|(count, ns)| count * ns).sum::<f64>())
                .fold(0.0, f64::max);
            prop_assert!(time >= unloaded * (1.0 - 1e-5), "{} {}", time, unloaded);
            let mut grown = counts.clone();
            grown[0].1[2] += more;
            let threads: Vec<(usize, &[f64])> = grown.iter().map(|(node, row)| (*node, row.as_slice())).collect();
            prop_assert!(contention.time_ns(&demand(&threads), |_| 0.0, 1.0).slowest_ns >= time * (1.0 - 1e-5));
        }
    }
}
