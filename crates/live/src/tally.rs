//! Accesses by the nodes of CPU and page.

use nearpage_recording::AccessKind;

use crate::decide::ObservedAccess;
use crate::observer::Observer;

/// Accesses of an interval by the nodes of CPU and page.
pub struct Tally {
    nodes: usize,
    /// `[CPU's node × nodes + page's node]`.
    traffic: Vec<u64>,
    by_thread: Vec<ThreadTally>,
}

/// A thread's accesses: `[page of its own node][store]`.
type ThreadTally = [[u64; 2]; 2];

impl Tally {
    /// A tally without accesses.
    pub fn of(nodes: usize, observer: &Observer) -> Self {
        Self {
            nodes,
            traffic: vec![0; nodes * nodes],
            by_thread: vec![ThreadTally::default(); observer.threads().len()],
        }
    }

    /// Counts an access.
    #[inline]
    pub fn count(&mut self, observed: &ObservedAccess) {
        let (node, home) = (usize::from(observed.node), usize::from(observed.home));
        self.traffic[node * self.nodes + home] += 1;
        let local = usize::from(node == home);
        let store = usize::from(observed.kind == AccessKind::Store);
        self.by_thread[observed.thread as usize][local][store] += 1;
    }

    /// Accesses by node of the CPU and node of the page.
    pub fn traffic(&self) -> Vec<Vec<u64>> {
        self.traffic
            .chunks(self.nodes)
            .map(<[u64]>::to_vec)
            .collect()
    }

    /// Number of a thread's loads and fetches, and of its stores.
    pub fn reads_and_writes(&self, thread: usize) -> [u64; 2] {
        let [remote, local] = self.by_thread[thread];
        [remote[0] + local[0], remote[1] + local[1]]
    }

    /// Number of local accesses and of all accesses, by process.
    pub fn local(&self, observer: &Observer) -> Vec<(u64, u64)> {
        let mut local = vec![(0, 0); observer.processes().len()];
        for (thread, [remote, ours]) in observer.threads().iter().zip(&self.by_thread) {
            let (of_local, of_all) = &mut local[thread.process.0 as usize];
            let ours = ours[0] + ours[1];
            *of_local += ours;
            *of_all += ours + remote[0] + remote[1];
        }
        local
    }
}
