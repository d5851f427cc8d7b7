//! How the objects of a group are recognised in another run.

use nearpage_attribution::{IN_BRK_HEAP, ObjectGroup, ObjectName};
use nearpage_plan::{CallSiteFrame, Plan, Subject};
use nearpage_recording::{CallSiteId, Module, ModuleId, ObjectKind, Tables};
use nearpage_wire::{is_own_module, is_runtime_module};

use crate::context::Context;
use crate::parameters::Parameters;

fn module(tables: &Tables, id: ModuleId) -> Option<&Module> {
    tables.modules.get(id.0 as usize)
}

/// The frames of a call site as a plan keeps them: without inlined functions (they have no return
/// address of their own), generated code, and runtime modules.
fn frames(tables: &Tables, call_site: CallSiteId) -> Vec<CallSiteFrame> {
    let Some(call_site) = tables.call_sites.get(call_site.0 as usize) else {
        return Vec::new();
    };
    let physical = call_site.frames.iter().filter(|frame| !frame.inlined);
    physical
        .filter_map(|frame| {
            let module = module(tables, frame.module?)?;
            let name = module.file_name();
            (!is_runtime_module(name.as_bytes())).then(|| CallSiteFrame {
                module: name.to_owned(),
                build_id: module.build_id.clone(),
                offset: frame.offset,
                function: frame.function.clone(),
                line: frame.line,
            })
        })
        .collect()
}

/// The subject by which a plan recognises a group's objects; none for objects that no plan can place (stacks, file
/// mappings, objects whose stack was left out, nearpage's own data).
pub(crate) fn subject(tables: &Tables, group: &ObjectGroup) -> Option<Subject> {
    match (&group.name, group.kind) {
        (ObjectName::CallSite(call_site), ObjectKind::Heap | ObjectKind::Mapping) => {
            let frames = frames(tables, *call_site);
            let sibling = group
                .sibling
                .and_then(|id| tables.objects.get(id.0 as usize));
            let allocator = sibling.and_then(|object| object.thread);
            let allocator = allocator.and_then(|thread| tables.threads.get(thread.0 as usize));
            (!frames.is_empty()).then_some(Subject::CallSite {
                frames,
                size_bytes: group.size_bytes,
                order: sibling.map(|object| (object.order, object.order)),
                thread: allocator.map(|thread| thread.order),
            })
        }
        (ObjectName::Symbol(id, offset), ObjectKind::Static) => {
            let object = group
                .listed_instances
                .iter()
                .find_map(|id| tables.objects.get(id.0 as usize))?;
            let module = module(tables, *id)?;
            let own = is_own_module(module.file_name().as_bytes());
            (!object.name.is_empty() && !own).then(|| Subject::Symbol {
                symbol: object.name.clone(),
                module: module.file_name().to_owned(),
                build_id: module.build_id.clone(),
                offset: *offset,
                size_bytes: group.size_bytes,
            })
        }
        (ObjectName::Other(name), ObjectKind::HeapArea) if name == IN_BRK_HEAP => {
            Some(Subject::BrkHeap {
                size_bytes: group.size_bytes,
            })
        }
        // Names in brackets: the kernel's code, and generated code.
        (ObjectName::Other(name), ObjectKind::Code) if !name.starts_with('[') => {
            let mut modules = tables.modules.iter();
            let module = modules.find(|module| module.file_name() == name);
            Some(Subject::Code {
                module: name.clone(),
                build_id: module.map_or_else(String::new, |module| module.build_id.clone()),
                pages: Vec::new(),
            })
        }
        _ => None,
    }
}

/// True if a plan's subject means the objects that `own`, a group's subject, means. Order and thread are compared only
/// if both subjects have them.
pub(crate) fn means(subject: &Subject, own: &Subject, kind: ObjectKind) -> bool {
    match (subject, own) {
        (
            Subject::Symbol { symbol, module, .. },
            Subject::Symbol {
                symbol: own,
                module: own_module,
                ..
            },
        ) => symbol == own && (module.is_empty() || module == own_module),
        (
            Subject::CallSite {
                frames,
                size_bytes,
                order,
                thread,
            },
            Subject::CallSite {
                frames: own,
                size_bytes: own_size,
                order: own_order,
                thread: own_thread,
            },
        ) => {
            let key = |frame: &CallSiteFrame| (frame.module.clone(), frame.offset);
            let is_picked = match (order, own_order) {
                (Some(picked), Some(own)) => picked.0 <= own.1 && own.0 <= picked.1,
                _ => true,
            };
            let is_allocators = match (thread, own_thread) {
                (Some(picked), Some(own)) => picked == own,
                _ => true,
            };
            is_picked
                && is_allocators
                && frames.iter().map(key).eq(own.iter().map(key))
                && size_bytes.checked_ilog2() == own_size.checked_ilog2()
        }
        (Subject::Code { module, .. }, Subject::Code { module: own, .. }) => module == own,
        (Subject::BrkHeap { .. }, Subject::BrkHeap { .. }) => true,
        (
            Subject::Heap {
                size_min_bytes,
                size_max_bytes,
            },
            Subject::CallSite { size_bytes, .. },
        ) => kind == ObjectKind::Heap && (*size_min_bytes..=*size_max_bytes).contains(size_bytes),
        (
            Subject::Mapping {
                size_min_bytes,
                size_max_bytes,
            },
            Subject::CallSite { size_bytes, .. },
        ) => {
            kind == ObjectKind::Mapping && (*size_min_bytes..=*size_max_bytes).contains(size_bytes)
        }
        _ => false,
    }
}

/// Positions of a plan's decisions about a group, which is recognised as `own`. Groups of too few pages are placed with
/// unmatched memory and have none.
pub(crate) fn decisions_about(
    plan: &Plan,
    context: &Context,
    group: &ObjectGroup,
    own: Option<&Subject>,
) -> Vec<usize> {
    let pages_min = Parameters::default().pages_min;
    let own = own.filter(|_| group.size_bytes >= pages_min * context.page_bytes);
    let applies = |position: &usize| {
        own.is_some_and(|own| means(&plan.decisions[*position].subject, own, group.kind))
    };
    (0..plan.decisions.len()).filter(applies).collect()
}
