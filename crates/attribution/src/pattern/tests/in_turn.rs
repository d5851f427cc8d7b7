//! Objects that are used in two ways in turn.

use super::*;

/// Thread that accesses an offset: threads share rows in one phase and columns in another.
fn rows_then_columns(threads: u64, row: u64, rows: u64) -> impl Fn(u64, &mut Random) -> u32 {
    move |offset, random| {
        let own = match random.below(2) {
            0 => offset / row * threads / rows,
            _ => offset % row * threads / row,
        };
        own as u32
    }
}

#[test]
fn rows_of_one_phase_and_columns_of_another_are_in_turn() {
    let (row, rows) = (256 << 10, 64);
    for threads in [2, 4, 6, 8, 16] {
        let who = rows_then_columns(threads, row, rows);
        let affinity = sample(row * rows, 600, &mut Random(21), who);
        let found = find_pattern(&affinity, row * rows, &team(threads as u32));
        let Pattern::InTurn(patterns) = &found else {
            panic!("{threads} threads: {found:?}");
        };
        let [
            Pattern::Block { .. },
            Pattern::BlockCyclic { block_bytes, .. },
        ] = **patterns
        else {
            panic!("{threads} threads: {found:?}");
        };
        assert!(block_bytes.abs_diff(row / threads) < PAGE, "{found:?}");
    }
}

/// Two threads have halves of three arrays in one allocation. Six pieces are too few for a rule, but no second rule is
/// needed to explain them.
#[test]
fn halves_of_three_arrays_are_not_two_patterns_in_turn() {
    let array = 20_278_272;
    for seed in 0..10 {
        let affinity = sample(3 * array, 400, &mut Random(seed), |offset, _| {
            (offset % array * 2 / array) as u32
        });
        let found = find_pattern(&affinity, 3 * array, &team(2));
        let Pattern::Segments(segments) = found else {
            panic!("seed {seed}: {found:?}");
        };
        let users: Vec<u32> = segments.iter().map(|segment| segment.user.0).collect();
        assert_eq!(users, [0, 1, 0, 1, 0, 1], "seed {seed}");
    }
}

/// The first thread fills an array, then each thread reads its share. A third to two thirds of the samples are the
/// first thread's.
#[test]
fn a_master_that_fills_what_all_share_is_in_turn() {
    let size = 16 * MIB;
    for (threads, master) in [(2, 1), (4, 1), (4, 2), (8, 1)] {
        let who = move |offset: u64, random: &mut Random| match random.below(3) < master {
            true => 0,
            false => (offset * threads / size) as u32,
        };
        let affinity = sample(size, 300, &mut Random(22), who);
        let found = find_pattern(&affinity, size, &team(threads as u32));
        let expected = [
            Pattern::Private {
                thread: ThreadIndex(0),
            },
            Pattern::Block {
                team: 0,
                block_bytes: size / threads,
            },
        ];
        assert_eq!(
            found,
            Pattern::InTurn(Box::new(expected)),
            "{threads} threads"
        );
    }
}

#[test]
fn noise_beside_a_rule_is_no_second_pattern() {
    let size = 16 * MIB;
    let affinity = sample(size, 600, &mut Random(23), |offset, random| {
        match random.below(3) {
            0 => random.below(4) as u32,
            _ => (offset / (4 * MIB)) as u32,
        }
    });
    let found = find_pattern(&affinity, size, &team(4));
    assert!(matches!(found, Pattern::Block { .. }), "{found:?}");
}
