//! A program under the emulator with the plugin, and what the plugin wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearpage_wire::trace::{
    COUNTERS, Counter, Decoder, Event, Events, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader,
    FrameHeader, FrameKind, Record, finish_frame,
};

/// A program of `tests/all/programs`, compiled, and a folder for its traces.
pub struct Case {
    pub folder: PathBuf,
    pub program: PathBuf,
}

impl Case {
    pub fn new(name: &str, program: &str, flags: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("out")).expect("target folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/all/programs")
            .join(program)
            .with_extension("c");
        let program = folder.join("program");
        let compiled = Command::new("gcc")
            .args(["-O1", "-g", "-pthread", "-o"])
            .arg(&program)
            .arg(&source)
            .args(flags)
            .status()
            .expect("gcc (Debian package gcc)");
        assert!(compiled.success());
        Self { folder, program }
    }

    /// Runs it traced, under `wrapper`.
    pub fn run(&self, wrapper: &[&str], setup: &str, arguments: &[&str]) -> Output {
        let out = self.folder.join("out");
        fs::remove_dir_all(&out).expect("own folder");
        fs::create_dir(&out).expect("own folder");
        let setup_file = self.folder.join("setup");
        fs::write(&setup_file, setup).expect("own folder");
        // Beside the test itself: what a build put one folder higher may be older.
        let library = std::env::current_exe().expect("path");
        let library = library.with_file_name("libnearpage_tracer.so");
        let plugin = format!(
            "{},setup={},out={}",
            library.display(),
            setup_file.display(),
            out.display()
        );
        let words = ["timeout", "100"].iter().chain(wrapper);
        let words: Vec<&str> = words.chain(&["qemu-x86_64", "-plugin"]).copied().collect();
        Command::new(words[0])
            .args(&words[1..])
            .arg(plugin)
            .arg(&self.program)
            .args(arguments)
            .output()
            .expect("timeout (Debian package coreutils)")
    }

    pub fn traces(&self) -> Vec<Trace> {
        let files = fs::read_dir(self.folder.join("out")).expect("own folder");
        let mut paths: Vec<PathBuf> = files.map(|file| file.expect("file").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|kind| kind == "trace"));
        paths.iter().map(|path| Trace::read(path)).collect()
    }

    /// What was left of the process and of its threads, in this order.
    pub fn open_files(&self) -> Vec<Vec<u8>> {
        let files = fs::read_dir(self.folder.join("out")).expect("own folder");
        let paths = files.map(|file| file.expect("file").path());
        let mut open: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|kind| kind == "open"))
            .collect();
        open.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        open.iter()
            .map(|path| fs::read(path).expect("own file"))
            .collect()
    }

    /// Frames that threads did not finish.
    pub fn open_frames(&self) -> Vec<Option<Vec<u8>>> {
        let threads = self.open_files().into_iter().skip(1);
        threads
            .map(|mut file| finish_frame(&mut file).map(<[u8]>::to_vec))
            .collect()
    }

    pub fn trace(&self) -> Trace {
        let mut traces = self.traces();
        assert_eq!(traces.len(), 1);
        traces.remove(0)
    }
}

#[track_caller]
pub fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A trace, read as its layout says.
#[derive(Default)]
pub struct Trace {
    pub threads: BTreeMap<u32, Vec<Record>>,
    /// The same with the instructions since the record before.
    pub timed: BTreeMap<u32, Vec<(u64, Record)>>,
    pub counters: Option<[u64; COUNTERS]>,
    pub forked: Vec<u32>,
    pub execs: u32,
    /// Thread and virtual time.
    pub starts: Vec<(u32, u64)>,
    pub ends: usize,
    pub mapped: Vec<(u64, u64, Vec<u8>)>,
    pub parent: u32,
    pub stream_bytes: usize,
}

impl Trace {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("trace");
        let header = FileHeader::from_bytes(&bytes).expect("header");
        let mut trace = Self {
            parent: header.parent_pid,
            ..Self::default()
        };
        let mut rest = &bytes[FILE_HEADER_BYTES..];
        while !rest.is_empty() {
            let header = FrameHeader::from_bytes(rest).expect("frame");
            let (frame, behind) = rest.split_at(FRAME_HEADER_BYTES + header.payload_bytes as usize);
            rest = behind;
            assert!(FrameHeader::intact(frame));
            let payload = &frame[FRAME_HEADER_BYTES..];
            match header.kind {
                FrameKind::Records => {
                    trace.stream_bytes += frame.len();
                    let records = Decoder::new(payload).map(|record| record.expect("record"));
                    let timed = trace.timed.entry(header.thread).or_default();
                    let before = timed.len();
                    timed.extend(records);
                    let threads = trace.threads.entry(header.thread).or_default();
                    threads.extend(timed[before..].iter().map(|record| record.1));
                }
                FrameKind::Events => {
                    for event in Events::new(payload) {
                        match event.expect("event") {
                            Event::Counters(counters) => trace.counters = Some(counters),
                            Event::Fork { child, .. } => trace.forked.push(child),
                            Event::Exec { .. } => trace.execs += 1,
                            Event::ThreadStart {
                                thread,
                                virtual_time,
                                ..
                            } => trace.starts.push((thread, virtual_time)),
                            Event::ThreadEnd { .. } => trace.ends += 1,
                            Event::Map {
                                address,
                                length,
                                path,
                                ..
                            } => trace.mapped.push((address, length, path.to_vec())),
                            Event::Unmap { .. } => {}
                        }
                    }
                }
            }
        }
        trace
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.counters.expect("it ended well")[counter as usize]
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.threads.values().flatten()
    }
}

/// An entry of the serial log.
pub struct Entry {
    pub step: u8,
    pub cpu: usize,
    pub thread: u32,
    pub words: [u64; 2],
}

pub fn serial_log(case: &Case) -> Vec<Entry> {
    let files = fs::read_dir(case.folder.join("out")).expect("own folder");
    let mut logs = files
        .map(|file| file.expect("file").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "log"));
    let bytes = fs::read(logs.next().expect("serial log")).expect("serial log");
    let (entries, rest) = bytes.as_chunks::<24>();
    assert!(rest.is_empty());
    let word = |entry: &[u8; 24], at: usize| {
        u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"))
    };
    entries
        .iter()
        .map(|entry| Entry {
            step: entry[0],
            cpu: usize::from(u16::from_le_bytes([entry[2], entry[3]])),
            thread: (word(entry, 0) >> 32) as u32,
            words: [word(entry, 8), word(entry, 16)],
        })
        .collect()
}
