//! Sends references through the caches and TLBs of the thread's CPU.

use std::sync::atomic::Ordering::Relaxed;

use nearpage_wire::trace::{Counter, Record, Reference, ReferenceKind, Segment, Served};

use super::{ADDRESS_BITS, Code, PENDING, Pending, Run, Thread, UPPER_HALF};
use crate::caches::Miss;
use crate::memory::PAGE_BITS;
use crate::serial::Step;

/// The counter of a miss, by what served it.
const COUNTED: [Counter; 8] = {
    let mut counted = [Counter::L2Hits; 8];
    counted[Served::L3 as usize] = Counter::L3Hits;
    counted[Served::Memory as usize] = Counter::MemoryServed;
    counted[Served::OtherCache as usize] = Counter::OtherCacheServed;
    counted[Served::Upgrade as usize] = Counter::Upgrades;
    counted
};

/// The target of a reference.
#[derive(Clone, Copy)]
struct At {
    /// The address for caches and trace: the virtual address, or the place in a guest's memory.
    place: u64,
    /// The number by which TLBs know its page.
    page: u64,
    /// Its region of a guest's address space.
    segment: Segment,
}

/// Bits of a page's virtual number by which a guest's TLB entries are known, besides the page of
/// memory behind it.
const TLB_NUMBER_BITS: u32 = 18;

/// No processor executes so many instructions ahead of a miss.
const RUN_AHEAD_MAX: u64 = 2048;

/// Does the data come from outside the caches of the CPU's node?
fn is_fetched(served: Served) -> bool {
    matches!(served, Served::Memory | Served::OtherCache)
}

/// A reference that takes the slow path: a miss of L1 or TLB, a first touch, or a sample.
#[derive(Clone, Copy)]
struct CloseReference {
    at: At,
    code: Code,
    what: ReferenceFlags,
}

/// Properties of a reference, as bits.
#[derive(Clone, Copy)]
struct ReferenceFlags(u32);

impl ReferenceFlags {
    const STORE: u32 = 1;
    const FETCH: u32 = 2;
    const TLB_MISS: u32 = 4;
    const SAMPLED: u32 = 8;
    const HIT: u32 = 16;

    /// The bit for a hit in L1.
    #[inline]
    fn hit(hit: bool) -> u32 {
        if hit { Self::HIT } else { 0 }
    }

