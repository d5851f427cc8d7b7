//! Names of instructions, patterns, processes and threads.

use nearpage_attribution::{Pattern, counted_as};
use nearpage_recording::{Frame, ModuleId, Thread};

use nearpage_amount::{bytes, counted};

use crate::{Locate, printable::printable};

/// Innermost frame of a hot instruction.
pub(crate) fn hot_frame(module: Option<ModuleId>, offset: u64, locate: &mut impl Locate) -> Frame {
    let known = module.and_then(|module| locate.locate(module, offset).into_iter().next());
    known.unwrap_or(Frame {
        module,
        offset,
        function: String::new(),
        file: String::new(),
        line: 0,
        inlined: false,
    })
}

/// The name of a group of objects, with their number if there are several.
pub fn counted_name(name: &str, instances: u64) -> String {
    match instances {
        0 | 1 => name.to_owned(),
        several => format!("{several} × {name}"),
    }
}

/// A pattern in words.
pub fn pattern_words(
    pattern: &Pattern,
    teams: &[nearpage_attribution::Team],
    threads: &[Thread],
) -> String {
    let size = |team: usize| teams.get(team).map_or(0, |team| team.threads.len());
    match pattern {
        Pattern::Unknown => "too few accesses to tell".to_owned(),
        Pattern::Private { thread } => {
            match threads.get(thread.0 as usize).map(|thread| thread.order) {
                Some(0) => "one thread, the main thread".to_owned(),
                _ => "one thread".to_owned(),
            }
        }
        Pattern::PrivateEach => "each object its own thread".to_owned(),
        Pattern::PrivateRuns(runs) => {
            format!("each of {} runs of objects its own thread", runs.len())
        }
        Pattern::Block { block_bytes, .. } => {
            format!("each thread its own block of {}", bytes(*block_bytes))
        }
        Pattern::BlockCyclic {
            team,
            block_bytes,
            period_bytes,
        } => format!(
            "block-cyclic, {} each, {} period over {} threads",
            bytes(*block_bytes),
            bytes(*period_bytes),
            size(*team)
        ),
        Pattern::PartialBlock {
            block_bytes,
            part_bytes,
            ..
        } => {
            let part = match part_bytes.start {
                0 => format!("the first {}", bytes(part_bytes.end)),
                start => format!("{} from {} on", bytes(part_bytes.end - start), bytes(start)),
            };
            format!(
                "each thread its own block of {} in {part}",
                bytes(*block_bytes)
            )
        }
        Pattern::Tiles {
            block_bytes,
            shares,
        } if shares.len() == 1 => format!(
            "block-cyclic, {} each, over {} threads, the main thread first",
            bytes(*block_bytes),
            shares[0].threads.len()
        ),
        Pattern::Tiles {
            block_bytes,
            shares,
        } => format!(
            "tiles: columns of {} in {} row shares",
            bytes(*block_bytes),
            shares.len()
        ),
        Pattern::Segments(segments) => {
            format!(
                "{} contiguous parts, each mostly one thread's",
                segments.len()
            )
        }
        Pattern::InTurn(patterns) => {
            let [one, other] = patterns
                .each_ref()
                .map(|pattern| pattern_words(pattern, teams, threads));
            format!("in turn {one}, and {other}")
        }
        Pattern::Shared => "all threads everywhere".to_owned(),
        Pattern::ReadShared => "all threads everywhere, read-only".to_owned(),
        Pattern::Mixed => "parts belong to threads, by no rule".to_owned(),
    }
}

/// For each thread, the number of threads that [count as](counted_as) it, including itself; 0 if the thread counts as
/// another.
pub(crate) fn created(threads: &[Thread]) -> Vec<u32> {
    let mut created = vec![0; threads.len()];
    for first in counted_as(threads) {
        created[first.0 as usize] += 1;
    }
    created
}

/// Words on the number of working threads among all threads, and on replaced threads if there are any.
pub(crate) fn threads_at_work(working: usize, created: &[u32]) -> String {
    let count = created.iter().filter(|&&count| count > 0).count();
    let threads = format!("{working} of {}", counted(count as u64, "thread"));
    match created.len() > count {
        true => format!(
            "{threads} ({} with those that replaced them)",
            created.len()
        ),
        false => threads,
    }
}

/// Printable name of a process: the kernel's name of its main thread, or its number without a name.
pub(crate) fn process_name(threads: &[Thread], pid: u32) -> String {
    let mut of_process = threads.iter().filter(|thread| thread.pid == pid);
    let main = of_process.find(|thread| thread.order == 0 && !thread.name.is_empty());
    main.map_or_else(|| format!("process {pid}"), |main| printable(&main.name))
}

/// Printable name of a thread: its own name, its team and its number in the team.
pub(crate) fn thread_name(thread: &Thread) -> String {
    let name = printable(&thread.name);
    match thread.team.as_str() {
        "" => name,
        team => format!("{name}, {} {}", printable(team), thread.team_index),
    }
}

#[cfg(test)]
mod tests {
    use nearpage_recording::SampleCounts;

    use super::*;

    #[test]
    fn a_process_is_called_by_its_main_thread() {
        let thread = |pid, order, name: &str| Thread {
            pid,
            tid: pid + order,
            name: name.to_owned(),
            born_ns: 0,
            died_ns: u64::MAX,
            order,
            start: None,
            start_function: String::new(),
            team_index: order,
            team: "openmp".to_owned(),
            cpus: Vec::new(),
            counts: SampleCounts::default(),
        };
        let threads = [
            thread(7, 1, "worker"),
            thread(7, 0, "solve"),
            thread(9, 1, "worker"),
        ];
        let named = [7, 9, 0].map(|pid| process_name(&threads, pid));
        assert_eq!(named, ["solve", "process 9", "process 0"]);
    }

    #[test]
    fn threads_that_were_replaced_are_counted_with_their_successors() {
        assert_eq!(threads_at_work(2, &[1, 1, 1]), "2 of 3 threads");
        assert_eq!(
            threads_at_work(2, &[1, 2, 0, 2, 0]),
            "2 of 3 threads (5 with those that replaced them)"
        );
    }
}
