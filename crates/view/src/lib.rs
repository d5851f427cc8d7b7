//! The page that shows recordings, plans, simulations and a running daemon: served on the local machine, or saved in
//! one file.
//!
//! The browser holds pictures, never accesses. Accesses are binned here, from [`Store`](store::Store) (every access, by
//! time and place) or, for windows with too many accesses, from [`Pyramid`](pyramid::Pyramid) (sums). Attribution
//! identifies objects, threads and pages, and the planner predicts plans; this crate decides nothing. `web/` contains
//! the page, which is embedded when this crate is built with its feature `page`.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use nearpage_view::{Listening, Session};
//!
//! let paths = [Path::new("cg.nearpage")];
//! let listening = Listening::new(0, &paths)?;
//! let session = Arc::new(Session::new(&paths)?);
//! println!("{}", listening.address());
//! let background = session.clone();
//! std::thread::spawn(move || background.read_all());
//! listening.serve(session, || ())?;
//! # Ok::<(), nearpage_view::Error>(())
//! ```

mod access;
mod answer;
mod cache;
mod code;
mod costs;
mod error;
mod flame;
#[cfg(all(test, has_page))]
mod format;
mod functions;
mod job;
mod live_log;
mod objects;
mod opened;
mod page;
pub mod picture;
mod plans;
pub mod point;
pub mod pyramid;
mod server;
mod shared_lines;
mod space;
mod standalone;
pub mod store;
mod summary;
mod timeline;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::Plan;
use nearpage_planner::Parameters;
use serde_json::Value;

pub use answer::Question;
pub use error::Error;
pub use job::JobRanks;
pub use live_log::LiveLog;
pub use nearpage_http::Answer;
pub use opened::{Opened, Stage};

pub use server::Listening;

/// Everything that the page shows.
#[derive(Debug)]
pub struct Session {
    /// Recordings, in the order in which they were named, followed by recordings of ranks that were opened on request.
    recordings: RwLock<Vec<Arc<Opened>>>,
    /// The job whose ranks the recordings belong to.
    pub job: Option<JobRanks>,
    /// Simulations: file and content.
    pub simulations: Vec<(String, Value)>,
    /// Sweeps: file, and the output of `nearpage sweep report --json`.
    pub sweeps: Vec<(String, Value)>,
    /// Logs of `nearpage live`.
    pub logs: Vec<LiveLog>,
    /// Machine to plan for; `None`: the recording's own.
    pub target: Option<Machine>,
    /// Plan to show, and its file; `None`: a plan in the recording's folder, or a new plan.
    pub plan: Option<(PathBuf, Plan)>,
    /// Assumed thread layout; `None`: the default of [`Planner`](nearpage_planner::Planner).
    pub threads: Option<ThreadPlacement>,
    /// Parameters of decisions.
    pub parameters: Parameters,
    /// Folders with source files; empty: files are read at the paths in the debug information.
    pub source_folders: Vec<PathBuf>,
    /// Errors after opening, for the user.
    pub missing: Arc<Mutex<Vec<String>>>,
}

/// Page of one simulation, in one file. `name`: its title; `json`: output of `nearpage simulate --json`.
///
/// # Errors
/// [`Error::Simulation`], [`Error::NoPage`].
pub fn simulation_page(name: &str, json: &str) -> Result<String, Error> {
    let mut session = Session::new(&[])?;
    let simulation = checked_simulation(name, json)?;
    session.simulations.push((name.to_owned(), simulation));
    session.standalone()
}

/// Page of a sweep, in one file. `name`: its title; `report`: output of `nearpage sweep report --json`.
///
/// # Errors
/// [`Error::NoPage`].
pub fn sweep_page(name: &str, report: Value) -> Result<String, Error> {
    let mut session = Session::new(&[])?;
    session.sweeps.push((name.to_owned(), report));
    session.standalone()
}

impl Session {
    /// Opens recordings (folders), simulations (files of `nearpage simulate --json`) and logs (of
    /// `nearpage live --log`).
    ///
    /// # Errors
    /// [`Error::Recording`], [`Error::Attribution`], [`Error::Simulation`], [`Error::Log`].
    pub fn new(paths: &[&Path]) -> Result<Self, Error> {
        let mut session = Self {
            recordings: RwLock::default(),
            job: None,
            simulations: Vec::new(),
            sweeps: Vec::new(),
            logs: Vec::new(),
            target: None,
            plan: None,
            threads: None,
            parameters: Parameters::default(),
            source_folders: Vec::new(),
            missing: Arc::default(),
        };
        for path in paths {
            if live_log::is_log(path) {
                session.logs.push(LiveLog::open(path)?);
            } else if path.is_file() {
                let simulation = simulation(path)?;
                session
                    .simulations
                    .push((path.display().to_string(), simulation));
            } else {
                session.add(Opened::new(path)?);
            }
        }
        Ok(session)
    }

    /// The recordings, in the order of their numbers.
    pub fn recordings(&self) -> Vec<Arc<Opened>> {
        self.recordings
            .read()
            .expect("nobody panics holding it")
            .clone()
    }

    /// Adds a recording, and returns its number.
    fn add(&self, opened: Opened) -> usize {
        let mut recordings = self.recordings.write().expect("nobody panics holding it");
        recordings.push(Arc::new(opened));
        recordings.len() - 1
    }

    /// Number of read chunks of all recordings, and number of all their chunks.
    pub fn chunks_read(&self) -> (u64, u64) {
        let recordings = self.recordings();
        let parts = recordings.iter().map(|opened| opened.progress());
        parts.fold((0, 0), |(read, all), (more, of)| {
            (read + more as u64, all + of as u64)
        })
    }

    /// Reads the accesses of which [`Session::new`] has read a sample. The page shows errors.
    pub fn read_all(&self) {
        for opened in self.recordings() {
            read_all(&opened, &self.missing);
        }
    }
}

/// Reads the accesses of which opening has read a sample; an error goes to `missing`.
fn read_all(opened: &Opened, missing: &Mutex<Vec<String>>) {
    if let Err(error) = opened.read_all() {
        let folder = opened.recording.folder.display();
        let mut missing = missing.lock().expect("nobody panics holding it");
        missing.push(format!("{folder}: only a sample is shown: {error}"));
    }
}

fn simulation(path: &Path) -> Result<Value, Error> {
    let file = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => checked_simulation(&file, &text),
        Err(error) => Err(Error::Simulation {
            file,
            what: error.to_string(),
        }),
    }
}

fn checked_simulation(file: &str, text: &str) -> Result<Value, Error> {
    let refuse = |what: String| Error::Simulation {
        file: file.to_owned(),
        what,
    };
    let value: Value = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    // Results of early versions have no version number, but the same keys.
    let version = value.get("version");
    if version.is_some_and(|version| *version != nearpage_recording::JSON_VERSION) {
        return Err(refuse(
            "a newer nearpage made it: view it with that version, or simulate again".to_owned(),
        ));
    }
    match value.get("results") {
        Some(Value::Array(_)) => Ok(value),
        _ => Err(refuse("it has no list of results".to_owned())),
    }
}
