//! Summary that remains on the terminal after the screen has ended.

use nearpage_amount::{bytes, counted, percent, time};
use nearpage_live::not_moved;
use nearpage_report::{shorten, width};

use crate::draw::clock;
use crate::model::{Kind, Model, Process, Sums};

/// Maximum number of listed processes.
const PROCESSES_MAX: usize = 10;
/// Width of a name.
const NAME_COLUMNS: usize = 12;

/// Lines about all intervals; empty without intervals.
pub fn summary(model: &Model) -> Vec<String> {
    if model.intervals == 0 {
        return Vec::new();
    }
    let mut all = Sums::default();
    model.processes.values().for_each(|one| all.add(one.all));
    let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    let mut lines = vec![
        format!(
            "watched for {}: {}, {} local",
            clock(model.watched),
            counted(all.accesses as u64, "sample"),
            share(all.local_share()),
        ),
        format!(
            "lost to memory: {} of the CPU time, {} to other nodes'",
            share(all.lost_share()),
            share(all.remote_share()),
        ),
    ];
    let is_live = model.subject.kind == Kind::Live;
    if is_live && !model.subject.dry_run {
        let pages = counted(model.outcomes.moved, "page");
        let mut line = format!("{pages} moved ({})", bytes(model.moved_bytes));
        if model.longest_call_ns > 0 {
            line += &format!(", longest call {}", time(model.longest_call_ns as f64));
        }
        lines.push(line);
        if let Some(why) = &model.latest.why_idle
            && model.outcomes.moved == 0
        {
            lines.push(format!("nothing to move: {why}"));
        }
        let others = not_moved(&model.outcomes);
        if !others.is_empty() {
            lines.push(format!("not moved: {others}"));
        }
    }
    let mut processes: Vec<&Process> = model
        .processes
        .values()
        .filter(|process| process.all.accesses > 0.0)
        .collect();
    processes.sort_by(|a, b| {
        let key = |process: &Process| match is_live {
            true => process.all.accesses,
            false => process.all.remote_lost_ns,
        };
        key(b).total_cmp(&key(a)).then(a.pid.cmp(&b.pid))
    });
    let more = processes.len().saturating_sub(PROCESSES_MAX);
    processes.truncate(PROCESSES_MAX);
    if !processes.is_empty() {
        let moved = if is_live { "   MOVED" } else { "" };
        lines.push(format!(
            "    PID NAME          LOCAL, AT LAST   LOST, AT LAST{moved}"
        ));
    }
    for process in processes {
        let (first, last) = (process.first, process.last());
        let name = shorten(&process.name, NAME_COLUMNS);
        let pad = " ".repeat(NAME_COLUMNS.saturating_sub(width(&name)));
        let mut line = format!(
            "{:>7} {name}{pad}  {:>6} → {:<6}  {:>6} → {:<6}",
            process.pid,
            share(first.local_share()),
            share(last.local_share()),
            share(first.lost_share()),
            share(last.lost_share()),
        );
        if is_live {
            line += &format!("{:>7}", process.outcomes.moved);
        }
        lines.push(line.trim_end().to_owned());
    }
    if more > 0 {
        lines.push(format!("        and {more} more"));
    }
    lines
}
