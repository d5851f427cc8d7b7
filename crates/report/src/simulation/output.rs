//! JSON of the results of simulations.

use std::collections::BTreeMap;

use nearpage_simulator::{MoveSplit, Outcome, Split};
use schemars::JsonSchema;
use serde::Serialize;

use super::course::{MovementsOutput, TimelineOutput, pretty};
use super::{Simulation, ThreadsElsewhere};

/// What `simulate --json` prints. Times of threads are sums over threads. Null: the figure does not exist.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SimulationOutput<'a> {
    /// Version of this form.
    version: u32,
    /// Name of the machine.
    machine: &'a str,
    /// Folder of the recording; for several recordings, a list.
    recording: Recordings<'a>,
    /// Number of threads.
    threads: usize,
    /// Assumptions and approximations.
    notes: &'a [String],
    /// Plans whose thread layout differs from the recording's.
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

/// A number, or text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum ParameterValue<'a> {
    Number(u64),
    Text(&'a str),
}

/// Result of one policy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct PolicyOutput<'a> {
    /// The policy.
    policy: &'a str,
    /// All parameters on which the result depends.
    parameters: BTreeMap<&'a str, ParameterValue<'a>>,
    /// Simulated time from the first thread's start to the last thread's end, or of the marked phases.
    time_ns: f64,
    /// Time from when two threads first had CPUs at once to when they last did.
    parallel_ns: f64,
    /// For several recordings, the time of each; null for one.
    program_ns: Option<Vec<f64>>,
    /// Time of executing instructions, including cache hits and TLB refills.
    compute_ns: f64,
    /// Stall time for the own node's memory.
    local_stall_ns: f64,
    /// Stall time for another node's memory.
    remote_stall_ns: f64,
    /// Time of moving pages and threads.
    move_ns: f64,
    /// Time of waiting for other threads and for the CPU.
    wait_ns: f64,
    /// References to memory or another cache, including upgrades.
    misses: u64,
    /// Share of misses to the own node.
    local_share: f64,
    /// Mean time from a local miss to its data, including queues.
    local_latency_ns: Option<f64>,
    /// Mean time from a remote miss to its data, including queues.
    remote_latency_ns: Option<f64>,
    /// Standard deviation divided by mean of the controllers' load.
    controller_imbalance: f64,
    /// Standard deviation divided by mean of the links' use.
    link_imbalance: Option<f64>,
    /// Requests that each node's controller served.
    controller_load: &'a [u64],
    /// Mean over links of the share of time in which the link was busy.
    link_use_mean: Option<f64>,
    /// Misses per thousand instructions.
    misses_per_kilo_instruction: Option<f64>,
    /// Instructions per cycle, without the time in which threads wait.
    instructions_per_cycle: Option<f64>,
    /// Pages migrated.
    migrated: u64,
    /// Pages replicated.
    replicated: u64,
    /// Pages that were moved to spread load.
    interleaved: u64,
    /// Pages that were replicated and then written to.
    collapsed: u64,
    /// New copies for nodes whose copy had collapsed after a store.
    refreshed: u64,
    /// Replicas that were given up under memory pressure.
    reclaimed: u64,
    /// Moves of a page back to the node it came from.
    ping_pong: u64,
    /// Moves of a page that had been moved before.
    multiple: u64,
    /// Moves away from a node that had more misses on the page than the new node.
    incorrect: u64,
    /// Number of pages in use including replicas, mean over time.
    pages_mean: f64,
    /// Number of pages in use including replicas, maximum.
    pages_max: u64,
    /// Cost of moves by step, if the machine gives the cost of each step.
    move_split: Option<MoveSplit>,
    /// Energy by the machine's figures.
    energy_j: Option<f64>,
    /// Were threads moved to other CPUs? Then the misses are estimates.
    estimated: bool,
    /// Number of moves of threads to another CPU.
    threads_moved: u64,
    /// Cache lines that moved threads were charged for.
    refilled_lines: u64,
    /// Timeline; null with `--movements 0`.
    timeline: Option<TimelineOutput>,
    /// Movements of pages; null with `--movements 0`.
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

/// JSON of the results.
pub fn simulation_json(simulation: &Simulation<'_>) -> String {
    pretty(&SimulationOutput::new(simulation))
}
