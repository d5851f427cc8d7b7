//! The log of decisions, and its replay.
//!
//! Each line is JSON: first a [`Head`], then an [`Entry`] for each interval. An entry has all inputs of its decisions, so
//! `nearpage live --replay` repeats them and compares, bit for bit.

use std::borrow::Cow;
use std::io::{self, BufRead, Write};

use nearpage_online::{Action, Setting, ThreadMove};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decide::{Decider, Decisions, Interval};
use crate::error::Error;
use crate::guard::Stage;
use crate::mover::Outcomes;
use crate::policies::LivePolicy;

/// Version of the log's form. Logs of version 1 lack the results of actions (`settled` of an interval), on which policies
/// did not depend. Up to version 2, policies did not know the cost of moves.
pub const VERSION: u32 = 3;
const VERSION_WITHOUT_ACTION_RESULTS: u32 = 1;
const VERSION_WITHOUT_COSTS: u32 = 2;

/// First line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of the log's form, which grows with each change of the form.
    pub nearpage_live: u32,
    /// Name of the policy.
    pub policy: String,
    /// Parameters of the policy.
    pub parameters: Vec<(String, String)>,
    /// Numbers of the machine's nodes, by position.
    pub nodes: Vec<u16>,
    /// Bit n is set: the node at position n has memory.
    pub memory_nodes: u64,
    /// Bit n is set: the node at position n has memory, and is not a far node without CPUs. Missing in earlier logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_memory_nodes: Option<u64>,
    /// CPUs per node, the lowest number if nodes differ; 0: unknown, or missing in an older log.
    #[serde(default)]
    pub cpus_per_node: u32,
    /// The firmware's distances between nodes by position; empty: unknown, or missing in an older log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distance: Vec<Vec<u32>>,
    /// Clock frequency of the CPUs, for intervals in cycles; 1000 if missing in an older log.
    #[serde(default = "cycle_a_nanosecond")]
    pub clock_mhz: u32,
    /// Maximum number of pages with counters.
    pub pages: usize,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Seed of random draws.
    pub seed: u64,
    /// Source of samples.
    pub source: String,
    /// Inputs that are estimated from samples, because there are no counters.
    pub estimated: Vec<String>,
}

/// An action on a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoggedAction {
    /// Number of the page.
    pub page: u32,
    /// `migrate`, `interleave`, `replicate`, `collapse`.
    pub kind: Cow<'static, str>,
    /// Node, by position.
    pub node: u16,
    /// Rule that caused the action.
    pub rule: Cow<'static, str>,
    /// Counts of the page by node.
    pub counts: Vec<u32>,
    /// Number of stores to the page.
    pub writes: u32,
    /// Number of times that the page has migrated.
    pub migrations: u32,
}

impl From<Action> for LoggedAction {
    fn from(action: Action) -> Self {
        Self {
            page: action.page,
            kind: kind(&action).into(),
            node: action.node,
            rule: action.reason.rule.into(),
            counts: action.reason.counts,
            writes: action.reason.writes,
            migrations: action.reason.migrations,
        }
    }
}

/// Name of an action's kind.
pub fn kind(action: &Action) -> &'static str {
    use nearpage_online::ActionKind::*;
    match action.kind {
        Migrate => "migrate",
        Interleave => "interleave",
        Replicate => "replicate",
        Collapse => "collapse",
    }
}

/// A move of a thread to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoggedThreadMove {
    /// The thread.
    pub thread: u32,
    /// Node, by position.
    pub node: u16,
    /// Rule that caused the move.
    pub rule: String,
}

impl From<&ThreadMove> for LoggedThreadMove {
    fn from(thread_move: &ThreadMove) -> Self {
        Self {
            thread: thread_move.thread.0,
            node: thread_move.node,
            rule: thread_move.rule.to_owned(),
        }
    }
}

/// A process in an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoggedProcess {
    /// Number of the process.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// Stage of the process.
    pub stage: Stage,
    /// Share of CPU time lost to memory, in thousandths.
    pub lost_per_1000: u32,
    /// Local share of the accesses, in thousandths; 0 without accesses.
    pub local_per_1000: u32,
    /// Number of observed accesses.
    pub accesses: u64,
    /// Number of pages that the policy requested to move.
    #[serde(alias = "wished")]
    pub requested: u64,
    /// Number of requested replications, which became interleaving.
    pub replications_interleaved: u64,
    /// The guard is moving back all pages that were moved since the process last did well.
    pub moved_back: bool,
    /// Number of threads that were pinned to a node.
    #[serde(default)]
    pub threads_pinned: u64,
    /// Results of moving the pages.
    pub outcomes: Outcomes,
    /// Time of the longest call, in nanoseconds.
    pub longest_call_ns: u64,
}

/// Line of a log about an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Inputs of the decisions.
    pub interval: Interval,
    /// Decisions about pages.
    pub actions: Vec<LoggedAction>,
    /// Decisions about threads.
    pub thread_moves: Vec<LoggedThreadMove>,
    /// Processes, and the results of their moves.
    pub processes: Vec<LoggedProcess>,
    /// End of the interval, since 1970.
    pub time_unix_ms: u64,
}

