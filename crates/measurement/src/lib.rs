//! Measured latency and bandwidth of this machine's memory, from every node with CPUs to every node with memory, in the
//! manner of Intel's Memory Latency Checker.
//!
//! - **Latency**: one thread on the first CPU of a node follows a random cycle through all lines of a buffer on the
//!   other node, each load waiting for the one before. The figure is the median over stretches of 1024 loads, after a
//!   round that is dropped. The buffer is at least four times the largest cache, in huge pages where the kernel has
//!   them. The figure includes TLB misses and the remaining cache hits, as a program's own pointer chase would.
//! - **Bandwidth**: a thread on every CPU of a node goes through its part of the buffer in order, at the same time as
//!   the others: loads, stores, or two loads to a store. The figures are bytes that the program loads and stores. An
//!   ordinary store makes the CPU read the line first; that traffic is not counted, so stores look slower than the
//!   memory is. There are no streaming stores and no AVX (see `kernels.rs`): a machine whose single CPU cannot saturate
//!   its memory without these shows less than in other tools.
//! - **Latency under load**: the chase on a node's first CPU, in one half of its own memory, while
//!   the node's other CPUs read the other half, from slowly to as fast as they can.
//! - **Moving a page**: `move_pages` of 512 small pages from one node to another and back, the median by page. A
//!   machine with memory on one node has no such figure.
//!
//! Nothing else should run during a measurement. Frequency changes, a virtual machine's neighbours and SMT siblings
//! affect the figures. Firmware that interleaves nodes makes all nodes look alike.

mod available;
mod bandwidth;
mod kernels;
mod latency;
mod memory;
mod moving;
mod placing;

use std::io;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearpage_amount::percent;
use nearpage_machine::{CpuId, CpuList, LoadedLatency, Machine, Matrix, NodeId, if_known};

use available::{busy, control_group_bytes, free_bytes};
use bandwidth::Kind;
use kernels::WORD_BYTES;
use memory::Buffer;

pub use available::available_bytes;
pub use placing::{PlacingPoint, SLOWDOWN_MIN, placing_threshold_per_us};

/// Words that a thread accesses between two checks of the clock: 32 KiB.
const BLOCK_WORDS: usize = 4096;
/// Loads of a chase between two checks of the clock.
const CHASE_STEPS: u64 = 1024;
const MEBIBYTE: usize = 1 << 20;
/// Bounds of a chain's size, whatever the cache sizes: a virtual machine may report a whole socket's cache.
const CHAIN_BYTES: std::ops::RangeInclusive<usize> = 64 * MEBIBYTE..=1024 * MEBIBYTE;
/// Pauses of the node's other CPUs after each block of 32 KiB that they read, for the latency under load.
const PAUSES: [Duration; 6] = [
    Duration::from_micros(64),
    Duration::from_micros(16),
    Duration::from_micros(8),
    Duration::from_micros(4),
    Duration::from_micros(2),
    Duration::ZERO,
];

/// Time and memory of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of rounds, whose median counts; one more round comes before.
    pub rounds: u32,
    /// Length of a round.
    pub round: Duration,
    /// Maximum size of a chain.
    pub chain_bytes_max: usize,
}

impl Effort {
    /// For reliable figures: 1.2 seconds for each pair of nodes.
    pub const FULL: Self = Self {
        rounds: 5,
        round: Duration::from_millis(50),
        chain_bytes_max: *CHAIN_BYTES.end(),
    };
    /// For a trial: a fiftieth of the time, and chains that may fit in caches.
    pub const QUICK: Self = Self {
        rounds: 3,
        round: Duration::from_millis(2),
        chain_bytes_max: 4 * MEBIBYTE,
    };
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum MeasureError {
    #[error("the CPUs that this process may use are unknown: {0}")]
    Affinity(io::Error),
    #[error("no node has both a CPU that this process may use and memory to measure")]
    Nothing,
    #[error(
        "memory of node {node} is unavailable: {source}; in a container, allow mbind (CAP_SYS_NICE) and the node (cpuset.mems)"
    )]
    Bind { node: NodeId, source: io::Error },
    #[error("CPU {cpu} is unavailable: {source}")]
    Pin { cpu: CpuId, source: io::Error },
    #[error(
        "{strays} of {pages} pages asked of node {node} are on another node, so there is nothing to measure; does it have free memory?"
    )]
    Strays {
        node: NodeId,
        strays: usize,
        pages: usize,
    },
}

/// A measurement of this machine.
#[derive(Debug)]
pub struct Measurement {
    machine: Machine,
    effort: Effort,
    /// Positions of nodes with usable CPUs, and these CPUs.
    cpu_nodes: Vec<(usize, Vec<CpuId>)>,
    /// Positions of nodes with memory, and the size of their chain in bytes.
    memory_nodes: Vec<(usize, usize)>,
    line_words: usize,
    notes: Vec<String>,
}

