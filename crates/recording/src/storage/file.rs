//! One Parquet file: its columns, and how it is written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::checksums::{Checksums, SummedFile};
use crate::error::IoContext;
use crate::{Error, folder};

/// Key of the format version in a file's metadata.
pub(super) const VERSION_KEY: &str = "nearpage.version";
/// Rows per row group of tables that are read as a whole.
const ROWS: usize = 1 << 18;

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U64,
    U32,
    U8,
    I8,
    F32,
    Bool,
    Text,
    OptionalU64,
    OptionalU32,
    OptionalU16,
}

/// How a column is encoded. Measurements decided: see `benches/recording_reading.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Dictionary of values, with run-length encoded positions: for columns with few different values.
    Dictionary,
    /// Bit-packed differences: for increasing values.
    Delta,
    /// Values as they are.
    Plain,
}

/// A table's file and columns, in order.
#[derive(Debug)]
pub(crate) struct Format {
    pub file: &'static str,
    pub columns: &'static [(&'static str, Kind, Coding)],
}

impl Kind {
    fn schema(self, name: &str) -> String {
        let (repetition, physical, logical) = match self {
            Kind::U64 => ("required", "int64", "(INTEGER(64,false))"),
            Kind::U32 => ("required", "int32", "(INTEGER(32,false))"),
            Kind::U8 => ("required", "int32", "(INTEGER(8,false))"),
            Kind::I8 => ("required", "int32", "(INTEGER(8,true))"),
            Kind::F32 => ("required", "float", ""),
            Kind::Bool => ("required", "boolean", ""),
            Kind::Text => ("required", "binary", "(STRING)"),
            Kind::OptionalU64 => ("optional", "int64", "(INTEGER(64,false))"),
            Kind::OptionalU32 => ("optional", "int32", "(INTEGER(32,false))"),
            Kind::OptionalU16 => ("optional", "int32", "(INTEGER(16,false))"),
        };
        format!("{repetition} {physical} {name} {logical};")
    }

    pub(super) fn physical(self) -> Physical {
        match self {
            Kind::U64 | Kind::OptionalU64 => Physical::INT64,
            Kind::U32 | Kind::U8 | Kind::I8 | Kind::OptionalU32 | Kind::OptionalU16 => {
                Physical::INT32
            }
            Kind::F32 => Physical::FLOAT,
            Kind::Bool => Physical::BOOLEAN,
            Kind::Text => Physical::BYTE_ARRAY,
        }
    }

    pub(super) fn optional(self) -> bool {
        matches!(
            self,
            Kind::OptionalU64 | Kind::OptionalU32 | Kind::OptionalU16
        )
    }
}

/// Values of one column on their way to disk. Parquet stores unsigned integers in the signed type of their width.
pub(crate) enum Values {
    I64(Vec<i64>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Text(Vec<ByteArray>),
    OptionalI64(Vec<Option<i64>>),
    OptionalI32(Vec<Option<i32>>),
}

impl Values {
    pub(super) fn u64(values: impl IntoIterator<Item = u64>) -> Self {
        Self::I64(values.into_iter().map(u64::cast_signed).collect())
    }

    pub(super) fn u32(values: impl IntoIterator<Item = u32>) -> Self {
        Self::I32(values.into_iter().map(u32::cast_signed).collect())
    }

    pub(super) fn small(values: impl IntoIterator<Item = i32>) -> Self {
        Self::I32(values.into_iter().collect())
    }

    pub(super) fn f32(values: impl IntoIterator<Item = f32>) -> Self {
        Self::F32(values.into_iter().collect())
    }

    pub(super) fn text<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Text(values.into_iter().map(ByteArray::from).collect())
    }

    pub(super) fn optional_u64(values: impl IntoIterator<Item = Option<u64>>) -> Self {
        Self::OptionalI64(
            values
                .into_iter()
                .map(|value| value.map(u64::cast_signed))
                .collect(),
        )
    }

    pub(super) fn optional_u32(values: impl IntoIterator<Item = Option<u32>>) -> Self {
        Self::OptionalI32(
            values
                .into_iter()
                .map(|value| value.map(u32::cast_signed))
                .collect(),
        )
    }
}

/// A file that is written but not yet in place.
#[must_use]
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    put: bool,
    checksums: Checksums,
}

impl Unfinished {
    /// Final name of the file.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    pub(super) fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// Gives the file its final name, in place of an earlier file.
    pub(crate) fn put_in_place(mut self) -> Result<(), Error> {
        fs::rename(folder::unfinished(&self.path), &self.path).at(&self.path, "put in place")?;
        self.put = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.put {
            // A file that cannot be removed, either, is left over.
            let _ = fs::remove_file(folder::unfinished(&self.path));
        }
    }
}

