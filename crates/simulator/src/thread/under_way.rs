//! A thread's misses that are under way: how many there may be, what they wait for, when they are waited for.

use nearpage_recording::AccessKind;

use super::Thread;
use crate::figures::Figures;
use crate::prefetching::Arrival;

/// A miss that a thread has not waited for yet.
pub(super) struct Outstanding {
    /// The thread's instruction count at the miss.
    pub(super) position: u64,
    completes: u64,
    remote: usize,
}

impl Thread<'_> {
    pub(super) fn wait_for_oldest(&mut self) {
        if let Some(Outstanding {
            completes, remote, ..
        }) = self.outstanding.pop_front()
        {
            self.stall_until(completes, remote);
        }
    }

    #[inline]
    fn stall_until(&mut self, completes: u64, remote: usize) {
        let stalled = completes.saturating_sub(self.time);
        self.time += stalled;
        self.totals.stall[remote] += stalled;
    }

    /// Waits for all outstanding misses.
    pub fn drain(&mut self) {
        while !self.outstanding.is_empty() {
            self.wait_for_oldest();
        }
    }

    /// Waits for room for one more miss, where all are taken.
    #[inline]
    pub fn make_room(&mut self, figures: &Figures) -> bool {
        let full = !self.has_room(figures) && !self.outstanding.is_empty();
        if full {
            let before = self.time;
            self.wait_for_oldest();
            return self.time == before;
        }
        true
    }

    /// Waits for the data that a miss's address comes from; `false`: the thread must come back for the miss.
    #[inline]
    pub fn has_address(&mut self, depends_on: u16) -> bool {
        if depends_on == 0 {
            return true;
        }
        let source = self.position.checked_sub(depends_on.into());
        let mut outstanding = self.outstanding.iter().rev();
        let Some(&Outstanding {
            completes, remote, ..
        }) = outstanding.find(|miss| Some(miss.position) == source)
        else {
            return true;
        };
        let before = self.time;
        self.stall_until(completes, remote);
        self.time == before
    }

    /// Is there room for another miss?
    #[inline]
    pub fn has_room(&self, figures: &Figures) -> bool {
        self.outstanding.len() < figures.outstanding
    }

    /// Issues a miss. Instruction fetches are always waited for.
    #[inline]
    pub fn issue(&mut self, arrival: Arrival, remote: bool, kind: AccessKind, figures: &Figures) {
        let Arrival { completes, latency } = arrival;
        let remote = usize::from(remote);
        self.totals.misses[remote] += 1;
        self.totals.latency[remote] += u128::from(latency);
        if kind == AccessKind::Fetch || figures.outstanding == 1 {
            self.stall_until(completes, remote);
        } else {
            self.outstanding.push_back(Outstanding {
                position: self.position,
                completes,
                remote,
            });
        }
    }
}
