//! Finds a machine's events that sample memory accesses, and their attributes.

use std::io;
use std::path::Path;

use nearpage_machine::CpuId;
use nearpage_perf_abi::{Attributes, flag, sample_type as st};
use nearpage_recording::AccessKind;

use super::devices::Device;
use super::sample::{Form, IBS_SAMPLE, PRECISE_SAMPLE};
use crate::levels::kernel_rate_limit_hz;
use crate::perf_event::{PerfEvent, Scope, device_attributes};

/// Default latency in cycles below which loads are left out: the core's own caches serve them, and placement does not
/// change that. perf mem has the same default.
pub const DEFAULT_MIN_LATENCY_CYCLES: u32 = 30;

/// Operations between two samples of Arm's SPE, which accepts no rate.
const SPE_PERIOD: u64 = 1 << 20;

/// Which accesses to sample with a PMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PmuEvent {
    /// All accesses except loads with low latency.
    #[default]
    Access,
    /// Accesses that miss all levels of the TLB (Marathe §3.2: the second source of traces). Arm's SPE filters them in
    /// hardware; the recorder filters the samples of Intel and AMD.
    DtlbMiss,
}

/// Options of sampling with a PMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmuOptions {
    /// Latency in cycles below which loads count as computation; `None`: [`DEFAULT_MIN_LATENCY_CYCLES`].
    pub min_latency_cycles: Option<u32>,
    /// Events between two samples; `None`: from the rate.
    pub period: Option<u64>,
    /// The accesses to sample.
    pub event: PmuEvent,
}

impl PmuOptions {
    pub(crate) fn min_latency_cycles(&self) -> u32 {
        self.min_latency_cycles.unwrap_or(match self.event {
            PmuEvent::Access => DEFAULT_MIN_LATENCY_CYCLES,
            // Misses count with any latency.
            PmuEvent::DtlbMiss => 0,
        })
    }

