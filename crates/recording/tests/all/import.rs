//! Imports other tools' files: a real `perf.data`, files built from the documented layout, the text of `perf script`,
//! and files that are none of these.

mod csv;
mod perf_data;

use std::fs;
use std::path::{Path, PathBuf};

use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::import::import;
use nearpage_recording::{AccessBatch, AccessKind, Error, Level, ObjectKind, Recording};

use perf_data::*;

fn imported(bytes: &[u8]) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (folder.path().join("perf.data"), folder.path().join("out"));
    fs::write(&file, bytes).unwrap();
    let counts = import(&file, &output, None).unwrap().counts;
    let recording = Recording::open(&output).unwrap();
    assert_eq!(recording.metadata.counts, counts);
    assert_eq!(recording.access_count(), counts.accesses);
    recording
}

fn accesses(recording: &Recording) -> AccessBatch {
    let mut all = AccessBatch::default();
    for batch in recording.accesses() {
        all.append(&batch.unwrap());
    }
    all
}

/// Why a file is refused, or `None` if it is imported; a refused file must leave nothing behind.
fn refusal(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("perf.data");
    fs::write(&file, bytes).unwrap();
    let error = import(&file, &folder.path().join("out"), None).err()?;
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{error}");
    let line = error.to_string();
    assert!(matches!(error, Error::Foreign { .. }), "{line}");
    let reason = line.strip_prefix(&format!("{}: ", file.display()));
    Some(reason.expect("the file's name comes first").to_owned())
}

/// Why a file is refused.
fn refused(bytes: &[u8]) -> String {
    refusal(bytes).expect("it is no file to import")
}

/// A program with two threads and an anonymous mapping that both use.
fn program() -> PerfData {
    let stack = "[stack]";
    PerfData::new()
        .name(0, 100, 100, "perf-exec", false)
        .name(10, 100, 100, "solve", true)
        .map(11, 100, 0x40_0000, 0x2000, 5, "/nonexistent/solve")
        .map(12, 100, 0x7ff0_0000, 0x2_1000, 3, stack)
        .map(13, 100, 0x7000_0000, 0x10_0000, 3, "//anon")
        .map(39, 100, 0x7100_0000, 0x80_0000, 3, "//anon")
        // The ring of the second CPU comes first in the file.
        .sample(Sample {
            tid: 101,
            time_ns: 60,
            cpu: 2,
            data_src: REMOTE_LOAD,
            latency: 500,
            ..SAMPLE
        })
        .sample(Sample {
            tid: 101,
            time_ns: 80,
            cpu: 2,
            data_src: L1_LOAD,
            latency: 4,
            ..SAMPLE
        })
        .fork(40, 100, 101, 100)
        .sample(SAMPLE)
        // Where data_src does not say the kind of access, the event does.
        .sample(Sample {
            event: STORES,
            time_ns: 55,
            latency: 0,
            data_src: 1,
            ..SAMPLE
        })
        .sample(Sample {
            mode: 1,
            time_ns: 56,
            ..SAMPLE
        })
        .sample(Sample {
            address: 0,
            time_ns: 57,
            ..SAMPLE
        })
        .exit(90, 100, 101)
        .exit(95, 100, 100)
}

