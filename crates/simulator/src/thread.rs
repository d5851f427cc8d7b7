//! A thread that is replayed: its steps, its clock, its outstanding misses.

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

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has not been started.
    Unborn,
    /// It gets ready at its clock's time, and then needs its CPU.
    Arriving,
    /// It has its CPU; its next step is at its clock's time.
    Running,
    /// Another thread has its CPU.
    Queueing,
    /// It waits for a signal.
    Blocked {
        /// What it waited while tracing, in case the signal never comes.
        otherwise: u64,
    },
    /// It has ended.
    Ended,
}

/// What a thread does when it gets its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// Computes up to its first step.
    Reach,
    /// Computes from the step that it waited in up to the next.
    Advance,
    /// Goes on with the step that it had reached.
    Step,
}

/// A part of moving pages, by its place in [`Totals::moving_parts`] (Verghese Table 9).
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
    /// How many there are.
    pub const COUNT: usize = Self::Fault as usize + 1;
}

/// What a thread's time went to, in femtoseconds, and its misses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub compute: u64,
    /// Local, remote.
    pub stall: [u64; 2],
    pub moving: u64,
    /// Of that, by [`MovePart`]; in nanoseconds.
    pub moving_parts: [f64; MovePart::COUNT],
    pub waiting: u64,
    /// Local, remote.
    pub misses: [u64; 2],
    /// Sums of latencies: local, remote.
    pub latency: [u128; 2],
    pub instructions: u64,
}

/// So many misses ahead, what is needed for one is fetched.
const AHEAD: usize = 2;

/// What a policy learns of a thread besides its misses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadObservation {
    /// When its next sample is due.
    pub next_sample: u64,
    /// Page of its last miss of data.
    pub page: Option<u32>,
    /// Page that it is last known to have stored to.
    pub stored: Option<u32>,
    /// Loads and fetches, stores that memory served in this epoch.
    pub served: [u64; 2],
    /// Time that it waited, ever.
    pub waited: u64,
    /// Time that it spent moving pages, ever.
    pub moved: u64,
    /// Time and wait when the epoch began.
    pub epoch: (u64, u64),
}

impl ThreadObservation {
    /// The thread's own time: what it spent waiting is not.
    pub fn own(&self, time: u64) -> u64 {
        time - self.waited
    }
}

