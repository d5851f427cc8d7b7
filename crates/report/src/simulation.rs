//! Text of the results of simulations, by policy.

mod course;
mod output;

use std::fmt::Write;

use nearpage_simulator::{Outcome, Split};
use schemars::JsonSchema;
use serde::Serialize;

use crate::emphasis::{BAD, alarm, painted};
use crate::printable::{printable, shorten, width};
use crate::table::{Column, lines, wrap};
use anstyle::Style;
use nearpage_amount::{count, counted, percent, time};

pub use self::course::{MovementsOutput, ObjectPages};
pub use self::output::{SimulationOutput, simulation_json};

/// The results of a simulation: one recording on one machine, or several that ran at once.
#[derive(Clone, Copy, Debug)]
pub struct Simulation<'a> {
    /// Name of the machine.
    pub machine: &'a str,
    /// Folders of the recordings.
    pub recordings: &'a [String],
    /// Page size of the recordings.
    pub page_bytes: u64,
    /// A result for each policy.
    pub outcomes: &'a [Outcome],
    /// Messages for the user about assumptions and approximations.
    pub notes: &'a [String],
    /// Objects on the recordings' pages, in order.
    pub objects: &'a [ObjectPages],
    /// Plans whose thread layout differs from the recording's.
    pub threads_elsewhere: &'a [ThreadsElsewhere],
}

/// A plan with a thread layout, and a recording with another layout. A replay keeps the recording's layout.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ThreadsElsewhere {
    /// Name of the policy in the results.
    pub policy: String,
    /// Folder of the recording.
    pub recording: String,
    /// Layout of the plan: `compact` or `scatter`.
    pub planned: &'static str,
    /// Layout of the recording; null if it is neither.
    pub recorded: Option<&'static str>,
}

impl Simulation<'_> {
    /// Printable names of the recordings.
    fn recorded(&self) -> String {
        let folders: Vec<String> = self.recordings.iter().map(|text| printable(text)).collect();
        folders.join(" and ")
    }
}

/// Parts of a bar, and the character of each.
const PARTS: [(&str, char); 5] = [
    ("computing", '█'),
    ("local memory", '▓'),
    ("remote memory", '▒'),
    ("moving pages", '░'),
    ("waiting", '·'),
];
const NAME_COLUMNS_MAX: usize = 24;
/// A policy whose time is above this multiple of the first policy's counts as slower.
const LOSES: f64 = 1.001;

