//! What each request puts on each link: data alone, or the packets of a coherence protocol as well.

use nearpage_machine::{Coherence, Timing};

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
        let by_pair = |bytes: &dyn Fn(&mut Bytes<'_>, usize, usize)| {
            let of_pair = |pair: usize| {
                let mut sent = Bytes::new(timing);
                bytes(&mut sent, pair / nodes, pair % nodes);
                let sent = sent.by_link.into_iter().enumerate();
                // An upgrade waits for links over which its packets go, whether these count or not.
                let sent = sent.filter_map(|(link, bytes)| Some((link, bytes?)));
                let time = |(link, bytes): (usize, u64)| {
                    let time = byte_time(timing.links[link].2) * bytes as f64;
                    (link as u16, time.round() as u64)
                };
                sent.map(time).collect()
            };
            (0..nodes * nodes).map(of_pair).collect()
        };
        let line_bytes = u64::from(timing.line_bytes);
        let packets = timing.coherence.unwrap_or_default();
        let probes = timing.coherence.is_some();
        Self {
            nodes,
            line: by_pair(&|sent, cpu, home| {
                sent.along(home, cpu, line_bytes + u64::from(packets.data_header_bytes));
                if probes {
                    sent.transaction(&packets, cpu, home);
                    sent.along(cpu, home, packets.done_bytes.into());
                }
            }),
            upgrade: by_pair(&|sent, cpu, home| {
                sent.along(home, cpu, packets.done_bytes.into());
                if probes {
                    sent.transaction(&packets, cpu, home);
                    sent.along(cpu, home, packets.done_bytes.into());
                }
            }),
            write_back: by_pair(&|sent, cpu, home| {
                sent.along(cpu, home, line_bytes + u64::from(packets.request_bytes));
                if probes {
                    sent.along(home, cpu, packets.done_bytes.into());
                }
            }),
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

/// Bytes over each link; `None`: nothing goes over it.
struct Bytes<'a> {
    timing: &'a Timing,
    by_link: Vec<Option<u64>>,
}

impl<'a> Bytes<'a> {
    fn new(timing: &'a Timing) -> Self {
        Self {
            timing,
            by_link: vec![None; timing.links.len()],
        }
    }

    fn along(&mut self, from: usize, to: usize, bytes: u64) {
        for &link in &self.timing.routes[from][to] {
            *self.by_link[usize::from(link)].get_or_insert(0) += bytes;
        }
    }

    /// The request, probes from the home node, and the answers to these.
    fn transaction(&mut self, packets: &Coherence, cpu: usize, home: usize) {
        let nodes = self.timing.latency_ns.len();
        self.along(cpu, home, packets.request_bytes.into());
        let ways = (0..nodes).flat_map(|to| &self.timing.routes[home][to]);
        let mut probed: Vec<u16> = ways.copied().collect();
        probed.sort_unstable();
        probed.dedup();
        for link in probed {
            *self.by_link[usize::from(link)].get_or_insert(0) += u64::from(packets.probe_bytes);
        }
        for node in (0..nodes).filter(|&node| node != cpu) {
            self.along(node, cpu, packets.probe_response_bytes.into());
        }
    }
}
