//! Checks the CPUs, memory and GPUs that the ranks of a host were bound to.

use std::collections::{BTreeMap, BTreeSet};

use nearpage_machine::{CpuId, CpuList, DeviceKind, Machine, NodeId, NodeList};
use nearpage_recording::Binding;

use super::RankProfile;

/// Smallest reported share of a rank's accesses to memory of nodes without its CPUs.
const ELSEWHERE_SHARE_MIN: f64 = 0.25;
/// Smallest number of accesses with known nodes for computing this share.
const ELSEWHERE_SAMPLES_MIN: f64 = 100.0;

/// A rank with its binding.
#[derive(Clone, Copy, Debug)]
pub struct BoundRank<'a> {
    /// Number of the rank.
    pub rank: u32,
    /// Host on which the rank ran.
    pub host: &'a str,
    /// CPUs, memory and GPUs that the rank was allowed to use; `None` for old recordings.
    pub binding: Option<&'a Binding>,
    /// Machine of the host.
    pub machine: &'a Machine,
    /// Accesses of the rank.
    pub profile: &'a RankProfile,
}

/// A problem with the binding of ranks.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are what each line names")]
pub enum BindingFinding {
    /// Several ranks of a host may each use all CPUs of more than one node.
    Unbound { host: String, ranks: Vec<u32> },
    /// Ranks that were bound may use the same CPUs.
    SharedCpus {
        host: String,
        ranks: Vec<u32>,
        cpus: CpuList,
    },
    /// Ranks that were bound may use different CPUs of the same cores.
    SharedCores {
        host: String,
        ranks: Vec<u32>,
        cpus: CpuList,
    },
    /// Ranks have CPUs of several nodes although their CPUs would fit on one node.
    Straddling {
        host: String,
        ranks: Vec<u32>,
        nodes: NodeList,
    },
    /// Ranks may not use the memory of the nodes with their CPUs.
    MemoryForbidden {
        host: String,
        ranks: Vec<u32>,
        cpu_nodes: NodeList,
        memory_nodes: NodeList,
    },
    /// Ranks have much of their memory on nodes without their CPUs.
    MemoryElsewhere {
        host: String,
        ranks: Vec<u32>,
        cpu_nodes: NodeList,
        memory_nodes: NodeList,
        /// Share of the accesses to these memory nodes; the largest share of any rank.
        share: f64,
    },
    /// Ranks have all their GPUs next to nodes without their CPUs.
    GpuElsewhere {
        host: String,
        ranks: Vec<u32>,
        cpu_nodes: NodeList,
        gpu_nodes: NodeList,
    },
}

/// A rank's lists of CPUs and nodes, parsed. A list that does not parse counts as unknown.
struct Parsed<'a> {
    rank: &'a BoundRank<'a>,
    cpus: CpuList,
    memory_nodes: NodeList,
    cpu_nodes: NodeList,
    is_bound: bool,
}

impl<'a> Parsed<'a> {
    fn of(rank: &'a BoundRank<'a>) -> Option<Self> {
        let binding = rank.binding?;
        let cpus: CpuList = binding.cpus.parse().ok()?;
        let memory_nodes: NodeList = binding.memory_nodes.parse().ok()?;
        let machine = rank.machine;
        // The kernel's list may name CPUs that the machine does not have.
        let known = cpus
            .as_slice()
            .iter()
            .filter(|cpu| machine.node_of(**cpu).is_some());
        let cpus: CpuList = known.copied().collect();
        let nodes = cpus
            .as_slice()
            .iter()
            .filter_map(|cpu| machine.node_of(*cpu));
        let cpu_nodes: NodeList = nodes.collect();
        if cpus.as_slice().is_empty() {
            return None;
        }
        let all = machine.cpus();
        let is_bound = all.as_slice().iter().any(|cpu| !cpus.contains(*cpu));
        Some(Self {
            rank,
            cpus,
            memory_nodes,
            cpu_nodes,
            is_bound,
        })
    }
}

/// Finds problems with the binding of these ranks, host by host.
pub fn audit(ranks: &[BoundRank]) -> Vec<BindingFinding> {
    let mut hosts: BTreeMap<&str, Vec<Parsed>> = BTreeMap::new();
    for rank in ranks {
        if let Some(parsed) = Parsed::of(rank) {
            hosts.entry(rank.host).or_default().push(parsed);
        }
    }
    let mut found = Vec::new();
    for (host, ranks) in &hosts {
        unbound(host, ranks, &mut found);
        sharing(host, ranks, &mut found);
        straddling(host, ranks, &mut found);
        memory(host, ranks, &mut found);
        gpus(host, ranks, &mut found);
    }
    found
}

