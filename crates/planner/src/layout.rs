//! Nodes of threads: where threads ran in a recording, and where they would run on another machine.

use std::collections::BTreeMap;

use nearpage_attribution::{Attribution, counted_as};
use nearpage_machine::{CpuId, CpuList, Machine, NodeId, ThreadPlacement, thread_cpus};
use nearpage_plan::ThreadLayout;
use nearpage_recording::{Recording, Thread, ThreadIndex, ThreadPinning};

/// Processes with a smaller share of a recording's accesses take no CPUs from others.
const ACCESS_SHARE_MIN: f64 = 0.05;

/// Share of a thread's accesses that come from the node of its layout. A pinned thread makes nearly all of its accesses
/// there, except those before it was pinned.
const THERE_MIN: f64 = 0.9;

/// The layout that puts every thread on the node of `machine` where it ran; none if no layout does.
///
/// `cpus` gives the CPUs that a thread's accesses came from, with weights; threads without accesses do not count.
/// Threads are pinned by team, as `nearpage run` does for a plan, or by order of creation in their process, as
/// `nearpage record` does. `record` does not know how many threads there will be, so threads beyond the number of CPUs
/// begin again at the first CPU. `said` is the layout named in the recording; it is tried first, so it decides where
/// both layouts fit.
pub fn recorded_layout<'a>(
    threads: &[Thread],
    machine: &Machine,
    said: Option<ThreadLayout>,
    cpus: impl Fn(ThreadIndex) -> &'a [(CpuId, f64)],
) -> Option<ThreadLayout> {
    let by_team = laid_out_together(threads, |thread| {
        ((thread.pid, thread.team.as_str()), thread.team_index)
    });
    let by_creation = laid_out_together(threads, |thread| (thread.pid, thread.order));
    let fits = |group: &[ThreadIndex], layout: ThreadLayout, round: usize| {
        let nodes = thread_cpus(machine, round, layout.into(), None);
        let nodes = nodes.iter().map(|&cpu| machine.node_of(cpu)).cycle();
        let mut ran = group.iter().map(|&thread| cpus(thread)).zip(nodes);
        ran.all(|(cpus, node)| node.is_some_and(|node| is_there(machine, cpus, node)))
    };
    let ran = |group: &Vec<ThreadIndex>| {
        let mut threads = group.iter();
        threads.any(|&thread| !cpus(thread).is_empty())
    };
    let tried = said.into_iter().chain(ThreadLayout::ALL);
    by_creation.iter().any(ran).then_some(())?;
    let machine_cpus = machine.cpus().as_slice().len();
    tried.into_iter().find(|&layout| {
        let fits_whole = |group: &Vec<ThreadIndex>| fits(group, layout, group.len());
        let fits_in_rounds = |group: &Vec<ThreadIndex>| fits(group, layout, machine_cpus);
        by_team.iter().all(fits_whole)
            || by_creation.iter().all(fits_whole)
            || by_creation.iter().all(fits_in_rounds)
    })
}

