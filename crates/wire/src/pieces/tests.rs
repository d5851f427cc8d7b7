extern crate std;

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

fn extent(address: usize, size_bytes: usize) -> Extent {
    Extent {
        address,
        size_bytes,
        page_bytes: PAGE,
        unit_bytes: PAGE,
    }
}

fn nodes_by_page(extent: Extent, pattern: Pattern) -> Vec<Option<u32>> {
    Pieces::new(extent, pattern)
        .flat_map(|piece| {
            let node = match piece.target {
                Target::Node(node) => Some(node),
                Target::Interleave(_) => None,
            };
            (piece.start..piece.end).step_by(PAGE).map(move |_| node)
        })
        .collect()
}

#[test]
fn pages_go_with_the_larger_part() {
    // malloc returns such an address: 16 bytes into a page.
    assert_eq!(extent(0x10010, 4 * PAGE).pages(), Some((0x10000, 0x14000)));
    assert_eq!(
        extent(0x10800, 4 * PAGE).pages(),
        Some((0x10000, 0x14000)),
        "half-way: down"
    );
    assert_eq!(extent(0x10801, 4 * PAGE).pages(), Some((0x11000, 0x15000)));
    assert_eq!(extent(0x10010, 2 * PAGE - 1).pages(), None, "too small");
    assert_eq!(
        extent(usize::MAX - 100, 1 << 40).pages(),
        None,
        "no such object"
    );
}

#[test]
fn blocks_are_shares_at_whole_pages() {
    assert_eq!(
        nodes_by_page(extent(0x10010, 10 * PAGE), Pattern::Block(&[3, 1, 2])),
        [3, 3, 3, 1, 1, 1, 1, 2, 2, 2].map(Some)
    );
    // There are more owners than pages: owners without a page are passed over.
    let many: Vec<u16> = (0..8).collect();
    assert_eq!(
        nodes_by_page(extent(0, 3 * PAGE), Pattern::Block(&many)),
        [1, 4, 6].map(Some)
    );
}

#[test]
fn equal_neighbours_merge() {
    let pieces: Vec<_> = Pieces::new(extent(0, 8 * PAGE), Pattern::Block(&[0, 0, 1, 1])).collect();
    assert_eq!(pieces.len(), 2);
    assert_eq!(
        pieces[0],
        Piece {
            start: 0,
            end: 4 * PAGE,
            target: Target::Node(0)
        }
    );
    let one: Vec<_> =
        Pieces::new(extent(0, 1 << 40), Pattern::BlockCyclic(&[5, 5], 4096)).collect();
    assert_eq!(
        one,
        [Piece {
            start: 0,
            end: 1 << 40,
            target: Target::Node(5)
        }]
    );
}

#[test]
fn block_cyclic_deals_blocks_and_never_less_than_the_unit() {
    let pattern = Pattern::BlockCyclic(&[0, 1], 2 * PAGE as u64);
    assert_eq!(
        nodes_by_page(extent(0x10010, 7 * PAGE), pattern),
        [0, 0, 1, 1, 0, 0, 1].map(Some)
    );
    let huge = Extent {
        address: HUGE + 16,
        size_bytes: 8 * HUGE,
        page_bytes: PAGE,
        unit_bytes: HUGE,
    };
    let pieces: Vec<_> = Pieces::new(huge, Pattern::BlockCyclic(&[0, 1, 2], 640 << 10)).collect();
    assert_eq!(pieces.len(), 8, "0.625 MiB become 2 MiB");
    assert!(
        pieces
            .iter()
            .all(|piece| piece.start % HUGE == 0 && piece.end - piece.start == HUGE)
    );
}

#[test]
fn runs_keep_their_gaps_and_the_tail() {
    let run = |first_page, pages, node| Run {
        first_page,
        pages,
        node,
    };
    let runs = [run(1, 1, 4), run(3, 2, 5), run(6, 1, 4)];
    let pattern = Pattern::Runs(&runs, PAGE as u64);
    assert_eq!(
        nodes_by_page(extent(0x10010, 8 * PAGE), pattern),
        [4, 4, 4, 5, 5, 5, 4, 4].map(Some)
    );
    assert_eq!(
        nodes_by_page(extent(0x10010, 4 * PAGE), pattern),
        [4, 4, 4, 5].map(Some),
        "a smaller object"
    );
}

fn weights(pages: &[u32]) -> Vec<Weight> {
    let numbered = (0..).zip(pages);
    numbered
        .map(|(node, &pages)| Weight { node, pages })
        .collect()
}

