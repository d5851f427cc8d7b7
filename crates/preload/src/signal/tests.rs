use super::*;

#[test]
fn gaps_are_whole_ticks_with_the_right_mean() {
    const TICK_NS: u64 = 4_000_000;
    for period_ns in [
        4_000_000,
        4_200_000,
        5_000_000,
        8_000_000,
        9_999_999,
        40_000_000,
        1 << 40,
    ] {
        let gaps: Vec<u64> = (0..20_000)
            .map(|_| gap_of(period_ns, TICK_NS, [next_random(), next_random()]) + TICK_NS / 2)
            .collect();
        let ticks: Vec<u64> = gaps.iter().map(|gap| gap / TICK_NS).collect();
        assert!(gaps.iter().all(|gap| gap % TICK_NS == 0 && *gap > 0));
        assert!(
            ticks
                .iter()
                .all(|ticks| *ticks <= 2 + 3 * period_ns / TICK_NS / 2)
        );
        let mean = gaps.iter().map(|gap| *gap as f64).sum::<f64>() / gaps.len() as f64;
        // Twenty standard deviations of the mean of a uniform spread over one period.
        let error = (mean / period_ns as f64 - 1.0).abs();
        assert!(
            error < 20.0 * 0.6 / (gaps.len() as f64).sqrt(),
            "{period_ns}: {mean}"
        );
    }
}

#[test]
fn time_in_user_mode_is_at_most_the_time_on_a_cpu() {
    let at = |user_ns, kernel_ns| CpuUsage { user_ns, kernel_ns };
    let since = |now: CpuUsage| now.user_ns_since(&at(1_000, 400));
    assert_eq!(since(at(1_000, 400)), 0);
    assert_eq!(since(at(9_000, 400)), 8_000);
    assert_eq!(since(at(9_000, 900)), 8_000);
    assert_eq!(since(at(1_000, 900)), 0);
    // A tick has changed how the earlier time is divided.
    assert_eq!(since(at(2_000, 300)), 900);
    assert_eq!(since(at(900, 2_000)), 0);
    assert_eq!(since(at(0, 0)), 0);
    assert_eq!(since(at(u64::MAX, u64::MAX)), u64::MAX - 1_400);
}

#[test]
fn a_thread_uses_time() {
    let before = CpuUsage::now();
    let mut now = before;
    while now.user_ns + now.kernel_ns == before.user_ns + before.kernel_ns {
        now = CpuUsage::now();
    }
    assert!(now.user_ns + now.kernel_ns > before.user_ns + before.kernel_ns);
}

#[test]
fn sets_to_wait_for_lose_our_signal_alone() {
    SIGNAL.store(60, Ordering::Release);
    assert_eq!(without_ours([1 << 58; 16]), None);
    let all = without_ours([u64::MAX; 16]).unwrap();
    assert_eq!(all[0], !(1 << 59));
    assert_eq!(all[1..], [u64::MAX; 15]);
    SIGNAL.store(0, Ordering::Release);
    assert_eq!(without_ours([u64::MAX; 16]), None);
}
