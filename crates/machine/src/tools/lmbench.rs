//! Latencies that lmbench's `lat_mem_rd` prints: `"stride=128`, then lines of an array's size in MiB and the
//! nanoseconds of a load, the greatest array last.
//!
//! It does not say whose CPU read whose memory. A command before it does, as `set -x` prints it:
//! `+ numactl --cpunodebind=0 --membind=1 lat_mem_rd -t 512 128`. Without one it is node 0's own memory.

use super::sections::{Pairs, figure, shown};
use crate::NodeId;

/// Arrays that the caches of large machines hold.
const ARRAY_SMALL_MIB: f64 = 256.0;

/// All runs in a text.
#[derive(Default)]
pub(super) struct Runs {
    /// The CPU's and the memory's node of the runs that follow.
    nodes: Option<(NodeId, NodeId)>,
    /// Latency of each pair's greatest array in ns; of several runs, the last.
    pub latency_ns: Pairs,
    pub notes: Vec<String>,
    /// The last array's size in MiB.
    size_mib: f64,
}

impl Runs {
    /// A line with the command; is it one?
    pub fn command(&mut self, words: &[&str]) -> Result<bool, String> {
        // `lat_mem_rd` has an option `-N` of its own.
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

    /// A line of sizes and latencies.
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

    /// What to know of the latencies, after the last.
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
