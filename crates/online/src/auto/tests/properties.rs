//! Properties that hold for any references.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Except for moves back, moves cost no more than the balance beyond the reserve for all pages that are away. The
    /// test computes the balance independently.
    #[test]
    fn moves_never_exceed_the_budget(
        references in prop::collection::vec((0u32..4, 0u16..4, any::<bool>()), 1..3000),
    ) {
        let mut policy = auto();
        policy.migration_budget.balance_ns = 300_000.0;
        let mut homes = [Copies::at(0); 4];
        let mut balance = 300_000.0;
        // All references are in one epoch, without savings. Move times are by thread, one per node.
        let (mut moving, mut longest) = ([0.0f64; 4], 0.0f64);
        for (page, node, store) in references {
            let kind = if store { AccessKind::Store } else { AccessKind::Load };
            let copies = homes[page as usize];
            let mut actions = Vec::new();
            policy.observe(&seen(page, node, kind, copies), &mut actions);
            for action in actions {
                let own = &mut moving[usize::from(node)];
                *own += 20_000.0;
                let price = (*own - longest).max(0.0);
                longest = longest.max(*own);
                let goes_back = action.kind != ActionKind::Replicate && action.node == 0;
                let away = homes.iter().filter(|copies| copies.home != 0).count();
                let reserve = 40_000.0 * (away + 1) as f64;
                prop_assert!(goes_back || balance >= price + reserve);
                balance -= price;
                homes[page as usize] = match action.kind {
                    ActionKind::Replicate => Copies { nodes: copies.nodes | 1 << action.node, ..copies },
                    _ => Copies::at(action.node),
                };
            }
        }
    }

    /// The proposal is the best of all possible actions; of equal ones, a copy or else the last.
    #[test]
    fn the_best_of_all_is_proposed(
        nodes in 2usize..10,
        latencies in prop::collection::vec(1u32..400, 100),
        waits in prop::collection::vec(0u32..300, 10),
        counts in prop::collection::vec(prop_oneof![Just(0u16), Just(7), 0u16..1000], 10),
        (memory_nodes, inhabited, holders) in (any::<u64>(), any::<u64>(), any::<u64>()),
        (node, home, stores) in (0usize..10, 0u16..10, 0u16..2),
    ) {
        let all = (1u64 << nodes) - 1;
        let setting = Setting { nodes, memory_nodes: memory_nodes & all | 3, every: 3, ..SETTING };
        let times = MemoryTimes {
            latency_ns: latencies.chunks(10).take(nodes).map(|row| {
                row[..nodes].iter().map(|&ns| f64::from(ns) / 7.0).collect()
            }).collect(),
            ..times()
        };
        let mut policy = Auto::new(&AutoParameters::default(), &setting, Some(&times)).expect("policy");
        for (wait_ns, ns) in policy.wait_ns[..nodes].iter_mut().zip(waits) {
            *wait_ns = f64::from(ns) / 3.0;
        }
        policy.counts[nodes..2 * nodes].copy_from_slice(&counts[..nodes]);
        policy.inhabited = inhabited;
        policy.pages[1].stores = stores;
        let (node, home) = (node % nodes, home % nodes as u16);
        // Half of the cases have no copies.
        let others = if holders >> 63 == 0 { 0 } else { holders & all };
        let copies = Copies { home, nodes: others | 1 << home };

        // Saving of the observed references if other nodes had served them.
        let saving = |other: &dyn Fn(usize) -> usize| {
            let (mut saved_ns, mut variance) = (0.0, 0.0);
            for (reader, &count) in counts[..nodes].iter().enumerate() {
                if count > 0 && inhabited >> reader & 1 == 1 {
                    let now_ns = policy.loaded(reader, policy.serving(reader, copies));
                    let each_ns = policy.every * (now_ns - policy.loaded(reader, other(reader)));
                    saved_ns += f64::from(count) * each_ns;
                    variance += f64::from(count) * each_ns * each_ns;
                }
            }
            (saved_ns, variance)
        };
        let has_memory = |target: &usize| policy.memory_nodes >> target & 1 == 1;
        let mut all = Vec::new();
        if stores == 0 && has_memory(&node) && !copies.on(node as u16) {
            let serving = |reader| if reader == node { node } else { policy.serving(reader, copies) };
            all.push((ActionKind::Replicate, node, saving(&serving)));
        }
        for target in (0..nodes).filter(has_memory) {
            let unloaded_ns: f64 = counts[..nodes].iter().enumerate().map(|(reader, &count)| {
                let [now_ns, then_ns] = [policy.serving(reader, copies), target]
                    .map(|memory| policy.latency(reader, memory));
                match inhabited >> reader & 1 {
                    1 => f64::from(count) * (now_ns - then_ns),
                    _ => 0.0,
                }
            }).sum();
            let kind = if unloaded_ns > 0.0 { ActionKind::Migrate } else { ActionKind::Interleave };
            all.push((kind, target, saving(&|_| target)));
        }
        let best = all.into_iter().max_by(|(.., a), (.., b)| a.0.total_cmp(&b.0));
        let Proposal { kind, saving, .. } = policy.propose(1, node, copies);
        prop_assert_eq!(Some((kind, saving.node, (saving.saved_ns, saving.variance))), best);
    }
}
