//! Schedule of threads on CPUs over time: the schedule file of `nearpage simulate` (`docs/reference/schedule-file.md`).

use std::path::Path;

use nearpage_amount::counted;
use nearpage_machine::CpuId;
use nearpage_recording::ThreadIndex;
use serde::Deserialize;

use crate::Error;
use crate::figures::{FS, Figures, TIME_MAX};
use crate::trace::Trace;

/// Policy that assigns threads to CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Threads stay on the CPUs on which they were traced, except for the schedule's moves.
    #[default]
    Pinned,
    /// UNIX's priorities with affinity (Verghese §5). A thread returns to its last CPU or, if that CPU is busy, to the
    /// nearest idle CPU. An idle CPU takes the thread that has waited longest in the longest queue. At the end of a
    /// time slice, a CPU takes a thread that waits for another CPU if that thread has had [`Schedule::affinity_ns`]
    /// less CPU time. CPU time counts half after each second.
    Affinity,
    /// The CPUs are divided evenly among the programs, and again whenever a program begins or ends (Verghese's parallel
    /// workload). A program's threads share its CPUs by time slices.
    Partition,
}

/// A scheduled move of a thread to another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadMove {
    /// Program of the thread, counted from 1 in the order of the recordings.
    #[serde(default = "first_program")]
    pub program: usize,
    /// Number of the thread in its recording's table of threads.
    pub thread: u32,
    /// Simulated time in nanoseconds; the thread moves at its next step.
    pub at_ns: u64,
    /// Number of the target CPU.
    pub cpu: u32,
}

fn first_program() -> usize {
    1
}

/// Start of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Program {
    /// Simulated time in nanoseconds at which the program's first thread begins.
    pub start_ns: u64,
    /// `start_ns` is relative to the begin of the first marked phase, which must be another program's.
    pub from_mark: bool,
}

/// A schedule. By default threads run where they were traced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Policy that assigns threads to CPUs.
    pub scheduler: Scheduler,
    /// With [`Scheduler::Affinity`]: by how much less CPU time a waiting thread must have had to take a CPU other than
    /// its own. Default: 0.1 s.
    pub affinity_ns: Option<u64>,
    /// Programs, in the order of the recordings; programs that are not listed begin at time 0.
    #[serde(rename = "program")]
    pub programs: Vec<Program>,
    /// Thread moves, with [`Scheduler::Pinned`].
    #[serde(rename = "move")]
    pub moves: Vec<ThreadMove>,
    /// Name of the file in messages.
    #[serde(skip)]
    pub file: String,
}

impl Schedule {
    /// Reads a schedule file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid schedule; the message names the line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_toml(&text, &file),
            Err(source) => Err(Error::Unreadable { path: file, source }),
        }
    }

    /// Parses the text of a schedule file; `file` is its name in messages.
    ///
    /// # Errors
    /// The text is not a valid schedule; the message names the line.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, Error> {
        let schedule: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = 1 + text[..at.min(text.len())].matches('\n').count();
            let message = error.message().replace('\n', ", ");
            Error::schedule(file, &format!("line {line}: {message}"))
        })?;
        if schedule.scheduler != Scheduler::Pinned && !schedule.moves.is_empty() {
            let message = "it has moves, which need scheduler = \"pinned\"";
            return Err(Error::schedule(file, message));
        }
        if schedule.scheduler != Scheduler::Affinity && schedule.affinity_ns.is_some() {
            let message = "it has affinity_ns, which needs scheduler = \"affinity\"";
            return Err(Error::schedule(file, message));
        }
        Ok(Self {
            file: file.to_owned(),
            ..schedule
        })
    }

    /// `affinity_ns` or its default.
    pub(crate) fn least_behind_ns(&self) -> u64 {
        self.affinity_ns.unwrap_or(100_000_000)
    }

    /// Do threads run on other CPUs than those on which they were traced?
    pub(crate) fn moves_threads(&self) -> bool {
        self.scheduler != Scheduler::Pinned || !self.moves.is_empty()
    }

    /// Checks that the programs, threads and CPUs of the schedule exist.
    pub(crate) fn check(
        &self,
        trace: &dyn Trace,
        threads: &[ThreadIndex],
        figures: &Figures,
    ) -> Result<(), Error> {
        let refused = |message: String| Err(Error::schedule(&self.file, &message));
        let programs = trace.programs();
        if self.programs.len() > programs {
            return refused(format!(
                "it has {}, for {}",
                counted(self.programs.len() as u64, "program"),
                counted(programs as u64, "recording")
            ));
        }
        let latest_ns = TIME_MAX / FS as u64;
        for (number, program) in (1..).zip(&self.programs) {
            if program.start_ns > latest_ns {
                return refused(format!(
                    "program {number} has start_ns = {}; simulated time can be counted to {latest_ns} ns",
                    program.start_ns
                ));
            }
        }
        for (number, step) in (1..).zip(&self.moves) {
            let ThreadMove {
                program,
                thread,
                cpu,
                at_ns,
            } = *step;
            if program == 0 || program > programs {
                return refused(format!(
                    "move {number} is of program {program}; there are 1 to {programs}"
                ));
            }
            let of_program = |index: &&ThreadIndex| trace.origin(**index).0 + 1 == program;
            let known: Vec<u32> = threads
                .iter()
                .filter(of_program)
                .map(|index| trace.origin(*index).1.0)
                .collect();
            if !known.contains(&thread) {
                let last = known.iter().max().copied().unwrap_or(0);
                return refused(format!(
                    "move {number} is of thread {thread}; its recording has threads 0 to {last}"
                ));
            }
            if figures.node(CpuId(cpu)).is_err() {
                return refused(format!(
                    "move {number} is to CPU {cpu}, which the machine has not"
                ));
            }
            let contradicts = |other: &ThreadMove| {
                (other.program, other.thread, other.at_ns) == (program, thread, at_ns)
                    && other.cpu != cpu
            };
            if let Some(earlier) = self.moves[..number - 1].iter().position(contradicts) {
                return refused(format!(
                    "moves {} and {number} have thread {thread} go to two CPUs at {at_ns} ns",
                    earlier + 1
                ));
            }
        }
        Ok(())
    }
}
