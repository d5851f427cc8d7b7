//! The summary of a process: one line of JSON, appended to the file of
//! [`nearpage_wire::SUMMARY_VARIABLE`] in one write, at the process's end and before an `exec`. An `exec` may fail, so a
//! process may write several summaries, which add up. A process that a signal ends writes none, nor does
//! one in which a second thread calls `exit` meanwhile. To show that, each program that uses a plan first writes
//! `{"pid":N,"began":true}`. If its `exec` fails and a signal ends it later, it looks as if it had become another program.
//!
//! ```text
//! {"pid":N,"executable":"NAME","rank":N|null,"mechanism":"bind"|"touch","bind_refused":ERRNO|null,
//!  "mappings":{"used":N,"max":N},"pins":{"pinned":N,"failed":N},"unnumbered":N,
//!  "rules":[{"number":N,"objects":N,"pages":N,"bytes":N,"in_place":N,"moved":N,"pinned":N,"weak":N,"left":N,
//!            "waited":N,"switched":N,"switched_moved":N,"switched_ns":N,"early":N,
//!            "too_small":N,"coarsened":N,"no_room":N,"missing_node_pages":N,"untouched":N,"outside":N,"ignored":true,
//!            "failures":[{"call":"mbind"|"move_pages"|"touch"|"sched_setaffinity"|"set_mempolicy","errno":N,"count":N}…],
//!            "unmatched":"set"|"left"|"waits"|"failed"}…],
//!  "phases":[{"number":N,"begun":true|false,"changed":N,"left":N,"failed":N}…]}
//! ```
//! `rules` has every rule of the process's section and of its phases, in order, with its number in the plan.
//! Counters that are 0 are left out, so a rule that matched nothing is `{"number":N}`. The counters
//! are those of [`super::counters::RuleCounters`]. `unnumbered` allocations found no room in the table that
//! numbers them; `unmatched` stands with the rule about unmatched memory ([`super::unmatched_memory::Status`]); `mappings`
//! says how many mappings were added, and how many could have been. `phases` has the phases with pins, with their numbers
//! in the plan (`ThreadCounters` of `phases`).

use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;

use nearpage_wire::compact_plan::NONE;

use super::State;
use crate::sys;

/// Upper bounds of the bytes of a line without its rules, and of one rule.
const LINE_BYTES_MAX: usize = 4096;
const RULE_BYTES_MAX: usize = 1536;

/// Text in a mapping of its own; writes that do not fit mark it as incomplete.
struct Line<'memory> {
    bytes: &'memory mut [u8],
    length: usize,
}

impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length.checked_add(text.len()).ok_or(fmt::Error)?;
        self.bytes
            .get_mut(self.length..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Appends the summary to the file at `path`, which ends in a zero byte.
pub fn append(state: &State, path: &[u8]) -> Result<(), sys::Errno> {
    let rules: usize = state.lists().map(|list| list.rules.len()).sum();
    let bytes = LINE_BYTES_MAX + rules * RULE_BYTES_MAX;
    let address = sys::reserve(bytes)?;
    // SAFETY: just mapped, writable, and ours until it is unmapped below.
    let memory = unsafe { core::slice::from_raw_parts_mut(address as *mut u8, bytes) };
    let mut line = Line {
        bytes: memory,
        length: 0,
    };
    let appended = match write_line(state, &mut line) {
        Ok(()) => append_line(path, line.bytes.get(..line.length).unwrap_or_default()),
        Err(_) => Err(sys::ENOMEM),
    };
    // SAFETY: mapped above; `line` is not used any more.
    let _ = unsafe { sys::munmap(address, bytes) };
    appended
}

/// Appends the line that says that the process uses a plan.
pub fn append_began(path: &[u8]) -> Result<(), sys::Errno> {
    let mut bytes = [0; 64];
    let mut line = Line {
        bytes: &mut bytes,
        length: 0,
    };
    let _ = writeln!(line, "{{\"pid\":{},\"began\":true}}", sys::getpid());
    append_line(path, line.bytes.get(..line.length).unwrap_or_default())
}

fn append_line(path: &[u8], line: &[u8]) -> Result<(), sys::Errno> {
    let file = sys::open(path, sys::O_WRONLY | sys::O_APPEND | sys::O_CREAT)?;
    let written = sys::write(file, line);
    sys::close(file);
    written
}

fn write_line(state: &State, line: &mut impl Write) -> fmt::Result {
    write!(line, "{{\"pid\":{},\"executable\":\"", sys::getpid())?;
    write_executable(state, line)?;
    line.write_str("\",\"rank\":")?;
    match state.rank {
        Some(rank) => write!(line, "{rank}")?,
        None => line.write_str("null")?,
    }
    let refused = state.bind_refused.load(Relaxed);
    let mechanism = if state.touches() { "touch" } else { "bind" };
    write!(line, ",\"mechanism\":\"{mechanism}\",\"bind_refused\":")?;
    match refused {
        0 => line.write_str("null")?,
        error => write!(line, "{error}")?,
    }
    write!(
        line,
        ",\"mappings\":{{\"used\":{},\"max\":{}}}",
        state.mappings.used(),
        state.mappings.max()
    )?;
    let (pinned, failed) = (
        state.pins.pinned.load(Relaxed),
        state.pins.failed.load(Relaxed),
    );
    write!(
        line,
        ",\"pins\":{{\"pinned\":{pinned},\"failed\":{failed}}}"
    )?;
    write!(
        line,
        ",\"unnumbered\":{},\"rules\":[",
        state
            .lists()
            .map(|list| list.orders.full.load(Relaxed))
            .sum::<u64>()
    )?;
    write_rules(state, line)?;
    line.write_str("],\"phases\":[")?;
    write_phases(state, line)?;
    line.write_str("]}\n")
}

/// The name of the program's file, in a string of JSON.
fn write_executable(state: &State, line: &mut impl Write) -> fmt::Result {
    let name = state
        .modules
        .executable()
        .map_or(&[][..], |module| module.identity().name);
    for byte in name {
        match byte {
            b'"' | b'\\' => write!(line, "\\{}", *byte as char)?,
            b' '..=b'~' => line.write_char(*byte as char)?,
            // Bytes that are no ASCII become escapes of their values: unreadable, but distinguishable.
            _ => write!(line, "\\u{byte:04x}")?,
        }
    }
    Ok(())
}

/// Writes the counters of the rules that have numbers.
fn write_rules(state: &State, line: &mut impl Write) -> fmt::Result {
    let rules = state
        .lists()
        .flat_map(|list| list.rules.iter().zip(list.counters));
    let reported = rules
        .enumerate()
        .filter(|(_, (rule, _))| rule.number != NONE);
    let mut comma = "";
    for (index, (rule, counters)) in reported {
        write!(line, "{comma}{{\"number\":{}", rule.number)?;
        comma = ",";
        for (name, counter) in counters.shown() {
            match counter.load(Relaxed) {
                0 => {}
                value => write!(line, ",\"{name}\":{value}")?,
            }
        }
        if counters.ignored.load(Relaxed) != 0 {
            line.write_str(",\"ignored\":true")?;
        }
        let mut separator = ",\"failures\":[";
        for (request, error, count) in counters.failures.iter() {
            write!(
                line,
                "{separator}{{\"call\":\"{}\",\"errno\":{error},\"count\":{count}}}",
                request.name()
            )?;
            separator = ",";
        }
        line.write_str(if separator == "," { "]" } else { "" })?;
        if let Some(unmatched) = state
            .unmatched
            .as_ref()
            .filter(|unmatched| unmatched.index == index)
        {
            write!(line, ",\"unmatched\":\"{}\"", unmatched.status().name())?;
        }
        line.write_str("}")?;
    }
    Ok(())
}

/// Writes the counters of threads that phases pin.
fn write_phases(state: &State, line: &mut impl Write) -> fmt::Result {
    let mut comma = "";
    for phase in state.phases().filter(|phase| !phase.pins.is_empty()) {
        let [changed, left, failed] = {
            let threads = &phase.threads;
            [&threads.changed, &threads.left, &threads.failed].map(|counter| counter.load(Relaxed))
        };
        write!(
            line,
            "{comma}{{\"number\":{},\"begun\":{},\"changed\":{changed},\"left\":{left},\"failed\":{failed}}}",
            phase.number,
            phase.has_begun()
        )?;
        comma = ",";
    }
    Ok(())
}
