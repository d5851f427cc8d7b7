//! Room to work in where `ulimit -s` is tight, which is meant for the command that is observed.

use std::process::ExitCode;
use std::thread;

/// The arguments' definitions alone take hundreds of KiB without optimisation.
const ENOUGH_BYTES: u64 = 4 << 20;

/// Does `work` on this thread, or, where its stack may not grow, on one with a stack of its own. To raise the limit
/// instead would raise the command's.
pub fn with_enough(work: fn() -> ExitCode) -> ExitCode {
    if limit_bytes().is_none_or(|limit| limit >= ENOUGH_BYTES) {
        return work();
    }
    let roomy = thread::Builder::new().stack_size(ENOUGH_BYTES as usize);
    match roomy.spawn(work) {
        // A panic ends the process before it is joined.
        Ok(thread) => thread.join().unwrap_or(ExitCode::FAILURE),
        Err(_) => work(),
    }
}

/// `None`: unlimited, or unknown.
fn limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes the limit, which outlives the call.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
