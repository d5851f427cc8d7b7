//! A plan says where the pages of each object should live, in terms of threads and patterns. It is a TOML file that
//! people can read and edit. This crate also recognises objects again, and translates a plan, for one machine and one
//! number of threads, into the compact form that the preload library reads.
//!
//! The crate decides nothing (the crate `planner` does) and touches no process: it reads programs from disk, and
//! callers hand over what [`translate()`] returns.
//!
//! ```
//! use nearpage_plan::{Placement, Plan};
//!
//! let text = r#"
//! version = 1
//! program = { executable = "cg" }
//! [[object]]
//! symbol = "cvar"
//! placement = "block-cyclic:20M"
//! "#;
//! let plan = Plan::from_toml(text, "cg.toml")?;
//! let block_bytes = 20 << 20;
//! assert_eq!(plan.decisions[0].placement, Placement::BlockCyclic { block_bytes, team: String::new() });
//! assert_eq!(Plan::from_toml(&plan.to_toml(), "again")?, plan);
//! # Ok::<(), nearpage_plan::Error>(())
//! ```

mod compact;
mod deal;
mod error;
mod evaluate;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod job;
mod libraries;
mod module;
mod on_disk;
mod place_rule;
mod placement;
mod predicted;
mod program;
mod proportions;
mod recognise;
mod shape;
mod size;
mod store;
mod suggest;
mod target;
mod toml_form;
mod translate;

pub use error::{Error, SyntaxError};
pub use evaluate::{Allocation, Evaluated, ModuleName, Origin, PlacedPages, ProcessRules};
pub use file::{
    BuildId, CallSiteFrame, Decision, Effect, NodeWeights, OnlineMigration, Owner, PageRun, Phase,
    Placement, Plan, Program, REVERSED, Start, Subject, Team, ThreadLayout, team_and_order,
    threads_of,
};
pub use job::{GroupPlan, JobPlan, PartChoice, PlanFile, Rank, RankList};
pub use libraries::SearchPaths;
pub use module::{ModuleImage, Symbol};
pub use place_rule::PlaceRule;
pub use predicted::{PlanPrediction, is_slower, slower_than_first_touch};
pub use program::{ProgramImage, resolve_command};
pub use proportions::Proportions;
pub use shape::{Parts, Tiles};
pub use size::{parse_size, print_size};
pub use store::{Store, StoredPlans, state_folder};
pub use target::{LatePlacement, Mechanism, Pinning, Target};
pub use toml_form::VERSION;
pub use translate::{Compact, translate};
