//! JSON Schemas of the output with `--json`, made from the printed types.

use std::fs;
use std::io;
use std::path::Path;

use nearpage_report::{JobReportOutput, ReportOutput, RunComparison, SimulationOutput};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use crate::doctor::{BundleOutput, DoctorOutput};
use crate::downsample::DownsampleOutput;
use crate::evaluate::EvaluateOutput;
use crate::export::ExportOutput;
use crate::history::HistoryOutput;
use crate::import::ImportOutput;
use crate::job::MergeOutput;
use crate::lab::{LabOutput, MatrixOutput};
use crate::live::{LiveOutput, ReplayOutput};
use crate::machine::{CalibrationOutput, MachineList, MachineOutput};
use crate::optimize::OptimizeOutput;
use crate::plan::PlanOutput;
use crate::record::RecordOutput;
use crate::run::RunOutput;
use crate::sweep::{SweepOutput, SweepStatusOutput};
use crate::top::TopOutput;

/// Writes a file for the schema of each output.
pub fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, schema) in all() {
        let text = serde_json::to_string_pretty(&schema)? + "\n";
        fs::write(directory.join(format!("{name}.json")), text)?;
    }
    Ok(())
}

fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("compare", of::<RunComparison>()),
        ("evaluate", of::<EvaluateOutput>()),
        ("doctor", of::<DoctorOutput>()),
        ("doctor-bundle", of::<BundleOutput>()),
        ("export", of::<ExportOutput<'_>>()),
        ("history", of::<HistoryOutput>()),
        ("import", of::<ImportOutput>()),
        ("lab", of::<LabOutput>()),
        ("lab-matrix", of::<MatrixOutput>()),
        ("live", of::<LiveOutput<'_>>()),
        ("live-replay", of::<ReplayOutput>()),
        ("machine", of::<MachineOutput>()),
        ("machine-calibrate", of::<CalibrationOutput>()),
        ("machine-list", of::<MachineList>()),
        ("merge", of::<MergeOutput>()),
        ("optimize", of::<OptimizeOutput>()),
        ("plan", of::<PlanOutput>()),
        ("record", of::<RecordOutput>()),
        ("report", of::<ReportOutput<'_>>()),
        ("report-job", of::<JobReportOutput<'_>>()),
        ("run", of::<RunOutput>()),
        ("simulate", of::<SimulationOutput<'_>>()),
        ("sweep-report", of::<SweepOutput<'_>>()),
        ("sweep-status", of::<SweepStatusOutput>()),
        ("downsample", of::<DownsampleOutput>()),
        ("top", of::<TopOutput>()),
    ]
}

fn of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(deny_unknown_keys).transform(&mut schema);
    schema
}

/// Forbids keys that the schema does not name, so that tests notice output that the schema does not describe.
fn deny_unknown_keys(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    let has = |key: &str| object.contains_key(key);
    if !has("properties") || has("additionalProperties") || has("unevaluatedProperties") {
        return;
    }
    // `additionalProperties` does not see keys of a part that is referred to; `unevaluatedProperties` does.
    let parts = ["$ref", "allOf", "anyOf", "oneOf"];
    let key = match parts.into_iter().any(has) {
        true => "unevaluatedProperties",
        false => "additionalProperties",
    };
    object.insert(key.to_owned(), Value::Bool(false));
}
