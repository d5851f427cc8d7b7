//! Call sites: the stack of an allocation, found through a cache, within a budget of time.
//!
//! The cache is keyed by the return address of the hook and the distance from there to the top of
//! the thread's stack. A wrapper called from two functions with frames of one size gives two stacks
//! with the same key; so an entry also holds *where* on the stack each return address was found,
//! and is a hit only if all of them are still there. A hit is then as reliable as unwinding, and
//! costs one load per frame.
//!
//! Stacks are unwound by libgcc's `_Unwind_Backtrace`. Allocations made by libgcc itself or by the
//! loader, which may hold the locks that unwinding takes, are never unwound.

mod capture;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::CALL_SITE_DEPTH_MAX;

use crate::real::{self, Function};
use crate::{loader, sys};
use capture::{Capture, visit_frame};

/// Unwinding time that every process may use in any case, unless the environment sets another, in nanoseconds.
pub const ALLOWANCE_NS: u64 = 50_000_000;
/// Beyond that, unwinding may take the elapsed time divided by this.
const SHARE: u64 = 100;
const BUCKETS: usize = 1 << 14;
/// Most entries of a bucket's chain that are compared.
const CHAIN_MAX: usize = 64;
/// Place of a return address that was not found on the stack.
const NO_PLACE: u32 = u32::MAX;

/// Where the program called a hook.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The return address.
    pub address: usize,
    /// Where on the stack the call was made: the address of the return address on x86-64, of the
    /// hook's frame record on AArch64.
    pub at: usize,
}

/// A call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its number, from 1; 0: unknown.
    pub number: u32,
    /// Its return addresses, innermost first.
    pub frames: &'static [usize],
    /// The site is new: its definition must be logged.
    pub is_new: bool,
    /// The stack was not unwound, because the budget of time was used up.
    pub no_stack: bool,
}

/// A site in the arena; its frames follow.
#[repr(C)]
struct Definition {
    next: u32,
    number: u32,
    hash: u32,
    generation: u32,
    frame_count: usize,
}

/// A cached stack in the arena; `frame_count` places follow.
#[repr(C)]
struct CachedStack {
    next: u32,
    definition: u32,
    address: usize,
    depth: usize,
    generation: u32,
    frame_count: u32,
}

/// The sites of a process.
#[derive(Debug)]
pub struct CallSites {
    arena: AtomicUsize,
    arena_bytes: AtomicUsize,
    used: AtomicUsize,
    definitions: AtomicUsize,
    stacks: AtomicUsize,
    last_number: AtomicU32,
    generation: AtomicU32,
    backtrace: AtomicUsize,
    get_ip: AtomicUsize,
    get_cfa: AtomicUsize,
    not_unwound: [[AtomicUsize; 2]; 2],
    start_ns: AtomicU64,
    allowance_ns: AtomicU64,
    spent_ns: AtomicU64,
    /// Stacks unwound.
    pub unwound: AtomicU64,
    /// Stacks that were not unwound, because the budget of time was used up.
    pub left_out: AtomicU64,
}

