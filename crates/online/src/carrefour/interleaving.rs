//! Target node of an interleaved page (§3.2.2).

use crate::draw::Draws;

/// P_migrate of each node: its share of all nodes' MAPTU. A page leaves its node with this probability.
pub fn leave(node_maptu: &[f64]) -> Vec<f64> {
    let sum: f64 = node_maptu.iter().sum();
    let share = |maptu: &f64| if sum > 0.0 { maptu / sum } else { 0.0 };
    node_maptu.iter().map(share).collect()
}

/// P_node of each node: the complement of its P_migrate, over the sum of the complements, which is nodes − 1. Nodes
/// without memory have probability 0.
pub fn arrive(leave: &[f64], memory_nodes: u64) -> Vec<f64> {
    let complement = |(node, share): (usize, &f64)| match memory_nodes >> node & 1 {
        0 => 0.0,
        _ => 1.0 - share,
    };
    let complements: Vec<f64> = leave.iter().enumerate().map(complement).collect();
    let sum: f64 = complements.iter().sum();
    complements
        .iter()
        .map(|complement| if sum > 0.0 { complement / sum } else { 0.0 })
        .collect()
}

/// Draws the target of a page on `home`; `None` if the page stays.
pub fn draw(home: u16, leave: &[f64], arrive: &[f64], draws: &mut Draws) -> Option<u16> {
    if draws.share() >= leave[usize::from(home)] {
        return None;
    }
    let drawn = draws.share();
    let mut sum = 0.0;
    let reached = arrive.iter().position(|share| {
        sum += share;
        drawn < sum
    });
    // Because of rounding, the sum of shares may be just below 1.
    let last = || arrive.iter().rposition(|&share| share > 0.0);
    let node = reached.or_else(last)? as u16;
    (node != home).then_some(node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_loaded_node_gives_its_pages_to_all_others() {
        let leave = leave(&[80.0, 0.0, 0.0, 0.0]);
        assert_eq!(leave, [1.0, 0.0, 0.0, 0.0]);
        let third = 1.0 / 3.0;
        let arrive = arrive(&leave, 0b1111);
        assert_eq!(arrive, [0.0, third, third, third]);
        let mut draws = Draws::new(3);
        let mut went = [0; 4];
        for _ in 0..3000 {
            let node = draw(0, &leave, &arrive, &mut draws).expect("it leaves for certain");
            went[usize::from(node)] += 1;
            assert_eq!(draw(1, &leave, &arrive, &mut draws), None);
        }
        assert_eq!(went[0], 0);
        // The bound is five standard deviations of a binomial distribution of 3000 at a third.
        assert!(
            went[1..]
                .iter()
                .all(|&count: &i32| count.abs_diff(1000) < 130)
        );
    }

    #[test]
    fn probabilities_are_those_of_the_loads() {
        let leave = leave(&[50.0, 30.0, 20.0, 0.0]);
        assert_eq!(leave, [0.5, 0.3, 0.2, 0.0]);
        let close = |found: Vec<f64>, expected: [f64; 4]| {
            found
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-12)
        };
        let by_three = [0.5 / 3.0, 0.7 / 3.0, 0.8 / 3.0, 1.0 / 3.0];
        assert!(close(arrive(&leave, 0b1111), by_three));
        assert!(close(arrive(&leave, 0b0111), [0.25, 0.35, 0.4, 0.0]));
        // Half of node 0's pages are drawn to leave, and one in six of these draws node 0 again.
        let arrive = arrive(&leave, 0b1111);
        let mut draws = Draws::new(1);
        let left = (0..12_000)
            .filter(|_| draw(0, &leave, &arrive, &mut draws).is_some())
            .count();
        assert!(left.abs_diff(5000) < 270, "{left}");
    }

    proptest! {
        #[test]
        fn shares_add_up(maptu in prop::collection::vec(0.0f64..1000.0, 2..9), seed in any::<u64>()) {
            let leave = leave(&maptu);
            let arrive = arrive(&leave, u64::MAX);
            prop_assert!((arrive.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assume!(maptu.iter().sum::<f64>() > 0.0);
            prop_assert!((leave.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let mut draws = Draws::new(seed);
            for home in 0..maptu.len() as u16 {
                let node = draw(home, &leave, &arrive, &mut draws);
                prop_assert!(node.is_none_or(|node| node != home && usize::from(node) < maptu.len()));
            }
        }
    }
}