/// A thread.
pub(crate) struct Thread<'a> {
    pub index: ThreadIndex,
    pub state: State,
    pub then: Resumption,
    /// Signal that it waits for; 0: none.
    pub awaits: u64,
    pub cpu: u32,
    pub node: u16,
    /// Time of its next step, in femtoseconds.
    pub time: u64,
    /// When something else than its next step comes first: at once unless it is running.
    pub alarm: u64,
    /// Time that others have taken from it since: flushes of its TLB.
    pub penalty: u64,
    /// CPU that it is to go on on.
    pub ordered: Option<u32>,
    /// When the schedule moves it, and where to.
    pub moves: VecDeque<(u64, u32)>,
    /// Pages that its CPU has translated since its TLB was last flushed for a page that moved.
    pub translated: Option<FxHashSet<u32>>,
    /// It has come to a CPU whose caches do not know it.
    pub cold: bool,
    /// It has paid for the protection fault of the store that it is at.
    pub faulted: bool,
    /// Instructions from its last miss to the note of a store that it is at.
    pub noted_after: u32,
    /// Misses in former phases, and when it last moved.
    misses_before: u64,
    misses_moved: u64,
    /// Pages that it will be interrupted for.
    pub hot: Vec<Action>,
    /// When it will be at the latest.
    pub deadline: u64,
    /// Pages that it is moving, and how many have been through the lock.
    pub moving: Vec<Action>,
    pub moved: usize,
    pub totals: Totals,
    /// Where the totals begin.
    pub since: u64,
    /// Where the last phase that counts ended.
    pub result: ThreadOutcome,
    pub watched: ThreadObservation,
    steps: StepSource<'a>,
    /// The batch that it is at.
    misses: Cow<'a, [Miss]>,
    trace_events: Cow<'a, [(usize, u32, TraceEvent)]>,
    /// Next miss of the batch.
    at: usize,
    /// Next event of the batch.
    trace_event: usize,
    /// The miss that comes after the next event.
    stop: usize,
    position: u64,
    outstanding: VecDeque<Outstanding>,
    /// When lines come that its CPU's prefetcher has requested, and no miss waits for yet.
    requested_ahead: Vec<u64>,
    /// What its CPU's prefetcher follows.
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

    /// Instructions executed so far.
    pub fn executed(&self) -> u64 {
        self.position
    }

    /// The miss at the thread's time; `None`: it is something else.
    #[inline]
    pub fn miss(&self) -> Option<Miss> {
        (self.at < self.stop).then(|| self.misses[self.at])
    }

    /// The same, where others of the batch follow it.
    #[inline]
    pub fn miss_before_more(&self) -> Option<Miss> {
        self.miss().filter(|_| self.at + 1 < self.misses.len())
    }

    /// What happens at the thread's time, where it is no miss.
    pub fn trace_event(&self) -> TraceEvent {
        self.trace_events[self.trace_event].2
    }

    /// Page of a miss that comes soon, where one is known.
    #[inline]
    pub fn page_ahead(&self) -> Option<u32> {
        let miss = self.misses.get(self.at + AHEAD);
        miss.map(|miss| miss.page.0)
    }

    /// The current step is done: computes up to the next one. `false`: there is none.
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

    /// Computes up to the step that is next.
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

    /// The next batch; `false`: there is none.
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

    /// Executes instructions, as far ahead of outstanding misses as the window allows.
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

    /// Does the TLB of its CPU lack a page, since it was flushed and nobody has used the page since then?
    #[inline]
    pub fn lacks_translation(&mut self, page: u32) -> bool {
        self.translated
            .as_mut()
            .is_some_and(|pages| pages.insert(page))
    }

    /// The TLB of its CPU is flushed.
    pub fn flush_translations(&mut self) {
        self.translated.get_or_insert_default().clear();
    }

    /// Time that the CPU is busy.
    #[inline]
    pub fn compute(&mut self, time: u64) {
        self.time = self.time.saturating_add(time);
        self.totals.compute += time;
    }

    /// Time spent moving pages, or observing for it.
    pub fn spend_moving(&mut self, time: u64) {
        self.time = self.time.saturating_add(time);
        self.totals.moving = self.totals.moving.saturating_add(time);
        self.watched.moved = self.watched.moved.saturating_add(time);
    }

    /// The same, for one part of it.
    pub fn spend_moving_on(&mut self, part: MovePart, time: u64) {
        self.spend_moving(time);
        self.totals.moving_parts[part as usize] += time as f64 / FS;
    }

    /// The same, for several parts one after the other.
    pub fn spend_moving_by<const N: usize>(&mut self, parts_ns: [(MovePart, f64); N]) {
        let total_ns: f64 = parts_ns.iter().map(|part| part.1).sum();
        self.spend_moving(femtoseconds(total_ns));
        for (part, ns) in parts_ns {
            self.totals.moving_parts[part as usize] += ns;
        }
    }

    /// Waits until `time`.
    pub fn wait_until(&mut self, time: u64) {
        let waited = time.saturating_sub(self.time);
        self.time += waited;
        self.totals.waiting += waited;
        self.watched.waited += waited;
    }

    /// Refills the caches of the CPU that it has come to; how many lines.
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

    /// Begins to count afresh.
    pub fn restart(&mut self) {
        self.misses_before += self.totals.misses[0] + self.totals.misses[1];
        self.totals = Totals::default();
        self.since = self.time;
        if self.result.time_ns == 0.0 {
            self.result.began_ns = self.time as f64 / FS;
        }
    }

    /// Adds what was counted to the result.
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
