//! Made-up recordings, for which the correct content of the page is known.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use nearpage_machine::{CpuId, Machine, NodeId};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, CallSite, CallSiteId, Frame, Level, Metadata, Module,
    ModuleId, ModuleMapping, Object, ObjectKind, Recording, Resolution, SampleCounts, Source,
    Status, Tables, Thread, ThreadIndex, ThreadPinning,
};
const PID: u32 = 4242;
pub const PAGE: u64 = 4096;
const THREADS: u64 = 4;
/// Offset in `shared` of a cache line with a counter for each thread.
pub const COUNTER: u64 = 40 * PAGE + 128;
/// Steps after which each thread increments its counter.
const COUNTER_STEPS: u64 = 1000;
/// Number of accesses; one every 100 µs.
pub const ACCESSES: u64 = 20_000;
/// Pages of `grid`: each thread has a block of 300 pages.
const GRID_PAGES: u64 = 1200;
const GRID: u64 = 0x7f00_0000_0000;
const RING: u64 = 0x7f00_4000_0000;
const SHARED: u64 = 0x7f00_8000_0000;
const TEXT: u64 = 0x5555_5555_4000;
const CODE: u64 = 0x5555_6000_0000;
pub const HOSTILE: [&str; 2] = [
    "<script>document.title='hacked'</script>",
    "\"><img src=x onerror=\"document.title='hacked'\">",
];

/// Writes a recording with known patterns: `grid` in blocks, `ring` in pieces of 16 pages, `shared` read by all threads
/// except for a line of counters, and two symbols with hostile names. The function `smooth` accesses `grid`, the
/// function `exchange` everything else.
pub fn recording(folder: &Path, machine: &Machine) {
    recording_with(folder, machine, |_, _| ());
}

/// Like [`recording`], with a change of the metadata or tables.
pub fn recording_with(
    folder: &Path,
    machine: &Machine,
    change: impl FnOnce(&mut Metadata, &mut Tables),
) {
    recording_on(Some(NodeId(0)), folder, machine, change);
}

/// Like [`recording`], with all pages on a node, or on unknown nodes.
pub fn recording_on(
    page_node: Option<NodeId>,
    folder: &Path,
    machine: &Machine,
    change: impl FnOnce(&mut Metadata, &mut Tables),
) {
    recording_of(page_node, folder, machine, change, true);
}

/// Like [`recording`], without accesses to memory.
pub fn recording_without_accesses(folder: &Path, machine: &Machine) {
    recording_of(None, folder, machine, |_, _| (), false);
}

/// Writes `count` static objects of a page, `object_0` and so on. Each is accessed once; later ones cost more.
pub fn recording_of_objects(folder: &Path, machine: &Machine, count: u64) {
    let objects = (0..count).map(|number| Object {
        kind: ObjectKind::Static,
        name: format!("object_{number}"),
        pid: PID,
        address: GRID + number * PAGE,
        size_bytes: PAGE,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: None,
        thread: None,
        order: 0,
        module: Some(ModuleId(0)),
        module_offset: number * PAGE,
        same_memory_as: None,
    });
    let tables = Tables {
        objects: objects.collect(),
        threads: vec![Thread {
            pid: PID,
            tid: PID,
            name: "solver".to_owned(),
            born_ns: 0,
            died_ns: u64::MAX,
            order: 0,
            start: None,
            start_function: String::new(),
            team_index: 0,
            team: "main".to_owned(),
            cpus: vec![(CpuId(0), count)],
            counts: SampleCounts {
                samples: count,
                accesses: count,
                ..SampleCounts::default()
            },
        }],
        modules: vec![Module {
            path: "/opt/solver".to_owned(),
            build_id: "ab".repeat(20),
        }],
        ..Tables::default()
    };
    let metadata = Metadata {
        status: Status::Complete,
        recorder: "0".to_owned(),
        command: vec!["/opt/solver".to_owned()],
        begin_ns: 1_000_000_000,
        end_ns: 3_000_000_000,
        rate_hz: 2500.0,
        counts: SampleCounts {
            samples: count,
            accesses: count,
            ..SampleCounts::default()
        },
        ..Metadata::begun(Source::Pmu, UNIX_EPOCH, machine.node_ids())
    };
    Recording::write(folder, &metadata, machine, &tables, |writer| {
        let mut batch = AccessBatch::default();
        for number in 0..count {
            batch.push(Access {
                time_ns: 1_000_000_000 + number * 1000,
                thread: ThreadIndex(0),
                cpu: CpuId(0),
                address: GRID + number * PAGE,
                instruction: TEXT,
                kind: AccessKind::Load,
                level: Level::LocalMemory,
                resolution: Resolution::Exact,
                skid_bytes: 0,
                weight: 1.0,
                cost_ns: 100.0 + number as f32,
                page_node: Some(NodeId(0)),
            });
        }
        writer.accesses(&batch)
    })
    .expect("the case's folder is writable");
}

