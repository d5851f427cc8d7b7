#![no_main]
//! Bytes that a client sends to the servers of the page and of the metrics. Pieces are sent as they are; a piece with a
//! tag from 128 on is the path of a request with the right token.

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::pieces;
use nearpage_http::{Answer, Gate, Head, Site, answer_bytes};
use nearpage_view::Question;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const INSIDE: &[u8] = b"inside";

/// A site that answers [`INSIDE`] only to admitted clients.
struct Guarded(Gate);

impl Site for Guarded {
    fn admit<'a>(&self, head: &Head<'a>) -> Result<&'a str, Answer> {
        self.0.admit(head)
    }

    fn answer(&self, target: &str, body: Option<&[u8]>) -> Answer {
        assert!(body.is_none_or(|body| body.len() <= nearpage_http::limits::BODY_BYTES));
        let question = Question::parse(target);
        assert!(!question.path.contains('?'), "{target}");
        Answer { status: 200, ..Answer::error(200, "inside") }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut sent = Vec::new();
    for (tag, piece) in pieces(data) {
        match tag < 128 {
            true => sent.extend_from_slice(piece),
            false => {
                let path = String::from_utf8_lossy(piece);
                let request = format!("GET /{TOKEN}/{path} HTTP/1.1\r\nHost: 127.0.0.1:4000\r\n\r\n");
                sent.extend_from_slice(request.as_bytes());
            }
        }
    }
    let gate = Gate::new(([127, 0, 0, 1], 4000).into(), Some(TOKEN.to_owned()));
    let answers = answer_bytes(Arc::new(Guarded(gate)), &sent).expect("a runtime");
    assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."), "{answers:?}");
    let holds = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|window| window == part);
    assert!(holds(&sent, TOKEN.as_bytes()) || !holds(&answers, INSIDE), "let in without the token");
});
