//! Finds the thread that lets a reader of a pipe go on: a writer, or a thread that closes the pipe, in any process.
//!
//! The processes of a program share a table, in a file beside their traces, with the latest signal of each pipe. A writer enters
//! its signal before its call, and the reader looks it up after the read, so the signal certainly came first. The signal
//! may belong to a later write than the one that brought the bytes: a writer may be ahead by as much as the pipe holds.

use std::fs::{File, OpenOptions, read_dir};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nearpage_wire::trace::{PIPE_SIGNAL, SIGNALS_FILE};

use crate::system;

/// Pipes in one set, and number of sets. If more pipes are in use, the one longest without a signal is forgotten.
const WAYS: usize = 8;
const SETS: usize = 512;
/// Words of a pipe: its number, and its latest signal.
const WORDS: usize = 2;
/// Words before the pipes: the number of signals so far.
const HEAD: usize = 1;

/// A pipe, by its number, which is the same in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe(u64);

/// The table. Without its file, no reader waits for a writer.
pub struct Pipes(Option<&'static [AtomicU64]>);

impl Pipes {
    /// Opens the table in this folder, and makes it if it does not exist.
    pub fn open(folder: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join(SIGNALS_FILE));
        let words = |file| system::shared_words(&file, HEAD + SETS * WAYS * WORDS);
        Self(file.ok().and_then(words))
    }

    fn set(&self, pipe: Pipe) -> Option<&'static [AtomicU64]> {
        let words = WAYS * WORDS;
        // Pipes have consecutive numbers, so these spread over the sets.
        let first = HEAD + (pipe.0 % SETS as u64) as usize * words;
        self.0?.get(first..first + words)
    }

    /// Enters a signal for these pipes; returns its number.
    pub fn signal(&self, pipes: &[Pipe]) -> Option<u64> {
        let signals = self.0?.first()?;
        let sequence = PIPE_SIGNAL + signals.fetch_add(1, Relaxed) + 1;
        for pipe in pipes {
            let set = self.set(*pipe)?;
            let place = |number: u64| {
                let mut ways = set.chunks_exact(WORDS);
                ways.position(|way| way[0].load(Relaxed) == number)
            };
            let oldest = || {
                let ways = set.chunks_exact(WORDS).enumerate();
                let (way, _) = ways.min_by_key(|(_, way)| way[1].load(Relaxed))?;
                Some(way)
            };
            let way = place(pipe.0).or_else(|| place(0)).or_else(oldest)?;
            let way = set.chunks_exact(WORDS).nth(way)?;
            // Another process may do the same now: a reader finds one signal or the other, both of which were given.
            way[0].store(pipe.0, Relaxed);
            way[1].fetch_max(sequence, Relaxed);
        }
        Some(sequence)
    }

    /// The latest signal for a pipe.
    pub fn latest(&self, pipe: Pipe) -> Option<u64> {
        let mut ways = self.set(pipe)?.chunks_exact(WORDS);
        let way = ways.find(|way| way[0].load(Relaxed) == pipe.0)?;
        Some(way[1].load(Relaxed)).filter(|sequence| *sequence != 0)
    }
}

/// The pipe behind a descriptor of the program.
pub fn pipe(descriptor: u64) -> Option<Pipe> {
    let descriptor = i32::try_from(descriptor).ok().filter(|it| *it >= 0)?;
    // SAFETY: it is asked what it is, and not closed; that of a closed one fails.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let metadata = file.metadata().ok()?;
    let number = metadata.ino() ^ metadata.dev() << 40;
    (metadata.file_type().is_fifo() && number != 0).then_some(Pipe(number))
}

/// The pipe that a descriptor of the program writes to.
pub fn written(descriptor: u64) -> Option<Pipe> {
    pipe(descriptor).filter(|_| system::may_write(descriptor as i32))
}

/// All pipes that the process may write to.
pub fn all_written() -> Vec<Pipe> {
    let descriptors = read_dir("/proc/thread-self/fd")
        .into_iter()
        .flatten()
        .flatten();
    descriptors
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(written)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn processes_find_the_latest_signal_of_each_others_pipes() {
        let folder = std::env::temp_dir().join(format!("nearpage-pipes-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        let (ours, theirs) = (Pipes::open(&folder), Pipes::open(&folder));
        let pipes = [5, 6].map(Pipe);
        assert_eq!(ours.latest(pipes[0]), None);
        assert_eq!(ours.signal(&pipes), Some(PIPE_SIGNAL + 1));
        assert_eq!(theirs.signal(&pipes[1..]), Some(PIPE_SIGNAL + 2));
        assert_eq!(theirs.latest(pipes[0]), Some(PIPE_SIGNAL + 1));
        assert_eq!(ours.latest(pipes[1]), Some(PIPE_SIGNAL + 2));
        // More than there is room for: the oldest goes.
        for number in 1..WAYS as u64 + 1 {
            assert!(ours.signal(&[Pipe(5 + number * SETS as u64)]).is_some());
        }
        assert_eq!(ours.latest(pipes[0]), None);
        assert_eq!(ours.latest(pipes[1]), Some(PIPE_SIGNAL + 2));
        let last = Pipe(5 + (WAYS * SETS) as u64);
        assert_eq!(
            ours.latest(last),
            Some(PIPE_SIGNAL + 2 + WAYS as u64),
            "it took the place"
        );
        fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(Pipes::open(&folder).signal(&pipes), None, "no folder");
    }

    #[test]
    fn a_pipe_is_known_by_both_its_ends() {
        let (reads, writes) = std::io::pipe().expect("two descriptors");
        let number = |descriptor: &dyn AsRawFd| descriptor.as_raw_fd() as u64;
        let of = pipe(number(&reads));
        assert!(of.is_some() && of == pipe(number(&writes)));
        assert_eq!(written(number(&reads)), None);
        assert_eq!(written(number(&writes)), of);
        assert!(all_written().contains(&of.expect("a pipe")));
        let file = File::open("/proc/thread-self/exe").expect("our own");
        assert_eq!(pipe(number(&file)), None);
        assert_eq!(pipe(u64::from(u32::MAX)), None);
    }
}
