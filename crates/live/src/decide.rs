//! Decisions of a policy about an interval. They are a pure function of their inputs, so the decisions in a log can be
//! repeated, bit for bit.

use nearpage_online::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, Place, ThreadCounts, ThreadMove,
    View,
};
use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, Level, ThreadIndex};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sampled access, as the policy gets it. In a log it is a row of numbers in the order of the fields; kinds and
/// levels are numbers ([`AccessKind::from_number`], [`Level::from_number`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Row", into = "Row")]
pub struct ObservedAccess {
    /// Nanoseconds since the interval began.
    pub after_ns: u64,
    /// The page's number.
    pub page: u32,
    /// Node of the CPU, by position in the machine's nodes.
    pub node: u16,
    /// Node of the page.
    pub home: u16,
    /// Thread.
    pub thread: u32,
    /// Kind of access.
    pub kind: AccessKind,
    /// Cache level or memory that served the access.
    pub level: Level,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Row(u64, u32, u16, u16, u32, u8, u8);

/// A number that stands for another page from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageRenumbering {
    /// Number of observations of the interval before the change.
    pub after: usize,
    /// The page's number.
    pub page: u32,
    /// Process of the page.
    pub process: u16,
    /// Address divided by the page size.
    pub number: u64,
}

/// Node of a page whose requested action was done or given up, or that was moved back. In a log it is two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "(u32, u16)", into = "(u32, u16)")]
pub struct PageHome {
    /// The page's number.
    pub page: u32,
    /// Node of the page.
    pub home: u16,
}

impl From<PageHome> for (u32, u16) {
    fn from(settled: PageHome) -> Self {
        (settled.page, settled.home)
    }
}

impl From<(u32, u16)> for PageHome {
    fn from((page, home): (u32, u16)) -> Self {
        Self { page, home }
    }
}

/// Counts of a thread in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThreadTotals {
    /// The thread.
    pub thread: u32,
    /// Process of the thread.
    pub process: u16,
    /// Node on which the thread was last seen.
    pub node: u16,
    /// CPU time.
    pub busy_ns: u64,
    /// Number of observed loads and fetches.
    pub reads: u64,
    /// Number of observed stores.
    pub writes: u64,
}

impl From<ObservedAccess> for Row {
    fn from(seen: ObservedAccess) -> Self {
        Self(
            seen.after_ns,
            seen.page,
            seen.node,
            seen.home,
            seen.thread,
            seen.kind as u8,
            seen.level as u8,
        )
    }
}

impl From<Row> for ObservedAccess {
    fn from(row: Row) -> Self {
        Self {
            after_ns: row.0,
            page: row.1,
            node: row.2,
            home: row.3,
            thread: row.4,
            kind: AccessKind::from_number(row.5).unwrap_or(AccessKind::Load),
            level: Level::from_number(row.6).unwrap_or(Level::Unknown),
        }
    }
}

/// Observations of an interval. All values are whole numbers, so that a log reproduces them exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Begin of the interval, CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// End of the interval.
    pub end_ns: u64,
    /// Estimated number of memory accesses that a thousand observations stand for.
    pub accesses_per_thousand: u64,
    /// Instructions of all targets; 0 if nothing counts them.
    pub instructions: u64,
    /// Free memory of the whole machine, in hundredths of a percent.
    pub free_per_10000: u32,
    /// Nodes without room for more pages, by position.
    pub full: Vec<bool>,
    /// Pages with actions of earlier intervals that are done or given up; these come before all observations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<PageHome>,
    /// Numbers whose pages are gone; these come before all observations.
    pub forgotten: Vec<u32>,
    /// Sampled accesses, in order of time.
    pub observations: Vec<ObservedAccess>,
    /// Numbers that stand for other pages than before, in order of time.
    pub placed: Vec<PageRenumbering>,
    /// All threads of the targets.
    pub threads: Vec<ThreadTotals>,
    /// Time spent moving pages in the interval before.
    pub move_ns: u64,
}

/// Decisions of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// Actions on pages, in the order of the policy's requests.
    pub actions: Vec<Action>,
    /// Moves of threads.
    pub thread_moves: Vec<ThreadMove>,
    /// References that the policy wants to be shown from now on.
    pub view: Option<View>,
    /// Reason why the policy leaves every program alone, if it does.
    pub why_idle: Option<String>,
}

