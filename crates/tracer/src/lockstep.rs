//! Virtual time: threads advance together, a quantum of instructions at a time, so that what they
//! do to each other's caches doesn't depend on the host.
//!
//! A thread that has used up its quantum waits until every other thread that can run has, too.
//! Threads blocked in a system call are left out. One CPU runs one thread at a time: threads that
//! share it take turns, a quantum each.
//!
//! Within a quantum, a thread takes no line from another CPU's caches until the threads created before
//! it have used up their quanta. So a line that two threads write moves to the other CPU once and back once in a
//! quantum, however the host schedules them. Threads that share much data run one after the other.
//!
//! Waiting for each other costs more than the work of a short quantum. So while threads do not interact (no thread
//! takes a line from another CPU, spins, or is woken), each quantum is longer than the one before by the shortest one's
//! length, up to sixteen times that. The length depends only on what the threads do, not on the host.
//!
//! The host decides which of two threads comes first to a lock or a barrier within a quantum. The
//! few instructions that depend on this differ between runs; everything else repeats.
//!
//! The emulator takes locks of its own (while it translates, forks, or ends), and programs block in
//! system calls that are on no list. So a waiting thread checks now and then whether the threads that
//! it waits for are asleep on the host. Sleepers are left out until they call the lockstep again, so no
//! thread waits here forever. Threads in a system call are left out after few checks, and so are all threads
//! while a process is being made, for which the emulator stops them. Other threads sleep for
//! the emulator's locks, which a busy host may prolong, and are left out after many more checks.

mod slots;

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{current, park_timeout};
use std::time::Duration;

use crate::system;
use slots::{Inner, Slot, State};

/// How long a thread waits between two checks whether others are asleep.
const SLEEP_CHECK_INTERVAL: Duration = Duration::from_millis(4);
/// Checks in a row that must find a thread asleep before it is left out: for threads in a system call, and for others.
/// Two at least, because the first may have met a lock of the emulator's.
const LOOKS: [u32; 2] = [2, 50];
/// The longest quantum, as a multiple of the shortest.
const LONGEST: u64 = 16;
/// How long a waiting thread spins on its host core, at least and at most. To fall asleep and be woken takes as long
/// (tens of microseconds in a virtual machine).
const SPIN_NS: std::ops::RangeInclusive<u64> = 1_000..=100_000;

/// A thread in the lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member(usize);

/// All threads of a process.
pub struct Lockstep {
    quantum: u64,
    inner: Mutex<Inner>,
    changes: Arc<AtomicU64>,
    joined: Arc<AtomicU64>,
    host_cores: usize,
    /// Number of threads that are making a process.
    pub forking: AtomicU32,
    /// How often a thread was left out because it slept.
    pub left_out: AtomicU64,
}

/// Permission to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Virtual time at which the thread goes on.
    pub time: u64,
    /// Virtual time at which its turn ends.
    pub end: u64,
}

