//! The daemon with a simulated program and kernel: four nodes, and a clock that the tests advance.
//! Over 500 lines: all tests use the same daemon, program and kernel; estimates and pending actions have own files.

mod estimates;
mod pending_actions;
mod world;

use nearpage_machine::{NodeList, preset};
use nearpage_recording::{AccessKind, Event, ThreadIndex};
use nearpage_sampler::Sink;

use super::*;
use crate::address_space::{AddressSpace, Mapping};
use crate::{decide::Interval, guard::Stage, log::replay};
use world::{Program, World, world};

const PAGE: u64 = 4096;
const PID: u32 = 4000;
const PERIOD_NS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn daemon(policy: &str, world: &World, change: impl Fn(&mut Settings)) -> Daemon {
    let machine = preset("opteron-4").expect("a preset");
    let mut settings = settings(policy);
    change(&mut settings);
    Daemon::new(settings, &machine, world.now_ns).expect("a policy for four nodes")
}

fn settings(policy: &str) -> Settings {
    Settings {
        policy: LivePolicy::from_name(policy).expect("a policy"),
        pages: 30_000,
        limits: Limits {
            stall_ns: 20_000_000,
            bytes_per_second: 1 << 30,
        },
        guard_thresholds: GuardThresholds::default(),
        dry_run: false,
        moves_threads: false,
        seed: 1,
        page_bytes: PAGE,
        estimate: Estimate::TimeLost {
            latency_ns: PERIOD_NS as f64,
        },
        clock_mhz: 2000,
        source: "clock".to_owned(),
    }
}

#[test]
fn settings_that_no_daemon_can_have_are_known_before() {
    let machine = preset("opteron-4").expect("a preset");
    let mut settings = settings("auto");
    settings.check(&machine).expect("as they are");
    assert_eq!(settings.policy.set("remote_ns", "0"), Ok(true));
    let error = settings
        .check(&machine)
        .expect_err("nothing is known of a live machine's memory");
    assert!(error.to_string().contains("remote_ns=0"), "{error}");
}

/// A report about one process, with a name that is hard to print and this traffic, `[CPU's node][page's node]`.
pub(crate) fn report(traffic: Vec<Vec<u64>>) -> Report {
    let mut report = Report {
        entry: Entry::of(Interval::default(), Decisions::default()),
        process_times: Vec::new(),
        view: None,
        why_idle: None,
        traffic,
        memory_nodes: u64::MAX,
        hot_pages: 12,
        given_up: 0,
        dropped: 0,
        without_node: 0,
        without_access: 0,
        left: 0,
        outcomes: Outcomes::default(),
        moved_bytes: 0,
        deciding_ns: 0,
        in_calls_ns: 0,
        longest_call_ns: 0,
    };
    report.entry.processes.push(LoggedProcess {
        pid: 9,
        name: "a\"b\\c\n".to_owned(),
        stage: Stage::Measuring,
        lost_per_1000: 250,
        local_per_1000: 875,
        accesses: 8,
        requested: 9,
        replications_interleaved: 1,
        moved_back: false,
        threads_pinned: 0,
        outcomes: Outcomes::default(),
        longest_call_ns: 0,
    });
    report
}

impl Daemon {
    /// A step with half a second to act, and unknown free memory.
    fn after_interval(&mut self, program: &mut Program, world: &mut World) -> Report {
        let free = FreeMemory::default();
        self.step(&mut program.observer, world, &free, SECOND / 2, None)
            .expect("a step")
    }
}

/// Each thread accesses a block of pages of its own; all pages start on the first node.
fn blocks(program: &mut Program, thread: u32) -> (u64, AccessKind) {
    let page = u64::from(thread) * 100 + program.draw(100);
    (page, AccessKind::Load)
}

fn local_pages(world: &World) -> f64 {
    let local = world
        .homes
        .iter()
        .filter(|(page, node)| *page / PAGE / 100 == u64::from(node.0));
    local.count() as f64 / world.homes.len() as f64
}

