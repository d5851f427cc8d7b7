//! The pages of which a thread's trace says that it has stored to them.

/// Instructions after which the next store to a page is recorded again, even if it hits: the simulator keeps a
/// copy of a page that is stored to for no longer than that.
const STORES_FORGOTTEN_AFTER: u64 = 100_000;

/// The pages to which a thread has stored lately, by its trace. Of two pages with the same place in the table, the later
/// one stays, and a store to the other is recorded once more than necessary.
pub struct StoredPages {
    pages: [u64; 64],
    /// Virtual time at which all pages are forgotten.
    until: u64,
}

impl StoredPages {
    pub const fn new() -> Self {
        Self {
            pages: [u64::MAX; 64],
            until: 0,
        }
    }

    #[inline]
    pub fn has(&self, page: u64) -> bool {
        self.pages[page as usize % self.pages.len()] == page
    }

    #[inline]
    pub fn add(&mut self, page: u64) {
        self.pages[page as usize % self.pages.len()] = page;
    }

    pub fn forget_at(&mut self, time: u64) {
        if time >= self.until {
            self.pages.fill(u64::MAX);
            self.until = time + STORES_FORGOTTEN_AFTER;
        }
    }
}
