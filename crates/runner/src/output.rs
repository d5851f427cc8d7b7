//! The folder of a recording: its default name, and the treatment of an earlier recording in it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nearpage_machine::Machine;
use nearpage_recording::{LogWriter, Metadata, folder};
use nearpage_sampler::Target;

use crate::error::{Error, IoContext};
use crate::launcher::{job_folder, launched};

/// Makes the default folder of a recording: `PROGRAM.nearpage`, or `PROGRAM.2.nearpage` and so on if that exists. Under
/// a launcher: `PROGRAM.JOB.nearpage/rank-00042@HOST`, or `rank-00042@HOST.2` and so on. If the folder can't be made,
/// the error shows when the recording is written.
pub fn default_output(target: &Target) -> PathBuf {
    let program = target_name(target);
    match launched() {
        None => new_folder(Path::new(""), &program, ".nearpage"),
        Some(launched) => {
            let (job, rank) = job_folder(&launched, &program);
            // After a failure, `new_folder` and the recording fail too, and the recording's error is reported.
            let _ = fs::create_dir_all(&job);
            new_folder(&job, OsStr::new(&rank), "")
        }
    }
}

/// Makes the first folder of these names that does not exist. Making the folder is the test, so processes that start at
/// once on one file system get different folders.
fn new_folder(folder: &Path, name: &OsStr, ending: &str) -> PathBuf {
    let path = |number: u32| {
        let mut name = name.to_owned();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        name.push(ending);
        folder.join(name)
    };
    let is_taken = |path: &PathBuf| {
        let made = DirBuilder::new().mode(0o700).create(path);
        made.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
    };
    (1..)
        .map(path)
        .find(|path| !is_taken(path))
        .unwrap_or_else(|| path(1))
}

/// Name of the target, for its recording.
fn target_name(target: &Target) -> OsString {
    let name = match target {
        Target::Command(command) => command
            .first()
            .and_then(|name| Path::new(name).file_name())
            .map(OsStr::to_owned),
        Target::Processes(pids) => pids.first().and_then(|pid| {
            let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
            // A process name may contain any character; a folder's name may not.
            let name = String::from_utf8_lossy(&name).trim_end().replace('/', "_");
            (!name.is_empty() && !name.starts_with('.')).then(|| name.into())
        }),
        Target::Cgroup(path) => path.file_name().map(OsStr::to_owned),
        Target::All => Some("machine".into()),
    };
    name.unwrap_or_else(|| "recording".into())
}

/// An output folder that keeps an earlier recording until the new one has begun.
#[derive(Debug)]
pub(crate) struct OutputFolder {
    path: PathBuf,
    /// Is the path free, because there was nothing or the earlier recording has been moved?
    is_new: bool,
    /// Path of the moved earlier recording.
    earlier: Option<PathBuf>,
}

