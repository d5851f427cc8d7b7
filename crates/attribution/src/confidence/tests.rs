use nearpage_recording::{ObjectId, ObjectKind, RateChange, SampleCounts, Source};
use proptest::prelude::*;

use super::*;
use crate::{
    Affinity, InstanceUse, ObjectName, OperationTotals, Totals, find_pattern,
    pattern::tests::{sample, team},
    random::Random,
};

const MIB: u64 = 1 << 20;

/// An attribution of one object with this affinity.
fn attribution(affinity: Affinity, size_bytes: u64, threads: u32) -> Attribution {
    let teams = team(threads);
    let group = ObjectGroup {
        kind: ObjectKind::Heap,
        name: ObjectName::Other("array".to_owned()),
        size_bytes,
        instances: 1,
        sibling: None,
        is_shared_memory: false,
        listed_instances: vec![ObjectId(0)],
        loads: OperationTotals {
            count: 1.0,
            cost_ns: 1.0,
            ..OperationTotals::default()
        },
        stores: OperationTotals::default(),
        threads: Vec::new(),
        hot: Vec::new(),
        pattern: find_pattern(&affinity, size_bytes, &teams),
        affinity,
        first_touches: Vec::new(),
        touchers: Vec::new(),
        uses: Vec::new(),
    };
    Attribution {
        counts: SampleCounts::default(),
        totals: Totals::default(),
        objects: vec![group],
        threads: Vec::new(),
        teams,
        page_bytes: 4096,
    }
}

/// Thread that uses an offset; `kind` selects the distribution.
fn user(kind: usize, offset: u64, size: u64, threads: u64, random: &mut Random) -> u32 {
    let share = |offset: u64| (offset * threads / size).min(threads - 1) as u32;
    match kind {
        0 => share(offset),
        1 => share(size - 1 - offset),
        2 => (offset / (MIB / 4) % threads) as u32,
        3 => 1,
        _ => random.below(threads) as u32,
    }
}

fn of_kind(kind: usize, samples: u64, seed: u64) -> Attribution {
    let (size, threads) = (16 * MIB, 4);
    let mut random = Random(seed);
    let affinity = sample(size, samples, &mut random, |offset, random| {
        user(kind, offset, size, threads, random)
    });
    attribution(affinity, size, threads as u32)
}

fn share(attribution: &Attribution) -> f64 {
    let found = attribution.pattern_confidence();
    found[0].expect("it has all of the cost").share
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn confidence_is_a_share_and_repeats(kind in 0usize..5, samples in 1u64..400, seed in any::<u64>()) {
        let found = of_kind(kind, samples, seed).pattern_confidence();
        let confidence = found[0].expect("it has all of the cost");
        prop_assert!((0.0..=1.0).contains(&confidence.share), "{confidence:?}");
        prop_assert_eq!(confidence.samples, samples);
        prop_assert_eq!(found, of_kind(kind, samples, seed).pattern_confidence());
    }
}

#[test]
fn more_samples_do_not_lower_the_confidence() {
    for kind in 0..4 {
        let median = |samples: u64| {
            let shares = (0..15).map(|seed| share(&of_kind(kind, samples, seed)));
            let mut shares: Vec<f64> = shares.collect();
            shares.sort_by(f64::total_cmp);
            shares[7]
        };
        let by_samples = [20, 80, 320, 1_280].map(median);
        // A median of 15 shares, each of 20 resamples, varies by one or two resamples.
        let is_lower = |pair: &[f64]| pair[1] < pair[0] - 0.1;
        assert!(
            !by_samples.windows(2).any(is_lower),
            "kind {kind}: {by_samples:?}"
        );
        assert!(by_samples[3] >= 0.95, "kind {kind}: {by_samples:?}");
    }
}

#[test]
fn random_accesses_are_no_certain_block() {
    let is_wrong = |&seed: &u64| {
        let samples = 8 + 8 * (seed % 64);
        let found = of_kind(4, samples, seed);
        let is_shared = matches!(
            found.objects[0].pattern,
            Pattern::Shared | Pattern::ReadShared | Pattern::Unknown
        );
        !is_shared && share(&found) >= Confidence::SURE
    };
    let wrong = (0..200).filter(is_wrong).count();
    assert!(wrong <= 10, "{wrong} of 200");
}

