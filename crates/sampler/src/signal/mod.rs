//! The signal source. The preload library fills rings inside the command's processes
//! ([`nearpage_wire::samples`]). This module reads them and turns samples into the records that the kernel would have
//! written, so that all later stages are the same as for the clock.
//!
//! The rings also report new processes and threads. Mappings come from `/proc/PID/maps`, which is read when a
//! process's ring is found, when a sample's code is unknown, and at intervals; after the process has ended, from the
//! copy that it left. Page faults are not observed.

pub(crate) mod own;
mod records;
mod ring;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nearpage_files::memory_folder;
use nearpage_wire::samples::{Header, Kind, SLOTS_MAX, StopReason};
use rustc_hash::FxHashSet;

pub(crate) use records::Process;
use ring::SampleRing;

/// Mappings are read again after this time, or later if reading them takes long.
const MAPS_EVERY_NS: u64 = 1_000_000_000;
const MAPS_SHARE: u64 = 100;
/// Age from which a folder's time of change is reliable. File systems round this time, so a second change shortly
/// after the first may leave it the same.
const FOLDER_SETTLES: Duration = Duration::from_secs(3);

/// Number of slots for a second of samples on all CPUs; rings are read several times per second.
pub(crate) fn slots(rate_hz: f64, cpus: usize) -> usize {
    let wanted = (rate_hz * cpus as f64) as usize;
    wanted.next_power_of_two().clamp(1024, SLOTS_MAX)
}

/// The environment variables for the preload library.
pub(crate) fn environment(folder: &Path, rate_hz: f64, slots: usize) -> [(OsString, OsString); 3] {
    let number = |number: u64| number.to_string().into();
    [
        (
            nearpage_wire::SAMPLES_DIRECTORY_VARIABLE.into(),
            folder.into(),
        ),
        (
            nearpage_wire::SAMPLE_PERIOD_VARIABLE.into(),
            number((1e9 / rate_hz).round() as u64),
        ),
        (
            nearpage_wire::SAMPLE_SLOTS_VARIABLE.into(),
            number(slots as u64),
        ),
    ]
}

/// Samples that are missing, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalLosses {
    /// Samples for which the ring had no room.
    pub dropped: u64,
    /// Samples that did not come because the program blocked the signal.
    pub blocked: u64,
    /// Threads that the kernel gave no timer.
    pub threads: u64,
    /// Processes that installed their own handler for the signal.
    pub given_way: u64,
}

/// The rings of all processes.
#[derive(Debug)]
pub(crate) struct Signals {
    folder: PathBuf,
    proc_root: PathBuf,
    met: FxHashSet<OsString>,
    /// The folder's time of change, once all rings in it are known.
    folder_changed: Option<SystemTime>,
    processes: Vec<SampledProcess>,
    pids: FxHashSet<u32>,
    period_ns: u64,
    /// Samples outside this range are left out, CLOCK_MONOTONIC.
    pub window_ns: Range<u64>,
    pub losses: SignalLosses,
}

/// A process and its ring.
#[derive(Debug)]
struct SampledProcess {
    state: Process,
    ring: SampleRing,
    /// Path of the ring without its extension.
    path: PathBuf,
    maps_at_ns: u64,
    maps_took_ns: u64,
    /// The mappings when they were last read.
    maps: Vec<u8>,
}

