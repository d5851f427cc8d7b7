//! Builds, runs and records generated programs.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::program::Program;
use super::source::{HEADER, source};

/// Options of recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingOptions {
    /// Samples a second; none: the default.
    pub rate: Option<u64>,
    /// Uses existing recordings instead of making new ones, to compare two builds of nearpage on the same recordings.
    pub reuses: bool,
    /// Records the other size for as long as the first, and makes a plan of both recordings, too.
    pub is_of_both: bool,
}

/// A program in its own folder.
pub struct Run<'a> {
    program: &'a Program,
    nearpage: PathBuf,
    folder: PathBuf,
    options: RecordingOptions,
}

/// Addresses of objects' pieces in a run, and kernel threads by number in the team.
#[derive(Clone, Debug, Default)]
pub struct Sidecar {
    /// Kernel thread ids by number in the team; the last is the main thread's.
    pub threads: Vec<u32>,
    /// Addresses of each object's pieces.
    pub pieces: HashMap<String, Vec<u64>>,
}

impl<'a> Run<'a> {
    /// Writes and compiles the program.
    ///
    /// # Errors
    /// The folder cannot be written, or the compiler refuses the program.
    pub fn new(program: &'a Program, nearpage: &Path, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        fs::write(folder.join("program.h"), HEADER)?;
        fs::write(folder.join("program.c"), source(program))?;
        let run = Self {
            program,
            nearpage: nearpage.canonicalize()?,
            folder,
            options: RecordingOptions::default(),
        };
        run.compile("program", &[])?;
        Ok(run)
    }

    /// Sets options of recording.
    #[must_use]
    pub fn recorded(self, options: RecordingOptions) -> Self {
        Self { options, ..self }
    }

    fn compile(&self, name: &str, options: &[&str]) -> io::Result<()> {
        let thread_option = match self.program.style.is_openmp() {
            true => "-fopenmp",
            false => "-pthread",
        };
        let mut compiler = self.command("cc");
        compiler
            .args([
                "-O1",
                "-g",
                "-Wall",
                "-Wextra",
                "-Wno-unused-function",
                "-Werror",
                thread_option,
            ])
            .args(options)
            .args(["-o", name, "program.c"]);
        self.finish(compiler, "cc.log")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["NEARPAGE_", "OMP_", "GOMP_"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(&name);
            }
        }
        // With more threads than CPUs, spinning threads would take the CPU from working threads.
        command.env("OMP_WAIT_POLICY", "passive");
        command
    }

    /// Runs a command to its end, with output to a file.
    fn finish(&self, mut command: Command, log: &str) -> io::Result<()> {
        let log = self.folder.join(log);
        let file = File::create(&log)?;
        let status = command.stdout(file.try_clone()?).stderr(file).status()?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        Err(io::Error::other(format!("{command:?}: {status}\n{said}")))
    }

    /// Runs `nearpage` in the folder and returns its standard output.
    ///
    /// # Errors
    /// `nearpage` failed.
    pub fn output(&self, arguments: &[&str]) -> io::Result<String> {
        let mut command = self.command(&self.nearpage.to_string_lossy());
        command.args(arguments);
        output(command)
    }

    /// Runs `nearpage` in the folder and returns the JSON that it prints.
    ///
    /// # Errors
    /// `nearpage` failed, or printed no JSON.
    pub fn json(&self, arguments: &[&str]) -> io::Result<Value> {
        Ok(serde_json::from_str(&self.output(arguments)?)?)
    }

    /// Folder of the program and its recordings.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records the program into the folder `name`.
    ///
    /// # Errors
    /// The program or the recording failed.
    pub fn record(&self, name: &str, size: u64, team: u64, passes: u64) -> io::Result<PathBuf> {
        let recording = self.folder.join(name);
        if recording.exists() {
            if self.options.reuses {
                return Ok(recording);
            }
            fs::remove_dir_all(&recording)?;
        }
        let mut command = self.command(&self.nearpage.to_string_lossy());
        command.args(["record", "-o", name]);
        if let Some(rate) = self.options.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        command.args(["--", "./program"]);
        command.args(["--size", &size.to_string(), "--threads", &team.to_string()]);
        command.args(["--passes", &passes.to_string()]);
        command.args(["--objects", &format!("{name}.objects")]);
        self.finish(command, &format!("{name}.log"))?;
        Ok(recording)
    }

    /// Makes a plan of one or more recordings, for the program's machine.
    ///
    /// # Errors
    /// `nearpage plan` failed.
    pub fn plan(&self, recordings: &[&str]) -> io::Result<PathBuf> {
        let Program {
            machine, layout, ..
        } = self.program;
        let name = recordings.join("+");
        let file = format!("{name}.toml");
        let mut command = self.command(&self.nearpage.to_string_lossy());
        command.arg("plan").args(recordings);
        command.args(["--machine", machine, "--threads", layout]);
        command.args(["-o", &file]);
        self.finish(command, &format!("{name}.plan.log"))?;
        Ok(self.folder.join(file))
    }

    /// Addresses and threads of a recorded run.
    ///
    /// # Errors
    /// There is no such run.
    pub fn sidecar(&self, name: &str) -> io::Result<Sidecar> {
        let text = fs::read_to_string(self.folder.join(format!("{name}.objects")))?;
        let mut sidecar = Sidecar::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let damaged = || io::Error::other(format!("{name}.objects: {line}"));
            match words[..] {
                ["thread", _, tid] => sidecar.threads.push(tid.parse().map_err(|_| damaged())?),
                ["piece", object, _, address] => sidecar
                    .pieces
                    .entry(object.to_owned())
                    .or_default()
                    .push(address.parse().map_err(|_| damaged())?),
                _ => return Err(damaged()),
            }
        }
        Ok(sidecar)
    }

    /// Counts all accesses in an instrumented build; returns a line for each object, unit and thread, as in
    /// `program.h`.
    ///
    /// # Errors
    /// The program failed.
    pub fn count(&self, size: u64, team: u64, passes: u64) -> io::Result<String> {
        self.compile("counting", &["-DCOUNT"])?;
        let mut command = self.command("./counting");
        command.args(["--size", &size.to_string(), "--threads", &team.to_string()]);
        command.args(["--passes", &passes.to_string(), "--counts", "counts"]);
        self.finish(command, "counting.log")?;
        fs::read_to_string(self.folder.join("counts"))
    }
}

/// Runs a command without input and returns its standard output.
pub(super) fn output(mut command: Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "{command:?}: {}\n{said}",
        output.status
    )))
}
