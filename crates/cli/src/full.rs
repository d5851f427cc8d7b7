//! `nearpage record --source full`: runs a command under qemu-user with the tracer inside, so that
//! every reference goes through the caches of a machine, and records what they let through. A
//! command that is a system emulator itself gets the tracer, too ([`full_system`]).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use anyhow::{Context, bail};
use nearpage_machine::{CpuId, Machine};
use nearpage_plan::{ProgramImage, SearchPaths, resolve_command};
use nearpage_recording::trace::{TraceOptions, TracedMove, Tracing, finish_frames};
use nearpage_recording::{Metadata, Recording, Source, ThreadPinning};
use nearpage_simulator::{Scheduler, ThreadMove};

use crate::arguments::{Record, Threads};
use crate::launch::{PreloadLibrary, TracerPlugin};
use crate::observe::{OutputFolder, SMALL_SAMPLE_BYTES, rank};
use crate::progress::Progress;
use crate::record::quoted;
use crate::{Usage, full_system, run, simulate, terminal};

/// What the tracer is told, beside the logs while the program runs.
const SETUP_FILE: &str = "tracer.setup";
/// Where an OpenMP program is told how to wait.
const WAIT_POLICY: &str = "OMP_WAIT_POLICY";

/// Where the emulator ran and the tracer had nothing to trace.
const NO_GUEST: &str = "nothing of the guest was traced: the emulator did not start it, or, with --markers, no program in it \
                        ran the mark that tracing begins at (see docs/formats.md)";

/// `e_machine` of x86-64 in an ELF header.
const EM_X86_64: u16 = 62;

pub fn main(arguments: &Record, output: &Path) -> anyhow::Result<ExitCode> {
    let inapplicable = [
        (arguments.after.is_some(), "--after"),
        (arguments.duration.is_some(), "--for"),
        (arguments.redact, "--redact"),
    ];
    if let Some((_, option)) = inapplicable.iter().find(|(given, _)| *given) {
        let why = match *option {
            "--redact" => "a trace has paths in it",
            _ => {
                "a trace is of all that the program does; --markers leaves out what lies outside its stable phase"
            }
        };
        return Err(Usage(format!("{option} can't be had with --source full: {why}")).into());
    }
    let search = SearchPaths::from_environment();
    let name = arguments.command.first().context("no command given")?;
    let program = resolve_command(name, &search)?;
    let whole_system = full_system::is_emulator(&program);
    let words = &arguments.command[1..];
    let (command, system_notes) = if whole_system {
        refuse_of_system(arguments)?;
        full_system::command(&program, words)?
    } else {
        (as_emulated(&program, words)?, Vec::new())
    };
    let image = match whole_system {
        true => None,
        false => ProgramImage::load(name, &search).ok(),
    };
    let machine_argument = arguments.machine.as_deref().unwrap_or("local");
    let machine = crate::machine::read(machine_argument)?;
    let options = TraceOptions {
        threads: arguments.threads.placement(),
        moves: match &arguments.schedule {
            Some(path) => moves(path, &machine)?,
            None => Vec::new(),
        },
        quantum_instructions: arguments.quantum,
        sample_every: arguments.sample_every,
        keep_hits: arguments.keep_hits,
        from_mark: arguments.markers,
        serial: arguments.serial,
    };
    let (tracing, assumed) =
        Tracing::new(&machine, machine_argument, &options).map_err(anyhow::Error::msg)?;
    let around = match whole_system {
        true => None,
        false => Some((Emulator::find()?, PreloadLibrary::find()?)),
    };
    let plugin = TracerPlugin::find()?;

    let mut notes = system_notes;
    if !assumed.is_empty() {
        notes.push(format!("{}: assumed {}", machine.name, assumed.join(", ")));
    }
    if image.as_ref().is_some_and(|image| image.program.is_static) {
        notes.push(format!(
            "{} is statically linked: the preload library can't enter it, so its heap objects are not known",
            program.display()
        ));
    }
    let place = OutputFolder::claim(output, arguments.force)?;
    let metadata = metadata(arguments, &machine, tracing, image.as_ref(), notes);
    let (place, mut log) = place.begin(metadata, &machine)?;
    place.keep();
    let logs = log
        .allocation_log_folder()
        .canonicalize()
        .context("the recording's folder went away")?;
    let traces = log
        .trace_folder()?
        .canonicalize()
        .context("the recording's folder went away")?;
    let setup = logs.join(SETUP_FILE);
    let told = log
        .metadata_mut()
        .tracing
        .as_ref()
        .map(|tracing| tracing.setup.clone());
    fs::write(&setup, told.unwrap_or_default())
        .with_context(|| format!("{}: can't be written", setup.display()))?;

    let plugin = plugin_argument(&plugin.path, &setup, &traces);
    let (whole, environment) = match &around {
        None => {
            let mut whole = command;
            whole.extend(["-plugin".into(), plugin]);
            (whole, Vec::new())
        }
        Some((emulator, library)) => {
            let mut preload = OsString::from("LD_PRELOAD=");
            preload.push(library.ld_preload());
            let mut whole: Vec<OsString> = vec![
                emulator.path.clone().into(),
                "-plugin".into(),
                plugin,
                "-E".into(),
                preload,
            ];
            whole.extend(command);
            (whole, environment(arguments, logs))
        }
    };
    let begin_ns = monotonic_ns();
    log.metadata_mut().begin_ns = begin_ns;
    let status = run::wait_for(&whole, environment)?;
    let end_ns = monotonic_ns();
    let alive = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
    finish_frames(&traces, alive)?;
    log.finish(Some(i32::from(status)), end_ns)?;
    if whole_system && is_empty(&traces)? {
        bail!(NO_GUEST);
    }

    let recording = {
        let _progress = Progress::new(format!("indexing {}", output.display()));
        Recording::open(output)?
    };
    if !arguments.quiet {
        say(&recording, output, (end_ns - begin_ns) as f64 / 1e9, status);
    }
    Ok(ExitCode::from(status))
}