/// The node of every thread of a recording, by [`ThreadIndex`], when the recording's program runs on
/// `machine` with its threads laid out by `placement`.
///
/// Thread `k` of a team of `T` runs where [`thread_cpus`] puts it; a thread of no team runs where the first of its
/// process does. A main thread that works beside a team runs as the team's next thread would: two busy threads on one
/// CPU would take twice as long. For the same reason, processes that run at the same time take CPUs one after another. A thread that counts as another thread runs where the other thread does. With
/// [`ThreadPlacement::None`] a thread stays on the node where it was seen most, if the machine has that CPU.
pub fn thread_nodes(
    attribution: &Attribution,
    threads: &[Thread],
    machine: &Machine,
    placement: ThreadPlacement,
    allowed: Option<&CpuList>,
) -> Vec<NodeId> {
    let pinned = match placement {
        ThreadPlacement::None => ThreadPlacement::Compact,
        pinned => pinned,
    };
    let node_of_share = |index: usize, count: usize| {
        let cpus = thread_cpus(machine, count, pinned, allowed);
        cpus.get(index).and_then(|&cpu| machine.node_of(cpu))
    };
    let fallback = machine
        .nodes
        .iter()
        .find(|node| !node.cpus.is_empty())
        .map_or(NodeId(0), |node| node.id);
    let first = node_of_share(0, 1).unwrap_or(fallback);
    let mut nodes = vec![first; threads.len().max(attribution.threads.len())];
    let processes = SideBySide::of(attribution, threads);
    for team in attribution.teams.iter().filter(|team| !team.is_joined) {
        let beside = match team.is_main_alone() {
            true => attribution.beside_main(team.pid),
            false => None,
        };
        let beside = beside.map_or(0, <[ThreadIndex]>::len);
        let (before, count) = match processes.first.get(&team.pid) {
            Some(first) => (first + beside, processes.count),
            None => (beside, beside + team.threads.len()),
        };
        let cpus = thread_cpus(machine, count, pinned, allowed);
        let cpus = &cpus[before.min(cpus.len())..];
        for (thread, &cpu) in team.threads.iter().zip(cpus) {
            if let (Some(slot), Some(node)) =
                (nodes.get_mut(thread.0 as usize), machine.node_of(cpu))
            {
                *slot = node;
            }
        }
    }
    if placement == ThreadPlacement::None {
        for (slot, totals) in nodes.iter_mut().zip(&attribution.threads) {
            let most = totals.cpus.iter().max_by(|a, b| a.1.total_cmp(&b.1));
            if let Some(node) = most.and_then(|&(cpu, _)| machine.node_of(cpu)) {
                *slot = node;
            }
        }
    }
    for (at, first) in counted_as(threads).into_iter().enumerate() {
        nodes[at] = nodes[first.0 as usize];
    }
    nodes
}

/// Processes that run at the same time, as one row of threads.
#[derive(Default)]
struct SideBySide {
    /// Position of each process's first thread in the row; empty if there are no several processes.
    first: BTreeMap<u32, usize>,
    /// Threads in the row.
    count: usize,
}

impl SideBySide {
    /// Each process takes the first places that are free while it runs. Processes with little of the accesses take
    /// none: a shell that waits for its program, for example.
    fn of(attribution: &Attribution, threads: &[Thread]) -> Self {
        // Begin, end and accesses by process.
        let mut processes: BTreeMap<u32, (u64, u64, f64)> = BTreeMap::new();
        for (thread, totals) in threads.iter().zip(&attribution.threads) {
            let accesses: f64 = totals.cpus.iter().map(|cpu| cpu.1).sum();
            let process = processes.entry(thread.pid).or_insert((u64::MAX, 0, 0.0));
            process.0 = process.0.min(thread.born_ns);
            process.1 = process.1.max(thread.died_ns);
            process.2 += accesses;
        }
        let all: f64 = processes.values().map(|process| process.2).sum();
        processes.retain(|_, process| process.2 >= ACCESS_SHARE_MIN * all);
        let mut by_begin: Vec<(u32, (u64, u64, f64))> = processes.into_iter().collect();
        by_begin.sort_by_key(|(pid, process)| (process.0, *pid));
        let mut row = Self::default();
        // End of the process at each place.
        let mut taken_until_ns: Vec<u64> = Vec::new();
        for (pid, (begin_ns, end_ns, _)) in by_begin {
            let width = width(attribution, pid);
            let is_free = |place: usize| {
                let mut places = taken_until_ns.iter().skip(place).take(width);
                places.all(|until| *until <= begin_ns)
            };
            let first = (0..taken_until_ns.len()).find(|&place| is_free(place));
            let first = first.unwrap_or(taken_until_ns.len());
            taken_until_ns.resize(taken_until_ns.len().max(first + width), 0);
            taken_until_ns[first..first + width].fill(end_ns);
            row.first.insert(pid, first);
        }
        row.count = taken_until_ns.len();
        match row.first.values().any(|first| *first > 0) {
            true => row,
            false => Self::default(),
        }
    }
}

/// Threads of a process that run at the same time: those of its largest team, and a main thread beside them.
fn width(attribution: &Attribution, pid: u32) -> usize {
    let teams = attribution.teams.iter();
    let teams = teams.filter(|team| team.pid == pid && !team.is_joined);
    let widths = teams.map(|team| match team.is_main_alone() {
        true => 1 + attribution.beside_main(pid).map_or(0, <[_]>::len),
        false => team.threads.len(),
    });
    widths.max().unwrap_or(1).max(1)
}

