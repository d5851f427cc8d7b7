//! Objects that only the kernel's events show: the allocator's memory, mapped files, generated code, and the stacks of
//! programs without the preload library.

use std::collections::BTreeMap;

use nearpage_wire::is_own_memory;
use rustc_hash::{FxHashMap, FxHashSet};

use super::address_space::{AddressSpaces, Region};
use super::file_name;
use super::modules::Modules;
use super::threads::Threads;
use crate::{Event, Object, ObjectKind, ThreadIndex};

/// In attached recordings, anonymous mappings of at least this size are named by their address.
const LARGE_BYTES: u64 = 1 << 20;

/// The usual limit of a main thread's stack.
const MAIN_STACK_BYTES: u64 = 8 << 20;
/// The kernel maps the vDSO at most this far above the main stack (a page middle directory).
const VDSO_GAP_BYTES: u64 = 2 << 20;

/// Inputs from which objects are made.
pub(super) struct Areas<'a> {
    pub spaces: &'a AddressSpaces,
    pub modules: &'a Modules,
    pub threads: &'a Threads,
    /// Processes with the preload library. Their anonymous memory belongs to the allocator unless another object claims
    /// it. In other processes, each anonymous mapping is an object of its own.
    pub logged: &'a FxHashSet<u32>,
    /// Whether the programs were already running when the recording began.
    pub attached: bool,
}

/// How a region becomes an object.
enum Use {
    /// No object: the region belongs to a known object, or is never accessed.
    None,
    Object(Object),
    /// Memory of the allocator, with the name of the heap area.
    Heap(&'static str),
}

impl Areas<'_> {
    /// Appends heap areas, file mappings, code, and stacks.
    pub fn objects(&self, events: &[Event], objects: &mut Vec<Object>) {
        let is_of = |kind| move |object: &&Object| object.kind == kind;
        let stacks = objects.iter().filter(is_of(ObjectKind::Stack));
        let with_stack: FxHashSet<u32> = stacks.map(|object| object.pid).collect();
        let mappings = objects.iter().filter(is_of(ObjectKind::Mapping));
        let own_mappings = mappings
            .map(|object| (object.pid, object.address))
            .collect();
        let module_paths = self.module_paths();
        let thread_stacks = thread_stacks(events, self.logged);
        let mut heap: BTreeMap<(u32, u64, &str), Vec<&Region>> = BTreeMap::new();
        let regions = self.spaces.regions.iter();
        let own = OwnMemory::of(&self.spaces.regions);
        for region in regions.filter(|region| region.born_ns < region.died_ns) {
            if self.logged.contains(&region.pid) && own.contains(region) {
                continue;
            }
            match self.use_of(region, &thread_stacks, &module_paths, &own_mappings) {
                Use::None => {}
                Use::Object(object) => objects.push(object),
                Use::Heap(name) => {
                    let died_ns = self.spaces.end(region.pid, region.born_ns);
                    let regions = heap.entry((region.pid, died_ns, name));
                    regions.or_default().push(region);
                }
            }
        }
        for ((pid, died_ns, name), regions) in heap {
            // The heap of an attached program cannot be divided further without an allocation log.
            let kind = match self.attached && !self.logged.contains(&pid) {
                true => ObjectKind::Mapping,
                false => ObjectKind::HeapArea,
            };
            heap_areas(kind, name, regions, died_ns, objects);
        }
        self.unreported_stacks(with_stack, objects);
    }

    /// Files with at least one executable mapping, by process.
    fn module_paths(&self) -> FxHashSet<(u32, &str)> {
        let executable = self
            .spaces
            .regions
            .iter()
            .filter(|region| region.executable());
        executable
            .map(|region| (region.pid, &*region.path))
            .collect()
    }

