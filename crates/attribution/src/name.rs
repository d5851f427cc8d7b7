//! Display names of objects: one name in all commands, plans and files.

use nearpage_recording::{CallSite, CallSiteId, Frame, ModuleId, Object, ObjectKind, Tables};
use nearpage_wire::{is_own_module, is_runtime_function, is_runtime_module};
use rustc_hash::FxHashMap;

use crate::function_name::brief_function;
use crate::{ObjectGroup, ObjectName};

/// The kernel's path of anonymous memory that was mapped as shared.
const SHARED_ANONYMOUS: &str = "/dev/zero (deleted)";

/// The name of a mapping of the file at `path`.
fn mapping_name(path: &str) -> &str {
    match path {
        SHARED_ANONYMOUS => "anonymous shared memory",
        path => file_name(path),
    }
}

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

/// Call site of a group that is named by its call site.
pub fn call_site<'a>(tables: &'a Tables, group: &ObjectGroup) -> Option<&'a CallSite> {
    match group.name {
        ObjectName::CallSite(id) => tables.call_sites.get(id.0 as usize),
        _ => None,
    }
}

fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (1, not) if not != 11 => "st",
        (2, not) if not != 12 => "nd",
        (3, not) if not != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Name of nearpage's own code and data inside observed programs.
const NEARPAGE: &str = "nearpage itself";

/// `solve cg.c:120` as far as debug information exists, otherwise `cg+0x1234`.
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

/// Display names of a report's groups: a symbol, or the function and line of the allocation. Call sites with the same
/// innermost frame outside the runtime (a wrapper around `malloc`) are named after the first outer frame that differs.
/// If all frames have equal names, the sites are numbered in the order of the code, and the name adds the function in
/// which they differ. Names are as recorded and must be made safe before printing.
#[derive(Clone, Debug)]
pub struct Names<'a> {
    tables: &'a Tables,
    /// Naming frame of the call sites whose innermost frame is ambiguous.
    frames: FxHashMap<CallSiteId, usize>,
    /// Call sites that no frame's name distinguishes: functions without lines, or calls on one line.
    alike: FxHashMap<CallSiteId, NumberAmongSameNames>,
}

/// Place of a call site among those with the same name.
#[derive(Clone, Debug)]
struct NumberAmongSameNames {
    /// Number of the call site, from 1, in the order of the code.
    number: usize,
    of_all: usize,
    /// Innermost frame in which the call sites differ.
    frame: Option<usize>,
}

impl<'a> Names<'a> {
    /// Chooses names for these groups.
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
            // Tries the next outer frame. Sites without one keep the name they share.
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

    /// Numbers the sites of one name in the order of the code, and finds the innermost frame that differs.
    fn tell_apart(&mut self, sites: Vec<CallSiteId>) {
        let code = |&site: &CallSiteId| {
            let frames = self.frames_of(site);
            let places = self.outwards(site).map(|number| {
                let frame = &frames[number];
                (frame.module, frame.offset)
            });
            (places.collect::<Vec<_>>(), site)
        };
        let mut codes: Vec<_> = sites.iter().map(code).collect();
        codes.sort_unstable();
        let of_all = codes.len();
        let differs = |&at: &usize| {
            codes
                .windows(2)
                .any(|pair| pair[0].0.get(at) != pair[1].0.get(at))
        };
        let deepest = codes.iter().map(|(places, _)| places.len()).max();
        let at = (0..deepest.unwrap_or(0)).find(differs);
        for (number, (_, site)) in (1..).zip(codes) {
            let frame = at.and_then(|at| self.outwards(site).nth(at));
            self.alike.insert(
                site,
                NumberAmongSameNames {
                    number,
                    of_all,
                    frame,
                },
            );
        }
    }

    /// Numbers of a call site's frames: from the program's innermost frame outwards, then those inside the runtime.
    fn outwards(&self, site: CallSiteId) -> impl Iterator<Item = usize> + use<> {
        let innermost = self.innermost(site);
        (innermost..self.frames_of(site).len()).chain((0..innermost).rev())
    }

    fn frames_of(&self, site: CallSiteId) -> &'a [Frame] {
        self.tables
            .call_sites
            .get(site.0 as usize)
            .map_or(&[], |site| &site.frames)
    }

    /// Innermost frame outside runtime modules, and outside standard-library functions that were compiled into other
    /// modules.
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
        // The caller of `main` is the same for all call sites.
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
        let (innermost, outer) = (self.innermost(site), self.frames.get(&site));
        let alike = self.alike.get(&site);
        let differing = alike.and_then(|alike| alike.frame);
        let inside = differing.filter(|number| number < outer.unwrap_or(&innermost));
        let inside = inside.or(outer.map(|_| innermost));
        let function = inside.map(|number| &self.frames_of(site)[number].function);
        let through = match (function.filter(|name| !name.is_empty()), kind) {
            (Some(function), _) => brief_function(function),
            (None, ObjectKind::Mapping) => "mmap".into(),
            (None, _) => "malloc".into(),
        };
        let through = match alike {
            None => through.into_owned(),
            Some(NumberAmongSameNames { number, of_all, .. }) => {
                format!("{through}, {} of {of_all}", ordinal(*number))
            }
        };
        format!("{} ({through})", place(self.tables, frame))
    }

    /// Name of an object, independent of its group.
    pub fn of_object(&self, object: &Object) -> String {
        let module = module_name(self.tables, object.module);
        match (object.kind, object.call_site) {
            (ObjectKind::Heap | ObjectKind::Mapping, Some(site)) => {
                self.of_call_site(site, object.kind)
            }
            (ObjectKind::Static, _) if object.name.is_empty() => {
                format!("{module}+{:#x}", object.module_offset)
            }
            (ObjectKind::Mapping, _) => mapping_name(&object.name).to_owned(),
            (ObjectKind::Code, _) => format!("code of {}", file_name(&object.name)),
            (ObjectKind::Stack, _) => "stack".to_owned(),
            (ObjectKind::Tls, _) => "thread-local storage".to_owned(),
            _ => object.name.clone(),
        }
    }

    /// Name of one of the groups.
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
                let sample = group.listed_instances.first();
                let sample = sample.and_then(|id| tables.objects.get(id.0 as usize));
                // The sample has this symbol's name; without a sample, the object table is searched.
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
                mapping_name(name).to_owned()
            }
            ObjectName::Other(name) if group.kind == ObjectKind::Code => format!("code of {name}"),
            ObjectName::Other(name) => name.clone(),
        }
    }
}
