use proptest::prelude::*;

use super::*;

fn read(texts: &[&str]) -> Result<Machine, Error> {
    let texts: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| (format!("t{at}"), text.as_bytes().to_vec()))
        .collect();
    Machine::from_tools(&texts, "two")
}

/// Output of version 3.11, with tabs.
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
        // Each node has half of the system's bandwidth; points are ascending.
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
            "and from the queue that plans and simulations have by",
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
            "t0: line 1: no latencies, no bandwidths and no nodes; expected what `mlc`, `lat_mem_rd`, `numactl -H`, `acpidump` or `iasl -d` prints, or the table /sys/firmware/acpi/tables/HMAT; hwloc's XML needs no import, `--machine FILE` reads it",
        ),
    ];
    for (text, expected) in damaged {
        assert_eq!(read(&[&text]).expect_err("damaged").to_string(), expected);
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_machine_or_one_line(which in 0usize..3, at in 0usize..9000, with in proptest::collection::vec(any::<u8>(), 0..12)) {
        let mut bytes = match which {
            0 => format!("{MLC}{NUMACTL}{LAT_MEM_RD}").into_bytes(),
            1 => format!("{DISASSEMBLED}{ACPIDUMP}").into_bytes(),
            _ => HMAT.to_vec(),
        };
        let at = at % bytes.len();
        let end = (at + with.len()).min(bytes.len());
        bytes.splice(at..end, with);
        match read_bytes(&bytes) {
            Ok(machine) => prop_assert_eq!(Machine::from_toml(&machine.to_toml(), "again").expect("what was written"), machine),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
        }
    }
}

/// Outputs of real tools in `tests/tools`: a table that QEMU made for a guest with a memory-only node 2, its output by
/// ACPICA's `acpidump` and `iasl -d`, and `lat_mem_rd`.
const HMAT: &[u8] = include_bytes!("../../tests/tools/hmat.bin");
const ACPIDUMP: &str = include_str!("../../tests/tools/acpidump.txt");
const DISASSEMBLED: &str = include_str!("../../tests/tools/hmat.dsl");
const LAT_MEM_RD: &str = include_str!("../../tests/tools/lat_mem_rd.txt");

fn read_bytes(bytes: &[u8]) -> Result<Machine, Error> {
    Machine::from_tools(&[("t0".to_owned(), bytes.to_vec())], "rated")
}

#[test]
fn the_firmwares_ratings_are_the_same_in_all_three_forms() {
    let machine = read_bytes(HMAT).expect("reads");
    let [latency, loads, stores] = [
        &machine.latency_ns,
        &machine.bandwidth.read_bytes_per_s,
        &machine.bandwidth.write_bytes_per_s,
    ];
    let rows = |matrix: &Option<Matrix>, unit: f64| -> Vec<Vec<Option<f64>>> {
        let row = |row: &Vec<Option<f64>>| {
            row.iter()
                .map(|figure| figure.map(|figure| figure / unit))
                .collect()
        };
        matrix.as_ref().expect("rated").iter().map(row).collect()
    };
    let some = |figures: [f64; 3]| figures.map(Some).to_vec();
    // QEMU was started with these figures, in ns and GiB/s.
    assert_eq!(
        rows(latency, 1.0),
        [
            some([80.0, 140.0, 250.0]),
            some([140.0, 80.0, 320.0]),
            vec![None; 3]
        ]
    );
    let bandwidth = [
        some([100.0, 40.0, 20.0]),
        some([40.0, 100.0, 16.0]),
        vec![None; 3],
    ];
    assert_eq!(rows(loads, 1e6 * 1024.0), bandwidth);
    assert_eq!(rows(stores, 1e6 * 1024.0), bandwidth);
    let cpus: Vec<usize> = machine.nodes.iter().map(|node| node.cpus.len()).collect();
    assert_eq!(cpus, [1, 1, 0]);
    let cache = &machine.memory_caches[0];
    assert_eq!(
        (cache.node, cache.level, cache.size_bytes, cache.line_bytes),
        (NodeId(2), 1, 64 << 20, Some(64))
    );
    assert_eq!(machine.source, "the firmware's ratings (ACPI HMAT)");
    assert_eq!(
        Machine::from_toml(&machine.to_toml(), "again").expect("reads"),
        machine
    );
    // Older versions of `iasl` print no offsets.
    let fields: String = DISASSEMBLED
        .lines()
        .map(|line| {
            line.split_once(']')
                .map_or(line, |(_, field)| field)
                .to_owned()
                + "\n"
        })
        .collect();
    for text in [
        ACPIDUMP,
        DISASSEMBLED,
        &fields,
        &format!("SRAT @ 0x0\n    0000: 53 52\n\n{ACPIDUMP}"),
    ] {
        assert_eq!(
            read_bytes(text.as_bytes()).expect("reads"),
            machine,
            "{text}"
        );
    }
    // Measured figures take precedence over the firmware's, which fill the gaps.
    let both = read(&[DISASSEMBLED, MLC]).expect("reads");
    assert_eq!(
        both.latency_ns.as_ref().expect("known")[0][..2],
        [Some(80.0), Some(140.0)]
    );
    assert_eq!(
        both.bandwidth.read_bytes_per_s.as_ref().expect("known")[0][0],
        Some(80_000e6)
    );
    assert_eq!(
        both.bandwidth.write_bytes_per_s.as_ref().expect("known")[0][0],
        Some(102_400e6)
    );
}

