//! Placements that begin when a function of the program is first executed.

use nearpage_wire::compact_plan::{
    FrameRange, NONE, Phase, Pin, RULE_LATER, Rule, Section, placement, subject,
};

use crate::plan_file::{self, Tables};
use crate::program::{Programs, Run};
use crate::{MISSING, alternating, block_cyclic, on_node_0, pages, site, static_object};

/// Builds of the program whose calls of the OpenMP runtime are made in different ways.
const BUILDS: [&str; 3] = ["phases", "phases_now", "phases_fixed"];

/// What `allocate_a` makes and the table are on node 0; in blocks of a hundred and of sixteen pages from the first
/// function on, and of thirty and of eight from the second on.
fn tables(programs: &Programs, program: &str, functions: &[&str]) -> Tables {
    let table = |rule| static_object(programs, 0, program, "table", rule);
    let mut rules = vec![site(0, on_node_0(0)), table(on_node_0(0))];
    for blocks in [[100, 16], [30, 8]].iter().take(functions.len()) {
        rules.push(site(0, block_cyclic(0, blocks[0])));
        rules.push(table(block_cyclic(0, blocks[1])));
    }
    let mut tables = Tables {
        nodes: vec![0, MISSING],
        ..Tables::default()
    };
    let module = plan_file::module(&mut tables.names, &[], program.as_bytes());
    tables.modules = vec![module];
    let (address, size) = programs.symbol(program, "allocate_a");
    tables.frames = vec![FrameRange {
        module: 0,
        reserved: 0,
        low: address,
        high: address + size,
    }];
    tables.rules = (0..)
        .zip(rules)
        .map(|(number, rule)| Rule { number, ..rule })
        .collect();
    tables.phases = (0..)
        .zip(functions)
        .map(|(number, function)| Phase {
            module: 0,
            reserved: 0,
            offset: programs.symbol(program, function).0,
            rules: [2 + 2 * number, 2],
            pins: [0, 0],
        })
        .collect();
    tables.sections = vec![Section {
        executable: NONE,
        rank: NONE,
        rules: [0, 2],
        pins: [0, 0],
        phases: [0, functions.len() as u32],
    }];
    tables
}

/// Counters of a rule; 0 where the summary leaves them out.
fn counters<const N: usize>(run: &Run, rule: usize, names: [&str; N]) -> [u64; N] {
    names.map(|name| run.rule(rule)[name].as_u64().unwrap_or(0))
}

const WHOLE: usize = 8 << 20;

fn run(programs: &Programs, tables: &Tables, program: &str, arguments: &[&str]) -> Run {
    programs.run_program(tables, program, arguments, &[], &[])
}

fn is_on_node_0(run: &Run) {
    for name in ["whole", "table", "after"] {
        assert_eq!(
            run.policies(name),
            [(pages(run, name), "prefer:0")],
            "{name}: {}",
            run.said
        );
    }
}

#[test]
fn what_was_placed_moves_when_a_region_is_first_entered() {
    let programs = Programs::build();
    for program in BUILDS {
        let tables = tables(&programs, program, &["columns._omp_fn.0"]);
        let run = run(&programs, &tables, program, &["columns", "columns"]);
        assert_eq!(run.words("SUM"), [(2 * WHOLE).to_string()], "{program}");
        assert_eq!(run.policies("whole"), alternating(2048, 100), "{program}");
        assert_eq!(run.policies("table"), alternating(256, 16), "{program}");
        assert_eq!(
            run.policies("after"),
            alternating(256, 100),
            "from then on at the allocation"
        );
        assert_eq!(run.said, "", "{program}");
        let names = ["objects", "switched", "waited"];
        assert_eq!(counters(&run, 0, names), [2, 0, 0], "one was freed");
        assert_eq!(counters(&run, 1, names), [1, 0, 0]);
        assert_eq!(counters(&run, 2, names), [2, 1, 1], "{}", run.rule(2));
        assert_eq!(counters(&run, 3, names), [1, 1, 0]);
        for rule in [2, 3] {
            let [in_place, moved, took] =
                counters(&run, rule, ["in_place", "moved", "switched_ns"]);
            assert!(in_place + moved > 0 && took > 0, "{}", run.rule(rule));
            assert!(run.rule(rule)["failures"].is_null(), "{}", run.rule(rule));
        }
    }
}

#[test]
fn without_the_function_nothing_moves() {
    let programs = Programs::build();
    for program in BUILDS {
        let tables = tables(&programs, program, &["columns._omp_fn.0"]);
        let run = run(&programs, &tables, program, &["rows", "thread"]);
        assert_eq!(run.words("SUM"), [(2 * WHOLE).to_string()]);
        is_on_node_0(&run);
        let names = ["waited", "objects", "switched", "pages"];
        assert_eq!(counters(&run, 2, names), [3, 0, 0, 0]);
        assert_eq!(counters(&run, 3, names), [1, 0, 0, 0]);
    }
}

