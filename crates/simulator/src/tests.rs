//! Traces and machines for tests; tests of information sources, threads, signals, phases, and refused jobs.

use nearpage_machine::{CpuId, Machine, preset};
use nearpage_recording::trace::{Miss, PageIndex, Served, StepBatch, TraceEvent, TracedThread};
use nearpage_recording::{AccessKind, ThreadIndex};

use crate::{
    Home, Job, MemoryTrace, MoveSplit, Outcome, PlanHomes, SimulatedPolicy, ThreadSteps, Trace,
    simulate,
};

mod agreement;
mod carrefour;
mod effects;
mod interconnect;
mod miss_times;
mod movements;
mod moving;
mod pages;
mod plans;
mod policies;
mod properties;
mod scheduling;
mod shared_data;
mod store_notes;

fn machine(nodes: usize, more: &str) -> Machine {
    let row = |from: usize| {
        let cell = |to: usize| {
            if from == to {
                "100".to_owned()
            } else {
                (200 + 10 * to).to_string()
            }
        };
        format!("[{}]", (0..nodes).map(cell).collect::<Vec<_>>().join(", "))
    };
    let latency = (0..nodes).map(row).collect::<Vec<_>>().join(", ");
    let node = |id: usize| {
        format!(
            "[[node]]\nid = {id}\ncpus = \"{}-{}\"\n",
            4 * id,
            4 * id + 3
        )
    };
    let nodes: String = (0..nodes).map(node).collect();
    let text =
        format!("name = \"test\"\npage_bytes = 4096\nlatency_ns = [{latency}]\n{nodes}{more}");
    Machine::from_toml(&text, "test").expect("machine")
}

/// One instruction a nanosecond.
const CLOCK: &str = "[processor]\nclock_ghz = 1\ncycles_per_instruction = 1\n";

fn load(instructions: u32, page: u32) -> Miss {
    Miss {
        instructions,
        page: PageIndex(page),
        offset: 0,
        kind: AccessKind::Load,
        served: Served::Memory,
        tlb_miss: false,
        sampled: false,
        depends_on: 0,
    }
}

fn store(instructions: u32, page: u32) -> Miss {
    Miss {
        kind: AccessKind::Store,
        ..load(instructions, page)
    }
}

fn thread(
    number: u32,
    cpu: u32,
    started_by: u64,
    batches: Vec<StepBatch>,
) -> (TracedThread, Vec<StepBatch>) {
    let thread = TracedThread {
        thread: ThreadIndex(number),
        cpu: CpuId(cpu),
        started_by,
        start_instructions: 0,
    };
    (thread, batches)
}

fn batch(misses: Vec<Miss>, trace_events: Vec<(usize, u32, TraceEvent)>) -> Vec<StepBatch> {
    vec![StepBatch {
        misses,
        trace_events,
    }]
}

fn trace(pages: usize, threads: Vec<(TracedThread, Vec<StepBatch>)>) -> MemoryTrace {
    MemoryTrace { pages, threads }
}

/// A trace with a thread on each of these CPUs, each with these misses.
fn each(pages: usize, cpus: &[u32], misses: &[Miss]) -> MemoryTrace {
    let threads = cpus.iter().enumerate();
    let all =
        threads.map(|(number, &cpu)| thread(number as u32, cpu, 0, batch(misses.to_vec(), vec![])));
    trace(pages, all.collect())
}

fn job(name: &str, settings: &[(&str, &str)]) -> Job {
    let mut job = Job::new(SimulatedPolicy::from_name(name).expect(name));
    for (key, value) in settings {
        assert_eq!(job.set(key, value), Ok(true), "{key}");
    }
    job
}

fn one(trace: &MemoryTrace, machine: &Machine, job: Job) -> Outcome {
    simulate(trace, machine, &[job], 1)
        .expect("simulates")
        .remove(0)
}

/// Error message of a job on a preset.
fn refusal(machine: &str, job: Job) -> String {
    let machine = preset(machine).expect("preset");
    let refused = simulate(&each(1, &[0], &[]), &machine, &[job], 1);
    refused.expect_err("refused").to_string()
}

/// All pages start on node 0: thread 0 touches them before the other threads start.
fn touched_by_first(pages: u32, others: Vec<(u32, Vec<Miss>)>) -> MemoryTrace {
    let mut touches: Vec<_> = (0..pages)
        .map(|page| (0, 0, TraceEvent::FirstTouch(PageIndex(page))))
        .collect();
    touches.push((0, 0, TraceEvent::Signal { sequence: 1 }));
    let mut threads = vec![thread(0, 0, 0, batch(vec![], touches))];
    for (number, (cpu, misses)) in others.into_iter().enumerate() {
        threads.push(thread(number as u32 + 1, cpu, 1, batch(misses, vec![])));
    }
    trace(pages as usize, threads)
}

