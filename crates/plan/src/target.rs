//! The machine and the threads of a run, for which a plan is translated.

use std::collections::HashMap;

use nearpage_machine::{CpuId, DeviceKind, Machine, NodeId, NodeList};

use crate::Error;
use crate::file::{joined, team_and_order};

/// Mechanism that brings pages to their nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// Memory policies.
    #[default]
    Bind,
    /// A thread on each node touches its pages first (Marathe §5).
    Touch,
}

/// Support for placements that begin later than the object's allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatePlacement {
    /// There is none: the object is placed at its allocation, and stays there.
    #[default]
    Never,
    /// When the second thread is created, or a phase begins, pages move to the nodes that the plan says, once.
    Once,
    /// All that [`crate::Start`] says, as on simulated machines: pages also go near the threads that use them next, and
    /// near a thread that runs alone.
    AsPlanned,
}

/// Which threads are pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// No thread: `OMP_PLACES`, an affinity mask or the scheduler decides where threads run.
    #[default]
    None,
    /// Threads of the plan's teams, each by its number in its team; without a plan, all threads in order of creation.
    Teams,
    /// All threads, in order of creation.
    CreationOrder,
}

/// The machine and the run that a plan is translated for.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// CPU of each thread of a team, by the team's name: as many as the team has in this run.
    pub teams: HashMap<String, Vec<CpuId>>,
    /// CPU of each thread for teams that are not in `teams`, and for [`Pinning::CreationOrder`].
    pub threads: Vec<CpuId>,
    /// Which threads are pinned to those CPUs.
    pub pinning: Pinning,
    /// Mechanism that brings pages to their nodes.
    pub mechanism: Mechanism,
    /// The system's page size in bytes.
    pub page_bytes: u32,
    /// Size of a huge page in bytes; at least `page_bytes`.
    pub huge_page_bytes: u32,
    /// Most mappings that placement may add to a process.
    pub mappings_max: u32,
    /// `touch`: most pages touched at a time in a process, without those of freed objects.
    pub touch_pages_max: u64,
    /// `touch`: number of heap allocations gathered before the nodes are visited, at least 1.
    pub touch_group: u32,
    /// True if pages may have a copy on each node, as on simulated machines. Otherwise objects to be replicated are
    /// interleaved, with a warning.
    pub has_copies: bool,
    /// Support for placements that begin later than the allocation.
    pub later: LatePlacement,
    /// True: say at exit what was placed.
    pub summary: bool,
}

impl<'a> Target<'a> {
    /// A target for a recorded run: nothing is pinned, mappings have no limit, and pages move once.
    pub fn of_recorded(
        machine: &'a Machine,
        teams: HashMap<String, Vec<CpuId>>,
        threads: Vec<CpuId>,
    ) -> Self {
        let page_bytes = machine.page_bytes as u32;
        Self {
            machine,
            teams,
            threads,
            pinning: Pinning::None,
            mechanism: Mechanism::Bind,
            page_bytes,
            huge_page_bytes: page_bytes,
            mappings_max: u32::MAX,
            touch_pages_max: u64::MAX,
            touch_group: 1,
            has_copies: false,
            later: LatePlacement::Once,
            summary: false,
        }
    }
}

impl Target<'_> {
    /// CPUs of the team's threads, in order.
    pub(crate) fn cpus(&self, team: &str) -> &[CpuId] {
        self.teams.get(team).unwrap_or(&self.threads)
    }

    /// The nodes of the team's threads, in order; at least one. `main+worker` has the threads of `main`, then those of
    /// `worker`; `worker:reversed` has the last thread of `worker` first.
    pub(crate) fn thread_nodes(&self, team: &str) -> Result<Vec<NodeId>, Error> {
        let is_known = |name: &str| self.teams.contains_key(name);
        let (team, is_reversed) = team_and_order(team, is_known);
        let parts = joined(team, is_known);
        let cpus = parts.flat_map(|part| self.cpus(part));
        let nodes: Option<Vec<NodeId>> = cpus.map(|&cpu| self.node_of(cpu)).collect();
        let mut nodes = nodes
            .filter(|nodes| !nodes.is_empty())
            .ok_or_else(|| Error::NoCpu {
                machine: self.machine.name.clone(),
            })?;
        if is_reversed {
            nodes.reverse();
        }
        Ok(nodes)
    }

    /// The node with memory that is nearest to a CPU.
    fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        let home = self.machine.node_of(cpu)?;
        let away = |node: &NodeId| self.machine.weight(home, *node).unwrap_or(f64::MAX);
        let others = self.machine.nodes_with_memory();
        match others.contains(&home) {
            true => Some(home),
            false => others
                .into_iter()
                .min_by(|a, b| away(a).total_cmp(&away(b))),
        }
    }

    /// Refuses a node that the machine does not have.
    pub(crate) fn check_node(&self, node: NodeId, rule: &str) -> Result<NodeId, Error> {
        let known = self.machine.node_ids();
        match known.contains(&node) {
            true => Ok(node),
            false => Err(Error::NoSuchNode {
                rule: rule.to_owned(),
                found: node.0,
                machine: self.machine.name.clone(),
                known: known.into_iter().collect::<NodeList>().to_string(),
            }),
        }
    }

    /// The node next to a device.
    pub(crate) fn device_node(
        &self,
        kind: DeviceKind,
        number: u32,
        rule: &str,
    ) -> Result<NodeId, Error> {
        let machine = self.machine;
        let found = format!("{}{number}", kind.as_str());
        let Some(device) = machine.device(kind, number) else {
            let names: Vec<String> = machine.devices.iter().map(ToString::to_string).collect();
            let known = match names.is_empty() {
                true => "no device is known there".to_owned(),
                false => format!("there is {}", names.join(", ")),
            };
            return Err(Error::NoSuchDevice {
                rule: rule.to_owned(),
                found,
                machine: machine.name.clone(),
                known,
            });
        };
        let node = device.node.ok_or_else(|| Error::DeviceNowhere {
            rule: rule.to_owned(),
            found,
            machine: machine.name.clone(),
        })?;
        self.check_memory(node, rule)?;
        Ok(node)
    }

    /// Refuses a node that the machine does not have, or that has no memory.
    pub(crate) fn check_memory(&self, node: NodeId, rule: &str) -> Result<(), Error> {
        self.check_node(node, rule)?;
        let known = self.machine.nodes_with_memory();
        match known.contains(&node) {
            true => Ok(()),
            false => Err(Error::NoMemory {
                rule: rule.to_owned(),
                found: node.0,
                machine: self.machine.name.clone(),
                known: known.into_iter().collect::<NodeList>().to_string(),
            }),
        }
    }
}
