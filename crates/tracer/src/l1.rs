//! A first-level cache that evicts the least recently used line.
//!
//! Only its own CPU's thread looks lines up, without a lock, and fills them. Other threads invalidate or share lines by
//! changing a tag, and only if the tag is still the one that they read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nearpage_wire::tracer_setup::Cache;

use crate::sets::Sets;

/// The state of a shared line. The state is in a tag's two low bits, below the line's number; 0: the entry is empty.
pub const SHARED: u64 = 1;
/// The state of a line that no other CPU had when it was fetched. Whether another has it now, the directory knows.
pub const EXCLUSIVE: u64 = 2;
/// The state of a modified line, of which memory has an older version.
pub const MODIFIED: u64 = 3;

/// The cache.
pub struct L1 {
    /// For each set, the way used last, then the tags. With more than two ways, the time of each way's last use follows,
    /// except for the way used last; with two ways, the other one is the oldest. Other threads than its own CPU's
    /// use only the tags.
    sets: Sets<AtomicU64>,
    ways: usize,
    clock: AtomicU64,
    /// Number of lines that other CPUs have invalidated.
    taken: AtomicU64,
}

/// A set.
struct Set<'a> {
    recent: &'a AtomicU64,
    tags: &'a [AtomicU64],
    used: &'a [AtomicU64],
}

