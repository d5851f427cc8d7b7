//! `Machine::local` on the machines of `tests/sysfs`.

use std::fs;
use std::path::Path;

use nearpage_machine::{
    CacheKind, CpuId, CpuList, Machine, NodeId, ThreadPlacement, TransparentHugePages, thread_cpus,
};
use tempfile::TempDir;

/// Unpacks a machine and applies `changes` (path and new content; `None` removes the file).
fn sysfs(name: &str, changes: &[(&str, Option<&str>)]) -> TempDir {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/sysfs")
        .join(name)
        .with_extension("sysfs");
    let root = tempfile::tempdir().expect("temporary folder");
    let packed = fs::read_to_string(&packed).expect("fixture");
    for line in packed.lines() {
        let (path, content) = line.split_once('\t').expect("path, tab, content");
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, content.replace("\\n", "\n") + "\n").expect("file");
    }
    for (path, content) in changes {
        let path = root.path().join(path);
        match content {
            Some(content) => {
                fs::create_dir_all(path.parent().expect("parent")).expect("folder");
                fs::write(path, content).expect("file");
            }
            None => fs::remove_file(path).expect("file to remove"),
        }
    }
    root
}

fn local(name: &str) -> Machine {
    Machine::local(sysfs(name, &[]).path()).expect(name)
}

fn cpus(machine: &Machine) -> Vec<String> {
    let list = |cpus: &[CpuId]| cpus.iter().copied().collect::<CpuList>().to_string();
    machine.nodes.iter().map(|node| list(&node.cpus)).collect()
}

#[test]
fn one_node() {
    let machine = local("one-node");
    assert_eq!(
        (machine.name.as_str(), cpus(&machine)),
        ("local", vec!["0-1".to_owned()])
    );
    assert_eq!(machine.distance, Some(vec![vec![10]]));
    assert!(machine.nodes[0].memory_bytes.expect("memory") > 1 << 30);
    assert_eq!(machine.caches.len(), 4);
    assert_eq!(machine.caches[0].kind, CacheKind::Data);
    assert_eq!(machine.caches[3].shared_by_cpus, 2);
    assert_eq!(machine.cores, Vec::<Vec<CpuId>>::new());
}

#[test]
fn two_sockets_with_siblings_and_a_cpu_off_line() {
    let machine = local("two-sockets-smt-offline");
    assert_eq!(cpus(&machine), ["0-1,4-5", "2-3,6"]);
    assert_eq!(machine.distance, Some(vec![vec![10, 21], vec![21, 10]]));
    assert_eq!(machine.nodes[0].memory_bytes, Some(16_313_148 << 10));
    assert_eq!(
        machine.cores,
        [[0, 4], [1, 5], [2, 6]].map(|core| core.map(CpuId).to_vec())
    );
    assert_eq!(machine.huge_page_bytes, Some(2 << 20));
    assert_eq!(
        machine.transparent_huge_pages,
        Some(TransparentHugePages::Always)
    );
    let order = thread_cpus(&machine, 7, ThreadPlacement::Compact, None);
    assert_eq!(order, [0, 1, 4, 5, 2, 3, 6].map(CpuId));
    // The machine survives writing and reading.
    assert_eq!(
        Machine::from_toml(&machine.to_toml(), "written").expect("reads"),
        machine
    );
}

#[test]
fn a_node_without_cpus_and_one_without_memory() {
    let machine = local("memory-only-node");
    assert_eq!(machine.node_ids(), [0, 1, 4].map(NodeId));
    assert_eq!(cpus(&machine), ["0-1", "2-3", ""]);
    assert_eq!(machine.nodes_with_memory(), [0, 4].map(NodeId));
    assert_eq!(machine.weight(NodeId(1), NodeId(4)), Some(34.0));
    assert_eq!(machine.weight(NodeId(1), NodeId(2)), None);
    assert!(machine.caches.is_empty());
    assert_eq!(machine.huge_page_bytes, None);
    assert_eq!(
        Machine::from_toml(&machine.to_toml(), "written").expect("reads"),
        machine
    );
}

