//! Unusual programs run under nearpage as they do natively. Where their objects are unknown, the recording says why.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nearpage_tests::{Case, Finished, nearpage_path, target};

/// Walks an array of 16 MiB in a separate function for half a second of CPU time, and prints `done`.
const WALK: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#define BYTES (16 << 20)
__attribute__((noinline)) static char *make_table(void) {
#ifdef BARE
    return (char *)syscall(SYS_mmap, 0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#else
    return malloc(BYTES);
#endif
}
int main(void) {
    volatile char *table = make_table();
    memset((char *)table, 1, BYTES);
    unsigned long at = 88172645463325252ul;
    while (clock() < CLOCKS_PER_SEC / 2)
        for (int i = 0; i < 200000; i++) {
            at ^= at << 13, at ^= at >> 7, at ^= at << 17;
            table[at % BYTES]++;
        }
    puts("done");
    return 0;
}
"#;

/// Compiles [`WALK`]; `None` if the compiler fails.
fn walk(case: &Case, name: &str, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let file = case.write("walk.c", WALK);
    let program = case.path(name);
    let mut command = Command::new(compiler);
    command
        .args(["-g", "-O1"])
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(file);
    let made = command.output().is_ok_and(|made| made.status.success());
    if !made {
        eprintln!(
            "skipped: {compiler} {} makes no program here",
            options.join(" ")
        );
    }
    made.then_some(program)
}

/// Records a command into the case's folder `r`.
fn record(case: &Case, words: &[&str]) -> Finished {
    let fixed = ["record", "--force", "--rate", "499", "-o", "r", "--"];
    case.nearpage(fixed.iter().chain(words))
}

fn report(case: &Case) -> Finished {
    case.nearpage(["report", "r"]).success()
}

/// The report's text without line breaks.
fn words(report: &Finished) -> String {
    let words: Vec<&str> = report.stdout.split_whitespace().collect();
    words.join(" ")
}

#[test]
fn programs_with_a_sanitizer_are_recorded_and_run_without_the_library() {
    for (kind, name) in [
        ("address", "AddressSanitizer"),
        ("thread", "ThreadSanitizer"),
        ("leak", "LeakSanitizer"),
    ] {
        let case = Case::new(kind);
        let option = format!("-fsanitize={kind}");
        let Some(program) = walk(&case, "walk", "cc", &[&option]) else {
            continue;
        };
        // Some sanitizers don't run on some kernels, in particular with address randomisation.
        let mut alone = Command::new("setarch");
        if !alone
            .arg("-R")
            .arg(&program)
            .output()
            .is_ok_and(|run| run.status.success())
        {
            eprintln!("skipped: {kind} does not run here");
            continue;
        }
        let place = ["run", "--place", "heap>=64K=interleave", "--"];
        for before in [&["setarch", "-R"][..], &[]] {
            if before.is_empty() && kind == "thread" {
                continue;
            }
            let command: Vec<&str> = before.iter().copied().chain(["./walk"]).collect();
            let recorded = record(&case, &command).success();
            assert_eq!(recorded.stdout, "done\n", "{recorded}");
            assert_eq!(recorded.stderr.matches(name).count(), 1, "{recorded}");
            let run = case.nearpage(place.iter().chain(&command)).success();
            assert_eq!(run.stdout, "done\n", "{run}");
            assert_eq!(run.stderr.matches(name).count(), 1, "{run}");
        }
    }
}

#[test]
fn a_program_with_an_emptied_environment_is_known() {
    let case = Case::new("emptied");
    let Some(_) = walk(&case, "walk", "cc", &[]) else {
        return;
    };
    record(&case, &["sh", "-c", "exec env -i ./walk"]).success();
    assert!(
        report(&case).stdout.contains("make_table"),
        "{}",
        report(&case)
    );
}

#[test]
fn every_program_without_a_log_is_named_with_the_reason() {
    let case = Case::new("reasons");
    let Some(_) = walk(&case, "walk", "cc", &[]) else {
        return;
    };
    let limited = ["sh", "-c", "ulimit -f 8; exec ./walk"];
    record(&case, &limited).success();
    let said = words(&report(&case));
    assert!(said.contains("file size limit: raise ulimit -f"), "{said}");
    assert!(!said.contains("another user"), "{said}");
    // The suggested remedy works.
    record(&case, &["sh", "-c", "ulimit -f unlimited; exec ./walk"]).success();
    assert!(report(&case).stdout.contains("make_table"));

    if walk(&case, "still", "cc", &["-static"]).is_some() {
        record(&case, &["sh", "-c", "./walk; ./still; true"]).success();
        let said = words(&report(&case));
        assert!(
            said.contains("no heap objects are known of 1 process"),
            "{said}"
        );
        assert!(said.contains("statically linked"), "{said}");
    }
}

#[test]
fn a_pid_namespace_is_seen_through_or_named() {
    let case = Case::new("namespace");
    let Some(_) = walk(&case, "walk", "cc", &[]) else {
        return;
    };
    let inside = |options: &[&'static str]| {
        let command = ["unshare", "--pid", "--fork"];
        let rest = ["sh", "-c", "./walk; true"];
        let words: Vec<&str> = [&command[..], options, &rest].concat();
        let works = Command::new(words[0])
            .args(&words[1..words.len() - 3])
            .arg("true")
            .output();
        if !works.is_ok_and(|run| run.status.success()) {
            eprintln!("skipped: {} is refused here", words.join(" "));
            return None;
        }
        record(&case, &words).success();
        Some(report(&case))
    };
    if let Some(report) = inside(&[]) {
        assert!(report.stdout.contains("make_table"), "{report}");
        assert!(!words(&report).contains("namespace"), "{report}");
    }
    // With a separate /proc, programs in the namespace don't know their process ids outside.
    if let Some(report) = inside(&["--mount-proc"]) {
        assert!(words(&report).contains("PID namespace"), "{report}");
    }
}

#[test]
fn no_time_is_reported_where_the_kernel_ends_sampling() {
    let case = Case::new("privileged");
    let Some(program) = walk(&case, "walk", "cc", &[]) else {
        return;
    };
    if !fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        return eprintln!("skipped: not root");
    }
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let recorded = record(&case, &["./walk"]).success();
    assert!(
        recorded.stderr.contains("no samples of walk ("),
        "{recorded}"
    );
    assert!(recorded.stderr.contains("setuid"), "{recorded}");
    assert!(!recorded.stderr.contains("CPU time"), "{recorded}");
    // A child without samples, whose parent has samples.
    let recorded = record(&case, &["sh", "-c", "./walk; true"]).success();
    assert!(
        recorded.stderr.contains("no samples of walk ("),
        "{recorded}"
    );
}

