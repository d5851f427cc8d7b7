//! Errors of plans.

use std::io;
use std::path::PathBuf;

/// Message that says which form of text was expected, with an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(pub(crate) String);

/// Reason why there is no plan, or why it can't be used here.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{origin}:{line}: {message}")]
    Syntax {
        origin: String,
        line: usize,
        message: String,
    },
    #[error("--place '{rule}': {message}; a rule is WHAT=WHERE, for example {example}")]
    Rule {
        rule: String,
        message: String,
        example: &'static str,
    },
    #[error("{command}: command not found{hint}")]
    CommandNotFound { command: String, hint: String },
    #[error("{}: cannot be run: {message}", path.display())]
    NotExecutable { path: PathBuf, message: String },
    #[error("{}: {message}", path.display())]
    Elf { path: PathBuf, message: String },
    #[error("{rule}: there is no node {found} on {machine}; there is {known}")]
    NoSuchNode {
        rule: String,
        found: u16,
        machine: String,
        known: String,
    },
    #[error("{rule}: there is no {found} on {machine}; {known}")]
    NoSuchDevice {
        rule: String,
        found: String,
        machine: String,
        known: String,
    },
    #[error(
        "{rule}: the firmware of {machine} does not say which node {found} is next to; name the node, as in `node:0`"
    )]
    DeviceNowhere {
        rule: String,
        found: String,
        machine: String,
    },
    #[error("{rule}: node {found} of {machine} has no memory; nodes with memory are {known}")]
    NoMemory {
        rule: String,
        found: u16,
        machine: String,
        known: String,
    },
    #[error(
        "--place '{rule}': what is to become of unmatched memory is said twice, first by --place '{first}'"
    )]
    UnmatchedTwice { rule: String, first: String },
    #[error("{rule}: matches nothing: {message}")]
    MatchesNothing { rule: String, message: String },
    #[error("{rule}: there is no team `{found}` in the plan; there is {known}")]
    NoSuchTeam {
        rule: String,
        found: String,
        known: String,
    },
    #[error(
        "{rule}: `round-robin` and `object-blocks` place the objects of one call site: name a `function:`"
    )]
    NeedsCallSite { rule: String },
    #[error("the machine {machine} has no CPU to run threads on")]
    NoCpu { machine: String },
    #[error("the plan is too large for its compact form: more than 4 GiB of {what}")]
    TooLarge { what: &'static str },
}

impl Error {
    /// Exit status of a command that ends with this error. As in a shell, 127: there is no such command, 126: it cannot
    /// be executed; 2: wrong usage; 1: any other error.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::CommandNotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            _ if self.is_usage() => 2,
            _ => 1,
        }
    }

    /// True for wrong usage by the user (exit status 2), false for a failure.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Rule { .. } | Self::UnmatchedTwice { .. })
    }
}
