//! Long phases of a trace, and plans that change with them.
//!
//! A phase begins with a function that a team of threads runs: the body of a parallel region or of a task, as GCC and
//! LLVM outline it, or a thread's start routine. Any run of the program shows when this function is first executed,
//! whatever its input. Only the first time counts: regions that take turns, as in every iteration of a loop, begin
//! within a short time of each other and are one phase. A phase is long if it makes at least a tenth of the program's
//! misses; a shorter phase is part of the phase before it.

use std::ops::Range;

use nearpage_attribution::{Attribution, Cell, ObjectGroup, Options, attribute};
use nearpage_machine::NodeId;
use nearpage_plan::{Phase, Plan, Program};
use nearpage_recording::elf::demangle;
use nearpage_recording::{
    AccessBatch, AccessKind, ColumnSelection, Mark, Module, Recording, ThreadIndex,
};
use nearpage_wire::is_runtime_module;

use crate::context::Input;
use crate::error::Error;
use crate::replay::process::recorded_image;

/// Least share of the program's misses in a long phase: its saving has to pay for moves, and deciding about it is as
/// much work as deciding about a plan.
const LONG_PHASE_SHARE: f64 = 0.1;

/// A long phase of a recording.
pub struct LongPhase {
    /// The phase, without decisions.
    pub phase: Phase,
    /// Accesses in the phase, as if nothing was known of the time before.
    pub attribution: Attribution,
}

/// The long phases of a process, in order of time.
pub struct Phases {
    /// Accesses before the first long phase.
    pub first: Attribution,
    /// At least one long phase.
    pub others: Vec<LongPhase>,
}

/// Looks for long phases; none if there is only one phase, or if the program marks its stable phase, which says what
/// counts.
///
/// # Errors
/// The recording cannot be read.
pub fn of(recording: &Recording, input: &Input) -> Result<Option<Phases>, Error> {
    let pid = input.pid;
    let marks = &recording.metadata.marks;
    if marks.iter().any(|mark| mark.pid == pid) {
        return Ok(None);
    }
    let mut functions = functions_of_teams(recording, pid);
    if functions.len() < 2 {
        return Ok(None);
    }
    let misses = executed(recording, pid, &mut functions)?;
    functions.retain(|function| function.first.is_some());
    functions.sort_by_key(|function| function.first);
    let begins: Vec<u64> = functions
        .iter()
        .filter_map(|function| Some(function.first?.misses_before))
        .collect();
    let taken = long(&begins, misses);
    if taken.is_empty() {
        return Ok(None);
    }
    let begins_ns = |at: usize| functions[at].first.map_or(0, |first| first.time_ns);
    let first = attributed(recording, input, 0..begins_ns(taken[0]))?;
    let mut others = Vec::new();
    for (number, &at) in taken.iter().enumerate() {
        let end_ns = taken
            .get(number + 1)
            .map_or(u64::MAX, |&next| begins_ns(next));
        others.push(LongPhase {
            phase: functions[at].phase.clone(),
            attribution: attributed(recording, input, begins_ns(at)..end_ns)?,
        });
    }
    Ok(Some(Phases { first, others }))
}

/// True if no function of a recorded program has a name: phases that begin in it are not seen then.
pub fn is_stripped(recording: &Recording, program: &Program) -> bool {
    let is_program = |module: &&Module| {
        module.file_name() == program.executable && module.build_id == program.build_id
    };
    let module = recording.tables.modules.iter().find(is_program);
    let image = module.and_then(recorded_image);
    image.is_some_and(|image| image.all_functions().next().is_none())
}

/// The plan with these decisions in one of its phases.
pub fn with_phase(plan: &Plan, number: usize, decided: Plan) -> Plan {
    let mut plan = plan.clone();
    plan.phases[number].decisions = decided.decisions;
    plan
}

/// Threads of the team that plans call their first.
pub fn first_team(attribution: &Attribution, pid: u32) -> &[ThreadIndex] {
    let mut teams = attribution.teams.iter();
    let found = teams.find(|team| team.pid == pid && !team.threads.is_empty());
    found.map_or(&[], |team| &team.threads)
}

/// Nodes of threads, by [`ThreadIndex`], with the threads of a team in each other's places.
pub fn nodes_in(places: &[u32], team: &[ThreadIndex], nodes: &[NodeId]) -> Vec<NodeId> {
    let mut moved = nodes.to_vec();
    if places.len() == team.len() {
        for (thread, &place) in team.iter().zip(places) {
            moved[thread.0 as usize] = nodes[team[place as usize].0 as usize];
        }
    }
    moved
}

