//! Real programs: `program.c` and `library.c`, compiled by gcc.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nearpage_plan::{ProgramImage, SearchPaths};
use tempfile::TempDir;

/// A folder of compiled programs.
pub struct Compiled {
    folder: TempDir,
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

impl Compiled {
    /// A folder with the library.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let compiled = Self { folder };
        compiled.library("libtold.so.1.0", &[]);
        std::os::unix::fs::symlink("libtold.so.1.0", compiled.path("libtold.so.1")).expect("link");
        std::os::unix::fs::symlink("libtold.so.1.0", compiled.path("libtold.so")).expect("link");
        compiled
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn library(&self, name: &str, flags: &[&str]) {
        run(Command::new("gcc")
            .args([
                "-O1",
                "-g",
                "-shared",
                "-fPIC",
                "-Wl,--build-id",
                "-Wl,-soname,libtold.so.1",
            ])
            .args(flags)
            .arg("-o")
            .arg(self.path(name))
            .arg(source("library.c")));
    }

    pub fn program(&self, name: &str, flags: &[&str]) -> PathBuf {
        let path = self.path(name);
        run(Command::new("gcc")
            .args(["-O1", "-g", "-Wl,--build-id", "-Wl,-rpath,$ORIGIN"])
            .args(flags)
            .arg("-o")
            .arg(&path)
            .arg(source("program.c"))
            .arg("-L")
            .arg(self.folder.path())
            .arg("-ltold"));
        path
    }

    pub fn image(&self, name: &str, flags: &[&str]) -> ProgramImage {
        load(&self.program(name, flags))
    }

    /// Addresses that the program prints: virtual addresses in its file, by name.
    pub fn printed_addresses(&self, name: &str) -> HashMap<String, u64> {
        let line = |line: &str| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        run(&mut Command::new(self.path(name)))
            .lines()
            .filter_map(line)
            .collect()
    }
}

pub fn search() -> SearchPaths {
    SearchPaths::from_environment()
}

pub fn load(path: &Path) -> ProgramImage {
    ProgramImage::load(OsStr::new(path), &search()).expect("program")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/translation")
        .join(name)
}
