//! Other local users who connect to the servers of the page and of the metrics.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nearpage_tests::{Case, nearpage_path};

/// A server, ended with the test.
struct Served {
    process: Child,
    /// The program that a daemon watches.
    watched: Option<Child>,
    /// Address of a page with an answer, `http://…`.
    address: String,
}

impl Served {
    /// Serves the page of a recording; standard output has the address.
    fn view(case: &Case, arguments: &[&str]) -> Self {
        let mut command = case.command(nearpage_path());
        command.arg("view").args(arguments).arg("ls.nearpage");
        let path = format!(
            "{}:{}",
            case.folder().display(),
            std::env::var("PATH").expect("a path")
        );
        command
            .env("PATH", path)
            .env("XDG_RUNTIME_DIR", case.folder());
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("nearpage is built");
        let address = first_address(process.stdout.take().expect("piped"));
        Self {
            process,
            watched: None,
            address: format!("{address}open"),
        }
    }

    /// Serves the metrics of a daemon that watches a program.
    fn live(case: &Case) -> Self {
        let watched = case
            .command("sleep")
            .arg("600")
            .spawn()
            .expect("it is there");
        let program = watched.id().to_string();
        let words = [
            "live",
            "--dry-run",
            "--serve",
            "127.0.0.1:0",
            "-p",
            &program,
        ];
        let mut command = case.command(nearpage_path());
        command
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command.spawn().expect("nearpage is built");
        let address = first_address(process.stderr.take().expect("piped"));
        Self {
            process,
            watched: Some(watched),
            address,
        }
    }

    fn host(&self) -> &str {
        self.address["http://".len()..]
            .split('/')
            .next()
            .expect("a host")
    }

    fn connected(&self, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.host()).expect("it listens");
        let _ = stream.write_all(sent);
        stream
    }

    /// The answer to a client that knows the address.
    fn answer(&self) -> String {
        let path = &self.address["http://".len() + self.host().len()..];
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.host()
        );
        let mut text = String::new();
        self.connected(request.as_bytes())
            .read_to_string(&mut text)
            .expect("an answer");
        text
    }

    fn resident_kib(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .expect("it has memory");
        line.split_whitespace()
            .nth(1)
            .and_then(|number| number.parse().ok())
            .expect("a number")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for process in [Some(&mut self.process), self.watched.as_mut()]
            .into_iter()
            .flatten()
        {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The first printed address. A thread reads all later output, so that the pipe does not fill.
fn first_address(output: impl Read + Send + 'static) -> String {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let line = lines
        .find(|line| line.contains("http://"))
        .expect("an address");
    std::thread::spawn(move || lines.for_each(drop));
    let address = &line[line.find("http://").expect("just found")..];
    address
        .split_whitespace()
        .next()
        .expect("not empty")
        .to_owned()
}

fn recorded(name: &str) -> Case {
    let case = Case::new(name);
    case.nearpage(["record", "-q", "-o", "ls.nearpage", "--", "ls", "/"])
        .success();
    case
}

#[test]
fn strangers_end_no_server_fill_no_memory_and_keep_nobody_waiting() {
    let case = recorded("strangers_at_servers");
    for served in [Served::view(&case, &["--no-open"]), Served::live(&case)] {
        assert!(served.answer().starts_with("HTTP/1.1 200"));
        let before = served.resident_kib();
        let host = served.host().to_owned();
        let mut strangers = Vec::new();
        for number in 0..100 {
            let said = [
                "GET / HT".to_owned(),
                format!("POST /wrong HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5000\r\n\r\na"),
                format!(
                    "POST /wrong HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\na",
                    u64::MAX
                ),
                "GET / HTTP/1.1\r\nX: ".to_owned() + &"a".repeat(1 << 20),
            ];
            strangers.push(served.connected(said[number % said.len()].as_bytes()));
        }
        let answer = served.answer();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let after = served.resident_kib();
        assert!(
            after <= 2 * before,
            "{before} KiB before, {after} KiB after"
        );
    }
}

/// Installs a browser that writes its arguments to the returned file. All local users can read a process's arguments.
fn browser(case: &Case) -> PathBuf {
    case.program(
        "xdg-open",
        "#!/bin/sh\necho \"$@\" >opened.new && mv opened.new opened\n",
    );
    case.path("opened")
}

/// Waits until a condition returns a value.
fn waited<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(found) = condition() {
            return found;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{what}: not after a minute");
}

#[test]
fn a_browser_is_told_the_token_by_a_file_that_only_its_user_can_read() {
    let case = recorded("token_of_view");
    let opened = browser(&case);
    let served = Served::view(&case, &[]);
    let arguments = waited("a browser", || fs::read_to_string(&opened).ok());
    let token = served
        .address
        .rsplit('/')
        .nth(1)
        .expect("a token")
        .to_owned();
    assert!(!arguments.contains(&token), "{arguments}");
    let file = Path::new(arguments.trim());
    assert!(
        file.starts_with(case.folder()),
        "{arguments}: not in the session's folder"
    );
    for (path, mode) in [(file, 0o600), (file.parent().expect("a folder"), 0o700)] {
        let found = fs::metadata(path)
            .expect("it stays until the page is opened")
            .permissions()
            .mode();
        assert_eq!(found & 0o777, mode, "{}", path.display());
    }
    let page = fs::read_to_string(file).expect("ours");
    let address = served.address.trim_end_matches("open");
    assert!(
        page.contains(&format!("content=\"0;url={address}\"")),
        "{page}"
    );
    assert!(served.answer().starts_with("HTTP/1.1 200"));
    waited("the file's end", || (!file.exists()).then_some(()));
}

#[test]
fn without_a_browser_or_a_folder_the_address_is_there_all_the_same() {
    let case = recorded("no_browser");
    let mut command = case.command(nearpage_path());
    command
        .args(["view", "ls.nearpage"])
        .env("TMPDIR", "/proc/none")
        .env_remove("XDG_RUNTIME_DIR");
    let mut process = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nearpage is built");
    let address = first_address(process.stdout.take().expect("piped"));
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    let mut said = BufReader::new(process.stderr.take().expect("piped"))
        .lines()
        .map_while(Result::ok);
    let line = said.find(|line| line.contains("no browser was opened (/proc/none: "));
    assert!(line.is_some_and(|line| line.ends_with("open the address above")));
    process
        .kill()
        .and_then(|()| process.wait())
        .expect("it runs");
}
