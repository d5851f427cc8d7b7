//! The machine's caches: L1 for fetches and one for data, and an L2 that holds whatever they do, for
//! each CPU; an L3 for each node where the machine has one; a directory that keeps them coherent by
//! the MESI protocol (Papamarcos and Patel 1984, with the directory of Censier and Feautrier 1978).
//!
//! # Who may change what
//! Several host threads work on this at once, one for each CPU at a time.
//!
//! - An L1's or L2's tags change only with its CPU's lock held. The CPU's own thread reads its L1
//!   without it: a hit changes no tag. A store hits in L1 only if the tag there says modified, so
//!   that a store that needs anything from others never goes unnoticed, and so does one to a line
//!   that an invalidation has taken away.
//! - Whether a line is in an L2 or L3 at all, and whether others have it, changes only with the lock
//!   of the line's directory set held, then the CPU's. At most one CPU's lock is held at any time.
//! - With its own CPU's lock alone a thread may do what concerns nobody else: take a line from its
//!   L2 into its L1, or turn an exclusive line into a modified one.
//!
//! All lines that compete for a set of an L2 or L3 are in one directory set, so that a line and
//! those that it evicts are under one lock.
//!
//! # What is simplified
//! Lines are those of guest virtual addresses: two mappings of one page are two sets of lines, and
//! what is unmapped leaves the caches only by eviction. A load served by another CPU's modified
//! copy also brings memory up to date (no write-back is told of that). Evicting a clean line tells
//! nobody. L3 keeps what memory sends and what its CPUs write back; its evictions take nothing from
//! the L2s. A CPU's store does not clear its own fetch cache.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use nearpage_wire::trace::Served;
use nearpage_wire::tracer_setup::{self, Cache, Setup};

use crate::lock::{Held, Lock, hold};
use crate::tlb::Tlb;

/// Low bits of a tag; the line's number is above them. 0: the entry is empty.
const SHARED: u64 = 1;
const EXCLUSIVE: u64 = 2;
const MODIFIED: u64 = 3;

/// Puts a value where only the holder of a lock puts any.
#[inline]
fn swap(word: &AtomicU64, value: u64) -> u64 {
    let before = word.load(Relaxed);
    word.store(value, Relaxed);
    before
}

