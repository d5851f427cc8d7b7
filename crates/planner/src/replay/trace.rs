//! A recording's trace as input of the simulator.

use nearpage_recording::trace::{Miss, PageIndex, StepBatch, Steps, TraceEvent};
use nearpage_recording::{Object, ObjectKind, Recording};
use nearpage_simulator::{FilePage, StepSource, ThreadSteps, Trace, is_marked};

use crate::programs;

/// A trace to be replayed.
pub struct Replayed {
    /// The trace on disk.
    pub trace: nearpage_recording::trace::Trace,
    /// Processes, in the order of their first threads in the trace.
    processes: Vec<u32>,
    /// Process of each thread.
    applications: Vec<u16>,
    /// Objects of more than a page: process, first page number, number of pages. Sorted; of objects that begin on one
    /// page, the largest is last.
    objects: Vec<(u32, u64, u64)>,
    /// Page ranges with the program's own data: process, first page number, end. Sorted, without overlaps.
    data: Vec<(u32, u64, u64)>,
    kept: Option<KeptSteps>,
}

/// Decoded steps that are kept in memory.
struct KeptSteps {
    /// By thread.
    steps: Vec<Vec<StepBatch>>,
    any_marked: bool,
}

/// Limit of decoded steps that are kept: 256 MiB, sixteen million misses.
const STEPS_BYTES_MAX: usize = 256 << 20;

impl Replayed {
    /// The trace of a recording.
    pub fn new(recording: &Recording, trace: nearpage_recording::trace::Trace) -> Self {
        let mut processes = Vec::new();
        let mut number = |pid: u32| {
            let known = processes.iter().position(|&other| other == pid);
            let number = known.unwrap_or_else(|| {
                processes.push(pid);
                processes.len() - 1
            });
            u16::try_from(number).unwrap_or(0)
        };
        let threads = &recording.tables.threads;
        let applications = trace
            .threads()
            .iter()
            .map(|thread| number(threads[thread.thread.0 as usize].pid))
            .collect();
        let page_bytes = trace.pages().page_bytes();
        let distributed = |kind: ObjectKind| {
            matches!(
                kind,
                ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping
            )
        };
        let mut objects: Vec<(u32, u64, u64)> = recording
            .tables
            .objects
            .iter()
            .filter(|object| distributed(object.kind) && object.size_bytes > page_bytes)
            .map(|object| {
                let first = object.address / page_bytes;
                let end = object
                    .address
                    .saturating_add(object.size_bytes)
                    .div_ceil(page_bytes);
                (object.pid, first, end - first)
            })
            .collect();
        objects.sort_unstable();
        objects.dedup();
        Self {
            trace,
            processes,
            applications,
            objects,
            data: data(recording, page_bytes),
            kept: None,
        }
    }

    /// Objects of at least a page: process, first page number, end, and object. Sorted by place; an object inside
    /// another comes after it.
    pub fn objects<'a>(&self, recording: &'a Recording) -> Vec<(u16, u64, u64, &'a Object)> {
        let page_bytes = self.trace.pages().page_bytes();
        let large = |object: &&Object| object.size_bytes >= page_bytes;
        let placed = |object: &'a Object| {
            let process = self.processes.iter().position(|&pid| pid == object.pid)?;
            let first = object.address / page_bytes;
            let end = object.address.saturating_add(object.size_bytes);
            Some((process as u16, first, end.div_ceil(page_bytes), object))
        };
        let objects = recording.tables.objects.iter().filter(large);
        let mut objects: Vec<(u16, u64, u64, &Object)> = objects.filter_map(placed).collect();
        objects.sort_by_key(|&(process, first, end, _)| (process, first, std::cmp::Reverse(end)));
        objects
    }

    /// Keeps the decoded steps, unless there are too many: decoding takes a quarter of a replay.
    pub fn keep_steps(&mut self) -> Result<(), nearpage_recording::Error> {
        self.keep_steps_within(STEPS_BYTES_MAX)
    }

    fn keep_steps_within(&mut self, bytes_max: usize) -> Result<(), nearpage_recording::Error> {
        let mut steps = Vec::new();
        let mut kept_bytes = 0;
        for position in 0..self.trace.threads().len() {
            let mut read = self.trace.steps(position);
            let mut batches = Vec::new();
            let mut batch = StepBatch::default();
            while read.next(&mut batch)? {
                kept_bytes += batch.misses.len() * size_of::<Miss>()
                    + batch.trace_events.len() * size_of::<(usize, u32, TraceEvent)>();
                if kept_bytes > bytes_max {
                    return Ok(());
                }
                batches.push(batch.clone());
            }
            steps.push(batches);
        }
        self.kept = Some(KeptSteps {
            any_marked: steps.iter().flatten().any(is_marked),
            steps,
        });
        Ok(())
    }
}

