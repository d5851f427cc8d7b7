//! Samples taken inside the process, where the kernel refuses perf events. A timer for each thread measures the thread's
//! time in user mode and sends a signal, whose frame has the registers. The handler writes a sample into a ring
//! ([`nearpage_wire::samples`]) that the recorder reads.
//!
//! The timer expires with the tick that found the thread in user mode, and the signal is delivered
//! on the way out of that very interrupt: the frame holds what the tick interrupted. A thread that
//! sleeps, or works in the kernel, is left alone, so that no system call of the program is cut
//! short. Gaps are whole ticks, drawn at random around the period. A sample stands for the thread's
//! time in user mode since the one before, by the kernel's clocks: ticks alone miss much of a thread
//! that shares its CPU.
//!
//! The signal is a realtime signal without a handler. The program does not see the library's handler: it reads
//! that the default is done, and may set the default or ignore the signal. If it installs a handler, the program gets
//! the signal, all timers are deleted, and one line says so. `sigwait` and `signalfd` never get the library's signal.
//!
//! All code here runs in signal handlers, or may be interrupted by the library's own: it takes no locks and leaves `errno`
//! alone.

mod ring;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::samples::{Kind, SLOTS_MAX, StopReason, THREAD_USER_CLOCK, offset, slot};

use crate::environment;
use crate::message;
use crate::sys;
use crate::thread::Thread;
use ring::{
    EARLY, FILES, FILES_TAKEN, RING, SLOTS, copy_maps, half, make_ring, with_files, word, write,
};

/// Realtime signals that are tried, from the highest down: programs use the lowest first.
const SIGNALS: core::ops::RangeInclusive<i32> = 40..=63;
/// Threads that can have a timer.
const TIMERS_MAX: usize = 8192;
/// Time between samples, unless the environment sets another.
const DEFAULT_PERIOD_NS: u64 = 10_000_000;
const DEFAULT_SLOTS: u64 = 4096;
const CLOCK_MONOTONIC: i32 = 1;
/// Timers of `CLOCK_MONOTONIC` are not bound to ticks: gaps are multiples of this.
const MONOTONIC_STEP_NS: u64 = 1_000;
/// How often a new thread yields to the one that makes the ring.
const YIELDS_MAX: u32 = 1_000;
/// A thread's time on CPUs in nanoseconds, in user mode and in the kernel. The kernel divides the exact total by what
/// its ticks find. Ticks alone miss much of the time of a thread that shares its CPU: it often leaves the CPU before the
/// tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuUsage {
    user_ns: u64,
    kernel_ns: u64,
}

impl CpuUsage {
    fn now() -> Self {
        let (user_ns, kernel_ns) = sys::thread_usage_ns();
        Self { user_ns, kernel_ns }
    }

    /// Time in user mode since `before`. Each tick changes how the kernel divides all time before, so the difference is
    /// bounded by the whole time since `before`.
    fn user_ns_since(&self, before: &Self) -> u64 {
        let user_ns = self.user_ns.saturating_sub(before.user_ns);
        let all_ns = self.user_ns.saturating_add(self.kernel_ns);
        user_ns.min(all_ns.saturating_sub(before.user_ns.saturating_add(before.kernel_ns)))
    }
}

/// The signal; 0: no samples are taken.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The action that the program has set for the signal: 0 default, 1 ignored.
static PROGRAMS_ACTION: AtomicUsize = AtomicUsize::new(0);
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static TICK_NS: AtomicU64 = AtomicU64::new(0);
static CLOCK: AtomicI32 = AtomicI32::new(THREAD_USER_CLOCK);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static FORKED: AtomicU32 = AtomicU32::new(0);
static NO_TIMER: AtomicU64 = AtomicU64::new(0);
/// Timers of all threads: the kernel's number + 1; 0: free.
static TIMERS: [AtomicU32; TIMERS_MAX] = [const { AtomicU32::new(0) }; TIMERS_MAX];

