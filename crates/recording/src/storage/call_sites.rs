//! `call_sites.parquet`: a row per frame.

use std::path::Path;

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::{CallSite, Error, Frame, ModuleId, check};

pub(crate) const FORMAT: Format = Format {
    file: "call_sites.parquet",
    columns: &[
        ("call_site", Kind::U32, Coding::Delta),
        ("frame", Kind::U32, Coding::Delta),
        ("module", Kind::OptionalU32, Coding::Dictionary),
        ("offset", Kind::U64, Coding::Dictionary),
        ("function", Kind::Text, Coding::Dictionary),
        ("file", Kind::Text, Coding::Dictionary),
        ("line", Kind::U32, Coding::Dictionary),
        ("inlined", Kind::Bool, Coding::Plain),
    ],
};

pub(super) fn write(folder: &Path, call_sites: &[CallSite]) -> Result<Unfinished, Error> {
    let rows: Vec<(u32, u32, &Frame)> = (0..)
        .zip(call_sites)
        .flat_map(|(site, call_site)| {
            (0..)
                .zip(&call_site.frames)
                .map(move |(number, frame)| (site, number, frame))
        })
        .collect();
    TableWriter::create(folder, &FORMAT)?.rows(&rows, |rows| {
        let frames = || rows.iter().map(|(.., frame)| *frame);
        vec![
            Values::u32(rows.iter().map(|(site, ..)| *site)),
            Values::u32(rows.iter().map(|(_, number, _)| *number)),
            Values::optional_u32(frames().map(|frame| frame.module.map(|module| module.0))),
            Values::u64(frames().map(|frame| frame.offset)),
            Values::text(frames().map(|frame| frame.function.as_str())),
            Values::text(frames().map(|frame| frame.file.as_str())),
            Values::u32(frames().map(|frame| frame.line)),
            Values::Bool(frames().map(|frame| frame.inlined).collect()),
        ]
    })
}

/// Reads the table. `modules` is the number of modules, against which frames are checked.
pub(super) fn read(
    folder: &Path,
    checksums: &TableChecksums,
    modules: usize,
) -> Result<Vec<CallSite>, Error> {
    let table = TableReader::open(folder, &FORMAT, checksums)?;
    let mut call_sites: Vec<CallSite> = Vec::new();
    let mut rows = 0;
    for group in 0..table.groups() {
        let group = table.group(group)?;
        let (mut call_site, mut module, mut offset) = (vec![], vec![], vec![]);
        let (mut function, mut file, mut line, mut inlined) = (vec![], vec![], vec![], vec![]);
        group.u32("call_site", &mut call_site, |site| site as usize)?;
        group.optional_u32("module", &mut module, ModuleId)?;
        group.u64("offset", &mut offset, |offset| offset)?;
        group.text("function", &mut function)?;
        group.text("file", &mut file)?;
        group.u32("line", &mut line, |line| line)?;
        group.bool("inlined", &mut inlined)?;
        for (row, (function, file)) in function.into_iter().zip(file).enumerate() {
            // Every call site has a frame, so numbers have no gaps.
            if call_site[row] == call_sites.len() {
                call_sites.push(CallSite { frames: Vec::new() });
            }
            if call_site[row] + 1 != call_sites.len() {
                return Err(Error::damaged(
                    table.path(),
                    "its call sites are not in order",
                ));
            }
            let (module, offset, line, inlined) =
                (module[row], offset[row], line[row], inlined[row]);
            let frame = Frame {
                module,
                offset,
                function,
                file,
                line,
                inlined,
            };
            check::frame(folder, FORMAT.file, rows, &frame, modules)?;
            rows += 1;
            call_sites[call_site[row]].frames.push(frame);
        }
    }
    Ok(call_sites)
}
