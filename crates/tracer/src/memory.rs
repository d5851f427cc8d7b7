//! The guest's memory: finds the place of a host address.
//!
//! QEMU keeps the memory in blocks, one for each backend (`-numa node,memdev=…`) or one in all. It numbers the bytes of all
//! blocks consecutively; this number is a byte's *place*. The blocks of the guest's memory come first,
//! in the order of the command line, so a byte's place is its guest-physical
//! address, less the hole below 4 GiB. Memory of devices and firmware follows.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

use nearpage_wire::trace::Event;

use crate::output::Output;
use crate::qemu::{HostAddress, MemoryBlock, MemoryInterface};

/// Binary logarithm of the bytes of a guest's page.
pub const PAGE_BITS: u32 = 12;

struct Block {
    host: Range<u64>,
    /// Place of its first byte.
    place: u64,
    name: Vec<u8>,
}

/// All blocks, by host address.
pub struct Memory(Vec<Block>);

struct FoundBlocks<'a> {
    qemu: &'a MemoryInterface,
    blocks: Vec<Block>,
}

/// # Safety
/// QEMU calls it with a block of its own, and `found` as given.
unsafe extern "C" fn found(block: *mut MemoryBlock, found: *mut c_void) -> c_int {
    // SAFETY: `Memory::find` gives it, and waits.
    let found = unsafe { &mut *found.cast::<FoundBlocks>() };
    let qemu = found.qemu;
    // SAFETY: QEMU's functions, with its block.
    let (host, place, bytes, name) = unsafe {
        (
            (qemu.get_host_addr)(block) as u64,
            (qemu.get_offset)(block),
            (qemu.get_used_length)(block),
            (qemu.get_idstr)(block),
        )
    };
    let name = if name.is_null() {
        Vec::new()
    } else {
        // SAFETY: a terminated string of QEMU's.
        unsafe { CStr::from_ptr(name) }.to_bytes().to_vec()
    };
    found.blocks.push(Block {
        host: host..host + bytes,
        place,
        name,
    });
    0
}

impl Memory {
    /// The guest's memory as it is now.
    pub fn find(qemu: &MemoryInterface) -> Self {
        let mut all = FoundBlocks {
            qemu,
            blocks: Vec::new(),
        };
        // SAFETY: QEMU's function; `found` gets what it is for.
        unsafe { (qemu.foreach_block)(found, (&raw mut all).cast()) };
        all.blocks.sort_by_key(|block| block.host.start);
        Self(all.blocks)
    }

    /// The place of a host address; `None` if it is not in the guest's memory.
    #[inline]
    pub fn place(&self, host: u64) -> Option<u64> {
        let after = self.0.partition_point(|block| block.host.start <= host);
        let block = self.0.get(after.wrapping_sub(1))?;
        (host < block.host.end).then(|| block.place + (host - block.host.start))
    }

    /// Writes an event for every block, as a mapping at the addresses of its places.
    pub fn write_blocks(&self, output: &Output) {
        for block in &self.0 {
            let event = Event::Map {
                protection: 3,
                flags: 2,
                virtual_time: 0,
                address: block.place,
                length: block.host.end - block.host.start,
                offset: 0,
                device: 0,
                inode: 0,
                path: &block.name,
            };
            output.event(0, 0, &event);
        }
    }
}

/// The host address of an access to memory.
///
/// # Safety
/// It is what `get_hwaddr` gave in the callback that runs, and no access to a device.
#[inline]
pub unsafe fn host_address(address: *const HostAddress) -> u64 {
    // `struct qemu_plugin_hwaddr` of 7.2 (include/qemu/plugin-memory.h): two flags, then a union
    // with the pointer. QEMU's accessor looks for the block under a lock, and returns a wrong offset
    // if there are several blocks.
    // SAFETY: as this function's.
    unsafe { *address.cast::<u64>().add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_through_the_blocks() {
        let block = |host, bytes, place| Block {
            host: host..host + bytes,
            place,
            name: vec![],
        };
        let memory = Memory(vec![
            block(0x7000, 0x2000, 0x4000),
            block(0xa000, 0x4000, 0),
        ]);
        let places = [0x6fff, 0x7000, 0x8fff, 0x9000, 0xa010, 0xdfff, 0xe000];
        assert_eq!(
            places.map(|host| memory.place(host)),
            [
                None,
                Some(0x4000),
                Some(0x5fff),
                None,
                Some(0x10),
                Some(0x3fff),
                None
            ]
        );
    }
}
