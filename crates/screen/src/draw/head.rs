//! Lines above a place: title, state and figures.

use std::collections::VecDeque;
use std::time::Duration;

use nearpage_amount::{bytes, counted, percent, time};
use nearpage_live::not_moved;
use nearpage_report::{shorten, width};
use ratatui::text::{Line, Span};

use super::{bold, dim, title};
use crate::model::{Decision, Kind, Model, PageKey, Process};
use crate::view::{Place, View};

/// Width of names before values.
const NAME_COLUMNS: usize = 11;

/// All lines above a place, each at most `columns_max` wide.
pub fn lines(model: &Model, view: &View, is_held: bool, columns_max: usize) -> Vec<Line<'static>> {
    let mut lines = vec![first(model, is_held, columns_max)];
    let mut row = |name: &str, text: String| {
        if !text.is_empty() {
            let room = columns_max.saturating_sub(NAME_COLUMNS);
            lines.push(Line::from(vec![
                Span::styled(format!("{name:<NAME_COLUMNS$}"), dim()),
                Span::raw(shorten(&text, room)),
            ]));
        }
    };
    let process_of = |number: u16| model.processes.get(&number);
    match &view.level().place {
        Place::Processes | Place::Output | Place::Decisions(None) | Place::Decision(_) => {
            row(
                "local",
                local(model.latest.local, &model.local, columns_max),
            );
            row("by node", by_node(model));
            if model.subject.kind == Kind::Live {
                row("moved", moved(model, columns_max));
                row("idle", model.latest.why_idle.clone().unwrap_or_default());
                row("not moved", not_moved(&model.outcomes));
            }
        }
        Place::Process(number)
        | Place::Object {
            process: number, ..
        }
        | Place::Decisions(Some(number)) => {
            if let Some(process) = process_of(*number) {
                row("process", of_process(process, columns_max));
                let share = process.now.local_share();
                row("local", local(share, &process.history, columns_max));
                row("memory", memory(model, process));
                if model.subject.kind == Kind::Live {
                    row("state", process.stage.clone());
                    let moved = counted(process.outcomes.moved, "page");
                    row("moved", format!("{moved} in all"));
                    row("not moved", not_moved(&process.outcomes));
                }
            }
            if let Place::Object { mapping, .. } = &view.level().place {
                let size = bytes(mapping.end - mapping.start);
                row(
                    "object",
                    format!("{}: {size} at {:x}", mapping.name, mapping.start),
                );
            }
        }
    }
    lines
}

/// First line: time, policy, and number of samples.
fn first(model: &Model, is_held: bool, columns_max: usize) -> Line<'static> {
    let subject = &model.subject;
    let mut parts = vec![clock(model.watched)];
    if subject.kind == Kind::Live {
        parts.push(match subject.dry_run {
            true => format!("{} (dry run)", subject.policy),
            false => subject.policy.clone(),
        });
    }
    if is_held {
        parts.push("held".to_owned());
    }
    parts.push(counted(model.latest.samples, "sample"));
    if subject.kind == Kind::Live {
        parts.push(counted(model.latest.hot_pages as u64, "hot page"));
    }
    for (count, what) in [
        (model.latest.dropped, "dropped"),
        (model.latest.without_node, "unplaced"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let title = title(subject.kind);
    let room = columns_max.saturating_sub(title.len() + 2);
    Line::from(vec![
        Span::styled(title, bold()),
        Span::raw("  "),
        Span::raw(as_many(parts, room)),
    ])
}

/// The first parts that fit into `columns_max`, with the most important part first.
fn as_many(parts: Vec<String>, columns_max: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let before = if text.is_empty() { "" } else { ", " };
        if !text.is_empty() && width(&text) + before.len() + width(&part) > columns_max {
            break;
        }
        text += before;
        text += &part;
    }
    shorten(&text, columns_max)
}

/// Time as `3:07` or `1:00:07`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// The present share, and a bar for each earlier interval that fits.
fn local(now: Option<f64>, history: &VecDeque<Option<f64>>, columns_max: usize) -> String {
    let now = now.map_or("–".to_owned(), percent);
    let room = columns_max.saturating_sub(NAME_COLUMNS + 8);
    let drawn = history.iter().skip(history.len().saturating_sub(room));
    let drawn: String = drawn.map(|share| bar(*share)).collect();
    format!("{now:>6}  {drawn}")
}

