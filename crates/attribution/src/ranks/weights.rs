//! Adds up the weights of a rank's accesses by node while attribution reads them, so that no chunk is read twice.

use std::collections::BTreeMap;
use std::sync::Mutex;

use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::{AccessBatch, Recording};
use rustc_hash::FxHashMap;

use super::ObjectUse;
use super::memory::SampledPages;
use crate::{AccessChunks, ReadError};

/// A recording whose accesses are weighed while they are read.
pub(super) struct Weighed<'a> {
    recording: &'a Recording,
    /// Weights by chunk: a sum in order of chunks does not depend on the order in which threads finish.
    chunks: Mutex<BTreeMap<usize, Weights>>,
}

impl<'a> Weighed<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            chunks: Mutex::default(),
        }
    }

    /// Sum over all chunks that were read.
    pub fn weights(self) -> Weights {
        let chunks = self.chunks.into_inner().expect("nobody panics holding it");
        let mut all = Weights::default();
        for chunk in chunks.into_values() {
            all.add(chunk);
        }
        all
    }
}

impl AccessChunks for Weighed<'_> {
    fn chunks(&self) -> usize {
        AccessChunks::chunks(self.recording)
    }

    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
        let mut read = AccessChunks::reader(self.recording);
        let mut cpu_nodes = FxHashMap::default();
        move |chunk, batch| {
            read(chunk, batch)?;
            let weights = Weights::of(self.recording, batch, &mut cpu_nodes);
            let mut chunks = self.chunks.lock().expect("nobody panics holding it");
            chunks.insert(chunk, weights);
            Ok(())
        }
    }
}

#[derive(Default)]
pub(super) struct Weights {
    sum: f64,
    squares: f64,
    /// Accesses by node of the memory and of the CPU, with weights in place of samples; empty on machines with one
    /// node.
    by_memory: BTreeMap<NodeId, ObjectUse>,
    by_cpu: BTreeMap<NodeId, f64>,
    pages: SampledPages,
}

impl Weights {
    fn of(
        recording: &Recording,
        batch: &AccessBatch,
        cpu_nodes: &mut FxHashMap<CpuId, Option<NodeId>>,
    ) -> Self {
        let mut found = Self::default();
        for weight in batch.weight.iter().map(|weight| f64::from(*weight)) {
            found.sum += weight;
            found.squares += weight * weight;
        }
        if recording.machine.nodes.len() < 2 {
            return found;
        }
        let page_bytes = recording.machine.page_bytes.max(1);
        let rows = batch.cpu.iter().zip(&batch.page_node).zip(&batch.weight);
        let rows = rows.zip(&batch.cost_ns).zip(&batch.address);
        for ((((cpu, page_node), weight), cost_ns), address) in rows {
            let weight = f64::from(*weight);
            let cpu_node = *cpu_nodes
                .entry(*cpu)
                .or_insert_with(|| recording.machine.node_of(*cpu));
            if let Some(node) = page_node {
                found.pages.add(address / page_bytes, *node);
                let is_remote = cpu_node.is_some_and(|of_cpu| of_cpu != *node);
                found.by_memory.entry(*node).or_default().add(&ObjectUse {
                    samples: weight,
                    node_known: weight,
                    remote: if is_remote { weight } else { 0.0 },
                    cost_ns: f64::from(*cost_ns),
                });
            }
            if let Some(node) = cpu_node {
                *found.by_cpu.entry(node).or_default() += weight;
            }
        }
        found
    }

    fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.squares += other.squares;
        for (node, used) in other.by_memory {
            self.by_memory.entry(node).or_default().add(&used);
        }
        for (node, weight) in other.by_cpu {
            *self.by_cpu.entry(node).or_default() += weight;
        }
        self.pages.add_all(other.pages);
    }

    /// Share of each node in the sampled pages.
    pub fn page_shares(&self) -> BTreeMap<NodeId, f64> {
        self.pages.shares()
    }

    /// Number of accesses of equal weight with the same information: (Σ weight)² / Σ weight² (Kish, Survey Sampling,
    /// 1965, section 11.7). If the sampling rate falls, a few accesses stand for most of the run.
    pub fn effective_samples(&self) -> f64 {
        match self.squares > 0.0 {
            true => self.sum * self.sum / self.squares,
            false => 0.0,
        }
    }

    /// Accesses by node of the memory, in effective samples.
    pub fn memory_nodes(&self, samples_per_weight: f64) -> BTreeMap<NodeId, ObjectUse> {
        let in_samples = |(node, used): (&NodeId, &ObjectUse)| {
            let used = ObjectUse {
                samples: used.samples * samples_per_weight,
                node_known: used.node_known * samples_per_weight,
                remote: used.remote * samples_per_weight,
                cost_ns: used.cost_ns,
            };
            (*node, used)
        };
        self.by_memory.iter().map(in_samples).collect()
    }

    /// Effective samples by node of the CPU.
    pub fn cpu_nodes(&self, samples_per_weight: f64) -> BTreeMap<NodeId, f64> {
        let in_samples = |(node, weight): (&NodeId, &f64)| (*node, weight * samples_per_weight);
        self.by_cpu.iter().map(in_samples).collect()
    }
}
