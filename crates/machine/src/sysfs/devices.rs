//! GPUs, network adapters and NVMe controllers, from `bus/pci/devices`
//! (Documentation/ABI/testing/sysfs-bus-pci). What a device's files do not say is not known: no device is worth an error.

use crate::device::pci_place;
use crate::tree::Tree;
use crate::{CpuId, Device, DeviceKind, List, Node, NodeId};

const DEVICES: &str = "sys/bus/pci/devices";
/// More devices are left out: large servers have some hundred.
const DEVICES_MAX: usize = 1 << 16;

/// Class codes (PCI Code and ID Assignment Specification): base class and subclass.
const DISPLAY: u32 = 0x03;
const PROCESSING_ACCELERATOR: u32 = 0x12;
const ETHERNET: u32 = 0x02_00;
const INFINIBAND: u32 = 0x02_07;
const OTHER_NETWORK: u32 = 0x02_80;
const NON_VOLATILE_MEMORY: u32 = 0x01_08;
/// Makers of the displays of management controllers, which compute nothing: ASPEED, Matrox.
const MANAGEMENT: [u32; 2] = [0x1a03, 0x102b];

/// All of them, by kind and address.
pub(super) fn of(tree: &Tree, nodes: &[Node]) -> Vec<Device> {
    let names = tree.names(DEVICES).unwrap_or_default();
    let mut found: Vec<(DeviceKind, [u32; 4], String)> = names
        .into_iter()
        .take(DEVICES_MAX)
        .filter_map(|name| Some((kind(tree, &name)?, pci_place(&name)?, name)))
        .collect();
    found.sort();
    let mut devices: Vec<Device> = Vec::new();
    for (kind, _, pci) in found {
        let before = devices.last().filter(|before| before.kind == kind);
        devices.push(Device {
            kind,
            number: before.map_or(0, |before| before.number + 1),
            node: node(tree, &pci, nodes),
            pci,
        });
    }
    devices
}

fn kind(tree: &Tree, name: &str) -> Option<DeviceKind> {
    let class = word(tree, name, "class")?;
    match (class >> 16, class >> 8) {
        (DISPLAY, _) => {
            let vendor = word(tree, name, "vendor");
            let computes = vendor.is_none_or(|vendor| !MANAGEMENT.contains(&vendor));
            computes.then_some(DeviceKind::Gpu)
        }
        (PROCESSING_ACCELERATOR, _) => Some(DeviceKind::Gpu),
        (_, ETHERNET | INFINIBAND | OTHER_NETWORK) => Some(DeviceKind::Nic),
        (_, NON_VOLATILE_MEMORY) => Some(DeviceKind::Nvme),
        _ => None,
    }
}

/// `0x030200`.
fn word(tree: &Tree, name: &str, file: &str) -> Option<u32> {
    let text = tree.read(&format!("{DEVICES}/{name}/{file}")).ok()??;
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The only node, or the one that the firmware names, else the one that has all of the CPUs next to the device.
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
    // CPUs that are off-line are on no node.
    let node_of = |cpu: &CpuId| nodes.iter().find(|node| node.cpus.contains(cpu));
    let mut places = cpus
        .as_slice()
        .iter()
        .filter_map(node_of)
        .map(|node| node.id);
    let first = places.next()?;
    places.all(|other| other == first).then_some(first)
}
