//! Programs in every kind of trouble go on as they would without the library.

use std::path::Path;
use std::process::Command;

use nearpage_wire::allocation_log::{FLAG_NO_STACK, Kind};

use crate::harness::{compile, folder, messages, observed, program, same_behaviour};
use crate::library::library;
use crate::messages::messages_in;

#[test]
fn signal_handlers_may_allocate() {
    let Some(run) = program("signals.c", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", "64")]) else {
        return;
    };
    assert!(run.log.of(Kind::Map).count() > 100);
    if let Some(run) = program("signals.c", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")]) {
        assert!(run.log.of(Kind::Map).count() > 100);
    }
}

#[test]
fn objects_keep_their_bytes() {
    for period in ["1", "64", "2000", "524288"] {
        let Some(run) = program("shuffle.c", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", period)])
        else {
            return;
        };
        run.log.check();
    }
}

#[test]
fn a_daemon_goes_on_logging_and_its_files_stay_clean() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "daemon.c", &[]) else {
        return;
    };
    let own = folder.path().join("own");
    let command = || {
        let _ = std::fs::remove_file(&own);
        let mut command = Command::new(&program);
        command.arg(&own);
        command
    };
    let run = same_behaviour(command, &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")]);
    assert_eq!(run.text(), "0\n");
    assert_eq!(run.log.allocations(30000).len(), 20_000);
    // The log ends early: the line must not go to what is descriptor 2 by now.
    let run = same_behaviour(
        command,
        &[
            ("NEARPAGE_SMALL_SAMPLE_BYTES", "1"),
            ("NEARPAGE_LOG_BYTES_MAX", "300000"),
        ],
    );
    assert_eq!(run.text(), "0\n");
    assert!(run.log.allocations(30000).len() < 10_000);
}

#[test]
fn a_server_that_gives_up_its_rights_is_logged_to_the_end() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "gives_up.c", &[]) else {
        return;
    };
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let ways = [
        "setuid",
        "seteuid",
        "setreuid",
        "setresuid",
        "syscall",
        "chroot",
    ];
    for (way, is_worker) in ways
        .map(|way| (way, false))
        .into_iter()
        .chain([("setuid", true)])
    {
        let command = || {
            let mut command = Command::new(&program);
            command.arg(way).arg(&empty);
            command.args(is_worker.then_some("worker"));
            command
        };
        let run = same_behaviour(command, &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")]);
        if run.output.status.code() == Some(77) {
            eprintln!("skipped: only root can give up rights");
            return;
        }
        assert_eq!(
            (run.text().as_str(), run.said().as_str()),
            ("done\n", ""),
            "{way}"
        );
        assert_eq!(run.log.allocations(30000).len(), 20_010, "{way}");
        // The reserve is sparse: only what is used takes space.
        assert!(
            run.log_disk_bytes() < 4 << 20,
            "{way}: {}",
            run.log_disk_bytes()
        );
    }
}

#[test]
fn limits_switch_the_log_off_with_one_line() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "many_allocations.c", &[]) else {
        return;
    };
    let arguments = ["100000", "5000"];
    let run = observed(
        Command::new(&program).args(arguments),
        &[
            ("NEARPAGE_SMALL_SAMPLE_BYTES", "1"),
            ("NEARPAGE_LOG_BYTES_MAX", "1000000"),
        ],
    );
    assert_eq!(run.text(), "done\n");
    assert_eq!(run.said().lines().count(), 1, "{}", run.said());
    assert!(run.log_bytes() <= 1_000_000 && run.log.of(Kind::Allocate).count() > 1000);

    let run = observed(
        Command::new(&program).args(arguments),
        &[
            ("NEARPAGE_SMALL_SAMPLE_BYTES", "1"),
            ("TEST_FILE_BYTES", "200000"),
        ],
    );
    assert_eq!(
        (run.text().as_str(), run.output.status.code()),
        ("done\n", Some(0))
    );
    assert_eq!(run.said().lines().count(), 1, "{}", run.said());
    assert!(run.said().contains("file size limit"), "{}", run.said());

    let run = observed(
        Command::new(&program).args(arguments),
        &[("TEST_ADDRESS_BYTES", "209715200")],
    );
    assert_eq!(
        (run.text().as_str(), run.output.status.code()),
        ("done\n", Some(0)),
        "{}",
        run.errors()
    );

    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -v 60000; exec \"$0\" 1000 5000"])
        .arg(&program);
    let run = observed(&mut shell, &[]);
    assert_eq!(
        (run.text().as_str(), run.output.status.code()),
        ("done\n", Some(0)),
        "{}",
        run.errors()
    );
}

