//! The time of each reference, by the caches, TLBs and directory of the tracer, and the latencies and queues of the machine.
//!
//! A CPU waits for each of its misses before it goes on, also for those of fetches and stores. After a miss in all TLBs, it
//! loads the page's entries from the guest's page tables, one after the other, through its data caches. An entry of a TLB is for a
//! page of either size.

use nearpage_wire::lab::{LabCount, LabLine, LabSetup};
use nearpage_wire::trace::Served;
use nearpage_wire::tracer_setup::Setup;

use super::queues::Queues;
use crate::caches::{Caches, Cpu, Miss, Outcome};
use crate::memory::PAGE_BITS;
use crate::thread::{PlacedRun, Run};

/// Bits of a page's virtual number by which a TLB entry is known, besides the page of memory behind it.
const TLB_NUMBER_BITS: u32 = 18;
/// Tells a TLB's entries for huge pages from others. Below are 29 bits of the number of a page of memory.
const TLB_HUGE: u64 = 1 << 47;

/// Bytes of a huge page, in bits. The kernel's own of 1 GiB are taken for so many of these.
pub const HUGE_PAGE_BITS: u32 = 21;

/// Most levels of page tables.
pub const PAGE_WALK_MAX: usize = 5;

/// The answers that the model needs from the emulator.
pub trait Emulator {
    /// The running CPU's time in femtoseconds.
    fn now_fs(&self) -> u64;

    /// The page-table entries that a walk for an address loads.
    fn page_walk(&self, address: u64) -> PageWalk;
}

/// A walk through page tables.
#[derive(Clone, Copy, Default)]
pub struct PageWalk {
    /// Places of entries in the guest's memory, the root's first.
    pub places: [u64; PAGE_WALK_MAX],
    /// How many there are.
    pub count: usize,
    /// It found a huge page.
    pub huge: bool,
}

/// Misses from one node's CPUs to another's memory.
#[derive(Clone, Copy, Default)]
struct Pair {
    misses: u64,
    stall_fs: u64,
    queue_fs: u64,
}

/// Where the time of one of the kernel's blocks is counted.
#[derive(Clone, Copy)]
pub struct KernelBlock(u32);

/// Time in one of the kernel's blocks.
struct KernelTime {
    run: Run,
    times: u64,
    stall_fs: u64,
}

/// The latest activity of a CPU.
#[derive(Clone, Copy, Default)]
struct CpuHistory {
    /// The latest block, if all its lines were the most recent of their sets, and the number of lines that other CPUs had
    /// invalidated then.
    block: (u64, u64),
    /// Instruction and address of the latest access: an access of the same instruction, 8 bytes further on, belongs to it.
    access: (u64, u64),
    /// Were its data and its instructions in huge pages? There they are looked for first.
    huge: [bool; 2],
    /// Stall time that is less than a count, carried over.
    remainder_fs: u64,
    /// Its running block, if that is the kernel's.
    kernel: Option<KernelBlock>,
}

/// A reference.
#[derive(Clone, Copy)]
pub struct Access {
    /// Position of the CPU.
    pub cpu: usize,
    /// Virtual address.
    pub address: u64,
    /// Place in the guest's memory.
    pub place: u64,
    /// Address of the instruction.
    pub instruction: u64,
    /// Bytes that it reads or writes: 1 to 16.
    pub size_bytes: u64,
    /// The instruction is the kernel's.
    pub kernel: bool,
    /// Consecutive accesses of the instruction are separate references.
    pub repeats: bool,
}

/// The machine.
pub struct Model {
    caches: Caches,
    queues: Queues,
    outcome: Outcome,
    line_shift: u32,
    instruction_fs: u64,
    hit_fs: [u64; 2],
    tlb_miss_fs: u64,
    latency_fs: Vec<u64>,
    nodes: usize,
    /// Node of each CPU, by position.
    cpu_nodes: Vec<usize>,
    /// The place at which each node's memory ends.
    memory_ends: Vec<u64>,
    latest: Vec<CpuHistory>,
    pairs: Vec<Pair>,
    kernel: Vec<KernelTime>,
    counts: [u64; LabCount::COUNT],
}

