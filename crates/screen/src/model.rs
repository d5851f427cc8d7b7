//! What is known of the watched programs, from the daemon's reports.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nearpage_live::{Entry, LoggedProcess, MemoryWatch, Outcomes, Report, stage};
use nearpage_report::printable;
use rustc_hash::FxHashMap;

/// Intervals whose local share is drawn.
const HISTORY: usize = 240;
/// Decisions that are kept, the latest.
const DECISIONS_MAX: usize = 2000;
/// Processes that are kept after they ended, for the summary.
const ENDED_MAX: usize = 1000;
/// Intervals that the shares at the beginning and at the end are of.
const COMPARED: usize = 3;
/// Samples of a page count by this much less in each further interval: their mean age is five intervals.
const KEPT: f32 = 0.8;
/// Processes whose memory is asked for: those with the most samples.
const MEMORY_OF: usize = 30;
/// A page with less than this is forgotten.
const FORGOTTEN: f32 = 0.05;

/// Which command shows the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `nearpage live`: decisions, and pages that move.
    Live,
    /// `nearpage top`: nothing moves.
    Top,
}

/// What the screen is of.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Which command shows it.
    pub kind: Kind,
    /// What decides.
    pub policy: String,
    /// Numbers of the machine's nodes, by position.
    pub nodes: Vec<u16>,
    /// Size of a page.
    pub page_bytes: u64,
    /// Nothing is moved.
    pub dry_run: bool,
}

/// Sums over intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Samples of accesses.
    pub accesses: f64,
    /// Those to the memory of the CPU's own node.
    pub local: f64,
    /// CPU time.
    pub cpu_ns: f64,
    /// Time lost to memory.
    pub lost_ns: f64,
    /// Time lost to other nodes' memory.
    pub remote_lost_ns: f64,
}

impl Sums {
    /// Adds those of other intervals.
    pub fn add(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.local += other.local;
        self.cpu_ns += other.cpu_ns;
        self.lost_ns += other.lost_ns;
        self.remote_lost_ns += other.remote_lost_ns;
    }

    /// Local share of the accesses; `None` without any.
    pub fn local_share(&self) -> Option<f64> {
        (self.accesses > 0.0).then(|| self.local / self.accesses)
    }

    /// Share of the CPU time that was lost to memory.
    pub fn lost_share(&self) -> Option<f64> {
        (self.cpu_ns > 0.0).then(|| (self.lost_ns / self.cpu_ns).min(1.0))
    }

    /// Share of the CPU time that was lost to other nodes' memory.
    pub fn remote_share(&self) -> Option<f64> {
        (self.cpu_ns > 0.0).then(|| (self.remote_lost_ns / self.cpu_ns).min(1.0))
    }
}

/// A process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number at the kernel.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// Threads that have not ended.
    pub threads: u32,
    /// The last interval.
    pub now: Sums,
    /// CPUs that it used in it.
    pub cpus: f64,
    /// How it is treated, in words.
    pub stage: String,
    /// Pages that the policy wanted to move in the last interval.
    pub wanted: u64,
    /// All intervals.
    pub all: Sums,
    /// The first ones with samples.
    pub first: Sums,
    /// What became of its pages, in all.
    pub outcomes: Outcomes,
    /// Local share in each interval.
    pub history: VecDeque<Option<f64>>,
    /// It was not in the last report.
    pub has_ended: bool,
    sampled_intervals: usize,
    latest: VecDeque<Sums>,
}

impl Process {
    fn new(pid: u32) -> Self {
        Self {
            pid,
            name: String::new(),
            threads: 0,
            now: Sums::default(),
            cpus: 0.0,
            stage: String::new(),
            wanted: 0,
            all: Sums::default(),
            first: Sums::default(),
            outcomes: Outcomes::default(),
            history: VecDeque::new(),
            has_ended: false,
            sampled_intervals: 0,
            latest: VecDeque::new(),
        }
    }

    /// The last intervals with samples.
    pub fn last(&self) -> Sums {
        let mut sums = Sums::default();
        self.latest.iter().for_each(|one| sums.add(*one));
        sums
    }

