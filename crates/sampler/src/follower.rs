//! Follows the program from record to record: threads, mappings, samples. Asks the kernel for
//! nothing but code bytes.

use std::io;

use nearpage_recording::{Access, AccessBatch, AccessKind, Event, Level, Resolution, ThreadIndex};
use rustc_hash::FxHashMap;

use crate::address_space::{AddressSpace, Codes, Origin};
use crate::calibrate::Side;
use crate::pmu::{Frequencies, MemorySample, Observation};
use crate::record::{self, Body, Identifiers, Map, Record, Sample};
use crate::threads::Threads;
use crate::verdict::{GENERAL_REGISTERS, THREAD_POINTER, Template, Undecoded, Verdict};

/// Receives what is observed, in order of time as far as the kernel's records allow.
pub trait Sink {
    /// Accesses; the batch is reused after the call.
    fn accesses(&mut self, batch: &AccessBatch) -> io::Result<()>;
    /// What the kernel reported besides.
    fn events(&mut self, events: &[Event]) -> io::Result<()>;
}

/// Samples without an access, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndecodedCounts {
    /// No code bytes: the file is gone or was replaced, or the process ended too soon.
    pub no_code: u64,
    /// Instruction boundaries could not be told.
    pub ambiguous: u64,
    /// Address registers had been overwritten.
    pub overwritten: u64,
    /// Relative to FS, where samples do not tell its base, or to GS.
    pub thread_base: u64,
    /// Vector gathers and scatters.
    pub vector_index: u64,
    /// The kernel gave no user registers.
    pub no_registers: u64,
    /// The hardware gave no address.
    pub no_address: u64,
}

/// A place in a program whose samples could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndecodedPlace {
    /// Process.
    pub pid: u32,
    /// Sampled instruction pointer.
    pub sampled: u64,
    /// Samples there.
    pub samples: u64,
}

/// Records that are not what they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Dropped by the kernel for want of room.
    pub lost: u64,
    /// How often the kernel stopped the clock, or a hardware event, for the rest of a tick.
    pub throttled: u64,
    /// Stretches of hardware samples (Arm SPE) that are not whole: memory was full, or samples
    /// came too close to each other.
    pub incomplete: u64,
    /// Bytes that were no records.
    pub malformed: u64,
    /// Out of order of time.
    pub late: u64,
}

/// What it takes to make accesses of hardware samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hardware {
    pub frequencies: Frequencies,
    /// Loads quicker than this many cycles count as computation.
    pub min_latency_cycles: u32,
}

/// State of the program as of the last record.
pub(crate) struct Follower {
    pub threads: Threads,
    spaces: FxHashMap<u32, AddressSpace>,
    codes: Codes,
    identifiers: Identifiers,
    /// How many of its periods a sample stands for, and since when: more than 1 where sampling
    /// pauses.
    pub periods_each: Vec<(u64, f32)>,
    /// Samples so far, of the kernel too, and the time that they stand for.
    pub taken: u64,
    pub taken_ns: f64,
    pub hardware: Hardware,
    pub batch: AccessBatch,
    /// Process of each access in `batch`.
    pub batch_pids: Vec<u32>,
    pub events: Vec<Event>,
    pub undecoded: UndecodedCounts,
    undecoded_at: FxHashMap<(u32, u64), u64>,
    pub records: RecordCounts,
}

impl Follower {
    /// A follower of an empty program.
    pub fn new(side: Side, identifiers: Identifiers) -> Self {
        Self {
            threads: Threads::default(),
            spaces: FxHashMap::default(),
            codes: Codes::new(side),
            identifiers,
            periods_each: Vec::new(),
            taken: 0,
            taken_ns: 0.0,
            hardware: Hardware::default(),
            batch: AccessBatch::default(),
            batch_pids: Vec::new(),
            events: Vec::new(),
            undecoded: UndecodedCounts::default(),
            undecoded_at: FxHashMap::default(),
            records: RecordCounts::default(),
        }
    }

