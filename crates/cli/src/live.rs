//! `nearpage live`: migrates pages of running programs.

use std::fs::File;
use std::io::{BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nearpage_amount::counted;
use nearpage_http::Endpoint;
use nearpage_live::{Entry, Limits, LivePolicy, Report, append, replay, text};
use nearpage_runner::{OnlineMigration, OnlineMigrationOptions, end_as};
use nearpage_screen::{Kind, Screen};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Live;
use crate::json::{self, OwnOutput};
use crate::shown::{self, DeferredLines, HandedOver};
use crate::{Usage, shell, terminal};

/// Shortest allowed interval in seconds; a shorter one has too few samples for decisions.
const INTERVAL_MIN_S: f64 = 0.01;
/// Shortest allowed time between two posts; more frequent posts would carry a few samples each.
const OTLP_INTERVAL_MIN_S: f64 = 1.0;

/// Line that `live --json` prints for each interval, with the contents of the log's line.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LiveOutput<'a> {
    /// Version of this form.
    version: u32,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// What `live --replay --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReplayOutput {
    /// Version of this form.
    version: u32,
    /// The log.
    log: String,
    /// Number of intervals in the log.
    intervals: u64,
    /// Number of decisions that were repeated.
    decisions: u64,
    /// Are all decisions as in the log?
    same: bool,
    /// Was the log's last line cut short? Such a line is left out.
    cut_short: bool,
}

pub fn main(arguments: Live) -> anyhow::Result<ExitCode> {
    if let Some(log) = &arguments.replay {
        return decide_again(log, arguments.json);
    }
    let options = options(&arguments)?;
    let own_output = arguments.json.then(OwnOutput::take).transpose()?;
    let json = own_output.as_ref().map(OwnOutput::file).transpose()?;
    let terminal = match arguments.json || arguments.quiet || arguments.plain {
        true => None,
        false => shown::screen_terminal(),
    };
    if terminal.is_some() {
        nearpage_screen::leave_on_signals();
    }
    let has_command = !arguments.command.is_empty();
    let output = (arguments.output.is_some() || (has_command && terminal.is_some()))
        .then(|| shown::output_file(arguments.output.as_deref()))
        .transpose()?;
    let migration = start(&arguments, &options, output.as_ref(), terminal.is_some())?;
    let mut show = Show {
        json,
        quiet: arguments.quiet,
        dry_run: migration.is_dry_run(),
        nodes: migration.head().nodes.clone(),
        screen: None,
        failed: false,
    };
    if let Some(terminal) = terminal {
        let command = has_command.then(|| -> std::io::Result<_> {
            let output = output.as_ref().map(File::try_clone).transpose()?;
            Ok(nearpage_screen::Command { output })
        });
        let subject = shown::subject(Kind::Live, migration.head(), show.dry_run);
        match Screen::start(subject, terminal, command.transpose()?) {
            Ok(screen) => show.screen = Some(screen),
            // The command runs already; lines replace the screen.
            Err(error) => terminal::say(&format!("no screen: {error}")),
        }
    }
    let has_screen = show.screen.is_some();
    let kept = DeferredLines::default();
    let say = |line: &str| match has_screen {
        _ if arguments.quiet => (),
        true => kept.say(line),
        false => terminal::say(line),
    };
    let migrated = migration.finish(&mut |report| show.interval(report), &say);
    let summary = show.screen.map(Screen::finish);
    if let (Some(output), None) = (output, &arguments.output) {
        // The command's output is optional: a closed pipe is no error.
        let _ = shown::print_output(output);
    }
    let lines = summary.unwrap_or_default();
    lines.iter().for_each(|line| terminal::say_plainly(line));
    kept.take().iter().for_each(|line| terminal::say(line));
    let migrated = migrated?;
    if let Some(log) = arguments
        .log
        .as_ref()
        .filter(|_| !arguments.quiet && !arguments.json)
    {
        terminal::next(&format!("nearpage view {}", shell::path(log)));
    }
    Ok(end_as(migrated.status))
}

/// Starts the command with its output in `output`, or attaches to the target.
fn start(
    arguments: &Live,
    options: &OnlineMigrationOptions,
    output: Option<&File>,
    has_screen: bool,
) -> anyhow::Result<OnlineMigration> {
    let kept = DeferredLines::default();
    let say = |line: &str| match output {
        _ if arguments.quiet => (),
        // The command has standard error, so lines wait until it is free.
        Some(_) => kept.say(line),
        None => terminal::say(line),
    };
    let everything = arguments.output.is_some();
    let handed_over = output
        .map(|file| HandedOver::output(file, everything))
        .transpose()?;
    let handed_over = match (handed_over, has_screen) {
        (Some(handed_over), true) => Some(handed_over.without_keys()?),
        (handed_over, _) => handed_over,
    };
    let started = OnlineMigration::start(options, &say);
    drop(handed_over);
    kept.take().iter().for_each(|line| terminal::say(line));
    Ok(started?)
}

