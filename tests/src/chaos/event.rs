//! Random events: a program, its surroundings, a nearpage command and a fault.

use std::fmt;

use super::programs::Program;
use super::random::Random;
use super::surroundings::Surroundings;

/// The nearpage command that observes or places the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observer {
    /// Subcommand and options, between `nearpage` and the program's own words; `OUT` stands for a folder to write.
    pub words: &'static [&'static str],
    /// Does the command attach to the running program?
    pub attaches: bool,
}

const fn launching(words: &'static [&'static str]) -> Observer {
    Observer {
        words,
        attaches: false,
    }
}

const OBSERVERS: [Observer; 10] = [
    launching(&["record", "-o", "OUT"]),
    launching(&["record", "--rate", "2999", "-o", "OUT"]),
    launching(&["record", "--source", "signal", "-o", "OUT"]),
    launching(&[
        "record",
        "--all-allocations",
        "--threads",
        "scatter",
        "-o",
        "OUT",
    ]),
    launching(&["record", "--json", "-q", "--for", "0.2", "-o", "OUT"]),
    launching(&["run", "--place", "heap>=64K=interleave"]),
    launching(&[
        "run",
        "--place",
        "rest=interleave",
        "--place",
        "mapping>=64K=block",
        "--threads",
        "compact",
    ]),
    launching(&[
        "run",
        "--place",
        "heap>=4K=block",
        "--mechanism",
        "touch",
        "--replicate",
        "code",
    ]),
    launching(&["live", "-q", "--interval", "0.1", "--policy", "auto"]),
    Observer {
        words: &["record", "--rate", "997", "-o", "OUT", "-p"],
        attaches: true,
    },
];

/// Faults of the observer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObserverFault {
    /// No fault.
    Nothing,
    /// A signal, and the milliseconds before it.
    Signal(&'static str, u64),
    /// A pause: the milliseconds before it, and its length in milliseconds.
    Pause(u64, u64),
    /// The disk with the observer's output has this size in KiB.
    FullDisk(u64),
    /// Shell redirections that close standard streams of the observer.
    ClosedStreams(&'static str),
    /// Nobody reads the observer's output.
    BrokenPipe,
    /// The folder for temporary files does not exist.
    NoTemporaryFolder,
}

impl ObserverFault {
    fn draw(random: &mut Random) -> Self {
        match random.below(12) {
            0..=3 => {
                let signal = random.of(&["KILL", "KILL", "TERM", "INT", "HUP", "QUIT"]);
                Self::Signal(signal, 1 + random.below(400))
            }
            4 | 5 => Self::Pause(1 + random.below(200), 50 + random.below(400)),
            6 => Self::FullDisk(8 << random.below(9)),
            7 => {
                Self::ClosedStreams(random.of(&["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]))
            }
            8 => Self::BrokenPipe,
            9 => Self::NoTemporaryFolder,
            _ => Self::Nothing,
        }
    }
}

/// A run of a program under nearpage with a fault.
#[derive(Clone, Debug)]
pub struct Event {
    /// Number of the event, which with the seed determines the event.
    pub number: u64,
    /// The observed program.
    pub program: &'static Program,
    /// Limits or namespaces that the program runs in.
    pub surroundings: Surroundings,
    /// The nearpage command.
    pub observer: Observer,
    /// The fault.
    pub fault: ObserverFault,
}

impl Event {
    /// Does the signal reach the program? A launching nearpage passes on signals that are meant for both.
    pub fn reaches_program(&self) -> bool {
        let is_passed_on = matches!(self.fault, ObserverFault::Signal("TERM" | "HUP" | "INT", _));
        is_passed_on && !self.observer.attaches
    }

    /// Draws the event of a number.
    pub fn draw(seed: u64, number: u64, programs: &[&'static Program]) -> Self {
        let mut random = Random::new(seed, number);
        Self {
            number,
            program: random.of(programs),
            surroundings: Surroundings::draw(&mut random),
            observer: random.of(&OBSERVERS),
            fault: ObserverFault::draw(&mut random),
        }
    }

    /// Draws the event of a number, with nearpage killed at some moment of its first 1.5 seconds as the fault.
    pub fn killed(seed: u64, number: u64, programs: &[&'static Program]) -> Self {
        let after_ms = 1 + Random::new(!seed, number).below(1500);
        Self {
            fault: ObserverFault::Signal("KILL", after_ms),
            ..Self::draw(seed, number, programs)
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observer = self.observer.words.join(" ");
        write!(f, "{}{}; {observer}", self.program.name, self.surroundings)?;
        match &self.fault {
            ObserverFault::Nothing => Ok(()),
            ObserverFault::Signal(signal, after_ms) => {
                write!(f, "; SIG{signal} after {after_ms} ms")
            }
            ObserverFault::Pause(after_ms, for_ms) => {
                write!(f, "; stopped after {after_ms} ms for {for_ms} ms")
            }
            ObserverFault::FullDisk(kib) => write!(f, "; a disk of {kib} KiB"),
            ObserverFault::ClosedStreams(streams) => write!(f, "; {streams}"),
            ObserverFault::BrokenPipe => write!(f, "; nobody reads what it says"),
            ObserverFault::NoTemporaryFolder => write!(f, "; no folder for temporary files"),
        }
    }
}
