//! Over 500 lines: a test for each way in which gathered trees differ, over the same helpers.

use proptest::prelude::*;

use super::*;
use crate::tree::tests::{Made, archive};
use crate::{MemoryKind, NodeList};

fn machine(files: &[(&str, &str)]) -> Machine {
    let entries: Vec<(&str, Made)> = files
        .iter()
        .map(|(path, text)| (*path, Made::File(text)))
        .collect();
    Machine::from_sysfs_archive(&archive(&entries), "m.tar.gz").expect("reads")
}

fn cpus(machine: &Machine) -> Vec<String> {
    let list = |node: &Node| node.cpus.iter().copied().collect::<CpuList>().to_string();
    machine.nodes.iter().map(list).collect()
}

const TWO_CPUS: (&str, &str) = ("sys/devices/system/cpu/online", "0-1");

#[test]
fn a_tree_of_an_old_kernel_has_maps_instead_of_lists() {
    let machine = machine(&[
        (
            "sys/devices/system/cpu/cpu0/topology/thread_siblings",
            "00000003",
        ),
        (
            "sys/devices/system/cpu/cpu1/topology/thread_siblings",
            "00000003",
        ),
        ("sys/devices/system/cpu/cpu2/online", "0"),
        ("sys/devices/system/cpu/cpu3/cache/index0/level", "1"),
        ("sys/devices/system/cpu/cpu3/cache/index0/type", "Data"),
        ("sys/devices/system/cpu/cpu3/cache/index0/size", "16K"),
        (
            "sys/devices/system/cpu/cpu3/cache/index0/coherency_line_size",
            "64",
        ),
        (
            "sys/devices/system/cpu/cpu3/cache/index0/shared_cpu_map",
            "0000000c",
        ),
        (
            "sys/devices/system/node/node0/cpumap",
            "00000000,00000003\n\0\0",
        ),
        ("sys/devices/system/node/node5/cpumap", "00000000,0000000c"),
    ]);
    assert_eq!(machine.name, "m");
    assert_eq!(cpus(&machine), ["0-1", "3"]);
    assert_eq!(machine.nodes[1].id, NodeId(5));
    assert_eq!(machine.cores, [[CpuId(0), CpuId(1)]]);
    assert_eq!(
        (
            machine.caches[0].size_bytes,
            machine.caches[0].shared_by_cpus
        ),
        (16 << 10, 1)
    );
    let notes = machine.notes.join("\n");
    assert!(notes.contains("CPU 2 offline"), "{notes}");
    assert!(notes.contains("no distances"), "{notes}");
    assert!(notes.contains("size of a page"), "{notes}");
    assert!(!notes.contains("no caches"), "{notes}");
}

#[test]
fn devices_are_next_to_the_node_that_firmware_or_cpus_say() {
    let file = |pci: &str, name: &str| format!("sys/bus/pci/devices/{pci}/{name}");
    let class = |pci: &str, class: &'static str| (file(pci, "class"), class);
    let files = [
        ("sys/devices/system/cpu/online".to_owned(), "0-3"),
        ("sys/devices/system/node/node0/cpulist".to_owned(), "0-1"),
        ("sys/devices/system/node/node4/cpulist".to_owned(), "2-3"),
        class("0000:9a:00.0", "0x030200"),
        (file("0000:9a:00.0", "numa_node"), "4\n\0\0"),
        class("0000:3b:00.0", "0x030000"),
        (file("0000:3b:00.0", "numa_node"), "-1"),
        (file("0000:3b:00.0", "local_cpus"), "00000003"),
        class("10000:01:00.0", "0x120000"),
        (file("10000:01:00.0", "numa_node"), "7"),
        (file("10000:01:00.0", "local_cpulist"), "0-3"),
        class("0000:01:00.0", "0x030000"),
        (file("0000:01:00.0", "vendor"), "0x1a03"),
        class("0000:5e:00.1", "0x020700"),
        (file("0000:5e:00.1", "numa_node"), "0"),
        class("0000:5f:00.0", "0x010802"),
        (file("0000:5f:00.0", "numa_node"), "x"),
        class("0000:00:1f.0", "0x060100"),
        class("nonsense", "0x030000"),
        class("0000:02:00.0", "nonsense"),
    ];
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), *text))
        .collect();
    let machine = machine(&files);
    let found = machine.devices.iter();
    let found: Vec<(String, &str, Option<u16>)> = found
        .map(|device| {
            (
                device.to_string(),
                device.pci.as_str(),
                device.node.map(|node| node.0),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("gpu0".to_owned(), "0000:3b:00.0", Some(0)),
            ("gpu1".to_owned(), "0000:9a:00.0", Some(4)),
            ("gpu2".to_owned(), "10000:01:00.0", None),
            ("nic0".to_owned(), "0000:5e:00.1", Some(0)),
            ("nvme0".to_owned(), "0000:5f:00.0", None),
        ]
    );
    assert_eq!(
        machine.device_lines(),
        [
            "next to node 0: gpu0 (0000:3b:00.0), nic0 (0000:5e:00.1)",
            "next to node 4: gpu1 (0000:9a:00.0)",
            "node not known: gpu2 (10000:01:00.0), nvme0 (0000:5f:00.0)",
        ]
    );
    let again = Machine::from_toml(&machine.to_toml(), "again").expect("reads");
    assert_eq!(again.devices, machine.devices);
    let elsewhere = machine.to_toml().replace(
        "pci = \"0000:9a:00.0\"\nnode = 4",
        "pci = \"0000:9a:00.0\"\nnode = 3",
    );
    let error = Machine::from_toml(&elsewhere, "m").unwrap_err().to_string();
    assert!(
        error.contains("the device gpu1 is on a node that does not exist"),
        "{error}"
    );
}