#[test]
fn a_program_may_take_its_own_means_away() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "hostile.c", &[]) else {
        return;
    };
    for how in ["files", "close", "space", "size", "stack"] {
        for further in [&[][..], &["later"]] {
            for period in ["524288", "1"] {
                let mut command = Command::new(&program);
                command.arg(how).args(further);
                let run = observed(&mut command, &[("NEARPAGE_SMALL_SAMPLE_BYTES", period)]);
                let said = run.said();
                assert_eq!(run.errors(), "", "standard error is the program's");
                assert!(run.output.status.success(), "{how}: {:?}", run.output);
                assert_eq!(run.text(), "done\n", "{how}");
                assert!(said.lines().count() <= 1, "{how}: {said}");
                if how == "size" && period == "1" {
                    assert!(said.contains("file size limit"), "{said}");
                }
                if how == "files" && period == "1" {
                    assert!(said.contains("too many open files"), "{said}");
                }
                if how == "close" || how == "stack" {
                    assert_eq!(said, "", "{how}");
                    run.log.check();
                    assert_eq!(run.log.of(Kind::Thread).count(), 4);
                }
            }
        }
    }
}

#[test]
fn constructors_may_allocate_before_ours_runs() {
    let folder = folder();
    let Some(early) = compile(folder.path(), "early.c", &["-shared", "-fPIC", "-ldl"]) else {
        return;
    };
    let program = compile(folder.path(), "many_allocations.c", &[]).unwrap();
    for period in ["524288", "64", "1"] {
        for order in [[library(), &early], [&early, library()]] {
            let both = order.map(|path| path.to_str().unwrap()).join(":");
            let run = observed(
                Command::new(&program).args(["10", "10000"]),
                &[
                    ("LD_PRELOAD", &both),
                    ("NEARPAGE_SMALL_SAMPLE_BYTES", period),
                ],
            );
            assert_eq!(
                (run.text().as_str(), run.errors().as_str()),
                ("done\n", ""),
                "{:?}",
                run.output.status
            );
            run.log.check();
            assert_eq!(run.log.allocations(7000).len(), 100);
        }
    }
}

#[test]
fn unwinding_keeps_to_its_budget_and_says_so() {
    let Some(run) = program("deep.c", &[], &[]) else {
        return;
    };
    run.log.check();
    let found = run.log.allocations(4500);
    assert_eq!(found.len(), 60_000, "objects that stay are each logged");
    let omitted = found
        .iter()
        .filter(|record| record.flags & FLAG_NO_STACK != 0)
        .count() as u64;
    let counters = run
        .log
        .of(Kind::Counters)
        .max_by_key(|record| record.words[0])
        .unwrap();
    let (unwound, cached, left_out) = (counters.words[4], counters.words[5], counters.words[6]);
    // The C library allocates too.
    assert!(left_out - omitted < 10, "{omitted}: {counters:?}");
    assert!(left_out > 0 && unwound > 0, "{counters:?}");
    assert!(unwound + cached + left_out >= 60_000, "{counters:?}");
}

#[test]
fn a_missing_log_folder_is_one_line() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "many_allocations.c", &[]) else {
        return;
    };
    for wrong in ["/no/such/folder", "relative"] {
        let run = observed(
            Command::new(&program).args(["1000", "5000"]),
            &[("NEARPAGE_LOG", wrong)],
        );
        assert!(run.output.status.success());
        assert_eq!((run.text().as_str(), run.errors().as_str()), ("done\n", ""));
        assert_eq!(run.said().lines().count(), 1, "{}", run.said());
    }
}

#[test]
fn a_full_disk_is_no_bus_error() {
    on_a_full_disk("many_allocations.c", ["100000", "5000"]);
}

#[test]
fn a_full_disk_is_no_bus_error_for_a_log_whose_end_was_made_in_advance() {
    on_a_full_disk("gives_up.c", ["chroot", "/proc"]);
}

