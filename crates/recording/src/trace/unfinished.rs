//! Appends frames that threads of a killed or replaced program left unfinished to their traces.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nearpage_files::if_there;
use nearpage_wire::trace::{
    COUNTERS, ENDED_FILE, EVENT_BYTES_MAX, Event, FILE_HEADER_BYTES, FRAME_HEADER_BYTES,
    FrameHeader, FrameKind, SIGNALS_FILE, finish_frame, open_counters,
};

use crate::Error;
use crate::error::IoContext;

/// Appends unfinished frames and counters to the traces in a folder, and removes the files that had them. Processes
/// that still run (`alive`, by pid) keep their files. Returns the number of appended frames.
///
/// To be called after the program has ended.
///
/// # Errors
/// If the folder can't be read, or a trace can't be written.
pub fn finish(folder: &Path, alive: impl Fn(u32) -> bool) -> Result<usize, Error> {
    // Images by pid and begin. Only the latest image of a live process may still be written.
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
    let mut all_ended = true;
    for (pid, mut images) in images {
        if alive(pid)
            && let Some((_, open)) = images.pop_last()
        {
            all_ended &= open.is_empty();
        }
        for (start_ns, mut open) in images {
            if !open.is_empty() {
                open.sort();
                finished += append(&folder.join(format!("trace-{pid}-{start_ns}.trace")), &open)?;
            }
        }
    }
    if all_ended {
        // The file usually does not exist.
        let _ = fs::remove_file(folder.join(SIGNALS_FILE));
    }
    Ok(finished)
}

/// Ends the traces in a folder, including those of processes that go on (`alive`, by pid): the file of such a process
/// is replaced by a copy of its contents so far. Returns the number of appended frames.
///
/// To be called at the end of the recording.
///
/// # Errors
/// If the folder can't be read or written.
pub fn end(folder: &Path, alive: impl Fn(u32) -> bool) -> Result<usize, Error> {
    let over = folder.join(ENDED_FILE);
    File::create(&over).at(&over, "create")?;
    let mut going_on = Vec::new();
    for entry in fs::read_dir(folder).at(folder, "read the folder")? {
        let path = entry.at(folder, "read the folder")?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.and_then(parse).is_some_and(|(pid, ..)| alive(pid)) {
            going_on.push(path);
        }
    }
    if going_on.is_empty() {
        // No process is left that could begin a trace.
        fs::remove_file(&over).at(&over, "remove")?;
    }
    // Unfinished frames are copied first. A frame that is written meanwhile is then in both copies, and counts once.
    going_on.sort_by_key(|path| path.extension().is_some_and(|kind| kind == "trace"));
    let copy = folder.join("copy");
    for path in going_on {
        let Some(bytes) = if_there(fs::copy(&path, &copy)).at(&path, "copy")? else {
            // Its process has ended meanwhile.
            continue;
        };
        fs::rename(&copy, &path).at(&path, "replace")?;
        if bytes < FILE_HEADER_BYTES as u64 {
            // Its process was just making it, and has traced nothing.
            remove(&path)?;
        }
    }
    finish(folder, |_| false)
}

/// Process id in the name of a trace's file.
pub(crate) fn process_of(name: &str) -> Option<u32> {
    Some(parse(name)?.0)
}

/// Parses `trace-PID-START.…`.
fn parse(name: &str) -> Option<(u32, u64, &str)> {
    let (pid, rest) = name.strip_prefix("trace-")?.split_once('-')?;
    let (start_ns, kind) = rest.split_once('.')?;
    Some((pid.parse().ok()?, start_ns.parse().ok()?, kind))
}

/// Appends the unfinished frames in `open` to their trace. Processes that live on may remove any of the files meanwhile.
fn append(trace: &Path, open: &[PathBuf]) -> Result<usize, Error> {
    let Some(mut file) = if_there(nearpage_files::open_to_write(trace)).at(trace, "open")? else {
        // Nothing was traced before the recording's end.
        open.iter().try_for_each(|path| remove(path))?;
        return Ok(0);
    };
    let (end, mut headers) = whole_frames(trace, &file)?;
    // A partial frame at the end was just being written; its `.open` file has the whole frame.
    file.set_len(end).at(trace, "cut")?;
    file.seek(SeekFrom::End(0)).at(trace, "write")?;
    let mut finished = 0;
    // Totals of the whole process, unless the counters of a thread or the process's own file are missing.
    let mut totals = Some([0_u64; COUNTERS]);
    let own = trace.with_extension("open");
    if !open.contains(&own) {
        totals = None;
    }
    for path in open {
        let Some(mut bytes) = if_there(nearpage_files::read(path, u64::MAX)).at(path, "read")?
        else {
            // Its thread or process has just ended, and the trace has everything.
            totals = None;
            continue;
        };
        totals = totals.zip(open_counters(&bytes)).map(sum);
        if let Some(frame) = finish_frame(&mut bytes)
            && !headers.iter().any(|header| is_of(header, frame))
        {
            (&file).write_all(frame).at(trace, "write")?;
            headers.extend(frame.first_chunk());
            finished += 1;
        }
    }
    if let Some(totals) = totals {
        (&file)
            .write_all(&counters_frame(totals, &headers))
            .at(trace, "write")?;
    }
    for path in open {
        remove(path)?;
    }
    Ok(finished)
}

