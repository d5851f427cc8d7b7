//! Runs every command that reads recordings on corrupted recordings (`tests/mutated --help`).

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nearpage_tests::mutated::{COMMANDS, Seeds, Trials};
use nearpage_tests::{nearpage_path, target};

/// Run every command that reads recordings on recordings with false content
///
/// A command fails if it panics, is ended by a signal, takes longer than 20 s, or needs more than 1 GiB. NEARPAGE_BIN
/// names the nearpage under test. --from N --count N+1 repeats recording N, given the same original recordings.
#[derive(Parser)]
#[command(name = "tests/mutated")]
struct Options {
    /// Seed of the changes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number after that of the last recording
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// Number of the first recording
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Folder for changed recordings, with originals in DIR/seeds; keeps those a command fails on [default:
    /// target/mutated]
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

/// Runs the commands on the recordings; returns on how many recordings a command failed.
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
