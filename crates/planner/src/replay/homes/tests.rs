//! Homes of a trace's pages under plans.

use std::collections::BTreeMap;

use nearpage_machine::NodeId;
use nearpage_plan::{Owner, PageRun};
use nearpage_recording::ThreadIndex;

use super::*;
use crate::making::{
    CODE, CODE_PAGES, HEAP, PAGE, PID, Traced, any_heap, block, decision, fetch, flash, heap,
    heap_of, interleave, loads, object, on_node, plan, symbol, touched,
};

/// Number of the first heap page: pages of the code come first, as their addresses are lower.
const HEAP_PAGES: usize = CODE_PAGES as usize;

/// A trace with these objects. Four threads on the nodes 0 to 3 read eight heap pages, which the first thread touched,
/// and run the program's code.
fn traced(objects: Vec<Object>) -> Traced {
    let run = || {
        let code = (0..CODE_PAGES).map(|page| fetch(CODE + page * PAGE));
        code.chain(loads(HEAP, 8, 1)).collect()
    };
    Traced::of(&touched(HEAP, 8), &[run(), run(), run(), run()]).with(objects)
}

fn with_processes<T>(traced: &Traced, use_them: impl FnOnce(&Processes) -> T) -> T {
    let machine = flash();
    let trace = traced.recording.trace().expect("a trace");
    use_them(&Processes::of(&traced.recording, &trace, &machine))
}

fn homes(traced: &Traced, plan: &Plan) -> Homes {
    with_processes(traced, |processes| {
        Homes::of(std::slice::from_ref(plan), processes).expect("it can be carried out")
    })
}

/// Homes of the heap's pages under decisions.
fn placed(traced: &Traced, decisions: Vec<Decision>) -> Vec<Option<Home>> {
    homes(traced, &plan(4, decisions)).plan.homes[HEAP_PAGES..].to_vec()
}

fn node(node: u16) -> Option<Home> {
    Some(Home::Node(node))
}

#[test]
fn starts_say_when_pages_go_to_their_node() {
    let traced = traced(vec![heap(HEAP, 4)]);
    let placed = |placement, start| {
        let homes = placed(
            &traced,
            vec![decision("grid", any_heap(), placement, start)],
        );
        assert_eq!(homes[4..], [None; 4], "no object's");
        homes[..4].to_vec()
    };
    let third = placed(on_node(2), Start::Allocation);
    assert_eq!(third, [node(2); 4]);
    let later = placed(on_node(2), Start::SecondThread);
    assert_eq!(later, [Some(Home::Later(Some(2))); 4]);
    let parallel = placed(on_node(2), Start::Parallel);
    assert_eq!(parallel, [Some(Home::Parallel(Some(2))); 4]);
    for start in [Start::Allocation, Start::SecondThread, Start::Parallel] {
        let copies = placed(Placement::Replicate, start);
        assert_eq!(copies, [Some(Home::Copies); 4], "{start:?}");
    }
    let left = placed(Placement::FirstTouch, Start::Allocation);
    assert_eq!(left, [None; 4]);
    let next_touch = placed(Placement::FirstTouch, Start::SecondThread);
    assert_eq!(next_touch, [Some(Home::Later(None)); 4]);
    let next_touch = placed(Placement::FirstTouch, Start::Parallel);
    assert_eq!(next_touch, [Some(Home::Parallel(None)); 4]);
}

#[test]
fn patterns_follow_the_cpus_that_threads_were_traced_on() {
    let traced = traced(vec![heap(HEAP, 8)]);
    let of = |placement| {
        let whole = decision("grid", any_heap(), placement, Start::Allocation);
        placed(&traced, vec![whole])
    };
    let shares = [0, 0, 1, 1, 2, 2, 3, 3].map(node);
    assert_eq!(of(block()), shares);
    let turns = [1, 5, 1, 5, 1, 5, 1, 5].map(node);
    assert_eq!(of(interleave(&[5, 1])), turns);
    let thread = |index| Owner::Thread {
        team: "openmp".to_owned(),
        index,
    };
    let runs = Placement::Runs(vec![
        PageRun {
            first_page: 1,
            pages: 2,
            owner: thread(3),
        },
        PageRun {
            first_page: 6,
            pages: 2,
            owner: Owner::Node(NodeId(7)),
        },
    ]);
    let homes = of(runs);
    assert_eq!(homes[1..3], [node(3); 2]);
    assert_eq!(homes[6..], [node(7); 2]);
}

