//! Records of several rings in one order of time.
//!
//! Each CPU has its own ring, so a thread's creation may be drained after its first sample. All
//! records younger than the beginning of the previous round of draining are held back: by the time
//! all rings have been drained once more, nothing older can still be in them.

use crate::record;

/// Records drained and not yet passed on.
#[derive(Debug, Default)]
pub(crate) struct Window {
    bytes: Vec<u8>,
    /// Time, offset and length of each record in `bytes`.
    records: Vec<(u64, u32, u16)>,
    spare: Vec<u8>,
    indexed: usize,
    latest_ns: u64,
    /// Stretches of bytes that were no records.
    pub malformed: u64,
    /// Records that came after younger ones had been passed on.
    pub late: u64,
}

impl Window {
    /// Adds what `drain` appends: whole records of one ring.
    pub fn add(&mut self, drain: impl FnOnce(&mut Vec<u8>)) {
        drain(&mut self.bytes);
        while self.indexed < self.bytes.len() {
            let rest = &self.bytes[self.indexed..];
            let Ok(length) = record::length(rest) else {
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

    /// Shows all records that have not been passed on, in no order.
    pub fn each(&self, mut each: impl FnMut(&[u8])) {
        for (_, offset, length) in &self.records {
            each(&self.bytes[*offset as usize..][..usize::from(*length)]);
        }
    }

    /// Passes on all records older than `before_ns`, oldest first.
    pub fn take(&mut self, before_ns: u64, mut each: impl FnMut(&[u8])) {
        // What each ring gave is in order already, which a stable sort makes use of.
        self.records.sort();
        let ready = self
            .records
            .partition_point(|(time_ns, ..)| *time_ns < before_ns);
        for (time_ns, offset, length) in self.records.drain(..ready) {
            self.late += u64::from(time_ns < self.latest_ns);
            self.latest_ns = self.latest_ns.max(time_ns);
            each(&self.bytes[offset as usize..][..usize::from(length)]);
        }
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
    use proptest::prelude::*;

    use super::*;
    use crate::record::tests::{record, trailer};

    fn exit(time_ns: u64) -> Vec<u8> {
        record(4, 0, &[vec![0; 24], trailer(1, 1, time_ns, 0)].concat())
    }

    proptest! {
        #[test]
        fn passes_on_all_in_order(rounds in prop::collection::vec(prop::collection::vec(0u64..100, 0..20), 1..6)) {
            let mut window = Window::default();
            let mut seen = Vec::new();
            let mut expected = Vec::new();
            for (round, times) in rounds.iter().enumerate() {
                let base = round as u64 * 100;
                for time in times {
                    expected.push(base + time);
                    window.add(|bytes| bytes.extend(exit(base + time)));
                }
                window.take(base, |bytes| seen.push(record::time_ns(bytes).unwrap()));
            }
            window.take(u64::MAX, |bytes| seen.push(record::time_ns(bytes).unwrap()));
            expected.sort_unstable();
            prop_assert_eq!(seen, expected);
            prop_assert_eq!((window.malformed, window.late), (0, 0));
        }

        #[test]
        fn survives_any_bytes(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
            let mut window = Window::default();
            for chunk in &chunks {
                window.add(|bytes| bytes.extend(chunk));
            }
            window.take(u64::MAX, |_| ());
            prop_assert!(window.bytes.is_empty());
        }
    }
}
