//! What this process, and commands that it starts, do about signals.

use std::sync::atomic::{AtomicBool, Ordering};

static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`. Only a look before that tells whether whoever started this process did.
#[used]
// SAFETY: the entries of this section are such functions, called with (argc, argv, envp) by the loader.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let is_ignored = disposition(libc::SIGPIPE) == libc::SIG_IGN;
    IGNORES_SIGPIPE.store(is_ignored, Ordering::Relaxed);
}

/// What this process does at a signal.
fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    // SAFETY: zero is a valid sigaction, into which the call writes what is set.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut found);
        found.sa_sigaction
    }
}

/// Was SIGPIPE ignored when this process began, as systemd has it for services?
pub(crate) fn ignores_sigpipe() -> bool {
    IGNORES_SIGPIPE.load(Ordering::Relaxed)
}

/// Has SIGPIPE do what it did when this process began: a closed pipe (`nearpage report … | head`) mostly ends the
/// command quietly, as it does cat's. To be called before there are threads.
pub fn restore_sigpipe() {
    let action = match ignores_sigpipe() {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    // SAFETY: sets a disposition before any other thread exists.
    unsafe { libc::signal(libc::SIGPIPE, action) };
}

/// Has writes beyond `ulimit -f` fail, as those to a full disk do, where they would end this process.
pub fn survive_file_size_limit() {
    survive(libc::SIGXFSZ);
}

/// Has writes to closed pipes fail, for commands that observe: whoever no longer reads what they say does not end the
/// recording, or leave anything behind.
pub fn survive_closed_pipes() {
    survive(libc::SIGPIPE);
}

/// By a handler: unlike an ignored signal, commands do not inherit it.
fn survive(signal: libc::c_int) {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: sets a disposition; the handler does nothing.
    unsafe {
        // What was ignored stays so, for commands too.
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
        // SAFETY: sets a disposition. Other tests go on as Rust's runtime has it.
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
