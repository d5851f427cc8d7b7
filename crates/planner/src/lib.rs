//! Decides from recordings where pages should live: from each thread's accesses to each page, to a plan and its
//! predicted effect.
//!
//! Nothing here is random or reads a clock. [`decide()`] makes a [`Plan`](nearpage_plan::Plan) by one of the policies,
//! which have a file per family: `affinity` (Marathe's Eq. 1 and 2), `object` (NumaMMA's patterns), `interleave`, and
//! `auto`, which weighs their placements by time. [`predict`] says what a plan does on a machine, access by access,
//! without contention. Decisions are about *threads*; nodes come in through [`thread_nodes`] only.
//!
//! Not here: policies that decide while the program runs (`online`), finding patterns (attribution), recognising
//! objects in another run and enforcing (plan, preload).

mod affinity;
mod analysis;
mod arrays;
pub mod auto;
mod blocks;
mod confidence;
mod context;
mod decide;
mod decided;
mod effect;
mod error;
mod group;
mod holder;
mod instances;
mod interleave;
mod interval;
pub mod job;
mod layout;
#[cfg(test)]
#[path = "../tests/on_disk/making.rs"]
mod making;
mod model_error;
mod object;
mod other_sizes;
mod parameters;
mod place;
mod placed_accesses;
mod placed_objects;
mod plan_predictor;
mod planner;
mod prediction;
mod programs;
mod quality;
pub mod recordings;
pub mod replay;
pub mod several_inputs;
mod simple_policies;
mod subject;
mod traffic;
mod translated;
mod withdrawal;

pub use analysis::Analysis;
pub use context::{FirstTouchBasis, Input};
pub use decide::decide;
pub use decided::{DecidedPlan, Judged, Layout, PhaseDecisions, PhaseObject, PlanTime, Threads};
pub use error::Error;
pub use interval::{Doubt, Uncertainty};
pub use layout::{recorded_layout, thread_nodes};
pub use model_error::{Change, ErrorSource, MachineClass, ModelError, ModelErrors};
pub use parameters::{Parameters, Policy, RUNTIME_SCALE};
pub use placed_objects::place_objects;
pub use planner::Planner;
pub use prediction::{ObjectPrediction, Outcome, Prediction, predict};
pub use quality::{Quality, quality};
pub use traffic::{Traffic, traffic};
