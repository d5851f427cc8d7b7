//! Bytes on links and numbers of outstanding misses, compared with closed formulas.

use proptest::prelude::*;

use super::*;

/// A square of links 0-1-3-2-0, over which a byte takes a nanosecond.
const SQUARE: &str = "\
[[link]]
nodes = [0, 1]
bandwidth_bytes_per_s = 1e9
[[link]]
nodes = [0, 2]
bandwidth_bytes_per_s = 1e9
[[link]]
nodes = [1, 3]
bandwidth_bytes_per_s = 1e9
[[link]]
nodes = [2, 3]
bandwidth_bytes_per_s = 1e9
";
const PACKETS: &str = "\
[coherence]
request_bytes = 8
probe_bytes = 8
probe_response_bytes = 4
data_header_bytes = 4
done_bytes = 4
";

/// Bytes over all links for misses on the square.
fn bytes(outcome: &Outcome) -> f64 {
    outcome.link_use.iter().sum::<f64>() * outcome.time_ns
}

/// Bytes over all links for one miss of each node's CPU to each node's memory, grouped by the length of the route.
fn by_distance(machine: &Machine, miss: Miss) -> [Vec<f64>; 3] {
    let mut found = [const { Vec::new() }; 3];
    for cpu in 0..4_u32 {
        for page in 0..4_u32 {
            let page_index = PageIndex(page);
            let miss = Miss {
                page: page_index,
                ..miss
            };
            let trace = each(4, &[4 * cpu], &[miss, load(1000, cpu)]);
            let both = bytes(&one(&trace, machine, job("round-robin", &[])));
            let trace = each(4, &[4 * cpu], &[load(1000, cpu)]);
            let own = bytes(&one(&trace, machine, job("round-robin", &[])));
            found[(cpu ^ page).count_ones() as usize].push(both - own);
        }
    }
    found
}

fn all_are(found: &[f64], expected: f64) {
    for &bytes in found {
        assert!((bytes - expected).abs() < 1e-6, "{bytes} is not {expected}");
    }
}

#[test]
fn without_a_protocol_links_carry_data() {
    let machine = machine(4, &format!("{CLOCK}{SQUARE}"));
    let found = by_distance(&machine, load(0, 0));
    for (links, bytes) in found.iter().enumerate() {
        all_are(bytes, 64.0 * links as f64);
    }
}

#[test]
fn a_read_sends_a_request_probes_answers_a_line_and_an_end() {
    let machine = machine(4, &format!("{CLOCK}{SQUARE}{PACKETS}"));
    let found = by_distance(&machine, load(0, 0));
    for (links, bytes) in found.iter().enumerate() {
        // Probes are sent over three links, and the answers of three nodes over four.
        let both_ways = 8.0 + 64.0 + 4.0 + 4.0;
        all_are(bytes, 3.0 * 8.0 + 4.0 * 4.0 + both_ways * links as f64);
    }
    let upgrade = Miss {
        kind: AccessKind::Store,
        served: Served::Upgrade,
        ..load(0, 0)
    };
    for (links, bytes) in by_distance(&machine, upgrade).iter().enumerate() {
        all_are(bytes, 24.0 + 16.0 + (8.0 + 4.0 + 4.0) * links as f64);
    }
    let write_back = Miss {
        kind: AccessKind::Store,
        served: Served::WriteBack,
        ..load(0, 0)
    };
    for (links, bytes) in by_distance(&machine, write_back).iter().enumerate() {
        all_are(bytes, (8.0 + 64.0 + 4.0) * links as f64);
    }
}

#[test]
fn the_link_with_most_packets_limits_memory_on_one_node() {
    let many = format!("{CLOCK}outstanding_misses = 20\nwindow_instructions = 1000\n");
    let misses = [load(0, 0); 1000];
    let cpus = [0, 4, 8, 12];
    let time = |more: &str| {
        let machine = machine(4, &format!("{many}{SQUARE}{more}"));
        one(&each(1, &cpus, &misses), &machine, job("round-robin", &[])).time_ns
    };
    // Lines for nodes 1 and 3 go from node 0 to node 1.
    near(time(""), 1000.0 * 2.0 * 64.0, 0.01);
    // With packets, the link carries two lines with headers, probes of four misses, and three answers.
    near(
        time(PACKETS),
        1000.0 * (2.0 * 68.0 + 4.0 * 8.0 + 3.0 * 4.0),
        0.01,
    );
}

fn dependent(instructions: u32, page: u32, depends_on: u16) -> Miss {
    Miss {
        depends_on,
        ..load(instructions, page)
    }
}

