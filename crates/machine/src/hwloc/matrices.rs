//! Matrices between nodes: distances, latencies, bandwidths.

use std::collections::BTreeMap;

use roxmltree::Node as Element;

use super::attributes::{cpuset, decimal, number, numbers};
use super::{Numa, Problem, problem};
use crate::{CpuList, DISTANCE_LOCAL, Machine, Matrix, Node, NodeId, figures};

/// Bits of `kind` in `distances2` (hwloc/distances.h): values from the operating system; latencies; bandwidths.
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
            // A matrix of only some of the nodes has no place in a machine.
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

/// Distances in ACPI's scale. `hwloc-annotate` has arbitrary units, which are scaled so that the lowest becomes 10.
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

/// Numbers of the `NUMANode`s in the order of the rows of `distances2`.
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

/// The matrix between all NUMA nodes in version 1. Of several with the right number of rows, `relative_depth` selects
/// the one of the nodes. If none matches, the first is taken, because hwloc 2 writes another depth.
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
        // `relative_depth` counts from the element's parent.
        let depth = element.ancestors().count() - 1 + depth;
        numa.iter().all(|node| node.depth == depth)
    };
    candidates()
        .find(leads_there)
        .or_else(|| candidates().next())
}

/// Values of a version 1 matrix, which are multiples of a base, in the order of the document.
fn values_v1(element: Element) -> Result<Vec<f64>, Problem> {
    let base = decimal(element, element.attribute("latency_base").unwrap_or("1"))?;
    element
        .children()
        .filter(|child| child.has_tag_name("latency"))
        .map(|latency| Ok(base * decimal(latency, latency.attribute("value").unwrap_or(""))?))
        .collect()
}

/// Reads latencies and bandwidths between CPUs' nodes and memory, from the firmware (HMAT) or `hwloc-annotate`.
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
    // `Bandwidth` is the mean of the read and write bandwidth where hwloc has both. `Bandwidth` comes before
    // `ReadBandwidth`, which overwrites it.
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

/// Tables to look up the figures of an attribute.
struct Nodes<'a, 'input> {
    numa: &'a [Numa<'a, 'input>],
    positions: &'a BTreeMap<NodeId, usize>,
    /// Objects by `gp_index`.
    by_index: BTreeMap<&'a str, Element<'a, 'input>>,
    cpus: &'a CpuList,
}

impl Nodes<'_, '_> {
    /// The attribute's figures, `[CPU's node][memory's node]`.
    fn matrix(&self, nodes: &[Node], attribute: Element) -> Result<Matrix, Problem> {
        let mut matrix: Matrix = vec![vec![None; nodes.len()]; nodes.len()];
        for value in attribute
            .children()
            .filter(|child| child.has_tag_name("memattr_value"))
        {
            if value.attribute("target_obj_type") != Some("NUMANode") {
                continue;
            }
            // The initiator is a CPU set, or an object with one.
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
