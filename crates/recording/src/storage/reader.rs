//! Reads one table, row group by row group.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{BoolType, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;

use super::checksums::{Checksums, TableChecksums};
use super::constant::Constant;
use super::file::{Format, VERSION_KEY};
use super::section::Section;
use crate::error::IoContext;
use crate::{Error, folder};

/// Most rows of a row group, four times as many as are written, so that a file cannot make the reader allocate without
/// bound.
const ROWS_MAX: i64 = 1 << 20;
/// Most rows of a table per byte of its file, beyond [`ROWS_MAX`]. A hostile file may have endless equal rows, which
/// compress to nothing; real rows differ in address or time.
const ROWS_PER_BYTE_MAX: u64 = 4;

/// Longest text of a table, in bytes; longer texts are cut. Paths are not longer, and a symbol's first part is enough.
const TEXT_BYTES_MAX: usize = 4096;
/// Most bytes of a table's texts together, as a text that is stored once may be the name of every row.
const TEXTS_BYTES_MAX: u64 = 128 << 20;

/// Reads one table. Threads may share the reader, as every read states its own position.
pub(super) struct TableReader {
    path: PathBuf,
    file: File,
    format: &'static Format,
    checksums: Checksums,
    metadata: ParquetMetaData,
    /// Position in the file of each column of the format; none for one of [`LATER_COLUMNS`] that the file lacks.
    positions: Vec<Option<usize>>,
    /// Bytes of all texts that were read so far.
    text_bytes: AtomicU64,
}

impl TableReader {
    /// Opens the table and checks its footer, version and columns. Columns that a later minor version added are
    /// ignored.
    pub(super) fn open(
        folder: &Path,
        format: &'static Format,
        checksums: &TableChecksums,
    ) -> Result<Self, Error> {
        let path = folder.join(format.file);
        let file = nearpage_files::open(&path).at(&path, "open")?;
        let Some(checksums) = checksums.get(format.file).cloned() else {
            return Err(Error::damaged(
                &folder.join(folder::METADATA_FILE),
                format!("it has no checksum of {}", format.file),
            ));
        };
        let (_, footer) = checksums.read(&file, &path, checksums.last())?;
        let metadata = ParquetMetaDataReader::new()
            .parse_and_finish(&footer)
            .map_err(|error| Error::damaged(&path, error))?;
        let positions = positions(&metadata, format, &path)?;
        let table = Self {
            path,
            file,
            format,
            checksums,
            metadata,
            positions,
            text_bytes: AtomicU64::new(0),
        };
        let mut rows = 0;
        for (group, row_group) in table.metadata.row_groups().iter().enumerate() {
            if !(0..=ROWS_MAX).contains(&row_group.num_rows()) {
                return Err(Error::damaged(
                    &table.path,
                    format!("row group {group} has an impossible number of rows"),
                ));
            }
            rows += row_group.num_rows().cast_unsigned();
        }
        let bytes = table.checksums.file_bytes();
        if rows > bytes.saturating_mul(ROWS_PER_BYTE_MAX) + ROWS_MAX.cast_unsigned() {
            let cause = format!("it has {rows} rows, more than fit into its {bytes} bytes");
            return Err(Error::damaged(&table.path, cause));
        }
        Ok(table)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of row groups.
    pub(super) fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// Number of rows of a group.
    pub(super) fn rows(&self, group: usize) -> usize {
        self.metadata.row_group(group).num_rows() as usize
    }

    /// Reads a row group into memory, still encoded, and checks its checksum.
    pub(super) fn group(&self, number: usize) -> Result<RowGroup<'_>, Error> {
        let (offset, bytes) = self.checksums.read(&self.file, &self.path, number)?;
        // Values have up to eight bytes; levels and headers take at most as much again.
        let page_bytes_max = 16 * self.rows(number) as u64 + TEXTS_BYTES_MAX + (1 << 20);
        Ok(RowGroup {
            table: self,
            number,
            section: Arc::new(Section {
                offset,
                bytes,
                page_bytes_max,
            }),
        })
    }
}

