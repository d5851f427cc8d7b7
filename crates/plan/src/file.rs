//! The plan file's content.

use std::collections::BTreeMap;

use nearpage_machine::{DeviceKind, NodeId, ThreadPlacement};
use serde::{Deserialize, Serialize};

use crate::{Parts, PlanPrediction, Tiles};

/// A GNU build-id, lower-case hexadecimal; empty where there is none.
pub type BuildId = String;

/// Owner of a part of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Thread `index` of a team.
    Thread {
        /// Name of the team in [`Plan::teams`].
        team: String,
        /// Number of the thread in the team.
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
    /// The owner, on whose node the pages live.
    pub owner: Owner,
}

/// Where an object's pages go. The plan file and the command line (`--place`) use the same forms: `block`,
/// `block:0-48M/64M`, `block:0-64M/64M/2:3:1`, `block-cyclic:20M`, `tiles:2x4/384K`, `round-robin`, `object-blocks:2000`, `interleave`,
/// `interleave:0,2-3`, `interleave:0=3,1=1`, `thread:2`, `node:1`, `near:gpu0`, `runs`, `replicate`, `first-touch`. A
/// pattern over another team than the plan's first names the team: `block@worker`, `thread:2@worker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Share k of T to the node of thread k of the team; T is the size of the team in the run.
    Block {
        /// Team; empty: the plan's first.
        team: String,
    },
    /// Objects of a call site in order of allocation, each as a whole, dealt to the threads of the team in turn.
    RoundRobin {
        /// Name of the team in [`Plan::teams`]; empty: the first one.
        team: String,
    },
    /// Objects of a call site in order of allocation, each as a whole: each thread of the team gets an equal share of
    /// the objects. Their number is known when the process creates its second thread; until then the recorded number
    /// counts.
    ObjectBlocks {
        /// Number of objects when the plan was made.
        objects: u32,
        /// Name of the team in [`Plan::teams`]; empty: the first one.
        team: String,
    },
    /// Pieces of `block_bytes` dealt to the threads of the team in turn.
    BlockCyclic {
        /// Bytes of one piece.
        block_bytes: u64,
        /// Team; empty: the plan's first.
        team: String,
    },
    /// Each part of the object in shares, as [`Self::Block`] deals the whole object.
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
    /// The whole object to one owner.
    Whole(Owner),
    /// Explicit page runs.
    Runs(Vec<PageRun>),
    /// A copy on each node that reads the object. Only simulated machines have such copies within a process; on stock
    /// kernels the object is interleaved over all nodes.
    Replicate,
    /// Left to first touch. With a later [`Start`], or in a [`Phase`], each page goes near the thread that uses it next
    /// from then on.
    FirstTouch,
}

/// A frame of a call site. Frames are in order, innermost first, without runtime modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallSiteFrame {
    /// Module's file name.
    pub module: String,
    /// The module's build-id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: BuildId,
    /// Return address as a virtual address in the module's file.
    pub offset: u64,
    /// Function (the outermost of the inlined ones), for people, and as the second key in a rebuilt program.
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
        /// The symbol's name.
        symbol: String,
        /// Module's file name; empty: the program or the first of its libraries that has the symbol.
        module: String,
        /// Module's build-id; empty: any.
        build_id: BuildId,
        /// Virtual address in the module's file, right only for that build-id.
        offset: u64,
        /// Size in bytes.
        size_bytes: u64,
    },
    /// Heap objects or mappings of a call site.
    CallSite {
        /// The call site's frames.
        frames: Vec<CallSiteFrame>,
        /// Size of the observed object in bytes.
        size_bytes: u64,
        /// First and last number among the objects of this call site and thread; none: all.
        order: Option<(u32, u32)>,
        /// Creation order of the allocating thread; none: any.
        thread: Option<u32>,
    },
    /// A module's code, only with [`Placement::Replicate`].
    Code {
        /// Module's file name.
        module: String,
        /// Module's build-id; empty: any.
        build_id: BuildId,
        /// First page and number of pages of each range of code, ascending, in units of [`Plan::page_bytes`]; empty:
        /// all pages. Ranges hold only for that build-id; for another build, all of its code is meant.
        pages: Vec<(u64, u64)>,
    },
    /// The heap that `brk` extends, `[heap]` in `/proc/PID/maps`, without pages that other decisions about objects
    /// place. The pages are full of small objects. They are recognised by their distance from the heap's start, which
    /// is the same in every run of one input.
    BrkHeap {
        /// Size of the heap in bytes when it was observed. Under page runs and blocks, growth beyond this size is part
        /// of unmatched memory. Other placements go on in turn, or at the same place.
        size_bytes: u64,
    },
    /// `unmatched` (`rest` in version 0.1): memory that no other decision places and that belongs to no file, such as
    /// small objects; threads' stacks are not part of it. Many of its objects share a page, so it can only be spread,
    /// or go to one node ([`Placement::fits_unmatched`]).
    Unmatched,
    /// `heap>=1M`: heap objects within bounds (inclusive bytes).
    Heap {
        /// Least size.
        size_min_bytes: u64,
        /// Greatest size.
        size_max_bytes: u64,
    },
    /// `mapping>=1M`: anonymous mappings that the program makes, within bounds (inclusive bytes).
    Mapping {
        /// Least size.
        size_min_bytes: u64,
        /// Greatest size.
        size_max_bytes: u64,
    },
}

