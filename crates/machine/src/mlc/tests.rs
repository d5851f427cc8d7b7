use proptest::prelude::*;

use super::*;

fn read(texts: &[&str]) -> Result<Machine, Error> {
    let texts: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| (format!("t{at}"), (*text).to_owned()))
        .collect();
    Machine::from_tools(&texts, "two")
}

/// As version 3.11 prints it, with tabs.
const MLC: &str = "\
Intel(R) Memory Latency Checker - v3.11b
Measuring idle latencies for sequential access (in ns)...
\t\tNuma node
Numa node\t     0\t     1\t
       0\t  70.0\t 130.0\t
       1\t 131.0\t  71.0\t

Measuring idle latencies for random access (in ns)...
\t\tNuma node
Numa node\t     0\t     1\t
       0\t  80.0\t 140.0\t
       1\t 141.0\t  81.0\t

Measuring Peak Injection Memory Bandwidths for the system
Bandwidths are in MB/sec (1 MB/sec = 1,000,000 Bytes/sec)
ALL Reads        :\t158844.5
Stream-triad like:\t128158.7

Measuring Memory Bandwidths between nodes within system
Using Read-only traffic type
\t\tNuma node
Numa node\t     0\t     1\t
       0\t80000.0\t34000.5\t
       1\t34001.0\t80001.0\t

Measuring Loaded Latencies for the system
Inject\tLatency\tBandwidth
Delay\t(ns)\tMB/sec
==========================
 00000\t300.00\t 160000.0
 00300\t110.00\t 100000.0
 20000\t 82.00\t   4000.0

Measuring cache-to-cache transfer latency (in ns)...
Local Socket L2->L2 HIT  latency\t49.5
Remote Socket L2->L2 HITM latency (data address homed in writer socket)
\t\t\tReader Numa Node
Writer Numa Node     0\t     1\t
            0\t     -\t 115.2\t
            1\t 117.5\t     -\t
";

const NUMACTL: &str = "\
available: 3 nodes (0-2)
node 0 cpus: 0 1 4 5
node 0 size: 64 MB
node 0 free: 60 MB
node 1 cpus: 2 3
node 1 size: 32 MB
node 1 free: 0 MB
node 2 cpus:
node 2 size: 16 MB
node 2 free: 16 MB
node distances:
node   0   1   2
  0:  10  21  31
  1:  21  10  41
  2:  255  255  10
";

#[test]
fn matrices_and_the_curve_become_a_machine() {
    for text in [
        MLC.to_owned(),
        MLC.replace('\t', "      "),
        MLC.replace('\n', "\r\n"),
    ] {
        let machine = read(&[&text]).expect("reads");
        assert_eq!(machine.weights(), [[80.0, 140.0], [141.0, 81.0]]);
        let read = machine.bandwidth.read_bytes_per_s.as_ref().expect("known");
        assert_eq!(read[0][1], Some(34000.5e6));
        // A half of the system's bandwidth each, ascending.
        let curve: Vec<_> = machine
            .loaded_latencies
            .iter()
            .map(|point| (point.node.0, point.bandwidth_bytes_per_s, point.latency_ns))
            .collect();
        assert_eq!(
            curve[..3],
            [(0, 2e9, 82.0), (0, 50e9, 110.0), (0, 80e9, 300.0)]
        );
        assert_eq!(curve.len(), 6);
        assert_eq!(machine.source, "Memory Latency Checker v3.11b");
        let notes = machine.notes.join("\n");
        for words in [
            "one CPU to a node is assumed",
            "ALL Reads: 159 GB/s",
            "L2->L2 HIT latency 49.5 ns",
            "homed in writer socket) 115.2 to 117.5 ns",
            "equal share",
            "differs from the model",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
        assert_eq!(
            Machine::from_toml(&machine.to_toml(), "again").expect("reads"),
            machine
        );
    }
}

#[test]
fn numactl_adds_cpus_memory_and_distances() {
    for texts in [vec![MLC, NUMACTL], vec![NUMACTL, MLC]] {
        let machine = read(&texts).expect("reads");
        let cpus: Vec<usize> = machine.nodes.iter().map(|node| node.cpus.len()).collect();
        assert_eq!(cpus, [4, 2, 0]);
        assert_eq!(machine.nodes[2].memory_bytes, Some(16 << 20));
        assert_eq!(machine.distance.as_ref().expect("known")[2], [255, 255, 10]);
        assert_eq!(
            machine.latency_ns.as_ref().expect("known")[0],
            [Some(80.0), Some(140.0), None]
        );
        assert!(
            !machine.notes.iter().any(|note| note.contains("one CPU")),
            "{:?}",
            machine.notes
        );
    }
    let alone = read(&[NUMACTL]).expect("reads");
    assert_eq!(
        (alone.latency_ns, alone.source.as_str()),
        (None, "numactl -H")
    );
}

#[test]
fn damage_names_its_line() {
    let damaged = [
        (
            MLC.replace("80.0\t 140.0", "80.0"),
            "t0: line 11: a row of 1 figures in a matrix of 2 columns",
        ),
        (
            MLC.replace("80.0\t 140.0", "80.0\t -140"),
            "t0: line 11: expected a positive number or `-`, found `-140`",
        ),
        (
            MLC.replace("80.0\t 140.0", "80.0\t inf"),
            "t0: line 11: expected a positive number or `-`, found `inf`",
        ),
        (
            NUMACTL.replace("4 5", "4 x"),
            "t0: line 2: expected CPU numbers, found `x`",
        ),
        (
            NUMACTL.replace("2 3", "2 0"),
            "t0: CPU 0 is on node 0 and on node 1; a CPU is on one node",
        ),
        (
            NUMACTL.replace("  2:  255", "  7:  255"),
            "t0: line 1: `node distances:` has other nodes than the lines above it",
        ),
        (
            "something else".to_owned(),
            "t0: line 1: neither a matrix of `mlc` nor nodes of `numactl -H`; expected what one of them prints",
        ),
    ];
    for (text, expected) in damaged {
        assert_eq!(read(&[&text]).expect_err("damaged").to_string(), expected);
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_machine_or_one_line(at in 0usize..1500, with in ".{0,12}") {
        let mut text = format!("{MLC}{NUMACTL}");
        let at = at.min(text.len());
        text.replace_range(at..(at + with.len()).min(text.len()), &with);
        match read(&[&text]) {
            Ok(machine) => prop_assert_eq!(Machine::from_toml(&machine.to_toml(), "again").expect("what was written"), machine),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
        }
    }
}
