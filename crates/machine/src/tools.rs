//! Machines from the output of other tools: Intel's Memory Latency Checker (`mlc`, versions 3.5 to 3.11), lmbench's
//! `lat_mem_rd`, `numactl -H`, and the firmware's ratings (`hmat.rs`).
//!
//! | machine | source |
//! | --- | --- |
//! | latencies | `Measuring idle latencies`: in ns, rows are CPUs' nodes; random accesses where both kinds are there |
//! | read bandwidth | `Measuring Memory Bandwidths between nodes`: MB/s of 10^6 bytes |
//! | `[[loaded_latency]]` | `Measuring Loaded Latencies`: of all nodes at once, each CPU on its own node's memory; a node has an equal share of the bandwidth |
//! | notes | cache-to-cache latencies, which no model here uses |
//! | latencies | `lat_mem_rd`'s, where `mlc` has none (`lmbench.rs`); the firmware's where neither has |
//! | bandwidths of reads and writes, caches in front of memory | the firmware's, where `mlc` has none |
//! | CPUs, memory, distances | `numactl -H`; without it, one CPU per node with CPUs is assumed |
//!
//! The texts may be in one or several files, in any order, with other lines between them.

mod hmat;
mod lmbench;
mod sections;

use crate::{CpuId, Error, LoadedLatency, Machine, Matrix, MemoryCache, Node, NodeId, figures};

use hmat::Rated;
use sections::{Numactl, Pairs, Sections, Table};

/// Maximum number of bytes of all files together; the tools print some ten thousand.
const BYTES_MAX: usize = 16 << 20;
/// Readable inputs, for messages.
const EXPECTED: &str = "expected what `mlc`, `lat_mem_rd`, `numactl -H`, `acpidump` or `iasl -d` prints, or the table /sys/firmware/acpi/tables/HMAT; hwloc's XML needs no import, `--machine FILE` reads it";

