//! Errors of this crate, with cause and remedy. `Display` says what failed; the system's reason is the error's source.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use nearpage_online::ParameterError;
use nearpage_plan::{SearchPaths, resolve_command};

use crate::lab::LabError;
use crate::launcher::OutputError;
use crate::trace::{EMULATOR_PACKAGE, PLUGINS_FROM};

/// Why a command cannot be run, observed, traced or placed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Live(#[from] nearpage_live::Error),
    #[error(transparent)]
    Machine(#[from] nearpage_machine::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error(transparent)]
    Plan(#[from] nearpage_plan::Error),
    #[error(transparent)]
    Recording(#[from] nearpage_recording::Error),
    #[error(transparent)]
    Sampler(#[from] nearpage_sampler::Error),
    #[error(transparent)]
    Schedule(#[from] nearpage_simulator::Error),

    /// The system refused an operation on a file.
    #[error("{}: {failure}", path.display())]
    File {
        path: PathBuf,
        failure: &'static str,
        source: io::Error,
    },
    /// The system refused an operation without a file.
    #[error("{failure}")]
    System {
        failure: &'static str,
        source: io::Error,
    },
    #[error("{}", path.display())]
    MigrationLog { path: PathBuf, source: io::Error },

    #[error("no command given")]
    NoCommand,
    #[error("interrupted")]
    Interrupted,

    #[error(
        "{}: not found; {library} is installed beside the nearpage executable or in ../lib (`cargo build` builds both)",
        path.display()
    )]
    LibraryNotFound {
        path: PathBuf,
        library: &'static str,
    },

    #[error("{}: not a recording, so --force does not replace it", .0.display())]
    NotReplaceable(PathBuf),
    #[error("{}: there is a recording already; choose another folder with -o, or replace it with --force", .0.display())]
    RecordingExists(PathBuf),
    #[error("{}: another recorder is at work there; choose another folder with -o, or wait until it has ended", .0.display())]
    RecorderAtWork(PathBuf),
    #[error("the recording is incomplete")]
    Incomplete(#[source] nearpage_recording::Error),

    #[error(transparent)]
    MachineNotTraceable(nearpage_recording::trace::TracingError),
    #[error("{option} goes with a program: of a whole system, the guest's CPUs are what is traced")]
    NotForGuests { option: &'static str },
    #[error("{}: guests for x86-64 can be traced (qemu-system-x86_64), others not", .0.display())]
    GuestArchitecture(PathBuf),
    #[error(
        "a guest that runs on the processor itself can't be traced: leave -enable-kvm and -accel out, or give -accel \
         tcg,thread=multi"
    )]
    GuestOnProcessor,
    #[error(
        "the guest's CPUs advance together only with a thread each: leave -icount and thread=single out"
    )]
    GuestCpusShareThread,
    #[error(
        "nothing of the guest was traced: the emulator did not start it, or, with --markers, no program in it ran the \
         mark that tracing begins at (see docs/reference/recording-format.md)"
    )]
    NothingTraced,
    #[error(
        "{}: a program for another architecture ({architecture}); programs for x86-64 can be traced",
        path.display()
    )]
    ProgramArchitecture { path: PathBuf, architecture: String },
    #[error("{}: neither a program nor a script", .0.display())]
    NotAProgram(PathBuf),
    #[error("{}: scripts all the way down", .0.display())]
    ScriptsOfScripts(PathBuf),
    #[error("qemu-x86_64: not found on PATH; it comes with the Debian package {EMULATOR_PACKAGE}")]
    NoEmulator,
    #[error("{} {version}: built without plugins, as static builds are; {PLUGINS_FROM}", path.display())]
    EmulatorWithoutPlugins { path: PathBuf, version: String },
    #[error(
        "{}: threads are moved by [[move]] while they are traced; \"affinity\" and \"partition\" are simulated: nearpage \
         simulate --schedule",
        .0.display()
    )]
    ScheduleNotPinned(PathBuf),
    #[error("{}: one program is traced at a time", .0.display())]
    ScheduleOfPrograms(PathBuf),
    #[error("{machine}: {fault}")]
    NoTiming {
        machine: String,
        fault: nearpage_machine::Fault,
    },

    #[error("--replicate {0}: expected `code` or file:GLOB, such as 'file:/data/*.bin'")]
    ReplicaSource(String),
    #[error("--replicate file:{0}: no file matches")]
    NothingToReplicate(String),
    #[error("a pattern with a zero byte")]
    PatternWithZeroByte,

    #[error(
        "{}: statically linked, so nothing can be placed in it; link it dynamically, or use numactl",
        .0.display()
    )]
    StaticallyLinked(PathBuf),
    #[error("no --plan given, and no home folder to look for a kept one")]
    NoHomeFolder,
    #[error(
        "no plan is kept for {0}; make one with `nearpage optimize -- COMMAND`, name one with --plan, or place by hand \
         with --place"
    )]
    NoKeptPlan(String),
    #[error("the plan's [online_migration] has `{0}`, and `auto` has no parameter of that name")]
    UnknownParameter(String),
}