#[test]
fn missing_facts_are_noted() {
    let machine = machine(&[
        TWO_CPUS,
        ("proc/meminfo", "MemTotal: 1024 kB"),
        ("proc/cpuinfo", "vendor_id: GenuineIntel"),
    ]);
    assert_eq!(cpus(&machine), ["0-1"]);
    assert_eq!(machine.nodes[0].memory_bytes, Some(1 << 20));
    assert_eq!(machine.notes.len(), 1, "{:?}", machine.notes);
    assert!(machine.notes[0].starts_with("no caches"));
    assert!(machine.source.contains("one node"), "{}", machine.source);
}

#[test]
fn cpus_without_a_node_are_left_out() {
    let machine = machine(&[
        TWO_CPUS,
        ("sys/devices/system/node/node0/cpulist", "0"),
        ("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0-1"),
        ("sys/devices/system/cpu/cpu1/topology/core_cpus_list", "0-1"),
    ]);
    assert_eq!(cpus(&machine), ["0"]);
    assert!(machine.cores.is_empty());
    assert!(
        machine
            .notes
            .iter()
            .any(|note| note.starts_with("CPUs 1 belong to no node")),
        "{:?}",
        machine.notes
    );
}

#[test]
fn control_groups_are_said_and_do_not_shrink_the_machine() {
    let groups = [
        ("cpuset", "rw", "dev/cpuset/job/cpus", "dev/cpuset/job/mems"),
        (
            "cgroup",
            "rw,cpuset",
            "dev/cpuset/job/cpuset.cpus",
            "dev/cpuset/job/cpuset.mems",
        ),
        (
            "cgroup2",
            "rw",
            "dev/cpuset/job/cpuset.cpus.effective",
            "dev/cpuset/job/cpuset.mems.effective",
        ),
    ];
    for (kind, options, cpu_file, node_file) in groups {
        let mounts = format!("none /dev/cpuset {kind} {options} 0 0");
        let said = |allowed: &str| {
            let machine = machine(&[
                TWO_CPUS,
                ("sys/devices/system/node/node0/cpulist", "0-1"),
                ("proc/mounts", &mounts),
                ("proc/self/cpuset", "/job"),
                (cpu_file, allowed),
                (node_file, "0"),
            ]);
            assert_eq!(cpus(&machine), ["0-1"]);
            machine
                .notes
                .into_iter()
                .find(|note| note.contains("control group"))
        };
        assert!(said("1").expect("a note").contains("CPUs 1 only"), "{kind}");
        assert_eq!(said("0-1"), None, "{kind}");
    }
}

