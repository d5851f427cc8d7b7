//! Decisions and predictions on recordings made up for the purpose.

use nearpage_attribution::{
    Affinity, Attribution, Cell, InstanceUser, Names, ObjectGroup, ObjectName, OperationTotals,
    Pattern, Team, ThreadTotals, Totals,
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

#[path = "decisions/brk_heap.rs"]
mod brk_heap;
#[path = "decisions/rest.rs"]
mod rest;

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
            samples: vec![id],
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
                        cost_ns: loads * 1e6,
                    })
                    .collect(),
                ..Affinity::default()
            },
            first_touches: Vec::new(),
            users: Vec::new(),
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
    }
}

fn opteron() -> Machine {
    preset("opteron-4").expect("preset")
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

/// The worked example: 8 threads on the Opterons' 4 nodes, two to a node, all data first touched by
/// the master on node 0.
#[test]
fn golden_opteron() {
    let mut recording = Recording::new(8);
    recording
        .object("build", 32, block(), &block_cells())
        .first_touches = vec![(0, ThreadIndex(0))];
    let plan = recording.decide(Policy::Object, &opteron());
    let decision = only(&plan);
    assert_eq!(decision.name, "inlined cg.c:5 (malloc)");
    assert_eq!(
        decision.placement,
        Placement::Block {
            team: String::new()
        }
    );
    assert_eq!(
        decision.why,
        "320 loads and 0 stores by 8 threads; each of the 8 threads of openmp uses a share of its own, 16K now \
         (100 % of the accesses are by the owner)"
    );
    assert_eq!(decision.effect.local_before, Some(0.25));
    assert_eq!(
        (decision.effect.local_after, decision.effect.cost_share),
        (1.0, 1.0)
    );
    let Subject::CallSite {
        frames,
        order: None,
        thread: None,
        size_bytes,
    } = &decision.subject
    else {
        panic!("a call site: {:?}", decision.subject)
    };
    assert_eq!(*size_bytes, 32 * PAGE);
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| (frame.module.as_str(), frame.offset, frame.line))
        .collect();
    assert_eq!(
        frames,
        [("cg", 0x10, 33), ("cg", 0x100, 80)],
        "no C library, nothing inlined"
    );
    assert_eq!(
        (plan.policy.as_str(), plan.machine.as_str(), plan.page_bytes),
        ("object", "opteron-4", PAGE)
    );
    let team = &plan.teams[0];
    assert_eq!((team.name.as_str(), team.threads), ("openmp", 8));
    assert_eq!(
        (team.module.as_str(), team.build_id.as_str(), team.offset),
        ("libgomp.so.1", "bb", 0x1d0)
    );

    let prediction = recording.predict(&plan, &opteron());
    let [predicted] = prediction.objects.as_slice() else {
        panic!("one object")
    };
    assert_eq!(
        (predicted.decisions.first(), predicted.first_touch_assumed),
        (Some(&0), false)
    );
    assert!(prediction.planned.mean_latency_ns.is_some());
    // Table 2's first column, its diagonal, and its mean.
    assert_eq!(
        prediction.first_touch.mean(),
        (102.0 + 143.0 + 179.0 + 141.0) / 4.0
    );
    assert_eq!(
        prediction.planned.mean(),
        (102.0 + 107.0 + 102.0 + 108.0) / 4.0
    );
    let all: f64 = opteron().weights().iter().flatten().sum();
    assert!((prediction.interleave.mean() - all / 16.0).abs() < 1e-9);
    assert_eq!(
        (
            prediction.first_touch.local_share,
            prediction.interleave.local_share,
            prediction.planned.local_share
        ),
        (0.25, 0.25, 1.0)
    );
}

#[test]
fn equations_find_the_pattern_behind_the_pages() {
    for policy in [Policy::Uniform, Policy::HopSensitive] {
        let mut recording = Recording::new(8);
        recording.object("build", 32, block(), &block_cells());
        assert_eq!(
            only(&recording.decide(policy, &opteron())).placement,
            Placement::Block {
                team: String::new()
            }
        );
    }
}

#[test]
fn equations_write_page_runs_where_no_pattern_fits() {
    // Threads 6 and 7 are on node 3, 0 and 1 on node 0; page 3 is silent and follows page 2.
    let cells = [
        (0, 6, 2.0),
        (0, 7, 3.0),
        (1, 7, 4.0),
        (1, 0, 1.0),
        (2, 0, 9.0),
        (5, 6, 5.0),
    ];
    let mut recording = Recording::new(8);
    recording.object("build", 8, Pattern::Mixed, &cells);
    let expected = Placement::Runs(vec![
        run(0, 2, thread(7)),
        run(2, 2, thread(0)),
        run(4, 4, thread(6)),
    ]);
    assert_eq!(
        only(&recording.decide(Policy::Uniform, &opteron())).placement,
        expected
    );
    assert_eq!(
        only(&recording.decide(Policy::Object, &opteron())).placement,
        expected
    );
}

#[test]
fn silent_pages_take_the_pattern_where_there_is_one() {
    // Only the last page of each share was sampled: neighbours alone would cut the shares in halves.
    // Page 0 is thread 7's besides, so that the pattern as a whole does not fit.
    let mut cells: Vec<_> = (0..8).map(|share| (4 * share + 3, share, 10.0)).collect();
    cells.insert(0, (0, 7, 50.0));
    let mut recording = Recording::new(8);
    recording.object("build", 32, block(), &cells);
    let placement = only(&recording.decide(Policy::Uniform, &opteron()))
        .placement
        .clone();
    let Placement::Runs(runs) = placement else {
        panic!("runs: {placement:?}")
    };
    let found: Vec<_> = runs.iter().map(|run| (run.first_page, run.pages)).collect();
    assert_eq!(found, [(0, 1), (1, 7), (8, 8), (16, 8), (24, 8)]);
}

