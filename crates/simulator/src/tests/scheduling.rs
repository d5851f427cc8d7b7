//! Threads that a schedule moves, and several programs replayed together.

use nearpage_recording::trace::FilePage;
use proptest::prelude::*;

use super::properties::{crowded, traces};
use super::*;
use crate::{Programs, Schedule, ThreadSteps, Trace};

fn scheduled(name: &str, schedule: &str) -> Job {
    let mut job = job(name, &[]);
    job.schedule = Schedule::from_toml(schedule, "s.toml")
        .expect("schedule")
        .into();
    job
}

fn refused(trace: &dyn Trace, schedule: &str) -> String {
    let machine = preset("flash-8").expect("preset");
    let jobs = Schedule::from_toml(schedule, "s.toml").map(|schedule| {
        let mut job = job("first-touch", &[]);
        job.schedule = schedule.into();
        [job]
    });
    let result = jobs.and_then(|jobs| simulate(trace, &machine, &jobs, 1));
    result.expect_err("schedule").to_string()
}

#[test]
fn a_thread_that_is_moved_refills_its_caches() {
    let machine = preset("flash-8").expect("preset");
    // Four misses of 300 ns are done when the thread moves to CPU 3. It refills four lines at 300 ns each.
    let trace = each(1, &[0], &[load(0, 0); 10]);
    let still = one(&trace, &machine, job("first-touch", &[]));
    assert!(!still.estimated());
    let moved = "[[move]]\nthread = 0\nat_ns = 1200\ncpu = 3\n";
    let outcome = one(&trace, &machine, scheduled("first-touch", moved));
    assert_eq!((outcome.local, outcome.remote()), (4, 6));
    assert_eq!((outcome.threads_moved, outcome.refilled_lines), (1, 4));
    assert!(outcome.estimated());
    assert_eq!(outcome.split.local_stall_ns, (4.0 + 4.0) * 300.0);
    assert_eq!(outcome.split.remote_stall_ns, 6.0 * 1200.0);
    assert_eq!(outcome.time_ns, outcome.split.total_ns());
    // At most the lines of the second-level cache are refilled, although 19,000 misses came before.
    let caches = machine.caches.iter();
    let lines = caches
        .map(|cache| cache.size_bytes / u64::from(cache.line_bytes))
        .max();
    let trace = each(1, &[0], &vec![load(0, 0); 20_000]);
    let late = "[[move]]\nthread = 0\nat_ns = 5_700_000\ncpu = 3\n";
    let outcome = one(&trace, &machine, scheduled("first-touch", late));
    assert_eq!(Some(outcome.refilled_lines), lines);
    // A move to the same CPU, and a move before the thread has begun, cost nothing.
    let idle =
        "[[move]]\nthread = 0\nat_ns = 0\ncpu = 3\n[[move]]\nthread = 0\nat_ns = 9\ncpu = 3\n";
    let outcome = one(&trace, &machine, scheduled("first-touch", idle));
    assert_eq!((outcome.threads_moved, outcome.local), (0, 20_000));
    assert_eq!(outcome.moves_left, 0);
    // A move after the thread's end is not made.
    let never = "[[move]]\nthread = 0\nat_ns = 7_000_000\ncpu = 3\n";
    let outcome = one(&trace, &machine, scheduled("first-touch", never));
    assert_eq!((outcome.threads_moved, outcome.moves_left), (0, 1));
}

/// Three threads were traced on one CPU and run on three. Each one's page belongs where the thread runs.
#[test]
fn post_facto_knows_where_threads_run() {
    let machine = preset("flash-8").expect("preset");
    let misses: Vec<Vec<Miss>> = (0..3).map(|page| vec![load(0, page); 50]).collect();
    let threads = misses.into_iter().enumerate();
    let threads =
        threads.map(|(number, misses)| thread(number as u32, 0, 0, batch(misses, vec![])));
    let trace = trace(3, threads.collect());
    let outcome = one(
        &trace,
        &machine,
        scheduled("post-facto", "scheduler = \"affinity\""),
    );
    assert_eq!((outcome.local, outcome.remote()), (150, 0));
}

