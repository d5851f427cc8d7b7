//! Moves pages that are present, by `move_pages`, and counts what became of them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::counters::{Request, RuleCounters};
use super::pieces::{Extent, NodeSet, Pieces, Target};
use crate::sys::{self, Errno};

const MPOL_MF_MOVE: usize = 2;

const ENOENT: i32 = 2;
const EFAULT: i32 = 14;
const EBUSY: i32 = 16;

/// Pages of larger objects are not moved: such objects are reserved address space without pages yet, and it would take
/// seconds to ask the kernel for every page of terabytes.
const SEARCHED_BYTES_MAX: usize = 1 << 36;

/// Pages gathered for one `move_pages`.
const BATCH_PAGES: usize = 8192;
/// Most calls for one batch: each range of pinned pages in it takes two more.
const CALLS_MAX: usize = 64;
/// A status that the kernel never writes.
const NOT_REACHED: i32 = i32::MIN;

struct Batch {
    pages: [usize; BATCH_PAGES],
    nodes: [i32; BATCH_PAGES],
    status: [i32; BATCH_PAGES],
}

/// Moves pages that are present to their pieces' nodes, many per call.
pub struct Movement<'a> {
    extent: Extent,
    counters: &'a RuleCounters,
    /// Address of a [`Batch`], which is mapped when the first page is found.
    batch: Option<usize>,
    length: usize,
}

impl<'a> Movement<'a> {
    /// The movement of an object, counted with its rule.
    pub fn of(extent: Extent, counters: &'a RuleCounters) -> Self {
        Self {
            extent,
            counters,
            batch: None,
            length: 0,
        }
    }

    /// Moves the present pages of an object's pieces.
    pub fn object(mut self, mut pieces: Pieces<'_>, allowed: &NodeSet) {
        let (mut start, end) = pieces.range();
        if start >= end || end - start > SEARCHED_BYTES_MAX {
            return;
        }
        let page_bytes = self.extent.page_bytes;
        let mut present = [0u8; 512];
        let mut piece = pieces.next();
        while start < end {
            let length = (end - start).min(present.len() * page_bytes);
            // Absent mappings hold no pages.
            let known = sys::mincore(start, length, &mut present, page_bytes).is_ok();
            let flags = present
                .iter()
                .take(if known { length / page_bytes } else { 0 });
            for (number, _) in flags.enumerate().filter(|(_, flags)| **flags & 1 == 1) {
                let page = start + number * page_bytes;
                while piece.is_some_and(|piece| piece.end <= page) {
                    piece = pieces.next();
                }
                let node = match piece.map(|piece| piece.target) {
                    Some(Target::Node(node)) if allowed.contains(node) => Some(node),
                    // The kernel takes the nodes in the same order for pages that are touched later.
                    Some(Target::Interleave(nodes)) => {
                        let nodes = nodes.intersection(allowed);
                        nodes.in_turn(page / self.extent.unit_bytes)
                    }
                    _ => None,
                };
                if let Some(node) = node {
                    self.page(page, node);
                }
            }
            start += length;
        }
        self.flush();
    }

    fn page(&mut self, page: usize, node: u32) {
        if self.length == BATCH_PAGES {
            self.flush();
        }
        if self.batch.is_none() {
            match sys::reserve(size_of::<Batch>()) {
                Ok(address) => self.batch = Some(address),
                Err(error) => return self.counters.failures.add(Request::Move, error, 1),
            }
        }
        let Some(address) = self.batch else { return };
        // SAFETY: mapped for this movement alone, zeroed, large enough; unmapped when it is dropped.
        let batch = unsafe { &mut *(address as *mut Batch) };
        if let (Some(to), Some(at)) = (
            batch.pages.get_mut(self.length),
            batch.nodes.get_mut(self.length),
        ) {
            (*to, *at) = (page, node as i32);
            self.length += 1;
        }
    }