#[test]
fn blocks_come_to_their_threads_within_ten_intervals() {
    for policy in ["migrate", "out-u", "out-u-local"] {
        let (mut world, mut program) = (world(), Program::new());
        let mut daemon = daemon(policy, &world, |_| ());
        let mut log = Vec::new();
        log::append(&mut log, &daemon.head()).expect("written");
        for _ in 0..10 {
            program.run(&mut world, 400, blocks);
            let report = daemon.after_interval(&mut program, &mut world);
            log::append(&mut log, &report.entry).expect("written");
        }
        assert!(
            local_pages(&world) > 0.95,
            "{policy}: {}",
            local_pages(&world)
        );
        let moves = world.moves;
        for _ in 0..10 {
            program.run(&mut world, 200, blocks);
            daemon.after_interval(&mut program, &mut world);
        }
        assert!(world.moves - moves <= 20, "{policy} goes on moving");
        let replayed = replay(&log[..], "log").expect("decided again");
        assert_eq!(replayed.intervals, 10);
        assert!(replayed.decisions >= 300);
    }
}

#[test]
fn a_dry_run_and_a_machine_of_one_node_move_nothing() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |settings| settings.dry_run = true);
    let mut requested = 0;
    for _ in 0..10 {
        program.run(&mut world, 400, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        requested += report.entry.processes[0].requested;
    }
    assert!(requested >= 300);
    assert_eq!(world.moves, 0);
}

#[test]
fn harmful_moves_are_undone_and_not_repeated() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |_| ());
    let mut stages = Vec::new();
    for _ in 0..9 {
        // The program loses more time when any of its pages has moved.
        let lost = if world.homes.values().any(|node| node.0 > 0) {
            700
        } else {
            300
        };
        program.run(&mut world, lost, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        stages.push(report.entry.processes[0].stage);
    }
    assert!(stages.contains(&Stage::Trying));
    assert_eq!(stages[3..], [Stage::Holding; 6]);
    assert!(world.moves > 0);
    assert!(world.homes.values().all(|node| node.0 == 0), "all are back");
}

#[test]
fn a_program_that_loses_more_after_nothing_moved_is_not_left_alone() {
    let (mut world, mut program) = (world(), Program::new());
    world.shared = true;
    let mut daemon = daemon("migrate", &world, |_| ());
    let mut refused = 0;
    for _ in 0..4 {
        program.run(&mut world, 100, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        refused += report.entry.processes[0].outcomes.shared;
    }
    assert!(refused > 0);
    // Its computation begins, with memory that may move.
    world.shared = false;
    for _ in 0..10 {
        program.run(&mut world, 700, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        assert_ne!(report.entry.processes[0].stage, Stage::Holding);
    }
    assert!(local_pages(&world) > 0.5, "{}", local_pages(&world));
}

#[test]
fn threads_that_move_take_their_pages_with_them() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |_| ());
    let turned = |program: &mut Program, thread: u32| blocks(program, (thread + 1) % 4);
    for interval in 0..24 {
        match interval < 10 {
            true => program.run(&mut world, 400, blocks),
            false => program.run(&mut world, 400, turned),
        }
        daemon.after_interval(&mut program, &mut world);
    }
    let recovered = world
        .homes
        .iter()
        .filter(|(page, node)| (u64::from(node.0) + 1) % 4 == *page / PAGE / 100);
    assert!(recovered.count() > 380);
}

#[test]
fn replicas_become_interleaving_and_are_counted() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate-replicate", &world, |_| ());
    let mut interleaved = 0;
    for _ in 0..10 {
        program.run(&mut world, 400, |program, _| {
            (program.draw(60), AccessKind::Load)
        });
        let report = daemon.after_interval(&mut program, &mut world);
        interleaved += report.entry.processes[0].replications_interleaved;
    }
    assert!(interleaved > 40, "{interleaved}");
    let mut by_node = [0; 4];
    for node in world.homes.values() {
        by_node[usize::from(node.0)] += 1;
    }
    assert!(
        by_node.iter().all(|&pages| (8..=25).contains(&pages)),
        "{by_node:?}"
    );
}

