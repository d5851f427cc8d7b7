//! Cells (page × thread) of one group, bounded in number.
//!
//! # Bounds
//! A group keeps at most four cells per page, at least 256 and at most [`GROUP_CELLS_MAX`]. The bound holds for the
//! initialisation and for the later accesses separately. A group with more cells doubles its unit of pages until they
//! fit. All groups together keep at most [`CELLS_MAX`]; while they have more, each group's bound is halved. Both steps
//! depend only on the set of accesses, not on their order, so a recording has one result. A worker sees a part of the
//! set and allows itself twice both bounds. A part of a group never has more than twice the cells that the whole keeps
//! at the coarser unit. A group can't be coarser than one page, so the minimum is groups × threads.

use nearpage_recording::ThreadIndex;
use rustc_hash::FxHashMap;

use crate::{
    Cell,
    sum_table::SumTable,
    sums::{Amount, CellSum, accesses, nanoseconds},
};

/// Largest number of cells of one group.
pub(crate) const GROUP_CELLS_MAX: usize = 1 << 16;
/// Largest number of cells of all groups.
pub(crate) const CELLS_MAX: usize = 1 << 20;

/// Largest number of cells of a group whose largest object has `pages` pages. Four per page suffice where few threads
/// share a page. Where all threads access all pages, coarser pages have the same information.
pub(crate) fn cells_for(pages: u64) -> usize {
    usize::try_from(pages)
        .unwrap_or(GROUP_CELLS_MAX)
        .saturating_mul(4)
        .clamp(256, GROUP_CELLS_MAX)
}

/// Length of a number in bits.
fn bits(number: u32) -> u32 {
    u32::BITS - number.leading_zeros()
}

/// Key of the cell that the cell `key` becomes part of when the unit of pages grows by 2^`by`.
fn coarser(key: u64, by: u32) -> u64 {
    let page = (key >> 32) >> by;
    page << 32 | key & u64::from(u32::MAX)
}

/// Cells by page and thread, in units of 2^`shift` pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    shift: u32,
    sums: SumTable<u64, CellSum>,
}

fn key(page: u64, thread: ThreadIndex) -> u64 {
    page << 32 | u64::from(thread.0)
}

impl Cells {
    /// Adds an access to a page. Returns whether the cell is new.
    #[inline]
    pub fn add(&mut self, page: u64, thread: ThreadIndex, amount: Amount) -> bool {
        // Cell keys have 32 bits for the page number.
        while page >> self.shift >= u64::from(u32::MAX) {
            self.coarsen();
        }
        let (sum, new) = self.sums.entry(key(page >> self.shift, thread));
        sum.add(amount);
        new
    }

    /// Prefetches the cell of a page and thread.
    #[inline]
    pub fn prefetch(&self, page: u64, thread: ThreadIndex) {
        self.sums.prefetch(key(page >> self.shift, thread));
    }

    pub fn len(&self) -> usize {
        self.sums.len()
    }

    pub fn shift(&self) -> u32 {
        self.shift
    }

    fn coarsen(&mut self) {
        self.coarsen_to(self.shift + 1);
    }

    fn coarsen_to(&mut self, shift: u32) {
        let Some(by) = shift.checked_sub(self.shift).filter(|&by| by > 0) else {
            return;
        };
        self.shift = shift;
        // Coarser cells are no more than the fine ones, so they fit into the table's room.
        let fine = self.sums.take_packed();
        for (key, sum) in fine.iter() {
            self.sums.entry(coarser(key, by)).0.merge(sum);
        }
    }

    /// Coarsens until there are at most `cells_max` cells, or only one unit of pages.
    pub fn fit(&mut self, cells_max: usize) {
        if self.sums.len() > cells_max {
            self.coarsen_to(self.shift + self.doublings(cells_max));
        }
    }