/// Removes a file that its process may remove at the same time.
fn remove(path: &Path) -> Result<(), Error> {
    if_there(fs::remove_file(path)).at(path, "remove")?;
    Ok(())
}

fn sum((mut totals, counters): ([u64; COUNTERS], [u64; COUNTERS])) -> [u64; COUNTERS] {
    for (total, counter) in totals.iter_mut().zip(counters) {
        *total = total.saturating_add(counter);
    }
    totals
}

/// A frame with the counters, timed after the frames with these headers.
fn counters_frame(totals: [u64; COUNTERS], headers: &[Header]) -> Vec<u8> {
    let headers = headers
        .iter()
        .filter_map(|header| FrameHeader::from_bytes(header));
    let (virtual_time, time_ns) = headers.fold((0, 0), |latest, header| {
        (
            header.virtual_time.max(latest.0),
            header.time_ns.max(latest.1),
        )
    });
    let mut frame = vec![0; FRAME_HEADER_BYTES + EVENT_BYTES_MAX];
    let bytes = Event::Counters(totals).encode(&mut frame[FRAME_HEADER_BYTES..]);
    frame.truncate(FRAME_HEADER_BYTES + bytes);
    let header = FrameHeader {
        kind: FrameKind::Events,
        thread: 0,
        records: 1,
        payload_bytes: bytes as u32,
        virtual_time,
        time_ns,
    };
    header.seal(&mut frame);
    frame
}

type Header = [u8; FRAME_HEADER_BYTES];

/// Whether `header` belongs to `frame`, perhaps from when the frame had fewer records.
fn is_of(header: &Header, frame: &[u8]) -> bool {
    let began = |header: FrameHeader| {
        (
            header.kind,
            header.thread,
            header.virtual_time,
            header.time_ns,
        )
    };
    let own = frame
        .get(..FRAME_HEADER_BYTES)
        .and_then(FrameHeader::from_bytes);
    own.is_some_and(|own| {
        FrameHeader::from_bytes(header).is_some_and(|header| began(header) == began(own))
    })
}