    fn take(&mut self, logged: &LoggedProcess, now: Sums, length: Duration, dry_run: bool) {
        self.name = printable(&logged.name);
        self.stage = stage(logged, dry_run);
        self.wanted = logged.requested;
        self.outcomes.add(&logged.outcomes);
        self.now = now;
        self.cpus = now.cpu_ns / (length.as_nanos() as f64).max(1.0);
        self.all.add(now);
        push(&mut self.history, now.local_share(), HISTORY);
        if now.accesses > 0.0 {
            if self.sampled_intervals < COMPARED {
                self.first.add(now);
            }
            self.sampled_intervals += 1;
            push(&mut self.latest, now, COMPARED);
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}

/// A process and the number of a page in it.
pub type PageKey = (u16, u64);

/// A page that was sampled lately.
#[derive(Clone, Debug)]
pub struct PageSamples {
    /// The node that it was last seen on, by position.
    pub home: u16,
    /// Samples by node of their CPU, older ones counting less.
    pub by_node: Vec<f32>,
}

impl PageSamples {
    /// All samples.
    pub fn sum(&self) -> f32 {
        self.by_node.iter().sum()
    }

    /// Those from the node that it is on.
    pub fn local(&self) -> f32 {
        self.by_node
            .get(usize::from(self.home))
            .copied()
            .unwrap_or(0.0)
    }
}

/// A decision about a page.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Interval after which it was made, from 1.
    pub interval: u64,
    /// Process and page; `None`: of a page that is no longer known.
    pub page: Option<PageKey>,
    /// `migrate`, …
    pub kind: String,
    /// Where the page was, by position.
    pub from: Option<u16>,
    /// Node, by position.
    pub to: u16,
    /// The rule that fired.
    pub rule: String,
    /// The page's count for each node.
    pub counts: Vec<u32>,
    /// Its stores.
    pub writes: u32,
    /// Times that it has migrated.
    pub migrations: u32,
}

/// The last interval, as a whole.
#[derive(Clone, Debug, Default)]
pub struct IntervalTotals {
    /// Samples of accesses.
    pub samples: u64,
    /// Pages that are counted.
    pub hot_pages: usize,
    /// Why the policy leaves every program alone, if it does.
    pub why_idle: Option<String>,
    /// Accesses that found no room, in all.
    pub dropped: u64,
    /// Accesses to pages whose node is not known, in all.
    pub without_node: u64,
    /// Local share.
    pub local: Option<f64>,
    /// Standard deviation of the nodes' load over its mean.
    pub imbalance: f64,
    /// Accesses by node of the CPU and node of the page.
    pub traffic: Vec<Vec<u64>>,
    /// Pages that moved.
    pub moved: u64,
    /// Pages that were to move.
    pub wanted: u64,
}

/// All that is known.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it is of.
    pub subject: Subject,
    /// Intervals so far.
    pub intervals: u64,
    /// Time that they cover.
    pub watched: Duration,
    /// The last one.
    pub latest: IntervalTotals,
    /// Local share in each.
    pub local: VecDeque<Option<f64>>,
    /// Processes, by their number in reports.
    pub processes: BTreeMap<u16, Process>,
    /// What became of pages, in all.
    pub outcomes: Outcomes,
    /// How much memory moved.
    pub moved_bytes: u64,
    /// The longest call that moved pages.
    pub longest_call_ns: u64,
    /// Decisions, the latest last.
    pub decisions: VecDeque<Decision>,
    /// Decisions before these.
    pub decisions_before: u64,
    /// Bytes on each node, by process number at the kernel.
    pub memory: FxHashMap<u32, Vec<u64>>,
    numbers: FxHashMap<u32, PageKey>,
    pages: FxHashMap<PageKey, PageSamples>,
}

impl Model {
    /// Nothing was seen yet.
    pub fn new(subject: Subject) -> Self {
        Self {
            subject,
            intervals: 0,
            watched: Duration::ZERO,
            latest: IntervalTotals::default(),
            local: VecDeque::new(),
            processes: BTreeMap::new(),
            outcomes: Outcomes::default(),
            moved_bytes: 0,
            longest_call_ns: 0,
            decisions: VecDeque::new(),
            decisions_before: 0,
            memory: FxHashMap::default(),
            numbers: FxHashMap::default(),
            pages: FxHashMap::default(),
        }
    }

    /// Takes in what an interval came to.
    pub fn take(&mut self, report: &Report) {
        let entry = &report.entry;
        let interval = &entry.interval;
        let length = Duration::from_nanos(interval.end_ns.saturating_sub(interval.begin_ns));
        self.intervals += 1;
        self.watched += length;
        self.outcomes.add(&report.outcomes);
        self.moved_bytes += report.moved_bytes;
        self.longest_call_ns = self.longest_call_ns.max(report.longest_call_ns);
        self.latest = IntervalTotals {
            samples: interval.observations.len() as u64,
            hot_pages: report.hot_pages,
            why_idle: report.why_idle.clone(),
            dropped: report.dropped,
            without_node: report.without_node,
            local: report.local_share(),
            imbalance: report.imbalance(),
            traffic: report.traffic.clone(),
            moved: report.outcomes.moved,
            wanted: entry.processes.iter().map(|one| one.requested).sum(),
        };
        push(&mut self.local, report.local_share(), HISTORY);
        self.take_pages(entry);
        self.take_processes(report, length);
        self.take_decisions(entry);
    }

