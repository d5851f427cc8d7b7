//! Booted guests, saved so that later runs on the same machine skip the boot.
//!
//! The guest's first process executes a mark after the boot, before it mounts anything, because QEMU saves no guest
//! with a mounted 9p. The emulator stops there, and its state goes to a file in the cache. The file's name is a hash of
//! everything the boot depends on. If the cache can't be written, each run boots.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Instant, SystemTime};

use nearpage_files::TemporaryFolder;
use serde_json::{Value, json};

use super::emulator::cache_folder;
use super::guest::{Beginning, Guest, KEPT_VARIABLE, LOOK_EVERY};
use crate::error::{Error, IoContext};

/// Maximum number of kept guests. A guest takes some 100 MB.
const KEPT_MAX: usize = 8;

impl Guest<'_> {
    /// File of this guest in the cache; `None` without a cache folder.
    pub fn kept_path(&self) -> Result<Option<PathBuf>, Error> {
        let Some(folder) = cache_folder() else {
            return Ok(None);
        };
        let mut hash = DefaultHasher::new();
        self.fixed_arguments()?.hash(&mut hash);
        self.machine.timing_lines().hash(&mut hash);
        for path in [&self.parts.emulator, &self.parts.kernel] {
            let metadata = fs::metadata(path).at(path, "can't be read")?;
            let modified = (metadata.mtime(), metadata.mtime_nsec());
            (path, metadata.len(), modified).hash(&mut hash);
        }
        fs::read(self.initramfs)
            .at(self.initramfs, "can't be read")?
            .hash(&mut hash);
        Ok(Some(folder.join(format!("guests/{:016x}", hash.finish()))))
    }

    /// Boots the guest and saves its state. `false`: the file can't be written.
    pub(super) fn keep(&self, path: &Path) -> Result<bool, Error> {
        let Some(parent) = path.parent() else {
            return Ok(false);
        };
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent);
        let Ok(folder) = made.and_then(|()| TemporaryFolder::below(parent, "lab")) else {
            return Ok(false);
        };
        let new = folder.path().join("guest");
        let mut emulator = self.start(&Beginning::UntilBooted(&new))?;
        let begun = Instant::now();
        let mut monitor = Monitor::new(&mut emulator.0)?;
        loop {
            self.check(&emulator, begun)?;
            match monitor.look() {
                Saving::GoesOn => {}
                Saving::Done => break,
                Saving::Failed => return Ok(false),
                // A booted guest would have stopped instead, so the guest ended before.
                Saving::Ended => return self.ended(false).map(|_| false),
            }
        }
        drop(emulator);
        remove_oldest(parent);
        Ok(fs::rename(&new, path).is_ok())
    }
}

/// Updates a kept guest's time of use. The guest that was unused for longest is removed first.
pub(super) fn note_use(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Removes the oldest guests, to make room for one more.
fn remove_oldest(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((metadata.modified().ok()?, entry.path()))
    });
    let mut files: Vec<(SystemTime, PathBuf)> = files.collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(KEPT_MAX - 1) {
        let _ = fs::remove_file(path);
    }
}

/// State of saving a guest.
#[derive(Debug, PartialEq, Eq)]
enum Saving {
    GoesOn,
    Done,
    Failed,
    /// The emulator has ended.
    Ended,
}

/// Connection to QEMU's monitor (QMP), which exchanges a line of JSON for each command, answer and event.
struct Monitor {
    commands: ChildStdin,
    messages: Receiver<Value>,
    saves: bool,
}

