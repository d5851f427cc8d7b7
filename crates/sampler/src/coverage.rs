//! Chooses how to cover the threads of a running target, as each thread takes open files on every CPU: thread by
//! thread, the whole machine with a filter, or some threads at a time.

use std::fmt;

use rustc_hash::FxHashSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Each thread has its own events; new threads inherit them.
    EachThread { threads: usize },
    /// All threads on all CPUs; records of other processes are left out.
    Machine { threads: usize },
    /// All threads of the control group on all CPUs.
    Cgroup,
    /// All threads on all CPUs.
    All,
    /// `at_once` threads at a time; the others take turns.
    Turns { threads: usize, at_once: usize },
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EachThread { threads: 1 } => {
                f.write_str("1 thread, with events of its own, and those born later")
            }
            Self::EachThread { threads } => {
                write!(
                    f,
                    "{threads} threads, each with events of its own, and those born later"
                )
            }
            Self::Machine { threads } => write!(
                f,
                "events of {threads} threads on each CPU do not fit the limits: the whole machine is \
                 sampled, and the samples of other processes are left out"
            ),
            Self::Cgroup => f.write_str("events of the control group, on each CPU"),
            Self::All => f.write_str("events of the whole machine, on each CPU"),
            Self::Turns { threads, at_once } => write!(
                f,
                "events of {threads} threads on each CPU do not fit the limits, and CAP_PERFMON to \
                 sample the whole machine is missing: {at_once} threads at once, the busiest always \
                 and the others in turns of a second or more, their samples weighted for it"
            ),
        }
    }
}

/// Limits on events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventLimits {
    /// Number of files that may be opened.
    pub files: u64,
    /// Number of files that each thread takes.
    pub files_per_thread: usize,
    /// Whether the whole machine may be sampled.
    pub machine_wide: bool,
}

/// Largest number of events. More take over a second to open and close, and hundreds of megabytes.
const EVENTS_MAX: u64 = 32_768;

/// Coverage of `threads` threads; `None` if not even one can be observed.
pub(crate) fn coverage(threads: usize, room: &EventLimits) -> Option<Coverage> {
    let files = room.files.min(EVENTS_MAX);
    let at_once =
        usize::try_from(files / room.files_per_thread.max(1) as u64).unwrap_or(usize::MAX);
    // Reserves room for threads that start between listing and opening.
    let wanted = threads + threads / 16 + 4;
    if wanted <= at_once {
        Some(Coverage::EachThread { threads })
    } else if room.machine_wide {
        Some(Coverage::Machine { threads })
    } else {
        (at_once > 0).then_some(Coverage::Turns {
            threads,
            at_once: at_once.min(threads.max(1)),
        })
    }
}

/// Selects the threads to observe, if not all can be observed at once.
#[derive(Debug)]
pub(crate) struct ThreadRotation {
    at_once: usize,
    /// The last thread that took a turn; the next turn begins after it.
    last: u32,
}

/// A thread with its recent CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub tid: u32,
    pub busy_ns: u64,
}

impl ThreadRotation {
    pub fn new(at_once: usize) -> Self {
        Self { at_once, last: 0 }
    }

    /// Threads to observe until the next call, each with the weight of its samples. The busiest threads fill three
    /// quarters of the room, with weight 1. The others take turns in the last quarter: if a thread is observed in one
    /// of n turns, each sample stands for n samples. The expected total of each thread is therefore its true total.
    pub fn next(&mut self, threads: &[Candidate]) -> Vec<(u32, f32)> {
        if threads.len() <= self.at_once {
            return threads.iter().map(|thread| (thread.tid, 1.0)).collect();
        }
        let taking_turns = self.at_once.div_ceil(4);
        let always = self.at_once - taking_turns;
        let mut by_time = threads.to_vec();
        by_time.sort_unstable_by_key(|thread| (std::cmp::Reverse(thread.busy_ns), thread.tid));
        let mut others: Vec<u32> = by_time[always..].iter().map(|thread| thread.tid).collect();
        others.sort_unstable();
        let weight = others.len() as f32 / taking_turns as f32;
        let first = others.partition_point(|tid| *tid <= self.last);
        let turn: Vec<u32> = others[first..]
            .iter()
            .chain(&others[..first])
            .copied()
            .take(taking_turns)
            .collect();
        self.last = turn.last().copied().unwrap_or(0);
        let busiest = by_time[..always].iter().map(|thread| (thread.tid, 1.0));
        busiest
            .chain(turn.into_iter().map(|tid| (tid, weight)))
            .collect()
    }
}