impl Model {
    pub fn new(setup: &Setup, lab: &LabSetup) -> Self {
        let nodes = lab.nodes();
        let cpu_nodes: Vec<usize> = setup.cpu_nodes.iter().collect();
        let mut end = 0;
        let ends = lab.memory_bytes.iter().map(|bytes| {
            end += bytes;
            end
        });
        Self {
            caches: Caches::new(setup),
            queues: Queues::new(lab),
            outcome: Outcome::default(),
            line_shift: setup.line_bytes.trailing_zeros(),
            instruction_fs: lab.instruction_fs,
            hit_fs: lab.hit_fs,
            tlb_miss_fs: lab.tlb_miss_fs,
            latency_fs: lab.latency_fs.iter().collect(),
            nodes,
            memory_ends: ends.collect(),
            latest: vec![CpuHistory::default(); cpu_nodes.len()],
            cpu_nodes,
            pairs: vec![Pair::default(); nodes * nodes],
            kernel: Vec::new(),
            counts: [0; LabCount::COUNT],
        }
    }

    pub fn count(&mut self, count: LabCount, by: u64) {
        self.counts[count as usize] += by;
    }

    /// Node of a place in the guest's memory; firmware and devices, whose memory follows, are on the first node.
    fn home(&self, place: u64) -> usize {
        let node = self.memory_ends.partition_point(|end| *end <= place);
        if node < self.nodes { node } else { 0 }
    }

    /// Converts a stall into counts; the remainder is added to the next stall.
    fn in_counts(&mut self, cpu: usize, stall_fs: u64) -> u64 {
        let latest = &mut self.latest[cpu];
        if let Some(KernelBlock(at)) = latest.kernel {
            self.kernel[at as usize].stall_fs += stall_fs;
        }
        let all = latest.remainder_fs + stall_fs;
        latest.remainder_fs = all % self.instruction_fs;
        all / self.instruction_fs
    }

    /// Models a load or store; returns for how many counts the CPU stalls.
    #[inline]
    pub fn access(&mut self, access: &Access, store: bool, emulator: &impl Emulator) -> u64 {
        let &Access {
            cpu: number,
            address,
            place,
            ..
        } = access;
        let latest = &mut self.latest[number].access;
        let (instruction, before) = std::mem::replace(latest, (access.instruction, address));
        let goes_on = instruction == access.instruction && before + 8 == address && !access.repeats;
        if !goes_on {
            self.count(
                if store {
                    LabCount::Stores
                } else {
                    LabCount::Loads
                },
                1,
            );
        }
        let Some(cpu) = self.caches.cpu(number) else {
            return 0;
        };
        let page = tlb_page(address, place, self.latest[number].huge[0]);
        let line = place >> self.line_shift;
        let hit = hits_data(cpu, line, store);
        let last = place + access.size_bytes - 1;
        // The place of the next page is unknown.
        let crosses = last >> self.line_shift != line && last >> PAGE_BITS == place >> PAGE_BITS;
        if cpu.tlb.quick(page) && hit && !crosses {
            return 0;
        }
        let reference = Reference {
            store,
            fetch: false,
            walk: false,
            kernel: access.kernel,
        };
        let mut stall = self.translate(number, address, place, reference, emulator);
        if !hit {
            stall += self.miss(number, line, reference, emulator.now_fs() + stall);
        }
        if crosses {
            let line = last >> self.line_shift;
            let cpu = self.caches.cpu(number);
            if !cpu.is_some_and(|cpu| hits_data(cpu, line, store)) {
                stall += self.miss(number, line, reference, emulator.now_fs() + stall);
            }
        }
        self.in_counts(number, stall)
    }

    /// Where the time of a block of the kernel is to be counted.
    pub fn kernel_block(&mut self, run: Run) -> KernelBlock {
        self.kernel.push(KernelTime {
            run,
            times: 0,
            stall_fs: 0,
        });
        KernelBlock(self.kernel.len() as u32 - 1)
    }

    /// Assigns the CPU's stalls to this block from now on.
    #[inline]
    pub fn enter(&mut self, cpu: usize, kernel: Option<KernelBlock>) {
        if let Some(KernelBlock(at)) = kernel {
            self.kernel[at as usize].times += 1;
        }
        if let Some(latest) = self.latest.get_mut(cpu) {
            latest.kernel = kernel;
        }
    }

