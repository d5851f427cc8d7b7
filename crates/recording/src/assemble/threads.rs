//! Threads and their teams.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nearpage_machine::CpuId;
use rustc_hash::FxHashMap;

use super::address_space::AddressSpaces;
use super::images::Image;
use super::modules::Modules;
use super::standard_threads::{STANDARD_THREAD, function, is_standard};
use super::{ByTid, file_name};
use crate::log::LogReader;
use crate::{Event, ModuleId, Thread, ThreadIndex};

/// Libraries whose threads form an OpenMP team.
const OPENMP_LIBRARIES: [&str; 3] = ["libgomp", "libomp", "libiomp"];
/// Start routines of the same libraries, for programs that link them statically.
const OPENMP_ROUTINES: [&str; 2] = ["gomp_thread_start", "__kmp_launch_worker"];
/// Team of threads whose start routine was not seen.
const UNKNOWN_TEAM: &str = "threads";

/// Table of threads under construction.
#[derive(Debug)]
pub(super) struct Threads {
    table: Vec<Thread>,
    by_tid: ByTid,
    /// Number of events that began a thread.
    begun: usize,
    /// Start routines that the preload library saw.
    starts: FxHashMap<ThreadIndex, Start>,
    /// End times that the preload library logged.
    ends: FxHashMap<ThreadIndex, u64>,
}

/// Identifies one program of a process: process id, and time at which the program's memory went away.
type ProgramKey = (u32, u64);
/// Module of a start routine, and its virtual address in the module's file.
type StartRoutine = (ModuleId, u64);

/// Where a thread started.
#[derive(Clone, Copy, Debug)]
struct Start {
    time_ns: u64,
    /// Address of the start routine; 0 for the main thread.
    routine: u64,
    /// See [`super::images::ThreadRecord::callable`].
    callable: [u64; 2],
}

/// The kernel reports a thread's end only after it woke threads that wait for it, and they may have created the next
/// thread by then. Ends that the kernel reports are therefore moved earlier by this much.
const KERNEL_TELLS_LATE_NS: u64 = 1_000_000;

/// The numbers of a team: each thread gets the lowest that no running thread has.
#[derive(Debug, Default)]
struct Numbers {
    next: u32,
    free: BinaryHeap<Reverse<u32>>,
    /// End time of the holder and number, for each number in use.
    held: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Numbers {
    fn starting_at(next: u32) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }

    /// Number for a thread that lives from `born_ns` to `ended_ns`.
    fn take(&mut self, born_ns: u64, ended_ns: u64) -> u32 {
        while let Some(&Reverse((until_ns, number))) = self.held.peek()
            && until_ns <= born_ns
        {
            self.held.pop();
            self.free.push(Reverse(number));
        }
        let number = self.free.pop().map_or_else(
            || {
                self.next += 1;
                self.next - 1
            },
            |Reverse(number)| number,
        );
        self.held.push(Reverse((ended_ns, number)));
        number
    }
}

impl Threads {
    /// Builds the table from events sorted by time, and from the samples.
    pub(super) fn new(events: &[Event], log: &LogReader) -> Self {
        let mut threads = Self {
            table: vec![],
            begun: 0,
            by_tid: FxHashMap::default(),
            starts: FxHashMap::default(),
            ends: FxHashMap::default(),
        };
        let mut created: FxHashMap<u32, u32> = FxHashMap::default();
        for event in events {
            match event {
                Event::Fork {
                    time_ns,
                    pid,
                    tid,
                    thread,
                    parent_pid,
                } => {
                    let main = pid == tid;
                    let created = created.entry(*pid).or_default();
                    *created = if main { 0 } else { *created + 1 };
                    let name = threads.main_name(*parent_pid, *time_ns);
                    threads.begin(*thread, *pid, *tid, *time_ns, *created);
                    if let Some(thread) = threads.get_mut(*thread)
                        && thread.name.is_empty()
                    {
                        thread.name = name;
                    }
                }
                Event::Name {
                    time_ns,
                    pid,
                    thread,
                    name,
                    exec,
                } => {
                    if threads.get(*thread).is_none() {
                        threads.begin(*thread, *pid, *pid, *time_ns, 0);
                    }
                    if let Some(thread) = threads.get_mut(*thread) {
                        thread.name.clone_from(name);
                        if *exec {
                            thread.order = 0;
                            created.insert(*pid, 0);
                        }
                    }
                }
                Event::Exit { time_ns, thread } => {
                    if let Some(thread) = threads.get_mut(*thread) {
                        thread.died_ns = *time_ns;
                    }
                }
                _ => {}
            }
        }
        for (thread, counts) in &log.counts {
            if let Some(thread) = threads.get_mut(*thread) {
                thread.counts = *counts;
            }
        }
        threads.add_samples(log);
        threads
    }