/// Results of a measurement.
#[derive(Debug)]
pub struct Measured {
    /// The machine, with measured latencies and bandwidths.
    pub machine: Machine,
    /// Standard deviation of the rounds' latencies, `[CPU's node][memory's node]`.
    pub latency_deviation_ns: Matrix,
    /// Number of rounds.
    pub rounds: u32,
    /// Remarks about the figures, one sentence each.
    pub notes: Vec<String>,
}

impl Measurement {
    /// Prepares a measurement with the CPUs that this process may use and at most half of each node's free memory,
    /// within the limits of control groups. `machine` is [`Machine::local`].
    ///
    /// # Errors
    /// There are no CPUs or no memory to measure with.
    pub fn new(machine: Machine, effort: Effort, sys_root: &Path) -> Result<Self, MeasureError> {
        let allowed = memory::allowed_cpus().map_err(MeasureError::Affinity)?;
        let free = |node: NodeId| {
            free_bytes(&sys_root.join(format!("devices/system/node/node{node}/meminfo")))
                .or_else(|| free_bytes(Path::new("/proc/meminfo")))
                .unwrap_or(0)
                .min(control_group_bytes(sys_root).unwrap_or(u64::MAX))
        };
        let mut measurement = Self::plan(machine, effort, &allowed, free)?;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        measurement.notes.extend(busy(&load));
        Ok(measurement)
    }

    fn plan(
        machine: Machine,
        effort: Effort,
        allowed: &CpuList,
        free_bytes: impl Fn(NodeId) -> u64,
    ) -> Result<Self, MeasureError> {
        let mut notes = Vec::new();
        let largest_cache = machine.caches.iter().map(|cache| cache.size_bytes).max();
        let largest_cache = largest_cache.unwrap_or(0) as usize;
        let wanted = largest_cache
            .saturating_mul(4)
            .clamp(*CHAIN_BYTES.start(), *CHAIN_BYTES.end())
            .min(effort.chain_bytes_max);
        let line_bytes = machine.caches.iter().map(|cache| cache.line_bytes).max();
        // A machine file may have any line size; invalid ones are replaced by the usual size.
        let line_bytes = line_bytes
            .filter(|bytes| bytes.is_power_of_two() && (16..=4096).contains(bytes))
            .unwrap_or(64);
        let mut cpu_nodes = Vec::new();
        let mut memory_nodes = Vec::new();
        for (position, node) in machine.nodes.iter().enumerate() {
            let cpus: Vec<CpuId> = node
                .cpus
                .iter()
                .copied()
                .filter(|&cpu| allowed.contains(cpu))
                .collect();
            if cpus.len() < node.cpus.len() {
                notes.push(format!(
                    "node {}: {} of its {} CPUs may be used (affinity, cpuset)",
                    node.id,
                    cpus.len(),
                    node.cpus.len()
                ));
            }
            if !cpus.is_empty() {
                cpu_nodes.push((position, cpus));
            }
            if node.memory_bytes == Some(0) {
                continue;
            }
            // A buffer has the length of two chains, and takes at most half of the free memory.
            let affordable = (free_bytes(node.id) / 4) as usize / MEBIBYTE * MEBIBYTE;
            let chain = wanted.min(affordable);
            if chain == 0 {
                notes.push(format!("node {}: not measured, no memory is free", node.id));
                continue;
            }
            if chain < largest_cache * 2 {
                notes.push(format!(
                    "node {}: {} MiB of memory against a cache of {} MiB: some of what is measured is the cache",
                    node.id,
                    chain / MEBIBYTE,
                    largest_cache / MEBIBYTE
                ));
            }
            memory_nodes.push((position, chain));
        }
        if cpu_nodes.is_empty() || memory_nodes.is_empty() {
            return Err(MeasureError::Nothing);
        }
        Ok(Self {
            machine,
            effort,
            cpu_nodes,
            memory_nodes,
            line_words: line_bytes as usize / WORD_BYTES,
            notes,
        })
    }

    /// Expected duration on an idle machine: the rounds, and a second for each GiB of memory.
    pub fn expected(&self) -> Duration {
        let pairs = (self.cpu_nodes.len() * self.memory_nodes.len()) as u32;
        let loaded: usize = self
            .memory_nodes
            .iter()
            .map(|&(memory, _)| self.load_cpus(memory).map_or(0, |_| PAUSES.len()))
            .sum();
        let rounds = (pairs * 4 + loaded as u32) * (self.effort.rounds + 1);
        let bytes: usize = self.memory_nodes.iter().map(|&(_, chain)| 2 * chain).sum();
        self.effort.round * rounds + Duration::from_secs_f64(bytes as f64 / (1 << 30) as f64)
    }

