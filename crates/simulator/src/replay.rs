//! The replay of a trace under one policy: events in order of simulated time.

use std::collections::VecDeque;

use nearpage_machine::{Energy, MoveCost};
use nearpage_policy::online::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, Reason,
};
use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Happening, Miss, Served};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::figures::{FS, Figures, femtoseconds};
use crate::options::{Flush, Information, Job};
use crate::outcome::{Outcome, Split, ThreadOutcome};
use crate::pages::{PageCounts, PageTable};
use crate::server::Server;
use crate::thread::{State, Step, Then, Thread};
use crate::tournament::{NEVER, Tournament};
use crate::trace::{ThreadSteps, Trace};

/// A policy that does nothing, for placements that stay.
pub(crate) struct Still;

impl OnlinePolicy for Still {
    fn epoch_ns(&self) -> Option<u64> {
        None
    }
    fn observe(&mut self, _: &Observation, _: &mut Vec<Action>) {}
    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {}
    fn forget(&mut self, _: u32) {}
}

/// A CPU that threads take turns on.
#[derive(Default)]
struct Cpu {
    running: bool,
    queue: VecDeque<usize>,
    slice_end: u64,
}

/// What is known of a signal.
enum Signal {
    Sent,
    AwaitedBy(Vec<usize>),
}

/// What requests queue for. A request takes its place in all the queues on its way when it is
/// issued, and is served when the last of them has come to it: while it waits in one, the others
/// drain.
struct Queues {
    controllers: Vec<Server>,
    directories: Vec<Server>,
    links: Vec<Server>,
    /// The lock that moving pages takes (memlock, §8.1).
    lock: Server,
}

impl Queues {
    /// Wait of a request from a CPU on `node` to memory on `memory`; `lines` of data come back, 0 for
    /// an upgrade.
    #[inline]
    fn wait(&mut self, node: u16, memory: u16, now: u64, lines: u64, figures: &Figures) -> u64 {
        let mut wait = 0;
        if lines > 0 {
            let controller = &mut self.controllers[usize::from(memory)];
            wait = controller.wait(now, lines * figures.controller);
            controller.requests += lines - 1;
        }
        if figures.directory > 0 {
            wait = wait.max(self.directories[usize::from(node)].wait(now, figures.directory));
            if memory != node {
                wait = wait.max(self.directories[usize::from(memory)].wait(now, figures.directory));
            }
        }
        if node != memory && !self.links.is_empty() {
            let pair = usize::from(node) * figures.nodes + usize::from(memory);
            for &link in &figures.routes[pair] {
                let service = lines * figures.links[usize::from(link)];
                wait = wait.max(self.links[usize::from(link)].wait(now, service));
            }
        }
        wait
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Server> {
        self.controllers
            .iter_mut()
            .chain(&mut self.directories)
            .chain(&mut self.links)
    }
}

/// Misses of a node's CPUs in an epoch.
#[derive(Default)]
struct EpochCounts {
    local: Vec<u64>,
    remote: Vec<u64>,
    reads: u64,
    /// At its beginning.
    instructions: u64,
    requests: Vec<u64>,
}

/// A replay under way. `ACTIVE` is false where the policy is [`Still`]: nothing is counted for it.
pub(crate) struct Replay<'a, P, const ACTIVE: bool> {
    figures: &'a Figures,
    job: &'a Job,
    policy: P,
    threads: Vec<Thread<'a>>,
    turns: Tournament,
    cpus: Vec<Cpu>,
    signals: FxHashMap<u64, Signal>,
    pages: PageTable<'a>,
    queues: Queues,
    /// By page, CPUs (modulo 64) that have used it since it last moved; empty where all flush.
    mapped: Vec<u64>,
    /// By node, references since the last one that the policy was shown.
    unseen: Vec<u32>,
    actions: Vec<Action>,
    next_epoch: u64,
    epoch_length: u64,
    epoch: EpochCounts,
    /// The phase that counts: since when, or not now.
    since: Option<u64>,
    marked: bool,
    phases: Phases,
    signals_missing: u64,
    now: u64,
}