/// Asks the host for the beginning of `words`, to be written.
#[inline]
fn prefetch(words: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch reads and writes nothing that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(words.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = words;
}

fn words(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// A first-level cache.
pub struct L1 {
    set_mask: u64,
    ways: usize,
    tags: Box<[AtomicU64]>,
    /// Of each set, the way used last. Only its own CPU's thread knows this and the next two.
    recent: Box<[AtomicU8]>,
    /// When each way was last used, but for the most recent one.
    used: Box<[AtomicU64]>,
    clock: AtomicU64,
}

impl L1 {
    fn new(shape: &Cache, line_bytes: u32) -> Self {
        let sets = shape.sets(line_bytes) as usize;
        let ways = shape.ways as usize;
        Self {
            set_mask: sets as u64 - 1,
            ways,
            tags: words(sets * ways),
            recent: (0..sets).map(|_| AtomicU8::new(0)).collect(),
            used: words(sets * ways),
            clock: AtomicU64::new(0),
        }
    }

    #[inline]
    fn serves<const STORE: bool>(tag: u64, line: u64) -> bool {
        if STORE {
            tag == line << 2 | MODIFIED
        } else {
            // Any state but empty.
            (tag ^ line << 2).wrapping_sub(1) < MODIFIED
        }
    }

    /// Is the line in the way used last, good enough for this? `false`: ask [`Self::access`].
    #[inline]
    pub fn quick<const STORE: bool>(&self, line: u64) -> bool {
        let set = (line & self.set_mask) as usize;
        let Some(recent) = self.recent.get(set) else {
            return false;
        };
        let place = set * self.ways + usize::from(recent.load(Relaxed));
        match self.tags.get(place) {
            Some(tag) => Self::serves::<STORE>(tag.load(Relaxed), line),
            None => false,
        }
    }

    /// Uses the line if it is here and good enough.
    #[inline]
    pub fn access<const STORE: bool>(&self, line: u64) -> bool {
        let set = (line & self.set_mask) as usize;
        let tags = self.set(set);
        for (way, tag) in tags.iter().enumerate() {
            if Self::serves::<STORE>(tag.load(Relaxed), line) {
                self.use_now(set, way);
                return true;
            }
        }
        false
    }

    fn set(&self, set: usize) -> &[AtomicU64] {
        let first = set * self.ways;
        self.tags.get(first..first + self.ways).unwrap_or_default()
    }

    fn find(&self, line: u64) -> Option<&AtomicU64> {
        let tags = self.set((line & self.set_mask) as usize);
        tags.iter()
            .find(|tag| Self::serves::<false>(tag.load(Relaxed), line))
    }

    #[inline]
    fn use_now(&self, set: usize, way: usize) {
        let Some(recent) = self.recent.get(set) else {
            return;
        };
        let before = usize::from(recent.load(Relaxed));
        if before != way {
            // The order in which ways cease to be the most recent is that of their last uses.
            let now = self.clock.load(Relaxed) + 1;
            self.clock.store(now, Relaxed);
            if let Some(used) = self.used.get(set * self.ways + before) {
                used.store(now, Relaxed);
            }
            recent.store(way as u8, Relaxed);
        }
    }

    /// Puts the line here, or changes its state. Its CPU's lock is held, by its own thread.
    fn fill(&self, line: u64, state: u64) {
        let set = (line & self.set_mask) as usize;
        let tags = self.set(set);
        let recent = self.recent.get(set).map_or(0, |way| way.load(Relaxed));
        let rank = |way: usize| {
            let tag = tags[way].load(Relaxed);
            if Self::serves::<false>(tag, line) {
                0
            } else if tag == 0 {
                1
            } else if way == usize::from(recent) && self.ways > 1 {
                u64::MAX
            } else {
                let used = self.used.get(set * self.ways + way);
                2 + used.map_or(0, |used| used.load(Relaxed))
            }
        };
        if let Some(way) = (0..tags.len()).min_by_key(|way| rank(*way)) {
            tags[way].store(line << 2 | state, Relaxed);
            self.use_now(set, way);
        }
    }

    /// Changes the line's state if it is here; 0 takes it away. Its CPU's lock is held.
    fn change(&self, line: u64, state: u64) {
        if let Some(tag) = self.find(line) {
            tag.store(if state == 0 { 0 } else { line << 2 | state }, Relaxed);
        }
    }
}

/// A cache whose sets stand in order of use, the most recent first.
struct Ordered {
    sets: u64,
    /// Sets − 1 where their number is a power of two; otherwise 0.
    set_mask: u64,
    ways: usize,
    tags: Box<[AtomicU64]>,
}

impl Ordered {
    fn new(shape: &Cache, line_bytes: u32) -> Self {
        let sets = shape.sets(line_bytes);
        Self {
            sets,
            set_mask: if sets.is_power_of_two() { sets - 1 } else { 0 },
            ways: shape.ways as usize,
            tags: words(sets as usize * shape.ways as usize),
        }
    }

    #[inline]
    fn set(&self, line: u64) -> &[AtomicU64] {
        let set = if self.set_mask != 0 {
            line & self.set_mask
        } else {
            line % self.sets
        };
        let first = set as usize * self.ways;
        self.tags.get(first..first + self.ways).unwrap_or_default()
    }

    /// State of the line; 0: it is not here.
    #[inline]
    fn state(&self, line: u64) -> u64 {
        let mut states = self
            .set(line)
            .iter()
            .map(|tag| tag.load(Relaxed) ^ line << 2);
        states.find(|state| *state <= MODIFIED).unwrap_or(0)
    }

    /// Makes the line the most recent of its set, in this state. Returns the tag that had to go
    /// (its state is the low bits), or 0.
    #[inline]
    fn put(&self, line: u64, state: u64) -> u64 {
        let set = self.set(line);
        let mut moving = line << 2 | state;
        // Up to where the line stood, or the first empty entry if it was not here.
        let here = set
            .iter()
            .position(|tag| (tag.load(Relaxed) ^ line << 2).wrapping_sub(1) < MODIFIED);
        for (way, tag) in set.iter().enumerate() {
            let before = swap(tag, moving);
            if here.map_or(before == 0, |here| here == way) {
                return 0;
            }
            moving = before;
        }
        moving
    }

    fn change(&self, line: u64, state: u64) {
        for tag in self.set(line) {
            if (tag.load(Relaxed) ^ line << 2).wrapping_sub(1) < MODIFIED {
                tag.store(if state == 0 { 0 } else { line << 2 | state }, Relaxed);
            }
        }
    }
}

/// One CPU's caches and TLBs.
#[repr(align(128))]
pub struct Cpu {
    /// Fetches.
    pub l1_fetch: L1,
    /// Loads and stores.
    pub l1_data: L1,
    /// Fetches too where `tlb_fetch` is `None`.
    pub tlb: Tlb,
    /// Fetches.
    pub tlb_fetch: Option<Tlb>,
    /// Second level.
    pub tlb_second: Option<Tlb>,
    /// How many of the process's unmappings its TLBs have followed.
    pub unmappings_seen: AtomicU64,
    node: usize,
    l2: Ordered,
    lock: Lock,
}

impl Cpu {
    /// The TLB that serves fetches.
    #[inline]
    pub fn fetch_tlb(&self) -> &Tlb {
        self.tlb_fetch.as_ref().unwrap_or(&self.tlb)
    }

    fn drop_line(&self, line: u64) {
        self.l1_fetch.change(line, 0);
        self.l1_data.change(line, 0);
    }
}

/// Which caches have a line: for each line in any L2 or L3, a bit for each CPU and then for each
/// node.
///
/// A set is its lock and a table of slots, side by side: most misses touch one host cache line of
/// it. Small tables are searched from the front and have no holes; larger ones hash.
struct Directory {
    sets: u64,
    /// Slots of a set, a power of two.
    slots: usize,
    /// Words of a slot: the line's number + 1 above [`FIRST_BITS`] bits, then the other bits.
    slot_words: usize,
    /// Words of a set, whole host cache lines. The first is the lock.
    set_words: usize,
    words: Box<[AtomicU64]>,
}

/// Bits of holders beside the line's number, which has 43: 47 of an address without 5 of a line,
/// and one more for the 1 added.
const FIRST_BITS: usize = 21;
const FIRST_MASK: u64 = (1 << FIRST_BITS) - 1;
/// Tables of up to so many slots are searched from the front.
const SMALL: usize = 32;

/// Words of a slot at most; with them, [`tracer_setup::HOLDERS_MAX`].
const HOLDER_WORDS: usize = 1 + (tracer_setup::HOLDERS_MAX - FIRST_BITS).div_ceil(64);

/// Bits of CPUs and nodes: the first [`FIRST_BITS`], then 64 a word.
#[derive(Clone, Default)]
struct Holders([u64; HOLDER_WORDS]);

impl Holders {
    #[inline]
    fn place(bit: usize) -> (usize, u64) {
        if bit < FIRST_BITS {
            (0, 1 << bit)
        } else {
            let word = 1 + (bit - FIRST_BITS) / 64;
            (word % HOLDER_WORDS, 1 << ((bit - FIRST_BITS) % 64))
        }
    }

    #[inline]
    fn set(&mut self, bit: usize) {
        let (word, mask) = Self::place(bit);
        self.0[word] |= mask;
    }

    #[inline]
    fn clear(&mut self, bit: usize) {
        let (word, mask) = Self::place(bit);
        self.0[word] &= !mask;
    }

    #[inline]
    fn has(&self, bit: usize) -> bool {
        let (word, mask) = Self::place(bit);
        self.0[word] & mask != 0
    }

    #[inline]
    fn any(&self) -> bool {
        self.0.iter().any(|word| *word != 0)
    }

    /// The bits that are set now.
    #[inline]
    fn bits(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.0;
        let (mut word, mut offset, mut number) = (words[0], 0, 0);
        std::iter::from_fn(move || {
            while word == 0 {
                number += 1;
                word = *words.get(number)?;
                offset = FIRST_BITS + (number - 1) * 64;
            }
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            Some(offset + bit)
        })
    }
}

impl Directory {
    fn new(sets: u64, lines_of_set: usize, holders: usize) -> Self {
        // One more than there are lines while one comes and another goes.
        let slots = if lines_of_set < SMALL {
            SMALL
        } else {
            (lines_of_set + lines_of_set / 2).next_power_of_two()
        };
        let slot_words = 1 + holders.saturating_sub(FIRST_BITS).div_ceil(64);
        let room = if lines_of_set < SMALL {
            lines_of_set + 1
        } else {
            slots
        };
        let set_words = (1 + room * slot_words).next_multiple_of(8);
        Self {
            sets,
            slots: room,
            slot_words,
            set_words,
            words: words(sets as usize * set_words),
        }
    }

    #[inline]
    fn set(&self, line: u64) -> &[AtomicU64] {
        // Sets are a power of two.
        let first = (line & (self.sets - 1)) as usize * self.set_words;
        self.words
            .get(first..first + self.set_words)
            .unwrap_or_default()
    }

    fn lock(&self, line: u64) -> Option<Held<'_>> {
        self.set(line).first().map(hold)
    }

    /// A small table of slots of one word?
    #[inline]
    fn plain(&self) -> bool {
        self.slots <= SMALL && self.slot_words == 1
    }

    fn home(&self, line: u64) -> usize {
        if self.slots <= SMALL {
            return 0;
        }
        ((line / self.sets).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.slots - 1)
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots { 0 } else { slot + 1 }
    }

    #[inline]
    fn words_of<'a>(&self, set: &'a [AtomicU64], slot: usize) -> &'a [AtomicU64] {
        let first = 1 + slot * self.slot_words;
        set.get(first..first + self.slot_words).unwrap_or_default()
    }

    #[inline]
    fn line_of(&self, set: &[AtomicU64], slot: usize) -> u64 {
        let word = set.get(1 + slot * self.slot_words);
        word.map_or(0, |word| word.load(Relaxed) >> FIRST_BITS)
    }

    /// The slot of the line, or the empty one where it would be.
    #[inline]
    fn slot(&self, set: &[AtomicU64], line: u64) -> usize {
        if self.plain() {
            let slots = set.iter().skip(1);
            let mut lines = slots.map(|word| word.load(Relaxed) >> FIRST_BITS);
            return lines
                .position(|here| here == line + 1 || here == 0)
                .unwrap_or(0);
        }
        let mut at = self.home(line);
        // There is always an empty one.
        for _ in 0..self.slots {
            let here = self.line_of(set, at);
            if here == 0 || here == line + 1 {
                break;
            }
            at = self.after(at);
        }
        at
    }

    #[inline]
    fn get(&self, line: u64) -> Holders {
        let set = self.set(line);
        let mut holders = Holders::default();
        let words = self.words_of(set, self.slot(set, line));
        for (holder, word) in holders.0.iter_mut().zip(words) {
            *holder = word.load(Relaxed);
        }
        holders.0[0] &= FIRST_MASK;
        holders
    }

    #[inline]
    fn put(&self, line: u64, holders: &Holders) {
        let set = self.set(line);
        let slot = self.slot(set, line);
        if !holders.any() {
            if self.line_of(set, slot) != 0 {
                self.empty(set, slot);
            }
            return;
        }
        let tag = (line + 1) << FIRST_BITS;
        for (number, (word, holder)) in self.words_of(set, slot).iter().zip(holders.0).enumerate() {
            word.store(if number == 0 { tag | holder } else { holder }, Relaxed);
        }
    }

    /// Takes a bit from a line's.
    #[inline]
    fn clear(&self, line: u64, bit: usize) {
        let set = self.set(line);
        let slot = self.slot(set, line);
        let words = self.words_of(set, slot);
        let (number, mask) = Holders::place(bit);
        if let Some(word) = words.get(number) {
            word.store(word.load(Relaxed) & !mask, Relaxed);
        }
        let [first, rest @ ..] = words else { return };
        let held = first.load(Relaxed) & FIRST_MASK != 0
            || rest.iter().any(|word| word.load(Relaxed) != 0);
        if !held && first.load(Relaxed) != 0 {
            self.empty(set, slot);
        }
    }

    /// Empties a slot and moves those behind it that would not be found otherwise.
    fn empty(&self, set: &[AtomicU64], slot: usize) {
        let move_to = |to: usize, from: usize| {
            let pairs = self.words_of(set, to).iter().zip(self.words_of(set, from));
            pairs.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        };
        let mut hole = slot;
        if self.slots <= SMALL {
            // The last one takes its place.
            let words = set.iter().skip(1).step_by(self.slot_words);
            let filled = words.take(self.slots).skip(slot + 1);
            let behind = filled.take_while(|word| word.load(Relaxed) != 0).count();
            let last = slot + behind;
            if last != slot {
                move_to(slot, last);
            }
            hole = last;
        } else {
            let mask = self.slots - 1;
            let mut at = hole;
            loop {
                at = (at + 1) & mask;
                let here = self.line_of(set, at);
                if here == 0 || at == slot {
                    break;
                }
                let home = self.home(here - 1);
                // Would a search from its home pass the hole?
                if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                    move_to(hole, at);
                    hole = at;
                }
            }
        }
        for word in self.words_of(set, hole) {
            word.store(0, Relaxed);
        }
    }
}

