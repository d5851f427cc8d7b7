//! Tables as columns without a meaning, which [`crate::fuzz`] changes and writes again.

use std::path::Path;

use super::file::{Format, Kind, TableWriter};
use super::reader::{RowGroup, TableReader};
use super::{accesses, call_sites, first_touches, modules, objects, threads, trace};
use crate::{Error, folder};

pub(crate) use super::file::Values;

/// All tables that a recording can have.
const FORMATS: [&Format; 10] = [
    &accesses::FORMAT,
    &call_sites::FORMAT,
    &first_touches::FORMAT,
    &modules::FORMAT,
    &modules::MAPPINGS_FORMAT,
    &objects::FORMAT,
    &threads::FORMAT,
    &threads::CPUS_FORMAT,
    &trace::PAGES,
    &trace::MOMENTS,
];

/// A table's columns, all of the same length.
pub(crate) struct Columns {
    format: &'static Format,
    pub values: Vec<Values>,
}

impl Columns {
    /// Names of the tables that the recording in `folder` has.
    pub(crate) fn tables(folder: &Path) -> Vec<&'static str> {
        let names = FORMATS.iter().map(|format| format.file);
        names.filter(|name| folder.join(name).exists()).collect()
    }

    /// Reads the table named `table`.
    pub(crate) fn read(folder: &Path, table: &str) -> Result<Self, Error> {
        let known = FORMATS.iter().find(|format| format.file == table);
        let format = *known.ok_or_else(|| Error::damaged(&folder.join(table), "it is no table"))?;
        let reader = TableReader::open(folder, format, &folder::read_checksums(folder)?)?;
        let mut values: Vec<Values> = Vec::new();
        for number in 0..reader.groups() {
            let group = reader.group(number)?;
            for (position, (name, kind, _)) in format.columns.iter().enumerate() {
                let read = column(&group, name, *kind)?;
                match values.get_mut(position) {
                    Some(before) => before.append(read),
                    None => values.push(read),
                }
            }
        }
        Ok(Self { format, values })
    }

    /// Name of the column at a position.
    pub(crate) fn name(&self, position: usize) -> &'static str {
        self.format.columns[position].0
    }

    /// Replaces the table in `folder`, with valid checksums.
    pub(crate) fn write(self, folder: &Path) -> Result<(), Error> {
        let mut writer = TableWriter::create(folder, self.format)?;
        if self.values.first().is_some_and(|first| first.len() > 0) {
            writer.row_group(self.values)?;
        }
        let written = writer.finish()?;
        folder::replace_checksum(folder, &written.name(), written.checksums())?;
        written.put_in_place()
    }
}

fn column(group: &RowGroup<'_>, name: &str, kind: Kind) -> Result<Values, Error> {
    fn all<T>(
        read: impl FnOnce(&mut Vec<T>) -> Result<(), Error>,
        values: impl FnOnce(Vec<T>) -> Values,
    ) -> Result<Values, Error> {
        let mut list = Vec::new();
        read(&mut list)?;
        Ok(values(list))
    }
    match kind {
        Kind::U64 => all(|to| group.u64(name, to, |value| value), Values::u64),
        Kind::U32 => all(|to| group.u32(name, to, |value| value), Values::u32),
        Kind::U8 => all(
            |to| group.code(name, to, |value| Some(i32::from(value))),
            Values::small,
        ),
        Kind::I8 => all(
            |to| group.i8(name, to),
            |list| Values::small(list.into_iter().map(i32::from)),
        ),
        Kind::F32 => all(|to| group.f32(name, to), Values::f32),
        Kind::Bool => all(|to| group.bool(name, to), Values::Bool),
        Kind::Text => all(
            |to| group.text(name, to),
            |list| Values::text(list.iter().map(String::as_str)),
        ),
        Kind::OptionalU64 => all(
            |to| group.optional_u64(name, to, |value| value),
            Values::optional_u64,
        ),
        Kind::OptionalU32 => all(
            |to| group.optional_u32(name, to, |value| value),
            Values::optional_u32,
        ),
        Kind::OptionalU16 => all(
            |to| group.optional_u16(name, to, u32::from),
            Values::optional_u32,
        ),
    }
}

