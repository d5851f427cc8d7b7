//! Options of a recording.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::calibrate::Calibration;
use crate::error::NoPreload;
use crate::filter::AccessSelection;
use crate::pmu::PmuOptions;
use crate::source::RequestedSource;
use crate::target::Target;

/// By default, one of this many page faults is recorded. The number is a prime, to avoid lockstep with the program's
/// loops. Most of the cost of page faults is counting them (`benches/tracking_cost`), so a longer period would gain
/// little.
pub const DEFAULT_FAULT_PERIOD: u64 = 61;

/// Highest rate at which the kernel samples the clock (`perf_swevent_hrtimer`).
pub const MAX_RATE_HZ: f64 = 100_000.0;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// The processes to observe.
    pub target: Target,
    /// Variables that are added to the environment of a command.
    pub environment: Vec<(OsString, OsString)>,
    /// The source of accesses.
    pub source: RequestedSource,
    /// Options of the PMU source.
    pub pmu: PmuOptions,
    /// The accesses to keep.
    pub selection: AccessSelection,
    /// Whether the preload library will be in the command, as the signal source requires; if not, the reason and the
    /// remedy for the user.
    pub preload: Result<(), NoPreload>,
    /// Absolute path of the folder for samples of the preload library.
    pub samples_folder: PathBuf,
    /// Samples per second of every thread's CPU time; `None`: [a rate with low cost](Calibration::default_rate_hz).
    pub rate_hz: Option<f64>,
    /// Largest share of the program's time that sampling may take; the rate is lowered if necessary. `None`: the rate
    /// is constant.
    pub max_overhead: Option<f64>,
    /// Whether to sample faster at first, within a budget of 80 ms of processor time or 0.5 % of the program's, and at
    /// `rate_hz` in the long run. `max_overhead` then applies only to sources without a budget: the PMU, and running
    /// targets whose threads do not all have their own events.
    pub budget: bool,
    /// Time from the start of the command, or from attaching, until sampling begins.
    pub after: Duration,
    /// Duration of sampling; `None`: to the end.
    pub duration: Option<Duration>,
    /// One of this many page faults becomes a first touch; 0: none.
    pub fault_period: u64,
    /// Whether to query the kernel for the nodes of sampled pages. Useful only on several nodes.
    pub page_nodes: bool,
    /// Side of the sampled instruction, and cost of samples; `None`: measured at the start.
    pub calibration: Option<Calibration>,
    /// `/sys`, except in tests.
    pub sys_root: PathBuf,
    /// `/proc`, except in tests.
    pub proc_root: PathBuf,
}

impl Options {
    /// Default options for a target or a command.
    pub fn new(target: impl Into<Target>) -> Self {
        Self {
            target: target.into(),
            environment: Vec::new(),
            source: RequestedSource::default(),
            pmu: PmuOptions::default(),
            selection: AccessSelection::default(),
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
