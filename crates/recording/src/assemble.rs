//! Turns logs into tables: replays the kernel's events and the allocation logs to find all threads, modules, objects
//! and call sites.

mod address_space;
mod areas;
mod call_sites;
mod heap;
mod images;
mod modules;
mod same_memory;
mod standard_threads;
mod statics;
mod threads;
mod unlogged;

use nearpage_amount::counted;
use nearpage_wire::LARGE_ALLOCATION_BYTES;
use rustc_hash::{FxHashMap, FxHashSet};

use self::address_space::AddressSpaces;
pub(crate) use self::address_space::{EXECUTABLE, is_anonymous};
use self::areas::Areas;
use self::call_sites::CallSites;
use self::images::{Counters, Image};
use self::modules::Modules;
use self::statics::AccessedPages;
use self::threads::Threads;
use crate::allocation_log::{Damage, ImageLog};
use crate::convert::ModulePaths;
use crate::log::LogReader;
use crate::{
    AccessBatch, Error, Event, Mark, Messages, Metadata, Module, Object, SampleCounts, Tables,
};

/// Tables, counts and notes made from the logs.
#[derive(Debug, Default)]
pub(crate) struct Assembled {
    pub tables: Tables,
    allocations: u64,
    small_unlogged: u64,
    stacks_omitted: u64,
    damaged_blocks: u64,
    lost: u64,
    marks: Vec<Mark>,
    pub notes: Vec<String>,
}

impl Assembled {
    /// Copies counts, marks and notes of the logs into the recording's metadata.
    pub(crate) fn complete(&mut self, metadata: &mut Metadata) {
        metadata.allocations = self.allocations;
        metadata.small_unlogged = self.small_unlogged;
        metadata.stacks_omitted = self.stacks_omitted;
        metadata.damaged_blocks = self.damaged_blocks;
        metadata.marks = std::mem::take(&mut self.marks);
        for note in self.notes.drain(..) {
            if !metadata.notes.contains(&note) {
                metadata.notes.push(note);
            }
        }
        if metadata.counts == SampleCounts::default() {
            for thread in &self.tables.threads {
                let (sum, part) = (&mut metadata.counts, &thread.counts);
                for (sum, part) in [
                    (&mut sum.samples, part.samples),
                    (&mut sum.accesses, part.accesses),
                    (&mut sum.compute, part.compute),
                    (&mut sum.undecoded, part.undecoded),
                    (&mut sum.kernel, part.kernel),
                    (&mut sum.lost, part.lost),
                ] {
                    *sum = sum.saturating_add(part);
                }
            }
            metadata.counts.lost = metadata.counts.lost.max(self.lost);
        }
    }
}

/// Which static objects a recording lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statics {
    /// All static objects of each process that made accesses.
    All,
    /// Only static objects on accessed pages. For a whole machine or a job's ranks, the other objects would make up
    /// most of the written data.
    Accessed,
}

/// Assembles the tables. `messages` are those of the preload library; `attached` is set if the programs were already
/// running. Call sites get frames here and names later ([`crate::Symbols`]).
pub(crate) fn assemble(
    log: &LogReader,
    image_logs: &[ImageLog],
    messages: &Messages,
    paths: &ModulePaths,
    page_bytes: u64,
    statics: Statics,
    attached: bool,
) -> Result<Assembled, Error> {
    let mut events: Vec<Event> = log.events.clone();
    events.sort_by_key(time_ns);
    let spaces = AddressSpaces::new(&events);
    let modules = Modules::new(&spaces, paths, page_bytes);
    let mut threads = Threads::new(&events, log);
    let active: FxHashSet<u32> = log
        .accesses_by_cpu
        .keys()
        .filter_map(|(thread, _)| threads.get(*thread))
        .map(|thread| thread.pid)
        .collect();

    let mut damage = Damage::default();
    let images = images::read(image_logs, &spaces, &active, &mut damage)?;
    for image in &images {
        threads.join_records(image);
    }
    threads.name_teams(&modules, &spaces);

    let mut call_sites = CallSites::default();
    let mut objects: Vec<Object> = Vec::new();
    let logged: FxHashSet<u32> = image_logs.iter().map(|image| image.pid).collect();
    heap::objects(
        &images,
        &spaces,
        &modules,
        &threads,
        &mut call_sites,
        &mut objects,
    );
    let accessed = match statics {
        Statics::Accessed => Some(accessed_pages(log, &threads)?),
        Statics::All => None,
    };
    statics::objects(&modules, &active, accessed.as_ref(), &mut objects);
    let areas = Areas {
        spaces: &spaces,
        modules: &modules,
        threads: &threads,
        logged: &logged,
        attached,
    };
    areas.objects(&events, &mut objects);
    same_memory::join(&spaces, &mut objects);

    let mut first_touches = log.first_touches.clone();
    first_touches.sort_by_key(|touch| touch.time_ns);
    let mut notes = modules.notes().to_vec();
    notes.append(&mut damage.notes);
    notes.extend(losses(log, &images, &spaces));
    let (modules, mappings) = modules.into_tables();
    if !attached {
        notes.extend(unseen_new(&modules));
        let evidence = unlogged::Evidence {
            image_logs,
            spaces: &spaces,
            active: &active,
            messages,
            paths,
        };
        notes.extend(evidence.notes(&events));
        notes.extend(messages.lines.iter().cloned());
    }
    Ok(Assembled {
        allocations: total(&images, |counters| counters.allocations),
        small_unlogged: total(&images, |counters| counters.small_unlogged),
        stacks_omitted: total(&images, |counters| counters.stacks_omitted),
        damaged_blocks: log.damaged_blocks + damage.blocks,
        lost: log.lost,
        marks: marks(&images),
        notes,
        tables: Tables {
            cached_samples: Vec::new(),
            objects,
            threads: threads.into_table(),
            modules,
            mappings,
            call_sites: call_sites.into_table(),
            first_touches,
        },
    })
}