fn near(found: f64, expected: f64, share: f64) {
    assert!(
        (found - expected).abs() <= share * expected,
        "{found} is not {expected}"
    );
}

/// Loads of all pages in turn, `rounds` times.
fn reads(pages: u32, rounds: usize) -> Vec<Miss> {
    (0..pages)
        .map(|page| load(0, page))
        .collect::<Vec<_>>()
        .repeat(rounds)
}

/// Node 2 loads four pages that are on node 0.
fn remote_reader() -> MemoryTrace {
    touched_by_first(4, vec![(8, reads(4, 5000))])
}

#[test]
fn samples_and_tlb_misses_inform_as_well() {
    let machine = preset("flash-8").expect("preset");
    let count = |settings: &[(&str, &str)], misses: usize, tlb_miss: bool| {
        let miss = Miss {
            tlb_miss,
            ..load(0, 0)
        };
        let trace = touched_by_first(1, vec![(5, vec![miss; misses])]);
        one(&trace, &machine, job("migrate", settings)).migrated
    };
    // Sampling one in ten, at distances of 1 to 19 misses, needs 13 samples.
    assert_eq!(count(&[("source", "sampled-cache")], 12, false), 0);
    assert_eq!(count(&[("source", "sampled-cache")], 247, false), 1);
    assert_eq!(count(&[("source", "tlb")], 1000, false), 0);
    assert_eq!(count(&[("source", "tlb")], 128, true), 1);
    assert_eq!(
        count(&[("source", "sampled-tlb"), ("every", "64")], 1, true),
        0
    );
    assert_eq!(
        count(&[("source", "sampled-tlb"), ("every", "64")], 254, true),
        1
    );
}

/// A loop accesses two pages in turn. Sampling at even distances would show one of them only.
#[test]
fn samples_show_both_of_what_a_loop_takes_turns_at() {
    let machine = preset("flash-8").expect("preset");
    let turns: Vec<Miss> = (0..1000).map(|turn| load(0, turn % 2)).collect();
    let trace = touched_by_first(2, vec![(5, turns)]);
    let job = job("migrate", &[("source", "sampled-cache")]);
    assert_eq!(one(&trace, &machine, job).migrated, 2);
}

#[test]
fn loads_are_sampled_by_their_latency() {
    let machine = preset("flash-8").expect("preset");
    let moved = |settings: &[(&str, &str)], miss: Miss, count: usize| {
        let settings = [&[("source", "loads")], settings].concat();
        let trace = touched_by_first(1, vec![(5, vec![miss; count])]);
        one(&trace, &machine, job("migrate", &settings)).migrated
    };
    // A remote miss takes 1200 ns, which is 360 cycles at 300 MHz; 13 samples of one in ten are needed.
    assert_eq!(moved(&[], load(0, 0), 12), 0);
    assert_eq!(moved(&[], load(0, 0), 247), 1);
    assert_eq!(moved(&[], store(0, 0), 1000), 0, "loads only");
    assert_eq!(moved(&[("min_latency", "360")], load(0, 0), 247), 1);
    assert_eq!(moved(&[("min_latency", "361")], load(0, 0), 1000), 0);
    let hit = Miss {
        served: Served::L2,
        ..load(0, 0)
    };
    assert_eq!(
        moved(&[("every", "1")], hit, 1000),
        0,
        "50 ns are 15 cycles"
    );
    assert_eq!(moved(&[("every", "1"), ("min_latency", "15")], hit, 128), 1);
}

#[test]
fn a_clock_sees_the_time_that_is_lost() {
    let machine = preset("flash-8").expect("preset");
    let moved = |settings: &[(&str, &str)], count: usize| {
        let settings = [&[("source", "clock")], settings].concat();
        let trace = touched_by_first(1, vec![(5, vec![load(77, 0); count])]);
        one(&trace, &machine, job("migrate", &settings)).migrated
    };
    // A sample stands for the time of ten remote misses; 13 samples are needed.
    assert_eq!(moved(&[], 129), 0);
    assert_eq!(moved(&[], 130), 1);
    assert_eq!(moved(&[("every", "1")], 127), 0);
    assert_eq!(moved(&[("every", "1")], 128), 1);
    // Local misses take a quarter of the time, so it takes four times as many to make the page shared.
    let kinds = |local: usize| {
        let first = batch(
            vec![load(0, 0); local],
            vec![(local, 0, TraceEvent::Signal { sequence: 1 })],
        );
        let second = batch(vec![load(0, 0); 128], vec![]);
        let trace = trace(1, vec![thread(0, 0, 0, first), thread(1, 5, 1, second)]);
        let settings = [("source", "clock"), ("every", "1")];
        let outcome = one(&trace, &machine, job("migrate-replicate", &settings));
        (outcome.migrated, outcome.replicated)
    };
    assert_eq!(kinds(4 * 32), (1, 0));
    assert_eq!(kinds(4 * 33), (0, 1));
}

