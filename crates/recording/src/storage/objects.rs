//! `objects.parquet`.

use std::path::Path;

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::{CallSiteId, Error, ModuleId, Object, ObjectId, ObjectKind, ThreadIndex};

pub(crate) const FORMAT: Format = Format {
    file: "objects.parquet",
    columns: &[
        ("object", Kind::U32, Coding::Delta),
        ("kind", Kind::U8, Coding::Dictionary),
        ("name", Kind::Text, Coding::Dictionary),
        ("pid", Kind::U32, Coding::Dictionary),
        ("address", Kind::U64, Coding::Plain),
        ("size_bytes", Kind::U64, Coding::Dictionary),
        ("born_ns", Kind::U64, Coding::Delta),
        ("died_ns", Kind::OptionalU64, Coding::Delta),
        ("weight", Kind::F32, Coding::Dictionary),
        ("call_site", Kind::OptionalU32, Coding::Dictionary),
        ("thread", Kind::OptionalU32, Coding::Dictionary),
        ("order", Kind::U32, Coding::Delta),
        ("module", Kind::OptionalU32, Coding::Dictionary),
        ("module_offset", Kind::U64, Coding::Plain),
        ("same_memory_as", Kind::OptionalU32, Coding::Dictionary),
    ],
};

pub(super) fn write(folder: &Path, objects: &[Object]) -> Result<Unfinished, Error> {
    let numbered: Vec<(u32, &Object)> = (0..).zip(objects).collect();
    TableWriter::create(folder, &FORMAT)?.rows(&numbered, |rows| {
        let objects = || rows.iter().map(|(_, object)| *object);
        vec![
            Values::u32(rows.iter().map(|(number, _)| *number)),
            Values::small(objects().map(|object| object.kind as i32)),
            Values::text(objects().map(|object| object.name.as_str())),
            Values::u32(objects().map(|object| object.pid)),
            Values::u64(objects().map(|object| object.address)),
            Values::u64(objects().map(|object| object.size_bytes)),
            Values::u64(objects().map(|object| object.born_ns)),
            Values::optional_u64(
                objects().map(|object| (object.died_ns != u64::MAX).then_some(object.died_ns)),
            ),
            Values::f32(objects().map(|object| object.weight)),
            Values::optional_u32(objects().map(|object| object.call_site.map(|site| site.0))),
            Values::optional_u32(objects().map(|object| object.thread.map(|thread| thread.0))),
            Values::u32(objects().map(|object| object.order)),
            Values::optional_u32(objects().map(|object| object.module.map(|module| module.0))),
            Values::u64(objects().map(|object| object.module_offset)),
            Values::optional_u32(objects().map(|object| object.same_memory_as.map(|same| same.0))),
        ]
    })
}

pub(super) fn read(folder: &Path, checksums: &TableChecksums) -> Result<Vec<Object>, Error> {
    let table = TableReader::open(folder, &FORMAT, checksums)?;
    let mut objects = Vec::new();
    for group in 0..table.groups() {
        let group = table.group(group)?;
        let (mut kind, mut name, mut pid) = (vec![], vec![], vec![]);
        let (mut address, mut size_bytes, mut born_ns, mut died_ns) =
            (vec![], vec![], vec![], vec![]);
        let (mut weight, mut call_site, mut thread, mut order) = (vec![], vec![], vec![], vec![]);
        let (mut module, mut module_offset, mut same_memory_as) = (vec![], vec![], vec![]);
        group.code("kind", &mut kind, ObjectKind::from_number)?;
        group.text("name", &mut name)?;
        group.u32("pid", &mut pid, |pid| pid)?;
        group.u64("address", &mut address, |address| address)?;
        group.u64("size_bytes", &mut size_bytes, |size| size)?;
        group.u64("born_ns", &mut born_ns, |time| time)?;
        group.optional_u64("died_ns", &mut died_ns, |time| time)?;
        group.f32("weight", &mut weight)?;
        group.optional_u32("call_site", &mut call_site, CallSiteId)?;
        group.optional_u32("thread", &mut thread, ThreadIndex)?;
        group.u32("order", &mut order, |order| order)?;
        group.optional_u32("module", &mut module, ModuleId)?;
        group.u64("module_offset", &mut module_offset, |offset| offset)?;
        group.optional_u32("same_memory_as", &mut same_memory_as, ObjectId)?;
        objects.extend(name.into_iter().enumerate().map(|(row, name)| Object {
            kind: kind[row],
            name,
            pid: pid[row],
            address: address[row],
            size_bytes: size_bytes[row],
            born_ns: born_ns[row],
            died_ns: died_ns[row].unwrap_or(u64::MAX),
            weight: weight[row],
            call_site: call_site[row],
            thread: thread[row],
            order: order[row],
            module: module[row],
            module_offset: module_offset[row],
            same_memory_as: same_memory_as[row],
        }));
    }
    Ok(objects)
}
