//! Makes recordings on disk for tests: traces of a few references, and samples.
#![allow(dead_code, reason = "unit tests and black-box tests share it")]

#[path = "../../../recording/tests/all/making/trace.rs"]
pub mod trace;

#[path = "samples.rs"]
mod samples;

use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use super::Analysis;
use nearpage_attribution::{Attribution, Operations, Options, attribute};
use nearpage_machine::{Machine, NodeId, preset};
use nearpage_plan::{Decision, Effect, Owner, Placement, Plan, Program, Start, Subject, Team};
use nearpage_recording::trace::TraceOptions;
use nearpage_recording::{
    CallSite, CallSiteId, Frame, Metadata, ModuleId, Object, ObjectKind, Recording, Source, Status,
    ThreadIndex,
};
use nearpage_wire::trace::{Record, ReferenceKind, Served};
pub use samples::Samples;
use tempfile::TempDir;
use trace::{TraceFile, load, map, reference, start, touch};

pub const PAGE: u64 = 4096;
/// The process of [`Traced::of`] and [`samples`].
pub const PID: u32 = 100;
/// Address at which the heap objects of tests begin.
pub const HEAP: u64 = 0x5000_0000;
/// Address at which the program's code is mapped.
pub const CODE: u64 = 0x40_0000;
/// Number of pages of the program's code.
pub const CODE_PAGES: u64 = 4;
pub const PROGRAM: &str = "/nonexistent/program";
/// `PROT_READ | PROT_EXEC`.
pub const EXECUTABLE: u32 = 5;

pub fn metadata() -> Metadata {
    Metadata {
        status: Status::Complete,
        recorder: "test".to_owned(),
        command: vec!["program".to_owned()],
        begin_ns: 10,
        rate_hz: 997.0,
        ..Metadata::begun(Source::Clock, UNIX_EPOCH, vec![NodeId(0)])
    }
}

/// Steps of a thread, each with the number of instructions since the step before.
pub type Steps = Vec<(u64, Record)>;

/// A trace for the machine `flash-8`, opened. Tests may change its tables; its pages are on disk.
pub struct Traced {
    folder: TempDir,
    pub recording: Recording,
}

impl Traced {
    /// One process. Its main thread, on CPU 0, makes the steps `alone`, then starts the other threads, each on the CPU
    /// of its number. From then on all threads make their steps of `together`.
    pub fn of(alone: &[(u64, Record)], together: &[Steps]) -> Self {
        Self::of_files(&[process(PID, 1_000, alone, together)])
    }

    pub fn of_files(files: &[TraceFile]) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("trace");
        let log = trace::record(&path, &TraceOptions::default(), files);
        log.finish(Some(0), 9_000_000).unwrap();
        let mut recording = Recording::open(&path).unwrap();
        let threads = &mut recording.tables.threads;
        for thread in threads.iter_mut() {
            thread.team = "openmp".to_owned();
            thread.team_index = thread.order;
        }
        // Tests set the objects themselves.
        recording.tables.objects.clear();
        recording.tables.call_sites = vec![call_site()];
        Self { folder, recording }
    }

    /// The trace with these objects.
    pub fn with(mut self, objects: Vec<Object>) -> Self {
        self.recording.tables.objects = objects;
        self
    }

    /// The trace as commands read it.
    pub fn analysed(self) -> Analysed {
        let attribution = self.attribution();
        Analysed {
            analysis: Analysis {
                attribution,
                recording: self.recording,
                notes: Vec::new(),
            },
            folder: self.folder,
        }
    }

    pub fn attribution(&self) -> Attribution {
        attributed(&self.recording)
    }
}

/// A recording that was read and attributed.
pub struct Analysed {
    folder: TempDir,
    pub analysis: Analysis,
}

impl Analysed {
    pub fn from_parts(analysis: Analysis, folder: TempDir) -> Self {
        Self { folder, analysis }
    }

    pub fn into_parts(self) -> (Analysis, TempDir) {
        (self.analysis, self.folder)
    }
}

impl Samples {
    /// Writes the recording, and reads it.
    pub fn analysed(&self) -> Analysed {
        let folder = TempDir::new().unwrap();
        let recording = folder.path().join("r");
        self.write(&recording);
        let analysis = Analysis::of(&recording, Operations::Both).unwrap();
        Analysed::from_parts(analysis, folder)
    }
}