/// Writes one table.
pub(super) struct TableWriter {
    /// The first field, so that an error while writing removes the file.
    unfinished: Unfinished,
    writer: SerializedFileWriter<SummedFile>,
}

impl TableWriter {
    pub(super) fn create(folder: &Path, format: &Format) -> Result<Self, Error> {
        let path = folder.join(format.file);
        let file = folder::create_file(&folder::unfinished(&path))?;
        let unfinished = Unfinished {
            path,
            put: false,
            checksums: Checksums::default(),
        };
        let columns: String = format
            .columns
            .iter()
            .map(|(name, kind, _)| kind.schema(name))
            .collect();
        let schema = parse_message_type(&format!("message nearpage {{ {columns} }}"));
        let schema = schema.map_err(|error| Error::damaged(&unfinished.path, error))?;
        let version = KeyValue::new(VERSION_KEY.to_owned(), folder::FORMAT_VERSION.to_string());
        let mut properties = WriterProperties::builder()
            .set_created_by(format!("nearpage {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(vec![version]))
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_write_batch_size(8192)
            .set_data_page_row_count_limit(1 << 16)
            .set_max_row_group_row_count(None);
        for (name, _, coding) in format.columns {
            let column = || ColumnPath::from(*name);
            properties =
                properties.set_column_dictionary_enabled(column(), *coding == Coding::Dictionary);
            properties = match coding {
                Coding::Dictionary => properties,
                Coding::Delta => {
                    properties.set_column_encoding(column(), Encoding::DELTA_BINARY_PACKED)
                }
                Coding::Plain => properties.set_column_encoding(column(), Encoding::PLAIN),
            };
        }
        let writer = SerializedFileWriter::new(
            SummedFile::new(file),
            Arc::new(schema),
            Arc::new(properties.build()),
        )
        .map_err(|error| write_error(&unfinished.path, error))?;
        Ok(Self { unfinished, writer })
    }

    /// Appends a row group: `columns` has an entry for each column of the format, all equally long.
    pub(super) fn row_group(&mut self, columns: Vec<Values>) -> Result<(), Error> {
        let write = |writer: &mut SerializedFileWriter<SummedFile>| -> Result<(), ParquetError> {
            let mut group = writer.next_row_group()?;
            for values in &columns {
                let Some(mut column) = group.next_column()? else {
                    break;
                };
                match values {
                    Values::I64(values) => column
                        .typed::<Int64Type>()
                        .write_batch(values, None, None)?,
                    Values::I32(values) => column
                        .typed::<Int32Type>()
                        .write_batch(values, None, None)?,
                    Values::F32(values) => column
                        .typed::<FloatType>()
                        .write_batch(values, None, None)?,
                    Values::Bool(values) => {
                        column.typed::<BoolType>().write_batch(values, None, None)?
                    }
                    Values::Text(values) => column
                        .typed::<ByteArrayType>()
                        .write_batch(values, None, None)?,
                    Values::OptionalI64(values) => {
                        let (levels, values) = levels_and_values(values);
                        column
                            .typed::<Int64Type>()
                            .write_batch(&values, Some(&levels), None)?
                    }
                    Values::OptionalI32(values) => {
                        let (levels, values) = levels_and_values(values);
                        column
                            .typed::<Int32Type>()
                            .write_batch(&values, Some(&levels), None)?
                    }
                };
                column.close()?;
            }
            group.close()?;
            writer.flush()?;
            writer.inner_mut().end_section();
            Ok(())
        };
        write(&mut self.writer).map_err(|error| write_error(&self.unfinished.path, error))
    }

    /// Appends `rows`, as row groups of bounded size.
    pub(super) fn rows<Row>(
        mut self,
        rows: &[Row],
        columns: impl Fn(&[Row]) -> Vec<Values>,
    ) -> Result<Unfinished, Error> {
        for part in rows.chunks(ROWS) {
            self.row_group(columns(part))?;
        }
        self.finish()
    }

    pub(super) fn finish(mut self) -> Result<Unfinished, Error> {
        let finished = self.writer.finish().and_then(|_| Ok(self.writer.flush()?));
        finished.map_err(|error| write_error(&self.unfinished.path, error))?;
        let file = self.writer.inner_mut();
        file.end_section();
        self.unfinished.checksums = file.take();
        Ok(self.unfinished)
    }
}

fn levels_and_values<T: Copy>(values: &[Option<T>]) -> (Vec<i16>, Vec<T>) {
    (
        values
            .iter()
            .map(|value| i16::from(value.is_some()))
            .collect(),
        values.iter().flatten().copied().collect(),
    )
}

fn write_error(path: &Path, error: ParquetError) -> Error {
    let source = match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => *cause,
            Err(cause) => io::Error::other(cause),
        },
        other => io::Error::other(other),
    };
    Error::Io {
        file: path.to_owned(),
        action: "write",
        source,
    }
}