impl Machine {
    /// Reads other tools' output from files, which have names for messages. The machine gets the name `name`.
    ///
    /// # Errors
    /// The files have neither a matrix nor nodes, a table is damaged, or the machine is invalid
    /// ([`Machine::validate`]).
    pub fn from_tools(files: &[(String, Vec<u8>)], name: &str) -> Result<Self, Error> {
        let origin = || {
            files
                .iter()
                .map(|(origin, _)| origin.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let whole = |message: &str| Error::Syntax {
            origin: origin(),
            line: 1,
            message: message.to_owned(),
        };
        if files.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > BYTES_MAX {
            return Err(whole(&format!("more than 16 MiB; {EXPECTED}")));
        }
        let mut sections = Sections::default();
        for (origin, bytes) in files {
            sections
                .read(bytes)
                .map_err(|(line, message)| Error::Syntax {
                    origin: origin.clone(),
                    line,
                    message,
                })?;
        }
        sections.lmbench.finish();
        let machine = machine(&sections, name).ok_or_else(|| {
            whole(&format!(
                "no latencies, no bandwidths and no nodes; {EXPECTED}"
            ))
        })?;
        machine.validate().map_err(|fault| Error::Invalid {
            origin: origin(),
            fault,
        })?;
        Ok(machine)
    }
}

/// Matrices of the first tool that has them: `mlc`, then `lat_mem_rd`, then the firmware.
struct Tables {
    latency_ns: Option<Table>,
    read: Option<Table>,
    write: Option<Table>,
    /// Source of the matrices, in words.
    source: String,
}

impl Tables {
    fn of(sections: &Sections) -> Self {
        let measured = sections.random_latency.clone();
        let measured = measured.or_else(|| sections.latency.clone());
        let bandwidth = sections.bandwidth.clone();
        let rated = sections.rated.as_ref();
        let has_mlc = measured.is_some() || bandwidth.is_some();
        let mlc = sections.version.as_ref();
        let mlc = mlc.map(|version| format!("Memory Latency Checker {version}"));
        let mlc = mlc.or_else(|| has_mlc.then(|| "Memory Latency Checker".to_owned()));
        let latency = Table::of_pairs(&sections.lmbench.latency_ns);
        let parts = [
            mlc,
            latency.is_some().then(|| "lmbench".to_owned()),
            rated.map(|_| "the firmware's ratings (ACPI HMAT)".to_owned()),
            sections.numactl.is_some().then(|| "numactl -H".to_owned()),
        ];
        let rated = |pairs: fn(&Rated) -> &Pairs| Table::of_pairs(pairs(rated?));
        Self {
            latency_ns: measured
                .or(latency)
                .or_else(|| rated(|rated| &rated.latency_ns)),
            read: bandwidth.or_else(|| rated(|rated| &rated.read)),
            write: rated(|rated| &rated.write),
            source: parts
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" and "),
        }
    }
}

fn machine(sections: &Sections, name: &str) -> Option<Machine> {
    let tables = Tables::of(sections);
    let mut notes = Vec::new();
    let nodes = match &sections.numactl {
        Some(numactl) => numactl.nodes.clone(),
        None => nodes_of(&[&tables.latency_ns, &tables.read], &mut notes)?,
    };
    let mut machine = Machine::of_nodes(name.to_owned(), nodes);
    machine.source = tables.source;
    let numactl = sections.numactl.as_ref();
    machine.distance = numactl.and_then(|numactl: &Numactl| numactl.distance.clone());
    let mut of = |table: &Option<Table>, unit| matrix(&machine, table.as_ref()?, unit, &mut notes);
    let latency_ns = of(&tables.latency_ns, 1.0);
    let read_bytes_per_s = of(&tables.read, 1e6);
    let write_bytes_per_s = of(&tables.write, 1e6);
    machine.latency_ns = latency_ns;
    machine.bandwidth.read_bytes_per_s = read_bytes_per_s;
    machine.bandwidth.write_bytes_per_s = write_bytes_per_s;
    machine.loaded_latencies = loaded_latencies(&machine, sections, &mut notes);
    if let Some(rated) = &sections.rated {
        machine.memory_caches = memory_caches(&machine, rated);
        notes.push(
            "the firmware's numbers of proximity domains are taken for the nodes' numbers"
                .to_owned(),
        );
    }
    notes.extend(sections.lmbench.notes.iter().cloned());
    notes.extend(sections.peaks.iter().map(|(kind, rate)| {
        format!(
            "all nodes together, {kind}: {}",
            nearpage_amount::bandwidth(rate * 1e6)
        )
    }));
    notes.extend(sections.cache_to_cache.iter().cloned());
    notes.push(
        "no caches: add `[[cache]]` tables before tracing or simulating for this machine"
            .to_owned(),
    );
    machine.notes = notes;
    let error = machine.load_model_error_in_words();
    machine.notes.extend(error);
    Some(machine)
}

/// Memory-side caches of nodes that the machine has.
fn memory_caches(machine: &Machine, rated: &Rated) -> Vec<MemoryCache> {
    let caches = rated
        .caches
        .iter()
        .map(|&(node, level, size_bytes, line)| MemoryCache {
            node,
            level,
            size_bytes,
            line_bytes: (line > 0).then_some(line),
        });
    caches
        .filter(|cache| machine.position(cache.node).is_some())
        .collect()
}

/// Nodes that the matrices name; nodes with a row have CPUs.
fn nodes_of(tables: &[&Option<Table>], notes: &mut Vec<String>) -> Option<Vec<Node>> {
    let mut ids: Vec<NodeId> = Vec::new();
    let mut with_cpus: Vec<NodeId> = Vec::new();
    for table in tables.iter().copied().flatten() {
        ids.extend(&table.columns);
        ids.extend(table.rows.iter().map(|(id, _)| id));
        with_cpus.extend(table.rows.iter().map(|(id, _)| id));
    }
    for list in [&mut ids, &mut with_cpus] {
        list.sort_unstable();
        list.dedup();
    }
    if ids.is_empty() {
        return None;
    }
    notes.push("one CPU to a node is assumed: import what `numactl -H` prints as well".to_owned());
    let node = |id: NodeId| Node {
        id,
        cpus: with_cpus
            .binary_search(&id)
            .map(|at| CpuId(at as u32))
            .into_iter()
            .collect(),
        memory_bytes: None,
        memory_kind: None,
    };
    Some(ids.into_iter().map(node).collect())
}

/// A table's figures by position; adds notes about nodes that the machine does not have.
fn matrix(machine: &Machine, table: &Table, unit: f64, notes: &mut Vec<String>) -> Option<Matrix> {
    let count = machine.nodes.len();
    let mut matrix = vec![vec![None; count]; count];
    for (id, figures) in &table.rows {
        for (column, figure) in table.columns.iter().zip(figures) {
            match (machine.position(*id), machine.position(*column)) {
                (Some(row), Some(column)) => {
                    matrix[row][column] = figure.map(|figure| figure * unit)
                }
                _ => {
                    let note = format!(
                        "nodes {id} and {column} of a matrix are not in `numactl -H`: left out"
                    );
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
            }
        }
    }
    figures::if_known(matrix)
}

/// The curve of the whole machine, divided equally among the nodes with CPUs and memory.
fn loaded_latencies(
    machine: &Machine,
    sections: &Sections,
    notes: &mut Vec<String>,
) -> Vec<LoadedLatency> {
    let has_both = |node: &&Node| !node.cpus.is_empty() && node.memory_bytes != Some(0);
    let nodes: Vec<NodeId> = machine
        .nodes
        .iter()
        .filter(has_both)
        .map(|node| node.id)
        .collect();
    if sections.loaded.is_empty() || nodes.is_empty() {
        return Vec::new();
    }
    let mut points = sections.loaded.clone();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    if nodes.len() > 1 {
        notes.push("latency under load was measured on all nodes at once: each has an equal share of the bandwidth".to_owned());
    }
    let share = 1e6 / nodes.len() as f64;
    let of_node = |node: NodeId| {
        points.iter().map(move |&(rate, latency_ns)| LoadedLatency {
            node,
            bandwidth_bytes_per_s: rate * share,
            latency_ns,
        })
    };
    nodes.iter().flat_map(|&node| of_node(node)).collect()
}

#[cfg(test)]
mod tests;
