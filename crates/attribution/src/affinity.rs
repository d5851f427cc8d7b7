//! The result of attribution.

use nearpage_machine::CpuId;
use nearpage_recording::{CallSiteId, ModuleId, ObjectId, ObjectKind, SampleCounts, ThreadIndex};

use crate::Pattern;

/// What was done to a page by a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Page of the object: offset in the object's pages, in units of [`Affinity::page_bytes`]. Page
    /// 0 holds the object's first byte, so an object that starts inside a page still has whole
    /// pages of address space.
    pub page: u32,
    /// Thread.
    pub thread: ThreadIndex,
    /// Loads, by weight.
    pub loads: f32,
    /// Stores, by weight.
    pub stores: f32,
    /// Time lost to both, in nanoseconds.
    pub cost_ns: f32,
    /// Samples of both, whatever they weigh: what tells whose the page is. Weights differ by the rate at which the
    /// recording sampled, and a few heavy ones would drown the rest.
    pub samples: f32,
}

impl Cell {
    /// Loads and stores, by weight (the `rw` of Marathe's Eq. 1 and 2).
    pub fn accesses(&self) -> f64 {
        f64::from(self.loads) + f64::from(self.stores)
    }
}

/// What each thread did to each page of an object. Instances of one group are laid over each
/// other, page by page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Affinity {
    /// Unit of [`Cell::page`]: the page size, or a power-of-two multiple of it where the object was
    /// too large to be kept page by page.
    pub page_bytes: u64,
    /// Number of such pages.
    pub pages: u32,
    /// Sorted by page, then thread; pages without an access are absent.
    pub cells: Vec<Cell>,
    /// The same for the initialisation: what one thread did before any other thread accessed the
    /// object. Not part of `cells`. Empty for objects that only one thread ever used.
    pub initialisation: Vec<Cell>,
    /// Accesses that a sample of the object stands for, on the average by accesses: tells how many samples a
    /// count is worth. 0 where unknown, taken for 1.
    pub sample_weight: f64,
}

impl Affinity {
    /// What a pattern is told by: the initialisation only where nothing else is known.
    pub fn told_by(&self) -> &[Cell] {
        match self.cells.is_empty() {
            true => &self.initialisation,
            false => &self.cells,
        }
    }
}

/// Loads or stores of something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OperationTotals {
    /// Accesses, by weight.
    pub count: f64,
    /// Of these, to a page on another node than the CPU's (0 where no page node was recorded).
    pub remote: f64,
    /// Accesses whose page node was recorded.
    pub node_known: f64,
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// Of this, to accesses to a page on another node.
    pub remote_cost_ns: f64,
}

/// What an instruction did to an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeUse {
    /// Module, absent for generated code.
    pub module: Option<ModuleId>,
    /// Virtual address in the module's file (absolute where there is no module).
    pub offset: u64,
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// Of this, to another node's memory.
    pub remote_cost_ns: f64,
    /// Loads, by weight.
    pub loads: f64,
    /// Stores, by weight.
    pub stores: f64,
}

impl CodeUse {
    /// Loads and stores.
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

/// An instruction and what it cost on an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Hot {
    /// Module, absent for generated code.
    pub module: Option<ModuleId>,
    /// Virtual address in the module's file (absolute where there is no module).
    pub offset: u64,
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// Accesses, by weight.
    pub accesses: f64,
}

/// What makes objects one row: the same symbol, call site or kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// Heap objects and mappings of one call site, and of one size class (16 KiB to 256 KiB, 256 KiB
    /// to 4 MiB, …) where a call site allocates objects of very different sizes.
    CallSite(CallSiteId),
    /// A static symbol.
    Symbol(ModuleId, u64),
    /// Anything else, by its recorded name (a file mapping, `stack`, `thread-local storage`, …).
    Other(String),
}

