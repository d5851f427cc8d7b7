//! Machines that Intel's Memory Latency Checker (`mlc`, versions 3.5 to 3.11) measured, and what
//! `numactl -H` says of them.
//!
//! | here | there |
//! | --- | --- |
//! | latencies | `Measuring idle latencies`: in ns, rows are CPUs' nodes; random accesses where both kinds are there |
//! | read bandwidth | `Measuring Memory Bandwidths between nodes`: MB/s of 10^6 bytes |
//! | `[[loaded_latency]]` | `Measuring Loaded Latencies`: of all nodes at once, each CPU on its own node's memory; a node has an equal share of the bandwidth |
//! | notes | cache-to-cache latencies, which no model here uses |
//! | CPUs, memory, distances | `numactl -H`; without it each node with CPUs has one |
//!
//! The texts may be in one file or several, in any order, with other lines between.

mod sections;

use crate::{CpuId, Error, LoadedLatency, Machine, Matrix, Node, NodeId, figures};

use sections::{Numactl, Sections, Table};

/// Letters at most of all texts together: what the tools print has some ten thousand.
const LETTERS_MAX: usize = 16 << 20;

impl Machine {
    /// Reads what `mlc` and `numactl -H` printed: texts, each with its name for messages. The machine
    /// has the name `name`.
    ///
    /// # Errors
    /// Texts without a matrix and without nodes, damaged tables, and machines that cannot be
    /// ([`Machine::validate`]).
    pub fn from_tools(texts: &[(String, String)], name: &str) -> Result<Self, Error> {
        let origin = || {
            texts
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
        if texts.iter().map(|(_, text)| text.len()).sum::<usize>() > LETTERS_MAX {
            return Err(whole(
                "more than 16 MiB; expected what `mlc` or `numactl -H` prints",
            ));
        }
        let mut sections = Sections::default();
        for (origin, text) in texts {
            sections
                .read(text)
                .map_err(|(line, message)| Error::Syntax {
                    origin: origin.clone(),
                    line,
                    message,
                })?;
        }
        let machine = machine(&sections, name).ok_or_else(|| {
            whole("neither a matrix of `mlc` nor nodes of `numactl -H`; expected what one of them prints")
        })?;
        machine.validate().map_err(|fault| Error::Invalid {
            origin: origin(),
            fault,
        })?;
        Ok(machine)
    }
}

fn machine(sections: &Sections, name: &str) -> Option<Machine> {
    let latency = sections
        .random_latency
        .as_ref()
        .or(sections.latency.as_ref());
    let tables = [latency, sections.bandwidth.as_ref()];
    let mut notes = Vec::new();
    let nodes = match &sections.numactl {
        Some(numactl) => numactl.nodes.clone(),
        None => nodes_of(&tables, &mut notes)?,
    };
    let mut machine = Machine::of_nodes(name.to_owned(), nodes);
    machine.distance = sections
        .numactl
        .as_ref()
        .and_then(|numactl: &Numactl| numactl.distance.clone());
    machine.latency_ns = latency.and_then(|table| matrix(&machine, table, 1.0, &mut notes));
    let bandwidth = sections.bandwidth.as_ref();
    machine.bandwidth.read_bytes_per_s =
        bandwidth.and_then(|table| matrix(&machine, table, 1e6, &mut notes));
    machine.loaded_latencies = loaded_latencies(&machine, sections, &mut notes);
    let has = |is_there: bool, words: &'static str| is_there.then_some(words);
    let mlc = sections
        .version
        .as_ref()
        .map(|version| format!("Memory Latency Checker {version}"));
    let mlc = mlc.or(latency
        .or(bandwidth)
        .map(|_| "Memory Latency Checker".to_owned()));
    let parts = [
        mlc,
        has(sections.numactl.is_some(), "numactl -H").map(str::to_owned),
    ];
    machine.source = parts
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" and ");
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

/// Nodes as the matrices have them: those with a row have CPUs.
fn nodes_of(tables: &[Option<&Table>], notes: &mut Vec<String>) -> Option<Vec<Node>> {
    let mut ids: Vec<NodeId> = Vec::new();
    let mut with_cpus: Vec<NodeId> = Vec::new();
    for table in tables.iter().flatten() {
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

/// A table's figures by position; notes nodes that the machine does not have.
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

/// The curve of all nodes, in equal shares for those that have CPUs and memory.
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
