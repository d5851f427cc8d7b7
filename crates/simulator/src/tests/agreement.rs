//! Policies are told correctly what became of their actions, whether refused, delayed or carried out.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpage_machine::Timing;
use nearpage_online::{
    Action, ActionKind, Carrefour, CarrefourParameters, Copies, Epoch, Observation, OnlinePolicy,
    Reason, Setting, Survivor,
};
use proptest::prelude::*;

use super::properties::traces;
use super::*;
use crate::figures::Figures;
use crate::{Run, Watched};

/// Page, kind and node of a requested action.
type Request = (u32, u8, u16);

/// A policy that requests actions on any page, many at a time, and records what it is told.
struct RequestsOnAnyPage<'a> {
    requests: std::slice::Iter<'a, Request>,
    survivor: Survivor,
    by_epoch: bool,
    /// By page.
    settled: Vec<Option<(Copies, u64)>>,
    /// Number of open actions of each page, neither carried out nor refused.
    open: Vec<i64>,
    /// With limited memory, the policy is told about reclaimed replicas only after the next batch.
    limited: bool,
    refusals: &'a RefCell<u64>,
}

impl RequestsOnAnyPage<'_> {
    fn ask(&mut self, actions: &mut Vec<Action>) {
        for &(page, kind, node) in self.requests.by_ref().take(7) {
            use ActionKind::{Collapse, Interleave, Migrate, Replicate};
            let kind = [Migrate, Interleave, Replicate, Replicate, Collapse][usize::from(kind)];
            let reason = Reason::rule("asked for");
            actions.push(Action {
                page,
                kind,
                node,
                reason,
            });
            self.open[page as usize] += 1;
        }
    }
}

impl OnlinePolicy for RequestsOnAnyPage<'_> {
    fn epoch_ns(&self) -> Option<u64> {
        Some(20_000)
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        if let Some((copies, stale)) = self.settled[observation.page as usize] {
            let seen = observation.copies;
            assert_eq!(copies.home, seen.home);
            // A thread that has moved may use another node's copy; its own node's copy is hidden then.
            let others = !(1 << observation.node);
            assert_eq!(seen.nodes & !copies.nodes, 0);
            if !self.limited {
                assert_eq!(copies.nodes & others, seen.nodes & others);
            }
            assert_eq!(
                copies.nodes & stale,
                0,
                "a node that has a copy needs no fresh one"
            );
        }
        if !self.by_epoch {
            self.ask(actions);
        }
    }

    fn end_epoch(&mut self, _: &Epoch<'_>, actions: &mut Vec<Action>) {
        if self.by_epoch {
            self.ask(actions);
        }
    }

    fn forget(&mut self, _: u32) {}

    fn has_kernel_thread(&self) -> bool {
        self.by_epoch
    }

    fn collapse(&mut self, _: u32) -> Survivor {
        self.survivor
    }

    fn is_still_requested(&self, action: &Action) -> bool {
        action.page != 0 || action.kind != ActionKind::Replicate
    }

    fn refused(&mut self, action: &Action, copies: Copies) {
        self.open[action.page as usize] -= 1;
        assert!(self.open[action.page as usize] >= 0, "told of twice");
        let known = self.settled[action.page as usize];
        let is_untouched = copies.nodes == 0;
        assert!(
            self.limited || is_untouched || known.is_none_or(|known| known.0 == copies),
            "refused: {known:?}, {copies:?}"
        );
        *self.refusals.borrow_mut() += 1;
    }

    fn settled(&mut self, page: u32, copies: Copies, stale: u64) {
        assert!(
            page != 0 || copies.nodes.count_ones() <= 1,
            "no longer wanted"
        );
        self.settled[page as usize] = Some((copies, stale));
    }
}

/// `carrefour`, with a check after each batch that it knows which pages have copies.
struct ChecksCopies {
    policy: Carrefour,
    at_once: bool,
}

impl OnlinePolicy for ChecksCopies {
    fn epoch_ns(&self) -> Option<u64> {
        self.policy.epoch_ns()
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let has_copies = !observation.copies.nodes.is_power_of_two();
        let is_known = self.policy.is_replicated(observation.page);
        assert!(is_known || !has_copies, "page {}", observation.page);
        self.policy.observe(observation, actions);
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, actions: &mut Vec<Action>) {
        self.policy.end_epoch(epoch, actions);
    }

    fn forget(&mut self, page: u32) {
        self.policy.forget(page);
    }

    fn has_kernel_thread(&self) -> bool {
        !self.at_once
    }

