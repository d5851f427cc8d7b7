//! Memory that several processes have mapped: a shared segment, an MPI window, PostgreSQL's buffers, a mapped database.
//! Each process has an object for it; the largest stands for all, so that it is known who uses the memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nearpage_perf_abi::FileId;
use rustc_hash::FxHashMap;

use super::address_space::{AddressSpaces, Region};
use crate::{Object, ObjectId, ObjectKind};

/// Regions that are looked at for each object: those that begin at or below its first address, nearest first. Regions
/// of one time do not overlap, so the right one is among the nearest.
const LOOKED_AT: usize = 16;

/// Sets [`Object::same_memory_as`] of all mappings.
pub(super) fn join(spaces: &AddressSpaces, objects: &mut [Object]) {
    let mut shared: BTreeMap<(u32, u64), Vec<&Region>> = BTreeMap::new();
    for region in spaces
        .regions
        .iter()
        .filter(|region| region.shared.is_some())
    {
        let regions = shared.entry((region.pid, region.start));
        regions.or_default().push(region);
    }
    if shared.is_empty() {
        return;
    }
    let mut groups: FxHashMap<(FileId, u64), Vec<usize>> = FxHashMap::default();
    for (number, object) in objects.iter().enumerate() {
        if object.kind == ObjectKind::Mapping
            && let Some(place) = place_in_file(&shared, object)
        {
            groups.entry(place).or_default().push(number);
        }
    }
    for mut same in groups.into_values() {
        same.sort_unstable_by_key(|&number| {
            let object = &objects[number];
            (Reverse(object.size_bytes), object.born_ns, number)
        });
        let pid = objects[same[0]].pid;
        for &number in &same[1..] {
            if objects[number].pid != pid {
                objects[number].same_memory_as = Some(ObjectId(same[0] as u32));
            }
        }
    }
}

/// The shared file that an object maps, and the offset of its first byte.
fn place_in_file(
    shared: &BTreeMap<(u32, u64), Vec<&Region>>,
    object: &Object,
) -> Option<(FileId, u64)> {
    let below = shared.range((object.pid, 0)..=(object.pid, object.address));
    let regions = below.rev().flat_map(|(_, regions)| regions);
    // The times of a logged mapping and of the kernel's record differ a little.
    let region = regions.take(LOOKED_AT).find(|region| {
        object.address < region.end
            && region.born_ns < object.died_ns
            && object.born_ns < region.died_ns
    })?;
    let offset = region
        .file_offset
        .wrapping_add(object.address - region.start);
    Some((region.shared?, offset))
}
