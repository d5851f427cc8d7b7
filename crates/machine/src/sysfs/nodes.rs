//! Memory nodes: CPUs, memory, distances, firmware ratings, memory-side caches.

use std::collections::BTreeSet;

use super::{NODES, cpus_in_words};
use crate::tree::Tree;
use crate::{
    Bandwidth, CpuId, CpuList, DISTANCE_LOCAL, Error, List, Matrix, MemoryCache, MemoryKind, Node,
    NodeId, NodeList, Number, figures,
};

/// Maximum number of nodes in Linux (`NODES_SHIFT` is 10 at most); it also bounds the square of distances.
const NODES_MAX: usize = 1024;

type NodesAndDistances = (Vec<Node>, Option<Vec<Vec<u32>>>);

/// The nodes with their `online` CPUs; `None` if there are no nodes.
pub(super) fn of(
    tree: &Tree,
    online: &CpuList,
    notes: &mut Vec<String>,
) -> Result<Option<NodesAndDistances>, Error> {
    let list = format!("{NODES}/online");
    let ids = match tree.list::<NodeId>(&list)? {
        Some(online) => online,
        None => tree
            .numbered(NODES, "node")?
            .into_iter()
            .filter(|(node, _)| *node <= NodeId::MAX)
            .map(|(node, _)| NodeId::from_number(node))
            .collect::<NodeList>(),
    };
    let count = ids.as_slice().len();
    if count == 0 {
        return Ok(None);
    }
    if count > NODES_MAX {
        return Err(tree.unexpected(&list, "1024 nodes at most", &format!("{count} nodes")));
    }
    let on_gpus = gpu_nodes(tree)?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut distance = Vec::new();
    let mut placed = BTreeSet::new();
    let mut several_times = BTreeSet::new();
    for &id in ids.as_slice() {
        let folder = format!("{NODES}/node{id}");
        let listed: List<CpuId> = tree
            .list_or_map(&format!("{folder}/cpulist"), &format!("{folder}/cpumap"))?
            .unwrap_or_default();
        let mut cpus = Vec::new();
        for &cpu in listed
            .as_slice()
            .iter()
            .filter(|&&cpu| online.contains(cpu))
        {
            // With `numa=fake` (Documentation/arch/x86/x86_64/fake-numa-for-cpusets.rst), all parts of a real node list
            // its CPUs; here the CPUs belong to the first part.
            match placed.insert(cpu) {
                true => cpus.push(cpu),
                false => drop(several_times.insert(cpu)),
            }
        }
        let memory_kind = on_gpus.contains(&id).then_some(MemoryKind::Gpu);
        nodes.push(Node {
            id,
            cpus,
            memory_bytes: memory_bytes(tree, &format!("{folder}/meminfo"))?,
            memory_kind,
        });
        if let Some(row) = distances(tree, &format!("{folder}/distance"), count)? {
            distance.push(row);
        }
    }
    if !several_times.is_empty() {
        let several_times: Vec<CpuId> = several_times.into_iter().collect();
        let words = cpus_in_words(&several_times);
        notes.push(format!(
            "{words} listed by several nodes: each counts to the first of them"
        ));
    }
    Ok(Some((nodes, sensible(distance, count, tree, notes))))
}

/// Distances from a node.
fn distances(tree: &Tree, path: &str, nodes: usize) -> Result<Option<Vec<u32>>, Error> {
    let Some(text) = tree.read(path)?.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let row: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    let row = row.map_err(|_| tree.unexpected(path, "distances such as `10 20`", &text))?;
    match row.len() == nodes {
        true => Ok(Some(row)),
        false => Err(tree.unexpected(path, "one distance for each node that is on-line", &text)),
    }
}

/// Distances of all nodes; `None` with a note if a gathered tree has impossible ones, as from old firmware.
fn sensible(
    distance: Vec<Vec<u32>>,
    nodes: usize,
    tree: &Tree,
    notes: &mut Vec<String>,
) -> Option<Vec<Vec<u32>>> {
    if distance.len() != nodes {
        return None;
    }
    let is_impossible = |(at, row): (usize, &Vec<u32>)| {
        row.iter()
            .any(|&other| other < DISTANCE_LOCAL || other < row[at])
    };
    if !tree.is_system() && distance.iter().enumerate().any(is_impossible) {
        notes.push("distances below 10, or nearer than a node's own memory: left out".to_owned());
        return None;
    }
    Some(distance)
}

