//! Opens events, with what the first ones taught.

use std::io;
use std::path::{Path, PathBuf};

use nearpage_machine::CpuId;
use nearpage_perf_abi::{Attributes, event, flag};
use nearpage_recording::Source;
use rustc_hash::FxHashMap;

use crate::architecture::REGISTER_MASK;
use crate::calibrate::page_bytes;
use crate::cpu_ring::{ALL_EVENTS, CpuRing, Events, Packets, Sampling};
use crate::error::{Error, Refusal};
use crate::perf_event::{PerfEvent, READ_TIMES, Scope, software_attributes};
use crate::pmu::MemoryEvent;
use crate::record::{CLOCK_SAMPLE, FAULT_SAMPLE, Identifiers};
use crate::ring::Ring;
use crate::sampler::{Options, now_ns};
use crate::target::Target;

/// Opens events for one CPU after another.
pub(crate) struct Opening {
    /// Those of the PMU; none: the clock.
    memory: Vec<MemoryEvent>,
    clock: Attributes,
    tracking: Attributes,
    ring_bytes: usize,
    page_bytes: usize,
    pub period_ns: u64,
    /// Where the rate changes within a budget: the period that was given, and those of further clock
    /// events.
    given_ns: Option<u64>,
    faster_ns: Vec<u64>,
    /// Events that are on from the start, a bit for each.
    pub on: u32,
    /// Sampling starts later.
    pub deferred: bool,
    /// Events start with the command; otherwise as soon as they are there.
    at_exec: bool,
    pub identifiers: Identifiers,
    pub notes: Vec<String>,
    proc_root: PathBuf,
}

impl Opening {
    pub fn new(options: &Options, source: Source, rate_hz: f64) -> Result<Self, Error> {
        let page_bytes = page_bytes();
        let period_ns = (1e9 / rate_hz).round() as u64;
        let deferred = !options.after.is_zero();
        let at_exec = matches!(options.target, Target::Command(_));
        let mut ring_bytes = ring_bytes(rate_hz, page_bytes);
        let mut memory = Vec::new();
        if source == Source::Pmu {
            let events = options
                .pmu
                .events(rate_hz, &options.sys_root, &options.proc_root);
            memory = events.map_err(Error::NoSource)?;
            if options.pmu.period.is_some() {
                // How many will come is not known.
                ring_bytes = RING_BYTES_MAX;
            }
        }
        let mut clock = software_attributes(event::CPU_CLOCK);
        clock.sample_period = period_ns;
        clock.sample_type = CLOCK_SAMPLE;
        clock.sample_regs_user = REGISTER_MASK;
        clock.flags |= flag::INHERIT | flag::SAMPLE_ID_ALL | flag::WATERMARK | flag::EXCLUDE_IDLE;
        if !deferred && at_exec {
            clock.flags |= flag::ENABLE_ON_EXEC;
        }
        clock.wakeup_watermark = (ring_bytes / 4) as u32;
        // Mappings and threads are followed from the beginning, whenever the clock starts.
        let mut tracking = software_attributes(event::PAGE_FAULTS);
        tracking.sample_period = options.fault_period;
        tracking.sample_type = FAULT_SAMPLE;
        tracking.read_format = READ_TIMES;
        tracking.flags |= flag::INHERIT
            | flag::SAMPLE_ID_ALL
            | flag::WATERMARK
            | flag::MMAP
            | flag::MMAP2
            | flag::MMAP_DATA
            | flag::COMM
            | flag::COMM_EXEC
            | flag::TASK
            | flag::BUILD_ID;
        if at_exec {
            tracking.flags |= flag::ENABLE_ON_EXEC;
        }
        tracking.wakeup_watermark = clock.wakeup_watermark;
        Ok(Self {
            memory,
            clock,
            tracking,
            ring_bytes,
            page_bytes,
            period_ns,
            given_ns: None,
            faster_ns: Vec::new(),
            on: ALL_EVENTS,
            deferred,
            at_exec,
            identifiers: Identifiers::default(),
            notes: Vec::new(),
            proc_root: options.proc_root.clone(),
        })
    }

    /// Files that observing one task takes on all `cpus`.
    pub fn files(&self, cpus: &[CpuId]) -> usize {
        let faster = self.faster_ns.len();
        let sampling = |cpu: &CpuId| match self.memory.is_empty() {
            true => 1 + faster,
            false => {
                let here = self.memory.iter().filter(|event| event.on(*cpu));
                here.map(MemoryEvent::files).sum()
            }
        };
        cpus.iter().map(|cpu| 1 + sampling(cpu)).sum()
    }

