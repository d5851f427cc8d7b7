//! `run --replicate`: copies of files on every node, which all processes of a command map instead of the files.
//!
//! A copy is a memfd whose pages prefer their node, and is sealed against changes. Copies belong to this process: they
//! disappear when this process has ended and no process maps them any more. Processes open copies through
//! `/proc/PID/fd`.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;

use nearpage_amount::counted;
use nearpage_machine::NodeId;
use nearpage_plan::ProgramImage;
use nearpage_wire::replicas::{COUNTERS_AT, Entry, HEADER_BYTES, VARIABLE, device, header};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, IoContext};

const NOT_REPLICATED: &str = "cannot be replicated";

/// Files to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaSource {
    /// Program and libraries of the command.
    Code,
    /// Files that match a pattern of glob(7).
    Files(String),
}

impl ReplicaSource {
    /// Parses `code` or `file:GLOB`.
    ///
    /// # Errors
    /// Any other text, which is wrong usage.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match (text, text.strip_prefix("file:")) {
            ("code", _) => Ok(Self::Code),
            (_, Some(pattern)) if !pattern.is_empty() => Ok(Self::Files(pattern.to_owned())),
            _ => Err(Error::ReplicaSource(text.to_owned())),
        }
    }

    fn paths(&self, programs: &[ProgramImage]) -> Result<Vec<PathBuf>, Error> {
        match self {
            Self::Code => {
                let modules = programs.iter().flat_map(ProgramImage::modules);
                Ok(modules.map(|module| module.path.clone()).collect())
            }
            Self::Files(pattern) => match glob(pattern)? {
                paths if paths.is_empty() => Err(Error::NothingToReplicate(pattern.clone())),
                paths => Ok(paths),
            },
        }
    }
}

/// Use of the copies of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UsedReplicas {
    /// Processes that mapped a copy on their node.
    pub processes: u64,
    /// Mappings of copies.
    pub mappings: u64,
    /// Bytes of these mappings.
    pub mapped_bytes: u64,
}

impl UsedReplicas {
    /// Text for people.
    pub(crate) fn words(&self) -> String {
        format!(
            "{} ran from local copies: {}, {}",
            counted(self.processes, "process"),
            counted(self.mappings, "mapping"),
            nearpage_amount::bytes(self.mapped_bytes)
        )
    }
}

/// Copies of files, which exist while this value lives.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    /// `None` without copies.
    table: Option<File>,
    copies: Vec<File>,
    notes: Vec<String>,
}

impl Replicas {
    /// Copies files to nodes, up to `bytes_max` in total. Notes name files that do not fit.
    ///
    /// # Errors
    /// A file cannot be read, a pattern has no match, or the kernel has no memfds.
    pub fn make(
        sources: &[ReplicaSource],
        programs: &[ProgramImage],
        nodes: &[NodeId],
        bytes_max: u64,
    ) -> Result<Self, Error> {
        let mut replicas = Self::default();
        if sources.is_empty() {
            return Ok(replicas);
        }
        if nodes.len() < 2 {
            replicas.notes.push(
                "one memory node: nothing is replicated, every copy would be where the file is"
                    .to_owned(),
            );
            return Ok(replicas);
        }
        let mut paths = BTreeSet::new();
        for source in sources {
            paths.extend(source.paths(programs)?);
        }
        let (mut entries, mut files, mut bytes) = (Vec::new(), 0, 0);
        for path in paths {
            let mut file = nearpage_files::open(&path).at(&path, NOT_REPLICATED)?;
            let metadata = file.metadata().at(&path, NOT_REPLICATED)?;
            if !metadata.is_file() || metadata.len() == 0 {
                continue;
            }
            let needed = metadata.len().saturating_mul(nodes.len() as u64);
            if needed > bytes_max - bytes {
                replicas.notes.push(format!(
                    "{}: not replicated, its copies would take {}, and of --replicate-max {} are left",
                    path.display(),
                    nearpage_amount::bytes(needed),
                    nearpage_amount::bytes(bytes_max - bytes)
                ));
                continue;
            }
            let copied = replicas.copy(&mut file, &metadata, nodes);
            entries.extend(copied.at(&path, NOT_REPLICATED)?);
            files += 1;
            bytes += needed;
        }
        replicas.table = Some(table(&entries).context("no table of copies")?);
        replicas.notes.push(format!(
            "{} replicated on {}: {} in all",
            counted(files, "file"),
            counted(nodes.len() as u64, "node"),
            nearpage_amount::bytes(bytes)
        ));
        Ok(replicas)
    }

