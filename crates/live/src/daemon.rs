//! The loop: what an interval showed, what the policy wants, what care allows, what the kernel did.

use std::io::Write;

use nearpage_machine::{CpuId, Machine, NodeId};
use nearpage_policy::online::{Action, ActionKind, View};
use nearpage_recording::AccessKind;
use rustc_hash::FxHashMap;

use crate::batches::Limits;
use crate::care::{Care, Caution, Stage, Verdict};
use crate::claim::Claim;
use crate::decide::{Decider, Decisions, Interval, Observed, Placed, ThreadTotals};
use crate::error::Error;
use crate::free_memory::FreeMemory;
use crate::kernel::Kernel;
use crate::log::{self, Entry, Head, LoggedProcess};
use crate::mover::{Identity, Mover, Outcomes, Wish};
use crate::observer::Observer;
use crate::pages::{HotPages, Page, ProcessIndex};
use crate::policies::Policy;

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
    /// Where random draws start.
    pub seed: u64,
    /// Size of a page.
    pub page_bytes: u64,
    /// Memory accesses that a sample stands for; an estimate.
    pub accesses_per_sample: f64,
    /// Where samples come from, in a word.
    pub source: String,
}

/// A process that the daemon looks after.
struct Looked {
    identity: Identity,
    /// Absent: another daemon has it, and it is left alone.
    claim: Option<Claim>,
    care: Care,
    /// Where pages were before the first of them was moved.
    origins: FxHashMap<Page, NodeId>,
    /// Wishes that were not carried out yet. A policy says a thing once, and it may be said while
    /// nothing is moved.
    pending: FxHashMap<Page, Pending>,
}

/// A wish, and for how many intervals it has been waiting.
#[derive(Clone, Copy, Debug)]
struct Pending {
    wish: Wish,
    intervals: u32,
}

/// A wish that was not carried out after so many intervals is no longer one: programs change.
const PENDING_INTERVALS: u32 = 8;

impl Looked {
    /// Takes in new wishes, drops those that are old or came true; all that there are, in order of
    /// address.
    fn wanted(
        &mut self,
        new: Vec<Wish>,
        homes: &FxHashMap<Page, NodeId>,
        most: usize,
    ) -> Vec<Wish> {
        self.pending.retain(|page, pending| {
            pending.intervals += 1;
            pending.intervals < PENDING_INTERVALS && homes.get(page) != Some(&pending.wish.to)
        });
        for wish in new {
            if self.pending.len() < most || self.pending.contains_key(&wish.page) {
                self.pending
                    .insert(wish.page, Pending { wish, intervals: 0 });
            }
        }
        let mut wanted: Vec<Wish> = self.pending.values().map(|pending| pending.wish).collect();
        wanted.sort_unstable_by_key(|wish| wish.page.address);
        wanted
    }
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
        let nodes = self.traffic.len();
        let loads: Vec<f64> = (0..nodes)
            .map(|to| self.traffic.iter().map(|from| from[to] as f64).sum())
            .collect();
        let mean = loads.iter().sum::<f64>() / nodes.max(1) as f64;
        if mean == 0.0 {
            return 0.0;
        }
        let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / nodes as f64;
        variance.sqrt() / mean
    }
}