    /// Opens clock events of these rates, the slowest first, of which those of `on` are on at first.
    pub fn change_rates(&mut self, rates_hz: &[f64], on: u32) {
        let full_hz = rates_hz.iter().sum::<f64>();
        // Half a second of samples: while they come fast, they are read many times in that.
        let ring_bytes = ring_bytes(full_hz / 4.0, self.page_bytes);
        self.ring_bytes = self.ring_bytes.max(ring_bytes);
        self.clock.wakeup_watermark = (self.ring_bytes / 4) as u32;
        self.tracking.wakeup_watermark = self.clock.wakeup_watermark;
        let period_ns = |rate_hz: &f64| (1e9 / rate_hz).round() as u64;
        self.given_ns = Some(self.period_ns);
        self.period_ns = period_ns(&rates_hz[0]);
        self.faster_ns = rates_hz[1..].iter().map(period_ns).collect();
        self.on = on;
    }

    /// Opens one of the given rate instead. Says whether it was to be several.
    pub fn keep_rate(&mut self) -> bool {
        let Some(given_ns) = self.given_ns.take() else {
            return false;
        };
        self.on = ALL_EVENTS;
        self.period_ns = given_ns;
        self.faster_ns.clear();
        true
    }

    /// May the rate change by switching between events?
    pub fn changes_rates(&self) -> bool {
        self.given_ns.is_some()
    }

    /// Children are not followed by their parents' events.
    pub fn without_children(&mut self) {
        self.clock.flags &= !flag::INHERIT;
        self.tracking.flags &= !flag::INHERIT;
    }

    /// Makes room for what a whole machine does: programs that begin map their libraries.
    pub fn for_the_machine(&mut self) {
        self.ring_bytes = self.ring_bytes.max(MACHINE_RING_BYTES);
        self.clock.wakeup_watermark = (self.ring_bytes / 8) as u32;
        self.tracking.wakeup_watermark = self.clock.wakeup_watermark;
    }

    /// May everything on `cpu` be observed? The error is the kernel's.
    pub fn machine_wide(&self, cpu: CpuId) -> io::Result<()> {
        self.try_scope(Scope::MachineOn(cpu))
    }

    /// May an event be opened there?
    pub fn try_scope(&self, scope: Scope) -> io::Result<()> {
        let mut clock = self.clock;
        clock.flags |= flag::EXCLUDE_KERNEL;
        PerfEvent::open(&clock, scope).map(drop)
    }

    /// Opens the events of `task` in `scope`, on the CPU of one of `rings`, or of a new ring.
    pub fn open(
        &mut self,
        rings: &mut Vec<CpuRing>,
        cpu: CpuId,
        scope: Scope,
        task: u32,
    ) -> Result<(), Error> {
        // The tracking comes first: who is born meanwhile is known.
        let tracking = self.open_tracking(scope)?;
        let mut position = rings.iter().position(|ring| ring.cpu == cpu);
        if let Some(position) = position {
            self.write_to(&tracking, &rings[position].owner)?;
            if !self.at_exec {
                let _ = tracking.enable();
            }
        }
        let opened_ns = now_ns();
        let (sampling, packets) = self.open_sampling(scope, cpu)?;
        let id = tracking.id();
        let id = id.map_err(|error| refused(error, &self.proc_root))?;
        // To write an event to a ring a second time takes milliseconds.
        let mut to_write: Vec<&PerfEvent> = sampling.iter().map(Sampling::event).collect();
        if position.is_none() {
            to_write.push(&tracking);
            let owner = to_write.remove(0);
            let mut ring = self.map(owner)?;
            if packets.is_some() {
                self.map_aux(&mut ring, owner)?;
            }
            position = Some(rings.len());
            let owner = owner.again();
            rings.push(CpuRing {
                cpu,
                ring,
                owner: owner.map_err(|error| refused(error, &self.proc_root))?,
                owner_ended: false,
                events: FxHashMap::default(),
                packets,
            });
        }
        let ring = &mut rings[position.expect("there, or just made")];
        for event in to_write {
            self.write_to(event, &ring.owner)?;
        }
        let at = self.identifiers.faults.partition_point(|other| *other < id);
        self.identifiers.faults.insert(at, id);
        let is_on = self.at_exec && !self.deferred;
        let mut events = Events {
            sampling,
            tracking,
            sampled_ns: 0,
            on_since_ns: is_on.then_some(0),
            on: if is_on { self.on } else { 0 },
            hardware: !self.memory.is_empty(),
            opened_ns,
        };
        if !self.at_exec {
            let _ = events.tracking.enable();
            if !self.deferred {
                events.switch(self.on);
            }
        }
        ring.events.insert(task, events);
        Ok(())
    }

    fn write_to(&self, event: &PerfEvent, owner: &PerfEvent) -> Result<(), Error> {
        event
            .write_to(owner)
            .map_err(|error| refused(error, &self.proc_root))
    }

