//! Programs built, run and recorded.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::program::Program;
use super::source::{HEADER, source};

/// How a program is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Samples a second; none: as many as by default.
    pub rate: Option<u64>,
    /// Recordings that are there are taken instead of made anew, to compare what two builds make of the same ones.
    pub reuses: bool,
    /// The other size is recorded as long, and one plan is made of both recordings, too.
    pub is_of_both: bool,
}

/// A program in a folder of its own.
pub struct Run<'a> {
    program: &'a Program,
    nearpage: PathBuf,
    folder: PathBuf,
    how: How,
}

/// Where the pieces of objects were in a run, and which kernel thread was which of the team.
#[derive(Clone, Debug, Default)]
pub struct Sidecar {
    /// Kernel thread ids by number in the team; the last is the main thread.
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
            how: How::default(),
        };
        run.compile("program", &[])?;
        Ok(run)
    }

    /// Records in this way instead of by default.
    #[must_use]
    pub fn recorded(self, how: How) -> Self {
        Self { how, ..self }
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
        // Threads that spin while they wait take the CPU from those that work, where there are more than CPUs.
        command.env("OMP_WAIT_POLICY", "passive");
        command
    }

    /// Runs a command to its end; what it prints goes to a file.
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

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records the program into a folder `name`.
    ///
    /// # Errors
    /// The program or the recording failed.
    pub fn record(&self, name: &str, size: u64, team: u64, passes: u64) -> io::Result<PathBuf> {
        let recording = self.folder.join(name);
        if recording.exists() {
            if self.how.reuses {
                return Ok(recording);
            }
            fs::remove_dir_all(&recording)?;
        }
        let mut command = self.command(&self.nearpage.to_string_lossy());
        command.args(["record", "-o", name]);
        if let Some(rate) = self.how.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        command.args(["--", "./program"]);
        command.args(["--size", &size.to_string(), "--threads", &team.to_string()]);
        command.args(["--passes", &passes.to_string()]);
        command.args(["--objects", &format!("{name}.objects")]);
        self.finish(command, &format!("{name}.log"))?;
        Ok(recording)
    }

    /// Makes one plan of one recording or more, for the program's machine.
    ///
    /// # Errors
    /// Planning failed.
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

    /// Where things were in a recorded run.
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

    /// Counts each access in an instrumented build: a line for each object, unit and thread, as `program.h` says.
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
