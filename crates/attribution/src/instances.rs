//! Finds out which threads use which instances of a group.

use std::cmp::Reverse;

use nearpage_recording::{ObjectId, ThreadIndex};
use rustc_hash::FxHashMap;

use crate::{
    Cell, InstanceUse, ObjectGroup, Segment,
    cells::PhasedCells,
    ownership::divergence,
    pattern::{EVIDENCE_MIN, Effort, SEGMENTS_MAX},
    segments::segments,
};

/// Smallest share of instances' accesses by their main users for the instances to be private.
const OWN_SHARE: f64 = 0.9;
/// Smallest number of samples that tells an instance's owner: two samples are too often of one thread by chance.
const OWNER_SAMPLES_MIN: f64 = 4.0;
/// Smallest share of accesses by the segments' owners for instances to belong to threads in turn.
const TURNS_SHARE_MIN: f64 = 0.75;

/// Accesses by instance and thread. In `cells`, an object's number takes the place of the page. The initialisation
/// counts only if no other access is known.
pub(crate) fn uses(cells: &PhasedCells) -> Vec<InstanceUse> {
    let (cells, initialisation) = cells.phases();
    let mut found = cells.sorted();
    if found.is_empty() {
        found = initialisation.sorted();
    }
    let of = |cell: Cell| InstanceUse {
        object: ObjectId(cell.page),
        thread: cell.thread,
        accesses: cell.accesses(),
        cost_ns: f64::from(cell.cost_ns),
        samples: f64::from(cell.samples),
    };
    found.into_iter().map(of).collect()
}

pub(crate) fn costliest(uses: &[InstanceUse]) -> Vec<ObjectId> {
    let mut sums: Vec<(ObjectId, f64, f64)> = Vec::new();
    for of_one in uses.chunk_by(|a, b| a.object == b.object) {
        let cost_ns = of_one.iter().map(|one| one.cost_ns).sum();
        let accesses = of_one.iter().map(|one| one.accesses).sum();
        sums.push((of_one[0].object, cost_ns, accesses));
    }
    sums.sort_by(|a, b| {
        let by = |one: &(ObjectId, f64, f64)| (one.1, one.2);
        by(b)
            .partial_cmp(&by(a))
            .unwrap_or(std::cmp::Ordering::Equal)
            .then(a.0.cmp(&b.0))
    });
    sums.truncate(ObjectGroup::LISTED_INSTANCES_MAX);
    sums.into_iter().map(|one| one.0).collect()
}

/// Whether the instances belong to different threads, each to one.
pub(crate) fn each_its_own(uses: &[InstanceUse]) -> bool {
    let (mut all, mut own, mut owners) = (0.0, 0.0, FxHashMap::default());
    for of_one in uses.chunk_by(|a, b| a.object == b.object) {
        let sum: f64 = of_one.iter().map(|one| one.samples).sum();
        if sum < OWNER_SAMPLES_MIN {
            continue;
        }
        let by = |one: &&InstanceUse| (one.samples, Reverse(one.thread));
        let most = of_one.iter().max_by(|a, b| {
            by(a)
                .partial_cmp(&by(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let Some(most) = most else { continue };
        all += sum;
        if most.samples >= OWN_SHARE * sum {
            own += sum;
        }
        *owners.entry(most.thread).or_insert(0) += 1;
    }
    owners.len() > 1 && own >= OWN_SHARE * all || few_samples_agree(uses)
}

/// Whether samples of one instance agree in their thread, for instances with too few samples each.
fn few_samples_agree(uses: &[InstanceUse]) -> bool {
    let (mut all, mut agree) = (0.0, 0.0);
    let mut by_thread: FxHashMap<ThreadIndex, f64> = FxHashMap::default();
    for of_one in uses.chunk_by(|a, b| a.object == b.object) {
        let sum: f64 = of_one.iter().map(|one| one.samples).sum();
        if sum < 2.0 {
            continue;
        }
        all += sum;
        for one in of_one {
            agree += one.samples * (one.samples - 1.0).max(0.0) / (sum - 1.0);
            *by_thread.entry(one.thread).or_default() += one.samples;
        }
    }
    if all <= 0.0 {
        return false;
    }
    let chance: f64 = by_thread.values().map(|&sum| (sum / all).powi(2)).sum();
    let explained = agree / all;
    // Two samples of an instance agree about as often as the square of the owner's share.
    by_thread.len() > 1
        && explained >= OWN_SHARE.powi(2)
        && explained > chance
        && all * divergence(explained, chance) >= EVIDENCE_MIN
}

/// Runs of instances in order of creation, each used mostly by one thread; none if there are no such runs.
pub(crate) fn in_turn(uses: &[InstanceUse], effort: Effort) -> Option<Vec<Segment>> {
    let first = uses.first()?.object.0;
    let cell = |one: &InstanceUse| Cell {
        page: one.object.0 - first,
        thread: one.thread,
        loads: one.accesses as f32,
        stores: 0.0,
        cost_ns: one.cost_ns as f32,
        samples: one.samples as f32,
    };
    let cells: Vec<Cell> = uses.iter().map(cell).collect();
    let found = segments(&cells, effort);
    let all: f64 = found.iter().map(|one| one.samples).sum();
    let owned: f64 = found.iter().map(|one| one.samples * one.share).sum();
    let several = found.windows(2).any(|pair| pair[0].user != pair[1].user);
    (several && found.len() <= SEGMENTS_MAX && owned >= TURNS_SHARE_MIN * all).then_some(found)
}
