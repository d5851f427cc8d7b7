//! `auto`, the online policy of nearpage: moves a page when past references show that the move pays.
//!
//! - **Gain.** For each node, the policy adds up what the observed references to a page would have saved if the page
//!   had been there. An observation counts for the number of references that it stands for. The saving of a reference
//!   is the difference of unloaded latencies and of waits at the controllers, by the load of the last epoch. The future
//!   is unknown: the policy assumes that a page will be used for as long as it has been used, and so will save what it
//!   would have saved. Moving pays once this exceeds the cost (the ski rental rule: never more than twice the cost of
//!   the best decision in hindsight). Each time that the elapsed time has doubled, earlier observations count half.
//!   Only nodes on which threads live count, because ended threads make no more references. CPUs compute while they
//!   wait for memory, and wait for several references at once. A thread cannot have waited for longer than it ran, so
//!   the saving per reference is reduced until the waits fit into the run time.
//! - **Uncertainty.** Observations are counts. The gain less a number of standard errors has to exceed the cost, which
//!   keeps chance from looking like gain. That number falls with the share of their cost that past moves have saved (an
//!   empirical prior). Each further move of a page away from its first-touch node costs twice as much as the one
//!   before, so pages that go back and forth soon stay.
//! - **Budget** ([`migration_budget`]). Moves may cost the program the observed saving of earlier moves plus a small
//!   share of the time. So moves cost no more than that compared to first touch, whatever the policy predicts. A page
//!   that is away may have to go back when threads have ended. The budget holds its loss until then, and the cost of
//!   the move back, in reserve. A page's past saving is computed as its future saving is, with the waits at the
//!   controllers. A page that turns out to be better off on its first-touch node goes back without regard to the
//!   budget: its cost bounds the loss of going, and nothing bounds the loss of staying. While one thread runs alone,
//!   all other users of a page wait for that thread; so a page goes back without any margin as soon as its losses have
//!   paid for the move.
//! - **Threads** ([`threads`]) go to the memory that they use where that pays sooner than moving pages to them.
//! - **Copies.** A page without recent stores gets a copy on a node whose own reads pay for the copy, unless moving the
//!   page pays more. Stores before another node first refers to the page do not count, because they initialise the
//!   page. A copy need not go back, so the budget has to cover its cost twice but holds nothing in reserve. A store to
//!   a copied page doubles the cost of the page's copies. The extra cost of such a store is expected as often as copies
//!   have met a store so far ([`risk`]), and is added to the cost that a copy has to save and the budget has to cover.
//!   Where it costs more than a copy, no more copies await their fate than have lasted, but for one.

mod latency;
mod measured_cost;
mod migration_budget;
mod parameters;
mod propose;
mod risk;
mod threads;

use nearpage_recording::{AccessKind, ThreadIndex};

pub use self::parameters::{AutoParameters, MemoryTimes};

use self::measured_cost::MeasuredCost;
use self::migration_budget::MigrationBudget;
use self::parameters::Costs;
use self::propose::Proposal;
use self::risk::Risk;
use self::threads::{Threads, Weighing};
use super::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, ParameterError, Reason, Setting,
    Survivor, ThreadMove,
};

/// No node.
const NONE: u8 = u8::MAX;
/// Nodes that are evaluated at a time, in vector lanes.
const LANES: usize = 4;
/// Cost of a page that goes back, in moves: the move, and the same amount for its losses before.
const BACK_MOVES: f64 = 2.0;
/// Maximum number of times that a page's cost is doubled.
const DOUBLINGS_MAX: u8 = 16;

#[derive(Clone, Copy, Debug)]
struct Page {
    /// The page's first-touch node.
    first: u8,
    /// How often the elapsed time had doubled when the page was last seen.
    era: u8,
    /// Moves; and stores that collapsed copies.
    moves: u8,
    collapses: u8,
    stores: u16,
    /// A node other than the first has referred to it.
    shared: bool,
    /// The page's home is not its first-touch node.
    away: bool,
    /// The page was first seen after threads had moved: its first-touch node is unknown.
    after_moves: bool,
}

const NEW_PAGE: Page = Page {
    first: NONE,
    era: 0,
    moves: 0,
    collapses: 0,
    stores: 0,
    shared: false,
    away: false,
    after_moves: false,
};

