use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, ThreadIndex};
use proptest::prelude::*;

use super::*;
use crate::Copies;

const PAGES: usize = 16;

fn policy(monitor: Monitor, set: &[(&str, &str)]) -> PushPull {
    let mut parameters = PushPullParameters::default();
    for (name, value) in set {
        assert_eq!(parameters.set(name, value), Ok(true), "{name}");
    }
    let setting = Setting {
        nodes: 4,
        pages: PAGES,
        memory_nodes: 0b1111,
        near_memory_nodes: 0b1111,
        cpus_per_node: 0,
        clock_ghz: 1.0,
        every: 1,
        seed: 0,
    };
    PushPull::new(monitor, &parameters, &setting).expect("four nodes")
}

/// Accesses as (page, home, node, count).
type Accesses<'a> = &'a [(u32, u16, u16, u32)];

fn see(policy: &mut PushPull, accesses: Accesses<'_>) {
    for &(page, home, node, count) in accesses {
        for _ in 0..count {
            let observation = Observation {
                page,
                node,
                thread: ThreadIndex(0),
                kind: AccessKind::Load,
                served: Served::Memory,
                copies: Copies::at(home),
                pressure: false,
            };
            let mut actions = Vec::new();
            policy.observe(&observation, &mut actions);
            assert_eq!(actions, [], "decisions at checks only");
        }
    }
}

/// Pages and target nodes of the moves at a check.
fn moved(policy: &mut PushPull, accesses: Accesses<'_>) -> Vec<(u32, u16)> {
    see(policy, accesses);
    let mut actions = Vec::new();
    policy.end_epoch(&Epoch::default(), &mut actions);
    assert!(
        actions
            .iter()
            .all(|action| action.kind == ActionKind::Migrate)
    );
    actions
        .iter()
        .map(|action| (action.page, action.node))
        .collect()
}

#[test]
fn out_u_moves_above_twice_the_mean_over_it() {
    // 3 - 4/4 = 2 is not above 2 x 4/4; 10 - 13/4 is above 2 x 13/4 by a quarter.
    let mut policy = policy(Monitor::OutU, &[]);
    assert_eq!(moved(&mut policy, &[(1, 0, 2, 3), (1, 0, 3, 1)]), []);
    assert_eq!(moved(&mut policy, &[(1, 0, 2, 10), (1, 0, 3, 3)]), [(1, 2)]);
    // Local accesses are not counted.
    assert_eq!(
        moved(&mut policy, &[(1, 0, 0, 500), (1, 0, 3, 1)]),
        [(1, 3)]
    );
    assert_eq!(
        moved(&mut policy, &[]),
        [],
        "counts start afresh at each check"
    );
}

#[test]
fn counts_that_go_on_keep_a_page_where_it_was_used_most() {
    // One remote access moves a page without counts, because local accesses are not counted.
    let (known, once): (Accesses<'_>, Accesses<'_>) = (&[(1, 0, 2, 10)], &[(1, 2, 3, 1)]);
    for (afresh, then) in [("1", vec![(1, 3)]), ("0", vec![])] {
        let mut policy = policy(Monitor::OutU, &[("afresh", afresh)]);
        assert_eq!(moved(&mut policy, known), [(1, 2)]);
        assert_eq!(moved(&mut policy, once), then, "afresh={afresh}");
    }
    // Of 10 + n accesses, n less a quarter of all exceeds half of all from n = 31 on.
    let mut policy = policy(Monitor::OutU, &[("afresh", "0")]);
    assert_eq!(moved(&mut policy, known), [(1, 2)]);
    assert_eq!(moved(&mut policy, &[(1, 2, 3, 30)]), []);
    assert_eq!(
        moved(&mut policy, &[]),
        [],
        "only what was accessed since is looked at"
    );
    assert_eq!(moved(&mut policy, once), [(1, 3)]);
    // After remapping, the number stands for another page.
    policy.forget(1);
    assert_eq!(moved(&mut policy, &[(1, 3, 0, 1)]), [(1, 0)]);
}