    fn take_processes(&mut self, report: &Report, length: Duration) {
        for process in self.processes.values_mut() {
            process.has_ended = true;
        }
        let dry_run = self.subject.dry_run;
        for (logged, time) in report.entry.processes.iter().zip(&report.process_times) {
            let accesses = logged.accesses as f64;
            let local = f64::from(logged.local_per_1000) / 1000.0;
            let now = Sums {
                accesses,
                local: accesses * local,
                cpu_ns: time.cpu_ns,
                lost_ns: time.lost_ns,
                // A sample stands for as much lost time as any other.
                remote_lost_ns: match logged.accesses {
                    0 => 0.0,
                    _ => time.lost_ns * (1.0 - local),
                },
            };
            let process = self.processes.entry(time.process);
            let process = process.or_insert_with(|| Process::new(logged.pid));
            process.has_ended = false;
            process.threads = time.threads;
            process.take(logged, now, length, dry_run);
        }
        let ended = |process: &Process| process.has_ended;
        let mut too_many = self.processes.values().filter(|one| ended(one)).count();
        too_many = too_many.saturating_sub(ENDED_MAX);
        self.processes.retain(|_, process| {
            let goes = too_many > 0 && process.has_ended;
            too_many -= usize::from(goes);
            !goes
        });
        let gone = |number: &u16| self.processes.get(number).is_none_or(ended);
        self.pages.retain(|(number, _), _| !gone(number));
    }

    fn take_pages(&mut self, entry: &Entry) {
        self.pages.retain(|_, page| {
            page.by_node.iter_mut().for_each(|count| *count *= KEPT);
            page.sum() >= FORGOTTEN
        });
        let interval = &entry.interval;
        for number in &interval.forgotten {
            self.numbers.remove(number);
        }
        let nodes = self.subject.nodes.len();
        let mut placed = interval.placed.iter().peekable();
        for (at, seen) in interval.observations.iter().enumerate() {
            while let Some(now) = placed.next_if(|placed| placed.after <= at) {
                self.numbers.insert(now.page, (now.process, now.number));
            }
            let Some(&key) = self.numbers.get(&seen.page) else {
                continue;
            };
            let page = self.pages.entry(key).or_insert_with(|| PageSamples {
                home: seen.home,
                by_node: vec![0.0; nodes],
            });
            page.home = seen.home;
            if let Some(count) = page.by_node.get_mut(usize::from(seen.node)) {
                *count += 1.0;
            }
        }
        for now in placed {
            self.numbers.insert(now.page, (now.process, now.number));
        }
    }

    fn take_decisions(&mut self, entry: &Entry) {
        for action in &entry.actions {
            let page = self.numbers.get(&action.page).copied();
            let decision = Decision {
                interval: self.intervals,
                page,
                kind: action.kind.clone().into_owned(),
                from: page.and_then(|key| Some(self.pages.get(&key)?.home)),
                to: action.node,
                rule: action.rule.clone().into_owned(),
                counts: action.counts.clone(),
                writes: action.writes,
                migrations: action.migrations,
            };
            self.decisions_before += u64::from(self.decisions.len() == DECISIONS_MAX);
            push(&mut self.decisions, decision, DECISIONS_MAX);
        }
    }

    /// Takes in what is known of processes' memory, and asks for what is to be known of it next.
    pub fn look_up_memory(&mut self, memory: &MemoryWatch) {
        let living = self.processes.values().filter(|one| !one.has_ended);
        let mut by_samples: Vec<(f64, u32)> =
            living.map(|one| (one.all.accesses, one.pid)).collect();
        by_samples.sort_by(|a, b| b.0.total_cmp(&a.0));
        by_samples.truncate(MEMORY_OF);
        let pids: Vec<u32> = by_samples.into_iter().map(|(_, pid)| pid).collect();
        self.memory = pids
            .iter()
            .filter_map(|&pid| Some((pid, memory.of(pid)?)))
            .collect();
        memory.want(pids);
    }

    /// The decision with this number, if it is kept.
    pub fn decision(&self, number: u64) -> Option<&Decision> {
        let at = number.checked_sub(self.decisions_before)?;
        self.decisions.get(usize::try_from(at).ok()?)
    }

    /// A page, if it was sampled lately.
    pub fn page(&self, key: PageKey) -> Option<&PageSamples> {
        self.pages.get(&key)
    }

    /// Pages of a process that were sampled lately: address and samples, in order.
    pub fn pages_of(&self, process: u16) -> Vec<(u64, &PageSamples)> {
        let of_process = self
            .pages
            .iter()
            .filter(|((other, _), _)| *other == process);
        let mut pages: Vec<_> = of_process
            .map(|((_, number), page)| (self.address(*number), page))
            .collect();
        pages.sort_unstable_by_key(|(address, _)| *address);
        pages
    }

    /// Where a page begins.
    pub fn address(&self, number: u64) -> u64 {
        number.saturating_mul(self.subject.page_bytes)
    }

    /// A node's number.
    pub fn node(&self, at: u16) -> u16 {
        let number = self.subject.nodes.get(usize::from(at));
        number.copied().unwrap_or(at)
    }
}