/// Prepares to sample this process if the environment asks for it. Sampling of a thread begins with
/// [`thread_begins`].
pub fn start() {
    let Some(directory) = environment::variable(nearpage_wire::SAMPLES_DIRECTORY_VARIABLE)
        .filter(|name| name.starts_with(b"/"))
    else {
        return;
    };
    // SAFETY: the process has not begun to be sampled.
    let files = unsafe { &mut *FILES.0.get() };
    files.start_ns = sys::clock_ns();
    files.directory.clear();
    if !files.directory.push(directory) {
        return;
    }
    let period_ns = environment::number(nearpage_wire::SAMPLE_PERIOD_VARIABLE);
    PERIOD_NS.store(
        period_ns.unwrap_or(DEFAULT_PERIOD_NS).max(1),
        Ordering::Relaxed,
    );
    let slots = environment::number(nearpage_wire::SAMPLE_SLOTS_VARIABLE)
        .filter(|slots| slots.is_power_of_two() && *slots <= SLOTS_MAX as u64);
    SLOTS.store(slots.unwrap_or(DEFAULT_SLOTS) as usize, Ordering::Relaxed);
    if environment::variable(nearpage_wire::SAMPLE_CLOCK_VARIABLE) == Some(b"monotonic") {
        CLOCK.store(CLOCK_MONOTONIC, Ordering::Relaxed);
        TICK_NS.store(MONOTONIC_STEP_NS, Ordering::Relaxed);
    } else {
        TICK_NS.store(sys::tick_ns().max(1), Ordering::Relaxed);
    }
    RANDOM.store(sys::monotonic_ns(), Ordering::Relaxed);
    let free = |signal: &i32| sys::action(*signal).is_ok_and(|action| action.is_default());
    let Some(signal) = SIGNALS
        .rev()
        .filter(|signal| !sys::is_blocked(*signal))
        .find(free)
    else {
        message::line(format_args!(
            "the program uses all realtime signals: it is not sampled"
        ));
        return;
    };
    if sys::handle(signal, on_signal as *const () as usize).is_ok() {
        SIGNAL.store(signal, Ordering::Release);
    }
}

/// Is this process sampled?
pub fn is_on() -> bool {
    SIGNAL.load(Ordering::Acquire) != 0
}

/// Does this library use `signal` now?
pub fn is_ours(signal: i32) -> bool {
    signal != 0 && signal == SIGNAL.load(Ordering::Acquire)
}

/// Begins to sample the calling thread.
pub fn thread_begins(thread: &mut Thread) {
    let signal = SIGNAL.load(Ordering::Acquire);
    if signal == 0 {
        return;
    }
    // Programs that make the system call themselves, as Go's runtime does, bypass the hooks.
    if !sys::action(signal).is_ok_and(|action| action.handler == on_signal as *const () as usize) {
        return give_way(signal);
    }
    thread.used = CpuUsage::now();
    match make_timer(signal, thread) {
        Some(place) => thread.timer = place,
        None => {
            NO_TIMER.fetch_add(1, Ordering::Relaxed);
        }
    }
    if thread.order > 0 {
        if RING.load(Ordering::Acquire) == ring::NONE {
            make_ring();
        }
        // Another thread makes the ring, with a few system calls.
        let mut patience = YIELDS_MAX;
        while RING.load(Ordering::Acquire) == ring::MAKING && patience > 0 {
            sys::sched_yield();
            patience -= 1;
        }
        thread.begin_unsaid.store(true, Ordering::Relaxed);
        say_begin(&thread.begin_unsaid, thread.tid);
    }
}

/// Writes that the thread began, if that is still to be written. If the ring was not ready when the thread began, this is
/// done before the thread's first sample.
fn say_begin(unsaid: &AtomicBool, tid: u32) {
    let is_there = RING.load(Ordering::Acquire) >= ring::ADDRESS;
    if is_there && unsaid.swap(false, Ordering::Relaxed) {
        write(Kind::ThreadBegins, tid, |_| ());
    }
}

/// Ends sampling of the calling thread.
pub fn thread_ends(thread: &mut Thread) {
    if thread.timer == 0 {
        return;
    }
    note_blocked(thread);
    release_timer(core::mem::take(&mut thread.timer));
    say_begin(&thread.begin_unsaid, thread.tid);
    write(Kind::ThreadEnds, thread.tid, |_| ());
}

/// Begins to sample a child that was forked at `start_ns`, which has neither timers nor a ring yet.
pub fn forked_child(thread: &mut Thread, start_ns: u64) {
    if SIGNAL.load(Ordering::Acquire) == 0 {
        return;
    }
    RING.store(ring::NONE, Ordering::Release);
    FILES_TAKEN.store(0, Ordering::Relaxed);
    with_files(|files| files.start_ns = start_ns);
    FORKED.store(1, Ordering::Relaxed);
    NO_TIMER.store(0, Ordering::Relaxed);
    EARLY.store(0, Ordering::Relaxed);
    for timer in &TIMERS {
        timer.store(0, Ordering::Relaxed);
    }
    thread.timer = 0;
    thread.begin_unsaid.store(false, Ordering::Relaxed);
    if thread.stage == crate::thread::Stage::Running {
        thread_begins(thread);
    }
}

