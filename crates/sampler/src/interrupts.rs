//! SIGINT, SIGTERM and SIGHUP while recording: they end the recording, not the recorder.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

// Signal handlers have no other state than statics.
static COUNT: AtomicU32 = AtomicU32::new(0);
static TO_FORWARD: AtomicI32 = AtomicI32::new(0);

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals are taken as long as this lives; afterwards they do what they did before.
#[derive(Debug)]
pub(crate) struct Interrupts {
    previous: [libc::sigaction; 3],
}

impl Interrupts {
    pub fn take() -> Self {
        COUNT.store(0, Ordering::Relaxed);
        TO_FORWARD.store(0, Ordering::Relaxed);
        // SAFETY: zero is a valid sigaction; the handler only touches atomics and lives as long as
        // the program.
        let previous = SIGNALS.map(|signal| unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let mut previous: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &action, &mut previous);
            // Under nohup(1) a hangup is nobody's; the others are sent by who means it.
            if signal == libc::SIGHUP && previous.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &previous, std::ptr::null_mut());
            }
            previous
        });
        Self { previous }
    }

    /// Those of them that were ignored before: a command that is started now is to ignore them too, as a script
    /// has what runs in its background do. What has a handler would be reset when it is executed.
    pub fn ignored_before(&self) -> impl Iterator<Item = libc::c_int> {
        let all = SIGNALS.iter().zip(&self.previous);
        all.filter(|(_, previous)| previous.sa_sigaction == libc::SIG_IGN)
            .map(|(signal, _)| *signal)
    }

    /// How many came so far.
    pub fn count(&self) -> u32 {
        COUNT.load(Ordering::Relaxed)
    }

    /// A signal that was sent to this process alone and that the command should get as well. One
    /// that came from the terminal went to both.
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
            // SAFETY: restores what `take` found.
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
