//! Opens perf events CPU by CPU, and adapts to the kernel's limits.

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

pub(crate) struct Opening {
    /// Events of the PMU; none for the clock source.
    memory: Vec<MemoryEvent>,
    clock: Attributes,
    tracking: Attributes,
    ring_bytes: usize,
    page_bytes: usize,
    pub period_ns: u64,
    /// If the rate changes within a budget: the requested period, and the periods of further clock events.
    given_ns: Option<u64>,
    faster_ns: Vec<u64>,
    /// Bit set of the events that are on from the start.
    pub on: u32,
    /// Whether sampling starts later.
    pub deferred: bool,
    /// Whether events start with the command's exec, instead of at once.
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
                // The number of samples per second is unknown.
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
        // Mappings and threads are tracked from the beginning, even if the clock starts later.
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

    /// Number of open files for observing one task on all `cpus`.
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

    /// Opens clock events with these rates, the slowest first. The events in `on` are switched on at first.
    pub fn change_rates(&mut self, rates_hz: &[f64], on: u32) {
        let full_hz = rates_hz.iter().sum::<f64>();
        // Room for half a second of samples, as rings are read many times in this period while samples come fast.
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

    /// Opens one event at the requested rate instead. Returns whether several had been planned.
    pub fn keep_rate(&mut self) -> bool {
        let Some(given_ns) = self.given_ns.take() else {
            return false;
        };
        self.on = ALL_EVENTS;
        self.period_ns = given_ns;
        self.faster_ns.clear();
        true
    }

    /// Whether the rate can be changed by switching between events.
    pub fn changes_rates(&self) -> bool {
        self.given_ns.is_some()
    }

    /// Stops children from inheriting events.
    pub fn without_children(&mut self) {
        self.clock.flags &= !flag::INHERIT;
        self.tracking.flags &= !flag::INHERIT;
    }

    /// Makes room for records of a whole machine, where programs that start map their libraries.
    pub fn for_the_machine(&mut self) {
        self.ring_bytes = self.ring_bytes.max(MACHINE_RING_BYTES);
        self.clock.wakeup_watermark = (self.ring_bytes / 8) as u32;
        self.tracking.wakeup_watermark = self.clock.wakeup_watermark;
    }

    /// Whether all threads on `cpu` may be observed. The error is the kernel's.
    pub fn machine_wide(&self, cpu: CpuId) -> io::Result<()> {
        self.try_scope(Scope::MachineOn(cpu))
    }

    /// Whether an event may be opened in this scope.
    pub fn try_scope(&self, scope: Scope) -> io::Result<()> {
        let mut clock = self.clock;
        clock.flags |= flag::EXCLUDE_KERNEL;
        PerfEvent::open(&clock, scope).map(drop)
    }

    /// Opens the events of `task` in `scope`, with the CPU's ring from `rings` or a new ring.
    pub fn open(
        &mut self,
        rings: &mut Vec<CpuRing>,
        cpu: CpuId,
        scope: Scope,
        task: u32,
    ) -> Result<(), Error> {
        // The tracking event comes first, so that threads created meanwhile are known.
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
        // Redirecting an event to a ring a second time takes milliseconds.
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

    /// Opens the sampling events of a CPU. Also returns the event whose samples come as packets, with its period.
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

    /// Opens the clock event, and faster ones beside it.
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

    /// Maps room for packets, or less if the kernel refuses to lock as much.
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

    /// Maps the ring, or a smaller one if the kernel refuses to lock as much.
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

/// Room for 16,384 packets of Arm's SPE: more than a second's.
const AUX_BYTES: usize = 1 << 20;

const RING_BYTES_MAX: usize = 8 << 20;

const MACHINE_RING_BYTES: usize = 4 << 20;

/// Room for two seconds of samples, between 512 KiB (which the kernel locks for any user) and 8 MiB.
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
