//! Decisions and predictions for recordings that are made up.

use nearpage_attribution::{
    Affinity, Attribution, Cell, InstanceUse, Names, ObjectGroup, ObjectName, OperationTotals,
    Pattern, RowShare, Segment, Team, ThreadTotals, Totals,
};
use nearpage_machine::{Machine, NodeId, ThreadPlacement, preset};
use nearpage_plan::{Decision, Owner, PageRun, Placement, Plan, Program, Start, Subject};
use nearpage_planner::auto::{
    Alternatives, Judge, Margins, Model, Selection, choose, choose_within,
};
use nearpage_planner::{
    Input, Parameters, Policy, Prediction, decide, predict, thread_nodes, traffic,
};
use nearpage_recording::{
    CallSite, CallSiteId, Frame, Module, ModuleId, Object, ObjectId, ObjectKind, SampleCounts,
    Tables, Thread, ThreadIndex,
};
use proptest::prelude::*;

mod brk_heap;
mod instances;
mod judges;
mod model;
mod names;
mod placements;
mod predictions;
mod processes;
mod properties;
mod quality;
mod shapes;
mod unmatched;

const PAGE: u64 = 4096;

const PID: u32 = 100;

/// A recording of one process whose threads are one OpenMP team.
struct Recording {
    attribution: Attribution,
    tables: Tables,
}

impl Recording {
    fn new(threads: u32) -> Self {
        let team = (0..threads).map(ThreadIndex).collect();
        let tables = Tables {
            threads: (0..threads)
                .map(|index| Thread {
                    pid: PID,
                    tid: PID + index,
                    name: "cg".into(),
                    born_ns: 0,
                    died_ns: u64::MAX,
                    order: index,
                    start: (index > 0).then_some((ModuleId(1), 0x1d0)),
                    start_function: String::new(),
                    team_index: index,
                    team: "openmp".into(),
                    cpus: Vec::new(),
                    counts: SampleCounts::default(),
                })
                .collect(),
            modules: [
                ("/opt/cg", "aa"),
                ("/usr/lib/libgomp.so.1", "bb"),
                ("/usr/lib/libc.so.6", "cc"),
            ]
            .map(|(path, build_id)| Module {
                path: path.into(),
                build_id: build_id.into(),
            })
            .into(),
            ..Tables::default()
        };
        let attribution = Attribution {
            counts: SampleCounts::default(),
            totals: Totals::default(),
            objects: Vec::new(),
            threads: vec![ThreadTotals::default(); threads as usize],
            teams: vec![Team {
                name: "openmp".into(),
                pid: PID,
                threads: team,
                is_joined: false,
            }],
            page_bytes: PAGE,
        };
        Self {
            attribution,
            tables,
        }
    }