#[test]
fn next_touch_takes_all_pages_and_placements_only_whole_ones() {
    // From the middle of one page to the beginning of another.
    let traced = traced(vec![object(
        ObjectKind::Heap,
        HEAP + PAGE / 2 + 1,
        3 * PAGE,
    )]);
    let of = |placement, start| {
        let homes = placed(
            &traced,
            vec![decision("grid", any_heap(), placement, start)],
        );
        let pages = homes.iter().enumerate();
        let pages = pages.filter(|(_, home)| home.is_some()).map(|(at, _)| at);
        pages.collect::<Vec<usize>>()
    };
    assert_eq!(of(on_node(1), Start::Allocation), [1, 2, 3]);
    assert_eq!(of(Placement::FirstTouch, Start::SecondThread), [0, 1, 2, 3]);
}

#[test]
fn first_decision_and_first_object_have_the_page() {
    let later = Object {
        born_ns: 10,
        ..heap(HEAP, 4)
    };
    let traced = traced(vec![later, heap(HEAP, 2)]);
    let to = |pages, to| {
        decision(
            &format!("{pages} pages"),
            heap_of(pages),
            on_node(to),
            Start::Allocation,
        )
    };
    let homes = placed(&traced, vec![to(4, 3), to(2, 1)]);
    // The object of two pages existed first, whatever the order in plan and table.
    assert_eq!(homes[..4], [1, 1, 3, 3].map(node));
    let all = decision("all", any_heap(), on_node(6), Start::Allocation);
    let homes = placed(&traced, vec![to(4, 3), all]);
    assert_eq!(homes[..4], [6, 6, 3, 3].map(node));
    // Leaving an object to first touch is a decision as well.
    let left = decision(
        "2 pages",
        heap_of(2),
        Placement::FirstTouch,
        Start::Allocation,
    );
    let homes = placed(&traced, vec![left, to(4, 3)]);
    assert_eq!(homes[..4], [None, None, node(3), node(3)]);
}

#[test]
fn unmatched_memory_is_what_objects_left_over() {
    let traced = traced(vec![
        heap(HEAP, 2),
        object(ObjectKind::Heap, HEAP + 3 * PAGE, 64),
        object(ObjectKind::Stack, HEAP + 6 * PAGE, 2 * PAGE),
    ]);
    let object = decision("grid", heap_of(2), Placement::FirstTouch, Start::Allocation);
    let rest = decision("rest", Subject::Unmatched, on_node(4), Start::Allocation);
    let plan = plan(4, vec![rest, object]);
    let homes = homes(&traced, &plan);
    let expected = [None, None, node(4), node(4), node(4), node(4), None, None];
    assert_eq!(homes.plan.homes[HEAP_PAGES..], expected);
    assert_eq!(homes.plan.homes[..HEAP_PAGES], [None; HEAP_PAGES], "code");
    assert_eq!((homes.found, homes.decisions), (2, 2));
    let notes = homes.notes("p.toml");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(
        notes[0],
        "p.toml: objects of 2 of 2 decisions are in the recording; 4 of 12 pages are placed. Of these, 4 are of \
         unmatched memory."
    );
}

#[test]
fn code_is_copied_page_by_page_in_its_build_and_whole_in_another() {
    let code = |pid| Object {
        name: "program".to_owned(),
        pid,
        ..object(ObjectKind::Code, CODE, CODE_PAGES * PAGE)
    };
    let mut traced = traced(vec![code(PID), code(PID + 1)]);
    traced.recording.tables.modules[0].build_id = "aa".to_owned();
    let copied = |module: &str, build_id: &str, pages: &[(u64, u64)]| {
        let subject = Subject::Code {
            module: module.to_owned(),
            build_id: build_id.to_owned(),
            pages: pages.to_vec(),
        };
        let copies = decision("code", subject, Placement::Replicate, Start::Allocation);
        let homes = homes(&traced, &plan(4, vec![copies]));
        let copied = homes.plan.homes[..HEAP_PAGES].iter().map(|home| {
            assert!(matches!(home, None | Some(Home::Copies)));
            home.is_some()
        });
        (copied.collect::<Vec<bool>>(), homes.found)
    };
    let hot = [(0, 1), (2, 1)];
    assert_eq!(
        copied("program", "aa", &hot),
        (vec![true, false, true, false], 1)
    );
    assert_eq!(
        copied("program", "", &hot),
        (vec![true, false, true, false], 1)
    );
    assert_eq!(copied("program", "bb", &hot), (vec![true; 4], 1), "rebuilt");
    assert_eq!(copied("program", "aa", &[]), (vec![true; 4], 1));
    assert_eq!(
        copied("program", "aa", &[(3, 100)]),
        (vec![false, false, false, true], 1)
    );
    assert_eq!(copied("other", "", &[]), (vec![false; 4], 0));
}