/// True if the machine has the CPUs that the recording's threads ran on, on the same nodes.
pub(crate) fn has_recorded_cpus(
    recording: &Recording,
    attribution: &Attribution,
    machine: &Machine,
) -> bool {
    let mut cpus = attribution.threads.iter().flat_map(|thread| &thread.cpus);
    cpus.all(|&(cpu, _)| machine.node_of(cpu) == recording.machine.node_of(cpu))
}

/// The layout that threads were pinned in; none if they were not pinned, or pinned by a plan.
pub(crate) fn pinned_layout(pinning: ThreadPinning) -> Option<ThreadLayout> {
    match pinning {
        ThreadPinning::Compact => Some(ThreadLayout::Compact),
        ThreadPinning::Scatter => Some(ThreadLayout::Scatter),
        ThreadPinning::None | ThreadPinning::Plan => None,
    }
}

/// Groups of threads, each ordered by its threads' numbers; if several threads have one number, the first thread
/// counts.
fn laid_out_together<'a, K: Ord>(
    threads: &'a [Thread],
    place: impl Fn(&'a Thread) -> (K, u32),
) -> Vec<Vec<ThreadIndex>> {
    let mut groups: BTreeMap<K, BTreeMap<u32, ThreadIndex>> = BTreeMap::new();
    for (index, thread) in threads.iter().enumerate() {
        let (group, number) = place(thread);
        let group = groups.entry(group).or_default();
        group.entry(number).or_insert(ThreadIndex(index as u32));
    }
    let groups = groups.into_values();
    groups.map(|group| group.into_values().collect()).collect()
}

/// True if a thread's accesses come from a node, or the thread has no accesses.
fn is_there(machine: &Machine, cpus: &[(CpuId, f64)], node: NodeId) -> bool {
    let weight = |there: &dyn Fn(CpuId) -> bool| -> f64 {
        cpus.iter()
            .filter(|cpu| there(cpu.0))
            .map(|cpu| cpu.1)
            .sum()
    };
    weight(&|cpu| machine.node_of(cpu) == Some(node)) >= THERE_MIN * weight(&|_| true)
}

#[cfg(test)]
mod tests {
    use nearpage_machine::{ThreadPlacement, preset};
    use proptest::prelude::*;

    use super::*;

    /// A process's threads in order of creation: name of the team, index in it.
    fn threads(members: &[(&str, u32)]) -> Vec<Thread> {
        let thread = |(order, (team, team_index)): (usize, &(&str, u32))| Thread {
            pid: 7,
            tid: 7 + order as u32,
            name: String::new(),
            born_ns: 0,
            died_ns: u64::MAX,
            order: order as u32,
            start: None,
            start_function: String::new(),
            team_index: *team_index,
            team: (*team).to_owned(),
            cpus: Vec::new(),
            counts: Default::default(),
        };
        members.iter().enumerate().map(thread).collect()
    }

    fn openmp(count: u32) -> Vec<Thread> {
        threads(
            &(0..count)
                .map(|index| ("openmp", index))
                .collect::<Vec<_>>(),
        )
    }

    /// The layout that is recognised if every thread made its accesses from one CPU.
    fn layout(
        name: &str,
        threads: &[Thread],
        said: Option<ThreadLayout>,
        cpus: &[u32],
    ) -> Option<ThreadLayout> {
        let machine = preset(name).expect("preset");
        let ran: Vec<[(CpuId, f64); 1]> = cpus.iter().map(|&cpu| [(CpuId(cpu), 5.0)]).collect();
        recorded_layout(threads, &machine, said, |thread| {
            match ran.get(thread.0 as usize) {
                Some(ran) => ran,
                None => &[],
            }
        })
    }