impl Entry {
    /// An entry with an interval and the decisions after it.
    pub fn of(interval: Interval, decisions: Decisions) -> Self {
        Self {
            interval,
            actions: decisions
                .actions
                .into_iter()
                .map(LoggedAction::from)
                .collect(),
            thread_moves: decisions
                .thread_moves
                .iter()
                .map(LoggedThreadMove::from)
                .collect(),
            processes: Vec::new(),
            time_unix_ms: 0,
        }
    }
}

/// Appends a line.
///
/// # Errors
/// Errors of writing.
pub fn append(out: &mut dyn Write, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    // A single write: a killed daemon leaves whole lines, and at most one that is cut short.
    out.write_all(&text)?;
    out.flush()
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Number of intervals.
    pub intervals: u64,
    /// Number of decisions, all of which were the same again.
    pub decisions: u64,
    /// The last line is cut short: the daemon was killed while it wrote.
    pub cut_short: bool,
}

/// Maximum number of a thread in a log, because policies keep state for every number.
const THREADS_MAX: u32 = 1 << 24;

/// Repeats the decisions of a log. `name` names the log in messages.
///
/// # Errors
/// The file is not a log, has another version, or has a decision that differs.
pub fn replay(log: impl BufRead, name: &str) -> Result<ReplaySummary, Error> {
    let bad = |line: usize, what: String| Error::Log {
        name: name.to_owned(),
        line,
        what,
    };
    let mut replayed = ReplaySummary::default();
    let mut decider: Option<Decider> = None;
    let mut lines = log.split(b'\n').enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let line = line.map_err(|error| bad(at + 1, error.to_string()))?;
        let Some(decider) = &mut decider else {
            let head: Head = serde_json::from_slice(&line)
                .map_err(|_| bad(1, "not a log of nearpage live".to_owned()))?;
            decider = Some(head.decider().map_err(|what| bad(1, what))?);
            continue;
        };
        let entry: Entry = match serde_json::from_slice(&line) {
            Ok(entry) => entry,
            Err(error) if error.is_eof() && lines.peek().is_none() => {
                replayed.cut_short = true;
                break;
            }
            Err(error) => return Err(bad(at + 1, error.to_string())),
        };
        let seen = entry.interval.observations.iter();
        let threads = entry.interval.threads.iter().map(|thread| thread.thread);
        let thread = seen.map(|seen| seen.thread).chain(threads).max();
        if let Some(thread) = thread.filter(|thread| *thread >= THREADS_MAX) {
            return Err(bad(at + 1, format!("thread {thread}: more than can be")));
        }
        let again = Entry::of(Interval::default(), decider.decide(&entry.interval));
        let pairs = entry.actions.iter().zip(&again.actions);
        let same = pairs.take_while(|(before, now)| before == now).count();
        if same < entry.actions.len().max(again.actions.len()) {
            let describe = |action: Option<&LoggedAction>| match action {
                Some(action) => format!(
                    "{} page {} to node {}",
                    action.kind, action.page, action.node
                ),
                None => "nothing more".to_owned(),
            };
            let (before, now) = (entry.actions.get(same), again.actions.get(same));
            let what = format!(
                "decision {same} was `{}`, and is `{}` now",
                describe(before),
                describe(now)
            );
            return Err(bad(at + 1, what));
        }
        if entry.thread_moves != again.thread_moves {
            return Err(bad(at + 1, "other threads are moved now".to_owned()));
        }
        replayed.intervals += 1;
        replayed.decisions += (entry.actions.len() + entry.thread_moves.len()) as u64;
    }
    if decider.is_none() {
        return Err(bad(1, "it is empty".to_owned()));
    }
    Ok(replayed)
}

fn cycle_a_nanosecond() -> u32 {
    1000
}

impl Head {
    /// The setting for which the policy is made.
    pub fn setting(&self) -> Setting {
        Setting {
            nodes: self.nodes.len(),
            pages: self.pages,
            clock_ghz: f64::from(self.clock_mhz.max(1)) / 1000.0,
            memory_nodes: self.memory_nodes,
            near_memory_nodes: self.near_memory_nodes.unwrap_or(self.memory_nodes),
            cpus_per_node: self.cpus_per_node,
            every: 1,
            seed: self.seed,
        }
    }

