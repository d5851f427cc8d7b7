//! A small cache of facts about the sampled threads, in front of the tables of threads, processes and weights. Changes
//! of these tables clear the cache.

use nearpage_recording::ThreadIndex;

/// A thread that was sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookasideEntry {
    pub pid: u32,
    pub tid: u32,
    /// `None` if the thread's samples do not count.
    pub thread: Option<ThreadIndex>,
    /// Position of the process's address space.
    pub space: u32,
    /// Weight of the thread's samples.
    pub weight: f32,
}

/// Number of places in the cache. Threads that run at the same time have close ids, so that each has its own place.
const PLACES: usize = 512;

/// Cache of threads by thread id.
#[derive(Debug)]
pub(crate) struct Lookaside {
    /// Entries with their generation.
    places: Vec<(u64, LookasideEntry)>,
    generation: u64,
}

impl Default for Lookaside {
    fn default() -> Self {
        let empty = LookasideEntry {
            pid: 0,
            tid: 0,
            thread: None,
            space: 0,
            weight: 1.0,
        };
        Self {
            places: vec![(0, empty); PLACES],
            generation: 1,
        }
    }
}

impl Lookaside {
    pub fn find(&self, pid: u32, tid: u32) -> Option<LookasideEntry> {
        let (generation, sampled) = self.places[tid as usize % PLACES];
        let is_found = generation == self.generation && sampled.tid == tid && sampled.pid == pid;
        is_found.then_some(sampled)
    }

    pub fn keep(&mut self, sampled: LookasideEntry) {
        self.places[sampled.tid as usize % PLACES] = (self.generation, sampled);
    }

    pub fn clear(&mut self) {
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_the_last_thread_until_the_cache_is_cleared() {
        let mut lookaside = Lookaside::default();
        assert!(lookaside.find(0, 0).is_none());
        for tid in [5, 5 + PLACES as u32] {
            lookaside.keep(LookasideEntry {
                pid: 5,
                tid,
                thread: Some(ThreadIndex(tid)),
                space: 0,
                weight: 2.0,
            });
            let found = lookaside.find(5, tid).and_then(|sampled| sampled.thread);
            assert_eq!(found, Some(ThreadIndex(tid)));
        }
        assert!(lookaside.find(5, 5).is_none());
        assert!(lookaside.find(6, 5 + PLACES as u32).is_none());
        lookaside.clear();
        assert!(lookaside.find(5, 5 + PLACES as u32).is_none());
    }
}
