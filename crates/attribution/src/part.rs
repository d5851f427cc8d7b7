//! Sums of a worker's accesses.

use nearpage_machine::CpuId;
use nearpage_recording::{AccessBatch, AccessKind, Object, ObjectId, ObjectKind, ThreadIndex};

use crate::{
    Operations,
    cells::{CELLS_MAX, GROUP_CELLS_MAX, PhasedCells, cells_for},
    context::Context,
    lifetimes::Cursor,
    live::SearchPosition,
    sum_table::SumTable,
    sums::{Amount, CodeSum, OperationSum, Squares},
};

/// Largest number of pairs of group and instruction that a worker counts; programs have far fewer.
const HOT_PAIRS_MAX: usize = 1 << 18;
/// Number of accesses that are located together, so that their cache misses overlap.
pub(crate) const ROWS_AT_ONCE: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct GroupPart {
    pub loads: OperationSum,
    pub stores: OperationSum,
    pub cells: PhasedCells,
    /// Cells by followed instance: the object's number takes the place of the page.
    pub instances: PhasedCells,
    /// Sum of the squared weights.
    pub squares: Squares,
    /// Largest number of cells for objects of this size.
    cells_max: usize,
}

impl GroupPart {
    /// Mean number of accesses that a sample stands for.
    pub fn sample_weight(&self) -> f64 {
        let weights = self.loads.weight.saturating_add(self.stores.weight);
        self.squares.sample_weight(weights)
    }

    /// Appends the sums of later accesses.
    pub fn append(&mut self, later: &GroupPart) {
        self.loads.merge(&later.loads);
        self.stores.merge(&later.stores);
        self.squares.merge(later.squares);
        self.cells.append(&later.cells);
        self.instances.append(&later.instances);
    }

    /// Takes the sums out as packed tables. `self` stays empty, with its room allocated.
    fn take_packed(&mut self) -> Self {
        Self {
            loads: std::mem::take(&mut self.loads),
            stores: std::mem::take(&mut self.stores),
            squares: std::mem::take(&mut self.squares),
            cells: self.cells.take_packed(),
            instances: self.instances.take_packed(),
            cells_max: self.cells_max,
        }
    }

