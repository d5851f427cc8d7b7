//! The trace files of a recording: process images in order, and the recording's threads in each image.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nearpage_files::{if_there, path_from_text};
use nearpage_wire::is_runtime_module;

use super::file::{Mapped, TraceFile};
use crate::elf::ElfFile;
use crate::error::IoContext;
use crate::{Error, Event, ThreadIndex};

/// `PROT_EXEC`.
const EXECUTABLE: u32 = 4;

/// All trace files of a recording, sorted by start and process.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub files: Vec<TraceFile>,
    /// Threads by image and by number of the thread in its process.
    pub threads: Vec<Vec<ThreadIndex>>,
    /// Image and number of every thread that began, in order of time.
    pub order: Vec<(usize, usize)>,
    /// Messages about files that could not be read at all.
    pub notes: Vec<String>,
}

impl Images {
    /// Indexes the traces in `folder`. Files that are no trace, or end before their first frame, are noted.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Version`].
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let mut images = Self::default();
        for path in find(folder)? {
            match TraceFile::open(&path) {
                Ok(file) => images.files.push(file),
                Err(error @ Error::Damaged { .. }) => images.notes.push(error.to_string()),
                // A process that began after the recording's end has removed its file.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        images
            .files
            .sort_by_key(|file| (file.header.start_ns, file.header.pid));
        images.number_threads();
        Ok(images)
    }

    fn number_threads(&mut self) {
        let mut began: Vec<(u64, usize, usize)> = Vec::new();
        for (image, file) in self.files.iter().enumerate() {
            for (number, thread) in file.threads.iter().enumerate() {
                if thread.started || !thread.frames.is_empty() {
                    began.push((file.born_ns(number), image, number));
                }
            }
        }
        began.sort_unstable();
        self.threads = self
            .files
            .iter()
            .map(|file| vec![ThreadIndex(u32::MAX); file.threads.len()])
            .collect();
        let mut next = 0;
        for (_, image, number) in began {
            // A main thread that runs another program stays the same thread.
            let earlier = (number == 0)
                .then(|| self.image_before(image))
                .flatten()
                .and_then(|before| self.threads[before].first().copied())
                .filter(|index| index.0 != u32::MAX);
            self.threads[image][number] = earlier.unwrap_or_else(|| {
                next += 1;
                ThreadIndex(next - 1)
            });
            self.order.push((image, number));
        }
    }

    /// The image that forked the process of this image.
    pub(super) fn parent(&self, image: usize) -> Option<usize> {
        let header = &self.files[image].header;
        let forked_it = |file: &TraceFile| {
            file.header.pid == header.parent_pid
                && file.forks.iter().any(|fork| fork.child == header.pid)
        };
        self.files[..image].iter().rposition(forked_it)
    }

    /// The first image of process `pid`, a child of the image's process.
    pub(super) fn child(&self, image: usize, pid: u32) -> Option<usize> {
        let parent_pid = self.files[image].header.pid;
        (image + 1..self.files.len()).find(|&other| {
            let header = &self.files[other].header;
            (header.pid, header.parent_pid) == (pid, parent_pid)
        })
    }

    /// The last image of process `pid`, if it is a child of the image's process.
    pub(super) fn last_of_child(&self, image: usize, pid: u32) -> Option<usize> {
        let last = self.files.iter().rposition(|file| file.header.pid == pid)?;
        let mut first = last;
        while let Some(before) = self.image_before(first) {
            first = before;
        }
        let parent = self.parent(first)?;
        (self.files[parent].header.pid == self.files[image].header.pid).then_some(last)
    }

    /// The image that the same process had before.
    fn image_before(&self, image: usize) -> Option<usize> {
        let header = &self.files[image].header;
        if header.parent_pid != 0 {
            // The image began with a fork.
            return None;
        }
        let pid = header.pid;
        self.files[..image]
            .iter()
            .rposition(|file| file.header.pid == pid)
    }

    /// Events that a recorder would have logged: threads, programs and mappings, with times as far as these are known.
    /// `ended_ns` has the time of each thread's last record, by image and thread.
    pub(super) fn events(&self, ended_ns: &[Vec<u64>]) -> Vec<Event> {
        let mut events = Vec::new();
        for (image, file) in self.files.iter().enumerate() {
            let (pid, start_ns) = (file.header.pid, file.header.start_ns);
            let mut threads: Vec<(usize, ThreadIndex)> = self.threads[image]
                .iter()
                .copied()
                .enumerate()
                .filter(|(_, index)| index.0 != u32::MAX)
                .collect();
            threads.sort_by_key(|(number, _)| *number);
            let exec = self.image_before(image).is_some();
            for (number, index) in &threads {
                let thread = &file.threads[*number];
                if *number > 0 || !exec {
                    events.push(Event::Fork {
                        time_ns: file.born_ns(*number),
                        pid,
                        tid: if *number == 0 { pid } else { thread.tid },
                        thread: *index,
                        parent_pid: if *number == 0 {
                            file.header.parent_pid
                        } else {
                            pid
                        },
                    });
                }
                if *number == 0 && (exec || file.header.parent_pid == 0) {
                    events.push(Event::Name {
                        time_ns: start_ns,
                        pid,
                        thread: *index,
                        name: file.program().to_owned(),
                        exec: true,
                    });
                }
                let ended_ns = ended_ns[image].get(*number).copied().unwrap_or(u64::MAX);
                let later = self.files[image + 1..]
                    .iter()
                    .any(|later| later.header.pid == pid);
                if thread.end_instructions.is_some() && !(*number == 0 && later) {
                    events.push(Event::Exit {
                        time_ns: ended_ns.saturating_add(1),
                        thread: *index,
                    });
                }
            }
            for mapped in &file.mapped {
                let Some(by) = &mapped.by else {
                    continue;
                };
                events.push(Event::Map {
                    time_ns: mapped.time_ns.max(start_ns),
                    pid,
                    address: mapped.range.0,
                    length: mapped.range.1 - mapped.range.0,
                    file_offset: by.offset,
                    protection: by.protection | file.hidden_protection(mapped),
                    shared: by.shared_file(),
                    path: by.path.clone(),
                    build_id: String::new(),
                });
            }
        }
        events
    }
}

impl TraceFile {
    /// CLOCK_MONOTONIC when a thread began, no later than its first record.
    pub(super) fn born_ns(&self, number: usize) -> u64 {
        let first = self.threads[number].frames.first();
        match (number, first) {
            (0, _) | (_, None) => self.header.start_ns,
            (_, Some(frame)) => frame.time_ns,
        }
    }

