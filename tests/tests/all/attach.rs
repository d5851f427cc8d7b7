//! Recording running processes, control groups and the whole machine. No test depends on the machine's speed: programs
//! run until the test ends them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_tests::{Case, Finished, nearpage_path};
use serde_json::Value;

/// `busy THREADS SLEEPERS MAPPINGS`: THREADS threads read all of a static array and a heap block, SLEEPERS threads
/// sleep. Creates `ready` once all of them run, and ends when its folder has a file `end`. A file `more` makes it start
/// a thread and a process that use arrays of their own.
const BUSY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define CELLS (4u << 20)
unsigned at_start[CELLS], by_thread[CELLS], by_child[CELLS];
static volatile int over;
static volatile unsigned used;
static void *use(void *array) {
    unsigned *cells = array, i = 1, sum = 0;
    while (!over) {
        i = i * 1103515245u + 12345u;
        sum += cells[i % CELLS];
    }
    used = sum;
    return 0;
}
static void *rest(void *none) { while (!over) usleep(100000); return none; }
static void start(void *(*run)(void *), void *array) {
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    if (pthread_create(&thread, &small, run, array)) { perror("thread"); exit(1); }
}
static int there(const char *name) { return access(name, F_OK) == 0; }
int main(int count, char **words) {
    int threads = atoi(words[1]), sleepers = count > 2 ? atoi(words[2]) : 0;
    int mappings = count > 3 ? atoi(words[3]) : 0, child = 0, more = 0;
    for (int i = 0; i < mappings; i++)
        if (mmap(0, 4096, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return perror("mmap"), 1;
    // Memory that nobody wrote to is one page of zeros, which every cache has.
    for (unsigned i = 0; i < CELLS; i++) at_start[i] = by_thread[i] = by_child[i] = i;
    for (int i = 0; i < threads; i++) start(use, at_start);
    for (int i = 0; i < sleepers; i++) start(rest, 0);
    close(open("ready", O_CREAT | O_WRONLY, 0644));
    while (!there("end")) {
        if (there("more") && !more++) {
            start(use, by_thread);
            if ((child = fork()) == 0) {
                start(use, by_child);
                while (!there("end")) usleep(10000);
                _exit(0);
            }
        }
        usleep(10000);
    }
    over = 1;
    if (child) waitpid(child, 0, 0);
    puts("as always");
    return 7;
}
"#;

fn compile(case: &Case) -> PathBuf {
    case.compile("busy", BUSY, &["-pthread"])
}

/// A program that runs until the test tells it to end, or ends itself.
struct Running(Child);

impl Running {
    fn start(case: &Case, mut command: Command) -> Self {
        command.current_dir(case.folder()).stdin(Stdio::null());
        command.stdout(fs::File::create(case.path("output")).unwrap());
        let running = Self(command.spawn().unwrap());
        until("the program runs", || case.path("ready").exists());
        running
    }

    fn busy(case: &Case, words: &[&str]) -> Self {
        let mut command = case.command(compile(case));
        command.args(words);
        Self::start(case, command)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Checks that observation left the program unharmed: its exit status and output are as always.
    fn ends_as_always(mut self, case: &Case) {
        assert!(self.0.try_wait().unwrap().is_none(), "it still runs");
        case.write("end", "");
        let status = self.0.wait().unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(case.read("output"), "as always\n");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "waiting until {what}"
        );
        sleep(Duration::from_millis(10));
    }
}

fn recorder(case: &Case, words: &[&str]) -> Command {
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "--rate", "997", "-o", "out"])
        .args(words);
    record
}

fn record(case: &Case, words: &[&str]) -> Finished {
    case.run(recorder(case, words))
}

/// A recorder that runs until the process it is attached to ends.
fn attached(case: &Case, running: &Running) -> Child {
    let recorder = recorder(case, &["-q", "-p", &running.pid()])
        .spawn()
        .unwrap();
    until("it is attached", || {
        case.path("out/recording.json").exists()
    });
    recorder
}

fn report(case: &Case) -> Value {
    let report = case.nearpage(["report", "--json", "out"]).success();
    serde_json::from_str(&report.stdout).unwrap_or_else(|error| panic!("{error}\n{report}"))
}

fn metadata(case: &Case) -> Value {
    serde_json::from_str(&case.read("out/recording.json")).unwrap()
}

/// Number of accesses to the object called `name`.
fn accesses(report: &Value, name: &str) -> u64 {
    let objects = report["objects"].as_array().unwrap();
    let named = objects.iter().filter(|object| object["name"] == name);
    named
        .map(|object| object["accesses"].as_f64().unwrap() as u64)
        .sum()
}

