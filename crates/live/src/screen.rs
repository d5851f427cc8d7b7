//! What a terminal shows while the daemon works, redrawn after every interval.
//!
//! ```text
//! traffic: interval 12, 4321 samples, 300 hot pages
//! local        87 %  ▁▂▄▆▇▇  imbalance 12 %
//! by node      0: 28 %  1: 24 %  2: 25 %  3: 23 %
//! moved        512 pages now, 1234 in all (4.8 MiB); longest call 1.2 ms
//! not moved    3 busy, 2 shared
//! decided      132 migrate, 12 interleave
//! such as      page 77 migrate to node 3: hot; by node [0, 1, 0, 9], 2 stores
//!     PID NAME            LOCAL   LOST  WANTED   MOVED
//!   12345 triad            87 %   23 %     600     512  moving
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use nearpage_machine::several;

use crate::daemon::Report;
use crate::mover::Outcomes;
use crate::text::{lost_and_local, not_moved, printable, stage, such_as};

/// No line is longer.
const COLUMNS: usize = 80;
/// Intervals whose local share is drawn.
const HISTORY: usize = 40;
/// Processes that are listed: those with most accesses.
const PROCESSES_MAX: usize = 12;

/// Lines, and what they need from one interval to the next.
#[derive(Clone, Debug)]
pub struct Screen {
    policy: String,
    nodes: Vec<u16>,
    dry_run: bool,
    intervals: u64,
    /// `None`: no accesses.
    local: VecDeque<Option<f64>>,
    outcomes: Outcomes,
    moved_bytes: u64,
    longest_call_ns: u64,
    drawn: usize,
}

impl Screen {
    /// Of a daemon with that policy on those nodes.
    pub fn new(policy: &str, nodes: &[u16], dry_run: bool) -> Self {
        Self {
            policy: policy.to_owned(),
            nodes: nodes.to_vec(),
            dry_run,
            intervals: 0,
            local: VecDeque::with_capacity(HISTORY),
            outcomes: Outcomes::default(),
            moved_bytes: 0,
            longest_call_ns: 0,
            drawn: 0,
        }
    }

