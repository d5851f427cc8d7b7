//! A table for query engines, with a row per access. A row has all names, so that no other table is needed.

use std::path::Path;

use nearpage_machine::NodeId;
use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;

use super::file::{Coding, Format, Kind, TableWriter, Values};
use crate::{Access, Error};

const FORMAT: Format = Format {
    file: "accesses.parquet",
    columns: &[
        ("time_ns", Kind::U64, Coding::Delta),
        ("pid", Kind::U32, Coding::Dictionary),
        ("tid", Kind::U32, Coding::Dictionary),
        ("thread", Kind::Text, Coding::Dictionary),
        ("cpu", Kind::U32, Coding::Dictionary),
        ("cpu_node", Kind::OptionalU16, Coding::Dictionary),
        ("node", Kind::OptionalU16, Coding::Dictionary),
        ("kind", Kind::Text, Coding::Dictionary),
        ("level", Kind::Text, Coding::Dictionary),
        ("address", Kind::U64, Coding::Plain),
        ("object", Kind::Text, Coding::Dictionary),
        ("object_kind", Kind::Text, Coding::Dictionary),
        ("object_address", Kind::OptionalU64, Coding::Dictionary),
        ("function", Kind::Text, Coding::Dictionary),
        ("file", Kind::Text, Coding::Dictionary),
        ("line", Kind::U32, Coding::Dictionary),
        ("weight", Kind::F32, Coding::Dictionary),
        ("cost_ns", Kind::F32, Coding::Dictionary),
    ],
};

/// Rows per row group; these are in memory until the group is written.
const ROWS: usize = 1 << 16;

/// An access with its names.
#[derive(Clone, Copy, Debug)]
pub struct LabelledAccess<'a> {
    /// The access.
    pub access: Access,
    /// Process id.
    pub pid: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Name of the thread.
    pub thread: &'a str,
    /// Node of the CPU.
    pub cpu_node: Option<NodeId>,
    /// Node of the memory.
    pub node: Option<NodeId>,
    /// Load, store or fetch.
    pub kind: &'a str,
    /// Cache or memory that served the access; empty if unknown.
    pub level: &'a str,
    /// Name of the object.
    pub object: &'a str,
    /// Kind of the object.
    pub object_kind: &'a str,
    /// First address of the object.
    pub object_address: Option<u64>,
    /// Function of the instruction.
    pub function: &'a str,
    /// Source file of the instruction.
    pub file: &'a str,
    /// Source line of the instruction; 0 if unknown.
    pub line: u32,
}

/// Writes `accesses.parquet` for query engines, in bounded memory.
pub struct LabelledTable {
    writer: TableWriter,
    rows: Vec<Row>,
    texts: FxHashMap<String, ByteArray>,
}

impl std::fmt::Debug for LabelledTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LabelledTable").finish_non_exhaustive()
    }
}

/// An access whose names share memory with equal names of earlier rows.
struct Row {
    access: Access,
    pid: u32,
    tid: u32,
    cpu_node: Option<NodeId>,
    node: Option<NodeId>,
    object_address: Option<u64>,
    line: u32,
    /// `thread`, `kind`, `level`, `object`, `object_kind`, `function`, `file`.
    texts: [ByteArray; 7],
}

impl LabelledTable {
    /// Begins the table in `folder`, which exists.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            writer: TableWriter::create(folder, &FORMAT)?,
            rows: Vec::with_capacity(ROWS),
            texts: FxHashMap::default(),
        })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn row(&mut self, labelled: &LabelledAccess<'_>) -> Result<(), Error> {
        let texts = [
            labelled.thread,
            labelled.kind,
            labelled.level,
            labelled.object,
            labelled.object_kind,
            labelled.function,
            labelled.file,
        ];
        self.rows.push(Row {
            access: labelled.access,
            pid: labelled.pid,
            tid: labelled.tid,
            cpu_node: labelled.cpu_node,
            node: labelled.node,
            object_address: labelled.object_address,
            line: labelled.line,
            texts: texts.map(|text| shared(&mut self.texts, text)),
        });
        match self.rows.len() < ROWS {
            true => Ok(()),
            false => self.write_rows(),
        }
    }

    /// Writes the remaining rows, and gives the file its final name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<(), Error> {
        if !self.rows.is_empty() {
            self.write_rows()?;
        }
        self.writer.finish()?.put_in_place()
    }

    fn write_rows(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.rows);
        let text = |at: usize| Values::Text(rows.iter().map(|row| row.texts[at].clone()).collect());
        let node = |of: fn(&Row) -> Option<NodeId>| {
            let nodes = rows.iter().map(of);
            Values::OptionalI32(
                nodes
                    .map(|node| node.map(|node| i32::from(node.0)))
                    .collect(),
            )
        };
        let accesses = || rows.iter().map(|row| &row.access);
        let columns = vec![
            Values::u64(accesses().map(|access| access.time_ns)),
            Values::u32(rows.iter().map(|row| row.pid)),
            Values::u32(rows.iter().map(|row| row.tid)),
            text(0),
            Values::u32(accesses().map(|access| access.cpu.0)),
            node(|row| row.cpu_node),
            node(|row| row.node),
            text(1),
            text(2),
            Values::u64(accesses().map(|access| access.address)),
            text(3),
            text(4),
            Values::optional_u64(rows.iter().map(|row| row.object_address)),
            text(5),
            text(6),
            Values::u32(rows.iter().map(|row| row.line)),
            Values::f32(accesses().map(|access| access.weight)),
            Values::f32(accesses().map(|access| access.cost_ns)),
        ];
        self.rows = Vec::with_capacity(ROWS);
        self.writer.row_group(columns)
    }
}

/// A text in the form that columns store; equal texts share their bytes.
fn shared(texts: &mut FxHashMap<String, ByteArray>, text: &str) -> ByteArray {
    if let Some(known) = texts.get(text) {
        return known.clone();
    }
    let new = ByteArray::from(text);
    texts.insert(text.to_owned(), new.clone());
    new
}