    /// The least number of times that the unit of pages has to double for at most `cells_max` cells to be left. Where
    /// there are more threads than that, the number after which one unit of pages is left.
    fn doublings(&self, cells_max: usize) -> u32 {
        let mut keys: Vec<u64> = self
            .sums
            .iter()
            .map(|(key, _)| key.rotate_left(32))
            .collect();
        keys.sort_unstable();
        // Neighbours of one thread become one cell when the unit has doubled once for each bit up to the highest one in
        // which their pages differ.
        let mut merged = [0usize; 33];
        for pair in keys.windows(2) {
            let difference = pair[0] ^ pair[1];
            if let Ok(pages) = u32::try_from(difference) {
                merged[bits(pages) as usize] += 1;
            }
        }
        let mut cells = keys.len();
        let enough = merged.iter().position(|merged| {
            cells -= merged;
            cells <= cells_max
        });
        let one_unit = keys.iter().map(|&key| bits(key as u32)).max().unwrap_or(0);
        enough.map_or(one_unit, |doublings| doublings as u32)
    }

    pub fn merge(&mut self, other: &Cells) {
        self.coarsen_to(other.shift);
        let by = self.shift - other.shift;
        if by == 0 {
            self.sums.reserve(other.len().max(self.len()));
        }
        for (key, sum) in other.sums.iter() {
            self.sums.entry(coarser(key, by)).0.merge(sum);
        }
    }

    /// Takes the cells out as packed tables. `self` stays empty, with its room allocated.
    fn take_packed(&mut self) -> Self {
        Self {
            shift: std::mem::take(&mut self.shift),
            sums: self.sums.take_packed(),
        }
    }

    /// Brings both to the coarser of their units.
    pub fn align(&mut self, other: &mut Cells) {
        self.coarsen_to(other.shift);
        other.coarsen_to(self.shift);
    }

    /// Cells sorted by page, then thread.
    pub fn sorted(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self
            .sums
            .iter()
            .map(|(key, sum)| Cell {
                page: (key >> 32) as u32,
                thread: ThreadIndex(key as u32),
                loads: accesses(sum.loads) as f32,
                stores: accesses(sum.stores) as f32,
                cost_ns: nanoseconds(sum.cost) as f32,
                samples: sum.samples as f32,
            })
            .collect();
        cells.sort_unstable_by_key(|cell| (cell.page, cell.thread));
        cells
    }

    pub fn by_thread(&self, sums: &mut FxHashMap<ThreadIndex, CellSum>) {
        for (key, sum) in self.sums.iter() {
            sums.entry(ThreadIndex(key as u32)).or_default().merge(sum);
        }
    }
}

/// The cells of a group. The initialisation is kept apart: accesses of the first thread before a second thread
/// accessed the group.
#[derive(Clone, Debug, Default)]
pub(crate) struct PhasedCells {
    first: Option<ThreadIndex>,
    /// Whether a second thread has accessed the group.
    joined: bool,
    initialisation: Cells,
    /// Holds all cells until a second thread comes.
    cells: Cells,
}

impl PhasedCells {
    /// Adds an access that is not earlier than the previous ones. Returns whether the cell is new.
    #[inline]
    pub fn add(&mut self, page: u64, thread: ThreadIndex, amount: Amount) -> bool {
        if !self.joined {
            match self.first {
                None => self.first = Some(thread),
                Some(first) if first != thread => {
                    self.joined = true;
                    // A swap instead of a move keeps the memory that the empty table may have allocated.
                    std::mem::swap(&mut self.initialisation, &mut self.cells);
                }
                Some(_) => {}
            }
        }
        self.cells.add(page, thread, amount)
    }

    /// Prefetches the cell of a page and thread.
    #[inline]
    pub fn prefetch(&self, page: u64, thread: ThreadIndex) {
        self.cells.prefetch(page, thread);
    }

    pub fn len(&self) -> usize {
        self.cells.len() + self.initialisation.len()
    }

    /// Coarsens until the two parts have at most `cells_max` cells each, then brings both to one unit.
    pub fn fit(&mut self, cells_max: usize) {
        self.cells.fit(cells_max);
        self.initialisation.fit(cells_max);
        self.cells.align(&mut self.initialisation);
    }

