//! Automatic NUMA balancing as in Linux, a common baseline.
//!
//! From `kernel/sched/fair.c` (5.x): each thread, when it has run for its scan period, unmaps the next 256 MB of its
//! process (`task_tick_numa`, `task_numa_work`). The next reference to an unmapped page faults. A remote page moves to
//! the faulting node if the *two-reference filter* allows it (`should_numa_migrate_memory`). Faults during a full scan
//! of the process give each thread a preferred node and a new scan period (`task_numa_placement`,
//! `update_task_scan_period`). A thread moves to its preferred node if this leaves the load as balanced as before or
//! another thread gains by moving the other way (`task_numa_migrate`, `task_numa_compare`).
//!
//! Simplifications:
//!
//! - A thread joins its process's group at its first fault on another's page; the kernel merges groups pair by pair.
//! - Nodes are equally far from each other, as in the kernel's `NUMA_DIRECT` topologies.
//! - A thread moves at the next tick after its fault.
//! - A run of consecutive pages is a mapping, and its pages count as scanned even if untouched.
//! - Mappings of read-only files are scanned, and faults on read-only pages join groups, unlike in the kernel.
//! - Where moves are costed by step, pages move in batches as under other policies, not in their faults.
//! - Huge pages and memory tiers are not modelled.

mod migrate;
mod parameters;
mod task;

use std::ops::Range;

use nearpage_recording::ThreadIndex;

pub use parameters::KernelBalancingParameters;

use self::task::{ACTIVE_NODE_FRACTION, Bounds, FAILED, Faults, Group, PRIVATE, SHARED, Task};
use super::{
    Action, ActionKind, Epoch, Observation, OnlinePolicy, ParameterError, Place, Reason, Setting,
    ThreadMove, View,
};

/// `should_numa_migrate_memory`: number of scan passes during which a first or a private fault moves the page at once.
const EARLY_PASSES: u64 = 4;

/// A process.
#[derive(Clone, Debug, Default)]
struct Process {
    /// Page numbers in the address space and the driver's numbers; in order of address once sorted.
    pages: Vec<(u64, u32)>,
    sorted: bool,
    /// Position in `pages` of the next scan.
    offset: usize,
    /// Number of completed passes over all pages.
    sequence: u64,
    next_scan_ns: u64,
    group: Group,
}

impl Process {
    /// The next consecutive pages of the scan, at most `most`.
    fn range(&self, most: u64) -> Range<usize> {
        let ahead = self.pages[self.offset.min(self.pages.len())..].iter();
        let first = ahead.clone().next().map_or(0, |page| page.0);
        let following = ahead
            .zip(first..)
            .take(usize::try_from(most).unwrap_or(usize::MAX));
        let pages = following.take_while(|&(page, number)| page.0 == number);
        self.offset..self.offset + pages.count()
    }
}

/// Thread and node of a page's last fault.
type LastFault = Option<(ThreadIndex, u16)>;

/// The policy `kernel-balancing`.
#[derive(Clone, Debug)]
pub struct KernelBalancing {
    parameters: KernelBalancingParameters,
    nodes: usize,
    memory_nodes: u64,
    page_bytes: u64,
    /// Number of CPUs of each node.
    cpus: Vec<u32>,
    now_ns: u64,
    processes: Vec<Process>,
    tasks: Vec<Option<Task>>,
    last_fault: Vec<LastFault>,
    unmapped: Vec<bool>,
    to_unmap: Vec<u32>,
    /// Threads that are to move to their preferred node.
    movers: Vec<ThreadIndex>,
    thread_moves: Vec<ThreadMove>,
}

const MS: u64 = 1_000_000;

impl KernelBalancing {
    /// The policy for pages of `page_bytes` and nodes with these numbers of `cpus`.
    ///
    /// # Errors
    /// Parameters contradict each other, or the machine has one node, for which the kernel does nothing.
    pub fn new(
        parameters: &KernelBalancingParameters,
        setting: &Setting,
        page_bytes: u64,
        cpus: &[u32],
    ) -> Result<Self, ParameterError> {
        parameters.check()?;
        if setting.nodes < 2 {
            return Err(ParameterError(
                "kernel-balancing: Linux balances nothing on a machine of one node; choose one with two or more"
                    .to_owned(),
            ));
        }
        Ok(Self {
            parameters: *parameters,
            nodes: setting.nodes,
            memory_nodes: setting.memory_nodes,
            page_bytes,
            cpus: cpus.to_vec(),
            now_ns: 0,
            processes: Vec::new(),
            tasks: Vec::new(),
            last_fault: vec![None; setting.pages],
            unmapped: vec![false; setting.pages],
            to_unmap: Vec::new(),
            movers: Vec::new(),
            thread_moves: Vec::new(),
        })
    }

    fn process(&mut self, application: u16) -> &mut Process {
        let at = usize::from(application);
        if self.processes.len() <= at {
            let new = Process {
                next_scan_ns: self.parameters.scan_delay_ms * MS,
                group: Group {
                    faults: Faults::new(self.nodes),
                    members: 0,
                },
                ..Process::default()
            };
            self.processes.resize(at + 1, new);
        }
        &mut self.processes[at]
    }

