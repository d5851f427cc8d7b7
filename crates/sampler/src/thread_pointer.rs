//! Finds the thread pointer of other processes' threads: on x86-64, the base of FS. perf's samples do not carry it
//! (`arch/x86/kernel/perf_regs.c`), and only a tracer that stops the thread can query it.
//!
//! This module stops no thread. As each thread begins, glibc tells the kernel the address of the thread's list of
//! robust futexes, which processes with permission can query (`get_robust_list(2)`). The list is part of glibc's
//! control block of the thread (`struct pthread`, nptl/descr.h), to which the thread pointer points. The block's first
//! word is its own address, as the x86-64 ABI for thread-local storage requires, and so is the third (`tcbhead_t`,
//! sysdeps/x86_64/nptl/tls.h). So the block is searched before the list, with any version of glibc. Threads of
//! programs without glibc (Go's, most of musl's) have no such list: their accesses relative to FS stay undecoded.

use rustc_hash::FxHashMap;

use crate::address_space::read_memory;

/// The search begins this far before the list, which is about 700 bytes into the block (0x2e0 in all versions so far).
const BEFORE_BYTES: u64 = 2048;
const PAGE_BYTES: u64 = 4096;

/// Thread pointers that were queried.
#[derive(Debug, Default)]
pub(crate) struct ThreadPointers {
    /// Thread pointers by thread; `None` if unknown.
    known: FxHashMap<u32, Option<u64>>,
}

impl ThreadPointers {
    /// Thread pointer of the running thread `tid` of process `pid`; `None` if unknown.
    pub fn of(&mut self, pid: u32, tid: u32) -> Option<u64> {
        let ask = || find(robust_list(tid)?, |begin, end| read_memory(pid, begin, end));
        *self.known.entry(tid).or_insert_with(ask)
    }

    /// Forgets a thread that has ended, or executes another program.
    pub fn forget(&mut self, tid: u32) {
        self.known.remove(&tid);
    }
}

/// Address of the control block before a list; `read` reads memory between two addresses.
fn find(list: u64, read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<u64> {
    let page = list & !(PAGE_BYTES - 1);
    let first = list.saturating_sub(BEFORE_BYTES);
    let from = |begin: u64| last_block(begin, &read(begin, list)?);
    // Memory before the list's page may not be mapped.
    from(first.max(page)).or_else(|| (first < page).then(|| from(first))?)
}

/// The last address in `bytes` that begins a control block. The first byte is at address `begin`.
fn last_block(begin: u64, bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    let aligned = (begin.next_multiple_of(16) - begin) as usize;
    let places = (aligned..bytes.len()).step_by(16).rev();
    places
        .map(|at| (at, begin + at as u64))
        .find(|(at, address)| word(*at) == Some(*address) && word(at + 16) == Some(*address))
        .map(|(_, address)| address)
}

/// Address of a thread's list of robust futexes.
fn robust_list(tid: u32) -> Option<u64> {
    let (mut head, mut length) = (0u64, 0usize);
    // SAFETY: the kernel writes a pointer and a size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid as libc::c_long,
            &raw mut head,
            &raw mut length,
        )
    };
    (result == 0 && head != 0).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a block at `block` in two pages from `0x1000` on, of which memory from `mapped` on can be read.
    fn found(block: u64, list: u64, mapped: u64) -> Option<u64> {
        let mut memory = vec![0u8; 0x2000];
        for at in [block, block + 16] {
            memory[(at - 0x1000) as usize..][..8].copy_from_slice(&block.to_ne_bytes());
        }
        find(list, |begin, end| {
            let bytes = memory.get((begin - 0x1000) as usize..(end - 0x1000) as usize)?;
            (begin >= mapped).then(|| bytes.to_vec())
        })
    }

    #[test]
    fn a_block_is_what_points_to_itself_before_the_list() {
        assert_eq!(found(0x26c0, 0x29a0, 0x1000), Some(0x26c0));
        assert_eq!(found(0x26c0, 0x29a0, 0x2000), Some(0x26c0));
        // Across a page boundary, with and without the first page.
        assert_eq!(found(0x1f40, 0x2220, 0x1000), Some(0x1f40));
        assert_eq!(found(0x1f40, 0x2220, 0x2000), None);
        // After the list, and far before it.
        assert_eq!(found(0x2a00, 0x29a0, 0x1000), None);
        assert_eq!(found(0x2000, 0x2e00, 0x1000), None);
        let other = [0x100u64, 0, 0x120, 0, 0x120, 0, 0, 0];
        let bytes: Vec<u8> = other.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(last_block(0x100, &bytes), None);
    }

    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    #[test]
    fn threads_of_this_program_have_theirs() {
        let own = || {
            let pointer: u64;
            // SAFETY: by the ABI, the word at the thread pointer is the thread pointer itself.
            unsafe {
                std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly))
            };
            // SAFETY: the call takes no pointers.
            (unsafe { libc::gettid() } as u32, pointer)
        };
        let mut pointers = ThreadPointers::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(own()).unwrap();
            let _ = ended.recv();
        });
        for (tid, pointer) in [own(), receiver.recv().unwrap()] {
            assert_eq!(pointers.of(std::process::id(), tid), Some(pointer));
        }
        drop(end);
        thread.join().unwrap();
        // A thread that does not exist.
        assert_eq!(pointers.of(std::process::id(), u32::MAX), None);
    }
}