impl Error {
    /// Exit status for the error, as a shell's: 127 if the command does not exist, 126 if it cannot be executed. 2 is
    /// wrong usage, 1 any other error.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Plan(error) => error.exit_status(),
            Self::Sampler(nearpage_sampler::Error::CommandNotFound { .. }) => 127,
            Self::Sampler(nearpage_sampler::Error::NotExecutable { .. })
            | Self::NotAProgram(_)
            | Self::ScriptsOfScripts(_)
            | Self::ProgramArchitecture { .. } => 126,
            _ if self.is_usage() => 2,
            _ => 1,
        }
    }

    /// Is the error a usage mistake on any machine (exit status 2)?
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Lab(error) => error.is_usage(),
            Self::Plan(error) => error.is_usage(),
            Self::Machine(error) => matches!(error, nearpage_machine::Error::Unknown { .. }),
            Self::Output(_)
            | Self::NotForGuests { .. }
            | Self::GuestOnProcessor
            | Self::GuestCpusShareThread
            | Self::ReplicaSource(_)
            | Self::PatternWithZeroByte => true,
            _ => false,
        }
    }
}

/// Refuses a command that cannot be run, with the same message for every way to start a command.
pub(crate) fn check_command(command: &[OsString]) -> Result<(), Error> {
    let program = command.first().ok_or(Error::NoCommand)?;
    resolve_command(program, &SearchPaths::from_environment())?;
    Ok(())
}

/// Failure for a missing temporary folder.
pub(crate) const NO_FOLDER: &str = "can't make a temporary folder";

/// Adds the failed operation to an error of the system.
pub(crate) trait IoContext<T> {
    /// Names the file at `path`.
    fn at(self, path: &Path, failure: &'static str) -> Result<T, Error>;
    /// Names no file.
    fn context(self, failure: &'static str) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, path: &Path, failure: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::File {
            path: path.to_owned(),
            failure,
            source,
        })
    }

    fn context(self, failure: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::System { failure, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_typed_is_wrong_usage() {
        let rule = nearpage_plan::PlaceRule::parse("symbol:a", &[]).unwrap_err();
        assert!(rule.is_usage() && Error::from(rule).is_usage());
        let machine = nearpage_machine::Machine::by_name_or_path("nonsense", Path::new("/sys"));
        assert!(Error::from(machine.unwrap_err()).is_usage());
        assert!(Error::ReplicaSource("text".to_owned()).is_usage());
        assert!(!Error::NoKeptPlan("cg".to_owned()).is_usage());
        assert!(!Error::NotReplaceable("a".into()).is_usage());
    }

    #[test]
    fn the_systems_reason_is_the_source() {
        let refused = || io::Result::<()>::Err(io::Error::from_raw_os_error(libc::EACCES));
        let error = refused().at(Path::new("/a"), "can't be read").unwrap_err();
        assert_eq!(error.to_string(), "/a: can't be read");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "Permission denied (os error 13)");
        let error = refused().context("can't wait for the command").unwrap_err();
        assert_eq!(error.to_string(), "can't wait for the command");
    }
}
