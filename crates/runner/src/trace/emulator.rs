//! Finds the emulator of user programs that loads the tracer.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;

/// Debian package with an emulator.
pub(crate) const EMULATOR_PACKAGE: &str = "qemu-user";
/// Source of an emulator that loads plugins.
pub const PLUGINS_FROM: &str = "install qemu-user 7.2 of Debian 12 (Debian's are static from 9.1 on), or put a qemu-x86_64 \
                                built with --enable-plugins on PATH";
const NAMES: [&str; 2] = ["qemu-x86_64", "qemu-x86_64-static"];

/// A QEMU for programs of this machine's architecture. The first QEMU on PATH that loads plugins is used. Versions 7.2
/// (plugin API 1) and 10.0 (API 2 to 4) have been tried.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// Path of the emulator.
    pub path: PathBuf,
    /// Version in the emulator's own words: `7.2.22 (Debian …)`.
    pub version: String,
    /// Was the emulator built with plugins?
    pub loads_plugins: bool,
}

impl Emulator {
    /// All emulators on PATH.
    pub fn all() -> Vec<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = env::split_paths(&path).collect();
        files_in(folders)
            .into_iter()
            .filter_map(Self::query)
            .collect()
    }

    fn query(path: PathBuf) -> Option<Self> {
        let query = |option: &str| -> Option<String> {
            let output = Command::new(&path).arg(option).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let version = version(&query("--version")?);
        let loads_plugins = takes_plugins(&query("-h")?);
        Some(Self {
            path,
            version,
            loads_plugins,
        })
    }

    /// The first emulator that can load the tracer.
    pub(super) fn find() -> Result<Self, Error> {
        Self::able(Self::all())
    }

    /// The first emulator of `all` that can load the tracer.
    fn able(all: Vec<Self>) -> Result<Self, Error> {
        if let Some(able) = all.iter().find(|emulator| emulator.loads_plugins) {
            return Ok(able.clone());
        }
        Err(match all.into_iter().next() {
            None => Error::NoEmulator,
            Some(Self { path, version, .. }) => Error::EmulatorWithoutPlugins { path, version },
        })
    }
}

/// Files of emulators in these folders. A file with several links to it is returned once.
fn files_in(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in NAMES {
        for folder in &folders {
            let candidate = folder.join(name);
            let Ok(real) = candidate.canonicalize() else {
                continue;
            };
            let known = |other: &PathBuf| other.canonicalize().ok().as_ref() == Some(&real);
            if !found.iter().any(known) {
                found.push(candidate);
            }
        }
    }
    found
}

/// The version in the output of `--version`.
fn version(printed: &str) -> String {
    let line = printed.lines().next().unwrap_or_default();
    let version = line.rsplit("version ").next().unwrap_or_default();
    version.to_owned()
}

/// Does the help list an option for plugins?
fn takes_plugins(help: &str) -> bool {
    help.lines().any(|line| line.starts_with("-plugin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_plugins_are_read_from_what_is_printed() {
        let printed = "qemu-x86_64 version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright (c) 2003-2022\n";
        assert_eq!(version(printed), "7.2.22 (Debian 1:7.2+dfsg-7)");
        assert_eq!(version(""), "");
        let help = "usage: qemu-x86_64 [options] program\n-h  print this help\n";
        assert!(!takes_plugins(help));
        let with_plugins = "-plugin [file=]<file>[,<argname>=<argvalue>]\n";
        assert!(takes_plugins(&format!("{help}{with_plugins}")));
    }

    #[test]
    fn the_first_emulator_that_loads_plugins_is_taken() {
        let emulator = |path: &str, loads_plugins| Emulator {
            path: path.into(),
            version: "7.2".to_owned(),
            loads_plugins,
        };
        let taken = Emulator::able(vec![emulator("/a", false), emulator("/b", true)]);
        assert_eq!(taken.unwrap().path, PathBuf::from("/b"));
        let error = Emulator::able(vec![emulator("/a", false)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("/a 7.2: built without plugins, as static builds are; {PLUGINS_FROM}")
        );
        let error = Emulator::able(Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "qemu-x86_64: not found on PATH; it comes with the Debian package qemu-user"
        );
    }

    #[test]
    fn links_to_one_emulator_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| folder.path().join(name));
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
        }
        let file = folders[0].join("qemu-x86_64");
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, folders[1].join("qemu-x86_64")).unwrap();
        let other = folders[1].join("qemu-x86_64-static");
        std::fs::write(&other, "").unwrap();
        assert_eq!(files_in(folders.to_vec()), [file, other]);
    }
}
