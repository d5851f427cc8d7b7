//! `nearpage machine --measure` and machine files, here and in a Linux with a node without CPUs. No test checks the
//! size of measured figures, because other programs or an emulator may disturb them.

use std::collections::BTreeSet;
use std::time::Duration;

use nearpage_tests::{Case, Finished, Guest, GuestNode, nearpage_path, repository};
use serde_json::Value;

fn json(case: &Case, file: &str) -> Value {
    let finished = case
        .nearpage(["machine", "--machine", file, "--json"])
        .success();
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// An archived sysfs tree in an old kernel's format: sets instead of lists, padding, a node without CPUs.
#[test]
fn another_machines_sys_is_a_machine() {
    let case = Case::new("sysfs");
    let cpu = "m/sys/devices/system/cpu";
    let node = "m/sys/devices/system/node";
    for (path, text) in [
        (format!("{cpu}/online"), "0-2\n\0\0"),
        (format!("{node}/node0/cpumap"), "00000003\n"),
        (format!("{node}/node0/distance"), "10 20\n"),
        (format!("{node}/node7/cpumap"), "00000000\n"),
        (format!("{node}/node7/distance"), "20 10\n"),
    ] {
        let path = case.path(&path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let mut tar = case.command("tar");
    tar.args(["-czf", "m.tar.gz", "m"]);
    case.run(tar).success();
    for root in ["m", "m/sys", "m.tar.gz"] {
        let shown = case
            .nearpage(["machine", "--sysfs", root, "--json"])
            .success();
        let machine: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        assert_eq!(
            machine["node"][0]["cpus"],
            serde_json::json!([0, 1]),
            "{root}"
        );
        assert_eq!(machine["node"][1]["id"], 7, "{root}");
        let notes = machine["notes"].to_string();
        assert!(
            notes.contains("CPUs 2 belong to no node") && notes.contains("no caches"),
            "{notes}"
        );
    }
    // All commands accept the archive as a machine.
    let named = json(&case, "m.tar.gz");
    assert_eq!(
        (&named["name"], &named["distance"][0][1]),
        (&"m".into(), &20.into())
    );
    case.write("empty.tar", "");
    let refused = case.nearpage(["machine", "--sysfs", "empty.tar"]);
    assert_eq!(refused.code, Some(1), "{refused}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    assert!(
        refused.stderr.contains("expected .tar, .tar.bz2"),
        "{refused}"
    );
}

#[test]
fn what_other_tools_measured_is_a_machine_file() {
    let case = Case::new("machine-import");
    let matrix = |title: &str, own: f64, other: f64| {
        format!(
            "{title}\n\t\tNuma node\nNuma node\t 0\t 1\t\n 0\t{own}\t{other}\t\n 1\t{other}\t{own}\t\n\n"
        )
    };
    case.write(
        "mlc.txt",
        [
            "Intel(R) Memory Latency Checker - v3.9\n".to_owned(),
            matrix("Measuring idle latencies (in ns)...", 80.5, 140.0),
            matrix("Measuring Memory Bandwidths between nodes within system", 60000.0, 30000.0),
            "Measuring Loaded Latencies for the system\n 00000\t240.0\t 110000.0\n 00500\t 90.0\t 40000.0\n".to_owned(),
        ]
        .concat(),
    );
    case.write(
        "numactl.txt",
        "node 0 cpus: 0 1\nnode 0 size: 64 MB\nnode 1 cpus: 2 3\nnode 1 size: 64 MB\n",
    );
    let words = [
        "machine",
        "import",
        "mlc.txt",
        "numactl.txt",
        "-o",
        "m.toml",
    ];
    let shown = case.nearpage(words).success();
    assert!(shown.stdout.contains("differs from the model"), "{shown}");
    let machine = json(&case, "m.toml");
    assert_eq!(machine["latency_ns"][0], serde_json::json!([80.5, 140.0]));
    assert_eq!(machine["node"][1]["cpus"], serde_json::json!([2, 3]));
    assert_eq!(
        machine["loaded_latency"].as_array().expect("a curve").len(),
        4
    );
    assert_eq!(machine["loaded_latency"][0]["bandwidth_bytes_per_s"], 20e9);

    case.write("poem.txt", "shall I compare thee\n");
    let refused = case.nearpage(["machine", "import", "poem.txt"]);
    assert_eq!(refused.code, Some(1), "{refused}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
}

#[test]
fn presets_are_listed_with_what_is_assumed() {
    let case = Case::new("machine-list");
    let text = case.nearpage(["machine", "list"]).success().stdout;
    let shown = case.nearpage(["machine", "list", "--json"]).success();
    let list: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    for machine in list["machines"].as_array().expect("a list") {
        let name = machine["name"].as_str().expect("a name");
        assert!(
            text.lines().any(|line| line.starts_with(name)),
            "{name}: {text}"
        );
        let described = json(&case, name);
        let nodes = described["node"].as_array().expect("nodes").len();
        assert_eq!(machine["nodes"].as_u64(), Some(nodes as u64), "{name}");
        assert!(
            machine["far_to_near"].as_f64().expect("a number") >= 1.0,
            "{name}"
        );
        assert!(machine["year"].as_u64().is_some(), "{name}");
        let is_without_contention = ["flash-8", "now-8"].contains(&name);
        let limit = machine["node_bandwidth_bytes_per_s"].as_f64();
        assert_eq!(limit.is_none(), is_without_contention, "{name}");
    }
    let line = |name: &str| text.lines().find(|line| line.starts_with(name));
    assert!(
        line("amd48").is_some_and(|line| line.contains("14.4   6.4-12.8")),
        "{text}"
    );
    assert!(
        line("flash-8 ").is_some_and(|line| line.contains("no limit   no limit")),
        "{text}"
    );
    assert!(
        text.contains("epyc-8: the latency of the other socket's memory is assumed"),
        "{text}"
    );
}

/// Positions of known figures, row by row.
fn known(matrix: &Value) -> Vec<Vec<usize>> {
    let rows = matrix.as_array().expect("a matrix").iter();
    rows.map(|row| {
        let cells = row.as_array().expect("a row").iter().enumerate();
        let positive = |cell: &Value| cell.as_f64().expect("a number") > 0.0;
        let cells = cells.filter(|(_, cell)| !cell.is_null());
        cells
            .inspect(|(_, cell)| assert!(positive(cell)))
            .map(|(at, _)| at)
            .collect()
    })
    .collect()
}

fn every_matrix(machine: &Value) -> [&Value; 4] {
    let bandwidth = &machine["bandwidth"];
    [
        &machine["latency_ns"],
        &bandwidth["read_bytes_per_s"],
        &bandwidth["write_bytes_per_s"],
        &bandwidth["mixed_bytes_per_s"],
    ]
}

#[test]
fn a_measured_machine_prints_and_reads_back() {
    let case = Case::new("measured");
    let measured = case
        .nearpage(["machine", "--measure", "--quick", "-o", "m.toml"])
        .success();
    assert!(
        measured.stderr.contains("nearpage: measuring "),
        "{measured}"
    );
    assert!(
        measured.stderr.contains("--quick: the figures say little"),
        "{measured}"
    );
    let mut narrow = case.command(nearpage_path());
    narrow
        .args(["machine", "--machine", "m.toml"])
        .env("COLUMNS", "80");
    let text = case.run(narrow).success().stdout;
    for title in [
        "latency in ns",
        "read bandwidth in GB/s",
        "2:1 mixed bandwidth",
    ] {
        assert!(text.contains(title), "{text}");
        assert!(measured.stdout.contains(title), "{measured}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let machine = json(&case, "m.toml");
    let nodes = machine["node"].as_array().expect("nodes").len();
    for matrix in every_matrix(&machine) {
        assert_eq!(known(matrix).len(), nodes, "{machine}");
    }
    let again = case
        .nearpage(["machine", "--machine", "m.toml", "--toml"])
        .success();
    assert_eq!(again.stdout, case.read("m.toml"));
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    let case = Case::new("unwritable");
    let refused = case
        .nearpage(["machine", "--measure", "-o", "nowhere/m.toml"])
        .exits(1);
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    assert!(
        refused
            .stderr
            .contains("nowhere/m.toml: can't be written: "),
        "{refused}"
    );
    case.nearpage(["machine", "--quick"]).exits(2);
    case.nearpage(["machine", "--measure", "--machine", "amd48"])
        .exits(2);
}

#[test]
fn an_interrupted_measurement_leaves_nothing() {
    let case = Case::new("interrupted");
    let mut shell = case.command("sh");
    // In the foreground, because shells let background commands ignore SIGINT.
    shell
        .args([
            "-c",
            "exec timeout -s INT 1 \"$0\" machine --measure -o m.toml",
        ])
        .arg(nearpage_path());
    let finished = case.run(shell);
    // If the measurement takes less than a second, there was nothing to interrupt.
    if finished.code == Some(124) {
        let left: Vec<_> = std::fs::read_dir(case.folder())
            .expect("folder")
            .map(|entry| entry.expect("entry").file_name())
            .filter(|name| name.to_string_lossy().contains("m.toml"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn hwloc_files_are_machines() {
    let case = Case::new("hwloc");
    let fixtures = repository().join("crates/machine/tests/hwloc");
    let xml = fixtures.join("four-nodes.xml");
    let machine = json(&case, xml.to_str().expect("UTF-8"));
    assert_eq!(machine["node"].as_array().expect("nodes").len(), 4);
    assert_eq!(machine["distance"][0][3], 22);
    case.write("bad.xml", "<topology><object type='Machine'></topology>");
    one_line(
        case.nearpage(["machine", "--machine", "bad.xml"]),
        "bad.xml: line 1: ",
    );
    one_line(
        case.nearpage(["machine", "--machine", "none.xml"]),
        "none.xml: cannot be read",
    );
}

#[test]
fn impossible_matrices_have_one_line() {
    let case = Case::new("matrices");
    let nodes = "[[node]]\nid = 0\ncpus = \"0\"\n[[node]]\nid = 1\ncpus = \"1\"\n";
    for (matrix, message) in [
        (
            "latency_ns = [[1, -2], [2, 1]]",
            "`latency_ns`[0][1] is -2; expected a positive number",
        ),
        (
            "latency_ns = [[1, 2], [2]]",
            "row 1 of `latency_ns` has 1 number; expected 2",
        ),
        (
            "distance = [[10, -20], [20, 10]]",
            "m.toml: line 3: `distance`[0][1] is -20; the least there is",
        ),
        ("distance = [[10, 5], [20, 10]]", "`distance`[0][1] is 5"),
        (
            "distance = [[10, 20], [30, 10]]",
            "m.toml: `distance` from node 0 to node 1 is 20, and 30 back; hops are the same both ways",
        ),
    ] {
        case.write(
            "m.toml",
            format!("name = \"m\"\npage_bytes = 4096\n{matrix}\n{nodes}"),
        );
        one_line(case.nearpage(["machine", "--machine", "m.toml"]), message);
        let written = case.nearpage(["machine", "--machine", "m.toml", "-o", "out"]);
        one_line(written, message);
        assert!(!case.path("out").exists());
    }
    // Only hop counts must be symmetric: latencies may differ by direction (as in Marathe's Table 2), and firmware's
    // distances, too (ACPI 6.5 §5.2.17).
    for matrix in [
        "latency_ns = [[100, 200], [300, 100]]",
        "directed_distance = [[10, 20], [30, 10]]",
    ] {
        case.write(
            "m.toml",
            format!("name = \"m\"\npage_bytes = 4096\n{matrix}\n{nodes}"),
        );
        case.nearpage(["machine", "--machine", "m.toml"]).success();
    }
}

#[track_caller]
fn one_line(finished: Finished, message: &str) {
    let finished = finished.exits(1);
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    assert!(finished.stderr.contains(message), "{finished}");
}

/// Pages that `measurement/src/moving.rs` moves to another node and back.
const MOVED_PAGES: u64 = 512;

/// Two nodes with CPUs and one without. During the measurement, the test reads from the kernel the memory's policy and
/// nodes, and the CPUs that threads may use.
#[test]
#[ignore = "takes a guest of its own: tests/long"]
fn every_node_is_measured_from_every_node_with_cpus() {
    let mut guest = Guest::ring(3, 2, 256);
    guest.nodes[2] = GuestNode {
        cpus: 0,
        memory_mib: 256,
    };
    let case = Case::new("measured-guest");
    let nearpage = nearpage_path();
    let script = format!(
        "{} machine --measure -o m.toml >m.txt 2>m.err & pid=$!
         while kill -0 $pid 2>/dev/null; do
             grep bind: /proc/$pid/numa_maps; cat /proc/$pid/task/[0-9]*/status | grep Cpus_allowed_list:
             sleep 0.2
         done >seen 2>/dev/null
         wait $pid",
        nearpage.display()
    );
    let output = guest
        .run_in(&case, &script, Duration::from_secs(300))
        .unwrap();
    assert_eq!(output.status, 0, "{output}\n{}", case.read("m.err"));
    let machine = json(&case, "m.toml");
    for matrix in every_matrix(&machine) {
        assert_eq!(
            known(matrix),
            [vec![0, 1, 2], vec![0, 1, 2], vec![]],
            "{machine}"
        );
    }
    let loaded = machine["loaded_latency"].as_array().expect("points");
    let nodes: BTreeSet<u64> = loaded
        .iter()
        .filter_map(|point| point["node"].as_u64())
        .collect();
    assert_eq!(nodes, BTreeSet::from([0, 1]), "{machine}");

    let seen = case.read("seen");
    let mut bound = BTreeSet::new();
    for line in seen.lines() {
        let mut words = line.split_whitespace();
        if line.starts_with("Cpus_allowed_list:") {
            // The main thread waits on any CPU; each other thread is pinned to one.
            let cpus = words.nth(1).expect("a list");
            assert!(cpus == "0-3" || cpus.parse::<u32>().is_ok(), "{seen}");
        } else if let Some(node) = words.find_map(|word| word.strip_prefix("bind:")) {
            bound.insert(node.to_owned());
            let counts: Vec<(&str, u64)> = words
                .filter_map(|word| word.strip_prefix('N')?.split_once('='))
                .map(|(on, pages)| (on, pages.parse().expect("a number")))
                .collect();
            let pages: u64 = counts.iter().map(|count| count.1).sum();
            let is_there = counts.iter().all(|count| count.0 == node);
            // The buffer with which moves are measured leaves its node on purpose.
            assert!(is_there || pages <= MOVED_PAGES, "{line}");
        }
    }
    assert_eq!(bound, ["0", "1", "2"].map(str::to_owned).into(), "{seen}");
}

#[test]
fn options_of_before_machine_had_subcommands_still_work() {
    let case = Case::new("machine of 0.1");
    let out = |words: &[&str]| case.nearpage(words).success().stdout;
    for (before, now) in [
        (
            &["machine", "--machine", "opteron-4"][..],
            &["machine", "show", "opteron-4"][..],
        ),
        (&["machine", "--toml"], &["machine", "show", "--toml"]),
        (&["machine"], &["machine", "show"]),
    ] {
        assert_eq!(out(before), out(now), "{before:?}");
    }
    let help = out(&["machine", "--help"]);
    assert!(
        !help.contains("--measure") && help.contains("measure"),
        "{help}"
    );
    for (option, command) in [("--measure", "measure"), ("--calibrate", "calibrate")] {
        for words in [["machine", option], ["machine", command]] {
            let json = case.nearpage([&words[..], &["--quick", "--json"]].concat());
            assert!(json.success().stdout.starts_with('{'), "{words:?}");
        }
    }
    let quick = case.nearpage(["machine", "--quick"]);
    quick.says(2, &["--quick", "measure"]);
}

#[test]
fn a_machine_is_shown_with_fewer_cpus() {
    let case = Case::new("machine with fewer CPUs");
    let cut = case.path("cut.toml");
    let words = ["machine", "show", "epyc-9224-cxl", "--cpus", "4", "-o"];
    let shown = case.nearpage(words.iter().map(AsRef::as_ref).chain([cut.as_os_str()]));
    let shown = shown.success().stdout;
    for words in ["5 nodes, 4 CPUs", "4 of its 96 CPUs", "node 3: CPUs 3"] {
        assert!(shown.contains(words), "{shown}");
    }
    let again = case.nearpage(["machine".as_ref(), "show".as_ref(), cut.as_os_str()]);
    assert_eq!(again.success().stdout, shown);
    for cpus in ["0", "3", "97"] {
        let refused = case.nearpage(["machine", "show", "epyc-9224-cxl", "--cpus", cpus]);
        refused.says(2, &["--cpus", cpus, "4 to 96"]);
    }
}
