//! Assembly from the kernel's events: address spaces, mappings, programs without the preload library.

use super::*;

#[test]
fn fork_copies_the_address_space_and_exec_clears_it() {
    let mut events = program();
    events.extend([
        fork(50, 200, 200, 1, 100),
        // The child's child runs another program.
        fork(60, 300, 300, 2, 200),
        name(70, 300, 2, "other", true),
        map(71, 300, 0x60_0000, 0x1000, CODE, "/nonexistent/other"),
    ]);
    let blocks = vec![
        Block::of(100)
            .record(Kind::CallSite, 1, &[0x10_0100])
            .allocate(20, 0xa000, 4096, 1)
            .allocate(21, 0xb000, 4096, 1)
            .free(40, 0xb000)
            .free(90, 0xa000),
    ];
    // The child logs under its own name and uses a call site that its parent defined.
    let child = vec![Block::of(200).allocate(55, 0xc000, 64, 1).free(80, 0xa000)];
    let accesses = [access(56, 1, 0xa010), access(75, 2, 0x60_0000)];
    let recording = open(&events, &accesses, &[(100, 4, blocks), (200, 51, child)]);
    let lives: Vec<_> = of_kind(&recording, ObjectKind::Heap)
        .iter()
        .map(|object| (object.pid, object.address, object.born_ns, object.died_ns))
        .collect();
    let never = u64::MAX;
    assert_eq!(
        lives,
        [
            (100, 0xa000, 20, 90),
            (100, 0xb000, 21, 40),
            (200, 0xa000, 50, 80),
            (200, 0xc000, 55, never),
            // These copies end when the process runs the other program.
            (300, 0xa000, 60, 70),
            (300, 0xc000, 60, 70),
        ]
    );
    let sites: Vec<_> = of_kind(&recording, ObjectKind::Heap)
        .iter()
        .map(|object| object.call_site)
        .collect();
    assert!(
        sites.iter().all(|site| *site == sites[0] && site.is_some()),
        "{sites:?}"
    );

    let program_at = |pid, time_ns| {
        recording
            .resolve(pid, time_ns, 0x10_0010)
            .map(|(module, offset)| (module.0, offset))
    };
    assert_eq!(program_at(200, 55), Some((0, 0x10)), "copied by fork");
    assert_eq!(program_at(300, 65), Some((0, 0x10)), "copied again");
    assert_eq!(program_at(300, 75), None, "cleared by exec");
    let (module, _) = recording.resolve(300, 75, 0x60_0000).unwrap();
    assert_eq!(
        recording.tables.modules[module.0 as usize].path,
        "/nonexistent/other"
    );
}

#[test]
fn an_image_ends_with_exec() {
    let mut events = program();
    events.extend([name(50, 100, 0, "second", true)]);
    let first = vec![Block::of(100).allocate(20, 0xa000, 64, 0)];
    let second = vec![Block::of(100).allocate(60, 0xa000, 64, 0)];
    let recording = open(&events, &[], &[(100, 4, first), (100, 51, second)]);
    let lives: Vec<_> = of_kind(&recording, ObjectKind::Heap)
        .iter()
        .map(|object| (object.born_ns, object.died_ns))
        .collect();
    assert_eq!(lives, [(20, 50), (60, u64::MAX)]);
}

#[test]
fn mappings_of_the_programs_own_are_cut_by_what_is_unmapped() {
    let mut events = program();
    events.push(map(19, 100, 0x70_0000, 0x3000, DATA, "/data/matrix.bin"));
    let file = 5;
    let blocks = vec![
        Block::of(100)
            .record(Kind::Map, 0, &[20, 0x70_0000, 0x3000, 3, file])
            .record(Kind::Unmap, 0, &[30, 0x70_1000, 0x1000])
            .record(Kind::Map, 0, &[40, 0x90_0000, 0x1000, 3, u64::MAX]),
    ];
    let recording = open(&events, &[], &[(100, 4, blocks)]);
    let pieces: Vec<_> = of_kind(&recording, ObjectKind::Mapping)
        .iter()
        .map(|object| {
            (
                object.name.as_str(),
                object.address,
                object.size_bytes,
                object.born_ns,
                object.died_ns,
                object.order,
            )
        })
        .collect();
    let never = u64::MAX;
    assert_eq!(
        pieces,
        [
            ("matrix.bin", 0x70_0000, 0x3000, 20, 30, 0),
            ("matrix.bin", 0x70_0000, 0x1000, 30, never, 0),
            ("matrix.bin", 0x70_2000, 0x1000, 30, never, 0),
            ("", 0x90_0000, 0x1000, 40, never, 1),
        ]
    );
}

