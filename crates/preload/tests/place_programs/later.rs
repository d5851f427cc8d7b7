//! Placements that begin when the second thread is created.

use nearpage_wire::compact_plan::{RULE_LATER, Rule, placement};

use crate::program::{Programs, Run};
use crate::{alternating, block_cyclic, on_node_0, pages, plan, site, static_object};

/// An object of `allocate_a` and a static one in blocks, and objects of `allocate_b`, all later.
fn rules(programs: &Programs) -> [Rule; 3] {
    let later = |rule: Rule| Rule {
        flags: RULE_LATER,
        ..rule
    };
    [
        later(site(0, block_cyclic(0, 100))),
        later(static_object(
            programs,
            0,
            "objects",
            "table",
            block_cyclic(0, 16),
        )),
        later(site(1, on_node_0(0))),
    ]
}

/// A counter of a rule; 0 where the summary leaves it out.
fn counter(run: &Run, rule: usize, name: &str) -> u64 {
    run.rule(rule)[name].as_u64().unwrap_or(0)
}

const FILLED: usize = 8 << 20;

#[test]
fn what_one_thread_fills_is_placed_when_the_second_is_created() {
    let programs = Programs::build();
    let tables = plan(&programs, rules(&programs));
    let run = programs.run(&tables, &["later", "4"]);
    assert_eq!(run.words("SUM"), [FILLED.to_string()]);
    assert_eq!(run.policies("shared"), alternating(2048, 100));
    assert_eq!(run.policies("table"), alternating(256, 16));
    assert_eq!(
        run.policies("after"),
        alternating(256, 100),
        "from then on at the allocation"
    );
    for (rule, objects, switched, waited) in [(0, 2, 1, 1), (1, 1, 1, 0)] {
        assert_eq!(
            ["objects", "switched", "waited"].map(|name| counter(&run, rule, name)),
            [objects, switched, waited],
            "{}",
            run.rule(rule)
        );
        assert!(counter(&run, rule, "switched_ns") > 0);
        assert!(run.rule(rule)["failures"].is_null(), "{}", run.rule(rule));
    }
    // They had been filled by then, so that their pages were looked for: those planned for this machine's node.
    assert!(
        counter(&run, 0, "in_place") + counter(&run, 0, "moved") >= 1048,
        "{}",
        run.rule(0)
    );
    assert_eq!(
        counter(&run, 1, "in_place") + counter(&run, 1, "moved"),
        128
    );
}

#[test]
fn without_a_second_thread_nothing_is_placed() {
    let programs = Programs::build();
    let tables = plan(&programs, rules(&programs));
    let run = programs.run(&tables, &["later", "0"]);
    for name in ["shared", "table", "after"] {
        assert_eq!(
            run.policies(name),
            [(pages(&run, name), "default")],
            "{name}"
        );
    }
    for (rule, waited) in [(0, 3), (1, 1), (2, 0)] {
        assert_eq!(
            ["waited", "objects", "switched", "pages"].map(|name| counter(&run, rule, name)),
            [waited, 0, 0, 0]
        );
    }
    // An object that waits is given up where the program becomes another one.
    let run = programs.run(&tables, &["exec"]);
    assert_eq!(run.policies("large"), [(2048, "default")]);
    assert_eq!(counter(&run, 0, "waited"), 1);
}

/// Of two shares the first is on node 0, the other on a node that this machine does not have.
#[test]
fn objects_in_shares_are_dealt_anew_where_there_are_others_than_planned() {
    let programs = Programs::build();
    let share = |turn| Rule {
        turn: [turn, 2],
        objects: 8,
        thread: 0,
        placement: placement::NODE,
        nodes: [turn, 1],
        ..site(0, on_node_0(0))
    };
    let tables = plan(&programs, [share(0), share(1)]);
    // As planned; half as many again.
    for (rows, in_first, moved) in [(8, 4, 0), (12, 6, 2)] {
        let run = programs.run(&tables, &["rows", &rows.to_string()]);
        for row in (0..rows + 2).filter(|row| *row != 2) {
            let policy = match row < in_first {
                true => "prefer:0",
                false => "default",
            };
            let name = format!("row{row}");
            assert_eq!(run.policies(&name), [(64, policy)], "{name} of {rows}");
        }
        let counts = |name| [counter(&run, 0, name), counter(&run, 1, name)];
        assert_eq!(counts("switched"), [moved, 0]);
        assert_eq!(counts("waited"), [0, 0]);
        assert_eq!(counts("objects").iter().sum::<u64>(), rows + 2);
        assert_eq!(counts("objects")[0], in_first);
        assert_eq!(run.said, "");
    }
}

