//! Errors of this crate.

use std::io;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recording can't be opened.
    #[error(transparent)]
    Recording(#[from] nearpage_recording::Error),
    /// The accesses can't be attributed.
    #[error(transparent)]
    Attribution(#[from] nearpage_attribution::Error),
    /// There is no room for pictures.
    #[error("no room for pictures beside the recording or in the temporary folder: {0}")]
    Write(io::Error),
    /// The port is in use.
    #[error("port {port} of 127.0.0.1 is in use; choose another with --port, or leave it out")]
    PortInUse {
        /// The requested port.
        port: u16,
    },
    /// The server can't listen.
    #[error("can't listen on 127.0.0.1:{port}: {source}")]
    Listen {
        /// The requested port; 0: any port.
        port: u16,
        /// Error of the system.
        source: io::Error,
    },
    /// There are no random numbers for the token.
    #[error("/dev/urandom: {0}")]
    Random(io::Error),
    /// The program was built without the page.
    #[error(
        "this nearpage was built without its page (--no-default-features); build it with Node 18 or later installed"
    )]
    NoPage,
    /// The file is no log of the daemon.
    #[error("{file}: not a log of `nearpage live`: {what}")]
    Log {
        /// Name of the file.
        file: String,
        /// What is wrong with the file.
        what: String,
    },
    /// The file is no output of a simulation.
    #[error("{file}: not the output of `nearpage simulate --json`: {what}")]
    Simulation {
        /// Name of the file.
        file: String,
        /// What is wrong with the file.
        what: String,
    },
}
