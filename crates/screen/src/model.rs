//! State of the watched programs, from the daemon's reports.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nearpage_live::{Entry, LoggedProcess, MemoryWatch, Outcomes, Report, stage};
use nearpage_report::printable;
use rustc_hash::FxHashMap;

/// Number of intervals in the history of the local share.
const HISTORY: usize = 240;
/// Maximum number of kept decisions; the oldest are dropped.
const DECISIONS_MAX: usize = 2000;
/// Maximum number of processes that are kept after their end, for the summary.
const ENDED_MAX: usize = 1000;
/// Number of intervals in the shares at the beginning and at the end.
const COMPARED_INTERVALS: usize = 3;
/// Factor by which the weight of a page's samples falls in each further interval. The mean age of samples is five
/// intervals.
const SAMPLE_DECAY: f32 = 0.8;
/// Number of processes whose memory is queried: those with the most samples.
const MEMORY_OF: usize = 30;
/// Pages with a smaller sum of samples are forgotten.
const SAMPLES_MIN: f32 = 0.05;

/// The command that shows the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `nearpage live`, with decisions and moves of pages.
    Live,
    /// `nearpage top`, without moves.
    Top,
}

/// The subject of the screen.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The command that shows the screen.
    pub kind: Kind,
    /// Name of the policy.
    pub policy: String,
    /// Numbers of the machine's nodes, by position.
    pub nodes: Vec<u16>,
    /// Size of a page.
    pub page_bytes: u64,
    /// Is nothing moved?
    pub dry_run: bool,
}

/// Sums over intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Samples of accesses.
    pub accesses: f64,
    /// Part of `accesses` to the memory of the CPU's own node.
    pub local: f64,
    /// CPU time.
    pub cpu_ns: f64,
    /// Time lost to memory.
    pub lost_ns: f64,
    /// Time lost to other nodes' memory.
    pub remote_lost_ns: f64,
}

impl Sums {
    /// Adds the sums of other intervals.
    pub fn add(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.local += other.local;
        self.cpu_ns += other.cpu_ns;
        self.lost_ns += other.lost_ns;
        self.remote_lost_ns += other.remote_lost_ns;
    }

    /// Local share of the accesses; `None` without accesses.
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

/// State of a process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// Threads that have not ended.
    pub threads: u32,
    /// Sums of the last interval.
    pub now: Sums,
    /// CPUs that the process used in the last interval.
    pub cpus: f64,
    /// State of migration for the process, as text.
    pub stage: String,
    /// Pages that the policy wanted to move in the last interval.
    pub wanted: u64,
    /// Sums of all intervals.
    pub all: Sums,
    /// Sums of the first intervals with samples.
    pub first: Sums,
    /// Numbers of pages by the result of their moves, over all intervals.
    pub outcomes: Outcomes,
    /// Local share in each of the last intervals.
    pub history: VecDeque<Option<f64>>,
    /// Is the process missing from the last report?
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

    /// Sums of the last intervals with samples.
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
            if self.sampled_intervals < COMPARED_INTERVALS {
                self.first.add(now);
            }
            self.sampled_intervals += 1;
            push(&mut self.latest, now, COMPARED_INTERVALS);
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}

/// A process, and the number of a page in the process.
pub type PageKey = (u16, u64);

/// A recently sampled page.
#[derive(Clone, Debug)]
pub struct PageSamples {
    /// Position of the node on which the page was last seen.
    pub home: u16,
    /// Samples by node of the CPU; older samples have less weight.
    pub by_node: Vec<f32>,
}

impl PageSamples {
    /// Sum of the samples.
    pub fn sum(&self) -> f32 {
        self.by_node.iter().sum()
    }

    /// Samples from CPUs of the page's node.
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
    /// Number of the interval after which the decision was made, from 1.
    pub interval: u64,
    /// Process and page; `None` if the page is no longer known.
    pub page: Option<PageKey>,
    /// Kind of the decision, such as `migrate`.
    pub kind: String,
    /// Position of the page's node before the decision.
    pub from: Option<u16>,
    /// Position of the destination node.
    pub to: u16,
    /// The rule that fired.
    pub rule: String,
    /// The page's count for each node.
    pub counts: Vec<u32>,
    /// Number of stores to the page.
    pub writes: u32,
    /// Number of migrations of the page.
    pub migrations: u32,
}

/// Totals of the last interval.
#[derive(Clone, Debug, Default)]
pub struct IntervalTotals {
    /// Samples of accesses.
    pub samples: u64,
    /// Number of pages with counters.
    pub hot_pages: usize,
    /// Why the policy does nothing for all programs, if it does nothing.
    pub why_idle: Option<String>,
    /// Accesses without a counter, because there was no room, over all intervals.
    pub dropped: u64,
    /// Accesses to pages whose node is not known, over all intervals.
    pub without_node: u64,
    /// Local share of the accesses.
    pub local: Option<f64>,
    /// Standard deviation of the nodes' load, divided by the mean.
    pub imbalance: f64,
    /// Accesses by node of the CPU and node of the page.
    pub traffic: Vec<Vec<u64>>,
    /// Number of pages that moved.
    pub moved: u64,
    /// Number of pages that were requested to move.
    pub wanted: u64,
}

/// Everything that the screen shows.
#[derive(Clone, Debug)]
pub struct Model {
    /// The subject of the screen.
    pub subject: Subject,
    /// Number of intervals so far.
    pub intervals: u64,
    /// Time of the intervals so far.
    pub watched: Duration,
    /// Totals of the last interval.
    pub latest: IntervalTotals,
    /// Local share in each of the last intervals.
    pub local: VecDeque<Option<f64>>,
    /// Processes, by their number in reports.
    pub processes: BTreeMap<u16, Process>,
    /// Numbers of pages by the result of their moves, over all intervals.
    pub outcomes: Outcomes,
    /// Amount of moved memory, in bytes.
    pub moved_bytes: u64,
    /// Time of the longest call that moved pages.
    pub longest_call_ns: u64,
    /// Kept decisions, newest last.
    pub decisions: VecDeque<Decision>,
    /// Number of decisions before the kept ones.
    pub decisions_before: u64,
    /// Bytes on each node, by process ID.
    pub memory: FxHashMap<u32, Vec<u64>>,
    numbers: FxHashMap<u32, PageKey>,
    pages: FxHashMap<PageKey, PageSamples>,
}

impl Model {
    /// State before the first interval.
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

    /// Adds the report of an interval.
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
                // Each sample stands for an equal share of the lost time.
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
            page.by_node
                .iter_mut()
                .for_each(|count| *count *= SAMPLE_DECAY);
            page.sum() >= SAMPLES_MIN
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

    /// Takes the known sizes of processes' memory, and requests the next query.
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
        memory.set_watched(pids);
    }

    /// The decision with this number, if it is still kept.
    pub fn decision(&self, number: u64) -> Option<&Decision> {
        let at = number.checked_sub(self.decisions_before)?;
        self.decisions.get(usize::try_from(at).ok()?)
    }

    /// A page, if it was sampled recently.
    pub fn page(&self, key: PageKey) -> Option<&PageSamples> {
        self.pages.get(&key)
    }

    /// Recently sampled pages of a process, by address.
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

    /// Address of a page.
    pub fn address(&self, number: u64) -> u64 {
        number.saturating_mul(self.subject.page_bytes)
    }

    /// Number of the node at a position.
    pub fn node(&self, at: u16) -> u16 {
        let number = self.subject.nodes.get(usize::from(at));
        number.copied().unwrap_or(at)
    }
}
