//! A line on standard error for what takes longer than two seconds, where people are watching.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);

/// Says what is going on, and for how long, until it is dropped.
pub struct Progress {
    end: Option<Sender<()>>,
    line: Option<JoinHandle<()>>,
}

impl Progress {
    /// `doing` is what follows "nearpage: ": "reading r.nearpage".
    pub fn new(doing: String) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self {
                end: None,
                line: None,
            };
        }
        let (end, ended) = channel();
        let line = spawn(move || {
            let started = Instant::now();
            let mut wait = PATIENCE;
            let mut shown = false;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
                eprint!(
                    "\r\x1b[Knearpage: {doing}, {} s",
                    started.elapsed().as_secs()
                );
                let _ = std::io::stderr().flush();
                shown = true;
                wait = Duration::from_secs(1);
            }
            if shown {
                eprint!("\r\x1b[K");
            }
        });
        Self {
            end: Some(end),
            line: Some(line),
        }
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
