//! The plugin inside QEMU.

mod case;
mod recount;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use case::{Case, serial_log, succeeded};
use nearpage_wire::trace::{
    CHILD_ENDED, COUNTERS, Counter, Decoder, FRAME_HEADER_BYTES, FrameHeader, PIPE_SIGNAL, Record,
    open_counters,
};

const SETUP: &str = "nearpage tracer setup 1
page_bytes 4096
line_bytes 64
l1_fetch 32768 2
l1_data 32768 2
l2 524288 2
tlb 64 64 8
cpu_nodes 0 0 1 1
thread_cpus 0 1 2 3
quantum 10000
";

/// Small caches, a shared level, split TLBs with a second level: much happens in a short run.
const SMALL: &str = "nearpage tracer setup 1
page_bytes 4096
line_bytes 64
l1_fetch 1024 2
l1_data 1024 4
l2 4096 4
l3 12288 6
tlb 8 8 2
tlb_fetch 4 2 0
tlb_second 16 4 0
cpu_nodes 0 1
thread_cpus 0 1
quantum 1000
keep_hits 1
serial 1
";

#[test]
fn false_sharing_is_the_same_on_one_host_core_and_on_two() {
    let case = Case::new("sharing", "sharing", &[]);
    let mut counts = [0.0; 2];
    for (count, wrapper) in counts.iter_mut().zip([&["taskset", "-c", "0"][..], &[]]) {
        succeeded(&case.run(wrapper, SETUP, &["100000"]));
        let trace = case.trace();
        *count = trace.count(Counter::Invalidations) as f64;
    }
    let [one, two] = counts;
    // Once a quantum, at least, each takes the line from the other.
    assert!(one > 100.0, "{one}");
    assert!(
        (one / two - 1.0).abs() < 0.05,
        "{one} on one core, {two} on all"
    );
}

/// In a replay other threads may come later than while tracing.
#[test]
fn who_comes_last_to_a_barrier_waits_for_the_others_in_replays() {
    let case = Case::new("barrier", "sharing", &[]);
    succeeded(&case.run(&[], SETUP, &["100000"]));
    let trace = case.trace();
    let mut met = 0;
    for (number, records) in &trace.threads {
        for pair in records.windows(2) {
            let [
                Record::Resume {
                    after,
                    address,
                    waited_instructions: 0,
                },
                Record::Signal { address: woken, .. },
            ] = pair
            else {
                continue;
            };
            if *address == 0 || woken != address {
                continue;
            }
            let others = trace.threads.iter().filter(|other| other.0 != number);
            let arrives = |record: &Record| matches!(record, Record::Signal { sequence, address: at } if sequence == after && at == address);
            assert!(others.flat_map(|other| other.1).any(arrives), "{after}");
            met += 1;
        }
    }
    assert!(met > 0);
}

/// Where the function `work` of a static program is.
fn work(case: &Case) -> std::ops::Range<u64> {
    let symbols = Command::new("nm")
        .arg("-S")
        .arg(&case.program)
        .output()
        .expect("nm");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let work = symbols
        .lines()
        .find(|line| line.ends_with(" T work"))
        .expect("work");
    let number = |text: &str| u64::from_str_radix(text, 16).expect(text);
    let mut words = work.split(' ').map(number);
    let first = words.next().expect("address");
    first..first + words.next().expect("size")
}

/// Loads and stores of each instruction there, by the serial log.
fn counts(case: &Case, range: &std::ops::Range<u64>) -> BTreeMap<u64, [u64; 2]> {
    let mut counts: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
    for entry in serial_log(case) {
        if entry.step < 2 && range.contains(&entry.words[1]) {
            counts.entry(entry.words[1]).or_default()[usize::from(entry.step)] += 1;
        }
    }
    counts
}

#[test]
fn an_atomic_change_of_memory_is_one_store() {
    let case = Case::new("atomics", "atomics", &["-static"]);
    for arguments in [&[][..], &["thread"]] {
        succeeded(&case.run(&[], &format!("{SETUP}serial 1\n"), arguments));
        let counts: Vec<_> = counts(&case, &work(&case)).into_values().collect();
        // The return is counted, too.
        let expected = [[0, 1000], [0, 1000], [0, 1000], [0, 1000], [1, 0]];
        assert_eq!(counts, expected, "{arguments:?}");
    }
}

