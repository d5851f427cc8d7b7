//! What a plan asks for while the program runs: copies, and placements that begin later than objects do.

use nearpage_recording::{AccessKind, ThreadIndex};

use super::replicate_on_first_touch::copy_to_reader;
use super::{Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, Place, Reason};

/// What a plan asks for a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nothing but its first home.
    #[default]
    Nothing,
    /// A copy on each node that reads it.
    Copies,
    /// To be on a node from when a second thread of its program runs.
    Later(u16),
}

/// A node that reads a page that is to have copies gets one; a page whose copies stores have taken away
/// so often is left alone. Once a second thread of a program refers to memory, each of its pages that
/// was to wait for that moves to its node when it is next referred to, once.
#[derive(Clone, Debug)]
pub struct Planned {
    wishes: Vec<Wish>,
    /// Collapses of each page.
    collapses: Vec<u8>,
    /// Program of each page.
    programs: Vec<u16>,
    /// By program: the thread that was seen first, and whether another was.
    threads: Vec<(Option<ThreadIndex>, bool)>,
}

/// As often as `traffic` allows (Carrefour §3.3.2).
const COLLAPSES_MAX: u8 = 5;

impl Planned {
    /// By page.
    pub fn new(wishes: Vec<Wish>) -> Self {
        Self {
            collapses: vec![0; wishes.len()],
            programs: vec![0; wishes.len()],
            threads: vec![(None, false)],
            wishes,
        }
    }
}

impl OnlinePolicy for Planned {
    fn epoch_ns(&self) -> Option<u64> {
        None
    }

    fn place(&mut self, page: u32, place: Place) {
        self.programs[page as usize] = place.application;
        let programs = usize::from(place.application) + 1;
        if self.threads.len() < programs {
            self.threads.resize(programs, (None, false));
        }
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let page = observation.page as usize;
        let (first, second_runs) = &mut self.threads[usize::from(self.programs[page])];
        let first = *first.get_or_insert(observation.thread);
        *second_runs |= first != observation.thread;
        match self.wishes[page] {
            Wish::Copies
                if self.collapses[page] <= COLLAPSES_MAX
                    && observation.kind != AccessKind::Store =>
            {
                let rule = "the plan wants copies, and a node without one reads";
                actions.extend(copy_to_reader(observation, rule));
            }
            Wish::Later(node) if *second_runs => {
                self.wishes[page] = Wish::Nothing;
                if observation.copies != Copies::at(node) {
                    actions.push(Action {
                        page: observation.page,
                        kind: ActionKind::Migrate,
                        node,
                        reason: Reason {
                            rule: "the plan wants it there from the second thread on",
                            counts: Vec::new(),
                            writes: 0,
                            migrations: 0,
                        },
                    });
                }
            }
            Wish::Nothing | Wish::Copies | Wish::Later(_) => {}
        }
    }

    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {}

    fn forget(&mut self, page: u32) {
        self.wishes[page as usize] = Wish::Nothing;
    }

    fn collapsed(&mut self, page: u32, _: Copies, _: &mut Vec<Action>) {
        let collapses = &mut self.collapses[page as usize];
        *collapses = collapses.saturating_add(1);
    }
}
