//! `nearpage machine list`: the presets.

use std::fmt::Write;
use std::process::ExitCode;

use nearpage_machine::{Machine, PRESET_NAMES, preset, wrap};
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
    /// The year in which machines of this kind came out; null: not known.
    year: Option<u16>,
    /// What is assumed of it, missing or left out.
    notes: Vec<String>,
    /// Where the figures come from.
    source: String,
}

impl From<Machine> for Listed {
    fn from(machine: Machine) -> Self {
        Self {
            nodes: machine.nodes.len(),
            cpus: machine.cpus().as_slice().len(),
            far_to_near: machine.far_to_near(),
            name: machine.name,
            year: machine.year,
            notes: machine.notes,
            source: machine.source,
        }
    }
}

pub fn main(json: bool) -> anyhow::Result<ExitCode> {
    let machines: Vec<Listed> = PRESET_NAMES
        .into_iter()
        .filter_map(preset)
        .map(Listed::from)
        .collect();
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
    let mut text = format!("{:<width$}  year  nodes  CPUs  far/near\n", "name");
    for machine in &machines {
        let year = machine
            .year
            .map_or_else(|| "-".to_owned(), |year| year.to_string());
        let _ = writeln!(
            text,
            "{:<width$}  {year:>4}  {:>5}  {:>4}  {:>8.2}",
            machine.name, machine.nodes, machine.cpus, machine.far_to_near
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
