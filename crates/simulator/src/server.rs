//! Something that serves one request after the other: a controller, a link, a directory, a lock.

/// First come, first served. Times in femtoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Server {
    free_at: u64,
    /// Requests served.
    pub requests: u64,
    /// Time spent serving.
    pub busy: u64,
}

impl Server {
    /// Takes the place of a request that arrives `now` in the queue; how long it waits before it is
    /// served. Requests arrive in order of time.
    #[inline]
    pub fn wait(&mut self, now: u64, service: u64) -> u64 {
        let start = self.free_at.max(now);
        self.free_at = start + service;
        self.requests += 1;
        self.busy += service;
        start - now
    }

    /// Forgets what it served, not who is queueing.
    pub fn restart(&mut self) {
        self.requests = 0;
        self.busy = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_queue_and_the_queue_drains() {
        let mut server = Server::default();
        assert_eq!(
            [0, 0, 5, 100].map(|now| server.wait(now, 10)),
            [0, 10, 15, 0]
        );
        assert_eq!((server.requests, server.busy), (4, 40));
    }
}
