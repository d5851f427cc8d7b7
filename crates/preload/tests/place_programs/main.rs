//! Programs of ours under the library with a plan written by hand, checked to the page against the
//! kernel's own account (`/proc/self/numa_maps`). On a machine with one node, pages planned for
//! node 0 show as `prefer:0`, those of an interleaved object as `interleave:0`, and those planned
//! for a node that does not exist keep `default`: that is enough to see every boundary.

mod heap;
mod later;
#[path = "../shared/library.rs"]
mod library;
#[path = "../shared/messages.rs"]
mod messages;
mod phases;
mod pins;
mod plan_file;
mod program;
mod touching;
mod unmatched_memory;

use nearpage_wire::compact_plan::{
    FrameRange, NONE, Pin, RULE_WEAK, Rule, Run, Section, Weight, placement, subject,
};
use plan_file::{RULE, Tables};
use program::{PAGE, Programs, in_a_row};

/// A node that no machine of these tests has.
const MISSING: u16 = 900;

/// A plan with one section for any process. `nodes[0..2]` are node 0 and a missing one.
fn plan(programs: &Programs, rules: impl IntoIterator<Item = Rule>) -> Tables {
    let mut tables = Tables {
        nodes: vec![0, MISSING],
        ..Tables::default()
    };
    for name in ["objects", "library.so", "libc.so.6"] {
        let module = plan_file::module(&mut tables.names, &[], name.as_bytes());
        tables.modules.push(module);
    }
    for function in ["allocate_a", "allocate_b", "main"] {
        let (address, size) = programs.symbol("objects", function);
        tables.frames.push(FrameRange {
            module: 0,
            reserved: 0,
            low: address,
            high: address + size,
        });
    }
    tables.rules = rules
        .into_iter()
        .enumerate()
        .map(|(number, rule)| Rule {
            number: number as u32,
            ..rule
        })
        .collect();
    let count = tables.rules.len() as u32;
    tables.sections = vec![Section {
        executable: NONE,
        rank: NONE,
        rules: [0, count],
        pins: [0, 0],
        phases: [0, 0],
    }];
    tables
}

fn block_cyclic(subject: u32, pages: usize) -> Rule {
    Rule {
        subject,
        placement: placement::BLOCK_CYCLIC,
        block_bytes: (pages * PAGE) as u64,
        nodes: [0, 2],
        ..RULE
    }
}

fn on_node_0(subject: u32) -> Rule {
    Rule {
        subject,
        placement: placement::NODE,
        nodes: [0, 1],
        ..RULE
    }
}

fn static_object(programs: &Programs, module: u32, file: &str, symbol: &str, rule: Rule) -> Rule {
    let (offset, size_bytes) = programs.symbol(file, symbol);
    Rule {
        subject: subject::STATIC,
        module,
        offset,
        size_bytes,
        ..rule
    }
}

/// A heap object allocated in `allocate_a` (frame 0), or another of the plan's functions.
fn site(frame: u32, rule: Rule) -> Rule {
    Rule {
        subject: subject::CALL_SITE,
        frames: [frame, 1],
        ..rule
    }
}

/// The policies of blocks dealt to node 0 and to a node that does not exist.
fn alternating(pages: usize, block: usize) -> Vec<(usize, &'static str)> {
    in_a_row((0..pages).map(|page| {
        if (page / block).is_multiple_of(2) {
            "prefer:0"
        } else {
            "default"
        }
    }))
}

fn pages(run: &program::Run, name: &str) -> usize {
    run.object(name).pages().len() / PAGE
}