/// For each thread of a team, the thread whose place it should take in a phase, if pages stay near their users in the
/// phase before. Pairs are matched by number of references to pages that the other thread used, the most first.
/// `places`: places in the phase before. None if no thread would go to another node.
pub fn exchanged(
    before: &[ObjectGroup],
    now: &[ObjectGroup],
    team: &[ThreadIndex],
    nodes: &[NodeId],
    places: &[u32],
) -> Option<Vec<u32>> {
    let place = |member: usize| places.get(member).map_or(member, |&place| place as usize);
    let member = |thread: ThreadIndex| team.iter().position(|&other| other == thread);
    let mut references = vec![0.0; team.len() * team.len()];
    for group in now {
        let same = |other: &&ObjectGroup| other.kind == group.kind && other.name == group.name;
        let earlier = before.iter().find(same);
        for (owner, user, count) in earlier.into_iter().flat_map(|one| shared(one, group)) {
            if let (Some(owner), Some(user)) = (member(owner), member(user)) {
                references[user * team.len() + place(owner)] += count;
            }
        }
    }
    let mut pairs: Vec<(f64, bool, usize, usize)> = references
        .iter()
        .enumerate()
        .map(|(at, &references)| {
            let (user, to) = (at / team.len(), at % team.len());
            (references, place(user) == to, user, to)
        })
        .collect();
    // Of equal pairs, threads that stay come first, then the order: one recording always gives the same plan.
    pairs.sort_by(|a, b| {
        let most = b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
        most.then((a.2, a.3).cmp(&(b.2, b.3)))
    });
    let mut taken: Vec<Option<u32>> = vec![None; team.len()];
    let mut is_free = vec![true; team.len()];
    for (_, _, user, to) in pairs {
        if taken[user].is_none() && std::mem::take(&mut is_free[to]) {
            taken[user] = Some(to as u32);
        }
    }
    let taken: Vec<u32> = taken.into_iter().flatten().collect();
    let node = |place: usize| nodes[team[place].0 as usize];
    let moves = |(user, &to): (usize, &u32)| node(place(user)) != node(to as usize);
    taken.iter().enumerate().any(moves).then_some(taken)
}

/// References to pages of an object that other threads used before, divided by their earlier accesses: owner, user,
/// references.
fn shared<'a>(
    before: &'a ObjectGroup,
    now: &'a ObjectGroup,
) -> impl Iterator<Item = (ThreadIndex, ThreadIndex, f64)> + 'a {
    let owners = before.affinity.cells.as_slice();
    let is_alike = before.affinity.page_bytes == now.affinity.page_bytes;
    let users = now.affinity.cells.iter().filter(move |_| is_alike);
    users.flat_map(move |user| {
        let first = owners.partition_point(|owner| owner.page < user.page);
        let owners = owners[first..].iter();
        let owners = owners.take_while(|owner| owner.page == user.page);
        let all: f64 = owners.clone().map(Cell::accesses).sum();
        owners.map(move |owner| {
            let share = owner.accesses() / all.max(f64::MIN_POSITIVE);
            (owner.thread, user.thread, share * user.accesses())
        })
    })
}

/// A function that threads of a team run.
struct Function {
    phase: Phase,
    /// The function's addresses.
    code: Vec<Range<u64>>,
    first: Option<FirstExecution>,
}

/// First execution of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FirstExecution {
    misses_before: u64,
    time_ns: u64,
}

/// Bodies of parallel regions and tasks, and start routines of threads, in modules that a process has mapped and whose
/// files are still the recorded builds.
fn functions_of_teams(recording: &Recording, pid: u32) -> Vec<Function> {
    let tables = &recording.tables;
    let mut functions = Vec::new();
    for (number, module) in tables.modules.iter().enumerate() {
        let mut biases: Vec<u64> = tables
            .mappings
            .iter()
            .filter(|mapping| mapping.pid == pid && mapping.module.0 as usize == number)
            .map(|mapping| mapping.bias)
            .collect();
        biases.sort_unstable();
        biases.dedup();
        let file_name = module.file_name();
        if biases.is_empty() || is_runtime_module(file_name.as_bytes()) {
            continue;
        }
        let Some(image) = recorded_image(module) else {
            continue;
        };
        let starts = tables.threads.iter().filter(|thread| thread.pid == pid);
        let starts: Vec<u64> = starts
            .filter_map(|thread| thread.start)
            .filter(|start| start.0.0 as usize == number)
            .map(|start| start.1)
            .collect();
        let of_team = |symbol: &&nearpage_plan::Symbol| {
            is_body(&symbol.name) || starts.contains(&symbol.offset)
        };
        for symbol in image.all_functions().filter(of_team) {
            let code = |bias: &u64| {
                let start = symbol.offset.wrapping_add(*bias);
                start..start.saturating_add(symbol.size_bytes.max(1))
            };
            functions.push(Function {
                phase: Phase {
                    function: demangle(&symbol.name),
                    module: file_name.to_owned(),
                    build_id: module.build_id.clone(),
                    offset: symbol.offset,
                    size_bytes: symbol.size_bytes,
                    threads: Vec::new(),
                    decisions: Vec::new(),
                },
                code: biases.iter().map(code).collect(),
                first: None,
            });
        }
    }
    functions
}