/// The policy `auto`.
#[derive(Clone, Debug)]
pub struct Auto {
    nodes: usize,
    memory_nodes: u64,
    /// Number of references that an observation stands for.
    every: f64,
    check_ns: u64,
    errors: f64,
    /// Cost of moving a page: assumed at first, then measured by moves.
    cost_ns: f64,
    measured_cost: MeasuredCost,
    /// Number of pages that are away from their first-touch node.
    away: u32,
    replication: bool,
    risk: Risk,
    /// `[CPU's node × wait_ns.len() + memory's node]`.
    latency_ns: Vec<f64>,
    service_ns: f64,
    /// Wait at each controller in the last epoch, padded to whole [`LANES`].
    wait_ns: Vec<f64>,
    /// Requests to each controller in the last epoch.
    requests: Vec<f64>,
    /// Number of observed references of a node to a page between two evaluations of the page.
    step: u16,
    pages: Vec<Page>,
    /// `[page × nodes + node]`.
    counts: Vec<u16>,
    epochs: u32,
    era: u8,
    /// Bit n: threads live on node n.
    inhabited: u64,
    /// Recent run time of threads, and total time of their references.
    busy_ns: f64,
    taken_ns: f64,
    /// Upper bound of the share of references' time for which threads wait.
    waited: f64,
    /// In the last epoch one thread ran while the others waited for it.
    one_runs: bool,
    migration_budget: MigrationBudget,
    /// `None`: threads stay where they are.
    threads: Option<Threads>,
}

impl Auto {
    /// Makes the policy with the costs in the parameters, or else the machine's.
    ///
    /// # Errors
    /// Only one node of the machine has memory; or the cost or saving of moving a page is neither known nor given.
    pub fn new(
        parameters: &AutoParameters,
        setting: &Setting,
        times: Option<&MemoryTimes>,
    ) -> Result<Self, ParameterError> {
        let &AutoParameters {
            check_ns,
            budget_permille,
            errors,
            collapse_permille,
            replication,
            move_threads,
            ..
        } = parameters;
        let nodes = setting.nodes;
        if setting.memory_nodes.count_ones() < 2 {
            return Err(ParameterError(
                "auto: memory is on one node, and no page could go elsewhere; choose a machine with two or more"
                    .to_owned(),
            ));
        }
        let Costs {
            cost_ns,
            collapse_ns,
            refill,
            latency_ns,
        } = Costs::of(parameters, nodes, times)?;
        let least = latency_ns.iter().copied().fold(f64::MAX, f64::min);
        let most = latency_ns.iter().copied().fold(0.0, f64::max);
        let lanes = nodes.next_multiple_of(LANES);
        let mut by_lane_ns = vec![0.0; nodes * lanes];
        for (to, from) in by_lane_ns.chunks_mut(lanes).zip(latency_ns.chunks(nodes)) {
            to[..nodes].copy_from_slice(from);
        }
        let every = f64::from(setting.every.max(1));
        // So a page can pay for its move after four evaluations at the earliest.
        let step = cost_ns / (every * (most - least).max(1.0)) / 4.0;
        Ok(Self {
            nodes,
            memory_nodes: setting.memory_nodes & u64::MAX >> (64 - nodes.clamp(1, 64)),
            every,
            check_ns,
            errors: errors as f64,
            cost_ns,
            measured_cost: MeasuredCost::new(cost_ns),
            away: 0,
            replication: replication != 0,
            risk: Risk::new(collapse_ns, collapse_permille as f64 / 1000.0),
            latency_ns: by_lane_ns,
            service_ns: times.map_or(0.0, |times| times.service_ns),
            wait_ns: vec![0.0; lanes],
            requests: vec![0.0; nodes],
            step: step.clamp(1.0, 4096.0) as u16,
            pages: vec![NEW_PAGE; setting.pages],
            counts: vec![0; setting.pages * nodes],
            epochs: 0,
            era: 0,
            inhabited: u64::MAX,
            busy_ns: 0.0,
            taken_ns: 0.0,
            waited: 1.0,
            one_runs: false,
            migration_budget: MigrationBudget::new(budget_permille as f64 / 1000.0),
            threads: (move_threads != 0)
                .then(|| Threads::new(nodes, setting.cpus_per_node, refill)),
        })
    }

    /// Number of references that an observation stands for, reduced to those that threads wait for.
    #[inline]
    fn waited_for(&self) -> f64 {
        self.every * self.waited
    }

    /// Standard errors by which a gain must exceed its cost; fewer if moves have paid back their cost.
    fn errors_left(&self) -> f64 {
        self.errors * (1.0 - self.migration_budget.paid_back(self.cost_ns))
    }

