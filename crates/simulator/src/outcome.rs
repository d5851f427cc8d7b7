//! What came out.

use nearpage_online::carrefour::{controller_imbalance, imbalance};
use schemars::JsonSchema;
use serde::Serialize;

use crate::movements::Movements;
use crate::timeline::Timeline;

/// Sums over threads, in the order of Figure 6.1: what the time went to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// Executing, cache hits and TLB refills included.
    pub compute_ns: f64,
    /// Stalled on the own node's memory.
    pub local_stall_ns: f64,
    /// Stalled on another node's memory.
    pub remote_stall_ns: f64,
    /// Moving pages and threads, collapsing replicas, flushing TLBs when asked to, samples and hinting
    /// faults.
    pub move_ns: f64,
    /// Waiting for other threads, for something outside, or for the CPU.
    pub wait_ns: f64,
}

impl Split {
    /// All of it.
    pub fn total_ns(&self) -> f64 {
        self.compute_ns + self.local_stall_ns + self.remote_stall_ns + self.move_ns + self.wait_ns
    }
}

/// What moving pages by step goes to, sums over threads: the functions of Verghese's Table 9. Adds up
/// to [`Split::move_ns`], less what samples and hinting faults take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct MoveSplit {
    /// Taking interrupts.
    pub interrupt_ns: f64,
    /// Deciding.
    pub decision_ns: f64,
    /// Waiting for the lock of the table of pages.
    pub lock_ns: f64,
    /// Allocating pages.
    pub allocation_ns: f64,
    /// Links and mappings, those of collapsed pages included.
    pub mapping_ns: f64,
    /// Flushing the own TLB, and having others flush theirs.
    pub flush_ns: f64,
    /// Flushing for others.
    pub flush_request_ns: f64,
    /// Copying, waits for controllers and links included.
    pub copy_ns: f64,
    /// Ends of the handler.
    pub end_ns: f64,
    /// Protection faults.
    pub fault_ns: f64,
}

/// One thread's part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadOutcome {
    /// Position of its program among those that were replayed together.
    pub program: usize,
    /// When it started, or what counts began.
    pub began_ns: f64,
    /// From its start (or the phase's begin) to its end (or the phase's).
    pub time_ns: f64,
    /// What it went to; adds up to the time.
    pub split: Split,
    /// Misses to the own node's memory.
    pub local: u64,
    /// Misses to other nodes' memory.
    pub remote: u64,
}

/// The result of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Policy.
    pub policy: String,
    /// Its parameters.
    pub parameters: Vec<(&'static str, String)>,
    /// From the first thread's start to the last one's end, or of the stable phases.
    pub time_ns: f64,
    /// Of that, from when several threads had their CPUs first to when they did last: what a run with more steps has
    /// more of.
    pub parallel_ns: f64,
    /// Sums over threads.
    pub split: Split,
    /// Each thread, in the trace's order.
    pub threads: Vec<ThreadOutcome>,
    /// Misses that went to memory or to another cache, upgrades included; write-backs not.
    pub misses: u64,
    /// Of these, to the own node.
    pub local: u64,
    /// Mean time from a local miss to its data.
    pub local_latency_ns: Option<f64>,
    /// The same for remote ones.
    pub remote_latency_ns: Option<f64>,
    /// Requests that each node's controller served: misses, write-backs, copies of pages by line.
    pub controller_load: Vec<u64>,
    /// Bit n: node n has memory, and so a controller.
    pub memory_nodes: u64,
    /// Share of the time that each one-way link was busy; empty where links have no limit.
    pub link_use: Vec<f64>,
    /// Instructions executed.
    pub instructions: u64,
    /// Cycles in a nanosecond.
    pub clock_ghz: f64,
    /// Pages migrated.
    pub migrated: u64,
    /// Pages replicated.
    pub replicated: u64,
    /// Pages moved to spread load.
    pub interleaved: u64,
    /// Replicated pages that were written to, and have one copy since.
    pub collapsed: u64,
    /// Fresh copies for nodes that had lost theirs to a store (Carrefour §3.3.2).
    pub refreshed: u64,
    /// Replicas given up under memory pressure.
    pub reclaimed: u64,
    /// Migrations of a page back to the node that it came from (ARS §4.1).
    pub ping_pong: u64,
    /// Migrations of a page that had migrated before (ARS Table 2).
    pub multiple: u64,
    /// Migrations away from a node that had missed on the page more than the new one (ARS Table 2).
    pub incorrect: u64,
    /// Pages in use, replicas included, over time.
    pub pages_mean: f64,
    /// The most at any time.
    pub pages_max: u64,
    /// What moving pages went to, where the machine has the cost of each step.
    pub move_split: Option<MoveSplit>,
    /// Energy, where the machine has figures for it.
    pub energy_j: Option<f64>,
    /// Waits for a signal that the trace does not have, ended after the time that they took while
    /// tracing.
    pub signals_missing: u64,
    /// Threads that a schedule, or the policy, had go on on another CPU, each time counted.
    pub threads_moved: u64,
    /// Moves of a schedule that were not made, as the thread had ended.
    pub moves_left: u64,
    /// Cache lines that they were charged for refilling.
    pub refilled_lines: u64,
    /// Pages first touched where no node had memory left.
    pub overcommitted: u64,
    /// What pages did, where that was to be kept ([`Options::movements_max`](crate::Options)).
    pub movements: Option<Movements>,
    /// What happened over time, likewise.
    pub timeline: Option<Timeline>,
}

