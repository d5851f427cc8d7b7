//! Checks a recording's tables once, when it is opened. Later code can rely on valid table positions, ranges within the
//! address space, and finite, non-negative weights.

use std::path::Path;

use crate::storage::trace::PAGES_FILE;
use crate::storage::{first_touches, modules, objects, threads};
use crate::trace::PageRow;
use crate::{
    AccessBatch, Error, FirstTouch, Frame, ModuleId, ModuleMapping, Object, ObjectKind, Tables,
    Thread,
};

/// Why a row is impossible. The caller adds the row's number and table.
type Fault = Option<String>;

/// Lengths of the tables that other tables refer to by position.
#[derive(Clone, Copy)]
struct Lengths {
    threads: usize,
    modules: usize,
    call_sites: usize,
    objects: usize,
}

impl Lengths {
    fn of(tables: &Tables) -> Self {
        Self {
            threads: tables.threads.len(),
            modules: tables.modules.len(),
            call_sites: tables.call_sites.len(),
            objects: tables.objects.len(),
        }
    }

    fn module(self, module: Option<ModuleId>) -> Fault {
        missing("module", module?.0, self.modules)
    }

    fn object(self, object: &Object) -> Fault {
        let thread = object.thread.map(|thread| thread.0);
        let site = object.call_site.map(|site| site.0);
        thread
            .and_then(|number| missing("thread", number, self.threads))
            .or_else(|| missing("call site", site?, self.call_sites))
            .or_else(|| missing("object", object.same_memory_as?.0, self.objects))
            .or_else(|| self.module(object.module))
            .or_else(|| beyond(object.address, object.size_bytes))
            .or_else(|| no_amount("weight", object.weight))
    }

    fn mapping(self, mapping: &ModuleMapping) -> Fault {
        self.module(Some(mapping.module))
            .or_else(|| beyond(mapping.address, mapping.size_bytes))
    }

    fn thread(self, thread: &Thread) -> Fault {
        let (module, _) = thread.start?;
        self.module(Some(module))
    }

    fn first_touch(self, touch: &FirstTouch) -> Fault {
        missing("thread", touch.thread.0, self.threads)
    }
}

fn missing(what: &str, number: u32, length: usize) -> Fault {
    (number as usize >= length).then(|| format!("{what} {number} where there are {length}"))
}

/// Upper bound of valid addresses. It leaves room to round up to a page; Linux maps nothing above it.
const ADDRESS_END: u64 = u64::MAX << 21;

fn beyond(address: u64, size_bytes: u64) -> Fault {
    let end = address.checked_add(size_bytes);
    end.is_none_or(|end| end > ADDRESS_END)
        .then(|| format!("{size_bytes} bytes at {address:#x} end beyond the address space"))
}

fn no_amount(what: &str, amount: f32) -> Fault {
    (!amount.is_finite() || amount < 0.0).then(|| format!("{what} {amount}"))
}

/// Returns the first impossible row as an error of `file`.
fn table<T>(
    folder: &Path,
    file: &str,
    rows: &[T],
    fault: impl Fn(&T) -> Fault,
) -> Result<(), Error> {
    match first(rows, fault) {
        Some((row, cause)) => Err(damaged(folder, file, row, cause)),
        None => Ok(()),
    }
}

/// Number of the first faulty row, and its fault.
fn first<T>(rows: &[T], fault: impl Fn(&T) -> Fault) -> Option<(usize, String)> {
    let faults = rows.iter().map(fault).enumerate();
    let mut found = faults.filter_map(|(row, cause)| Some((row, cause?)));
    found.next()
}

fn damaged(folder: &Path, file: &str, row: usize, cause: String) -> Error {
    Error::damaged(&folder.join(file), format!("row {row}: {cause}"))
}

impl Tables {
    /// Checks tables that were read from the files in `folder`.
    ///
    /// # Errors
    /// [`Error::Damaged`], with the first impossible row.
    pub(crate) fn check(&self, folder: &Path) -> Result<(), Error> {
        let known = Lengths::of(self);
        table(folder, objects::FORMAT.file, &self.objects, |row| {
            known.object(row).or_else(|| self.other_memory(row))
        })?;
        table(
            folder,
            modules::MAPPINGS_FORMAT.file,
            &self.mappings,
            |row| known.mapping(row),
        )?;
        table(folder, threads::FORMAT.file, &self.threads, |row| {
            known.thread(row)
        })?;
        table(
            folder,
            first_touches::FORMAT.file,
            &self.first_touches,
            |row| known.first_touch(row),
        )
    }

