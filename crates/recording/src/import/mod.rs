//! Imports other tools' records of memory accesses: `perf.data` files, the text that `perf script` prints of them, and
//! samples in nearpage's own CSV form.
//!
//! The readers `perf_data` (with `features` for the machine) and `perf_script` turn a file into `Record`s in order of
//! time. The `follow`er turns these into the log that a recorder would have written, from which the recording is made
//! as usual. Objects come from the kernel's mappings, as for programs without the preload library.

mod carried;
mod csv;
mod features;
mod follow;
mod layout;
mod perf_data;
mod perf_script;
mod undecoded;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use memmap2::{Mmap, MmapMut};
use nearpage_machine::{CpuId, Machine, Node, NodeId};
use nearpage_perf_abi::{DataSource, Sideband};

use self::carried::Carried;
pub use self::carried::{write_exact, write_tables};
use self::csv::Csv;
use self::follow::Follower;
use self::perf_data::PerfData;
use self::perf_script::PerfScript;
use crate::error::IoContext;
use crate::{Error, Event, Level, LogWriter, Metadata, SampleCounts, Source};

/// Result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Counts of the file's samples.
    pub counts: SampleCounts,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A record of the file, with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Record<'a> {
    time_ns: u64,
    what: RecordBody<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RecordBody<'a> {
    Sideband(Sideband<'a>),
    Sample(Sample),
}

/// What an event samples; used where `data_src` does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventKind {
    Loads,
    Stores,
    /// Page faults: first touches.
    Faults,
}

impl EventKind {
    /// Guesses the kind from the event's name.
    fn named(name: &str) -> Self {
        if name.contains("fault") {
            Self::Faults
        } else if name.contains("store") {
            Self::Stores
        } else {
            Self::Loads
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    pid: u32,
    tid: u32,
    cpu: Option<CpuId>,
    user: bool,
    ip: u64,
    /// 0 if unknown.
    address: u64,
    event: EventKind,
    data_src: DataSource,
    /// 0 if not measured.
    latency_cycles: u32,
    /// Number of events that the sample stands for.
    period: u64,
}

/// Facts about a whole file.
#[derive(Clone, Debug, Default, PartialEq)]
struct FileMetadata {
    /// The recorded command, or perf's own command if the recorded one is unknown.
    command: Vec<String>,
    machine: Option<Machine>,
    /// Nominal frequency of the CPUs, in GHz.
    ghz: Option<f32>,
    /// Names of the events.
    events: Vec<String>,
    /// Samples per second that were asked for; 0 if sampled by period.
    rate_hz: f64,
    notes: Vec<String>,
}

/// CPU frequency that is assumed if the file states none.
const ASSUMED_GHZ: f32 = 2.5;

/// Accesses appended to the log in one batch.
const BATCH: usize = 1 << 16;

/// Makes a recording in `output` from `file`: a `perf.data` with addresses, the text that `perf script` prints of one
/// (`-F comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,sym,dso`, with `--show-task-events
/// --show-mmap-events` for mappings), or samples in nearpage's CSV form. `machine` takes precedence over the machine in
/// the file.
///
/// The recording appears whole or not at all.
///
/// # Errors
/// [`Error::Foreign`] if the file has another format, is cut short or has no addresses;
/// [`Error::FolderInUse`]; [`Error::Io`].
pub fn import(file: &Path, output: &Path, machine: Option<Machine>) -> Result<Imported, Error> {
    let bytes = read(file)?;
    let other = |cause: String| foreign(file, cause);
    let whole = ImportedFile::new(&bytes).map_err(other)?;
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::FolderInUse(output.to_owned()));
    }
    let unfinished = Unfinished::beside(output);
    let imported = match whole {
        ImportedFile::Csv(csv) => csv.write(file, &unfinished.0, machine)?,
        ImportedFile::Carried(carried) => carried.write(file, &unfinished.0, machine)?,
        ImportedFile::Records(reader) => write(&reader, file, &unfinished.0, machine)?,
    };
    fs::rename(&unfinished.0, output).at(output, "put in place")?;
    Ok(imported)
}