/// Time of a CPU that may have eight outstanding misses and a large window.
fn time_ahead(misses: &[Miss]) -> f64 {
    let ahead = machine(
        1,
        &format!("{CLOCK}outstanding_misses = 8\nwindow_instructions = 100000\n"),
    );
    one(&each(1, &[0], misses), &ahead, job("first-touch", &[])).time_ns
}

#[test]
fn a_list_has_one_miss_under_way_and_an_array_as_many_as_there_is_room_for() {
    for count in [2_u32, 7, 50] {
        let list = vec![dependent(10, 0, 10); count as usize];
        assert_eq!(time_ahead(&list), 10.0 + 100.0 * f64::from(count));
        // With a miss every 10 ns that takes 100 ns, ten would be outstanding, but only eight may be.
        let array = vec![load(10, 0); count as usize];
        let rounds = f64::from((count - 1) / 8);
        let last = f64::from((count - 1) % 8 + 1);
        assert_eq!(time_ahead(&array), 100.0 * rounds + 10.0 * last + 100.0);
        // Of two interleaved lists, two misses are outstanding.
        let lists = vec![dependent(10, 0, 20); 2 * count as usize];
        assert_eq!(time_ahead(&lists), 20.0 + 100.0 * f64::from(count));
    }
    // A dependency on a miss that has completed causes no wait.
    assert_eq!(time_ahead(&[load(10, 0), dependent(30, 0, 7)]), 140.0);
}

proptest! {
    #[test]
    fn dependent_misses_take_no_less_time(
        misses in proptest::collection::vec((0_u32..60, 0_usize..6), 1..80),
    ) {
        let mut position = 0;
        let mut positions = Vec::new();
        let mut dependences = Vec::new();
        for &(instructions, back) in &misses {
            position += instructions;
            let source = positions.len().checked_sub(back).and_then(|at| positions.get(at));
            let depends_on = source.map_or(0, |source| (position - source) as u16);
            dependences.push(dependent(instructions, 0, depends_on));
            positions.push(position);
        }
        let independent: Vec<Miss> = misses.iter().map(|miss| load(miss.0, 0)).collect();
        let (without, with) = (time_ahead(&independent), time_ahead(&dependences));
        prop_assert!(with >= without, "{with} {without}");
        prop_assert!(with <= f64::from(position) + 100.0 * misses.len() as f64);
    }
}

#[test]
fn prefetched_lines_have_arrived_when_the_program_uses_them() {
    let processor = format!("{CLOCK}outstanding_misses = 8\nwindow_instructions = 40\n");
    let stream: Vec<Miss> = (0..10)
        .map(|line| Miss {
            offset: 64 * line,
            ..load(50, 0)
        })
        .collect();
    let time = |more: &str| {
        let machine = machine(1, &format!("{processor}{more}"));
        one(&each(1, &[0], &stream), &machine, job("first-touch", &[])).time_ns
    };
    // The CPU runs 40 instructions ahead of a miss, waits for it, and then has ten instructions to the next.
    assert_eq!(time(""), 50.0 + 9.0 * 110.0 + 100.0);
    // From the fourth line on, each line was requested two misses before.
    let ahead = "[prefetcher]\nstreams = 1\nsteps_ahead = 2\nstride_lines_max = 1\n";
    assert_eq!(time(ahead), 50.0 + 3.0 * 110.0 + 6.0 * 50.0);
}

#[test]
fn lines_fetched_ahead_count_among_the_outstanding_misses() {
    // The lines of the stream are requested sixteen ahead; the controller takes longer for a line than the CPU.
    let stream: Vec<Miss> = (0..60)
        .map(|line| Miss {
            offset: 64 * line,
            ..load(50, 0)
        })
        .collect();
    for outstanding in [2, 4] {
        let figures = format!(
            "{CLOCK}outstanding_misses = {outstanding}\nwindow_instructions = 40\n\
             [memory]\nbandwidth_bytes_per_s = 1e9\n\
             [prefetcher]\nstreams = 1\nsteps_ahead = 16\nstride_lines_max = 1\n"
        );
        let machine = machine(1, &figures);
        let outcome = one(&each(1, &[0], &stream), &machine, job("first-touch", &[]));
        // With this many outstanding, each line waits for at most this many others.
        let latency = outcome.local_latency_ns.expect("local misses");
        let most = 100.0 + 64.0 * f64::from(outstanding);
        assert!(latency <= most, "{latency} with {outstanding} under way");
    }
}
