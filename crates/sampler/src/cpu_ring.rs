//! The ring of a CPU, and the events whose records go there.

use nearpage_machine::CpuId;
use rustc_hash::FxHashMap;

use crate::merge::UnreadRecords;
use crate::perf_event::PerfEvent;
use crate::pmu::spe;
use crate::ring::Ring;

/// Every event of a task, as a set of them.
pub(crate) const ALL_EVENTS: u32 = u32::MAX;

/// An event and its leader, or an event alone.
pub(crate) struct Sampling(pub Vec<PerfEvent>);

impl Sampling {
    /// The one that samples.
    pub fn event(&self) -> &PerfEvent {
        self.0.last().expect("made with one or two")
    }
}

/// What observes one task (with those it starts), or everything, on one CPU.
pub(crate) struct Events {
    /// What is switched on and off; without the leaders of groups, which only have to be there, the
    /// last in each group.
    pub sampling: Vec<Sampling>,
    /// Open for its records, which go to the same ring.
    pub tracking: PerfEvent,
    /// Time of the task on this CPU while sampling was on, and its time when it was switched on.
    pub sampled_ns: u64,
    pub on_since_ns: Option<u64>,
    /// A bit for each of `sampling`.
    pub on: u32,
    /// Is the sampling that of a PMU?
    pub hardware: bool,
    /// Before the first of `sampling` was opened, CLOCK_MONOTONIC.
    pub opened_ns: u64,
}

impl Events {
    /// Switches those of `events` on, a bit for each, and the others off. Fails at worst where nothing
    /// is left to be switched.
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
        // Reading asks the CPU where it runs; only hardware takes turns.
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

/// Number and period of an event.
pub(crate) type Packets = (u64, u64);

/// The ring of a CPU, and the events whose records go there.
pub(crate) struct CpuRing {
    pub cpu: CpuId,
    pub ring: Ring,
    /// The event that the ring belongs to, whatever becomes of its task.
    pub owner: PerfEvent,
    /// The task that the owner observed has ended: polling it would end at once, every time.
    pub owner_ended: bool,
    /// By thread; 0 for a command, a group, the machine.
    pub events: FxHashMap<u32, Events>,
    /// The event whose packets are in the ring's AUX area, and its period.
    pub packets: Option<Packets>,
}

impl CpuRing {
    /// Readable once a quarter of it is full.
    pub fn raw(&self) -> libc::c_int {
        self.owner.raw()
    }

    /// Nanoseconds that what is observed was running here.
    pub fn running_ns(&self) -> u64 {
        let events = self.events.values();
        events
            .map(|events| events.tracking.running_ns().unwrap_or(0))
            .sum()
    }

    /// Switches events on, a bit for each of a task, and the others off.
    pub fn switch(&mut self, events: u32) {
        self.events
            .values_mut()
            .for_each(|each| each.switch(events));
    }

    /// Nanoseconds that hardware events were counting, and that they should have been.
    pub fn counting_ns(&self) -> (u64, u64) {
        let (mut counting_ns, mut wanted_ns) = (0, 0);
        for events in self.events.values() {
            for sampling in &events.sampling {
                counting_ns += sampling.event().running_ns().unwrap_or(0);
                wanted_ns += events.sampled_ns;
            }
        }
        (counting_ns, wanted_ns)
    }

    /// Does hardware write packets beside the ring? Its records are to be drained then.
    pub fn has_packets(&self) -> bool {
        self.packets.is_some()
    }

    /// New records, for as long as they are read; none of a ring that is to be drained.
    pub fn unread(&self) -> UnreadRecords<'_> {
        match self.has_packets() {
            true => UnreadRecords::new([&[], &[]]),
            false => self.ring.unread(),
        }
    }

    /// The first `bytes` of them were read.
    pub fn give_back(&mut self, bytes: usize) {
        self.ring.give_back(bytes);
    }

    /// Appends new records to `out`, packets as samples; says how many bytes were no packets.
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