    /// The copy that serves a node.
    #[inline]
    fn serving(&self, node: usize, copies: Copies) -> usize {
        if copies.nodes.is_power_of_two() {
            return usize::from(copies.home);
        }
        self.nearest(node, copies)
    }

    fn nearest(&self, node: usize, copies: Copies) -> usize {
        (0..self.nodes)
            .filter(|&copy| copies.on(copy as u16))
            .min_by(|&a, &b| self.latency(node, a).total_cmp(&self.latency(node, b)))
            .unwrap_or(usize::from(copies.home))
    }

    fn decide(
        &mut self,
        page: u32,
        node: usize,
        thread: ThreadIndex,
        copies: Copies,
    ) -> Option<Action> {
        let first = usize::from(self.pages[page as usize].first);
        let price_ns = self.migration_budget.price_ns(thread, self.cost_ns);
        let affordable = self.migration_budget.free_ns() >= price_ns;
        // If the move is not affordable, only a page that is away from its first-touch node may move (back).
        if !affordable && copies.nodes == 1 << first {
            return None;
        }
        let Proposal {
            kind,
            saving,
            doublings,
            rule,
        } = self.propose(page, node, copies);
        let target = saving.node;
        let moves_home = kind != ActionKind::Replicate;
        let goes_back = moves_home && target == first;
        let risk_ns = match kind {
            ActionKind::Replicate => self.risk.expected_ns(self.cost_ns),
            _ => 0.0,
        };
        let least = match goes_back {
            true => self.cost_ns,
            false => (self.cost_ns + risk_ns) * f64::from(1u32 << doublings.min(DOUBLINGS_MAX)),
        };
        // A move may have to be undone; a copy need not be, but its cost may be lost.
        let back_ns = match kind {
            ActionKind::Replicate => self.cost_ns,
            _ if goes_back => 0.0,
            _ => BACK_MOVES * self.cost_ns,
        };
        let errors = match goes_back {
            true if self.one_runs => 0.0,
            true => self.errors,
            false => self.errors_left(),
        };
        let certain_ns = saving.saved_ns - errors * saving.variance.sqrt();
        let affordable = self.migration_budget.free_ns() >= price_ns + risk_ns + back_ns;
        let allowed = moves_home || self.risk.allows_copy(self.cost_ns);
        if certain_ns <= least || !(affordable || goes_back) || !allowed {
            return None;
        }
        self.migration_budget.pay(thread, self.cost_ns);
        self.risk.copies += u64::from(kind == ActionKind::Replicate);
        let row = page as usize * self.nodes..(page as usize + 1) * self.nodes;
        if moves_home {
            self.set_away(page, !goes_back);
            // The page's load goes to the new home.
            let seen: f64 = self.counts[row.clone()]
                .iter()
                .map(|&count| f64::from(count))
                .sum();
            let rate = seen * self.every / f64::from(self.epochs.max(1));
            let home = usize::from(copies.home);
            self.requests[home] = (self.requests[home] - rate).max(0.0);
            self.requests[target] += rate;
            self.wait();
        }
        let state = &mut self.pages[page as usize];
        let reason = Reason {
            rule,
            counts: self.counts[row.clone()]
                .iter()
                .map(|&count| count.into())
                .collect(),
            writes: state.stores.into(),
            migrations: state.moves.into(),
        };
        if moves_home {
            state.moves = state.moves.saturating_add(1);
            self.counts[row].fill(0);
        }
        Some(Action {
            page,
            kind,
            node: target as u16,
            reason,
        })
    }

    fn move_threads(&mut self, epoch: &Epoch<'_>) {
        let weighing = Weighing {
            latency_ns: &self.latency_ns,
            wait_ns: &self.wait_ns,
            every: self.waited_for(),
            errors: self.errors_left(),
        };
        let Some(threads) = &mut self.threads else {
            return;
        };
        let left = threads.decide(epoch, &weighing, &mut self.migration_budget);
        if left == 0 {
            return;
        }
        // Observed references from a node that threads have left are by threads that are elsewhere now.
        for counts in self.counts.chunks_mut(self.nodes) {
            for (node, count) in counts.iter_mut().enumerate() {
                if left >> node & 1 == 1 {
                    *count = 0;
                }
            }
        }
    }

    /// Notes whether a page is away from its first-touch node. If so, the budget reserves the cost of its way back.
    fn set_away(&mut self, page: u32, away: bool) {
        let was = std::mem::replace(&mut self.pages[page as usize].away, away);
        self.away = self.away + u32::from(away) - u32::from(was);
        self.reserve();
    }

