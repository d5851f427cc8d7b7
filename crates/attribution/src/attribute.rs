//! One pass over the accesses: workers take runs of consecutive chunks, add up what they see, and their sums are put
//! together in order.

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

/// So many chunks in so many runs that take about as long.
pub fn even_runs(chunks: usize, runs: usize) -> Vec<Range<usize>> {
    let runs = runs.min(chunks).max(1);
    (0..runs)
        .map(|run| chunks * run / runs..chunks * (run + 1) / runs)
        .collect()
}

/// Sums of the accesses of consecutive chunks. Those of the runs that come after them are added to them, so that what is
/// known of parts of a recording's time need not be read again.
#[derive(Clone)]
pub struct RunSums(Part);

impl RunSums {
    /// Cells of pages by threads that it holds: 64 bytes each.
    pub fn cells(&self) -> usize {
        self.0.cells()
    }

    /// Adds what came later.
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

/// An attribution, and more than it has of code.
#[derive(Debug)]
pub struct Attributed {
    /// The attribution.
    pub attribution: Attribution,
    /// Instructions that access each of its objects, the costliest first.
    pub code: Vec<Vec<CodeUse>>,
}

/// Attributes accesses run by run.
pub struct Attributor<'a, A: AccessChunks + ?Sized> {
    input: &'a Input<'a, A>,
    options: &'a Options,
    context: Context<'a>,
    workers: usize,
}

impl<'a, A: AccessChunks + ?Sized> Attributor<'a, A> {
    /// `index` is [`ObjectIndex::for_attribution`] of the input's objects.
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

    /// Sums of each of these runs of chunks, of which none begins before the one before it ends.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Damaged`].
    pub fn sums(&self, runs: &[Range<usize>]) -> Result<Vec<RunSums>, Error> {
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(usize, Result<Part, Error>)>> = Mutex::default();
        let work = || {
            // A worker's runs are in order, so its cursor moves forwards.
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
                // All that comes before it may not have been read yet.
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

    /// Sums of accesses in order of time, whose objects are known by [`ObjectIndex::search`].
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

    /// What the sums of runs in order of time say together.
    pub fn finish<'s>(&self, sums: impl IntoIterator<Item = Cow<'s, RunSums>>) -> Attributed {
        let mut sums = sums.into_iter();
        let mut whole = match sums.next() {
            Some(first) => first.into_owned().0,
            None => Part::new(&self.context),
        };
        for later in sums {
            whole.append(&later.0);
            // What all have too many cells for, some of them have, too: small tables are quickly added to.
            whole.fit(2 * CELLS_MAX);
        }
        whole.fit(CELLS_MAX);
        summarise(self.input, self.options, &self.context, whole)
    }
}

/// Adds up some chunks.
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

/// Refuses batches whose columns don't fit each other or the thread table.
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
