//! Program images: what one process logged from its start (`exec` or `fork`) to its end.

use nearpage_wire::allocation_log::{FLAG_NO_STACK, Kind, Record};
use rustc_hash::{FxHashMap, FxHashSet};

use super::address_space::AddressSpaces;
use crate::allocation_log::{Damage, ImageLog};
use crate::{Error, Mark};

#[derive(Debug, Default)]
pub(super) struct Image {
    pub pid: u32,
    /// CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// When the process lost the image's memory; `u64::MAX` if not within this recording.
    pub end_ns: u64,
    /// Position of the parent image, and time of the fork.
    pub parent: Option<(usize, u64)>,
    /// Allocations, frees and mappings, by time.
    pub steps: Vec<Step>,
    /// Return addresses by number of call site.
    pub call_sites: FxHashMap<u32, Vec<u64>>,
    pub threads: Vec<ThreadRecord>,
    /// Kernel ids and end times of threads. The library logs an end before threads that wait for it go on.
    pub thread_ends: Vec<(u32, u64)>,
    pub marks: Vec<Mark>,
    pub counters: Counters,
}

/// An event that creates or ends objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub time_ns: u64,
    pub action: Action,
    pub tid: u32,
    pub call_site: u32,
    pub address: u64,
    pub size_bytes: u64,
    /// Number of allocations that this one stands for, in 1/1000.
    pub weight_milli: u32,
    /// Whether a mapping is of a file.
    pub of_file: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    // Steps of equal time are sorted in this order, so that memory is freed before it is used again.
    Free,
    Unmap,
    Allocate,
    Map,
}

/// What the preload library logged about a thread.
#[derive(Clone, Debug)]
pub(super) struct ThreadRecord {
    pub time_ns: u64,
    pub tid: u32,
    /// Address of the start routine; 0: the main thread.
    pub start: u64,
    /// For threads of `std::thread`: addresses of `_M_run` and of a function that it may call; 0 if unknown.
    pub callable: [u64; 2],
    pub order: u32,
    pub stack: std::ops::Range<u64>,
    pub tls: std::ops::Range<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    time_ns: u64,
    pub allocations: u64,
    pub small_unlogged: u64,
    /// Large allocations without a record, because their call site made short-lived allocations at a high rate.
    pub large_unlogged: u64,
    pub stacks_omitted: u64,
    /// Records dropped because the log was off or full, and samples without room.
    pub dropped: u64,
}

impl Counters {
    fn of(record: Record<'_>) -> Self {
        Self {
            time_ns: record.word(0),
            allocations: record.word(1),
            small_unlogged: record.word(3),
            large_unlogged: record.word(9),
            stacks_omitted: record.word(6),
            dropped: record.word(7).saturating_add(record.word(8)),
        }
    }
}

/// Reads all logs, by time, and finds each image's parent. A forked process that made accesses (`active`) but logged
/// nothing gets an image without steps, as it uses its parent's objects.
pub(super) fn read(
    logs: &[ImageLog],
    spaces: &AddressSpaces,
    active: &FxHashSet<u32>,
    damage: &mut Damage,
) -> Result<Vec<Image>, Error> {
    let mut images = Vec::with_capacity(logs.len());
    for (position, log) in logs.iter().enumerate() {
        let next = logs[position + 1..]
            .iter()
            .find(|later| later.pid == log.pid);
        let end_ns = spaces
            .end(log.pid, log.start_ns)
            .min(next.map_or(u64::MAX, |next| next.start_ns));
        let mut image = Image {
            pid: log.pid,
            start_ns: log.start_ns,
            end_ns,
            ..Image::default()
        };
        let mut log_omitted = 0;
        log.read(damage, |tid, record| {
            log_omitted += u64::from(record.flags & FLAG_NO_STACK != 0);
            image.take(tid, record);
        })?;
        image.counters.stacks_omitted = image.counters.stacks_omitted.max(log_omitted);
        image.steps.sort_by_key(|step| (step.time_ns, step.action));
        images.push(image);
    }
    for fork in &spaces.forks {
        let end_ns = spaces.end(fork.pid, fork.time_ns);
        let logged = |image: &Image| {
            image.pid == fork.pid && (fork.time_ns..end_ns).contains(&image.start_ns)
        };
        if active.contains(&fork.pid) && !images.iter().any(logged) {
            images.push(Image {
                pid: fork.pid,
                start_ns: fork.time_ns,
                end_ns,
                ..Image::default()
            });
        }
    }
    images.sort_by_key(|image| (image.start_ns, image.pid));
    for position in 0..images.len() {
        images[position].parent = find_parent(&images[..=position], spaces, active);
    }
    Ok(images)
}