    fn flush(&mut self) {
        let length = core::mem::take(&mut self.length);
        let (Some(address), true) = (self.batch, length > 0) else {
            return;
        };
        // SAFETY: as above.
        let batch = unsafe { &mut *(address as *mut Batch) };
        let mut left = self.keep_misplaced(batch, length, &self.counters.in_place);
        for _ in 0..CALLS_MAX {
            if left == 0 {
                return;
            }
            left = self.move_first(batch, left);
        }
        self.refused(Errno(EBUSY), left);
    }

    fn refused(&self, error: Errno, pages: usize) {
        if pages > 0 {
            let failures = &self.counters.failures;
            failures.add(Request::Move, error, pages as u64);
        }
    }

    /// Moves the first `length` pages of a batch. The kernel stops at pages that it can't move: the pages after them
    /// are left at the batch's front, and their number is returned.
    fn move_first(&self, batch: &mut Batch, length: usize) -> usize {
        let Batch {
            pages,
            nodes,
            status,
        } = batch;
        let (Some(asked), Some(wanted), Some(found)) = (
            pages.get(..length),
            nodes.get(..length),
            status.get_mut(..length),
        ) else {
            return 0;
        };
        found.fill(NOT_REACHED);
        if let Err(error) = sys::move_pages(asked, wanted, found, MPOL_MF_MOVE) {
            self.refused(error, length);
            return 0;
        }
        let mut kept = 0;
        let mut stopped = false;
        for at in 0..length {
            let status = status[at];
            stopped |= status == NOT_REACHED;
            if status == NOT_REACHED || status == -EBUSY {
                (pages[kept], nodes[kept]) = (pages[at], nodes[at]);
                kept += 1;
            } else if status >= 0 {
                self.counters.moved.fetch_add(1, Relaxed);
            } else if status != -ENOENT && status != -EFAULT {
                self.refused(Errno(-status), 1);
            }
        }
        if kept == 0 {
            return 0;
        }
        // The kernel moves a whole huge page when asked for its first part, and calls the other parts busy
        // then.
        let left = self.keep_misplaced(batch, kept, &self.counters.moved);
        if !stopped {
            self.refused(Errno(EBUSY), left);
            return 0;
        }
        if left < length {
            return left;
        }
        // Nothing moved: of the first pages for one node, which the kernel moves together, at least one is pinned.
        let node = batch.nodes[0];
        let pinned = batch.nodes[..left]
            .iter()
            .take_while(|&&other| other == node)
            .count();
        self.counters.pinned.fetch_add(pinned as u64, Relaxed);
        batch.pages.copy_within(pinned..left, 0);
        batch.nodes.copy_within(pinned..left, 0);
        left - pinned
    }

    /// Asks the kernel, which is cheap, on which nodes the first `length` pages of a batch are. Puts the pages on another
    /// node than planned at the batch's front and returns their number; counts the others.
    fn keep_misplaced(&self, batch: &mut Batch, length: usize, in_place: &AtomicU64) -> usize {
        let Batch {
            pages,
            nodes,
            status,
        } = batch;
        let (Some(asked), Some(found)) = (pages.get(..length), status.get_mut(..length)) else {
            return 0;
        };
        if let Err(error) = sys::move_pages(asked, &[], found, 0) {
            self.counters
                .failures
                .add(Request::Move, error, length as u64);
            return 0;
        }
        let mut kept = 0;
        for at in 0..length {
            match status[at] {
                // The page is not there any more, or is the shared page of zeros.
                found if found < 0 => {}
                found if found == nodes[at] => _ = in_place.fetch_add(1, Relaxed),
                _ => {
                    (pages[kept], nodes[kept]) = (pages[at], nodes[at]);
                    kept += 1;
                }
            }
        }
        kept
    }
}

impl Drop for Movement<'_> {
    fn drop(&mut self) {
        if let Some(address) = self.batch {
            // SAFETY: mapped by `page`, and nothing refers to it any more.
            let _ = unsafe { sys::munmap(address, size_of::<Batch>()) };
        }
    }
}
