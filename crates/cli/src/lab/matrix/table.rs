//! Table of a matrix's results: the seconds of each setting beside those of the first setting.

use std::collections::BTreeMap;
use std::fmt::Write;

use nearpage_amount::{percent, signed_change};
use nearpage_runner::LabCounts;
use schemars::JsonSchema;
use serde::Serialize;

use super::cell::{Cell, Spec};

/// What `lab matrix --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MatrixOutput {
    /// Version of this form.
    version: u32,
    /// Rows in the file's order.
    rows: Vec<Row>,
    /// Runs that were not made.
    not_run: Vec<String>,
    /// Runs without a result, with causes.
    failed: Vec<Failed>,
}

/// Results of a command on a machine in a setting.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Row {
    /// Name of the command.
    command: String,
    /// Name of the machine.
    machine: String,
    /// Name of the setting.
    setting: String,
    /// Runs with a result.
    runs: Vec<Run>,
    /// Median guest seconds; null without a run.
    seconds: Option<f64>,
    /// Median, over the seeds that both settings have, of the seconds divided by those of the first setting of the same
    /// command and machine.
    times_first: Option<f64>,
}

/// A run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Run {
    /// Seed of the emulator's random numbers.
    seed: u32,
    /// Guest seconds: the number that the command printed, or the time of the whole command.
    seconds: f64,
    /// Guest seconds of the whole command, or of its stable phase.
    guest_s: Option<f64>,
    /// Misses to the memory of the CPU's own node.
    local_misses: Option<u64>,
    /// Misses to the memory of other nodes.
    remote_misses: Option<u64>,
    /// Share of the misses that the memory of one node served: of the node that served most. Two runs of the same setting
    /// differ in it if the kernel moved the thread that filled an array.
    most_on_one_node: Option<f64>,
    /// Time that all CPUs together waited for misses.
    stall_s: Option<f64>,
    /// Pages that automatic balancing migrated.
    migrated_by_balancing: Option<u64>,
    /// Pages that were migrated by other means.
    migrated_otherwise: Option<u64>,
    /// Seconds on the host.
    host_s: Option<f64>,
}

/// A run without a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Failed {
    /// Command, machine, setting and seed of the run.
    run: String,
    /// Cause of the failure.
    cause: String,
}

impl Run {
    fn new(spec: &Spec, cell: &Cell) -> Option<Self> {
        let seconds = cell.seconds.filter(|_| cell.failed.is_none())?;
        let result = cell.result.as_ref();
        let counts = result.and_then(|result| result.counts.as_ref());
        let pages = result.and_then(|result| result.pages.as_ref());
        Some(Self {
            seed: spec.seed,
            seconds,
            guest_s: counts.map(|counts| counts.guest_s),
            local_misses: counts.map(|counts| counts.local_misses),
            remote_misses: counts.map(|counts| counts.remote_misses),
            most_on_one_node: counts.and_then(most_on_one_node),
            stall_s: counts.map(|counts| counts.stall_s),
            migrated_by_balancing: pages.map(|pages| pages.migrated_by_balancing),
            migrated_otherwise: pages.map(|pages| pages.migrated_otherwise),
            host_s: counts.map(|counts| counts.host_s),
        })
    }

    /// Share of misses that are local.
    fn local(&self) -> Option<f64> {
        let (local, remote) = (self.local_misses? as f64, self.remote_misses? as f64);
        (local + remote > 0.0).then(|| local / (local + remote))
    }
}

/// Share of the misses that the memory of one node served, if there are any.
fn most_on_one_node(counts: &LabCounts) -> Option<f64> {
    let mut served: BTreeMap<usize, u64> = BTreeMap::new();
    for pair in &counts.pairs {
        *served.entry(pair.memory_node).or_default() += pair.misses;
    }
    let all: u64 = served.values().sum();
    let most = *served.values().max()?;
    (all > 0).then(|| most as f64 / all as f64)
}

pub struct Table {
    rows: Vec<Row>,
    not_run: Vec<String>,
    failed: Vec<Failed>,
}