#[test]
fn the_allocators_memory_is_an_area_and_generated_code_is_code() {
    let mut events = program();
    events.extend([
        map(10, 100, 0x80_0000, 0x2_1000, DATA, "[heap]"),
        map(11, 100, 0x80_0000, 0x4_2000, DATA, "[heap]"),
        map(12, 100, 0x7000_0000, 0x400_0000, 0, "//anon"),
        map(13, 100, 0x7000_0000, 0x2_1000, DATA, "//anon"),
        // This region ends where the heap begins.
        map(13, 100, 0x7f_f000, 0x1000, DATA, "//anon"),
        map(14, 100, 0x9000_0000, 0x1000, CODE | 2, "//anon"),
    ]);
    let recording = open(
        &events,
        &[],
        &[(100, 4, vec![Block::of(100).thread(5, 0, 0)])],
    );
    let areas: Vec<_> = of_kind(&recording, ObjectKind::HeapArea)
        .iter()
        .map(|object| (object.name.as_str(), object.address, object.size_bytes))
        .collect();
    assert_eq!(
        areas,
        [
            ("[heap]", 0x80_0000, 0x4_2000),
            ("allocator", 0x7f_f000, 0x1000),
            ("allocator", 0x7000_0000, 0x400_0000),
        ]
    );
    assert!(
        of_kind(&recording, ObjectKind::Code)
            .iter()
            .any(|object| object.name == "[jit]")
    );
}

#[test]
fn a_static_program_is_known_from_events_alone() {
    let mut events = program();
    events.extend([
        map(4, 100, 0x7fff_0000_0000, 0x1000, CODE, "[vdso]"),
        map(5, 100, 0x6000_0000, 0x100_0000, DATA, "//anon"),
        map(6, 100, 0x6800_0000, 0x80_1000, 0, "//anon"),
        map(7, 100, 0x6800_1000, 0x80_0000, DATA, "//anon"),
        fork(8, 100, 101, 1, 100),
    ]);
    let recording = open(&events, &[], &[]);
    let stacks: Vec<_> = of_kind(&recording, ObjectKind::Stack);
    assert_eq!(
        (stacks[0].address, stacks[0].thread.unwrap().0),
        (0x6800_1000, 1)
    );
    assert_eq!(
        stacks[1].address + stacks[1].size_bytes,
        0x7fff_0000_0000,
        "the main stack lies below the vDSO"
    );
    let mappings: Vec<_> = of_kind(&recording, ObjectKind::Mapping)
        .iter()
        .map(|object| object.address)
        .collect();
    assert!(mappings.contains(&0x6000_0000));
    assert_eq!(
        recording.tables.threads[1].team, "openmp",
        "the program has an OpenMP runtime"
    );
}

