//! A lock that is held for some hundred nanoseconds, in bit 0 of a word whose other bits it guards. A waiting thread spins,
//! and soon yields its host core.

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
        // The holder may have lost its host core.
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

/// Releases the lock and stores the word's new value. Other threads change only bit 0 meanwhile.
#[inline]
pub fn release(word: &AtomicU64, value: u64) {
    word.store(value & !1, Ordering::Release);
}
