//! Virtual time: threads advance together, a quantum of instructions at a time, so that what they
//! do to each other's caches doesn't depend on the host.
//!
//! A thread that has used up its quantum waits until every other thread that can run has, too.
//! Threads blocked in a system call are left out. One CPU runs one thread at a time: threads that
//! share it take turns, a quantum each.
//!
//! Within a quantum, a thread takes nothing from another CPU's caches until the threads created before
//! it have used theirs up. So a line that two threads write goes once there and once back in a
//! quantum, however the host lets them run; threads that share much run one after the other.
//!
//! While they have nothing to do with each other (nobody takes a line from another CPU, spins, or is
//! woken), a quantum is longer than the one before by as much as the shortest, up to sixteen times
//! it: waiting for each other costs more than the work of a short one. How long it is depends on
//! what they do alone, not on the host.
//!
//! Which of two threads comes first within a quantum, to a lock or a barrier, is up to the host: the
//! few instructions that depend on it differ between runs, and all else repeats.
//!
//! The emulator has locks of its own (while it translates, forks, or ends), and programs block in
//! ways that no list of system calls knows. So a waiting thread looks now and then whether those
//! it waits for are asleep on the host, and leaves them out until they call again: nothing that a
//! thread waits for here can keep it for good. It is quick about it with those in a system call,
//! and while a process is being made (the emulator stops all threads for that); others sleep for
//! the emulator's locks, which a busy host may make long, and are given much more time.

mod slots;

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{current, park_timeout};
use std::time::Duration;

use crate::system;
use slots::{Inner, Slot, State};

/// How long a thread waits until it looks whether others are asleep.
const PATIENCE: Duration = Duration::from_millis(4);
/// Looks at a sleeper until it is left out: in a system call, or else. Twice, since once may be
/// a lock of the emulator's.
const LOOKS: [u32; 2] = [2, 50];
/// The longest quantum, in shortest ones.
const LONGEST: u64 = 16;
/// How long a thread stays on its host core for others to come, at least and at most: as long as
/// it takes to fall asleep, and to be woken (tens of microseconds in a virtual machine).
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
    /// Threads that are making a process.
    pub forking: AtomicU32,
    /// Times that a thread was left out because it slept.
    pub left_out: AtomicU64,
}

/// Permission to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Virtual time at which the thread goes on.
    pub time: u64,
    /// Until which it may.
    pub end: u64,
}

impl Lockstep {
    /// Nobody yet, on that many CPUs.
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

    /// A thread that will run on this CPU from this virtual time, as soon as it calls
    /// [`Self::enter`]; others wait for it from now on.
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

    /// Whether that thread is in a system call: for it to say.
    pub fn calls(&self, member: Member) -> Arc<AtomicBool> {
        let inner = self.inner();
        let slot = inner.slots.get(member.0);
        slot.map_or_else(Default::default, |slot| slot.calls.clone())
    }

    /// The calling thread is that one, and runs when this returns.
    pub fn enter(&self, member: Member) -> Turn {
        let mut inner = self.inner();
        if let Some(slot) = inner.slots.get_mut(member.0) {
            slot.tid = system::thread_id();
            slot.thread = Some(current());
        }
        self.wait(inner, member)
    }

    /// The calling thread has used up its turn, at this virtual time; returns with its next one.
    /// `apart`: it had nothing to do with other threads in it.
    pub fn next(&self, member: Member, time: u64, apart: bool) -> Turn {
        let mut inner = self.inner();
        inner.apart &= apart;
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

    /// The calling thread goes on on that CPU, at this virtual time, as soon as it has its turn there.
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

    /// The calling thread may be about to sleep.
    pub fn block(&self, member: Member, time: u64) {
        let mut inner = self.inner();
        if inner.state(member) == State::Running {
            inner.leave(member, time, State::Blocked);
            inner.hand_over(member.0);
            self.go_on(&mut inner);
        }
    }

    /// The thread has been woken at this virtual time: others wait for it from now on.
    pub fn woken(&self, member: Member, time: u64) {
        let mut inner = self.inner();
        if inner.state(member) == State::Blocked {
            inner.join(member.0, time);
        }
    }

    /// The calling thread was blocked, and is not; returns when it may run. `time`: virtual time
    /// at which it was woken, if known.
    pub fn unblock(&self, member: Member, time: Option<u64>) -> Turn {
        let mut inner = self.inner();
        if inner.state(member) == State::Blocked {
            let time = time.unwrap_or(inner.begin);
            inner.join(member.0, time);
        }
        self.wait(inner, member)
    }

    /// Times that a blocked thread could run again: what [`Self::after_earlier`] found holds until
    /// there is one more.
    #[inline]
    pub fn joined(&self) -> u64 {
        self.joined.load(Relaxed)
    }

    /// Returns when no thread created before the calling one is in its turn.
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
            inner = self.rest(inner, member);
        }
    }

    /// The thread ended, or was never born.
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

    /// Everyone runs free from now on: the process ends.
    pub fn end(&self) {
        let mut inner = self.inner();
        inner.off = true;
        inner.slots.iter().for_each(|slot| inner.tell(slot));
    }

    /// If nobody runs, the next quantum begins.
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
        inner.length = if inner.apart {
            LONGEST.min(inner.length + 1)
        } else {
            1
        };
        inner.apart = true;
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
            inner = self.rest(inner, member);
        }
    }

    /// Waits until somebody is told to look again; on its host core for a while, if all threads that
    /// can run have one.
    fn rest<'a>(&'a self, inner: MutexGuard<'a, Inner>, member: Member) -> MutexGuard<'a, Inner> {
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
            park_timeout(PATIENCE);
        }
        let waited_ns = system::now_ns() - began;
        let mut inner = self.inner();
        if let Some(slot) = inner.slots.get_mut(member.0)
            && spin_ns > 0
        {
            // Whoever slept for a moment may spin again: it is sleeping that made it late.
            let short = waited_ns <= *SPIN_NS.end();
            let next = if short { spin_ns * 2 } else { spin_ns / 2 };
            slot.spin_ns = next.clamp(*SPIN_NS.start(), *SPIN_NS.end());
        }
        if waited_ns >= PATIENCE.as_nanos() as u64 {
            self.leave_out_sleepers(&mut inner);
        }
        inner
    }

    #[cold]
    fn leave_out_sleepers(&self, inner: &mut Inner) {
        let now = system::now_ns();
        if now - inner.looked_at < PATIENCE.as_nanos() as u64 {
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

/// Is the thread asleep on the host (or not there)?
fn sleeps(tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")) else {
        return true;
    };
    // The name, in parentheses, may hold anything.
    let state = status.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with('S') || state.starts_with('Z')
}
