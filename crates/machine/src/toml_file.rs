//! The machine file: TOML for people to read and edit, with one line per row of a matrix.

use std::fmt::{Display, Write};

use serde::{Deserialize, Deserializer, de};

use crate::{Bandwidth, CpuId, CpuList, Error, Fault, Machine, Memory, NodeId, Number, Processor};

/// Key of a matrix whose distances differ by direction, as in some firmware.
const DIRECTED_DISTANCE: &str = "directed_distance";

/// Row and column of a distance that differs from the opposite direction's.
fn asymmetric(distance: &[Vec<u32>]) -> Option<(usize, usize)> {
    let pairs = (0..distance.len()).flat_map(|row| (0..row).map(move |column| (column, row)));
    pairs
        .into_iter()
        .find(|&(row, column)| distance[row][column] != distance[column][row])
}

impl Machine {
    /// Checks that distances in the file with this `text` are equal in both directions, unless the file has
    /// `directed_distance`. [`Machine::validate`] does not check this, because a kernel may report unequal distances,
    /// and recordings keep them.
    pub(crate) fn validate_hops(&self, text: &str) -> Result<(), Fault> {
        let Some(distance) = &self.distance else {
            return Ok(());
        };
        let directed = |text: &str| {
            let table = text.parse::<toml::Table>();
            table.is_ok_and(|table| table.contains_key(DIRECTED_DISTANCE))
        };
        match asymmetric(distance) {
            Some((row, column)) if !directed(text) => Err(Fault::DistanceAsymmetric {
                from: self.nodes[row].id,
                to: self.nodes[column].id,
                there: distance[row][column],
                back: distance[column][row],
            }),
            _ => Ok(()),
        }
    }

