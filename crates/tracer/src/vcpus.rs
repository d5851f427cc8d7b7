//! The traced thread of each emulated CPU, and the token that callbacks need to use it.
//!
//! QEMU passes a CPU's number to each callback. The callback makes a [`Vcpu`] of the number, and asks
//! the [`Vcpu`] for its [`Thread`]. A flag beside each thread says that somebody uses it: whoever asks
//! again meanwhile is refused, as in the preload library. Setting the flag for each access made tracing
//! 4 % slower, so [`Vcpu::access`] and [`Vcpu::note_block`] only read it while they note an event.

use std::cell::UnsafeCell;
use std::ffi::c_uint;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, fence};

use crate::qemu::AccessKind;
use crate::thread::{Code, NoteOutcome, Run, Thread};

/// How many emulated CPUs, that is threads at one time, can be traced.
const VCPUS: usize = 4096;

/// A thread, and whether somebody has a reference to it. A slot that holds its address owns it.
#[repr(C)]
struct Guarded {
    in_use: AtomicBool,
    thread: UnsafeCell<Thread>,
}

/// [`take_all`] uses threads of other host threads.
const _: () = {
    const fn may_change_host_threads<T: Send>() {}
    may_change_host_threads::<Thread>();
};

type Slots = [AtomicPtr<Guarded>; VCPUS];
/// The thread that each emulated CPU runs, while its accesses count. QEMU reuses the number of a
/// thread that ended.
static TRACED: Slots = [const { AtomicPtr::new(null_mut()) }; VCPUS];
/// The thread, while other code works for the preload library on it. Such a thread is not in
/// [`TRACED`], so that accesses need no further check.
static UNTRACED: Slots = [const { AtomicPtr::new(null_mut()) }; VCPUS];
/// Whether the CPU's host thread is in a callback of a system call. QEMU stops all other threads before a
/// process ends, but not these.
static IN_CALL: [AtomicBool; VCPUS] = [const { AtomicBool::new(false) }; VCPUS];

/// The right to use one emulated CPU's thread, for the time of a callback.
pub(crate) struct Vcpu {
    number: usize,
    /// Stays on its host thread.
    _host_thread: PhantomData<*mut ()>,
}

/// The only reference to a thread, until it is dropped.
pub(crate) struct ThreadGuard<'vcpu> {
    guarded: *const Guarded,
    _vcpu: PhantomData<&'vcpu Vcpu>,
}

impl Deref for ThreadGuard<'_> {
    type Target = Thread;

    #[inline]
    fn deref(&self) -> &Thread {
        // SAFETY: `enter` set the flag, so this is the only `Entered` of the thread, and the thread is
        // not freed while the flag is set.
        unsafe { &*(*self.guarded).thread.get() }
    }
}

impl DerefMut for ThreadGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Thread {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { &mut *(*self.guarded).thread.get() }
    }
}

impl Drop for ThreadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the thread is not freed while its flag is set.
        let in_use = unsafe { &(*self.guarded).in_use };
        in_use.store(false, Release);
    }
}

/// # Safety
/// The pointer is null or came from a slot, and no other host thread enters or frees that thread
/// before the returned reference is dropped.
#[inline]
unsafe fn unused<'slot>(guarded: *const Guarded) -> Option<&'slot Guarded> {
    // SAFETY: slots hold null or a thread that is not freed yet.
    let guarded = unsafe { guarded.as_ref() }?;
    (!guarded.in_use.load(Acquire)).then_some(guarded)
}

/// # Safety
/// The contract of [`unused`].
#[inline]
unsafe fn enter<'vcpu>(guarded: *const Guarded) -> Option<ThreadGuard<'vcpu>> {
    // SAFETY: as this function's.
    unsafe { unused(guarded) }?.in_use.store(true, Relaxed);
    Some(ThreadGuard {
        guarded,
        _vcpu: PhantomData,
    })
}

impl Vcpu {
    /// The CPU of the callback that QEMU is making; `None`: there are more CPUs than can be traced.
    ///
    /// # Safety
    /// QEMU is calling back for this CPU on the host thread that runs the CPU, and the value is dropped
    /// before the callback returns. (QEMU runs a CPU on one host thread at a time, and makes no
    /// callbacks from signal handlers.)
    #[inline]
    pub(crate) unsafe fn of_callback(number: c_uint) -> Option<Self> {
        let number = number as usize;
        (number < VCPUS).then_some(Self {
            number,
            _host_thread: PhantomData,
        })
    }

    /// QEMU's number of it.
    pub(crate) fn number(&self) -> c_uint {
        self.number as c_uint
    }