impl Monitor {
    /// Connects to an emulator that was started with pipes.
    fn new(emulator: &mut Child) -> Result<Self, Error> {
        let (Some(commands), Some(output)) = (emulator.stdin.take(), emulator.stdout.take()) else {
            return Err(std::io::Error::other("no pipes")).context("can't talk to the emulator");
        };
        let (sender, messages) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else {
                    continue;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .spawn(read)
            .context("can't make a thread")?;
        Ok(Self {
            commands,
            messages,
            saves: false,
        })
    }

    /// Waits for a message for [`LOOK_EVERY`] at most, and acts on it.
    fn look(&mut self) -> Saving {
        match self.messages.recv_timeout(LOOK_EVERY) {
            Ok(message) => {
                let (saving, answers) = answer(&message, &mut self.saves);
                for answer in answers {
                    // If the emulator has ended, the next call returns `Ended`.
                    let _ = writeln!(self.commands, "{answer}");
                }
                saving
            }
            Err(RecvTimeoutError::Timeout) => Saving::GoesOn,
            Err(RecvTimeoutError::Disconnected) => Saving::Ended,
        }
    }
}

/// State of saving after a message, and the commands to send. `saves`: the guest has stopped and is being saved.
fn answer(message: &Value, saves: &mut bool) -> (Saving, Vec<Value>) {
    let command = |name: &str, arguments: Value| json!({"execute": name, "arguments": arguments});
    if message.get("QMP").is_some() {
        let events = json!({"capabilities": [{"capability": "events", "state": true}]});
        let commands = vec![
            json!({"execute": "qmp_capabilities"}),
            command("migrate-set-capabilities", events),
            // No bandwidth limit for writing.
            command(
                "migrate-set-parameters",
                json!({"max-bandwidth": 1_u64 << 40}),
            ),
        ];
        return (Saving::GoesOn, commands);
    }
    if message.get("error").is_some() {
        return (Saving::Failed, Vec::new());
    }
    match (
        message["event"].as_str(),
        message["data"]["status"].as_str(),
    ) {
        (Some("STOP"), _) if !*saves => {
            *saves = true;
            let to_file = format!("exec:cat >\"${KEPT_VARIABLE}\"");
            let commands = vec![command("migrate", json!({"uri": to_file}))];
            (Saving::GoesOn, commands)
        }
        (Some("MIGRATION"), Some("completed")) => (Saving::Done, Vec::new()),
        (Some("MIGRATION"), Some("failed")) => (Saving::Failed, Vec::new()),
        _ => (Saving::GoesOn, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_saved_once_it_has_stopped() {
        let mut saves = false;
        let mut say = |text: &str| {
            let (saving, answers) = answer(&serde_json::from_str(text).unwrap(), &mut saves);
            let commands = answers.iter().map(|answer| answer["execute"].to_string());
            (saving, commands.collect::<Vec<_>>().join(" "))
        };
        let (_, commands) = say(r#"{"QMP": {"version": {}}}"#);
        assert!(commands.starts_with("\"qmp_capabilities\""), "{commands}");
        let nothing = |saving| (saving, String::new());
        assert_eq!(say(r#"{"return": {}}"#), nothing(Saving::GoesOn));
        let saved = (Saving::GoesOn, "\"migrate\"".to_owned());
        assert_eq!(say(r#"{"event": "STOP"}"#), saved);
        assert_eq!(say(r#"{"event": "STOP"}"#), nothing(Saving::GoesOn));
        for (status, saving) in [
            ("active", Saving::GoesOn),
            ("completed", Saving::Done),
            ("failed", Saving::Failed),
        ] {
            let text = format!(r#"{{"event": "MIGRATION", "data": {{"status": "{status}"}}}}"#);
            assert_eq!(say(&text), nothing(saving));
        }
        let refused = r#"{"error": {"class": "GenericError", "desc": "no"}}"#;
        assert_eq!(say(refused), nothing(Saving::Failed));
    }

    #[test]
    fn the_guests_that_were_used_last_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..KEPT_MAX + 3 {
            let path = folder.path().join(number.to_string());
            let file = File::create(path).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            file.set_modified(time).unwrap();
        }
        note_use(&folder.path().join("0"));
        remove_oldest(folder.path());
        let left = |number: usize| folder.path().join(number.to_string()).exists();
        assert!(left(0) && left(KEPT_MAX + 2));
        assert!(!left(1) && !left(2) && !left(3) && !left(4));
    }
}
