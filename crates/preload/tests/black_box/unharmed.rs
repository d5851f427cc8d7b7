//! What other programs, filters and libraries make of the library: nothing that the program would notice.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use nearpage_wire::allocation_log::Kind;

use crate::harness::{compile, folder, observed, program, same_behaviour};
use crate::library::library;

/// A pipe of which nobody reads; with `full`, there is a reader, and no room.
fn unread(full: bool) -> (Option<std::io::PipeReader>, OwnedFd) {
    use std::io::Write;
    let (reader, mut writer) = std::io::pipe().unwrap();
    if full {
        // 64 KiB is what a pipe holds; where it holds more, this only fills a part.
        writer.write_all(&[0; 64 << 10]).unwrap();
    }
    (full.then_some(reader), writer.into())
}

#[test]
fn standard_error_is_the_programs_alone() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "many_allocations.c", &[]) else {
        return;
    };
    for full in [false, true] {
        let (_reader, standard_error) = unread(full);
        let mut command = Command::new(&program);
        command.args(["1000", "5000"]).stderr(standard_error);
        let run = observed(&mut command, &[("NEARPAGE_LOG", "/no/such/folder")]);
        assert_eq!(
            (run.text().as_str(), run.output.status.code()),
            ("done\n", Some(0))
        );
        assert!(run.said().contains("no such folder"), "{}", run.said());
    }
}

#[test]
fn nothing_is_called_once_the_program_filters_its_system_calls() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "restricts.c", &[]) else {
        return;
    };
    for how in ["prctl", "seccomp"] {
        if Command::new(&program).arg(how).status().unwrap().code() == Some(77) {
            return eprintln!("skipped: no filters of system calls here");
        }
        let samples = folder.path().to_str().unwrap();
        for environment in [
            &[][..],
            &[("NEARPAGE_SMALL_SAMPLE_BYTES", "1")],
            &[("NEARPAGE_SMALL_SAMPLE_BYTES", "2000")],
            &[("NEARPAGE_SAMPLES", samples)],
        ] {
            let command = || {
                let mut command = Command::new(&program);
                command.arg(how);
                command
            };
            let run = same_behaviour(command, environment);
            assert_eq!(
                run.text(),
                "done\n",
                "{how} {environment:?}: {:?}",
                run.output.status
            );
            let said = run.said();
            assert!(
                said.contains("seccomp") && said.lines().count() == 1,
                "{said}"
            );
            assert!(
                run.log.allocations(8000).len() > 100,
                "the log is of the time before"
            );
        }
    }
    let run = observed(Command::new(&program).arg("none"), &[]);
    assert_eq!((run.text().as_str(), run.said().as_str()), ("done\n", ""));
}

#[test]
fn libraries_that_are_bound_deeply_share_the_programs_allocator() {
    let folder = folder();
    let Some(program) = compile(folder.path(), "deepbind.c", &["-rdynamic", "-ldl"]) else {
        return;
    };
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        let arguments = ["-shared", "-fPIC", binding];
        let plugin = compile(folder.path(), "deepbind_plugin.c", &arguments).unwrap();
        for period in ["524288", "2000", "1"] {
            let command = || {
                let mut command = Command::new(&program);
                command.arg(&plugin);
                command
            };
            let run = same_behaviour(command, &[("NEARPAGE_SMALL_SAMPLE_BYTES", period)]);
            assert_eq!(
                run.text(),
                "done\n",
                "{binding} {period}: {:?}",
                run.output.status
            );
            assert!(
                !run.log.allocations(70_000).is_empty(),
                "{binding} {period}"
            );
        }
    }
}

/// Runs `launches HOW PROGRAM` with the library at `at`, which the program removes where it is not ours.
fn launched(how: &str, launches: &Path, program: &Path, at: &Path) -> crate::harness::Run {
    let mut command = Command::new(launches);
    command.arg(how).arg(program).stdin(Stdio::null());
    if at != library() {
        command.arg(at);
    }
    let folder = program.parent().unwrap().to_str().unwrap();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let at = at.to_str().unwrap();
    observed(&mut command, &[("LD_PRELOAD", at), ("PATH", &path)])
}

