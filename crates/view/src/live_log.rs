//! A log of `nearpage live`, read while the daemon writes it: decisions, their reasons, and movements of pages, in the
//! form of a simulation's results.
//!
//! The log contains the node of each sampled page, and the decisions. A page counts as *moved* if its next sample finds
//! it on another node, whether the daemon or the kernel moved it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nearpage_live::{Entry, Head, Interval, treated};
use nearpage_report::MovementsOutput;
use nearpage_simulator::{Movement, MovementKind, Movements, PageExtent};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::Error;

/// Limit of the number of nodes: [`Head::memory_nodes`] has a bit for each.
const NODES_MAX: usize = 64;
/// Maximum number of kept movements; the oldest are dropped.
const MOVEMENTS_MAX: usize = 100_000;
/// Maximum number of kept pages; accesses to further pages are only counted.
const PAGES_MAX: usize = 1 << 18;
/// Maximum number of kept intervals; the oldest are dropped.
const INTERVALS_MAX: usize = 20_000;
/// Maximum number of decisions that are shown with reasons. They are from the latest interval with decisions.
const DECISIONS_MAX: usize = 50;

/// A process, and the number of a page in the process.
type PageKey = (u16, u64);

/// A log that is being written.
#[derive(Debug)]
pub struct LiveLog {
    path: PathBuf,
    followed: Mutex<LogState>,
}

/// State of reading the log.
#[derive(Debug)]
struct LogState {
    head: Head,
    /// Bytes of the complete lines that were read.
    read_bytes: u64,
    lines: usize,
    /// Why reading has stopped.
    problem: Option<String>,
    begin_ns: Option<u64>,
    end_ns: u64,
    intervals: u64,
    /// Parts of the timeline, one for each interval: local accesses, remote accesses, moved pages, copies, collapses
    /// (always 0), and accesses by the node that served them.
    parts: VecDeque<Vec<u64>>,
    /// Process and page for each number in the log.
    numbers: FxHashMap<u32, PageKey>,
    pages: FxHashMap<PageKey, Homes>,
    pages_omitted: u64,
    movements: VecDeque<LoggedMove>,
    decided: ActionCounts,
    latest: Value,
    decisions: Value,
}

/// Nodes of a page.
#[derive(Clone, Copy, Debug)]
struct Homes {
    /// Node before the first kept movement.
    first: u16,
    last: u16,
    /// Kind of the latest decision about the page.
    decided: MovementKind,
}

#[derive(Clone, Copy, Debug)]
struct LoggedMove {
    time_ns: u64,
    page: PageKey,
    kind: MovementKind,
    from: u16,
    to: u16,
}

/// Numbers of decisions so far.
#[derive(Clone, Copy, Debug, Default)]
struct ActionCounts {
    migrate: u64,
    interleave: u64,
    replicate: u64,
    collapse: u64,
}

/// Accesses of an interval, and the number of pages that were found moved.
struct IntervalAccesses {
    local: u64,
    remote: u64,
    moved: u64,
    /// Accesses by the node that served them.
    served: Vec<u64>,
}

impl IntervalAccesses {
    /// JSON of the latest interval for the page.
    fn latest(&self, entry: &Entry) -> Value {
        let interval = &entry.interval;
        let all = self.local + self.remote;
        let processes = entry.processes.iter().map(|process| {
            let mut value = json!(process);
            value["treated"] = json!(treated(process));
            value
        });
        json!({
            "time_unix_ms": entry.time_unix_ms,
            "interval_ns": interval.end_ns.saturating_sub(interval.begin_ns),
            "samples": interval.observations.len(),
            "local_share": (all > 0).then(|| self.local as f64 / all as f64),
            "served": self.served,
            "moves_ns": interval.move_ns,
            "processes": processes.collect::<Vec<Value>>(),
        })
    }
}

/// Does the file begin like a log of `nearpage live`?
pub fn is_log(path: &Path) -> bool {
    let mut begin = [0; 32];
    let read = File::open(path).and_then(|mut file| file.read(&mut begin));
    read.is_ok_and(|length| begin[..length].starts_with(b"{\"nearpage_live\":"))
}

