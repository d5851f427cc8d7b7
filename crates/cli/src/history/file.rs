//! File of predictions and measurements: one line of JSON for each pair, the newest last.
//!
//! The file is in the user's state folder and never leaves this machine. A writer holds a lock on a second file, writes
//! all lines under another name, and renames. So a reader sees the old lines or the new lines, and a full disk leaves
//! the old lines. Links are not followed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_planner::{Change, Judged, MachineClass, ModelErrors};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pairs that are kept, the newest ones.
pub const PAIRS_MAX: usize = 1000;
/// Size limit of the file in bytes. Larger files are refused, and the oldest pairs are dropped to stay below the limit.
const BYTES_MAX: usize = 1 << 20;
/// Length limit of a name, in characters.
const NAME_MAX: usize = 200;
/// How long a writer waits for another writer.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const FILE: &str = "history.jsonl";
const LOCK: &str = "history.lock";
/// Version of the format of a line.
pub const VERSION: u32 = 1;

/// The command that measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredBy {
    /// `optimize`: runs with and without the plan, in turn.
    Optimize,
    /// `run`: a run under the plan, compared with the earlier runs of `optimize`.
    Run,
}

/// A prediction and its measurement. Changes are shares of the time under first touch: −0.2 means a fifth less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pair {
    /// Version of this form.
    pub version: u32,
    /// Time of the measurement, in seconds since 1970.
    pub unix_s: u64,
    /// File name of the program.
    pub program: String,
    /// Identity of the program and its arguments: the build-id (or the name, without a build-id) and a digest of the
    /// arguments.
    pub key: String,
    /// Name of the machine.
    pub machine: String,
    /// Class of the machine.
    pub class: MachineClass,
    /// The command that measured.
    pub measured_by: MeasuredBy,
    /// Method of the prediction.
    pub predicted_by: Judged,
    /// Predicted change of the time.
    pub predicted: f64,
    /// Bounds of `predicted` that follow from the number of samples; null if there are none.
    pub predicted_range: Option<[f64; 2]>,
    /// Measured change of the time.
    pub measured: f64,
    /// Elapsed time without the plan, in nanoseconds: the median of the runs.
    pub first_touch_ns: f64,
    /// Elapsed time with the plan, in nanoseconds.
    pub planned_ns: f64,
    /// Number of runs of each kind.
    pub runs: u32,
    /// Folder name of the kept plan; null where no plan was kept.
    pub plan: Option<String>,
}

impl Pair {
    /// Error of the prediction: predicted time over measured time, minus 1.
    pub fn error(&self) -> f64 {
        (1.0 + self.predicted) / (1.0 + self.measured) - 1.0
    }

    fn is_sound(&self) -> bool {
        let range = self.predicted_range.into_iter().flatten();
        let mut figures = [self.predicted, self.measured].into_iter().chain(range);
        self.version == VERSION
            && figures.all(|figure| figure.is_finite() && figure > -1.0)
            && [self.first_touch_ns, self.planned_ns]
                .iter()
                .all(|ns| ns.is_finite() && *ns > 0.0)
    }
}

