//! Cache lines that several threads write. Each write takes the line from the other threads' caches, even if they use
//! other bytes.

use std::collections::hash_map::Entry;
use std::ops::Range;

use nearpage_recording::{AccessBatch, AccessKind, ColumnSelection, Resolution};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::opened::{Opened, Stage};

const LINE_BYTES: u64 = 64;
/// Maximum number of pairs of a line and a thread with counters. Accesses of other pairs are only counted as left out.
const USES_MAX: usize = 1 << 19;
/// Columns that are read of accesses.
const COLUMNS: ColumnSelection = ColumnSelection {
    thread: true,
    address: true,
    kind: true,
    resolution: true,
    weight: true,
    cost_ns: true,
    ..ColumnSelection::NONE
};
/// Number of accesses that are processed together.
const ROWS_AT_ONCE: usize = 256;
/// Maximum number of reported lines, by cost.
const TOLD_MAX: usize = 200;

/// Lines that several threads write.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct SharedLines {
    /// The lines with the highest cost, in descending order.
    pub lines: Vec<SharedLine>,
    /// Number of all such lines.
    pub count: usize,
    /// Time lost to accesses of all these lines, in nanoseconds.
    pub cost_ns: f64,
    /// Accesses to lines without counters, because there were too many lines.
    pub left_out: u64,
    /// Share of the accesses that the figures represent, 0 to 1.
    pub share: f64,
}

/// A line that several threads write.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct SharedLine {
    /// Address of the line's first byte.
    pub address: String,
    /// Process.
    pub pid: u32,
    /// Place in the address space without gaps; null if no object or module was ever there.
    pub place: Option<u64>,
    /// Time lost to accesses of the line, in nanoseconds.
    pub cost_ns: f64,
    /// Was each byte that a thread was seen to write accessed by that thread alone? Then the sharing is false sharing.
    pub is_apart: bool,
    /// Threads that access the line, most stores first.
    pub threads: Vec<LineUser>,
}

/// Accesses of a thread to a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LineUser {
    /// Number of the thread.
    pub thread: u32,
    /// Loads, by weight.
    pub loads: f64,
    /// Stores, by weight.
    pub stores: f64,
    /// Offsets in the line at which the thread's accesses begin, ascending.
    pub offsets: Vec<u32>,
}

/// Counters of a thread's accesses to a line.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    thread: u32,
    loads: f32,
    stores: f32,
    cost_ns: f32,
    /// Bits for the bytes of the line at which loads begin, and below, stores.
    loaded: u64,
    stored: u64,
}

impl Use {
    /// Adds counters of the same thread and line.
    fn merge(&mut self, other: &Self) {
        self.thread = other.thread;
        self.loads += other.loads;
        self.stores += other.stores;
        self.cost_ns += other.cost_ns;
        self.loaded |= other.loaded;
        self.stored |= other.stored;
    }
}

/// A line, by process and number.
type Line = (u32, u64);
/// A line's number; and its process (upper half) with a thread (lower half).
type Pair = (u64, u64);

/// Counts accesses to lines.
#[derive(Debug, Default)]
struct Lines {
    uses: FxHashMap<Pair, Use>,
    /// A Bloom filter of the pairs in `uses`, made when `uses` is full.
    may_be_known: Vec<u64>,
    left_out: u64,
}

/// Logarithm of the filter's size in words: 1 MiB, which fits into a processor's private cache. In most recordings with
/// too many lines, most accesses are to lines without counters, which the filter rejects.
const KNOWN_WORD_BITS: u32 = 17;

impl Lines {
    /// Counts accesses. The batch must have the columns of [`COLUMNS`].
    fn add(&mut self, pids: &[u32], batch: &AccessBatch) {
        let mut found = [(0, Pair::default()); ROWS_AT_ONCE];
        for first in (0..batch.len()).step_by(ROWS_AT_ONCE) {
            let rows = first..batch.len().min(first + ROWS_AT_ONCE);
            let count = self.choose(pids, batch, rows, &mut found);
            for &(row, pair) in &found[..count] {
                let byte = 1u64 << (batch.address[row] % LINE_BYTES);
                let mut one = Use {
                    thread: batch.thread[row].0,
                    cost_ns: batch.cost_ns[row],
                    ..Use::default()
                };
                match batch.kind[row] {
                    AccessKind::Store => (one.stores, one.stored) = (batch.weight[row], byte),
                    _ => (one.loads, one.loaded) = (batch.weight[row], byte),
                }
                self.follow(pair, &one, 1);
            }
        }
    }