impl LiveLog {
    /// Opens a log and reads its complete lines.
    ///
    /// # Errors
    /// [`Error::Log`]: the file cannot be read, or is no log of `live`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refuse = |what: String| Error::Log {
            file: path.display().to_string(),
            what,
        };
        let mut lines = Lines::open(path, 0).map_err(|error| refuse(error.to_string()))?;
        let first = lines.next().map_err(|error| refuse(error.to_string()))?;
        let head: Head = serde_json::from_slice(first.unwrap_or_default())
            .map_err(|error| refuse(format!("its first line: {}", in_one_line(&error))))?;
        if head.nodes.len() > NODES_MAX {
            let nodes = head.nodes.len();
            return Err(refuse(format!(
                "its first line: expected at most {NODES_MAX} nodes, found {nodes}"
            )));
        }
        let mut followed = LogState {
            head,
            read_bytes: 0,
            lines: 1,
            problem: None,
            begin_ns: None,
            end_ns: 0,
            intervals: 0,
            parts: VecDeque::new(),
            numbers: FxHashMap::default(),
            pages: FxHashMap::default(),
            pages_omitted: 0,
            movements: VecDeque::new(),
            decided: ActionCounts::default(),
            latest: Value::Null,
            decisions: Value::Null,
        };
        followed.take(lines);
        Ok(Self {
            path: path.to_owned(),
            followed: Mutex::new(followed),
        })
    }

    /// Path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// JSON of the log's present state; if the log still has `seen` intervals, only their number.
    pub fn answer(&self, seen: Option<u64>) -> Value {
        let mut followed = self.followed.lock().expect("nobody panics holding it");
        if followed.problem.is_none() {
            match Lines::open(&self.path, followed.read_bytes) {
                Ok(lines) => followed.take(lines),
                Err(error) => followed.problem = Some(error.to_string()),
            }
        }
        if seen == Some(followed.intervals) && followed.problem.is_none() {
            return json!({ "intervals": followed.intervals });
        }
        let mut value = followed.value();
        value["log"] = json!(self.path.display().to_string());
        value
    }
}

/// Message about an invalid line, without control characters: the message can quote any part of the line.
fn in_one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let letters = text.chars().take(300);
    letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// Reads complete lines one at a time, because a log may cover days.
struct Lines {
    file: BufReader<File>,
    line: Vec<u8>,
    /// Position after the last complete line.
    read_bytes: u64,
}

impl Lines {
    fn open(path: &Path, from: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < from {
            return Err(io::Error::other("it became shorter while it was followed"));
        }
        file.seek(SeekFrom::Start(from))?;
        Ok(Self {
            file: BufReader::new(file),
            line: Vec::new(),
            read_bytes: from,
        })
    }

    /// The next complete line. A line that is still being written is read later.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.file.read_until(b'\n', &mut self.line)?;
        let whole = self.line.last() == Some(&b'\n');
        if whole {
            self.read_bytes += self.line.len() as u64;
        }
        Ok(whole.then_some(&self.line))
    }
}

impl LogState {
    fn take(&mut self, mut lines: Lines) {
        self.problem = loop {
            match lines.next() {
                Ok(None) => break None,
                Ok(Some(line)) => {
                    self.lines += 1;
                    match serde_json::from_slice(line) {
                        Ok(entry) => self.add(&entry),
                        Err(error) => {
                            break Some(format!("line {}: {}", self.lines, in_one_line(&error)));
                        }
                    }
                }
                Err(error) => break Some(error.to_string()),
            }
        };
        self.read_bytes = lines.read_bytes;
    }

    fn add(&mut self, entry: &Entry) {
        let interval = &entry.interval;
        self.intervals += 1;
        let begin_ns = *self.begin_ns.get_or_insert(interval.begin_ns);
        self.end_ns = interval.end_ns.saturating_sub(begin_ns);
        for number in &interval.forgotten {
            self.numbers.remove(number);
        }
        let seen = self.observe(interval, begin_ns);
        let copies = self.count_decisions(entry);
        let mut part = vec![seen.local, seen.remote, seen.moved, copies, 0];
        part.extend(&seen.served);
        self.parts.push_back(part);
        if self.parts.len() > INTERVALS_MAX {
            self.parts.pop_front();
        }
        self.latest = seen.latest(entry);
        if !entry.actions.is_empty() || !entry.thread_moves.is_empty() {
            self.decisions = self.reasons(entry);
        }
    }

    /// Notes the homes of an interval's pages. The log assigns a page number before the number's first access.
    fn observe(&mut self, interval: &Interval, begin_ns: u64) -> IntervalAccesses {
        let mut all = IntervalAccesses {
            local: 0,
            remote: 0,
            moved: 0,
            served: vec![0; self.head.nodes.len()],
        };
        let mut placed = interval.placed.iter().peekable();
        for (at, seen) in interval.observations.iter().enumerate() {
            while let Some(one) = placed.next_if(|one| one.after <= at) {
                self.numbers.insert(one.page, (one.process, one.number));
            }
            match seen.node == seen.home {
                true => all.local += 1,
                false => all.remote += 1,
            }
            if let Some(sum) = all.served.get_mut(usize::from(seen.home)) {
                *sum += 1;
            }
            let time_ns =
                (interval.begin_ns.saturating_sub(begin_ns)).saturating_add(seen.after_ns);
            all.moved += u64::from(self.see(seen.page, seen.home, time_ns));
        }
        for one in placed {
            self.numbers.insert(one.page, (one.process, one.number));
        }
        all
    }

