//! Tiles of an array of rows: pieces are the columns of one row after the other.

/// An array of rows. The rows are divided into shares, and each row into columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles<'plan> {
    /// Nodes of the tiles: those of the first share of the rows, then those of the next share, and so on.
    pub nodes: &'plan [u16],
    /// Number of tiles in a row: at least one, and a divisor of the number of `nodes`.
    pub columns: u32,
    /// Bytes of a row, at least one.
    pub row_bytes: u64,
}

impl Tiles<'_> {
    /// Offset of the end of a piece; pieces are the columns of one row after the other.
    pub(super) fn end(&self, piece: u64) -> u128 {
        let columns = u128::from(self.columns);
        let (row, column) = (u128::from(piece) / columns, u128::from(piece) % columns);
        let row_bytes = u128::from(self.row_bytes);
        row * row_bytes + row_bytes * (column + 1) / columns
    }

    /// Node of a piece of an object with `size_bytes` bytes.
    pub(super) fn node(&self, piece: u64, size_bytes: usize) -> u16 {
        let columns = u64::from(self.columns);
        let shares = (self.nodes.len() as u64 / columns).max(1);
        let rows = (size_bytes as u64).div_ceil(self.row_bytes).max(1);
        let row = (piece / columns).min(rows - 1);
        // Share k begins with row `rows` × k ÷ `shares`, rounded down.
        let share =
            ((u128::from(row) + 1) * u128::from(shares)).div_ceil(u128::from(rows)) as u64 - 1;
        let tile = share.min(shares - 1) * columns + piece % columns;
        usize::try_from(tile).map_or(0, |tile| self.nodes[tile.min(self.nodes.len() - 1)])
    }
}