#[test]
fn weights_are_layers_of_rows() {
    let three = weights(&[3, 1, 2]);
    let pattern = Pattern::Weighted(&three);
    let pieces: Vec<Piece> = Pieces::new(extent(0, 9 * PAGE), pattern).collect();
    let mut some = NodeSet::of(0);
    some.insert(2);
    let expected = [
        (0, 3, Target::Interleave(pattern.nodes())),
        (3, 5, Target::Interleave(some)),
        (5, 6, Target::Node(0)),
        (6, 9, Target::Interleave(pattern.nodes())),
    ];
    let found = pieces
        .iter()
        .map(|piece| (piece.start / PAGE, piece.end / PAGE, piece.target));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let (rows, lost) = Pieces::new(extent(0, 1024 * PAGE), pattern).at_most(16);
    assert_eq!(lost, 0, "longer rows are still weighted as planned");
    assert!(rows.count() <= 16);
}

/// Runs for single nodes took two thousand memory policies.
#[test]
fn weighted_interleaving_of_48_mib_takes_few_pieces() {
    let four = weights(&[6, 5, 8, 5]);
    let pieces = Pieces::new(extent(16, 48_000_000), Pattern::Weighted(&four));
    assert_eq!(pieces.count(), 145);
}

#[test]
fn small_objects_have_no_pieces() {
    assert_eq!(Pieces::new(extent(0, 8 * PAGE), Pattern::Leave).count(), 0);
    assert_eq!(
        Pieces::new(extent(0, 8 * PAGE), Pattern::Block(&[])).count(),
        0
    );
    assert_eq!(Pieces::new(extent(0, PAGE), Pattern::Node(0)).count(), 0);
    assert_eq!(
        Pieces::new(extent(0, 8 * PAGE), Pattern::Runs(&[], 4096)).count(),
        0
    );
}

#[test]
fn too_many_pieces_leave_an_interleaved_tail() {
    let pattern = Pattern::BlockCyclic(&[0, 1], 64 << 10);
    let (pieces, lost) = Pieces::new(extent(0x10010, 1 << 30), pattern).at_most(16382);
    let pieces: Vec<_> = pieces.collect();
    assert_eq!((pieces.len(), lost), (16382, 3));
    assert_eq!(pieces[16381].target, Target::Interleave(pattern.nodes()));
    assert_eq!(pieces[16381].end - pieces[16381].start, 3 * (64 << 10));
    let (_, lost) = Pieces::new(extent(0x10010, 1 << 30), pattern).at_most(16384);
    assert_eq!(lost, 0);
}

#[test]
fn too_many_runs_join_their_neighbours() {
    let runs: Vec<_> = (0..64u64)
        .flat_map(|k| {
            [
                Run {
                    first_page: k * 20,
                    pages: 19,
                    node: (k % 2) as u32,
                },
                Run {
                    first_page: k * 20 + 19,
                    pages: 1,
                    node: 3,
                },
            ]
        })
        .collect();
    let pattern = Pattern::Runs(&runs, PAGE as u64);
    let (pieces, lost) = Pieces::new(extent(0, 64 * 20 * PAGE), pattern).at_most(64);
    let pieces: Vec<_> = pieces.collect();
    assert_eq!((pieces.len(), lost), (64, 64));
    assert!(pieces.iter().all(|piece| piece.target != Target::Node(3)));
}

