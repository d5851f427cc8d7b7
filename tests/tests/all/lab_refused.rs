//! `nearpage lab` with errors: one line gives the reason, and nothing is left running. Skipped where the lab's emulator
//! isn't built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nearpage_tests::lab::{BOOT_LIMIT, TIME_LIMIT, in_lab, is_built, lab};
use nearpage_tests::{Case, Finished, nearpage_path};

#[test]
fn a_guest_without_memory_says_so() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-without").limit(TIME_LIMIT);
    let options = [&["--memory", "64M"], &BOOT_LIMIT[..]].concat();
    let finished = in_lab(&case, &options, &["tail", "/dev/zero"]).exits(137);
    let line = "out of memory, ended tail: --memory gives nodes more than 64 MiB each";
    assert!(finished.stderr.contains(line), "{finished}");
}

/// Checks for exactly one line on standard error, with `words`.
fn one_line(finished: &Finished, words: &str) {
    assert!(finished.stderr.contains(words), "{words}: {finished}");
    assert_eq!(finished.stderr.trim_end().lines().count(), 1, "{finished}");
}

#[test]
fn machines_that_cannot_be_modelled_are_refused() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-machines");
    let node = "[[node]]\nid = 0\ncpus = \"0\"\n";
    for (name, text, words) in [
        (
            "without-caches.toml",
            format!("name = \"none\"\npage_bytes = 4096\n{node}"),
            "no caches",
        ),
        (
            "broken.toml",
            format!("name = \"broken\n{node}"),
            "broken.toml",
        ),
        (
            "without-nodes.toml",
            "name = \"none\"\npage_bytes = 4096\n".to_owned(),
            "without-nodes.toml",
        ),
    ] {
        case.write(name, text);
        let finished = case.nearpage(["lab", "-q", "--machine", name, "--", "true"]);
        one_line(&finished.exits(1), words);
    }
    let finished = case.nearpage(["lab", "--machine", "no-such", "--", "true"]);
    one_line(&finished.exits(2), "no-such");
    for cpus in ["17", "3", "1000000"] {
        let mut many = case.command(nearpage_path());
        many.args([
            "lab",
            "--machine",
            "carrefour-a",
            "--cpus",
            cpus,
            "--",
            "true",
        ]);
        one_line(&case.run(many).exits(2), "expected 4 to 16");
    }
}

#[test]
fn a_guest_that_cannot_boot_says_so() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-refused").limit(TIME_LIMIT);
    let fails = |options: &[&str], status: i32, words: &str| {
        let options = [options, &["-q"]].concat();
        one_line(&in_lab(&case, &options, &["true"]).exits(status), words);
    };
    fails(
        &["--boot-limit", "1", "--whole"],
        1,
        "the guest did not boot within 1 s of processor time",
    );
    let kernel = case.path("boot/vmlinuz-0");
    for folder in ["boot", "lib/modules/0"] {
        fs::create_dir_all(case.path(folder)).unwrap();
    }
    // The first bytes of a kernel for 64-bit ARM.
    let mut image = vec![0; 4096];
    image[56..60].copy_from_slice(b"ARM\x64");
    for image in [&b"no kernel"[..], &image] {
        fs::write(&kernel, image).unwrap();
        let kernel = kernel.to_string_lossy();
        fails(&["--kernel", &kernel], 1, "no Linux kernel for x86-64");
    }
    fails(&["--kernel", "/no/such/vmlinuz-1"], 1, "no such file");
    fails(&["--memory", "1000G"], 2, "MiB that this machine has free");
}

#[test]
fn a_full_disk_is_named() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-full").limit(TIME_LIMIT);
    let small = case.path("small");
    fs::create_dir(&small).unwrap();
    let in_namespace = |script: &str| {
        let mut command = case.command("unshare");
        command.args(["--mount", "sh", "-c", script]);
        case.run(command)
    };
    if in_namespace("mount -t tmpfs none small").code != Some(0) {
        eprintln!("skipped: no mounts here");
        return;
    }
    let nearpage = nearpage_path();
    // Temporary folders too small for the guest's first files, and for its output.
    for (size, words) in [("64k", "No space left on device"), ("14m", " is full: ")] {
        let script = format!(
            "mount -t tmpfs -o size={size} none small && TMPDIR={} exec {} lab -q --machine carrefour-a --cpus 4 \
             --boot-limit 300 -- head -c 16M /dev/zero >/dev/null",
            small.display(),
            nearpage.display()
        );
        let finished = in_namespace(&script).exits(1);
        let last = finished.stderr.trim_end().lines().next_back();
        assert!(last.is_some_and(|line| line.contains(words)), "{finished}");
    }
}

/// Path of the emulator that process `parent` has started.
fn emulator_of(parent: u32) -> Option<PathBuf> {
    let parent = format!("PPid:\t{parent}\n");
    let processes = fs::read_dir("/proc").expect("/proc");
    let mut folders = processes.filter_map(|process| Some(process.ok()?.path()));
    folders.find(|folder| {
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        let program = fs::read_link(folder.join("exe")).unwrap_or_default();
        status.contains(&parent) && program.ends_with("lab/qemu-system-x86_64")
    })
}

#[test]
fn an_interrupt_ends_the_guest() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-interrupted");
    let _turn = nearpage_tests::lab::turn();
    let mut command = lab(&case);
    command.args(["-q", "--", "sleep", "1000000"]);
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let emulator = loop {
        if let Some(emulator) = emulator_of(child.id()) {
            break emulator;
        }
        let patient = begun.elapsed() < TIME_LIMIT;
        assert!(patient, "no emulator was started");
        std::thread::sleep(Duration::from_millis(50));
    };
    let interrupted = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupted.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!emulator.exists(), "{}", emulator.display());
    assert!(!Path::new(&format!("/tmp/nearpage-lab-{}-0", child.id())).exists());
}