#[test]
fn hop_sensitive_puts_a_page_between_its_readers() {
    // Threads 0, 2 and 4 are on nodes 0, 1 and 2; node 1 reads least but is near to both others.
    let page = |page| [(page, 0, 10.0), (page, 2, 9.0), (page, 4, 10.0)];
    let cells = [page(0), page(1)].concat();
    let mut recording = Recording::new(8);
    recording.object("build", 2, Pattern::Mixed, &cells);
    let machine = opteron();
    let whole = |policy, machine| only(&recording.decide(policy, machine)).placement.clone();
    assert_eq!(
        whole(Policy::HopSensitive, &machine),
        Placement::Whole(thread(2))
    );
    assert_eq!(
        whole(Policy::Uniform, &machine),
        Placement::Whole(thread(0))
    );

    // Memory without CPUs between the two ends of a line: nobody's, so the node itself owns it.
    let line = "name = \"line\"\npage_bytes = 4096\ndistance = [[10, 12, 30], [12, 10, 12], [30, 12, 10]]\n\
                [[node]]\nid = 0\ncpus = \"0\"\n[[node]]\nid = 1\n[[node]]\nid = 2\ncpus = \"1\"\n";
    let line = Machine::from_toml(line, "line").expect("machine");
    assert_eq!(
        whole(Policy::HopSensitive, &line),
        Placement::Whole(Owner::Node(NodeId(1)))
    );
}

#[test]
fn every_pattern_has_its_placement() {
    let cells: Vec<_> = (0..32)
        .flat_map(|page| (0..8).map(move |thread| (page, thread, 1.0)))
        .collect();
    let cyclic = Pattern::BlockCyclic {
        team: 0,
        block_bytes: 5000,
        period_bytes: 40_000,
    };
    for (pattern, expected) in [
        (
            block(),
            Some(Placement::Block {
                team: String::new(),
            }),
        ),
        (
            cyclic,
            Some(Placement::BlockCyclic {
                block_bytes: 5000,
                team: String::new(),
            }),
        ),
        (
            Pattern::Private {
                thread: ThreadIndex(5),
            },
            Some(Placement::Whole(thread(5))),
        ),
        (
            Pattern::Shared,
            Some(Placement::Interleave { nodes: Vec::new() }),
        ),
        (
            Pattern::ReadShared,
            Some(Placement::Interleave { nodes: Vec::new() }),
        ),
        (Pattern::Unknown, None),
    ] {
        for machine in [opteron(), one_node()] {
            let mut recording = Recording::new(8);
            recording.object("build", 32, pattern.clone(), &cells);
            let plan = recording.decide(Policy::Object, &machine);
            let found = plan
                .decisions
                .first()
                .map(|decision| decision.placement.clone());
            assert_eq!(found, expected, "{pattern:?} on {}", machine.name);
        }
    }
}

#[test]
fn a_machine_of_one_node_still_decides_by_thread() {
    let mut recording = Recording::new(4);
    recording.object(
        "build",
        6,
        Pattern::Mixed,
        &[(0, 3, 2.0), (1, 3, 2.0), (2, 1, 5.0), (4, 2, 1.0)],
    );
    let plan = recording.decide(Policy::HopSensitive, &one_node());
    assert_eq!(
        only(&plan).placement,
        Placement::Runs(vec![
            run(0, 2, thread(3)),
            run(2, 2, thread(1)),
            run(4, 2, thread(2))
        ])
    );
    assert_eq!(only(&plan).effect.local_after, 1.0);
}

#[test]
fn what_first_touch_does_well_is_left_to_it() {
    for policy in [Policy::Object, Policy::Uniform, Policy::HopSensitive] {
        for machine in [opteron(), one_node()] {
            let mut recording = Recording::new(8);
            let group = recording.object("build", 32, block(), &block_cells());
            group.first_touches = (0..32).map(|page| (page, ThreadIndex(page / 4))).collect();
            assert_eq!(
                recording.decide(policy, &machine).decisions,
                [],
                "{policy:?} on {}",
                machine.name
            );
        }
    }
}

#[test]
fn small_and_cheap_objects_are_left_alone() {
    let mut recording = Recording::new(8);
    recording.object(
        "build",
        32,
        block(),
        &block_cells()
            .iter()
            .map(|c| (c.0, c.1, 1000.0))
            .collect::<Vec<_>>(),
    );
    recording.object(
        "small",
        1,
        Pattern::Private {
            thread: ThreadIndex(3),
        },
        &[(0, 3, 1e6)],
    );
    recording.object(
        "cheap",
        8,
        Pattern::Private {
            thread: ThreadIndex(3),
        },
        &[(0, 3, 1.0)],
    );
    // `auto` goes by time, of which thread 3 has most, on an object that cannot be placed.
    for policy in Policy::ALL
        .into_iter()
        .filter(|&policy| policy != Policy::Auto)
    {
        let plan = recording.decide(policy, &opteron());
        assert_eq!(only(&plan).name, "build cg.c:80 (inlined)", "{policy:?}");
    }
}

#[test]
fn sharing_among_some_nodes_interleaves_without_naming_them() {
    let cells: Vec<_> = (0..8)
        .flat_map(|page| [(page, 0, 5.0), (page, 1, 5.0), (page, 2, 5.0)])
        .collect();
    let mut recording = Recording::new(8);
    recording.object("build", 8, Pattern::Shared, &cells);
    let placement = only(&recording.decide(Policy::Object, &opteron()))
        .placement
        .clone();
    // So the plan serves machines that have other nodes.
    assert_eq!(placement, Placement::Interleave { nodes: Vec::new() });
    // All of them fit on one node of AMD48's: first touch is local.
    let amd48 = preset("amd48").expect("preset");
    assert_eq!(recording.decide(Policy::Object, &amd48).decisions, []);
}

#[test]
fn names_are_told_apart_by_their_callers() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("build", 32, block(), &block_cells());
    let plan = recording.decide(Policy::Object, &opteron());
    let names: Vec<_> = plan
        .decisions
        .iter()
        .map(|decision| decision.name.as_str())
        .collect();
    assert_eq!(names, ["main cg.c:80 (inlined)", "build cg.c:81 (inlined)"]);
}

#[test]
fn undecided_objects_are_told_apart_by_their_callers_and_come_by_cost() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, Pattern::Mixed, &[(0, 0, 1.0)]);
    recording.object("build", 32, Pattern::Mixed, &[(0, 0, 9.0)]);
    let mut plan = recording.decide(Policy::Object, &opteron());
    plan.decisions.clear();
    let prediction = recording.predict(&plan, &opteron());
    let names = prediction.objects.iter().map(|object| object.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["build cg.c:81 (inlined)", "main cg.c:80 (inlined)"]
    );
}

