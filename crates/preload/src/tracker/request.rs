//! The settings in the environment.

use crate::call_site::ALLOWANCE_NS;
use crate::environment;

/// Mean bytes between two samples of small allocations, unless the environment says otherwise.
const SMALL_SAMPLE_BYTES: u64 = 512 << 10;
/// Bytes of log that a process may write, unless the environment says otherwise.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// The settings of the allocation log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'text> {
    /// Folder of the log.
    pub directory: Option<&'text [u8]>,
    /// Most bytes of log.
    pub bytes_max: u64,
    /// Mean bytes between two samples; 1: log everything.
    pub small_sample_bytes: u64,
    /// Time that unwinding stacks may take in any case.
    pub unwinding_ns: u64,
}

impl Request<'static> {
    /// Reads the environment; `None` if it asks for nothing.
    pub(super) fn of_environment() -> Option<Self> {
        if environment::is_disabled() {
            return None;
        }
        let directory = environment::variable(nearpage_wire::LOG_DIRECTORY_VARIABLE)
            .filter(|value| !value.is_empty());
        if directory.is_none()
            && [
                nearpage_wire::PLAN_VARIABLE,
                nearpage_wire::SAMPLES_DIRECTORY_VARIABLE,
            ]
            .into_iter()
            .all(|name| environment::variable(name).is_none())
        {
            return None;
        }
        Some(Self {
            directory,
            bytes_max: environment::number(nearpage_wire::LOG_BYTES_MAX_VARIABLE)
                .unwrap_or(LOG_BYTES_MAX),
            small_sample_bytes: environment::number(nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE)
                .unwrap_or(SMALL_SAMPLE_BYTES)
                .max(1),
            unwinding_ns: environment::number(nearpage_wire::UNWINDING_VARIABLE)
                .unwrap_or(ALLOWANCE_NS),
        })
    }
}
