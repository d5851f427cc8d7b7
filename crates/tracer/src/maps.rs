//! Mappings that were there before the first system call, from `/proc/self/maps`, and files behind
//! descriptors.

mod line;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use nearpage_wire::trace::Event;

use crate::process::Process;
pub use line::{Mapping, mapping};

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

/// The file behind a descriptor.
pub fn file_of(descriptor: u64) -> Option<MappedFile> {
    let link = format!("/proc/self/fd/{}", descriptor as i32);
    let metadata = fs::metadata(&link).ok()?;
    let path = fs::read_link(&link).ok()?;
    Some(MappedFile {
        device: metadata.dev(),
        inode: metadata.ino(),
        path: path.into_os_string().into_vec(),
    })
}

/// The process's maps file as it is now.
pub fn read() -> Vec<u8> {
    fs::read("/proc/self/maps").unwrap_or_default()
}

/// What stands in the maps file for an address of the program, and how many bytes from there on: what
/// shared memory without a file is known by, the same in every process that has it.
pub fn at(address: u64, guest_base: u64) -> Option<(MappedFile, u64)> {
    let now = read();
    let address = address + guest_base;
    let mut mappings = now.split(|byte| *byte == b'\n').filter_map(mapping);
    let found = mappings.find(|mapping| (mapping.range.0..mapping.range.1).contains(&address))?;
    let file = MappedFile {
        device: found.device,
        inode: found.inode,
        path: found.path.to_vec(),
    };
    Some((file, found.range.1 - address))
}

/// Events for the program's mappings: those that were not there before QEMU loaded it, at guest
/// addresses.
///
/// QEMU's own memory lies near the top of the address space, where it puts no program of 47 bits
/// that was not asked to be there; memory above `QEMU_OWN` is taken for QEMU's.
pub fn tell_initial(process: &Process, before: &[u8], guest_base: u64) {
    const QEMU_OWN: u64 = 0x7000_0000_0000;
    let now = read();
    let known: Vec<(u64, u64)> = before
        .split(|byte| *byte == b'\n')
        .filter_map(mapping)
        .map(|mapping| mapping.range)
        .collect();
    for mapping in now.split(|byte| *byte == b'\n').filter_map(mapping) {
        let (first, end) = mapping.range;
        let was_there = known
            .iter()
            .any(|(known_first, known_end)| first < *known_end && *known_first < end);
        let Some(address) = first.checked_sub(guest_base) else {
            continue;
        };
        if was_there || address >= QEMU_OWN || mapping.path.starts_with(b"[v") {
            continue;
        }
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
