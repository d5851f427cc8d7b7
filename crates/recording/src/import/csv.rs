//! Samples in nearpage's own CSV form (docs/reference/samples-csv.md): one access a line, columns by name.
//!
//! The file is read twice. First, [`Collected`] gathers threads, objects, lines of code and CPUs, all within limits.
//! Then accesses are read in order of time, a batch at a time.

mod collected;
mod columns;
mod row;

use std::path::Path;

use csv_core::{ReadRecordResult, Reader};
use nearpage_machine::Machine;

use self::collected::Collected;
use self::columns::Columns;
use self::row::Row;
use super::{ASSUMED_GHZ, BATCH, Imported, foreign, metadata};
use crate::error::IoContext;
use crate::{AccessBatch, Error, Recording, SampleCounts, source_lines};

/// Longer lines are refused.
const LINE_BYTES_MAX: usize = 64 << 10;
/// More columns are refused.
const COLUMNS_MAX: usize = 256;

/// An unusable line: its number and the cause.
#[derive(Debug)]
struct BadLine {
    number: u64,
    cause: String,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.number, self.cause)
    }
}

/// A file with a valid header.
pub(super) struct Csv<'a> {
    columns: Columns,
    /// Bytes after the header.
    body: &'a [u8],
}

impl<'a> Csv<'a> {
    /// Whether the first line looks like a header: names separated by commas.
    pub fn is(bytes: &[u8]) -> bool {
        let line = first_line(bytes).0.trim_ascii_end();
        let is_name = |name: &[u8]| {
            !name.is_empty()
                && name
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_\" ".contains(byte))
                && name.iter().any(u8::is_ascii_alphabetic)
        };
        line.len() <= LINE_BYTES_MAX
            && line.contains(&b',')
            && line.split(|byte| *byte == b',').all(is_name)
    }

    pub fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let (header, body) = first_line(bytes);
        let mut fields = Fields::default();
        fields
            .read(header)
            .and_then(|()| Columns::new(fields.iter()))
            .map(|columns| Self { columns, body })
            .map_err(|cause| format!("line 1: {cause}"))
    }

    /// Lines that are not empty, with number and byte offset.
    fn lines(&self) -> impl Iterator<Item = Line<'a>> {
        let body = self.body;
        let mut begin = 0;
        let mut number = 1;
        std::iter::from_fn(move || {
            let rest = body.get(begin..).filter(|rest| !rest.is_empty())?;
            let (text, behind) = split_line(rest);
            let line = Line {
                number: number + 1,
                begin,
                text,
            };
            begin = body.len() - behind.len();
            number += 1;
            Some(line)
        })
        .filter(|line| !line.text.trim_ascii().is_empty())
    }

    /// Parses a line and calls `each` with the row.
    fn row<T>(
        &self,
        fields: &mut Fields,
        line: Line<'_>,
        each: impl FnOnce(&Row<'_>) -> Result<T, String>,
    ) -> Result<T, BadLine> {
        let found = || {
            fields.read(line.text)?;
            let fields: Vec<&str> = fields.iter().collect();
            each(&Row::new(&self.columns, &fields)?)
        };
        found().map_err(|cause| BadLine {
            number: line.number,
            cause,
        })
    }

    fn collect(&self, machine: Option<Machine>) -> Result<Collected, BadLine> {
        let mut fields = Fields::default();
        let mut collected = Collected::new(machine);
        for line in self.lines() {
            let place = (line.begin, line.number);
            self.row(&mut fields, line, |row| collected.add(row, place))?;
        }
        collected.finish()?;
        Ok(collected)
    }

    /// Hands out all accesses in order of time, in batches.
    fn accesses(
        &self,
        collected: &Collected,
        each: &mut dyn FnMut(&AccessBatch) -> Result<(), Error>,
        error: &dyn Fn(String) -> Error,
    ) -> Result<(), Error> {
        let mut fields = Fields::default();
        let mut batch = AccessBatch::default();
        for &(begin, number) in collected.places() {
            let line = Line {
                number,
                begin,
                text: split_line(&self.body[begin..]).0,
            };
            let access = self.row(&mut fields, line, |row| Ok(collected.access(row)));
            batch.push(access.map_err(|bad| error(bad.to_string()))?);
            if batch.len() >= BATCH {
                each(&batch)?;
                batch.clear();
            }
        }
        each(&batch)
    }

    /// Makes a recording in the folder `output`.
    pub fn write(
        &self,
        file: &Path,
        output: &Path,
        machine: Option<Machine>,
    ) -> Result<Imported, Error> {
        let collected = self.collect(machine);
        let mut collected = collected.map_err(|bad| foreign(file, bad.to_string()))?;
        let counts = collected.counts();
        if self.columns.of(columns::Column::LatencyCycles).is_some() {
            collected.notes.push(format!(
                "latency_cycles is converted at {ASSUMED_GHZ} GHz; latency_ns says better"
            ));
        }
        if counts.accesses == 0 {
            let none =
                "it has no access in user mode: a header, and no line with an address or an object";
            return Err(foreign(file, none));
        }
        collected
            .notes
            .extend(self.columns.note().into_iter().chain(counts_note(&counts)));
        let (begin_ns, end_ns) = collected.times();
        let metadata = crate::Metadata {
            status: crate::Status::Complete,
            begin_ns,
            end_ns,
            counts,
            notes: collected.notes.clone(),
            ..metadata(file, &super::FileMetadata::default(), collected.machine())
        };
        Recording::write(
            output,
            &metadata,
            collected.machine(),
            collected.tables(),
            |writer| {
                source_lines::write(output, collected.source_lines())
                    .at(output, "write lines of code into")?;
                let error = |cause| foreign(file, cause);
                self.accesses(&collected, &mut |batch| writer.accesses(batch), &error)
            },
        )?;
        Ok(Imported {
            counts,
            notes: collected.notes,
        })
    }

    /// Entry point for `fuzz/`: does everything except writing files.
    pub fn check(&self) {
        let Ok(collected) = self.collect(None) else {
            return;
        };
        let mut accesses = 0;
        let mut each = |batch: &AccessBatch| {
            accesses += batch.len() as u64;
            let threads = collected.tables().threads.len();
            assert_eq!(crate::check::accesses(batch, threads), None);
            Ok(())
        };
        let error = |cause| foreign(Path::new("fuzz"), cause);
        let read = self.accesses(&collected, &mut each, &error);
        assert!(read.is_ok(), "{read:?}");
        assert_eq!(accesses, collected.counts().accesses);
        let checked = collected.tables().check(Path::new("fuzz"));
        assert!(checked.is_ok(), "{checked:?}");
    }
}