impl Signals {
    /// Looks for rings in `folder`.
    pub fn new(folder: &Path, proc_root: &Path, period_ns: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            proc_root: proc_root.to_owned(),
            met: FxHashSet::default(),
            folder_changed: None,
            processes: Vec::new(),
            pids: FxHashSet::default(),
            period_ns,
            window_ns: 0..u64::MAX,
            losses: SignalLosses::default(),
        }
    }

    /// Marks process `pid` as known, so that no record of its beginning is made.
    pub fn know(&mut self, pid: u32) {
        self.pids.insert(pid);
    }

    /// Changes the time between two samples of a thread.
    pub fn set_period(&mut self, period_ns: u64) {
        self.period_ns = period_ns;
        for process in &self.processes {
            process.ring.set_period(period_ns);
        }
    }

    /// Appends records of the samples since the last call; `now_ns` is the time. At the `end`, nothing is held back.
    pub fn drain(&mut self, now_ns: u64, end: bool, out: &mut Vec<u8>) {
        self.meet(out);
        let mut gone = Vec::new();
        for at in 0..self.processes.len() {
            let newer = self.is_replaced(at);
            let process = &mut self.processes[at];
            let running = !newer
                && self
                    .proc_root
                    .join(process.state.pid().to_string())
                    .exists();
            let losses = &mut self.losses;
            losses.blocked += process.drain(&self.proc_root, now_ns, running, &self.window_ns, out);
            if !running || end {
                gone.push(at);
            }
        }
        for at in gone.into_iter().rev() {
            let process = self.processes.remove(at);
            let replaced = self
                .processes
                .iter()
                .any(|other| other.state.pid() == process.state.pid());
            self.part_from(process, now_ns, replaced, out);
        }
    }

    /// Whether the process has executed another program, which has its own ring.
    fn is_replaced(&self, at: usize) -> bool {
        let pid = self.processes[at].state.pid();
        self.processes[at + 1..]
            .iter()
            .any(|later| later.state.pid() == pid)
    }

    fn part_from(
        &mut self,
        mut process: SampledProcess,
        now_ns: u64,
        replaced: bool,
        out: &mut Vec<u8>,
    ) {
        process.state.end(now_ns, replaced, out);
        if !replaced {
            self.pids.remove(&process.state.pid());
        }
        let status = process.ring.status();
        self.losses.dropped += status.dropped;
        self.losses.blocked += status.blocked_ns / self.period_ns.max(1);
        self.losses.threads += status.no_timer;
        self.losses.given_way += u64::from(status.ended == Some(StopReason::SignalTaken));
        for ending in ["ring", "maps"] {
            // Files that cannot be removed vanish with the folder.
            let _ = fs::remove_file(process.path.with_extension(ending));
        }
    }

    /// Adds processes with new rings, the oldest first.
    fn meet(&mut self, out: &mut Vec<u8>) {
        let changed = fs::metadata(&self.folder).and_then(|folder| folder.modified());
        let changed = changed.ok();
        if changed.is_some() && changed == self.folder_changed {
            return;
        }
        let settled = |changed: &SystemTime| {
            let ago = SystemTime::now().duration_since(*changed);
            ago.is_ok_and(|ago| ago >= FOLDER_SETTLES)
        };
        self.folder_changed = changed.filter(settled);
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut new: Vec<(Header, SampleRing, PathBuf)> = Vec::new();
        for name in entries.map(|entry| entry.file_name()) {
            let text = name.to_string_lossy();
            let ours = text.starts_with("samples-") && text.ends_with(".ring");
            if !ours || self.met.contains(&name) {
                continue;
            }
            let path = self.folder.join(&name);
            // The ring is usually not written yet; a later round tries again.
            if let Some((header, ring)) = SampleRing::open(&path) {
                new.push((header, ring, path.with_extension("")));
                self.met.insert(name);
            } else {
                self.folder_changed = None;
            }
        }
        new.sort_by_key(|(header, ..)| header.start_ns);
        for (header, ring, path) in new {
            ring.set_period(self.period_ns);
            let known = !self.pids.insert(header.pid);
            let mut process = SampledProcess {
                state: Process::begin(&header, known, out),
                ring,
                path,
                maps_at_ns: header.start_ns,
                maps_took_ns: 0,
                maps: Vec::new(),
            };
            process.read_maps(&self.proc_root, header.start_ns, header.start_ns, true, out);
            self.processes.push(process);
        }
    }
}

impl SampledProcess {
    /// Appends the process's records. Returns the number of samples that the program blocked.
    fn drain(
        &mut self,
        proc_root: &Path,
        now_ns: u64,
        running: bool,
        window_ns: &Range<u64>,
        out: &mut Vec<u8>,
    ) -> u64 {
        let mut slots = self.ring.take(!running);
        slots.retain(|slot| slot.kind != Kind::Sample || window_ns.contains(&slot.time_ns));
        let unknown = slots.iter().any(|slot| !self.state.knows_code(slot));
        let due_ns = self.maps_at_ns + MAPS_EVERY_NS.max(self.maps_took_ns * MAPS_SHARE);
        if unknown || !running || now_ns >= due_ns {
            self.read_maps(proc_root, self.maps_at_ns, now_ns, running, out);
        }
        slots.iter().map(|slot| self.state.append(slot, out)).sum()
    }

    /// Enters mappings that appeared since the last look, at `since_ns`.
    fn read_maps(
        &mut self,
        proc_root: &Path,
        since_ns: u64,
        now_ns: u64,
        running: bool,
        out: &mut Vec<u8>,
    ) {
        let began = std::time::Instant::now();
        let live = memory_folder(proc_root, self.state.pid()).join("maps");
        let copy = self.path.with_extension("maps");
        // Reserves enough to read in few pieces. Usually, nothing has changed.
        let mut text = Vec::with_capacity(self.maps.len() + MAPS_BYTES);
        let is_read = (running && read(&live, &mut text)) || read(&copy, &mut text);
        if is_read && text != self.maps {
            self.state.map(since_ns, &text, out);
            self.maps = text;
        }
        self.maps_took_ns = began.elapsed().as_nanos() as u64;
        self.maps_at_ns = now_ns;
    }
}