/// True for the body of a parallel region or task, by the name that the compiler gave it. GCC: `f._omp_fn.0`; LLVM:
/// `f.omp_outlined`, `.omp_outlined..1`, `.omp_task_entry.`. False for parts of a body that the compiler split off:
/// seldom executed code (`.cold`) and `.part.0`.
fn is_body(name: &str) -> bool {
    let is_whole = !name.contains(".cold") && !name.contains(".part.");
    is_whole
        && (name.contains("._omp_fn.")
            || name.contains(".omp_outlined") && !name.contains("_debug__")
            || name.contains(".omp_task_entry."))
}

/// Notes when each function was first executed, by its first instruction fetch that missed. Returns the number of the
/// process's misses.
fn executed(recording: &Recording, pid: u32, functions: &mut [Function]) -> Result<u64, Error> {
    let mut by_address: Vec<(u64, u64, usize)> = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let code = function.code.iter();
        by_address.extend(code.map(|range| (range.start, range.end, number)));
    }
    by_address.sort_unstable();
    let columns = ColumnSelection {
        time_ns: true,
        thread: true,
        address: true,
        kind: true,
        ..ColumnSelection::NONE
    };
    let threads = &recording.tables.threads;
    let is_own: Vec<bool> = threads.iter().map(|thread| thread.pid == pid).collect();
    let mut batch = AccessBatch::default();
    let mut misses = 0;
    let mut reader = recording.chunk_reader();
    for chunk in 0..recording.access_chunks() {
        reader.read(chunk, columns, &mut batch)?;
        for row in 0..batch.len() {
            if !is_own[batch.thread[row].0 as usize] {
                continue;
            }
            if batch.kind[row] == AccessKind::Fetch {
                let address = batch.address[row];
                let after = by_address.partition_point(|range| range.0 <= address);
                let found = after.checked_sub(1).map(|at| by_address[at]);
                if let Some((.., number)) = found.filter(|range| address < range.1) {
                    functions[number].first.get_or_insert(FirstExecution {
                        misses_before: misses,
                        time_ns: batch.time_ns[row],
                    });
                }
            }
            misses += 1;
        }
    }
    Ok(misses)
}

/// Positions of the functions with which long phases begin, from the numbers of misses before each function, ascending.
/// The first function belongs to the time before, in which one thread may run alone.
fn long(begins: &[u64], misses: u64) -> Vec<usize> {
    let least = (LONG_PHASE_SHARE * misses as f64).ceil() as u64;
    let mut taken: Vec<usize> = Vec::new();
    let mut before = begins.first().copied().unwrap_or(0);
    for (number, &begin) in begins.iter().enumerate().skip(1) {
        if begin - before >= least && misses - begin >= least {
            taken.push(number);
            before = begin;
        }
    }
    taken
}

/// Accesses of a process between two times. First touches before the first time do not tell where pages are then, so
/// they are dropped.
fn attributed(
    recording: &Recording,
    input: &Input,
    time_ns: Range<u64>,
) -> Result<Attribution, Error> {
    let mark = |time_ns, begin| Mark {
        time_ns,
        pid: input.pid,
        begin,
    };
    let marks = [mark(time_ns.start, true), mark(time_ns.end, false)];
    let options = Options {
        page_bytes: input.page_bytes,
        ..Options::default()
    };
    let windowed = nearpage_attribution::Input {
        marks: &marks,
        ..nearpage_attribution::Input::new(recording)
    };
    let all = attribute(&windowed, &options)?;
    let own = all.of_process(input.pid, &recording.tables.threads);
    let mut attribution = own.unwrap_or(all);
    if time_ns.start > 0 {
        for group in &mut attribution.objects {
            group.first_touches.clear();
            group.affinity.initialisation.clear();
        }
    }
    Ok(attribution)
}

#[cfg(test)]
mod tests {
    use nearpage_attribution::{Affinity, ObjectName, OperationTotals, Pattern};
    use nearpage_recording::ObjectKind;

    use super::*;

