//! A process whose pages the daemon moves: its pending and past moves.

use nearpage_machine::{CpuList, NodeId};
use rustc_hash::FxHashMap;

use crate::address_space::AddressSpace;
use crate::claim::Claim;
use crate::guard::{Guard, GuardThresholds, IntervalLoss, Stage, Verdict};
use crate::kernel::Kernel;
use crate::mover::{Identity, Mover, Outcomes, PageMove, Round};
use crate::pages::{HotPages, Page};
use crate::pins::Pins;

/// A process, with the daemon's state about it between intervals.
#[derive(Debug)]
pub struct TargetProcess {
    identity: Identity,
    /// Absent if another daemon has claimed the process, or if this daemon moves nothing and needs no claim.
    claim: Option<Claim>,
    guard: Guard,
    space: AddressSpace,
    /// Earliest and latest time of the next query of the address space.
    space_read_again_ns: u64,
    space_too_old_ns: u64,
    /// The process has mapped memory since the last query.
    remapped: bool,
    /// Node of each moved page before its first move, and the page's size.
    origins: FxHashMap<Page, (NodeId, u64)>,
    /// Moves that are not carried out yet. A policy requests a move only once, perhaps while nothing is moved or there
    /// is too little time.
    pending: FxHashMap<Page, PageMove>,
    pins: Pins,
}

/// Actions on a process in an interval.
#[derive(Debug, Default)]
pub struct IntervalActions {
    /// Results of moves.
    pub round: Round,
    /// Number of threads that were pinned.
    pub pinned: u64,
    /// The process lost more time than before, so its pages move back.
    pub moved_back: bool,
}

/// Querying an address space makes the kernel walk all pages of the process (12 ms for 200 MB in small pages). It may
/// take at most one part in this number of the time.
const SPACE_READING_PART: u64 = 1000;
/// Minimum time between two queries if the process has mapped memory…
const SPACE_READ_AGAIN_NS: u64 = 1_000_000_000;
/// …and if it has not: pages become huge, or get a policy, without a record.
const SPACE_UNCHANGED_NS: u64 = 10_000_000_000;

impl TargetProcess {
    /// A process without observations. `is_claimed`: this daemon is to claim the process.
    pub fn new(identity: Identity, thresholds: GuardThresholds, is_claimed: bool) -> Self {
        Self {
            identity,
            claim: is_claimed.then(|| Claim::on(identity)).flatten(),
            guard: Guard::new(thresholds),
            space: AddressSpace::default(),
            space_read_again_ns: 0,
            space_too_old_ns: 0,
            remapped: false,
            origins: FxHashMap::default(),
            pending: FxHashMap::default(),
            pins: Pins::default(),
        }
    }

    /// Address space at the last query.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// Stage of the process.
    pub fn stage(&self) -> Stage {
        self.guard.stage()
    }

    /// May this daemon move pages of the process?
    pub fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    /// Is a page still to be moved?
    pub fn is_pending(&self, page: &Page) -> bool {
        self.pending.contains_key(page)
    }

    /// Number of moves that are not carried out yet.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Queries the address space, if that is due; `remapped`: memory was mapped or unmapped since the last decision.
    pub fn read_space(&mut self, kernel: &mut dyn Kernel, remapped: bool) {
        self.remapped |= remapped;
        let began_ns = kernel.now_ns();
        let due = self.remapped || began_ns >= self.space_too_old_ns;
        if !due || began_ns < self.space_read_again_ns {
            return;
        }
        self.space = kernel.address_space(self.identity.pid);
        self.remapped = false;
        let ended_ns = kernel.now_ns();
        let took_ns = ended_ns.saturating_sub(began_ns);
        let pause_ns = took_ns.saturating_mul(SPACE_READING_PART);
        self.space_read_again_ns = ended_ns + pause_ns.max(SPACE_READ_AGAIN_NS);
        self.space_too_old_ns = ended_ns + pause_ns.max(SPACE_UNCHANGED_NS);
    }

