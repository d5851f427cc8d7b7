//! Sends the page's questions to `nearpage view`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::limited::Limited;

/// Waits for `view` to print its address, then asks all the page's questions. Returns `Ok` if `view` ends or can't be
/// reached; its exit status is checked later.
pub(super) fn ask(view: &mut Limited<'_>) -> io::Result<()> {
    let address = loop {
        let out = view.out();
        if let Some((address, _)) = out.split_once('\n') {
            break address.to_owned();
        }
        // A view that can't open the recording ends.
        if !view.has_time() || view.has_ended()? {
            return Ok(());
        }
        sleep(Duration::from_millis(2));
    };
    let Some((host, token)) = address
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
    else {
        return Ok(());
    };
    let get = |path: &str| get(host, &format!("/{token}{path}"));
    while view.has_time() {
        let progress: Option<Value> =
            get("progress?recording=0").and_then(|text| serde_json::from_slice(&text).ok());
        match progress {
            Some(progress) if progress["share"] != 1.0 && progress["missing"].is_null() => {
                sleep(Duration::from_millis(2));
            }
            _ => break,
        }
    }
    let open: Value = get("open")
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let recording = &open["recordings"][0];
    let number = |name: &str| recording[name].as_u64().unwrap_or(1);
    let (space, duration) = (number("space_bytes"), number("duration_ns"));
    for path in ["report", "threads", "plan"] {
        get(&format!("{path}?recording=0"));
    }
    for object in 0..3 {
        get(&format!(
            "matrix?recording=0&object={object}&from=0&to=1000000&bins=64"
        ));
    }
    for by in [
        "thread",
        "function",
        "kind",
        "cpu-node",
        "locality",
        "page-node",
        "level",
        "latency",
    ] {
        let frame = format!(
            "recording=0&by={by}&place_from=0&place_to={space}&from_ns=0&to_ns={duration}&columns=200&rows=100"
        );
        get(&format!("picture?{frame}"));
        get(&format!("histogram?{frame}"));
    }
    let middle = format!(
        "place_from={}&place_to={space}&from_ns=0&to_ns={duration}",
        space / 2
    );
    get(&format!("value?recording=0&{middle}"));
    Ok(())
}

/// Body of an answer.
fn get(host: &str, target: &str) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(super::TIME_MAX)).ok()?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    Some(answer.split_off(body))
}
