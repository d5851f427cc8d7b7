//! Table of a plan's effect on each of several inputs.

use std::fmt::Write;

use nearpage_amount::{bytes, counted, percent, time};
use nearpage_planner::several_inputs::{AcrossInputs, AcrossObject, OfInput};
use nearpage_report::printable;

/// A row for each recording, and a row for each object with its share of local accesses in each recording.
pub fn to_text(inputs: &AcrossInputs) -> String {
    let mut text = format!(
        "{:>3} {:>7} {:>12} {:>12} {:>12} {:>6} {:>7}  recording\n",
        "", "threads", "first touch", "own plan", "planned", "local", "planned"
    );
    for (number, one) in inputs.recordings.iter().enumerate() {
        let _ = writeln!(text, "{:>3} {}", number + 1, recording(one));
    }
    let names = inputs.objects.iter().map(|one| printable(&one.name));
    let names: Vec<String> = names.collect();
    let width = names.iter().map(|name| name.chars().count()).max();
    for (object, name) in inputs.objects.iter().zip(names) {
        let _ = write!(text, "\n{name:width$}", width = width.unwrap_or(0));
        let _ = write!(text, "  {}; {}", object.placement, object.evidence.words());
        let of_each: Vec<String> = each(object).collect();
        let _ = write!(text, ": {}", of_each.join(", "));
    }
    if !inputs.objects.is_empty() {
        text.push('\n');
    }
    let base = &inputs.recordings[inputs.base].recording;
    let _ = writeln!(
        text,
        "one plan for {}, in the sizes and threads of {}",
        counted(inputs.recordings.len() as u64, "input"),
        printable(&base.to_string_lossy())
    );
    text
}

fn recording(one: &OfInput) -> String {
    let folder = one.recording.to_string_lossy();
    let arguments = one.arguments.join(" ");
    format!(
        "{:>7} {:>12} {:>12} {:>12} {:>6} {:>7}  {}{}",
        one.threads,
        time(one.first_touch_ns),
        time(one.own_plan_ns),
        time(one.planned_ns),
        percent(one.local_before),
        percent(one.local_after),
        printable(&folder),
        match arguments.as_str() {
            "" => String::new(),
            some => format!(" ({})", printable(some)),
        }
    )
}

/// Cells such as `64.0 MiB 97 % local`, one for each recording.
fn each(object: &AcrossObject) -> impl Iterator<Item = String> {
    let of = |(size_bytes, local): (&Option<u64>, &Option<f64>)| match (size_bytes, local) {
        (Some(size_bytes), Some(local)) => {
            format!("{} {} local", bytes(*size_bytes), percent(*local))
        }
        _ => "not accessed".to_owned(),
    };
    object.size_bytes.iter().zip(&object.local).map(of)
}
