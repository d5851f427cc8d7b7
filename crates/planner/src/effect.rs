//! Local and remote accesses under a placement, without contention.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use nearpage_attribution::{Cell, InstanceUse, ObjectGroup};
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
    if let Some(counts) = at_allocators(context, group) {
        return Some(counts);
    }
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

/// A group's accesses if several threads allocated its objects: each object is where its allocator touched it. Laid
/// over each other, such objects have pages of several first touches, and a thread that uses its own object more than
/// others' would seem to use any of them alike. None if one thread allocated all objects, or if other threads than the
/// allocators touched most of their pages.
fn at_allocators<C: Count>(context: &Context, group: &ObjectGroup) -> Option<C> {
    let objects = &context.tables.objects;
    let allocator = |one: &InstanceUse| {
        let thread = objects.get(one.object.0 as usize)?.thread?;
        context.places.knows(thread).then_some(thread)
    };
    let allocators: BTreeSet<ThreadIndex> = group.uses.iter().filter_map(allocator).collect();
    if allocators.len() < 2 {
        return None;
    }
    let touches = &group.first_touches;
    let by_them = touches.iter().filter(|touch| allocators.contains(&touch.1));
    if 2 * by_them.count() < touches.len() {
        return None;
    }
    // Of many objects, the largest are followed; the others are taken to be used alike.
    let known = |one: &&InstanceUse| context.places.knows(one.thread);
    let followed: f64 = group
        .uses
        .iter()
        .filter(known)
        .map(|one| one.accesses)
        .sum();
    let cells = group.affinity.cells.iter();
    let cells = cells.filter(|cell| context.places.knows(cell.thread));
    let scale = cells.map(Cell::accesses).sum::<f64>() / followed.max(f64::MIN_POSITIVE);
    let mut counts = C::default();
    for one in group.uses.iter().filter(known) {
        let holder = Holder::Thread(allocator(one)?);
        counts.add(context, Part::Use, one.thread, scale * one.accesses, holder);
    }
    Some(counts)
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
