//! The daemon's loop: it observes an interval, asks the policy for moves, lets the guard limit them, and has the kernel
//! carry them out.

use std::io::Write;

use nearpage_machine::{CpuId, CpuList, Machine, NodeId};
use nearpage_online::View;
use nearpage_online::carrefour::controller_imbalance;
use rustc_hash::FxHashMap;

use crate::batches::Limits;
use crate::decide::{Decider, Decisions};
use crate::error::Error;
use crate::free_memory::FreeMemory;
use crate::guard::GuardThresholds;
use crate::homes::Homes;
use crate::interleaved::Interleaved;
use crate::kernel::Kernel;
use crate::log::{self, Entry, Head, LoggedProcess};
use crate::mover::{Identity, Mover, Outcomes};
use crate::observer::Observer;
use crate::pages::{HotPages, ProcessIndex};
use crate::policies::LivePolicy;
use crate::process::{IntervalActions, TargetProcess};
use crate::requested_moves::{MoveRequests, RequestedMoves};
use pending_actions::PendingActions;

/// How the number of memory accesses is estimated from samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimate {
    /// Time lost to memory, by samples, divided by the time of one access.
    TimeLost {
        /// Time of a memory access in nanoseconds.
        latency_ns: f64,
    },
    /// Sum of the samples' weights, which are numbers of accesses.
    Weights,
}

/// Options of the daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy.
    pub policy: LivePolicy,
    /// Maximum number of pages with counters (Carrefour §4.4: 30,000).
    pub pages: usize,
    /// Limits on the cost of moves.
    pub limits: Limits,
    /// Thresholds by which the guard allows moves or undoes them.
    pub guard_thresholds: GuardThresholds,
    /// Decide, but move nothing.
    pub dry_run: bool,
    /// Pin threads to the nodes that the policy requests.
    pub moves_threads: bool,
    /// Seed of random draws.
    pub seed: u64,
    /// Page size in bytes, a power of two.
    pub page_bytes: u64,
    /// Estimation of memory accesses from samples.
    pub estimate: Estimate,
    /// Clock frequency of the CPUs.
    pub clock_mhz: u32,
    /// Source of samples, in a word.
    pub source: String,
}

impl Settings {
    /// Checks that a daemon on this machine can run with these options.
    ///
    /// # Errors
    /// Parameters of the policy contradict each other, or need figures that the machine does not have.
    pub fn check(&self, machine: &Machine) -> Result<(), Error> {
        let head = head(self, machine);
        self.policy.start(&head.setting(), &head.distance)?;
        Ok(())
    }
}

/// The results of an interval: for the terminal, the metrics and the log.
#[derive(Clone, Debug)]
pub struct Report {
    /// The log's entry.
    pub entry: Entry,
    /// Times of the entry's processes, in the same order.
    pub process_times: Vec<ProcessTime>,
    /// References that the policy wants to be shown.
    pub view: Option<View>,
    /// Reason why the policy leaves every program alone, if it does.
    pub why_idle: Option<String>,
    /// Observed accesses, `[CPU's node][page's node]` by position.
    pub traffic: Vec<Vec<u64>>,
    /// Bit n is set: the node at position n has memory.
    pub memory_nodes: u64,
    /// Pages in the table.
    pub hot_pages: usize,
    /// Number of pages since the start whose counters were given to hotter pages.
    pub given_up: u64,
    /// Accesses since the start that were dropped, because the buffer was full between two decisions.
    pub dropped: u64,
    /// Accesses since the start to pages whose node is unknown.
    pub without_node: u64,
    /// Samples since the start that show no access.
    pub without_access: u64,
    /// Moves that were not tried for lack of time.
    pub left: u64,
    /// Results of moves, summed over processes.
    pub outcomes: Outcomes,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Time that the decision took.
    pub deciding_ns: u64,
    /// Total time of calls that moved pages.
    pub in_calls_ns: u64,
    /// Time of the longest such call.
    pub longest_call_ns: u64,
}

impl Report {
    /// Local share of the accesses, 0 to 1; `None` without any.
    pub fn local_share(&self) -> Option<f64> {
        let all: u64 = self.traffic.iter().flatten().sum();
        let local: u64 = (0..self.traffic.len()).map(|at| self.traffic[at][at]).sum();
        (all > 0).then(|| local as f64 / all as f64)
    }

    /// Standard deviation of the controllers' shares over their mean (Carrefour §3.2), for nodes with memory.
    pub fn imbalance(&self) -> f64 {
        let loads: Vec<u64> = (0..self.traffic.len())
            .map(|to| self.traffic.iter().map(|from| from[to]).sum())
            .collect();
        controller_imbalance(&loads, self.memory_nodes)
    }
}

/// Figures of a process in an interval that the log does not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessTime {
    /// Number of the process in the interval's rows.
    pub process: u16,
    /// Threads that have not ended.
    pub threads: u32,
    /// CPU time estimated from samples.
    pub cpu_ns: f64,
    /// Time lost to memory.
    pub lost_ns: f64,
}

