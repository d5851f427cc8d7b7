//! Queues of requests: for controllers, links, directories, and the lock of page moves.

use crate::figures::Figures;

/// A first-come, first-served queue. Times in femtoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Server {
    free_at: u64,
    /// Number of requests served.
    pub requests: u64,
    /// Time spent serving.
    pub busy: u64,
}

impl Server {
    /// Enqueues a request that arrives at `now`; returns its wait before service. Calls must be in order of time.
    #[inline]
    pub fn wait(&mut self, now: u64, service: u64) -> u64 {
        let start = self.free_at.max(now);
        self.free_at = start.saturating_add(service);
        self.requests += 1;
        self.busy = self.busy.saturating_add(service);
        start - now
    }

    /// Occupies the server from `now` on for `service`, beside whatever it serves already.
    pub fn occupy(&mut self, now: u64, service: u64) {
        self.free_at = self.free_at.max(now.saturating_add(service));
    }

    /// Resets the counts; requests in the queue stay there.
    pub fn restart(&mut self) {
        self.requests = 0;
        self.busy = 0;
    }
}

/// All queues. A request enters every queue on its way when it is issued, and waits for the longest of them. While it
/// waits in one queue, the others drain.
pub(crate) struct Queues {
    pub controllers: Vec<Server>,
    pub directories: Vec<Server>,
    pub links: Vec<Server>,
    /// The lock that page moves and first touches take (memlock, Verghese §8.1).
    pub lock: Server,
}

impl Queues {
    pub fn new(figures: &Figures) -> Self {
        let servers = |count: usize| vec![Server::default(); count];
        Self {
            controllers: servers(figures.nodes),
            directories: servers(figures.nodes),
            links: servers(figures.link_count),
            lock: Server::default(),
        }
    }

    /// Wait of a request from a CPU on `node` to memory on `memory`, which returns `lines` lines of data; 0 lines for
    /// an upgrade.
    #[inline]
    pub fn wait(&mut self, node: u16, memory: u16, now: u64, lines: u64, figures: &Figures) -> u64 {
        let mut wait = 0;
        if lines > 0 {
            let controller = &mut self.controllers[usize::from(memory)];
            wait = controller.wait(now, lines.saturating_mul(figures.controller));
            controller.requests += lines - 1;
        }
        if figures.directory > 0 {
            wait = wait.max(self.directories[usize::from(node)].wait(now, figures.directory));
            if memory != node {
                wait = wait.max(self.directories[usize::from(memory)].wait(now, figures.directory));
            }
        }
        for &(link, time) in figures.link_times.request(node, memory, lines > 0) {
            let service = lines.max(1).saturating_mul(time);
            wait = wait.max(self.links[usize::from(link)].wait(now, service));
        }
        wait
    }

    /// Time from the request of a CPU on `node` to the arrival of the data from `memory`.
    #[inline]
    pub fn fetch(
        &mut self,
        node: u16,
        memory: u16,
        now: u64,
        lines: u64,
        figures: &Figures,
    ) -> u64 {
        let wait = self.wait(node, memory, now, lines, figures);
        figures.latency(node, memory).saturating_add(wait)
    }

    /// Wait of a CPU on `node` that copies a page from node `from` to node `to`.
    pub fn copy(&mut self, node: u16, from: u16, to: u16, now: u64, figures: &Figures) -> u64 {
        let lines = figures.lines_per_page;
        let read = self.wait(node, from, now, lines, figures);
        let controller = &mut self.controllers[usize::from(to)];
        let written = controller.wait(now, lines.saturating_mul(figures.controller));
        controller.requests += lines - 1;
        read.max(written)
    }

    /// Enqueues the write-back of a line from a CPU on `node` to memory on `home`; no thread waits for it.
    #[inline]
    pub fn write_back(&mut self, node: u16, home: u16, now: u64, figures: &Figures) {
        self.controllers[usize::from(home)].wait(now, figures.controller);
        for &(link, time) in figures.link_times.write_back(node, home) {
            self.links[usize::from(link)].wait(now, time);
        }
        if figures.directory > 0 {
            self.directories[usize::from(home)].wait(now, figures.directory);
        }
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut Server> {
        self.controllers
            .iter_mut()
            .chain(&mut self.directories)
            .chain(&mut self.links)
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
