//! A CPU's hardware prefetcher: lines that are requested before the program accesses them.

use nearpage_machine::Prefetcher;

/// Number of steps of a stream whose requests are kept; a prefetcher is fewer steps ahead.
const STREAM_STEPS_MAX: usize = 32;

/// Arrival of a requested line; times in femtoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Time at which the line arrives.
    pub completes: u64,
    /// Time from the request to the arrival.
    pub latency: u64,
}

impl Arrival {
    /// Arrival of a line that is requested at `now`.
    #[inline]
    pub fn after(now: u64, latency: u64) -> Self {
        let completes = now.saturating_add(latency);
        Self { completes, latency }
    }
}

/// A stream: accesses at equal distances within a page.
#[derive(Clone, Debug)]
struct Stream {
    page: u32,
    line: i64,
    /// Lines from one access to the next; 0: the stream has one access.
    stride: i64,
    /// Number of accesses before the latest.
    steps: usize,
    /// Arrivals of requested lines, by the step that accesses the line, modulo [`STREAM_STEPS_MAX`].
    requested: [Option<Arrival>; STREAM_STEPS_MAX],
}

/// The streams that a CPU's prefetcher follows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    /// Position of the latest access's stream.
    current: usize,
    /// Position of the stream that the next new stream replaces.
    oldest: usize,
}

impl Streams {
    /// Notes a missing access to a line of a page; returns the arrival of the line if the line was requested before.
    pub fn access(&mut self, page: u32, line: u32, figures: &Prefetcher) -> Option<Arrival> {
        let line = i64::from(line);
        let in_page = |stream: &Stream| stream.page == page;
        let goes_on = |stream: &Stream| in_page(stream) && stream.line + stream.stride == line;
        if let Some(current) = self.streams.iter().position(goes_on) {
            self.current = current;
            let stream = &mut self.streams[current];
            if stream.stride == 0 {
                return None;
            }
            stream.steps += 1;
            stream.line = line;
            return stream.requested[stream.steps % STREAM_STEPS_MAX].take();
        }
        let most = i64::from(figures.stride_lines_max);
        let near = |stream: &Stream| in_page(stream) && (stream.line - line).abs() <= most;
        if let Some(current) = self.streams.iter().position(near) {
            self.current = current;
            let stream = &mut self.streams[current];
            (stream.stride, stream.line, stream.steps) = (line - stream.line, line, 1);
            stream.requested = [None; STREAM_STEPS_MAX];
            return None;
        }
        let new = Stream {
            page,
            line,
            stride: 0,
            steps: 0,
            requested: [None; STREAM_STEPS_MAX],
        };
        if self.streams.len() < figures.streams as usize {
            self.current = self.streams.len();
            self.streams.push(new);
        } else {
            self.current = self.oldest;
            self.streams[self.oldest] = new;
            self.oldest = (self.oldest + 1) % self.streams.len();
        }
        None
    }

    /// Was the line requested, and is it the next line of a stream?
    pub fn has_requested(&self, page: u32, line: u32) -> bool {
        let line = i64::from(line);
        let goes_on = |stream: &&Stream| stream.page == page && stream.line + stream.stride == line;
        let stream = self.streams.iter().find(goes_on);
        stream.is_some_and(|stream| {
            stream.stride != 0 && stream.requested[(stream.steps + 1) % STREAM_STEPS_MAX].is_some()
        })
    }

    /// Does the latest access request a line of its page? Streams request lines from their second access on.
    pub fn must_request_line(&self, figures: &Prefetcher, lines_per_page: u64) -> bool {
        let Some(stream) = self.streams.get(self.current) else {
            return false;
        };
        let ahead = stream.line + stream.stride * i64::from(figures.steps_ahead);
        stream.stride != 0 && u64::try_from(ahead).is_ok_and(|line| line < lines_per_page)
    }

    /// Notes the request of the line that [`Streams::must_request_line`] asked for.
    pub fn request(&mut self, arrival: Arrival, figures: &Prefetcher) {
        if let Some(stream) = self.streams.get_mut(self.current) {
            let step = stream.steps + figures.steps_ahead as usize;
            stream.requested[step % STREAM_STEPS_MAX] = Some(arrival);
        }
    }

    /// Drops all streams, because the thread changes its CPU or the CPU its thread.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTERON: Prefetcher = Prefetcher {
        streams: 2,
        steps_ahead: 2,
        stride_lines_max: 1,
    };

    /// For each access: the number of the access that requested its line; and the number of all requests.
    fn requested(lines: &[u32], figures: &Prefetcher) -> (Vec<Option<u64>>, usize) {
        let mut streams = Streams::default();
        let mut requests = 0;
        let accesses = lines.iter().zip(1..).map(|(&line, number)| {
            let arrival = streams.access(7, line, figures);
            if streams.must_request_line(figures, 64) {
                requests += 1;
                let (completes, latency) = (number, 0);
                streams.request(Arrival { completes, latency }, figures);
            }
            arrival.map(|arrival| arrival.completes)
        });
        (accesses.collect(), requests)
    }

    #[test]
    fn the_second_access_of_a_stream_requests_the_fourth() {
        // AMD publication 25112: accesses to lines l and l + 1 prefetch line l + 3.
        let expected = vec![None, None, None, Some(2), Some(3)];
        assert_eq!(requested(&[4, 5, 6, 7, 8], &OPTERON), (expected, 4));
        let expected = vec![None, None, None, Some(2)];
        assert_eq!(requested(&[8, 7, 6, 5], &OPTERON), (expected, 3));
    }

    #[test]
    fn nothing_is_requested_beyond_the_page() {
        assert_eq!(requested(&[61, 62, 63], &OPTERON).1, 0);
        assert_eq!(requested(&[2, 1, 0], &OPTERON).1, 0);
        assert_eq!(requested(&[60, 61, 62, 63], &OPTERON).1, 1);
    }

    #[test]
    fn strided_streams_are_prefetched_if_the_machine_can() {
        assert_eq!(requested(&[0, 2, 4, 6], &OPTERON), (vec![None; 4], 0));
        let strided = Prefetcher {
            stride_lines_max: 4,
            ..OPTERON
        };
        let expected = vec![None, None, None, Some(2)];
        assert_eq!(requested(&[0, 2, 4, 6], &strided), (expected, 3));
        assert_eq!(requested(&[0, 5, 10, 15], &strided), (vec![None; 4], 0));
    }

    #[test]
    fn a_stream_ends_with_too_many_others() {
        let mut streams = Streams::default();
        for (page, line) in [(0, 10), (0, 11), (1, 0), (2, 0), (0, 12)] {
            assert_eq!(streams.access(page, line, &OPTERON), None);
        }
        // The stream of page 0 was the older of two and was replaced.
        assert!(!streams.must_request_line(&OPTERON, 64));
        assert_eq!(streams.streams.len(), 2);
    }
}