#[test]
fn several_outstanding_misses_overlap_within_the_window() {
    let two = machine(
        1,
        &format!("{CLOCK}outstanding_misses = 2\nwindow_instructions = 50\n"),
    );
    let time = |misses: &[Miss]| one(&each(1, &[0], misses), &two, job("first-touch", &[])).time_ns;
    // Two misses overlap; the third waits for the first.
    assert_eq!(time(&[load(0, 0), load(10, 0)]), 110.0);
    assert_eq!(time(&[load(0, 0), load(10, 0), load(10, 0)]), 200.0);
    // The CPU stops 50 instructions after the first miss.
    assert_eq!(time(&[load(0, 0), load(60, 0)]), 100.0 + 10.0 + 100.0);
    // The CPU waits for instruction fetches at once.
    let fetch = Miss {
        kind: AccessKind::Fetch,
        ..load(0, 0)
    };
    assert_eq!(time(&[fetch, load(10, 0)]), 210.0);
}

#[test]
fn signals_are_waited_for_and_missing_ones_are_not_for_ever() {
    let machine = machine(1, CLOCK);
    let wait = |after, waited_instructions| TraceEvent::Resume {
        after,
        waited_instructions,
    };
    let first = batch(vec![], vec![(0, 500, TraceEvent::Signal { sequence: 1 })]);
    let second = batch(
        vec![load(0, 0)],
        vec![(0, 20, wait(1, 0)), (1, 0, wait(0, 30))],
    );
    let trace_ = trace(1, vec![thread(0, 0, 0, first), thread(1, 1, 0, second)]);
    let outcome = one(&trace_, &machine, job("first-touch", &[]));
    assert_eq!(outcome.threads[1].split.wait_ns, 480.0 + 30.0);
    assert_eq!(outcome.time_ns, 500.0 + 100.0 + 30.0);
    assert_eq!(outcome.signals_missing, 0);
    // Two threads wait for each other, and a third is never started.
    let first = batch(
        vec![],
        vec![
            (0, 500, wait(7, 40)),
            (0, 0, TraceEvent::Signal { sequence: 8 }),
        ],
    );
    let second = batch(
        vec![],
        vec![
            (0, 20, wait(8, 1000)),
            (0, 0, TraceEvent::Signal { sequence: 7 }),
        ],
    );
    let third = batch(vec![load(5, 0)], vec![]);
    let trace_ = trace(
        1,
        vec![
            thread(0, 0, 0, first),
            thread(1, 1, 0, second),
            thread(2, 2, 99, third),
        ],
    );
    let outcome = one(&trace_, &machine, job("first-touch", &[]));
    assert_eq!(outcome.signals_missing, 2);
    assert_eq!(
        (outcome.threads[0].time_ns, outcome.threads[1].time_ns),
        (540.0, 540.0)
    );
    assert_eq!(outcome.misses, 1);
}

#[test]
fn threads_of_one_cpu_take_turns() {
    let machine = machine(1, CLOCK);
    let outcome = one(
        &each(1, &[0, 0], &[load(900, 0); 100]),
        &machine,
        job("first-touch", &[("slice_ns", "10000")]),
    );
    assert_eq!(outcome.time_ns, 2.0 * 100.0 * 1000.0);
    let waited: Vec<f64> = outcome
        .threads
        .iter()
        .map(|thread| thread.split.wait_ns)
        .collect();
    assert!(
        waited.iter().all(|&wait| wait >= 90_000.0),
        "both wait: {waited:?}"
    );
    // While a thread waits, the other one of its CPU runs.
    let nap = TraceEvent::Resume {
        after: 0,
        waited_instructions: 1000,
    };
    let sleeper = batch(vec![load(0, 0)], vec![(0, 0, nap)]);
    let worker = batch(vec![load(900, 0)], vec![]);
    let trace = trace(1, vec![thread(0, 0, 0, sleeper), thread(1, 0, 0, worker)]);
    assert_eq!(
        one(&trace, &machine, job("first-touch", &[])).time_ns,
        1100.0
    );
}

