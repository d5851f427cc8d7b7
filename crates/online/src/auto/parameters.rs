//! Parameters of `auto`, and the costs of moves from the parameters or the machine.

use super::threads::Refill;
use crate::ParameterError;
use crate::parameter::parameters;

const LARGE: u64 = 1_000_000_000_000;

parameters! {
    /// Named parameters, which are the same for all programs. None of them is from a paper.
    pub struct AutoParameters {
        check_ns = 250_000, 1..=LARGE, "time between looks at the load of controllers";
        budget_permille = 10, 0..=1000, "thousandths of the time that moves may cost beyond what they have saved";
        errors = 2, 0..=100, "standard errors by which a gain must exceed the cost of a move, until moves have paid for themselves";
        remote_ns = 0, 0..=LARGE, "what an observed remote reference stands to save; 0: as the machine says";
        cost_ns = 0, 0..=LARGE, "cost of moving a page; 0: as the machine says";
        collapse_ns = 0, 0..=LARGE, "cost of a store to a page that has copies; 0: as the machine says";
        collapse_permille = 50, 0..=1000, "copies in a thousand that are taken to be stored to, until copies have shown it";
        replication = 1, 0..=1, "0: no page is replicated";
        move_threads = 1, 0..=1, "0: threads stay where they are";
        refill_ns = 0, 0..=LARGE, "cost of moving a thread, whose caches are cold then; 0: as the machine says";
    }
}

/// Times of a machine's memory, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryTimes {
    /// Unloaded latency, `[CPU's node][memory's node]`.
    pub latency_ns: Vec<Vec<f64>>,
    /// Time of a controller for a request; 0: unlimited bandwidth.
    pub service_ns: f64,
    /// Moving a page.
    pub move_ns: f64,
    /// A store to a page with copies, which collapses them.
    pub collapse_ns: f64,
    /// Lines of a CPU's private caches, which a thread that moves to the CPU has to fill; 0: unknown.
    pub private_lines: u64,
}

/// Costs of moves, from the parameters or else from the machine.
pub(super) struct Costs {
    /// Moving a page.
    pub cost_ns: f64,
    /// A store to a page with copies.
    pub collapse_ns: f64,
    pub refill: Refill,
    /// Unloaded latency, `[CPU's node × nodes + memory's node]`.
    pub latency_ns: Vec<f64>,
}

impl Costs {
    pub fn of(
        parameters: &AutoParameters,
        nodes: usize,
        times: Option<&MemoryTimes>,
    ) -> Result<Self, ParameterError> {
        let missing = |name: &str| {
            ParameterError(format!(
                "auto: {name}=0 leaves it to the machine, and nothing is known of its memory; give a number of nanoseconds"
            ))
        };
        let cost_ns = match (parameters.cost_ns, times) {
            (0, Some(times)) => times.move_ns,
            (0, None) => return Err(missing("cost_ns")),
            (ns, _) => ns as f64,
        };
        let collapse_ns = match (parameters.collapse_ns, times) {
            (0, Some(times)) => times.collapse_ns,
            (0, None) => cost_ns,
            (ns, _) => ns as f64,
        };
        let refill = match (parameters.refill_ns, times) {
            (0, Some(times)) if times.private_lines > 0 => {
                Refill::References(times.private_lines as f64)
            }
            (0, _) => Refill::Ns(cost_ns),
            (ns, _) => Refill::Ns(ns as f64),
        };
        let latency_ns: Vec<f64> = match (parameters.remote_ns, times) {
            (0, Some(times)) => times.latency_ns.iter().flatten().copied().collect(),
            (0, None) => return Err(missing("remote_ns")),
            (ns, _) => (0..nodes * nodes)
                .map(|pair| {
                    if pair / nodes == pair % nodes {
                        0.0
                    } else {
                        ns as f64
                    }
                })
                .collect(),
        };
        Ok(Self {
            cost_ns,
            collapse_ns,
            refill,
            latency_ns,
        })
    }
}
