//! `nearpage generate`: man pages, a page of all commands and completions from the argument definitions, and JSON
//! Schemas from the printed types.

use std::process::ExitCode;

use anyhow::Context;

use crate::arguments::{Generate, GenerateWhat, definitions};
use crate::{schema, terminal};

pub fn main(arguments: Generate) -> anyhow::Result<ExitCode> {
    let mut command = definitions();
    match arguments.what {
        GenerateWhat::Commands => terminal::print(&commands(command))?,
        GenerateWhat::Man { directory } => {
            std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(command, &directory))
                .with_context(|| format!("{}: can't write the man pages", directory.display()))?;
        }
        GenerateWhat::Schema { directory } => {
            schema::write(&directory)
                .with_context(|| format!("{}: can't write the schemas", directory.display()))?;
        }
        GenerateWhat::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "nearpage", &mut text);
            terminal::print(&String::from_utf8(text)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Width of the help texts in the page.
const COLUMNS: usize = 90;

/// Help of every visible command, one section each.
fn commands(command: clap::Command) -> String {
    let mut command = command.term_width(COLUMNS).max_term_width(COLUMNS);
    command.build();
    let mut text = "# Commands\n\nMade by `nearpage generate commands` from what the commands print with `--help`.\n".to_owned();
    section(&mut command, "##", &mut text);
    text
}

fn section(command: &mut clap::Command, heading: &str, text: &mut String) {
    let name = command.get_bin_name().unwrap_or("nearpage").to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    *text += &format!("\n{heading} {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            section(inner, "##", text);
        }
    }
}
