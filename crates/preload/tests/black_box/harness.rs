//! Builds the library and the C programs, and runs them with and without it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::library::library;
use crate::log::{Log, MESSAGES};
use crate::messages::{messages_file, messages_in};

/// A folder for one test.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("nearpage-preload-")
        .tempdir()
        .unwrap()
}

/// Compiles `tests/programs/NAME` in `folder` with further arguments; None without a compiler.
pub fn compile(folder: &Path, name: &str, arguments: &[&str]) -> Option<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let (compiler, suffix) = if name.ends_with(".cc") {
        ("c++", ".cc")
    } else {
        ("cc", ".c")
    };
    let program = folder.join(name.strip_suffix(suffix).unwrap());
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let output = Command::new(compiler)
        .args([
            "-O1",
            "-g",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-fno-builtin-malloc",
            "-I",
        ])
        .arg(include)
        .arg("-o")
        .arg(&program)
        .arg(sources.join(name))
        .args(arguments)
        .output();
    match output {
        Ok(output) => {
            assert!(
                output.status.success(),
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            Some(program)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no compiler {compiler} here");
            None
        }
        Err(error) => panic!("{compiler}: {error}"),
    }
}

/// A run with the library.
pub struct Run {
    /// What the program wrote and how it ended.
    pub output: Output,
    /// What the library wrote.
    pub log: Log,
    folder: tempfile::TempDir,
}

impl Run {
    /// Standard output.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// What the library had to say, a line each.
    pub fn said(&self) -> String {
        messages_in(&std::fs::read(self.folder.path().join(MESSAGES)).unwrap())
    }

    /// Standard error.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Bytes of all segments.
    pub fn log_bytes(&self) -> u64 {
        self.segments().map(|segment| segment.len()).sum()
    }

    /// Bytes that all segments take on disk.
    pub fn log_disk_bytes(&self) -> u64 {
        self.segments().map(|segment| 512 * segment.blocks()).sum()
    }

    fn segments(&self) -> impl Iterator<Item = std::fs::Metadata> {
        std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| entry.file_name() != MESSAGES)
            .map(|entry| entry.metadata().unwrap())
    }
}

/// A file for what the library has to say, in `folder`.
pub fn messages(folder: &Path) -> PathBuf {
    let path = folder.join(MESSAGES);
    std::fs::write(&path, messages_file()).unwrap();
    path
}

/// Runs `command` with the library and further environment variables.
pub fn observed(command: &mut Command, environment: &[(&str, &str)]) -> Run {
    let folder = folder();
    command
        .env("LD_PRELOAD", library())
        .env("NEARPAGE_LOG", folder.path())
        .env("NEARPAGE_MESSAGES", messages(folder.path()));
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    Run {
        output,
        log: Log::read(folder.path()),
        folder,
    }
}

/// Runs `command` twice, without and with the library, and asserts that nobody sees a difference.
pub fn same_behaviour(command: impl Fn() -> Command, environment: &[(&str, &str)]) -> Run {
    let plain = command().output().unwrap();
    let run = observed(&mut command(), environment);
    assert_eq!(
        run.output.status,
        plain.status,
        "{}\n{}",
        run.text(),
        run.errors()
    );
    assert_eq!(run.text(), String::from_utf8_lossy(&plain.stdout));
    assert_eq!(run.errors(), String::from_utf8_lossy(&plain.stderr));
    run
}

/// Compiles and runs a program of ours, which says `done`.
pub fn program(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Option<Run> {
    let folder = folder();
    let program = compile(folder.path(), name, &[])?;
    let run = same_behaviour(
        || {
            let mut command = Command::new(&program);
            command.args(arguments);
            command
        },
        environment,
    );
    assert!(
        run.output.status.success(),
        "{}\n{}",
        run.text(),
        run.errors()
    );
    Some(run)
}
