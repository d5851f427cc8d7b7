//! Presents the findings of attribution: as text that fits a terminal, and as JSON.
//!
//! The crate formats and rounds. Patterns, sums and the order of objects come from [`nearpage_attribution`]; only
//! differences of recorded runs are computed here (`runs/`). The crate opens no file. Functions and lines of hot
//! instructions come from a [`Locate`], such as [`nearpage_recording::Symbols`].
//!
//! ```
//! use nearpage_attribution::{Attribution, Totals};
//! use nearpage_recording::{SampleCounts, Tables};
//! use nearpage_report::{Content, TextOptions, text};
//!
//! let counts = SampleCounts { samples: 12, accesses: 10, compute: 2, ..SampleCounts::default() };
//! let totals = Totals { accesses: 10.0, heap: 10.0, ..Totals::default() };
//! let attribution =
//!     Attribution { counts, totals, objects: vec![], threads: vec![], teams: vec![], page_bytes: 4096 };
//! let tables = Tables::default();
//! let content = Content { attribution: &attribution, tables: &tables, source: nearpage_recording::Source::Clock, notes: &[], nodes: 1, trace: None, sampling: None };
//! let report = text(&content, &TextOptions::default(), &mut |_, _| vec![]);
//! assert!(report.contains("10 accesses"));
//! ```

pub mod emphasis;
mod heat;
mod job;
mod json;
pub mod mappings;
mod matrix;
mod name;
mod printable;
mod profile;
mod runs;
mod simulation;
mod table;
mod text;
mod trace;
mod tree;

use nearpage_attribution::{Attribution, Confidence, Sampling};
use nearpage_recording::trace::TraceStatistics;
use nearpage_recording::{Frame, ModuleId, Recording, Source, Symbols, Tables};

pub use heat::shade;
pub use job::{JobBy, JobContent, JobReportOutput, job_json, job_text};
pub use json::single::object_json;
pub use json::{ReportOutput, json};
pub use name::{counted_name, pattern_words};
pub use printable::{printable, shorten, width};
pub use profile::{
    ProfileCounts, ProfileError, ProfileFormat, RunningAccess, RunningProgram, rejected_profiles,
    running_profiles, write_labelled_table, write_profile,
};
pub use runs::{Condition, Run, RunComparison, RunsError, runs_text};
pub use simulation::{
    MovementsOutput, ObjectPages, Simulation, SimulationOutput, ThreadsElsewhere, simulation_json,
    simulation_text,
};
pub use table::{Column, wrapped, write_lines};
pub use text::{Count, GroupBy, Sort, TextOptions, heatmap, needs_no_action, text};
pub use tree::runs_before_main;

/// Content of a report.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// Objects, threads and sums.
    pub attribution: &'a Attribution,
    /// Names of objects, threads and modules.
    pub tables: &'a Tables,
    /// Source of the accesses: `clock`, …
    pub source: Source,
    /// Lines for the user that belong to the recording.
    pub notes: &'a [String],
    /// Number of memory nodes of the recorded machine.
    pub nodes: usize,
    /// For a trace, statistics of all misses.
    pub trace: Option<&'a TraceStatistics>,
    /// Sampling of the recording; `None` for a trace, whose patterns are certain.
    pub sampling: Option<Sampling>,
}

impl<'a> Content<'a> {
    /// Content for a recording.
    pub fn new(attribution: &'a Attribution, recording: &'a Recording) -> Self {
        Content {
            attribution,
            tables: &recording.tables,
            source: recording.metadata.source,
            notes: &recording.metadata.notes,
            nodes: recording.machine.nodes.len(),
            trace: None,
            sampling: Sampling::of(&recording.metadata),
        }
    }
}

impl Content<'_> {
    /// Confidence in each object's pattern, by position, and recording options with which all patterns would be sure.
    fn confidences(&self) -> (Vec<Option<Confidence>>, Option<String>) {
        let Some(sampling) = self.sampling else {
            return (vec![None; self.attribution.objects.len()], None);
        };
        let found = self.attribution.pattern_confidence();
        let known: Vec<Confidence> = found.iter().flatten().copied().collect();
        let remedy = sampling.remedy(&known, "pattern");
        (found, remedy)
    }
}

/// Finds the function and line of an instruction.
pub trait Locate {
    /// Frames at a virtual address of a module's file, innermost first; empty if unknown.
    fn locate(&mut self, module: ModuleId, offset: u64) -> Vec<Frame>;
}

impl Locate for Symbols {
    fn locate(&mut self, module: ModuleId, offset: u64) -> Vec<Frame> {
        self.instruction(module, offset)
    }
}

impl<F: FnMut(ModuleId, u64) -> Vec<Frame>> Locate for F {
    fn locate(&mut self, module: ModuleId, offset: u64) -> Vec<Frame> {
        self(module, offset)
    }
}