fn on_a_full_disk(program: &str, arguments: [&str; 2]) {
    let folder = folder();
    let Some(program) = compile(folder.path(), program, &[]) else {
        return;
    };
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // In a mount namespace of its own, as root or as a user who may make one.
    let script = r#"mount -t tmpfs -o size=512k none "$1" || exit 77; LD_PRELOAD="$2" NEARPAGE_SMALL_SAMPLE_BYTES=1 NEARPAGE_LOG="$1" NEARPAGE_MESSAGES="$3" "$0" "$4" "$5" && ls "$1" | wc -l"#;
    let said = messages(folder.path());
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--map-root-user", "sh", "-c", script])
        .arg(&program)
        .arg(&disk)
        .arg(library())
        .arg(&said)
        .args(arguments);
    let output = match command.output() {
        Ok(output) if output.status.success() => output,
        _ => return eprintln!("skipped: no mount namespace to be had here"),
    };
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(text.starts_with("done\n"), "{text}{errors}");
    assert_eq!(errors, "");
    let said = messages_in(&std::fs::read(&said).unwrap());
    assert!(
        said.contains("disk full") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_program_with_its_own_allocator_uses_it() {
    let Some(run) = program("own_malloc.c", &[], &[]) else {
        return;
    };
    assert!(run.log.allocations(10000).is_empty());
}

#[test]
fn another_allocator_is_asked_never_guessed_about() {
    for arguments in [
        &["-shared", "-fPIC"][..],
        &["-shared", "-fPIC", "-DTELLS_SIZE"],
    ] {
        let folder = folder();
        let Some(library) = compile(folder.path(), "allocator.c", arguments) else {
            return;
        };
        let library = library.to_str().unwrap();
        for (source, size) in [("many_allocations.c", 20_000), ("threads.c", 5000)] {
            let program = compile(folder.path(), source, &[library]).unwrap();
            let command = || {
                let mut command = Command::new(&program);
                command.args(["300", "20000"]);
                command
            };
            for period in ["200", "1"] {
                let run = same_behaviour(command, &[("NEARPAGE_SMALL_SAMPLE_BYTES", period)]);
                assert_eq!(run.text(), "done\n");
                run.log.check();
                assert!(run.log.allocations(size).len() >= 300);
                assert_eq!(
                    run.log.of(Kind::Map).count(),
                    0,
                    "its mappings are not the program's"
                );
            }
        }
    }
}

#[test]
fn live_samples_beyond_the_range_are_served() {
    // More live samples than the range holds: the rest comes from the real allocator.
    let Some(run) = program("shuffle.c", &[], &[("NEARPAGE_SMALL_SAMPLE_BYTES", "2")]) else {
        return;
    };
    assert!(run.log.of(Kind::Allocate).count() > 10_000);
}

/// Runs a program of the system, if it is there, with usual and with heavy sampling.
fn real_program(program: &str, arguments: &[&str]) {
    if Command::new(program).arg("--version").output().is_err() && !Path::new(program).exists() {
        return eprintln!("skipped: there is no {program} here");
    }
    for period in ["524288", "256", "1"] {
        let run = same_behaviour(
            || {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            },
            &[("NEARPAGE_SMALL_SAMPLE_BYTES", period)],
        );
        assert!(run.output.status.success(), "{program}: {}", run.errors());
        run.log.check();
        assert!(run.log.of(Kind::Thread).count() >= 1);
    }
}

#[test]
fn bash_is_unchanged() {
    real_program(
        "bash",
        &[
            "-c",
            "for i in 1 2 3 4 5 6; do (echo $i; exit $i) | cat; x=$(echo a $x); done; echo $x; exec ls /",
        ],
    );
}

#[test]
fn python_is_unchanged() {
    let script = "
import threading, subprocess, json
def work(): json.loads(json.dumps([str(i) * 20 for i in range(20000)]))
threads = [threading.Thread(target=work) for _ in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
print(subprocess.check_output(['echo', 'hello']), sum(len(bytes(i)) for i in range(0, 200000, 999)))
import ctypes, sqlite3
print(sqlite3.connect(':memory:').execute('select count(*) from (with recursive c(x) as (select 1 union all select x+1 from c limit 50000) select x from c)').fetchone())
";
    real_program("python3", &["-c", script]);
}

#[test]
fn java_is_unchanged() {
    real_program("java", &["-version"]);
}

#[test]
fn node_is_unchanged() {
    real_program(
        "node",
        &[
            "-e",
            "let a = []; for (let i = 0; i < 2e5; i++) a.push({x: i, s: 's' + i}); console.log(a.length, Buffer.alloc(1e6).length)",
        ],
    );
}

#[test]
fn the_compiler_is_unchanged() {
    let folder = folder();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/objects.cc");
    real_program(
        "c++",
        &[
            "-O1",
            "-S",
            "-o",
            folder.path().join("out.s").to_str().unwrap(),
            source.to_str().unwrap(),
        ],
    );
}
