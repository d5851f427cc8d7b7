//! Generates programs whose accesses are known, records and plans them, and judges the plans (`tests/generated
//! --help`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use clap::Parser;
use nearpage_tests::generated::{
    Judgement, Kernel, Program, PublicTrial, RecordingOptions, Replay, Summary, Trial, Truth,
    kernels, replays_to_json, source,
};
use nearpage_tests::{nearpage_path, target};
use serde_json::Value;

/// Generate programs whose accesses are known, record and plan them, and judge the plans
///
/// Each program is recorded with default options and planned for a machine with several nodes. A plan's local share is
/// the share of fetched cache lines on the fetching thread's node. The score is the plan's local share relative to that
/// of the best static placement. An interrupted run of several seeds continues where it stopped, with the same build of
/// nearpage. NEARPAGE_BIN names the nearpage under test.
#[derive(Parser)]
#[command(name = "tests/generated")]
struct Options {
    /// Seed of the first program
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of programs, with consecutive seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Recordings of each program, whose decisions are compared
    #[arg(long, default_value_t = 1)]
    repeat: u64,
    /// Samples a second [default: that of `record`]
    #[arg(long, value_name = "HZ")]
    rate: Option<u64>,
    /// Folder for results.jsonl, programs and recordings, which all stay [default: target/generated, where recordings
    /// stay if there is one seed]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Judge the recordings that are in the folder already, to compare builds of nearpage
    #[arg(long, requires = "keep")]
    again: bool,
    /// Programs at a time; only 1, because programs would take the CPU from each other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1))]
    jobs: u64,
    /// Plan from two recordings of different sizes and teams, too, and judge the plan at a third size as well
    #[arg(long)]
    both: bool,
    /// Trace a few rounds of each program, too, and compare the plan's predicted time with a replay of every miss
    #[arg(long, conflicts_with = "public")]
    replay: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the program, and stop
    #[arg(long, conflicts_with = "truth")]
    source: bool,
    /// Print the program's table of cache lines by page and thread, and stop
    #[arg(long)]
    truth: bool,
    /// Judge public benchmark kernels by their full traces, instead of generated programs
    #[arg(long)]
    public: bool,
    /// Only public kernels whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "", requires = "public")]
    kernel: String,
    /// Size for --truth
    #[arg(long, default_value_t = 1)]
    size: u64,
    /// Number of threads for --truth
    #[arg(long)]
    threads: Option<u64>,
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
    let seeds = options.seed..options.seed + options.seeds;
    if options.source || options.truth {
        for program in seeds.map(Program::draw) {
            print!("{}", description(options, &program));
        }
        return Ok(());
    }
    let folder = options.keep.clone();
    let folder = folder.unwrap_or_else(|| target().join("generated"));
    fs::create_dir_all(&folder)?;
    if options.public {
        return public(options, &folder);
    }
    let build = build(&nearpage_path())?;
    let file = folder.join("results.jsonl");
    let mut results = Vec::new();
    let known = fs::read_to_string(&file).unwrap_or_default();
    let known: Vec<Value> = known
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    for seed in seeds {
        let is_this = |result: &&Value| {
            result["seed"] == seed
                && result["build"] == build.as_str()
                && result["recordings"] == options.repeat
                && result["rate"].as_u64() == options.rate
                && result["both"].is_null() != options.both
                && result.get("replay").is_some() == options.replay
        };
        if let Some(result) = known.iter().find(is_this).filter(|_| options.seeds > 1) {
            results.push(result.clone());
            continue;
        }
        let program = Program::draw(seed);
        let own = folder.join(seed.to_string());
        if !options.json {
            println!("{program}");
        }
        let trial = Trial::new(
            program,
            &nearpage_path(),
            &own,
            options.repeat,
            RecordingOptions {
                rate: options.rate,
                reuses: options.again,
                is_of_both: options.both,
            },
        )?;
        if !options.json {
            println!("{}", table(&trial));
        }
        let mut result = trial.to_json();
        if options.replay {
            let replay = trial.replay(&nearpage_path(), &own)?;
            result["replay"] = replay.map_or(Value::Null, Replay::to_json);
            if !options.json {
                println!("{}", replay_words(replay));
            }
        }
        result["build"] = build.as_str().into();
        result["recordings"] = options.repeat.into();
        result["rate"] = options.rate.into();
        let mut log = OpenOptions::new().create(true).append(true).open(&file)?;
        writeln!(log, "{result}")?;
        results.push(result);
        if options.seeds > 1 && options.keep.is_none() {
            fs::remove_dir_all(own)?;
        }
    }
    print_figures(options, &results);
    Ok(())
}

/// Prints one program's results as JSON, or the figures over several programs.
fn print_figures(options: &Options, results: &[Value]) {
    let summary = Summary::of(results);
    let replays = results
        .iter()
        .filter_map(|one| Replay::from_json(&one["replay"]));
    let replays = replays_to_json(&replays.collect::<Vec<_>>());
    match (options.json, options.seeds) {
        (true, 1) => results.iter().for_each(|result| println!("{result}")),
        (true, _) => {
            let mut figures = summary.to_json();
            figures["replays"] = replays.unwrap_or_default();
            println!("{figures}");
        }
        (false, 1) => {}
        (false, _) => {
            print!("{summary}");
            if let Some(replays) = replays {
                println!("\nreplayed plans: {replays}");
            }
        }
    }
}