/// Sums over the phases that counted.
#[derive(Default)]
struct Phases {
    time: u64,
    latency: [u128; 2],
    instructions: u64,
    load: Vec<u64>,
    link_busy: Vec<u64>,
    pages: PageCounts,
}

impl<'a, P: OnlinePolicy, const ACTIVE: bool> Replay<'a, P, ACTIVE> {
    pub fn new(
        figures: &'a Figures,
        job: &'a Job,
        policy: P,
        trace: &'a dyn Trace,
        homes: Option<Vec<Option<u16>>>,
        traced: Vec<ThreadSteps<'a>>,
    ) -> Result<Self, Error> {
        let (nodes, pages) = (figures.nodes, trace.pages());
        let servers = |count: usize| vec![Server::default(); count];
        let epoch_length = policy
            .epoch_ns()
            .map_or(NEVER, |ns| ns.saturating_mul(FS as u64));
        let mut replay = Self {
            figures,
            job,
            policy,
            threads: Vec::with_capacity(traced.len()),
            turns: Tournament::new(traced.len()),
            cpus: Vec::new(),
            signals: FxHashMap::default(),
            pages: PageTable::new(
                trace,
                figures,
                job.rule(),
                homes,
                job.options.memory_pages,
                ACTIVE,
            ),
            queues: Queues {
                controllers: servers(nodes),
                directories: servers(nodes),
                links: servers(figures.links.len()),
                lock: Server::default(),
            },
            mapped: vec![
                0;
                if ACTIVE && job.options.flush == Flush::Mapping {
                    pages
                } else {
                    0
                }
            ],
            unseen: vec![0; nodes],
            actions: Vec::new(),
            next_epoch: epoch_length,
            epoch_length,
            epoch: EpochCounts {
                local: vec![0; nodes],
                remote: vec![0; nodes],
                requests: vec![0; nodes],
                ..EpochCounts::default()
            },
            since: None,
            marked: false,
            phases: Phases {
                load: vec![0; nodes],
                link_busy: vec![0; figures.links.len()],
                ..Phases::default()
            },
            signals_missing: 0,
            now: 0,
        };
        for (number, (thread, steps)) in traced.into_iter().enumerate() {
            let node = figures.node(thread.cpu)?;
            let mut new = Thread::new(thread.thread, thread.cpu.0, node, steps);
            replay.cpu(thread.cpu.0);
            new.time = thread
                .start_instructions
                .saturating_mul(figures.instruction);
            new.since = new.time;
            if new.time > u64::MAX / 2 {
                return Err(Error::TooLong);
            }
            if thread.started_by == 0 {
                new.state = State::Arriving;
                replay.turns.set(number, new.time);
            }
            replay.threads.push(new);
            if thread.started_by > 0 {
                replay.await_signal(thread.started_by, number);
            }
        }
        replay.since = replay.turns.least().map(|first| first.0);
        Ok(replay)
    }

    /// Replays to the end.
    pub fn run(mut self, clock_ghz: f64, energy: Option<&Energy>) -> Result<Outcome, Error> {
        loop {
            let Some((now, number)) = self.turns.least() else {
                if self.release_one() {
                    continue;
                }
                break;
            };
            self.now = now;
            if now >= self.next_epoch {
                self.end_epoch(number, now);
                continue;
            }
            let thread = &mut self.threads[number];
            if thread.state == State::Arriving {
                self.arrive(number)?;
                continue;
            }
            if thread.penalty > 0 {
                let penalty = std::mem::take(&mut thread.penalty);
                thread.spend_moving(penalty);
            } else if !thread.moving.is_empty() {
                self.move_on(number);
            } else if thread.deadline <= now {
                self.interrupt(number);
            } else if now >= self.cpus[thread.cpu as usize].slice_end
                && self.preempt(number, now)?
            {
                continue;
            } else {
                match self.threads[number].step() {
                    Step::Miss(miss) => {
                        if self.miss(number, miss)?
                            && !self.threads[number].advance(self.figures)?
                        {
                            self.end_thread(number)?;
                            continue;
                        }
                    }
                    Step::Happening(happening) => {
                        self.happen(number, happening)?;
                        continue;
                    }
                }
            }
            self.turns.set(number, self.threads[number].time);
        }
        Ok(self.outcome(clock_ghz, energy))
    }

