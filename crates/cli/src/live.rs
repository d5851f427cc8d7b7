//! `nearpage live`: looks after running programs; and what `run` has of it, for plans that want that.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use nearpage_live::{
    Caution, Claim, Daemon, Error, Heeded, Identity, Kernel, Limits, Linux, Metrics, MetricsServer,
    Policy, Report, Screen, Settings, append, balancing, replay, text, watch,
};
use nearpage_machine::{Machine, several};
use nearpage_recording::Source;
use nearpage_sampler::{Options, Sampler, State, Target, calibrate};

use crate::arguments::Live;
use crate::{Usage, terminal};

/// An interval shorter than this has too few samples for anything.
const INTERVAL_MIN_S: f64 = 0.01;

pub fn main(arguments: Live) -> anyhow::Result<ExitCode> {
    if let Some(log) = &arguments.replay {
        return decide_again(log, arguments.json);
    }
    let watch = Watch::new(arguments, Vec::new(), Heeded::All)?;
    Ok(ExitCode::from(watch.finish()?.status))
}

/// A target that is looked after, from now on.
pub struct Watch {
    arguments: Live,
    sampler: Sampler,
    daemon: Daemon,
    kernel: Linux,
    log: Option<File>,
    server: Option<MetricsServer>,
    show: Show,
}

/// How it went.
pub struct Watched {
    /// The command's status as a shell shows it; 0 of what was attached to.
    pub status: u8,
    /// Pages that were moved.
    pub moved: u64,
}

/// `live` without anything before it, so that its options have the defaults that they have there.
#[derive(Parser)]
struct Alone {
    #[command(flatten)]
    live: Live,
}

impl Watch {
    /// Begins to look after a command under `auto`, with these of its parameters, and says nothing.
    ///
    /// # Errors
    /// Parameters that `auto` does not have; whatever keeps the command from being sampled or run.
    pub fn command(
        parameters: &BTreeMap<String, u64>,
        command: &[OsString],
        environment: Vec<(OsString, OsString)>,
    ) -> anyhow::Result<Self> {
        let mut words: Vec<OsString> = ["live", "--policy=auto", "--threads", "--quiet"]
            .map(OsString::from)
            .into();
        words.extend(
            parameters
                .iter()
                .map(|(name, value)| format!("--set={name}={value}").into()),
        );
        words.push("--".into());
        words.extend_from_slice(command);
        // Its policies only prefer nodes; where the command has one from outside, they can't be told apart.
        let heeded = match balancing::is_unbound() {
            true => Heeded::Strict,
            false => Heeded::All,
        };
        Self::new(Alone::try_parse_from(words)?.live, environment, heeded)
    }