/// A policy with its state between intervals.
pub struct Decider {
    policy: Box<dyn OnlinePolicy>,
    nodes: usize,
    pages: usize,
    /// Begin of the policy's epoch.
    epoch_begin_ns: Option<u64>,
    totals: Totals,
    /// The policy is told the cost of moves.
    tells_costs: bool,
    /// Actions whose results the policy has not been told; `None`: it never is, as in logs of version 1.
    open: Option<FxHashMap<u32, Action>>,
}

/// Sums over the observations since the policy's epoch began.
#[derive(Clone, Debug)]
struct Totals {
    nodes: usize,
    /// Accesses served by memory, `[CPU's node × nodes + page's node]`.
    served: Vec<u64>,
    reads: u64,
    /// Number of pages that moved as the policy asked, and the time of the moves.
    moves: u64,
    move_ns: u64,
}

impl Totals {
    fn of(nodes: usize) -> Self {
        Self {
            nodes,
            served: vec![0; nodes * nodes],
            reads: 0,
            moves: 0,
            move_ns: 0,
        }
    }

    /// Accesses served by the memory of a node.
    fn controller(&self, memory: usize) -> u64 {
        self.served.iter().skip(memory).step_by(self.nodes).sum()
    }

    /// Accesses from a node served by its own memory.
    fn local(&self, node: usize) -> u64 {
        self.served[node * self.nodes + node]
    }

    /// Accesses from a node served by other nodes' memory.
    fn remote(&self, node: usize) -> u64 {
        let of_node = &self.served[node * self.nodes..][..self.nodes];
        of_node.iter().sum::<u64>() - self.local(node)
    }
}

impl Decider {
    /// Wraps a policy that was made for these numbers of nodes and pages.
    pub fn new(policy: Box<dyn OnlinePolicy>, nodes: usize, pages: usize) -> Self {
        Self {
            policy,
            nodes,
            pages,
            epoch_begin_ns: None,
            totals: Totals::of(nodes),
            tells_costs: true,
            open: Some(FxHashMap::default()),
        }
    }

    /// Never tells the policy the cost of moves.
    pub fn without_costs(self) -> Self {
        Self {
            tells_costs: false,
            ..self
        }
    }

    /// Never tells the policy the results of its actions.
    pub fn without_action_results(self) -> Self {
        Self { open: None, ..self }
    }

    /// The policy's decisions after this interval.
    pub fn decide(&mut self, interval: &Interval) -> Decisions {
        let mut decisions = Decisions::default();
        self.totals.move_ns += interval.move_ns;
        for &settled in &interval.settled {
            self.settle(settled);
        }
        for &page in &interval.forgotten {
            self.forget(page);
        }
        self.epoch_begin_ns.get_or_insert(interval.begin_ns);
        let full = interval.full.iter().take(64).rev();
        let full = full.fold(0, |bits, &is_full| bits << 1 | u64::from(is_full));
        let mut placed = interval.placed.iter().peekable();
        let mut epoch_end_ns = self.epoch_end_ns();
        for (at, seen) in interval.observations.iter().enumerate() {
            let now_ns = interval.begin_ns + seen.after_ns;
            if now_ns >= epoch_end_ns {
                self.end_epoch(interval, now_ns, &mut decisions);
                epoch_end_ns = self.epoch_end_ns();
            }
            while let Some(placed) = placed.next_if(|placed| placed.after <= at) {
                self.forget(placed.page);
                let place = Place {
                    application: placed.process,
                    number: placed.number,
                };
                self.policy.place(placed.page, place);
            }
            self.observe(full, seen, &mut decisions.actions);
        }
        if interval.end_ns >= epoch_end_ns {
            self.end_epoch(interval, interval.end_ns, &mut decisions);
        }
        decisions.view = Some(self.policy.view());
        decisions.why_idle = self.policy.why_idle();
        self.remember(&decisions.actions);
        decisions
    }

    /// Drops a page's number, which stands for another page or for none from now on.
    fn forget(&mut self, page: u32) {
        self.policy.forget(page);
        if let Some(open) = &mut self.open {
            open.remove(&page);
        }
    }

    /// Keeps actions until they are settled. A new action on a page replaces an earlier one that was not done.
    fn remember(&mut self, actions: &[Action]) {
        let Some(open) = &mut self.open else {
            return;
        };
        for action in actions {
            if let Some(earlier) = open.insert(action.page, action.clone())
                && earlier.kind != ActionKind::Replicate
            {
                // The page's current node is not known here.
                self.policy.refused(&earlier, Copies::at(action.node));
            }
        }
    }

