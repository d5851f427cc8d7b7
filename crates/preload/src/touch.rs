//! Placement by first touch (Marathe, Thakkar and Mueller, §5): a thread on a CPU of each node touches
//! the pages planned for that node, before the program does.
//!
//! The calling thread moves from node to node, for static objects too. The paper uses one thread per node and a
//! barrier, which puts every page on the same node; this way, the library needs
//! no thread of its own. A page is populated by `MADV_POPULATE_WRITE` (Linux 5.14), which fails
//! where a store would fault. On older kernels, a byte is replaced atomically by its own value, if the
//! memory is known to be writable. Pages that are present already stay where they are.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use crate::place::counters::{Request, RuleCounters};
use crate::place::memory::Zeroed;
use crate::place::pieces::{Extent, NodeSet, Pattern, Pieces, Target};
use crate::sys::{self, Errno};

const MADV_POPULATE_WRITE: usize = 23;
const EINVAL: Errno = Errno(22);
const ENXIO: Errno = Errno(6);
/// Words of a mask of CPUs.
const CPU_WORDS: usize = 128;
/// A set of CPUs: bit n of the whole is CPU n.
pub type CpuSet = [u64; CPU_WORDS];
/// Most heap objects that wait to be touched together.
const GROUP_MAX: usize = 32;

/// An object whose pages are to be touched.
#[derive(Clone, Copy)]
pub struct ObjectToTouch<'a> {
    /// Its range and page size.
    pub extent: Extent,
    /// Where its pages go.
    pub pattern: Pattern<'a>,
    /// Its rule's counters.
    pub counters: &'a RuleCounters,
    /// May its memory be stored to?
    pub is_writable: bool,
    /// How many pages may be touched, from the first on.
    pub pages_max: u64,
}

/// Does the kernel populate pages on request?
pub fn can_populate() -> bool {
    let Ok(address) = sys::reserve(4096) else {
        return false;
    };
    // SAFETY: memory of our own; populating destroys nothing.
    unsafe {
        let populated = sys::madvise(address, 4096, MADV_POPULATE_WRITE);
        let _ = sys::munmap(address, 4096);
        populated.is_ok()
    }
}