/// Content of the history.
#[derive(Clone, Debug, Default)]
pub struct HistoryContent {
    /// The pairs, the oldest first.
    pub pairs: Vec<Pair>,
    /// Number of lines that cannot be read: of another version, or damaged.
    pub unreadable: usize,
    /// All lines, unchanged.
    lines: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct History {
    folder: PathBuf,
}

impl History {
    /// History in this folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// History of the user; `None` without a home folder.
    pub fn of_user() -> Option<Self> {
        nearpage_plan::state_folder().map(Self::new)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Reads the history; without a file, the history is empty.
    pub fn read(&self) -> io::Result<HistoryContent> {
        let file = nearpage_files::open_to_write(&self.path());
        let Some(mut file) = nearpage_files::if_there(file)? else {
            return Ok(HistoryContent::default());
        };
        let mut bytes = Vec::new();
        Read::by_ref(&mut file)
            .take(BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() > BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "it is longer than nearpage makes it",
            ));
        }
        let mut kept = HistoryContent::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            match serde_json::from_str::<Pair>(line) {
                Ok(pair) if pair.is_sound() => kept.pairs.push(pair),
                _ => kept.unreadable += 1,
            }
            kept.lines.push(line.to_owned());
        }
        Ok(kept)
    }

    /// Adds a pair, and drops the oldest pairs beyond the limits.
    pub fn add(&self, pair: &Pair) -> io::Result<()> {
        let mut pair = pair.clone();
        for name in [&mut pair.program, &mut pair.key, &mut pair.machine] {
            *name = name.chars().take(NAME_MAX).collect();
        }
        let line = serde_json::to_string(&pair)?;
        if !pair.is_sound() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no time was measured",
            ));
        }
        let _lock = self.lock()?;
        let mut lines = self.read()?.lines;
        lines.push(line);
        let mut bytes = 0;
        let fits = |line: &&String| {
            bytes += line.len() + 1;
            bytes <= BYTES_MAX
        };
        let kept = lines.iter().rev().take(PAIRS_MAX).take_while(fits).count();
        let text: String = lines[lines.len() - kept..]
            .iter()
            .map(|line| format!("{line}\n"))
            .collect();
        nearpage_files::replace(&self.path(), text.as_bytes())
    }

    pub fn clear(&self) -> io::Result<()> {
        if fs::symlink_metadata(self.path()).is_err() {
            return Ok(());
        }
        let _lock = self.lock()?;
        fs::remove_file(self.path())
    }

    /// Locks the history until the returned file is dropped.
    fn lock(&self) -> io::Result<File> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(self.folder.join(LOCK))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_WAIT => {
                    return Err(io::Error::new(
                        io::ErrorKind::WouldBlock,
                        "another nearpage is writing to it",
                    ));
                }
                Err(TryLockError::WouldBlock) => sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Errors of the model, learned from pairs that the model predicted.
pub fn errors(pairs: &[Pair]) -> ModelErrors {
    let modelled = pairs
        .iter()
        .filter(|pair| pair.predicted_by == Judged::Model);
    ModelErrors::learned(modelled.map(|pair| {
        let change = Change {
            predicted: pair.predicted,
            measured: pair.measured,
        };
        (pair.class, change)
    }))
}

/// Key that identifies a program with its arguments. The arguments enter as a digest (FNV-1a), so they stay private.
pub fn key(program: &nearpage_plan::Program) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let bytes = program
        .arguments
        .iter()
        .flat_map(|one| one.bytes().chain([0]));
    let digest = bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    });
    let name = match program.build_id.as_str() {
        "" => &program.executable,
        build_id => build_id,
    };
    format!("{name}-{digest:016x}")
}

