//! One thread of the program: its references through its CPU's caches, and its stream of records.
//!
//! Instructions are counted when their block begins to run. If a fault ends a block early, all its instructions
//! count nevertheless. Blocks are fetched line by line, before the accesses of their instructions.

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

/// An access or a block ([`Run`]) that QEMU has reported and that has not gone through the caches yet.
#[derive(Clone, Copy, Default)]
struct Pending {
    address: u64,
    code: Code,
    /// The access's kind. For a guest's block, not 0 if the block is the kernel's.
    kind: AccessKind,
    /// Page of a guest's memory.
    frame: u32,
}

/// How many events are noted before they go through the caches together. The effects on other threads are late by that
/// much, which is far less than a quantum.
const PENDING: usize = 64;

/// What the caller has to do after noting an event.
#[must_use]
pub(crate) enum NoteOutcome {
    /// Nothing: the event is noted.
    Done,
    /// Call [`Thread::catch_up`]: the event is noted, and no other has room.
    Full,
    /// Pause, then note it again: the thread's turn is over, or pages were unmapped.
    MustPause,
}

/// A thread. Only the host thread that runs it uses it, except at the end of the process.
#[repr(C)]
pub struct Thread {
    pending_count: usize,
    /// Instructions so far, including all of the running block.
    instructions: u64,
    /// Instructions at which its turn ends.
    stop: u64,
    /// The sets of the directory and of its CPU's L2, which misses will use: they are prefetched.
    expected: [Place; 2],
    line_shift: u32,
    /// References that have not gone through the caches yet.
    pending: [Pending; PENDING],
    cpu: &'static Cpu,
    /// Its process.
    pub process: &'static Process,
    line_mask: u64,
    page_shift: u32,
    store_bit: StoreBit,
    /// The latest access. An access by the same instruction, to the bytes after it, is part of it.
    last_code: u64,
    last_address: u64,
    /// Data accesses and fetched lines.
    references: u64,
    next_sample: u64,
    /// Number of the reference from which on each takes the slow path.
    close_from: u64,
    /// The latest block, if all its lines were the most recent of their sets, and the number of lines that other CPUs had
    /// invalidated in the fetch cache then.
    same_run: (u64, u64),
    stores: u64,
    fetched_lines: u64,
    /// Misses before the latest events went through the caches.
    misses_before: u64,
    /// Instructions of the blocks that went through the caches, without the latest block and with it.
    base: u64,
    caught_up: u64,
    /// End of the turn in which the threads created earlier have had their turns, and how often a
    /// blocked thread had joined by then: a thread that joins later goes first.
    first_until: (u64, u64),
    /// It took a line from another CPU in its turn.
    took: bool,
    /// Virtual time minus instructions.
    ahead: u64,
    position: usize,
    /// The virtual times at which it moves to other CPUs, and these CPUs, in reverse order.
    moves: Vec<(u64, usize)>,
    random: u64,
    /// How the latest miss was served.
    outcome: Outcome,
    /// Stores and misses at the beginning of its turn.
    turn_began_with: (u64, u64),
    stream: Stream,
    /// Its counters, as of the latest [`Self::flush`].
    pub counters: [u64; COUNTERS],
    /// Order of creation.
    pub number: u32,
    /// See [`NewThread::place`].
    pub place: usize,
    /// Its number in the lockstep.
    pub member: Member,
    /// Address of the futex that is woken when it ends.
    pub ends_at: u64,
    /// What to do when its system call returns.
    pub call: crate::calls::Call,
    /// It is in a system call.
    pub calls: Arc<AtomicBool>,
    /// A guest's CPU waits for an interrupt, or has not gone on after one.
    idle: bool,
    /// Its nested work for the preload library.
    pub left_out: UncountedDepth,
    stored: StoredPages,
    /// The misses that the values of its registers come from, if dependences are traced.
    origins: Option<Box<Origins>>,
    /// The miss that the present access's address comes from; 0: none.
    origin: u64,
}

/// Nested work of a thread for the preload library, which does not count.
#[derive(Default)]
pub struct UncountedDepth {
    /// Depth of nesting; 0: the thread's accesses count.
    pub depth: u32,
    /// Blocks since the outermost work began.
    pub blocks: u32,
}

impl Thread {
    /// Makes the calling host thread that new thread; returns when it may run.
    pub fn new(process: &'static Process, new_thread: &NewThread) -> Option<Box<Self>> {
        let position = process.cpu_of(new_thread.place);
        let moves = process.setup.thread_moves.iter();
        let mut moves: Vec<(u64, usize)> = moves
            .filter(|step| step.thread == new_thread.number)
            .map(|step| (step.instructions, step.cpu))
            .collect();
        moves.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        let turn = process.lockstep.enter(new_thread.member);
        process.output.event(
            new_thread.number,
            turn.time,
            &Event::ThreadStart {
                thread: new_thread.number,
                tid: system::thread_id(),
                cpu: position as u32,
                started_by: new_thread.started_by,
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
            random: u64::from(new_thread.number) << 32 | 0x2545_f491,
            outcome: Outcome::default(),
            turn_began_with: (0, 0),
            stream: Stream::new(&process.output, new_thread.number, turn.time)?,
            counters: [0; COUNTERS],
            number: new_thread.number,
            place: new_thread.place,
            member: new_thread.member,
            ends_at: new_thread.ends_at,
            call: Default::default(),
            calls: process.lockstep.calls(new_thread.member),
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

    /// Begins a turn; returns how much virtual time the thread has waited.
    pub fn go_on(&mut self, turn: Turn) -> u64 {
        let waited = turn.time.saturating_sub(self.time());
        self.ahead += waited;
        let moves_at = self.moves.last().map_or(u64::MAX, |(time, _)| *time);
        self.stop = turn.end.min(moves_at).saturating_sub(self.ahead);
        // Another thread may have used the CPU's caches.
        self.same_run = (0, 0);
        waited
    }

    /// Lets the thread ask for its turn before its next event.
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

    /// Notes that a block begins, without calling any other function.
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

    /// A guest has accessed memory.
    #[inline]
    pub fn placed_access(&mut self, address: u64, frame: u32, code: Code, kind: AccessKind) {
        self.later(Pending {
            address,
            code,
            kind,
            frame,
        });
    }

    /// A guest's CPU begins to wait for an interrupt. This must not block: the emulator's lock is held.
    pub fn idles(&mut self) {
        self.idle = true;
        self.ask_again();
        self.process.lockstep.block(self.member, self.time());
    }

    /// A guest's CPU goes on after an interrupt.
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

    /// The thread has accessed memory.
    #[inline]
    pub fn access(&mut self, address: u64, code: Code, kind: AccessKind) {
        if let NoteOutcome::Full = self.note_access(address, code, kind) {
            self.catch_up();
        }
    }

    /// Notes an access, without calling any other function.
    #[inline]
    pub(crate) fn note_access(
        &mut self,
        address: u64,
        code: Code,
        kind: AccessKind,
    ) -> NoteOutcome {
        // The host can fetch the sets that a miss uses before the access goes through the caches.
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

    /// The host executes some hundred instructions ahead while it waits for the program's own misses. The fewer of them are
    /// spent here, the more of these misses overlap.
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
        // Drawn between half the period and one and a half, so that no loop is in step with the samples.
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

    /// Writes the records in memory and adds its counters to the totals. The thread may go on.
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
