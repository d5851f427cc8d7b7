//! The objects that were touched, and whether the program uses their pages.
//!
//! A touched page costs memory and a page fault, whether or not the program ever uses the page. Two limits keep
//! that from harming the program:
//!
//! - The plan sets how many pages of living objects may be touched. None are touched while less than twice
//!   that memory is available, because other processes may touch as much.
//! - If a rule's objects are freed and allocated again, the library samples whether they are used: it does not touch the
//!   last quarter of the object that follows the 1st, 4th, 16th (and so on) freed object. Before this object is freed,
//!   `mincore(2)` tells how many of these pages the program used. If it used less than half, the rule's objects are left
//!   to first touch, until a later sample finds that they are used.
//!
//! At most 32 Ki objects are touched at a time; further objects are left to first touch.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use super::memory::{Zeroed, zeroed, zeroed_slice};
use super::placed::{AddressEntry, Objects};
use crate::sys;

/// Most pages for one call of `mincore`.
const LOOK_PAGES: usize = 4096;
/// Most calls of `mincore` for one object; further pages are not examined.
const LOOKS_MAX: usize = 64;

/// Available memory is looked up once per so many pages: a look-up takes as long as some tens of page faults.
const LOOK_EVERY_PAGES: u64 = 1 << 14;

/// The touched objects of one process, and for each rule, whether its objects are used.
pub struct TouchedObjects {
    objects: &'static Objects<TouchedObject>,
    rules: &'static [RuleUse],
    pages: AtomicU64,
    pages_max: u64,
    page_bytes: usize,
    /// Pages granted since available memory was last looked up.
    pages_since: AtomicU64,
}

/// An object that was, or is about to be, touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TouchedObject {
    /// First byte of its first whole page.
    start: usize,
    /// Its whole pages.
    pages: u32,
    /// Number of its touched pages, from the first page on.
    touched_pages: u32,
    rule: u32,
}

impl AddressEntry for TouchedObject {
    fn words(self) -> [u64; 3] {
        let pages = u64::from(self.pages) << 32 | u64::from(self.touched_pages);
        [self.start as u64, pages, self.rule.into()]
    }

    fn of([start, pages, rule]: [u64; 3]) -> Self {
        Self {
            start: start as usize,
            pages: (pages >> 32) as u32,
            touched_pages: pages as u32,
            rule: rule as u32,
        }
    }
}

/// Whether a rule's objects are used. Zeroed: unknown, and the objects are touched.
struct RuleUse {
    freed: AtomicU64,
    /// First page of the object that is sampled; 0: none.
    observed: AtomicUsize,
    is_unused: AtomicBool,
}

// SAFETY: atomics only.
unsafe impl Zeroed for RuleUse {}

impl TouchedObjects {
    /// For `rules` rules, with at most `pages_max` touched pages at a time; `None` if no memory is left.
    pub fn new(rules: usize, pages_max: u64, page_bytes: usize) -> Option<Self> {
        Some(Self {
            objects: zeroed()?,
            rules: zeroed_slice(rules)?,
            pages: AtomicU64::new(0),
            pages_max,
            page_bytes: page_bytes.max(1),
            pages_since: AtomicU64::new(LOOK_EVERY_PAGES),
        })
    }

    /// How many of a static object's `pages` may be touched, from the first on.
    pub fn claim_static(&self, pages: u64) -> u64 {
        if self.is_memory_short(pages) {
            return 0;
        }
        let mut granted = 0;
        let _ = self.pages.fetch_update(Relaxed, Relaxed, |used| {
            granted = self.pages_max.saturating_sub(used).min(pages);
            Some(used + granted)
        });
        granted
    }

    /// Is less memory available than twice what may be touched? Looked up once per [`LOOK_EVERY_PAGES`].
    fn is_memory_short(&self, pages: u64) -> bool {
        if self.pages_since.fetch_add(pages, Relaxed) < LOOK_EVERY_PAGES {
            return false;
        }
        let kept = self.pages_max.saturating_mul(2 * self.page_bytes as u64);
        let is_short = available_bytes().is_none_or(|available| available < kept);
        if !is_short {
            self.pages_since.store(pages, Relaxed);
        }
        is_short
    }

