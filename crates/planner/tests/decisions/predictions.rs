//! Predictions for plans.

use super::*;

/// Initialising stores were once missing from the traffic.
#[test]
fn the_traffic_adds_up_to_the_prediction() {
    let mut recording = master_initialised(8, block(), &block_cells());
    recording.attribution.objects[0].affinity.initialisation = vec![filled_by_master()];
    let machine = opteron();
    let plan = recording.decide(Policy::Object, &machine);
    let prediction = recording.predict(&plan, &machine);
    let flows = recording.with(&machine, |input| traffic(&plan, input, &prediction));
    for (flows, expected) in [
        (flows.first_touch, prediction.first_touch),
        (flows.plan, prediction.planned),
    ] {
        let all: f64 = flows.iter().flatten().sum();
        let local: f64 = (0..4).map(|node| flows[node][node]).sum();
        assert!((all - prediction.accesses).abs() < 1e-6, "{flows:?}");
        assert!(
            (local / all - expected.local_share).abs() < 1e-6,
            "{flows:?}"
        );
    }
}

/// The main thread writes all of an object, then every thread reads its share. In a short program, half of the accesses
/// are the main thread's stores: local under first touch, and mostly remote under the plan.
#[test]
fn predictions_count_the_stores_that_initialise() {
    let mut recording = Recording::new(4);
    let cells: Vec<(u32, u32, f32)> = (0..4).map(|page| (page, page, 100.0)).collect();
    let pattern = Pattern::Block {
        team: 0,
        block_bytes: PAGE,
    };
    let group = recording.object("build", 4, pattern, &cells);
    let store = |page| Cell {
        page,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 100.0,
        samples: 100.0,
        cost_ns: 1e8,
    };
    group.affinity.initialisation = (0..4).map(store).collect();
    group.stores.count = 400.0;
    group.threads[0].2 = 400.0;
    let plan = recording.decide(Policy::Object, &opteron());
    assert_eq!(
        only(&plan).placement,
        Placement::Block {
            team: String::new()
        }
    );
    let prediction = recording.predict(&plan, &opteron());
    assert_eq!(prediction.accesses, 800.0);
    // First touch: all stores and a quarter of the loads are local; plan: a quarter of the stores and all loads.
    assert_eq!(prediction.first_touch.local_share, 500.0 / 800.0);
    assert_eq!(prediction.planned.local_share, 500.0 / 800.0);
    assert_eq!(prediction.interleave.local_share, 200.0 / 800.0);
}

/// Threads fill blocks of four pages in turn, and few of their faults were sampled. Pages between two faults once went
/// with the first fault, so that a quarter looked local where all were.
#[test]
fn between_faults_that_were_seen_owners_touched_their_pages_first() {
    const PAGES: u32 = 4096;
    let pattern = Pattern::BlockCyclic {
        team: 0,
        block_bytes: 4 * PAGE,
        period_bytes: 32 * PAGE,
    };
    let owner = |page: u32| page / 4 % 8;
    let cells: Vec<(u32, u32, f32)> = (0..PAGES).map(|page| (page, owner(page), 10.0)).collect();
    let local_share = |faults: &mut dyn Iterator<Item = u32>, toucher: &dyn Fn(u32) -> u32| {
        let mut recording = Recording::new(8);
        recording
            .object("build", PAGES, pattern.clone(), &cells)
            .first_touches = faults
            .map(|page| (page, ThreadIndex(toucher(page))))
            .collect();
        let plan = recording.decide(Policy::Interleave, &opteron());
        let prediction = recording.predict(&plan, &opteron());
        prediction.first_touch.local_share
    };
    let seen = local_share(&mut (0..PAGES).step_by(61), &owner);
    assert!(seen > 0.99, "{seen}");
    // One thread filled all pages.
    let filled = local_share(&mut (0..PAGES).step_by(61), &|_| 0);
    assert!(filled < 0.3, "{filled}");
    // One fault per huge page: the thread that comes first touches all of the huge page.
    let huge = local_share(&mut (3..PAGES).step_by(517), &owner);
    assert!(huge < 0.4, "{huge}");
}
