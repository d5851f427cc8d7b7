//! What engineers call an object of a recording: one name, which every command, plan and file uses.

use nearpage_recording::{CallSite, CallSiteId, Frame, ModuleId, Object, ObjectKind, Tables};
use nearpage_wire::{is_own_module, is_runtime_function, is_runtime_module};
use rustc_hash::FxHashMap;

use crate::function_name::brief_function;
use crate::{ObjectGroup, ObjectName};

/// The file name of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn module_name(tables: &Tables, module: Option<ModuleId>) -> &str {
    module
        .and_then(|id| tables.modules.get(id.0 as usize))
        .map_or("", |module| file_name(&module.path))
}

fn is_runtime(tables: &Tables, frame: &Frame) -> bool {
    is_runtime_module(module_name(tables, frame.module).as_bytes())
}

/// Call site of a group, where its name is one.
pub fn call_site<'a>(tables: &'a Tables, group: &ObjectGroup) -> Option<&'a CallSite> {
    match group.name {
        ObjectName::CallSite(id) => tables.call_sites.get(id.0 as usize),
        _ => None,
    }
}

/// `1st`, `2nd`, `3rd`, `4th`.
fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (1, not) if not != 11 => "st",
        (2, not) if not != 12 => "nd",
        (3, not) if not != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// What nearpage does and has in the programs that it observes.
const NEARPAGE: &str = "nearpage itself";

/// `solve cg.c:120`, as far as it is known; `cg+0x1234` otherwise.
pub fn place(tables: &Tables, frame: &Frame) -> String {
    if is_own_module(module_name(tables, frame.module).as_bytes()) {
        return NEARPAGE.to_owned();
    }
    let line = match (file_name(&frame.file), frame.line) {
        ("", _) => String::new(),
        (file, 0) => file.to_owned(),
        (file, line) => format!("{file}:{line}"),
    };
    match (&*brief_function(&frame.function), line.as_str()) {
        ("", "") => match module_name(tables, frame.module) {
            "" => format!("{:#x}", frame.offset),
            module => format!("{module}+{:#x}", frame.offset),
        },
        ("", line) => line.to_owned(),
        (function, "") => function.to_owned(),
        (function, line) => format!("{function} {line}"),
    }
}

/// What engineers call the groups of a report: a group's symbol; or function and line that
/// allocated it. Call sites that share their innermost frame outside the runtime (a wrapper around
/// `malloc`) are named after the first frame in which they differ. Where all frames are called alike, calls on one line
/// are numbered in the order of the code, and others have the places in their modules that tell them apart. As recorded,
/// not yet safe to print.
#[derive(Clone, Debug)]
pub struct Names<'a> {
    tables: &'a Tables,
    /// Frame that names each call site of several with the same innermost one.
    frames: FxHashMap<CallSiteId, usize>,
    /// Those that no frame's name tells apart: functions without lines, calls on one line.
    alike: FxHashMap<CallSiteId, Apart>,
}

/// What tells call sites of one name apart.
#[derive(Clone, Debug)]
enum Apart {
    /// Of so many calls in the naming frame's line, or function, the first, second, …, by their places in the code.
    Call(usize, usize),
    /// Places of these frames.
    Places(Vec<usize>),
}

impl<'a> Names<'a> {
    /// Names for these groups.
    pub fn new(tables: &'a Tables, groups: &[ObjectGroup]) -> Self {
        let mut names = Self {
            tables,
            frames: FxHashMap::default(),
            alike: FxHashMap::default(),
        };
        let mut open: Vec<CallSiteId> = groups
            .iter()
            .filter_map(|group| match group.name {
                ObjectName::CallSite(site) => Some(site),
                _ => None,
            })
            .collect();
        open.sort_unstable();
        open.dedup();
        let sites = open.clone();
        while open.len() > 1 {
            let mut by_place: FxHashMap<String, Vec<CallSiteId>> = FxHashMap::default();
            for &site in &open {
                let place = names.naming_frame(site).map(|frame| place(tables, frame));
                by_place
                    .entry(place.unwrap_or_default())
                    .or_default()
                    .push(site);
            }
            let alike = by_place.into_values().filter(|sites| sites.len() > 1);
            // Outwards, where there is an outer frame: the others keep the name they share.
            open = alike
                .flatten()
                .filter(|&site| names.go_outwards(site))
                .collect();
            open.sort_unstable();
        }
        let mut by_name: FxHashMap<String, Vec<CallSiteId>> = FxHashMap::default();
        for site in sites {
            let name = names.of_call_site(site, ObjectKind::Heap);
            by_name.entry(name).or_default().push(site);
        }
        for sites in by_name.into_values().filter(|sites| sites.len() > 1) {
            names.tell_apart(sites);
        }
        names
    }

