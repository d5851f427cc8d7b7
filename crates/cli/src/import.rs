//! `nearpage import`: makes a recording of another tool's file.

use std::path::PathBuf;
use std::process::ExitCode;

use nearpage_amount::counted;
use nearpage_recording::import::{Imported, import};
use nearpage_recording::{Recording, SampleCounts, Source};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Import;
use crate::progress::Progress;
use crate::{json, shell, terminal};

/// What `import --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImportOutput {
    /// Version of this form.
    version: u32,
    /// The other tool's file.
    input: PathBuf,
    /// Folder of the recording that was made.
    output: PathBuf,
    /// Source of the accesses.
    source: Source,
    /// Number of samples, by outcome.
    counts: SampleCounts,
    /// Limits of the import, with their causes.
    notes: Vec<String>,
}

pub fn main(arguments: Import) -> anyhow::Result<ExitCode> {
    let machine = match &arguments.machine {
        Some(machine) => Some(crate::machine::read(machine)?),
        None => None,
    };
    let output = arguments.output.unwrap_or_else(|| {
        let mut name = arguments.file.clone().into_os_string();
        name.push(".nearpage");
        PathBuf::from(name)
    });
    let (Imported { counts, notes }, source) = {
        let _progress = Progress::new(format!("importing {}", arguments.file.display()));
        let imported = import(&arguments.file, &output, machine)?;
        // Opening the recording completes the conversion.
        let source = Recording::open(&output)?.metadata.source;
        (imported, source)
    };
    if arguments.json {
        json::print(&ImportOutput {
            version: nearpage_recording::JSON_VERSION,
            input: arguments.file,
            output,
            source,
            counts,
            notes,
        })?;
    } else if !arguments.quiet {
        for note in &notes {
            terminal::say(note);
        }
        terminal::say(&format!(
            "{} in user mode: {}, {} without an address; {} in the kernel; {} lost",
            counted(counts.samples, "sample"),
            counted(counts.accesses, "access"),
            counts.undecoded,
            counts.kernel,
            counts.lost
        ));
        terminal::say(&format!("the recording is in {}", output.display()));
        terminal::next(&format!("nearpage report {}", shell::path(&output)));
    }
    Ok(ExitCode::SUCCESS)
}
