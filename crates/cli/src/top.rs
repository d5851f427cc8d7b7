//! `nearpage top`: shows which running programs lose time to remote memory, and where their memory is.

use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nearpage_live::{LivePolicy, MemoryWatch, Report, append};
use nearpage_runner::{OnlineMigration, OnlineMigrationOptions};
use nearpage_sampler::Target;
use nearpage_screen::{Kind, Model, Process, Screen};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Top;
use crate::{Usage, shown, terminal};

/// Shortest allowed interval in seconds; a shorter one has too few samples.
const INTERVAL_MIN_S: f64 = 0.1;
/// Maximum number of rows in a printed table.
const ROWS: usize = 20;
/// How long the first table waits for the sizes of processes' memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_millis(200);
/// Limit of own processes that are watched one by one: each of their threads takes an event on each CPU.
const OWN_MAX: usize = 200;

/// Line that `top --json` prints for each update.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TopOutput {
    /// Version of this form.
    version: u32,
    /// Time of the update, in milliseconds since 1970.
    time_unix_ms: u64,
    /// Time since the previous update.
    interval_ns: u64,
    /// Numbers of the machine's nodes. Other fields refer to nodes by position in this list.
    nodes: Vec<u16>,
    /// Number of access samples.
    samples: u64,
    /// Local share of all accesses.
    local_share: Option<f64>,
    /// Processes that were running, ordered by the time lost to other nodes' memory.
    processes: Vec<TopProcess>,
}

/// A process in a line of `top --json`.
#[derive(Debug, Serialize, JsonSchema)]
struct TopProcess {
    /// Process ID.
    pid: u32,
    name: String,
    /// Threads that have not ended.
    threads: u32,
    /// CPUs that the process used, estimated from samples.
    cpus: f64,
    /// Number of access samples of the process.
    samples: u64,
    /// Local share of the process's accesses.
    local_share: Option<f64>,
    /// Share of the process's CPU time that was lost to memory.
    lost_share: Option<f64>,
    /// Share of the process's CPU time that was lost to other nodes' memory.
    remote_lost_share: Option<f64>,
    /// Memory of the process on each node, by position in `nodes`; null where it is not known.
    memory_bytes: Option<Vec<u64>>,
}

