//! The library's state of the calling thread: three cache lines of thread-local storage.
//!
//! Stable Rust reads a thread-local of a shared library through `__tls_get_addr`, which costs the
//! hooks 15 %. This one is a `.tbss` symbol addressed with the initial-exec model, so that it is a
//! load and an add. The loader reserves little space for such storage, so the size is asserted below.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use crate::standard_thread::Callable;

global_asm!(
    ".pushsection .tbss.nearpage_thread,\"awT\",%nobits",
    ".p2align 6",
    ".globl nearpage_thread",
    ".hidden nearpage_thread",
    ".type nearpage_thread, %object",
    ".size nearpage_thread, 192",
    "nearpage_thread:",
    ".zero 192",
    ".popsection",
);

/// How the library treats a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// The library has not seen the thread yet (all of its storage is zero).
    #[default]
    Unknown = 0,
    /// It runs and is observed.
    Running = 1,
    /// The thread's destructors ran; what the thread still does is not observed.
    Ended = 2,
}

/// A thread's own state. Only the thread itself, or a signal handler on top of it, touches it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Thread {
    /// Bytes of small allocations until the next sample. The assembly hooks subtract from it: it
    /// must stay the first field.
    pub countdown: i64,
    /// Nonzero while the library runs in this thread.
    pub(crate) token: u32,
    /// How the library treats it.
    pub stage: Stage,
    /// The block of the log it fills, or null.
    pub block: usize,
    /// Bytes used of that block, its header included.
    pub block_used: u32,
    /// Its id.
    pub tid: u32,
    /// Its id in the log: that of the recorder's PID namespace, if the process has one of its own.
    pub number: u32,
    /// State of its random generator.
    pub random: u64,
    /// Lowest and highest address of its stack; 0 while unknown.
    pub stack: [usize; 2],
    /// Lowest and highest address of its static thread-local storage.
    pub local_storage: [usize; 2],
    /// Its start routine; 0 for the main thread or if unknown.
    pub start_routine: usize,
    /// What it executes, if `std::thread` created it.
    pub callable: Callable,
    /// How many threads of its process were created before it.
    pub order: u32,
    /// Id of the thread that created it.
    pub creator: u32,
    /// Stack address of a `dlopen` whose end has not been noticed; 0: none.
    pub loading_at: usize,
    /// The return address of that `dlopen`; 0: not known.
    pub loading_from: usize,
    /// The countdown, saved while a `dlopen` runs.
    pub countdown_aside: i64,
    /// Which fork of the process the block belongs to.
    pub generation: u32,
    /// Rounds of thread destructors so far; after some, the thread counts as ended.
    pub destructor_rounds: u16,
    /// Its Thread record is in the log of this generation.
    pub announced: bool,
    /// [`crate::place::unmatched_memory`]: the thread has the policy of unmatched memory, or a policy that the program set.
    pub follows_unmatched: bool,
    /// [`crate::large`]: address of its gaps at busy call sites; 0: none yet.
    pub gaps: usize,
    /// [`crate::signal`]: its time on CPUs at its last sample.
    pub used: crate::signal::CpuUsage,
    /// [`crate::signal`]: place of its timer, from 1; 0: it has none.
    pub timer: u32,
    /// [`crate::launch`]: address of its memory for environments; 0: none yet.
    pub scratch: usize,
    /// [`crate::signal`]: that the thread began is still to be written, as there was no ring.
    pub begin_unsaid: AtomicBool,
}

const _: () = assert!(size_of::<Thread>() <= 192);

/// Held while the library runs in a thread: a hook entered meanwhile passes straight through.
#[derive(Debug)]
pub struct Token(*mut Thread);

impl Drop for Token {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the thread that took the token gives it back, so its storage is still there.
        unsafe { (*self.0).token = 0 };
    }
}

impl Thread {
    /// The calling thread's state.
    #[inline]
    pub fn current() -> *mut Thread {
        let pointer: usize;
        // SAFETY: reads the thread pointer and the symbol's offset from it, nothing else.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mov {0}, qword ptr fs:[0]", "add {0}, qword ptr [rip + nearpage_thread@GOTTPOFF]",
                 out(reg) pointer, options(nostack, readonly));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!("mrs {0}, tpidr_el0", "adrp {1}, :gottprel:nearpage_thread",
                 "ldr {1}, [{1}, :gottprel_lo12:nearpage_thread]", "add {0}, {0}, {1}",
                 out(reg) pointer, out(reg) _, options(nostack, readonly));
        }
        pointer as *mut Thread
    }

    /// The calling thread's state with its token, unless the library already runs in it.
    #[inline]
    pub fn enter() -> Option<(&'static mut Thread, Token)> {
        let pointer = Self::current();
        // SAFETY: the storage is this thread's; whoever holds the token has the only reference, and
        // a signal handler that comes between test and set finishes before the set.
        unsafe {
            if (*pointer).token != 0 {
                return None;
            }
            (*pointer).token = 1;
            compiler_fence(Ordering::SeqCst);
            Some((&mut *pointer, Token(pointer)))
        }
    }

    /// The thread pointer, where the C library keeps its control block.
    pub fn pointer() -> usize {
        let pointer: usize;
        // SAFETY: reads a register (or the word that holds its own address).
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, readonly));
        }
        pointer
    }

    /// Has the `dlopen` that began at [`Self::loading_at`] returned, seen from a hook called at `at`?
    ///
    /// Calls from inside the `dlopen` are made further down the stack. So are later calls from functions of
    /// its caller, but these have overwritten the return address of the `dlopen`.
    pub fn has_loaded(&self, at: usize) -> bool {
        let own = self.stack[0]..self.stack[1];
        if at >= self.loading_at || !own.contains(&at) || !own.contains(&self.loading_at) {
            return true;
        }
        // SAFETY: a word of this thread's stack, above the stack pointer.
        self.loading_from != 0 && unsafe { *(self.loading_at as *const usize) } != self.loading_from
    }

    /// The next random number: xorshift64* (Vigna, "An experimental exploration of Marsaglia's
    /// xorshift generators, scrambled", 2016).
    pub fn next_random(&mut self) -> u64 {
        if self.random == 0 {
            self.random =
                (u64::from(self.tid) << 32 | 0x9e37_79b9) ^ crate::sys::monotonic_ns() | 1;
        }
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_state_and_one_token() {
        let (thread, token) = Thread::enter().unwrap();
        thread.order = 7;
        assert!(Thread::enter().is_none());
        let here = Thread::current() as usize;
        std::thread::spawn(move || {
            assert_ne!(Thread::current() as usize, here);
            let (thread, _token) = Thread::enter().unwrap();
            assert_eq!((thread.order, thread.stage), (0, Stage::Unknown));
        })
        .join()
        .unwrap();
        drop(token);
        assert_eq!(Thread::enter().unwrap().0.order, 7);
    }
}
