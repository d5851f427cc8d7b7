//! Who accessed whose memory.

use nearpage_recording::AccessKind;

use crate::decide::Observed;
use crate::observer::Observer;

/// Who accessed whose memory in an interval.
pub struct Tally {
    /// By node of the CPU and node of the page.
    pub traffic: Vec<Vec<u64>>,
    /// Of each thread: loads and fetches, and stores.
    pub by_thread: Vec<[u64; 2]>,
    /// Of each process: local accesses, and all.
    pub local: Vec<(u64, u64)>,
}

impl Tally {
    /// Nothing was seen yet.
    pub fn of(nodes: usize, observer: &Observer) -> Self {
        Self {
            traffic: vec![vec![0; nodes]; nodes],
            by_thread: vec![[0; 2]; observer.threads().len()],
            local: vec![(0, 0); observer.processes().len()],
        }
    }

    /// Takes in an access.
    pub fn count(&mut self, observed: &Observed, observer: &Observer) {
        let (node, home) = (usize::from(observed.node), usize::from(observed.home));
        self.traffic[node][home] += 1;
        let thread = observed.thread as usize;
        self.by_thread[thread][usize::from(observed.kind == AccessKind::Store)] += 1;
        let (ours, all) = &mut self.local[observer.threads()[thread].process.0 as usize];
        *ours += u64::from(node == home);
        *all += 1;
    }
}
