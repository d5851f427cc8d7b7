//! The plan file's content.

use std::collections::BTreeMap;

use nearpage_machine::{DeviceKind, NodeId, ThreadPlacement};
use serde::{Deserialize, Serialize};

use crate::{Parts, PlanPrediction, Tiles};

/// A GNU build-id, lower-case hexadecimal; empty where there is none.
pub type BuildId = String;

/// Whom a part of an object belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Thread `index` of a team.
    Thread {
        /// Name of the team in [`Plan::teams`].
        team: String,
        /// Number in it.
        index: u32,
    },
    /// A node of the machine, whoever runs there.
    Node(NodeId),
    /// The node next to a device of the machine.
    Near(DeviceKind, u32),
}

/// Nodes with weights, as in `0=3,1=1`; weight 1 where none is written.
pub type NodeWeights = Vec<(NodeId, u32)>;

/// Consecutive pages with one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// First page of the object, in units of [`Plan::page_bytes`].
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
    /// On whose node they live.
    pub owner: Owner,
}

/// Where an object's pages go. Written in the plan file and on the command line (`--place`) the
/// same way: `block`, `block:0-48M/64M`, `block-cyclic:20M`, `tiles:2x4/384K`, `round-robin`, `object-blocks:2000`, `interleave`, `interleave:0,2-3`,
/// `interleave:0=3,1=1`, `thread:2`, `node:1`, `near:gpu0`, `runs`, `replicate`, `first-touch`; a pattern over another team than the plan's first
/// says so: `block@worker`, `thread:2@worker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Share k of T to the node of thread k of the team, T being the team of the run.
    Block {
        /// Team; empty: the plan's first.
        team: String,
    },
    /// Objects of a call site in the order of their allocation, each as a whole, dealt to the threads of the team in order.
    RoundRobin {
        /// Name of the team in [`Plan::teams`]; empty: the first one.
        team: String,
    },
    /// Objects of a call site in the order of their allocation, each as a whole: an equal share of them for each thread of
    /// the team. How many there will be is known when the process creates its second thread; until then there are as many
    /// as when the plan was made.
    ObjectBlocks {
        /// Objects when the plan was made.
        objects: u32,
        /// Name of the team in [`Plan::teams`]; empty: the first one.
        team: String,
    },
    /// Pieces of so many bytes dealt to the threads of the team in order.
    BlockCyclic {
        /// Bytes of one piece.
        block_bytes: u64,
        /// Team; empty: the plan's first.
        team: String,
    },
    /// Each part of the object in shares, as [`Self::Block`] deals all of it.
    Parts {
        /// The parts.
        parts: Parts,
        /// Team; empty: the plan's first.
        team: String,
    },
    /// A tile of an array of rows to each thread of the team.
    Tiles {
        /// The grid.
        tiles: Tiles,
        /// Team; empty: the plan's first.
        team: String,
    },
    /// Round-robin by page; no nodes: all nodes with memory.
    Interleave {
        /// Nodes, with weights.
        nodes: NodeWeights,
    },
    /// All of it to one owner.
    Whole(Owner),
    /// Explicit page runs.
    Runs(Vec<PageRun>),
    /// A copy on each node that reads it. Simulated machines have that; no stock kernel does within
    /// a process, where it is carried out as interleaving over all nodes.
    Replicate,
    /// Left to first touch; with a later [`Start`], or in a [`Phase`], each page goes near the thread that uses it next
    /// then.
    FirstTouch,
}

/// A frame of a call site as the plan keeps it, innermost first, runtime modules left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallSiteFrame {
    /// Module's file name.
    pub module: String,
    /// Its build-id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: BuildId,
    /// Return address as a virtual address in the module's file.
    pub offset: u64,
    /// Function (the outermost of the inlined ones), for people and as the second key of a rebuilt
    /// program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// Source line, 0 where unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
}

fn is_zero(line: &u32) -> bool {
    *line == 0
}

