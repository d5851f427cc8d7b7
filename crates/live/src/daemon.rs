//! The loop: what an interval showed, what the policy wants, what care allows, what the kernel did.

use std::io::Write;

use nearpage_machine::{CpuId, CpuList, Machine, NodeId};
use nearpage_policy::online::View;
use nearpage_policy::online::traffic::imbalance;
use nearpage_recording::AccessKind;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::batches::Limits;
use crate::care::Caution;
use crate::decide::{Decider, Decisions, Interval, Observed, Placed, ThreadTotals};
use crate::error::Error;
use crate::free_memory::FreeMemory;
use crate::kernel::Kernel;
use crate::log::{self, Entry, Head, LoggedProcess};
use crate::mover::{Identity, Mover, Outcomes};
use crate::observer::Observer;
use crate::pages::{HotPages, Page, ProcessIndex};
use crate::policies::Policy;
use crate::process::{Acted, TargetProcess};
use crate::wishes::Wishing;

/// How the daemon works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What decides.
    pub policy: Policy,
    /// Pages that counters are kept of, in all (Carrefour §4.4: 30,000).
    pub pages: usize,
    /// What moving may cost.
    pub limits: Limits,
    /// Thresholds of its caution.
    pub caution: Caution,
    /// Decide, and move nothing.
    pub dry_run: bool,
    /// Pin threads where the policy wants them.
    pub moves_threads: bool,
    /// Where random draws start.
    pub seed: u64,
    /// Size of a page.
    pub page_bytes: u64,
    /// Memory accesses that a sample stands for; an estimate.
    pub accesses_per_sample: f64,
    /// Where samples come from, in a word.
    pub source: String,
}

/// What an interval came to: for the terminal, the metrics and the log.
#[derive(Clone, Debug)]
pub struct Report {
    /// What goes to the log.
    pub entry: Entry,
    /// What the policy wants to be shown.
    pub view: Option<View>,
    /// Observed accesses by node of their CPU and node of their page, by position.
    pub traffic: Vec<Vec<u64>>,
    /// Pages in the table.
    pub hot_pages: usize,
    /// Pages that had to make way for hotter ones so far.
    pub given_up: u64,
    /// Accesses since the daemon started that found no room between two decisions.
    pub dropped: u64,
    /// Accesses since then whose page's node the kernel did not tell.
    pub without_node: u64,
    /// Wishes that time did not suffice for.
    pub left: u64,
    /// Sums over processes.
    pub outcomes: Outcomes,
    /// How much memory moved.
    pub moved_bytes: u64,
    /// Time in all calls that moved pages.
    pub in_calls_ns: u64,
    /// The longest of them.
    pub longest_call_ns: u64,
}

impl Report {
    /// Local share of the accesses, 0 to 1; `None` without any.
    pub fn local_share(&self) -> Option<f64> {
        let all: u64 = self.traffic.iter().flatten().sum();
        let local: u64 = (0..self.traffic.len()).map(|at| self.traffic[at][at]).sum();
        (all > 0).then(|| local as f64 / all as f64)
    }

    /// Standard deviation of the controllers' shares over their mean (Carrefour §3.2).
    pub fn imbalance(&self) -> f64 {
        let loads: Vec<f64> = (0..self.traffic.len())
            .map(|to| self.traffic.iter().map(|from| from[to] as f64).sum())
            .collect();
        imbalance(&loads)
    }
}

/// The daemon, without the sampler in front of it.
pub struct Daemon {
    settings: Settings,
    nodes: Vec<NodeId>,
    memory_nodes: u64,
    node_of_cpu: FxHashMap<CpuId, u16>,
    /// By position.
    cpus_of_node: Vec<CpuList>,
    decider: Decider,
    pages: HotPages,
    mover: Mover,
    processes: FxHashMap<ProcessIndex, TargetProcess>,
    /// Numbers of pages whose process has ended.
    forgotten: Vec<u32>,
    interval_begin_ns: u64,
    moves_ns: u64,
}