/// The daemon without the sampler that feeds it.
pub struct Daemon {
    settings: Settings,
    nodes: Vec<NodeId>,
    head: Head,
    /// Position of each CPU's node, by the CPU's number.
    node_of_cpu: Vec<Option<u16>>,
    /// CPUs of each node, by the node's position.
    cpus_of_node: Vec<CpuList>,
    decider: Decider,
    pages: HotPages,
    homes: Homes,
    interleaved: Interleaved,
    pending_actions: PendingActions,
    /// Accesses to pages whose node the kernel did not report or was not asked for, or that have no room in the table.
    without_node: u64,
    mover: Mover,
    processes: FxHashMap<ProcessIndex, TargetProcess>,
    /// Numbers of pages whose process has ended.
    forgotten: Vec<u32>,
    interval_begin_ns: u64,
    moves_ns: u64,
}

impl Daemon {
    /// Starts with an empty table of pages.
    ///
    /// # Errors
    /// The policy or its parameters do not suit this machine.
    pub fn new(settings: Settings, machine: &Machine, now_ns: u64) -> Result<Self, Error> {
        let nodes = machine.node_ids();
        let mut node_of_cpu = Vec::new();
        for (at, node) in machine.nodes.iter().enumerate() {
            for cpu in node.cpus.iter().map(|cpu| cpu.0 as usize) {
                if node_of_cpu.len() <= cpu {
                    node_of_cpu.resize(cpu + 1, None);
                }
                node_of_cpu[cpu] = Some(at as u16);
            }
        }
        let head = head(&settings, machine);
        let only = head
            .memory_nodes
            .is_power_of_two()
            .then(|| head.memory_nodes.trailing_zeros() as u16);
        let policy = settings.policy.start(&head.setting(), &head.distance)?;
        Ok(Self {
            decider: Decider::new(policy, nodes.len(), settings.pages),
            pages: HotPages::new(settings.pages),
            homes: Homes::new(settings.pages, only),
            interleaved: Interleaved::default(),
            pending_actions: PendingActions::default(),
            without_node: 0,
            mover: Mover::new(settings.limits, settings.page_bytes, settings.pages, now_ns),
            processes: FxHashMap::default(),
            forgotten: Vec::new(),
            interval_begin_ns: now_ns,
            moves_ns: 0,
            settings,
            nodes,
            head,
            node_of_cpu,
            cpus_of_node: machine
                .nodes
                .iter()
                .map(|node| node.cpus.iter().copied().collect())
                .collect(),
        })
    }

    /// Numbers of the machine's nodes, by position.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The log's first line.
    pub fn head(&self) -> Head {
        self.head.clone()
    }

