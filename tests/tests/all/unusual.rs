//! Processes that `/proc` shows in unusual ways, names and paths that are not UTF-8, and code without a file of its
//! name are observed like any others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_tests::{Case, Finished, nearpage_path};
use serde_json::Value;

/// `walk MODE…` reads and writes all of a static and a heap array for a second of its CPU time; with MODE `on`, until
/// its folder has a file `end`. Before the walk, it creates `ready`, and other modes change the process: `named` sets a
/// name in Latin-1, `memory` executes the program from a memfd, `alone` ends the main thread and leaves the walk to
/// another thread, and `library FILE` calls the walk in a copy of a library in a memfd.
const WALK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#define CELLS (2u << 20)
static int is_on;
int goes_on(void) {
    if (is_on) return access("end", F_OK) != 0;
    return clock() < CLOCKS_PER_SEC;
}
#ifdef LIBRARY
unsigned long in_library[CELLS];
void walk(int (*go_on)(void)) {
    unsigned long at = 88172645463325252ul;
    while (go_on())
        for (int i = 0; i < 200000; i++)
            at ^= at << 13, at ^= at >> 7, at ^= at << 17, in_library[at % CELLS]++;
}
#else
unsigned long in_program[CELLS];
extern void walk(int (*go_on)(void)) __attribute__((weak));
static void (*walk_there)(int (*)(void));
__attribute__((noinline)) static unsigned long *make_table(void) { return malloc(CELLS * 8); }
static int copy(const char *name) {
    int from = open(name, O_RDONLY), to = memfd_create("copy", 0);
    char bytes[65536];
    long count;
    while ((count = read(from, bytes, sizeof bytes)) > 0)
        if (write(to, bytes, count) != count) exit(8);
    close(from);
    return to;
}
static void *run(void *main_thread) {
    if (main_thread) pthread_join(*(pthread_t *)main_thread, 0);
    unsigned long at = 88172645463325252ul, *table = make_table();
    close(open("ready", O_CREAT | O_WRONLY, 0644));
    if (walk_there) walk_there(goes_on);
    while (goes_on())
        for (int i = 0; i < 200000; i++)
            at ^= at << 13, at ^= at >> 7, at ^= at << 17, in_program[at % CELLS] += table[at / 3 % CELLS]++;
    puts("done");
    exit(0);
}
int main(int count, char **words, char **environment) {
    int is_alone = 0;
    walk_there = walk;
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "on")) is_on = 1;
        if (!strcmp(words[i], "named")) prctl(PR_SET_NAME, "caf\xe9 (x)");
        if (!strcmp(words[i], "alone")) is_alone = 1;
        if (!strcmp(words[i], "memory")) {
            words[i] = "from";
            fexecve(copy("/proc/self/exe"), words, environment);
            return 9;
        }
        if (!strcmp(words[i], "library")) {
            char name[64];
            int library = copy(words[++i]);
            sprintf(name, "/proc/self/fd/%d", library);
            void *opened = dlopen(name, RTLD_NOW);
            close(library);
            if (!opened || !(walk_there = dlsym(opened, "walk"))) return puts(dlerror()), 10;
        }
    }
    if (!is_alone) run(0);
    static pthread_t own;
    own = pthread_self();
    pthread_t other;
    pthread_create(&other, 0, run, &own);
    pthread_exit(0);
}
#endif
"#;

