//! Handles SIGINT, SIGTERM and SIGHUP while recording: they end the recording, not the recorder.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

// A signal handler can only use static state.
static COUNT: AtomicU32 = AtomicU32::new(0);
static TO_FORWARD: AtomicI32 = AtomicI32::new(0);

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Handles the signals while it lives, and restores their previous actions when it is dropped.
#[derive(Debug)]
pub(crate) struct Interrupts {
    previous: [libc::sigaction; 3],
}

impl Interrupts {
    pub fn take() -> Self {
        COUNT.store(0, Ordering::Relaxed);
        TO_FORWARD.store(0, Ordering::Relaxed);
        // SAFETY: zero is a valid sigaction. The handler only touches atomics, and lives as long as the program.
        let previous = SIGNALS.map(|signal| unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let mut previous: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &action, &mut previous);
            // Under nohup(1), SIGHUP stays ignored. The other signals are sent on purpose, so they are handled even if
            // ignored.
            if signal == libc::SIGHUP && previous.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &previous, std::ptr::null_mut());
            }
            previous
        });
        Self { previous }
    }

    /// The signals that were ignored before. A command started now must ignore them, too, as background commands of
    /// scripts do. Without this, exec would reset the signals that have a handler here to their default actions.
    pub fn ignored_before(&self) -> impl Iterator<Item = libc::c_int> {
        let all = SIGNALS.iter().zip(&self.previous);
        all.filter(|(_, previous)| previous.sa_sigaction == libc::SIG_IGN)
            .map(|(signal, _)| *signal)
    }

    /// Number of signals so far.
    pub fn count(&self) -> u32 {
        COUNT.load(Ordering::Relaxed)
    }

    /// A signal that was sent to this process alone, to be forwarded to the command. Signals from the terminal reach
    /// both.
    pub fn to_forward(&self) -> Option<libc::c_int> {
        match TO_FORWARD.swap(0, Ordering::Relaxed) {
            0 => None,
            signal => Some(signal),
        }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for (signal, previous) in SIGNALS.iter().zip(&self.previous) {
            // SAFETY: restores the action that `take` replaced.
            unsafe { libc::sigaction(*signal, previous, std::ptr::null_mut()) };
        }
    }
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes a valid siginfo to handlers installed with SA_SIGINFO.
    let sent_by_process = unsafe { (*info).si_code } <= 0;
    if sent_by_process {
        TO_FORWARD.store(signal, Ordering::Relaxed);
    }
}