    /// `environment`: variables for a command; `heeded`: policies under which pages stay.
    fn new(
        arguments: Live,
        environment: Vec<(OsString, OsString)>,
        heeded: Heeded,
    ) -> anyhow::Result<Self> {
        let mut policy = policy(&arguments)?;
        if arguments.interval < INTERVAL_MIN_S {
            return Err(Usage(format!("--interval {}: at least 10ms", arguments.interval)).into());
        }
        if arguments.max_stall <= 0.0 {
            return Err(Usage("--max-stall 0: at least 1ms".to_owned()).into());
        }
        let machine = Machine::local(Path::new("/sys"))?;
        let mut log = match &arguments.log {
            Some(path) => {
                let file = File::create(path).with_context(|| path.display().to_string())?;
                Some(file)
            }
            None => None,
        };
        let server = arguments
            .serve
            .as_deref()
            .map(MetricsServer::start)
            .transpose()?;

        let say = |line: &str| {
            if !arguments.quiet {
                terminal::say(line);
            }
        };
        let one_node = machine.nodes_with_memory().len() < 2;
        if one_node {
            say("this machine has one memory node: nothing to move, only to watch");
            policy = Policy::Watch;
        }
        let dry_run = arguments.dry_run || one_node;
        let target = arguments.target();
        if let Some(line) = kernel_balances(matches!(target, Target::Command(_)) && !dry_run) {
            say(line);
        }
        // Before anything is opened, so that a second daemon disturbs nobody.
        refuse_taken(&target, dry_run)?;
        let mut options = Options::new(target);
        options.environment = environment;
        options.fault_period = 0;
        let calibration = calibrate();
        options.calibration = calibration.as_ref().ok().copied();
        options.rate_hz = arguments.rate.or_else(|| {
            // As many as can be afforded by what a sample costs now; the governor corrects it later.
            let cost_ns = options.calibration?.sample_cost_ns?;
            Some(
                (arguments.max_overhead / 100.0 * 1e9 / cost_ns)
                    .clamp(RATE_LEAST_HZ, RATE_WANTED_HZ),
            )
        });
        options.max_overhead = match arguments.rate {
            Some(_) => None,
            None => Some(arguments.max_overhead / 100.0),
        };
        let mut settings = Settings {
            policy,
            pages: arguments.pages as usize,
            limits: Limits {
                stall_ns: (arguments.max_stall * 1e9) as u64,
                bytes_per_second: arguments.max_move_rate << 20,
            },
            caution: Caution::default(),
            dry_run,
            moves_threads: arguments.threads,
            seed: arguments.seed,
            page_bytes: machine.page_bytes,
            // Known when there is a sampler.
            accesses_per_sample: 1.0,
            source: String::new(),
        };
        // Before a command runs.
        settings.check(&machine)?;
        let mut sampler = Sampler::start(&options)?;
        sampler.ask_rate(RATE_WANTED_HZ);
        say(&sampler.choice().line);
        sampler.notes().iter().for_each(|note| say(note));

        let mut kernel = Linux::heeding(heeded);
        settings.accesses_per_sample = match sampler.choice().source {
            // Time lost, over what an access to memory takes.
            Source::Clock | Source::Signal => {
                sampler.period_ns() as f64 / memory_latency_ns(&machine)
            }
            _ => sampler.period_ns() as f64,
        };
        settings.source = sampler.choice().source.as_str().to_owned();
        let daemon = Daemon::new(settings, &machine, kernel.now_ns())?;
        let head = daemon.head();
        if let Some(log) = &mut log {
            append(log, &head).map_err(Error::WriteLog)?;
        }
        let command_draws = !arguments.command.is_empty() && std::io::stdout().is_terminal();
        let show = Show {
            json: arguments.json,
            quiet: arguments.quiet,
            dry_run,
            // Not over what the command writes to the same terminal.
            screen: (std::io::stderr().is_terminal() && !command_draws)
                .then(|| Screen::new(&head.policy, &head.nodes, dry_run)),
            nodes: head.nodes,
            failed: false,
        };
        Ok(Self {
            arguments,
            sampler,
            daemon,
            kernel,
            log,
            server,
            show,
        })
    }

    /// Looks after the target until it ends.
    pub fn finish(self) -> anyhow::Result<Watched> {
        let Self {
            arguments,
            sampler,
            mut daemon,
            mut kernel,
            mut log,
            server,
            mut show,
        } = self;
        let interval = Duration::from_secs_f64(arguments.interval);
        let log = log.as_mut().map(|log| log as &mut dyn Write);
        let mut metrics = Metrics::default();
        let mut moved = 0;
        let summary = watch(sampler, &mut daemon, &mut kernel, interval, log, |report| {
            moved += report.outcomes.moved;
            metrics.add(report);
            if let Some(server) = &server {
                server.show(&metrics);
            }
            show.interval(report);
        })?;
        let status = match summary.state {
            State::Ended(status) => status as u8,
            State::Running | State::Detached | State::TargetEnded => 0,
        };
        Ok(Watched { status, moved })
    }
}

/// Processes that were named are this daemon's alone; those that it comes across besides are left to
/// whoever has them.
fn refuse_taken(target: &Target, dry_run: bool) -> anyhow::Result<()> {
    let Target::Processes(pids) = target else {
        return Ok(());
    };
    for &pid in pids {
        let Some(started) = Linux::default().started(pid) else {
            continue; // The sampler says so.
        };
        if !dry_run && Claim::on(Identity { pid, started }).is_none() {
            return Err(Error::Taken { pid }.into());
        }
    }
    Ok(())
}

