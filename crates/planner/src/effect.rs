//! Local and remote accesses under a placement, without contention.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

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
    let cells = group.affinity.cells.iter();
    let cells = || {
        cells
            .clone()
            .filter(|cell| context.places.knows(cell.thread))
    };
    let known = |cell: &Cell| {
        let toucher = touches.toucher(cell.page)?;
        Some((cell.thread, cell.accesses(), Holder::Thread(toucher)))
    };
    let known: Vec<HeldAccesses> = cells().filter_map(known).collect();
    let known_sum: f64 = known.iter().map(|one| one.1).sum();
    let all: f64 = cells().map(Cell::accesses).sum();
    (known_sum > 0.0 && known_sum >= all / 2.0).then(|| all_as_known(context, group, &known))
}

/// Accesses of a thread, by weight, to pages of one holder.
pub(crate) type HeldAccesses<'a> = (ThreadIndex, f64, Holder<'a>);

/// A group's accesses without its initialisation, if the holders of some are known. Each thread's other accesses count
/// like its known ones, or, if it has none, like those of all threads. So the number of accesses is that of any other
/// placement.
pub(crate) fn all_as_known<C: Count>(
    context: &Context,
    group: &ObjectGroup,
    known: &[HeldAccesses],
) -> C {
    let mut counts = C::default();
    let is_held = |holder: Holder| match holder {
        Holder::Thread(owner) => context.node_position(owner).is_some(),
        _ => true,
    };
    let known = || known.iter().filter(|one| one.1 > 0.0 && is_held(one.2));
    let mut threads: BTreeMap<ThreadIndex, [f64; 2]> = BTreeMap::new();
    for cell in &group.affinity.cells {
        threads.entry(cell.thread).or_default()[0] += cell.accesses();
    }
    for (thread, count, _) in known() {
        threads.entry(*thread).or_default()[1] += count;
    }
    for &(thread, count, holder) in known() {
        let [all, of_thread] = threads[&thread];
        counts.add(context, Part::Use, thread, count * all / of_thread, holder);
    }
    let all_known: f64 = known().map(|one| one.1).sum();
    for (&thread, &[all, _]) in threads.iter().filter(|(_, sums)| sums[1] <= 0.0) {
        for &(_, count, holder) in known() {
            counts.add(context, Part::Use, thread, count * all / all_known, holder);
        }
    }
    counts
}

/// A group's accesses if several threads allocated its objects: each object is where its allocator touched it. Laid
/// over each other, such objects have pages of several first touches, and a thread that uses its own object more than
/// others' would seem to use any of them alike. None if one thread allocated all objects, or if other threads than the
/// allocators touched most of their pages. Of many objects, the largest are followed.
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
    let (all, by_them) = group.first_touches_by(|thread| allocators.contains(&thread));
    if 2 * by_them < all {
        return None;
    }
    let uses = group.uses.iter();
    let uses = uses.filter(|one| context.places.knows(one.thread));
    let known = uses.map(|one| Some((one.thread, one.accesses, Holder::Thread(allocator(one)?))));
    let known: Option<Vec<HeldAccesses>> = known.collect();
    Some(all_as_known(context, group, &known?))
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

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;

    use super::*;
    use crate::Planner;
    use crate::context::Input;
    use crate::making::Samples;

    /// Accesses by thread.
    #[derive(Debug, Default, PartialEq)]
    struct ByThread(BTreeMap<ThreadIndex, f64>);

    impl Count for ByThread {
        fn count(&mut self, _: &Context, access: Access) {
            *self.0.entry(access.thread).or_default() += access.count;
        }
    }

    /// Checks a program of four threads, one on each node, that use a block each of a grid.
    fn with_blocks(check: impl FnOnce(&Input)) {
        let samples = Samples::of("opteron-4", &[0, 1, 2, 3]).analysed();
        let machine = preset("opteron-4").unwrap();
        let planner = Planner::of(&samples.analysis, &machine, None);
        check(&planner.programs().unwrap()[0]);
    }

    #[test]
    fn a_plan_seems_slower_because_first_touch_leaves_out_accesses() {
        with_blocks(|input| {
            let context = Context::new(input);
            let whole = ResolvedPlacement::Whole(Holder::Thread(ThreadIndex(0)));
            let group = &input.attribution.objects[0];
            let placed: ByThread = under_placement(&context, group, &whole);
            assert_eq!(placed.0.len(), 4);
            assert!(placed.0.values().all(|accesses| *accesses > 0.0));
            let touched_from = |first_known: u32| {
                let mut attribution = input.attribution.clone();
                attribution.objects[0].first_touches = vec![(first_known, ThreadIndex(2))];
                let program = input.program.clone();
                let input = Input {
                    attribution: &attribution,
                    program,
                    ..*input
                };
                under_first_touch::<ByThread>(&Context::new(&input), &attribution.objects[0])
            };
            // The first touch of earlier pages is unknown, such as of the blocks of threads 0 and 1.
            for first_known in [0, 1, group.affinity.pages / 2] {
                let touched = touched_from(first_known).expect("half of the accesses are known");
                assert_eq!(touched.0.len(), 4);
                for (thread, accesses) in &touched.0 {
                    assert!((accesses - placed.0[thread]).abs() < 1e-6 * accesses);
                }
            }
            assert_eq!(touched_from(group.affinity.pages - 1), None);
        });
    }

    #[test]
    fn accesses_without_a_known_holder_go_where_known_ones_go() {
        with_blocks(|input| {
            let context = Context::new(input);
            let group = &input.attribution.objects[0];
            let of = |thread| {
                group
                    .affinity
                    .cells
                    .iter()
                    .filter(move |cell| cell.thread == thread)
            };
            let all = |thread| of(thread).map(Cell::accesses).sum::<f64>();
            let [own, other] = [ThreadIndex(1), ThreadIndex(2)];
            // A quarter of one thread's accesses are known, half of them its own; of the others, nothing is known.
            let part = all(own) / 8.0;
            let known = [
                (own, part, Holder::Thread(own)),
                (own, part, Holder::Thread(other)),
            ];
            let tally: Tally = all_as_known(&context, group, &known);
            let every: f64 = group.affinity.cells.iter().map(Cell::accesses).sum();
            assert!((tally.accesses - every).abs() < 1e-6 * every);
            assert!((tally.local - (all(own) + all(other)) / 2.0).abs() < 1e-6 * every);
            assert_eq!(
                all_as_known::<Tally>(&context, group, &[]),
                Tally::default()
            );
        });
    }
}
