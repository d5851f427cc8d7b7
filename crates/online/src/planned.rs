//! Changes that a plan asks for while the program runs: copies, and placements that begin later or end.

use std::ops::Range;

use nearpage_recording::{AccessKind, ThreadIndex};

use super::replicate_on_first_touch::copy_to_reader;
use super::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, Place, Reason, Survivor,
    ThreadMove,
};

/// Change that a plan asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlannedChange {
    /// The page stays where it starts.
    #[default]
    Nothing,
    /// Each node that reads the page gets a copy.
    Copies,
    /// The page moves to the node when a second thread of its program runs; `None`: to the node of the next reference.
    Later(Option<u16>),
    /// As [`PlannedChange::Later`], whenever several threads run; back to a thread that has run alone for a while.
    Parallel(Option<u16>),
    /// The page moves to the node at its next reference; `None`: to the node of that reference.
    Next(Option<u16>),
}

impl PlannedChange {
    /// May a page still have to move in phase `now` or a later one? It last moved in phase `moved_in`, 0 for never.
    fn has_to_move(self, moved_in: u32, now: u32) -> bool {
        match self {
            Self::Nothing | Self::Copies => false,
            Self::Next(_) => true,
            Self::Later(_) => moved_in == 0,
            Self::Parallel(_) => moved_in != now || now == 0,
        }
    }
}

/// Changes from the first execution of an instruction on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPhase {
    /// Code at the start of the phase, as pages and byte ranges: the first fetch of any of the bytes begins it.
    pub entry: Vec<(u32, Range<u32>)>,
    /// Changes by page; [`PlannedChange::Nothing`] leaves a page as before.
    pub changes: Vec<PlannedChange>,
    /// Threads that move, and their target nodes.
    pub threads: Vec<(ThreadIndex, u16)>,
}

/// - A node that reads a page planned for copies gets a copy, unless stores have collapsed the page several times.
/// - Once a second thread of a program refers to memory, each page planned for that time moves once, at the next
///   reference to the page.
/// - When one thread has run alone throughout an epoch, pages that are placed for several threads move near that thread
///   in the same way, and back when another thread refers to memory.
/// - When a phase of a plan begins, its pages move at the next reference to them, and its threads move to their nodes
///   within a millisecond.
#[derive(Clone, Debug)]
pub struct Planned {
    changes: Vec<PlannedChange>,
    /// Bit n: node n has memory.
    memory_nodes: u64,
    /// Number of collapses of each page.
    collapses: Vec<u8>,
    /// Program of each page.
    programs: Vec<u16>,
    /// For each page, the phase of its program in which it last moved.
    moved_in: Vec<u32>,
    phases: Vec<Phase>,
    /// Phases of the plan that have not begun.
    to_come: Vec<PlannedPhase>,
    /// Moves of threads for phases that have begun.
    thread_moves: Vec<ThreadMove>,
    /// The policy needs epochs, because some pages are placed for several threads or threads move.
    has_epochs: bool,
}

/// Current phase of a program.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    /// First thread that was seen.
    first: Option<ThreadIndex>,
    /// 0 until a second thread was seen; each change of `alone` begins another phase.
    number: u32,
    /// Thread that runs alone, if any.
    alone: Option<ThreadIndex>,
}

impl Phase {
    fn note_thread(&mut self, thread: ThreadIndex) {
        let first = *self.first.get_or_insert(thread);
        let second = self.number == 0 && thread != first;
        if second || self.alone.is_some_and(|alone| thread != alone) {
            self.number += 1;
            self.alone = None;
        }
    }

    fn ran_alone(&mut self, thread: ThreadIndex) {
        if self.number > 0 && self.alone != Some(thread) {
            self.number += 1;
            self.alone = Some(thread);
        }
    }
}

/// Maximum number of collapses, as for `carrefour` (Carrefour §3.3.2).
const COLLAPSES_MAX: u8 = 5;
/// A thread that has run alone for this time begins a phase.
const ALONE_NS: u64 = 1_000_000;

impl Planned {
    /// `changes` are by page; bit n of `memory_nodes` is set if node n has memory.
    pub fn new(changes: Vec<PlannedChange>, to_come: Vec<PlannedPhase>, memory_nodes: u64) -> Self {
        let moves_threads = to_come.iter().any(|phase| !phase.threads.is_empty());
        let any_parallel = changes
            .iter()
            .any(|change| matches!(change, PlannedChange::Parallel(_)));
        Self {
            to_come,
            thread_moves: Vec::new(),
            memory_nodes,
            collapses: vec![0; changes.len()],
            programs: vec![0; changes.len()],
            moved_in: vec![0; changes.len()],
            phases: vec![Phase::default()],
            has_epochs: any_parallel || moves_threads,
            changes,
        }
    }