    // ---- references ----

    /// A reference at the thread's time; `false`: the thread must come back for it later.
    #[inline]
    fn miss(&mut self, number: usize, miss: Miss) -> Result<bool, Error> {
        let thread = &mut self.threads[number];
        let (node, now, page) = (thread.node, thread.time, miss.page.0);
        let copies = self.pages.find(page, node, now, self.figures)?;
        let demand = matches!(
            miss.served,
            Served::Memory | Served::OtherCache | Served::Upgrade
        );
        if demand {
            if !thread.make_room(self.figures) {
                return Ok(false);
            }
            if miss.kind == AccessKind::Store && !copies.nodes.is_power_of_two() {
                self.collapse(number, page, copies);
                return Ok(false);
            }
            let from = self.figures.nearest_copy(node, copies.nodes);
            let lines = u64::from(miss.served != Served::Upgrade);
            let wait = self.queues.wait(node, from, now, lines, self.figures);
            let pair = usize::from(node) * self.figures.nodes + usize::from(from);
            let latency = self.figures.latency[pair] + wait;
            thread.issue(
                latency,
                from != node,
                miss.kind == AccessKind::Fetch,
                self.figures,
            );
            self.pages.served(page, node, from);
            if ACTIVE {
                let counts = if from == node {
                    &mut self.epoch.local
                } else {
                    &mut self.epoch.remote
                };
                counts[usize::from(node)] += 1;
                self.epoch.reads += u64::from(miss.kind != AccessKind::Store);
            }
        } else if miss.served == Served::WriteBack {
            // Nobody waits, but the line goes over the links to memory. From the memory's side it
            // is a line that a CPU there fetches from here.
            let home = copies.home;
            self.queues.controllers[usize::from(home)].wait(now, self.figures.controller);
            if home != node {
                let pair = usize::from(home) * self.figures.nodes + usize::from(node);
                for &link in &self.figures.routes[pair] {
                    let service = self.figures.links[usize::from(link)];
                    self.queues.links[usize::from(link)].wait(now, service);
                }
            }
            if self.figures.directory > 0 {
                self.queues.directories[usize::from(home)].wait(now, self.figures.directory);
            }
        } else if !miss.sampled {
            match miss.served {
                Served::L2 => thread.compute(self.figures.hit[0]),
                Served::L3 => thread.compute(self.figures.hit[1]),
                _ => {}
            }
        }
        if miss.tlb_miss {
            thread.compute(self.figures.tlb_miss);
        }
        if ACTIVE {
            if let Some(mapped) = self.mapped.get_mut(page as usize) {
                *mapped |= 1 << (thread.cpu % 64);
            }
            let shown = match self.job.options.information {
                Information::Cache => demand,
                Information::Tlb => miss.tlb_miss,
            };
            if shown {
                self.show(number, miss, copies);
            }
        }
        Ok(true)
    }