    fn bounds(&self, task: &Task) -> Bounds {
        let process = &self.processes[usize::from(task.application)];
        let resident_mb = (process.pages.len() as u64 * self.page_bytes) >> 20;
        let group = task.in_group.then_some(&process.group);
        Bounds::new(resident_mb, group, &self.parameters)
    }

    /// `should_numa_migrate_memory`.
    fn should_move(&self, task: &Task, last: LastFault, thread: ThreadIndex, from: u16) -> bool {
        let to = task.node;
        let private = last.is_some_and(|(other, _)| other == thread);
        let early = task.preferred.is_none() || task.scan_sequence <= EARLY_PASSES;
        if early && (last.is_none() || private) {
            return true;
        }
        if last.is_some_and(|(_, node)| node != to) {
            return false;
        }
        if private || !task.in_group {
            return true;
        }
        let faults = &self.processes[usize::from(task.application)].group.faults;
        if faults.on_cpu(to) > faults.on_cpu(from) * ACTIVE_NODE_FRACTION {
            return true;
        }
        // Hysteresis of three quarters, as in the kernel.
        faults.on_cpu(to) * faults.on_memory(from) * 3
            > faults.on_cpu(from) * faults.on_memory(to) * 4
    }

    /// `task_numa_placement` and `numa_migrate_preferred`.
    fn place_task(&mut self, thread: ThreadIndex, task: &mut Task) {
        let sequence = self.processes[usize::from(task.application)].sequence;
        if task.scan_sequence != sequence {
            task.scan_sequence = sequence;
            let before = task.faults.clone();
            let kinds = task.decay(self.now_ns);
            let process = &mut self.processes[usize::from(task.application)];
            if task.in_group {
                process.group.faults.subtract(&before);
                process.group.faults.add(&task.faults);
            }
            let of_whom = match task.in_group {
                true => &process.group.faults,
                false => &task.faults,
            };
            let nodes = (0..self.nodes as u16).rev();
            let most = nodes.max_by_key(|&node| of_whom.on_memory(node));
            task.preferred = most
                .filter(|&node| of_whom.on_memory(node) > 0)
                .or(task.preferred);
            let bounds = self.bounds(task);
            if task.update_scan_period(kinds, &bounds) {
                let next = self.now_ns + task.scan_period_ms * MS;
                self.processes[usize::from(task.application)].next_scan_ns = next;
            }
        }
        if task.preferred.is_some() {
            task.retry_ns = self.now_ns + (1000 * MS).min(task.scan_period_ms * MS / 16);
            if task.preferred != Some(task.node) && !self.movers.contains(&thread) {
                self.movers.push(thread);
            }
        }
    }

    /// `task_tick_numa`, `task_numa_work`: unmaps the next part of a process whose thread's scan is due.
    fn scan(&mut self, thread: usize) {
        let Some(mut task) = self.tasks[thread].take() else {
            return;
        };
        let period_ns = task.scan_period_ms * MS;
        if task.runtime_ns > task.stamp_ns + period_ns {
            if task.stamp_ns == 0 {
                task.scan_period_ms = self.bounds(&task).start_ms;
            }
            task.stamp_ns += period_ns;
            let now_ns = self.now_ns;
            let process = &mut self.processes[usize::from(task.application)];
            if now_ns >= process.next_scan_ns {
                process.next_scan_ns = now_ns + task.scan_period_ms * MS;
                task.stamp_ns += 2 * self.parameters.tick_ns;
                if !std::mem::replace(&mut process.sorted, true) {
                    process.pages.sort_unstable();
                }
                let budget = ((self.parameters.scan_size_mb << 20) / self.page_bytes).max(1);
                // "Scan up to this much virtual space." A range with any changed page counts in full.
                let (mut counted, mut seen, mut updates) = (0, 0, 0);
                while counted < budget && seen < 8 * budget {
                    let range = process.range(budget - counted);
                    if range.is_empty() {
                        process.offset = 0;
                        process.sequence += 1;
                        // A scan that starts at the end of the pages wraps around.
                        if seen == 0 && !process.pages.is_empty() {
                            continue;
                        }
                        break;
                    }
                    let pages = range.len() as u64;
                    process.offset = range.end;
                    let before = self.to_unmap.len();
                    for &(_, page) in &process.pages[range] {
                        if !std::mem::replace(&mut self.unmapped[page as usize], true) {
                            self.to_unmap.push(page);
                        }
                    }
                    let changed = (self.to_unmap.len() - before) as u64;
                    updates += changed;
                    seen += pages;
                    counted += if changed > 0 { pages } else { 0 };
                }
                // "Make sure tasks use at least 32x as much time to run other code."
                task.stamp_ns += 32 * updates * self.parameters.unmap_ns;
            }
        }
        self.tasks[thread] = Some(task);
    }
}

impl OnlinePolicy for KernelBalancing {
    fn epoch_ns(&self) -> Option<u64> {
        Some(self.parameters.tick_ns)
    }

