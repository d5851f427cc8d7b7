use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nearpage_elf::leading_build_id;
use nearpage_files::{MappedFile, path_from_text, path_inside};
use nearpage_machine::Machine;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    ACCESSES, EVENTS, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameHeader, MAGIC, VERSION, accesses,
    events,
};
use crate::assemble::{EXECUTABLE, is_anonymous};
use crate::convert::{self, ModulePaths};
use crate::elf::hexadecimal;
use crate::error::IoContext;
use crate::folder::{self, LOG_FOLDER, RECORDER_LOG_FILE};
use crate::storage::checksums::TableChecksums;
use crate::{AccessBatch, Error, Event, Metadata, Module, Status, jit, nameless, trace};

/// Folder with links to the open files of this process.
const OPENED: &str = "/proc/self/fd";

/// Writes a recording while the program runs.
///
/// Every call appends at most one frame with one `write`, and reuses the frame's memory. If the recorder is killed,
/// [`crate::Recording::open`] opens the folder as incomplete.
#[derive(Debug)]
pub struct LogWriter {
    folder: PathBuf,
    file: File,
    path: PathBuf,
    metadata: Metadata,
    frame: Vec<u8>,
    accesses: u64,
    /// Full paths of mapped files, for the tables, as a redacted log has file names only.
    paths: ModulePaths,
    /// Keys of `paths` of which code was mapped.
    modules: FxHashSet<(String, String)>,
    /// Open files of modules that cannot be found by path here (other mount namespace, or deleted); `paths` leads to
    /// them.
    elsewhere: Vec<File>,
    /// Processes with anonymous executable memory.
    generating: BTreeSet<u32>,
    /// Lock on the folder, so that no other recorder uses it.
    _lock: File,
}

/// State of the log after the recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The log became tables.
    Converted,
    /// The log stays until the recording is first opened, as converting it would have taken too long.
    Deferred,
}

impl LogWriter {
    /// Makes the folder (mode 0700), `recording.json` (status incomplete), `machine.toml` and an
    /// empty log. With `metadata.redacted`, command and arguments are left out and paths are cut to
    /// file names, before anything reaches the disk.
    ///
    /// # Errors
    /// [`Error::FolderInUse`] where the folder exists and is not empty; [`Error::Io`].
    pub fn create(folder: &Path, mut metadata: Metadata, machine: &Machine) -> Result<Self, Error> {
        folder::create(folder)?;
        let lock = folder::lock(folder)?;
        metadata.version = folder::FORMAT_VERSION;
        metadata.status = Status::Incomplete;
        if metadata.redacted {
            metadata.command.clear();
        }
        folder::write_machine(folder, machine)?;
        let path = folder.join(LOG_FOLDER).join(RECORDER_LOG_FILE);
        let mut file = folder::create_file(&path)?;
        let mut header = [0; FILE_HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        file.write_all(&header).at(&path, "write")?;
        folder::write_metadata(folder, &metadata, &TableChecksums::new())?;
        let (folder, paths) = (folder.to_owned(), FxHashMap::default());
        Ok(Self {
            folder,
            file,
            path,
            metadata,
            frame: Vec::new(),
            accesses: 0,
            paths,
            modules: FxHashSet::default(),
            elsewhere: Vec::new(),
            generating: BTreeSet::new(),
            _lock: lock,
        })
    }

    /// Folder for the preload library's allocation log (`NEARPAGE_LOG`).
    pub fn allocation_log_folder(&self) -> PathBuf {
        self.folder.join(LOG_FOLDER)
    }

    /// Makes the folder for the tracer's files; the recording becomes a trace.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn trace_folder(&self) -> Result<PathBuf, Error> {
        let folder = self.folder.join(folder::TRACE_FOLDER);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .at(&folder, "create the folder")?;
        Ok(folder)
    }

    /// Metadata of the whole recording; [`LogWriter::finish`] writes it.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Number of accesses written.
    pub fn access_count(&self) -> u64 {
        self.accesses
    }

