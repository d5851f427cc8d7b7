//! Replay of a trace under one policy, event by event in order of simulated time.

mod assigning;
mod epochs;
mod fetching;
mod kernel_thread;
mod moving;
mod phases;
mod policy_requests;
mod sampling;
mod scheduling;

use nearpage_machine::{Energy, MoveCost};
use nearpage_online::{Action, Copies, Epoch, Observation, OnlinePolicy, View};
use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Miss, Served};
use rustc_hash::FxHashMap;

use self::assigning::{Assigning, moves_of};
use self::epochs::EpochCounts;
use self::kernel_thread::KernelThread;
use self::moving::{is_hit, is_store_hit};
use self::phases::Phases;
use self::policy_requests::PolicyRequests;
pub(crate) use self::sampling::Distances;
use self::sampling::SamplingState;
use self::scheduling::{Cpu, MARK, Running, Signal};
use crate::Error;
use crate::figures::{FS, Figures, TIME_MAX};
use crate::mappings::Mappings;
use crate::modified_lines::ModifiedLines;
use crate::options::{Flush, Information, Job};
use crate::outcome::Outcome;
use crate::pages::PageTable;
use crate::queues::Queues;
use crate::schedule::Scheduler;
use crate::thread::{MovePart, State, Thread};
use crate::timeline::Timeline;
use crate::tournament::{NEVER, Tournament};
use crate::trace::{ThreadSteps, Trace};

/// A policy without decisions, for static placements.
pub(crate) struct StaticPlacement;

impl OnlinePolicy for StaticPlacement {
    fn epoch_ns(&self) -> Option<u64> {
        None
    }
    fn observe(&mut self, _: &Observation, _: &mut Vec<Action>) {}
    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {}
    fn forget(&mut self, _: u32) {}
}

/// Replay of a trace. With `ACTIVE` false the policy is [`StaticPlacement`], and no counts are kept for policies.
pub(crate) struct Replay<'a, P, const ACTIVE: bool> {
    figures: &'a Figures,
    job: &'a Job,
    policy: P,
    threads: Vec<Thread<'a>>,
    turns: Tournament,
    cpus: Vec<Cpu>,
    running: Running,
    assigning: Assigning,
    signals: FxHashMap<u64, Signal>,
    pages: PageTable<'a>,
    queues: Queues,
    /// Lines that a cache holds modified, on machines with directories.
    modified: Option<ModifiedLines>,
    /// For each page, the CPUs (modulo 64) that have used the page since its last move; empty if all CPUs flush.
    mapped: Vec<u64>,
    /// Mapped copies, where moves cost by step.
    mappings: Option<Mappings>,
    /// Pages that a thread is moving, and the thread's number, where moves cost by step.
    locked: FxHashMap<u32, usize>,
    policy_requests: PolicyRequests,
    /// Process of each thread.
    applications: Vec<u16>,
    sampling: SamplingState,
    actions: Vec<Action>,
    kernel_thread: KernelThread,
    next_epoch: u64,
    epoch_length: u64,
    epoch: EpochCounts,
    /// Start of the phase that counts; `None` outside of the marked phases.
    since: Option<u64>,
    /// For each program, whether its marked phase is running.
    marked: Vec<bool>,
    phases: Phases,
    signals_missing: u64,
    /// Hits may be replayed before a thread's turn: there are no markers, TLB flushes or CPU partitions, through which
    /// another thread could read this thread's counts or take time from it at any moment.
    hits_unseen: bool,
    now: u64,
    timeline: Option<Timeline>,
    /// Start of the timeline's next part.
    next_part: u64,
}