/// A file, by the way it is imported.
enum ImportedFile<'a> {
    /// Tables are made directly.
    Csv(Box<Csv<'a>>),
    Carried(Box<Carried<'a>>),
    /// Records, from which a log is made first.
    Records(Box<Reader<'a>>),
}

impl<'a> ImportedFile<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, String> {
        if Csv::is(bytes) {
            Csv::new(bytes).map(Box::new).map(Self::Csv)
        } else if Carried::is(bytes) {
            Carried::new(bytes).map(Box::new).map(Self::Carried)
        } else {
            Reader::new(bytes).map(Box::new).map(Self::Records)
        }
    }
}

/// A temporary folder, which is removed unless it was renamed.
struct Unfinished(PathBuf);

impl Unfinished {
    fn beside(output: &Path) -> Self {
        let mut name = std::ffi::OsString::from(".");
        name.push(output.file_name().unwrap_or_default());
        name.push(format!(".{}.unfinished", std::process::id()));
        Self(output.with_file_name(name))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn foreign(file: &Path, cause: impl Into<String>) -> Error {
    Error::Foreign {
        file: file.to_owned(),
        cause: cause.into(),
    }
}

/// The bytes of a file. A file that only root and this user can write is mapped, as it may have many gigabytes. Any
/// other file is read into memory, as another user could truncate a mapped file and thereby kill its reader.
fn read(file: &Path) -> Result<Mmap, Error> {
    let opened = File::open(file).at(file, "open")?;
    let metadata = opened.metadata().at(file, "read")?;
    if metadata.is_dir() {
        return Err(foreign(
            file,
            "a folder (as `perf record --threads` writes); import a single perf.data file, or the text that `perf script` prints",
        ));
    }
    if metadata.len() == 0 {
        return Err(foreign(file, "empty; record it again"));
    }
    if nearpage_files::is_written_by_this_user_alone(&metadata) {
        // SAFETY: the mapping is read-only, and no other user can truncate the file.
        return unsafe { Mmap::map(&opened) }.at(file, "read");
    }
    let bytes = usize::try_from(metadata.len()).map_err(io::Error::other);
    let mut memory = bytes.and_then(MmapMut::map_anon).at(file, "read")?;
    opened.read_exact_at(&mut memory, 0).at(file, "read")?;
    memory.make_read_only().at(file, "read")
}

/// A reader of one of perf's two formats.
enum Reader<'a> {
    Data(PerfData<'a>),
    Script(PerfScript<'a>),
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, String> {
        if PerfData::is(bytes) {
            PerfData::new(bytes).map(Self::Data)
        } else {
            PerfScript::new(bytes).map(Self::Script)
        }
    }

    fn about(&self) -> FileMetadata {
        match self {
            Self::Data(data) => data.about(),
            Self::Script(script) => script.about(),
        }
    }

    /// Hands out all records, in order of time.
    fn records(
        &self,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
        file: &Path,
    ) -> Result<(), Error> {
        match self {
            Self::Data(data) => data.records(each, |cause| foreign(file, cause)),
            Self::Script(script) => script.records(each, |cause| foreign(file, cause)),
        }
    }
}

fn write(
    reader: &Reader<'_>,
    file: &Path,
    output: &Path,
    machine: Option<Machine>,
) -> Result<Imported, Error> {
    let mut about = reader.about();
    if about.ghz.is_none() {
        about.notes.push(format!(
            "the file does not say how fast the CPUs run: latencies are converted at {ASSUMED_GHZ} GHz"
        ));
    }
    let machine = machine
        .or_else(|| about.machine.take())
        .unwrap_or_else(|| one_node(&mut about.notes));
    let mut follower = Follower::new(&machine, about.ghz.unwrap_or(ASSUMED_GHZ));
    let mut log = LogWriter::create(output, metadata(file, &about, &machine), &machine)?;
    let mut append = |record: Record<'_>| {
        follower.follow(record);
        if follower.batch.len() >= BATCH || follower.events.len() >= BATCH {
            log.accesses(&follower.batch)?;
            log.events(&follower.events)?;
            follower.batch.clear();
            follower.events.clear();
        }
        Ok(())
    };
    reader.records(&mut append, file)?;
    log.accesses(&follower.batch)?;
    let mut events = std::mem::take(&mut follower.events);
    events.extend(follower.counts());
    log.events(&events)?;

    let counts = follower.totals();
    if counts.accesses == 0 {
        let lacks = match counts.samples {
            0 if follower.faults > 0 => {
                "its samples are of page faults alone, not of accesses".to_owned()
            }
            0 => "it has no samples in user mode".to_owned(),
            samples => {
                format!("none of its {samples} samples in user mode has the address of an access")
            }
        };
        return Err(foreign(
            file,
            format!(
                "{lacks}; record with `perf mem record`, or with -d and an event that samples memory accesses \
                 (cycles and cpu-clock do not)"
            ),
        ));
    }
    about.notes.extend(follower.notes());
    let metadata = log.metadata_mut();
    (metadata.begin_ns, metadata.counts) = (follower.begin_ns, counts);
    metadata.notes.clone_from(&about.notes);
    log.finish(None, follower.end_ns)?;
    Ok(Imported {
        counts,
        notes: about.notes,
    })
}

fn metadata(file: &Path, about: &FileMetadata, machine: &Machine) -> Metadata {
    let modified = fs::metadata(file).and_then(|metadata| metadata.modified());
    Metadata {
        command: about.command.clone(),
        rate_hz: about.rate_hz,
        calibration: about.events.join(", "),
        ..Metadata::begun(
            Source::Pmu,
            modified.unwrap_or(UNIX_EPOCH),
            machine.node_ids(),
        )
    }
}

/// Machine that is assumed if the file describes none.
fn one_node(notes: &mut Vec<String>) -> Machine {
    notes.push(
        "the file does not say which memory nodes there were: one is assumed; name the machine with --machine".to_owned(),
    );
    Machine {
        source: "assumed".to_owned(),
        ..bare_machine(vec![Node {
            id: NodeId(0),
            cpus: vec![CpuId(0)],
            memory_bytes: None,
            memory_kind: None,
        }])
    }
}

/// The node that served an access of a CPU on node `own`, for machines with at most two nodes. With more nodes, a
/// remote access could be to any of them, and if only local nodes were known, accesses would look local.
fn page_node(machine: &Machine, own: Option<NodeId>, level: Level) -> Option<NodeId> {
    let own = own?;
    match (level, machine.nodes.as_slice()) {
        (Level::LocalMemory, [_] | [_, _]) => Some(own),
        (Level::RemoteMemory, [a, b]) => Some(if a.id == own { b.id } else { a.id }),
        _ => None,
    }
}

/// A machine of which only the nodes are known.
fn bare_machine(nodes: Vec<Node>) -> Machine {
    Machine::of_nodes("imported".to_owned(), nodes)
}

/// Entry point for `fuzz/`: reads `bytes` in any format, up to accesses and events.
pub fn fuzz(bytes: &[u8]) {
    let reader = match ImportedFile::new(bytes) {
        Ok(ImportedFile::Csv(csv)) => return csv.check(),
        Ok(ImportedFile::Carried(carried)) => return carried.check(),
        Ok(ImportedFile::Records(reader)) => reader,
        Err(_) => return,
    };
    let about = reader.about();
    let machine = about.machine.unwrap_or_else(|| one_node(&mut Vec::new()));
    let mut follower = Follower::new(&machine, about.ghz.unwrap_or(ASSUMED_GHZ));
    let mut append = |record: Record<'_>| {
        follower.follow(record);
        Ok(())
    };
    let _ = reader.records(&mut append, Path::new("fuzz"));
    let totals = follower.totals();
    assert_eq!(follower.batch.len() as u64, totals.accesses);
    assert_eq!(totals.samples, totals.accesses + totals.undecoded);
    let forks = follower.events.iter();
    let forks = forks.filter(|event| matches!(event, Event::Fork { .. }));
    assert_eq!(forks.count(), follower.counts().count());
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_others_can_write_is_read_and_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("perf.data");
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let is_mapped = || {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            maps.contains(path.to_str().unwrap())
        };
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let mapped = read(&path).unwrap();
        assert!(is_mapped());
        drop(mapped);

        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let bytes = read(&path).unwrap();
        assert!(!is_mapped());
        fs::write(&path, "").unwrap();
        assert!(bytes.len() == 1 << 20 && bytes.iter().all(|&byte| byte == 7));
    }
}
