//! One thread of the program: its references through its CPU's caches, and its stream of records.
//!
//! Instructions are counted block by block when a block begins to run; of a thread that leaves one
//! early through a fault, the rest of that block counts too. Blocks are fetched line by line, before
//! the accesses of their instructions.

mod code;
mod references;
mod stored_pages;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nearpage_wire::trace::{COUNTERS, Counter, Event, Record};

use crate::caches::{Cpu, Outcome};
use crate::dependences::Origins;
use crate::lockstep::{Member, Turn};
use crate::output::Stream;
use crate::process::{NewThread, Process};
use crate::qemu::{AccessKind, StoreBit};
use crate::sets::Place;
use crate::system;
use code::{ADDRESS_BITS, UPPER_HALF};
pub use code::{Code, PlacedRun, Run};
use stored_pages::StoredPages;

/// What QEMU told and the caches have not seen yet: an access, or a block ([`Run`]).
#[derive(Clone, Copy, Default)]
struct Pending {
    address: u64,
    code: Code,
    /// Of a guest's block, not 0 if it is the kernel's.
    kind: AccessKind,
    /// Page of a guest's memory.
    frame: u32,
}

/// How many are noted until they go through the caches together. A thread is that much late with
/// what it does to others, far less than a quantum.
const PENDING: usize = 64;

/// What is left to do for an event.
#[must_use]
pub(crate) enum NoteOutcome {
    /// Nothing: it is noted.
    Done,
    /// [`Thread::catch_up`]: it is noted, and there is no room for another.
    Full,
    /// It is not noted: the thread's turn is over, or pages were unmapped.
    MustPause,
}

/// A thread. Only the host thread that runs it uses it, but for the end of the process.
#[repr(C)]
pub struct Thread {
    pending_count: usize,
    /// Instructions with the running block.
    instructions: u64,
    /// Instructions at which its turn ends.
    stop: u64,
    /// Of the directory and its CPU's L2: what its next misses take.
    expected: [Place; 2],
    line_shift: u32,
    /// References that have not gone through the caches yet.
    pending: [Pending; PENDING],
    cpu: &'static Cpu,
    /// What it is part of.
    pub process: &'static Process,
    line_mask: u64,
    page_shift: u32,
    store_bit: StoreBit,
    /// The latest access; an access to what follows it, by the same instruction, goes on with it.
    last_code: u64,
    last_address: u64,
    /// Data accesses and fetched lines.
    references: u64,
    next_sample: u64,
    /// From which reference on each has to be looked at closely.
    close_from: u64,
    /// The latest block, if all its lines were the most recent of their sets, and how many lines
    /// others had taken from the fetch cache then.
    same_run: (u64, u64),
    stores: u64,
    fetched_lines: u64,
    /// Misses when they went there last.
    misses_before: u64,
    /// Instructions of what went through the caches, before the latest block and with it.
    base: u64,
    caught_up: u64,
    /// End of the turn in which the threads created earlier have had theirs, and how often a
    /// thread had joined in by then: one that does so afterwards is before this one.
    first_until: (u64, u64),
    /// It took something from another CPU in its turn.
    took: bool,
    /// Virtual time − instructions.
    ahead: u64,
    position: usize,
    /// To which CPUs it is to move, and when in virtual time; the next one is the last.
    moves: Vec<(u64, usize)>,
    random: u64,
    /// What became of the latest miss.
    outcome: Outcome,
    /// Stores and misses at the beginning of its turn.
    turn_began_with: (u64, u64),
    stream: Stream,
    /// What it counted, as far as [`Self::flush`] brought it.
    pub counters: [u64; COUNTERS],
    /// Order of creation.
    pub number: u32,
    /// See [`NewThread::place`].
    pub place: usize,
    /// In the lockstep.
    pub member: Member,
    /// Address woken when it ends.
    pub ends_at: u64,
    /// The system call that it is in: what its return means.
    pub call: crate::calls::Call,
    /// It is in one.
    pub calls: Arc<AtomicBool>,
    /// Of a guest's CPU: it waits for an interrupt, or has and has not gone on.
    idle: bool,
    /// What the preload library does for itself.
    pub left_out: UncountedDepth,
    stored: StoredPages,
    /// Which misses the values of its registers come from, where that is wanted.
    origins: Option<Box<Origins>>,
    /// The miss that the address of the access that is looked at comes from; 0: none.
    origin: u64,
}

/// Where a thread stands in what does not count.
#[derive(Default)]
pub struct UncountedDepth {
    /// Such stretches around it that lie in each other; 0: it counts.
    pub depth: u32,
    /// Blocks since the outermost began.
    pub blocks: u32,
}

