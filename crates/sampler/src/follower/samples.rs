//! Turns samples into accesses, some 100,000 times per second. What a thread's samples need, and the verdict on each
//! place in the code, are therefore looked up once.

use nearpage_recording::{Access, AccessKind, Level, Resolution, ThreadIndex};

use super::Follower;
use crate::architecture::GENERAL_REGISTERS;
use crate::lookaside::LookasideEntry;
use crate::pmu::{MemorySample, Observation, PmuEvent};
use crate::record::{self, Sample};
use crate::verdict::{Register, RegisterValues, THREAD_POINTER, Verdict};

/// Registers in the kernel's record.
struct SampleRegisters<'a> {
    general: &'a [[u8; 8]; GENERAL_REGISTERS],
    thread_pointer: u64,
}

impl RegisterValues for SampleRegisters<'_> {
    #[inline]
    fn of(&self, register: Register) -> u64 {
        match self.general.get(usize::from(register)) {
            Some(bytes) => u64::from_ne_bytes(*bytes),
            None if register == THREAD_POINTER => self.thread_pointer,
            None => 0,
        }
    }
}

impl Follower {
    /// The sampled thread, if its samples count.
    #[inline]
    pub(super) fn sampled_thread(
        &mut self,
        origin: &record::Origin,
    ) -> Option<(LookasideEntry, ThreadIndex)> {
        let sampled = match self.lookaside.find(origin.pid, origin.tid) {
            Some(sampled) => sampled,
            None => self.look_up(origin),
        };
        sampled.thread.map(|thread| (sampled, thread))
    }

    #[cold]
    fn look_up(&mut self, origin: &record::Origin) -> LookasideEntry {
        let &record::Origin {
            pid, tid, time_ns, ..
        } = origin;
        let counts = self.admits(pid) && {
            self.meet(pid);
            self.admits(pid)
        };
        let sampled = LookasideEntry {
            pid,
            tid,
            thread: counts.then(|| self.thread(time_ns, pid, tid)),
            space: match counts {
                true => self.spaces.position(pid),
                false => 0,
            },
            weight: self.weights.get(&tid).copied().unwrap_or(1.0),
        };
        self.lookaside.keep(sampled);
        sampled
    }

    /// Follows a clock sample, or a sample of the signal source.
    #[inline]
    pub(super) fn sample(
        &mut self,
        origin: record::Origin,
        sample: Sample<'_>,
        sampled: LookasideEntry,
        thread: ThreadIndex,
    ) {
        let periods = self.periods_at(origin.time_ns);
        let (periods, period_ns) = self.period.of(periods, sample.period_ns as f32);
        self.taken += 1;
        self.taken_ns += f64::from(period_ns) * f64::from(periods);
        let counts = self.threads.count_on(thread, origin.cpu);
        if !sample.user {
            counts.kernel += 1;
            return;
        }
        counts.samples += 1;
        let Some(general) = sample.first_registers() else {
            counts.undecoded += 1;
            self.undecoded.no_registers += 1;
            return;
        };
        let space = self.spaces.at(sampled.space);
        let place = space.verdict(origin.pid, sample.ip, sample.compatible, &mut self.codes);
        let thread_pointer = place.needs_thread_pointer.then(|| {
            let pointer = sample.thread_pointer::<GENERAL_REGISTERS>();
            pointer.or_else(|| self.thread_pointers.of(origin.pid, origin.tid))
        });
        let registers = SampleRegisters {
            general,
            thread_pointer: thread_pointer.flatten().unwrap_or(0),
        };
        match &*place.verdict {
            Verdict::Compute => counts.compute += 1,
            Verdict::Undecoded(reason) => {
                counts.undecoded += 1;
                *self.undecoded.of(*reason) += 1;
                *self
                    .undecoded_at
                    .entry((origin.pid, sample.ip))
                    .or_default() += 1;
            }
            Verdict::Accesses { .. } if thread_pointer == Some(None) => {
                counts.undecoded += 1;
                self.undecoded.thread_base += 1;
            }
            Verdict::Accesses {
                templates,
                resolution,
            } => {
                let weight = match templates.len() {
                    1 => periods * sampled.weight,
                    several => periods * sampled.weight / several as f32,
                };
                let mut kept = false;
                for template in templates {
                    let address = template.address(&registers);
                    if !self.filter.keeps(origin.pid, address) {
                        continue;
                    }
                    kept = true;
                    self.accesses.push(Access {
                        time_ns: origin.time_ns,
                        thread,
                        cpu: origin.cpu,
                        address,
                        instruction: template.instruction,
                        kind: template.kind,
                        level: Level::Unknown,
                        resolution: *resolution,
                        skid_bytes: template.skid_bytes,
                        weight,
                        cost_ns: period_ns * weight,
                        page_node: None,
                    });
                }
                match kept {
                    true => counts.accesses += 1,
                    false => {
                        counts.samples -= 1;
                        self.records.left_out += 1;
                    }
                }
            }
        }
    }

    /// Follows a hardware sample.
    pub(super) fn memory(
        &mut self,
        origin: record::Origin,
        sample: MemorySample,
        sampled: LookasideEntry,
        thread: ThreadIndex,
    ) {
        let periods = self.periods_at(origin.time_ns);
        self.taken += 1;
        let counts = self.threads.count_on(thread, origin.cpu);
        if !sample.user {
            counts.kernel += 1;
            return;
        }
        if self.hardware.event == PmuEvent::DtlbMiss && sample.tlb_miss != Some(true) {
            self.records.left_out += 1;
            return;
        }
        counts.samples += 1;
        if let Some(source) = sample.unknown_source {
            self.records.unknown_sources += 1;
            self.records.unknown_source = source.0;
        }
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
        if !self.filter.keeps(origin.pid, address) {
            counts.samples -= 1;
            self.records.left_out += 1;
            return;
        }
        counts.accesses += 1;
        let weight = sample.period as f32 * periods * sampled.weight;
        let latency_ns = self
            .hardware
            .frequencies
            .nanoseconds(origin.cpu, latency_cycles);
        self.accesses.push(Access {
            time_ns: origin.time_ns,
            thread,
            cpu: origin.cpu,
            address,
            instruction: ip,
            kind,
            level,
            resolution: Resolution::Exact,
            skid_bytes: 0,
            weight,
            cost_ns: latency_ns * weight,
            page_node: None,
        });
    }

    /// Number of periods that a sample of this time stands for.
    fn periods_at(&self, time_ns: u64) -> f32 {
        let since = |(since_ns, _): &&(u64, f32)| *since_ns <= time_ns;
        self.periods_each
            .iter()
            .rev()
            .find(since)
            .map_or(1.0, |(_, periods)| *periods)
    }
}