/// Checks for one line on standard error that contains all of `words`, and no recording.
#[track_caller]
fn refused(case: &Case, finished: Finished, words: &[&str]) {
    let finished = finished.exits(1);
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    for word in words {
        assert!(
            finished.stderr.contains(word),
            "expected {word:?}\n{finished}"
        );
    }
    assert!(
        !case.path("out").exists(),
        "nothing half-written\n{finished}"
    );
}

fn root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("Uid:"));
    line.is_some_and(|line| line.split_whitespace().nth(2) == Some("0"))
}

#[test]
fn a_running_process_is_recorded_and_goes_on() {
    let case = Case::new("attach");
    let running = Running::busy(&case, &["2"]);
    let recorded = record(&case, &["-p", &running.pid(), "--duration", "2s"]).success();
    assert!(
        recorded.stderr.contains("nearpage report out"),
        "{recorded}"
    );
    let found = report(&case);
    let (all, here) = (
        found["accesses"].as_u64().unwrap(),
        accesses(&found, "at_start"),
    );
    assert!(all > 50 && here as f64 > 0.9 * all as f64, "{found:#}");
    let metadata = metadata(&case);
    assert_eq!(
        metadata["attached"]["target"],
        format!("process {}", running.pid())
    );
    assert!(
        metadata["attached"]["coverage"]
            .as_str()
            .unwrap()
            .starts_with("3 threads, each")
    );
    assert_eq!(metadata["exit_status"], Value::Null);
    let plan = case
        .nearpage(["plan", "out", "--machine", "opteron-4"])
        .success();
    assert!(plan.stdout.contains("at_start"), "{plan}");
    running.ends_as_always(&case);
}

#[test]
fn threads_created_later_are_recorded() {
    let case = Case::new("attach_born");
    let running = Running::busy(&case, &["1"]);
    let mut recorder = attached(&case, &running);
    sleep(Duration::from_millis(500));
    case.write("more", "");
    sleep(Duration::from_secs(2));
    // Without --duration, the recorder ends with the observed process.
    running.ends_as_always(&case);
    assert_eq!(recorder.wait().unwrap().code(), Some(0));
    let found = report(&case);
    for name in ["at_start", "by_thread", "by_child"] {
        assert!(accesses(&found, name) > 10, "{name}\n{found:#}");
    }
}

#[test]
fn an_interrupt_ends_the_recording_and_not_the_program() {
    let case = Case::new("attach_interrupt");
    let running = Running::busy(&case, &["1"]);
    let mut recorder = attached(&case, &running);
    sleep(Duration::from_secs(1));
    let mut kill = case.command("kill");
    kill.args(["-INT", &recorder.id().to_string()]);
    case.run(kill).success();
    assert_eq!(recorder.wait().unwrap().code(), Some(0));
    assert_eq!(metadata(&case)["status"], "complete");
    assert!(accesses(&report(&case), "at_start") > 10);
    running.ends_as_always(&case);
}

#[test]
fn only_selected_objects_are_recorded() {
    let case = Case::new("attach_wanted");
    let running = Running::busy(&case, &["2"]);
    case.write("more", "");
    let words = [
        "-p",
        &running.pid(),
        "--duration",
        "2s",
        "--object",
        "by_thread",
    ];
    let recorded = record(&case, &words).success();
    assert!(
        recorded
            .stderr
            .contains("outside --range, --object or --event left out"),
        "{recorded}"
    );
    let found = report(&case);
    let kept = accesses(&found, "by_thread");
    assert!(
        kept > 10 && kept == found["accesses"].as_u64().unwrap(),
        "{found:#}"
    );
    running.ends_as_always(&case);
}

#[test]
fn impossible_targets_are_refused_in_one_line() {
    let case = Case::new("attach_refused");
    refused(
        &case,
        record(&case, &["-p", "4194303"]),
        &["process 4194303", "none with this number"],
    );
    let running = Running::busy(&case, &["1"]);
    let threads = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let mut threads: Vec<String> = threads
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    threads.retain(|tid| *tid != running.pid());
    let finished = record(&case, &["-p", &threads[0]]);
    refused(&case, finished, &["is a thread of process", &running.pid()]);
    // A zombie: a child that has ended and has not been waited for.
    let mut zombie = Command::new("true").spawn().unwrap();
    until("it has ended", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", zombie.id())).unwrap();
        stat.contains(") Z ")
    });
    refused(
        &case,
        record(&case, &["-p", &zombie.id().to_string()]),
        &["zombie"],
    );
    zombie.wait().unwrap();
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        refused(
            &case,
            record(&case, &["-p", "2"]),
            &["a thread of the kernel (kthreadd)"],
        );
    }
    refused(
        &case,
        record(&case, &["--cgroup", "no/such group"]),
        &["cgroup no/such group", "no such folder"],
    );
    case.write("not-a-group", "");
    let folder = case.folder().display().to_string();
    refused(
        &case,
        record(&case, &["--cgroup", &folder]),
        &["without cgroup.procs"],
    );
    for words in [
        &["-p", "1", "--all"][..],
        &["-p", "1", "--", "true"],
        &["--cgroup", "x", "--all"],
        &["-p", "0"],
        &["-p", "x"],
        &["--all", "--threads", "compact"],
        &["-p", "1", "--source", "full"],
        &["--range", "2000-1000", "--", "true"],
        &["--source", "clock", "--event", "dtlb-miss", "--", "true"],
    ] {
        let finished = record(&case, words).exits(2);
        assert!(!case.path("out").exists(), "{finished}");
    }
    running.ends_as_always(&case);
}