/// Touches the pages of all objects, with one visit to each node. The caller's affinity is restored afterwards.
pub fn touch(objects: &[ObjectToTouch<'_>], can_populate: bool) {
    let mut before: CpuSet = [0; CPU_WORDS];
    let Ok(before_bytes) = sys::sched_getaffinity(0, &mut before) else {
        return;
    };
    let nodes = objects.iter().fold(NodeSet::EMPTY, |mut all, object| {
        object
            .pattern
            .nodes()
            .iter()
            .for_each(|node| all.insert(node));
        all
    });
    for node in nodes.iter() {
        let visited = cpus_of(node)
            .ok_or(ENXIO)
            .and_then(|cpus| sys::sched_setaffinity(0, &cpus));
        for object in objects
            .iter()
            .filter(|object| object.pattern.nodes().contains(node))
        {
            match visited {
                Ok(_) => touch_share(object, node, can_populate),
                Err(error) => object.counters.failures.add(Request::Visit, error, 1),
            }
        }
    }
    let _ = sys::sched_setaffinity(0, before.get(..before_bytes / 8).unwrap_or(&before));
}

/// Touches the pages of one object that go to `node`.
fn touch_share(object: &ObjectToTouch<'_>, node: u32, can_populate: bool) {
    let Extent {
        page_bytes,
        unit_bytes,
        ..
    } = object.extent;
    let Some((first, _)) = object.extent.pages() else {
        return;
    };
    let limit = usize::try_from(object.pages_max)
        .unwrap_or(usize::MAX)
        .saturating_mul(page_bytes)
        .saturating_add(first);
    for piece in Pieces::new(object.extent, object.pattern).take_while(|piece| piece.start < limit)
    {
        let end = piece.end.min(limit);
        match piece.target {
            Target::Node(owner) if owner == node => {
                populate(object, piece.start, end, can_populate)
            }
            Target::Node(_) => {}
            Target::Interleave(nodes) => {
                let mut start = piece.start;
                while start < end {
                    let next = ((start | (unit_bytes - 1)).saturating_add(1)).min(end);
                    if nodes.in_turn(start / unit_bytes) == Some(node) {
                        populate(object, start, next, can_populate);
                    }
                    start = next;
                }
            }
        }
    }
}

fn populate(object: &ObjectToTouch<'_>, start: usize, end: usize, can_populate: bool) {
    let pages = ((end - start) / object.extent.page_bytes) as u64;
    if can_populate {
        // SAFETY: populating changes no content.
        if let Err(error) = unsafe { sys::madvise(start, end - start, MADV_POPULATE_WRITE) } {
            object.counters.untouched.fetch_add(pages, Relaxed);
            // EINVAL: the memory is not writable, like a constant.
            if error != EINVAL || object.is_writable {
                object.counters.failures.add(Request::Touch, error, 1);
            }
        }
    } else if object.is_writable {
        for page in (start..end).step_by(object.extent.page_bytes) {
            // SAFETY: writable memory of a live object; storing what is there, atomically, is safe
            // beside other threads.
            let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
            // Not `fetch_add(0)`, which the compiler is free to leave out. Where the exchange fails,
            // another thread has just touched the page.
            let there = byte.load(Relaxed);
            let _ = byte.compare_exchange(there, there, Relaxed, Relaxed);
        }
    } else {
        object.counters.untouched.fetch_add(pages, Relaxed);
    }
}

/// The CPUs of a node; `None` if it has no CPUs.
fn cpus_of(node: u32) -> Option<CpuSet> {
    let mut path = crate::message::Text::<64>::new();
    let complete = path.push(b"/sys/devices/system/node/node")
        && path.push_number(node.into())
        && path.push(b"/cpulist\0");
    if !complete {
        return None;
    }
    let mut text = [0; 1024];
    let cpus = parse_list(sys::read_text(path.as_bytes(), &mut text).ok()?)?;
    cpus.iter().any(|word| *word != 0).then_some(cpus)
}

/// Parses a list of CPUs as the kernel writes it (`0-3,8`); `None` if the text is no such list. CPUs beyond the set are
/// ignored.
pub fn parse_list(text: &[u8]) -> Option<CpuSet> {
    let mut cpus = [0u64; CPU_WORDS];
    let number = |text: &[u8]| core::str::from_utf8(text).ok()?.parse::<usize>().ok();
    for range in text
        .trim_ascii()
        .split(|byte| *byte == b',')
        .filter(|range| !range.is_empty())
    {
        let mut ends = range.splitn(2, |byte| *byte == b'-');
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        for cpu in first..=last.min(CPU_WORDS * 64 - 1) {
            cpus[cpu / 64] |= 1 << (cpu % 64);
        }
    }
    Some(cpus)
}

/// Heap objects that wait to be touched in one round of visits. Zeroed memory has none.
pub struct Group {
    waiting: [WaitingObject; GROUP_MAX],
    count: AtomicUsize,
}

struct WaitingObject {
    state: AtomicU32,
    rule: AtomicU32,
    address: AtomicUsize,
    size_bytes: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Group {}

const FREE: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const READY: u32 = 2;

impl Group {
    /// Adds an object; returns how many are waiting, or `None` if there is no room.
    pub fn add(&self, rule: u32, address: usize, size_bytes: usize) -> Option<usize> {
        let waiting = self.waiting.iter().find(|waiting| {
            waiting.state.load(Relaxed) == FREE
                && waiting
                    .state
                    .compare_exchange(FREE, BEING_WRITTEN, Acquire, Relaxed)
                    .is_ok()
        })?;
        waiting.rule.store(rule, Relaxed);
        waiting.address.store(address, Relaxed);
        waiting.size_bytes.store(size_bytes as u64, Relaxed);
        waiting.state.store(READY, Release);
        Some(self.count.fetch_add(1, Relaxed) + 1)
    }

    /// Does no object wait?
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Takes out all waiting objects: rule, address and size of each.
    pub fn take_all(&self) -> [Option<(u32, usize, usize)>; GROUP_MAX] {
        self.waiting
            .each_ref()
            .map(|waiting| self.take(waiting, |_| true))
    }

    /// Removes the object at `address`, which is about to be freed.
    pub fn forget(&self, address: usize) {
        if !self.is_empty() {
            for waiting in &self.waiting {
                self.take(waiting, |own| own == address);
            }
        }
    }

    fn take(
        &self,
        waiting: &WaitingObject,
        wanted: impl FnOnce(usize) -> bool,
    ) -> Option<(u32, usize, usize)> {
        if waiting.state.load(Acquire) != READY || !wanted(waiting.address.load(Relaxed)) {
            return None;
        }
        let object = (
            waiting.rule.load(Relaxed),
            waiting.address.load(Relaxed),
            waiting.size_bytes.load(Relaxed) as usize,
        );
        waiting
            .state
            .compare_exchange(READY, FREE, AcqRel, Relaxed)
            .ok()?;
        self.count.fetch_sub(1, Relaxed);
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::memory::zeroed;
    use std::vec::Vec;

    #[test]
    fn lists_of_cpus() {
        let first = |text: &[u8]| parse_list(text).map(|cpus| cpus[0]);
        assert_eq!(first(b"0-2,5\n"), Some(0b100111));
        assert_eq!(first(b"\n"), Some(0));
        assert_eq!(first(b"3-1"), Some(0));
        assert_eq!(parse_list(b"64,99999999").unwrap()[1], 1);
        for damaged in [
            &b"a"[..],
            b"1-",
            b"-",
            b"1-2-3",
            b"99999999999999999999999",
            b"\xff",
        ] {
            assert!(parse_list(damaged).is_none(), "{damaged:?}");
        }
        parse_list(b"0-18446744073709551615").unwrap();
    }

    /// A new object of 16 pages that go round nodes.
    fn reserved<'a>(
        nodes: &'a [u16],
        pages_max: u64,
        counters: &'a RuleCounters,
    ) -> ObjectToTouch<'a> {
        let size_bytes = 16 * 4096;
        ObjectToTouch {
            extent: Extent {
                address: sys::reserve(size_bytes).unwrap(),
                size_bytes,
                page_bytes: 4096,
                unit_bytes: 4096,
            },
            pattern: Pattern::Interleave(nodes),
            counters,
            is_writable: true,
            pages_max,
        }
    }

    /// Which pages of such an object are in memory.
    fn present(object: &ObjectToTouch<'_>) -> [bool; 16] {
        let mut present = [0; 16];
        let Extent {
            address,
            size_bytes,
            ..
        } = object.extent;
        sys::mincore(address, size_bytes, &mut present, 4096).unwrap();
        present.map(|present| present & 1 == 1)
    }

    #[test]
    fn touched_pages_are_there_and_no_more() {
        let counters = RuleCounters::default();
        let object = reserved(&[0, 900], 9, &counters);
        for populates in [false, can_populate()] {
            touch(&[object], populates);
            for (page, present) in present(&object).into_iter().enumerate() {
                let planned = (object.extent.address / 4096 + page).is_multiple_of(2) && page < 9;
                assert_eq!(present, planned, "page {page}");
            }
        }
        let failures: Vec<_> = counters.failures.iter().collect();
        assert_eq!(failures, [(Request::Visit, 6, 2)], "there is no node 900");
    }

    /// A thread on a node that an object, or a layer of it, does not go round took the pages of the first node.
    #[test]
    fn a_node_that_pages_do_not_go_round_touches_none() {
        let counters = RuleCounters::default();
        let object = reserved(&[1, 2], 16, &counters);
        for (node, expected) in [(0, 0), (1, 8), (2, 16)] {
            touch_share(&object, node, false);
            let there = present(&object).into_iter().filter(|present| *present);
            assert_eq!(there.count(), expected, "after node {node}");
        }
    }

    #[test]
    fn constants_are_not_stored_to() {
        static CONSTANT: [u8; 4 * 4096] = [1; 4 * 4096];
        let counters = RuleCounters::default();
        let object = ObjectToTouch {
            extent: Extent {
                address: CONSTANT.as_ptr().addr(),
                size_bytes: CONSTANT.len(),
                page_bytes: 4096,
                unit_bytes: 4096,
            },
            pattern: Pattern::Node(0),
            counters: &counters,
            is_writable: false,
            pages_max: 100,
        };
        touch(&[object], false);
        touch(&[object], can_populate());
        assert!(counters.untouched.load(Relaxed) >= 4);
    }

    #[test]
    fn groups_forget_what_is_freed() {
        let group = zeroed::<Group>().unwrap();
        assert!(group.is_empty());
        assert_eq!(group.add(1, 0x1000, 10), Some(1));
        assert_eq!(group.add(2, 0x2000, 20), Some(2));
        group.forget(0x1000);
        let taken: Vec<_> = group.take_all().into_iter().flatten().collect();
        assert_eq!(taken, [(2, 0x2000, 20)]);
        assert!(group.is_empty());
        for n in 0..GROUP_MAX {
            assert_eq!(group.add(0, n, 1), Some(n + 1));
        }
        assert_eq!(group.add(0, 0, 1), None);
    }
}
