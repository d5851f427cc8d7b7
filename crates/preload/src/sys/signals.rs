//! System calls about signals and timers.

use super::{Errno, call, number};

/// Bytes of the kernel's set of signals.
const SIGNAL_SET_BYTES: usize = 8;
/// `SA_SIGINFO | SA_ONSTACK | SA_RESTART`.
const HANDLER_FLAGS: usize = 0x1800_0004;
/// `SA_RESTORER`, which x86-64 asks for.
const WITH_RESTORER: usize = if cfg!(target_arch = "x86_64") {
    0x400_0000
} else {
    0
};

/// The action for a signal: the kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Action {
    /// 0 default, 1 ignore, or an address.
    pub handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// Is it the default action?
    pub fn is_default(&self) -> bool {
        self.handler == 0
    }
}

/// The action for `signal`.
pub fn action(signal: i32) -> Result<Action, Errno> {
    let mut old = Action::default();
    // SAFETY: the kernel writes one structure.
    unsafe {
        call(
            number::RT_SIGACTION,
            [
                signal as usize,
                0,
                &raw mut old as usize,
                SIGNAL_SET_BYTES,
                0,
                0,
            ],
        )
    }?;
    Ok(old)
}

/// Installs `handler` for `signal`: on the alternate stack if there is one, with all other signals
/// blocked meanwhile, and with interrupted system calls restarted.
pub fn handle(signal: i32, handler: usize) -> Result<usize, Errno> {
    set_action(
        signal,
        &Action {
            handler,
            flags: HANDLER_FLAGS | WITH_RESTORER,
            restorer: restorer(),
            mask: u64::MAX,
        },
    )
}

/// Sets the default action for `signal`.
pub fn set_default(signal: i32) -> Result<usize, Errno> {
    set_action(signal, &Action::default())
}

fn set_action(signal: i32, action: &Action) -> Result<usize, Errno> {
    // SAFETY: the structure is readable; the handler that it names stays loaded.
    unsafe {
        call(
            number::RT_SIGACTION,
            [
                signal as usize,
                core::ptr::from_ref(action) as usize,
                0,
                SIGNAL_SET_BYTES,
                0,
                0,
            ],
        )
    }
}

/// Where handlers return to.
#[cfg(target_arch = "x86_64")]
fn restorer() -> usize {
    /// `rt_sigreturn`. Unwinders know it by these very instructions.
    #[unsafe(naked)]
    unsafe extern "C" fn sigreturn() {
        core::arch::naked_asm!("mov rax, 15", "syscall");
    }
    sigreturn as *const () as usize
}

/// The kernel uses its own code.
#[cfg(target_arch = "aarch64")]
fn restorer() -> usize {
    0
}

/// Does the calling thread block `signal`?
pub fn is_blocked(signal: i32) -> bool {
    let mut set = 0u64;
    // SAFETY: the kernel writes one word.
    let result = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [0, 0, &raw mut set as usize, SIGNAL_SET_BYTES, 0, 0],
        )
    };
    result.is_ok() && set >> (signal - 1) & 1 == 1
}

/// Does `signal` wait for the calling thread?
pub fn is_pending(signal: i32) -> bool {
    let mut set = 0u64;
    // SAFETY: the kernel writes one word.
    let result = unsafe {
        call(
            number::RT_SIGPENDING,
            [&raw mut set as usize, SIGNAL_SET_BYTES, 0, 0, 0, 0],
        )
    };
    result.is_ok() && set >> (signal - 1) & 1 == 1
}

/// Makes a timer on a clock of the calling thread, which sends thread `tid` the signal with the timer's number. The timer
/// is not set yet.
pub fn timer_create(clock: i32, signal: i32, tid: u32) -> Result<u32, Errno> {
    const SIGEV_THREAD_ID: u32 = 4;
    // The value (a word), the signal, how, to whom.
    let mut event = [0u32; 16];
    (event[0], event[2], event[3], event[4]) = (tid, signal as u32, SIGEV_THREAD_ID, tid);
    let mut timer = 0u32;
    // SAFETY: the kernel reads 64 bytes and writes one number.
    unsafe {
        call(
            number::TIMER_CREATE,
            [
                clock as isize as usize,
                event.as_ptr() as usize,
                &raw mut timer as usize,
                0,
                0,
                0,
            ],
        )
    }?;
    Ok(timer)
}

/// Sets a timer: interval, then time to the first expiry, each in seconds and nanoseconds.
pub fn timer_settime(timer: u32, times: [u64; 4]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads four words.
    unsafe {
        call(
            number::TIMER_SETTIME,
            [timer as usize, 0, times.as_ptr() as usize, 0, 0, 0],
        )
    }
}

/// Deletes a timer.
pub fn timer_delete(timer: u32) {
    // SAFETY: no memory is involved.
    let _ = unsafe { call(number::TIMER_DELETE, [timer as usize, 0, 0, 0, 0, 0]) };
}