#[test]
fn phases_begin_in_any_order_and_with_threads_too() {
    let programs = Programs::build();
    let functions = ["rows._omp_fn.0", "reader"];
    let tables = tables(&programs, "phases", &functions);
    for (arguments, blocks, sums) in [
        (&["rows"][..], [100, 16], 1),
        (&["thread"], [30, 8], 1),
        (&["rows", "thread"], [30, 8], 2),
        (&["thread", "rows"], [100, 16], 2),
        (&["thread", "rows", "thread"], [100, 16], 3),
    ] {
        let run = run(&programs, &tables, "phases", arguments);
        assert_eq!(run.words("SUM"), [(sums * WHOLE).to_string()]);
        assert_eq!(
            run.policies("whole"),
            alternating(2048, blocks[0]),
            "{arguments:?}"
        );
        assert_eq!(run.policies("table"), alternating(256, blocks[1]));
        assert_eq!(run.policies("after"), alternating(256, blocks[0]));
        assert_eq!(run.said, "");
    }
}

#[test]
fn a_phase_comes_before_the_second_thread() {
    let programs = Programs::build();
    let mut tables = tables(&programs, "phases", &["columns._omp_fn.0"]);
    for rule in &mut tables.rules[..2] {
        rule.flags |= RULE_LATER;
    }
    let four = [("OMP_NUM_THREADS", "4")];
    let run = programs.run_program(&tables, "phases", &["columns"], &[], &four);
    assert_eq!(run.words("SUM"), [WHOLE.to_string()]);
    assert_eq!(run.policies("whole"), alternating(2048, 100));
    assert_eq!(run.policies("table"), alternating(256, 16));
    // The one that was freed waits in the counters.
    assert_eq!(counters(&run, 0, ["switched", "waited"]), [0, 1]);
    assert_eq!(counters(&run, 1, ["switched", "waited"]), [0, 0]);
    assert_eq!(counters(&run, 2, ["switched", "waited"]), [1, 1]);
}

#[test]
fn objects_that_a_phase_leaves_stay_where_they_are() {
    let programs = Programs::build();
    let mut tables = tables(&programs, "phases", &["columns._omp_fn.0"]);
    for rule in &mut tables.rules[2..] {
        rule.placement = placement::LEAVE;
    }
    tables.rules[3].number = NONE;
    let run = run(&programs, &tables, "phases", &["columns"]);
    is_on_node_0(&run);
    assert_eq!(counters(&run, 2, ["left", "waited", "switched"]), [3, 0, 0]);
    let rules = run.summaries[0]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 3, "one has no number");
}

#[test]
fn a_forked_process_begins_its_own_phases() {
    let programs = Programs::build();
    let tables = tables(&programs, "phases", &["columns._omp_fn.0", "reader"]);
    for (arguments, blocks) in [
        (&["fork", "columns"][..], [100, 16]),
        (&["columns", "fork"], [100, 16]),
        (&["columns", "fork", "thread"], [30, 8]),
    ] {
        let run = run(&programs, &tables, "phases", arguments);
        assert_eq!(run.policies("whole"), alternating(2048, blocks[0]));
        assert_eq!(run.policies("table"), alternating(256, blocks[1]));
        assert_eq!(
            run.policies("after"),
            alternating(256, blocks[0]),
            "{arguments:?}"
        );
        assert_eq!(run.summaries.len(), 2);
    }
}

#[test]
fn others_make_and_free_objects_while_a_phase_begins() {
    let programs = Programs::build();
    let tables = tables(&programs, "phases", &["columns._omp_fn.0"]);
    for _ in 0..5 {
        let run = run(&programs, &tables, "phases", &["churn"]);
        assert_eq!(run.words("SUM"), [WHOLE.to_string()]);
        assert_eq!(run.policies("whole"), alternating(2048, 100));
        assert_eq!(run.policies("after"), alternating(256, 100));
        assert_eq!(run.said, "");
        let [objects, switched] = counters(&run, 2, ["objects", "switched"]);
        assert!(switched >= 1 && objects >= switched + 5, "{}", run.rule(2));
    }
}

#[test]
fn objects_stay_where_pages_cannot_be_moved() {
    let programs = Programs::build();
    let tables = tables(&programs, "phases", &["columns._omp_fn.0"]);
    let refuse = programs.path("refuse");
    let before = [refuse.to_str().unwrap()];
    let run = programs.run_program(&tables, "phases", &["columns"], &before, &[]);
    assert_eq!(run.words("SUM"), [WHOLE.to_string()]);
    assert_eq!(counters(&run, 0, ["objects"]), [3], "placed by touching");
    assert_eq!(
        counters(&run, 2, ["objects", "early", "switched", "waited"]),
        [0, 2, 0, 1],
        "{}",
        run.rule(2)
    );
    assert_eq!(run.said.lines().count(), 1);
}