    /// Reads a machine file; `origin` is its name in messages.
    ///
    /// # Errors
    /// The text is not TOML, keys are unknown or missing, or the machine is invalid ([`Machine::validate`]).
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        let machine: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..before]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count();
            Error::Syntax {
                origin: origin.to_owned(),
                line,
                message: error.message().replace('\n', ", "),
            }
        })?;
        machine.validate().map_err(|fault| Error::Invalid {
            origin: origin.to_owned(),
            fault,
        })?;
        Ok(machine)
    }

    /// Writes a machine file, from which [`Machine::from_toml`] reads the same machine.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        pair(&mut out, "name", quoted(&self.name));
        if !self.source.is_empty() {
            pair(&mut out, "source", quoted(&self.source));
        }
        if let Some(year) = self.year {
            pair(&mut out, "year", year);
        }
        if !self.notes.is_empty() {
            out.push_str("notes = [\n");
            for note in &self.notes {
                let _ = writeln!(out, "  {},", quoted(note));
            }
            out.push_str("]\n");
        }
        pair(&mut out, "page_bytes", self.page_bytes);
        if let Some(bytes) = self.huge_page_bytes {
            pair(&mut out, "huge_page_bytes", bytes);
        }
        if let Some(mode) = self.transparent_huge_pages {
            pair(&mut out, "transparent_huge_pages", quoted(mode.as_str()));
        }
        if let Some(latency_ns) = &self.latency_ns {
            out.push_str(
                "\n# Nanoseconds; rows are the CPU's node, columns the memory's, nan is not known.\n",
            );
            rows(&mut out, "latency_ns", latency_ns, cell);
        }
        if let Some(distance) = &self.distance {
            out.push_str("\n# ACPI SLIT; rows are the CPU's node, columns the memory's.\n");
            let key = match asymmetric(distance) {
                None => "distance",
                Some(_) => DIRECTED_DISTANCE,
            };
            rows(&mut out, key, distance, u32::to_string);
        }
        if !self.cores.is_empty() {
            out.push_str("\n# SMT siblings.\n");
            let cores: Vec<String> = self
                .cores
                .iter()
                .map(|core| quoted(&in_order(core)))
                .collect();
            let lines: Vec<Vec<String>> = cores.chunks(8).map(<[String]>::to_vec).collect();
            out.push_str("cores = [\n");
            for line in lines {
                let _ = writeln!(out, "  {},", line.join(", "));
            }
            out.push_str("]\n");
        }
        self.nodes_to_toml(&mut out);
        self.caches_to_toml(&mut out);
        self.timing_to_toml(&mut out);
        self.bandwidth_to_toml(&mut out);
        out
    }

    fn nodes_to_toml(&self, out: &mut String) {
        for node in &self.nodes {
            out.push_str("\n[[node]]\n");
            pair(out, "id", node.id);
            pair(
                out,
                "cpus",
                quoted(&node.cpus.iter().copied().collect::<CpuList>().to_string()),
            );
            if let Some(bytes) = node.memory_bytes {
                pair(out, "memory_bytes", bytes);
            }
            if let Some(kind) = node.memory_kind {
                pair(out, "memory_kind", quoted(kind.as_str()));
            }
        }
        for kind in &self.cpu_kinds {
            out.push_str("\n[[cpu_kind]]\n");
            pair(out, "name", quoted(&kind.name));
            let cpus: CpuList = kind.cpus.iter().copied().collect();
            pair(out, "cpus", quoted(&cpus.to_string()));
        }
    }

    fn caches_to_toml(&self, out: &mut String) {
        for cache in &self.caches {
            out.push_str("\n[[cache]]\n");
            pair(out, "level", cache.level);
            pair(out, "kind", quoted(cache.kind.as_str()));
            pair(out, "size_bytes", cache.size_bytes);
            pair(out, "line_bytes", cache.line_bytes);
            if cache.associativity > 0 {
                pair(out, "associativity", cache.associativity);
            }
            pair(out, "shared_by_cpus", cache.shared_by_cpus);
            optional(out, "latency_ns", cache.latency_ns);
        }
        for cache in &self.memory_caches {
            out.push_str("\n[[memory_cache]]\n");
            pair(out, "node", cache.node);
            pair(out, "level", cache.level);
            pair(out, "size_bytes", cache.size_bytes);
            if let Some(bytes) = cache.line_bytes {
                pair(out, "line_bytes", bytes);
            }
        }
        for device in &self.devices {
            out.push_str("\n[[device]]\n");
            pair(out, "kind", quoted(device.kind.as_str()));
            pair(out, "number", device.number);
            pair(out, "pci", quoted(&device.pci));
            if let Some(node) = device.node {
                pair(out, "node", node);
            }
        }
    }

    fn bandwidth_to_toml(&self, out: &mut String) {
        if self.bandwidth != Bandwidth::default() {
            out.push_str("\n# Bytes per second, as latency_ns; mixed is two loads to a store.\n");
            out.push_str("[bandwidth]\n");
        }
        for (key, _, matrix) in self.bandwidth.matrices() {
            rows(out, key, matrix, cell);
        }
        for point in &self.loaded_latencies {
            out.push_str("\n[[loaded_latency]]\n");
            pair(out, "node", point.node);
            pair(
                out,
                "bandwidth_bytes_per_s",
                number(point.bandwidth_bytes_per_s),
            );
            pair(out, "latency_ns", number(point.latency_ns));
        }
    }

    fn timing_to_toml(&self, out: &mut String) {
        let Processor {
            clock_ghz,
            cycles_per_instruction,
            outstanding_misses,
            window_instructions,
        } = self.processor;
        if self.processor != Processor::default() {
            out.push_str("\n[processor]\n");
            optional(out, "clock_ghz", clock_ghz);
            optional(out, "cycles_per_instruction", cycles_per_instruction);
            optional(out, "outstanding_misses", outstanding_misses.map(f64::from));
            optional(
                out,
                "window_instructions",
                window_instructions.map(f64::from),
            );
        }
        for tlb in &self.tlbs {
            out.push_str("\n[[tlb]]\n");
            pair(out, "level", tlb.level);
            pair(out, "kind", quoted(tlb.kind.as_str()));
            pair(out, "entries", tlb.entries);
            for (key, count) in [
                ("associativity", tlb.associativity),
                ("reserved", tlb.reserved),
            ] {
                if count > 0 {
                    pair(out, key, count);
                }
            }
            pair(out, "miss_cycles", number(tlb.miss_cycles));
        }
        if self.memory != Memory::default() {
            out.push_str("\n[memory]\n");
            optional(
                out,
                "bandwidth_bytes_per_s",
                self.memory.bandwidth_bytes_per_s,
            );
            optional(out, "directory_ns", self.memory.directory_ns);
        }
        self.interconnect_to_toml(out);
        if let Some(fixed_ns) = self.moves.fixed_ns {
            out.push_str("\n[moves]\n");
            pair(out, "fixed_ns", number(fixed_ns));
        }
        if let Some(steps) = &self.moves.steps {
            out.push_str("\n[moves.steps]\n");
            for (key, value) in steps.pairs() {
                pair(out, key, number(value));
            }
        }
        if let Some(energy) = &self.energy {
            out.push_str("\n[energy]\n");
            for (key, value) in energy.pairs() {
                pair(out, key, number(value));
            }
        }
    }

    fn interconnect_to_toml(&self, out: &mut String) {
        for link in &self.links {
            out.push_str("\n[[link]]\n");
            pair(
                out,
                "nodes",
                format!("[{}, {}]", link.nodes[0], link.nodes[1]),
            );
            pair(
                out,
                "bandwidth_bytes_per_s",
                number(link.bandwidth_bytes_per_s),
            );
        }
        for route in &self.routes {
            let nodes: Vec<String> = route.nodes.iter().map(ToString::to_string).collect();
            out.push_str("\n[[route]]\n");
            pair(out, "nodes", format!("[{}]", nodes.join(", ")));
        }
        if let Some(coherence) = &self.coherence {
            out.push_str("\n[coherence]\n");
            for (key, value) in coherence.pairs() {
                pair(out, key, value);
            }
        }
        if let Some(prefetcher) = &self.prefetcher {
            out.push_str("\n[prefetcher]\n");
            for (key, value) in prefetcher.pairs() {
                pair(out, key.trim_start_matches("prefetcher."), value);
            }
        }
    }
}

