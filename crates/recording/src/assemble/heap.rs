//! Objects that the program made: heap allocations and mappings of its own, and its threads'
//! stacks and thread-local storage.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::address_space::{AddressSpaces, Region};
use super::call_sites::CallSites;
use super::file_name;
use super::images::{Action, Image, Step};
use super::modules::Modules;
use super::threads::Threads;
use crate::{CallSiteId, Object, ObjectKind, ThreadIndex};

/// Appends the objects of all images.
pub(super) fn objects(
    images: &[Image],
    spaces: &AddressSpaces,
    modules: &Modules,
    threads: &Threads,
    call_sites: &mut CallSites,
    objects: &mut Vec<Object>,
) {
    let files = FileMappings::new(spaces);
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::with_capacity(images.len());
    for (number, image) in images.iter().enumerate() {
        let first = objects.len();
        let mut heap = Heap::new(image, objects);
        if let Some((parent, fork_ns)) = image.parent {
            heap.inherit(ranges[parent].clone(), fork_ns, threads);
        }
        heap.threads(threads, spaces);
        for step in &image.steps {
            let site = |sites: &mut CallSites| {
                sites.resolve(images, number, step.call_site, step.time_ns, modules)
            };
            match step.action {
                Action::Allocate => heap.allocate(step, site(call_sites), threads),
                Action::Free => heap.free(step.address, step.time_ns),
                Action::Map => heap.map(step, site(call_sites), threads, &files),
                Action::Unmap => heap.unmap(step.address, step.size_bytes, step.time_ns),
            }
        }
        heap.end(image.end_ns);
        ranges.push(first..objects.len());
    }
}

/// The objects of one image while its log is replayed.
struct Heap<'a> {
    image: &'a Image,
    objects: &'a mut Vec<Object>,
    first: usize,
    allocated: FxHashMap<u64, usize>,
    mapped: BTreeMap<u64, usize>,
    orders: FxHashMap<(Option<CallSiteId>, Option<ThreadIndex>, ObjectKind), u32>,
}

impl<'a> Heap<'a> {
    fn new(image: &'a Image, objects: &'a mut Vec<Object>) -> Self {
        let first = objects.len();
        let (allocated, mapped, orders) =
            (FxHashMap::default(), BTreeMap::new(), FxHashMap::default());
        Self {
            image,
            objects,
            first,
            allocated,
            mapped,
            orders,
        }
    }

    /// After `fork`, the child gets the parent's objects that are alive at `fork_ns`.
    fn inherit(&mut self, parent: std::ops::Range<usize>, fork_ns: u64, threads: &Threads) {
        let main = threads.find(self.image.pid, self.image.pid, fork_ns);
        for position in parent {
            let object = &self.objects[position];
            if !(object.born_ns..object.died_ns).contains(&fork_ns) {
                continue;
            }
            let mut copy = Object {
                pid: self.image.pid,
                born_ns: fork_ns,
                died_ns: u64::MAX,
                ..object.clone()
            };
            if matches!(copy.kind, ObjectKind::Stack | ObjectKind::Tls) {
                copy.thread = main;
            }
            match copy.kind {
                ObjectKind::Heap => drop(self.allocated.insert(copy.address, self.objects.len())),
                ObjectKind::Mapping => drop(self.mapped.insert(copy.address, self.objects.len())),
                _ => {}
            }
            self.objects.push(copy);
        }
    }

    fn threads(&mut self, threads: &Threads, spaces: &AddressSpaces) {
        for record in &self.image.threads {
            let thread = threads.find(self.image.pid, record.tid, record.time_ns);
            let died_ns = thread
                .and_then(|thread| threads.get(thread))
                .map_or(u64::MAX, |thread| thread.died_ns);
            // The main thread starts before the library can log it.
            let born_ns = match record.order {
                0 => spaces.begin(self.image.pid, self.image.start_ns),
                _ => record.time_ns,
            };
            let pieces = [
                (ObjectKind::Stack, "stack of", &record.stack),
                (ObjectKind::Tls, "thread-local storage of", &record.tls),
            ];
            for (kind, what, range) in pieces {
                if range.start < range.end {
                    self.objects.push(Object {
                        kind,
                        name: format!("{what} {}", record.tid),
                        pid: self.image.pid,
                        address: range.start,
                        size_bytes: range.end - range.start,
                        born_ns,
                        died_ns,
                        weight: 1.0,
                        call_site: None,
                        thread,
                        order: record.order,
                        module: None,
                        module_offset: 0,
                        same_memory_as: None,
                    });
                }
            }
        }
    }