#[test]
fn affinity_balances_the_load() {
    let machine = preset("flash-8").expect("preset");
    // Four threads were traced on one CPU. Pinned threads share it; otherwise each finds an idle CPU.
    let trace = each(1, &[0, 0, 0, 0], &[load(900, 0); 1000]);
    let pinned = one(&trace, &machine, scheduled("first-touch", ""));
    let affinity = one(
        &trace,
        &machine,
        scheduled("first-touch", "scheduler = \"affinity\""),
    );
    assert!(affinity.time_ns < pinned.time_ns / 2.0);
    assert_eq!(affinity.threads_moved, 0, "none had begun");
    // With nine threads on eight CPUs, an idle CPU takes a thread from the longest queue.
    let nine = each(1, &[0, 1, 2, 3, 4, 5, 6, 7, 0], &vec![load(9000, 0); 2000]);
    let outcome = one(
        &nine,
        &machine,
        scheduled("round-robin", "scheduler = \"affinity\""),
    );
    assert!(outcome.threads_moved > 0);
    let pinned = one(&nine, &machine, scheduled("round-robin", ""));
    assert!(
        outcome.time_ns < pinned.time_ns,
        "the one that waits goes where others have ended"
    );
}

/// Six threads that never wait share four CPUs: each gets two thirds of a CPU, wherever it was traced.
#[test]
fn affinity_shares_the_cpus_evenly() {
    let machine = machine(1, CLOCK);
    let trace = each(1, &[0, 0, 1, 1, 2, 3], &vec![load(10_000, 0); 10_000]);
    let shared = |more: &str| {
        let mut job = scheduled("first-touch", &format!("scheduler = \"affinity\"\n{more}"));
        job.options.slice_ns = 1_000_000;
        one(&trace, &machine, job)
    };
    let ends = |outcome: &Outcome| -> Vec<f64> {
        let threads = outcome.threads.iter();
        threads
            .map(|thread| thread.began_ns + thread.time_ns)
            .collect()
    };
    let spread = |outcome: &Outcome| {
        let ends = ends(outcome);
        let last = ends.iter().copied().fold(0.0, f64::max);
        (last - ends.iter().copied().fold(last, f64::min)) / last
    };
    // If threads stay on their own CPUs, two threads end in half of the time.
    let never = shared("affinity_ns = 1_000_000_000_000");
    assert!(spread(&never) > 0.3, "{:?}", ends(&never));
    let fair = shared("affinity_ns = 5_000_000");
    assert!(spread(&fair) < 0.05, "{:?}", ends(&fair));
    assert!(
        fair.time_ns < 1.01 * never.time_ns,
        "{} {} {} {}",
        fair.time_ns,
        never.time_ns,
        fair.threads_moved,
        fair.refilled_lines
    );
    // Threads move more often with less affinity.
    let restless = shared("affinity_ns = 0");
    assert!(
        restless.threads_moved > 2 * fair.threads_moved && fair.threads_moved > never.threads_moved
    );
}

#[test]
fn programs_partition_the_cpus() {
    let machine = preset("flash-8").expect("preset");
    let long = each(1, &[0, 1, 2, 3, 4, 5, 6, 7], &vec![load(3000, 0); 400]);
    let short = each(1, &[0, 1], &vec![load(3000, 0); 100]);
    let programs = Programs::new(vec![&long, &short]).expect("programs");
    let partition = "scheduler = \"partition\"\n[[program]]\n[[program]]\nstart_ns = 1_000_000\n";
    let job = scheduled("first-touch", partition);
    let outcome = simulate(&programs, &machine, &[job], 1)
        .expect("simulates")
        .remove(0);
    assert_eq!(outcome.misses, 8 * 400 + 2 * 100);
    // Four of the first program's threads make way for the second program, and return afterwards.
    assert_eq!(outcome.threads_moved, 4 + 4, "{outcome:?}");
    assert!(outcome.threads[8].time_ns > 0.0);
    let alone = one(
        &long,
        &machine,
        scheduled("first-touch", "scheduler = \"partition\""),
    );
    assert_eq!(alone.threads_moved, 0, "a CPU for each");
    assert!(alone.time_ns < outcome.time_ns);
}

