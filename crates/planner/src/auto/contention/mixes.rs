//! The model that decides and the simulator that replays agree on random mixes of load.

use nearpage_machine::{CpuId, Machine, preset};
use nearpage_recording::trace::{Miss, PageIndex, Served, StepBatch, TracedThread};
use nearpage_recording::{AccessKind, ThreadIndex};
use nearpage_simulator::{Home, Job, MemoryTrace, PlanHomes, SimulatedPolicy, simulate};

use super::{Contention, Demand, Pace, Part};

/// Machines, with unknown bandwidths assumed as for plans.
const MACHINES: [&str; 12] = [
    "altix-4",
    "amd48",
    "carrefour-a",
    "carrefour-b",
    "epyc-8",
    "flash-8",
    "flash-8-contended",
    "intel32",
    "now-8",
    "opteron-4",
    "smile-4",
    "xeon-2",
];
/// Misses that a CPU may have outstanding, and instructions that it may be ahead of the oldest.
const OUTSTANDING: [u32; 5] = [1, 2, 4, 8, 16];
const WINDOWS: [u32; 4] = [32, 72, 128, 224];
const CASES: u64 = 1000;
/// Relative difference that counts as agreement, and share of the cases that have to agree.
const AGREEMENT: f64 = 0.1;
const AGREE_MIN: f64 = 0.95;
/// Most misses of a thread.
const MISSES_MAX: u64 = 2000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(bound)) >> 64) as u64
    }
}

/// Threads, each with a CPU, misses spread over nodes, and computation between misses.
struct Mix {
    machine: Machine,
    trace: MemoryTrace,
    demand: Demand,
    compute_ns: Vec<f64>,
}

impl Mix {
    fn draw(seed: u64) -> Self {
        let mut random = Random(seed);
        let name = MACHINES[random.below(MACHINES.len() as u64) as usize];
        let machine = preset(name).expect(name);
        let assumed = machine.with_assumed_bandwidth();
        let mut machine = assumed.map_or(machine, |assumed| assumed.machine);
        // These misses are no streams.
        machine.prefetcher = None;
        machine.processor.outstanding_misses = Some(OUTSTANDING[random.below(5) as usize]);
        machine.processor.window_instructions = Some(WINDOWS[random.below(4) as usize]);
        let timing = machine.timing().expect(name);
        let instruction_ns = timing.instruction_ns();
        let nodes = machine.nodes.len() as u64;
        let mut cpus: Vec<CpuId> = machine.cpus().as_slice().to_vec();
        let (mut threads, mut compute_ns) = (Vec::new(), Vec::new());
        let mut demand = Demand::default();
        for number in 0..1 + random.below(16.min(cpus.len() as u64)) {
            let cpu = cpus.swap_remove(random.below(cpus.len() as u64) as usize);
            let node = machine
                .nodes
                .iter()
                .position(|node| node.cpus.contains(&cpu));
            let node = node.expect("every CPU has a node");
            // Spread evenly, or mostly on the own node, or mostly on one node.
            let [favourite, share] = [random.below(nodes), random.below(101)];
            let gap = random.below(400);
            let count = MISSES_MAX / 2 + random.below(MISSES_MAX / 2);
            let (mut misses, mut counts) = (Vec::new(), vec![0.0; nodes as usize]);
            let mut instructions = 0;
            for _ in 0..count {
                let page = match random.below(100) < share {
                    true => favourite,
                    false => random.below(nodes),
                };
                let before = random.below(2 * gap + 1);
                instructions += before;
                counts[page as usize] += 1.0;
                misses.push(Miss {
                    instructions: before as u32,
                    page: PageIndex(page as u32),
                    offset: 0,
                    kind: AccessKind::Load,
                    served: Served::Memory,
                    tlb_miss: false,
                    sampled: false,
                    depends_on: 0,
                });
            }
            let thread = ThreadIndex(number as u32);
            let traced = TracedThread {
                thread,
                cpu,
                started_by: 0,
                start_instructions: 0,
            };
            let trace_events = Vec::new();
            threads.push((
                traced,
                vec![StepBatch {
                    misses,
                    trace_events,
                }],
            ));
            compute_ns.push(instructions as f64 * instruction_ns);
            demand.threads[Part::Use as usize].insert(thread, (node, counts));
        }
        Self {
            machine,
            trace: MemoryTrace {
                pages: nodes as usize,
                threads,
            },
            demand,
            compute_ns,
        }
    }

    fn modelled_ns(&self) -> f64 {
        let timing = self.machine.timing().expect("figures");
        let contention = Contention::new(&self.machine, &timing);
        let pace = |thread: ThreadIndex| {
            let compute_ns = self.compute_ns[thread.0 as usize];
            let (_, counts) = &self.demand.threads[Part::Use as usize][&thread];
            Pace {
                compute_ns,
                gap_ns: compute_ns / counts.iter().sum::<f64>(),
            }
        };
        contention.time_ns(&self.demand, pace, 1.0).slowest_ns
    }

    fn simulated_ns(&self) -> f64 {
        let homes = (0..self.trace.pages).map(|node| Some(Home::Node(node as u16)));
        let plan = PlanHomes {
            homes: homes.collect(),
            ..PlanHomes::default()
        };
        let name = String::new();
        let job = Job::new(SimulatedPolicy::Homes { name, plan });
        let outcomes = simulate(&self.trace, &self.machine, &[job], 1).expect("simulates");
        outcomes[0].time_ns
    }
}

#[test]
fn model_and_simulator_agree_on_random_mixes_of_load() {
    let mut errors: Vec<(f64, u64, String)> = Vec::new();
    for seed in 0..CASES {
        let mix = Mix::draw(seed);
        let error = mix.modelled_ns() / mix.simulated_ns() - 1.0;
        let processor = mix.machine.processor;
        errors.push((error, seed, format!("{} {:?}", mix.machine.name, processor)));
    }
    errors.sort_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    let agree = errors
        .iter()
        .filter(|error| error.0.abs() <= AGREEMENT)
        .count();
    let worst = &errors[errors.len().saturating_sub(8)..];
    let median = &errors[errors.len() / 2];
    println!("{agree} of {CASES} agree within {AGREEMENT}; median {median:?}; worst {worst:?}");
    assert!(
        agree as f64 >= AGREE_MIN * CASES as f64,
        "{agree} agree; worst {worst:?}"
    );
}
