//! Moves of threads to the node with their faults, and swaps of threads.

use super::KernelBalancing;
use super::task::{Faults, Task};

/// `SMALLIMP`: a swap with a smaller gain costs more than it gains.
const GAIN_LEAST: i64 = 30;
impl KernelBalancing {
    /// `task_numa_migrate`: the target node of a thread, and the thread to swap with.
    pub(super) fn find_node(&self, thread: usize) -> Option<(u16, Option<usize>)> {
        let task = self.tasks[thread].as_ref()?;
        let preferred = task.preferred?;
        if preferred == task.node {
            return None;
        }
        let group = task
            .in_group
            .then(|| &self.processes[usize::from(task.application)].group);
        let mut best = self.best_on(thread, preferred, 0);
        if best.is_none() || group.is_some_and(|group| group.active_nodes() > 1) {
            for node in
                (0..self.nodes as u16).filter(|&node| node != task.node && node != preferred)
            {
                let gain = |faults: &Faults| faults.weight(node) - faults.weight(task.node);
                let group_gain = group.map_or(0, |group| gain(&group.faults));
                if gain(&task.faults) < 0 && group_gain < 0 {
                    continue;
                }
                let least = best.map_or(0, |(gain, _, _)| gain);
                best = self.best_on(thread, node, least).or(best);
            }
        }
        best.map(|(_, node, other)| (node, other))
    }

    /// `task_numa_find_cpu`, `task_numa_compare`: the best gain above `least` on `node`, and the thread to swap with.
    fn best_on(&self, thread: usize, node: u16, least: i64) -> Option<(i64, u16, Option<usize>)> {
        let task = self.tasks[thread].as_ref()?;
        let load = |node: u16| {
            let on = self
                .tasks
                .iter()
                .flatten()
                .filter(|other| other.node == node);
            on.count() as i64
        };
        let gain = |task: &Task, to: u16| {
            let faults = match task.in_group {
                true => &self.processes[usize::from(task.application)].group.faults,
                false => &task.faults,
            };
            faults.weight(to) - faults.weight(task.node)
        };
        let own_gain =
            |task: &Task, to: u16| task.faults.weight(to) - task.faults.weight(task.node);
        let [from_cpus, to_cpus] =
            [task.node, node].map(|node| i64::from(self.cpus[usize::from(node)]));
        let (from, to) = (load(task.node), load(node));
        let imbalance = |from: i64, to: i64| (to * from_cpus - from * to_cpus).abs();
        let may_move = to_cpus > 0 && imbalance(from - 1, to + 1) <= imbalance(from, to);
        let mut best = None;
        let mut best_gain = least;
        let move_gain = gain(task, node);
        if may_move && to < to_cpus && move_gain >= best_gain {
            best = Some((move_gain, node, None));
            best_gain = move_gain;
        }
        for (number, other) in self.tasks.iter().enumerate() {
            let Some(other) = other.as_ref().filter(|other| other.node == node) else {
                continue;
            };
            let same_group = task.in_group == other.in_group
                && (!task.in_group || task.application == other.application);
            let mut swap_gain = match (same_group, task.in_group && other.in_group) {
                (true, _) => own_gain(task, node) + own_gain(other, task.node),
                (false, true) => move_gain + gain(other, task.node),
                (false, false) => move_gain + own_gain(other, task.node),
            };
            if same_group && task.in_group {
                swap_gain -= swap_gain / 16;
            }
            if may_move && move_gain > swap_gain && move_gain > best_gain {
                best = Some((move_gain, node, None));
                best_gain = move_gain;
            } else if swap_gain >= GAIN_LEAST && swap_gain > best_gain + GAIN_LEAST / 2 {
                best = Some((swap_gain, node, Some(number)));
                best_gain = swap_gain;
            }
        }
        best
    }
}
