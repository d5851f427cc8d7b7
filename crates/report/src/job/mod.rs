//! Report of a job: which ranks behave alike, which ranks differ, and what they were bound to.

mod binding;
mod json;
mod text;

use std::collections::BTreeMap;

use nearpage_attribution::{
    BindingFinding, BoundRank, Difference, ObjectNames, ObjectUse, RankGroups, RankProfile, audit,
    group_ranks,
};
use nearpage_machine::{Machine, NodeId, NodeList};
use nearpage_recording::{Binding, Job, RankRecording, rank_words};

pub use self::json::{JobReportOutput, job_json};
pub use self::text::{JobBy, job_text};

use crate::printable;
use nearpage_amount::percent;

/// A rank is on the nodes that have this share of its samples.
const MOST: f64 = 0.8;
/// Maximum number of differences in a sentence.
const DIFFERENCES_MAX: usize = 3;

/// Content of a job's report.
#[derive(Debug)]
pub struct JobContent<'a> {
    job: &'a Job,
    profiles: &'a [RankProfile],
    names: &'a ObjectNames,
    groups: RankGroups,
    findings: Vec<BindingFinding>,
}

impl<'a> JobContent<'a> {
    /// Groups the ranks of a job by their profiles, and audits their bindings. `machines` by host.
    pub fn new(
        job: &'a Job,
        profiles: &'a [RankProfile],
        names: &'a ObjectNames,
        machines: &BTreeMap<String, Machine>,
    ) -> Self {
        let bound = job
            .ranks
            .iter()
            .zip(profiles)
            // A trace stores the modelled machine, whose CPUs are not the CPUs that the rank was bound to.
            .filter(|(rank, _)| rank.metadata.tracing.is_none())
            .filter_map(|(rank, profile)| {
                Some(BoundRank {
                    rank: rank.rank,
                    host: &rank.host,
                    binding: rank.metadata.binding.as_ref(),
                    machine: machines.get(&rank.host)?,
                    profile,
                })
            });
        let bound: Vec<BoundRank> = bound.collect();
        Self {
            job,
            profiles,
            names,
            groups: group_ranks(profiles),
            findings: audit(&bound),
        }
    }

    /// Ranks that behave alike.
    pub fn groups(&self) -> &RankGroups {
        &self.groups
    }

    fn rank(&self, position: usize) -> &RankRecording {
        &self.job.ranks[position]
    }

    /// Words such as `ranks 3 and 41`.
    fn ranks_of(&self, members: &[usize]) -> String {
        rank_words(&self.numbers(members))
    }

    fn numbers(&self, members: &[usize]) -> Vec<u32> {
        members
            .iter()
            .map(|&position| self.rank(position).rank)
            .collect()
    }

    /// Number of each rank's group, from 0; `None` for ranks with too few samples.
    fn group_numbers(&self) -> Vec<Option<usize>> {
        let mut numbers = vec![None; self.profiles.len()];
        for (number, group) in self.groups.groups.iter().enumerate() {
            for &position in &group.members {
                numbers[position] = Some(number);
            }
        }
        numbers
    }

    /// Differences of a group from the largest group, in a sentence.
    fn outlier(&self, number: usize) -> String {
        let (most, group) = (&self.groups.groups[0], &self.groups.groups[number]);
        let differences = group.differences(most);
        // If all accesses are more remote, remote accesses to single objects are no additional difference.
        let is_remote = |difference: &&Difference| matches!(difference, Difference::Remote { .. });
        let says_all = differences.iter().any(|difference| is_remote(&difference));
        let named = differences.iter().filter(|difference| {
            !(says_all && matches!(difference, Difference::ObjectRemote { .. }))
        });
        let mut parts: Vec<String> = named
            .take(DIFFERENCES_MAX)
            .map(|difference| self.difference(difference))
            .collect();
        parts.extend(self.placement(&group.members));
        if parts.is_empty() {
            parts.push("like the others in each object, but not in all".to_owned());
        }
        format!("{}: {}", self.ranks_of(&group.members), parts.join(", "))
    }

