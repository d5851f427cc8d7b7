//! Assignment of threads to CPUs by the schedule.

use std::collections::VecDeque;

use nearpage_machine::CpuId;
use nearpage_online::OnlinePolicy;

use super::Replay;
use crate::Error;
use crate::figures::{FS, Figures};
use crate::schedule::{Schedule, Scheduler};
use crate::thread::{Resumption, State};
use crate::trace::{ThreadSteps, Trace};

/// State of the scheduler.
pub(super) struct Assigning {
    pub scheduler: Scheduler,
    cpus: Vec<u32>,
    /// Positions of each program's threads, in order of creation.
    programs: Vec<Vec<usize>>,
    /// Program of each thread.
    pub program_of: Vec<usize>,
    /// For each program: has it begun, and not ended?
    active: Vec<bool>,
    /// Number of times that threads moved to another CPU, and lines that they were charged for refilling.
    pub moved: u64,
    pub refilled_lines: u64,
    /// CPU time of each thread, under [`Scheduler::Affinity`].
    usage: Vec<Usage>,
    affinity: u64,
}

/// One second in femtoseconds: after each second, earlier CPU time counts half.
const SECOND: u64 = 1_000_000_000 * FS as u64;

/// Recent CPU time of a thread, as UNIX counts it for priorities.
#[derive(Clone, Copy, Default)]
struct Usage {
    /// CPU time as of `until`, in femtoseconds.
    time: u64,
    until: u64,
}

impl Usage {
    fn at(self, now: u64) -> u64 {
        let seconds = (now / SECOND).saturating_sub(self.until / SECOND);
        self.time >> seconds.min(63)
    }

    /// Counts the time up to `now` if the thread was running.
    fn follow(&mut self, now: u64, running: bool) {
        let more = now.saturating_sub(self.until);
        *self = Self {
            time: self.at(now) + if running { more } else { 0 },
            until: now.max(self.until),
        };
    }
}

impl Assigning {
    pub fn new(
        schedule: &Schedule,
        trace: &dyn Trace,
        figures: &Figures,
        threads: &[ThreadSteps<'_>],
    ) -> Result<Self, Error> {
        let indices: Vec<_> = threads.iter().map(|thread| thread.0.thread).collect();
        schedule.check(trace, &indices, figures)?;
        let mut programs = vec![Vec::new(); trace.programs()];
        let mut program_of = Vec::with_capacity(threads.len());
        for (number, index) in indices.into_iter().enumerate() {
            let program = trace.origin(index).0;
            programs[program].push(number);
            program_of.push(program);
        }
        Ok(Self {
            scheduler: schedule.scheduler,
            cpus: figures.cpus().collect(),
            active: vec![false; programs.len()],
            programs,
            usage: vec![Usage::default(); program_of.len()],
            program_of,
            moved: 0,
            refilled_lines: 0,
            affinity: schedule.least_behind_ns().saturating_mul(FS as u64),
        })
    }

    /// Counts CPU time: a thread gets its CPU (`running` is false), or has had the CPU up to now.
    pub fn count(&mut self, number: usize, now: u64, running: bool) {
        if self.scheduler == Scheduler::Affinity {
            self.usage[number].follow(now, running);
        }
    }

    /// The thread with the least recent CPU time; of equal threads, the first. Without [`Scheduler::Affinity`], CPU
    /// time is not counted and the first thread is chosen.
    fn least_used<'a>(
        &self,
        waiting: impl IntoIterator<Item = &'a usize>,
        now: u64,
    ) -> Option<usize> {
        let waiting = waiting.into_iter().copied();
        waiting.min_by_key(|&number| self.usage[number].at(now))
    }

    /// Start of a thread's program, and whether the start is relative to the begin of the first marked phase.
    pub fn start(&self, schedule: &Schedule, number: usize) -> (u64, bool) {
        let program = schedule.programs.get(self.program_of[number]);
        program.map_or((0, false), |program| {
            (
                program.start_ns.saturating_mul(FS as u64),
                program.from_mark,
            )
        })
    }
}

