//! Placements with a shape: shares of parts of an object, equal or not, and tiles of an array of rows. They are in
//! proportion to the object, and are dealt anew to a team of another size.

use std::fmt;
use std::ops::Range;

use crate::proportions::Proportions;
use crate::size::{bytes_of, print_size};

/// Most parts of one object, and most tiles in a row or a column.
const COUNT_MAX: usize = 4096;

/// Parts of an object, each of which a team's threads use in shares: the used beginning of an array, or several arrays
/// in one allocation. Written `0-12M,16M-48M/64M` for an object of 64 MiB; in objects of another size parts are larger
/// or smaller in proportion. Shares are equal unless proportions follow: `0-64M/64M/2:3:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    parts: Vec<Range<u64>>,
    of_bytes: u64,
    proportions: Option<Proportions>,
}

impl Parts {
    /// Parts of an object of `of_bytes`, as offsets in bytes. None unless the parts begin inside the object and ascend
    /// without overlap. The last part may end beyond the object, where its last shares are shorter than the others.
    pub fn new(parts: Vec<Range<u64>>, of_bytes: u64) -> Option<Self> {
        let ascend = parts.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let inside = parts
            .iter()
            .all(|part| part.start < part.end && part.start < of_bytes);
        let count = (1..=COUNT_MAX).contains(&parts.len());
        (ascend && inside && count).then_some(Self {
            parts,
            of_bytes,
            proportions: None,
        })
    }

    /// The same parts in shares of these proportions.
    pub fn with_proportions(self, proportions: Proportions) -> Self {
        Self {
            proportions: Some(proportions),
            ..self
        }
    }

    /// Proportions of the shares of each part; none: they are equal.
    pub fn proportions(&self) -> Option<&Proportions> {
        self.proportions.as_ref()
    }

    /// True if there is one part: all of the object.
    pub fn is_whole(&self) -> bool {
        matches!(&self.parts[..], [part] if *part == (0..self.of_bytes))
    }

    /// Size in bytes of the object that the parts are given for.
    pub fn of_bytes(&self) -> u64 {
        self.of_bytes
    }

    /// Number of parts.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The same parts of the same object, each `times` ÷ `by` as far into it; without those that would begin behind its
    /// end. None if a part would be empty.
    pub fn farther(&self, times: u64, by: u64) -> Option<Self> {
        let farther = |offset: u64| {
            let offset = u128::from(offset) * u128::from(times) / u128::from(by);
            u64::try_from(offset).unwrap_or(u64::MAX)
        };
        let parts = self.parts.iter();
        let parts = parts.map(|part| farther(part.start)..farther(part.end));
        let inside = parts.filter(|part| part.start < self.of_bytes).collect();
        let parts = Self::new(inside, self.of_bytes)?;
        Some(Self {
            proportions: self.proportions.clone(),
            ..parts
        })
    }

