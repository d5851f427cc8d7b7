//! What no rule for an object places. One node is enough to see who has which policy; where pages go is
//! seen in the guest (`tests/tests/all/guest.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use nearpage_wire::compact_plan::{NONE, RULE_LATER, Rule, Section, mechanism, placement, subject};

use crate::on_node_0;
use crate::plan_file::{RULE, Tables, module};
use crate::program::{Programs, Run};

const DEFAULT: i64 = 0;
const PREFERRED: i64 = 1;
const LOCAL: i64 = 4;
const STATIC_NODES: i64 = 1 << 15;
/// What is set over node 0, marked.
const INTERLEAVE: i64 = 3 | STATIC_NODES;

/// A rule about unmatched memory; large heap objects are left to first touch, smaller ones on node 0.
fn rules(rest: Rule) -> Vec<Rule> {
    let heap = |at_least, rule: Rule| Rule {
        size_bounds_bytes: [at_least, u64::MAX],
        ..rule
    };
    vec![
        Rule {
            subject: subject::UNMATCHED,
            ..rest
        },
        heap(
            8 << 20,
            Rule {
                placement: placement::LEAVE,
                ..on_node_0(subject::HEAP)
            },
        ),
        heap(1 << 20, on_node_0(subject::HEAP)),
    ]
}

fn interleave() -> Rule {
    Rule {
        placement: placement::INTERLEAVE,
        nodes: [0, 1],
        ..RULE
    }
}

/// A plan for every process, or for the program alone.
fn plan(rules: Vec<Rule>, of_the_program: bool) -> Tables {
    let mut names = Vec::new();
    let modules = vec![module(&mut names, &[], b"rest")];
    let rules: Vec<Rule> = (0..)
        .zip(rules)
        .map(|(number, rule)| Rule { number, ..rule })
        .collect();
    Tables {
        sections: vec![Section {
            executable: if of_the_program { 0 } else { NONE },
            rank: NONE,
            rules: [0, rules.len() as u32],
            pins: [0, 0],
            phases: [0, 0],
        }],
        modules,
        names,
        rules,
        nodes: vec![0, crate::MISSING],
        ..Tables::default()
    }
}

fn other(programs: &Programs) -> PathBuf {
    programs.path("other")
}

fn run(programs: &Programs, tables: &Tables, what: &str, before: &[&str]) -> Run {
    let other = other(programs);
    let arguments = [what, other.to_str().unwrap()];
    programs.run_program(tables, "rest", &arguments, before, &[])
}

/// What is shown, by name.
fn policies(run: &Run) -> BTreeMap<&str, i64> {
    let lines = run
        .shown
        .lines()
        .filter_map(|line| line.strip_prefix("POLICY ")?.split_once(' '));
    lines
        .map(|(name, mode)| (name, mode.parse().unwrap()))
        .collect()
}

fn expect(run: &Run, expected: &[(&str, i64)]) {
    assert_eq!(
        policies(run),
        expected.iter().copied().collect(),
        "{}{}",
        run.shown,
        run.said
    );
}

#[test]
fn the_process_has_a_policy_and_objects_of_other_rules_have_theirs() {
    let programs = Programs::build();
    for (rest, mode) in [
        (interleave(), INTERLEAVE),
        (on_node_0(0), PREFERRED | STATIC_NODES),
    ] {
        let run = run(&programs, &plan(rules(rest), false), "objects", &[]);
        expect(
            &run,
            &[
                ("main", mode),
                ("main_stack", LOCAL),
                ("small", DEFAULT),
                ("left", LOCAL),
                ("placed", PREFERRED),
                ("unnamed", DEFAULT),
            ],
        );
        assert_eq!(
            run.rule(0),
            serde_json::json!({"number": 0, "unmatched": "set"}),
            "nothing went wrong"
        );
        assert_eq!(run.rule(1)["left"], 2);
        assert_eq!(run.said, "");
    }
}

