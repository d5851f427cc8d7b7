//! Tables that all workers share.

use std::ops::Range;

use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::{Mark, Thread, ThreadIndex};

use crate::{
    AccessChunks, Input, Operations, Options, code::CodeMap, groups::Groups, lifetimes::Lifetimes,
    teams::counted_as,
};

pub(crate) struct Context<'a> {
    pub groups: &'a Groups,
    pub lifetimes: &'a Lifetimes,
    pub code: CodeMap,
    pub threads: &'a [Thread],
    /// Thread under which each thread's accesses are counted ([`counted_as`]).
    pub counted_as: Vec<ThreadIndex>,
    /// Number of each thread's process, for processes with objects.
    pub process_of_thread: Vec<Option<u32>>,
    node_of_cpu: Vec<Option<NodeId>>,
    stable: StablePhase,
    pub operations: Operations,
    pub page_shift: u32,
}

impl<'a> Context<'a> {
    pub fn new<A: AccessChunks + ?Sized>(
        input: &Input<'a, A>,
        options: &Options,
        groups: &'a Groups,
        lifetimes: &'a Lifetimes,
    ) -> Self {
        let mut node_of_cpu = Vec::new();
        for node in input.machine.iter().flat_map(|machine| &machine.nodes) {
            for cpu in node.cpus.iter().filter(|cpu| cpu.0 < 1 << 20) {
                let at = cpu.0 as usize;
                node_of_cpu.resize(node_of_cpu.len().max(at + 1), None);
                node_of_cpu[at] = Some(node.id);
            }
        }
        let marks = match options.stable_phase_only {
            true => input.marks,
            false => &[],
        };
        Context {
            groups,
            lifetimes,
            code: CodeMap::new(&input.tables.mappings, lifetimes),
            threads: &input.tables.threads,
            counted_as: counted_as(&input.tables.threads),
            process_of_thread: input
                .tables
                .threads
                .iter()
                .map(|thread| lifetimes.process(thread.pid))
                .collect(),
            node_of_cpu,
            stable: StablePhase::new(marks, &input.tables.threads),
            operations: options.operations,
            page_shift: options.page_bytes.trailing_zeros(),
        }
    }

    /// Whether the time is within the stable phase of the thread's process.
    #[inline]
    pub fn counts(&self, thread: ThreadIndex, time_ns: u64) -> bool {
        self.stable.has(thread, time_ns)
    }

    #[inline]
    pub fn node(&self, cpu: CpuId) -> Option<NodeId> {
        self.node_of_cpu.get(cpu.0 as usize).copied().flatten()
    }
}

/// Times of the stable phase that a program marked. Without marks, all times are in the phase.
#[derive(Clone, Debug, Default)]
pub struct StablePhase {
    /// Time windows by thread; an empty list means all times.
    windows: Vec<Vec<Range<u64>>>,
}

impl StablePhase {
    /// The stable phases of these threads' processes.
    pub fn new(marks: &[Mark], threads: &[Thread]) -> Self {
        let windows = threads
            .iter()
            .map(|thread| stable_phase(marks, thread.pid))
            .collect();
        Self { windows }
    }

    /// Whether the time is in the stable phase of the thread's process.
    #[inline]
    pub fn has(&self, thread: ThreadIndex, time_ns: u64) -> bool {
        in_windows(&self.windows[thread.0 as usize], time_ns)
    }
}

/// The times between the begin and end marks of a process, in order.
fn stable_phase(marks: &[Mark], pid: u32) -> Vec<Range<u64>> {
    let mut marks: Vec<_> = marks.iter().filter(|mark| mark.pid == pid).collect();
    marks.sort_by_key(|mark| mark.time_ns);
    let mut windows: Vec<Range<u64>> = Vec::new();
    let mut begun = None;
    for mark in marks {
        match (mark.begin, begun) {
            (true, None) => begun = Some(mark.time_ns),
            (false, Some(begin)) => {
                windows.push(begin..mark.time_ns);
                begun = None;
            }
            // A second begin, or an end without a begin, is ignored.
            _ => {}
        }
    }
    windows.extend(begun.map(|begin| begin..u64::MAX));
    windows
}

fn in_windows(windows: &[Range<u64>], time_ns: u64) -> bool {
    if windows.is_empty() {
        return true;
    }
    let at = windows.partition_point(|window| window.start <= time_ns);
    at > 0 && time_ns < windows[at - 1].end
}