impl Daemon {
    /// Starts without knowing anything.
    ///
    /// # Errors
    /// A policy that makes no sense on this machine.
    pub fn new(settings: Settings, machine: &Machine, now_ns: u64) -> Result<Self, Error> {
        let nodes = machine.node_ids();
        let mut node_of_cpu = FxHashMap::default();
        for (at, node) in machine.nodes.iter().enumerate() {
            node_of_cpu.extend(node.cpus.iter().map(|cpu| (*cpu, at as u16)));
        }
        let memory_nodes = memory_nodes(machine);
        let head = head(&settings, &nodes, memory_nodes);
        let policy = settings.policy.start(&head.setting())?;
        Ok(Self {
            decider: Decider::new(policy, nodes.len(), settings.pages),
            pages: HotPages::new(settings.pages),
            mover: Mover::new(settings.limits, settings.page_bytes, settings.pages, now_ns),
            processes: FxHashMap::default(),
            forgotten: Vec::new(),
            interval_begin_ns: now_ns,
            moves_ns: 0,
            settings,
            nodes,
            memory_nodes,
            node_of_cpu,
            cpus_of_node: machine
                .nodes
                .iter()
                .map(|node| node.cpus.iter().copied().collect())
                .collect(),
        })
    }

    /// The machine's nodes, by position.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The log's first line.
    pub fn head(&self) -> Head {
        head(&self.settings, &self.nodes, self.memory_nodes)
    }

