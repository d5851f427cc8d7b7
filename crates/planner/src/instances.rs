//! Call sites that allocate several objects, each for another thread: `for k in threads: a[k] = malloc(…)`.
//!
//! Laid over each other, such objects look shared by all threads. So this module looks at who uses which instance. The
//! sequence of instances (in order of allocation, by which plans recognise them) is cut into segments, like the pages
//! of an object. Each segment goes to the thread that uses it most. Instances without a sample go with the nearest
//! sampled instance: objects allocated in turn are mostly used in turn (the "silent regions" of Marathe §4, by object
//! instead of page).

use std::collections::BTreeMap;

use nearpage_attribution::{Affinity, Cell, ObjectGroup, find_segments};
use nearpage_plan::{Placement, Subject};
use nearpage_recording::{Object, Tables, ThreadIndex};
use nearpage_wire::compact_plan::share_of_object;

use crate::context::Context;
use crate::parameters::Parameters;

/// How threads use the instances of a group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Instances {
    /// One instance, or several that threads share.
    Together,
    /// Each instance is used by the thread that allocated it or touched it first: first touch is right.
    OwnToucher,
    /// Runs of instances, each with its main user.
    Runs(Vec<InstanceRun>),
    /// The user of an instance follows from its number.
    ByTeam(TeamInstances),
}

/// Instances that the threads of a team use in turn, or each an equal share of them, in the order of allocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TeamInstances {
    /// The allocating thread's order of creation in the process.
    pub allocator: u32,
    /// The placement that deals the instances to threads.
    pub placement: Placement,
    /// Share of the accesses that are by the thread to which an instance is dealt.
    pub share: f64,
}

/// Consecutive instances of one user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InstanceRun {
    /// The allocating thread's order of creation in the process.
    pub allocator: u32,
    /// First and last number among the allocator's objects of the call site.
    pub order: (u32, u32),
    pub user: ThreadIndex,
    /// Accesses to the instances, by weight.
    pub accesses: f64,
    /// Share of the accesses that are by the user.
    pub share: f64,
}

/// True if a decision's subject picks an object of its call site, by the allocating thread and the object's number
/// among that thread's objects.
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

/// Accesses of one thread to one instance.
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

/// Cells by the allocating thread's order of creation; a cell's page is the instance's number among that thread's
/// objects.
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

/// How threads use a group's instances.
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
        && let Some((team, share)) = best_team(context, cells, |number, threads| number % threads)
        && share >= parameters.instance_share_min
    {
        return Instances::ByTeam(TeamInstances {
            allocator,
            placement: Placement::RoundRobin { team },
            share,
        });
    }
    let objects = u32::try_from(group.instances).unwrap_or(u32::MAX);
    let in_blocks = by_allocator.first_key_value().filter(|_| is_only);
    let in_blocks = in_blocks.and_then(|(&allocator, cells)| {
        let (team, share) = best_team(context, cells, |number, threads| {
            share_of_object(number, objects, threads)
        })?;
        Some(TeamInstances {
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
            // A rule by number also fits a run with another number of objects.
            Some(in_blocks) if in_blocks.share * accesses >= BLOCKS_PART_MIN * by_user => {
                Instances::ByTeam(in_blocks)
            }
            _ => Instances::Runs(runs),
        },
    }
}

/// Equal shares replace runs if they give users this share of the accesses that runs give them.
const BLOCKS_PART_MIN: f64 = 0.95;

/// The team to which `rule` deals instances best, and the share of accesses by the thread that an instance is dealt to.
/// `rule` maps an instance's number and a number of threads to a thread's position. A joined team counts only if no
/// other team does as well.
fn best_team(
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
    // Joined teams come last, and the first of equal shares is kept.
    shares
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(team, share)| (team.to_owned(), share))
}

/// True if users touch instances first, rather than the allocating thread. Page faults tell, else the accesses before a
/// second thread came. If a second thread was there from the beginning, many samples without any of the allocating
/// thread tell.
pub(crate) fn touched_by_users(context: &Context, group: &ObjectGroup) -> bool {
    let objects = &context.tables.objects;
    let mut allocators = group
        .listed_instances
        .iter()
        .filter_map(|id| objects.get(id.0 as usize)?.thread);
    let Some(allocator) = allocators.next() else {
        return false;
    };
    if allocators.any(|other| other != allocator) {
        return false;
    }
    let (all, by_allocator) = group.first_touches_by(|thread| thread == allocator);
    if all >= FAULTS_MIN {
        return 2 * by_allocator < all;
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

/// Page faults that are enough to tell who touches instances first.
const FAULTS_MIN: u64 = 4;
/// Samples that are enough to tell who touches instances first, if the allocating thread has none.
const USES_MIN: f64 = 64.0;

/// Samples of each instance's main user, summed over instances.
fn by_main_users(uses: &[Use]) -> f64 {
    let of_one = uses.chunk_by(|a, b| std::ptr::eq(a.object, b.object));
    of_one
        .map(|uses| uses.iter().map(|one| one.samples).fold(0.0, f64::max))
        .sum()
}

/// Runs of the objects that one thread allocated, from its first object to the last of `count`, if known. A sample
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
            // Unsampled instances between two segments: half of them to each.
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