#[test]
fn call_sites_in_one_function_without_lines_are_told_apart_by_their_places() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("main", 32, block(), &block_cells());
    for (site, offset) in recording.tables.call_sites.iter_mut().zip([0x10, 0x20]) {
        let own = site
            .frames
            .iter_mut()
            .filter(|frame| frame.module == Some(ModuleId(0)));
        for frame in own {
            frame.line = 0;
            if frame.function == "allocate" {
                frame.offset = offset;
            }
        }
    }
    let plan = recording.decide(Policy::Object, &opteron());
    let names = plan.decisions.iter().map(|decision| decision.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["main cg.c (cg+0x10)", "main cg.c (cg+0x20)"]
    );
}

#[test]
fn call_sites_that_differ_in_the_middle_are_told_apart() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("main", 32, block(), &block_cells());
    for (site, offset) in recording.tables.call_sites.iter_mut().zip([0x30, 0x40]) {
        let named = |function: &str| {
            let found = site.frames.iter().find(|frame| frame.function == function);
            found.expect("it calls").clone()
        };
        let (inner, main) = (named("allocate"), named("main"));
        let middle = Frame {
            function: "grow".to_owned(),
            line: 0,
            offset,
            ..main.clone()
        };
        let main = Frame {
            line: 80,
            offset: 0x60,
            ..main
        };
        site.frames = vec![inner, middle, main];
    }
    let names = |recording: &Recording| {
        let plan = recording.decide(Policy::Object, &opteron());
        let names = plan.decisions.iter().map(|decision| decision.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        names(&recording),
        ["main cg.c:80 (cg+0x30)", "main cg.c:80 (cg+0x40)"]
    );
    // A third, at another place of the innermost function.
    recording.object("main", 32, block(), &block_cells());
    let (third, first) = (2, recording.tables.call_sites[0].frames.clone());
    let frames = &mut recording.tables.call_sites[third].frames;
    *frames = first;
    frames[0].offset = 0x50;
    let names = names(&recording);
    let innermost = recording.tables.call_sites[0].frames[0].offset;
    assert_eq!(
        names,
        [
            format!("main cg.c:80 (cg+{innermost:#x}, cg+0x30)"),
            format!("main cg.c:80 (cg+{innermost:#x}, cg+0x40)"),
            "main cg.c:80 (cg+0x50)".to_owned(),
        ]
    );
}

#[test]
fn call_sites_on_one_line_of_main_are_named_after_main() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("main", 32, block(), &block_cells());
    for (site, offset) in recording.tables.call_sites.iter_mut().zip([0x10, 0x20]) {
        let is_main = |frame: &&Frame| frame.function == "main";
        let main = site.frames.iter().find(is_main).expect("it calls").clone();
        let start = Frame {
            function: "_start".to_owned(),
            line: 0,
            offset: 0x70,
            ..main.clone()
        };
        let frame = Frame {
            line: 80,
            offset,
            ..main
        };
        site.frames = vec![frame, start];
    }
    let plan = recording.decide(Policy::Object, &opteron());
    let names = plan.decisions.iter().map(|decision| decision.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["main cg.c:80 (cg+0x10)", "main cg.c:80 (cg+0x20)"]
    );
}