/// Four processes read and write all of two segments of shared memory: one was mapped before they were forked, and each
/// maps the other by itself. Each has private memory of the parent's, too. `share on` runs until it is killed.
const SHARE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define BYTES (32u << 20)
static char name[64];
#define NAMED __attribute__((noinline)) static unsigned *
NAMED map_shared(void) { return mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); }
NAMED map_private(void) { return mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
NAMED map_segment(void) {
    int file = shm_open(name, O_RDWR, 0600);
    return mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}
static void use(int is_on, int mapped, unsigned *inherited, unsigned *own_private) {
    unsigned *segment = map_segment();
    unsigned at = getpid();
    if (write(mapped, "", 1) != 1) _exit(1);
    while (is_on || clock() < CLOCKS_PER_SEC / 2)
        for (int i = 0; i < 100000; i++) {
            at = at * 1664525 + 1013904223;
            unsigned cell = at / 4 % (BYTES / 4);
            inherited[cell]++, segment[cell]++, own_private[cell]++;
        }
}
int main(int count, char **words) {
    sprintf(name, "/nearpage-share-%d", getpid());
    int file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600), mapped[2];
    if (ftruncate(file, BYTES) || pipe(mapped)) return 1;
    unsigned *inherited = map_shared(), *own_private = map_private();
    memset(inherited, 1, BYTES);
    memset(own_private, 1, BYTES);
    for (int process = 0; process < 4; process++)
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            use(count > 1, mapped[1], inherited, own_private);
            _exit(0);
        }
    char byte;
    for (int process = 0; process < 4; process++)
        if (read(mapped[0], &byte, 1) != 1) return 1;
    shm_unlink(name);
    close(open("ready", O_CREAT | O_WRONLY, 0644));
    int status, failed = 0;
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}
"#;

/// Compiles [`WALK`] to a file of the case.
fn compile(case: &Case, name: impl AsRef<Path>, options: &[&OsStr]) -> PathBuf {
    let source = case.write("walk.c", WALK);
    let program = case.path(name);
    let mut compiler = case.command("cc");
    compiler.args(["-g", "-O1", "-pthread", "-o"]).arg(&program);
    compiler.arg(source).args(options).arg("-ldl");
    case.run(compiler).success();
    program
}

fn options<const N: usize>(options: [&str; N]) -> [&OsStr; N] {
    options.map(OsStr::new)
}

/// A program that runs until the test ends.
struct Running(Child);

