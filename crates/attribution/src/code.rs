//! Finds the modules of instruction addresses.

use std::{cmp::Reverse, collections::BTreeMap};

use nearpage_recording::{ModuleId, ModuleMapping};
use rustc_hash::FxHashMap;

use crate::{
    CodeUse,
    lifetimes::Lifetimes,
    sums::{CodeSum, accesses, nanoseconds},
};

/// Each process's code mappings over time. After `exec` or `dlclose`, other code may lie at the same addresses.
pub(crate) struct CodeMap {
    /// Eras by process: the time from which an image is valid. The first era begins at 0.
    eras: Vec<Vec<Era>>,
    /// Images: disjoint mappings in order of address.
    images: Vec<Vec<ModuleMapping>>,
}

#[derive(Clone, Copy, Debug)]
struct Era {
    begin_ns: u64,
    image: u32,
}

/// Largest number of eras of a process. Later mappings change the last era's image.
const ERAS_MAX: usize = 256;

impl CodeMap {
    pub fn new(mappings: &[ModuleMapping], lifetimes: &Lifetimes) -> CodeMap {
        let mut by_process: Vec<Vec<ModuleMapping>> = vec![Vec::new(); lifetimes.process_count()];
        for mapping in mappings {
            if let Some(process) = lifetimes.process(mapping.pid) {
                by_process[process as usize].push(*mapping);
            }
        }
        let mut map = CodeMap {
            eras: Vec::with_capacity(by_process.len()),
            images: Vec::new(),
        };
        for mut mappings in by_process {
            mappings.sort_by_key(|mapping| (mapping.born_ns, mapping.address));
            map.add_process(mappings);
        }
        map
    }

    /// Adds the eras of a process, whose mappings come in order of birth. An era ends where code is mapped over other
    /// code.
    fn add_process(&mut self, mappings: Vec<ModuleMapping>) {
        let mut eras = vec![Era {
            begin_ns: 0,
            image: self.images.len() as u32,
        }];
        let mut begin_ns = 0;
        let mut image: BTreeMap<u64, ModuleMapping> = BTreeMap::new();
        for mapping in mappings {
            let replaced: Vec<u64> = overlapped(&image, &mapping);
            let other = |address: &u64| {
                let old = &image[address];
                (old.module, old.bias) != (mapping.module, mapping.bias)
            };
            let is_new = mapping.born_ns > begin_ns && replaced.iter().any(other);
            if is_new && eras.len() < ERAS_MAX {
                self.images.push(image.values().copied().collect());
                begin_ns = mapping.born_ns;
                image.retain(|_, old| old.died_ns > begin_ns);
                eras.push(Era {
                    begin_ns,
                    image: self.images.len() as u32,
                });
            }
            for address in replaced {
                image.remove(&address);
            }
            image.insert(mapping.address, mapping);
        }
        self.images.push(image.into_values().collect());
        self.eras.push(eras);
    }

    /// Number of the image that `process` runs at a time.
    #[inline]
    pub fn image(&self, process: u32, time_ns: u64) -> u32 {
        let eras = &self.eras[process as usize];
        let after = match eras.len() {
            1 => 1,
            _ => eras.partition_point(|era| era.begin_ns <= time_ns),
        };
        eras[after - 1].image
    }

    fn module(&self, image: u32, instruction: u64) -> Option<(ModuleId, u64)> {
        let code = &self.images[image as usize];
        let at = code
            .partition_point(|mapping| mapping.address <= instruction)
            .checked_sub(1)?;
        let mapping = &code[at];
        (instruction - mapping.address < mapping.size_bytes)
            .then(|| (mapping.module, instruction.wrapping_sub(mapping.bias)))
    }

    /// Sums by instruction, from sums by address and image; the costliest first. The same instruction of a module
    /// counts as one in all processes.
    pub fn uses(&self, mut instructions: Vec<((u64, u32), CodeSum)>) -> Vec<CodeUse> {
        let mut sums: FxHashMap<(Option<ModuleId>, u64), CodeSum> = FxHashMap::default();
        instructions.sort_unstable_by_key(|&(place, _)| place);
        for ((instruction, image), sum) in instructions {
            let key = match self.module(image, instruction) {
                Some((module, offset)) => (Some(module), offset),
                None => (None, instruction),
            };
            sums.entry(key).or_default().merge(sum);
        }
        let mut uses: Vec<CodeUse> = sums
            .into_iter()
            .map(|((module, offset), sum)| CodeUse {
                module,
                offset,
                cost_ns: nanoseconds(sum.cost),
                remote_cost_ns: nanoseconds(sum.remote_cost),
                loads: accesses(sum.loads),
                stores: accesses(sum.stores),
            })
            .collect();
        uses.sort_unstable_by(|a, b| {
            let by = |one: &CodeUse| (one.cost_ns, one.accesses());
            by(b)
                .partial_cmp(&by(a))
                .unwrap_or(std::cmp::Ordering::Equal)
                .then((a.module, Reverse(a.offset)).cmp(&(b.module, Reverse(b.offset))))
        });
        uses
    }
}

