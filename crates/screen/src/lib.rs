//! A terminal screen about running programs: processes, their objects and pages, and decisions. The screen is redrawn
//! after every interval and every key.
//!
//! ```text
//! Report (daemon) ─► Model ─► draw ─► terminal
//!                      keys ─► View ──┘
//! ```
//!
//! The daemon's thread passes reports on without waiting. A separate thread draws and takes keys, so a stopped terminal
//! (Ctrl-S) stops nothing else. When the screen ends for any reason, the terminal is restored ([`leave`]).

mod draw;
mod listing;
mod model;
mod objects;
mod output;
mod summary;
mod tty;
mod view;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};
use nearpage_live::{MemoryWatch, Report};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};

pub use listing::table;
pub use model::{Kind, Model, Process, Subject, Sums};
pub use tty::{is_ours, leave, leave_on_signals};

use draw::{CommandOutput, draw};
use view::{KeyOutcome, Started, View};

/// How long the screen waits for keys before it checks the model.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Interval at which the command's output is checked.
const OUTPUT_AGAIN: Duration = Duration::from_millis(500);
/// Number of kept lines of the command's output.
const OUTPUT_LINES: usize = 500;

struct Shared {
    model: Mutex<Model>,
    is_over: AtomicBool,
}

impl Shared {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A screen on a terminal.
pub struct Screen {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    memory: Option<MemoryWatch>,
    /// Kept open until the terminal has been restored.
    _terminal: File,
}

/// The command that was started for the screen.
pub struct Command {
    /// Output of the command; `None`: the screen cannot read the output.
    pub output: Option<File>,
}

impl Screen {
    /// Takes the terminal. `command`: a command that was started, and ends with the screen.
    ///
    /// # Errors
    /// The file is no terminal, or a thread cannot be started.
    pub fn start(subject: Subject, terminal: File, command: Option<Command>) -> io::Result<Self> {
        let memory = match subject.kind {
            Kind::Top => Some(MemoryWatch::start(&subject.nodes)?),
            Kind::Live => None,
        };
        let started = match &command {
            None => Started::Nothing,
            Some(Command { output: None }) => Started::Command,
            Some(Command { output: Some(_) }) => Started::CommandWithOutput,
        };
        let output = command.and_then(|command| command.output);
        let view = View::new(subject.kind, started);
        let shared = Arc::new(Shared {
            model: Mutex::new(Model::new(subject)),
            is_over: AtomicBool::new(false),
        });
        let kept = terminal.try_clone()?;
        tty::enter(&kept)?;
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("screen".to_owned())
            .spawn(move || {
                // If the terminal disappears, only the screen ends.
                let _ = show(&of_thread, view, terminal, output.as_ref());
            });
        let thread = thread.inspect_err(|_| leave())?;
        Ok(Self {
            shared,
            thread: Some(thread),
            memory,
            _terminal: kept,
        })
    }

    /// Shows the report of an interval.
    pub fn interval(&self, report: &Report) {
        let mut model = self.shared.model();
        model.take(report);
        if let Some(memory) = &self.memory {
            model.look_up_memory(memory);
        }
    }

    /// Restores the terminal, and returns a summary of all intervals.
    pub fn finish(mut self) -> Vec<String> {
        self.end();
        summary::summary(&self.shared.model())
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        leave();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}

/// Draws and takes keys until the screen ends.
fn show(shared: &Shared, mut view: View, terminal: File, output: Option<&File>) -> io::Result<()> {
    let writer = BufWriter::with_capacity(1 << 16, terminal);
    let mut terminal = Terminal::new(CrosstermBackend::new(writer))?;
    let mut drawn = None;
    let mut lines: Option<Vec<String>> = output.map(|_| Vec::new());
    let mut output_due = Instant::now();
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut is_due = match event::poll(KEY_WAIT) {
            Ok(_) => take_events(shared, &mut view),
            Err(_) => {
                // Keys cannot be read.
                std::thread::sleep(KEY_WAIT);
                false
            }
        };
        if let Some(output) = output
            && Instant::now() >= output_due
        {
            let now = output::last_lines(output, OUTPUT_LINES).ok();
            is_due |= now != lines;
            lines = now;
            output_due = Instant::now() + OUTPUT_AGAIN;
        }
        let model = shared.model();
        if is_due || drawn != Some(model.intervals) {
            drawn = Some(model.intervals);
            // A copy, so that a slow terminal does not block the model.
            let copy = model.clone();
            drop(model);
            draw_all(&mut terminal, &copy, &mut view, lines.as_deref())?;
        }
    }
    Ok(())
}

fn draw_all<B: Backend>(
    terminal: &mut Terminal<B>,
    model: &Model,
    view: &mut View,
    output: Option<&[String]>,
) -> Result<(), B::Error> {
    terminal.draw(|frame| draw(frame, model, view, &CommandOutput { output }))?;
    Ok(())
}

/// Handles all waiting keys. Must the screen be redrawn?
fn take_events(shared: &Shared, view: &mut View) -> bool {
    let mut is_due = false;
    while let Ok(true) = event::poll(Duration::ZERO) {
        let Ok(event) = event::read() else {
            return is_due;
        };
        is_due = true;
        if let Event::Key(key) = event
            && key.kind != KeyEventKind::Release
        {
            let model = shared.model();
            if view.key(key, &model) == KeyOutcome::End {
                // The signal ends the watching as Ctrl-C does; the sampler passes it on to the command.
                // SAFETY: the call takes no pointers.
                unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
            }
        }
    }
    is_due
}
