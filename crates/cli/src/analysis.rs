//! From a recording on disk to an attribution and to what policies decide from.

use std::collections::BTreeMap;
use std::path::Path;

use nearpage_attribution::{Attribution, Operations, Options, attribute};
use nearpage_machine::{Machine, NodeId, ThreadPlacement};
use nearpage_plan::Program;
use nearpage_policy::thread_nodes;
use nearpage_recording::Recording;

use crate::progress::Progress;

/// Processes that bear less of a recording's cost have no plan of their own.
const PROCESS_SHARE_MIN: f64 = 0.05;

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
            eprintln!(
                "nearpage: {}: the recording is incomplete (its recorder was killed, ran out of disk, or is still running); this is what \
                 there is",
                folder.display()
            );
        }
        if recording.metadata.damaged_blocks > 0 {
            eprintln!(
                "nearpage: {}: {} damaged blocks of its log were left out",
                folder.display(),
                recording.metadata.damaged_blocks
            );
        }
        if !recording.metadata.marks.is_empty() {
            eprintln!(
                "nearpage: {}: only the stable phase that the program marked counts",
                folder.display()
            );
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
        let mut on_machine: Vec<OnMachine<'a>> = Vec::new();
        for pid in self.busy_processes() {
            let program = program(&self.recording, pid);
            let is_known = |known: &OnMachine| {
                (&known.program.executable, &known.program.build_id)
                    == (&program.executable, &program.build_id)
            };
            if !on_machine.iter().any(is_known) {
                on_machine.push(OnMachine {
                    analysis: self,
                    machine,
                    nodes: nodes.clone(),
                    pid,
                    program,
                });
            }
        }
        if on_machine.is_empty() {
            anyhow::bail!(
                "{}: no thread was recorded, there is nothing to plan",
                self.recording.folder.display()
            );
        }
        Ok(on_machine)
    }

    /// Processes by cost, without those that hardly matter; never empty where a thread was recorded.
    fn busy_processes(&self) -> Vec<u32> {
        let threads = &self.recording.tables.threads;
        let mut costs: BTreeMap<u32, f64> =
            threads.iter().map(|thread| (thread.pid, 0.0)).collect();
        for (thread, .., cost_ns) in self
            .attribution
            .objects
            .iter()
            .flat_map(|group| &group.threads)
        {
            if let Some(thread) = threads.get(thread.0 as usize) {
                *costs.entry(thread.pid).or_default() += cost_ns;
            }
        }
        let all: f64 = costs.values().sum();
        let mut busy: Vec<(u32, f64)> = costs.into_iter().collect();
        busy.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let matters = |(position, (_, cost)): &(usize, (u32, f64))| {
            *position == 0 || *cost >= PROCESS_SHARE_MIN * all
        };
        busy.into_iter()
            .enumerate()
            .take_while(matters)
            .map(|(_, (pid, _))| pid)
            .collect()
    }
}

/// Executable and arguments of a process, as plans name programs.
pub fn program(recording: &Recording, pid: u32) -> Program {
    let tables = &recording.tables;
    let metadata = &recording.metadata;
    let of_process = tables.mappings.iter().filter(|mapping| mapping.pid == pid);
    let file_name = |mapping: &&nearpage_recording::ModuleMapping| {
        let path = &tables.modules[mapping.module.0 as usize].path;
        path.rsplit('/').next().unwrap_or(path).to_owned()
    };
    let main = tables
        .threads
        .iter()
        .find(|thread| thread.pid == pid && thread.order == 0);
    // The kernel cuts a thread's name to 15 bytes; a program may have set another.
    let named = of_process.clone().find(|mapping| {
        main.is_some_and(|main| !main.name.is_empty() && file_name(mapping).starts_with(&main.name))
    });
    let is_program =
        |mapping: &&nearpage_recording::ModuleMapping| !file_name(mapping).starts_with(['[', '/']);
    let Some(executable) = named.or_else(|| {
        of_process
            .filter(is_program)
            .min_by_key(|mapping| mapping.born_ns)
    }) else {
        return Program::default();
    };
    let build_id = tables.modules[executable.module.0 as usize]
        .build_id
        .clone();
    let is_command = !build_id.is_empty() && build_id == metadata.build_id;
    Program {
        executable: file_name(&executable),
        arguments: if is_command {
            metadata.command.iter().skip(1).cloned().collect()
        } else {
            Vec::new()
        },
        build_id,
        rank: metadata.rank,
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
    /// What policies and predictions take.
    pub fn input(&self) -> nearpage_policy::Input<'_> {
        nearpage_policy::Input {
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
