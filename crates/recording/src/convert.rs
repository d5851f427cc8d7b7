//! Converts logs to tables: at the end of a recording if that is quick, otherwise when the recording is first opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nearpage_amount::counted;
use nearpage_machine::Machine;
use rustc_hash::FxHashMap;

use crate::assemble::{Assembled, Statics, assemble};
use crate::folder::{self, LOG_FOLDER, TRACE_FOLDER};
use crate::jit;
use crate::log::LogReader;
use crate::shared;
use crate::storage::{self, TablesWriter};
use crate::symbols::Symbols;
use crate::trace::{OpenedTrace, PageRow};
use crate::{AccessBatch, Error, Frame, Messages, Metadata, allocation_log};

/// Real paths of modules by (path as recorded, build-id).
pub(crate) type ModulePaths = FxHashMap<(String, String), PathBuf>;

/// A conversion that is estimated to take longer waits until the recording is first opened.
pub const BUDGET: Duration = Duration::from_millis(200);

/// Costs of a conversion, as `examples/conversion_cost.rs` measured them on the busy development machine
/// (`benches/recording_reading.md`). Where measurements differ, the larger figure stands here. The figure for modules
/// is raised for programs with many call sites.
const NS_PER_ACCESS: u64 = 1250;
const NS_PER_ALLOCATION_LOG_BYTE: u64 = 37;
const NS_PER_MODULE_BYTE: u64 = 1;
const NS_FIXED: u64 = 12_000_000;
/// A record of a trace is 3 bytes or more.
const NS_PER_TRACE_BYTE: u64 = 10;

/// Estimates the time of a conversion from file sizes alone.
pub(crate) fn estimate(folder: &Path, accesses: u64, modules: &ModulePaths) -> Duration {
    use std::os::unix::fs::MetadataExt;
    // Segments are allocated ahead of use, and blocks that were never claimed cost as much to read; holes of segments
    // that were made in reserve do not.
    let log_bytes: u64 = std::fs::read_dir(folder.join(LOG_FOLDER))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            entry
                .ok()
                .filter(|entry| entry.file_name().to_string_lossy().starts_with("alloc-"))
        })
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| 512 * metadata.blocks())
        .sum();
    let module_bytes: u64 = modules
        .values()
        .filter_map(|path| path.metadata().ok())
        .map(|metadata| metadata.size())
        .sum();
    let trace_bytes: u64 = std::fs::read_dir(folder.join(TRACE_FOLDER))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|metadata| metadata.size())
        .sum();
    let cost = [
        accesses.saturating_mul(NS_PER_ACCESS),
        log_bytes.saturating_mul(NS_PER_ALLOCATION_LOG_BYTE),
        module_bytes.saturating_mul(NS_PER_MODULE_BYTE),
        trace_bytes.saturating_mul(NS_PER_TRACE_BYTE),
        NS_FIXED,
    ];
    Duration::from_nanos(cost.into_iter().fold(0, u64::saturating_add))
}

/// Contents of a recording, read from its logs.
pub(crate) struct FromLogs {
    pub log: LogReader,
    pub assembled: Assembled,
    /// The trace and its pages, if the recording has a trace.
    pub traced: Option<(OpenedTrace, Vec<PageRow>)>,
}

/// Reads the logs of the recording in `folder` into tables, names the call sites, and updates `metadata`.
pub(crate) fn from_logs(
    folder: &Path,
    machine: &Machine,
    metadata: &mut Metadata,
    paths: &ModulePaths,
) -> Result<FromLogs, Error> {
    let mut log = LogReader::open(folder)?;
    let traced = OpenedTrace::survey(folder, machine, metadata, &mut log)?;
    let images = allocation_log::find(&folder.join(LOG_FOLDER))?;
    let attached = metadata.attached.is_some();
    let is_sampled_rank = metadata.launched.is_some() && metadata.tracing.is_none();
    let statics = match attached || is_sampled_rank {
        true => Statics::Accessed,
        false => Statics::All,
    };
    let mut messages = Messages::read(&folder.join(LOG_FOLDER));
    if metadata.redacted {
        // The messages may name programs.
        messages.lines.clear();
    }
    let mut assembled = assemble(
        &log,
        &images,
        &messages,
        paths,
        machine.page_bytes,
        statics,
        attached,
    )?;
    let impossible = assembled.tables.leave_out_impossible();
    let unknown = match traced {
        Some(_) => 0,
        None => log.keep_threads(assembled.tables.threads.len()),
    };
    if impossible + unknown > 0 {
        assembled.notes.push(format!(
            "the logs are damaged: left out {} of threads that they do not name, and {} of objects, mappings and first \
             touches that cannot be",
            counted(unknown, "access"),
            counted(impossible, "row")
        ));
    }
    assembled.complete(metadata);
    name_call_sites(&mut assembled, metadata, paths);
    jit::add_modules(folder, &mut assembled.tables);
    if metadata.redacted {
        redact(&mut assembled, metadata, paths);
    }
    let traced = traced.map(|(traced, survey)| (traced, survey.rows));
    Ok(FromLogs {
        log,
        assembled,
        traced,
    })
}

/// Turns the logs into tables and removes the logs. Readers use the logs until all tables are in place; the accesses
/// are written last.
pub(crate) fn convert(folder: &Path, paths: &ModulePaths) -> Result<(), Error> {
    let mut metadata = folder::read_metadata(folder)?;
    let machine = folder::read_machine(folder)?;
    let FromLogs {
        log,
        assembled,
        traced,
    } = from_logs(folder, &machine, &mut metadata, paths)?;
    if let Some((traced, pages)) = traced {
        let moments: Vec<_> = traced.moments().collect();
        storage::write_traced(folder, &assembled.tables, &pages, &moments, &metadata)?;
    } else {
        let mut writer = TablesWriter::create(folder)?;
        let mut batch = AccessBatch::default();
        for chunk in 0..log.chunks() {
            log.read_chunk(chunk, &mut batch)?;
            writer.accesses(&batch)?;
        }
        writer.finish(&assembled.tables, &metadata)?;
    }
    if metadata.launched.is_some() {
        shared::share(folder);
    }
    folder::remove_logs(folder)
}

fn name_call_sites(assembled: &mut Assembled, metadata: &mut Metadata, paths: &ModulePaths) {
    let tables = &mut assembled.tables;
    let mut symbols = Symbols::with_paths(&tables.modules, paths);
    for call_site in &mut tables.call_sites {
        let named = call_site
            .frames
            .drain(..)
            .flat_map(|frame| match frame.module {
                Some(module) => symbols.return_address(module, frame.offset),
                None => vec![frame],
            });
        call_site.frames = named.collect::<Vec<Frame>>();
    }
    metadata.notes.extend(symbols.notes().iter().cloned());
}

/// Shortens paths in tables and notes to file names.
fn redact(assembled: &mut Assembled, metadata: &mut Metadata, paths: &ModulePaths) {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    for call_site in &mut assembled.tables.call_sites {
        for frame in &mut call_site.frames {
            frame.file = file_name(&frame.file);
        }
    }
    for module in &mut assembled.tables.modules {
        module.path = file_name(&module.path);
    }
    for note in &mut metadata.notes {
        for path in paths.values() {
            let path = path.to_string_lossy();
            *note = note.replace(&*path, &file_name(&path));
        }
    }
}