/// How an object is recognised in another run.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// A static symbol.
    Symbol {
        /// Its name.
        symbol: String,
        /// Module's file name; empty: the program or the first of its libraries that has it.
        module: String,
        /// Module's build-id; empty: any.
        build_id: BuildId,
        /// Virtual address in the module's file, right only for that build-id.
        offset: u64,
        /// Bytes.
        size_bytes: u64,
    },
    /// Heap objects or mappings of a call site.
    CallSite {
        /// Its frames.
        frames: Vec<CallSiteFrame>,
        /// Bytes of the object that was observed.
        size_bytes: u64,
        /// First and last number among the objects of this call site and thread; none: all.
        order: Option<(u32, u32)>,
        /// Creation order of the allocating thread; none: any.
        thread: Option<u32>,
    },
    /// A module's code, which only [`Placement::Replicate`] is for.
    Code {
        /// Module's file name.
        module: String,
        /// Module's build-id; empty: any.
        build_id: BuildId,
        /// First page of its code and how many, ascending, in units of [`Plan::page_bytes`]; right only for that
        /// build-id, of another build all of its code is meant. Empty: all.
        pages: Vec<(u64, u64)>,
    },
    /// What no other decision about objects places of the heap that `brk` extends, `[heap]` in `/proc/PID/maps`: pages
    /// full of small objects, by their distance from its start, which is the same in every run of one input.
    BrkHeap {
        /// Bytes of it when it was observed. What it grows by beyond them is part of unmatched memory under page runs and
        /// blocks, and goes on in turn, or to the same place, under other placements.
        size_bytes: u64,
    },
    /// `rest`: what no other decision places and no file is behind, small objects among it, but for threads'
    /// stacks. Many of its objects share a page, so that it can only be spread, or go to one node
    /// ([`Placement::fits_unmatched`]).
    Unmatched,
    /// `heap>=1M`: heap objects within bounds (inclusive bytes).
    Heap {
        /// Least size.
        size_min_bytes: u64,
        /// Greatest size.
        size_max_bytes: u64,
    },
    /// `mapping>=1M`: anonymous mappings of the program's own.
    Mapping {
        /// Least size.
        size_min_bytes: u64,
        /// Greatest size.
        size_max_bytes: u64,
    },
}

impl Subject {
    /// Is it the heap that `brk` extends?
    pub fn is_brk_heap(&self) -> bool {
        matches!(self, Self::BrkHeap { .. })
    }
}

/// What a decision is expected to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// Accesses of the recording that decided.
    pub accesses: f64,
    /// Share of the recording's cost that this object bears, 0 to 1.
    pub cost_share: f64,
    /// Share of its accesses that would be local under first touch of the recording's threads on
    /// the plan's machine, 0 to 1; absent where first touches are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_before: Option<f64>,
    /// Share of its accesses predicted to be local with this placement, 0 to 1.
    pub local_after: f64,
    /// Samples that it was decided from; absent where they are all accesses, or not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Share of resamples of the recording from which the same was decided, 0 to 1; absent where that was not found
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// From when a placement holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// From the object's allocation on.
    #[default]
    Allocation,
    /// From when a second thread of the process runs: what the first one does alone before, such as
    /// filling the object, it does near itself, under first touch; then each page moves to its place
    /// when it is next used.
    SecondThread,
    /// Whenever several threads of the process run: as [`Start::SecondThread`]; and when one has run alone
    /// for a millisecond or longer, each page moves near it when it is next used, and back when another
    /// runs again.
    Parallel,
}

impl Start {
    /// As plans write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::SecondThread => "second-thread",
            Self::Parallel => "parallel",
        }
    }

    /// What a plan calls so.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Allocation, Self::SecondThread, Self::Parallel];
        all.into_iter().find(|start| start.as_str() == name)
    }
}

/// One object (or several of one call site), where its pages go, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Name for people: symbol, or function and line that allocated.
    pub name: String,
    /// How it is recognised.
    pub subject: Subject,
    /// Where its pages go.
    pub placement: Placement,
    /// From when.
    pub start: Start,
    /// The counters that were seen and the rule that fired, in words.
    pub why: String,
    /// Predicted.
    pub effect: Effect,
}

/// What follows a team's name where its threads take their shares in the opposite order, the last one first.
pub const REVERSED: &str = ":reversed";

/// The team that is meant, and whether its threads take their shares in the opposite order. A team whose own name ends so,
/// as a function in a namespace may, is meant as it is.
pub fn team_and_order(name: &str, is_known: impl Fn(&str) -> bool) -> (&str, bool) {
    match name.strip_suffix(REVERSED) {
        Some(team) if !is_known(name) => (team, true),
        _ => (name, false),
    }
}

/// Threads of a team of a plan: of one that it lists, or of several that are joined, as `main+worker` is. None: the plan
/// does not say.
pub fn threads_of<'a>(
    teams: impl IntoIterator<Item = &'a Team> + Clone,
    name: &str,
) -> Option<u64> {
    let of = |name: &str| {
        let team = teams.clone().into_iter().find(|team| team.name == name)?;
        Some(u64::from(team.threads))
    };
    let is_known = |name: &str| of(name).is_some();
    joined(team_and_order(name, is_known).0, is_known)
        .map(of)
        .sum()
}

