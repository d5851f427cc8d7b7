//! What the library does when something is allocated, freed, mapped or started.
//!
//! The hooks are thin: they find the caller, take the thread's token, call the real function, and
//! tell the tracker. The tracker writes the log and tells [`crate::place`].

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::allocation_log::{FLAG_NO_STACK, FLAG_SAMPLED, Kind, head};

use crate::call_site::{ALLOWANCE_NS, CallSites, Caller, Site};
use crate::large::{self, Alive, Debts, Logged};
use crate::log::Log;
use crate::sample_heap::{BASE, LENGTH, SAMPLE_HEAP};
use crate::thread::{Stage, Thread, Token};
use crate::{bounds, environment, loader, message, place, real, sampling, signal, sys};

/// Mean bytes between two samples of small allocations, unless the environment says otherwise.
const SMALL_SAMPLE_BYTES: u64 = 512 << 10;
/// Bytes of log that a process may write, unless the environment says otherwise.
const LOG_BYTES_MAX: u64 = 1 << 30;
/// What glibc adds to a request, at most one chunk header and the rounding.
const CHUNK_OVERHEAD_BYTES: usize = 16;
/// `RLIMIT_AS`.
const RESOURCE_ADDRESS_SPACE: usize = 9;
/// With a lower limit the program may need what the library would reserve.
const ROOMY_ADDRESS_SPACE_BYTES: u64 = 8 << 30;
/// Address space for call sites.
const SITES_BYTES: usize = 64 << 20;
/// `MADV_WIPEONFORK`.
const ADVICE_WIPE_ON_FORK: usize = 18;
/// Rounds of thread destructors that are let pass, so that those of the program come first.
const DESTRUCTOR_ROUNDS: u16 = 2;

/// What the assembly hooks compare freed pointers with, to pass on those that nobody asks about.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Filter {
    /// Start of the range of addresses that are no ordinary objects.
    slow_base: AtomicUsize,
    /// Its length: that of the samples, or everything where an object's size cannot be read from
    /// the word before it (and as long as that is not known).
    slow_length: AtomicUsize,
    /// A chunk of at least this many bytes, header included, may be in the log. 0: all of them.
    watched_chunk_bytes: AtomicUsize,
}

impl Filter {
    /// Offset of the field.
    pub const SLOW_BASE: usize = core::mem::offset_of!(Self, slow_base);
    /// Offset of the field.
    pub const SLOW_LENGTH: usize = core::mem::offset_of!(Self, slow_length);
    /// Offset of the field.
    pub const WATCHED_CHUNK_BYTES: usize = core::mem::offset_of!(Self, watched_chunk_bytes);

