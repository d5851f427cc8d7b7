//! Processes that ran before they were followed: which of them count, and their state.

use nearpage_recording::Event;
use rustc_hash::FxHashMap;

use super::Follower;
use crate::discovery::Discovery;
use crate::processes::{Mapping, Processes};

impl Follower {
    /// Whether records of a process count.
    pub(super) fn admits(&self, pid: u32) -> bool {
        let admits = |discovery: &Discovery| discovery.admits(pid);
        self.discovery.as_ref().is_none_or(admits)
    }

    /// Meets a process if its records count. Returns whether they do.
    pub(super) fn meet_admitted(&mut self, pid: u32) -> bool {
        self.admits(pid) && {
            self.meet(pid);
            self.admits(pid)
        }
    }

    /// Adds processes to the members.
    pub fn include(&mut self, pids: impl IntoIterator<Item = u32>) {
        self.lookaside.clear();
        if let Some(discovery) = &mut self.discovery {
            discovery.include(pids);
        }
    }

    /// Processes with records since the last call; none if all processes were started under observation.
    pub fn take_seen(&mut self) -> Vec<u32> {
        // Forces further samples through the slow path, which notes their process again.
        self.lookaside.clear();
        let seen = self.discovery.as_mut().map(Discovery::take_seen);
        seen.unwrap_or_default()
    }

    /// Enters the threads and mappings of a process that was running already, as existing from the start.
    pub fn meet(&mut self, pid: u32) {
        let Some(mut discovery) = self.discovery.take() else {
            return;
        };
        let found = discovery.meet(pid, |mapping, build_id| {
            self.map(0, pid, &mapping, build_id)
        });
        self.discovery = Some(discovery);
        for thread in found {
            self.found(0, pid, thread.tid, thread.name);
        }
    }

    /// Enters a thread that was found running, unless it is known.
    pub fn found(&mut self, time_ns: u64, pid: u32, tid: u32, name: String) {
        let known = self.threads.find(tid);
        if known.is_some_and(|thread| self.threads.pid(thread) == pid) {
            return;
        }
        let thread = self.begin(time_ns, pid, tid, pid);
        self.events.push(Event::Name {
            time_ns,
            pid,
            thread,
            name,
            exec: false,
        });
    }

    /// Synchronises with the list of all threads at `time_ns` and their processes: other threads have ended.
    pub fn only(&mut self, time_ns: u64, threads: &[(u32, u32)], processes: &Processes) {
        let there: FxHashMap<u32, u32> = threads.iter().copied().collect();
        let live: Vec<u32> = self.threads.live().collect();
        for tid in live {
            let thread = self.threads.find(tid);
            let pid = thread.map_or(0, |thread| self.threads.pid(thread));
            if there.get(&tid) != Some(&pid) {
                self.end(time_ns, pid, tid);
            }
        }
        for (tid, pid) in threads {
            if self.threads.find(*tid).is_none() {
                let name = processes.name(*pid, *tid).unwrap_or_default();
                self.found(time_ns, *pid, *tid, name);
            }
        }
    }

    /// Applies the mappings that a process had at `time_ns`, by address. All records up to then have been followed.
    pub fn mapped_now(&mut self, time_ns: u64, pid: u32, all: &[Mapping]) {
        let Some(mut discovery) = self.discovery.take() else {
            return;
        };
        let mut gone = Vec::new();
        let mut new = Vec::new();
        discovery.now(
            pid,
            all,
            |mapping, build_id| new.push((mapping, build_id.to_vec())),
            |range| gone.push(range),
        );
        for range in gone {
            let length = range.end - range.start;
            self.spaces.of(pid).map(range.start, length, 0, None);
            self.filter.unmap(pid, &range);
            self.events.push(Event::Unmap {
                time_ns,
                pid,
                address: range.start,
                length,
            });
        }
        for (mapping, build_id) in new {
            self.map(time_ns, pid, &mapping, &build_id);
        }
        self.discovery = Some(discovery);
    }
}