    /// In a forked child, of which there may be many: has available memory looked up before the next page is touched.
    pub fn forked_child(&self) {
        self.pages_since.store(LOOK_EVERY_PAGES, Relaxed);
    }

    /// How many pages of a new object of rule `rule` may be touched, from the first on. The object is remembered by its
    /// address until it is [freed](Self::freed); `None` if there is no room for it.
    pub fn claim(&self, rule: usize, address: usize, (start, end): (usize, usize)) -> Option<u64> {
        let pages = ((end - start) / self.page_bytes).min(u32::MAX as usize) as u64;
        self.give_back(address);
        let granted = self.claim_static(self.pages_to_touch(rule, start, pages));
        let object = TouchedObject {
            start,
            pages: pages as u32,
            touched_pages: granted as u32,
            rule: rule as u32,
        };
        if self.objects.insert(address, object) {
            return Some(granted);
        }
        self.return_pages(granted);
        None
    }

    /// How many of a new object's `pages` are to be touched: all, three quarters of a sampled object, or none if the rule's
    /// objects are known to be unused.
    fn pages_to_touch(&self, rule: usize, start: usize, pages: u64) -> u64 {
        let Some(rule) = self.rules.get(rule) else {
            return pages;
        };
        let freed = rule.freed.load(Relaxed);
        let is_due = freed.is_power_of_two() && freed.trailing_zeros() % 2 == 0;
        let is_observed = is_due
            && rule
                .observed
                .compare_exchange(0, start, Relaxed, Relaxed)
                .is_ok();
        if rule.is_unused.load(Relaxed) {
            0
        } else if is_observed {
            pages - pages / 4
        } else {
            pages
        }
    }

    /// The object at `address` is about to be freed; its memory is still there.
    pub fn freed(&self, address: usize) {
        let Some(object) = self.give_back(address) else {
            return;
        };
        let Some(rule) = self.rules.get(object.rule as usize) else {
            return;
        };
        rule.freed.fetch_add(1, Relaxed);
        if rule.observed.load(Relaxed) != object.start {
            return;
        }
        let untouched = object.pages.saturating_sub(object.touched_pages) as usize;
        let from = object.start + object.touched_pages as usize * self.page_bytes;
        if let Some(is_used) = self.is_used(from, untouched) {
            rule.is_unused.store(!is_used, Relaxed);
        }
        rule.observed.store(0, Relaxed);
    }

    /// Removes an object, and subtracts its pages from the number of touched pages.
    fn give_back(&self, address: usize) -> Option<TouchedObject> {
        let object = self.objects.remove(address)?;
        self.return_pages(object.touched_pages.into());
        Some(object)
    }

    fn return_pages(&self, pages: u64) {
        let _ = self
            .pages
            .fetch_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(pages)));
    }

    /// Has the program used at least half of these pages, which this library did not touch? `None` if the kernel does not
    /// tell, or there are no pages.
    fn is_used(&self, from: usize, pages: usize) -> Option<bool> {
        let mut present = [0; LOOK_PAGES];
        let (mut seen, mut used) = (0, 0);
        for first in (0..pages).step_by(LOOK_PAGES).take(LOOKS_MAX) {
            let count = (pages - first).min(LOOK_PAGES);
            let address = from + first * self.page_bytes;
            let pages = present.get_mut(..count)?;
            sys::mincore(address, count * self.page_bytes, pages, self.page_bytes).ok()?;
            seen += count;
            used += pages.iter().filter(|page| *page & 1 == 1).count();
        }
        (seen > 0).then_some(used * 2 >= seen)
    }
}

/// Available memory in bytes: that of the system or, if less, of the control group at the root of the mounted hierarchy,
/// which is a container's own.
fn available_bytes() -> Option<u64> {
    let mut text = [0; 256];
    let system = sys::read_text(b"/proc/meminfo\0", &mut text).ok()?;
    let system = number_after(system, b"MemAvailable:")?.saturating_mul(1024);
    let mut group = |path: &[u8]| number_after(sys::read_text(path, &mut text).ok()?, b"");
    let left = match group(b"/sys/fs/cgroup/memory.max\0") {
        Some(limit) => limit.saturating_sub(group(b"/sys/fs/cgroup/memory.current\0").unwrap_or(0)),
        None => u64::MAX,
    };
    Some(system.min(left))
}

