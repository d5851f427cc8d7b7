//! Assignment of a team's threads to CPUs.

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
}