impl Thread {
    /// The calling host thread is that new thread; it may run when this returns.
    pub fn new(process: &'static Process, birth: &NewThread) -> Option<Box<Self>> {
        let position = process.cpu_of(birth.place);
        let moves = process.setup.thread_moves.iter();
        let mut moves: Vec<(u64, usize)> = moves
            .filter(|step| step.thread == birth.number)
            .map(|step| (step.instructions, step.cpu))
            .collect();
        moves.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        let turn = process.lockstep.enter(birth.member);
        process.output.event(
            birth.number,
            turn.time,
            &Event::ThreadStart {
                thread: birth.number,
                tid: system::thread_id(),
                cpu: position as u32,
                started_by: birth.started_by,
                virtual_time: turn.time,
                start_routine: 0,
            },
        );
        let mut thread = Box::new(Self {
            pending_count: 0,
            instructions: 0,
            stop: 0,
            pending: [Pending::default(); PENDING],
            cpu: process.caches.cpu(position)?,
            process,
            expected: [process.caches.directory_place().if_wanted(false); 2],
            line_shift: process.setup.line_bytes.trailing_zeros(),
            line_mask: u64::from(process.setup.line_bytes) - 1,
            store_bit: StoreBit::known(),
            page_shift: process.setup.page_bytes.trailing_zeros(),
            last_code: 0,
            last_address: 0,
            references: 0,
            next_sample: u64::MAX,
            close_from: 0,
            same_run: (0, 0),
            stores: 0,
            fetched_lines: 0,
            misses_before: 0,
            base: 0,
            caught_up: 0,
            first_until: (u64::MAX, 0),
            took: false,
            ahead: turn.time,
            position,
            moves,
            random: u64::from(birth.number) << 32 | 0x2545_f491,
            outcome: Outcome::default(),
            turn_began_with: (0, 0),
            stream: Stream::new(&process.output, birth.number, turn.time)?,
            counters: [0; COUNTERS],
            number: birth.number,
            place: birth.place,
            member: birth.member,
            ends_at: birth.ends_at,
            call: Default::default(),
            calls: process.lockstep.calls(birth.member),
            idle: false,
            left_out: UncountedDepth::default(),
            stored: StoredPages::new(),
            origins: process.flows.as_ref().map(|_| Box::<Origins>::default()),
            origin: 0,
        });
        if !thread.stream.has_file() {
            process.loses_totals();
        }
        thread.go_on(turn);
        thread.plan_sample();
        Some(thread)
    }

    /// Its virtual time.
    pub fn time(&self) -> u64 {
        self.instructions + self.ahead
    }

    fn counter(&mut self, counter: Counter) -> &mut u64 {
        &mut self.counters[counter as usize]
    }

    /// Counts something.
    pub fn count(&mut self, counter: Counter) {
        *self.counter(counter) += 1;
    }

    /// Adds a record, between instructions.
    pub fn record(&mut self, record: &Record) {
        self.catch_up();
        let (instructions, time) = (self.instructions, self.time());
        self.stream
            .add(&self.process.output, instructions, time, record);
    }

    /// Goes on at that virtual time; returns how long it had to wait.
    pub fn go_on(&mut self, turn: Turn) -> u64 {
        let waited = turn.time.saturating_sub(self.time());
        self.ahead += waited;
        let moves_at = self.moves.last().map_or(u64::MAX, |(time, _)| *time);
        self.stop = turn.end.min(moves_at).saturating_sub(self.ahead);
        // Another thread may have had the CPU.
        self.same_run = (0, 0);
        waited
    }

    /// Whatever comes next, it asks for its turn first.
    pub fn ask_again(&mut self) {
        self.stop = 0;
    }

    /// A block begins.
    #[inline]
    pub fn block(&mut self, run: Run) {
        match self.note_block(run) {
            NoteOutcome::Done => {}
            NoteOutcome::Full => self.catch_up(),
            NoteOutcome::MustPause => self.block_after_pause(run),
        }
    }

    /// Notes that a block begins. Calls nothing.
    #[inline]
    pub(crate) fn note_block(&mut self, run: Run) -> NoteOutcome {
        if self.instructions >= self.stop
            || self.process.unmappings.count() != self.cpu.unmappings_seen.load(Relaxed)
        {
            return NoteOutcome::MustPause;
        }
        self.begin(run)
    }

    #[cold]
    #[inline(never)]
    fn block_after_pause(&mut self, run: Run) {
        self.pause();
        if let NoteOutcome::Full = self.begin(run) {
            self.catch_up();
        }
    }

