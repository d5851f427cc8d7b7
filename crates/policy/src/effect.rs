//! What a placement does to accesses: counted access by access, without contention.

use nearpage_attribution::ObjectGroup;
use nearpage_recording::ThreadIndex;

use crate::first_touch::FirstTouches;
use crate::holder::{Holder, Layout};
use crate::place::accesses;
use crate::plan::Context;

/// Accesses, and how they would fare.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// By weight.
    pub accesses: f64,
    /// Of these, to the accessing thread's own node.
    pub local: f64,
    /// Sum of the machine's weights.
    pub weighted: f64,
}

impl Tally {
    /// Adds accesses of a thread to a page.
    pub fn add(&mut self, context: &Context, thread: ThreadIndex, count: f64, holder: Holder) {
        let Some(reader) = context.node_position(thread) else {
            return;
        };
        let mut on = |memory: Option<usize>, count: f64| {
            let Some(memory) = memory else { return };
            self.accesses += count;
            self.local += if memory == reader { count } else { 0.0 };
            self.weighted += count * context.weights[reader][memory];
        };
        match holder {
            Holder::Thread(owner) => on(context.node_position(owner), count),
            Holder::Node(node) => on(context.machine.position(node), count),
            Holder::Spread(nodes) => {
                for &(node, share) in nodes {
                    on(context.machine.position(node), count * share);
                }
            }
        }
    }

    /// Adds another tally, scaled.
    pub fn add_scaled(&mut self, other: Self, factor: f64) {
        self.accesses += other.accesses * factor;
        self.local += other.local * factor;
        self.weighted += other.weighted * factor;
    }

    /// Share of accesses that are local; 0 without accesses.
    pub fn local_share(&self) -> f64 {
        if self.accesses > 0.0 {
            self.local / self.accesses
        } else {
            0.0
        }
    }
}

/// A group's accesses under a layout.
pub(crate) fn under_layout(context: &Context, group: &ObjectGroup, layout: &Layout) -> Tally {
    let unit = group.affinity.page_bytes;
    let mut tally = Tally::default();
    for cell in &group.affinity.cells {
        let holder = layout.holder(u64::from(cell.page) * unit + unit / 2);
        tally.add(context, cell.thread, accesses(cell), holder);
    }
    tally
}

/// A group's accesses under first touch, as far as that is known; none where it is known for less
/// than half of them.
pub(crate) fn under_first_touch(context: &Context, group: &ObjectGroup) -> Option<Tally> {
    let touches = FirstTouches::of(group);
    let mut tally = Tally::default();
    let mut all = 0.0;
    for cell in &group.affinity.cells {
        if !context.places.knows(cell.thread) {
            continue;
        }
        all += accesses(cell);
        if let Some(toucher) = touches.toucher(cell.page) {
            tally.add(
                context,
                cell.thread,
                accesses(cell),
                Holder::Thread(toucher),
            );
        }
    }
    (tally.accesses > 0.0 && tally.accesses >= all / 2.0).then_some(tally)
}

/// Share of a group's accesses that its places' decisions are about: by the thread that `owner` says
/// holds the page, or (`places`) by any thread of the same place. None without accesses.
pub(crate) fn share_near(
    context: &Context,
    group: &ObjectGroup,
    same_thread: bool,
    owner: impl Fn(u32) -> Option<ThreadIndex>,
) -> Option<f64> {
    let (mut near, mut known, mut all) = (0.0, 0.0, 0.0);
    for cell in group
        .affinity
        .cells
        .iter()
        .filter(|cell| context.places.knows(cell.thread))
    {
        all += accesses(cell);
        let Some(owner) = owner(cell.page) else {
            continue;
        };
        known += accesses(cell);
        let is_near = if same_thread {
            owner == cell.thread
        } else {
            context.places.of(owner) == context.places.of(cell.thread)
        };
        near += if is_near { accesses(cell) } else { 0.0 };
    }
    (known > 0.0 && known >= all / 2.0).then(|| near / known)
}
