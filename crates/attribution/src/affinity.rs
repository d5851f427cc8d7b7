//! Result types of attribution.

use std::collections::BTreeSet;

use nearpage_machine::CpuId;
use nearpage_recording::{
    CallSiteId, ModuleId, ObjectId, ObjectKind, SampleCounts, Thread, ThreadIndex,
};

use crate::Pattern;

/// Accesses by one thread to one page of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Number of the page, counted from the page that holds the object's first byte, in units of
    /// [`Affinity::page_bytes`]. Page boundaries are those of the address space, so an object may begin inside page 0.
    pub page: u32,
    /// Thread that made the accesses.
    pub thread: ThreadIndex,
    /// Loads, as the sum of sample weights.
    pub loads: f32,
    /// Stores, as the sum of sample weights.
    pub stores: f32,
    /// Time lost to the loads and stores, in nanoseconds.
    pub cost_ns: f32,
    /// Number of samples of loads and stores. Patterns are found from numbers, as a weight follows the sampling rate
    /// of its moment: a few heavy samples would outweigh all others.
    pub samples: f32,
}

impl Cell {
    /// Loads and stores by weight: the `rw` of Marathe's equations 1 and 2.
    pub fn accesses(&self) -> f64 {
        f64::from(self.loads) + f64::from(self.stores)
    }
}

/// Accesses by page and thread of an object. The instances of a group are laid over each other, page by page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Affinity {
    /// Size of the pages that [`Cell::page`] counts, in bytes: the page size, or a power-of-two multiple of the page
    /// size for objects that are too large to be kept page by page.
    pub page_bytes: u64,
    /// Number of pages of [`page_bytes`](Self::page_bytes).
    pub pages: u32,
    /// Cells sorted by page, then thread. Pages without an access are absent.
    pub cells: Vec<Cell>,
    /// Cells of the initialisation: accesses of the first thread before any other thread accessed the object. `cells`
    /// excludes them. Empty for objects that only one thread ever used.
    pub initialisation: Vec<Cell>,
    /// Accesses that a sample of the object stands for, as a mean weighted by accesses. 0 means unknown and is taken
    /// for 1.
    pub sample_weight: f64,
}

impl Affinity {
    /// Cells from which a pattern is found: the initialisation only if there are no later accesses.
    pub fn pattern_cells(&self) -> &[Cell] {
        match self.cells.is_empty() {
            true => &self.initialisation,
            false => &self.cells,
        }
    }
}

/// Totals of the loads, or of the stores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OperationTotals {
    /// Number of accesses, by weight.
    pub count: f64,
    /// Accesses to a page on another node than the CPU's; 0 where no page node was recorded.
    pub remote: f64,
    /// Accesses whose page node was recorded.
    pub node_known: f64,
    /// Time lost to the accesses, in nanoseconds.
    pub cost_ns: f64,
    /// Time lost to accesses to a page on another node, in nanoseconds.
    pub remote_cost_ns: f64,
}

/// Accesses of one instruction to an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeUse {
    /// Module of the instruction; none for generated code.
    pub module: Option<ModuleId>,
    /// Virtual address in the module's file; the absolute address where there is no module.
    pub offset: u64,
    /// Time lost to the accesses, in nanoseconds.
    pub cost_ns: f64,
    /// Time lost to accesses to another node's memory, in nanoseconds.
    pub remote_cost_ns: f64,
    /// Loads, by weight.
    pub loads: f64,
    /// Stores, by weight.
    pub stores: f64,
}

impl CodeUse {
    /// Loads and stores, by weight.
    pub fn accesses(&self) -> f64 {
        self.loads + self.stores
    }
}

impl From<&CodeUse> for Hot {
    fn from(code: &CodeUse) -> Self {
        Self {
            module: code.module,
            offset: code.offset,
            cost_ns: code.cost_ns,
            accesses: code.accesses(),
        }
    }
}

/// One of the costliest instructions of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Hot {
    /// Module of the instruction; none for generated code.
    pub module: Option<ModuleId>,
    /// Virtual address in the module's file; the absolute address where there is no module.
    pub offset: u64,
    /// Time lost to the instruction's accesses, in nanoseconds.
    pub cost_ns: f64,
    /// Accesses, by weight.
    pub accesses: f64,
}

