//! Static symbols and source lines of real binaries, built here by the C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::making::{self, access, fork, name, record};
use nearpage_recording::elf::ElfFile;
use nearpage_recording::{
    Attached, Event, LogWriter, Metadata, Module, Object, ObjectKind, Recording, Symbols,
};

const SOURCE: &str = "\
#include <stdlib.h>
double table[1000] = {1};
char zeroes[4096];
const int constants[64] = {1};
__thread int own[16];
__attribute__((always_inline)) static inline char *inner(int n) {
    return malloc(n);
}
__attribute__((noinline)) char *outer(int n) {
    return inner(n) + zeroes[n & 15] + own[n & 15];
}
int main(int argc, char **argv) { return outer(argc * 8)[0] + (int)table[argc] + constants[argc]; }
";

fn build(folder: &Path, output: &str, options: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("source.c"), folder.join(output));
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("gcc")
        .args(options)
        .args(["-g", "-O1", "-Wl,--build-id", "-o"])
        .arg(&program)
        .arg(&source)
        .status();
    assert!(built.unwrap().success(), "gcc");
    program
}

/// Events of a process that maps `program` at `base`.
fn events_of(program: &Path, base: u64) -> [Event; 3] {
    let file = ElfFile::open(program).unwrap();
    let text = file
        .segments()
        .into_iter()
        .find(|segment| segment.executable)
        .unwrap();
    let page = !0xfff;
    [
        fork(1, 100, 100, 0, 1),
        name(2, 100, 0, "program", true),
        Event::Map {
            time_ns: 3,
            pid: 100,
            address: base.wrapping_add(text.address & page),
            length: (text.size_bytes | 0xfff) + 1,
            file_offset: text.file_offset & page,
            protection: 5,
            shared: None,
            path: program.to_str().unwrap().into(),
            build_id: file.build_id(),
        },
    ]
}

/// Records `program` mapped at `base` and opens the recording.
fn recording_of(folder: &Path, program: &Path, base: u64) -> Recording {
    let events = events_of(program, base);
    drop(record(folder, &events, &[access(10, 0, 0x1000)]));
    Recording::open(folder).unwrap()
}

fn static_object<'a>(recording: &'a Recording, name: &str) -> &'a Object {
    let named = |object: &&Object| object.kind == ObjectKind::Static && object.name == name;
    recording
        .tables
        .objects
        .iter()
        .find(named)
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn static_symbols_are_found_position_independent_or_not() {
    let folder = tempfile::tempdir().unwrap();
    for (options, base) in [
        (&["-pie", "-fPIE"], 0x5555_5555_4000),
        (&["-no-pie", "-fno-pie"], 0),
    ] {
        let program = build(folder.path(), options[0], options);
        let recording = recording_of(
            &folder.path().join(format!("recording{}", options[0])),
            &program,
            base,
        );
        let table = static_object(&recording, "table");
        assert_eq!(
            (table.size_bytes, table.address),
            (8000, base + table.module_offset),
            "{}",
            options[0]
        );
        assert_eq!(static_object(&recording, "zeroes").size_bytes, 4096);
        assert_eq!(static_object(&recording, "constants").size_bytes, 256);
        let bss = static_object(&recording, &format!("{} .bss", options[0]));
        let zeroes = static_object(&recording, "zeroes");
        assert!(
            (bss.address..bss.address + bss.size_bytes).contains(&zeroes.address),
            "the gaps are an object too"
        );
        assert!(
            !recording
                .tables
                .objects
                .iter()
                .any(|object| object.name == "own"),
            "a template is no object"
        );
        assert!(
            recording
                .tables
                .objects
                .iter()
                .any(|object| object.kind == ObjectKind::Code)
        );
    }
}

