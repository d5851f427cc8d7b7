//! The address space without its gaps: the pages of objects and modules, laid end to end.
//!
//! A picture of 2^47 addresses would be empty. Extents are the pages that objects and modules had at any time, process
//! by process. An address's *place* is its offset in the sequence of extents.

use std::ops::Range;

use nearpage_recording::Tables;

/// Smaller gaps, in pages, are kept, so that an allocator's neighbouring objects stay neighbours.
const GAP_PAGES: u64 = 16;

/// Limit of the total size of extents, in bytes. It keeps products of rounded-up lines within 64 bits.
const SPACE_MAX: u64 = 1 << 62;

/// Consecutive pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Process ID.
    pub pid: u32,
    /// First address, page-aligned.
    pub address: u64,
    /// Size in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Place of the extent's first byte.
    pub place: u64,
}

/// All extents, ordered by process and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    extents: Vec<Extent>,
    /// Processes with the positions of their extents.
    processes: Vec<(u32, Range<usize>)>,
    bytes: u64,
}

impl Space {
    /// Space of a recording's objects and modules.
    pub fn new(tables: &Tables, page_bytes: u64) -> Self {
        let objects = tables.objects.iter();
        let objects = objects.map(|object| (object.pid, object.address, object.size_bytes));
        let modules = tables.mappings.iter();
        let modules = modules.map(|mapping| (mapping.pid, mapping.address, mapping.size_bytes));
        let page = |address: u64| address / page_bytes;
        let mut pages: Vec<(u32, u64, u64)> = objects
            .chain(modules)
            .filter(|&(.., bytes)| bytes > 0)
            .map(|(pid, address, bytes)| {
                let last = address.saturating_add(bytes - 1);
                (pid, page(address), page(last) + 1)
            })
            .collect();
        pages.sort_unstable();
        pages.dedup_by(|next, kept| {
            let joins = next.0 == kept.0 && next.1 <= kept.2.saturating_add(GAP_PAGES);
            if joins {
                kept.2 = kept.2.max(next.2);
            }
            joins
        });
        let mut space = Self::default();
        for (pid, first, end) in pages {
            let bytes = (end - first).saturating_mul(page_bytes);
            // A recording can claim any sizes. Extents beyond the limit have no place.
            let past = space.bytes.saturating_add(bytes);
            if past > SPACE_MAX {
                continue;
            }
            let number = space.extents.len();
            space.extents.push(Extent {
                pid,
                address: first * page_bytes,
                bytes,
                place: space.bytes,
            });
            space.bytes = past;
            match space.processes.last_mut() {
                Some((last, extents)) if *last == pid => extents.end = number + 1,
                _ => space.processes.push((pid, number..number + 1)),
            }
        }
        space
    }

    /// Extents in the order of process and address, which is the order of places.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Total size of the extents, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Extents of a process.
    pub fn of_process(&self, pid: u32) -> &[Extent] {
        let found = self
            .processes
            .binary_search_by_key(&pid, |(process, _)| *process);
        found.map_or(&[], |at| &self.extents[self.processes[at].1.clone()])
    }

    /// Place of an address of a process; `None` if no object or module was ever there.
    pub fn place(&self, pid: u32, address: u64) -> Option<u64> {
        place(self.of_process(pid), address)
    }

    /// Process and address of a place.
    pub fn address(&self, place: u64) -> Option<(u32, u64)> {
        let at = self
            .extents
            .partition_point(|extent| extent.place <= place)
            .checked_sub(1)?;
        let extent = self.extents[at];
        let offset = place - extent.place;
        (offset < extent.bytes).then(|| (extent.pid, extent.address + offset))
    }
}

/// Place of an address in a process's extents.
pub(crate) fn place(extents: &[Extent], address: u64) -> Option<u64> {
    let at = extents
        .partition_point(|extent| extent.address <= address)
        .checked_sub(1)?;
    let extent = extents[at];
    let offset = address - extent.address;
    (offset < extent.bytes).then(|| extent.place + offset)
}

#[cfg(test)]
mod tests {
    use nearpage_recording::{Object, ObjectKind};
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;

    fn object(pid: u32, address: u64, size_bytes: u64) -> Object {
        Object {
            kind: ObjectKind::Heap,
            name: String::new(),
            pid,
            address,
            size_bytes,
            born_ns: 0,
            died_ns: u64::MAX,
            weight: 1.0,
            call_site: None,
            thread: None,
            order: 0,
            module: None,
            module_offset: 0,
            same_memory_as: None,
        }
    }

    fn space(objects: &[(u32, u64, u64)]) -> Space {
        let objects = objects
            .iter()
            .map(|&(pid, address, bytes)| object(pid, address, bytes))
            .collect();
        let tables = Tables {
            objects,
            ..Tables::default()
        };
        Space::new(&tables, PAGE)
    }

    #[test]
    fn gaps_go_and_neighbours_stay() {
        let space = space(&[
            (1, 0x10_0000, 100),
            (1, 0x10_2000, 100),
            (1, 0x9000_0000, 8192),
        ]);
        assert_eq!(space.extents().len(), 2);
        assert_eq!(space.bytes(), 3 * PAGE + 2 * PAGE);
        assert_eq!(space.place(1, 0x9000_0001), Some(3 * PAGE + 1));
        assert_eq!(space.place(1, 0x9000_2000), None);
        assert_eq!(space.place(2, 0x10_0000), None);
        assert_eq!(space.address(3 * PAGE), Some((1, 0x9000_0000)));
        assert_eq!(space.address(5 * PAGE), None);
    }

    #[test]
    fn sizes_that_do_not_fit_together_have_no_place() {
        let half = 1 << 61;
        let space = space(&[(1, 0, half), (2, 4096, half + 1), (3, 4096, 4096)]);
        assert_eq!(space.bytes(), half + PAGE);
        assert_eq!(space.place(1, half - 1), Some(half - 1));
        assert_eq!(space.place(2, 8000), None);
        assert_eq!(space.place(3, 4097), Some(half + 1));
    }

    proptest! {
        #[test]
        fn places_and_addresses_are_inverse(
            objects in prop::collection::vec((1..3u32, 0..1u64 << 40, 1..1u64 << 30), 1..20),
            at in any::<prop::sample::Index>(),
            offset in any::<u64>(),
        ) {
            let space = space(&objects);
            let (pid, address, bytes) = objects[at.index(objects.len())];
            let address = address + offset % bytes;
            let place = space.place(pid, address).expect("an object's address has a place");
            prop_assert!(place < space.bytes());
            prop_assert_eq!(space.address(place), Some((pid, address)));
        }
    }
}
