//! Tests of the guard, with losses that were measured.

use super::*;

/// Thresholds with which one interval suffices.
const PERMISSIVE: GuardThresholds = GuardThresholds {
    intervals: 1,
    ..GuardThresholds::OURS
};

fn loss(share: f64) -> IntervalLoss {
    IntervalLoss {
        lost_ns: share * 1e9,
        cpu_ns: 1e9,
        period_ns: 1e6,
    }
}

/// A second with a measured share of lost time, in thousandths.
fn measured(share_per_1000: u32, period_ns: f64) -> IntervalLoss {
    IntervalLoss {
        period_ns,
        ..loss(f64::from(share_per_1000) / 1000.0)
    }
}

/// Number of intervals before the first move.
fn until_it_is_tried(guard: &mut Guard) -> u32 {
    let mut intervals = 0;
    while !matches!(guard.judge(loss(0.3), 100, 0), Verdict::Move(1..)) {
        intervals += 1;
    }
    intervals
}

#[test]
fn a_part_moves_first_and_all_of_it_when_that_did_no_harm() {
    let mut guard = Guard::new(PERMISSIVE);
    assert_eq!(guard.judge(loss(0.4), 0, 0), Verdict::Move(0));
    assert_eq!(guard.judge(loss(0.4), 1000, 0), Verdict::Move(250));
    assert_eq!(guard.stage(), Stage::Trying);
    assert_eq!(guard.judge(loss(0.4), 750, 0), Verdict::Move(750));
    assert_eq!(guard.stage(), Stage::Going);
    assert_eq!(guard.judge(loss(0.2), 20, 0), Verdict::Move(20));
}

#[test]
fn few_samples_say_nothing() {
    let mut guard = Guard::new(PERMISSIVE);
    let few = IntervalLoss {
        lost_ns: 1e7,
        cpu_ns: 2e7,
        period_ns: 1e6,
    };
    for _ in 0..20 {
        assert_eq!(guard.judge(few, 100, 0), Verdict::Move(0));
    }
    assert_eq!(guard.stage(), Stage::Measuring);
}

#[test]
fn harmful_moves_are_undone_and_pauses_double() {
    let mut guard = Guard::new(PERMISSIVE);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        pauses.push(until_it_is_tried(&mut guard));
        assert_eq!(guard.judge(loss(0.5), 100, 0), Verdict::MoveBack);
        assert_eq!(guard.stage(), Stage::Holding);
    }
    assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 640]);
    assert_eq!(until_it_is_tried(&mut guard), 640);
}

#[test]
fn a_process_is_left_alone_once_its_pages_are_back() {
    let mut guard = Guard::new(PERMISSIVE);
    guard.judge(loss(0.3), 100, 0);
    assert_eq!(guard.judge(loss(0.5), 100, 0), Verdict::MoveBack);
    for displaced in (1..30).rev() {
        assert_eq!(guard.judge(loss(0.5), 100, displaced), Verdict::MoveBack);
    }
    assert_eq!(until_it_is_tried(&mut guard), 10);
}

#[test]
fn harm_exceeds_both_noise_and_threshold() {
    for (after, samples, harm) in [
        (0.329, 100_000.0, false),
        (0.331, 100_000.0, true),
        (0.331, 1000.0, false),
        (0.40, 1000.0, true),
    ] {
        let mut guard = Guard::new(PERMISSIVE);
        let of = |share: f64| IntervalLoss {
            lost_ns: share * 1e9,
            cpu_ns: 1e9,
            period_ns: 1e9 / samples,
        };
        guard.judge(of(0.3), 1000, 0);
        let verdict = guard.judge(of(after), 10, 0);
        assert_eq!(verdict == Verdict::MoveBack, harm, "{after} of {samples}");
    }
}

#[test]
fn harm_that_comes_later_is_seen_too() {
    let mut guard = Guard::new(PERMISSIVE);
    guard.judge(loss(0.3), 1000, 0);
    guard.judge(loss(0.3), 750, 0);
    guard.judge(loss(0.3), 100, 0);
    let undone = (0..10).any(|_| guard.judge(loss(0.6), 1, 0) == Verdict::MoveBack);
    assert!(undone);
}

