//! `nearpage machine list`: the presets.

use std::fmt::Write;
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
    /// The presets.
    machines: Vec<Listed>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// What `--machine` takes.
    name: String,
    /// Memory nodes.
    nodes: usize,
    /// CPUs of all nodes.
    cpus: usize,
    /// Latency (or distance) of the farthest memory, as a multiple of the nearest for the same CPUs; the greatest of all nodes.
    far_to_near: f64,
    /// Bytes per second that a node's memory gives at most; null: no limit.
    node_bandwidth_bytes_per_s: Option<f64>,
    /// Bytes per second and direction of the narrowest link between nodes and of the widest; null: no limit.
    link_bandwidth_bytes_per_s: Option<[f64; 2]>,
    /// The year in which machines of this kind came out, or were described; null: not known.
    year: Option<u16>,
    /// What is assumed of it, missing or left out.
    notes: Vec<String>,
    /// Where the figures come from.
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

/// In GB/s; a range where the two differ.
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
    let mut text = format!(
        "{:<width$}  year  nodes  CPUs  far/near  memory GB/s  links GB/s\n",
        "name"
    );
    for machine in &machines {
        let year = machine
            .year
            .map_or_else(|| "-".to_owned(), |year| year.to_string());
        let _ = writeln!(
            text,
            "{:<width$}  {year:>4}  {:>5}  {:>4}  {:>8.2}  {:>11}  {:>10}",
            machine.name,
            machine.nodes,
            machine.cpus,
            machine.far_to_near,
            gigabytes(machine.node_bandwidth_bytes_per_s.map(|limit| [limit; 2])),
            gigabytes(machine.link_bandwidth_bytes_per_s),
        );
    }
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