#[test]
fn static_objects_are_placed_before_main() {
    let programs = Programs::build();
    let table = static_object(&programs, 0, "objects", "table", block_cyclic(0, 16));
    let odd = static_object(&programs, 0, "objects", "odd_sized", on_node_0(0));
    // The second rule for the same object, and one for a symbol beyond the module.
    let outside = Rule {
        offset: 1 << 40,
        ..odd
    };
    let weak = Rule {
        flags: RULE_WEAK,
        ..odd
    };
    let run = programs.run(&plan(&programs, [table, weak, odd, outside]), &["static"]);
    assert_eq!(run.policies("table"), alternating(256, 16));
    assert_eq!(
        run.policies("odd_sized"),
        [(pages(&run, "odd_sized"), "prefer:0")]
    );
    // Nothing around it is disturbed.
    let around = run.object("odd_sized").pages();
    let table = run.object("table").pages();
    for page in [around.start - PAGE, around.end] {
        assert!(table.contains(&page) || run.policy(page) == "default");
    }
    assert_eq!(run.rule(0)["objects"], 1);
    assert_eq!(run.rule(0)["pages"], 256);
    assert_eq!(run.rule(0)["missing_node_pages"], 128);
    assert_eq!(
        (&run.rule(1)["weak"], &run.rule(1)["objects"]),
        (&1.into(), &1.into())
    );
    assert!(
        run.rule(2)["objects"].is_null(),
        "the first rule that fits wins"
    );
    assert_eq!(run.rule(3)["outside"], 1);
}

#[test]
fn heap_objects_by_call_site_order_and_size() {
    let programs = Programs::build();
    let runs = Rule {
        placement: placement::RUNS,
        runs: [0, 3],
        ..site(1, RULE)
    };
    let rules = [
        site(0, block_cyclic(0, 100)),
        Rule {
            order: [2, 2],
            ..site(1, on_node_0(0))
        },
        Rule {
            size_bounds_bytes: [8192, u64::MAX],
            ..runs
        },
        site(1, on_node_0(0)),
        Rule {
            size_bounds_bytes: [1 << 40, u64::MAX],
            ..on_node_0(subject::HEAP)
        },
    ];
    let mut tables = plan(&programs, rules);
    let run = |first_page, pages, node| Run {
        first_page,
        pages,
        node,
    };
    tables.runs = vec![
        run(0, 3, u32::from(MISSING)),
        run(5, 2, 0),
        run(9, 1, u32::from(MISSING)),
    ];
    let run = programs.run(&tables, &["heap"]);
    assert_eq!(run.policies("large"), alternating(2048, 100));
    // Runs count from the page of the first byte, most of which may be a neighbour's.
    let object = run.object("small");
    let first = (object.pages().start - object.address / PAGE * PAGE) / PAGE;
    assert_eq!(
        run.policies("small"),
        [
            (5 - first, "default"),
            (4, "prefer:0"),
            (pages(&run, "small") - 9 + first, "default")
        ]
    );
    assert_eq!(
        run.policies("second"),
        [(pages(&run, "second"), "prefer:0")]
    );
    assert_eq!(run.rule(3)["too_small"], 1);
    assert_eq!(
        run.rule(4),
        serde_json::json!({"number": 4}),
        "a rule that matched nothing is there, and says so"
    );
}

#[test]
fn heap_objects_of_any_call_site() {
    let programs = Programs::build();
    let interleave = Rule {
        placement: placement::INTERLEAVE,
        ..on_node_0(subject::HEAP)
    };
    let rules = [
        Rule {
            placement: placement::LEAVE,
            ..site(0, on_node_0(0))
        },
        Rule {
            size_bounds_bytes: [50_000, u64::MAX],
            nodes: [0, 2],
            ..interleave
        },
        Rule {
            order: [0, 0],
            frames: [7, 100],
            ..site(0, on_node_0(0))
        },
    ];
    let run = programs.run(&plan(&programs, rules), &["heap"]);
    assert_eq!(run.policies("large"), [(2048, "default")]);
    assert_eq!(
        run.policies("second"),
        [(pages(&run, "second"), "interleave:0")],
        "over the nodes that are there"
    );
    assert_eq!(run.rule(0)["left"], 1);
    assert!(run.rule(1)["objects"].as_u64() >= Some(2));
    assert_eq!(
        run.rule(2),
        serde_json::json!({"number": 2, "ignored": true}),
        "frames outside the table"
    );
}