/// Checks that there is either a readable recording, or one line of error that contains all of `words`.
#[track_caller]
fn whole_or_refused(case: &Case, finished: Finished, words: &[&str]) {
    if finished.code == Some(0) {
        report(case);
        fs::remove_dir_all(case.path("out")).unwrap();
    } else {
        refused(case, finished, words);
    }
}

/// The process ends at different moments of the attachment.
#[test]
fn a_process_that_ends_while_it_is_attached_to_leaves_nothing_half_written() {
    let case = Case::new("attach_ending");
    for delay_ms in [0, 100, 300, 600, 1000] {
        let mut process = Command::new("sleep")
            .arg((f64::from(delay_ms) / 1e3).to_string())
            .spawn()
            .unwrap();
        let pid = process.id().to_string();
        // The thread waits for the process, so that its number is released while the recorder still runs.
        let waiting = std::thread::spawn(move || process.wait().unwrap());
        let finished = record(&case, &["-p", &pid]);
        waiting.join().unwrap();
        whole_or_refused(&case, finished, &[&format!("process {pid}")]);
    }
}

#[test]
fn without_permission_the_capability_is_named() {
    if !root() {
        eprintln!("skipped: needs root to become somebody else");
        return;
    }
    let case = Case::new("attach_forbidden");
    let running = Running::busy(&case, &["1"]);
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(case.folder(), open).unwrap();
    let nobody = |words: &[&str]| {
        let mut command = case.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
            .arg(readable_nearpage(&case))
            .args(["record", "-o", "out"])
            .args(words);
        case.run(command)
    };
    refused(
        &case,
        nobody(&["-p", &running.pid()]),
        &["belongs to root", "CAP_PERFMON"],
    );
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    if level.trim().parse::<i32>().is_ok_and(|level| level > 0) {
        refused(
            &case,
            nobody(&["--all"]),
            &["the whole machine", "CAP_PERFMON"],
        );
    }
    running.ends_as_always(&case);
}

/// A copy of the command in the case's folder, because the user `nobody` can't read the target folder.
fn readable_nearpage(case: &Case) -> PathBuf {
    let copy = case.path("nearpage");
    if !copy.exists() {
        case.program_copy(nearpage_path(), "nearpage");
    }
    copy
}

