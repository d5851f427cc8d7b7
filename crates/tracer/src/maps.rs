//! Mappings that the program has before its first system call, from `/proc/thread-self/maps`, and the files of
//! descriptors.

mod line;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use nearpage_wire::trace::Event;

use crate::process::Process;
pub use line::Mapping;
use line::mapping;

/// The file of a mapping.
#[derive(Default)]
pub struct MappedFile {
    /// `st_dev`.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Path.
    pub path: Vec<u8>,
}

/// The file of a descriptor.
pub fn file_of(descriptor: u64) -> Option<MappedFile> {
    let link = format!("/proc/thread-self/fd/{}", descriptor as i32);
    let metadata = fs::metadata(&link).ok()?;
    let path = fs::read_link(&link).ok()?;
    Some(MappedFile {
        device: metadata.dev(),
        inode: metadata.ino(),
        path: path.into_os_string().into_vec(),
    })
}

fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(mapping)
}

/// The process's maps file as it is now. It is read from the calling thread's folder: the main thread's file is empty once
/// that thread has ended.
pub fn read() -> Vec<u8> {
    fs::read("/proc/thread-self/maps").unwrap_or_default()
}

/// The file that the maps file names for an address of the program, and the bytes from there to the mapping's end. For
/// shared memory without a file this is its identity, which is the same in every process.
pub fn at(address: u64, guest_base: u64) -> Option<(MappedFile, u64)> {
    let now = read();
    let address = address + guest_base;
    let found =
        mappings(&now).find(|mapping| (mapping.range.0..mapping.range.1).contains(&address))?;
    let file = MappedFile {
        device: found.device,
        inode: found.inode,
        path: found.path.to_vec(),
    };
    Some((file, found.range.1 - address))
}

/// Writes events for the program's mappings, at guest addresses: all mappings that did not exist before QEMU loaded the
/// program.
pub fn write_initial(process: &Process, before: &[u8], guest_base: u64) {
    for mapping in of_program(before, &read()) {
        let (first, end) = mapping.range;
        let Some(address) = first.checked_sub(guest_base) else {
            continue;
        };
        let event = Event::Map {
            protection: mapping.protection,
            flags: mapping.flags,
            virtual_time: 0,
            address,
            length: end - first,
            offset: mapping.offset,
            device: mapping.device,
            inode: mapping.inode,
            path: mapping.path,
        };
        process.output.event(0, 0, &event);
    }
}

/// The mappings of a maps file that an earlier one does not have, and that may be the program's.
///
/// QEMU up to 8.0 puts a program into `APART`, where nothing else is, and its own memory near the
/// top of the address space. With later versions the kernel puts both side by side, and merges them into
/// one mapping if both are anonymous memory. No program touches QEMU's part.
fn of_program<'a>(before: &[u8], now: &'a [u8]) -> Vec<Mapping<'a>> {
    const APART: std::ops::Range<u64> = 0x40_0000_0000..0x50_0000_0000;
    const QEMU_OWN: u64 = 0x7000_0000_0000;
    let known: Vec<(u64, u64)> = mappings(before).map(|mapping| mapping.range).collect();
    let mut new = Vec::new();
    for mapping in mappings(now) {
        // Mappings that the kernel names ([heap], [vdso]) are QEMU's.
        if mapping.path.starts_with(b"[") {
            continue;
        }
        let (mut first, end) = mapping.range;
        let mut piece = |first: u64, end: u64| {
            if first < end {
                new.push(Mapping {
                    range: (first, end),
                    offset: mapping.offset + (first - mapping.range.0),
                    ..mapping.clone()
                });
            }
        };
        // The kernel lists them by address.
        for &(known_first, known_end) in &known {
            piece(first, known_first.min(end));
            first = first.max(known_end);
        }
        piece(first, end);
    }
    if new.iter().any(|mapping| APART.contains(&mapping.range.0)) {
        new.retain(|mapping| mapping.range.0 < QEMU_OWN);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_mappings_are_the_programs() {
        let before = "555500000000-555500009000 r-xp 00000000 fe:00 7 /usr/bin/qemu-x86_64\n\
                      555500009000-555500020000 rw-p 00000000 00:00 0 [heap]\n\
                      7f1000000000-7f1000004000 rw-p 00000000 00:00 0 \n";
        let ranges = |added: &str| {
            let now = format!("{added}{before}");
            let new = of_program(before.as_bytes(), now.as_bytes());
            let ranges = new.iter().map(|mapping| (mapping.range, mapping.offset));
            ranges.collect::<Vec<_>>()
        };
        assert_eq!(ranges(""), []);
        // The program's stack and QEMU's memory have become one mapping; the heap is QEMU's.
        assert_eq!(
            ranges(
                "400000-401000 r-xp 00000000 fe:00 8 /bin/a\n\
                 555500009000-555500028000 rw-p 00000000 00:00 0 [heap]\n\
                 7f0fffff0000-7f1000006000 rw-p 00000000 00:00 0 \n\
                 7f2000001000-7f2000002000 r-xp 00001000 fe:00 9 /lib/ld.so\n"
            ),
            [
                ((0x40_0000, 0x40_1000), 0),
                ((0x7f0f_ffff_0000, 0x7f10_0000_0000), 0),
                ((0x7f10_0000_4000, 0x7f10_0000_6000), 0x1_4000),
                ((0x7f20_0000_1000, 0x7f20_0000_2000), 0x1000),
            ]
        );
        // The program is in `APART`: new mappings at the top are QEMU's.
        assert_eq!(
            ranges(
                "4000000000-4000801000 rw-p 00000000 00:00 0 \n\
                 7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
            ),
            [((0x40_0000_0000, 0x40_0080_1000), 0)]
        );
    }
}