    /// Shows the policy one in so many references.
    #[inline]
    fn show(&mut self, number: usize, miss: Miss, copies: Copies) {
        let thread = &self.threads[number];
        let every = self.job.options.every;
        if every > 1 {
            let unseen = &mut self.unseen[usize::from(thread.node)];
            *unseen += 1;
            if *unseen < every {
                return;
            }
            *unseen = 0;
        }
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

    // ---- moving pages ----

    /// What the policy asked for: done at once where moves have a fixed cost, otherwise collected.
    #[cold]
    fn request(&mut self, number: usize) {
        let actions = std::mem::take(&mut self.actions);
        let thread = &mut self.threads[number];
        match self.figures.moves {
            MoveCost::Fixed(ns) => {
                for action in &actions {
                    if self.pages.apply(action, thread.time, self.figures) {
                        self.mapped
                            .get_mut(action.page as usize)
                            .into_iter()
                            .for_each(|cpus| *cpus = 0);
                        thread.spend_moving(femtoseconds(ns));
                    }
                }
            }
            MoveCost::Steps(_) => {
                thread.hot.extend(actions);
                if thread.hot.len() as u64 >= self.job.options.batch_pages {
                    thread.deadline = 0;
                } else if thread.deadline == NEVER {
                    thread.deadline = thread
                        .time
                        .saturating_add(self.job.options.batch_ns * FS as u64);
                }
            }
        }
    }

    /// The CPU is interrupted for the hot pages that were collected (step 2 of Figure 8.1).
    fn interrupt(&mut self, number: usize) {
        let MoveCost::Steps(steps) = self.figures.moves else {
            return;
        };
        let thread = &mut self.threads[number];
        thread.deadline = NEVER;
        thread.moving = std::mem::take(&mut thread.hot);
        thread.moved = 0;
        thread.spend_moving(femtoseconds(steps.interrupt_ns + steps.decision_ns));
    }

    /// The next step of an interrupt: a page through the lock, or, after the last, the flush, the
    /// copies, and the end.
    fn move_on(&mut self, number: usize) {
        let MoveCost::Steps(steps) = self.figures.moves else {
            return;
        };
        let thread = &mut self.threads[number];
        let replica = |action: &Action| action.kind == ActionKind::Replicate;
        if let Some(action) = thread.moving.get(thread.moved) {
            // Step 3 decided; what has been done meanwhile is not done again.
            if self.pages.source(action, self.figures).is_none() {
                thread.moving.remove(thread.moved);
            } else {
                let (locked, unlocked) = if replica(action) {
                    (steps.allocation_ns, steps.mapping_replica_ns)
                } else {
                    (steps.allocation_ns + steps.mapping_migration_ns, 0.0)
                };
                let locked = femtoseconds(locked);
                let wait = self.queues.lock.wait(thread.time, locked);
                thread.spend_moving(wait + locked + femtoseconds(unlocked));
                thread.moved += 1;
            }
            if thread.moved < thread.moving.len() {
                thread.spend_moving(femtoseconds(steps.decision_ns));
            }
            return;
        }
        let moving = std::mem::take(&mut thread.moving);
        if moving.is_empty() {
            return;
        }
        let (cpu, node) = (thread.cpu, thread.node);
        thread.spend_moving(femtoseconds(steps.flush_ns));
        let mut users = 0;
        for action in &moving {
            let Some(from) = self.pages.source(action, self.figures) else {
                continue;
            };
            let thread = &mut self.threads[number];
            if !self.pages.apply(action, thread.time, self.figures) {
                continue;
            }
            let lines = self.figures.lines_per_page;
            let read = self
                .queues
                .wait(node, from, thread.time, lines, self.figures);
            let written = self.queues.controllers[usize::from(action.node)]
                .wait(thread.time, lines * self.figures.controller);
            self.queues.controllers[usize::from(action.node)].requests += lines - 1;
            let end = if replica(action) {
                steps.end_replica_ns
            } else {
                steps.end_migration_ns
            };
            thread.spend_moving(read.max(written) + femtoseconds(steps.copy_ns + end));
            users |= self.users(action.page);
        }
        self.flush_others(cpu, users, femtoseconds(steps.flush_request_ns));
    }

    /// CPUs (modulo 64) that must flush for a page, which nobody maps from now on.
    fn users(&mut self, page: u32) -> u64 {
        self.mapped
            .get_mut(page as usize)
            .map_or(u64::MAX, std::mem::take)
    }

    /// Other CPUs lose the time of a flush.
    fn flush_others(&mut self, cpu: u32, users: u64, cost: u64) {
        for thread in &mut self.threads {
            if thread.state == State::Running
                && thread.cpu != cpu
                && users >> (thread.cpu % 64) & 1 == 1
            {
                thread.penalty += cost;
            }
        }
    }

    /// A store to a page that is replicated: a protection fault, after which only the master copy
    /// is left (§8.1).
    #[cold]
    fn collapse(&mut self, number: usize, page: u32, copies: Copies) {
        let reason = Reason {
            rule: "a store to replicated page",
            counts: Vec::new(),
            writes: 1,
            migrations: 0,
        };
        let action = Action {
            page,
            kind: ActionKind::Collapse,
            node: copies.home,
            reason,
        };
        let thread = &mut self.threads[number];
        self.pages.apply(&action, thread.time, self.figures);
        match self.figures.moves {
            MoveCost::Fixed(ns) => thread.spend_moving(femtoseconds(ns)),
            MoveCost::Steps(steps) => {
                // The replicas' pages are freed under the lock, as long as a migration's mapping.
                let locked = femtoseconds(steps.mapping_migration_ns);
                let wait = self.queues.lock.wait(thread.time, locked);
                let rest = steps.fault_ns + steps.flush_ns + steps.end_migration_ns;
                thread.spend_moving(wait + locked + femtoseconds(rest));
                let cpu = thread.cpu;
                let users = self.users(page);
                self.flush_others(cpu, users, femtoseconds(steps.flush_request_ns));
            }
        }
    }

    #[cold]
    fn end_epoch(&mut self, number: usize, now: u64) {
        let instructions = self.threads.iter().map(Thread::executed).sum::<u64>();
        let requests: Vec<u64> = self
            .queues
            .controllers
            .iter()
            .map(|server| server.requests)
            .collect();
        let served = requests.iter().zip(&self.epoch.requests);
        let controller_requests: Vec<u64> = served
            .map(|(after, before)| after.saturating_sub(*before))
            .collect();
        let epoch = Epoch {
            duration_ns: self.epoch_length / FS as u64,
            controller_requests: &controller_requests,
            local: &self.epoch.local,
            remote: &self.epoch.remote,
            reads: self.epoch.reads,
            instructions: instructions.saturating_sub(self.epoch.instructions),
            free_share: self.pages.free_share(self.figures),
            ..Epoch::default()
        };
        self.policy.end_epoch(&epoch, &mut self.actions);
        self.pages.end_epoch();
        self.epoch.local.fill(0);
        self.epoch.remote.fill(0);
        self.epoch.reads = 0;
        self.epoch.instructions = instructions;
        self.epoch.requests = requests;
        self.next_epoch = self.next_epoch.saturating_add(self.epoch_length);
        if !self.actions.is_empty() {
            self.threads[number].time = self.threads[number].time.max(now);
            self.request(number);
            self.turns.set(number, self.threads[number].time);
        }
    }

    // ---- threads and CPUs ----

    fn happen(&mut self, number: usize, happening: Happening) -> Result<(), Error> {
        let thread = &mut self.threads[number];
        if let Happening::FirstTouch(page) = happening {
            self.pages
                .find(page.0, thread.node, thread.time, self.figures)?;
            return self.go_on(number);
        }
        // What follows leaves the CPU, or lets others see what was stored.
        let before = thread.time;
        thread.drain();
        if !thread.hot.is_empty() {
            thread.deadline = 0;
        }
        if thread.time > before || !thread.hot.is_empty() {
            self.turns.set(number, thread.time);
            return Ok(());
        }
        let now = thread.time;
        match happening {
            Happening::FirstTouch(_) => {}
            Happening::Signal { sequence } => self.send(sequence, now),
            Happening::Resume {
                after,
                waited_instructions,
            } => {
                let waited = waited_instructions.saturating_mul(self.figures.instruction);
                if now.saturating_add(waited) > u64::MAX / 2 {
                    return Err(Error::TooLong);
                }
                if after == 0 {
                    thread.wait_until(now + waited);
                    return self.leave_cpu(number, now, State::Arriving, Then::Advance);
                }
                if !self.await_signal(after, number) {
                    let blocked = State::Blocked { otherwise: waited };
                    return self.leave_cpu(number, now, blocked, Then::Advance);
                }
            }
            Happening::Move(cpu) => {
                let node = self.figures.node(cpu)?;
                self.leave_cpu(number, now, State::Arriving, Then::Advance)?;
                let thread = &mut self.threads[number];
                (thread.cpu, thread.node) = (cpu.0, node);
                self.cpu(cpu.0);
                return Ok(());
            }
            Happening::Mark { begin } => self.mark(begin, now),
        }
        self.go_on(number)
    }

    /// The current step is done.
    fn go_on(&mut self, number: usize) -> Result<(), Error> {
        if self.threads[number].advance(self.figures)? {
            self.turns.set(number, self.threads[number].time);
            Ok(())
        } else {
            self.end_thread(number)
        }
    }

    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        if self.cpus.len() <= cpu as usize {
            self.cpus.resize_with(cpu as usize + 1, Cpu::default);
        }
        &mut self.cpus[cpu as usize]
    }

