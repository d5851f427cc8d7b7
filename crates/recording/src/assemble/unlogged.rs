//! Finds processes that ran but have no allocation log, and the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use nearpage_amount::counted;
use nearpage_files::path_from_text;
use nearpage_wire::is_own_module;
use rustc_hash::{FxHashMap, FxHashSet};

use super::address_space::{AddressSpaces, is_anonymous};
use super::file_name;
use crate::allocation_log::ImageLog;
use crate::convert::ModulePaths;
use crate::no_log::{NoLog, UnsampledPrograms};
use crate::{Event, Messages};

/// Most process ids that a note lists.
const LISTED_MAX: usize = 4;

/// Evidence about which processes ran and which of them logged.
pub(super) struct Evidence<'a> {
    pub image_logs: &'a [ImageLog],
    pub spaces: &'a AddressSpaces,
    /// Processes with samples.
    pub active: &'a FxHashSet<u32>,
    /// Messages of the preload library.
    pub messages: &'a Messages,
    /// Files of the recorded modules.
    pub paths: &'a ModulePaths,
}

/// The program that a process runs.
#[derive(Clone, Default)]
struct Image {
    /// The file that was mapped first.
    program: Option<PathBuf>,
    has_library: bool,
    /// The preload library gave a reason in this process, or in a process that it was forked from.
    is_explained: bool,
    /// The process still runs its parent's program. A trace reports its inherited mappings again, and after a `vfork`
    /// its allocations are in no log.
    is_forked: bool,
}