#[test]
fn cpus_that_several_nodes_list_count_to_the_first() {
    // The kernel option `numa=fake` has this effect.
    let root = sysfs(
        "memory-only-node",
        &[
            ("devices/system/node/node0/cpulist", Some("0-3\n")),
            ("devices/system/node/node1/cpulist", Some("0-3\n")),
        ],
    );
    let machine = Machine::local(root.path()).expect("a machine");
    assert_eq!(cpus(&machine), ["0-3", "", ""]);
}

#[test]
fn ratings_of_the_firmware_are_used() {
    // Node 4 has memory only, and node 1 has its nearest CPUs. Class 0 of node 0 is a device.
    let file = |name, content| (name, Some(content));
    let root = sysfs(
        "memory-only-node",
        &[
            file(
                "devices/system/node/node0/access0/initiators/read_latency",
                "900",
            ),
            file(
                "devices/system/node/node0/access1/initiators/node0/uevent",
                "",
            ),
            file(
                "devices/system/node/node0/access1/initiators/read_latency",
                "95",
            ),
            file(
                "devices/system/node/node0/access1/initiators/write_latency",
                "96",
            ),
            file(
                "devices/system/node/node0/access1/initiators/read_bandwidth",
                "102400",
            ),
            file(
                "devices/system/node/node0/access1/initiators/write_bandwidth",
                "0",
            ),
            file(
                "devices/system/node/node4/access0/initiators/node1/uevent",
                "",
            ),
            file(
                "devices/system/node/node4/access0/initiators/read_latency",
                "250",
            ),
            file(
                "devices/system/node/node4/access0/initiators/write_bandwidth",
                "30000",
            ),
        ],
    );
    let machine = Machine::local(root.path()).expect("reads");
    let latency_ns = machine.latency_ns.as_ref().expect("latencies");
    assert_eq!(
        latency_ns,
        &[
            [Some(95.0), None, None],
            [None, None, Some(250.0)],
            [None, None, None]
        ]
    );
    let known = |matrix: &Option<nearpage_machine::Matrix>| -> Vec<(usize, usize, f64)> {
        let rows = matrix.iter().flatten().enumerate();
        let cells = rows.flat_map(|(row, cells)| {
            let cells = cells.iter().enumerate();
            cells.filter_map(move |(column, cell)| Some((row, column, (*cell)?)))
        });
        cells.collect()
    };
    assert_eq!(
        known(&machine.bandwidth.read_bytes_per_s),
        [(0, 0, 102.4e9)]
    );
    assert_eq!(known(&machine.bandwidth.write_bytes_per_s), [(1, 2, 30e9)]);
    assert!(machine.source.contains("HMAT"), "{}", machine.source);
    // Unrated pairs get weights from the distances.
    let distance = machine.distance.as_ref().expect("distances");
    assert_eq!(
        machine.weight(NodeId(0), NodeId(1)),
        Some(f64::from(distance[0][1]) * 9.5)
    );
    assert_eq!(
        Machine::from_toml(&machine.to_toml(), "written").expect("reads"),
        machine
    );
}

#[test]
fn a_damaged_rating_of_the_firmware_is_named() {
    let file = |name, content| (name, Some(content));
    let path = "devices/system/node/node0/access1/initiators/node0/uevent";
    let damaged = "devices/system/node/node0/access1/initiators/read_latency";
    let root = sysfs("memory-only-node", &[file(path, ""), file(damaged, "fast")]);
    let error = Machine::local(root.path())
        .expect_err("damaged")
        .to_string();
    assert!(
        error.contains("read_latency: expected a number, found `fast`"),
        "{error}"
    );
}

#[test]
fn a_container_without_the_node_folder_is_one_node() {
    let machine = local("container");
    assert_eq!(cpus(&machine), ["0,2-3"]);
    assert!(
        machine.source.contains("taken as one node"),
        "{}",
        machine.source
    );
    assert_eq!(machine.weight(NodeId(0), NodeId(0)), Some(10.0));
    assert_eq!(
        machine.transparent_huge_pages,
        Some(TransparentHugePages::Madvise)
    );
}

#[test]
fn an_empty_folder_is_one_node_with_the_cpus_of_this_process() {
    let root = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::local(root.path()).expect("degrades");
    assert_eq!(machine.nodes.len(), 1);
    assert!(!machine.nodes[0].cpus.is_empty());
}

