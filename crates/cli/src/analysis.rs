//! From a recording on disk to an attribution and to what policies decide from.

use std::path::Path;

use nearpage_attribution::{Attribution, Operations, Options, attribute};
use nearpage_machine::{Machine, NodeId, ThreadPlacement, several};
use nearpage_plan::Program;
use nearpage_planner::{Programs, thread_nodes};
use nearpage_recording::Recording;

use crate::progress::Progress;
use crate::terminal;

/// Says which recording it was that could not be simulated.
pub fn naming(recording: &Recording) -> impl FnOnce(anyhow::Error) -> anyhow::Error {
    |error| match error.is::<nearpage_simulator::Error>() {
        true => error.context(recording.folder.display().to_string()),
        false => error,
    }
}

/// A recording and what was found in it.
pub struct Analysis {
    pub recording: Recording,
    pub attribution: Attribution,
}

impl Analysis {
    /// Opens and attributes a recording.
    pub fn of(folder: &Path, operations: Operations) -> anyhow::Result<Self> {
        let _progress = Progress::new(format!("reading {}", folder.display()));
        let recording = Recording::open(folder)?;
        if !recording.is_complete() {
            terminal::say(&format!(
                "{}: the recording is incomplete (its recorder was killed, ran out of disk, or is still running); this is what \
                 there is",
                folder.display()
            ));
        }
        if recording.metadata.damaged_blocks > 0 {
            terminal::say(&format!(
                "{}: {} of its log left out",
                folder.display(),
                several(recording.metadata.damaged_blocks, "damaged block")
            ));
        }
        if !recording.metadata.marks.is_empty() {
            terminal::say(&format!(
                "{}: only the stable phase that the program marked counts",
                folder.display()
            ));
        }
        let options = Options {
            page_bytes: recording.machine.page_bytes,
            operations,
            ..Options::default()
        };
        let attribution = attribute(&nearpage_attribution::Input::new(&recording), &options)?;
        Ok(Self {
            recording,
            attribution,
        })
    }

    /// What policies decide from on `machine`: one for each executable that bears some of the cost,
    /// the costliest first; of several processes of one executable, the busiest speaks for all.
    pub fn on<'a>(
        &'a self,
        machine: &'a Machine,
        threads: ThreadPlacement,
    ) -> anyhow::Result<Vec<OnMachine<'a>>> {
        let nodes = thread_nodes(
            &self.attribution,
            &self.recording.tables.threads,
            machine,
            threads,
            None,
        );
        let programs = Programs {
            attribution: &self.attribution,
            tables: &self.recording.tables,
            metadata: &self.recording.metadata,
        };
        let on_machine: Vec<OnMachine<'a>> = programs
            .find()
            .into_iter()
            .map(|(pid, program)| OnMachine {
                analysis: self,
                machine,
                nodes: nodes.clone(),
                pid,
                program,
            })
            .collect();
        if on_machine.is_empty() {
            anyhow::bail!(
                "{}: no thread was recorded, there is nothing to plan",
                self.recording.folder.display()
            );
        }
        Ok(on_machine)
    }
}

/// One program of a recording, its threads laid over a machine.
pub struct OnMachine<'a> {
    analysis: &'a Analysis,
    machine: &'a Machine,
    nodes: Vec<NodeId>,
    pid: u32,
    program: Program,
}

impl OnMachine<'_> {
    /// The program's name.
    pub fn name(&self) -> &str {
        &self.program.executable
    }

    /// Is it the same build of the same program?
    pub fn is_build_of(&self, other: &OnMachine) -> bool {
        let (ours, theirs) = (&self.program, &other.program);
        ours.executable == theirs.executable && ours.build_id == theirs.build_id
    }

    /// Name and size of its teams, in order of name.
    pub fn teams(&self) -> Vec<(String, usize)> {
        let teams = self.analysis.attribution.teams.iter();
        let ours = teams.filter(|team| team.pid == self.pid);
        let mut teams: Vec<_> = ours
            .map(|team| (team.name.clone(), team.threads.len()))
            .collect();
        teams.sort_unstable();
        teams
    }

    /// What policies and predictions take.
    pub fn input(&self) -> nearpage_planner::Input<'_> {
        nearpage_planner::Input {
            attribution: &self.analysis.attribution,
            tables: &self.analysis.recording.tables,
            machine: self.machine,
            thread_nodes: &self.nodes,
            pid: self.pid,
            program: self.program.clone(),
            page_bytes: self.machine.page_bytes,
        }
    }
}
