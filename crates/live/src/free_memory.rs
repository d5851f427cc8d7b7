//! Free memory of nodes.

use std::fs;
use std::path::Path;

use nearpage_machine::NodeId;

/// Free memory of the machine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeMemory {
    /// Free bytes and all bytes of each node, by position.
    pub nodes: Vec<(u64, u64)>,
}

/// A node with less than one part in this number of its memory free takes no more pages; that part is left to the
/// program and the kernel.
const FULL_PART: u64 = 50;

impl FreeMemory {
    /// Reads `devices/system/node/nodeN/meminfo` under `sys_root`; a node without this file has 0 of 0 bytes.
    pub fn read(sys_root: &Path, nodes: &[NodeId]) -> Self {
        let of = |node: &NodeId| {
            let path = sys_root.join(format!("devices/system/node/node{node}/meminfo"));
            parse(&fs::read_to_string(path).unwrap_or_default())
        };
        Self {
            nodes: nodes.iter().map(of).collect(),
        }
    }

    /// Does the node at this position have no room for more pages?
    pub fn is_full(&self, node: usize) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|&(free, all)| free < all / FULL_PART || all == 0)
    }

    /// Free memory of all nodes, in hundredths of a percent.
    pub fn per_10000(&self) -> u32 {
        let free: u64 = self.nodes.iter().map(|node| node.0).sum();
        let all: u64 = self.nodes.iter().map(|node| node.1).sum();
        match all {
            0 => 10_000,
            _ => (u128::from(free.min(all)) * 10_000 / u128::from(all)) as u32,
        }
    }
}

/// Free and all bytes by `Node 0 MemFree:  123 kB` and `MemTotal`. Inactive file pages in the page cache count as free,
/// because the kernel reclaims them before an allocation fails.
fn parse(text: &str) -> (u64, u64) {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.split_once(name))?.1;
        let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    let all = bytes(" MemTotal:").unwrap_or(0);
    let file = bytes(" Inactive(file):").unwrap_or(0);
    let free = bytes(" MemFree:").unwrap_or(0).saturating_add(file);
    (free.min(all), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Node 3 MemTotal:        1000 kB\nNode 3 MemFree:          10 kB\n\
                        Node 3 Inactive(file):    5 kB\n";

    #[test]
    fn a_node_is_full_below_a_fiftieth() {
        assert_eq!(parse(TEXT), (15 * 1024, 1000 * 1024));
        for (free, full) in [(19, true), (20, false)] {
            let memory = FreeMemory {
                nodes: vec![(free, 1000), (1000, 1000)],
            };
            assert_eq!(memory.is_full(0), full);
            assert!(!memory.is_full(1));
            assert!(!memory.is_full(2), "no such node");
        }
        let memory = FreeMemory {
            nodes: vec![(15, 1000), (985, 1000)],
        };
        assert_eq!(memory.per_10000(), 5000);
        assert_eq!(FreeMemory::default().per_10000(), 10_000);
    }

    #[test]
    fn a_node_without_memory_takes_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let node = folder.path().join("devices/system/node/node3");
        fs::create_dir_all(&node).expect("made");
        fs::write(node.join("meminfo"), TEXT).expect("written");
        let memory = FreeMemory::read(folder.path(), &[NodeId(1), NodeId(3)]);
        assert_eq!(memory.nodes, [(0, 0), (15 * 1024, 1000 * 1024)]);
        assert!(memory.is_full(0) && memory.is_full(1));
    }
}