#[test]
fn revision_1_is_in_tenths_as_linux_reads_it() {
    let text = DISASSEMBLED.replace("Revision : 02", "Revision : 01");
    let machine = read_bytes(text.as_bytes()).expect("reads");
    assert_eq!(machine.latency_ns.expect("rated")[0][0], Some(8_000.0));
}

#[test]
fn damaged_tables_of_the_firmware_are_one_line() {
    let mut wrong_sum = HMAT.to_vec();
    wrong_sum[60] ^= 1;
    let long = |at: usize, to: u8| {
        let mut bytes = HMAT.to_vec();
        bytes[9] = bytes[9].wrapping_add(bytes[at]).wrapping_sub(to);
        bytes[at] = to;
        bytes
    };
    let damaged: [(Vec<u8>, &str); 6] = [
        (
            wrong_sum,
            "t0: line 1: the checksum of the HMAT is wrong: it is damaged",
        ),
        (
            HMAT[..200].to_vec(),
            "t0: line 1: expected an HMAT of 40 bytes or more, found 200 bytes of a table of 320",
        ),
        (
            long(44, 7),
            "t0: line 1: a structure of the HMAT of 7 bytes at 40 of 320",
        ),
        (
            long(175, 1),
            "t0: line 1: an HMAT of 16777218 domains; expected 1024 at most",
        ),
        (long(172, 9), "t0: line 1: the HMAT ends before its byte 64"),
        (
            DISASSEMBLED
                .replacen("Entry : 0008", "Entry : 8 apples", 2)
                .replacen("Entry : 8 apples", "Entry : x", 1)
                .into_bytes(),
            "t0: line 77: expected a hexadecimal number for `Entry`, found `x`",
        ),
    ];
    for (bytes, expected) in damaged {
        assert_eq!(
            read_bytes(&bytes).expect_err("damaged").to_string(),
            expected
        );
    }
}

#[test]
fn latencies_of_lmbench_are_by_the_command_before_them() {
    let own = read(&[LAT_MEM_RD]).expect("reads");
    assert_eq!(
        own.latency_ns.as_ref().expect("measured")[0][0],
        Some(1090.009)
    );
    assert_eq!(own.source, "lmbench");
    let far = LAT_MEM_RD
        .replace("-N 0 -m 0", "--cpunodebind=0 --membind=1")
        .replace("1090.009", "2000.5");
    let two = read(&[LAT_MEM_RD, &far, NUMACTL]).expect("reads");
    assert_eq!(
        two.latency_ns.as_ref().expect("measured")[0],
        [Some(1090.009), Some(2000.5), None]
    );
    let notes = two.notes.join("\n");
    assert!(
        notes.contains("64 MiB") && notes.contains("caches may hold"),
        "{notes}"
    );
    // Text without a command; and lmbench's own report, whose last block has random loads.
    let report = "\"read bandwidth\n0.000512 16058.20\n\nMemory load latency\n\"stride=128\n0.00049 1.2\n512.00000 20.5\n\nRandom load latency\n\"stride=16\n0.00049 1.2\n512.00000 91.5\n\n";
    let machine = read(&[report]).expect("reads");
    assert_eq!(machine.latency_ns.expect("measured")[0][0], Some(91.5));
    assert!(
        machine
            .notes
            .iter()
            .any(|note| note.contains("node 0's own memory"))
    );
    for (from, to, expected) in [
        (
            "64.00000 1090.009",
            "64.00000 x",
            "t0: line 35: expected a positive number or `-`, found `x`",
        ),
        (
            "64.00000 1090.009",
            "64.00000",
            "t0: line 35: expected an array's size and a latency, found `64.00000`",
        ),
        (
            "-N 0 -m 0",
            "-N 0-1 -m 0",
            "t0: line 1: expected one node in a command of `numactl`, found `0-1`",
        ),
        (
            "-N 0 -m 0",
            "-C 0",
            "t0: line 1: expected `numactl --cpunodebind=NODE --membind=NODE` before `lat_mem_rd`",
        ),
    ] {
        assert_eq!(
            read(&[&LAT_MEM_RD.replace(from, to)])
                .expect_err("damaged")
                .to_string(),
            expected
        );
    }
}