pub fn main(arguments: Top) -> anyhow::Result<ExitCode> {
    if arguments.interval < INTERVAL_MIN_S {
        return Err(Usage(format!("--interval {}: at least 100ms", arguments.interval)).into());
    }
    let screen = match arguments.json || arguments.plain || !std::io::stdout().is_terminal() {
        true => None,
        false => shown::screen_terminal(),
    };
    if screen.is_some() {
        nearpage_screen::leave_on_signals();
    }
    let watching = start(&arguments)?;
    let subject = shown::subject(Kind::Top, watching.head(), true);
    let mut show = match screen {
        Some(terminal) => Show::Screen(Screen::start(subject, terminal, None)?),
        None => Show::Lines {
            memory: MemoryWatch::start(&subject.nodes)?,
            model: Box::new(Model::new(subject)),
            is_json: arguments.json,
        },
    };
    let mut looks = 0;
    let mut failed = None;
    let ended = watching.finish(
        &mut |report| {
            if failed.is_none() && arguments.iterations.is_none_or(|most| looks < most) {
                failed = show.look(report).err();
            }
            looks += 1;
            if failed.is_some() || arguments.iterations == Some(looks) {
                // SAFETY: the call takes no pointers. The signal ends the daemon as Ctrl-C does.
                unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
            }
        },
        &|_| (),
    );
    if let Show::Screen(screen) = show {
        let lines = screen.finish();
        lines.iter().for_each(|line| terminal::say_plainly(line));
    }
    ended?;
    match failed {
        Some(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Watches the named processes, or all processes; where watching all is not permitted, the user's own processes.
fn start(arguments: &Top) -> anyhow::Result<OnlineMigration> {
    let options = |target| OnlineMigrationOptions {
        interval: Duration::from_secs_f64(arguments.interval),
        dry_run: true,
        max_overhead: arguments.max_overhead / 100.0,
        rate_hz: arguments.rate,
        ..OnlineMigrationOptions::new(target, LivePolicy::Watch)
    };
    let say = |line: &str| {
        if !arguments.json {
            terminal::say(line);
        }
    };
    if let Some(target) = arguments.target() {
        return Ok(OnlineMigration::start(&options(target), &say)?);
    }
    let refused = match OnlineMigration::start(&options(Target::All), &say) {
        Ok(watching) => return Ok(watching),
        Err(error) => error,
    };
    let own = own_processes();
    match OnlineMigration::start(&options(Target::Processes(own)), &say) {
        Ok(watching) => {
            terminal::say(&format!(
                "{refused}: only processes of your own are watched, and what they start"
            ));
            Ok(watching)
        }
        // The refusal to watch all processes says more than the refusal to watch own processes.
        Err(_) => Err(refused.into()),
    }
}

/// Process IDs of this user, newest first, without this process.
fn own_processes() -> Vec<u32> {
    let user = nearpage_files::own_user();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut own: Vec<u32> = entries
        .filter(|entry| {
            entry
                .metadata()
                .is_ok_and(|metadata| metadata.uid() == user)
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    own.truncate(OWN_MAX);
    own
}

/// Output of the updates.
enum Show {
    Screen(Screen),
    Lines {
        memory: MemoryWatch,
        model: Box<Model>,
        is_json: bool,
    },
}

impl Show {
    fn look(&mut self, report: &Report) -> std::io::Result<()> {
        match self {
            Self::Screen(screen) => {
                screen.interval(report);
                Ok(())
            }
            Self::Lines {
                memory,
                model,
                is_json,
            } => {
                model.take(report);
                model.look_up_memory(memory);
                if model.intervals == 1 {
                    wait_for_memory(model, memory);
                }
                match is_json {
                    true => append(&mut std::io::stdout().lock(), &output(model, report)),
                    false => terminal::print(&text(model)),
                }
            }
        }
    }
}

fn wait_for_memory(model: &mut Model, memory: &MemoryWatch) {
    let until = Instant::now() + MEMORY_WAIT_MAX;
    while Instant::now() < until
        && model
            .processes
            .values()
            .any(|process| !model.memory.contains_key(&process.pid))
    {
        std::thread::sleep(MEMORY_WAIT_MAX / 20);
        model.look_up_memory(memory);
    }
}

fn text(model: &Model) -> String {
    let table = nearpage_screen::table(model, terminal::width(), ROWS);
    format!("{table}\n")
}

fn output(model: &Model, report: &Report) -> TopOutput {
    let interval = &report.entry.interval;
    let mut living: Vec<&Process> = model
        .processes
        .values()
        .filter(|process| !process.has_ended)
        .collect();
    living.sort_by(|a, b| {
        let key = |process: &Process| process.now.remote_lost_ns;
        key(b).total_cmp(&key(a)).then(a.pid.cmp(&b.pid))
    });
    let process = |process: &&Process| TopProcess {
        pid: process.pid,
        name: process.name.clone(),
        threads: process.threads,
        cpus: process.cpus,
        samples: process.now.accesses as u64,
        local_share: process.now.local_share(),
        lost_share: process.now.lost_share(),
        remote_lost_share: process.now.remote_share(),
        memory_bytes: model.memory.get(&process.pid).cloned(),
    };
    TopOutput {
        version: nearpage_recording::JSON_VERSION,
        time_unix_ms: report.entry.time_unix_ms,
        interval_ns: interval.end_ns.saturating_sub(interval.begin_ns),
        nodes: model.subject.nodes.clone(),
        samples: interval.observations.len() as u64,
        local_share: report.local_share(),
        processes: living.iter().map(process).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_processes_are_found() {
        let own = own_processes();
        assert!(!own.contains(&std::process::id()));
        assert!(own.is_sorted_by(|a, b| a > b));
    }
}
