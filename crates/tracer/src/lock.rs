//! A lock for a hundred nanoseconds, in bit 0 of a word whose other bits it guards: it spins, and
//! soon lets others run.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;

/// Takes the lock; returns the word.
#[inline]
pub fn take(word: &AtomicU64) -> u64 {
    if word.fetch_or(1, Ordering::Acquire) & 1 != 0 {
        wait(word);
    }
    word.load(Ordering::Relaxed)
}

#[cold]
fn wait(word: &AtomicU64) {
    loop {
        // Whoever holds it may have lost its host core.
        for _ in 0..100 {
            let free = word.load(Ordering::Relaxed) & 1 == 0;
            if free && word.fetch_or(1, Ordering::Acquire) & 1 == 0 {
                return;
            }
            spin_loop();
        }
        yield_now();
    }
}

/// Gives it back, with the word as it shall be: nobody else changes more of it than the lock.
#[inline]
pub fn release(word: &AtomicU64, value: u64) {
    word.store(value & !1, Ordering::Release);
}