pub fn attributed(recording: &Recording) -> Attribution {
    let options = Options {
        page_bytes: recording.machine.page_bytes,
        ..Options::default()
    };
    attribute(&nearpage_attribution::Input::new(recording), &options).unwrap()
}

/// The trace file of [`Traced::of`].
pub fn process(pid: u32, start_ns: u64, alone: &[(u64, Record)], together: &[Steps]) -> TraceFile {
    let cpus: Vec<u32> = (0..together.len().max(1) as u32).collect();
    process_on(&cpus, (pid, start_ns), alone, together)
}

/// The same trace file with threads on these CPUs.
pub fn process_on(
    cpus: &[u32],
    (pid, start_ns): (u32, u64),
    alone: &[(u64, Record)],
    together: &[Steps],
) -> TraceFile {
    let mut file = TraceFile::of(pid, start_ns);
    let code = map(0, CODE, CODE_PAGES * PAGE, EXECUTABLE, 7, PROGRAM);
    file.events(0, start_ns, &[start(0, pid, cpus[0], 0, 0), code]);
    let mut alone = alone.to_vec();
    let started = Record::Signal {
        sequence: 1,
        address: 0,
    };
    alone.push((1, started));
    let second = alone.iter().map(|step| step.0).sum();
    let second_ns = start_ns + 100_000;
    frames(&mut file, 0, (0, start_ns), &alone);
    let others: Vec<_> = (1..together.len() as u32)
        .map(|thread| start(thread, pid + thread, cpus[thread as usize], 1, second))
        .collect();
    if !others.is_empty() {
        file.events(second, second_ns, &others);
    }
    for (thread, steps) in (0..).zip(together) {
        frames(&mut file, thread, (second, second_ns), steps);
    }
    file.end();
    file
}

/// Writes a thread's steps from a virtual time and a time on. There are several frames, as only the beginning of a
/// frame relates the two times.
fn frames(
    file: &mut TraceFile,
    thread: u32,
    (begin, begin_ns): (u64, u64),
    steps: &[(u64, Record)],
) {
    let mut since = 0;
    for steps in steps.chunks(100) {
        file.records(thread, begin + since, begin_ns + 2 * since, steps);
        since += steps.iter().map(|step| step.0).sum::<u64>();
    }
    file.records(thread, begin + since, begin_ns + 2 * since, &[]);
}

/// First touches of `pages` pages from an address on.
pub fn touched(address: u64, pages: u64) -> Steps {
    let pages = (0..pages).map(|page| address + page * PAGE);
    pages.map(|page| (1, touch(page))).collect()
}

/// `each` loads of each page from an address on, all served by memory.
pub fn loads(address: u64, pages: u64, each: u64) -> Steps {
    let all = (0..each).flat_map(|line| (0..pages).map(move |page| (page, line)));
    let address = |(page, line)| address + page * PAGE + line * 64 % PAGE;
    all.map(|at| (2, load(address(at)))).collect()
}

/// Pages of the grid of [`shares`] for each of its threads.
pub const SHARE: u64 = 4;

/// Steps of four threads that use a share each of a grid which the main thread fills, with `each` loads of each page.
/// The main thread's steps alone come first.
pub fn shares(each: u64) -> (Steps, Vec<Steps>) {
    let pages = 4 * SHARE;
    let mut alone = touched(HEAP, pages);
    alone.extend(loads(HEAP, pages, each / 10));
    (alone, (0..4).map(|thread| share(thread, each)).collect())
}

/// Loads of a thread's share of the grid.
pub fn share(thread: u64, each: u64) -> Steps {
    loads(HEAP + thread * SHARE * PAGE, SHARE, each)
}

/// A trace of [`shares`] on these CPUs.
pub fn shares_on(cpus: [u32; 4], each: u64) -> Traced {
    let (alone, together) = shares(each);
    let file = process_on(&cpus, (PID, 1_000), &alone, &together);
    Traced::of_files(&[file]).with(vec![grid(HEAP, 4 * SHARE)])
}

