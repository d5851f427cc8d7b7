//! Which memory-sampling events a machine has, and how to open them.

use std::fs;
use std::io;
use std::path::Path;

use nearpage_machine::CpuId;
use nearpage_perf_abi::{Attributes, flag, sample_type as st};
use nearpage_recording::AccessKind;

use super::devices::Device;
use super::sample::{Form, IBS_SAMPLE, PRECISE_SAMPLE};
use crate::perf_event::{PerfEvent, Scope, device_attributes};

/// Loads quicker than this many cycles are left out, where nothing else is asked for: they were
/// served by the core's own caches, which placement does not change. (perf mem has the same.)
pub const DEFAULT_MIN_LATENCY_CYCLES: u32 = 30;

/// Operations between two samples of Arm's SPE, which cannot be asked for a rate.
const SPE_PERIOD: u64 = 1 << 20;

/// Which accesses to sample with a PMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PmuEvent {
    /// All that are not too quick.
    #[default]
    Access,
    /// Those for which no TLB had the page (Marathe §3.2: the second source of traces). Arm's SPE
    /// can be told so; of Intel's and AMD's samples the recorder keeps these.
    DtlbMiss,
}

/// What to sample with a PMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmuOptions {
    /// Loads quicker than this count as computation; `None`: [`DEFAULT_MIN_LATENCY_CYCLES`].
    pub min_latency_cycles: Option<u32>,
    /// Events between two samples; `None`: as many as make the rate.
    pub period: Option<u64>,
    /// Which accesses.
    pub event: PmuEvent,
}

impl PmuOptions {
    pub(crate) fn min_latency_cycles(&self) -> u32 {
        self.min_latency_cycles.unwrap_or(match self.event {
            PmuEvent::Access => DEFAULT_MIN_LATENCY_CYCLES,
            // Quick or not.
            PmuEvent::DtlbMiss => 0,
        })
    }

    /// The events of the machine for them; the error names one that makes no sense.
    pub(crate) fn events(
        &self,
        rate_hz: f64,
        sys_root: &Path,
        proc_root: &Path,
    ) -> Result<Vec<MemoryEvent>, String> {
        let pace = match self.period {
            Some(period) => Pace::Period(period),
            None => Pace::Rate(rate_hz.min(max_rate_hz(proc_root))),
        };
        let devices = Device::all(sys_root);
        memory_events(&devices, self.event, self.min_latency_cycles(), pace)
    }
}

/// The kernel takes no higher rate.
fn max_rate_hz(proc_root: &Path) -> f64 {
    let path = proc_root.join("sys/kernel/perf_event_max_sample_rate");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(f64::INFINITY)
}

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// Samples per second of a thread's time; the kernel adapts the period.
    Rate(f64),
    /// Events between two samples.
    Period(u64),
}

/// An event to be opened on each CPU.
#[derive(Clone, Debug)]
pub(crate) struct MemoryEvent {
    /// As perf would write it: `cpu/mem-loads,ldlat=30/`.
    pub name: String,
    /// `None`: on all.
    pub cpus: Option<Vec<CpuId>>,
    pub form: Form,
    /// An event that must be counted in the same group for this one to work (`mem-loads-aux`, which
    /// Intel's cores since Golden Cove need).
    pub leader: Option<Attributes>,
    pub attributes: Attributes,
    /// Samples come through an AUX area, as packets of Arm's SPE.
    pub packets: bool,
}

impl MemoryEvent {
    /// Is it one of this CPU's?
    pub fn on(&self, cpu: CpuId) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }

    /// Does it come after so many events, whatever time they take?
    pub fn fixed_period(&self) -> bool {
        self.attributes.flags & flag::FREQ == 0
    }

    /// Opens it, after its leader where it has one; the flags are added to both.
    pub fn open(&self, scope: Scope, flags: u64) -> io::Result<Vec<PerfEvent>> {
        let mut events: Vec<PerfEvent> = Vec::new();
        for attributes in self.leader.iter().chain([&self.attributes]) {
            let mut attributes = *attributes;
            attributes.flags |= flags;
            events.push(PerfEvent::open_led(&attributes, scope, events.first())?);
        }
        Ok(events)
    }

    /// Open files it takes on a CPU.
    pub fn files(&self) -> usize {
        1 + usize::from(self.leader.is_some())
    }
}

/// The events of `devices` that sample memory accesses; the error names what is there and cannot be
/// used. Loads quicker than `min_latency_cycles` are left out by the hardware where it can do so
/// without leaving out stores, and by whoever reads the samples elsewhere.
pub(crate) fn memory_events(
    devices: &[Device],
    event: PmuEvent,
    min_latency_cycles: u32,
    pace: Pace,
) -> Result<Vec<MemoryEvent>, String> {
    let mut events = Vec::new();
    for device in devices {
        if device.name == "ibs_op" {
            events.push(ibs(device, pace)?);
        } else if device.name.starts_with("arm_spe_") {
            events.push(spe(device, event, pace)?);
        } else {
            events.extend(precise(device, min_latency_cycles, pace)?);
        }
    }
    Ok(events)
}

