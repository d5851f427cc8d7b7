//! Mappings of a process that was already running. The kernel's records report new mappings at once. `/proc/PID/maps`,
//! read from time to time, shows mappings that were removed, moved or named.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::processes::Mapping;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Mapped(Mapping),
    Unmapped(Range<u64>),
}

/// The mappings of one process, by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mappings(BTreeMap<u64, Mapping>);

impl Mappings {
    /// Enters a new mapping. The kernel merges adjacent mappings and reports them as a whole: parts that existed keep
    /// their age, and only the others are new.
    pub fn map(&mut self, new: &Mapping, mut changed: impl FnMut(Change)) {
        let mut at = new.begin;
        for old in self.overlapping(new.begin..new.end) {
            if !same(&old, new) {
                self.cut(old.begin.max(new.begin)..old.end.min(new.end));
                continue;
            }
            if at < old.begin {
                self.insert(part(new, at..old.begin), &mut changed);
            }
            at = at.max(old.end);
        }
        if at < new.end {
            self.insert(part(new, at..new.end), &mut changed);
        }
    }

    /// Replaces the state by the list of all mappings, in order of address.
    pub fn now(&mut self, all: &[Mapping], mut changed: impl FnMut(Change)) {
        let mut gap_begin = 0;
        let gaps = all.iter().map(|mapping| mapping.begin).chain([u64::MAX]);
        let ends = all.iter().map(|mapping| mapping.end);
        for (gap_end, next) in gaps.zip(ends.chain([u64::MAX])) {
            if gap_begin < gap_end {
                for old in self.overlapping(gap_begin..gap_end) {
                    let gone = old.begin.max(gap_begin)..old.end.min(gap_end);
                    self.cut(gone.clone());
                    changed(Change::Unmapped(gone));
                }
            }
            gap_begin = next.max(gap_begin);
        }
        for mapping in all {
            self.map(mapping, &mut changed);
        }
    }

    fn overlapping(&self, range: Range<u64>) -> Vec<Mapping> {
        let before = self.0.range(..range.start).next_back();
        let before = before.filter(|(_, mapping)| mapping.end > range.start);
        let inside = self.0.range(range);
        before
            .into_iter()
            .chain(inside)
            .map(|(_, mapping)| mapping.clone())
            .collect()
    }

    fn insert(&mut self, new: Mapping, changed: &mut impl FnMut(Change)) {
        self.0.insert(new.begin, new.clone());
        changed(Change::Mapped(new));
    }

    fn cut(&mut self, range: Range<u64>) {
        for old in self.overlapping(range.clone()) {
            self.0.remove(&old.begin);
            if old.begin < range.start {
                self.0.insert(old.begin, part(&old, old.begin..range.start));
            }
            if range.end < old.end {
                self.0.insert(range.end, part(&old, range.end..old.end));
            }
        }
    }
}

fn part(mapping: &Mapping, range: Range<u64>) -> Mapping {
    Mapping {
        begin: range.start,
        end: range.end,
        file_offset: match mapping.of_file() {
            true => mapping
                .file_offset
                .wrapping_add(range.start.wrapping_sub(mapping.begin)),
            false => mapping.file_offset,
        },
        ..mapping.clone()
    }
}

