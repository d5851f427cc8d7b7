//! Samples of pages since the last decision (Table 2, per-page statistics).

use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, ThreadIndex};

use crate::{Copies, Observation};

/// A sampled page.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiled {
    /// The page.
    pub page: u32,
    /// Copies of the page at its last sample.
    pub copies: Copies,
    /// Samples by thread.
    pub by_thread: Vec<(ThreadIndex, u32)>,
    /// Number of samples that were stores.
    pub stores: u32,
}

/// The page has no row.
const NONE: u32 = u32::MAX;

/// Samples of a bounded number of pages.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Row of each page.
    row_of: Vec<u32>,
    /// Rows from `used` on are kept for reuse of their memory.
    rows: Vec<Profiled>,
    used: usize,
    rows_most: usize,
}

impl Profile {
    /// A profile for `pages` pages, of which at most `rows_most` are profiled at a time.
    pub fn new(pages: usize, rows_most: u64) -> Self {
        Self {
            row_of: vec![NONE; pages],
            rows: Vec::new(),
            used: 0,
            rows_most: usize::try_from(rows_most).unwrap_or(usize::MAX),
        }
    }

    /// Adds a sample of data that went to memory or hit in the first-level cache. First-level hits include prefetched
    /// lines, and "for memory-intensive applications there is a higher correlation between the accesses that hit in the
    /// cache and those that access DRAM" (§3.3.1).
    pub fn sample(&mut self, observation: &Observation) {
        let &Observation {
            page,
            thread,
            kind,
            served,
            copies,
            ..
        } = observation;
        let other_level = matches!(served, Served::L2 | Served::L3 | Served::WriteBack);
        if other_level || kind == AccessKind::Fetch {
            return;
        }
        let row = &mut self.row_of[page as usize];
        if *row == NONE {
            if self.used >= self.rows_most {
                return;
            }
            *row = self.used as u32;
            match self.rows.get_mut(self.used) {
                Some(profiled) => {
                    profiled.page = page;
                    profiled.stores = 0;
                    profiled.by_thread.clear();
                }
                None => self.rows.push(Profiled {
                    page,
                    copies,
                    by_thread: Vec::new(),
                    stores: 0,
                }),
            }
            self.used += 1;
        }
        let profiled = &mut self.rows[*row as usize];
        profiled.copies = copies;
        profiled.stores += u32::from(kind == AccessKind::Store);
        match profiled
            .by_thread
            .iter_mut()
            .find(|(other, _)| *other == thread)
        {
            Some((_, count)) => *count += 1,
            None => profiled.by_thread.push((thread, 1)),
        }
    }

    /// Drops the samples of a page, because the driver uses the page's number for another page.
    pub fn forget(&mut self, page: u32) {
        let row = self.row_of[page as usize];
        if row != NONE {
            let profiled = &mut self.rows[row as usize];
            profiled.by_thread.clear();
            profiled.stores = 0;
        }
    }

    /// The sampled pages, in the order of their first samples.
    pub fn pages(&self) -> &[Profiled] {
        &self.rows[..self.used]
    }

    /// Drops all samples.
    pub fn clear(&mut self) {
        for profiled in &self.rows[..self.used] {
            self.row_of[profiled.page as usize] = NONE;
        }
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_level_hits_are_kept_and_other_levels_are_not() {
        use AccessKind::{Fetch, Load, Store};
        let mut profile = Profile::new(4, 2);
        let mut sample = |page, thread, kind, served| {
            profile.sample(&Observation {
                page,
                node: 0,
                thread: ThreadIndex(thread),
                kind,
                served,
                copies: Copies::at(1),
                pressure: false,
            });
        };
        sample(2, 5, Load, Served::L1);
        sample(2, 5, Store, Served::Memory);
        sample(2, 6, Load, Served::OtherCache);
        sample(2, 6, Load, Served::L2);
        sample(2, 6, Load, Served::L3);
        sample(2, 6, Store, Served::WriteBack);
        sample(2, 6, Fetch, Served::Memory);
        sample(1, 6, Load, Served::L1);
        // Only two pages are profiled at a time, so the third is not.
        sample(0, 6, Load, Served::L1);
        let rows = profile.pages();
        assert_eq!(rows.iter().map(|row| row.page).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(
            rows[0].by_thread,
            [(ThreadIndex(5), 2), (ThreadIndex(6), 1)]
        );
        assert_eq!(rows[0].stores, 1);
        profile.clear();
        assert_eq!(profile.pages(), []);
        // Old samples do not reappear in the reused row.
        profile.sample(&Observation {
            page: 3,
            node: 0,
            thread: ThreadIndex(7),
            kind: Load,
            served: Served::L1,
            copies: Copies::at(2),
            pressure: false,
        });
        let new = Profiled {
            page: 3,
            copies: Copies::at(2),
            by_thread: vec![(ThreadIndex(7), 1)],
            stores: 0,
        };
        assert_eq!(profile.pages(), [new]);
    }
}