/// Is there no trace in the folder?
fn is_empty(traces: &Path) -> anyhow::Result<bool> {
    let entries = fs::read_dir(traces).context("the recording's folder went away")?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    Ok(!names.any(|name| name.as_bytes().ends_with(b".trace")))
}

/// What an emulated program finds in its environment besides its own.
fn environment(arguments: &Record, logs: PathBuf) -> Vec<(OsString, OsString)> {
    let sample = if arguments.all_allocations {
        1
    } else {
        SMALL_SAMPLE_BYTES
    };
    let mut environment: Vec<(OsString, OsString)> = vec![
        (
            nearpage_wire::LOG_DIRECTORY_VARIABLE.into(),
            logs.into_os_string(),
        ),
        (
            nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE.into(),
            sample.to_string().into(),
        ),
        // Time in the emulator is not the program's, and what is found must not depend on it.
        (
            nearpage_wire::UNWINDING_VARIABLE.into(),
            u64::MAX.to_string().into(),
        ),
    ];
    // Threads that spin are not seen to wait.
    if env::var_os(WAIT_POLICY).is_none() {
        environment.push((WAIT_POLICY.into(), "passive".into()));
    }
    environment
}

/// Options that say something of a program, which a whole system is not.
fn refuse_of_system(arguments: &Record) -> Result<(), Usage> {
    let given = [
        (arguments.schedule.is_some(), "--schedule"),
        (arguments.all_allocations, "--all-allocations"),
        (arguments.serial, "--serial"),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Usage(format!(
            "{option} goes with a program: of a whole system, the guest's CPUs are what is traced"
        ))),
        None => Ok(()),
    }
}

/// A schedule's moves, in instructions.
fn moves(path: &Path, machine: &Machine) -> anyhow::Result<Vec<TracedMove>> {
    let schedule = simulate::schedule(path)?;
    let refused = |what: &str| anyhow::anyhow!("{}: {what}", path.display());
    if schedule.scheduler != Scheduler::Pinned {
        return Err(refused(
            "threads are moved by [[move]] while they are traced; \"affinity\" and \"partition\" are simulated: \
             nearpage simulate --schedule",
        ));
    }
    if !schedule.programs.is_empty() || schedule.moves.iter().any(|step| step.program != 1) {
        return Err(refused("one program is traced at a time"));
    }
    let timing = machine
        .timing()
        .map_err(|fault| anyhow::anyhow!("{}: {fault}", machine.name))?;
    let instructions_per_ns = timing.clock_ghz / timing.cycles_per_instruction;
    let moved = |step: &ThreadMove| TracedMove {
        thread: step.thread,
        instructions: (step.at_ns as f64 * instructions_per_ns) as u64,
        cpu: CpuId(step.cpu),
    };
    Ok(schedule.moves.iter().map(moved).collect())
}

/// The words that the emulator is to run: a script's interpreter comes before it, as the kernel
/// would have it, and a program for another machine is refused.
fn as_emulated(program: &Path, rest: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let mut command: Vec<OsString> = vec![program.into()];
    command.extend_from_slice(rest);
    // A script may name a script.
    for _ in 0..4 {
        let file = PathBuf::from(&command[0]);
        let mut head = Vec::new();
        fs::File::open(&file)
            .and_then(|opened| opened.take(512).read_to_end(&mut head))
            .with_context(|| format!("{}: can't be read", file.display()))?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let line = line.trim_ascii();
            let at = line.iter().position(|byte| b" \t".contains(byte));
            let (interpreter, argument) = line.split_at(at.unwrap_or(line.len()));
            let argument = argument.trim_ascii();
            if !argument.is_empty() {
                command.insert(0, OsString::from_vec(argument.to_vec()));
            }
            command.insert(0, OsString::from_vec(interpreter.to_vec()));
            continue;
        }
        let machine = head
            .get(18..20)
            .map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        return match (head.starts_with(b"\x7fELF"), machine) {
            (true, Some(EM_X86_64)) => Ok(command),
            (true, Some(_)) => bail!(
                "{}: a program for another architecture ({}); programs for x86-64 can be traced",
                file.display(),
                architecture(&head)
            ),
            _ => bail!("{}: neither a program nor a script", file.display()),
        };
    }
    bail!("{}: scripts all the way down", program.display())
}