/// Addresses of the mappings that overlap `mapping`.
fn overlapped(image: &BTreeMap<u64, ModuleMapping>, mapping: &ModuleMapping) -> Vec<u64> {
    let end = |mapping: &ModuleMapping| mapping.address.saturating_add(mapping.size_bytes);
    image
        .range(..end(mapping))
        .rev()
        .take_while(|(_, old)| end(old) > mapping.address)
        .map(|(&address, _)| address)
        .collect()
}

#[cfg(test)]
mod tests {
    use nearpage_recording::{Object, ObjectKind};

    use super::*;

    fn mapping(module: u32, address: u64, born_ns: u64, died_ns: u64) -> ModuleMapping {
        ModuleMapping {
            pid: 1,
            address,
            size_bytes: 0x1000,
            born_ns,
            died_ns,
            module: ModuleId(module),
            bias: address,
        }
    }

    fn map(mappings: &[ModuleMapping]) -> CodeMap {
        let object = Object {
            kind: ObjectKind::Static,
            name: "code".to_owned(),
            pid: 1,
            address: 0x1000,
            size_bytes: 0x1000,
            born_ns: 0,
            died_ns: u64::MAX,
            call_site: None,
            thread: None,
            order: 0,
            module: None,
            module_offset: 0,
            same_memory_as: None,
            weight: 1.0,
        };
        CodeMap::new(mappings, &Lifetimes::new(&[object], &[0]))
    }

    fn module_at(map: &CodeMap, time_ns: u64, instruction: u64) -> Option<(u32, u64)> {
        let (module, offset) = map.module(map.image(0, time_ns), instruction)?;
        Some((module.0, offset))
    }

    #[test]
    fn another_program_has_other_code_at_the_same_addresses() {
        // `exec` at 100: module 1 covers half of module 0; module 2 lies at unused addresses.
        let map = map(&[
            mapping(0, 0x1000, 0, 100),
            mapping(1, 0x1800, 101, u64::MAX),
            mapping(2, 0x9000, 102, u64::MAX),
        ]);
        assert_eq!(module_at(&map, 50, 0x1810), Some((0, 0x810)));
        assert_eq!(module_at(&map, 150, 0x1810), Some((1, 0x10)));
        assert_eq!(module_at(&map, 150, 0x1010), None);
        assert_eq!(module_at(&map, 150, 0x9010), Some((2, 0x10)));
        assert_eq!(map.images.len(), 2);
    }

    #[test]
    fn modules_that_stay_mapped_are_in_every_image() {
        let map = map(&[
            mapping(0, 0x1000, 0, u64::MAX),
            mapping(1, 0x5000, 10, 20),
            mapping(2, 0x5000, 30, 40),
            mapping(1, 0x5000, 50, u64::MAX),
        ]);
        for (time_ns, there) in [(15, 1), (35, 2), (55, 1)] {
            assert_eq!(module_at(&map, time_ns, 0x1010), Some((0, 0x10)));
            assert_eq!(module_at(&map, time_ns, 0x5010), Some((there, 0x10)));
        }
    }

    #[test]
    fn the_same_code_mapped_again_is_one_image() {
        let map = map(&[mapping(0, 0x1000, 0, 10), mapping(0, 0x1000, 20, u64::MAX)]);
        assert_eq!(map.images.len(), 1);
        assert_eq!(module_at(&map, 5, 0x1010), Some((0, 0x10)));
    }

    #[test]
    fn endless_reloading_keeps_to_its_bound() {
        let mappings: Vec<_> = (0..4000u32)
            .map(|number| {
                let born_ns = 10 * u64::from(number);
                mapping(number % 2, 0x1000, born_ns, born_ns + 5)
            })
            .collect();
        let map = map(&mappings);
        assert_eq!(map.images.len(), ERAS_MAX);
        assert_eq!(module_at(&map, u64::MAX, 0x1010), Some((1, 0x10)));
    }
}
