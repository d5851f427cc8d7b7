//! Threads, by process and thread id, or by process and CPU where the file has no thread ids.

use nearpage_machine::CpuId;
use rustc_hash::FxHashMap;

use super::super::row::Row;
use crate::{SampleCounts, Thread, ThreadIndex};

/// More threads are refused.
const THREADS_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Threads {
    numbers: FxHashMap<(u32, u32), usize>,
    seen: Vec<CollectedThread>,
    /// Position in the table, by number.
    positions: Vec<ThreadIndex>,
}

struct CollectedThread {
    pid: u32,
    tid: u32,
    name: String,
    cpus: FxHashMap<CpuId, u64>,
    counts: SampleCounts,
}

/// Process and thread id of a row. Without a thread id, each CPU counts as a thread, and CPU 0 as the main thread.
fn key(row: &Row<'_>) -> (u32, u32) {
    let of_cpu = || row.pid.wrapping_add(row.cpu.0);
    (row.pid, row.tid.unwrap_or_else(of_cpu))
}

impl Threads {
    /// Returns the thread's number, which can differ from its position in the table.
    pub fn add(&mut self, row: &Row<'_>) -> Result<usize, String> {
        let (pid, tid) = key(row);
        let next = self.seen.len();
        let number = *self.numbers.entry((pid, tid)).or_insert(next);
        if number == next {
            if next == THREADS_MAX {
                return Err(format!("more than {THREADS_MAX} threads"));
            }
            self.seen.push(CollectedThread {
                pid,
                tid,
                name: match row.tid {
                    Some(_) => String::new(),
                    None => format!("CPU {}", row.cpu),
                },
                cpus: FxHashMap::default(),
                counts: SampleCounts::default(),
            });
        }
        let thread = &mut self.seen[number];
        if !row.thread_name.is_empty() && thread.name != row.thread_name {
            row.thread_name.clone_into(&mut thread.name);
        }
        let counts = &mut thread.counts;
        if row.is_of_kernel() {
            counts.kernel += 1;
        } else {
            counts.samples += 1;
            *match row.is_access() {
                true => &mut counts.accesses,
                false => &mut counts.undecoded,
            } += 1;
        }
        if row.is_access() {
            *thread.cpus.entry(row.cpu).or_default() += 1;
        }
        Ok(number)
    }

    /// The table: process by process, the main thread first.
    pub fn finish(&mut self) -> Vec<Thread> {
        let mut sorted: Vec<usize> = (0..self.seen.len()).collect();
        sorted.sort_by_key(|&number| {
            let CollectedThread { pid, tid, .. } = self.seen[number];
            (pid, pid != tid, tid)
        });
        self.positions = vec![ThreadIndex(0); sorted.len()];
        let mut table: Vec<Thread> = Vec::with_capacity(sorted.len());
        for (position, &number) in sorted.iter().enumerate() {
            self.positions[number] = ThreadIndex(position as u32);
            let seen = &self.seen[number];
            let before = table.last().filter(|before| before.pid == seen.pid);
            let order = before.map_or(0, |before| before.order + 1);
            let mut cpus: Vec<(CpuId, u64)> = seen.cpus.clone().into_iter().collect();
            cpus.sort_unstable();
            table.push(Thread {
                pid: seen.pid,
                tid: seen.tid,
                name: seen.name.clone(),
                born_ns: 0,
                died_ns: u64::MAX,
                order,
                start: None,
                start_function: String::new(),
                team_index: order.saturating_sub(1),
                team: match order {
                    0 => "main".to_owned(),
                    _ => "threads".to_owned(),
                },
                cpus,
                counts: seen.counts,
            });
        }
        table
    }

    /// Table position of the thread with this number.
    pub fn position(&self, number: usize) -> ThreadIndex {
        self.positions[number]
    }

    /// Table position of a row's thread.
    pub fn index(&self, row: &Row<'_>) -> ThreadIndex {
        self.position(self.numbers[&key(row)])
    }

    pub fn counts(&self) -> SampleCounts {
        let mut sum = SampleCounts::default();
        for CollectedThread { counts, .. } in &self.seen {
            sum.samples += counts.samples;
            sum.accesses += counts.accesses;
            sum.undecoded += counts.undecoded;
            sum.kernel += counts.kernel;
        }
        sum
    }
}
