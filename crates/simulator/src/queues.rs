//! What requests queue for: controllers, links, directories, a lock.

use crate::figures::Figures;

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
        self.free_at = start.saturating_add(service);
        self.requests += 1;
        self.busy = self.busy.saturating_add(service);
        start - now
    }

    /// Forgets what it served, not who is queueing.
    pub fn restart(&mut self) {
        self.requests = 0;
        self.busy = 0;
    }
}

/// What requests queue for. A request takes its place in all the queues on its way when it is
/// issued, and is served when the last of them has come to it: while it waits in one, the others
/// drain.
pub(crate) struct Queues {
    pub controllers: Vec<Server>,
    pub directories: Vec<Server>,
    pub links: Vec<Server>,
    /// The lock that moving pages takes (memlock, §8.1).
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

    /// Wait of a request from a CPU on `node` to memory on `memory`; `lines` of data come back, 0 for
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

    /// How long it takes until a CPU on `node` has what it requests now from memory on `memory`.
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

    /// Wait of a CPU on `node` that copies a page from one node's memory to another's.
    pub fn copy(&mut self, node: u16, from: u16, to: u16, now: u64, figures: &Figures) -> u64 {
        let lines = figures.lines_per_page;
        let read = self.wait(node, from, now, lines, figures);
        let controller = &mut self.controllers[usize::from(to)];
        let written = controller.wait(now, lines.saturating_mul(figures.controller));
        controller.requests += lines - 1;
        read.max(written)
    }

    /// A line that a CPU on `node` writes back to memory on `home`: nobody waits for it.
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
