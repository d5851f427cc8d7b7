//! The tables on disk: one Parquet file each, read and written column by column.
//!
//! The columns of a table stand at the top of its module; `docs/reference/recording-format.md` explains them. A file is
//! written under a temporary name and renamed when the whole recording is ready.

pub(crate) mod accesses;
pub(crate) mod call_sites;
pub(crate) mod checksums;
pub(crate) mod columns;
mod constant;
mod file;
pub(crate) mod first_touches;
mod labelled;
pub(crate) mod modules;
pub(crate) mod objects;
mod page_header;
mod reader;
mod section;
pub(crate) mod threads;
pub(crate) mod trace;

use std::path::Path;

pub use self::labelled::{LabelledAccess, LabelledTable};

use self::checksums::TableChecksums;
use self::file::Unfinished;
use crate::trace::PageRow;
use crate::{AccessBatch, Error, Metadata, Tables, folder};

/// Tables that are equal for ranks of one program: its modules, and the call sites of its allocations.
pub(crate) const SHARED_TABLES: [&str; 2] = [modules::FORMAT.file, call_sites::FORMAT.file];

/// Writes the tables of a recording, accesses first, in bounded memory; used by conversions, imports and tests.
pub struct TablesWriter {
    folder: std::path::PathBuf,
    accesses: accesses::Writer,
}

impl std::fmt::Debug for TablesWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TablesWriter")
            .field("folder", &self.folder)
            .finish()
    }
}

impl TablesWriter {
    /// Begins in `folder`, which exists. Files have temporary names until [`TablesWriter::finish`], and are removed if
    /// it is never called.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            folder: folder.to_owned(),
            accesses: accesses::Writer::create(folder)?,
        })
    }

    /// Appends accesses.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn accesses(&mut self, batch: &AccessBatch) -> Result<(), Error> {
        self.accesses.write(batch)
    }

    /// Writes the other tables and puts all files in place, the accesses last. If the accesses are in place, the
    /// recording has all its tables.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self, tables: &Tables, metadata: &Metadata) -> Result<(), Error> {
        let accesses = self.accesses.finish()?;
        let others = write(&self.folder, tables)?;
        put_in_place(&self.folder, others, accesses, metadata)
    }
}

/// Writes the tables of a trace and puts them in place, the pages last. The accesses stay in the tracer's files. If the
/// pages are in place, the recording has all its tables.
pub(crate) fn write_traced(
    folder: &Path,
    tables: &Tables,
    pages: &[PageRow],
    moments: &[(u32, (u64, u64))],
    metadata: &Metadata,
) -> Result<(), Error> {
    let mut others = write(folder, tables)?;
    others.push(trace::write_moments(folder, moments)?);
    let pages = trace::write_pages(folder, pages)?;
    put_in_place(folder, others, pages, metadata)
}

/// Puts the tables in place, `last` last.
fn put_in_place(
    folder: &Path,
    others: Vec<Unfinished>,
    last: Unfinished,
    metadata: &Metadata,
) -> Result<(), Error> {
    let all = others.iter().chain([&last]);
    let checksums: TableChecksums = all
        .map(|table| (table.name(), table.checksums().clone()))
        .collect();
    for table in others {
        table.put_in_place()?;
    }
    folder::write_metadata(folder, metadata, &checksums)?;
    last.put_in_place()
}

/// Writes all tables except the accesses. Nothing is in place before [`Unfinished::put_in_place`].
fn write(folder: &Path, tables: &Tables) -> Result<Vec<Unfinished>, Error> {
    Ok(vec![
        objects::write(folder, &tables.objects)?,
        threads::write(folder, &tables.threads)?,
        threads::write_cpus(folder, &tables.threads)?,
        modules::write(folder, &tables.modules)?,
        modules::write_mappings(folder, &tables.mappings)?,
        call_sites::write(folder, &tables.call_sites)?,
        first_touches::write(folder, &tables.first_touches)?,
    ])
}

/// Reads all tables except the accesses, and checks that they agree with each other.
pub(crate) fn read(folder: &Path, checksums: &TableChecksums) -> Result<Tables, Error> {
    let modules = modules::read(folder, checksums)?;
    let tables = Tables {
        cached_samples: Vec::new(),
        objects: objects::read(folder, checksums)?,
        threads: threads::read(folder, checksums)?,
        mappings: modules::read_mappings(folder, checksums)?,
        call_sites: call_sites::read(folder, checksums, modules.len())?,
        first_touches: first_touches::read(folder, checksums)?,
        modules,
    };
    tables.check(folder)?;
    Ok(tables)
}