/// A fetch that missed.
pub fn fetch(address: u64) -> (u64, Record) {
    (1, reference(address, ReferenceKind::Fetch, Served::Memory))
}

/// An object that exists all the time.
pub fn object(kind: ObjectKind, address: u64, size_bytes: u64) -> Object {
    Object {
        kind,
        name: String::new(),
        pid: PID,
        address,
        size_bytes,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: None,
        thread: None,
        order: 0,
        module: None,
        module_offset: 0,
        same_memory_as: None,
    }
}

/// A heap object of `pages` pages.
pub fn heap(address: u64, pages: u64) -> Object {
    object(ObjectKind::Heap, address, pages * PAGE)
}

/// A heap object of `pages` pages that `make_grid` allocated.
pub fn grid(address: u64, pages: u64) -> Object {
    Object {
        call_site: Some(CallSiteId(0)),
        thread: Some(ThreadIndex(0)),
        ..heap(address, pages)
    }
}

fn call_site() -> CallSite {
    CallSite {
        frames: vec![Frame {
            module: Some(ModuleId(0)),
            offset: 0x160,
            function: "make_grid".to_owned(),
            file: "program.c".to_owned(),
            line: 10,
            inlined: false,
        }],
    }
}

/// A static object of the program, `module_offset` bytes into its file.
pub fn symbol(name: &str, address: u64, pages: u64, module_offset: u64) -> Object {
    Object {
        name: name.to_owned(),
        module: Some(ModuleId(0)),
        module_offset,
        ..object(ObjectKind::Static, address, pages * PAGE)
    }
}

pub fn flash() -> Machine {
    preset("flash-8").unwrap()
}

/// A plan for the program of these recordings; its first team has `threads` threads.
pub fn plan(threads: u32, decisions: Vec<Decision>) -> Plan {
    Plan {
        program: Program {
            executable: "program".to_owned(),
            ..Program::default()
        },
        policy: "object".to_owned(),
        machine: "flash-8".to_owned(),
        page_bytes: PAGE,
        threads: None,
        predicted: None,
        teams: vec![Team {
            name: "openmp".to_owned(),
            threads,
            beside: 0,
            module: String::new(),
            build_id: String::new(),
            offset: 0,
        }],
        decisions,
        online_migration: None,
        phases: Vec::new(),
    }
}

pub fn decision(name: &str, subject: Subject, placement: Placement, start: Start) -> Decision {
    Decision {
        name: name.to_owned(),
        subject,
        placement,
        start,
        why: String::new(),
        effect: Effect::default(),
    }
}

/// Heap objects of exactly `pages` pages.
pub fn heap_of(pages: u64) -> Subject {
    Subject::Heap {
        size_min_bytes: pages * PAGE,
        size_max_bytes: pages * PAGE,
    }
}

/// All heap objects.
pub fn any_heap() -> Subject {
    Subject::Heap {
        size_min_bytes: 0,
        size_max_bytes: u64::MAX,
    }
}

pub fn on_node(node: u16) -> Placement {
    Placement::Whole(Owner::Node(NodeId(node)))
}

pub fn interleave(nodes: &[u16]) -> Placement {
    Placement::Interleave {
        nodes: nodes.iter().map(|&node| (NodeId(node), 1)).collect(),
    }
}

pub fn block() -> Placement {
    Placement::Block {
        team: String::new(),
    }
}

/// A library with two functions that are named like bodies of parallel regions. Returns their offsets in the file and
/// their sizes in bytes.
pub fn library(file: &Path) -> [(u64, u64); 2] {
    let source = file.with_extension("c");
    let code = "void forward(void) __asm__(\"forward._omp_fn.0\");\n\
                void backward(void) __asm__(\"backward._omp_fn.0\");\n\
                void forward(void) {}\nvoid backward(void) {}\n";
    std::fs::write(&source, code).unwrap();
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O0", "-g0", "-Wl,--build-id", "-o"])
        .args([file, &source])
        .status();
    assert!(status.expect("gcc").success());
    let image = nearpage_plan::ModuleImage::load(file).unwrap();
    ["forward._omp_fn.0", "backward._omp_fn.0"].map(|name| {
        let function = &image.functions(name)[0];
        (function.offset, function.size_bytes)
    })
}
