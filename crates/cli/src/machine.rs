//! `nearpage machine`: shows, measures and imports machines, and lists the presets.

mod list;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use nearpage_amount::{percent, signed_change, time};
use nearpage_machine::{Error, Machine, Matrix};
use nearpage_measurement::{
    Effort, Measured, Measurement, PlacingPoint, SLOWDOWN_MIN, placing_threshold_per_us,
};
use nearpage_report::printable;
use nearpage_sampler::{DEFAULT_COST_SHARE, calibrate as calibrate_samples};
use schemars::JsonSchema;
use serde::Serialize;

pub use list::MachineList;

use crate::arguments::{Calibration, MachineCommand, MachineForm};
use crate::progress::Progress;
use crate::whole_file::WholeFile;
use crate::{Usage, arguments, json, shell, terminal};

const SYS: &str = "/sys";

/// What `machine show --json` prints: a machine, with the keys of a machine file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MachineOutput {
    /// Version of this form.
    version: u32,
    #[serde(flatten)]
    machine: Machine,
    /// After `machine measure`: standard deviation of the latency over the rounds. Row: the CPU's node; column: the
    /// memory's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_deviation_ns: Option<Matrix>,
}

/// What `machine calibrate --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CalibrationOutput {
    /// Version of this form.
    version: u32,
    /// Rate of memory accesses from which placement matters here.
    placing: PlacingCalibration,
    /// Rate at which samples may be taken.
    sampling: SamplingCalibration,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlacingCalibration {
    /// Accesses per microsecond of all CPUs together; null: placement hardly matters here.
    threshold_accesses_per_us: Option<f64>,
    /// Slowdown from which placement matters, as a share of the time.
    slowdown_min: f64,
    /// Measured points; empty on a machine with one memory node.
    points: Vec<CalibrationPoint>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CalibrationPoint {
    /// Accesses per microsecond of all CPUs together.
    accesses_per_us: f64,
    /// Additional time with all memory on one node, as a share of the time.
    slowdown: f64,
}

impl From<&PlacingPoint> for CalibrationPoint {
    fn from(point: &PlacingPoint) -> Self {
        Self {
            accesses_per_us: point.accesses_per_us,
            slowdown: point.slowdown,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct SamplingCalibration {
    /// Time that one sample takes; null: it could not be measured.
    sample_cost_ns: Option<f64>,
    /// Share of a program's time that recording may take.
    cost_share_max: f64,
    /// Samples per second and CPU that take this share.
    rate_hz: Option<f64>,
    /// Time between two samples at that rate.
    period_ns: Option<f64>,
}

pub fn main(arguments: arguments::Machine) -> anyhow::Result<ExitCode> {
    let command = arguments
        .command
        .or_else(|| arguments.before.subcommand())
        .ok_or_else(|| Usage("--quick goes with `machine measure` or `calibrate`".to_owned()))?;
    // The output file is checked before the measurement, which can take a minute.
    if let MachineCommand::Show { output, .. }
    | MachineCommand::Measure { output, .. }
    | MachineCommand::Import { output, .. } = &command
        && let Some(file) = &output.output
    {
        WholeFile::check(file)?;
    }
    match command {
        MachineCommand::List { json } => list::main(json),
        MachineCommand::Calibrate(how) => calibrate(how),
        MachineCommand::Import { files, output } => output.show(import(&files)?, None),
        MachineCommand::Measure { quick, output } => {
            let measured = measure(quick)?;
            output.show(measured.machine.clone(), Some(measured))
        }
        MachineCommand::Show {
            machine,
            sysfs,
            cpus,
            output,
        } => {
            let machine = match sysfs {
                Some(root) => Machine::from_sysfs(&root)?,
                None => read(&machine)?,
            };
            let machine = match cpus {
                Some(count) => machine.with_cpus(count).ok_or_else(|| {
                    let (least, most) = machine.cpu_counts().into_inner();
                    let name = printable(&machine.name);
                    Usage(format!("--cpus {count}: {name} takes {least} to {most}"))
                })?,
                None => machine,
            };
            output.show(machine, None)
        }
    }
}

impl MachineForm {
    /// Prints a machine and notes on its measurement, and writes the machine to the output file.
    fn show(self, machine: Machine, measured: Option<Measured>) -> anyhow::Result<ExitCode> {
        if let Some(file) = &self.output {
            WholeFile::write(file, machine.to_toml().as_bytes())?;
            if !self.json {
                terminal::next(&format!(
                    "nearpage plan RECORDING --machine {}",
                    shell::path(file)
                ));
            }
        }
        if self.json {
            json::print(&MachineOutput {
                version: nearpage_recording::JSON_VERSION,
                machine,
                latency_deviation_ns: measured.map(|measured| measured.latency_deviation_ns),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        let text = if self.toml {
            machine.to_toml()
        } else {
            let machine = Machine {
                name: printable(&machine.name),
                source: printable(&machine.source),
                notes: machine.notes.iter().map(|note| printable(note)).collect(),
                ..machine
            };
            let width = terminal::width();
            let deviation = measured.map_or_else(String::new, |measured| {
                machine.deviation_text(&measured.latency_deviation_ns, measured.rounds, width)
            });
            machine.to_text(width) + &deviation
        };
        terminal::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads a machine from the output of other tools. The machine has the name of the first file.
fn import(files: &[PathBuf]) -> anyhow::Result<Machine> {
    const BYTES_MAX: u64 = 16 << 20;
    let mut printed = Vec::new();
    for path in files {
        let bytes =
            nearpage_files::read(path, BYTES_MAX).with_context(|| path.display().to_string())?;
        printed.push((path.display().to_string(), bytes));
    }
    let name = files.first().and_then(|path| path.file_stem());
    let name = name.map_or_else(
        || "imported".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    Ok(Machine::from_tools(&printed, &name)?)
}

/// Reads a machine: `local`, a preset's name or a file.
pub fn read(argument: &str) -> anyhow::Result<Machine> {
    Machine::by_name_or_path(argument, Path::new(SYS)).map_err(|error| match error {
        unknown @ Error::Unknown { .. } => Usage(unknown.to_string()).into(),
        other => other.into(),
    })
}

fn measure(quick: bool) -> anyhow::Result<Measured> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let sys = Path::new(SYS);
    let measurement = Measurement::new(Machine::local(sys)?, effort, sys)?;
    let seconds = measurement.expected().as_secs_f64().ceil();
    let (from, to) = measurement.nodes();
    terminal::say(&format!("measuring {from} × {to} nodes, about {seconds} s"));
    let measured = {
        let progress = Progress::new("measuring".to_owned());
        measurement.run(&mut |step| progress.say(format!("measuring {step}")))?
    };
    for note in measured
        .notes
        .iter()
        .chain(&measured.machine.load_model_error_in_words())
    {
        terminal::say(note);
    }
    if quick {
        terminal::say("--quick: the figures say little");
    }
    Ok(measured)
}

/// Prints the access rate from which placement matters here, and the cost of a sample.
fn calibrate(how: Calibration) -> anyhow::Result<ExitCode> {
    let Calibration { quick, json } = how;
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let sys = Path::new(SYS);
    let measurement = Measurement::new(Machine::local(sys)?, effort, sys)?;
    let points = {
        let progress = Progress::new("calibrating".to_owned());
        measurement.placing(&mut |step| progress.say(format!("calibrating {step}")))?
    };
    if quick {
        terminal::say("--quick: the figures say little");
    }
    let threshold = placing_threshold_per_us(&points);
    let samples = calibrate_samples();
    let cost_ns = samples.as_ref().ok().and_then(|found| found.sample_cost_ns);
    let rate_hz = samples.as_ref().ok().map(|found| found.default_rate_hz());
    if json {
        json::print(&CalibrationOutput {
            version: nearpage_recording::JSON_VERSION,
            placing: PlacingCalibration {
                threshold_accesses_per_us: threshold,
                slowdown_min: SLOWDOWN_MIN,
                points: points.iter().map(CalibrationPoint::from).collect(),
            },
            sampling: SamplingCalibration {
                sample_cost_ns: cost_ns,
                cost_share_max: DEFAULT_COST_SHARE,
                rate_hz,
                period_ns: rate_hz.map(|rate_hz| 1e9 / rate_hz),
            },
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let sampling = match (&samples, cost_ns, rate_hz) {
            (Err(error), ..) => format!("sampling: not calibrated: {error}\n"),
            (_, Some(cost_ns), Some(rate_hz)) => format!(
                "sampling: a sample costs {} here; one every {} ({rate_hz} a second and CPU) costs at most {} of a program's \
                 time\n",
                time(cost_ns),
                time(1e9 / rate_hz),
                percent(DEFAULT_COST_SHARE)
            ),
            _ => "sampling: what a sample costs could not be measured; run it again on a quieter machine\n".to_owned(),
    };
    terminal::print(&(placing_text(&points, threshold) + &sampling))?;
    Ok(ExitCode::SUCCESS)
}

fn placing_text(points: &[PlacingPoint], threshold: Option<f64>) -> String {
    if points.is_empty() {
        return "placing: one memory node, so there is nothing to place here\n".to_owned();
    }
    let least = percent(SLOWDOWN_MIN);
    let mut text = String::from("accesses/µs  all memory on one node\n");
    for point in points {
        let slowdown = signed_change(point.slowdown);
        text += &format!("{:>11.2}  {slowdown:>8}\n", point.accesses_per_us);
    }
    text += &match threshold {
        Some(threshold) => format!(
            "placing: matters here from {threshold:.2} accesses to memory a microsecond on, by all CPUs together; below, it \
             costs less than {least}\n"
        ),
        None => format!(
            "placing: hardly matters here; even a program that only waits for memory loses less than {least}\n"
        ),
    };
    text
}
