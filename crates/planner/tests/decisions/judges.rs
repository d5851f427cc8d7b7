//! `auto` with judges that differ from the model.

use super::*;

/// A time so long that nothing is uncertain.
pub const HOURS_NS: f64 = 1e16;

/// Prefers one placement with one start.
pub struct PrefersPlacement {
    pub placement: Placement,
    pub start: Start,
    pub of_samples: bool,
}

/// Margins of a judge that replays, except for accesses that become slower.
const OF_REPLAYS: Margins = Margins {
    plan: 0.005,
    object: 0.001,
    slower: 0.0,
    resized: 1.0 / 3.0,
    of_samples: false,
};

impl Judge for PrefersPlacement {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        let time = |selection: &Selection| {
            let decisions = alternatives.plan(selection, |_| None).decisions;
            let liked =
                |one: &Decision| (&one.placement, one.start) == (&self.placement, self.start);
            match decisions.iter().any(liked) {
                true => 0.5 * HOURS_NS,
                false => (1.0 - 0.01 * decisions.len() as f64) * HOURS_NS,
            }
        };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        Margins {
            of_samples: self.of_samples,
            ..OF_REPLAYS
        }
    }

    fn objects_max(&self) -> usize {
        6
    }
}

#[test]
fn auto_finds_pages_that_are_best_with_whoever_uses_them_next_and_starts_that_samples_cannot_tell()
{
    let mut recording = master_initialised(8, block(), &block_cells());
    recording.attribution.objects[0].affinity.initialisation = vec![filled_by_master()];
    let parameters = Parameters {
        phases: true,
        ..Parameters::default()
    };
    let team = String::new();
    for (placement, start) in [
        (Placement::FirstTouch, Start::SecondThread),
        (Placement::FirstTouch, Start::Parallel),
        (Placement::Block { team }, Start::Parallel),
    ] {
        let found = |of_samples| {
            let mut judge = PrefersPlacement {
                placement: placement.clone(),
                start,
                of_samples,
            };
            recording.with(&opteron(), |input| {
                let Ok(chosen) = choose(input, &parameters, &mut judge);
                chosen.time.planned_ns == 0.5 * HOURS_NS
            })
        };
        assert!(found(false), "{placement} {start:?}");
        assert!(!found(true), "{placement} {start:?}");
    }
}

/// Predicts savings, and costs with an input of another size, as shares of the time.
struct PredictsSavings {
    saved: f64,
    /// Cost of placements other than `wanted`, which stand for the wanted one with an input of another size.
    cost_resized: f64,
    wanted: Placement,
    slower: f64,
}

impl Judge for PredictsSavings {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        let time = |selection: &Selection| {
            let decisions = alternatives.plan(selection, |_| None).decisions;
            let share = match decisions.first().map(|one| &one.placement) {
                None => 0.0,
                Some(placement) if *placement == self.wanted => -self.saved,
                Some(_) => self.cost_resized,
            };
            (1.0 + share) * HOURS_NS
        };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        Margins {
            slower: self.slower,
            ..OF_REPLAYS
        }
    }

    fn objects_max(&self) -> usize {
        6
    }
}

/// Page runs, shares of a used part and blocks of one input's size fit another input only if the pattern grows as the
/// plan's translation assumes.
#[test]
fn auto_leaves_placements_that_would_cost_too_much_in_another_size() {
    let cyclic = Pattern::BlockCyclic {
        team: 0,
        block_bytes: 6 * PAGE,
        period_bytes: 24 * PAGE,
    };
    let half_used = Pattern::PartialBlock {
        team: 0,
        block_bytes: 2 * PAGE,
        part_bytes: 0..16 * PAGE,
    };
    let mixed: Vec<(u32, u32, f32)> = (0..32)
        .map(|page| (page, page / 2 * 5 % 8, 500.0))
        .collect();
    let first_half = (0..16).map(|page| (page, page / 2, 20.0)).collect();
    for (pattern, cells) in [
        (Pattern::Mixed, mixed),
        (cyclic, block_cells()),
        (half_used, first_half),
    ] {
        let recording = master_initialised(8, pattern, &cells);
        let wanted = recording.decide(Policy::Object, &opteron());
        let wanted = only(&wanted).placement.clone();
        let planned = |cost_resized, same_input| {
            let parameters = Parameters {
                same_input,
                ..Parameters::default()
            };
            let mut judge = PredictsSavings {
                saved: 0.06,
                cost_resized,
                wanted: wanted.clone(),
                slower: 0.0,
            };
            recording.with(&opteron(), |input| {
                let Ok(chosen) = choose(input, &parameters, &mut judge);
                chosen.plan.decisions.len()
            })
        };
        assert_eq!(planned(-0.01, false), 1, "{wanted}");
        assert_eq!(planned(0.01, false), 0, "{wanted}");
        assert_eq!(planned(0.01, true), 1, "{wanted}");
    }
}