    /// The thread gives up its CPU, for another's turn.
    fn leave_cpu(
        &mut self,
        number: usize,
        now: u64,
        state: State,
        then: Then,
    ) -> Result<(), Error> {
        let thread = &mut self.threads[number];
        (thread.state, thread.then) = (state, then);
        let key = if state == State::Arriving {
            thread.time
        } else {
            NEVER
        };
        self.turns.set(number, key);
        let cpu = &mut self.cpus[thread.cpu as usize];
        cpu.running = false;
        match cpu.queue.pop_front() {
            Some(next) => self.grant(next, now),
            None => Ok(()),
        }
    }

    /// A thread is ready: it gets its CPU, or a place in the queue for it.
    fn arrive(&mut self, number: usize) -> Result<(), Error> {
        let (cpu, now) = (self.threads[number].cpu, self.threads[number].time);
        if !self.cpus[cpu as usize].running {
            return self.grant(number, now);
        }
        self.cpus[cpu as usize].queue.push_back(number);
        self.threads[number].state = State::Queueing;
        self.turns.set(number, NEVER);
        Ok(())
    }

    fn grant(&mut self, number: usize, now: u64) -> Result<(), Error> {
        let thread = &mut self.threads[number];
        thread.wait_until(now);
        thread.state = State::Running;
        let cpu = &mut self.cpus[thread.cpu as usize];
        cpu.running = true;
        cpu.slice_end = thread
            .time
            .saturating_add(self.job.options.slice_ns.saturating_mul(FS as u64));
        let goes_on = match thread.then {
            Then::Reach => thread.reach(self.figures)?,
            Then::Advance => thread.advance(self.figures)?,
            Then::Step => true,
        };
        if goes_on {
            self.turns.set(number, thread.time);
            Ok(())
        } else {
            self.end_thread(number)
        }
    }