impl Table {
    /// Makes the table of runs and the kept result of each.
    pub fn new(runs: &[Spec], kept: &[Option<Cell>]) -> Self {
        let mut table = Self {
            rows: Vec::new(),
            not_run: Vec::new(),
            failed: Vec::new(),
        };
        for (spec, cell) in runs.iter().zip(kept) {
            let at = table.row(spec);
            let Some(cell) = cell else {
                table.not_run.push(spec.title());
                continue;
            };
            if let Some(cause) = &cell.failed {
                table.failed.push(Failed {
                    run: spec.title(),
                    cause: cause.clone(),
                });
            }
            table.rows[at].runs.extend(Run::new(spec, cell));
        }
        for at in 0..table.rows.len() {
            let row = &table.rows[at];
            let same =
                |other: &&Row| (&other.command, &other.machine) == (&row.command, &row.machine);
            let first = table.rows.iter().find(same);
            let ratio = |run: &Run| {
                let of_first = first?.runs.iter().find(|other| other.seed == run.seed)?;
                (of_first.seconds > 0.0).then(|| run.seconds / of_first.seconds)
            };
            let times_first = median(row.runs.iter().filter_map(ratio).collect());
            let seconds = median(row.runs.iter().map(|run| run.seconds).collect());
            (table.rows[at].times_first, table.rows[at].seconds) = (times_first, seconds);
        }
        table
    }

    /// Position of a run's row, which is added if it is missing.
    fn row(&mut self, spec: &Spec) -> usize {
        let same = |row: &Row| {
            (&row.command, &row.machine, &row.setting)
                == (&spec.command, &spec.machine, &spec.setting)
        };
        self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Row {
                command: spec.command.clone(),
                machine: spec.machine.clone(),
                setting: spec.setting.clone(),
                runs: Vec::new(),
                seconds: None,
                times_first: None,
            });
            self.rows.len() - 1
        })
    }

    pub fn to_json(&self) -> MatrixOutput {
        MatrixOutput {
            version: nearpage_recording::JSON_VERSION,
            rows: self.rows.clone(),
            not_run: self.not_run.clone(),
            failed: self.failed.clone(),
        }
    }

    /// CSV with a line for each run.
    pub fn to_csv(&self) -> String {
        let mut text =
            "command,machine,setting,seed,seconds,guest_s,local_misses,remote_misses,most_on_one_node,stall_s,\
                        migrated_by_balancing,migrated_otherwise,host_s\n"
                .to_owned();
        let number =
            |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let figure = |figure: Option<f64>| {
            figure
                .map(|figure| format!("{figure:.6}"))
                .unwrap_or_default()
        };
        for row in &self.rows {
            for run in &row.runs {
                // Names have no commas and no quotes, so the fields need no quoting.
                let fields = [
                    row.command.clone(),
                    row.machine.clone(),
                    row.setting.clone(),
                    run.seed.to_string(),
                    format!("{:.6}", run.seconds),
                    figure(run.guest_s),
                    number(run.local_misses),
                    number(run.remote_misses),
                    figure(run.most_on_one_node),
                    figure(run.stall_s),
                    number(run.migrated_by_balancing),
                    number(run.migrated_otherwise),
                    figure(run.host_s),
                ];
                text += &fields.join(",");
                text.push('\n');
            }
        }
        text
    }

    /// Table in Markdown, which is readable on a terminal as well.
    pub fn to_text(&self) -> String {
        let head = [
            "command", "machine", "setting", "seconds", "range", "of first", "local", "one node",
            "migrated",
        ];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(
            self.rows
                .iter()
                .filter(|row| !row.runs.is_empty())
                .map(Row::fields),
        );
        let width = |column: usize| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut text = String::new();
        for (number, line) in lines.iter().enumerate() {
            for (column, (field, width)) in line.iter().zip(&widths).enumerate() {
                // Names are aligned to the left, numbers to the right.
                let _ = match column < 3 {
                    true => write!(text, "| {field:<width$} "),
                    false => write!(text, "| {field:>width$} "),
                };
            }
            text += "|\n";
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let _ = match column < 3 {
                        true => write!(text, "|{}", "-".repeat(width + 2)),
                        false => write!(text, "|{}:", "-".repeat(width + 1)),
                    };
                }
                text += "|\n";
            }
        }
        let mut list = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                let _ = write!(text, "\n{title}:\n\n");
                lines.iter().for_each(|line| text += &format!("- {line}\n"));
            }
        };
        let failed = |failed: &Failed| format!("{}: {}", failed.run, failed.cause);
        list("Failed", self.failed.iter().map(failed).collect());
        list("Not run", self.not_run.clone());
        text
    }
}

