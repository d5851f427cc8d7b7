//! Finds the thread that touched each page first.

use nearpage_recording::{ObjectKind, ThreadIndex};
use rustc_hash::FxHashMap;

use crate::{AccessChunks, Input, context::Context, lifetimes::Cursor, live::SearchPosition};

/// First touches by group: pages in units of the page size, ascending, and the thread.
pub(crate) fn first_touches<A: AccessChunks + ?Sized>(
    input: &Input<A>,
    context: &Context,
) -> FxHashMap<u32, Vec<(u32, ThreadIndex)>> {
    let mut touches: Vec<_> = input
        .tables
        .first_touches
        .iter()
        .filter(|touch| (touch.thread.0 as usize) < input.tables.threads.len())
        .collect();
    touches.sort_by_key(|touch| touch.time_ns);
    let mut cursor = Cursor::new(context.lifetimes);
    let mut by_group: FxHashMap<u32, Vec<(u32, ThreadIndex)>> = FxHashMap::default();
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
            by_group
                .entry(range.group)
                .or_default()
                .push((page, context.counted_as[touch.thread.0 as usize]));
        }
    }
    for touches in by_group.values_mut() {
        touches.sort_by_key(|&(page, _)| page);
        touches.dedup_by_key(|(page, _)| *page);
    }
    by_group
}