#[test]
fn what_is_touched_is_bound_so_that_the_touching_thread_decides() {
    let programs = Programs::build();
    let mut rules = rules(interleave());
    rules[2].nodes = [0, 2];
    rules[2].placement = placement::BLOCK;
    let tables = plan(rules.clone(), false);
    let placed = |tables: &Tables| policies(&run(&programs, tables, "objects", &[]))["placed"];
    assert_eq!(
        placed(&tables),
        LOCAL,
        "a share of a node that is not there"
    );
    rules[2] = Rule {
        size_bounds_bytes: rules[2].size_bounds_bytes,
        ..on_node_0(subject::HEAP)
    };
    let tables = Tables {
        mechanism: mechanism::TOUCH,
        ..plan(rules, false)
    };
    assert_eq!(placed(&tables), LOCAL);
}

#[test]
fn stacks_stay_local_and_threads_follow() {
    let programs = Programs::build();
    let run = run(&programs, &plan(rules(interleave()), false), "threads", &[]);
    let mut expected = vec![("creator", INTERLEAVE), ("own", LOCAL)];
    for name in ["plain", "cached", "given"] {
        expected.extend([
            (&*format!("{name}_thread").leak(), INTERLEAVE),
            (&*format!("{name}_stack").leak(), LOCAL),
            (&*format!("{name}_storage").leak(), LOCAL),
        ]);
    }
    // The program's choice is the program's.
    expected.extend([
        ("of_own_thread", LOCAL),
        ("of_own_stack", LOCAL),
        ("of_own_storage", LOCAL),
        ("below_given", DEFAULT),
        ("above_given", DEFAULT),
    ]);
    expect(&run, &expected);
}

#[test]
fn programs_that_are_started_do_not_have_it() {
    let programs = Programs::build();
    let launched = [
        "posix_spawn",
        "posix_spawnp",
        "system",
        "popen",
        "fork_execv",
        "vfork_execl",
        "second_try",
    ];
    let tables = plan(rules(interleave()), true);
    let started = run(&programs, &tables, "starts", &[]);
    let mut expected = vec![("forked", INTERLEAVE), ("launcher", INTERLEAVE)];
    expected.extend(launched.map(|way| (way, DEFAULT)));
    expect(&started, &expected);

    // What the user chose comes through.
    let under = programs.path("under");
    let started = run(&programs, &tables, "starts", &[under.to_str().unwrap()]);
    let mut expected = vec![("forked", INTERLEAVE), ("launcher", INTERLEAVE)];
    expected.extend(launched.map(|way| (way, PREFERRED)));
    expect(&started, &expected);
}

#[test]
fn a_policy_inherited_by_a_bare_exec_is_removed() {
    let programs = Programs::build();
    let tables = plan(rules(interleave()), true);
    let bare = |environment: &[(&str, &str)]| {
        let other = other(&programs);
        let arguments = ["bare", other.to_str().unwrap()];
        let run = programs.run_program(&tables, "rest", &arguments, &[], environment);
        policies(&run)["bare"]
    };
    assert_eq!(bare(&[]), DEFAULT);
    assert_eq!(bare(&[("NEARPAGE_POLICY", "3:0")]), 3);
    let for_all = plan(rules(interleave()), false);
    let kept = run(&programs, &for_all, "bare", &[]);
    assert_eq!(policies(&kept)["bare"], INTERLEAVE, "it has the rule too");
    // Left to first touch: as without a rule.
    let left = Rule {
        placement: placement::LEAVE,
        ..RULE
    };
    let left = run(&programs, &plan(rules(left), false), "objects", &[]);
    assert_eq!(
        (policies(&left)["main"], policies(&left)["left"]),
        (DEFAULT, DEFAULT)
    );
    assert_eq!(left.rule(0)["unmatched"], "left");
}

#[test]
fn a_program_goes_on_as_before_where_its_exec_fails() {
    let programs = Programs::build();
    let run = run(&programs, &plan(rules(interleave()), true), "failing", &[]);
    expect(&run, &[("failed_exec", INTERLEAVE)]);
}