    /// The policy, as it was when the daemon started.
    fn decider(&self) -> Result<Decider, String> {
        if !(VERSION_WITHOUT_ACTION_RESULTS..=VERSION).contains(&self.nearpage_live) {
            return Err(format!(
                "a log of version {}; this nearpage reads versions up to {VERSION}",
                self.nearpage_live
            ));
        }
        let mut policy = LivePolicy::from_name(&self.policy)
            .ok_or_else(|| format!("no policy `{}`", self.policy))?;
        for (name, value) in &self.parameters {
            match policy.set(name, value) {
                Ok(true) => (),
                Ok(false) => return Err(format!("{} has no parameter `{name}`", self.policy)),
                Err(error) => return Err(error.to_string()),
            }
        }
        // The limit is the largest table that users can request.
        if self.pages > crate::PAGES_MOST {
            return Err(format!("{} pages: more than can be", self.pages));
        }
        let setting = self.setting();
        let policy = policy
            .start(&setting, &self.distance)
            .map_err(|error| error.to_string())?;
        let decider = Decider::new(policy, setting.nodes, setting.pages);
        Ok(match self.nearpage_live {
            VERSION_WITHOUT_ACTION_RESULTS => decider.without_costs().without_action_results(),
            VERSION_WITHOUT_COSTS => decider.without_costs(),
            _ => decider,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::ObservedAccess;
    use nearpage_recording::{AccessKind, Level};

    fn head() -> Head {
        let mut policy = LivePolicy::from_name("migrate").expect("policy");
        policy.set("trigger", "3").expect("a value");
        Head {
            nearpage_live: VERSION,
            policy: policy.name().to_owned(),
            parameters: policy.parameters(),
            nodes: vec![0, 2],
            memory_nodes: 0b11,
            near_memory_nodes: Some(0b11),
            cpus_per_node: 1,
            distance: Vec::new(),
            clock_mhz: 1000,
            pages: 10,
            page_bytes: 4096,
            seed: 1,
            source: "clock".to_owned(),
            estimated: vec!["accesses".to_owned()],
        }
    }

    /// A log of `intervals` intervals, in each of which another page becomes hot.
    fn log(intervals: u32) -> Vec<u8> {
        let head = head();
        let mut text = Vec::new();
        append(&mut text, &head).expect("written");
        let mut decider = head.decider().expect("policy");
        for number in 0..intervals {
            let seen = ObservedAccess {
                after_ns: 10,
                page: number,
                node: 1,
                home: 0,
                thread: 3,
                kind: AccessKind::Store,
                level: Level::Unknown,
            };
            let interval = Interval {
                begin_ns: 1_000_000_000 * u64::from(number),
                end_ns: 1_000_000_000 * u64::from(number + 1),
                accesses_per_thousand: 1000,
                observations: vec![seen; 3],
                ..Interval::default()
            };
            let decisions = decider.decide(&interval);
            append(&mut text, &Entry::of(interval, decisions)).expect("written");
        }
        text
    }

    #[test]
    fn a_log_is_decided_again() {
        let replayed = replay(&log(4)[..], "x").expect("the same");
        assert_eq!((replayed.intervals, replayed.decisions), (4, 4));
        assert!(!replayed.cut_short);
    }

    #[test]
    fn a_decision_that_is_not_the_same_is_shown() {
        let text = String::from_utf8(log(4)).expect("text");
        let changed = text.replacen(
            "\"page\":2,\"kind\":\"migrate\",\"node\":1",
            "\"page\":2,\"kind\":\"migrate\",\"node\":0",
            1,
        );
        assert_ne!(changed, text);
        let error = replay(changed.as_bytes(), "x").expect_err("another");
        assert_eq!(
            error.to_string(),
            "x, line 4: decision 0 was `migrate page 2 to node 0`, and is `migrate page 2 to node 1` now"
        );
    }

    #[test]
    fn a_killed_daemon_leaves_a_log_that_reads() {
        let whole = log(4);
        let end_of_third = whole
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(3)
            .expect("lines")
            .0;
        for cut in [end_of_third + 2, whole.len() - 2] {
            let replayed = replay(&whole[..cut], "x").expect("the rest");
            assert_eq!((replayed.intervals, replayed.cut_short), (3, true));
        }
        let damaged = [&whole[..end_of_third - 5], &whole[end_of_third..]].concat();
        let error = replay(&damaged[..], "x").expect_err("damaged").to_string();
        assert!(error.starts_with("x, line 4: "), "{error}");
    }

    #[test]
    fn threads_that_cannot_be_take_no_memory() {
        let text = String::from_utf8(log(2)).expect("text");
        let changed = text.replacen("[10,0,1,0,3,", "[10,0,1,0,4000000000,", 1);
        assert_ne!(changed, text);
        let error = replay(changed.as_bytes(), "x").expect_err("too many");
        assert_eq!(
            error.to_string(),
            "x, line 2: thread 4000000000: more than can be"
        );
    }

    #[test]
    fn files_that_are_no_log_are_refused_with_the_reason() {
        let version = Head {
            nearpage_live: 9,
            ..head()
        };
        let policy = Head {
            policy: "best".to_owned(),
            ..head()
        };
        let large = Head {
            pages: usize::MAX,
            ..head()
        };
        let line = |head: &Head| serde_json::to_string(head).expect("JSON");
        for (text, message) in [
            (String::new(), "x, line 1: it is empty"),
            ("{}\n".to_owned(), "x, line 1: not a log of nearpage live"),
            (
                line(&version),
                "x, line 1: a log of version 9; this nearpage reads versions up to 3",
            ),
            (line(&policy), "x, line 1: no policy `best`"),
            (
                line(&large),
                "x, line 1: 18446744073709551615 pages: more than can be",
            ),
        ] {
            let error = replay(text.as_bytes(), "x").expect_err(message);
            assert_eq!(error.to_string(), message);
        }
    }
}