#[test]
fn reads_what_perf_mem_records() {
    let recording = imported(&program().bytes());
    let found = accesses(&recording);
    assert_eq!(found.time_ns, [50, 55, 60, 80]);
    assert_eq!(
        found.kind,
        [
            AccessKind::Load,
            AccessKind::Store,
            AccessKind::Load,
            AccessKind::Load
        ]
    );
    assert_eq!(
        found.level,
        [
            Level::LocalMemory,
            Level::Unknown,
            Level::RemoteMemory,
            Level::L1
        ]
    );
    // Cycles at 2 GHz, times the period.
    assert_eq!(found.cost_ns, [150_000.0, 0.0, 250_000.0, 2000.0]);
    assert_eq!(found.weight, [1000.0; 4]);
    assert_eq!(found.cpu, [0, 0, 2, 2].map(CpuId));
    assert_eq!(
        found.page_node,
        [Some(NodeId(0)), None, Some(NodeId(0)), None]
    );
    let counts = recording.metadata.counts;
    assert_eq!((counts.samples, counts.undecoded, counts.kernel), (5, 1, 1));

    let names: Vec<_> = recording
        .tables
        .threads
        .iter()
        .map(|thread| (thread.tid, thread.name.as_str(), thread.died_ns))
        .collect();
    assert_eq!(names, [(100, "solve", 95), (101, "solve", 90)]);
    let mapping = recording
        .tables
        .objects
        .iter()
        .find(|object| object.kind == ObjectKind::Mapping)
        .unwrap();
    assert_eq!(
        (mapping.address, mapping.name.as_str()),
        (0x7000_0000, "anonymous memory")
    );
    assert!(
        recording
            .tables
            .objects
            .iter()
            .any(|object| object.name == "stack of 101")
    );
    let (module, offset) = recording.resolve(100, 50, 0x40_1000).unwrap();
    assert_eq!(
        (
            recording.tables.modules[module.0 as usize].path.as_str(),
            offset
        ),
        ("/nonexistent/solve", 0x40_1000 - 0x40_0000)
    );

    assert_eq!(recording.machine.nodes.len(), 2);
    let metadata = &recording.metadata;
    assert_eq!(metadata.command, ["perf", "mem", "record", "./solve"]);
    assert_eq!(
        (metadata.begin_ns, metadata.end_ns, metadata.rate_hz),
        (50, 80, 4000.0)
    );
    assert_eq!(
        metadata.calibration,
        "cpu/mem-loads,ldlat=30/P, cpu/mem-stores/P"
    );
}

/// Covers the fields that may stand between period and weight by `perf_event_open(2)`.
#[test]
fn fields_before_the_weight_are_skipped() {
    let (read, call_chain, raw, branches, registers, stack) =
        (1 << 4, 1 << 5, 1 << 10, 1 << 11, 1 << 12, 1 << 13);
    for fields in 0..64u64 {
        let has = |bit: u64| fields >> bit & 1 != 0;
        let bits = [read, call_chain, raw, branches, registers, stack];
        let asked = (0..6).filter(|bit| has(*bit)).map(|bit| bits[bit as usize]);
        let mut file = PerfData {
            sample_type: MEMORY | asked.sum::<u64>(),
            // A group of values with times, ids and lost counts.
            read_format: 0x1f,
            branch_sample_type: 1 << 17,
            sample_regs_user: 0b1011,
            ..PerfData::new()
        };
        let mut body = Bytes::default().u64(LOADS).u64(0x40_1000).u32(100).u32(100);
        body = body.u64(50).u64(0x7000_0010).u32(1).u32(0).u64(1000);
        if has(0) {
            body = body.u64(2).u64(5).u64(6).bytes(&[7; 2 * 3 * 8]);
        }
        if has(1) {
            body = body.u64(3).bytes(&[7; 3 * 8]);
        }
        if has(2) {
            body = body.u32(12).bytes(&[7; 12]);
        }
        if has(3) {
            body = body.u64(2).u64(0).bytes(&[7; 2 * 24]);
        }
        if has(4) {
            body = body.u64(2).bytes(&[7; 3 * 8]);
        }
        if has(5) {
            body = body.u64(16).bytes(&[7; 16]).u64(16);
        }
        // The upper half holds other latencies, as in PERF_SAMPLE_WEIGHT_STRUCT.
        file = file.record(9, 2, body.u64(9 << 32 | 300).u64(REMOTE_LOAD));
        let found = accesses(&imported(&file.bytes()));
        assert_eq!(
            (found.level[0], found.cost_ns[0], found.cpu[0]),
            (Level::RemoteMemory, 150_000.0, CpuId(1)),
            "{fields:#b}"
        );
    }
}