fn optional(out: &mut String, key: &str, value: Option<f64>) {
    if let Some(value) = value {
        pair(out, key, number(value));
    }
}

fn pair(out: &mut String, key: &str, value: impl Display) {
    let _ = writeln!(out, "{key} = {value}");
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Writes whole numbers without a fraction, and others so that they can be read back exactly.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{value}")
    } else {
        format!("{value:?}")
    }
}

/// Writes `nan` for an unknown figure.
fn cell(value: &Option<f64>) -> String {
    value.map_or("nan".to_owned(), number)
}

fn rows<T>(out: &mut String, key: &str, matrix: &[Vec<T>], format: impl Fn(&T) -> String) {
    let _ = writeln!(out, "{key} = [");
    for row in matrix {
        let cells: Vec<String> = row.iter().map(&format).collect();
        let _ = writeln!(out, "  [{}],", cells.join(", "));
    }
    out.push_str("]\n");
}

/// A core's CPUs in their order of use, not in the kernel's ascending format.
fn in_order(core: &[CpuId]) -> String {
    core.iter()
        .map(CpuId::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cpus {
    Text(String),
    Numbers(Vec<CpuId>),
}

impl Cpus {
    fn read<E: de::Error>(self) -> Result<Vec<CpuId>, E> {
        let cpus = match self {
            Self::Text(text) => text
                .parse::<CpuList>()
                .map_err(E::custom)?
                .as_slice()
                .to_vec(),
            Self::Numbers(cpus) => cpus,
        };
        match cpus.iter().find(|cpu| cpu.number() > CpuId::MAX) {
            Some(cpu) => Err(E::custom(format!("CPU {cpu} is beyond {}", CpuId::MAX))),
            None => Ok(cpus),
        }
    }
}

pub(crate) fn cpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CpuId>, D::Error> {
    let mut cpus = Cpus::deserialize(deserializer)?.read()?;
    cpus.sort_unstable();
    Ok(cpus)
}

/// Reads the ends of a link. Unlike an array, this reports a third node as an error.
pub(crate) fn ends<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[NodeId; 2], D::Error> {
    let nodes = Vec::<NodeId>::deserialize(deserializer)?;
    <[NodeId; 2]>::try_from(nodes).map_err(|nodes| {
        de::Error::custom(format!("a link has two `nodes`, found {}", nodes.len()))
    })
}

pub(crate) fn distances<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Vec<u32>>>, D::Error> {
    let matrix = Vec::<Vec<i64>>::deserialize(deserializer)?;
    let row = |(row, values): (usize, Vec<i64>)| {
        let values = values.into_iter().enumerate();
        let distance = values.map(|(column, value)| {
            u32::try_from(value).map_err(|_| {
                de::Error::custom(format!(
                    "`distance`[{row}][{column}] is {value}; the least there is, a node's own, is 10"
                ))
            })
        });
        distance.collect()
    };
    let rows: Result<_, D::Error> = matrix.into_iter().enumerate().map(row).collect();
    rows.map(Some)
}

/// Reads cores; the order of a list of single CPUs is kept.
pub(crate) fn cores<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Vec<CpuId>>, D::Error> {
    Vec::<Cpus>::deserialize(deserializer)?
        .into_iter()
        .map(|core| match core {
            Cpus::Text(text) if !text.contains('-') => text
                .split(',')
                .map(|cpu| cpu.trim().parse().map(CpuId))
                .collect::<Result<_, _>>()
                .map_err(|_| {
                    de::Error::custom(format!("`{text}`: expected CPU numbers such as `0,16`"))
                }),
            other => other.read(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