/// Name that groups objects into one row: a symbol, a call site or the recorded name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// Heap objects and mappings of one call site. A call site whose objects differ widely in size has a group per
    /// size class (16 KiB to 256 KiB, 256 KiB to 4 MiB, …).
    CallSite(CallSiteId),
    /// A static symbol: its module, and its virtual address in the module's file.
    Symbol(ModuleId, u64),
    /// The recorded name of any other object (a file mapping, `stack`, `thread-local storage`, …).
    Other(String),
}

/// Objects of one call site or symbol, as one row of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectGroup {
    /// Kind of the objects.
    pub kind: ObjectKind,
    /// Name that the objects share.
    pub name: ObjectName,
    /// Size of the largest instance in bytes.
    pub size_bytes: u64,
    /// Number of instances in the recording: sum of their weights, rounded, where allocations were sampled.
    pub instances: u64,
    /// The only object of this group, where a call site has a few large objects and their patterns differ.
    pub sibling: Option<ObjectId>,
    /// Whether several processes have mapped the memory of an object of this group, so that threads of all of them
    /// access it.
    pub is_shared_memory: bool,
    /// Accessed instances by cost, descending, at most [`ObjectGroup::LISTED_INSTANCES_MAX`]. Of objects that share a
    /// group, only the 8,192 largest are followed and can be listed.
    pub listed_instances: Vec<ObjectId>,
    /// Totals of loads.
    pub loads: OperationTotals,
    /// Totals of stores.
    pub stores: OperationTotals,
    /// Thread (ascending), loads, stores, cost in nanoseconds.
    pub threads: Vec<(ThreadIndex, f64, f64, f64)>,
    /// Costliest instructions, at most eight.
    pub hot: Vec<Hot>,
    /// Accesses by page and thread.
    pub affinity: Affinity,
    /// Pages, numbered as in [`Cell::page`] and ascending, with the thread that touched them first, as far as the
    /// recording has first touches. Of several instances, the earliest touch counts.
    pub first_touches: Vec<(u32, ThreadIndex)>,
    /// Threads that touched pages first, ascending, with the number of these pages of all instances.
    pub touchers: Vec<(ThreadIndex, u64)>,
    /// Accesses by followed instance and thread, ascending. Empty for groups of one instance.
    pub uses: Vec<InstanceUse>,
    /// Pattern found in the group's accesses.
    pub pattern: Pattern,
}

/// Accesses of a thread to one instance, after the group's initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstanceUse {
    /// Number of the instance.
    pub object: ObjectId,
    /// Thread that made the accesses.
    pub thread: ThreadIndex,
    /// Accesses, by weight.
    pub accesses: f64,
    /// Time lost to the accesses, in nanoseconds.
    pub cost_ns: f64,
    /// Number of samples of the accesses.
    pub samples: f64,
}

/// The main thread works beside a team if its accesses are at least this share of the team's mean per thread.
const TEAM_MEMBER_SHARE_MIN: f64 = 0.5;

impl ObjectGroup {
    /// Number of processes that access the same memory; none for memory of one process.
    pub fn sharing_processes(&self, threads: &[Thread]) -> Option<u64> {
        let pid = |one: &(ThreadIndex, f64, f64, f64)| Some(threads.get(one.0.0 as usize)?.pid);
        let pids: BTreeSet<u32> = self.threads.iter().filter_map(pid).collect();
        (self.is_shared_memory && pids.len() > 1).then_some(pids.len() as u64)
    }
}

impl Attribution {
    /// The accesses that matter to where process `pid`'s pages should be: its own, and all to memory that it shares
    /// with other processes. None if it shares none with a process that accesses it.
    pub fn of_process(&self, pid: u32, threads: &[Thread]) -> Option<Self> {
        let is_own = |thread: ThreadIndex| {
            let thread = threads.get(thread.0 as usize);
            thread.is_some_and(|thread| thread.pid == pid)
        };
        let is_shared = |group: &ObjectGroup| {
            group.is_shared_memory && group.threads.iter().any(|one| is_own(one.0))
        };
        let mut users = self.objects.iter().filter(|group| is_shared(group));
        if !users.any(|group| group.threads.iter().any(|one| !is_own(one.0))) {
            return None;
        }
        let mut of_process = self.clone();
        for group in &mut of_process.objects {
            if !is_shared(group) {
                group.threads.retain(|one| is_own(one.0));
                group.uses.retain(|one| is_own(one.thread));
                group.first_touches.retain(|touch| is_own(touch.1));
                group.touchers.retain(|toucher| is_own(toucher.0));
                group.affinity.cells.retain(|cell| is_own(cell.thread));
                let initialisation = &mut group.affinity.initialisation;
                initialisation.retain(|cell| is_own(cell.thread));
            }
        }
        Some(of_process)
    }

