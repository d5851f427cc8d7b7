//! The log of `serial 1`: all references to caches and TLBs, in their order. Tests compute the counters from it with other
//! code.
//!
//! `serial-PID-START.log` has entries of 24 bytes, little-endian: `u8` kind ([`Step`]), `u8` 0, `u16` CPU position, `u32`
//! thread, `u64` address, `u64` instruction. A Flush has its first page, and the page after its last, instead of these two.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// A load.
    Load = 0,
    /// A store.
    Store = 1,
    /// A fetch of a line.
    Fetch = 2,
    /// The CPU's TLBs lose these pages.
    Flush = 3,
}

/// The log, and the lock that puts references in order.
pub struct SerialLog {
    turn: Mutex<()>,
    file: Mutex<BufWriter<File>>,
}

impl SerialLog {
    /// Makes the file.
    ///
    /// # Errors
    /// The folder can't be written to.
    pub fn create(folder: &Path, pid: u32, start_ns: u64) -> std::io::Result<Self> {
        let file = File::create(folder.join(format!("serial-{pid}-{start_ns}.log")))?;
        Ok(Self {
            turn: Mutex::new(()),
            file: Mutex::new(BufWriter::new(crate::system::out_of_the_way(file))),
        })
    }

    /// Locks the log, so that no other thread makes a reference meanwhile.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry. Errors are ignored: the test notices missing entries.
    pub fn add(&self, step: Step, cpu: usize, thread: u32, words: [u64; 2]) {
        let mut entry = [0; 24];
        let parts: [&[u8]; 6] = [
            &[step as u8],
            &[0],
            &(cpu as u16).to_le_bytes(),
            &thread.to_le_bytes(),
            &words[0].to_le_bytes(),
            &words[1].to_le_bytes(),
        ];
        let bytes = parts.into_iter().flatten();
        entry
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(&entry);
    }

    /// Writes what is still in memory.
    pub fn flush(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.flush();
    }
}
