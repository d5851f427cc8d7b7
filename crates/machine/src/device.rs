//! Devices that access memory directly, and the node that each device is attached to.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CpuId, Machine, Node, NodeId};

/// Function of a device.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// Computes: a GPU or another accelerator.
    Gpu,
    /// Sends and receives: Ethernet, InfiniBand.
    Nic,
    /// Stores: an NVMe controller.
    Nvme,
}

impl DeviceKind {
    /// Prefix of the names of such devices.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Nic => "nic",
            Self::Nvme => "nvme",
        }
    }
}

/// A device on the machine's PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Function of the device.
    pub kind: DeviceKind,
    /// Number of the device among the devices of its kind, in order of PCI addresses.
    pub number: u32,
    /// PCI address, hexadecimal: `DOMAIN:BUS:DEVICE.FUNCTION`.
    pub pci: String,
    /// Node next to the device; absent where the firmware does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

impl fmt::Display for Device {
    /// `gpu0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.as_str(), self.number)
    }
}

impl Machine {
    /// The device of this kind and number.
    pub fn device(&self, kind: DeviceKind, number: u32) -> Option<&Device> {
        let mut devices = self.devices.iter();
        devices.find(|device| (device.kind, device.number) == (kind, number))
    }
}

/// PCI class codes (PCI Code and ID Assignment Specification): base class, or base class and subclass.
const DISPLAY: u32 = 0x03;
const PROCESSING_ACCELERATOR: u32 = 0x12;
const ETHERNET: u32 = 0x02_00;
const INFINIBAND: u32 = 0x02_07;
const OTHER_NETWORK: u32 = 0x02_80;
const NON_VOLATILE_MEMORY: u32 = 0x01_08;
/// Vendors of display devices in management controllers, which compute nothing: ASPEED, Matrox.
const MANAGEMENT: [u32; 2] = [0x1a03, 0x102b];

/// Kind of a device with this base class and subclass; `None`: not a kind that nearpage reports.
pub(crate) fn kind_of(class: u32, vendor: impl FnOnce() -> Option<u32>) -> Option<DeviceKind> {
    match (class >> 8, class) {
        (DISPLAY, _) => {
            let computes = vendor().is_none_or(|vendor| !MANAGEMENT.contains(&vendor));
            computes.then_some(DeviceKind::Gpu)
        }
        (PROCESSING_ACCELERATOR, _) => Some(DeviceKind::Gpu),
        (_, ETHERNET | INFINIBAND | OTHER_NETWORK) => Some(DeviceKind::Nic),
        (_, NON_VOLATILE_MEMORY) => Some(DeviceKind::Nvme),
        _ => None,
    }
}

/// Sorts devices by kind and PCI address, and numbers them.
pub(crate) fn numbered(
    found: impl IntoIterator<Item = (DeviceKind, String, Option<NodeId>)>,
) -> Vec<Device> {
    let placed = found
        .into_iter()
        .filter_map(|(kind, pci, node)| Some((kind, pci_place(&pci)?, pci, node)));
    let mut found: Vec<(DeviceKind, [u32; 4], String, Option<NodeId>)> = placed.collect();
    found.sort();
    let mut devices: Vec<Device> = Vec::new();
    for (kind, _, pci, node) in found {
        let before = devices.last().filter(|before| before.kind == kind);
        devices.push(Device {
            kind,
            number: before.map_or(0, |before| before.number + 1),
            node,
            pci,
        });
    }
    devices
}

/// The node that contains all of the CPUs, not counting CPUs that are on no node.
pub(crate) fn node_next_to(cpus: &[CpuId], nodes: &[Node]) -> Option<NodeId> {
    let node_of = |cpu: &CpuId| nodes.iter().find(|node| node.cpus.contains(cpu));
    let mut places = cpus.iter().filter_map(node_of).map(|node| node.id);
    let first = places.next()?;
    places.all(|other| other == first).then_some(first)
}

/// Domain, bus, device and function of a PCI address.
pub(crate) fn pci_place(address: &str) -> Option<[u32; 4]> {
    let (rest, function) = address.split_once('.')?;
    let mut parts = rest.split(':');
    let mut part = || {
        let digits = parts.next().filter(|digits| !digits.is_empty())?;
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16)
            .ok()
            .filter(|_| is_hexadecimal)
    };
    let (domain, bus, device) = (part()?, part()?, part()?);
    let function = function.parse::<u32>().ok().filter(|number| *number < 8)?;
    parts
        .next()
        .is_none()
        .then_some([domain, bus, device, function])
}
