//! Which large allocations are logged, and which of them are alive.
//!
//! Every large allocation is logged, unless its call site allocates short-lived objects at a high rate. Hardly any access
//! to such an object is ever sampled, and a record would cost more than the allocation.
//!
//! Each call site has a budget of records (a leaky bucket, [`SiteBudgets`]), which refills at `RECORDS_PER_SECOND`. An
//! object is charged when it is freed, by its age: a young one costs a whole record, an old one next to nothing. So a
//! site that keeps many objects has each of them logged. Allocations of a site that has overdrawn its budget are sampled
//! by bytes ([`crate::sampling`]). The mean distance between samples doubles as the site overdraws further, so that even
//! the busiest site settles near `RECORDS_PER_SECOND`.
//!
//! Sites are told apart by a hash of the return address and of the depth of the stack, without
//! unwinding. Sites with the same hash, one of `SITES`, share a budget.
//!
//! Addresses do not show which objects are logged, so a table has the logged ones ([`LiveObjects`]), where each `free`
//! looks its object up.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::EXACT_ALLOCATION_BYTES;

use crate::call_site::Caller;
use crate::thread::Thread;
use crate::{sampling, sys};

/// Records of young objects that a site may make in the long run.
const RECORDS_PER_SECOND: u64 = 256;
const RECORD_NS: u64 = 1_000_000_000 / RECORDS_PER_SECOND;
/// Records that a site may make at once, before its allocations are sampled.
const BURST_NS: u64 = 1024 * RECORD_NS;
/// An object freed at this age costs a whole record; one that is n times as old, the n-th part.
const FULL_COST_AGE_NS: u64 = 10_000_000;
/// Mean distance between samples of a site that has just overdrawn its budget.
const FIRST_PERIOD_BYTES: u64 = 512 << 10;
/// The mean distance doubles whenever the site has overdrawn by this much more, at most `STEPS_MAX` times.
const STEP_NS: u64 = 256 * RECORD_NS;
const STEPS_MAX: u64 = 12;

const SITE_BITS: u32 = 12;
/// Sites that are told apart.
const SITES: usize = 1 << SITE_BITS;

/// A call site, without unwinding.
fn site_of(thread: &Thread, caller: Caller) -> usize {
    let depth = thread.stack[1].wrapping_sub(caller.at);
    let key = (caller.address as u64).rotate_left(20) ^ depth as u64;
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SITE_BITS)) as usize
}

/// When each site's budget will be whole again (CLOCK_MONOTONIC, ns).
#[derive(Debug)]
pub struct SiteBudgets([AtomicU64; SITES]);

