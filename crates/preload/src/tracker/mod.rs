//! The reactions to allocations, frees, mappings and new threads.
//!
//! The hooks are thin: they find the caller, take the thread's token, call the real function, and
//! tell the tracker. The tracker writes the log and tells [`crate::place`].

mod allocations;
mod filter;
mod records;
mod request;
mod threads;

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::allocation_log::{Kind, head};

use crate::call_site::CallSites;
use crate::large::{LiveObjects, SiteBudgets};
use crate::left_out::LeftOut;
use crate::log::Log;
use crate::sample_heap::SAMPLE_HEAP;
use crate::thread::{Stage, Thread, Token};
use crate::{deepbind, environment, launch, loader, message, place, real, replicas, signal, sys};

pub use allocations::Mapping;
pub use filter::{FILTER, Filter};
use records::{SHARDS, Shard};
use request::Request;
pub use threads::ThreadStart;

/// Upper bound of what glibc adds to a request: a chunk header and rounding.
const CHUNK_OVERHEAD_BYTES: usize = 16;
/// `RLIMIT_AS`.
const RESOURCE_ADDRESS_SPACE: usize = 9;
/// If the limit of address space is lower, the library reserves less.
const ROOMY_ADDRESS_SPACE_BYTES: u64 = 8 << 30;
/// Address space for call sites.
const SITES_BYTES: usize = 64 << 20;

/// States of the library in this process.
mod phase {
    pub const NEW: u32 = 0;
    pub const STARTING: u32 = 1;
    pub const ACTIVE: u32 = 2;
    pub const OFF: u32 = 3;
    /// The program filters its system calls: the library makes none any more.
    pub const FILTERED: u32 = 4;
}

/// The observer of one process.
pub struct Tracker {
    phase: AtomicU32,
    log: Log,
    logs: AtomicU32,
    sites: CallSites,
    budgets: SiteBudgets,
    alive: LiveObjects,
    small_sample_bytes: AtomicU64,
    threads_created: AtomicU32,
    exit_key: AtomicU32,
    static_tls_bytes: AtomicUsize,
    /// A word that the kernel zeroes in a forked child, however it was forked.
    same_process: AtomicUsize,
    allocator: [AtomicUsize; 2],
    pid: AtomicU32,
    /// 1: the process is in a PID namespace of its own, so the log has other ids.
    has_outside_numbers: AtomicU32,
    finished: AtomicU32,
    unwinder_sought: AtomicU32,
    shards: [Shard; SHARDS],
}

/// The process's tracker.
pub static TRACKER: Tracker = Tracker::new();

/// The calling thread, observed: its state and its token.
pub struct Observed {
    /// Its state.
    pub thread: &'static mut Thread,
    _token: Token,
}

impl Tracker {
    const fn new() -> Self {
        Self {
            phase: AtomicU32::new(phase::NEW),
            log: Log::new(),
            logs: AtomicU32::new(0),
            sites: CallSites::new(),
            budgets: SiteBudgets::new(),
            alive: LiveObjects::new(),
            small_sample_bytes: AtomicU64::new(0),
            threads_created: AtomicU32::new(0),
            exit_key: AtomicU32::new(u32::MAX),
            static_tls_bytes: AtomicUsize::new(0),
            same_process: AtomicUsize::new(0),
            allocator: [const { AtomicUsize::new(0) }; 2],
            pid: AtomicU32::new(0),
            has_outside_numbers: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            unwinder_sought: AtomicU32::new(0),
            shards: [const { Shard([const { AtomicU64::new(0) }; 6]) }; SHARDS],
        }
    }