    /// Numbers sites of one name, or finds the frames that tell them apart by their places, from the innermost outwards.
    fn tell_apart(&mut self, sites: Vec<CallSiteId>) {
        if let Some(calls) = self.in_order_of_code(&sites) {
            let all = calls.len();
            let numbered = (1..).zip(calls);
            self.alike
                .extend(numbered.map(|(number, site)| (site, Apart::Call(number, all))));
            return;
        }
        let frames_max = sites.iter().map(|&site| self.frames_of(site).len()).max();
        let mut open = vec![sites];
        for outwards in 0..frames_max.unwrap_or(0) {
            for sites in std::mem::take(&mut open) {
                let mut by_place: FxHashMap<_, Vec<CallSiteId>> = FxHashMap::default();
                for &site in &sites {
                    let number = self.innermost(site) + outwards;
                    let frame = self.frames_of(site).get(number);
                    let place = frame.map(|frame| (frame.module, frame.offset));
                    by_place.entry(place).or_default().push(site);
                }
                for &site in sites.iter().filter(|_| by_place.len() > 1) {
                    let number = self.innermost(site) + outwards;
                    if number < self.frames_of(site).len() {
                        match self.alike.entry(site).or_insert(Apart::Places(Vec::new())) {
                            Apart::Places(numbers) => numbers.push(number),
                            Apart::Call(..) => {}
                        }
                    }
                }
                open.extend(by_place.into_values().filter(|sites| sites.len() > 1));
            }
        }
    }

    /// Calls from one function of a program, each at a place of its own.
    fn in_order_of_code(&self, sites: &[CallSiteId]) -> Option<Vec<CallSiteId>> {
        let frames = sites.iter().map(|&site| self.naming_frame(site));
        let frames: Vec<&Frame> = frames.collect::<Option<_>>()?;
        let module = frames.first()?.module?;
        let is_alike = |frame: &&Frame| frame.module == Some(module) && !frame.function.is_empty();
        let mut calls: Vec<(u64, CallSiteId)> = frames
            .iter()
            .map(|frame| frame.offset)
            .zip(sites.iter().copied())
            .collect();
        calls.sort_unstable();
        let is_apart = calls.windows(2).all(|pair| pair[0].0 < pair[1].0);
        (is_apart && frames.iter().all(is_alike))
            .then(|| calls.into_iter().map(|(_, site)| site).collect())
    }

