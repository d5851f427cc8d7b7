//! Enough stack for nearpage where `ulimit -s` is tight; that limit is meant for the observed command.

use std::process::ExitCode;
use std::thread;

/// Without optimisation, the definitions of the arguments alone take hundreds of KiB.
const STACK_BYTES: u64 = 4 << 20;

/// Runs `work` on this thread or, if its stack limit is too small, on a thread with a larger stack. Raising the limit
/// instead would change the limit that the command inherits.
pub fn with_enough(work: fn() -> ExitCode) -> ExitCode {
    if limit_bytes().is_none_or(|limit| limit >= STACK_BYTES) {
        return work();
    }
    let roomy = thread::Builder::new().stack_size(STACK_BYTES as usize);
    match roomy.spawn(work) {
        // A panic ends the process before the join.
        Ok(thread) => thread.join().unwrap_or(ExitCode::FAILURE),
        Err(_) => work(),
    }
}

/// Stack limit in bytes; `None`: unlimited, or unknown.
fn limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the limit, which outlives the call.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
