//! `nearpage machine`: a machine as nearpage sees it.

use std::path::Path;
use std::process::ExitCode;

use nearpage_machine::Machine;

use crate::arguments;
use crate::terminal;

pub fn main(arguments: arguments::Machine) -> anyhow::Result<ExitCode> {
    let machine = read(&arguments.machine)?;
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
    Ok(Machine::by_name_or_path(argument, Path::new("/sys"))?)
}