#[test]
fn memory_of_gpus_caches_of_memory_and_kinds_of_cpus() {
    let machine = machine(&[
        TWO_CPUS,
        ("sys/devices/system/node/online", "0,250"),
        ("sys/devices/system/node/node0/cpulist", "0-1"),
        ("sys/devices/system/node/node0/distance", "10 80"),
        ("sys/devices/system/node/node250/cpulist", ""),
        ("sys/devices/system/node/node250/distance", "80 10"),
        (
            "sys/devices/system/node/node0/memory_side_cache/index1/size",
            "1073741824",
        ),
        (
            "sys/devices/system/node/node0/memory_side_cache/index1/line_size",
            "0",
        ),
        (
            "proc/driver/nvidia/gpus/0004:04:00.0/numa_status",
            "Node:      250\nStatus:    online",
        ),
        ("sys/devices/cpu_core/cpus", "0"),
        ("sys/devices/cpu_atom/cpus", "1"),
    ]);
    let kinds: Vec<_> = machine.nodes.iter().map(|node| node.memory_kind).collect();
    assert_eq!(kinds, [None, Some(MemoryKind::Gpu)]);
    assert_eq!(
        (
            machine.memory_caches[0].size_bytes,
            machine.memory_caches[0].line_bytes
        ),
        (1 << 30, None)
    );
    assert_eq!(machine.cpu_kinds[1].name, "cpu_atom");
    assert_eq!(machine.cpu_kinds[1].cpus, [CpuId(1)]);
    let text = machine.to_text(80);
    for words in [
        "node 250: no CPUs of a GPU",
        "cpu_atom: CPUs 1",
        "in front of node 0: 1 GiB",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(
        Machine::from_toml(&machine.to_toml(), "m").expect("reads"),
        machine
    );
}

#[test]
fn impossible_distances_of_a_gathered_tree_are_left_out() {
    let machine = machine(&[
        TWO_CPUS,
        ("sys/devices/system/node/node0/cpulist", "0-1"),
        ("sys/devices/system/node/node0/distance", "0"),
    ]);
    assert_eq!(machine.distance, None);
    assert!(
        machine
            .notes
            .iter()
            .any(|note| note.starts_with("distances below 10")),
        "{:?}",
        machine.notes
    );
}

/// A machine of two CPUs, siblings of a core, with these files of a cache.
fn with_caches(of_cache: &[(&str, &str)]) -> Machine {
    let mut files = vec![("sys/devices/system/cpu/online".to_owned(), "0-1".to_owned())];
    for cpu in ["cpu0", "cpu1"] {
        let cpu = format!("sys/devices/system/cpu/{cpu}");
        files.push((format!("{cpu}/topology/thread_siblings"), "3".to_owned()));
        for (name, text) in of_cache {
            files.push((format!("{cpu}/cache/{name}"), (*text).to_owned()));
        }
    }
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    machine(&files)
}

/// Lists of AMD's modules under Linux 3 name the CPU alone. On Itanium the set is empty.
#[test]
fn sets_say_who_shares_a_cache_where_lists_do_not() {
    for (map, list, shared) in [("3", "0", 2), ("0", "", 2), ("1", "0-1", 1)] {
        let machine = with_caches(&[
            ("index0/level", "2"),
            ("index0/type", "Unified"),
            ("index0/size", "2048K"),
            ("index0/coherency_line_size", "64"),
            ("index0/shared_cpu_map", map),
            ("index0/shared_cpu_list", list),
        ]);
        assert_eq!(machine.caches[0].shared_by_cpus, shared, "{map} {list}");
    }
}

/// HiSilicon's firmware has only four bits for the ways.
#[test]
fn ways_that_are_no_part_of_a_cache_follow_from_its_sets() {
    let ways = |ways: &str, sets: &str| {
        let machine = with_caches(&[
            ("index3/level", "3"),
            ("index3/type", "Unified"),
            ("index3/size", "32768K"),
            ("index3/coherency_line_size", "128"),
            ("index3/ways_of_associativity", ways),
            ("index3/number_of_sets", sets),
        ]);
        machine.caches[0].associativity
    };
    assert_eq!(ways("15", "2048"), 128);
    assert_eq!(ways("16", "2048"), 16);
    assert_eq!(ways("0", "2048"), 0);
    assert_eq!(ways("15", "0"), 15);
    assert_eq!(ways("15", "18446744073709551615"), 15);
}

#[test]
fn caches_whose_lines_have_no_size_are_left_out_with_a_note() {
    let machine = with_caches(&[
        ("index2/level", "2"),
        ("index2/type", "Unified"),
        ("index2/size", "512K"),
        ("index2/coherency_line_size", "0"),
        ("index3/level", "3"),
        ("index3/type", "Unified"),
        ("index3/size", "512K"),
    ]);
    assert_eq!(machine.caches, []);
    let note = "no size of lines is known of L2, L3: left out".to_owned();
    assert!(machine.notes.contains(&note), "{:?}", machine.notes);
}

/// 64 nodes of 32 CPUs, two CPUs per core, with three levels of caches.
#[test]
fn a_large_tree_takes_work_in_proportion_to_its_cpus() {
    const NODES: u32 = 64;
    const CPUS_A_NODE: u32 = 32;
    let mut files = vec![
        (
            "sys/devices/system/node/online".to_owned(),
            format!("0-{}", NODES - 1),
        ),
        (
            "sys/devices/system/cpu/online".to_owned(),
            format!("0-{}", NODES * CPUS_A_NODE - 1),
        ),
    ];
    for node in 0..NODES {
        let folder = format!("sys/devices/system/node/node{node}");
        let first = node * CPUS_A_NODE;
        let all = format!("{first}-{}", first + CPUS_A_NODE - 1);
        let distance = (0..NODES).map(|other| if other == node { "10" } else { "20" });
        files.push((format!("{folder}/cpulist"), all.clone()));
        files.push((
            format!("{folder}/distance"),
            distance.collect::<Vec<_>>().join(" "),
        ));
        for cpu in first..first + CPUS_A_NODE {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}");
            let core = format!("{}-{}", cpu & !1, cpu | 1);
            files.push((format!("{folder}/topology/core_cpus_list"), core.clone()));
            for (index, kind, shared) in [
                (0, "Data", &core),
                (1, "Instruction", &core),
                (2, "Unified", &core),
                (3, "Unified", &all),
            ] {
                let cache = format!("{folder}/cache/index{index}");
                files.push((format!("{cache}/level"), (index.max(1)).to_string()));
                files.push((format!("{cache}/type"), kind.to_owned()));
                files.push((format!("{cache}/size"), format!("{}K", 32 << index)));
                files.push((format!("{cache}/coherency_line_size"), "64".to_owned()));
                files.push((format!("{cache}/shared_cpu_list"), shared.clone()));
            }
        }
    }
    let entries: Vec<(&str, Made)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), Made::File(text)))
        .collect();
    let tree = Tree::archived(&archive(&entries), Path::new("large")).expect("reads");
    let machine = from_tree(&tree, "large".to_owned()).expect("a machine");
    assert_eq!(machine.nodes.len(), 64);
    assert_eq!(machine.cpus().as_slice().len(), 2048);
    assert_eq!(machine.cores.len(), 1024);
    assert_eq!(machine.caches.len(), 4);
    assert_eq!(machine.caches[3].shared_by_cpus, 32);
    assert!(machine.weight(NodeId(0), NodeId(63)).is_some());
    assert_eq!(
        machine
            .node_ids()
            .into_iter()
            .collect::<NodeList>()
            .to_string(),
        "0-63"
    );
    // Each file is read at most once, and a shared cache once for all its CPUs.
    assert!(tree.reads() < 17 * 2048, "{}", tree.reads());
}

