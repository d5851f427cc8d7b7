mod faults;

use proptest::prelude::*;

use super::parse::only_once;
use crate::placement::tests::{name, placement};
use crate::{
    CallSiteFrame, Decision, Effect, OnlineMigration, PageRun, Phase, Placement, Plan,
    PlanPrediction, Program, Start, Subject, Team, ThreadLayout,
};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..1 << 20, 0u64..=i64::MAX as u64]
}

fn subject() -> impl Strategy<Value = Subject> {
    let frame = (name(), "[0-9a-f]{0,40}", number(), name(), any::<u32>()).prop_map(
        |(module, build_id, offset, function, line)| CallSiteFrame {
            module,
            build_id,
            offset,
            function,
            line,
        },
    );
    let bounds = || (any::<u64>(), any::<u64>()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        (name(), name(), "[0-9a-f]{0,40}", number(), number()).prop_map(
            |(symbol, module, build_id, offset, size_bytes)| Subject::Symbol {
                symbol,
                module,
                build_id,
                offset,
                size_bytes
            }
        ),
        (
            prop::collection::vec(frame, 1..4),
            number(),
            prop::option::of((0u32..100, 100u32..)),
            prop::option::of(any::<u32>())
        )
            .prop_map(|(frames, size_bytes, order, thread)| Subject::CallSite {
                frames,
                size_bytes,
                order,
                thread
            }),
        (
            name(),
            "[0-9a-f]{0,40}",
            prop::collection::vec((1u64..99, 1u64..9), 0..4)
        )
            .prop_map(|(module, build_id, runs)| {
                let mut end = 0;
                let pages = runs.into_iter().map(|(gap, count)| {
                    let first = end + gap;
                    end = first + count;
                    (first, count)
                });
                Subject::Code {
                    module,
                    build_id,
                    pages: pages.collect(),
                }
            }),
        (1..=i64::MAX as u64).prop_map(|size_bytes| Subject::BrkHeap { size_bytes }),
        Just(Subject::Unmatched),
        bounds().prop_map(|(size_min_bytes, size_max_bytes)| Subject::Heap {
            size_min_bytes,
            size_max_bytes
        }),
        bounds().prop_map(|(size_min_bytes, size_max_bytes)| Subject::Mapping {
            size_min_bytes,
            size_max_bytes
        }),
    ]
}