#[test]
fn of_what_was_running_already_only_accessed_pages_have_objects() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "-no-pie", &["-no-pie", "-fno-pie"]);
    let all = recording_of(&folder.path().join("all"), &program, 0);
    let table = static_object(&all, "table");
    let metadata = Metadata {
        attached: Some(Attached {
            target: "all processes".into(),
            coverage: "the whole machine".into(),
        }),
        ..making::metadata()
    };
    let output = folder.path().join("attached");
    let mut log = LogWriter::create(&output, metadata, &making::machine()).unwrap();
    log.accesses(&making::batch(&[access(10, 0, table.address)]))
        .unwrap();
    log.events(&events_of(&program, 0)).unwrap();
    drop(log);
    let attached = Recording::open(&output).unwrap();
    assert_eq!(static_object(&attached, "table"), table);
    let objects = &attached.tables.objects;
    let kinds = |kind| objects.iter().filter(|object| object.kind == kind).count();
    assert_eq!(kinds(ObjectKind::Code), 0);
    assert!(objects.iter().all(|object| object.name != "constants"));
    assert!(objects.len() < all.tables.objects.len());
}

#[test]
fn inlined_functions_are_frames_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "program", &[]);
    let file = ElfFile::open(&program).unwrap();
    let outer = file
        .functions()
        .into_iter()
        .find(|function| function.name == "outer")
        .unwrap();
    let module = Module {
        path: program.to_str().unwrap().into(),
        build_id: file.build_id(),
    };
    let mut symbols = Symbols::new(std::slice::from_ref(&module));
    // Somewhere in `outer` a call returns into the line of `inner`.
    let frames = (outer.address..outer.address + outer.size_bytes)
        .map(|address| symbols.return_address(nearpage_recording::ModuleId(0), address))
        .find(|frames| frames.len() > 1)
        .expect("inner is inlined");
    let names: Vec<_> = frames
        .iter()
        .map(|frame| (frame.function.as_str(), frame.line, frame.inlined))
        .collect();
    assert_eq!(
        (names[0], names[1].0, names[1].2),
        (("inner", 7, true), "outer", false)
    );
    assert!(frames[0].file.ends_with("source.c"));

    let rebuilt = Module {
        build_id: "00".into(),
        ..module.clone()
    };
    let mut symbols = Symbols::new(&[rebuilt]);
    assert_eq!(
        symbols.instruction(nearpage_recording::ModuleId(0), outer.address)[0].function,
        ""
    );
    assert!(
        symbols.notes()[0].contains("rebuilt"),
        "{:?}",
        symbols.notes()
    );
}

#[test]
fn callers_in_runtimes_have_a_name_and_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let module = nearpage_recording::ModuleId(0);
    for (file, has_line) in [("libown.so.1", true), ("libgomp.so.1", false)] {
        let library = build(folder.path(), file, &["-shared", "-fPIC"]);
        let functions = ElfFile::open(&library).unwrap().functions();
        let outer = functions.iter().find(|one| one.name == "outer").unwrap();
        let mut symbols = Symbols::new(&[Module {
            path: library.to_str().unwrap().into(),
            build_id: String::new(),
        }]);
        let caller = symbols.return_address(module, outer.address + outer.size_bytes);
        let caller = caller.last().unwrap();
        assert_eq!(
            (caller.function.as_str(), caller.line > 0),
            ("outer", has_line),
            "{file}"
        );
        let own = symbols.instruction(module, outer.address);
        assert!(own[0].line > 0, "{file}");
    }
}

#[test]
fn without_debug_information_the_symbol_table_names_functions_and_a_linked_file_has_more() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "program", &[]);
    let offset = ElfFile::open(&program)
        .unwrap()
        .functions()
        .into_iter()
        .find(|f| f.name == "outer")
        .unwrap()
        .address;
    let objcopy = |arguments: &[&str]| {
        assert!(
            Command::new("objcopy")
                .current_dir(folder.path())
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    };
    let module = Module {
        path: program.to_str().unwrap().into(),
        build_id: String::new(),
    };
    let look_up = || {
        let mut symbols = Symbols::new(std::slice::from_ref(&module));
        symbols
            .instruction(nearpage_recording::ModuleId(0), offset)
            .remove(0)
    };
    objcopy(&["--only-keep-debug", "program", "program.debug"]);
    objcopy(&["--strip-debug", "program"]);
    let frame = look_up();
    assert_eq!((frame.function.as_str(), frame.line), ("outer", 0));
    objcopy(&[
        "--strip-all",
        "--add-gnu-debuglink=program.debug",
        "program",
    ]);
    let frame = look_up();
    assert_eq!(frame.function, "outer");
    assert!(frame.line > 0 && frame.file.ends_with("source.c"));
}