    /// Ends an interval: decides, and acts for at most `budget_ns`.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn step(
        &mut self,
        observer: &mut Observer,
        kernel: &mut dyn Kernel,
        free: &FreeMemory,
        budget_ns: u64,
        log: Option<&mut dyn Write>,
    ) -> Result<Report, Error> {
        let now_ns = kernel.now_ns();
        self.update_processes(observer, kernel);
        let (interval, tally) = self.interval(observer, kernel, free, now_ns);
        let began_ns = kernel.now_ns();
        let decisions = self.decider.decide(&interval);
        let deciding_ns = kernel.now_ns().saturating_sub(began_ns);
        self.pending_actions.add(&decisions.actions);
        let requested_moves = self.requested_moves(free, &decisions);
        self.request_thread_moves(observer, &decisions);
        let (view, why_idle) = (decisions.view, decisions.why_idle.clone());
        let mut report = Report {
            entry: Entry::of(interval, decisions),
            process_times: Vec::new(),
            view,
            why_idle,
            traffic: tally.traffic(),
            memory_nodes: self.head.memory_nodes,
            hot_pages: self.pages.len(),
            given_up: self.pages.given_up(),
            dropped: observer.dropped,
            without_node: self.without_node,
            without_access: observer.without_access,
            left: 0,
            outcomes: Outcomes::default(),
            moved_bytes: 0,
            deciding_ns,
            in_calls_ns: 0,
            longest_call_ns: 0,
        };
        self.act(
            observer,
            kernel,
            requested_moves,
            &tally.local(observer),
            now_ns + budget_ns,
            &mut report,
        );
        self.settle();
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

    /// Ends the daemon: removes its thread pins from the targets. Pages stay where they are.
    pub fn restore_affinities(&mut self, kernel: &mut dyn Kernel) {
        for process in self.processes.values_mut() {
            process.restore_affinities(kernel);
        }
    }

    /// Adds new processes, removes those that have ended or become other programs, and reads changed address spaces.
    fn update_processes(&mut self, observer: &Observer, kernel: &mut dyn Kernel) {
        for (at, process) in observer.processes().iter().enumerate() {
            let index = ProcessIndex(at as u32);
            let over = process.threads == 0;
            if over || process.replaced {
                if self.processes.remove(&index).is_some() {
                    let forgotten = self.pages.forget_process(index);
                    for &number in &forgotten {
                        self.interleaved.forget(number);
                    }
                    self.forgotten.extend(forgotten);
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
            let process = TargetProcess::new(
                identity,
                self.settings.guard_thresholds,
                !self.settings.dry_run,
            );
            self.processes.insert(index, process);
        }
        for (index, process) in &mut self.processes {
            let seen = &observer.processes()[index.0 as usize];
            // Policies decide nothing about unobserved processes, so their address spaces are not needed.
            if seen.sampled {
                process.read_space(kernel, seen.remapped);
            }
        }
    }

    /// The moves that the policy requests, by process.
    fn requested_moves(
        &mut self,
        free: &FreeMemory,
        decisions: &Decisions,
    ) -> FxHashMap<ProcessIndex, RequestedMoves> {
        let requests = MoveRequests {
            nodes: &self.nodes,
            near_memory_nodes: self.head.setting().near_memory_nodes,
            page_bytes: self.settings.page_bytes,
            pages: &self.pages,
            homes: &self.homes,
            free,
            processes: &self.processes,
        };
        requests.requested_moves(&decisions.actions, &mut self.interleaved)
    }

    fn request_thread_moves(&mut self, observer: &Observer, decisions: &Decisions) {
        if !self.settings.moves_threads {
            return;
        }
        // Earlier requests refer to threads that may have moved since.
        for process in self.processes.values_mut() {
            process.forget_pins();
        }
        for thread_move in &decisions.thread_moves {
            let thread = observer.threads().get(thread_move.thread.0 as usize);
            let cpus = self.cpus_of_node.get(usize::from(thread_move.node));
            if let (Some(thread), Some(cpus)) = (thread, cpus)
                && let Some(process) = self.processes.get_mut(&thread.process)
            {
                process.pin(thread.tid, cpus.clone());
            }
        }
    }

    fn act(
        &mut self,
        observer: &Observer,
        kernel: &mut dyn Kernel,
        mut requested_moves: FxHashMap<ProcessIndex, RequestedMoves>,
        local: &[(u64, u64)],
        deadline_ns: u64,
        report: &mut Report,
    ) {
        let (homes, nodes) = (&mut self.homes, &self.nodes);
        let most = self.settings.pages;
        let moves = !self.settings.dry_run && self.nodes.len() > 1;
        self.mover.begin_round();
        let mut order: Vec<ProcessIndex> = self.processes.keys().copied().collect();
        order.sort_unstable();
        for index in order {
            let seen = &observer.processes()[index.0 as usize];
            let process = self.processes.get_mut(&index).expect("listed above");
            let new = requested_moves.remove(&index).unwrap_or_default();
            let requested = new.pages.len() as u64;
            let seen_at = |number: u32| Some(nodes[usize::from(homes.of(number)?)]);
            let mut outcomes = process.take_in(new.pages, &self.pages, seen_at, most);
            let acted = match moves && process.is_claimed() {
                true => process.act(seen.loss, &mut self.mover, kernel, deadline_ns, most),
                false => IntervalActions::default(),
            };
            let round = &acted.round;
            outcomes.add(&round.outcomes);
            for moved in &round.moved {
                let at = nodes.iter().position(|id| *id == moved.to);
                if let (Some(number), Some(at)) = (self.pages.number(&moved.page), at) {
                    homes.moved(number, at as u16);
                    self.pending_actions.moved.push(number);
                }
            }
            report.process_times.push(ProcessTime {
                process: narrow(index),
                threads: seen.threads,
                cpu_ns: seen.loss.cpu_ns,
                lost_ns: seen.loss.lost_ns,
            });
            let (ours, all) = local[index.0 as usize];
            report.entry.processes.push(LoggedProcess {
                pid: seen.pid,
                name: seen.name.clone(),
                stage: process.stage(),
                lost_per_1000: (seen.loss.share() * 1000.0) as u32,
                local_per_1000: (1000 * ours / all.max(1)) as u32,
                accesses: all,
                requested,
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

fn node_of(node_of_cpu: &[Option<u16>], cpu: CpuId) -> Option<u16> {
    *node_of_cpu.get(cpu.0 as usize)?
}

/// Number of a process as policies have it.
fn narrow(process: ProcessIndex) -> u16 {
    process.0.min(u16::MAX.into()) as u16
}

fn head(settings: &Settings, machine: &Machine) -> Head {
    Head {
        nearpage_live: log::VERSION,
        policy: settings.policy.name().to_owned(),
        parameters: settings.policy.parameters(),
        nodes: machine.nodes.iter().map(|node| node.id.0).collect(),
        memory_nodes: machine.position_bits(&machine.nodes_with_memory()),
        near_memory_nodes: Some(machine.position_bits(&machine.nodes_with_near_memory())),
        cpus_per_node: machine.cpus_per_node(),
        distance: machine.distance.clone().unwrap_or_default(),
        clock_mhz: settings.clock_mhz,
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

mod inputs;
mod pending_actions;
#[cfg(test)]
pub(crate) mod tests;
