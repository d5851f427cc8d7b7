//! Follows the program from record to record: threads, mappings, samples. Other information comes only from code
//! bytes, thread pointers, and the state before the first record.

use std::io;

use nearpage_files::path_to_text;
use nearpage_perf_abi::{Map, Sideband};
use nearpage_recording::{Access, Event, ThreadIndex};
use rustc_hash::FxHashMap;

use crate::address_space::{AddressSpaces, Codes, Origin};
use crate::calibrate::SkidSide;
use crate::discovery::Discovery;
use crate::filter::Filter;
use crate::lookaside::Lookaside;
use crate::merge::{UnreadRecords, Window};
use crate::pmu::{Frequencies, PmuEvent};
use crate::processes::Mapping;
use crate::record::{self, Identifiers, Record, RecordBody};
use crate::thread_pointer::ThreadPointers;
use crate::threads::Threads;
use crate::verdict::Undecoded;

/// Receives observed accesses and events, in order of time as far as the kernel's records allow.
pub trait Sink {
    /// Receives accesses.
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()>;
    /// Receives other events from the kernel's records.
    fn events(&mut self, events: &[Event]) -> io::Result<()>;
}

/// Samples without an access, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndecodedCounts {
    /// No code bytes: the file is missing or was replaced, or the process ended too soon.
    pub no_code: u64,
    /// Instruction boundaries are ambiguous.
    pub ambiguous: u64,
    /// Address registers were overwritten before the sample.
    pub overwritten: u64,
    /// The address is relative to FS with an unknown base, or to GS.
    pub thread_base: u64,
    /// Vector gathers and scatters, whose index registers are not in samples.
    pub vector_index: u64,
    /// The kernel gave no user registers.
    pub no_registers: u64,
    /// The hardware gave no address.
    pub no_address: u64,
}

/// A place in a program whose samples could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndecodedPlace {
    /// Process id.
    pub pid: u32,
    /// Sampled instruction pointer.
    pub sampled: u64,
    /// Number of samples at this address.
    pub samples: u64,
}

/// Numbers of records that are lost, incomplete or unusable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records that the kernel dropped for lack of room.
    pub lost: u64,
    /// Number of times that the kernel stopped the clock or a hardware event for the remainder of a tick.
    pub throttled: u64,
    /// Incomplete stretches of hardware samples (Arm SPE): the buffer was full, or samples came too close together.
    pub incomplete: u64,
    /// Hardware samples whose data source is partly unknown to this version.
    pub unknown_sources: u64,
    /// The last unknown data source, in the kernel's encoding.
    pub unknown_source: u64,
    /// Accesses outside the selection, or without the selected event.
    pub left_out: u64,
    /// Bytes that were no valid records.
    pub malformed: u64,
    /// Records out of order of time.
    pub late: u64,
}

/// Parameters for turning hardware samples into accesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hardware {
    pub frequencies: Frequencies,
    /// Loads with a lower latency in cycles count as computation.
    pub min_latency_cycles: u32,
    pub event: PmuEvent,
}

/// The period that a clock sample's weight counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Period {
    /// The sample's own period, the same for all samples.
    #[default]
    Own,
    /// The period of the full rate, in nanoseconds, where several events sample in turns.
    Full(f32),
    /// The period of the first samples, in nanoseconds, where each sample has its own period.
    First(f32),
}

impl Period {
    /// Number of periods that a sample stands for, and their length in nanoseconds. The arguments are the number of
    /// the sample's own periods, and their length.
    #[inline]
    pub fn of(self, periods: f32, own_ns: f32) -> (f32, f32) {
        match self {
            Self::Own => (periods, own_ns),
            Self::Full(full_ns) => (periods, full_ns),
            Self::First(first_ns) => (own_ns / first_ns, first_ns),
        }
    }
}

