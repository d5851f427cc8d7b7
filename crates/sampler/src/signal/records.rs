//! Turns slots, and lines of `/proc/PID/maps`, into records in the kernel's layout ([`crate::record`]).

use std::collections::BTreeMap;

use nearpage_files::bytes_of_text;
use nearpage_perf_abi::{Map, Sideband, header};
use nearpage_wire::samples::{Header, Kind, Slot};
use rustc_hash::FxHashSet;

use crate::processes::Mapping;
use crate::record::Origin;

/// State of a process while its ring is read.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    start_ns: u64,
    threads: FxHashSet<u32>,
    /// The last known thread has ended. A thread that it created may still run: threads report themselves once they
    /// run.
    ended_last: Option<u32>,
    /// Mappings reported so far, by address.
    mapped: BTreeMap<u64, Mapping>,
}

impl Process {
    /// A process whose ring was found. `known` means that its creation was reported already, so that the ring belongs
    /// to an `exec`, or to the command itself.
    pub fn begin(header: &Header, known: bool, out: &mut Vec<u8>) -> Self {
        let (pid, start_ns) = (header.pid, header.start_ns);
        let origin = Origin::new(pid, pid, start_ns);
        if !known {
            let fork = Sideband::Fork {
                pid,
                tid: pid,
                parent_pid: header.parent_pid,
            };
            origin.append(fork, out);
        }
        if !header.forked {
            let name = name(pid);
            let exec = Sideband::Name {
                pid,
                tid: pid,
                name: name.trim_ascii_end(),
                exec: true,
            };
            origin.append(exec, out);
        }
        Self {
            pid,
            start_ns,
            threads: FxHashSet::from_iter([pid]),
            ended_last: None,
            mapped: BTreeMap::new(),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the slot is no sample, or its code is mapped.
    pub fn knows_code(&self, slot: &Slot) -> bool {
        const EXECUTABLE: u32 = 4;
        let map = self.mapped.range(..=slot.instruction).next_back();
        slot.kind != Kind::Sample
            || map.is_some_and(|(_, map)| {
                slot.instruction < map.end && map.protection & EXECUTABLE != 0
            })
    }

    /// Appends a slot's record. Returns the number of samples that the program blocked before it.
    pub fn append(&mut self, slot: &Slot, out: &mut Vec<u8>) -> u64 {
        let (pid, tid, time_ns) = (self.pid, slot.tid, slot.time_ns.max(self.start_ns));
        let origin = Origin::new(pid, tid, time_ns);
        let new = self.threads.insert(tid);
        match slot.kind {
            Kind::ThreadBegins | Kind::Sample if new => {
                let fork = Sideband::Fork {
                    pid,
                    tid,
                    parent_pid: pid,
                };
                origin.append(fork, out);
                if let Some(tid) = self.ended_last.take() {
                    self.threads.remove(&tid);
                    let origin = Origin::new(pid, tid, time_ns.saturating_add(1));
                    origin.append(Sideband::Exit { pid, tid }, out);
                }
            }
            // The end of the last thread would end the process and forget its mappings.
            Kind::ThreadEnds if self.threads.len() == 1 => {
                self.ended_last = Some(tid);
                return 0;
            }
            Kind::ThreadEnds => {
                self.threads.remove(&tid);
                origin.append(Sideband::Exit { pid, tid }, out);
                return 0;
            }
            _ => {}
        }
        if slot.kind != Kind::Sample {
            return 0;
        }
        if slot.missed > 0 {
            let records = slot.missed.into();
            origin.append(Sideband::Lost { records }, out);
        }
        append_sample(out, pid, time_ns, slot);
        slot.missed.into()
    }

    /// Appends new mappings in `text` (`/proc/PID/maps`), with the time `time_ns`.
    pub fn map(&mut self, time_ns: u64, text: &[u8], out: &mut Vec<u8>) {
        for mapping in Mapping::all(text) {
            if self.mapped.get(&mapping.begin) == Some(&mapping) {
                continue;
            }
            let map = Map {
                pid: self.pid,
                address: mapping.begin,
                length: mapping.end - mapping.begin,
                file_offset: mapping.file_offset,
                protection: mapping.protection,
                is_shared: mapping.shared.is_some(),
                file: mapping.shared,
                path: &bytes_of_text(&mapping.path),
                ..Map::default()
            };
            Origin::new(self.pid, self.pid, time_ns).append(Sideband::Map(map), out);
            self.mapped.insert(mapping.begin, mapping);
        }
    }

    /// Appends the ends of the threads: of all, or of all but the main thread if the process executed another program.
    pub fn end(&mut self, time_ns: u64, replaced: bool, out: &mut Vec<u8>) {
        let mut threads: Vec<u32> = self.threads.drain().collect();
        threads.sort_unstable();
        for tid in threads {
            if !(replaced && tid == self.pid) {
                let exit = Sideband::Exit { pid: self.pid, tid };
                Origin::new(self.pid, tid, time_ns).append(exit, out);
            }
        }
    }
}

/// Appends a sample as a clock sample, with the thread pointer after its registers.
fn append_sample(out: &mut Vec<u8>, pid: u32, time_ns: u64, slot: &Slot) {
    let tids = u64::from(pid) | u64::from(slot.tid) << 32;
    const ABI_64: u64 = 2;
    let head = [
        0,
        slot.instruction,
        tids,
        time_ns,
        slot.cpu.into(),
        slot.period_ns,
        ABI_64,
    ];
    let words = head
        .iter()
        .chain(&slot.registers)
        .chain([&slot.thread_pointer]);
    let body: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    header::append_user_sample(out, &body);
}

/// Name of a process; empty if it has ended.
fn name(pid: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default()
}
