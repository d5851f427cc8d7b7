//! Issue of a miss: queues, and the arrival of the line.

use nearpage_online::OnlinePolicy;
use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Miss, Served};

use super::Replay;
use crate::prefetching::Arrival;

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    /// Issues a miss of the thread to node `from`'s memory, and the prefetcher's requests that the miss triggers;
    /// returns the latency of the miss.
    #[inline]
    pub(super) fn fetch(&mut self, number: usize, miss: &Miss, from: u16) -> u64 {
        let (figures, thread) = (self.figures, &mut self.threads[number]);
        let (node, now) = (thread.node, thread.time);
        let lines = u64::from(miss.served != Served::Upgrade);
        let prefetcher = figures.prefetcher.as_ref();
        let prefetcher = prefetcher.filter(|_| lines > 0 && miss.kind != AccessKind::Fetch);
        let detour = match &mut self.modified {
            Some(modified) => modified.detour(miss, node, from, figures),
            None => 0,
        };
        let line = miss.offset >> figures.line_shift;
        let ahead =
            prefetcher.and_then(|prefetcher| thread.take_requested(miss.page.0, line, prefetcher));
        let arrival = ahead.unwrap_or_else(|| {
            let latency = self.queues.fetch(node, from, now, lines, figures);
            Arrival::after(now, latency.saturating_add(detour))
        });
        thread.issue(arrival, from != node, miss.kind, figures);
        if let Some(prefetcher) = prefetcher
            && thread.has_room(figures)
            && thread
                .streams
                .must_request_line(prefetcher, figures.lines_per_page)
        {
            let latency = self.queues.fetch(node, from, now, 1, figures);
            thread.request_ahead(Arrival::after(now, latency), prefetcher);
        }
        arrival.latency
    }
}
