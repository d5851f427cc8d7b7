//! The queues of requests at memory controllers, directories and links.
//!
//! As in the simulator, a server serves one request after the other. A request enters all queues on its way when it is
//! issued, and is served when the last of them serves it. In the simulator, requests arrive in the
//! order of time. Here, a CPU may be a quantum behind another one. Its request takes the server's free time from the CPU's
//! time on, in several pieces if necessary, so that no gap is lost. Requests that arrive in order are served as in the
//! simulator.

use std::collections::VecDeque;

use nearpage_wire::lab::{LabLine, LabSetup};

/// A server and its busy times, in femtoseconds.
#[derive(Clone, Debug, Default)]
struct Server {
    /// Intervals in which it is busy, in order, with gaps between them.
    busy: VecDeque<(u64, u64)>,
    requests: u64,
    busy_fs: u64,
}

impl Server {
    /// Serves a request that arrives `now`; returns how long it waits. `forget` is a time before which no request arrives any
    /// more.
    #[inline]
    fn wait(&mut self, now: u64, service: u64, requests: u64, forget: u64) -> u64 {
        self.requests += requests;
        if service == 0 {
            return 0;
        }
        self.busy_fs += service;
        while let Some((_, end)) = self.busy.front()
            && *end < forget
        {
            self.busy.pop_front();
        }
        // Most requests come after all others.
        let mut first = self.busy.len();
        while first > 0 && self.busy[first - 1].1 >= now {
            first -= 1;
        }
        // The request takes the free time from now on, and joins the intervals that it spans.
        let (mut begin, mut time, mut left) = (now, now, service);
        let mut after = first;
        let mut end = None;
        while let Some(&(from, to)) = self.busy.get(after) {
            let free = from.saturating_sub(time);
            if free > left {
                break;
            }
            begin = begin.min(from);
            after += 1;
            if free == left {
                end = Some(to);
                break;
            }
            left -= free;
            time = to.max(time);
        }
        let served = time + left;
        let end = end.unwrap_or(served);
        match after - first {
            0 => self.busy.insert(first, (begin, end)),
            1 => self.busy[first] = (begin, end),
            _ => {
                self.busy.drain(first + 1..after);
                self.busy[first] = (begin, end);
            }
        }
        served - service - now
    }
}

/// The queues of a machine.
pub struct Queues {
    nodes: usize,
    controller_fs: u64,
    directory_fs: u64,
    link_fs: Vec<u64>,
    /// Links from the memory to the CPU, by `[CPU's node × nodes + memory's node]`.
    routes: Vec<Vec<u16>>,
    /// How long busy intervals are kept.
    kept_fs: u64,
    controllers: Vec<Server>,
    directories: Vec<Server>,
    links: Vec<Server>,
}

impl Queues {
    pub fn new(setup: &LabSetup) -> Self {
        let nodes = setup.nodes();
        let link_fs: Vec<u64> = setup.link_fs.iter().collect();
        let servers = |count: usize| vec![Server::default(); count];
        // A CPU exceeds its quantum by the time of its last access.
        let longest = setup.latency_fs.iter().max().unwrap_or(0);
        Self {
            nodes,
            controller_fs: setup.controller_fs,
            directory_fs: setup.directory_fs,
            routes: setup.routes.iter().map(Iterator::collect).collect(),
            kept_fs: 2 * (setup.quantum_ns * 1_000_000 + longest),
            controllers: servers(nodes),
            directories: servers(nodes),
            links: servers(link_fs.len()),
            link_fs,
        }
    }

    fn over_links(&mut self, from: usize, to: usize, now: u64, lines: u64, forget: u64) -> u64 {
        let mut wait = 0;
        if from != to && !self.links.is_empty() {
            for link in &self.routes[from * self.nodes + to] {
                let link = usize::from(*link);
                let service = lines * self.link_fs[link];
                wait = wait.max(self.links[link].wait(now, service, 1, forget));
            }
        }
        wait
    }

    /// Serves a request from a CPU on `node` to memory on `memory`; returns how long it waits. `lines` lines of data come back:
    /// none for an upgrade.
    pub fn wait(&mut self, node: usize, memory: usize, now: u64, lines: u64) -> u64 {
        let forget = now.saturating_sub(self.kept_fs);
        let mut wait = 0;
        if lines > 0 {
            let service = lines * self.controller_fs;
            wait = self.controllers[memory].wait(now, service, lines, forget);
        }
        if self.directory_fs > 0 {
            let service = self.directory_fs;
            wait = wait.max(self.directories[node].wait(now, service, 1, forget));
            if memory != node {
                wait = wait.max(self.directories[memory].wait(now, service, 1, forget));
            }
        }
        wait.max(self.over_links(node, memory, now, lines, forget))
    }

