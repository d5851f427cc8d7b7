//! The programs of a recording: each has a plan of its own.

use std::collections::BTreeMap;

use nearpage_attribution::Attribution;
use nearpage_files::readable;
use nearpage_plan::Program;
use nearpage_recording::{Metadata, ModuleMapping, Tables};

/// Processes with a smaller share of a recording's cost have no plan of their own.
const PROCESS_SHARE_MIN: f64 = 0.05;

/// A recording whose programs are to have plans.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a> {
    /// Accesses of each thread to each object and page.
    pub attribution: &'a Attribution,
    /// The recording's threads, objects, call sites and modules.
    pub tables: &'a Tables,
    /// The recording's metadata.
    pub metadata: &'a Metadata,
}

impl Programs<'_> {
    /// Process and program of each executable that bears some of the cost, the costliest first. The costliest of
    /// several processes represents its executable. Empty if no thread was recorded.
    pub fn find(&self) -> Vec<(u32, Program)> {
        let mut found: Vec<(u32, Program)> = Vec::new();
        for pid in self.busy_processes() {
            let program = program(self.tables, self.metadata, pid);
            let is_known = |(_, known): &(u32, Program)| {
                (&known.executable, &known.build_id) == (&program.executable, &program.build_id)
            };
            if !found.iter().any(is_known) {
                found.push((pid, program));
            }
        }
        found
    }

    /// Processes by descending cost, without those that hardly matter; never empty if a thread was recorded.
    fn busy_processes(&self) -> Vec<u32> {
        let threads = &self.tables.threads;
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

/// The program of a process: executable and arguments, as plans name programs.
pub fn program(tables: &Tables, metadata: &Metadata, pid: u32) -> Program {
    let of_process = tables.mappings.iter().filter(|mapping| mapping.pid == pid);
    let file_name = |mapping: &&ModuleMapping| {
        let path = &tables.modules[mapping.module.0 as usize].path;
        path.rsplit('/').next().unwrap_or(path).to_owned()
    };
    let main = tables
        .threads
        .iter()
        .find(|thread| thread.pid == pid && thread.order == 0);
    // The kernel cuts a thread's name to 15 bytes; a program may have set another.
    let named = of_process.clone().find(|mapping| {
        main.is_some_and(|main| {
            !main.name.is_empty() && readable(&file_name(mapping)).starts_with(&main.name)
        })
    });
    let is_program = |mapping: &&ModuleMapping| !file_name(mapping).starts_with(['[', '/']);
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