    /// A thread's time slice is over; `false`: nobody else wants its CPU.
    #[cold]
    fn preempt(&mut self, number: usize, now: u64) -> Result<bool, Error> {
        let cpu = &mut self.cpus[self.threads[number].cpu as usize];
        if cpu.queue.is_empty() {
            cpu.slice_end = now.saturating_add(self.job.options.slice_ns.saturating_mul(FS as u64));
            return Ok(false);
        }
        cpu.queue.push_back(number);
        self.leave_cpu(number, now, State::Queueing, Then::Step)?;
        Ok(true)
    }

    fn end_thread(&mut self, number: usize) -> Result<(), Error> {
        self.threads[number].drain();
        let now = self.threads[number].time;
        self.leave_cpu(number, now, State::Ended, Then::Step)
    }

    /// Was the signal sent? Otherwise the thread is noted as waiting for it.
    fn await_signal(&mut self, sequence: u64, number: usize) -> bool {
        match self
            .signals
            .entry(sequence)
            .or_insert_with(|| Signal::AwaitedBy(Vec::new()))
        {
            Signal::Sent => true,
            Signal::AwaitedBy(waiters) => {
                waiters.push(number);
                self.threads[number].awaits = sequence;
                false
            }
        }
    }

    fn send(&mut self, sequence: u64, now: u64) {
        if let Some(Signal::AwaitedBy(waiters)) = self.signals.insert(sequence, Signal::Sent) {
            for number in waiters {
                if self.threads[number].awaits == sequence {
                    self.wake(number, now);
                }
            }
        }
    }

    fn wake(&mut self, number: usize, now: u64) {
        let thread = &mut self.threads[number];
        thread.awaits = 0;
        if thread.state == State::Unborn {
            (thread.time, thread.since) = (now, now);
        } else {
            thread.wait_until(now);
        }
        thread.state = State::Arriving;
        self.turns.set(number, thread.time);
    }

