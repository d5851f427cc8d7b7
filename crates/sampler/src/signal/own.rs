//! Timer signals in the calling thread, which calibration samples where perf events are refused. The handler does the
//! same work as the preload library's, so that it has the same cost.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::samples::THREAD_USER_CLOCK;

use crate::sample_cost::{Interruption, Interruptions};

/// Largest number of samples kept between two calls of [`OwnTimer::take`].
const PENDING_SAMPLES_MAX: usize = 4096;

// A signal handler can only use static state.
static PLACES: [AtomicU64; PENDING_SAMPLES_MAX] =
    [const { AtomicU64::new(0) }; PENDING_SAMPLES_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
#[cfg(target_arch = "x86_64")]
static REGISTERS: [AtomicU64; 23] = [const { AtomicU64::new(0) }; 23];
/// Time of the last signal, CLOCK_MONOTONIC.
static LATEST_NS: AtomicU64 = AtomicU64::new(0);
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static TIMER: AtomicI32 = AtomicI32::new(0);
/// Only one timer may exist at a time.
static TAKEN: Mutex<()> = Mutex::new(());

/// A timer of the calling thread, initially disabled.
#[derive(Debug)]
pub(crate) struct OwnTimer {
    timer: libc::c_int,
    signal: libc::c_int,
    previous: libc::sigaction,
    period_ns: u64,
    _taken: std::sync::MutexGuard<'static, ()>,
}

impl OwnTimer {
    /// A timer that expires every `period_ns` of `clock` while it is enabled.
    pub fn new(clock: libc::clockid_t, period_ns: u64) -> io::Result<Self> {
        let taken = TAKEN
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let signal = libc::SIGRTMAX() - 1;
        COUNT.store(0, Ordering::Relaxed);
        let mut timer = 0 as libc::c_int;
        // SAFETY: zeroed structures are valid. The handler only touches atomics, and lives as long as the program. The
        // calls read and write only their arguments.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            let mut previous: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, &action, &mut previous) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_signo = signal;
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_notify_thread_id = libc::gettid();
            let made = libc::syscall(
                libc::SYS_timer_create,
                clock,
                &raw mut event,
                &raw mut timer,
            );
            if made != 0 {
                let error = io::Error::last_os_error();
                libc::sigaction(signal, &previous, std::ptr::null_mut());
                return Err(error);
            }
            TIMER.store(timer, Ordering::Relaxed);
            Ok(Self {
                timer,
                signal,
                previous,
                period_ns,
                _taken: taken,
            })
        }
    }

    pub fn enable(&self) -> io::Result<()> {
        PERIOD_NS.store(self.period_ns, Ordering::Relaxed);
        set(self.timer, self.period_ns)
    }

    pub fn disable(&self) -> io::Result<()> {
        PERIOD_NS.store(0, Ordering::Relaxed);
        set(self.timer, 0)
    }

    /// Number of samples since the last [`OwnTimer::take`].
    pub fn count(&self) -> u64 {
        COUNT.load(Ordering::Relaxed) as u64
    }

    /// Instruction pointers of the samples since the last call, as far as they were kept.
    pub fn take(&mut self) -> Vec<u64> {
        let count = COUNT.load(Ordering::Acquire).min(PENDING_SAMPLES_MAX);
        let places = PLACES[..count].iter();
        let places = places.map(|place| place.load(Ordering::Relaxed)).collect();
        COUNT.store(0, Ordering::Release);
        places
    }
}

impl Drop for OwnTimer {
    fn drop(&mut self) {
        PERIOD_NS.store(0, Ordering::Relaxed);
        // SAFETY: the timer is ours, and the action is the previous one.
        unsafe {
            libc::syscall(libc::SYS_timer_delete, self.timer);
            libc::sigaction(self.signal, &self.previous, std::ptr::null_mut());
        }
    }
}

/// Kernel ticks that find the calling thread in user mode. Every second one has a signal, like those of the signal
/// source.
#[derive(Debug)]
pub(crate) struct Ticks {
    timer: OwnTimer,
    tick_ns: u64,
    /// Number of signals so far.
    count: u64,
    /// Time of the next tick without a signal, CLOCK_MONOTONIC.
    next_ns: Option<u64>,
}

impl Ticks {
    pub fn new() -> io::Result<Self> {
        // The handler sets the timer again, to a time that is never reached.
        let timer = OwnTimer::new(THREAD_USER_CLOCK, 1 << 50)?;
        timer.enable()?;
        let ticks = Self {
            timer,
            tick_ns: tick_ns(),
            count: 0,
            next_ns: None,
        };
        ticks.arm()?;
        Ok(ticks)
    }

    /// Lets the next tick send the signal, as time in user mode is counted in ticks.
    fn arm(&self) -> io::Result<()> {
        set(self.timer.timer, self.tick_ns / 2)
    }
}

impl Interruptions for Ticks {
    fn interruption(&mut self, now_ns: u64) -> Interruption {
        let count = self.timer.count();
        if count != std::mem::replace(&mut self.count, count) {
            self.next_ns = Some(LATEST_NS.load(Ordering::Relaxed) + self.tick_ns);
            // The next tick must have no sample. If the call fails, the tick has none either.
            let _ = set(self.timer.timer, 0);
            return Interruption::Sample;
        }
        match self.next_ns.take_if(|next_ns| *next_ns <= now_ns) {
            Some(_) => {
                // If this fails, too few samples come, and nothing is measured.
                let _ = self.arm();
                Interruption::Tick
            }
            None => Interruption::Nothing,
        }
    }

    fn otherwise(&self) -> Interruption {
        Interruption::Tick
    }
}

/// Time between two kernel ticks: the resolution of the coarse clock.
fn tick_ns() -> u64 {
    // SAFETY: zero is a valid timespec, which the call fills in.
    let tick = unsafe {
        let mut tick: libc::timespec = std::mem::zeroed();
        libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut tick);
        tick
    };
    (tick.tv_sec as u64 * 1_000_000_000 + tick.tv_nsec as u64).max(1)
}

/// Sets the timer to expire once after `ns`; 0 disables it.
fn set(timer: libc::c_int, ns: u64) -> io::Result<()> {
    let part = |ns: u64| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    let times = libc::itimerspec {
        it_interval: part(0),
        it_value: part(ns),
    };
    let none = std::ptr::null_mut::<libc::itimerspec>();
    // SAFETY: the kernel reads one structure.
    match unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const times, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(target_arch = "x86_64")]
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the interrupted code; errno is this thread's.
    let (registers, errno) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        (&(*context).uc_mcontext.gregs, libc::__errno_location())
    };
    // SAFETY: errno is this thread's.
    let before = unsafe { *errno };
    for (to, from) in REGISTERS.iter().zip(registers) {
        to.store(*from as u64, Ordering::Relaxed);
    }
    // SAFETY: the kernel writes one structure.
    unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::syscall(libc::SYS_getrusage, libc::RUSAGE_THREAD, &raw mut used);
    }
    LATEST_NS.store(crate::sampler::now_ns(), Ordering::Relaxed);
    let at = COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(place) = PLACES.get(at) {
        let instruction = registers[libc::REG_RIP as usize] as u64;
        place.store(instruction, Ordering::Relaxed);
    }
    let period_ns = PERIOD_NS.load(Ordering::Relaxed);
    if period_ns != 0 {
        let _ = set(TIMER.load(Ordering::Relaxed), period_ns);
    }
    // SAFETY: errno is this thread's.
    unsafe { *errno = before };
}

/// Unused: the signal source needs x86-64.
#[cfg(not(target_arch = "x86_64"))]
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
