//! Text that `perf script` prints of samples with addresses, a line each:
//!
//! ```text
//! COMM PID[/TID] [CPU] SECONDS: [PERIOD] EVENT: ADDRESS [SYMBOL (FILE)] DATA_SRC |…| WEIGHT IP SYMBOL (FILE)
//!     solve  412/414  [003]  1016.746629:  1009 cpu/mem-loads/P:  7f12 68100142 |OP LOAD|…|BLK  N/A  310  40117a main+0x9 (/bin/x)
//! ```
//!
//! Fields are in perf's order, separated by blanks. Times have micro- or nanoseconds (`--ns`). A thread's name stands
//! before its samples.
//! Mappings come from lines of `--show-mmap-events` and `--show-task-events`, with `PERF_RECORD_MMAP2` and so on after
//! the time. With call chains (indented lines that begin with an address), the instruction is the first of the chain.
//! Comments and empty lines are skipped.

use std::borrow::Cow;

use nearpage_files::{bytes_of_text, bytes_to_text, device_numbers, readable};
use nearpage_machine::CpuId;
use nearpage_perf_abi::{BuildId, DataSource, FileId, Map, Sideband};
use rustc_hash::FxHashMap;

use super::{EventKind, FileMetadata, Record, RecordBody, Sample};
use crate::Error;

/// First address of the kernel's half of the address space.
const KERNEL: u64 = 1 << 63;

/// A text of which every line was understood.
pub(super) struct PerfScript<'a> {
    /// The text, with names and paths encoded by [`bytes_to_text`].
    text: Cow<'a, str>,
    events: Vec<String>,
    /// Whether some samples have a thread id without a process id.
    threads_alone: bool,
}

impl<'a> PerfScript<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let neither = "neither a perf.data file nor the text of `perf script`";
        let text = bytes_to_text(bytes);
        let mut events: Vec<String> = Vec::new();
        let mut any = false;
        let mut threads_alone = false;
        for (number, line) in (1..).zip(text.lines()) {
            match Line::parse(line) {
                Ok(Line::Skipped | Line::Chain(_)) => {}
                Ok(Line::Record(_)) => any = true,
                Ok(Line::Sample { event, pid, .. }) => {
                    any = true;
                    threads_alone |= pid.is_none();
                    if !events.iter().any(|known| known == event) && events.len() < 64 {
                        events.push(event.to_owned());
                    }
                }
                // If no line was valid before, the text is not perf's at all.
                Err(_) if !any && Head::parse(line).is_none() => {
                    return Err(format!("{neither}: line {number} is no sample"));
                }
                Err(cause) => return Err(format!("line {number}: {cause}")),
            }
        }
        if events.is_empty() {
            return Err(format!("{neither}: it has no samples"));
        }
        Ok(Self {
            text,
            events,
            threads_alone,
        })
    }

    /// Facts about the whole text.
    pub fn about(&self) -> FileMetadata {
        let mut notes = vec![
            "imported from the text of `perf script`; times are those of perf's clock".to_owned(),
        ];
        if !self.text.contains("PERF_RECORD_MMAP") {
            notes.push("the text does not say what was mapped, so no object and no function is known; print it with --show-mmap-events --show-task-events".to_owned());
        }
        if self.threads_alone && !self.text.contains("PERF_RECORD_FORK") {
            notes.push("the text does not say of which process a thread is, so each counts as one; print it with -F pid,tid and the other fields, or with --show-task-events".to_owned());
        }
        let described = self.text.lines().take_while(|line| line.starts_with('#'));
        let described = described
            .filter_map(|line| line.strip_prefix("# cpudesc :"))
            .next();
        let command = self.text.lines().take_while(|line| line.starts_with('#'));
        let command = command
            .filter_map(|line| line.strip_prefix("# cmdline :"))
            .next();
        FileMetadata {
            command: command
                .unwrap_or_default()
                .split_whitespace()
                .map(|word| readable(word).into_owned())
                .collect(),
            machine: None,
            ghz: described.and_then(super::features::ghz),
            events: self.events.clone(),
            rate_hz: 0.0,
            notes,
        }
    }

    /// Hands out all records in order of time, in which perf prints them.
    pub fn records(
        &self,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
        error: impl Fn(String) -> Error,
    ) -> Result<(), Error> {
        // A sample waits for its call chain, whose first line has the instruction.
        let mut waiting: Option<(u64, Sample)> = None;
        // Last name by process and thread id.
        let mut names: FxHashMap<(u32, u32), &str> = FxHashMap::default();
        // Last process by thread id.
        let mut processes: FxHashMap<u32, u32> = FxHashMap::default();
        let record = |(time_ns, sample)| Record {
            time_ns,
            what: RecordBody::Sample(sample),
        };
        for (number, line) in (1..).zip(self.text.lines()) {
            match Line::parse(line).map_err(|cause| error(format!("line {number}: {cause}")))? {
                Line::Skipped => {}
                Line::Chain(ip) => {
                    if let Some((_, sample)) = waiting.as_mut().filter(|(_, sample)| sample.ip == 0)
                    {
                        (sample.ip, sample.user) = (ip, ip < KERNEL);
                    }
                }
                Line::Record(mut other) => {
                    // Paths and names in the record are still encoded as text.
                    let plain = match &other.what {
                        RecordBody::Sideband(
                            Sideband::Map(Map { path: text, .. })
                            | Sideband::Name { name: text, .. },
                        ) => plain(text),
                        _ => Cow::default(),
                    };
                    if let RecordBody::Sideband(
                        Sideband::Map(Map { path: text, .. }) | Sideband::Name { name: text, .. },
                    ) = &mut other.what
                    {
                        *text = &plain;
                    }
                    waiting.take().map(record).map_or(Ok(()), &mut *each)?;
                    // The next sample of the thread reports its name again, as the thread or its name changed.
                    if let RecordBody::Sideband(
                        Sideband::Name { pid, tid, .. }
                        | Sideband::Fork { pid, tid, .. }
                        | Sideband::Exit { pid, tid },
                    ) = other.what
                    {
                        processes.insert(tid, pid);
                        names.remove(&(pid, tid));
                    }
                    each(other)?;
                }
                Line::Sample {
                    time_ns,
                    name,
                    pid,
                    mut sample,
                    ..
                } => {
                    let of_thread = || processes.get(&sample.tid).copied();
                    sample.pid = pid.or_else(of_thread).unwrap_or(sample.tid);
                    waiting
                        .replace((time_ns, sample))
                        .map(record)
                        .map_or(Ok(()), &mut *each)?;
                    let Sample { pid, tid, .. } = sample;
                    if !name.is_empty() && names.insert((pid, tid), name) != Some(name) {
                        let what = RecordBody::Sideband(Sideband::Name {
                            pid,
                            tid,
                            name: &bytes_of_text(name),
                            exec: false,
                        });
                        each(Record { time_ns, what })?;
                    }
                }
            }
        }
        waiting.map(record).map_or(Ok(()), each)
    }
}

