//! Which pages a thread's trace says it has stored to.

/// Instructions after which the first store to each page is written down again, even if it hits: a
/// copy of a page that is stored to must not outlive that by longer.
const STORES_FORGOTTEN_AFTER: u64 = 100_000;

/// Pages that a thread's trace says it has stored to lately. Of two pages with the same place in it
/// the later one stays, and the other is written down once more than it need be.
pub struct StoredPages {
    pages: [u64; 64],
    /// Virtual time at which they are forgotten.
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
