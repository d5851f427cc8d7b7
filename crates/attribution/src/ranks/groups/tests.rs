//! Tests of grouping with jobs whose groups are known by construction.

use proptest::prelude::*;

use super::*;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }

    /// Number of successes in `samples` draws with this probability.
    fn of(&mut self, samples: usize, probability: f64) -> f64 {
        (0..samples).filter(|_| self.unit() < probability).count() as f64
    }
}

/// Behaviour of a group's ranks: share, remote share and pattern of each object.
type Behaviour = Vec<(f64, f64, &'static str)>;

/// A rank with this behaviour, as seen in `samples` samples.
fn rank(behaviour: &Behaviour, samples: usize, random: &mut Random) -> RankProfile {
    let mut profile = RankProfile::default();
    let mut rest = samples;
    let mut share_left = 1.0;
    for (number, &(share, remote, pattern)) in behaviour.iter().enumerate() {
        let is_last = number + 1 == behaviour.len();
        let drawn = match is_last {
            true => rest as f64,
            false => random.of(rest, (share / share_left).min(1.0)),
        };
        (rest, share_left) = (rest - drawn as usize, (share_left - share).max(1e-9));
        let used = ObjectUse {
            samples: drawn,
            node_known: drawn,
            remote: random.of(drawn as usize, remote),
            cost_ns: drawn,
        };
        profile.total.add(&used);
        profile
            .objects
            .insert(JobObject(number as u32), (used, pattern));
    }
    profile
}

/// Behaviours that differ pairwise by 0.25 in a share or remote share, or in a pattern.
fn behaviours(count: usize, random: &mut Random) -> Vec<Behaviour> {
    let objects = 2 + random.below(6);
    let mut shares: Vec<f64> = (0..objects).map(|_| 0.2 + random.unit()).collect();
    // Each job has an object that is large enough for its remote share to count.
    shares[0] += 0.6 * objects as f64;
    let sum: f64 = shares.iter().sum();
    let plain: Behaviour = shares
        .iter()
        .map(|share| (share / sum, 0.05, "block"))
        .collect();
    let change = |number: usize| {
        let mut changed = plain.clone();
        match number {
            0 => {}
            1 => changed.iter_mut().for_each(|object| object.1 = 0.5),
            2 => changed[0].2 = "shared",
            3 => {
                let moved = changed[0].0 * 0.75;
                changed[0].0 -= moved;
                changed[1].0 += moved;
            }
            _ => changed.iter_mut().for_each(|object| object.1 = 0.95),
        }
        changed
    };
    (0..count).map(change).collect()
}

/// Groups as sets of positions, in order of their first positions.
fn sets(groups: &RankGroups) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = groups
        .groups
        .iter()
        .map(|group| group.members.clone())
        .collect();
    sets.sort();
    sets
}

/// Whether a random job is grouped as it was constructed.
fn is_right(seed: u64) -> bool {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let behaviours = behaviours(1 + random.below(5), &mut random);
    let count = 8 + random.below(57);
    let mut expected = vec![Vec::new(); behaviours.len()];
    let ranks: Vec<RankProfile> = (0..count)
        .map(|position| {
            let group = random.below(behaviours.len());
            expected[group].push(position);
            let samples = 1000 + random.below(2000);
            rank(&behaviours[group], samples, &mut random)
        })
        .collect();
    expected.retain(|members| !members.is_empty());
    expected.sort();
    sets(&group_ranks(&ranks)) == expected
}

#[test]
fn random_jobs_are_grouped_as_they_were_made() {
    let wrong: Vec<u64> = (0..1000).filter(|&seed| !is_right(seed)).collect();
    assert!(
        wrong.len() <= 10,
        "{} of 1000 wrong: {wrong:?}",
        wrong.len()
    );
}

#[test]
fn ranks_of_one_program_are_one_group_whatever_the_samples() {
    let mut random = Random(7);
    let [plain] = &behaviours(1, &mut random)[..] else {
        panic!("one")
    };
    for samples in [100, 300, 1000, 10_000] {
        let ranks: Vec<_> = (0..128)
            .map(|_| rank(plain, samples, &mut random))
            .collect();
        let groups = group_ranks(&ranks);
        assert_eq!(groups.groups.len(), 1, "of {samples} samples");
        assert_eq!(groups.groups[0].members.len(), 128);
    }
}

#[test]
fn outliers_name_the_difference() {
    let mut random = Random(11);
    let plain: Behaviour = vec![(0.7, 0.02, "block"), (0.3, 0.02, "shared")];
    let far: Behaviour = vec![(0.7, 0.6, "block"), (0.3, 0.55, "shared")];
    let ranks: Vec<_> = (0..64)
        .map(|position| match position {
            3 | 41 => rank(&far, 2000, &mut random),
            _ => rank(&plain, 2000, &mut random),
        })
        .collect();
    let found = group_ranks(&ranks);
    let [most, outliers] = &found.groups[..] else {
        panic!("{found:?}")
    };
    assert_eq!(outliers.members, [3, 41]);
    let differences = outliers.differences(most);
    let Some(Difference::Remote { here, there }) = differences.first() else {
        panic!("{differences:?}")
    };
    assert!(
        (0.5..0.65).contains(here) && *there < 0.05,
        "{differences:?}"
    );
    assert_eq!(most.objects()[0].2, "block");
}

#[test]
fn ranks_of_few_samples_are_in_no_group() {
    let mut random = Random(3);
    let plain: Behaviour = vec![(1.0, 0.0, "private")];
    let ranks = [2000, 99, 0].map(|samples| rank(&plain, samples, &mut random));
    let found = group_ranks(&ranks);
    assert_eq!(sets(&found), [[0]]);
    assert_eq!(found.too_few, [1, 2]);
    assert_eq!(group_ranks(&[]), RankGroups::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every rank is in exactly one group or has too few samples, for any numbers.
    #[test]
    fn each_rank_is_somewhere_once(
        ranks in prop::collection::vec(
            (prop::collection::vec((0.0..1e9f64, 0.0..1.0f64, 0.0..1.0f64), 0..4), 0.0..1e9f64),
            0..20,
        )
    ) {
        let ranks: Vec<RankProfile> = ranks
            .into_iter()
            .map(|(objects, samples)| {
                let mut profile = RankProfile::default();
                for (number, (samples, known, remote)) in objects.into_iter().enumerate() {
                    let node_known = samples * known;
                    let used = ObjectUse { samples, node_known, remote: node_known * remote, cost_ns: 0.0 };
                    profile.total.add(&used);
                    profile.objects.insert(JobObject(number as u32), (used, "mixed"));
                }
                profile.total.samples += samples;
                profile
            })
            .collect();
        let found = group_ranks(&ranks);
        let members = found.groups.iter().flat_map(|group| &group.members);
        let mut all: Vec<usize> = members.chain(&found.too_few).copied().collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..ranks.len()).collect::<Vec<_>>());
    }
}