/// What an ELF header says it is for.
fn architecture(head: &[u8]) -> String {
    let big_endian = head.get(5) == Some(&2);
    let bytes = [head[18], head[19]];
    let machine = if big_endian {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    };
    match machine {
        3 => "32-bit x86".to_owned(),
        8 => "MIPS".to_owned(),
        20 | 21 => "PowerPC".to_owned(),
        22 => "S/390".to_owned(),
        40 => "32-bit ARM".to_owned(),
        183 => "AArch64".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

/// `FILE,setup=SETUP,out=FOLDER`; QEMU wants commas twice.
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

/// A QEMU that runs programs of this machine's architecture: the first on PATH that loads plugins is
/// taken. Versions 7.2 (plugin API 1) and 10.0 (API 2 to 4) have been tried.
#[derive(Clone, Debug)]
pub struct Emulator {
    pub path: PathBuf,
    /// As it says itself: `7.2.22 (Debian …)`.
    pub version: String,
    pub loads_plugins: bool,
}

/// The Debian package that has one.
const PACKAGE: &str = "qemu-user";
/// Where one comes from that loads plugins.
pub const PLUGINS_FROM: &str = "install qemu-user 7.2 of Debian 12 (Debian's are static from 9.1 on), or put a qemu-x86_64 \
                                built with --enable-plugins on PATH";
const NAMES: [&str; 2] = ["qemu-x86_64", "qemu-x86_64-static"];

impl Emulator {
    /// All on PATH.
    pub fn all() -> Vec<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = env::split_paths(&path).collect();
        let mut found: Vec<PathBuf> = Vec::new();
        for name in NAMES {
            for folder in &folders {
                let candidate = folder.join(name);
                let Ok(real) = candidate.canonicalize() else {
                    continue;
                };
                let known = |other: &PathBuf| other.canonicalize().ok().as_ref() == Some(&real);
                if !found.iter().any(known) {
                    found.push(candidate);
                }
            }
        }
        found.into_iter().filter_map(Self::ask).collect()
    }

    fn ask(path: PathBuf) -> Option<Self> {
        let ask = |option: &str| -> Option<String> {
            let output = Command::new(&path).arg(option).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let version = ask("--version")?;
        let version = version.lines().next().unwrap_or_default();
        let version = version
            .rsplit("version ")
            .next()
            .unwrap_or_default()
            .to_owned();
        let loads_plugins = ask("-h")?.lines().any(|line| line.starts_with("-plugin"));
        Some(Self {
            path,
            version,
            loads_plugins,
        })
    }

    /// The first that can load the tracer.
    pub fn find() -> anyhow::Result<Self> {
        let all = Self::all();
        if let Some(found) = all.iter().find(|emulator| emulator.loads_plugins) {
            return Ok(found.clone());
        }
        match all.first() {
            None => {
                bail!("qemu-x86_64: not found on PATH; it comes with the Debian package {PACKAGE}")
            }
            Some(found) => bail!(
                "{} {}: built without plugins, as static builds are; {PLUGINS_FROM}",
                found.path.display(),
                found.version
            ),
        }
    }
}

fn metadata(
    arguments: &Record,
    machine: &Machine,
    tracing: Tracing,
    image: Option<&ProgramImage>,
    notes: Vec<String>,
) -> Metadata {
    Metadata {
        command: arguments
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        build_id: image.map_or_else(String::new, |image| image.program.build_id.clone()),
        thread_placement: match arguments.threads {
            Threads::None | Threads::Compact => ThreadPinning::Compact,
            Threads::Scatter => ThreadPinning::Scatter,
        },
        notes,
        rank: rank(),
        tracing: Some(tracing),
        ..Metadata::begun(Source::Tracer, SystemTime::now(), machine.node_ids())
    }
}

fn say(recording: &Recording, output: &Path, seconds: f64, status: u8) {
    for note in &recording.metadata.notes {
        terminal::say(note);
    }
    let tracing = recording.metadata.tracing.as_ref();
    let total = |name: &str| {
        let found = tracing.and_then(|tracing| tracing.totals.get(name));
        found.copied().unwrap_or(0)
    };
    terminal::say(&format!(
        "traced {seconds:.1} s on {}: {} instructions, {} loads, {} stores; {} accesses missed the caches",
        recording.machine.name,
        total("instructions"),
        total("loads"),
        total("stores"),
        recording.access_count()
    ));
    if status >= 128 {
        terminal::say(&format!("the command was ended by signal {}", status - 128));
    }
    terminal::say(&format!("the recording is in {}", output.display()));
    terminal::say(&format!(
        "next: nearpage report {}",
        quoted(&output.to_string_lossy())
    ));
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is ours to be written; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_doubled() {
        let argument = plugin_argument(Path::new("/a,b/t.so"), Path::new("/s"), Path::new("/o,"));
        assert_eq!(argument, "/a,,b/t.so,setup=/s,out=/o,,");
    }
}
