use super::*;

#[test]
fn the_chain_is_one_cycle() {
    let chain = chain();
    let base = chain.as_ptr() as usize;
    let (mut line, mut steps) = (0, 0);
    loop {
        line = (chain[line][0] - base) / LINE_BYTES;
        steps += 1;
        if line == 0 {
            break;
        }
    }
    assert_eq!(steps, chain.len());
}

#[test]
fn the_majority_decides() {
    let side = |begin, load, after| Tally { begin, load, after }.calibration().side;
    assert_eq!(side(1, 2, 90), SkidSide::Before);
    assert_eq!(side(1, 90, 2), SkidSide::At);
    assert_eq!(side(90, 1, 2), SkidSide::Block);
    assert_eq!(side(0, 0, 0), SkidSide::Before);
    assert_eq!("block".parse(), Ok(SkidSide::Block));
}

fn at_cost(sample_cost_ns: Option<f64>) -> Calibration {
    Calibration {
        sample_cost_ns,
        ..Tally::default().calibration()
    }
}

#[test]
fn the_default_rate_is_the_largest_within_the_share() {
    let rate = |cost_ns| at_cost(Some(cost_ns)).default_rate_hz();
    let share = |rate, cost_ns| rate * cost_ns * PROGRAM_OVER_LOOP / 1e9;
    // Bounded for very cheap and very expensive samples.
    assert_eq!(rate(200.0), 997.0);
    assert_eq!(rate(1e6), 97.0);
    for cost_ns in (3_000..=25_000).map(f64::from) {
        let chosen = rate(cost_ns);
        assert!(share(chosen, cost_ns) <= DEFAULT_COST_SHARE);
        let dearer = DEFAULT_RATES_HZ.iter().find(|rate| **rate > chosen);
        assert!(dearer.is_none_or(|rate| share(*rate, cost_ns) > DEFAULT_COST_SHARE));
    }
    assert_eq!(at_cost(None).default_rate_hz(), UNMEASURED_RATE_HZ);
    const { assert!(UNMEASURED_RATE_HZ * 36_000.0 / 1e9 <= DEFAULT_COST_SHARE) };
    assert!(DEFAULT_RATES_HZ.is_sorted() && DEFAULT_RATES_HZ.contains(&UNMEASURED_RATE_HZ));
    for rate in DEFAULT_RATES_HZ.map(|rate| rate as u32) {
        assert!((2..rate).all(|divisor| rate % divisor != 0), "{rate}");
    }
}

#[test]
fn a_calibration_reads_well() {
    let mut calibration = Tally {
        begin: 0,
        load: 2,
        after: 62,
    }
    .calibration();
    let unmeasured = "before (97 % of 64 samples), cost of a sample not measured";
    assert_eq!(calibration.to_string(), unmeasured);
    calibration.sample_cost_ns = Some(8_340.0);
    assert_eq!(
        calibration.to_string(),
        "before (97 % of 64 samples), 8.34 µs a sample"
    );
}
