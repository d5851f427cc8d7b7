//! Turns the sums into an [`Attribution`].

use nearpage_machine::CpuId;
use nearpage_recording::{ObjectId, ObjectKind, ThreadIndex};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::{
    AccessChunks, Affinity, Attributed, Attribution, CodeUse, Hot, Input, ObjectGroup, Options,
    Pattern, Team, ThreadTotals, Totals,
    cells::Cells,
    context::Context,
    first_touches::{GroupTouches, first_touches},
    groups::Group,
    instances::{costliest, each_its_own, in_turn, uses},
    part::{GroupPart, Part, ThreadPart},
    pattern::{Effort, pattern_by},
    siblings::{self, Row},
    sums::{CellSum, CodeSum, accesses, nanoseconds},
    teams::teams,
};

/// Largest number of instructions kept per group.
const HOT_MAX: usize = 8;

/// Instruction with code image, and the sums of its accesses.
type HotPlace = ((u64, u32), CodeSum);

pub(crate) fn summarise<A: AccessChunks + ?Sized>(
    input: &Input<A>,
    options: &Options,
    context: &Context,
    part: Part,
) -> Attributed {
    let groups = context.groups;
    let teams = teams(&input.tables.threads);
    let mut hot: FxHashMap<u32, Vec<HotPlace>> = FxHashMap::default();
    for ((instruction, place), sum) in part.hot.iter() {
        hot.entry((place >> 32) as u32)
            .or_default()
            .push(((instruction, place as u32), *sum));
    }
    let mut first_touches = first_touches(input, context);

    let row = |(number, part): (u32, GroupPart)| Row {
        number,
        part,
        details: Details {
            hot: hot.remove(&number).unwrap_or_default(),
            first_touches: first_touches.remove(&number).unwrap_or_default(),
        },
    };
    let mut groups_in_order = part.groups;
    // Their order would depend on the distribution of chunks over workers.
    groups_in_order.sort_unstable_by_key(|(number, _)| *number);
    let rows = groups_in_order.into_iter().map(row).collect();
    let rows = siblings::rows(groups, rows, options.page_bytes, &teams);
    // In parallel: finding patterns takes longest, and objects are independent. Objects with most samples often have
    // neighbouring numbers, so each object is a task of its own.
    let mut objects: Vec<(u32, ObjectGroup, Vec<CodeUse>)> = rows
        .into_par_iter()
        .with_max_len(1)
        .map(|row| {
            let group = &groups.groups[row.number as usize];
            let (object, code) = object(group, row.part, row.details, context, options, &teams);
            (row.number, object, code)
        })
        .collect();
    objects.sort_by(|(a, left, _), (b, right, _)| {
        let by = |group: &ObjectGroup| (group.cost_ns(), group.accesses());
        by(right)
            .partial_cmp(&by(left))
            .unwrap_or(std::cmp::Ordering::Equal)
            .then(a.cmp(b))
    });

    let kind = |kind: ObjectKind| accesses(part.kinds[kind as usize]);
    let all = part
        .kinds
        .iter()
        .fold(part.unknown, |sum, &kind| sum.saturating_add(kind));
    let (objects, code) = objects
        .into_iter()
        .map(|(_, group, code)| (group, code))
        .unzip();
    let attribution = Attribution {
        counts: input.counts,
        totals: Totals {
            accesses: accesses(all),
            heap: kind(ObjectKind::Heap),
            heap_unresolved: kind(ObjectKind::HeapArea),
            statics: kind(ObjectKind::Static),
            mapping: kind(ObjectKind::Mapping),
            stack: kind(ObjectKind::Stack),
            tls: kind(ObjectKind::Tls),
            code: kind(ObjectKind::Code),
            unknown: accesses(part.unknown),
        },
        objects,
        threads: part.threads.into_iter().map(thread_totals).collect(),
        teams,
        page_bytes: options.page_bytes,
    };
    Attributed { attribution, code }
}

/// Findings on a group besides its sums.
pub(crate) struct Details {
    hot: Vec<HotPlace>,
    first_touches: GroupTouches,
}

impl Details {
    /// Adds the findings on another object.
    pub fn merge(&mut self, other: Details) {
        let mut hot: FxHashMap<(u64, u32), CodeSum> = self.hot.drain(..).collect();
        for (place, sum) in other.hot {
            hot.entry(place).or_default().merge(sum);
        }
        self.hot.extend(hot);
        self.first_touches.merge(other.first_touches);
    }
}