/// The image that the last of `images` was forked from.
fn find_parent(
    images: &[Image],
    spaces: &AddressSpaces,
    active: &FxHashSet<u32>,
) -> Option<(usize, u64)> {
    let (child, before) = images.split_last()?;
    let forked = |fork: &&super::address_space::Fork| {
        fork.pid == child.pid && fork.time_ns <= child.start_ns
    };
    let fork = spaces.forks.iter().rev().find(forked)?;
    let still_the_copy = child.start_ns < spaces.end(child.pid, fork.time_ns);
    let parent = before.iter().rposition(|image| {
        image.pid == fork.parent_pid && (image.start_ns..image.end_ns).contains(&fork.time_ns)
    })?;
    (still_the_copy && active.contains(&child.pid)).then_some((parent, fork.time_ns))
}

impl Image {
    fn take(&mut self, tid: u32, record: Record<'_>) {
        let time_ns = record.word(0);
        let step = Step {
            time_ns,
            action: Action::Free,
            tid,
            call_site: record.argument,
            address: record.word(1),
            size_bytes: record.word(2),
            weight_milli: 1000,
            of_file: false,
        };
        match record.kind {
            Kind::Allocate => {
                let weight_milli = u32::try_from(record.word(3)).unwrap_or(u32::MAX);
                self.steps.push(Step {
                    action: Action::Allocate,
                    weight_milli,
                    ..step
                });
            }
            Kind::Free => self.steps.push(Step {
                call_site: 0,
                size_bytes: 0,
                ..step
            }),
            Kind::Map => {
                let of_file = record.len() > 4 && record.word(4) as i32 >= 0;
                self.steps.push(Step {
                    action: Action::Map,
                    of_file,
                    ..step
                });
            }
            Kind::Unmap => self.steps.push(Step {
                action: Action::Unmap,
                ..step
            }),
            Kind::Break => {
                let (old, new) = (record.word(1), record.word(2));
                let action = if new >= old {
                    Action::Map
                } else {
                    Action::Unmap
                };
                self.steps.push(Step {
                    action,
                    address: old.min(new),
                    size_bytes: old.abs_diff(new),
                    ..step
                });
            }
            Kind::CallSite => {
                let frames = (0..record.len()).map(|index| record.word(index)).collect();
                self.call_sites.insert(record.argument, frames);
            }
            Kind::Thread => self.threads.push(ThreadRecord {
                time_ns,
                tid: record.argument,
                start: record.word(1),
                callable: [record.word(8), record.word(9)],
                order: record.word(2) as u32,
                stack: record.word(3)..record.word(4),
                tls: record.word(5)..record.word(6),
            }),
            Kind::Mark => self.marks.push(Mark {
                time_ns,
                pid: self.pid,
                begin: record.argument == 1,
            }),
            Kind::Counters if time_ns >= self.counters.time_ns => {
                self.counters = Counters::of(record);
            }
            Kind::ThreadExit => self.thread_ends.push((record.argument, time_ns)),
            // These counters are older than those already taken.
            Kind::Counters => {}
        }
    }
}
