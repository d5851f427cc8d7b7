//! Ranks of a job: what each did, which of them behave alike, and what those that don't do differently.
//!
//! A rank is a sample of its program's accesses, so two ranks are alike where they differ by no more than two such
//! samples of one program would, and a little more than that, since ranks have different data.

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
    /// Most bytes that it had at once in heap, static variables and mappings; nothing where not recorded.
    pub memory_bytes: Option<u64>,
    /// What was done to memory, by its node; empty where not known.
    pub memory_nodes: BTreeMap<NodeId, ObjectUse>,
    /// Share of the sampled pages that each node has, 0 to 1; empty where not known.
    pub page_shares: BTreeMap<NodeId, f64>,
    /// Samples by the node of the CPU.
    pub cpu_nodes: BTreeMap<NodeId, f64>,
}

impl RankProfile {
    /// Of what was found in a rank's recording; ranks in order, so that objects' numbers and names don't depend on who was
    /// read first.
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

    /// How much of its memory is on a node, by where the pages are that were sampled.
    pub fn node_bytes(&self, node: NodeId) -> Option<u64> {
        let share = self.page_shares.get(&node).copied().unwrap_or(0.0);
        Some((self.memory_bytes? as f64 * share).round() as u64)
    }

    /// Time lost to memory accesses, as a share of the time that was recorded; of several threads it may be above 1.
    pub fn lost_share(&self) -> f64 {
        match self.elapsed_ns {
            0 => 0.0,
            elapsed_ns => self.total.cost_ns / elapsed_ns as f64,
        }
    }
}

/// What was found in a rank's recording, before its objects are known from those of other ranks.
#[derive(Debug)]
pub struct RankFindings {
    /// Without its objects.
    profile: RankProfile,
    objects: Vec<FoundObject>,
}

/// An object of one rank.
#[derive(Debug)]
struct FoundObject {
    identity: String,
    name: String,
    used: ObjectUse,
    pattern: &'static str,
}

impl RankFindings {
    /// Reads a rank's recording.
    ///
    /// # Errors
    /// Accesses that cannot be read.
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
                // Of what has several rows in a report, name and pattern of the costliest, which comes first.
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
