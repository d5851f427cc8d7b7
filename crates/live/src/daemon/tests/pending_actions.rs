//! Policies learn the results of the moves that they requested.

use super::*;

/// Share of the last thread's pages that are on the thread's node.
fn arrived(world: &World) -> f64 {
    let pages = (300..400).filter_map(|page| world.homes.get(&(page * PAGE)));
    let (there, all) = pages.fold((0, 0), |(there, all), node| {
        (there + u32::from(node.0 == 3), all + 1)
    });
    f64::from(there) / f64::from(all.max(1))
}

#[test]
fn a_page_that_found_its_node_full_is_asked_for_again() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |_| ());
    let mut step = |world: &mut World, free_on_last| {
        let free = FreeMemory {
            nodes: vec![(500, 1000), (500, 1000), (500, 1000), (free_on_last, 1000)],
        };
        program.run(world, 400, blocks);
        let report = daemon
            .step(&mut program.observer, world, &free, SECOND / 2, None)
            .expect("a step");
        report.entry.interval.settled
    };
    let mut settled = Vec::new();
    for _ in 0..5 {
        settled.extend(step(&mut world, 10));
    }
    assert_eq!(arrived(&world), 0.0);
    assert!(settled.iter().filter(|page| page.home == 0).count() >= 100);
    // A page migrates at most once until counters are reset, after ten seconds. The refused migration does not count.
    for _ in 0..4 {
        step(&mut world, 500);
    }
    assert!(arrived(&world) > 0.9, "{}", arrived(&world));
}

#[test]
fn pages_moved_back_are_reported_to_the_policy() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |_| ());
    until_worse(&mut daemon, &mut world, &mut program);
    program.run(&mut world, 300, blocks);
    let report = daemon.after_interval(&mut program, &mut world);
    let settled = &report.entry.interval.settled;
    assert!(settled.len() >= 100, "{}", settled.len());
    assert!(settled.iter().all(|settled| settled.home == 0));
}

/// When a program stores too much for copies, pages that were interleaved instead move to their users again.
#[test]
fn pages_whose_copies_end_are_colocated_again() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("carrefour", &world, |settings| {
        for (name, value) in [("maptu", "0"), ("decision_ns", "1000000000")] {
            assert_eq!(settings.policy.set(name, value), Ok(true));
        }
    });
    let mut log = Vec::new();
    log::append(&mut log, &daemon.head()).expect("written");
    let mut run = |world: &mut World, page: fn(&mut Program, u32) -> (u64, AccessKind)| {
        program.run(world, 800, page);
        let report = daemon.after_interval(&mut program, world);
        log::append(&mut log, &report.entry).expect("written");
        report.entry.processes[0].replications_interleaved
    };
    let shared = |program: &mut Program, _: u32| (program.draw(600), AccessKind::Load);
    let copied: u64 = (0..8).map(|_| run(&mut world, shared)).sum();
    assert!(copied > 400, "{copied}");
    let own = |program: &mut Program, thread: u32| {
        let kind = [AccessKind::Load, AccessKind::Store][program.draw(2) as usize];
        (u64::from(thread) * 150 + program.draw(150), kind)
    };
    for _ in 0..12 {
        run(&mut world, own);
    }
    let homes = world.homes.iter();
    let local = homes.filter(|(page, node)| *page / PAGE / 150 == u64::from(node.0));
    assert!(local.count() > 540);
    replay(&log[..], "log").expect("decided again");
}