    #[test]
    fn nodes_count_and_not_cpus() {
        // Six CPUs a node: eight threads on two nodes, or one on each of the eight.
        let team = openmp(8);
        let compact = [5, 4, 3, 2, 1, 0, 11, 8];
        assert_eq!(
            layout("amd48", &team, None, &compact),
            Some(ThreadLayout::Compact)
        );
        let scatter = [3, 6, 12, 18, 24, 30, 36, 47];
        assert_eq!(
            layout("amd48", &team, None, &scatter),
            Some(ThreadLayout::Scatter)
        );
        assert_eq!(
            layout("amd48", &team, Some(ThreadLayout::Scatter), &compact),
            Some(ThreadLayout::Compact)
        );
        let four_and_four = [0, 1, 2, 3, 6, 7, 8, 9];
        assert_eq!(
            layout("amd48", &team, Some(ThreadLayout::Compact), &four_and_four),
            None
        );
        // Each node has the right number of threads, but the nodes are swapped.
        let second_first = [6, 7, 8, 9, 10, 11, 0, 1];
        assert_eq!(layout("amd48", &team, None, &second_first), None);
    }

    #[test]
    fn the_recorded_layout_counts_where_both_are_the_same() {
        let team = openmp(4);
        for (said, found) in [
            (Some(ThreadLayout::Compact), ThreadLayout::Compact),
            (Some(ThreadLayout::Scatter), ThreadLayout::Scatter),
            (None, ThreadLayout::Compact),
        ] {
            assert_eq!(layout("opteron-4", &team, said, &[0, 1, 2, 3]), Some(found));
        }
    }

    #[test]
    fn threads_that_did_nothing_do_not_count() {
        let team = openmp(3);
        assert_eq!(
            layout("amd48", &team, None, &[0, 6]),
            Some(ThreadLayout::Scatter)
        );
        assert_eq!(
            layout("amd48", &team, Some(ThreadLayout::Compact), &[]),
            None
        );
    }

    #[test]
    fn teams_are_laid_out_each_by_itself_or_all_in_order_of_creation() {
        // Seven workers; the main thread waits for them.
        let mut members = vec![("main", 0)];
        members.extend((0..7).map(|index| ("worker", index)));
        let team = threads(&members);
        let by_team = [0, 0, 1, 2, 3, 4, 5, 6];
        assert_eq!(
            layout("amd48", &team, None, &by_team),
            Some(ThreadLayout::Compact)
        );
        let in_order = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(
            layout("amd48", &team, None, &in_order),
            Some(ThreadLayout::Compact)
        );
        let in_order = [0, 6, 12, 18, 24, 30, 36, 42];
        assert_eq!(
            layout("amd48", &team, None, &in_order),
            Some(ThreadLayout::Scatter)
        );
    }

    #[test]
    fn threads_beyond_the_cpus_begin_anew() {
        let machine = preset("intel32").expect("preset");
        for wanted in ThreadLayout::ALL {
            let cpus = thread_cpus(&machine, 32, wanted.into(), None);
            let cpus: Vec<u32> = cpus.iter().cycle().take(35).map(|cpu| cpu.0).collect();
            let mut members = vec![("main", 0), ("server", 0)];
            members.extend((0..33).map(|index| ("client", index)));
            assert_eq!(
                layout("intel32", &threads(&members), None, &cpus),
                Some(wanted)
            );
        }
    }

    #[test]
    fn a_thread_that_wandered_ran_nowhere() {
        let machine = preset("amd48").expect("preset");
        let team = openmp(2);
        let at = |wandered: f64| {
            let first = [(CpuId(0), 1.0)];
            let second = [(CpuId(1), 1.0 - wandered), (CpuId(6), wandered)];
            recorded_layout(&team, &machine, None, |thread| match thread.0 {
                0 => &first,
                _ => &second,
            })
            .map(ThreadLayout::as_str)
        };
        assert_eq!(at(0.0), Some("compact"));
        assert_eq!(at(0.09), Some("compact"));
        assert_eq!(at(0.5), None);
        assert_eq!(at(1.0), Some("scatter"));
    }

    proptest! {
        /// Pinned layouts are recognised, also with more threads than CPUs.
        #[test]
        fn pinned_threads_are_recognised(
            name in prop::sample::select(vec!["amd48", "opteron-4", "intel32", "flash-8"]),
            count in 1u32..100,
            wanted in prop::sample::select(ThreadLayout::ALL.to_vec()),
        ) {
            let machine = preset(name).expect("preset");
            let cpus = thread_cpus(&machine, count as usize, ThreadPlacement::from(wanted), None);
            let cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.0).collect();
            prop_assert_eq!(layout(name, &openmp(count), Some(wanted), &cpus), Some(wanted));
        }
    }
}
