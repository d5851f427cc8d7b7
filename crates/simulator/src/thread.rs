//! A replayed thread: its steps, its clock, its outstanding misses.

mod under_way;

use std::borrow::Cow;
use std::collections::VecDeque;

use nearpage_online::Action;
use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::{Miss, StepBatch, TraceEvent};

use rustc_hash::FxHashSet;

use crate::Error;
use crate::figures::{FS, Figures, TIME_MAX, femtoseconds};
use crate::outcome::{Split, ThreadOutcome};
use crate::prefetching::Streams;
use crate::trace::StepSource;
use under_way::Outstanding;

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The thread has not been started.
    Unborn,
    /// The thread is ready at its clock's time, and then needs its CPU.
    Arriving,
    /// The thread has its CPU; its next step is at its clock's time.
    Running,
    /// The thread waits for its CPU, which another thread has.
    Queueing,
    /// The thread waits for a signal.
    Blocked {
        /// Duration of the wait while tracing, in case the signal never comes.
        otherwise: u64,
    },
    Ended,
}

/// First activity of a thread when it gets its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// Compute up to the first step.
    Reach,
    /// Compute from the step of the wait up to the next step.
    Advance,
    /// Continue with the step that the thread had reached.
    Step,
}

/// A part of moving pages (Verghese Table 9); the index into [`Totals::moving_parts`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum MovePart {
    Interrupt,
    Decision,
    Lock,
    Allocation,
    Mapping,
    Flush,
    FlushRequest,
    Copy,
    End,
    Fault,
}

impl MovePart {
    pub const COUNT: usize = Self::Fault as usize + 1;
}

/// Time of a thread by its use, in femtoseconds, and misses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub compute: u64,
    /// Local and remote.
    pub stall: [u64; 2],
    pub moving: u64,
    /// Parts of `moving` by [`MovePart`], in nanoseconds.
    pub moving_parts: [f64; MovePart::COUNT],
    pub waiting: u64,
    /// Local and remote.
    pub misses: [u64; 2],
    /// Sums of latencies of local and remote misses.
    pub latency: [u128; 2],
    pub instructions: u64,
}

/// Distance in misses for prefetching state of pages.
const PREFETCH_MISSES: usize = 2;

/// Data for policies about a thread, besides its misses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadObservation {
    /// Time at which the next sample is due.
    pub next_sample: u64,
    /// Page of the thread's last data miss.
    pub page: Option<u32>,
    /// Page that the thread is last known to have stored to.
    pub stored: Option<u32>,
    /// Loads and fetches; and stores: those that memory served in this epoch.
    pub served: [u64; 2],
    /// Lines that the thread's caches have written back in this epoch.
    pub written_back: u64,
    /// Total time that the thread has waited.
    pub waited: u64,
    /// Total time that the thread has spent moving pages.
    pub moved: u64,
    /// Time and total wait when the epoch began.
    pub epoch: (u64, u64),
}

impl ThreadObservation {
    /// The thread's own time, which excludes waiting.
    pub fn own(&self, time: u64) -> u64 {
        time - self.waited
    }
}

pub(crate) struct Thread<'a> {
    pub index: ThreadIndex,
    pub state: State,
    pub then: Resumption,
    /// Signal that the thread waits for; 0: none.
    pub awaits: u64,
    pub cpu: u32,
    pub node: u16,
    /// Time of the next step, in femtoseconds.
    pub time: u64,
    /// Time of other work that must be done before the next step; 0 unless the thread is running.
    pub alarm: u64,
    /// Time that TLB flushes for other CPUs have cost the thread since its last step.
    pub penalty: u64,
    /// CPU that the thread was ordered to move to.
    pub ordered: Option<u32>,
    /// Scheduled moves of the thread: times and CPUs.
    pub moves: VecDeque<(u64, u32)>,
    /// Pages that the CPU has translated since its TLB was last flushed for a page that moved.
    pub translated: Option<FxHashSet<u32>>,
    /// The thread has moved to a CPU with cold caches.
    pub cold: bool,
    /// The thread has paid for the protection fault of its current store.
    pub faulted: bool,
    /// Instructions from the last miss to the current note of a store.
    pub noted_after: u32,
    /// Misses of earlier phases; and misses at the thread's last move.
    misses_before: u64,
    misses_moved: u64,
    /// Hot pages, for which the thread will be interrupted.
    pub hot: Vec<Action>,
    /// Latest time of that interrupt.
    pub deadline: u64,
    /// Pages that the thread is moving, and the number of them that have been through the lock.
    pub moving: Vec<Action>,
    pub moved: usize,
    pub totals: Totals,
    /// Time at which the totals begin.
    pub since: u64,
    /// Sums of the phases that count and have ended.
    pub result: ThreadOutcome,
    pub watched: ThreadObservation,
    steps: StepSource<'a>,
    /// Current batch of misses.
    misses: Cow<'a, [Miss]>,
    trace_events: Cow<'a, [(usize, u32, TraceEvent)]>,
    /// Position of the next miss in the batch.
    at: usize,
    /// Position of the next event in the batch.
    trace_event: usize,
    /// Position of the miss that follows the next event.
    stop: usize,
    position: u64,
    outstanding: VecDeque<Outstanding>,
    /// Arrivals of lines that the CPU's prefetcher has requested and no miss waits for yet.
    requested_ahead: Vec<u64>,
    /// Streams that the CPU's prefetcher follows.
    pub streams: Streams,
}