/// A table, and a stacked bar for each policy as in Verghese's Figure 6.1, at most `columns_max` wide. Colour marks
/// policies that are slower than the first, and shares of remote accesses.
pub fn simulation_text(simulation: &Simulation<'_>, columns_max: usize, colour: bool) -> String {
    let Simulation {
        machine, outcomes, ..
    } = simulation;
    let mut text = String::new();
    let first = outcomes.first();
    let threads = first.map_or(0, |outcome| outcome.threads.len());
    let head = [
        format!("{} on {}", simulation.recorded(), printable(machine)),
        counted(threads as u64, "thread"),
        format!(
            "{} misses",
            count(first.map_or(0.0, |outcome| outcome.misses as f64))
        ),
        format!(
            "{} in 1000 instructions",
            first
                .and_then(Outcome::misses_per_kilo_instruction)
                .map_or("–".to_owned(), |rate| format!("{rate:.1}"))
        ),
    ];
    let _ = writeln!(text, "{}\n", wrap(&head, ", ", columns_max, 2));
    let names: Vec<String> = outcomes
        .iter()
        .map(|outcome| {
            let estimated = if outcome.estimated() {
                " (estimated)"
            } else {
                ""
            };
            printable(&outcome.policy) + estimated
        })
        .collect();
    let column = |title, rank, cell: &dyn Fn(&Outcome) -> String| Column {
        title,
        rank,
        cells: outcomes.iter().map(cell).collect(),
    };
    let latency = |ns: Option<f64>| ns.map_or("–".to_owned(), |ns| format!("{ns:.0}"));
    let columns = vec![
        column("time", 9, &|outcome| {
            let loses = first.is_some_and(|first| outcome.time_ns > first.time_ns * LOSES);
            let style = if loses { BAD } else { Style::new() };
            painted(&time(outcome.time_ns), style, colour)
        }),
        column("local", 8, &|outcome| {
            let local = outcome.local_share();
            painted(&percent(local), alarm(1.0 - local), colour)
        }),
        column("local ns", 4, &|outcome| latency(outcome.local_latency_ns)),
        column("remote ns", 5, &|outcome| {
            latency(outcome.remote_latency_ns)
        }),
        column("migrated", 7, &|outcome| {
            count((outcome.migrated + outcome.interleaved) as f64)
        }),
        column("replicated", 6, &|outcome| count(outcome.replicated as f64)),
        column("collapsed", 2, &|outcome| count(outcome.collapsed as f64)),
        column("imbalance", 3, &|outcome| {
            format!("{:.2}", outcome.controller_imbalance())
        }),
        column("pages", 1, &|outcome| count(outcome.pages_max as f64)),
    ];
    let (heading, rows) = lines(columns, "policy", &names, columns_max);
    for line in [heading].iter().chain(&rows) {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push_str(&bars(outcomes, &names, columns_max));
    for note in simulation.notes {
        let words: Vec<String> = note.split(' ').map(printable).collect();
        let _ = writeln!(text, "{}", wrap(&words, " ", columns_max, 2));
    }
    text
}

fn parts(split: &Split) -> [f64; 5] {
    let Split {
        compute_ns,
        local_stall_ns,
        remote_stall_ns,
        move_ns,
        wait_ns,
    } = *split;
    [
        compute_ns,
        local_stall_ns,
        remote_stall_ns,
        move_ns,
        wait_ns,
    ]
}

/// Bars of the time of all threads together; the first policy's time is 100.
fn bars(outcomes: &[Outcome], names: &[String], columns_max: usize) -> String {
    let total = |outcome: &Outcome| outcome.split.total_ns();
    let longest = outcomes.iter().map(total).fold(0.0, f64::max);
    let Some(base) = outcomes.first().map(total).filter(|&base| base > 0.0) else {
        return String::new();
    };
    let name_columns = names
        .iter()
        .map(|name| width(name))
        .max()
        .unwrap_or(0)
        .min(NAME_COLUMNS_MAX);
    // Room for two gaps and a figure of at most six digits.
    let room = columns_max.saturating_sub(name_columns + 2 + 7).max(10);
    let mut text = format!("\nall threads' time, {} = 100\n", names[0]);
    for (outcome, name) in outcomes.iter().zip(names) {
        let name = shorten(name, name_columns);
        let mut bar = String::new();
        let (mut sum, mut drawn) = (0.0, 0);
        for (part, (_, character)) in parts(&outcome.split).into_iter().zip(PARTS) {
            // Ends are rounded instead of lengths, so that the total length is right.
            sum += part;
            let end = (sum / longest * room as f64).round() as usize;
            bar.extend(std::iter::repeat_n(character, end - drawn));
            drawn = end;
        }
        let padding = " ".repeat(name_columns - width(&name));
        let _ = writeln!(
            text,
            "{name}{padding}  {bar} {:.0}",
            100.0 * total(outcome) / base
        );
    }
    let legend = PARTS.map(|(words, character)| format!("{character} {words}"));
    let _ = writeln!(text, "{}", wrap(&legend, "  ", columns_max, 0));
    text
}

#[cfg(test)]
mod tests {
    use nearpage_simulator::{MoveSplit, ThreadOutcome};

    use serde_json::{Value, json};

    use super::*;

    fn outcome(policy: &str, parts: [f64; 5]) -> Outcome {
        let [
            compute_ns,
            local_stall_ns,
            remote_stall_ns,
            move_ns,
            wait_ns,
        ] = parts.map(|part| part * 1e9);
        Outcome {
            policy: policy.to_owned(),
            parameters: vec![
                ("trigger", "128".to_owned()),
                ("source", "cache".to_owned()),
            ],
            time_ns: 2.5e9,
            parallel_ns: 2.0e9,
            split: Split {
                compute_ns,
                local_stall_ns,
                remote_stall_ns,
                move_ns,
                wait_ns,
            },
            threads: vec![ThreadOutcome::default(); 4],
            misses: 1_234_567,
            local: 308_642,
            local_latency_ns: Some(300.0),
            remote_latency_ns: None,
            controller_load: vec![4, 2, 2, 0],
            memory_nodes: 0b1111,
            link_use: vec![],
            instructions: 20_000_000,
            clock_ghz: 0.3,
            migrated: 12_345,
            replicated: 7,
            interleaved: 0,
            collapsed: 1,
            refreshed: 0,
            reclaimed: 0,
            ping_pong: 2,
            multiple: 3,
            incorrect: 4,
            pages_mean: 812.5,
            pages_max: 900,
            move_split: None,
            energy_j: None,
            signals_missing: 0,
            threads_moved: 0,
            moves_left: 0,
            refilled_lines: 0,
            overcommitted: 0,
            movements: None,
            timeline: None,
        }
    }

    pub(super) fn outcomes() -> Vec<Outcome> {
        vec![
            outcome("first-touch", [1.0, 0.5, 2.5, 0.0, 0.0]),
            outcome("migrate-replicate", [1.0, 1.0, 0.5, 0.3, 0.2]),
        ]
    }

    fn simulation<'a>(outcomes: &'a [Outcome], recordings: &'a [String]) -> Simulation<'a> {
        Simulation {
            machine: "flash-8",
            recordings,
            page_bytes: 4096,
            outcomes,
            notes: &[],
            objects: &[],
            threads_elsewhere: &[],
        }
    }

    fn recordings() -> Vec<String> {
        vec!["cg.nearpage".to_owned()]
    }

    #[test]
    fn text_fits_terminals() {
        let outcomes = outcomes();
        for columns in [60, 80, 100, 200] {
            let text = simulation_text(
                &simulation(&outcomes, &recordings()),
                columns,
                columns == 60,
            );
            assert!(
                text.lines().all(|line| width(line) <= columns),
                "{columns}:\n{text}"
            );
        }
        insta::assert_snapshot!(simulation_text(
            &simulation(&outcomes, &recordings()),
            80,
            false
        ));
    }

    #[test]
    fn estimates_are_marked_as_such() {
        let mut outcomes = outcomes();
        outcomes[1].threads_moved = 3;
        let recordings = ["a".to_owned(), "b\u{1b}[2J".to_owned()];
        let simulation = simulation(&outcomes, &recordings);
        let text = simulation_text(&simulation, 100, false);
        assert!(
            text.starts_with("a and b\u{fffd}[2J on flash-8, "),
            "{text}"
        );
        assert!(text.contains("migrate-replicate (estimated)"), "{text}");
        let json: Value = serde_json::from_str(&simulation_json(&simulation)).expect("JSON");
        assert_eq!(json["recording"], json!(recordings));
        assert_eq!(json["results"][0]["estimated"], false);
        assert_eq!(json["results"][1]["estimated"], true);
    }

    #[test]
    fn bars_are_as_long_as_their_time() {
        let outcomes = outcomes();
        let names = vec!["a".to_owned(), "b".to_owned()];
        let text = bars(&outcomes, &names, 50);
        let length = |line: &str| {
            line.chars()
                .filter(|c| PARTS.iter().any(|part| part.1 == *c))
                .count()
        };
        let bars: Vec<usize> = text.lines().skip(2).take(2).map(length).collect();
        assert_eq!(bars, [40, 30]);
        assert!(
            text.contains("▒ 100\n") && text.contains("· 75\n"),
            "{text}"
        );
    }

    #[test]
    fn json_has_every_key_of_the_format() {
        let mut outcomes = outcomes();
        outcomes[0].move_split = Some(MoveSplit {
            lock_ns: 2.5,
            ..MoveSplit::default()
        });
        let json: Value =
            serde_json::from_str(&simulation_json(&simulation(&outcomes, &recordings())))
                .expect("JSON");
        assert_eq!(json["results"][0]["move_split"]["lock_ns"], 2.5);
        assert_eq!(json["results"][1]["move_split"], Value::Null);
        assert_eq!(json["machine"], "flash-8");
        assert_eq!(json["recording"], "cg.nearpage");
        let result = json["results"][1].as_object().expect("result");
        for key in [
            "policy",
            "parameters",
            "time_ns",
            "parallel_ns",
            "program_ns",
            "compute_ns",
            "local_stall_ns",
            "remote_stall_ns",
            "move_ns",
            "wait_ns",
            "misses",
            "local_share",
            "local_latency_ns",
            "remote_latency_ns",
            "controller_imbalance",
            "link_imbalance",
            "controller_load",
            "link_use_mean",
            "misses_per_kilo_instruction",
            "instructions_per_cycle",
            "migrated",
            "replicated",
            "interleaved",
            "collapsed",
            "ping_pong",
            "multiple",
            "incorrect",
            "pages_mean",
            "pages_max",
            "move_split",
            "energy_j",
            "estimated",
            "timeline",
            "movements",
        ] {
            assert!(result.contains_key(key), "{key}");
        }
        assert_eq!(result["program_ns"], Value::Null, "of one program");
        assert_eq!(result["parameters"]["trigger"], 128);
        assert_eq!(result["parameters"]["source"], "cache");
        assert_eq!(result["remote_latency_ns"], Value::Null);
        // Expected: 20 million instructions in 2.8 s at 300 MHz.
        let rate = result["instructions_per_cycle"].as_f64().expect("number");
        assert!((rate - 20e6 / (2.8e9 * 0.3)).abs() < 1e-12);
    }
}
