//! Archives of trees, which are read into memory within bounds.
//!
//! Nothing is written to disk, so paths and links can overwrite nothing. Links are resolved within the archive.

use std::collections::BTreeMap;
use std::io::{self, Read};

use super::{FILE_BYTES_MAX, Kind, PATH_BYTES_MAX, parts};

/// Maximum size of an archive file in bytes.
pub(super) const ARCHIVE_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of an unpacked archive in bytes; a tree of 256 CPUs with all devices has 15 million.
const UNPACKED_BYTES_MAX: u64 = 512 << 20;
/// Maximum size of the paths and files that are kept, in bytes.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of files, folders and links.
const ENTRIES_MAX: usize = 1_000_000;
/// Maximum depth of nested folders.
const DEPTH_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Files {
    entries: BTreeMap<String, Entry>,
    bytes: u64,
}

enum Entry {
    /// Names in the folder.
    Folder(Vec<String>),
    File(Vec<u8>),
    Link(String),
}

impl Files {
    pub fn kind(&self, path: &str) -> Option<Kind> {
        match self.entries.get(path)? {
            Entry::Folder(_) => Some(Kind::Folder),
            Entry::File(_) => Some(Kind::File),
            Entry::Link(target) => Some(Kind::Link(target.clone())),
        }
    }

    pub fn read(&self, path: &str) -> Option<&[u8]> {
        match self.entries.get(path)? {
            Entry::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub fn names(&self, folder: &str) -> &[String] {
        match self.entries.get(folder) {
            Some(Entry::Folder(names)) => names,
            _ => &[],
        }
    }

    /// Adds the last name of a path to its folder, and creates missing folders on the way.
    fn add_name(&mut self, mut path: &str) -> Result<(), String> {
        loop {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            match self.entries.get_mut(folder) {
                Some(Entry::Folder(names)) => {
                    names.push(name.to_owned());
                    return Ok(());
                }
                Some(_) => {
                    return Err(format!("`{name}` in it is a folder and something else"));
                }
                None => {
                    self.bytes += folder.len() as u64;
                    let names = vec![name.to_owned()];
                    self.entries.insert(folder.to_owned(), Entry::Folder(names));
                }
            }
            if folder.is_empty() {
                return Ok(());
            }
            path = folder;
        }
    }

    /// Adds an entry and the folders on the way to it. Later entries replace earlier ones with the same path.
    fn add(&mut self, path: &[String], entry: Entry) -> Result<(), String> {
        let path = path.join("/");
        let there = self.entries.get(&path);
        if matches!((there, &entry), (Some(Entry::Folder(_)), Entry::Folder(_))) {
            return Ok(());
        }
        let is_new = there.is_none();
        if is_new && !path.is_empty() {
            self.add_name(&path)?;
        }
        self.bytes += path.len() as u64;
        if let Entry::File(bytes) = &entry {
            self.bytes += bytes.len() as u64;
        }
        self.entries.insert(path, entry);
        if self.entries.len() > ENTRIES_MAX {
            return Err(format!("it has more than {ENTRIES_MAX} files"));
        }
        if self.bytes > KEPT_BYTES_MAX {
            return Err(format!(
                "its files have more than {} MiB",
                KEPT_BYTES_MAX >> 20
            ));
        }
        Ok(())
    }
}

/// Reads a tar archive, plain or compressed by bzip2, gzip or Zstandard; the first bytes tell the compression.
pub(super) fn unpack(bytes: &[u8]) -> Result<Files, String> {
    let damaged = |error: io::Error| {
        let words = error.to_string();
        let words = words
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter });
        format!(
            "the archive is damaged: {}",
            words.take(200).collect::<String>()
        )
    };
    match bytes {
        [b'B', b'Z', b'h', ..] => files(bzip2::read::MultiBzDecoder::new(bytes)),
        [0x1f, 0x8b, ..] => files(flate2::read::MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(bytes);
            files(decoder.map_err(|error| damaged(io::Error::other(error)))?)
        }
        _ if bytes.get(257..262) == Some(b"ustar") => files(bytes),
        _ => {
            return Err(
                "neither a folder nor an archive; expected .tar, .tar.bz2, .tar.gz or .tar.zst"
                    .to_owned(),
            );
        }
    }
    .map_err(|failed| match failed {
        Failed::Reading(error) => damaged(error),
        Failed::Refused(problem) => problem,
    })
}

enum Failed {
    Reading(io::Error),
    Refused(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Reading(error)
    }
}

fn files(unpacked: impl Read) -> Result<Files, Failed> {
    let mut archive = tar::Archive::new(Bounded {
        inner: unpacked,
        left: UNPACKED_BYTES_MAX,
    });
    let mut files = Files::default();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path_bytes();
        if name.len() > PATH_BYTES_MAX {
            return Err(Failed::Refused(format!(
                "a path in it has more than {PATH_BYTES_MAX} letters"
            )));
        }
        let name = String::from_utf8_lossy(&name).into_owned();
        let path = parts(&name);
        let shown = || {
            name.chars()
                .filter(|letter| !letter.is_control())
                .take(80)
                .collect::<String>()
        };
        if path.iter().any(|part| part == "..") || name.starts_with('/') {
            return Err(Failed::Refused(format!(
                "`{}` in it leads out of it",
                shown()
            )));
        }
        if name.contains(char::is_control) {
            return Err(Failed::Refused(format!(
                "`{}` in it has control characters in its name",
                shown()
            )));
        }
        if path.len() > DEPTH_MAX {
            return Err(Failed::Refused(format!(
                "`{}…` in it is more than {DEPTH_MAX} folders deep",
                shown()
            )));
        }
        let target = |entry: &tar::Entry<_>| {
            let target = entry.link_name_bytes().unwrap_or_default();
            let target: &[u8] = &target[..target.len().min(PATH_BYTES_MAX)];
            String::from_utf8_lossy(target).into_owned()
        };
        let kind = entry.header().entry_type();
        let made = if kind.is_dir() {
            Entry::Folder(Vec::new())
        } else if kind.is_symlink() {
            Entry::Link(target(&entry))
        } else if kind.is_hard_link() {
            // Hard links are relative to the archive's top, so the path goes up to the top first.
            let up = "../".repeat(path.len().saturating_sub(1));
            Entry::Link(up + &target(&entry))
        } else if kind.is_file() || kind.is_gnu_sparse() || kind.is_contiguous() {
            let mut bytes = Vec::new();
            (&mut entry)
                .take(FILE_BYTES_MAX + 1)
                .read_to_end(&mut bytes)?;
            if bytes.len() as u64 > FILE_BYTES_MAX {
                return Err(Failed::Refused(format!(
                    "`{}` in it has more than {} MiB",
                    shown(),
                    FILE_BYTES_MAX >> 20
                )));
            }
            Entry::File(bytes)
        } else {
            // Devices and pipes are skipped.
            continue;
        };
        files.add(&path, made).map_err(Failed::Refused)?;
    }
    Ok(files)
}

/// A reader that fails if it yields more bytes than allowed.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let words = format!("it unpacks to more than {} MiB", UNPACKED_BYTES_MAX >> 20);
            io::Error::new(io::ErrorKind::FileTooLarge, words)
        })?;
        Ok(count)
    }
}
