//! Call sites that allocate several objects, each for another thread: `for k in threads: a[k] = malloc(…)`.
//!
//! Laid over each other such objects look shared by everybody. What decides is who uses which
//! instance. The sequence of instances (by order of allocation, the way a plan recognises them) is cut into
//! segments, as the pages of an object are; each goes to the thread that uses it most. Instances without
//! a sample go with the nearest: what is allocated in turn is mostly used in turn (the "silent regions" of
//! Marathe §4, by object instead of page).

use std::collections::BTreeMap;

use nearpage_attribution::{Affinity, Cell, ObjectGroup, find_segments};
use nearpage_plan::{Placement, Subject};
use nearpage_recording::{Object, Tables, ThreadIndex};
use nearpage_wire::compact_plan::share_of_object;

use crate::context::Context;
use crate::parameters::Parameters;

/// What the instances of a group tell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Instances {
    /// One instance, or several that threads share.
    Together,
    /// Each is used by the thread that allocated it, or that touched it first: first touch is right.
    OwnToucher,
    /// Each has its user.
    Runs(Vec<InstanceRun>),
    /// Each has its user, by a rule about its number.
    Dealt(DealtInstances),
}

/// Instances that the threads of a team use in turn, or each an equal share of them, in the order of allocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DealtInstances {
    /// Who allocated them: order of creation in the process.
    pub allocator: u32,
    /// To whom each is dealt.
    pub placement: Placement,
    /// Share of their accesses by the thread that they are dealt to.
    pub share: f64,
}

/// Consecutive instances of one user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InstanceRun {
    /// Who allocated them: order of creation in the process.
    pub allocator: u32,
    /// First and last number among the allocator's objects of the call site.
    pub order: (u32, u32),
    /// Who uses them.
    pub user: ThreadIndex,
    /// Their accesses, by weight.
    pub accesses: f64,
    /// Share of these by the user.
    pub share: f64,
}

/// Does a decision's subject pick an object of its call site, by the thread that allocated it and its number among that
/// thread's?
pub(crate) fn picks(
    tables: &Tables,
    subject: &Subject,
    object: &Object,
    allocator: Option<ThreadIndex>,
) -> bool {
    let Subject::CallSite { order, thread, .. } = subject else {
        return true;
    };
    let allocator = allocator.and_then(|thread| tables.threads.get(thread.0 as usize));
    let creation = allocator.map(|thread| thread.order);
    order.is_none_or(|(first, last)| (first..=last).contains(&object.order))
        && thread.is_none_or(|thread| Some(thread) == creation)
}

/// What a thread did to an instance.
struct Use<'a> {
    object: &'a Object,
    thread: ThreadIndex,
    accesses: f64,
    samples: f64,
}

fn uses<'a>(context: &Context<'a>, group: &ObjectGroup) -> Vec<Use<'a>> {
    let known = group
        .uses
        .iter()
        .filter(|one| context.places.knows(one.thread));
    known
        .filter_map(|one| {
            Some(Use {
                object: context.tables.objects.get(one.object.0 as usize)?,
                thread: one.thread,
                accesses: one.accesses,
                samples: one.samples,
            })
        })
        .collect()
}

/// Uses by the order of the thread that allocated what is used, and of what it allocated.
fn by_allocator(context: &Context, uses: &[Use]) -> BTreeMap<u32, Vec<Cell>> {
    let mut found: BTreeMap<u32, Vec<Cell>> = BTreeMap::new();
    for one in uses {
        let allocator = one.object.thread;
        let allocator = allocator.and_then(|thread| context.tables.threads.get(thread.0 as usize));
        let Some(allocator) = allocator else { continue };
        found.entry(allocator.order).or_default().push(Cell {
            page: one.object.order,
            thread: one.thread,
            loads: one.accesses as f32,
            stores: 0.0,
            samples: one.samples as f32,
            cost_ns: 0.0,
        });
    }
    for cells in found.values_mut() {
        cells.sort_by_key(|cell| (cell.page, cell.thread));
    }
    found
}

/// What a group's instances tell.
pub(crate) fn of(context: &Context, group: &ObjectGroup, parameters: &Parameters) -> Instances {
    let uses = uses(context, group);
    let all: f64 = uses.iter().map(|one| one.samples).sum();
    let accesses: f64 = uses.iter().map(|one| one.accesses).sum();
    let one_instance = uses
        .iter()
        .all(|one| std::ptr::eq(one.object, uses[0].object));
    let one_user = uses.iter().all(|one| one.thread == uses[0].thread);
    if one_instance || one_user {
        return Instances::Together;
    }
    let own = uses
        .iter()
        .filter(|one| one.object.thread == Some(one.thread));
    let by_allocators: f64 = own.map(|one| one.samples).sum();
    if by_allocators >= parameters.first_touch_local_min * all {
        return Instances::OwnToucher;
    }
    let by_users = by_main_users(&uses);
    if touched_by_users(context, group) && by_users >= parameters.instance_share_min * all {
        return Instances::OwnToucher;
    }
    let by_allocator = by_allocator(context, &uses);
    let is_only = by_allocator.len() == 1;
    if is_only
        && let Some((&allocator, cells)) = by_allocator.first_key_value()
        && let Some((team, share)) = dealt(context, cells, |number, threads| number % threads)
        && share >= parameters.instance_share_min
    {
        return Instances::Dealt(DealtInstances {
            allocator,
            placement: Placement::RoundRobin { team },
            share,
        });
    }
    let objects = u32::try_from(group.instances).unwrap_or(u32::MAX);
    let in_blocks = by_allocator.first_key_value().filter(|_| is_only);
    let in_blocks = in_blocks.and_then(|(&allocator, cells)| {
        let (team, share) = dealt(context, cells, |number, threads| {
            share_of_object(number, objects, threads)
        })?;
        Some(DealtInstances {
            allocator,
            placement: Placement::ObjectBlocks { objects, team },
            share,
        })
    });
    let mut runs: Vec<InstanceRun> = Vec::new();
    for (allocator, cells) in by_allocator {
        let affinity = Affinity {
            page_bytes: 1,
            cells,
            ..Affinity::default()
        };
        let each = accesses / all.max(f64::MIN_POSITIVE);
        runs.extend(runs_of(
            allocator,
            &affinity,
            each,
            is_only.then_some(objects),
        ));
    }
    let by_user: f64 = runs.iter().map(|run| run.accesses * run.share).sum();
    let one_user = runs.iter().all(|run| run.user == runs[0].user);
    match one_user || by_user < parameters.instance_share_min * accesses {
        true => Instances::Together,
        false => match in_blocks {
            // Another run has other numbers of objects, which a rule is right for.
            Some(dealt) if dealt.share * accesses >= BLOCKS_PART_MIN * by_user => {
                Instances::Dealt(dealt)
            }
            _ => Instances::Runs(runs),
        },
    }
}