    fn difference(&self, difference: &Difference) -> String {
        let name = |object| printable(self.names.of(object));
        match *difference {
            Difference::Remote { here, there } => {
                format!("{} remote (most ranks {})", percent(here), percent(there))
            }
            Difference::Share {
                object,
                here,
                there,
            } => format!(
                "{} of the accesses are to {} (most ranks {})",
                percent(here),
                name(object),
                percent(there)
            ),
            Difference::ObjectRemote {
                object,
                here,
                there,
            } => format!(
                "{} is {} remote (most ranks {})",
                name(object),
                percent(here),
                percent(there)
            ),
            Difference::Pattern {
                object,
                here,
                there,
            } => format!(
                "the pattern of {} is {here} (most ranks {there})",
                name(object)
            ),
        }
    }

    /// Words such as `bound to node 1 with memory on node 0`, if this is true of all members.
    fn placement(&self, members: &[usize]) -> Option<String> {
        let mut places = members.iter().map(|&position| {
            let profile = &self.profiles[position];
            let memory = profile.memory_nodes.iter();
            Some((
                most_nodes(profile.cpu_nodes.iter().map(|(node, n)| (*node, *n)))?,
                most_nodes(memory.map(|(node, used)| (*node, used.samples)))?,
            ))
        });
        let (cpus, memory) = places.next()??;
        let same =
            |place: Option<(NodeList, NodeList)>| place == Some((cpus.clone(), memory.clone()));
        let is_apart = !memory.as_slice().iter().any(|node| cpus.contains(*node));
        let is_bound = members
            .iter()
            .all(|&position| self.rank(position).metadata.binding.is_some());
        let verb = if is_bound { "bound to" } else { "running on" };
        (is_apart && places.all(same))
            .then(|| format!("{verb} {} with memory on {}", nodes(&cpus), nodes(&memory)))
    }
}

/// The smallest set of nodes with most of the samples.
fn most_nodes(by_node: impl Iterator<Item = (NodeId, f64)>) -> Option<NodeList> {
    let mut descending: Vec<(NodeId, f64)> = by_node.collect();
    let all: f64 = descending.iter().map(|(_, samples)| samples).sum();
    descending.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let mut covered = 0.0;
    let mut chosen = Vec::new();
    for (node, samples) in descending {
        if covered >= MOST * all {
            break;
        }
        covered += samples;
        chosen.push(node);
    }
    (all > 0.0).then(|| chosen.into_iter().collect())
}

/// Words such as `node 1` or `nodes 0-1`.
fn nodes(list: &NodeList) -> String {
    match list.as_slice() {
        [only] => format!("node {only}"),
        _ => format!("nodes {list}"),
    }
}

/// Sums over the ranks of a host.
#[derive(Clone, Debug, Default)]
struct Host {
    ranks: Vec<usize>,
    total: ObjectUse,
    /// Maximum of the ranks' shares of lost time.
    lost_share: f64,
    /// Sum of the ranks' maximum memory in bytes; `None` if it was not recorded.
    memory_bytes: Option<u64>,
    /// Nodes whose memory was used; empty if they are not known.
    nodes: BTreeMap<NodeId, HostNode>,
}

#[derive(Clone, Debug, Default)]
struct HostNode {
    /// Accesses to the node's memory.
    used: ObjectUse,
    /// Memory of the ranks on the node; `None` if it was not recorded.
    memory_bytes: Option<u64>,
}

/// Adds bytes, if they are known.
fn add_bytes(sum: &mut Option<u64>, bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
    }
}

impl JobContent<'_> {
    fn hosts(&self) -> BTreeMap<&str, Host> {
        let mut hosts: BTreeMap<&str, Host> = BTreeMap::new();
        for (position, profile) in self.profiles.iter().enumerate() {
            let host = hosts.entry(&self.rank(position).host).or_default();
            host.ranks.push(position);
            host.total.add(&profile.total);
            for (node, used) in &profile.memory_nodes {
                let of_host = host.nodes.entry(*node).or_default();
                of_host.used.add(used);
                add_bytes(&mut of_host.memory_bytes, profile.node_bytes(*node));
            }
            add_bytes(&mut host.memory_bytes, profile.memory_bytes);
            host.lost_share = host.lost_share.max(profile.lost_share());
        }
        hosts
    }
}

/// CPUs to which a rank was bound, as the kernel lists them; `?` if they are not known.
fn cpus(binding: Option<&Binding>) -> String {
    binding.map_or_else(|| "?".to_owned(), |binding| printable(&binding.cpus))
}