#[test]
fn unmatched_memory_waits_for_the_second_thread() {
    let programs = Programs::build();
    let later = Rule {
        flags: RULE_LATER,
        ..interleave()
    };
    let tables = plan(rules(later), false);
    let chosen = run(&programs, &tables, "chosen", &[]);
    assert_eq!(
        ["creator", "chosen_thread"].map(|name| policies(&chosen)[name]),
        [LOCAL, LOCAL],
        "the program's choice"
    );
    let run = run(&programs, &tables, "later", &[]);
    let mut expected = vec![
        ("alone", DEFAULT),
        ("main_stack", LOCAL),
        ("small", DEFAULT),
        ("left", LOCAL),
        ("placed", PREFERRED),
        ("unnamed", DEFAULT),
        ("alone_child", DEFAULT),
        ("still_alone", DEFAULT),
        ("creator", INTERLEAVE),
        ("child_of_many", DEFAULT),
    ];
    for name in ["child", "second", "own_second"] {
        expected.extend([
            (&*format!("{name}_thread").leak(), INTERLEAVE),
            (&*format!("{name}_stack").leak(), LOCAL),
            (&*format!("{name}_storage").leak(), LOCAL),
        ]);
    }
    expect(&run, &expected);
    let rest = run.rule(0);
    assert_eq!(rest["unmatched"], "set");
    assert_eq!(rest["switched"], 1);
    // On one node every page is in place; those of 3000 small objects were looked for, at least.
    assert!(rest["in_place"].as_u64().unwrap() >= 700, "{rest}");
    assert!(rest["failures"].is_null(), "{rest}");
}

#[test]
fn an_object_that_waits_is_local_while_unmatched_memory_is_spread() {
    let programs = Programs::build();
    let mut rules = rules(interleave());
    rules[2].flags = RULE_LATER;
    let run = run(&programs, &plan(rules, false), "objects", &[]);
    assert_eq!(policies(&run)["placed"], LOCAL);
    assert_eq!(run.rule(2)["waited"], 1);
}

#[test]
fn where_policies_are_refused_the_program_goes_on_and_it_is_said() {
    let programs = Programs::build();
    let refuse = programs.path("refuse");
    let refuse = refuse.to_str().unwrap();
    // Not of the program that installs the filter.
    let tables = plan(rules(interleave()), true);
    let run = programs.run_program(&tables, "rest", &["objects"], &[refuse], &[]);
    assert!(run.shown.contains("POLICY main"), "{}", run.shown);
    assert_eq!(run.said.lines().count(), 1, "{}", run.said);
    let rest = run.rule(0);
    assert_eq!(rest["unmatched"], "failed");
    assert_eq!(
        rest["failures"],
        serde_json::json!([{"call": "mbind", "errno": 1, "count": 1}])
    );

    let mut missing = rules(interleave());
    missing[0].nodes = [1, 1];
    let run = programs.run_program(&plan(missing, false), "rest", &["objects"], &[], &[]);
    assert_eq!(policies(&run)["main"], DEFAULT);
    assert_eq!(
        policies(&run)["left"],
        DEFAULT,
        "nothing is to be kept apart"
    );
    assert!(run.said.contains("none of its nodes"), "{}", run.said);
    assert_eq!(
        run.rule(0)["failures"],
        serde_json::json!([{"call": "set_mempolicy", "errno": 22, "count": 1}])
    );

    let policy = programs.path("refuse_policy");
    let policy = policy.to_str().unwrap();
    let run = programs.run_program(&tables, "rest", &["objects"], &[policy], &[]);
    assert_eq!(policies(&run)["main"], DEFAULT);
    assert_eq!(policies(&run)["placed"], PREFERRED, "objects are placed");
    assert_eq!(run.said.matches("set_mempolicy gives error 1").count(), 1);
    assert_eq!(run.rule(0)["unmatched"], "failed");
}
