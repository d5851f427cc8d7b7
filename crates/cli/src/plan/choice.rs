//! Text about a choice among several recordings.

use std::fmt::Write;

use nearpage_amount::{change, percent, time};
use nearpage_planner::recordings::{Choice, MARGIN, PLANNED_RATIO_MAX};
use nearpage_report::printable;

use crate::Usage;
use crate::arguments::{self, Policy, Threads};

/// Refuses `--threads` with recordings that are compared by their thread layouts.
pub fn refuse_threads(arguments: &arguments::Plan) -> Result<(), Usage> {
    match arguments.deciding.threads {
        Some(threads @ (Threads::Compact | Threads::Scatter)) => Err(Usage(format!(
            "--threads {} contradicts several recordings of one input: where threads run is what they are weighed by, each \
             with its threads where they were; leave it out, or name one recording",
            threads.as_str()
        ))),
        _ => Ok(()),
    }
}

/// Refuses policies other than `auto`, because only `auto` predicts times.
pub fn refuse_policies(arguments: &arguments::Plan) -> Result<(), Usage> {
    match arguments.policy.iter().find(|one| **one != Policy::Auto) {
        Some(policy) => Err(Usage(format!(
            "--policy {} predicts no time, by which several recordings could be weighed: take --policy auto, or name \
             one recording",
            policy.policy().as_str()
        ))),
        None => Ok(()),
    }
}

/// A row for each recording, and the reason for the choice.
pub fn to_text(choice: &Choice) -> String {
    let mut text = String::new();
    let taken = choice.chosen();
    let _ = writeln!(
        text,
        "{:<8} {:>12} {:>12}  recording",
        "threads", "first touch", "planned"
    );
    for one in &choice.recordings {
        let _ = writeln!(
            text,
            "{:<8} {:>12} {:>12}  {}",
            one.threads.unwrap_or("–"),
            time(one.first_touch_ns),
            one.planned_ns.map_or("–".to_owned(), time),
            printable(&one.recording.to_string_lossy())
        );
    }
    if choice.runtime_scale > 1.0 {
        let _ = writeln!(
            text,
            "of runs with a parallel part {} times as long as recorded",
            choice.runtime_scale
        );
    }
    if choice.recordings.iter().any(|one| one.planned_ns.is_none()) {
        let _ = writeln!(
            text,
            "–: not planned; no rule for all objects brings it within {} of the quickest",
            percent(PLANNED_RATIO_MAX - 1.0)
        );
    }
    let others = choice.recordings[1..].iter();
    let best_ns = others
        .filter_map(|one| one.planned_ns)
        .fold(f64::INFINITY, f64::min);
    let by_how_much = |first_ns: f64| change(best_ns / first_ns - 1.0);
    let why = match (
        taken == &choice.recordings[0],
        choice.recordings[0].planned_ns,
    ) {
        (true, Some(first_ns)) if best_ns < first_ns => format!(
            "the others take {} time at the best, and {} is what two recordings of the same may differ by",
            by_how_much(first_ns),
            percent(MARGIN)
        ),
        (true, _) => "no other takes less time".to_owned(),
        (false, Some(first_ns)) => {
            format!("it takes {} time than the first", by_how_much(first_ns))
        }
        (false, None) => "the first takes far more".to_owned(),
    };
    let _ = writeln!(text, "taken: {}; {why}", taken.recording.display());
    let _ = match taken.threads {
        Some(layout) => writeln!(text, "threads: {layout}, as the plan says"),
        None => writeln!(
            text,
            "threads: they ran neither compact nor scatter there, so that the plan says nothing of them; pin them as you did"
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use nearpage_planner::Judged;
    use nearpage_planner::recordings::WeighedRecording;

    use super::*;

    /// Makes recordings `a`, `b` and so on of layouts, times under first touch, and times under the plans of the
    /// recordings that were planned.
    fn choice(taken: usize, recordings: &[(Option<&'static str>, f64, Option<f64>)]) -> Choice {
        let weighed = |(number, (&(threads, first_touch_ns, planned_ns), name)): (usize, _)| {
            let name: char = name;
            WeighedRecording {
                recording: name.to_string().into(),
                threads,
                by: Judged::Replay,
                first_touch_ns,
                planned_ns,
                chosen: number == taken,
                planned: None,
            }
        };
        let recordings = recordings.iter().zip('a'..).enumerate().map(weighed);
        Choice {
            recordings: recordings.collect(),
            runtime_scale: 1.5,
        }
    }

    #[test]
    fn a_table_says_what_was_taken_and_why() {
        let (compact, scatter) = (Some("compact"), Some("scatter"));
        let near = [
            (scatter, 12e6, Some(10e6)),
            (compact, 11e6, Some(9.8e6)),
            (None, 40e6, None),
        ];
        assert_eq!(
            to_text(&choice(0, &near)),
            "threads   first touch      planned  recording\n\
             scatter         12 ms        10 ms  a\n\
             compact         11 ms       9.8 ms  b\n\
             –               40 ms            –  c\n\
             of runs with a parallel part 1.5 times as long as recorded\n\
             –: not planned; no rule for all objects brings it within 25 % of the quickest\n\
             taken: a; the others take 2.0 % less time at the best, and 3.0 % is what two recordings of the same may differ by\n\
             threads: scatter, as the plan says\n"
        );
        let said = |taken, recordings: &[_]| {
            let text = to_text(&choice(taken, recordings));
            let from = text.find("taken").expect("what was taken");
            text[from..].to_owned()
        };
        assert_eq!(
            said(1, &[(scatter, 12e6, Some(10e6)), (compact, 6e6, Some(5e6))]),
            "taken: b; it takes 50.0 % less time than the first\nthreads: compact, as the plan says\n"
        );
        assert_eq!(
            said(1, &[(scatter, 12e6, None), (compact, 6e6, Some(5e6))]),
            "taken: b; the first takes far more\nthreads: compact, as the plan says\n"
        );
        let nowhere = [(None, 12e6, Some(10e6)), (compact, 20e6, None)];
        assert_eq!(
            said(0, &nowhere),
            "taken: a; no other takes less time\n\
             threads: they ran neither compact nor scatter there, so that the plan says nothing of them; pin them as you did\n"
        );
    }
}
