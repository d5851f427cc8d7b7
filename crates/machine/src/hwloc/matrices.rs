//! Figures between nodes: distances, latencies, bandwidths.

use std::collections::BTreeMap;

use roxmltree::Node as Element;

use super::attributes::{cpuset, decimal, number, numbers};
use super::{Numa, Problem, problem};
use crate::{CpuList, DISTANCE_LOCAL, Machine, Matrix, Node, NodeId, figures};

/// Of `kind` in `distances2`: the values are what the operating system said; latencies; bandwidths
/// (hwloc/distances.h).
const KIND_FROM_OS: u32 = 1;
const KIND_LATENCY: u32 = 4;
const KIND_BANDWIDTH: u32 = 8;

pub(super) fn distances(
    machine: &mut Machine,
    root: Element,
    numa: &[Numa],
    positions: &BTreeMap<NodeId, usize>,
) -> Result<(), Problem> {
    let of_version_1 = distances_v1(root, numa);
    for element in root.descendants() {
        let (rows, values, kind) = match element.tag_name().name() {
            "distances2" if element.attribute("type") == Some("NUMANode") => {
                let kind = number(element, "kind", u32::MAX)?;
                let rows = indexes(element, numa)?;
                (rows, numbers(element, "u64values")?, kind)
            }
            "distances" if Some(element) == of_version_1 => {
                let rows = numa.iter().map(|node| node.id).collect();
                (rows, values_v1(element)?, KIND_FROM_OS | KIND_LATENCY)
            }
            _ => continue,
        };
        if rows.len() != positions.len() || values.len() != rows.len() * rows.len() {
            // Of some nodes only: nothing that a machine has a place for.
            continue;
        }
        let at: Vec<usize> = rows.iter().map(|id| positions[id]).collect();
        let mut matrix = vec![vec![0.0; rows.len()]; rows.len()];
        for (from, chunk) in at.iter().zip(values.chunks(rows.len())) {
            for (to, &value) in at.iter().zip(chunk) {
                matrix[*from][*to] = value;
            }
        }
        if kind & KIND_LATENCY != 0 && machine.distance.is_none() {
            machine.distance = Some(relative(matrix, kind & KIND_FROM_OS != 0, element)?);
        } else if kind & KIND_BANDWIDTH != 0 && machine.bandwidth.read_bytes_per_s.is_none() {
            let rate = |value: f64| (value > 0.0).then_some(value * 1e6);
            let matrix = matrix
                .into_iter()
                .map(|row| row.into_iter().map(rate).collect());
            machine.bandwidth.read_bytes_per_s = figures::if_known(matrix.collect());
        }
    }
    Ok(())
}

/// Distances as ACPI has them. Those that people gave (`hwloc-annotate`) are in units of their own: the
/// least becomes 10.
fn relative(matrix: Vec<Vec<f64>>, from_os: bool, at: Element) -> Result<Vec<Vec<u32>>, Problem> {
    let least = matrix
        .iter()
        .flatten()
        .copied()
        .fold(f64::INFINITY, f64::min);
    if least <= 0.0 {
        return problem(at, "distances between NUMA nodes must be positive");
    }
    let local = f64::from(DISTANCE_LOCAL);
    let scale = if from_os && least >= local {
        1.0
    } else {
        local / least
    };
    let scaled = |value: f64| (value * scale).round().min(f64::from(u32::MAX)) as u32;
    Ok(matrix
        .into_iter()
        .map(|row| row.into_iter().map(scaled).collect())
        .collect())
}

/// The `NUMANode`s that the rows of `distances2` are of.
fn indexes(element: Element, numa: &[Numa]) -> Result<Vec<NodeId>, Problem> {
    let global = match element.attribute("indexing") {
        Some("gp") => true,
        Some("os") | None => false,
        Some(_) => return problem(element, "`indexing` is `os` or `gp`"),
    };
    let mut rows = Vec::new();
    for index in numbers(element, "indexes")? {
        let node = numa.iter().find(|node| {
            let own = if global {
                node.element
                    .attribute("gp_index")
                    .and_then(|text| text.parse().ok())
            } else {
                Some(f64::from(node.id.0))
            };
            own == Some(index)
        });
        match node {
            Some(node) if !rows.contains(&node.id) => rows.push(node.id),
            _ => {
                return problem(
                    element,
                    format!("index {index} is no NUMA node, or there twice"),
                );
            }
        }
    }
    Ok(rows)
}

