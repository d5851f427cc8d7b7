//! `modules.parquet`, and `mappings.parquet` with the places of modules in memory.

use std::path::Path;

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::{Error, Module, ModuleId, ModuleMapping};

pub(crate) const FORMAT: Format = Format {
    file: "modules.parquet",
    columns: &[
        ("module", Kind::U32, Coding::Delta),
        ("path", Kind::Text, Coding::Plain),
        ("build_id", Kind::Text, Coding::Plain),
    ],
};

pub(crate) const MAPPINGS_FORMAT: Format = Format {
    file: "mappings.parquet",
    columns: &[
        ("pid", Kind::U32, Coding::Dictionary),
        ("address", Kind::U64, Coding::Plain),
        ("size_bytes", Kind::U64, Coding::Plain),
        ("born_ns", Kind::U64, Coding::Plain),
        ("died_ns", Kind::OptionalU64, Coding::Plain),
        ("module", Kind::U32, Coding::Dictionary),
        ("bias", Kind::U64, Coding::Plain),
    ],
};

pub(super) fn write(folder: &Path, modules: &[Module]) -> Result<Unfinished, Error> {
    let numbered: Vec<(u32, &Module)> = (0..).zip(modules).collect();
    TableWriter::create(folder, &FORMAT)?.rows(&numbered, |rows| {
        vec![
            Values::u32(rows.iter().map(|(number, _)| *number)),
            Values::text(rows.iter().map(|(_, module)| module.path.as_str())),
            Values::text(rows.iter().map(|(_, module)| module.build_id.as_str())),
        ]
    })
}

pub(super) fn read(folder: &Path, checksums: &TableChecksums) -> Result<Vec<Module>, Error> {
    let table = TableReader::open(folder, &FORMAT, checksums)?;
    let (mut path, mut build_id) = (vec![], vec![]);
    for group in 0..table.groups() {
        let group = table.group(group)?;
        group.text("path", &mut path)?;
        group.text("build_id", &mut build_id)?;
    }
    Ok(path
        .into_iter()
        .zip(build_id)
        .map(|(path, build_id)| Module { path, build_id })
        .collect())
}

pub(super) fn write_mappings(
    folder: &Path,
    mappings: &[ModuleMapping],
) -> Result<Unfinished, Error> {
    TableWriter::create(folder, &MAPPINGS_FORMAT)?.rows(mappings, |rows| {
        vec![
            Values::u32(rows.iter().map(|mapping| mapping.pid)),
            Values::u64(rows.iter().map(|mapping| mapping.address)),
            Values::u64(rows.iter().map(|mapping| mapping.size_bytes)),
            Values::u64(rows.iter().map(|mapping| mapping.born_ns)),
            Values::optional_u64(
                rows.iter()
                    .map(|mapping| (mapping.died_ns != u64::MAX).then_some(mapping.died_ns)),
            ),
            Values::u32(rows.iter().map(|mapping| mapping.module.0)),
            Values::u64(rows.iter().map(|mapping| mapping.bias)),
        ]
    })
}

pub(super) fn read_mappings(
    folder: &Path,
    checksums: &TableChecksums,
) -> Result<Vec<ModuleMapping>, Error> {
    let table = TableReader::open(folder, &MAPPINGS_FORMAT, checksums)?;
    let mut mappings = Vec::new();
    for group in 0..table.groups() {
        let group = table.group(group)?;
        let (mut pid, mut address, mut size_bytes) = (vec![], vec![], vec![]);
        let (mut born_ns, mut died_ns, mut module, mut bias) = (vec![], vec![], vec![], vec![]);
        group.u32("pid", &mut pid, |pid| pid)?;
        group.u64("address", &mut address, |address| address)?;
        group.u64("size_bytes", &mut size_bytes, |size| size)?;
        group.u64("born_ns", &mut born_ns, |time| time)?;
        group.optional_u64("died_ns", &mut died_ns, |time| time)?;
        group.u32("module", &mut module, ModuleId)?;
        group.u64("bias", &mut bias, |bias| bias)?;
        mappings.extend((0..pid.len()).map(|row| ModuleMapping {
            pid: pid[row],
            address: address[row],
            size_bytes: size_bytes[row],
            born_ns: born_ns[row],
            died_ns: died_ns[row].unwrap_or(u64::MAX),
            module: module[row],
            bias: bias[row],
        }));
    }
    Ok(mappings)
}