/// Columns that earlier recordings have under another name: (name, earlier name).
const EARLIER_NAMES: [(&str, &str); 1] = [("skid_bytes", "distance_bytes")];

/// Columns that earlier recordings lack. All their values are null there.
const LATER_COLUMNS: [&str; 1] = ["same_memory_as"];

/// Checks the file's kind and version; returns the position of each column of `format`.
fn positions(
    metadata: &ParquetMetaData,
    format: &Format,
    path: &Path,
) -> Result<Vec<Option<usize>>, Error> {
    let metadata = metadata.file_metadata();
    let version = metadata.key_value_metadata().and_then(|pairs| {
        let pair = pairs.iter().find(|pair| pair.key == VERSION_KEY)?;
        pair.value.as_ref()?.parse().ok()
    });
    let Some(found) = version else {
        return Err(Error::damaged(
            path,
            "expected a table of a recording, found another Parquet file",
        ));
    };
    if found != folder::FORMAT_VERSION {
        return Err(Error::Version {
            file: path.to_owned(),
            found,
            expected: folder::FORMAT_VERSION,
        });
    }
    let schema = metadata.schema_descr();
    let position = |(name, kind, _): &(&str, super::file::Kind, _)| {
        let is_named = |found: &str| found == *name || EARLIER_NAMES.contains(&(name, found));
        let fits = |column: &Arc<ColumnDescriptor>| {
            is_named(column.name())
                && column.physical_type() == kind.physical()
                && column.max_def_level() == i16::from(kind.optional())
                && column.max_rep_level() == 0
        };
        let position = schema.columns().iter().position(fits);
        let is_named = |column: &Arc<ColumnDescriptor>| column.name() == *name;
        let is_later = LATER_COLUMNS.contains(name) && !schema.columns().iter().any(is_named);
        if position.is_none() && !is_later {
            let cause = format!("column {name} is missing or of another type");
            return Err(Error::damaged(path, cause));
        }
        Ok(position)
    };
    format.columns.iter().map(position).collect()
}

/// A row group with the right checksum.
pub(super) struct RowGroup<'table> {
    table: &'table TableReader,
    number: usize,
    section: Arc<Section>,
}

