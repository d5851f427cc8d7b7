//! How the objects of a group are recognised in another run, and called.

use std::collections::{BTreeMap, BTreeSet};

use nearpage_attribution::{IN_BRK_HEAP, ObjectGroup, ObjectName};
use nearpage_plan::{CallSiteFrame, Subject};
use nearpage_recording::{CallSiteId, Module, ModuleId, ObjectKind, Tables};
use nearpage_wire::{is_own_module, is_runtime_function, is_runtime_module};

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

/// How a group's objects are recognised; none for what no plan can place (stacks, file mappings,
/// objects whose stack was left out, nearpage's own data).
pub(crate) fn subject(tables: &Tables, group: &ObjectGroup) -> Option<Subject> {
    match (&group.name, group.kind) {
        (ObjectName::CallSite(call_site), ObjectKind::Heap | ObjectKind::Mapping) => {
            let frames = frames(tables, *call_site);
            (!frames.is_empty()).then_some(Subject::CallSite {
                frames,
                size_bytes: group.size_bytes,
                order: None,
                thread: None,
            })
        }
        (ObjectName::Symbol(id, offset), ObjectKind::Static) => {
            let object = group
                .samples
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
        // Not the kernel's own, nor generated.
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

/// Does a plan's subject mean the objects that `own`, a group's subject, means? Order and thread are
/// not looked at: they pick among the objects of a group.
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
                frames, size_bytes, ..
            },
            Subject::CallSite {
                frames: own,
                size_bytes: own_size,
                ..
            },
        ) => {
            let key = |frame: &CallSiteFrame| (frame.module.clone(), frame.offset);
            frames.iter().map(key).eq(own.iter().map(key))
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

/// What a group without a [`subject`] is called.
fn unplaceable_name(tables: &Tables, group: &ObjectGroup) -> String {
    match &group.name {
        ObjectName::Other(name) if group.kind == ObjectKind::Mapping => {
            name.rsplit('/').next().unwrap_or(name).to_owned()
        }
        ObjectName::Other(name) => name.clone(),
        ObjectName::CallSite(_) => "unknown call site".to_owned(),
        ObjectName::Symbol(id, offset) => {
            let module = module(tables, *id).map_or("?", Module::file_name);
            format!("{module}+{offset:#x}")
        }
    }
}

/// Names for people, as many as there are callers: `allocate:33`, `build:40 (allocate)`, …
pub(crate) fn names(subject: &Subject) -> Vec<String> {
    match subject {
        Subject::Symbol { symbol, .. } => vec![symbol.clone()],
        Subject::CallSite { frames, .. } => {
            let frames = naming(frames);
            let Some(innermost) = frames.first() else {
                return vec![String::new()];
            };
            let through = match innermost.function.as_str() {
                "" => &innermost.module,
                function => function,
            };
            let outer = frames.iter().skip(1);
            let outer = outer.map(|frame| format!("{} ({through})", frame_name(frame)));
            std::iter::once(frame_name(innermost))
                .chain(outer)
                .collect()
        }
        Subject::Code { module, .. } => vec![format!("code of {module}")],
        Subject::BrkHeap { .. } => vec![IN_BRK_HEAP.to_owned()],
        Subject::Rest => vec!["the rest".to_owned()],
        Subject::Heap { .. } | Subject::Mapping { .. } => vec![String::new()],
    }
}

/// Frames that say something: what a standard library does for them does not, unless there is nothing else, nor does
/// what calls `main`.
fn naming(frames: &[CallSiteFrame]) -> &[CallSiteFrame] {
    let is_own = |frame: &CallSiteFrame| !is_runtime_function(&frame.function);
    let frames = &frames[frames.iter().position(is_own).unwrap_or(0)..];
    let calls_main = |frame: &CallSiteFrame| frame.function == "_start";
    let end = frames.iter().skip(1).position(calls_main);
    end.map_or(frames, |callers| &frames[..=callers])
}

/// For each subject the shortest of its [`names`] that tells it from the others. Call sites whose callers are
/// called alike too, as where lines are not known, are told apart by their place in the module.
pub(crate) fn names_apart(subjects: &[(&[String], &Subject)]) -> Vec<String> {
    let lists: BTreeSet<&[String]> = subjects.iter().map(|(names, _)| *names).collect();
    let depth_max = lists.iter().map(|names| names.len()).max().unwrap_or(0);
    let mut chosen: BTreeMap<&[String], &str> = BTreeMap::new();
    for depth in 0..depth_max {
        let mut called: BTreeMap<&str, usize> = BTreeMap::new();
        for name in lists
            .iter()
            .filter_map(|names| names.get(depth).or(names.last()))
        {
            *called.entry(name).or_default() += 1;
        }
        for &names in &lists {
            if let Some(name) = names.get(depth)
                && called[name.as_str()] == 1
            {
                chosen.entry(names).or_insert(name);
            }
        }
    }
    let name = |names: &[String]| {
        let last = names.last().map_or("", String::as_str);
        chosen.get(names).copied().unwrap_or(last).to_owned()
    };
    let mut places: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
    for (names, subject) in subjects {
        places
            .entry(name(names))
            .or_default()
            .insert(place(subject));
    }
    let tell = |(names, subject): &(&[String], &Subject)| {
        let name = name(names);
        match place(subject) {
            Some(place) if places[&name].len() > 1 => place,
            _ => name,
        }
    };
    let mut told: Vec<String> = subjects.iter().map(tell).collect();
    let mut alike: BTreeMap<String, Vec<&[CallSiteFrame]>> = BTreeMap::new();
    for (name, (_, subject)) in told.iter().zip(subjects) {
        if let Subject::CallSite { frames, .. } = subject {
            let sites = alike.entry(name.clone()).or_default();
            if !sites.contains(&frames.as_slice()) {
                sites.push(frames);
            }
        }
    }
    for (name, (_, subject)) in told.iter_mut().zip(subjects) {
        let Subject::CallSite { frames, .. } = subject else {
            continue;
        };
        let Some(sites) = alike.get(name).filter(|sites| sites.len() > 1) else {
            continue;
        };
        let site = sites.iter().position(|site| site == frames);
        let numbers = site.map_or_else(Vec::new, |site| differing(sites).swap_remove(site));
        let places: Vec<String> = numbers.iter().map(|&at| place_of(&frames[at])).collect();
        let places = places.join(", ");
        let is_place = place(subject).as_ref() == Some(name);
        *name = match name.rsplit_once(" (") {
            _ if places.is_empty() => continue,
            Some((head, inner)) if is_place => {
                format!("{head} ({}, {places})", inner.trim_end_matches(')'))
            }
            Some((head, _)) => format!("{head} ({places})"),
            None => format!("{name} ({places})"),
        };
    }
    told
}

/// Of call sites that are called alike, which frames' places tell them apart, from the innermost outwards.
fn differing(sites: &[&[CallSiteFrame]]) -> Vec<Vec<usize>> {
    let mut numbers = vec![Vec::new(); sites.len()];
    let deepest = sites.iter().map(|frames| frames.len()).max().unwrap_or(0);
    let mut open: Vec<Vec<usize>> = vec![(0..sites.len()).collect()];
    for number in 0..deepest {
        for alike in std::mem::take(&mut open) {
            let mut by_place: BTreeMap<_, Vec<usize>> = BTreeMap::new();
            for site in alike {
                let frame = sites[site].get(number);
                let place = frame.map(|frame| (frame.module.as_str(), frame.offset));
                by_place.entry(place).or_default().push(site);
            }
            let differ = by_place.len() > 1;
            for site in by_place.values().flatten().filter(|_| differ) {
                if number < sites[*site].len() {
                    numbers[*site].push(number);
                }
            }
            open.extend(by_place.into_values().filter(|sites| sites.len() > 1));
        }
    }
    numbers
}

fn place_of(frame: &CallSiteFrame) -> String {
    format!("{}+{:#x}", frame.module, frame.offset)
}

/// Where in its module a call site is, and who called it.
fn place(subject: &Subject) -> Option<String> {
    let Subject::CallSite { frames, .. } = subject else {
        return None;
    };
    let innermost = frames.first()?;
    let place = place_of(innermost);
    let (own, callers) = naming(frames).split_first()?;
    Some(match (callers.first(), own.function.as_str()) {
        (Some(caller), _) => format!("{} ({place})", frame_name(caller)),
        (None, "") => place,
        (None, _) => format!("{} ({place})", frame_name(own)),
    })
}

fn frame_name(frame: &CallSiteFrame) -> String {
    match (frame.function.as_str(), frame.line) {
        ("", _) => format!("{}+{:#x}", frame.module, frame.offset),
        (function, 0) => function.to_owned(),
        (function, line) => format!("{function}:{line}"),
    }
}

/// What groups are called that no decision names, told apart from each other.
pub(crate) fn names_of_groups(tables: &Tables, groups: &[&ObjectGroup]) -> Vec<String> {
    let recognised: Vec<Option<(Vec<String>, Subject)>> = groups
        .iter()
        .map(|group| subject(tables, group).map(|own| (names(&own), own)))
        .collect();
    let subjects: Vec<(&[String], &Subject)> = recognised
        .iter()
        .flatten()
        .map(|(names, own)| (names.as_slice(), own))
        .collect();
    let mut apart = names_apart(&subjects).into_iter();
    let named = groups.iter().zip(&recognised).map(|(group, own)| {
        let name = own.as_ref().and_then(|_| apart.next());
        name.unwrap_or_else(|| unplaceable_name(tables, group))
    });
    named.collect()
}
