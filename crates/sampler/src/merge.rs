//! Merges the records of several rings in order of time.
//!
//! Each CPU has its own ring, so a thread's creation may be read after its first sample. Records younger than the
//! beginning of the previous round are held back: once all rings have been read again, no older record can appear.
//!
//! Records are read where the kernel wrote them and stay there while they are held back. Only records that wrap around
//! a ring's end are copied. Records made here, from hardware packets or timer signals, have their own memory.

use nearpage_perf_abi::{Malformed, header};

use crate::record;

/// Unread records of a ring, in two parts if they wrap around the end. The records are whole and ordered by age,
/// except for records that were written during the writing of another.
#[derive(Debug)]
pub(crate) struct UnreadRecords<'a> {
    /// The unread remainder of the current part, and the part after it.
    rest: &'a [u8],
    after: &'a [u8],
    /// Length of the next record, and a copy of the record if it wraps around the end.
    next: usize,
    across: Option<Vec<u8>>,
    /// Number of bytes that were passed on.
    pub passed: usize,
}

impl<'a> UnreadRecords<'a> {
    pub fn new([first, second]: [&'a [u8]; 2]) -> Self {
        Self {
            rest: first,
            after: second,
            next: 0,
            across: None,
            passed: 0,
        }
    }

    /// Appends all unread bytes to `out` and returns their number.
    pub fn append_to(&self, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(self.rest);
        out.extend_from_slice(self.after);
        self.rest.len() + self.after.len()
    }

    /// Finds the next record and returns its time, [`NEVER`] if there is none. Bytes that are no record are skipped
    /// and counted.
    #[inline]
    fn find(&mut self, malformed: &mut u64) -> u64 {
        // Fast path: nearly all records are whole samples.
        match record::sample_head(self.rest) {
            Some((length, time_ns)) => {
                fetch_ahead(self.rest);
                self.next = length;
                time_ns
            }
            None => self.find_other(malformed),
        }
    }

    #[cold]
    fn find_other(&mut self, malformed: &mut u64) -> u64 {
        loop {
            let time_ns = match header::record_bytes(self.rest) {
                Ok(length) => {
                    self.next = length;
                    record::time_ns(&self.rest[..length])
                }
                Err(_) if self.rest.is_empty() && self.after.is_empty() => return NEVER,
                Err(_) => self.find_across(),
            };
            match time_ns {
                Ok(time_ns) => return time_ns,
                Err(_) => {
                    *malformed += 1;
                    self.pass();
                }
            }
        }
    }

    /// Finds a record that wraps from one part into the other, or lies in the other alone. If that is no valid record
    /// either, all remaining bytes are skipped together.
    #[cold]
    fn find_across(&mut self) -> Result<u64, Malformed> {
        if self.rest.is_empty() {
            self.rest = std::mem::take(&mut self.after);
            self.next = header::record_bytes(self.rest).unwrap_or(self.rest.len());
            return record::time_ns(&self.rest[..self.next]);
        }
        let most = self.after.len().min(header::RECORD_BYTES_MAX);
        let mut across = [self.rest, &self.after[..most]].concat();
        match header::record_bytes(&across) {
            Ok(length) => across.truncate(length),
            Err(_) => across = [self.rest, self.after].concat(),
        }
        self.next = across.len();
        let time_ns = match header::record_bytes(&across) {
            Ok(_) => record::time_ns(&across),
            Err(malformed) => Err(malformed),
        };
        self.across = Some(across);
        time_ns
    }

    /// The record that was found.
    #[inline]
    fn record(&self) -> &[u8] {
        match &self.across {
            None => &self.rest[..self.next],
            Some(across) => across,
        }
    }

    /// Marks the found record as passed on.
    #[inline]
    fn pass(&mut self) {
        self.passed += self.next;
        match self.across.is_none() {
            true => self.rest = &self.rest[self.next..],
            false => self.pass_across(),
        }
    }

    #[cold]
    fn pass_across(&mut self) {
        if let Some(across) = self.across.take() {
            let of_after = across.len() - self.rest.len();
            self.rest = &std::mem::take(&mut self.after)[of_after..];
        }
    }
}

/// Prefetches the sample after the next few. The processor prefetches sequential reads by itself, but not into the
/// next page.
#[inline]
fn fetch_ahead(rest: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(lines) = rest.get(1024..).and_then(|rest| rest.first_chunk::<192>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in lines.as_chunks::<64>().0 {
            // SAFETY: a prefetch of a valid address affects only caches.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = rest;
}

/// Time of a record that does not exist.
const NEVER: u64 = u64::MAX;

/// Finds the earliest of several times: a tree in which each node holds the earlier of its two children.
#[derive(Debug, Default)]
struct Earliest {
    /// Nodes with time and source: the root at index 1, the leaves in the second half.
    tree: Vec<(u64, u32)>,
}

impl Earliest {
    /// Clears the tree for `count` sources, none of which has a time.
    fn reset(&mut self, count: usize) {
        self.tree.clear();
        let leaves = count.next_power_of_two();
        self.tree.resize(2 * leaves, (NEVER, u32::MAX));
    }

    #[inline]
    fn set(&mut self, of: u32, time_ns: u64) {
        let mut node = self.tree.len() / 2 + of as usize;
        let mut earliest = (time_ns, of);
        while node > 1 {
            self.tree[node] = earliest;
            let sibling = self.tree[node ^ 1];
            // Of equal times, the left one wins.
            let is_right = node as u64 & 1;
            if sibling.0 < earliest.0.saturating_add(is_right) {
                earliest = sibling;
            }
            node /= 2;
        }
        self.tree[1] = earliest;
    }

    #[inline]
    fn get(&self) -> (u64, u32) {
        self.tree[1]
    }
}

/// Records in order of time, and records made here that have not been passed on.
#[derive(Debug, Default)]
pub(crate) struct Window {
    bytes: Vec<u8>,
    /// Time, offset and length of each record in `bytes`.
    records: Vec<(u64, u32, u16)>,
    /// Number of entries of `records` that were passed on.
    passed: usize,
    is_sorted: bool,
    spare: Vec<u8>,
    indexed: usize,
    /// The times of the next record of each ring, and of `records`.
    earliest: Earliest,
    latest_ns: u64,
    /// Number of byte stretches that were no records.
    pub malformed: u64,
    /// Number of records that came after younger ones had been passed on.
    pub late: u64,
}

impl Window {
    /// Adds the records that `drain` appends: whole records of one source.
    pub fn add(&mut self, drain: impl FnOnce(&mut Vec<u8>)) {
        drain(&mut self.bytes);
        self.is_sorted = false;
        while self.indexed < self.bytes.len() {
            let rest = &self.bytes[self.indexed..];
            let Ok(length) = header::record_bytes(rest) else {
                self.malformed += 1;
                self.bytes.truncate(self.indexed);
                break;
            };
            match record::time_ns(&rest[..length]) {
                Ok(time_ns) => self
                    .records
                    .push((time_ns, self.indexed as u32, length as u16)),
                Err(_) => self.malformed += 1,
            }
            self.indexed += length;
        }
    }

    /// Calls `each` for all added records that have not been passed on, in no order.
    pub fn each(&self, mut each: impl FnMut(&[u8])) {
        for (_, offset, length) in &self.records[self.passed..] {
            each(&self.bytes[*offset as usize..][..usize::from(*length)]);
        }
    }

    /// Passes on records older than `before_ns`, oldest first.
    pub fn take(
        &mut self,
        before_ns: u64,
        rings: &mut [UnreadRecords<'_>],
        mut each: impl FnMut(&[u8]),
    ) {
        if !self.is_sorted {
            // A stable sort is fast here, as each source's records are in order.
            self.records[self.passed..].sort();
            self.is_sorted = true;
        }
        let own = rings.len() as u32;
        let has_own = self.own_head() < before_ns;
        self.earliest.reset(rings.len() + usize::from(has_own));
        for (at, ring) in rings.iter_mut().enumerate() {
            self.earliest.set(at as u32, ring.find(&mut self.malformed));
        }
        if has_own {
            self.earliest.set(own, self.own_head());
        }
        loop {
            let (time_ns, source) = self.earliest.get();
            if time_ns >= before_ns {
                break;
            }
            self.late += u64::from(time_ns < self.latest_ns);
            self.latest_ns = self.latest_ns.max(time_ns);
            let next_ns = match rings.get_mut(source as usize) {
                Some(ring) => {
                    each(ring.record());
                    ring.pass();
                    ring.find(&mut self.malformed)
                }
                None => {
                    let (_, offset, length) = self.records[self.passed];
                    each(&self.bytes[offset as usize..][..usize::from(length)]);
                    self.passed += 1;
                    self.own_head()
                }
            };
            self.earliest.set(source, next_ns);
        }
        self.forget_passed();
    }

    fn own_head(&self) -> u64 {
        self.records
            .get(self.passed)
            .map_or(NEVER, |record| record.0)
    }

    fn forget_passed(&mut self) {
        // Without records, bytes of records without a time may be left, which are removed below.
        if self.passed == 0 && !self.records.is_empty() {
            return;
        }
        self.records.drain(..std::mem::take(&mut self.passed));
        self.spare.clear();
        for (_, offset, length) in &mut self.records {
            let begin = self.spare.len() as u32;
            self.spare
                .extend_from_slice(&self.bytes[*offset as usize..][..usize::from(*length)]);
            *offset = begin;
        }
        std::mem::swap(&mut self.bytes, &mut self.spare);
        self.indexed = self.bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use nearpage_perf_abi::Sideband;
    use proptest::prelude::*;

    use super::*;
    use crate::record::tests::{record, sideband};

    /// A record whose length grows with `words`.
    fn exit(time_ns: u64, words: usize) -> Vec<u8> {
        let name = &vec![b'x'; 8 * words + 7];
        let (pid, tid, exec) = (1, 1, false);
        let what = Sideband::Name {
            pid,
            tid,
            name,
            exec,
        };
        sideband(pid, tid, time_ns, what)
    }

    fn time(bytes: &[u8]) -> u64 {
        record::time_ns(bytes).unwrap()
    }

    /// A ring as the kernel writes it: a power of two in size, written from `tail` on, with positions in multiples of
    /// 8.
    struct Ring {
        bytes: Vec<u8>,
        head: usize,
        tail: usize,
    }

    impl Ring {
        fn write(&mut self, record: &[u8]) {
            for byte in record {
                let at = self.head % self.bytes.len();
                self.bytes[at] = *byte;
                self.head += 1;
            }
            assert!(self.head - self.tail <= self.bytes.len());
        }

        fn unread(&self) -> UnreadRecords<'_> {
            let size = self.bytes.len();
            let (begin, length) = (self.tail % size, self.head - self.tail);
            let first = length.min(size - begin);
            UnreadRecords::new([
                &self.bytes[begin..begin + first],
                &self.bytes[..length - first],
            ])
        }
    }

    proptest! {
        #[test]
        fn passes_on_all_in_order(
            rounds in prop::collection::vec(
                prop::collection::vec((0usize..4, 0usize..5), 0..20),
                1..6,
            ),
            begins in prop::collection::vec(0usize..600, 3),
        ) {
            let mut window = Window::default();
            let mut rings: Vec<Ring> = begins
                .iter()
                .map(|begin| Ring { bytes: vec![0xff; 4096], head: 8 * begin, tail: 8 * begin })
                .collect();
            let (mut seen, mut expected) = (Vec::new(), Vec::new());
            let end = rounds.len();
            for (round, records) in rounds.into_iter().chain([Vec::new()]).enumerate() {
                let base = round as u64 * 100;
                for (at, (source, words)) in records.into_iter().enumerate() {
                    let time_ns = base + at as u64 * 3;
                    expected.push(time_ns);
                    let record = exit(time_ns, words);
                    match rings.get_mut(source) {
                        Some(ring) => ring.write(&record),
                        None => window.add(|bytes| bytes.extend(record)),
                    }
                }
                let mut unread: Vec<UnreadRecords<'_>> = rings.iter().map(Ring::unread).collect();
                let whole: Vec<Vec<u8>> = unread
                    .iter()
                    .map(|ring| {
                        let mut bytes = Vec::new();
                        ring.append_to(&mut bytes);
                        bytes
                    })
                    .collect();
                prop_assert!(whole.iter().zip(&rings).all(|(bytes, ring)| bytes.len() == ring.head - ring.tail));
                let before_ns = if round == end { u64::MAX } else { base };
                window.take(before_ns, &mut unread, |bytes| seen.push(time(bytes)));
                prop_assert!(seen.iter().all(|time_ns| *time_ns < before_ns));
                let passed: Vec<usize> = unread.iter().map(|ring| ring.passed).collect();
                for (ring, passed) in rings.iter_mut().zip(passed) {
                    ring.tail += passed;
                }
            }
            prop_assert_eq!(seen, expected);
            prop_assert_eq!((window.malformed, window.late), (0, 0));
            prop_assert!(rings.iter().all(|ring| ring.tail == ring.head));
        }

        #[test]
        fn survives_any_bytes(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
            rings in prop::collection::vec([
                prop::collection::vec(any::<u8>(), 0..200),
                prop::collection::vec(any::<u8>(), 0..200),
            ], 0..4),
        ) {
            let mut window = Window::default();
            for chunk in &chunks {
                window.add(|bytes| bytes.extend(chunk));
            }
            let mut unread: Vec<UnreadRecords<'_>> = rings
                .iter()
                .map(|[first, second]| UnreadRecords::new([first, second]))
                .collect();
            window.take(u64::MAX, &mut unread, |_| ());
            prop_assert!(window.bytes.is_empty());
            for (ring, parts) in unread.iter().zip(&rings) {
                // A record with the time [`NEVER`] is never passed on.
                let length = parts[0].len() + parts[1].len();
                prop_assert!(ring.passed <= length);
            }
        }
    }

    #[test]
    fn of_equal_times_the_first_rings_comes_first() {
        let records: Vec<Vec<u8>> = (0..5).map(|words| exit(7, words)).collect();
        let mut window = Window::default();
        window.add(|bytes| bytes.extend(&records[4]));
        let mut rings: Vec<UnreadRecords<'_>> = records[..4]
            .iter()
            .map(|record| UnreadRecords::new([record, &[]]))
            .collect();
        let mut seen = Vec::new();
        window.take(8, &mut rings, |bytes| seen.push(bytes.to_vec()));
        assert_eq!((seen, window.late), (records, 0));
    }

    #[test]
    fn nothing_is_kept_of_records_that_say_no_time() {
        let mut window = Window::default();
        window.add(|bytes| bytes.extend(record(9, 0, &[0; 16])));
        window.take(5, &mut [], |_| panic!("no record"));
        assert_eq!((window.malformed, window.bytes.len()), (1, 0));
    }

    #[test]
    fn records_of_a_ring_out_of_order_are_counted() {
        let bytes = [exit(5, 0), exit(3, 1), exit(9, 0)].concat();
        let mut window = Window::default();
        let mut seen = Vec::new();
        let mut rings = [UnreadRecords::new([&bytes, &[]])];
        window.take(9, &mut rings, |bytes| seen.push(time(bytes)));
        assert_eq!((seen, window.late), (vec![5, 3], 1));
        assert_eq!(rings[0].passed, bytes.len() - exit(9, 0).len());
    }
}