fn unbound(host: &str, ranks: &[Parsed], found: &mut Vec<BindingFinding>) {
    let unbound: Vec<u32> = ranks
        .iter()
        .filter(|parsed| !parsed.is_bound && parsed.cpu_nodes.as_slice().len() > 1)
        .map(|parsed| parsed.rank.rank)
        .collect();
    if ranks.len() > 1 && !unbound.is_empty() {
        found.push(BindingFinding::Unbound {
            host: host.to_owned(),
            ranks: unbound,
        });
    }
}

/// Finds ranks that share CPUs, and ranks that share cores but not CPUs. Ranks that share directly or through other
/// ranks form one finding.
fn sharing(host: &str, ranks: &[Parsed], found: &mut Vec<BindingFinding>) {
    let bound: Vec<&Parsed> = ranks.iter().filter(|parsed| parsed.is_bound).collect();
    let Some(machine) = bound.first().map(|parsed| parsed.rank.machine) else {
        return;
    };
    let itself = |cpu: CpuId| cpu;
    let mut sharing_cpus = BTreeSet::new();
    for (ranks, cpus) in sharing_by(&bound, itself) {
        sharing_cpus.extend(ranks.iter().copied());
        let host = host.to_owned();
        found.push(BindingFinding::SharedCpus { host, ranks, cpus });
    }
    let mut first_of_core: BTreeMap<CpuId, CpuId> = BTreeMap::new();
    for core in &machine.cores {
        for cpu in core {
            first_of_core.insert(*cpu, core[0]);
        }
    }
    let core = |cpu: CpuId| first_of_core.get(&cpu).copied().unwrap_or(cpu);
    for (ranks, cpus) in sharing_by(&bound, core) {
        if ranks.iter().any(|rank| !sharing_cpus.contains(rank)) {
            let host = host.to_owned();
            found.push(BindingFinding::SharedCores { host, ranks, cpus });
        }
    }
}

/// Sets of ranks that share units (CPUs or cores; `unit` maps a CPU to its unit), and the CPUs of the shared units.
fn sharing_by(bound: &[&Parsed], unit: impl Fn(CpuId) -> CpuId) -> Vec<(Vec<u32>, CpuList)> {
    let mut users: BTreeMap<CpuId, BTreeMap<u32, Vec<CpuId>>> = BTreeMap::new();
    for parsed in bound {
        for &cpu in parsed.cpus.as_slice() {
            let ranks = users.entry(unit(cpu)).or_default();
            ranks.entry(parsed.rank.rank).or_default().push(cpu);
        }
    }
    let mut sets: Vec<(BTreeSet<u32>, BTreeSet<CpuId>)> = Vec::new();
    for ranks in users.into_values().filter(|ranks| ranks.len() > 1) {
        let cpus = ranks.values().flatten().copied();
        let mut joined: (BTreeSet<u32>, BTreeSet<CpuId>) =
            (ranks.keys().copied().collect(), cpus.collect());
        let (touching, apart): (Vec<_>, Vec<_>) = std::mem::take(&mut sets)
            .into_iter()
            .partition(|(members, _)| !members.is_disjoint(&joined.0));
        for (members, cpus) in touching {
            joined.0.extend(members);
            joined.1.extend(cpus);
        }
        sets = apart;
        sets.push(joined);
    }
    let list = |(ranks, cpus): (BTreeSet<u32>, BTreeSet<CpuId>)| {
        (ranks.into_iter().collect(), cpus.into_iter().collect())
    };
    sets.into_iter().map(list).collect()
}

fn straddling(host: &str, ranks: &[Parsed], found: &mut Vec<BindingFinding>) {
    let mut by_nodes: BTreeMap<Vec<NodeId>, Vec<u32>> = BTreeMap::new();
    for parsed in ranks.iter().filter(|parsed| parsed.is_bound) {
        let nodes = parsed.cpu_nodes.as_slice();
        let largest = parsed
            .rank
            .machine
            .nodes
            .iter()
            .map(|node| node.cpus.len())
            .max();
        let fits = parsed.cpus.as_slice().len() <= largest.unwrap_or(0);
        if nodes.len() > 1 && fits {
            by_nodes
                .entry(nodes.to_vec())
                .or_default()
                .push(parsed.rank.rank);
        }
    }
    for (nodes, ranks) in by_nodes {
        found.push(BindingFinding::Straddling {
            host: host.to_owned(),
            ranks,
            nodes: nodes.into_iter().collect(),
        });
    }
}