impl<'a, P: OnlinePolicy, const ACTIVE: bool> Replay<'a, P, ACTIVE> {
    pub fn new(
        figures: &'a Figures,
        job: &'a Job,
        policy: P,
        trace: &'a dyn Trace,
        (homes, shared): (Option<Vec<Option<u16>>>, Option<Vec<bool>>),
        traced: Vec<ThreadSteps<'a>>,
    ) -> Result<Self, Error> {
        let (nodes, pages) = (figures.nodes, trace.pages());
        let epoch_length = policy
            .epoch_ns()
            .map_or(NEVER, |ns| ns.saturating_mul(FS as u64));
        let mut replay = Self {
            figures,
            job,
            threads: Vec::with_capacity(traced.len()),
            turns: Tournament::new(traced.len()),
            cpus: Vec::new(),
            running: Running::default(),
            assigning: Assigning::new(&job.schedule, trace, figures, &traced)?,
            signals: FxHashMap::default(),
            pages: PageTable::new(
                trace,
                figures,
                job.rule(),
                (homes, shared),
                job.options.memory_pages,
                ACTIVE,
            ),
            queues: Queues::new(figures),
            modified: (figures.directory > 0).then(ModifiedLines::default),
            mapped: vec![
                0;
                if ACTIVE && job.options.flush == Flush::Mapping {
                    pages
                } else {
                    0
                }
            ],
            mappings: (ACTIVE && matches!(figures.moves, MoveCost::Steps(_)))
                .then(|| Mappings::new(pages, traced.len())),
            locked: FxHashMap::default(),
            policy_requests: PolicyRequests::new(job, &policy, pages),
            applications: (0..traced.len())
                .map(|thread| trace.application(thread))
                .collect(),
            policy,
            sampling: SamplingState::new(figures, &job.options, traced.len()),
            actions: Vec::new(),
            kernel_thread: KernelThread::default(),
            next_epoch: epoch_length,
            epoch_length,
            epoch: EpochCounts::new(nodes),
            since: None,
            marked: vec![false; trace.programs()],
            phases: Phases::new(figures),
            signals_missing: 0,
            hits_unseen: !trace.may_be_marked()
                && job.schedule.scheduler != Scheduler::Partition
                && (!ACTIVE || matches!(figures.moves, MoveCost::Fixed(_))),
            now: 0,
            timeline: None,
            next_part: NEVER,
        };
        if job.options.movements_max > 0 {
            replay.pages.keep_movements(job.options.movements_max);
            let timeline = Timeline::new(nodes);
            replay.next_part = timeline.next();
            replay.timeline = Some(timeline);
        }
        for (number, traced) in traced.into_iter().enumerate() {
            replay.start_thread(number, traced, trace)?;
        }
        if ACTIVE {
            replay.introduce(trace);
        }
        replay.since = Some(replay.turns.least().0).filter(|&first| first != NEVER);
        Ok(replay)
    }

    /// Sets a thread to its beginning, where it waits for its turn, its creator's signal, or the marked phase.
    fn start_thread(
        &mut self,
        number: usize,
        (thread, steps): ThreadSteps<'a>,
        trace: &dyn Trace,
    ) -> Result<(), Error> {
        let node = self.figures.node(thread.cpu)?;
        let mut new = Thread::new(thread.thread, thread.cpu.0, node, steps);
        self.cpu(thread.cpu.0);
        new.time = thread
            .start_instructions
            .saturating_mul(self.figures.instruction);
        let (start, from_mark) = self.assigning.start(&self.job.schedule, number);
        if thread.started_by == 0 {
            new.time = new.time.saturating_add(start);
        }
        new.moves = moves_of(&self.job.schedule, trace.origin(thread.thread));
        new.since = new.time;
        new.result.began_ns = new.time as f64 / FS;
        new.result.program = trace.origin(thread.thread).0;
        new.watched.epoch.0 = new.time;
        if new.time > TIME_MAX {
            return Err(Error::TooLong);
        }
        if thread.started_by == 0 && from_mark {
            new.awaits = MARK;
        } else if thread.started_by == 0 {
            new.state = State::Arriving;
            self.turns.set(number, new.time);
        }
        self.threads.push(new);
        if thread.started_by > 0 {
            self.await_signal(thread.started_by, number);
        }
        Ok(())
    }

    /// Replays the trace to its end.
    pub fn run(mut self, clock_ghz: f64, energy: Option<&Energy>) -> Result<Outcome, Error> {
        loop {
            let (now, number) = self.turns.least();
            if now >= self.next_epoch {
                if now != NEVER {
                    self.end_epoch(number, now);
                } else if !self.release_one() {
                    break;
                }
                continue;
            }
            if now >= self.next_part {
                self.follow(now);
            }
            self.now = now;
            if ACTIVE && now >= self.kernel_thread.next {
                self.move_in_background();
                continue;
            }
            let thread = &self.threads[number];
            if now >= thread.alarm {
                self.attend(number, now)?;
            } else if let Some(miss) = thread.miss() {
                self.step(number, miss)?;
            } else {
                self.happen(number, thread.trace_event())?;
            }
        }
        // A thread with a time of `NEVER` has no more turns.
        if self.threads.iter().any(|thread| thread.time > TIME_MAX) {
            return Err(Error::TooLong);
        }
        Ok(self.outcome(clock_ghz, energy))
    }

