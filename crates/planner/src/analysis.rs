//! A recording on disk, read and attributed.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpage_amount::counted;
use nearpage_attribution::{
    AccessChunks, Attribution, Input, Operations, Options, ReadError, attribute,
};
use nearpage_recording::{AccessBatch, Recording};

use crate::error::Error;

/// A recording and its attribution.
pub struct Analysis {
    /// The recording.
    pub recording: Recording,
    /// Accesses of each thread to each object and page.
    pub attribution: Attribution,
    /// Notes for readers: the recording is incomplete, damaged, or only partly counted.
    pub notes: Vec<String>,
}

impl Analysis {
    /// Opens and attributes a recording.
    ///
    /// # Errors
    /// The folder is no recording, or cannot be read.
    pub fn of(folder: &Path, operations: Operations) -> Result<Self, Error> {
        Self::watched(folder, operations, &|_, _| ())
    }

    /// Opens and attributes a recording; `watch` gets the numbers of chunks of accesses that have been read and of all.
    ///
    /// # Errors
    /// The folder is no recording, or cannot be read.
    pub fn watched(
        folder: &Path,
        operations: Operations,
        watch: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self, Error> {
        let recording = Recording::open(folder)?;
        let options = Options {
            page_bytes: recording.machine.page_bytes,
            operations,
            ..Options::default()
        };
        let accesses = CountedAccesses {
            recording: &recording,
            read: AtomicU64::new(0),
            watch,
        };
        let input = Input::new(&recording).through(&accesses);
        let attribution = attribute(&input, &options)?;
        Ok(Self {
            notes: notes(&recording),
            recording,
            attribution,
        })
    }
}

/// Accesses of a recording, whose chunks are counted as they are read.
struct CountedAccesses<'a> {
    recording: &'a Recording,
    read: AtomicU64,
    watch: &'a (dyn Fn(u64, u64) + Sync),
}

impl AccessChunks for CountedAccesses<'_> {
    fn chunks(&self) -> usize {
        self.recording.chunks()
    }

    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
        let mut read = self.recording.reader();
        move |chunk, batch| {
            read(chunk, batch)?;
            let done = self.read.fetch_add(1, Ordering::Relaxed) + 1;
            (self.watch)(done, self.chunks() as u64);
            Ok(())
        }
    }
}

fn notes(recording: &Recording) -> Vec<String> {
    let folder = recording.folder.display();
    let mut notes = Vec::new();
    if !recording.is_complete() {
        notes.push(format!(
            "{folder}: the recording is incomplete (its recorder was killed, ran out of disk, or is still running); this \
             is what there is"
        ));
    }
    if recording.metadata.damaged_blocks > 0 {
        notes.push(format!(
            "{folder}: {} of its log left out",
            counted(recording.metadata.damaged_blocks, "damaged block")
        ));
    }
    if !recording.metadata.marks.is_empty() {
        notes.push(format!(
            "{folder}: only the stable phase that the program marked counts"
        ));
    }
    notes
}
