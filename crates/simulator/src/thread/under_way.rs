//! Outstanding misses of a thread: their limit, their dependencies, and the waits for them.

use nearpage_machine::Prefetcher;
use nearpage_recording::AccessKind;
use nearpage_recording::trace::Miss;

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

    /// Waits for all outstanding misses, and so for their data.
    pub fn drain(&mut self) {
        while !self.outstanding.is_empty() {
            self.wait_for_oldest();
        }
    }

    /// Waits until there is room for one more miss; `false`: the thread has waited and must repeat the miss. A line
    /// that the prefetcher has requested has its room already.
    #[inline]
    pub fn make_room(&mut self, miss: &Miss, figures: &Figures) -> bool {
        if self.has_room(figures) || self.is_requested(miss, figures) {
            return true;
        }
        let before = self.time;
        let earliest = self.requested_ahead.iter().min().copied();
        match (self.outstanding.front(), earliest) {
            (Some(oldest), Some(earliest)) if earliest < oldest.completes => {
                self.stall_until(earliest, oldest.remote);
            }
            (None, Some(earliest)) => self.stall_until(earliest, 0),
            _ => self.wait_for_oldest(),
        }
        self.time == before
    }

    /// Has the CPU's prefetcher requested the line of a miss?
    fn is_requested(&self, miss: &Miss, figures: &Figures) -> bool {
        let line = miss.offset >> figures.line_shift;
        !self.requested_ahead.is_empty() && self.streams.has_requested(miss.page.0, line)
    }

    /// Waits for the data that determines a miss's address; `false`: the thread has waited and must repeat the miss.
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

    /// Is there room for another miss? Lines that the prefetcher has requested take room, too.
    #[inline]
    pub fn has_room(&mut self, figures: &Figures) -> bool {
        let now = self.time;
        if !self.requested_ahead.is_empty() {
            self.requested_ahead.retain(|&completes| completes > now);
        }
        self.outstanding.len() + self.requested_ahead.len() < figures.outstanding
    }

    /// Notes a line that the CPU's prefetcher requests.
    pub fn request_ahead(&mut self, arrival: Arrival, prefetcher: &Prefetcher) {
        self.streams.request(arrival, prefetcher);
        self.requested_ahead.push(arrival.completes);
    }

    /// Arrival of a miss's line if the CPU's prefetcher has requested the line. The line's room passes to the miss.
    #[inline]
    pub fn take_requested(
        &mut self,
        page: u32,
        line: u32,
        prefetcher: &Prefetcher,
    ) -> Option<Arrival> {
        let arrival = self.streams.access(page, line, prefetcher)?;
        let mut requested = self.requested_ahead.iter();
        if let Some(at) = requested.position(|&completes| completes == arrival.completes) {
            self.requested_ahead.swap_remove(at);
        }
        Some(arrival)
    }

    /// Issues a miss. The thread waits for instruction fetches at once.
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
