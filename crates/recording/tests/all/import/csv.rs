//! Samples in CSV.

use std::fs;

use nearpage_machine::Machine;

use nearpage_recording::import::import;
use nearpage_recording::{Access, AccessKind, Level, ModuleId, Recording};

fn try_import(text: &[u8], machine: Option<Machine>) -> Result<Recording, String> {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (folder.path().join("a.csv"), folder.path().join("r"));
    fs::write(&file, text).unwrap();
    let imported = import(&file, &output, machine);
    let kept = imported.map(|_| Recording::open(&output).unwrap());
    kept.map_err(|error| {
        error
            .to_string()
            .replace(&format!("{}: ", file.display()), "")
    })
}

fn imported(text: &str) -> Recording {
    try_import(text.as_bytes(), None).unwrap()
}

fn accesses(recording: &Recording) -> Vec<Access> {
    let all = recording.accesses().map(Result::unwrap);
    all.flat_map(|batch| {
        (0..batch.len())
            .map(|row| batch.get(row))
            .collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn rows_become_accesses_in_order_of_time() {
    let recording = imported(
        "time_ns,cpu,cpu_node,address,level,latency_ns,weight,kind,tid,pid,thread\r\n\
         20,5,1,0x7000,remote memory,300,2,store,8,7,\"a, \"\"b\"\"\"\r\n\
         \n\
         10,0,0,4096,L1,1.5,,,7,7,main\n",
    );
    let found = accesses(&recording);
    let [first, second] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(
        (first.time_ns, first.address, first.level),
        (10, 4096, Level::L1)
    );
    assert_eq!(
        (first.kind, first.weight, first.cost_ns),
        (AccessKind::Load, 1.0, 1.5)
    );
    assert_eq!(
        (second.kind, second.weight, second.cost_ns),
        (AccessKind::Store, 2.0, 600.0)
    );
    // The machine has two nodes, so remote memory is on the other one.
    assert_eq!(second.page_node.map(|node| node.0), Some(0));
    let threads = &recording.tables.threads;
    let named: Vec<_> = threads
        .iter()
        .map(|thread| (thread.tid, thread.name.as_str()))
        .collect();
    assert_eq!(named, [(7, "main"), (8, "a, \"b\"")]);
    assert_eq!(second.thread.0, 1);
    let nodes = &recording.machine.nodes;
    assert_eq!(
        nodes.iter().map(|node| node.cpus.len()).collect::<Vec<_>>(),
        [1, 1]
    );
    assert_eq!(recording.metadata.begin_ns, 10);
}

#[test]
fn objects_without_an_address_get_one_each() {
    let recording = imported(
        "time_ns,cpu,object,object_offset,size_bytes,object_size_bytes\n\
         1,0,x,0,8,\n2,1,y,8,8,4096\n3,0,x,80000,8,\n",
    );
    let objects = &recording.tables.objects;
    let sizes: Vec<u64> = objects.iter().map(|object| object.size_bytes).collect();
    assert_eq!(sizes, [80_008, 4096]);
    let of = |row: usize| accesses(&recording)[row].address;
    assert_eq!(of(2) - of(0), 80_000);
    assert_eq!(of(1), objects[1].address + 8);
    assert!(objects[1].address > objects[0].address + objects[0].size_bytes);
    let notes = recording.metadata.notes.join("\n");
    assert!(notes.contains("2 objects without an address"), "{notes}");
    // Without thread ids, each CPU counts as a thread.
    assert_eq!(recording.tables.threads.len(), 2);
}

#[test]
fn objects_that_follow_one_another_in_one_place_are_told_apart_by_time() {
    let recording = imported(
        "time_ns,cpu,address,object,object_kind,object_address,object_size_bytes\n\
         1,0,0x1010,main a.c:1 (malloc),heap,0x1000,64\n\
         2,0,0x1010,main a.c:2 (malloc),heap,0x1000,64\n\
         3,0,0x9010,main a.c:2 (malloc),heap,0x9000,64\n",
    );
    let objects = &recording.tables.objects;
    let lives: Vec<_> = objects
        .iter()
        .map(|object| (object.born_ns, object.died_ns))
        .collect();
    assert_eq!(lives, [(1, 2), (2, 3), (0, u64::MAX)]);
    let sites = &recording.tables.call_sites;
    let names: Vec<_> = sites
        .iter()
        .map(|site| site.frames[0].function.as_str())
        .collect();
    assert_eq!(names, ["main a.c:1", "main a.c:2"]);
    assert_eq!(
        (objects[2].call_site, objects[2].order),
        (objects[1].call_site, 1)
    );
}

#[test]
fn an_instruction_has_one_line_and_lines_need_no_instruction() {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (folder.path().join("a.csv"), folder.path().join("r"));
    let text = "time_ns,cpu,address,instruction,function,file,line\n\
                1,0,4096,0x401000,f,a.c,1\n\
                2,0,4096,0x401000,f,a.c,2\n\
                3,0,4096,,f,a.c,2\n\
                4,0,4096,0x401000,,,\n\
                5,0,4096,,,,\n";
    fs::write(&file, text).unwrap();
    import(&file, &output, None).unwrap();
    let recording = Recording::open(&output).unwrap();
    let mut symbols = recording.symbols();
    let lines: Vec<u32> = accesses(&recording)
        .iter()
        .map(|access| symbols.instruction(ModuleId(0), access.instruction)[0].line)
        .collect();
    assert_eq!(lines, [1, 2, 2, 1, 0]);
    assert_eq!(accesses(&recording)[0].instruction, 0x40_1000);
}

#[test]
fn samples_in_the_kernel_and_without_an_address_are_counted() {
    let recording = imported(
        "time_ns,cpu,address,instruction\n1,0,4096,0xffffffffa0000000\n2,0,,0x401000\n3,0,4096,0x401000\n",
    );
    let counts = recording.metadata.counts;
    assert_eq!(
        (
            counts.kernel,
            counts.undecoded,
            counts.samples,
            counts.accesses
        ),
        (1, 1, 2, 1)
    );
}

#[test]
fn a_bad_line_is_named() {
    let head =
        "time_ns,cpu,address,object,object_address,cpu_node,level,weight\n1,0,4096,,,0,L1,1\n";
    for (line, words) in [
        ("x,0,1,,,,,", "time_ns: expected a number, found \"x\""),
        ("-1,0,1,,,,,", "time_ns: expected a number"),
        (",0,1,,,,,", "time_ns: empty"),
        (
            "18446744073709551615,0,1,,,,,",
            "time_ns: expected a smaller number",
        ),
        ("1,4294967296,1,,,,,", "cpu: expected a smaller number"),
        ("1,0,0x,,,,,", "address: expected a number"),
        ("1,0,1,,,70000,,", "cpu_node: expected a smaller number"),
        ("1,0,1,,,1,,", "CPU 0 is on node 0, and cpu_node says 1"),
        ("1,0,1,,,,L4,", "level: expected L1"),
        ("1,0,1,,,,,inf", "weight: expected a number from 0"),
        ("1,0,1,,,,,-1", "weight: expected a number from 0"),
        ("1,0,1", "3 fields where the header has 8"),
        ("1,0,\"1", "3 fields where the header has 8"),
        ("1,0,16,x,32,,,", "the address lies before its object"),
        ("1,0,0x7fffffffffffffff,x,1,,,", "beyond the address space"),
    ] {
        let cause = try_import(format!("{head}{line}\n").as_bytes(), None).unwrap_err();
        assert!(cause.starts_with("line 3: "), "{line}: {cause}");
        assert!(cause.contains(words), "{line}: {cause}");
        assert!(!cause.contains('\n'), "{cause}");
    }
    let of = |body: &[u8]| try_import(&[head.as_bytes(), body].concat(), None).unwrap_err();
    assert_eq!(of(b"1,0,\xff,,,,,\n"), "line 3: not UTF-8");
    let long = [b"1,0,".as_slice(), &[b'1'; 1 << 16]].concat();
    assert_eq!(of(&long), "line 3: longer than 65536 bytes");
    let wide = b",".repeat(256);
    assert_eq!(of(&wide), "line 3: more than 256 columns");
    assert!(
        of(b"1,0,1,x,,,,\n2,0,,x,,,,\n").starts_with("line 4: the object \"x\" has an address")
    );
    let overlaps = of(b"1,0,16,x,,,,\n2,0,80,x,,,,\n3,0,32,y,,,,\n");
    assert_eq!(
        overlaps,
        "line 5: the object \"y\" lies where \"x\" does: tell them apart by object_address"
    );
}

#[test]
fn a_header_alone_or_of_another_form_is_refused() {
    let cause = |text: &str| try_import(text.as_bytes(), None).unwrap_err();
    assert!(cause("time_ns,cpu,address\n").contains("no access"));
    let other = cause("variable,source,line,cpu\nx,a.c,1,0\n");
    assert!(
        other.starts_with("line 1: the column `time_ns` is missing"),
        "{other}"
    );
    assert!(cause("a, b c\n").starts_with("line 1: "));
}

#[test]
fn a_machine_that_is_named_has_to_fit() {
    let machine = |cpus: &str| {
        let text = format!(
            "name = \"m\"\nsource = \"test\"\npage_bytes = 4096\n\
             [[node]]\nid = 0\ncpus = \"{cpus}\"\n[[node]]\nid = 1\ncpus = \"8-9\"\n"
        );
        Some(Machine::from_toml(&text, "m").unwrap())
    };
    let text = b"time_ns,cpu,cpu_node,address\n1,4,0,4096\n";
    assert_eq!(
        try_import(text, machine("0-4"))
            .unwrap()
            .machine
            .nodes
            .len(),
        2
    );
    let cause = try_import(text, machine("0-3")).unwrap_err();
    assert_eq!(
        cause,
        "line 2: CPU 4 is not on the machine that --machine names"
    );
    let elsewhere = b"time_ns,cpu,cpu_node,address\n1,9,0,4096\n";
    let cause = try_import(elsewhere, machine("0-3")).unwrap_err();
    assert_eq!(cause, "line 2: CPU 9 is on node 1, and cpu_node says 0");
}
