//! Finds the object and page of each access, the accesses of each thread to each page, and the pattern behind them.
//!
//! The input is a [`nearpage_recording`] recording, read once, in batches. The output is an [`Attribution`], whose
//! size is bounded for recordings of any length. Nodes are known only from the recorded `page_node`: the planner
//! decides placement. [`Names`] gives objects their names.
//!
//! ```
//! use nearpage_attribution::{Input, Options, attribute};
//! use nearpage_recording::{AccessBatch, SampleCounts, Tables};
//!
//! // `Input::new(&recording)` takes a whole recording; any type with chunks of accesses works, too.
//! let batches: &[AccessBatch] = &[];
//! let tables = Tables::default();
//! let input = Input { accesses: batches, tables: &tables, marks: &[], counts: SampleCounts::default(), machine: None };
//! let attribution = attribute(&input, &Options::default())?;
//! assert_eq!(attribution.totals.accesses, 0.0);
//! # Ok::<(), nearpage_attribution::Error>(())
//! ```

mod affinity;
mod array;
mod attribute;
mod cells;
mod code;
mod confidence;
mod context;
mod effort;
mod error;
mod evened;
mod find;
mod first_touches;
mod function_name;
mod groups;
mod in_turn;
mod input;
mod instances;
mod lifetimes;
mod live;
mod name;
mod near;
mod ownership;
mod part;
mod parts;
mod pattern;
mod period;
mod pieces;
mod random;
mod ranks;
mod resample;
mod rule;
mod segments;
mod shares;
mod siblings;
mod spectrum;
mod sum_table;
mod summary;
mod sums;
mod teams;
mod tiles;

pub use affinity::{
    Affinity, Attribution, Cell, CodeUse, Hot, InstanceUse, ObjectGroup, ObjectName,
    OperationTotals, Team, ThreadTotals, Totals,
};
pub use attribute::{Attributed, Attributor, RunSums, attribute, even_runs};
pub use confidence::{Confidence, Sampling};
pub use context::StablePhase;
pub use error::Error;
pub use find::{FoundObject, ObjectIndex, Search};
pub use function_name::without_arguments;
pub use groups::IN_BRK_HEAP;
pub use input::{AccessChunks, Input, Operations, Options, ReadError};
pub use name::{Names, call_site, place};
pub use pattern::{Pattern, find_pattern};
pub use ranks::{
    BindingFinding, BoundRank, Difference, JobObject, ObjectNames, ObjectUse, RankFindings,
    RankGroup, RankGroups, RankProfile, audit, group_ranks,
};
pub use resample::RESAMPLE_SHARE;
pub use segments::{Segment, find_segments};
pub use teams::counted_as;
pub use tiles::RowShare;
