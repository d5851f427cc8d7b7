//! Threads and forked children.

use core::sync::atomic::{AtomicU32, Ordering};

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::allocation_log::{Kind, head};

use super::{TRACKER, Tracker, phase};
use crate::left_out::LeftOut;
use crate::sample_heap::SAMPLE_HEAP;
use crate::standard_thread::Callable;
use crate::thread::{Stage, Thread};
use crate::{bounds, large, launch, message, place, real, signal, standard_thread, sys};

/// `MADV_WIPEONFORK`.
const ADVICE_WIPE_ON_FORK: usize = 18;
/// Rounds of thread destructors that the library waits, so that the program's destructors run first.
pub(super) const DESTRUCTOR_ROUNDS: u16 = 2;

/// What a thread's creator passes to the new thread.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ThreadStart {
    /// The program's routine.
    pub start_routine: usize,
    /// Its argument.
    pub argument: usize,
    /// What it executes, if `std::thread` creates it.
    pub callable: Callable,
    /// Creation order in the process.
    pub order: u32,
    /// The creator's id.
    pub creator: u32,
    /// [`bounds::stack_of_attributes`].
    pub stack: [usize; 2],
    /// Its creator set the policy of unmatched memory aside ([`place::unmatched_memory`]).
    pub resumes_unmatched: bool,
}

/// A word that is never wiped, for kernels without MADV_WIPEONFORK.
static ALWAYS: AtomicU32 = AtomicU32::new(1);