    #[inline]
    fn begin(&mut self, run: Run) -> NoteOutcome {
        self.instructions += run.instructions();
        self.note(Pending {
            address: run.0,
            code: Code::BLOCK,
            kind: AccessKind::default(),
            frame: 0,
        })
    }

    /// A guest's block begins.
    #[inline]
    pub fn placed_block(&mut self, placed: &PlacedRun) {
        if self.instructions >= self.stop {
            self.pause();
        }
        self.instructions += placed.run.instructions();
        self.later(Pending {
            address: placed.run.0,
            code: Code::BLOCK,
            kind: AccessKind(placed.kernel.into()),
            frame: placed.frame,
        });
    }

    /// An access of a guest was made.
    #[inline]
    pub fn placed_access(&mut self, address: u64, frame: u32, code: Code, kind: AccessKind) {
        self.later(Pending {
            address,
            code,
            kind,
            frame,
        });
    }

    /// A guest's CPU waits for an interrupt. It must not wait here: the emulator's lock is held.
    pub fn idles(&mut self) {
        self.idle = true;
        self.ask_again();
        self.process.lockstep.block(self.member, self.time());
    }

    /// It goes on.
    fn wakes(&mut self) {
        let turn = self.process.lockstep.unblock(self.member, None);
        self.catch_up();
        let waited_instructions = self.go_on(turn);
        self.record(&Record::Resume {
            after: 0,
            address: 0,
            waited_instructions,
        });
    }

    /// An access was made.
    #[inline]
    pub fn access(&mut self, address: u64, code: Code, kind: AccessKind) {
        if let NoteOutcome::Full = self.note_access(address, code, kind) {
            self.catch_up();
        }
    }

    /// Notes that an access was made. Calls nothing.
    #[inline]
    pub(crate) fn note_access(
        &mut self,
        address: u64,
        code: Code,
        kind: AccessKind,
    ) -> NoteOutcome {
        // The host has the time until this goes through the caches to fetch what a miss takes.
        let line = address >> self.line_shift;
        self.expected.iter().for_each(|place| place.expect(line));
        self.note(Pending {
            address,
            code,
            kind,
            frame: 0,
        })
    }

    #[inline]
    fn later(&mut self, pending: Pending) {
        if let NoteOutcome::Full = self.note(pending) {
            self.catch_up();
        }
    }

    /// The host is still waiting for the program's own accesses meanwhile, and sees no further than
    /// some hundred instructions: the fewer these are, the more of the program's misses overlap.
    #[inline]
    fn note(&mut self, pending: Pending) -> NoteOutcome {
        let count = self.pending_count;
        self.pending[count % PENDING] = pending;
        self.pending_count = count + 1;
        if count + 1 >= PENDING {
            NoteOutcome::Full
        } else {
            NoteOutcome::Done
        }
    }

    fn plan_sample(&mut self) {
        let period = u64::from(self.process.setup.sample_period);
        if period == 0 {
            self.close_from = if self.process.setup.serial {
                0
            } else {
                u64::MAX
            };
            return;
        }
        // Half the period to one and a half: no loop is in step with it.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.next_sample = self.references + period / 2 + self.random % period + 1;
        if !self.process.setup.serial {
            self.close_from = self.next_sample;
        }
    }

    fn misses(&self) -> u64 {
        self.counters[Counter::DataL1Misses as usize] + self.counters[Counter::Upgrades as usize]
    }

    /// Writes what is in memory and hands its counters over; it may go on.
    pub fn flush(&mut self) {
        self.catch_up();
        let time = self.time();
        self.stream.flush(&self.process.output, time);
        self.counters = self.totals();
    }

    /// The counters of all that went through the caches.
    fn totals(&self) -> [u64; COUNTERS] {
        let mut counters = self.counters;
        for (counter, value) in [
            (Counter::Instructions, self.caught_up),
            (
                Counter::Loads,
                self.references - self.fetched_lines - self.stores,
            ),
            (Counter::Stores, self.stores),
            (Counter::FetchedLines, self.fetched_lines),
            (Counter::Records, self.stream.count()),
        ] {
            counters[counter as usize] = value;
        }
        counters
    }

    /// The thread ends here.
    pub fn end(&mut self) {
        self.flush();
        let (time, instructions) = (self.time(), self.instructions);
        let event = Event::ThreadEnd {
            thread: self.number,
            virtual_time: time,
            instructions,
        };
        self.process.output.event(self.number, time, &event);
        self.process.count(&mut self.counters);
        self.stream.end();
    }
}
