//! Share of a run's own accesses that were remote, as far as its recording shows.

use nearpage_machine::NodeId;
use nearpage_recording::{AccessBatch, AccessKind, ColumnSelection, Level, Recording};
use schemars::JsonSchema;
use serde::Serialize;

/// Accesses of a run by weight, without cache hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct RecordedRemote {
    /// Accesses that are known to be local or remote.
    #[serde(rename = "accesses")]
    pub classified: f64,
    /// Part of `accesses` that is remote.
    pub remote: f64,
    /// Part of `accesses` that was classified by latency, because the page's node is not known.
    pub by_latency: f64,
}

impl RecordedRemote {
    /// Remote share of the classified accesses; `None` without any.
    pub fn share(&self) -> Option<f64> {
        (self.classified > 0.0).then(|| self.remote / self.classified)
    }

    /// Counts all accesses of a recording. An access is remote if page and CPU are on different nodes. Where the page's
    /// node is not known, loads of `cycles_min` and more count as remote: Marathe, Thakkar and Mueller (section 6) take
    /// loads above 512 cycles for remote. Clock and signal samples measure no latency.
    pub fn of(recording: &Recording, cycles_min: f64) -> anyhow::Result<Self> {
        let mut node_of_cpu: Vec<Option<NodeId>> = Vec::new();
        for node in &recording.machine.nodes {
            for cpu in node.cpus.iter().filter(|cpu| cpu.0 < 1 << 20) {
                let at = cpu.0 as usize;
                node_of_cpu.resize(node_of_cpu.len().max(at + 1), None);
                node_of_cpu[at] = Some(node.id);
            }
        }
        let measured = recording.metadata.source.measures_latency();
        let remote_ns = cycles_min / recording.machine.timing()?.clock_ghz;
        let mut counted = Self::default();
        let mut batch = AccessBatch::default();
        let mut reader = recording.chunk_reader();
        for chunk in 0..recording.access_chunks() {
            reader.read(chunk, ColumnSelection::ALL, &mut batch)?;
            for row in 0..batch.len() {
                let weight = f64::from(batch.weight[row]);
                if matches!(
                    batch.level[row],
                    Level::L1 | Level::L2 | Level::L3 | Level::LineFillBuffer
                ) {
                    continue;
                }
                let own = node_of_cpu.get(batch.cpu[row].0 as usize).copied();
                match (own.flatten(), batch.page_node[row]) {
                    (Some(own), Some(page)) => counted.count(weight, own != page),
                    _ if measured && batch.kind[row] == AccessKind::Load => {
                        let latency_ns = f64::from(batch.cost_ns[row]) / weight;
                        counted.count(weight, latency_ns >= remote_ns);
                        counted.by_latency += weight;
                    }
                    _ => {}
                }
            }
        }
        Ok(counted)
    }

    fn count(&mut self, weight: f64, remote: bool) {
        self.classified += weight;
        self.remote += if remote { weight } else { 0.0 };
    }
}
