//! A line on standard error for what takes longer than two seconds, where people are watching.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use nearpage_report::printable;

const PATIENCE: Duration = Duration::from_secs(2);

/// Says what is going on, and for how long, until it is dropped.
pub struct Progress {
    doing: Arc<Mutex<String>>,
    end: Option<Sender<()>>,
    line: Option<JoinHandle<()>>,
}

impl Progress {
    /// `doing` is what follows "nearpage: ": "reading r.nearpage".
    pub fn new(doing: String) -> Self {
        let doing = Arc::new(Mutex::new(doing));
        if !std::io::stderr().is_terminal() {
            return Self {
                doing,
                end: None,
                line: None,
            };
        }
        let (end, ended) = channel();
        let current = doing.clone();
        let line = spawn(move || {
            let started = Instant::now();
            let mut wait = PATIENCE;
            let mut shown = false;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
                let doing = printable(&current.lock().expect("nobody panics holding it"));
                let seconds = started.elapsed().as_secs();
                let _ = write!(stderr(), "\r\x1b[Knearpage: {doing}, {seconds} s");
                shown = true;
                wait = Duration::from_secs(1);
            }
            if shown {
                let _ = write!(stderr(), "\r\x1b[K");
            }
        });
        Self {
            doing,
            end: Some(end),
            line: Some(line),
        }
    }

    /// What is going on now.
    pub fn say(&self, doing: String) {
        *self.doing.lock().expect("nobody panics holding it") = doing;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(line) = self.line.take() {
            let _ = line.join();
        }
    }
}
