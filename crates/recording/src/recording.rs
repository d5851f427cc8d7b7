//! Opens, reads and writes recordings.

use std::path::{Path, PathBuf};

use nearpage_machine::Machine;

use crate::cached::{self, CachedLines, LineSamples};
use crate::convert::{self, FromLogs, ModulePaths};
use crate::error::IoContext;
use crate::folder;
use crate::log::LogReader;
use crate::storage::{self, TablesWriter, accesses};
use crate::symbols::Symbols;
use crate::trace::{self, OpenFrames, OpenedTrace, SharedTrace, Trace};
use crate::{AccessBatch, Error, Metadata, ModuleId, Source, Status, Tables};
use crate::{jit, nameless, source_lines};

/// A recording. Accesses stay on disk and are read in chunks; everything else is in memory.
#[derive(Debug)]
pub struct Recording {
    /// Folder of the recording.
    pub folder: PathBuf,
    /// Metadata of the whole recording.
    pub metadata: Metadata,
    /// Machine on which the recording was made.
    pub machine: Machine,
    /// Objects, threads, modules, call sites.
    pub tables: Tables,
    accesses: Accesses,
    cached: CachedLines,
}

/// Where the accesses are stored.
#[derive(Debug)]
enum Accesses {
    Table(accesses::Reader),
    Log(LogReader),
    Trace(SharedTrace),
}

/// Reads chunks of accesses. Reading in order is fastest, as parts that neighbouring chunks share are decoded once.
/// Several readers may work at the same time.
#[derive(Debug)]
pub struct ChunkReader<'a> {
    accesses: &'a Accesses,
    cached: &'a CachedLines,
    threads: usize,
    open: OpenFrames,
}

impl ChunkReader<'_> {
    /// Replaces the contents of `batch` by the selected columns of chunk `number`; a log always gives all columns. Costs
    /// come with threads and addresses. They are 0 for samples by time of memory that a cache served.
    /// Panics if there is no such chunk.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`].
    pub fn read(
        &mut self,
        number: usize,
        columns: ColumnSelection,
        batch: &mut AccessBatch,
    ) -> Result<(), Error> {
        let needed = match columns.cost_ns && !self.cached.is_empty() {
            true => ColumnSelection {
                thread: true,
                address: true,
                ..columns
            },
            false => columns,
        };
        match self.accesses {
            Accesses::Table(table) => table.read_chunk(number, self.threads, needed, batch)?,
            Accesses::Log(log) => log.read_chunk(number, batch)?,
            Accesses::Trace(trace) => trace.read_chunk(number, needed, batch, &mut self.open)?,
        }
        if columns.cost_ns {
            self.cached.take_costs(batch);
        }
        Ok(())
    }
}

/// Columns to read; all other columns of a batch stay empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a flag per column of AccessBatch")]
pub struct ColumnSelection {
    pub time_ns: bool,
    pub thread: bool,
    pub cpu: bool,
    pub address: bool,
    pub instruction: bool,
    pub kind: bool,
    pub level: bool,
    pub resolution: bool,
    pub skid_bytes: bool,
    pub weight: bool,
    pub cost_ns: bool,
    pub page_node: bool,
}

impl ColumnSelection {
    /// All columns.
    pub const ALL: Self = Self::uniform(true);
    /// No column.
    pub const NONE: Self = Self::uniform(false);

    const fn uniform(wanted: bool) -> Self {
        Self {
            time_ns: wanted,
            thread: wanted,
            cpu: wanted,
            address: wanted,
            instruction: wanted,
            kind: wanted,
            level: wanted,
            resolution: wanted,
            skid_bytes: wanted,
            weight: wanted,
            cost_ns: wanted,
            page_node: wanted,
        }
    }
}

