//! `threads.parquet`, and `thread_cpus.parquet` with the CPUs that threads ran on.

use std::path::Path;

use nearpage_machine::CpuId;

use super::checksums::TableChecksums;
use super::file::{Coding, Format, Kind, TableWriter, Unfinished, Values};
use super::reader::TableReader;
use crate::{Error, ModuleId, SampleCounts, Thread};

pub(crate) const FORMAT: Format = Format {
    file: "threads.parquet",
    columns: &[
        ("thread", Kind::U32, Coding::Delta),
        ("pid", Kind::U32, Coding::Dictionary),
        ("tid", Kind::U32, Coding::Plain),
        ("name", Kind::Text, Coding::Dictionary),
        ("born_ns", Kind::U64, Coding::Plain),
        ("died_ns", Kind::OptionalU64, Coding::Plain),
        ("order", Kind::U32, Coding::Plain),
        ("start_module", Kind::OptionalU32, Coding::Dictionary),
        ("start_offset", Kind::OptionalU64, Coding::Dictionary),
        ("start_function", Kind::Text, Coding::Dictionary),
        ("team", Kind::Text, Coding::Dictionary),
        ("team_index", Kind::U32, Coding::Plain),
        ("samples", Kind::U64, Coding::Plain),
        ("accesses", Kind::U64, Coding::Plain),
        ("compute", Kind::U64, Coding::Plain),
        ("undecoded", Kind::U64, Coding::Plain),
        ("kernel", Kind::U64, Coding::Plain),
        ("lost", Kind::U64, Coding::Plain),
    ],
};

pub(super) const CPUS_FORMAT: Format = Format {
    file: "thread_cpus.parquet",
    columns: &[
        ("thread", Kind::U32, Coding::Delta),
        ("cpu", Kind::U32, Coding::Dictionary),
        ("accesses", Kind::U64, Coding::Plain),
    ],
};

pub(super) fn write(folder: &Path, threads: &[Thread]) -> Result<Unfinished, Error> {
    let numbered: Vec<(u32, &Thread)> = (0..).zip(threads).collect();
    TableWriter::create(folder, &FORMAT)?.rows(&numbered, |rows| {
        let threads = || rows.iter().map(|(_, thread)| *thread);
        vec![
            Values::u32(rows.iter().map(|(number, _)| *number)),
            Values::u32(threads().map(|thread| thread.pid)),
            Values::u32(threads().map(|thread| thread.tid)),
            Values::text(threads().map(|thread| thread.name.as_str())),
            Values::u64(threads().map(|thread| thread.born_ns)),
            Values::optional_u64(
                threads().map(|thread| (thread.died_ns != u64::MAX).then_some(thread.died_ns)),
            ),
            Values::u32(threads().map(|thread| thread.order)),
            Values::optional_u32(threads().map(|thread| thread.start.map(|(module, _)| module.0))),
            Values::optional_u64(threads().map(|thread| thread.start.map(|(_, offset)| offset))),
            Values::text(threads().map(|thread| thread.start_function.as_str())),
            Values::text(threads().map(|thread| thread.team.as_str())),
            Values::u32(threads().map(|thread| thread.team_index)),
            Values::u64(threads().map(|thread| thread.counts.samples)),
            Values::u64(threads().map(|thread| thread.counts.accesses)),
            Values::u64(threads().map(|thread| thread.counts.compute)),
            Values::u64(threads().map(|thread| thread.counts.undecoded)),
            Values::u64(threads().map(|thread| thread.counts.kernel)),
            Values::u64(threads().map(|thread| thread.counts.lost)),
        ]
    })
}

pub(super) fn write_cpus(folder: &Path, threads: &[Thread]) -> Result<Unfinished, Error> {
    let with_number = (0_u32..).zip(threads);
    let rows: Vec<(u32, CpuId, u64)> = with_number
        .flat_map(|(number, thread)| {
            thread
                .cpus
                .iter()
                .map(move |(cpu, accesses)| (number, *cpu, *accesses))
        })
        .collect();
    TableWriter::create(folder, &CPUS_FORMAT)?.rows(&rows, |rows| {
        vec![
            Values::u32(rows.iter().map(|(thread, ..)| *thread)),
            Values::u32(rows.iter().map(|(_, cpu, _)| cpu.0)),
            Values::u64(rows.iter().map(|(.., accesses)| *accesses)),
        ]
    })
}