fn memory(host: &str, ranks: &[Parsed], found: &mut Vec<BindingFinding>) {
    type Places = (Vec<NodeId>, Vec<NodeId>);
    let mut forbidden: BTreeMap<Places, Vec<u32>> = BTreeMap::new();
    let mut elsewhere: BTreeMap<Places, (Vec<u32>, f64)> = BTreeMap::new();
    for parsed in ranks {
        let machine = parsed.rank.machine;
        let with_memory = machine.nodes_with_memory();
        let cpu_nodes = parsed.cpu_nodes.as_slice().to_vec();
        let allowed = parsed.memory_nodes.as_slice();
        let may = |node: &NodeId| allowed.contains(node) || !with_memory.contains(node);
        if !cpu_nodes.iter().any(may) {
            let places = (cpu_nodes, allowed.to_vec());
            forbidden.entry(places).or_default().push(parsed.rank.rank);
            continue;
        }
        let by_node = &parsed.rank.profile.memory_nodes;
        let all: f64 = by_node.values().map(|used| used.samples).sum();
        let far = by_node.iter().filter(|(node, _)| !cpu_nodes.contains(node));
        let far: Vec<(NodeId, f64)> = far.map(|(node, used)| (*node, used.samples)).collect();
        let share = far.iter().map(|(_, samples)| samples).sum::<f64>() / all;
        if all >= ELSEWHERE_SAMPLES_MIN && share >= ELSEWHERE_SHARE_MIN {
            // Names only nodes with a tenth of the remote accesses or more.
            let named = far
                .iter()
                .filter(|(_, samples)| *samples >= 0.1 * share * all);
            let places = (cpu_nodes, named.map(|(node, _)| *node).collect());
            let (ranks, greatest) = elsewhere.entry(places).or_default();
            ranks.push(parsed.rank.rank);
            *greatest = greatest.max(share);
        }
    }
    for ((cpu_nodes, memory_nodes), ranks) in forbidden {
        found.push(BindingFinding::MemoryForbidden {
            host: host.to_owned(),
            ranks,
            cpu_nodes: cpu_nodes.into_iter().collect(),
            memory_nodes: memory_nodes.into_iter().collect(),
        });
    }
    for ((cpu_nodes, memory_nodes), (ranks, share)) in elsewhere {
        found.push(BindingFinding::MemoryElsewhere {
            host: host.to_owned(),
            ranks,
            cpu_nodes: cpu_nodes.into_iter().collect(),
            memory_nodes: memory_nodes.into_iter().collect(),
            share,
        });
    }
}