impl Recording {
    /// Opens the recording in `folder`. A recording that ended but is still a log becomes tables first, if the folder
    /// can be written. If the recorder is running or was killed, its log is read.
    ///
    /// # Errors
    /// [`Error::NotARecording`], [`Error::Version`], [`Error::Damaged`] (for example a truncated table, by
    /// name), [`Error::Io`].
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let metadata = folder::read_metadata(folder)?;
        let tables = [accesses::FILE, storage::trace::PAGES_FILE];
        let has_tables = tables.iter().any(|table| folder.join(table).exists());
        let has_log = has_log(folder);
        if !has_tables && !has_log {
            return Err(Error::NotARecording {
                folder: folder.to_owned(),
                file: accesses::FILE,
            });
        }
        let paths = ModulePaths::default();
        if !has_tables && metadata.status == Status::Complete {
            match convert::convert(folder, &paths) {
                Ok(()) => {
                    let recording = Self::open_tables(folder, folder::read_metadata(folder)?)?;
                    return Ok(recording.with_cached_lines());
                }
                Err(Error::Io { .. }) => {} // A folder that can't be written to, or a full disk.
                Err(other) => return Err(other),
            }
        }
        let recording = if has_tables {
            Self::open_tables(folder, metadata)?
        } else {
            Self::open_log(folder, metadata, &paths)?
        };
        Ok(recording.with_cached_lines())
    }

    fn open_tables(folder: &Path, metadata: Metadata) -> Result<Self, Error> {
        let checksums = folder::read_checksums(folder)?;
        let machine = folder::read_machine(folder)?;
        let tables = storage::read(folder, &checksums)?;
        let accesses = if folder.join(accesses::FILE).exists() {
            Accesses::Table(accesses::Reader::open(folder, &checksums)?)
        } else {
            let rows = storage::trace::read_pages(folder, &checksums)?;
            let moments = storage::trace::read_moments(folder, &checksums)?;
            tables.check_pages(folder, &rows)?;
            let traced = OpenedTrace::open(folder, &machine, &metadata, &rows, &moments)?;
            tables.check_trace(folder, traced.threads())?;
            Accesses::Trace(traced.into())
        };
        Ok(Self {
            folder: folder.to_owned(),
            metadata,
            machine,
            tables,
            accesses,
            cached: CachedLines::default(),
        })
    }

    fn open_log(folder: &Path, mut metadata: Metadata, paths: &ModulePaths) -> Result<Self, Error> {
        let machine = folder::read_machine(folder)?;
        // Finishes the traces that a killed recorder left. A folder that can't be written to is read as it is.
        let alive = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        let _ = trace::finish_frames(&folder.join(folder::TRACE_FOLDER), alive);
        let FromLogs {
            log,
            assembled,
            traced,
        } = convert::from_logs(folder, &machine, &mut metadata, paths)?;
        let tables = assembled.tables;
        Ok(Self {
            folder: folder.to_owned(),
            metadata,
            machine,
            tables,
            accesses: match traced {
                Some((traced, _)) => Accesses::Trace(traced.into()),
                None => Accesses::Log(log),
            },
            cached: CachedLines::default(),
        })
    }

    /// Finds the lines that threads have in their caches, if samples by time do not tell. Chunks that cannot be read are
    /// left out; reading them again gives the error.
    fn with_cached_lines(mut self) -> Self {
        if !matches!(self.metadata.source, Source::Clock | Source::Signal) {
            return self;
        }
        let columns = ColumnSelection {
            thread: true,
            address: true,
            kind: true,
            ..ColumnSelection::NONE
        };
        let step = self.access_count().div_ceil(cached::ACCESSES_MAX).max(1);
        let mut samples = LineSamples::new(&self.machine);
        let (mut reader, mut batch) = (self.chunk_reader(), AccessBatch::default());
        for chunk in (0..self.access_chunks()).step_by(step as usize) {
            if reader.read(chunk, columns, &mut batch).is_ok() {
                samples.add(&batch);
            }
        }
        let (lines, by_thread) = samples.cached();
        self.cached = lines;
        if self.cached.is_empty() {
            return self;
        }
        self.tables.cached_samples = vec![0; self.tables.threads.len()];
        for (thread, samples) in by_thread {
            if let Some(all) = self.tables.cached_samples.get_mut(thread.0 as usize) {
                *all = samples * step;
            }
        }
        self
    }

    /// Whether the recorder ended the recording.
    pub fn is_complete(&self) -> bool {
        self.metadata.status == Status::Complete
    }

    /// Number of accesses.
    pub fn access_count(&self) -> u64 {
        match &self.accesses {
            Accesses::Table(table) => table.access_count(),
            Accesses::Log(log) => log.access_count,
            Accesses::Trace(trace) => trace.access_count(),
        }
    }

    /// Number of chunks that the accesses come in.
    pub fn access_chunks(&self) -> usize {
        match &self.accesses {
            Accesses::Table(table) => table.chunks(),
            Accesses::Log(log) => log.chunks(),
            Accesses::Trace(trace) => trace.chunks(),
        }
    }

    /// A reader of the chunks.
    pub fn chunk_reader(&self) -> ChunkReader<'_> {
        ChunkReader {
            accesses: &self.accesses,
            cached: &self.cached,
            threads: self.tables.threads.len(),
            open: OpenFrames::default(),
        }
    }

    /// [`ChunkReader::read`] of a single chunk.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`].
    pub fn read_chunk(
        &self,
        number: usize,
        columns: ColumnSelection,
        batch: &mut AccessBatch,
    ) -> Result<(), Error> {
        self.chunk_reader().read(number, columns, batch)
    }

    /// Every miss of the program, for replay.
    ///
    /// # Errors
    /// [`Error::SamplesOnly`]; [`Error::CutShort`] if the end of a process is missing.
    pub fn trace(&self) -> Result<Trace, Error> {
        let trace = self.shared_trace()?;
        match trace.cut_short() {
            Some(file) => Err(Error::CutShort(file.to_owned())),
            None => Ok(Trace::new(trace)),
        }
    }

    /// The trace, whether cut short or not.
    pub(crate) fn shared_trace(&self) -> Result<&SharedTrace, Error> {
        match &self.accesses {
            Accesses::Trace(trace) => Ok(trace),
            _ => Err(Error::SamplesOnly(self.folder.clone())),
        }
    }

    /// All accesses with all columns, chunk by chunk, in the order of recording. This is the order of time, except for
    /// neighbouring accesses on different CPUs.
    pub fn accesses(&self) -> impl Iterator<Item = Result<AccessBatch, Error>> {
        let mut reader = self.chunk_reader();
        (0..self.access_chunks()).map(move |chunk| {
            let mut batch = AccessBatch::default();
            reader
                .read(chunk, ColumnSelection::ALL, &mut batch)
                .map(|()| batch)
        })
    }

    /// Module of an address of process `pid` at `time_ns`, and the virtual address in the module's file. For many
    /// look-ups, use `tables.mappings` instead, which are sorted.
    pub fn resolve(&self, pid: u32, time_ns: u64, address: u64) -> Option<(ModuleId, u64)> {
        let first = self
            .tables
            .mappings
            .partition_point(|mapping| mapping.pid < pid);
        let of_process = self.tables.mappings[first..]
            .iter()
            .take_while(|mapping| mapping.pid == pid);
        of_process
            .filter_map(|mapping| {
                mapping
                    .offset(pid, time_ns, address)
                    .map(|offset| (mapping.module, offset))
            })
            .next()
    }

    /// Copies the names of generated code, and of code without a file, to `folder`, whose recording has the same
    /// tables.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn copy_names(&self, folder: &Path) -> Result<(), Error> {
        let kept = |module| {
            let nameless = nameless::map_of(&self.folder, module);
            jit::map_of(&self.folder, module)
                .or_else(|| source_lines::map_of(&self.folder, module))
                .or_else(|| nameless.is_file().then_some(nameless))
        };
        for map in self.tables.modules.iter().filter_map(kept) {
            let copy = folder.join(map.file_name().unwrap_or_default());
            let from = nearpage_files::open(&map).at(&map, "open")?;
            jit::copy(from, &copy).at(&map, "copy")?;
        }
        Ok(())
    }

    /// Looks up functions and lines in this recording's modules.
    pub fn symbols(&self) -> Symbols {
        Symbols::of_recording(&self.folder, &self.tables.modules)
    }
}

fn has_log(folder: &Path) -> bool {
    folder
        .join(folder::LOG_FOLDER)
        .join(folder::RECORDER_LOG_FILE)
        .exists()
}

impl Recording {
    /// Writes a recording that no recorder made: folder (mode 0700), machine, tables, and accesses from
    /// `write_accesses`.
    ///
    /// # Errors
    /// [`Error::FolderInUse`], [`Error::Io`].
    pub fn write(
        folder: &Path,
        metadata: &Metadata,
        machine: &Machine,
        tables: &Tables,
        write_accesses: impl FnOnce(&mut TablesWriter) -> Result<(), Error>,
    ) -> Result<(), Error> {
        folder::create(folder)?;
        folder::write_machine(folder, machine)?;
        let mut writer = TablesWriter::create(folder)?;
        write_accesses(&mut writer)?;
        folder::remove_logs(folder)?;
        writer.finish(tables, metadata)
    }
}
