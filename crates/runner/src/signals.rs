//! Signal dispositions of this process and of the commands that it starts.

use std::sync::atomic::{AtomicBool, Ordering};

static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// Records whether SIGPIPE was ignored at the start. This must run before `main`, because Rust's runtime ignores
/// SIGPIPE before `main`.
#[used]
// SAFETY: the loader calls the functions in this section with (argc, argv, envp), which the function may ignore.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let is_ignored = disposition(libc::SIGPIPE) == libc::SIG_IGN;
    IGNORES_SIGPIPE.store(is_ignored, Ordering::Relaxed);
}

/// Disposition of a signal in this process.
fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    // SAFETY: zero is a valid sigaction, and the call only writes to it.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut found);
        found.sa_sigaction
    }
}

/// Was SIGPIPE ignored when this process began, as systemd does for services?
pub(crate) fn ignores_sigpipe() -> bool {
    IGNORES_SIGPIPE.load(Ordering::Relaxed)
}

/// Restores the disposition that SIGPIPE had when this process began. So a closed pipe (`nearpage report … | head`)
/// usually ends the command quietly, as it ends cat. Must be called before there are threads.
pub fn restore_sigpipe() {
    let action = match ignores_sigpipe() {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    // SAFETY: sets a disposition before any other thread exists.
    unsafe { libc::signal(libc::SIGPIPE, action) };
}

/// Makes writes beyond `ulimit -f` fail like writes to a full disk. Otherwise they would end this process.
pub fn survive_file_size_limit() {
    survive(libc::SIGXFSZ);
}

/// Makes writes to closed pipes fail instead of ending this process. Commands that observe continue their recording and
/// clean up when their output is no longer read.
pub fn survive_closed_pipes() {
    survive(libc::SIGPIPE);
}

/// Installs a handler that does nothing. Commands inherit an ignored signal, but not a handler.
fn survive(signal: libc::c_int) {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: sets a disposition; the handler does nothing.
    unsafe {
        // An ignored signal stays ignored, for commands as well.
        if libc::signal(signal, handler) == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigpipe_is_restored_to_what_the_process_began_with() {
        assert_eq!(disposition(libc::SIGPIPE), libc::SIG_IGN, "Rust's runtime");
        restore_sigpipe();
        let expected = match ignores_sigpipe() {
            true => libc::SIG_IGN,
            false => libc::SIG_DFL,
        };
        let restored = disposition(libc::SIGPIPE);
        // SAFETY: sets a disposition. Other tests expect the disposition of Rust's runtime.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        assert_eq!(restored, expected);
    }

    #[test]
    fn a_file_size_limit_that_was_ignored_stays_so() {
        let before = disposition(libc::SIGXFSZ);
        survive_file_size_limit();
        let handled = disposition(libc::SIGXFSZ);
        assert_eq!(handled == libc::SIG_IGN, before == libc::SIG_IGN);
        assert_ne!(handled, libc::SIG_DFL);
    }
}
