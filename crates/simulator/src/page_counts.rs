//! Counts of page movements, and of pages in use.

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageCounts {
    pub migrated: u64,
    pub replicated: u64,
    pub interleaved: u64,
    pub collapsed: u64,
    /// Fresh copies after a collapse.
    pub refreshed: u64,
    pub reclaimed: u64,
    pub ping_pong: u64,
    pub multiple: u64,
    pub incorrect: u64,
    pub overcommitted: u64,
    pub pages_max: u64,
    /// Sum of pages in use × time in femtoseconds.
    pub page_time: u128,
}

impl PageCounts {
    /// Adds the counts of another phase.
    pub fn add(&mut self, other: &Self) {
        self.migrated += other.migrated;
        self.replicated += other.replicated;
        self.interleaved += other.interleaved;
        self.collapsed += other.collapsed;
        self.refreshed += other.refreshed;
        self.reclaimed += other.reclaimed;
        self.ping_pong += other.ping_pong;
        self.multiple += other.multiple;
        self.incorrect += other.incorrect;
        self.overcommitted += other.overcommitted;
        self.pages_max = self.pages_max.max(other.pages_max);
        self.page_time += other.page_time;
    }
}
