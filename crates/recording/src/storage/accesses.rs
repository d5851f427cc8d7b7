//! `accesses.parquet`. The table is put in place last: if it exists, the recording has all its tables.

use std::path::Path;

use nearpage_machine::{CpuId, NodeId};

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::{
    AccessBatch, AccessKind, ColumnSelection, Error, Level, Resolution, ThreadIndex, check,
};

/// Name of the table's file.
pub(crate) const FILE: &str = FORMAT.file;

pub(super) const FORMAT: Format = Format {
    file: "accesses.parquet",
    columns: &[
        ("time_ns", Kind::U64, Coding::Delta),
        ("thread", Kind::U32, Coding::Dictionary),
        ("cpu", Kind::U32, Coding::Dictionary),
        ("address", Kind::U64, Coding::Plain),
        ("instruction", Kind::U64, Coding::Dictionary),
        ("kind", Kind::U8, Coding::Dictionary),
        ("level", Kind::U8, Coding::Dictionary),
        ("resolution", Kind::U8, Coding::Dictionary),
        ("skid_bytes", Kind::I8, Coding::Dictionary),
        ("weight", Kind::F32, Coding::Dictionary),
        ("cost_ns", Kind::F32, Coding::Dictionary),
        ("page_node", Kind::OptionalU16, Coding::Dictionary),
    ],
};

/// Rows per row group: few enough that a reader's batches stay within some tens of megabytes.
const ROW_GROUP_ROWS: usize = 1 << 18;

/// Writes accesses, row group by row group, in bounded memory.
pub(crate) struct Writer {
    table: TableWriter,
    pending: AccessBatch,
}

impl Writer {
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            table: TableWriter::create(folder, &FORMAT)?,
            pending: AccessBatch::default(),
        })
    }

    pub(crate) fn write(&mut self, batch: &AccessBatch) -> Result<(), Error> {
        if self.pending.is_empty() && batch.len() >= ROW_GROUP_ROWS {
            return self.table.row_group(columns(batch));
        }
        self.pending.append(batch);
        if self.pending.len() >= ROW_GROUP_ROWS {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.table.row_group(columns(&self.pending))?;
        self.pending.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Unfinished, Error> {
        if !self.pending.is_empty() {
            self.flush()?;
        }
        self.table.finish()
    }
}

fn columns(batch: &AccessBatch) -> Vec<Values> {
    vec![
        Values::u64(batch.time_ns.iter().copied()),
        Values::u32(batch.thread.iter().map(|thread| thread.0)),
        Values::u32(batch.cpu.iter().map(|cpu| cpu.0)),
        Values::u64(batch.address.iter().copied()),
        Values::u64(batch.instruction.iter().copied()),
        Values::small(batch.kind.iter().map(|kind| *kind as i32)),
        Values::small(batch.level.iter().map(|level| *level as i32)),
        Values::small(batch.resolution.iter().map(|resolution| *resolution as i32)),
        Values::small(batch.skid_bytes.iter().map(|skid| i32::from(*skid))),
        Values::f32(batch.weight.iter().copied()),
        Values::f32(batch.cost_ns.iter().copied()),
        Values::optional_u32(
            batch
                .page_node
                .iter()
                .map(|node| node.map(|node| u32::from(node.0))),
        ),
    ]
}

/// Reads accesses by row group; threads may share the reader.
pub(crate) struct Reader {
    table: TableReader,
    /// Number of rows before each group.
    before: Vec<usize>,
}

impl Reader {
    pub(crate) fn open(folder: &Path, checksums: &TableChecksums) -> Result<Self, Error> {
        let table = TableReader::open(folder, &FORMAT, checksums)?;
        let mut rows = 0;
        let before = (0..table.groups()).map(|group| {
            rows += table.rows(group);
            rows - table.rows(group)
        });
        let before = before.collect();
        Ok(Self { table, before })
    }

    pub(crate) fn chunks(&self) -> usize {
        self.table.groups()
    }

    pub(crate) fn access_count(&self) -> u64 {
        (0..self.table.groups())
            .map(|group| self.table.rows(group) as u64)
            .sum()
    }

    /// Reads a row group. `threads` is the number of threads, against which rows are checked.
    pub(crate) fn read_chunk(
        &self,
        number: usize,
        threads: usize,
        columns: ColumnSelection,
        batch: &mut AccessBatch,
    ) -> Result<(), Error> {
        let group = self.table.group(number)?;
        batch.clear();
        if columns.time_ns {
            group.u64("time_ns", &mut batch.time_ns, |time| time)?;
        }
        if columns.thread {
            group.u32("thread", &mut batch.thread, ThreadIndex)?;
        }
        if columns.cpu {
            group.u32("cpu", &mut batch.cpu, CpuId)?;
        }
        if columns.address {
            group.u64("address", &mut batch.address, |address| address)?;
        }
        if columns.instruction {
            group.u64("instruction", &mut batch.instruction, |address| address)?;
        }
        if columns.kind {
            group.code("kind", &mut batch.kind, AccessKind::from_number)?;
        }
        if columns.level {
            group.code("level", &mut batch.level, Level::from_number)?;
        }
        if columns.resolution {
            group.code("resolution", &mut batch.resolution, Resolution::from_number)?;
        }
        if columns.skid_bytes {
            group.i8("skid_bytes", &mut batch.skid_bytes)?;
        }
        if columns.weight {
            group.f32("weight", &mut batch.weight)?;
        }
        if columns.cost_ns {
            group.f32("cost_ns", &mut batch.cost_ns)?;
        }
        if columns.page_node {
            group.optional_u16("page_node", &mut batch.page_node, NodeId)?;
        }
        match check::accesses(batch, threads) {
            Some((row, cause)) => {
                let row = self.before[number] + row;
                Err(Error::damaged(
                    self.table.path(),
                    format!("row {row}: {cause}"),
                ))
            }
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("file", &self.table.path())
            .finish()
    }
}
