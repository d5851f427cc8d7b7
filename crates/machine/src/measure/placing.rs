//! Finds the rate of memory accesses from which placement matters on this machine.
//!
//! Carrefour (§3.2.1) leaves programs alone that access memory less often than a threshold, 50
//! accesses a microsecond on its authors' machines, and finds it for another one by running
//! benchmarks "under different NUMA policies, noting which applications are affected and using the
//! lowest observed" rate. Here the benchmarks are one loop that waits for a load that misses and
//! then computes, more or less: on all CPUs at once, with the memory of each on its own node, then
//! with all memory on one node.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use super::kernels;
use super::memory::{self, Buffer};
use super::{CHASE_STEPS, MeasureError, Measurement, WORD_BYTES};
use crate::CpuId;

/// Multiplications between two loads, a few cycles each: from a program that does nothing but wait
/// for memory to one that hardly does.
const COMPUTING: [u32; 8] = [4096, 2048, 1024, 512, 256, 128, 32, 0];

/// A placement that costs less than this share of the time does not matter.
pub const SLOWDOWN_MIN: f64 = 0.05;

/// A loop under two placements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacingPoint {
    /// Accesses of all CPUs to memory in a microsecond, each on its own node: Carrefour's MAPTU.
    pub accesses_per_us: f64,
    /// Time with all memory on one node over time with each on its own, less one.
    pub slowdown: f64,
}

/// The lowest rate from which on placement costs [`SLOWDOWN_MIN`] and more at every rate that was
/// measured; `None` where it does not at the highest.
pub fn placing_threshold_per_us(points: &[PlacingPoint]) -> Option<f64> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| b.accesses_per_us.total_cmp(&a.accesses_per_us));
    let affected = sorted
        .iter()
        .take_while(|point| point.slowdown >= SLOWDOWN_MIN);
    affected.last().map(|point| point.accesses_per_us)
}

impl Measurement {
    /// Runs the loop at each rate, under both placements; no points where there is one memory node,
    /// and so nothing to place.
    ///
    /// # Errors
    /// Memory or CPUs that cannot be had.
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

    /// Accesses of all threads together, the median over rounds.
    fn accesses_per_us(
        &self,
        threads: &[(CpuId, &[u64])],
        computing: u32,
    ) -> Result<f64, MeasureError> {
        let barrier = Barrier::new(threads.len());
        let rounds = self.effort.rounds as usize + 1;
        let run = |number: usize, cpu: CpuId, chain: &[u64]| -> Result<Vec<f64>, MeasureError> {
            let pinned = memory::pin(cpu).map_err(|source| MeasureError::Pin { cpu, source });
            // Each begins elsewhere on the cycle: at a line of its own.
            let lines = chain.len() / self.line_words;
            let mut at = (lines / threads.len() * number * self.line_words) as u64;
            let mut rates = Vec::new();
            for _ in 0..rounds {
                barrier.wait();
                let (began, mut steps) = (Instant::now(), 0);
                while began.elapsed() < self.effort.round {
                    // About as long between two looks at the clock, however much is computed.
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
        // The first round warms up.
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

    /// A load of L ns, D more on the other node, C ns of computing: the slowdown is D / (L + C), so
    /// that it reaches 5 % where the rate of a CPU is 0.05 / D.
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
