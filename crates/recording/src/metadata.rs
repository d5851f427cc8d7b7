//! Metadata of a recording as a whole, and their form in `recording.json`.

use std::time::{SystemTime, UNIX_EPOCH};

use nearpage_machine::NodeId;
use serde::{Deserialize, Serialize};

use crate::{Binding, Launched, Mark, Origin, SampleCounts, Source};

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The recorder is running or was killed; what it wrote so far can be read.
    Incomplete,
    /// The recorder ended the recording.
    Complete,
}

/// How threads were pinned while they were recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPinning {
    /// Threads were not pinned.
    #[default]
    None,
    /// Threads filled one node after the other.
    Compact,
    /// Threads went round the nodes.
    Scatter,
    /// A plan pinned the threads, and placed pages, too.
    Plan,
}

/// A sampling rate, and its start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateChange {
    /// Start of the rate, by CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Samples per second and CPU.
    pub rate_hz: f64,
}

/// How programs that were already running were observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// `process 1234`, `processes 1, 2`, `cgroup PATH`, `all`.
    pub target: String,
    /// How the target's threads were covered, in one sentence.
    pub coverage: String,
}

/// Contents of `recording.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Format version, see `docs/reference/recording-format.md`.
    pub version: u32,
    /// How the recording ended.
    pub status: Status,
    /// Version of nearpage that recorded.
    pub recorder: String,
    /// Command and arguments; empty under `--redact`.
    pub command: Vec<String>,
    /// Build-id of the command's executable; empty if it has none.
    pub build_id: String,
    /// Exit status of the command as a shell would show it (128 + signal), once it ended.
    pub exit_status: Option<i32>,
    /// CLOCK_REALTIME at the start, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// CLOCK_MONOTONIC when recording began.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC when recording ended; 0 before.
    pub end_ns: u64,
    /// Source of the accesses.
    pub source: Source,
    /// Samples per second and CPU, requested or chosen. If the rate changes within the sample budget, this is the
    /// greatest rate, at which a sample weighs 1.
    pub rate_hz: f64,
    /// Sampling rates by time, if they changed; the first holds from the beginning. Weights and costs take the changes
    /// into account.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RateChange>,
    /// How the threads were pinned.
    pub thread_placement: ThreadPinning,
    /// Measurements before recording, for people to read: the side of the sampled instruction pointer on which the
    /// stalling instruction is (`before`, `at` or `block`), and the cost of a sample.
    pub calibration: String,
    /// Notes for the user about the recording (degradations and their cause).
    pub notes: Vec<String>,
    /// Counts of samples, summed over all threads.
    pub counts: SampleCounts,
    /// Allocations that the preload library saw, including those without a record.
    pub allocations: u64,
    /// Small allocations without a record of their own.
    pub small_unlogged: u64,
    /// Stacks left out because the unwinding budget was spent.
    pub stacks_omitted: u64,
    /// Blocks that failed their checksum, in the recorder's log and the allocation logs.
    pub damaged_blocks: u64,
    /// Marks of the stable phase.
    pub marks: Vec<Mark>,
    /// Node numbers of the recorded machine.
    pub nodes: Vec<NodeId>,
    /// Whether paths and arguments were left out.
    pub redacted: bool,
    /// Rank that an MPI launcher gave the recorder, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Launcher, rank and job, if a launcher started the recorder as one of many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<Launched>,
    /// Host on which the recording was made, by its name in the kernel; empty if `launched` has it, if unknown, and
    /// under `--redact`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Control group, job and pod of the recorder; absent if unknown, and under `--redact`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// CPUs, memory nodes and GPUs that the command was bound to at its start; absent for programs that already ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// Target and coverage of a recording of programs that were already running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// How a trace was made; absent for samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<crate::trace::Tracing>,
}

impl Metadata {
    /// Metadata of a recording that begins at `started`, with accesses from `source`, on a machine with these nodes.
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