    /// Enters the library from a hook called at stack address `at`. `None` if this thread is already
    /// inside, or the library is off or not ready: the hook then calls the real function and does no more.
    pub fn observe(&self, at: usize) -> Option<Observed> {
        let _left_out = LeftOut::begin();
        real::resolve();
        let (thread, token) = Thread::enter()?;
        match self.phase.load(Ordering::Acquire) {
            phase::ACTIVE => {}
            phase::NEW if environment::is_ready() => {
                if self
                    .phase
                    .compare_exchange(
                        phase::NEW,
                        phase::STARTING,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_err()
                {
                    return None;
                }
                let started = self.start(thread);
                if !started {
                    FILTER.narrow(usize::MAX);
                }
                self.phase.store(
                    if started { phase::ACTIVE } else { phase::OFF },
                    Ordering::Release,
                );
                if started {
                    place::initialise();
                    thread.countdown = thread.countdown.min(place::brk_heap::gap_bytes());
                    place::thread_started(0, thread.order, thread.tid);
                }
            }
            phase::OFF | phase::FILTERED => thread.countdown = i64::MAX,
            _ => {}
        }
        if self.phase.load(Ordering::Relaxed) != phase::ACTIVE {
            return None;
        }
        if self.is_forked() {
            self.forked_child(thread);
        }
        match thread.stage {
            Stage::Running => {}
            Stage::Unknown => self.add_unannounced(thread),
            Stage::Ended => {
                self.log.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        if !thread.follows_unmatched && place::unmatched_memory::is_active() {
            thread.follows_unmatched = true;
            place::unmatched_memory::follow();
        }
        if thread.loading_at != 0 && thread.has_loaded(at) {
            thread.loading_at = 0;
            thread.countdown = thread
                .countdown
                .saturating_add(core::mem::take(&mut thread.countdown_aside));
            deepbind::modules_changed();
            place::modules_changed();
        }
        Some(Observed {
            thread,
            _token: token,
        })
    }

    /// Starts what the environment asks for; false if it asks for nothing.
    fn start(&self, thread: &mut Thread) -> bool {
        let Some(request) = Request::of_environment() else {
            return false;
        };
        message::start();
        launch::start();
        signal::start();
        self.start_as(thread, &request)
    }

    fn start_as(&self, thread: &mut Thread, request: &Request<'_>) -> bool {
        let now = sys::clock_ns();
        let number = self.identify();
        let roomy = sys::resource_limit(RESOURCE_ADDRESS_SPACE)
            .is_ok_and(|bytes| bytes >= ROOMY_ADDRESS_SPACE_BYTES);
        if !self
            .sites
            .reserve(now, if roomy { SITES_BYTES } else { SITES_BYTES / 16 })
        {
            message::ends_log(format_args!(
                "no memory for call sites: this process is not observed"
            ));
            return false;
        }
        self.watch_forks();
        self.static_tls_bytes
            .store(loader::static_tls_bytes(), Ordering::Relaxed);
        self.note_allocator();
        let mut key = u32::MAX;
        // SAFETY: the destructor has the type that the C library expects.
        if unsafe { real::pthread_key_create(&mut key, threads::end_thread as *const () as usize) }
            == 0
        {
            self.exit_key.store(key, Ordering::Relaxed);
        }
        if let Some(directory) = request.directory {
            if self.log.open(directory, number, now, request.bytes_max) {
                self.logs.store(1, Ordering::Relaxed);
            } else {
                message::ends_log(format_args!(
                    "{} is not an absolute path: allocations are not logged",
                    nearpage_wire::LOG_DIRECTORY_VARIABLE
                ));
            }
            self.small_sample_bytes
                .store(request.small_sample_bytes, Ordering::Relaxed);
            self.sites.allow(request.unwinding_ns);
            if !self.logs_every_allocation() && !self.alive.reserve(roomy) {
                message::ends_log(format_args!(
                    "no memory to remember objects: this process is not observed"
                ));
                return false;
            }
            if request.small_sample_bytes > 1 && !(roomy && SAMPLE_HEAP.reserve()) {
                message::line(format_args!(
                    "no address space for samples (see ulimit -v): small allocations are not observed"
                ));
            }
        }
        let watched = if self.logs_every_allocation() {
            0
        } else {
            LARGE_ALLOCATION_BYTES + CHUNK_OVERHEAD_BYTES
        };
        FILTER.narrow(watched);
        self.add_unannounced(thread);
        true
    }

    /// Notes the module of an allocator other than the C library's: memory that it maps is not the program's mapping.
    fn note_allocator(&self) {
        let malloc = real::ADDRESSES[real::Function::malloc as usize].load(Ordering::Relaxed);
        if !loader::defines(malloc, c"gnu_get_libc_version")
            && let Some(range) = loader::module_range(malloc)
        {
            for (slot, bound) in self.allocator.iter().zip(range) {
                slot.store(bound, Ordering::Relaxed);
            }
        }
    }

    /// Is `address` in the code of an allocator that replaces the C library's?
    pub fn is_allocator(&self, address: usize) -> bool {
        (self.allocator[0].load(Ordering::Relaxed)..self.allocator[1].load(Ordering::Relaxed))
            .contains(&address)
    }

    /// The program marks the beginning (1) or the end (2) of its stable phase.
    pub fn mark(&self, observed: &mut Observed, which: u32) {
        let _left_out = LeftOut::begin();
        self.record(
            observed.thread,
            &[head(Kind::Mark, 2, 0, which), sys::clock_ns()],
        );
        if which == 1 {
            self.log.count_mark();
        }
        sys::tell_tracer(which);
    }

    /// A `dlopen` begins at stack address `at`. Its end is noticed by the thread's next event.
    pub fn loading(&self, observed: &mut Observed, at: usize) {
        let thread = &mut *observed.thread;
        // A dlopen that a constructor calls ends before the dlopen that runs the constructor.
        if thread.loading_at == 0 {
            thread.countdown_aside = core::mem::take(&mut thread.countdown);
            thread.loading_at = at;
            thread.loading_from = if cfg!(target_arch = "x86_64") {
                // SAFETY: the hook's return address is there.
                unsafe { *(at as *const usize) }
            } else {
                0
            };
        }
    }

    /// Takes note that modules were unloaded.
    pub fn unloaded(&self) {
        let _left_out = LeftOut::begin();
        self.sites.forget();
        place::modules_changed();
    }

    /// Called by the library's constructor, when everything is relocated and `dlopen` may be called.
    pub fn constructed(&self, at: usize) {
        let _left_out = LeftOut::begin();
        let Some(_observed) = self.observe(at) else {
            return;
        };
        if self.unwinder_sought.swap(1, Ordering::Relaxed) == 0 {
            self.sites.load_unwinder();
        }
    }

    /// The process ends.
    pub fn finish(&self, at: usize) {
        let _left_out = LeftOut::begin();
        let Some(observed) = self.observe(at) else {
            return;
        };
        // The child of a vfork exits in its parent's memory.
        if self.pid.load(Ordering::Relaxed) != sys::getpid() {
            return;
        }
        if self.finished.swap(1, Ordering::Relaxed) == 0 {
            self.record_counters(observed.thread);
            signal::finish(observed.thread);
            place::finish();
        }
    }

    /// The process is about to have this effective user.
    pub fn user_changes(&self, at: usize, user: u32) {
        const SAME: u32 = u32::MAX;
        // Only root writes into all folders; whether another user may write, the next segment shows.
        if ![0, SAME].contains(&user) {
            self.access_may_end_if(at, || sys::effective_user() == Some(0));
        }
    }

    /// The process may lose its access to the log's folder.
    pub fn access_may_end(&self, at: usize) {
        self.access_may_end_if(at, || true);
    }

    /// The same if `is_so`, which is asked only where system calls are allowed.
    fn access_may_end_if(&self, at: usize, is_so: impl FnOnce() -> bool) {
        let _left_out = LeftOut::begin();
        let Some(_observed) = self.observe(at) else {
            return;
        };
        // The child of a vfork changes only itself, in its parent's memory.
        if self.pid.load(Ordering::Relaxed) == sys::getpid() && is_so() {
            self.log.reserve();
        }
    }

    /// Is this process observed?
    pub fn is_active(&self) -> bool {
        self.phase.load(Ordering::Acquire) == phase::ACTIVE
    }

    /// Does the program filter its system calls, so that the library must make none?
    pub fn is_filtered(&self) -> bool {
        self.phase.load(Ordering::Acquire) == phase::FILTERED
    }

    /// The program is about to install a filter of system calls: finishes all work that needs system calls.
    pub fn filter_is_installed(&self, at: usize) {
        let _left_out = LeftOut::begin();
        let Some(observed) = self.observe(at) else {
            return;
        };
        // The child of a vfork filters its own calls in its parent's memory.
        if self.pid.load(Ordering::Relaxed) != sys::getpid() {
            return;
        }
        message::ends_log(format_args!(
            "process {} restricts its system calls (seccomp): what it allocates from then on is not logged, sampled \
             from inside or placed, nor what programs that it executes allocate",
            sys::getpid()
        ));
        if self.finished.swap(1, Ordering::Relaxed) == 0 {
            self.record_counters(observed.thread);
            signal::stop(observed.thread);
            place::finish();
        }
        place::unmatched_memory::stop();
        replicas::stop();
        self.phase.store(phase::FILTERED, Ordering::Release);
        FILTER.narrow(usize::MAX);
        observed.thread.countdown = i64::MAX;
    }

    /// The process is about to become another program, unless that fails.
    pub fn replacing(&self, at: usize) {
        let _left_out = LeftOut::begin();
        // The child of a vfork is in its parent's memory.
        if let Some(observed) = self.observe(at)
            && self.pid.load(Ordering::Relaxed) == sys::getpid()
        {
            self.record_counters(observed.thread);
            signal::finish(observed.thread);
            place::replacing();
        }
    }
}

#[cfg(test)]
mod tests;