    /// The machine's events for these options. The error names an event that cannot be configured.
    pub(crate) fn events(
        &self,
        rate_hz: f64,
        sys_root: &Path,
        proc_root: &Path,
    ) -> Result<Vec<MemoryEvent>, String> {
        let rate_or_period = match self.period {
            Some(period) => RateOrPeriod::Period(period),
            None => {
                let limit_hz = kernel_rate_limit_hz(proc_root).unwrap_or(f64::INFINITY);
                RateOrPeriod::Rate(rate_hz.min(limit_hz))
            }
        };
        let devices = Device::all(sys_root);
        memory_events(
            &devices,
            self.event,
            self.min_latency_cycles(),
            rate_or_period,
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RateOrPeriod {
    /// Samples per second of a thread's time; the kernel adapts the period.
    Rate(f64),
    /// Events between two samples.
    Period(u64),
}

/// An event that is opened on each of its CPUs.
#[derive(Clone, Debug)]
pub(crate) struct MemoryEvent {
    /// The event in perf's notation: `cpu/mem-loads,ldlat=30/`.
    pub name: String,
    /// CPUs of the event; `None` means all.
    pub cpus: Option<Vec<CpuId>>,
    pub form: Form,
    /// An event that must be counted in the same group (`mem-loads-aux`, which Intel's cores since Golden Cove need).
    pub leader: Option<Attributes>,
    pub attributes: Attributes,
    /// Whether samples come as packets of Arm's SPE through an AUX area.
    pub packets: bool,
}

impl MemoryEvent {
    /// Whether the event exists on this CPU.
    pub fn on(&self, cpu: CpuId) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }

    /// Whether the event samples by count, not by rate.
    pub fn fixed_period(&self) -> bool {
        self.attributes.flags & flag::FREQ == 0
    }

    /// Opens the event, after its leader if there is one. The flags are added to both.
    pub fn open(&self, scope: Scope, flags: u64) -> io::Result<Vec<PerfEvent>> {
        let mut events: Vec<PerfEvent> = Vec::new();
        for attributes in self.leader.iter().chain([&self.attributes]) {
            let mut attributes = *attributes;
            attributes.flags |= flags;
            events.push(PerfEvent::open_led(&attributes, scope, events.first())?);
        }
        Ok(events)
    }

    /// Number of open files per CPU.
    pub fn files(&self) -> usize {
        1 + usize::from(self.leader.is_some())
    }
}

/// The events of `devices` that sample memory accesses. The error names an event that exists but cannot be used. Where
/// the hardware can filter loads without losing stores, it leaves out loads below `min_latency_cycles`; elsewhere the
/// reader of the samples does.
pub(crate) fn memory_events(
    devices: &[Device],
    event: PmuEvent,
    min_latency_cycles: u32,
    rate_or_period: RateOrPeriod,
) -> Result<Vec<MemoryEvent>, String> {
    let mut events = Vec::new();
    for device in devices {
        if device.name == "ibs_op" {
            events.push(ibs(device, rate_or_period)?);
        } else if device.name.starts_with("arm_spe_") {
            events.push(spe(device, event, rate_or_period)?);
        } else {
            events.extend(precise(device, min_latency_cycles, rate_or_period)?);
        }
    }
    Ok(events)
}

/// `mem-loads` and `mem-stores`, if `device` has them: Intel's `cpu`, or `cpu_core` and `cpu_atom`.
fn precise(
    device: &Device,
    min_latency_cycles: u32,
    rate_or_period: RateOrPeriod,
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
            // The hardware's minimum is 3.
            let latency = format!(",ldlat={}", min_latency_cycles.max(3));
            name += &latency;
            terms += &latency;
            if let Some(terms) = device.events.get("mem-loads-aux") {
                leader = Some(device_attributes(device.kind, device.config(terms)?));
            }
        }
        let mut attributes = device_attributes(device.kind, device.config(&terms)?);
        attributes.sample_type = PRECISE_SAMPLE;
        // Asks for the instruction itself, without skid, if the hardware can provide it (2).
        let precision = device
            .caps
            .get("max_precise")
            .map_or(2, |most| 2.min(*most));
        attributes.flags |= precision << flag::PRECISE_IP_SHIFT;
        set_rate_or_period(&mut attributes, rate_or_period);
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

/// AMD's IBS samples any op: by count of ops if the model can (`cnt_ctl`), else by count of cycles.
fn ibs(device: &Device, rate_or_period: RateOrPeriod) -> Result<MemoryEvent, String> {
    let has = |field| device.format.contains_key(field);
    let mut terms = Vec::new();
    terms.extend(has("cnt_ctl").then_some("cnt_ctl"));
    // The hardware samples kernel ops, too, which newer kernels can drop.
    terms.extend(has("swfilt").then_some("swfilt"));
    let terms = terms.join(",");
    let mut attributes = device_attributes(device.kind, device.config(&terms)?);
    if !has("swfilt") {
        attributes.flags &= !(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
    }
    attributes.sample_type = IBS_SAMPLE;
    // The period is a multiple of 16.
    set_rate_or_period(
        &mut attributes,
        match rate_or_period {
            RateOrPeriod::Period(period) => RateOrPeriod::Period(period.max(16) & !15),
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

/// Arm's SPE samples loads and stores, with jitter in the intervals.
fn spe(
    device: &Device,
    event: PmuEvent,
    rate_or_period: RateOrPeriod,
) -> Result<MemoryEvent, String> {
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
    attributes.sample_period = match rate_or_period {
        RateOrPeriod::Period(period) => period.max(least),
        RateOrPeriod::Rate(_) => SPE_PERIOD.max(least),
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

/// Fields that packets provide, so that the kernel's records need not carry them.
const AUX_HAS_NONE: u64 = st::ADDR | st::WEIGHT | st::DATA_SRC;

fn set_rate_or_period(attributes: &mut Attributes, rate_or_period: RateOrPeriod) {
    match rate_or_period {
        RateOrPeriod::Rate(rate_hz) => {
            attributes.flags |= flag::FREQ;
            attributes.sample_period = rate_hz.round() as u64;
        }
        RateOrPeriod::Period(period) => attributes.sample_period = period,
    }
}

#[cfg(test)]
pub(crate) mod tests;