    /// Adds a heap object with its cells (page, thread, loads); a sample costs 1 ms.
    fn object(
        &mut self,
        function: &str,
        pages: u32,
        pattern: Pattern,
        cells: &[(u32, u32, f32)],
    ) -> &mut ObjectGroup {
        let site = self.tables.call_sites.len() as u32;
        let frame = |module, offset, function: &str, line, inlined| Frame {
            module: Some(ModuleId(module)),
            offset,
            function: function.into(),
            file: "cg.c".into(),
            line,
            inlined,
        };
        self.tables.call_sites.push(CallSite {
            frames: vec![
                frame(2, 0x900, "malloc", 0, false),
                frame(0, 0x10, "inlined", 5, true),
                frame(0, 0x10, "allocate", 33, false),
                frame(0, 0x100 + u64::from(site), function, 80 + site, false),
            ],
        });
        let id = ObjectId(self.tables.objects.len() as u32);
        self.tables
            .objects
            .push(object(site, 0, 0, u64::from(pages) * PAGE));
        let mut threads: Vec<(ThreadIndex, f64, f64, f64)> = Vec::new();
        for &(_, thread, loads) in cells {
            threads.push((
                ThreadIndex(thread),
                f64::from(loads),
                0.0,
                f64::from(loads) * 1e6,
            ));
        }
        threads.sort_by_key(|thread| thread.0);
        threads.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
                kept.3 += next.3;
            }
            same
        });
        let count = cells.iter().map(|cell| f64::from(cell.2)).sum();
        self.attribution.objects.push(ObjectGroup {
            kind: ObjectKind::Heap,
            name: ObjectName::CallSite(CallSiteId(site)),
            size_bytes: u64::from(pages) * PAGE,
            instances: 1,
            listed_instances: vec![id],
            loads: OperationTotals {
                count,
                cost_ns: count * 1e6,
                ..OperationTotals::default()
            },
            stores: OperationTotals::default(),
            threads,
            hot: Vec::new(),
            affinity: Affinity {
                page_bytes: PAGE,
                pages,
                cells: cells
                    .iter()
                    .map(|&(page, thread, loads)| Cell {
                        page,
                        thread: ThreadIndex(thread),
                        loads,
                        stores: 0.0,
                        samples: loads,
                        cost_ns: loads * 1e6,
                    })
                    .collect(),
                ..Affinity::default()
            },
            first_touches: Vec::new(),
            touchers: Vec::new(),
            uses: Vec::new(),
            sibling: None,
            is_shared_memory: false,
            pattern,
        });
        self.attribution.objects.last_mut().expect("just added")
    }

    fn with<T>(&self, machine: &Machine, use_it: impl FnOnce(&Input) -> T) -> T {
        let nodes = thread_nodes(
            &self.attribution,
            &self.tables.threads,
            machine,
            ThreadPlacement::Compact,
            None,
        );
        let names = Names::new(&self.tables, &self.attribution.objects);
        use_it(&Input {
            attribution: &self.attribution,
            tables: &self.tables,
            names: &names,
            machine,
            thread_nodes: &nodes,
            pid: PID,
            program: Program {
                executable: "cg".into(),
                ..Program::default()
            },
            page_bytes: PAGE,
        })
    }

    fn decide(&self, policy: Policy, machine: &Machine) -> Plan {
        self.with(machine, |input| {
            decide(policy, input, &Parameters::default())
        })
    }

    fn predict(&self, plan: &Plan, machine: &Machine) -> Prediction {
        self.with(machine, |input| predict(plan, input))
    }
}

fn object(site: u32, thread: u32, order: u32, size_bytes: u64) -> Object {
    Object {
        kind: ObjectKind::Heap,
        name: String::new(),
        pid: PID,
        address: 0x10_0000,
        size_bytes,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: Some(CallSiteId(site)),
        thread: Some(ThreadIndex(thread)),
        order,
        module: None,
        module_offset: 0,
        same_memory_as: None,
    }
}

/// A machine whose bandwidths are unknown.
fn opteron() -> Machine {
    Machine {
        memory: nearpage_machine::Memory::default(),
        links: Vec::new(),
        routes: Vec::new(),
        ..preset("opteron-4").expect("preset")
    }
}

fn one_node() -> Machine {
    let text = "name = \"laptop\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0-1\"\n";
    Machine::from_toml(text, "laptop").expect("machine")
}

fn thread(index: u32) -> Owner {
    Owner::Thread {
        team: "openmp".into(),
        index,
    }
}

fn run(first_page: u64, pages: u64, owner: Owner) -> PageRun {
    PageRun {
        first_page,
        pages,
        owner,
    }
}

/// Each of 8 threads reads its own 4 pages of 32, 10 times a page.
fn block_cells() -> Vec<(u32, u32, f32)> {
    (0..32).map(|page| (page, page / 4, 10.0)).collect()
}

fn block() -> Pattern {
    Pattern::Block {
        team: 0,
        block_bytes: 4 * PAGE,
    }
}

fn only(plan: &Plan) -> &Decision {
    match plan.decisions.as_slice() {
        [decision] => decision,
        other => panic!("expected one decision, found {other:#?}"),
    }
}

/// Threads that use an object which the main thread touched first; a sample is 1 ms.
fn master_initialised(threads: u32, pattern: Pattern, cells: &[(u32, u32, f32)]) -> Recording {
    let mut recording = Recording::new(threads);
    recording.object("build", 32, pattern, cells).first_touches = vec![(0, ThreadIndex(0))];
    recording
}

/// Accesses of the main thread to the first page before others use it.
fn filled_by_master() -> Cell {
    Cell {
        page: 0,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 64.0,
        samples: 64.0,
        cost_ns: 64.0,
    }
}

/// Each thread reads all of 32 pages.
fn shared_cells(threads: u32) -> Vec<(u32, u32, f32)> {
    (0..32)
        .flat_map(|page| (0..threads).map(move |thread| (page, thread, 100.0)))
        .collect()
}
