//! A lock for a hundred nanoseconds: it spins, and soon lets others run.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

/// The lock. It guards what its owner says; atomics are all that is ever behind it.
#[derive(Default)]
pub struct Lock(AtomicBool);

/// Holds the lock until it is dropped.
pub struct Held<'a>(&'a AtomicBool);

impl Lock {
    /// Takes the lock.
    #[inline]
    pub fn hold(&self) -> Held<'_> {
        hold(&self.0)
    }
}

/// Takes the lock that `flag` is.
#[inline]
pub fn hold(flag: &AtomicBool) -> Held<'_> {
    if flag.swap(true, Ordering::Acquire) {
        wait(flag);
    }
    Held(flag)
}

#[cold]
fn wait(flag: &AtomicBool) {
    loop {
        // Whoever holds it may have lost its host core.
        for _ in 0..100 {
            if !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Acquire) {
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
        self.0.store(false, Ordering::Release);
    }
}
