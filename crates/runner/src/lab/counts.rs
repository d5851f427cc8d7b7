//! Counts of a command in the lab.

use nearpage_wire::lab::{COUNTS_FIRST_LINE, LabCount, LabLine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::LabError;
use super::kernel::{KernelSymbols, LabKernel};

const FS_PER_S: f64 = 1e15;
const NS_PER_S: f64 = 1e9;

/// Counts of the model from the begin mark to the end mark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabCounts {
    /// Guest time.
    pub guest_s: f64,
    /// Time on the host.
    pub host_s: f64,
    /// Seconds of the host for each second of the guest; null: no guest time passed.
    pub host_s_per_guest_s: Option<f64>,
    /// Guest time from the boot to the begin mark.
    pub began_s: f64,
    /// Instructions of all CPUs.
    pub instructions: u64,
    /// Part of `instructions` that the kernel executed.
    pub kernel_instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Accesses that second-level caches served.
    pub l2_hits: u64,
    /// Accesses that last-level caches served.
    pub l3_hits: u64,
    /// Misses to the memory of the CPU's own node.
    pub local_misses: u64,
    /// Misses to the memory of other nodes.
    pub remote_misses: u64,
    /// Misses that another CPU's cache served.
    pub other_cache_served: u64,
    /// Misses by stores to a line that other caches held as well.
    pub upgrades: u64,
    /// Misses of the kernel.
    pub kernel_misses: u64,
    /// Misses of page walks: page table entries that no cache had.
    pub walk_misses: u64,
    /// Lines written back to memory.
    pub write_backs: u64,
    /// Misses of all TLBs.
    pub tlb_misses: u64,
    /// Time of the instructions of all CPUs without hits of later caches and misses. `lab` of 0.1 before this field: 0.
    #[serde(default)]
    pub execution_s: f64,
    /// Time that all CPUs together waited for misses.
    pub stall_s: f64,
    /// Part of `stall_s` spent waiting behind other requests.
    pub queue_s: f64,
    /// Time of hits in second-level and last-level caches.
    pub hit_s: f64,
    /// Time of TLB misses, without the stalls of their page walks.
    pub tlb_s: f64,
    /// Time that page walks waited for caches and memory.
    pub walk_s: f64,
    /// Counts of each node.
    pub nodes: Vec<LabNode>,
    /// Misses of each pair of nodes that has misses.
    pub pairs: Vec<LabPair>,
    /// Links in the machine's order, each link in both directions.
    pub links: Vec<LabServer>,
    /// Kernel time by function; null: the guest did not name the kernel's functions.
    pub kernel: Option<LabKernel>,
}

/// Counts of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabNode {
    /// Position of the node.
    pub node: usize,
    /// Misses of the node's CPUs to the node's memory.
    pub local_misses: u64,
    /// Misses of the node's CPUs to other nodes' memory.
    pub remote_misses: u64,
    /// Time that the node's CPUs waited for misses.
    pub stall_s: f64,
    /// Memory controller of the node.
    pub controller: LabServer,
}

/// A memory controller, or a link in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabServer {
    /// Requests, including write-backs.
    pub requests: u64,
    /// Share of the guest time in which the controller or link was busy; 0 where the machine sets no limit.
    pub busy: f64,
}

/// Misses from one node's CPUs to another's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabPair {
    /// Node of the CPUs.
    pub cpu_node: usize,
    /// Node of the memory.
    pub memory_node: usize,
    /// Number of misses.
    pub misses: u64,
    /// Time that CPUs waited for these misses.
    pub stall_s: f64,
    /// Part of `stall_s` spent waiting behind other requests.
    pub queue_s: f64,
}