/// The list of online CPUs of a gathered tree can name any number of them.
#[test]
fn cpus_without_a_folder_are_not_looked_up_file_by_file() {
    let entries = [
        ("sys/devices/system/cpu/online", Made::File("0-34287")),
        (
            "sys/devices/system/cpu/cpu3/topology/core_cpus_list",
            Made::File("3-4"),
        ),
        // Not the number 3 once more.
        (
            "sys/devices/system/cpu/cpu03/topology/core_cpus_list",
            Made::File("5-6"),
        ),
    ];
    let tree = Tree::archived(&archive(&entries), Path::new("many")).expect("reads");
    let machine = from_tree(&tree, "many".to_owned()).expect("a machine");
    assert_eq!(machine.cpus().as_slice().len(), 34288);
    assert_eq!(machine.cores, [[CpuId(3), CpuId(4)]]);
    assert!(tree.reads() < 100, "{}", tree.reads());
}

/// Files that every part of the reader accesses.
const FILES: [(&str, &str); 22] = [
    ("m/sys/devices/system/cpu/online", "0-1"),
    (
        "m/sys/devices/system/cpu/cpu0/topology/thread_siblings",
        "3",
    ),
    ("m/sys/devices/system/cpu/cpu0/cpu_capacity", "512"),
    ("m/sys/devices/system/cpu/cpu1/cpu_capacity", "1024"),
    ("m/sys/devices/system/cpu/cpu0/cache/index0/level", "1"),
    ("m/sys/devices/system/cpu/cpu0/cache/index0/type", "Data"),
    ("m/sys/devices/system/cpu/cpu0/cache/index0/size", "32K"),
    (
        "m/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size",
        "64",
    ),
    (
        "m/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_map",
        "3",
    ),
    ("m/sys/devices/system/node/online", "0-1"),
    ("m/sys/devices/system/node/node0/cpumap", "1"),
    ("m/sys/devices/system/node/node0/distance", "10 20"),
    (
        "m/sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal: 64 kB",
    ),
    ("m/sys/devices/system/node/node1/cpulist", "1"),
    ("m/sys/devices/system/node/node1/distance", "20 10"),
    (
        "m/sys/devices/system/node/node1/memory_side_cache/index1/size",
        "4096",
    ),
    (
        "m/sys/devices/system/node/node0/access0/initiators/read_latency",
        "80",
    ),
    (
        "m/sys/devices/system/node/node0/access0/initiators/node0/x",
        "",
    ),
    (
        "m/sys/kernel/mm/transparent_hugepage/enabled",
        "[always] never",
    ),
    ("m/proc/mounts", "none /dev/cpuset cpuset rw 0 0"),
    ("m/proc/self/cpuset", "/a"),
    ("m/dev/cpuset/a/cpus", "0"),
];

