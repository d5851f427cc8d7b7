//! Pages, threads and code of a traced process that a plan means.

use nearpage_plan::{Decision, Program};
use nearpage_recording::{ModuleId, ModuleMapping, ObjectKind};
use tempfile::TempDir;

use super::*;
use crate::making::trace::{TraceFile, load, start, touch};
use crate::making::{
    CODE, CODE_PAGES, HEAP, PAGE, PID, Traced, fetch, flash, heap, library, loads, object, plan,
    touched,
};

/// The first process of a recording.
fn with_process<T>(traced: &Traced, use_it: impl FnOnce(&Process) -> T) -> T {
    let machine = flash();
    let trace = traced.recording.trace().expect("a trace");
    let processes = Processes::of(&traced.recording, &trace, &machine);
    use_it(&processes.all[0])
}

/// A page that is unmapped and touched again at 50,000 ns.
fn touched_twice() -> Traced {
    let mut file = TraceFile::of(PID, 1_000);
    file.events(0, 1_000, &[start(0, PID, 0, 0, 0)])
        .records(0, 0, 1_000, &[(10, touch(HEAP)), (1, load(HEAP))])
        .records(0, 11, 50_000, &[(10, touch(HEAP)), (1, load(HEAP))])
        .end();
    Traced::of_files(&[file])
}

#[test]
fn address_used_again_has_a_page_per_object() {
    let traced = touched_twice();
    with_process(&traced, |process| {
        let [first, second] = process.pages.as_slice() else {
            panic!("{} pages", process.pages.len())
        };
        assert_eq!((first.address, second.address), (HEAP, HEAP));
        assert!(first.since_ns < 50_000 && second.since_ns >= 50_000);
        assert_eq!(first.until_ns, second.since_ns, "the second ends the first");
        assert_eq!(second.until_ns, u64::MAX);
        let alive = |born_ns, died_ns| Object {
            born_ns,
            died_ns,
            ..heap(HEAP, 1)
        };
        let owns = |object: &Object| [first, second].map(|page| page.is_of(object));
        assert_eq!(owns(&alive(0, u64::MAX)), [true, true], "of both times");
        assert_eq!(owns(&alive(0, 20_000)), [true, false], "freed in between");
        // The object is born before the page is touched again, and outlives it: the earlier page was not the object's.
        assert_eq!(owns(&alive(20_000, u64::MAX)), [false, true]);
        assert_eq!(
            owns(&alive(20_000, 30_000)),
            [true, false],
            "inside the first"
        );
        assert_eq!(owns(&alive(60_000, u64::MAX)), [false, true]);
        assert_eq!(owns(&alive(0, 500)), [false, false], "before either");
    });
}

#[test]
fn pages_are_found_by_the_address_at_which_they_begin() {
    let traced = Traced::of(&touched(HEAP, 4), &[loads(HEAP, 4, 1)]);
    with_process(&traced, |process| {
        let within = |range: Range<u64>| -> Vec<u64> {
            let pages = process.pages_within(range);
            pages.map(|page| (page.address - HEAP) / PAGE).collect()
        };
        assert_eq!(within(HEAP..HEAP + 4 * PAGE), [0, 1, 2, 3]);
        assert_eq!(within(HEAP + 1..HEAP + 2 * PAGE + 1), [1, 2]);
        assert_eq!(within(HEAP + 1..HEAP + PAGE), [0; 0]);
        // A boundary inside a page goes to the nearest page; objects of fewer than two pages are left alone.
        let shifted = object(ObjectKind::Heap, HEAP + 100, 3 * PAGE);
        assert_eq!(process.pages_of(&shifted), Some(HEAP..HEAP + 3 * PAGE));
        assert_eq!(process.pages_of(&heap(HEAP, 1)), None);
    });
}

#[test]
fn process_knows_when_its_second_thread_began() {
    let alone = Traced::of(&touched(HEAP, 1), &[]);
    assert_eq!(
        with_process(&alone, |process| process.second_thread_ns()),
        u64::MAX
    );
    let mut two = Traced::of(&touched(HEAP, 1), &[loads(HEAP, 1, 1), loads(HEAP, 1, 1)]);
    two.recording.tables.threads[1].born_ns = 700;
    assert_eq!(
        with_process(&two, |process| process.second_thread_ns()),
        700
    );
    two.recording.tables.threads[1].pid = PID + 1;
    assert_eq!(
        with_process(&two, |process| process.second_thread_ns()),
        u64::MAX
    );
}