impl LabCounts {
    /// Parses the tracer's counts on a machine with `nodes` nodes, whose instructions take `instruction_ns` each.
    pub(super) fn parse(
        text: &str,
        nodes: usize,
        instruction_ns: f64,
        symbols: &KernelSymbols,
    ) -> Result<Self, LabError> {
        let mut lines = text.lines();
        if lines.next() != Some(COUNTS_FIRST_LINE) {
            return Err(LabError::NoCounts);
        }
        let lines: Option<Vec<LabLine>> = lines.map(LabLine::parse).collect();
        let lines = lines.ok_or(LabError::NoCounts)?;
        let count = |wanted: LabCount| {
            let counts = lines.iter().filter_map(|line| match line {
                LabLine::Count(count, value) if *count == wanted => Some(*value),
                _ => None,
            });
            counts.sum::<u64>()
        };
        let guest_s = count(LabCount::GuestNs) as f64 / NS_PER_S;
        let host_s = count(LabCount::HostNs) as f64 / NS_PER_S;
        let instructions = count(LabCount::Instructions);
        let mut counts = Self {
            guest_s,
            host_s,
            host_s_per_guest_s: (guest_s > 0.0).then(|| host_s / guest_s),
            began_s: count(LabCount::BeganNs) as f64 / NS_PER_S,
            instructions,
            kernel_instructions: count(LabCount::KernelInstructions),
            loads: count(LabCount::Loads),
            stores: count(LabCount::Stores),
            l2_hits: count(LabCount::L2Hits),
            l3_hits: count(LabCount::L3Hits),
            local_misses: 0,
            remote_misses: 0,
            other_cache_served: count(LabCount::OtherCacheServed),
            upgrades: count(LabCount::Upgrades),
            kernel_misses: count(LabCount::KernelMisses),
            walk_misses: count(LabCount::WalkMisses),
            write_backs: count(LabCount::WriteBacks),
            tlb_misses: count(LabCount::TlbMisses),
            execution_s: instructions as f64 * instruction_ns / NS_PER_S,
            stall_s: 0.0,
            queue_s: 0.0,
            hit_s: count(LabCount::CacheHitTimeFs) as f64 / FS_PER_S,
            tlb_s: count(LabCount::TlbMissTimeFs) as f64 / FS_PER_S,
            walk_s: count(LabCount::PageWalkWaitFs) as f64 / FS_PER_S,
            nodes: (0..nodes)
                .map(|node| LabNode {
                    node,
                    ..LabNode::default()
                })
                .collect(),
            pairs: Vec::new(),
            links: Vec::new(),
            kernel: LabKernel::new(&lines, symbols),
        };
        lines.iter().for_each(|line| counts.add(line));
        Ok(counts)
    }

    fn add(&mut self, line: &LabLine) {
        let busy = |busy_fs: u64, guest_s: f64| match guest_s > 0.0 {
            true => busy_fs as f64 / FS_PER_S / guest_s,
            false => 0.0,
        };
        match *line {
            LabLine::Count(..) | LabLine::Kernel { .. } => {}
            LabLine::Misses {
                cpu,
                memory,
                misses,
                stall_fs,
                queue_fs,
            } => {
                let (stall_s, queue_s) = (stall_fs as f64 / FS_PER_S, queue_fs as f64 / FS_PER_S);
                let local = cpu == memory;
                let all = if local {
                    &mut self.local_misses
                } else {
                    &mut self.remote_misses
                };
                *all += misses;
                self.stall_s += stall_s;
                self.queue_s += queue_s;
                if let Some(node) = self.nodes.get_mut(cpu) {
                    let of_node = if local {
                        &mut node.local_misses
                    } else {
                        &mut node.remote_misses
                    };
                    *of_node += misses;
                    node.stall_s += stall_s;
                }
                self.pairs.push(LabPair {
                    cpu_node: cpu,
                    memory_node: memory,
                    misses,
                    stall_s,
                    queue_s,
                });
            }
            LabLine::Controller {
                node,
                requests,
                busy_fs,
            } => {
                let busy = busy(busy_fs, self.guest_s);
                if let Some(node) = self.nodes.get_mut(node) {
                    node.controller = LabServer { requests, busy };
                }
            }
            LabLine::Link {
                requests, busy_fs, ..
            } => {
                let busy = busy(busy_fs, self.guest_s);
                self.links.push(LabServer { requests, busy });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_by_node() {
        let text = "nearpage lab counts 1\nguest_ns 2000000000\nhost_ns 50000000000\nloads 7\ninstructions 1000000000\nmisses 0 0 3 1000000000000000 0\n\
                    misses 0 1 4 2000000000000000 500000000000000\ncontroller 1 4 1000000000000000\nlink 0 4 500000000000000\n";
        let counts = LabCounts::parse(text, 2, 0.5, &KernelSymbols::default()).unwrap();
        assert_eq!(
            (counts.guest_s, counts.host_s_per_guest_s),
            (2.0, Some(25.0))
        );
        assert_eq!((counts.local_misses, counts.remote_misses), (3, 4));
        assert_eq!((counts.stall_s, counts.queue_s), (3.0, 0.5));
        assert_eq!(counts.execution_s, 0.5);
        assert_eq!(counts.nodes[0].remote_misses, 4);
        assert_eq!(
            counts.nodes[1].controller,
            LabServer {
                requests: 4,
                busy: 0.5
            }
        );
        assert_eq!(
            counts.links,
            [LabServer {
                requests: 4,
                busy: 0.25
            }]
        );
        for damaged in [
            "",
            "nearpage lab counts 1\nmisses 0\n",
            "nearpage lab counts 2\n",
        ] {
            let counts = LabCounts::parse(damaged, 2, 0.5, &KernelSymbols::default());
            assert!(counts.is_err(), "{damaged}");
        }
    }
}
