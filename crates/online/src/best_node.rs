//! The node that serves a page's accesses best: Marathe, Thakkar and Mueller, section 4.
//!
//! # Ties
//! The same input gives the same decision, whatever the order of threads. [`uniform`] takes the lowest number of the
//! nodes with the most accesses. [`hop_sensitive`] takes, of the nodes with the lowest cost, the one with the most
//! accesses of its own, and of these the lowest number. Sums that differ by less than one part in 10⁹ count as equal,
//! because the rounding of fractions depends on the order of addition.

const EQUAL: f64 = 1e-9;

/// Are two sums equal except for rounding?
pub fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= EQUAL * a.abs().max(b.abs())
}

/// Eq. 1: the node with the most accesses. `accesses` are by node position, ascending; `holds` tells which nodes have
/// memory. `None` if no node with accesses has memory.
pub fn uniform(accesses: &[(usize, f64)], holds: &[bool]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for &(node, count) in accesses {
        let better = best.is_none_or(|(_, most)| count > most && !same(count, most));
        if better && count > 0.0 && holds.get(node) == Some(&true) {
            best = Some((node, count));
        }
    }
    best.map(|(node, _)| node)
}

/// Eq. 2: the node on which all accesses together cost least. `weights[l][j]` is the cost of an access by a CPU on `l`
/// to memory on `j`: the paper's w with its indices exchanged, as Table 2 prints it. `None` without accesses or memory.
pub fn hop_sensitive(
    accesses: &[(usize, f64)],
    weights: &[Vec<f64>],
    holds: &[bool],
) -> Option<usize> {
    if accesses.iter().all(|&(_, count)| count <= 0.0) {
        return None;
    }
    let own = |node: usize| {
        accesses
            .iter()
            .find(|entry| entry.0 == node)
            .map_or(0.0, |entry| entry.1)
    };
    let mut best: Option<(usize, f64)> = None;
    for node in (0..weights.len()).filter(|&node| holds.get(node) == Some(&true)) {
        let cost = cost_on(accesses, weights, node);
        let better = best.is_none_or(|(chosen, least)| {
            if same(cost, least) {
                own(node) > own(chosen) && !same(own(node), own(chosen))
            } else {
                cost < least
            }
        });
        if better {
            best = Some((node, cost));
        }
    }
    best.map(|(node, _)| node)
}

/// Cost of all accesses with the page on a node, in the unit of `weights`.
pub fn cost_on(accesses: &[(usize, f64)], weights: &[Vec<f64>], node: usize) -> f64 {
    accesses
        .iter()
        .map(|&(reader, count)| count * weights[reader][node])
        .sum()
}

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;
    use proptest::prelude::*;

    use super::*;

    fn sparse(counts: &[u32]) -> Vec<(usize, f64)> {
        counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(node, &count)| (node, f64::from(count)))
            .collect()
    }

    #[test]
    fn ties_break_as_documented() {
        let anywhere = [true; 4];
        assert_eq!(uniform(&[(1, 5.0), (3, 5.0)], &anywhere), Some(1));
        assert_eq!(uniform(&[], &anywhere), None);
        assert_eq!(
            uniform(&[(1, 5.0), (3, 4.0)], &[true, false, true, true]),
            Some(3)
        );
        // With equal distances, nodes 1 and 3 cost the same. More accesses decide, then the lower number.
        let flat = vec![vec![10.0; 4]; 4];
        assert_eq!(
            hop_sensitive(&[(1, 5.0), (3, 6.0)], &flat, &anywhere),
            Some(3)
        );
        assert_eq!(
            hop_sensitive(&[(1, 5.0), (3, 5.0)], &flat, &anywhere),
            Some(1)
        );
    }

    /// Table 2, worked by hand: 10 accesses from node 0, 9 from node 1, 10 from node 2.
    #[test]
    fn table_2_by_hand() {
        let weights = preset("opteron-4").expect("preset").weights();
        let page = sparse(&[10, 9, 10, 0]);
        let cost = |node| cost_on(&page, &weights, node);
        assert_eq!(cost(0), 10.0 * 102.0 + 9.0 * 143.0 + 10.0 * 179.0);
        assert_eq!(cost(1), 10.0 * 138.0 + 9.0 * 107.0 + 10.0 * 141.0);
        assert_eq!(hop_sensitive(&page, &weights, &[true; 4]), Some(1));
        assert_eq!(cost(2), 10.0 * 172.0 + 9.0 * 141.0 + 10.0 * 102.0);
        // Without node 1's own accesses, the two readers share the cost of two hops: 172 from node 0 to node 2 is less
        // than 179 the other way, and than one hop for both.
        let page = sparse(&[10, 0, 10, 0]);
        assert_eq!(hop_sensitive(&page, &weights, &[true; 4]), Some(2));
        // If the ends of a line are far apart, the middle node is best even without accesses.
        let line = vec![
            vec![10.0, 12.0, 30.0],
            vec![12.0, 10.0, 12.0],
            vec![30.0, 12.0, 10.0],
        ];
        assert_eq!(
            hop_sensitive(&sparse(&[10, 0, 10]), &line, &[true; 3]),
            Some(1)
        );
    }

    fn page_counts() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0u32..20, 1..6)
    }

    proptest! {
        #[test]
        fn uniform_is_best_where_all_remote_nodes_are_equally_far(counts in page_counts()) {
            let page = sparse(&counts);
            let holds = vec![true; counts.len()];
            let weights: Vec<Vec<f64>> = (0..counts.len())
                .map(|row| (0..counts.len()).map(|column| if row == column { 100.0 } else { 150.0 }).collect())
                .collect();
            match uniform(&page, &holds) {
                None => prop_assert!(counts.iter().all(|&count| count == 0)),
                Some(chosen) => for other in 0..counts.len() {
                    prop_assert!(cost_on(&page, &weights, chosen) <= cost_on(&page, &weights, other));
                },
            }
        }

        #[test]
        fn hop_sensitive_is_the_minimum(counts in page_counts(), cells in prop::collection::vec(1u32..50, 36)) {
            let nodes = counts.len();
            let weights: Vec<Vec<f64>> =
                (0..nodes).map(|row| (0..nodes).map(|column| f64::from(cells[6 * row + column])).collect()).collect();
            let page = sparse(&counts);
            if let Some(chosen) = hop_sensitive(&page, &weights, &vec![true; nodes]) {
                for other in 0..nodes {
                    prop_assert!(cost_on(&page, &weights, chosen) <= cost_on(&page, &weights, other) + 1e-6);
                }
            }
        }

        /// Renumbering nodes does not change the winner, except for ties that only numbers break.
        #[test]
        fn renumbering_nodes_renumbers_the_decision(
            counts in prop::collection::vec(0u32..1000, 4),
            order in Just([0usize, 1, 2, 3]).prop_shuffle(),
        ) {
            let weights = preset("opteron-4").expect("preset").weights();
            let renumbered: Vec<Vec<f64>> =
                (0..4).map(|row| (0..4).map(|column| weights[order[row]][order[column]]).collect()).collect();
            let moved: Vec<u32> = order.iter().map(|&old| counts[old]).collect();
            let old = hop_sensitive(&sparse(&counts), &weights, &[true; 4]);
            let new = hop_sensitive(&sparse(&moved), &renumbered, &[true; 4]);
            if let (Some(old), Some(new)) = (old, new) {
                let page = sparse(&counts);
                prop_assert!(order[new] == old || same(cost_on(&page, &weights, order[new]), cost_on(&page, &weights, old)));
            }
        }
    }
}
