//! Cost of moving a page: a single figure, or one per step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cost of moving a page (`[moves]`): a single figure, or one per step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Moves {
    /// Cost of every migration, replication or collapse (Verghese §6.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_ns: Option<f64>,
    /// Cost of each step (Verghese Table 8). Has precedence over `fixed_ns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<MoveSteps>,
}

/// The steps of moving pages, in nanoseconds (Verghese §8.1, Table 8).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveSteps {
    /// Taking the interrupt, once per batch.
    pub interrupt_ns: f64,
    /// Deciding, for each page.
    pub decision_ns: f64,
    /// Allocating the new page, under the lock. A first touch holds the lock for as long.
    pub allocation_ns: f64,
    /// Links and mappings of a replica, under its page's own lock.
    pub mapping_replica_ns: f64,
    /// Links and mappings of a page that migrates, under the lock.
    pub mapping_migration_ns: f64,
    /// Flushing TLBs, once per batch.
    pub flush_ns: f64,
    /// Loss of each other CPU that is asked to flush its TLB, once per batch.
    pub flush_request_ns: f64,
    /// Copying the page.
    pub copy_ns: f64,
    /// Copying the page by the directory controller (Verghese §8.2). Default: the machine cannot do this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_copy_ns: Option<f64>,
    /// End of the handler for a replica.
    pub end_replica_ns: f64,
    /// End of the handler for a migrated page.
    pub end_migration_ns: f64,
    /// A protection fault: a store to a replicated page.
    pub fault_ns: f64,
    /// Time for which collapsing a replicated page holds the lock. Default: `mapping_migration_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_ns: Option<f64>,
}

/// Cost of moving a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MoveCost {
    /// A single figure, in nanoseconds.
    Fixed(f64),
    /// A figure per step.
    Steps(MoveSteps),
}

/// Time to move a page under Linux, for machines without a figure or a measurement: the call, unmapping, flushes and
/// mapping, and copying at 2 GB/s. For 4 KiB this is 10 µs, about the time of `move_pages` on Opterons (600 MB/s:
/// Goglin and Furmento, MTAAP 2009) and between the memory tiers of recent servers. Verghese's 350 µs (§6.1) apply to a
/// machine of 1996.
pub(crate) fn move_ns(page_bytes: u64) -> f64 {
    8_000.0 + page_bytes as f64 / 2.0
}

impl MoveSteps {
    /// Time for which collapsing a replicated page holds the lock.
    pub fn collapse_locked_ns(&self) -> f64 {
        self.collapse_ns.unwrap_or(self.mapping_migration_ns)
    }

    /// Keys in the machine file, and values.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, f64)> {
        let mut pairs = vec![
            ("interrupt_ns", self.interrupt_ns),
            ("decision_ns", self.decision_ns),
            ("allocation_ns", self.allocation_ns),
            ("mapping_replica_ns", self.mapping_replica_ns),
            ("mapping_migration_ns", self.mapping_migration_ns),
            ("flush_ns", self.flush_ns),
            ("flush_request_ns", self.flush_request_ns),
            ("copy_ns", self.copy_ns),
            ("end_replica_ns", self.end_replica_ns),
            ("end_migration_ns", self.end_migration_ns),
            ("fault_ns", self.fault_ns),
        ];
        pairs.extend(self.hardware_copy_ns.map(|ns| ("hardware_copy_ns", ns)));
        pairs.extend(self.collapse_ns.map(|ns| ("collapse_ns", ns)));
        pairs
    }
}
