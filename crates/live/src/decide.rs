//! From what an interval showed to what a policy wants done: a pure function of its inputs, which is
//! why a log of them can be decided again, bit for bit.

use nearpage_policy::online::{Action, Copies, Epoch, Observation, OnlinePolicy};
use nearpage_recording::{AccessKind, ThreadIndex};
use serde::{Deserialize, Serialize};

/// A sampled access, as the policy gets it. In a log a row of numbers, in the order of the fields;
/// kinds by [`AccessKind::from_number`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct Observed {
    /// Since the interval began.
    pub after_ns: u64,
    /// The page's number.
    pub page: u32,
    /// The number stood for another page before.
    pub new: bool,
    /// Node of the CPU, by position in the machine's nodes.
    pub node: u16,
    /// Node of the page.
    pub home: u16,
    /// Thread.
    pub thread: u32,
    /// What it did.
    pub kind: AccessKind,
}

#[derive(Serialize, Deserialize)]
struct Row(u64, u32, u8, u16, u16, u32, u8);

impl From<Observed> for Row {
    fn from(seen: Observed) -> Self {
        Self(
            seen.after_ns,
            seen.page,
            seen.new.into(),
            seen.node,
            seen.home,
            seen.thread,
            seen.kind as u8,
        )
    }
}

impl From<Row> for Observed {
    fn from(row: Row) -> Self {
        Self {
            after_ns: row.0,
            page: row.1,
            new: row.2 != 0,
            node: row.3,
            home: row.4,
            thread: row.5,
            kind: AccessKind::from_number(row.6).unwrap_or(AccessKind::Load),
        }
    }
}

/// What an interval showed. Whole numbers only: they come back from a log as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// A policy and what it needs between intervals.
pub struct Decider {
    policy: Box<dyn OnlinePolicy>,
    nodes: usize,
    /// When the policy's epoch began.
    epoch_begin_ns: Option<u64>,
    totals: Totals,
}

/// Observations since the policy's epoch began.
#[derive(Clone, Debug, Default)]
struct Totals {
    controller: Vec<u64>,
    local: Vec<u64>,
    remote: Vec<u64>,
    reads: u64,
}

impl Totals {
    fn of(nodes: usize) -> Self {
        Self {
            controller: vec![0; nodes],
            local: vec![0; nodes],
            remote: vec![0; nodes],
            reads: 0,
        }
    }
}

impl Decider {
    /// A policy for a machine of so many nodes.
    pub fn new(policy: Box<dyn OnlinePolicy>, nodes: usize) -> Self {
        Self {
            policy,
            nodes,
            epoch_begin_ns: None,
            totals: Totals::of(nodes),
        }
    }

    /// What the policy wants after this interval, in the order in which it asked.
    pub fn decide(&mut self, interval: &Interval) -> Vec<Action> {
        let mut actions = Vec::new();
        for &page in &interval.forgotten {
            self.policy.forget(page);
        }
        self.epoch_begin_ns.get_or_insert(interval.begin_ns);
        let epoch_ns = self.policy.epoch_ns();
        for seen in &interval.observations {
            self.pass(
                interval,
                interval.begin_ns + seen.after_ns,
                epoch_ns,
                &mut actions,
            );
            self.observe(interval, seen, &mut actions);
        }
        self.pass(interval, interval.end_ns, epoch_ns, &mut actions);
        actions
    }

    fn observe(&mut self, interval: &Interval, seen: &Observed, actions: &mut Vec<Action>) {
        if seen.new {
            self.policy.forget(seen.page);
        }
        let (node, home) = (usize::from(seen.node), usize::from(seen.home));
        if node >= self.nodes || home >= self.nodes {
            return; // A log that was tampered with.
        }
        self.totals.controller[home] += 1;
        match node == home {
            true => self.totals.local[node] += 1,
            false => self.totals.remote[node] += 1,
        }
        self.totals.reads += u64::from(seen.kind != AccessKind::Store);
        let observation = Observation {
            page: seen.page,
            node: seen.node,
            thread: ThreadIndex(seen.thread),
            kind: seen.kind,
            copies: Copies::at(seen.home),
            pressure: interval.full.get(node).copied().unwrap_or(false),
        };
        self.policy.observe(&observation, actions);
    }