#[test]
fn programs_of_another_c_library_are_recorded_and_placed() {
    let case = Case::new("musl");
    let Some(_) = walk(&case, "walk", "musl-gcc", &[]) else {
        return;
    };
    record(&case, &["./walk"]).success();
    assert!(
        report(&case).stdout.contains("make_table"),
        "{}",
        report(&case)
    );
    let run = case
        .nearpage(["run", "--place", "heap>=1M=interleave", "--", "./walk"])
        .success();
    assert!(run.stderr.contains("placed 1 object, 16 MiB"), "{run}");
}

#[test]
fn memory_of_the_library_does_not_count() {
    let case = Case::new("bare");
    let Some(_) = walk(&case, "walk", "cc", &["-DBARE"]) else {
        return;
    };
    record(&case, &["./walk"]).success();
    let report = report(&case);
    let row = report
        .stdout
        .lines()
        .find(|line| line.contains("arenas"))
        .unwrap_or_default();
    assert!(row.contains(" 16 MiB "), "{report}");
}

#[test]
fn a_folder_with_a_space_leaves_no_complaint_to_children_that_live_on() {
    let case = Case::new("space");
    let folder = case.path("my tools");
    fs::create_dir(&folder).unwrap();
    let built = nearpage_path();
    for name in ["nearpage", "libnearpage_preload.so"] {
        let from = built.parent().unwrap_or(Path::new("/")).join(name);
        if !from.exists() {
            return eprintln!("skipped: no {name} in {}", target().display());
        }
        case.program_copy(&from, Path::new("my tools").join(name));
    }
    // The child goes on after the recorder has ended, whose symbolic link has to stay: the child executes programs at any time.
    let script = "(while [ ! -e go ]; do sleep 0.05; done; /bin/ls / >/dev/null; echo end) > out 2>&1 & exit 3";
    let mut record = case.command(folder.join("nearpage"));
    record.args(["record", "-q", "-o", "r", "--", "bash", "-c", script]);
    case.run(record).exits(3);
    case.write("go", "");
    while !case.read("out").ends_with("end\n") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(case.read("out"), "end\n");
}
