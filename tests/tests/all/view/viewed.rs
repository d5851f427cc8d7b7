//! `nearpage view` and a browser that shows the page.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_machine::preset;
use nearpage_tests::{Browser, Case, nearpage_path};
use serde_json::Value;

use super::made_up;

/// Folder of the made-up recording.
pub const SOLVER: &str = "solver.nearpage";

/// A case with the made-up recording on the preset `opteron-4`.
pub fn recorded(name: &str) -> Case {
    let case = Case::new(name);
    let machine = preset("opteron-4").expect("a preset");
    made_up::recording(&case.path(SOLVER), &machine);
    case
}

/// The page of a case, open in a browser.
pub struct Page {
    pub browser: Browser,
    pub viewed: Viewed,
    pub case: Case,
}

impl Page {
    /// Opens the page of `nearpage view WORDS` at a place such as `view=plan`.
    pub fn new(case: Case, words: &[&str], place: &str) -> Self {
        let viewed = Viewed::new(&case, words);
        let mut browser = Browser::start(case.folder());
        browser.open(&format!("{}#{place}", viewed.address));
        browser.wait("document.querySelector('main')?.dataset.view !== undefined");
        Self {
            browser,
            viewed,
            case,
        }
    }

    /// Opens another place of the page.
    #[track_caller]
    pub fn go(&mut self, place: &str) {
        let view = place.split('&').next().unwrap_or_default();
        self.browser
            .value("delete document.querySelector('main').dataset.view");
        self.browser
            .value(&format!("location.hash = 'view={place}'"));
        self.browser.wait(&format!(
            "document.querySelector('main').dataset.view === '{view}'"
        ));
        self.browser.drawn();
    }

    /// Ends browser and server, and returns the case.
    pub fn closed(self) -> Case {
        self.case
    }

    /// The server's answer, as JSON.
    #[track_caller]
    pub fn asked(&self, question: &str) -> Value {
        let host = format!("Host: {}\r\n", self.viewed.host());
        let request = format!("GET /{}/{question}", self.viewed.token());
        let (head, body) = self.viewed.ask(&request, &host);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Presses a point of a picture, given in shares of its inner area, which begins `left` pixels from its left edge.
    /// Returns the read-out.
    #[track_caller]
    pub fn press(&mut self, title: &str, left: f64, (x, y): (f64, f64)) -> String {
        let figure = format!(
            "[...document.querySelectorAll('figure')].find(plot => plot.querySelector('h3').textContent.includes('{title}'))"
        );
        let readout = format!("{figure}.querySelector('.readout').textContent");
        let canvas = self.browser.value(&format!(
            "(() => {{ const plot = {figure}; plot.scrollIntoView({{ block: 'center' }}); plot.querySelector('.readout').textContent = ''; \
             const box = plot.querySelector('canvas').getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; }})()"
        ));
        let at = |number: usize| canvas[number].as_f64().expect("a number");
        // The layout of `web/src/figure.ts`.
        let place = (
            at(0) + left + (at(2) - left - 24.0) * x,
            at(1) + 8.0 + (at(3) - 48.0) * y,
        );
        self.browser.point(place.0, place.1);
        self.browser.wait(&format!("{readout} !== ''"));
        let said = self.browser.value(&readout);
        self.browser.drag(place, place);
        said.as_str().expect("text").to_owned()
    }

    /// Waits until the page, or a part of it, contains `words`.
    #[track_caller]
    pub fn says(&mut self, part: &str, words: &str) {
        let (part, words) = (serde_json::json!(part), serde_json::json!(words));
        self.browser.wait(&format!(
            "[...document.querySelectorAll({part})].some(part => part.innerText.includes({words}))"
        ));
    }
}

/// A running `nearpage view`, ended when dropped.
pub struct Viewed {
    process: Child,
    pub address: String,
}

impl Viewed {
    pub fn new(case: &Case, arguments: &[&str]) -> Self {
        let mut process = case
            .command(nearpage_path())
            .args(["view", "--no-open"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("nearpage is built");
        let mut address = String::new();
        BufReader::new(process.stdout.take().expect("piped"))
            .read_line(&mut address)
            .expect("an address");
        let address = address.trim().to_owned();
        assert!(address.starts_with("http://127.0.0.1:"), "{address:?}");
        Viewed { process, address }
    }

    /// Host and port.
    pub fn host(&self) -> &str {
        self.address["http://".len()..]
            .split('/')
            .next()
            .expect("a host")
    }

    pub fn token(&self) -> &str {
        self.address
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .expect("a token")
    }

    /// Head (status line and headers) and body of the answer to a request with these headers.
    pub fn ask(&self, request: &str, headers: &str) -> (String, String) {
        self.ask_with(request, headers, "")
    }

    /// Like [`Viewed::ask`], with a body.
    pub fn ask_with(&self, request: &str, headers: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.host()).expect("it listens");
        write!(
            stream,
            "{request} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n{body}"
        )
        .expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Viewed {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn downloaded(case: &Case, name: &str) -> PathBuf {
    let file = case.path("downloads").join(name);
    let started = Instant::now();
    while !file.exists() {
        let all: Vec<_> = fs::read_dir(case.path("downloads"))
            .expect("a folder")
            .flatten()
            .collect();
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no {name} among {all:?}"
        );
        sleep(Duration::from_millis(30));
    }
    file
}
