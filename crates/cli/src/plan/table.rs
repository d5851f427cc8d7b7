//! Text of a decided plan.

use std::fmt::Write;

use anstyle::Style;
use nearpage_amount::{self as amount, bytes, counted, percent, signed_change, time};
use nearpage_attribution::Confidence;
use nearpage_plan::Placement;
use nearpage_planner::{
    DecidedPlan, Doubt, ErrorSource, Judged, ObjectPrediction, Outcome, PlanTime, Uncertainty,
};
use nearpage_report::emphasis::{BAD, DOUBTFUL, painted};
use nearpage_report::{counted_name, printable, shorten, width, wrapped};

/// A plan whose time is above this multiple of first touch's counts as slower.
const LOSES: f64 = 1.0005;
/// Objects below this share of the cost have no row, unless the plan places them.
const COST_SHARE_MIN: f64 = 0.005;
const ROWS_MAX: usize = 20;

/// A decided plan as a table, with its predicted time, changes during the run, warnings and notes.
pub fn to_text(decided: &DecidedPlan, width: usize, colour: bool) -> String {
    let paragraph = |words: &str| wrapped(&printable(words), width) + "\n";
    let program = match decided.program.as_str() {
        "" => "program",
        named => named,
    };
    let threads = counted(decided.threads.threads as u64, "thread");
    let mut text = paragraph(&format!(
        "{program} on {}, {threads}: where accesses would go (policy {}; {})",
        decided.machine,
        decided.policy,
        decided.threads.words()
    ));
    text.push('\n');
    if decided.prediction.accesses <= 0.0 {
        let words = "no accesses were recorded that a plan could place; record for longer, or at a higher --rate";
        return text + &paragraph(words);
    }
    let rows = rows(&decided.prediction.objects);
    let placements = rows.iter().map(|object| placement(object));
    let columns = Columns::that_fit(width, placements);
    text += &objects(decided, &rows, (&columns, width), colour);
    text += &later(decided, &columns, width);
    text.extend(
        decided
            .time
            .iter()
            .flat_map(|time| {
                let loses = time.planned_ns > time.first_touch_ns * LOSES;
                let style = if loses { BAD } else { Style::new() };
                let words = paragraph(&time_in_words(time));
                let sure = uncertainty_in_words(time).map(|words| paragraph(&words));
                [Some(painted(&words, style, colour)), sure]
            })
            .flatten(),
    );
    let assumed = decided.assumed.iter();
    text.extend(assumed.map(|words| paragraph(&format!("assumed: {words}"))));
    text.extend(decided.notes.iter().map(|note| paragraph(note)));
    let warnings = decided.warnings.iter();
    text.extend(warnings.map(|warning| {
        let words = paragraph(&format!("warning: {warning}"));
        painted(&words, DOUBTFUL, colour)
    }));
    text
}

/// Objects that have a row in the table.
fn rows(objects: &[ObjectPrediction]) -> Vec<&ObjectPrediction> {
    let worth_a_row = |object: &&ObjectPrediction| {
        let has_own = !object.decisions.is_empty() && !object.unmatched;
        object.cost_share >= COST_SHARE_MIN || has_own
    };
    objects.iter().filter(worth_a_row).take(ROWS_MAX).collect()
}

/// Explanations of the marks that the rows have.
fn legend(rows: &[&ObjectPrediction]) -> Vec<String> {
    let unsure = || {
        format!(
            "? unsure: fewer than {} of the resamples of this recording lead to the same placement",
            percent(Confidence::SURE)
        )
    };
    let assumed = || "* assumed: first touched by the thread that allocated it".to_owned();
    let any = |has_mark: fn(&ObjectPrediction) -> bool| rows.iter().any(|object| has_mark(object));
    let unsure = any(is_unsure).then(unsure);
    let assumed = any(|object| object.first_touch_assumed).then(assumed);
    unsure.into_iter().chain(assumed).collect()
}

/// Text of the placement column.
fn placement(object: &ObjectPrediction) -> String {
    let kind = if object.unmatched { "unmatched: " } else { "" };
    let unsure = if is_unsure(object) { " ?" } else { "" };
    format!("{kind}{}{unsure}", object.placement)
}

/// Do many resamples of the recording lead to another placement?
fn is_unsure(object: &ObjectPrediction) -> bool {
    object
        .confidence
        .is_some_and(|share| share < Confidence::SURE)
}