/// `mem-loads` and `mem-stores`, where `device` has them: Intel's `cpu`, or `cpu_core` and
/// `cpu_atom`.
fn precise(
    device: &Device,
    min_latency_cycles: u32,
    pace: Pace,
) -> Result<Vec<MemoryEvent>, String> {
    let mut events = Vec::new();
    for (event, kind) in [
        ("mem-loads", AccessKind::Load),
        ("mem-stores", AccessKind::Store),
    ] {
        let Some(terms) = device.events.get(event) else {
            continue;
        };
        let mut name = format!("{}/{event}", device.name);
        let mut terms = terms.clone();
        let mut leader = None;
        if kind == AccessKind::Load {
            // The hardware takes no less than 3.
            let latency = format!(",ldlat={}", min_latency_cycles.max(3));
            name += &latency;
            terms += &latency;
            if let Some(terms) = device.events.get("mem-loads-aux") {
                leader = Some(device_attributes(device.kind, device.config(terms)?));
            }
        }
        let mut attributes = device_attributes(device.kind, device.config(&terms)?);
        attributes.sample_type = PRECISE_SAMPLE;
        // The instruction itself, not one after it, where the hardware can tell (2).
        let precision = device
            .caps
            .get("max_precise")
            .map_or(2, |most| 2.min(*most));
        attributes.flags |= precision << flag::PRECISE_IP_SHIFT;
        set_pace(&mut attributes, pace);
        events.push(MemoryEvent {
            name: name + "/",
            cpus: device.cpus.clone(),
            form: Form::Precise(kind),
            leader,
            attributes,
            packets: false,
        });
    }
    Ok(events)
}

/// AMD's IBS: any op, by count of ops where the model can (`cnt_ctl`), of cycles elsewhere.
fn ibs(device: &Device, pace: Pace) -> Result<MemoryEvent, String> {
    let has = |field| device.format.contains_key(field);
    let mut terms = Vec::new();
    terms.extend(has("cnt_ctl").then_some("cnt_ctl"));
    // The hardware takes the kernel's ops too; newer kernels can drop those.
    terms.extend(has("swfilt").then_some("swfilt"));
    let terms = terms.join(",");
    let mut attributes = device_attributes(device.kind, device.config(&terms)?);
    if !has("swfilt") {
        attributes.flags &= !(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
    }
    attributes.sample_type = IBS_SAMPLE;
    // It counts in sixteens.
    set_pace(
        &mut attributes,
        match pace {
            Pace::Period(period) => Pace::Period(period.max(16) & !15),
            rate => rate,
        },
    );
    Ok(MemoryEvent {
        name: format!("{}/{terms}/", device.name),
        cpus: device.cpus.clone(),
        form: Form::Ibs,
        leader: None,
        attributes,
        packets: false,
    })
}

/// Arm's SPE: loads and stores, at intervals that vary a little.
fn spe(device: &Device, event: PmuEvent, pace: Pace) -> Result<MemoryEvent, String> {
    let wanted = ["jitter", "load_filter", "store_filter"];
    let mut terms: Vec<_> = wanted
        .into_iter()
        .filter(|field| device.format.contains_key(*field))
        .collect();
    if event == PmuEvent::DtlbMiss && device.format.contains_key("event_filter") {
        // Bit 5 of a sample's events: a page table was walked.
        terms.push("event_filter=0x20");
    }
    let terms = terms.join(",");
    let mut attributes = device_attributes(device.kind, device.config(&terms)?);
    attributes.sample_type = PRECISE_SAMPLE & !AUX_HAS_NONE;
    let least = device.caps.get("min_interval").copied().unwrap_or(1);
    attributes.sample_period = match pace {
        Pace::Period(period) => period.max(least),
        Pace::Rate(_) => SPE_PERIOD.max(least),
    };
    Ok(MemoryEvent {
        name: format!("{}/{terms}/", device.name),
        cpus: device.cpus.clone(),
        form: Form::Precise(AccessKind::Load),
        leader: None,
        attributes,
        packets: true,
    })
}

/// What the packets have, and the kernel's records need not.
const AUX_HAS_NONE: u64 = st::ADDR | st::WEIGHT | st::DATA_SRC;

fn set_pace(attributes: &mut Attributes, pace: Pace) {
    match pace {
        Pace::Rate(rate_hz) => {
            attributes.flags |= flag::FREQ;
            attributes.sample_period = rate_hz.round() as u64;
        }
        Pace::Period(period) => attributes.sample_period = period,
    }
}

#[cfg(test)]
pub(crate) mod tests;