    /// Number of nodes with CPUs to measure from, and number of nodes with memory to measure.
    pub fn nodes(&self) -> (usize, usize) {
        (self.cpu_nodes.len(), self.memory_nodes.len())
    }

    /// Measures; `progress` is called with a description of each step.
    ///
    /// # Errors
    /// Memory or CPUs are unavailable.
    pub fn run(mut self, progress: &mut dyn FnMut(&str)) -> Result<Measured, MeasureError> {
        let count = self.machine.nodes.len();
        let unknown = || vec![vec![None; count]; count];
        let (mut latency_ns, mut deviation_ns): (Matrix, Matrix) = (unknown(), unknown());
        let mut bandwidths = Kind::ALL.map(|kind| (kind, unknown()));
        self.machine.loaded_latencies.clear();
        progress("what moving a page takes");
        if let Some(move_ns) = self.move_ns() {
            self.machine.moves.fixed_ns = Some(move_ns);
        }
        for (memory, chain_bytes) in std::mem::take(&mut self.memory_nodes) {
            let node = self.machine.nodes[memory].id;
            progress(&format!("filling memory of node {node}"));
            let mut buffer = self.filled(node, chain_bytes)?;
            let (chain, rest) = buffer.words().split_at(chain_bytes / WORD_BYTES);
            for (cpu_node, cpus) in &self.cpu_nodes {
                let from = self.machine.nodes[*cpu_node].id;
                progress(&format!("latency from node {from} to node {node}"));
                let found = on_cpu(cpus[0], || self.latency(chain))?;
                latency_ns[*cpu_node][memory] = Some(found.median_ns);
                deviation_ns[*cpu_node][memory] = Some(found.deviation_ns);
            }
            if let Some((cpu, load_cpus)) = self.load_cpus(memory) {
                for pause in PAUSES {
                    progress(&format!("latency of node {node} under load"));
                    let point = self.loaded(node, chain, rest, cpu, &load_cpus, pause)?;
                    self.machine.loaded_latencies.push(point);
                }
            }
            for (kind, matrix) in &mut bandwidths {
                for (cpu_node, cpus) in &self.cpu_nodes {
                    let from = self.machine.nodes[*cpu_node].id;
                    progress(&format!("{kind} bandwidth from node {from} to node {node}"));
                    let rate = self.bandwidth_bytes_per_s(*kind, cpus, buffer.words_mut())?;
                    matrix[*cpu_node][memory] = Some(rate);
                }
            }
        }
        let machine = &mut self.machine;
        machine.loaded_latencies.sort_by(|a, b| {
            (a.node, a.bandwidth_bytes_per_s)
                .partial_cmp(&(b.node, b.bandwidth_bytes_per_s))
                .expect("rates are numbers")
        });
        // Rounding to a tenth of a nanosecond and a megabyte per second is below the noise.
        machine.latency_ns = if_known(rounded(latency_ns, 0.1));
        for (kind, matrix) in bandwidths {
            *kind.of(machine) = if_known(rounded(matrix, 1e6));
        }
        for point in &mut machine.loaded_latencies {
            point.latency_ns = round_to(point.latency_ns, 0.1);
            point.bandwidth_bytes_per_s = round_to(point.bandwidth_bytes_per_s, 1e6);
        }
        // The source's mention of firmware ratings is dropped, because measured figures replace the ratings.
        let system = machine.source.split(';').next().unwrap_or_default();
        machine.source = format!("{system}; latency and bandwidth measured");
        Ok(Measured {
            machine: self.machine,
            latency_deviation_ns: deviation_ns,
            rounds: self.effort.rounds,
            notes: self.notes,
        })
    }

    /// A touched buffer on the node, of the length of two chains; its first half is a chain.
    fn filled(&mut self, node: NodeId, chain_bytes: usize) -> Result<Buffer, MeasureError> {
        let huge_page_bytes = self.machine.huge_page_bytes.unwrap_or(0) as usize;
        let bytes = 2 * chain_bytes;
        // On a machine with one memory node, memory cannot be elsewhere even if mbind(2) is refused.
        let alone = self.machine.nodes_with_memory().len() == 1;
        let buffer = Buffer::new(bytes, Some(node), huge_page_bytes).or_else(|error| {
            if alone {
                Buffer::new(bytes, None, huge_page_bytes)
            } else {
                Err(error)
            }
        });
        let mut buffer = buffer.map_err(|source| MeasureError::Bind { node, source })?;
        let (chain, rest) = buffer.words_mut().split_at_mut(chain_bytes / WORD_BYTES);
        kernels::build_chain(chain, self.line_words, u64::from(node.0));
        kernels::write(rest, 1);
        match buffer.strays(node) {
            Ok((_, 0)) => {}
            Ok((pages, strays)) => {
                return Err(MeasureError::Strays {
                    node,
                    strays,
                    pages,
                });
            }
            Err(_) if alone => {}
            Err(error) => self.notes.push(format!(
                "node {node}: whether its pages are there could not be checked: {error}"
            )),
        }
        if let Some(share) = buffer.huge_share()
            && share < 0.9
        {
            self.notes.push(format!(
                "node {node}: {} of its memory in huge pages, so latencies include TLB misses",
                percent(share)
            ));
        }
        Ok(buffer)
    }

