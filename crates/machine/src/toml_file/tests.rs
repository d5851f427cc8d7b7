use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::{
    Cache, CacheKind, Coherence, CpuKind, Device, DeviceKind, Energy, Link, LoadedLatency,
    MemoryCache, MemoryKind, MoveSteps, Moves, Node, NodeId, PRESET_NAMES, Prefetcher, Route, Tlb,
    TransparentHugePages, preset,
};

const TWO_NODES: &str = "\
name = \"two\"
page_bytes = 4096
distance = [[10, 20], [20, 10]]
[[node]]
id = 0
cpus = \"0-1\"
[[node]]
id = 1
cpus = [2, 3]
";

fn fault(from: &str, to: &str) -> String {
    assert!(TWO_NODES.contains(from), "{from}");
    Machine::from_toml(&TWO_NODES.replace(from, to), "two.toml")
        .expect_err(to)
        .to_string()
}

#[test]
fn reads_cpus_as_text_and_as_numbers() {
    let machine = Machine::from_toml(TWO_NODES, "two.toml").expect("reads");
    assert_eq!(machine.nodes[0].cpus, [CpuId(0), CpuId(1)]);
    assert_eq!(machine.nodes[1].cpus, [CpuId(2), CpuId(3)]);
}

/// Text that is replaced in [`TWO_NODES`], the replacement, and the expected message.
const FAULTS: [(&str, &str, &str); 19] = [
    ("[20, 10]]", "[20, 10]", "two.toml: line 4: "),
    (
        "page_bytes = 4096",
        "pages = 4096",
        "two.toml: line 2: unknown field `pages`",
    ),
    (
        "page_bytes = 4096",
        "page_bytes = 5000",
        "two.toml: `page_bytes` is 5000; expected a power of two",
    ),
    (
        "page_bytes = 4096",
        "page_bytes = 4611686018427387904",
        "two.toml: `page_bytes` is 4611686018427387904; expected a power of two, in bytes, from 4096 to 16 GiB",
    ),
    (
        "[20, 10]]",
        "[20, 10], [1, 1]]",
        "two.toml: `distance` has 3 rows; expected 2, one for each node",
    ),
    (
        "[20, 10]",
        "[20]",
        "two.toml: row 1 of `distance` has 1 number; expected 2",
    ),
    (
        "[10, 20]",
        "[10, 9]",
        "two.toml: `distance`[0][1] is 9; the least there is, a node's own, is 10",
    ),
    (
        "[10, 20]",
        "[15, 12]",
        "two.toml: `distance`[0][1] is 12, nearer than the node itself (15)",
    ),
    ("id = 1", "id = 0", "two.toml: node 0 is there twice"),
    (
        "[2, 3]",
        "[1, 3]",
        "two.toml: CPU 1 is on node 0 and on node 1; a CPU is on one node",
    ),
    (
        "\"0-1\"",
        "\"0-\"",
        "expected a list of CPU numbers such as `0,2-3`, found ``",
    ),
    (
        "distance = [[10, 20], [20, 10]]",
        "latency_ns = [[1, 2], [0, 1]]",
        "`latency_ns`[1][0] is 0; expected a positive number",
    ),
    ("[2, 3]", "[99999999]", "CPU 99999999 is beyond 65535"),
    (
        "[20, 10]]",
        "[-20, 10]]",
        "two.toml: line 3: `distance`[1][0] is -20; the least there is, a node's own, is 10",
    ),
    (
        "distance = [[10, 20], [20, 10]]",
        "latency_ns = [[1, -2], [2, 1]]",
        "two.toml: `latency_ns`[0][1] is -2; expected a positive number",
    ),
    (
        "distance = [[10, 20], [20, 10]]",
        "latency_ns = [[nan, nan], [nan, nan]]",
        "two.toml: `latency_ns` has no figure in it; leave it out",
    ),
    (
        "distance = [[10, 20], [20, 10]]",
        "bandwidth.read_bytes_per_s = [[1, 0], [2, 1]]",
        "two.toml: `bandwidth.read_bytes_per_s`[0][1] is 0; expected a positive number",
    ),
    (
        "distance = [[10, 20], [20, 10]]",
        "link = [{ nodes = [0, 1, 0], bandwidth_bytes_per_s = 1 }]",
        "two.toml: line 3: a link has two `nodes`, found 3",
    ),
    (
        "distance = [[10, 20], [20, 10]]",
        "loaded_latency = [{ node = 3, bandwidth_bytes_per_s = 1, latency_ns = 1 }]",
        "two.toml: a loaded latency names node 3, which is not there",
    ),
];

