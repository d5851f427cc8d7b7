//! `nearpage generate`: man pages and completions from the argument definitions, JSON Schemas from the types that are
//! printed.

use std::process::ExitCode;

use anyhow::Context;

use crate::arguments::{Generate, GenerateWhat, definitions};
use crate::{schema, terminal};

pub fn main(arguments: Generate) -> anyhow::Result<ExitCode> {
    let mut command = definitions();
    match arguments.what {
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