    /// Why the object that `object` names cannot be the same memory.
    fn other_memory(&self, object: &Object) -> Fault {
        let number = object.same_memory_as?.0;
        let same = &self.objects[number as usize];
        let stands_for_it = same.same_memory_as.is_none()
            && same.pid != object.pid
            && (same.kind, object.kind) == (ObjectKind::Mapping, ObjectKind::Mapping)
            && same.size_bytes >= object.size_bytes;
        (!stands_for_it).then(|| format!("object {number} is not the same memory"))
    }

    /// Checks the pages of a trace.
    ///
    /// # Errors
    /// [`Error::Damaged`], with the first impossible row.
    pub(crate) fn check_pages(&self, folder: &Path, pages: &[PageRow]) -> Result<(), Error> {
        let threads = self.threads.len();
        table(folder, PAGES_FILE, pages, |row| {
            missing("thread", row.first_touch?.thread.0, threads)
        })
    }

    /// Checks that the table has at least as many threads as a trace.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub(crate) fn check_trace(&self, folder: &Path, threads: usize) -> Result<(), Error> {
        let found = self.threads.len();
        match found < threads {
            true => Err(Error::damaged(
                &folder.join(threads::FORMAT.file),
                format!("it has {found} of the {threads} threads of the trace"),
            )),
            false => Ok(()),
        }
    }

    /// Removes impossible rows from tables that were made from logs. Returns the number of removed rows.
    pub(crate) fn leave_out_impossible(&mut self) -> u64 {
        let known = Lengths::of(self);
        let mut left_out = 0;
        let mut keep = |fault: Fault| {
            left_out += u64::from(fault.is_some());
            fault.is_none()
        };
        self.objects.retain(|row| keep(known.object(row)));
        self.mappings.retain(|row| keep(known.mapping(row)));
        self.first_touches
            .retain(|row| keep(known.first_touch(row)));
        left_out
    }
}

/// Checks one frame of a call site as it is read.
pub(crate) fn frame(
    folder: &Path,
    file: &str,
    row: usize,
    frame: &Frame,
    modules: usize,
) -> Result<(), Error> {
    let module = frame.module;
    match module.and_then(|module| missing("module", module.0, modules)) {
        Some(cause) => Err(damaged(folder, file, row, cause)),
        None => Ok(()),
    }
}

/// First faulty row of a batch of accesses, and its fault.
pub(crate) fn accesses(batch: &AccessBatch, threads: usize) -> Option<(usize, String)> {
    // Nearly all batches are valid, so a first pass without branches checks many rows at once.
    let are_threads =
        (batch.thread.iter()).fold(true, |all, one| all & ((one.0 as usize) < threads));
    let are_amounts = |amounts: &[f32]| {
        amounts
            .iter()
            .fold(true, |all, amount| all & (0.0..=f32::MAX).contains(amount))
    };
    if are_threads & are_amounts(&batch.weight) & are_amounts(&batch.cost_ns) {
        return None;
    }
    first(&batch.thread, |thread| missing("thread", thread.0, threads))
        .or_else(|| first(&batch.weight, |weight| no_amount("weight", *weight)))
        .or_else(|| first(&batch.cost_ns, |cost| no_amount("cost_ns", *cost)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadIndex;

    /// A batch with only the columns that are checked.
    fn batch(thread: u32, weight: Vec<f32>, cost_ns: Vec<f32>) -> AccessBatch {
        AccessBatch {
            thread: vec![ThreadIndex(thread); weight.len()],
            weight,
            cost_ns,
            ..AccessBatch::default()
        }
    }

    #[test]
    fn batches_of_rows_equal_single_rows() {
        let amounts = [
            0.0,
            -0.0,
            1.5,
            f32::MIN_POSITIVE / 2.0,
            f32::MAX,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            -1e-30,
        ];
        for &amount in &amounts {
            let is_wrong = no_amount("amount", amount).is_some();
            let (one, right) = (vec![1.0, amount, 1.0], vec![0.0; 3]);
            for batch in [batch(0, one.clone(), right.clone()), batch(0, right, one)] {
                let found = accesses(&batch, 1).map(|(row, _)| row);
                assert_eq!(found, is_wrong.then_some(1), "{amount}");
            }
        }
        let batch = batch(1, vec![1.0], vec![1.0]);
        assert_eq!(accesses(&batch, 2), None);
        assert!(accesses(&batch, 1).is_some());
    }
}