#[test]
fn each_program_has_its_own_time() {
    let machine = preset("flash-8").expect("preset");
    let (long, short) = (
        each(1, &[0, 1], &vec![load(3000, 0); 400]),
        each(1, &[4], &vec![load(1000, 0); 100]),
    );
    let job = |schedule: &str| scheduled("first-touch", schedule);
    let alone = [&long, &short].map(|trace| one(trace, &machine, job("")));
    assert!(alone.iter().all(|outcome| outcome.program_ns().is_empty()));
    // Programs on different nodes do not affect each other, whenever the second one begins.
    let programs = Programs::new(vec![&long, &short]).expect("programs");
    for start_ns in [0.0, 250_000.0, 1e9] {
        let schedule = format!("[[program]]\n[[program]]\nstart_ns = {start_ns}\n");
        let outcome = simulate(&programs, &machine, &[job(&schedule)], 1)
            .expect("simulates")
            .remove(0);
        let times = outcome.program_ns();
        assert_eq!(times.len(), 2);
        for (time, alone) in times.iter().zip(&alone) {
            assert!(
                (time - alone.time_ns).abs() < 1e-3,
                "{time} {}",
                alone.time_ns
            );
        }
        let both = alone[0].time_ns.max(start_ns + alone[1].time_ns);
        assert!((outcome.time_ns - both).abs() < 1e-3, "{outcome:?}");
    }
}

#[test]
fn programs_count_from_the_first_mark_to_the_last() {
    let machine = machine(2, CLOCK);
    let program = |cpu: u32, marks: [usize; 2]| {
        let [begin, end] = marks.map(|at| (at, 0));
        let marks = vec![
            (begin.0, begin.1, TraceEvent::Mark { begin: true }),
            (end.0, end.1, TraceEvent::Mark { begin: false }),
        ];
        trace(
            1,
            vec![thread(0, cpu, 0, batch(vec![load(10, 0); 6], marks))],
        )
    };
    let (first, second) = (program(0, [2, 4]), program(1, [3, 5]));
    let programs = Programs::new(vec![&first, &second]).expect("programs");
    let outcome = simulate(&programs, &machine, &[job("first-touch", &[])], 1)
        .expect("simulates")
        .remove(0);
    // The phase runs from the third load of each to the fifth; each takes 10 ns of computing and 100 ns of waiting.
    assert_eq!((outcome.misses, outcome.time_ns), (6, 330.0));
    let to_a_step = |ns: &f64| (ns - 330.0).abs() <= 10.0;
    assert!(outcome.program_ns().iter().all(to_a_step), "{outcome:?}");
}

#[test]
fn a_program_begins_so_long_after_the_mark_of_another() {
    let machine = machine(2, CLOCK);
    let marks = vec![
        (2, 0, TraceEvent::Mark { begin: true }),
        (6, 0, TraceEvent::Mark { begin: false }),
    ];
    let marked = trace(1, vec![thread(0, 0, 0, batch(vec![load(10, 0); 6], marks))]);
    let other = each(1, &[1], &[load(10, 0)]);
    let programs = Programs::new(vec![&marked, &other]).expect("programs");
    let misses = |schedule: &str| {
        let outcomes = simulate(
            &programs,
            &machine,
            &[scheduled("first-touch", schedule)],
            1,
        );
        let outcome = outcomes.expect("simulates").remove(0);
        (outcome.misses, outcome.signals_missing)
    };
    let second = |keys: &str| format!("[[program]]\n[[program]]\n{keys}");
    assert_eq!(
        misses(&second("start_ns = 100")),
        (4, 0),
        "before what counts"
    );
    assert_eq!(misses(&second("start_ns = 100\nfrom_mark = true")), (5, 0));
    assert_eq!(
        misses(&second("start_ns = 500\nfrom_mark = true")),
        (4, 0),
        "after it"
    );
    // Without marks, the second program does not wait for a mark.
    let programs = Programs::new(vec![&other, &other]).expect("programs");
    let job = scheduled("first-touch", &second("from_mark = true"));
    let outcome = simulate(&programs, &machine, &[job], 1)
        .expect("simulates")
        .remove(0);
    assert_eq!((outcome.misses, outcome.signals_missing), (2, 1));
}