    /// Tells the policy the page's node after an action was done or given up.
    fn settle(&mut self, PageHome { page, home }: PageHome) {
        let Some(open) = &mut self.open else {
            return;
        };
        if usize::from(home) >= self.nodes || page as usize >= self.pages {
            return; // Only a damaged log has such numbers.
        }
        let copies = Copies::at(home);
        if let Some(action) = open.remove(&page)
            && action.kind != ActionKind::Collapse
        {
            match action.node == home && action.kind != ActionKind::Replicate {
                true => self.totals.moves += 1,
                false => self.policy.refused(&action, copies),
            }
        }
        self.policy.settled(page, copies, 0);
    }

    /// Passes an observation to the policy; bit n of `full` is set if node n has no room.
    #[inline]
    fn observe(&mut self, full: u64, seen: &ObservedAccess, actions: &mut Vec<Action>) {
        let (node, home) = (usize::from(seen.node), usize::from(seen.home));
        if node >= self.nodes || home >= self.nodes || seen.page as usize >= self.pages {
            return; // Only a damaged log has such numbers.
        }
        let served = served(seen.level);
        if served == Served::Memory {
            self.totals.served[node * self.nodes + home] += 1;
            self.totals.reads += u64::from(seen.kind != AccessKind::Store);
        }
        let observation = Observation {
            page: seen.page,
            node: seen.node,
            thread: ThreadIndex(seen.thread),
            kind: seen.kind,
            served,
            copies: Copies::at(seen.home),
            pressure: full >> node & 1 == 1,
        };
        self.policy.observe(&observation, actions);
    }

    /// End of the policy's epoch; the end of time if the policy has no epochs.
    fn epoch_end_ns(&self) -> u64 {
        let end_ns = self.policy.epoch_ns().zip(self.epoch_begin_ns);
        end_ns.map_or(u64::MAX, |(epoch_ns, begin_ns)| {
            begin_ns.saturating_add(epoch_ns)
        })
    }

    /// Ends the policy's epoch at `now_ns`. Several empty epochs are merged into one.
    fn end_epoch(&mut self, interval: &Interval, now_ns: u64, decisions: &mut Decisions) {
        let begin_ns = self.epoch_begin_ns.unwrap_or(now_ns);
        let duration_ns = now_ns.saturating_sub(begin_ns);
        let totals = std::mem::replace(&mut self.totals, Totals::of(self.nodes));
        let scaled = |count: &dyn Fn(usize) -> u64| -> Vec<u64> {
            let counts = (0..totals.nodes).map(count);
            counts.map(|count| interval.scaled(count)).collect()
        };
        let controller = scaled(&|node| totals.controller(node));
        let local = scaled(&|node| totals.local(node));
        let remote = scaled(&|node| totals.remote(node));
        let counts = |thread: &ThreadTotals| ThreadCounts {
            thread: ThreadIndex(thread.thread),
            application: thread.process,
            node: thread.node,
            busy_ns: thread.busy_ns,
            reads: interval.scaled(thread.reads),
            writes: interval.scaled(thread.writes),
        };
        let known = |thread: &&ThreadTotals| usize::from(thread.node) < self.nodes;
        let threads: Vec<ThreadCounts> =
            interval.threads.iter().filter(known).map(counts).collect();
        let (moves, move_ns) = match self.tells_costs {
            true => (totals.moves, totals.move_ns),
            false => (0, interval.move_ns),
        };
        self.policy.end_epoch(
            &Epoch {
                duration_ns,
                controller_requests: &controller,
                local: &local,
                remote: &remote,
                reads: interval.scaled(totals.reads),
                instructions: interval.instructions,
                free_share: f64::from(interval.free_per_10000) / 1e4,
                threads: &threads,
                move_ns,
                moves,
                ..Epoch::default()
            },
            &mut decisions.actions,
        );
        decisions.thread_moves.extend(self.policy.thread_moves());
        self.epoch_begin_ns = Some(now_ns);
    }
}

/// Cache or memory that served an access, for policies. An unknown level (as with the clock source) counts as memory,
/// because the thread waited for the access.
fn served(level: Level) -> Served {
    match level {
        Level::L1 => Served::L1,
        Level::L2 => Served::L2,
        Level::L3 | Level::LineFillBuffer => Served::L3,
        Level::RemoteCache => Served::OtherCache,
        Level::Unknown | Level::LocalMemory | Level::RemoteMemory => Served::Memory,
    }
}

impl Interval {
    /// Number of accesses that a number of observations stands for.
    fn scaled(&self, observations: u64) -> u64 {
        let scaled = u128::from(observations) * u128::from(self.accesses_per_thousand) / 1000;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