/// Decodes bytes that a record holds as encoded text.
fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    std::str::from_utf8(text).map_or(Cow::Borrowed(text), bytes_of_text)
}

/// A parsed line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line<'a> {
    Skipped,
    /// Line of a call chain, with its address.
    Chain(u64),
    Record(Record<'a>),
    Sample {
        time_ns: u64,
        /// Name of the thread; empty if not printed.
        name: &'a str,
        event: &'a str,
        /// `None` if only the thread id is printed.
        pid: Option<u32>,
        sample: Sample,
    },
}

impl<'a> Line<'a> {
    pub fn parse(line: &'a str) -> Result<Self, String> {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(Self::Skipped);
        }
        let Some(head) = Head::parse(line) else {
            let first = trimmed.split_whitespace().next().unwrap_or_default();
            let indented = line.starts_with([' ', '\t']);
            let ip = hexadecimal(first).filter(|_| indented);
            return ip.map(Self::Chain).ok_or_else(|| {
                "expected COMM PID TIME: EVENT: ADDRESS … as `perf script` prints them".to_owned()
            });
        };
        if let Some(record) = head.rest.strip_prefix("PERF_RECORD_") {
            return Ok(match sideband(record) {
                Some(sideband) => Self::Record(Record {
                    time_ns: head.time_ns,
                    what: RecordBody::Sideband(sideband),
                }),
                None => Self::Skipped,
            });
        }
        head.sample()
    }
}

/// The beginning of a line, up to its time.
struct Head<'a> {
    name: &'a str,
    /// `None` if only the thread id is printed.
    pid: Option<u32>,
    tid: u32,
    cpu: Option<CpuId>,
    time_ns: u64,
    rest: &'a str,
}

