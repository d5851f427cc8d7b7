//! One pass over the accesses. Workers take runs of consecutive chunks and add up their accesses; then the sums of all
//! runs are merged in order of time.

use std::{
    borrow::Cow,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use nearpage_recording::{AccessBatch, ObjectId};

use crate::{
    AccessChunks, Attribution, CodeUse, Error, Input, ObjectIndex, Options,
    cells::CELLS_MAX,
    context::Context,
    lifetimes::Cursor,
    part::{Part, ROWS_AT_ONCE, Scratch},
    summary::summarise,
};

/// Attributes all accesses of a recording.
pub fn attribute<A: AccessChunks + ?Sized>(
    input: &Input<A>,
    options: &Options,
) -> Result<Attribution, Error> {
    let index = ObjectIndex::for_attribution(&input.tables.objects);
    let attributor = Attributor::new(input, options, &index)?;
    let sums = attributor.sums(&even_runs(
        input.accesses.chunks(),
        attributor.workers.max(1),
    ))?;
    let sums = sums.into_iter().map(Cow::Owned);
    Ok(attributor.finish(sums).attribution)
}

/// Splits `chunks` into at most `runs` ranges whose lengths differ by one at most.
pub fn even_runs(chunks: usize, runs: usize) -> Vec<Range<usize>> {
    let runs = runs.min(chunks).max(1);
    (0..runs)
        .map(|run| chunks * run / runs..chunks * (run + 1) / runs)
        .collect()
}

/// Sums of the accesses of consecutive chunks. Sums of later runs can be appended, so the accesses of parts of a
/// recording's time are read only once.
#[derive(Clone)]
pub struct RunSums(Part);

impl RunSums {
    /// Number of cells (page × thread) in these sums. A cell takes 64 bytes.
    pub fn cells(&self) -> usize {
        self.0.cells()
    }

    /// Appends the sums of a later run.
    pub fn append(&mut self, later: &Self) {
        self.0.append(&later.0);
        self.0 = self.0.take_packed();
    }
}

impl std::fmt::Debug for RunSums {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "RunSums of {} cells", self.cells())
    }
}

/// An attribution with all instructions of each object.
#[derive(Debug)]
pub struct Attributed {
    /// The attribution.
    pub attribution: Attribution,
    /// Instructions that access each object of the attribution, the costliest first.
    pub code: Vec<Vec<CodeUse>>,
}

/// Attributes the accesses of runs of chunks.
pub struct Attributor<'a, A: AccessChunks + ?Sized> {
    input: &'a Input<'a, A>,
    options: &'a Options,
    context: Context<'a>,
    workers: usize,
}

impl<'a, A: AccessChunks + ?Sized> Attributor<'a, A> {
    /// Prepares an attribution. `index` is [`ObjectIndex::for_attribution`] of the input's objects.
    ///
    /// # Errors
    /// [`Error::PageSize`].
    pub fn new(
        input: &'a Input<'a, A>,
        options: &'a Options,
        index: &'a ObjectIndex,
    ) -> Result<Self, Error> {
        if !options.page_bytes.is_power_of_two() || options.page_bytes < 4096 {
            return Err(Error::PageSize {
                page_bytes: options.page_bytes,
            });
        }
        let workers = match options.workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        Ok(Self {
            input,
            options,
            context: Context::new(input, options, &index.groups, &index.lifetimes),
            workers,
        })
    }

