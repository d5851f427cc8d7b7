use nearpage_amount::counted;
use nearpage_machine::{CpuId, Fault};
use nearpage_online::ParameterError;

/// Why a simulation cannot be made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Trace(#[from] nearpage_recording::Error),
    #[error("the machine cannot be simulated: {0}")]
    Machine(#[from] Fault),
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("{policy} cannot run on this machine: {reason}")]
    UnsuitablePolicy {
        policy: String,
        reason: &'static str,
    },
    #[error(
        "the trace has a thread on CPU {0}, which this machine has not; it was recorded for another machine"
    )]
    NoSuchCpu(CpuId),
    #[error("the trace names page {page}, but has {}: it is damaged", counted(*pages as u64, "page"))]
    NoSuchPage { page: u32, pages: usize },
    #[error("{path}: cannot be read")]
    Unreadable {
        path: String,
        source: std::io::Error,
    },
    #[error("{file}: {message}")]
    Schedule { file: String, message: String },
    #[error("simulated time goes beyond the two and a half hours that can be counted")]
    TooLong,
}

impl Error {
    pub(crate) fn schedule(file: &str, message: &str) -> Self {
        Self::Schedule {
            file: file.to_owned(),
            message: message.to_owned(),
        }
    }
}
