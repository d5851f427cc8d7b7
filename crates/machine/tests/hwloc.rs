//! `Machine::from_hwloc_xml` on the files of `tests/hwloc`.

use std::fs;
use std::path::{Path, PathBuf};

use nearpage_machine::{CacheKind, CpuId, CpuList, Machine, NodeId};
use proptest::prelude::*;

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hwloc");
    folder.join(name).with_extension("xml")
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).expect("fixture")
}

fn machine(name: &str) -> Machine {
    Machine::by_name_or_path(path(name).to_str().expect("UTF-8"), Path::new("/sys")).expect(name)
}

fn cpus(machine: &Machine) -> Vec<String> {
    let list = |cpus: &[CpuId]| cpus.iter().copied().collect::<CpuList>().to_string();
    machine.nodes.iter().map(|node| list(&node.cpus)).collect()
}

#[test]
fn a_real_machine() {
    let machine = machine("one-node");
    assert_eq!(
        (machine.name.as_str(), cpus(&machine)),
        ("one-node", vec!["0-1".to_owned()])
    );
    assert_eq!(machine.source, "hwloc 2.9.0");
    assert_eq!(
        (machine.page_bytes, machine.huge_page_bytes),
        (4096, Some(2 << 20))
    );
    assert_eq!(machine.nodes[0].memory_bytes, Some(21_299_269_632));
    let shape: Vec<_> = machine
        .caches
        .iter()
        .map(|cache| {
            (
                cache.level,
                cache.kind,
                cache.size_bytes >> 10,
                cache.shared_by_cpus,
            )
        })
        .collect();
    assert_eq!(
        shape,
        [
            (1, CacheKind::Data, 48, 1),
            (1, CacheKind::Instruction, 32, 1),
            (2, CacheKind::Unified, 2048, 1),
            (3, CacheKind::Unified, 107_520, 2),
        ]
    );
    assert_eq!(machine.caches[3].associativity, 15);
    assert_eq!(machine.cores, [[CpuId(0); 2]; 0]);
}

#[test]
fn four_nodes_in_both_versions_of_the_format() {
    let second = machine("four-nodes");
    assert_eq!(cpus(&second), ["0-3", "4-7", "8-11", "12-15"]);
    assert_eq!(second.cores.len(), 8);
    assert_eq!(second.cores[7], [14, 15].map(CpuId));
    assert_eq!(
        second.distance,
        Some(vec![
            vec![10, 16, 17, 22],
            vec![16, 10, 22, 16],
            vec![16, 22, 10, 16],
            vec![22, 16, 16, 10]
        ])
    );
    let read = second
        .bandwidth
        .read_bytes_per_s
        .clone()
        .expect("read bandwidths");
    assert_eq!(
        read[0],
        [Some(8e9), Some(5e9), Some(4.705e9), Some(3.636e9)]
    );

    let mut first = machine("four-nodes-v1");
    assert!(first.bandwidth.read_bytes_per_s.is_none());
    first.name.clone_from(&second.name);
    first.bandwidth = second.bandwidth.clone();
    assert_eq!(first, second);
    assert_eq!(
        Machine::from_toml(&second.to_toml(), "written").expect("reads"),
        second
    );
}

#[test]
fn memory_without_cpus_is_a_node_of_its_own() {
    let machine = machine("memory-only-nodes");
    assert_eq!(cpus(&machine), ["0-1", "", "2-3", ""]);
    assert_eq!(machine.nodes[1].memory_bytes, Some(1_000_000_000));
    let unknown = vec![None; 4];
    assert_eq!(
        machine.latency_ns,
        Some(vec![
            vec![Some(110.0), Some(140.0), None, None],
            unknown.clone(),
            vec![None, None, Some(120.0), None],
            unknown.clone(),
        ])
    );
    let mebibyte = f64::from(1 << 20);
    let read = machine.bandwidth.read_bytes_per_s.clone().expect("read");
    let write = machine.bandwidth.write_bytes_per_s.clone().expect("write");
    assert_eq!(read[0][0], Some(100_000.0 * mebibyte));
    assert_eq!(write[0][1], Some(300_000.0 * mebibyte));
    // Node 0 has 11 ns per unit of distance; Linux's default distance of remote nodes is 20.
    assert_eq!(machine.weight(NodeId(0), NodeId(2)), Some(220.0));
    assert!(
        machine.to_text(80).contains("0  110  140    -    -"),
        "{}",
        machine.to_text(80)
    );
}

/// The order of the matrix differs from that of the nodes.
#[test]
fn rows_are_told_by_their_indexes() {
    let swapped = text("four-nodes").replace("0 1 2 3 </indexes>", "2 1 0 3 </indexes>");
    let machine = Machine::from_hwloc_xml(&swapped, "swapped.xml").expect("reads");
    let distance = machine.distance.expect("distances");
    assert_eq!((distance[2][0], distance[0][2]), (17, 16));
}