/// The teams that a name stands for: a known one, or those that it joins, as `main+worker` does.
pub(crate) fn joined(name: &str, is_known: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
    let limit = if is_known(name) { 1 } else { usize::MAX };
    name.splitn(limit, '+')
}

/// Threads that share work, by start routine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// `openmp`, the start function's name, or `main`.
    pub name: String,
    /// Its size when recorded.
    pub threads: u32,
    /// Of the main thread alone: threads of the team that it works beside, if it does; it runs on the CPU after theirs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub beside: u32,
    /// Module (file name) of the start routine; empty for `main`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// Module's build-id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: BuildId,
    /// Virtual address of the start routine in the module's file.
    #[serde(default)]
    pub offset: u64,
}

/// The program that a plan is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Executable's file name.
    pub executable: String,
    /// Its build-id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: BuildId,
    /// Arguments of the recorded run.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Rank under an MPI launcher; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// Where a plan's threads run, as `nearpage run --threads` pins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Node after node: on as few as hold them.
    Compact,
    /// Round the nodes.
    Scatter,
}

impl Layout {
    /// Both, in the order in which they are tried.
    pub const ALL: [Self; 2] = [Self::Compact, Self::Scatter];

    /// As plans write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Scatter => "scatter",
        }
    }

    /// What a plan calls so.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.as_str() == name)
    }
}

impl From<Layout> for ThreadPlacement {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Compact => Self::Compact,
            Layout::Scatter => Self::Scatter,
        }
    }
}

/// What changes when a function of the program is executed for the first time, by whatever thread: threads change
/// places, and each page of an object that is decided about anew moves to its place when it is next used, until another
/// phase says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The function that the phase begins with, as the symbol table has it.
    pub function: String,
    /// Its module's file name.
    pub module: String,
    /// Module's build-id; empty: any.
    pub build_id: BuildId,
    /// Its virtual address in the module's file, right only for that build-id.
    pub offset: u64,
    /// Its bytes.
    pub size_bytes: u64,
    /// By number in the plan's first team: whose place each thread takes, of those where they ran at the beginning.
    /// Each number once; empty: threads stay where they are.
    pub threads: Vec<u32>,
    /// Decisions about objects, with [`Start::Allocation`]; the first that fits an object wins. With
    /// [`Placement::FirstTouch`] each page goes near the thread that uses it next.
    pub decisions: Vec<Decision>,
}

/// A plan for one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it is for.
    pub program: Program,
    /// Policy that made it.
    pub policy: String,
    /// Machine it was made for, by name; its predictions hold there.
    pub machine: String,
    /// Unit of page runs, in bytes.
    pub page_bytes: u64,
    /// Where its threads are to run; none: it says nothing of that.
    pub threads: Option<Layout>,
    /// What was predicted of it; none in a plan that was written by hand.
    pub predicted: Option<PlanPrediction>,
    /// Teams; patterns without a team mean the first.
    pub teams: Vec<Team>,
    /// Decisions; the first that fits an object wins.
    pub decisions: Vec<Decision>,
    /// Its pages migrate while it runs; none: its pages stay where they are placed.
    pub online_migration: Option<OnlineMigration>,
    /// What changes as the program goes on, in the order in which the phases began when it was recorded.
    pub phases: Vec<Phase>,
}

/// `nearpage live --policy auto` moves the program's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnlineMigration {
    /// Parameters of the policy by name, as `--set` takes them; what is not among them is as the policy has it.
    pub parameters: BTreeMap<String, u64>,
}

impl Phase {
    /// Does nothing change with it?
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.decisions.is_empty()
    }
}

impl Plan {
    /// All decisions, those of phases last.
    pub fn all_decisions(&self) -> impl Iterator<Item = &Decision> {
        let later = self.phases.iter().flat_map(|phase| &phase.decisions);
        self.decisions.iter().chain(later)
    }

    /// The decision about what no other places.
    pub fn rest(&self) -> Option<&Decision> {
        let mut decisions = self.decisions.iter();
        decisions.find(|decision| decision.subject == Subject::Unmatched)
    }

    /// Does any placement name threads, or do they change places, so that a run of it pins them unless told otherwise?
    pub fn names_threads(&self) -> bool {
        let exchange = self.phases.iter().any(|phase| !phase.threads.is_empty());
        let mut decisions = self.all_decisions();
        exchange || decisions.any(|decision| decision.placement.names_threads())
    }
}
