//! Changed recordings, and the commands that run on each.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use nearpage_recording::fuzz::{Choices, Seeded, mutate};

use super::limited::{Limited, ResourceUse};
use super::{Seeds, seeds, session};

/// Names of the commands that run on each recording.
pub const COMMANDS: [&str; 6] = ["report", "plan", "replay", "export", "page", "view"];

/// Formats of `export`, which take turns over the recordings.
const FORMATS: [&str; 7] = [
    "parquet",
    "pprof",
    "otlp",
    "firefox",
    "perfetto",
    "csv",
    "perf-script",
];

/// Broken rules for a recording.
#[derive(Debug)]
pub struct Failure {
    /// Number of the recording.
    pub number: u64,
    /// Name of the original recording.
    pub seed: String,
    /// Changes to the original.
    pub changes: Vec<String>,
    /// A line for each command that failed.
    pub found: Vec<String>,
    /// Folder of the changed recording.
    pub folder: PathBuf,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} ({})",
            self.number,
            self.seed,
            self.folder.display()
        )?;
        for line in &self.changes {
            writeln!(f, "    {line}")?;
        }
        let found = self.found.iter().map(|line| format!("  {line}"));
        f.write_str(&found.collect::<Vec<String>>().join("\n"))
    }
}

/// A command under test, original recordings, and a folder for changed ones.
pub struct Trials<'a> {
    nearpage: &'a Path,
    seeds: &'a Seeds,
    folder: &'a Path,
    /// Largest time and memory of each command so far.
    pub used: [ResourceUse; COMMANDS.len()],
    /// Number of commands that accepted their recording.
    pub taken: u64,
}

impl<'a> Trials<'a> {
    /// Prepares trials; runs nothing yet.
    pub fn new(nearpage: &'a Path, seeds: &'a Seeds, folder: &'a Path) -> Self {
        Self {
            nearpage,
            seeds,
            folder,
            used: Default::default(),
            taken: 0,
        }
    }

    /// Makes recording `number` of a seed and runs the commands on it.
    ///
    /// # Errors
    /// A folder can't be made, or a program can't be started.
    pub fn run(&mut self, seed: u64, number: u64) -> io::Result<Option<Failure>> {
        let mut choices = Seeded::new(seed, number);
        let sound = &self.seeds.folders[choices.position(self.seeds.folders.len())];
        let folder = self.folder.join(format!("recording-{number}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        // Commands that open a recording may change it, so a copy stays as it was made.
        let mutated = folder.join("mutated");
        seeds::copy_folder(sound, &mutated)?;
        let changes = mutate(&mutated, &mut choices).map_err(io::Error::other)?;
        let mut found = Vec::new();
        for (at, name) in COMMANDS.iter().enumerate() {
            let copy = folder.join("copy");
            seeds::copy_folder(&mutated, &copy)?;
            if let Some(fault) = self.command(at, number, sound, &folder)? {
                found.push(format!("{name}: {fault}"));
            }
            for rest in ["copy", "exported"] {
                let rest = folder.join(rest);
                match rest.is_dir() {
                    true => fs::remove_dir_all(rest)?,
                    false if rest.exists() => fs::remove_file(rest)?,
                    false => {}
                }
            }
        }
        if found.is_empty() {
            fs::remove_dir_all(&folder)?;
            return Ok(None);
        }
        let seed = sound.file_name().unwrap_or_default().display().to_string();
        Ok(Some(Failure {
            number,
            seed,
            changes,
            found,
            folder,
        }))
    }

    /// Runs a command on a copy of the changed recording; returns a broken rule in how the command ended.
    fn command(
        &mut self,
        at: usize,
        number: u64,
        sound: &Path,
        folder: &Path,
    ) -> io::Result<Option<String>> {
        let mut command = Command::new(self.nearpage);
        command.current_dir(folder);
        let is_full = sound.join("trace").exists();
        match COMMANDS[at] {
            "plan" => command.args(["plan", "copy", "--machine", "flash-8", "--phases"]),
            "replay" if is_full => {
                let policies = "first-touch,migrate-replicate,auto,carrefour,plan:auto";
                command.args(["simulate", "copy", "--policy", policies])
            }
            "replay" => command.arg("evaluate").arg(sound).arg("copy"),
            "export" => {
                let format = FORMATS[(number % FORMATS.len() as u64) as usize];
                command.args(["export", "copy", "--to", format, "-o", "exported"])
            }
            "page" => command.args(["report", "copy", "--html", "page.html"]),
            "view" => command.args(["view", "--no-open", "copy"]),
            name => command.args([name, "copy"]),
        };
        let mut limited = Limited::spawn(command, folder)?;
        if COMMANDS[at] == "view" {
            session::ask(&mut limited)?;
            if !limited.has_ended()? && limited.has_time() {
                limited.end()?;
                let (_, used) = limited.wait()?;
                self.taken += 1;
                self.note(at, used);
                // This test sent the signal.
                return Ok(limited.fault(Some(ExitStatus::default()), &used));
            }
        }
        let (status, used) = limited.wait()?;
        self.taken += u64::from(status.is_some_and(|status| status.success()));
        self.note(at, used);
        Ok(limited.fault(status, &used))
    }

    fn note(&mut self, at: usize, used: ResourceUse) {
        self.used[at] = self.used[at].max(used);
    }
}