/// More bytes than the mappings of most programs take.
const MAPS_BYTES: usize = 16 << 10;

/// Reads a file; false if it is empty.
fn read(path: &Path, text: &mut Vec<u8>) -> bool {
    text.clear();
    let read = File::open(path).and_then(|mut file| file.read_to_end(text));
    read.is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use nearpage_wire::samples::{HEADER_BYTES, MAGIC, SLOT_BYTES, offset, slot};

    use nearpage_perf_abi::{Sideband, header};

    use super::*;
    use crate::record::{self, Identifiers, RecordBody};

    const SLOTS: usize = 16;

    /// The ring of a process that begins at `start_ns`, with slots: kind, thread, time, missed.
    fn ring(
        folder: &Path,
        pid: u32,
        start_ns: u64,
        forked: bool,
        slots: &[(u32, u32, u64, u32)],
    ) -> PathBuf {
        let mut bytes = vec![0; HEADER_BYTES + SLOTS * SLOT_BYTES];
        let mut put = |at: usize, value: u64, size: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        put(0, u64::from_le_bytes(MAGIC), 8);
        put(offset::PID, pid.into(), 4);
        put(offset::PARENT, 1, 4);
        put(offset::START_NS, start_ns, 8);
        put(offset::SLOTS, SLOTS as u64, 4);
        put(offset::SLOT_BYTES, SLOT_BYTES as u64, 4);
        put(offset::FORKED, forked.into(), 4);
        put(offset::HEAD, slots.len() as u64, 8);
        put(offset::DROPPED, 5, 8);
        for (number, (kind, tid, time_ns, missed)) in slots.iter().enumerate() {
            let at = HEADER_BYTES + number * SLOT_BYTES;
            put(at, number as u64 + 1, 8);
            put(at + slot::KIND, (*kind).into(), 4);
            put(at + slot::TID, (*tid).into(), 4);
            put(at + slot::TIME_NS, *time_ns, 8);
            put(at + slot::MISSED, (*missed).into(), 4);
            put(at + slot::PERIOD_NS, 4_000_000, 8);
            put(at + slot::INSTRUCTION, 0x1010, 8);
            put(at + slot::THREAD_POINTER, 0x7000, 8);
        }
        let path = folder.join(format!("samples-{pid}-{start_ns}.ring"));
        fs::write(&path, bytes).unwrap();
        path
    }

    fn descriptions(mut bytes: &[u8]) -> Vec<String> {
        let mut descriptions = Vec::new();
        while !bytes.is_empty() {
            let (one, rest) = bytes.split_at(header::record_bytes(bytes).unwrap());
            bytes = rest;
            let record = record::parse(one, &Identifiers::default()).unwrap();
            let (tid, time_ns) = (record.origin.tid, record.origin.time_ns);
            let what = match record.body {
                RecordBody::Sample(sample) => {
                    assert_eq!(sample.thread_pointer::<16>(), Some(0x7000));
                    assert_eq!((sample.ip, sample.period_ns), (0x1010, 4_000_000));
                    "sample".to_owned()
                }
                RecordBody::Sideband(Sideband::Fork { parent_pid, .. }) => {
                    format!("fork of {parent_pid}")
                }
                RecordBody::Sideband(Sideband::Name { exec: true, .. }) => "exec".to_owned(),
                RecordBody::Sideband(Sideband::Exit { .. }) => "exit".to_owned(),
                RecordBody::Sideband(Sideband::Lost { records }) => format!("lost {records}"),
                RecordBody::Sideband(Sideband::Map(map)) => format!("map {:#x}", map.address),
                other => panic!("{other:?}"),
            };
            descriptions.push(format!("{tid} {time_ns} {what}"));
        }
        descriptions
    }

    #[test]
    fn a_process_outlives_its_main_thread_that_ends_before_another_says_that_it_began() {
        let samples = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("70")).unwrap();
        let mut signals = Signals::new(samples.path(), root.path(), 4_000_000);
        let slots = [(3, 70, 110, 0), (2, 71, 120, 0), (1, 71, 130, 0)];
        ring(samples.path(), 70, 100, true, &slots);
        let mut bytes = Vec::new();
        signals.drain(200, false, &mut bytes);
        let expected = ["71 120 fork of 70", "70 121 exit", "71 130 sample"];
        assert_eq!(descriptions(&bytes)[1..], expected);
    }

    #[test]
    fn rings_become_the_kernels_records() {
        let samples = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let process = |pid: &str| root.path().join(pid);
        fs::create_dir(process("70")).unwrap();
        let maps = "1000-2000 r-xp 0 0:0 0 /bin/x\n3000-4000 rw-p 0 0:0 0 \n";
        fs::write(process("70").join("maps"), maps).unwrap();
        let mut signals = Signals::new(samples.path(), root.path(), 4_000_000);
        signals.know(70);
        let drain = |signals: &mut Signals, now_ns, end| {
            let mut bytes = Vec::new();
            signals.drain(now_ns, end, &mut bytes);
            descriptions(&bytes)
        };
        assert!(drain(&mut signals, 50, false).is_empty());
        let slots = [
            (2, 71, 110, 0),
            (1, 70, 120, 0),
            (1, 71, 130, 2),
            (3, 71, 140, 0),
        ];
        let path = ring(samples.path(), 70, 100, false, &slots);
        let expected = [
            "70 100 exec",
            "70 100 map 0x1000",
            "70 100 map 0x3000",
            "71 110 fork of 70",
            "70 120 sample",
            "71 130 lost 2",
            "71 130 sample",
            "71 140 exit",
        ];
        assert_eq!(drain(&mut signals, 200, false), expected);
        assert!(drain(&mut signals, 300, false).is_empty());

        // A child that has already ended: its code is known only from the copy of its mappings.
        let copy = samples.path().join("samples-80-310.maps");
        fs::write(&copy, "1000-2000 r-xp 0 0:0 0 /bin/x\n").unwrap();
        ring(
            samples.path(),
            80,
            310,
            true,
            &[(1, 80, 320, 0), (1, 80, 5_000, 0)],
        );
        signals.window_ns = 0..1_000;
        let expected = [
            "80 310 fork of 1",
            "80 310 map 0x1000",
            "80 320 sample",
            "80 400 exit",
        ];
        assert_eq!(drain(&mut signals, 400, false), expected);
        assert!(!copy.exists());
        assert_eq!((signals.losses.dropped, signals.losses.blocked), (5, 2));

        // Later mappings are reported at the next look.
        let maps = "1000-2000 r-xp 0 0:0 0 /bin/x\n3000-5000 rw-p 0 0:0 0 \n";
        fs::write(process("70").join("maps"), maps).unwrap();
        assert!(drain(&mut signals, 450, false).is_empty());
        let later_ns = 200 + MAPS_EVERY_NS;
        assert_eq!(drain(&mut signals, later_ns, false), ["70 100 map 0x3000"]);

        // Another program in the first process; then the end.
        ring(samples.path(), 70, 500, false, &[]);
        assert_eq!(drain(&mut signals, 600, false)[0], "70 500 exec");
        assert!(!path.exists());
        assert_eq!(drain(&mut signals, 700, true), ["70 700 exit"]);
        assert_eq!(fs::read_dir(samples.path()).unwrap().count(), 0);
    }

    /// The folder is not read in each round, but no ring is missed.
    #[test]
    fn rings_are_met_whenever_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let mut signals = Signals::new(folder.path(), folder.path(), 4_000_000);
        let mut met = || {
            let mut bytes = Vec::new();
            signals.drain(1_000, false, &mut bytes);
            descriptions(&bytes)
                .iter()
                .filter(|line| line.ends_with("exec"))
                .count()
        };
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        let changed = |at| File::open(folder.path()).unwrap().set_modified(at).unwrap();
        changed(long_ago);
        assert_eq!(met(), 0);
        let path = ring(folder.path(), 70, 100, false, &[]);
        assert_eq!(met(), 1);
        // With an unchanged time, the folder is not read.
        changed(long_ago);
        assert_eq!(met(), 0);
        ring(folder.path(), 71, 200, false, &[]);
        changed(long_ago);
        assert_eq!(met(), 0);
        // The file exists without its header.
        let whole = fs::read(ring(folder.path(), 72, 300, false, &[])).unwrap();
        let unfinished = folder.path().join("samples-72-300.ring");
        fs::write(&unfinished, vec![0; whole.len()]).unwrap();
        assert_eq!(met(), 1);
        changed(long_ago + Duration::from_secs(1));
        assert_eq!(met(), 0);
        fs::write(&unfinished, whole).unwrap();
        assert_eq!(met(), 1);
        assert!(!path.exists());
    }
}
