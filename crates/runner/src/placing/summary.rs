//! Parses the lines that the preload library writes for each process, and sums them for each rule.
//! `crates/preload/src/place/summary.rs` documents the keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// One line: a process, or a program that the process executed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ProcessSummary {
    pub pid: u32,
    /// The line was written at the start of the process, and has no further fields.
    pub began: bool,
    pub mechanism: String,
    pub bind_refused: Option<i32>,
    pub pins: Pins,
    pub rules: Vec<RuleSummary>,
    pub phases: Vec<PhaseSummary>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pins {
    pub pinned: u64,
    pub failed: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PhaseSummary {
    pub number: u32,
    pub begun: bool,
    pub changed: u64,
    pub left: u64,
    pub failed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RuleSummary {
    pub number: u32,
    pub objects: u64,
    pub pages: u64,
    pub bytes: u64,
    pub weak: u64,
    pub left: u64,
    pub waited: u64,
    pub switched: u64,
    pub switched_moved: u64,
    pub switched_ns: u64,
    /// Pages that a device or the kernel holds in place.
    #[serde(rename = "pinned")]
    pub pinned_pages: u64,
    pub early: u64,
    pub too_small: u64,
    pub coarsened: u64,
    pub no_room: u64,
    pub missing_node_pages: u64,
    pub untouched: u64,
    pub outside: u64,
    pub ignored: bool,
    pub failures: Vec<Failure>,
    /// Result for unmatched memory, if the rule places unmatched memory.
    pub unmatched: Option<UnmatchedStatus>,
    /// Function with which the rule's phase begins; `None`: the rule holds from the start.
    #[serde(skip)]
    pub phase: Option<String>,
    /// Processes by the result for their unmatched memory.
    #[serde(skip)]
    pub processes: BTreeMap<UnmatchedStatus, BTreeSet<u32>>,
}

/// Result for the memory of a process that no other rule places.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(super) enum UnmatchedStatus {
    Set,
    Left,
    Waits,
    Failed,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    pub call: String,
    pub errno: i32,
    pub count: u64,
}

impl RuleSummary {
    pub(super) fn add(&mut self, pid: u32, other: &Self) {
        if let Some(status) = other.unmatched {
            self.processes.entry(status).or_default().insert(pid);
        }
        self.objects += other.objects;
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.weak += other.weak;
        self.left += other.left;
        self.waited += other.waited;
        self.switched += other.switched;
        self.switched_moved += other.switched_moved;
        self.switched_ns += other.switched_ns;
        self.pinned_pages += other.pinned_pages;
        self.early += other.early;
        self.too_small += other.too_small;
        self.coarsened += other.coarsened;
        self.no_room += other.no_room;
        self.missing_node_pages += other.missing_node_pages;
        self.untouched += other.untouched;
        self.outside += other.outside;
        self.ignored |= other.ignored;
        for failure in &other.failures {
            let known = self
                .failures
                .iter_mut()
                .find(|one| one.call == failure.call && one.errno == failure.errno);
            match known {
                Some(known) => known.count += failure.count,
                None => self.failures.push(failure.clone()),
            }
        }
    }
}
