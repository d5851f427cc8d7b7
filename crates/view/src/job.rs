//! A job: its report, and its ranks' recordings, which are opened on request.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use nearpage_http::Answer;
use serde_json::{Value, json};

use crate::answer::json_answer;
use crate::{Opened, Session, read_all};

/// The ranks of a job.
#[derive(Debug)]
pub struct JobRanks {
    name: String,
    report: Value,
    /// Folders of the ranks' recordings, in the report's order.
    folders: Vec<PathBuf>,
    /// Positions of opened ranks in the report, with the numbers of their recordings in the session.
    opened: Mutex<Vec<(usize, usize)>>,
}

impl JobRanks {
    /// Ranks of a job. `report`: output of `nearpage report --json` for the job; `folders`: the ranks' recordings in
    /// the report's order; `opened`: positions of the ranks whose recordings the session has, in order.
    pub fn new(name: String, report: Value, folders: Vec<PathBuf>, opened: &[usize]) -> Self {
        let opened = opened.iter().enumerate();
        Self {
            name,
            report,
            folders,
            opened: Mutex::new(
                opened
                    .map(|(number, &position)| (position, number))
                    .collect(),
            ),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Answers with the report, and the ranks whose recordings are open.
    pub(crate) fn answer(&self) -> Answer {
        let opened = self.opened.lock().expect("nobody panics holding it");
        json_answer(&json!({ "report": self.report, "opened": *opened }))
    }

    /// Opens the recording of the rank at a position in the report, unless it is open.
    pub(crate) fn open(&self, position: usize, session: &Session) -> Result<Answer, Answer> {
        let folder = self
            .folders
            .get(position)
            .ok_or_else(|| Answer::error(404, "no such rank"))?;
        // The lock is held during opening, so that a second request waits and gets the same recording.
        let mut opened = self.opened.lock().expect("nobody panics holding it");
        let known = opened.iter().find(|(of, _)| *of == position);
        let number = match known {
            Some((_, number)) => *number,
            None => {
                let recording =
                    Opened::new(folder).map_err(|error| Answer::error(500, error.to_string()))?;
                let number = session.add(recording);
                opened.push((position, number));
                let recording = session.recordings().swap_remove(number);
                let missing = session.missing.clone();
                thread::spawn(move || read_all(&recording, &missing));
                number
            }
        };
        Ok(json_answer(&json!({ "recording": number })))
    }
}
