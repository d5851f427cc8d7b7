//! Which processes that were seen to run have no allocation log, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nearpage_machine::several;
use nearpage_wire::is_own_module;
use rustc_hash::{FxHashMap, FxHashSet};

use super::address_space::{AddressSpaces, is_anonymous};
use super::file_name;
use crate::allocation_log::ImageLog;
use crate::no_log::{NoLog, Unsampled};
use crate::{Event, Messages};

/// Processes of which at most so many are listed.
const LISTED_MAX: usize = 4;

/// What logs there are, and who ran.
pub(super) struct Evidence<'a> {
    pub image_logs: &'a [ImageLog],
    pub spaces: &'a AddressSpaces,
    /// Processes with samples.
    pub active: &'a FxHashSet<u32>,
    /// What the library itself had to say.
    pub messages: &'a Messages,
}

/// The program that a process runs.
#[derive(Clone, Default)]
struct Image {
    /// What was mapped first.
    program: Option<String>,
    has_library: bool,
    /// It is its parent's yet: of what it was forked with a trace tells again, and after a `vfork` what it allocates is
    /// in no log.
    is_forked: bool,
}

impl Evidence<'_> {
    /// Says which processes have no heap objects, in a sentence for each reason.
    pub(super) fn notes(&self, events: &[Event]) -> Vec<String> {
        let mut reasons: BTreeMap<NoLog, BTreeSet<u32>> = BTreeMap::new();
        let mut images: FxHashMap<u32, Image> = FxHashMap::default();
        let mut unsampled = Unsampled::default();
        let mut without_log = BTreeSet::new();
        let mut is_used = false;
        for event in events {
            unsampled.event(event);
            Self::follow(event, &mut images);
            if let Event::Map {
                time_ns, pid, path, ..
            } = event
                && is_own_module(file_name(path).as_bytes())
            {
                is_used = true;
                let is_forked = images.get(pid).is_some_and(|image| image.is_forked);
                if !is_forked && !self.has_log(*pid, *time_ns) {
                    without_log.insert(*pid);
                }
            }
        }
        // Logs are named by what a process takes for its number.
        let is_unknown = |log: &ImageLog| !images.contains_key(&log.pid);
        let elsewhere = self.image_logs.iter().any(is_unknown);
        let missing = match elsewhere {
            true => NoLog::PidNamespace,
            false => NoLog::OtherUser,
        };
        for (pid, image) in &images {
            if !self.active.contains(pid) || self.messages.explained.contains(pid) {
                continue;
            }
            let has_log = self.image_logs.iter().any(|log| log.pid == *pid);
            let reason = match image {
                _ if without_log.contains(pid) => missing,
                Image {
                    has_library: true,
                    is_forked: true,
                    ..
                } if elsewhere && !has_log => missing,
                Image {
                    has_library: false,
                    program: Some(program),
                    ..
                } if is_used => NoLog::of_program(Path::new(program)),
                _ => continue,
            };
            if !self.is_said(reason) {
                reasons.entry(reason).or_default().insert(*pid);
            }
        }
        let notes = reasons.iter().map(|(reason, pids)| note(*reason, pids));
        notes.chain(unsampled.note()).collect()
    }

    fn follow(event: &Event, images: &mut FxHashMap<u32, Image>) {
        match event {
            Event::Fork {
                pid, parent_pid, ..
            } if parent_pid != pid => {
                let parent = images.get(parent_pid).cloned().unwrap_or_default();
                let is_forked = true;
                images.insert(
                    *pid,
                    Image {
                        is_forked,
                        ..parent
                    },
                );
            }
            Event::Fork { pid, .. } => {
                images.entry(*pid).or_default();
            }
            Event::Name {
                pid, exec: true, ..
            } => {
                images.insert(*pid, Image::default());
            }
            Event::Map { pid, path, .. } => {
                let image = images.entry(*pid).or_default();
                image.has_library |= is_own_module(file_name(path).as_bytes());
                let is_file = !is_anonymous(path) && !path.starts_with('[');
                if image.program.is_none() && is_file {
                    image.program = Some(path.clone());
                }
            }
            _ => {}
        }
    }

    /// Is there a log of the program that the process ran at `time_ns`?
    fn has_log(&self, pid: u32, time_ns: u64) -> bool {
        let life = time_ns..self.spaces.end(pid, time_ns);
        let of_it = |log: &ImageLog| log.pid == pid && life.contains(&log.start_ns);
        self.image_logs.iter().any(of_it)
    }

    /// The library says where it leaves a program with a sanitizer alone.
    fn is_said(&self, reason: NoLog) -> bool {
        let NoLog::Sanitizer(name) = reason else {
            return false;
        };
        self.messages.lines.iter().any(|line| line.contains(name))
    }
}

fn note(reason: NoLog, pids: &BTreeSet<u32>) -> String {
    let listed: Vec<String> = pids.iter().take(LISTED_MAX).map(u32::to_string).collect();
    let more = match pids.len() > LISTED_MAX {
        true => ", …",
        false => "",
    };
    format!(
        "no heap objects are known of {} ({}{more}): {reason}",
        several(pids.len() as u64, "process"),
        listed.join(", "),
    )
}