    fn collapse(&mut self, page: u32) -> Survivor {
        self.policy.collapse(page)
    }

    fn is_still_requested(&self, action: &Action) -> bool {
        self.policy.is_still_requested(action)
    }

    fn settled(&mut self, page: u32, copies: Copies, stale: u64) {
        self.policy.settled(page, copies, stale);
        let has_copies = !copies.nodes.is_power_of_two() || stale != 0;
        assert_eq!(self.policy.is_replicated(page), has_copies);
    }
}

const STEPS: &str = "[moves.steps]\ninterrupt_ns = 100\ndecision_ns = 100\nallocation_ns = 1000\n\
                     mapping_replica_ns = 1000\nmapping_migration_ns = 1000\nflush_ns = 100\n\
                     flush_request_ns = 100\ncopy_ns = 1000\nend_replica_ns = 100\n\
                     end_migration_ns = 100\nfault_ns = 500\n";

/// Machine with fixed or stepped move costs, a job with a batch size, and the number of memory pages.
fn setups() -> impl Strategy<Value = (Machine, Job, u64)> {
    let batch = prop_oneof![Just(None), Just(Some(1u64)), Just(Some(4u64))];
    let memory = prop_oneof![Just(u64::MAX), 13u64..20];
    (batch, memory).prop_map(|(batch, memory)| {
        let machine = match batch {
            None => machine(4, CLOCK),
            Some(_) => machine(4, &format!("{CLOCK}{STEPS}")),
        };
        let mut job = job("first-touch", &[]);
        job.options.batch_pages = batch.unwrap_or(1);
        job.options.batch_ns = 30_000;
        job.options.memory_pages = (memory != u64::MAX).then_some(memory);
        (machine, job, memory)
    })
}

fn run<P: OnlinePolicy>(trace: &MemoryTrace, machine: &Machine, job: &Job, policy: P) -> Outcome {
    let timing: Timing = machine.timing().expect("timing");
    let figures = Figures::new(machine, &timing, &job.options);
    let run = Run {
        trace,
        timing: &timing,
        figures: &figures,
        job,
        homes: None,
    };
    run.under::<_, true>(policy).expect("replays")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_policy_knows_what_became_of_each_action(
        trace in traces(),
        (machine, job, memory) in setups(),
        requests in prop::collection::vec((0u32..12, 0u8..5, 0u16..4), 1..200),
        survivor in prop_oneof![Just(Survivor::Master), Just(Survivor::Writer), Just(Survivor::WriterAlone)],
        by_epoch in any::<bool>(),
    ) {
        let refusals = RefCell::new(0);
        let asks = RequestsOnAnyPage {
            requests: requests.iter(),
            survivor,
            by_epoch,
            settled: vec![None; 12],
            open: vec![0; 12],
            limited: memory != u64::MAX,
            refusals: &refusals,
        };
        run(&trace, &machine, &job, asks);
    }

    #[test]
    fn carrefour_knows_which_pages_have_copies(
        trace in traces(),
        (machine, job, _) in setups(),
        at_once in any::<bool>(),
        collapses in 0u64..4,
    ) {
        let parameters = CarrefourParameters {
            maptu: 0,
            reads_percent: 0,
            candidates: 1,
            decision_ns: 10_000,
            clustering: 0,
            collapses,
            ..CarrefourParameters::default()
        };
        let setting = Setting {
            nodes: 4,
            pages: 12,
            memory_nodes: 0b1111,
            near_memory_nodes: 0b1111,
            cpus_per_node: 4,
            clock_ghz: 1.0,
            every: 1,
            seed: 0,
        };
        let policy = Carrefour::new(&parameters, &setting).expect("policy");
        run(&trace, &machine, &job, ChecksCopies { policy, at_once });
    }
}

#[test]
fn a_watched_trace_gives_the_same_and_tells_what_was_read() {
    let (machine, trace) = (
        machine(2, CLOCK),
        each(2, &[0, 4], &[load(9, 0), store(9, 1)]),
    );
    let jobs = [job("first-touch", &[]), job("interleave", &[])];
    let read = AtomicU64::new(0);
    let watch = |misses| {
        read.fetch_max(misses, Ordering::Relaxed);
    };
    let watched = simulate(&Watched::new(&trace, &watch), &machine, &jobs, 2).expect("simulates");
    assert_eq!(
        watched,
        simulate(&trace, &machine, &jobs, 1).expect("simulates")
    );
    assert_eq!(
        read.into_inner(),
        2 * 4,
        "two replays of two threads' two misses"
    );
}