/// State of the program as of the last record.
pub(crate) struct Follower {
    pub threads: Threads,
    spaces: AddressSpaces,
    pub thread_pointers: ThreadPointers,
    codes: Codes,
    pub identifiers: Identifiers,
    /// Number of periods that a sample stands for, by beginning time. More than 1 where sampling pauses, or runs below
    /// the full rate.
    pub periods_each: Vec<(u64, f32)>,
    pub period: Period,
    /// Whether to count busy threads; `busy` then has their number in the last round.
    pub counts_busy: bool,
    pub busy: Option<f64>,
    /// Number of samples so far, including kernel samples, and the time that they stand for.
    pub taken: u64,
    pub taken_ns: f64,
    pub hardware: Hardware,
    /// Processes that were running already; none if all processes were started under observation.
    pub discovery: Option<Discovery>,
    /// Weights of the samples of threads that are observed part of the time.
    weights: FxHashMap<u32, f32>,
    /// Cached values for the threads sampled last.
    lookaside: Lookaside,
    pub filter: Filter,
    pub accesses: Vec<Access>,
    pub events: Vec<Event>,
    pub undecoded: UndecodedCounts,
    undecoded_at: FxHashMap<(u32, u64), u64>,
    pub records: RecordCounts,
}

impl Follower {
    pub fn new(side: SkidSide, identifiers: Identifiers) -> Self {
        Self {
            threads: Threads::default(),
            spaces: AddressSpaces::default(),
            thread_pointers: ThreadPointers::default(),
            codes: Codes::new(side),
            identifiers,
            periods_each: Vec::new(),
            period: Period::Own,
            counts_busy: false,
            busy: None,
            taken: 0,
            taken_ns: 0.0,
            hardware: Hardware::default(),
            discovery: None,
            weights: FxHashMap::default(),
            lookaside: Lookaside::default(),
            filter: Filter::default(),
            accesses: Vec::new(),
            events: Vec::new(),
            undecoded: UndecodedCounts::default(),
            undecoded_at: FxHashMap::default(),
            records: RecordCounts::default(),
        }
    }

    /// Enters a new process or thread.
    pub fn begin(&mut self, time_ns: u64, pid: u32, tid: u32, parent_pid: u32) -> ThreadIndex {
        self.lookaside.clear();
        let thread = self.threads.begin(pid, tid);
        self.events.push(Event::Fork {
            time_ns,
            pid,
            tid,
            thread,
            parent_pid,
        });
        thread
    }

    #[inline]
    pub fn follow(&mut self, bytes: &[u8]) {
        match record::parse_clock_sample(bytes, &self.identifiers) {
            Some((origin, sample)) => {
                if let Some((sampled, thread)) = self.sampled_thread(&origin) {
                    self.sample(origin, sample, sampled, thread);
                }
            }
            None => self.follow_other(bytes),
        }
    }

    fn follow_other(&mut self, bytes: &[u8]) {
        let Ok(Record { origin, body }) = record::parse(bytes, &self.identifiers) else {
            self.records.malformed += 1;
            return;
        };
        match body {
            RecordBody::Memory(sample) => {
                if let Some((sampled, thread)) = self.sampled_thread(&origin) {
                    self.memory(origin, sample, sampled, thread);
                }
            }
            RecordBody::Fault { address } => self.fault(origin, address),
            RecordBody::Sideband(sideband) => self.sideband(origin, sideband),
            RecordBody::Sample(_) | RecordBody::Other => (),
        }
    }

    fn fault(&mut self, origin: record::Origin, address: u64) {
        if !self.meet_admitted(origin.pid) {
            return;
        }
        let thread = self.thread(origin.time_ns, origin.pid, origin.tid);
        self.events.push(Event::FirstTouch {
            time_ns: origin.time_ns,
            thread,
            cpu: origin.cpu,
            address,
        });
    }