/// Ends sampling: the process ends, or executes another program.
pub fn finish(thread: &mut Thread) {
    note_blocked(thread);
    let ring = RING.load(Ordering::Acquire);
    if ring >= ring::ADDRESS {
        word(ring, offset::NO_TIMER).store(NO_TIMER.load(Ordering::Relaxed), Ordering::Relaxed);
        word(ring, offset::DROPPED).fetch_add(EARLY.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        copy_maps();
    }
}

/// Ends sampling while the process goes on, because the program filters its system calls. The handler stays, for signals
/// that are pending.
pub fn stop(thread: &mut Thread) {
    if SIGNAL.load(Ordering::Acquire) != 0 {
        finish(thread);
        SIGNAL.store(0, Ordering::Release);
        release_timers();
    }
}

/// Counts the last periods of a thread that ends while it blocks the signal: they were not sampled.
fn note_blocked(thread: &mut Thread) {
    let signal = SIGNAL.load(Ordering::Relaxed);
    if signal == 0 || thread.timer == 0 || !sys::is_pending(signal) {
        return;
    }
    if RING.load(Ordering::Acquire) == ring::NONE {
        make_ring();
    }
    let ring = RING.load(Ordering::Acquire);
    if ring >= ring::ADDRESS {
        let now = CpuUsage::now();
        let blocked_ns = now.user_ns_since(&thread.used);
        word(ring, offset::BLOCKED_NS).fetch_add(blocked_ns, Ordering::Relaxed);
        thread.used = now;
    }
}

/// Makes a timer that sends `signal` to the calling thread; returns its place in [`TIMERS`], from 1. The search for a
/// free place begins at one that depends on the thread, so that few threads try the same.
fn make_timer(signal: i32, thread: &Thread) -> Option<u32> {
    let free = |place: &usize| {
        TIMERS.get(*place).is_some_and(|timer| {
            timer
                .compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    };
    let first = thread.order as usize;
    let place = (0..TIMERS_MAX)
        .map(|step| (first + step) % TIMERS_MAX)
        .find(free)?;
    let made = sys::timer_create(CLOCK.load(Ordering::Relaxed), signal, thread.tid);
    let number = made.map_or(0, |timer| timer + 1);
    if let Some(taken) = TIMERS.get(place) {
        taken.store(number, Ordering::Release);
    }
    let timer = made.ok()?;
    let period_ns = period_ns();
    set_timer(timer, period_ns, gap_ns(period_ns));
    Some(place as u32 + 1)
}

fn release_timer(place: u32) {
    if let Some(timer) = TIMERS.get(place.wrapping_sub(1) as usize) {
        match timer.swap(0, Ordering::AcqRel) {
            0 | u32::MAX => {}
            number => sys::timer_delete(number - 1),
        }
    }
}

fn release_timers() {
    (1..=TIMERS_MAX as u32).for_each(release_timer);
}

/// Leaves the signal to the program from now on.
#[cold]
fn give_way(signal: i32) {
    if SIGNAL
        .compare_exchange(signal, 0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    release_timers();
    let ring = RING.load(Ordering::Acquire);
    if ring >= ring::ADDRESS {
        half(ring, offset::ENDED).store(StopReason::SignalTaken as u32, Ordering::Release);
    }
    message::line(format_args!(
        "the program takes signal {signal} for itself: it is not sampled from here on"
    ));
}

/// The program sets the action for `signal` to `handler` (0: default, 1: ignore), or only asks for it
/// (`None`). Returns the earlier action if no further call is needed.
pub fn program_sets(signal: i32, handler: Option<usize>) -> Option<usize> {
    if !is_ours(signal) {
        return None;
    }
    match handler {
        None => Some(PROGRAMS_ACTION.load(Ordering::Relaxed)),
        Some(action @ 0..=1) => Some(PROGRAMS_ACTION.swap(action, Ordering::Relaxed)),
        Some(_) => {
            give_way(signal);
            // The program is to read the default as the earlier action.
            let _ = sys::set_default(signal);
            None
        }
    }
}

/// The program's set of signals to wait for, less the library's; `None` if the set does not contain it.
pub fn without_ours(set: [u64; 16]) -> Option<[u64; 16]> {
    let signal = SIGNAL.load(Ordering::Acquire);
    let bit = 1u64 << (signal - 1).clamp(0, 63);
    if signal == 0 || set[0] & bit == 0 {
        return None;
    }
    let mut set = set;
    set[0] &= !bit;
    Some(set)
}

/// Time between two samples, at least a tick. Once there is a ring, the recorder sets it there.
fn period_ns() -> u64 {
    let ring = RING.load(Ordering::Acquire);
    let asked_ns = if ring >= ring::ADDRESS {
        word(ring, offset::PERIOD_NS).load(Ordering::Relaxed)
    } else {
        PERIOD_NS.load(Ordering::Relaxed)
    };
    asked_ns.clamp(TICK_NS.load(Ordering::Relaxed), 1 << 40)
}

/// Draws a gap of whole ticks, between half of `period_ns` and one and a half times that, with mean `period_ns`.
fn gap_ns(period_ns: u64) -> u64 {
    gap_of(
        period_ns,
        TICK_NS.load(Ordering::Relaxed).max(1),
        [next_random(), next_random()],
    )
}

fn gap_of(period_ns: u64, tick_ns: u64, random: [u64; 2]) -> u64 {
    const ONE: u64 = 1 << 16;
    let period = (u128::from(period_ns) * u128::from(ONE) / u128::from(tick_ns)) as u64;
    let shortest = (period / 2).max(ONE);
    let spread = period.saturating_sub(shortest) * 2 + 1;
    let drawn = shortest + random[0] % spread;
    // Rounded up or down at random, so that the mean is kept.
    let ticks = (drawn + random[1] % ONE) / ONE;
    // Half a tick less: where the kernel measures time in user mode more finely than in ticks, the last tick may come early.
    ticks * tick_ns - tick_ns / 2
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn next_random() -> u64 {
    let mut value = RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Sets a timer to expire after `gap_ns`. The interval only counts the periods for which the signal is blocked.
fn set_timer(timer: u32, period_ns: u64, gap_ns: u64) {
    let split = |ns: u64| [ns / 1_000_000_000, ns % 1_000_000_000];
    let ([a, b], [c, d]) = (split(period_ns), split(gap_ns));
    let _ = sys::timer_settime(timer, [a, b, c, d]);
}

/// Offsets in the kernel's `siginfo_t`, for timers.
#[cfg(target_arch = "x86_64")]
mod information {
    pub const CODE: usize = 8;
    pub const TIMER: usize = 16;
    pub const OVERRUN: usize = 20;
    pub const VALUE: usize = 24;
    /// `SI_TIMER`.
    pub const IS_TIMER: i32 = -2;
}

/// The registers in the kernel's `ucontext_t` (R8–R15 DI SI BP BX DX AX CX SP IP), in the order of
/// samples.
#[cfg(target_arch = "x86_64")]
mod context {
    /// Offset of `uc_mcontext.gregs`.
    pub const REGISTERS: usize = 40;
    pub const ORDER: [usize; 16] = [13, 11, 14, 12, 9, 8, 10, 15, 0, 1, 2, 3, 4, 5, 6, 7];
    pub const INSTRUCTION: usize = 16;
}

/// The handler.
///
/// # Safety
/// Called by the kernel, with the frame's own information and context.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn on_signal(_: i32, info: usize, frame: usize) {
    // SAFETY: the kernel's structures, of the sizes that the offsets are within.
    let (code, timer, overrun, tid) = unsafe {
        (
            *((info + information::CODE) as *const i32),
            *((info + information::TIMER) as *const u32),
            *((info + information::OVERRUN) as *const i32),
            *((info + information::VALUE) as *const u32),
        )
    };
    // Another process has sent the signal, for which the program has no handler.
    if code != information::IS_TIMER || SIGNAL.load(Ordering::Relaxed) == 0 {
        return;
    }
    if RING.load(Ordering::Acquire) == ring::NONE {
        make_ring();
    }
    let period_ns = period_ns();
    let missed = overrun.max(0) as u32;
    // SAFETY: the thread's own storage; a field that the interrupted thread may be writing is accessed atomically.
    say_begin(unsafe { &(*Thread::current()).begin_unsaid }, tid);
    // SAFETY: the thread's own storage; nobody else looks at this field meanwhile.
    let stands_for_ns = unsafe {
        let used = &raw mut (*Thread::current()).used;
        let now = CpuUsage::now();
        let before = used.replace(now);
        now.user_ns_since(&before) / (1 + u64::from(missed))
    };
    write(Kind::Sample, tid, |at| {
        let register =
            // SAFETY: the context holds this many registers.
            |number: usize| unsafe { *((frame + context::REGISTERS + 8 * number) as *const u64) };
        half(at, slot::CPU).store(sys::getcpu(), Ordering::Relaxed);
        half(at, slot::MISSED).store(missed, Ordering::Relaxed);
        word(at, slot::PERIOD_NS).store(stands_for_ns, Ordering::Relaxed);
        word(at, slot::INSTRUCTION).store(register(context::INSTRUCTION), Ordering::Relaxed);
        for (place, number) in context::ORDER.iter().enumerate() {
            word(at, slot::REGISTERS + 8 * place).store(register(*number), Ordering::Relaxed);
        }
        word(at, slot::THREAD_POINTER).store(Thread::pointer() as u64, Ordering::Relaxed);
    });
    set_timer(timer, period_ns, gap_ns(period_ns));
}

/// Samples of other architectures are not decoded yet, so none are asked for.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn on_signal(_: i32, _: usize, _: usize) {}

#[cfg(test)]
mod tests;
