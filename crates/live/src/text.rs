//! Text output of an interval in lines, for terminals that cannot be redrawn.

use std::fmt::Write;

use nearpage_amount::{counted, percent, time};

use crate::daemon::Report;
use crate::guard::Stage;
use crate::log::LoggedProcess;
use crate::mover::Outcomes;

/// Lines about an interval: the machine, then each process.
pub fn text(report: &Report, nodes: &[u16], dry_run: bool) -> String {
    let mut text = String::new();
    let samples = report.entry.interval.observations.len();
    let share = match report.local_share() {
        Some(share) => format!("{} local", percent(share)),
        None => "no accesses".to_owned(),
    };
    let _ = write!(
        text,
        "{}, {share}, imbalance {}",
        counted(samples as u64, "sample"),
        percent(report.imbalance())
    );
    let requested: u64 = report.entry.processes.iter().map(|one| one.requested).sum();
    match dry_run {
        true => {
            let _ = write!(text, "; would move {}", counted(requested, "page"));
        }
        false => {
            let _ = write!(text, "; {} moved", counted(report.outcomes.moved, "page"));
            if report.longest_call_ns > 0 {
                let longest = time(report.longest_call_ns as f64);
                let _ = write!(text, ", longest call {longest}");
            }
        }
    }
    text.push('\n');
    if let Some(why) = &report.why_idle {
        let _ = writeln!(text, "  nothing to move: {why}");
    }
    for process in &report.entry.processes {
        if process.accesses == 0 && process.outcomes == Default::default() {
            continue;
        }
        let (lost, local) = lost_and_local(process);
        let _ = writeln!(
            text,
            "  {:>7} {:<15} {local:>5} local, {lost:>5} lost to memory, {}",
            process.pid,
            printable(&process.name),
            stage(process, dry_run)
        );
    }
    if let Some(line) = such_as(report, nodes) {
        let _ = writeln!(text, "  such as: {line}");
    }
    text
}

/// Share of its time that a process lost to memory, and local share of its accesses, as text.
pub fn lost_and_local(process: &LoggedProcess) -> (String, String) {
    let percent = |per_1000: u32| format!("{} %", per_1000 / 10);
    let local = match process.accesses {
        0 => "–".to_owned(),
        _ => percent(process.local_per_1000),
    };
    (percent(process.lost_per_1000), local)
}

/// Stage of a process, and the pages that could not be moved, as text.
pub fn stage(process: &LoggedProcess, dry_run: bool) -> String {
    let mut text = match dry_run {
        true => treatment(process, "watched"),
        false => treated(process),
    };
    let others = not_moved(&process.outcomes);
    if !others.is_empty() {
        let _ = write!(text, ", {others}");
    }
    text
}

/// Stage of a process in words.
pub fn treated(process: &LoggedProcess) -> String {
    let stage = match process.stage {
        Stage::Measuring => "measured first",
        Stage::Trying => "trying with a part",
        Stage::Going => "moving",
        Stage::Holding => "left alone",
    };
    treatment(process, stage)
}

fn treatment(process: &LoggedProcess, stage: &str) -> String {
    let mut text = stage.to_owned();
    if process.moved_back {
        text.push_str(": it was worse off, pages move back");
    }
    if process.threads_pinned > 0 {
        let _ = write!(
            text,
            ", {} pinned",
            counted(process.threads_pinned, "thread")
        );
    }
    text
}

/// Pages that could not be moved, by reason.
pub fn not_moved(outcomes: &Outcomes) -> String {
    let reasons = outcomes.by_reason();
    let reasons = reasons
        .iter()
        .filter(|(reason, count)| *reason != "moved" && *count > 0);
    let reasons: Vec<String> = reasons
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    reasons.join(", ")
}

/// The first decision of an interval, and its reason.
pub fn such_as(report: &Report, nodes: &[u16]) -> Option<String> {
    let action = report.entry.actions.first()?;
    let node = nodes
        .get(usize::from(action.node))
        .copied()
        .unwrap_or(action.node);
    Some(format!(
        "page {} {} to node {node}: {}; by node {:?}, {}",
        action.page,
        action.kind,
        action.rule,
        action.counts,
        counted(action.writes.into(), "store")
    ))
}

/// Replaces control characters, because a program's name may contain any.
pub fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tests::report;

    #[test]
    fn lines_of_an_interval() {
        let mut report = report(vec![vec![3, 1], vec![0, 4]]);
        report.outcomes.moved = 7;
        assert_eq!(
            text(&report, &[0, 2], false),
            "0 samples, 88 % local, imbalance 25 %; 7 pages moved\n        \
             9 a\"b\\c\u{fffd}           87 % local,  25 % lost to memory, measured first\n"
        );
        report.why_idle = Some("1.0 accesses a µs".to_owned());
        assert!(text(&report, &[0, 2], false).contains("\n  nothing to move: 1.0 accesses a µs\n"),);
        report.why_idle = None;
        assert!(
            text(&report, &[0, 2], true)
                .starts_with("0 samples, 88 % local, imbalance 25 %; would move 9 pages\n")
        );
    }
}