impl Tracker {
    pub(super) fn watch_forks(&self) {
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

    pub(super) fn is_forked(&self) -> bool {
        let word = self.same_process.load(Ordering::Relaxed);
        // SAFETY: the word was set before the phase became active and is never unmapped.
        word != 0 && unsafe { (*(word as *const AtomicU32)).load(Ordering::Relaxed) } == 0
    }

    /// Asks for the id of this process; returns the id that the log uses.
    pub(super) fn identify(&self) -> u32 {
        let pid = sys::getpid();
        self.pid.store(pid, Ordering::Relaxed);
        let number = sys::outside_numbers().map_or(pid, |[pid, _]| pid);
        let differs = u32::from(number != pid);
        self.has_outside_numbers.store(differs, Ordering::Relaxed);
        message::is_of(number);
        number
    }

    fn identify_thread(&self, thread: &mut Thread) {
        thread.tid = sys::gettid();
        let outside = match self.has_outside_numbers.load(Ordering::Relaxed) {
            0 => None,
            _ => sys::outside_numbers(),
        };
        thread.number = outside.map_or(thread.tid, |[_, tid]| tid);
    }

    /// Starts anew in a child that was just forked, with a log of its own.
    pub fn forked_child(&self, thread: &mut Thread) {
        let _left_out = LeftOut::begin();
        if self.phase.load(Ordering::Relaxed) != phase::ACTIVE {
            return;
        }
        let word = self.same_process.load(Ordering::Relaxed);
        if word != 0 {
            // SAFETY: as in `is_forked`.
            unsafe { (*(word as *const AtomicU32)).store(1, Ordering::Relaxed) };
        }
        let number = self.identify();
        // The log and the ring of samples begin at one time: what is logged before a process begins is no part of it.
        let start_ns = sys::clock_ns();
        self.log.forked_child(number, start_ns);
        self.sites.forget();
        SAMPLE_HEAP.forked_child();
        self.finished.store(0, Ordering::Relaxed);
        for counter in self.shards.iter().flat_map(|shard| &shard.0) {
            counter.store(0, Ordering::Relaxed);
        }
        self.identify_thread(thread);
        thread.random = 0;
        thread.block = 0;
        thread.start_routine = 0;
        thread.callable = Callable::default();
        thread.order = 0;
        thread.creator = 0;
        thread.follows_unmatched = false;
        self.threads_created
            .store((thread.stage != Stage::Unknown).into(), Ordering::Relaxed);
        place::forked_child();
        signal::forked_child(thread, start_ns);
    }

    /// Begins to observe a thread that no hook of `pthread_create` announced: the main thread, or one made by a
    /// bare `clone`.
    pub(super) fn add_unannounced(&self, thread: &mut Thread) {
        self.identify_thread(thread);
        thread.local_storage = bounds::local_storage(self.static_tls_bytes.load(Ordering::Relaxed));
        thread.order = self.threads_created.fetch_add(1, Ordering::Relaxed);
        if thread.tid == sys::getpid() {
            thread.stack = bounds::main_stack();
        }
        self.begin_observing(thread);
        if thread.order > 0 {
            place::unannounced_thread();
        }
    }

    pub(super) fn begin_observing(&self, thread: &mut Thread) {
        thread.stage = Stage::Running;
        // The first allocation was subtracted from a countdown of 0, and still counts.
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

    /// Numbers a thread that is about to be created; `None` if the calling thread is not observed.
    ///
    /// # Safety
    /// `attributes` is null or points to thread attributes. The arguments are those of the call that creates the thread.
    pub unsafe fn thread_is_created(
        &self,
        start_routine: usize,
        argument: usize,
        attributes: *const core::ffi::c_void,
        at: usize,
    ) -> Option<ThreadStart> {
        let _left_out = LeftOut::begin();
        let observed = self.observe(at)?;
        let order = self.threads_created.fetch_add(1, Ordering::Relaxed);
        place::thread_created(start_routine, order);
        Some(ThreadStart {
            start_routine,
            argument,
            callable: match self.logs.load(Ordering::Relaxed) {
                0 => Callable::default(),
                // SAFETY: the caller's promise.
                _ => unsafe { standard_thread::callable(start_routine, argument) },
            },
            order,
            creator: observed.thread.number,
            // SAFETY: the caller's promise.
            stack: unsafe { bounds::stack_of_attributes(attributes) },
            resumes_unmatched: false,
        })
    }

    /// The calling thread is about to execute a function that a phase of the plan may begin with.
    pub fn function_begins(&self, function: usize, at: usize) {
        let _left_out = LeftOut::begin();
        if let Some(_observed) = self.observe(at) {
            place::function_begins(function);
        }
    }

    /// Takes back the number of a thread that could not be created.
    pub fn thread_is_not_created(&self, new_thread: &ThreadStart) {
        place::thread_ended(new_thread.start_routine, new_thread.order);
        self.threads_created.fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins to observe the calling thread.
    pub fn thread_begins(&self, new_thread: &ThreadStart) {
        let _left_out = LeftOut::begin();
        let Some((thread, _token)) = Thread::enter() else {
            return;
        };
        if !self.is_active() || self.is_forked() || thread.stage != Stage::Unknown {
            return;
        }
        self.identify_thread(thread);
        thread.local_storage = bounds::local_storage(self.static_tls_bytes.load(Ordering::Relaxed));
        thread.stack = bounds::thread_stack(new_thread.stack, thread.local_storage);
        place::unmatched_memory::stack_begins(|page_bytes| {
            bounds::stack_pages(new_thread.stack, thread.local_storage, page_bytes)
        });
        thread.follows_unmatched = true;
        thread.start_routine = new_thread.start_routine;
        thread.callable = new_thread.callable;
        thread.order = new_thread.order;
        thread.creator = new_thread.creator;
        self.begin_observing(thread);
        place::thread_started(new_thread.start_routine, new_thread.order, thread.tid);
    }

    /// Called in each round of the calling thread's destructors; returns whether another round is to follow.
    pub(super) fn thread_ends(&self) -> bool {
        let _left_out = LeftOut::begin();
        let Some((thread, _token)) = Thread::enter() else {
            return false;
        };
        if thread.stage != Stage::Running || !self.is_active() {
            return false;
        }
        thread.destructor_rounds += 1;
        if thread.destructor_rounds <= DESTRUCTOR_ROUNDS {
            return true;
        }
        self.record(
            thread,
            &[head(Kind::ThreadExit, 2, 0, thread.number), sys::clock_ns()],
        );
        place::thread_ended(thread.start_routine, thread.order);
        signal::thread_ends(thread);
        self.log.release(thread);
        large::release(thread);
        launch::thread_ends(thread);
        thread.stage = Stage::Ended;
        thread.countdown = i64::MAX;
        false
    }
}

/// Destructor of the thread-exit key.
pub(super) extern "C" fn end_thread(_: usize) {
    if TRACKER.thread_ends() {
        // SAFETY: the key exists; the C library then runs destructors once more.
        unsafe { real::pthread_setspecific(TRACKER.exit_key.load(Ordering::Relaxed), 1) };
    }
}
