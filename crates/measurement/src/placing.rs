//! Measures the access rate above which page placement matters on this machine.
//!
//! Carrefour (§3.2.1) does not manage programs whose rate of memory accesses is below a threshold, which is 50 accesses
//! per microsecond on its authors' machines. For other machines, the paper runs benchmarks "under different NUMA
//! policies, noting which applications are affected and using the lowest observed" rate. Here the benchmarks are a loop
//! that waits for a missing load and then computes for varying times. The loop runs on all CPUs at once: first with
//! each CPU's memory on its own node, then with all memory on one node.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use nearpage_machine::CpuId;

use super::kernels;
use super::memory::{self, Buffer};
use super::{CHASE_STEPS, MeasureError, Measurement, WORD_BYTES};

/// Numbers of multiplications between two loads, a few cycles each: the loops wait for memory from hardly to always.
const COMPUTING: [u32; 8] = [4096, 2048, 1024, 512, 256, 128, 32, 0];

/// Least slowdown, as a share of the time, by which placement counts as relevant.
pub const SLOWDOWN_MIN: f64 = 0.05;

/// Measurement of one loop under both placements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacingPoint {
    /// Memory accesses per microsecond of all CPUs with memory on their own nodes: Carrefour's MAPTU.
    pub accesses_per_us: f64,
    /// Time with all memory on one node, over the time with each CPU's memory on its own node, minus one.
    pub slowdown: f64,
}

/// The lowest measured rate such that the slowdown is at least [`SLOWDOWN_MIN`] there and at all higher rates; `None`
/// if the slowdown is below that at the highest rate.
pub fn placing_threshold_per_us(points: &[PlacingPoint]) -> Option<f64> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| b.accesses_per_us.total_cmp(&a.accesses_per_us));
    let affected = sorted
        .iter()
        .take_while(|point| point.slowdown >= SLOWDOWN_MIN);
    affected.last().map(|point| point.accesses_per_us)
}

impl Measurement {
    /// Runs the loop at each rate under both placements. There are no points for a machine with one memory node.
    ///
    /// # Errors
    /// Memory or CPUs are unavailable.
    pub fn placing(
        mut self,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<PlacingPoint>, MeasureError> {
        if self.memory_nodes.len() < 2 {
            return Ok(Vec::new());
        }
        let mut buffers: Vec<(usize, usize, Buffer)> = Vec::new();
        for (position, chain_bytes) in self.memory_nodes.clone() {
            let node = self.machine.nodes[position].id;
            progress(&format!("filling memory of node {node}"));
            let buffer = self.filled(node, chain_bytes)?;
            buffers.push((position, chain_bytes / WORD_BYTES, buffer));
        }
        let chain = |position: Option<usize>| {
            let own = buffers.iter().find(|(other, ..)| Some(*other) == position);
            let (_, words, buffer) = own.unwrap_or(&buffers[0]);
            &buffer.words()[..*words]
        };
        let all = |own: bool| {
            let cpus = self.cpu_nodes.iter();
            let cpus =
                cpus.flat_map(|(position, cpus)| cpus.iter().map(move |cpu| (*cpu, *position)));
            cpus.map(|(cpu, position)| (cpu, chain(own.then_some(position))))
                .collect::<Vec<_>>()
        };
        let (own, one) = (all(true), all(false));
        let mut points = Vec::new();
        for computing in COMPUTING {
            progress(&format!("with {computing} multiplications to a load"));
            let on_own = self.accesses_per_us(&own, computing)?;
            let on_one = self.accesses_per_us(&one, computing)?;
            points.push(PlacingPoint {
                accesses_per_us: on_own,
                slowdown: on_own / on_one - 1.0,
            });
        }
        Ok(points)
    }

    /// Accesses per microsecond of all threads together, as the median over rounds.
    fn accesses_per_us(
        &self,
        threads: &[(CpuId, &[u64])],
        computing: u32,
    ) -> Result<f64, MeasureError> {
        let barrier = Barrier::new(threads.len());
        let rounds = self.effort.rounds as usize + 1;
        let run = |number: usize, cpu: CpuId, chain: &[u64]| -> Result<Vec<f64>, MeasureError> {
            let pinned = memory::pin(cpu).map_err(|source| MeasureError::Pin { cpu, source });
            // Each thread begins at another line of the cycle.
            let lines = chain.len() / self.line_words;
            let mut at = (lines / threads.len() * number * self.line_words) as u64;
            let mut rates = Vec::new();
            for _ in 0..rounds {
                barrier.wait();
                let (began, mut steps) = (Instant::now(), 0);
                while began.elapsed() < self.effort.round {
                    // The time between two checks of the clock is about the same for all amounts of computing.
                    let stretch = CHASE_STEPS / (1 + u64::from(computing) / 64) + 1;
                    at = kernels::chase_computing(chain, at, stretch, computing);
                    steps += stretch;
                }
                rates.push(steps as f64 / began.elapsed().as_secs_f64() / 1e6);
            }
            pinned.map(|()| rates)
        };
        let by_thread: Result<Vec<Vec<f64>>, MeasureError> = thread::scope(|scope| {
            let handles: Vec<_> = (0..)
                .zip(threads)
                .map(|(number, &(cpu, chain))| {
                    let run = &run;
                    scope.spawn(move || run(number, cpu, chain))
                })
                .collect();
            let ended = handles.into_iter().map(|handle| handle.join());
            ended
                .map(|rates| rates.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let by_thread = by_thread?;
        // The first round warms up and does not count.
        let mut sums: Vec<f64> = (1..rounds)
            .map(|round| by_thread.iter().map(|rates| rates[round]).sum())
            .collect();
        sums.sort_by(f64::total_cmp);
        Ok(sums[sums.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &[(f64, f64)]) -> Vec<PlacingPoint> {
        of.iter()
            .map(|&(accesses_per_us, slowdown)| PlacingPoint {
                accesses_per_us,
                slowdown,
            })
            .collect()
    }

    /// With a load of L ns, D ns more on the other node and C ns of computing, the slowdown is D / (L + C). It is 5 %
    /// where the rate of a CPU is 0.05 / D.
    #[test]
    fn the_threshold_is_where_the_slowdown_is_a_twentieth() {
        let (latency_ns, more_ns) = (100.0, 50.0);
        let measured: Vec<(f64, f64)> = (0..=4000)
            .map(|computing_ns| latency_ns + f64::from(computing_ns))
            .map(|time_ns| (1e3 / time_ns, more_ns / time_ns))
            .collect();
        let threshold = placing_threshold_per_us(&points(&measured)).unwrap();
        assert!(
            (threshold - 0.05 / more_ns * 1e3).abs() < 1e-3,
            "{threshold}"
        );
    }

    #[test]
    fn one_lucky_measurement_does_not_lower_the_threshold() {
        let noisy = points(&[(1.0, 0.2), (0.5, 0.01), (4.0, 0.3), (2.0, 0.06)]);
        assert_eq!(placing_threshold_per_us(&noisy), Some(1.0));
        let gap = points(&[(4.0, 0.3), (2.0, 0.06), (1.0, 0.0), (0.5, 0.2)]);
        assert_eq!(placing_threshold_per_us(&gap), Some(2.0));
        assert_eq!(
            placing_threshold_per_us(&points(&[(4.0, 0.01), (2.0, 0.5)])),
            None
        );
        assert_eq!(placing_threshold_per_us(&[]), None);
    }
}