/// A bar in eighths.
fn bar(share: Option<f64>) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    share.map_or(' ', |share| BARS[((share * 8.0) as usize).min(7)])
}

/// Shares of the accesses that each node's memory served, and their imbalance.
fn by_node(model: &Model) -> String {
    let latest = &model.latest;
    let all: u64 = latest.traffic.iter().flatten().sum();
    if all == 0 {
        return String::new();
    }
    let share = |(at, node): (usize, &u16)| {
        let served: u64 = latest.traffic.iter().map(|from| from[at]).sum();
        format!("{node}: {}", percent(served as f64 / all as f64))
    };
    let nodes = model.subject.nodes.iter().enumerate();
    let shares: Vec<String> = nodes.map(share).collect();
    format!(
        "{}  imbalance {}",
        shares.join("  "),
        percent(latest.imbalance)
    )
}

fn moved(model: &Model, columns_max: usize) -> String {
    if model.subject.dry_run {
        return format!(
            "nothing (dry run); would move {} now",
            counted(model.latest.wanted, "page")
        );
    }
    let mut parts = vec![
        format!("{} now", counted(model.latest.moved, "page")),
        format!("{} in all", model.outcomes.moved),
        bytes(model.moved_bytes),
    ];
    if model.longest_call_ns > 0 {
        parts.push(format!(
            "longest call {}",
            time(model.longest_call_ns as f64)
        ));
    }
    as_many(parts, columns_max.saturating_sub(NAME_COLUMNS))
}

fn of_process(process: &Process, columns_max: usize) -> String {
    let who = format!("{} {}", process.pid, process.name);
    if process.has_ended {
        return format!("{who} has ended");
    }
    let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    let parts = vec![
        who,
        format!("lost {}", share(process.now.lost_share())),
        format!("remote {}", share(process.now.remote_share())),
        format!("{:.1} CPUs", process.cpus),
        counted(process.threads.into(), "thread"),
        counted(process.now.accesses as u64, "sample"),
    ];
    as_many(parts, columns_max.saturating_sub(NAME_COLUMNS))
}

fn memory(model: &Model, process: &Process) -> String {
    let Some(by_node) = model.memory.get(&process.pid) else {
        return String::new();
    };
    let nodes = model.subject.nodes.iter().zip(by_node);
    let parts: Vec<String> = nodes
        .map(|(node, amount)| format!("{node}: {}", bytes(*amount)))
        .collect();
    parts.join("  ")
}

/// Lines about a decision: page, reasons, and result.
pub fn decision(model: &Model, decision: &Decision, columns_max: usize) -> Vec<Line<'static>> {
    let to = model.node(decision.to);
    let of = |(process, number): PageKey| {
        let address = model.address(number);
        let name = model.processes.get(&process);
        let name = name.map_or_else(String::new, |one| format!(" of {} {}", one.pid, one.name));
        format!("page {address:x}{name}")
    };
    let page = decision.page.map_or("a page that is gone".to_owned(), of);
    let was = decision.from.map_or("unknown".to_owned(), |at| {
        format!("node {}", model.node(at))
    });
    let now = decision.page.and_then(|key| model.page(key));
    let now = now.map_or("not sampled lately".to_owned(), |page| {
        format!("node {}", model.node(page.home))
    });
    let counts = decision.counts.iter().enumerate();
    let counts: Vec<String> = counts
        .map(|(at, count)| format!("{}: {count}", model.node(at as u16)))
        .collect();
    let rows = [
        ("decided", format!("{} to node {to}", decision.kind)),
        ("about", page),
        (
            "after",
            format!("interval {} of {}", decision.interval, model.intervals),
        ),
        ("because", decision.rule.clone()),
        ("accesses", format!("by node  {}", counts.join("  "))),
        ("stores", decision.writes.to_string()),
        (
            "moved",
            format!("{} before", counted(decision.migrations.into(), "time")),
        ),
        ("it was on", was),
        ("it is on", now),
    ];
    let room = columns_max.saturating_sub(NAME_COLUMNS);
    let line = |(name, text): (&str, String)| {
        Line::from(vec![
            Span::styled(format!("{name:<NAME_COLUMNS$}"), dim()),
            Span::raw(shorten(&text, room)),
        ])
    };
    std::iter::once(Line::raw(""))
        .chain(rows.into_iter().map(line))
        .collect()
}
