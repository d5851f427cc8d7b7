//! Collects threads, objects, lines of code, CPUs and the order of lines from the file.

mod code;
mod objects;
mod threads;

use std::collections::{BTreeMap, BTreeSet};

use nearpage_machine::{CpuId, Machine, Node, NodeId};
use rustc_hash::FxHashMap;

use self::code::Code;
use self::objects::Objects;
use self::threads::Threads;
use super::BadLine;
use super::row::Row;
use crate::import::undecoded::Undecoded;
use crate::import::{bare_machine, page_node};
use crate::source_lines::SourceLines;
use crate::{Access, Resolution, SampleCounts, Tables};

/// More nodes, and more CPUs, are refused.
const NODES_MAX: usize = 1024;
const CPUS_MAX: usize = 1 << 16;

pub(super) struct Collected {
    topology: Topology,
    threads: Threads,
    objects: Objects,
    code: Code,
    /// Time, byte offset in the body and line number of every access.
    order: Vec<(u64, usize, u64)>,
    /// Byte offset and line number of every access, by time; set by [`Self::finish`].
    places: Vec<(usize, u64)>,
    times: Option<(u64, u64)>,
    tables: Tables,
    undecoded: Undecoded,
    pub notes: Vec<String>,
}

/// Which CPU is on which node.
struct Topology {
    /// The machine that the user named; otherwise, once finished, the machine derived from the file.
    machine: Option<Machine>,
    is_given: bool,
    nodes_of_cpus: FxHashMap<CpuId, Option<NodeId>>,
    nodes: BTreeSet<NodeId>,
}

impl Topology {
    fn new(machine: Option<Machine>) -> Self {
        let nodes = machine.iter().flat_map(|machine| &machine.nodes);
        Self {
            nodes_of_cpus: nodes
                .clone()
                .flat_map(|node| node.cpus.iter().map(|cpu| (*cpu, Some(node.id))))
                .collect(),
            nodes: nodes.map(|node| node.id).collect(),
            is_given: machine.is_some(),
            machine,
        }
    }

    fn add(&mut self, row: &Row<'_>) -> Result<(), String> {
        let cpu = row.cpu;
        if self.is_given {
            let Some(known) = self.nodes_of_cpus.get(&cpu) else {
                return Err(format!(
                    "CPU {cpu} is not on the machine that --machine names"
                ));
            };
            for node in row.cpu_node.iter().chain(&row.node) {
                if !self.nodes.contains(node) {
                    return Err(format!(
                        "node {node} is not on the machine that --machine names"
                    ));
                }
            }
            return same_node(cpu, *known, row.cpu_node);
        }
        self.nodes.extend(row.cpu_node.iter().chain(&row.node));
        let known = self.nodes_of_cpus.entry(cpu).or_insert(row.cpu_node);
        same_node(cpu, *known, row.cpu_node)?;
        *known = known.or(row.cpu_node);
        if self.nodes.len() > NODES_MAX || self.nodes_of_cpus.len() > CPUS_MAX {
            return Err(format!("more than {NODES_MAX} nodes or {CPUS_MAX} CPUs"));
        }
        Ok(())
    }

    /// Derives a machine from the file if the user named none.
    fn finish(&mut self, notes: &mut Vec<String>) {
        if self.is_given {
            return;
        }
        notes.push(match self.nodes.is_empty() {
            true => "the file has no nodes (cpu_node, node): one is assumed; name the machine with --machine",
            false => "the machine is what the file shows: the nodes and CPUs with samples, without distances; name the machine with --machine",
        }.to_owned());
        let first = *self.nodes.first().unwrap_or(&NodeId(0));
        let mut cpus: BTreeMap<NodeId, Vec<CpuId>> = BTreeMap::from([(first, Vec::new())]);
        cpus.extend(self.nodes.iter().map(|node| (*node, Vec::new())));
        for (cpu, node) in &mut self.nodes_of_cpus {
            let node = *node.get_or_insert(first);
            cpus.entry(node).or_default().push(*cpu);
        }
        let nodes = cpus.into_iter().map(|(id, mut cpus)| {
            cpus.sort_unstable();
            Node {
                id,
                cpus,
                memory_bytes: None,
                memory_kind: None,
            }
        });
        self.machine = Some(Machine {
            source: "samples in CSV".to_owned(),
            ..bare_machine(nodes.collect())
        });
    }
}