impl Lockstep {
    /// A lockstep without threads, for that many CPUs.
    pub fn new(quantum: u32, cpus: usize) -> Self {
        let quantum = u64::from(quantum);
        let (changes, joined) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let inner = Inner {
            changes: changes.clone(),
            joined: joined.clone(),
            queues: vec![VecDeque::new(); cpus],
            cpu_times: vec![0; cpus],
            end: quantum,
            length: 1,
            ..Inner::default()
        };
        Self {
            quantum,
            inner: Mutex::new(inner),
            changes,
            joined,
            host_cores: std::thread::available_parallelism().map_or(1, usize::from),
            forking: AtomicU32::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread that will run on this CPU from this virtual time, as soon as it calls
    /// [`Self::enter`]. Other threads wait for it from now on.
    pub fn add(&self, cpu: usize, time: u64) -> Member {
        let mut inner = self.inner();
        let member = inner.slots.len();
        inner.slots.push(Slot {
            cpu,
            state: State::Blocked,
            time,
            tid: 0,
            thread: None,
            asleep: 0,
            calls: Arc::default(),
            waits: false,
            spin_ns: *SPIN_NS.end(),
        });
        inner.join(member, time);
        Member(member)
    }

    /// Virtual time at which the quantum began.
    pub fn begin(&self) -> u64 {
        self.inner().begin
    }

    /// The flag by which that thread says whether it is in a system call.
    pub fn calls(&self, member: Member) -> Arc<AtomicBool> {
        let inner = self.inner();
        let slot = inner.slots.get(member.0);
        slot.map_or_else(Default::default, |slot| slot.calls.clone())
    }

    /// Makes the calling thread that member; returns when it may run.
    pub fn enter(&self, member: Member) -> Turn {
        let mut inner = self.inner();
        if let Some(slot) = inner.slots.get_mut(member.0) {
            slot.tid = system::thread_id();
            slot.thread = Some(current());
        }
        self.wait(inner, member)
    }

    /// Ends the calling thread's turn at this virtual time; returns when its next turn begins.
    /// `independent`: it did not interact with other threads in this turn.
    pub fn next(&self, member: Member, time: u64, independent: bool) -> Turn {
        let mut inner = self.inner();
        inner.independent &= independent;
        match inner.state(member) {
            State::Running if time < inner.end => {
                let end = inner.end;
                return Turn { time, end };
            }
            State::Running => {
                inner.leave(member, time, State::Ready);
                let cpu = inner.slots.get(member.0).map_or(0, |slot| slot.cpu);
                if let Some(queue) = inner.queues.get_mut(cpu) {
                    queue.push_back(member.0);
                }
                self.go_on(&mut inner);
            }
            // It had been left out.
            _ => {
                let time = time.max(inner.begin);
                inner.join(member.0, time);
            }
        }
        self.wait(inner, member)
    }

    /// Moves the calling thread to that CPU at this virtual time; returns when it has its turn there.
    pub fn move_to(&self, member: Member, cpu: usize, time: u64) -> Turn {
        let mut inner = self.inner();
        if inner.state(member) == State::Running {
            inner.leave(member, time, State::Blocked);
            inner.hand_over(member.0);
        }
        if let Some(slot) = inner.slots.get_mut(member.0) {
            slot.cpu = cpu;
        }
        if inner.state(member) == State::Blocked {
            let time = time.max(inner.begin);
            inner.join(member.0, time);
        }
        self.wait(inner, member)
    }

    /// Leaves the calling thread out: it may be about to sleep.
    pub fn block(&self, member: Member, time: u64) {
        let mut inner = self.inner();
        if inner.state(member) == State::Running {
            inner.leave(member, time, State::Blocked);
            inner.hand_over(member.0);
            self.go_on(&mut inner);
        }
    }

    /// Takes in a thread that was woken at this virtual time: others wait for it from now on.
    pub fn woken(&self, member: Member, time: u64) {
        let mut inner = self.inner();
        if inner.state(member) == State::Blocked {
            inner.join(member.0, time);
        }
    }

    /// Takes the calling thread in again after it was blocked; returns when it may run. `time` is the virtual time
    /// at which it was woken, if known.
    pub fn unblock(&self, member: Member, time: Option<u64>) -> Turn {
        let mut inner = self.inner();
        if inner.state(member) == State::Blocked {
            let time = time.unwrap_or(inner.begin);
            inner.join(member.0, time);
        }
        self.wait(inner, member)
    }

    /// How often a blocked thread could run again. The result of [`Self::after_earlier`] holds until
    /// this number changes.
    #[inline]
    pub fn joined(&self) -> u64 {
        self.joined.load(Relaxed)
    }

    /// Returns when no thread that was created before the calling one is in its turn.
    pub fn after_earlier(&self, member: Member) {
        let mut inner = self.inner();
        loop {
            let off = inner.off;
            let earlier = inner.slots.iter().take(member.0);
            let busy = earlier.filter(|slot| slot.state == State::Running).count() > 0;
            let Some(slot) = inner.slots.get_mut(member.0) else {
                return;
            };
            slot.waits = busy && !off;
            if !slot.waits {
                return;
            }
            inner = self.wait_for_change(inner, member);
        }
    }

    /// Removes a thread that ended or could not be created.
    pub fn remove(&self, member: Member, time: u64) {
        let mut inner = self.inner();
        match inner.state(member) {
            State::Running => {
                inner.leave(member, time, State::Gone);
                inner.hand_over(member.0);
            }
            State::Ready => inner.leave(member, time, State::Gone),
            _ => {}
        }
        if let Some(slot) = inner.slots.get_mut(member.0) {
            slot.state = State::Gone;
            slot.thread = None;
        }
        self.go_on(&mut inner);
    }

    /// Lets all threads run without turns from now on: the process ends.
    pub fn end(&self) {
        let mut inner = self.inner();
        inner.off = true;
        inner.slots.iter().for_each(|slot| inner.notify(slot));
    }

    /// Begins the next quantum if no thread runs.
    fn go_on(&self, inner: &mut Inner) {
        let mut earliest = None;
        for queue in &inner.queues {
            if let Some(slot) = queue.front().and_then(|first| inner.slots.get(*first)) {
                earliest = Some(earliest.map_or(slot.time, |time: u64| time.min(slot.time)));
            }
        }
        let (0, Some(earliest)) = (inner.running, earliest) else {
            return;
        };
        inner.length = if inner.independent {
            LONGEST.min(inner.length + 1)
        } else {
            1
        };
        inner.independent = true;
        inner.begin = inner.end;
        inner.end += inner.length * self.quantum;
        if earliest >= inner.end {
            inner.begin = earliest - earliest % self.quantum;
            inner.end = inner.begin + inner.length * self.quantum;
        }
        for cpu in 0..inner.queues.len() {
            inner.start_first(cpu);
        }
    }

    fn wait<'a>(&'a self, mut inner: MutexGuard<'a, Inner>, member: Member) -> Turn {
        loop {
            let off = inner.off;
            let end = inner.end;
            match inner.slots.get_mut(member.0) {
                Some(slot) if !off => {
                    slot.asleep = 0;
                    if slot.state == State::Running {
                        let time = slot.time;
                        return Turn { time, end };
                    }
                }
                slot => {
                    let time = slot.map_or(0, |slot| slot.time);
                    return Turn {
                        time,
                        end: u64::MAX,
                    };
                }
            }
            if inner.state(member) == State::Blocked {
                // It was left out, and did not sleep after all.
                let time = inner.begin;
                inner.join(member.0, time);
            }
            self.go_on(&mut inner);
            if inner.state(member) == State::Running {
                continue;
            }
            inner = self.wait_for_change(inner, member);
        }
    }

    /// Waits until a thread is notified. Spins on its host core at first, if there is a core for each thread that
    /// can run.
    fn wait_for_change<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        member: Member,
    ) -> MutexGuard<'a, Inner> {
        let before = self.changes.load(Relaxed);
        let can_run: usize = inner.queues.iter().map(VecDeque::len).sum();
        let spin_ns = match inner.slots.get(member.0) {
            Some(slot) if can_run <= self.host_cores => slot.spin_ns,
            _ => 0,
        };
        drop(inner);
        let began = system::now_ns();
        let mut came = false;
        while !came && system::now_ns() - began < spin_ns {
            (0..20).for_each(|_| spin_loop());
            came = self.changes.load(Relaxed) != before;
        }
        if !came {
            park_timeout(SLEEP_CHECK_INTERVAL);
        }
        let waited_ns = system::now_ns() - began;
        let mut inner = self.inner();
        if let Some(slot) = inner.slots.get_mut(member.0)
            && spin_ns > 0
        {
            // After a short sleep the thread may spin again: the sleep itself made the wait long.
            let short = waited_ns <= *SPIN_NS.end();
            let next = if short { spin_ns * 2 } else { spin_ns / 2 };
            slot.spin_ns = next.clamp(*SPIN_NS.start(), *SPIN_NS.end());
        }
        if waited_ns >= SLEEP_CHECK_INTERVAL.as_nanos() as u64 {
            self.leave_out_sleepers(&mut inner);
        }
        inner
    }

    #[cold]
    fn leave_out_sleepers(&self, inner: &mut Inner) {
        let now = system::now_ns();
        if now - inner.looked_at < SLEEP_CHECK_INTERVAL.as_nanos() as u64 {
            return;
        }
        inner.looked_at = now;
        for number in 0..inner.slots.len() {
            let Some(slot) = inner.slots.get_mut(number) else {
                return;
            };
            if slot.state != State::Running || slot.waits {
                continue;
            }
            if !sleeps(slot.tid) {
                slot.asleep = 0;
                continue;
            }
            slot.asleep += 1;
            let quick = slot.calls.load(Relaxed) || self.forking.load(Relaxed) > 0;
            if slot.asleep >= LOOKS[usize::from(!quick)] {
                let time = slot.time;
                slot.asleep = 0;
                self.left_out.fetch_add(1, Relaxed);
                inner.leave(Member(number), time, State::Blocked);
                inner.hand_over(number);
            }
        }
        self.go_on(inner);
    }
}

/// Is the thread asleep on the host, or does it not exist?
fn sleeps(tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")) else {
        return true;
    };
    // The name, in parentheses, may contain any character.
    let state = status.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with('S') || state.starts_with('Z')
}