/// A row for each object that matters, and totals of all objects.
fn objects(
    decided: &DecidedPlan,
    rows: &[&ObjectPrediction],
    (columns, width): (&Columns, usize),
    colour: bool,
) -> String {
    let prediction = &decided.prediction;
    let headings = [
        "size",
        "cost",
        "placement",
        "first touch",
        "interleave",
        "planned",
    ];
    let mut text = columns.line("object", headings.map(str::to_owned));
    let left_out = prediction.objects.len() - rows.len();
    for object in rows {
        let mark = if object.first_touch_assumed { "*" } else { "" };
        let cells = [
            bytes(object.size_bytes),
            percent(object.cost_share),
            placement(object),
            format!("{}{mark}", share(object.first_touch)),
            share(object.interleave),
            share(object.planned),
        ];
        let loses = object.planned.local_share < object.first_touch.local_share - 0.005;
        let style = if loses { BAD } else { Style::new() };
        let line = columns.line(&counted_name(&object.name, object.instances), cells);
        text.push_str(&painted(&line, style, colour));
    }
    if left_out > 0 {
        let _ = writeln!(text, "… and {left_out} more that matter less");
    }
    let totals = [
        prediction.first_touch,
        prediction.interleave,
        prediction.planned,
    ];
    text.push_str(&columns.total("local accesses, all objects", totals.map(share)));
    let label = match prediction.planned.mean_latency_ns {
        Some(_) => "mean latency in ns, uncontended",
        None => "mean distance, uncontended",
    };
    let means = totals.map(|outcome| format!("{:.0}", outcome.mean()));
    text.push_str(&columns.total(label, means));
    if let Some(share) = prediction.recorded_local_share {
        let words = format!(
            "while recorded, {} of the accesses whose node is known were local",
            percent(share)
        );
        let _ = writeln!(text, "{}", wrapped(&words, width));
    }
    for words in legend(rows) {
        let _ = writeln!(text, "{}", wrapped(&words, width));
    }
    text
}

/// Changes while the program runs: online migration, and placements and thread moves of phases.
fn later(decided: &DecidedPlan, columns: &Columns, width: usize) -> String {
    let mut text = String::new();
    if let Some(parameters) = &decided.online_migration {
        let mut words = "auto moves pages while the program runs".to_owned();
        if !parameters.is_empty() {
            let parameters = parameters.iter();
            let parameters: Vec<String> = parameters
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            let _ = write!(words, ", with {}", parameters.join(", "));
        }
        let _ = writeln!(text, "{}", wrapped(&printable(&words), width));
    }
    let team = decided.plan.teams.first();
    for phase in &decided.plan.phases {
        let _ = writeln!(
            text,
            "from when {} is first executed:",
            printable(&phase.function)
        );
        if let Some(team) = team.filter(|_| !phase.threads.is_empty()) {
            let places: Vec<String> = phase.threads.iter().map(u32::to_string).collect();
            let _ = writeln!(
                text,
                "  threads 0, 1 … of {} take the places of {}",
                printable(&team.name),
                places.join(", ")
            );
        }
        for decision in &phase.decisions {
            let placement = match &decision.placement {
                Placement::FirstTouch => "near the thread that uses it next".to_owned(),
                placement => placement.to_string(),
            };
            let _ = writeln!(
                text,
                "  {} {placement}",
                fitted(&decision.name, columns.name)
            );
        }
    }
    text
}

/// Columns of the table: name, size, cost, placement, first touch, interleave and planned, as far as they fit.
struct Columns {
    name: usize,
    /// 0: the column is left out.
    widths: [usize; 6],
}

/// Position of the placement column, which has words and is aligned to the left.
const PLACEMENT: usize = 2;
const PLACEMENT_MIN: usize = 12;

impl Columns {
    fn that_fit(columns: usize, placements: impl Iterator<Item = String>) -> Self {
        let mut widths = [10, 7, 19, 12, 11, 8];
        let longest = placements.map(|words| width(&words) + 2).max().unwrap_or(0);
        widths[PLACEMENT] = longest.max(widths[PLACEMENT]);
        let room = |widths: &[usize; 6]| columns.saturating_sub(widths.iter().sum());
        let (size, first_touch, interleave) = (0, 3, 4);
        for dispensable in [interleave, size, first_touch] {
            if room(&widths) < NAME_MIN {
                widths[dispensable] = 0;
            }
        }
        let missing = NAME_MIN.saturating_sub(room(&widths));
        widths[PLACEMENT] = widths[PLACEMENT].saturating_sub(missing).max(PLACEMENT_MIN);
        Self {
            name: room(&widths).clamp(NAME_MIN, NAME_MAX),
            widths,
        }
    }

    fn line(&self, name: &str, cells: [String; 6]) -> String {
        let mut line = fitted(name, self.name);
        for (column, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            match (width, column) {
                (0, _) => {}
                (_, PLACEMENT) => line += &format!("  {}", fitted(cell, width - 2)),
                _ => line += &format!("{cell:>width$}"),
            }
        }
        line.trim_end().to_owned() + "\n"
    }

    /// Totals of all objects: first touch, interleave and planned.
    fn total(&self, label: &str, figures: [String; 3]) -> String {
        let (before, after) = self.widths.split_at(PLACEMENT + 1);
        let mut line = fitted(label, self.name + before.iter().sum::<usize>());
        for (figure, width) in figures.iter().zip(after).filter(|(_, width)| **width > 0) {
            line += &format!("{figure:>width$}");
        }
        line + "\n"
    }
}

/// Minimum and maximum width of the name column.
const NAME_MIN: usize = 16;
const NAME_MAX: usize = 48;