/// A trace whose page 1 belongs to a file.
struct WithFile(MemoryTrace);

impl Trace for WithFile {
    fn pages(&self) -> usize {
        self.0.pages
    }
    fn file_pages(&self) -> Vec<(u32, FilePage)> {
        let page = FilePage {
            device: 8,
            inode: 77,
            page: 3,
        };
        vec![(1, page)]
    }
    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        self.0.threads()
    }
}

#[test]
fn programs_share_pages_of_files_and_nothing_else() {
    let machine = preset("flash-8").expect("preset");
    let later = |number| TraceEvent::Resume {
        after: 0,
        waited_instructions: number,
    };
    let program = |cpu: u32, wait: u64| {
        let steps = batch(
            vec![load(0, 0), load(0, 1)],
            vec![
                (0, 0, later(wait)),
                (2, 0, TraceEvent::Signal { sequence: 1 }),
            ],
        );
        let waits = TraceEvent::Resume {
            after: 1,
            waited_instructions: 0,
        };
        let second = batch(vec![load(0, 0)], vec![(0, 0, waits)]);
        WithFile(trace(
            2,
            vec![thread(0, cpu, 0, steps), thread(1, cpu, 0, second)],
        ))
    };
    let (first, second) = (program(0, 0), program(5, 1_000_000));
    let programs = Programs::new(vec![&first, &second]).expect("programs");
    assert_eq!(
        (
            programs.pages(),
            programs.shared_pages(),
            programs.programs()
        ),
        (3, 1, 2)
    );
    assert_eq!(programs.origin(ThreadIndex(3)), (1, ThreadIndex(1)));
    let outcome = simulate(&programs, &machine, &[job("first-touch", &[])], 1)
        .expect("simulates")
        .remove(0);
    // The second program's own page is local; the file's page is where the first program touched it.
    assert_eq!((outcome.local, outcome.remote()), (5, 1));
    assert_eq!((outcome.pages_max, outcome.signals_missing), (3, 0));
}

