//! Log of page movements, and the first and last home of each page. ARS (§4.2) shows the same data as runtime
//! migration, page show and page location.

use schemars::JsonSchema;
use serde::Serialize;

use crate::figures::FS;
use crate::trace::Trace;

/// Maximum number of pages whose first and last homes are kept.
pub(crate) const PAGES_MAX: usize = 100_000;

/// Kind of a page movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MovementKind {
    /// The page's home moves to another node, nearer to its users.
    Migrate,
    /// The page's home moves to another node, to spread load.
    Interleave,
    /// Another node gets a copy.
    Replicate,
    /// A node that had lost its copy to a store gets a fresh one (Carrefour §3.3.2).
    Refresh,
    /// A store leaves one copy.
    Collapse,
}

/// One movement of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movement {
    /// Time of the event that caused the movement, in nanoseconds since the simulation began. All moves of a batch have
    /// the same time; the thread that makes them is busy for a while afterwards.
    pub time_ns: u64,
    /// Position of the page in the concatenation of [`Movements::extents`].
    pub page: u32,
    /// Kind of the movement.
    pub kind: MovementKind,
    /// Home of the page before the movement.
    pub from: u16,
    /// Node of the new home or of the new copy; after a collapse, node of the copy that is left.
    pub to: u16,
}

/// A run of consecutive pages in a process's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageExtent {
    /// Process, from 0.
    pub application: u16,
    /// Address of the first page, divided by the page's size.
    pub page_number: u64,
    /// Node of each page after its first touch, and at the end.
    pub homes: Vec<(u8, u8)>,
}

/// Page movements of a whole simulation, inside and outside of marked phases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Movements {
    /// The first movements up to [`Options::movements_max`](crate::Options), in order of time.
    pub kept: Vec<Movement>,
    /// Number of movements that were not kept: beyond the maximum, or of pages that no extent lists.
    pub omitted: u64,
    /// Touched pages, in order of process and address.
    pub extents: Vec<PageExtent>,
    /// Number of touched pages that `extents` does not list.
    pub pages_omitted: u64,
}

#[derive(Debug, Default)]
pub(crate) struct MovementLog {
    kept: Vec<Movement>,
    most: usize,
    omitted: u64,
    /// In femtoseconds.
    now: u64,
}

impl MovementLog {
    /// `most`: maximum number of movements to keep.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Sets the time of the following movements, in femtoseconds.
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

    /// Returns the log with the first and the last home of each touched page; `None` if no movements were to be kept.
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
        // Position of each page in the extents, by its number in the trace.
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
