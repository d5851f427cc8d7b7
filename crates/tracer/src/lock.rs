//! A lock for a hundred nanoseconds: it spins, and soon lets others run.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;

/// The lock. It guards what its owner says; atomics are all that is ever behind it.
#[derive(Default)]
pub struct Lock(AtomicU64);

/// Holds the lock until it is dropped.
pub struct Held<'a>(&'a AtomicU64);

impl Lock {
    /// Takes the lock.
    #[inline]
    pub fn hold(&self) -> Held<'_> {
        hold(&self.0)
    }
}

/// Takes the lock that `flag` is.
#[inline]
pub fn hold(flag: &AtomicU64) -> Held<'_> {
    if flag.swap(1, Ordering::Acquire) != 0 {
        wait(flag);
    }
    Held(flag)
}

#[cold]
fn wait(flag: &AtomicU64) {
    loop {
        // Whoever holds it may have lost its host core.
        for _ in 0..100 {
            if flag.load(Ordering::Relaxed) == 0 && flag.swap(1, Ordering::Acquire) == 0 {
                return;
            }
            spin_loop();
        }
        yield_now();
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
