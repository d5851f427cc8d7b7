//! Properties of all decisions.

use super::*;

fn any_cells() -> impl Strategy<Value = Vec<(u32, u32, f32)>> {
    prop::collection::btree_map((0u32..12, 0u32..4), 1u32..30, 1..40).prop_map(|cells| {
        cells
            .into_iter()
            .map(|((page, thread), loads)| (page, thread, loads as f32))
            .collect()
    })
}

fn any_pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::Mixed),
        Just(Pattern::Unknown),
        Just(Pattern::Shared),
        Just(Pattern::Block {
            team: 0,
            block_bytes: 3 * PAGE
        }),
        Just(Pattern::BlockCyclic {
            team: 0,
            block_bytes: PAGE,
            period_bytes: 4 * PAGE
        }),
        (0u32..4).prop_map(|thread| Pattern::Private {
            thread: ThreadIndex(thread)
        }),
        // Nonsense that a damaged recording might hold.
        Just(Pattern::Block {
            team: 9,
            block_bytes: 0
        }),
        Just(Pattern::BlockCyclic {
            team: 0,
            block_bytes: 0,
            period_bytes: 0
        }),
        Just(Pattern::Private {
            thread: ThreadIndex(77)
        }),
    ]
}

proptest! {
    /// Each equation is optimal by its own measure: no placement by page beats it by more than the slack, on any
    /// machine.
    #[test]
    fn equations_keep_their_promise(cells in any_cells(), pattern in any_pattern()) {
        let machine = opteron();
        let mut recording = Recording::new(4);
        recording.object("build", 12, pattern, &cells);
        let weights = machine.weights();
        let pages: Vec<[f64; 4]> = (0..12)
            .map(|page| {
                let mut counts = [0.0; 4];
                for cell in cells.iter().filter(|cell| cell.0 == page) {
                    counts[cell.1 as usize] += f64::from(cell.2);
                }
                counts
            })
            .collect();
        let all: f64 = pages.iter().flatten().sum();
        let most_local: f64 = pages.iter().map(|page| page.iter().copied().fold(0.0, f64::max)).sum();
        let least_cost: f64 = pages
            .iter()
            .map(|page| {
                let cost = |memory: usize| (0..4).map(|cpu| page[cpu] * weights[cpu][memory]).sum::<f64>();
                (0..4).map(cost).fold(f64::INFINITY, f64::min)
            })
            .sum();
        let uniform = recording.decide(Policy::Uniform, &machine);
        let effect = only(&uniform).effect;
        prop_assert!(effect.local_after <= most_local / all + 1e-9);
        prop_assert!(effect.local_after >= 0.99 * most_local / all - 1e-9);
        let hops = recording.decide(Policy::HopSensitive, &machine);
        let predicted = recording.predict(&hops, &machine).planned.mean() * all;
        prop_assert!(predicted <= 1.01 * least_cost + 1e-6, "{} against {}", predicted, least_cost);
        prop_assert!(predicted >= least_cost - 1e-6);
    }

    #[test]
    fn decisions_are_total_and_shares_are_shares(cells in any_cells(), pattern in any_pattern(), policy in 0usize..Policy::ALL.len()) {
        for machine in [opteron(), one_node(), preset("amd48").unwrap()] {
            let mut recording = Recording::new(4);
            recording.object("a", 12, pattern.clone(), &cells);
            recording.object("b", 12, pattern.clone(), &cells).first_touches = vec![(3, ThreadIndex(1))];
            let plan = recording.decide(Policy::ALL[policy], &machine);
            let shares: f64 = plan.decisions.iter().map(|decision| decision.effect.cost_share).sum();
            prop_assert!((0.0..=1.0 + 1e-9).contains(&shares));
            for decision in &plan.decisions {
                prop_assert!((0.0..=1.0 + 1e-9).contains(&decision.effect.local_after));
                if let Placement::Runs(runs) = &decision.placement {
                    prop_assert_eq!(runs[0].first_page, 0);
                    prop_assert_eq!(runs.iter().map(|run| run.pages).sum::<u64>(), 12);
                }
            }
            let prediction = recording.predict(&plan, &machine);
            prop_assert_eq!(prediction.objects.len(), 2);
            for outcome in [prediction.first_touch, prediction.interleave, prediction.planned] {
                prop_assert!((0.0..=1.0 + 1e-9).contains(&outcome.local_share));
            }
        }
    }

    /// Renumbered threads only renumber owners, if there are no ties.
    #[test]
    fn renumbering_threads_renumbers_owners(
        loads in prop::collection::hash_set(1u32..100_000, 24),
        order in Just([0u32, 1, 2, 3]).prop_shuffle(),
    ) {
        // All counts differ, so that no tie is broken by number.
        let loads: Vec<u32> = loads.into_iter().collect();
        let cells: Vec<_> = (0..24u32).map(|cell| (cell / 4, cell % 4, loads[cell as usize] as f32)).collect();
        let mut moved: Vec<_> = cells.iter().map(|&(page, thread, loads)| (page, order[thread as usize], loads)).collect();
        moved.sort_by_key(|cell| (cell.0, cell.1));
        let placements = [cells, moved].map(|cells| {
            let mut recording = Recording::new(4);
            recording.object("build", 6, Pattern::Mixed, &cells);
            only(&recording.decide(Policy::Uniform, &one_node())).placement.clone()
        });
        let renumber = |owner: &Owner| match owner {
            Owner::Thread { index, .. } => thread(order[*index as usize]),
            node => node.clone(),
        };
        let expected = match &placements[0] {
            Placement::Whole(owner) => Placement::Whole(renumber(owner)),
            Placement::Runs(runs) => {
                Placement::Runs(runs.iter().map(|r| run(r.first_page, r.pages, renumber(&r.owner))).collect())
            }
            other => other.clone(),
        };
        prop_assert_eq!(&placements[1], &expected);
    }
}
