//! Recordings that lie, under each command that reads recordings (`tests/mutated --help`).

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nearpage_tests::mutated::{COMMANDS, Seeds, Trials};
use nearpage_tests::{nearpage_path, target};

/// Recordings that lie, under each command that reads recordings
///
/// A command fails that panics, is ended by a signal, takes longer than 20 s or more than 1 GiB. NEARPAGE_BIN names the
/// nearpage under test. --from N --count N+1 makes one again, from the same sound recordings.
#[derive(Parser)]
#[command(name = "tests/mutated")]
struct Options {
    /// Recordings are changed by choices drawn from this
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Up to this number
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// From this number on
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Where they are made, from the sound ones in DIR/seeds; those that a command fails on stay [default: target/mutated]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(failures) => ExitCode::from(u8::from(failures > 0)),
        Err(error) => {
            eprintln!("mutated: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the commands on the recordings; how many recordings a command failed on.
fn run(options: &Options) -> io::Result<u64> {
    let folder = options
        .folder
        .clone()
        .unwrap_or_else(|| target().join("mutated"));
    fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let nearpage = nearpage_path().canonicalize()?;
    let seeds = Seeds::new(&nearpage, &folder.join("seeds"))?;
    println!(
        "mutated: seed {}, from {} in {}",
        options.seed,
        seeds.names().join(", "),
        folder.display()
    );
    let own = folder.join(options.seed.to_string());
    fs::create_dir_all(&own)?;
    let mut trials = Trials::new(&nearpage, &seeds, &own);
    let mut failures = 0;
    for number in options.from..options.count {
        if let Some(failure) = trials.run(options.seed, number)? {
            failures += 1;
            println!("{failure}");
        }
    }
    let runs = (options.count.saturating_sub(options.from)) * COMMANDS.len() as u64;
    println!(
        "mutated: {runs} commands, {} took their recording; {failures} recordings were too much",
        trials.taken
    );
    for (name, used) in COMMANDS.iter().zip(trials.used) {
        println!(
            "  {name:7} at most {:6.2} s and {:5.1} MiB",
            used.time.as_secs_f64(),
            used.memory as f64 / f64::from(1 << 20)
        );
    }
    Ok(failures)
}