fn gpus(host: &str, ranks: &[Parsed], found: &mut Vec<BindingFinding>) {
    let mut elsewhere: BTreeMap<(Vec<NodeId>, Vec<NodeId>), Vec<u32>> = BTreeMap::new();
    for parsed in ranks.iter().filter(|parsed| parsed.is_bound) {
        let machine = parsed.rank.machine;
        let numbers = parsed.rank.binding.and_then(Binding::gpu_numbers);
        let node = |number: u32| machine.device(DeviceKind::Gpu, number)?.node;
        // Without the node of each GPU, nothing is reported.
        let nodes: Option<NodeList> = numbers.unwrap_or_default().into_iter().map(node).collect();
        let gpu_nodes = nodes.unwrap_or_default();
        let cpu_nodes = &parsed.cpu_nodes;
        let is_near = gpu_nodes
            .as_slice()
            .iter()
            .any(|node| cpu_nodes.contains(*node));
        if !gpu_nodes.as_slice().is_empty() && !is_near {
            let places = (cpu_nodes.as_slice().to_vec(), gpu_nodes.as_slice().to_vec());
            elsewhere.entry(places).or_default().push(parsed.rank.rank);
        }
    }
    for ((cpu_nodes, gpu_nodes), ranks) in elsewhere {
        found.push(BindingFinding::GpuElsewhere {
            host: host.to_owned(),
            ranks,
            cpu_nodes: cpu_nodes.into_iter().collect(),
            gpu_nodes: gpu_nodes.into_iter().collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use nearpage_machine::{Device, preset};

    use super::*;
    use crate::ObjectUse;

    /// Findings for ranks on a host with four nodes of two CPUs; each rank has its CPUs and permitted nodes.
    fn audited(ranks: &[(&str, &str)], profile: &RankProfile) -> Vec<BindingFinding> {
        let machine = preset("opteron-4").unwrap();
        let bindings: Vec<Binding> = ranks
            .iter()
            .map(|(cpus, nodes)| Binding {
                cpus: (*cpus).to_owned(),
                memory_nodes: (*nodes).to_owned(),
                gpus: None,
            })
            .collect();
        let bound: Vec<BoundRank> = bindings
            .iter()
            .enumerate()
            .map(|(rank, binding)| BoundRank {
                rank: rank as u32,
                host: "n1",
                binding: Some(binding),
                machine: &machine,
                profile,
            })
            .collect();
        audit(&bound)
    }

    fn list(text: &str) -> NodeList {
        text.parse().unwrap()
    }

    #[test]
    fn ranks_bound_apart_are_as_they_should_be() {
        let machine = preset("opteron-4").unwrap();
        let cpus: Vec<String> = machine
            .nodes
            .iter()
            .map(|node| node.cpus[0].to_string())
            .collect();
        let ranks: Vec<(&str, &str)> = cpus.iter().map(|cpu| (cpu.as_str(), "0-3")).collect();
        assert_eq!(audited(&ranks, &RankProfile::default()), []);
        // A single rank that uses the whole machine is no problem either.
        assert_eq!(audited(&[("0-99", "0-3")], &RankProfile::default()), []);
        // A list that does not parse is unknown.
        assert_eq!(
            audited(&[("x", "0"), ("", "")], &RankProfile::default()),
            []
        );
    }

    #[test]
    fn ranks_that_share_are_named_together() {
        let none = RankProfile::default();
        let found = audited(
            &[("0", "0-3"), ("0-1", "0-3"), ("1", "0-3"), ("2", "0-3")],
            &none,
        );
        let shared = found.iter().find_map(|finding| match finding {
            BindingFinding::SharedCpus { ranks, cpus, .. } => {
                Some((ranks.clone(), cpus.to_string()))
            }
            _ => None,
        });
        assert_eq!(shared, Some((vec![0, 1, 2], "0-1".to_owned())), "{found:?}");
        let unbound = audited(&[("0-99", "0-3"), ("0-99", "0-3")], &none);
        let expected = BindingFinding::Unbound {
            host: "n1".to_owned(),
            ranks: vec![0, 1],
        };
        assert_eq!(unbound, [expected]);
    }

    #[test]
    fn memory_where_a_rank_has_no_cpus_is_reported() {
        let machine = preset("opteron-4").unwrap();
        let cpu = machine.nodes[1].cpus[0].to_string();
        let profile = RankProfile {
            memory_nodes: [(0, 580.0), (1, 420.0)]
                .map(|(node, samples)| {
                    let used = ObjectUse {
                        samples,
                        ..ObjectUse::default()
                    };
                    (NodeId(node), used)
                })
                .into(),
            ..RankProfile::default()
        };
        let found = audited(&[(&cpu, "0-3")], &profile);
        let [
            BindingFinding::MemoryElsewhere {
                cpu_nodes,
                memory_nodes,
                share,
                ..
            },
        ] = &found[..]
        else {
            panic!("{found:?}")
        };
        assert_eq!((cpu_nodes, memory_nodes), (&list("1"), &list("0")));
        assert!((share - 0.58).abs() < 1e-9);
        let forbidden = audited(&[(&cpu, "0")], &RankProfile::default());
        assert!(
            matches!(&forbidden[..], [BindingFinding::MemoryForbidden { .. }]),
            "{forbidden:?}"
        );
        // Two CPUs, which would fit on one node, from two nodes.
        let two = format!("{},{}", machine.nodes[0].cpus[0], machine.nodes[1].cpus[0]);
        let straddling = audited(&[(&two, "0-3")], &RankProfile::default());
        let fits = machine.nodes[0].cpus.len() >= 2;
        let is_reported = matches!(&straddling[..], [BindingFinding::Straddling { .. }]);
        assert_eq!(is_reported, fits, "{straddling:?}");
    }

    #[test]
    fn gpus_on_another_node_are_reported() {
        let mut machine = preset("opteron-4").unwrap();
        let gpu = |number, node| Device {
            kind: DeviceKind::Gpu,
            number,
            pci: format!("0000:0{number}:00.0"),
            node,
        };
        machine.devices = vec![
            gpu(0, Some(NodeId(0))),
            gpu(1, Some(NodeId(3))),
            gpu(2, None),
        ];
        let found = |gpus: Option<&str>| {
            let binding = Binding {
                cpus: machine.nodes[0].cpus[0].to_string(),
                memory_nodes: "0-3".to_owned(),
                gpus: gpus.map(str::to_owned),
            };
            audit(&[BoundRank {
                rank: 7,
                host: "n1",
                binding: Some(&binding),
                machine: &machine,
                profile: &RankProfile::default(),
            }])
        };
        let expected = BindingFinding::GpuElsewhere {
            host: "n1".to_owned(),
            ranks: vec![7],
            cpu_nodes: list("0"),
            gpu_nodes: list("3"),
        };
        assert_eq!(found(Some("1")), [expected]);
        // One GPU is near, or a GPU's node or number is unknown.
        for fine in [
            Some("0,1"),
            Some("1,2"),
            Some("1,9"),
            Some("GPU-8932"),
            None,
        ] {
            assert_eq!(found(fine), [], "{fine:?}");
        }
    }
}
