//! Online policies: what is observed of a running program goes in, actions come out.
//!
//! A policy here has counters of its own and nothing else: it reads no clock, does no I/O, and draws
//! from a seed among its inputs, so that the same observations always give the same actions. Whoever
//! drives it (the simulator, the live daemon) hands it references one by one ([`OnlinePolicy::observe`]),
//! as many of them as its source of information has (every miss, one in ten, TLB misses), tells it
//! when an epoch has passed ([`OnlinePolicy::end_epoch`]), carries out what it asks for as far as
//! possible, and shows the outcome in the [`Copies`] of later observations.
//!
//! What else a policy may need has a default in [`OnlinePolicy`], so that a policy says only what is
//! its own: where pages are in their address spaces ([`OnlinePolicy::place`]), which references it
//! wants to be shown ([`OnlinePolicy::view`]), threads to move ([`OnlinePolicy::thread_moves`]), what
//! becomes of a replicated page that is written ([`OnlinePolicy::collapse`]).
//!
//! Between a request and its execution a page may change: a store collapses it, memory runs short, an
//! earlier request moves it. The driver therefore asks again before it copies
//! ([`OnlinePolicy::still_wants`]), and says what became of the page ([`OnlinePolicy::refused`],
//! [`OnlinePolicy::settled`]).
//!
//! Nodes are positions in [`Machine::nodes`](nearpage_machine::Machine::nodes), at most 64 of them.
//! Pages are numbered by the driver, from 0.
//!
//! Not here: who moves pages (the daemon, the simulator), and what is decided before a run (the planner).
//!
//! ```
//! use nearpage_machine::preset;
//! use nearpage_online::best_node::{hop_sensitive, uniform};
//!
//! // A page read 10 times from each of nodes 0 and 2, opposite corners of the Opterons' square,
//! // and 9 times from node 1 between them.
//! let accesses = [(0, 10.0), (1, 9.0), (2, 10.0)];
//! let weights = preset("opteron-4").unwrap().weights();
//! let anywhere = [true; 4];
//! assert_eq!(uniform(&accesses, &anywhere), Some(0)); // most accesses, lowest number
//! assert_eq!(hop_sensitive(&accesses, &weights, &anywhere), Some(1)); // never two hops away
//! ```

mod adaptive_trigger;
mod auto;
pub mod best_node;
pub mod carrefour;
mod draw;
mod fetch_ahead;
mod initial;
pub mod kernel_balancing;
mod migrate_replicate;
mod parameter;
mod planned;
mod push_pull;
mod replicate_on_first_touch;

use nearpage_amount::counted;
use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, ThreadIndex};

pub use adaptive_trigger::AdaptiveTrigger;
pub use auto::{Auto, AutoParameters, MemoryTimes};
pub use carrefour::{Carrefour, CarrefourParameters};
pub use draw::Draws;
pub use fetch_ahead::fetch_ahead;
pub use initial::Initial;
pub use kernel_balancing::{KernelBalancing, KernelBalancingParameters};
pub use migrate_replicate::{MigrateReplicate, Thresholds};
pub use parameter::{Parameter, ParameterError};
pub use planned::{Planned, PlannedChange, PlannedPhase};
pub use push_pull::{Monitor, PushPull, PushPullParameters};
pub use replicate_on_first_touch::ReplicateOnFirstTouch;

/// Where a page is: one home and any number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Node of the master copy.
    pub home: u16,
    /// Bit n: node n has a copy; the home's is set.
    pub nodes: u64,
}

impl Copies {
    /// A page without replicas.
    pub fn at(home: u16) -> Self {
        Self {
            home,
            nodes: 1 << home,
        }
    }

    /// Has this node a copy?
    pub fn on(self, node: u16) -> bool {
        self.nodes >> node & 1 == 1
    }
}

/// One reference that the source of information shows to the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// The page.
    pub page: u32,
    /// Node of the CPU.
    pub node: u16,
    /// Thread.
    pub thread: ThreadIndex,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// What served it.
    pub served: Served,
    /// Where the page is now. A copy on the thread's own node is left out if the thread's page table leads elsewhere.
    pub copies: Copies,
    /// The node has no memory left for a replica.
    pub pressure: bool,
}

/// Where a page is in its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The process, as the driver numbers them.
    pub application: u16,
    /// Address over page size.
    pub number: u64,
}

/// What one thread did in an epoch, as counters of the CPU that follow the thread tell it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadCounts {
    /// The thread.
    pub thread: ThreadIndex,
    /// Its process.
    pub application: u16,
    /// Node of its CPU now.
    pub node: u16,
    /// Time for which it had its CPU.
    pub busy_ns: u64,
    /// Loads and fetches that memory served.
    pub reads: u64,
    /// Stores that memory served.
    pub writes: u64,
}

/// What passed in an epoch, machine-wide, as hardware counters and the kernel tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Epoch<'a> {
    /// How long it was.
    pub duration_ns: u64,
    /// Requests that each node's memory controller served.
    pub controller_requests: &'a [u64],
    /// Misses of each node's CPUs to their own node's memory.
    pub local: &'a [u64],
    /// Misses of each node's CPUs to other nodes' memory.
    pub remote: &'a [u64],
    /// Misses that were loads or fetches.
    pub reads: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Share of memory that is free, 0 to 1; 1 where the machine's memory has no limit.
    pub free_share: f64,
    /// Threads that have started and not ended.
    pub threads: &'a [ThreadCounts],
    /// Time for which moves of pages waited for the kernel's lock.
    pub lock_wait_ns: u64,
    /// Time that moving pages took, these waits included.
    pub move_ns: u64,
    /// Pages that moved in that time as the policy asked; 0: not counted.
    pub moves: u64,
    /// Replicas that were given up, or not made, for want of memory.
    pub short_of_memory: u64,
}