/// What came of a reference that L1 could not serve.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// What served it; `L1` where a store made an exclusive line there a modified one.
    pub served: Served,
    /// Copies taken away from other CPUs.
    pub invalidations: u32,
    /// Lines written back to memory, the first `write_back_count` of these.
    pub write_backs: [u64; 4],
    /// How many.
    pub write_back_count: usize,
}

impl Outcome {
    fn write_back(&mut self, line: u64) {
        if let Some(place) = self.write_backs.get_mut(self.write_back_count) {
            *place = line;
            self.write_back_count += 1;
        }
    }
}

struct Asks {
    position: usize,
    line: u64,
    store: bool,
    allowed: bool,
}

/// All caches of the machine.
pub struct Caches {
    cpus: Box<[Cpu]>,
    l3: Box<[Ordered]>,
    directory: Directory,
}

impl Caches {
    /// Cold ones.
    pub fn new(setup: &Setup) -> Self {
        let nodes: Vec<usize> = setup.cpu_nodes.iter().collect();
        let line_bytes = setup.line_bytes;
        let node_count = nodes.iter().max().map_or(0, |last| last + 1);
        let cpus: Box<[Cpu]> = nodes
            .iter()
            .map(|node| Cpu {
                l1_fetch: L1::new(&setup.l1_fetch, line_bytes),
                l1_data: L1::new(&setup.l1_data, line_bytes),
                tlb: Tlb::new(&setup.tlb),
                tlb_fetch: setup.tlb_fetch.as_ref().map(Tlb::new),
                tlb_second: setup.tlb_second.as_ref().map(Tlb::new),
                unmappings_seen: AtomicU64::new(0),
                node: *node,
                l2: Ordered::new(&setup.l2, line_bytes),
                lock: Lock::default(),
            })
            .collect();
        let l2_sets = setup.l2.sets(line_bytes);
        // The largest power of two that divides both numbers of sets.
        let sets = setup.l3.map_or(l2_sets, |l3| {
            l2_sets.min(1 << l3.sets(line_bytes).trailing_zeros())
        });
        let l2_lines = l2_sets * u64::from(setup.l2.ways) * cpus.len() as u64;
        let l3_lines = setup.l3.map_or(0, |l3| {
            l3.sets(line_bytes) * u64::from(l3.ways) * node_count as u64
        });
        let l3_nodes = if setup.l3.is_some() { node_count } else { 0 };
        let lines_of_set = ((l2_lines + l3_lines) / sets) as usize;
        Self {
            directory: Directory::new(sets, lines_of_set, cpus.len() + l3_nodes),
            l3: (0..l3_nodes)
                .filter_map(|_| setup.l3.as_ref())
                .map(|l3| Ordered::new(l3, line_bytes))
                .collect(),
            cpus,
        }
    }