#[test]
fn a_thread_that_moves_misses_from_its_new_node() {
    let machine = preset("flash-8").expect("preset");
    let misses = vec![load(0, 0); 4];
    let moves = vec![(2, 0, TraceEvent::Move(CpuId(3)))];
    let trace = trace(1, vec![thread(0, 0, 0, batch(misses, moves))]);
    let outcome = one(&trace, &machine, job("first-touch", &[]));
    assert_eq!((outcome.local, outcome.remote()), (2, 2));
    let outcome = one(&trace, &machine, job("post-facto", &[]));
    assert_eq!((outcome.local, outcome.remote()), (2, 2));
}

#[test]
fn only_the_stable_phase_counts() {
    let machine = machine(2, CLOCK);
    let mark = |begin| TraceEvent::Mark { begin };
    let misses = vec![load(10, 0); 6];
    let marks = vec![
        (2, 0, mark(true)),
        (3, 0, mark(false)),
        (4, 0, mark(true)),
        (6, 5, mark(false)),
    ];
    let outcome = one(
        &trace(1, vec![thread(0, 0, 0, batch(misses, marks))]),
        &machine,
        job("first-touch", &[]),
    );
    assert_eq!(outcome.misses, 3);
    assert_eq!(outcome.time_ns, 3.0 * 110.0 + 5.0);
    near(outcome.pages_mean, 1.0, 1e-9);
}

#[test]
fn ping_pong_and_multiple_migrations_are_counted() {
    let machine = preset("flash-8").expect("preset");
    // Node 5 misses 128 times, then node 0, then node 5 again, each in another interval.
    let turn = |first: u64| {
        vec![
            (
                0,
                0,
                TraceEvent::Resume {
                    after: first,
                    waited_instructions: 0,
                },
            ),
            (
                128,
                40_000_000,
                TraceEvent::Signal {
                    sequence: first + 1,
                },
            ),
        ]
    };
    let zero = batch(vec![load(0, 0); 128], turn(2));
    let mut five = batch(vec![load(0, 0); 128], turn(1));
    five.extend(batch(vec![load(0, 0); 128], turn(3)));
    let start = vec![
        (0, 0, TraceEvent::FirstTouch(PageIndex(0))),
        (0, 0, TraceEvent::Signal { sequence: 1 }),
    ];
    let trace = trace(
        1,
        vec![
            thread(0, 0, 0, [batch(vec![], start), zero].concat()),
            thread(1, 5, 0, five),
        ],
    );
    let outcome = one(&trace, &machine, job("migrate", &[]));
    assert_eq!(
        (outcome.migrated, outcome.multiple, outcome.ping_pong),
        (3, 2, 2)
    );
    assert_eq!(outcome.incorrect, 0);
}

#[test]
fn a_trace_for_another_machine_is_refused() {
    let trace = each(1, &[77], &[load(0, 0)]);
    let error = simulate(
        &trace,
        &preset("flash-8").expect("preset"),
        &[job("first-touch", &[])],
        1,
    );
    assert!(
        error
            .expect_err("CPU")
            .to_string()
            .starts_with("the trace has a thread on CPU 77")
    );
    let trace = each(1, &[0], &[load(0, 1)]);
    let error = simulate(
        &trace,
        &preset("flash-8").expect("preset"),
        &[job("post-facto", &[])],
        1,
    );
    assert_eq!(
        error.expect_err("page").to_string(),
        "the trace names page 1, but has 1 page: it is damaged"
    );
}

#[test]
fn times_beyond_the_clocks_range_are_refused() {
    let refused = |more: &str, name: &str, settings: &[(&str, &str)]| {
        let trace = touched_by_first(
            1,
            vec![(5, vec![load(0, 0); 130]), (6, vec![load(0, 0); 130])],
        );
        let result = simulate(&trace, &machine(2, more), &[job(name, settings)], 1);
        let error = result.expect_err(more).to_string();
        assert!(
            error.contains("beyond the two and a half hours"),
            "{more}: {error}"
        );
    };
    let slow_memory = "[memory]\nbandwidth_bytes_per_s = 1e-300\n";
    refused(slow_memory, "first-touch", &[]);
    refused("[memory]\ndirectory_ns = 1e300\n", "first-touch", &[]);
    let slow_link = "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1e-300\n";
    refused(slow_link, "first-touch", &[]);
    let moving = [("trigger", "16"), ("hold", "4")];
    refused("[moves]\nfixed_ns = 1e300\n", "migrate", &moving);
    let mut far = machine(2, "");
    if let Some(latency_ns) = &mut far.latency_ns {
        latency_ns[1][0] = Some(1e300);
    }
    let trace = touched_by_first(1, vec![(5, vec![load(0, 0)])]);
    let error = simulate(&trace, &far, &[job("first-touch", &[])], 1);
    assert!(error.is_err());
}
