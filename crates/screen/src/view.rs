//! The current place of the screen, and the effect of keys.

use std::path::Path;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use nearpage_report::mappings::{Mapping, mappings};

use crate::listing::{Listing, Order, decisions, objects_of, processes};
use crate::model::{Decision, Kind, Model};

/// A place that the screen can show.
#[derive(Clone, Debug)]
pub enum Place {
    /// All processes.
    Processes,
    /// Objects of a process.
    Process(u16),
    /// Pages of an object.
    Object {
        /// Process of the object.
        process: u16,
        /// Mapping of the object.
        mapping: Mapping,
    },
    /// Decisions about one process's pages, or about all pages.
    Decisions(Option<u16>),
    /// Details of a decision.
    Decision(Box<Decision>),
    /// Output of the command.
    Output,
}

/// A place with its selection and order.
#[derive(Clone, Debug)]
pub struct Level {
    pub place: Place,
    /// Order of the rows, and filter.
    pub order: Order,
    /// Key of the chosen row; `None`: always the first row.
    chosen: Option<u64>,
    /// Latest position of the chosen row.
    at: usize,
}

impl Level {
    fn new(place: Place) -> Self {
        Self {
            place,
            order: Order::default(),
            chosen: None,
            at: 0,
        }
    }

    /// Position of the chosen row.
    pub fn position(&self, listing: &Listing) -> usize {
        let position = self
            .chosen
            .and_then(|key| listing.rows.iter().position(|row| row.key == key));
        match (self.chosen, position) {
            (None, _) => 0,
            (_, Some(at)) => at,
            // If the chosen row has disappeared, the row at its last position is chosen.
            (_, None) => self.at.min(listing.rows.len().saturating_sub(1)),
        }
    }

    fn choose(&mut self, listing: &Listing, at: usize) {
        self.at = at.min(listing.rows.len().saturating_sub(1));
        self.chosen = match self.at {
            0 => None,
            at => Some(listing.rows[at].key),
        };
    }
}

/// Meaning of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Keys move in tables.
    #[default]
    Looking,
    /// Keys edit the filter.
    Filtering,
    /// The help is shown.
    Help,
    /// The screen asks whether to end the command as well.
    Ending,
}

/// Effect of a key beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// No effect.
    Nothing,
    /// End the watching, and a command that was started for it.
    End,
}

/// Command that was started for the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// No command: the targets ran already.
    Nothing,
    /// A command whose output goes elsewhere.
    Command,
    /// A command whose output is kept.
    CommandWithOutput,
}

/// State of the screen that keys change.
#[derive(Clone, Debug)]
pub struct View {
    /// Places on the way to the current place, which is the last.
    levels: Vec<Level>,
    /// Meaning of keys.
    pub mode: Mode,
    /// Model at the time when the screen was held.
    pub held: Option<Box<Model>>,
    /// Was a command started, which ends with the watching?
    pub has_command: bool,
    /// Is the command's output kept?
    pub has_output: bool,
    mappings_of: Option<(u16, u64, Vec<Mapping>)>,
}

/// Number of rows that Page Up and Page Down skip.
const PAGE: usize = 10;

impl View {
    /// The view of all processes.
    pub fn new(kind: Kind, started: Started) -> Self {
        let mut first = Level::new(Place::Processes);
        first.order.by = Some(match kind {
            Kind::Live => "SAMPLES".to_owned(),
            Kind::Top => "REMOTE".to_owned(),
        });
        Self {
            levels: vec![first],
            mode: Mode::default(),
            held: None,
            has_command: started != Started::Nothing,
            has_output: started == Started::CommandWithOutput,
            mappings_of: None,
        }
    }

    /// The current place.
    pub fn level(&self) -> &Level {
        self.levels.last().expect("the first is never left")
    }

    fn level_mut(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the first is never left")
    }

    /// Is there a place to go back to?
    pub fn is_inside(&self) -> bool {
        self.levels.len() > 1
    }

    /// Mappings of the current process, read once per interval.
    pub fn mappings(&mut self, model: &Model) -> Vec<Mapping> {
        let process = match self.level().place {
            Place::Process(process)
            | Place::Object { process, .. }
            | Place::Decisions(Some(process)) => process,
            _ => return Vec::new(),
        };
        if let Some((of, interval, mappings)) = &self.mappings_of
            && (*of, *interval) == (process, model.intervals)
        {
            return mappings.clone();
        }
        let known = model.processes.get(&process);
        let read = match known {
            Some(known) if !known.has_ended => mappings(Path::new("/proc"), known.pid),
            _ => Vec::new(),
        };
        // A process that has ended keeps its last known mappings.
        let read = match &mut self.mappings_of {
            Some((of, _, before)) if *of == process && read.is_empty() => std::mem::take(before),
            _ => read,
        };
        self.mappings_of = Some((process, model.intervals, read.clone()));
        read
    }

    /// Sets the mappings of an interval, in place of the kernel's.
    #[cfg(test)]
    pub fn know_mappings(&mut self, process: u16, interval: u64, mappings: Vec<Mapping>) {
        self.mappings_of = Some((process, interval, mappings));
    }