    /// Serves a line that a CPU on `node` writes back to memory on `home`. No CPU waits for that.
    pub fn write_back(&mut self, node: usize, home: usize, now: u64) {
        let forget = now.saturating_sub(self.kept_fs);
        self.controllers[home].wait(now, self.controller_fs, 1, forget);
        // The line takes the links by which a CPU of `home` would fetch it from `node`.
        self.over_links(home, node, now, 1, forget);
        if self.directory_fs > 0 {
            self.directories[home].wait(now, self.directory_fs, 1, forget);
        }
    }

    /// Sets the counts to 0; requests in the queues stay.
    pub fn restart(&mut self) {
        let all = self.controllers.iter_mut().chain(&mut self.directories);
        for server in all.chain(&mut self.links) {
            (server.requests, server.busy_fs) = (0, 0);
        }
    }

    /// The counts of served requests.
    pub fn lines(&self) -> Vec<LabLine> {
        let controllers = self.controllers.iter().enumerate();
        let controllers = controllers.map(|(node, server)| LabLine::Controller {
            node,
            requests: server.requests,
            busy_fs: server.busy_fs,
        });
        let links = self.links.iter().enumerate();
        let links = links.map(|(link, server)| LabLine::Link {
            link,
            requests: server.requests,
            busy_fs: server.busy_fs,
        });
        controllers.chain(links).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(server: &mut Server, requests: &[u64]) -> Vec<u64> {
        let requests = requests.iter();
        requests.map(|now| server.wait(*now, 10, 1, 0)).collect()
    }

    #[test]
    fn requests_in_order_wait_as_in_the_simulator() {
        let mut server = Server::default();
        assert_eq!(waits(&mut server, &[0, 0, 5, 100]), [0, 10, 15, 0]);
        assert_eq!((server.requests, server.busy_fs), (4, 40));
        assert_eq!(server.busy, [(0, 30), (100, 110)]);
    }

    #[test]
    fn a_request_from_behind_takes_what_is_free() {
        let mut server = Server::default();
        // Another CPU is ahead in time; its requests leave gaps of 10 and of 30.
        assert_eq!(waits(&mut server, &[1000, 1020, 1060]), [0, 0, 0]);
        // The first is served from 1010 to 1015 and, behind the other CPU's request, from 1030 to 1035; the second follows.
        assert_eq!(waits(&mut server, &[1005, 1025]), [5, 5]);
        assert_eq!(server.busy, [(1000, 1040), (1060, 1070)]);
        assert_eq!(waits(&mut server, &[0, 1055, 1039]), [0, 10, 1]);
        assert_eq!(server.busy, [(0, 10), (1000, 1050), (1055, 1075)]);
    }

    #[test]
    fn two_cpus_that_ask_for_more_than_there_is_get_all_there_is() {
        // Each waits for its request and 10 more; they advance in quanta of 1000, one after the other.
        let (mut server, service) = (Server::default(), 71);
        let mut times = [0, 0];
        while times.iter().any(|time| *time < 1_000_000) {
            let behind = usize::from(times[1] < times[0]);
            let end = times[1 - behind] + 1000;
            while times[behind] < end {
                let now = times[behind];
                times[behind] += server.wait(now, service, 1, now.saturating_sub(4000)) + 91;
            }
        }
        let busy = server.busy_fs as f64 / times[0].min(times[1]) as f64;
        assert!((0.98..=1.01).contains(&busy), "{busy}");
    }

    #[test]
    fn old_busy_times_are_forgotten() {
        let mut server = Server::default();
        waits(&mut server, &[0, 100, 200]);
        server.wait(300, 10, 1, 150);
        assert_eq!(server.busy, [(200, 210), (300, 310)]);
    }

    #[test]
    fn several_queues_are_waited_for_at_once() {
        let setup = "nearpage lab setup 1\ninstruction_fs 1000000\nquantum_ns 1000\npause_ns 40\nhit_fs 0 0\n\
                     tlb_miss_fs 0\nlatency_fs 100 300 300 100\ncontroller_fs 10\ndirectory_fs 0\nlink_fs 30 40\n\
                     routes - 1 0 -\nmemory_bytes 4096 4096\nbegin_marks 0\n\
                     warm_up_instructions 0\nstop_booted 0\n";
        let mut queues = Queues::new(&LabSetup::parse(setup).unwrap());
        assert_eq!(queues.wait(0, 1, 0, 1), 0);
        // The controller is free again at 10, link 1 at 40.
        assert_eq!(queues.wait(0, 1, 0, 1), 40);
        assert_eq!(queues.wait(1, 1, 0, 1), 20);
        assert_eq!(queues.wait(0, 0, 0, 1), 0);
        // A line from node 1 to the memory of node 0 takes the links by which a CPU of node 0 fetches from node 1.
        queues.write_back(1, 0, 0);
        assert_eq!(
            queues.lines().last(),
            Some(&LabLine::Link {
                link: 1,
                requests: 3,
                busy_fs: 120
            })
        );
        queues.restart();
        assert_eq!(
            queues.lines()[0],
            LabLine::Controller {
                node: 0,
                requests: 0,
                busy_fs: 0
            }
        );
    }
}
