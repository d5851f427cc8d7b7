//! Load of a request on each link: data alone, or also the packets of a coherence protocol.

use nearpage_machine::{Request, Timing};

/// A link's position, and the time in femtoseconds for which a request occupies the link.
pub(crate) type Occupied = (u16, u64);

/// Link occupation per kind of request, each indexed `[CPU's node × nodes + memory's node]`.
#[derive(Debug)]
pub(crate) struct LinkTimes {
    nodes: usize,
    line: Vec<Box<[Occupied]>>,
    upgrade: Vec<Box<[Occupied]>>,
    write_back: Vec<Box<[Occupied]>>,
}

impl LinkTimes {
    /// `byte_time` returns the femtoseconds per byte for a bandwidth in bytes per second.
    pub fn new(timing: &Timing, byte_time: impl Fn(f64) -> f64) -> Self {
        let nodes = timing.latency_ns.len();
        let time = |(link, bytes): (u16, u64)| {
            let time = byte_time(timing.links[usize::from(link)].2) * bytes as f64;
            (link, time.round() as u64)
        };
        let by_pair = |request| {
            let of_pair = |pair| {
                let carried = timing.link_bytes(request, pair / nodes, pair % nodes);
                carried.into_iter().map(time).collect()
            };
            (0..nodes * nodes).map(of_pair).collect()
        };
        Self {
            nodes,
            line: by_pair(Request::Line),
            upgrade: by_pair(Request::Upgrade),
            write_back: by_pair(Request::WriteBack),
        }
    }

    /// Links that a request from a CPU on `node` to memory on `memory` occupies. `data` is false for an upgrade.
    #[inline]
    pub fn request(&self, node: u16, memory: u16, data: bool) -> &[Occupied] {
        let pair = usize::from(node) * self.nodes + usize::from(memory);
        match data {
            true => &self.line[pair],
            false => &self.upgrade[pair],
        }
    }

    /// Links that a write-back from a CPU on `node` to memory on `home` occupies.
    #[inline]
    pub fn write_back(&self, node: u16, home: u16) -> &[Occupied] {
        &self.write_back[usize::from(node) * self.nodes + usize::from(home)]
    }
}
