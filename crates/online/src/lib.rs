//! Online policies: observations of a running program go in, actions come out.
//!
//! A policy has no state but its own counters: it reads no clock, does no I/O, and draws random numbers from a seed
//! among its inputs. So equal observations always give equal actions. A driver (the simulator or the live daemon) hands
//! the policy references one by one ([`OnlinePolicy::observe`]), as many as its source of information has (every miss,
//! one in ten, TLB misses). The driver tells the policy when an epoch has passed ([`OnlinePolicy::end_epoch`]), carries
//! out the policy's actions as far as possible, and shows the outcome in the [`Copies`] of later observations.
//!
//! Other methods of [`OnlinePolicy`] have defaults, and a policy implements those that it needs: positions of pages in
//! their address spaces ([`OnlinePolicy::place`]), the selection of references ([`OnlinePolicy::view`]), moves of
//! threads ([`OnlinePolicy::thread_moves`]), stores to replicated pages ([`OnlinePolicy::collapse`]).
//!
//! Between a request and its execution a page may change: a store collapses it, memory runs short, an earlier request
//! moves it. Before copying, the driver therefore asks whether the policy still wants the action
//! ([`OnlinePolicy::is_still_requested`]). Afterwards it tells the policy the page's state ([`OnlinePolicy::refused`],
//! [`OnlinePolicy::settled`]).
//!
//! Nodes are positions in [`Machine::nodes`](nearpage_machine::Machine::nodes), at most 64 of them.
//! Pages are numbered by the driver, from 0.
//!
//! The daemon and the simulator move pages; the planner decides before a run.
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

/// Copies of a page: a home, and any number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Node of the master copy.
    pub home: u16,
    /// Bit n is set: node n has a copy. The home's bit is set, too.
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

    /// Does the node have a copy?
    pub fn on(self, node: u16) -> bool {
        self.nodes >> node & 1 == 1
    }
}

/// A reference that the policy is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// The page.
    pub page: u32,
    /// Node of the thread's CPU.
    pub node: u16,
    /// Thread.
    pub thread: ThreadIndex,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// Cache or memory that served the reference.
    pub served: Served,
    /// Copies of the page. A copy on the thread's own node is left out if the thread's page table leads elsewhere.
    pub copies: Copies,
    /// The node has no memory for a replica.
    pub pressure: bool,
}

/// Position of a page in its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Process of the page, by the driver's number.
    pub application: u16,
    /// Address divided by the page size.
    pub number: u64,
}

/// Counts of a thread in an epoch, from CPU counters that follow the thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadCounts {
    /// The thread.
    pub thread: ThreadIndex,
    /// Process of the thread.
    pub application: u16,
    /// Node of the thread's current CPU.
    pub node: u16,
    /// Time for which the thread had its CPU.
    pub busy_ns: u64,
    /// Accesses that memory served, but for those that count as writes.
    pub reads: u64,
    /// Of the accesses that memory served, the stores; where write-backs are known and are more, as many as lines were
    /// written back: a line that is loaded and then stored to is written to memory, too.
    pub writes: u64,
}

/// Machine-wide counts of an epoch, from hardware counters and the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Epoch<'a> {
    /// Length of the epoch.
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
    /// Time spent moving pages, including waits for the lock.
    pub move_ns: u64,
    /// Number of pages that the policy moved in `move_ns`; 0: not counted.
    pub moves: u64,
    /// Number of replicas that were reclaimed or refused for lack of memory.
    pub short_of_memory: u64,
}

/// Kind of an action on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// The page moves to the node; its replicas are dropped.
    Migrate,
    /// The page moves to the node to spread load; counted separately.
    Interleave,
    /// The node gets a copy; all copies become read-only.
    Replicate,
    /// All copies but the master copy are dropped.
    Collapse,
}

/// Selection of the references that a policy is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All references of the source.
    All,
    /// Samples of each thread's instructions that refer to memory, whatever serves them.
    Samples {
        /// Cycles between samples.
        cycles: u64,
        /// Cost of a sample for the thread.
        cost_cycles: u64,
    },
    /// The first reference to each page that was [unmapped](OnlinePolicy::unmap): a hinting fault.
    Faults {
        /// Cost of a fault for the thread.
        fault_ns: u64,
        /// Cost of unmapping a page.
        unmap_ns: u64,
    },
    /// No references.
    Nothing,
}