/// Eight buffers, allocated in turn by the master, two for each of four threads; the last two were
/// never sampled.
#[test]
fn instances_go_to_their_users_in_order_of_allocation() {
    let mut recording = Recording::new(4);
    let cells: Vec<_> = (0..4)
        .flat_map(|page| (0..3).map(move |thread| (page, thread, 4.0)))
        .collect();
    recording.object("buffers", 4, Pattern::Shared, &cells);
    recording.tables.objects.clear();
    for order in 0..6 {
        recording.tables.objects.push(object(0, 0, order, 4 * PAGE));
    }
    let group = &mut recording.attribution.objects[0];
    group.instances = 8;
    group.samples = (0..6).map(ObjectId).collect();
    group.users = (0..6)
        .map(|order| InstanceUser {
            thread: ThreadIndex(order / 2),
            share: 1.0,
            accesses: 8.0,
        })
        .collect();
    let plan = recording.decide(Policy::Object, &opteron());
    let found: Vec<_> = plan
        .decisions
        .iter()
        .map(|decision| match &decision.subject {
            Subject::CallSite {
                order: Some(order),
                thread: Some(0),
                ..
            } => (*order, decision.placement.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [((0, 1), 0), ((2, 3), 1), ((4, 7), 2)];
    assert_eq!(
        found,
        expected.map(|(order, index)| (order, Placement::Whole(thread(index))))
    );
    let total: f64 = plan
        .decisions
        .iter()
        .map(|decision| decision.effect.cost_share)
        .sum();
    assert!((total - 1.0).abs() < 1e-9);

    let prediction = recording.predict(&plan, &opteron());
    assert!((prediction.first_touch.local_share - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(
        (prediction.planned.local_share, prediction.accesses),
        (1.0, 48.0)
    );

    // The same buffers, each allocated by its user.
    for (order, object) in recording.tables.objects.iter_mut().enumerate() {
        object.thread = Some(ThreadIndex(order as u32 / 2));
    }
    assert_eq!(recording.decide(Policy::Object, &opteron()).decisions, []);
}

/// The stores that initialise were missing from the traffic.
#[test]
fn the_traffic_adds_up_to_the_prediction() {
    let mut recording = master_initialised(8, block(), &block_cells());
    recording.attribution.objects[0].affinity.initialisation = vec![filled_by_master()];
    let machine = opteron();
    let plan = recording.decide(Policy::Object, &machine);
    let prediction = recording.predict(&plan, &machine);
    let flows = recording.with(&machine, |input| traffic(&plan, input, &prediction));
    for (flows, expected) in [
        (flows.first_touch, prediction.first_touch),
        (flows.plan, prediction.planned),
    ] {
        let all: f64 = flows.iter().flatten().sum();
        let local: f64 = (0..4).map(|node| flows[node][node]).sum();
        assert!((all - prediction.accesses).abs() < 1e-6, "{flows:?}");
        assert!(
            (local / all - expected.local_share).abs() < 1e-6,
            "{flows:?}"
        );
    }
}

#[test]
fn what_no_plan_can_place_has_a_name_all_the_same() {
    let mut recording = Recording::new(2);
    let cells = [(0, 0, 9.0), (1, 1, 9.0)];
    let section = recording.object("section", 2, Pattern::Mixed, &cells);
    (section.kind, section.name) = (ObjectKind::Static, ObjectName::Other("cg .data".into()));
    let file = recording.object("file", 2, Pattern::Mixed, &cells);
    (file.kind, file.name) = (
        ObjectKind::Mapping,
        ObjectName::Other("/data/my table.bin".into()),
    );
    let stripped = recording.object("stripped", 2, Pattern::Mixed, &cells);
    (stripped.kind, stripped.name) = (ObjectKind::Static, ObjectName::Symbol(ModuleId(0), 0x4a0));
    let plan = recording.decide(Policy::Object, &opteron());
    let prediction = recording.predict(&plan, &opteron());
    let names = prediction.objects.iter().map(|object| object.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["cg .data", "my table.bin", "cg+0x4a0"]
    );
}

#[test]
fn threads_of_other_processes_do_not_count() {
    let mut recording = Recording::new(8);
    recording.object(
        "build",
        4,
        Pattern::Mixed,
        &[(0, 2, 1.0), (0, 7, 99.0), (1, 2, 1.0), (1, 7, 99.0)],
    );
    recording.tables.threads[7].pid = PID + 1;
    recording.attribution.teams[0].threads.pop();
    let plan = recording.decide(Policy::Uniform, &opteron());
    assert_eq!(only(&plan).placement, Placement::Whole(thread(2)));
    assert_eq!(only(&plan).effect.accesses, 2.0);
}

#[test]
fn huge_pages_are_decided_whole() {
    // 1024 small pages are two huge ones; thread 6 has most of the first, thread 2 of the second.
    let mut cells: Vec<_> = (0..512)
        .map(|page| (page, if page < 200 { 2 } else { 6 }, 1.0))
        .collect();
    cells.extend((512..1024).map(|page| (page, if page < 800 { 2 } else { 6 }, 1.0)));
    let mut recording = Recording::new(8);
    recording.object("build", 1024, Pattern::Mixed, &cells);
    let machine = opteron();
    let plan = recording.with(&machine, |input| {
        decide(
            Policy::Uniform,
            &Input {
                page_bytes: 512 * PAGE,
                ..input.clone()
            },
            &Parameters::default(),
        )
    });
    assert_eq!(
        only(&plan).placement,
        Placement::Runs(vec![run(0, 1, thread(6)), run(1, 1, thread(2))])
    );
    assert_eq!(plan.page_bytes, 512 * PAGE);
}

#[test]
fn too_many_runs_are_decided_in_larger_units() {
    let cells: Vec<_> = (0..64)
        .map(|page| (page, if page % 2 == 0 { 0 } else { 7 }, 1.0))
        .collect();
    let mut recording = Recording::new(8);
    recording.object("build", 64, Pattern::Mixed, &cells);
    let parameters = Parameters {
        runs_max: 10,
        ..Parameters::default()
    };
    let plan = recording.with(&opteron(), |input| {
        decide(Policy::Uniform, input, &parameters)
    });
    // In units of two pages every unit ties, and the lowest node wins all.
    assert_eq!(only(&plan).placement, Placement::Whole(thread(0)));
}

/// The master writes all of an object, then every thread reads its share: of a short program, half of
/// the accesses are the master's stores, near it under first touch and away from it under the plan.
#[test]
fn predictions_count_the_stores_that_initialise() {
    let mut recording = Recording::new(4);
    let cells: Vec<(u32, u32, f32)> = (0..4).map(|page| (page, page, 100.0)).collect();
    let pattern = Pattern::Block {
        team: 0,
        block_bytes: PAGE,
    };
    let group = recording.object("build", 4, pattern, &cells);
    let store = |page| Cell {
        page,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 100.0,
        cost_ns: 1e8,
    };
    group.affinity.initialisation = (0..4).map(store).collect();
    group.stores.count = 400.0;
    group.threads[0].2 = 400.0;
    let plan = recording.decide(Policy::Object, &opteron());
    assert_eq!(
        only(&plan).placement,
        Placement::Block {
            team: String::new()
        }
    );
    let prediction = recording.predict(&plan, &opteron());
    assert_eq!(prediction.accesses, 800.0);
    // All stores and a quarter of the loads; a quarter of the stores and all loads.
    assert_eq!(prediction.first_touch.local_share, 500.0 / 800.0);
    assert_eq!(prediction.planned.local_share, 500.0 / 800.0);
    assert_eq!(prediction.interleave.local_share, 200.0 / 800.0);
}

/// Threads on an object that the master touched first; a sample is 1 ms.
fn master_initialised(threads: u32, pattern: Pattern, cells: &[(u32, u32, f32)]) -> Recording {
    let mut recording = Recording::new(threads);
    recording.object("build", 32, pattern, cells).first_touches = vec![(0, ThreadIndex(0))];
    recording
}

/// What the master does to the first page before others use it.
fn filled_by_master() -> Cell {
    Cell {
        page: 0,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 64.0,
        cost_ns: 64.0,
    }
}

/// Everybody reads all of 32 pages.
fn shared_cells(threads: u32) -> Vec<(u32, u32, f32)> {
    (0..32)
        .flat_map(|page| (0..threads).map(move |thread| (page, thread, 100.0)))
        .collect()
}

#[test]
fn auto_places_blocks_near_their_threads() {
    let plan = master_initialised(8, block(), &block_cells()).decide(Policy::Auto, &opteron());
    let decision = only(&plan);
    assert_eq!(
        decision.placement,
        Placement::Block {
            team: String::new()
        }
    );
    assert!(
        decision.why.contains("; predicted to save "),
        "{}",
        decision.why
    );
    assert_eq!(plan.policy, "auto");
}

/// A clock's samples are a millisecond each, whatever a miss takes; where the machine knows distances
/// alone, both still have to be times.
#[test]
fn auto_weighs_computation_by_time_where_no_latency_is_known() {
    let mut recording = master_initialised(8, block(), &block_cells());
    for thread in &mut recording.tables.threads {
        thread.counts.accesses = 400;
        thread.counts.compute = 400;
    }
    let known = recording.decide(Policy::Auto, &opteron());
    let distances = Machine {
        latency_ns: None,
        ..opteron()
    };
    let plan = recording.decide(Policy::Auto, &distances);
    assert_eq!(only(&plan).placement, only(&known).placement);
    assert!(matches!(only(&plan).placement, Placement::Block { .. }));
}

/// The master fills blocks that threads then use: remote stores lose more than local loads save.
#[test]
fn auto_lets_placements_wait_where_filling_would_cost_more_than_moving() {
    let cells: Vec<(u32, u32, f32)> = block_cells()
        .into_iter()
        // The last thread uses its block most: all of it near one thread is no other first touch.
        .map(|(page, thread, loads)| (page, thread, 1000.0 * loads + thread as f32))
        .collect();
    let mut recording = master_initialised(8, block(), &cells);
    let parameters = Parameters {
        phases: true,
        ..Parameters::default()
    };
    let decide_on = |recording: &Recording, machine: &Machine| {
        recording.with(machine, |input| decide(Policy::Auto, input, &parameters))
    };
    let machine = Machine {
        moves: nearpage_machine::Moves {
            fixed_ns: Some(1000.0),
            ..opteron().moves
        },
        ..opteron()
    };
    let at_once = decide_on(&recording, &machine);
    assert_eq!(only(&at_once).start, Start::Allocation);
    let group = &mut recording.attribution.objects[0];
    let stores = |page| Cell {
        page,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 2000.0,
        cost_ns: 2e9,
    };
    group.affinity.initialisation = (0..32).map(stores).collect();
    let later = decide_on(&recording, &machine);
    assert_eq!(only(&later).placement, only(&at_once).placement);
    assert_eq!(only(&later).start, Start::SecondThread);
    let dear = Machine {
        moves: nearpage_machine::Moves {
            fixed_ns: Some(1e11),
            ..opteron().moves
        },
        ..opteron()
    };
    for decision in decide_on(&recording, &dear).decisions {
        assert_eq!(decision.start, Start::Allocation, "{decision:?}");
    }
}

/// Blocks cost the master who fills them, once, and save the team as often as it goes over them.
#[test]
fn auto_places_what_pays_in_a_run_as_long_as_it_is_told() {
    let mut recording = master_initialised(8, block(), &block_cells());
    let stores = |page| Cell {
        page,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 300.0,
        cost_ns: 300.0,
    };
    let group = &mut recording.attribution.objects[0];
    group.affinity.initialisation = (0..32).map(stores).collect();
    let chosen = |longer| {
        let machine = opteron();
        let parameters = Parameters {
            longer,
            ..Parameters::default()
        };
        recording.with(&machine, |input| {
            let mut model = Model::new(input, &parameters).expect("nodes");
            let Ok(chosen) = choose(input, &parameters, &mut model);
            let times = model.times(&chosen.plan);
            // The finished plan is predicted to take what it was chosen for.
            for (predicted_ns, chosen_ns) in [
                (times[1].first_touch_ns, chosen.time.first_touch_ns),
                (times[1].planned_ns, chosen.time.planned_ns),
            ] {
                assert!(
                    (predicted_ns / chosen_ns - 1.0).abs() < 1e-9,
                    "{times:?} {chosen:?}"
                );
            }
            (chosen.plan, times)
        })
    };
    let (plan, [short, _]) = chosen(1.0);
    assert!(plan.decisions.is_empty(), "{plan:?}");
    let (plan, [recorded, long]) = chosen(100.0);
    only(&plan);
    assert!(long.planned_ns < long.first_touch_ns);
    assert!(recorded.planned_ns > recorded.first_touch_ns);
    assert_eq!(recorded.first_touch_ns, short.first_touch_ns);
}

/// So long that nothing is uncertain.
const HOURS_NS: f64 = 1e16;

/// Likes one placement from one start.
struct Likes {
    placement: Placement,
    start: Start,
    of_samples: bool,
}

/// How far a judge that replays is trusted, but for what it makes slower.
const OF_REPLAYS: Margins = Margins {
    plan: 0.005,
    object: 0.001,
    slower: 0.0,
    resized: 1.0 / 3.0,
    of_samples: false,
};

impl Judge for Likes {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        let time = |selection: &Selection| {
            let decisions = alternatives.plan(selection, |_| None).decisions;
            let liked =
                |one: &Decision| (&one.placement, one.start) == (&self.placement, self.start);
            match decisions.iter().any(liked) {
                true => 0.5 * HOURS_NS,
                false => (1.0 - 0.01 * decisions.len() as f64) * HOURS_NS,
            }
        };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        Margins {
            of_samples: self.of_samples,
            ..OF_REPLAYS
        }
    }

    fn objects_max(&self) -> usize {
        6
    }
}

#[test]
fn auto_finds_pages_that_are_best_with_whoever_uses_them_next_and_starts_that_samples_cannot_tell()
{
    let mut recording = master_initialised(8, block(), &block_cells());
    recording.attribution.objects[0].affinity.initialisation = vec![filled_by_master()];
    let parameters = Parameters {
        phases: true,
        ..Parameters::default()
    };
    let team = String::new();
    for (placement, start) in [
        (Placement::FirstTouch, Start::SecondThread),
        (Placement::FirstTouch, Start::Parallel),
        (Placement::Block { team }, Start::Parallel),
    ] {
        let found = |of_samples| {
            let mut judge = Likes {
                placement: placement.clone(),
                start,
                of_samples,
            };
            recording.with(&opteron(), |input| {
                let Ok(chosen) = choose(input, &parameters, &mut judge);
                chosen.time.planned_ns == 0.5 * HOURS_NS
            })
        };
        assert!(found(false), "{placement} {start:?}");
        assert!(!found(true), "{placement} {start:?}");
    }
}

/// Knows what plans save and what they cost with an input of another size, as shares of the time.
struct Foresees {
    saved: f64,
    /// For placements that are not the recorded one: what the object's pattern would make of them.
    cost_resized: f64,
    wanted: Placement,
    slower: f64,
}

impl Judge for Foresees {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        let time = |selection: &Selection| {
            let decisions = alternatives.plan(selection, |_| None).decisions;
            let share = match decisions.first().map(|one| &one.placement) {
                None => 0.0,
                Some(placement) if *placement == self.wanted => -self.saved,
                Some(_) => self.cost_resized,
            };
            (1.0 + share) * HOURS_NS
        };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        Margins {
            slower: self.slower,
            ..OF_REPLAYS
        }
    }

    fn objects_max(&self) -> usize {
        6
    }
}

/// Runs of the pages that one input had, and blocks of its size, fit no other input unless the pattern grows as
/// the plan takes it to.
#[test]
fn auto_leaves_placements_that_would_cost_too_much_in_another_size() {
    let cyclic = Pattern::BlockCyclic {
        team: 0,
        block_bytes: 6 * PAGE,
        period_bytes: 24 * PAGE,
    };
    let mixed: Vec<(u32, u32, f32)> = (0..32)
        .map(|page| (page, page / 2 * 5 % 8, 500.0))
        .collect();
    for (pattern, cells) in [(Pattern::Mixed, mixed), (cyclic, block_cells())] {
        let recording = master_initialised(8, pattern, &cells);
        let wanted = recording.decide(Policy::Object, &opteron());
        let wanted = only(&wanted).placement.clone();
        let planned = |cost_resized| {
            let mut judge = Foresees {
                saved: 0.06,
                cost_resized,
                wanted: wanted.clone(),
                slower: 0.0,
            };
            recording.with(&opteron(), |input| {
                let Ok(chosen) = choose(input, &Parameters::default(), &mut judge);
                chosen.plan.decisions.len()
            })
        };
        assert_eq!(planned(-0.01), 1, "{wanted}");
        assert_eq!(planned(0.01), 0, "{wanted}");
    }
}

/// What no simple rule brings near a limit is not looked into.
#[test]
fn auto_gives_up_what_takes_too_long() {
    let recording = master_initialised(8, Pattern::Mixed, &block_cells());
    let tried = std::cell::Cell::new(0);
    let chosen = |limit_ns| {
        let mut judge = Slow { tried: &tried };
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose_within(limit_ns, input, &Parameters::default(), &mut judge);
            chosen.map(|chosen| chosen.time.planned_ns)
        })
    };
    assert_eq!(chosen(0.8 * HOURS_NS), None);
    let simple = tried.replace(0);
    assert_eq!(chosen(0.9 * HOURS_NS), Some(0.9 * HOURS_NS));
    assert!(tried.get() > simple, "{} of {simple}", tried.get());
}

/// Whatever is placed takes a tenth less.
struct Slow<'a> {
    tried: &'a std::cell::Cell<usize>,
}

