//! Reasons why a process or its allocations are in no allocation log, each with a sentence for the user.
//!
//! The preload library itself reports problems inside a process that has the library: a limit, a full disk, a filter of
//! system calls ([`crate::Messages`]).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::Event;
use crate::elf::ElfFile;

/// Why the heap objects of a process are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoLog {
    /// The program has no dynamic loader.
    StaticallyLinked,
    /// The program is built with the sanitizer of this name.
    Sanitizer(&'static str),
    /// The program is for another processor architecture.
    OtherProcessor,
    /// The program's file is gone or cannot be read, so nothing is known of the program.
    UnknownProgram,
    /// No other reason applies, but the program was started without the library.
    OtherEnvironment,
    /// The kernel ended sampling when the program started.
    Privileged,
    /// The logs have process ids of another PID namespace.
    PidNamespace,
    /// The library was loaded, but there is no log.
    OtherUser,
}

impl NoLog {
    /// All reasons, for tests and documentation.
    pub const ALL: [Self; 8] = [
        Self::StaticallyLinked,
        Self::Sanitizer("AddressSanitizer"),
        Self::OtherProcessor,
        Self::UnknownProgram,
        Self::OtherEnvironment,
        Self::Privileged,
        Self::PidNamespace,
        Self::OtherUser,
    ];

    /// Why the preload library was not in a process that runs the program at `path`.
    pub fn of_program(path: &Path) -> Self {
        match ElfFile::open(path) {
            Err(_) => Self::UnknownProgram,
            Ok(file) => Self::of_file(&file).unwrap_or(Self::OtherEnvironment),
        }
    }

    /// Why the preload library cannot be in a program with this file; `None` if it can.
    pub fn of_file(file: &ElfFile) -> Option<Self> {
        if !file.is_for_this_processor() {
            return Some(Self::OtherProcessor);
        }
        if file.is_static() {
            return Some(Self::StaticallyLinked);
        }
        file.sanitizer().map(Self::Sanitizer)
    }
}

impl fmt::Display for NoLog {
    /// Cause and remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StaticallyLinked => {
                "the program is statically linked, so that the preload library can't enter it; link it dynamically to see them"
            }
            Self::Sanitizer(name) => {
                return write!(
                    f,
                    "the program is built with {name}, which does not work beside the preload library; build it without -fsanitize \
                     to see them"
                );
            }
            Self::OtherProcessor => {
                "the program is for another processor than the preload library; record it with a nearpage built for that processor"
            }
            Self::UnknownProgram => {
                "the preload library is not in it, and the program's file is gone or can't be read; record it as a user who may read it"
            }
            Self::OtherEnvironment => {
                "the program was started without the preload library, in an environment or a root of its own; keep LD_PRELOAD, \
                 the NEARPAGE_ variables and the library's path there to see them"
            }
            Self::Privileged => {
                "the kernel ends the sampling of programs that are setuid or setgid, have capabilities, or can't be read; sample \
                 the whole machine as root with `nearpage record --all`"
            }
            Self::PidNamespace => {
                "its allocation log names another process, as processes have other numbers there (a PID namespace, as in \
                 containers); start nearpage inside of it"
            }
            Self::OtherUser => {
                "no allocation log was written, most likely as another user may not write into the recording; have that \
                 user start nearpage"
            }
        })
    }
}

/// Programs of which the kernel reported only the start. It ends sampling if a program has other privileges than its
/// user, or may not be read.
#[derive(Clone, Debug, Default)]
pub struct UnsampledPrograms {
    names: BTreeMap<u32, String>,
}

impl UnsampledPrograms {
    /// Takes an event into account; events must come in order of time.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Name {
                pid,
                name,
                exec: true,
                ..
            } => {
                self.names.insert(*pid, name.clone());
            }
            Event::Map { pid, .. } => {
                self.names.remove(pid);
            }
            _ => {}
        }
    }

    /// Names of the programs, by process.
    pub fn programs(&self) -> &BTreeMap<u32, String> {
        &self.names
    }

    /// Cause and remedy in a sentence; `None` if there are no such programs.
    pub fn note(&self) -> Option<String> {
        let (pid, name) = self.names.first_key_value()?;
        let more = match self.names.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        Some(format!(
            "no samples of {name} ({pid}){more}: {}",
            NoLog::Privileged
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_names_a_remedy_in_one_line() {
        let mut sentences = std::collections::BTreeSet::new();
        for reason in NoLog::ALL {
            let sentence = reason.to_string();
            assert!(
                sentence.contains("; ") && !sentence.contains('\n'),
                "{sentence}"
            );
            assert!(sentences.insert(sentence));
        }
    }

    #[test]
    fn programs_are_told_apart_by_their_files() {
        let this = std::env::current_exe().unwrap();
        assert_eq!(NoLog::of_file(&ElfFile::open(&this).unwrap()), None);
        assert_eq!(NoLog::of_program(&this), NoLog::OtherEnvironment);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            NoLog::of_program(&folder.path().join("none")),
            NoLog::UnknownProgram
        );
        let compile = |name: &str, arguments: &[&str]| {
            let source = folder.path().join("a.c");
            std::fs::write(&source, "int main(void) { return 0; }").unwrap();
            let path = folder.path().join(name);
            let mut compiler = std::process::Command::new("cc");
            let made = compiler
                .args(arguments)
                .arg("-o")
                .arg(&path)
                .arg(source)
                .output();
            made.is_ok_and(|made| made.status.success())
                .then(|| NoLog::of_program(&path))
        };
        for (name, arguments, reason) in [
            ("static", &["-static"][..], NoLog::StaticallyLinked),
            ("static-pie", &["-static-pie"], NoLog::StaticallyLinked),
            (
                "asan",
                &["-fsanitize=address"],
                NoLog::Sanitizer("AddressSanitizer"),
            ),
            (
                "tsan",
                &["-fsanitize=thread"],
                NoLog::Sanitizer("ThreadSanitizer"),
            ),
            (
                "lsan",
                &["-fsanitize=leak"],
                NoLog::Sanitizer("LeakSanitizer"),
            ),
            ("ubsan", &["-fsanitize=undefined"], NoLog::OtherEnvironment),
        ] {
            match compile(name, arguments) {
                Some(found) => assert_eq!(found, reason, "{name}"),
                None => eprintln!("skipped: no compiler makes {name} here"),
            }
        }
    }

    #[test]
    fn a_start_without_mappings_is_the_end_of_sampling() {
        let mut unsampled = UnsampledPrograms::default();
        let name = |pid: u32, name: &str, exec: bool| Event::Name {
            time_ns: 0,
            pid,
            thread: crate::ThreadIndex(0),
            name: name.to_owned(),
            exec,
        };
        let map = |pid: u32| Event::Map {
            time_ns: 0,
            pid,
            address: 0x1000,
            length: 0x1000,
            file_offset: 0,
            protection: 5,
            shared: None,
            path: "/bin/a".to_owned(),
            build_id: String::new(),
        };
        for event in [
            name(1, "sh", true),
            map(1),
            name(1, "sh", false),
            name(2, "su", true),
        ] {
            unsampled.event(&event);
        }
        let note = unsampled.note().unwrap();
        assert!(
            note.starts_with("no samples of su (2): the kernel "),
            "{note}"
        );
        unsampled.event(&name(1, "ping", true));
        assert!(unsampled.note().unwrap().contains("ping (1) and 1 more"));
        unsampled.event(&map(1));
        unsampled.event(&map(2));
        assert_eq!(unsampled.note(), None);
    }
}