    /// Its thread, if the thread's accesses count and nobody is using it.
    #[inline]
    pub(crate) fn traced(&self) -> Option<ThreadGuard<'_>> {
        // SAFETY: only the host thread that runs the CPU has a `Vcpu` of this number, and only through
        // one are this slot's threads entered and freed. (`take_all` says why it may.)
        unsafe { enter(TRACED[self.number].load(Relaxed)) }
    }

    /// Its thread, if it works for the preload library and nobody is using it.
    pub(crate) fn untraced(&self) -> Option<ThreadGuard<'_>> {
        // SAFETY: as in `traced`.
        unsafe { enter(UNTRACED[self.number].load(Relaxed)) }
    }

    /// Its thread begins a block. Returns itself where the block is not noted: the thread must pause,
    /// somebody uses it, or none is traced.
    #[inline]
    pub(crate) fn note_block(self, run: Run) -> Result<(), Self> {
        // SAFETY: as in `traced`.
        let Some(guarded) = (unsafe { unused(TRACED[self.number].load(Relaxed)) }) else {
            return Err(self);
        };
        // SAFETY: nobody has a reference, and this one ends with `Thread::note_block`, which calls nothing
        // that could ask for another.
        match unsafe { &mut *guarded.thread.get() }.note_block(run) {
            NoteOutcome::Done => Ok(()),
            NoteOutcome::Full => {
                self.catch_up();
                Ok(())
            }
            NoteOutcome::MustPause => Err(self),
        }
    }

    /// Its thread made an access, which counts if the thread is traced and nobody uses it.
    #[inline]
    pub(crate) fn access(self, address: u64, code: Code, kind: AccessKind) {
        // SAFETY: as in `traced`.
        let Some(guarded) = (unsafe { unused(TRACED[self.number].load(Relaxed)) }) else {
            return;
        };
        // SAFETY: nobody has a reference, and this one ends with `Thread::note_access`, which calls
        // nothing that could ask for another.
        let noted = unsafe { &mut *guarded.thread.get() }.note_access(address, code, kind);
        if let NoteOutcome::Full = noted {
            self.catch_up();
        }
    }

    #[cold]
    #[inline(never)]
    fn catch_up(self) {
        if let Some(mut thread) = self.traced() {
            thread.catch_up();
        }
    }

    /// Its thread, traced or not, unless somebody uses it. `begin` makes a thread where there is none.
    pub(crate) fn thread(
        &self,
        begin: impl FnOnce() -> Option<Box<Thread>>,
    ) -> Option<ThreadGuard<'_>> {
        if let Some(thread) = self.traced().or_else(|| self.untraced()) {
            return Some(thread);
        }
        self.is_vacant().then(begin)?.map(|thread| self.add(thread))
    }

    fn is_vacant(&self) -> bool {
        [&TRACED, &UNTRACED].map(|slots| slots[self.number].load(Relaxed)) == [null_mut(); 2]
    }

    #[cold]
    fn add(&self, thread: Box<Thread>) -> ThreadGuard<'_> {
        let guarded = Box::into_raw(Box::new(Guarded {
            in_use: AtomicBool::new(true),
            thread: UnsafeCell::new(*thread),
        }));
        // A thread that `begin` itself may have added is given up, but not freed: it may be in use.
        TRACED[self.number].store(guarded, Relaxed);
        ThreadGuard {
            guarded,
            _vcpu: PhantomData,
        }
    }

    /// From here on, its thread's accesses don't count.
    pub(crate) fn stop_tracing(&self) {
        self.transfer(&TRACED, &UNTRACED);
    }

    /// From here on, its thread's accesses count again.
    pub(crate) fn resume_tracing(&self) {
        self.transfer(&UNTRACED, &TRACED);
    }

    fn transfer(&self, from: &Slots, to: &Slots) {
        let thread = from[self.number].swap(null_mut(), Relaxed);
        if !thread.is_null() {
            to[self.number].store(thread, Relaxed);
        }
    }

    /// Removes its thread. A thread that somebody uses stays in memory for good.
    pub(crate) fn remove(&self) -> Option<Box<Thread>> {
        let guarded = take(self.number)?;
        // SAFETY: `add` made it, and only the host thread that runs the CPU frees it.
        if unsafe { (*guarded).in_use.load(Acquire) } {
            return None;
        }
        // SAFETY: it came from a box, no slot holds it any more, and nobody has a reference.
        let guarded = unsafe { Box::from_raw(guarded) };
        Some(Box::new(guarded.thread.into_inner()))
    }

    /// The callback is one of a system call: [`take_all`] waits until the result is dropped, unless
    /// [`take_all`] was first.
    pub(crate) fn in_call(self) -> InCall {
        IN_CALL[self.number].store(true, Relaxed);
        fence(SeqCst);
        InCall(self)
    }
}

/// The right to use a CPU's thread in a callback of a system call.
pub(crate) struct InCall(Vcpu);

impl Deref for InCall {
    type Target = Vcpu;

    fn deref(&self) -> &Vcpu {
        &self.0
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        IN_CALL[self.0.number].store(false, Release);
    }
}

/// Empties a CPU's slots.
fn take(number: usize) -> Option<*mut Guarded> {
    let slots = [&TRACED[number], &UNTRACED[number]];
    let taken = slots.map(|slot| slot.swap(null_mut(), Relaxed));
    taken.into_iter().find(|thread| !thread.is_null())
}

/// Gives up all threads, which stay in memory: in a forked child they are the parent's.
///
/// # Safety
/// This host thread is the process's only one: [`take_all`] relies on what this clears.
pub(crate) unsafe fn forget_all() {
    for (number, in_call) in IN_CALL.iter().enumerate() {
        take(number);
        in_call.store(false, Relaxed);
    }
}

/// Removes all threads, which stay in memory, and passes each to `end`. If a CPU is in a system call's callback, this waits
/// for it as long as `patient` returns true, and then leaves its thread alone.
///
/// # Safety
/// No other host thread is in a callback that uses a thread or begins one, but for callbacks of
/// system calls, which hold an [`InCall`]. Those find no thread afterwards, and make none.
pub(crate) unsafe fn take_all(mut patient: impl FnMut() -> bool, mut end: impl FnMut(&mut Thread)) {
    for (number, in_call) in IN_CALL.iter().enumerate() {
        let known = take(number);
        fence(SeqCst);
        while in_call.load(Acquire) && patient() {
            std::thread::yield_now();
        }
        if in_call.load(Acquire) {
            continue;
        }
        // A thread that was just being added is in its slot now.
        let Some(thread) = known.or_else(|| take(number)) else {
            continue;
        };
        // SAFETY: its host thread is in no callback now, and finds itself in no slot any more. Threads
        // that leave their slots here are never freed.
        if let Some(mut thread) = unsafe { enter(thread) } {
            end(&mut thread);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