/// A line about a replay.
fn replay_words(replay: Option<Replay>) -> String {
    replay.map_or("the plan changes no time\n".to_owned(), |replay| {
        let [predicted, replayed] =
            [replay.predicted, replay.replayed].map(|part| 100.0 * (part - 1.0));
        format!(
            "time of the parallel part: predicted {predicted:+.1} %, replayed {replayed:+.1} %\n"
        )
    })
}

/// Judges public kernels: the gain of plans from samples, relative to the gain of plans from traces.
fn public(options: &Options, folder: &Path) -> io::Result<()> {
    let mut results = Vec::new();
    if !options.json {
        println!(
            "{:17} {:>8} {:>14} {:>16} {:>6}",
            "kernel", "accesses", "gain of trace", "gain of samples", "part"
        );
    }
    let chosen = |kernel: &Kernel| kernel.name.contains(&options.kernel);
    for kernel in kernels().into_iter().filter(chosen) {
        let own = folder.join(kernel.name.replace(' ', "-"));
        let trial = match PublicTrial::new(&kernel, &nearpage_path(), &own, options.again) {
            Ok(trial) => trial,
            Err(error) => {
                eprintln!("{} (package {}): {error}", kernel.name, kernel.package);
                continue;
            }
        };
        let [full, sampled] = trial.gains().map(|gain| 100.0 * gain);
        let part = trial
            .part()
            .map_or("-".to_owned(), |part| format!("{part:.2}"));
        if !options.json {
            println!(
                "{:17} {:8} {full:12.1} % {sampled:14.1} % {part:>6}",
                kernel.name, trial.accesses
            );
        }
        results.push(trial);
    }
    let mut parts: Vec<f64> = results.iter().filter_map(PublicTrial::part).collect();
    parts.sort_by(f64::total_cmp);
    if options.json {
        let kernels: Vec<Value> = results.iter().map(PublicTrial::to_json).collect();
        println!("{}", Value::from(kernels));
    } else {
        if let [worst, ..] = parts[..] {
            let median = parts[parts.len() / 2];
            println!(
                "part of {} kernels with 5 % or more to gain: median {median:.2}, worst {worst:.2}",
                parts.len()
            );
        }
        let lost = results.iter().filter(|trial| trial.gains()[1] < -0.01);
        println!(
            "plans from samples that lose more than 1 %: {} of {}",
            lost.count(),
            results.len()
        );
    }
    Ok(())
}

/// Text printed for --source or --truth.
fn description(options: &Options, program: &Program) -> String {
    if options.source {
        return source(program);
    }
    let team = options.threads.unwrap_or(program.team);
    let truth = Truth::of(
        program,
        options.size,
        team,
        program.whole_rounds(program.passes, team),
    );
    truth.table(program, options.size)
}

/// Identifies a build of nearpage, so that its results are not mixed with another build's.
fn build(nearpage: &Path) -> io::Result<String> {
    let metadata = fs::metadata(nearpage)?;
    let age = metadata.modified()?.duration_since(UNIX_EPOCH);
    let age = age.map_err(io::Error::other)?.as_secs();
    Ok(format!("{age}-{}", metadata.len()))
}

/// A row for each object, with its detected pattern and its decision.
fn table(trial: &Trial) -> String {
    let mut text = format!(
        "{:10} {:14} {:>6} {:>6} {:>5} {:>5} {:>5} {:>6} {:3} {:30} decision\n",
        "object", "kind", "lines", "score", "plan", "best", "touch", "other", "", "pattern"
    );
    let objects = trial.own.objects.iter().zip(&trial.other.objects);
    for (number, (object, other)) in objects.enumerate() {
        let [planned, best, touch] = object.local.map(|local| 100.0 * local);
        text += &format!(
            "{:10} {:14} {:5.1}% {:6.3} {planned:4.0}% {best:4.0}% {touch:4.0}% {:6.3} {} {:30} {}\n",
            object.name,
            object.kind,
            100.0 * object.share,
            object.score(),
            other.score(),
            if object.is_pattern_right {
                "   "
            } else {
                "NOT"
            },
            object.pattern,
            object.decision
        );
        for again in trial.decided_otherwise(number) {
            text += &format!(
                "{:10} otherwise with {} samples: {}, {}\n",
                "", again.samples, again.pattern, again.decision
            );
        }
    }
    let scores = [&trial.own, &trial.other].map(Judgement::score);
    let (size, team) = trial.program.other;
    text += &format!(
        "score {:.3} from {} accesses; {:.3} at size {size} with {team} threads",
        scores[0], trial.own.accesses, scores[1]
    );
    if let Some([before, after]) = trial.own.predicted {
        let [planned, best, touch] = trial.own.local.map(|local| 100.0 * local);
        text += &format!(
            "; local: first touch {touch:.0} % (predicted {:.0} %), plan {planned:.0} % ({:.0} %), best {best:.0} %",
            100.0 * before,
            100.0 * after
        );
    }
    if let Some(both) = &trial.both {
        let [own, other, third] = both.planned.each_ref().map(Judgement::score);
        let alone = both.third_of_first.score();
        text += &format!(
            "; plan of both {own:.3}, {other:.3} at the other size, {third:.3} at a third (of the first alone {alone:.3})"
        );
    }
    let (alike, of) = trial.decided_alike();
    if of > 0 {
        text += &format!("; {alike} of {of} objects decided alike");
    }
    text + "\n"
}