    fn use_of(
        &self,
        region: &Region,
        thread_stacks: &ThreadStacks,
        module_paths: &FxHashSet<(u32, &str)>,
        own_mappings: &FxHashSet<(u32, u64)>,
    ) -> Use {
        if &*region.path == Object::BRK_HEAP {
            return Use::Heap(Object::BRK_HEAP);
        }
        if self.attached && region.anonymous() && region.protection & ACCESSIBLE == 0 {
            // An allocator reserved this address range and does not use it yet.
            return Use::None;
        }
        if region.path.starts_with("[stack") {
            return Use::Object(self.main_stack(region));
        }
        if region.executable() {
            return self.code(region);
        }
        if region.anonymous() {
            return self.anonymous(region, thread_stacks);
        }
        if region.path.starts_with('[') {
            return Use::Object(object(region, ObjectKind::Code, region.path.to_string()));
        }
        if module_paths.contains(&(region.pid, &*region.path))
            || own_mappings.contains(&(region.pid, region.start))
        {
            return Use::None;
        }
        Use::Object(object(region, ObjectKind::Mapping, region.path.to_string()))
    }

    /// The kernel reports the size of a main stack at the start. The stack grows down from there.
    fn main_stack(&self, region: &Region) -> Object {
        let size_bytes = (region.end - region.start)
            .max(MAIN_STACK_BYTES)
            .min(region.end);
        Object {
            address: region.end - size_bytes,
            size_bytes,
            thread: self.threads.find(region.pid, region.pid, region.born_ns),
            ..object(
                region,
                ObjectKind::Stack,
                format!("stack of {}", region.pid),
            )
        }
    }

    fn code(&self, region: &Region) -> Use {
        let generated = region.anonymous();
        if !generated && (&*region.path != "[vdso]" && modules_have_code(self.modules, region)) {
            return Use::None;
        }
        let name = match generated {
            true => crate::jit::OBJECT,
            false => file_name(&region.path),
        };
        Use::Object(object(region, ObjectKind::Code, name.to_owned()))
    }

    fn anonymous(&self, region: &Region, thread_stacks: &ThreadStacks) -> Use {
        let life = region.born_ns..region.died_ns;
        let stack = thread_stacks.get(&(region.pid, region.start));
        if let Some((_, thread)) = stack.filter(|(fork_ns, _)| life.contains(fork_ns)) {
            return Use::Object(thread_stack(region, *thread, self.threads));
        }
        if self.logged.contains(&region.pid) {
            return Use::Heap("allocator");
        }
        let name = anonymous_name(region, self.attached);
        Use::Object(object(region, ObjectKind::Mapping, name))
    }

    /// Appends main stacks of processes that are not in `with_stack` (processes with a known stack).
    fn unreported_stacks(&self, mut with_stack: FxHashSet<u32>, objects: &mut Vec<Object>) {
        let regions = self.spaces.regions.iter();
        let reported = regions
            .clone()
            .filter(|region| region.path.starts_with("[stack"));
        with_stack.extend(reported.map(|region| region.pid));
        let vdso =
            regions.filter(|region| &*region.path == "[vdso]" && !with_stack.contains(&region.pid));
        objects.extend(vdso.map(|region| stack_below_vdso(region, self.threads)));
    }
}

/// Start and end addresses of the preload library's own memory, by process.
#[derive(Default)]
struct OwnMemory {
    starts: FxHashSet<(u32, u64)>,
    ends: FxHashSet<(u32, u64)>,
}

impl OwnMemory {
    fn of(regions: &[Region]) -> Self {
        let mut own = Self::default();
        for region in regions.iter().filter(|region| is_kept(region)) {
            own.starts.insert((region.pid, region.start));
            own.ends.insert((region.pid, region.end));
        }
        own
    }

    /// Whether the region belongs to the library. The gap between two of its own regions is its heap of samples, whose
    /// objects are in the log.
    fn contains(&self, region: &Region) -> bool {
        let is_between = || {
            self.ends.contains(&(region.pid, region.start))
                && self.starts.contains(&(region.pid, region.end))
        };
        region.anonymous() && (is_kept(region) || is_between())
    }
}

fn is_kept(region: &Region) -> bool {
    region.anonymous() && is_own_memory(region.protection)
}