#[test]
fn weights_are_layers_over_the_nodes_that_are_there() {
    let programs = Programs::build();
    let mut tables = plan(
        &programs,
        [Rule {
            placement: placement::WEIGHTED_INTERLEAVE,
            weights: [0, 2],
            ..site(0, RULE)
        }],
    );
    tables.weights = vec![
        Weight { node: 0, pages: 3 },
        Weight {
            node: MISSING.into(),
            pages: 1,
        },
    ];
    let run = programs.run(&tables, &["heap"]);
    let layer = |page| match page % 128 {
        0..64 => "interleave:0",
        _ => "prefer:0",
    };
    assert_eq!(run.policies("large"), in_a_row((0..2048).map(layer)));
}

#[test]
fn mappings_are_placed_and_may_be_remapped() {
    let programs = Programs::build();
    let rules = [Rule {
        size_bounds_bytes: [1 << 20, 1 << 20],
        ..block_cyclic(subject::MAPPING, 16)
    }];
    let run = programs.run(&plan(&programs, rules), &["mapping"]);
    assert_eq!(run.policies("mapping"), alternating(256, 16));
    assert_eq!(run.policies("reserved"), alternating(256, 16));
    let run = programs.run(&plan(&programs, rules), &["remap"]);
    assert_eq!(run.words("REMAP"), ["good"]);
    let any = [block_cyclic(subject::MAPPING, 16)];
    let run = programs.run(&plan(&programs, any), &["remap"]);
    assert_eq!(run.words("REMAP"), ["good"]);
    assert_eq!(run.policies("remapped"), alternating(512, 16));
}

#[test]
fn objects_may_be_resized() {
    let programs = Programs::build();
    // The second allocation's call site is `main`.
    let run = programs.run(
        &plan(
            &programs,
            [site(0, block_cyclic(0, 16)), site(2, block_cyclic(0, 10))],
        ),
        &["realloc"],
    );
    assert_eq!(run.words("REALLOC"), ["good"]);
    assert_eq!(run.policies("resized"), alternating(768, 10));
    assert_eq!(run.rule(1)["objects"], 1);
}

#[test]
fn memory_used_again_gets_its_new_objects_placement() {
    let programs = Programs::build();
    let tables = plan(&programs, [site(0, on_node_0(0))]);
    let run = programs.run(&tables, &["reuse", "unplaced"]);
    assert_eq!(run.words("REUSED"), ["1"]);
    assert_eq!(
        run.policies("unplaced"),
        [(pages(&run, "unplaced"), "default")]
    );
    let run = programs.run(&tables, &["reuse"]);
    assert_eq!(
        run.policies("placed"),
        [(pages(&run, "placed"), "prefer:0")]
    );
    assert_eq!(run.rule(0)["objects"], 2);
    assert!(
        run.rule(0)["in_place"].as_u64() >= Some(pages(&run, "placed") as u64 - 1),
        "{}",
        run.rule(0)
    );
}

#[test]
fn pieces_beyond_the_limit_are_interleaved() {
    let programs = Programs::build();
    let mut tables = plan(&programs, [site(0, block_cyclic(0, 2))]);
    tables.mappings_max = 101;
    let run = programs.run(&tables, &["heap"]);
    let mut expected = alternating(2048, 2);
    expected.truncate(99);
    expected.push((2048 - 2 * 99, "interleave:0"));
    assert_eq!(run.policies("large"), expected);
    assert_eq!(run.rule(0)["coarsened"], 1024 - 99);
    assert_eq!(
        run.summaries[0]["mappings"],
        serde_json::json!({"used": 101, "max": 101})
    );
}

#[test]
fn freed_memory_may_be_used_again() {
    let programs = Programs::build();
    let mut tables = plan(&programs, [site(0, block_cyclic(0, 2))]);
    tables.mappings_max = 300;
    for (count, size) in [(1000, "60000"), (100, "1000000")] {
        let run = programs.run(&tables, &["many", &count.to_string(), size]);
        assert_eq!(run.rule(0)["objects"], count, "{}", run.rule(0));
        assert!(run.rule(0)["coarsened"].is_null(), "{}", run.rule(0));
    }
}

#[test]
fn libraries_loaded_later_are_placed() {
    let programs = Programs::build();
    let rule = static_object(
        &programs,
        1,
        "library.so",
        "library_table",
        block_cyclic(0, 8),
    );
    let library = programs.path("library.so");
    let run = programs.run(
        &plan(&programs, [rule]),
        &["dlopen", library.to_str().unwrap()],
    );
    assert_eq!(run.policies("library_table"), alternating(128, 8));
}

