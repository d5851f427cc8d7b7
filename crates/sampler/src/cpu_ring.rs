//! The ring of a CPU, and the events that write to it.

use nearpage_machine::CpuId;
use rustc_hash::FxHashMap;

use crate::merge::UnreadRecords;
use crate::perf_event::PerfEvent;
use crate::pmu::spe;
use crate::ring::Ring;

/// All events of a task, as a bit set.
pub(crate) const ALL_EVENTS: u32 = u32::MAX;

/// An event alone, or a group leader followed by its event.
pub(crate) struct Sampling(pub Vec<PerfEvent>);

impl Sampling {
    /// The event that samples.
    pub fn event(&self) -> &PerfEvent {
        self.0.last().expect("made with one or two")
    }
}

/// The events of one task and its children, or of the whole machine, on one CPU.
pub(crate) struct Events {
    /// Events that are switched on and off. Leaders of groups come before their event and only have to exist.
    pub sampling: Vec<Sampling>,
    /// Event for sideband records, which go to the same ring.
    pub tracking: PerfEvent,
    /// Running time of the task on this CPU while sampling was on, and its running time when sampling was switched on.
    pub sampled_ns: u64,
    pub on_since_ns: Option<u64>,
    /// Bit set of the events in `sampling` that are on.
    pub on: u32,
    /// Whether a PMU takes the samples.
    pub hardware: bool,
    /// CLOCK_MONOTONIC before the first event was opened.
    pub opened_ns: u64,
}

impl Events {
    /// Switches the events with bits in `events` on, and the others off. Errors are ignored, as they only occur if
    /// there is nothing left to switch.
    pub fn switch(&mut self, events: u32) {
        for (number, sampling) in self.sampling.iter().enumerate() {
            let bit = 1 << number.min(31);
            if (events ^ self.on) & bit == 0 {
                continue;
            }
            for event in &sampling.0 {
                let _ = match events & bit == 0 {
                    true => event.disable(),
                    false => event.enable(),
                };
            }
        }
        self.on = events;
        let on = events != 0;
        // Only hardware events are multiplexed and need the time. Reading it interrupts the CPU on which the task
        // runs.
        let now_ns = match self.hardware {
            true => self.tracking.running_ns().unwrap_or(0),
            false => 0,
        };
        if on {
            self.on_since_ns.get_or_insert(now_ns);
        } else if let Some(since_ns) = self.on_since_ns.take() {
            self.sampled_ns += now_ns.saturating_sub(since_ns);
        }
    }
}

/// Identifier and period of an event that writes packets.
pub(crate) type Packets = (u64, u64);

pub(crate) struct CpuRing {
    pub cpu: CpuId,
    pub ring: Ring,
    /// The event that owns the ring, kept open after the end of its task.
    pub owner: PerfEvent,
    /// Whether the owner's task has ended. Polling the owner would then return at once, every time.
    pub owner_ended: bool,
    /// Events by thread; key 0 for a command, a control group or the machine.
    pub events: FxHashMap<u32, Events>,
    /// The event that writes packets into the ring's AUX area.
    pub packets: Option<Packets>,
}

impl CpuRing {
    /// File descriptor that is readable once a quarter of the ring is full.
    pub fn raw(&self) -> libc::c_int {
        self.owner.raw()
    }

    /// Nanoseconds for which the observed tasks ran on this CPU.
    pub fn running_ns(&self) -> u64 {
        let events = self.events.values();
        events
            .map(|events| events.tracking.running_ns().unwrap_or(0))
            .sum()
    }

    /// Switches the events with bits in `events` on, and the others off, for each task.
    pub fn switch(&mut self, events: u32) {
        self.events
            .values_mut()
            .for_each(|each| each.switch(events));
    }

    /// Nanoseconds for which hardware events counted, and for which they should have counted.
    pub fn counting_ns(&self) -> (u64, u64) {
        let (mut counting_ns, mut expected_ns) = (0, 0);
        for events in self.events.values() {
            for sampling in &events.sampling {
                counting_ns += sampling.event().running_ns().unwrap_or(0);
                expected_ns += events.sampled_ns;
            }
        }
        (counting_ns, expected_ns)
    }

    /// Whether hardware writes packets to an AUX area. The ring must then be drained.
    pub fn has_packets(&self) -> bool {
        self.packets.is_some()
    }

    /// New records, borrowed from the ring; none for a ring that must be drained.
    pub fn unread(&self) -> UnreadRecords<'_> {
        match self.has_packets() {
            true => UnreadRecords::new([&[], &[]]),
            false => self.ring.unread(),
        }
    }

    /// Releases the first `bytes` bytes of the new records.
    pub fn give_back(&mut self, bytes: usize) {
        self.ring.give_back(bytes);
    }

    /// Appends new records to `out`, packets as samples. Returns the number of bytes that were no packets.
    pub fn drain(&mut self, out: &mut Vec<u8>) -> u64 {
        let begin = out.len();
        self.ring.drain(out);
        let Some((id, period)) = self.packets else {
            return 0;
        };
        let (new, ring) = (begin..out.len(), &self.ring);
        let mut end = None;
        let bad = spe::append_samples(out, new, id, period, |stretch, packets| {
            ring.read_aux(stretch.offset, stretch.bytes, packets);
            end = Some(stretch.offset.wrapping_add(stretch.bytes));
        });
        if let Some(end) = end {
            self.ring.release_aux(end);
        }
        bad
    }
}
