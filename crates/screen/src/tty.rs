//! Mode of the terminal. While the screen is shown, keys arrive one at a time. The terminal is restored at the end of
//! watching, at a signal, and at a panic.

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Enters the alternate screen, clears it, and hides the cursor (xterm's control sequences).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[2J\x1b[?25l";
/// Resets attributes, shows the cursor, and leaves the alternate screen.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// Value of `SHOWN_ON` without a screen.
const NONE: RawFd = -1;
/// Descriptor of the terminal that shows the screen, in a static because signal handlers have no other state.
static SHOWN_ON: AtomicI32 = AtomicI32::new(NONE);

struct Mode(UnsafeCell<MaybeUninit<libc::termios>>);
// SAFETY: `enter` writes the value before it stores a descriptor in `SHOWN_ON`. Only a reader that has taken this
// descriptor out reads the value.
unsafe impl Sync for Mode {}
static MODE_BEFORE: Mode = Mode(UnsafeCell::new(MaybeUninit::uninit()));

/// Can the screen be shown on this terminal? Only if this process is in the terminal's foreground: in the background,
/// changing the mode would stop the process.
pub fn is_ours(terminal: &impl AsRawFd) -> bool {
    // SAFETY: the calls take no pointers.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() }
}

/// Shows an empty screen. Ctrl-C still sends SIGINT, also to the command. Keys that stop a process or dump its core are
/// disabled.
///
/// # Errors
/// The file is no terminal.
pub fn enter(terminal: &File) -> io::Result<()> {
    let fd = terminal.as_raw_fd();
    let mut mode = MaybeUninit::uninit();
    // SAFETY: tcgetattr writes the whole struct if it returns 0; otherwise the struct is not read.
    let before = unsafe {
        if libc::tcgetattr(fd, mode.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        mode.assume_init()
    };
    let mut raw = before;
    // SAFETY: cfmakeraw only writes to the struct, which outlives the call.
    unsafe { libc::cfmakeraw(&mut raw) };
    raw.c_lflag |= libc::ISIG;
    // `_POSIX_VDISABLE` is 0 on Linux.
    raw.c_cc[libc::VSUSP] = 0;
    raw.c_cc[libc::VQUIT] = 0;
    // SAFETY: the value is not read before `SHOWN_ON` has a terminal, and there is only one screen at a time.
    unsafe { MODE_BEFORE.0.get().write(MaybeUninit::new(before)) };
    SHOWN_ON.store(fd, Ordering::SeqCst);
    // SAFETY: tcsetattr only reads the struct, which outlives the call.
    if unsafe { libc::tcsetattr(fd, libc::TCSADRAIN, &raw) } != 0 {
        let error = io::Error::last_os_error();
        SHOWN_ON.store(NONE, Ordering::SeqCst);
        return Err(error);
    }
    write(fd, ENTER);
    Ok(())
}

/// Restores the terminal, if a screen is shown. May be called at any time, from any thread, and from a signal handler.
pub fn leave() {
    let fd = SHOWN_ON.swap(NONE, Ordering::SeqCst);
    if fd == NONE {
        return;
    }
    write(fd, LEAVE);
    // SAFETY: `enter` wrote the mode before it stored the descriptor, and only the caller that takes the descriptor out
    // gets here.
    unsafe {
        let before = (*MODE_BEFORE.0.get()).assume_init_ref();
        libc::tcsetattr(fd, libc::TCSADRAIN, before);
    }
}

fn write(fd: RawFd, bytes: &[u8]) {
    // SAFETY: the call reads `bytes.len()` bytes of the slice. Errors are ignored, because a closed terminal needs no
    // output.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

/// Makes signals that end this process restore the terminal first. Must be called before the sampler installs its own
/// handlers, which end the watching; the sampler restores these handlers afterwards.
pub fn leave_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let handler = leave_and_end as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: sets a disposition; the handler only calls async-signal-safe functions.
        unsafe {
            // An ignored signal stays ignored.
            if libc::signal(signal, handler) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

extern "C" fn leave_and_end(signal: libc::c_int) {
    leave();
    // SAFETY: the calls take no pointers and are async-signal-safe.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::FromRawFd;

    use super::*;

    fn mode(terminal: &File) -> libc::termios {
        let mut mode = MaybeUninit::uninit();
        // SAFETY: tcgetattr writes the whole struct if it returns 0, which is asserted.
        unsafe {
            assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), mode.as_mut_ptr()), 0);
            mode.assume_init()
        }
    }

    #[test]
    fn a_terminal_is_given_back_as_it_was() {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: openpty writes two descriptors, which are new and have no other owner.
        let (mut master, slave) = unsafe {
            let none = std::ptr::null_mut();
            let made = libc::openpty(&mut master, &mut slave, none, none.cast(), none.cast());
            assert_eq!(made, 0);
            (File::from_raw_fd(master), File::from_raw_fd(slave))
        };
        let before = mode(&slave);
        enter(&slave).expect("a terminal");
        let during = mode(&slave);
        assert_eq!(during.c_lflag & (libc::ICANON | libc::ECHO), 0);
        assert_ne!(during.c_lflag & libc::ISIG, 0, "Ctrl-C is a signal");
        leave();
        let after = mode(&slave);
        assert_eq!(after.c_lflag, before.c_lflag);
        assert_eq!(after.c_iflag, before.c_iflag);
        assert_eq!(after.c_oflag, before.c_oflag);
        assert_eq!(after.c_cc, before.c_cc);
        // A second call writes nothing.
        leave();
        let mut written = vec![0; ENTER.len() + LEAVE.len()];
        master.read_exact(&mut written).expect("what was written");
        assert_eq!(written, [ENTER, LEAVE].concat());
    }
}