impl<'a> Head<'a> {
    /// The time is the first word of digits, point, digits and colon. An optional CPU stands before the time, thread id
    /// or process and thread id before the CPU, and first comes the name, which may have blanks.
    fn parse(line: &'a str) -> Option<Self> {
        let mut before: [&str; 2] = ["", ""];
        let mut rest = line;
        loop {
            let begin = rest.trim_start();
            let word = begin.split_whitespace().next()?;
            rest = &begin[word.len()..];
            if let Some(time_ns) = seconds(word) {
                let cpu = before[1]
                    .strip_prefix('[')
                    .and_then(|word| word.strip_suffix(']'));
                let threads = if cpu.is_some() { before[0] } else { before[1] };
                let (pid, tid) = match threads.split_once('/') {
                    Some((pid, tid)) => (Some(pid), tid),
                    None => (None, threads),
                };
                // Ids of the idle task can be -1.
                let number = |text: &str| text.parse::<i64>().ok().map(|number| number as u32);
                let tid = number(tid)?;
                let pid = match pid {
                    Some(pid) => Some(number(pid)?),
                    None => None,
                };
                let name_bytes = threads.as_ptr() as usize - line.as_ptr() as usize;
                return Some(Self {
                    name: line[..name_bytes].trim(),
                    pid,
                    tid,
                    cpu: cpu.and_then(|cpu| cpu.parse().ok()).map(CpuId),
                    time_ns,
                    rest: rest.trim_start(),
                });
            }
            before = [before[1], word];
        }
    }

    fn sample(self) -> Result<Line<'a>, String> {
        let mut words = self.rest.split_whitespace();
        let mut word = words.next().unwrap_or_default();
        let mut period = 1;
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            period = word.parse().unwrap_or(1);
            word = words.next().unwrap_or_default();
        }
        let event = word.strip_suffix(':');
        let event = event.ok_or("expected an event after the time, as in `cpu/mem-loads/P:`")?;
        let fields =
            "print it with -F comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,sym,dso";
        let address = words.next().and_then(hexadecimal);
        let address =
            address.ok_or_else(|| format!("expected an address after the event; {fields}"))?;
        // The data_src number stands before its description; symbol and file of the address stand before the number.
        let describes = |word: &&str| word.starts_with("|OP") || word.contains("|SNP");
        if !words.clone().any(|word| describes(&word)) {
            return Err(format!("expected data_src after the address; {fields}"));
        }
        // A symbol's name may have any words, so the last description is perf's. Before perf 5.19, the description
        // begins with the level, `L1 hit|SNP`, and none of its words is a number.
        let (before, described) = self.rest.split_at(self.rest.rfind(" |OP ").unwrap_or(0));
        let data_src = match before.split_whitespace().last() {
            Some(word) => hexadecimal_digits(word),
            None => {
                let before = words.take_while(|word| !describes(word));
                before.filter_map(hexadecimal_digits).last()
            }
        };
        let data_src = data_src.and_then(hexadecimal);
        let data_src =
            data_src.ok_or_else(|| format!("expected data_src as a number; {fields}"))?;
        // The description ends with `|LCK No` or `|LCK No|BLK  N/A`; no word of it is a number.
        let (_, behind) = described.split_once("|LCK ").unwrap_or_default();
        let numbers = behind
            .split_whitespace()
            .skip_while(|word| hexadecimal_digits(word).is_none());
        let is_alone = numbers.clone().count() == 1;
        let numbers: Vec<&str> = numbers.map_while(hexadecimal_digits).take(4).collect();
        let (weight, ip) = match numbers.as_slice() {
            // With a call chain, the instruction stands in the next lines, and the only number is the latency, however
            // long.
            [only] if is_alone && only.bytes().all(|byte| byte.is_ascii_digit()) => {
                (only.parse().unwrap_or(0), 0)
            }
            numbers => weight_and_ip(numbers),
        };
        Ok(Line::Sample {
            time_ns: self.time_ns,
            name: self.name,
            event,
            pid: self.pid,
            sample: Sample {
                pid: self.pid.unwrap_or(self.tid),
                tid: self.tid,
                cpu: self.cpu,
                user: ip < KERNEL,
                ip,
                address,
                event: EventKind::named(event),
                data_src: DataSource(data_src),
                latency_cycles: weight as u32,
                period,
            },
        })
    }
}

