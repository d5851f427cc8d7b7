//! Runs a command to its end, and ends nearpage as the command ended.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use nearpage_sampler::{State, shell_status};

use crate::Environment;
use crate::error::{Error, IoContext};
use crate::signals;

/// Status that shells show for a command that SIGINT ended. It stands for an interrupted nearpage whose command
/// continues.
const INTERRUPTED_STATUS: i32 = 128 + libc::SIGINT;

/// Process ID of the running command, in a static because a signal handler gets no other data.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: kill is async-signal-safe. The handler is installed only while the child runs, so the ID is the
        // child's.
        unsafe { libc::kill(child, signal) };
    }
}

/// Runs a command to its end, and returns its status. The terminal sends SIGINT and SIGQUIT to the command itself;
/// SIGTERM and SIGHUP are passed on.
///
/// # Errors
/// The command does not exist or cannot be run.
pub(crate) fn run_to_end(
    command: &[OsString],
    environment: Environment,
) -> Result<ExitStatus, Error> {
    let (name, arguments) = command.split_first().ok_or(Error::NoCommand)?;
    let mut starting = Command::new(name);
    starting.args(arguments).envs(environment);
    keep_sigpipe_ignored(&mut starting);
    let mut child = starting.spawn().at(Path::new(name), "can't be run")?;
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    let set = |signal, action: libc::sighandler_t| {
        // SAFETY: the handler only reads an atomic and calls kill, which are async-signal-safe.
        unsafe { libc::signal(signal, action) }
    };
    let ignored = [libc::SIGINT, libc::SIGQUIT].map(|signal| (signal, set(signal, libc::SIG_IGN)));
    let handler = pass_on as extern "C" fn(libc::c_int) as libc::sighandler_t;
    let passed_on = [libc::SIGTERM, libc::SIGHUP].map(|signal| (signal, set(signal, handler)));
    let status = child.wait();
    CHILD.store(0, Ordering::Relaxed);
    for (signal, action) in ignored.into_iter().chain(passed_on) {
        set(signal, action);
    }
    status.context("can't wait for the command")
}

/// Replaces this process by a command (`exec`), as if the command had been started without nearpage.
///
/// # Errors
/// The command does not exist or cannot be run.
pub fn replace_by(command: &[OsString]) -> Result<Infallible, Error> {
    let (name, arguments) = command.split_first().ok_or(Error::NoCommand)?;
    let mut replacing = Command::new(name);
    replacing.args(arguments);
    keep_sigpipe_ignored(&mut replacing);
    Err(replacing.exec()).at(Path::new(name), "can't be run")
}

/// Has the command ignore SIGPIPE if this process began with SIGPIPE ignored. The standard library would reset it.
fn keep_sigpipe_ignored(command: &mut Command) {
    if signals::ignores_sigpipe() {
        // SAFETY: the closure runs between fork and exec and sets a disposition, which neither allocates nor locks.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                Ok(())
            });
        }
    }
}

/// Status of a sampled command. A command that continues after sampling counts as interrupted.
pub(crate) fn command_status(state: State) -> ExitStatus {
    match state {
        State::Ended(status) => status,
        State::Running | State::Detached | State::TargetEnded => {
            ExitStatus::from_raw(INTERRUPTED_STATUS << 8)
        }
    }
}

/// Ends this process by the signal that ended a command, so that a waiting process, such as a launcher of ranks, sees
/// the command's end. Otherwise returns the command's status.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        let no_core = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `no_core` outlives its call; the other calls take no pointers. The limit leaves the command's core
        // dump alone.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    ExitCode::from(shell_status(status))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Serialises the tests' commands, because signal dispositions belong to the whole process.
    static RUNS: Mutex<()> = Mutex::new(());

    fn run(script: &str, environment: Environment) -> u8 {
        let command = ["sh", "-c", script].map(OsString::from);
        let _turn = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        shell_status(run_to_end(&command, environment).unwrap())
    }

    #[test]
    fn statuses_are_those_that_a_shell_shows() {
        assert_eq!(run("exit 0", Vec::new()), 0);
        assert_eq!(run("exit 7", Vec::new()), 7);
        assert_eq!(run("kill -KILL $$", Vec::new()), 137);
        let terminated = ExitStatus::from_raw(libc::SIGTERM);
        assert_eq!(command_status(State::Ended(terminated)), terminated);
        for lives_on in [State::Running, State::Detached, State::TargetEnded] {
            assert_eq!(command_status(lives_on).code(), Some(130));
        }
    }

    #[test]
    fn a_command_gets_its_variables_besides_those_that_it_inherits() {
        let environment = vec![("NEARPAGE_TEST".into(), "a b".into())];
        let script = r#"test "$NEARPAGE_TEST" = "a b" && test -n "$PATH""#;
        assert_eq!(run(script, environment), 0);
    }

    #[test]
    fn commands_that_cannot_be_run_are_named() {
        let error = run_to_end(&["/no/such/command".into()], Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "/no/such/command: can't be run");
        let error = run_to_end(&[], Vec::new()).unwrap_err();
        assert!(matches!(error, Error::NoCommand), "{error}");
    }
}
