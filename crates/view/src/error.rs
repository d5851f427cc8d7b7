//! What can go wrong.

use std::io;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A recording that can't be opened.
    #[error(transparent)]
    Recording(#[from] nearpage_recording::Error),
    /// Accesses that can't be attributed.
    #[error(transparent)]
    Attribution(#[from] nearpage_attribution::Error),
    /// No room for pictures.
    #[error("no room for pictures beside the recording or in the temporary folder: {0}")]
    Write(io::Error),
    /// The address is taken.
    #[error("port {port} of 127.0.0.1 is in use; choose another with --port, or leave it out")]
    PortInUse {
        /// Asked for.
        port: u16,
    },
    /// No address to listen on.
    #[error("can't listen on 127.0.0.1:{port}: {source}")]
    Listen {
        /// Asked for; 0: any.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// No random numbers for the token.
    #[error("/dev/urandom: {0}")]
    Random(io::Error),
    /// Built without the page.
    #[error(
        "this nearpage was built without its page (--no-default-features); build it with Node 18 or later installed"
    )]
    NoPage,
    /// A log of the daemon.
    #[error("{file}: not a log of `nearpage live`: {what}")]
    Log {
        /// Which.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A simulation's file.
    #[error("{file}: not the output of `nearpage simulate --json`: {what}")]
    Simulation {
        /// Which.
        file: String,
        /// What is wrong.
        what: String,
    },
}
