//! Objects of a recorded process that the rules of a translated plan take, and where their pages go.

use nearpage_plan::{Allocation, Evaluated, ModuleName, Origin, ProcessRules};
use nearpage_recording::{Module, Object, ObjectKind, Tables};
use nearpage_wire::is_runtime_module;

pub(crate) fn module_name(module: &Module) -> ModuleName<'_> {
    ModuleName {
        build_id: &module.build_id,
        file_name: module.file_name(),
    }
}

/// Calls `each` with the objects of a process in order of birth: position in the tables, object, and the rules'
/// placement, none if no rule takes the object. The heap that `brk` extends comes last, as it takes what other objects
/// leave of it.
pub fn place_objects(
    tables: &Tables,
    pid: u32,
    mut rules: ProcessRules<'_>,
    mut each: impl FnMut(usize, &Object, Option<Evaluated>),
) {
    let frames: Vec<Vec<_>> = tables
        .call_sites
        .iter()
        .map(|site| {
            let physical = site.frames.iter().filter(|frame| !frame.inlined);
            physical
                .map(|frame| {
                    let module = tables.modules.get(frame.module?.0 as usize)?;
                    Some((module_name(module), frame.offset))
                })
                .filter(|frame| {
                    !frame.is_some_and(|(name, _)| is_runtime_module(name.file_name.as_bytes()))
                })
                .collect()
        })
        .collect();
    let origin = |object: &Object| {
        let site = object.call_site.map(|site| &frames[site.0 as usize]);
        let thread = object.thread;
        let thread = thread.and_then(|thread| tables.threads.get(thread.0 as usize));
        let allocation = Allocation {
            frames: site.map_or(&[], Vec::as_slice),
            thread: thread.map_or(0, |thread| thread.order),
        };
        let module = object
            .module
            .and_then(|module| tables.modules.get(module.0 as usize));
        Some(match (object.kind, module) {
            (ObjectKind::Heap, _) => Origin::Heap(allocation),
            (ObjectKind::Mapping, _) => Origin::Mapping(allocation),
            (ObjectKind::Static, Some(module)) => Origin::Static {
                module: module_name(module),
                offset: object.module_offset,
            },
            _ if object.is_brk_heap() => Origin::BrkHeap,
            _ => return None,
        })
    };
    let mut objects: Vec<(usize, &Object)> = tables
        .objects
        .iter()
        .enumerate()
        .filter(|(_, object)| object.pid == pid)
        .collect();
    objects.sort_by_key(|(_, object)| (object.is_brk_heap(), object.born_ns));
    let second_ns = second_thread_ns(tables, pid);
    let before = objects.iter().filter(|(_, one)| one.born_ns < second_ns);
    rules.count(before.filter_map(|(_, one)| Some((origin(one)?, one.size_bytes))));
    for (number, object) in objects {
        if let Some(origin) = origin(object) {
            let evaluated = rules.place(&origin, object.address, object.size_bytes);
            each(number, object, evaluated);
        }
    }
}

/// Time at which a process's second thread was created; `u64::MAX`: never.
pub(crate) fn second_thread_ns(tables: &Tables, pid: u32) -> u64 {
    let ours = tables.threads.iter().filter(|thread| thread.pid == pid);
    let created = ours.filter(|thread| thread.order > 0);
    created
        .map(|thread| thread.born_ns)
        .min()
        .unwrap_or(u64::MAX)
}
