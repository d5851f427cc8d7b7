//! The sampler: opens events of the target's threads on every CPU, with one ring per CPU, and drains the rings until
//! the target ends.

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
use crate::source::SourceChoice;
use crate::threads::SampledThread;

/// State of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The target is running.
    Running,
    /// The command has ended.
    Ended(ExitStatus),
    /// All attached processes have ended. Their exit statuses are known only to their parents.
    TargetEnded,
    /// Recording was interrupted, or its time is over; the target continues.
    Detached,
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Summary {
    /// State at the end.
    pub state: State,
    /// All threads, by [`ThreadIndex`](nearpage_recording::ThreadIndex).
    pub threads: Vec<SampledThread>,
    /// Numbers of undecoded samples by reason.
    pub undecoded: UndecodedCounts,
    /// The places with most undecoded samples, in descending order, at most 16.
    pub undecoded_places: Vec<UndecodedPlace>,
    /// Numbers of lost, incomplete and unusable records.
    pub records: RecordCounts,
    /// Sampling rates by time, beginning with the first rate.
    pub rates: Vec<RateChange>,
    /// Measured cost of a sample in nanoseconds, including the recorder's part; `None` if it was not measured, or with
    /// too few samples.
    pub sample_ns: Option<f64>,
    /// With a budget: processor time spent on sampling in nanoseconds, including the recorder's part.
    pub sampling_ns: Option<f64>,
    /// Samples that the signal source missed.
    pub signal_losses: SignalLosses,
    /// Limitations of the recording, in sentences for the user.
    pub notes: Vec<String>,
    /// Share of the time in which the hardware counted, 0 to 1. It is below 1 where events are multiplexed or others
    /// use the PMU. Weights are not scaled by it. 1 for the clock source.
    pub counting_share: f64,
    /// Begin of the recording, CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// End of the recording, CLOCK_MONOTONIC.
    pub end_ns: u64,
}

#[expect(clippy::large_enum_variant, reason = "there is one")]
enum ObservedTarget {
    Command(Child),
    Attached(Attached),
}

/// A running recording.
pub struct Sampler {
    observed: ObservedTarget,
    rings: Vec<CpuRing>,
    /// Replaces the rings for the signal source.
    signals: Option<Signals>,
    window: Window,
    follower: Follower,
    interrupts: Interrupts,
    calibration: Calibration,
    choice: SourceChoice,
    notes: Vec<String>,
    page_nodes: bool,
    page_bytes: usize,
    period_ns: u64,
    rate: RateControl,
    /// Watches the marks of a command with the preload library, if there is a budget.
    marks: Option<Marks>,
    duty_cycle: DutyCycle,
    /// Bit set of each task's events that are on.
    on: u32,
    /// Whether the time is between `enable_at_ns` and `disable_at_ns`.
    in_window: bool,
    begin_ns: u64,
    /// Future switches of sampling, CLOCK_MONOTONIC.
    enable_at_ns: Option<u64>,
    disable_at_ns: Option<u64>,
    /// Begin of the last round of draining; older records are complete.
    round_ns: u64,
    /// All records older than this time have been followed.
    followed_ns: u64,
    give_up_at_ns: Option<u64>,
}

/// Number of accesses that are handed over at once, so that they stay in a core's first-level cache.
pub(crate) const ACCESSES_AT_ONCE: usize = 256;

/// Time that an interrupted command has to end before nearpage detaches.
const GRACE: Duration = Duration::from_secs(2);

impl Sampler {
    /// Process id of the command; `None` if none was started.
    pub fn pid(&self) -> Option<u32> {
        match &self.observed {
            ObservedTarget::Command(child) => Some(child.pid as u32),
            ObservedTarget::Attached(_) => None,
        }
    }

    /// Threads met so far, by [`ThreadIndex`](nearpage_recording::ThreadIndex): the threads of all accesses that a
    /// [`Sink`] got.
    pub fn threads(&self) -> &[SampledThread] {
        self.follower.threads.all()
    }