/// Of the accesses that runs of objects have with their users, so much has to be with those that equal shares give them to.
const BLOCKS_PART_MIN: f64 = 0.95;

/// The team that instances are dealt to best by a rule, which says whose a number is among so many threads, and the share of
/// their accesses by the thread that has them. A joined team counts only where no other does as well.
fn dealt(
    context: &Context,
    cells: &[Cell],
    rule: impl Fn(u32, u32) -> u32,
) -> Option<(String, f64)> {
    let all: f64 = cells.iter().map(Cell::accesses).sum();
    let by_rule = |threads: &[ThreadIndex]| {
        let owner = |number: u32| threads[rule(number, threads.len() as u32) as usize];
        let own = cells.iter().filter(|cell| owner(cell.page) == cell.thread);
        own.map(Cell::accesses).sum::<f64>() / all.max(f64::MIN_POSITIVE)
    };
    let teams = context.teams().filter(|(_, threads)| threads.len() > 1);
    let shares = teams.map(|(team, threads)| (team, by_rule(threads)));
    // Joined ones come last: of equal shares the first.
    shares
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(team, share)| (team.to_owned(), share))
}

/// Do the instances' users touch them first, not who allocated them? Page faults tell, else what was done to them before
/// a second thread came; and where a second thread was there from the beginning, many samples without any of the allocator.
pub(crate) fn touched_by_users(context: &Context, group: &ObjectGroup) -> bool {
    let objects = &context.tables.objects;
    let mut allocators = group
        .samples
        .iter()
        .filter_map(|id| objects.get(id.0 as usize)?.thread);
    let Some(allocator) = allocators.next() else {
        return false;
    };
    if allocators.any(|other| other != allocator) {
        return false;
    }
    let faults = &group.first_touches;
    if faults.len() >= FAULTS_MIN {
        let by_allocator = faults.iter().filter(|fault| fault.1 == allocator).count();
        return 2 * by_allocator < faults.len();
    }
    let initialisation = &group.affinity.initialisation;
    match initialisation.is_empty() {
        false => !initialisation.iter().any(|cell| cell.thread == allocator),
        true => {
            let uses = || group.uses.iter();
            let samples: f64 = uses().map(|one| one.samples).sum();
            samples >= USES_MIN && !uses().any(|one| one.thread == allocator)
        }
    }
}

/// Page faults that tell who touches instances first.
const FAULTS_MIN: usize = 4;
/// Samples of use that tell it where the allocator has none.
const USES_MIN: f64 = 64.0;

/// Samples of each instance's main user, all together.
fn by_main_users(uses: &[Use]) -> f64 {
    let of_one = uses.chunk_by(|a, b| std::ptr::eq(a.object, b.object));
    of_one
        .map(|uses| uses.iter().map(|one| one.samples).fold(0.0, f64::max))
        .sum()
}

/// Runs of what one thread allocated, from its first object on; to the last of `count`, where that is known. A sample
/// stands for `each` accesses.
fn runs_of(allocator: u32, affinity: &Affinity, each: f64, count: Option<u32>) -> Vec<InstanceRun> {
    let mut runs: Vec<InstanceRun> = Vec::new();
    for segment in find_segments(affinity) {
        let accesses = segment.samples * each;
        match runs.last_mut() {
            Some(last) if last.user == segment.user => {
                let sum = last.accesses + accesses;
                last.share = (last.share * last.accesses + segment.share * accesses) / sum;
                last.accesses = sum;
                last.order.1 = segment.last_page;
                continue;
            }
            // Nothing is known of what is between two segments: half of it to each.
            Some(last) => last.order.1 = last.order.1.midpoint(segment.first_page - 1),
            None => {}
        }
        let first = runs.last().map_or(0, |last| last.order.1 + 1);
        runs.push(InstanceRun {
            allocator,
            order: (first, segment.last_page),
            user: segment.user,
            accesses,
            share: segment.share,
        });
    }
    if let (Some(last), Some(count)) = (runs.last_mut(), count) {
        last.order.1 = last.order.1.max(count.saturating_sub(1));
    }
    runs
}
