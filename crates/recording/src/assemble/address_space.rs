//! What was mapped where and when, from the kernel's events: maps cut what they overlap, `fork`
//! copies, `exec` and the end of a process clear.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::{Event, ThreadIndex};

/// `PROT_EXEC`.
pub(crate) const EXECUTABLE: u32 = 4;

/// Most ranges that children are given of their parents: each takes some 100 bytes, and a log of a MiB can ask for millions.
const COPIED_MAX: usize = 2 << 20;

/// Is what has this path memory without a file?
pub(crate) fn is_anonymous(path: &str) -> bool {
    path.is_empty() || path.starts_with("//anon") || path.starts_with("[anon")
}

/// A mapped range with a lifetime.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    pub born_ns: u64,
    pub died_ns: u64,
    pub file_offset: u64,
    pub protection: u32,
    pub path: Arc<str>,
    pub build_id: Arc<str>,
}

impl Region {
    pub(super) fn executable(&self) -> bool {
        self.protection & EXECUTABLE != 0
    }

    pub(super) fn anonymous(&self) -> bool {
        is_anonymous(&self.path)
    }

    /// Is it (a part of) a file?
    pub(super) fn file(&self) -> bool {
        !self.anonymous() && !self.path.starts_with('[')
    }
}

/// `fork`: a process that began as a copy of another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fork {
    pub time_ns: u64,
    pub parent_pid: u32,
    pub pid: u32,
}

/// The address spaces of all processes.
#[derive(Debug, Default)]
pub(super) struct AddressSpaces {
    /// Every range that ever was, in no order.
    pub regions: Vec<Region>,
    /// Forks, by time.
    pub forks: Vec<Fork>,
    /// Ranges that children were not given of their parents: [`COPIED_MAX`].
    pub not_copied: usize,
    /// Times at which a process's memory went (`exec`, end), by process, ascending.
    pub ends: FxHashMap<u32, Vec<u64>>,
}

impl AddressSpaces {
    /// From events sorted by time.
    pub(super) fn new(events: &[Event]) -> Self {
        let mut replay = Replay::default();
        for event in events {
            replay.take(event);
        }
        let live = replay.live.into_values();
        let mut spaces = replay.spaces;
        spaces.regions.extend(live.flat_map(BTreeMap::into_values));
        spaces
    }

    /// When the memory that process `pid` had at `time_ns` went; `u64::MAX`: not in this recording.
    pub(super) fn end(&self, pid: u32, time_ns: u64) -> u64 {
        let ends = self.ends.get(&pid).map_or(&[][..], Vec::as_slice);
        ends.get(ends.partition_point(|end| *end <= time_ns))
            .copied()
            .unwrap_or(u64::MAX)
    }

    /// When the memory that process `pid` had at `time_ns` came to be; 0: before the recording.
    pub(super) fn begin(&self, pid: u32, time_ns: u64) -> u64 {
        let ends = self.ends.get(&pid).map_or(&[][..], Vec::as_slice);
        let before = ends.partition_point(|end| *end <= time_ns);
        ends[..before].last().copied().unwrap_or(0)
    }

    fn map(&mut self, live: &mut BTreeMap<u64, Region>, new: Region) {
        self.cut(live, new.start..new.end, new.born_ns);
        live.insert(new.start, new);
    }

    /// Ends what lies in `range`.
    fn cut(&mut self, live: &mut BTreeMap<u64, Region>, range: Range<u64>, time_ns: u64) {
        let before = live
            .range(..range.start)
            .next_back()
            .filter(|(_, region)| region.end > range.start);
        let mut overlapped: Vec<u64> = before.map(|(start, _)| *start).into_iter().collect();
        overlapped.extend(live.range(range.clone()).map(|(start, _)| *start));
        for start in overlapped {
            let Some(old) = live.remove(&start) else {
                continue;
            };
            if old.start < range.start {
                live.insert(
                    old.start,
                    Region {
                        end: range.start,
                        ..old.clone()
                    },
                );
            }
            if old.end > range.end {
                let file_offset = old.file_offset.wrapping_add(range.end - old.start);
                live.insert(
                    range.end,
                    Region {
                        start: range.end,
                        file_offset,
                        ..old.clone()
                    },
                );
            }
            let start = old.start.max(range.start);
            let file_offset = old.file_offset.wrapping_add(start - old.start);
            let end = old.end.min(range.end);
            self.regions.push(Region {
                start,
                end,
                file_offset,
                died_ns: time_ns,
                ..old
            });
        }
    }

