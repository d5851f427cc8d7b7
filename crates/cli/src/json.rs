//! Output of results as JSON.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use anyhow::Context;
use serde::Serialize;

use crate::terminal;

/// Prints a result as indented JSON.
pub fn print(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(terminal::print(
        &(serde_json::to_string_pretty(value)? + "\n"),
    )?)
}

/// Reserves standard output for JSON. While this value lives, output of commands goes to standard error.
pub struct OwnOutput(OwnedFd);

impl OwnOutput {
    pub fn take() -> anyhow::Result<Self> {
        let saved = std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .context("can't keep standard output")?;
        redirect(libc::STDERR_FILENO);
        Ok(Self(saved))
    }

    /// The real standard output, for JSON that is printed while a command runs.
    pub fn file(&self) -> anyhow::Result<File> {
        let file = self.0.try_clone().context("can't keep standard output")?;
        Ok(file.into())
    }
}

impl Drop for OwnOutput {
    fn drop(&mut self) {
        redirect(self.0.as_raw_fd());
    }
}

fn redirect(to: RawFd) {
    // SAFETY: the call takes no pointers; both descriptors are open.
    unsafe { libc::dup2(to, libc::STDOUT_FILENO) };
}