#[test]
fn processes_from_before_have_the_kernels_objects() {
    const MIB: u64 = 1 << 20;
    let events = [
        fork(0, 100, 100, 0, 100),
        name(0, 100, 0, "server", false),
        map(0, 100, 0x1000, 0x2000, DATA, "[heap]"),
        map(0, 100, 0x10_0000, 2 * MIB, DATA, "//anon"),
        map(0, 100, 0x30_0000, 0x1000, DATA, "//anon"),
        map(0, 100, 0x40_0000, 0x1000, DATA, "[anon:buffer pool]"),
        // Memory that an allocator reserved is no object.
        map(0, 100, 0x50_0000, 64 * MIB, 0, "//anon"),
        // Without logged allocations, there is no note about an operator new.
        map(4, 100, 0x6000_0000, 0x1000, CODE, "/lib/libstdc++.so.6"),
        map(4, 100, 0x6100_0000, 0x1000, CODE, "/lib/libjemalloc.so.2"),
        // The heap grows, and half of the large mapping is found gone.
        map(20, 100, 0x3000, 0x1000, DATA, "[heap]"),
        Event::Unmap {
            time_ns: 30,
            pid: 100,
            address: 0x28_0000,
            length: MIB / 2,
        },
    ];
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let metadata = Metadata {
        attached: Some(Attached {
            target: "process 100".into(),
            coverage: "1 thread".into(),
        }),
        ..making::metadata()
    };
    let mut log = LogWriter::create(&folder, metadata, &making::machine()).unwrap();
    log.events(&events).unwrap();
    drop(log);
    let recording = Recording::open(&folder).unwrap();
    let mut found: Vec<_> = of_kind(&recording, ObjectKind::Mapping)
        .iter()
        .map(|object| {
            let life = (object.born_ns, object.died_ns);
            (object.address, object.size_bytes, life, object.name.clone())
        })
        .collect();
    found.sort();
    let expected = [
        (0x1000, 0x3000, (0, u64::MAX), "[heap]".to_owned()),
        (
            0x10_0000,
            MIB * 3 / 2,
            (0, u64::MAX),
            "anonymous memory at 0x100000".to_owned(),
        ),
        (0x28_0000, MIB / 2, (0, 30), "anonymous memory".to_owned()),
        (
            0x30_0000,
            0x1000,
            (0, u64::MAX),
            "anonymous memory".to_owned(),
        ),
        (
            0x40_0000,
            0x1000,
            (0, u64::MAX),
            "[anon:buffer pool]".to_owned(),
        ),
    ];
    found.retain(|(_, _, _, name)| !name.starts_with("/lib/"));
    assert_eq!(found, expected);
    assert!(of_kind(&recording, ObjectKind::HeapArea).is_empty());
    let notes = &recording.metadata.notes;
    assert!(
        !notes.iter().any(|note| note.contains("operator new")),
        "{notes:?}"
    );
}

#[test]
fn memory_that_processes_share_is_one_object() {
    let of_file = |event: Event, inode: u64, offset: u64| match event {
        Event::Map {
            time_ns,
            pid,
            address,
            length,
            protection,
            path,
            build_id,
            ..
        } => Event::Map {
            time_ns,
            pid,
            address,
            length,
            file_offset: offset,
            protection,
            shared: Some(FileId {
                device: (0, 1),
                inode,
            }),
            path,
            build_id,
        },
        other => other,
    };
    let zero = "/dev/zero (deleted)";
    let mut events = program();
    events.extend([
        // Before the fork, so that the child has it at the same address: a shared segment and private memory.
        of_file(map(10, 100, 0x70_0000, 0x4000, DATA, zero), 5, 0),
        map(10, 100, 0x90_0000, 0x4000, DATA, "/data/private"),
        // Another segment of the same name.
        of_file(map(10, 100, 0x78_0000, 0x4000, DATA, zero), 6, 0),
        fork(20, 200, 200, 1, 100),
        // A process of its own maps the first segment at another address, a part of it, and more than there is.
        fork(30, 300, 300, 2, 1),
        of_file(map(40, 300, 0x50_0000, 0x4000, DATA, zero), 5, 0),
        of_file(map(40, 300, 0x60_0000, 0x2000, DATA, zero), 5, 0x2000),
        of_file(map(40, 300, 0x80_0000, 0x8000, DATA, zero), 6, 0),
    ]);
    let recording = open(&events, &[], &[]);
    let objects = &recording.tables.objects;
    let place = |object: &Object| (object.pid, object.address);
    let mut joined: Vec<_> = objects
        .iter()
        .filter_map(|object| {
            let same = &objects[object.same_memory_as?.0 as usize];
            Some((place(object), place(same)))
        })
        .collect();
    joined.sort_unstable();
    assert_eq!(
        joined,
        [
            // The largest stands for the others.
            ((100, 0x78_0000), (300, 0x80_0000)),
            ((200, 0x70_0000), (100, 0x70_0000)),
            ((200, 0x78_0000), (300, 0x80_0000)),
            ((300, 0x50_0000), (100, 0x70_0000)),
        ]
    );
}
