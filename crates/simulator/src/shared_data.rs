//! Pages of data that several threads share: ARS distributes, monitors and moves only these (§3, §4).

use nearpage_recording::trace::{Served, StepBatch, Steps};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::trace::Trace;

/// Threads that refer to an object.
#[derive(Clone, Copy, PartialEq)]
enum ObjectUsers {
    Nobody,
    One(usize),
    Several,
}

/// By page: is the page part of a data object that several threads refer to? Every page of a shared array counts, even
/// if each page has one user, because the policy has to find that thread. A page of small objects counts by itself.
pub(crate) fn shared_data(trace: &dyn Trace) -> Result<Vec<bool>, Error> {
    let mut numbers = FxHashMap::default();
    let object = |page: u32| {
        let extent = trace.extent(page);
        let first = extent.map_or_else(|| trace.page_number(page), |extent| extent.0);
        let next = numbers.len();
        let key = (trace.page_application(page), extent.is_some(), first);
        *numbers.entry(key).or_insert(next)
    };
    let objects: Vec<usize> = (0..trace.pages() as u32).map(object).collect();
    let mut users = vec![ObjectUsers::Nobody; numbers.len()];
    let mut batch = StepBatch::default();
    for (thread, (_, mut steps)) in trace.threads()?.into_iter().enumerate() {
        while steps.next(&mut batch)? {
            let misses = batch.misses.iter();
            for miss in misses.filter(|miss| miss.served != Served::WriteBack) {
                let page = miss.page.0;
                let Some(&object) = objects.get(page as usize) else {
                    let pages = trace.pages();
                    return Err(Error::NoSuchPage { page, pages });
                };
                users[object] = match users[object] {
                    ObjectUsers::Nobody => ObjectUsers::One(thread),
                    ObjectUsers::One(other) if other == thread => ObjectUsers::One(thread),
                    ObjectUsers::One(_) | ObjectUsers::Several => ObjectUsers::Several,
                };
            }
        }
    }
    let is_shared = |page: u32| users[objects[page as usize]] == ObjectUsers::Several;
    let pages = 0..trace.pages() as u32;
    Ok(pages
        .map(|page| trace.is_data(page) && is_shared(page))
        .collect())
}