#[test]
fn each_process_waits_for_its_own_second_thread() {
    let programs = Programs::build();
    let tables = plan(&programs, rules(&programs));
    let run = programs.run(&tables, &["later_fork", "4"]);
    assert_eq!(run.words("SUM"), [FILLED.to_string()]);
    assert_eq!(run.policies("shared"), alternating(2048, 100));
    assert_eq!(
        run.policies("parents"),
        [(pages(&run, "parents"), "prefer:0")]
    );
    let of = |process: usize, rule: usize, name: &str| {
        run.summaries[process]["rules"][rule][name]
            .as_u64()
            .unwrap_or(0)
    };
    // The child ends first. The parent's object waits in the parent; in the child it is placed.
    assert_eq!([of(0, 0, "switched"), of(0, 1, "switched")], [1, 1]);
    assert_eq!([of(0, 2, "switched"), of(0, 2, "waited")], [1, 0]);
    assert_eq!([of(1, 2, "switched"), of(1, 2, "waited")], [0, 1]);
    assert_eq!(of(1, 1, "waited"), 1, "a static one");
}

#[test]
fn threads_that_are_created_all_at_once_place_nothing_twice() {
    let programs = Programs::build();
    let tables = plan(&programs, rules(&programs));
    for _ in 0..5 {
        let run = programs.run(&tables, &["later_churn"]);
        // 84 threads make 51 objects each.
        assert_eq!(
            ["switched", "waited", "objects"].map(|name| counter(&run, 0, name)),
            [50, 0, 50 + 84 * 51],
            "{}",
            run.rule(0)
        );
        assert_eq!(run.said, "");
    }
}

#[test]
fn a_thread_whose_creation_was_not_seen_counts_once_it_is_met() {
    let programs = Programs::build();
    let tables = plan(&programs, rules(&programs));
    let run = programs.run(&tables, &["later_unseen"]);
    assert_eq!(run.policies("filled"), alternating(256, 100));
    assert_eq!(counter(&run, 0, "switched"), 1);
    assert_eq!(
        ["objects", "switched", "waited"].map(|name| counter(&run, 2, name)),
        [1, 0, 0],
        "what that thread allocates"
    );
}

#[test]
fn objects_are_placed_at_once_where_pages_cannot_be_moved() {
    let programs = Programs::build();
    let tables = plan(&programs, rules(&programs));
    let refuse = programs.path("refuse");
    let run = programs.run_with(&tables, &["later", "2"], &[refuse.to_str().unwrap()], &[]);
    assert_eq!(run.words("SUM"), [FILLED.to_string()]);
    assert_eq!(
        ["objects", "early", "switched", "waited"].map(|name| counter(&run, 0, name)),
        [3, 2, 0, 0],
        "{}",
        run.rule(0)
    );
    assert_eq!(run.said.lines().count(), 1);
    let summary = run.summaries.last().unwrap();
    assert_eq!(
        (&summary["mechanism"], &summary["bind_refused"]),
        (&"touch".into(), &1.into())
    );
}

#[test]
fn objects_left_to_first_touch_wait_for_nothing() {
    let programs = Programs::build();
    let mut rules = rules(&programs);
    rules[0].placement = placement::LEAVE;
    let run = programs.run(&plan(&programs, rules), &["later", "2"]);
    assert_eq!(run.policies("shared"), [(2048, "default")]);
    assert_eq!(
        ["left", "waited", "switched"].map(|name| counter(&run, 0, name)),
        [3, 0, 0]
    );
}
