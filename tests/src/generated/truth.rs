//! A program's table: number of cache lines that each thread fetches from each page.

use std::fmt::{self, Write as _};

use super::program::{Initialiser, Object, Operation, Program, UNIT_LINES};
use super::sweep::Sweep;

/// Accesses of a thread to a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Lines written before the program's work.
    pub initialised: u64,
    /// Lines fetched by the program's work.
    pub fetched: u64,
    /// Lines stored to by the program's work, among the fetched.
    pub stored: u64,
}

/// Accesses to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectTruth {
    /// Number of separately allocated pieces.
    pub pieces: u64,
    /// Units of each piece.
    pub piece_units: u64,
    /// Accesses by unit and thread; the last thread is the main thread if it is not in the team.
    pub units: Vec<Unit>,
    threads: usize,
}

/// Accesses to each object of a program, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Number of threads of the team.
    pub team: u64,
    /// Tables of the objects.
    pub objects: Vec<ObjectTruth>,
}

impl Truth {
    /// Accesses of `program` at a size, with a team, in `passes` passes.
    pub fn of(program: &Program, size: u64, team: u64, passes: u64) -> Self {
        let objects = program.objects.iter();
        Self {
            team,
            objects: objects
                .map(|object| ObjectTruth::of(program, object, size, team, passes))
                .collect(),
        }
    }

    /// Number of lines fetched from all objects.
    pub fn fetched(&self) -> u64 {
        self.objects.iter().map(ObjectTruth::fetched).sum()
    }

    /// The first differences from a table that the program itself counted ([`super::Run::count`]).
    pub fn differences(&self, program: &Program, counts: &str) -> Vec<String> {
        let mut left = self.clone();
        let mut wrong = Vec::new();
        for line in counts.lines() {
            let (name, numbers) = line.split_once(' ').unwrap_or_default();
            let numbers: Vec<u64> = numbers
                .split(' ')
                .filter_map(|number| number.parse().ok())
                .collect();
            let object = program.objects.iter().position(|one| one.name == name);
            let [unit, thread, initialised, fetched, stored] = numbers[..] else {
                wrong.push(format!("{line}: not a count"));
                continue;
            };
            let counted = Unit {
                initialised,
                fetched,
                stored,
            };
            let truth = object.map(|object| &mut left.objects[object]);
            let cell = truth.and_then(|truth| {
                let at = unit as usize * truth.threads + thread as usize;
                truth.units.get_mut(at)
            });
            match cell {
                Some(cell) if *cell == counted => *cell = Unit::default(),
                Some(cell) => {
                    wrong.push(format!("{line}: {cell:?} in the table"));
                    *cell = Unit::default();
                }
                None => wrong.push(format!("{line}: not in the table")),
            }
        }
        for (object, truth) in program.objects.iter().zip(&left.objects) {
            let rest = truth.units.iter().filter(|unit| **unit != Unit::default());
            let count = rest.count();
            if count > 0 {
                wrong.push(format!(
                    "{}: {count} accesses were not counted",
                    object.name
                ));
            }
        }
        wrong.truncate(10);
        wrong
    }

    /// The table for people, with consecutive equal units in one row.
    pub fn table(&self, program: &Program, size: u64) -> String {
        let mut text = String::new();
        for (object, truth) in program.objects.iter().zip(&self.objects) {
            let bytes = truth.pieces * object.pieces(size, self.team).1 * 64;
            let patterns = program.patterns(object).join(" or ");
            let siblings = program.objects.iter().filter(|one| one.site == object.site);
            let order = siblings.take_while(|one| one.name != object.name).count();
            let _ = writeln!(
                text,
                "object {} {} site allocate_{} order {order} pieces {} bytes {bytes} pattern {patterns}",
                object.name,
                object.kind.name(),
                object.site,
                truth.pieces
            );
            let mut from = 0;
            let count = truth.pieces * truth.piece_units;
            for unit in 1..=count {
                if unit < count && truth.unit(unit) == truth.unit(from) {
                    continue;
                }
                let _ = writeln!(
                    text,
                    "  units {from}+{}:{}",
                    unit - from,
                    Row(truth.unit(from))
                );
                from = unit;
            }
        }
        text
    }
}

/// Displays a unit's threads: number, and lines initialised, fetched and stored.
struct Row<'a>(&'a [Unit]);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (thread, unit) in self.0.iter().enumerate() {
            if *unit != Unit::default() {
                let Unit {
                    initialised,
                    fetched,
                    stored,
                } = unit;
                write!(f, " {thread}={initialised},{fetched},{stored}")?;
            }
        }
        Ok(())
    }
}

impl ObjectTruth {
    fn of(program: &Program, object: &Object, size: u64, team: u64, passes: u64) -> Self {
        let (pieces, piece_lines) = object.pieces(size, team);
        let piece_units = piece_lines.div_ceil(UNIT_LINES);
        let threads = team as usize + 1;
        let mut truth = Self {
            pieces,
            piece_units,
            units: vec![Unit::default(); (pieces * piece_units) as usize * threads],
            threads,
        };
        match object.initialiser {
            Initialiser::Main => {
                let (first, end) = object.extent(size, team);
                let main = if program.style.main_is_worker() {
                    0
                } else {
                    team
                };
                truth.add(
                    piece_lines,
                    &Sweep {
                        thread: main,
                        first,
                        end,
                        stride: 1,
                        operation: Operation::Initialise,
                    },
                );
            }
            Initialiser::Threads => {
                for sweep in object.initialised_by_threads(size, team) {
                    truth.add(piece_lines, &sweep);
                }
            }
        }
        for pass in 0..passes {
            for sweep in object.uses(size, team, pass) {
                truth.add(piece_lines, &sweep);
            }
        }
        truth
    }

    fn add(&mut self, piece_lines: u64, sweep: &Sweep) {
        let mut line = sweep.first;
        while line < sweep.end {
            let (piece, within) = (line / piece_lines, line % piece_lines);
            let begin = line - within;
            let unit_end = begin + (within / UNIT_LINES + 1) * UNIT_LINES;
            let end = unit_end.min(begin + piece_lines).min(sweep.end);
            let count = (end - line).div_ceil(sweep.stride);
            let unit = piece * self.piece_units + within / UNIT_LINES;
            let cell = &mut self.units[unit as usize * self.threads + sweep.thread as usize];
            match sweep.operation {
                Operation::Initialise => cell.initialised += count,
                Operation::Load => cell.fetched += count,
                Operation::Store | Operation::Update => {
                    cell.fetched += count;
                    cell.stored += count;
                }
            }
            line += count * sweep.stride;
        }
    }

    /// Accesses to a unit, by thread.
    pub fn unit(&self, unit: u64) -> &[Unit] {
        let at = unit as usize * self.threads;
        &self.units[at..at + self.threads]
    }

    /// Number of lines fetched from the object.
    pub fn fetched(&self) -> u64 {
        self.units.iter().map(|unit| unit.fetched).sum()
    }

    /// The thread that initialises most lines of a unit.
    pub fn initialiser(&self, unit: u64) -> usize {
        let threads = self.unit(unit).iter().enumerate().rev();
        threads
            .max_by_key(|(_, unit)| unit.initialised)
            .map_or(0, |(thread, _)| thread)
    }
}
