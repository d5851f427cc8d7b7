//! Finds the thread that touched each page first.

use std::collections::BTreeMap;

use nearpage_recording::{ObjectKind, ThreadIndex};
use rustc_hash::FxHashMap;

use crate::{AccessChunks, Input, context::Context, lifetimes::Cursor, live::SearchPosition};

/// First touches of a group's objects.
#[derive(Debug, Default)]
pub(crate) struct GroupTouches {
    /// Pages in units of the page size, ascending, and the thread. Of several objects, the earliest touch counts.
    pub pages: Vec<(u32, ThreadIndex)>,
    /// Number of first touches by thread, of all objects.
    pub threads: BTreeMap<ThreadIndex, u64>,
}

impl GroupTouches {
    /// Adds those of another object, which come after this one's.
    pub fn merge(&mut self, other: Self) {
        self.pages.extend(other.pages);
        self.keep_earliest();
        for (thread, touches) in other.threads {
            *self.threads.entry(thread).or_default() += touches;
        }
    }

    /// Keeps the first touch of each page, by a stable sort.
    fn keep_earliest(&mut self) {
        self.pages.sort_by_key(|&(page, _)| page);
        self.pages.dedup_by_key(|&mut (page, _)| page);
    }
}

/// First touches by group.
pub(crate) fn first_touches<A: AccessChunks + ?Sized>(
    input: &Input<A>,
    context: &Context,
) -> FxHashMap<u32, GroupTouches> {
    let mut touches: Vec<_> = input
        .tables
        .first_touches
        .iter()
        .filter(|touch| (touch.thread.0 as usize) < input.tables.threads.len())
        .collect();
    touches.sort_by_key(|touch| touch.time_ns);
    let mut cursor = Cursor::new(context.lifetimes);
    let mut by_group: FxHashMap<u32, GroupTouches> = FxHashMap::default();
    for touch in touches {
        let process = context.process_of_thread[touch.thread.0 as usize];
        let found = process.and_then(|process| {
            cursor.find(
                process,
                touch.time_ns,
                touch.address,
                SearchPosition::default(),
            )
        });
        let Some((kind, range)) = found else { continue };
        if matches!(kind, ObjectKind::Stack | ObjectKind::Tls | ObjectKind::Code) {
            continue;
        }
        let page = (touch.address >> context.page_shift) - (range.base >> context.page_shift);
        if let Ok(page) = u32::try_from(page) {
            let thread = context.counted_as[touch.thread.0 as usize];
            let group = by_group.entry(range.group).or_default();
            group.pages.push((page, thread));
            *group.threads.entry(thread).or_default() += 1;
        }
    }
    by_group.values_mut().for_each(GroupTouches::keep_earliest);
    by_group
}
