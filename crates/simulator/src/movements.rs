//! Every change of where a page is, as it happens, and where each page was first and last: what ARS
//! shows as runtime migration, page show and page location (§4.2).

use schemars::JsonSchema;
use serde::Serialize;

use crate::figures::FS;
use crate::trace::Trace;

/// Pages whose first and last homes are kept, at most.
pub(crate) const PAGES_MAX: usize = 100_000;

/// What was done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MovementKind {
    /// Its home is another node, nearer to who uses it.
    Migrate,
    /// Its home is another node, to spread load.
    Interleave,
    /// Another node has a copy too.
    Replicate,
    /// A node that had lost its copy to a store has a fresh one (Carrefour §3.3.2).
    Refresh,
    /// After a store one copy is left.
    Collapse,
}

/// A change of where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movement {
    /// When what led to it happened, in nanoseconds since the simulation began: moves of a batch
    /// have one time, and the thread that makes them is busy with them for a while after it.
    pub time_ns: u64,
    /// Position of the page among all of [`Movements::extents`].
    pub page: u32,
    /// What was done.
    pub kind: MovementKind,
    /// Its home before.
    pub from: u16,
    /// Node of its new home, or of the copy; after a collapse, of the one that is left.
    pub to: u16,
}

/// Pages that follow each other in a process's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageExtent {
    /// Process, from 0.
    pub application: u16,
    /// Address of the first page, divided by the page's size.
    pub page_number: u64,
    /// Node of each page after its first touch, and at the end.
    pub homes: Vec<(u8, u8)>,
}

/// What pages did in a simulation: all of it, marked phases or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Movements {
    /// In order of time, the first so many.
    pub kept: Vec<Movement>,
    /// Those that came after them, or were of pages that are not among `extents`.
    pub omitted: u64,
    /// Pages that were touched, in order of process and address.
    pub extents: Vec<PageExtent>,
    /// Pages that are not among them.
    pub pages_omitted: u64,
}

/// Keeps movements while a simulation runs.
#[derive(Debug, Default)]
pub(crate) struct MovementLog {
    kept: Vec<Movement>,
    most: usize,
    omitted: u64,
    /// In femtoseconds.
    now: u64,
}

impl MovementLog {
    /// Of at most so many.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// What comes is done at `now`, in femtoseconds.
    pub fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    pub fn note(&mut self, page: u32, kind: MovementKind, from: u8, to: u16) {
        if self.kept.len() >= self.most {
            self.omitted += 1;
            return;
        }
        self.kept.push(Movement {
            time_ns: self.now / FS as u64,
            page,
            kind,
            from: from.into(),
            to,
        });
    }

    /// With the first and the last home of each page that was touched; `None` where nothing was to
    /// be kept.
    pub fn finish(
        &mut self,
        trace: &dyn Trace,
        homes: impl Iterator<Item = Option<(u8, u8)>>,
    ) -> Option<Movements> {
        if self.most == 0 {
            return None;
        }
        let mut movements = Movements {
            omitted: self.omitted,
            ..Movements::default()
        };
        // Position of each page, by its number in the trace.
        let mut positions: Vec<Option<u32>> = Vec::new();
        let mut listed = 0;
        for (page, homes) in (0u32..).zip(homes) {
            let position = homes.and_then(|homes| {
                if listed == PAGES_MAX {
                    movements.pages_omitted += 1;
                    return None;
                }
                let (application, page_number) =
                    (trace.page_application(page), trace.page_number(page));
                match movements.extents.last_mut() {
                    Some(extent)
                        if extent.application == application
                            && extent.page_number + extent.homes.len() as u64 == page_number =>
                    {
                        extent.homes.push(homes);
                    }
                    _ => movements.extents.push(PageExtent {
                        application,
                        page_number,
                        homes: vec![homes],
                    }),
                }
                listed += 1;
                Some(listed as u32 - 1)
            });
            positions.push(position);
        }
        for movement in self.kept.drain(..) {
            match positions.get(movement.page as usize).copied().flatten() {
                Some(page) => movements.kept.push(Movement { page, ..movement }),
                None => movements.omitted += 1,
            }
        }
        Some(movements)
    }
}
