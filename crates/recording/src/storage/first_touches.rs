//! `first_touches.parquet`.

use std::path::Path;

use nearpage_machine::CpuId;

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::{Error, FirstTouch, ThreadIndex};

pub(crate) const FORMAT: Format = Format {
    file: "first_touches.parquet",
    columns: &[
        ("time_ns", Kind::U64, Coding::Delta),
        ("thread", Kind::U32, Coding::Dictionary),
        ("cpu", Kind::U32, Coding::Dictionary),
        ("address", Kind::U64, Coding::Plain),
    ],
};

pub(super) fn write(folder: &Path, touches: &[FirstTouch]) -> Result<Unfinished, Error> {
    TableWriter::create(folder, &FORMAT)?.rows(touches, |rows| {
        vec![
            Values::u64(rows.iter().map(|touch| touch.time_ns)),
            Values::u32(rows.iter().map(|touch| touch.thread.0)),
            Values::u32(rows.iter().map(|touch| touch.cpu.0)),
            Values::u64(rows.iter().map(|touch| touch.address)),
        ]
    })
}

pub(super) fn read(folder: &Path, checksums: &TableChecksums) -> Result<Vec<FirstTouch>, Error> {
    let table = TableReader::open(folder, &FORMAT, checksums)?;
    let (mut time_ns, mut thread, mut cpu, mut address) = (vec![], vec![], vec![], vec![]);
    for group in 0..table.groups() {
        let group = table.group(group)?;
        group.u64("time_ns", &mut time_ns, |time| time)?;
        group.u32("thread", &mut thread, ThreadIndex)?;
        group.u32("cpu", &mut cpu, CpuId)?;
        group.u64("address", &mut address, |address| address)?;
    }
    let row = |row| FirstTouch {
        time_ns: time_ns[row],
        thread: thread[row],
        cpu: cpu[row],
        address: address[row],
    };
    Ok((0..time_ns.len()).map(row).collect())
}