/// End of the last whole frame, and all headers up to there.
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
    use nearpage_wire::trace::{FileHeader, OPEN_COUNTERS_BYTES, open_counters_words};

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

    /// Header of a process's trace file.
    fn begins() -> [u8; FILE_HEADER_BYTES] {
        FileHeader {
            pid: 12,
            page_bytes: 4096,
            line_bytes: 64,
            sample_period: 0,
            start_ns: 100,
            quantum: 1000,
            parent_pid: 0,
            whole_system: false,
            dependences: false,
        }
        .to_bytes()
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_that_processes_remove_at_the_end_are_no_errors() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let begins = begins();
        fs::write(at("trace-12-100.trace"), begins).unwrap();
        fs::write(at("trace-12-100.0.open"), open(0, b"one")).unwrap();
        // Just made, with nothing in it.
        fs::write(at("trace-13-1.trace"), []).unwrap();
        // Of a trace that was removed.
        fs::write(at("trace-14-1.0.open"), open(0, b"")).unwrap();
        // Removed after they were listed: links to nowhere are listed, and are not there.
        for gone in ["trace-12-100.1.open", "trace-15-1.trace"] {
            std::os::unix::fs::symlink("nowhere", at(gone)).unwrap();
        }
        assert_eq!(end(folder.path(), |pid| pid != 14).unwrap(), 1);
        let expected = [&begins[..], &sealed(0, b"one")].concat();
        assert_eq!(fs::read(at("trace-12-100.trace")).unwrap(), expected);
        assert_eq!(
            names_in(folder.path()),
            [ENDED_FILE, "trace-12-100.trace", "trace-15-1.trace"]
        );

        let images = super::super::images::Images::open(folder.path()).unwrap();
        assert_eq!((images.files.len(), images.notes), (1, vec![]));
    }

    #[test]
    fn unfinished_frames_are_appended_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let begins = begins();
        let whole = [&begins[..], &sealed(0, b"one"), &sealed(1, b"two")].concat();
        // The process was killed while it wrote a frame; another frame was written, but is still
        // there; a third had only begun; and a fourth has nothing yet.
        let torn = [&whole[..], &sealed(2, b"three")[..FRAME_HEADER_BYTES + 2]].concat();
        fs::write(at("trace-12-100.trace"), torn).unwrap();
        fs::write(at("trace-12-100.1.open"), sealed(1, b"two")).unwrap();
        fs::write(at("trace-12-100.2.open"), sealed(2, b"three")).unwrap();
        fs::write(at("trace-12-100.3.open"), open(3, b"four")).unwrap();
        fs::write(at("trace-12-100.4.open"), open(4, b"")).unwrap();
        // Process 13 ran another program before, and is still alive.
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
        let left = names_in(folder.path());
        let traces = [
            "trace-12-100.trace",
            "trace-13-1.trace",
            "trace-13-2.0.open",
        ];
        assert_eq!(left, [&traces[..], &["trace-13-2.trace"]].concat());
        assert_eq!(finish(folder.path(), alive).unwrap(), 0);
    }

    #[test]
    fn a_process_that_goes_on_changes_nothing_once_its_recording_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let whole = [&begins()[..], &sealed(0, b"one")].concat();
        fs::write(at("trace-12-100.trace"), &whole).unwrap();
        fs::write(
            at("trace-12-100.0.open"),
            open(0, b"one, when it was shorter"),
        )
        .unwrap();
        fs::write(at("trace-12-100.1.open"), open(1, b"two")).unwrap();
        let mut going_on = fs::OpenOptions::new()
            .append(true)
            .open(at("trace-12-100.trace"))
            .unwrap();

        // A frame that was written while the files were copied is in both.
        assert_eq!(end(folder.path(), |pid| pid == 12).unwrap(), 1);
        going_on.write_all(&sealed(1, b"two and more")).unwrap();
        let expected = [&whole[..], &sealed(1, b"two")].concat();
        assert_eq!(fs::read(at("trace-12-100.trace")).unwrap(), expected);
        let left = names_in(folder.path());
        assert_eq!(left, ["ended", "trace-12-100.trace"]);
    }

    #[test]
    fn a_killed_process_has_its_totals_unless_somebodys_are_missing() {
        let counted = |frame: Vec<u8>, counters: [u64; COUNTERS]| {
            let mut file = frame;
            file.resize(file.len() + OPEN_COUNTERS_BYTES, 0);
            let at = file.len() - OPEN_COUNTERS_BYTES;
            for (number, word) in open_counters_words(&counters).iter().enumerate() {
                file[at + 8 * number..][..8].copy_from_slice(&word.to_le_bytes());
            }
            file
        };
        let begins = begins();
        for missing in [None, Some("trace-12-100.open"), Some("trace-12-100.1.open")] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::write(at("trace-12-100.trace"), begins).unwrap();
            fs::write(at("trace-12-100.open"), counted(vec![], [5; COUNTERS])).unwrap();
            fs::write(
                at("trace-12-100.0.open"),
                counted(open(0, b"one"), [30; COUNTERS]),
            )
            .unwrap();
            fs::write(
                at("trace-12-100.1.open"),
                counted(open(1, b"two"), [100; COUNTERS]),
            )
            .unwrap();
            match missing {
                Some("trace-12-100.open") => fs::remove_file(at("trace-12-100.open")).unwrap(),
                Some(thread) => fs::write(at(thread), open(1, b"two")).unwrap(),
                None => {}
            }
            assert_eq!(finish(folder.path(), |_| false).unwrap(), 2);
            let mut expected = [&begins[..], &sealed(0, b"one"), &sealed(1, b"two")].concat();
            if missing.is_none() {
                let headers = [sealed(0, b"one"), sealed(1, b"two")]
                    .map(|frame| *frame.first_chunk().unwrap());
                expected.extend(counters_frame([135; COUNTERS], &headers));
            }
            assert_eq!(
                fs::read(at("trace-12-100.trace")).unwrap(),
                expected,
                "{missing:?}"
            );
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