impl Judge for Slow<'_> {
    type Error = std::convert::Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error> {
        self.tried.set(self.tried.get() + selections.len());
        let time =
            |selection: &Selection| match alternatives.plan(selection, |_| None).decisions.len() {
                0 => HOURS_NS,
                _ => 0.9 * HOURS_NS,
            };
        Ok(selections.iter().map(time).collect())
    }

    fn margins(&self) -> Margins {
        OF_REPLAYS
    }

    fn objects_max(&self) -> usize {
        6
    }
}

/// All its misses at the farthest node's latency, and then at the nearest's, are less than what is asked of a decision.
#[test]
fn a_replay_is_not_asked_about_what_cannot_save_enough() {
    let decided = |loads_of_small: f32| {
        let mut recording = master_initialised(8, block(), &block_cells());
        let small: Vec<(u32, u32, f32)> = (0..32)
            .map(|page| (page, page / 4, loads_of_small))
            .collect();
        recording.object("small", 32, block(), &small);
        let tried = std::cell::Cell::new(0);
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &Parameters::default(), &mut Slow { tried: &tried });
            (chosen.plan.decisions.len(), tried.get())
        })
    };
    let large = block_cells()[0].2;
    // Of the latencies 0.4 and 0.11 %; 43 % of that may be saved.
    let [(_, of_both), (alone, of_one)] = [0.004 * large, 0.0011 * large].map(decided);
    assert!(of_one < of_both, "{of_one} of {of_both}");
    assert_eq!(alone, 1);
}