pub fn last_part(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u64) -> Pair {
        Pair {
            version: VERSION,
            unix_s: number,
            program: "cg".to_owned(),
            key: "ab-00".to_owned(),
            machine: "m".to_owned(),
            class: MachineClass::OneHop,
            measured_by: MeasuredBy::Optimize,
            predicted_by: Judged::Model,
            predicted: -0.2,
            predicted_range: Some([-0.25, -0.1]),
            measured: -0.1,
            first_touch_ns: 10.0,
            planned_ns: 9.0,
            runs: 3,
            plan: None,
        }
    }

    #[test]
    fn pairs_come_back_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::new(folder.path().join("state"));
        assert!(history.read().unwrap().pairs.is_empty());
        history.add(&pair(0)).unwrap();
        assert_eq!(history.read().unwrap().pairs, [pair(0)]);
        let line = serde_json::to_string(&pair(1)).unwrap() + "\n";
        fs::write(history.path(), line.repeat(PAIRS_MAX)).unwrap();
        history.add(&pair(2)).unwrap();
        let kept = history.read().unwrap();
        assert_eq!((kept.pairs.len(), kept.unreadable), (PAIRS_MAX, 0));
        assert_eq!(kept.pairs.last(), Some(&pair(2)));
        let mut long = pair(3);
        long.machine = "m".repeat(1 << 21);
        history.add(&long).unwrap();
        assert!(fs::metadata(history.path()).unwrap().len() <= BYTES_MAX as u64);
        history.clear().unwrap();
        history.clear().unwrap();
        assert!(history.read().unwrap().pairs.is_empty());
        let names = fs::read_dir(folder.path().join("state")).unwrap();
        assert_eq!(names.count(), 1, "the lock alone stays");
    }

    #[test]
    fn unreadable_entries_are_counted_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::new(folder.path());
        let newer = "{\"version\":2,\"new\":true}";
        let lie = serde_json::to_string(&Pair {
            predicted: -3.0,
            ..pair(1)
        })
        .unwrap();
        fs::write(history.path(), format!("{newer}\n{lie}\n")).unwrap();
        history.add(&pair(1)).unwrap();
        let kept = history.read().unwrap();
        assert_eq!((kept.pairs, kept.unreadable), (vec![pair(1)], 2));
        assert!(
            fs::read_to_string(history.path())
                .unwrap()
                .starts_with(newer)
        );
        fs::write(history.path(), vec![b'x'; BYTES_MAX + 1]).unwrap();
        assert!(history.read().is_err() && history.add(&pair(1)).is_err());
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        for name in [FILE, LOCK] {
            let state = folder.path().join(name.replace('.', "-"));
            fs::create_dir(&state).unwrap();
            fs::write(&target, "untouched").unwrap();
            std::os::unix::fs::symlink(&target, state.join(name)).unwrap();
            assert!(History::new(&state).add(&pair(1)).is_err(), "{name}");
            assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
        }
    }

    #[test]
    fn a_full_disk_leaves_what_there_was() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::new(folder.path());
        history.add(&pair(1)).unwrap();
        // A folder under the name of the temporary file makes the write fail.
        fs::create_dir(
            folder
                .path()
                .join(format!(".{FILE}.{}", std::process::id())),
        )
        .unwrap();
        assert!(history.add(&pair(2)).is_err());
        assert_eq!(history.read().unwrap().pairs, [pair(1)]);
    }

    #[test]
    fn writers_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::new(folder.path());
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let history = &history;
                scope.spawn(move || {
                    for number in 0..10 {
                        history.add(&pair(10 * writer + number)).unwrap();
                    }
                });
            }
        });
        let mut found: Vec<u64> = history
            .read()
            .unwrap()
            .pairs
            .iter()
            .map(|one| one.unix_s)
            .collect();
        found.sort_unstable();
        assert_eq!(found, (0..40).collect::<Vec<u64>>());
    }

    #[test]
    fn the_models_error_is_learned_from_enough_pairs_of_a_class() {
        let pairs = vec![pair(1); 30];
        let learned = errors(&pairs).of(MachineClass::OneHop);
        assert_eq!(learned.pairs, 30);
        assert!((learned.median - 1.0 / 9.0).abs() < 1e-9, "{learned:?}");
        let other = errors(&pairs).of(MachineClass::SeveralHops);
        assert_eq!(other, ModelErrors::default().of(MachineClass::SeveralHops));
        assert_eq!(errors(&pairs[..5]), ModelErrors::default());
        let replayed = Pair {
            predicted_by: Judged::Replay,
            ..pair(1)
        };
        assert_eq!(errors(&vec![replayed; 30]), ModelErrors::default());
    }

    #[test]
    fn keys_tell_arguments_apart_and_do_not_name_them() {
        let of = |arguments: &[&str]| {
            key(&nearpage_plan::Program {
                executable: "cg".to_owned(),
                build_id: String::new(),
                arguments: arguments.iter().map(|&one| one.to_owned()).collect(),
                rank: None,
            })
        };
        assert_ne!(of(&["secret", "1"]), of(&["secret1"]));
        assert!(of(&["secret"]).starts_with("cg-") && !of(&["secret"]).contains("secret"));
    }
}
