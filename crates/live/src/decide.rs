//! From what an interval showed to what a policy wants done: a pure function of its inputs, which is
//! why a log of them can be decided again, bit for bit.

use nearpage_online::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, Place, ThreadCounts, ThreadMove,
    View,
};
use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, Level, ThreadIndex};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sampled access, as the policy gets it. In a log a row of numbers, in the order of the fields;
/// kinds and levels by number ([`AccessKind::from_number`], [`Level::from_number`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Row", into = "Row")]
pub struct ObservedAccess {
    /// Since the interval began.
    pub after_ns: u64,
    /// The page's number.
    pub page: u32,
    /// Node of the CPU, by position in the machine's nodes.
    pub node: u16,
    /// Node of the page.
    pub home: u16,
    /// Thread.
    pub thread: u32,
    /// What it did.
    pub kind: AccessKind,
    /// What served it.
    pub level: Level,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Row(u64, u32, u16, u16, u32, u8, u8);

/// A number stands for another page from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageRenumbering {
    /// Observations of the interval that came before.
    pub after: usize,
    /// The number.
    pub page: u32,
    /// Its process.
    pub process: u16,
    /// Address over page size.
    pub number: u64,
}

/// Where a page is that an action was about, or that was moved back: what was asked for has been done, or will not be.
/// In a log two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "(u32, u16)", into = "(u32, u16)")]
pub struct PageHome {
    /// The page's number.
    pub page: u32,
    /// Its node.
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

/// What a thread did in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThreadTotals {
    /// The thread.
    pub thread: u32,
    /// Its process.
    pub process: u16,
    /// Node on which it was last seen.
    pub node: u16,
    /// CPU time.
    pub busy_ns: u64,
    /// Loads and fetches among its observations.
    pub reads: u64,
    /// Stores.
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

/// What an interval showed. Whole numbers only: they come back from a log as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// When it began, CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Memory accesses that a thousand observations stand for: an estimate, where no counter of the
    /// machine counts them.
    pub accesses_per_thousand: u64,
    /// Instructions of all targets; 0 where nothing counts them.
    pub instructions: u64,
    /// Memory that is free on the whole machine, in hundredths of a percent.
    pub free_per_10000: u32,
    /// Nodes without room for more pages, by position.
    pub full: Vec<bool>,
    /// Pages that actions of earlier intervals were about, before anything below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<PageHome>,
    /// Numbers whose pages are gone, before anything below was seen.
    pub forgotten: Vec<u32>,
    /// What was sampled, in order of time.
    pub observations: Vec<ObservedAccess>,
    /// Numbers that stand for other pages than before, in the same order.
    pub placed: Vec<PageRenumbering>,
    /// All threads of the targets.
    pub threads: Vec<ThreadTotals>,
    /// Time in which pages were moved, in the interval before.
    pub move_ns: u64,
}

/// What a policy wants done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// Pages, in the order in which it asked.
    pub actions: Vec<Action>,
    /// Threads.
    pub thread_moves: Vec<ThreadMove>,
    /// What it wants to be shown from now on.
    pub view: Option<View>,
    /// Why it leaves every program alone, if it does.
    pub why_idle: Option<String>,
}

/// A policy and what it needs between intervals.
pub struct Decider {
    policy: Box<dyn OnlinePolicy>,
    nodes: usize,
    pages: usize,
    /// When the policy's epoch began.
    epoch_begin_ns: Option<u64>,
    totals: Totals,
    /// The policy is told what moves cost.
    tells_costs: bool,
    /// Actions that the policy asked for, and what became of them has not been told; `None`: it never is, as in logs of
    /// the first version.
    open: Option<FxHashMap<u32, Action>>,
}

/// Observations since the policy's epoch began, of what memory served.
#[derive(Clone, Debug)]
struct Totals {
    nodes: usize,
    /// `[CPU's node × nodes + page's node]`.
    served: Vec<u64>,
    reads: u64,
    /// Pages that moved as the policy asked, and the time in which they did.
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

    /// By node whose memory served them.
    fn controller(&self, memory: usize) -> u64 {
        self.served.iter().skip(memory).step_by(self.nodes).sum()
    }

    /// By node of the CPU, from its own node's memory.
    fn local(&self, node: usize) -> u64 {
        self.served[node * self.nodes + node]
    }

    /// By node of the CPU, from other nodes' memory.
    fn remote(&self, node: usize) -> u64 {
        let of_node = &self.served[node * self.nodes..][..self.nodes];
        of_node.iter().sum::<u64>() - self.local(node)
    }
}

impl Decider {
    /// A policy that was made for so many nodes and pages.
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

    /// The same, but the policy is never told what moves cost.
    pub fn without_costs(self) -> Self {
        Self {
            tells_costs: false,
            ..self
        }
    }

    /// The same, but the policy is never told what became of its actions.
    pub fn without_fates(self) -> Self {
        Self { open: None, ..self }
    }

    /// What the policy wants after this interval.
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

    /// The number stands for another page, or for none.
    fn forget(&mut self, page: u32) {
        self.policy.forget(page);
        if let Some(open) = &mut self.open {
            open.remove(&page);
        }
    }

    /// Keeps what was asked for until it is settled. The last word on a page counts: what was asked for before, and not
    /// done, never will be.
    fn remember(&mut self, actions: &[Action]) {
        let Some(open) = &mut self.open else {
            return;
        };
        for action in actions {
            if let Some(earlier) = open.insert(action.page, action.clone())
                && earlier.kind != ActionKind::Replicate
            {
                // Where the page is, nobody has told since.
                self.policy.refused(&earlier, Copies::at(action.node));
            }
        }
    }

    /// Tells the policy where a page is after what it asked for was done, or was not.
    fn settle(&mut self, PageHome { page, home }: PageHome) {
        let Some(open) = &mut self.open else {
            return;
        };
        if usize::from(home) >= self.nodes || page as usize >= self.pages {
            return; // A log that was tampered with.
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

    /// `full`: bit n says that node n has no room.
    #[inline]
    fn observe(&mut self, full: u64, seen: &ObservedAccess, actions: &mut Vec<Action>) {
        let (node, home) = (usize::from(seen.node), usize::from(seen.home));
        if node >= self.nodes || home >= self.nodes || seen.page as usize >= self.pages {
            return; // A log that was tampered with.
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

    /// When the policy's epoch ends; the end of time where it has none.
    fn epoch_end_ns(&self) -> u64 {
        let end_ns = self.policy.epoch_ns().zip(self.epoch_begin_ns);
        end_ns.map_or(u64::MAX, |(epoch_ns, begin_ns)| {
            begin_ns.saturating_add(epoch_ns)
        })
    }

    /// Ends the policy's epoch, which has lasted until `now_ns`. Empty epochs in between are one.
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

/// What served an access, as policies have it. What cannot be told (the clock) was waited for, and so
/// counts as memory.
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
    /// Accesses that so many observations stand for.
    fn scaled(&self, observations: u64) -> u64 {
        let scaled = u128::from(observations) * u128::from(self.accesses_per_thousand) / 1000;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