    /// Counts an interval's decisions by kind, and returns the number of replications.
    fn count_decisions(&mut self, entry: &Entry) -> u64 {
        let mut copies = 0;
        for action in &entry.actions {
            let kind = match &*action.kind {
                "interleave" => MovementKind::Interleave,
                "replicate" => MovementKind::Replicate,
                "collapse" => MovementKind::Collapse,
                _ => MovementKind::Migrate,
            };
            let (sum, shown_as) = match kind {
                // Pages are spread instead, because a stock kernel cannot replicate.
                MovementKind::Replicate => {
                    copies += 1;
                    (&mut self.decided.replicate, MovementKind::Interleave)
                }
                MovementKind::Interleave => (&mut self.decided.interleave, kind),
                MovementKind::Collapse => (&mut self.decided.collapse, kind),
                _ => (&mut self.decided.migrate, kind),
            };
            *sum += 1;
            let key = self.numbers.get(&action.page);
            if let Some(homes) = key.and_then(|key| self.pages.get_mut(key)) {
                homes.decided = shown_as;
            }
        }
        copies
    }

    /// JSON of an interval's decisions, with reasons for the first of them.
    fn reasons(&self, entry: &Entry) -> Value {
        let page = |number: u32| {
            let key = self.numbers.get(&number);
            key.map(|(process, page)| {
                json!([
                    process,
                    format!("{:#x}", page.saturating_mul(self.page_bytes()))
                ])
            })
        };
        let actions = entry.actions.iter().take(DECISIONS_MAX);
        json!({
            "interval": self.intervals,
            "pages": entry.actions.len(),
            "such_as": actions.map(|action| json!({
                "page": page(action.page), "kind": action.kind, "node": action.node,
                "rule": action.rule, "counts": action.counts, "stores": action.writes,
            })).collect::<Vec<Value>>(),
            "threads": entry.thread_moves,
        })
    }

    /// Notes that a page was seen at a node. Has the page moved since it was last seen?
    fn see(&mut self, number: u32, home: u16, time_ns: u64) -> bool {
        let Some(&page) = self.numbers.get(&number) else {
            return false;
        };
        if !self.pages.contains_key(&page) && self.pages.len() >= PAGES_MAX {
            self.pages_omitted += 1;
            return false;
        }
        let homes = self.pages.entry(page).or_insert(Homes {
            first: home,
            last: home,
            decided: MovementKind::Migrate,
        });
        if homes.last == home {
            return false;
        }
        self.movements.push_back(LoggedMove {
            time_ns,
            page,
            kind: homes.decided,
            from: homes.last,
            to: home,
        });
        homes.last = home;
        if self.movements.len() > MOVEMENTS_MAX
            && let Some(gone) = self.movements.pop_front()
            && let Some(homes) = self.pages.get_mut(&gone.page)
        {
            homes.first = gone.to;
        }
        true
    }

    fn page_bytes(&self) -> u64 {
        self.head.page_bytes
    }

    fn value(&self) -> Value {
        let Head {
            policy,
            parameters,
            nodes,
            source,
            estimated,
            ..
        } = &self.head;
        let sum = |at: usize| self.parts.iter().map(|part| part[at]).sum::<u64>();
        let (local, remote) = (sum(0), sum(1));
        let load: Vec<u64> = (5..5 + nodes.len()).map(sum).collect();
        let result = json!({
            "policy": policy,
            "time_ns": self.end_ns.max(1),
            "local_share": local as f64 / (local + remote).max(1) as f64,
            "migrated": sum(2),
            "controller_load": load,
            "timeline": {
                "part_ns": self.end_ns / self.intervals.max(1),
                "parts": self.parts,
            },
            "movements": MovementsOutput::new(&self.movements(), self.page_bytes(), &[]),
        });
        json!({
            "intervals": self.intervals,
            "policy": policy,
            "parameters": parameters,
            "nodes": nodes,
            "source": source,
            "estimated": estimated,
            "problem": self.problem,
            "decided": {
                "migrate": self.decided.migrate,
                "interleave": self.decided.interleave,
                "replicate": self.decided.replicate,
                "collapse": self.decided.collapse,
            },
            "latest": self.latest,
            "decisions": self.decisions,
            "result": result,
        })
    }

    /// Pages in the order of process and address, with their movements.
    fn movements(&self) -> Movements {
        let mut pages: Vec<(&PageKey, &Homes)> = self.pages.iter().collect();
        pages.sort_unstable_by_key(|(key, _)| **key);
        let mut position = FxHashMap::default();
        let mut extents: Vec<PageExtent> = Vec::new();
        let mut before: Option<PageKey> = None;
        for (at, (&(process, number), homes)) in pages.into_iter().enumerate() {
            position.insert((process, number), at as u32);
            let home = (homes.first as u8, homes.last as u8);
            match (extents.last_mut(), before) {
                (Some(extent), Some((same, last)))
                    if same == process && last.checked_add(1) == Some(number) =>
                {
                    extent.homes.push(home);
                }
                _ => extents.push(PageExtent {
                    application: process,
                    page_number: number,
                    homes: vec![home],
                }),
            }
            before = Some((process, number));
        }
        let kept = self.movements.iter().filter_map(|moved| {
            Some(Movement {
                time_ns: moved.time_ns,
                page: *position.get(&moved.page)?,
                kind: moved.kind,
                from: moved.from,
                to: moved.to,
            })
        });
        Movements {
            kept: kept.collect(),
            omitted: 0,
            extents,
            pages_omitted: self.pages_omitted,
        }
    }
}

#[cfg(test)]
mod tests;