fn phase_at(offset: u64, threads: &[u32], decisions: Vec<Decision>) -> Phase {
    Phase {
        function: "backward".to_owned(),
        module: "program".to_owned(),
        build_id: String::new(),
        offset,
        size_bytes: 32,
        threads: threads.to_vec(),
        decisions,
    }
}

/// Maps the code at the addresses in its file.
fn unbiased(mut traced: Traced) -> Traced {
    for mapping in &mut traced.recording.tables.mappings {
        mapping.bias = 0;
    }
    traced
}

#[test]
fn phases_begin_with_their_function_and_exchange_threads() {
    let traced = unbiased(traced(vec![heap(HEAP, 4), heap(HEAP + 4 * PAGE, 2)]));
    let grid = || decision("grid", heap_of(4), block(), Start::Allocation);
    let left = decision("edge", heap_of(2), Placement::FirstTouch, Start::Allocation);
    let start = CODE + PAGE + 16;
    let mut plan = plan(4, vec![grid()]);
    plan.phases = vec![
        phase_at(start, &[1, 0, 2, 3], vec![grid(), left]),
        phase_at(start, &[], Vec::new()),
        phase_at(start + PAGE, &[], vec![grid()]),
        phase_at(start + 2 * PAGE, &[0, 1, 3, 2], Vec::new()),
    ];
    let homes = homes(&traced, &plan);
    assert_eq!(homes.plan.homes[HEAP_PAGES..][..4], [0, 1, 2, 3].map(node));
    let [first, second, third] = homes.plan.phases.as_slice() else {
        panic!("an empty phase is none: {:?}", homes.plan.phases)
    };
    assert_eq!(first.entry, [(1, 16..48)]);
    let threads = |phase: &PhaseHomes| -> Vec<(u32, u16)> {
        let threads = phase.threads.iter();
        threads.map(|&(thread, node)| (thread.0, node)).collect()
    };
    assert_eq!(threads(first), [(0, 1), (1, 0)]);
    // Shares go with the threads; the object left to first touch goes to the threads that use it next.
    assert_eq!(first.homes[HEAP_PAGES..][..4], [1, 0, 2, 3].map(node));
    let next_touch = [Some(Home::Later(None)); 2];
    assert_eq!(first.homes[HEAP_PAGES..][4..6], next_touch);
    assert_eq!(second.entry, [(2, 16..48)]);
    assert_eq!(
        threads(second),
        [],
        "they stay where the phase before put them"
    );
    assert_eq!(second.homes[HEAP_PAGES..][..4], [1, 0, 2, 3].map(node));
    // Threads move from their places in the phase before, not from the initial ones.
    assert_eq!(threads(third), [(0, 0), (1, 1), (2, 3), (3, 2)]);
    assert_eq!((homes.found, homes.decisions), (4, 4));
    assert_eq!(homes.warnings, [""; 0]);
}

#[test]
fn phases_that_cannot_begin_or_move_threads_are_warned_about() {
    let traced = unbiased(traced(vec![heap(HEAP, 4)]));
    let missing = decision("halo", heap_of(3), on_node(1), Start::Allocation);
    let mut plan = plan(4, Vec::new());
    plan.phases = vec![
        phase_at(CODE + CODE_PAGES * PAGE, &[1, 0], vec![missing.clone()]),
        phase_at(CODE, &[1, 0, 2, 3], vec![missing]),
    ];
    let homes = homes(&traced, &plan);
    assert_eq!(homes.plan.phases[0].entry, []);
    assert_eq!(homes.plan.phases[0].threads, []);
    let exchanged = [(ThreadIndex(0), 1), (ThreadIndex(1), 0)];
    assert_eq!(
        homes.plan.phases[1].threads, exchanged,
        "nobody moved before"
    );
    let notes = homes.notes("p.toml");
    let folder = traced.recording.folder.display();
    assert_eq!(
        notes,
        [
            "p.toml: objects of 0 of 2 decisions are in the recording; 0 of 12 pages are placed. Not found: halo from \
             backward on, halo from backward on."
                .to_owned(),
            format!(
                "p.toml: `backward`, with which a phase of the plan begins, was not executed in {folder}: nothing moves \
                 then."
            ),
            "p.toml: threads stay where they are when `backward` begins: the plan is for 2, and there are others."
                .to_owned(),
        ]
    );
}

