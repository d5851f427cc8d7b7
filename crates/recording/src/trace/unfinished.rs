//! Frames that threads of a killed or replaced program left unfinished: appended to their traces.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nearpage_wire::trace::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameHeader, finish_frame};

use crate::Error;
use crate::error::IoContext;

/// Appends the unfinished frames in a folder of traces and removes their files, but for those of
/// processes that are still at it (`alive`, by pid). Returns how many there were.
///
/// For whoever started the program, once it has ended.
///
/// # Errors
/// The folder can't be read or a trace not be written.
pub fn finish(folder: &Path, alive: impl Fn(u32) -> bool) -> Result<usize, Error> {
    // By pid, and by when the image began: only the latest of a process can be at it.
    let mut images: BTreeMap<u32, BTreeMap<u64, Vec<PathBuf>>> = BTreeMap::new();
    for entry in fs::read_dir(folder).at(folder, "read the folder")? {
        let path = entry.at(folder, "read the folder")?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some((pid, start_ns, kind)) = name.and_then(parse) else {
            continue;
        };
        let image = images.entry(pid).or_default().entry(start_ns).or_default();
        if kind.ends_with("open") {
            image.push(path);
        }
    }
    let mut finished = 0;
    for (pid, mut images) in images {
        if alive(pid) {
            images.pop_last();
        }
        for (start_ns, mut open) in images {
            if !open.is_empty() {
                open.sort();
                finished += append(&folder.join(format!("trace-{pid}-{start_ns}.trace")), &open)?;
            }
        }
    }
    Ok(finished)
}

/// `trace-PID-START.…`.
fn parse(name: &str) -> Option<(u32, u64, &str)> {
    let (pid, rest) = name.strip_prefix("trace-")?.split_once('-')?;
    let (start_ns, kind) = rest.split_once('.')?;
    Some((pid.parse().ok()?, start_ns.parse().ok()?, kind))
}

fn append(trace: &Path, open: &[PathBuf]) -> Result<usize, Error> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .open(trace)
        .at(trace, "open")?;
    let (end, headers) = whole_frames(trace, &file)?;
    // Half a frame at the end was just being written, and is in its file.
    file.set_len(end).at(trace, "cut")?;
    let mut finished = 0;
    for path in open {
        let mut bytes = fs::read(path).at(path, "read")?;
        if let Some(frame) = finish_frame(&mut bytes)
            && !headers.iter().any(|header| frame.starts_with(header))
        {
            (&file).write_all(frame).at(trace, "write")?;
            finished += 1;
        }
        fs::remove_file(path).at(path, "remove")?;
    }
    Ok(finished)
}

type Header = [u8; FRAME_HEADER_BYTES];

/// Where the last whole frame ends, and all headers up to there.
fn whole_frames(path: &Path, file: &File) -> Result<(u64, Vec<Header>), Error> {
    let size = file.metadata().at(path, "read")?.len();
    let (mut end, mut headers) = (FILE_HEADER_BYTES as u64, Vec::new());
    while end + FRAME_HEADER_BYTES as u64 <= size {
        let mut header = [0; FRAME_HEADER_BYTES];
        file.read_exact_at(&mut header, end).at(path, "read")?;
        let next = FrameHeader::from_bytes(&header)
            .map(|header| end + FRAME_HEADER_BYTES as u64 + u64::from(header.payload_bytes));
        match next.filter(|next| *next <= size) {
            Some(next) => end = next,
            None => break,
        }
        headers.push(header);
    }
    Ok((end.min(size), headers))
}

#[cfg(test)]
mod tests {
    use nearpage_wire::trace::{FileHeader, FrameKind};

    use super::*;

    fn header(thread: u32, payload_bytes: u32) -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Records,
            thread,
            records: payload_bytes,
            payload_bytes,
            virtual_time: 5,
            time_ns: 6,
        }
    }

    fn sealed(thread: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&[0; FRAME_HEADER_BYTES][..], payload].concat();
        header(thread, payload.len() as u32).seal(&mut frame);
        frame
    }

    fn open(thread: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&[0; FRAME_HEADER_BYTES][..], payload, &[7; 100]].concat();
        header(thread, payload.len() as u32).begin(&mut frame);
        frame
    }

    #[test]
    fn what_was_left_is_appended_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let begins = FileHeader {
            pid: 12,
            page_bytes: 4096,
            line_bytes: 64,
            sample_period: 0,
            start_ns: 100,
            quantum: 1000,
            parent_pid: 0,
        }
        .to_bytes();
        let whole = [&begins[..], &sealed(0, b"one"), &sealed(1, b"two")].concat();
        // The process was killed while it wrote a frame; another frame was written, but is still
        // there; a third had only begun; and a fourth has nothing yet.
        let torn = [&whole[..], &sealed(2, b"three")[..FRAME_HEADER_BYTES + 2]].concat();
        fs::write(at("trace-12-100.trace"), torn).unwrap();
        fs::write(at("trace-12-100.1.open"), sealed(1, b"two")).unwrap();
        fs::write(at("trace-12-100.2.open"), sealed(2, b"three")).unwrap();
        fs::write(at("trace-12-100.3.open"), open(3, b"four")).unwrap();
        fs::write(at("trace-12-100.4.open"), open(4, b"")).unwrap();
        // It had another program before, and that one's process is still there.
        fs::write(at("trace-13-1.trace"), begins).unwrap();
        fs::write(at("trace-13-1.0.open"), open(0, b"five")).unwrap();
        fs::write(at("trace-13-2.trace"), begins).unwrap();
        fs::write(at("trace-13-2.0.open"), open(0, b"six")).unwrap();

        let alive = |pid| pid == 13;
        assert_eq!(finish(folder.path(), alive).unwrap(), 3);
        let expected = [&whole[..], &sealed(2, b"three"), &sealed(3, b"four")].concat();
        assert_eq!(fs::read(at("trace-12-100.trace")).unwrap(), expected);
        let before = [&begins[..], &sealed(0, b"five")].concat();
        assert_eq!(fs::read(at("trace-13-1.trace")).unwrap(), before);
        assert_eq!(fs::read(at("trace-13-2.trace")).unwrap(), begins);
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let traces = [
            "trace-12-100.trace",
            "trace-13-1.trace",
            "trace-13-2.0.open",
        ];
        assert_eq!(left, [&traces[..], &["trace-13-2.trace"]].concat());
        assert_eq!(finish(folder.path(), alive).unwrap(), 0);
    }
}