/// Sum of one counter over all images.
fn total(images: &[Image], counter: fn(&Counters) -> u64) -> u64 {
    let counters = images.iter().map(|image| counter(&image.counters));
    counters.fold(0, u64::saturating_add)
}

/// Notes about data missing from the logs.
fn losses(log: &LogReader, images: &[Image], spaces: &AddressSpaces) -> Vec<String> {
    let mut notes = Vec::new();
    if spaces.not_copied > 0 {
        notes.push(format!(
            "more processes began than there is memory for what they had mapped: {} of theirs left out",
            counted(spaces.not_copied as u64, "mapping")
        ));
    }
    if log.torn {
        notes.push("the recorder was killed or had no more room while it wrote: the last block of its log is torn and left out".into());
    }
    let dropped = total(images, |counters| counters.dropped);
    if dropped > 0 {
        notes.push(format!(
            "{} of the allocation log dropped (log off, full, or no room for a sample)",
            counted(dropped, "record")
        ));
    }
    let large_unlogged = total(images, |counters| counters.large_unlogged);
    if large_unlogged > 0 {
        notes.push(format!("no record of about {} of {LARGE_ALLOCATION_BYTES} bytes and more, made and freed at so high a rate that they were sampled; --all-allocations logs each", counted(large_unlogged, "allocation")));
    }
    notes
}

fn accessed_pages(log: &LogReader, threads: &Threads) -> Result<AccessedPages, Error> {
    let mut batch = AccessBatch::default();
    let mut accessed = AccessedPages::default();
    for chunk in 0..log.chunks() {
        log.read_chunk(chunk, &mut batch)?;
        let threads = batch.thread.iter().map(|thread| threads.get(*thread));
        let places = threads.zip(&batch.address);
        accessed.add(places.filter_map(|(thread, address)| Some((thread?.pid, *address))));
    }
    Ok(accessed)
}

/// Notes an allocator whose own `operator new` calls none of the functions that the preload library intercepts.
fn unseen_new(modules: &[Module]) -> Option<String> {
    let loaded = |prefixes: &[&str]| {
        let names = modules.iter().map(|module| file_name(&module.path));
        names.into_iter().find(|name| {
            prefixes
                .iter()
                .any(|prefix| name.starts_with(&format!("lib{prefix}")))
        })
    };
    loaded(&["stdc++", "c++"])?;
    let allocator = loaded(&["tcmalloc", "jemalloc", "mimalloc"])?;
    Some(format!(
        "{allocator} has an operator new of its own: C++ objects made with it are not logged (malloc is); record without that allocator to see them"
    ))
}

fn marks(images: &[Image]) -> Vec<Mark> {
    let mut marks: Vec<Mark> = images
        .iter()
        .flat_map(|image| image.marks.iter().copied())
        .collect();
    marks.sort_by_key(|mark| mark.time_ns);
    marks
}

/// Time of an event; totals (`Event::Counts`) have no time and sort first.
fn time_ns(event: &Event) -> u64 {
    match event {
        Event::Map { time_ns, .. }
        | Event::Unmap { time_ns, .. }
        | Event::Name { time_ns, .. }
        | Event::Fork { time_ns, .. }
        | Event::Exit { time_ns, .. }
        | Event::FirstTouch { time_ns, .. }
        | Event::Lost { time_ns, .. } => *time_ns,
        Event::Counts { .. } => 0,
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Threads by (process, kernel thread id), each with its start time because the kernel reuses ids.
type ByTid = FxHashMap<(u32, u32), Vec<(u64, crate::ThreadIndex)>>;
