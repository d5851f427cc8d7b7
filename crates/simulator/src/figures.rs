//! A machine's figures in the units of the replay.

use nearpage_machine::{CacheKind, CpuId, Machine, MoveCost, Prefetcher, Timing};

use crate::Error;
use crate::interconnect::LinkTimes;
use crate::options::{Copy, Options};

/// Femtoseconds in a nanosecond. The replay counts time in femtoseconds: cycles and line transfers round to a millionth
/// of a nanosecond, and 64 bits hold five hours.
pub(crate) const FS: f64 = 1e6;
/// Longest simulated time in femtoseconds; longer runs are refused. Half of the range is left for additions.
pub(crate) const TIME_MAX: u64 = u64::MAX / 2;

/// A machine's figures; times in femtoseconds.
#[derive(Debug)]
pub(crate) struct Figures {
    pub nodes: usize,
    pub instruction: u64,
    pub cycle: u64,
    pub outstanding: usize,
    pub window: u64,
    /// `[CPU's node × nodes + memory's node]`.
    latency: Vec<u64>,
    /// For each CPU's node, all nodes from the lowest latency to the highest.
    pub nearest: Vec<Vec<u16>>,
    /// Time of a hit in the second-level and the third-level cache.
    pub hit: [u64; 2],
    pub tlb_miss: u64,
    /// Time that a controller serves one line; 0: no limit.
    pub controller: u64,
    pub directory: u64,
    /// Number of one-way links.
    pub link_count: usize,
    /// Time for which each request occupies links.
    pub link_times: LinkTimes,
    pub prefetcher: Option<Prefetcher>,
    /// Lines of a CPU's private caches, which a thread that moves to the CPU has to refill.
    pub private_lines: u64,
    pub lines_per_page: u64,
    /// log₂ of a line's bytes.
    pub line_shift: u32,
    pub moves: MoveCost,
    /// Nodes with memory.
    pub memory_nodes: Vec<u16>,
    pub capacity: Vec<u64>,
    /// Node of each CPU, by number; `u16::MAX`: the machine has no such CPU.
    node_of_cpu: Vec<u16>,
    pub clock_ghz: f64,
}

pub(crate) fn femtoseconds(ns: f64) -> u64 {
    (ns * FS).round() as u64
}

impl Figures {
    pub fn new(machine: &Machine, timing: &Timing, options: &Options) -> Self {
        let nodes = machine.nodes.len();
        let line_time =
            |bandwidth: f64| femtoseconds(f64::from(timing.line_bytes) / bandwidth * 1e9);
        let by_pair = |at: &dyn Fn(usize, usize) -> u64| {
            (0..nodes * nodes)
                .map(|pair| at(pair / nodes, pair % nodes))
                .collect::<Vec<u64>>()
        };
        let hit = |level: usize| femtoseconds(timing.hit_ns.get(level).copied().unwrap_or(0.0));
        let mut moves = timing.moves;
        if let Some(ns) = options.move_ns {
            moves = MoveCost::Fixed(ns as f64);
        }
        if let (MoveCost::Steps(steps), Copy::Hardware) = (&mut moves, options.copy) {
            steps.copy_ns = steps.hardware_copy_ns.unwrap_or(steps.copy_ns);
        }
        let largest = machine
            .cpus()
            .as_slice()
            .last()
            .map_or(0, |cpu| cpu.0 as usize);
        let mut node_of_cpu = vec![u16::MAX; largest + 1];
        for (position, node) in machine.nodes.iter().enumerate() {
            for cpu in &node.cpus {
                node_of_cpu[cpu.0 as usize] = position as u16;
            }
        }
        let nearest = (0..nodes)
            .map(|from| {
                let mut order: Vec<u16> = (0..nodes as u16).collect();
                order.sort_by(|&a, &b| {
                    timing.latency_ns[from][usize::from(a)]
                        .total_cmp(&timing.latency_ns[from][usize::from(b)])
                });
                // The node itself comes first: its entry may not be the lowest in the row of a node without CPUs.
                order.sort_by_key(|&node| usize::from(node) != from);
                order
            })
            .collect();
        let capacity: Vec<u64> = timing
            .capacity_pages
            .iter()
            .map(|pages| pages.unwrap_or(u64::MAX))
            .collect();
        Self {
            nodes,
            instruction: femtoseconds(timing.instruction_ns()).max(1),
            cycle: femtoseconds(1.0 / timing.clock_ghz),
            outstanding: timing.outstanding_misses as usize,
            window: timing.run_ahead_instructions(),
            latency: by_pair(&|cpu, memory| femtoseconds(timing.latency_ns[cpu][memory])),
            nearest,
            hit: [hit(2), hit(3)],
            tlb_miss: femtoseconds(timing.tlb_miss_ns),
            controller: timing.memory_bandwidth_bytes_per_s.map_or(0, line_time),
            directory: femtoseconds(timing.directory_ns),
            link_count: timing.links.len(),
            link_times: LinkTimes::new(timing, |bandwidth| 1e9 / bandwidth * FS),
            prefetcher: timing.prefetcher,
            private_lines: private_lines(machine),
            lines_per_page: machine.page_bytes / u64::from(timing.line_bytes),
            line_shift: timing.line_bytes.max(1).ilog2(),
            moves,
            memory_nodes: (0..nodes as u16)
                .filter(|&node| capacity[usize::from(node)] > 0)
                .collect(),
            capacity,
            node_of_cpu,
            clock_ghz: timing.clock_ghz,
        }
    }