fn hash(words: impl Iterator<Item = usize>) -> u32 {
    let hash = words.fold(0u64, |hash, word| {
        (hash.rotate_left(5) ^ word as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    (hash >> 32) as u32
}

impl CallSites {
    /// No sites, and no memory for any.
    pub const fn new() -> Self {
        Self {
            arena: AtomicUsize::new(0),
            arena_bytes: AtomicUsize::new(0),
            used: AtomicUsize::new(64),
            definitions: AtomicUsize::new(0),
            stacks: AtomicUsize::new(0),
            last_number: AtomicU32::new(0),
            generation: AtomicU32::new(1),
            backtrace: AtomicUsize::new(0),
            get_ip: AtomicUsize::new(0),
            get_cfa: AtomicUsize::new(0),
            not_unwound: [const { [const { AtomicUsize::new(0) }; 2] }; 2],
            start_ns: AtomicU64::new(0),
            allowance_ns: AtomicU64::new(ALLOWANCE_NS),
            spent_ns: AtomicU64::new(0),
            unwound: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Reserves `bytes` of address space, whose pages cost memory when they are first used; false if the kernel refuses.
    pub fn reserve(&self, start_ns: u64, bytes: usize) -> bool {
        let (Ok(arena), Ok(tables)) = (sys::reserve(bytes), sys::reserve(BUCKETS * 8)) else {
            return false;
        };
        self.arena_bytes.store(bytes, Ordering::Relaxed);
        self.start_ns.store(start_ns, Ordering::Relaxed);
        self.arena.store(arena, Ordering::Relaxed);
        self.definitions.store(tables, Ordering::Relaxed);
        self.stacks.store(tables + BUCKETS * 4, Ordering::Release);
        true
    }

    /// Sets the time for unwinding that does not depend on the elapsed time.
    pub fn allow(&self, allowance_ns: u64) {
        self.allowance_ns.store(allowance_ns, Ordering::Relaxed);
    }

    /// Loads the unwinder. Until then, and where none is installed, a site is its return address alone. Must
    /// be called at a point where the program could call `dlopen` as well.
    pub fn load_unwinder(&self) {
        const RTLD_NOW: c_int = 2;
        let name = c"libgcc_s.so.1";
        // SAFETY: the functions are called as the C library declares them.
        let handle = unsafe {
            if real::exists(Function::dlopen) {
                real::dlopen(name.as_ptr(), RTLD_NOW)
            } else if real::exists(Function::libc_dlopen_mode) {
                real::libc_dlopen_mode(name.as_ptr(), RTLD_NOW | 0x8000_0000u32 as c_int)
            } else {
                0
            }
        };
        if handle == 0 {
            return;
        }
        let (Some(backtrace), Some(get_ip), Some(get_cfa)) = (
            loader::find(c"_Unwind_Backtrace"),
            loader::find(c"_Unwind_GetIP"),
            loader::find(c"_Unwind_GetCFA"),
        ) else {
            return;
        };
        let loader_range = loader::find(c"__tls_get_addr").and_then(loader::module_range);
        let ranges = [loader::module_range(backtrace), loader_range];
        for (slots, range) in self.not_unwound.iter().zip(ranges) {
            for (slot, bound) in slots.iter().zip(range.unwrap_or_default()) {
                slot.store(bound, Ordering::Relaxed);
            }
        }
        self.get_ip.store(get_ip, Ordering::Relaxed);
        self.get_cfa.store(get_cfa, Ordering::Relaxed);
        self.backtrace.store(backtrace, Ordering::Release);
    }

    /// Gives all sites new numbers: after modules were unloaded, an address may belong to other code, and a forked
    /// process's log lacks the definitions.
    pub fn forget(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// The site of an allocation made by `caller` on a stack whose top is `stack_top` (0: not on
    /// the thread's own stack). With `whole`, the stack is unwound whatever the budget.
    pub fn site(&self, caller: Caller, stack_top: usize, whole: bool, now_ns: u64) -> Site {
        let generation = self.generation.load(Ordering::Relaxed);
        let depth = stack_top.saturating_sub(caller.at);
        let key = hash([caller.address, depth].into_iter());
        if depth != 0
            && let Some(site) = self.cached(caller, depth, key, generation)
        {
            return site;
        }
        let backtrace = self.backtrace.load(Ordering::Acquire);
        let by_address = [caller.address];
        let held_locks = self.not_unwound.iter().any(|[low, high]| {
            (low.load(Ordering::Relaxed)..high.load(Ordering::Relaxed)).contains(&caller.address)
        });
        if backtrace == 0 || held_locks {
            return self
                .define(&by_address, generation)
                .map_or(Site::UNKNOWN, |(site, _)| site);
        }
        let spent = self.spent_ns.load(Ordering::Relaxed);
        let elapsed = now_ns.saturating_sub(self.start_ns.load(Ordering::Relaxed));
        let allowance = self.allowance_ns.load(Ordering::Relaxed);
        let budget = allowance.saturating_add(elapsed / SHARE);
        if spent > budget && !whole {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            let site = self
                .define(&by_address, generation)
                .map_or(Site::UNKNOWN, |(site, _)| site);
            return Site {
                no_stack: true,
                ..site
            };
        }
        let capture = self.unwind(backtrace, caller, if depth == 0 { 0 } else { stack_top });
        self.unwound.fetch_add(1, Ordering::Relaxed);
        let cost = sys::clock_ns().saturating_sub(now_ns);
        self.spent_ns.fetch_add(cost, Ordering::Relaxed);
        let frames = capture
            .frames
            .get(..capture.count)
            .filter(|frames| !frames.is_empty())
            .unwrap_or(&by_address);
        let Some((site, definition)) = self.define(frames, generation) else {
            return Site::UNKNOWN;
        };
        if depth != 0 && capture.count > 0 {
            self.cache(
                caller,
                depth,
                key,
                generation,
                definition,
                capture.places.get(..capture.count).unwrap_or_default(),
            );
        }
        site
    }

    fn unwind(&self, backtrace: usize, caller: Caller, stack_top: usize) -> Capture {
        // SAFETY: the addresses are those of libgcc's functions of these types.
        unsafe {
            let mut capture = Capture {
                caller,
                get_ip: core::mem::transmute::<usize, extern "C" fn(*mut c_void) -> usize>(
                    self.get_ip.load(Ordering::Relaxed),
                ),
                get_cfa: core::mem::transmute::<usize, extern "C" fn(*mut c_void) -> usize>(
                    self.get_cfa.load(Ordering::Relaxed),
                ),
                found: false,
                last_cfa: 0,
                stack_top,
                count: 0,
                frames: [0; CALL_SITE_DEPTH_MAX],
                places: [NO_PLACE; CALL_SITE_DEPTH_MAX],
            };
            type Visit = extern "C" fn(*mut c_void, *mut c_void) -> c_int;
            let backtrace = core::mem::transmute::<usize, extern "C" fn(Visit, *mut c_void) -> c_int>(
                backtrace,
            );
            backtrace(visit_frame, (&raw mut capture).cast());
            capture
        }
    }

    fn cached(&self, caller: Caller, depth: usize, key: u32, generation: u32) -> Option<Site> {
        let mut offset = self.bucket(&self.stacks, key)?.load(Ordering::Acquire);
        for _ in 0..CHAIN_MAX {
            if offset == 0 {
                return None;
            }
            let arena = self.arena.load(Ordering::Relaxed);
            // SAFETY: offsets in chains are those of complete entries, which never change. Places
            // lie between the caller's stack pointer and the top of its stack, `depth` bytes on.
            unsafe {
                let stack = &*((arena + offset as usize) as *const CachedStack);
                if stack.address == caller.address
                    && stack.depth == depth
                    && stack.generation == generation
                {
                    let definition = &*((arena + stack.definition as usize) as *const Definition);
                    let frames = definition.frames();
                    let places = core::slice::from_raw_parts(
                        (&raw const *stack).add(1).cast::<u32>(),
                        stack.frame_count as usize,
                    );
                    let same = frames.iter().zip(places).all(|(frame, place)| {
                        *place == NO_PLACE
                            || *((caller.at + *place as usize) as *const usize) == *frame
                    });
                    if same {
                        return Some(definition.site(false));
                    }
                }
                offset = stack.next;
            }
        }
        None
    }

    fn cache(
        &self,
        caller: Caller,
        depth: usize,
        key: u32,
        generation: u32,
        definition: u32,
        places: &[u32],
    ) {
        let Some(bucket) = self.bucket(&self.stacks, key) else {
            return;
        };
        let Some((address, offset)) = self.take(size_of::<CachedStack>() + places.len() * 4) else {
            return;
        };
        // SAFETY: fresh memory of that size; it is published by the exchange below.
        unsafe {
            let stack = address as *mut CachedStack;
            stack.write(CachedStack {
                next: 0,
                definition,
                address: caller.address,
                depth,
                generation,
                frame_count: places.len() as u32,
            });
            core::ptr::copy_nonoverlapping(places.as_ptr(), stack.add(1).cast(), places.len());
            publish(bucket, offset, &raw mut (*stack).next);
        }
    }

    /// The site with these frames and its offset in the arena; defines the site if it is new.
    fn define(&self, frames: &[usize], generation: u32) -> Option<(Site, u32)> {
        let hash = hash(frames.iter().copied());
        let arena = self.arena.load(Ordering::Relaxed);
        let bucket = self.bucket(&self.definitions, hash)?;
        let mut offset = bucket.load(Ordering::Acquire);
        while offset != 0 {
            // SAFETY: as in `cached`.
            let definition = unsafe { &*((arena + offset as usize) as *const Definition) };
            if definition.hash == hash
                && definition.generation == generation
                && definition.frames() == frames
            {
                return Some((definition.site(false), offset));
            }
            offset = definition.next;
        }
        let (address, offset) = self.take(size_of::<Definition>() + size_of_val(frames))?;
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        // SAFETY: fresh memory of that size; it is published by the exchange below.
        unsafe {
            let definition = address as *mut Definition;
            definition.write(Definition {
                next: 0,
                number,
                hash,
                generation,
                frame_count: frames.len(),
            });
            core::ptr::copy_nonoverlapping(frames.as_ptr(), definition.add(1).cast(), frames.len());
            publish(bucket, offset, &raw mut (*definition).next);
            Some(((*definition).site(true), offset))
        }
    }

    fn bucket(&self, table: &AtomicUsize, hash: u32) -> Option<&AtomicU32> {
        let table = table.load(Ordering::Acquire);
        // SAFETY: the table has BUCKETS entries and is never unmapped.
        (table != 0)
            .then(|| unsafe { &*((table + (hash as usize % BUCKETS) * 4) as *const AtomicU32) })
    }

    fn take(&self, bytes: usize) -> Option<(usize, u32)> {
        let bytes = bytes.next_multiple_of(8);
        let end = self.arena_bytes.load(Ordering::Relaxed);
        if self.used.load(Ordering::Relaxed) + bytes > end {
            return None;
        }
        let offset = self.used.fetch_add(bytes, Ordering::Relaxed);
        (offset + bytes <= end)
            .then(|| (self.arena.load(Ordering::Relaxed) + offset, offset as u32))
    }

    /// Time spent on unwinding, in nanoseconds.
    pub fn spent_ns(&self) -> u64 {
        self.spent_ns.load(Ordering::Relaxed)
    }
}

impl Default for CallSites {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// A site of which nothing is known.
    pub const UNKNOWN: Self = Self {
        number: 0,
        frames: &[],
        is_new: false,
        no_stack: true,
    };
}

impl Definition {
    fn frames(&self) -> &'static [usize] {
        // SAFETY: the frames follow the definition in the arena, which is never unmapped.
        unsafe { core::slice::from_raw_parts((&raw const *self).add(1).cast(), self.frame_count) }
    }

    fn site(&self, is_new: bool) -> Site {
        Site {
            number: self.number,
            frames: self.frames(),
            is_new,
            no_stack: false,
        }
    }
}

/// Puts an entry at the head of its bucket's chain.
///
/// # Safety
/// `next` is the entry's own link, and nobody else sees the entry yet.
unsafe fn publish(bucket: &AtomicU32, offset: u32, next: *mut u32) {
    let mut head = bucket.load(Ordering::Relaxed);
    loop {
        // SAFETY: the caller's promise.
        unsafe { *next = head };
        match bucket.compare_exchange_weak(head, offset, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

#[cfg(test)]
mod tests;