#[test]
fn page_fault_samples_are_refused_with_advice() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/import/page-faults.perf.data");
    let mut bytes = fs::read(path).unwrap();
    let line = refused(&bytes);
    assert!(
        line.starts_with("its samples are of page faults alone, not of accesses; record with"),
        "{line}"
    );

    // Makes another event of it: a raw event of the CPU with this name.
    let attributes_at = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
    assert_eq!(bytes[attributes_at..][..4], 1u32.to_le_bytes());
    bytes[attributes_at] = 4;
    for at in 0..bytes.len() - 11 {
        if bytes[at..].starts_with(b"page-faults") {
            bytes[at..at + 11].copy_from_slice(b"mem-stores/");
        }
    }
    let recording = imported(&bytes);
    let found = accesses(&recording);
    // Figures that `perf script` prints for this file.
    assert_eq!(found.len(), 56);
    assert!(found.time_ns.is_sorted());
    assert_eq!(
        (found.address[0], found.instruction[0]),
        (0x40_1540, 0x40_1540)
    );
    let last = found.len() - 1;
    assert_eq!(
        (
            found.time_ns[last] / 1000,
            found.cpu[last],
            found.address[last],
            found.instruction[last]
        ),
        (1_735_284_574, CpuId(1), 0x4d_a320, 0x40_166c)
    );
    assert!(found.kind.iter().all(|kind| *kind == AccessKind::Store));
    let threads: Vec<_> = recording
        .tables
        .threads
        .iter()
        .map(|thread| (thread.pid, thread.tid, thread.name.as_str()))
        .collect();
    assert_eq!(threads, [(28559, 28559, "touch"), (28559, 28561, "touch")]);
    let modules: Vec<_> = recording
        .tables
        .modules
        .iter()
        .map(|module| (module.path.as_str(), module.build_id.len()))
        .collect();
    assert_eq!(modules, [("/tmp/demo/touch", 40), ("[vdso]", 40)]);
    assert_eq!(recording.machine.nodes[0].cpus.len(), 2);
    assert_eq!(recording.metadata.command[..2], ["/usr/bin/perf", "record"]);
}