    /// Models the fetches of a block that begins; returns for how many counts the CPU stalls.
    #[inline]
    pub fn block(&mut self, number: usize, placed: &PlacedRun, emulator: &impl Emulator) -> u64 {
        let run = placed.run;
        let instructions = run.instructions();
        self.count(LabCount::Instructions, instructions);
        if placed.kernel {
            self.count(LabCount::KernelInstructions, instructions);
        }
        let Some(cpu) = self.caches.cpu(number) else {
            return 0;
        };
        let address = run.address();
        let in_page = address & ((1 << PAGE_BITS) - 1);
        let place = u64::from(placed.frame) << PAGE_BITS | in_page;
        let page = tlb_page(address, place, self.latest[number].huge[1]);
        let here = cpu.fetch_tlb().quick(page);
        let first = place >> self.line_shift;
        let last = first + run.lines() - 1;
        let taken = cpu.l1_fetch.invalidated_lines();
        // If no line was invalidated and no other block ran, all lines are still the most recent of their sets.
        if here && self.latest[number].block == (first << 8 | run.lines(), taken) {
            return 0;
        }
        self.latest[number].block = (first << 8 | run.lines(), taken);
        let reference = Reference {
            store: false,
            fetch: true,
            walk: false,
            kernel: placed.kernel,
        };
        let mut stall = if here {
            0
        } else {
            self.translate(number, address, place, reference, emulator)
        };
        for line in first..=last {
            let hit = self
                .caches
                .cpu(number)
                .is_some_and(|cpu| cpu.l1_fetch.access::<false>(line));
            if !hit {
                self.latest[number].block = (0, 0);
                stall += self.miss(number, line, reference, emulator.now_fs() + stall);
            }
        }
        self.in_counts(number, stall)
    }

    /// Looks a page up in the TLBs, and inserts it if it is missing; returns the time of that.
    #[inline(never)]
    fn translate(
        &mut self,
        number: usize,
        address: u64,
        place: u64,
        reference: Reference,
        emulator: &impl Emulator,
    ) -> u64 {
        let Some(cpu) = self.caches.cpu(number) else {
            return 0;
        };
        let tlb = match reference.fetch {
            true => cpu.fetch_tlb(),
            false => &cpu.tlb,
        };
        let second = cpu.tlb_second.as_ref();
        let latest = &mut self.latest[number].huge[usize::from(reference.fetch)];
        for huge in [false, true] {
            let page = tlb_page(address, place, huge);
            let first = tlb.quick(page);
            if first || second.is_some_and(|second| second.quick(page)) {
                *latest = huge;
                if !first {
                    tlb.fill(page);
                }
                return 0;
            }
        }
        let walk = emulator.page_walk(address);
        *latest = walk.huge;
        let page = tlb_page(address, place, walk.huge);
        tlb.fill(page);
        if let Some(second) = second {
            second.fill(page);
        }
        self.count(LabCount::TlbMisses, 1);
        self.count(LabCount::TlbMissTimeFs, self.tlb_miss_fs);
        self.tlb_miss_fs + self.page_walk(number, &walk, reference, emulator)
    }

    /// Loads a page's entries from the page tables; returns the time of that.
    fn page_walk(
        &mut self,
        number: usize,
        walk: &PageWalk,
        reference: Reference,
        emulator: &impl Emulator,
    ) -> u64 {
        let reference = Reference {
            store: false,
            fetch: false,
            walk: true,
            ..reference
        };
        let mut stall = 0;
        for place in walk.places.iter().take(walk.count) {
            let line = place >> self.line_shift;
            let cpu = self.caches.cpu(number);
            if !cpu.is_some_and(|cpu| hits_data(cpu, line, false)) {
                let now = emulator.now_fs() + self.tlb_miss_fs + stall;
                stall += self.miss(number, line, reference, now);
            }
        }
        self.count(LabCount::PageWalkWaitFs, stall);
        stall
    }

