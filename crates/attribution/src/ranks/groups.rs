//! Which ranks behave alike.

use std::collections::BTreeMap;

use super::{JobObject, ObjectUse, RankProfile, UNKNOWN};

/// Ranks with fewer samples are in no group: they could be in any.
const SAMPLES_MIN: f64 = 100.0;
/// Differences of shares that are nobody's concern, whatever the number of samples: ranks have different data.
const SHARE_TOLERANCE: f64 = 0.05;
/// Beyond that, as many standard deviations of the difference may be chance: one comparison in 370 is further off, and
/// the tolerance comes first.
const DEVIATIONS: f64 = 3.0;
/// An object's remote share and pattern count where it has this share of a rank's accesses.
const SHARE_MIN: f64 = 0.05;
/// They are compared where both sides have so many samples of the object.
const OBJECT_SAMPLES_MIN: f64 = 200.0;
/// Times that ranks may go over to a nearer group.
const ROUNDS_MAX: usize = 4;

/// Ranks that behave alike: the same objects in the same shares, with the same patterns, as remote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankGroup {
    /// Positions of its ranks in what was grouped, ascending.
    pub members: Vec<usize>,
    /// All that they did.
    pub total: ObjectUse,
    /// Their objects, and samples by pattern.
    objects: BTreeMap<JobObject, (ObjectUse, BTreeMap<&'static str, f64>)>,
}

/// The groups of a job's ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankGroups {
    /// The largest first.
    pub groups: Vec<RankGroup>,
    /// Positions of ranks with too few samples to tell.
    pub too_few: Vec<usize>,
}

/// What one group does and another does not, in shares from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// Accesses to another node's memory.
    Remote {
        /// Share of the accesses of this group.
        here: f64,
        /// Of the other's.
        there: f64,
    },
    /// How much of all accesses an object has.
    Share {
        /// The object.
        object: JobObject,
        /// Its share of this group's accesses.
        here: f64,
        /// Of the other's.
        there: f64,
    },
    /// Accesses of an object that are to another node's memory.
    ObjectRemote {
        /// The object.
        object: JobObject,
        /// Share of its accesses in this group.
        here: f64,
        /// In the other.
        there: f64,
    },
    /// The pattern of an object.
    Pattern {
        /// The object.
        object: JobObject,
        /// Its pattern in this group.
        here: &'static str,
        /// In the other.
        there: &'static str,
    },
}

impl Difference {
    /// How large it is, to put the largest first.
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
    /// Position of the rank with most samples, which tells most about the group; of equals the first. The group has one
    /// rank at least.
    pub fn representative(&self, ranks: &[RankProfile]) -> Option<usize> {
        let samples = |position: usize| ranks[position].total.samples;
        // Of equals `max_by` takes the last.
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

    /// Its objects by share of the accesses, the greatest first: what was done to each, and its pattern.
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

    /// What differs from another group by more than chance and tolerance, the greatest first.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        self.compare(other, |difference| found.push(difference));
        found.sort_by(|a, b| b.size().total_cmp(&a.size()));
        found
    }

    /// How far another is from it, in shares; tells each difference that counts.
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
            // Of fewer, chance is not as the deviation says.
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

    /// How far a rank is from it; nothing where they are not alike.
    fn distance_if_alike(&self, other: &Self) -> Option<f64> {
        let mut alike = true;
        let distance = self.compare(other, |_| alike = false);
        alike.then_some(distance)
    }
}

/// The pattern that most samples have.
fn most(patterns: &BTreeMap<&'static str, f64>) -> &'static str {
    let most = patterns.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    most.map_or(UNKNOWN, |(pattern, _)| pattern)
}

/// Two shares of samples, and whether they differ by more than the tolerance and chance. Nothing known differs from
/// nothing.
fn part_differs((part, all): (f64, f64), (other, other_all): (f64, f64)) -> (bool, f64, f64) {
    if all <= 0.0 || other_all <= 0.0 {
        return (false, 0.0, 0.0);
    }
    let (here, there) = (part / all, other / other_all);
    // A sample and a failure more, lest shares of 0 and 1 be taken for certain.
    let both = (part + other + 1.0) / (all + other_all + 2.0);
    let deviation = (both * (1.0 - both) * (1.0 / all + 1.0 / other_all))
        .max(0.0)
        .sqrt();
    let differs = (here - there).abs() > SHARE_TOLERANCE + DEVIATIONS * deviation;
    (differs, here, there)
}

/// Puts ranks that behave alike into groups.
///
/// A rank joins the nearest of the groups that it is like, or begins one; those with most samples first, as they tell
/// most. Then each goes over to a group that is nearer now that all are known, and groups that are alike become one.
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

/// Makes one of groups that are alike.
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