/// A difference of two large sums is the first that another input changes.
#[test]
fn auto_leaves_what_saves_little_of_what_it_makes_slower() {
    // Of its accesses the master makes as many as all others together.
    let cells = (0..32).flat_map(|page| [(page, 0, 7000.0), (page, 1 + page % 7, 7000.0)]);
    let cells: Vec<(u32, u32, f32)> = cells.collect();
    let recording = master_initialised(8, Pattern::Shared, &cells);
    let planned = |wanted: &Placement, slower| {
        let mut judge = Foresees {
            saved: 0.006,
            cost_resized: 0.0,
            wanted: wanted.clone(),
            slower,
        };
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &Parameters::default(), &mut judge);
            chosen.plan.decisions.len()
        })
    };
    let block = Placement::Block {
        team: String::new(),
    };
    assert_eq!(planned(&block, 0.0), 1);
    // As if everything were slower by far more than is saved.
    assert_eq!(planned(&block, f64::MAX), 0);
    // Interleaving has neither a size nor a share of one input.
    assert_eq!(
        planned(&Placement::Interleave { nodes: Vec::new() }, f64::MAX),
        1
    );
}

#[test]
fn code_is_copied_where_a_replay_says_so_and_placed_by_nobody_else() {
    let mut cells = shared_cells(8);
    // Of the fetches from other nodes than the master's most are from three pages.
    for (page, thread, fetches) in &mut cells {
        if [4, 5, 9].contains(page) && *thread > 0 {
            *fetches = 100_000.0;
        }
    }
    let mut recording = master_initialised(8, Pattern::ReadShared, &cells);
    let mut code = recording.attribution.objects[0].clone();
    code.kind = ObjectKind::Code;
    code.name = ObjectName::Other("cg".to_owned());
    recording.attribution.objects = vec![code];
    let parameters = Parameters {
        replicas: true,
        ..Parameters::default()
    };
    let subjects = |of_samples| {
        let mut judge = Likes {
            placement: Placement::Replicate,
            start: Start::Allocation,
            of_samples,
        };
        recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &parameters, &mut judge);
            let decisions = chosen.plan.decisions.into_iter();
            decisions
                .map(|decision| decision.subject)
                .collect::<Vec<_>>()
        })
    };
    let hot = |pages: &[(u64, u64)]| Subject::Code {
        module: "cg".to_owned(),
        build_id: "aa".to_owned(),
        pages: pages.to_vec(),
    };
    assert_eq!(subjects(false), [hot(&[(4, 2), (9, 1)])]);
    assert_eq!(subjects(true), []);
    for policy in [Policy::Object, Policy::Uniform, Policy::Interleave] {
        assert_eq!(recording.decide(policy, &opteron()).decisions, []);
    }
}

