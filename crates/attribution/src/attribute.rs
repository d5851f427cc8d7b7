//! One pass over the accesses: workers take consecutive chunks, add up what they see, and their
//! parts are put together in order.

use std::{ops::Range, thread};

use nearpage_recording::AccessBatch;

use crate::{
    AccessChunks, Attribution, Error, Input, Options,
    cells::CELLS_MAX,
    context::Context,
    groups::Groups,
    lifetimes::{Cursor, Lifetimes},
    part::{Part, ROWS_AT_ONCE, Scratch},
    summary::summarise,
};

/// Attributes all accesses of a recording.
pub fn attribute<A: AccessChunks + ?Sized>(
    input: &Input<A>,
    options: &Options,
) -> Result<Attribution, Error> {
    if !options.page_bytes.is_power_of_two() || options.page_bytes < 4096 {
        return Err(Error::PageSize {
            page_bytes: options.page_bytes,
        });
    }
    let groups = Groups::with_siblings(&input.tables.objects);
    let lifetimes = Lifetimes::new(&input.tables.objects, &groups.of_object);
    let context = Context::new(input, options, &groups, &lifetimes);

    let chunks = input.accesses.chunks();
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let workers = if options.workers == 0 {
        available()
    } else {
        options.workers
    }
    .min(chunks)
    .max(1);
    let parts: Vec<Result<Part, Error>> = thread::scope(|scope| {
        let run = |worker: usize| {
            let range = chunks * worker / workers..chunks * (worker + 1) / workers;
            let context = &context;
            scope.spawn(move || read(context, input, range))
        };
        let handles: Vec<_> = (0..workers).map(run).collect();
        handles
            .into_iter()
            .map(|handle| {
                handle
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    let mut whole = Part::new(&context);
    for part in parts {
        whole.append(part?);
    }
    whole.fit(CELLS_MAX);
    Ok(summarise(input, options, &context, whole))
}

/// Adds up some chunks.
fn read<A: AccessChunks + ?Sized>(
    context: &Context,
    input: &Input<A>,
    chunks: Range<usize>,
) -> Result<Part, Error> {
    let mut part = Part::new(context);
    let mut cursor = Cursor::new(context.lifetimes);
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
            part.add(context, &mut cursor, &batch, rows, &mut scratch);
        }
    }
    Ok(part)
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
