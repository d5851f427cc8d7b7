//! Original recordings, before changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{repository, workload};

/// Shell script that runs the program for some time and then kills the recorder, which is its parent.
const KILL_RECORDER: &str = "\"$@\"; sleep 0.3; kill -9 $PPID";

/// Original recordings, in a folder each.
#[derive(Debug)]
pub struct Seeds {
    pub(super) folders: Vec<PathBuf>,
}

impl Seeds {
    /// The originals in the folder, made where missing: samples and traces, finished and interrupted, and the fixtures
    /// of earlier versions.
    ///
    /// # Errors
    /// A program can't be started.
    pub fn new(nearpage: &Path, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let cg = workload("cg");
        let small = [cg.clone(), "400".into(), "6".into(), "2".into()];
        let large = [cg, "200000".into(), "8".into(), "30".into()];
        let full = ["--source", "full", "--machine", "flash-8"];
        let hits = ["--source", "full", "--machine", "flash-8", "--keep-hits"];
        let rate = ["--rate", "997"];
        let record = |name: &str, options: &[&str], kill: bool, words: &[PathBuf]| {
            let recording = folder.join(name);
            if recording.exists() {
                return Ok(());
            }
            let mut command = Command::new(nearpage);
            command
                .arg("record")
                .args(options)
                .arg("-o")
                .arg(&recording);
            command.arg("--");
            if kill {
                command.args(["sh", "-c", KILL_RECORDER, "sh"]);
            }
            command
                .args(words)
                .env("OMP_NUM_THREADS", "3")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().map(|_| ())
        };
        record("sampled", &rate, false, &large)?;
        record("sampled-unfinished", &rate, true, &large)?;
        record("full", &full, false, &small)?;
        record("full-hits", &hits, false, &small)?;
        record("full-unfinished", &full, true, &small)?;
        let downsampled = folder.join("downsampled");
        if !downsampled.exists() {
            let mut downsample = Command::new(nearpage);
            downsample.args(["thin", "--quiet", "--every", "4", "-o"]);
            downsample.arg(&downsampled).arg(folder.join("full"));
            downsample
                .stderr(Stdio::null())
                .stdout(Stdio::null())
                .status()?;
        }
        let fixtures = repository().join("crates/recording/tests/fixtures");
        for name in ["version-1-full", "version-1-log", "version-1-tables"] {
            let copy = folder.join(name);
            if !copy.exists() {
                copy_folder(&fixtures.join(name), &copy)?;
            }
        }
        let mut folders: Vec<PathBuf> = fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.join("recording.json").exists())
            .collect();
        folders.sort();
        Ok(Self { folders })
    }

    /// Names of the recordings.
    pub fn names(&self) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().display().to_string();
        self.folders.iter().map(name).collect()
    }
}

/// Copies a folder of files and folders.
pub(super) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &copy)?,
            false => fs::copy(entry.path(), copy).map(|_| ())?,
        }
    }
    Ok(())
}
