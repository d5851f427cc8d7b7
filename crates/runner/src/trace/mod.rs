//! Traces a command: runs it under qemu-user with the tracer, which sends every reference through a machine's caches
//! and records the misses. A system emulator as the command gets the tracer as well ([`guest`]).

mod emulator;
mod guest;
mod program;
mod schedule;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, SystemTime};

use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::{ProgramImage, SearchPaths, resolve_command};
use nearpage_recording::trace::{TraceOptions, Tracing, end_traces};
use nearpage_recording::{LogWriter, Metadata, NoLog, Source, ThreadPinning};
use nearpage_sampler::shell_status;

pub(crate) use self::emulator::EMULATOR_PACKAGE;
pub use self::emulator::{Emulator, PLUGINS_FROM};

use crate::command::run_to_end;
use crate::environment::{Environment, SmallAllocations, allocation_log, rank};
use crate::error::{Error, IoContext};
use crate::libraries::{PreloadLibrary, TracerPlugin, kept_out};
use crate::messages;
use crate::output::OutputFolder;

/// File with the tracer's setup, beside the logs.
const SETUP_FILE: &str = "tracer.setup";
/// Variable that tells an OpenMP program how its threads wait.
const WAIT_POLICY: &str = "OMP_WAIT_POLICY";
/// Failure for a missing folder of the new recording.
const FOLDER_WENT_AWAY: &str = "the recording's folder went away";

/// Options of a trace.
#[derive(Clone, Debug)]
pub struct TraceRequest {
    /// Folder of the recording.
    pub output: PathBuf,
    /// May an earlier recording in the folder be replaced?
    pub replace: bool,
    /// The command and its arguments: a program, or `qemu-system-x86_64` for a guest with its kernel.
    pub command: Vec<OsString>,
    /// The machine whose caches the references go through: `local`, a preset or a file.
    pub machine: String,
    /// A schedule file: which threads move to which CPUs, and when.
    pub schedule: Option<PathBuf>,
    /// Small allocations to log.
    pub small_allocations: SmallAllocations,
    /// Options of the tracer. Its moves come from `schedule`.
    pub tracer: TraceOptions,
}

/// Result of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Exit status of the command.
    pub status: ExitStatus,
    /// Elapsed time of the command.
    pub elapsed: Duration,
}

/// Runs a command and records every cache miss.
///
/// # Errors
/// The command or machine cannot be traced. The emulator or the tracer is missing. The output folder cannot be written
/// or must not be replaced. Nothing was traced of a guest.
pub fn trace(request: &TraceRequest) -> Result<Traced, Error> {
    let subject = Subject::of(request)?;
    let machine = Machine::by_name_or_path(&request.machine, Path::new("/sys"))?;
    let tracer = TraceOptions {
        moves: match &request.schedule {
            Some(path) => schedule::moves(path, &machine)?,
            None => Vec::new(),
        },
        ..request.tracer.clone()
    };
    let (tracing, assumed) =
        Tracing::new(&machine, &request.machine, &tracer).map_err(Error::MachineNotTraceable)?;
    let user_mode = match subject.is_guest {
        true => None,
        false => Some(UserMode::find(subject.kept_out())?),
    };
    let plugin = TracerPlugin::find()?;

    let output = OutputFolder::claim(&request.output, request.replace)?;
    let metadata = Metadata {
        notes: subject.notes(&machine, &assumed),
        ..metadata(request, &machine, tracing, subject.image.as_ref())
    };
    let (output, mut log) = output.begin(metadata, &machine)?;
    output.keep();
    let folders = Folders::of(&log)?;
    let setup = folders.write_setup(&mut log)?;
    let plugin = plugin_argument(&plugin.path, &setup, &folders.traces);
    let (words, environment) = match &user_mode {
        None => {
            let mut words = subject.words;
            words.extend(["-plugin".into(), plugin]);
            (words, Environment::new())
        }
        Some(user_mode) => (
            user_mode.words(plugin, subject.words),
            environment(
                folders.logs,
                request.small_allocations,
                env::var_os(WAIT_POLICY).is_some(),
                &mut log.metadata_mut().notes,
            ),
        ),
    };

    let begin_ns = monotonic_ns();
    log.metadata_mut().begin_ns = begin_ns;
    let status = run_to_end(&words, environment)?;
    let end_ns = monotonic_ns();
    let alive = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
    end_traces(&folders.traces, alive)?;
    log.finish(Some(shell_status(status).into()), end_ns)?;
    if subject.is_guest && has_no_trace(&folders.traces)? {
        return Err(Error::NothingTraced);
    }
    Ok(Traced {
        status,
        elapsed: Duration::from_nanos(end_ns - begin_ns),
    })
}

/// The traced program, or a guest with its kernel.
struct Subject {
    program: PathBuf,
    is_guest: bool,
    /// The words to run, without the tracer's and, for a program, without the emulator's.
    words: Vec<OsString>,
    /// The program's image, if it can be read.
    image: Option<ProgramImage>,
    /// Messages about the words.
    notes: Vec<String>,
}

impl Subject {
    fn of(request: &TraceRequest) -> Result<Self, Error> {
        let search = SearchPaths::from_environment();
        let (name, arguments) = request.command.split_first().ok_or(Error::NoCommand)?;
        let program = resolve_command(name, &search)?;
        if guest::is_emulator(&program) {
            refuse_of_guests(request)?;
            let (words, notes) = guest::words(&program, arguments)?;
            return Ok(Self {
                program,
                is_guest: true,
                words,
                image: None,
                notes,
            });
        }
        Ok(Self {
            words: program::words(&program, arguments)?,
            image: ProgramImage::load(name, &search).ok(),
            program,
            is_guest: false,
            notes: Vec::new(),
        })
    }

