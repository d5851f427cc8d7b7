//! Groups ranks that behave alike.

use std::collections::BTreeMap;

use super::{JobObject, ObjectUse, RankProfile, UNKNOWN};

/// Ranks with fewer samples belong to no group, as they would fit into any.
const SAMPLES_MIN: f64 = 100.0;
/// Difference of shares that never counts, with any number of samples: ranks have different data.
const SHARE_TOLERANCE: f64 = 0.05;
/// Number of standard deviations, beyond the tolerance, that a difference may have by chance. A normal distribution
/// exceeds 3 in one comparison of 370.
const DEVIATIONS: f64 = 3.0;
/// Smallest share of a rank's accesses for an object's remote share and pattern to count.
const SHARE_MIN: f64 = 0.05;
/// Smallest number of an object's samples, on both sides, for comparing remote shares and patterns.
const OBJECT_SAMPLES_MIN: f64 = 200.0;
/// Largest number of rounds in which ranks may change to a nearer group.
const ROUNDS_MAX: usize = 4;

/// Ranks that behave alike: the same objects with the same shares, patterns and remote shares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankGroup {
    /// Positions of the ranks in the grouped list, ascending.
    pub members: Vec<usize>,
    /// Accesses of all ranks of the group.
    pub total: ObjectUse,
    /// Accesses by object, and the samples of each pattern.
    objects: BTreeMap<JobObject, (ObjectUse, BTreeMap<&'static str, f64>)>,
}

/// All groups of a job, and the ungrouped ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankGroups {
    /// The groups, largest first.
    pub groups: Vec<RankGroup>,
    /// Positions of the ranks with too few samples for a group.
    pub too_few: Vec<usize>,
}

/// A difference between two groups of ranks. Shares range from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// Share of the accesses to another node's memory.
    Remote {
        /// The share in this group.
        here: f64,
        /// The share in the other group.
        there: f64,
    },
    /// Share of an object in all accesses.
    Share {
        /// The object.
        object: JobObject,
        /// The share in this group.
        here: f64,
        /// The share in the other group.
        there: f64,
    },
    /// Share of an object's accesses to another node's memory.
    ObjectRemote {
        /// The object.
        object: JobObject,
        /// The share in this group.
        here: f64,
        /// The share in the other group.
        there: f64,
    },
    /// The pattern of an object.
    Pattern {
        /// The object.
        object: JobObject,
        /// The pattern in this group.
        here: &'static str,
        /// The pattern in the other group.
        there: &'static str,
    },
}

impl Difference {
    /// Sort key: the total remote share comes first, then shares by size, then patterns.
    fn size(&self) -> f64 {
        match self {
            Self::Remote { here, there } => 1.0 + (here - there).abs(),
            Self::Share { here, there, .. } | Self::ObjectRemote { here, there, .. } => {
                (here - there).abs()
            }
            Self::Pattern { .. } => 0.0,
        }
    }
}

impl RankGroup {
    /// Position of the rank with most samples, the first of several; none for an empty group. This rank is the
    /// best-known member of the group.
    pub fn representative(&self, ranks: &[RankProfile]) -> Option<usize> {
        let samples = |position: usize| ranks[position].total.samples;
        // `max_by` returns the last of equal elements.
        let members = self.members.iter().rev().copied();
        members.max_by(|&a, &b| samples(a).total_cmp(&samples(b)))
    }

    fn add(&mut self, position: usize, rank: &RankProfile) {
        self.members.push(position);
        self.total.add(&rank.total);
        for (object, (used, pattern)) in &rank.objects {
            let (sum, patterns) = self.objects.entry(*object).or_default();
            sum.add(used);
            *patterns.entry(pattern).or_default() += used.samples;
        }
    }

    fn of(members: impl IntoIterator<Item = usize>, ranks: &[RankProfile]) -> Self {
        let mut group = Self::default();
        for position in members {
            group.add(position, &ranks[position]);
        }
        group
    }

    /// Accesses and pattern of each object, by descending number of samples.
    pub fn objects(&self) -> Vec<(JobObject, ObjectUse, &'static str)> {
        let mut objects: Vec<_> = self
            .objects
            .iter()
            .map(|(object, (used, patterns))| (*object, *used, most(patterns)))
            .collect();
        objects.sort_by(|(a, left, _), (b, right, _)| {
            right.samples.total_cmp(&left.samples).then(a.cmp(b))
        });
        objects
    }

