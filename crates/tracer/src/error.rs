//! Why the tracer does not start.

use std::fmt;
use std::io;

use nearpage_wire::lab::LabSetupError;
use nearpage_wire::tracer_setup::SetupError;

/// Why the tracer does not start.
#[derive(Debug)]
pub enum StartError {
    /// The guest's architecture is not supported.
    Target,
    /// The plugin does not know an argument.
    Argument(String),
    /// An argument of the plugin is missing.
    ArgumentMissing,
    /// A file or folder cannot be used.
    File {
        /// Its path.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// The setup is wrong.
    Setup {
        /// Its path.
        path: String,
        /// What is wrong with it.
        source: SetupError<'static>,
    },
    /// The lab's setup is wrong.
    LabSetup {
        /// Its path.
        path: String,
        /// What is wrong with it.
        source: LabSetupError<'static>,
    },
    /// The lab needs a system emulator with the lab's patch.
    NoLab,
    /// QEMU has no such function of the plugin interface.
    NoFunction(&'static str),
    /// QEMU does not tell loads from stores.
    UnknownStores,
    /// QEMU lacks a function for tracing a whole system.
    NoWholeSystem(String),
    /// A plugin of this process traces already.
    AlreadyStarted,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target => f.write_str("only programs and guests for x86_64 can be traced"),
            Self::Argument(argument) => {
                write!(f, "'{argument}' is not setup=FILE, out=FOLDER or lab=FILE")
            }
            Self::ArgumentMissing => f.write_str("it needs setup=FILE and out=FOLDER"),
            Self::File { path, source } => write!(f, "{path}: {source}"),
            Self::Setup { path, source } => write!(f, "{path}: {source}"),
            Self::LabSetup { path, source } => write!(f, "{path}: {source}"),
            Self::NoLab => f.write_str(
                "this QEMU cannot model guest time: the lab needs the one that crates/tracer/qemu/build builds",
            ),
            Self::NoFunction(name) => write!(
                f,
                "this QEMU has no qemu_plugin_{name}: its plugin API is another"
            ),
            Self::UnknownStores => f.write_str("this QEMU tells of stores in an unknown way"),
            Self::NoWholeSystem(name) => write!(
                f,
                "this QEMU has no {name}: whole systems are traced with QEMU 7.2, as of Debian 12"
            ),
            Self::AlreadyStarted => f.write_str("it was started already"),
        }
    }
}

impl std::error::Error for StartError {}
