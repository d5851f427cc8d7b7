//! `nearpage machine list`: lists the presets.

use std::process::ExitCode;

use nearpage_machine::{Fault, Machine, PRESET_NAMES, preset, wrap};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{json, terminal};

/// What `machine list --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MachineList {
    /// Version of this form.
    version: u32,
    machines: Vec<Listed>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// Name that `--machine` takes.
    name: String,
    /// Memory nodes.
    nodes: usize,
    /// CPUs of all nodes.
    cpus: usize,
    /// Latency (or distance) of the farthest memory, as a multiple of the nearest for the same CPUs: the maximum over
    /// all nodes.
    far_to_near: f64,
    /// Bandwidth limit of a node's memory, in bytes per second; null: no limit.
    node_bandwidth_bytes_per_s: Option<f64>,
    /// Bandwidth limits of the narrowest and the widest link between nodes, in bytes per second and direction; null: no
    /// limit.
    link_bandwidth_bytes_per_s: Option<[f64; 2]>,
    /// Year in which machines of this kind were released or described; null: not known.
    year: Option<u16>,
    /// Assumptions about the machine, and properties that are missing or left out.
    notes: Vec<String>,
    /// Source of the figures.
    source: String,
}

impl TryFrom<Machine> for Listed {
    type Error = Fault;

    fn try_from(machine: Machine) -> Result<Self, Fault> {
        let timing = machine.timing()?;
        Ok(Self {
            nodes: machine.nodes.len(),
            cpus: machine.cpus().as_slice().len(),
            far_to_near: machine.far_to_near(),
            node_bandwidth_bytes_per_s: timing.node_bandwidth_bytes_per_s(),
            link_bandwidth_bytes_per_s: timing.link_bandwidth_bytes_per_s(),
            name: machine.name,
            year: machine.year,
            notes: machine.notes,
            source: machine.source,
        })
    }
}

/// Width of a terminal that fits the whole table.
const WHOLE_TABLE: usize = 72;

/// Bandwidth in GB/s, as a range if the two limits differ.
fn gigabytes(limits: Option<[f64; 2]>) -> String {
    let one = |bytes_per_s: f64| match bytes_per_s < 1e9 {
        true => format!("{:.2}", bytes_per_s / 1e9),
        false => format!("{:.1}", bytes_per_s / 1e9),
    };
    match limits {
        None => "no limit".to_owned(),
        Some([least, most]) if least == most => one(least),
        Some([least, most]) => format!("{}-{}", one(least), one(most)),
    }
}

pub fn main(json: bool) -> anyhow::Result<ExitCode> {
    let machines: Vec<Listed> = PRESET_NAMES
        .into_iter()
        .filter_map(preset)
        .map(Listed::try_from)
        .collect::<Result<_, Fault>>()?;
    if json {
        json::print(&MachineList {
            version: nearpage_recording::JSON_VERSION,
            machines,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = machines
        .iter()
        .map(|machine| machine.name.len())
        .max()
        .unwrap_or(0);
    // A narrow terminal leaves out year and CPUs, which are known from the machine's name.
    let is_narrow = terminal::width() < WHOLE_TABLE;
    let line = |[name, year, nodes, cpus, far_to_near, memory, links]: [&str; 7]| {
        let kind = match is_narrow {
            true => format!("{nodes:>5}"),
            false => format!("{year:>4}  {nodes:>5}  {cpus:>4}"),
        };
        format!("{name:<width$}  {kind}  {far_to_near:>8}  {memory:>8}  {links:>9}\n")
    };
    let titles = [
        "name", "year", "nodes", "CPUs", "far/near", "memory", "links",
    ];
    let mut text = line(titles);
    for machine in &machines {
        let year = machine.year.map(|year| year.to_string());
        text += &line([
            &machine.name,
            year.as_deref().unwrap_or("-"),
            &machine.nodes.to_string(),
            &machine.cpus.to_string(),
            &format!("{:.2}", machine.far_to_near),
            &gigabytes(machine.node_bandwidth_bytes_per_s.map(|limit| [limit; 2])),
            &gigabytes(machine.link_bandwidth_bytes_per_s),
        ]);
    }
    wrap(
        &mut text,
        "memory: of a node, links: each way, both in GB/s",
        terminal::width(),
    );
    text.push('\n');
    for machine in &machines {
        for note in &machine.notes {
            wrap(
                &mut text,
                &format!("{}: {note}", machine.name),
                terminal::width(),
            );
        }
    }
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