    /// All threads wait: the first that would have gone on while tracing does. `false`: none waits.
    fn release_one(&mut self) -> bool {
        let until = |thread: &Thread<'_>| match thread.state {
            State::Unborn => Some(thread.time),
            State::Blocked { otherwise } => Some(thread.time.saturating_add(otherwise)),
            _ => None,
        };
        let waiting = self.threads.iter().enumerate();
        let first = waiting
            .filter_map(|(number, thread)| Some((until(thread)?, number)))
            .min();
        let Some((time, number)) = first else {
            return false;
        };
        self.signals_missing += 1;
        self.wake(number, time.max(self.now));
        true
    }

    // ---- results ----

    fn mark(&mut self, begin: bool, now: u64) {
        if begin && !(self.marked && self.since.is_some()) {
            self.marked = true;
            self.since = Some(now);
            self.threads.iter_mut().for_each(Thread::restart);
            self.queues.all().for_each(Server::restart);
            self.epoch.requests.fill(0);
            self.pages.restart(now);
        } else if !begin && self.marked {
            self.collect(now);
        }
    }

    /// Adds what was counted since the phase began to the result; the phase is over.
    fn collect(&mut self, now: u64) {
        let Some(since) = self.since.take() else {
            return;
        };
        let phases = &mut self.phases;
        phases.time += now.saturating_sub(since);
        for thread in &mut self.threads {
            thread.collect();
            phases.instructions += thread.totals.instructions;
            for side in 0..2 {
                phases.latency[side] += thread.totals.latency[side];
            }
        }
        for (sum, server) in phases.load.iter_mut().zip(&self.queues.controllers) {
            *sum += server.requests;
        }
        for (sum, server) in phases.link_busy.iter_mut().zip(&self.queues.links) {
            *sum += server.busy;
        }
        phases.pages.add(&self.pages.counted(now));
    }

    fn outcome(&mut self, clock_ghz: f64, energy: Option<&Energy>) -> Outcome {
        let end = self
            .threads
            .iter()
            .map(|thread| thread.time)
            .max()
            .unwrap_or(0);
        self.collect(end);
        #[cfg(test)]
        self.pages.check();
        let threads: Vec<ThreadOutcome> = self.threads.iter().map(|thread| thread.result).collect();
        let sum = |of: &dyn Fn(&Split) -> f64| threads.iter().map(|thread| of(&thread.split)).sum();
        let split = Split {
            compute_ns: sum(&|split| split.compute_ns),
            local_stall_ns: sum(&|split| split.local_stall_ns),
            remote_stall_ns: sum(&|split| split.remote_stall_ns),
            move_ns: sum(&|split| split.move_ns),
            wait_ns: sum(&|split| split.wait_ns),
        };
        let local: u64 = threads.iter().map(|thread| thread.local).sum();
        let remote: u64 = threads.iter().map(|thread| thread.remote).sum();
        let Phases {
            time,
            latency,
            instructions,
            load,
            link_busy,
            pages,
        } = &self.phases;
        let mean = |sum: u128, count: u64| (count > 0).then(|| sum as f64 / FS / count as f64);
        let time_ns = *time as f64 / FS;
        let copied = pages.migrated + pages.replicated + pages.interleaved;
        let unlimited = self.figures.links.iter().all(|&service| service == 0);
        Outcome {
            policy: self.job.policy.name().to_owned(),
            parameters: self.job.parameters(),
            time_ns,
            split,
            misses: local + remote,
            local,
            local_latency_ns: mean(latency[0], local),
            remote_latency_ns: mean(latency[1], remote),
            controller_load: load.clone(),
            link_use: match unlimited {
                true => Vec::new(),
                false => link_busy
                    .iter()
                    .map(|&busy| busy as f64 / (*time).max(1) as f64)
                    .collect(),
            },
            instructions: *instructions,
            clock_ghz,
            migrated: pages.migrated,
            replicated: pages.replicated,
            interleaved: pages.interleaved,
            collapsed: pages.collapsed,
            reclaimed: pages.reclaimed,
            ping_pong: pages.ping_pong,
            multiple: pages.multiple,
            incorrect: pages.incorrect,
            pages_mean: pages.page_time as f64 / (*time).max(1) as f64,
            pages_max: pages.pages_max,
            energy_j: energy.map(|energy| {
                let nj = local as f64 * energy.local_nj
                    + remote as f64 * energy.remote_nj
                    + copied as f64 * energy.page_copy_nj;
                (nj + time_ns * energy.static_w) * 1e-9
            }),
            signals_missing: self.signals_missing,
            overcommitted: pages.overcommitted,
            threads,
        }
    }
}