    fn sideband(&mut self, origin: record::Origin, sideband: Sideband<'_>) {
        if !self.counts(&sideband) {
            return;
        }
        let time_ns = origin.time_ns;
        match sideband {
            Sideband::Aux(stretch) => self.records.incomplete += u64::from(stretch.incomplete),
            Sideband::Map(map) => self.map_record(time_ns, &map),
            Sideband::Name {
                pid,
                tid,
                name,
                exec,
            } => {
                if exec {
                    self.lookaside.clear();
                    self.spaces.remove(pid);
                    self.thread_pointers.forget(tid);
                    self.filter.clear(pid);
                    if let Some(discovery) = &mut self.discovery {
                        discovery.exec(pid);
                    }
                }
                let thread = self.thread(time_ns, pid, tid);
                let name = String::from_utf8_lossy(name).into_owned();
                self.events.push(Event::Name {
                    time_ns,
                    pid,
                    thread,
                    name,
                    exec,
                });
            }
            Sideband::Fork {
                pid,
                tid,
                parent_pid,
            } => {
                self.lookaside.clear();
                if let Some(discovery) = &mut self.discovery {
                    let found = self.threads.find(tid);
                    if found.is_some_and(|thread| self.threads.pid(thread) == pid) {
                        // The thread was met before its record came.
                        return;
                    }
                    if pid != parent_pid && !discovery.fork(parent_pid, pid) {
                        // The process is met at its first activity.
                        return;
                    }
                }
                if pid != parent_pid {
                    self.filter.fork(parent_pid, pid);
                    self.spaces.fork(parent_pid, pid);
                }
                self.begin(time_ns, pid, tid, parent_pid);
            }
            Sideband::Exit { pid, tid } => {
                self.end(time_ns, pid, tid);
            }
            Sideband::Lost { records } => {
                self.records.lost = self.records.lost.saturating_add(records);
                self.events.push(Event::Lost { time_ns, records });
                // The kernel names the thread that found the ring full, whoever's records were lost.
                if self.admits(origin.pid) {
                    let thread = self.thread(time_ns, origin.pid, origin.tid);
                    let lost = &mut self.threads.counts(thread).lost;
                    *lost = lost.saturating_add(records);
                }
            }
            Sideband::Throttle => self.records.throttled += 1,
        }
    }

    /// The thread `tid`, entered anew if its beginning was lost.
    fn thread(&mut self, time_ns: u64, pid: u32, tid: u32) -> ThreadIndex {
        match self.threads.find(tid) {
            Some(thread) if self.threads.pid(thread) == pid => thread,
            _ => self.begin(time_ns, pid, tid, pid),
        }
    }

    /// Enters the end of a thread.
    pub fn end(&mut self, time_ns: u64, pid: u32, tid: u32) {
        self.lookaside.clear();
        self.thread_pointers.forget(tid);
        if let Some(thread) = self.threads.end(tid) {
            self.events.push(Event::Exit { time_ns, thread });
        }
        if !self.threads.is_live(pid) {
            self.spaces.remove(pid);
            self.filter.clear(pid);
            if let Some(discovery) = &mut self.discovery {
                discovery.end(pid);
            }
        }
    }

    /// Whether a record counts. Meets the record's process.
    fn counts(&mut self, sideband: &Sideband<'_>) -> bool {
        match *sideband {
            // A process that ends, or executes another program, need not be met.
            Sideband::Exit { pid, .. }
            | Sideband::Name {
                pid, exec: true, ..
            } => self.admits(pid),
            Sideband::Map(Map { pid, .. })
            | Sideband::Name { pid, .. }
            | Sideband::Fork {
                parent_pid: pid, ..
            } => self.meet_admitted(pid),
            // Lost records count, whichever process found the ring full.
            Sideband::Lost { .. } | Sideband::Throttle | Sideband::Aux(_) => true,
        }
    }

    /// Sets the weights of threads that are observed part of the time.
    pub fn weigh(&mut self, weights: FxHashMap<u32, f32>) {
        self.lookaside.clear();
        self.weights = weights;
    }