/// A plan file says of code that it is copied, and is refused with anything else.
#[test]
fn code_is_not_left_to_whoever_runs_it_next() {
    let mut recording = master_initialised(8, Pattern::ReadShared, &shared_cells(8));
    let code = &mut recording.attribution.objects[0];
    code.kind = ObjectKind::Code;
    code.name = ObjectName::Other("cg".to_owned());
    code.affinity.initialisation = vec![Cell {
        page: 0,
        thread: ThreadIndex(0),
        loads: 64.0,
        stores: 0.0,
        cost_ns: 64.0,
    }];
    let parameters = Parameters {
        replicas: true,
        phases: true,
        ..Parameters::default()
    };
    for start in [Start::SecondThread, Start::Parallel] {
        let mut judge = Likes {
            placement: Placement::FirstTouch,
            start,
            of_samples: false,
        };
        let decisions = recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &parameters, &mut judge);
            chosen.plan.decisions
        });
        let placements = decisions.iter().map(|decision| &decision.placement);
        assert_eq!(placements.collect::<Vec<_>>(), [&Placement::Replicate]);
    }
}

#[test]
fn auto_spreads_what_all_threads_read_where_controllers_are_short() {
    let recording = master_initialised(16, Pattern::ReadShared, &shared_cells(16));
    let plan = recording.decide(Policy::Auto, &preset("carrefour-a").expect("preset"));
    let interleave = Placement::Interleave { nodes: Vec::new() };
    assert_eq!(only(&plan).placement, interleave);
}

/// Discovered, and never measured: what all use would be as near on one node as on all.
#[test]
fn auto_spreads_what_all_threads_read_where_nothing_is_known_of_controllers() {
    let machine = Machine {
        latency_ns: None,
        ..opteron()
    };
    let threads = machine.nodes.iter().map(|node| node.cpus.as_slice().len());
    let threads = threads.sum::<usize>() as u32;
    let recording = master_initialised(threads, Pattern::ReadShared, &shared_cells(threads));
    let plan = recording.decide(Policy::Auto, &machine);
    let interleave = Placement::Interleave { nodes: Vec::new() };
    assert_eq!(only(&plan).placement, interleave);
    // A description that leaves bandwidths out has no limits.
    let unlimited = Machine {
        processor: nearpage_machine::Processor {
            clock_ghz: Some(2.0),
            ..machine.processor
        },
        ..machine
    };
    let plan = recording.decide(Policy::Auto, &unlimited);
    assert!(
        plan.decisions
            .iter()
            .all(|decision| decision.placement != interleave),
        "{plan:?}"
    );
}

#[test]
fn auto_copies_what_is_only_read_where_that_can_be_done() {
    let recording = master_initialised(8, Pattern::ReadShared, &shared_cells(8));
    let parameters = Parameters {
        replicas: true,
        ..Parameters::default()
    };
    let plan = recording.with(&opteron(), |input| decide(Policy::Auto, input, &parameters));
    assert_eq!(only(&plan).placement, Placement::Replicate);
    let local = recording.predict(&plan, &opteron()).planned.local_share;
    assert_eq!(local, 1.0);
}

#[test]
fn auto_leaves_alone_what_it_cannot_improve_or_does_not_know() {
    // Everybody's own pages, touched first by their thread.
    let mut recording = Recording::new(8);
    let touches = (0..32).map(|page| (page, ThreadIndex(page / 4))).collect();
    recording
        .object("build", 32, block(), &block_cells())
        .first_touches = touches;
    assert_eq!(recording.decide(Policy::Auto, &opteron()).decisions, []);
    // Two samples of a long run: it might as well be chance.
    let few = [(0, 2, 1.0), (31, 3, 1.0)];
    let plan = master_initialised(8, Pattern::Mixed, &few).decide(Policy::Auto, &opteron());
    assert_eq!(plan.decisions, []);
}

/// Pages that any thread reads, with a sample or two each: a run for each page fits what was seen, and
/// nothing else.
#[test]
fn auto_does_not_take_chance_for_affinity() {
    let cells: Vec<(u32, u32, f32)> = (0..600).map(|page| (page, page * 7919 % 8, 1.0)).collect();
    let mut recording = Recording::new(8);
    recording
        .object("build", 600, Pattern::Mixed, &cells)
        .first_touches = vec![(0, ThreadIndex(0))];
    let uniform = recording.decide(Policy::Uniform, &opteron());
    assert!(matches!(only(&uniform).placement, Placement::Runs(_)));
    for decision in recording.decide(Policy::Auto, &opteron()).decisions {
        assert!(
            !matches!(decision.placement, Placement::Runs(_)),
            "{decision:?}"
        );
    }
    // With fifty samples to a page they are no chance.
    let cells: Vec<(u32, u32, f32)> = cells.iter().map(|cell| (cell.0, cell.1, 50.0)).collect();
    let mut recording = Recording::new(8);
    recording
        .object("build", 600, Pattern::Mixed, &cells)
        .first_touches = vec![(0, ThreadIndex(0))];
    let auto = recording.decide(Policy::Auto, &opteron());
    assert!(matches!(only(&auto).placement, Placement::Runs(_)));
}

