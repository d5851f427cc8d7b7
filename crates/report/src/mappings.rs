//! Mappings of a process, which name the owner of each address as far as the kernel knows it.

use std::borrow::Cow;
use std::path::Path;

use nearpage_amount::bytes;
use nearpage_files::{MapsLine, bytes_to_text, memory_folder, read};

use crate::printable;

/// Size limit of `maps`, which has a line for each mapping. The kernel allows 65,530 mappings by default.
const MAPS_BYTES_MAX: u64 = 32 << 20;

/// A named part of an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Name of the mapping.
    pub name: String,
}

impl Mapping {
    /// Name of the mapping without its address, which differs between runs.
    pub fn lasting_name(&self) -> Cow<'_, str> {
        let size = bytes(self.end - self.start);
        match self.name == anonymous(self.start, &size) {
            true => format!("anonymous, {size}").into(),
            false => self.name.as_str().into(),
        }
    }
}

fn anonymous(start: u64, size: &str) -> String {
    format!("anonymous {start:x}, {size}")
}

/// Mappings of a process in the order of addresses; empty if the process has ended or may not be read.
pub fn mappings(proc_root: &Path, pid: u32) -> Vec<Mapping> {
    let path = memory_folder(proc_root, pid).join("maps");
    named(&read(&path, MAPS_BYTES_MAX).unwrap_or_default())
}

fn named(maps: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    // End and name of the most recently mapped file.
    let mut file: Option<(u64, String)> = None;
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(line) = MapsLine::parse(line) else {
            continue;
        };
        let (start, end) = (line.range.start, line.range.end);
        if start >= end {
            continue;
        }
        let path = bytes_to_text(&line.path);
        let name = match path.as_ref() {
            "" => match &file {
                // An anonymous mapping directly after a file holds the program's uninitialised variables.
                Some((end, name)) if *end == start && line.permissions[1] == b'w' => {
                    format!("{name} variables")
                }
                _ => anonymous(start, &bytes(end - start)),
            },
            "[heap]" => "heap (brk)".to_owned(),
            special if special.starts_with('[') => special.trim_matches(['[', ']']).to_owned(),
            path => {
                let name = path.rsplit('/').next().unwrap_or(path);
                file = Some((end, name.to_owned()));
                let part = match line.permissions {
                    [_, _, b'x', _] => "code",
                    [_, b'w', ..] => "variables",
                    _ => "constants",
                };
                format!("{name} {part}")
            }
        };
        let name = printable(&name);
        match mappings.last_mut() {
            Some(last) if last.end == start && last.name == name => last.end = end,
            _ => mappings.push(Mapping { start, end, name }),
        }
    }
    mappings
}

/// The mapping that contains an address.
pub fn mapping_of(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.end <= address);
    mappings
        .get(after)
        .filter(|mapping| mapping.start <= address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
00400000-00401000 r--p 00000000 08:01 17                         /usr/bin/a b
00401000-00500000 r-xp 00001000 08:01 17                         /usr/bin/a b
00500000-00501000 rw-p 00100000 08:01 17                         /usr/bin/a b
00501000-00600000 rw-p 00000000 00:00 0
01000000-01021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0004000000 rw-p 00000000 00:00 0
7f0005000000-7f0005001000 rw-s 00000000 00:01 5                  /dev/shm/\x1b[2J
7ffff0000000-7ffff0021000 rw-p 00000000 00:00 0                  [stack]
not a line
";

    #[test]
    fn parts_of_an_address_space_have_names() {
        let mappings = named(MAPS);
        let names: Vec<&str> = mappings.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "a b constants",
                "a b code",
                "a b variables",
                "heap (brk)",
                "anonymous 7f0000000000, 64 MiB",
                "\u{fffd}[2J variables",
                "stack"
            ]
        );
        assert_eq!(mappings[2].end, 0x60_0000, "with those without values");
        let name = |address| mapping_of(&mappings, address).map(|one| one.name.as_str());
        assert_eq!(name(0x50_2000), Some("a b variables"));
        assert_eq!(name(0x7f00_0400_0000), None);
        let lasting = |at: usize| mappings[at].lasting_name().into_owned();
        assert_eq!(
            (lasting(4), lasting(3)),
            ("anonymous, 64 MiB".to_owned(), "heap (brk)".to_owned())
        );
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_mappings() {
        assert_eq!(mappings(Path::new("/proc"), u32::MAX), []);
        let own = mappings(Path::new("/proc"), std::process::id());
        let here = own.as_ptr() as u64;
        assert!(mapping_of(&own, here).is_some());
    }
}