    /// Sums of each run of chunks. The runs must be in order and disjoint.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Damaged`].
    pub fn sums(&self, runs: &[Range<usize>]) -> Result<Vec<RunSums>, Error> {
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(usize, Result<Part, Error>)>> = Mutex::default();
        let work = || {
            let mut cursor = Cursor::new(self.context.lifetimes);
            let mut part = Part::new(&self.context);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(run) = runs.get(number) else { break };
                let done = read(
                    &self.context,
                    self.input,
                    &mut cursor,
                    run.clone(),
                    &mut part,
                );
                // An earlier run may still be unread by another worker, so each run's sums are kept apart.
                let sums = part.take_packed();
                let mut found = found.lock().expect("nobody panics holding it");
                found.push((number, done.map(|()| sums)));
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.workers.min(runs.len()) {
                scope.spawn(work);
            }
            work();
        });
        let mut found = found.into_inner().expect("nobody panics holding it");
        found.sort_by_key(|(number, _)| *number);
        found
            .into_iter()
            .map(|(_, part)| part.map(RunSums))
            .collect()
    }

    /// Sums of the accesses of a batch in order of time. `objects` has the object of each access, from
    /// [`ObjectIndex::search`].
    pub fn sums_of(&self, batch: &AccessBatch, objects: &[Option<ObjectId>]) -> RunSums {
        let mut part = Part::new(&self.context);
        let mut scratch = Scratch::default();
        let known = (&self.input.tables.objects[..], objects);
        for first in (0..batch.len()).step_by(ROWS_AT_ONCE) {
            let rows = first..batch.len().min(first + ROWS_AT_ONCE);
            part.add_known(&self.context, batch, rows, known, &mut scratch);
        }
        RunSums(part)
    }

    /// Merges the sums of runs, which come in order of time, into an attribution.
    pub fn finish<'s>(&self, sums: impl IntoIterator<Item = Cow<'s, RunSums>>) -> Attributed {
        let mut sums = sums.into_iter();
        let mut whole = match sums.next() {
            Some(first) => first.into_owned().0,
            None => Part::new(&self.context),
        };
        for later in sums {
            whole.append(&later.0);
            // Coarsens along the way, as merging into small tables is fast. The bound is twice the final one for the
            // reason that the module `cells` gives.
            whole.fit(2 * CELLS_MAX);
        }
        whole.fit(CELLS_MAX);
        summarise(self.input, self.options, &self.context, whole)
    }
}

/// Adds the accesses of some chunks to `part`.
fn read<A: AccessChunks + ?Sized>(
    context: &Context,
    input: &Input<A>,
    cursor: &mut Cursor,
    chunks: Range<usize>,
    part: &mut Part,
) -> Result<(), Error> {
    let mut read_chunk = input.accesses.reader();
    let mut batch = AccessBatch::default();
    let mut order: Vec<u32> = Vec::new();
    let mut scratch = Scratch::default();
    for chunk in chunks {
        read_chunk(chunk, &mut batch).map_err(|source| Error::Read {
            chunk,
            chunks: input.accesses.chunks(),
            source,
        })?;
        check(chunk, &batch, input.tables.threads.len())?;
        order.clear();
        order.extend(0..batch.len() as u32);
        if !batch.time_ns.is_sorted() {
            order.sort_by_key(|&row| batch.time_ns[row as usize]);
        }
        for rows in order.chunks(ROWS_AT_ONCE) {
            part.add(context, cursor, &batch, rows, &mut scratch);
        }
    }
    Ok(())
}

/// Refuses batches whose columns differ in length or name a thread outside the thread table.
fn check(chunk: usize, batch: &AccessBatch, threads: usize) -> Result<(), Error> {
    let rows = batch.len();
    let AccessBatch {
        time_ns: _,
        thread,
        cpu,
        address,
        instruction,
        kind,
        weight,
        cost_ns,
        page_node,
        ..
    } = batch;
    let lengths = [
        thread.len(),
        cpu.len(),
        address.len(),
        instruction.len(),
        kind.len(),
        weight.len(),
        cost_ns.len(),
        page_node.len(),
    ];
    if lengths.iter().any(|&length| length != rows) {
        return Err(Error::Damaged {
            chunk,
            what: format!("columns of {rows} and {lengths:?} rows"),
        });
    }
    match thread.iter().find(|thread| thread.0 as usize >= threads) {
        Some(thread) => Err(Error::Damaged {
            chunk,
            what: format!("thread {} where there are {threads}", thread.0),
        }),
        None => Ok(()),
    }
}