impl SiteBudgets {
    /// Whole budgets.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; SITES])
    }

    fn charge(&self, logged: Logged, now_ns: u64) {
        let age_ns = now_ns.saturating_sub(logged.born_ns).max(FULL_COST_AGE_NS);
        // The product of a record and a year is well within 64 bits.
        let cost_ns = RECORD_NS * FULL_COST_AGE_NS / age_ns;
        if let Some(paid) = self.0.get(logged.site) {
            let add = |paid: u64| {
                Some((paid.max(now_ns) + cost_ns).min(now_ns + BURST_NS + STEPS_MAX * STEP_NS))
            };
            let _ = paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// Mean bytes between two samples of the site now; 0: every allocation is logged.
    fn period_bytes(&self, site: usize, now_ns: u64) -> u64 {
        let paid = self
            .0
            .get(site)
            .map_or(0, |paid| paid.load(Ordering::Relaxed));
        match paid.saturating_sub(now_ns).checked_sub(BURST_NS) {
            None | Some(0) => 0,
            Some(debt_ns) => FIRST_PERIOD_BYTES << (debt_ns / STEP_NS).min(STEPS_MAX - 1),
        }
    }
}

impl Default for SiteBudgets {
    fn default() -> Self {
        Self::new()
    }
}

/// How far a thread is from its next sample of a site. Zeroed: every allocation is due.
#[derive(Debug)]
#[repr(C)]
struct Gap {
    /// Bytes to the next sample.
    countdown: i64,
    /// Mean of the distribution that the countdown was drawn from; 0: every allocation is due.
    period_bytes: u64,
}

const GAPS_BYTES: usize = SITES * size_of::<Gap>();

/// Must this allocation of a large object be logged? Counts it where its site is sampled.
#[inline]
pub fn is_due(caller: Caller, size: usize) -> bool {
    let thread = Thread::current();
    // SAFETY: the thread's own storage. A signal handler in between may count the same bytes away
    // or bring them back, no more.
    unsafe {
        let gaps = (*thread).gaps as *mut Gap;
        if gaps.is_null() || size >= EXACT_ALLOCATION_BYTES {
            return true;
        }
        let gap = gaps.add(site_of(&*thread, caller));
        (*gap).countdown = (*gap).countdown.saturating_sub(size as i64);
        (*gap).countdown <= 0
    }
}

/// The weight, in thousandths, of an allocation that [`is_due`]. Draws the distance to the site's next sample.
pub fn weigh(
    thread: &mut Thread,
    budgets: &SiteBudgets,
    caller: Caller,
    size: usize,
    now_ns: u64,
) -> u64 {
    if size >= EXACT_ALLOCATION_BYTES {
        return 1000;
    }
    let site = site_of(thread, caller);
    let period_bytes = budgets.period_bytes(site, now_ns);
    if thread.gaps == 0 {
        if period_bytes == 0 {
            return 1000;
        }
        // No memory for the gaps: every allocation stays due.
        let Ok(gaps) = sys::reserve(GAPS_BYTES) else {
            return 1000;
        };
        thread.gaps = gaps;
    }
    // SAFETY: as many gaps as sites, this thread's own.
    let gap = unsafe { &mut *(thread.gaps as *mut Gap).add(site) };
    let weight = match gap.period_bytes {
        0 => 1000,
        drawn_with => sampling::weight_thousandths(drawn_with, size),
    };
    gap.period_bytes = period_bytes;
    gap.countdown = match period_bytes {
        0 => 0,
        period => sampling::gap_bytes(period, thread.next_random()),
    };
    weight
}

/// Frees the memory of a thread that ends.
pub fn release(thread: &mut Thread) {
    let gaps = core::mem::take(&mut thread.gaps);
    if gaps != 0 {
        // SAFETY: mapped by `weigh`, and nobody else knows it.
        let _ = unsafe { sys::munmap(gaps, GAPS_BYTES) };
    }
}

/// What is remembered of a logged object until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    site: usize,
    born_ns: u64,
}

impl Logged {
    /// An object that its site is not charged for.
    pub const UNCHARGED: Self = Self {
        site: SITES,
        born_ns: 0,
    };

    /// An object that `caller` allocates now.
    pub fn new(thread: &Thread, caller: Caller, born_ns: u64) -> Self {
        Self {
            site: site_of(thread, caller),
            born_ns,
        }
    }

    /// Charges the object's site: the object is freed now.
    pub fn freed(self, budgets: &SiteBudgets, now_ns: u64) {
        budgets.charge(self, now_ns);
    }
}

const BUCKETS: usize = 1 << 17;
/// Keys of a bucket; the bucket's eighth word says whether objects that belong here are in the next bucket.
const KEYS: usize = 7;
/// Consecutive buckets in which an object is looked for.
const SPAN: usize = 4;
/// A key whose slot is being written.
const BEING_WRITTEN: u64 = 1;

/// The logged objects that live, by address: room for about 900,000.
#[derive(Debug)]
pub struct LiveObjects {
    /// `buckets` cache lines of eight keys, then as many with the times of allocation.
    memory: AtomicUsize,
    buckets: AtomicUsize,
}

impl LiveObjects {
    /// No objects, and no memory for any.
    pub const fn new() -> Self {
        Self {
            memory: AtomicUsize::new(0),
            buckets: AtomicUsize::new(0),
        }
    }

    /// Reserves address space: a part of the usual amount unless the process is `roomy`. False if the kernel refuses.
    pub fn reserve(&self, roomy: bool) -> bool {
        let buckets = if roomy { BUCKETS } else { BUCKETS / 64 };
        let Ok(memory) = sys::reserve(buckets * 128) else {
            return false;
        };
        self.buckets.store(buckets, Ordering::Relaxed);
        self.memory.store(memory, Ordering::Release);
        true
    }

    fn line(&self, memory: usize, number: usize) -> &[AtomicU64; 8] {
        // SAFETY: callers number lines below twice the buckets.
        unsafe { &*(memory as *const [AtomicU64; 8]).add(number) }
    }

