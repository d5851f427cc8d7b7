//! What the log says.

use std::process::Command;

use nearpage_wire::allocation_log::{
    FLAG_NO_STACK, FLAG_REALLOCATED, FLAG_SAMPLED, FLAG_ZEROED, Kind,
};

use crate::harness::{compile, folder, observed, program, same_behaviour};
use crate::library::library;

#[test]
fn every_function_is_logged_with_its_size() {
    let Some(run) = program("every_function.c", &[], &[]) else {
        return;
    };
    run.log.check();
    for size in [
        10001, 10002, 10003, 10004, 10005, 10112, 10007, 10008, 12288,
    ] {
        let found = run.log.allocations(size);
        assert_eq!(found.len(), 1, "{size}");
        let address = found[0].words[1];
        let freed = run
            .log
            .of(Kind::Free)
            .filter(|free| free.words[1] == address && free.words[0] > found[0].words[0]);
        assert!(freed.count() >= 1, "{size}");
    }
    assert_ne!(run.log.allocations(10002)[0].flags & FLAG_ZEROED, 0);
    assert_ne!(run.log.allocations(10003)[0].flags & FLAG_REALLOCATED, 0);
    let maps: Vec<_> = run
        .log
        .of(Kind::Map)
        .filter(|map| [1 << 20, 1 << 22].contains(&map.words[2]))
        .collect();
    assert_eq!(maps.len(), 2);
    assert_eq!(
        (maps[0].words[3], maps[0].words[4] as i64),
        (3 | 0x22 << 32, -1)
    );
    assert_eq!(
        run.log
            .of(Kind::Unmap)
            .filter(|unmap| unmap.words[2] >= 1 << 20)
            .count(),
        2
    );
    let breaks: Vec<_> = run.log.of(Kind::Break).collect();
    assert_eq!(breaks.len(), 2);
    assert_eq!(breaks[0].words[2] - breaks[0].words[1], 65536);
    assert_eq!(
        breaks[1].words[1..3],
        [breaks[0].words[2], breaks[0].words[1]]
    );
}

#[test]
fn every_small_allocation_is_logged_when_asked_for() {
    let Some(run) = program(
        "many_allocations.c",
        &["5000", "33"],
        &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")],
    ) else {
        return;
    };
    run.log.check();
    let found = run.log.allocations(33);
    assert_eq!(found.len(), 5000);
    assert!(
        found
            .iter()
            .all(|record| record.flags & FLAG_SAMPLED == 0 && record.words[3] == 1000)
    );
    assert!(run.log.of(Kind::Free).count() >= 5000);
}

#[test]
fn samples_stand_for_all_small_allocations() {
    let Some(run) = program(
        "many_allocations.c",
        &["1000000", "100"],
        &[("NEARPAGE_SMALL_SAMPLE_BYTES", "8192")],
    ) else {
        return;
    };
    run.log.check();
    let found = run.log.allocations(100);
    assert!(found.iter().all(|record| record.flags & FLAG_SAMPLED != 0));
    let estimate: u64 = found.iter().map(|record| record.words[3]).sum::<u64>() / 1000;
    // About 12,000 samples: five standard deviations are 4.5 %.
    assert!((950_000..1_050_000).contains(&estimate), "{estimate}");
    let counters = run
        .log
        .of(Kind::Counters)
        .max_by_key(|record| record.words[0])
        .unwrap();
    assert!(
        counters.words[3].abs_diff(1_000_000) < 60_000,
        "{counters:?}"
    );
    assert_eq!(counters.words[1], run.log.of(Kind::Allocate).count() as u64);
}

#[test]
fn busy_sites_of_large_allocations_stand_for_all_they_made() {
    for threads in [1, 3u64] {
        let arguments = ["1000000", "5000", &threads.to_string()];
        let Some(run) = program("busy.c", &arguments, &[]) else {
            return;
        };
        run.log.check();
        let found = run.log.allocations(5000);
        let exact = found.iter().filter(|record| record.words[3] == 1000);
        assert!(exact.count() >= 1000, "on credit");
        assert!(
            found
                .iter()
                .all(|record| (record.words[3] > 1000) == (record.flags & FLAG_SAMPLED != 0))
        );
        let made = threads * 1_000_000;
        let estimate: u64 = found.iter().map(|record| record.words[3]).sum::<u64>() / 1000;
        assert!(estimate.abs_diff(made) < made / 5, "{estimate}");
        // The credit and the way to rest, and what time permits.
        assert!(found.len() < 100_000 && run.log_bytes() < 16 << 20);
        let freed = run.log.of(Kind::Free).count();
        assert!(
            freed >= found.len(),
            "{freed} of {} were freed",
            found.len()
        );
        // Beside it, ten thousand rows that stay are each logged, and so is what is really large.
        assert_eq!(run.log.allocations(6000).len(), 10_000);
        assert_eq!(run.log.allocations(1 << 20).len(), 3000);
        let counters = run
            .log
            .of(Kind::Counters)
            .max_by_key(|record| record.words[0])
            .unwrap();
        let logged = found.len() as u64;
        assert!(
            (counters.words[9] + logged).abs_diff(made) < made / 5,
            "{counters:?}"
        );
    }
}

