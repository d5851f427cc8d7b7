//! Programs whose accesses are known, recorded, planned and judged (`tests/generated --help`).

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nearpage_tests::generated::{Program, Run, Setting, Truth, judge, source};
use nearpage_tests::{nearpage_path, target};

/// Programs whose accesses are known, recorded, planned and judged
///
/// NEARPAGE_BIN names the nearpage under test.
#[derive(Parser)]
#[command(name = "tests/generated")]
struct Options {
    /// The first program is drawn from this
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many programs, of consecutive seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Where programs and recordings are made, each in a folder of its own [default: target/generated]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print the program's table of cache lines by page and thread, and stop
    #[arg(long)]
    truth: bool,
    /// Print the program, and stop
    #[arg(long)]
    source: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generated: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let folder = options
        .keep
        .clone()
        .unwrap_or_else(|| target().join("generated"));
    for seed in options.seed..options.seed + options.seeds {
        let program = Program::draw(seed);
        if options.source {
            print!("{}", source(&program));
            continue;
        }
        if options.truth {
            let truth = Truth::of(&program, 1, program.team, program.passes);
            print!("{}", truth.table(&program, 1));
            continue;
        }
        println!("{program}");
        let run = Run::new(&program, &nearpage_path(), &folder.join(seed.to_string()))?;
        run.record("recorded", 1, program.team, program.passes)?;
        let plan = run.plan("recorded")?;
        let setting = Setting {
            recording: "recorded",
            size: 1,
            team: program.team,
            passes: program.passes,
        };
        let judgement = judge(&program, &run, &plan, setting)?;
        println!(
            "{:10} {:14} {:>6} {:>6} {:>5} {:>5} {:>5} {:3} {:30} decision",
            "object", "kind", "lines", "score", "plan", "best", "touch", "", "pattern"
        );
        for object in &judgement.objects {
            let [planned, best, touch] = object.local.map(|local| 100.0 * local);
            println!(
                "{:10} {:14} {:5.1}% {:6.3} {planned:4.0}% {best:4.0}% {touch:4.0}% {} {:30} {}",
                object.name,
                object.kind,
                100.0 * object.share,
                object.score(),
                if object.is_pattern_right {
                    "   "
                } else {
                    "NOT"
                },
                object.pattern,
                object.decision
            );
        }
        println!("score {:.3}\n", judgement.score());
    }
    Ok(())
}