    fn first_bucket(&self, address: usize) -> usize {
        let spread = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize & (self.buckets.load(Ordering::Relaxed) - 1)
    }

    /// Remembers an object; false where there is no room.
    pub fn insert(&self, address: usize, logged: Logged) -> bool {
        let memory = self.memory.load(Ordering::Acquire);
        if memory == 0 {
            return false;
        }
        // An object whose `free` was not seen may still be listed at this address.
        self.remove(address);
        let buckets = self.buckets.load(Ordering::Relaxed);
        let key = (address as u64 >> 3) << SITE_BITS | (logged.site % SITES) as u64;
        let first = self.first_bucket(address);
        for next in 0..SPAN {
            let bucket = (first + next) & (buckets - 1);
            let (line, births) = (
                self.line(memory, bucket),
                self.line(memory, buckets + bucket),
            );
            for (slot, birth) in line.iter().zip(births).take(KEYS) {
                if slot.load(Ordering::Relaxed) == 0
                    && slot
                        .compare_exchange(0, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
                {
                    birth.store(logged.born_ns, Ordering::Relaxed);
                    slot.store(key, Ordering::Release);
                    return true;
                }
            }
            line[KEYS].store(1, Ordering::Relaxed);
        }
        false
    }

    /// The slots of the object at `address`: of its key, and of its time of allocation.
    #[inline(always)]
    fn find(&self, address: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        let memory = self.memory.load(Ordering::Acquire);
        if memory == 0 {
            return None;
        }
        let buckets = self.buckets.load(Ordering::Relaxed);
        let wanted = address as u64 >> 3;
        let first = self.first_bucket(address);
        for next in 0..SPAN {
            let bucket = (first + next) & (buckets - 1);
            let line = self.line(memory, bucket);
            let is_it = |slot: &AtomicU64| slot.load(Ordering::Acquire) >> SITE_BITS == wanted;
            if let Some(number) = line.iter().take(KEYS).position(is_it) {
                return Some((&line[number], &self.line(memory, buckets + bucket)[number]));
            }
            if line[KEYS].load(Ordering::Relaxed) == 0 {
                return None;
            }
        }
        None
    }

    /// Is the object at `address` in the log?
    #[inline(always)]
    pub fn contains(&self, address: usize) -> bool {
        self.find(address).is_some()
    }

    /// Takes the object at `address` out of the table; `None` if it is not logged.
    pub fn remove(&self, address: usize) -> Option<Logged> {
        let (slot, birth) = self.find(address)?;
        let (key, born_ns) = (slot.load(Ordering::Acquire), birth.load(Ordering::Relaxed));
        if key >> SITE_BITS != address as u64 >> 3 {
            return None;
        }
        slot.compare_exchange(key, 0, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        Some(Logged {
            site: key as usize % SITES,
            born_ns,
        })
    }
}

impl Default for LiveObjects {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SECOND_NS: u64 = 1_000_000_000;

    fn caller() -> Caller {
        Caller {
            address: 0x40_1234,
            at: 0x7000,
        }
    }

    /// Allocates an object of `size` bytes every `apart_ns` until `end_ns`, and frees each after `age_ns`. Returns the number
    /// of records and the sum of their weights, in thousandths.
    fn churn(
        budgets: &SiteBudgets,
        size: usize,
        apart_ns: u64,
        age_ns: u64,
        end_ns: u64,
    ) -> (u64, u64) {
        let (thread, _token) = Thread::enter().unwrap();
        thread.random = 0x1234_5678_9abc_def1;
        let (mut records, mut weight, mut now_ns) = (0, 0, SECOND_NS);
        let mut living = std::collections::VecDeque::new();
        while now_ns < end_ns {
            while let Some((_, logged)) = living.pop_front_if(|(until, _)| *until <= now_ns) {
                Logged::freed(logged, budgets, now_ns);
            }
            if is_due(caller(), size) {
                records += 1;
                weight += weigh(thread, budgets, caller(), size, now_ns);
                living.push_back((now_ns + age_ns, Logged::new(thread, caller(), now_ns)));
            }
            now_ns += apart_ns;
        }
        release(thread);
        assert!(is_due(caller(), size), "without gaps everything is due");
        (records, weight / 1000)
    }

    #[test]
    fn busy_sites_settle_and_their_weights_add_up() {
        for size in [4096, 5000, 100_000] {
            let budgets = SiteBudgets::new();
            let (records, weight) = churn(&budgets, size, 1000, 500, 11 * SECOND_NS);
            // The records allowed at once, those until the rate has settled, and twice the rate of ten seconds.
            assert!((1024..12_000).contains(&records), "{size}: {records}");
            let ratio = weight as f64 / 10_000_000.0;
            assert!((0.8..1.2).contains(&ratio), "{size}: {ratio}");
        }
    }

    #[test]
    fn objects_that_stay_or_are_few_or_very_large_are_each_logged() {
        let few = churn(
            &SiteBudgets::new(),
            5000,
            SECOND_NS / 200,
            500,
            100 * SECOND_NS,
        );
        assert_eq!(few, (19_800, 19_800), "slower than samples");
        let old = churn(
            &SiteBudgets::new(),
            5000,
            1_000_000,
            60 * SECOND_NS,
            30 * SECOND_NS,
        );
        assert_eq!(
            old,
            (29_000, 29_000),
            "a thousand a second that live a minute"
        );
        let budgets = SiteBudgets::new();
        let large = churn(&budgets, EXACT_ALLOCATION_BYTES, 10_000, 500, 2 * SECOND_NS);
        assert_eq!(large, (100_000, 100_000));
    }

    #[test]
    fn budgets_refill_with_time() {
        let (budgets, site) = (SiteBudgets::new(), 7);
        let logged = Logged {
            site,
            born_ns: SECOND_NS,
        };
        let mut last = 0;
        for _ in 0..10_000 {
            logged.freed(&budgets, SECOND_NS);
            let period = budgets.period_bytes(site, SECOND_NS);
            assert!(period >= last);
            last = period;
        }
        assert_eq!(last, FIRST_PERIOD_BYTES << (STEPS_MAX - 1));
        assert_eq!(budgets.period_bytes(site, 14 * SECOND_NS), 0);
        assert_eq!(budgets.period_bytes(8, SECOND_NS), 0);
    }

    proptest! {
        #[test]
        fn the_table_is_a_map_that_may_be_full(steps in proptest::collection::vec((any::<bool>(), 1usize..500), 0..2000)) {
            let alive = LiveObjects::new();
            prop_assert_eq!(alive.remove(0x10), None);
            prop_assert!(!alive.insert(0x10, Logged::UNCHARGED));
            prop_assert!(alive.reserve(false));
            let mut model = BTreeMap::new();
            for (step, (insert, number)) in steps.into_iter().enumerate() {
                let (address, logged) = (number * 5008, Logged { site: step % SITES, born_ns: step as u64 });
                if insert {
                    if alive.insert(address, logged) {
                        model.insert(address, logged);
                    } else {
                        model.remove(&address);
                    }
                } else {
                    prop_assert_eq!(alive.remove(address), model.remove(&address));
                }
            }
        }
    }

    #[test]
    fn a_full_table_says_so_and_forgets_nothing() {
        let alive = LiveObjects::new();
        assert!(alive.reserve(false));
        let kept: Vec<usize> = (1..=4 * KEYS * BUCKETS / 64)
            .map(|number| number * 4112)
            .filter(|address| alive.insert(*address, Logged::UNCHARGED))
            .collect();
        assert!(kept.len() > KEYS * BUCKETS / 64 / 2);
        assert!(kept.len() <= KEYS * BUCKETS / 64);
        assert!(kept.iter().all(|address| alive.remove(*address).is_some()));
        assert!(kept.iter().all(|address| alive.remove(*address).is_none()));
    }

    #[test]
    fn threads_may_free_what_others_made() {
        let alive = LiveObjects::new();
        assert!(alive.reserve(true));
        let (alive, (sender, receiver)) = (&alive, std::sync::mpsc::sync_channel(1000));
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let sender = sender.clone();
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let address = (1 + thread + 3 * number) << 12;
                        assert!(alive.insert(
                            address,
                            Logged {
                                site: thread,
                                born_ns: 1
                            }
                        ));
                        sender.send((address, thread)).unwrap();
                    }
                });
            }
            drop(sender);
            for (address, site) in receiver {
                assert_eq!(alive.remove(address), Some(Logged { site, born_ns: 1 }));
                assert_eq!(alive.remove(address), None);
            }
        });
    }
}