    #[inline]
    fn is(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

impl Thread {
    /// Sends all noted events through the caches.
    #[inline(never)]
    pub fn catch_up(&mut self) {
        let count = std::mem::take(&mut self.pending_count);
        let _turn = self.process.serial.as_ref().map(|serial| serial.turn());
        self.stored.forget_at(self.caught_up + self.ahead);
        if self.process.whole_system {
            self.look_up_all::<true>(count);
        } else {
            self.look_up_all::<false>(count);
        }
        let misses = self.misses();
        let many = misses - self.misses_before > PENDING as u64 / 16;
        let places = [self.process.caches.directory_place(), self.cpu.l2_place()];
        self.expected = places.map(|place| place.if_wanted(many));
        self.misses_before = misses;
        let counters = self.totals();
        self.stream.keep_counters(&counters);
    }

    /// `GUEST`: the events are a guest's.
    #[inline(always)]
    fn look_up_all<const GUEST: bool>(&mut self, count: usize) {
        for at in 0..count.min(PENDING) {
            let pending = self.pending[at];
            let Pending { code, kind, .. } = pending;
            if code.0 == Code::BLOCK.0 {
                self.fetch::<GUEST>(&pending);
            } else if kind.is_store(self.store_bit) {
                let code = Code(code.0 | Code::STORE);
                self.look_up::<true, GUEST>(&Pending { code, ..pending });
            } else {
                self.look_up::<false, GUEST>(&pending);
            }
        }
    }

    /// The target of a reference to an address; `frame` is its page in a guest's memory.
    #[inline(always)]
    fn at<const GUEST: bool>(&self, address: u64, frame: u32, gs: bool) -> At {
        if !GUEST {
            return At {
                place: address,
                page: address >> self.page_shift,
                segment: Segment::User,
            };
        }
        let number = address >> PAGE_BITS & ((1 << TLB_NUMBER_BITS) - 1);
        At {
            place: u64::from(frame) << PAGE_BITS | address & ((1 << PAGE_BITS) - 1),
            page: u64::from(frame) << TLB_NUMBER_BITS | number,
            segment: Segment::of(address, gs),
        }
    }

    /// Fetches the lines of a block.
    #[inline(always)]
    fn fetch<const GUEST: bool>(&mut self, pending: &Pending) {
        let run = Run(pending.address);
        let kernel = GUEST && pending.kind.0 != 0;
        let address = run.address() | if kernel { UPPER_HALF } else { 0 };
        let lines = run.lines();
        self.base = self.caught_up;
        self.caught_up += run.instructions();
        if kernel {
            *self.counter(Counter::KernelInstructions) += run.instructions();
        }
        self.last_code = 0;
        if let (Some(origins), Some(flows)) = (&mut self.origins, &self.process.flows) {
            origins.begin(flows, run);
        }
        self.references += lines;
        self.fetched_lines += lines;
        let cpu = self.cpu;
        let at = self.at::<GUEST>(address, pending.frame, false);
        let page = at.page;
        let here = cpu.fetch_tlb().quick(page);
        let first = at.place >> self.line_shift;
        let last = first + lines - 1;
        if here && self.references < self.close_from {
            // If no line was invalidated and no other block ran, all lines are still the most recent of their sets.
            let name = if GUEST {
                // The address in the block's word does not tell the page's place.
                at.place ^ run.0 >> ADDRESS_BITS << ADDRESS_BITS
            } else {
                run.0
            };
            let same = (name, cpu.l1_fetch.invalidated_lines());
            if self.same_run == same {
                return;
            }
            // A guest's blocks are in one page.
            if (GUEST || last << self.line_shift >> self.page_shift == page)
                && (first..=last).all(|line| cpu.l1_fetch.quick::<false>(line))
            {
                self.same_run = same;
                return;
            }
        }
        self.same_run = (0, 0);
        for line in first..=last {
            let further = at.place.max(line << self.line_shift) - at.place;
            let address = address + further;
            let at = if GUEST {
                At {
                    place: at.place + further,
                    ..at
                }
            } else {
                self.at::<GUEST>(address, 0, false)
            };
            let here = cpu.fetch_tlb().quick(at.page);
            let what =
                ReferenceFlags::FETCH | ReferenceFlags::hit(cpu.l1_fetch.access::<false>(line));
            let mut code = Code::new(address, 0, false);
            if GUEST {
                code = code.in_guest(address, false);
            }
            self.look_up_closely(at, code, what, here);
        }
    }

    /// Looks up an access. An access that begins where the same instruction's previous one ended is part of that one.
    #[inline(always)]
    fn look_up<const STORE: bool, const GUEST: bool>(&mut self, pending: &Pending) {
        let &Pending {
            address,
            code,
            kind,
            frame,
        } = pending;
        let what = if STORE { ReferenceFlags::STORE } else { 0 };
        let goes_on = self.last_code == code.0
            && self.last_address + 8 == address
            && code.0 & Code::REPEATS == 0;
        self.last_code = code.0;
        self.last_address = address;
        let at = self.at::<GUEST>(address, frame, code.0 & Code::GS != 0);
        let line = at.place >> self.line_shift;
        let line_mask = self.line_mask;
        if goes_on {
            // Within the same line, nothing more is to be done.
            if address & line_mask < 8 {
                self.look_up_rest::<STORE>(at, code);
            }
            return;
        }
        self.references += 1;
        self.stores += u64::from(STORE);
        if GUEST && code.is_kernel() {
            self.count(if STORE {
                Counter::KernelStores
            } else {
                Counter::KernelLoads
            });
        }
        let mut origin = 0;
        if !STORE && let Some(origins) = &mut self.origins {
            origin = origins.of_address(code.number());
        }
        let here = self.cpu.tlb.quick(at.page);
        // An access has 16 bytes at most.
        let crosses = address & line_mask > line_mask - 15
            && (address + kind.size_bytes() - 1) >> self.line_shift != address >> self.line_shift;
        let hit = self.cpu.l1_data.access::<STORE>(line);
        let unwritten = STORE && !self.stored.has(at.page);
        if here && hit && self.references < self.close_from && !crosses && !unwritten {
            if let (false, Some(origins)) = (STORE, &mut self.origins) {
                origins.load(code.number(), line, origin);
            }
            return;
        }
        self.origin = origin;
        self.look_up_closely(at, code, what | ReferenceFlags::hit(hit), here);
        self.origin = 0;
        if let Some(origins) = &mut self.origins {
            if !hit && is_fetched(self.outcome.served) {
                origins.fetch(line, self.base + code.number() + 1);
            }
            if !STORE {
                origins.load(code.number(), line, origin);
            }
        }
        if crosses {
            let rest = (address | line_mask) + 1;
            if GUEST && rest & ((1 << PAGE_BITS) - 1) == 0 {
                // The place of the next page is unknown.
                return;
            }
            let at = self.at::<GUEST>(rest, frame, code.0 & Code::GS != 0);
            self.look_up_rest::<STORE>(at, code);
        }
    }

    /// Looks up the part of an access in the next line.
    #[inline(never)]
    fn look_up_rest<const STORE: bool>(&mut self, at: At, code: Code) {
        let what = if STORE { ReferenceFlags::STORE } else { 0 };
        let here = self.cpu.tlb.quick(at.page);
        let line = at.place >> self.line_shift;
        let hit = self.cpu.l1_data.access::<STORE>(line);
        self.look_up_closely(at, code, what | ReferenceFlags::hit(hit), here);
    }

    /// Handles a reference on the slow path; `here`: the TLB has its page.
    #[inline(never)]
    fn look_up_closely(&mut self, at: At, code: Code, mut what: u32, here: bool) {
        if !here && self.translate(at.page, what & ReferenceFlags::FETCH != 0) {
            what |= ReferenceFlags::TLB_MISS;
        }
        if self.references >= self.next_sample {
            self.plan_sample();
            self.count(Counter::Samples);
            what |= ReferenceFlags::SAMPLED;
        }
        let what = ReferenceFlags(what);
        self.touch(&CloseReference { at, code, what });
    }

    #[inline]
    fn touch(&mut self, reference: &CloseReference) {
        let &CloseReference { at, code, what } = reference;
        let process = self.process;
        let address = at.place;
        let line = address >> self.line_shift;
        let (store, fetch) = (
            what.is(ReferenceFlags::STORE),
            what.is(ReferenceFlags::FETCH),
        );
        if let Some(serial) = &process.serial {
            let step = match (fetch, store) {
                (true, _) => Step::Fetch,
                (_, true) => Step::Store,
                _ => Step::Load,
            };
            serial.add(
                step,
                self.position,
                self.number,
                [address, code.instruction()],
            );
        }
        // A guest's processor's reads for an interrupt are reported as those of an earlier instruction.
        let instructions = (self.base + code.number())
            .min(self.caught_up)
            .max(self.stream.last());
        let (tlb_miss, sampled) = (
            what.is(ReferenceFlags::TLB_MISS),
            what.is(ReferenceFlags::SAMPLED),
        );
        if tlb_miss && process.touched.touch(address >> self.page_shift) {
            self.first_touch(address, code, instructions);
        }
        let hit = what.is(ReferenceFlags::HIT);
        let mut served = Served::L1;
        if !hit {
            self.miss(line, store, fetch);
            served = self.outcome.served;
        }
        let kept = match served {
            Served::L1 => false,
            Served::L2 | Served::L3 => process.setup.keep_hits,
            _ => true,
        };
        let mut kept = kept || tlb_miss || sampled;
        if store && !self.stored.has(at.page) {
            self.stored.add(at.page);
            if !kept {
                // The record only says that the page was stored to.
                (kept, served) = (true, Served::L1);
            }
        }
        if kept {
            let reference = Reference {
                address,
                instruction: code.instruction(),
                kind: match (fetch, store) {
                    (true, _) => ReferenceKind::Fetch,
                    (_, true) => ReferenceKind::Store,
                    _ => ReferenceKind::Load,
                },
                served,
                tlb_miss,
                sampled,
                kernel: code.is_kernel(),
                segment: at.segment,
            };
            if self.origin > 0 && is_fetched(served) {
                self.depend(instructions);
            }
            self.reference(instructions, &reference);
        }
        if !hit && !self.outcome.write_backs().is_empty() {
            self.write_backs(code, instructions);
        }
    }

    /// Records that the next reference waits for another miss, unless that miss is further back than any processor runs ahead.
    fn depend(&mut self, instructions: u64) {
        let on = (instructions + 1).saturating_sub(self.origin);
        if (1..=RUN_AHEAD_MAX).contains(&on) && self.process.recording.load(Relaxed) {
            let time = instructions + self.ahead;
            let record = Record::Depends { on };
            self.stream
                .add(&self.process.output, instructions, time, &record);
        }
    }

    #[cold]
    fn first_touch(&mut self, address: u64, code: Code, instructions: u64) {
        self.count(Counter::FirstTouches);
        let record = Record::FirstTouch {
            address,
            instruction: code.instruction(),
        };
        let time = instructions + self.ahead;
        self.stream
            .add(&self.process.output, instructions, time, &record);
    }

    #[inline(never)]
    fn write_backs(&mut self, code: Code, instructions: u64) {
        let outcome = self.outcome;
        for line in outcome.write_backs() {
            self.count(Counter::WriteBacks);
            let reference = Reference {
                address: line << self.line_shift,
                instruction: code.instruction(),
                kind: ReferenceKind::Store,
                served: Served::WriteBack,
                tlb_miss: false,
                sampled: false,
                // Which kind of page it is, is no longer known.
                kernel: false,
                segment: Segment::User,
            };
            self.reference(instructions, &reference);
        }
    }

    /// Serves a miss in L1.
    #[inline]
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "private and with one caller; `Miss` names them at once"
    )]
    fn miss(&mut self, line: u64, store: bool, fetch: bool) {
        let process = self.process;
        let alone = (self.stop, process.lockstep.joined());
        let allowed = self.number == 0 || self.first_until == alone || process.setup.serial;
        let mut miss = Miss {
            cpu: self.cpu,
            line,
            fetch,
            store,
            allowed,
        };
        if !process.caches.miss(&miss, &mut self.outcome) {
            self.let_earlier_go_first();
            miss.allowed = true;
            process.caches.miss(&miss, &mut self.outcome);
        }
        let served = self.outcome.served;
        if served == Served::L1 {
            // No other CPU is concerned.
            return;
        }
        let counter = COUNTED[served as usize % COUNTED.len()];
        self.count(counter);
        if fetch {
            self.count(Counter::FetchL1Misses);
        } else if served != Served::Upgrade {
            self.count(Counter::DataL1Misses);
        }
        let invalidations = self.outcome.invalidations;
        self.took |= served == Served::OtherCache || invalidations > 0;
        *self.counter(Counter::Invalidations) += u64::from(invalidations);
    }

    #[inline]
    fn reference(&mut self, instructions: u64, reference: &Reference) {
        if self.process.recording.load(Relaxed) {
            let time = instructions + self.ahead;
            self.stream
                .reference(&self.process.output, instructions, time, reference);
        }
    }

    /// Inserts a page into a TLB that has missed; returns whether the second level missed, too.
    #[inline]
    fn translate(&mut self, page: u64, fetch: bool) -> bool {
        let cpu = self.cpu;
        let tlb = if fetch { cpu.fetch_tlb() } else { &cpu.tlb };
        tlb.fill(page);
        if let Some(second) = &self.cpu.tlb_second {
            if second.quick(page) {
                self.count(Counter::SecondTlbHits);
                return false;
            }
            second.fill(page);
        }
        self.count(if fetch {
            Counter::FetchTlbMisses
        } else {
            Counter::DataTlbMisses
        });
        true
    }
}
