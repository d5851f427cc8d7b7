//! The instances of one group, each by itself.

use std::cmp::Reverse;

use nearpage_recording::{ObjectId, ThreadIndex};
use rustc_hash::FxHashMap;

use crate::{
    InstanceUser, ObjectGroup,
    groups::Groups,
    sums::{HotSum, accesses},
};

/// Instances that one thread uses so much are its own.
const OWN_SHARE: f64 = 0.9;

/// The followed instances that were accessed and their main users, by cost, by group.
pub(crate) fn instances_by_group(
    groups: &Groups,
    sums: FxHashMap<u64, HotSum>,
) -> FxHashMap<u32, (Vec<ObjectId>, Vec<InstanceUser>)> {
    #[derive(Default)]
    struct Instance {
        whole: HotSum,
        most: (u64, Reverse<u32>),
    }
    let mut by_object: FxHashMap<u32, Instance> = FxHashMap::default();
    for (key, sum) in sums {
        let instance = by_object.entry((key >> 32) as u32).or_default();
        instance.whole.merge(sum);
        instance.most = instance.most.max((sum.weight, Reverse(key as u32)));
    }
    let mut by_group: FxHashMap<u32, Vec<(u32, Instance)>> = FxHashMap::default();
    for (object, instance) in by_object {
        by_group
            .entry(groups.of_object[object as usize])
            .or_default()
            .push((object, instance));
    }
    by_group
        .into_iter()
        .map(|(group, mut members)| {
            members.sort_unstable_by_key(|(id, instance)| {
                (Reverse((instance.whole.cost, instance.whole.weight)), *id)
            });
            members.truncate(ObjectGroup::SAMPLES_MAX);
            let user = |instance: &Instance| InstanceUser {
                thread: ThreadIndex(instance.most.1.0),
                share: if instance.whole.weight == 0 {
                    0.0
                } else {
                    instance.most.0 as f64 / instance.whole.weight as f64
                },
                accesses: accesses(instance.whole.weight),
            };
            let samples = members.iter().map(|(id, _)| ObjectId(*id)).collect();
            (
                group,
                (
                    samples,
                    members.iter().map(|(_, instance)| user(instance)).collect(),
                ),
            )
        })
        .collect()
}

/// Do the instances belong to different threads, each to one?
pub(crate) fn each_its_own(users: &[InstanceUser]) -> bool {
    // An instance with two accesses has one user all too often.
    let telling: Vec<&InstanceUser> = users.iter().filter(|user| user.accesses >= 4.0).collect();
    let all: f64 = telling.iter().map(|user| user.accesses).sum();
    let own: f64 = telling
        .iter()
        .filter(|user| user.share >= OWN_SHARE)
        .map(|user| user.accesses)
        .sum();
    let several = telling
        .windows(2)
        .any(|pair| pair[0].thread != pair[1].thread);
    several && own >= OWN_SHARE * all
}