#[test]
fn plan_is_for_a_program_by_build_or_by_name() {
    let mut traced = Traced::of(&touched(HEAP, 1), &[]);
    traced.recording.tables.modules[0].build_id = "aa".to_owned();
    with_process(&traced, |process| {
        let runs = |executable: &str, build_id: &str| {
            let program = Program {
                executable: executable.to_owned(),
                build_id: build_id.to_owned(),
                ..Program::default()
            };
            process.runs(&Plan {
                program,
                ..plan(1, Vec::new())
            })
        };
        assert!(runs("program", "aa"));
        assert!(runs("renamed", "aa"), "the same build by another name");
        assert!(runs("program", "bb"), "rebuilt");
        assert!(runs("", ""), "a plan for whatever runs");
        assert!(!runs("other", "bb"));
        assert!(!runs("other", ""));
        assert!(!runs("", "bb"));
    });
    traced.recording.tables.modules[0].build_id = String::new();
    with_process(&traced, |process| {
        let mut other = plan(1, Vec::new());
        other.program.executable = "other".to_owned();
        assert!(!process.runs(&other), "no build is not the same build");
    });
}

/// Four threads, on the nodes 0 to 3.
fn four() -> Traced {
    let each = || loads(HEAP, 1, 1);
    Traced::of(&touched(HEAP, 1), &[each(), each(), each(), each()])
}

#[test]
fn members_of_a_team_come_by_number_once_each() {
    let mut traced = four();
    let threads = &mut traced.recording.tables.threads;
    for (thread, (team, number)) in threads.iter_mut().zip([
        ("main", 0),
        ("worker", 1),
        ("worker", 0),
        // The earlier thread with this number ended.
        ("worker", 1),
    ]) {
        (thread.team, thread.team_index) = (team.to_owned(), number);
    }
    with_process(&traced, |process| {
        let members = |team: &str| -> Vec<(u32, u32)> {
            let members = process.members(team).into_iter();
            members.map(|(thread, cpu)| (thread.0, cpu.0)).collect()
        };
        assert_eq!(members("worker"), [(2, 2), (1, 1)]);
        assert_eq!(members("main"), [(0, 0)]);
        assert_eq!(members("openmp"), []);
    });
}

#[test]
fn threads_move_where_their_places_change_nodes() {
    let traced = four();
    with_process(&traced, |process| {
        let moved = |before: &[u32], after: &[u32]| {
            let moved = process.moved(&plan(4, Vec::new()), [before, after])?;
            let threads = moved.into_iter().map(|(thread, node)| (thread.0, node));
            Some(threads.collect::<Vec<_>>())
        };
        assert_eq!(moved(&[], &[1, 0, 2, 3]), Some(vec![(0, 1), (1, 0)]));
        assert_eq!(moved(&[], &[0, 1, 2, 3]), Some(Vec::new()));
        let back = moved(&[1, 0, 2, 3], &[0, 1, 2, 3]);
        assert_eq!(back, Some(vec![(0, 0), (1, 1)]));
        let same = moved(&[1, 0, 2, 3], &[1, 0, 2, 3]);
        assert_eq!(same, Some(Vec::new()));
        assert_eq!(moved(&[], &[1, 0]), None, "a plan for another team size");
        let without = Plan {
            teams: Vec::new(),
            ..plan(4, Vec::new())
        };
        assert_eq!(process.moved(&without, [&[], &[1, 0, 2, 3]]), None);
    });
}

fn phase(function: &str, module: &str, build_id: &str, (offset, size_bytes): (u64, u64)) -> Phase {
    Phase {
        function: function.to_owned(),
        module: module.to_owned(),
        build_id: build_id.to_owned(),
        offset,
        size_bytes,
        threads: Vec::new(),
        decisions: Vec::<Decision>::new(),
    }
}