    /// Appends accesses. An empty batch writes nothing.
    ///
    /// # Errors
    /// [`Error::Io`], for example if the disk is full.
    pub fn accesses(&mut self, batch: &AccessBatch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        self.begin_frame();
        accesses::encode(batch, &mut self.frame);
        self.accesses += batch.len() as u64;
        self.write_frame(ACCESSES)
    }

    /// Appends events.
    ///
    /// # Errors
    /// [`Error::Io`], for example if the disk is full.
    pub fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        if events.is_empty() {
            return Ok(());
        }
        self.begin_frame();
        for event in events {
            if let Event::Map {
                pid,
                protection,
                path,
                ..
            } = event
                && protection & EXECUTABLE != 0
                && is_anonymous(path)
            {
                self.generating.insert(*pid);
            }
            match event {
                Event::Map {
                    pid,
                    address,
                    protection,
                    path,
                    build_id,
                    ..
                } if path.starts_with('/') => {
                    let executable = protection & EXECUTABLE != 0;
                    let place = executable.then_some((*pid, *address));
                    let logged = self.remember(place, path, build_id);
                    if self.metadata.redacted {
                        let mut event = event.clone();
                        if let Event::Map { path, .. } = &mut event {
                            *path = logged;
                        }
                        events::encode(&event, &mut self.frame);
                    } else {
                        events::encode(event, &mut self.frame);
                    }
                }
                _ => events::encode(event, &mut self.frame),
            }
        }
        self.write_frame(EVENTS)
    }

    /// Ends the recording: its status becomes complete. The log becomes tables if that takes at most
    /// [`convert::BUDGET`], as estimated from sizes. A redacted recording is always converted, since only this process
    /// knows the paths.
    ///
    /// # Errors
    /// [`Error::Io`]; the log then stays, and the recording can be opened.
    pub fn finish(mut self, exit_status: Option<i32>, end_ns: u64) -> Result<Finished, Error> {
        self.metadata.exit_status = exit_status;
        self.metadata.end_ns = end_ns;
        self.metadata.status = Status::Complete;
        folder::write_metadata(&self.folder, &self.metadata, &TableChecksums::new())?;
        // Names of generated code are full of paths.
        if !self.metadata.redacted {
            let since = jit::since(
                self.metadata.started_unix_ns,
                self.metadata.attached.is_some(),
            );
            let traced = traced_processes(&self.folder.join(folder::TRACE_FOLDER));
            self.generating.extend(traced);
            jit::keep(std::mem::take(&mut self.generating), since, &self.folder);
        }
        for (path, build_id) in &self.modules {
            let (path, build_id) = (path.clone(), build_id.clone());
            let opened = self.paths.get(&(path.clone(), build_id.clone()));
            let opened = opened.filter(|opened| opened.starts_with(OPENED));
            if let Some(opened) = opened {
                // Best effort, as with maps of generated code.
                let _ = nameless::keep(&self.folder, Module { path, build_id }, opened);
            }
        }
        let worthwhile =
            convert::estimate(&self.folder, self.accesses, &self.paths) <= convert::BUDGET;
        if !worthwhile && !self.metadata.redacted {
            return Ok(Finished::Deferred);
        }
        convert::convert(&self.folder, &self.paths)?;
        Ok(Finished::Converted)
    }

    /// Remembers the path of a mapped file; `place` is process and address if it is code. Returns the path for the log,
    /// which is cut to the file name under redaction.
    fn remember(&mut self, place: Option<(u32, u64)>, path: &str, build_id: &str) -> String {
        let logged = match self.metadata.redacted {
            true => path.rsplit('/').next().unwrap_or_default().to_owned(),
            false => path.to_owned(),
        };
        let key = (logged.clone(), build_id.to_owned());
        // Parts of a module without code may be mapped first.
        let is_new_module = place.is_some() && self.modules.insert(key.clone());
        if is_new_module || !self.paths.contains_key(&key) {
            let path = path_from_text(path);
            let elsewhere =
                place.and_then(|(pid, address)| file_elsewhere(pid, address, &path, build_id));
            let real = match elsewhere {
                None => path.into_owned(),
                Some(file) => {
                    let path = Path::new(OPENED).join(file.as_raw_fd().to_string());
                    self.elsewhere.push(file);
                    path
                }
            };
            self.paths.insert(key, real);
        }
        logged
    }

    fn begin_frame(&mut self) {
        self.frame.clear();
        self.frame.resize(FRAME_HEADER_BYTES, 0);
    }

    fn write_frame(&mut self, kind: u32) -> Result<(), Error> {
        let payload = &self.frame[FRAME_HEADER_BYTES..];
        let length = u32::try_from(payload.len())
            .map_err(|_| std::io::Error::other("more than 4 GiB in one batch"))
            .at(&self.path, "write")?;
        let header = FrameHeader {
            kind,
            length,
            checksum: crc32fast::hash(payload),
        };
        self.frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.file.write_all(&self.frame).at(&self.path, "write")
    }
}

