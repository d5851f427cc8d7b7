//! The screen of `live` and `top` in a real terminal (tmux) at common widths. No test depends on the machine's speed:
//! each step waits for the result of the step before.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_tests::{Case, nearpage_path};

/// Program that prints a line and reads all of an array until a file `end` appears; its status is 7.
const BUSY: &str = r#"
#include <stdio.h>
#include <unistd.h>
#define CELLS (8u << 20)
unsigned cells[CELLS];
int main(void) {
    unsigned i = 1, sum = 0;
    /* A limit in case that the test does not end the program. */
    alarm(600);
    puts("busy begins");
    fflush(stdout);
    while (access("end", F_OK)) {
        for (unsigned step = 0; step < 1000000; step++) {
            i = i * 1103515245u + 12345u;
            sum += cells[i % CELLS]++;
        }
    }
    printf("busy ends %u\n", sum & 0);
    return 7;
}
"#;

const TIME_LIMIT: Duration = Duration::from_secs(120);

fn compile(case: &Case) -> PathBuf {
    let source = case.write("busy.c", BUSY);
    let program = case.path("busy");
    let mut compiler = case.command("cc");
    compiler.args(["-O1", "-o"]).arg(&program).arg(source);
    case.run(compiler).success();
    program
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("-V").output().is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed (Debian's package {program})");
    }
    found
}

/// Number of tmux servers: each test has its own.
static SERVERS: AtomicU32 = AtomicU32::new(0);

/// A terminal with a shell in it.
struct Tmux<'a> {
    case: &'a Case,
    socket: PathBuf,
}

impl<'a> Tmux<'a> {
    fn new(case: &'a Case, columns: u16, lines: u16) -> Self {
        // The path of a socket may have at most 107 bytes.
        let number = SERVERS.fetch_add(1, Relaxed);
        let name = format!("np-{}-{number}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let tmux = Self { case, socket };
        let size = [columns.to_string(), lines.to_string()];
        tmux.call(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &size[0],
            "-y",
            &size[1],
            "env PS1='$ ' sh",
        ]);
        tmux.call(&["set", "-g", "remain-on-exit", "on"]);
        tmux.wait("the shell's prompt", |screen| screen.contains("$"));
        tmux
    }

