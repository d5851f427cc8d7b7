//! What was mapped where and when, from the kernel's events: maps cut what they overlap, `fork`
//! copies, `exec` and the end of a process clear.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::{Event, ThreadIndex};

/// `PROT_EXEC`.
pub(crate) const EXECUTABLE: u32 = 4;

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
    /// Times at which a process's memory went (`exec`, end), by process, ascending.
    pub ends: FxHashMap<u32, Vec<u64>>,
}

impl AddressSpaces {
    /// From events sorted by time.
    pub(super) fn new(events: &[Event]) -> Self {
        let mut spaces = Self::default();
        let mut live: FxHashMap<u32, BTreeMap<u64, Region>> = FxHashMap::default();
        let mut threads_alive: FxHashMap<u32, u32> = FxHashMap::default();
        let mut process_of: FxHashMap<ThreadIndex, u32> = FxHashMap::default();
        let mut texts: FxHashMap<String, Arc<str>> = FxHashMap::default();
        let mut intern = |text: &str| {
            texts.get(text).cloned().unwrap_or_else(|| {
                let interned: Arc<str> = Arc::from(text);
                texts.insert(text.to_owned(), interned.clone());
                interned
            })
        };
        for event in events {
            match event {
                Event::Map {
                    time_ns,
                    pid,
                    address,
                    length,
                    file_offset,
                    protection,
                    path,
                    build_id,
                } => {
                    let region = Region {
                        pid: *pid,
                        start: *address,
                        end: address.saturating_add(*length),
                        born_ns: *time_ns,
                        died_ns: u64::MAX,
                        file_offset: *file_offset,
                        protection: *protection,
                        path: intern(path),
                        build_id: intern(build_id),
                    };
                    if region.start < region.end {
                        spaces.map(live.entry(*pid).or_default(), region);
                    }
                }
                Event::Unmap {
                    time_ns,
                    pid,
                    address,
                    length,
                } => {
                    let end = address.saturating_add(*length);
                    if let Some(live) = live.get_mut(pid)
                        && *address < end
                    {
                        spaces.cut(live, *address..end, *time_ns);
                    }
                }
                Event::Name {
                    time_ns,
                    pid,
                    thread,
                    exec,
                    ..
                } => {
                    if process_of.insert(*thread, *pid).is_none() {
                        *threads_alive.entry(*pid).or_default() += 1;
                    }
                    if *exec {
                        spaces.clear(&mut live, *pid, *time_ns);
                        threads_alive.insert(*pid, 1);
                        process_of.retain(|other, process| *process != *pid || other == thread);
                    }
                }
                Event::Fork {
                    time_ns,
                    pid,
                    thread,
                    parent_pid,
                    ..
                } => {
                    process_of.insert(*thread, *pid);
                    *threads_alive.entry(*pid).or_default() += 1;
                    if pid != parent_pid {
                        let copy = |region: &Region| Region {
                            pid: *pid,
                            born_ns: *time_ns,
                            ..region.clone()
                        };
                        let copied = live.get(parent_pid).into_iter().flatten();
                        let copied = copied
                            .map(|(start, region)| (*start, copy(region)))
                            .collect();
                        spaces.clear(&mut live, *pid, *time_ns);
                        live.insert(*pid, copied);
                        spaces.forks.push(Fork {
                            time_ns: *time_ns,
                            parent_pid: *parent_pid,
                            pid: *pid,
                        });
                    }
                }
                Event::Exit { time_ns, thread } => {
                    if let Some(pid) = process_of.remove(thread) {
                        let alive = threads_alive.entry(pid).or_default();
                        *alive = alive.saturating_sub(1);
                        if *alive == 0 {
                            spaces.clear(&mut live, pid, *time_ns);
                        }
                    }
                }
                Event::FirstTouch { .. } | Event::Counts { .. } | Event::Lost { .. } => {}
            }
        }
        spaces
            .regions
            .extend(live.into_values().flat_map(BTreeMap::into_values));
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
