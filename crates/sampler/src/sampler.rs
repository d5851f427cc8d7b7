//! The sampler: events of the target's threads on every CPU, one ring per CPU, drained until the
//! target ends.

mod governing;
mod options;
mod start;

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nearpage_recording::Source;

use self::governing::RateControl;
pub use self::options::{DEFAULT_FAULT_PERIOD, MAX_RATE_HZ, Options};
pub use self::start::choose_source;
pub(crate) use self::start::facts_of;
use crate::attached::Attached;
use crate::calibrate::Calibration;
use crate::cpu_ring::CpuRing;
use crate::error::Error;
use crate::follower::{Follower, RecordCounts, Sink, UndecodedCounts, UndecodedPlace};
use crate::interrupts::Interrupts;
use crate::launch::Child;
use crate::marks::Marks;
use crate::merge::{UnreadRecords, Window};
use crate::overhead::{DutyCycle, RateChange};
use crate::page_nodes;
use crate::processes::Processes;
use crate::signal::{SignalLosses, Signals};
use crate::source::Choice;
use crate::threads::SampledThread;

/// How a recording stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The target is running.
    Running,
    /// The command has ended.
    Ended(ExitStatus),
    /// Everybody who was attached to has ended; with what status, only their parents know.
    TargetEnded,
    /// Recording was interrupted, or the time for it is over; the target goes on without it.
    Detached,
}

/// What a recording amounts to.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How it ended.
    pub state: State,
    /// All threads, by [`ThreadIndex`](nearpage_recording::ThreadIndex).
    pub threads: Vec<SampledThread>,
    /// Why samples are undecoded.
    pub undecoded: UndecodedCounts,
    /// Where most of them are, most first; at most 16.
    pub undecoded_places: Vec<UndecodedPlace>,
    /// Records that are not what they should be.
    pub records: RecordCounts,
    /// The rates sampled at, by time; the first from the beginning on.
    pub rates: Vec<RateChange>,
    /// What a sample was found to cost, in nanoseconds, the recorder's part included; `None` where
    /// nobody looked, or too few came.
    pub sample_ns: Option<f64>,
    /// Within a budget: what sampling took, in nanoseconds of processor time, the recorder's part
    /// included.
    pub sampling_ns: Option<f64>,
    /// What the signal source did not see.
    pub signal_losses: SignalLosses,
    /// What could not be had, in sentences for the user.
    pub notes: Vec<String>,
    /// The share of the time in which the hardware was counting, 0 to 1: less than 1 where events
    /// take turns or someone else uses the PMU. Weights are not scaled by it. 1 with the clock.
    pub counting_share: f64,
    /// Where it began, CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// Where it ended.
    pub end_ns: u64,
}

/// Who is observed.
#[expect(clippy::large_enum_variant, reason = "there is one")]
enum ObservedTarget {
    Command(Child),
    Attached(Attached),
}

/// A running recording.
pub struct Sampler {
    observed: ObservedTarget,
    rings: Vec<CpuRing>,
    /// Instead of rings, with the signal source.
    signals: Option<Signals>,
    window: Window,
    follower: Follower,
    interrupts: Interrupts,
    calibration: Calibration,
    choice: Choice,
    notes: Vec<String>,
    page_nodes: bool,
    page_bytes: usize,
    period_ns: u64,
    rate: RateControl,
    /// Of a command with the preload library, within the budget.
    marks: Option<Marks>,
    duty_cycle: DutyCycle,
    /// The events that are switched on, a bit for each of a task.
    on: u32,
    /// Not before `enable_at_ns`, nor after `disable_at_ns`.
    wanted: bool,
    begin_ns: u64,
    /// Clock switches ahead, CLOCK_MONOTONIC.
    enable_at_ns: Option<u64>,
    disable_at_ns: Option<u64>,
    /// When the last round of draining began: records older than it are complete.
    round_ns: u64,
    /// Records older than this were followed.
    followed_ns: u64,
    give_up_at_ns: Option<u64>,
}

/// So many accesses are handed over at once: they stay in a core's first cache on their way.
pub(crate) const ACCESSES_AT_ONCE: usize = 256;

/// How long an interrupted command may take to end before it is left alone.
const GRACE: Duration = Duration::from_secs(2);

impl Sampler {
    /// The command's process; `None` where none was started.
    pub fn pid(&self) -> Option<u32> {
        match &self.observed {
            ObservedTarget::Command(child) => Some(child.pid as u32),
            ObservedTarget::Attached(_) => None,
        }
    }

    /// Threads met so far, by [`ThreadIndex`](nearpage_recording::ThreadIndex): whose accesses a
    /// [`Sink`] got.
    pub fn threads(&self) -> &[SampledThread] {
        self.follower.threads.all()
    }

