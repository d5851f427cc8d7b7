//! `pages.parquet` and `moments.parquet`: results of the survey of a trace. `pages.parquet` is put in place last: if it
//! exists, the recording has all its tables.

use std::path::Path;

use nearpage_machine::CpuId;

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::trace::{PageIndex, PageRow, Touch};
use crate::{Error, ThreadIndex};

/// Name of the pages' file.
pub(crate) const PAGES_FILE: &str = PAGES.file;

pub(super) const PAGES: Format = Format {
    file: "pages.parquet",
    columns: &[
        ("page", Kind::U32, Coding::Delta),
        ("image", Kind::U32, Coding::Dictionary),
        ("address", Kind::U64, Coding::Delta),
        ("since_instructions", Kind::U64, Coding::Dictionary),
        ("time_ns", Kind::OptionalU64, Coding::Plain),
        ("thread", Kind::OptionalU32, Coding::Dictionary),
        ("cpu", Kind::OptionalU32, Coding::Dictionary),
    ],
};

pub(super) const MOMENTS: Format = Format {
    file: "moments.parquet",
    columns: &[
        ("image", Kind::U32, Coding::Dictionary),
        ("instructions", Kind::U64, Coding::Delta),
        ("time_ns", Kind::U64, Coding::Delta),
    ],
};

/// Image, and a moment as virtual time in instructions and as CLOCK_MONOTONIC.
type Moment = (u32, (u64, u64));

pub(super) fn write_pages(folder: &Path, rows: &[PageRow]) -> Result<Unfinished, Error> {
    TableWriter::create(folder, &PAGES)?.rows(rows, |rows| {
        let touches = || rows.iter().map(|row| row.first_touch);
        vec![
            Values::u32(rows.iter().map(|row| row.page.0)),
            Values::u32(rows.iter().map(|row| row.image)),
            Values::u64(rows.iter().map(|row| row.address)),
            Values::u64(rows.iter().map(|row| row.since_instructions)),
            Values::optional_u64(touches().map(|touch| touch.map(|touch| touch.time_ns))),
            Values::optional_u32(touches().map(|touch| touch.map(|touch| touch.thread.0))),
            Values::optional_u32(touches().map(|touch| touch.map(|touch| touch.cpu.0))),
        ]
    })
}

pub(super) fn write_moments(folder: &Path, moments: &[Moment]) -> Result<Unfinished, Error> {
    TableWriter::create(folder, &MOMENTS)?.rows(moments, |rows| {
        vec![
            Values::u32(rows.iter().map(|(image, _)| *image)),
            Values::u64(rows.iter().map(|(_, moment)| moment.0)),
            Values::u64(rows.iter().map(|(_, moment)| moment.1)),
        ]
    })
}

pub(crate) fn read_pages(folder: &Path, checksums: &TableChecksums) -> Result<Vec<PageRow>, Error> {
    let table = TableReader::open(folder, &PAGES, checksums)?;
    let mut rows = Vec::new();
    for group in 0..table.groups() {
        let group = table.group(group)?;
        let (mut page, mut image, mut address, mut since) = (vec![], vec![], vec![], vec![]);
        let (mut time_ns, mut thread, mut cpu) = (vec![], vec![], vec![]);
        group.u32("page", &mut page, PageIndex)?;
        group.u32("image", &mut image, |image| image)?;
        group.u64("address", &mut address, |address| address)?;
        group.u64("since_instructions", &mut since, |since| since)?;
        group.optional_u64("time_ns", &mut time_ns, |time| time)?;
        group.optional_u32("thread", &mut thread, ThreadIndex)?;
        group.optional_u32("cpu", &mut cpu, CpuId)?;
        rows.reserve_exact(page.len());
        rows.extend((0..page.len()).map(|row| PageRow {
            page: page[row],
            image: image[row],
            address: address[row],
            since_instructions: since[row],
            first_touch: match (time_ns[row], thread[row], cpu[row]) {
                (Some(time_ns), Some(thread), Some(cpu)) => Some(Touch {
                    time_ns,
                    thread,
                    cpu,
                }),
                _ => None,
            },
        }));
    }
    Ok(rows)
}

pub(crate) fn read_moments(
    folder: &Path,
    checksums: &TableChecksums,
) -> Result<Vec<Moment>, Error> {
    let table = TableReader::open(folder, &MOMENTS, checksums)?;
    let (mut image, mut instructions, mut time_ns) = (vec![], vec![], vec![]);
    for group in 0..table.groups() {
        let group = table.group(group)?;
        group.u32("image", &mut image, |image| image)?;
        group.u64("instructions", &mut instructions, |value| value)?;
        group.u64("time_ns", &mut time_ns, |time| time)?;
    }
    Ok(image
        .into_iter()
        .zip(instructions.into_iter().zip(time_ns))
        .collect())
}
