//! Real programs under nearpage while things go wrong around them (`tests/chaos --help`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use nearpage_tests::chaos::{Event, Harness, available};
use nearpage_tests::{nearpage_path, target};

const HELP: &str = "\
Real programs under nearpage while things go wrong around them.

Usage: tests/chaos [--seed N] [--events N] [--from N] [--folder DIR] [--kill] [--list]

  --seed N      events are drawn from this (1)
  --events N    up to this number (1000)
  --from N      from this number on (after the last that the folder's log has)
  --folder DIR  where events happen, with events.log (target/chaos/SEED, with --kill kill-SEED); of harmful ones everything is kept there
  --kill        nearpage is killed in every one, at some moment
  --list        say what would happen

A run that was interrupted goes on where it was. NEARPAGE_BIN names the command under test.
";

struct Options {
    seed: u64,
    events: u64,
    from: Option<u64>,
    folder: Option<PathBuf>,
    kill: bool,
    list: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seed: 1,
        events: 1000,
        from: None,
        folder: None,
        kill: false,
        list: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let switch = match word.as_str() {
            "--list" => Some(&mut options.list),
            "--kill" => Some(&mut options.kill),
            _ => None,
        };
        if let Some(switch) = switch {
            *switch = true;
            continue;
        }
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
            "--events" => options.events = number()?,
            "--from" => options.from = Some(number()?),
            "--folder" => options.folder = Some(PathBuf::from(value)),
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
    let done = options().map(|options| run(&options));
    match done {
        Ok(Ok(harms)) => ExitCode::from(u8::from(harms > 0)),
        Ok(Err(error)) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
        Err(message) => {
            eprint!("chaos: {message}\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// Lets the events happen; how many of the log did harm.
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
            None => format!("{number} well {event}"),
            Some(harm) => {
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