    /// Does the plan still have to copy the page, or to move it in this phase?
    pub fn holds(&self, page: u32) -> bool {
        let page = page as usize;
        let phase = self.phases.get(usize::from(self.programs[page]));
        let now = phase.map_or(0, |phase| phase.number);
        let change = self.changes[page];
        change == PlannedChange::Copies || change.has_to_move(self.moved_in[page], now)
    }

    fn phase(&mut self, program: u16) -> &mut Phase {
        let program = usize::from(program);
        if self.phases.len() <= program {
            self.phases.resize(program + 1, Phase::default());
        }
        &mut self.phases[program]
    }
}

impl OnlinePolicy for Planned {
    fn epoch_ns(&self) -> Option<u64> {
        self.has_epochs.then_some(ALONE_NS)
    }

    fn place(&mut self, page: u32, place: Place) {
        self.programs[page as usize] = place.application;
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let &Observation {
            page: number,
            node: reader,
            thread,
            kind,
            copies,
            ..
        } = observation;
        let page = number as usize;
        let phase = self.phase(self.programs[page]);
        phase.note_thread(thread);
        let phase = *phase;
        let (wanted, rule) = match self.changes[page] {
            PlannedChange::Nothing => return,
            PlannedChange::Copies => {
                if self.collapses[page] <= COLLAPSES_MAX && kind != AccessKind::Store {
                    let rule = "the plan wants copies, and a node without one reads";
                    actions.extend(copy_to_reader(observation, rule));
                }
                return;
            }
            PlannedChange::Parallel(_) if phase.alone.is_some() => (
                None,
                "the plan wants it elsewhere while several threads run, and one runs alone",
            ),
            PlannedChange::Next(node) => (node, "the plan wants it there in this phase"),
            PlannedChange::Later(node) => {
                (node, "the plan wants it there from the second thread on")
            }
            PlannedChange::Parallel(node) => {
                (node, "the plan wants it there while several threads run")
            }
        };
        let moved_in = &mut self.moved_in[page];
        let may_move = phase.number > 0 || matches!(self.changes[page], PlannedChange::Next(_));
        let moves = may_move && self.changes[page].has_to_move(*moved_in, phase.number);
        let node = wanted.unwrap_or(reader);
        if !moves || self.memory_nodes >> node & 1 == 0 {
            return;
        }
        *moved_in = phase.number;
        if matches!(self.changes[page], PlannedChange::Next(_)) {
            self.changes[page] = PlannedChange::Nothing;
        }
        if copies != Copies::at(node) {
            actions.push(Action {
                page: number,
                kind: ActionKind::Migrate,
                node,
                reason: Reason::rule(rule),
            });
        }
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, _: &mut Vec<Action>) {
        let running = || epoch.threads.iter().filter(|thread| thread.busy_ns > 0);
        for thread in running() {
            let own = |other: &&super::ThreadCounts| other.application == thread.application;
            if running().filter(own).count() == 1 {
                self.phase(thread.application).ran_alone(thread.thread);
            }
        }
    }

    fn fetched(&mut self, page: u32, offset_bytes: u32) {
        let begins = |phase: &PlannedPhase| {
            let mut entry = phase.entry.iter();
            entry.any(|(of, bytes)| *of == page && bytes.contains(&offset_bytes))
        };
        while let Some(at) = self.to_come.iter().position(begins) {
            let begun = self.to_come.remove(at);
            let wanted = self.changes.iter_mut().zip(begun.changes);
            for (change, then) in wanted.filter(|(_, then)| *then != PlannedChange::Nothing) {
                *change = then;
            }
            let moves = begun.threads.into_iter().map(|(thread, node)| ThreadMove {
                thread,
                node,
                rule: "the plan wants it there in this phase",
            });
            self.thread_moves.extend(moves);
        }
    }

    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        std::mem::take(&mut self.thread_moves)
    }

    fn forget(&mut self, page: u32) {
        self.changes[page as usize] = PlannedChange::Nothing;
    }

    fn is_still_requested(&self, action: &Action) -> bool {
        action.kind != ActionKind::Replicate
            || self.collapses[action.page as usize] <= COLLAPSES_MAX
    }

    fn collapse(&mut self, page: u32) -> Survivor {
        let collapses = &mut self.collapses[page as usize];
        *collapses = collapses.saturating_add(1);
        Survivor::Master
    }
}