#[test]
fn missing_files_narrow_the_result() {
    let gone = |path| (path, None);
    let root = sysfs(
        "two-sockets-smt-offline",
        &[
            gone("devices/system/node/online"),
            gone("devices/system/node/node1/distance"),
            gone("devices/system/node/node0/meminfo"),
            gone("devices/system/cpu/cpu0/cache/index3/size"),
        ],
    );
    let machine = Machine::local(root.path()).expect("degrades");
    assert_eq!(machine.node_ids(), [0, 1].map(NodeId));
    assert_eq!(machine.distance, None);
    assert_eq!(machine.nodes[0].memory_bytes, None);
    assert_eq!(
        machine.caches.iter().map(|cache| cache.level).max(),
        Some(3)
    );
}

#[test]
fn damaged_files_are_named() {
    for (path, content, message) in [
        (
            "devices/system/node/node0/distance",
            "10 x",
            "node0/distance: expected distances such as `10 20`, found `10 x`",
        ),
        (
            "devices/system/node/node0/distance",
            "10",
            "node0/distance: expected one distance for each node",
        ),
        (
            "devices/system/node/node0/distance",
            "10 3",
            "`distance`[0][1] is 3",
        ),
        (
            "devices/system/node/online",
            "0-",
            "node/online: expected a list such as `0,2-3`, found `0-`",
        ),
        (
            "devices/system/node/online",
            "0-1024",
            "node/online: expected 1024 nodes at most, found `1025 nodes`",
        ),
        (
            "devices/system/node/node0/meminfo",
            "Node 0 MemTotal: -1 kB",
            "node0/meminfo: expected `Node N MemTotal",
        ),
        (
            "devices/system/cpu/cpu0/cache/index0/size",
            "big",
            "index0/size: expected a size such as `32K`, found `big`",
        ),
        // The message has one line, whatever the file contains.
        (
            "devices/system/cpu/cpu0/cache/index0/size",
            " 12\n\x1b[31m13\n",
            "index0/size: expected a size such as `32K`, found `12  [31m13`",
        ),
        (
            "kernel/mm/transparent_hugepage/enabled",
            "on",
            "enabled: expected `always`",
        ),
    ] {
        let root = sysfs("two-sockets-smt-offline", &[(path, Some(content))]);
        let error = Machine::local(root.path()).expect_err(path).to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_cpu_of_no_node_is_left_out_with_a_note() {
    let changes = [("devices/system/node/node1/cpulist", Some("0-3"))];
    let root = sysfs("two-sockets-smt-offline", &changes);
    let machine = Machine::local(root.path()).expect("what is left");
    assert_eq!(machine.node_of(CpuId(6)), None);
    assert!(
        machine
            .cores
            .iter()
            .flatten()
            .all(|&cpu| machine.node_of(cpu).is_some())
    );
    let notes = machine.notes.join("; ");
    assert!(
        notes.contains("belong to no node and are left out"),
        "{notes}"
    );
}

#[test]
fn names_paths_and_what_is_neither() {
    let root = sysfs("memory-only-node", &[]);
    let by = |argument: &str| Machine::by_name_or_path(argument, root.path());
    assert_eq!(by("local").expect("local").name, "local");
    assert_eq!(by("amd48").expect("preset").name, "amd48");
    let file = root.path().join("mine.toml");
    fs::write(&file, by("altix-4").expect("preset").to_toml()).expect("written");
    assert_eq!(
        by(file.to_str().expect("UTF-8")).expect("file").name,
        "altix-4"
    );
    let unknown = by("opteron").expect_err("unknown").to_string();
    assert!(
        unknown
            .starts_with("opteron: no such machine; there are `local`, `opteron-4`, `altix-4`, "),
        "{unknown}"
    );
    assert!(
        unknown.ends_with(", or the path of a TOML or hwloc XML file"),
        "{unknown}"
    );
    let missing = by("nowhere/mine.toml").expect_err("missing").to_string();
    assert!(
        missing.starts_with("nowhere/mine.toml: cannot be read: "),
        "{missing}"
    );
}

#[test]
fn the_machine_at_hand_can_be_read() {
    let machine = Machine::local(Path::new("/sys")).expect("this machine");
    assert!(!machine.cpus().as_slice().is_empty());
    assert!(machine.page_bytes.is_power_of_two());
}