/// The schedule's moves of one thread: times in femtoseconds, and CPUs.
pub(super) fn moves_of(
    schedule: &Schedule,
    origin: (usize, nearpage_recording::ThreadIndex),
) -> VecDeque<(u64, u32)> {
    let of_thread = schedule
        .moves
        .iter()
        .filter(|step| (step.program, step.thread) == (origin.0 + 1, origin.1.0));
    let mut moves: Vec<(u64, u32)> = of_thread
        .map(|step| (step.at_ns.saturating_mul(FS as u64), step.cpu))
        .collect();
    moves.sort_by_key(|step| step.0);
    moves.into()
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    /// Orders a thread to continue on `cpu` from its next step on.
    pub(super) fn order(&mut self, number: usize, cpu: u32) {
        let now = self.now;
        self.threads[number].ordered = Some(cpu);
        match self.threads[number].state {
            State::Running => self.threads[number].alarm = 0,
            State::Queueing => {
                self.unqueue(number);
                let thread = &mut self.threads[number];
                thread.state = State::Arriving;
                thread.wait_until(now);
                self.turns.set(number, thread.time);
            }
            _ => {}
        }
    }

    /// Has a running thread leave its CPU for the CPU that it was ordered to.
    pub(super) fn relocate(&mut self, number: usize, now: u64) -> Result<(), Error> {
        let thread = &mut self.threads[number];
        thread.drain();
        if thread.time > now {
            self.turns.set(number, thread.time);
            return Ok(());
        }
        self.leave_cpu(number, now, State::Arriving, Resumption::Step)
    }

    /// Assigns a ready thread to a CPU: the one that it was ordered to, or the scheduler's choice.
    pub(super) fn assign(&mut self, number: usize) -> Result<(), Error> {
        if self.assigning.scheduler == Scheduler::Partition {
            let program = self.assigning.program_of[number];
            if !self.assigning.active[program] {
                self.assigning.active[program] = true;
                self.partition();
            }
        }
        let thread = &mut self.threads[number];
        let mut ordered = thread.ordered.take();
        while let Some((_, cpu)) = thread.moves.pop_front_if(|step| step.0 <= thread.time) {
            ordered = Some(cpu);
        }
        if let Some(cpu) = ordered {
            self.move_to(number, cpu)?;
        }
        if self.assigning.scheduler == Scheduler::Affinity {
            let cpu = self.threads[number].cpu;
            if let Some(idle) = self.cpus[cpu as usize]
                .running
                .then(|| self.nearest_idle(cpu))
                .flatten()
            {
                self.move_to(number, idle)?;
            }
        }
        Ok(())
    }

    fn nearest_idle(&mut self, cpu: u32) -> Option<u32> {
        let figures = self.figures;
        let node = figures.node(CpuId(cpu)).ok()?;
        let mut idle: Vec<u32> = self.assigning.cpus.clone();
        idle.retain(|&other| !self.cpu(other).running);
        idle.into_iter().min_by_key(|&other| {
            let of_other = figures.node(CpuId(other)).unwrap_or(node);
            (figures.latency(node, of_other), other)
        })
    }

    /// Takes a thread for an idle CPU: the first of the longest queue.
    fn take_over(&mut self, cpu: u32) -> Result<Option<usize>, Error> {
        if self.assigning.scheduler != Scheduler::Affinity {
            return Ok(None);
        }
        let queues = self.cpus.iter_mut().map(|cpu| &mut cpu.queue).rev();
        let longest = queues.max_by_key(|queue| queue.len());
        let next = longest.and_then(VecDeque::pop_front);
        if let Some(number) = next {
            self.move_to(number, cpu)?;
        }
        Ok(next)
    }

    /// The thread that follows `number` on its CPU at the end of a time slice; `None`: `number` continues.
    pub(super) fn next_turn(&mut self, number: usize, now: u64) -> Result<Option<usize>, Error> {
        let (own, assigning) = (self.threads[number].cpu, &mut self.assigning);
        assigning.count(number, now, true);
        let used = |number: usize| assigning.usage[number].at(now);
        let here = assigning.least_used(&self.cpus[own as usize].queue, now);
        let here = here.filter(|&here| used(here) <= used(number));
        let elsewhere = (0..).zip(&self.cpus).filter(|(cpu, _)| *cpu != own);
        let elsewhere = elsewhere.flat_map(|(_, cpu)| &cpu.queue);
        let elsewhere = assigning.least_used(elsewhere, now);
        let behind = used(here.unwrap_or(number)).saturating_sub(assigning.affinity);
        let next = elsewhere.filter(|&other| used(other) < behind).or(here);
        if let Some(next) = next {
            self.unqueue(next);
            self.move_to(next, own)?;
        }
        Ok(next)
    }

    /// The thread that gets a CPU which another thread has left.
    pub(super) fn next_of(&mut self, cpu: u32, now: u64) -> Result<Option<usize>, Error> {
        let queue = &self.cpus[cpu as usize].queue;
        match self.assigning.least_used(queue, now) {
            None => self.take_over(cpu),
            Some(next) => {
                self.unqueue(next);
                Ok(Some(next))
            }
        }
    }

    /// Removes a thread from its CPU's queue.
    fn unqueue(&mut self, number: usize) {
        let cpu = self.threads[number].cpu as usize;
        self.cpus[cpu].queue.retain(|&other| other != number);
    }

    fn move_to(&mut self, number: usize, cpu: u32) -> Result<(), Error> {
        let node = self.figures.node(CpuId(cpu))?;
        self.cpu(cpu);
        let thread = &mut self.threads[number];
        if thread.cpu != cpu {
            (thread.cpu, thread.node) = (cpu, node);
            if thread.then != Resumption::Reach {
                thread.cold = true;
                self.assigning.moved += 1;
            }
        }
        Ok(())
    }

    /// Repartitions the CPUs if the thread was the last of its program.
    pub(super) fn depart(&mut self, number: usize) {
        if self.assigning.scheduler != Scheduler::Partition {
            return;
        }
        let program = self.assigning.program_of[number];
        let threads = &self.assigning.programs[program];
        if threads
            .iter()
            .all(|&thread| self.threads[thread].state == State::Ended)
        {
            self.assigning.active[program] = false;
            self.partition();
        }
    }

    /// Divides the CPUs among the active programs.
    fn partition(&mut self) {
        let Assigning {
            cpus,
            programs,
            active,
            ..
        } = &self.assigning;
        let sharers: Vec<&Vec<usize>> = programs
            .iter()
            .zip(active)
            .filter(|program| *program.1)
            .map(|program| program.0)
            .collect();
        let mut orders = Vec::new();
        for (position, threads) in sharers.iter().enumerate() {
            let edge = |position: usize| position * cpus.len() / sharers.len();
            let (first, last) = (edge(position), edge(position + 1));
            // With more programs than CPUs, some programs share a CPU.
            let share = &cpus[first..last.max(first + 1)];
            let alive = threads
                .iter()
                .filter(|&&thread| self.threads[thread].state != State::Ended);
            orders.extend(
                alive
                    .zip(share.iter().cycle())
                    .map(|(&thread, &cpu)| (thread, cpu)),
            );
        }
        for (thread, cpu) in orders {
            if self.threads[thread].cpu != cpu || self.threads[thread].ordered.is_some() {
                self.order(thread, cpu);
            }
        }
    }
}