    /// An interval has ended: decides and acts, in at most `budget_ns`.
    ///
    /// # Errors
    /// A log that cannot be written.
    pub fn step(
        &mut self,
        observer: &mut Observer,
        kernel: &mut dyn Kernel,
        free: &FreeMemory,
        budget_ns: u64,
        log: Option<&mut dyn Write>,
    ) -> Result<Report, Error> {
        let now_ns = kernel.now_ns();
        self.look_after(observer, kernel);
        let (interval, traffic) = self.interval(observer, free, now_ns);
        let decisions = self.decider.decide(&interval);
        let mut report = Report {
            entry: Entry::of(interval, &decisions),
            view: decisions.view,
            traffic,
            hot_pages: self.pages.len(),
            given_up: self.pages.given_up(),
            dropped: observer.dropped,
            without_node: observer.without_node,
            left: 0,
            outcomes: Outcomes::default(),
            moved_bytes: 0,
            in_calls_ns: 0,
            longest_call_ns: 0,
        };
        self.act(
            observer,
            kernel,
            free,
            &decisions,
            now_ns + budget_ns,
            &mut report,
        );
        self.moves_ns = report.in_calls_ns;
        self.pages.cool();
        observer.begin_interval();
        self.interval_begin_ns = now_ns;
        report.entry.time_unix_ms = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64);
        if let Some(log) = log {
            log::append(log, &report.entry).map_err(Error::WriteLog)?;
        }
        Ok(report)
    }

    /// The daemon ends: nothing is left behind in the targets but where their pages are.
    pub fn let_go(&mut self, kernel: &mut dyn Kernel) {
        for process in self.processes.values_mut() {
            process.let_go(kernel);
        }
    }

    /// Processes that are new, have ended, or are other programs now.
    fn look_after(&mut self, observer: &Observer, kernel: &mut dyn Kernel) {
        for (at, process) in observer.processes().iter().enumerate() {
            let index = ProcessIndex(at as u32);
            let over = process.threads == 0;
            if over || process.replaced {
                if self.processes.remove(&index).is_some() {
                    self.forgotten.extend(self.pages.forget_process(index));
                }
                if over {
                    continue;
                }
            }
            if self.processes.contains_key(&index) {
                continue;
            }
            let Some(started) = kernel.started(process.pid) else {
                continue;
            };
            let identity = Identity {
                pid: process.pid,
                started,
            };
            let process = TargetProcess::new(identity, self.settings.caution);
            self.processes.insert(index, process);
        }
        // Of those that nothing was seen of nothing is decided.
        let seen: FxHashSet<ProcessIndex> =
            observer.seen().iter().map(|seen| seen.process).collect();
        for index in seen {
            if let Some(process) = self.processes.get_mut(&index) {
                process.read_space(kernel);
            }
        }
    }

    /// The inputs of decisions, and who accessed whose memory.
    fn interval(
        &mut self,
        observer: &Observer,
        free: &FreeMemory,
        now_ns: u64,
    ) -> (Interval, Vec<Vec<u64>>) {
        let page_bytes = self.settings.page_bytes;
        let mut interval = Interval {
            begin_ns: self.interval_begin_ns,
            end_ns: now_ns,
            accesses_per_thousand: (self.settings.accesses_per_sample * 1000.0) as u64,
            free_per_10000: free.per_10000(),
            full: (0..self.nodes.len())
                .map(|node| free.is_full(node))
                .collect(),
            forgotten: std::mem::take(&mut self.forgotten),
            move_ns: self.moves_ns,
            ..Interval::default()
        };
        let mut traffic = vec![vec![0; self.nodes.len()]; self.nodes.len()];
        let mut totals: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        let mut latest_ns = 0;
        for seen in observer.seen() {
            let access = &seen.access;
            let known = self.node_of_cpu.get(&access.cpu).copied();
            let (Some(node), Some(home)) = (known, self.position(seen.page_node)) else {
                continue;
            };
            // What the kernel hands over is in order of time but for a few.
            latest_ns = access
                .time_ns
                .saturating_sub(interval.begin_ns)
                .max(latest_ns);
            let page_start = match self.processes.get(&seen.process) {
                Some(process) => process.space().page(access.address, page_bytes).0,
                None => access.address - access.address % page_bytes,
            };
            let page = Page {
                process: seen.process,
                address: page_start,
            };
            let touched = self.pages.touch(page);
            if touched.new {
                interval.placed.push(Placed {
                    after: interval.observations.len(),
                    page: touched.number,
                    process: seen.process.0.min(u16::MAX.into()) as u16,
                    number: page.address / page_bytes,
                });
            }
            traffic[usize::from(node)][usize::from(home)] += 1;
            let total = totals.entry(access.thread.0).or_default();
            match access.kind {
                AccessKind::Store => total.1 += 1,
                AccessKind::Load | AccessKind::Fetch => total.0 += 1,
            }
            interval.observations.push(Observed {
                after_ns: latest_ns.min(now_ns - interval.begin_ns),
                page: touched.number,
                node,
                home,
                thread: access.thread.0,
                kind: access.kind,
                level: access.level,
            });
        }
        for (number, thread) in observer.threads().iter().enumerate() {
            let node = thread.cpu.and_then(|cpu| self.node_of_cpu.get(&cpu));
            let (true, Some(&node)) = (thread.live, node) else {
                continue;
            };
            let (reads, writes) = totals.get(&(number as u32)).copied().unwrap_or_default();
            interval.threads.push(ThreadTotals {
                thread: number as u32,
                process: thread.process.0.min(u16::MAX.into()) as u16,
                node,
                busy_ns: thread.busy_ns,
                reads,
                writes,
            });
        }
        (interval, traffic)
    }

    fn position(&self, node: NodeId) -> Option<u16> {
        let at = self.nodes.iter().position(|id| *id == node)?;
        Some(at as u16)
    }

    fn act(
        &mut self,
        observer: &Observer,
        kernel: &mut dyn Kernel,
        free: &FreeMemory,
        decisions: &Decisions,
        deadline_ns: u64,
        report: &mut Report,
    ) {
        let observations = &report.entry.interval.observations;
        let homes: FxHashMap<u32, u16> = observations
            .iter()
            .map(|seen| (seen.page, seen.home))
            .collect();
        let wishing = Wishing {
            nodes: &self.nodes,
            memory_nodes: self.memory_nodes,
            page_bytes: self.settings.page_bytes,
            pages: &self.pages,
            homes: &homes,
            free,
            processes: &self.processes,
        };
        let mut wishes = wishing.wishes(&decisions.actions);
        let local = local_by_process(observer, &report.entry.interval);
        let seen_at = |number: u32| Some(self.nodes[usize::from(*homes.get(&number)?)]);
        let most = self.settings.pages;
        let moves = !self.settings.dry_run && self.nodes.len() > 1;
        if self.settings.moves_threads {
            for wish in &decisions.thread_moves {
                let thread = observer.threads().get(wish.thread.0 as usize);
                let cpus = self.cpus_of_node.get(usize::from(wish.node));
                if let (Some(thread), Some(cpus)) = (thread, cpus)
                    && let Some(process) = self.processes.get_mut(&thread.process)
                {
                    process.pin(thread.tid, cpus.clone());
                }
            }
        }
        self.mover.begin_round();
        let mut order: Vec<ProcessIndex> = self.processes.keys().copied().collect();
        order.sort_unstable();
        for index in order {
            let seen = &observer.processes()[index.0 as usize];
            let process = self.processes.get_mut(&index).expect("listed above");
            let new = wishes.remove(&index).unwrap_or_default();
            let wished = new.pages.len() as u64;
            let mut outcomes = process.take_in(new.pages, &self.pages, seen_at, most);
            let acted = match moves && process.is_claimed() {
                true => process.act(seen.loss, &mut self.mover, kernel, deadline_ns, most),
                false => Acted::default(),
            };
            let round = &acted.round;
            outcomes.add(&round.outcomes);
            let (ours, all) = local.get(&index).copied().unwrap_or_default();
            report.entry.processes.push(LoggedProcess {
                pid: seen.pid,
                name: seen.name.clone(),
                stage: process.stage(),
                lost_per_1000: (seen.loss.share() * 1000.0) as u32,
                local_per_1000: (1000 * ours / all.max(1)) as u32,
                accesses: all,
                wished,
                replications_interleaved: new.replications_interleaved,
                moved_back: acted.moved_back,
                threads_pinned: acted.pinned,
                outcomes,
                longest_call_ns: round.longest_call_ns,
            });
            report.outcomes.add(&outcomes);
            report.moved_bytes += round.moved_bytes;
            report.left += round.left;
            report.in_calls_ns += round.in_calls_ns;
            report.longest_call_ns = report.longest_call_ns.max(round.longest_call_ns);
        }
    }
}

