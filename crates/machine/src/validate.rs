//! Validation of machines beyond the types.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::device::pci_place;
use crate::{Cache, CpuId, DISTANCE_LOCAL, Fault, Machine, NodeId};

/// Page sizes of Linux, from the smallest page to the largest huge page.
const PAGE_BYTES: RangeInclusive<u64> = 4096..=16 << 30;

impl Machine {
    /// Checks that matrices are square and positive, that each CPU is on one node, that nodes are in order, and that
    /// each node is nearest to itself.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn validate(&self) -> Result<(), Fault> {
        self.validate_page_sizes()?;
        let cpus = self.validate_nodes()?;
        self.validate_cores(&cpus)?;
        self.validate_figures()?;
        self.validate_distances()?;
        self.validate_caches()?;
        self.validate_devices()?;
        self.validate_timing()
    }

    fn validate_page_sizes(&self) -> Result<(), Fault> {
        for (key, value) in [
            ("page_bytes", Some(self.page_bytes)),
            ("huge_page_bytes", self.huge_page_bytes),
        ] {
            if let Some(value) = value
                && (!value.is_power_of_two() || !PAGE_BYTES.contains(&value))
            {
                return Err(Fault::PageSize { key, value });
            }
        }
        match self.huge_page_bytes {
            Some(huge) if huge < self.page_bytes => Err(Fault::HugeSmallerThanPage {
                huge,
                page: self.page_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// Returns each CPU's node.
    fn validate_nodes(&self) -> Result<BTreeMap<CpuId, NodeId>, Fault> {
        if self.nodes.is_empty() {
            return Err(Fault::NoNode);
        }
        for pair in self.nodes.windows(2) {
            if pair[0].id == pair[1].id {
                return Err(Fault::NodeTwice(pair[0].id));
            }
            if pair[0].id > pair[1].id {
                return Err(Fault::NodesUnordered(pair[0].id, pair[1].id));
            }
        }
        let mut seen = BTreeMap::new();
        for node in &self.nodes {
            for &cpu in &node.cpus {
                if let Some(first) = seen.insert(cpu, node.id) {
                    return Err(Fault::CpuTwice {
                        cpu,
                        first,
                        second: node.id,
                    });
                }
            }
        }
        if seen.is_empty() {
            return Err(Fault::NoCpu);
        }
        if self.nodes_with_memory().is_empty() {
            return Err(Fault::NoMemory);
        }
        for node in &self.nodes {
            if let Some(bytes) = node.memory_bytes
                && bytes > 0
                && bytes < self.page_bytes
            {
                return Err(Fault::LessThanAPage {
                    node: node.id,
                    bytes,
                    page: self.page_bytes,
                });
            }
        }
        Ok(seen)
    }

    fn validate_cores(&self, cpus: &BTreeMap<CpuId, NodeId>) -> Result<(), Fault> {
        let mut on_core = BTreeSet::new();
        for &cpu in self.cores.iter().flatten() {
            if !cpus.contains_key(&cpu) {
                return Err(Fault::CoreOfUnknownCpu(cpu));
            }
            if !on_core.insert(cpu) {
                return Err(Fault::CoreTwice(cpu));
            }
        }
        for kind in &self.cpu_kinds {
            if let Some(&cpu) = kind.cpus.iter().find(|cpu| !cpus.contains_key(cpu)) {
                return Err(Fault::KindOfUnknownCpu(cpu));
            }
        }
        Ok(())
    }

    fn validate_distances(&self) -> Result<(), Fault> {
        let Some(distance) = &self.distance else {
            return Ok(());
        };
        square("distance", distance, self.nodes.len())?;
        for (row, column, &value) in entries(distance) {
            if value < DISTANCE_LOCAL {
                return Err(Fault::DistanceTooShort { row, column, value });
            }
            if value < distance[row][row] {
                return Err(Fault::NearerThanSelf {
                    row,
                    column,
                    value,
                    own: distance[row][row],
                });
            }
        }
        Ok(())
    }

    fn validate_caches(&self) -> Result<(), Fault> {
        let impossible = |cache: &Cache| {
            cache.level == 0
                || cache.size_bytes == 0
                || cache.line_bytes == 0
                || cache.shared_by_cpus == 0
        };
        if let Some(position) = self.caches.iter().position(impossible) {
            return Err(Fault::Cache(position));
        }
        for cache in &self.memory_caches {
            if self.position(cache.node).is_none() || cache.size_bytes == 0 {
                return Err(Fault::MemoryCache(cache.node));
            }
        }
        Ok(())
    }

    fn validate_devices(&self) -> Result<(), Fault> {
        let mut names = BTreeSet::new();
        for device in &self.devices {
            let is_known = device.node.is_none_or(|node| self.position(node).is_some());
            let is_new = names.insert((device.kind, device.number));
            if !is_known || !is_new || pci_place(&device.pci).is_none() {
                return Err(Fault::Device(device.kind, device.number));
            }
        }
        Ok(())
    }
}

pub(crate) fn square<T>(
    key: &'static str,
    matrix: &[Vec<T>],
    expected: usize,
) -> Result<(), Fault> {
    if matrix.len() != expected {
        return Err(Fault::Rows {
            key,
            found: matrix.len(),
            expected,
        });
    }
    match matrix.iter().position(|row| row.len() != expected) {
        Some(row) => Err(Fault::Columns {
            key,
            row,
            found: matrix[row].len(),
            expected,
        }),
        None => Ok(()),
    }
}

pub(crate) fn entries<T>(matrix: &[Vec<T>]) -> impl Iterator<Item = (usize, usize, &T)> {
    matrix.iter().enumerate().flat_map(|(row, values)| {
        values
            .iter()
            .enumerate()
            .map(move |(column, value)| (row, column, value))
    })
}
