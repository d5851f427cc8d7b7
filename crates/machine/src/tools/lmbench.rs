//! Latencies in the output of lmbench's `lat_mem_rd`: `"stride=128`, then lines with an array's size in MiB and the
//! nanoseconds of a load, the largest array last.
//!
//! The output does not say which CPU read which node's memory. A command before it does, as `set -x` prints it: `+
//! numactl --cpunodebind=0 --membind=1 lat_mem_rd -t 512 128`. Without a command, the latency is taken as node 0's own.

use super::sections::{Pairs, figure, shown};
use crate::NodeId;

/// Size below which large caches may hold a part of an array.
const ARRAY_SMALL_MIB: f64 = 256.0;

/// All runs in a text.
#[derive(Default)]
pub(super) struct Runs {
    /// Nodes of the CPU and the memory in the following runs.
    nodes: Option<(NodeId, NodeId)>,
    /// Latency of the largest array in ns, by pair of nodes; later runs replace earlier ones.
    pub latency_ns: Pairs,
    pub notes: Vec<String>,
    /// Size of the last array in MiB.
    size_mib: f64,
}

impl Runs {
    /// Reads a line; is it a command?
    pub fn command(&mut self, words: &[&str]) -> Result<bool, String> {
        // Only the words before `lat_mem_rd` count, because `lat_mem_rd` itself has an option `-N`.
        let position = |name: &str| words.iter().position(|word| word.ends_with(name));
        let (Some(numactl), Some(lat_mem_rd)) = (position("numactl"), position("lat_mem_rd"))
        else {
            return Ok(false);
        };
        let Some(words) = words.get(numactl..lat_mem_rd) else {
            return Ok(false);
        };
        let option = |long: &str, short: &str| {
            let at = words.iter().position(|&word| word == short || word == long);
            let next = at.and_then(|at| words.get(at + 1).copied());
            next.or_else(|| {
                words
                    .iter()
                    .find_map(|word| word.strip_prefix(long)?.strip_prefix('='))
            })
        };
        let node = |word: &str| {
            let node = word.parse().map(NodeId);
            node.map_err(|_| {
                format!(
                    "expected one node in a command of `numactl`, found `{}`",
                    shown(word)
                )
            })
        };
        let nodes = [option("--cpunodebind", "-N"), option("--membind", "-m")];
        self.nodes = match nodes {
            [Some(cpus), Some(memory)] => Some((node(cpus)?, node(memory)?)),
            _ => {
                return Err(
                    "expected `numactl --cpunodebind=NODE --membind=NODE` before `lat_mem_rd`"
                        .to_owned(),
                );
            }
        };
        Ok(true)
    }

    /// Reads a line with a size and a latency.
    pub fn line(&mut self, words: &[&str]) -> Result<(), String> {
        let &[size, ns] = words else {
            return Err(format!(
                "expected an array's size and a latency, found `{}`",
                shown(&words.join(" "))
            ));
        };
        let (Some(size_mib), Some(ns)) = (figure(size)?, figure(ns)?) else {
            return Ok(());
        };
        self.size_mib = size_mib;
        self.latency_ns
            .insert(self.nodes.unwrap_or((NodeId(0), NodeId(0))), ns);
        Ok(())
    }

    /// Adds notes about the latencies, after the last line.
    pub fn finish(&mut self) {
        if self.latency_ns.is_empty() {
            return;
        }
        self.notes.push(format!("lat_mem_rd: the latency of an array of {} MiB, misses of TLBs included, and less where a prefetcher follows the stride: run it with -t", self.size_mib));
        if self.size_mib < ARRAY_SMALL_MIB {
            self.notes
                .push("lat_mem_rd: caches may hold a part of an array below 256 MiB".to_owned());
        }
        if self.nodes.is_none() {
            self.notes.push("lat_mem_rd: no `numactl --cpunodebind=NODE --membind=NODE` before it, so taken for node 0's own memory".to_owned());
        }
    }
}