#[test]
fn equal_keys_of_different_stacks_are_told_apart() {
    let Some(run) = program("wrappers.c", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")]) else {
        return;
    };
    run.log.check();
    let sites = run.log.call_sites();
    let mut stacks = Vec::new();
    for size in [11000, 22000] {
        let found = run.log.allocations(size);
        assert_eq!(found.len(), 1000);
        assert!(found.iter().all(
            |record| record.argument == found[0].argument && record.flags & FLAG_NO_STACK == 0
        ));
        stacks.push(sites[&(found[0].process, found[0].argument)].clone());
    }
    assert_eq!(
        stacks[0][0], stacks[1][0],
        "both were allocated in the wrapper"
    );
    assert_ne!(stacks[0][1], stacks[1][1], "which two functions called");
    assert!(stacks[0].len() >= 3, "{stacks:x?}");
    let counters = run
        .log
        .of(Kind::Counters)
        .max_by_key(|record| record.words[0])
        .unwrap();
    assert!(
        counters.words[5] >= 1990,
        "nearly all stacks come from the cache: {counters:?}"
    );
    let mut marks: Vec<_> = run
        .log
        .of(Kind::Mark)
        .map(|mark| (mark.words[0], mark.argument))
        .collect();
    marks.sort_unstable();
    let marks: Vec<_> = marks.into_iter().map(|(_, which)| which).collect();
    assert_eq!(marks, [1, 2]);
}

#[test]
fn marks_work_in_every_kind_of_program() {
    for arguments in [
        &["-no-pie", "-fno-pie"][..],
        &["-fpie", "-pie"],
        &["-static"],
    ] {
        let folder = folder();
        let Some(program) = compile(folder.path(), "wrappers.c", arguments) else {
            return;
        };
        let run = same_behaviour(|| Command::new(&program), &[]);
        let expected = if arguments == ["-static"] { 0 } else { 2 };
        assert_eq!(run.log.of(Kind::Mark).count(), expected, "{arguments:?}");
    }
}

#[test]
fn threads_are_logged_with_their_bounds_and_log_little() {
    let Some(run) = program("threads.c", &["20000"], &[]) else {
        return;
    };
    run.log.check();
    let threads: Vec<_> = run.log.of(Kind::Thread).collect();
    assert_eq!(threads.len(), 20_000 + 2 + 1);
    let mut orders: Vec<_> = threads.iter().map(|thread| thread.words[2]).collect();
    orders.sort_unstable();
    assert!(
        orders.iter().copied().eq(0..threads.len() as u64),
        "every order once"
    );
    for thread in &threads {
        let [stack_low, stack_high, local_low, local_high] = thread.words[3..7] else {
            panic!()
        };
        assert!(
            stack_low < stack_high && local_low < local_high,
            "{thread:x?}"
        );
        assert!(stack_high - stack_low >= 64 << 10);
        let is_main = thread.words[2] == 0;
        assert_eq!(is_main, thread.words[1] == 0);
        assert_eq!(is_main, thread.words[7] == 0);
    }
    assert_eq!(run.log.of(Kind::ThreadExit).count(), threads.len() - 1);
    let records: u64 = run
        .log
        .records
        .iter()
        .map(|record| 8 + 8 * record.words.len() as u64)
        .sum();
    assert!(
        run.log_bytes() < 8 * records + (4 << 20),
        "{} bytes for {records}",
        run.log_bytes()
    );
    // The storage key's destructor runs before nearpage's: what it frees and allocates is seen.
    assert!(run.log.allocations(8000).len() >= 19_000);
    let writers: std::collections::BTreeSet<_> = run
        .log
        .allocations(6000)
        .iter()
        .map(|record| record.tid)
        .collect();
    assert!(
        writers.len() > 100,
        "allocations belong to the threads that made them"
    );
}

#[test]
fn children_have_logs_of_their_own() {
    let Some(run) = program("forks.c", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")]) else {
        return;
    };
    run.log.check();
    let by_process = |size| {
        let mut processes: Vec<_> = run
            .log
            .allocations(size)
            .iter()
            .map(|record| record.process)
            .collect();
        let total = processes.len();
        processes.sort_unstable();
        processes.dedup();
        (total, processes.len())
    };
    assert_eq!(by_process(30000), (1000, 1));
    assert_eq!(by_process(40000), (20 * 500, 20));
    assert_eq!(by_process(50000), (20 * 500, 20));
    assert_eq!(by_process(60000), (500, 1));
    let parent = run.log.allocations(30000)[0].process;
    assert!(
        run.log
            .allocations(40000)
            .iter()
            .all(|record| record.process != parent && record.process.1 > parent.1)
    );
    let counters = run
        .log
        .of(Kind::Counters)
        .filter(|record| record.process == parent)
        .max_by_key(|record| record.words[0])
        .unwrap();
    assert!(
        counters.words[1] > 1000,
        "the child of a vfork has not ended its parent's log"
    );
}

