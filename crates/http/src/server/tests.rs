use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::*;
use crate::{Answer, Gate, Head};

/// Answers with the target and the size of the posted body; `/large` has a large answer.
struct Echo(Gate);

impl Site for Echo {
    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer> {
        self.0.admit(head)
    }

    fn answer(&self, target: &str, body: Option<&[u8]>) -> Answer {
        let said = match body {
            _ if target == "/large" => "x".repeat(5 * limits::PIECE_BYTES),
            None => format!("asked {target}"),
            Some(body) => format!("posted {} to {target}", body.len()),
        };
        Answer {
            status: 200,
            ..Answer::error(200, said)
        }
    }
}

fn echo(address: SocketAddr) -> Arc<dyn Site> {
    Arc::new(Echo(Gate::new(address, None)))
}

fn answered(sent: &[u8]) -> String {
    let bytes = answer_bytes(echo(([127, 0, 0, 1], 1).into()), sent).expect("a runtime");
    String::from_utf8(bytes).expect("answers are text")
}

/// Starts a server on its own thread, which runs until the test process ends.
fn served() -> SocketAddr {
    let server = Server::bind("127.0.0.1:0").expect("a free port");
    let address = server.address();
    std::thread::spawn(move || server.serve(echo(address)));
    address
}

fn connected(address: SocketAddr, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // The limit ends hanging tests; it is far longer than any answer takes.
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time");
    let _ = stream.write_all(sent);
    stream
}

fn asked(address: SocketAddr, target: &str) -> String {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut text = String::new();
    connected(address, request.as_bytes())
        .read_to_string(&mut text)
        .expect("an answer");
    text
}

#[test]
fn requests_on_one_connection_are_answered_in_order() {
    let text = answered(
        b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n\
          HEAD /d HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n\
          POST /e HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\nContent-Length: 3\r\n\r\nxyz",
    );
    assert_eq!(text.matches("HTTP/1.1 200").count(), 3, "{text}");
    assert!(
        text.contains("asked /a?b=c") && text.ends_with("posted 3 to /e"),
        "{text}"
    );
    assert!(
        !text.contains("asked /d"),
        "the answer to HEAD has no body: {text}"
    );
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
    ] {
        assert!(text.contains(header), "{text}");
    }
}

#[test]
fn requests_for_another_server_are_refused() {
    let host = "Host: 127.0.0.1:1\r\n";
    for (sent, status) in [
        (format!("PUT / HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("OPTIONS * HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("CONNECT 127.0.0.1:1 HTTP/1.1\r\n{host}\r\n"), 405),
        (
            format!("GET http://127.0.0.1:1/ HTTP/1.1\r\n{host}\r\n"),
            400,
        ),
        (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400),
        ("GET / HTTP/1.1\r\nHost: \u{e9}\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 403),
        ("GET / HTTP/1.1\r\nHost: other\r\n\r\n".to_owned(), 403),
        (
            format!("GET / HTTP/1.1\r\n{host}Origin: http://other\r\n\r\n"),
            403,
        ),
        (
            format!("POST / HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n"),
            403,
        ),
        (
            format!("GET / HTTP/1.1\r\n{host}Content-Length: 18446744073709551616\r\n\r\n"),
            400,
        ),
        ("nonsense\r\n\r\n".to_owned(), 400),
        (
            format!(
                "GET / HTTP/1.1\r\n{}\r\n",
                "X: y\r\n".repeat(limits::HEADERS + 1)
            ),
            431,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
                "x".repeat(limits::HEAD_BYTES)
            ),
            431,
        ),
        (
            format!(
                "GET /{} HTTP/1.1\r\n{host}\r\n",
                "x".repeat(limits::HEAD_BYTES)
            ),
            431,
        ),
    ] {
        let text = answered(sent.as_bytes());
        let short: String = sent.chars().take(60).collect();
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status}")),
            "{short}: {text}"
        );
        assert!(!text.contains("asked"), "{short}: {text}");
    }
}

#[test]
fn a_body_is_whole_or_refused() {
    let head = "POST /e HTTP/1.1\r\nHost: 127.0.0.1:1\r\nOrigin: http://127.0.0.1:1\r\n";
    let whole = "x".repeat(limits::BODY_BYTES);
    let sized = |bytes: usize, body: &str| format!("{head}Content-Length: {bytes}\r\n\r\n{body}");
    let chunked = |body: &str| {
        format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        )
    };
    for (sent, begins, says) in [
        (sized(whole.len(), &whole), "HTTP/1.1 200", "posted 1048576"),
        (chunked(&whole), "HTTP/1.1 200", "posted 1048576"),
        (
            sized(whole.len() + 1, ""),
            "HTTP/1.1 413",
            "at most 1048576 bytes",
        ),
        (
            sized(usize::MAX - 9, "a"),
            "HTTP/1.1 413",
            "at most 1048576 bytes",
        ),
        (
            chunked(&format!("{whole}x")),
            "HTTP/1.1 413",
            "at most 1048576 bytes",
        ),
        (sized(4, "abc"), "HTTP/1.1 400", ""),
    ] {
        let text = answered(sent.as_bytes());
        assert!(
            text.starts_with(begins) && text.contains(says),
            "{begins}: {text}"
        );
    }
}

#[test]
fn strangers_that_say_nothing_more_keep_nobody_out() {
    let address = served();
    let slow = [
        "",
        "GET / HT",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\na",
    ];
    let strangers: Vec<TcpStream> = (0..limits::CONNECTIONS + 20)
        .map(|number| connected(address, slow[number % slow.len()].as_bytes()))
        .collect();
    for _ in 0..3 {
        assert!(asked(address, "/me").ends_with("asked /me"));
    }
    drop(strangers);
}

#[test]
fn a_client_that_reads_no_answer_keeps_no_other_out() {
    let address = served();
    let request = format!("GET /large HTTP/1.1\r\nHost: {address}\r\n\r\n").repeat(60);
    let strangers: Vec<TcpStream> = (0..20)
        .map(|_| connected(address, request.as_bytes()))
        .collect();
    assert!(asked(address, "/large").ends_with(&"x".repeat(5 * limits::PIECE_BYTES)));
    drop(strangers);
}

#[test]
fn an_endless_head_ends_the_connection() {
    let address = served();
    let mut stream = connected(address, b"GET / HTTP/1.1\r\nX: ");
    let sent = (0..1024)
        .take_while(|_| stream.write_all(&[b'a'; 64 << 10]).is_ok())
        .count();
    assert!(sent < 1024, "64 MiB of one header were taken");
    assert!(asked(address, "/me").ends_with("asked /me"));
}

#[test]
fn a_client_that_takes_too_long_over_a_head_is_dropped() {
    let address = served();
    let mut text = String::new();
    // Any end of the connection is accepted. If the server kept the connection open, the test would hang.
    let _ = connected(address, b"GET / HT").read_to_string(&mut text);
    assert!(!text.contains("200"), "{text}");
    assert!(asked(address, "/me").ends_with("asked /me"));
}
