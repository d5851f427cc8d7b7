//! Attribution of known accesses to known objects.

use nearpage_attribution::{
    AccessChunks, Attribution, Error, Input, ObjectIndex, ObjectName, Operations, Options, Pattern,
    ReadError, ThreadTotals, attribute,
};
use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, CallSiteId, FirstTouch, Level, Mark, Module, ModuleId,
    ModuleMapping, Object, ObjectId, ObjectKind, Resolution, SampleCounts, Tables, Thread,
    ThreadIndex,
};

const THREADS: u32 = 4;
const MIB: u64 = 1 << 20;
const ARRAY: u64 = 0x7000_0000_0010;
const BUFFERS: u64 = 0x7100_0000_0010;

fn object(kind: ObjectKind, address: u64, size_bytes: u64, site: Option<u32>) -> Object {
    Object {
        kind,
        name: String::new(),
        pid: 1,
        address,
        size_bytes,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: site.map(CallSiteId),
        thread: Some(ThreadIndex(0)),
        order: 0,
        module: None,
        module_offset: 0,
        same_memory_as: None,
    }
}

fn thread(index: u32) -> Thread {
    Thread {
        pid: 1,
        tid: 10 + index,
        name: "worker".to_owned(),
        born_ns: 0,
        died_ns: u64::MAX,
        order: index,
        start: None,
        start_function: String::new(),
        team_index: index,
        team: "openmp".to_owned(),
        cpus: vec![],
        counts: SampleCounts::default(),
    }
}

fn tables() -> Tables {
    let mut objects = vec![
        object(ObjectKind::Heap, ARRAY, 16 * MIB, Some(0)),
        object(ObjectKind::HeapArea, 0x7000_0000_0000, 64 * MIB, None),
        object(ObjectKind::Stack, 0x7fff_0000_0000, MIB, None),
    ];
    // One buffer per thread, all allocated by the main thread at one call site.
    objects.extend((0..THREADS).map(|n| {
        object(
            ObjectKind::Heap,
            BUFFERS + u64::from(n) * MIB,
            MIB / 2,
            Some(1),
        )
    }));
    Tables {
        objects,
        threads: (0..THREADS).map(thread).collect(),
        modules: vec![Module {
            path: "/bin/program".to_owned(),
            build_id: String::new(),
        }],
        mappings: vec![ModuleMapping {
            pid: 1,
            address: 0x40_0000,
            size_bytes: 0x1000,
            born_ns: 0,
            died_ns: u64::MAX,
            module: ModuleId(0),
            bias: 0x3f_0000,
        }],
        // Each thread touches the first page of its buffer; the main thread is the first to do so.
        first_touches: [(0, 5, ARRAY + 8192)]
            .into_iter()
            .chain((0..THREADS).map(|n| (n, 10 + u64::from(n), BUFFERS + u64::from(n) * MIB)))
            .map(|(thread, time_ns, address)| FirstTouch {
                time_ns,
                thread: ThreadIndex(thread),
                cpu: CpuId(thread),
                address,
            })
            .collect(),
        ..Tables::default()
    }
}

fn access(time_ns: u64, thread: u32, address: u64, kind: AccessKind) -> Access {
    Access {
        time_ns,
        thread: ThreadIndex(thread),
        cpu: CpuId(thread),
        address,
        instruction: 0x40_0100 + u64::from(thread) % 2,
        kind,
        level: Level::Unknown,
        resolution: Resolution::Exact,
        skid_bytes: 0,
        weight: 1.0,
        cost_ns: 1000.1,
        page_node: Some(NodeId(0)),
    }
}

/// The main thread initialises the array, then every thread works on its quarter and its buffer.
fn run() -> Vec<AccessBatch> {
    let mut accesses = Vec::new();
    let mut state = 1u64;
    let mut random = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for time in 0..3000 {
        accesses.push(access(time, 0, ARRAY + random(16 * MIB), AccessKind::Store));
    }
    for time in 3000..9000 {
        let worker = (time % u64::from(THREADS)) as u32;
        let quarter = ARRAY + u64::from(worker) * 4 * MIB;
        accesses.push(access(
            time,
            worker,
            quarter + random(4 * MIB),
            AccessKind::Load,
        ));
        let buffer = BUFFERS + u64::from(worker) * MIB;
        accesses.push(access(
            time,
            worker,
            buffer + random(MIB / 2),
            AccessKind::Store,
        ));
    }
    accesses.push(access(9000, 1, 0x7000_0300_0000, AccessKind::Load));
    accesses.push(access(9001, 1, 0x1234, AccessKind::Load));
    accesses
        .chunks(700)
        .map(|chunk| {
            let mut batch = AccessBatch::default();
            // Accesses of different CPUs may come out of order.
            chunk.iter().rev().for_each(|access| batch.push(*access));
            batch
        })
        .collect()
}