/// Nodes in GPU memory: `/proc/driver/nvidia/gpus/*/numa_status`.
fn gpu_nodes(tree: &Tree) -> Result<BTreeSet<NodeId>, Error> {
    const GPUS: &str = "proc/driver/nvidia/gpus";
    let mut nodes = BTreeSet::new();
    for gpu in tree.names(GPUS)? {
        let status = tree
            .read(&format!("{GPUS}/{gpu}/numa_status"))?
            .unwrap_or_default();
        let node = status
            .lines()
            .find_map(|line| line.strip_prefix("Node:")?.trim().parse().ok());
        nodes.extend(node.map(NodeId));
    }
    Ok(nodes)
}

/// Firmware ratings of each memory node for its nearest CPUs (ACPI HMAT):
/// `nodeN/accessC/initiators/{read,write}_{latency,bandwidth}`, in nanoseconds and MB/s of 10^6 bytes
/// (Documentation/ABI/stable/sysfs-devices-node; numaperf.rst says MiB/s, ACPI 6.5 table 5.146 MB/s). The initiators of
/// class 1 are CPUs; those of class 0, which older kernels have alone, may be devices. The kernel shows no other pairs.
pub(super) fn rated(tree: &Tree, nodes: &[Node]) -> Result<(Option<Matrix>, Bandwidth), Error> {
    const MEGABYTE: f64 = 1e6;
    let unknown = vec![vec![None; nodes.len()]; nodes.len()];
    let mut latency_ns = unknown.clone();
    let mut read = unknown.clone();
    let mut write = unknown;
    for (column, node) in nodes.iter().enumerate() {
        let initiators = ["access1", "access0"]
            .map(|class| format!("{NODES}/node{}/{class}/initiators", node.id))
            .into_iter()
            .find(|folder| tree.exists(&format!("{folder}/read_latency")));
        let Some(initiators) = initiators else {
            continue;
        };
        // The kernel writes 0 if the firmware has no figure.
        let figure = |name: &str| {
            let number = tree.number::<u32>(&format!("{initiators}/{name}"))?;
            Ok(number.filter(|&number| number > 0).map(f64::from))
        };
        for (row, cpu_node) in nodes.iter().enumerate() {
            let is_initiator = || tree.exists(&format!("{initiators}/node{}", cpu_node.id));
            if cpu_node.cpus.is_empty() || !is_initiator() {
                continue;
            }
            latency_ns[row][column] = figure("read_latency")?;
            read[row][column] = figure("read_bandwidth")?.map(|rate| rate * MEGABYTE);
            write[row][column] = figure("write_bandwidth")?.map(|rate| rate * MEGABYTE);
        }
    }
    let bandwidth = Bandwidth {
        read_bytes_per_s: figures::if_known(read),
        write_bytes_per_s: figures::if_known(write),
        mixed_bytes_per_s: None,
    };
    Ok((figures::if_known(latency_ns), bandwidth))
}

/// Memory-side caches (ACPI HMAT): `nodeN/memory_side_cache/indexM/{size,line_size}`
/// (Documentation/ABI/stable/sysfs-devices-node).
pub(super) fn memory_caches(tree: &Tree, nodes: &[Node]) -> Result<Vec<MemoryCache>, Error> {
    let mut caches = Vec::new();
    for node in nodes {
        let folder = format!("{NODES}/node{}/memory_side_cache", node.id);
        for (level, cache) in tree.numbered(&folder, "index")? {
            let size_bytes = tree.number::<u64>(&format!("{cache}/size"))?;
            let line_bytes = tree.number::<u32>(&format!("{cache}/line_size"))?;
            if let Some(size_bytes) = size_bytes.filter(|&size| size > 0) {
                let line_bytes = line_bytes.filter(|&line| line > 0);
                let level = u8::try_from(level.max(1)).unwrap_or(u8::MAX);
                caches.push(MemoryCache {
                    node: node.id,
                    level,
                    size_bytes,
                    line_bytes,
                });
            }
        }
    }
    Ok(caches)
}

/// Reads a line such as `Node 0 MemTotal:  16313148 kB`.
fn memory_bytes(tree: &Tree, path: &str) -> Result<Option<u64>, Error> {
    let Some(text) = tree.read(path)? else {
        return Ok(None);
    };
    let Some(line) = text.lines().find(|line| line.contains("MemTotal:")) else {
        return Ok(None);
    };
    let mut words = line.split_whitespace().rev();
    let kibibytes = match (words.next(), words.next()) {
        (Some("kB"), Some(number)) => number.parse::<u64>().ok(),
        _ => None,
    };
    let bytes = kibibytes.and_then(|number| number.checked_mul(1024));
    bytes
        .map(Some)
        .ok_or_else(|| tree.unexpected(path, "`Node N MemTotal: M kB`", line))
}

/// Memory of a gathered tree without nodes.
pub(super) fn memory_of_all(tree: &Tree) -> Result<Option<u64>, Error> {
    match tree.is_system() {
        true => Ok(None),
        false => memory_bytes(tree, "proc/meminfo"),
    }
}
