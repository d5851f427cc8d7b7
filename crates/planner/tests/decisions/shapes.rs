//! Placements in proportion to an object: parts and tiles.

use super::*;

/// Rules for teams of any size place the used part of an array, several arrays in one object, and tiles.
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
    let from_the_end: User = |page| 7 - page / 8;
    let descending = (0..8).map(|number: u32| Segment {
        first_page: 8 * number,
        last_page: 8 * number + 7,
        user: ThreadIndex(7 - number),
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
            Pattern::Segments(descending.collect()),
            64,
            from_the_end,
            "block@:reversed",
        ),
        (
            Pattern::Segments(segments.collect()),
            64,
            share,
            "block:0-128K,128K-256K/256K",
        ),
        (cyclic(4 * PAGE), 64, share, "block:0-128K,128K-256K/256K"),
        // Eleven rounds are taken for rows, whose length is the program's own.
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

/// Eight threads have a share of each of three arrays in one allocation. The small array in the middle has too few
/// samples to show its shares.
#[test]
fn a_small_array_between_two_others_is_in_shares_too() {
    let segment = |first_page: u32, pages: u32, user: u32, share: f64| Segment {
        first_page,
        last_page: first_page + pages - 1,
        user: ThreadIndex(user),
        share,
        samples: 8.0 * f64::from(pages),
    };
    let large = |from: u32| (0..8).map(move |number| segment(from + 4 * number, 4, number, 1.0));
    let small = [segment(32, 4, 1, 0.25), segment(36, 4, 4, 0.25)];
    let segments: Vec<Segment> = large(0).chain(small).chain(large(40)).collect();
    let owner = |page: u32| match page {
        32..40 => page - 32,
        40.. => (page - 40) / 4,
        _ => page / 4,
    };
    let cells: Vec<_> = (0..72).map(|page| (page, owner(page), 8.0)).collect();
    let mut recording = Recording::new(8);
    recording.object("build", 72, Pattern::Segments(segments), &cells);
    let plan = recording.decide(Policy::Object, &opteron());
    let decision = only(&plan);
    let expected = "block:0-128K,128K-160K,160K-288K/288K";
    assert_eq!(decision.placement.to_string(), expected);
    assert_eq!(decision.effect.local_after, 1.0);
}

/// Eight threads have shares of one array, of different sizes. Sizes that repeat belong to the threads' numbers, others
/// may belong to the data.
#[test]
fn unequal_shares_grow_with_the_object() {
    for (pages, expected) in [
        (
            [8, 12, 4, 6, 8, 12, 4, 6],
            "block:0-240K/240K/667:1000:333:500:...",
        ),
        (
            [8, 12, 4, 6, 2, 4, 12, 12],
            "block:0-240K/240K/667:1000:333:500:167:333:1000:1000",
        ),
    ] {
        let segment = |(number, first_page): (u32, u32)| Segment {
            first_page,
            last_page: first_page + pages[number as usize] - 1,
            user: ThreadIndex(number),
            share: 1.0,
            samples: 8.0 * f64::from(pages[number as usize]),
        };
        let first = |number: u32| pages[..number as usize].iter().sum();
        let segments = (0..8).map(|number| segment((number, first(number))));
        let owner = |page: u32| (1..8).filter(|&number| first(number) <= page).count() as u32;
        let cells: Vec<_> = (0..60).map(|page| (page, owner(page), 8.0)).collect();
        let mut recording = Recording::new(8);
        recording.object("build", 60, Pattern::Segments(segments.collect()), &cells);
        let plan = recording.decide(Policy::Object, &opteron());
        let decision = only(&plan);
        assert_eq!(decision.placement.to_string(), expected);
        assert_eq!(decision.effect.local_after, 1.0);
        assert!(
            decision
                .why
                .contains("8 contiguous parts of unequal sizes, one after the other"),
            "{}",
            decision.why
        );
    }
}

/// Segments are found from samples, and so are the shares that stand for them: one sample of another thread's share
/// counts once, however many accesses it stands for.
#[test]
fn one_heavy_sample_does_not_make_page_runs_of_shares() {
    let segment = |number: u32| Segment {
        first_page: 8 * number,
        last_page: 8 * number + 7,
        user: ThreadIndex(number),
        share: 1.0,
        samples: 64.0,
    };
    let cells: Vec<_> = (0..64).map(|page| (page, page / 8, 8.0)).collect();
    let mut recording = Recording::new(8);
    let pattern = Pattern::Segments((0..8).map(segment).collect());
    let group = recording.object("build", 64, pattern, &cells);
    let heavy = nearpage_attribution::Cell {
        page: 0,
        thread: ThreadIndex(7),
        loads: 300.0,
        samples: 1.0,
        ..group.affinity.cells[0]
    };
    group.affinity.cells.insert(1, heavy);
    let plan = recording.decide(Policy::Object, &opteron());
    assert_eq!(only(&plan).placement.to_string(), "block");
}

/// Of two patterns in turn, the pattern counts whose owners make more of the accesses.
#[test]
fn two_patterns_in_turn_are_placed_by_the_one_with_more_accesses() {
    let cyclic = Pattern::BlockCyclic {
        team: 0,
        block_bytes: PAGE,
        period_bytes: 8 * PAGE,
    };
    let arrays = "block:0-32K,32K-64K,64K-96K,96K-128K/128K";
    for (of_block, expected) in [(20.0, "block"), (2.0, arrays)] {
        let cells: Vec<_> = (0..32)
            .flat_map(|page| [(page, page / 4, of_block), (page, page % 8, 10.0)])
            .collect();
        let mut recording = Recording::new(8);
        let pattern = Pattern::InTurn(Box::new([block(), cyclic.clone()]));
        recording.object("build", 32, pattern, &cells);
        let plan = recording.decide(Policy::Object, &opteron());
        assert_eq!(only(&plan).placement.to_string(), expected);
    }
}

/// Two arrays in one allocation, in shares of 31 1/4 pages. Pieces of 31 pages were found, and by chance they explain a
/// few more samples where two shares meet. If they explain clearly more, they are no arrays.
#[test]
fn arrays_need_not_explain_each_sample_that_fitted_pieces_do() {
    let pieces = |page: u32| page / 31 % 8;
    let arrays = |page: u32| (2 * (page % 250) + 1) * 8 / 500;
    let differ: Vec<u32> = (0..500)
        .filter(|&page| pieces(page) != arrays(page))
        .collect();
    for (of_pieces, expected) in [
        (differ.len() / 2 + 4, "block:0-1000K,1000K-2000K/2000K"),
        (differ.len(), "block-cyclic:124K"),
    ] {
        let owner = |page: u32| match differ[..of_pieces].contains(&page) {
            true => pieces(page),
            false => arrays(page),
        };
        let cells: Vec<_> = (0..500).map(|page| (page, owner(page), 1.0)).collect();
        let pattern = Pattern::BlockCyclic {
            team: 0,
            block_bytes: 31 * PAGE,
            period_bytes: 8 * 31 * PAGE,
        };
        let mut recording = Recording::new(8);
        recording.object("build", 500, pattern, &cells);
        let plan = recording.decide(Policy::Object, &opteron());
        assert_eq!(only(&plan).placement.to_string(), expected);
    }
}

/// Rows of 512 KiB, of which each of seven threads has a column. Eight threads have columns of 64 KiB, which may be
/// pieces of constant size. Rows of 514 KiB are no constant of a program.
#[test]
fn pieces_of_rows_with_a_constant_size_are_columns() {
    const KIB: u64 = 1 << 10;
    for (threads, row_bytes, expected) in [
        (7, 512 * KIB, "tiles:1x7/512K"),
        (8, 512 * KIB, "block-cyclic:64K"),
        (7, 514 * KIB, "block-cyclic:75190"),
    ] {
        let owner = |page: u32| {
            let middle = u64::from(page) * PAGE + PAGE / 2;
            (middle % row_bytes * u64::from(threads) / row_bytes) as u32
        };
        let pages = (20 * row_bytes / PAGE) as u32;
        let cells: Vec<_> = (0..pages).map(|page| (page, owner(page), 1.0)).collect();
        let block_bytes = row_bytes / u64::from(threads);
        let pattern = Pattern::BlockCyclic {
            team: 0,
            block_bytes,
            period_bytes: block_bytes * u64::from(threads),
        };
        let mut recording = Recording::new(threads);
        recording.object("build", pages, pattern, &cells);
        let plan = recording.decide(Policy::Object, &opteron());
        assert_eq!(only(&plan).placement.to_string(), expected);
    }
}
