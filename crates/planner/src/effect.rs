//! Local and remote accesses under a placement, without contention.

use std::cell::LazyCell;

use nearpage_attribution::ObjectGroup;
use nearpage_recording::ThreadIndex;

use crate::context::Context;
use crate::holder::{Holder, ResolvedPlacement};

/// Sums over accesses under a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Number of accesses, by weight of their samples.
    pub accesses: f64,
    /// Accesses to the accessing thread's own node.
    pub local: f64,
    /// Sum over accesses of the machine's weight between CPU and memory.
    pub weighted: f64,
}

/// A counter of accesses by who makes them and where their pages are.
pub(crate) trait Count: Default {
    /// Adds accesses of one thread to one node's memory.
    fn count(&mut self, context: &Context, access: Access);

    /// Adds accesses of a thread to pages with a holder.
    fn add(
        &mut self,
        context: &Context,
        part: Part,
        thread: ThreadIndex,
        count: f64,
        holder: Holder,
    ) {
        let Some(reader) = context.node_position(thread) else {
            return;
        };
        holder.serve(context, reader, |memory, share| {
            let access = Access {
                part,
                thread,
                reader,
                memory,
                count: count * share,
            };
            self.count(context, access);
        });
    }
}

/// When accesses were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Before any other thread used the object.
    Initialisation,
    /// Afterwards.
    Use,
}

/// Accesses of one thread to one node's memory; `reader` and `memory` are positions of nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub part: Part,
    pub thread: ThreadIndex,
    pub reader: usize,
    pub memory: usize,
    pub count: f64,
}

impl Count for Tally {
    fn count(&mut self, context: &Context, access: Access) {
        let Access {
            reader,
            memory,
            count,
            ..
        } = access;
        self.accesses += count;
        self.local += if memory == reader { count } else { 0.0 };
        self.weighted += count * context.weights[reader][memory];
    }
}

impl Tally {
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

/// A group's accesses under a placement, without its initialisation.
pub(crate) fn under_placement<C: Count>(
    context: &Context,
    group: &ObjectGroup,
    resolved: &ResolvedPlacement,
) -> C {
    let unit = group.affinity.page_bytes;
    let mut counts = C::default();
    for cell in &group.affinity.cells {
        let holder = resolved.holder(u64::from(cell.page) * unit + unit / 2);
        counts.add(context, Part::Use, cell.thread, cell.accesses(), holder);
    }
    counts
}

/// Adds a group's initialisation: under a placement, or, without one, with pages where first touch puts them.
pub(crate) fn add_initialisation<C: Count>(
    context: &Context,
    group: &ObjectGroup,
    resolved: Option<&ResolvedPlacement>,
    counts: &mut C,
) {
    let unit = group.affinity.page_bytes;
    let touches = LazyCell::new(|| context.first_touches(group));
    for cell in &group.affinity.initialisation {
        let holder = match resolved {
            Some(resolved) => resolved.holder(u64::from(cell.page) * unit + unit / 2),
            None => Holder::Thread(touches.toucher(cell.page).unwrap_or(cell.thread)),
        };
        let part = Part::Initialisation;
        counts.add(context, part, cell.thread, cell.accesses(), holder);
    }
}

/// A group's accesses under first touch, without its initialisation; none if first touch is known for less than half of
/// the accesses.
pub(crate) fn under_first_touch<C: Count>(context: &Context, group: &ObjectGroup) -> Option<C> {
    let touches = context.first_touches(group);
    let mut counts = C::default();
    let (mut known, mut all) = (0.0, 0.0);
    for cell in &group.affinity.cells {
        if !context.places.knows(cell.thread) {
            continue;
        }
        all += cell.accesses();
        if let Some(toucher) = touches.toucher(cell.page) {
            let holder = Holder::Thread(toucher);
            counts.add(context, Part::Use, cell.thread, cell.accesses(), holder);
            known += cell.accesses();
        }
    }
    (known > 0.0 && known >= all / 2.0).then_some(counts)
}

/// Share of a group's accesses that are by the thread that `owner` gives for the page or, without `same_thread`, by any
/// thread at the same place. None if owners are known for less than half of the accesses.
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
        all += cell.accesses();
        let Some(owner) = owner(cell.page) else {
            continue;
        };
        known += cell.accesses();
        let is_near = if same_thread {
            owner == cell.thread
        } else {
            context.places.of(owner) == context.places.of(cell.thread)
        };
        near += if is_near { cell.accesses() } else { 0.0 };
    }
    (known > 0.0 && known >= all / 2.0).then(|| near / known)
}