#[test]
fn a_process_with_four_thousand_threads_and_many_mappings_is_recorded() {
    let case = Case::new("attach_many");
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let mappings = (limit.trim().parse::<u64>().unwrap().saturating_sub(20_000)).min(100_000);
    let running = Running::busy(&case, &["2", "4090", &mappings.to_string()]);
    let recorded = record(&case, &["-p", &running.pid(), "--duration", "2s"]).success();
    let found = report(&case);
    assert!(accesses(&found, "at_start") > 10, "{recorded}{found:#}");
    let coverage = metadata(&case)["attached"]["coverage"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(coverage.contains("4093 threads"), "{coverage}");
    running.ends_as_always(&case);
}

#[test]
fn threads_that_do_not_fit_take_turns() {
    if !root() {
        eprintln!("skipped: needs root to give up its privileges");
        return;
    }
    let case = Case::new("attach_turns");
    fs::set_permissions(case.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    // Enough files for some of the 12 threads, but not for all.
    let files = 64 + cpus + 4 * 2 * cpus;
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = case.command("setpriv");
    command.args(nobody).arg(compile(&case)).args(["4", "8"]);
    let running = Running::start(&case, command);
    let mut command = case.command("prlimit");
    command
        .arg(format!("--nofile={files}:{files}"))
        .arg("setpriv")
        .args(nobody);
    command.arg(readable_nearpage(&case));
    command.args([
        "record",
        "--rate",
        "997",
        "-o",
        "out",
        "--duration",
        "4s",
        "-p",
        &running.pid(),
    ]);
    let recorded = case.run(command).success();
    let coverage = metadata(&case)["attached"]["coverage"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        coverage.contains("4 threads at once"),
        "{coverage}\n{recorded}"
    );
    assert!(
        recorded.stderr.contains("in turns"),
        "it is said\n{recorded}"
    );
    assert!(accesses(&report(&case), "at_start") > 10, "{recorded}");
    running.ends_as_always(&case);
}

#[test]
fn the_machine_and_a_control_group() {
    if !root() {
        eprintln!("skipped: needs root");
        return;
    }
    let case = Case::new("attach_machine");
    let running = Running::busy(&case, &["2"]);
    // Limited to an object, because other programs on the machine may have many libraries.
    let words = ["--all", "--duration", "2s", "--object", "at_start"];
    let recorded = record(&case, &words).success();
    assert_eq!(metadata(&case)["attached"]["target"], "all processes");
    let kept = metadata(&case)["counts"]["accesses"].as_u64().unwrap();
    assert!(kept > 10, "{recorded}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(mount) = mount.and_then(|line| line.split(' ').nth(4)) else {
        eprintln!("no unified hierarchy here");
        return running.ends_as_always(&case);
    };
    let name = format!("nearpage-test-{}", std::process::id());
    let group = Path::new(mount).join(&name);
    if fs::create_dir(&group).is_err() {
        eprintln!("no group can be made here");
        return running.ends_as_always(&case);
    }
    // The group is removed at different moments of the attachment.
    fs::remove_dir_all(case.path("out")).unwrap();
    for delay_ms in [0, 100, 300, 600, 1000] {
        let _ = fs::create_dir(&group);
        let going = group.clone();
        let removing = std::thread::spawn(move || {
            sleep(Duration::from_millis(delay_ms));
            until("the group is gone", || fs::remove_dir(&going).is_ok());
        });
        let finished = record(&case, &["--cgroup", &name]);
        removing.join().unwrap();
        whole_or_refused(&case, finished, &["cgroup", &name]);
    }
    fs::create_dir(&group).unwrap();
    let joined = fs::write(group.join("cgroup.procs"), running.pid());
    let recorded = record(&case, &["--cgroup", &name, "--duration", "2s"]);
    let found = recorded.code.map(|_| report(&case));
    // The group is removed while it is observed.
    fs::remove_dir_all(case.path("out")).unwrap();
    let mut recorder = case.command(nearpage_path());
    recorder.args(["record", "-o", "out", "--cgroup", &name]);
    let mut recorder = recorder.spawn().unwrap();
    // A log of this size shows that observation has begun.
    until("samples are written", || {
        let log = fs::metadata(case.path("out/log/recorder.log"));
        log.is_ok_and(|log| log.len() > 8192)
    });
    let back = fs::write(Path::new(mount).join("cgroup.procs"), running.pid());
    until("it is empty", || fs::remove_dir(&group).is_ok());
    let ended = recorder.wait().unwrap();
    joined.unwrap();
    back.unwrap();
    recorded.success();
    let found = found.unwrap();
    assert!(accesses(&found, "at_start") > 10, "{found:#}");
    assert_eq!(ended.code(), Some(0));
    running.ends_as_always(&case);
}

#[test]
fn symbols_come_from_another_mount_namespace() {
    if !root() {
        eprintln!("skipped: needs root for namespaces");
        return;
    }
    let case = Case::new("attach_namespaces");
    let program = compile(&case);
    // Inside the namespace, the program has a path that does not exist outside.
    let inside = case.path("inside");
    fs::create_dir(&inside).unwrap();
    let script = format!(
        "mount -t tmpfs none '{inside}' && cp '{program}' '{inside}/only-inside' && exec '{inside}/only-inside' 2",
        inside = inside.display(),
        program = program.display()
    );
    let mut command = case.command("unshare");
    command.args([
        "--pid",
        "--fork",
        "--mount",
        "--mount-proc",
        "sh",
        "-c",
        &script,
    ]);
    let mut probe = case.command("unshare");
    probe.args(["--pid", "--fork", "--mount", "--mount-proc", "true"]);
    if case.run(probe).code != Some(0) {
        eprintln!("skipped: no namespaces here");
        return;
    }
    let running = Running::start(&case, command);
    // `unshare` itself stays outside of the namespace; its child is the program.
    record(&case, &["-p", &running.pid(), "--duration", "2s"]).success();
    assert!(!inside.join("only-inside").exists());
    let found = report(&case);
    assert!(accesses(&found, "at_start") > 10, "{found:#}");
    running.ends_as_always(&case);
}
