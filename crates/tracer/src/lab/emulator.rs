//! The functions of QEMU that the lab calls, and its guest's memory.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::model::{Emulator, HUGE_PAGE_BITS, PAGE_WALK_MAX, PageWalk};
use crate::memory::Memory;
use crate::qemu::{Id, LabInterface, MemoryInterface, SystemInterface};

/// QEMU's functions, and settings that do not change.
pub(super) struct Qemu {
    pub id: Id,
    pub system: SystemInterface,
    pub blocks: MemoryInterface,
    pub lab: LabInterface,
    pub instruction_fs: u64,
    pub line_shift: u32,
    /// File for the counts.
    pub counts: PathBuf,
}

pub(super) static QEMU: OnceLock<Qemu> = OnceLock::new();
/// The guest's memory, once its first block is translated.
pub(super) static MEMORY: OnceLock<Memory> = OnceLock::new();

/// Only called in a callback of the running CPU.
impl Emulator for Qemu {
    fn now_fs(&self) -> u64 {
        // SAFETY: QEMU's function, in a callback of a CPU.
        let count = unsafe { (self.lab.count)() };
        count.saturating_mul(self.instruction_fs)
    }

    fn page_walk(&self, address: u64) -> PageWalk {
        let mut entries = [std::ptr::null(); PAGE_WALK_MAX];
        let mut page_bits = 0;
        // SAFETY: QEMU's function, in a callback of a CPU; it writes as many entries as a walk has at most.
        let count =
            unsafe { (self.lab.page_walk)(address, entries.as_mut_ptr(), &raw mut page_bits) };
        let mut walk = PageWalk {
            huge: page_bits >= HUGE_PAGE_BITS,
            ..PageWalk::default()
        };
        let found = entries.iter().take(usize::try_from(count).unwrap_or(0));
        let found = found.filter_map(|entry| MEMORY.get()?.place(entry.addr() as u64));
        let places = walk.places.iter_mut().zip(found);
        walk.count = places.map(|(place, found)| *place = found).count();
        walk
    }
}