#[test]
fn reads_what_perf_script_prints() {
    let text = "# cpudesc : Some CPU @ 2.00GHz
       perf-exec     0/0     [000]     0.000000: PERF_RECORD_COMM: perf-exec:100/100
         my solve   100/100   [000]     0.000010: PERF_RECORD_COMM exec: my solve:100/100
         my solve   100/100   [000]     0.000011: PERF_RECORD_MMAP2 100/100: [0x400000(0x2000) @ 0 fe:00 1 2]: r-xp /nonexistent/solve
         my solve   100/100   [000]     0.000013: PERF_RECORD_MMAP2 100/100: [0x70000000(0x100000) @ 0 <abcdef12>]: rw-p //anon
         my solve   100/100   [000]     0.000040: PERF_RECORD_FORK(100:101):(100:100)
         my solve   100/100   [000]     0.000050:       1000 cpu/mem-loads,ldlat=30/P:         70000010 [unknown] (//anon)      1a00000002 |OP LOAD|LVL RAM hit|SNP N/A|TLB N/A|LCK N/A|BLK  N/A              300           401000 add+0x3 (/nonexistent/solve)
         my solve   100/101   [002] 0.000060123:       1000 cpu/mem-loads,ldlat=30/P:         70000010      3a00000002 |OP LOAD|LVL Remote RAM hit|SNP N/A|TLB N/A|LCK No              500           401000 operator|(int) (/nonexistent/solve)
\t          401100 caller (/nonexistent/solve)

         my solve   100/101     0.000070:       1000 cpu/mem-stores/P:         70000020      5080021 |OP N/A|LVL N/A|SNP N/A|TLB N/A|LCK N/A|BLK  N/A                0 ffffffff81001000 copy ([kernel.kallsyms])
         my solve   100/101   [002]     0.000080: PERF_RECORD_EXIT(100:101):(100:100)
";
    let recording = imported(text.as_bytes());
    let found = accesses(&recording);
    assert_eq!(found.time_ns, [50_000, 60_123]);
    assert_eq!(found.level, [Level::LocalMemory, Level::RemoteMemory]);
    assert_eq!(found.cost_ns, [150_000.0, 250_000.0]);
    assert_eq!(found.instruction, [0x40_1000; 2]);
    assert_eq!(recording.metadata.counts.kernel, 1);
    let threads: Vec<_> = recording
        .tables
        .threads
        .iter()
        .map(|thread| (thread.tid, thread.name.as_str(), thread.died_ns))
        .collect();
    assert_eq!(
        threads,
        [(100, "my solve", u64::MAX), (101, "my solve", 80_000)]
    );
    assert!(recording.resolve(100, 50_000, 0x40_1000).is_some());
    assert_eq!(
        recording.metadata.calibration,
        "cpu/mem-loads,ldlat=30/P, cpu/mem-stores/P"
    );

    // With a call chain, the first line of the chain has the instruction.
    let chain = "solve 7/8 1.5: 1 mem-loads: 70000010 68100142 |OP LOAD|LVL L1 hit|LCK No 9\n\t  401000 main (/w)\n\t  402000 start (/w)\n\n";
    let found = accesses(&imported(chain.repeat(2).as_bytes()));
    assert_eq!(
        (found.instruction, found.level),
        (vec![0x40_1000; 2], vec![Level::L1; 2])
    );
    // A latency with as many digits as an address is no instruction.
    for latency in ["12345", "401000"] {
        let chain = chain.replace("LCK No 9", &format!("LCK No {latency}"));
        let found = accesses(&imported(chain.as_bytes()));
        assert_eq!(found.instruction, [0x40_1000], "{latency}");
        let cycles: f32 = latency.parse().unwrap();
        assert!(
            found.cost_ns[0] > 0.2 * cycles,
            "{latency}: {:?}",
            found.cost_ns
        );
    }

    // Without mappings, a note says what is missing.
    let samples: String = text
        .lines()
        .filter(|line| !line.contains("PERF_RECORD"))
        .map(|line| format!("{line}\n"))
        .collect();
    let recording = imported(samples.as_bytes());
    let notes = recording.metadata.notes;
    assert!(
        notes.iter().any(|note| note.contains("--show-mmap-events")),
        "{notes:?}"
    );
    // Names of threads come from the words before the samples.
    let threads = recording.tables.threads.iter();
    let names: Vec<_> = threads
        .map(|thread| (thread.tid, thread.name.as_str()))
        .collect();
    assert_eq!(names, [(100, "my solve"), (101, "my solve")]);
    let renamed = chain.replace("solve", "worker").replace("1.5", "1.6");
    let renamed = imported((chain.to_owned() + &renamed).as_bytes());
    assert_eq!(renamed.tables.threads[0].name, "worker");
}

#[test]
fn names_in_the_text_may_be_anything_but_utf8() {
    let text = b"caf\xe9 7/7 0.1: PERF_RECORD_MMAP2 7/7: [0x400000(0x2000) @ 0 fe:00 1 2]: r-xp /caf\xe9/solve\n\
        caf\xe9 7/7 0.2: 1 mem-loads: 70000010 68100142 |OP LOAD|LVL L1 hit|LCK No 9 401000 main (/caf\xe9/solve)\n";
    let recording = imported(text);
    let module = &recording.tables.modules[0];
    assert_eq!(
        module.file().as_os_str().as_encoded_bytes(),
        b"/caf\xe9/solve"
    );
    assert_eq!(recording.tables.threads[0].name, "caf\u{fffd}");
    assert_eq!(accesses(&recording).instruction, [0x40_1000]);
}

fn printed(whose: &str, described: &str) -> String {
    format!(
        "solve {whose} [003] 1.5: 1009 cpu/mem-loads/P: 7f1268100142 {described} main+0x9 (/w)\n"
    )
}

#[test]
fn data_src_is_read_as_each_perf_describes_it() {
    let of_one = "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB N/A|LCK No 1 400170";
    let cycle_ns = accesses(&imported(printed("412/412", of_one).as_bytes())).cost_ns[0];
    for (described, level, latency, ip) in [
        // Before 5.19.
        (
            "68100142 L1 hit|SNP None|TLB L1 or L2 hit|LCK No 310 400170",
            Level::L1,
            310.0,
            0x40_0170,
        ),
        (
            "68100842 L3 or L3 hit|SNP None|TLB N/A|LCK No|BLK  N/A 41 400170",
            Level::L3,
            41.0,
            0x40_0170,
        ),
        // A symbol and a file of the address stand before data_src.
        (
            "[unknown] (//anon) 68100142 L1 hit|SNP None|TLB N/A|LCK No 9 400170",
            Level::L1,
            9.0,
            0x40_0170,
        ),
        // Some processors have three latencies, which may be long.
        (
            "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB N/A|LCK No|BLK    N/A    6   9    0   400170",
            Level::L1,
            6.0,
            0x40_0170,
        ),
        (
            "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB N/A|LCK No|BLK N/A 61000 62000 63000 7f0000400170",
            Level::L1,
            61000.0,
            0x7f00_0040_0170,
        ),
        (
            "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB N/A|LCK No|BLK N/A 61000 7f0000400170",
            Level::L1,
            61000.0,
            0x7f00_0040_0170,
        ),
    ] {
        let found = accesses(&imported(printed("412/412", described).as_bytes()));
        assert_eq!(
            (&found.level[..], &found.instruction[..]),
            (&[level][..], &[ip][..]),
            "{described}"
        );
        // All samples are of one processor, so costs are in proportion to latencies.
        assert!(
            (found.cost_ns[0] / cycle_ns - latency).abs() < 0.01,
            "{described}: {found:?}"
        );
    }
    assert!(
        refused(printed("412/412", "L1 hit|SNP None|LCK No 9 400170").as_bytes())
            .contains("as a number")
    );
}

/// A data_src of a later kernel: more hops than are known.
const LATER: u64 = 0x2 | 0x2 << 5 | 0xd << 33 | 5 << 43;

#[test]
fn data_sources_that_are_not_known_are_counted_by_word() {
    let about = |recording: &Recording| {
        let notes = recording.metadata.notes.iter();
        let mut notes = notes.filter(|note| note.contains("does not know"));
        let note = notes.next().cloned();
        assert_eq!(notes.next(), None);
        note
    };
    let known = "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB N/A|LCK No 9 400170";
    assert_eq!(about(&imported(printed("412/412", known).as_bytes())), None);
    let later = format!("{LATER:x} |OP LOAD|LVL N/A|SNP None|TLB N/A|LCK No 9 400170");
    let lines = printed("412/412", known) + &printed("412/412", &later).repeat(2);
    let recording = imported(lines.as_bytes());
    let note = about(&recording).expect("a note");
    assert!(note.starts_with("2 samples with a data_src"), "{note}");
    assert!(note.ends_with(&format!("{LATER:#x} (2)")), "{note}");
    assert_eq!(
        accesses(&recording).level,
        [Level::L1, Level::Unknown, Level::Unknown]
    );
    let table = format!("time_ns,cpu,address,data_src\n1,0,4096,{LATER}\n2,0,4096,0x68100142\n");
    let note = about(&imported(table.as_bytes())).expect("a note");
    assert!(note.starts_with("1 sample with"), "{note}");
}

#[test]
fn threads_that_stand_alone_are_of_the_process_that_forked_them() {
    let described = "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB N/A|LCK No 310 400170";
    let forks = "solve 412 [003] 1.1: PERF_RECORD_FORK(412:414):(412:412)\n";
    let samples = printed("412", described) + &printed("414", described);
    let of = |text: &str| {
        let recording = imported(text.as_bytes());
        let threads = recording.tables.threads.iter();
        let mut threads: Vec<_> = threads.map(|thread| (thread.pid, thread.tid)).collect();
        threads.sort_unstable();
        let is_noted = recording
            .metadata
            .notes
            .iter()
            .any(|note| note.contains("-F pid,tid"));
        (threads, is_noted)
    };
    assert_eq!(
        of(&(forks.to_owned() + &samples)),
        (vec![(412, 412), (412, 414)], false)
    );
    assert_eq!(of(&samples), (vec![(412, 412), (414, 414)], true));
}

#[test]
fn a_file_cut_short_is_refused_wherever_it_was_cut() {
    let whole = program().bytes();
    for length in (8..whole.len()).step_by(7) {
        let line = refused(&whole[..length]);
        assert!(line.starts_with("cut short: "), "{length}: {line}");
    }
    // perf was killed: the header does not have the data's length yet.
    let mut killed = whole.clone();
    killed[48..56].fill(0);
    assert!(refused(&killed).contains("was killed"));
    // The length of a record leads past the end of the data.
    let mut damaged = whole;
    let first = 120 + 2 * 144;
    damaged[first + 6..first + 8].fill(0xff);
    assert!(refused(&damaged).starts_with("damaged: no record at byte 408"));
}

#[test]
fn piped_data_reads_like_a_file() {
    let (file, pipe) = (imported(&program().bytes()), imported(&program().piped()));
    let of = |recording| format!("{:?}", accesses(recording));
    assert_eq!(of(&pipe), of(&file));
    let tables = |recording: &Recording| format!("{:?}", recording.tables);
    assert_eq!(tables(&pipe), tables(&file));
    assert_eq!(pipe.metadata.command, file.metadata.command);
    assert_eq!(pipe.machine, file.machine);
    assert_eq!(pipe.metadata.calibration, file.metadata.calibration);
    assert_eq!(pipe.metadata.counts, file.metadata.counts);

    let whole = program().piped();
    for length in (16..whole.len()).step_by(7) {
        // A file that is cut between two records is a shorter file.
        if let Some(line) = refusal(&whole[..length]) {
            let words = [
                "damaged: no record",
                "damaged: a record cut short",
                "damaged: it has no events",
            ];
            assert!(
                words.iter().any(|words| line.starts_with(words)),
                "{length}: {line}"
            );
        }
    }
    // The attributes claim to be longer than their record.
    let mut longer = whole;
    longer[16 + 8 + 4..16 + 8 + 8].fill(0xff);
    assert_eq!(
        refused(&longer),
        "damaged: an event's attributes at byte 16; copy or record it again"
    );
}

#[test]
fn other_files_are_named() {
    let mut swapped = program().bytes();
    swapped[..8].reverse();
    assert!(refused(&swapped).contains("big-endian"));
    assert!(refused(b"").starts_with("empty"));
    assert!(refused(b"\x7fELF\x02\x01").starts_with("neither a perf.data"));
    assert!(refused(b"hello\nworld\n").starts_with("neither a perf.data"));
    let no_address = "w 1 1.5: cycles: 401000 main (/w)\n";
    assert!(refused(no_address.as_bytes()).contains("data_src"));
    let no_addresses = PerfData {
        sample_type: MEMORY & !(1 << 3),
        ..program()
    };
    assert!(refused(&no_addresses.bytes()).contains("samples addresses"));
    // The text is cut within a sample: the line is named.
    let cut = "w 1/1 1.5: 1 mem-loads: 70000010 68100142 |OP LOAD|LVL L1 hit|LCK No 9 401000 m (/w)\nw 1/1 1.6: 1 mem-lo\n";
    assert!(refused(cut.as_bytes()).starts_with("line 2: "));
}

#[test]
fn an_existing_recording_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("perf.data");
    fs::write(&file, program().bytes()).unwrap();
    let output = folder.path().join("out");
    fs::create_dir(&output).unwrap();
    fs::write(output.join("mine"), "").unwrap();
    let error = import(&file, &output, None).unwrap_err();
    assert!(matches!(error, Error::FolderInUse(_)), "{error}");
    assert_eq!(fs::read_dir(&output).unwrap().count(), 1);
    // An existing empty folder is taken.
    fs::remove_file(output.join("mine")).unwrap();
    import(&file, &output, None).unwrap();
    assert!(Recording::open(&output).is_ok());
    let folder_instead = import(folder.path(), &folder.path().join("other"), None).unwrap_err();
    assert!(folder_instead.to_string().contains("a folder"));
}
