//! Where a plan puts the pages of recorded objects: the plan is translated and its rules applied as the preload library
//! does it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;

use nearpage_machine::{CpuId, Machine, NodeId, ThreadPlacement, thread_cpus};
use nearpage_plan::{
    Allocation, Compact, Error, ModuleName, Origin, PlacedPages, Plan, ProgramImage, SearchPaths,
    Target, translate,
};
use nearpage_recording::{Module, Object, ObjectKind, Recording, Tables};
use nearpage_wire::is_runtime_module;

/// An object, and what is decided about it.
struct PlacedObject {
    end: u64,
    /// Position of the decision in the plan.
    decision: Option<usize>,
    pages: Vec<PlacedPages>,
}

/// Where a plan puts pages of a recorded process.
pub struct Placed {
    /// By first address.
    objects: BTreeMap<u64, PlacedObject>,
    /// Nodes that unmatched memory is dealt to.
    rest: Vec<NodeId>,
    page_bytes: u64,
}

/// CPUs of each team's threads in the recorded run, on a machine.
fn teams(
    plan: &Plan,
    tables: &Tables,
    machine: &Machine,
    layout: ThreadPlacement,
) -> HashMap<String, Vec<CpuId>> {
    let mut sizes: HashMap<String, usize> = HashMap::new();
    for thread in &tables.threads {
        let size = sizes.entry(thread.team.clone()).or_default();
        *size = (*size).max(thread.team_index as usize + 1);
    }
    let largest = sizes.values().copied().max().unwrap_or(0);
    let cpus = |(team, size): (String, usize)| {
        // A main thread that works beside the others has the CPU after theirs.
        let works = plan
            .teams
            .iter()
            .any(|one| one.name == team && one.beside > 0);
        let before = if works { largest } else { 0 };
        let cpus = thread_cpus(machine, before + size, layout, None);
        (team, cpus[before.min(cpus.len())..].to_vec())
    };
    sizes.into_iter().map(cpus).collect()
}

fn compact(
    plan: &Plan,
    recording: &Recording,
    machine: &Machine,
    layout: ThreadPlacement,
    program: &OsStr,
) -> Result<Compact, Error> {
    let tables = &recording.tables;
    let threads = thread_cpus(machine, tables.threads.len(), layout, None);
    let target = Target::of_recorded(machine, teams(plan, tables, machine, layout), threads);
    let image = ProgramImage::load(program, &SearchPaths::from_environment())?;
    translate(std::slice::from_ref(plan), &[], &target, &[image])
}

fn module_name(module: &Module) -> ModuleName<'_> {
    ModuleName {
        build_id: &module.build_id,
        file_name: module.file_name(),
    }
}

impl Placed {
    /// Applies a plan to the objects of a recording of `program`.
    ///
    /// # Errors
    /// The plan cannot be translated.
    pub fn new(
        plan: &Plan,
        recording: &Recording,
        machine: &Machine,
        layout: ThreadPlacement,
        program: &OsStr,
    ) -> Result<Self, Error> {
        let compact = compact(plan, recording, machine, layout, program)?;
        let tables = &recording.tables;
        let executable = ModuleName {
            build_id: &plan.program.build_id,
            file_name: &plan.program.executable,
        };
        let mut rules = compact.process(executable, None, machine.page_bytes);
        let frames: Vec<Vec<_>> = tables
            .call_sites
            .iter()
            .map(|site| {
                let physical = site.frames.iter().filter(|frame| !frame.inlined);
                let named = physical.map(|frame| {
                    let module = tables.modules.get(frame.module?.0 as usize)?;
                    Some((module_name(module), frame.offset))
                });
                let is_runtime = |frame: &Option<(ModuleName<'_>, u64)>| {
                    frame.is_some_and(|(name, _)| is_runtime_module(name.file_name.as_bytes()))
                };
                named.filter(|frame| !is_runtime(frame)).collect()
            })
            .collect();
        let mut placed = Self {
            objects: BTreeMap::new(),
            rest: compact.rest(executable, None).unwrap_or_default(),
            page_bytes: machine.page_bytes,
        };
        let mut objects: Vec<&Object> = tables.objects.iter().collect();
        objects.sort_by_key(|object| (object.is_brk_heap(), object.born_ns));
        for object in objects {
            let site = object.call_site.map(|site| &frames[site.0 as usize]);
            let thread = object
                .thread
                .and_then(|thread| tables.threads.get(thread.0 as usize));
            let allocation = Allocation {
                frames: site.map_or(&[], Vec::as_slice),
                thread: thread.map_or(0, |thread| thread.order),
            };
            let module = object
                .module
                .and_then(|module| tables.modules.get(module.0 as usize));
            let origin = match (object.kind, module) {
                (ObjectKind::Heap, _) => Origin::Heap(allocation),
                (ObjectKind::Mapping, _) => Origin::Mapping(allocation),
                (ObjectKind::Static, Some(module)) => Origin::Static {
                    module: module_name(module),
                    offset: object.module_offset,
                },
                _ if object.is_brk_heap() => Origin::BrkHeap,
                _ => continue,
            };
            let found = rules.place(&origin, object.address, object.size_bytes);
            let decision = found.as_ref().and_then(|one| compact.decisions[one.rule]);
            if object.is_brk_heap() && decision.is_none() {
                continue;
            }
            let pages = found.map_or(Vec::new(), |one| one.pages);
            let end = object.address + object.size_bytes;
            placed.add(
                object.address,
                PlacedObject {
                    end,
                    decision,
                    pages,
                },
            );
        }
        Ok(placed)
    }

    /// Adds an object in place of those that were there before. The heap as a whole comes last, for what is in no
    /// object.
    fn add(&mut self, address: u64, object: PlacedObject) {
        let mut over = self.objects.range(..object.end);
        if over
            .next_back()
            .is_some_and(|(_, other)| other.end > address)
        {
            let over: Vec<u64> = self
                .objects
                .range(..object.end)
                .rev()
                .take_while(|(_, other)| other.end > address)
                .map(|(&at, _)| at)
                .collect();
            over.iter().for_each(|at| drop(self.objects.remove(at)));
        }
        self.objects.insert(address, object);
    }

    fn object(&self, address: u64) -> Option<&PlacedObject> {
        let (_, object) = self.objects.range(..=address).next_back()?;
        (address < object.end).then_some(object)
    }

    /// Position of the decision about what is at an address.
    pub fn decision(&self, address: u64) -> Option<usize> {
        self.object(address)?.decision
    }

    /// The node of the page at an address; none: it is left to first touch.
    pub fn node(&self, address: u64) -> Option<NodeId> {
        let object = self.object(address);
        let placed = object.and_then(|object| {
            let mut pages = object.pages.iter();
            pages.find(|pages| (pages.start..pages.end).contains(&address))
        });
        match (placed, object.and_then(|object| object.decision)) {
            (Some(placed), _) => placed.node(address, self.page_bytes),
            (None, Some(_)) => None,
            (None, None) => {
                let count = self.rest.len() as u64;
                let turn = (address / self.page_bytes).checked_rem(count)?;
                self.rest.get(turn as usize).copied()
            }
        }
    }
}
