//! Results of a sweep as columns, for CSV and Parquet: recording, machine, policy, parameters and figures.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::result::CellResult;
use super::table::{Row, SweepOutput};
use crate::whole_file::WholeFile;

struct Column<'a> {
    name: &'a str,
    values: Values<'a>,
}

enum Values<'a> {
    /// `None`: the row has no value.
    Text(Vec<Option<&'a str>>),
    /// `None`: the row has no value.
    Real(Vec<Option<f64>>),
    Whole(Vec<u64>),
}

fn columns<'a>(output: &'a SweepOutput<'_>) -> Vec<Column<'a>> {
    let rows = &output.rows;
    let text = |name: &'a str, of: &dyn Fn(&'a Row<'_>) -> Option<&'a str>| Column {
        name,
        values: Values::Text(rows.iter().map(of).collect()),
    };
    let mut columns = vec![
        text("recording", &|row| Some(row.recording)),
        text("machine", &|row| row.machine),
        text("policy", &|row| Some(row.policy)),
    ];
    columns.extend(
        output
            .parameters()
            .into_iter()
            .map(|name| text(name, &|row| row.parameters.get(name).map(String::as_str))),
    );
    let real = |name, of: &dyn Fn(&CellResult) -> f64| Column {
        name,
        values: Values::Real(rows.iter().map(|row| Some(of(&row.result))).collect()),
    };
    let whole = |name, of: &dyn Fn(&CellResult) -> u64| Column {
        name,
        values: Values::Whole(rows.iter().map(|row| of(&row.result)).collect()),
    };
    columns.extend([
        Column {
            name: "times_first",
            values: Values::Real(rows.iter().map(|row| row.times_first).collect()),
        },
        real("time_ns", &|result| result.time_ns),
        real("parallel_ns", &|result| result.parallel_ns),
        whole("misses", &|result| result.misses),
        real("local_share", &|result| result.local_share),
        real("local_stall_ns", &|result| result.local_stall_ns),
        real("remote_stall_ns", &|result| result.remote_stall_ns),
        real("move_ns", &|result| result.move_ns),
        whole("migrated", &|result| result.migrated),
        whole("replicated", &|result| result.replicated),
    ]);
    columns
}

impl Column<'_> {
    fn schema(&self) -> String {
        let kind = match &self.values {
            Values::Text(_) => "optional binary",
            Values::Real(_) => "optional double",
            Values::Whole(_) => "required int64",
        };
        let meaning = match &self.values {
            Values::Text(_) => "(STRING)",
            Values::Real(_) => "",
            Values::Whole(_) => "(INTEGER(64,false))",
        };
        format!("{kind} {} {meaning};", self.name)
    }

    /// A cell in CSV (RFC 4180); empty if the row has no value.
    fn cell(&self, row: usize) -> String {
        match &self.values {
            Values::Text(texts) => texts[row]
                .map(|text| format!("\"{}\"", text.replace('"', "\"\"")))
                .unwrap_or_default(),
            Values::Real(values) => values[row]
                .map(|value| value.to_string())
                .unwrap_or_default(),
            Values::Whole(values) => values[row].to_string(),
        }
    }
}

/// CSV: a line of names, then a line for each result.
pub fn csv(output: &SweepOutput<'_>) -> String {
    let columns = columns(output);
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let mut text = names.join(",") + "\n";
    for row in 0..output.rows.len() {
        let cells: Vec<String> = columns.iter().map(|column| column.cell(row)).collect();
        let _ = writeln!(text, "{}", cells.join(","));
    }
    text
}

/// Writes the table as a Parquet file.
///
/// # Errors
/// The file can't be written.
pub fn write_parquet(output: &SweepOutput<'_>, path: &Path) -> anyhow::Result<()> {
    let columns = columns(output);
    let mut file = WholeFile::create(path)?;
    let written = || -> Result<(), parquet::errors::ParquetError> {
        let schema: String = columns.iter().map(Column::schema).collect();
        let schema = parse_message_type(&format!("message sweep {{ {schema} }}"))?;
        let properties = WriterProperties::builder()
            .set_created_by(format!("nearpage {}", env!("CARGO_PKG_VERSION")))
            .set_compression(Compression::ZSTD(ZstdLevel::default()));
        let mut writer =
            SerializedFileWriter::new(&mut file, Arc::new(schema), Arc::new(properties.build()))?;
        let mut group = writer.next_row_group()?;
        for column in &columns {
            let Some(mut place) = group.next_column()? else {
                break;
            };
            match &column.values {
                Values::Text(texts) => place.typed::<ByteArrayType>().write_batch(
                    &present(texts).map(ByteArray::from).collect::<Vec<_>>(),
                    Some(&levels(texts)),
                    None,
                )?,
                Values::Real(values) => place.typed::<DoubleType>().write_batch(
                    &present(values).collect::<Vec<f64>>(),
                    Some(&levels(values)),
                    None,
                )?,
                Values::Whole(values) => place.typed::<Int64Type>().write_batch(
                    &values
                        .iter()
                        .map(|value| value.cast_signed())
                        .collect::<Vec<i64>>(),
                    None,
                    None,
                )?,
            };
            place.close()?;
        }
        group.close()?;
        writer.close()?;
        Ok(())
    }();
    written.with_context(|| format!("{}: can't be written", path.display()))?;
    file.finish()
}

fn present<T: Copy>(values: &[Option<T>]) -> impl Iterator<Item = T> {
    values.iter().flatten().copied()
}

/// Definition levels of Parquet: 1 for a value, 0 for none.
fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
    values
        .iter()
        .map(|value| i16::from(value.is_some()))
        .collect()
}
