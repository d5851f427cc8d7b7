//! Times of misses compared with closed formulas: latencies, controllers, links, directories.

use super::*;

#[test]
fn an_unloaded_read_costs_the_matrix_entry() {
    for (name, local, remote) in [
        ("flash-8", 300.0, 1200.0),
        ("now-8", 300.0, 3000.0),
        ("flash-8-contended", 270.0, 1330.0),
    ] {
        let machine = preset(name).expect(name);
        let trace = touched_by_first(1, vec![(5, vec![load(10, 0), load(0, 0)])]);
        let outcome = one(&trace, &machine, job("first-touch", &[]));
        assert_eq!(outcome.remote_latency_ns, Some(remote), "{name}");
        assert_eq!(outcome.split.remote_stall_ns, 2.0 * remote);
        near(outcome.split.compute_ns, 10.0 / 0.3, 1e-6);
        let outcome = one(
            &each(1, &[3], &[load(0, 0)]),
            &machine,
            job("first-touch", &[]),
        );
        assert_eq!(
            (outcome.local_latency_ns, outcome.remote()),
            (Some(local), 0),
            "{name}"
        );
    }
}

#[test]
fn every_pair_of_nodes_has_its_entry() {
    let machine = machine(4, CLOCK);
    for cpu in 0..4u32 {
        for page in 0..4u32 {
            let outcome = one(
                &each(4, &[4 * cpu], &[load(0, page)]),
                &machine,
                job("round-robin", &[]),
            );
            let expected =
                machine.latency_ns.as_ref().expect("latencies")[cpu as usize][page as usize];
            assert_eq!(Some(outcome.time_ns), expected);
        }
    }
}

#[test]
fn saturating_threads_get_the_controllers_bandwidth() {
    // The controller serves a line of 64 bytes in 20 ns at 3.2 GB/s, for sixteen CPUs that wait 100 to 230 ns each.
    let machine = machine(
        4,
        &format!("{CLOCK}[memory]\nbandwidth_bytes_per_s = 3.2e9\n"),
    );
    let cpus: Vec<u32> = (0..16).collect();
    let outcome = one(
        &each(1, &cpus, &[load(0, 0); 1000]),
        &machine,
        job("round-robin", &[]),
    );
    near(outcome.time_ns, 16_000.0 * 20.0, 0.001);
    assert_eq!(outcome.controller_load, [16_000, 0, 0, 0]);
    assert!((outcome.controller_imbalance() - 3f64.sqrt()).abs() < 1e-9);
}

#[test]
fn saturated_links_give_their_bandwidth() {
    let link = "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1.6e9\n";
    let machine = machine(2, &format!("{CLOCK}{link}"));
    let cpus = [4, 5, 6, 7, 4, 5, 6, 7];
    let outcome = one(
        &each(1, &cpus[..4], &[load(0, 0); 1000]),
        &machine,
        job("round-robin", &[]),
    );
    // Four CPUs that wait at least 200 ns per line cannot saturate a link with 40 ns per line…
    near(outcome.time_ns, 1000.0 * 200.0, 0.001);
    let many = format!("{CLOCK}outstanding_misses = 10\n{link}");
    let machine = self::machine(2, &many);
    let outcome = one(
        &each(1, &cpus[..4], &[load(0, 0); 1000]),
        &machine,
        job("round-robin", &[]),
    );
    // …but with ten outstanding misses each they can.
    near(outcome.time_ns, 4000.0 * 40.0, 0.01);
    let (busy, idle) = (
        outcome.link_use[0].max(outcome.link_use[1]),
        outcome.link_use[0].min(outcome.link_use[1]),
    );
    near(busy, 1.0, 0.01);
    assert_eq!(idle, 0.0, "data goes one way");
}

#[test]
fn waiting_at_half_load_is_that_of_m_d_1() {
    // One thread that never waits for its misses makes Poisson arrivals, with exponential gaps of twice the service
    // time. The M/D/1 wait is ρ/(2(1−ρ)), half a service time.
    let more = format!(
        "{CLOCK}outstanding_misses = 100000\nwindow_instructions = 4000000000\n[memory]\nbandwidth_bytes_per_s = 3.2e7\n"
    );
    let machine = machine(1, &more);
    let service_ns = 2000.0;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut gap = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - uniform).ln() * 2.0 * service_ns) as u32
    };
    let misses: Vec<Miss> = (0..200_000).map(|_| load(gap(), 0)).collect();
    let outcome = one(&each(1, &[0], &misses), &machine, job("first-touch", &[]));
    let wait = outcome.local_latency_ns.expect("misses") - 100.0;
    near(wait, service_ns / 2.0, 0.05);
}

#[test]
fn a_directory_that_is_occupied_delays_all() {
    let machine = machine(2, &format!("{CLOCK}[memory]\ndirectory_ns = 50\n"));
    // Each local request of four CPUs takes the directory 50 ns, and 4 × 50 exceeds the latency of 100 ns.
    let outcome = one(
        &each(1, &[0, 1, 2, 3], &[load(0, 0); 1000]),
        &machine,
        job("first-touch", &[]),
    );
    near(outcome.time_ns, 4000.0 * 50.0, 0.001);
    // Upgrades occupy the directory, too.
    let upgrade = Miss {
        served: Served::Upgrade,
        ..store(0, 0)
    };
    let outcome = one(
        &each(1, &[0, 1, 2, 3], &[upgrade; 1000]),
        &machine,
        job("first-touch", &[]),
    );
    near(outcome.time_ns, 4000.0 * 50.0, 0.001);
    assert_eq!(outcome.controller_load, [0, 0], "no data moves");
}