/// The machine's last node is an expander: it has no CPUs, and is far from all.
#[test]
fn what_is_interleaved_instead_of_copied_stays_out_of_an_expander() {
    let (mut world, mut program) = (world(), Program::new());
    let mut machine = preset("opteron-4").expect("a preset");
    machine.nodes[3].cpus.clear();
    let latencies_ns = machine.latency_ns.as_mut().expect("a preset");
    for row in &mut latencies_ns[..3] {
        row[3] = Some(400.0);
    }
    let settings = settings("migrate-replicate");
    let mut daemon = Daemon::new(settings, &machine, world.now_ns).expect("a policy");
    for _ in 0..10 {
        program.run(&mut world, 400, |program, _| {
            (program.draw(60), AccessKind::Load)
        });
        daemon.after_interval(&mut program, &mut world);
    }
    let on = |at: u16| world.homes.values().filter(|node| node.0 == at).count();
    assert!(on(1) > 10 && on(2) > 10, "{:?}", [0, 1, 2, 3].map(on));
    assert_eq!(on(3), 0);
}

#[test]
fn interleaved_pages_stay_until_one_node_alone_uses_them() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate-replicate", &world, |_| ());
    // About two samples of each page are taken, so by chance one node is seen most at times.
    let shared = |program: &mut Program, _: u32| (program.draw(120), AccessKind::Load);
    for _ in 0..20 {
        program.run(&mut world, 400, shared);
        daemon.after_interval(&mut program, &mut world);
    }
    let before = world.homes.clone();
    for page in 0..120 {
        assert_eq!(u64::from(before[&(page * PAGE)].0), page % 4, "page {page}");
    }
    for _ in 0..60 {
        program.run(&mut world, 100, shared);
        daemon.after_interval(&mut program, &mut world);
    }
    assert_eq!(world.homes, before);
    // From now on only the last thread uses the pages. The change is noticed after about fifty samples of each page,
    // and the policy requests a page at most once in ten seconds.
    for _ in 0..30 {
        program.run(&mut world, 800, |program, thread| match thread {
            3 => shared(program, thread),
            _ => (1000 + u64::from(thread), AccessKind::Load),
        });
        daemon.after_interval(&mut program, &mut world);
    }
    let followed = (0..120).filter(|page| world.homes[&(page * PAGE)].0 == 3);
    assert!(followed.count() >= 110);
}

#[test]
fn a_full_node_gets_nothing() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |_| ());
    let free = FreeMemory {
        nodes: vec![(500, 1000), (500, 1000), (500, 1000), (10, 1000)],
    };
    for _ in 0..10 {
        program.run(&mut world, 400, blocks);
        daemon
            .step(&mut program.observer, &mut world, &free, SECOND / 2, None)
            .expect("a step");
    }
    assert!(world.homes.values().all(|node| node.0 != 3));
    assert!(world.homes.values().any(|node| node.0 == 2));
}

#[test]
fn a_process_that_ends_is_forgotten() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("migrate", &world, |_| ());
    for _ in 0..3 {
        program.run(&mut world, 400, blocks);
        daemon.after_interval(&mut program, &mut world);
    }
    world.alive = false;
    let exits: Vec<Event> = (0..4)
        .map(|thread| Event::Exit {
            time_ns: world.now_ns,
            thread: ThreadIndex(thread),
        })
        .collect();
    program.observer.events(&exits).expect("taken");
    let report = daemon.after_interval(&mut program, &mut world);
    assert!(report.entry.processes.is_empty());
    assert_eq!(daemon.pages.len(), 0);
    assert_eq!(report.entry.interval.forgotten.len(), 400);
}

#[test]
fn two_daemons_do_not_move_one_process() {
    let (mut world, mut program) = (world(), Program::new());
    let mut first = daemon("migrate", &world, |_| ());
    let mut second = daemon("migrate", &world, |_| ());
    program.run(&mut world, 400, blocks);
    first.after_interval(&mut program, &mut world);
    let before = world.moves;
    for _ in 0..5 {
        program.run(&mut world, 400, blocks);
        second.after_interval(&mut program, &mut world);
    }
    assert_eq!(world.moves, before);
}