#[test]
fn auto_goes_by_patterns_on_a_machine_of_one_node() {
    let recording = master_initialised(8, block(), &block_cells());
    let auto = recording.decide(Policy::Auto, &one_node());
    let object = recording.decide(Policy::Object, &one_node());
    assert_eq!(auto.decisions, object.decisions);
    assert_eq!(auto.decisions.len(), 1);
}

fn any_cells() -> impl Strategy<Value = Vec<(u32, u32, f32)>> {
    prop::collection::btree_map((0u32..12, 0u32..4), 1u32..30, 1..40).prop_map(|cells| {
        cells
            .into_iter()
            .map(|((page, thread), loads)| (page, thread, loads as f32))
            .collect()
    })
}

fn any_pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::Mixed),
        Just(Pattern::Unknown),
        Just(Pattern::Shared),
        Just(Pattern::Block {
            team: 0,
            block_bytes: 3 * PAGE
        }),
        Just(Pattern::BlockCyclic {
            team: 0,
            block_bytes: PAGE,
            period_bytes: 4 * PAGE
        }),
        (0u32..4).prop_map(|thread| Pattern::Private {
            thread: ThreadIndex(thread)
        }),
        // Nonsense that a damaged recording might hold.
        Just(Pattern::Block {
            team: 9,
            block_bytes: 0
        }),
        Just(Pattern::BlockCyclic {
            team: 0,
            block_bytes: 0,
            period_bytes: 0
        }),
        Just(Pattern::Private {
            thread: ThreadIndex(77)
        }),
    ]
}

proptest! {
    /// What a policy promises holds by its own measure: no page-wise placement beats it by more than
    /// the slack, on any machine.
    #[test]
    fn equations_keep_their_promise(cells in any_cells(), pattern in any_pattern()) {
        let machine = opteron();
        let mut recording = Recording::new(4);
        recording.object("build", 12, pattern, &cells);
        let weights = machine.weights();
        let pages: Vec<[f64; 4]> = (0..12)
            .map(|page| {
                let mut counts = [0.0; 4];
                for cell in cells.iter().filter(|cell| cell.0 == page) {
                    counts[cell.1 as usize] += f64::from(cell.2);
                }
                counts
            })
            .collect();
        let all: f64 = pages.iter().flatten().sum();
        let most_local: f64 = pages.iter().map(|page| page.iter().copied().fold(0.0, f64::max)).sum();
        let least_cost: f64 = pages
            .iter()
            .map(|page| {
                let cost = |memory: usize| (0..4).map(|cpu| page[cpu] * weights[cpu][memory]).sum::<f64>();
                (0..4).map(cost).fold(f64::INFINITY, f64::min)
            })
            .sum();
        let uniform = recording.decide(Policy::Uniform, &machine);
        let effect = only(&uniform).effect;
        prop_assert!(effect.local_after <= most_local / all + 1e-9);
        prop_assert!(effect.local_after >= 0.99 * most_local / all - 1e-9);
        let hops = recording.decide(Policy::HopSensitive, &machine);
        let predicted = recording.predict(&hops, &machine).planned.mean() * all;
        prop_assert!(predicted <= 1.01 * least_cost + 1e-6, "{} against {}", predicted, least_cost);
        prop_assert!(predicted >= least_cost - 1e-6);
    }

    #[test]
    fn decisions_are_total_and_shares_are_shares(cells in any_cells(), pattern in any_pattern(), policy in 0usize..Policy::ALL.len()) {
        for machine in [opteron(), one_node(), preset("amd48").unwrap()] {
            let mut recording = Recording::new(4);
            recording.object("a", 12, pattern.clone(), &cells);
            recording.object("b", 12, pattern.clone(), &cells).first_touches = vec![(3, ThreadIndex(1))];
            let plan = recording.decide(Policy::ALL[policy], &machine);
            let shares: f64 = plan.decisions.iter().map(|decision| decision.effect.cost_share).sum();
            prop_assert!((0.0..=1.0 + 1e-9).contains(&shares));
            for decision in &plan.decisions {
                prop_assert!((0.0..=1.0 + 1e-9).contains(&decision.effect.local_after));
                if let Placement::Runs(runs) = &decision.placement {
                    prop_assert_eq!(runs[0].first_page, 0);
                    prop_assert_eq!(runs.iter().map(|run| run.pages).sum::<u64>(), 12);
                }
            }
            let prediction = recording.predict(&plan, &machine);
            prop_assert_eq!(prediction.objects.len(), 2);
            for outcome in [prediction.first_touch, prediction.interleave, prediction.planned] {
                prop_assert!((0.0..=1.0 + 1e-9).contains(&outcome.local_share));
            }
        }
    }

    /// Threads under other numbers: owners under other numbers, nothing else, but for ties.
    #[test]
    fn renumbering_threads_renumbers_owners(
        loads in prop::collection::hash_set(1u32..100_000, 24),
        order in Just([0u32, 1, 2, 3]).prop_shuffle(),
    ) {
        // All counts differ, so that no tie is broken by number.
        let loads: Vec<u32> = loads.into_iter().collect();
        let cells: Vec<_> = (0..24u32).map(|cell| (cell / 4, cell % 4, loads[cell as usize] as f32)).collect();
        let mut moved: Vec<_> = cells.iter().map(|&(page, thread, loads)| (page, order[thread as usize], loads)).collect();
        moved.sort_by_key(|cell| (cell.0, cell.1));
        let placements = [cells, moved].map(|cells| {
            let mut recording = Recording::new(4);
            recording.object("build", 6, Pattern::Mixed, &cells);
            only(&recording.decide(Policy::Uniform, &one_node())).placement.clone()
        });
        let renumber = |owner: &Owner| match owner {
            Owner::Thread { index, .. } => thread(order[*index as usize]),
            node => node.clone(),
        };
        let expected = match &placements[0] {
            Placement::Whole(owner) => Placement::Whole(renumber(owner)),
            Placement::Runs(runs) => {
                Placement::Runs(runs.iter().map(|r| run(r.first_page, r.pages, renumber(&r.owner))).collect())
            }
            other => other.clone(),
        };
        prop_assert_eq!(&placements[1], &expected);
    }
}