    fn clear(&mut self, live: &mut FxHashMap<u32, BTreeMap<u64, Region>>, pid: u32, time_ns: u64) {
        self.ends.entry(pid).or_default().push(time_ns);
        let gone = live
            .remove(&pid)
            .into_iter()
            .flat_map(BTreeMap::into_values);
        self.regions.extend(gone.map(|region| Region {
            died_ns: time_ns,
            ..region
        }));
    }
}

/// The state of all processes while events are replayed.
#[derive(Default)]
struct Replay {
    spaces: AddressSpaces,
    /// What is mapped, by process and address.
    live: FxHashMap<u32, BTreeMap<u64, Region>>,
    /// Ranges that children were given.
    copied: usize,
    threads_alive: FxHashMap<u32, u32>,
    process_of: FxHashMap<ThreadIndex, u32>,
    /// Each path and build id once.
    texts: FxHashMap<String, Arc<str>>,
}

impl Replay {
    fn take(&mut self, event: &Event) {
        match *event {
            Event::Map {
                time_ns,
                pid,
                address,
                length,
                file_offset,
                protection,
                ref path,
                ref build_id,
            } => {
                let region = Region {
                    pid,
                    start: address,
                    end: address.saturating_add(length),
                    born_ns: time_ns,
                    died_ns: u64::MAX,
                    file_offset,
                    protection,
                    path: self.interned(path),
                    build_id: self.interned(build_id),
                };
                if region.start < region.end {
                    let live = self.live.entry(pid).or_default();
                    self.spaces.map(live, region);
                }
            }
            Event::Unmap {
                time_ns,
                pid,
                address,
                length,
            } => {
                let end = address.saturating_add(length);
                if let Some(live) = self.live.get_mut(&pid)
                    && address < end
                {
                    self.spaces.cut(live, address..end, time_ns);
                }
            }
            Event::Name {
                time_ns,
                pid,
                thread,
                exec,
                ..
            } => self.name(time_ns, pid, thread, exec),
            Event::Fork {
                time_ns,
                pid,
                thread,
                parent_pid,
                ..
            } => {
                self.process_of.insert(thread, pid);
                *self.threads_alive.entry(pid).or_default() += 1;
                if pid != parent_pid {
                    self.copy(Fork {
                        time_ns,
                        parent_pid,
                        pid,
                    });
                }
            }
            Event::Exit { time_ns, thread } => self.exit(time_ns, thread),
            Event::FirstTouch { .. } | Event::Counts { .. } | Event::Lost { .. } => {}
        }
    }

    fn name(&mut self, time_ns: u64, pid: u32, thread: ThreadIndex, exec: bool) {
        if self.process_of.insert(thread, pid).is_none() {
            *self.threads_alive.entry(pid).or_default() += 1;
        }
        if exec {
            self.spaces.clear(&mut self.live, pid, time_ns);
            self.threads_alive.insert(pid, 1);
            self.process_of
                .retain(|other, process| *process != pid || *other == thread);
        }
    }

    /// The child has what the parent has mapped.
    fn copy(&mut self, fork: Fork) {
        let copy = |region: &Region| Region {
            pid: fork.pid,
            born_ns: fork.time_ns,
            ..region.clone()
        };
        let parents = self.live.get(&fork.parent_pid);
        let count = parents.map_or(0, BTreeMap::len);
        let fits = self.copied + count <= COPIED_MAX;
        let copied = parents
            .filter(|_| fits)
            .into_iter()
            .flatten()
            .map(|(start, region)| (*start, copy(region)))
            .collect();
        match fits {
            true => self.copied += count,
            false => self.spaces.not_copied += count,
        }
        self.spaces.clear(&mut self.live, fork.pid, fork.time_ns);
        self.live.insert(fork.pid, copied);
        self.spaces.forks.push(fork);
    }

    fn exit(&mut self, time_ns: u64, thread: ThreadIndex) {
        let Some(pid) = self.process_of.remove(&thread) else {
            return;
        };
        let alive = self.threads_alive.entry(pid).or_default();
        *alive = alive.saturating_sub(1);
        if *alive == 0 {
            self.spaces.clear(&mut self.live, pid, time_ns);
        }
    }

    fn interned(&mut self, text: &str) -> Arc<str> {
        self.texts.get(text).cloned().unwrap_or_else(|| {
            let interned: Arc<str> = Arc::from(text);
            self.texts.insert(text.to_owned(), interned.clone());
            interned
        })
    }
}
