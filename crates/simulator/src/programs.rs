//! Traces of several programs, replayed together.

use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::{PageIndex, StepBatch, Steps, TraceEvent};
use rustc_hash::FxHashMap;

use crate::policy::{PhaseHomes, PlanHomes};
use crate::trace::{FilePage, StepSource, ThreadSteps, Trace};

/// Traces that are replayed together. Programs share pages of files ([`Trace::file_pages`]) and no other pages. If
/// programs mark phases, the results cover the time from the first mark's begin to the last mark's end.
pub struct Programs<'a> {
    programs: Vec<Program<'a>>,
    /// Program of each page, and the page's number in that program's trace.
    pages: Vec<(u32, u32)>,
    /// Number of file pages that a program shares with an earlier one.
    shared: usize,
}

struct Program<'a> {
    trace: &'a dyn Trace,
    /// Combined number of each of the program's pages.
    pages: Vec<u32>,
    /// Combined number of the program's first thread.
    first_thread: u32,
    /// Combined position of the program's first thread; and combined number of its first process.
    first_position: usize,
    first_application: u16,
}

/// Signals carry their program's number from this bit on.
const SIGNAL_BITS: u32 = 56;

impl<'a> Programs<'a> {
    /// Combines at most 255 traces.
    ///
    /// # Errors
    /// A trace that cannot be read.
    pub fn new(traces: Vec<&'a dyn Trace>) -> Result<Self, nearpage_recording::Error> {
        let mut programs = Self {
            programs: Vec::with_capacity(traces.len()),
            pages: Vec::new(),
            shared: 0,
        };
        let mut files: FxHashMap<FilePage, u32> = FxHashMap::default();
        let mut first_thread = 0;
        let (mut first_position, mut first_application) = (0, 0);
        for (program, trace) in (0..).zip(traces) {
            let of_files: FxHashMap<u32, FilePage> = trace.file_pages().into_iter().collect();
            let mut pages = Vec::with_capacity(trace.pages());
            for page in 0..trace.pages() as u32 {
                let new = programs.pages.len() as u32;
                let number = match of_files.get(&page) {
                    Some(file) => *files.entry(*file).or_insert(new),
                    None => new,
                };
                if number == new {
                    programs.pages.push((program, page));
                } else {
                    programs.shared += 1;
                }
                pages.push(number);
            }
            let threads = trace.threads()?;
            let count = threads.iter().map(|thread| thread.0.thread.0 + 1).max();
            programs.programs.push(Program {
                trace,
                pages,
                first_thread,
                first_position,
                first_application,
            });
            first_thread += count.unwrap_or(0);
            first_position += threads.len();
            let last = (0..threads.len())
                .map(|thread| trace.application(thread))
                .max();
            first_application += last.map_or(0, |last| last + 1);
        }
        Ok(programs)
    }

    /// The combined plan of all programs. A shared page follows the plan of its first program. Online migration of one
    /// plan applies to all programs, with the parameters of the first such plan.
    pub fn plan(&self, of_programs: &[PlanHomes]) -> PlanHomes {
        let home = |&(program, page): &(u32, u32)| {
            let plan = of_programs.get(program as usize)?;
            *plan.homes.get(page as usize)?
        };
        PlanHomes {
            homes: self.pages.iter().map(home).collect(),
            phases: self.phases(of_programs),
            online_migration: of_programs.iter().find_map(|plan| plan.online_migration),
        }
    }

    fn phases(&self, of_programs: &[PlanHomes]) -> Vec<PhaseHomes> {
        let mut all = Vec::new();
        for ((number, program), plan) in (0u32..).zip(&self.programs).zip(of_programs) {
            let here = |page: u32| program.pages.get(page as usize).copied();
            for phase in &plan.phases {
                let mut homes = vec![None; self.pages.len()];
                for (page, &home) in (0u32..).zip(&phase.homes) {
                    let at = here(page).filter(|&at| self.pages[at as usize] == (number, page));
                    if let Some(at) = at {
                        homes[at as usize] = home;
                    }
                }
                let entry = phase.entry.iter();
                let entry = entry.filter_map(|(page, bytes)| Some((here(*page)?, bytes.clone())));
                all.push(PhaseHomes {
                    entry: entry.collect(),
                    homes,
                    threads: phase
                        .threads
                        .iter()
                        .map(|&(thread, node)| (ThreadIndex(thread.0 + program.first_thread), node))
                        .collect(),
                });
            }
        }
        all
    }

    /// Number of pages that a program shares with an earlier one.
    pub fn shared_pages(&self) -> usize {
        self.shared
    }
}

impl Trace for Programs<'_> {
    fn pages(&self) -> usize {
        self.pages.len()
    }

    fn page_number(&self, page: u32) -> u64 {
        let (program, page) = self.pages[page as usize];
        self.programs[program as usize].trace.page_number(page)
    }

    fn page_application(&self, page: u32) -> u16 {
        let (program, page) = self.pages[page as usize];
        let program = &self.programs[program as usize];
        program.first_application + program.trace.page_application(page)
    }

    fn application(&self, thread: usize) -> u16 {
        let after = self
            .programs
            .partition_point(|program| program.first_position <= thread);
        let program = &self.programs[after.saturating_sub(1)];
        program.first_application + program.trace.application(thread - program.first_position)
    }

    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        let (program, page) = self.pages[page as usize];
        self.programs[program as usize].trace.extent(page)
    }

    fn is_data(&self, page: u32) -> bool {
        let (program, page) = self.pages[page as usize];
        self.programs[program as usize].trace.is_data(page)
    }

    fn programs(&self) -> usize {
        self.programs.len()
    }

    fn origin(&self, thread: ThreadIndex) -> (usize, ThreadIndex) {
        let after = self
            .programs
            .partition_point(|program| program.first_thread <= thread.0);
        let program = after.saturating_sub(1);
        let first = self.programs[program].first_thread;
        (program, ThreadIndex(thread.0 - first))
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        let mut all: Vec<ThreadSteps<'_>> = Vec::new();
        for (number, program) in (0..).zip(&self.programs) {
            for (mut thread, steps) in program.trace.threads()? {
                thread.thread.0 += program.first_thread;
                thread.started_by = signal(number, thread.started_by);
                let steps = Renumbered {
                    steps,
                    pages: &program.pages,
                    program: number,
                };
                all.push((thread, StepSource::Read(Box::new(steps))));
            }
        }
        Ok(all)
    }
}

fn signal(program: u64, sequence: u64) -> u64 {
    match sequence {
        0 => 0,
        sequence => program << SIGNAL_BITS | sequence,
    }
}

/// Steps of a thread, with combined numbers of pages and signals.
struct Renumbered<'a> {
    steps: StepSource<'a>,
    pages: &'a [u32],
    program: u64,
}

impl Steps for Renumbered<'_> {
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, nearpage_recording::Error> {
        if !self.steps.next(batch)? {
            return Ok(false);
        }
        // Invalid page numbers are left for the replay to report.
        let page = |page: &mut PageIndex| {
            page.0 = self.pages.get(page.0 as usize).copied().unwrap_or(u32::MAX);
        };
        for miss in &mut batch.misses {
            page(&mut miss.page);
        }
        for (_, _, trace_event) in &mut batch.trace_events {
            match trace_event {
                TraceEvent::FirstTouch(touched) => page(touched),
                TraceEvent::Signal { sequence } => *sequence = signal(self.program, *sequence),
                TraceEvent::Resume { after, .. } => *after = signal(self.program, *after),
                TraceEvent::Move(_) | TraceEvent::Mark { .. } => {}
            }
        }
        Ok(true)
    }
}