impl Outcome {
    /// Is it an estimate more than others? Where threads moved, other misses would have been.
    pub fn estimated(&self) -> bool {
        self.threads_moved > 0
    }

    /// Misses to other nodes.
    pub fn remote(&self) -> u64 {
        self.misses - self.local
    }

    /// Share of misses that were local; 1 without any.
    pub fn local_share(&self) -> f64 {
        if self.misses == 0 {
            1.0
        } else {
            self.local as f64 / self.misses as f64
        }
    }

    /// Of several programs, each one's time from its first thread's start to its last one's end (Carrefour
    /// Table 5), as far as it counts, in their order; 0 for one without threads. Empty for one program.
    pub fn program_ns(&self) -> Vec<f64> {
        let programs = self.threads.iter().map(|thread| thread.program + 1).max();
        let span = |program| {
            let threads = self.threads.iter();
            // A thread that nobody started has no time, and no start.
            let its =
                threads.filter(move |thread| thread.program == program && thread.time_ns > 0.0);
            let begin = its
                .clone()
                .map(|thread| thread.began_ns)
                .fold(f64::INFINITY, f64::min);
            let end = its
                .map(|thread| thread.began_ns + thread.time_ns)
                .fold(begin, f64::max);
            if begin.is_finite() { end - begin } else { 0.0 }
        };
        match programs {
            Some(several @ 2..) => (0..several).map(span).collect(),
            _ => Vec::new(),
        }
    }

    /// Standard deviation over mean of the controllers' load (Carrefour §2.1), of nodes that have memory.
    pub fn controller_imbalance(&self) -> f64 {
        controller_imbalance(&self.controller_load, self.memory_nodes)
    }

    /// Standard deviation over mean of the links' use; absent without links.
    pub fn link_imbalance(&self) -> Option<f64> {
        (!self.link_use.is_empty()).then(|| imbalance(&self.link_use))
    }

    /// Mean use of the links; absent without links.
    pub fn link_use_mean(&self) -> Option<f64> {
        let links = self.link_use.len();
        (links > 0).then(|| self.link_use.iter().sum::<f64>() / links as f64)
    }

    /// Misses in a thousand instructions; absent without instructions.
    pub fn misses_per_kilo_instruction(&self) -> Option<f64> {
        (self.instructions > 0).then(|| 1000.0 * self.misses as f64 / self.instructions as f64)
    }

    /// Instructions in a cycle that a thread does not wait; absent without time.
    pub fn instructions_per_cycle(&self) -> Option<f64> {
        let cycles = (self.split.total_ns() - self.split.wait_ns) * self.clock_ghz;
        (cycles > 0.0).then(|| self.instructions as f64 / cycles)
    }
}