#[test]
fn an_object_of_one_thread_is_certain() {
    assert_eq!(share(&of_kind(3, 40, 1)), 1.0);
}

#[test]
fn patterns_of_few_samples_are_not_certain() {
    assert_eq!(share(&of_kind(0, 5, 1)), 0.0);
}

#[test]
fn instances_that_belong_to_threads_in_turn_are_certain_with_many_samples() {
    let uses = |samples: f64| -> Vec<InstanceUse> {
        let of = |object: u32| InstanceUse {
            object: ObjectId(100 + object),
            thread: ThreadIndex(object / 16),
            accesses: samples,
            cost_ns: samples,
            samples,
        };
        (0..64).map(of).collect()
    };
    let of = |samples: f64| {
        let mut attribution = of_kind(4, 64, 1);
        let group = &mut attribution.objects[0];
        group.uses = uses(samples);
        group.pattern = crate::summary::pattern_of(
            group,
            &attribution.teams,
            crate::pattern::Effort::Recording,
        );
        assert!(
            matches!(group.pattern, Pattern::PrivateEach),
            "{:?}",
            group.pattern
        );
        share(&attribution)
    };
    assert_eq!(of(2.0), 1.0);
}

#[test]
fn small_objects_are_not_resampled() {
    let mut attribution = of_kind(0, 100, 1);
    let mut large = attribution.objects[0].clone();
    large.loads.cost_ns = 1_000.0;
    attribution.objects.push(large);
    let found = attribution.pattern_confidence();
    assert_eq!((found[0].is_none(), found[1].is_some()), (true, true));
}

fn metadata(rates: &[(u64, f64)]) -> Metadata {
    let change = |&(time_ns, rate_hz): &(u64, f64)| RateChange { time_ns, rate_hz };
    Metadata {
        begin_ns: 1_000_000_000,
        end_ns: 3_000_000_000,
        rate_hz: 1_000.0,
        rates: rates.iter().map(change).collect(),
        ..Metadata::begun(Source::Clock, std::time::UNIX_EPOCH, Vec::new())
    }
}

#[test]
fn the_mean_rate_is_that_of_the_whole_recording() {
    let of = |rates: &[(u64, f64)]| Sampling::of(&metadata(rates)).expect("samples");
    assert_eq!(of(&[]).rate_hz, 1_000.0);
    let falling = of(&[(1_000_000_000, 1_000.0), (1_500_000_000, 200.0)]);
    assert_eq!((falling.seconds, falling.rate_hz), (2.0, 400.0));
}

#[test]
fn the_remedy_is_as_many_samples_as_the_least_sampled_object_lacks() {
    let sampling = Sampling {
        seconds: 2.0,
        rate_hz: 400.0,
    };
    let of = |samples, share| Confidence { samples, share };
    let remedy = |findings: &[Confidence]| sampling.remedy(findings, "place");
    assert_eq!(remedy(&[of(3, 1.0)]), None);
    assert_eq!(
        remedy(&[of(100, 0.2), of(900, 0.3), of(3, 1.0)]).as_deref(),
        Some(
            "2 objects have too few samples to be sure of their places: record a run of 8 s, or use --rate 1600"
        )
    );
}

#[test]
fn advice_never_asks_for_hundreds_of_times_the_recorded_time() {
    let sampling = Sampling {
        seconds: 2.0,
        rate_hz: 400.0,
    };
    let of = |samples| Confidence {
        samples,
        share: 0.2,
    };
    assert_eq!(
        sampling.remedy(&[of(1)], "pattern").as_deref(),
        Some(
            "1 object has too few samples to be sure of its pattern, and a run 10 times as long would not give enough, either"
        )
    );
    assert_eq!(
        sampling.remedy(&[of(40), of(39)], "pattern").as_deref(),
        Some(
            "1 object has too few samples to be sure of its pattern: record a run of 20 s, or use --rate 4000; 1 object \
             has too few samples to be sure of its pattern, and a run 10 times as long would not give enough, either"
        )
    );
}

#[test]
fn traces_have_all_accesses() {
    let tracing = nearpage_recording::trace::Tracing::default();
    let trace = Metadata {
        tracing: Some(tracing),
        ..metadata(&[])
    };
    assert_eq!(Sampling::of(&trace), None);
}
