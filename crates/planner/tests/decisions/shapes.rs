//! Placements in proportion to an object: parts and tiles.

use super::*;

/// What is used of an array, several arrays in one object, and tiles are placed by rules for teams of any size.
#[test]
fn shares_of_parts_and_tiles_are_rules() {
    type User = fn(u32) -> u32;
    let share: User = |page| page / 4 % 8;
    let segments = (0..16).map(|number: u32| Segment {
        first_page: 4 * number,
        last_page: 4 * number + 3,
        user: ThreadIndex(number % 8),
        share: 1.0,
        samples: 8.0,
    });
    let rows = |pages: std::ops::Range<u32>, threads: std::ops::Range<u32>| RowShare {
        pages,
        threads: threads.map(ThreadIndex).collect(),
    };
    let cyclic = |block_bytes| Pattern::BlockCyclic {
        team: 0,
        block_bytes,
        period_bytes: 8 * block_bytes,
    };
    let tile: User = |page| page / 32 * 4 + page % 8 / 2;
    for (pattern, pages, owner, expected) in [
        (
            Pattern::PartialBlock {
                team: 0,
                block_bytes: 4 * PAGE,
                part_bytes: 0..32 * PAGE,
            },
            32,
            share,
            "block:0-128K/256K",
        ),
        (
            Pattern::Segments(segments.collect()),
            64,
            share,
            "block:0-128K,128K-256K/256K",
        ),
        (cyclic(4 * PAGE), 64, share, "block:0-128K,128K-256K/256K"),
        // Eleven rounds are rows of a program's own length.
        (cyclic(3000), 64, share, "block-cyclic:4K"),
        (
            Pattern::Tiles {
                block_bytes: 2 * PAGE,
                shares: vec![rows(0..32, 0..4), rows(32..64, 4..8)],
            },
            64,
            tile,
            "tiles:2x4/32K",
        ),
    ] {
        let cells: Vec<_> = (0..pages).map(|page| (page, owner(page), 8.0)).collect();
        let mut recording = Recording::new(8);
        recording.object("build", 64, pattern.clone(), &cells);
        let plan = recording.decide(Policy::Object, &opteron());
        let decision = only(&plan);
        assert_eq!(decision.placement.to_string(), expected, "{pattern:?}");
        let is_cyclic = matches!(decision.placement, Placement::BlockCyclic { .. });
        assert!(
            is_cyclic || decision.effect.local_after == 1.0,
            "{pattern:?}"
        );
    }
}