    fn map_record(&mut self, time_ns: u64, map: &Map<'_>) {
        let mapping = Mapping {
            begin: map.address,
            end: map.address.saturating_add(map.length),
            file_offset: map.file_offset,
            protection: map.protection,
            shared: map.shared_file(),
            path: path_to_text(map.path),
        };
        match self.discovery.take() {
            None => self.map(time_ns, map.pid, &mapping, map.build_id.as_bytes()),
            Some(mut discovery) => {
                discovery.map(map.pid, &mapping, |part| {
                    self.map(time_ns, map.pid, &part, map.build_id.as_bytes());
                });
                self.discovery = Some(discovery);
            }
        }
    }

    fn map(&mut self, time_ns: u64, pid: u32, mapping: &Mapping, build_id: &[u8]) {
        self.filter.map(pid, mapping, build_id);
        let executable = mapping.protection & libc::PROT_EXEC as u32 != 0;
        let origin = executable.then(|| match mapping.of_file() {
            true => Origin::File {
                path: mapping.path.as_str().into(),
                build_id: build_id.into(),
            },
            false => Origin::Memory,
        });
        if let Some(origin) = &origin {
            self.codes.keep(pid, mapping.begin, origin);
        }
        let length = mapping.end - mapping.begin;
        self.spaces
            .of(pid)
            .map(mapping.begin, length, mapping.file_offset, origin);
        self.events.push(Event::Map {
            time_ns,
            pid,
            address: mapping.begin,
            length,
            file_offset: mapping.file_offset,
            protection: mapping.protection,
            shared: mapping.shared,
            path: mapping.path.clone(),
            build_id: build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        });
    }

    /// The places with the most undecoded samples.
    pub fn undecoded_places(&self, count: usize) -> Vec<UndecodedPlace> {
        let place = |(&(pid, sampled), &samples): (&(u32, u64), &u64)| UndecodedPlace {
            pid,
            sampled,
            samples,
        };
        let mut places: Vec<_> = self.undecoded_at.iter().map(place).collect();
        places.sort_unstable_by_key(|place| {
            (std::cmp::Reverse(place.samples), place.pid, place.sampled)
        });
        places.truncate(count);
        places
    }

    /// Follows the records of a round that are older than `before_ns`. Accesses are handed over as soon as there are
    /// `at_once`; the remainder stays.
    pub fn follow_all(
        &mut self,
        window: &mut Window,
        before_ns: u64,
        at_once: usize,
        rings: &mut [UnreadRecords<'_>],
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let mut result = Ok(());
        window.take(before_ns, rings, |record| {
            self.follow(record);
            if self.accesses.len() >= at_once && result.is_ok() {
                result = self.hand_over_so_far(sink);
            }
        });
        result
    }

    /// Hands all accesses, events and counts over to `sink`, and forgets them.
    pub fn hand_over(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        let Self {
            threads, events, ..
        } = self;
        if self.counts_busy {
            self.busy = threads.busy();
        }
        threads.take_changed(|thread, counts| events.push(Event::Counts { thread, counts }));
        self.hand_over_so_far(sink)
    }

    /// Hands over accesses and events in the middle of a round, without the threads' counts.
    fn hand_over_so_far(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        let Self {
            events, accesses, ..
        } = self;
        let result = match events.is_empty() {
            true => Ok(()),
            false => sink.events(events),
        };
        let result = result.and_then(|()| match accesses.is_empty() {
            true => Ok(()),
            false => sink.accesses(accesses),
        });
        self.events.clear();
        self.accesses.clear();
        result
    }
}

impl UndecodedCounts {
    fn of(&mut self, reason: Undecoded) -> &mut u64 {
        match reason {
            Undecoded::NoCode => &mut self.no_code,
            Undecoded::Ambiguous => &mut self.ambiguous,
            Undecoded::Overwritten => &mut self.overwritten,
            Undecoded::ThreadBase => &mut self.thread_base,
            Undecoded::VectorIndex => &mut self.vector_index,
        }
    }
}

mod running;
mod samples;
#[cfg(test)]
mod tests;