/// The daemon, without the sampler in front of it.
pub struct Daemon {
    settings: Settings,
    nodes: Vec<NodeId>,
    memory_nodes: u64,
    node_of_cpu: FxHashMap<CpuId, u16>,
    decider: Decider,
    pages: HotPages,
    mover: Mover,
    looked: FxHashMap<ProcessIndex, Looked>,
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
        let positions = |node: &nearpage_machine::Node| nodes.iter().position(|id| *id == node.id);
        let mut node_of_cpu = FxHashMap::default();
        for node in &machine.nodes {
            let at = positions(node).expect("its own node") as u16;
            node_of_cpu.extend(node.cpus.iter().map(|cpu| (*cpu, at)));
        }
        let memory_nodes = memory_nodes(machine);
        let head = head(&settings, &nodes, memory_nodes);
        let policy = settings.policy.start(&head.setting())?;
        Ok(Self {
            decider: Decider::new(policy, nodes.len(), settings.pages),
            pages: HotPages::new(settings.pages),
            mover: Mover::new(settings.limits, settings.page_bytes, settings.pages, now_ns),
            looked: FxHashMap::default(),
            forgotten: Vec::new(),
            interval_begin_ns: now_ns,
            moves_ns: 0,
            settings,
            nodes,
            memory_nodes,
            node_of_cpu,
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

    /// Processes that are new, have ended, or are other programs now.
    fn look_after(&mut self, observer: &Observer, kernel: &mut dyn Kernel) {
        for (at, process) in observer.processes().iter().enumerate() {
            let index = ProcessIndex(at as u32);
            let over = process.threads == 0;
            if over || process.replaced {
                if self.looked.remove(&index).is_some() {
                    self.forget(index);
                }
                if over {
                    continue;
                }
            }
            if self.looked.contains_key(&index) {
                continue;
            }
            let Some(started) = kernel.started(process.pid) else {
                continue;
            };
            let identity = Identity {
                pid: process.pid,
                started,
            };
            let looked = Looked {
                identity,
                claim: Claim::on(identity),
                care: Care::new(self.settings.caution),
                origins: FxHashMap::default(),
                pending: FxHashMap::default(),
            };
            self.looked.insert(index, looked);
        }
    }

    fn forget(&mut self, process: ProcessIndex) {
        self.forgotten.extend(self.pages.forget_process(process));
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
            let page = Page {
                process: seen.process,
                address: access.address - access.address % page_bytes,
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

    /// The last word on each page that is not where it should be, by process in their order, with
    /// how many of them stand for replicas.
    fn wishes(
        &self,
        actions: &[Action],
        interval: &Interval,
        free: &FreeMemory,
    ) -> Vec<(ProcessIndex, Vec<Wish>, u64)> {
        let mut homes: FxHashMap<u32, u16> = FxHashMap::default();
        for seen in &interval.observations {
            homes.insert(seen.page, seen.home);
        }
        let mut last: FxHashMap<u32, (usize, u16, bool)> = FxHashMap::default();
        for (at, action) in actions.iter().enumerate() {
            let to = match action.kind {
                ActionKind::Migrate | ActionKind::Interleave => (action.node, false),
                // No stock kernel has replicas of one address in one process: readers on all
                // nodes get an equal share of the distance, and controllers of the load.
                ActionKind::Replicate => match self.pages.page(action.page) {
                    Some(page) => (self.interleaved(page), true),
                    None => continue,
                },
                // There are no replicas to give up.
                ActionKind::Collapse => continue,
            };
            last.insert(action.page, (at, to.0, to.1));
        }
        let mut ordered: Vec<_> = last.into_iter().collect();
        ordered.sort_unstable_by_key(|(_, (at, ..))| *at);
        let mut wishes: Vec<(ProcessIndex, Vec<Wish>, u64)> = Vec::new();
        for (number, (_, to, replica)) in ordered {
            let (Some(page), Some(&home)) = (self.pages.page(number), homes.get(&number)) else {
                continue;
            };
            if home == to || usize::from(to) >= self.nodes.len() || free.is_full(usize::from(to)) {
                continue;
            }
            let at = match wishes
                .iter()
                .position(|(process, ..)| *process == page.process)
            {
                Some(at) => at,
                None => {
                    wishes.push((page.process, Vec::new(), 0));
                    wishes.len() - 1
                }
            };
            wishes[at].1.push(Wish {
                page,
                from: self.nodes[usize::from(home)],
                to: self.nodes[usize::from(to)],
            });
            wishes[at].2 += u64::from(replica);
        }
        wishes
    }

    /// The node on which an interleaved page belongs.
    fn interleaved(&self, page: Page) -> u16 {
        (page.address / self.settings.page_bytes % self.nodes.len() as u64) as u16
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
        let mut wishes = self.wishes(&decisions.actions, &report.entry.interval, free);
        self.mover.begin_round();
        let local = local_by_process(observer, &report.entry.interval);
        let homes: FxHashMap<Page, NodeId> = report
            .entry
            .interval
            .observations
            .iter()
            .filter_map(|seen| {
                let page = self.pages.page(seen.page)?;
                Some((page, *self.nodes.get(usize::from(seen.home))?))
            })
            .collect();
        let mut order: Vec<ProcessIndex> = self.looked.keys().copied().collect();
        order.sort_unstable();
        for index in order {
            let process = &observer.processes()[index.0 as usize];
            let found = wishes.iter_mut().find(|(process, ..)| *process == index);
            let (new, replications) = match found {
                Some((_, wanted, replications)) => (std::mem::take(wanted), *replications),
                None => (Vec::new(), 0),
            };
            let looked = self.looked.get_mut(&index).expect("listed above");
            let wished = new.len() as u64;
            let wanted = looked.wanted(new, &homes, self.settings.pages);
            let mut logged = LoggedProcess {
                pid: process.pid,
                name: process.name.clone(),
                stage: looked.care.stage(),
                lost_per_1000: (process.loss.share() * 1000.0) as u32,
                local_per_1000: 0,
                accesses: 0,
                wished,
                replications_interleaved: replications,
                moved_back: false,
                outcomes: Outcomes::default(),
                longest_call_ns: 0,
            };
            if let Some(&(ours, all)) = local.get(&index) {
                logged.accesses = all;
                logged.local_per_1000 = (1000 * ours / all.max(1)) as u32;
            }
            let may_move = looked.claim.is_some() && !self.settings.dry_run && self.nodes.len() > 1;
            if may_move {
                let wishes = match looked.care.judge(process.loss, wanted.len()) {
                    Verdict::Move(most) => wanted.into_iter().take(most).collect(),
                    Verdict::MoveBack => {
                        logged.moved_back = true;
                        looked.pending.clear();
                        moves_back(&mut looked.origins)
                    }
                };
                logged.stage = looked.care.stage();
                if logged.stage == Stage::Measuring {
                    looked.origins.clear();
                }
                let done = self
                    .mover
                    .carry_out(kernel, looked.identity, &wishes, deadline_ns);
                if !logged.moved_back {
                    for moved in &done.moved {
                        looked.pending.remove(&moved.page);
                        if looked.origins.len() < self.settings.pages {
                            looked.origins.entry(moved.page).or_insert(moved.from);
                        }
                    }
                }
                logged.outcomes = done.outcomes;
                logged.longest_call_ns = done.longest_call_ns;
                report.outcomes.add(&done.outcomes);
                report.left += done.left;
                report.in_calls_ns += done.in_calls_ns;
                report.longest_call_ns = report.longest_call_ns.max(done.longest_call_ns);
            }
            report.entry.processes.push(logged);
        }
    }
}

/// Pages that were moved, back to where they were.
fn moves_back(origins: &mut FxHashMap<Page, NodeId>) -> Vec<Wish> {
    let mut wishes: Vec<Wish> = origins
        .drain()
        .map(|(page, from)| Wish {
            page,
            // Unknown by now, and of no use.
            from,
            to: from,
        })
        .collect();
    wishes.sort_unstable_by_key(|wish| wish.page.address);
    wishes
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
mod tests;