/// Predicted time with the plan: for a run as long as the recorded one, and for runs of the planned length.
fn time_in_words(times: &PlanTime) -> String {
    let how = match times.by {
        Judged::Replay => "replayed",
        Judged::Model => "modelled with contention",
    };
    let instead = |[before_ns, after_ns]: [f64; 2]| {
        format!("{} instead of {}", time(after_ns), time(before_ns))
    };
    let recorded = [times.first_touch_ns, times.planned_ns];
    let scaled = [times.scaled_first_touch_ns, times.scaled_planned_ns];
    if recorded[0] == recorded[1] && scaled[0] == scaled[1] {
        return format!("time, {how}: {}, as under first touch", time(recorded[1]));
    }
    let mut words = format!(
        "time, {how}: {} under first touch{}",
        instead(recorded),
        by_how_much(recorded)
    );
    if times.runtime_scale > 1.0 {
        let _ = write!(
            words,
            "; {} with a parallel part {} times as long, for which it was decided{}",
            instead(scaled),
            times.runtime_scale,
            by_how_much(scaled)
        );
    }
    words
}

/// Uncertainty of the predicted time; `None` if there is none.
fn uncertainty_in_words(time: &PlanTime) -> Option<String> {
    let Uncertainty {
        change,
        model,
        model_less_replay,
        doubt,
        ..
    } = time.uncertainty;
    let change = change.filter(|[least, most]| most > least);
    let by_samples = change.map(|[least, most]| {
        format!(
            "in nine of ten recordings as long, the change lies between {} and {}",
            signed_change(least),
            signed_change(most)
        )
    });
    let by_model = model
        .filter(|model| change.is_some() && model.pairs > 0)
        .map(|model| {
            let whose = match model.source {
                ErrorSource::Benchmark => "replays",
                ErrorSource::History => "what was measured here",
            };
            format!(
                "nine of ten such predictions are within {} of {whose} on machines {}",
                percent(model.nine_in_ten),
                model.class.as_str()
            )
        });
    let of_replay = model_less_replay
        .filter(|_| time.planned_ns != time.first_touch_ns)
        .map(|less| {
            format!(
                "without the replay, the model would predict {} time",
                amount::change(less)
            )
        });
    let doubt = match doubt {
        Doubt::None => None,
        Doubt::Samples => Some("so that it may as well be the other way round".to_owned()),
        Doubt::Model => Some("most plans with so little to gain lost".to_owned()),
    };
    let words: Vec<String> = [by_samples, by_model, of_replay, doubt]
        .into_iter()
        .flatten()
        .collect();
    (!words.is_empty()).then(|| format!("how sure: {}", words.join("; ")))
}

/// Change of the time in parentheses; empty if the change rounds to 0 %.
fn by_how_much([before_ns, after_ns]: [f64; 2]) -> String {
    match after_ns / before_ns - 1.0 {
        -0.0005..0.0005 => String::new(),
        share => format!(" ({})", amount::change(share)),
    }
}

fn share(outcome: Outcome) -> String {
    percent(outcome.local_share)
}

/// Text without control characters, cut or padded to `columns`.
fn fitted(text: &str, columns: usize) -> String {
    let text = shorten(&printable(text), columns);
    let padding = columns.saturating_sub(width(&text));
    format!("{text}{:padding$}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(confidence: Option<f64>, first_touch_assumed: bool) -> ObjectPrediction {
        ObjectPrediction {
            group: 0,
            name: "grid".to_owned(),
            size_bytes: 4096,
            instances: 1,
            accesses: 100.0,
            cost_share: 1.0,
            placement: "block".to_owned(),
            why: None,
            unmatched: false,
            decisions: vec![0],
            first_touch_assumed,
            samples: 100,
            confidence,
            recorded_local_share: None,
            first_touch: Outcome::default(),
            interleave: Outcome::default(),
            planned: Outcome::default(),
        }
    }

    #[test]
    fn marks_are_explained_where_there_are_any() {
        let (sure, unsure) = (object(Some(0.9), false), object(Some(0.3), false));
        let (traced, assumed) = (object(None, false), object(None, true));
        assert_eq!(placement(&sure), "block");
        assert_eq!(placement(&unsure), "block ?");
        assert!(legend(&[&sure, &traced]).is_empty());
        let words = legend(&[&sure, &unsure, &assumed]);
        assert!(
            words[0].starts_with("? unsure: fewer than 60 % "),
            "{words:?}"
        );
        assert!(words[1].starts_with("* assumed: "), "{words:?}");
        assert_eq!(words.len(), 2);
    }

    #[test]
    fn gains_are_shown_where_there_are_any() {
        let by = |planned_ns| by_how_much([1000.0, planned_ns]);
        assert_eq!(by(1000.0), "");
        assert_eq!(by(999.6), "");
        assert_eq!(by(987.0), " (1.3 % less)");
        assert_eq!(by(1010.0), " (1.0 % more)");
    }
}
