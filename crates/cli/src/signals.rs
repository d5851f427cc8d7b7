//! What this process, and commands that it starts, do about signals.

use std::sync::atomic::{AtomicBool, Ordering};

static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`; whether whoever started this process did, only an earlier look says.
#[used]
// SAFETY: the entries of this section are such functions, called with (argc, argv, envp) by the loader.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: zero is a valid sigaction, into which the call writes what is set.
    let found = unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut found);
        found.sa_sigaction
    };
    IGNORES_SIGPIPE.store(found == libc::SIG_IGN, Ordering::Relaxed);
}

/// Was SIGPIPE ignored when this process began, as systemd has it for services?
pub fn ignores_sigpipe() -> bool {
    IGNORES_SIGPIPE.load(Ordering::Relaxed)
}

/// Has SIGPIPE do what it did when this process began: a closed pipe (`nearpage report … | head`) mostly ends the
/// command quietly, as it does cat's.
pub fn as_found() {
    let action = match ignores_sigpipe() {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    // SAFETY: sets a disposition before any other thread exists.
    unsafe { libc::signal(libc::SIGPIPE, action) };
}

/// Has writes beyond `ulimit -f` fail, as those to a full disk do, where they would end this process. By a handler:
/// unlike what is ignored, commands do not inherit it.
pub fn survive_file_size_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: sets a disposition before any other thread exists; the handler does nothing.
    unsafe {
        // What was ignored stays so, for commands too.
        if libc::signal(libc::SIGXFSZ, handler) == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }
}
