//! Pins of threads to nodes that a policy requests, if the user has allowed this.

use nearpage_machine::CpuList;
use rustc_hash::FxHashMap;

use crate::kernel::Kernel;

/// Pins of one process's threads: requested CPUs, and the affinity before.
#[derive(Debug, Default)]
pub struct Pins {
    /// Requested CPUs by thread id.
    requested: FxHashMap<u32, CpuList>,
    before: FxHashMap<u32, CpuList>,
}

impl Pins {
    /// Requests that a thread runs on these CPUs.
    pub fn request(&mut self, tid: u32, cpus: CpuList) {
        self.requested.insert(tid, cpus);
    }

    /// Number of requested pins.
    pub fn requested_count(&self) -> usize {
        self.requested.len()
    }

    /// Drops all requests.
    pub fn drop_requests(&mut self) {
        self.requested.clear();
    }

    /// Pins threads of process `pid`, each to those of its requested CPUs on which it may run. A thread that may run on
    /// none of them stays. Returns the number of pinned threads.
    pub fn carry_out(&mut self, kernel: &mut dyn Kernel, pid: u32) -> u64 {
        let mut pinned = 0;
        for (tid, cpus) in std::mem::take(&mut self.requested) {
            let Some(now) = kernel.affinity(pid, tid) else {
                continue; // The thread has ended.
            };
            let before = self.before.get(&tid).unwrap_or(&now);
            let cpus: CpuList = cpus
                .as_slice()
                .iter()
                .copied()
                .filter(|cpu| before.contains(*cpu))
                .collect();
            if !cpus.as_slice().is_empty() && kernel.set_affinity(pid, tid, &cpus) {
                self.before.entry(tid).or_insert(now);
                pinned += 1;
            }
        }
        pinned
    }

    /// Restores the affinity that threads had before.
    pub fn undo(&mut self, kernel: &mut dyn Kernel, pid: u32) {
        for (tid, cpus) in self.before.drain() {
            kernel.set_affinity(pid, tid, &cpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use nearpage_machine::NodeId;

    use super::*;

    struct Threads(FxHashMap<u32, CpuList>);

    impl Kernel for Threads {
        fn now_ns(&mut self) -> u64 {
            0
        }

        fn sleep_ns(&mut self, _: u64) {}

        fn started(&mut self, _: u32) -> Option<u64> {
            Some(1)
        }

        fn affinity(&mut self, _: u32, tid: u32) -> Option<CpuList> {
            self.0.get(&tid).cloned()
        }

        fn set_affinity(&mut self, _: u32, tid: u32, cpus: &CpuList) -> bool {
            self.0.insert(tid, cpus.clone()).is_some()
        }

        fn move_pages(&mut self, _: u32, _: &[u64], _: &[NodeId], _: &mut [i32]) -> io::Result<()> {
            unreachable!("no pages here")
        }
    }

    #[test]
    fn threads_run_where_they_may_and_go_back() {
        let list = |text: &str| text.parse::<CpuList>().expect("a list");
        let mut kernel = Threads(FxHashMap::from_iter([
            (1, list("0-7")),
            (2, list("0-2")),
            (3, list("0-3")),
        ]));
        let before = kernel.0.clone();
        let mut pins = Pins::default();
        for tid in 1..=4 {
            pins.request(tid, list("2-3"));
        }
        pins.request(2, list("4-5"));
        assert_eq!(
            pins.carry_out(&mut kernel, 9),
            2,
            "one may not, one has ended"
        );
        assert_eq!(kernel.0[&1], list("2-3"));
        assert_eq!(kernel.0[&2], list("0-2"));
        // From its current CPU to one that it was allowed at first.
        pins.request(1, list("6-7"));
        assert_eq!(pins.carry_out(&mut kernel, 9), 1);
        assert_eq!(kernel.0[&1], list("6-7"));
        pins.undo(&mut kernel, 9);
        assert_eq!(kernel.0, before);
    }
}
