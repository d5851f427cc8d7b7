//! A process whose pages the daemon moves: what is still to be moved there, and what was.

use nearpage_machine::{CpuList, NodeId};
use rustc_hash::FxHashMap;

use crate::address_space::AddressSpace;
use crate::claim::Claim;
use crate::guard::{Guard, GuardThresholds, IntervalLoss, Stage, Verdict};
use crate::kernel::Kernel;
use crate::mover::{Identity, Mover, Outcomes, PageMove, Round};
use crate::pages::{HotPages, Page};
use crate::pins::Pins;

/// A process, and what the daemon knows about it from one interval to the next.
#[derive(Debug)]
pub struct TargetProcess {
    identity: Identity,
    /// Absent: another daemon has it, and it is left alone; or this one moves nothing, and keeps nobody from it.
    claim: Option<Claim>,
    guard: Guard,
    space: AddressSpace,
    /// When the kernel may be asked again what the process allows, and when it must be.
    space_read_again_ns: u64,
    space_too_old_ns: u64,
    /// It has mapped something since it was asked last.
    remapped: bool,
    /// Where pages were before the first of them was moved, and their size.
    origins: FxHashMap<Page, (NodeId, u64)>,
    /// Moves that were not carried out yet. A policy says a thing once, and it may be said while
    /// nothing is moved, or more is wanted than there is time for.
    pending: FxHashMap<Page, PageMove>,
    pins: Pins,
}

/// What an interval came to for a process.
#[derive(Debug, Default)]
pub struct IntervalActions {
    /// What was carried out.
    pub round: Round,
    /// Threads that were pinned.
    pub pinned: u64,
    /// It was worse off: what was moved goes back.
    pub moved_back: bool,
}

/// The kernel walks all pages of a process to say what it allows (12 ms for 200 MB in small pages):
/// that takes at most this part of the time.
const SPACE_READING_PART: u64 = 1000;
/// And a process is not asked for more often than this, where it has mapped something…
const SPACE_READ_AGAIN_NS: u64 = 1_000_000_000;
/// …and where it has not: pages become huge without a record, and policies are set.
const SPACE_UNCHANGED_NS: u64 = 10_000_000_000;

impl TargetProcess {
    /// Nothing was seen of it yet. `is_claimed`: it is to be this daemon's alone.
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

    /// What it allows, as of late.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// How it is treated.
    pub fn stage(&self) -> Stage {
        self.guard.stage()
    }

    /// May anything of it be moved by this daemon?
    pub fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    /// Is a page still to be moved?
    pub fn is_pending(&self, page: &Page) -> bool {
        self.pending.contains_key(page)
    }

    /// Moves that were not carried out yet.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Asks the kernel what it allows, if that is due; `remapped`: it has mapped something since the
    /// last decision, or given it back.
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

    /// Takes in new moves, at most `most` in all; what it does not allow is counted and not tried.
    /// Drops those that came true by themselves (`seen_at`: where a page with a number was seen last)
    /// and those whose pages have made way for hotter ones.
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

    /// A thread of it is to run on these CPUs.
    pub fn pin(&mut self, tid: u32, cpus: CpuList) {
        self.pins.request(tid, cpus);
    }

    /// Threads that were to go somewhere and have not yet stay.
    pub fn forget_pins(&mut self) {
        self.pins.forget_wishes();
    }

    /// Leaves nothing behind: pinned threads may run where they might before.
    pub fn let_go(&mut self, kernel: &mut dyn Kernel) {
        self.pins.undo(kernel, self.identity.pid);
    }

    /// Judges the interval, in which the process lost `loss`, and moves what the guard allows until
    /// `deadline_ns`. Remembers where at most `most` pages came from.
    pub fn act(
        &mut self,
        loss: IntervalLoss,
        mover: &mut Mover,
        kernel: &mut dyn Kernel,
        deadline_ns: u64,
        most: usize,
    ) -> IntervalActions {
        let (wanted, put_off) = ready(self.pending.values().copied(), mover);
        let back = self.origins.iter().map(|(&page, &(to, bytes))| PageMove {
            page,
            bytes,
            // Unknown by now, and of no use.
            from: to,
            to,
        });
        let (back, _) = ready(back, mover);
        let was_holding = self.stage() == Stage::Holding;
        // As much memory as so many pages of the usual size: a try with a huge page is a large one.
        let wanted_in_all = mover.usual_pages(&wanted) + self.pins.wanted();
        let verdict = self.guard.judge(loss, wanted_in_all, back.len());
        let mut acted = IntervalActions::default();
        match verdict {
            Verdict::Move(most_now) => {
                if most_now > 0 {
                    acted.pinned = self.pins.carry_out(kernel, self.identity.pid);
                }
                let moves = match most_now {
                    0 => &[],
                    most_now => &wanted[..mover.fitting(&wanted, most_now)],
                };
                acted.round = mover.carry_out(kernel, self.identity, moves, deadline_ns);
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
                    // What was wanted did harm.
                    self.pending.clear();
                    self.forget_pins();
                    self.let_go(kernel);
                }
                acted.round = mover.carry_out(kernel, self.identity, &back, deadline_ns);
                for moved in &acted.round.moved {
                    self.origins.remove(&moved.page);
                }
            }
        }
        acted.round.outcomes.put_off += put_off;
        if self.stage() == Stage::Measuring {
            // It is well as it is.
            self.origins.clear();
        }
        acted
    }
}

/// Those that may be tried, in order of address, and how many may not.
fn ready(moves: impl Iterator<Item = PageMove>, mover: &Mover) -> (Vec<PageMove>, u64) {
    let (mut ready, put_off): (Vec<PageMove>, Vec<PageMove>) =
        moves.partition(|page_move| mover.may_try(&page_move.page));
    ready.sort_unstable_by_key(|page_move| page_move.page.address);
    (ready, put_off.len() as u64)
}