impl Row {
    fn fields(&self) -> [String; 9] {
        let seconds = |seconds: f64| format!("{seconds:.3}");
        let or_nothing = |text: Option<String>| text.unwrap_or_default();
        let of_runs =
            |figure: fn(&Run) -> Option<f64>| median(self.runs.iter().filter_map(figure).collect());
        let all = self.runs.iter().map(|run| run.seconds);
        let (least, most) = (
            all.clone().fold(f64::INFINITY, f64::min),
            all.fold(0.0, f64::max),
        );
        let migrated =
            |run: &Run| Some((run.migrated_by_balancing? + run.migrated_otherwise?) as f64);
        [
            self.command.clone(),
            self.machine.clone(),
            self.setting.clone(),
            or_nothing(self.seconds.map(seconds)),
            match self.runs.len() {
                0 | 1 => String::new(),
                runs => format!("{}–{} ({runs})", seconds(least), seconds(most)),
            },
            or_nothing(self.times_first.map(|times| signed_change(times - 1.0))),
            or_nothing(of_runs(Run::local).map(percent)),
            or_nothing(of_runs(|run| run.most_on_one_node).map(percent)),
            or_nothing(of_runs(migrated).map(|pages| format!("{pages:.0}"))),
        ]
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => numbers.get(middle).copied(),
        _ => Some((numbers.get(middle.checked_sub(1)?)? + numbers.get(middle)?) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(setting: &str, seed: u32) -> Spec {
        let text = format!(
            r#"{{"command": "cg", "machine": "a", "setting": "{setting}", "seed": {seed}, "words": ["./cg"],
                "before": null, "modelled": "a", "cpus": null, "memory_mib": 512, "seconds_after": null}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn cell(spec: &Spec, seconds: Option<f64>) -> Cell {
        let failed = seconds.is_none().then_some("exit status 1");
        let value = serde_json::json!({"run": spec, "failed": failed, "seconds": seconds, "output": "", "result": null});
        serde_json::from_value(value).unwrap()
    }

    fn table() -> Table {
        let runs: Vec<Spec> = [1, 2, 3]
            .iter()
            .flat_map(|seed| [spec("first touch", *seed), spec("plan", *seed)])
            .collect();
        let seconds = [Some(2.0), Some(1.0), Some(4.0), Some(3.0), Some(9.0), None];
        let mut kept: Vec<Option<Cell>> = runs
            .iter()
            .zip(seconds)
            .map(|(run, seconds)| Some(cell(run, seconds)))
            .collect();
        kept[4] = None;
        Table::new(&runs, &kept)
    }

    #[test]
    fn a_setting_is_compared_with_the_first_seed_by_seed() {
        let output = table().to_json();
        let figures: Vec<_> = output
            .rows
            .iter()
            .map(|row| (row.seconds, row.times_first))
            .collect();
        assert_eq!(figures, [(Some(3.0), Some(1.0)), (Some(2.0), Some(0.625))]);
        assert_eq!(output.not_run, ["cg, a, first touch, seed 3"]);
        assert_eq!(output.failed[0].cause, "exit status 1");
    }

    #[test]
    fn the_share_of_one_memory_shows_where_data_lay() {
        let run = spec("first touch", 1);
        let mut cell = cell(&run, Some(1.0));
        cell.result = serde_json::from_str(include_str!("../page_run.json")).unwrap();
        let table = Table::new(&[run], &[Some(cell)]);
        // 97,689 of 129,841 misses go to node 2.
        let text = table.to_text();
        assert!(text.contains("| one node |"), "{text}");
        assert!(text.contains("|     75 % |"), "{text}");
        let csv = table.to_csv();
        assert!(csv.contains(",0.752374,"), "{csv}");
    }

    #[test]
    fn the_text_names_what_is_missing() {
        let text = table().to_text();
        assert!(text.contains("| 1.000–3.000 (2) |  -37.5 % |"), "{text}");
        assert!(
            text.contains("Failed:\n\n- cg, a, plan, seed 3: exit status 1\n"),
            "{text}"
        );
        assert!(
            text.ends_with("Not run:\n\n- cg, a, first touch, seed 3\n"),
            "{text}"
        );
        let csv = table().to_csv();
        assert_eq!(csv.lines().count(), 5);
        assert!(csv.contains("\ncg,a,plan,2,3.000000,,,,,,,,\n"), "{csv}");
    }
}