    /// The sampling events of a CPU, and the one whose samples come as packets, with its period.
    fn open_sampling(
        &mut self,
        scope: Scope,
        cpu: CpuId,
    ) -> Result<(Vec<Sampling>, Option<Packets>), Error> {
        if self.memory.is_empty() {
            return Ok((self.open_clocks(scope)?, None));
        }
        let mut sampling = Vec::new();
        let mut packets = None;
        let flags = self.clock.flags & (flag::ENABLE_ON_EXEC | flag::INHERIT);
        for event in self.memory.iter().filter(|event| event.on(cpu)) {
            let refused = |source| Error::PmuRefused {
                event: event.name.clone(),
                source,
            };
            let events = event
                .open(scope, flags | flag::SAMPLE_ID_ALL)
                .map_err(refused)?;
            let events = Sampling(events);
            let id = events.event().id().map_err(refused)?;
            let memory = &mut self.identifiers.memory;
            let at = memory.partition_point(|(other, _)| *other < id);
            memory.insert(at, (id, event.form));
            if event.packets {
                packets = Some((id, event.attributes.sample_period));
            }
            sampling.push(events);
        }
        Ok((sampling, packets))
    }

    /// The clock event, and faster ones beside it.
    fn open_clocks(&mut self, scope: Scope) -> Result<Vec<Sampling>, Error> {
        let as_all = self.clock;
        let faster = self.faster_ns.clone();
        let periods = std::iter::once(self.period_ns).chain(faster);
        let mut sampling = Vec::new();
        for (number, period_ns) in periods.enumerate() {
            self.clock.sample_period = period_ns;
            if self.on >> number & 1 == 0 {
                self.clock.flags &= !flag::ENABLE_ON_EXEC;
            }
            let event = self.open_clock(scope);
            self.clock.sample_period = as_all.sample_period;
            self.clock.flags |= as_all.flags & flag::ENABLE_ON_EXEC;
            sampling.push(Sampling(vec![event?]));
        }
        Ok(sampling)
    }

    fn open_clock(&mut self, scope: Scope) -> Result<PerfEvent, Error> {
        match PerfEvent::open(&self.clock, scope) {
            Err(error) if denied(&error) && self.clock.flags & flag::EXCLUDE_KERNEL == 0 => {
                self.clock.flags |= flag::EXCLUDE_KERNEL;
                self.tracking.flags |= flag::EXCLUDE_KERNEL;
                let event = PerfEvent::open(&self.clock, scope)
                    .map_err(|error| refused(error, &self.proc_root))?;
                self.notes.push(
                    "time in the kernel is not sampled: kernel.perf_event_paranoid is 2 or more; \
                     `sysctl kernel.perf_event_paranoid=1` or CAP_PERFMON allows it"
                        .to_owned(),
                );
                Ok(event)
            }
            result => result.map_err(|error| refused(error, &self.proc_root)),
        }
    }

    fn open_tracking(&mut self, scope: Scope) -> Result<PerfEvent, Error> {
        match PerfEvent::open(&self.tracking, scope) {
            Err(error) if denied(&error) && self.tracking.flags & flag::EXCLUDE_KERNEL == 0 => {
                self.tracking.flags |= flag::EXCLUDE_KERNEL;
                self.open_tracking(scope)
            }
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && self.tracking.flags & flag::BUILD_ID != 0 =>
            {
                self.tracking.flags &= !flag::BUILD_ID;
                self.open_tracking(scope)
            }
            result => result.map_err(|error| refused(error, &self.proc_root)),
        }
    }

    /// Maps room for packets, less where the kernel won't lock as much.
    fn map_aux(&self, ring: &mut Ring, event: &PerfEvent) -> Result<(), Error> {
        let mut bytes = AUX_BYTES.max(2 * self.page_bytes);
        loop {
            match ring.map_aux(event, bytes) {
                Err(error) if denied(&error) && bytes > 2 * self.page_bytes => bytes /= 2,
                result => {
                    return result.map_err(|source| Error::PmuRefused {
                        event: "memory for packets of arm_spe".to_owned(),
                        source,
                    });
                }
            }
        }
    }

    /// Maps the ring, a smaller one where the kernel won't lock as much.
    fn map(&mut self, event: &PerfEvent) -> Result<Ring, Error> {
        loop {
            match Ring::map(event, self.page_bytes, self.ring_bytes) {
                Err(error) if denied(&error) && self.ring_bytes > 4 * self.page_bytes => {
                    self.ring_bytes /= 2
                }
                result => {
                    return result.map_err(|source| Error::RingRefused {
                        bytes: self.ring_bytes,
                        source,
                    });
                }
            }
        }
    }
}

/// Room for 16,384 packets of Arm's SPE, a second's and more.
const AUX_BYTES: usize = 1 << 20;

const RING_BYTES_MAX: usize = 8 << 20;

const MACHINE_RING_BYTES: usize = 4 << 20;

/// Room for two seconds of samples, between 512 KiB (what the kernel locks for anybody) and 8 MiB.
fn ring_bytes(rate_hz: f64, page_bytes: usize) -> usize {
    const SAMPLE_BYTES: f64 = 200.0;
    let wanted = (rate_hz * SAMPLE_BYTES * 2.0) as usize;
    wanted
        .next_power_of_two()
        .clamp(512 << 10, RING_BYTES_MAX)
        .max(page_bytes)
}

fn refused(error: io::Error, proc_root: &Path) -> Error {
    Error::Refused(Refusal::explain(error, proc_root))
}

fn denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}