pub(super) fn read(folder: &Path, checksums: &TableChecksums) -> Result<Vec<Thread>, Error> {
    let table = TableReader::open(folder, &FORMAT, checksums)?;
    let mut threads = Vec::new();
    for group in 0..table.groups() {
        let group = table.group(group)?;
        let (mut pid, mut tid, mut name, mut order) = (vec![], vec![], vec![], vec![]);
        let (mut born_ns, mut died_ns, mut start_module, mut start_offset) =
            (vec![], vec![], vec![], vec![]);
        let (mut start_function, mut team, mut team_index) = (vec![], vec![], vec![]);
        let (mut samples, mut accesses, mut compute) = (vec![], vec![], vec![]);
        let (mut undecoded, mut kernel, mut lost) = (vec![], vec![], vec![]);
        group.u32("pid", &mut pid, |pid| pid)?;
        group.u32("tid", &mut tid, |tid| tid)?;
        group.text("name", &mut name)?;
        group.u64("born_ns", &mut born_ns, |time| time)?;
        group.optional_u64("died_ns", &mut died_ns, |time| time)?;
        group.u32("order", &mut order, |order| order)?;
        group.optional_u32("start_module", &mut start_module, ModuleId)?;
        group.optional_u64("start_offset", &mut start_offset, |offset| offset)?;
        group.text("start_function", &mut start_function)?;
        group.text("team", &mut team)?;
        group.u32("team_index", &mut team_index, |index| index)?;
        group.u64("samples", &mut samples, |count| count)?;
        group.u64("accesses", &mut accesses, |count| count)?;
        group.u64("compute", &mut compute, |count| count)?;
        group.u64("undecoded", &mut undecoded, |count| count)?;
        group.u64("kernel", &mut kernel, |count| count)?;
        group.u64("lost", &mut lost, |count| count)?;
        let texts = name.into_iter().zip(start_function).zip(team);
        threads.extend(
            texts
                .enumerate()
                .map(|(row, ((name, start_function), team))| Thread {
                    pid: pid[row],
                    tid: tid[row],
                    name,
                    born_ns: born_ns[row],
                    died_ns: died_ns[row].unwrap_or(u64::MAX),
                    order: order[row],
                    start: start_module[row].zip(start_offset[row]),
                    start_function,
                    team_index: team_index[row],
                    team,
                    cpus: Vec::new(),
                    counts: SampleCounts {
                        samples: samples[row],
                        accesses: accesses[row],
                        compute: compute[row],
                        undecoded: undecoded[row],
                        kernel: kernel[row],
                        lost: lost[row],
                    },
                }),
        );
    }
    read_cpus(folder, checksums, &mut threads)?;
    Ok(threads)
}

fn read_cpus(
    folder: &Path,
    checksums: &TableChecksums,
    threads: &mut [Thread],
) -> Result<(), Error> {
    let table = TableReader::open(folder, &CPUS_FORMAT, checksums)?;
    for group in 0..table.groups() {
        let group = table.group(group)?;
        let (mut thread, mut cpu, mut accesses) = (vec![], vec![], vec![]);
        group.u32("thread", &mut thread, |thread| thread as usize)?;
        group.u32("cpu", &mut cpu, CpuId)?;
        group.u64("accesses", &mut accesses, |count| count)?;
        for ((thread, cpu), accesses) in thread.into_iter().zip(cpu).zip(accesses) {
            let Some(thread) = threads.get_mut(thread) else {
                return Err(Error::damaged(
                    table.path(),
                    "it names a thread that threads.parquet hasn't",
                ));
            };
            thread.cpus.push((cpu, accesses));
        }
    }
    Ok(())
}
