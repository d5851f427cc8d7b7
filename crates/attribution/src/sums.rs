//! Sums that do not depend on the order of additions: fixed-point integers. Results are therefore the same with any
//! number of workers.

use nearpage_recording::AccessKind;

use crate::OperationTotals;

/// Fixed-point unit of weights.
const WEIGHT_ONE: f64 = 65536.0;
/// Fixed-point unit of nanoseconds.
const COST_ONE: f64 = 256.0;
/// Largest weight and cost of a single access, as damaged recordings may have any value. Sums saturate.
const WEIGHT_MAX: f32 = 1e9;
const COST_MAX_NS: f32 = 1e12;

/// Contribution of one access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub weight: u64,
    pub cost: u64,
    pub store: bool,
}

impl Amount {
    /// Negative values and NaN count as 0.
    #[inline]
    pub fn new(weight: f32, cost_ns: f32, kind: AccessKind) -> Amount {
        Amount {
            weight: (f64::from(weight.min(WEIGHT_MAX)) * WEIGHT_ONE) as u64,
            cost: (f64::from(cost_ns.min(COST_MAX_NS)) * COST_ONE) as u64,
            store: kind == AccessKind::Store,
        }
    }
}

/// Converts a fixed-point weight into accesses.
pub(crate) fn accesses(weight: u64) -> f64 {
    weight as f64 / WEIGHT_ONE
}

/// Converts a fixed-point cost into nanoseconds.
pub(crate) fn nanoseconds(cost: u64) -> f64 {
    cost as f64 / COST_ONE
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperationSum {
    pub weight: u64,
    pub remote: u64,
    pub node_known: u64,
    pub cost: u64,
    pub remote_cost: u64,
}

impl OperationSum {
    #[inline]
    pub fn add(&mut self, amount: Amount, remote: Option<bool>) {
        self.weight = self.weight.saturating_add(amount.weight);
        self.cost = self.cost.saturating_add(amount.cost);
        if let Some(remote) = remote {
            self.node_known = self.node_known.saturating_add(amount.weight);
            let (weight, cost) = match remote {
                true => (amount.weight, amount.cost),
                false => (0, 0),
            };
            self.remote = self.remote.saturating_add(weight);
            self.remote_cost = self.remote_cost.saturating_add(cost);
        }
    }

    pub fn merge(&mut self, other: &OperationSum) {
        self.weight = self.weight.saturating_add(other.weight);
        self.remote = self.remote.saturating_add(other.remote);
        self.node_known = self.node_known.saturating_add(other.node_known);
        self.cost = self.cost.saturating_add(other.cost);
        self.remote_cost = self.remote_cost.saturating_add(other.remote_cost);
    }

    pub fn totals(&self) -> OperationTotals {
        OperationTotals {
            count: accesses(self.weight),
            remote: accesses(self.remote),
            node_known: accesses(self.node_known),
            cost_ns: nanoseconds(self.cost),
            remote_cost_ns: nanoseconds(self.remote_cost),
        }
    }
}

/// Sum of squared weights, from which the effective number of samples follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Squares(u128);

impl Squares {
    #[inline]
    pub fn add(&mut self, amount: Amount) {
        // Weights have at most 46 bits, so the sum cannot overflow for any recording.
        self.0 += u128::from(amount.weight) * u128::from(amount.weight);
    }

    pub fn merge(&mut self, other: Squares) {
        self.0 += other.0;
    }

    /// Accesses per effective sample (Kish): a recording with samples of this one weight would be as informative.
    /// `sum` is the sum of weights.
    pub fn sample_weight(self, sum: u64) -> f64 {
        match sum {
            0 => 0.0,
            sum => self.0 as f64 / sum as f64 / WEIGHT_ONE,
        }
    }
}

/// Loads and stores of one page by one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellSum {
    pub loads: u64,
    pub stores: u64,
    pub cost: u64,
    pub samples: u64,
}

impl CellSum {
    #[inline]
    pub fn add(&mut self, amount: Amount) {
        self.cost = self.cost.saturating_add(amount.cost);
        // Adds 0 to the other operation instead of branching, as the branch would be unpredictable.
        let stored = if amount.store { amount.weight } else { 0 };
        self.stores = self.stores.saturating_add(stored);
        self.loads = self.loads.saturating_add(amount.weight - stored);
        self.samples += 1;
    }

    pub fn merge(&mut self, other: &CellSum) {
        self.loads = self.loads.saturating_add(other.loads);
        self.stores = self.stores.saturating_add(other.stores);
        self.cost = self.cost.saturating_add(other.cost);
        self.samples += other.samples;
    }
}

/// Sums of one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodeSum {
    pub loads: u64,
    pub stores: u64,
    pub cost: u64,
    pub remote_cost: u64,
}

impl CodeSum {
    #[inline]
    pub fn add(&mut self, amount: Amount, remote: Option<bool>) {
        let stored = if amount.store { amount.weight } else { 0 };
        let far = if remote == Some(true) { amount.cost } else { 0 };
        self.merge(CodeSum {
            loads: amount.weight - stored,
            stores: stored,
            cost: amount.cost,
            remote_cost: far,
        });
    }

    #[inline]
    pub fn merge(&mut self, other: CodeSum) {
        self.loads = self.loads.saturating_add(other.loads);
        self.stores = self.stores.saturating_add(other.stores);
        self.cost = self.cost.saturating_add(other.cost);
        self.remote_cost = self.remote_cost.saturating_add(other.remote_cost);
    }
}