#[test]
fn a_process_whose_pages_no_longer_move_is_measured_anew() {
    // Nothing is requested, or what is requested can't move.
    for requested in [0, 10] {
        let mut guard = Guard::new(PERMISSIVE);
        for share in [0.3, 0.1] {
            guard.judge(loss(share), 10, 0);
            guard.note(10, true);
        }
        for _ in 0..5 {
            assert_eq!(guard.stage(), Stage::Going);
            guard.judge(loss(0.1), requested, 10);
            guard.note(requested, false);
        }
        assert_eq!(guard.stage(), Stage::Measuring);
        assert_eq!(guard.judge(loss(0.1), 400, 0), Verdict::Move(100));
        guard.note(100, true);
        // The baseline is the loss of 0.1.
        assert_eq!(guard.judge(loss(0.3), 300, 0), Verdict::MoveBack);
    }
}

/// Shares of lost time that were measured in an emulator on a busy machine, without harmful moves.
#[test]
fn noise_of_an_irregular_program_is_no_harm() {
    let mut guard = Guard::new(GuardThresholds::default());
    let shares = [
        86, 64, 85, 48, 72, 69, 72, 75, 90, 76, 51, 61, 74, 93, 78, 76, 78, 60, 55, 58, 103, 39,
        40, 64, 87, 34, 74, 83, 53, 72, 27, 47, 55, 64, 60, 63, 63, 48, 47, 51,
    ];
    for share in shares {
        let of = measured(share, 3e5);
        assert_ne!(guard.judge(of, 100, 0), Verdict::MoveBack, "{share}");
    }
    assert_eq!(guard.stage(), Stage::Going);
    // A loss far beyond the variation is noticed all the same.
    assert_eq!(guard.judge(loss(0.5), 100, 0), Verdict::MoveBack);
}

/// Shares of lost time that were measured in an emulator on a busy machine, while threads and pages moved together
/// and accesses became local.
#[test]
fn a_slow_change_while_pages_move_is_no_harm() {
    let mut guard = Guard::new(GuardThresholds::default());
    let shares = [
        727, 714, 705, 698, 713, 701, 700, 717, 695, 725, 751, 736, 717, 723, 762, 780,
    ];
    for share in shares {
        let of = measured(share, 4e5);
        assert_ne!(guard.judge(of, 100, 0), Verdict::MoveBack, "{share}");
        guard.note(100, true);
    }
    // Harm that grows with each interval is noticed before it is large.
    let undone = (1..=3)
        .any(|step| guard.judge(loss(0.78 + 0.05 * f64::from(step)), 100, 0) == Verdict::MoveBack);
    assert!(undone);
}

/// Shares of lost time and samples that were measured in an emulator: the program filled its arrays until the trial,
/// which moved one page, and then used them, while accesses became local.
#[test]
fn a_phase_that_begins_with_the_trial_is_no_harm() {
    let mut guard = Guard::new(GuardThresholds::default());
    let shares = [
        346, 237, 412, 516, 454, 591, 564, 549, 618, 590, 431, 483, 619, 537, 554, 559, 550, 556,
        609, 623, 599, 592, 563, 612,
    ];
    let samples = [
        398, 692, 2116, 3536, 2871, 4116, 4717, 3858, 4614, 4946, 3942, 3913, 7064, 6099, 5046,
        6005, 6466, 6127, 3987, 4576, 6404, 5914, 4634, 6836,
    ];
    for (share, samples) in shares.into_iter().zip(samples) {
        let of = measured(share, 1e9 / f64::from(samples));
        assert_ne!(guard.judge(of, 100, 0), Verdict::MoveBack, "{share}");
        guard.note(100, true);
    }
    assert_eq!(guard.stage(), Stage::Going);
    let undone = (1..=4).any(|_| guard.judge(loss(0.85), 100, 0) == Verdict::MoveBack);
    assert!(undone);
}

#[test]
fn what_a_program_loses_after_a_trial_without_moves_is_its_own() {
    let mut guard = Guard::new(PERMISSIVE);
    assert_eq!(guard.judge(loss(0.1), 100, 0), Verdict::Move(64));
    guard.note(64, false);
    assert_eq!(guard.judge(loss(0.6), 0, 0), Verdict::Move(0));
    assert_eq!(guard.stage(), Stage::Measuring);
    assert_eq!(guard.judge(loss(0.6), 100, 0), Verdict::Move(64));
}

#[test]
fn a_process_is_measured_before_pages_move() {
    let mut guard = Guard::new(GuardThresholds::default());
    for _ in 0..GuardThresholds::default().intervals - 1 {
        assert_eq!(guard.judge(loss(0.4), 100, 0), Verdict::Move(0));
    }
    assert_eq!(guard.judge(loss(0.4), 100, 0), Verdict::Move(64));
}
