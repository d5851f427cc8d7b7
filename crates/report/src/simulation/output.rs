//! What simulations came to, as JSON.

use std::collections::BTreeMap;

use nearpage_simulator::{MoveSplit, Outcome, Split};
use schemars::JsonSchema;
use serde::Serialize;

use super::course::{MovementsOutput, TimelineOutput, pretty};
use super::{Simulation, ThreadsElsewhere};

/// What `simulate --json` prints. Times of threads are sums over them. Null: there is no such figure.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SimulationOutput<'a> {
    /// Version of this form.
    version: u32,
    /// The machine's name.
    machine: &'a str,
    /// The recording's folder; of several, a list.
    recording: Recordings<'a>,
    /// How many threads there were.
    threads: usize,
    /// What was assumed, what is approximate.
    notes: &'a [String],
    /// Plans for threads that run elsewhere than they were recorded.
    threads_elsewhere: &'a [ThreadsElsewhere],
    /// A result for each policy.
    results: Vec<PolicyOutput<'a>>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Recordings<'a> {
    One(&'a str),
    Several(&'a [String]),
}

/// A number where it is one.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum ParameterValue<'a> {
    Number(u64),
    Text(&'a str),
}

/// What one policy came to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct PolicyOutput<'a> {
    /// The policy.
    policy: &'a str,
    /// Every parameter that the result depends on.
    parameters: BTreeMap<&'a str, ParameterValue<'a>>,
    /// Simulated time from the first thread's start to the last one's end, or of the marked phases.
    time_ns: f64,
    /// Of that, from when two threads first had their CPUs at once to when they last did.
    parallel_ns: f64,
    /// Of several recordings, each one's time; null for one.
    program_ns: Option<Vec<f64>>,
    /// Executing, cache hits and TLB refills included.
    compute_ns: f64,
    /// Stalled on the own node's memory.
    local_stall_ns: f64,
    /// Stalled on another node's memory.
    remote_stall_ns: f64,
    /// Moving pages and threads.
    move_ns: f64,
    /// Waiting for other threads, and for the CPU.
    wait_ns: f64,
    /// References to memory or another cache, upgrades included.
    misses: u64,
    /// Share of these to the own node.
    local_share: f64,
    /// Mean time from a local miss to its data, queues included.
    local_latency_ns: Option<f64>,
    /// Mean time from a remote miss to its data, queues included.
    remote_latency_ns: Option<f64>,
    /// Standard deviation over mean of the controllers' load.
    controller_imbalance: f64,
    /// Standard deviation over mean of the links' use.
    link_imbalance: Option<f64>,
    /// Requests that each node's controller served.
    controller_load: &'a [u64],
    /// Mean over links of the share of time that each was busy.
    link_use_mean: Option<f64>,
    /// Misses in a thousand instructions.
    misses_per_kilo_instruction: Option<f64>,
    /// Without the time that threads wait.
    instructions_per_cycle: Option<f64>,
    /// Pages migrated.
    migrated: u64,
    /// Pages replicated.
    replicated: u64,
    /// Pages moved to spread load.
    interleaved: u64,
    /// Pages replicated and then written to.
    collapsed: u64,
    /// Fresh copies for nodes that had lost theirs to a store.
    refreshed: u64,
    /// Replicas given up under memory pressure.
    reclaimed: u64,
    /// Moves of a page back to where it came from.
    ping_pong: u64,
    /// Moves of a page that had moved before.
    multiple: u64,
    /// Moves away from a node that had missed on the page more than the new one.
    incorrect: u64,
    /// Pages in use with replicas, over time.
    pages_mean: f64,
    /// The most at any time.
    pages_max: u64,
    /// What moves went to, where the machine has the cost of each step.
    move_split: Option<MoveSplit>,
    /// By the machine's figures.
    energy_j: Option<f64>,
    /// Threads moved to other CPUs: other misses would have been.
    estimated: bool,
    /// Times that a thread went on on another CPU.
    threads_moved: u64,
    /// Cache lines that threads were charged for after that.
    refilled_lines: u64,
    /// What happened over time; null with `--movements 0`.
    timeline: Option<TimelineOutput>,
    /// What pages did; null with `--movements 0`.
    movements: Option<MovementsOutput>,
}

impl<'a> SimulationOutput<'a> {
    fn new(simulation: &Simulation<'a>) -> Self {
        let outcomes = simulation.outcomes;
        Self {
            version: nearpage_recording::JSON_VERSION,
            machine: simulation.machine,
            recording: match simulation.recordings {
                [one] => Recordings::One(one),
                several => Recordings::Several(several),
            },
            threads: outcomes.first().map_or(0, |outcome| outcome.threads.len()),
            notes: simulation.notes,
            threads_elsewhere: simulation.threads_elsewhere,
            results: outcomes
                .iter()
                .map(|outcome| PolicyOutput::new(outcome, simulation))
                .collect(),
        }
    }
}

impl<'a> PolicyOutput<'a> {
    fn new(outcome: &'a Outcome, simulation: &Simulation<'_>) -> Self {
        let value = |text: &'a str| match text.parse() {
            Ok(number) => ParameterValue::Number(number),
            Err(_) => ParameterValue::Text(text),
        };
        let parameters = outcome.parameters.iter();
        let Split {
            compute_ns,
            local_stall_ns,
            remote_stall_ns,
            move_ns,
            wait_ns,
        } = outcome.split;
        let movements = outcome.movements.as_ref();
        Self {
            policy: &outcome.policy,
            parameters: parameters
                .map(|(name, text)| (*name, value(text)))
                .collect(),
            time_ns: outcome.time_ns,
            parallel_ns: outcome.parallel_ns,
            program_ns: Some(outcome.program_ns()).filter(|programs| !programs.is_empty()),
            compute_ns,
            local_stall_ns,
            remote_stall_ns,
            move_ns,
            wait_ns,
            misses: outcome.misses,
            local_share: outcome.local_share(),
            local_latency_ns: outcome.local_latency_ns,
            remote_latency_ns: outcome.remote_latency_ns,
            controller_imbalance: outcome.controller_imbalance(),
            link_imbalance: outcome.link_imbalance(),
            controller_load: &outcome.controller_load,
            link_use_mean: outcome.link_use_mean(),
            misses_per_kilo_instruction: outcome.misses_per_kilo_instruction(),
            instructions_per_cycle: outcome.instructions_per_cycle(),
            migrated: outcome.migrated,
            replicated: outcome.replicated,
            interleaved: outcome.interleaved,
            collapsed: outcome.collapsed,
            refreshed: outcome.refreshed,
            reclaimed: outcome.reclaimed,
            ping_pong: outcome.ping_pong,
            multiple: outcome.multiple,
            incorrect: outcome.incorrect,
            pages_mean: outcome.pages_mean,
            pages_max: outcome.pages_max,
            move_split: outcome.move_split,
            energy_j: outcome.energy_j,
            estimated: outcome.estimated(),
            threads_moved: outcome.threads_moved,
            refilled_lines: outcome.refilled_lines,
            timeline: outcome.timeline.as_ref().map(TimelineOutput::from),
            movements: movements
                .map(|kept| MovementsOutput::new(kept, simulation.page_bytes, simulation.objects)),
        }
    }
}

/// The results as JSON.
pub fn simulation_json(simulation: &Simulation<'_>) -> String {
    pretty(&SimulationOutput::new(simulation))
}
