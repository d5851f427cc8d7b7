//! Actions of all threads of a trace in one order: by time, and within a process exactly by virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nearpage_wire::trace::{Record, Segment, Served};

use super::pages::PageLookup;
use super::steps::kind;
use super::survey::walk;
use super::traced::OpenedTrace;
use super::{CpuChange, PageIndex};
use crate::{AccessKind, Error};

/// A reference that missed the caches or the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderedReference {
    pub page: PageIndex,
    /// Byte in the page.
    pub offset: u32,
    /// The kernel's number of the thread's CPU.
    pub cpu: u32,
    pub kind: AccessKind,
    /// Whether the reference missed all caches, or was an upgrade.
    pub cache_miss: bool,
    pub tlb_miss: bool,
    /// Whether the kernel of a whole system made the reference.
    pub kernel: bool,
    pub segment: Segment,
}

/// An item of a thread's frame.
#[derive(Clone, Copy, Debug)]
enum Item {
    Reference(OrderedReference),
    Mark(bool),
}

/// Order of items: CLOCK_MONOTONIC, then virtual time.
type Key = (u64, u64);

/// Reads one thread, a frame at a time.
struct Cursor<'a> {
    traced: &'a OpenedTrace,
    image: usize,
    number: usize,
    /// Position of the next frame.
    frame: usize,
    buffer: Vec<u8>,
    lookup: PageLookup,
    cpu: u32,
    items: Vec<(Key, Item)>,
    at: usize,
}

impl Cursor<'_> {
    /// Decodes the next frame that has items; `None` if no frame is left. A damaged frame is left out, as it is already
    /// counted.
    fn fill(&mut self) -> Result<Option<Key>, Error> {
        let traced = self.traced;
        let file = &traced.images.files[self.image];
        let clock = &traced.clocks[self.image];
        self.items.clear();
        self.at = 0;
        while self.items.is_empty() {
            let Some(frame) = file.threads[self.number].frames.get(self.frame) else {
                return Ok(None);
            };
            self.frame += 1;
            let Some(payload) = file.payload(frame, &mut self.buffer)? else {
                continue;
            };
            let mut since = clock.seek(frame.virtual_time);
            let mut unknown = None;
            let (lookup, items, cpu) = (&mut self.lookup, &mut self.items, &mut self.cpu);
            walk(payload, frame.virtual_time, |at, _, record| {
                let item = match record {
                    Record::Reference(reference) => {
                        let cache_miss = matches!(
                            reference.served,
                            Served::Memory | Served::OtherCache | Served::Upgrade
                        );
                        let tlb_miss = reference.tlb_miss && reference.served != Served::WriteBack;
                        if !(cache_miss || tlb_miss) {
                            return;
                        }
                        let Some(page) = lookup.find(&traced.pages, reference.address, at) else {
                            unknown = unknown.or(Some(reference.address));
                            return;
                        };
                        Item::Reference(OrderedReference {
                            page,
                            offset: (reference.address & (traced.pages.page_bytes() - 1)) as u32,
                            cpu: *cpu,
                            kind: kind(reference.kind),
                            cache_miss,
                            tlb_miss,
                            kernel: reference.kernel,
                            segment: reference.segment,
                        })
                    }
                    Record::Move { cpu: position } => {
                        *cpu = traced.tracing.cpu(*position).0;
                        return;
                    }
                    Record::Mark { begin } => Item::Mark(*begin),
                    _ => return,
                };
                items.push(((clock.time_ns(at, &mut since), at), item));
            });
            if let Some(address) = unknown {
                return Err(Error::damaged(
                    &file.path,
                    format!("{address:#x} is on none of the recording's pages"),
                ));
            }
        }
        Ok(Some(self.items[0].0))
    }
}

impl OpenedTrace {
    /// Hands out, in order, the references that missed the caches or the TLB. For images that are `marked`, only
    /// references in the stable phase are handed out. Holds one frame of each thread that has begun and not ended:
    /// about 60,000 references, 3 MiB.
    pub(super) fn in_order(
        &self,
        marked: &[bool],
        mut each: impl FnMut(&OrderedReference),
    ) -> Result<(), Error> {
        let mut counts: Vec<bool> = marked.iter().map(|marked| !marked).collect();
        let mut cursors: Vec<Option<Cursor<'_>>> = Vec::new();
        // The next item of each thread; the beginning of its first frame until that frame is decoded.
        let mut next: BinaryHeap<Reverse<(Key, usize)>> = BinaryHeap::new();
        for &(image, number) in &self.images.order {
            let thread = &self.images.files[image].threads[number];
            let start = self.tracing.cpu(thread.cpu);
            if let Some(first) = thread.frames.first() {
                let clock = &self.clocks[image];
                let time_ns =
                    clock.time_ns(first.virtual_time, &mut clock.seek(first.virtual_time));
                let index = self.images.threads[image][number];
                let cpu = CpuChange::cpu_at(&self.tracing.moves, index, first.virtual_time);
                next.push(Reverse(((time_ns, first.virtual_time), cursors.len())));
                cursors.push(Some(Cursor {
                    traced: self,
                    image,
                    number,
                    frame: 0,
                    buffer: Vec::new(),
                    lookup: PageLookup::new(image),
                    cpu: cpu.unwrap_or(start).0,
                    items: Vec::new(),
                    at: 0,
                }));
            }
        }
        while let Some(Reverse((_, thread))) = next.pop() {
            let slot = &mut cursors[thread];
            let Some(cursor) = slot else { continue };
            // Continues as long as no other thread's item comes first.
            let bound = next.peek().map(|Reverse(other)| *other);
            loop {
                if cursor.at == cursor.items.len() {
                    let Some(key) = cursor.fill()? else {
                        *slot = None;
                        break;
                    };
                    next.push(Reverse((key, thread)));
                    break;
                }
                let (key, item) = cursor.items[cursor.at];
                if bound.is_some_and(|bound| bound < (key, thread)) {
                    next.push(Reverse((key, thread)));
                    break;
                }
                cursor.at += 1;
                match item {
                    Item::Reference(reference) if counts[cursor.image] => each(&reference),
                    Item::Reference(_) => {}
                    Item::Mark(begin) => counts[cursor.image] = begin,
                }
            }
        }
        Ok(())
    }
}
