//! Ranks of a job: what each did, which of them behave alike, and what those that don't do differently.
//!
//! A rank is a sample of its program's accesses, so two ranks are alike where they differ by no more than two such
//! samples of one program would, and a little more than that, since ranks have different data.

mod binding;
mod groups;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::{AccessBatch, ColumnSelection, Frame, ObjectKind, Recording};
use nearpage_wire::is_runtime_module;
use rustc_hash::FxHashMap;

pub use self::binding::{BindingFinding, BoundRank, audit};
pub use self::groups::{Difference, RankGroup, RankGroups, group_ranks};

use crate::{Attribution, Names, ObjectGroup, ObjectName, Pattern, ReadError, call_site};

/// Objects of a rank that are kept, the most accessed first: others are a small part of it.
const OBJECTS_MAX: usize = 64;
/// Frames of a call site that tell its objects from others: wrappers around `malloc`, and who calls them.
const IDENTITY_FRAMES: usize = 3;

/// An object of a job's program, numbered by [`ObjectNames`]: the same in all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobObject(pub u32);

/// What the objects of a job's ranks are called. The same object may be named differently in recordings that know
/// different call sites; here it has one name, that of the rank that was read first.
#[derive(Debug, Default)]
pub struct ObjectNames {
    numbers: FxHashMap<String, JobObject>,
    names: Vec<String>,
}

impl ObjectNames {
    /// The name of an object; empty where there is no such object.
    pub fn of(&self, object: JobObject) -> &str {
        self.names.get(object.0 as usize).map_or("", String::as_str)
    }

    /// The object of this identity, which has this name where it is new.
    pub fn number(&mut self, identity: String, name: impl FnOnce() -> String) -> JobObject {
        *self.numbers.entry(identity).or_insert_with(|| {
            self.names.push(name());
            JobObject(self.names.len() as u32 - 1)
        })
    }
}

/// What a rank did to an object, in effective samples: as many of equal weight would tell as much.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObjectUse {
    /// Samples of its accesses.
    pub samples: f64,
    /// Of these, samples whose page's node is known.
    pub node_known: f64,
    /// Of these, to another node's memory.
    pub remote: f64,
    /// Time lost to its accesses, in nanoseconds.
    pub cost_ns: f64,
}

impl ObjectUse {
    /// Adds what another rank did, or the same rank to other memory.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.node_known += other.node_known;
        self.remote += other.remote;
        self.cost_ns += other.cost_ns;
    }

    /// Share of accesses to another node's memory; nothing where no page's node is known.
    pub fn remote_share(&self) -> Option<f64> {
        (self.node_known > 0.0).then(|| self.remote / self.node_known)
    }
}

/// What a rank did, as far as ranks are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankProfile {
    /// All of its accesses.
    pub total: ObjectUse,
    /// The objects that it accessed most, and the pattern of each.
    pub objects: BTreeMap<JobObject, (ObjectUse, &'static str)>,
    /// Time from the beginning of the recording to its end, in nanoseconds.
    pub elapsed_ns: u64,
    /// Samples by the node of the memory; empty where not known.
    pub memory_nodes: BTreeMap<NodeId, f64>,
    /// Samples by the node of the CPU.
    pub cpu_nodes: BTreeMap<NodeId, f64>,
}