/// The number that follows a name in a file of `/proc`.
fn number_after(text: &[u8], name: &[u8]) -> Option<u64> {
    let at = match name {
        b"" => 0,
        _ => text.windows(name.len()).position(|window| window == name)? + name.len(),
    };
    let rest = text.get(at..)?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold((0u64, 0), |(number, count), digit| {
        let number = number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'));
        (number, count + 1)
    });
    (number.1 > 0).then_some(number.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    struct Memory {
        start: usize,
        pages: usize,
    }

    impl Memory {
        fn new(pages: usize) -> Self {
            let start = sys::reserve(pages * PAGE).unwrap();
            Self { start, pages }
        }

        fn range(&self) -> (usize, usize) {
            (self.start, self.start + self.pages * PAGE)
        }

        fn use_first(&self, pages: usize) {
            for page in 0..pages {
                // SAFETY: memory of our own.
                unsafe { ((self.start + page * PAGE) as *mut u8).write_volatile(1) }
            }
        }
    }

    /// Allocates and frees `objects` objects of 16 pages, of each of which the program uses the first `used`. Returns how many
    /// pages were granted for each.
    fn granted(touched: &TouchedObjects, used: usize, objects: usize) -> std::vec::Vec<u64> {
        let grant = |_| {
            let memory = Memory::new(16);
            let Some(pages) = touched.claim(0, memory.start, memory.range()) else {
                panic!("no room")
            };
            memory.use_first(used);
            touched.freed(memory.start);
            pages
        };
        (0..objects).map(grant).collect()
    }

    #[test]
    fn objects_that_are_never_used_are_left_alone_from_the_third_on() {
        let touched = TouchedObjects::new(1, 1000, PAGE).unwrap();
        assert_eq!(granted(&touched, 1, 6), [16, 12, 0, 0, 0, 0]);
        // The object after the 16th is used, so later objects are touched again.
        assert_eq!(granted(&touched, 16, 12)[9..], [0, 0, 16]);
    }

    #[test]
    fn objects_that_are_used_stay_touched() {
        let touched = TouchedObjects::new(1, 1000, PAGE).unwrap();
        assert_eq!(granted(&touched, 16, 6), [16, 12, 16, 16, 12, 16]);
    }

    #[test]
    fn at_most_the_plans_pages_are_touched_at_a_time() {
        let touched = TouchedObjects::new(1, 40, PAGE).unwrap();
        let memory = [(); 4].map(|()| Memory::new(16));
        let claims = memory
            .each_ref()
            .map(|memory| touched.claim(0, memory.start, memory.range()));
        assert_eq!(claims, [16, 16, 8, 0].map(Some));
        touched.freed(memory[1].start);
        assert_eq!(touched.claim_static(100), 16);
        assert_eq!(touched.claim_static(1), 0);
    }

    #[test]
    fn nothing_is_touched_where_memory_is_short() {
        let touched = TouchedObjects::new(1, 1 << 40, PAGE).unwrap();
        assert_eq!(touched.claim_static(1), 0, "no machine has as much");
        assert_eq!(touched.claim_static(1), 0);
        let touched = TouchedObjects::new(1, 10, PAGE).unwrap();
        assert_eq!(touched.claim_static(7), 7);
    }

    #[test]
    fn numbers_of_files_of_proc() {
        let meminfo = b"MemTotal:  24 kB\nMemFree: 7 kB\nMemAvailable:   12 kB\n";
        assert_eq!(number_after(meminfo, b"MemAvailable:"), Some(12));
        assert_eq!(number_after(b"max\n", b""), None);
        assert_eq!(number_after(b"4096\n", b""), Some(4096));
        assert_eq!(number_after(b"MemFree: 7", b"MemAvailable:"), None);
        assert_eq!(number_after(b"", b""), None);
    }

    #[test]
    fn an_object_that_is_resized_counts_once() {
        let touched = TouchedObjects::new(1, 100, PAGE).unwrap();
        let memory = Memory::new(16);
        for _ in 0..50 {
            let claim = touched.claim(0, memory.start, memory.range());
            assert_eq!(claim, Some(16));
        }
    }
}
