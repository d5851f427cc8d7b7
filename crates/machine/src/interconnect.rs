//! What a simulated machine's interconnect carries beside data, and what its CPUs fetch ahead.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fault;

/// Packets of a coherence protocol without directory (`[coherence]`), as AMD's coherent HyperTransport:
/// the request goes to the home node of the line, which sends probes to all other nodes. These answer the
/// node that asked, the home node sends the line, and the node that asked says when it has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Coherence {
    /// A request for a line, or the announcement of a line that is written back.
    pub request_bytes: u32,
    /// A probe. The home node sends it once over each link of its ways to all other nodes.
    pub probe_bytes: u32,
    /// A node's answer to a probe.
    pub probe_response_bytes: u32,
    /// What precedes a line of data.
    pub data_header_bytes: u32,
    /// The end of a transaction: to the home node that a line has come, from there that it is written.
    pub done_bytes: u32,
}

impl Coherence {
    /// Keys and values, as the machine file has them.
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

/// Most streams that a prefetcher follows.
const STREAMS_MAX: u32 = 256;
/// Most accesses that a prefetcher is ahead.
const AHEAD_MAX: u32 = 16;

/// A CPU's own prefetcher (`[prefetcher]`): it follows streams of misses at even distances within a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prefetcher {
    /// Streams that it follows at once.
    pub streams: u32,
    /// So many steps of the stream after the current one is what it fetches.
    pub steps_ahead: u32,
    /// The longest step of a stream that it follows, in lines.
    pub stride_lines_max: u32,
}

impl Prefetcher {
    /// Keys, with the table's name, and values.
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
        match self.streams <= STREAMS_MAX && self.steps_ahead <= AHEAD_MAX {
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