fn attributed(
    batches: &[AccessBatch],
    marks: &[Mark],
    options: &Options,
) -> Result<Attribution, Error> {
    attributed_to(&tables(), batches, marks, options)
}

fn attributed_to(
    tables: &Tables,
    batches: &[AccessBatch],
    marks: &[Mark],
    options: &Options,
) -> Result<Attribution, Error> {
    let input = Input {
        accesses: batches,
        tables,
        marks,
        counts: SampleCounts::default(),
        machine: None,
    };
    attribute(&input, options)
}

#[test]
fn objects_patterns_and_totals() {
    let found = attributed(&run(), &[], &Options::default()).unwrap();
    assert_eq!(found.totals.accesses, 15_002.0);
    assert_eq!(
        (
            found.totals.heap,
            found.totals.heap_unresolved,
            found.totals.unknown
        ),
        (15_000.0, 1.0, 1.0)
    );
    let array = found
        .objects
        .iter()
        .find(|group| group.name == ObjectName::CallSite(CallSiteId(0)))
        .unwrap();
    assert_eq!(
        array.pattern,
        Pattern::Block {
            team: 0,
            block_bytes: 4 * MIB
        }
    );
    assert_eq!((array.loads.count, array.stores.count), (6000.0, 3000.0));
    let sum = |cells: &[nearpage_attribution::Cell]| {
        cells
            .iter()
            .map(|cell| cell.loads + cell.stores)
            .sum::<f32>()
    };
    // The main thread's first accesses to its quarter precede those of other threads, so they count as initialisation.
    assert_eq!(
        sum(&array.affinity.cells) + sum(&array.affinity.initialisation),
        9000.0
    );
    assert!((3000.0..3010.0).contains(&sum(&array.affinity.initialisation)));
    assert_eq!(array.hot.len(), 2);
    assert_eq!(
        (array.hot[0].module, array.hot[0].offset),
        (Some(ModuleId(0)), 0x1_0100)
    );
    assert_eq!(array.first_touches, [(2, ThreadIndex(0))]);
    assert_eq!(array.touchers, [(ThreadIndex(0), 1)]);

    let buffers = found
        .objects
        .iter()
        .find(|group| group.name == ObjectName::CallSite(CallSiteId(1)))
        .unwrap();
    assert_eq!(
        (buffers.instances, &buffers.pattern),
        (4, &Pattern::PrivateEach)
    );
    // Laid over each other, all buffers would seem to be touched by the main thread.
    assert_eq!(buffers.first_touches, [(0, ThreadIndex(0))]);
    assert_eq!(
        buffers.touchers,
        (0..THREADS)
            .map(|thread| (ThreadIndex(thread), 1))
            .collect::<Vec<_>>()
    );
    let pairs = || buffers.uses.windows(2);
    assert!(
        pairs().all(|pair| pair[0].object != pair[1].object && pair[0].thread != pair[1].thread)
    );
    // The first thread's accesses before the second thread's first one are initialisation.
    let after: Vec<f64> = buffers.uses.iter().map(|one| one.accesses).collect();
    assert_eq!(after[1..], [1500.0; 3]);
    assert!(after[0] > 0.0 && after[0] <= 1500.0);
    assert_eq!(found.threads[1].cpus, [(CpuId(1), 3002.0)]);
}

/// Threads that are created anew for every step count as one member if they have the same place in the team.
#[test]
fn threads_created_anew_for_every_step_are_the_same_team() {
    const STEPS: u32 = 40;
    let same = attributed(&run(), &[], &Options::default()).unwrap();
    let mut tables = tables();
    for step in 1..STEPS {
        tables.threads.extend((0..THREADS).map(|number| Thread {
            tid: 100 * step + number,
            order: THREADS * step + number,
            ..thread(number)
        }));
    }
    let mut batches = run();
    for batch in &mut batches {
        let times = batch.time_ns.iter();
        for (thread, time_ns) in batch.thread.iter_mut().zip(times) {
            thread.0 += THREADS * (time_ns / 50 % u64::from(STEPS)) as u32;
        }
    }
    let anew = attributed_to(&tables, &batches, &[], &Options::default()).unwrap();
    assert_eq!(anew.objects, same.objects);
    assert_eq!(anew.teams, same.teams);
    assert_eq!(anew.threads[..THREADS as usize], same.threads);
    let of_nobody = |totals: &ThreadTotals| totals.cpus.is_empty();
    assert!(anew.threads[THREADS as usize..].iter().all(of_nobody));
}