#[test]
fn forked_processes_and_new_programs_go_on() {
    let programs = Programs::build();
    let tables = plan(&programs, [site(0, block_cyclic(0, 16))]);
    let run = programs.run(&tables, &["fork"]);
    assert_eq!(run.policies("of_child"), alternating(256, 16));
    assert_eq!(run.summaries.len(), 2, "one line per process");
    let objects = |at: usize| {
        run.summaries[at]["rules"][0]["objects"]
            .as_u64()
            .unwrap_or(0)
    };
    assert_eq!(
        (objects(0), objects(1)),
        (1, 0),
        "the child counts for itself and ends first"
    );
    let run = programs.run(&tables, &["exec"]);
    assert_eq!(run.policies("large"), alternating(2048, 16));
}

#[test]
fn ranks_and_executables_choose_their_section() {
    let programs = Programs::build();
    let mut tables = plan(
        &programs,
        [
            site(0, block_cyclic(0, 16)),
            site(0, block_cyclic(0, 32)),
            site(0, on_node_0(0)),
        ],
    );
    let section = |executable, rank, first| Section {
        executable,
        rank,
        rules: [first, 1],
        pins: [0, 0],
        phases: [0, 0],
    };
    tables.sections = vec![section(0, 1, 0), section(0, NONE, 1), section(1, NONE, 2)];
    let run = programs.run_with(&tables, &["heap"], &[], &[("PMI_RANK", "1")]);
    assert_eq!(run.policies("large"), alternating(2048, 16));
    assert_eq!(
        (&run.summaries[0]["rank"], &run.summaries[0]["executable"]),
        (&1.into(), &"objects".into())
    );
    let run = programs.run_with(&tables, &["heap"], &[], &[("SLURM_PROCID", "0")]);
    assert_eq!(run.policies("large"), alternating(2048, 32));
    tables.sections.drain(..2);
    let run = programs.run(&tables, &["heap"]);
    assert_eq!(run.policies("large"), [(2048, "default")]);
    assert!(
        run.summaries.is_empty(),
        "the plan is about another program"
    );
}

#[test]
fn damaged_plans_are_named_and_do_no_harm() {
    let programs = Programs::build();
    let good = plan(&programs, [site(0, block_cyclic(0, 16))]).encode();
    let file = programs.scratch("damaged");
    for (cut, why) in [
        (4, "shorter than a header"),
        (good.len() - 2, "outside the file"),
    ] {
        std::fs::write(&file, plan_file::bytes(&good[..cut])).unwrap();
        let (shown, complaint) = programs.run_plan_file(&file, &["heap"]);
        assert!(shown.contains("OBJECT large"));
        assert!(
            complaint.contains(why) && complaint.contains("damaged"),
            "{complaint}"
        );
    }
    let (shown, complaint) = programs.run_plan_file(&programs.scratch("absent"), &["heap"]);
    assert!(
        shown.contains("OBJECT large") && complaint.contains("error 2"),
        "{complaint}"
    );
}

#[test]
fn huge_pages_are_units_where_malloc_asks_for_them() {
    let programs = Programs::build();
    let tables = plan(&programs, [site(0, block_cyclic(0, 100))]);
    let run = programs.run_with(
        &tables,
        &["heap"],
        &[],
        &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
    );
    let large = run.object("large");
    let start = large.pages().start;
    // 400 KiB become 2 MiB, at boundaries nearest to those from the object's first byte: its page begins before that, and
    // half-way between two boundaries would lead to the other.
    let huge = 2 << 20;
    let boundary = |k: usize| (large.address + k * huge + huge / 2 - 1) / huge * huge;
    let expected = in_a_row((0..2048).map(|page| {
        let address = start + page * PAGE;
        let block = (0..6).find(|k| address < boundary(k + 1)).unwrap();
        if block % 2 == 0 {
            "prefer:0"
        } else {
            "default"
        }
    }));
    assert_eq!(run.policies("large"), expected);
}