    /// Replays a miss, and then hits that affect no other thread: these hits need not wait for the thread's turn.
    #[inline]
    fn step(&mut self, number: usize, mut miss: Miss) -> Result<(), Error> {
        let until = self.next_epoch.min(self.next_part);
        let until = until.min(self.kernel_thread.next);
        loop {
            self.fetch_ahead(number);
            if !self.miss(number, miss)? {
                break;
            }
            let thread = &mut self.threads[number];
            if !thread.advance(self.figures)? {
                return self.end_thread(number);
            }
            match thread.miss_before_more() {
                Some(next)
                    if self.hits_unseen
                        && thread.time < thread.alarm.min(until)
                        && self.is_unseen(&self.threads[number], next) =>
                {
                    miss = next;
                }
                _ => break,
            }
        }
        self.turns.set(number, self.threads[number].time);
        Ok(())
    }

    /// Is the reference a hit that changes only its thread's time and counts, in any order with other threads' steps?
    #[inline]
    fn is_unseen(&self, thread: &Thread<'_>, miss: Miss) -> bool {
        is_hit(miss.served)
            && self.pages.is_touched(miss.page.0)
            && (!ACTIVE || !(is_store_hit(miss) || self.may_show(thread, miss)))
    }

    /// May a hit be shown to the policy?
    fn may_show(&self, thread: &Thread<'_>, hit: Miss) -> bool {
        match self.job.options.information {
            Information::Cache => false,
            Information::Tlb => hit.tlb_miss,
            Information::Loads | Information::Clock => true,
            Information::ByPolicy => match self.policy_requests.view {
                View::All | View::Nothing => false,
                View::Samples { .. } => {
                    let [second, third] = self.figures.hit;
                    let done = thread.time + second.max(third) + self.figures.tlb_miss;
                    thread.watched.next_sample <= thread.watched.own(done)
                }
                View::Faults { .. } => self.policy_requests.is_unmapped(hit.page.0),
            },
        }
    }

    /// Handles interrupts, moves and other work of a thread before its next step.
    #[cold]
    fn attend(&mut self, number: usize, now: u64) -> Result<(), Error> {
        let thread = &mut self.threads[number];
        if thread.state == State::Arriving {
            return self.arrive(number);
        }
        if thread.penalty > 0 {
            let penalty = std::mem::take(&mut thread.penalty);
            thread.spend_moving_on(MovePart::FlushRequest, penalty);
        } else if !thread.moving.is_empty() {
            self.move_on(number);
        } else if thread.deadline <= now {
            self.interrupt(number);
        } else if thread.ordered.is_some() || thread.moves.front().is_some_and(|step| step.0 <= now)
        {
            return self.relocate(number, now);
        } else if self.preempt(number, now)? {
            return Ok(());
        }
        self.rearm(number);
        self.turns.set(number, self.threads[number].time);
        Ok(())
    }

    /// Updates the time of the thread's next work before a step.
    pub(super) fn rearm(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        let busy = thread.penalty > 0 || !thread.moving.is_empty() || thread.ordered.is_some();
        thread.alarm = if busy || thread.state != State::Running {
            0
        } else {
            let slice_end = self.cpus[thread.cpu as usize].slice_end;
            let moves = thread.moves.front().map_or(NEVER, |step| step.0);
            thread.deadline.min(slice_end).min(moves)
        };
    }

    #[inline]
    fn fetch_ahead(&self, number: usize) {
        if let Some(page) = self.threads[number].page_ahead() {
            self.pages.fetch_ahead(page);
            if ACTIVE {
                self.policy.fetch_ahead(page);
            }
        }
    }

    // ---- references ----