    /// Moves the rows whose line may have counters to the front of `found`, and counts the other rows. The choice is
    /// unpredictable, so the loop is free of branches on it.
    fn choose(
        &mut self,
        pids: &[u32],
        batch: &AccessBatch,
        rows: Range<usize>,
        found: &mut [(usize, Pair); ROWS_AT_ONCE],
    ) -> usize {
        let mut count = 0;
        for row in rows {
            let thread = batch.thread[row].0;
            let pid = pids.get(thread as usize);
            // With an inexact resolution the address is a guess, so such accesses are left out.
            let is_one = pid.is_some()
                & (batch.kind[row] != AccessKind::Fetch)
                & (batch.resolution[row] == Resolution::Exact);
            let process = u64::from(pid.copied().unwrap_or(0));
            let pair = (
                batch.address[row] / LINE_BYTES,
                process << 32 | u64::from(thread),
            );
            let may_be_known = match self.may_be_known.is_empty() {
                true => true,
                false => {
                    let (word, bits) = known_bits_of(pair);
                    self.may_be_known[word] & bits == bits
                }
            };
            found[count] = (row, pair);
            count += usize::from(is_one & may_be_known);
            self.left_out += u64::from(is_one & !may_be_known);
        }
        count
    }

    /// Adds `accesses` accesses of a thread to a line.
    fn follow(&mut self, pair: Pair, one: &Use, accesses: u64) {
        let has_room = self.uses.len() < USES_MAX;
        match self.uses.entry(pair) {
            Entry::Occupied(mut known) => known.get_mut().merge(one),
            Entry::Vacant(place) if has_room => {
                place.insert(*one);
                if self.uses.len() == USES_MAX {
                    self.may_be_known = known_bits(self.uses.keys());
                }
            }
            Entry::Vacant(_) => self.left_out += accesses,
        }
    }

    /// Adds the counts of another thread's `Lines`.
    fn append(&mut self, other: &Self) {
        self.left_out += other.left_out;
        for (&pair, one) in &other.uses {
            let accesses = one.loads + one.stores;
            self.follow(pair, one, accesses.round() as u64);
        }
    }

    /// Lines that several threads write, by cost in descending order.
    fn shared(&self) -> Vec<(Line, Vec<Use>)> {
        let uses = self.uses.iter();
        let line = |&(line, by): &Pair| ((by >> 32) as u32, line);
        let mut uses: Vec<(Line, Use)> = uses.map(|(pair, one)| (line(pair), *one)).collect();
        uses.sort_unstable_by_key(|(line, one)| (*line, one.thread));
        let is_shared =
            |uses: &&[(Line, Use)]| uses.iter().filter(|(_, one)| one.stores > 0.0).count() > 1;
        let by_line = uses.chunk_by(|a, b| a.0 == b.0);
        let mut shared: Vec<(Line, Vec<Use>)> = by_line
            .filter(is_shared)
            .map(|uses| (uses[0].0, uses.iter().map(|(_, one)| *one).collect()))
            .collect();
        shared.sort_by(|a, b| cost(&b.1).total_cmp(&cost(&a.1)).then(a.0.cmp(&b.0)));
        shared
    }
}