    /// Rows of the current place; empty if the place has no table.
    pub fn listing(&mut self, model: &Model) -> Listing {
        let mappings = self.mappings(model);
        let level = self.level();
        let listing = match &level.place {
            Place::Processes => processes(model),
            Place::Process(process) => objects_of(model, *process, &mappings),
            Place::Decisions(process) => decisions(model, *process, &mappings),
            Place::Object { .. } | Place::Decision(_) | Place::Output => Listing::default(),
        };
        listing.ordered(&level.order)
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent, model: &Model) -> KeyOutcome {
        match self.mode {
            Mode::Filtering => self.filter(key),
            Mode::Help => self.mode = Mode::Looking,
            Mode::Ending => {
                self.mode = Mode::Looking;
                if matches!(key.code, KeyCode::Char('y' | 'Y') | KeyCode::Enter) {
                    return KeyOutcome::End;
                }
            }
            Mode::Looking => return self.look(key, model),
        }
        KeyOutcome::Nothing
    }

    fn filter(&mut self, key: KeyEvent) {
        let filter = &mut self.level_mut().order.filter;
        match key.code {
            KeyCode::Enter => self.mode = Mode::Looking,
            KeyCode::Esc => {
                filter.clear();
                self.mode = Mode::Looking;
            }
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Char(c) if !key.modifiers.contains(KeyModifiers::CONTROL) => filter.push(c),
            _ => (),
        }
    }

    fn look(&mut self, key: KeyEvent, model: &Model) -> KeyOutcome {
        let held = self.held.take();
        let shown = held.as_deref().unwrap_or(model);
        let listing = self.listing(shown);
        let at = self.level().position(&listing);
        let mut is_held = held.is_some();
        match key.code {
            KeyCode::Up | KeyCode::Char('k') => {
                self.level_mut().choose(&listing, at.saturating_sub(1))
            }
            KeyCode::Down | KeyCode::Char('j') => self.level_mut().choose(&listing, at + 1),
            KeyCode::PageUp => self.level_mut().choose(&listing, at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.level_mut().choose(&listing, at + PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.level_mut().choose(&listing, 0),
            KeyCode::End | KeyCode::Char('G') => self.level_mut().choose(&listing, usize::MAX),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.open(&listing, at, shown),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('h') => self.back(),
            KeyCode::Char('s') => self.sort(&listing, 1),
            KeyCode::Char('S') => self.sort(&listing, listing.columns.len().saturating_sub(1)),
            KeyCode::Char('r') => {
                let order = &mut self.level_mut().order;
                order.is_reversed = !order.is_reversed;
            }
            KeyCode::Char('/') if !listing.columns.is_empty() => self.mode = Mode::Filtering,
            KeyCode::Char('d') => self.open_decisions(shown, &listing, at),
            KeyCode::Char('o')
                if self.has_output && !matches!(self.level().place, Place::Output) =>
            {
                self.levels.push(Level::new(Place::Output));
            }
            KeyCode::Char(' ' | 'p') => is_held = !is_held,
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('q') => {
                if !self.has_command {
                    return KeyOutcome::End;
                }
                self.mode = Mode::Ending;
            }
            _ => (),
        }
        self.held = is_held.then(|| held.unwrap_or_else(|| Box::new(model.clone())));
        KeyOutcome::Nothing
    }

    /// Clears the filter if there is one; otherwise goes back.
    fn back(&mut self) {
        let filter = &mut self.level_mut().order.filter;
        if !filter.is_empty() {
            filter.clear();
        } else if self.is_inside() {
            self.levels.pop();
        }
    }

    fn sort(&mut self, listing: &Listing, by: usize) {
        if listing.columns.is_empty() {
            return;
        }
        let order = &mut self.level_mut().order;
        let title = |at: usize| listing.columns[at % listing.columns.len()].title.clone();
        let now = listing
            .columns
            .iter()
            .position(|column| Some(&column.title) == order.by.as_ref());
        order.by = Some(title(now.map_or(0, |now| now + by)));
    }

    fn open(&mut self, listing: &Listing, at: usize, model: &Model) {
        let Some(row) = listing.rows.get(at) else {
            return;
        };
        let place = match self.level().place {
            Place::Processes => u16::try_from(row.key).ok().map(Place::Process),
            Place::Process(process) => {
                let mappings = self.mappings(model);
                let mapping = mappings.into_iter().find(|one| one.start == row.key);
                mapping.map(|mapping| Place::Object { process, mapping })
            }
            Place::Decisions(_) => model
                .decision(row.key)
                .map(|decision| Place::Decision(Box::new(decision.clone()))),
            Place::Object { .. } | Place::Decision(_) | Place::Output => None,
        };
        self.levels.extend(place.map(Level::new));
    }

    /// Opens decisions about the current or chosen process, or about all processes.
    fn open_decisions(&mut self, model: &Model, listing: &Listing, at: usize) {
        if model.subject.kind == Kind::Top {
            return;
        }
        let process = match self.level().place {
            Place::Process(process) | Place::Object { process, .. } => Some(process),
            // If there is one process, all decisions are about it.
            Place::Processes if model.processes.len() == 1 => listing
                .rows
                .get(at)
                .and_then(|row| u16::try_from(row.key).ok()),
            Place::Processes | Place::Output => None,
            Place::Decisions(_) | Place::Decision(_) => return,
        };
        self.levels.push(Level::new(Place::Decisions(process)));
    }
}
