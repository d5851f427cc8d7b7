use super::threads::DESTRUCTOR_ROUNDS;
use super::*;
use crate::call_site::{ALLOWANCE_NS, Caller};
use nearpage_wire::allocation_log::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, FLAG_REALLOCATED, Records, SEGMENT_HEADER_BYTES,
};
use std::os::unix::ffi::OsStrExt;

/// Kind, flags, argument and words of every record of a folder's first segments.
fn records(folder: &std::path::Path) -> Vec<(Kind, u16, u32, Vec<u64>)> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for block in bytes[SEGMENT_HEADER_BYTES..].chunks(BLOCK_BYTES) {
            let committed = u32::from_le_bytes(block[8..12].try_into().unwrap()) as usize;
            for record in Records::new(&block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + committed]) {
                let words = (0..record.len()).map(|index| record.word(index)).collect();
                records.push((record.kind, record.flags, record.argument, words));
            }
        }
    }
    records
}

#[test]
fn events_become_records_without_preloading() {
    let folder = tempfile::tempdir().unwrap();
    let tracker: &'static Tracker = Box::leak(Box::new(Tracker::new()));
    let request = Request {
        directory: Some(folder.path().as_os_str().as_bytes()),
        bytes_max: 1 << 20,
        small_sample_bytes: 1,
        unwinding_ns: ALLOWANCE_NS,
    };
    let (thread, token) = Thread::enter().unwrap();
    assert!(tracker.start_as(thread, &request));
    drop(token);
    tracker.phase.store(phase::ACTIVE, Ordering::Relaxed);

    let place = 0usize;
    let at = &raw const place as usize;
    let caller = Caller {
        address: 0x1234,
        at,
    };
    let mut observed = tracker.observe(at).unwrap();
    assert!(
        tracker.observe(at).is_none(),
        "a hook inside a hook passes through"
    );
    assert!(
        tracker.wants(1),
        "everything is wanted when everything is logged"
    );
    assert_eq!(
        tracker.allocate_sample(&mut observed, caller, 8, 16, 0),
        None
    );
    assert!(tracker.is_due(caller, 8));
    tracker.allocated(&mut observed, caller, 0x5000, 8, 0, true);
    let logged = tracker.logged(0x5000);
    tracker.freed(&mut observed, 0x5000, 8, logged, FLAG_REALLOCATED);
    tracker.allocated(&mut observed, caller, 0x6000, 9000, FLAG_REALLOCATED, true);
    tracker.freed(&mut observed, 0x9000, 8, None, 0);
    let mapping = Mapping {
        start: 0x10_0000,
        length: 8192,
        protection: 3,
        map_flags: 0x22,
        fd: -1,
    };
    tracker.mapped(&mut observed, caller, &mapping, 0);
    tracker.unmapped(&mut observed, [0x10_0000, 8192], 7, 0);
    tracker.mark(&mut observed, 1);
    drop(observed);
    // SAFETY: no attributes.
    let new_thread = unsafe { tracker.thread_is_created(0x77, 0, core::ptr::null(), at) }.unwrap();
    assert_eq!(new_thread.order, 1);
    std::thread::spawn(move || {
        tracker.thread_begins(&new_thread);
        for _ in 0..=DESTRUCTOR_ROUNDS {
            tracker.thread_ends();
        }
        assert!(
            tracker.observe(usize::MAX).is_none(),
            "an ended thread is not observed"
        );
    })
    .join()
    .unwrap();
    tracker.finish(at);
    tracker.finish(at);
    check_records(&records(folder.path()));
}

/// Checks the log that [`events_become_records_without_preloading`] writes.
fn check_records(records: &[(Kind, u16, u32, Vec<u64>)]) {
    let of = |kind| {
        records
            .iter()
            .filter(move |record| record.0 == kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Kind::Thread).len(), 2);
    assert_eq!(of(Kind::Thread)[1].3[1..3], [0x77, 1]);
    assert_eq!(of(Kind::ThreadExit).len(), 1);
    assert_eq!(of(Kind::CallSite).len(), 1, "one site, defined once");
    assert_eq!(of(Kind::CallSite)[0].3, [0x1234]);
    let allocations = of(Kind::Allocate);
    assert_eq!(allocations[0].3[1..], [0x5000, 8, 1000]);
    assert_eq!(
        (allocations[1].1, &allocations[1].3[1..]),
        (FLAG_REALLOCATED, &[0x6000, 9000, 1000][..])
    );
    assert_eq!(of(Kind::Free).len(), 1);
    assert_eq!(of(Kind::Free)[0].3[1..], [0x5000]);
    assert_eq!(
        of(Kind::Map)[0].3[1..],
        [0x10_0000, 8192, 3 | 0x22 << 32, u64::MAX]
    );
    assert_eq!(of(Kind::Unmap)[0].3, [7, 0x10_0000, 8192]);
    assert_eq!(of(Kind::Mark)[0].2, 1);
    assert_eq!(of(Kind::Counters).len(), 1, "the end is told once");
    assert_eq!(of(Kind::Counters)[0].3[1..3], [2, 1]);
}