#[test]
fn neighbours_count_where_counts_go_on() {
    // Page 4 by itself does not move: 1 - 2/4 < 1.4 x 2/4. Home 0 has four pages, so page 5 counts half: R is 3 for
    // node 1 and 1.5 for node 2, and 3 - 4.5/4 > 0.7. Page 5 has no recent accesses and stays.
    let before = [(5, 0, 1, 4), (5, 0, 2, 1), (8, 0, 0, 1), (12, 0, 0, 1)];
    let since = [(4, 0, 1, 1), (4, 0, 2, 1)];
    for (afresh, expected) in [("1", vec![]), ("0", vec![(4, 1)])] {
        let mut policy = policy(Monitor::OutW, &[("afresh", afresh), ("factor", "1.4")]);
        policy.factor = 3.0;
        assert_eq!(moved(&mut policy, &before), []);
        policy.factor = 1.4;
        assert_eq!(moved(&mut policy, &since), expected, "afresh={afresh}");
    }
    // Node 1 had accessed another remote page once, so the mean is 2.5 instead of 4.
    for (afresh, expected) in [("1", vec![]), ("0", vec![(0, 1)])] {
        let mut policy = policy(Monitor::InW, &[("afresh", afresh), ("factor", "1.4")]);
        assert_eq!(moved(&mut policy, &[(14, 3, 1, 1)]), []);
        assert_eq!(moved(&mut policy, &[(0, 0, 1, 4)]), expected);
    }
    // A remapped page has no counts.
    let mut policy = policy(Monitor::InW, &[("afresh", "0"), ("factor", "1.4")]);
    assert_eq!(moved(&mut policy, &[(14, 3, 1, 1)]), []);
    policy.forget(14);
    assert_eq!(moved(&mut policy, &[(0, 0, 1, 4)]), []);
}

#[test]
fn a_factor_beyond_the_formulas_bound_moves_nothing_on_four_nodes() {
    use Monitor::{InW, OutU, OutULocal, OutW, OutWLocal};
    for (monitor, factors) in [
        (OutU, [("2.99", true), ("3", false)]),
        (OutULocal, [("3.99", true), ("4", false)]),
        // Sums over neighbours exceed the page's own mean by more.
        (OutW, [("2.99", true), ("3.1", true)]),
        (OutWLocal, [("2.99", true), ("3.1", true)]),
        (InW, [("2.99", true), ("3.1", true)]),
    ] {
        for (factor, any) in factors {
            let mut policy = policy(monitor, &[("factor", factor)]);
            // Node 0 often reads two pages of node 3, but hardly those around them.
            let mut accesses = vec![(2, 3, 0, 2), (3, 3, 0, 900), (4, 3, 0, 900), (5, 3, 0, 1)];
            accesses.extend((9..15).map(|page| (page, 3, 0, 1)));
            assert_eq!(
                !moved(&mut policy, &accesses).is_empty(),
                any,
                "{monitor:?} {factor}"
            );
        }
    }
}

#[test]
fn out_w_takes_neighbours_on_the_same_node_into_account() {
    // Page 4 by itself does not move: 1 - 2/4 < 2 x 2/4. Home 0 has four pages, n = 4, so page 5 counts half: R is 1 +
    // 3/2 for node 1 and 1 for node 2, and 2.5 - 3.5/4 > 1.
    let alone = [(4, 0, 1, 1), (4, 0, 2, 1)];
    let others = [(8, 0, 0, 1), (12, 0, 0, 1)];
    let mut with_neighbour = alone.to_vec();
    with_neighbour.extend(others);
    with_neighbour.push((5, 0, 1, 3));
    for (monitor, expected) in [
        (Monitor::OutU, vec![(5, 1)]),
        (Monitor::OutW, vec![(4, 1), (5, 1)]),
    ] {
        assert_eq!(moved(&mut policy(monitor, &[]), &with_neighbour), expected);
    }
    // The neighbour is on another node, so out-w ignores it.
    let mut elsewhere = alone.to_vec();
    elsewhere.extend(others);
    elsewhere.push((5, 3, 1, 3));
    assert_eq!(moved(&mut policy(Monitor::OutW, &[]), &elsewhere), [(5, 1)]);
    // A distance of two pages is n/2 and has no weight, so page 4's R is its own count.
    let mut far = alone.to_vec();
    far.extend(others);
    far.push((6, 0, 1, 3));
    assert_eq!(moved(&mut policy(Monitor::OutW, &[]), &far), [(6, 1)]);
}