#[test]
fn messages_name_the_place_and_the_fault() {
    let nowhere = TWO_NODES.replace("id =", "memory_bytes = 0\nid =");
    let error = Machine::from_toml(&nowhere, "two.toml").expect_err("memory");
    assert_eq!(
        error.to_string(),
        "two.toml: no node has memory: `memory_bytes` is 0 of all"
    );
    let gigabytes = TWO_NODES.replace("id =", "memory_bytes = 64\nid =");
    let error = Machine::from_toml(&gigabytes, "two.toml").expect_err("memory");
    assert_eq!(
        error.to_string(),
        "two.toml: `memory_bytes` of node 0 is 64, less than a page of 4096; it counts bytes, and 0 is a node without memory"
    );
    let idle = format!("{TWO_NODES}[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 0\n");
    let error = Machine::from_toml(&idle, "two.toml").expect_err("bandwidth");
    assert_eq!(
        error.to_string(),
        "two.toml: `link.bandwidth_bytes_per_s` is 0; expected a positive number"
    );
    for (from, to, message) in FAULTS {
        let found = fault(from, to);
        assert!(found.contains(message), "{to}: {found}");
        assert!(!found.contains('\n'), "one line: {found}");
    }
}

#[test]
fn both_directions_have_their_own_figures() {
    // A link may be slower in one direction, so ACPI's SLIT stores each distance twice.
    for matrix in [
        "distance = [[10, 16], [22, 10]]",
        "latency_ns = [[10, 16], [22, 10]]",
    ] {
        let text = TWO_NODES.replace("distance = [[10, 20], [20, 10]]", matrix);
        let machine = Machine::from_toml(&text, "two.toml").expect(matrix);
        assert_eq!(machine.weights(), [[10.0, 16.0], [22.0, 10.0]]);
    }
}

#[test]
fn hops_of_a_file_are_the_same_both_ways_unless_it_says_otherwise() {
    let folder = tempfile::tempdir().expect("folder");
    let read = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        let argument = path.to_str().expect("UTF-8").to_owned();
        Machine::by_name_or_path(&argument, Path::new("/nonexistent"))
            .map_err(|error| error.to_string().replace(&argument, "FILE"))
    };
    let with = |matrix: &str| TWO_NODES.replace("distance = [[10, 20], [20, 10]]", matrix);
    assert_eq!(
        read("a.toml", &with("distance = [[10, 16], [22, 10]]")),
        Err(
            "FILE: `distance` from node 0 to node 1 is 16, and 22 back; hops are the same both \
                 ways: for what differs give `latency_ns`, or call it `directed_distance`"
                .to_owned()
        )
    );
    for matrix in [
        "distance = [[10, 20], [20, 10]]",
        "latency_ns = [[10, 16], [22, 10]]",
        "directed_distance = [[10, 16], [22, 10]]",
    ] {
        let machine = read("b.toml", &with(matrix)).expect(matrix);
        // The written file can be read again.
        assert_eq!(read("c.toml", &machine.to_toml()), Ok(machine));
    }
    let twice = with("distance = [[10, 20], [20, 10]]\ndirected_distance = [[10, 1], [2, 10]]");
    assert!(read("d.toml", &twice).is_err());
}

#[test]
fn presets_survive_writing() {
    for name in PRESET_NAMES {
        let machine = preset(name).expect(name);
        assert_eq!(
            Machine::from_toml(&machine.to_toml(), name).expect(name),
            machine
        );
    }
    assert!(
        preset("opteron-4")
            .expect("preset")
            .to_toml()
            .contains("\n  [102, 138, 172, 140],\n")
    );
}