#[test]
fn a_new_image_begins_a_new_segment() {
    let Some(run) = program("execs.c", &[], &[]) else {
        return;
    };
    assert_eq!(run.text(), "shell\n");
    let mut before = (0, 0);
    for step in 0..9 {
        let image = run.log.allocations(20_001 + step)[0].process;
        let after = run.log.allocations(30_001 + step)[0].process;
        assert_eq!(image, after, "an exec that fails changes nothing");
        assert!(before == (0, 0) || before.0 == image.0 && before.1 < image.1);
        let counters = run
            .log
            .of(Kind::Counters)
            .filter(|record| record.process == image)
            .max_by_key(|record| record.words[0]);
        assert!(counters.unwrap().words[1] >= 2, "told before the exec");
        before = image;
    }
}

#[test]
fn loaded_libraries_are_found_as_before_and_observed() {
    let folder = folder();
    let Some(_) = compile(
        folder.path(),
        "plugin.c",
        &["-shared", "-fPIC", "-Wl,-soname,libplugin.so"],
    ) else {
        return;
    };
    std::fs::create_dir(folder.path().join("plugins")).unwrap();
    std::fs::rename(
        folder.path().join("plugin"),
        folder.path().join("plugins/libplugin.so"),
    )
    .unwrap();
    let program = compile(
        folder.path(),
        "loads.c",
        &["-Wl,-rpath,$ORIGIN/plugins", "-ldl"],
    )
    .unwrap();
    let run = same_behaviour(|| Command::new(&program), &[]);
    assert_eq!(run.text(), "not found\n");
    run.log.check();
    for size in [70001, 70002, 70003] {
        assert_eq!(run.log.allocations(size).len(), 50, "{size}");
    }
    let sites = run.log.call_sites();
    let made = &run.log.allocations(70001)[9];
    assert!(
        sites[&(made.process, made.argument)].len() >= 4,
        "a constructor's stack is unwound through the loader"
    );
}

#[test]
fn static_constructors_and_every_new_are_logged() {
    let Some(run) = program("objects.cc", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")]) else {
        return;
    };
    run.log.check();
    assert_eq!(run.log.allocations(80000).len(), 1, "made before main");
    for size in [30001, 30002, 8192, 16384] {
        assert!(!run.log.allocations(size).is_empty(), "{size}");
    }
    assert_eq!(run.log.allocations(12000).len(), 8000);
}

#[test]
fn threads_of_std_thread_are_logged_with_what_they_execute() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "standard_threads.cc", &[]) else {
        return;
    };
    let run = observed(&mut Command::new(&program), &[]);
    assert_eq!(run.output.status.code(), Some(0), "{}", run.errors());
    run.log.check();
    let work = u64::from_str_radix(run.text().trim().trim_start_matches("0x"), 16).unwrap();
    let mut threads: Vec<_> = run.log.of(Kind::Thread).collect();
    threads.sort_by_key(|thread| thread.words[2]);
    let callables: Vec<_> = threads.iter().map(|thread| &thread.words[8..]).collect();
    assert_eq!(callables[0], [0, 0], "the main thread");
    assert_eq!(callables[1][1], work);
    assert_ne!(callables[2][1], work);
    let runs = [callables[1][0], callables[2][0]];
    assert!(runs.iter().all(|run| *run != 0) && runs[0] != runs[1]);
}

#[test]
fn nothing_is_written_when_nothing_is_asked_for() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "many_allocations.c", &[]) else {
        return;
    };
    let run = observed(
        Command::new(&program).args(["10", "10000"]),
        &[("NEARPAGE_DISABLE", "1")],
    );
    assert_eq!(
        (run.text().as_str(), run.errors().as_str(), run.log.segments),
        ("done\n", "", 0)
    );
    let output = Command::new(&program)
        .args(["10", "10000"])
        .env("LD_PRELOAD", library())
        .output()
        .unwrap();
    assert_eq!((output.status.success(), output.stderr.len()), (true, 0));
}

#[test]
fn the_library_runs_on_old_systems() {
    let bytes = std::fs::read(library()).unwrap();
    let mut versions: Vec<(u32, u32)> = Vec::new();
    for at in bytes
        .windows(8)
        .enumerate()
        .filter(|(_, window)| *window == b"GLIBC_2.")
        .map(|(at, _)| at + 8)
    {
        let end = at + bytes[at..].iter().position(|byte| *byte == 0).unwrap();
        let text = std::str::from_utf8(&bytes[at..end]).unwrap();
        let mut numbers = text.split('.').map(|number| number.parse::<u32>().unwrap());
        versions.push((numbers.next().unwrap(), numbers.next().unwrap_or(0)));
    }
    assert!(!versions.is_empty());
    assert!(
        versions.iter().all(|version| *version <= (17, 0)),
        "needs GLIBC_2.x of {versions:?}"
    );
}