#[test]
fn local_variants_compare_with_the_local_count() {
    // The condition 9 - local > 2 x (9 + local)/4 means local < 3.
    for monitor in [Monitor::OutULocal, Monitor::OutWLocal] {
        let mut policy = policy(monitor, &[]);
        assert_eq!(moved(&mut policy, &[(1, 0, 2, 9), (1, 0, 0, 3)]), []);
        assert_eq!(moved(&mut policy, &[(1, 0, 2, 9), (1, 0, 0, 2)]), [(1, 2)]);
    }
}

#[test]
fn in_w_pulls_what_stands_out_of_a_nodes_remote_pages() {
    // Node 1 reads remote page 0 four times and remote page 8 once; n = 2, so there are no neighbours. The mean is 2.5,
    // and 1.5 > factor x 4/4 holds below 1.5.
    let accesses = [(0, 0, 1, 4), (8, 2, 1, 1)];
    for (factor, expected) in [("1.49", vec![(0, 1)]), ("1.5", vec![])] {
        let mut policy = policy(Monitor::InW, &[("factor", factor)]);
        assert_eq!(moved(&mut policy, &accesses), expected);
    }
    // Unlike in out-w, neighbouring pages on different nodes count together.
    let around = [
        (4, 0, 1, 2),
        (4, 0, 2, 1),
        (5, 2, 1, 8),
        (6, 3, 1, 8),
        (14, 3, 1, 1),
    ];
    // For node 1, n = 4. R is 2 + 8/2 = 6, 8 + 2/2 + 8/2 = 13, 8 + 8/2 = 12, and 1; the mean is 8. Page 6: 12 - 8 >
    // factor x 8/4 holds below factor 2. Page 5: 5 > factor x 2 holds below 2.5.
    let mut policy = policy(Monitor::InW, &[]);
    assert_eq!(moved(&mut policy, &around), [(5, 1)]);
}

#[test]
fn in_w_gives_a_page_to_the_first_node_that_checks() {
    let accesses = [(0, 0, 1, 40), (0, 0, 2, 90), (8, 0, 1, 1), (8, 0, 2, 1)];
    let mut policy = policy(Monitor::InW, &[("factor", "0.5")]);
    assert_eq!(
        moved(&mut policy, &accesses),
        [(0, 1)],
        "though node 2 has more"
    );
}

#[test]
fn the_published_factor_moves_pages_on_two_and_three_nodes() {
    for nodes in [2, 3, 4, 8] {
        for monitor in Monitor::ALL {
            let setting = Setting {
                nodes,
                pages: PAGES,
                memory_nodes: u64::MAX,
                near_memory_nodes: u64::MAX,
                cpus_per_node: 0,
                clock_ghz: 1.0,
                every: 1,
                seed: 0,
            };
            let parameters = PushPullParameters::default();
            let mut policy = PushPull::new(monitor, &parameters, &setting).expect("nodes");
            // Node 1 alone reads two pages of node 0 often, and the others hardly.
            let mut accesses = vec![(2, 0, 1, 900), (3, 0, 1, 900)];
            accesses.extend((9..15).map(|page| (page, 0, 1, 1)));
            let moved = moved(&mut policy, &accesses);
            assert!(moved.contains(&(2, 1)), "{monitor:?} on {nodes}: {moved:?}");
        }
    }
    let on = |monitor, nodes| PushPullParameters::default().on(monitor, nodes).factor;
    assert_eq!(on(Monitor::OutU, 2), 2.0 / 3.0);
    assert_eq!(on(Monitor::OutU, 3), 4.0 / 3.0);
    assert_eq!(on(Monitor::OutU, 4), 2.0);
    assert_eq!(on(Monitor::InW, 2), 4.0 / 3.0);
    assert_eq!(on(Monitor::InW, 3), 2.0);
}

#[test]
fn the_factor_follows_the_access_pattern() {
    let mut policy = policy(Monitor::OutU, &[("adaptive", "1")]);
    let stable = [(1, 0, 2, 4), (2, 0, 2, 4)];
    moved(&mut policy, &stable);
    assert_eq!(policy.factor(), 2.0, "nothing is known yet");
    moved(&mut policy, &stable);
    assert_eq!(policy.factor(), 1.75);
    // One page of two changes its dominant node: neither above a half nor below a tenth.
    moved(&mut policy, &[(1, 0, 3, 4), (2, 0, 2, 4)]);
    assert_eq!(policy.factor(), 1.75);
    moved(&mut policy, &[(1, 0, 2, 4), (2, 0, 1, 4)]);
    assert_eq!(policy.factor(), 2.0);
    for node in [1, 2].repeat(20) {
        moved(&mut policy, &[(1, 0, node, 4), (2, 0, node, 4)]);
    }
    assert_eq!(policy.factor(), 3.0, "never above nodes - 1");
    for _ in 0..40 {
        moved(&mut policy, &stable);
    }
    assert_eq!(policy.factor(), 1.0);
}

