//! Accesses to each page of an object.

use std::collections::BTreeMap;

use nearpage_attribution::ObjectGroup;
use nearpage_recording::{Tables, ThreadIndex};
use schemars::JsonSchema;
use serde::Serialize;

use super::ThreadUse;

/// A page of an object.
#[derive(Serialize, JsonSchema)]
pub(super) struct PageForm {
    /// Offset of the page in the object's pages.
    at_bytes: u64,
    /// Size of the page: the machine's page size, or a multiple in large objects.
    page_bytes: u64,
    /// Accesses by kernel thread id: the row of the matrix of pages and threads.
    threads: BTreeMap<u32, ThreadUse>,
}

/// Adds loads, stores and cost to a thread's sums.
pub(super) fn add_use(
    threads: &mut BTreeMap<u32, ThreadUse>,
    tables: &Tables,
    thread: ThreadIndex,
    [loads, stores, cost_ns]: [f64; 3],
) {
    if let Some(thread) = tables.threads.get(thread.0 as usize) {
        let sum = threads.entry(thread.tid).or_default();
        sum.loads = sum.loads.saturating_add(loads.round() as u64);
        sum.stores = sum.stores.saturating_add(stores.round() as u64);
        sum.cost_ns += cost_ns;
    }
}

/// Accesses to each page, including initialisation.
pub(super) fn pages(tables: &Tables, group: &ObjectGroup) -> Vec<PageForm> {
    let affinity = &group.affinity;
    let mut by_page: BTreeMap<u32, BTreeMap<u32, ThreadUse>> = BTreeMap::new();
    for cell in affinity.cells.iter().chain(&affinity.initialisation) {
        let threads = by_page.entry(cell.page).or_default();
        let counts = [cell.loads, cell.stores, cell.cost_ns].map(f64::from);
        add_use(threads, tables, cell.thread, counts);
    }
    let page_bytes = affinity.page_bytes;
    let form = |(page, threads)| PageForm {
        at_bytes: u64::from(page).saturating_mul(page_bytes),
        page_bytes,
        threads,
    };
    by_page.into_iter().map(form).collect()
}