impl RankProfile {
    /// Of a rank's recording.
    ///
    /// # Errors
    /// Accesses that cannot be read.
    pub fn of(
        recording: &Recording,
        attribution: &Attribution,
        names: &mut ObjectNames,
    ) -> Result<Self, ReadError> {
        let weight: f64 = attribution.objects.iter().map(ObjectGroup::accesses).sum();
        let weight = weight.max(attribution.totals.accesses);
        let weights = Weights::of(recording)?;
        let effective = weights.effective_samples();
        let samples_per_weight = match weight > 0.0 {
            true => effective / weight,
            false => 0.0,
        };
        let own_names = Names::new(&recording.tables, &attribution.objects);
        let mut all: BTreeMap<JobObject, (ObjectUse, &'static str)> = BTreeMap::new();
        let mut total = ObjectUse::default();
        for group in &attribution.objects {
            let used = object_use(group, samples_per_weight);
            total.add(&used);
            let name = || own_names.of(group);
            let object = names.number(identity(recording, group, &own_names), name);
            match all.entry(object) {
                Entry::Vacant(entry) => {
                    entry.insert((used, group.pattern.kind()));
                }
                // Of what has several rows in a report, the pattern of the costliest, which comes first.
                Entry::Occupied(mut entry) => entry.get_mut().0.add(&used),
            }
        }
        total.samples = effective;
        let mut most: Vec<_> = all.into_iter().collect();
        most.sort_by(|(_, (a, _)), (_, (b, _))| b.samples.total_cmp(&a.samples));
        most.truncate(OBJECTS_MAX);
        let in_samples = |by_node: BTreeMap<NodeId, f64>| {
            let nodes = by_node.into_iter();
            nodes
                .map(|(node, weight)| (node, weight * samples_per_weight))
                .collect()
        };
        Ok(Self {
            total,
            objects: most.into_iter().collect(),
            elapsed_ns: elapsed_ns(recording),
            memory_nodes: in_samples(weights.by_memory),
            cpu_nodes: in_samples(weights.by_cpu),
        })
    }

    /// Time lost to memory accesses, as a share of the time that was recorded; of several threads it may be above 1.
    pub fn lost_share(&self) -> f64 {
        match self.elapsed_ns {
            0 => 0.0,
            elapsed_ns => self.total.cost_ns / elapsed_ns as f64,
        }
    }
}

/// The weights of a recording's accesses.
#[derive(Default)]
struct Weights {
    sum: f64,
    squares: f64,
    /// By the node of the memory, and of the CPU; empty where the machine has one node.
    by_memory: BTreeMap<NodeId, f64>,
    by_cpu: BTreeMap<NodeId, f64>,
}

impl Weights {
    fn of(recording: &Recording) -> Result<Self, ReadError> {
        let has_nodes = recording.machine.nodes.len() > 1;
        let columns = ColumnSelection {
            cpu: has_nodes,
            weight: true,
            page_node: has_nodes,
            ..ColumnSelection::NONE
        };
        let mut found = Self::default();
        let mut cpu_nodes: FxHashMap<CpuId, Option<NodeId>> = FxHashMap::default();
        let mut reader = recording.chunk_reader();
        let mut batch = AccessBatch::default();
        for chunk in 0..recording.access_chunks() {
            reader.read(chunk, columns, &mut batch)?;
            for weight in batch.weight.iter().map(|weight| f64::from(*weight)) {
                found.sum += weight;
                found.squares += weight * weight;
            }
            if !has_nodes {
                continue;
            }
            let rows = batch.cpu.iter().zip(&batch.page_node).zip(&batch.weight);
            for ((cpu, page_node), weight) in rows {
                let weight = f64::from(*weight);
                if let Some(node) = page_node {
                    *found.by_memory.entry(*node).or_default() += weight;
                }
                let node = cpu_nodes
                    .entry(*cpu)
                    .or_insert_with(|| recording.machine.node_of(*cpu));
                if let Some(node) = node {
                    *found.by_cpu.entry(*node).or_default() += weight;
                }
            }
        }
        Ok(found)
    }

    /// How many accesses of equal weight would tell as much: (Σ weight)² / Σ weight² (Kish, Survey Sampling, 1965, section
    /// 11.7). Rates that fall leave a few accesses that stand for most of a run.
    fn effective_samples(&self) -> f64 {
        match self.squares > 0.0 {
            true => self.sum * self.sum / self.squares,
            false => 0.0,
        }
    }
}

/// A recorder that was killed wrote no end.
fn elapsed_ns(recording: &Recording) -> u64 {
    let metadata = &recording.metadata;
    metadata.end_ns.saturating_sub(metadata.begin_ns)
}

fn object_use(group: &ObjectGroup, samples_per_weight: f64) -> ObjectUse {
    let samples = |weight: f64| weight * samples_per_weight;
    let (loads, stores) = (&group.loads, &group.stores);
    ObjectUse {
        samples: samples(group.accesses()),
        node_known: samples(loads.node_known + stores.node_known),
        remote: samples(loads.remote + stores.remote),
        cost_ns: group.cost_ns(),
    }
}

/// What makes objects of different ranks the same: the innermost frames of the call site that are the program's own,
/// or the name. How far stacks were unwound differs from rank to rank, and so do the frames beyond.
fn identity(recording: &Recording, group: &ObjectGroup, names: &Names) -> String {
    let kind = group.kind as u8;
    let tables = &recording.tables;
    let module_of = |frame: &Frame| {
        let module = tables.modules.get(frame.module?.0 as usize)?;
        module.path.rsplit('/').next()
    };
    match (&group.name, call_site(tables, group)) {
        (ObjectName::CallSite(_), Some(site)) => {
            let frames = site.frames.iter().map(|frame| {
                let module = module_of(frame).unwrap_or_default();
                (module, frame)
            });
            let own = frames.filter(|(module, frame)| {
                !is_runtime_module(module.as_bytes()) && frame.function != "_start"
            });
            let mut identity = kind.to_string();
            for (module, frame) in own.take(IDENTITY_FRAMES) {
                identity += &match (frame.function.as_str(), frame.line) {
                    ("", 0) => format!("\n{module}+{:#x}", frame.offset),
                    (function, line) => format!("\n{module} {function} {line}"),
                };
            }
            identity
        }
        // Each process has one, and threads their own.
        _ if matches!(group.kind, ObjectKind::Stack | ObjectKind::Tls) => kind.to_string(),
        _ => format!("{kind}\n{}", names.of(group)),
    }
}

impl Pattern {
    /// Which pattern, in a word; what it says of sizes and threads left aside.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown => UNKNOWN,
            Self::Private { .. } | Self::PrivateEach => "private",
            Self::PrivateRuns(_) => "private-runs",
            Self::Block { .. } => "block",
            Self::PartialBlock { .. } => "partial-block",
            Self::BlockCyclic { .. } => "block-cyclic",
            Self::Tiles { .. } => "tiles",
            Self::Shared => "shared",
            Self::ReadShared => "read-shared",
            Self::Segments(_) => "segments",
            Self::InTurn(_) => "in turn",
            Self::Mixed => "mixed",
        }
    }
}

/// The pattern of an object with too few accesses.
const UNKNOWN: &str = "unknown";