/// Page ranges of the heap, of mappings that programs make, and of the programs' own static data.
fn data(recording: &Recording, page_bytes: u64) -> Vec<(u32, u64, u64)> {
    let tables = &recording.tables;
    let mut executables: Vec<(u32, String)> = Vec::new();
    let mut is_own = |object: &Object| {
        let known = executables.iter().position(|known| known.0 == object.pid);
        let at = known.unwrap_or_else(|| {
            let program = programs::program(tables, &recording.metadata, object.pid);
            executables.push((object.pid, program.executable));
            executables.len() - 1
        });
        let module = object
            .module
            .and_then(|id| tables.modules.get(id.0 as usize));
        module.is_some_and(|module| module.file_name() == executables[at].1)
    };
    let mut data: Vec<(u32, u64, u64)> = Vec::new();
    for object in &tables.objects {
        let is_data = match object.kind {
            ObjectKind::Heap | ObjectKind::HeapArea | ObjectKind::Mapping => true,
            ObjectKind::Static => is_own(object),
            _ => false,
        };
        if is_data {
            let first = object.address / page_bytes;
            let end = object.address.saturating_add(object.size_bytes);
            data.push((object.pid, first, end.div_ceil(page_bytes)));
        }
    }
    data.sort_unstable();
    data.dedup_by(|next, kept| {
        let touches = next.0 == kept.0 && next.1 <= kept.2;
        if touches {
            kept.2 = kept.2.max(next.2);
        }
        touches
    });
    data
}

impl Trace for Replayed {
    fn pages(&self) -> usize {
        self.trace.pages().len()
    }

    fn page_number(&self, page: u32) -> u64 {
        let pages = self.trace.pages();
        pages.place(PageIndex(page)).address / pages.page_bytes()
    }

    fn may_be_marked(&self) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.any_marked)
    }

    fn file_pages(&self) -> Vec<(u32, FilePage)> {
        self.trace.file_pages()
    }

    fn page_application(&self, page: u32) -> u16 {
        let pid = self.trace.pid(PageIndex(page));
        let number = self.processes.iter().position(|&other| other == pid);
        number.map_or(0, |number| number as u16)
    }

    fn application(&self, thread: usize) -> u16 {
        self.applications[thread]
    }

    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        let (pid, number) = (self.trace.pid(PageIndex(page)), self.page_number(page));
        // Of objects that begin at or before the page, the last that reaches it.
        let end = self
            .objects
            .partition_point(|&(other, first, _)| (other, first) <= (pid, number));
        let before = self.objects[..end].iter().rev();
        before
            .take_while(|object| object.0 == pid)
            .take(NESTED_MOST)
            .find(|&&(_, first, pages)| number < first + pages)
            .map(|&(_, first, pages)| (first, pages))
    }

    fn is_data(&self, page: u32) -> bool {
        let (pid, number) = (self.trace.pid(PageIndex(page)), self.page_number(page));
        let end = self
            .data
            .partition_point(|&(other, first, _)| (other, first) <= (pid, number));
        let before = end.checked_sub(1).map(|at| self.data[at]);
        before.is_some_and(|(other, _, end)| other == pid && number < end)
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        let mut threads: Vec<ThreadSteps<'_>> = Vec::new();
        for (position, thread) in self.trace.threads().iter().enumerate() {
            let steps = match &self.kept {
                Some(kept) => StepSource::Kept(kept.steps[position].iter()),
                None => StepSource::Read(Box::new(self.trace.steps(position))),
            };
            threads.push((thread.clone(), steps));
        }
        Ok(threads)
    }
}

/// Most objects that are searched for one that reaches a page. A mapping with more large objects in it has no extent
/// for pages after them.
const NESTED_MOST: usize = 1000;

#[cfg(test)]
mod tests;