    fn reserve(&mut self) {
        self.migration_budget.reserve_ns = BACK_MOVES * self.cost_ns * f64::from(self.away);
    }
}

impl OnlinePolicy for Auto {
    fn epoch_ns(&self) -> Option<u64> {
        Some(self.check_ns)
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let &Observation {
            page,
            node,
            thread,
            kind,
            copies,
            ..
        } = observation;
        let era = self.era;
        let row = page as usize * self.nodes;
        let at = usize::from(node);
        let serving = self.serving(at, copies);
        self.taken_ns += self.every * self.loaded(at, serving);
        let threads = self.threads.as_mut();
        let unmoved = threads.map_or(at, |threads| threads.observe(thread, at, serving));
        let state = &mut self.pages[page as usize];
        if state.first == NONE {
            state.first = copies.home as u8;
            state.era = era;
            state.after_moves = self
                .threads
                .as_ref()
                .is_some_and(|threads| threads.any_moved);
        }
        let first = usize::from(state.first);
        if state.era != era {
            let halvings = u32::from(era - state.era).min(15);
            state.era = era;
            state.stores >>= halvings;
            for count in &mut self.counts[row..row + self.nodes] {
                *count >>= halvings;
            }
        }
        if !state.shared && usize::from(node) != first {
            state.shared = true;
            state.stores = 0;
        }
        if kind == AccessKind::Store {
            state.stores = state.stores.saturating_add(1);
        }
        let from = if state.after_moves { at } else { unmoved };
        let count = &mut self.counts[row + at];
        *count = count.saturating_add(1);
        let looked_at = count.is_multiple_of(self.step);
        if copies.nodes != 1 << first || from != at {
            let each_ns = self.loaded(from, first) - self.loaded(at, serving);
            self.migration_budget
                .saved(thread, self.waited_for() * each_ns);
        }
        if looked_at {
            actions.extend(self.decide(page, at, thread, copies));
        }
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, _: &mut Vec<Action>) {
        self.epochs = self.epochs.saturating_add(1);
        let era = self.epochs.ilog2() as u8;
        if era != std::mem::replace(&mut self.era, era) {
            (self.busy_ns, self.taken_ns) = (self.busy_ns / 2.0, self.taken_ns / 2.0);
            if let Some(threads) = &mut self.threads {
                threads.halve();
            }
        }
        let busy_ns: u64 = epoch.threads.iter().map(|thread| thread.busy_ns).sum();
        self.busy_ns += busy_ns as f64;
        if self.busy_ns > 0.0 {
            self.waited = (self.busy_ns / self.taken_ns).min(1.0);
        }
        let running = epoch.threads.iter().filter(|thread| thread.busy_ns > 0);
        self.one_runs = running.count() == 1;
        self.migration_budget
            .end_epoch(epoch.duration_ns, epoch.threads);
        self.risk.end_epoch();
        let more_ns = self.measured_cost.take(epoch.moves, epoch.move_ns);
        self.migration_budget.charge(more_ns);
        self.cost_ns = self.measured_cost.page_ns();
        self.reserve();
        let homes = epoch.threads.iter().map(|thread| 1 << thread.node);
        // Unknown threads may live anywhere.
        self.inhabited = homes
            .reduce(|all: u64, node| all | node)
            .unwrap_or(u64::MAX);
        let scale = self.check_ns as f64 / epoch.duration_ns.max(1) as f64;
        for (sum, &requests) in self.requests.iter_mut().zip(epoch.controller_requests) {
            *sum = requests as f64 * scale;
        }
        self.wait();
        self.move_threads(epoch);
    }

    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        let threads = self.threads.as_mut();
        threads.map_or(Vec::new(), Threads::take_moves)
    }

    fn forget(&mut self, page: u32) {
        self.set_away(page, false);
        self.pages[page as usize] = NEW_PAGE;
        self.counts[page as usize * self.nodes..][..self.nodes].fill(0);
    }

    fn refused(&mut self, action: &Action, copies: Copies) {
        let first = self.pages[action.page as usize].first;
        if first != NONE {
            self.set_away(action.page, copies.home != u16::from(first));
        }
    }

    fn collapse(&mut self, page: u32) -> Survivor {
        let state = &mut self.pages[page as usize];
        state.collapses = state.collapses.saturating_add(1);
        state.stores = state.stores.saturating_add(1);
        self.migration_budget.charge(self.risk.collapse_ns);
        self.risk.collapses += 1;
        Survivor::Master
    }
}

#[cfg(test)]
mod tests;