impl OutputFolder {
    /// Moves an earlier recording out of the way, if it may be replaced.
    pub(crate) fn claim(path: &Path, replace: bool) -> Result<Self, Error> {
        if folder::has_recorder(path) {
            return Err(Error::RecorderAtWork(path.to_owned()));
        }
        let mut earlier = None;
        if replace && path.exists() {
            let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
            if !is_empty && !path.join(folder::METADATA_FILE).exists() {
                return Err(Error::NotReplaceable(path.to_owned()));
            }
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".earlier-{}", std::process::id()));
            fs::rename(path, &name).at(path, "can't be moved out of the way")?;
            earlier = Some(PathBuf::from(name));
        }
        Ok(Self {
            path: path.to_owned(),
            is_new: !path.exists(),
            earlier,
        })
    }

    /// Makes the first files of the new recording. After a failure, the folder is as it was before.
    pub(crate) fn begin(
        self,
        metadata: Metadata,
        machine: &Machine,
    ) -> Result<(Self, LogWriter), Error> {
        match LogWriter::create(&self.path, metadata, machine) {
            Ok(log) => Ok((self, log)),
            Err(error) => {
                let is_in_use = matches!(error, nearpage_recording::Error::FolderInUse(_));
                let is_recording = self.path.join(folder::METADATA_FILE).exists();
                // If the folder is in use, another recorder took it after `claim`, so its files stay.
                if self.is_new && !is_in_use {
                    self.give_back();
                }
                Err(match error {
                    nearpage_recording::Error::FolderInUse(path) if is_recording => {
                        Error::RecordingExists(path)
                    }
                    error => error.into(),
                })
            }
        }
    }

    /// Removes the earlier recording, because the new one has begun.
    pub(crate) fn keep(self) {
        if let Some(earlier) = self.earlier {
            // A failure leaves the moved folder behind.
            let _ = fs::remove_dir_all(earlier);
        }
    }

    /// Restores the earlier recording, because there will be no new one.
    pub(crate) fn give_back(self) {
        // The subfolder is removed first, so that one folder is open at a time: this may run because of a lack of
        // descriptors.
        let _ = fs::remove_dir_all(self.path.join(folder::LOG_FOLDER));
        let _ = fs::remove_dir_all(&self.path);
        if let Some(earlier) = self.earlier {
            let _ = fs::rename(earlier, &self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use nearpage_recording::Source;

    use super::*;

    const OLD: &str = "the earlier recording";

    /// A folder that looks like a recording.
    fn recording(path: &Path) {
        fs::create_dir(path).unwrap();
        fs::write(path.join(folder::METADATA_FILE), OLD).unwrap();
    }

    fn is_old(path: &Path) -> bool {
        fs::read_to_string(path.join(folder::METADATA_FILE)).is_ok_and(|text| text == OLD)
    }

    #[test]
    fn a_recorder_at_work_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let (output, log) = begin(OutputFolder::claim(&path, false).unwrap()).unwrap();
        output.keep();
        for replace in [true, false] {
            let error = OutputFolder::claim(&path, replace).unwrap_err();
            assert!(matches!(error, Error::RecorderAtWork(_)), "{error}");
        }
        drop(log);
        OutputFolder::claim(&path, true).unwrap().give_back();
        // A path that is no folder does not block.
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let error = OutputFolder::claim(&fifo, true).unwrap_err();
        assert!(matches!(error, Error::NotReplaceable(_)), "{error}");
    }

    fn begin(output: OutputFolder) -> Result<(OutputFolder, LogWriter), Error> {
        let machine = nearpage_machine::preset("opteron-4").unwrap();
        let metadata = Metadata::begun(Source::Clock, SystemTime::now(), machine.node_ids());
        output.begin(metadata, &machine)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = entries.map(name);
        names.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn default_names_are_numbered_where_they_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let name = |program: &str| {
            let path = new_folder(folder.path(), OsStr::new(program), ".nearpage");
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        fs::write(folder.path().join("cg.2.nearpage"), "").unwrap();
        assert_eq!(name("cg"), "cg.nearpage");
        assert_eq!(name("cg"), "cg.3.nearpage");
        assert_eq!(name("bt"), "bt.nearpage");
    }

    #[test]
    fn no_two_that_begin_at_once_get_the_same_folder() {
        let folder = tempfile::tempdir().unwrap();
        let begin = std::sync::Barrier::new(8);
        let take = || {
            begin.wait();
            let new = || new_folder(folder.path(), OsStr::new("rank-00000@vm"), "");
            (0..125).map(|_| new()).collect::<Vec<_>>()
        };
        let mut taken: Vec<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), 1000);
        assert!(taken.iter().all(|path| path.is_dir()));
    }

    #[test]
    fn a_folder_that_another_recorder_took_meanwhile_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let late = OutputFolder::claim(&path, false).unwrap();
        let (output, log) = begin(OutputFolder::claim(&path, false).unwrap()).unwrap();
        output.keep();
        let error = begin(late).unwrap_err();
        assert!(matches!(error, Error::RecordingExists(_)), "{error}");
        drop(log);
        assert!(path.join(folder::METADATA_FILE).exists());
    }

    #[test]
    fn a_recording_is_named_after_its_target() {
        let command = Target::Command(vec!["/usr/bin/cg.C".into(), "-n".into()]);
        assert_eq!(target_name(&command), "cg.C");
        assert_eq!(target_name(&Target::Command(Vec::new())), "recording");
        assert_eq!(target_name(&Target::All), "machine");
        let cgroup = Target::Cgroup("/sys/fs/cgroup/db.slice".into());
        assert_eq!(target_name(&cgroup), "db.slice");
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let own_process = Target::Processes(vec![std::process::id()]);
        assert_eq!(target_name(&own_process), own.trim_end());
        assert_eq!(target_name(&Target::Processes(vec![u32::MAX])), "recording");
    }

    #[test]
    fn an_earlier_recording_goes_once_the_new_one_has_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        recording(&path);
        let output = OutputFolder::claim(&path, true).unwrap();
        assert!(!path.exists());
        let (output, log) = begin(output).unwrap();
        assert_eq!(names(folder.path()).len(), 2, "the earlier one waits");
        output.keep();
        drop(log);
        assert_eq!(names(folder.path()), ["r"]);
        assert!(path.exists() && !is_old(&path));
    }

    #[test]
    fn an_earlier_recording_comes_back_where_there_is_no_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        recording(&path);
        let (output, log) = begin(OutputFolder::claim(&path, true).unwrap()).unwrap();
        drop(log);
        output.give_back();
        assert_eq!(names(folder.path()), ["r"]);
        assert!(is_old(&path));
        // Without an earlier recording, nothing remains.
        let new = folder.path().join("new");
        let (output, log) = begin(OutputFolder::claim(&new, true).unwrap()).unwrap();
        drop(log);
        output.give_back();
        assert!(!new.exists());
    }

    #[test]
    fn recordings_are_replaced_only_when_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        recording(&path);
        let error = begin(OutputFolder::claim(&path, false).unwrap()).unwrap_err();
        assert!(
            matches!(&error, Error::RecordingExists(at) if *at == path),
            "{error}"
        );
        assert!(is_old(&path));
    }

    #[test]
    fn folders_of_other_things_are_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("letter"), "").unwrap();
        let error = OutputFolder::claim(&path, true).unwrap_err();
        assert!(matches!(error, Error::NotReplaceable(_)), "{error}");
        let error = begin(OutputFolder::claim(&path, false).unwrap()).unwrap_err();
        assert!(matches!(error, Error::Recording(_)), "{error}");
        assert_eq!(names(&path), ["letter"]);
        // An empty folder may be used without asking.
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        OutputFolder::claim(&empty, true).unwrap();
    }
}