    /// A CPU, by position.
    pub fn cpu(&self, position: usize) -> Option<&Cpu> {
        self.cpus.get(position)
    }

    /// CPUs, by position.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// That CPU may ask for the line in a moment: the host may fetch what that takes.
    #[inline]
    pub fn expect(&self, cpu: &Cpu, line: u64) {
        prefetch(self.directory.set(line));
        prefetch(cpu.l2.set(line));
    }

    /// A reference of the CPU at `position` that its L1 could not serve. `None`: it would change what
    /// another CPU has, and that is not `allowed` yet; nothing happened.
    pub fn miss(
        &self,
        position: usize,
        line: u64,
        fetch: bool,
        store: bool,
        allowed: bool,
    ) -> Option<Outcome> {
        let mut outcome = Outcome {
            served: Served::L2,
            invalidations: 0,
            write_backs: [0; 4],
            write_back_count: 0,
        };
        let cpu = self.cpus.get(position)?;
        let l1 = if fetch { &cpu.l1_fetch } else { &cpu.l1_data };

        // What concerns nobody else. Looked at first without the lock: most lines are not there.
        let enough = |state: u64| state != 0 && !(store && state == SHARED);
        if enough(cpu.l2.state(line)) {
            let _held = cpu.lock.hold();
            let state = cpu.l2.state(line);
            if enough(state) {
                let state = if store { MODIFIED } else { state };
                if store && l1.find(line).is_some() {
                    outcome.served = Served::L1;
                }
                cpu.l2.put(line, state);
                l1.fill(line, state);
                return Some(outcome);
            }
        }
        let asks = Asks {
            position,
            line,
            store,
            allowed,
        };
        self.ask_directory(cpu, l1, asks, &mut outcome)
            .then_some(outcome)
    }