    /// The CPU that chases and the CPUs that read meanwhile; `None` if the node has too few CPUs. The first CPU's SMT
    /// siblings are excluded, because they would slow it down even without load on the memory.
    fn load_cpus(&self, memory: usize) -> Option<(CpuId, Vec<CpuId>)> {
        let (_, cpus) = self.cpu_nodes.iter().find(|(node, _)| *node == memory)?;
        let first = cpus[0];
        let siblings = self.machine.cores.iter().find(|core| core.contains(&first));
        let others: Vec<CpuId> = cpus[1..]
            .iter()
            .copied()
            .filter(|cpu| siblings.is_none_or(|core| !core.contains(cpu)))
            .collect();
        (!others.is_empty()).then_some((first, others))
    }

    fn loaded(
        &self,
        node: NodeId,
        chain: &[u64],
        rest: &[u64],
        cpu: CpuId,
        load_cpus: &[CpuId],
        pause: Duration,
    ) -> Result<LoadedLatency, MeasureError> {
        let done = AtomicBool::new(false);
        let bytes = AtomicU64::new(0);
        let ready = Barrier::new(load_cpus.len() + 1);
        thread::scope(|scope| {
            let parts = parts(rest.len(), load_cpus.len());
            let loads: Vec<_> = load_cpus
                .iter()
                .zip(parts)
                .map(|(&cpu, part)| {
                    let (done, bytes, ready) = (&done, &bytes, &ready);
                    scope.spawn(move || {
                        let pinned = pin(cpu);
                        ready.wait();
                        for block in rest[part].chunks(BLOCK_WORDS).cycle() {
                            if done.load(Ordering::Relaxed) {
                                break;
                            }
                            kernels::read(block);
                            bytes.fetch_add((block.len() * WORD_BYTES) as u64, Ordering::Relaxed);
                            let until = Instant::now() + pause;
                            while Instant::now() < until {
                                std::hint::spin_loop();
                            }
                        }
                        pinned
                    })
                })
                .collect();
            let chasing = scope.spawn(|| {
                let pinned = pin(cpu);
                ready.wait();
                // The dropped first round of the chase also warms up the load.
                let start = (Instant::now(), bytes.load(Ordering::Relaxed));
                let latency_ns = self.latency(chain).median_ns;
                let read = bytes.load(Ordering::Relaxed) - start.1;
                let rate = read as f64 / start.0.elapsed().as_secs_f64();
                done.store(true, Ordering::Relaxed);
                pinned.map(|()| LoadedLatency {
                    node,
                    bandwidth_bytes_per_s: rate,
                    latency_ns,
                })
            });
            for load in loads {
                join(load)?;
            }
            join(chasing)
        })
    }
}

/// Splits `length` into `count` equal parts in order; a remainder belongs to no part.
fn parts(length: usize, count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let part = length / count;
    (0..count).map(move |at| at * part..(at + 1) * part)
}

fn pin(cpu: CpuId) -> Result<(), MeasureError> {
    memory::pin(cpu).map_err(|source| MeasureError::Pin { cpu, source })
}

fn on_cpu<T: Send>(cpu: CpuId, work: impl FnOnce() -> T + Send) -> Result<T, MeasureError> {
    thread::scope(|scope| join(scope.spawn(|| pin(cpu).map(|()| work()))))
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .expect("threads of a measurement do not panic")
}

/// Median of at least one value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// Rounds to a multiple of `unit`, at least to `unit` itself.
fn round_to(value: f64, unit: f64) -> f64 {
    let units = (value / unit).round().max(1.0);
    // 0.1 has no exact binary representation; dividing by 10 gives the number nearest to each multiple.
    if unit < 1.0 {
        units / (1.0 / unit).round()
    } else {
        units * unit
    }
}

fn rounded(mut matrix: Matrix, unit: f64) -> Matrix {
    for value in matrix.iter_mut().flatten().flatten() {
        *value = round_to(*value, unit);
    }
    matrix
}

#[cfg(test)]
mod tests;
