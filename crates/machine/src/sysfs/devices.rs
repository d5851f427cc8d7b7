//! GPUs, network adapters and NVMe controllers, from `bus/pci/devices` (Documentation/ABI/testing/sysfs-bus-pci).
//! Missing or damaged files of a device cause no error.

use crate::device::{kind_of, node_next_to, numbered};
use crate::tree::Tree;
use crate::{CpuId, Device, List, Node, NodeId};

const DEVICES: &str = "sys/bus/pci/devices";
/// Maximum number of devices; large servers have some hundred.
const DEVICES_MAX: usize = 1 << 16;

/// All devices, by kind and address.
pub(super) fn of(tree: &Tree, nodes: &[Node]) -> Vec<Device> {
    let names = tree.names(DEVICES).unwrap_or_default();
    let found = names.into_iter().take(DEVICES_MAX).filter_map(|name| {
        let class = word(tree, &name, "class")?;
        let kind = kind_of(class >> 8, || word(tree, &name, "vendor"))?;
        let node = node(tree, &name, nodes);
        Some((kind, name, node))
    });
    numbered(found)
}

/// Value of a file such as `0x030200`.
fn word(tree: &Tree, name: &str, file: &str) -> Option<u32> {
    let text = tree.read(&format!("{DEVICES}/{name}/{file}")).ok()??;
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The only node, or the node that the firmware names, or else the node with all CPUs next to the device.
fn node(tree: &Tree, name: &str, nodes: &[Node]) -> Option<NodeId> {
    if let [only] = nodes {
        return Some(only.id);
    }
    let text = tree.read(&format!("{DEVICES}/{name}/numa_node"));
    let named = text.ok().flatten().and_then(|text| text.parse().ok());
    if let Some(named) = named.map(NodeId)
        && nodes.iter().any(|node| node.id == named)
    {
        return Some(named);
    }
    let files = ["local_cpulist", "local_cpus"].map(|file| format!("{DEVICES}/{name}/{file}"));
    let cpus: List<CpuId> = tree.list_or_map(&files[0], &files[1]).ok()??;
    node_next_to(cpus.as_slice(), nodes)
}
