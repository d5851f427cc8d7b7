#![no_main]
//! A log of `nearpage live`, which the page's server reads while it grows: the first half, then the rest. Each piece is
//! a line; tags from 128 on leave the line unfinished.

use std::fs::OpenOptions;
use std::io::Write;

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, pieces};
use nearpage_view::LiveLog;

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    let lines: Vec<Vec<u8>> = pieces(data)
        .map(|(tag, line)| {
            let end: &[u8] = if tag < 128 { b"\n" } else { b"" };
            [line, end].concat()
        })
        .collect();
    let (begin, rest) = lines.split_at(lines.len() / 2);
    SCRATCH.with(|scratch| {
        let path = scratch.write("live.log", &begin.concat());
        let log = match LiveLog::open(&path) {
            Ok(log) => log,
            Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
        };
        let before = log.answer(None)["intervals"].as_u64();
        let mut file = OpenOptions::new().append(true).open(&path).expect("just written");
        file.write_all(&rest.concat()).expect("room");
        let after = log.answer(before)["intervals"].as_u64();
        assert!(before <= after);
    });
});