/// Options for the runner, from the command line.
fn options(arguments: &Live) -> anyhow::Result<OnlineMigrationOptions> {
    let policy = policy(arguments)?;
    if arguments.interval < INTERVAL_MIN_S {
        return Err(Usage(format!("--interval {}: at least 10ms", arguments.interval)).into());
    }
    if arguments.max_stall <= 0.0 {
        return Err(Usage("--max-stall 0: at least 1ms".to_owned()).into());
    }
    Ok(OnlineMigrationOptions {
        interval: Duration::from_secs_f64(arguments.interval),
        moves_threads: arguments.move_threads,
        dry_run: arguments.dry_run,
        max_overhead: arguments.max_overhead / 100.0,
        rate_hz: arguments.rate,
        min_latency_cycles: arguments.min_latency,
        limits: Limits {
            stall_ns: (arguments.max_stall * 1e9) as u64,
            bytes_per_second: arguments.max_move_rate << 20,
        },
        pages: arguments.pages as usize,
        seed: arguments.seed,
        log: arguments.log.clone(),
        metrics_address: arguments.serve.clone(),
        collector: collector(arguments)?,
        ..OnlineMigrationOptions::new(arguments.target(), policy)
    })
}

/// Collector for profiles, and the time between two posts.
fn collector(arguments: &Live) -> anyhow::Result<Option<(Endpoint, Duration)>> {
    let Some(endpoint) = &arguments.otlp else {
        return Ok(None);
    };
    if arguments.otlp_interval < OTLP_INTERVAL_MIN_S {
        let wording = format!("--otlp-interval {}: at least 1s", arguments.otlp_interval);
        return Err(Usage(wording).into());
    }
    let every = Duration::from_secs_f64(arguments.otlp_interval);
    Ok(Some((endpoint.clone(), every)))
}

/// The policy, with its parameters set.
fn policy(arguments: &Live) -> anyhow::Result<LivePolicy> {
    let mut policy = LivePolicy::from_name(&arguments.policy).ok_or_else(|| {
        Usage(format!(
            "no live policy `{}`; there are {}",
            arguments.policy,
            LivePolicy::names().join(", ")
        ))
    })?;
    if arguments.move_threads && !policy.allow_thread_moves() {
        return Err(Usage(format!(
            "--move-threads: {} says nothing about threads; carrefour and auto do",
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

/// Output of the intervals' reports.
struct Show {
    /// Standard output, for JSON.
    json: Option<File>,
    quiet: bool,
    dry_run: bool,
    nodes: Vec<u16>,
    screen: Option<Screen>,
    failed: bool,
}

impl Show {
    fn interval(&mut self, report: &Report) {
        if self.failed {
            return;
        }
        let result = if let Some(out) = &mut self.json {
            let line = LiveOutput {
                version: nearpage_recording::JSON_VERSION,
                entry: &report.entry,
            };
            append(out, &line)
        } else if self.quiet {
            Ok(())
        } else if let Some(screen) = &self.screen {
            screen.interval(report);
            Ok(())
        } else {
            // The command uses standard output, so reports go to standard error.
            let text = text(report, &self.nodes, self.dry_run);
            std::io::stderr().lock().write_all(text.as_bytes())
        };
        // A closed pipe stops the output; the daemon continues.
        self.failed = result.is_err();
    }
}

/// Repeats the decisions of a log (`--replay`).
fn decide_again(log: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let name = log.display().to_string();
    let file = File::open(log).with_context(|| name.clone())?;
    let replayed = replay(BufReader::new(file), &name)?;
    if replayed.cut_short && std::io::stderr().is_terminal() {
        terminal::say(&format!(
            "{name}: the last line is cut short and was left out"
        ));
    }
    if json {
        json::print(&ReplayOutput {
            version: nearpage_recording::JSON_VERSION,
            log: name,
            intervals: replayed.intervals,
            decisions: replayed.decisions,
            same: true,
            cut_short: replayed.cut_short,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&format!(
        "{} of {} made again: all the same{}\n",
        counted(replayed.decisions, "decision"),
        counted(replayed.intervals, "interval"),
        match replayed.cut_short {
            true => " (the last line is cut short and was left out)",
            false => "",
        }
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        live: Live,
    }

    fn typed(words: &[&str]) -> anyhow::Result<OnlineMigrationOptions> {
        let words = ["live"].iter().chain(words).chain(&["--", "cg"]);
        options(&Typed::try_parse_from(words)?.live)
    }

    #[test]
    fn options_default_to_the_runners() {
        let options = typed(&["--policy=auto"]).unwrap();
        let policy = LivePolicy::from_name("auto").unwrap();
        let default = OnlineMigrationOptions::new(options.target.clone(), policy);
        assert_eq!(format!("{options:?}"), format!("{default:?}"));
    }

    #[test]
    fn threads_are_moved_by_the_old_name_of_the_option_too() {
        for option in ["--move-threads", "--threads"] {
            assert!(typed(&["--policy=auto", option]).unwrap().moves_threads);
        }
        let error = typed(&["--policy=migrate", "--threads"]).unwrap_err();
        let message = "--move-threads: migrate says nothing about threads";
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[test]
    fn wrong_values_are_usage_errors() {
        for (words, message) in [
            (["--policy=best"], "no live policy `best`; there are "),
            (["--interval=1ms"], "--interval 0.001: at least 10ms"),
            (["--max-stall=0"], "--max-stall 0: at least 1ms"),
            (["--set=trigger"], "--set trigger: expected KEY=VALUE"),
            (
                ["--set=none=1"],
                "--set none=1: carrefour has no parameter `none`; it has ",
            ),
        ] {
            let error = typed(&words).unwrap_err();
            assert!(error.is::<Usage>(), "{error}");
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
}
