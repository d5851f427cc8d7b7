//! `nearpage import`: another tool's file as a recording.

use std::path::PathBuf;
use std::process::ExitCode;

use nearpage_machine::several;
use nearpage_recording::Recording;
use nearpage_recording::import::{Imported, import};

use crate::arguments::Import;
use crate::progress::Progress;
use crate::record::quoted;
use crate::terminal;

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
    let Imported { counts, notes } = {
        let _progress = Progress::new(format!("importing {}", arguments.file.display()));
        let imported = import(&arguments.file, &output, machine)?;
        // What is left of the conversion happens here.
        Recording::open(&output)?;
        imported
    };
    if !arguments.quiet {
        for note in &notes {
            terminal::say(note);
        }
        terminal::say(&format!(
            "{} in user mode: {}, {} without an address; {} in the kernel; {} lost",
            several(counts.samples, "sample"),
            several(counts.accesses, "access"),
            counts.undecoded,
            counts.kernel,
            counts.lost
        ));
        terminal::say(&format!("the recording is in {}", output.display()));
        terminal::say(&format!(
            "next: nearpage report {}",
            quoted(&output.to_string_lossy())
        ));
    }
    Ok(ExitCode::SUCCESS)
}