    fn add_samples(&mut self, log: &LogReader) {
        let mut by_cpu: Vec<_> = log
            .accesses_by_cpu
            .iter()
            .map(|(key, samples)| (*key, *samples))
            .collect();
        by_cpu.sort_unstable();
        for ((thread, cpu), samples) in by_cpu {
            if let Some(thread) = self.get_mut(thread) {
                let cpus: &mut Vec<(CpuId, u64)> = &mut thread.cpus;
                cpus.push((cpu, samples));
            }
        }
        // A killed recorder may have left no totals.
        for thread in &mut self.table {
            let samples = thread.cpus.iter().map(|(_, samples)| *samples);
            let accesses = samples.fold(0, u64::saturating_add);
            if thread.counts.samples == 0 {
                (thread.counts.samples, thread.counts.accesses) = (accesses, accesses);
            }
        }
    }

    /// Thread numbers come from a log that may be damaged. Numbers far beyond the number of events so far are left out.
    fn begin(&mut self, index: ThreadIndex, pid: u32, tid: u32, born_ns: u64, order: u32) {
        const GAP_MAX: usize = 1 << 16;
        let position = index.0 as usize;
        self.begun += 1;
        if position > self.begun + GAP_MAX {
            return;
        }
        if position >= self.table.len() {
            self.table.resize_with(position + 1, Thread::unknown);
        }
        let thread = &mut self.table[position];
        (thread.pid, thread.tid, thread.born_ns, thread.order) = (pid, tid, born_ns, order);
        self.by_tid
            .entry((pid, tid))
            .or_default()
            .push((born_ns, index));
    }

    /// Name of a process's main thread so far. The kernel gives a new thread its creator's name, but events do not say
    /// which thread of the process was the creator.
    fn main_name(&self, pid: u32, time_ns: u64) -> String {
        let main = self.find(pid, pid, time_ns);
        main.and_then(|main| self.get(main))
            .map_or_else(String::new, |main| main.name.clone())
    }

    pub(super) fn get(&self, index: ThreadIndex) -> Option<&Thread> {
        self.table
            .get(index.0 as usize)
            .filter(|thread| thread.pid != 0)
    }

    fn get_mut(&mut self, index: ThreadIndex) -> Option<&mut Thread> {
        self.table
            .get_mut(index.0 as usize)
            .filter(|thread| thread.pid != 0)
    }

    /// The thread that had this kernel id at `time_ns`, as the kernel reuses ids.
    pub(super) fn find(&self, pid: u32, tid: u32, time_ns: u64) -> Option<ThreadIndex> {
        let with_tid = self.by_tid.get(&(pid, tid))?;
        let after = with_tid.partition_point(|(born_ns, _)| *born_ns <= time_ns);
        with_tid
            .get(after.saturating_sub(1))
            .map(|(_, index)| *index)
    }

    /// Takes start routines, order of creation and end times from the preload library's log.
    pub(super) fn join_records(&mut self, image: &Image) {
        for record in &image.threads {
            let Some(index) = self.find(image.pid, record.tid, record.time_ns) else {
                continue;
            };
            let start = Start {
                time_ns: record.time_ns,
                routine: record.start,
                callable: record.callable,
            };
            self.starts.insert(index, start);
            self.table[index.0 as usize].order = record.order;
        }
        for &(tid, ended_ns) in &image.thread_ends {
            if let Some(index) = self.find(image.pid, tid, ended_ns) {
                self.ends.insert(index, ended_ns);
            }
        }
    }

    /// When a thread had ended for threads that waited for it.
    fn ended_ns(&self, index: usize) -> u64 {
        let seen = self.ends.get(&ThreadIndex(index as u32)).copied();
        let died_ns = self.table[index].died_ns;
        seen.unwrap_or(match died_ns {
            u64::MAX => died_ns,
            told_ns => told_ns.saturating_sub(KERNEL_TELLS_LATE_NS),
        })
    }