    /// Differences from another group beyond chance and tolerance, the largest first.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        self.compare(other, |difference| found.push(difference));
        found.sort_by(|a, b| b.size().total_cmp(&a.size()));
        found
    }

    /// Distance of two groups: the sum of the differences of shares. Calls `found` for each difference that counts.
    fn compare(&self, other: &Self, mut found: impl FnMut(Difference)) -> f64 {
        let (remote, here, there) = part_differs(
            (self.total.remote, self.total.node_known),
            (other.total.remote, other.total.node_known),
        );
        let mut distance = (here - there).abs();
        if remote {
            found(Difference::Remote { here, there });
        }
        let nothing = (ObjectUse::default(), BTreeMap::new());
        let only_there = other
            .objects
            .keys()
            .filter(|object| !self.objects.contains_key(object));
        for object in self.objects.keys().chain(only_there) {
            let (own, own_patterns) = self.objects.get(object).unwrap_or(&nothing);
            let (its, its_patterns) = other.objects.get(object).unwrap_or(&nothing);
            let (differs, here, there) = part_differs(
                (own.samples, self.total.samples),
                (its.samples, other.total.samples),
            );
            distance += (here - there).abs();
            let object = *object;
            if differs {
                found(Difference::Share {
                    object,
                    here,
                    there,
                });
            }
            if here < SHARE_MIN || there < SHARE_MIN {
                continue;
            }
            // With fewer samples, the normal approximation does not hold.
            if own.node_known.min(its.node_known) >= OBJECT_SAMPLES_MIN {
                let (differs, here, there) =
                    part_differs((own.remote, own.node_known), (its.remote, its.node_known));
                distance += (here - there).abs();
                if differs {
                    found(Difference::ObjectRemote {
                        object,
                        here,
                        there,
                    });
                }
            }
            let (here, there) = (most(own_patterns), most(its_patterns));
            let is_sure = own.samples.min(its.samples) >= OBJECT_SAMPLES_MIN;
            if is_sure && here != there && here != UNKNOWN && there != UNKNOWN {
                distance += 1.0;
                found(Difference::Pattern {
                    object,
                    here,
                    there,
                });
            }
        }
        distance
    }

    /// Distance of two groups; none if any difference counts.
    fn distance_if_alike(&self, other: &Self) -> Option<f64> {
        let mut alike = true;
        let distance = self.compare(other, |_| alike = false);
        alike.then_some(distance)
    }
}

/// The pattern with most samples.
fn most(patterns: &BTreeMap<&'static str, f64>) -> &'static str {
    let most = patterns.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    most.map_or(UNKNOWN, |(pattern, _)| pattern)
}

/// Whether two shares of samples differ by more than tolerance and chance, and the shares. Unknown shares do not
/// differ.
fn part_differs((part, all): (f64, f64), (other, other_all): (f64, f64)) -> (bool, f64, f64) {
    if all <= 0.0 || other_all <= 0.0 {
        return (false, 0.0, 0.0);
    }
    let (here, there) = (part / all, other / other_all);
    // Adds one success and one failure (Laplace's rule), as shares of 0 and 1 would have a deviation of 0.
    let both = (part + other + 1.0) / (all + other_all + 2.0);
    let deviation = (both * (1.0 - both) * (1.0 / all + 1.0 / other_all))
        .max(0.0)
        .sqrt();
    let differs = (here - there).abs() > SHARE_TOLERANCE + DEVIATIONS * deviation;
    (differs, here, there)
}

/// Puts ranks that behave alike into groups.
///
/// First, each rank joins the nearest group that is alike, or begins a new group, in order of descending samples. Then
/// ranks change to nearer groups, and groups that are alike are merged.
pub fn group_ranks(ranks: &[RankProfile]) -> RankGroups {
    let (mut order, too_few): (Vec<usize>, Vec<usize>) =
        (0..ranks.len()).partition(|&position| ranks[position].total.samples >= SAMPLES_MIN);
    order.sort_by(|&a, &b| {
        let samples = |position: usize| ranks[position].total.samples;
        samples(b).total_cmp(&samples(a)).then(a.cmp(&b))
    });
    let alone = |position: usize| RankGroup::of([position], ranks);
    let mut groups: Vec<RankGroup> = Vec::new();
    for &position in &order {
        match nearest(&groups, &alone(position)) {
            Some(number) => groups[number].add(position, &ranks[position]),
            None => groups.push(alone(position)),
        }
    }
    for _ in 0..ROUNDS_MAX {
        let mut members = vec![Vec::new(); groups.len()];
        let mut news = Vec::new();
        for &position in &order {
            match nearest(&groups, &alone(position)) {
                Some(number) => members[number].push(position),
                None => news.push(vec![position]),
            }
        }
        let regrouped = members.into_iter().chain(news);
        let regrouped = regrouped.filter(|members: &Vec<usize>| !members.is_empty());
        let regrouped: Vec<_> = regrouped
            .map(|members| RankGroup::of(members, ranks))
            .collect();
        let before = groups.iter().map(|group| &group.members);
        let is_settled = before.eq(regrouped.iter().map(|group| &group.members));
        groups = regrouped;
        if is_settled {
            break;
        }
    }
    let mut groups = merged(groups, ranks);
    for group in &mut groups {
        group.members.sort_unstable();
    }
    groups.sort_by(|a, b| {
        let order = b.members.len().cmp(&a.members.len());
        order.then(a.members.cmp(&b.members))
    });
    RankGroups { groups, too_few }
}

fn nearest(groups: &[RankGroup], rank: &RankGroup) -> Option<usize> {
    let distances = groups
        .iter()
        .enumerate()
        .filter_map(|(number, group)| Some((number, group.distance_if_alike(rank)?)));
    let nearest = distances.min_by(|(_, a), (_, b)| a.total_cmp(b));
    nearest.map(|(number, _)| number)
}

/// Merges groups that are alike.
fn merged(groups: Vec<RankGroup>, ranks: &[RankProfile]) -> Vec<RankGroup> {
    let mut kept: Vec<RankGroup> = Vec::new();
    for group in groups {
        match nearest(&kept, &group) {
            Some(number) => {
                for position in group.members {
                    kept[number].add(position, &ranks[position]);
                }
            }
            None => kept.push(group),
        }
    }
    kept
}

#[cfg(test)]
mod tests;
