use nearpage_online::ParameterError;

/// Why the daemon cannot work.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Sampler(#[from] nearpage_sampler::Error),
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("process {pid} is served by another nearpage live; end that one first")]
    Taken { pid: u32 },
    #[error("{name}, line {line}: {what}")]
    Log {
        name: String,
        line: usize,
        what: String,
    },
    #[error("cannot serve on {address}: {why}")]
    Serve { address: String, why: String },
    #[error("cannot write the log: {0}")]
    WriteLog(std::io::Error),
}
