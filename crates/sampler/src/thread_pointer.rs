//! The thread pointer of other processes' threads: the base of FS on x86-64, which perf's samples do
//! not carry (`arch/x86/kernel/perf_regs.c`), and which only a tracer that stops the thread may ask
//! for.
//!
//! Nobody is stopped here. glibc tells the kernel, as each thread begins, where the thread's list of
//! robust futexes is; the kernel tells whoever may read the process (`get_robust_list(2)`). The list
//! is a part of glibc's control block of the thread (`struct pthread`, nptl/descr.h), and that is what
//! the thread pointer points to: its first word is its own address, as the x86-64 ABI for thread-local
//! storage wants it, and so is its third (`tcbhead_t`, sysdeps/x86_64/nptl/tls.h). So the block is
//! looked for before the list, whatever the version of glibc. Threads of programs without glibc (Go's,
//! most of musl's) have no such list: what they access relative to FS stays undecoded.

use rustc_hash::FxHashMap;

use crate::address_space::read_memory;

/// The list is about 700 bytes into the block (0x2e0 in all versions so far).
const BEFORE_BYTES: u64 = 2048;
const PAGE_BYTES: u64 = 4096;

/// Those that were asked for.
#[derive(Debug, Default)]
pub(crate) struct ThreadPointers {
    /// By thread; `None`: it can't be told.
    known: FxHashMap<u32, Option<u64>>,
}

impl ThreadPointers {
    /// That of thread `tid` of process `pid`, which is running; `None` where it can't be told.
    pub fn of(&mut self, pid: u32, tid: u32) -> Option<u64> {
        let ask = || find(robust_list(tid)?, |begin, end| read_memory(pid, begin, end));
        *self.known.entry(tid).or_insert_with(ask)
    }

    /// The thread has ended, or begun another program.
    pub fn forget(&mut self, tid: u32) {
        self.known.remove(&tid);
    }
}

/// The control block before a list, in memory as `read` has it from one address up to another.
fn find(list: u64, read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<u64> {
    let page = list & !(PAGE_BYTES - 1);
    let first = list.saturating_sub(BEFORE_BYTES);
    let from = |begin: u64| last_block(begin, &read(begin, list)?);
    // What is before the list's page may not be there.
    from(first.max(page)).or_else(|| (first < page).then(|| from(first))?)
}

/// The last address in `bytes`, the first of which is at `begin`, that is a control block's.
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

/// Where a thread's list of robust futexes is.
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

    /// A block at `block` in two pages from `0x1000` on, of which those from `mapped` on are there.
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
        // Over the boundary of a page, which may be the first there is.
        assert_eq!(found(0x1f40, 0x2220, 0x1000), Some(0x1f40));
        assert_eq!(found(0x1f40, 0x2220, 0x2000), None);
        // Not after it, nor far before it.
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
            // SAFETY: the ABI has the thread pointer itself there.
            unsafe {
                std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly))
            };
            // SAFETY: no pointers.
            (unsafe { libc::gettid() } as u32, pointer)
        };
        let mut pointers = ThreadPointers::default();
        let (told, telling) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send(own()).unwrap();
            let _ = ended.recv();
        });
        for (tid, pointer) in [own(), telling.recv().unwrap()] {
            assert_eq!(pointers.of(std::process::id(), tid), Some(pointer));
        }
        drop(end);
        thread.join().unwrap();
        // No such thread, no such process.
        assert_eq!(pointers.of(std::process::id(), u32::MAX), None);
    }
}