    /// Bit n is set: node n has memory.
    pub fn memory_bits(&self) -> u64 {
        let nodes = self.memory_nodes.iter();
        nodes.fold(0, |bits, node| bits | 1 << node)
    }

    /// Bit n is set: node n has memory, and is not a far node without CPUs.
    pub fn near_memory_bits(&self, machine: &Machine) -> u64 {
        self.memory_bits() & machine.position_bits(&machine.nodes_with_near_memory())
    }

    /// Numbers of all CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        let nodes = self.node_of_cpu.iter().zip(0..);
        nodes
            .filter(|(node, _)| **node != u16::MAX)
            .map(|(_, cpu)| cpu)
    }

    /// Position of a CPU's node in the machine.
    pub fn node(&self, cpu: CpuId) -> Result<u16, Error> {
        let node = self
            .node_of_cpu
            .get(cpu.0 as usize)
            .copied()
            .filter(|&node| node != u16::MAX);
        node.ok_or(Error::NoSuchCpu(cpu))
    }

    /// Unloaded latency from a CPU on `node` to `memory`.
    #[inline]
    pub fn latency(&self, node: u16, memory: u16) -> u64 {
        self.latency[usize::from(node) * self.nodes + usize::from(memory)]
    }

    /// Mean cost of moving one page, where pages are moved in batches of `batch_pages`.
    pub fn mean_move_ns(&self, batch_pages: u64) -> f64 {
        match self.moves {
            MoveCost::Fixed(ns) => ns,
            MoveCost::Steps(steps) => {
                let cpus = self.cpus().count() as f64;
                let batch = steps.interrupt_ns + steps.flush_ns + cpus * steps.flush_request_ns;
                let page = steps.decision_ns
                    + steps.allocation_ns
                    + steps.mapping_migration_ns
                    + steps.copy_ns
                    + steps.end_migration_ns;
                page + batch / batch_pages.max(1) as f64
            }
        }
    }

    /// Cost of a store to a replicated page, where no other CPU holds the lock.
    pub fn collapse_ns(&self) -> f64 {
        match self.moves {
            MoveCost::Fixed(ns) => ns,
            MoveCost::Steps(steps) => {
                let cpus = self.cpus().count() as f64;
                steps.fault_ns
                    + steps.collapse_locked_ns()
                    + steps.flush_ns
                    + steps.end_migration_ns
                    + cpus * steps.flush_request_ns
            }
        }
    }

    /// Mean unloaded latency from CPUs to other nodes' memory; on a machine with one node, the local latency.
    pub fn remote_latency(&self) -> u64 {
        let with_cpus = (0..self.nodes as u16).filter(|node| self.node_of_cpu.contains(node));
        let remote: Vec<u128> = with_cpus
            .flat_map(|node| {
                let others = self
                    .memory_nodes
                    .iter()
                    .filter(move |&&other| other != node);
                others.map(move |&other| self.latency(node, other).into())
            })
            .collect();
        match remote.len() as u128 {
            0 => self.latency[0],
            count => (remote.iter().sum::<u128>() / count) as u64,
        }
    }

    /// The node with the lowest latency from `node` among the nodes that `copies` has bits for.
    #[inline]
    pub fn nearest_copy(&self, node: u16, copies: u64) -> u16 {
        if copies >> node & 1 == 1 {
            node
        } else if copies.is_power_of_two() {
            copies.trailing_zeros() as u16
        } else {
            let order = &self.nearest[usize::from(node)];
            *order
                .iter()
                .find(|&&near| copies >> near & 1 == 1)
                .expect("a page has a copy")
        }
    }
}

/// Lines of a CPU's largest data cache that no other CPU shares; 0 where all data caches are shared.
fn private_lines(machine: &Machine) -> u64 {
    let private = machine
        .caches
        .iter()
        .filter(|cache| cache.shared_by_cpus <= 1 && cache.kind != CacheKind::Instruction);
    let lines = private.map(|cache| cache.size_bytes / u64::from(cache.line_bytes).max(1));
    lines.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;

    use super::*;

    #[test]
    fn a_store_to_copies_takes_its_steps_and_a_flush_of_every_cpu() {
        let collapse_ns = |name| {
            let machine = preset(name).expect(name);
            let timing = machine.timing().expect(name);
            Figures::new(&machine, &timing, &Options::default()).collapse_ns()
        };
        // The steps are: a fault, 296 µs under the lock, the flush, the end, and 1 µs of flushing for each of 24 CPUs.
        assert_eq!(
            collapse_ns("carrefour-b"),
            1000.0 + 296_000.0 + 2000.0 + 1000.0 + 24_000.0
        );
        assert_eq!(collapse_ns("smile-4"), 50_000.0, "as any move");
    }
}