#[test]
fn accesses_by_the_preload_library_are_left_out() {
    let case = Case::new("left_out", "left_out", &["-static"]);
    let setup = format!("{SETUP}serial 1\n");
    let changes = || {
        let counts = counts(&case, &work(&case));
        let changes = counts.values().filter(|[_, stores]| *stores > 0);
        let [[loads, stores]] = changes.copied().collect::<Vec<_>>()[..] else {
            panic!("{counts:?}")
        };
        assert_eq!(loads, stores);
        stores
    };
    succeeded(&case.run(&[], &setup, &[]));
    let trace = case.trace();
    assert_eq!(changes(), 2 * 1110);
    let counted = trace.count(Counter::Instructions);
    // A million blocks that are left out, and it counts again.
    succeeded(&case.run(&[], &setup, &["lost"]));
    let with_lost = changes() - 2 * 1110;
    assert!((5000..5100).contains(&with_lost), "{with_lost}");
    let more = case.trace().count(Counter::Instructions) - counted;
    assert!((15_000..25_000).contains(&more), "{more}");
}

#[test]
fn spinning_threads_run_on_and_are_counted() {
    let case = Case::new("spins", "spins", &[]);
    succeeded(&case.run(&[], SETUP, &[]));
    assert!(case.trace().count(Counter::SpunQuanta) > 0);
}

/// Pages first touched, by address.
fn touched(records: impl IntoIterator<Item = Record>) -> usize {
    let touches = records.into_iter().filter_map(|record| match record {
        Record::FirstTouch { address, .. } => Some(address / 4096),
        _ => None,
    });
    touches.collect::<std::collections::BTreeSet<u64>>().len()
}

#[test]
fn programs_after_exec_are_traced_and_nothing_before_is_lost() {
    let case = Case::new("exec", "ends", &[]);
    let program = case.program.to_str().expect("path");
    let output = case.run(&[], SETUP, &["exec", program]);
    succeeded(&output);
    assert_eq!(output.stderr, b"");
    let traces = case.traces();
    assert_eq!(traces.len(), 2);
    assert_eq!(traces.iter().map(|trace| trace.execs).sum::<u32>(), 1);
    for trace in &traces {
        assert_eq!(trace.count(Counter::UntracedPrograms), 0);
        let touched = touched(trace.records().copied());
        assert!(touched > 64, "{touched}");
        assert_eq!(trace.count(Counter::FirstTouches), touched as u64);
        let records: u64 = trace
            .threads
            .values()
            .map(|stream| stream.len() as u64)
            .sum();
        assert_eq!(trace.count(Counter::Records), records);
    }
    // Its thread did not end, so its frame is still there, with nothing in it.
    let open = case.open_frames();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0], None);
}

#[test]
fn last_events_of_a_killed_program_are_kept() {
    let case = Case::new("kill", "ends", &[]);
    let output = case.run(&[], SETUP, &["kill"]);
    assert!(!output.status.success());
    let trace = case.trace();
    assert_eq!(trace.counters, None);
    let open = case.open_frames();
    let [Some(frame)] = &open[..] else {
        panic!("{} frames", open.len())
    };
    assert!(FrameHeader::intact(frame));
    let last = Decoder::new(&frame[FRAME_HEADER_BYTES..]).map(|record| record.expect("record").1);
    let touched = touched(trace.records().copied().chain(last));
    assert!(touched > 64, "{touched}");
    // Nobody had ended; the thread has counted all but what was on its way.
    let counted: Vec<_> = case
        .open_files()
        .iter()
        .map(|file| open_counters(file).expect("counters"))
        .collect();
    assert_eq!((counted.len(), counted[0]), (2, [0; COUNTERS]));
    let touches = counted[1][Counter::FirstTouches as usize] as usize;
    assert!(touches <= touched && touches + 64 >= touched, "{touches}");
    assert!(counted[1][Counter::Loads as usize] > 1000);
}

/// Misses of each kind, by counter, that two runs of one program agree on.
const MISSES: [Counter; 7] = [
    Counter::Loads,
    Counter::Stores,
    Counter::DataL1Misses,
    Counter::MemoryServed,
    Counter::WriteBacks,
    Counter::DataTlbMisses,
    Counter::Instructions,
];