#[test]
fn parameters_have_their_ranges() {
    let mut parameters = PushPullParameters::default();
    assert_eq!(parameters.set("factor", "2.1"), Ok(true));
    assert_eq!(parameters.set("trigger", "2"), Ok(false));
    for (name, value, message) in [
        (
            "factor",
            "many",
            "factor=many: expected a number from 0 to 63",
        ),
        (
            "factor",
            "NaN",
            "factor=NaN: expected a number from 0 to 63",
        ),
        ("factor", "64", "factor=64: expected a number from 0 to 63"),
        (
            "adaptive",
            "2",
            "adaptive=2: expected a whole number from 0 to 1",
        ),
    ] {
        assert_eq!(parameters.set(name, value).expect_err(name).0, message);
    }
    assert_eq!(parameters.values()[0], ("factor", "2.1".to_owned()));
    let setting = Setting {
        nodes: 1,
        pages: 1,
        memory_nodes: 0b1111,
        near_memory_nodes: 0b1111,
        cpus_per_node: 0,
        clock_ghz: 1.0,
        every: 1,
        seed: 0,
    };
    let error = PushPull::new(Monitor::OutW, &parameters, &setting).expect_err("one node");
    assert!(
        error.0.starts_with("out-w: a machine of one node"),
        "{error}"
    );
}

fn accesses() -> impl Strategy<Value = Vec<(u32, u16, u16, u32)>> {
    // Pages have homes by their numbers.
    let one = (0..PAGES as u32, 0u16..4, 0u32..6);
    prop::collection::vec(
        one.prop_map(|(page, node, count)| (page, (page % 4) as u16, node, count)),
        0..60,
    )
}

proptest! {
    #[test]
    fn weighted_counts_are_exact_however_wide_their_terms(
        shift in 0u32..55,
        pages in prop::collection::btree_map(0u64..256, any::<u32>(), 1..PAGES),
        narrow in any::<bool>(),
        n in 1u64..300,
    ) {
        let mut policy = policy(Monitor::OutW, &[]);
        for (page, (&number, &count)) in pages.iter().enumerate() {
            policy.pages[page].place.number = number << shift;
            policy.counts[4 * page] = if narrow { count % 100 } else { count };
        }
        let group: Vec<u32> = (0..pages.len() as u32).collect();
        let wide = policy.around_in(&group, 0, i128::from(n), i128::from, |sum| sum as f64);
        prop_assert_eq!(policy.around(&group, 0, n), wide);
    }
}

proptest! {
    #[test]
    fn weights_are_those_of_the_formula(accesses in accesses(), n in 1u64..20) {
        let mut policy = policy(Monitor::OutW, &[]);
        see(&mut policy, &accesses);
        let mut group = policy.accessed.clone();
        group.sort_unstable();
        prop_assume!(!group.is_empty());
        for node in 0..4 {
            let found = policy.around(&group, node, n);
            for (&page, found) in group.iter().zip(found) {
                let expected: f64 = group.iter().map(|&other| {
                    let weight = 1.0 - 2.0 * f64::from(other.abs_diff(page)) / n as f64;
                    weight.max(0.0) * f64::from(policy.row(other)[node])
                }).sum();
                prop_assert!((found - expected).abs() < 1e-9, "{found} {expected}");
            }
        }
    }

    #[test]
    fn pages_move_to_remote_nodes_that_used_them(accesses in accesses(), adaptive in 0..2) {
        for monitor in Monitor::ALL {
            let set = [("adaptive", if adaptive == 0 { "0" } else { "1" }), ("factor", "1")];
            let found = moved(&mut policy(monitor, &set), &accesses);
            prop_assert_eq!(&found, &moved(&mut policy(monitor, &set), &accesses));
            for (at, &(page, node)) in found.iter().enumerate() {
                prop_assert!(accesses.iter().any(|&(other, _, _, count)| other == page && count > 0));
                prop_assert_ne!(u32::from(node), page % 4);
                prop_assert!(found[..at].iter().all(|other| other.0 != page), "once");
            }
        }
    }
}
