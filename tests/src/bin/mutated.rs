//! Recordings that lie, under each command that reads recordings (`tests/mutated --help`).

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use nearpage_tests::mutated::{COMMANDS, Seeds, Trials};
use nearpage_tests::{nearpage_path, target};

const HELP: &str = "\
Recordings that lie, under each command that reads recordings.

Usage: tests/mutated [--seed N] [--count N] [--from N] [--folder DIR]

  --seed N      recordings are changed by choices drawn from this (1)
  --count N     up to this number (2000)
  --from N      from this number on (0)
  --folder DIR  where they are made, from the sound ones in DIR/seeds (target/mutated); those that a command fails on stay

A command fails that panics, is ended by a signal, takes longer than 20 s or more than 1 GiB. NEARPAGE_BIN names the
nearpage under test. --from N --count N+1 makes one again, from the same sound recordings.
";

struct Options {
    seed: u64,
    count: u64,
    from: u64,
    folder: PathBuf,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seed: 1,
        count: 2000,
        from: 0,
        folder: target().join("mutated"),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{word} needs a value"))?;
        let number = || {
            value
                .parse()
                .map_err(|_| format!("{word} {value}: not a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = number()?,
            "--count" => options.count = number()?,
            "--from" => options.from = number()?,
            "--folder" => options.folder = PathBuf::from(value),
            _ => return Err(format!("{word}: not an option")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match options().map(|options| run(&options)) {
        Ok(Ok(failures)) => ExitCode::from(u8::from(failures > 0)),
        Ok(Err(error)) => {
            eprintln!("mutated: {error}");
            ExitCode::from(2)
        }
        Err(message) => {
            eprint!("mutated: {message}\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// Runs the commands on the recordings; how many recordings a command failed on.
fn run(options: &Options) -> io::Result<u64> {
    fs::create_dir_all(&options.folder)?;
    let folder = options.folder.canonicalize()?;
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