    /// Serves a miss of a first-level cache; returns the time of that.
    #[inline(never)]
    fn miss(&mut self, number: usize, line: u64, reference: Reference, now: u64) -> u64 {
        let Some(cpu): Option<&Cpu> = self.caches.cpu(number) else {
            return 0;
        };
        let miss = Miss {
            cpu,
            line,
            fetch: reference.fetch,
            store: reference.store,
            allowed: true,
        };
        self.caches.miss(&miss, &mut self.outcome);
        let served = self.outcome.served;
        let node = self.cpu_nodes[number];
        let stall = match served {
            Served::Memory | Served::OtherCache | Served::Upgrade => {
                let home = self.home(line << self.line_shift);
                let lines = u64::from(served != Served::Upgrade);
                let queue_fs = self.queues.wait(node, home, now, lines);
                let stall_fs = self.latency_fs[node * self.nodes + home] + queue_fs;
                let pair = &mut self.pairs[node * self.nodes + home];
                pair.misses += 1;
                pair.stall_fs += stall_fs;
                pair.queue_fs += queue_fs;
                match served {
                    Served::OtherCache => self.count(LabCount::OtherCacheServed, 1),
                    Served::Upgrade => self.count(LabCount::Upgrades, 1),
                    _ => {}
                }
                self.count(LabCount::KernelMisses, reference.kernel.into());
                self.count(LabCount::WalkMisses, reference.walk.into());
                stall_fs
            }
            Served::L2 | Served::L3 => {
                let third = served == Served::L3;
                self.count(
                    if third {
                        LabCount::L3Hits
                    } else {
                        LabCount::L2Hits
                    },
                    1,
                );
                let hit_fs = self.hit_fs[usize::from(third)];
                self.count(LabCount::CacheHitTimeFs, hit_fs);
                hit_fs
            }
            _ => 0,
        };
        let outcome = self.outcome;
        for written in outcome.write_backs() {
            let home = self.home(written << self.line_shift);
            self.queues.write_back(node, home, now);
            self.count(LabCount::WriteBacks, 1);
        }
        stall
    }

    /// Sets all counts to 0; caches and queues stay as they are.
    pub fn restart(&mut self) {
        self.counts = [0; LabCount::COUNT];
        self.pairs.fill(Pair::default());
        for time in &mut self.kernel {
            (time.times, time.stall_fs) = (0, 0);
        }
        self.queues.restart();
    }

    /// The counts.
    pub fn lines(&self) -> Vec<LabLine> {
        let counts = LabCount::ALL.iter();
        let counts = counts.map(|count| LabLine::Count(*count, self.counts[*count as usize]));
        let pairs = self.pairs.iter().enumerate();
        let pairs = pairs.filter(|(_, pair)| pair.misses > 0);
        let pairs = pairs.map(|(at, pair)| LabLine::Misses {
            cpu: at / self.nodes,
            memory: at % self.nodes,
            misses: pair.misses,
            stall_fs: pair.stall_fs,
            queue_fs: pair.queue_fs,
        });
        let kernel = self.kernel.iter().filter(|time| time.times > 0);
        let kernel = kernel.map(|time| LabLine::Kernel {
            address: time.run.kernel_address(),
            time_fs: time.times * time.run.instructions() * self.instruction_fs + time.stall_fs,
        });
        let counts = counts.chain(pairs).chain(self.queues.lines());
        counts.chain(kernel).collect()
    }
}

/// A reference that missed.
#[derive(Clone, Copy)]
struct Reference {
    store: bool,
    fetch: bool,
    walk: bool,
    kernel: bool,
}

/// Looks a line of data up in the first level, and inserts it if it is missing; returns whether it was there.
#[inline(always)]
fn hits_data(cpu: &Cpu, line: u64, store: bool) -> bool {
    match store {
        true => cpu.l1_data.access::<true>(line),
        false => cpu.l1_data.access::<false>(line),
    }
}

/// What TLBs know a page by.
#[inline(always)]
fn tlb_page(address: u64, place: u64, huge: bool) -> u64 {
    let (bits, size) = match huge {
        true => (HUGE_PAGE_BITS, TLB_HUGE),
        false => (PAGE_BITS, 0),
    };
    let number = address >> bits & ((1 << TLB_NUMBER_BITS) - 1);
    size | (place >> bits) << TLB_NUMBER_BITS | number
}

#[cfg(test)]
mod tests;