/// Local accesses and all accesses of each process.
fn local_by_process(
    observer: &Observer,
    interval: &Interval,
) -> FxHashMap<ProcessIndex, (u64, u64)> {
    let mut local: FxHashMap<ProcessIndex, (u64, u64)> = FxHashMap::default();
    for seen in &interval.observations {
        let Some(thread) = observer.threads().get(seen.thread as usize) else {
            continue;
        };
        let (ours, all) = local.entry(thread.process).or_default();
        *ours += u64::from(seen.node == seen.home);
        *all += 1;
    }
    local
}

/// Bit n: the node at position n has memory.
fn memory_nodes(machine: &Machine) -> u64 {
    let with_memory = machine.nodes_with_memory();
    machine
        .nodes
        .iter()
        .enumerate()
        .filter(|(at, node)| *at < 64 && with_memory.contains(&node.id))
        .fold(0, |bits, (at, _)| bits | 1 << at)
}

fn head(settings: &Settings, nodes: &[NodeId], memory_nodes: u64) -> Head {
    Head {
        nearpage_live: log::VERSION,
        policy: settings.policy.name().to_owned(),
        parameters: settings.policy.parameters(),
        nodes: nodes.iter().map(|node| node.0).collect(),
        memory_nodes,
        pages: settings.pages,
        page_bytes: settings.page_bytes,
        seed: settings.seed,
        source: settings.source.clone(),
        estimated: vec![
            "accesses".to_owned(),
            "controller requests".to_owned(),
            "local and remote accesses".to_owned(),
        ],
    }
}

#[cfg(test)]
pub(crate) mod tests;