    /// In one sentence, how the threads of a running target are covered; `None` for a command, all of
    /// whose threads are.
    pub fn coverage(&self) -> Option<String> {
        match &self.observed {
            ObservedTarget::Command(_) => None,
            ObservedTarget::Attached(attached) => Some(attached.coverage.to_string()),
        }
    }

    /// Time between two samples of a thread, in nanoseconds: the cost of each.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Within the budget: the rate at which a sample weighs 1, the greatest. `None`: the rate was given.
    pub fn full_rate_hz(&self) -> Option<f64> {
        self.rate.full_hz()
    }

    /// Where the sampled instruction is, and what samples cost.
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Where accesses come from, and why.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What could not be had, in sentences for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Waits up to `patience` for records, takes them in and hands over what they are. Call it
    /// until it no longer says [`State::Running`], then [`finish`](Self::finish).
    pub fn drain(&mut self, patience: Duration, sink: &mut dyn Sink) -> Result<State, Error> {
        self.wait(patience)?;
        let over = self.switch_clock();
        let interrupted = self.interrupted();
        let state = match &mut self.observed {
            ObservedTarget::Command(child) => match child.status().map_err(Error::Wait)? {
                Some(status) => State::Ended(status),
                None if interrupted => State::Detached,
                None => State::Running,
            },
            ObservedTarget::Attached(attached) => {
                attached.look(&mut self.follower, &mut self.window, &mut self.rings)?;
                match () {
                    () if attached.ended(&self.follower) => State::TargetEnded,
                    () if interrupted || over => State::Detached,
                    () => State::Running,
                }
            }
        };
        self.round(sink)?;
        self.govern(now_ns());
        Ok(state)
    }

    /// Ends the recording: stops the clock and hands over the rest. `state` is what the last
    /// [`drain`](Self::drain) said.
    pub fn finish(mut self, state: State, sink: &mut dyn Sink) -> Result<Summary, Error> {
        self.wanted = false;
        self.rings.iter_mut().for_each(|ring| ring.switch(0));
        let counting_share = self.counting_share();
        if let ObservedTarget::Attached(attached) = &self.observed {
            self.notes.extend(attached.shortcomings(&self.follower));
        }
        let end_ns = now_ns();
        self.round(sink)?;
        self.round_ns = u64::MAX;
        self.round(sink)?;
        self.notes.extend(self.follower.filter.unseen());
        if let (ObservedTarget::Command(_), State::Ended(_)) = (&self.observed, state) {
            self.notes.extend(self.left_running());
        }
        let mut records = self.follower.records;
        records.malformed += self.window.malformed;
        records.late = self.window.late;
        self.govern(now_ns());
        let sampling_ns = self.rate.spent_ns();
        let sample_ns = self.rate.sample_ns();
        let rates = self.rate.take_changes();
        let signal_losses = self
            .signals
            .map(|signals| signals.losses)
            .unwrap_or_default();
        Ok(Summary {
            state,
            threads: self.follower.threads.all().to_vec(),
            undecoded: self.follower.undecoded,
            undecoded_places: self.follower.undecoded_places(16),
            records,
            rates,
            sample_ns,
            sampling_ns,
            signal_losses,
            notes: self.notes,
            counting_share,
            begin_ns: self.begin_ns,
            end_ns,
        })
    }

    /// Says what the command has left behind, as a daemon does that goes to the background.
    fn left_running(&self) -> Option<String> {
        let processes = Processes::new(Path::new("/proc"));
        let known = self.follower.threads.live_processes();
        let mut left: Vec<u32> = known.filter(|pid| processes.lives(*pid)).collect();
        left.sort_unstable();
        let (they, run) = match left.len() {
            0 => return None,
            1 => ("a process", "runs"),
            _ => ("processes", "run"),
        };
        let listed: Vec<String> = left.iter().take(4).map(u32::to_string).collect();
        let more = if left.len() > 4 { ", …" } else { "" };
        Some(format!(
            "the command has ended, and {they} that it started {run} on, no longer recorded ({}{more}): keep it in the \
             foreground, or record what runs with -p",
            listed.join(", ")
        ))
    }

    /// [`Summary::counting_share`].
    fn counting_share(&self) -> f64 {
        if self.choice.source != Source::Pmu {
            return 1.0;
        }
        let (mut counting_ns, mut wanted_ns) = (0, 0);
        for ring in &self.rings {
            let (counting, wanted) = ring.counting_ns();
            (counting_ns, wanted_ns) = (counting_ns + counting, wanted_ns + wanted);
        }
        match wanted_ns {
            0 => 1.0,
            wanted_ns => (counting_ns as f64 / wanted_ns as f64).min(1.0),
        }
    }