/// Note on samples in the kernel, which are not imported as accesses.
fn counts_note(counts: &SampleCounts) -> Option<String> {
    (counts.kernel > 0).then(|| {
        format!(
            "{} in the kernel (its half of the address space) left out of the accesses",
            nearpage_amount::counted(counts.kernel, "sample")
        )
    })
}

#[derive(Clone, Copy)]
struct Line<'a> {
    /// Number of the line; the header is line 1.
    number: u64,
    /// Byte offset in the body.
    begin: usize,
    text: &'a [u8],
}

/// The first line, without a byte order mark, and the bytes after it.
fn first_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    split_line(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes))
}

fn split_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

/// The fields of one line, unquoted.
struct Fields {
    reader: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            reader: Reader::new(),
            text: vec![0; LINE_BYTES_MAX],
            ends: vec![0; COLUMNS_MAX],
            count: 0,
        }
    }
}

impl Fields {
    fn read(&mut self, line: &[u8]) -> Result<(), String> {
        self.count = 0;
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("longer than {LINE_BYTES_MAX} bytes"));
        }
        if std::str::from_utf8(line).is_err() {
            return Err("not UTF-8".to_owned());
        }
        self.reader.reset();
        let (mut rest, mut written) = (line.trim_ascii_end(), 0);
        loop {
            let (text, ends) = (&mut self.text[written..], &mut self.ends[self.count..]);
            let (result, read, bytes, fields) = self.reader.read_record(rest, text, ends);
            rest = &rest[read..];
            written += bytes;
            self.count += fields;
            match result {
                ReadRecordResult::Record | ReadRecordResult::End => break,
                // The next iteration has no input, which ends the record.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => return Err("too long".to_owned()),
                ReadRecordResult::OutputEndsFull => {
                    return Err(format!("more than {COLUMNS_MAX} columns"));
                }
            }
        }
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let places = begins.zip(&self.ends).take(self.count);
        // The line is UTF-8, and only quotes were removed.
        places.map(|(begin, &end)| std::str::from_utf8(&self.text[begin..end]).unwrap_or_default())
    }
}
