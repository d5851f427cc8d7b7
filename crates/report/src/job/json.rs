//! JSON of a job's report: all ranks, groups, hosts and bad bindings.

use nearpage_attribution::{ObjectUse, RankGroup};
use nearpage_recording::Launcher;
use schemars::JsonSchema;
use serde::Serialize;

use super::{JobContent, binding};

/// What `report --json` prints of a job.
#[derive(Serialize, JsonSchema)]
pub struct JobReportOutput<'a> {
    /// Version of this form.
    version: u32,
    /// Name of the job and its step; null if the recordings don't say.
    job: Option<&'a str>,
    /// Number of ranks that the launcher started; null if the recordings don't say.
    size: Option<u32>,
    /// Limits of the figures, such as missing ranks and mixed versions.
    notes: &'a [String],
    /// Notes of the ranks' recorders, each once, ordered by the number of ranks.
    rank_notes: Vec<RankNote<'a>>,
    /// Ranks that behave alike, the largest group first.
    groups: Vec<Group<'a>>,
    /// Ranks with too few samples for a group.
    too_few_samples: Vec<u32>,
    /// Ranks, by number.
    ranks: Vec<Rank<'a>>,
    /// Hosts, by name.
    hosts: Vec<HostForm<'a>>,
    /// Bad bindings of ranks.
    binding: Vec<Finding<'a>>,
}

/// A note of recorders.
#[derive(Serialize, JsonSchema)]
struct RankNote<'a> {
    /// Ranks whose recorders made the note.
    ranks: Vec<u32>,
    /// Text of the note.
    note: &'a str,
}

/// Accesses to some memory.
#[derive(Serialize, JsonSchema)]
struct Use {
    /// Effective number of samples: this many samples of equal weight would give equal accuracy.
    samples: f64,
    /// Share of accesses to another node's memory, 0 to 1; null if no page's node is known.
    remote_share: Option<f64>,
    /// Time lost to the accesses.
    cost_ns: f64,
}

impl From<&ObjectUse> for Use {
    fn from(used: &ObjectUse) -> Self {
        Self {
            samples: used.samples,
            remote_share: used.remote_share(),
            cost_ns: used.cost_ns,
        }
    }
}

/// Ranks that behave alike.
#[derive(Serialize, JsonSchema)]
struct Group<'a> {
    /// Numbers of the ranks.
    ranks: Vec<u32>,
    /// All accesses of the ranks.
    #[serde(flatten)]
    total: Use,
    /// Difference from the largest group, in a sentence; null for the largest group.
    difference: Option<String>,
    /// Objects by share of the accesses, at most 64 for each rank.
    objects: Vec<GroupObject<'a>>,
}

/// An object of a group.
#[derive(Serialize, JsonSchema)]
struct GroupObject<'a> {
    /// Display name of the object.
    name: &'a str,
    /// Share of the group's accesses, 0 to 1.
    share: f64,
    /// Accesses to the object.
    #[serde(flatten)]
    used: Use,
    /// Pattern of the object in most samples: `private`, `private-runs`, `block`, `partial-block`, `block-cyclic`,
    /// `tiles`, `shared`, `read-shared`, `segments`, `mixed`, `unknown`.
    pattern: &'static str,
}

/// A rank.
#[derive(Serialize, JsonSchema)]
struct Rank<'a> {
    /// Number of the rank.
    rank: u32,
    /// Folder of the rank's recording, below the job's folder.
    folder: String,
    /// Host of the rank; empty: not known.
    host: &'a str,
    /// Number among the ranks of the host.
    local_rank: Option<u32>,
    /// Position of the rank's group in `groups`; null: too few samples.
    group: Option<usize>,
    /// Exit status of the rank's command, as a shell shows it; null: not known.
    exit_status: Option<i32>,
    /// Recorded time.
    elapsed_ns: u64,
    /// Maximum memory of the rank in heap, static variables and mappings together; null: not recorded.
    memory_bytes: Option<u64>,
    /// All accesses of the rank.
    #[serde(flatten)]
    total: Use,
    /// CPUs to which the rank was bound at its start; null: not recorded.
    cpus: Option<&'a str>,
    /// Nodes whose memory the rank was allowed to use; null: not recorded.
    memory_nodes: Option<&'a str>,
    /// GPUs that the rank was told to use; null: none, or not recorded.
    gpus: Option<&'a str>,
}

/// A host.
#[derive(Serialize, JsonSchema)]
struct HostForm<'a> {
    /// Name of the host; empty: not known.
    host: &'a str,
    /// Ranks on the host.
    ranks: Vec<u32>,
    /// Sum of the ranks' maximum memory; null: not recorded.
    memory_bytes: Option<u64>,
    /// All accesses of the ranks.
    #[serde(flatten)]
    total: Use,
    /// Accesses of the ranks to the host's memory, by node; empty if pages' nodes are not known.
    nodes: Vec<NodeForm>,
}