    /// Begins of shares in an object of `size_bytes`, strictly ascending from 0, each with the number of its thread
    /// among `threads`. Bytes before the first part go with its first share. Bytes behind a part go with its last
    /// share, up to half-way to the next part.
    pub fn shares(&self, size_bytes: u64, threads: usize) -> Vec<(u64, usize)> {
        let scaled = |offset: u128| {
            let scaled = offset * u128::from(size_bytes) / u128::from(self.of_bytes);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let mut shares: Vec<(u64, usize)> = Vec::new();
        let mut before: Option<u64> = None;
        for part in &self.parts {
            let bytes = part.end - part.start;
            for thread in 0..threads {
                let within = match &self.proportions {
                    Some(proportions) => proportions.begin(bytes, thread, threads),
                    None => (u128::from(bytes) * thread as u128 / threads as u128) as u64,
                };
                let offset = u128::from(part.start) + u128::from(within);
                let begin = match (thread, before) {
                    (0, None) => 0,
                    (0, Some(end)) => scaled(u128::from(end.midpoint(part.start))),
                    _ => scaled(offset),
                };
                match shares.last_mut() {
                    // The share before is shorter than a byte.
                    Some(last) if last.0 >= begin => last.1 = thread,
                    _ if begin > 0 && begin >= size_bytes => {}
                    _ => shares.push((begin, thread)),
                }
            }
            before = Some(part.end);
        }
        shares
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}`: expected parts of an object and its size, ascending, as in `0-12M,16M-48M/64M`"
            )
        };
        let (parts, of) = text.split_once('/').ok_or_else(expected)?;
        let (of, proportions) = match of.split_once('/') {
            Some((of, proportions)) => (of, Some(Proportions::read(proportions)?)),
            None => (of, None),
        };
        let part = |part: &str| {
            let (start, end) = part.split_once('-').ok_or_else(expected)?;
            Ok(bytes_of(start)?..bytes_of(end)?)
        };
        let parts: Result<Vec<_>, String> = parts.split(',').map(part).collect();
        let parts = Self::new(parts?, bytes_of(of)?).ok_or_else(expected)?;
        Ok(Self {
            proportions,
            ..parts
        })
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.parts.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            let [start, end] = [part.start, part.end].map(print_size);
            write!(f, "{comma}{start}-{end}")?;
        }
        write!(f, "/{}", print_size(self.of_bytes))?;
        match &self.proportions {
            Some(proportions) => write!(f, "/{proportions}"),
            None => Ok(()),
        }
    }
}

/// Tiles of a two-dimensional array, one for each thread of a team, in order of row shares. Written `2x4/384K`: two
/// shares of the rows, each row of 384 KiB in four columns.
///
/// A row keeps its length in objects of another size. A team of another size has another grid ([`Self::grid`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    rows: u32,
    columns: u32,
    row_bytes: u64,
}

impl Tiles {
    /// Tiles with `rows` shares of the rows and `columns` tiles in each row of `row_bytes`; none if a number is 0, or
    /// too large.
    pub fn new(rows: u32, columns: u32, row_bytes: u64) -> Option<Self> {
        let counts = 1..=COUNT_MAX as u32;
        let fits = counts.contains(&rows) && counts.contains(&columns) && row_bytes > 0;
        fits.then_some(Self {
            rows,
            columns,
            row_bytes,
        })
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Shares of the rows and tiles in a row for a team of this many threads; their product is `threads`.
    ///
    /// A team of another size than the grid's own gets a nearly square grid if the grid is nearly square, wide or high
    /// as the grid is. Otherwise the grid keeps its number of row shares or of columns, if that divides the number of
    /// threads. So does a grid of one row share or one column: it divides columns or rows alone.
    pub fn grid(&self, threads: u32) -> [u32; 2] {
        let (rows, columns) = (self.rows, self.columns);
        if u64::from(rows) * u64::from(columns) == u64::from(threads) {
            return [rows, columns];
        }
        let oriented = |[less, more]: [u32; 2]| match rows <= columns {
            true => [less, more],
            false => [more, less],
        };
        let is_square = rows.min(columns) > 1
            && rows
                .checked_mul(columns)
                .is_some_and(|all| oriented(squarest(all)) == [rows, columns]);
        match threads {
            0 => [0, 0],
            _ if is_square => oriented(squarest(threads)),
            _ if threads.is_multiple_of(rows) => [rows, threads / rows],
            _ if threads.is_multiple_of(columns) => [threads / columns, columns],
            _ => oriented(squarest(threads)),
        }
    }

    /// Number, among `threads`, of the thread whose tile has the byte at `offset` of an object of `size_bytes`.
    pub fn thread(&self, offset: u64, size_bytes: u64, threads: u32) -> u32 {
        let [shares, columns] = self.grid(threads).map(u128::from);
        let rows = u128::from(size_bytes.div_ceil(self.row_bytes).max(1));
        let row = u128::from(offset / self.row_bytes).min(rows - 1);
        let column = u128::from(offset % self.row_bytes) * columns / u128::from(self.row_bytes);
        // Share k begins with row `rows` × k ÷ `shares`, rounded down.
        let share = ((row + 1) * shares).div_ceil(rows).max(1) - 1;
        (share.min(shares.max(1) - 1) * columns + column) as u32
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}`: expected shares of the rows, columns and the size of a row, as in `2x4/384K`"
            )
        };
        let (grid, row) = text.split_once('/').ok_or_else(expected)?;
        let (rows, columns) = grid.split_once('x').ok_or_else(expected)?;
        let number = |digits: &str| digits.parse().map_err(|_| expected());
        Self::new(number(rows)?, number(columns)?, bytes_of(row)?).ok_or_else(expected)
    }
}

impl fmt::Display for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            columns,
            row_bytes,
        } = *self;
        write!(f, "{rows}x{columns}/{}", print_size(row_bytes))
    }
}

