//! What to record, and how.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::calibrate::Calibration;
use crate::error::NoPreload;
use crate::filter::AccessSelection;
use crate::pmu::PmuOptions;
use crate::source::RequestedSource;
use crate::target::Target;

/// One page fault in so many is recorded, where nothing else is asked for. A prime, so as not to
/// be in step with the program's loops. What page faults cost is mostly that they are counted at all
/// (`benches/tracking_cost`), so a longer period would gain little.
pub const DEFAULT_FAULT_PERIOD: u64 = 61;

/// The kernel samples the clock at most this often (`perf_swevent_hrtimer`).
pub const MAX_RATE_HZ: f64 = 100_000.0;

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whom to observe.
    pub target: Target,
    /// Variables added to the environment of a command.
    pub environment: Vec<(OsString, OsString)>,
    /// Where accesses come from.
    pub source: RequestedSource,
    /// What to sample where that is the PMU.
    pub pmu: PmuOptions,
    /// Which accesses to keep.
    pub wanted: AccessSelection,
    /// Whether the preload library will be in the command, which the signal source needs; where it
    /// won't, why and what helps, for the user.
    pub preload: Result<(), NoPreload>,
    /// Where it puts its samples: a folder, by its absolute path.
    pub samples_folder: PathBuf,
    /// Samples per second of every thread's CPU time; `None`:
    /// [as many as cost little](Calibration::default_rate_hz).
    pub rate_hz: Option<f64>,
    /// The share of the program's time that sampling may take: the rate is lowered to keep it.
    /// `None`: it stays as it is.
    pub max_overhead: Option<f64>,
    /// Sample faster at first, within a budget of 80 ms of processor time or 0.5 % of the program's, and
    /// at `rate_hz` in the long run; `max_overhead` is for sources that have no budget then: the PMU,
    /// and what is running already where not each of its threads has events of its own.
    pub budget: bool,
    /// Time after the start of the command, or after attaching, when sampling begins.
    pub after: Duration,
    /// How long sampling lasts; `None`: to the end.
    pub duration: Option<Duration>,
    /// One page fault in so many becomes a first touch; 0: none.
    pub fault_period: u64,
    /// Ask the kernel on which node sampled pages are. Of use on more than one node only.
    pub page_nodes: bool,
    /// Where the sampled instruction is and what samples cost; `None`: measure it at the start.
    pub calibration: Option<Calibration>,
    /// `/sys`, but in tests.
    pub sys_root: PathBuf,
    /// `/proc`, but in tests.
    pub proc_root: PathBuf,
}

impl Options {
    /// The defaults, for a target (or a command).
    pub fn new(target: impl Into<Target>) -> Self {
        Self {
            target: target.into(),
            environment: Vec::new(),
            source: RequestedSource::default(),
            pmu: PmuOptions::default(),
            wanted: AccessSelection::default(),
            preload: Err(NoPreload(
                "it needs the preload library inside the command".to_owned(),
            )),
            samples_folder: PathBuf::new(),
            rate_hz: None,
            max_overhead: None,
            budget: false,
            after: Duration::ZERO,
            duration: None,
            fault_period: DEFAULT_FAULT_PERIOD,
            page_nodes: false,
            calibration: None,
            sys_root: "/sys".into(),
            proc_root: "/proc".into(),
        }
    }
}