/// Blocks of six pages save most, and cost more with an input of another size; shares save little, with any size.
struct PenalisesCyclic;

impl Judge for PenalisesCyclic {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        let share = |one: &Decision| match &one.placement {
            Placement::BlockCyclic { block_bytes, .. } if *block_bytes == 6 * PAGE => -0.06,
            Placement::BlockCyclic { .. } => 0.05,
            Placement::Block { .. } => -0.01,
            _ => 0.1,
        };
        let time = |selection: &Selection| {
            let decisions = alternatives.plan(selection, |_| None).decisions;
            (1.0 + decisions.iter().map(share).sum::<f64>()) * HOURS_NS
        };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        OF_REPLAYS
    }

    fn objects_max(&self) -> usize {
        6
    }
}

/// Earlier versions placed nothing in a program with such an array.
#[test]
fn auto_drops_the_decision_that_costs_too_much_in_another_size_and_keeps_the_others() {
    let cyclic = Pattern::BlockCyclic {
        team: 0,
        block_bytes: 6 * PAGE,
        period_bytes: 24 * PAGE,
    };
    let mut recording = master_initialised(8, cyclic, &block_cells());
    recording.object("shares", 32, block(), &block_cells());
    let plan = recording.with(&opteron(), |input| {
        let Ok(chosen) = choose(input, &Parameters::default(), &mut PenalisesCyclic);
        chosen.plan
    });
    let placed: Vec<_> = plan
        .decisions
        .iter()
        .map(|one| (one.name.contains("shares"), one.placement.to_string()))
        .collect();
    assert_eq!(placed, [(true, "block".to_owned())]);
}

/// The search ends early if no simple rule brings the program near the limit.
#[test]
fn auto_gives_up_what_takes_too_long() {
    let recording = master_initialised(8, Pattern::Mixed, &block_cells());
    let tried = std::cell::Cell::new(0);
    let chosen = |limit_ns| {
        let mut judge = Slow { tried: &tried };
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose_within(limit_ns, input, &Parameters::default(), &mut judge);
            chosen.map(|chosen| chosen.time.planned_ns)
        })
    };
    assert_eq!(chosen(0.8 * HOURS_NS), None);
    let simple = tried.replace(0);
    assert_eq!(chosen(0.9 * HOURS_NS), Some(0.9 * HOURS_NS));
    assert!(tried.get() > simple, "{} of {simple}", tried.get());
}

/// Each placement takes a tenth less time, whatever it is.
struct Slow<'a> {
    tried: &'a std::cell::Cell<usize>,
}

impl Judge for Slow<'_> {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        self.tried.set(self.tried.get() + selections.len());
        let time =
            |selection: &Selection| match alternatives.plan(selection, |_| None).decisions.len() {
                0 => HOURS_NS,
                _ => 0.9 * HOURS_NS,
            };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        OF_REPLAYS
    }

    fn objects_max(&self) -> usize {
        6
    }
}

/// Even if all misses went to the nearest node instead of the farthest, the saving would be less than a decision needs.
#[test]
fn decisions_that_cannot_save_enough_are_not_replayed() {
    let decided = |loads_of_small: f32| {
        let mut recording = master_initialised(8, block(), &block_cells());
        let small: Vec<(u32, u32, f32)> = (0..32)
            .map(|page| (page, page / 4, loads_of_small))
            .collect();
        recording.object("small", 32, block(), &small);
        let tried = std::cell::Cell::new(0);
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &Parameters::default(), &mut Slow { tried: &tried });
            (chosen.plan.decisions.len(), tried.get())
        })
    };
    let large = block_cells()[0].2;
    // These are 0.4 and 0.11 % of the latencies, of which 43 % may be saved.
    let [(_, of_both), (alone, of_one)] = [0.004 * large, 0.0011 * large].map(decided);
    assert!(of_one < of_both, "{of_one} of {of_both}");
    assert_eq!(alone, 1);
}

