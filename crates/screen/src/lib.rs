//! What a terminal shows of running programs: processes, their objects, pages and decisions about them, redrawn after
//! every interval and at every key.
//!
//! ```text
//! Report (daemon) ─► Model ─► draw ─► terminal
//!                      keys ─► View ──┘
//! ```
//!
//! The daemon's thread hands reports over and goes on. A thread of the screen's own draws and takes keys, so that neither
//! waits for the other: a terminal that is held (Ctrl-S) holds nothing else. Whatever ends the screen gives the terminal
//! back as it was ([`leave`]).

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

/// Keys are waited for so long before the model is looked at again.
const PATIENCE: Duration = Duration::from_millis(100);
/// What a command prints is looked at so often.
const OUTPUT_AGAIN: Duration = Duration::from_millis(500);
/// Lines of the command's output that are kept for the screen.
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

/// A screen that is shown.
pub struct Screen {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    memory: Option<MemoryWatch>,
    /// Open for as long as it may have to be given back.
    _terminal: File,
}

/// The command that a screen was shown for.
pub struct Command {
    /// What it prints; `None`: that goes where the screen does not see it.
    pub output: Option<File>,
}

impl Screen {
    /// Takes the terminal. `command`: one was started, and ends with the watching.
    ///
    /// # Errors
    /// What is no terminal, and threads that cannot be started.
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
                // A terminal that is gone ends the screen, and nothing else.
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

    /// An interval is over.
    pub fn interval(&self, report: &Report) {
        let mut model = self.shared.model();
        model.take(report);
        if let Some(memory) = &self.memory {
            model.look_up_memory(memory);
        }
    }

    /// Gives the terminal back, and says what all intervals came to.
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

/// Draws and takes keys until it is over.
fn show(shared: &Shared, mut view: View, terminal: File, output: Option<&File>) -> io::Result<()> {
    let writer = BufWriter::with_capacity(1 << 16, terminal);
    let mut terminal = Terminal::new(CrosstermBackend::new(writer))?;
    let mut drawn = None;
    let mut lines: Option<Vec<String>> = output.map(|_| Vec::new());
    let mut output_due = Instant::now();
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut is_due = match event::poll(PATIENCE) {
            Ok(_) => take_events(shared, &mut view),
            Err(_) => {
                // Nothing to read keys from.
                std::thread::sleep(PATIENCE);
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
            // Copied, so that a slow terminal keeps nobody from the original.
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

/// Takes all keys that have come; says whether to draw again.
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
                // As Ctrl-C does; the sampler passes it on to a command.
                // SAFETY: no pointers.
                unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
            }
        }
    }
    is_due
}
