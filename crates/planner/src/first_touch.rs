//! What first touch did: the default that every decision has to beat.

use nearpage_attribution::ObjectGroup;
use nearpage_recording::ThreadIndex;

/// How it is known who touched an object's pages first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstTouchBasis {
    /// From page faults.
    Observed,
    /// Assumed: by the thread that allocated it, or the main thread for static objects.
    Assumed,
}

/// A fault on a transparent huge page touches all of it.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Who touched a group's pages first, as far as it is known: from page faults, else from who used
/// the object before any other thread did.
pub(crate) struct FirstTouches {
    /// Page and thread, by page.
    touches: Vec<(u32, ThreadIndex)>,
    /// Pages that one fault may have touched.
    reach: u32,
}

impl FirstTouches {
    pub fn of(group: &ObjectGroup) -> Self {
        let affinity = &group.affinity;
        let touches = if group.first_touches.is_empty() {
            affinity
                .initialisation
                .iter()
                .map(|cell| (cell.page, cell.thread))
                .collect()
        } else {
            group.first_touches.clone()
        };
        let reach = HUGE_PAGE_BYTES / affinity.page_bytes.max(1);
        Self {
            touches,
            reach: u32::try_from(reach.max(1)).unwrap_or(u32::MAX),
        }
    }

    /// Who touched a page first. Faults may be sampled, and one may map a huge page: a page without a
    /// fault goes with the fault before it, where that one is near or the one after it is by the same
    /// thread.
    pub fn toucher(&self, page: u32) -> Option<ThreadIndex> {
        let after = self.touches.partition_point(|touch| touch.0 <= page);
        let before = self.touches.get(after.checked_sub(1)?)?;
        let near = page - before.0 < self.reach;
        let between = self
            .touches
            .get(after)
            .is_some_and(|next| next.1 == before.1);
        (near || between).then_some(before.1)
    }
}