#[test]
fn schedules_of_what_is_not_there_are_refused() {
    let trace = each(1, &[0, 1], &[load(0, 0)]);
    for (schedule, message) in [
        (
            "[[move]]\nthread = 2\nat_ns = 0\ncpu = 1",
            "s.toml: move 1 is of thread 2; its recording has threads 0 to 1",
        ),
        (
            "[[program]]\nstart_ns = 9300000000000",
            "s.toml: program 1 has start_ns = 9300000000000; simulated time can be counted to 9223372036854 ns",
        ),
        (
            "[[move]]\nthread = 1\nat_ns = 0\ncpu = 8",
            "s.toml: move 1 is to CPU 8, which the machine has not",
        ),
        (
            "[[move]]\nprogram = 2\nthread = 1\nat_ns = 0\ncpu = 1",
            "s.toml: move 1 is of program 2; there are 1 to 1",
        ),
        (
            "[[move]]\nthread = 1\nat_ns = 5\ncpu = 1\n[[move]]\nthread = 0\nat_ns = 5\ncpu = 0\n\
             [[move]]\nthread = 1\nat_ns = 5\ncpu = 0",
            "s.toml: moves 1 and 3 have thread 1 go to two CPUs at 5 ns",
        ),
        (
            "[[program]]\n[[program]]\n",
            "s.toml: it has 2 programs, for 1 recording",
        ),
        (
            "scheduler = \"affinity\"\n[[move]]\nthread = 1\nat_ns = 0\ncpu = 1",
            "s.toml: it has moves, which need scheduler = \"pinned\"",
        ),
        (
            "scheduler = \"partition\"\naffinity_ns = 1",
            "s.toml: it has affinity_ns, which needs scheduler = \"affinity\"",
        ),
    ] {
        assert_eq!(refused(&trace, schedule), message);
    }
    let error = refused(&trace, "\nscheduler = \"fair\"");
    assert!(
        error.starts_with("s.toml: line 2: unknown variant `fair`"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn nothing_is_lost_whatever_the_schedule(
        first in traces(),
        second in traces(),
        moves in prop::collection::vec((0u32..6, 0u64..2_000_000, 0u32..8), 0..6),
        start_ns in 0u64..1_000_000,
    ) {
        let machine = crowded();
        let programs = Programs::new(vec![&first, &second]).expect("programs");
        let threads = first.threads.len() as u32;
        let starts = format!("[[program]]\n[[program]]\nstart_ns = {start_ns}\n");
        let pinned: String = moves
            .iter()
            .map(|(thread, at_ns, cpu)| {
                format!("[[move]]\nthread = {}\nat_ns = {at_ns}\ncpu = {cpu}\n", thread % threads)
            })
            .collect();
        let schedules = [
            starts.clone() + &pinned,
            format!("scheduler = \"affinity\"\naffinity_ns = {}\n{starts}", start_ns % 1000),
            format!("scheduler = \"partition\"\n{starts}"),
        ];
        let all = first.threads.iter().chain(&second.threads);
        let all = all.flat_map(|thread| &thread.1).flat_map(|batch| &batch.misses);
        let demand = |miss: &&Miss| matches!(miss.served, Served::Memory | Served::OtherCache | Served::Upgrade);
        let misses = all.filter(demand).count() as u64;
        let jobs: Vec<Job> = schedules
            .iter()
            .flat_map(|schedule| ["first-touch", "migrate-replicate"].map(|name| scheduled(name, schedule)))
            .collect();
        let outcomes = simulate(&programs, &machine, &jobs, 1).expect("simulates");
        prop_assert_eq!(&simulate(&programs, &machine, &jobs, 3).expect("simulates"), &outcomes);
        for outcome in &outcomes {
            prop_assert_eq!(outcome.misses, misses);
            for thread in &outcome.threads {
                let parts = thread.split.total_ns();
                prop_assert!((thread.time_ns - parts).abs() <= 1e-9 * parts.max(1.0), "{:?}", thread);
            }
        }
    }
}

/// The time that one thread runs alone, before and after, is not part of the parallel time.
#[test]
fn the_parallel_part_is_from_the_second_thread_to_the_last() {
    let machine = machine(2, CLOCK);
    let signal = |sequence| TraceEvent::Signal { sequence };
    let resume = TraceEvent::Resume {
        after: 2,
        waited_instructions: 0,
    };
    // The first thread runs for 1000 ns and a miss of 100 ns, starts the second thread, waits for it 50 ns later, and
    // runs alone for 500 ns.
    let first = thread(
        0,
        0,
        0,
        batch(
            vec![load(1000, 0), load(500, 0)],
            vec![(1, 0, signal(1)), (1, 50, resume)],
        ),
    );
    let second = thread(1, 1, 1, batch(vec![load(400, 1)], vec![(1, 0, signal(2))]));
    let both = one(
        &trace(2, vec![first.clone(), second]),
        &machine,
        job("first-touch", &[]),
    );
    assert_eq!(both.time_ns, 1100.0 + 500.0 + 600.0);
    // The second thread has its CPU for 500 ns; the first waits during the last 450 ns of these.
    assert_eq!(both.parallel_ns, 50.0);
    let alone = one(&trace(2, vec![first]), &machine, job("first-touch", &[]));
    assert_eq!(alone.parallel_ns, 0.0);
}