#[test]
fn distances_of_people_are_relative() {
    let theirs = text("four-nodes")
        .replace(r#"kind="5""#, r#"kind="6""#)
        .replace(
            "10 16 17 22 16 10 22 16 16 22",
            "100 160 170 220 160 100 220 160 160 220",
        )
        .replace("10 16 22 16 16 10", "100 160 220 160 160 100");
    let machine = Machine::from_hwloc_xml(&theirs, "theirs.xml").expect("reads");
    assert_eq!(machine.distance.expect("distances")[0], [10, 16, 17, 22]);
}

#[test]
fn big_sets_have_several_words() {
    let xml = r#"<topology version="2.0"><object type="Machine">
        <object type="NUMANode" os_index="0" cpuset="0x00000002,,0x00000001"/>
        <object type="NUMANode" os_index="3" cpuset="0xf...f,0xfffffffd,0x0,0x0"/>
        <object type="PU" os_index="0"/><object type="PU" os_index="65"/>
        <object type="PU" os_index="66"/><object type="PU" os_index="300"/>
        </object></topology>"#;
    let machine = Machine::from_hwloc_xml(xml, "big.xml").expect("reads");
    assert_eq!(cpus(&machine), ["0,65", "66,300"]);
    let everything = xml.replace("0xf...f,0xfffffffd,0x0,0x0", "0xf...f");
    let machine = Machine::from_hwloc_xml(&everything, "big.xml").expect("reads");
    assert_eq!(cpus(&machine), ["0,65", "66,300"]);
}

#[test]
fn bad_files_have_one_clear_line() {
    let four = text("four-nodes");
    for (from, to, message) in [
        ("</topology>", "", "bad.xml: line "),
        ("<topology", "<machine", "bad.xml: line "),
        (
            r#"local_memory="1073741824""#,
            r#"local_memory="-3""#,
            "bad.xml: line 9: `local_memory` is \"-3\"; expected a whole number of at most",
        ),
        (
            r#"type="PU" os_index="1""#,
            r#"type="PU" os_index="99999""#,
            "bad.xml: line 14: `os_index` is \"99999\"; expected a whole number of at most 65535",
        ),
        (
            r#"os_index="3" cpuset="0x0000f000""#,
            r#"os_index="2" cpuset="0x0000f000""#,
            "bad.xml: line 48: NUMANode 2 is there twice",
        ),
        (
            r#"os_index="3" cpuset="0x0000f000""#,
            r#"os_index="3" cpuset="0xzz""#,
            "`cpuset` is \"0xzz\"; expected a set such as 0x000000ff",
        ),
        (
            "0 1 2 3 </indexes>",
            "0 1 2 4 </indexes>",
            "index 4 is no NUMA node",
        ),
        (
            ">10 16 17 22",
            ">-10 16 17 22",
            "expected a number of at least 0, found \"-10\"",
        ),
        (
            ">10 16 17 22",
            ">10 16 0 22",
            "distances between NUMA nodes must be positive",
        ),
        (">10 16 17 22", ">10 nan 17 22", "found \"nan\""),
    ] {
        assert!(four.contains(from), "{from}");
        let error = Machine::from_hwloc_xml(&four.replace(from, to), "bad.xml");
        let error = error.expect_err(to).to_string();
        assert!(error.contains(message), "{to}: {error}");
        assert!(
            error.starts_with("bad.xml: ") && !error.contains('\n'),
            "{error}"
        );
    }
    // Node 0 is there twice and node 1 is hidden, so the matrix still has as many rows. A fuzz target found this case.
    let hidden = text("four-nodes-v1").replace(
        r#"os_index="1" cpuset="0x000000f0""#,
        r#"os_index="0" cpuset="0x0000000f""#,
    );
    let error = Machine::from_hwloc_xml(&hidden, "hidden.xml").expect_err("twice");
    assert!(
        error.to_string().contains("NUMANode 0 is there twice"),
        "{error}"
    );
    let other = Machine::from_hwloc_xml("<html></html>", "page.xml").expect_err("other");
    assert!(
        other.to_string().contains("page.xml: line 1: not hwloc's"),
        "{other}"
    );
    let empty = Machine::from_hwloc_xml("", "empty.xml")
        .expect_err("empty")
        .to_string();
    assert!(empty.starts_with("empty.xml: line 1: "), "{empty}");
}

proptest! {
    #[test]
    fn damage_is_an_error_and_never_a_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for name in ["four-nodes", "memory-only-nodes"] {
            let mut bytes = text(name).into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(machine) = Machine::from_hwloc_xml(&String::from_utf8_lossy(&bytes), "damaged") {
                machine.validate().expect("checked");
            }
        }
    }
}

/// Output of `lstopo` in a control group that may use the CPUs of both packages, but the memory of only one.
const HIDDEN_MEMORY: &str = r#"<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000002" complete_nodeset="0x00000003">
    <object type="Package" cpuset="0x00000003" nodeset="0x0" complete_nodeset="0x00000001">
      <object type="PU" os_index="0" cpuset="0x00000001" complete_nodeset="0x00000001"/>
      <object type="PU" os_index="1" cpuset="0x00000002"/>
    </object>
    <object type="Package" cpuset="0x0000000c" nodeset="0x00000002" complete_nodeset="0x00000002">
      <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" local_memory="8589934592"/>
      <object type="PU" os_index="2" cpuset="0x00000004" complete_nodeset="0x00000002"/>
      <object type="PU" os_index="3" cpuset="0x00000008" complete_nodeset="0x00000002"/>
    </object>
  </object>
</topology>"#;

#[test]
fn cpus_whose_memory_a_control_group_hides_are_on_a_node_without_memory() {
    let machine = Machine::from_hwloc_xml(HIDDEN_MEMORY, "hidden.xml").expect("hwloc's");
    let nodes: Vec<_> = machine
        .nodes
        .iter()
        .map(|node| {
            (
                node.id.0,
                node.cpus.iter().map(|cpu| cpu.0).collect(),
                node.memory_bytes,
            )
        })
        .collect();
    assert_eq!(
        nodes,
        [(0, vec![0, 1], Some(0)), (1, vec![2, 3], Some(8 << 30))]
    );
    assert_eq!(machine.nodes_with_memory().len(), 1);
    let nowhere = HIDDEN_MEMORY.replace("complete_nodeset", "other");
    let machine = Machine::from_hwloc_xml(&nowhere, "hidden.xml").expect("without two CPUs");
    assert_eq!(machine.cpus().to_string(), "2-3");
    assert_eq!(
        machine.notes,
        ["CPUs 0-1 belong to no node and are left out"]
    );
}