/// Applies an expression to the list in `Values`, whatever its type.
macro_rules! each {
    ($values:expr, $list:ident => $do:expr) => {
        match $values {
            Values::I64($list) => $do,
            Values::I32($list) => $do,
            Values::F32($list) => $do,
            Values::Bool($list) => $do,
            Values::Text($list) => $do,
            Values::OptionalI64($list) => $do,
            Values::OptionalI32($list) => $do,
        }
    };
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        each!(self, list => list.len())
    }

    /// Inserts `count` copies of row `from`.
    pub(crate) fn repeat(&mut self, from: usize, count: usize) {
        fn repeat<T: Clone>(list: &mut Vec<T>, from: usize, count: usize) {
            let row = list[from].clone();
            list.splice(from..from, std::iter::repeat_n(row, count));
        }
        each!(self, list => repeat(list, from, count));
    }

    /// Bytes of a row's text; 0 if the column has no texts.
    pub(crate) fn text_bytes(&self, row: usize) -> usize {
        match self {
            Self::Text(list) => list[row].len(),
            _ => 0,
        }
    }

    /// Copies row `from` to row `to`.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        fn copy<T: Clone>(list: &mut [T], from: usize, to: usize) {
            list[to] = list[from].clone();
        }
        each!(self, list => copy(list, from, to));
    }

    pub(crate) fn remove(&mut self, rows: std::ops::Range<usize>) {
        each!(self, list => drop(list.drain(rows)));
    }

    pub(crate) fn swap(&mut self, one: usize, other: usize) {
        each!(self, list => list.swap(one, other));
    }

    pub(crate) fn reverse(&mut self) {
        each!(self, list => list.reverse());
    }

    /// Whether both hold the same type.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::I64(list), Self::I64(more)) => list.extend(more),
            (Self::I32(list), Self::I32(more)) => list.extend(more),
            (Self::F32(list), Self::F32(more)) => list.extend(more),
            (Self::Bool(list), Self::Bool(more)) => list.extend(more),
            (Self::Text(list), Self::Text(more)) => list.extend(more),
            (Self::OptionalI64(list), Self::OptionalI64(more)) => list.extend(more),
            (Self::OptionalI32(list), Self::OptionalI32(more)) => list.extend(more),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parquet::data_type::ByteArray;

    use super::*;
    use crate::Recording;

    /// A recording of `rows` objects, each with a name of `bytes` bytes. A name that fits into a dictionary is in the
    /// file once.
    fn long_names(folder: &Path, rows: usize, bytes: usize) -> Result<Recording, Error> {
        let sound = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1-tables");
        for file in std::fs::read_dir(sound).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        let mut objects = Columns::read(folder, "objects.parquet").unwrap();
        let before = objects.values[0].len();
        objects
            .values
            .iter_mut()
            .for_each(|column| column.repeat(0, rows - before));
        let name = ByteArray::from("n".repeat(bytes).as_str());
        objects.values[2] = Values::Text(vec![name; rows]);
        objects.write(folder).unwrap();
        Recording::open(folder)
    }

    #[test]
    fn names_are_cut_and_bounded_in_sum() {
        let folder = tempfile::tempdir().unwrap();
        let recording = long_names(folder.path(), 1000, 300_000).unwrap();
        assert_eq!(recording.tables.objects.len(), 1000);
        let longest = recording
            .tables
            .objects
            .iter()
            .map(|object| object.name.len());
        assert_eq!(longest.max(), Some(4096));
        // The first name is in the file once, the second as often as there are rows.
        for (rows, bytes) in [(40_000, 300_000), (70, 2 << 20)] {
            let folder = tempfile::tempdir().unwrap();
            let error = long_names(folder.path(), rows, bytes).unwrap_err();
            let words = "objects.parquet: damaged: its texts have more than 128 MiB";
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
