//! What is decided for a program, or predicted of a plan that there is already: the one form that every command prints
//! or serialises.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nearpage_amount::counted;
use nearpage_machine::Machine;
use nearpage_plan::{Decision, Phase, Plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::interval::Uncertainty;
use crate::prediction::Prediction;

/// Where threads are taken to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// On the nodes where they were recorded.
    AsRecorded,
    /// Node after node.
    Compact,
    /// To one node after the other in turn.
    Scatter,
}

impl Layout {
    /// For people, after "threads".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AsRecorded => "as recorded",
            Self::Compact => "compact",
            Self::Scatter => "scatter",
        }
    }
}

/// Where threads are taken to run, and how many nodes that takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Threads {
    /// The rule by which they are placed.
    pub layout: Layout,
    /// Why they are not where they were recorded, although no option asks for another layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Threads that were recorded.
    pub threads: usize,
    /// Nodes that they run on.
    pub nodes_used: usize,
    /// Nodes of the machine that have CPUs.
    pub nodes: usize,
}

impl Threads {
    /// What has to be known of where threads run; `are_traced`: they were traced there.
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

    /// For people: `threads as recorded, on 2 of 4 nodes`.
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
    /// From what each thread does to each object, with contention.
    Model,
}

/// What a plan does to a program's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlanTime {
    /// How it was predicted.
    pub by: Judged,
    /// Of a run as long as the recorded one, under first touch.
    pub first_touch_ns: f64,
    /// Of a run as long as the recorded one, under the plan.
    pub planned_ns: f64,
    /// The runs that the plan is for: their parallel part is so many times as long as the recorded one.
    pub runtime_scale: f64,
    /// Of such a run, under first touch.
    pub scaled_first_touch_ns: f64,
    /// Of such a run, under the plan.
    pub scaled_planned_ns: f64,
    /// How sure that is.
    pub uncertainty: Uncertainty,
}

/// What changes when a function is first executed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PhaseDecisions {
    /// The function.
    pub function: String,
    /// Its module's file name.
    pub module: String,
    /// Whose place each thread of the first team takes; empty: none moves.
    pub threads: Vec<u32>,
    /// Objects whose pages move.
    pub objects: Vec<PhaseObject>,
}

/// An object whose pages move when a phase begins.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PhaseObject {
    /// What it is called.
    pub name: String,
    /// Where its pages go, as plans write it.
    pub placement: String,
    /// The rule, and the counters that it saw.
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

/// A plan for one program of a recording, what is predicted of it, and what a user has to know.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DecidedPlan {
    /// Version of this form.
    pub version: u32,
    /// Where the plan was written or read; null: nowhere yet.
    pub file: Option<PathBuf>,
    /// The program's file name.
    pub program: String,
    /// The machine that it is for.
    pub machine: String,
    /// The policy that made it.
    pub policy: String,
    /// Where threads are taken to run.
    pub threads: Threads,
    /// Accesses, one by one.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// Null where no time can be predicted: on one memory node.
    pub time: Option<PlanTime>,
    /// Figures of the machine that nobody described and that had to be assumed for the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed: Option<String>,
    /// Parameters of online migration, where the plan asks for it.
    pub online_migration: Option<BTreeMap<String, u64>>,
    /// What changes as the program goes on.
    pub phases: Vec<PhaseDecisions>,
    /// What speaks against using the plan.
    pub warnings: Vec<String>,
    /// What has to be known of the figures.
    pub notes: Vec<String>,
    /// The plan itself.
    #[serde(skip)]
    pub plan: Plan,
}
