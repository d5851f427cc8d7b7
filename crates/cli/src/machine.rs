//! `nearpage machine`: a machine as nearpage sees it, or measures it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use nearpage_machine::{Effort, Machine, Measurement};

use crate::arguments;
use crate::progress::Progress;
use crate::terminal;

const SYS: &str = "/sys";

pub fn main(arguments: arguments::Machine) -> anyhow::Result<ExitCode> {
    // Before a minute of measuring, not after it.
    let output = arguments.output.map(Output::new).transpose()?;
    let machine = if arguments.measure {
        measure(arguments.quick)?
    } else {
        read(&arguments.machine)?
    };
    if let Some(output) = output {
        output.write(&machine.to_toml())?;
    }
    let text = if arguments.json {
        serde_json::to_string_pretty(&machine)? + "\n"
    } else if arguments.toml {
        machine.to_toml()
    } else {
        machine.to_text(terminal::width())
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// `local`, a preset's name or a file.
pub fn read(argument: &str) -> anyhow::Result<Machine> {
    Ok(Machine::by_name_or_path(argument, Path::new(SYS))?)
}

fn measure(quick: bool) -> anyhow::Result<Machine> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let sys = Path::new(SYS);
    let measurement = Measurement::new(Machine::local(sys)?, effort, sys)?;
    let seconds = measurement.expected().as_secs_f64().ceil();
    let (from, to) = measurement.nodes();
    eprintln!("nearpage: measuring {from} × {to} nodes, about {seconds} s");
    let measured = {
        let progress = Progress::new("measuring".to_owned());
        measurement.run(&mut |step| progress.say(format!("measuring {step}")))?
    };
    for note in &measured.notes {
        eprintln!("nearpage: {note}");
    }
    if quick {
        eprintln!("nearpage: --quick: the figures say little");
    }
    Ok(measured.machine)
}

/// A file that appears whole or not at all.
struct Output {
    path: PathBuf,
}

impl Output {
    fn new(path: PathBuf) -> anyhow::Result<Self> {
        let output = Self { path };
        // Tried and undone: a folder that is not there, or not ours, shows now.
        let beside = output.beside();
        fs::File::create(&beside)
            .and_then(|_| fs::remove_file(&beside))
            .with_context(|| format!("{}: can't be written", output.path.display()))?;
        Ok(output)
    }

    fn beside(&self) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(format!(".{}", std::process::id()));
        self.path.with_file_name(name)
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let beside = self.beside();
        let written = fs::File::create(&beside)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.with_context(|| format!("{}: can't be written", self.path.display()))
    }
}