    fn kept_out(&self) -> Option<NoLog> {
        self.image.as_ref().and_then(kept_out)
    }

    /// Messages to print before the trace. `assumed`: properties that the machine's description lacks.
    fn notes(&self, machine: &Machine, assumed: &[String]) -> Vec<String> {
        let mut notes = self.notes.clone();
        if !assumed.is_empty() {
            notes.push(format!("{}: assumed {}", machine.name, assumed.join(", ")));
        }
        if let Some(reason) = self.kept_out() {
            let name = self.program.display();
            notes.push(format!(
                "the heap objects of {name} are not known: {reason}"
            ));
        }
        notes
    }
}

/// Refuses options that only apply to programs.
fn refuse_of_guests(request: &TraceRequest) -> Result<(), Error> {
    let given = [
        (request.schedule.is_some(), "--schedule"),
        (
            request.small_allocations == SmallAllocations::All,
            "--all-allocations",
        ),
        (request.tracer.serial, "--serial"),
    ];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Error::NotForGuests { option }),
        None => Ok(()),
    }
}

/// Files for tracing a user program.
struct UserMode {
    emulator: Emulator,
    /// `None` if the program does not start with the library.
    library: Option<PreloadLibrary>,
}

impl UserMode {
    fn find(kept_out: Option<NoLog>) -> Result<Self, Error> {
        let library = PreloadLibrary::find()?;
        Ok(Self {
            emulator: Emulator::find()?,
            library: Some(library).filter(|_| kept_out.is_none()),
        })
    }

    /// The emulator's words: the tracer, then the program with the preload library.
    fn words(&self, plugin: OsString, program: Vec<OsString>) -> Vec<OsString> {
        let mut words: Vec<OsString> =
            vec![self.emulator.path.clone().into(), "-plugin".into(), plugin];
        if let Some(library) = &self.library {
            let mut preload = OsString::from("LD_PRELOAD=");
            preload.push(library.ld_preload());
            words.extend(["-E".into(), preload]);
        }
        words.extend(program);
        words
    }
}

/// Absolute paths of the folders that the preload library and the tracer write to.
struct Folders {
    logs: PathBuf,
    traces: PathBuf,
}

impl Folders {
    fn of(log: &LogWriter) -> Result<Self, Error> {
        let logs = log.allocation_log_folder();
        let traces = log.trace_folder()?;
        Ok(Self {
            logs: logs.canonicalize().context(FOLDER_WENT_AWAY)?,
            traces: traces.canonicalize().context(FOLDER_WENT_AWAY)?,
        })
    }

    /// Writes the tracer's setup to its file.
    fn write_setup(&self, log: &mut LogWriter) -> Result<PathBuf, Error> {
        let path = self.logs.join(SETUP_FILE);
        let tracing = log.metadata_mut().tracing.as_ref();
        let setup = tracing.map_or("", |tracing| &tracing.setup);
        fs::write(&path, setup).at(&path, "can't be written")?;
        Ok(path)
    }
}

fn has_no_trace(traces: &Path) -> Result<bool, Error> {
    let entries = fs::read_dir(traces).context(FOLDER_WENT_AWAY)?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    Ok(!names.any(|name| name.as_bytes().ends_with(b".trace")))
}

/// Variables that an emulated program gets in addition to its own. `has_wait_policy`: the program's own variables say
/// how OpenMP's threads wait.
fn environment(
    logs: PathBuf,
    small: SmallAllocations,
    has_wait_policy: bool,
    notes: &mut Vec<String>,
) -> Environment {
    let mut environment = allocation_log(logs.clone(), small);
    notes.extend(messages::add_file(&logs, &mut environment).err());
    // The choice of stacks to unwind must not depend on time, because time in the emulator is not the program's time.
    environment.push((
        nearpage_wire::UNWINDING_VARIABLE.into(),
        u64::MAX.to_string().into(),
    ));
    // The tracer cannot see that a spinning thread waits, so threads wait passively.
    if !has_wait_policy {
        environment.push((WAIT_POLICY.into(), "passive".into()));
    }
    environment
}

/// The argument `FILE,setup=SETUP,out=FOLDER`. QEMU requires commas in values to be doubled.
fn plugin_argument(plugin: &Path, setup: &Path, traces: &Path) -> OsString {
    let mut argument = Vec::new();
    for (name, path) in [("", plugin), (",setup=", setup), (",out=", traces)] {
        argument.extend_from_slice(name.as_bytes());
        for byte in path.as_os_str().as_bytes() {
            argument.push(*byte);
            if *byte == b',' {
                argument.push(b',');
            }
        }
    }
    OsString::from_vec(argument)
}

fn metadata(
    request: &TraceRequest,
    machine: &Machine,
    tracing: Tracing,
    image: Option<&ProgramImage>,
) -> Metadata {
    let words = request.command.iter();
    Metadata {
        command: words
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        build_id: image.map_or_else(String::new, |image| image.program.build_id.clone()),
        thread_placement: match request.tracer.threads {
            ThreadPlacement::None | ThreadPlacement::Compact => ThreadPinning::Compact,
            ThreadPlacement::Scatter => ThreadPinning::Scatter,
        },
        rank: rank(),
        launched: crate::launcher::launched(),
        host: crate::launcher::host(),
        origin: crate::launcher::origin(),
        binding: crate::launcher::binding(),
        tracing: Some(tracing),
        ..Metadata::begun(Source::Tracer, SystemTime::now(), machine.node_ids())
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to `now`, which outlives the call; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
