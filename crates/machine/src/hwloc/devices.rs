//! GPUs, network adapters and NVMe controllers: objects of type `PCIDev`.
//!
//! `pci_type` begins with class and subclass, and the vendor in brackets: `0200 [8086:1521] …`. Devices with a missing
//! or damaged attribute are skipped without an error.

use roxmltree::Node as Element;

use super::attributes::cpuset;
use crate::device::{kind_of, node_next_to, numbered};
use crate::{CpuList, Device, Node, NodeId};

/// Maximum number of devices; further ones are left out.
const DEVICES_MAX: usize = 1 << 16;

/// All devices, by kind and address.
pub(super) fn of<'a, 'input: 'a>(
    objects: impl Iterator<Item = &'a Element<'a, 'input>>,
    nodes: &[Node],
    cpus: &CpuList,
) -> Vec<Device> {
    let found = objects.take(DEVICES_MAX).filter_map(|object| {
        let words = object.attribute("pci_type")?;
        let (class, rest) = words.split_once(' ')?;
        let class = u32::from_str_radix(class, 16).ok()?;
        let vendor = || {
            let (vendor, _) = rest.strip_prefix('[')?.split_once(':')?;
            u32::from_str_radix(vendor, 16).ok()
        };
        let kind = kind_of(class, vendor)?;
        let pci = object.attribute("pci_busid")?.to_owned();
        Some((kind, pci, node(*object, nodes, cpus)))
    });
    numbered(found)
}

/// The only node, or the node with all CPUs of the closest ancestor that has CPUs.
fn node(object: Element<'_, '_>, nodes: &[Node], cpus: &CpuList) -> Option<NodeId> {
    if let [only] = nodes {
        return Some(only.id);
    }
    let mut around = object.ancestors().skip(1);
    let around = around.find(|ancestor| ancestor.attribute("cpuset").is_some())?;
    let near = cpuset(around, "cpuset", cpus).ok()?;
    node_next_to(near.as_slice(), nodes)
}