/// Threads of `before` that have ended.
pub(crate) fn ended(before: impl IntoIterator<Item = u32>, now: &[Candidate]) -> Vec<u32> {
    let now: FxHashSet<u32> = now.iter().map(|thread| thread.tid).collect();
    before
        .into_iter()
        .filter(|tid| !now.contains(tid))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn coverage_depends_on_the_files_that_fit() {
        let room = |files, machine_wide| EventLimits {
            files,
            files_per_thread: 128,
            machine_wide,
        };
        for (threads, room, expected) in [
            (
                1,
                room(1024, false),
                Some(Coverage::EachThread { threads: 1 }),
            ),
            (8, room(1024, true), Some(Coverage::Machine { threads: 8 })),
            (
                8,
                room(1024, false),
                Some(Coverage::Turns {
                    threads: 8,
                    at_once: 8,
                }),
            ),
            (
                4096,
                room(1 << 20, true),
                Some(Coverage::Machine { threads: 4096 }),
            ),
            (
                4096,
                room(1 << 20, false),
                Some(Coverage::Turns {
                    threads: 4096,
                    at_once: 256,
                }),
            ),
            (
                200,
                room(1 << 20, false),
                Some(Coverage::EachThread { threads: 200 }),
            ),
            (1, room(100, false), None),
            (1, room(100, true), Some(Coverage::Machine { threads: 1 })),
        ] {
            assert_eq!(coverage(threads, &room), expected, "{threads} {room:?}");
        }
    }

    #[test]
    fn every_thread_counts_for_what_it_did() {
        // 100 threads, 16 at once. 10 threads run all the time, the others for a hundredth of it.
        let busy_ns = |tid: u32| {
            if tid.is_multiple_of(10) {
                1_000_000
            } else {
                10_000
            }
        };
        let threads: Vec<Candidate> = (1..=100)
            .map(|tid| Candidate {
                tid,
                busy_ns: busy_ns(tid),
            })
            .collect();
        let mut turns = ThreadRotation::new(16);
        let mut seen = vec![0.0; 101];
        // 88 others take turns, 4 at a time, so all have had one turn after 22 rounds.
        for _ in 0..22 {
            let chosen = turns.next(&threads);
            assert_eq!(chosen.len(), 16);
            for (tid, weight) in chosen {
                seen[tid as usize] += f64::from(weight) * busy_ns(tid) as f64;
            }
        }
        for tid in 1..=100u32 {
            let truth = 22.0 * busy_ns(tid) as f64;
            assert!((seen[tid as usize] / truth - 1.0).abs() < 1e-6, "{tid}");
        }
    }

    proptest! {
        #[test]
        fn never_more_than_there_is_room_for(busy in prop::collection::vec(0u64..1000, 1..60), at_once in 1usize..40, rounds in 1usize..5) {
            let threads: Vec<Candidate> = busy
                .iter()
                .enumerate()
                .map(|(tid, busy_ns)| Candidate { tid: tid as u32 + 1, busy_ns: *busy_ns })
                .collect();
            let mut turns = ThreadRotation::new(at_once);
            for _ in 0..rounds {
                let chosen = turns.next(&threads);
                let tids: FxHashSet<u32> = chosen.iter().map(|(tid, _)| *tid).collect();
                prop_assert_eq!(tids.len(), chosen.len());
                prop_assert_eq!(chosen.len(), at_once.min(threads.len()));
                // The weights sum to the number of threads.
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                prop_assert!((sum - threads.len() as f32).abs() < 1e-3 * threads.len() as f32);
            }
        }
    }
}
