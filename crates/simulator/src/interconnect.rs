//! What each request puts on each link: data alone, or the packets of a coherence protocol as well.

use nearpage_machine::{Request, Timing};

/// A link, and the time for which a request occupies it, in femtoseconds.
pub(crate) type Occupied = (u16, u64);

/// What requests occupy links for, by what is requested, `[CPU's node × nodes + memory's node]`.
#[derive(Debug)]
pub(crate) struct LinkTimes {
    nodes: usize,
    line: Vec<Box<[Occupied]>>,
    upgrade: Vec<Box<[Occupied]>>,
    write_back: Vec<Box<[Occupied]>>,
}

impl LinkTimes {
    /// `byte_time`: femtoseconds that a byte takes over a link of so many bytes a second.
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

    /// Of a request from a CPU on `node` to memory on `memory`: for a line, or without data.
    #[inline]
    pub fn request(&self, node: u16, memory: u16, data: bool) -> &[Occupied] {
        let pair = usize::from(node) * self.nodes + usize::from(memory);
        match data {
            true => &self.line[pair],
            false => &self.upgrade[pair],
        }
    }

    /// Of a line that a CPU on `node` writes back to memory on `home`.
    #[inline]
    pub fn write_back(&self, node: u16, home: u16) -> &[Occupied] {
        &self.write_back[usize::from(node) * self.nodes + usize::from(home)]
    }
}
