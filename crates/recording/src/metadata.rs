//! What holds for a recording as a whole, and how it is written in `recording.json`.

use std::time::{SystemTime, UNIX_EPOCH};

use nearpage_machine::NodeId;
use serde::{Deserialize, Serialize};

use crate::{Binding, Launched, Mark, Origin, SampleCounts, Source};

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The recorder is running, or was killed: what is there can be read.
    Incomplete,
    /// The recorder ended it.
    Complete,
}

/// How threads were pinned while they were recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPinning {
    /// Not at all.
    #[default]
    None,
    /// Node after node.
    Compact,
    /// To one node after the other in turn.
    Scatter,
    /// As a plan said, by which pages were placed, too.
    Plan,
}

/// A rate, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateChange {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Samples per second and CPU.
    pub rate_hz: f64,
}

/// How programs were observed that were running already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// `process 1234`, `processes 1, 2`, `cgroup PATH`, `all`.
    pub target: String,
    /// In one sentence, how its threads were covered.
    pub coverage: String,
}

/// `recording.json`: what holds for the recording as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Format version, see `docs/reference/recording-format.md`.
    pub version: u32,
    /// How it ended.
    pub status: Status,
    /// nearpage's version that recorded.
    pub recorder: String,
    /// Command and arguments; empty under `--redact`.
    pub command: Vec<String>,
    /// Build-id of the command's executable, where it has one.
    pub build_id: String,
    /// Exit status of the command as a shell would show it (128 + signal), once it ended.
    pub exit_status: Option<i32>,
    /// CLOCK_REALTIME at the start, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// CLOCK_MONOTONIC when recording began.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC when it ended; 0: not yet.
    pub end_ns: u64,
    /// Where its accesses come from.
    pub source: Source,
    /// Samples per second and CPU, asked for or chosen: the greatest rate where it changes within the
    /// sample budget, at which a sample weighs 1.
    pub rate_hz: f64,
    /// The rates sampled at, by time, where they changed (weights and costs say so already); the
    /// first from the beginning on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RateChange>,
    /// How its threads were pinned.
    pub thread_placement: ThreadPinning,
    /// On which side of the sampled instruction pointer the stalling instruction is (`before`, `at`
    /// or `block`), and what a sample cost: as measured before recording, for people to read.
    pub calibration: String,
    /// Notes to the user that belong to the recording (degradations and their cause).
    pub notes: Vec<String>,
    /// Sum over all threads.
    pub counts: SampleCounts,
    /// Allocation-log totals: allocations seen, of which small and passed without a record, stacks
    /// left out for cost, damaged blocks.
    pub allocations: u64,
    /// Small allocations passed without a record of their own.
    pub small_unlogged: u64,
    /// Stacks left out because the unwinding budget was spent.
    pub stacks_omitted: u64,
    /// Blocks that failed their checksum, in either log.
    pub damaged_blocks: u64,
    /// Marks of the stable phase.
    pub marks: Vec<Mark>,
    /// Node numbers of the machine it ran on (more than one: remote shares can be told).
    pub nodes: Vec<NodeId>,
    /// Paths and arguments were left out.
    pub redacted: bool,
    /// Number that an MPI launcher gave the recorder, where it ran under one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Where a launcher started the recorder as one of many: which, and of what job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<Launched>,
    /// Host that it was made on, as the kernel calls it; empty where `launched` has it, or it is not known, and under
    /// `--redact`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Whose the recorder was; absent where that is not known, and under `--redact`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What a command was bound to when it was started; absent of what was running already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// Of a recording of programs that were running already: whom it was attached to, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// How a trace was made; absent for samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<crate::trace::Tracing>,
}

impl Metadata {
    /// Of a recording that begins, at `started`, with accesses from `source`, on a machine of these nodes: nothing else is known yet.
    pub fn begun(source: Source, started: SystemTime, nodes: Vec<NodeId>) -> Self {
        let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            version: crate::folder::FORMAT_VERSION,
            status: Status::Incomplete,
            recorder: env!("CARGO_PKG_VERSION").to_owned(),
            command: Vec::new(),
            build_id: String::new(),
            exit_status: None,
            started_unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            begin_ns: 0,
            end_ns: 0,
            source,
            rate_hz: 0.0,
            rates: Vec::new(),
            thread_placement: ThreadPinning::None,
            calibration: String::new(),
            notes: Vec::new(),
            counts: SampleCounts::default(),
            allocations: 0,
            small_unlogged: 0,
            stacks_omitted: 0,
            damaged_blocks: 0,
            marks: Vec::new(),
            nodes,
            redacted: false,
            rank: None,
            launched: None,
            host: String::new(),
            origin: None,
            binding: None,
            attached: None,
            tracing: None,
        }
    }
}