    /// Adds the sums of another object.
    pub fn overlay(&mut self, other: &GroupPart) {
        self.loads.merge(&other.loads);
        self.stores.merge(&other.stores);
        self.squares.merge(other.squares);
        self.cells.overlay(&other.cells);
        self.instances.overlay(&other.instances);
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadPart {
    pub loads: OperationSum,
    pub stores: OperationSum,
    /// A linear list: a thread runs on few CPUs, mostly on the last one.
    pub cpus: Vec<(CpuId, u64)>,
}

/// An access whose object is being searched.
struct Search {
    row: u32,
    process: Option<u32>,
    address: u64,
    place: SearchPosition,
}

/// An access that passed the filters (operations, stable phase).
struct FilteredAccess {
    thread: ThreadIndex,
    amount: Amount,
    remote: Option<bool>,
}

/// The object of an access.
#[derive(Clone, Copy)]
struct ObjectOfAccess {
    kind: ObjectKind,
    base: u64,
    group: u32,
    object: u32,
}

/// An access with its object and page.
struct LocatedAccess {
    slot: u32,
    object: u32,
    thread: ThreadIndex,
    page: u64,
    amount: Amount,
    remote: Option<bool>,
    /// Key of the instruction sums: instruction; group and code image.
    hot: (u64, u64),
}

/// Buffers of the accesses that are worked on together, kept to avoid allocations.
#[derive(Default)]
pub(crate) struct Scratch {
    searches: Vec<Search>,
    located: Vec<LocatedAccess>,
}

/// Sums of a worker's accesses.
#[derive(Clone)]
pub(crate) struct Part {
    pub kinds: [u64; 7],
    pub unknown: u64,
    /// Position in `groups` by group; `u32::MAX`: no access yet.
    slots: Vec<u32>,
    pub groups: Vec<(u32, GroupPart)>,
    pub threads: Vec<ThreadPart>,
    /// Sums by instruction, group and code image.
    pub hot: SumTable<(u64, u64), CodeSum>,
    cell_count: usize,
    group_cells_max: usize,
}

impl Part {
    pub fn new(context: &Context) -> Part {
        Part {
            kinds: [0; 7],
            unknown: 0,
            slots: vec![u32::MAX; context.groups.groups.len()],
            groups: Vec::new(),
            threads: vec![ThreadPart::default(); context.threads.len()],
            hot: SumTable::default(),
            cell_count: 0,
            group_cells_max: GROUP_CELLS_MAX,
        }
    }

    /// Adds some rows, in order of time. Their objects, cells and instructions lie all over memory, so each step
    /// prefetches for all rows: the processor then waits for many cache misses at once.
    pub fn add(
        &mut self,
        context: &Context,
        cursor: &mut Cursor,
        batch: &AccessBatch,
        rows: &[u32],
        scratch: &mut Scratch,
    ) {
        let Scratch { searches, located } = scratch;
        searches.clear();
        located.clear();
        for &row in rows {
            let (thread, address) = (batch.thread[row as usize], batch.address[row as usize]);
            let process = context.process_of_thread[thread.0 as usize];
            let place = process.map_or(SearchPosition::default(), |process| {
                cursor.first_looked_up(process).seek(address)
            });
            searches.push(Search {
                row,
                process,
                address,
                place,
            });
        }
        for search in searches.iter() {
            if let Some(process) = search.process {
                let live = cursor.first_looked_up(process);
                live.guess(search.address, search.place);
            }
        }
        for search in searches.iter_mut() {
            if let Some(process) = search.process {
                let live = cursor.first_looked_up(process);
                live.narrow(search.address, &mut search.place);
            }
        }
        for &Search {
            row,
            process,
            address,
            place,
        } in searches.iter()
        {
            let row = row as usize;
            let Some(counted) = self.count(context, batch, row) else {
                continue;
            };
            let found = process
                .and_then(|process| cursor.find(process, batch.time_ns[row], address, place));
            let found = found.map(|(kind, range)| ObjectOfAccess {
                kind,
                base: range.base,
                group: range.group,
                object: range.object,
            });
            located.extend(self.locate(context, batch, row, &counted, found));
        }
        self.add_all(context, located);
    }

    /// Adds some rows, in order of time, whose objects are known. Rows without an object count as unknown.
    pub fn add_known(
        &mut self,
        context: &Context,
        batch: &AccessBatch,
        rows: std::ops::Range<usize>,
        (objects, known): (&[Object], &[Option<ObjectId>]),
        scratch: &mut Scratch,
    ) {
        let located = &mut scratch.located;
        located.clear();
        for row in rows {
            let Some(counted) = self.count(context, batch, row) else {
                continue;
            };
            let found = known[row].and_then(|id| {
                let object = objects.get(id.0 as usize)?;
                Some(ObjectOfAccess {
                    kind: object.kind,
                    base: object.address,
                    group: context.groups.of_object[id.0 as usize],
                    object: id.0,
                })
            });
            located.extend(self.locate(context, batch, row, &counted, found));
        }
        self.add_all(context, located);
    }

    fn add_all(&mut self, context: &Context, located: &[LocatedAccess]) {
        for found in located {
            let part = &self.groups[found.slot as usize].1;
            part.cells.prefetch(found.page, found.thread);
            self.hot.prefetch(found.hot);
        }
        for found in located {
            self.add_located(context, found);
        }
    }

    /// Counts a row for its thread; none if the row does not pass the filters.
    #[inline]
    fn count(
        &mut self,
        context: &Context,
        batch: &AccessBatch,
        row: usize,
    ) -> Option<FilteredAccess> {
        let kind = batch.kind[row];
        match context.operations {
            Operations::Loads if kind == AccessKind::Store => return None,
            Operations::Stores if kind != AccessKind::Store => return None,
            _ => {}
        }
        let (thread, time_ns) = (batch.thread[row], batch.time_ns[row]);
        if !context.counts(thread, time_ns) {
            return None;
        }
        let amount = Amount::new(batch.weight[row], batch.cost_ns[row], kind);
        let cpu = batch.cpu[row];
        let remote = match batch.page_node[row] {
            Some(node) => context.node(cpu).map(|mine| mine != node),
            None => None,
        };
        let thread = context.counted_as[thread.0 as usize];
        let part = &mut self.threads[thread.0 as usize];
        if amount.store {
            &mut part.stores
        } else {
            &mut part.loads
        }
        .add(amount, remote);
        match part.cpus.iter_mut().find(|(known, _)| *known == cpu) {
            Some((_, weight)) => *weight = weight.saturating_add(amount.weight),
            None => part.cpus.push((cpu, amount.weight)),
        }
        Some(FilteredAccess {
            thread,
            amount,
            remote,
        })
    }

    /// Finds the page of an access within its object.
    #[inline]
    fn locate(
        &mut self,
        context: &Context,
        batch: &AccessBatch,
        row: usize,
        &FilteredAccess {
            thread,
            amount,
            remote,
        }: &FilteredAccess,
        found: Option<ObjectOfAccess>,
    ) -> Option<LocatedAccess> {
        let process = context.process_of_thread[batch.thread[row].0 as usize];
        let (Some(process), Some(found)) = (process, found) else {
            self.unknown = self.unknown.saturating_add(amount.weight);
            return None;
        };
        let ObjectOfAccess {
            kind,
            base,
            group,
            object,
        } = found;
        let kind_sum = &mut self.kinds[kind as usize];
        *kind_sum = kind_sum.saturating_add(amount.weight);
        // Stacks and thread-local storage are never placed, so their pages are not needed.
        let page = match kind {
            ObjectKind::Stack | ObjectKind::Tls => 0,
            _ => (batch.address[row] >> context.page_shift) - (base >> context.page_shift),
        };
        let slot = &mut self.slots[group as usize];
        if *slot == u32::MAX {
            *slot = self.groups.len() as u32;
            let size_bytes = context.groups.groups[group as usize].size_bytes;
            let cells_max = cells_for(size_bytes >> context.page_shift);
            self.groups.push((
                group,
                GroupPart {
                    cells_max,
                    ..GroupPart::default()
                },
            ));
        }
        let image = context.code.image(process, batch.time_ns[row]);
        let by_group = u64::from(group) << 32 | u64::from(image);
        Some(LocatedAccess {
            slot: *slot,
            object,
            thread,
            page,
            amount,
            remote,
            hot: (batch.instruction[row], by_group),
        })
    }

    #[inline]
    fn add_located(&mut self, context: &Context, found: &LocatedAccess) {
        let &LocatedAccess {
            slot,
            object,
            thread,
            page,
            amount,
            remote,
            hot,
        } = found;
        let part = &mut self.groups[slot as usize].1;
        if amount.store {
            &mut part.stores
        } else {
            &mut part.loads
        }
        .add(amount, remote);
        part.squares.add(amount);
        if context.groups.follows(object) {
            part.instances.add(u64::from(object), thread, amount);
        }
        if part.cells.add(page, thread, amount) {
            self.cell_count += 1;
            let cells_max = part.cells_max.min(self.group_cells_max);
            // Thinly spread cells must become much coarser before fewer remain. With room for twice as many, one pass
            // through the cells does that instead of one pass for each doubling.
            if part.cells.len() > 2 * cells_max {
                let before = part.cells.len();
                part.cells.fit(cells_max);
                self.cell_count -= before - part.cells.len();
            }
            if self.cell_count > 2 * CELLS_MAX && self.group_cells_max > 1 {
                self.fit(2 * CELLS_MAX);
            }
        }
        if let Some(sum) = self.hot.entry_within(hot, HOT_PAIRS_MAX) {
            sum.add(amount, remote);
        }
    }

    /// Number of cells of all groups.
    pub fn cells(&self) -> usize {
        self.groups.iter().map(|(_, part)| part.cells.len()).sum()
    }

    /// Halves each group's bound until all groups together have at most `cells_max` cells.
    pub fn fit(&mut self, cells_max: usize) {
        let mut first = true;
        while first || (self.cell_count > cells_max && self.group_cells_max > 1) {
            if !first {
                self.group_cells_max /= 2;
            }
            first = false;
            self.cell_count = 0;
            for (_, part) in &mut self.groups {
                part.cells.fit(part.cells_max.min(self.group_cells_max));
                self.cell_count += part.cells.len();
            }
        }
    }

    /// Takes the sums out as packed tables, each group within its bound. `self` stays empty with its room allocated, as
    /// growing tables takes as long as adding.
    pub fn take_packed(&mut self) -> Self {
        self.fit(usize::MAX);
        let mut slots = vec![u32::MAX; self.slots.len()];
        let mut groups = Vec::new();
        let accessed = self.groups.iter_mut();
        for (group, part) in accessed.filter(|(_, part)| !part.cells.is_empty()) {
            slots[*group as usize] = groups.len() as u32;
            groups.push((*group, part.take_packed()));
        }
        Self {
            kinds: std::mem::take(&mut self.kinds),
            unknown: std::mem::take(&mut self.unknown),
            slots,
            groups,
            threads: self.threads.iter_mut().map(std::mem::take).collect(),
            hot: self.hot.take_packed(),
            cell_count: std::mem::take(&mut self.cell_count),
            group_cells_max: std::mem::replace(&mut self.group_cells_max, GROUP_CELLS_MAX),
        }
    }

    /// Appends the sums of later accesses.
    pub fn append(&mut self, later: &Part) {
        for (mine, other) in self.kinds.iter_mut().zip(later.kinds) {
            *mine = mine.saturating_add(other);
        }
        self.unknown = self.unknown.saturating_add(later.unknown);
        self.group_cells_max = self.group_cells_max.min(later.group_cells_max);
        for (group, part) in &later.groups {
            let slot = &mut self.slots[*group as usize];
            if *slot == u32::MAX {
                *slot = self.groups.len() as u32;
                self.groups.push((*group, part.clone()));
                continue;
            }
            self.groups[*slot as usize].1.append(part);
        }
        for (mine, other) in self.threads.iter_mut().zip(&later.threads) {
            mine.loads.merge(&other.loads);
            mine.stores.merge(&other.stores);
            for &(cpu, weight) in &other.cpus {
                match mine.cpus.iter_mut().find(|(known, _)| *known == cpu) {
                    Some((_, sum)) => *sum = sum.saturating_add(weight),
                    None => mine.cpus.push((cpu, weight)),
                }
            }
        }
        for (place, sum) in later.hot.iter() {
            self.hot.entry(place).0.merge(*sum);
        }
    }
}