/// Memory of a node.
#[derive(Serialize, JsonSchema)]
struct NodeForm {
    /// Number of the node.
    node: u16,
    /// Memory of the ranks on the node, estimated from the sampled pages; null: not recorded.
    memory_bytes: Option<u64>,
    /// Accesses to the node's memory.
    #[serde(flatten)]
    used: Use,
}

/// A bad binding.
#[derive(Serialize, JsonSchema)]
struct Finding<'a> {
    /// Kind of the finding: `unbound`, `shared-cpus`, `shared-cores`, `straddling`, `memory-forbidden`,
    /// `memory-elsewhere`, `gpu-elsewhere`.
    kind: &'static str,
    /// Host of the ranks.
    host: &'a str,
    /// Ranks with the binding.
    ranks: &'a [u32],
    /// Description in a sentence.
    sentence: String,
    /// The launcher's option that corrects the binding; null: not known for this launcher.
    remedy: Option<&'static str>,
}

/// JSON of the whole report.
pub fn job_json(content: &JobContent) -> String {
    let numbers = content.group_numbers();
    let rank = |(position, number): (usize, &Option<usize>)| {
        let (recorded, profile) = (content.rank(position), &content.profiles[position]);
        let metadata = &recorded.metadata;
        let folder = recorded.folder.file_name().unwrap_or_default();
        let launched = metadata.launched.as_ref();
        let binding = metadata.binding.as_ref();
        Rank {
            rank: recorded.rank,
            folder: folder.to_string_lossy().into_owned(),
            host: &recorded.host,
            local_rank: launched.and_then(|launched| launched.local_rank),
            group: *number,
            exit_status: metadata.exit_status,
            elapsed_ns: profile.elapsed_ns,
            memory_bytes: profile.memory_bytes,
            total: Use::from(&profile.total),
            cpus: binding.map(|binding| &*binding.cpus),
            memory_nodes: binding.map(|binding| &*binding.memory_nodes),
            gpus: binding.and_then(|binding| binding.gpus.as_deref()),
        }
    };
    let launcher = content.launcher();
    let finding = |finding| {
        let (host, ranks) = binding::host_and_ranks(finding);
        Finding {
            kind: binding::kind(finding),
            host,
            ranks,
            sentence: binding::sentence(finding),
            remedy: binding::remedy(finding, launcher),
        }
    };
    let groups = content.groups.groups.iter().enumerate();
    let hosts = content.hosts().into_iter().map(|(name, host)| HostForm {
        host: name,
        ranks: content.numbers(&host.ranks),
        memory_bytes: host.memory_bytes,
        total: Use::from(&host.total),
        nodes: host
            .nodes
            .iter()
            .map(|(node, of_host)| NodeForm {
                node: node.0,
                memory_bytes: of_host.memory_bytes,
                used: Use::from(&of_host.used),
            })
            .collect(),
    });
    let rank_notes = content.job.rank_notes().into_iter();
    let output = JobReportOutput {
        version: nearpage_recording::JSON_VERSION,
        job: content.job.name.as_deref(),
        size: content.job.size,
        notes: &content.job.notes,
        rank_notes: rank_notes
            .map(|(note, ranks)| RankNote { ranks, note })
            .collect(),
        groups: groups
            .map(|(number, group)| group_form(content, number, group))
            .collect(),
        too_few_samples: content.numbers(&content.groups.too_few),
        ranks: numbers.iter().enumerate().map(rank).collect(),
        hosts: hosts.collect(),
        binding: content.findings.iter().map(finding).collect(),
    };
    serde_json::to_string(&output).expect("strings and numbers")
}

fn group_form<'a>(content: &'a JobContent, number: usize, group: &RankGroup) -> Group<'a> {
    let objects = group
        .objects()
        .into_iter()
        .map(|(object, used, pattern)| GroupObject {
            name: content.names.of(object),
            share: used.samples / group.total.samples.max(1.0),
            used: Use::from(&used),
            pattern,
        });
    Group {
        ranks: content.numbers(&group.members),
        total: Use::from(&group.total),
        difference: (number > 0).then(|| content.outlier(number)),
        objects: objects.collect(),
    }
}

impl JobContent<'_> {
    /// Launcher of the ranks, from the first rank that names one.
    pub(super) fn launcher(&self) -> Option<Launcher> {
        let launched = self
            .job
            .ranks
            .iter()
            .find_map(|rank| rank.metadata.launched.as_ref())?;
        Some(launched.launcher)
    }
}
