//! Compares the ranks of a job: groups of ranks that behave alike, and the differences between groups.
//!
//! A recording is a sample of its rank's accesses. Two ranks are alike if they differ by no more than two samples of
//! one program would, plus a tolerance, as ranks have different data.

mod binding;
mod groups;
mod memory;
mod weights;

use std::collections::BTreeMap;

use nearpage_machine::NodeId;
use nearpage_recording::{Frame, ObjectKind, Recording};
use nearpage_wire::is_runtime_module;
use rustc_hash::FxHashMap;

pub use self::binding::{BindingFinding, BoundRank, audit};
pub use self::groups::{Difference, RankGroup, RankGroups, group_ranks};

use self::weights::Weights;
use crate::{
    Attribution, Error, Input, Names, ObjectGroup, ObjectName, Operations, Options, Pattern,
    attribute, call_site,
};

/// Largest number of objects kept per rank, the most accessed first. Further objects have a small share.
const OBJECTS_MAX: usize = 64;
/// Number of call-site frames that identify an object: wrappers around `malloc`, and their callers.
const IDENTITY_FRAMES: usize = 3;

/// Number of an object of a job's program, the same in all ranks: see [`ObjectNames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobObject(pub u32);

/// Names of the objects of a job's ranks. Recordings with different call sites may name one object differently; the
/// name from the rank that was read first counts.
#[derive(Debug, Default)]
pub struct ObjectNames {
    numbers: FxHashMap<String, JobObject>,
    names: Vec<String>,
}

impl ObjectNames {
    /// Name of an object; empty if the number is unknown.
    pub fn of(&self, object: JobObject) -> &str {
        self.names.get(object.0 as usize).map_or("", String::as_str)
    }

    /// Number of the object with this identity. `name` provides the name of a new object.
    pub fn number(&mut self, identity: String, name: impl FnOnce() -> String) -> JobObject {
        *self.numbers.entry(identity).or_insert_with(|| {
            self.names.push(name());
            JobObject(self.names.len() as u32 - 1)
        })
    }
}

/// Accesses of a rank to an object, in effective samples: the number of samples of equal weight with the same
/// information.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObjectUse {
    /// Effective samples of the object.
    pub samples: f64,
    /// Effective samples whose page has a known node.
    pub node_known: f64,
    /// Effective samples of accesses to another node's memory.
    pub remote: f64,
    /// Time lost to the accesses, in nanoseconds.
    pub cost_ns: f64,
}

impl ObjectUse {
    /// Adds accesses of another rank, or of the same rank to other memory.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.node_known += other.node_known;
        self.remote += other.remote;
        self.cost_ns += other.cost_ns;
    }

    /// Share of accesses to another node's memory; none if no page's node is known.
    pub fn remote_share(&self) -> Option<f64> {
        (self.node_known > 0.0).then(|| self.remote / self.node_known)
    }
}

/// Properties by which ranks are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankProfile {
    /// All accesses of the rank.
    pub total: ObjectUse,
    /// The most accessed objects with their patterns.
    pub objects: BTreeMap<JobObject, (ObjectUse, &'static str)>,
    /// Time from the beginning of the recording to its end, in nanoseconds.
    pub elapsed_ns: u64,
    /// Peak size of heap, static variables and mappings in bytes; none if not recorded.
    pub memory_bytes: Option<u64>,
    /// Accesses by node of the memory; empty if unknown.
    pub memory_nodes: BTreeMap<NodeId, ObjectUse>,
    /// Share of each node in the sampled pages, 0 to 1; empty if unknown.
    pub page_shares: BTreeMap<NodeId, f64>,
    /// Samples by node of the CPU.
    pub cpu_nodes: BTreeMap<NodeId, f64>,
}

impl RankProfile {
    /// Completes a rank's findings with the numbers of its objects. Ranks must come in order, so that objects have the
    /// same numbers and names in each run.
    pub fn new(found: RankFindings, names: &mut ObjectNames) -> Self {
        let mut profile = found.profile;
        for object in found.objects {
            let number = names.number(object.identity, || object.name);
            profile
                .objects
                .insert(number, (object.used, object.pattern));
        }
        profile
    }