#[test]
fn objects_that_are_missing_are_named() {
    let table = symbol("table", HEAP + 4 * PAGE, 2, 0x500);
    let mut traced = traced(vec![heap(HEAP, 4), table]);
    traced.recording.tables.modules[0].build_id = "aa".to_owned();
    let table = |offset| Subject::Symbol {
        symbol: "table".to_owned(),
        module: "program".to_owned(),
        build_id: "aa".to_owned(),
        offset,
        size_bytes: 2 * PAGE,
    };
    let at = |name: &str, subject| decision(name, subject, on_node(1), Start::Allocation);
    let mut plan = plan(
        4,
        vec![
            at("grid", heap_of(4)),
            at("halo", heap_of(3)),
            at("table", table(0x500)),
            at("moved", table(0x900)),
        ],
    );
    plan.online_migration = Some(OnlineMigration::default());
    let homes = homes(&traced, &plan);
    assert_eq!((homes.found, homes.decisions), (2, 4));
    assert_eq!(homes.plan.homes[HEAP_PAGES..][..6], [node(1); 6]);
    assert_eq!(homes.plan.online_migration, Some(AutoParameters::default()));
    assert_eq!(
        homes.notes("p.toml"),
        [
            "p.toml: objects of 2 of 4 decisions are in the recording; 6 of 12 pages are placed. `auto` migrates \
             pages online. Not found: halo, moved."
        ]
    );
}

#[test]
fn plans_are_for_their_program_only() {
    let traced = traced(vec![heap(HEAP, 4)]);
    let grid = || decision("grid", any_heap(), on_node(1), Start::Allocation);
    let mut other = plan(4, vec![grid()]);
    other.program.executable = "other".to_owned();
    let homes = homes(&traced, &other);
    assert_eq!(homes.plan.homes, [None; HEAP_PAGES + 8]);
    with_processes(&traced, |processes| {
        let own = plan(4, vec![grid()]);
        let both = Homes::of(&[other.clone(), own.clone()], processes).expect("homes");
        assert_eq!((both.found, both.decisions), (1, 2));
        let file = Path::new("p.toml");
        let message = match of_file(file, &other, processes) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("nothing of it is there"),
        };
        assert!(
            message.starts_with("p.toml: nothing of this plan for other is in "),
            "{message}"
        );
        assert!(message.contains("`nearpage plan`"), "{message}");
        assert!(of_file(file, &own, processes).is_ok());
        let nothing = plan(4, Vec::new());
        assert!(
            of_file(file, &nothing, processes).is_ok(),
            "it asks for nothing"
        );
    });
}

#[test]
fn nodes_that_the_machine_lacks_are_refused() {
    let traced = traced(vec![heap(HEAP, 4)]);
    let nowhere = decision("grid", any_heap(), on_node(8), Start::Allocation);
    with_processes(&traced, |processes| {
        let refused = Homes::of(&[plan(4, vec![nowhere])], processes);
        assert!(matches!(refused, Err(Error::Plan(_))));
    });
}

#[test]
fn parameters_of_online_migration_are_known_or_refused() {
    let online_migration = |name: &str, value| OnlineMigration {
        parameters: BTreeMap::from([(name.to_owned(), value)]),
    };
    let parameters =
        auto_parameters(&online_migration("budget_permille", 77)).expect("it is known");
    let mut expected = AutoParameters::default();
    expected.set("budget_permille", "77").expect("it is known");
    assert_eq!(parameters, expected);
    assert_ne!(parameters, AutoParameters::default());
    let unknown = auto_parameters(&online_migration("haste", 1)).expect_err("no such parameter");
    assert_eq!(
        unknown.to_string(),
        "the plan's [online_migration] has `haste`, and `auto` has no parameter of that name"
    );
    // A plan with an unknown parameter cannot be replayed.
    let traced = traced(vec![heap(HEAP, 4)]);
    let mut plan = plan(4, Vec::new());
    plan.online_migration = Some(online_migration("haste", 1));
    with_processes(&traced, |processes| {
        assert!(Homes::of(&[plan], processes).is_err());
    });
}
