//! Decision about a sampled page (§3.2.2).

use super::global::Mechanisms;

/// Decision about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageDecision {
    /// The page stays.
    Stays,
    /// The page moves to the only node that accessed it.
    Colocated(u16),
    /// Every node of the application gets a copy, if enough pages are to be replicated.
    Replicated,
    /// The page may move to another node, to spread load.
    Interleaved,
}

/// Decides about a page with `by_node` samples of each node, of which `stores` are stores; `replicable` is false for a
/// page that has collapsed too often.
///
/// A page that several nodes read is interleaved if it may not be replicated; the paper describes only the case that
/// all mechanisms are enabled.
pub fn decide(
    by_node: &[u32],
    stores: u32,
    mechanisms: &Mechanisms,
    replicable: bool,
    samples_least: u64,
) -> PageDecision {
    let samples: u64 = by_node.iter().map(|&count| u64::from(count)).sum();
    let mut users = by_node.iter().enumerate().filter(|user| *user.1 > 0);
    let (Some((first, _)), second) = (users.next(), users.next()) else {
        return PageDecision::Stays;
    };
    if samples < samples_least {
        PageDecision::Stays
    } else if second.is_none() {
        match mechanisms.colocation {
            true => PageDecision::Colocated(first as u16),
            false => PageDecision::Stays,
        }
    } else if stores == 0 && mechanisms.replication && replicable {
        PageDecision::Replicated
    } else if mechanisms.interleaving {
        PageDecision::Interleaved
    } else {
        PageDecision::Stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_decide() {
        let all = Mechanisms {
            replication: true,
            interleaving: true,
            colocation: true,
        };
        for (by_node, stores, expected) in [
            ([0, 0, 0], 0, PageDecision::Stays),
            ([0, 1, 0], 0, PageDecision::Stays),
            ([0, 2, 0], 0, PageDecision::Colocated(1)),
            ([0, 2, 0], 2, PageDecision::Colocated(1)),
            ([1, 0, 1], 0, PageDecision::Replicated),
            ([1, 0, 1], 1, PageDecision::Interleaved),
        ] {
            assert_eq!(
                decide(&by_node, stores, &all, true, 2),
                expected,
                "{by_node:?}"
            );
        }
        assert_eq!(
            decide(&[1, 1, 0], 0, &all, false, 2),
            PageDecision::Interleaved
        );
        let without = |mechanisms| decide(&[1, 1, 0], 0, &mechanisms, true, 2);
        assert_eq!(
            without(Mechanisms {
                replication: false,
                ..all
            }),
            PageDecision::Interleaved
        );
        assert_eq!(
            without(Mechanisms {
                replication: false,
                interleaving: false,
                ..all
            }),
            PageDecision::Stays
        );
        let off = Mechanisms {
            colocation: false,
            ..all
        };
        assert_eq!(decide(&[0, 2, 0], 0, &off, true, 2), PageDecision::Stays);
    }
}