/// Pages of code are attributed one by one, for copies of pages.
#[test]
fn pages_of_code_are_told_apart_and_are_nobodys_share() {
    const CODE: u64 = 0x5000_0000;
    let mut tables = tables();
    tables
        .objects
        .push(object(ObjectKind::Code, CODE, 8 * 4096, None));
    let mut batch = AccessBatch::default();
    for time in 0..800 {
        let worker = (time % 4) as u32;
        // Each thread happens to run pages of its own.
        let page = u64::from(worker) * 2 + time / 4 % 2;
        batch.push(access(time, worker, CODE + page * 4096, AccessKind::Fetch));
    }
    let batches = [batch];
    let found = attributed_to(&tables, &batches, &[], &Options::default()).unwrap();
    let code = &found.objects[0];
    assert_eq!(code.kind, ObjectKind::Code);
    assert_eq!(code.affinity.pages, 8);
    let cells = code
        .affinity
        .cells
        .iter()
        .chain(&code.affinity.initialisation);
    let mut pages: Vec<(u32, u32)> = cells.map(|cell| (cell.page, cell.thread.0)).collect();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(
        pages,
        (0..8).map(|page| (page, page / 2)).collect::<Vec<_>>()
    );
    assert!(
        !matches!(code.pattern, Pattern::Block { .. }),
        "{:?}",
        code.pattern
    );
}

/// `.bss` begins at its first symbol. Both were once one row with the section's size, and accesses between symbols
/// counted for that symbol.
#[test]
fn memory_of_several_processes_is_one_object_with_the_threads_of_all() {
    let mut tables = tables();
    let own = tables.objects.len() as u32;
    let segment = |pid: u32, address: u64, same_memory_as: Option<u32>| Object {
        name: "/dev/shm/segment".to_owned(),
        pid,
        thread: None,
        same_memory_as: same_memory_as.map(ObjectId),
        ..object(ObjectKind::Mapping, address, 4 * MIB, None)
    };
    // Each process maps it elsewhere, and uses a share of its own.
    let at = |pid: u64| 0x6000_0000_0000 + pid * 0x1000_0000;
    tables.objects.push(segment(4, at(4), Some(own + 1)));
    tables.objects.push(segment(1, at(1), None));
    tables.objects.push(segment(2, at(2), Some(own + 1)));
    tables.objects.push(segment(3, at(3), Some(own + 1)));
    for pid in 1..=4 {
        tables.threads[pid as usize - 1].pid = pid;
    }
    let mut batch = AccessBatch::default();
    for step in 0..64 {
        for thread in 0..4 {
            let begin = at(u64::from(thread) + 1) + u64::from(thread) * MIB;
            let address = begin + step * (MIB / 64);
            batch.push(access(step, thread, address, AccessKind::Load));
        }
    }
    let batches = [batch];
    let attributed = |tables: &Tables| {
        let options = Options::default();
        let mut found = attributed_to(tables, &batches, &[], &options).unwrap();
        found
            .objects
            .retain(|group| group.kind == ObjectKind::Mapping);
        found
    };
    let found = attributed(&tables);
    let [group] = &found.objects[..] else {
        panic!("{:?}", found.objects)
    };
    assert_eq!((group.instances, group.is_shared_memory), (1, true));
    assert_eq!(group.sharing_processes(&tables.threads), Some(4));
    assert_eq!(group.listed_instances, [ObjectId(own + 1)]);
    let threads: Vec<_> = group.threads.iter().map(|one| one.0.0).collect();
    assert_eq!(threads, [0, 1, 2, 3]);
    let owners = |page: u32| {
        let cells = group.affinity.cells.iter();
        let of_page = cells.filter(move |cell| cell.page == page);
        of_page.map(|cell| cell.thread.0).collect::<Vec<_>>()
    };
    let share = (MIB / 4096) as u32;
    for thread in 0..4 {
        assert_eq!(owners(thread * share + share / 2), [thread]);
    }
    // Each process has its own accesses, and all to the segment.
    let second = found.of_process(2, &tables.threads).unwrap();
    assert_eq!(second.objects, found.objects);
    // Without memory of several processes, nothing is left out.
    for object in &mut tables.objects {
        object.same_memory_as = None;
    }
    let apart = attributed(&tables);
    assert_eq!(apart.objects[0].instances, 4);
    assert_eq!(apart.of_process(2, &tables.threads), None);
}