    /// Ends the policy's epoch if it has lasted until `now_ns`. Empty epochs in between are one.
    fn pass(
        &mut self,
        interval: &Interval,
        now_ns: u64,
        epoch_ns: Option<u64>,
        actions: &mut Vec<Action>,
    ) {
        let (Some(epoch_ns), Some(begin_ns)) = (epoch_ns, self.epoch_begin_ns) else {
            return;
        };
        let duration_ns = now_ns.saturating_sub(begin_ns);
        if duration_ns < epoch_ns {
            return;
        }
        let totals = std::mem::replace(&mut self.totals, Totals::of(self.nodes));
        let scale = |counts: Vec<u64>| -> Vec<u64> {
            let scaled = counts.into_iter().map(|count| interval.scaled(count));
            scaled.collect()
        };
        let (controller, local) = (scale(totals.controller), scale(totals.local));
        let remote = scale(totals.remote);
        self.policy.end_epoch(
            &Epoch {
                duration_ns,
                controller_requests: &controller,
                local: &local,
                remote: &remote,
                reads: interval.scaled(totals.reads),
                instructions: interval.instructions,
                free_share: f64::from(interval.free_per_10000) / 1e4,
            },
            actions,
        );
        self.epoch_begin_ns = Some(now_ns);
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
    use nearpage_policy::online::{ActionKind, MigrateReplicate, Setting, Thresholds};
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
            every: 1,
            seed: 1,
        };
        Box::new(MigrateReplicate::new(&thresholds, &setting).expect("consistent thresholds"))
    }

    fn seen(page: u32, node: u16) -> Observed {
        Observed {
            after_ns: 0,
            page,
            new: false,
            node,
            home: 0,
            thread: 0,
            kind: AccessKind::Load,
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
        let mut decider = Decider::new(policy(), 4);
        assert!(decider.decide(&interval(0, vec![seen(7, 2); 2])).is_empty());
        let actions = decider.decide(&interval(500_000_000, vec![seen(7, 2); 2]));
        assert_eq!(actions.len(), 1);
        let action = &actions[0];
        assert_eq!(
            (action.page, action.kind, action.node),
            (7, ActionKind::Migrate, 2)
        );
        // The epoch of a second ended with that interval.
        let next = interval(1_000_000_000, vec![seen(8, 2); 3]);
        assert!(decider.decide(&next).is_empty());
        let next = interval(1_500_000_000, Vec::new());
        assert!(decider.decide(&next).is_empty());
        assert!(
            decider
                .decide(&interval(2_000_000_000, vec![seen(8, 2)]))
                .is_empty()
        );
    }

    #[test]
    fn a_number_that_stands_for_another_page_starts_from_nothing() {
        let mut decider = Decider::new(policy(), 4);
        let mut observations = vec![seen(7, 2); 4];
        observations[3].new = true;
        assert!(decider.decide(&interval(0, observations)).is_empty());
        let mut gone = interval(0, vec![seen(7, 2)]);
        gone.forgotten = vec![7];
        let mut decider = Decider::new(policy(), 4);
        decider.decide(&interval(0, vec![seen(7, 2); 3]));
        assert!(decider.decide(&gone).is_empty());
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
                prop::collection::vec((0u32..20, 0u16..4, 0u16..4, any::<bool>(), 0u8..3), 0..100),
                1..10,
            ),
        ) {
            let (mut first, mut second) = (Decider::new(policy(), 4), Decider::new(policy(), 4));
            for (number, rows) in intervals.into_iter().enumerate() {
                let observations = rows
                    .into_iter()
                    .map(|(page, node, home, new, kind)| Observed {
                        home,
                        new,
                        kind: AccessKind::from_number(kind).expect("a kind"),
                        ..seen(page, node)
                    })
                    .collect();
                let interval = interval(number as u64 * 500_000_000, observations);
                let text = serde_json::to_string(&interval).expect("JSON");
                let read: Interval = serde_json::from_str(&text).expect("what was written");
                prop_assert_eq!(&read, &interval);
                prop_assert_eq!(first.decide(&interval), second.decide(&read));
            }
        }
    }
}
