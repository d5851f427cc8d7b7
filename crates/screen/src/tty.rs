//! The terminal's mode: keys come one by one while the screen is shown, and whatever ends the screen gives the terminal
//! back as it was: the end of the watching, a signal, a panic.

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The alternate screen, cleared, without a cursor (xterm's control sequences).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[2J\x1b[?25l";
/// Attributes reset, the cursor shown, what was there before.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// No screen is shown.
const NONE: RawFd = -1;
/// Descriptor of the terminal that a screen is shown on. Signal handlers have no other state than statics.
static SHOWN_ON: AtomicI32 = AtomicI32::new(NONE);

struct Mode(UnsafeCell<MaybeUninit<libc::termios>>);
// SAFETY: written by `enter` before `SHOWN_ON` says so, and read by whoever has taken that away.
unsafe impl Sync for Mode {}
static MODE_BEFORE: Mode = Mode(UnsafeCell::new(MaybeUninit::uninit()));

/// Can a screen be shown there? A terminal that has this process in its foreground: in the background, to change its
/// mode would stop the process.
pub fn is_ours(terminal: &impl AsRawFd) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() }
}

/// Shows an empty screen. Ctrl-C still sends SIGINT, to the command as well; keys that stop or dump a process do not.
///
/// # Errors
/// What is no terminal.
pub fn enter(terminal: &File) -> io::Result<()> {
    let fd = terminal.as_raw_fd();
    let mut mode = MaybeUninit::uninit();
    // SAFETY: writes the mode, or says that it did not.
    let before = unsafe {
        if libc::tcgetattr(fd, mode.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        mode.assume_init()
    };
    let mut raw = before;
    // SAFETY: changes the struct that it is given.
    unsafe { libc::cfmakeraw(&mut raw) };
    raw.c_lflag |= libc::ISIG;
    // `_POSIX_VDISABLE` of Linux.
    raw.c_cc[libc::VSUSP] = 0;
    raw.c_cc[libc::VQUIT] = 0;
    // SAFETY: nobody reads it before `SHOWN_ON` has a terminal; there is one screen at a time.
    unsafe { MODE_BEFORE.0.get().write(MaybeUninit::new(before)) };
    SHOWN_ON.store(fd, Ordering::SeqCst);
    // SAFETY: reads the mode.
    if unsafe { libc::tcsetattr(fd, libc::TCSADRAIN, &raw) } != 0 {
        let error = io::Error::last_os_error();
        SHOWN_ON.store(NONE, Ordering::SeqCst);
        return Err(error);
    }
    write(fd, ENTER);
    Ok(())
}

/// Gives the terminal back as it was, if a screen is shown. May be called at any time, by any thread, by a signal handler.
pub fn leave() {
    let fd = SHOWN_ON.swap(NONE, Ordering::SeqCst);
    if fd == NONE {
        return;
    }
    write(fd, LEAVE);
    // SAFETY: `enter` wrote the mode before it named the terminal, which was taken away from everyone else above.
    unsafe {
        let before = (*MODE_BEFORE.0.get()).assume_init_ref();
        libc::tcsetattr(fd, libc::TCSADRAIN, before);
    }
}

fn write(fd: RawFd, bytes: &[u8]) {
    // SAFETY: reads as many bytes as there are. A terminal that is gone needs none.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

/// Signals that end this process give the terminal back first. To be called before the sampler has handlers of its own,
/// which end the watching: afterwards these are back.
pub fn leave_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let handler = leave_and_end as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: sets a disposition; the handler calls what signal handlers may.
        unsafe {
            // What was ignored stays so.
            if libc::signal(signal, handler) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

extern "C" fn leave_and_end(signal: libc::c_int) {
    leave();
    // SAFETY: no pointers; both may be called here.
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
        // SAFETY: writes the mode, or says that it did not.
        unsafe {
            assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), mode.as_mut_ptr()), 0);
            mode.assume_init()
        }
    }

    #[test]
    fn a_terminal_is_given_back_as_it_was() {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: writes two descriptors, which are ours.
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
        // Once is enough.
        leave();
        let mut written = vec![0; ENTER.len() + LEAVE.len()];
        master.read_exact(&mut written).expect("what was written");
        assert_eq!(written, [ENTER, LEAVE].concat());
    }
}