impl<'a> Thread<'a> {
    pub fn new(index: ThreadIndex, cpu: u32, node: u16, steps: StepSource<'a>) -> Self {
        Self {
            index,
            state: State::Unborn,
            then: Resumption::Reach,
            awaits: 0,
            cpu,
            node,
            time: 0,
            alarm: 0,
            penalty: 0,
            ordered: None,
            moves: VecDeque::new(),
            translated: None,
            cold: false,
            faulted: false,
            noted_after: 0,
            misses_before: 0,
            misses_moved: 0,
            hot: Vec::new(),
            deadline: u64::MAX,
            moving: Vec::new(),
            moved: 0,
            totals: Totals::default(),
            since: 0,
            result: ThreadOutcome::default(),
            watched: ThreadObservation::default(),
            steps,
            misses: Cow::default(),
            trace_events: Cow::default(),
            at: 0,
            trace_event: 0,
            stop: 0,
            position: 0,
            outstanding: VecDeque::new(),
            requested_ahead: Vec::new(),
            streams: Streams::default(),
        }
    }

    /// Number of instructions executed so far.
    pub fn executed(&self) -> u64 {
        self.position
    }

    /// The miss at the thread's time; `None`: the next step is an event.
    #[inline]
    pub fn miss(&self) -> Option<Miss> {
        (self.at < self.stop).then(|| self.misses[self.at])
    }

    /// The same miss, if more misses follow in its batch.
    #[inline]
    pub fn miss_before_more(&self) -> Option<Miss> {
        self.miss().filter(|_| self.at + 1 < self.misses.len())
    }

    /// The event at the thread's time, if the next step is no miss.
    pub fn trace_event(&self) -> TraceEvent {
        self.trace_events[self.trace_event].2
    }

    /// Page of the miss that is [`PREFETCH_MISSES`] misses away, if it is in the batch.
    #[inline]
    pub fn page_ahead(&self) -> Option<u32> {
        let miss = self.misses.get(self.at + PREFETCH_MISSES);
        miss.map(|miss| miss.page.0)
    }

    /// Finishes the current step and computes up to the next step; `false`: there is no further step.
    #[inline]
    pub fn advance(&mut self, figures: &Figures) -> Result<bool, Error> {
        if self.at < self.stop {
            self.at += 1;
        } else {
            self.trace_event += 1;
            self.set_stop();
        }
        self.reach(figures)
    }

    /// Computes up to the next step.
    #[inline(always)]
    pub fn reach(&mut self, figures: &Figures) -> Result<bool, Error> {
        loop {
            let next = match self.at < self.stop {
                true => Some(self.misses[self.at].instructions),
                false => self.trace_events.get(self.trace_event).map(|next| next.1),
            };
            if let Some(instructions) = next {
                self.run(instructions, figures);
                return Ok(true);
            }
            if !self.read_on()? {
                return Ok(false);
            }
        }
    }

    /// Reads the next batch; `false`: there is none.
    #[cold]
    fn read_on(&mut self) -> Result<bool, Error> {
        if self.time > TIME_MAX {
            return Err(Error::TooLong);
        }
        match &mut self.steps {
            StepSource::Kept(batches) => {
                let Some(StepBatch {
                    misses,
                    trace_events,
                }) = batches.next()
                else {
                    return Ok(false);
                };
                (self.misses, self.trace_events) = (misses.into(), trace_events.into());
            }
            StepSource::Read(steps) => {
                let mut batch = StepBatch {
                    misses: std::mem::take(&mut self.misses).into_owned(),
                    trace_events: std::mem::take(&mut self.trace_events).into_owned(),
                };
                if !steps.next(&mut batch)? {
                    return Ok(false);
                }
                (self.misses, self.trace_events) = (batch.misses.into(), batch.trace_events.into());
            }
        }
        (self.at, self.trace_event) = (0, 0);
        self.set_stop();
        Ok(true)
    }

