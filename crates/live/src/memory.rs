//! Memory of processes by node, from `numa_maps` (proc(5)).
//!
//! Reading that file makes the kernel walk all pages of a process: 12 ms for 200 MB in small pages. So a separate
//! thread reads it, for at most a hundredth of the time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearpage_files::{memory_folder, read};

/// Maximum size of the file: one line per mapping, of which the kernel allows 65,530 by default.
const NUMA_MAPS_BYTES_MAX: u64 = 64 << 20;
/// Reading may take one part in this number of the time…
const READING_PART: u32 = 100;
/// …and this much time at the start.
const READING_INITIAL: Duration = Duration::from_millis(50);
/// Minimum time between two readings of a process.
const REREAD_TIME: Duration = Duration::from_secs(2);
/// Assumed page size where the kernel does not report one.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a process on each of `nodes`, in their order; `None`: the kernel does not report them.
pub fn memory_by_node(proc_root: &Path, pid: u32, nodes: &[u16]) -> Option<Vec<u64>> {
    let path = memory_folder(proc_root, pid).join("numa_maps");
    let text = read(&path, NUMA_MAPS_BYTES_MAX).ok()?;
    // Kernel threads and processes that have ended have an empty file.
    if text.is_empty() {
        return None;
    }
    Some(sum(&String::from_utf8_lossy(&text), nodes))
}

/// Sums lines such as `7f0000100000 default anon=2000 N0=1500 N3=500 kernelpagesize_kB=4`.
fn sum(numa_maps: &str, nodes: &[u16]) -> Vec<u64> {
    let mut bytes = vec![0u64; nodes.len()];
    for line in numa_maps.lines() {
        let fields = || line.split_ascii_whitespace().skip(2);
        let size = fields().find_map(|field| field.strip_prefix("kernelpagesize_kB="));
        let page_bytes = size
            .and_then(|kib| kib.parse::<u64>().ok())
            .map_or(PAGE_BYTES, |kib| kib.saturating_mul(1024));
        for field in fields() {
            let Some((node, pages)) = field
                .strip_prefix('N')
                .and_then(|text| text.split_once('='))
            else {
                continue;
            };
            let at = node
                .parse::<u16>()
                .ok()
                .and_then(|node| nodes.iter().position(|other| *other == node));
            if let (Some(at), Ok(pages)) = (at, pages.parse::<u64>()) {
                bytes[at] = bytes[at].saturating_add(pages.saturating_mul(page_bytes));
            }
        }
    }
    bytes
}

#[derive(Debug, Default)]
struct Shared {
    /// Processes of interest, most important first.
    watched: Vec<u32>,
    known: BTreeMap<u32, (Instant, Option<Vec<u64>>)>,
    has_new: bool,
    is_over: bool,
}

/// Reads processes' memory in a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct MemoryWatch {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// Watches the memory of processes on a machine with these nodes.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(nodes: &[u16]) -> std::io::Result<Self> {
        let shared = Arc::<(Mutex<Shared>, Condvar)>::default();
        let (of_thread, nodes) = (shared.clone(), nodes.to_vec());
        let thread = std::thread::Builder::new()
            .name("memory by node".to_owned())
            .spawn(move || read_loop(&of_thread, &PathBuf::from("/proc"), &nodes))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Sets the processes of interest, most important first. Data of others is dropped.
    pub fn set_watched(&self, pids: Vec<u32>) {
        let (shared, changed) = &*self.shared;
        let mut shared = lock(shared);
        shared.known.retain(|pid, _| pids.contains(pid));
        shared.watched = pids;
        shared.has_new = true;
        changed.notify_one();
    }

    /// Bytes on each node at the last reading.
    pub fn of(&self, pid: u32) -> Option<Vec<u64>> {
        lock(&self.shared.0).known.get(&pid)?.1.clone()
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        lock(&self.shared.0).is_over = true;
        self.shared.1.notify_one();
        // The thread is not joined, because a reading may take seconds.
        drop(self.thread.take());
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_loop((shared, changed): &(Mutex<Shared>, Condvar), proc_root: &Path, nodes: &[u16]) {
    let began = Instant::now();
    let mut spent = Duration::ZERO;
    let mut guard = lock(shared);
    while !guard.is_over {
        let now = Instant::now();
        let due = guard.watched.iter().copied().find(|pid| {
            let known = guard.known.get(pid);
            known.is_none_or(|(read_at, _)| now.duration_since(*read_at) >= REREAD_TIME)
        });
        let pause = match due {
            None => REREAD_TIME,
            Some(pid) => {
                drop(guard);
                let answer = memory_by_node(proc_root, pid, nodes);
                spent += now.elapsed();
                guard = lock(shared);
                if guard.watched.contains(&pid) {
                    guard.known.insert(pid, (Instant::now(), answer));
                }
                let allowed = READING_INITIAL + began.elapsed() / READING_PART;
                spent.saturating_sub(allowed) * READING_PART
            }
        };
        let until = Instant::now() + pause;
        while !guard.is_over {
            let left = until.saturating_duration_since(Instant::now());
            // New processes of interest do not shorten a pause that bounds the cost.
            if left.is_zero() || (due.is_none() && guard.has_new) {
                break;
            }
            guard = changed
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        guard.has_new = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_count_as_large_as_they_are() {
        let numa_maps = "\
00400000 default file=/usr/bin/a:\\040N0=7 mapped=128 N0=128 kernelpagesize_kB=4
7f0000100000 default anon=2000 dirty=2000 N0=1500 N3=500 kernelpagesize_kB=4
7f0002000000 interleave:0-3 file=/dev/hugepages/x huge N3=2 kernelpagesize_kB=2048
7f0003000000 default N9=5
";
        let bytes = sum(numa_maps, &[0, 3]);
        assert_eq!(bytes, [(128 + 1500) * 4096, 500 * 4096 + (4 << 20)]);
    }

    #[test]
    fn a_process_that_does_not_exist_has_none() {
        assert_eq!(memory_by_node(Path::new("/proc"), u32::MAX, &[0]), None);
    }

    #[test]
    fn only_watched_processes_are_kept() {
        let own = std::process::id();
        let nodes: Vec<u16> = (0..1024).collect();
        let watch = MemoryWatch::start(&nodes).expect("a thread");
        watch.set_watched(vec![own]);
        // Kernels without NUMA do not have this file.
        if let Some(expected) = memory_by_node(Path::new("/proc"), own, &nodes) {
            assert!(expected.iter().sum::<u64>() > 0);
            while watch.of(own).is_none() {
                std::thread::yield_now();
            }
        }
        watch.set_watched(vec![]);
        assert_eq!(watch.of(own), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "([0-9a-f]{1,4} x( N[0-9]{1,6}=[0-9]{0,25}| kernelpagesize_kB=[0-9]{0,25}){0,4}\n){0,9}") {
            prop_assert_eq!(sum(&text, &[0, 1]).len(), 2);
        }
    }
}