/// A move of a thread to another node. The moves of an epoch are made together, so a thread may take another's CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadMove {
    /// The thread.
    pub thread: ThreadIndex,
    /// Target node.
    pub node: u16,
    /// Rule that caused the move.
    pub rule: &'static str,
}

/// Copy that is left after a store to a replicated page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Survivor {
    /// The master copy; the page is no longer replicated (Verghese §8.1).
    #[default]
    Master,
    /// The writer's copy; a node that had a copy gets a fresh one at its next reference (Carrefour §3.3.2).
    Writer,
    /// The writer's copy; the page is no longer replicated.
    WriterAlone,
}

/// An action on a page, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// The page.
    pub page: u32,
    /// Kind of the action.
    pub kind: ActionKind,
    /// Target node; unused by [`ActionKind::Collapse`].
    pub node: u16,
    /// Rule that caused the action, and the counters that it used.
    pub reason: Reason,
}

/// A rule that caused an action, and the counters that it used.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The rule.
    pub rule: &'static str,
    /// Counts of the page by node.
    pub counts: Vec<u32>,
    /// Number of stores to the page.
    pub writes: u32,
    /// Number of times that the page has migrated.
    pub migrations: u32,
}

impl Reason {
    /// A reason without counters.
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

/// Properties of the machine and the driver that a policy depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of pages; observations name pages below it.
    pub pages: usize,
    /// Clock frequency of the CPUs, for intervals in cycles.
    pub clock_ghz: f64,
    /// Bit n is set: node n has memory.
    pub memory_nodes: u64,
    /// Bit n is set: node n has memory, and is not a far node without CPUs.
    pub near_memory_nodes: u64,
    /// Number of CPUs per node, the lowest if nodes differ; 0: unknown.
    pub cpus_per_node: u32,
    /// Number of references that an observation stands for: 10 if one in ten is shown.
    pub every: u32,
    /// Seed of random draws.
    pub seed: u64,
}

/// A policy that decides while the program runs.
pub trait OnlinePolicy {
    /// Length of an epoch; `None`: the policy needs no epochs.
    fn epoch_ns(&self) -> Option<u64>;

    /// Takes in a reference, and adds actions to be carried out at once.
    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>);

    /// Prefetches counters of a page that will soon be observed ([`fetch_ahead()`]), without any effect on decisions.
    #[inline]
    fn fetch_ahead(&self, page: u32) {
        let _ = page;
    }

    /// Takes in the counts of an epoch that has passed, and adds actions.
    fn end_epoch(&mut self, epoch: &Epoch<'_>, actions: &mut Vec<Action>);

    /// Drops a page's state, because the driver uses the page's number for another page from now on.
    fn forget(&mut self, page: u32);

    /// Tells a page's position before its first reference, and again after [`OnlinePolicy::forget`].
    fn place(&mut self, _page: u32, _place: Place) {}

    /// References that the policy is to be shown until the epoch ends.
    fn view(&self) -> View {
        View::All
    }

    /// Reason why the policy left every program alone in the last epoch, for users who wait for pages to move.
    fn why_idle(&self) -> Option<String> {
        None
    }

    /// Moves of threads; the driver asks after each epoch.
    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        Vec::new()
    }

    /// Pages whose next reference is to take a hinting fault; the driver asks after each epoch.
    fn unmap(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Does a kernel thread carry out the actions of an epoch, on an idle CPU if there is one?
    fn has_kernel_thread(&self) -> bool {
        false
    }

    /// Decides which copy stays when a store collapses a replicated page.
    fn collapse(&mut self, _page: u32) -> Survivor {
        Survivor::Master
    }

    /// Does the policy still want an action that is about to be carried out?
    fn is_still_requested(&self, _action: &Action) -> bool {
        true
    }

    /// Tells that an action was not carried out, for lack of memory or because it had nothing to do or was no longer
    /// wanted; and the page's copies.
    fn refused(&mut self, _action: &Action, _copies: Copies) {}

    /// Tells a page's copies after each action on it, carried out or not, and whenever copies were reclaimed. Bit n of
    /// `stale` is set: node n gets a fresh copy at its next reference.
    fn settled(&mut self, _page: u32, _copies: Copies, _stale: u64) {}

    /// Tells that the first marked phase begins, or the last one ends.
    fn marked(&mut self, _begins: bool) {}

    /// Tells that a thread fetched instructions at this byte of the page from memory or another cache, under any view.
    #[inline]
    fn fetched(&mut self, _page: u32, _offset_bytes: u32) {}
}