/// Latency and instruction, from the numbers behind data_src. Some processors have two more latencies of 16 bits each
/// in between. Symbols behind the instruction may look like numbers, but addresses of code have more digits.
fn weight_and_ip(numbers: &[&str]) -> (u64, u64) {
    let is_long = |number: &&str| number.len() > 4;
    let is_no_latency = |number: &&str| number.len() > 5;
    let (weight, ip) = match numbers {
        [weight, between @ .., _] if between.iter().any(is_no_latency) => (
            Some(*weight),
            between.iter().find(|one| is_no_latency(one)).copied(),
        ),
        [weight, _, .., ip] if is_no_latency(ip) => (Some(*weight), Some(*ip)),
        [weight, ip, ..] if is_long(ip) => (Some(*weight), Some(*ip)),
        [ip, ..] if is_long(ip) => (None, Some(*ip)),
        [weight, ..] => (Some(*weight), None),
        [] => (None, None),
    };
    let weight = weight.and_then(|weight| weight.parse().ok());
    (weight.unwrap_or(0), ip.and_then(hexadecimal).unwrap_or(0))
}

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

fn hexadecimal_digits(word: &str) -> Option<&str> {
    word.bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then_some(word)
}

/// Parses a time such as `1016.746629:` into nanoseconds.
fn seconds(word: &str) -> Option<u64> {
    let (seconds, fraction) = word.strip_suffix(':')?.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction_ns = fraction.parse::<u64>().ok()? * 10u64.pow(9 - fraction.len() as u32);
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction_ns)
}

/// Parses `MAJOR:MINOR` in hexadecimal, and an inode.
fn file_id(device: &str, inode: &str) -> Option<FileId> {
    Some(FileId {
        device: device_numbers(device)?,
        inode: inode.parse().ok().filter(|inode| *inode != 0)?,
    })
}

/// Parses the text behind `PERF_RECORD_`.
fn sideband(record: &str) -> Option<Sideband<'_>> {
    let threads = |text: &str, between: char| -> Option<(u32, u32)> {
        let (pid, tid) = text.split_once(between)?;
        Some((
            pid.trim().parse::<i64>().ok()? as u32,
            tid.trim().parse::<i64>().ok()? as u32,
        ))
    };
    let (kind, rest) = record.split_at(record.find([' ', ':', '('])?);
    match kind {
        "MMAP" | "MMAP2" => {
            let (whose, rest) = rest.split_once(": [")?;
            let (place, rest) = rest.split_once("]: ")?;
            let (pid, _) = threads(whose, '/')?;
            let (address, place) = place.split_once('(')?;
            let (length, place) = place.split_once(')')?;
            let mut place = place.trim_start().strip_prefix("@ ")?.split_whitespace();
            let file_offset = hexadecimal(place.next()?)?;
            let identity = place.next().unwrap_or_default();
            let file = file_id(identity, place.next().unwrap_or_default());
            let build_id = identity
                .strip_prefix('<')
                .and_then(|rest| rest.strip_suffix('>'));
            let (permissions, path) = rest.split_once(' ')?;
            let bit = |letter, bit| if permissions.contains(letter) { bit } else { 0 };
            Some(Sideband::Map(Map {
                pid,
                address: hexadecimal(address)?,
                length: hexadecimal(length)?,
                file_offset,
                protection: bit('r', 1) | bit('w', 2) | bit('x', 4),
                is_shared: permissions.contains('s'),
                file,
                path: path.trim_end().as_bytes(),
                build_id: build_id
                    .and_then(BuildId::from_hexadecimal)
                    .unwrap_or_default(),
            }))
        }
        "COMM" => {
            let (exec, rest) = match rest.strip_prefix(" exec: ") {
                Some(rest) => (true, rest),
                None => (false, rest.strip_prefix(": ")?),
            };
            let (name, whose) = rest.rsplit_once(':')?;
            let (pid, tid) = threads(whose, '/')?;
            Some(Sideband::Name {
                pid,
                tid,
                name: name.as_bytes(),
                exec,
            })
        }
        "FORK" | "EXIT" => {
            let (whose, parent) = rest.strip_prefix('(')?.split_once("):(")?;
            let (pid, tid) = threads(whose, ':')?;
            let (parent_pid, _) = threads(parent.trim_end().strip_suffix(')')?, ':')?;
            Some(if kind == "EXIT" {
                Sideband::Exit { pid, tid }
            } else {
                Sideband::Fork {
                    pid,
                    tid,
                    parent_pid,
                }
            })
        }
        "LOST" | "LOST_SAMPLES" => {
            let lost = rest.split_whitespace().last()?;
            Some(Sideband::Lost {
                records: lost.parse().ok()?,
            })
        }
        _ => None,
    }
}