/// Runs the program until the guard holds it, because it loses more time after pages have moved.
fn until_worse(daemon: &mut Daemon, world: &mut World, program: &mut Program) -> Report {
    loop {
        let lost = match world.moves {
            0 => 300,
            _ => 700,
        };
        program.run(world, lost, blocks);
        let report = daemon.after_interval(program, world);
        if report.entry.processes[0].stage == Stage::Holding {
            return report;
        }
    }
}

#[test]
fn all_pages_go_back_however_long_it_takes() {
    let (mut world, mut program) = (world(), Program::new());
    // About thirty moves fit into half a second.
    world.page_ns = 15_000_000;
    let mut daemon = daemon("migrate", &world, |_| ());
    let away = |world: &World| world.homes.values().filter(|node| node.0 > 0).count();
    while away(&world) < 100 {
        program.run(&mut world, 300, blocks);
        daemon.after_interval(&mut program, &mut world);
    }
    let report = until_worse(&mut daemon, &mut world, &mut program);
    assert!(report.entry.processes[0].moved_back);
    assert!(report.left > 0 && away(&world) > 30, "{}", away(&world));
    let mut intervals = 0;
    while away(&world) > 0 {
        program.run(&mut world, 700, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        assert_eq!(report.entry.processes[0].stage, Stage::Holding);
        assert!(!report.entry.processes[0].moved_back, "said once");
        intervals += 1;
        assert!(intervals < 100, "{} pages are still away", away(&world));
    }
    // The pause begins when all pages are back.
    for _ in 0..GuardThresholds::default().hold_intervals - 1 {
        program.run(&mut world, 300, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        assert_eq!(report.entry.processes[0].stage, Stage::Holding);
    }
}

#[test]
fn a_requested_move_waits_for_the_time_to_move() {
    let (mut world, mut program) = (world(), Program::new());
    world.page_ns = 40_000_000;
    let mut daemon = daemon("migrate", &world, |_| ());
    for _ in 0..4 {
        program.run(&mut world, 400, blocks);
        daemon.after_interval(&mut program, &mut world);
    }
    let requested: usize = daemon.processes.values().map(|one| one.pending()).sum();
    assert!(requested > 150, "{requested}");
    let moved = world.moves;
    // The program only computes now, so the policy requests nothing more.
    for _ in 0..60 {
        program.run(&mut world, 0, blocks);
        daemon.after_interval(&mut program, &mut world);
    }
    assert_eq!(world.moves, moved + requested as u64);
}

#[test]
fn moves_that_a_process_does_not_allow_are_counted_and_not_tried() {
    let (mut world, mut program) = (world(), Program::new());
    world.space = AddressSpace {
        allowed: "0-1,3".parse::<NodeList>().ok(),
        // The last thread's block has a memory policy.
        mappings: vec![Mapping {
            start: 300 * PAGE,
            end: 400 * PAGE,
            has_own_policy: true,
            huge_bytes: None,
        }],
    };
    let mut daemon = daemon("migrate", &world, |_| ());
    let mut outcomes = Outcomes::default();
    for _ in 0..10 {
        program.run(&mut world, 400, blocks);
        outcomes.add(&daemon.after_interval(&mut program, &mut world).outcomes);
    }
    assert!(outcomes.own_policy >= 90, "{outcomes:?}");
    assert!(outcomes.node_not_allowed >= 90, "{outcomes:?}");
    for (page, node) in &world.homes {
        let expected = match page / PAGE / 100 {
            1 => 1,
            _ => 0,
        };
        assert_eq!(node.0, expected, "page {page:#x}");
    }
}

#[test]
fn a_huge_page_is_one_page() {
    let (mut world, mut program) = (world(), Program::new());
    const HUGE: u64 = 64 * PAGE;
    world.space.mappings = vec![Mapping {
        start: 0,
        end: 400 * PAGE,
        has_own_policy: false,
        huge_bytes: Some(HUGE),
    }];
    let mut daemon = daemon("migrate", &world, |_| ());
    let mut moved_bytes = 0;
    for _ in 0..10 {
        // Each thread has 64 pages of its own.
        program.run(&mut world, 400, |program, thread| {
            let page = u64::from(thread) * 64 + program.draw(64);
            (page, AccessKind::Load)
        });
        let report = daemon.after_interval(&mut program, &mut world);
        moved_bytes += report.moved_bytes;
        assert_eq!(report.hot_pages, 4);
        // The kernel moves huge pages as a whole.
        let heads: Vec<(u64, NodeId)> = world.homes.iter().map(|(k, v)| (*k, *v)).collect();
        for (page, node) in heads.iter().filter(|(page, _)| page % HUGE == 0) {
            (0..64).for_each(|at| {
                world.homes.insert(page + at * PAGE, *node);
            });
        }
    }
    assert_eq!((world.moves, moved_bytes), (3, 3 * HUGE));
    for (page, node) in &world.homes {
        assert_eq!(u64::from(node.0), page / HUGE);
    }
}

#[test]
fn threads_are_pinned_with_care_and_let_go_in_the_end() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("watch", &world, |_| ());
    let list = |text: &str| text.parse::<CpuList>().expect("a list");
    let (anywhere, elsewhere) = (list("0-3"), list("2"));
    for _ in 0..GuardThresholds::default().intervals {
        let process = report_of(&mut daemon, &mut program, &mut world);
        assert_eq!(process.stage, Stage::Measuring);
    }
    let pin = |daemon: &mut Daemon| {
        for process in daemon.processes.values_mut() {
            process.pin(PID + 1, elsewhere.clone());
        }
    };
    pin(&mut daemon);
    program.run(&mut world, 300, blocks);
    let report = daemon.after_interval(&mut program, &mut world);
    assert_eq!(report.entry.processes[0].threads_pinned, 1);
    assert_eq!(world.affinities[&(PID + 1)], elsewhere);
    // The process loses more time than before.
    program.run(&mut world, 600, blocks);
    let report = daemon.after_interval(&mut program, &mut world);
    assert_eq!(report.entry.processes[0].stage, Stage::Holding);
    assert_eq!(world.affinities[&(PID + 1)], anywhere);
    pin(&mut daemon);
    while report_of(&mut daemon, &mut program, &mut world).threads_pinned == 0 {}
    assert_eq!(world.affinities[&(PID + 1)], elsewhere);
    daemon.restore_affinities(&mut world);
    assert_eq!(world.affinities[&(PID + 1)], anywhere);
}

#[test]
fn threads_go_where_the_last_decision_wants_them_or_nowhere() {
    let (mut world, mut program) = (world(), Program::new());
    let mut daemon = daemon("watch", &world, |settings| settings.moves_threads = true);
    report_of(&mut daemon, &mut program, &mut world);
    // The pin is requested while the process is being measured, so it is not carried out.
    for process in daemon.processes.values_mut() {
        process.pin(PID + 1, "2".parse().expect("a list"));
    }
    for _ in 0..GuardThresholds::default().intervals + 3 {
        let process = report_of(&mut daemon, &mut program, &mut world);
        assert_eq!(process.threads_pinned, 0);
    }
    assert!(world.affinities.is_empty());
}

fn report_of(daemon: &mut Daemon, program: &mut Program, world: &mut World) -> LoggedProcess {
    program.run(world, 300, blocks);
    daemon
        .after_interval(program, world)
        .entry
        .processes
        .remove(0)
}

#[test]
fn a_dry_run_keeps_no_other_daemon_away() {
    let (mut world, mut program) = (world(), Program::new());
    for dry_run in [true, false] {
        let mut daemon = daemon("migrate", &world, |settings| settings.dry_run = dry_run);
        program.run(&mut world, 400, blocks);
        let report = daemon.after_interval(&mut program, &mut world);
        assert_eq!(report.process_times.len(), report.entry.processes.len());
        assert!(report.process_times[0].cpu_ns > 0.0);
        let identity = Identity {
            pid: PID,
            started: world.started,
        };
        assert_eq!(crate::claim::Claim::on(identity).is_some(), dry_run);
    }
}
