//! What the kernel alone knows: the allocator's memory, mapped files, generated code, and the
//! stacks of programs without the preload library.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::address_space::{AddressSpaces, Region};
use super::file_name;
use super::modules::Modules;
use super::threads::Threads;
use crate::{Event, Object, ObjectKind, ThreadIndex};

/// Anonymous memory of so many bytes is an object with a name of its own where nothing tells who
/// allocated it.
const LARGE_BYTES: u64 = 1 << 20;

/// The usual limit of a main thread's stack.
const MAIN_STACK_BYTES: u64 = 8 << 20;
/// The kernel maps the vDSO at most this far above the main stack (a page middle directory).
const VDSO_GAP_BYTES: u64 = 2 << 20;

/// Appends heap areas, file mappings, code, and stacks. `logged`: processes with the preload
/// library, whose anonymous memory is the allocator's unless it is known to be something else;
/// without it, each anonymous mapping is an object of its own.
pub(super) fn objects(
    spaces: &AddressSpaces,
    modules: &Modules,
    threads: &Threads,
    logged: &FxHashSet<u32>,
    events: &[Event],
    attached: bool,
    objects: &mut Vec<Object>,
) {
    let has_stack: FxHashSet<u32> = objects
        .iter()
        .filter(|object| object.kind == ObjectKind::Stack)
        .map(|object| object.pid)
        .collect();
    let own_mappings: FxHashSet<(u32, u64)> = objects
        .iter()
        .filter(|object| object.kind == ObjectKind::Mapping)
        .map(|object| (object.pid, object.address))
        .collect();
    let module_paths: FxHashSet<(u32, &str)> = spaces
        .regions
        .iter()
        .filter(|region| region.executable())
        .map(|region| (region.pid, &*region.path))
        .collect();
    let thread_stacks = thread_stacks(events, logged);
    let mut heap: BTreeMap<(u32, u64, &str), Vec<&Region>> = BTreeMap::new();

    for region in spaces
        .regions
        .iter()
        .filter(|region| region.born_ns < region.died_ns)
    {
        let (kind, name) = if &*region.path == Object::BRK_HEAP {
            let died_ns = spaces.end(region.pid, region.born_ns);
            heap.entry((region.pid, died_ns, Object::BRK_HEAP))
                .or_default()
                .push(region);
            continue;
        } else if attached && region.anonymous() && region.protection & ACCESSIBLE == 0 {
            // An allocator's reserve.
            continue;
        } else if region.path.starts_with("[stack") {
            (ObjectKind::Stack, format!("stack of {}", region.pid))
        } else if region.executable() {
            let generated = region.anonymous();
            if !generated && (&*region.path != "[vdso]" && modules_have_code(modules, region)) {
                continue;
            }
            (
                ObjectKind::Code,
                if generated {
                    crate::jit::OBJECT
                } else {
                    file_name(&region.path)
                }
                .to_owned(),
            )
        } else if region.anonymous() {
            let stack = thread_stacks.get(&(region.pid, region.start));
            let created = |(fork_ns, _): &&(u64, ThreadIndex)| {
                (region.born_ns..region.died_ns).contains(fork_ns)
            };
            if let Some((_, thread)) = stack.filter(created) {
                objects.push(thread_stack(region, *thread, threads));
                continue;
            }
            if logged.contains(&region.pid) {
                let died_ns = spaces.end(region.pid, region.born_ns);
                heap.entry((region.pid, died_ns, "allocator"))
                    .or_default()
                    .push(region);
                continue;
            }
            (ObjectKind::Mapping, anonymous_name(region, attached))
        } else if region.path.starts_with('[') {
            (ObjectKind::Code, region.path.to_string())
        } else if module_paths.contains(&(region.pid, &*region.path))
            || own_mappings.contains(&(region.pid, region.start))
        {
            continue;
        } else {
            (ObjectKind::Mapping, region.path.to_string())
        };
        let mut object = object(region, kind, name);
        if kind == ObjectKind::Stack {
            object.thread = threads.find(region.pid, region.pid, region.born_ns);
            grow_down(&mut object);
        }
        objects.push(object);
    }
    for ((pid, died_ns, name), regions) in heap {
        // Of a program that was running already, the heap as a whole is all there is to know.
        let kind = match attached && !logged.contains(&pid) {
            true => ObjectKind::Mapping,
            false => ObjectKind::HeapArea,
        };
        heap_areas(kind, name, regions, died_ns, objects);
    }
    let with_stack: FxHashSet<u32> = spaces
        .regions
        .iter()
        .filter(|region| region.path.starts_with("[stack"))
        .map(|region| region.pid)
        .chain(has_stack)
        .collect();
    let vdso = spaces
        .regions
        .iter()
        .filter(|region| &*region.path == "[vdso]" && !with_stack.contains(&region.pid));
    objects.extend(vdso.map(|region| stack_below_vdso(region, threads)));
}

/// `PROT_READ` and `PROT_WRITE`.
const ACCESSIBLE: u32 = 3;

/// What the program called it (`prctl`), where it did.
fn anonymous_name(region: &Region, attached: bool) -> String {
    if attached && region.path.starts_with("[anon") {
        region.path.to_string()
    } else if attached && region.end - region.start >= LARGE_BYTES {
        format!("anonymous memory at {:#x}", region.start)
    } else {
        "anonymous memory".to_owned()
    }
}

/// Is the region part of a module whose file was read? Its segments are objects already.
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
    }
}

/// Joins the allocator's regions of one name, whenever they were mapped: it maps and unmaps all the time, and
/// what else is mapped there meanwhile is another object and wins.
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
            Some(area) if region.start <= area.address + area.size_bytes => {
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

/// The kernel reports a main stack as long as it is at the start; it grows down from there.
fn grow_down(stack: &mut Object) {
    let end = stack.address + stack.size_bytes;
    stack.size_bytes = stack.size_bytes.max(MAIN_STACK_BYTES).min(end);
    stack.address = end - stack.size_bytes;
}

/// Where nothing reported the main stack: it ends just below the vDSO.
fn stack_below_vdso(vdso: &Region, threads: &Threads) -> Object {
    let size_bytes = (MAIN_STACK_BYTES + VDSO_GAP_BYTES).min(vdso.start);
    Object {
        address: vdso.start - size_bytes,
        size_bytes,
        thread: threads.find(vdso.pid, vdso.pid, vdso.born_ns),
        ..object(vdso, ObjectKind::Stack, format!("stack of {}", vdso.pid))
    }
}

/// The last anonymous mapping that a process made before it created a thread is that thread's
/// stack: by (process, address), and when the thread began, for processes without the preload
/// library.
fn thread_stacks(
    events: &[Event],
    logged: &FxHashSet<u32>,
) -> FxHashMap<(u32, u64), (u64, ThreadIndex)> {
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