    /// Takes in new moves, at most `most` in all. Moves that the address space forbids are counted and not tried. Drops
    /// pending moves of pages that are on their target already (`seen_at` returns the last known node of a number) or
    /// have left the table.
    pub fn take_in(
        &mut self,
        new: Vec<PageMove>,
        pages: &HotPages,
        seen_at: impl Fn(u32) -> Option<NodeId>,
        most: usize,
    ) -> Outcomes {
        self.pending.retain(|page, page_move| {
            let number = pages.number(page);
            number.is_some_and(|number| seen_at(number) != Some(page_move.to))
        });
        let mut refused = Outcomes::default();
        for page_move in new {
            if self.space.has_own_policy(page_move.page.address) {
                refused.own_policy += 1;
            } else if !self.space.allows(page_move.to) {
                refused.node_not_allowed += 1;
            } else if self.pending.len() < most || self.pending.contains_key(&page_move.page) {
                self.pending.insert(page_move.page, page_move);
            }
        }
        refused
    }

    /// Requests that a thread of the process runs on these CPUs.
    pub fn pin(&mut self, tid: u32, cpus: CpuList) {
        self.pins.request(tid, cpus);
    }

    /// Drops requests to pin threads that are not carried out yet.
    pub fn forget_pins(&mut self) {
        self.pins.drop_requests();
    }

    /// Restores the affinity of pinned threads.
    pub fn restore_affinities(&mut self, kernel: &mut dyn Kernel) {
        self.pins.undo(kernel, self.identity.pid);
    }

    /// Judges the interval, in which the process lost `loss`, and moves pages as the guard allows until `deadline_ns`.
    /// Remembers the origin of at most `most` pages.
    pub fn act(
        &mut self,
        loss: IntervalLoss,
        mover: &mut Mover,
        kernel: &mut dyn Kernel,
        deadline_ns: u64,
        most: usize,
    ) -> IntervalActions {
        let (requested, put_off) = ready(self.pending.values().copied(), mover);
        let back = self.origins.iter().map(|(&page, &(to, bytes))| PageMove {
            page,
            bytes,
            // The current node is unknown here and not used.
            from: to,
            to,
        });
        let (back, _) = ready(back, mover);
        let was_holding = self.stage() == Stage::Holding;
        // Sizes are in usual pages, so that a trial with a huge page counts as large.
        let requested_in_all = mover.usual_pages(&requested) + self.pins.requested_count();
        let verdict = self.guard.judge(loss, requested_in_all, back.len());
        let mut acted = IntervalActions::default();
        match verdict {
            Verdict::Move(most_now) => {
                if most_now > 0 {
                    acted.pinned = self.pins.carry_out(kernel, self.identity.pid);
                }
                let moves = match most_now {
                    0 => &[],
                    most_now => &requested[..mover.fitting(&requested, most_now)],
                };
                acted.round = mover.carry_out(kernel, self.identity, moves, deadline_ns);
                let has_moved = !acted.round.moved.is_empty() || acted.pinned > 0;
                self.guard.note(most_now, has_moved);
                for moved in &acted.round.moved {
                    self.pending.remove(&moved.page);
                    if self.origins.len() < most {
                        let origin = (moved.from, moved.bytes);
                        self.origins.entry(moved.page).or_insert(origin);
                    }
                }
            }
            Verdict::MoveBack => {
                acted.moved_back = !was_holding;
                if acted.moved_back {
                    // The pending requests would do more harm.
                    self.pending.clear();
                    self.forget_pins();
                    self.restore_affinities(kernel);
                }
                acted.round = mover.carry_out(kernel, self.identity, &back, deadline_ns);
                for moved in &acted.round.moved {
                    self.origins.remove(&moved.page);
                }
            }
        }
        acted.round.outcomes.put_off += put_off;
        if self.stage() == Stage::Measuring {
            // The current placement is the new baseline.
            self.origins.clear();
        }
        acted
    }
}

/// Moves that may be tried, in order of address, and the number of the others.
fn ready(moves: impl Iterator<Item = PageMove>, mover: &Mover) -> (Vec<PageMove>, u64) {
    let (mut ready, put_off): (Vec<PageMove>, Vec<PageMove>) =
        moves.partition(|page_move| mover.may_try(&page_move.page));
    ready.sort_unstable_by_key(|page_move| page_move.page.address);
    (ready, put_off.len() as u64)
}
