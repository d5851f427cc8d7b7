//! Scheduling of threads on CPUs, and the signals that threads wait for.

use std::collections::VecDeque;

use nearpage_online::OnlinePolicy;
use nearpage_recording::trace::TraceEvent;

use super::Replay;
use crate::Error;
use crate::figures::{FS, TIME_MAX};
use crate::schedule::Scheduler;
use crate::thread::{Resumption, State, Thread};
use crate::tournament::NEVER;

/// A CPU and its queue of threads.
#[derive(Default)]
pub(super) struct Cpu {
    pub running: bool,
    pub queue: VecDeque<usize>,
    pub slice_end: u64,
}

/// Number of threads that have CPUs, and the time span in which several have.
#[derive(Default)]
pub(super) struct Running {
    threads: usize,
    /// First and last time at which several threads had CPUs.
    parallel: Option<(u64, u64)>,
}

impl Running {
    fn begins(&mut self, now: u64) {
        self.threads += 1;
        if self.threads > 1 {
            self.parallel.get_or_insert((now, now));
        }
    }

    fn ends(&mut self, now: u64) {
        if let (2.., Some((_, last))) = (self.threads, &mut self.parallel) {
            *last = now.max(*last);
        }
        self.threads -= 1;
    }

    /// Restarts at the begin of a phase that counts.
    pub fn restart(&mut self, now: u64) {
        self.parallel = (self.threads > 1).then_some((now, now));
    }

    /// Time from the first to the last moment, up to `now`, at which several threads had CPUs.
    pub fn parallel_time(&self, now: u64) -> u64 {
        let last = |last: u64| if self.threads > 1 { now } else { last };
        self.parallel
            .map_or(0, |(first, until)| last(until).saturating_sub(first))
    }
}

/// Number of the signal that threads await whose program begins from a mark; no signal of a trace has this number.
pub(super) const MARK: u64 = u64::MAX;

/// State of a signal.
pub(super) enum Signal {
    Sent,
    AwaitedBy(Vec<usize>),
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    pub(super) fn happen(&mut self, number: usize, trace_event: TraceEvent) -> Result<(), Error> {
        if let TraceEvent::FirstTouch(page) = trace_event {
            let thread = &self.threads[number];
            self.find(page.0, thread.node, thread.time)?;
            return self.go_on(number);
        }
        let thread = &mut self.threads[number];
        // The following events leave the CPU or make stores visible to other threads, so misses must complete before.
        let before = thread.time;
        thread.drain();
        if !thread.hot.is_empty() {
            thread.deadline = 0;
        }
        if thread.time > before || !thread.hot.is_empty() {
            self.turns.set(number, thread.time);
            self.rearm(number);
            return Ok(());
        }
        let now = thread.time;
        match trace_event {
            TraceEvent::FirstTouch(_) => {}
            TraceEvent::Signal { sequence } => self.send(sequence, now),
            TraceEvent::Resume {
                after,
                waited_instructions,
            } => {
                let waited = waited_instructions.saturating_mul(self.figures.instruction);
                if now.saturating_add(waited) > TIME_MAX {
                    return Err(Error::TooLong);
                }
                if after == 0 {
                    thread.wait_until(now + waited);
                    return self.leave_cpu(number, now, State::Arriving, Resumption::Advance);
                }
                if !self.await_signal(after, number) {
                    let blocked = State::Blocked { otherwise: waited };
                    return self.leave_cpu(number, now, blocked, Resumption::Advance);
                }
            }
            TraceEvent::Move(cpu) if self.assigning.scheduler == Scheduler::Pinned => {
                let node = self.figures.node(cpu)?;
                self.leave_cpu(number, now, State::Arriving, Resumption::Advance)?;
                let thread = &mut self.threads[number];
                (thread.cpu, thread.node) = (cpu.0, node);
                self.cpu(cpu.0);
                return Ok(());
            }
            TraceEvent::Move(_) => {}
            TraceEvent::Mark { begin } => self.mark(self.assigning.program_of[number], begin, now),
        }
        self.go_on(number)
    }

    /// Moves on from the current step to the next one.
    pub(super) fn go_on(&mut self, number: usize) -> Result<(), Error> {
        if self.threads[number].advance(self.figures)? {
            self.turns.set(number, self.threads[number].time);
            Ok(())
        } else {
            self.end_thread(number)
        }
    }

