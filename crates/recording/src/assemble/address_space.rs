//! Tracks what was mapped where and when, from the kernel's events. A new mapping replaces mappings that it overlaps,
//! `fork` copies all mappings, and `exec` and the end of a process remove them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nearpage_perf_abi::FileId;
use rustc_hash::FxHashMap;

use crate::{Event, ThreadIndex};

/// `PROT_EXEC`.
pub(crate) const EXECUTABLE: u32 = 4;

/// Most ranges that forks copy from parents to children. Each range takes about 100 bytes, and a log of 1 MiB can ask
/// for millions.
const COPIED_MAX: usize = 2 << 20;

/// Whether a mapping with this path is anonymous memory.
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
    /// The file whose pages the region shares with other processes.
    pub shared: Option<FileId>,
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

    /// Whether the region maps a file.
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
    /// All ranges of the whole recording, in no order.
    pub regions: Vec<Region>,
    /// Forks, by time.
    pub forks: Vec<Fork>,
    /// Number of ranges that were not copied to children because of [`COPIED_MAX`].
    pub not_copied: usize,
    /// Times at which a process lost its memory (`exec` or end), by process, ascending.
    pub ends: FxHashMap<u32, Vec<u64>>,
}

impl AddressSpaces {
    /// Replays events that are sorted by time.
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

    /// When process `pid` lost the memory that it had at `time_ns`; `u64::MAX` if not within this recording.
    pub(super) fn end(&self, pid: u32, time_ns: u64) -> u64 {
        let ends = self.ends.get(&pid).map_or(&[][..], Vec::as_slice);
        ends.get(ends.partition_point(|end| *end <= time_ns))
            .copied()
            .unwrap_or(u64::MAX)
    }

    /// When process `pid` got the memory that it had at `time_ns`; 0 if before the recording.
    pub(super) fn begin(&self, pid: u32, time_ns: u64) -> u64 {
        let ends = self.ends.get(&pid).map_or(&[][..], Vec::as_slice);
        let before = ends.partition_point(|end| *end <= time_ns);
        ends[..before].last().copied().unwrap_or(0)
    }

    fn map(&mut self, live: &mut BTreeMap<u64, Region>, new: Region) {
        self.cut(live, new.start..new.end, new.born_ns);
        live.insert(new.start, new);
    }

    /// Ends the mappings in `range`; their parts outside of `range` stay.
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
    /// Mapped regions by process and start address.
    live: FxHashMap<u32, BTreeMap<u64, Region>>,
    /// Number of ranges copied to children so far.
    copied: usize,
    threads_alive: FxHashMap<u32, u32>,
    process_of: FxHashMap<ThreadIndex, u32>,
    /// Interned paths and build-ids.
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
                shared,
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
                    shared,
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

    /// Copies the parent's mappings to the child.
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
