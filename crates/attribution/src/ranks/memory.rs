//! Size of a rank's memory, and its distribution over nodes.

use std::collections::BTreeMap;

use nearpage_machine::NodeId;
use nearpage_recording::{Object, ObjectKind};
use rustc_hash::FxHashMap;

/// Largest number of kept pages of a rank; fewer pages already give shares of nodes to within a percent.
const PAGES_MAX: usize = 1 << 14;

/// Peak size in bytes of a rank's heap, static variables and mappings; none if no such object was recorded.
/// Overlapping objects count once, as the heap as a whole is an object, too.
pub(super) fn peak_bytes(objects: &[Object]) -> Option<u64> {
    let is_memory = |object: &&Object| {
        use ObjectKind::{Heap, HeapArea, Mapping, Static};
        matches!(object.kind, Heap | HeapArea | Mapping | Static) && object.size_bytes > 0
    };
    let memory: Vec<&Object> = objects.iter().filter(is_memory).collect();
    let mut changes: Vec<(u64, i128)> = memory
        .iter()
        .flat_map(|object| {
            let bytes = i128::from(object.size_bytes);
            [(object.born_ns, bytes), (object.died_ns, -bytes)]
        })
        .collect();
    // Sorts deaths before births of the same time.
    changes.sort_unstable();
    let mut bytes = 0;
    let at_each = changes.into_iter().map(|(time_ns, change)| {
        bytes += change;
        (bytes, time_ns)
    });
    let (_, peak_ns) = at_each.max_by_key(|(bytes, _)| *bytes)?;
    let mut ranges: Vec<(u32, u64, u64)> = memory
        .iter()
        .filter(|object| object.born_ns <= peak_ns && peak_ns < object.died_ns)
        .map(|object| {
            let end = object.address.saturating_add(object.size_bytes);
            (object.pid, object.address, end)
        })
        .collect();
    ranges.sort_unstable();
    let mut covered = (0, 0);
    let mut sum: u64 = 0;
    for (pid, begin, end) in ranges {
        let begin = match covered {
            (of, until) if of == pid => begin.max(until),
            _ => begin,
        };
        sum = sum.saturating_add(end.saturating_sub(begin));
        covered = match covered {
            (of, until) if of == pid => (pid, end.max(until)),
            _ => (pid, end),
        };
    }
    Some(sum)
}

/// Nodes of a sample of the accessed pages. A page is kept if the hash of its number has enough leading zeros; the
/// more pages, the more zeros are required.
#[derive(Default)]
pub(super) struct SampledPages {
    /// Smallest number of leading zeros in the hash of a kept page.
    zeros_min: u32,
    kept: FxHashMap<u64, NodeId>,
}

impl SampledPages {
    pub fn add(&mut self, page: u64, node: NodeId) {
        if zeros(page) < self.zeros_min {
            return;
        }
        self.kept.insert(page, node);
        while self.kept.len() > PAGES_MAX {
            self.zeros_min += 1;
            self.kept.retain(|page, _| zeros(*page) >= self.zeros_min);
        }
    }

    pub fn add_all(&mut self, other: Self) {
        self.zeros_min = self.zeros_min.max(other.zeros_min);
        self.kept.retain(|page, _| zeros(*page) >= self.zeros_min);
        for (page, node) in other.kept {
            self.add(page, node);
        }
    }

    /// Share of each node in the kept pages, 0 to 1.
    pub fn shares(&self) -> BTreeMap<NodeId, f64> {
        let mut shares = BTreeMap::new();
        for node in self.kept.values() {
            *shares.entry(*node).or_insert(0.0) += 1.0 / self.kept.len() as f64;
        }
        shares
    }
}

fn zeros(page: u64) -> u32 {
    // Fibonacci hashing spreads adjacent pages.
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros()
}

#[cfg(test)]
mod tests {
    use nearpage_recording::CallSiteId;

    use super::*;

    fn object(kind: ObjectKind, address: u64, size_bytes: u64, life_ns: (u64, u64)) -> Object {
        Object {
            kind,
            name: String::new(),
            pid: 1,
            address,
            size_bytes,
            born_ns: life_ns.0,
            died_ns: life_ns.1,
            weight: 1.0,
            call_site: None::<CallSiteId>,
            thread: None,
            order: 0,
            module: None,
            module_offset: 0,
            same_memory_as: None,
        }
    }

    #[test]
    fn the_peak_counts_what_is_there_at_once_and_overlapping_memory_once() {
        use ObjectKind::{Heap, HeapArea, Stack, Static};
        assert_eq!(peak_bytes(&[]), None);
        let stack = object(Stack, 0, 8 << 20, (0, u64::MAX));
        assert_eq!(peak_bytes(std::slice::from_ref(&stack)), None);
        let objects = [
            object(Static, 0x1000, 100, (0, u64::MAX)),
            object(Heap, 0x9000, 1000, (5, 10)),
            // At the same address, after the previous object was freed.
            object(Heap, 0x9000, 1000, (10, 20)),
            object(Heap, 0xa000, 300, (12, 13)),
            object(HeapArea, 0x9000, 1500, (0, u64::MAX)),
            stack,
        ];
        assert_eq!(peak_bytes(&objects), Some(100 + 1500 + 300));
        // A second process uses the same addresses.
        let mut other = objects[1].clone();
        other.pid = 2;
        assert_eq!(peak_bytes(&[objects[1].clone(), other]), Some(2000));
        let endless = object(Heap, u64::MAX - 10, u64::MAX, (0, u64::MAX));
        assert_eq!(peak_bytes(&[endless]), Some(10));
    }

    #[test]
    fn shares_of_nodes_hold_for_many_pages_and_in_any_order() {
        let mut parts = [SampledPages::default(), SampledPages::default()];
        for page in 0..200_000 {
            let node = NodeId(u16::from(page % 4 == 0));
            parts[usize::from(page > 1000)].add(page, node);
        }
        let [mut few, many] = parts;
        few.add_all(many);
        assert!(few.kept.len() <= PAGES_MAX);
        let shares = few.shares();
        assert!((shares[&NodeId(1)] - 0.25).abs() < 0.01, "{shares:?}");
        assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