/// `PROT_READ` and `PROT_WRITE`.
const ACCESSIBLE: u32 = 3;

/// Name that the program gave the memory with `prctl(2)`, or a generic name.
fn anonymous_name(region: &Region, attached: bool) -> String {
    if attached && region.path.starts_with("[anon") {
        region.path.to_string()
    } else if attached && region.end - region.start >= LARGE_BYTES {
        format!("anonymous memory at {:#x}", region.start)
    } else {
        "anonymous memory".to_owned()
    }
}

/// Whether the region belongs to a module whose file was read, so that the module's segments are objects already.
fn modules_have_code(modules: &Modules, region: &Region) -> bool {
    let module = modules.resolve(region.pid, region.born_ns, region.start);
    module.is_some_and(|(module, _)| modules.file(module).is_some())
}

fn object(region: &Region, kind: ObjectKind, name: String) -> Object {
    Object {
        kind,
        name,
        pid: region.pid,
        address: region.start,
        size_bytes: region.end - region.start,
        born_ns: region.born_ns,
        died_ns: region.died_ns,
        weight: 1.0,
        call_site: None,
        thread: None,
        order: 0,
        module: None,
        module_offset: 0,
        same_memory_as: None,
    }
}

/// Joins the allocator's regions of one name, whenever they were mapped, as allocators map and unmap all the time.
/// Another object that is mapped there in between takes precedence.
fn heap_areas(
    kind: ObjectKind,
    name: &str,
    mut regions: Vec<&Region>,
    died_ns: u64,
    objects: &mut Vec<Object>,
) {
    regions.sort_unstable_by_key(|region| region.start);
    let mut area: Option<Object> = None;
    for region in regions {
        match &mut area {
            Some(area) if region.start <= area.address.saturating_add(area.size_bytes) => {
                area.size_bytes = area.size_bytes.max(region.end - area.address);
                area.born_ns = area.born_ns.min(region.born_ns);
            }
            _ => {
                objects.extend(area.take());
                area = Some(Object {
                    died_ns,
                    ..object(region, kind, name.to_owned())
                });
            }
        }
    }
    objects.extend(area);
}

/// Estimates the main stack where no event reported it: the stack ends just below the vDSO.
fn stack_below_vdso(vdso: &Region, threads: &Threads) -> Object {
    let size_bytes = (MAIN_STACK_BYTES + VDSO_GAP_BYTES).min(vdso.start);
    Object {
        address: vdso.start - size_bytes,
        size_bytes,
        thread: threads.find(vdso.pid, vdso.pid, vdso.born_ns),
        ..object(vdso, ObjectKind::Stack, format!("stack of {}", vdso.pid))
    }
}

/// Start time and thread, by process and address of the thread's stack.
type ThreadStacks = FxHashMap<(u32, u64), (u64, ThreadIndex)>;

/// Finds stacks of threads in processes without the preload library: the last anonymous mapping that the process made
/// before it created the thread.
fn thread_stacks(events: &[Event], logged: &FxHashSet<u32>) -> ThreadStacks {
    let mut last: FxHashMap<u32, u64> = FxHashMap::default();
    let mut stacks = FxHashMap::default();
    for event in events {
        match event {
            Event::Map {
                pid,
                address,
                path,
                protection: 0..4,
                ..
            } if path.is_empty() || path.starts_with("//anon") => {
                last.insert(*pid, *address);
            }
            Event::Fork {
                time_ns,
                pid,
                tid,
                thread,
                ..
            } if pid != tid && !logged.contains(pid) => {
                if let Some(address) = last.remove(pid) {
                    stacks.insert((*pid, address), (*time_ns, *thread));
                }
            }
            _ => {}
        }
    }
    stacks
}

fn thread_stack(region: &Region, thread: ThreadIndex, threads: &Threads) -> Object {
    let tid = threads.get(thread).map_or(0, |thread| thread.tid);
    Object {
        thread: Some(thread),
        ..object(region, ObjectKind::Stack, format!("stack of {tid}"))
    }
}
