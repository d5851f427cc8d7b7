//! A plan decided for a program, or predicted from a file: the one form that every command prints or serialises.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nearpage_amount::counted;
use nearpage_machine::Machine;
use nearpage_plan::{Decision, Phase, Plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::interval::Uncertainty;
use crate::prediction::Prediction;

/// The assumed layout of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// On the nodes where they were recorded.
    AsRecorded,
    /// Threads fill one node after the other.
    Compact,
    /// Threads go round the nodes.
    Scatter,
}

impl Layout {
    /// Words for messages, after "threads".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AsRecorded => "as recorded",
            Self::Compact => "compact",
            Self::Scatter => "scatter",
        }
    }
}

/// The assumed layout of threads, and the number of nodes that they use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Threads {
    /// Rule by which threads are laid out.
    pub layout: Layout,
    /// Why they are not where they were recorded, although no option asks for another layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of recorded threads.
    pub threads: usize,
    /// Number of nodes that the threads run on.
    pub nodes_used: usize,
    /// Number of the machine's nodes that have CPUs.
    pub nodes: usize,
}

impl Threads {
    /// Notes on the layout; `are_traced`: the threads were traced where they are assumed to run.
    pub(crate) fn notes(&self, machine: &Machine, are_traced: bool) -> Vec<String> {
        let Threads {
            layout,
            threads,
            nodes_used,
            nodes,
            ..
        } = self;
        if machine.nodes.len() < 2 {
            return vec![format!(
                "{} has one memory node, where every page is local: name another machine with --machine (`nearpage machine list`)",
                machine.name
            )];
        }
        if nodes_used >= nodes.min(threads) || *layout == Layout::Scatter {
            return Vec::new();
        }
        let on = match nodes_used {
            1 => "one node, where every access can be local".to_owned(),
            several => format!("{several} of {nodes} nodes"),
        };
        vec![match are_traced {
            true => format!(
                "all {threads} threads were traced on {on}; `nearpage trace --threads scatter` spreads them \
                 over all {nodes}"
            ),
            false => format!(
                "all {threads} threads are taken to run on {on}; `--threads scatter` plans for threads spread over all \
                 {nodes}"
            ),
        }]
    }

    /// Words for messages: `threads as recorded, on 2 of 4 nodes`.
    pub fn words(&self) -> String {
        let why = self.why.as_ref().map(|why| format!(" ({why})"));
        let layout = format!(
            "threads {}{}",
            self.layout.as_str(),
            why.unwrap_or_default()
        );
        match self.nodes_used {
            0 => layout,
            used => format!(
                "{layout}, on {used} of {}",
                counted(self.nodes as u64, "node")
            ),
        }
    }
}

/// How a time was predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Judged {
    /// Every recorded miss was replayed on the machine's model.
    Replay,
    /// A model with contention, from the accesses of each thread to each object.
    Model,
}

/// Predicted times of a program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlanTime {
    /// How the times were predicted.
    pub by: Judged,
    /// Time of a run as long as the recorded one, under first touch.
    pub first_touch_ns: f64,
    /// Time of a run as long as the recorded one, under the plan.
    pub planned_ns: f64,
    /// The plan is for runs whose parallel part is this many times as long as the recorded one.
    pub runtime_scale: f64,
    /// Time of a run that the plan is for, under first touch.
    pub scaled_first_touch_ns: f64,
    /// Time of a run that the plan is for, under the plan.
    pub scaled_planned_ns: f64,
    /// How sure the predicted change is.
    pub uncertainty: Uncertainty,
}

/// Changes when a function is first executed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PhaseDecisions {
    /// The function.
    pub function: String,
    /// File name of the function's module.
    pub module: String,
    /// For each thread of the first team, the thread whose place it takes; empty: no thread moves.
    pub threads: Vec<u32>,
    /// Objects whose pages move.
    pub objects: Vec<PhaseObject>,
}

/// An object whose pages move when a phase begins.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PhaseObject {
    /// The object's name.
    pub name: String,
    /// Placement of its pages, as plan files write it.
    pub placement: String,
    /// The rule of the decision, and the counters that it saw.
    pub why: String,
}

impl From<&Phase> for PhaseDecisions {
    fn from(phase: &Phase) -> Self {
        let object = |decision: &Decision| PhaseObject {
            name: decision.name.clone(),
            placement: decision.placement.to_string(),
            why: decision.why.clone(),
        };
        Self {
            function: phase.function.clone(),
            module: phase.module.clone(),
            threads: phase.threads.clone(),
            objects: phase.decisions.iter().map(object).collect(),
        }
    }
}

/// A plan for one program of a recording, with predictions and notes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DecidedPlan {
    /// Version of this JSON form.
    pub version: u32,
    /// Where the plan was written or read; null: nowhere yet.
    pub file: Option<PathBuf>,
    /// The program's file name.
    pub program: String,
    /// The machine that the plan is for.
    pub machine: String,
    /// The policy that made the plan.
    pub policy: String,
    /// The assumed layout of threads.
    pub threads: Threads,
    /// The accesses, counted one by one.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// Predicted times; null where no time can be predicted: on one memory node.
    pub time: Option<PlanTime>,
    /// Figures of the machine that its description lacks and that the times assume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed: Option<String>,
    /// Parameters of online migration, where the plan asks for it.
    pub online_migration: Option<BTreeMap<String, u64>>,
    /// Changes while the program runs.
    pub phases: Vec<PhaseDecisions>,
    /// Reasons against using the plan.
    pub warnings: Vec<String>,
    /// Notes on the figures.
    pub notes: Vec<String>,
    /// The plan itself.
    #[serde(skip)]
    pub plan: Plan,
}