    /// What to write to a terminal after an interval: it takes the place of what was written last.
    pub fn redraw(&mut self, report: &Report) -> String {
        // ECMA-48: cursor up so many lines, erase to the end.
        let mut text = match self.drawn {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        };
        let lines = self.lines(report);
        self.drawn = lines.len();
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// The lines, of at most 80 characters each.
    fn lines(&mut self, report: &Report) -> Vec<String> {
        self.intervals += 1;
        self.outcomes.add(&report.outcomes);
        self.moved_bytes += report.moved_bytes;
        self.longest_call_ns = self.longest_call_ns.max(report.longest_call_ns);
        if self.local.len() == HISTORY {
            self.local.pop_front();
        }
        self.local.push_back(report.local_share());

        let mut lines = vec![self.summary(report)];
        let mut row = |name: &str, text: String| {
            if !text.is_empty() {
                lines.push(format!("{name:<12} {text}"));
            }
        };
        let share = match report.local_share() {
            Some(share) => format!("{:>3.0} %", 100.0 * share),
            None => "    –".to_owned(),
        };
        let imbalance = 100.0 * report.imbalance();
        let drawn: String = self.local.iter().map(|share| bar(*share)).collect();
        row(
            "local",
            format!("{share}  {drawn}  imbalance {imbalance:.0} %"),
        );
        row("by node", self.by_node(report));
        row("moved", self.moved(report));
        row("not moved", not_moved(&self.outcomes));
        row("decided", decided(report));
        row("such as", such_as(report, &self.nodes).unwrap_or_default());
        lines.extend(self.processes(report));
        lines.into_iter().map(|line| cut(&line)).collect()
    }

    fn summary(&self, report: &Report) -> String {
        let mut text = format!(
            "{}: interval {}, {}, {}",
            self.policy,
            self.intervals,
            several(report.entry.interval.observations.len() as u64, "sample"),
            several(report.hot_pages as u64, "hot page")
        );
        for (count, what) in [
            (report.dropped, "dropped"),
            (report.without_node, "unplaced"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        text
    }

    /// Shares of the accesses that each node's memory served.
    fn by_node(&self, report: &Report) -> String {
        let all: u64 = report.traffic.iter().flatten().sum();
        let share = |(at, node): (usize, &u16)| {
            let served: u64 = report.traffic.iter().map(|from| from[at]).sum();
            format!("{node}: {:.0} %", 100.0 * served as f64 / all as f64)
        };
        match all {
            0 => String::new(),
            _ => {
                let shares: Vec<String> = self.nodes.iter().enumerate().map(share).collect();
                shares.join("  ")
            }
        }
    }

    fn moved(&self, report: &Report) -> String {
        if self.dry_run {
            let wished: u64 = report.entry.processes.iter().map(|one| one.wished).sum();
            return format!(
                "nothing (dry run); would move {} now",
                several(wished, "page")
            );
        }
        let mut text = format!(
            "{} now, {} in all ({:.1} MiB)",
            several(report.outcomes.moved, "page"),
            self.outcomes.moved,
            self.moved_bytes as f64 / f64::from(1 << 20)
        );
        if self.longest_call_ns > 0 {
            let longest_ms = self.longest_call_ns as f64 / 1e6;
            let _ = write!(text, "; longest call {longest_ms:.1} ms");
        }
        text
    }

    fn processes(&self, report: &Report) -> Vec<String> {
        let mut processes: Vec<_> = report.entry.processes.iter().collect();
        processes.sort_by_key(|process| (std::cmp::Reverse(process.accesses), process.pid));
        let more = processes.len().saturating_sub(PROCESSES_MAX);
        processes.truncate(PROCESSES_MAX);
        let mut lines = vec![format!(
            "{:>7} {:<15} {:>6} {:>6} {:>7} {:>7}",
            "PID", "NAME", "LOCAL", "LOST", "WANTED", "MOVED"
        )];
        lines.extend(processes.into_iter().map(|process| {
            let (lost, local) = lost_and_local(process);
            format!(
                "{:>7} {:<15} {:>6} {:>6} {:>7} {:>7}  {}",
                process.pid,
                printable(&process.name),
                local,
                lost,
                process.wished,
                process.outcomes.moved,
                stage(process, self.dry_run)
            )
        }));
        if more > 0 {
            lines.push(format!("{:>7} and {more} more", ""));
        }
        lines
    }
}

/// Decisions by kind.
fn decided(report: &Report) -> String {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for action in &report.entry.actions {
        *kinds.entry(&action.kind).or_default() += 1;
    }
    let mut parts: Vec<String> = kinds
        .into_iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    match report.entry.thread_moves.len() {
        0 => (),
        count => parts.push(format!(
            "{} to other nodes",
            several(count as u64, "thread")
        )),
    }
    parts.join(", ")
}

/// An eighth of a share each.
fn bar(share: Option<f64>) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    share.map_or(' ', |share| BARS[((share * 8.0) as usize).min(7)])
}

fn cut(line: &str) -> String {
    if line.chars().count() <= COLUMNS {
        return line.to_owned();
    }
    let mut text: String = line.chars().take(COLUMNS - 1).collect();
    text.push('…');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::care::Stage;
    use crate::daemon::tests::report;
    use crate::log::LoggedAction;

    #[test]
    fn everything_is_shown_in_eighty_columns() {
        let mut screen = Screen::new("traffic", &[0, 1, 2, 3], false);
        let mut report = report(vec![
            vec![30, 10, 0, 0],
            vec![0, 20, 0, 0],
            vec![0, 0, 20, 0],
            vec![0, 0, 0, 20],
        ]);
        report.outcomes = Outcomes {
            moved: 512,
            busy: 3,
            ..Outcomes::default()
        };
        report.moved_bytes = 5 << 20;
        report.longest_call_ns = 1_200_000;
        report.entry.actions.push(LoggedAction {
            page: 77,
            kind: "migrate".into(),
            node: 3,
            rule: "hot".into(),
            counts: vec![0, 1, 0, 9],
            writes: 2,
            migrations: 0,
        });
        report.entry.processes[0].stage = Stage::Going;
        report.entry.processes[0].outcomes = report.outcomes;
        assert_eq!(
            screen.redraw(&report),
            "\
traffic: interval 1, 0 samples, 12 hot pages
local         90 %  █  imbalance 20 %
by node      0: 30 %  1: 30 %  2: 20 %  3: 20 %
moved        512 pages now, 512 in all (5.0 MiB); longest call 1.2 ms
not moved    3 busy
decided      1 migrate
such as      page 77 migrate to node 3: hot; by node [0, 1, 0, 9], 2 stores
    PID NAME             LOCAL   LOST  WANTED   MOVED
      9 a\"b\\c\u{fffd}            87 %   25 %       9     512  moving, 3 busy
"
        );
        // The next one takes its place.
        let again = screen.redraw(&report);
        assert!(
            again.starts_with("\x1b[9A\x1b[Jtraffic: interval 2,"),
            "{again}"
        );
        assert!(again.contains("1024 in all (10.0 MiB)"), "{again}");
    }

    #[test]
    fn no_line_is_longer_than_a_terminal_is_wide() {
        let mut screen = Screen::new("traffic", &[0, 1], true);
        let mut report = report(vec![vec![0, 0], vec![0, 0]]);
        let process = report.entry.processes[0].clone();
        report.entry.processes = vec![process; 40];
        report.outcomes = Outcomes {
            busy: u64::MAX / 100,
            shared: u64::MAX / 100,
            absent: u64::MAX / 100,
            other: u64::MAX / 100,
            ..Outcomes::default()
        };
        for _ in 0..60 {
            for line in screen.lines(&report) {
                assert!(line.chars().count() <= COLUMNS, "{line}");
                assert!(!line.chars().any(char::is_control));
            }
        }
        assert!(screen.lines(&report).concat().contains("and 28 more"));
    }
}