fn same_node(cpu: CpuId, known: Option<NodeId>, stated: Option<NodeId>) -> Result<(), String> {
    match (known, stated) {
        (Some(known), Some(stated)) if known != stated => Err(format!(
            "CPU {cpu} is on node {known}, and cpu_node says {stated}"
        )),
        _ => Ok(()),
    }
}

impl Collected {
    pub fn new(machine: Option<Machine>) -> Self {
        Self {
            topology: Topology::new(machine),
            threads: Threads::default(),
            objects: Objects::default(),
            code: Code::default(),
            order: Vec::new(),
            places: Vec::new(),
            times: None,
            tables: Tables::default(),
            undecoded: Undecoded::default(),
            notes: vec!["imported from samples in CSV; times are the file's own".to_owned()],
        }
    }

    /// Adds the row at byte `begin` of the body, which is line `number`.
    pub fn add(&mut self, row: &Row<'_>, (begin, number): (usize, u64)) -> Result<(), String> {
        let thread = self.threads.add(row)?;
        if !row.is_access() {
            return Ok(());
        }
        self.topology.add(row)?;
        if let Some(source) = row.data_src {
            self.undecoded.take(source);
        }
        self.objects.add(row, thread, number)?;
        self.code.add(row)?;
        let (first, last) = self.times.unwrap_or((row.time_ns, row.time_ns));
        self.times = Some((first.min(row.time_ns), last.max(row.time_ns)));
        self.order.push((row.time_ns, begin, number));
        Ok(())
    }

    /// Sorts the accesses and makes the tables, after all rows were added.
    pub fn finish(&mut self) -> Result<(), BadLine> {
        self.topology.finish(&mut self.notes);
        self.notes.extend(self.undecoded.note());
        if !self.order.is_sorted_by_key(|(time_ns, ..)| time_ns) {
            self.order.sort_by_key(|(time_ns, ..)| *time_ns);
        }
        let order = std::mem::take(&mut self.order).into_iter();
        self.places = order.map(|(_, begin, number)| (begin, number)).collect();
        self.tables.threads = self.threads.finish();
        let module = self.code.module();
        self.objects
            .finish(&self.threads, module, &mut self.tables, &mut self.notes)?;
        let pids = self.tables.threads.iter().map(|thread| thread.pid);
        let pids: BTreeSet<u32> = pids.collect();
        self.code.finish(&pids, &mut self.tables);
        Ok(())
    }

    /// The access of a row that went through [`Collected::add`].
    pub fn access(&self, row: &Row<'_>) -> Access {
        let own = self.topology.nodes_of_cpus.get(&row.cpu).copied().flatten();
        let derived = page_node(self.machine(), own, row.level);
        Access {
            time_ns: row.time_ns,
            thread: self.threads.index(row),
            cpu: row.cpu,
            address: self.objects.address(row),
            instruction: self.code.address(row),
            kind: row.kind,
            level: row.level,
            resolution: Resolution::Exact,
            skid_bytes: 0,
            weight: row.weight,
            cost_ns: row.cost_ns,
            page_node: row.node.or(derived),
        }
    }

    pub fn counts(&self) -> SampleCounts {
        self.threads.counts()
    }

    /// Byte offset in the body and line number of every access, in order of time.
    pub fn places(&self) -> &[(usize, u64)] {
        &self.places
    }

    /// Times of the first and last access.
    pub fn times(&self) -> (u64, u64) {
        self.times.unwrap_or_default()
    }

    pub fn machine(&self) -> &Machine {
        self.topology.machine.as_ref().expect("it is finished")
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    pub fn source_lines(&self) -> &SourceLines {
        &self.code.lines
    }
}