proptest! {
    #[test]
    fn nodes_are_found_by_number(nodes in proptest::collection::btree_set(0u32..NODES_MAX as u32, 0..200)) {
        let mut set = NodeSet::EMPTY;
        nodes.iter().for_each(|node| set.insert(*node));
        prop_assert!(set.iter().eq(nodes.iter().copied()));
        for n in 0..=nodes.len() {
            prop_assert_eq!(set.nth(n), nodes.iter().nth(n).copied());
        }
    }

    /// Pieces cover the object's pages exactly, in whole pages, and neighbours differ. A limited number of pieces covers
    /// the same pages.
    #[test]
    fn pieces_tile_the_object(
        shape in 0u8..7,
        nodes in proptest::collection::vec(0u16..5, 0..20),
        block in 1u64..200_000,
        steps in proptest::collection::vec((1u64..40, 0u32..40, 0u32..5), 0..30),
        address in 0usize..(8 << 20),
        size_bytes in 0usize..(4 << 20),
        huge in any::<bool>(),
        limit in 1u64..50,
    ) {
        let mut page = 0;
        let runs: Vec<Run> = steps.iter().map(|(gap, pages, node)| {
            let run = Run { first_page: page, pages: *pages, node: *node };
            page += gap;
            run
        }).collect();
        let weighted: Vec<Weight> = steps.iter().map(|(_, pages, node)| Weight { node: *node, pages: *pages }).collect();
        let pattern = match shape {
            0 => Pattern::Interleave(&nodes),
            1 => Pattern::Block(&nodes),
            2 => Pattern::BlockCyclic(&nodes, block),
            3 => Pattern::Node(2),
            6 => Pattern::Tiles(Tiles { nodes: &nodes, columns: nodes.len().max(1) as u32, row_bytes: block }),
            4 => Pattern::Runs(&runs, 4096),
            _ => Pattern::Weighted(&weighted),
        };
        let extent = Extent { address, size_bytes, page_bytes: PAGE, unit_bytes: if huge { HUGE } else { PAGE } };
        let exact = Pieces::new(extent, pattern);
        let (fitted, lost) = exact.at_most(limit);
        prop_assert!(fitted.count_up_to(limit + 1) <= limit);
        prop_assert_eq!(lost == 0, exact.count_up_to(limit + 1) <= limit || matches!(pattern, Pattern::Weighted(_)));
        // A part has the pieces of the whole, cut at the part's ends.
        if let Some((start, end)) = extent.pages().filter(|_| exact.count_up_to(1) > 0) {
            let at = |share: u64| start + (end - start) / PAGE * (share % 9) as usize / 8 * PAGE;
            let (from, to) = (at(block).min(at(limit)), at(block).max(at(limit)));
            let inside = exact.filter_map(|piece| {
                let (start, end) = (piece.start.max(from), piece.end.min(to));
                (start < end).then_some(Piece { start, end, ..piece })
            });
            prop_assert_eq!(exact.within(from, to).collect::<Vec<_>>(), inside.collect::<Vec<_>>());
            prop_assert_eq!(exact.within(from, to).range(), (from, to));
        }
        for pieces in [exact, fitted] {
            let pieces: Vec<Piece> = pieces.collect();
            if pieces.is_empty() {
                prop_assert!(extent.pages().is_none() || pattern.nodes().is_empty());
                continue;
            }
            let (start, end) = extent.pages().unwrap();
            prop_assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (start, end));
            for piece in &pieces {
                prop_assert!(piece.start < piece.end && piece.start % PAGE == 0 && piece.end % PAGE == 0);
                if let Target::Node(node) = piece.target {
                    prop_assert!(pattern.nodes().contains(node));
                }
            }
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert_ne!(pair[0].target, pair[1].target);
                prop_assert_eq!(pair[0].end % extent.unit_bytes, 0);
            }
        }
    }

    /// Each node has pages by its weight, to a row's part, in a few pieces for each MiB.
    #[test]
    fn nodes_have_pages_by_their_weights(
        pages in proptest::collection::vec(1u32..9, 2..6),
        first in 0usize..1000,
        count in 16usize..9000,
    ) {
        let weights = weights(&pages);
        let sum: usize = pages.iter().map(|pages| *pages as usize).sum();
        let object = extent(first * PAGE, count * PAGE);
        let mut found = std::vec![0; pages.len()];
        let mut pieces = 0;
        for piece in Pieces::new(object, Pattern::Weighted(&weights)) {
            pieces += 1;
            for page in (piece.start..piece.end).step_by(PAGE) {
                let node = match piece.target {
                    Target::Node(node) => node,
                    Target::Interleave(nodes) => nodes.nth(page / PAGE % nodes.len()).unwrap(),
                };
                found[node as usize] += 1;
            }
        }
        let row = sum * (256 / sum).min(count / sum / 16).max(1);
        for (found, weight) in found.iter().zip(&pages) {
            let wanted = count as f64 * f64::from(*weight) / sum as f64;
            prop_assert!((f64::from(*found) - wanted).abs() <= row as f64 / 2.0 + 1.0, "{found} for {wanted}");
        }
        prop_assert!(pieces <= pages.len() * count.div_ceil(row));
    }

    /// Every page of a block-cyclic object is on the node of the block that covers most of it.
    #[test]
    fn block_cyclic_pages_follow_their_middle(
        address in 0usize..100_000,
        size_bytes in (2 * PAGE)..(1 << 20),
        block in (PAGE as u64)..60_000,
    ) {
        let nodes = [0u16, 1, 2];
        let (start, _) = extent(address, size_bytes).pages().unwrap();
        for (k, node) in nodes_by_page(extent(address, size_bytes), Pattern::BlockCyclic(&nodes, block)).into_iter().enumerate() {
            // The nearest boundaries to a page's ends lie on the far sides of its middle.
            let middle = (start + k * PAGE + PAGE / 2).saturating_sub(address).clamp(1, size_bytes) as u64;
            let owner = |offset: u64| u32::from(nodes[(offset / block % 3) as usize]);
            prop_assert!(node == Some(owner(middle)) || node == Some(owner(middle - 1)));
        }
    }
}
