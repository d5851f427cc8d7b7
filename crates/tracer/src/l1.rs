//! A first-level cache, least recently used goes first.
//!
//! Its own CPU's thread looks it up without a lock and alone fills it; what others take away or
//! share, they change tag by tag, and only if the tag is still what they saw.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use nearpage_wire::tracer_setup::Cache;

/// Low bits of a tag; the line's number is above them. 0: the entry is empty.
pub const SHARED: u64 = 1;
/// No other CPU has the line.
pub const EXCLUSIVE: u64 = 2;
/// And memory has it not as it is.
pub const MODIFIED: u64 = 3;

/// The cache.
pub struct L1 {
    set_mask: u64,
    ways: usize,
    tags: Box<[AtomicU64]>,
    /// Of each set, the way used last. Only its own CPU's thread knows this and the next two.
    recent: Box<[AtomicU8]>,
    /// When each way was last used, but for the most recent one.
    used: Box<[AtomicU64]>,
    clock: AtomicU64,
    /// Lines that others have taken away.
    taken: AtomicU64,
}

fn words(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl L1 {
    /// An empty one.
    pub fn new(shape: &Cache, line_bytes: u32) -> Self {
        let sets = shape.sets(line_bytes) as usize;
        let ways = shape.ways as usize;
        Self {
            set_mask: sets as u64 - 1,
            ways,
            tags: words(sets * ways),
            recent: (0..sets).map(|_| AtomicU8::new(0)).collect(),
            used: words(sets * ways),
            clock: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    #[inline]
    fn serves<const STORE: bool>(tag: u64, line: u64) -> bool {
        if STORE {
            tag == line << 2 | MODIFIED
        } else {
            // Any state but empty.
            (tag ^ line << 2).wrapping_sub(1) < MODIFIED
        }
    }

    #[inline]
    fn first(&self, line: u64) -> (usize, usize) {
        let set = (line & self.set_mask) as usize;
        (set, set * self.ways)
    }

    #[inline]
    fn set(&self, line: u64) -> &[AtomicU64] {
        let (_, first) = self.first(line);
        self.tags.get(first..first + self.ways).unwrap_or_default()
    }

    /// Is the line in the way used last, good enough for this? `false`: ask [`Self::access`].
    #[inline]
    pub fn quick<const STORE: bool>(&self, line: u64) -> bool {
        let (set, first) = self.first(line);
        let Some(recent) = self.recent.get(set) else {
            return false;
        };
        match self.tags.get(first + usize::from(recent.load(Relaxed))) {
            Some(tag) => Self::serves::<STORE>(tag.load(Relaxed), line),
            None => false,
        }
    }

    /// Uses the line if it is here and good enough.
    #[inline]
    pub fn access<const STORE: bool>(&self, line: u64) -> bool {
        for (way, tag) in self.set(line).iter().enumerate() {
            if Self::serves::<STORE>(tag.load(Relaxed), line) {
                self.use_now(line, way);
                return true;
            }
        }
        false
    }

    /// Lines that were taken away so far.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Is the line here, in whatever state?
    #[inline]
    pub fn has(&self, line: u64) -> bool {
        let mut tags = self.set(line).iter();
        tags.any(|tag| Self::serves::<false>(tag.load(Relaxed), line))
    }

    #[inline]
    fn use_now(&self, line: u64, way: usize) {
        let (set, first) = self.first(line);
        let Some(recent) = self.recent.get(set) else {
            return;
        };
        let before = usize::from(recent.load(Relaxed));
        if before != way {
            // The order in which ways cease to be the most recent is that of their last uses.
            let now = self.clock.load(Relaxed) + 1;
            self.clock.store(now, Relaxed);
            if let Some(used) = self.used.get(first + before) {
                used.store(now, Relaxed);
            }
            recent.store(way as u8, Relaxed);
        }
    }

    /// Puts the line here, or changes its state. For its own thread.
    #[inline]
    pub fn fill(&self, line: u64, state: u64) {
        let (set, first) = self.first(line);
        let used = self.used.get(first..first + self.ways).unwrap_or_default();
        let recent = self.recent.get(set).map_or(0, |way| way.load(Relaxed));
        let (mut best, mut best_rank) = (0, u64::MAX);
        for (way, (tag, used)) in self.set(line).iter().zip(used).enumerate() {
            let tag = tag.load(Relaxed);
            if Self::serves::<false>(tag, line) {
                best = way;
                break;
            }
            let rank = if tag == 0 {
                0
            } else if way == usize::from(recent) {
                u64::MAX
            } else {
                1 + used.load(Relaxed)
            };
            if rank < best_rank {
                (best, best_rank) = (way, rank);
            }
        }
        if let Some(tag) = self.tags.get(first + best) {
            tag.store(line << 2 | state, Relaxed);
            self.use_now(line, best);
        }
    }

    /// Gives the line another state if it is here, or takes it away with state 0. For any thread that
    /// has the line's directory set locked.
    #[inline]
    pub fn change(&self, line: u64, state: u64) {
        for tag in self.set(line) {
            let here = tag.load(Relaxed);
            if Self::serves::<false>(here, line) {
                let now = if state == 0 { 0 } else { line << 2 | state };
                // Its own thread may just put another line in its place.
                let _ = tag.compare_exchange(here, now, Relaxed, Relaxed);
                if state == 0 {
                    self.taken.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// All tags.
    #[cfg(test)]
    pub fn tags(&self) -> impl Iterator<Item = u64> {
        self.tags.iter().map(|tag| tag.load(Relaxed))
    }
}