#[expect(clippy::too_many_lines, reason = "each field of a machine has a line")]
fn machines() -> impl Strategy<Value = Machine> {
    let latency = prop::collection::vec(0.1f64..1e18, 16);
    (1usize..5, 1u32..5, latency, any::<bool>(), ".{0,20}").prop_map(
        |(nodes, cpus, latency, smt, name)| Machine {
            name,
            source: "a \"source\"\\\n".to_owned(),
            year: smt.then_some(2021),
            notes: vec!["a \"note\"\\\n".to_owned(); cpus as usize - 1],
            page_bytes: 4096,
            huge_page_bytes: smt.then_some(1 << 21),
            transparent_huge_pages: smt.then_some(TransparentHugePages::Madvise),
            latency_ns: Some(
                (0..nodes)
                    .map(|row| {
                        // The last row is unknown except for one figure.
                        let known = |at: usize| row + 1 < nodes || at == 0;
                        (0..nodes)
                            .map(|at| known(at).then_some(latency[row * 4 + at]))
                            .collect()
                    })
                    .collect(),
            ),
            distance: None,
            bandwidth: Bandwidth {
                read_bytes_per_s: smt.then(|| vec![vec![Some(latency[7]); nodes]; nodes]),
                write_bytes_per_s: None,
                mixed_bytes_per_s: Some(vec![vec![Some(latency[8]); nodes]; nodes]),
            },
            loaded_latencies: vec![LoadedLatency {
                node: NodeId(0),
                bandwidth_bytes_per_s: latency[9],
                latency_ns: latency[10],
            }],
            cores: if smt && cpus > 1 {
                vec![vec![CpuId(1), CpuId(0)]]
            } else {
                Vec::new()
            },
            cpu_kinds: vec![CpuKind {
                name: "cpu_atom".to_owned(),
                cpus: vec![CpuId(0)],
            }],
            memory_caches: vec![MemoryCache {
                node: NodeId(0),
                level: 1,
                size_bytes: 1 << 30,
                line_bytes: smt.then_some(64),
            }],
            devices: vec![Device {
                kind: DeviceKind::Nic,
                number: 0,
                pci: "10000:3b:00.1".to_owned(),
                node: smt.then_some(NodeId(0)),
            }],
            caches: vec![Cache {
                level: 1,
                kind: CacheKind::Data,
                size_bytes: 32768,
                line_bytes: 64,
                associativity: u32::from(smt),
                shared_by_cpus: 1,
                latency_ns: smt.then_some(1.5),
            }],
            processor: Processor {
                clock_ghz: smt.then_some(0.3),
                cycles_per_instruction: (!smt).then_some(latency[0]),
                outstanding_misses: smt.then_some(10),
                window_instructions: None,
            },
            tlbs: vec![Tlb {
                level: 2,
                kind: CacheKind::Instruction,
                entries: 64,
                associativity: u32::from(smt),
                reserved: 8,
                miss_cycles: latency[1],
            }],
            memory: Memory {
                bandwidth_bytes_per_s: smt.then_some(latency[2]),
                directory_ns: (!smt).then_some(20.0),
            },
            links: (1..nodes as u16)
                .map(|to| Link {
                    nodes: [NodeId(3 * (to - 1)), NodeId(3 * to)],
                    bandwidth_bytes_per_s: latency[3],
                })
                .collect(),
            routes: (1..nodes as u16)
                .map(|to| Route {
                    nodes: vec![NodeId(3 * to), NodeId(3 * (to - 1))],
                })
                .collect(),
            coherence: smt.then_some(Coherence {
                request_bytes: 8,
                probe_bytes: 7,
                probe_response_bytes: 4,
                data_header_bytes: 3,
                done_bytes: 0,
            }),
            prefetcher: (!smt).then_some(Prefetcher {
                streams: 8,
                steps_ahead: 2,
                stride_lines_max: 1,
            }),
            moves: Moves {
                fixed_ns: smt.then_some(latency[4]),
                steps: (!smt).then_some(MoveSteps {
                    interrupt_ns: 1.0,
                    decision_ns: 2.5,
                    allocation_ns: latency[5],
                    mapping_replica_ns: 4.0,
                    mapping_migration_ns: 5.0,
                    flush_ns: 6.0,
                    flush_request_ns: 7.0,
                    copy_ns: 8.0,
                    hardware_copy_ns: (latency[5] > 1.0).then_some(13.0),
                    end_replica_ns: 9.0,
                    end_migration_ns: 10.0,
                    fault_ns: 11.0,
                    collapse_ns: (latency[5] > 1.0).then_some(12.0),
                }),
            },
            energy: smt.then_some(Energy {
                local_nj: 1.0,
                remote_nj: latency[6],
                page_copy_nj: 3.0,
                static_w: 0.0,
            }),
            nodes: (0..nodes as u32)
                .map(|id| Node {
                    id: NodeId(id as u16 * 3),
                    cpus: (id * cpus..(id + 1) * cpus).map(CpuId).collect(),
                    memory_bytes: smt.then_some(u64::from(id + 1) << 30),
                    memory_kind: (!smt).then_some(MemoryKind::Gpu),
                })
                .collect(),
        },
    )
}

proptest! {
    #[test]
    fn any_machine_survives_writing(machine in machines()) {
        let read = Machine::from_toml(&machine.to_toml(), "written");
        prop_assert!(read.is_ok(), "{:?}\n{}", read, machine.to_toml());
        prop_assert_eq!(read.unwrap(), machine);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic(at in 0usize..200, byte in any::<u8>()) {
        let mut bytes = TWO_NODES.as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = Machine::from_toml(&String::from_utf8_lossy(&bytes), "damaged");
    }
}
