//! Runs real programs under nearpage while things go wrong around them (`tests/chaos --help`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nearpage_tests::chaos::{Event, Harness, Outcome, available};
use nearpage_tests::{nearpage_path, target};

/// Run real programs under nearpage while things go wrong around them
///
/// An interrupted run continues where it stopped. NEARPAGE_BIN names the nearpage under test.
#[derive(Parser)]
#[command(name = "tests/chaos")]
struct Options {
    /// Seed of the events
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the last event
    #[arg(long, default_value_t = 1000)]
    events: u64,
    /// Number of the first event [default: the one after the last in the folder's log]
    #[arg(long)]
    from: Option<u64>,
    /// Folder for events.log and for everything that harmful events leave [default: target/chaos/SEED, with --kill
    /// target/chaos/kill-SEED]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Kill nearpage in every event, at a random moment
    #[arg(long)]
    kill: bool,
    /// List the events without running them
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(harms) => ExitCode::from(u8::from(harms > 0)),
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the events; returns how many events in the log did harm.
fn run(options: &Options) -> io::Result<usize> {
    let programs = available();
    let folder = match &options.folder {
        Some(folder) => folder.clone(),
        None => {
            let kind = if options.kill { "kill-" } else { "" };
            target().join(format!("chaos/{kind}{}", options.seed))
        }
    };
    fs::create_dir_all(&folder)?;
    let log = folder.join("events.log");
    let before = fs::read_to_string(&log).unwrap_or_default();
    let draw = match options.kill {
        true => Event::killed,
        false => Event::draw,
    };
    let from = options.from.unwrap_or(before.lines().count() as u64);
    if options.list {
        for number in from..options.events {
            println!("{number} {}", draw(options.seed, number, &programs));
        }
        return Ok(0);
    }
    println!(
        "chaos: {} programs, seed {}, in {}",
        programs.len(),
        options.seed,
        folder.display()
    );
    let harness = Harness::new(&nearpage_path(), &folder)?;
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    let mut harms = before
        .lines()
        .filter(|line| line.contains(" HARM "))
        .count();
    for number in from..options.events {
        let event = draw(options.seed, number, &programs);
        let line = match harness.run(&event)? {
            Outcome::Well => format!("{number} well {event}"),
            Outcome::Unjudged => format!("{number} unjudged {event}"),
            Outcome::BrokenRules(harm) => {
                harms += 1;
                format!("{number} HARM {harm}").replace('\n', " | ")
            }
        };
        if line.contains(" HARM ") || number % 50 == 49 {
            println!("{line}");
        }
        writeln!(log, "{line}")?;
    }
    println!("chaos: {} events, {harms} harmful", options.events);
    Ok(harms)
}