    /// Drains to the end: [`drain`](Self::drain) in a loop, then [`finish`](Self::finish).
    pub fn run(mut self, sink: &mut dyn Sink) -> Result<Summary, Error> {
        loop {
            // Within the budget, each round is paid from it, and the pace says when one is due.
            let patience = match (&self.rate, self.give_up_at_ns) {
                (RateControl::Budget(_), None) => Duration::from_secs(2),
                _ => Duration::from_millis(200),
            };
            let state = self.drain(patience, sink)?;
            if state != State::Running {
                return self.finish(state, sink);
            }
        }
    }

    fn wait(&mut self, patience: Duration) -> Result<(), Error> {
        let readable = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let polled_fd = |ring: &CpuRing| match ring.owner_ended {
            // Passed over.
            true => -1,
            false => ring.raw(),
        };
        let rings = self.rings.iter().map(polled_fd);
        let mut polled: Vec<_> = rings.map(readable).collect();
        match &self.observed {
            ObservedTarget::Command(child) => {
                let ended = child.ended.as_ref();
                polled.extend(ended.map(|ended| readable(ended.as_raw_fd())));
            }
            ObservedTarget::Attached(attached) => {
                polled.extend(attached.handles().into_iter().map(readable));
            }
        }
        let next_switch_ns = self
            .enable_at_ns
            .into_iter()
            .chain(self.disable_at_ns)
            .min();
        let until_switch =
            next_switch_ns.map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
        let patience = patience.min(self.duty_cycle.patience(now_ns()));
        let patience = patience.min(self.rate.patience(now_ns()));
        let patience = until_switch.map_or(patience, |until| {
            patience.min(until + Duration::from_millis(1))
        });
        let timeout_ms = patience
            .as_nanos()
            .div_ceil(1_000_000)
            .min(i32::MAX as u128) as libc::c_int;
        // SAFETY: the array has the length given and outlives the call.
        let result = unsafe {
            libc::poll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                timeout_ms,
            )
        };
        let error = io::Error::last_os_error();
        for (ring, polled) in self.rings.iter_mut().zip(&polled) {
            ring.owner_ended |= result > 0 && polled.revents & libc::POLLHUP != 0;
        }
        match error {
            error if result < 0 && error.kind() != io::ErrorKind::Interrupted => {
                Err(Error::Wait(error))
            }
            _ => Ok(()),
        }
    }

    /// Passes signals on to the command; true once it has had its time to end. What was running
    /// already is left at once.
    fn interrupted(&mut self) -> bool {
        let count = self.interrupts.count();
        let ObservedTarget::Command(child) = &mut self.observed else {
            return count > 0;
        };
        if let Some(signal) = self.interrupts.to_forward() {
            child.signal(signal);
        }
        match count {
            0 => false,
            1 => {
                let give_up_at_ns = *self
                    .give_up_at_ns
                    .get_or_insert_with(|| now_ns() + nanoseconds(GRACE));
                give_up_at_ns <= now_ns()
            }
            _ => true,
        }
    }

    fn round(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let began_ns = now_ns();
        let Self {
            window,
            follower,
            rings,
            ..
        } = self;
        for ring in rings.iter_mut().filter(|ring| ring.has_packets()) {
            let mut bad = 0;
            window.add(|bytes| bad = ring.drain(bytes));
            window.malformed += bad;
        }
        if let Some(signals) = &mut self.signals {
            let end = self.round_ns == u64::MAX;
            window.add(|bytes| signals.drain(began_ns, end, bytes));
        }
        let most = match self.page_nodes {
            // The kernel is asked once a round.
            true => usize::MAX,
            false => ACCESSES_AT_ONCE,
        };
        let mut unread: Vec<UnreadRecords<'_>> = rings.iter().map(CpuRing::unread).collect();
        follower
            .follow_all(window, self.round_ns, most, &mut unread, sink)
            .map_err(Error::Sink)?;
        let passed: Vec<usize> = unread.iter().map(|ring| ring.passed).collect();
        for (ring, passed) in rings.iter_mut().zip(passed) {
            ring.give_back(passed);
        }
        if let ObservedTarget::Attached(attached) = &mut self.observed {
            attached.settle(self.round_ns, follower);
        }
        self.followed_ns = self.round_ns.min(began_ns);
        self.round_ns = began_ns;
        if self.page_nodes && !follower.accesses.is_empty() {
            let Follower {
                accesses, threads, ..
            } = follower;
            let pid = |thread| threads.pid(thread);
            page_nodes::look_up(accesses, pid, self.page_bytes);
        }
        follower.hand_over(sink).map_err(Error::Sink)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: zero is a valid timespec, which the call fills in.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
