//! Errors of deciding and predicting.

use std::path::PathBuf;

/// Reason why nothing can be decided or predicted.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] nearpage_recording::Error),
    #[error(transparent)]
    Attribution(#[from] nearpage_attribution::Error),
    #[error(transparent)]
    Plan(#[from] nearpage_plan::Error),
    #[error(transparent)]
    Parameter(#[from] nearpage_online::ParameterError),
    #[error("{}: {source}", folder.display())]
    Replay {
        folder: PathBuf,
        source: nearpage_simulator::Error,
    },
    #[error("{}: no thread was recorded, there is nothing to plan", .0.display())]
    NoThreads(PathBuf),
    #[error(
        "{}: no rank has samples enough to plan from; record longer, or with a higher --rate", .0.display()
    )]
    TooFewSamples(PathBuf),
    #[error("the plan's [online_migration] has `{0}`, and `auto` has no parameter of that name")]
    UnknownParameter(String),
    #[error(
        "{file}: nothing of this plan for {program} is in {folder}: make one of this recording (`nearpage plan`), or \
         record the program that it is for"
    )]
    NothingOfPlan {
        file: String,
        program: String,
        folder: String,
    },
    /// Several recordings cannot be weighed against each other.
    #[error("{0}")]
    Incomparable(String),
}