    fn frames_of(&self, site: CallSiteId) -> &'a [Frame] {
        self.tables
            .call_sites
            .get(site.0 as usize)
            .map_or(&[], |site| &site.frames)
    }

    /// The innermost frame outside runtime modules, and outside what of a standard library is in others.
    fn innermost(&self, site: CallSiteId) -> usize {
        let frames = self.frames_of(site);
        let outside = |frame: &Frame| !is_runtime(self.tables, frame);
        let own = |frame: &Frame| outside(frame) && !is_runtime_function(&frame.function);
        let own = frames.iter().position(own);
        own.or_else(|| frames.iter().position(outside)).unwrap_or(0)
    }

    fn naming_frame(&self, site: CallSiteId) -> Option<&'a Frame> {
        let number = self.frames.get(&site).copied();
        self.frames_of(site)
            .get(number.unwrap_or_else(|| self.innermost(site)))
    }

    fn go_outwards(&mut self, site: CallSiteId) -> bool {
        let number = self.frames.get(&site).copied();
        let next = number.unwrap_or_else(|| self.innermost(site)) + 1;
        // What calls `main` says nothing.
        let says_more =
            |frame: &Frame| !is_runtime(self.tables, frame) && frame.function != "_start";
        let has_next = self.frames_of(site).get(next).is_some_and(says_more);
        if has_next {
            self.frames.insert(site, next);
        }
        has_next
    }

    fn of_call_site(&self, site: CallSiteId, kind: ObjectKind) -> String {
        let Some(frame) = self.naming_frame(site) else {
            return "unknown call site".to_owned();
        };
        let innermost = &self.frames_of(site)[self.innermost(site)];
        let through = match (self.frames.contains_key(&site), kind) {
            (true, _) if !innermost.function.is_empty() => brief_function(&innermost.function),
            (_, ObjectKind::Mapping) => "mmap".into(),
            _ => "malloc".into(),
        };
        let through = match self.alike.get(&site) {
            None => through.into_owned(),
            Some(Apart::Call(number, all)) => format!("{through}, {} of {all}", ordinal(*number)),
            Some(Apart::Places(numbers)) => {
                let places = numbers.iter().map(|&number| {
                    let frame = &self.frames_of(site)[number];
                    match module_name(self.tables, frame.module) {
                        "" => format!("{:#x}", frame.offset),
                        module => format!("{module}+{:#x}", frame.offset),
                    }
                });
                places.collect::<Vec<_>>().join(", ")
            }
        };
        format!("{} ({through})", place(self.tables, frame))
    }

    /// The name of an object, whatever group it is in.
    pub fn of_object(&self, object: &Object) -> String {
        let module = module_name(self.tables, object.module);
        match (object.kind, object.call_site) {
            (ObjectKind::Heap | ObjectKind::Mapping, Some(site)) => {
                self.of_call_site(site, object.kind)
            }
            (ObjectKind::Static, _) if object.name.is_empty() => {
                format!("{module}+{:#x}", object.module_offset)
            }
            (ObjectKind::Mapping, _) => file_name(&object.name).to_owned(),
            (ObjectKind::Code, _) => format!("code of {}", file_name(&object.name)),
            (ObjectKind::Stack, _) => "stack".to_owned(),
            (ObjectKind::Tls, _) => "thread-local storage".to_owned(),
            _ => object.name.clone(),
        }
    }

    /// The name of one of them.
    pub fn of(&self, group: &ObjectGroup) -> String {
        let tables = self.tables;
        match &group.name {
            ObjectName::CallSite(site) => {
                let name = self.of_call_site(*site, group.kind);
                let sibling = group
                    .sibling
                    .and_then(|id| tables.objects.get(id.0 as usize));
                match sibling {
                    Some(object) => format!("{name} #{}", object.order + 1),
                    None => name,
                }
            }
            ObjectName::Symbol(module, _)
                if is_own_module(module_name(tables, Some(*module)).as_bytes()) =>
            {
                format!("data of {NEARPAGE}")
            }
            ObjectName::Symbol(module, offset) => {
                let named = |object: &&Object| {
                    object.module == Some(*module) && object.module_offset == *offset
                };
                let sample = group.samples.first();
                let sample = sample.and_then(|id| tables.objects.get(id.0 as usize));
                // The sample is of this symbol; without one, the table is searched.
                let object = sample.filter(|object| named(object)).or_else(|| {
                    tables
                        .objects
                        .iter()
                        .filter(|object| object.kind == ObjectKind::Static)
                        .find(named)
                });
                match object.map(|object| object.name.as_str()) {
                    Some(name) if !name.is_empty() => name.to_owned(),
                    _ => format!("{}+{offset:#x}", module_name(tables, Some(*module))),
                }
            }
            ObjectName::Other(name) if group.kind == ObjectKind::Mapping => {
                file_name(name).to_owned()
            }
            ObjectName::Other(name) if group.kind == ObjectKind::Code => format!("code of {name}"),
            ObjectName::Other(name) => name.clone(),
        }
    }
}
