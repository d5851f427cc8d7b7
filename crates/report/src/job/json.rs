//! The report of a job as JSON: every rank, group, host, and what is wrong with bindings.

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
    /// The job and its step; null where the recordings don't say.
    job: Option<&'a str>,
    /// Number of ranks that the launcher started; null where the recordings don't say.
    size: Option<u32>,
    /// What has to be known of the figures: missing ranks, mixed versions.
    notes: &'a [String],
    /// What the recorders of ranks had to say, each once; what most of them said first.
    rank_notes: Vec<RankNote<'a>>,
    /// Ranks that behave alike, the largest group first.
    groups: Vec<Group<'a>>,
    /// Ranks with too few samples to be in a group.
    too_few_samples: Vec<u32>,
    /// Ranks, by number.
    ranks: Vec<Rank<'a>>,
    /// Hosts, by name.
    hosts: Vec<HostForm<'a>>,
    /// What is wrong with what ranks were bound to.
    binding: Vec<Finding<'a>>,
}

/// What recorders had to say.
#[derive(Serialize, JsonSchema)]
struct RankNote<'a> {
    /// Whose.
    ranks: Vec<u32>,
    /// What.
    note: &'a str,
}

/// What was done to memory.
#[derive(Serialize, JsonSchema)]
struct Use {
    /// Effective samples: as many of equal weight would tell as much.
    samples: f64,
    /// Share of accesses to another node's memory, 0 to 1; null where no page's node is known.
    remote_share: Option<f64>,
    /// Time lost.
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
    /// Their numbers.
    ranks: Vec<u32>,
    /// All that they did.
    #[serde(flatten)]
    total: Use,
    /// How they differ from the largest group, in a sentence; null for that one.
    difference: Option<String>,
    /// Objects by share of the accesses, at most 64 of each rank.
    objects: Vec<GroupObject<'a>>,
}

/// An object of a group.
#[derive(Serialize, JsonSchema)]
struct GroupObject<'a> {
    /// What it is called.
    name: &'a str,
    /// Its share of the group's accesses, 0 to 1.
    share: f64,
    /// What was done to it.
    #[serde(flatten)]
    used: Use,
    /// Its pattern in most samples: `private`, `private-runs`, `block`, `partial-block`, `block-cyclic`, `tiles`,
    /// `shared`, `read-shared`, `segments`, `mixed`, `unknown`.
    pattern: &'static str,
}

/// A rank.
#[derive(Serialize, JsonSchema)]
struct Rank<'a> {
    /// Its number.
    rank: u32,
    /// Folder of its recording, in the job's.
    folder: String,
    /// Where it ran; empty: not known.
    host: &'a str,
    /// Number among the ranks of its host.
    local_rank: Option<u32>,
    /// Position in `groups`; null: too few samples.
    group: Option<usize>,
    /// How its command ended, as a shell shows it; null: not known.
    exit_status: Option<i32>,
    /// Time recorded.
    elapsed_ns: u64,
    /// Most memory that it had at once in heap, static variables and mappings; null: not recorded.
    memory_bytes: Option<u64>,
    /// What it did.
    #[serde(flatten)]
    total: Use,
    /// CPUs that it was bound to when it started; null: not recorded.
    cpus: Option<&'a str>,
    /// Nodes whose memory it might use; null: not recorded.
    memory_nodes: Option<&'a str>,
    /// GPUs that it was told to use; null: none, or not recorded.
    gpus: Option<&'a str>,
}

/// A host.
#[derive(Serialize, JsonSchema)]
struct HostForm<'a> {
    /// Its name; empty: not known.
    host: &'a str,
    /// Its ranks.
    ranks: Vec<u32>,
    /// Most memory that each had, added up; null: not recorded.
    memory_bytes: Option<u64>,
    /// All that they did.
    #[serde(flatten)]
    total: Use,
    /// What they did to the host's memory, by node; empty where pages' nodes are not known.
    nodes: Vec<NodeForm>,
}

/// The memory of a node.
#[derive(Serialize, JsonSchema)]
struct NodeForm {
    /// Its number.
    node: u16,
    /// How much of the ranks' memory is there, by the sampled pages; null: not recorded.
    memory_bytes: Option<u64>,
    /// What was done to it.
    #[serde(flatten)]
    used: Use,
}

/// What is wrong with a binding.
#[derive(Serialize, JsonSchema)]
struct Finding<'a> {
    /// `unbound`, `shared-cpus`, `shared-cores`, `straddling`, `memory-forbidden`, `memory-elsewhere`,
    /// `gpu-elsewhere`.
    kind: &'static str,
    /// The host.
    host: &'a str,
    /// Whose.
    ranks: &'a [u32],
    /// In a sentence.
    sentence: String,
    /// The launcher's option that mends it; null: not known for this launcher.
    remedy: Option<&'static str>,
}

/// The whole report.
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
        let (host, ranks) = binding::whose(finding);
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
    /// Who started the ranks, as the first of them says.
    pub(super) fn launcher(&self) -> Option<Launcher> {
        let launched = self
            .job
            .ranks
            .iter()
            .find_map(|rank| rank.metadata.launched.as_ref())?;
        Some(launched.launcher)
    }
}
