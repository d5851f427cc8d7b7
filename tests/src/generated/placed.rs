//! Nodes of recorded objects' pages under a plan: translates the plan and applies its rules as the preload library
//! does.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;

use nearpage_machine::{CpuId, Machine, NodeId, ThreadPlacement, thread_cpus};
use nearpage_plan::{
    Compact, Error, ModuleName, PlacedPages, Plan, ProgramImage, SearchPaths, Target, translate,
};
use nearpage_planner::place_objects;
use nearpage_recording::{Recording, Tables, Thread};

/// A recorded object and its decision.
struct PlacedObject {
    end: u64,
    /// Position of the decision in the plan.
    decision: Option<usize>,
    pages: Vec<PlacedPages>,
}

/// Placement of a recorded process's pages by a plan.
pub struct PlannedHomes {
    /// Objects by first address.
    objects: BTreeMap<u64, PlacedObject>,
    /// Nodes over which unmatched memory is spread.
    unmatched_nodes: Vec<NodeId>,
    page_bytes: u64,
    /// Nodes of the recorded threads as the plan lays them out.
    thread_nodes: Vec<NodeId>,
}

/// CPUs of each team's threads on a machine.
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
        // A main thread that works beside the team has the CPU after the team's.
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
    machine: &Machine,
    teams: HashMap<String, Vec<CpuId>>,
    threads: Vec<CpuId>,
    program: &OsStr,
) -> Result<Compact, Error> {
    let target = Target::of_recorded(machine, teams, threads);
    let image = ProgramImage::load(program, &SearchPaths::from_environment())?;
    translate(std::slice::from_ref(plan), &[], &target, &[image])
}

impl PlannedHomes {
    /// Applies a plan to the objects of a recording of `program`.
    ///
    /// # Errors
    /// The plan can't be translated.
    pub fn new(
        plan: &Plan,
        recording: &Recording,
        machine: &Machine,
        layout: ThreadPlacement,
        program: &OsStr,
    ) -> Result<Self, Error> {
        let tables = &recording.tables;
        let teams = teams(plan, tables, machine, layout);
        let node_of = |thread: &Thread| {
            let cpu = teams.get(&thread.team)?.get(thread.team_index as usize)?;
            machine.node_of(*cpu)
        };
        let thread_nodes = tables.threads.iter();
        let thread_nodes = thread_nodes.map(|thread| node_of(thread).unwrap_or(NodeId(0)));
        let thread_nodes = thread_nodes.collect();
        let threads = thread_cpus(machine, tables.threads.len(), layout, None);
        let compact = compact(plan, machine, teams, threads, program)?;
        let executable = ModuleName {
            build_id: &plan.program.build_id,
            file_name: &plan.program.executable,
        };
        let mut placed = Self {
            thread_nodes,
            objects: BTreeMap::new(),
            unmatched_nodes: compact
                .unmatched_nodes(executable, None)
                .unwrap_or_default(),
            page_bytes: machine.page_bytes,
        };
        let mut pids: Vec<u32> = tables.objects.iter().map(|object| object.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            let rules = compact.process(executable, None, machine.page_bytes);
            place_objects(tables, pid, rules, |_, object, found| {
                let decision = found.as_ref().and_then(|one| compact.decisions[one.rule]);
                if object.is_brk_heap() && decision.is_none() {
                    return;
                }
                let placed_object = PlacedObject {
                    end: object.address + object.size_bytes,
                    decision,
                    pages: found.map_or(Vec::new(), |one| one.pages),
                };
                placed.add(object.address, placed_object);
            });
        }
        Ok(placed)
    }

    /// Node of a recorded thread as the plan lays it out.
    pub fn thread_node(&self, thread: usize) -> NodeId {
        self.thread_nodes[thread]
    }

    /// Adds an object in place of earlier objects at its addresses. The heap as a whole must come last: it fills the
    /// remaining gaps.
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

    /// Position in the plan of the decision about an address.
    pub fn decision(&self, address: u64) -> Option<usize> {
        self.object(address)?.decision
    }

    /// Node of the page at an address; none: first touch decides.
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
                let count = self.unmatched_nodes.len() as u64;
                let turn = (address / self.page_bytes).checked_rem(count)?;
                self.unmatched_nodes.get(turn as usize).copied()
            }
        }
    }
}