/// The difference of two large sums is the first to change with another input.
#[test]
fn auto_leaves_what_saves_little_of_what_it_makes_slower() {
    // The main thread makes as many accesses as all other threads together.
    let cells = (0..32).flat_map(|page| [(page, 0, 7000.0), (page, 1 + page % 7, 7000.0)]);
    let cells: Vec<(u32, u32, f32)> = cells.collect();
    let recording = master_initialised(8, Pattern::Shared, &cells);
    let planned = |wanted: &Placement, slower| {
        let mut judge = PredictsSavings {
            saved: 0.006,
            cost_resized: 0.0,
            wanted: wanted.clone(),
            slower,
        };
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &Parameters::default(), &mut judge);
            chosen.plan.decisions.len()
        })
    };
    let block = Placement::Block {
        team: String::new(),
    };
    assert_eq!(planned(&block, 0.0), 1);
    // `f64::MAX`: as if the slower accesses outweighed any saving.
    assert_eq!(planned(&block, f64::MAX), 0);
    // Interleaving depends on no input's size.
    assert_eq!(
        planned(&Placement::Interleave { nodes: Vec::new() }, f64::MAX),
        1
    );
}

#[test]
fn code_is_copied_where_a_replay_says_so_and_placed_by_nobody_else() {
    let mut cells = shared_cells(8);
    // Three pages take most of the fetches from nodes other than the main thread's.
    for (page, thread, fetches) in &mut cells {
        if [4, 5, 9].contains(page) && *thread > 0 {
            *fetches = 100_000.0;
        }
    }
    let mut recording = master_initialised(8, Pattern::ReadShared, &cells);
    let mut code = recording.attribution.objects[0].clone();
    code.kind = ObjectKind::Code;
    code.name = ObjectName::Other("cg".to_owned());
    recording.attribution.objects = vec![code];
    let parameters = Parameters {
        replicas: true,
        ..Parameters::default()
    };
    let subjects = |of_samples| {
        let mut judge = PrefersPlacement {
            placement: Placement::Replicate,
            start: Start::Allocation,
            of_samples,
        };
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &parameters, &mut judge);
            let decisions = chosen.plan.decisions.into_iter();
            decisions
                .map(|decision| decision.subject)
                .collect::<Vec<_>>()
        })
    };
    let hot = |pages: &[(u64, u64)]| Subject::Code {
        module: "cg".to_owned(),
        build_id: "aa".to_owned(),
        pages: pages.to_vec(),
    };
    assert_eq!(subjects(false), [hot(&[(4, 2), (9, 1)])]);
    assert_eq!(subjects(true), []);
    for policy in [Policy::Object, Policy::Uniform, Policy::Interleave] {
        assert_eq!(recording.decide(policy, &opteron()).decisions, []);
    }
}

/// A plan file accepts code with `replicate` only.
#[test]
fn code_is_not_left_to_whoever_runs_it_next() {
    let mut recording = master_initialised(8, Pattern::ReadShared, &shared_cells(8));
    let code = &mut recording.attribution.objects[0];
    code.kind = ObjectKind::Code;
    code.name = ObjectName::Other("cg".to_owned());
    code.affinity.initialisation = vec![Cell {
        page: 0,
        thread: ThreadIndex(0),
        loads: 64.0,
        stores: 0.0,
        samples: 64.0,
        cost_ns: 64.0,
    }];
    let parameters = Parameters {
        replicas: true,
        phases: true,
        ..Parameters::default()
    };
    for start in [Start::SecondThread, Start::Parallel] {
        let mut judge = PrefersPlacement {
            placement: Placement::FirstTouch,
            start,
            of_samples: false,
        };
        let decisions = recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &parameters, &mut judge);
            chosen.plan.decisions
        });
        let placements = decisions.iter().map(|decision| &decision.placement);
        assert_eq!(placements.collect::<Vec<_>>(), [&Placement::Replicate]);
    }
}
