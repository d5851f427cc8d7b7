//! Assignment of a team's threads to CPUs, and machines with fewer CPUs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::{CpuId, CpuList, Machine};

/// Layout of threads over CPUs, in order of the threads' creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadPlacement {
    /// Node after node; within a node, one CPU of every core before their SMT siblings. With more threads than CPUs,
    /// consecutive threads share a CPU.
    Compact,
    /// One thread to each node in turn.
    Scatter,
    /// Threads are not pinned.
    #[default]
    None,
}

/// The CPU of each of `threads` threads, among the `allowed` CPUs; `None` allows all.
///
/// With `T` threads on `C` CPUs, thread `k` gets CPU `k` in order of the placement while `T` ≤ `C`. Otherwise thread
/// `k` gets CPU `floor(k × C / T)` for [`ThreadPlacement::Compact`], so that consecutive threads stay together, and CPU
/// `k mod C` for [`ThreadPlacement::Scatter`]. Empty for [`ThreadPlacement::None`], or if no CPU is allowed.
pub fn thread_cpus(
    machine: &Machine,
    threads: usize,
    placement: ThreadPlacement,
    allowed: Option<&CpuList>,
) -> Vec<CpuId> {
    let by_node: Vec<Vec<CpuId>> = (0..machine.nodes.len())
        .map(|position| {
            let mut cpus = cores_first(machine, position);
            cpus.retain(|&cpu| allowed.is_none_or(|allowed| allowed.contains(cpu)));
            cpus
        })
        .collect();
    let order: Vec<CpuId> = match placement {
        ThreadPlacement::None => return Vec::new(),
        ThreadPlacement::Compact => by_node.concat(),
        ThreadPlacement::Scatter => {
            let rounds = by_node.iter().map(Vec::len).max().unwrap_or(0);
            (0..rounds)
                .flat_map(|round| {
                    by_node
                        .iter()
                        .filter_map(move |cpus| cpus.get(round).copied())
                })
                .collect()
        }
    };
    let count = order.len();
    if count == 0 {
        return Vec::new();
    }
    (0..threads)
        .map(|thread| match placement {
            ThreadPlacement::Compact if threads > count => {
                order[(thread as u128 * count as u128 / threads as u128) as usize]
            }
            _ => order[thread % count],
        })
        .collect()
}

/// CPUs of a node: the first CPU of each core, then the second of each, and so on.
fn cores_first(machine: &Machine, position: usize) -> Vec<CpuId> {
    let rank = |cpu: CpuId| {
        machine
            .cores
            .iter()
            .find_map(|core| core.iter().position(|&sibling| sibling == cpu))
            .unwrap_or(0)
    };
    let mut cpus: Vec<(usize, CpuId)> = machine.nodes[position]
        .cpus
        .iter()
        .map(|&cpu| (rank(cpu), cpu))
        .collect();
    cpus.sort_unstable();
    cpus.into_iter().map(|(_, cpu)| cpu).collect()
}

impl Machine {
    /// Numbers of CPUs that [`Self::with_cpus`] takes: from one per node with CPUs to all.
    pub fn cpu_counts(&self) -> RangeInclusive<u32> {
        let nodes = self.nodes.iter().filter(|node| !node.cpus.is_empty());
        nodes.count() as u32..=self.cpus().as_slice().len() as u32
    }