    fn ask_directory(&self, cpu: &Cpu, l1: &L1, asks: Asks, outcome: &mut Outcome) -> bool {
        let Asks {
            position,
            line,
            store,
            allowed,
        } = asks;
        let _set = self.directory.lock(line);
        let mut holders = self.directory.get(line);
        if !allowed {
            let mut others = holders.bits().filter(|bit| *bit != position);
            let theirs = |bit: usize| match self.cpus.get(bit) {
                Some(other) => store || other.l2.state(line) == MODIFIED,
                None => false,
            };
            if others.any(theirs) {
                return false;
            }
        }
        let own = cpu.l2.state(line);
        let mut elsewhere_modified = false;
        let mut others = false;
        for bit in holders.bits() {
            let Some(other) = self.cpus.get(bit) else {
                continue;
            };
            if bit == position {
                continue;
            }
            let _held = other.lock.hold();
            elsewhere_modified |= other.l2.state(line) == MODIFIED;
            if store {
                other.l2.change(line, 0);
                other.drop_line(line);
                outcome.invalidations += 1;
                holders.clear(bit);
            } else {
                others = true;
                other.l2.change(line, SHARED);
                other.l1_data.change(line, SHARED);
                other.l1_fetch.change(line, SHARED);
            }
        }
        let own_l3 = self.l3.get(cpu.node);
        let mut in_own_l3 = false;
        for (node, l3) in self.l3.iter().enumerate() {
            let bit = self.cpus.len() + node;
            if !holders.has(bit) {
                continue;
            }
            if node == cpu.node {
                in_own_l3 = true;
                if store {
                    // L2 has it modified from now on.
                    l3.change(line, SHARED);
                }
                continue;
            }
            elsewhere_modified |= l3.state(line) == MODIFIED;
            if store {
                l3.change(line, 0);
                holders.clear(bit);
            } else {
                others = true;
                l3.change(line, SHARED);
            }
        }

        let state = match (store, others) {
            (true, _) => MODIFIED,
            (false, true) => SHARED,
            (false, false) => EXCLUSIVE,
        };
        outcome.served = if own != 0 {
            Served::Upgrade
        } else if elsewhere_modified {
            Served::OtherCache
        } else if in_own_l3 {
            Served::L3
        } else {
            Served::Memory
        };
        if let Some(l3) = own_l3
            && own == 0
        {
            let kept = if in_own_l3 { l3.state(line) } else { SHARED };
            let evicted = l3.put(line, kept);
            holders.set(self.cpus.len() + cpu.node);
            self.evicted_from_l3(cpu.node, evicted, outcome);
        }
        let evicted = {
            let _held = cpu.lock.hold();
            let evicted = cpu.l2.put(line, state);
            if evicted != 0 {
                cpu.drop_line(evicted >> 2);
            }
            l1.fill(line, state);
            evicted
        };
        if evicted != 0 {
            self.evicted_from_l2(cpu, position, evicted, outcome, line, &mut holders);
        }
        holders.set(position);
        self.directory.put(line, &holders);
        true
    }