fn recording_of(
    page_node: Option<NodeId>,
    folder: &Path,
    machine: &Machine,
    change: impl FnOnce(&mut Metadata, &mut Tables),
    has_accesses: bool,
) {
    let site = |function: &str, line: u32| CallSite {
        frames: vec![Frame {
            module: Some(ModuleId(0)),
            offset: u64::from(line) * 16,
            function: function.to_owned(),
            file: "solver.c".to_owned(),
            line,
            inlined: false,
        }],
    };
    let object = |kind, name: &str, address, pages: u64, call_site: Option<u32>| Object {
        kind,
        name: name.to_owned(),
        pid: PID,
        address,
        size_bytes: pages * PAGE,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: call_site.map(CallSiteId),
        thread: call_site.map(|_| ThreadIndex(0)),
        order: 0,
        module: (kind == ObjectKind::Static).then_some(ModuleId(0)),
        module_offset: address - TEXT.min(address),
        same_memory_as: None,
    };
    let (program, [smooth, exchange]) = program(folder);
    let mapping = |module, address| ModuleMapping {
        pid: PID,
        address,
        size_bytes: 0x40_0000,
        born_ns: 0,
        died_ns: u64::MAX,
        module: ModuleId(module),
        bias: address,
    };
    let threads = (0..THREADS as u32).map(|thread| Thread {
        pid: PID,
        tid: PID + thread,
        name: "solver".to_owned(),
        born_ns: 0,
        died_ns: u64::MAX,
        order: thread,
        start: None,
        start_function: String::new(),
        team_index: thread,
        team: "openmp".to_owned(),
        cpus: vec![(CpuId(thread), 5000)],
        counts: SampleCounts {
            samples: 5000,
            accesses: 5000,
            ..SampleCounts::default()
        },
    });
    let mut tables = Tables {
        cached_samples: Vec::new(),
        objects: vec![
            object(ObjectKind::Heap, "", GRID, GRID_PAGES, Some(0)),
            object(ObjectKind::Heap, "", RING, 512, Some(1)),
            object(ObjectKind::Heap, "", SHARED, 256, Some(2)),
            object(ObjectKind::Static, HOSTILE[0], TEXT + 0x10_0000, 4, None),
            object(ObjectKind::Static, HOSTILE[1], TEXT + 0x20_0000, 4, None),
        ],
        threads: threads.collect(),
        modules: vec![
            Module {
                path: "/opt/solver".to_owned(),
                build_id: "ab".repeat(20),
            },
            Module {
                path: program.display().to_string(),
                build_id: String::new(),
            },
        ],
        mappings: vec![mapping(0, TEXT), mapping(1, CODE)],
        call_sites: vec![
            site("make_grid", 10),
            site("make_ring", 20),
            site("make_shared", 30),
        ],
        first_touches: vec![],
    };
    let counts = SampleCounts {
        samples: 20_100,
        accesses: 20_000,
        compute: 100,
        ..SampleCounts::default()
    };
    let mut metadata = Metadata {
        status: Status::Complete,
        recorder: "0".to_owned(),
        command: vec!["/opt/solver".to_owned(), "big".to_owned()],
        build_id: "ab".repeat(20),
        exit_status: Some(0),
        begin_ns: 1_000_000_000,
        end_ns: 3_000_000_000,
        rate_hz: 2500.0,
        thread_placement: ThreadPinning::Compact,
        counts,
        allocations: 3,
        ..Metadata::begun(Source::Pmu, UNIX_EPOCH, machine.node_ids())
    };
    change(&mut metadata, &mut tables);
    Recording::write(folder, &metadata, machine, &tables, |writer| {
        let mut batch = AccessBatch::default();
        for number in 0..if has_accesses { ACCESSES } else { 0 } {
            let thread = number % THREADS;
            let step = number / THREADS;
            let (address, kind) = match step % 10 {
                0..5 => {
                    let block = GRID_PAGES / THREADS;
                    (
                        GRID + (thread * block + step / 10 * 5 % block + step % 10) * PAGE,
                        AccessKind::Store,
                    )
                }
                5..8 => (
                    RING + ((step * 7 % 8 * THREADS + thread) * 16 + step % 16) * PAGE,
                    AccessKind::Load,
                ),
                8 => (SHARED + step * 31 % 256 * PAGE, AccessKind::Load),
                9 if step % COUNTER_STEPS == 9 => (SHARED + COUNTER, AccessKind::Store),
                _ => (
                    TEXT + 0x10_0000 * (1 + step / 10 % 2) + thread * PAGE,
                    AccessKind::Load,
                ),
            };
            // The main thread touched everything first, on the first node.
            batch.push(Access {
                time_ns: 1_000_000_000 + number * 100_000,
                thread: ThreadIndex(thread as u32),
                cpu: CpuId(thread as u32),
                address: match step % COUNTER_STEPS {
                    // The threads' counters are all in one line.
                    9 => address + 8 * thread,
                    _ => address + step % 64 * 64,
                },
                instruction: CODE + if step % 10 < 5 { smooth } else { exchange },
                kind,
                level: if thread == 0 {
                    Level::LocalMemory
                } else {
                    Level::RemoteMemory
                },
                resolution: Resolution::Exact,
                skid_bytes: 0,
                weight: 1.0,
                cost_ns: 100.0 + 80.0 * thread as f32,
                page_node,
            });
        }
        writer.accesses(&batch)
    })
    .expect("the case's folder is writable");
}

/// A program with two functions, and the functions' addresses. Built without debug information, so that nothing depends
/// on this machine.
fn program(beside: &Path) -> (PathBuf, [u64; 2]) {
    let file = beside.with_file_name("solver-code");
    let mut compiler = Command::new("cc")
        .args(["-O0", "-g0", "-x", "c", "-", "-o"])
        .arg(&file)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let code =
        "void smooth(void) {}\nvoid exchange(void) {}\nint main(void) { smooth(); exchange(); }\n";
    let mut input = compiler.stdin.take().expect("piped");
    input.write_all(code.as_bytes()).expect("it reads");
    drop(input);
    assert!(compiler.wait().expect("it ends").success());
    let listed = Command::new("nm").arg(&file).output().expect("binutils");
    let listed = String::from_utf8(listed.stdout).expect("names");
    let places = ["smooth", "exchange"].map(|name| {
        let found = listed.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?;
            (words.nth(1)? == name).then(|| u64::from_str_radix(address, 16))
        });
        found.expect("it is there").expect("a number")
    });
    (file, places)
}
