//! Results of a simulation.

use nearpage_online::carrefour::{controller_imbalance, imbalance};
use schemars::JsonSchema;
use serde::Serialize;

use crate::movements::Movements;
use crate::timeline::Timeline;

/// Where the time went, as sums over threads; the order is that of Verghese's Figure 6.1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// Executing, including cache hits and TLB refills.
    pub compute_ns: f64,
    /// Stalled on local memory.
    pub local_stall_ns: f64,
    /// Stalled on remote memory.
    pub remote_stall_ns: f64,
    /// Moving pages and threads, collapsing replicas, flushing TLBs for others, taking samples and hinting faults.
    pub move_ns: f64,
    /// Waiting for other threads, external events, or the CPU.
    pub wait_ns: f64,
}

impl Split {
    /// Sum of all parts.
    pub fn total_ns(&self) -> f64 {
        self.compute_ns + self.local_stall_ns + self.remote_stall_ns + self.move_ns + self.wait_ns
    }
}

/// Parts of the time spent moving pages by step, as sums over threads: the functions of Verghese's Table 9. They add up
/// to [`Split::move_ns`] without samples and hinting faults.
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
    /// Links and mappings, including those of collapsed pages.
    pub mapping_ns: f64,
    /// Flushing a CPU's own TLB, and requesting others to flush theirs.
    pub flush_ns: f64,
    /// Flushing TLBs for other CPUs.
    pub flush_request_ns: f64,
    /// Copying, including waits for controllers and links.
    pub copy_ns: f64,
    /// End of the handler.
    pub end_ns: f64,
    /// Protection faults.
    pub fault_ns: f64,
}

/// Result of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadOutcome {
    /// Position of the thread's program among the programs that were replayed together.
    pub program: usize,
    /// Start of the thread, or of the first marked phase, in simulated time.
    pub began_ns: f64,
    /// Time from the start of the thread (or the marked phase) to its end.
    pub time_ns: f64,
    /// Parts of `time_ns`.
    pub split: Split,
    /// Misses to local memory.
    pub local: u64,
    /// Misses to remote memory.
    pub remote: u64,
}

/// Result of one replay under one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Name of the policy.
    pub policy: String,
    /// Parameters of the policy and the replay.
    pub parameters: Vec<(&'static str, String)>,
    /// Time from the first thread's start to the last thread's end, or duration of the marked phases.
    pub time_ns: f64,
    /// Part of `time_ns` from the first to the last moment at which several threads have CPUs.
    pub parallel_ns: f64,
    /// Sums over threads.
    pub split: Split,
    /// Each thread, in the trace's order.
    pub threads: Vec<ThreadOutcome>,
    /// Misses to memory or to another cache, including upgrades, without write-backs.
    pub misses: u64,
    /// Misses to local memory.
    pub local: u64,
    /// Mean time from a local miss to its data.
    pub local_latency_ns: Option<f64>,
    /// Mean time from a remote miss to its data.
    pub remote_latency_ns: Option<f64>,
    /// Requests that each node's controller served: misses, write-backs, and page copies line by line.
    pub controller_load: Vec<u64>,
    /// Bit n is set: node n has memory, and so a controller.
    pub memory_nodes: u64,
    /// Share of the time that each one-way link was busy; empty where links have no limit.
    pub link_use: Vec<f64>,
    /// Instructions executed.
    pub instructions: u64,
    /// Clock cycles per nanosecond.
    pub clock_ghz: f64,
    /// Pages migrated.
    pub migrated: u64,
    /// Pages replicated.
    pub replicated: u64,
    /// Pages moved to spread load.
    pub interleaved: u64,
    /// Replicated pages that were written to and have had one copy since then.
    pub collapsed: u64,
    /// Fresh copies for nodes that had lost their copy to a store (Carrefour §3.3.2).
    pub refreshed: u64,
    /// Replicas that were freed under memory pressure.
    pub reclaimed: u64,
    /// Migrations of a page back to the node that it had last migrated from (ARS §4.1).
    pub ping_pong: u64,
    /// Migrations of a page that had migrated before (ARS Table 2).
    pub multiple: u64,
    /// Migrations from a node with more misses on the page than the target node (ARS Table 2).
    pub incorrect: u64,
    /// Mean number of pages in use over time, including replicas.
    pub pages_mean: f64,
    /// Maximum number of pages in use at any time.
    pub pages_max: u64,
    /// Parts of the time spent moving pages, where the machine has a cost per step.
    pub move_split: Option<MoveSplit>,
    /// Energy in joules, where the machine has figures for energy.
    pub energy_j: Option<f64>,
    /// Waits for a signal that the trace does not contain. Each ended after the time that it took while tracing.
    pub signals_missing: u64,
    /// Number of times that the schedule or the policy moved a thread to another CPU.
    pub threads_moved: u64,
    /// Scheduled moves that were not made because the thread had ended.
    pub moves_left: u64,
    /// Cache lines that moved threads were charged for refilling.
    pub refilled_lines: u64,
    /// Pages that were first touched when no node had free memory.
    pub overcommitted: u64,
    /// Page movements, if kept ([`Options::movements_max`](crate::Options)).
    pub movements: Option<Movements>,
    /// Timeline, if kept ([`Options::movements_max`](crate::Options)).
    pub timeline: Option<Timeline>,
}

impl Outcome {
    /// Is the result an estimate because threads moved? The trace has no misses for the caches of other CPUs.
    pub fn estimated(&self) -> bool {
        self.threads_moved > 0
    }

    /// Misses to remote memory.
    pub fn remote(&self) -> u64 {
        self.misses - self.local
    }

    /// Share of misses to local memory; 1 without misses.
    pub fn local_share(&self) -> f64 {
        if self.misses == 0 {
            1.0
        } else {
            self.local as f64 / self.misses as f64
        }
    }

    /// Time of each program from its first thread's start to its last thread's end (Carrefour Table 5), in the order of
    /// the programs; 0 for a program without threads. Empty for a single program.
    pub fn program_ns(&self) -> Vec<f64> {
        let programs = self.threads.iter().map(|thread| thread.program + 1).max();
        let span = |program| {
            let threads = self.threads.iter();
            // A thread that was never started has no time.
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

    /// Standard deviation over mean of the controllers' load, over nodes with memory (Carrefour §2.1).
    pub fn controller_imbalance(&self) -> f64 {
        controller_imbalance(&self.controller_load, self.memory_nodes)
    }

    /// Standard deviation over mean of the links' use; `None` without links.
    pub fn link_imbalance(&self) -> Option<f64> {
        (!self.link_use.is_empty()).then(|| imbalance(&self.link_use))
    }

    /// Mean use of the links; `None` without links.
    pub fn link_use_mean(&self) -> Option<f64> {
        let links = self.link_use.len();
        (links > 0).then(|| self.link_use.iter().sum::<f64>() / links as f64)
    }

    /// Misses per thousand instructions; `None` without instructions.
    pub fn misses_per_kilo_instruction(&self) -> Option<f64> {
        (self.instructions > 0).then(|| 1000.0 * self.misses as f64 / self.instructions as f64)
    }

    /// Instructions per cycle in which a thread does not wait for a CPU or an event; `None` without time.
    pub fn instructions_per_cycle(&self) -> Option<f64> {
        let cycles = (self.split.total_ns() - self.split.wait_ns) * self.clock_ghz;
        (cycles > 0.0).then(|| self.instructions as f64 / cycles)
    }
}