    /// How the threads of a running target are covered, in one sentence; `None` for a command, whose threads are all
    /// covered.
    pub fn coverage(&self) -> Option<String> {
        match &self.observed {
            ObservedTarget::Command(_) => None,
            ObservedTarget::Attached(attached) => Some(attached.coverage.to_string()),
        }
    }

    /// Time between two samples of a thread in nanoseconds, which is the cost of each sample.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// With a budget: the highest rate, at which a sample has weight 1. `None` for a fixed rate.
    pub fn full_rate_hz(&self) -> Option<f64> {
        self.rate.full_hz()
    }

    /// Side of the sampled instruction, and cost of samples.
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// The source of accesses, and the reason for its choice.
    pub fn choice(&self) -> &SourceChoice {
        &self.choice
    }

    /// Limitations of the recording, in sentences for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Waits up to `timeout` for records, follows them and hands over accesses and events. Call it until it returns
    /// another state than [`State::Running`], then call [`finish`](Self::finish).
    pub fn drain(&mut self, timeout: Duration, sink: &mut dyn Sink) -> Result<State, Error> {
        self.wait(timeout)?;
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

    /// Ends the recording: stops sampling and hands over the remaining records. `state` is the result of the last
    /// [`drain`](Self::drain).
    pub fn finish(mut self, state: State, sink: &mut dyn Sink) -> Result<Summary, Error> {
        self.in_window = false;
        self.rings.iter_mut().for_each(|ring| ring.switch(0));
        let counting_share = self.counting_share();
        if let ObservedTarget::Attached(attached) = &self.observed {
            self.notes.extend(attached.shortcomings(&self.follower));
        }
        let end_ns = now_ns();
        self.round(sink)?;
        self.round_ns = u64::MAX;
        self.round(sink)?;
        self.notes.extend(self.follower.filter.never_found());
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

    /// A note on processes that the command has left running, such as daemons in the background.
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

    /// See [`Summary::counting_share`].
    fn counting_share(&self) -> f64 {
        if self.choice.source != Source::Pmu {
            return 1.0;
        }
        let (mut counting_ns, mut expected_ns) = (0, 0);
        for ring in &self.rings {
            let (counting, expected) = ring.counting_ns();
            (counting_ns, expected_ns) = (counting_ns + counting, expected_ns + expected);
        }
        match expected_ns {
            0 => 1.0,
            expected_ns => (counting_ns as f64 / expected_ns as f64).min(1.0),
        }
    }

    /// Records to the end: calls [`drain`](Self::drain) in a loop, then [`finish`](Self::finish).
    pub fn run(mut self, sink: &mut dyn Sink) -> Result<Summary, Error> {
        loop {
            // With a budget, rounds are costly, and the chosen rate determines when the next one is due.
            let timeout = match (&self.rate, self.give_up_at_ns) {
                (RateControl::Budget(_), None) => Duration::from_secs(2),
                _ => Duration::from_millis(200),
            };
            let state = self.drain(timeout, sink)?;
            if state != State::Running {
                return self.finish(state, sink);
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let readable = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let polled_fd = |ring: &CpuRing| match ring.owner_ended {
            // Negative descriptors are skipped by poll(2).
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
        let timeout = timeout.min(self.duty_cycle.timeout(now_ns()));
        let timeout = timeout.min(self.rate.timeout(now_ns()));
        let timeout = until_switch.map_or(timeout, |until| {
            timeout.min(until + Duration::from_millis(1))
        });
        let timeout_ms =
            timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int;
        // SAFETY: the array has the given length and outlives the call.
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

    /// Forwards signals to the command. Returns whether to detach: from a command after a period of grace, from other
    /// targets at once.
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
            // One query per round covers all accesses.
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

/// Present time, CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: zero is a valid timespec, which the call fills in.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