/// The two factors of a number that are nearest to each other, the smaller first.
fn squarest(all: u32) -> [u32; 2] {
    let less = (1..=all.isqrt())
        .rev()
        .find(|less| all.is_multiple_of(*less));
    let less = less.unwrap_or(1);
    [less, all / less]
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proportions::tests::proportions;

    pub(crate) fn parts() -> impl Strategy<Value = Parts> {
        let part = (0u64..1 << 50, 1u64..1 << 50);
        (
            prop::collection::vec(part, 1..5),
            any::<u32>().prop_map(u64::from),
            prop::option::of(proportions()),
        )
            .prop_map(|(steps, more, proportions)| {
                let mut at = 0;
                let part = |(gap, bytes): (u64, u64)| {
                    let start = at + gap;
                    at = start + bytes;
                    start..at
                };
                let parts: Vec<_> = steps.into_iter().map(part).collect();
                let parts = Parts::new(parts, at + more).expect("parts ascend");
                Parts {
                    proportions,
                    ..parts
                }
            })
    }

    pub(crate) fn tiles() -> impl Strategy<Value = Tiles> {
        (1u32..100, 1u32..100, 1u64..)
            .prop_map(|(rows, columns, row)| Tiles::new(rows, columns, row).expect("in bounds"))
    }

    #[test]
    fn shares_of_parts_grow_with_the_object() {
        let parts = Parts::read("0-4K,8K-16K/16K").expect("parts");
        assert_eq!(
            parts.shares(16 << 10, 2),
            [(0, 0), (2048, 1), (6144, 0), (12288, 1)]
        );
        let twice = parts.shares(32 << 10, 2);
        assert_eq!(twice, [(0, 0), (4096, 1), (12288, 0), (24576, 1)]);
    }

    #[test]
    fn shares_have_proportions() {
        let parts = Parts::read("0-6K/8K/2:3:1").expect("parts");
        assert_eq!(parts.to_string(), "0-6K/8K/2:3:1");
        let shares = parts.shares(8 << 10, 3);
        assert_eq!(shares, [(0, 0), (2048, 1), (5120, 2)]);
        let twice = parts.shares(16 << 10, 3);
        assert_eq!(twice, [(0, 0), (4096, 1), (10240, 2)]);
        assert!(!parts.is_whole() && Parts::read("0-8K/8K/1:2").expect("parts").is_whole());
        let farther = parts.farther(1, 2).expect("parts");
        assert_eq!(farther.to_string(), "0-3K/8K/2:3:1");
    }

    #[test]
    fn parts_are_farther_into_the_same_object() {
        let parts = Parts::read("0-6K,9K-12K/16K").expect("parts");
        let farther = |times, by| parts.farther(times, by).map(|parts| parts.to_string());
        assert_eq!(farther(2, 3).as_deref(), Some("0-4K,6K-8K/16K"));
        // The last part would begin at 18 KiB.
        assert_eq!(farther(2, 1).as_deref(), Some("0-12K/16K"));
        assert_eq!(farther(1, 1 << 20), None);
    }

    #[test]
    fn a_grid_keeps_its_shape_with_another_team() {
        let grid = |text: &str, threads| Tiles::read(text).expect(text).grid(threads);
        assert_eq!(grid("2x4/64K", 8), [2, 4]);
        assert_eq!(grid("2x4/64K", 16), [4, 4]);
        assert_eq!(grid("2x4/64K", 6), [2, 3]);
        assert_eq!(grid("4x2/64K", 6), [3, 2]);
        assert_eq!(grid("2x8/64K", 12), [2, 6]);
        assert_eq!(grid("2x4/64K", 7), [1, 7]);
        // Columns stay columns, and rows rows.
        assert_eq!(grid("1x7/64K", 16), [1, 16]);
        assert_eq!(grid("3x1/64K", 4), [4, 1]);
    }

    #[test]
    fn tiles_are_row_shares_of_columns() {
        // Five rows of 100 bytes, two shares: two rows and three.
        let tiles = Tiles::new(2, 2, 100).expect("tiles");
        let of = |offset| tiles.thread(offset, 500, 4);
        assert_eq!(
            [0, 49, 50, 199, 200, 250, 499].map(of),
            [0, 0, 1, 1, 2, 3, 3]
        );
    }

    proptest! {
        #[test]
        fn shares_ascend_from_the_beginning(parts in parts(), size_bytes in 1u64.., threads in 1usize..20) {
            let shares = parts.shares(size_bytes, threads);
            prop_assert_eq!(shares[0].0, 0);
            prop_assert!(shares.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert!(shares.iter().all(|share| share.1 < threads));
        }

        #[test]
        fn every_offset_has_a_tile(tiles in tiles(), size_bytes in 1u64.., offset in any::<u64>(), threads in 1u32..300) {
            let [rows, columns] = tiles.grid(threads);
            prop_assert_eq!(rows * columns, threads);
            prop_assert!(tiles.thread(offset, size_bytes, threads) < threads);
        }
    }
}