    #[test]
    fn phases_are_long_and_begin_after_a_long_time() {
        let no: [usize; 0] = [];
        // Regions of one iteration take turns from the beginning.
        assert_eq!(long(&[50, 60, 70], 1000), no);
        assert_eq!(long(&[50, 149, 1000], 1000), no);
        assert_eq!(long(&[50, 150], 1000), [1]);
        // The second of two functions that begin together is part of the first one's phase; the last phase is too
        // short.
        assert_eq!(long(&[0, 300, 310, 700, 950], 1000), [1, 3]);
        assert_eq!(long(&[0, 900], 1000), [1]);
        assert_eq!(long(&[0, 901], 1000), no);
        assert_eq!(long(&[], 0), no);
        assert_eq!(long(&[0, 0, 0], 0).len(), 2);
    }

    /// An object with loads: page, thread, number of loads.
    fn grid(loads: &[(u32, u32, f32)]) -> [ObjectGroup; 1] {
        let cell = |&(page, thread, loads): &(u32, u32, f32)| Cell {
            page,
            thread: ThreadIndex(thread),
            loads,
            stores: 0.0,
            samples: loads,
            cost_ns: 0.0,
        };
        [ObjectGroup {
            kind: ObjectKind::Static,
            name: ObjectName::Other("grid".to_owned()),
            size_bytes: 4 << 12,
            instances: 1,
            listed_instances: Vec::new(),
            loads: OperationTotals::default(),
            stores: OperationTotals::default(),
            threads: Vec::new(),
            hot: Vec::new(),
            affinity: Affinity {
                page_bytes: 4096,
                pages: 4,
                cells: loads.iter().map(cell).collect(),
                ..Affinity::default()
            },
            first_touches: Vec::new(),
            touchers: Vec::new(),
            uses: Vec::new(),
            sibling: None,
            is_shared_memory: false,
            pattern: Pattern::Unknown,
        }]
    }

    #[test]
    fn threads_go_where_those_were_whose_pages_they_use() {
        let team = [0, 1, 2, 3].map(ThreadIndex);
        let four = [0, 1, 2, 3].map(NodeId);
        let before = grid(&[
            (0, 0, 9.0),
            (1, 1, 9.0),
            (1, 2, 1.0),
            (2, 2, 9.0),
            (3, 3, 9.0),
        ]);
        let opposite = grid(&[(0, 3, 9.0), (1, 2, 9.0), (2, 1, 9.0), (3, 0, 9.0)]);
        let exchanged = |now: &[ObjectGroup], nodes: &[NodeId], places: &[u32]| {
            exchanged(&before, now, &team, nodes, places)
        };
        assert_eq!(exchanged(&opposite, &four, &[]), Some(vec![3, 2, 1, 0]));
        assert_eq!(exchanged(&before, &four, &[]), None);
        // All threads are on one node, or in each other's places already, with their pages.
        assert_eq!(exchanged(&opposite, &[NodeId(1); 4], &[]), None);
        assert_eq!(exchanged(&before, &four, &[3, 2, 1, 0]), None);
        let back = exchanged(&opposite, &four, &[3, 2, 1, 0]);
        assert_eq!(back, Some(vec![0, 1, 2, 3]));
        // Two threads want one place: the thread with more references gets it, the other takes the place that is left.
        let crowded = grid(&[(0, 1, 9.0), (0, 2, 5.0), (3, 3, 9.0)]);
        assert_eq!(exchanged(&crowded, &four, &[]), Some(vec![1, 0, 2, 3]));
        assert_eq!(exchanged(&grid(&[]), &four, &[]), None);
    }

    #[test]
    fn threads_in_other_places_run_on_other_nodes() {
        let team = [1, 2, 3].map(ThreadIndex);
        let nodes = [7, 0, 1, 2].map(NodeId);
        let moved = [7, 2, 0, 1].map(NodeId);
        assert_eq!(nodes_in(&[2, 0, 1], &team, &nodes), moved);
        assert_eq!(nodes_in(&[], &team, &nodes), nodes);
        assert_eq!(nodes_in(&[1, 0], &team, &nodes), nodes, "of another size");
    }

    #[test]
    fn bodies_are_known_by_name() {
        for name in [
            "backward._omp_fn.0",
            "main._omp_fn.12",
            "_ZN4mesh5solveEv._omp_fn.1",
            "sweep.omp_outlined",
            ".omp_outlined.",
            ".omp_outlined..3",
            ".omp_task_entry..7",
            "main._omp_fn.0.lto_priv.2",
        ] {
            assert!(is_body(name), "{name}");
        }
        for name in [
            "main",
            "omp_outlined",
            "fn.0",
            "sweep.omp_outlined_debug__",
            "main._omp_fn.0.cold",
            "main._omp_fn.0.part.0",
            "sweep.omp_outlined.cold.1",
        ] {
            assert!(!is_body(name), "{name}");
        }
    }
}
