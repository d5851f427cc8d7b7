//! The folder `view/` of a recording, which keeps points and sums for the next opening.
//!
//! | file | content |
//! | --- | --- |
//! | `points.bin` | points of 21 bytes ([`Point`](crate::point::Point)), chunk by chunk, by bucket |
//! | `sums.bin` | `f32`, `[row][by][column][colour]`: see [`pyramid`](crate::pyramid) |
//! | `index.bin` | written last; little-endian: magic, the recording's [`Identity`], [`identity_of_file`] of the other two files, number of segments, and for each: chunk, position in `points.bin`, first tick, end tick, number of starts, starts; CRC-32 of all before it |
//!
//! Files that do not fit the recording or this version are replaced, so later versions need not read old files.
//!
//! A recording from a stranger may contain such a folder. The folder is trusted only if this user made these very
//! files: a copy, such as from an archive, has other inode numbers and change times, which nobody can set. Nothing is
//! kept in another user's folder.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use flate2::Crc;
use nearpage_recording::Recording;

use crate::functions::Functions;
use crate::point::Scale;
use crate::pyramid::Pyramid;
use crate::store::{Bytes, Segment, Store};

/// Changes with the layout of any of the three files.
const MAGIC: u64 = u64::from_le_bytes(*b"NPVIEW04");
const FOLDER: &str = "view";
const INDEX: &str = "index.bin";
const POINTS: &str = "points.bin";
const SUMS: &str = "sums.bin";
/// Size limit of the index. A segment takes some ten KiB.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Identity of the recording in its present state.
type Identity = [u64; 9];

fn identity(recording: &Recording, scale: &Scale, functions: &Functions) -> Identity {
    let metadata = &recording.metadata;
    [
        recording.access_count(),
        recording.access_chunks() as u64,
        metadata.started_unix_ns,
        metadata.begin_ns ^ metadata.end_ns.rotate_left(1),
        scale.line_bytes ^ u64::from(scale.lines) << 16,
        scale.tick_ns ^ u64::from(scale.ticks) << 16,
        scale.threads as u64,
        scale.nodes as u64,
        functions.fingerprint(),
    ]
}

/// Identity of a file that this user wrote. Other files differ in the identity, and so does the same file after a
/// change.
fn identity_of_file(file: &File) -> Option<[u64; 4]> {
    let metadata = file.metadata().ok()?;
    is_own(&metadata).then(|| {
        [
            metadata.dev(),
            metadata.ino(),
            metadata.ctime().cast_unsigned(),
            metadata.ctime_nsec().cast_unsigned(),
        ]
    })
}

/// Are this user and root the only users who can have written the file or folder?
fn is_own(metadata: &fs::Metadata) -> bool {
    metadata.uid() == nearpage_files::own_user() && metadata.mode() & 0o022 == 0
}

fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir() && is_own(&metadata))
}

/// Place of a recording's files, which need not exist.
pub(crate) struct Cache {
    folder: Option<PathBuf>,
    identity: Identity,
}

impl Cache {
    pub fn new(recording: &Recording, scale: &Scale, functions: &Functions) -> Self {
        Self {
            folder: is_own_folder(&recording.folder).then(|| recording.folder.join(FOLDER)),
            identity: identity(recording, scale, functions),
        }
    }

    /// The points and sums that an earlier opening kept, if they fit the recording.
    pub fn open(&self, scale: &Scale) -> Option<(Store, Pyramid)> {
        let folder = self.folder.as_ref()?;
        let open = |name| nearpage_files::open(&folder.join(name)).ok();
        let (index, points, sums) = (open(INDEX)?, open(POINTS)?, open(SUMS)?);
        identity_of_file(&index)?;
        let files = [identity_of_file(&points)?, identity_of_file(&sums)?];
        let mut bytes = Vec::new();
        index.take(INDEX_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let segments = self.segments(&bytes, files)?;
        let store = Store::from_segments(scale, segments, points)?;
        Some((store, Pyramid::open(scale, sums)?))
    }

    fn segments(&self, index: &[u8], files: [[u64; 4]; 2]) -> Option<Vec<Segment>> {
        let (content, sum) = index.split_last_chunk::<4>()?;
        let mut crc = Crc::new();
        crc.update(content);
        if crc.sum() != u32::from_le_bytes(*sum) {
            return None;
        }
        let mut words = Words(content);
        if words.u64()? != MAGIC {
            return None;
        }
        for expected in self.identity.into_iter().chain(files.into_iter().flatten()) {
            if words.u64()? != expected {
                return None;
            }
        }
        let count = words.u64()?;
        let mut segments = Vec::new();
        for _ in 0..count {
            let (chunk, at) = (words.u64()? as usize, words.u64()?);
            let ticks = words.u32()?..words.u32()?;
            let starts = words.u32()?;
            let starts = (0..starts).map(|_| words.u32()).collect::<Option<_>>()?;
            segments.push(Segment {
                chunk,
                ticks,
                starts,
                bytes: Bytes::File(at),
            });
        }
        words.0.is_empty().then_some(segments)
    }

    /// Makes new files for points and sums: in the recording's folder, or, if that is not writable, unnamed files that
    /// disappear with this process.
    pub fn create(&mut self) -> io::Result<(File, File)> {
        if let Some(folder) = self.folder.take() {
            let _ = fs::DirBuilder::new().mode(0o700).create(&folder);
            if is_own_folder(&folder) {
                let _ = fs::remove_file(folder.join(INDEX));
                let file = |name| nearpage_files::create(&folder.join(name));
                if let (Ok(points), Ok(sums)) = (file(POINTS), file(SUMS)) {
                    self.folder = Some(folder);
                    return Ok((points, sums));
                }
            }
        }
        Ok((tempfile::tempfile()?, tempfile::tempfile()?))
    }

    /// Folder of the files; `None` if they disappear with this process.
    pub fn kept(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Removes the files of [`Cache::create`].
    pub fn abandon(&self) {
        if let Some(folder) = &self.folder {
            for name in [POINTS, SUMS] {
                let _ = fs::remove_file(folder.join(name));
            }
            let _ = fs::remove_dir(folder);
        }
    }

    /// Writes the index, which makes the files valid for later openings.
    pub fn finish(&self, store: &Store) -> io::Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let mut index = Vec::new();
        index.extend(MAGIC.to_le_bytes());
        index.extend(self.identity.iter().flat_map(|word| word.to_le_bytes()));
        for name in [POINTS, SUMS] {
            let file = identity_of_file(&nearpage_files::open(&folder.join(name))?);
            let words = file.ok_or(io::ErrorKind::PermissionDenied)?;
            index.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        index.extend((store.segments.len() as u64).to_le_bytes());
        for segment in &store.segments {
            let Bytes::File(at) = segment.bytes else {
                continue;
            };
            index.extend((segment.chunk as u64).to_le_bytes());
            index.extend(at.to_le_bytes());
            index.extend(segment.ticks.start.to_le_bytes());
            index.extend(segment.ticks.end.to_le_bytes());
            index.extend((segment.starts.len() as u32).to_le_bytes());
            index.extend(segment.starts.iter().flat_map(|start| start.to_le_bytes()));
        }
        let mut crc = Crc::new();
        crc.update(&index);
        index.extend(crc.sum().to_le_bytes());
        let unfinished = folder.join(".index.bin.unfinished");
        nearpage_files::create(&unfinished)?.write_all(&index)?;
        fs::rename(unfinished, folder.join(INDEX))
    }
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}
