//! What a terminal shows of an interval.

use std::fmt::Write;

use crate::care::Stage;
use crate::daemon::Report;

/// Lines about an interval: the machine, then each process.
pub fn text(report: &Report, nodes: &[u16], dry_run: bool) -> String {
    let mut text = String::new();
    let samples = report.entry.interval.observations.len();
    let share = match report.local_share() {
        Some(share) => format!("{:.0} % local", 100.0 * share),
        None => "no accesses".to_owned(),
    };
    let _ = write!(
        text,
        "{samples} samples, {share}, imbalance {:.0} %",
        100.0 * report.imbalance()
    );
    let wished: u64 = report.entry.processes.iter().map(|one| one.wished).sum();
    match dry_run {
        true => {
            let _ = write!(text, "; would move {wished} pages");
        }
        false => {
            let _ = write!(text, "; {} pages moved", report.outcomes.moved);
            if report.longest_call_ns > 0 {
                let longest_ms = report.longest_call_ns as f64 / 1e6;
                let _ = write!(text, ", longest call {longest_ms:.1} ms");
            }
        }
    }
    text.push('\n');
    for process in &report.entry.processes {
        if process.accesses == 0 && process.outcomes == Default::default() {
            continue;
        }
        let _ = write!(
            text,
            "  {:>7} {:<15} {:>3} % local, {:>3} % of its time lost to memory, {}",
            process.pid,
            printable(&process.name),
            process.local_per_1000 / 10,
            process.lost_per_1000 / 10,
            match (dry_run, process.stage) {
                (true, _) => "watched",
                (false, Stage::Measuring) => "measured first",
                (false, Stage::Trying) => "trying with a part",
                (false, Stage::Going) => "moving",
                (false, Stage::Holding) => "left alone",
            }
        );
        if process.moved_back {
            text.push_str(": it was worse off, pages move back");
        }
        let others = process.outcomes.by_reason();
        let others = others
            .iter()
            .filter(|(reason, count)| *reason != "moved" && *count > 0);
        for (reason, count) in others {
            let _ = write!(text, ", {count} {reason}");
        }
        text.push('\n');
    }
    if let Some(action) = report.entry.actions.first() {
        let node = nodes
            .get(usize::from(action.node))
            .copied()
            .unwrap_or(action.node);
        let _ = writeln!(
            text,
            "  such as: page {} {} to node {node}: {}; by node {:?}, {} stores",
            action.page, action.kind, action.rule, action.counts, action.writes
        );
    }
    text
}

/// Without control characters: a program may be called anything.
fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().map(shown).collect()
}