    /// Protection of an initial mapping in the guest that the host's maps file does not show. QEMU maps the guest's
    /// code without permission to execute, so the ELF file has to say whether a mapping is code.
    fn hidden_protection(&self, mapped: &Mapped) -> u32 {
        let Some(mapping) = &mapped.by else { return 0 };
        if mapped.virtual_time > 0 || !mapping.path.starts_with('/') {
            return 0;
        }
        let end = mapping
            .offset
            .saturating_add(mapped.range.1 - mapped.range.0);
        let segments = ElfFile::open(&path_from_text(&mapping.path)).map(|file| file.segments());
        let code = segments.unwrap_or_default().into_iter().any(|segment| {
            segment.executable
                && segment.file_offset < end
                && mapping.offset < segment.file_offset.saturating_add(segment.file_bytes)
        });
        if code { EXECUTABLE } else { 0 }
    }

    /// File name of the program: the first executable file mapped that is no loader or runtime.
    pub(super) fn program(&self) -> &str {
        let executable = |mapped: &&Mapped| {
            mapped.by.as_ref().is_some_and(|mapping| {
                mapping.path.starts_with('/')
                    && (mapping.protection | self.hidden_protection(mapped)) & EXECUTABLE != 0
            })
        };
        let names = self
            .mapped
            .iter()
            .filter(executable)
            .filter_map(|mapped| mapped.by.as_ref()?.path.rsplit('/').next());
        let mut names = names.filter(|name| !is_runtime_module(name.as_bytes()));
        names.next().unwrap_or_default()
    }
}

/// The trace files in `folder`; none if the folder does not exist.
fn find(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = if_there(std::fs::read_dir(folder)).at(folder, "read the folder")?;
    let mut paths = Vec::new();
    for entry in entries.into_iter().flatten() {
        let path = entry.at(folder, "read the folder")?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("trace-") && name.ends_with(".trace")) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
