//! Tiles in two dimensions.

use super::*;

#[test]
fn tiles_of_two_by_two() {
    let (rows, row) = (1500, 32 << 10);
    let size = rows * row;
    let affinity = sample(size, 700, &mut Random(14), |offset, _| {
        let (down, across) = (offset / row, offset % row);
        (2 * (2 * down / rows) + 2 * across / row) as u32
    });
    let Pattern::Tiles {
        block_bytes,
        shares,
    } = find_pattern(&affinity, size, &team(4))
    else {
        panic!("no tiles");
    };
    assert_eq!(block_bytes, row / 2);
    let threads: Vec<Vec<u32>> = shares
        .iter()
        .map(|share| share.threads.iter().map(|thread| thread.0).collect())
        .collect();
    assert_eq!(threads, [[0, 1], [2, 3]]);
    let half = (rows / 2 * row / PAGE) as u32;
    assert!(shares[0].pages.end.abs_diff(half) < 100 && shares[1].pages.start.abs_diff(half) < 100);
}

/// Segments alone did not show the shares of these rows in most samples.
#[test]
fn tiles_of_a_grid_are_found_in_each_of_twenty_samples() {
    let (rows, row) = (140, 384 << 10);
    let size = rows * row;
    for (down, across) in [(2, 5), (3, 4), (4, 4)] {
        for seed in 0..20 {
            let affinity = sample(size, 1400, &mut Random(seed), |offset, _| {
                let tile_row = offset / row * down / rows;
                (across * tile_row + across * (offset % row) / row) as u32
            });
            let team = team((down * across) as u32);
            let found = find_pattern(&affinity, size, &team);
            let Pattern::Tiles {
                block_bytes,
                shares,
            } = &found
            else {
                panic!("{down} x {across}, seed {seed}: {found:?}");
            };
            assert!(block_bytes.abs_diff(row / across) <= row / across / 50);
            let threads: Vec<u32> = shares
                .iter()
                .flat_map(|share| share.threads.iter().map(|thread| thread.0))
                .collect();
            assert_eq!(shares.len() as u64, down, "{down} x {across}, seed {seed}");
            assert!(threads.iter().copied().eq(0..(down * across) as u32));
        }
    }
}

/// A grid with one row in each share has the same borders as equal pieces, which unequal ones resemble.
#[test]
fn unequal_shares_are_no_tiles() {
    for threads in [4, 12, 16] {
        for seed in 0..20 {
            let mut random = Random(seed);
            let weights: Vec<u64> = (0..threads).map(|_| 2 + random.below(2)).collect();
            let ends: Vec<u64> = (1..=threads)
                .map(|end| weights[..end].iter().sum())
                .collect();
            let size = 20 * MIB * threads as u64;
            let affinity = sample(size, 400, &mut random, |offset, _| {
                let at = offset as f64 / size as f64 * ends[threads - 1] as f64;
                ends.iter().filter(|&&end| end as f64 <= at).count() as u32
            });
            let found = find_pattern(&affinity, size, &team(threads as u32));
            assert!(
                !matches!(found, Pattern::Tiles { .. }),
                "{threads} threads of weights {weights:?}, seed {seed}: {found:?}"
            );
        }
    }
}