#[test]
fn entry_of_a_phase_is_the_recorded_functions_bytes_page_by_page() {
    let run = (0..CODE_PAGES).map(|page| fetch(CODE + page * PAGE + 64));
    let mut traced = Traced::of(&[], &[run.collect()]);
    traced.recording.tables.modules[0].build_id = "aa".to_owned();
    let bias = CODE - 0x1_0000;
    for mapping in &mut traced.recording.tables.mappings {
        mapping.bias = bias;
    }
    let second_page = traced.recording.trace().expect("a trace").pages().len();
    assert_eq!(second_page, CODE_PAGES as usize, "the code is all there is");
    with_process(&traced, |process| {
        let entry = |name: &str, build: &str, at| process.entry_of(&phase("f", name, build, at));
        // From the end of one page into the next.
        let across = (0x1_0000 + PAGE - 16, 48);
        let bytes = [(0, 4080..4096), (1, 0..32)];
        assert_eq!(entry("program", "aa", across), bytes);
        assert_eq!(entry("renamed", "aa", across), bytes, "the same build");
        assert_eq!(entry("program", "", across), bytes, "a plan without builds");
        assert_eq!(entry("other", "", across), []);
        assert_eq!(entry("other", "bb", across), []);
        // Another build is looked up by name, but there is no file.
        assert_eq!(entry("program", "bb", across), []);
        assert_eq!(entry("program", "", (0x1_0000, 0)), []);
    });
}

#[test]
fn entry_of_a_phase_in_another_build_is_found_by_name() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("solver.so");
    let [forward, backward] = library(&file);
    let run = (0..CODE_PAGES).map(|page| fetch(CODE + page * PAGE + 64));
    let mut traced = Traced::of(&[], &[run.collect()]);
    let tables = &mut traced.recording.tables;
    tables.modules[0].path = file.display().to_string();
    tables.modules[0].build_id = ModuleImage::load(&file).expect("a library").build_id;
    let again = ModuleMapping {
        address: CODE + PAGE,
        module: ModuleId(0),
        ..tables.mappings[0]
    };
    // A file is mapped in pieces of one bias.
    tables.mappings.push(again);
    for mapping in &mut tables.mappings {
        mapping.bias = CODE;
    }
    let at = |(offset, size): (u64, u64)| {
        let first = (offset % PAGE) as u32;
        [(
            (offset / PAGE) as u32,
            first..first + u32::try_from(size).expect("a short function"),
        )]
    };
    let elsewhere = (1, 1);
    with_process(&traced, |process| {
        let find =
            |function: &str| process.entry_of(&phase(function, "solver.so", "another", elsewhere));
        assert_eq!(find("forward._omp_fn.0"), at(forward));
        assert_eq!(find("backward._omp_fn.0"), at(backward));
        assert_eq!(find("sideways._omp_fn.0"), []);
    });
    // The module was rebuilt since it was recorded: its functions are elsewhere.
    traced.recording.tables.modules[0].build_id = "aa".to_owned();
    with_process(&traced, |process| {
        let rebuilt = phase("forward._omp_fn.0", "solver.so", "another", elsewhere);
        assert_eq!(process.entry_of(&rebuilt), []);
    });
}

#[test]
fn image_that_was_rebuilt_is_not_the_recorded_one() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("solver.so");
    library(&file);
    let build_id = ModuleImage::load(&file).expect("a library").build_id;
    let module = |path: &std::path::Path, build_id: &str| Module {
        path: path.display().to_string(),
        build_id: build_id.to_owned(),
    };
    assert!(recorded_image(&module(&file, &build_id)).is_some());
    assert!(recorded_image(&module(&file, "aa")).is_none());
    let missing = folder.path().join("missing.so");
    assert!(recorded_image(&module(&missing, &build_id)).is_none());
    let text = folder.path().join("solver.c");
    assert!(recorded_image(&module(&text, "")).is_none(), "no ELF file");
}

#[test]
fn builds_of_modules_are_told_apart() {
    let mut traced = Traced::of(&touched(HEAP, 1), &[]);
    traced.recording.tables.modules[0].build_id = "aa".to_owned();
    traced.recording.metadata.rank = Some(3);
    with_process(&traced, |process| {
        assert!(process.has_build("program", "aa"));
        assert!(!process.has_build("program", "bb"));
        assert!(!process.has_build("other", "aa"));
        assert_eq!(process.executable().file_name, "program");
        assert_eq!(process.executable().build_id, "aa");
        assert_eq!(process.rank(), Some(3));
    });
}