#[test]
fn one_thread_makes_the_same_trace_every_time() {
    let case = Case::new("repeat", "plain", &["-static"]);
    // From QEMU 8 on the program's addresses are the host's: random, and beside the emulator's own.
    let mut same_addresses = ["env", "MALLOC_ARENA_MAX=1", "setarch", "-R"].to_vec();
    let allowed = Command::new("setarch").args(["-R", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        same_addresses.truncate(2);
    }
    let streams = [&["taskset", "-c", "0"][..], &[], &[]].map(|wrapper| {
        let wrapper = [&same_addresses, wrapper].concat();
        succeeded(&case.run(&wrapper, SETUP, &[]));
        let trace = case.trace();
        let mut records = trace.threads[&0].clone();
        records.retain(|record| !matches!(record, Record::Clock { .. }));
        (records, MISSES.map(|counter| trace.count(counter)))
    });
    assert!(streams[0].0.len() > 500, "{}", streams[0].0.len());
    assert!(streams[0] == streams[1] && streams[1] == streams[2]);
}

#[test]
fn counts_of_each_instruction_are_valgrinds() {
    let case = Case::new("lackey", "plain", &["-static", "-fno-tree-vectorize"]);
    let setup = format!("{SETUP}serial 1\n");
    succeeded(&case.run(&[], &setup, &[]));

    let number = |text: &str| u64::from_str_radix(text, 16).expect(text);
    let range = work(&case);
    let ours = counts(&case, &range);

    let log = case.folder.join("lackey.log");
    let valgrind = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes"])
        .arg(format!("--log-file={}", log.display()))
        .arg(&case.program)
        .status()
        .expect("valgrind (Debian package valgrind)");
    assert!(valgrind.success());
    let mut theirs: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
    let mut instruction = 0;
    for line in fs::read_to_string(log).expect("log").lines() {
        let address = || number(line[3..].split(',').next().expect("address"));
        let counts = match line.as_bytes() {
            [b'I', ..] => {
                instruction = address();
                continue;
            }
            [b' ', b'L', ..] => [1, 0],
            [b' ', b'S', ..] => [0, 1],
            [b' ', b'M', ..] => [1, 1],
            _ => continue,
        };
        if range.contains(&instruction) {
            let [loads, stores] = theirs.entry(instruction).or_default();
            *loads += counts[0];
            *stores += counts[1];
        }
    }
    assert!(ours.len() > 4, "{ours:?}");
    // An access over the end of a line is looked up twice, and in the log so.
    let split: u64 = (0..5000)
        .filter(|i| i % 3 == 0 && (i % 2048 + 1) % 64 > 60)
        .count() as u64;
    let loads =
        |counts: &BTreeMap<u64, [u64; 2]>| counts.values().map(|[loads, _]| loads).sum::<u64>();
    assert_eq!(loads(&ours), loads(&theirs) + split);
    let differing = ours
        .iter()
        .filter(|(at, counts)| theirs.get(at) != Some(counts));
    assert_eq!(differing.count(), 1, "{ours:?} {theirs:?}");
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn programs_that_are_hard_on_it_run_as_ever() {
    let case = Case::new("trouble", "trouble", &[]);
    for setup in [
        SETUP.to_string(),
        SETUP.replace("thread_cpus 0 1 2 3", "thread_cpus 0 1"),
    ] {
        let output = case.run(&[], &setup, &[]);
        succeeded(&output);
        assert_eq!(output.stdout, b"done\n");
        assert_eq!(output.stderr, b"");
        let traces = case.traces();
        let parent = traces
            .iter()
            .find(|trace| trace.forked.len() == 2)
            .expect("parent");
        // One child is made by fork, one by system(), which then runs a shell.
        assert_eq!(traces.len(), 4);
        assert_eq!(traces.iter().filter(|trace| trace.parent == 0).count(), 2);
        assert!(traces.iter().all(|trace| trace.counters.is_some()));
        assert_eq!(traces.iter().map(|trace| trace.execs).sum::<u32>(), 1);
        let mut starts: Vec<u32> = parent.starts.iter().map(|start| start.0).collect();
        starts.sort_unstable();
        assert_eq!(starts, (0..30).collect::<Vec<u32>>());
        assert_eq!(parent.ends, 30);
        let signals = parent.records().filter_map(|record| match record {
            Record::Signal { sequence, .. } => Some(*sequence),
            _ => None,
        });
        let signals: Vec<u64> = signals.collect();
        let (mut resumed, mut read) = (0, 0);
        let mut ended = Vec::new();
        for record in parent.records() {
            match record {
                Record::Resume { after: 0, .. } => (),
                Record::Resume { after, .. } if *after >= CHILD_ENDED => {
                    ended.push((*after - CHILD_ENDED) as u32);
                }
                Record::Resume { after, .. } => {
                    assert!(signals.contains(after), "nobody gave signal {after}");
                    resumed += 1;
                    read += u32::from(*after > PIPE_SIGNAL);
                }
                _ => (),
            }
        }
        // Both children were waited for.
        assert_eq!(ended, parent.forked);
        assert!(resumed > 100, "{resumed}");
        // The reader after whoever wrote.
        assert_eq!(read, 1);
        let names: Vec<_> = parent.mapped.iter().map(|(_, _, path)| path).collect();
        assert!(names.iter().any(|path| path.ends_with(b"/program")));
        assert!(names.iter().any(|path| path.ends_with(b"/libc.so.6")));
    }
}

/// A child has no thread that could give back what one of its parent's held.
#[test]
fn forked_children_end_whatever_threads_of_their_parent_did() {
    let case = Case::new("forks", "forks", &[]);
    let output = case.run(&[], SETUP, &[]);
    succeeded(&output);
    assert_eq!(output.stdout, b"done\n");
    let traces = case.traces();
    assert_eq!(traces.len(), 61);
    assert!(traces.iter().all(|trace| trace.counters.is_some()));
}

#[test]
fn between_the_markers_everything_before_them_first_touches() {
    let case = Case::new("marks", "marks", &[]);
    succeeded(&case.run(&[], &format!("{SETUP}from_mark 1\n"), &[]));
    let trace = case.trace();
    let records = &trace.threads[&0];
    let marks: Vec<usize> = (0..records.len())
        .filter(|at| matches!(records[*at], Record::Mark { .. }))
        .collect();
    let [begin, end] = marks[..] else {
        panic!("{marks:?}")
    };
    let touches = |records: &[Record]| {
        let touches = records
            .iter()
            .filter(|record| matches!(record, Record::FirstTouch { .. }));
        touches.count()
    };
    let misses = |records: &[Record]| {
        let misses = records
            .iter()
            .filter(|record| matches!(record, Record::Reference(_)));
        misses.count()
    };
    assert!(touches(&records[..begin]) >= 16 && misses(&records[..begin]) == 0);
    assert!(touches(&records[begin..end]) >= 16 && misses(&records[begin..end]) >= 16);
    assert!(touches(&records[end..]) >= 32 && misses(&records[end..]) == 0);
}

#[test]
fn elements_of_a_list_depend_on_those_before_and_an_arrays_do_not() {
    let case = Case::new("chase", "chase", &["-static"]);
    let dependences = |setup: &str, arguments: &[&str]| {
        succeeded(&case.run(&[], setup, arguments));
        let mut found = Vec::new();
        let mut depends_on = None;
        for record in case.trace().records() {
            match *record {
                Record::Depends { on } => depends_on = Some(on),
                Record::Reference(_) => found.extend(depends_on.take()),
                _ => {}
            }
        }
        found
    };
    let with = format!("{SETUP}dependences 1\n");
    // Some of the start of the program and its libraries.
    let array = dependences(&with, &[]);
    assert!(array.len() < 1000, "{}", array.len());
    let list = dependences(&with, &["list"]);
    // The second level keeps up to 8,192 lines of when they were written.
    assert!(list.len() > 11_000, "{}", list.len());
    // From one element to the next: a round of the loop.
    let round = list[list.len() / 2];
    assert!((3..=8).contains(&round), "{round}");
    let same = list.iter().filter(|&&on| on == round).count();
    assert!(2 * same > list.len(), "{same} of {}", list.len());
    assert_eq!(dependences(SETUP, &["list"]), []);
}

#[test]
fn a_miss_takes_at_most_five_bytes() {
    let case = Case::new("bytes", "sharing", &[]);
    succeeded(&case.run(&[], SETUP, &["100000"]));
    let trace = case.trace();
    let misses = trace
        .records()
        .filter(|record| matches!(record, Record::Reference(_)))
        .count();
    let bytes = trace.stream_bytes as f64 / misses as f64;
    assert!(bytes <= 5.0, "{bytes} of {misses}");
}

#[test]
fn start_errors_are_one_line() {
    let case = Case::new("refusals", "marks", &[]);
    let cases = [
        (
            SETUP.replace("l2 524288 2", "l2 524288 3"),
            "in lines of 64 bytes; expected 1 to 64 ways, at most 68719476736 bytes, and bytes ÷ line ÷ ways a power of two",
        ),
        (
            SETUP.replace("quantum 10000\n", ""),
            "it does not say quantum",
        ),
        (
            "else".to_string(),
            "it does not begin with 'nearpage tracer setup 1'",
        ),
    ];
    for (setup, expected) in cases {
        let output = case.run(&[], &setup, &[]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        let ours: Vec<&str> = errors
            .lines()
            .filter(|line| line.starts_with("nearpage:"))
            .collect();
        assert!(ours.len() == 1 && ours[0].ends_with(expected), "{errors}");
    }
}
