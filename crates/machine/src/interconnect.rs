//! Coherence traffic on a simulated machine's interconnect, and the prefetchers of its CPUs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Fault, Timing};

/// Packets of a coherence protocol such as AMD's coherent HyperTransport (`[coherence]`). The requesting node sends a
/// request to the line's home node, which sends probes to all other nodes. Each of these answers the requesting node.
/// The home node sends the line, and the requesting node confirms its arrival. With a directory there are no probes:
/// set the bytes of probes and their answers to 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Coherence {
    /// A request for a line, or the announcement of a line that is written back.
    pub request_bytes: u32,
    /// A probe. The home node sends a probe once over each link of its routes to all other nodes.
    pub probe_bytes: u32,
    /// A node's answer to a probe.
    pub probe_response_bytes: u32,
    /// Header in front of a line of data.
    pub data_header_bytes: u32,
    /// End of a transaction: to the home node when a line has arrived, or from there when a line is written back.
    pub done_bytes: u32,
}

impl Coherence {
    /// Keys in the machine file, and values.
    pub(crate) fn pairs(&self) -> [(&'static str, u32); 5] {
        [
            ("request_bytes", self.request_bytes),
            ("probe_bytes", self.probe_bytes),
            ("probe_response_bytes", self.probe_response_bytes),
            ("data_header_bytes", self.data_header_bytes),
            ("done_bytes", self.done_bytes),
        ]
    }
}

/// Kind of a request from a CPU to the memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads a line.
    Line,
    /// Makes a line exclusive that the CPU's cache already has.
    Upgrade,
    /// Writes a line back to memory.
    WriteBack,
}

impl Timing {
    /// Bytes on each link for a request from a CPU of node `cpu` to the memory of node `home`: data alone, or also the
    /// packets of a coherence protocol. Links of the route are listed even if their bytes are not counted.
    pub fn link_bytes(&self, request: Request, cpu: usize, home: usize) -> Vec<(u16, u64)> {
        let mut carried = Carried {
            timing: self,
            by_link: vec![None; self.links.len()],
        };
        let line_bytes = self.line_bytes;
        let packets = self.coherence.unwrap_or_default();
        match request {
            Request::Line => carried.along(home, cpu, line_bytes + packets.data_header_bytes),
            Request::Upgrade => carried.along(home, cpu, packets.done_bytes),
            Request::WriteBack => carried.along(cpu, home, line_bytes + packets.request_bytes),
        }
        if let Some(packets) = &self.coherence {
            if request == Request::WriteBack {
                carried.along(home, cpu, packets.done_bytes);
            } else {
                carried.transaction(packets, cpu, home);
                carried.along(cpu, home, packets.done_bytes);
            }
        }
        let by_link = (0..).zip(carried.by_link);
        by_link
            .filter_map(|(link, bytes)| Some((link, bytes?)))
            .collect()
    }
}

/// Bytes on each link; `None`: the link is not used.
struct Carried<'a> {
    timing: &'a Timing,
    by_link: Vec<Option<u64>>,
}

impl Carried<'_> {
    fn along(&mut self, from: usize, to: usize, bytes: u32) {
        for &link in &self.timing.routes[from][to] {
            *self.by_link[usize::from(link)].get_or_insert(0) += u64::from(bytes);
        }
    }

    /// Adds the request, the probes from the home node, and their answers.
    fn transaction(&mut self, packets: &Coherence, cpu: usize, home: usize) {
        let nodes = self.timing.latency_ns.len();
        self.along(cpu, home, packets.request_bytes);
        let ways = (0..nodes).flat_map(|to| &self.timing.routes[home][to]);
        let mut probed: Vec<u16> = ways.copied().collect();
        probed.sort_unstable();
        probed.dedup();
        for link in probed {
            *self.by_link[usize::from(link)].get_or_insert(0) += u64::from(packets.probe_bytes);
        }
        for node in (0..nodes).filter(|&node| node != cpu) {
            self.along(node, cpu, packets.probe_response_bytes);
        }
    }
}

/// Maximum number of streams of a prefetcher.
const STREAMS_MAX: u32 = 256;
/// Maximum number of steps that a prefetcher is ahead.
const PREFETCH_STEPS_MAX: u32 = 16;

/// A CPU's hardware prefetcher (`[prefetcher]`), which follows streams of misses at equal distances within a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prefetcher {
    /// Number of streams that the prefetcher follows at once.
    pub streams: u32,
    /// Number of steps by which the prefetched access is ahead of the current access.
    pub steps_ahead: u32,
    /// Longest step of a stream that the prefetcher follows, in lines.
    pub stride_lines_max: u32,
}

impl Prefetcher {
    /// Keys in the machine file, including the table's name, and values.
    pub(crate) fn pairs(&self) -> [(&'static str, u32); 3] {
        [
            ("prefetcher.streams", self.streams),
            ("prefetcher.steps_ahead", self.steps_ahead),
            ("prefetcher.stride_lines_max", self.stride_lines_max),
        ]
    }

    pub(crate) fn validate(&self) -> Result<(), Fault> {
        for (key, value) in self.pairs() {
            if value == 0 {
                return Err(Fault::Figure { key, value: 0.0 });
            }
        }
        match self.streams <= STREAMS_MAX && self.steps_ahead <= PREFETCH_STEPS_MAX {
            true => Ok(()),
            false => Err(Fault::Prefetcher),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetcher_that_no_cpu_has_is_refused() {
        let usual = Prefetcher {
            streams: 8,
            steps_ahead: 2,
            stride_lines_max: 1,
        };
        assert_eq!(usual.validate(), Ok(()));
        for (prefetcher, fault) in [
            (
                Prefetcher {
                    steps_ahead: 0,
                    ..usual
                },
                Fault::Figure {
                    key: "prefetcher.steps_ahead",
                    value: 0.0,
                },
            ),
            (
                Prefetcher {
                    streams: 1 << 20,
                    ..usual
                },
                Fault::Prefetcher,
            ),
            (
                Prefetcher {
                    steps_ahead: 17,
                    ..usual
                },
                Fault::Prefetcher,
            ),
        ] {
            assert_eq!(prefetcher.validate(), Err(fault));
        }
    }
}