/// Builds the row of a group from its sums and details.
fn object(
    group: &Group,
    part: GroupPart,
    details: Details,
    context: &Context,
    options: &Options,
    teams: &[Team],
) -> (ObjectGroup, Vec<CodeUse>) {
    let (cells, initialisation) = part.cells.phases();
    let mut by_thread: FxHashMap<ThreadIndex, CellSum> = FxHashMap::default();
    cells.by_thread(&mut by_thread);
    initialisation.by_thread(&mut by_thread);
    let mut threads: Vec<(ThreadIndex, f64, f64, f64)> = by_thread
        .into_iter()
        .map(|(thread, sum)| {
            (
                thread,
                accesses(sum.loads),
                accesses(sum.stores),
                nanoseconds(sum.cost),
            )
        })
        .collect();
    threads.sort_unstable_by_key(|&(thread, ..)| thread);

    let affinity = Affinity {
        sample_weight: part.sample_weight(),
        ..affinity(options.page_bytes, group.size_bytes, cells, initialisation)
    };
    let uses = uses(&part.instances);
    let listed_instances = match group.is_only {
        true => vec![ObjectId(group.first)],
        false => costliest(&uses),
    };
    let GroupTouches {
        pages: mut touches,
        threads: touchers,
    } = details.first_touches;
    for (page, _) in &mut touches {
        *page >>= cells.shift();
    }
    touches.dedup_by_key(|(page, _)| *page);
    let code = context.code.uses(details.hot);
    let mut object = ObjectGroup {
        kind: group.kind,
        name: group.name.clone(),
        size_bytes: group.size_bytes,
        instances: group.instances.round().max(1.0) as u64,
        sibling: group.parent.map(|_| ObjectId(group.first)),
        is_shared_memory: group.is_shared_memory,
        listed_instances,
        loads: part.loads.totals(),
        stores: part.stores.totals(),
        threads,
        hot: code.iter().take(HOT_MAX).map(Hot::from).collect(),
        affinity,
        first_touches: touches,
        touchers: touchers.into_iter().collect(),
        uses,
        pattern: Pattern::PrivateEach,
    };
    // Stacks and thread-local storage belong to their threads, and many of them overlap in one group.
    if group.is_only || !matches!(group.kind, ObjectKind::Stack | ObjectKind::Tls) {
        object.pattern = pattern_of(&object, teams, Effort::Recording);
    }
    (object, code)
}

/// Finds the pattern of a group from its cells and its instances' uses.
pub(crate) fn pattern_of(group: &ObjectGroup, teams: &[Team], effort: Effort) -> Pattern {
    let ObjectGroup {
        affinity,
        uses,
        size_bytes,
        ..
    } = group;
    if let Some(runs) = in_turn(uses, effort) {
        return match each_its_own(uses) {
            true => Pattern::PrivateEach,
            false => Pattern::PrivateRuns(runs),
        };
    }
    match group.kind {
        _ if each_its_own(uses) => Pattern::PrivateEach,
        // Code pages have no owner, even if threads happen to run different pages.
        ObjectKind::Code => {
            let as_one = Affinity {
                pages: 1,
                ..affinity.clone()
            };
            pattern_by(&as_one, *size_bytes, teams, effort)
        }
        _ => pattern_by(affinity, *size_bytes, teams, effort),
    }
}

fn thread_totals(part: ThreadPart) -> ThreadTotals {
    let mut cpus: Vec<(CpuId, f64)> = part
        .cpus
        .into_iter()
        .map(|(cpu, weight)| (cpu, accesses(weight)))
        .collect();
    cpus.sort_unstable_by_key(|&(cpu, _)| cpu);
    ThreadTotals {
        loads: part.loads.totals(),
        stores: part.stores.totals(),
        cpus,
    }
}

pub(crate) fn affinity(
    page_bytes: u64,
    size_bytes: u64,
    cells: &Cells,
    initialisation: &Cells,
) -> Affinity {
    let page_bytes = page_bytes << cells.shift();
    let (cells, initialisation) = (cells.sorted(), initialisation.sorted());
    // An object that begins and ends inside pages may touch one page more than its size suggests.
    let touched = cells
        .iter()
        .chain(&initialisation)
        .map(|cell| cell.page.saturating_add(1))
        .max()
        .unwrap_or(0);
    let pages = u32::try_from(size_bytes.div_ceil(page_bytes))
        .unwrap_or(u32::MAX)
        .max(touched);
    Affinity {
        page_bytes,
        pages,
        cells,
        initialisation,
        sample_weight: 0.0,
    }
}