    /// Copies a file to each node, and returns the table's entries for the copies.
    fn copy(
        &mut self,
        file: &mut File,
        metadata: &fs::Metadata,
        nodes: &[NodeId],
    ) -> io::Result<Vec<Entry>> {
        let mapped = mapped_identity(file)?;
        let mut entries = Vec::with_capacity(nodes.len());
        for node in nodes {
            let copy = copy(file, metadata.len(), *node)?;
            entries.push(Entry {
                mapped,
                file: [metadata.dev(), metadata.ino()],
                size: metadata.len(),
                changed: [metadata.mtime() as u64, metadata.mtime_nsec() as u64],
                copy: mapped_identity(&copy)?,
                node: u32::from(node.0),
                fd: copy.as_raw_fd() as u32,
            });
            self.copies.push(copy);
        }
        Ok(entries)
    }

    /// Messages to print before the command runs.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Variable for the command, which names the table.
    pub fn environment(&self) -> Option<(OsString, OsString)> {
        let table = self.table.as_ref()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), table.as_raw_fd());
        Some((VARIABLE.into(), path.into()))
    }

    /// Use of the copies, available after the command has ended; `None` without copies.
    pub fn used(&self) -> Option<UsedReplicas> {
        let [processes, mappings, mapped_bytes] = self.table.as_ref().and_then(counters)?;
        Some(UsedReplicas {
            processes,
            mappings,
            mapped_bytes,
        })
    }
}

fn counters(table: &File) -> Option<[u64; 3]> {
    let mut bytes = [0; HEADER_BYTES];
    let mut table = table;
    table.rewind().ok()?;
    table.read_exact(&mut bytes).ok()?;
    let counter = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let [processes, mappings, bytes] = COUNTERS_AT;
    Some([counter(processes)?, counter(mappings)?, counter(bytes)?])
}

fn table(entries: &[Entry]) -> io::Result<File> {
    let mut table = memfd("nearpage-replicas")?;
    table.write_all(&header(std::process::id(), entries.len() as u32))?;
    for entry in entries {
        table.write_all(&entry.to_bytes())?;
    }
    Ok(table)
}

fn memfd(name: &str) -> io::Result<File> {
    let name = CString::new(name).expect("no zero byte in it");
    // SAFETY: the name ends with a zero byte; the returned descriptor is new and has no other owner.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// Copies a file into memory that prefers a node.
fn copy(file: &mut File, size: u64, node: NodeId) -> io::Result<File> {
    let copy = memfd(&format!("nearpage-replica-{node}"))?;
    copy.set_len(size)?;
    let length = usize::try_from(size).map_err(io::Error::other)?;
    let mapping = Mapping::new(
        &copy,
        length,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED,
    )?;
    const MPOL_PREFERRED: libc::c_int = 1;
    const NODES_MAX: usize = 1024;
    let mut mask = [0u64; NODES_MAX / 64];
    if let Some(word) = mask.get_mut(usize::from(node.0) / 64) {
        *word = 1 << (node.0 % 64);
    }
    // MPOL_PREFERRED is not strict: if the node is full, the kernel uses other nodes.
    // SAFETY: the mapping has this length, and the mask has at least the bits that are passed.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.address,
            length,
            MPOL_PREFERRED,
            mask.as_ptr(),
            NODES_MAX + 1,
            0,
        )
    };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    file.rewind()?;
    // SAFETY: the mapping is writable and has this length, and no other code uses it before the copy is handed out.
    let memory = unsafe { std::slice::from_raw_parts_mut(mapping.address.cast::<u8>(), length) };
    file.read_exact(memory)?;
    drop(mapping);
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes no pointers.
    match unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(copy),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mapping of a file, which is unmapped on drop.