#[test]
fn calls_lead_to_the_runtime_that_they_led_to() {
    let programs = Programs::build();
    let tables = tables(&programs, "phases_two", &["columns._omp_fn.0", "outlined"]);
    // Which of two runtimes a call leads to is not known before it is made.
    let lazy = run(&programs, &tables, "phases_two", &["columns"]);
    assert_eq!(lazy.words("SUM"), [WHOLE.to_string()]);
    is_on_node_0(&lazy);
    assert!(
        lazy.said.contains("GOMP_parallel do not begin"),
        "{}",
        lazy.said
    );
    let now = [("LD_BIND_NOW", "1")];
    let run_now =
        |argument: &str| programs.run_program(&tables, "phases_two", &[argument], &[], &now);
    let run = run_now("columns");
    assert_eq!(run.words("SUM"), [WHOLE.to_string()]);
    assert_eq!(run.policies("whole"), alternating(2048, 100));
    assert_eq!(run.said, "");
    // LLVM's function has any number of arguments.
    let run = run_now("llvm");
    assert_eq!(run.words("SUM"), ["91"]);
    assert_eq!(run.policies("whole"), alternating(2048, 30));
}

#[test]
fn phases_begin_with_tasks() {
    let programs = Programs::build();
    for function in ["tasks", "taskloop"] {
        let body = format!("{function}._omp_fn.0");
        let tables = tables(&programs, "phases", &[&body]);
        let run = run(&programs, &tables, "phases", &[function]);
        assert_eq!(run.words("SUM"), [WHOLE.to_string()], "{function}");
        assert_eq!(run.policies("whole"), alternating(2048, 100), "{function}");
    }
    let tables = tables(&programs, "phases_two", &["task_entry"]);
    let run = run(&programs, &tables, "phases_two", &["llvm_task"]);
    assert_eq!(run.words("SUM"), ["13"]);
    assert_eq!(run.policies("whole"), alternating(2048, 100));
}

#[test]
fn a_function_of_no_use_is_none() {
    let programs = Programs::build();
    let mut tables = tables(&programs, "phases", &["columns._omp_fn.0"]);
    let phase = tables.phases[0];
    tables.phases = vec![
        Phase {
            module: 77,
            ..phase
        },
        Phase {
            offset: 1 << 50,
            ..phase
        },
        Phase {
            rules: [900, 3],
            ..phase
        },
    ];
    tables.sections[0].phases = [0, 3];
    tables.rules[0].subject = subject::CALL_SITE;
    let run = run(&programs, &tables, "phases", &["columns"]);
    assert_eq!(run.words("SUM"), [WHOLE.to_string()]);
    is_on_node_0(&run);
}

#[test]
fn threads_take_the_places_that_a_phase_gives_them() {
    let programs = Programs::build();
    let last = std::thread::available_parallelism().unwrap().get() as u32 - 1;
    let pin = |(index, cpu)| Pin {
        module: NONE,
        index,
        offset: 0,
        cpu,
        reserved: 0,
    };
    let (before, after) = ([0, last, 0, last], [last, 0, last, 0]);
    let tables = |after: [u32; 4]| {
        let mut names = Vec::new();
        let pins = (0..).zip(before).chain((0..).zip(after));
        Tables {
            modules: vec![plan_file::module(&mut names, &[], b"places")],
            pins: pins.map(pin).collect(),
            phases: vec![Phase {
                module: 0,
                reserved: 0,
                offset: programs.symbol("places", "second._omp_fn.0").0,
                rules: [0, 0],
                pins: [4, 4],
            }],
            sections: vec![Section {
                executable: NONE,
                rank: NONE,
                rules: [0, 0],
                pins: [0, 4],
                phases: [0, 1],
            }],
            names,
            ..Tables::default()
        }
    };
    let run = |after, arguments: &[&str]| run(&programs, &tables(after), "places", arguments);
    let is_on = |run: &Run, team: &str, cpus: &[u32]| {
        for (number, cpu) in cpus.iter().enumerate() {
            let words = run.words(&format!("{team} {number}"));
            assert_eq!(words, ["1", &cpu.to_string()], "{team} {number}");
        }
        assert_eq!(run.said, "");
    };
    let outcome = |run: &Run, [changed, left, failed]: [u32; 3]| {
        assert_eq!(
            run.summaries[0]["phases"],
            serde_json::json!([{"number": 0, "begun": true, "changed": changed, "left": left, "failed": failed}])
        );
    };
    let several = last > 0;
    let if_several = |count: u32| if several { count } else { 0 };
    // The fourth thread is created when the phase has begun.
    let all = run(after, &[]);
    is_on(&all, "FIRST", &before[..3]);
    is_on(&all, "SECOND", &after);
    outcome(&all, [if_several(3), 0, 0]);
    assert_eq!(all.summaries[0]["pins"]["pinned"], 4);
    // Before any thread is pinned.
    let late = run(after, &["late"]);
    is_on(&late, "SECOND", &after);
    outcome(&late, [0, 0, 0]);
    // Where the program has decided about a thread, it has.
    let free = run(after, &["free"]);
    assert_eq!(free.words("SECOND 1"), [(last + 1).to_string(), "0".into()]);
    assert_eq!(free.words("SECOND 2"), ["1", &last.to_string()]);
    outcome(&free, [if_several(2), if_several(1), 0]);
    // A CPU that is not there.
    let refused = run([8190, 0, last, 0], &[]);
    is_on(&refused, "SECOND", &[0, 0, last, 0]);
    outcome(&refused, [if_several(2), 0, 1]);
}