/// Bits of a pair in a blocked Bloom filter (Putze, Sanders and Singler, 2007). Three bits in one word need one load,
/// and reject all but one of a hundred pairs without counters.
fn known_bits_of((line, by): Pair) -> (usize, u64) {
    // The upper bits of the product with the golden ratio depend on all bits of the pair.
    let spread = (line ^ by.rotate_left(42)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let bit = |from: u32| 1 << (spread >> from & 63);
    let word = spread >> (u64::BITS - KNOWN_WORD_BITS);
    (word as usize, bit(41) | bit(35) | bit(29))
}

fn known_bits<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Vec<u64> {
    let mut known = vec![0; 1 << KNOWN_WORD_BITS];
    for &pair in pairs {
        let (word, bits) = known_bits_of(pair);
        known[word] |= bits;
    }
    known
}

fn cost(uses: &[Use]) -> f64 {
    uses.iter().map(|one| f64::from(one.cost_ns)).sum()
}

/// Does no thread write a byte that another thread accesses?
fn is_apart(uses: &[Use]) -> bool {
    uses.iter().enumerate().all(|(at, one)| {
        let others = uses.iter().enumerate().filter(|(other, _)| *other != at);
        let touched = others.fold(0, |bytes, (_, other)| bytes | other.loaded | other.stored);
        one.stored & touched == 0
    })
}

fn user(one: &Use) -> LineUser {
    LineUser {
        thread: one.thread,
        loads: one.loads.into(),
        stores: one.stores.into(),
        offsets: (0..LINE_BYTES as u32)
            .filter(|byte| (one.loaded | one.stored) >> byte & 1 == 1)
            .collect(),
    }
}

/// Shared lines of a recording, or of the selection that `stage` belongs to.
pub(crate) fn shared_lines(
    opened: &Opened,
    stage: &Stage,
    selection: Option<(u64, u64)>,
) -> SharedLines {
    let threads = opened.recording.tables.threads.iter();
    let pids: Vec<u32> = threads.map(|thread| thread.pid).collect();
    let add = |lines: &mut Lines, batch: &AccessBatch| lines.add(&pids, batch);
    let (found, share) = opened.add_up(stage, selection, COLUMNS, add);
    let mut found = found.into_iter();
    let mut lines: Lines = found.next().unwrap_or_default();
    found.for_each(|one| lines.append(&one));
    let left_out = lines.left_out;
    let shared = lines.shared();
    SharedLines {
        count: shared.len(),
        cost_ns: shared.iter().fold(0.0, |sum, (_, uses)| sum + cost(uses)),
        left_out,
        share,
        lines: shared
            .into_iter()
            .take(TOLD_MAX)
            .map(|((pid, line), mut uses)| {
                uses.sort_by(|a, b| b.stores.total_cmp(&a.stores).then(a.thread.cmp(&b.thread)));
                let address = line * LINE_BYTES;
                SharedLine {
                    address: format!("{address:#x}"),
                    pid,
                    place: opened.space.place(pid, address),
                    cost_ns: cost(&uses),
                    is_apart: is_apart(&uses),
                    threads: uses.iter().map(user).collect(),
                }
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use nearpage_recording::{Access, ThreadIndex};

    use super::*;
    use crate::point::tests::access;

    fn batch(accesses: &[(u32, u64, AccessKind)]) -> AccessBatch {
        let mut batch = AccessBatch::default();
        for &(thread, address, kind) in accesses {
            batch.push(Access {
                thread: ThreadIndex(thread),
                address,
                kind,
                cost_ns: 10.0,
                ..access()
            });
        }
        batch
    }

    #[test]
    fn lines_with_two_writers_are_shared() {
        use AccessKind::{Load, Store};
        let mut lines = Lines::default();
        // Threads 0 and 1 belong to one process. Thread 2 belongs to another process, which has memory of its own.
        let pids = [7, 7, 8];
        lines.add(
            &pids,
            &batch(&[
                (0, 0x1000, Store),
                (1, 0x1008, Store),
                (1, 0x1008, Load),
                (0, 0x2000, Store),
                (1, 0x2000, Store),
                (1, 0x2000, Store),
                (0, 0x3000, Store),
                (2, 0x3000, Store),
                (0, 0x4000, Store),
                (1, 0x4004, Load),
                (9, 0x1000, Store),
            ]),
        );
        let shared = lines.shared();
        let found: Vec<(u64, bool, f64)> = shared
            .iter()
            .map(|((_, line), uses)| (line * LINE_BYTES, is_apart(uses), cost(uses)))
            .collect();
        assert_eq!(found, [(0x1000, true, 30.0), (0x2000, false, 30.0)]);
        assert_eq!(user(&shared[0].1[1]).offsets, [8]);
    }
}