    fn call(&self, arguments: &[&str]) -> String {
        let mut command = self.case.command("tmux");
        // `-u`: UTF-8, independent of the tests' locale.
        command
            .arg("-u")
            .arg("-S")
            .arg(&self.socket)
            .args(arguments);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.call(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.call(&["send-keys", key]);
    }

    fn run(&self, line: &str) {
        self.call(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    fn wait(&self, what: &str, shown: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + TIME_LIMIT;
        loop {
            let screen = self.screen();
            if shown(&screen) {
                return screen;
            }
            assert!(Instant::now() < until, "no {what}:\n{screen}");
            sleep(Duration::from_millis(50));
        }
    }

    /// Checks that the terminal is in a shell's mode: line by line, with echo, on the normal screen, with a cursor.
    fn is_as_before(&self) {
        self.run(
            "stty -a | tr ' ;' '\\n\\n' | grep -cx -e icanon -e echo -e isig; echo mode checked",
        );
        let screen = self.wait("mode", |screen| screen.contains("\nmode checked"));
        assert!(screen.contains("\n3\nmode checked"), "{screen}");
        let cursor = self.call(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(cursor.trim(), "0 1", "no other screen, and a cursor");
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.call(&["kill-server"]);
    }
}

fn fits(screen: &str, columns: usize) {
    for line in screen.lines() {
        assert!(line.chars().count() <= columns, "{line}");
    }
}

#[test]
fn a_command_runs_below_its_screen_and_the_terminal_comes_back() {
    if !is_there("tmux") {
        return;
    }
    for columns in [60, 80, 140] {
        let case = Case::new("screen_command");
        compile(&case);
        let tmux = Tmux::new(&case, columns, 24);
        let nearpage = nearpage_path();
        tmux.run(&format!(
            "{} live --interval 200ms --policy auto -- ./busy; echo status $?",
            nearpage.display()
        ));
        let screen = tmux.wait("process with samples", |screen| {
            screen.contains("nearpage live")
                && screen.contains("busy begins")
                && screen.contains("1 process")
        });
        fits(&screen, columns.into());
        assert!(screen.contains("? keys"), "{screen}");
        tmux.press("?");
        tmux.wait("help", |screen| screen.contains("any key goes back"));
        tmux.press("x");
        tmux.press("Enter");
        let screen = tmux.wait("object", |screen| screen.contains("busy variables"));
        fits(&screen, columns.into());
        tmux.press("Enter");
        tmux.wait("pages", |screen| screen.contains("ON NODE"));
        // A second Escape at once would count as one key with Alt.
        tmux.press("Escape");
        tmux.wait("the objects", |screen| screen.contains("SHARE"));
        tmux.press("Escape");
        tmux.wait("the list", |screen| screen.contains("1 process"));
        // The terminal is resized while the screen is shown.
        tmux.call(&["resize-window", "-x", "100", "-y", "30"]);
        let wide = tmux.wait("the wider screen", |screen| {
            screen
                .lines()
                .any(|line| line.contains("── the command's output") && line.chars().count() == 100)
        });
        fits(&wide, 100);
        case.write("end", "");
        let screen = tmux.wait("the command's status", |screen| screen.contains("status 7"));
        // The program's output, and the summary of the watching.
        assert!(
            screen.contains("busy begins\n") && screen.contains("busy ends 0\n"),
            "{screen}"
        );
        assert!(screen.contains("watched for 0:"), "{screen}");
        tmux.is_as_before();
    }
}

#[test]
fn ctrl_c_and_q_and_a_kill_give_the_terminal_back() {
    if !is_there("tmux") {
        return;
    }
    let case = Case::new("screen_ends");
    compile(&case);
    let tmux = Tmux::new(&case, 80, 24);
    let nearpage = nearpage_path();
    let live = format!("{} live --interval 200ms", nearpage.display());
    let shown = |screen: &str| screen.contains("nearpage live") && screen.contains("1 process");
    let is_over = |screen: &str| screen.contains("watched for");
    // Ctrl-C ends the command and the watching. `echo` is a separate line, as a shell skips the rest of an interrupted
    // list.
    tmux.run(&format!("{live} -- ./busy"));
    tmux.wait("screen", shown);
    tmux.press("C-c");
    tmux.wait("end", is_over);
    tmux.run("echo first $?");
    tmux.wait("status", |screen| screen.contains("first 130"));
    tmux.is_as_before();
    // `q` asks whether to end the command, too.
    tmux.run(&format!("clear; {live} -- ./busy"));
    tmux.wait("screen", shown);
    tmux.press("q");
    tmux.wait("question", |screen| {
        screen.contains("End the command, too?")
    });
    tmux.press("y");
    tmux.wait("end", is_over);
    tmux.run("echo second $?");
    tmux.wait("status", |screen| screen.contains("second 130"));
    tmux.is_as_before();
    // The watched command is killed.
    tmux.run(&format!("clear; {live} -- ./busy; echo third $?"));
    tmux.wait("screen", shown);
    let pid = pids(&case).into_iter().next().expect("it runs");
    let mut kill = case.command("kill");
    kill.args(["-KILL", &pid]);
    case.run(kill).success();
    tmux.wait("end", |screen| screen.contains("third 137"));
    tmux.is_as_before();
    // With -p, `q` ends only the watching.
    tmux.run(&format!(
        "clear; ./busy > busy.out & {live} -p $!; echo fourth $?"
    ));
    tmux.wait("screen", shown);
    tmux.press("q");
    tmux.wait("end", |screen| screen.contains("fourth 0"));
    tmux.is_as_before();
    assert_eq!(pids(&case).len(), 1, "it goes on");
    end_busy(&case);
}

/// Ends this test's program and waits for its end, before the case deletes the folder.
fn end_busy(case: &Case) {
    case.write("end", "");
    let until = Instant::now() + TIME_LIMIT;
    while !pids(case).is_empty() {
        assert!(Instant::now() < until, "it does not end");
        sleep(Duration::from_millis(20));
    }
}

/// Process ids of this test's program.
fn pids(case: &Case) -> Vec<String> {
    let program = case.path("busy");
    let entries = std::fs::read_dir("/proc").expect("proc(5)").flatten();
    let of_program = |pid: &String| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
    };
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(of_program)
        .collect()
}

#[test]
fn top_shows_running_programs() {
    if !is_there("tmux") {
        return;
    }
    for columns in [60, 80, 140] {
        let case = Case::new("screen_top");
        compile(&case);
        let tmux = Tmux::new(&case, columns, 24);
        let nearpage = nearpage_path();
        tmux.run(&format!(
            "./busy > busy.out & {} top --interval 300ms -p $!; echo status $?",
            nearpage.display()
        ));
        let screen = tmux.wait("memory of the process", |screen| {
            screen.contains("nearpage top") && screen.contains("busy") && screen.contains("MiB")
        });
        fits(&screen, columns.into());
        tmux.press("/");
        tmux.press("z");
        tmux.press("Enter");
        tmux.wait("filtered list", |screen| {
            screen.contains("Esc takes the filter back")
        });
        tmux.press("Escape");
        tmux.wait("the process again", |screen| {
            screen.contains("1 process, by REMOTE")
        });
        tmux.press("q");
        tmux.wait("end", |screen| screen.contains("status 0"));
        tmux.is_as_before();
        end_busy(&case);
    }
}

#[test]
fn top_without_a_terminal_prints_tables_and_json() {
    let case = Case::new("top_plain");
    compile(&case);
    let mut busy = case.command("./busy").spawn().expect("it runs");
    let pid = busy.id().to_string();
    let tables = case
        .nearpage(["top", "-p", &pid, "-n", "2", "--interval", "300ms"])
        .success();
    let heads = tables
        .stdout
        .lines()
        .filter(|line| line.trim_start().starts_with("PID NAME"));
    assert_eq!(heads.count(), 2, "{tables}");
    assert!(tables.stdout.contains("busy"), "{tables}");
    let json = case
        .nearpage([
            "top",
            "--json",
            "-p",
            &pid,
            "-n",
            "2",
            "--interval",
            "300ms",
        ])
        .success();
    let looks: Vec<serde_json::Value> = json
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(looks.len(), 2, "{json}");
    assert_eq!(looks[1]["processes"][0]["name"], "busy", "{json}");
    case.write("end", "");
    busy.wait().expect("it ends");
}

#[test]
fn a_commands_output_can_go_to_a_file() {
    let case = Case::new("live_output");
    compile(&case);
    case.write("end", "");
    let live = case
        .nearpage(["live", "--output", "printed", "--", "./busy"])
        .exits(7);
    assert_eq!(case.read("printed"), "busy begins\nbusy ends 0\n", "{live}");
    assert!(!live.stdout.contains("busy begins"), "{live}");
}