/// Processes that were traced. Only the trace has their mappings.
fn traced_processes(traces: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(traces).into_iter().flatten().flatten();
    let processes = files.filter_map(|file| trace::process_of(file.file_name().to_str()?));
    processes.collect()
}

/// The file that a live process has mapped at `address`, if `path` does not lead to it here: the process is in another
/// mount namespace, or the file was replaced or removed, or is a memfd. A file here with the mapped module's build-id
/// is the module. Otherwise the process's mappings tell, which take as long to read as the process has mappings: for
/// each of a few hundred modules, that would take more time than all samples.
fn file_elsewhere(pid: u32, address: u64, path: &Path, build_id: &str) -> Option<File> {
    let here = leading_build_id(path).ok().flatten();
    if here.is_some_and(|here| !here.is_empty() && hexadecimal(&here) == build_id) {
        return None;
    }
    let proc_root = Path::new("/proc");
    let mapped = MappedFile::find(proc_root, pid, address, path);
    if let Some(mapped) = mapped.filter(MappedFile::is_deleted) {
        return mapped.open().ok();
    }
    let inside = path_inside(proc_root, pid, path);
    let identity = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let there = identity(&inside)?;
    (identity(path) != Some(there))
        .then(|| nearpage_files::open(&inside).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nearpage_files::MapsLine;

    use super::*;

    /// Copies `sleep` in a child, as in this process a copy that is open for writing could not be executed while other
    /// tests fork.
    fn copy_sleep(to: &Path) {
        let copied = Command::new("cp").arg("/bin/sleep").arg(to).status();
        assert!(copied.unwrap().success());
    }

    #[test]
    fn a_file_with_the_build_id_is_the_module_and_others_with_its_name_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sleep");
        copy_sleep(&path);
        let mut child = Command::new(&path).arg("100").spawn().unwrap();
        std::fs::remove_file(&path).unwrap();
        let deleted = format!("{} (deleted)", path.display());
        let mapped_at = || {
            let maps = std::fs::read(format!("/proc/{}/maps", child.id())).unwrap();
            let mut lines = maps
                .split(|byte| *byte == b'\n')
                .filter_map(MapsLine::parse);
            let line = lines.find(|line| line.path == deleted.as_bytes())?;
            Some(line.range.start)
        };
        let address = (0..6000)
            .find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                mapped_at()
            })
            .expect("mapped within a minute");
        let build_id = hexadecimal(&leading_build_id(Path::new("/bin/sleep")).unwrap().unwrap());
        let elsewhere = |build_id: &str| file_elsewhere(child.id(), address, &path, build_id);
        let gone = elsewhere(&build_id);
        copy_sleep(&path);
        let [again, unknown] = [&*build_id, ""].map(elsewhere);
        std::fs::write(&path, "another").unwrap();
        let replaced = elsewhere(&build_id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(gone.is_some() && unknown.is_some() && replaced.is_some());
        assert!(again.is_none(), "its mappings need not be read");
    }
}