/// Runs in ascending order, as a plan has them.
fn ordered(placement: Placement) -> Placement {
    match placement {
        Placement::Runs(runs) => {
            let mut next = 0;
            let run = |run: PageRun| {
                let first_page = next + run.first_page % 3;
                next = first_page + run.pages;
                PageRun { first_page, ..run }
            };
            Placement::Runs(runs.into_iter().map(run).collect())
        }
        other => other,
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "a generator names every field of a plan in one place"
)]
fn plan() -> impl Strategy<Value = Plan> {
    let share = || (0u32..=10_000).prop_map(|share| f64::from(share) / 1e4);
    let sure = (prop::option::of(0u64..1 << 40), prop::option::of(share()));
    let effect = (0u32.., share(), prop::option::of(share()), share(), sure).prop_map(
        |(accesses, cost_share, local_before, local_after, (samples, confidence))| Effect {
            accesses: f64::from(accesses),
            cost_share,
            local_before,
            local_after,
            samples,
            confidence,
        },
    );
    let decision = (
        name(),
        subject(),
        placement(),
        prop::sample::select(vec![
            Start::Allocation,
            Start::SecondThread,
            Start::Parallel,
        ]),
        name(),
        effect,
    )
        .prop_map(|(name, subject, placement, start, why, effect)| Decision {
            name,
            placement: match subject {
                Subject::Code { .. } => Placement::Replicate,
                Subject::Unmatched if !placement.fits_unmatched() => Placement::FirstTouch,
                _ => ordered(placement),
            },
            subject,
            start,
            why,
            effect,
        });
    let threads = (any::<u32>(), any::<u32>());
    let team = (name(), threads, name(), "[0-9a-f]{0,40}", number()).prop_map(
        |(name, (threads, beside), module, build_id, offset)| Team {
            name,
            threads,
            beside,
            module,
            build_id,
            offset,
        },
    );
    let program = (
        name(),
        "[0-9a-f]{0,40}",
        prop::collection::vec(name(), 0..4),
        prop::option::of(any::<u32>()),
    )
        .prop_map(|(executable, build_id, arguments, rank)| Program {
            executable,
            build_id,
            arguments,
            rank,
        });
    (
        program,
        name(),
        name(),
        (0u32..40).prop_map(|shift| 1u64 << shift),
        prop::option::of(prop::sample::select(ThreadLayout::ALL.to_vec())),
        prop::option::of(prop::collection::btree_map(name(), number(), 0..3)),
        prop::collection::vec(team, 0..3),
        prop::collection::vec(decision, 0..5),
    )
        .prop_map(
            |(
                program,
                policy,
                machine,
                page_bytes,
                threads,
                online_migration,
                teams,
                mut decisions,
            )| {
                let predicted = decisions.first().map(|first: &Decision| PlanPrediction {
                    local_before: first.effect.cost_share,
                    local_after: first.effect.local_after,
                    first_touch_ns: first.effect.local_before.map(|_| first.effect.accesses),
                    planned_ns: first
                        .effect
                        .local_before
                        .map(|_| 2.0 * first.effect.accesses),
                    all_threads_change: first.effect.local_before.map(|before| [-before, 0.5]),
                });
                let mut seen = Vec::new();
                decisions.retain(|decision: &Decision| {
                    let what = only_once(&decision.subject);
                    let is_again = what.is_some() && seen.contains(&what);
                    seen.push(what);
                    !is_again
                });
                // Decisions about objects may also be part of a phase.
                let begins = |decision: &Decision| {
                    let kind = &decision.subject;
                    let is_object = !matches!(
                        kind,
                        Subject::Code { .. } | Subject::BrkHeap { .. } | Subject::Unmatched
                    );
                    let phase = || Phase {
                        function: decision.name.clone(),
                        module: program.executable.clone(),
                        build_id: program.build_id.clone(),
                        offset: page_bytes,
                        size_bytes: page_bytes / 2,
                        threads: (0..page_bytes.ilog2() % 4).rev().collect(),
                        decisions: vec![Decision {
                            start: Start::Allocation,
                            ..decision.clone()
                        }],
                    };
                    is_object.then(phase)
                };
                let phases = decisions.iter().skip(2).filter_map(begins).collect();
                Plan {
                    program,
                    policy,
                    machine,
                    page_bytes,
                    threads,
                    predicted,
                    teams,
                    decisions,
                    online_migration: online_migration
                        .map(|parameters| OnlineMigration { parameters }),
                    phases,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn survives_writing(plan in plan()) {
        let text = plan.to_toml();
        let again = Plan::from_toml(&text, "plan.toml").map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(&again, &plan);
        prop_assert_eq!(again.to_toml(), text);
    }

    #[test]
    fn damage_is_an_error_and_no_panic(plan in plan(), cut: prop::sample::Index, junk in "\\PC{0,3}") {
        let text = plan.to_toml();
        let mut at = cut.index(text.len() + 1);
        while !text.is_char_boundary(at) { at -= 1; }
        let _ = Plan::from_toml(&text[..at], "cut");
        let _ = Plan::from_toml(&format!("{}{junk}{}", &text[..at], &text[at..]), "junk");
    }
}

const SMALL: &str = r#"version = 1
[program]
executable = "cg"

[[object]]
name = "cvar"
symbol = "cvar"
placement = "block-cyclic:20M"
"#;

#[test]
fn a_plan_written_by_hand_needs_little() {
    let plan = Plan::from_toml(SMALL, "p").expect("plan");
    assert_eq!(plan.page_bytes, 4096);
    assert_eq!(plan.threads, None);
    assert_eq!(plan.decisions.len(), 1);
}

#[test]
fn where_threads_run_is_written_only_where_a_plan_says_it() {
    let mut plan = Plan::from_toml(SMALL, "p").expect("plan");
    let silent = plan.to_toml();
    assert!(!silent.contains("threads"), "{silent}");
    for (layout, line) in [
        (ThreadLayout::Compact, "threads = \"compact\"\n"),
        (ThreadLayout::Scatter, "threads = \"scatter\"\n"),
    ] {
        plan.threads = Some(layout);
        let said = plan.to_toml();
        assert_eq!(said.replacen(line, "", 1), silent);
        assert!(
            said.contains(&format!("page_bytes = 4096\n{line}\n[program]")),
            "{said}"
        );
        assert_eq!(Plan::from_toml(&said, "p").expect("again"), plan);
    }
}

const PAGE: &str = include_str!("../../../../docs/reference/plan-file.md");

#[test]
fn plans_of_the_reference_can_be_read() {
    let blocks = PAGE.split("```toml\n").skip(1);
    let plans = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let mut read = 0;
    for plan in plans {
        Plan::from_toml(plan, "plan-file.md").expect(plan);
        read += 1;
    }
    assert_eq!(read, 2);
}

#[test]
fn the_reference_has_every_key() {
    let program = "version = 1\n[program]\nexecutable = \"a\"\n";
    for table in [
        "",
        "[program]",
        "[predicted]",
        "[[team]]",
        "[[object]]",
        "[[object]]\ncall_site = [{ nothing = 1 }]",
        "[[object]]\npredicted = { nothing = 1 }",
        "[[phase]]",
    ] {
        let text = match table {
            "" => format!("nothing = 1\n{program}"),
            "[program]" => format!("{program}nothing = 1\n"),
            _ if table.contains("nothing") => format!("{program}{table}\n"),
            _ => format!("{program}{table}\nnothing = 1\n"),
        };
        let error = Plan::from_toml(&text, "p").expect_err("an unknown key");
        let error = error.to_string();
        let (_, expected) = error.split_once("expected").expect(&error);
        let keys: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(!keys.is_empty(), "{error}");
        for key in keys {
            let is_there = PAGE.contains(&format!("`{key}`")) || PAGE.contains(&format!("[{key}]"));
            assert!(is_there, "{table}: the page lacks {key}");
        }
    }
}

#[test]
fn keys_of_version_0_1_are_read() {
    let plan = |online_migration: &str, rest: &str| {
        let text = format!(
            "version = 1\n[program]\nexecutable = \"a\"\n[{online_migration}]\nbudget_permille = 10\n\
             [[object]]\n{rest} = true\nplacement = \"node:1\"\n"
        );
        Plan::from_toml(&text, "p").expect(&text)
    };
    let now = plan("online_migration", "unmatched");
    assert_eq!(plan("live", "rest"), now);
    let written = now.to_toml();
    assert!(written.contains("[online_migration]") && written.contains("unmatched = true"));
}