    pub(super) fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        if self.cpus.len() <= cpu as usize {
            self.cpus.resize_with(cpu as usize + 1, Cpu::default);
        }
        &mut self.cpus[cpu as usize]
    }

    /// Takes the thread from its CPU and gives the CPU to the next thread.
    pub(super) fn leave_cpu(
        &mut self,
        number: usize,
        now: u64,
        state: State,
        then: Resumption,
    ) -> Result<(), Error> {
        self.give_up(number, now, state, then);
        let cpu = self.threads[number].cpu;
        match self.next_of(cpu, now)? {
            Some(next) => self.grant(next, now),
            None => Ok(()),
        }
    }

    fn give_up(&mut self, number: usize, now: u64, state: State, then: Resumption) {
        let thread = &mut self.threads[number];
        (thread.state, thread.then, thread.alarm) = (state, then, 0);
        thread.streams.forget();
        let key = if state == State::Arriving {
            thread.time
        } else {
            NEVER
        };
        self.turns.set(number, key);
        let cpu = thread.cpu;
        self.cpus[cpu as usize].running = false;
        self.running.ends(now);
        self.assigning.count(number, now, true);
    }

    /// Gives a ready thread its CPU, or a place in the queue for it.
    pub(super) fn arrive(&mut self, number: usize) -> Result<(), Error> {
        self.assign(number)?;
        let (cpu, now) = (self.threads[number].cpu, self.threads[number].time);
        if !self.cpus[cpu as usize].running {
            return self.grant(number, now);
        }
        self.cpus[cpu as usize].queue.push_back(number);
        self.threads[number].state = State::Queueing;
        self.turns.set(number, NEVER);
        Ok(())
    }

    pub(super) fn grant(&mut self, number: usize, now: u64) -> Result<(), Error> {
        let thread = &mut self.threads[number];
        thread.wait_until(now);
        thread.state = State::Running;
        self.running.begins(thread.time);
        self.assigning.count(number, thread.time, false);
        let cpu = &mut self.cpus[thread.cpu as usize];
        cpu.running = true;
        cpu.slice_end = thread
            .time
            .saturating_add(self.job.options.slice_ns.saturating_mul(FS as u64));
        if std::mem::take(&mut thread.cold) {
            self.assigning.refilled_lines += thread.refill(self.figures);
        }
        let goes_on = match thread.then {
            Resumption::Reach => thread.reach(self.figures)?,
            Resumption::Advance => thread.advance(self.figures)?,
            Resumption::Step => true,
        };
        if goes_on {
            self.turns.set(number, thread.time);
            self.rearm(number);
            Ok(())
        } else {
            self.end_thread(number)
        }
    }

    /// Ends a thread's time slice; `false`: no other thread wants its CPU.
    #[cold]
    pub(super) fn preempt(&mut self, number: usize, now: u64) -> Result<bool, Error> {
        let Some(next) = self.next_turn(number, now)? else {
            let slice = self.job.options.slice_ns.saturating_mul(FS as u64);
            self.cpus[self.threads[number].cpu as usize].slice_end = now.saturating_add(slice);
            return Ok(false);
        };
        let own = self.threads[number].cpu;
        self.cpus[own as usize].queue.push_back(number);
        self.give_up(number, now, State::Queueing, Resumption::Step);
        self.grant(next, now)?;
        Ok(true)
    }

    pub(super) fn end_thread(&mut self, number: usize) -> Result<(), Error> {
        self.threads[number].drain();
        let now = self.threads[number].time;
        self.inherit(number, now);
        self.leave_cpu(number, now, State::Ended, Resumption::Step)?;
        self.depart(number);
        Ok(())
    }

    /// Was the signal sent? Otherwise the thread is added to the signal's waiters.
    pub(super) fn await_signal(&mut self, sequence: u64, number: usize) -> bool {
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

    pub(super) fn send(&mut self, sequence: u64, now: u64) {
        if let Some(Signal::AwaitedBy(waiters)) = self.signals.insert(sequence, Signal::Sent) {
            for number in waiters {
                if self.threads[number].awaits == sequence {
                    self.wake(number, now);
                }
            }
        }
    }

    pub(super) fn wake(&mut self, number: usize, now: u64) {
        let thread = &mut self.threads[number];
        thread.awaits = 0;
        if thread.state == State::Unborn {
            (thread.time, thread.since) = (now, now);
            thread.result.began_ns = now as f64 / FS;
            thread.watched.epoch = (now, 0);
        } else {
            thread.wait_until(now);
        }
        (thread.state, thread.alarm) = (State::Arriving, 0);
        self.turns.set(number, thread.time);
    }

    /// Releases a thread although its signal is missing, because all threads wait: the thread that would have continued
    /// first while tracing. `false`: no thread waits.
    pub(super) fn release_one(&mut self) -> bool {
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
}
