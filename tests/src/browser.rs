//! A real browser without a window, driven over the DevTools protocol.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::socket::Socket;

/// Limit of each operation: far more than needed, because the machine may be busy.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Chromium with one page.
pub struct Browser {
    process: Child,
    profile: PathBuf,
    socket: Socket,
    session: String,
    messages: u64,
    /// Console messages of the page and uncaught exceptions.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts Chromium with its profile and downloads under `folder`.
    pub fn start(folder: &Path) -> Browser {
        let profile = folder.join("profile");
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-extensions",
                "--force-color-profile=srgb",
            ])
            .args([
                "--remote-debugging-port=0",
                "--window-size=1280,900",
                "--hide-scrollbars",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .env("HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command
            .spawn()
            .unwrap_or_else(|error| panic!("chromium: {error}; run tests/setup first"));
        let stderr = process.stderr.take().expect("it is piped");
        let mut said = String::new();
        let mut lines = BufReader::new(stderr).lines();
        let address = loop {
            match lines.next() {
                Some(Ok(line)) => match line.strip_prefix("DevTools listening on ") {
                    Some(address) => break address.to_owned(),
                    None => said.push_str(&(line + "\n")),
                },
                _ => panic!("chromium ended before it listened:\n{said}"),
            }
        };
        // Chromium would block on a full pipe.
        std::thread::spawn(move || for _ in lines {});
        let socket = Socket::open(&address, TIME_LIMIT).expect("a DevTools socket");
        let mut browser = Browser {
            process,
            profile,
            socket,
            session: String::new(),
            messages: 0,
            complaints: Vec::new(),
        };
        let downloads = folder.join("downloads");
        fs::create_dir_all(&downloads).expect("the case's folder is writable");
        browser.call(
            "Browser.setDownloadBehavior",
            json!({ "behavior": "allow", "downloadPath": downloads }),
        );
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 900);
        browser
    }

    /// Sets the size of the window, in pixels.
    pub fn size(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Calls a method of the DevTools protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.messages += 1;
        let number = self.messages;
        let mut message = json!({ "id": number, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.socket
            .send(&message.to_string())
            .expect("chromium runs");
        loop {
            let message = self.socket.read();
            let message = message.unwrap_or_else(|error| panic!("{method}: {error}"));
            let message: Value = serde_json::from_str(&message).expect("JSON");
            if message["id"] == json!(number) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            let parameters = &message["params"];
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => self
                    .complaints
                    .push(parameters["exceptionDetails"].to_string()),
                Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                    self.complaints.push(parameters["entry"].to_string());
                }
                _ => {}
            }
        }
    }

    /// Opens an address.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({ "url": address }));
    }

    /// Value of a JavaScript expression; a promise's value once it is resolved.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true,
        });
        let found = self.call("Runtime.evaluate", parameters);
        assert!(
            found["exceptionDetails"].is_null(),
            "{expression}: {}",
            found["exceptionDetails"]
        );
        found["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn wait(&mut self, expression: &str) {
        self.wait_with(expression, |_| ());
    }

    /// Waits until the object behind a weak reference is collected. The browser keeps objects of the last frame and of
    /// pending requests for a while.
    #[track_caller]
    pub fn let_go(&mut self, reference: &str) {
        self.wait_with(&format!("{reference}.deref() === undefined"), |browser| {
            browser.call("HeapProfiler.collectGarbage", json!({}));
        });
    }

    /// Waits until an expression is true; calls `before` ahead of each evaluation.
    #[track_caller]
    fn wait_with(&mut self, expression: &str, before: impl Fn(&mut Self)) {
        let started = Instant::now();
        loop {
            before(self);
            let parameters = json!({ "expression": expression, "returnByValue": true });
            let found = self.call("Runtime.evaluate", parameters);
            if found["result"]["value"] == json!(true) {
                return;
            }
            if started.elapsed() > TIME_LIMIT {
                let text = self.value("document.body.innerText");
                panic!(
                    "never came true: {expression}\nthe page says: {text}\ncomplaints: {:?}",
                    self.complaints
                );
            }
            sleep(Duration::from_millis(40));
        }
    }

    /// Waits until every picture of the page is drawn.
    #[track_caller]
    pub fn drawn(&mut self) {
        self.wait(
            "[...document.querySelectorAll('figure')].every(plot => \
             plot.dataset.ready && !plot.classList.contains('busy'))",
        );
    }

    /// Moves the pointer.
    pub fn point(&mut self, x: f64, y: f64) {
        let at = json!({ "type": "mouseMoved", "x": x, "y": y });
        self.call("Input.dispatchMouseEvent", at);
    }

    /// Drags from one place to another.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let steps = [
            ("mouseMoved", from),
            ("mousePressed", from),
            ("mouseMoved", ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0)),
            ("mouseMoved", to),
            ("mouseReleased", to),
        ];
        for (kind, (x, y)) in steps {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses and releases a key.
    pub fn key(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "text": if kind == "keyDown" { text } else { "" } });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Private memory of the processes that draw pages, in KiB.
    pub fn page_memory_kib(&self) -> u64 {
        let mut parents = Vec::new();
        for entry in fs::read_dir("/proc").expect("it is mounted").flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // The fields after the name, which may contain any character: state, parent.
            let parent = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split(' ').nth(2));
            if let Some(parent) = parent.and_then(|parent| parent.parse::<u32>().ok()) {
                parents.push((pid, parent));
            }
        }
        let mut ours = vec![self.process.id()];
        let mut at = 0;
        while let Some(&process) = ours.get(at) {
            ours.extend(
                parents
                    .iter()
                    .filter(|(_, parent)| *parent == process)
                    .map(|(pid, _)| *pid),
            );
            at += 1;
        }
        let private = |pid: &u32| -> u64 {
            let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            if !String::from_utf8_lossy(&read("cmdline")).contains("--type=renderer") {
                return 0;
            }
            let memory = String::from_utf8_lossy(&read("smaps_rollup")).into_owned();
            let lines = memory.lines().filter(|line| line.starts_with("Private_"));
            lines
                .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .sum()
        };
        ours.iter().map(private).sum()
    }

    /// A screenshot of the page as PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let found = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        decoded(found["data"].as_str().expect("base64"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// Decodes Base64.
fn decoded(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let digits: Vec<u8> = digits.collect();
    let of = |part: &[u8]| {
        let bits = part
            .iter()
            .fold(0u32, |bits, &digit| bits << 6 | u32::from(digit));
        let bits = bits << (6 * (4 - part.len()));
        bits.to_be_bytes()[1..part.len()].to_vec()
    };
    digits.chunks(4).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decoded("Zm9vYg=="), b"foob");
        assert_eq!(decoded("Zm9vYmFy"), b"foobar");
        assert_eq!(decoded("//77"), [0xff, 0xfe, 0xfb]);
    }
}