    /// The machine with `count` of its CPUs, spread evenly over the nodes that have any, one of each core before their
    /// SMT siblings. The CPUs are numbered anew from 0, node after node, as an emulator numbers them; if some are left
    /// out, the last note says so. Sizes of caches stay, and so does how many CPUs share one: a last-level cache for
    /// each of a node's CPUs is then as large as its share when all CPUs are busy.
    ///
    /// `None`: `count` is not in [`Self::cpu_counts`].
    pub fn with_cpus(&self, count: u32) -> Option<Self> {
        let counts = self.cpu_counts();
        if !counts.contains(&count) {
            return None;
        }
        let mut kept = thread_cpus(self, count as usize, ThreadPlacement::Scatter, None);
        // A stable sort: cores stay before siblings.
        kept.sort_by_key(|&cpu| self.node_of(cpu));
        let numbers: BTreeMap<CpuId, CpuId> = kept.into_iter().zip((0..).map(CpuId)).collect();
        let mut machine = self.clone();
        let renumber = |cpus: &mut Vec<CpuId>| {
            *cpus = cpus
                .iter()
                .filter_map(|cpu| numbers.get(cpu).copied())
                .collect();
        };
        machine.cores.iter_mut().for_each(renumber);
        machine.cores.retain(|core| core.len() > 1);
        let nodes = machine.nodes.iter_mut().map(|node| &mut node.cpus);
        let kinds = machine.cpu_kinds.iter_mut().map(|kind| &mut kind.cpus);
        for cpus in nodes.chain(kinds) {
            renumber(cpus);
            cpus.sort_unstable();
        }
        machine.cpu_kinds.retain(|kind| !kind.cpus.is_empty());
        let all = *counts.end();
        if count < all {
            let shared = self.caches.iter().any(|cache| cache.shared_by_cpus > 1);
            machine.notes.push(match shared {
                true => format!(
                    "{count} of its {all} CPUs, each with its share of caches that CPUs share"
                ),
                false => format!("{count} of its {all} CPUs"),
            });
        }
        Some(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset;

    fn numbers(name: &str, threads: usize, placement: ThreadPlacement) -> Vec<u32> {
        let machine = preset(name).expect("preset");
        thread_cpus(&machine, threads, placement, None)
            .iter()
            .map(|cpu| cpu.0)
            .collect()
    }

    #[test]
    fn compact_fills_node_after_node_and_cores_before_siblings() {
        let cpus = numbers("intel32", 32, ThreadPlacement::Compact);
        assert_eq!(
            cpus[..16],
            [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23]
        );
        assert_eq!(cpus[16..20], [8, 9, 10, 11]);
    }

    #[test]
    fn more_threads_than_cpus_share_with_their_neighbours() {
        assert_eq!(
            numbers("opteron-4", 8, ThreadPlacement::Compact),
            [0, 0, 1, 1, 2, 2, 3, 3]
        );
        assert_eq!(
            numbers("opteron-4", 6, ThreadPlacement::Scatter),
            [0, 1, 2, 3, 0, 1]
        );
    }

    #[test]
    fn scatter_goes_round_the_nodes() {
        assert_eq!(
            numbers("amd48", 9, ThreadPlacement::Scatter),
            [0, 6, 12, 18, 24, 30, 36, 42, 1]
        );
    }

    #[test]
    fn only_allowed_cpus_are_used() {
        let machine = preset("amd48").expect("preset");
        let allowed = "5-7".parse::<CpuList>().expect("list");
        let cpus = thread_cpus(&machine, 2, ThreadPlacement::Compact, Some(&allowed));
        assert_eq!(cpus, [CpuId(5), CpuId(6)]);
        let nowhere = "100".parse::<CpuList>().expect("list");
        assert_eq!(
            thread_cpus(&machine, 2, ThreadPlacement::Compact, Some(&nowhere)),
            []
        );
        assert_eq!(thread_cpus(&machine, 2, ThreadPlacement::None, None), []);
    }

    /// CPUs of each node of a preset with `count` CPUs.
    fn by_node(name: &str, count: u32) -> Option<Vec<String>> {
        let machine = preset(name).expect("preset").with_cpus(count)?;
        let nodes = machine.nodes.iter();
        let list = |cpus: &Vec<CpuId>| cpus.iter().copied().collect::<CpuList>().to_string();
        Some(nodes.map(|node| list(&node.cpus)).collect())
    }

    #[test]
    fn fewer_cpus_are_spread_over_the_nodes_that_have_any() {
        let nodes = |count| by_node("epyc-9224-cxl", count);
        assert_eq!(nodes(6).unwrap(), ["0-1", "2-3", "4", "5", ""]);
        assert_eq!(
            (nodes(3), nodes(97), nodes(96).is_some()),
            (None, None, true)
        );
    }

    #[test]
    fn cpus_are_numbered_from_node_to_node() {
        // Of `intel32`, node 0 has CPUs 0 to 7 and their siblings, 16 to 23.
        assert_eq!(by_node("intel32", 32).unwrap(), ["0-15", "16-31"]);
        let all = preset("intel32").unwrap().with_cpus(32).unwrap();
        assert_eq!(all.cores[0], [CpuId(0), CpuId(8)]);
        assert_eq!(all.notes, preset("intel32").unwrap().notes);
        let half = preset("intel32").unwrap().with_cpus(16).unwrap();
        assert!(half.cores.is_empty());
        let note = half.notes.last().unwrap();
        assert!(
            note.starts_with("16 of its 32 CPUs, each with its share of caches"),
            "{note}"
        );
    }

    #[test]
    fn a_machine_with_fewer_cpus_is_a_machine() {
        for name in crate::PRESET_NAMES {
            let machine = preset(name).unwrap();
            for count in [*machine.cpu_counts().start(), *machine.cpu_counts().end()] {
                let text = machine.with_cpus(count).unwrap().to_toml();
                assert_eq!(
                    Machine::from_toml(&text, name).unwrap().to_toml(),
                    text,
                    "{name}"
                );
            }
        }
    }
}