    /// Estimated bytes of the rank's memory on a node, from the nodes of the sampled pages.
    pub fn node_bytes(&self, node: NodeId) -> Option<u64> {
        let share = self.page_shares.get(&node).copied().unwrap_or(0.0);
        Some((self.memory_bytes? as f64 * share).round() as u64)
    }

    /// Time lost to memory accesses as a share of the recorded time. Several threads may lose more than 1.
    pub fn lost_share(&self) -> f64 {
        match self.elapsed_ns {
            0 => 0.0,
            elapsed_ns => self.total.cost_ns / elapsed_ns as f64,
        }
    }
}

/// Findings from one rank's recording, before its objects are matched with other ranks' objects.
#[derive(Debug)]
pub struct RankFindings {
    /// The profile, still without objects.
    profile: RankProfile,
    objects: Vec<FoundObject>,
}

#[derive(Debug)]
struct FoundObject {
    identity: String,
    name: String,
    used: ObjectUse,
    pattern: &'static str,
}

impl RankFindings {
    /// Attributes a rank's recording.
    ///
    /// # Errors
    /// [`Error`] if the accesses cannot be read.
    pub fn of(recording: &Recording, operations: Operations) -> Result<Self, Error> {
        let weighed = weights::Weighed::new(recording);
        let input = Input::new(recording).through(&weighed);
        let options = Options {
            page_bytes: recording.machine.page_bytes,
            operations,
            ..Options::default()
        };
        let attribution = attribute(&input, &options)?;
        Ok(Self::new(recording, &attribution, weighed.weights()))
    }

    fn new(recording: &Recording, attribution: &Attribution, weights: Weights) -> Self {
        let weight: f64 = attribution.objects.iter().map(ObjectGroup::accesses).sum();
        let weight = weight.max(attribution.totals.accesses);
        let effective = weights.effective_samples();
        let samples_per_weight = match weight > 0.0 {
            true => effective / weight,
            false => 0.0,
        };
        let names = Names::new(&recording.tables, &attribution.objects);
        let mut all: Vec<(&ObjectGroup, ObjectUse, String)> = Vec::new();
        let mut by_identity: FxHashMap<String, usize> = FxHashMap::default();
        let mut total = ObjectUse::default();
        for group in &attribution.objects {
            let used = object_use(group, samples_per_weight);
            total.add(&used);
            let identity = identity(recording, group, &names);
            match by_identity.get(&identity) {
                // An object with several rows in a report gets name and pattern from the costliest row, which comes
                // first.
                Some(&known) => all[known].1.add(&used),
                None => {
                    by_identity.insert(identity.clone(), all.len());
                    all.push((group, used, identity));
                }
            }
        }
        total.samples = effective;
        all.sort_by(|(_, a, _), (_, b, _)| b.samples.total_cmp(&a.samples));
        all.truncate(OBJECTS_MAX);
        let objects = all.into_iter().map(|(group, used, identity)| FoundObject {
            identity,
            name: names.of(group),
            used,
            pattern: group.pattern.kind(),
        });
        Self {
            objects: objects.collect(),
            profile: RankProfile {
                total,
                objects: BTreeMap::new(),
                elapsed_ns: elapsed_ns(recording),
                memory_bytes: memory::peak_bytes(&recording.tables.objects),
                memory_nodes: weights.memory_nodes(samples_per_weight),
                page_shares: weights.page_shares(),
                cpu_nodes: weights.cpu_nodes(samples_per_weight),
            },
        }
    }
}

/// 0 for recorders that were killed, as they wrote no end.
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

/// Key that is equal for the same object in different ranks: the innermost frames of the program's own code at the
/// call site, or the name. Outer frames are left out, as stacks are unwound to different depths in different ranks.
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
        // Stacks of all processes and threads count as one object, and so does thread-local storage.
        _ if matches!(group.kind, ObjectKind::Stack | ObjectKind::Tls) => kind.to_string(),
        _ => format!("{kind}\n{}", names.of(group)),
    }
}

impl Pattern {
    /// Name of the pattern's kind, without sizes and threads.
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

/// Kind of pattern of an object with too few accesses.
const UNKNOWN: &str = "unknown";