impl Subject {
    /// True for the heap that `brk` extends.
    pub fn is_brk_heap(&self) -> bool {
        matches!(self, Self::BrkHeap { .. })
    }
}

/// Predicted effect of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// Accesses to the object in the recording.
    pub accesses: f64,
    /// Share of the recording's cost that this object bears, 0 to 1.
    pub cost_share: f64,
    /// Share of the object's accesses that would be local under first touch by the recording's threads, on the plan's
    /// machine, 0 to 1; absent where first touches are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_before: Option<f64>,
    /// Predicted share of the object's accesses that are local with this placement, 0 to 1.
    pub local_after: f64,
    /// Number of samples that the decision was made from; absent for traces, or where samples were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Share of resamples of the recording that gave the same decision, 0 to 1; absent where nothing was resampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// Moment from which a placement holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// From the object's allocation on.
    #[default]
    Allocation,
    /// From the moment when a second thread of the process runs. Before, the object is under first touch: pages that
    /// the first thread fills alone are near it. Afterwards, each page moves to its place when it is next used.
    SecondThread,
    /// Whenever several threads of the process run, as [`Start::SecondThread`]. When one thread has run alone for a
    /// millisecond or longer, each page moves near it when it is next used, and back when another thread runs again.
    Parallel,
}

impl Start {
    /// The name in plan files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::SecondThread => "second-thread",
            Self::Parallel => "parallel",
        }
    }

    /// The start with this name in plan files.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Allocation, Self::SecondThread, Self::Parallel];
        all.into_iter().find(|start| start.as_str() == name)
    }
}

/// The placement of one object (or of several objects of one call site), with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Name for people: symbol, or function and line of the allocation.
    pub name: String,
    /// How the object is recognised.
    pub subject: Subject,
    /// Where its pages go.
    pub placement: Placement,
    /// Moment from which the placement holds.
    pub start: Start,
    /// The counters that were seen and the rule that fired, in words.
    pub why: String,
    /// Predicted effect.
    pub effect: Effect,
}

/// Suffix of a team's name that reverses the order in which its threads take their shares: the last thread comes first.
pub const REVERSED: &str = ":reversed";

/// The team that a name means, and whether its threads take their shares in reverse order. If a team's own name has the
/// suffix, as a function in a namespace may, the name means that team.
pub fn team_and_order(name: &str, is_known: impl Fn(&str) -> bool) -> (&str, bool) {
    match name.strip_suffix(REVERSED) {
        Some(team) if !is_known(name) => (team, true),
        _ => (name, false),
    }
}

/// Number of threads of a plan's team, or of several joined teams such as `main+worker`; none if the plan does not list
/// them.
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

/// The teams that a name stands for: the known team of this name, or the parts of a joined name such as `main+worker`.
/// A part is as long as a known name reaches, because names of functions without symbols have a `+`, too:
/// `main+server+0x2fc00`.
pub(crate) fn joined(name: &str, is_known: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
    let mut rest = Some(name);
    std::iter::from_fn(move || {
        let text = rest?;
        let ends = || {
            let pluses = text.match_indices('+').map(|(at, _)| at);
            pluses.chain([text.len()])
        };
        let known = ends().filter(|&end| is_known(&text[..end])).last();
        let end = known.or_else(|| ends().next())?;
        rest = text.get(end + 1..);
        Some(&text[..end])
    })
}

