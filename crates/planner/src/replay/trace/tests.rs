//! Input of the simulator from a trace.

use super::*;
use crate::making::{
    HEAP, PAGE, PID, Steps, Traced, heap, loads, object, process, symbol, touched,
};
use nearpage_recording::{ModuleId, Object};
use nearpage_wire::trace::Record;

fn replayed(traced: &Traced) -> Replayed {
    let trace = traced.recording.trace().expect("a trace");
    Replayed::new(&traced.recording, trace)
}

#[test]
fn threads_and_pages_have_the_number_of_their_process() {
    let both = [
        process(20, 1_000, &touched(HEAP, 2), &[loads(HEAP, 2, 1)]),
        process(
            30,
            5_000,
            &touched(HEAP, 3),
            &[loads(HEAP, 3, 1), loads(HEAP, 1, 1)],
        ),
    ];
    let traced = Traced::of_files(&both);
    let replayed = replayed(&traced);
    let threads = replayed.trace.threads().len();
    let of_threads: Vec<u16> = (0..threads).map(|at| replayed.application(at)).collect();
    assert_eq!(of_threads, [0, 1, 1]);
    let pages = replayed.pages() as u32;
    let of_pages: Vec<u16> = (0..pages).map(|at| replayed.page_application(at)).collect();
    assert_eq!(of_pages, [0, 0, 1, 1, 1]);
    let numbers: Vec<u64> = (0..pages).map(|at| replayed.page_number(at)).collect();
    let first = HEAP / PAGE;
    assert_eq!(numbers, [first, first + 1, first, first + 1, first + 2]);
}

/// Extents of a process's first pages, in pages from the first.
fn extents(pages: u64, objects: Vec<Object>) -> Vec<Option<(u64, u64)>> {
    let traced = Traced::of(&touched(HEAP, pages), &[loads(HEAP, pages, 1)]).with(objects);
    let replayed = replayed(&traced);
    let extents = (0..pages as u32).map(|page| replayed.extent(page));
    extents
        .map(|found| found.map(|(first, pages)| (first - HEAP / PAGE, pages)))
        .collect()
}

#[test]
fn page_belongs_to_the_innermost_large_object() {
    let at = |page: u64| HEAP + page * PAGE;
    let mapping = object(ObjectKind::Mapping, at(0), 8 * PAGE);
    let found = extents(
        9,
        vec![heap(at(4) + 100, 1), heap(at(2), 2), mapping.clone()],
    );
    let outer = Some((0, 8));
    assert_eq!(found[..2], [outer, outer]);
    assert_eq!(found[2..4], [Some((2, 2)), Some((2, 2))], "nested");
    assert_eq!(
        found[4..8],
        [outer; 4],
        "after what is nested; small ones do not count"
    );
    assert_eq!(found[8], None);
    // Of two objects that begin together, the larger counts.
    let found = extents(4, vec![heap(at(0), 3), heap(at(0), 2)]);
    assert_eq!(found, [Some((0, 3)), Some((0, 3)), Some((0, 3)), None]);
    // An object that ends inside a page has that page.
    let part = object(ObjectKind::Static, at(1) + 10, PAGE);
    assert_eq!(extents(4, vec![part.clone(), part])[1..], [None; 3]);
    let part = object(ObjectKind::Static, at(1) + 10, PAGE + 1);
    let whole = Some((1, 2));
    assert_eq!(extents(4, vec![part]), [None, whole, whole, None]);
}

#[test]
fn extents_are_of_objects_that_are_distributed_in_the_process() {
    let of = |change: fn(&mut Object)| {
        let mut object = heap(HEAP, 2);
        change(&mut object);
        extents(2, vec![object])
    };
    assert_eq!(of(|_| ()), [Some((0, 2)); 2]);
    assert_eq!(of(|object| object.kind = ObjectKind::Stack), [None; 2]);
    assert_eq!(of(|object| object.kind = ObjectKind::Code), [None; 2]);
    assert_eq!(of(|object| object.kind = ObjectKind::HeapArea), [None; 2]);
    assert_eq!(of(|object| object.pid = PID + 1), [None; 2]);
}