    /// Sends only what may have been recorded through Rust.
    fn narrow(&self, watched_chunk_bytes: usize) {
        self.watched_chunk_bytes
            .store(watched_chunk_bytes, Ordering::Release);
        if real::SIZE_BEFORE_POINTER.load(Ordering::Relaxed) == 1 {
            self.slow_base
                .store(BASE.load(Ordering::Relaxed), Ordering::Release);
            self.slow_length
                .store(LENGTH.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

/// The filter of the assembly hooks.
pub static FILTER: Filter = Filter {
    slow_base: AtomicUsize::new(0),
    slow_length: AtomicUsize::new(usize::MAX),
    watched_chunk_bytes: AtomicUsize::new(usize::MAX),
};

/// Where the library stands in this process.
mod phase {
    pub const NEW: u32 = 0;
    pub const STARTING: u32 = 1;
    pub const ACTIVE: u32 = 2;
    pub const OFF: u32 = 3;
}

/// What is counted, by place in a shard.
#[derive(Clone, Copy, Debug)]
enum Count {
    Allocations,
    Frees,
    SmallPassedThousandths,
    StacksCached,
    WithoutRoom,
    LargePassedThousandths,
}

/// Counters of some of the threads, in a cache line of their own.
#[repr(align(64))]
struct Shard([AtomicU64; 6]);

const SHARDS: usize = 32;

/// What a thread's creator hands to it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Birth {
    /// The program's routine.
    pub start_routine: usize,
    /// Its argument.
    pub argument: usize,
    /// Creation order in the process.
    pub order: u32,
    /// The creator's id.
    pub creator: u32,
    /// [`bounds::stack_of_attributes`].
    pub stack: [usize; 2],
}

/// What `mmap` was asked for, and what it gave.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Its first byte.
    pub start: usize,
    /// Its length in bytes.
    pub length: usize,
    /// `PROT_…`.
    pub protection: u32,
    /// `MAP_…`.
    pub map_flags: u32,
    /// The file, or −1.
    pub fd: i32,
}

/// What the environment asks for.
#[derive(Clone, Copy, Debug)]
struct Request<'text> {
    /// Where to log to.
    directory: Option<&'text [u8]>,
    /// Bytes of log.
    bytes_max: u64,
    /// Mean bytes between two samples; 1: log everything.
    small_sample_bytes: u64,
    /// How long stacks may be unwound.
    unwinding_ns: u64,
}

impl Request<'static> {
    /// None: there is nothing to do.
    fn of_environment() -> Option<Self> {
        if environment::is_disabled() {
            return None;
        }
        let directory = environment::variable(nearpage_wire::LOG_DIRECTORY_VARIABLE)
            .filter(|value| !value.is_empty());
        if directory.is_none()
            && [
                nearpage_wire::PLAN_VARIABLE,
                nearpage_wire::SAMPLES_DIRECTORY_VARIABLE,
            ]
            .into_iter()
            .all(|name| environment::variable(name).is_none())
        {
            return None;
        }
        Some(Self {
            directory,
            bytes_max: environment::number(nearpage_wire::LOG_BYTES_MAX_VARIABLE)
                .unwrap_or(LOG_BYTES_MAX),
            small_sample_bytes: environment::number(nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE)
                .unwrap_or(SMALL_SAMPLE_BYTES)
                .max(1),
            unwinding_ns: environment::number(nearpage_wire::UNWINDING_VARIABLE)
                .unwrap_or(ALLOWANCE_NS),
        })
    }
}

/// The observer of one process.
pub struct Tracker {
    phase: AtomicU32,
    log: Log,
    logs: AtomicU32,
    sites: CallSites,
    debts: Debts,
    alive: Alive,
    small_sample_bytes: AtomicU64,
    threads_created: AtomicU32,
    exit_key: AtomicU32,
    static_tls_bytes: AtomicUsize,
    /// A word that the kernel zeroes in a forked child, however it was forked.
    same_process: AtomicUsize,
    allocator: [AtomicUsize; 2],
    pid: AtomicU32,
    finished: AtomicU32,
    unwinder_sought: AtomicU32,
    shards: [Shard; SHARDS],
}

/// The process's tracker.
pub static TRACKER: Tracker = Tracker::new();