/// What is asked for where the policy does not say: as much as tells pages apart within a few decisions.
const RATE_WANTED_HZ: f64 = 4000.0;
/// The least to begin with.
const RATE_LEAST_HZ: f64 = 97.0;

/// What an access to memory takes where the machine does not say.
const MEMORY_LATENCY_NS: f64 = 100.0;

/// The mean over all pairs of nodes.
fn memory_latency_ns(machine: &Machine) -> f64 {
    let known: Vec<f64> = machine
        .latency_ns
        .iter()
        .flat_map(|matrix| matrix.iter().flatten())
        .flatten()
        .copied()
        .collect();
    match known.len() {
        0 => MEMORY_LATENCY_NS,
        count => known.iter().sum::<f64>() / count as f64,
    }
}

/// What to say where the kernel moves pages of its own accord; it is kept off a command that is
/// started here.
fn kernel_balances(command: bool) -> Option<&'static str> {
    if !balancing::is_on(Path::new("/proc")) {
        return None;
    }
    Some(match command && balancing::hold_off() {
        true => {
            "automatic NUMA balancing is on; it is kept off the command, by the memory policy `local`"
        }
        false => {
            "automatic NUMA balancing is on and moves the same pages by its own rules; `sysctl \
             kernel.numa_balancing=0` turns it off, for the whole machine: there is no switch for a process that runs"
        }
    })
}

/// The policy with its parameters.
fn policy(arguments: &Live) -> anyhow::Result<Policy> {
    let mut policy = Policy::from_name(&arguments.policy).ok_or_else(|| {
        Usage(format!(
            "no live policy `{}`; there are {}",
            arguments.policy,
            Policy::names().join(", ")
        ))
    })?;
    if arguments.threads && !policy.moves_threads() {
        return Err(Usage(format!(
            "--threads: {} says nothing about threads; traffic and auto do",
            policy.name()
        ))
        .into());
    }
    for setting in &arguments.set {
        let (name, value) = setting.split_once('=').ok_or_else(|| {
            Usage(format!(
                "--set {setting}: expected KEY=VALUE, such as trigger=4"
            ))
        })?;
        let known = policy
            .set(name, value)
            .map_err(|error| Usage(format!("--set {error}")))?;
        if !known {
            let names: Vec<String> = policy
                .parameters()
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            return Err(Usage(format!(
                "--set {setting}: {} has no parameter `{name}`; it has {}",
                policy.name(),
                names.join(", ")
            ))
            .into());
        }
    }
    Ok(policy)
}

/// Where reports are shown.
struct Show {
    json: bool,
    quiet: bool,
    dry_run: bool,
    nodes: Vec<u16>,
    /// Where it can be redrawn.
    screen: Option<Screen>,
    failed: bool,
}

impl Show {
    fn interval(&mut self, report: &Report) {
        if self.failed {
            return;
        }
        let result = if self.json {
            append(&mut std::io::stdout().lock(), &report.entry)
        } else if self.quiet {
            Ok(())
        } else {
            // The command's own output is on standard output.
            let text = match &mut self.screen {
                Some(screen) => screen.redraw(report),
                None => text(report, &self.nodes, self.dry_run),
            };
            std::io::stderr().lock().write_all(text.as_bytes())
        };
        // Nobody reads any more: the daemon's work goes on.
        self.failed = result.is_err();
    }
}

/// `--replay`.
fn decide_again(log: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let name = log.display().to_string();
    let file = File::open(log).with_context(|| name.clone())?;
    let replayed = replay(BufReader::new(file), &name)?;
    if replayed.cut_short && std::io::stderr().is_terminal() {
        terminal::say(&format!(
            "{name}: the last line is cut short and was left out"
        ));
    }
    terminal::print(&match json {
        true => format!(
            "{}\n",
            serde_json::json!({
                "log": name,
                "intervals": replayed.intervals,
                "decisions": replayed.decisions,
                "same": true,
                "cut_short": replayed.cut_short,
            })
        ),
        false => format!(
            "{} of {} made again: all the same{}\n",
            several(replayed.decisions, "decision"),
            several(replayed.intervals, "interval"),
            match replayed.cut_short {
                true => " (the last line is cut short and was left out)",
                false => "",
            }
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