    // `do_numa_page`, `task_numa_fault`.
    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let &Observation {
            page,
            node,
            thread,
            copies,
            ..
        } = observation;
        self.unmapped[page as usize] = false;
        let last = self.last_fault[page as usize].replace((thread, node));
        let Some(mut task) = self.tasks.get_mut(thread.0 as usize).and_then(Option::take) else {
            return;
        };
        task.node = node;
        let mut local = copies.home == node;
        let mut memory = copies.home;
        let wanted = !local && self.should_move(&task, last, thread, copies.home);
        let has_room = self.memory_nodes >> node & 1 == 1 && !observation.pressure;
        if wanted && !has_room {
            // Counts as the kernel's `TNF_MIGRATE_FAIL`.
            task.locality[FAILED] += 1;
        } else if wanted {
            memory = node;
            actions.push(Action {
                page,
                kind: ActionKind::Migrate,
                node,
                reason: Reason::rule("a hinting fault that the two-reference filter lets through"),
            });
        }
        let other = last.filter(|&(other, _)| other != thread);
        let of_other = |(other, _): (ThreadIndex, u16)| {
            let other = self.tasks.get(other.0 as usize)?.as_ref()?;
            (other.application == task.application).then_some(())
        };
        if !task.in_group && other.and_then(of_other).is_some() {
            task.in_group = true;
            let group = &mut self.processes[usize::from(task.application)].group;
            group.members += 1;
            group.faults.add(&task.faults);
        }
        let kind = if other.is_some() { SHARED } else { PRIVATE };
        let group = &self.processes[usize::from(task.application)].group;
        if kind == SHARED
            && !local
            && task.in_group
            && group.active_nodes() > 1
            && group.is_active(node)
            && group.is_active(memory)
        {
            local = true;
        }
        if self.now_ns >= task.retry_ns {
            self.place_task(thread, &mut task);
        }
        task.recent.memory[usize::from(memory)][kind] += 1;
        task.recent.cpu[usize::from(node)][kind] += 1;
        task.locality[usize::from(local)] += 1;
        self.tasks[thread.0 as usize] = Some(task);
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, _: &mut Vec<Action>) {
        self.now_ns += epoch.duration_ns;
        let mut alive = vec![false; self.tasks.len()];
        for counts in epoch.threads {
            let at = counts.thread.0 as usize;
            if self.tasks.len() <= at {
                self.tasks.resize(at + 1, None);
                alive.resize(at + 1, false);
            }
            alive[at] = true;
            self.process(counts.application);
            if self.tasks[at].is_none() {
                let started = self
                    .tasks
                    .iter()
                    .flatten()
                    .any(|other| other.application == counts.application);
                let delay_ms = self.parameters.scan_delay_ms;
                let mut task = Task::new(counts.application, counts.node, self.nodes, delay_ms);
                // "Stagger when scans start."
                if started {
                    task.stamp_ns = 2 * self.parameters.tick_ns;
                }
                self.tasks[at] = Some(task);
            }
            if let Some(task) = &mut self.tasks[at] {
                task.node = counts.node;
                task.runtime_ns += counts.busy_ns;
            }
        }
        for (at, alive) in alive.into_iter().enumerate() {
            if alive {
                self.scan(at);
            } else if let Some(task) = self.tasks[at].take().filter(|task| task.in_group) {
                let group = &mut self.processes[usize::from(task.application)].group;
                group.members -= 1;
                group.faults.subtract(&task.faults);
            }
        }
        for thread in std::mem::take(&mut self.movers) {
            if self.parameters.move_threads == 0 {
                continue;
            }
            let at = thread.0 as usize;
            let found = self.find_node(at);
            let Some(task) = &mut self.tasks[at] else {
                continue;
            };
            // "So the workload can settle down."
            if task.in_group {
                task.preferred = Some(found.map_or(task.node, |(node, _)| node));
            }
            let Some((node, other)) = found else {
                continue;
            };
            let from = std::mem::replace(&mut task.node, node);
            self.thread_moves.push(ThreadMove {
                thread,
                node,
                rule: "its faults are on that node",
            });
            if let Some(other) = other {
                if let Some(task) = &mut self.tasks[other] {
                    task.node = from;
                }
                self.thread_moves.push(ThreadMove {
                    thread: ThreadIndex(other as u32),
                    node: from,
                    rule: "makes way for a thread whose faults are on its node",
                });
            }
        }
    }

    fn forget(&mut self, page: u32) {
        self.last_fault[page as usize] = None;
        self.unmapped[page as usize] = false;
        for process in &mut self.processes {
            process.pages.retain(|&(_, other)| other != page);
        }
    }

    fn place(&mut self, page: u32, place: Place) {
        let process = self.process(place.application);
        process.pages.push((place.number, page));
        process.sorted = false;
    }

    fn view(&self) -> View {
        View::Faults {
            fault_ns: self.parameters.fault_ns,
            unmap_ns: self.parameters.unmap_ns,
        }
    }

    fn unmap(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.to_unmap)
    }

    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        std::mem::take(&mut self.thread_moves)
    }
}

#[cfg(test)]
mod tests;