/// Whether the mappings are parts of one mapping where they overlap.
fn same(old: &Mapping, new: &Mapping) -> bool {
    let origin = |mapping: &Mapping| mapping.file_offset.wrapping_sub(mapping.begin);
    old.protection == new.protection
        && old.path == new.path
        && (!new.of_file() || origin(old) == origin(new))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapping(begin: u64, end: u64, protection: u32, path: &str) -> Mapping {
        Mapping {
            begin,
            end,
            file_offset: if path.starts_with('/') { 0x1000 } else { 0 },
            protection,
            shared: None,
            path: path.to_owned(),
        }
    }

    fn mapped(mappings: &mut Mappings, new: &Mapping) -> Vec<Change> {
        let mut changes = Vec::new();
        mappings.map(new, |change| changes.push(change));
        changes
    }

    #[test]
    fn grown_mappings_keep_their_age() {
        let mut mappings = Mappings::default();
        let heap = mapping(0x1000, 0x3000, 3, "[heap]");
        assert_eq!(mapped(&mut mappings, &heap), [Change::Mapped(heap.clone())]);
        assert_eq!(mapped(&mut mappings, &heap), []);
        let grown = mapping(0x1000, 0x5000, 3, "[heap]");
        let rest = mapping(0x3000, 0x5000, 3, "[heap]");
        assert_eq!(mapped(&mut mappings, &grown), [Change::Mapped(rest)]);
        // Maps a file in the middle of the heap, then the whole heap again.
        let file = mapping(0x2000, 0x4000, 5, "/lib/x.so");
        assert_eq!(mapped(&mut mappings, &file), [Change::Mapped(file)]);
        let middle = mapping(0x2000, 0x4000, 3, "[heap]");
        assert_eq!(mapped(&mut mappings, &grown), [Change::Mapped(middle)]);
        let mut changes = Vec::new();
        mappings.now(&[], |change| changes.push(change));
        let gone: u64 = changes
            .iter()
            .map(|change| match change {
                Change::Unmapped(range) => range.end - range.start,
                Change::Mapped(_) => panic!("{change:?}"),
            })
            .sum();
        assert_eq!(gone, 0x4000);
        assert!(mappings.0.is_empty());
    }

    #[test]
    fn a_part_of_a_file_has_its_own_offset() {
        let mut mappings = Mappings::default();
        mapped(&mut mappings, &mapping(0x4000, 0x5000, 1, "/a"));
        let whole = Mapping {
            file_offset: 0,
            ..mapping(0x3000, 0x6000, 1, "/a")
        };
        let offsets: Vec<_> = mapped(&mut mappings, &whole)
            .into_iter()
            .map(|change| match change {
                Change::Mapped(part) => (part.begin, part.file_offset),
                Change::Unmapped(range) => panic!("{range:?}"),
            })
            .collect();
        assert_eq!(offsets, [(0x3000, 0), (0x5000, 0x2000)]);
    }

    fn any_mapping() -> impl Strategy<Value = Mapping> {
        let path = prop::sample::select(vec!["//anon", "[heap]", "/lib/x.so", "[anon:name]"]);
        (
            0u64..30,
            1u64..8,
            prop::sample::select(vec![0u32, 3, 5]),
            path,
        )
            .prop_map(|(begin, length, protection, path)| {
                mapping(begin, begin + length, protection, path)
            })
    }

    /// Protection and path of each byte.
    fn bytes<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> BTreeMap<u64, (u32, String)> {
        let mut bytes = BTreeMap::new();
        for mapping in mappings {
            for at in mapping.begin..mapping.end {
                bytes.insert(at, (mapping.protection, mapping.path.clone()));
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn changes_make_what_is_mapped(records in prop::collection::vec(any_mapping(), 0..12), listed in prop::collection::vec(any_mapping(), 0..8)) {
            let mut mappings = Mappings::default();
            let mut replayed = BTreeMap::new();
            let mut replay = |change: Change| match change {
                Change::Mapped(mapping) => replayed.extend(bytes([mapping].iter())),
                Change::Unmapped(range) => replayed.retain(|at, _| !range.contains(at)),
            };
            for record in &records {
                mappings.map(record, &mut replay);
            }
            // The kernel's list has no overlapping mappings.
            let mut all: Vec<Mapping> = Vec::new();
            let mut sorted = listed;
            sorted.sort_by_key(|mapping| mapping.begin);
            for mapping in sorted {
                if all.last().is_none_or(|last| last.end <= mapping.begin) {
                    all.push(mapping);
                }
            }
            mappings.now(&all, &mut replay);
            let expected = bytes(all.iter());
            prop_assert_eq!(&bytes(mappings.0.values()), &expected);
            prop_assert_eq!(&replayed, &expected);
        }
    }
}