#[test]
fn mapping_is_found_behind_many_nested_objects() {
    let mapping = |pages| object(ObjectKind::Mapping, HEAP, pages * PAGE);
    // Objects of 1.5 pages each, two pages apart, and one page behind all of them.
    let last = |count: u64| {
        let mut objects = vec![mapping(2 * count + 2)];
        objects.extend((0..count).map(|at| {
            let address = HEAP + (2 * at + 1) * PAGE;
            object(ObjectKind::Heap, address, PAGE + 1)
        }));
        let page = HEAP + (2 * count + 1) * PAGE;
        let traced = Traced::of(&touched(page, 1), &[loads(page, 1, 1)]).with(objects);
        replayed(&traced).extent(0).map(|extent| extent.1)
    };
    assert_eq!(last(900), Some(1802));
    assert_eq!(
        last(NESTED_MOST as u64),
        None,
        "looking for it would take long"
    );
}

/// Number of misses of each thread, and whether the steps were kept in memory.
fn misses(replayed: &Replayed) -> (Vec<usize>, bool) {
    let mut are_kept = true;
    let mut counts = Vec::new();
    for (_, steps) in replayed.threads().expect("readable") {
        counts.push(match steps {
            StepSource::Kept(batches) => batches.map(|batch| batch.misses.len()).sum(),
            StepSource::Read(mut steps) => {
                are_kept = false;
                let mut batch = StepBatch::default();
                let mut count = 0;
                while steps.next(&mut batch).expect("readable") {
                    count += batch.misses.len();
                }
                count
            }
        });
    }
    (counts, are_kept)
}

#[test]
fn kept_steps_are_the_steps_on_disk_up_to_their_bound() {
    let traced = Traced::of(&touched(HEAP, 2), &[loads(HEAP, 2, 50), loads(HEAP, 2, 30)]);
    let mut replayed = replayed(&traced);
    let counts = vec![100, 60];
    assert_eq!(misses(&replayed), (counts.clone(), false));
    let bytes: usize = 160 * size_of::<Miss>();
    replayed.keep_steps_within(bytes).expect("readable");
    assert_eq!(
        misses(&replayed),
        (counts.clone(), false),
        "what happens besides takes room, too"
    );
    replayed.keep_steps().expect("readable");
    assert_eq!(misses(&replayed), (counts, true));
}

#[test]
fn marks_are_possible_until_kept_steps_show_none() {
    let may_be_marked = |alone: Steps| {
        let traced = Traced::of(&alone, &[loads(HEAP, 1, 1)]);
        let mut replayed = replayed(&traced);
        let before = replayed.may_be_marked();
        replayed.keep_steps().expect("readable");
        (before, replayed.may_be_marked())
    };
    assert_eq!(may_be_marked(touched(HEAP, 1)), (true, false));
    let mut marked = touched(HEAP, 1);
    marked.push((1, Record::Mark { begin: true }));
    assert_eq!(may_be_marked(marked), (true, true));
}

#[test]
fn data_of_the_program_is_told_from_code_stacks_and_libraries() {
    let at = |page: u64| HEAP + page * PAGE;
    let of_library = |address| {
        let mut found = symbol("environ", address, 1, 0x100);
        found.module = Some(ModuleId(1));
        found
    };
    let objects = vec![
        heap(at(0), 2),
        symbol("grid", at(2), 1, 0x4000),
        of_library(at(3)),
        object(ObjectKind::HeapArea, at(4), PAGE),
        object(ObjectKind::Mapping, at(5), PAGE),
        object(ObjectKind::Stack, at(6), PAGE),
        object(ObjectKind::Code, at(7), PAGE),
        // A small object in a page of its own; the next page has no data.
        object(ObjectKind::Heap, at(8) + 100, 50),
    ];
    let traced = Traced::of(&touched(HEAP, 10), &[loads(HEAP, 10, 1)]).with(objects);
    assert_eq!(traced.recording.tables.modules[0].file_name(), "program");
    let replayed = replayed(&traced);
    let is_data: Vec<bool> = (0..10).map(|page| replayed.is_data(page)).collect();
    let expected = [
        true, true, true, false, true, true, false, false, true, false,
    ];
    assert_eq!(is_data, expected);
}
