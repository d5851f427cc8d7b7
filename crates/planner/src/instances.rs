//! Call sites that allocate several objects, each for another thread: `for k in threads: a[k] = malloc(…)`.
//!
//! Laid over each other such objects look shared by everybody. What decides is who uses which
//! instance. Where every instance has its main user, runs of instances (by order of allocation, the
//! way a plan recognises them) go to their users. Instances without a sample follow the sampled one
//! before them, or after them at the beginning: what is allocated in turn is mostly used in turn
//! (the "silent regions" of Marathe §4, by object instead of page).

use std::collections::BTreeMap;

use nearpage_attribution::ObjectGroup;
use nearpage_recording::{Object, ThreadIndex};

use crate::context::Context;
use crate::parameters::Parameters;

/// What the instances of a group tell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Instances {
    /// One instance, or several that threads share.
    Together,
    /// Each is used by the thread that allocated it: first touch is right.
    OwnAllocator,
    /// Each has its user.
    Runs(Vec<InstanceRun>),
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

/// A sampled instance with its main user.
struct Sample<'a> {
    object: &'a Object,
    user: ThreadIndex,
    share: f64,
    accesses: f64,
}

fn samples<'a>(context: &Context<'a>, group: &ObjectGroup) -> Vec<Sample<'a>> {
    group
        .samples
        .iter()
        .zip(&group.users)
        .filter(|(_, user)| context.places.knows(user.thread))
        .filter_map(|(id, user)| {
            let object = context.tables.objects.get(id.0 as usize)?;
            Some(Sample {
                object,
                user: user.thread,
                share: user.share,
                accesses: user.accesses,
            })
        })
        .collect()
}

/// What a group's instances tell.
pub(crate) fn of(context: &Context, group: &ObjectGroup, parameters: &Parameters) -> Instances {
    let samples = samples(context, group);
    let all: f64 = samples.iter().map(|sample| sample.accesses).sum();
    let by_user: f64 = samples
        .iter()
        .map(|sample| sample.accesses * sample.share)
        .sum();
    let one_user = samples.iter().all(|sample| sample.user == samples[0].user);
    if samples.len() < 2 || one_user || by_user < parameters.instance_share_min * all {
        return Instances::Together;
    }
    let own = |sample: &&Sample| sample.object.thread == Some(sample.user);
    let by_allocator: f64 = samples
        .iter()
        .filter(own)
        .map(|sample| sample.accesses * sample.share)
        .sum();
    if by_allocator >= parameters.first_touch_local_min * all {
        return Instances::OwnAllocator;
    }
    let mut by_allocating: BTreeMap<u32, Vec<&Sample>> = BTreeMap::new();
    for sample in &samples {
        let allocator = sample
            .object
            .thread
            .and_then(|thread| context.tables.threads.get(thread.0 as usize));
        if let Some(allocator) = allocator {
            by_allocating
                .entry(allocator.order)
                .or_default()
                .push(sample);
        }
    }
    let single = by_allocating.len() == 1;
    let mut runs = Vec::new();
    for (allocator, mut instances) in by_allocating {
        instances.sort_by_key(|sample| sample.object.order);
        let same_user = instances
            .chunk_by(|a, b| a.user == b.user)
            .collect::<Vec<_>>();
        for (position, run) in same_user.iter().enumerate() {
            let first = if position == 0 {
                0
            } else {
                run[0].object.order
            };
            let last = match same_user.get(position + 1) {
                Some(next) => next[0].object.order.saturating_sub(1),
                None if single => {
                    let count = u32::try_from(group.instances).unwrap_or(u32::MAX);
                    run[run.len() - 1].object.order.max(count.saturating_sub(1))
                }
                None => run[run.len() - 1].object.order,
            };
            let accesses: f64 = run.iter().map(|sample| sample.accesses).sum();
            let by_user: f64 = run
                .iter()
                .map(|sample| sample.accesses * sample.share)
                .sum();
            runs.push(InstanceRun {
                allocator,
                order: (first, last),
                user: run[0].user,
                accesses,
                share: if accesses > 0.0 {
                    by_user / accesses
                } else {
                    0.0
                },
            });
        }
    }
    Instances::Runs(runs)
}