impl L1 {
    /// An empty cache.
    pub fn new(shape: &Cache, line_bytes: u32) -> Self {
        let ways = shape.ways as usize;
        let words = if ways > 2 { 1 + 2 * ways } else { 1 + ways };
        Self {
            sets: Sets::new(shape.sets(line_bytes), words),
            ways,
            clock: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    #[inline]
    fn serves<const STORE: bool>(tag: u64, line: u64) -> bool {
        if STORE {
            tag == line << 2 | MODIFIED
        } else {
            // True for any state but empty.
            (tag ^ line << 2).wrapping_sub(1) < MODIFIED
        }
    }

    #[inline]
    fn set(&self, line: u64) -> Set<'_> {
        // Every set of `Sets` has words.
        match self.sets.of(line) {
            [recent, rest @ ..] => {
                let (tags, used) = rest.split_at(self.ways.min(rest.len()));
                Set { recent, tags, used }
            }
            [] => Set {
                recent: &self.clock,
                tags: &[],
                used: &[],
            },
        }
    }

    /// The way used last and the tags, if the cache has two ways, as most have.
    #[inline]
    fn two_ways(&self, line: u64) -> Option<&[AtomicU64; 3]> {
        self.sets.exactly(line)
    }

    /// Does the way used last serve this reference to the line? If not, call [`Self::access`].
    #[inline]
    pub fn quick<const STORE: bool>(&self, line: u64) -> bool {
        if let Some([recent, first, second]) = self.two_ways(line) {
            let tag = if recent.load(Relaxed) == 0 {
                first
            } else {
                second
            };
            return Self::serves::<STORE>(tag.load(Relaxed), line);
        }
        let words = self.sets.of(line);
        let recent = words.first().map_or(0, |way| way.load(Relaxed));
        match words.get(1 + recent as usize) {
            Some(tag) => Self::serves::<STORE>(tag.load(Relaxed), line),
            None => false,
        }
    }

    /// Uses the line, if it is here in a state that serves the reference.
    #[inline]
    pub fn access<const STORE: bool>(&self, line: u64) -> bool {
        if let Some([recent, first, second]) = self.two_ways(line) {
            // The host cannot predict which way it is, so there is no branch on that.
            let in_first = Self::serves::<STORE>(first.load(Relaxed), line);
            let in_second = Self::serves::<STORE>(second.load(Relaxed), line);
            if in_first | in_second {
                recent.store(u64::from(in_second), Relaxed);
            }
            return in_first | in_second;
        }
        self.access_any::<STORE>(line)
    }

    #[inline(never)]
    fn access_any<const STORE: bool>(&self, line: u64) -> bool {
        let set = self.set(line);
        for (way, tag) in set.tags.iter().enumerate() {
            if Self::serves::<STORE>(tag.load(Relaxed), line) {
                self.use_now(&set, way);
                return true;
            }
        }
        false
    }

    /// Number of lines that other CPUs have invalidated so far.
    #[inline]
    pub fn invalidated_lines(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Is the line here, in whatever state?
    #[inline]
    pub fn has(&self, line: u64) -> bool {
        let mut tags = self.set(line).tags.iter();
        tags.any(|tag| Self::serves::<false>(tag.load(Relaxed), line))
    }

    #[inline]
    fn use_now(&self, set: &Set, way: usize) {
        let before = set.recent.load(Relaxed) as usize;
        if before != way {
            if let Some(used) = set.used.get(before) {
                // A way's time is stored when it ceases to be the most recent: the order is that of the last uses.
                let now = self.clock.load(Relaxed) + 1;
                self.clock.store(now, Relaxed);
                used.store(now, Relaxed);
            }
            set.recent.store(way as u64, Relaxed);
        }
    }

    /// Inserts the line, or changes its state. Only for its own CPU's thread.
    #[inline]
    pub fn fill(&self, line: u64, state: u64) {
        if let Some([recent, first, second]) = self.two_ways(line) {
            let tags = (first.load(Relaxed), second.load(Relaxed));
            let to_first = if Self::serves::<false>(tags.1, line) {
                false
            } else if Self::serves::<false>(tags.0, line) || tags.0 == 0 {
                true
            } else {
                tags.1 != 0 && recent.load(Relaxed) != 0
            };
            let tag = if to_first { first } else { second };
            tag.store(line << 2 | state, Relaxed);
            recent.store(u64::from(!to_first), Relaxed);
            return;
        }
        self.fill_any(line, state);
    }

    #[inline(never)]
    fn fill_any(&self, line: u64, state: u64) {
        let set = self.set(line);
        let mut found = None;
        for (way, tag) in set.tags.iter().enumerate().rev() {
            let tag = tag.load(Relaxed);
            if Self::serves::<false>(tag, line) {
                found = Some(way);
                break;
            }
            if tag == 0 {
                found = Some(way);
            }
        }
        let way = found.unwrap_or_else(|| set.oldest());
        if let Some(tag) = set.tags.get(way) {
            tag.store(line << 2 | state, Relaxed);
            self.use_now(&set, way);
        }
    }

    /// Changes the line's state if it is here; state 0 removes it. For any thread that
    /// has locked the line's directory set.
    #[inline]
    pub fn change(&self, line: u64, state: u64) {
        if let Some([_, first, second]) = self.two_ways(line) {
            self.change_tag(first, line, state);
            self.change_tag(second, line, state);
            return;
        }
        self.set(line)
            .tags
            .iter()
            .for_each(|tag| self.change_tag(tag, line, state));
    }

    #[inline]
    fn change_tag(&self, tag: &AtomicU64, line: u64, state: u64) {
        let here = tag.load(Relaxed);
        if Self::serves::<false>(here, line) {
            let now = if state == 0 { 0 } else { line << 2 | state };
            // The CPU's own thread may replace the line at this moment.
            let _ = tag.compare_exchange(here, now, Relaxed, Relaxed);
            if state == 0 {
                self.taken.fetch_add(1, Relaxed);
            }
        }
    }

    /// All tags.
    #[cfg(test)]
    pub fn tags(&self) -> impl Iterator<Item = u64> {
        let sets = 0..(self.sets.all().len() / self.sets.ways()) as u64;
        sets.flat_map(|set| self.set(set).tags)
            .map(|tag| tag.load(Relaxed))
    }
}

impl Set<'_> {
    /// The least recently used way.
    #[inline]
    fn oldest(&self) -> usize {
        let recent = self.recent.load(Relaxed) as usize;
        if self.used.is_empty() {
            return usize::from(recent == 0 && self.tags.len() == 2);
        }
        let others = self.used.iter().enumerate();
        let others = others.filter(|(way, _)| *way != recent);
        let oldest = others.min_by_key(|(_, used)| used.load(Relaxed));
        oldest.map_or(0, |(way, _)| way)
    }
}