    fn evicted_from_l2(
        &self,
        cpu: &Cpu,
        position: usize,
        tag: u64,
        outcome: &mut Outcome,
        coming: u64,
        coming_holders: &mut Holders,
    ) {
        let line = tag >> 2;
        self.directory.clear(line, position);
        if tag & 3 != MODIFIED {
            return;
        }
        let Some(l3) = self.l3.get(cpu.node) else {
            return outcome.write_back(line);
        };
        let bit = self.cpus.len() + cpu.node;
        let evicted = l3.put(line, MODIFIED);
        let mut holders = self.directory.get(line);
        holders.set(bit);
        if evicted >> 2 == coming && evicted != 0 {
            // The line that is just being fetched: its slot is not written yet.
            coming_holders.clear(bit);
            if evicted & 3 == MODIFIED {
                outcome.write_back(coming);
            }
        } else {
            self.evicted_from_l3(cpu.node, evicted, outcome);
        }
        self.directory.put(line, &holders);
    }

    fn evicted_from_l3(&self, node: usize, tag: u64, outcome: &mut Outcome) {
        if tag == 0 {
            return;
        }
        self.directory.clear(tag >> 2, self.cpus.len() + node);
        if tag & 3 == MODIFIED {
            outcome.write_back(tag >> 2);
        }
    }