    /// Names the start routines and numbers the teams. A team is the threads of a process with the same start routine.
    /// In order of creation, each thread gets the lowest number that no running thread of its team has. The main thread
    /// is number 0 of its OpenMP team, so created threads count from 1 there. Threads outside of a team never shift its
    /// numbers.
    pub(super) fn name_teams(&mut self, modules: &Modules, spaces: &AddressSpaces) {
        self.resolve_starts(modules);
        // The time at which a program's memory went away tells programs of one process apart (before and after `exec`).
        let image_of = |thread: &Thread| {
            (
                thread.pid,
                spaces.end(thread.pid, thread.died_ns.saturating_sub(1)),
            )
        };
        let standard_teams = self.standard_teams(modules, image_of);
        let mut openmp_processes: FxHashMap<u32, bool> = FxHashMap::default();
        let mut assumed_openmp = |thread: &Thread| {
            *openmp_processes
                .entry(thread.pid)
                .or_insert_with(|| runs_openmp(thread, modules))
        };
        let mut team_of = |index: usize, thread: &Thread| {
            if thread.order == 0 {
                return None;
            }
            Some(match thread.start {
                Some((module, _)) if is_openmp(modules.name(module), &thread.start_function) => {
                    "openmp".to_owned()
                }
                Some(start) => match standard_teams.get(&(image_of(thread), start)) {
                    Some(team) => team.clone(),
                    None => thread.start_function.clone(),
                },
                None if self.starts.contains_key(&ThreadIndex(index as u32)) => {
                    UNKNOWN_TEAM.to_owned()
                }
                None if assumed_openmp(thread) => "openmp".to_owned(),
                None => UNKNOWN_TEAM.to_owned(),
            })
        };
        let teams: Vec<Option<String>> = self
            .table
            .iter()
            .enumerate()
            .map(|(index, thread)| team_of(index, thread))
            .collect();

        let mut created: Vec<usize> = (0..self.table.len())
            .filter(|index| teams[*index].is_some())
            .collect();
        created.sort_by_key(|index| (self.table[*index].order, *index));
        let mut numbers: FxHashMap<(ProgramKey, String), Numbers> = FxHashMap::default();
        for index in created {
            let team = teams[index].clone().unwrap_or_default();
            let ended_ns = self.ended_ns(index);
            let thread = &mut self.table[index];
            let first = u32::from(team == "openmp");
            let numbers = numbers
                .entry((image_of(thread), team.clone()))
                .or_insert_with(|| Numbers::starting_at(first));
            thread.team_index = numbers.take(thread.born_ns, ended_ns);
            thread.team = team;
        }
        let main_threads = self
            .table
            .iter_mut()
            .zip(&teams)
            .filter(|(_, team)| team.is_none());
        for (thread, _) in main_threads {
            let openmp = numbers.contains_key(&(image_of(thread), "openmp".to_owned()));
            thread.team = if openmp { "openmp" } else { "main" }.to_owned();
        }
    }

    /// Names of the teams of `std::thread`'s start routines, by program and routine: the function that all threads of a
    /// team execute.
    fn standard_teams(
        &self,
        modules: &Modules,
        image_of: impl Fn(&Thread) -> ProgramKey,
    ) -> FxHashMap<(ProgramKey, StartRoutine), String> {
        let mut teams = FxHashMap::default();
        for index in self.starts.keys() {
            let thread = &self.table[index.0 as usize];
            let Some(start) = thread.start.filter(|start| is_standard(modules, start.0)) else {
                continue;
            };
            let function = &thread.start_function;
            teams
                .entry((image_of(thread), start))
                .and_modify(|team: &mut String| {
                    if team != function {
                        STANDARD_THREAD.clone_into(team);
                    }
                })
                .or_insert_with(|| function.clone());
        }
        teams
    }

    fn resolve_starts(&mut self, modules: &Modules) {
        let mut names: FxHashMap<_, String> = FxHashMap::default();
        for (index, start) in &self.starts {
            let thread = &mut self.table[index.0 as usize];
            thread.start = match start.routine {
                0 => None,
                routine => modules.resolve(thread.pid, start.time_ns, routine),
            };
            if let Some((module, offset)) = thread.start {
                let name = names
                    .entry((thread.pid, module, offset, start.callable))
                    .or_insert_with(|| match is_standard(modules, module) {
                        true => function(modules, (thread.pid, start.time_ns), start.callable),
                        false => modules.function(module, offset),
                    });
                thread.start_function.clone_from(name);
            }
        }
    }

    pub(super) fn into_table(self) -> Vec<Thread> {
        self.table
    }
}

impl Thread {
    /// Placeholder for a number that no event assigned.
    fn unknown() -> Self {
        Self {
            pid: 0,
            tid: 0,
            name: String::new(),
            born_ns: 0,
            died_ns: u64::MAX,
            order: 0,
            start: None,
            start_function: String::new(),
            team_index: 0,
            team: String::new(),
            cpus: Vec::new(),
            counts: Default::default(),
        }
    }
}

fn is_openmp(module: &str, function: &str) -> bool {
    OPENMP_LIBRARIES
        .iter()
        .any(|library| module.starts_with(library))
        || OPENMP_ROUTINES.contains(&function)
}

/// Whether the thread's program contains an OpenMP runtime; for programs without the preload library (static programs).
fn runs_openmp(thread: &Thread, modules: &Modules) -> bool {
    modules.of_process(thread.pid).iter().any(|mapping| {
        is_openmp(file_name(modules.name(mapping.module)), "")
            || modules.file(mapping.module).is_some_and(|file| {
                file.functions()
                    .iter()
                    .any(|function| OPENMP_ROUTINES.contains(&function.name.as_str()))
            })
    })
}