    /// Appends the cells of later accesses.
    pub fn append(&mut self, later: &PhasedCells) {
        let Some(first) = later.first else { return };
        let Some(mine) = self.first else {
            self.clone_from(later);
            return;
        };
        if self.joined || (first == mine && !later.joined) {
            self.cells.merge(&later.initialisation);
            self.cells.merge(&later.cells);
            return;
        }
        self.joined = true;
        self.initialisation = std::mem::take(&mut self.cells);
        if first == mine {
            self.initialisation.merge(&later.initialisation);
        } else {
            self.cells.merge(&later.initialisation);
        }
        self.cells.merge(&later.cells);
    }

    /// Takes the cells out as packed tables. `self` stays empty, with its room allocated.
    pub fn take_packed(&mut self) -> Self {
        Self {
            first: self.first.take(),
            joined: std::mem::take(&mut self.joined),
            initialisation: self.initialisation.take_packed(),
            cells: self.cells.take_packed(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds the cells of another object, keeping the two initialisations.
    pub fn overlay(&mut self, other: &PhasedCells) {
        self.first = self.first.or(other.first);
        self.joined |= other.joined;
        self.initialisation.merge(&other.initialisation);
        self.cells.merge(&other.cells);
        self.cells.align(&mut self.initialisation);
    }

    /// The cells after the initialisation, and the cells of the initialisation.
    pub fn phases(&self) -> (&Cells, &Cells) {
        (&self.cells, &self.initialisation)
    }
}

#[cfg(test)]
mod tests {
    use nearpage_recording::AccessKind;
    use proptest::prelude::*;

    use super::*;

    fn phased(accesses: &[(u64, u32)]) -> PhasedCells {
        let mut cells = PhasedCells::default();
        for &(page, thread) in accesses {
            cells.add(
                page,
                ThreadIndex(thread),
                Amount::new(1.0, 1.0, AccessKind::Load),
            );
        }
        cells
    }

    proptest! {
        #[test]
        fn fits_as_if_coarsened_step_by_step(
            accesses in prop::collection::vec((prop_oneof![0u64..64, 0u64..1 << 31], 0u32..5), 0..200), bound in 0usize..60,
        ) {
            let mut cells = Cells::default();
            for (page, thread) in accesses {
                cells.add(page, ThreadIndex(thread), Amount::new(1.0, 1.0, AccessKind::Load));
            }
            let mut steps = cells.clone();
            while steps.len() > bound && steps.sums.iter().any(|(key, _)| key >> 32 > 0) {
                steps.coarsen();
            }
            cells.fit(bound);
            prop_assert_eq!(cells.sorted(), steps.sorted());
            prop_assert_eq!(cells.shift(), steps.shift());
        }

        /// Two halves of a run add up to the whole, wherever the run is cut.
        #[test]
        fn halves_make_the_whole(
            accesses in prop::collection::vec((0u64..64, 0u32..3), 0..60), cut in 0.0f64..1.0, bound in 1usize..40,
        ) {
            let cut = (accesses.len() as f64 * cut) as usize;
            let (mut whole, mut first, mut second) = (phased(&accesses), phased(&accesses[..cut]), phased(&accesses[cut..]));
            whole.fit(bound);
            first.fit(bound);
            second.fit(bound);
            let mut reused = second.clone();
            let taken = reused.take_packed();
            first.append(&taken);
            // `take_packed` copies all cells, and accesses added afterwards start from zero.
            prop_assert_eq!(taken.phases().0.sorted(), second.phases().0.sorted());
            prop_assert!(reused.is_empty());
            for &(page, thread) in &accesses[..cut] {
                reused.add(page, ThreadIndex(thread), Amount::new(1.0, 1.0, AccessKind::Load));
            }
            let anew = phased(&accesses[..cut]);
            prop_assert_eq!(reused.phases().0.sorted(), anew.phases().0.sorted());
            prop_assert_eq!(reused.phases().1.sorted(), anew.phases().1.sorted());
            first.fit(bound);
            prop_assert_eq!(whole.phases().0.sorted(), first.phases().0.sorted());
            prop_assert_eq!(whole.phases().1.sorted(), first.phases().1.sorted());
            prop_assert_eq!(whole.phases().0.shift(), first.phases().0.shift());
        }
    }
}