struct Mapping {
    address: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    fn new(file: &File, length: usize, protection: i32, flags: i32) -> io::Result<Self> {
        // SAFETY: maps new memory at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        match address == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self { address, length }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no reference to it is left.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// Device and inode number of a file in `/proc/PID/maps`, which can differ from stat(2)'s.
fn mapped_identity(file: &File) -> io::Result<[u64; 2]> {
    let mapping = Mapping::new(file, 1, libc::PROT_READ, libc::MAP_PRIVATE)?;
    let maps = fs::read("/proc/self/maps")?;
    let begins = format!("{:x}-", mapping.address as usize);
    let line = maps
        .split(|byte| *byte == b'\n')
        .map(String::from_utf8_lossy)
        .find(|line| line.trim_start_matches('0').starts_with(&begins));
    let identity = line.and_then(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let device = device(number(major)?, number(minor)?);
        Some([device, fields.next()?.parse().ok()?])
    });
    identity.ok_or_else(|| io::Error::other("/proc/self/maps does not list it"))
}

/// Files that match a pattern (glob(3)), ordered by name.
fn glob(pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let text = CString::new(pattern).map_err(|_| Error::PatternWithZeroByte)?;
    // SAFETY: glob(3) takes a zeroed result, which it fills and `globfree` frees after the paths have been copied.
    unsafe {
        let mut found: libc::glob_t = std::mem::zeroed();
        let status = libc::glob(text.as_ptr(), 0, None, &mut found);
        let paths = (0..found.gl_pathc).map(|at| {
            let path = std::ffi::CStr::from_ptr(*found.gl_pathv.add(at));
            OsStr::from_bytes(path.to_bytes()).to_owned()
        });
        let paths: Vec<OsString> = match status {
            0 => paths.collect(),
            _ => Vec::new(),
        };
        libc::globfree(&mut found);
        Ok(paths
            .into_iter()
            .map(|path| PathBuf::from(OsString::from_vec(path.into_vec())))
            .filter(|path| Path::is_file(path))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpage_wire::replicas::read_header;

    #[test]
    fn sources_are_code_or_files() {
        let parse = |text| ReplicaSource::parse(text);
        assert_eq!(parse("code").unwrap(), ReplicaSource::Code);
        let files = ReplicaSource::Files("/data/*".to_owned());
        assert_eq!(parse("file:/data/*").unwrap(), files);
        let error = parse("text").unwrap_err();
        assert!(error.is_usage());
        assert!(
            error
                .to_string()
                .starts_with("--replicate text: expected `code` or file:GLOB"),
            "{error}"
        );
        assert!(parse("file:").is_err());
    }

    #[test]
    fn copies_are_the_same_on_every_node_and_no_more_than_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a b.bin"), vec![7u8; 5000]).unwrap();
        fs::write(path("large.bin"), vec![8u8; 1 << 20]).unwrap();
        fs::write(path("empty.bin"), "").unwrap();
        let pattern = ReplicaSource::Files(format!("{}/*.bin", folder.path().display()));
        // The kernel takes no policy for a missing node, so one node is used twice.
        let nodes = [NodeId(0), NodeId(0)];
        let replicas = match Replicas::make(&[pattern], &[], &nodes, 1 << 20) {
            Ok(replicas) => replicas,
            // Some containers allow no memory policies.
            Err(Error::File { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => return,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(replicas.copies.len(), 2);
        for mut copy in &replicas.copies {
            let mut contents = Vec::new();
            copy.rewind().unwrap();
            copy.read_to_end(&mut contents).unwrap();
            assert_eq!(contents, vec![7u8; 5000]);
            assert!(copy.write_all(b"x").is_err(), "it is sealed");
        }
        let notes = replicas.notes().concat();
        assert!(
            notes.contains("large.bin: not replicated, its copies would take 2 MiB"),
            "{notes}"
        );
        assert!(
            notes.contains("1 file replicated on 2 nodes: 9.77 KiB in all"),
            "{notes}"
        );
        let (_, path_of_table) = replicas.environment().unwrap();
        let table = fs::read(path_of_table).unwrap();
        assert_eq!(read_header(&table), Some((std::process::id(), 2)));
        let entry = Entry::read(&table, 1).unwrap();
        let metadata = fs::metadata(path("a b.bin")).unwrap();
        assert_eq!(
            (entry.file, entry.size),
            ([metadata.dev(), metadata.ino()], 5000)
        );
        assert_eq!(replicas.used().map(|used| used.processes), Some(0));
    }

    #[test]
    fn one_node_has_no_use_for_copies() {
        let replicas = Replicas::make(&[ReplicaSource::Code], &[], &[NodeId(0)], 1 << 20).unwrap();
        assert!(replicas.environment().is_none() && replicas.used().is_none());
        assert!(replicas.notes()[0].starts_with("one memory node"));
        let none = Replicas::make(
            &[ReplicaSource::Files("/no such/*".into())],
            &[],
            &[NodeId(0), NodeId(1)],
            1,
        );
        assert!(none.unwrap_err().to_string().ends_with("no file matches"));
    }
}