    fn set_stop(&mut self) {
        let trace_events = &self.trace_events;
        let misses = self.misses.len();
        self.stop = trace_events
            .get(self.trace_event)
            .map_or(misses, |next| next.0.min(misses));
    }

    /// Executes instructions, and waits for outstanding misses where the window is full.
    #[inline]
    fn run(&mut self, instructions: u32, figures: &Figures) {
        let mut left = u64::from(instructions);
        self.totals.instructions += left;
        while let Some(oldest) = self.outstanding.front() {
            let ahead = (oldest.position + figures.window).saturating_sub(self.position);
            if left <= ahead {
                break;
            }
            self.compute(ahead.saturating_mul(figures.instruction));
            self.position += ahead;
            left -= ahead;
            self.wait_for_oldest();
        }
        self.compute(left.saturating_mul(figures.instruction));
        self.position += left;
    }

    /// Does the CPU's TLB lack the page since its last flush? The page counts as translated from now on.
    #[inline]
    pub fn lacks_translation(&mut self, page: u32) -> bool {
        self.translated
            .as_mut()
            .is_some_and(|pages| pages.insert(page))
    }

    /// Flushes the TLB of the thread's CPU.
    pub fn flush_translations(&mut self) {
        self.translated.get_or_insert_default().clear();
    }

    /// Spends time computing.
    #[inline]
    pub fn compute(&mut self, time: u64) {
        self.time = self.time.saturating_add(time);
        self.totals.compute += time;
    }

    /// Spends time moving pages, or on samples and hinting faults.
    pub fn spend_moving(&mut self, time: u64) {
        self.time = self.time.saturating_add(time);
        self.totals.moving = self.totals.moving.saturating_add(time);
        self.watched.moved = self.watched.moved.saturating_add(time);
    }

    /// As [`Thread::spend_moving`], for one part.
    pub fn spend_moving_on(&mut self, part: MovePart, time: u64) {
        self.spend_moving(time);
        self.totals.moving_parts[part as usize] += time as f64 / FS;
    }

    /// As [`Thread::spend_moving`], for several parts in sequence.
    pub fn spend_moving_by<const N: usize>(&mut self, parts_ns: [(MovePart, f64); N]) {
        let total_ns: f64 = parts_ns.iter().map(|part| part.1).sum();
        self.spend_moving(femtoseconds(total_ns));
        for (part, ns) in parts_ns {
            self.totals.moving_parts[part as usize] += ns;
        }
    }

    pub fn wait_until(&mut self, time: u64) {
        let waited = time.saturating_sub(self.time);
        self.time += waited;
        self.totals.waiting += waited;
        self.watched.waited += waited;
    }

    /// Charges the thread for refilling the caches of its new CPU; returns the number of lines.
    pub fn refill(&mut self, figures: &Figures) -> u64 {
        let [local, remote] = self.totals.misses;
        let missed = self.misses_before + local + remote;
        let lines = figures.private_lines.min(missed - self.misses_moved);
        self.misses_moved = missed;
        let mean = match u128::from(local + remote) {
            0 => [figures.latency(self.node, self.node), 0],
            misses => self.totals.latency.map(|sum| (sum / misses) as u64),
        };
        for (side, mean) in mean.into_iter().enumerate() {
            self.time = self.time.saturating_add(lines.saturating_mul(mean));
            self.totals.stall[side] += lines.saturating_mul(mean);
        }
        lines
    }

    /// Restarts the counts at the begin of a phase that counts.
    pub fn restart(&mut self) {
        self.misses_before += self.totals.misses[0] + self.totals.misses[1];
        self.totals = Totals::default();
        self.since = self.time;
        if self.result.time_ns == 0.0 {
            self.result.began_ns = self.time as f64 / FS;
        }
    }

    /// Adds the counts of the phase to the result.
    pub fn collect(&mut self) {
        let Totals {
            compute,
            stall,
            moving,
            waiting,
            misses,
            ..
        } = self.totals;
        let result = &mut self.result;
        result.time_ns += (self.time - self.since) as f64 / FS;
        result.local += misses[0];
        result.remote += misses[1];
        let Split {
            compute_ns,
            local_stall_ns,
            remote_stall_ns,
            move_ns,
            wait_ns,
        } = &mut result.split;
        for (sum, part) in [
            (compute_ns, compute),
            (local_stall_ns, stall[0]),
            (remote_stall_ns, stall[1]),
            (move_ns, moving),
            (wait_ns, waiting),
        ] {
            *sum += part as f64 / FS;
        }
    }
}