fn is_a_machine_or_one_line(archive: &[u8]) -> Result<bool, TestCaseError> {
    match Machine::from_sysfs_archive(archive, "m.tar") {
        Ok(machine) => {
            machine.to_text(80);
            let again = Machine::from_toml(&machine.to_toml(), "again");
            prop_assert_eq!(again.expect("what was written"), machine);
            Ok(true)
        }
        Err(error) => {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
            Ok(false)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_text_in_any_file_ends_in_a_machine_or_one_line(
        changes in prop::collection::vec((0..FILES.len(), "[0-9a-fK, -]{0,12}|.{0,12}"), 0..4),
    ) {
        let mut files: Vec<(&str, String)> = FILES.iter().map(|(path, text)| (*path, (*text).to_owned())).collect();
        for (at, text) in &changes {
            files[*at].1.clone_from(text);
        }
        let entries: Vec<(&str, Made)> = files.iter().map(|(path, text)| (*path, Made::File(text))).collect();
        let is_machine = is_a_machine_or_one_line(&archive(&entries))?;
        prop_assert!(is_machine || !changes.is_empty());
    }

    #[test]
    fn any_bytes_in_an_archive_end_in_a_machine_or_one_line(
        changes in prop::collection::vec((0usize..30_000, any::<u8>()), 0..8),
    ) {
        let entries: Vec<(&str, Made)> = FILES.iter().map(|(path, text)| (*path, Made::File(text))).collect();
        let mut bytes = archive(&entries);
        let length = bytes.len();
        for (at, byte) in changes {
            bytes[at % length] = byte;
        }
        is_a_machine_or_one_line(&bytes)?;
    }
}

#[test]
fn a_gathered_tree_says_the_size_of_a_page() {
    let system = tempfile::tempdir().expect("a folder");
    let cpus = system.path().join("devices/system/cpu");
    std::fs::create_dir_all(&cpus).expect("folders");
    std::fs::write(cpus.join("online"), "0\n").expect("a file");
    let gathered = Machine::gather(system.path()).expect("reads");
    let text = |content: &Vec<u8>| String::from_utf8(content.clone()).expect("text");
    let files: Vec<(&str, String)> = gathered
        .iter()
        .filter_map(|(path, content)| Some((path.as_str(), text(content.as_ref()?))))
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, &**text)).collect();
    let there = machine(&files);
    let here = Machine::local(system.path()).expect("reads");
    assert_eq!(there.page_bytes, here.page_bytes);
    let assumed = |note: &String| note.contains("size of a page");
    assert!(!there.notes.iter().any(assumed), "{:?}", there.notes);
}
