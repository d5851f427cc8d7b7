//! Derives samples from a trace: what a processor's sampling hardware would have recorded of the same run (Marathe,
//! Thakkar and Mueller, sections 3.1, 6 to 9).

use nearpage_wire::trace::{Reference, ReferenceKind, Served};
use rustc_hash::FxHashMap;

use super::survey::is_access;
use crate::{AccessBatch, Error, Recording};

/// The event that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DownsampleEvent {
    /// References that missed the caches, as far as the trace keeps them.
    #[default]
    CacheMiss,
    /// Loads and stores that missed the TLB.
    DtlbMiss,
}

/// Which references are kept. Instruction fetches are never kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Downsampling {
    /// The event that is counted.
    pub event: DownsampleEvent,
    /// Of each thread's qualifying events, one in this many is kept; this is the weight of a kept event.
    pub every: u32,
    /// References with a latency of fewer cycles do not qualify. The latency is that of the unloaded machine, with
    /// pages where they were first touched.
    pub latency_cycles_min: f64,
    /// Whether stores do not qualify.
    pub loads_only: bool,
    /// Whether the hardware follows one reference of a thread at a time, and skips references that the CPU issues
    /// before the followed reference has completed. A CPU that waits for each miss issues none meanwhile; others run
    /// ahead as far as their window allows ([`Timing::run_ahead_instructions`]).
    ///
    /// [`Timing::run_ahead_instructions`]: nearpage_machine::Timing::run_ahead_instructions
    pub one_in_flight: bool,
}

impl Default for Downsampling {
    fn default() -> Self {
        Self {
            event: DownsampleEvent::CacheMiss,
            every: 1,
            latency_cycles_min: 0.0,
            loads_only: false,
            one_in_flight: false,
        }
    }
}

impl Downsampling {
    /// Names of Marathe's settings.
    pub const SETTINGS: [&str; 12] = [
        "full",
        "loads-1",
        "loads-10",
        "loads-50",
        "loads-100",
        "loads-200",
        "dtlb-1",
        "dtlb-2",
        "dtlb-4",
        "dtlb-8",
        "dtlb-16",
        "pebs-10",
    ];

    /// The setting with this name. `full` is the "maximum information trace" (section 6: 4 cycles, every load).
    /// `loads-N` is long-latency loads (section 7: 128 cycles, every Nth load, one followed at a time as section 3.1
    /// says of the hardware). `dtlb-N` is in section 8. `pebs-10` is every tenth load that missed the caches (section
    /// 9).
    pub fn setting(name: &str) -> Option<Self> {
        if !Self::SETTINGS.contains(&name) {
            return None;
        }
        let loads = Self {
            loads_only: true,
            ..Self::default()
        };
        let (kind, every) = name.split_once('-').unwrap_or((name, "1"));
        let every = every.parse().ok()?;
        Some(match kind {
            "full" => Self {
                latency_cycles_min: 4.0,
                ..loads
            },
            "loads" => Self {
                every,
                latency_cycles_min: 128.0,
                one_in_flight: true,
                ..loads
            },
            "dtlb" => Self {
                event: DownsampleEvent::DtlbMiss,
                every,
                ..Self::default()
            },
            _ => Self { every, ..loads },
        })
    }

    /// Whether the setting needs a trace with hits of the second- and third-level cache.
    pub fn needs_hits(&self) -> bool {
        self.event == DownsampleEvent::CacheMiss
            && (0.0..100.0).contains(&self.latency_cycles_min)
            && self.latency_cycles_min > 0.0
    }

    /// Description of the setting in words.
    pub fn describe(&self) -> String {
        let event = match (self.event, self.loads_only) {
            (DownsampleEvent::DtlbMiss, false) => "DTLB misses",
            (DownsampleEvent::DtlbMiss, true) => "DTLB misses of loads",
            (DownsampleEvent::CacheMiss, true) => "load misses",
            (DownsampleEvent::CacheMiss, false) => "misses",
        };
        let mut words = format!("1 of {} {event}", self.every);
        if self.latency_cycles_min > 0.0 {
            words += &format!(" of {} cycles and more", self.latency_cycles_min);
        }
        if self.one_in_flight {
            words += ", one followed at a time";
        }
        words
    }

    fn counts(&self, reference: &Reference, keep_hits: bool) -> bool {
        let kind = match reference.kind {
            ReferenceKind::Load => true,
            ReferenceKind::Store => !self.loads_only,
            ReferenceKind::Fetch => false,
        };
        kind && match self.event {
            DownsampleEvent::CacheMiss => is_access(reference, keep_hits),
            DownsampleEvent::DtlbMiss => {
                reference.tlb_miss && reference.served != Served::WriteBack
            }
        }
    }
}

/// State of the hardware for a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// Events since the last kept event.
    events: u32,
    /// Virtual time before which references are skipped, as they are issued before the followed reference has
    /// completed. A wait for data takes no virtual time.
    busy_until: u64,
}

impl Recording {
    /// Hands out the references of a trace that `downsampling` keeps, in order of time except for neighbours. Each has
    /// the weight of the references that it stands for. Returns the number of kept references.
    ///
    /// # Errors
    /// [`Error::SamplesOnly`], [`Error::Io`], and those of `write`.
    pub fn downsample(
        &self,
        downsampling: &Downsampling,
        mut write: impl FnMut(&AccessBatch) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let traced = self.shared_trace()?;
        let keep_hits = traced.tracing.keep_hits();
        let clock_ghz = traced.timing().clock_ghz;
        let cycles_per_instruction = traced.timing().cycles_per_instruction;
        let run_ahead = traced.timing().run_ahead_instructions();
        let every = downsampling.every.max(1);
        let mut counters: FxHashMap<(u32, u32), Counter> = FxHashMap::default();
        let (mut batch, mut kept) = (AccessBatch::default(), 0);
        for frame in 0..traced.frames() {
            let counter = counters.entry(traced.thread_of(frame)).or_default();
            traced.read_selected(
                frame,
                &mut batch,
                |reference| downsampling.counts(reference, keep_hits),
                |at, cost_ns| {
                    let cycles = f64::from(cost_ns) * clock_ghz;
                    if cycles < downsampling.latency_cycles_min
                        || downsampling.one_in_flight && at < counter.busy_until
                    {
                        return None;
                    }
                    let during = (cycles / cycles_per_instruction) as u64;
                    counter.busy_until = at.saturating_add(during.min(run_ahead));
                    counter.events += 1;
                    (counter.events >= every).then(|| {
                        counter.events = 0;
                        every as f32
                    })
                },
            )?;
            kept += batch.len() as u64;
            if !batch.is_empty() {
                write(&batch)?;
            }
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_papers() {
        for name in Downsampling::SETTINGS {
            assert!(Downsampling::setting(name).is_some(), "{name}");
        }
        let loads = Downsampling::setting("loads-50").unwrap();
        assert_eq!((loads.every, loads.latency_cycles_min), (50, 128.0));
        assert!(loads.loads_only && loads.one_in_flight && !loads.needs_hits());
        let dtlb = Downsampling::setting("dtlb-16").unwrap();
        assert_eq!((dtlb.event, dtlb.every), (DownsampleEvent::DtlbMiss, 16));
        assert!(Downsampling::setting("full").unwrap().needs_hits());
        assert_eq!(Downsampling::setting("loads-3"), None);
    }
}