    /// Stops everything and looks whether the caches are coherent; says what is not.
    #[cfg(test)]
    pub fn incoherence(&self) -> Option<String> {
        use std::collections::HashMap;
        let _all: Vec<_> = (0..self.directory.sets)
            .map(|set| self.directory.lock(set))
            .collect();
        let mut holders: HashMap<u64, (Vec<usize>, u64)> = HashMap::new();
        for (position, cpu) in self.cpus.iter().enumerate() {
            let _held = cpu.lock.hold();
            for tag in cpu.l2.tags.iter().map(|tag| tag.load(Relaxed)) {
                if tag != 0 {
                    let entry = holders.entry(tag >> 2).or_default();
                    entry.0.push(position);
                    entry.1 = entry.1.max(tag & 3);
                }
            }
            for l1 in [&cpu.l1_data, &cpu.l1_fetch] {
                for tag in l1.tags.iter().map(|tag| tag.load(Relaxed)) {
                    let l2 = cpu.l2.state(tag >> 2);
                    if tag != 0 && (l2 == 0 || tag & 3 == MODIFIED && l2 != MODIFIED) {
                        return Some(format!("CPU {position}: L1 {tag:#x}, L2 {l2}"));
                    }
                }
            }
        }
        for (node, l3) in self.l3.iter().enumerate() {
            for tag in l3.tags.iter().map(|tag| tag.load(Relaxed)) {
                if tag != 0 {
                    let entry = holders.entry(tag >> 2).or_default();
                    entry.0.push(self.cpus.len() + node);
                }
            }
        }
        let known = self.directory.words.chunks(self.directory.set_words);
        let known: usize = known
            .map(|set| {
                let slots = 0..self.directory.slots;
                slots
                    .filter(|slot| self.directory.line_of(set, *slot) != 0)
                    .count()
            })
            .sum();
        if known != holders.len() {
            return Some(format!("{known} lines known, {} held", holders.len()));
        }
        for (line, (bits, state)) in holders {
            let told: Vec<usize> = self.directory.get(line).bits().collect();
            if told != bits {
                return Some(format!(
                    "line {line:#x}: directory {told:?}, held by {bits:?}"
                ));
            }
            let cpus = bits.iter().filter(|bit| **bit < self.cpus.len()).count();
            if state >= EXCLUSIVE && cpus > 1 {
                return Some(format!(
                    "line {line:#x} in state {state} has {cpus} holders"
                ));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Threads on as many CPUs work on the same few lines; whenever they stop, and in the middle of
    /// it too, no modified line has a second holder, and directory and caches agree.
    #[test]
    fn many_threads_leave_the_caches_coherent() {
        for l3 in ["", "l3 3072 3\n"] {
            let text = format!(
                "nearpage tracer setup 1\npage_bytes 4096\nline_bytes 64\nl1_fetch 256 2\n\
                 l1_data 256 2\nl2 1024 4\n{l3}tlb 8 8 0\ncpu_nodes 0 0 1 1\nthread_cpus 0\n\
                 quantum 1000\n"
            );
            let setup = Setup::parse(&text).expect(&text);
            let caches = &Caches::new(&setup);
            let work = |position: usize| {
                let cpu = &caches.cpus()[position];
                let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(position as u64 + 1);
                for _ in 0..20_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let (line, store) = (random % 40, random >> 32 & 1 == 1);
                    let hit = if store {
                        cpu.l1_data.quick::<true>(line) || cpu.l1_data.access::<true>(line)
                    } else {
                        cpu.l1_data.quick::<false>(line) || cpu.l1_data.access::<false>(line)
                    };
                    if !hit {
                        caches.miss(position, line, false, store, true);
                    }
                }
            };
            thread::scope(|scope| {
                for position in 0..4 {
                    scope.spawn(move || work(position));
                }
                for _ in 0..50 {
                    assert_eq!(caches.incoherence(), None);
                }
            });
            assert_eq!(caches.incoherence(), None);
        }
    }
}