#[test]
fn a_section_is_not_the_symbol_that_it_begins_with() {
    const BSS: u64 = 0x6000_0000;
    let mut tables = tables();
    let parts = [("libz.so .bss", 0x8000), ("window", 0x1000)];
    let first = tables.objects.len() as u32;
    tables
        .objects
        .extend(parts.map(|(name, size_bytes)| Object {
            name: name.to_owned(),
            module: Some(ModuleId(0)),
            module_offset: 0x4000,
            same_memory_as: None,
            ..object(ObjectKind::Static, BSS, size_bytes, None)
        }));
    let mut batch = AccessBatch::default();
    batch.push(access(1, 0, BSS + 0x10, AccessKind::Load));
    batch.push(access(2, 0, BSS + 0x20, AccessKind::Load));
    batch.push(access(3, 0, BSS + 0x7000, AccessKind::Load));
    let found = attributed_to(&tables, &[batch], &[], &Options::default()).unwrap();
    let rows: Vec<(u64, u64, f64)> = found
        .objects
        .iter()
        .map(|group| (group.size_bytes, group.instances, group.loads.count))
        .collect();
    assert_eq!(rows, [(0x1000, 1, 2.0), (0x8000, 1, 1.0)]);

    let index = ObjectIndex::new(&tables.objects);
    let groups = index.groups();
    let mut search = index.search();
    for (address, object) in [(BSS + 0x10, first + 1), (BSS + 0x7000, first)] {
        let found = search.find(1, 5, address).unwrap();
        assert_eq!(found.object, ObjectId(object));
        assert_eq!(groups[found.group].listed_instances, [ObjectId(object)]);
    }
}

#[test]
fn any_number_of_workers_gives_the_same() {
    let batches = run();
    let one = attributed(
        &batches,
        &[],
        &Options {
            workers: 1,
            ..Options::default()
        },
    )
    .unwrap();
    for workers in [2, 3, 7, 100] {
        assert_eq!(
            attributed(
                &batches,
                &[],
                &Options {
                    workers,
                    ..Options::default()
                }
            )
            .unwrap(),
            one
        );
    }
}

#[test]
fn marks_and_operations_select() {
    let mark = |time_ns, begin| Mark {
        time_ns,
        pid: 1,
        begin,
    };
    let marks = [mark(3000, true), mark(4000, false)];
    let found = attributed(&run(), &marks, &Options::default()).unwrap();
    assert_eq!(found.totals.accesses, 2000.0);
    let whole = Options {
        stable_phase_only: false,
        operations: Operations::Stores,
        ..Options::default()
    };
    let found = attributed(&run(), &marks, &whole).unwrap();
    assert_eq!(found.totals.accesses, 9000.0);
    assert_eq!(found.objects[0].loads.count, 0.0);
}

#[test]
fn damage_is_an_error_that_names_the_chunk() {
    let mut batches = run();
    batches[3].thread[5] = ThreadIndex(77);
    let message = attributed(&batches, &[], &Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("chunk 3") && message.contains("thread 77 where there are 4"),
        "{message}"
    );
    batches[3].cpu.pop();
    let message = attributed(&batches, &[], &Options::default())
        .unwrap_err()
        .to_string();
    assert!(message.contains("columns of 700"), "{message}");
    let odd = Options {
        page_bytes: 5000,
        ..Options::default()
    };
    assert!(matches!(
        attributed(&[], &[], &odd),
        Err(Error::PageSize { page_bytes: 5000 })
    ));
}

#[test]
fn no_number_in_an_access_is_too_wild() {
    let mut batch = AccessBatch::default();
    for (weight, cost_ns) in [
        (f32::NAN, f32::INFINITY),
        (-1.0, f32::NAN),
        (f32::INFINITY, f32::MAX),
    ] {
        batch.push(Access {
            weight,
            cost_ns,
            address: u64::MAX,
            ..access(u64::MAX, 0, 0, AccessKind::Fetch)
        });
    }
    let found = attributed(&[batch], &[], &Options::default()).unwrap();
    assert!(found.totals.accesses.is_finite());
}

#[test]
fn a_chunk_that_cannot_be_read() {
    struct Unreadable;
    impl AccessChunks for Unreadable {
        fn chunks(&self) -> usize {
            2
        }
        fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
            |_, _| Err("checksum".into())
        }
    }
    let tables = tables();
    let counts = SampleCounts::default();
    let input = Input {
        accesses: &Unreadable,
        tables: &tables,
        marks: &[],
        counts,
        machine: None,
    };
    let message = attribute(&input, &Options::default())
        .unwrap_err()
        .to_string();
    assert_eq!(message, "accesses, chunk 0 of 2: checksum");
}