    /// Replays a reference at the thread's time; `false`: the thread must wait, and then repeat the reference.
    #[inline]
    fn miss(&mut self, number: usize, mut miss: Miss) -> Result<bool, Error> {
        let thread = &self.threads[number];
        let (node, now, page) = (thread.node, thread.time, miss.page.0);
        let mut copies = self.find(page, node, now)?;
        let thread = &mut self.threads[number];
        let mut latency = 0;
        let demand = matches!(
            miss.served,
            Served::Memory | Served::OtherCache | Served::Upgrade
        );
        if demand && !(thread.has_address(miss.depends_on) && thread.make_room(&miss, self.figures))
        {
            return Ok(false);
        }
        if ACTIVE && (demand || is_store_hit(miss)) && self.faults(number, miss, copies) {
            return Ok(false);
        }
        let mut thread = &mut self.threads[number];
        miss.instructions = miss.instructions.saturating_add(thread.noted_after);
        if miss.is_store_note() {
            // Samples are drawn among the instructions between two misses; a note does not divide them.
            thread.noted_after = miss.instructions;
            thread.watched.stored = Some(page);
            return Ok(true);
        }
        thread.noted_after = 0;
        if demand {
            let from = self.copy_in_use(number, page, copies);
            let lines = u64::from(miss.served != Served::Upgrade);
            latency = self.fetch(number, &miss, from);
            thread = &mut self.threads[number];
            if ACTIVE {
                self.pages.served(page, node, from);
                // Policies see the copy that served the miss: a copy on the thread's own node that its page table does
                // not map yet is hidden from them.
                if from != node {
                    copies.nodes &= !(1 << node);
                }
                if miss.kind == AccessKind::Fetch {
                    self.policy.fetched(page, miss.offset);
                }
                // Upgrades do not access memory.
                if lines > 0 {
                    let counts = if from == node {
                        &mut self.epoch.local
                    } else {
                        &mut self.epoch.remote
                    };
                    counts[usize::from(node)] += 1;
                    let store = miss.kind == AccessKind::Store;
                    self.epoch.reads += u64::from(!store);
                    thread.watched.served[usize::from(store)] += 1;
                }
            }
        } else if miss.served == Served::WriteBack {
            if let Some(modified) = &mut self.modified {
                modified.detour(&miss, node, copies.home, self.figures);
            }
            self.queues.write_back(node, copies.home, now, self.figures);
            thread.watched.written_back += u64::from(ACTIVE);
        } else if !miss.sampled {
            latency = match miss.served {
                Served::L2 => self.figures.hit[0],
                Served::L3 => self.figures.hit[1],
                _ => 0,
            };
            thread.compute(latency);
        }
        if ACTIVE && miss.served != Served::WriteBack {
            miss.tlb_miss |= thread.lacks_translation(page);
        }
        if miss.tlb_miss {
            thread.compute(self.figures.tlb_miss);
        }
        if ACTIVE {
            if let Some(mapped) = self.mapped.get_mut(page as usize) {
                *mapped |= 1 << (thread.cpu % 64);
            }
            self.inform(number, miss, copies, latency, demand);
        }
        Ok(true)
    }

    /// Shows a reference to the policy if the policy's source of information includes the reference. Inlined because
    /// every miss under an active policy comes here.
    #[inline(always)]
    fn inform(&mut self, number: usize, miss: Miss, copies: Copies, latency: u64, demand: bool) {
        let shown = match self.job.options.information {
            Information::Cache => demand,
            Information::Tlb => miss.tlb_miss,
            Information::ByPolicy => match self.policy_requests.view {
                View::All => demand,
                View::Nothing => false,
                View::Samples { .. } | View::Faults { .. } => {
                    self.look(number, miss, copies);
                    false
                }
            },
            Information::Loads => {
                miss.kind == AccessKind::Load && latency >= self.sampling.latency_min
            }
            Information::Clock => {
                for _ in 0..self.sampling.clock_samples(number, latency) {
                    self.observe(number, miss, copies);
                }
                false
            }
        };
        let node = self.threads[number].node;
        if shown && self.sampling.distances.is_selected(node) {
            self.observe(number, miss, copies);
        }
    }

    #[inline]
    fn observe(&mut self, number: usize, miss: Miss, copies: Copies) {
        if !self.pages.may_move(miss.page.0) {
            return;
        }
        let thread = &self.threads[number];
        let observation = Observation {
            page: miss.page.0,
            node: thread.node,
            thread: thread.index,
            kind: miss.kind,
            served: miss.served,
            copies,
            pressure: self.pages.pressure(thread.node, self.figures),
        };
        self.policy.observe(&observation, &mut self.actions);
        if !self.actions.is_empty() {
            self.request(number);
        }
    }
}
