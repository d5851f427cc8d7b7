//! The heap that `brk` extends: pages by their distance from its start, as it grows.

use nearpage_wire::compact_plan::{NONE, RULE_LATER, Rule, Section, placement, subject};

use crate::plan_file::{RULE, Tables};
use crate::program::{PAGE, Programs, Run};
use crate::{MISSING, alternating, block_cyclic, on_node_0};

/// So much of the heap, and large objects in it.
const PLANNED_PAGES: usize = 512;

fn brk_heap(rule: Rule) -> Rule {
    Rule {
        subject: subject::BRK_HEAP,
        size_bytes: (PLANNED_PAGES * PAGE) as u64,
        ..rule
    }
}

fn everywhere() -> Rule {
    Rule {
        size_bytes: 1 << 40,
        placement: placement::INTERLEAVE,
        nodes: [0, 1],
        ..brk_heap(RULE)
    }
}

/// A rule about heap objects of 20 pages and more.
fn large(rule: Rule) -> Rule {
    Rule {
        subject: subject::HEAP,
        size_bounds_bytes: [20 * PAGE as u64, u64::MAX],
        ..rule
    }
}

fn plan(rules: &[Rule]) -> Tables {
    let rules = (0..).zip(rules);
    let rules: Vec<Rule> = rules
        .map(|(number, rule)| Rule { number, ..*rule })
        .collect();
    Tables {
        sections: vec![Section {
            executable: NONE,
            rank: NONE,
            rules: [0, rules.len() as u32],
            pins: [0, 0],
            phases: [0, 0],
        }],
        rules,
        nodes: vec![0, MISSING],
        ..Tables::default()
    }
}

fn run(programs: &Programs, rules: &[Rule], what: &str) -> Run {
    programs.run_program(&plan(rules), "heap", &[what], &[], &[])
}

#[test]
fn the_growing_heap_is_placed_up_to_the_planned_size() {
    let programs = Programs::build();
    for what in ["", "trim"] {
        let run = run(&programs, &[brk_heap(block_cyclic(0, 16))], what);
        let pages = run.object("heap").pages().len() / PAGE;
        assert!(pages > PLANNED_PAGES + 300, "{pages}");
        let mut expected = alternating(PLANNED_PAGES, 16);
        // The last one is another node's already.
        expected.last_mut().unwrap().0 += pages - PLANNED_PAGES;
        assert_eq!(run.policies("heap"), expected, "{what}");
        let rule = run.rule(0);
        assert_eq!(rule["objects"], 1, "{rule}");
        assert!(rule["pages"].as_u64().unwrap() >= PLANNED_PAGES as u64);
        assert_eq!(rule["no_room"].as_u64(), None);
        if what.is_empty() {
            // What was touched before it was looked at is on this machine's only node.
            assert!(rule["in_place"].as_u64().unwrap() > 0, "{rule}");
            assert_eq!(rule["pages"], PLANNED_PAGES);
        }
        assert_eq!(run.said, "");
    }
}

#[test]
fn an_object_with_a_place_of_its_own_keeps_it_and_gives_it_back() {
    let programs = Programs::build();
    let rules = [everywhere(), large(on_node_0(0))];
    let later = Rule {
        flags: RULE_LATER,
        ..everywhere()
    };
    for (heap, what, expected) in [
        (rules[0], "", "prefer:0"),
        (later, "thread", "prefer:0"),
        (rules[0], "free", "interleave:0"),
    ] {
        let run = run(&programs, &[heap, rules[1]], what);
        let object = run.object("large");
        assert_eq!(
            run.policy(object.address + object.size / 2),
            expected,
            "{what}"
        );
        let start = run.object("heap").address;
        for page in [start, start + 100 * PAGE, start + 900 * PAGE] {
            assert_eq!(run.policy(page), "interleave:0", "{what}");
        }
        assert_eq!(run.said, "");
    }
}

#[test]
fn objects_of_the_heap_left_to_first_touch_are_local() {
    let programs = Programs::build();
    let left = Rule {
        placement: placement::LEAVE,
        ..large(RULE)
    };
    let kept = run(&programs, &[everywhere(), left], "");
    let object = kept.object("large");
    assert_eq!(kept.policy(object.address + object.size / 2), "local");
    // And so is all of it where unmatched memory is spread.
    let heap = Rule {
        placement: placement::LEAVE,
        ..brk_heap(RULE)
    };
    let rest = Rule {
        subject: subject::UNMATCHED,
        ..everywhere()
    };
    let run = run(&programs, &[heap, rest], "");
    let start = run.object("heap").address;
    assert_eq!(run.policy(start), "local");
    assert_eq!(run.policy(start + (PLANNED_PAGES - 1) * PAGE), "local");
    let beyond = run.policy(start + (PLANNED_PAGES + 100) * PAGE);
    assert!(beyond.starts_with("interleave"), "{beyond}");
    assert_eq!(run.rule(0)["left"], 1);
}

#[test]
fn until_a_second_thread_is_created_a_later_rule_leaves_it_alone() {
    let programs = Programs::build();
    let rule = brk_heap(Rule {
        flags: RULE_LATER,
        ..block_cyclic(0, 16)
    });
    let alone = run(&programs, &[rule], "");
    let policies = alone.policies("heap");
    assert_eq!(policies.len(), 1, "{policies:?}");
    assert_eq!(policies[0].1, "default");
    assert_eq!(alone.rule(0)["objects"].as_u64(), None);
    let run = run(&programs, &[rule], "thread");
    assert_eq!(
        run.policies("heap")[..31],
        alternating(PLANNED_PAGES, 16)[..31]
    );
    assert_eq!(run.rule(0)["switched"], 1);
    assert!(run.rule(0)["in_place"].as_u64().unwrap() >= 256);
}

#[test]
fn the_heap_is_left_and_counted_where_policies_are_refused() {
    let programs = Programs::build();
    let refuse = programs.path("refuse");
    let tables = plan(&[everywhere()]);
    let run = programs.run_program(&tables, "heap", &[""], &[refuse.to_str().unwrap()], &[]);
    let rule = run.rule(0);
    assert!(rule["untouched"].as_u64().unwrap() > 900, "{rule}");
    assert!(run.said.contains("refused"), "{}", run.said);
}