impl Evidence<'_> {
    /// Notes that say which processes have no heap objects, a sentence per reason.
    pub(super) fn notes(&self, events: &[Event]) -> Vec<String> {
        let mut reasons: BTreeMap<NoLog, BTreeSet<u32>> = BTreeMap::new();
        let mut images: FxHashMap<u32, Image> = FxHashMap::default();
        let mut unsampled = UnsampledPrograms::default();
        let mut without_log = BTreeSet::new();
        let mut is_used = false;
        for event in events {
            unsampled.event(event);
            self.follow(event, &mut images);
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
        // A log's file name has the process id that the process itself sees, which differs in a PID namespace.
        let is_unknown = |log: &ImageLog| !images.contains_key(&log.pid);
        let elsewhere = self.image_logs.iter().any(is_unknown);
        let missing = match elsewhere {
            true => NoLog::PidNamespace,
            false => NoLog::OtherUser,
        };
        for (pid, image) in &images {
            if !self.active.contains(pid) || image.is_explained || self.explains(*pid) {
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
                } if is_used => NoLog::of_program(program),
                _ => continue,
            };
            if !self.is_said(reason) {
                reasons.entry(reason).or_default().insert(*pid);
            }
        }
        let notes = reasons.iter().map(|(reason, pids)| note(*reason, pids));
        notes.chain(unsampled.note()).collect()
    }

    fn follow(&self, event: &Event, images: &mut FxHashMap<u32, Image>) {
        match event {
            Event::Fork {
                pid, parent_pid, ..
            } if parent_pid != pid => {
                let parent = images.get(parent_pid).cloned().unwrap_or_default();
                let image = Image {
                    is_forked: true,
                    is_explained: parent.is_explained || self.explains(*parent_pid),
                    ..parent
                };
                images.insert(*pid, image);
            }
            Event::Fork { pid, .. } => {
                images.entry(*pid).or_default();
            }
            Event::Name {
                pid, exec: true, ..
            } => {
                let image = images.entry(*pid).or_default();
                *image = Image {
                    is_explained: image.is_explained,
                    ..Image::default()
                };
            }
            Event::Map {
                pid,
                path,
                build_id,
                ..
            } => {
                let image = images.entry(*pid).or_default();
                image.has_library |= is_own_module(file_name(path).as_bytes());
                let is_file = !is_anonymous(path) && !path.starts_with('[');
                if image.program.is_none() && is_file {
                    let key = (path.clone(), build_id.clone());
                    let file = || path_from_text(path).into_owned();
                    image.program = Some(self.paths.get(&key).cloned().unwrap_or_else(file));
                }
            }
            _ => {}
        }
    }

    fn explains(&self, pid: u32) -> bool {
        self.messages.explained.contains(&pid)
    }

    /// Whether a log exists of the program that the process ran at `time_ns`.
    fn has_log(&self, pid: u32, time_ns: u64) -> bool {
        let life = time_ns..self.spaces.end(pid, time_ns);
        let of_it = |log: &ImageLog| log.pid == pid && life.contains(&log.start_ns);
        self.image_logs.iter().any(of_it)
    }

    /// Whether the library already reported this reason, as it does for programs with a sanitizer.
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
        counted(pids.len() as u64, "process"),
        listed.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadIndex;

    const LIBRARY: &str = "/usr/lib/libnearpage_preload.so";

    fn exec(time_ns: u64, pid: u32) -> Event {
        Event::Name {
            time_ns,
            pid,
            thread: ThreadIndex(0),
            name: "program".to_owned(),
            exec: true,
        }
    }

    fn map(time_ns: u64, pid: u32, path: &str) -> Event {
        Event::Map {
            time_ns,
            pid,
            address: 0x1000 * time_ns,
            length: 0x1000,
            file_offset: 0,
            protection: 5,
            shared: None,
            path: path.to_owned(),
            build_id: String::new(),
        }
    }

    fn fork(time_ns: u64, pid: u32, parent_pid: u32) -> Event {
        Event::Fork {
            time_ns,
            pid,
            tid: pid,
            thread: ThreadIndex(0),
            parent_pid,
        }
    }

    /// Process 1 has the library and a log, and forks process 2. With `program`, process 2 then executes a program with
    /// these mappings.
    fn said(program: Option<&[&str]>, explained: &[u32]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("alloc-1-4-0.log"), "").unwrap();
        let mut events = vec![
            exec(1, 1),
            map(2, 1, "/bin/sh"),
            map(3, 1, LIBRARY),
            fork(10, 2, 1),
        ];
        if let Some(mapped) = program {
            events.push(exec(11, 2));
            events.extend((12..).zip(mapped).map(|(at, path)| map(at, 2, path)));
        }
        let evidence = Evidence {
            image_logs: &crate::allocation_log::find(folder.path()).unwrap(),
            spaces: &AddressSpaces::new(&events),
            active: &FxHashSet::from_iter([1, 2]),
            messages: &Messages {
                explained: explained.to_vec(),
                ..Messages::default()
            },
            paths: &ModulePaths::default(),
        };
        evidence.notes(&events)
    }

    #[test]
    fn a_process_without_a_log_is_named_with_its_reason() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let note = |reason: NoLog| {
            vec![format!(
                "no heap objects are known of 1 process (2): {reason}"
            )]
        };
        assert_eq!(said(Some(&[own, LIBRARY]), &[]), note(NoLog::OtherUser));
        assert_eq!(
            said(Some(&[own, "/lib/libc.so.6"]), &[]),
            note(NoLog::OtherEnvironment)
        );
        assert_eq!(
            said(Some(&["/no/such/program"]), &[]),
            note(NoLog::UnknownProgram)
        );
        // A process that still runs its parent's program has the parent's library and log.
        assert_eq!(said(None, &[]), [""; 0]);
        let unsampled = said(Some(&[]), &[]);
        assert!(
            unsampled[0].starts_with("no samples of program (2): "),
            "{unsampled:?}"
        );
        assert_eq!(unsampled.len(), 1);
    }

    #[test]
    fn messages_about_a_process_hold_for_its_children() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        for explained in [1, 2] {
            assert_eq!(said(Some(&[own]), &[explained]), [""; 0]);
            assert_eq!(said(Some(&[own, LIBRARY]), &[explained]), [""; 0]);
        }
        assert_eq!(said(Some(&[own]), &[3]).len(), 1);
    }
}