    /// Threads of the team that a process's main thread works beside: the largest team without the main thread. None
    /// if the main thread merely starts threads. The objects' initialisation does not count.
    pub fn beside_main(&self, pid: u32) -> Option<&[ThreadIndex]> {
        let ours = || self.teams.iter().filter(|team| team.pid == pid);
        let main = ours().find(|team| team.is_main_alone())?.threads[0];
        let team = ours()
            .find(|team| !team.is_main_alone() && !team.is_joined)?
            .threads
            .as_slice();
        let (mut by_main, mut by_team) = (0.0, 0.0);
        for cell in self.objects.iter().flat_map(|group| &group.affinity.cells) {
            if cell.thread == main {
                by_main += cell.accesses();
            } else if team.contains(&cell.thread) {
                by_team += cell.accesses();
            }
        }
        let works = by_main > 0.0 && by_main >= TEAM_MEMBER_SHARE_MIN * by_team / team.len() as f64;
        works.then_some(team)
    }
}

impl Team {
    /// Whether the team is the main thread of a process whose threads come from `pthread_create`, not from OpenMP.
    pub fn is_main_alone(&self) -> bool {
        self.name == MAIN_TEAM && self.threads.len() == 1
    }
}

/// Name of the team that has the main thread alone.
const MAIN_TEAM: &str = "main";

impl ObjectGroup {
    /// Largest number of instances in [`ObjectGroup::listed_instances`].
    pub const LISTED_INSTANCES_MAX: usize = 64;

    /// Loads and stores, by weight.
    pub fn accesses(&self) -> f64 {
        self.loads.count + self.stores.count
    }

    /// Number of pages whose first touch is known, of all instances, and of those that some threads touched.
    pub fn first_touches_by(&self, threads: impl Fn(ThreadIndex) -> bool) -> (u64, u64) {
        let all = self.touchers.iter().map(|one| one.1).sum();
        let by_them = self.touchers.iter().filter(|one| threads(one.0));
        (all, by_them.map(|one| one.1).sum())
    }

    /// Time lost to loads and stores, in nanoseconds.
    pub fn cost_ns(&self) -> f64 {
        self.loads.cost_ns + self.stores.cost_ns
    }
}

/// Totals of one thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadTotals {
    /// Totals of loads.
    pub loads: OperationTotals,
    /// Totals of stores.
    pub stores: OperationTotals,
    /// CPUs with the weight of the accesses from each.
    pub cpus: Vec<(CpuId, f64)>,
}

/// Threads that work together: those of one start routine, the main thread with its OpenMP team, or the main thread
/// and the threads that it created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// `openmp`, the start function's name, or `main`; `main+NAME` for the main thread with a team that it created.
    pub name: String,
    /// Process id of the team's threads.
    pub pid: u32,
    /// Indices of the team's threads.
    pub threads: Vec<ThreadIndex>,
    /// Whether the team joins the main thread, which comes first, with another team. The two keep separate teams, too.
    pub is_joined: bool,
}

/// Accesses by kind of object. All fields are by weight, and the others sum to `accesses`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "a field per object kind")]
pub struct Totals {
    pub accesses: f64,
    pub heap: f64,
    pub heap_unresolved: f64,
    pub statics: f64,
    pub mapping: f64,
    pub stack: f64,
    pub tls: f64,
    pub code: f64,
    pub unknown: f64,
}

/// Result of an attribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// Numbers of samples that were kept and lost, by reason.
    pub counts: SampleCounts,
    /// Accesses by kind of object.
    pub totals: Totals,
    /// Groups with at least one access, by descending cost.
    pub objects: Vec<ObjectGroup>,
    /// Totals by [`ThreadIndex`]. Accesses of a thread that [counts as](crate::counted_as) another are in the other's
    /// totals.
    pub threads: Vec<ThreadTotals>,
    /// Teams, largest first; joined teams come last.
    pub teams: Vec<Team>,
    /// Page size in bytes: the unit of placement.
    pub page_bytes: u64,
}