impl Running {
    fn start(case: &Case, program: &Path, words: &[&str]) -> Self {
        let mut command = case.command(program);
        command.args(words).current_dir(case.folder());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let running = Self(command.spawn().unwrap());
        let begin = Instant::now();
        while !case.path("ready").exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not run");
            sleep(Duration::from_millis(5));
        }
        running
    }

    fn record(&self, case: &Case) -> Finished {
        let pid = self.0.id().to_string();
        case.nearpage([
            "record", "-o", "r", "--rate", "499", "--for", "2s", "-p", &pid,
        ])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(case: &Case, arguments: &[&str]) -> Value {
    let finished = case.nearpage(arguments).success();
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// Names of the report's objects; checks that there are samples and that almost all of them were decoded.
fn objects(case: &Case, recording: &str) -> Vec<String> {
    let report = json(case, &["report", recording, "--json"]);
    let number = |key: &str| report[key].as_f64().expect("a number");
    let samples = number("accesses") + number("compute") + number("undecoded");
    assert!(
        number("accesses") >= 5.0 && number("undecoded") <= 0.05 * samples,
        "{report:#}"
    );
    let objects = report["objects"].as_array().expect("objects").iter();
    objects
        .map(|object| object["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[track_caller]
fn names(case: &Case, recording: &str, object: &str) {
    let found = objects(case, recording);
    assert!(
        found.iter().any(|name| name.contains(object)),
        "{object}: {found:?}"
    );
}

#[test]
fn a_process_without_its_main_thread_is_observed() {
    let case = Case::new("unusual_main_thread");
    let program = compile(&case, "walk", &[]);
    let running = Running::start(&case, &program, &["on", "alone"]);
    let pid = running.0.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    running.record(&case).success();
    names(&case, "r", "in_program");
    let metadata: Value = serde_json::from_str(&case.read("r/recording.json")).unwrap();
    assert_eq!(metadata["command"][1], "on", "{metadata:#}");
    assert_ne!(metadata["build_id"], "", "{metadata:#}");
    let pid = pid.to_string();
    // The daemon runs until SIGINT.
    let mut daemon = case.command("timeout");
    daemon.args(["-s", "INT", "3"]).arg(nearpage_path());
    daemon.args(["live", "--interval", "0.5", "-p", &pid]);
    let daemon = case.run(daemon);
    assert!(daemon.stderr.contains(" walk "), "{daemon}");
}

#[test]
fn objects_of_a_command_without_its_main_thread_are_known() {
    let case = Case::new("unusual_main_thread_command");
    let program = compile(&case, "walk", &[]);
    let program = program.to_str().unwrap();
    for source in ["clock", "signal"] {
        let fixed = ["record", "--force", "--source", source, "--rate", "499"];
        let command = ["-o", "r", "--", program, "alone"];
        case.nearpage(fixed.iter().chain(&command)).success();
        names(&case, "r", "in_program");
        names(&case, "r", "make_table");
    }
}

#[test]
fn a_process_with_a_name_that_is_not_utf8_is_observed() {
    let case = Case::new("unusual_name");
    let program = compile(&case, "walk", &[]);
    let running = Running::start(&case, &program, &["on", "named"]);
    running.record(&case).success();
    names(&case, "r", "in_program");
    let rows = case.nearpage(["export", "r", "--to", "csv", "-o", "rows.csv"]);
    rows.success();
    assert!(case.read("rows.csv").contains("caf\u{fffd} (x)"));
}

/// A folder of the case whose name is Latin-1.
fn latin(case: &Case) -> PathBuf {
    let folder = case.path(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&folder).unwrap();
    folder
}

#[test]
fn a_program_whose_path_is_not_utf8_is_recorded_and_placed() {
    let case = Case::new("unusual_path");
    let folder = latin(&case);
    let library = OsStr::from_bytes(b"libwalk\xfc.so");
    let built = options(["-shared", "-fPIC", "-DLIBRARY"]);
    compile(&case, folder.join(library), &built);
    let mut search = OsString::from("-Wl,-rpath,");
    search.push(&folder);
    let file = folder.join(library);
    let program = folder.join(OsStr::from_bytes(b"w\xe4lk"));
    let needed = OsStr::new("-Wl,--no-as-needed");
    compile(&case, &program, &[needed, file.as_os_str(), &search]);
    let observed = |recording: &str, words: &[&str]| {
        let mut command = case.command(nearpage_path());
        command.args(["record", "--rate", "499", "-o", recording, "--"]);
        command.arg(&program).args(words);
        case.run(command).success();
    };
    observed("library", &[]);
    names(&case, "library", "in_library");
    // --object with the library's name keeps the accesses to the library's mappings.
    let mut command = case.command(nearpage_path());
    command.args(["record", "-o", "filtered", "--object"]);
    command.arg(library).arg("--").arg(&program);
    let filtered = case.run(command).success();
    assert!(!filtered.stderr.contains("no static object"), "{filtered}");
    let report = case.nearpage(["report", "library"]).success();
    assert!(!report.stdout.contains("no static objects"), "{report}");
    let planned = ["plan", "library", "--machine", "opteron-4", "--policy"];
    case.nearpage(planned.iter().chain(&["interleave", "-o", "p.toml"]))
        .success();
    let plan = case.read("p.toml");
    assert!(plan.contains("in_library"), "{plan}");
    // `run` recognises objects of the program and of its library by their symbols.
    let mut command = case.command(nearpage_path());
    command
        .args(["run", "--plan", "p.toml", "--"])
        .arg(&program);
    let run = case.run(command).success();
    assert!(!run.stderr.contains("has no static object"), "{run}");
}

#[test]
fn code_without_a_file_is_decoded_and_named() {
    let case = Case::new("unusual_memfd");
    let program = compile(&case, "walk", &[]);
    let program = program.to_str().unwrap();
    let built = options(["-shared", "-fPIC", "-DLIBRARY"]);
    compile(&case, "libwalk.so", &built);
    let recorded = |words: &[&str]| {
        let fixed = [
            "record", "--force", "--rate", "499", "-o", "r", "--", program,
        ];
        case.nearpage(fixed.iter().chain(words)).success()
    };
    let hot = |function: &str| {
        let report = json(&case, &["report", "--json", "r"]);
        let objects = report["objects"].as_array().expect("objects");
        let mut instructions = objects
            .iter()
            .flat_map(|object| object["hot"].as_array().expect("a list"));
        assert!(
            instructions.any(|instruction| instruction["function"] == function),
            "{report}"
        );
    };
    recorded(&["memory"]);
    names(&case, "r", "in_program");
    names(&case, "r", "make_table");
    hot("run");
    recorded(&["library", "libwalk.so"]);
    names(&case, "r", "in_library");
    hot("walk");
}

#[test]
fn a_program_that_was_replaced_while_it_ran_is_decoded_and_named() {
    for build_id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let case = Case::new("unusual_replaced");
        let program = compile(&case, "walk", &options([build_id]));
        let running = Running::start(&case, &program, &["on"]);
        // Linkers replace a program in this way: delete it, then create a file of the same name.
        fs::remove_file(&program).unwrap();
        fs::copy("/bin/true", &program).unwrap();
        running.record(&case).success();
        names(&case, "r", "in_program");
    }
}

/// Number of objects, and of the processes that share them, of the costliest objects of this name.
fn sharing(report: &Value, name: &str) -> (u64, Option<u64>) {
    let mut objects = report["objects"].as_array().expect("objects").iter();
    let named = |object: &&Value| object["name"].as_str().expect("a name").contains(name);
    let object = objects.find(named);
    let object = object.unwrap_or_else(|| panic!("no {name}: {report:#}"));
    let number = object["instances"].as_u64().expect("a number");
    (number, object["sharing_processes"].as_u64())
}

/// Checks that there is one object of this name, of several processes. On a busy machine, one may have no sample.
#[track_caller]
fn is_shared(report: &Value, name: &str) {
    let (number, processes) = sharing(report, name);
    assert!(number == 1 && processes > Some(1), "{name}: {report:#}");
}

#[test]
fn memory_that_processes_share_is_one_object_of_them_all() {
    let case = Case::new("unusual_shared_memory");
    let program = case.compile("share", SHARE, &[]);
    let command = program.to_str().unwrap();
    for source in ["signal", "clock"] {
        let options = ["record", "--force", "--source", source, "--rate", "997"];
        case.nearpage(options.iter().chain(&["-o", "r", "--", command]))
            .success();
        let report = json(&case, &["report", "r", "--json"]);
        is_shared(&report, "map_segment");
        // The signal shows what is inherited only if the parent has samples, too.
        if source == "clock" {
            is_shared(&report, "map_shared");
            assert_eq!(sharing(&report, "map_private").1, None);
        }
    }
    // All four use all of the segment, so no node of four is right for it.
    let plan = ["plan", "r", "--machine", "opteron-4", "--policy", "object"];
    let plan = case
        .nearpage(plan.iter().chain(&["-o", "plan.toml"]))
        .success();
    // Processes that run at the same time are side by side.
    assert!(!plan.stdout.contains("on 1 of 4"), "{plan}");
    let text = case.read("plan.toml");
    assert!(text.contains("placement = \"interleave\""), "{text}");
    fs::remove_file(case.path("ready")).unwrap();
    // Those that run already were forked before the recorder came.
    let running = Running::start(&case, &program, &["on"]);
    let pid = running.0.id().to_string();
    let options = ["record", "--rate", "997", "--for", "2s", "-o", "attached"];
    case.nearpage(options.iter().chain(&["-p", &pid])).success();
    let report = json(&case, &["report", "attached", "--json"]);
    is_shared(&report, "anonymous shared memory");
    is_shared(&report, "nearpage-share");
}