/// Its own, always-true word where the kernel has no MADV_WIPEONFORK.
static ALWAYS: AtomicU32 = AtomicU32::new(1);

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
            debts: Debts::new(),
            alive: Alive::new(),
            small_sample_bytes: AtomicU64::new(0),
            threads_created: AtomicU32::new(0),
            exit_key: AtomicU32::new(u32::MAX),
            static_tls_bytes: AtomicUsize::new(0),
            same_process: AtomicUsize::new(0),
            allocator: [const { AtomicUsize::new(0) }; 2],
            pid: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            unwinder_sought: AtomicU32::new(0),
            shards: [const { Shard([const { AtomicU64::new(0) }; 6]) }; SHARDS],
        }
    }

    /// Enters the library from a hook called at stack address `at`. None: this thread is already
    /// inside, or the library is off, or not ready; the hook passes straight through.
    pub fn observe(&self, at: usize) -> Option<Observed> {
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
                    place::thread_started(0, thread.order, thread.tid);
                }
            }
            phase::OFF => thread.countdown = i64::MAX,
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
            Stage::Unknown => self.meet(thread),
            Stage::Ended => {
                self.log.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        if thread.loading_at != 0 && thread.has_loaded(at) {
            thread.loading_at = 0;
            thread.countdown = thread
                .countdown
                .saturating_add(core::mem::take(&mut thread.countdown_aside));
            place::modules_changed();
        }
        Some(Observed {
            thread,
            _token: token,
        })
    }

    /// Makes everything ready for what the environment asks for. False: there is nothing to do.
    fn start(&self, thread: &mut Thread) -> bool {
        let Some(request) = Request::of_environment() else {
            return false;
        };
        message::remember_standard_error();
        signal::start();
        self.start_as(thread, &request)
    }

    fn start_as(&self, thread: &mut Thread, request: &Request<'_>) -> bool {
        let now = sys::clock_ns();
        let roomy = sys::resource_limit(RESOURCE_ADDRESS_SPACE)
            .is_ok_and(|bytes| bytes >= ROOMY_ADDRESS_SPACE_BYTES);
        if !self
            .sites
            .reserve(now, if roomy { SITES_BYTES } else { SITES_BYTES / 16 })
        {
            message::line(format_args!(
                "no memory for call sites: this process is not observed"
            ));
            return false;
        }
        self.pid.store(sys::getpid(), Ordering::Relaxed);
        self.watch_forks();
        self.static_tls_bytes
            .store(loader::static_tls_bytes(), Ordering::Relaxed);
        self.note_allocator();
        let mut key = u32::MAX;
        // SAFETY: the destructor has the type that the C library expects.
        if unsafe { real::pthread_key_create(&mut key, end_thread as *const () as usize) } == 0 {
            self.exit_key.store(key, Ordering::Relaxed);
        }
        if let Some(directory) = request.directory {
            if self.log.open(directory, now, request.bytes_max) {
                self.logs.store(1, Ordering::Relaxed);
            } else {
                message::line(format_args!(
                    "{} is not an absolute path: allocations are not logged",
                    nearpage_wire::LOG_DIRECTORY_VARIABLE
                ));
            }
            self.small_sample_bytes
                .store(request.small_sample_bytes, Ordering::Relaxed);
            self.sites.allow(request.unwinding_ns);
            if !self.logs_every_allocation() && !self.alive.reserve(roomy) {
                message::line(format_args!(
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
        self.meet(thread);
        true
    }

    /// An allocator other than the C library's maps memory for itself: that is not the program's.
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

    /// Is `address` code of an allocator that stands in front of the C library's?
    pub fn is_allocator(&self, address: usize) -> bool {
        (self.allocator[0].load(Ordering::Relaxed)..self.allocator[1].load(Ordering::Relaxed))
            .contains(&address)
    }

    fn watch_forks(&self) {
        let mut word = ALWAYS.as_ptr() as usize;
        if let Ok(page) = sys::reserve(4096) {
            // SAFETY: a fresh page of our own.
            unsafe {
                *(page as *mut u32) = 1;
                if sys::madvise(page, 4096, ADVICE_WIPE_ON_FORK).is_ok() {
                    word = page;
                }
            }
        }
        self.same_process.store(word, Ordering::Relaxed);
    }

    fn is_forked(&self) -> bool {
        let word = self.same_process.load(Ordering::Relaxed);
        // SAFETY: the word was set before the phase became active and is never unmapped.
        word != 0 && unsafe { (*(word as *const AtomicU32)).load(Ordering::Relaxed) } == 0
    }

    /// This process is a child just forked. Its log is another one.
    pub fn forked_child(&self, thread: &mut Thread) {
        if self.phase.load(Ordering::Relaxed) != phase::ACTIVE {
            return;
        }
        let word = self.same_process.load(Ordering::Relaxed);
        if word != 0 {
            // SAFETY: as in `is_forked`.
            unsafe { (*(word as *const AtomicU32)).store(1, Ordering::Relaxed) };
        }
        self.log.forked_child(sys::clock_ns());
        self.sites.forget();
        SAMPLE_HEAP.forked_child();
        self.finished.store(0, Ordering::Relaxed);
        for counter in self.shards.iter().flat_map(|shard| &shard.0) {
            counter.store(0, Ordering::Relaxed);
        }
        self.pid.store(sys::getpid(), Ordering::Relaxed);
        thread.tid = sys::gettid();
        thread.random = 0;
        thread.block = 0;
        thread.start_routine = 0;
        thread.order = 0;
        thread.creator = 0;
        self.threads_created
            .store((thread.stage != Stage::Unknown).into(), Ordering::Relaxed);
        place::forked_child();
        signal::forked_child(thread);
    }

    /// Meets a thread that no hook of `pthread_create` announced: the main one, or one made by a
    /// bare `clone`.
    fn meet(&self, thread: &mut Thread) {
        thread.tid = sys::gettid();
        thread.local_storage = bounds::local_storage(self.static_tls_bytes.load(Ordering::Relaxed));
        thread.order = self.threads_created.fetch_add(1, Ordering::Relaxed);
        if thread.tid == sys::getpid() {
            thread.stack = bounds::main_stack();
        }
        self.welcome(thread);
    }

    fn welcome(&self, thread: &mut Thread) {
        thread.stage = Stage::Running;
        // What the first allocation took from a countdown of 0 stays taken.
        thread.countdown = thread
            .countdown
            .clamp(-(LARGE_ALLOCATION_BYTES as i64), 0)
            .saturating_add(self.next_gap(thread));
        let key = self.exit_key.load(Ordering::Relaxed);
        if key != u32::MAX {
            // SAFETY: the key exists; the value only has to be nonzero.
            unsafe { real::pthread_setspecific(key, 1) };
        }
        self.announce(thread);
        signal::thread_begins(thread);
    }

    fn logs_every_allocation(&self) -> bool {
        self.small_sample_bytes.load(Ordering::Relaxed) == 1
    }

    fn next_gap(&self, thread: &mut Thread) -> i64 {
        match self.small_sample_bytes.load(Ordering::Relaxed) {
            0 => i64::MAX / 2,
            1 => i64::MIN / 2,
            _ if LENGTH.load(Ordering::Relaxed) == 0 || !self.log.is_on() => i64::MAX / 2,
            period => sampling::gap_bytes(period, thread.next_random()),
        }
    }

    /// Takes the creation of a thread into account; `None` where it is not observed.
    ///
    /// # Safety
    /// `attributes` is null or points to thread attributes.
    pub unsafe fn thread_is_created(
        &self,
        start_routine: usize,
        argument: usize,
        attributes: *const core::ffi::c_void,
        at: usize,
    ) -> Option<Birth> {
        let observed = self.observe(at)?;
        let order = self.threads_created.fetch_add(1, Ordering::Relaxed);
        place::thread_created(start_routine, order);
        Some(Birth {
            start_routine,
            argument,
            order,
            creator: observed.thread.tid,
            // SAFETY: the caller's promise.
            stack: unsafe { bounds::stack_of_attributes(attributes) },
        })
    }

    /// A thread whose creation was taken into account does not come to be.
    pub fn thread_is_not_created(&self) {
        self.threads_created.fetch_sub(1, Ordering::Relaxed);
    }

    /// The calling thread begins.
    pub fn thread_begins(&self, birth: &Birth) {
        let Some((thread, _token)) = Thread::enter() else {
            return;
        };
        if self.is_forked() || thread.stage != Stage::Unknown {
            return;
        }
        thread.tid = sys::gettid();
        thread.local_storage = bounds::local_storage(self.static_tls_bytes.load(Ordering::Relaxed));
        thread.stack = bounds::thread_stack(birth.stack, thread.local_storage);
        thread.start_routine = birth.start_routine;
        thread.order = birth.order;
        thread.creator = birth.creator;
        self.welcome(thread);
        place::thread_started(birth.start_routine, birth.order, thread.tid);
    }

    /// The calling thread runs its destructors; true when it is to be asked again.
    fn thread_ends(&self) -> bool {
        let Some((thread, _token)) = Thread::enter() else {
            return false;
        };
        if thread.stage != Stage::Running {
            return false;
        }
        thread.destructor_rounds += 1;
        if thread.destructor_rounds <= DESTRUCTOR_ROUNDS {
            return true;
        }
        self.record(
            thread,
            &[head(Kind::ThreadExit, 2, 0, thread.tid), sys::clock_ns()],
        );
        signal::thread_ends(thread);
        self.log.release(thread);
        large::release(thread);
        thread.stage = Stage::Ended;
        thread.countdown = i64::MAX;
        false
    }

    /// Did the allocation of `size` bytes, which `thread` has subtracted from its countdown, use
    /// it up?
    fn is_sampled(&self, thread: &mut Thread) -> bool {
        if thread.loading_at == 0 {
            return thread.countdown <= 0;
        }
        // A dlopen runs: its countdown is kept at 0, so that its end is noticed.
        thread.countdown_aside = thread
            .countdown_aside
            .saturating_add(core::mem::take(&mut thread.countdown));
        thread.countdown_aside <= 0
    }

    /// Serves a small allocation that used up the countdown, as a sample. None: not this one, the
    /// real allocator serves it.
    pub fn allocate_sample(
        &self,
        observed: &mut Observed,
        caller: Caller,
        size: usize,
        alignment: usize,
        flags: u16,
    ) -> Option<usize> {
        let thread = &mut *observed.thread;
        if !self.is_sampled(thread) || self.logs_every_allocation() {
            return None;
        }
        let gap = self.next_gap(thread);
        if thread.loading_at == 0 {
            thread.countdown = gap
        } else {
            thread.countdown_aside = gap
        }
        if self.logs.load(Ordering::Relaxed) == 0 || !self.log.is_on() {
            return None;
        }
        let Some(address) = SAMPLE_HEAP.allocate(size, alignment) else {
            self.count(thread, Count::WithoutRoom, 1);
            return None;
        };
        let weight =
            sampling::weight_thousandths(self.small_sample_bytes.load(Ordering::Relaxed), size);
        self.count(
            thread,
            Count::SmallPassedThousandths,
            weight.saturating_sub(1000),
        );
        let now = sys::clock_ns();
        let site = self.site(thread, caller, place::wants(size), now);
        let object = [address, size];
        self.log_allocation(thread, site, now, object, flags | FLAG_SAMPLED, weight);
        if place::wants(size) {
            place::allocated(address, size, site.frames);
        }
        Some(address)
    }

    /// Must an allocation of this size be reported to [`Self::allocated`]? Small ones are samples
    /// otherwise.
    pub fn wants(&self, size: usize) -> bool {
        size >= LARGE_ALLOCATION_BYTES || self.logs_every_allocation()
    }

    /// Must this allocation be reported to [`Self::allocated`] for the log's sake? Each one counts.
    #[inline]
    pub fn is_due(&self, caller: Caller, size: usize) -> bool {
        if size >= LARGE_ALLOCATION_BYTES {
            large::is_due(caller, size)
        } else {
            self.logs_every_allocation()
        }
    }

    /// An allocation was made that is [`Self::is_due`], or is only to be placed.
    pub fn allocated(
        &self,
        observed: &mut Observed,
        caller: Caller,
        address: usize,
        size: usize,
        flags: u16,
        is_due: bool,
    ) {
        let placed = place::wants(size);
        let logged = is_due && self.logs.load(Ordering::Relaxed) != 0;
        if !logged && !placed {
            return;
        }
        let thread = &mut *observed.thread;
        let now = sys::clock_ns();
        let site = self.site(thread, caller, placed, now);
        if logged && self.logs_every_allocation() {
            self.log_allocation(thread, site, now, [address, size], flags, 1000);
        } else if logged {
            let weight = large::weigh(thread, &self.debts, caller, size, now);
            let sampled = if weight > 1000 { FLAG_SAMPLED } else { 0 };
            self.count(thread, Count::LargePassedThousandths, weight - 1000);
            if self.alive.insert(address, Logged::new(thread, caller, now)) {
                let flags = flags | sampled;
                self.log_allocation(thread, site, now, [address, size], flags, weight);
            } else {
                self.count(thread, Count::WithoutRoom, 1);
            }
        }
        if placed {
            place::allocated(address, size, site.frames);
        }
    }

    fn log_allocation(
        &self,
        thread: &mut Thread,
        site: Site,
        now_ns: u64,
        [address, size]: [usize; 2],
        flags: u16,
        weight: u64,
    ) {
        let flags = flags | if site.no_stack { FLAG_NO_STACK } else { 0 };
        self.count(thread, Count::Allocations, 1);
        self.record(
            thread,
            &[
                head(Kind::Allocate, 5, flags, site.number),
                now_ns,
                address as u64,
                size as u64,
                weight,
            ],
        );
    }

    /// Is the object at `address`, which is no sample of the small ones, in the log?
    #[inline(always)]
    pub fn is_logged(&self, address: usize) -> bool {
        self.logs_every_allocation() || self.alive.contains(address)
    }

    /// What is known of the object at `address` if it is in the log. It is freed now, and the answer
    /// goes to [`Self::freed`].
    pub fn logged(&self, address: usize) -> Option<Logged> {
        if self.logs_every_allocation() || SAMPLE_HEAP.contains(address) {
            return Some(Logged::FREE_OF_CHARGE);
        }
        self.alive.remove(address)
    }

    /// The object at `address`, of about `size` bytes, is about to be freed.
    pub fn freed(
        &self,
        observed: &mut Observed,
        address: usize,
        size: usize,
        logged: Option<Logged>,
        flags: u16,
    ) {
        if let Some(logged) = logged {
            let thread = &mut *observed.thread;
            let now = sys::clock_ns();
            logged.freed(&self.debts, now);
            self.count(thread, Count::Frees, 1);
            self.record(
                thread,
                &[head(Kind::Free, 3, flags, 0), now, address as u64],
            );
        }
        if place::wants(size) {
            place::freed(address, size);
        }
    }

    /// Memory was mapped.
    pub fn mapped(&self, observed: &mut Observed, caller: Caller, mapping: &Mapping, flags: u16) {
        let thread = &mut *observed.thread;
        let now = sys::clock_ns();
        let anonymous = mapping.fd < 0 || mapping.map_flags as usize & sys::MAP_ANONYMOUS != 0;
        let placed = anonymous && place::wants(mapping.length);
        if self.logs.load(Ordering::Relaxed) == 0 && !placed {
            return;
        }
        let site = self.site(thread, caller, placed, now);
        let flags = flags | if site.no_stack { FLAG_NO_STACK } else { 0 };
        let how = u64::from(mapping.protection) | u64::from(mapping.map_flags) << 32;
        let (start, length) = (mapping.start as u64, mapping.length as u64);
        self.record(
            thread,
            &[
                head(Kind::Map, 6, flags, site.number),
                now,
                start,
                length,
                how,
                mapping.fd as i64 as u64,
            ],
        );
        if placed {
            place::mapped(mapping.start, mapping.length, site.frames);
        }
    }

    /// Memory is about to be unmapped: another thread may have it before the call returns.
    pub fn unmapping(&self, range: [usize; 2]) {
        if place::wants(range[1]) {
            place::freed(range[0], range[1]);
        }
    }

    /// Memory was unmapped; `time_ns` is before that.
    pub fn unmapped(&self, observed: &mut Observed, range: [usize; 2], time_ns: u64, flags: u16) {
        self.record(
            observed.thread,
            &[
                head(Kind::Unmap, 4, flags, 0),
                time_ns,
                range[0] as u64,
                range[1] as u64,
            ],
        );
    }

    /// The program moved the break.
    pub fn break_moved(&self, observed: &mut Observed, caller: Caller, old: usize, new: usize) {
        if self.logs.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = sys::clock_ns();
        let site = self.site(observed.thread, caller, false, now);
        self.record(
            observed.thread,
            &[
                head(Kind::Break, 4, 0, site.number),
                now,
                old as u64,
                new as u64,
            ],
        );
    }

    /// The program marks the beginning (1) or the end (2) of its stable phase.
    pub fn mark(&self, observed: &mut Observed, which: u32) {
        self.record(
            observed.thread,
            &[head(Kind::Mark, 2, 0, which), sys::clock_ns()],
        );
        sys::tell_tracer(which);
    }

    /// A `dlopen` begins at stack address `at`. Its end is noticed by the thread's next event.
    pub fn loading(&self, observed: &mut Observed, at: usize) {
        let thread = &mut *observed.thread;
        // One that is called by a constructor ends before the one that runs the constructor.
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

    /// Modules were unloaded.
    pub fn unloaded(&self) {
        self.sites.forget();
        place::modules_changed();
    }

    /// The library's constructor: everything is relocated, and `dlopen` may be called.
    pub fn constructed(&self, at: usize) {
        let Some(_observed) = self.observe(at) else {
            return;
        };
        if self.unwinder_sought.swap(1, Ordering::Relaxed) == 0 {
            self.sites.load_unwinder();
        }
    }

    /// The process ends.
    pub fn finish(&self, at: usize) {
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

    /// The process is about to become another program, unless that fails.
    pub fn replacing(&self, at: usize) {
        // The child of a vfork is in its parent's memory.
        if let Some(observed) = self.observe(at)
            && self.pid.load(Ordering::Relaxed) == sys::getpid()
        {
            self.record_counters(observed.thread);
            signal::finish(observed.thread);
            place::replacing();
        }
    }

    /// A process without a log gets none for its counters.
    fn record_counters(&self, thread: &mut Thread) {
        if self.log.blocks_claimed.load(Ordering::Relaxed) > 0 {
            let counters = self.counters();
            self.record(thread, &counters);
        }
    }

    fn site(&self, thread: &mut Thread, caller: Caller, whole: bool, now_ns: u64) -> Site {
        let [low, high] = thread.stack;
        let stack_top = if (low..high).contains(&caller.at) {
            high
        } else {
            0
        };
        let unwound = self.sites.unwound.load(Ordering::Relaxed);
        let site = self.sites.site(caller, stack_top, whole, now_ns);
        if site.is_new {
            self.define(thread, &site);
        } else if !site.no_stack && self.sites.unwound.load(Ordering::Relaxed) == unwound {
            self.count(thread, Count::StacksCached, 1);
        }
        site
    }

    fn define(&self, thread: &mut Thread, site: &Site) {
        let mut words = [0u64; 1 + nearpage_wire::CALL_SITE_DEPTH_MAX];
        let length = 1 + site.frames.len().min(nearpage_wire::CALL_SITE_DEPTH_MAX);
        words[0] = head(Kind::CallSite, length as u8, 0, site.number);
        for (word, frame) in words.iter_mut().skip(1).zip(site.frames) {
            *word = *frame as u64;
        }
        self.record(thread, words.get(..length).unwrap_or_default());
    }

    fn count(&self, thread: &Thread, what: Count, by: u64) {
        if let Some(counter) = self
            .shards
            .get(thread.tid as usize % SHARDS)
            .and_then(|shard| shard.0.get(what as usize))
        {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn total(&self, what: Count) -> u64 {
        self.shards
            .iter()
            .filter_map(|shard| shard.0.get(what as usize))
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    }

    fn counters(&self) -> [u64; 11] {
        [
            head(Kind::Counters, 11, 0, sys::gettid()),
            sys::clock_ns(),
            self.total(Count::Allocations),
            self.total(Count::Frees),
            self.total(Count::SmallPassedThousandths) / 1000,
            self.sites.unwound.load(Ordering::Relaxed),
            self.total(Count::StacksCached),
            self.sites.left_out.load(Ordering::Relaxed),
            self.log.dropped.load(Ordering::Relaxed),
            self.total(Count::WithoutRoom),
            self.total(Count::LargePassedThousandths) / 1000,
        ]
    }

    /// Writes the thread's own record, which also makes sure that it has a block.
    fn announce(&self, thread: &mut Thread) {
        self.make_room(thread, 0);
    }

    /// Appends a record to the log, if there is one.
    fn record(&self, thread: &mut Thread, words: &[u64]) {
        if self.make_room(thread, words.len()) {
            self.log.append(thread, words);
        }
    }

    fn make_room(&self, thread: &mut Thread, words: usize) -> bool {
        if self.logs.load(Ordering::Relaxed) == 0 {
            return false;
        }
        if !self.log.needs_block(thread, words) {
            return true;
        }
        let announced =
            thread.announced && thread.generation == self.log.generation.load(Ordering::Relaxed);
        thread.announced = false;
        if !self.log.claim(thread, !announced) {
            self.log.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        thread.announced = true;
        if announced {
            let counters = self.counters();
            self.log.append(thread, &counters);
        } else {
            let birth = [
                head(Kind::Thread, 9, 0, thread.tid),
                sys::clock_ns(),
                thread.start_routine as u64,
                thread.order.into(),
                thread.stack[0] as u64,
                thread.stack[1] as u64,
                thread.local_storage[0] as u64,
                thread.local_storage[1] as u64,
                thread.creator.into(),
            ];
            self.log.append(thread, &birth);
        }
        true
    }
}

/// Destructor of the thread-exit key.
extern "C" fn end_thread(_: usize) {
    if TRACKER.thread_ends() {
        // SAFETY: the key exists; the C library then runs destructors once more.
        unsafe { real::pthread_setspecific(TRACKER.exit_key.load(Ordering::Relaxed), 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpage_wire::allocation_log::{
        BLOCK_BYTES, BLOCK_HEADER_BYTES, FLAG_REALLOCATED, Records, SEGMENT_HEADER_BYTES,
    };
    use std::os::unix::ffi::OsStrExt;

    /// Kind, flags, argument and words of every record of a folder's first segments.
    fn records(folder: &std::path::Path) -> Vec<(Kind, u16, u32, Vec<u64>)> {
        let mut records = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            for block in bytes[SEGMENT_HEADER_BYTES..].chunks(BLOCK_BYTES) {
                let committed = u32::from_le_bytes(block[8..12].try_into().unwrap()) as usize;
                for record in
                    Records::new(&block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + committed])
                {
                    let words = (0..record.len()).map(|index| record.word(index)).collect();
                    records.push((record.kind, record.flags, record.argument, words));
                }
            }
        }
        records
    }

    #[test]
    fn events_become_records_without_preloading() {
        let folder = tempfile::tempdir().unwrap();
        let tracker: &'static Tracker = Box::leak(Box::new(Tracker::new()));
        let request = Request {
            directory: Some(folder.path().as_os_str().as_bytes()),
            bytes_max: 1 << 20,
            small_sample_bytes: 1,
            unwinding_ns: ALLOWANCE_NS,
        };
        let (thread, token) = Thread::enter().unwrap();
        assert!(tracker.start_as(thread, &request));
        drop(token);
        tracker.phase.store(phase::ACTIVE, Ordering::Relaxed);

        let place = 0usize;
        let at = &raw const place as usize;
        let caller = Caller {
            address: 0x1234,
            at,
        };
        let mut observed = tracker.observe(at).unwrap();
        assert!(
            tracker.observe(at).is_none(),
            "a hook inside a hook passes through"
        );
        assert!(
            tracker.wants(1),
            "everything is wanted when everything is logged"
        );
        assert_eq!(
            tracker.allocate_sample(&mut observed, caller, 8, 16, 0),
            None
        );
        assert!(tracker.is_due(caller, 8));
        tracker.allocated(&mut observed, caller, 0x5000, 8, 0, true);
        let logged = tracker.logged(0x5000);
        tracker.freed(&mut observed, 0x5000, 8, logged, FLAG_REALLOCATED);
        tracker.allocated(&mut observed, caller, 0x6000, 9000, FLAG_REALLOCATED, true);
        tracker.freed(&mut observed, 0x9000, 8, None, 0);
        let mapping = Mapping {
            start: 0x10_0000,
            length: 8192,
            protection: 3,
            map_flags: 0x22,
            fd: -1,
        };
        tracker.mapped(&mut observed, caller, &mapping, 0);
        tracker.unmapped(&mut observed, [0x10_0000, 8192], 7, 0);
        tracker.mark(&mut observed, 1);
        drop(observed);
        // SAFETY: no attributes.
        let birth = unsafe { tracker.thread_is_created(0x77, 0, core::ptr::null(), at) }.unwrap();
        assert_eq!(birth.order, 1);
        std::thread::spawn(move || {
            tracker.thread_begins(&birth);
            for _ in 0..=DESTRUCTOR_ROUNDS {
                tracker.thread_ends();
            }
            assert!(
                tracker.observe(usize::MAX).is_none(),
                "an ended thread is not observed"
            );
        })
        .join()
        .unwrap();
        tracker.finish(at);
        tracker.finish(at);

        let records = records(folder.path());
        let of = |kind| {
            records
                .iter()
                .filter(move |record| record.0 == kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Kind::Thread).len(), 2);
        assert_eq!(of(Kind::Thread)[1].3[1..3], [0x77, 1]);
        assert_eq!(of(Kind::ThreadExit).len(), 1);
        assert_eq!(of(Kind::CallSite).len(), 1, "one site, defined once");
        assert_eq!(of(Kind::CallSite)[0].3, [0x1234]);
        let allocations = of(Kind::Allocate);
        assert_eq!(allocations[0].3[1..], [0x5000, 8, 1000]);
        assert_eq!(
            (allocations[1].1, &allocations[1].3[1..]),
            (FLAG_REALLOCATED, &[0x6000, 9000, 1000][..])
        );
        assert_eq!(of(Kind::Free).len(), 1);
        assert_eq!(of(Kind::Free)[0].3[1..], [0x5000]);
        assert_eq!(
            of(Kind::Map)[0].3[1..],
            [0x10_0000, 8192, 3 | 0x22 << 32, u64::MAX]
        );
        assert_eq!(of(Kind::Unmap)[0].3, [7, 0x10_0000, 8192]);
        assert_eq!(of(Kind::Mark)[0].2, 1);
        assert_eq!(of(Kind::Counters).len(), 1, "the end is told once");
        assert_eq!(of(Kind::Counters)[0].3[1..3], [2, 1]);
    }
}