/// Threads that share work, by start routine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// `openmp`, the start function's name, or `main`.
    pub name: String,
    /// Number of threads when recorded.
    pub threads: u32,
    /// Only for the main thread: number of threads of the team that it works beside, if it does; it runs on the CPU
    /// after theirs.
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

impl Team {
    /// Name of the team of an OpenMP runtime.
    pub const OPENMP: &'static str = "openmp";
}

/// The program that a plan is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Executable's file name.
    pub executable: String,
    /// The executable's build-id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: BuildId,
    /// Arguments of the recorded run.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Rank under an MPI launcher; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// Layout of a plan's threads, as `nearpage run --threads` pins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadLayout {
    /// Threads fill one node after the other, as few nodes as hold them.
    Compact,
    /// Threads go round the nodes.
    Scatter,
}

impl ThreadLayout {
    /// Both layouts, in the order in which they are tried.
    pub const ALL: [Self; 2] = [Self::Compact, Self::Scatter];

    /// The name in plan files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Scatter => "scatter",
        }
    }

    /// The layout with this name in plan files.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.as_str() == name)
    }
}

impl From<ThreadLayout> for ThreadPlacement {
    fn from(layout: ThreadLayout) -> Self {
        match layout {
            ThreadLayout::Compact => Self::Compact,
            ThreadLayout::Scatter => Self::Scatter,
        }
    }
}

/// Changes when any thread executes a function of the program for the first time. Threads change places. Each page of
/// an object with a new decision moves to its place when it is next used, and stays there until another phase moves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The function that the phase begins with, as the symbol table has it.
    pub function: String,
    /// File name of the function's module.
    pub module: String,
    /// Module's build-id; empty: any.
    pub build_id: BuildId,
    /// Virtual address of the function in the module's file, right only for that build-id.
    pub offset: u64,
    /// Size of the function in bytes.
    pub size_bytes: u64,
    /// For each thread of the plan's first team, the number of the thread whose initial place it takes. Each number
    /// occurs once; empty: threads stay where they are.
    pub threads: Vec<u32>,
    /// Decisions about objects, with [`Start::Allocation`]; the first that fits an object wins. With
    /// [`Placement::FirstTouch`] each page goes near the thread that uses it next.
    pub decisions: Vec<Decision>,
}

/// A plan for one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The program that the plan is for.
    pub program: Program,
    /// Policy that made the plan.
    pub policy: String,
    /// Name of the machine that the plan was made for; its predictions hold there.
    pub machine: String,
    /// Unit of page runs, in bytes.
    pub page_bytes: u64,
    /// Layout of its threads; none: the plan does not say.
    pub threads: Option<ThreadLayout>,
    /// Prediction for the whole plan; none in a plan that was written by hand.
    pub predicted: Option<PlanPrediction>,
    /// Teams; patterns without a team mean the first.
    pub teams: Vec<Team>,
    /// Decisions; the first that fits an object wins.
    pub decisions: Vec<Decision>,
    /// Migration of its pages while it runs; none: pages stay where they are placed.
    pub online_migration: Option<OnlineMigration>,
    /// Phases, in the order in which they began when the program was recorded.
    pub phases: Vec<Phase>,
}

/// Online migration: `nearpage live --policy auto` moves the program's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnlineMigration {
    /// Parameters of the policy by name, as `--set` takes them; other parameters have the policy's defaults.
    pub parameters: BTreeMap<String, u64>,
}

impl Phase {
    /// True if nothing changes with the phase.
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

    /// The decision about unmatched memory.
    pub fn unmatched(&self) -> Option<&Decision> {
        let mut decisions = self.decisions.iter();
        decisions.find(|decision| decision.subject == Subject::Unmatched)
    }

    /// True if a placement names threads, or threads change places: a run of the plan then pins its threads by default.
    pub fn names_threads(&self) -> bool {
        let exchange = self.phases.iter().any(|phase| !phase.threads.is_empty());
        let mut decisions = self.all_decisions();
        exchange || decisions.any(|decision| decision.placement.names_threads())
    }
}

#[cfg(test)]
mod tests;
