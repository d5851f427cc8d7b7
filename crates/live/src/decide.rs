//! From what an interval showed to what a policy wants done: a pure function of its inputs, which is
//! why a log of them can be decided again, bit for bit.

use nearpage_online::{
    Action, Copies, Epoch, Observation, OnlinePolicy, Place, ThreadCounts, ThreadMove, View,
};
use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, Level, ThreadIndex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sampled access, as the policy gets it. In a log a row of numbers, in the order of the fields;
/// kinds and levels by number ([`AccessKind::from_number`], [`Level::from_number`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Row", into = "Row")]
pub struct Observed {
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
pub struct Placed {
    /// Observations of the interval that came before.
    pub after: usize,
    /// The number.
    pub page: u32,
    /// Its process.
    pub process: u16,
    /// Address over page size.
    pub number: u64,
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

impl From<Observed> for Row {
    fn from(seen: Observed) -> Self {
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

impl From<Row> for Observed {
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
    /// Numbers whose pages are gone, before anything below was seen.
    pub forgotten: Vec<u32>,
    /// What was sampled, in order of time.
    pub observations: Vec<Observed>,
    /// Numbers that stand for other pages than before, in the same order.
    pub placed: Vec<Placed>,
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
}

/// A policy and what it needs between intervals.
pub struct Decider {
    policy: Box<dyn OnlinePolicy>,
    nodes: usize,
    pages: usize,
    /// When the policy's epoch began.
    epoch_begin_ns: Option<u64>,
    totals: Totals,
}

/// Observations since the policy's epoch began, of what memory served.
#[derive(Clone, Debug)]
struct Totals {
    nodes: usize,
    /// `[CPU's node × nodes + page's node]`.
    served: Vec<u64>,
    reads: u64,
}

impl Totals {
    fn of(nodes: usize) -> Self {
        Self {
            nodes,
            served: vec![0; nodes * nodes],
            reads: 0,
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
        }
    }

    /// What the policy wants after this interval.
    pub fn decide(&mut self, interval: &Interval) -> Decisions {
        let mut decisions = Decisions::default();
        for &page in &interval.forgotten {
            self.policy.forget(page);
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
                self.policy.forget(placed.page);
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
        decisions
    }

    /// `full`: bit n says that node n has no room.
    #[inline]
    fn observe(&mut self, full: u64, seen: &Observed, actions: &mut Vec<Action>) {
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
                move_ns: interval.move_ns,
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
mod tests {
    use super::*;
    use nearpage_online::{ActionKind, MigrateReplicate, Setting, Thresholds};
    use proptest::prelude::*;

    fn policy() -> Box<dyn OnlinePolicy> {
        let thresholds = Thresholds {
            trigger: 4,
            hold: 1,
            reset_cycles: 1_000_000_000,
            ..Thresholds::default()
        };
        let setting = Setting {
            nodes: 4,
            pages: 100,
            clock_ghz: 1.0,
            memory_nodes: 0b1111,
            cpus_per_node: 0,
            every: 1,
            seed: 1,
        };
        Box::new(MigrateReplicate::new(&thresholds, &setting).expect("consistent thresholds"))
    }

    fn seen(page: u32, node: u16) -> Observed {
        Observed {
            after_ns: 0,
            page,
            node,
            home: 0,
            thread: 0,
            kind: AccessKind::Load,
            level: Level::Unknown,
        }
    }

    fn interval(begin_ns: u64, observations: Vec<Observed>) -> Interval {
        Interval {
            begin_ns,
            end_ns: begin_ns + 500_000_000,
            accesses_per_thousand: 2500,
            free_per_10000: 9000,
            full: vec![false; 4],
            observations,
            ..Interval::default()
        }
    }

    #[test]
    fn counts_go_on_over_intervals_and_end_with_the_epoch() {
        let mut decider = Decider::new(policy(), 4, 100);
        let mut decide = |interval: Interval| decider.decide(&interval).actions;
        assert!(decide(interval(0, vec![seen(7, 2); 2])).is_empty());
        let actions = decide(interval(500_000_000, vec![seen(7, 2); 2]));
        assert_eq!(actions.len(), 1);
        let action = &actions[0];
        assert_eq!(
            (action.page, action.kind, action.node),
            (7, ActionKind::Migrate, 2)
        );
        // The epoch of a second ended with that interval.
        assert!(decide(interval(1_000_000_000, vec![seen(8, 2); 3])).is_empty());
        assert!(decide(interval(1_500_000_000, Vec::new())).is_empty());
        assert!(decide(interval(2_000_000_000, vec![seen(8, 2)])).is_empty());
    }

    #[test]
    fn a_number_that_stands_for_another_page_starts_from_nothing() {
        let mut decider = Decider::new(policy(), 4, 100);
        let mut interval_of_another = interval(0, vec![seen(7, 2); 4]);
        interval_of_another.placed = vec![Placed {
            after: 3,
            page: 7,
            process: 1,
            number: 77,
        }];
        assert!(decider.decide(&interval_of_another).actions.is_empty());
        let mut gone = interval(0, vec![seen(7, 2)]);
        gone.forgotten = vec![7];
        let mut decider = Decider::new(policy(), 4, 100);
        decider.decide(&interval(0, vec![seen(7, 2); 3]));
        assert!(decider.decide(&gone).actions.is_empty());
    }

    #[test]
    fn what_cannot_be_is_passed_over() {
        let mut decider = Decider::new(policy(), 4, 100);
        let mut strange = vec![seen(100, 2); 4];
        strange.extend([seen(7, 4); 4]);
        strange.extend(
            [Observed {
                home: 9,
                ..seen(7, 1)
            }; 4],
        );
        assert!(decider.decide(&interval(0, strange)).actions.is_empty());
    }

    #[test]
    fn samples_stand_for_more_accesses() {
        let interval = interval(0, Vec::new());
        assert_eq!(interval.scaled(4), 10);
        assert_eq!(interval.scaled(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn the_same_inputs_give_the_same_decisions_after_a_way_through_a_log(
            intervals in prop::collection::vec(
                prop::collection::vec((0u32..20, 0u16..4, 0u16..4, any::<bool>(), 0u8..3, 0u8..8), 0..100),
                1..10,
            ),
        ) {
            let (mut first, mut second) = (Decider::new(policy(), 4, 100), Decider::new(policy(), 4, 100));
            for (number, rows) in intervals.into_iter().enumerate() {
                let mut interval = interval(number as u64 * 500_000_000, Vec::new());
                for (after, (page, node, home, new, kind, level)) in rows.into_iter().enumerate() {
                    if new {
                        let (process, number) = (node, u64::from(page) + 1000);
                        interval.placed.push(Placed { after, page, process, number });
                    }
                    interval.observations.push(Observed {
                        home,
                        kind: AccessKind::from_number(kind).expect("a kind"),
                        level: Level::from_number(level).expect("a level"),
                        ..seen(page, node)
                    });
                }
                let text = serde_json::to_string(&interval).expect("JSON");
                let read: Interval = serde_json::from_str(&text).expect("what was written");
                prop_assert_eq!(&read, &interval);
                prop_assert_eq!(first.decide(&interval), second.decide(&read));
            }
        }
    }
}
