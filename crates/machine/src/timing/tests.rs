use super::*;

fn machine(more: &str) -> Machine {
    let nodes: String = (0..4)
        .map(|id| format!("[[node]]\nid = {id}\ncpus = \"{id}\"\n"))
        .collect();
    let text = format!("name = \"four\"\npage_bytes = 4096\n{nodes}{more}");
    Machine::from_toml(&text, "four").expect("reads")
}

/// A square of links 0-1-3-2-0.
const SQUARE: &str = "\
[[link]]
nodes = [0, 1]
bandwidth_bytes_per_s = 1e9
[[link]]
nodes = [1, 3]
bandwidth_bytes_per_s = 1e9
[[link]]
nodes = [2, 3]
bandwidth_bytes_per_s = 1e9
[[link]]
nodes = [0, 2]
bandwidth_bytes_per_s = 1e9
";

fn way(timing: &Timing, from: usize, to: usize) -> Vec<(usize, usize)> {
    let links = timing.routes[from][to].iter();
    links
        .map(|&link| (timing.links[link as usize].0, timing.links[link as usize].1))
        .collect()
}

#[test]
fn routes_are_shortest_or_given() {
    let timing = machine(SQUARE).timing().expect("timing");
    assert_eq!(way(&timing, 0, 1), [(0, 1)]);
    assert_eq!(way(&timing, 0, 3), [(0, 1), (1, 3)]);
    assert_eq!(way(&timing, 0, 0), []);
    let given = format!("{SQUARE}[[route]]\nnodes = [0, 2, 3]\n");
    let timing = machine(&given).timing().expect("timing");
    assert_eq!(way(&timing, 0, 3), [(0, 2), (2, 3)]);
    assert_eq!(way(&timing, 3, 0), [(3, 1), (1, 0)]);
}

#[test]
fn an_island_is_named() {
    let fault = machine("[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1\n").timing();
    assert_eq!(
        fault.expect_err("no way").to_string(),
        "there is no way over the links from node 0 to node 2"
    );
}

#[test]
fn defaults_are_listed() {
    let timing = machine("").timing().expect("timing");
    assert_eq!(timing.latency_ns[0], [100.0, 200.0, 200.0, 200.0]);
    assert_eq!(timing.moves, MoveCost::Fixed(10_048.0));
    assert!(
        timing
            .assumed
            .contains(&"10 µs for each page moved".to_owned())
    );
    assert_eq!(timing.assumed.len(), 4, "{:?}", timing.assumed);
    let given = "[processor]\nclock_ghz = 0.3\ncycles_per_instruction = 1\n[moves]\nfixed_ns = 1e6\n\
            [[tlb]]\nlevel = 1\nkind = \"unified\"\nentries = 64\nreserved = 8\nmiss_cycles = 15\n";
    let timing = machine(given).timing().expect("timing");
    assert_eq!(timing.assumed.len(), 1, "{:?}", timing.assumed);
    assert!((timing.tlb_miss_ns - 50.0).abs() < 1e-9);
    assert_eq!(timing.moves, MoveCost::Fixed(1e6));
}