/// Objects of one call site or symbol, together.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectGroup {
    /// What they are.
    pub kind: ObjectKind,
    /// What they share.
    pub name: ObjectName,
    /// The largest instance's size in bytes.
    pub size_bytes: u64,
    /// Number of instances in the recording (sampled ones by weight, rounded).
    pub instances: u64,
    /// The one object of its call site that this is about, where there are a few and their patterns differ.
    pub sibling: Option<ObjectId>,
    /// The instances that were accessed, at most [`ObjectGroup::SAMPLES_MAX`] of them, by cost
    /// (of the 8,192 largest objects that are not alone in their group, where there are more).
    pub samples: Vec<ObjectId>,
    /// Loads.
    pub loads: OperationTotals,
    /// Stores.
    pub stores: OperationTotals,
    /// By thread, ascending: loads, stores, cost in nanoseconds.
    pub threads: Vec<(ThreadIndex, f64, f64, f64)>,
    /// Costliest instructions, at most eight.
    pub hot: Vec<Hot>,
    /// By page and thread.
    pub affinity: Affinity,
    /// Who touched which page first, as far as the recording knows: page as in
    /// [`Cell::page`], ascending; of several instances the first touch of the first one.
    pub first_touches: Vec<(u32, ThreadIndex)>,
    /// Where there is more than one instance: what each thread did to each of them that is followed, ascending.
    pub uses: Vec<InstanceUse>,
    /// What was found in it.
    pub pattern: Pattern,
}

/// What a thread did to an instance, after its group's initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstanceUse {
    /// The instance.
    pub object: ObjectId,
    /// The thread.
    pub thread: ThreadIndex,
    /// Accesses, by weight.
    pub accesses: f64,
    /// Time lost to them, in nanoseconds.
    pub cost_ns: f64,
    /// Samples of them, whatever they weigh.
    pub samples: f64,
}

/// The main thread works beside a team if it makes so much of the accesses that a thread of the team makes on average.
const WORKS_MIN: f64 = 0.5;

impl Attribution {
    /// Threads of the team that a process's main thread works beside, if it does more than start them: the largest one
    /// that it is not in. The objects' initialisation does not count.
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
        let works = by_main > 0.0 && by_main >= WORKS_MIN * by_team / team.len() as f64;
        works.then_some(team)
    }
}

impl Team {
    /// Is it the main thread of a process whose threads are created by `pthread_create`, not by OpenMP?
    pub fn is_main_alone(&self) -> bool {
        self.name == MAIN_TEAM && self.threads.len() == 1
    }
}

/// What the team of the main thread alone is called.
const MAIN_TEAM: &str = "main";

impl ObjectGroup {
    /// Instances kept by number in [`ObjectGroup::samples`].
    pub const SAMPLES_MAX: usize = 64;

    /// Accesses of both kinds, by weight.
    pub fn accesses(&self) -> f64 {
        self.loads.count + self.stores.count
    }

    /// Time lost to both, in nanoseconds.
    pub fn cost_ns(&self) -> f64 {
        self.loads.cost_ns + self.stores.cost_ns
    }
}

/// A thread's part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadTotals {
    /// Loads.
    pub loads: OperationTotals,
    /// Stores.
    pub stores: OperationTotals,
    /// Accesses by CPU.
    pub cpus: Vec<(CpuId, f64)>,
}

/// Threads that work together: those of one start routine, the main thread with its OpenMP team, or the main thread
/// and the threads that it created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// `openmp`, the start function's name, or `main`; `main+NAME` for the main thread and a team that it created.
    pub name: String,
    /// Process.
    pub pid: u32,
    /// Its threads by index.
    pub threads: Vec<ThreadIndex>,
    /// Is it the main thread, first, and another team? Each of its threads is in a team of its own, too.
    pub is_joined: bool,
}

/// Accesses by what they belong to; all by weight, so that they sum to `accesses`.
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

/// Everything that attribution found.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// What became of samples.
    pub counts: SampleCounts,
    /// Accesses by kind of object.
    pub totals: Totals,
    /// Groups with at least one access, by cost, descending.
    pub objects: Vec<ObjectGroup>,
    /// By [`ThreadIndex`]; what a thread did that [counts as](crate::counted_as) another one is in that one's.
    pub threads: Vec<ThreadTotals>,
    /// Teams, largest first; joined ones come last.
    pub teams: Vec<Team>,
    /// Unit that placement works in, in bytes.
    pub page_bytes: u64,
}