/// The matrix of version 1 that is between all NUMA nodes: of those that have as many rows, the one
/// whose `relative_depth` leads to them, else the first (hwloc 2 writes another depth there).
fn distances_v1<'a, 'input>(
    root: Element<'a, 'input>,
    numa: &[Numa],
) -> Option<Element<'a, 'input>> {
    let count = numa.len().to_string();
    let candidates = || {
        root.descendants().filter(|element| {
            element.has_tag_name("distances") && element.attribute("nbobjs") == Some(&count)
        })
    };
    let leads_there = |element: &Element| {
        let depth = element.attribute("relative_depth");
        let depth = depth
            .and_then(|depth| depth.parse::<usize>().ok())
            .unwrap_or(0);
        // The element itself is one level below its parent, as level 1 is.
        let depth = element.ancestors().count() - 1 + depth;
        numa.iter().all(|node| node.depth == depth)
    };
    candidates()
        .find(leads_there)
        .or_else(|| candidates().next())
}

/// In multiples of a base, in the order of the document.
fn values_v1(element: Element) -> Result<Vec<f64>, Problem> {
    let base = decimal(element, element.attribute("latency_base").unwrap_or("1"))?;
    element
        .children()
        .filter(|child| child.has_tag_name("latency"))
        .map(|latency| Ok(base * decimal(latency, latency.attribute("value").unwrap_or(""))?))
        .collect()
}

/// What the firmware (HMAT) or people say of each node's memory as the CPUs of others see it.
pub(super) fn memory_attributes<'a, 'input>(
    machine: &mut Machine,
    root: Element<'a, 'input>,
    numa: &'a [Numa<'a, 'input>],
    positions: &'a BTreeMap<NodeId, usize>,
    cpus: &'a CpuList,
) -> Result<(), Problem> {
    const MEBIBYTE: f64 = (1u64 << 20) as f64;
    let by_index: BTreeMap<&str, Element> = root
        .descendants()
        .filter(|element| element.has_tag_name("object"))
        .filter_map(|object| Some((object.attribute("gp_index")?, object)))
        .collect();
    // By name: a matrix, and what its unit is here. `Bandwidth` is that of reads where hwloc has both
    // (it is their mean), so it comes first and is overwritten.
    let names = [
        "Latency",
        "ReadLatency",
        "Bandwidth",
        "ReadBandwidth",
        "WriteBandwidth",
    ];
    let attributes = names.iter().flat_map(|&name| {
        root.descendants().filter(move |element| {
            element.has_tag_name("memattr") && element.attribute("name") == Some(name)
        })
    });
    let nodes = Nodes {
        numa,
        positions,
        by_index,
        cpus,
    };
    for attribute in attributes {
        let matrix = nodes.matrix(&machine.nodes, attribute)?;
        let Some(mut matrix) = figures::if_known(matrix) else {
            continue;
        };
        let name = attribute.attribute("name").unwrap_or("");
        if name.ends_with("Bandwidth") {
            for figure in matrix.iter_mut().flatten().flatten() {
                *figure *= MEBIBYTE;
            }
        }
        match name {
            "Latency" | "ReadLatency" => machine.latency_ns = Some(matrix),
            "Bandwidth" | "ReadBandwidth" => machine.bandwidth.read_bytes_per_s = Some(matrix),
            _ => machine.bandwidth.write_bytes_per_s = Some(matrix),
        }
    }
    Ok(())
}

/// What the figures of an attribute are looked up by.
struct Nodes<'a, 'input> {
    numa: &'a [Numa<'a, 'input>],
    positions: &'a BTreeMap<NodeId, usize>,
    /// Objects by hwloc's own number.
    by_index: BTreeMap<&'a str, Element<'a, 'input>>,
    cpus: &'a CpuList,
}

impl Nodes<'_, '_> {
    /// The attribute's figures, rows by CPUs' node, columns by memory's.
    fn matrix(&self, nodes: &[Node], attribute: Element) -> Result<Matrix, Problem> {
        let mut matrix: Matrix = vec![vec![None; nodes.len()]; nodes.len()];
        for value in attribute
            .children()
            .filter(|child| child.has_tag_name("memattr_value"))
        {
            if value.attribute("target_obj_type") != Some("NUMANode") {
                continue;
            }
            // A set, or an object that has one.
            let initiators = match value.attribute("initiator_obj_gp_index") {
                None if value.attribute("initiator_cpuset").is_none() => continue,
                None => cpuset(value, "initiator_cpuset", self.cpus)?,
                Some(index) => match self.by_index.get(index) {
                    Some(&object) => cpuset(object, "cpuset", self.cpus)?,
                    None => return problem(value, "the initiator is no object"),
                },
            };
            let target = self.numa.iter().find(|node| {
                let own = node.element.attribute("gp_index");
                own.is_some() && own == value.attribute("target_obj_gp_index")
            });
            let Some(target) = target else {
                return problem(value, "the target is no NUMA node");
            };
            let figure = number::<u64>(value, "value", u64::MAX)? as f64;
            for (row, node) in nodes.iter().enumerate() {
                if figure > 0.0 && node.cpus.iter().any(|&cpu| initiators.contains(cpu)) {
                    matrix[row][self.positions[&target.id]] = Some(figure);
                }
            }
        }
        Ok(matrix)
    }
}
