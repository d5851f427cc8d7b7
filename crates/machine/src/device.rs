//! Devices that read and write memory by themselves, and the node that each is next to.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Machine, NodeId};

/// What a device does.
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
    /// What names of such devices begin with.
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
    /// What it does.
    pub kind: DeviceKind,
    /// Its number among those of its kind, by PCI address.
    pub number: u32,
    /// Its PCI address: `DOMAIN:BUS:DEVICE.FUNCTION`, hexadecimal.
    pub pci: String,
    /// The node that it is next to; absent where the firmware does not say.
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
