//! A CPU's prefetcher: lines that are requested before the program comes to them, if it does.

use nearpage_machine::Prefetcher;

/// Steps of a stream of which something is kept; a prefetcher is less far ahead.
const KEPT: usize = 32;

/// A line that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When it has come.
    pub completes: u64,
    /// How long it took, from its request on.
    pub latency: u64,
}

impl Arrival {
    /// Of a line that is requested now.
    #[inline]
    pub fn after(now: u64, latency: u64) -> Self {
        let completes = now.saturating_add(latency);
        Self { completes, latency }
    }
}

/// One stream: accesses at even distances within a page.
#[derive(Clone, Debug)]
struct Stream {
    page: u32,
    line: i64,
    /// Lines from one access to the next; 0: there was one access.
    stride: i64,
    /// Accesses before the latest.
    steps: usize,
    /// Lines that were requested, by the step that comes to them.
    requested: [Option<Arrival>; KEPT],
}

/// The streams that a CPU's prefetcher follows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    /// The one of the latest access.
    current: usize,
    /// The one that the next new stream takes the place of.
    oldest: usize,
}

impl Streams {
    /// An access that misses, to a line of a page: when the line comes, where it was requested before.
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
            return stream.requested[stream.steps % KEPT].take();
        }
        let most = i64::from(figures.stride_lines_max);
        let near = |stream: &Stream| in_page(stream) && (stream.line - line).abs() <= most;
        if let Some(current) = self.streams.iter().position(near) {
            self.current = current;
            let stream = &mut self.streams[current];
            (stream.stride, stream.line, stream.steps) = (line - stream.line, line, 1);
            stream.requested = [None; KEPT];
            return None;
        }
        let new = Stream {
            page,
            line,
            stride: 0,
            steps: 0,
            requested: [None; KEPT],
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

    /// Was a line requested that an access would come to next?
    pub fn has_requested(&self, page: u32, line: u32) -> bool {
        let line = i64::from(line);
        let goes_on = |stream: &&Stream| stream.page == page && stream.line + stream.stride == line;
        let stream = self.streams.iter().find(goes_on);
        stream.is_some_and(|stream| {
            stream.stride != 0 && stream.requested[(stream.steps + 1) % KEPT].is_some()
        })
    }

    /// Does the latest access have a line of its page requested? From a stream's second access on.
    pub fn wants_line(&self, figures: &Prefetcher, lines_per_page: u64) -> bool {
        let Some(stream) = self.streams.get(self.current) else {
            return false;
        };
        let ahead = stream.line + stream.stride * i64::from(figures.steps_ahead);
        stream.stride != 0 && u64::try_from(ahead).is_ok_and(|line| line < lines_per_page)
    }

    /// It was requested.
    pub fn request(&mut self, arrival: Arrival, figures: &Prefetcher) {
        if let Some(stream) = self.streams.get_mut(self.current) {
            let step = stream.steps + figures.steps_ahead as usize;
            stream.requested[step % KEPT] = Some(arrival);
        }
    }

    /// Another thread has the CPU, or the thread another CPU.
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

    /// For each access at which access a line that comes then was requested, and how many were in all.
    fn requested(lines: &[u32], figures: &Prefetcher) -> (Vec<Option<u64>>, usize) {
        let mut streams = Streams::default();
        let mut requests = 0;
        let accesses = lines.iter().zip(1..).map(|(&line, number)| {
            let arrival = streams.access(7, line, figures);
            if streams.wants_line(figures, 64) {
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
        // AMD 25112: lines l and l + 1 have l + 3 fetched.
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
    fn what_skips_lines_is_followed_where_the_machine_can() {
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
        // Page 0 was the oldest of two, and begins anew.
        assert!(!streams.wants_line(&OPTERON, 64));
        assert_eq!(streams.streams.len(), 2);
    }
}