    fn allocate(&mut self, step: &Step, call_site: Option<CallSiteId>, threads: &Threads) {
        // If an allocation is still alive at this address, its free was not logged.
        self.free(step.address, step.time_ns);
        let weight = (step.weight_milli as f32 / 1000.0).max(1.0);
        self.allocated.insert(step.address, self.objects.len());
        self.push(
            ObjectKind::Heap,
            step,
            String::new(),
            weight,
            call_site,
            threads,
        );
    }

    fn free(&mut self, address: u64, time_ns: u64) {
        if let Some(position) = self.allocated.remove(&address) {
            self.objects[position].died_ns = time_ns;
        }
    }

    fn map(
        &mut self,
        step: &Step,
        call_site: Option<CallSiteId>,
        threads: &Threads,
        files: &FileMappings<'_>,
    ) {
        if step.size_bytes == 0 {
            return;
        }
        self.unmap(step.address, step.size_bytes, step.time_ns);
        let name = if step.of_file {
            files.name(self.image.pid, step.address, step.time_ns)
        } else {
            ""
        };
        self.mapped.insert(step.address, self.objects.len());
        self.push(
            ObjectKind::Mapping,
            step,
            name.to_owned(),
            1.0,
            call_site,
            threads,
        );
    }

    /// Ends the mappings in a range. Parts outside of the range go on as objects of the same order.
    fn unmap(&mut self, address: u64, size_bytes: u64, time_ns: u64) {
        let end = address.saturating_add(size_bytes);
        let overlapped: Vec<u64> = self
            .mapped
            .range(..end)
            .rev()
            .map_while(|(start, position)| {
                (self.objects[*position].end() > address).then_some(*start)
            })
            .collect();
        for start in overlapped {
            let Some(position) = self.mapped.remove(&start) else {
                continue;
            };
            let old = self.objects[position].clone();
            self.objects[position].died_ns = time_ns;
            let keep = [(old.address, address), (end, old.end())];
            for (from, to) in keep.into_iter().filter(|(from, to)| from < to) {
                self.mapped.insert(from, self.objects.len());
                self.objects.push(Object {
                    address: from,
                    size_bytes: to - from,
                    born_ns: time_ns,
                    ..old.clone()
                });
            }
        }
    }

    fn push(
        &mut self,
        kind: ObjectKind,
        step: &Step,
        name: String,
        weight: f32,
        call_site: Option<CallSiteId>,
        threads: &Threads,
    ) {
        let thread = threads.find(self.image.pid, step.tid, step.time_ns);
        let next = self.orders.entry((call_site, thread, kind)).or_default();
        let order = *next;
        *next += 1;
        self.objects.push(Object {
            kind,
            name,
            pid: self.image.pid,
            address: step.address,
            size_bytes: step.size_bytes,
            born_ns: step.time_ns,
            died_ns: u64::MAX,
            weight,
            call_site,
            thread,
            order,
            module: None,
            module_offset: 0,
            same_memory_as: None,
        });
    }

    fn end(&mut self, end_ns: u64) {
        for object in &mut self.objects[self.first..] {
            object.died_ns = object.died_ns.min(end_ns);
        }
    }
}

impl Object {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size_bytes)
    }
}

/// File mappings that the kernel reported; they name the program's own mappings.
struct FileMappings<'a> {
    by_start: FxHashMap<(u32, u64), Vec<&'a Region>>,
}

impl<'a> FileMappings<'a> {
    fn new(spaces: &'a AddressSpaces) -> Self {
        let mut by_start: FxHashMap<_, Vec<&Region>> = FxHashMap::default();
        for region in spaces.regions.iter().filter(|region| region.file()) {
            by_start
                .entry((region.pid, region.start))
                .or_default()
                .push(region);
        }
        Self { by_start }
    }

    fn name(&self, pid: u32, address: u64, time_ns: u64) -> &'a str {
        let regions = self
            .by_start
            .get(&(pid, address))
            .map_or(&[][..], Vec::as_slice);
        let alive = regions
            .iter()
            .find(|region| (region.born_ns..=region.died_ns).contains(&time_ns));
        alive.map_or("", |region| file_name(&region.path))
    }
}