    /// A process or thread began.
    pub fn begin(&mut self, time_ns: u64, pid: u32, tid: u32, parent_pid: u32) -> ThreadIndex {
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

    /// Takes one record in.
    pub fn follow(&mut self, bytes: &[u8]) {
        let Ok(Record { origin, body }) = record::parse(bytes, &self.identifiers) else {
            self.records.malformed += 1;
            return;
        };
        let time_ns = origin.time_ns;
        match body {
            Body::Sample(sample) => self.sample(origin, sample),
            Body::Memory(sample) => self.memory(origin, sample),
            Body::Aux(stretch) => self.records.incomplete += u64::from(stretch.incomplete),
            Body::Fault { address } => {
                let thread = self.thread(time_ns, origin.pid, origin.tid);
                self.events.push(Event::FirstTouch {
                    time_ns,
                    thread,
                    cpu: origin.cpu,
                    address,
                });
            }
            Body::Map(map) => self.map(time_ns, map),
            Body::Name {
                pid,
                tid,
                name,
                exec,
            } => {
                if exec {
                    self.spaces.remove(&pid);
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
            Body::Fork {
                pid,
                tid,
                parent_pid,
            } => {
                if pid != parent_pid {
                    let space = self.spaces.get(&parent_pid).map(AddressSpace::forked);
                    self.spaces.insert(pid, space.unwrap_or_default());
                }
                self.begin(time_ns, pid, tid, parent_pid);
            }
            Body::Exit { pid, tid } => {
                if let Some(thread) = self.threads.end(tid) {
                    self.events.push(Event::Exit { time_ns, thread });
                }
                if !self.threads.is_live(pid) {
                    self.spaces.remove(&pid);
                }
            }
            Body::Lost { records } => {
                self.records.lost = self.records.lost.saturating_add(records);
                self.events.push(Event::Lost { time_ns, records });
                // The kernel says which thread found the ring full, not whose records are gone.
                let thread = self.thread(time_ns, origin.pid, origin.tid);
                let lost = &mut self.threads.counts(thread).lost;
                *lost = lost.saturating_add(records);
            }
            Body::Throttle => self.records.throttled += 1,
            Body::Other => (),
        }
    }

    /// The thread `tid`, which is new if its beginning was lost.
    fn thread(&mut self, time_ns: u64, pid: u32, tid: u32) -> ThreadIndex {
        match self.threads.find(tid) {
            Some(thread) if self.threads.pid(thread) == pid => thread,
            _ => self.begin(time_ns, pid, tid, pid),
        }
    }

    fn map(&mut self, time_ns: u64, map: Map<'_>) {
        let path = String::from_utf8_lossy(map.path);
        let executable = map.protection & libc::PROT_EXEC as u32 != 0;
        let origin = executable.then(|| {
            if path.starts_with('/') && !path.starts_with("//") {
                Origin::File {
                    path: (*path).into(),
                    build_id: map.build_id.into(),
                }
            } else {
                Origin::Memory
            }
        });
        self.spaces.entry(map.pid).or_default().map(
            map.address,
            map.length,
            map.file_offset,
            origin,
        );
        self.events.push(Event::Map {
            time_ns,
            pid: map.pid,
            address: map.address,
            length: map.length,
            file_offset: map.file_offset,
            protection: map.protection,
            path: path.into_owned(),
            build_id: map
                .build_id
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        });
    }

    fn sample(&mut self, origin: record::Origin, sample: Sample<'_>) {
        let thread = self.thread(origin.time_ns, origin.pid, origin.tid);
        self.threads.seen_on(thread, origin.cpu);
        let periods = self.periods_at(origin.time_ns);
        self.taken += 1;
        self.taken_ns += sample.period_ns as f64 * f64::from(periods);
        let counts = self.threads.counts(thread);
        if !sample.user {
            counts.kernel += 1;
            return;
        }
        counts.samples += 1;
        let Some(general) = sample.registers::<GENERAL_REGISTERS>() else {
            counts.undecoded += 1;
            self.undecoded.no_registers += 1;
            return;
        };
        let thread_pointer = sample.thread_pointer::<GENERAL_REGISTERS>();
        let mut registers = [0; GENERAL_REGISTERS + 1];
        registers[..GENERAL_REGISTERS].copy_from_slice(&general);
        registers[usize::from(THREAD_POINTER)] = thread_pointer.unwrap_or(0);
        let space = self.spaces.entry(origin.pid).or_default();
        match space.verdict(origin.pid, sample.ip, sample.compatible, &mut self.codes) {
            Verdict::Compute => counts.compute += 1,
            Verdict::Undecoded(reason) => {
                counts.undecoded += 1;
                *self.undecoded.of(*reason) += 1;
                *self
                    .undecoded_at
                    .entry((origin.pid, sample.ip))
                    .or_default() += 1;
            }
            Verdict::Accesses { templates, .. }
                if thread_pointer.is_none()
                    && templates.iter().any(Template::needs_thread_pointer) =>
            {
                counts.undecoded += 1;
                self.undecoded.thread_base += 1;
            }
            Verdict::Accesses {
                templates,
                resolution,
            } => {
                counts.accesses += 1;
                let weight = periods / templates.len() as f32;
                for template in templates {
                    self.batch_pids.push(origin.pid);
                    self.batch.push(Access {
                        time_ns: origin.time_ns,
                        thread,
                        cpu: origin.cpu,
                        address: template.address(&registers),
                        instruction: template.instruction,
                        kind: template.kind,
                        level: Level::Unknown,
                        resolution: *resolution,
                        distance_bytes: template.distance_bytes,
                        weight,
                        cost_ns: sample.period_ns as f32 * weight,
                        page_node: None,
                    });
                }
            }
        }
    }

    fn memory(&mut self, origin: record::Origin, sample: MemorySample) {
        let thread = self.thread(origin.time_ns, origin.pid, origin.tid);
        self.threads.seen_on(thread, origin.cpu);
        let periods = self.periods_at(origin.time_ns);
        self.taken += 1;
        let counts = self.threads.counts(thread);
        if !sample.user {
            counts.kernel += 1;
            return;
        }
        counts.samples += 1;
        let (ip, address, kind, level, latency_cycles) = match sample.observation {
            Observation::Access {
                ip,
                address,
                kind,
                level,
                latency_cycles,
            } => (ip, address, kind, level, latency_cycles),
            Observation::NoAccess => {
                counts.compute += 1;
                return;
            }
            Observation::NoAddress => {
                counts.undecoded += 1;
                self.undecoded.no_address += 1;
                return;
            }
        };
        if kind == AccessKind::Load && latency_cycles < self.hardware.min_latency_cycles {
            counts.compute += 1;
            return;
        }
        counts.accesses += 1;
        let weight = sample.period as f32 * periods;
        let latency_ns = self
            .hardware
            .frequencies
            .nanoseconds(origin.cpu, latency_cycles);
        self.batch_pids.push(origin.pid);
        self.batch.push(Access {
            time_ns: origin.time_ns,
            thread,
            cpu: origin.cpu,
            address,
            instruction: ip,
            kind,
            level,
            resolution: Resolution::Exact,
            distance_bytes: 0,
            weight,
            cost_ns: latency_ns * weight,
            page_node: None,
        });
    }

    /// How many of its periods a sample of this time stands for.
    fn periods_at(&self, time_ns: u64) -> f32 {
        let since = |(since_ns, _): &&(u64, f32)| *since_ns <= time_ns;
        self.periods_each
            .iter()
            .rev()
            .find(since)
            .map_or(1.0, |(_, periods)| *periods)
    }

    /// The places with most undecoded samples.
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

    /// Hands everything over to `sink` and forgets it.
    pub fn hand_over(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        let Self {
            threads,
            events,
            batch,
            ..
        } = self;
        threads.take_changed(|thread, counts| events.push(Event::Counts { thread, counts }));
        let result = match events.is_empty() {
            true => Ok(()),
            false => sink.events(events),
        };
        let result = result.and_then(|()| match batch.is_empty() {
            true => Ok(()),
            false => sink.accesses(batch),
        });
        self.events.clear();
        self.batch.clear();
        self.batch_pids.clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{record, trailer};

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn fork(time_ns: u64, pid: u32, tid: u32, parent: u32) -> Vec<u8> {
        let body = [
            words(&[pid, parent, tid, parent, 0, 0]),
            trailer(parent, parent, time_ns, 0),
        ];
        record(7, 0, &body.concat())
    }

    fn exit(time_ns: u64, pid: u32, tid: u32) -> Vec<u8> {
        record(
            4,
            0,
            &[
                words(&[pid, pid, tid, pid, 0, 0]),
                trailer(pid, tid, time_ns, 0),
            ]
            .concat(),
        )
    }

    fn sample(time_ns: u64, pid: u32, tid: u32, user: bool) -> Vec<u8> {
        let tids = u64::from(pid) | u64::from(tid) << 32;
        let mut body: Vec<u8> = [0, 0x1234, tids, time_ns, 1, 1000, 2]
            .iter()
            .flat_map(|word: &u64| word.to_ne_bytes())
            .collect();
        body.extend([0; 8 * GENERAL_REGISTERS]);
        record(9, if user { 2 } else { 1 }, &body)
    }

    #[test]
    fn threads_are_numbered_and_every_sample_counted() {
        let mut follower = Follower::new(Side::Before, Identifiers::default());
        follower.begin(1, 10, 10, 1);
        for bytes in [
            fork(2, 10, 11, 10),
            sample(3, 10, 11, true),
            sample(4, 10, 11, false),
            exit(5, 10, 11),
            fork(6, 10, 11, 10),
            sample(7, 10, 11, true),
            // Its beginning was lost.
            sample(8, 10, 12, true),
            record(9, 2, &[0; 3]),
        ] {
            follower.follow(&bytes);
        }
        let counts: Vec<_> = follower
            .threads
            .all()
            .iter()
            .map(|t| (t.tid, t.counts.samples, t.counts.kernel))
            .collect();
        assert_eq!(counts, [(10, 0, 0), (11, 1, 1), (11, 1, 0), (12, 1, 0)]);
        assert_eq!(
            (follower.undecoded.no_code, follower.records.malformed),
            (3, 1)
        );
        assert_eq!(follower.undecoded_places(1).len(), 1);
        let forks = follower
            .events
            .iter()
            .filter(|event| matches!(event, Event::Fork { .. }))
            .count();
        assert_eq!(forks, 4);
    }

    #[test]
    fn hardware_samples_become_accesses_with_weight_and_cost() {
        use crate::pmu::{Form, Precise};
        let identifiers = Identifiers {
            memory: vec![(7, Form::Precise(AccessKind::Load))],
            ..Identifiers::default()
        };
        let mut follower = Follower::new(Side::Before, identifiers);
        follower.hardware.min_latency_cycles = 30;
        let load = Precise {
            id: 7,
            ip: 0x40_1000,
            pid: 10,
            tid: 11,
            time_ns: 5,
            address: 0x7f00,
            cpu: 3,
            period: 1000,
            // 100 ns at the 2.5 GHz that are assumed.
            latency_cycles: 250,
            data_src: 0x102 | 0xd << 33 | 1 << 37,
        };
        let quick = Precise {
            latency_cycles: 29,
            ..load
        };
        let store = Precise {
            latency_cycles: 0,
            data_src: 0x104,
            ..load
        };
        let nowhere = Precise { address: 0, ..load };
        for (misc, sample) in [(2, load), (2, quick), (2, store), (2, nowhere), (1, load)] {
            follower.follow(&record(9, misc, &sample.body()));
        }
        let counts = follower.threads.all()[0].counts;
        assert_eq!((counts.samples, counts.accesses, counts.compute), (4, 2, 1));
        assert_eq!((counts.undecoded, counts.kernel), (1, 1));
        assert_eq!(follower.undecoded.no_address, 1);
        assert_eq!(follower.batch.len(), 2);
        let (load, store) = (follower.batch.get(0), follower.batch.get(1));
        assert_eq!(
            (load.address, load.instruction, load.cpu.0),
            (0x7f00, 0x40_1000, 3)
        );
        assert_eq!((load.weight, load.cost_ns), (1000.0, 100_000.0));
        assert_eq!(
            (load.kind, load.level),
            (AccessKind::Load, Level::RemoteMemory)
        );
        assert_eq!((store.kind, store.cost_ns), (AccessKind::Store, 0.0));
    }

    #[test]
    fn losses_beyond_counting_stay_at_the_end_of_the_scale() {
        let mut follower = Follower::new(Side::Before, Identifiers::default());
        let body = [vec![0xff; 16], trailer(10, 10, 1, 0)].concat();
        follower.follow(&record(2, 0, &body));
        follower.follow(&record(2, 0, &body));
        assert_eq!(follower.records.lost, u64::MAX);
    }

    #[test]
    fn what_a_sink_refuses_is_an_error() {
        struct Full;
        impl Sink for Full {
            fn accesses(&mut self, _: &AccessBatch) -> io::Result<()> {
                Ok(())
            }
            fn events(&mut self, _: &[Event]) -> io::Result<()> {
                Err(io::Error::other("disk full"))
            }
        }
        let mut follower = Follower::new(Side::Before, Identifiers::default());
        assert!(follower.hand_over(&mut Full).is_ok());
        follower.begin(1, 10, 10, 1);
        assert!(follower.hand_over(&mut Full).is_err());
        assert!(follower.events.is_empty());
    }
}