impl RowGroup<'_> {
    fn rows(&self) -> usize {
        self.table.rows(self.number)
    }

    fn statistics(&self, position: usize) -> Option<&Statistics> {
        self.table
            .metadata
            .row_group(self.number)
            .column(position)
            .statistics()
    }

    /// Decodes the values of a column, and a level for each row if the column is optional.
    fn decode<T: DataType>(
        &self,
        position: usize,
        levels: Option<&mut Vec<i16>>,
    ) -> Result<Vec<T::T>, Error> {
        let rows = self.rows();
        let column = self.table.metadata.row_group(self.number).column(position);
        let decode = || -> Result<Vec<T::T>, ParquetError> {
            let pages = SerializedPageReader::new(self.section.clone(), column, rows, None)?;
            let mut column = ColumnReaderImpl::<T>::new(column.column_descr_ptr(), Box::new(pages));
            let mut values = Vec::with_capacity(rows);
            column.read_records(rows, levels, None, &mut values)?;
            Ok(values)
        };
        decode().map_err(|error| Error::damaged(&self.table.path, error))
    }

    /// Appends column `name` to `out`, each value through `convert`.
    fn required<T: DataType, V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<V>,
        convert: impl Fn(&T::T) -> V,
    ) -> Result<(), Error>
    where
        T::T: Constant,
    {
        let (rows, position) = (self.rows(), self.position(name));
        // Many row groups need no decoding, as all rows have one value, such as the weight of the clock's samples.
        if let Some(value) = self.statistics(position).and_then(T::T::constant) {
            out.extend(std::iter::repeat_n(convert(&value), rows));
            return Ok(());
        }
        let values = self.decode::<T>(position, None)?;
        if values.len() != rows {
            return Err(self.short(name));
        }
        out.extend(values.iter().map(convert));
        Ok(())
    }

    /// Appends column `name` to `out`, each value through `convert`, which returns `None` for invalid values.
    fn checked<T: DataType, V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<V>,
        convert: impl Fn(&T::T) -> Option<V>,
    ) -> Result<(), Error>
    where
        T::T: Constant,
    {
        let (rows, position) = (self.rows(), self.position(name));
        if let Some(value) = self.statistics(position).and_then(T::T::constant) {
            let value = convert(&value).ok_or_else(|| self.out_of_range(name))?;
            out.extend(std::iter::repeat_n(value, rows));
            return Ok(());
        }
        let values = self.decode::<T>(position, None)?;
        if values.len() != rows {
            return Err(self.short(name));
        }
        let before = out.len();
        out.reserve(rows);
        out.extend(values.iter().map_while(convert));
        if out.len() - before != rows {
            return Err(self.out_of_range(name));
        }
        Ok(())
    }

    fn optional<T: DataType, V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<Option<V>>,
        convert: impl Fn(&T::T) -> Option<V>,
    ) -> Result<(), Error> {
        let rows = self.rows();
        let Some(position) = self.optional_position(name) else {
            out.extend(std::iter::repeat_n(None, rows));
            return Ok(());
        };
        let nulls = self
            .statistics(position)
            .and_then(|statistics| statistics.null_count_opt());
        if nulls == Some(rows as u64) {
            out.extend(std::iter::repeat_n(None, rows));
            return Ok(());
        }
        let mut levels = Vec::with_capacity(rows);
        let values = self.decode::<T>(position, Some(&mut levels))?;
        let present = levels.iter().filter(|level| **level != 0).count();
        if levels.len() != rows || values.len() != present {
            return Err(self.short(name));
        }
        let before = out.len();
        out.reserve(rows);
        if present == rows {
            out.extend(values.iter().map_while(|value| convert(value).map(Some)));
        } else {
            let mut values = values.iter();
            out.extend(levels.iter().map_while(|level| match level {
                0 => Some(None),
                _ => values.next().and_then(&convert).map(Some),
            }));
        }
        if out.len() - before != rows {
            return Err(self.out_of_range(name));
        }
        Ok(())
    }

    pub(super) fn u64<V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<V>,
        convert: impl Fn(u64) -> V,
    ) -> Result<(), Error> {
        self.required::<Int64Type, V>(name, out, |value| convert(value.cast_unsigned()))
    }

    pub(super) fn u32<V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<V>,
        convert: impl Fn(u32) -> V,
    ) -> Result<(), Error> {
        self.required::<Int32Type, V>(name, out, |value| convert(value.cast_unsigned()))
    }

    /// Reads a column of codes; `convert` returns `None` for unknown codes.
    pub(super) fn code<V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<V>,
        convert: impl Fn(u8) -> Option<V>,
    ) -> Result<(), Error> {
        self.checked::<Int32Type, V>(name, out, |value| convert(u8::try_from(*value).ok()?))
    }

    pub(super) fn i8(&self, name: &str, out: &mut Vec<i8>) -> Result<(), Error> {
        self.checked::<Int32Type, i8>(name, out, |value| i8::try_from(*value).ok())
    }

    pub(super) fn f32(&self, name: &str, out: &mut Vec<f32>) -> Result<(), Error> {
        self.required::<FloatType, f32>(name, out, |value| *value)
    }

    pub(super) fn bool(&self, name: &str, out: &mut Vec<bool>) -> Result<(), Error> {
        self.required::<BoolType, bool>(name, out, |value| *value)
    }

    pub(super) fn text(&self, name: &str, out: &mut Vec<String>) -> Result<(), Error> {
        let position = self.position(name);
        let rows = self.table.metadata.row_group(self.number);
        let encoded = u64::try_from(rows.column(position).uncompressed_size()).unwrap_or(u64::MAX);
        // Beyond the texts, there are four bytes for each length, and headers of pages.
        if encoded > TEXTS_BYTES_MAX + 8 * self.rows() as u64 + (1 << 20) {
            return Err(self.too_many_texts(name));
        }
        let values = self.decode::<ByteArrayType>(position, None)?;
        if values.len() != self.rows() {
            return Err(self.short(name));
        }
        for value in &values {
            let text = value.as_utf8().map_err(|_| self.out_of_range(name))?;
            let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
            let bytes = text.len() as u64;
            let before = self.table.text_bytes.fetch_add(bytes, Ordering::Relaxed);
            if before.saturating_add(bytes) > TEXTS_BYTES_MAX {
                return Err(self.too_many_texts(name));
            }
            out.push(text.to_owned());
        }
        Ok(())
    }

    pub(super) fn optional_u64<V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<Option<V>>,
        convert: impl Fn(u64) -> V,
    ) -> Result<(), Error> {
        self.optional::<Int64Type, V>(name, out, |value| Some(convert(value.cast_unsigned())))
    }

    pub(super) fn optional_u32<V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<Option<V>>,
        convert: impl Fn(u32) -> V,
    ) -> Result<(), Error> {
        self.optional::<Int32Type, V>(name, out, |value| Some(convert(value.cast_unsigned())))
    }

    pub(super) fn optional_u16<V: Clone>(
        &self,
        name: &str,
        out: &mut Vec<Option<V>>,
        convert: impl Fn(u16) -> V,
    ) -> Result<(), Error> {
        self.optional::<Int32Type, V>(name, out, |value| {
            Some(convert(u16::try_from(*value).ok()?))
        })
    }

    /// Panics for one of [`LATER_COLUMNS`], which all are optional.
    fn position(&self, name: &str) -> usize {
        let position = self.optional_position(name);
        position.unwrap_or_else(|| panic!("column {name} may be missing"))
    }

    /// Panics if the format has no such column, which would be a mistake in this crate.
    fn optional_position(&self, name: &str) -> Option<usize> {
        let column = self
            .table
            .format
            .columns
            .iter()
            .position(|(column, ..)| *column == name);
        self.table.positions
            [column.unwrap_or_else(|| panic!("no column {name} in {}", self.table.format.file))]
    }

    fn short(&self, name: &str) -> Error {
        Error::damaged(
            &self.table.path,
            format!("column {name} has fewer values than rows"),
        )
    }

    fn too_many_texts(&self, name: &str) -> Error {
        let most = TEXTS_BYTES_MAX >> 20;
        Error::damaged(
            &self.table.path,
            format!("its texts have more than {most} MiB up to column {name}"),
        )
    }

    fn out_of_range(&self, name: &str) -> Error {
        Error::damaged(
            &self.table.path,
            format!("column {name} has a value that means nothing"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::trace::{read_moments, write_moments};
    use super::*;

    /// Writes and reads a table with this many equal rows.
    fn read_equal_rows(rows: usize) -> Result<usize, Error> {
        let folder = tempfile::tempdir().unwrap();
        let table = write_moments(folder.path(), &vec![(0, (7, 7)); rows]).unwrap();
        let checksums = BTreeMap::from([(table.name(), table.checksums().clone())]);
        table.put_in_place().unwrap();
        Ok(read_moments(folder.path(), &checksums)?.len())
    }

    #[test]
    fn a_small_file_does_not_decode_to_any_number_of_rows() {
        assert_eq!(read_equal_rows(1 << 20).unwrap(), 1 << 20);
        let error = read_equal_rows(1 << 21).unwrap_err().to_string();
        let words = "moments.parquet: damaged: it has 2097152 rows, more than fit into its";
        assert!(error.contains(words), "{error}");
    }
}