#[test]
fn programs_with_another_environment_are_observed() {
    let folder = folder();
    let (Some(launches), Some(program)) = (
        compile(folder.path(), "launches.c", &[]),
        compile(folder.path(), "many_allocations.c", &[]),
    ) else {
        return;
    };
    for how in [
        "execve",
        "execv",
        "execvp",
        "execvpe",
        "execveat",
        "fexecve",
        "null",
        "execl",
        "execle",
        "execle-long",
        "execlp",
        "posix_spawn",
        "posix_spawnp",
        "system",
        "popen",
        "vfork-execve",
        "vfork-execvpe",
    ] {
        let run = launched(how, &launches, &program, library());
        assert_eq!(
            (
                run.text().as_str(),
                run.errors().as_str(),
                run.output.status.code()
            ),
            ("done\n", "", Some(0)),
            "{how}"
        );
        let objects = run.log.allocations(10_000).len();
        assert!(objects >= 10, "{how}: {objects}");
        assert!(run.log.of(Kind::Thread).count() >= 1, "{how}");
        assert_eq!(run.said(), "", "{how}");
    }
}

#[test]
fn a_library_that_is_gone_is_no_complaint_of_the_loader() {
    let folder = folder();
    let (Some(launches), Some(program)) = (
        compile(folder.path(), "launches.c", &[]),
        compile(folder.path(), "many_allocations.c", &[]),
    ) else {
        return;
    };
    for how in [
        "execve",
        "execv",
        "execvp",
        "execl",
        "execlp",
        "posix_spawn",
        "posix_spawnp",
        "system",
        "popen",
        "vfork-execl",
    ] {
        let copy = folder.path().join("libnearpage_copy.so");
        std::fs::copy(library(), &copy).unwrap();
        let run = launched(how, &launches, &program, &copy);
        assert_eq!(
            (
                run.text().as_str(),
                run.errors().as_str(),
                run.output.status.code()
            ),
            ("done\n", "", Some(0)),
            "{how}"
        );
    }
}

#[test]
fn programs_with_a_sanitizer_run_as_they_do_without() {
    let folder = folder();
    let Some(launches) = compile(folder.path(), "launches.c", &[]) else {
        return;
    };
    for (kind, name) in [
        ("address", "AddressSanitizer"),
        ("leak", "LeakSanitizer"),
        ("thread", "ThreadSanitizer"),
    ] {
        let program = folder.path().join(kind);
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/many_allocations.c");
        let compiler = Command::new("cc")
            .arg(format!("-fsanitize={kind}"))
            .args(["-pthread", "-o"])
            .args([&program, &source])
            .output();
        if !compiler.is_ok_and(|made| made.status.success())
            || !Command::new(&program)
                .args(["10", "10000"])
                .output()
                .is_ok_and(|run| run.status.success())
        {
            eprintln!("skipped: no program with -fsanitize={kind} here");
            continue;
        }
        for how in [
            "execv",
            "execve",
            "execvp",
            "execl",
            "posix_spawn",
            "vfork-execve",
        ] {
            let run = launched(how, &launches, &program, library());
            assert_eq!(
                (
                    run.text().as_str(),
                    run.errors().as_str(),
                    run.output.status.code()
                ),
                ("done\n", "", Some(0)),
                "{kind} {how}"
            );
            assert!(run.said().contains(name), "{kind} {how}: {}", run.said());
        }
    }
}

/// Under a limit of address space (`ulimit -v`) what an arena sets aside is what the program lacks.
#[test]
fn threads_that_allocate_nothing_get_no_arena() {
    if let Some(run) = program("quiet_threads.c", &[], &[]) {
        assert_eq!(run.text(), "0 arenas\ndone\n");
    }
}