/// What a policy wants done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// The page's only copy moves to the node; replicas go.
    Migrate,
    /// The same, to spread load and not for this page's sake: counted apart.
    Interleave,
    /// The node gets a copy too; all copies become read-only.
    Replicate,
    /// Only the master copy stays, wherever it is by then.
    Collapse,
}

/// Which references a policy is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All that its source has.
    All,
    /// One sample of each thread's instructions in so many cycles, where it refers to memory,
    /// whatever served it.
    Samples {
        /// Cycles between samples.
        cycles: u64,
        /// What taking a sample costs the thread.
        cost_cycles: u64,
    },
    /// The first to each page that was [unmapped](OnlinePolicy::unmap): a hinting fault.
    Faults {
        /// What a fault costs the thread.
        fault_ns: u64,
        /// What unmapping a page costs.
        unmap_ns: u64,
    },
    /// None.
    Nothing,
}

/// A thread that a policy wants on another node. Moves of one epoch are carried out together: a
/// thread takes the CPU that another leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadMove {
    /// The thread.
    pub thread: ThreadIndex,
    /// Its new node.
    pub node: u16,
    /// The rule that fired.
    pub rule: &'static str,
}

/// Which copy is left when a replicated page is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Survivor {
    /// The master copy; the page is not replicated any more (Verghese §8.1).
    #[default]
    Master,
    /// The writer's; a node that had a copy gets a fresh one when it next refers to the page
    /// (Carrefour §3.3.2).
    Writer,
    /// The writer's; the page is not replicated any more.
    WriterAlone,
}

/// One change of the page table, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// The page.
    pub page: u32,
    /// What is done to it.
    pub kind: ActionKind,
    /// Node that it is about; of no meaning to [`ActionKind::Collapse`].
    pub node: u16,
    /// The rule that fired, and what it saw.
    pub reason: Reason,
}

/// The rule that fired and the counters that it saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The rule.
    pub rule: &'static str,
    /// The page's count for each node.
    pub counts: Vec<u32>,
    /// The page's stores.
    pub writes: u32,
    /// Times that the page has migrated.
    pub migrations: u32,
}

impl Reason {
    /// A rule that looks at no counters.
    pub fn rule(rule: &'static str) -> Self {
        Self {
            rule,
            counts: Vec::new(),
            writes: 0,
            migrations: 0,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            rule,
            counts,
            writes,
            migrations,
        } = self;
        write!(
            f,
            "{rule}; by node {counts:?}, {}, {}",
            counted((*writes).into(), "store"),
            counted((*migrations).into(), "migration")
        )
    }
}

/// What a policy is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Nodes of the machine.
    pub nodes: usize,
    /// Pages that observations may name.
    pub pages: usize,
    /// Clock of its CPUs, where the policy's intervals are in cycles.
    pub clock_ghz: f64,
    /// Bit n: node n has memory.
    pub memory_nodes: u64,
    /// CPUs of a node, of the one with the fewest where they differ; 0: unknown.
    pub cpus_per_node: u32,
    /// References that one observation stands for: 10 where one in ten is shown.
    pub every: u32,
    /// Where random draws start, for policies that make any.
    pub seed: u64,
}

/// A policy that decides while the program runs.
pub trait OnlinePolicy {
    /// Length of an epoch; `None`: the policy has none.
    fn epoch_ns(&self) -> Option<u64>;

    /// Takes in one reference; asks for what should be done at once.
    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>);

    /// A page that will soon be observed: a hint to have its counters brought into the caches
    /// ([`fetch_ahead()`]), without any effect on decisions.
    #[inline]
    fn fetch_ahead(&self, page: u32) {
        let _ = page;
    }

    /// An epoch has passed.
    fn end_epoch(&mut self, epoch: &Epoch<'_>, actions: &mut Vec<Action>);

    /// The driver uses a page's number for another page from now on.
    fn forget(&mut self, page: u32);

    /// Where a page is; told before its first reference, and again after [`OnlinePolicy::forget`].
    fn place(&mut self, _page: u32, _place: Place) {}

    /// What it wants to be shown until the epoch ends.
    fn view(&self) -> View {
        View::All
    }

    /// Why the last epoch made it leave every program alone, for whoever waits for pages to move.
    fn why_idle(&self) -> Option<String> {
        None
    }

    /// Threads to be moved, asked for after each epoch.
    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        Vec::new()
    }

    /// Pages whose next reference is to take a hinting fault, asked for after each epoch.
    fn unmap(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Is what it asks for after an epoch the work of a kernel thread, which takes a CPU that is idle where
    /// there is one?
    fn has_kernel_thread(&self) -> bool {
        false
    }

    /// A store is about to collapse a replicated page: which copy stays?
    fn collapse(&mut self, _page: u32) -> Survivor {
        Survivor::Master
    }

    /// Is an action that the policy asked for still wanted, now that the driver carries it out?
    fn still_wants(&self, _action: &Action) -> bool {
        true
    }

    /// An action was not carried out: no memory, nothing left to do, or no longer wanted; where its
    /// page is.
    fn refused(&mut self, _action: &Action, _copies: Copies) {}

    /// Where a page is, after each action on it, carried out or not, and whenever copies of it were
    /// given up. Bit n of `stale`: node n gets a fresh copy when it next refers to the page.
    fn settled(&mut self, _page: u32, _copies: Copies, _stale: u64) {}

    /// The phase that is judged begins, at its marker, or ends.
    fn marked(&mut self, _begins: bool) {}

    /// A thread fetches instructions from memory or another cache: byte of the page. Without a view.
    #[inline]
    fn fetched(&mut self, _page: u32, _offset_bytes: u32) {}
}
