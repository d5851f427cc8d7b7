//! A recording on disk, read and attributed.

use std::path::Path;

use nearpage_attribution::{Attribution, Operations, Options, attribute};
use nearpage_machine::several;
use nearpage_recording::Recording;

use crate::error::Error;

/// A recording and what was found in it.
pub struct Analysis {
    /// The recording.
    pub recording: Recording,
    /// What each thread did to each object and page.
    pub attribution: Attribution,
    /// What its reader has to know: it is incomplete, damaged, or only partly counted.
    pub notes: Vec<String>,
}

impl Analysis {
    /// Opens and attributes a recording.
    ///
    /// # Errors
    /// What is no recording, or cannot be read.
    pub fn of(folder: &Path, operations: Operations) -> Result<Self, Error> {
        let recording = Recording::open(folder)?;
        let options = Options {
            page_bytes: recording.machine.page_bytes,
            operations,
            ..Options::default()
        };
        let attribution = attribute(&nearpage_attribution::Input::new(&recording), &options)?;
        Ok(Self {
            notes: notes(&recording),
            recording,
            attribution,
        })
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
            several(recording.metadata.damaged_blocks, "damaged block")
        ));
    }
    if !recording.metadata.marks.is_empty() {
        notes.push(format!(
            "{folder}: only the stable phase that the program marked counts"
        ));
    }
    notes
}
