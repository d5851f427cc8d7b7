//! The programs and libraries in this process: which one an address belongs to, and which of the
//! plan's modules it is.
//!
//! The table is refreshed at start and when modules come or go; look-ups take no lock. Its entries
//! are written once and never move. A module that was unloaded keeps its entry, with an empty
//! address range, in case it is loaded again. Modules beyond [`MODULES_MAX`] are not recognised.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use nearpage_wire::is_runtime_module;

use crate::place::memory::Zeroed;
use crate::plan::{Identity, Plan};
use crate::sys;

/// Most modules that a process may load in all its time.
pub const MODULES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 128;
/// Most modules of the plan that one loaded module may match (by build-id, by name).
const PLAN_MODULES_MAX: usize = 4;
const NOTE_BYTES_MAX: usize = 1 << 16;

/// Facts of a loaded module that never change.
#[derive(Clone, Copy)]
struct Description {
    build_id: [u8; 32],
    build_id_bytes: usize,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    /// Indices in the plan, of which the first `plan_modules_count` are valid.
    plan_modules: [u32; PLAN_MODULES_MAX],
    plan_modules_count: usize,
    is_runtime: bool,
}

impl Description {
    fn identity(&self) -> Identity<'_> {
        Identity {
            build_id: self.build_id.get(..self.build_id_bytes).unwrap_or_default(),
            name: self.name.get(..self.name_bytes).unwrap_or_default(),
        }
    }
}

/// A module that is or was loaded.
pub struct Module {
    /// Added to a virtual address of the file to get one of the process.
    bias: AtomicUsize,
    low: AtomicUsize,
    /// 0: not loaded.
    high: AtomicUsize,
    /// Range of the writable segments, and of the part that becomes read-only after relocation.
    writable: [AtomicUsize; 2],
    relro: [AtomicUsize; 2],
    /// Number of the latest refresh in which the loader listed it.
    seen: AtomicU32,
    /// It was loaded, and its static objects are not placed yet.
    is_new: AtomicBool,
    description: UnsafeCell<Description>,
}

// SAFETY: `description` is written before the table's count covers the entry, and only read since.
unsafe impl Sync for Module {}

impl Module {
    fn description(&self) -> &Description {
        // SAFETY: see `Sync`.
        unsafe { &*self.description.get() }
    }

    /// Build-id and file name.
    pub fn identity(&self) -> Identity<'_> {
        self.description().identity()
    }

    /// Is it the plan's module `index`?
    pub fn is(&self, index: u32) -> bool {
        let description = self.description();
        description
            .plan_modules
            .iter()
            .take(description.plan_modules_count)
            .any(|module| *module == index)
    }

    /// Does it belong to the language runtimes ([`is_runtime_module`])?
    pub fn is_runtime(&self) -> bool {
        self.description().is_runtime
    }

    /// The address in the process of `size_bytes` bytes at a virtual address of the file; `None` if the module is not loaded
    /// or ends before them.
    pub fn address(&self, file_address: u64, size_bytes: u64) -> Option<usize> {
        let address = self
            .bias
            .load(Acquire)
            .checked_add(usize::try_from(file_address).ok()?)?;
        let end = address.checked_add(usize::try_from(size_bytes).ok()?)?;
        (address >= self.low.load(Acquire) && end <= self.high.load(Acquire)).then_some(address)
    }

    /// Does the range lie in memory of the module that the program may write to?
    pub fn is_writable(&self, start: usize, end: usize) -> bool {
        let [low, high] = &self.writable;
        let [relro_low, relro_high] = &self.relro;
        start >= low.load(Relaxed)
            && end <= high.load(Relaxed)
            && (start >= relro_high.load(Relaxed) || end <= relro_low.load(Relaxed))
    }
}

/// An address as a module and the virtual address in its file.
#[derive(Clone, Copy)]
pub struct Place<'table> {
    /// The module.
    pub module: &'table Module,
    /// Virtual address in the file.
    pub file_address: u64,
}

/// The table. Zeroed memory is an empty one.
pub struct Modules {
    count: AtomicUsize,
    /// Counts the refreshes that found a change.
    generation: AtomicU32,
    /// The loader's count of loads and unloads at the last refresh.
    changes: AtomicU64,
    is_refreshing: AtomicBool,
    is_stale: AtomicBool,
    entries: [Module; MODULES_MAX],
}

// SAFETY: integers, booleans and atomics, for all of which zero is a value.
unsafe impl Zeroed for Modules {}

/// What the loader's callback gets.
struct Visit<'a> {
    table: &'a Modules,
    plan: &'a Plan<'a>,
    refresh: u32,
    first: bool,
}

impl Modules {
    /// A number that changes whenever a module was loaded or unloaded.
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    fn entries(&self) -> &[Module] {
        self.entries
            .get(..self.count.load(Acquire))
            .unwrap_or_default()
    }

    /// The program itself: the loader lists it first.
    pub fn executable(&self) -> Option<&Module> {
        self.entries().first()
    }

    /// The module at an address of the process.
    pub fn find(&self, address: usize) -> Option<Place<'_>> {
        let module = self.entries().iter().find(|module| {
            address < module.high.load(Acquire) && address >= module.low.load(Acquire)
        })?;
        Some(Place {
            module,
            file_address: address.wrapping_sub(module.bias.load(Acquire)) as u64,
        })
    }

    /// Every module, loaded or not.
    pub fn all(&self, visit: impl FnMut(&Module)) {
        self.entries().iter().for_each(visit);
    }

    /// Reads the loader's list. If another thread is doing so, this call returns at once and that thread reads it again.
    /// `placed` is called, outside the loader's lock, for every module that is new.
    pub fn refresh(&self, plan: &Plan<'_>, mut placed: impl FnMut(&Module)) {
        self.is_stale.store(true, SeqCst);
        while self.is_stale.load(SeqCst) && !self.is_refreshing.swap(true, SeqCst) {
            self.is_stale.store(false, SeqCst);
            let refresh = self.generation.load(Relaxed).wrapping_add(1).max(1);
            let mut visit = Visit {
                table: self,
                plan,
                refresh,
                first: true,
            };
            // SAFETY: the callback gets the visit that lives until the call returns.
            let changed =
                unsafe { dl_iterate_phdr(visit_module, (&raw mut visit).cast()) } != UNCHANGED;
            if changed {
                for module in self
                    .entries()
                    .iter()
                    .filter(|module| module.seen.load(Relaxed) != refresh)
                {
                    module.high.store(0, Release);
                }
                self.generation.store(refresh, Release);
                for module in self
                    .entries()
                    .iter()
                    .filter(|module| module.is_new.swap(false, AcqRel))
                {
                    placed(module);
                }
            }
            self.is_refreshing.store(false, SeqCst);
        }
    }

    /// Ends a refresh that was under way at a fork: the thread that did it is not in the child.
    pub fn forked_child(&self) {
        self.is_refreshing.store(false, SeqCst);
    }

    /// Takes note of a module that the loader lists.
    fn note(&self, plan: &Plan<'_>, refresh: u32, found: &Description, range: Range) {
        let loaded = |module: &Module| {
            module.bias.store(range.bias, Release);
            for (bounds, (low, high)) in [
                (&module.writable, range.writable),
                (&module.relro, range.relro),
            ] {
                bounds[0].store(low, Relaxed);
                bounds[1].store(high, Relaxed);
            }
            module.seen.store(refresh, Relaxed);
            module.is_new.store(true, Relaxed);
            module.low.store(range.low, Release);
            module.high.store(range.high, Release);
        };
        let same = |module: &&Module| module.identity() == found.identity();
        let alive = |module: &&Module| module.high.load(Relaxed) != 0;
        if let Some(module) = self
            .entries()
            .iter()
            .filter(same)
            .find(|module| alive(module) && module.low.load(Relaxed) == range.low)
        {
            module.seen.store(refresh, Relaxed);
        } else if let Some(module) = self
            .entries()
            .iter()
            .filter(same)
            .find(|module| !alive(module))
        {
            loaded(module);
        } else if let Some(module) = self.entries.get(self.count.load(Relaxed)) {
            let mut description = *found;
            for index in 0..plan.modules.len() as u32 {
                if plan.module_is(index, found.identity())
                    && let Some(slot) = description
                        .plan_modules
                        .get_mut(description.plan_modules_count)
                {
                    *slot = index;
                    description.plan_modules_count += 1;
                }
            }
            // SAFETY: beyond the count, so nobody reads it; only the refreshing thread is here.
            unsafe { *module.description.get() = description };
            loaded(module);
            self.count.fetch_add(1, Release);
        }
    }
}

/// Where a module lies.
struct Range {
    bias: usize,
    low: usize,
    high: usize,
    writable: (usize, usize),
    relro: (usize, usize),
}

/// Result of `dl_iterate_phdr` if nothing was loaded or unloaded since the last refresh.
const UNCHANGED: c_int = 1;

#[repr(C)]
struct LoadedModule {
    bias: usize,
    name: *const c_char,
    headers: *const ProgramHeader,
    headers_count: u16,
    loads: u64,
    unloads: u64,
}

#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    virtual_address: u64,
    physical_address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_R: u32 = 4;
const PF_W: u32 = 2;

// `loader` declares it with fewer of the fields.
#[allow(clashing_extern_declarations)]
unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const LoadedModule, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

unsafe extern "C" fn visit_module(
    loaded: *const LoadedModule,
    bytes: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: `refresh` passed its visit; the loader passes a module that is valid during the call.
    let (visit, loaded) = unsafe { (&mut *data.cast::<Visit<'_>>(), &*loaded) };
    let is_first = core::mem::replace(&mut visit.first, false);
    if is_first && bytes >= size_of::<LoadedModule>() {
        let changes = loaded.loads << 32 | (loaded.unloads & u64::from(u32::MAX));
        let is_known = visit.table.generation.load(Relaxed) != 0;
        // musl counts from 0, glibc from the number of modules that a program starts with.
        if visit.table.changes.swap(changes, Relaxed) == changes && is_known {
            return UNCHANGED;
        }
    }
    // SAFETY: the loader's own array of program headers.
    let headers =
        unsafe { core::slice::from_raw_parts(loaded.headers, loaded.headers_count.into()) };
    let Some(range) = range(headers, loaded.bias) else {
        return 0;
    };
    let mut description = Description {
        build_id: [0; 32],
        build_id_bytes: 0,
        name: [0; NAME_BYTES_MAX],
        name_bytes: 0,
        plan_modules: [0; PLAN_MODULES_MAX],
        plan_modules_count: 0,
        is_runtime: false,
    };
    // SAFETY: the headers of a module that is loaded there.
    unsafe { describe_build(headers, loaded.bias, &mut description) };
    let path = if loaded.name.is_null() {
        &[]
    } else {
        // SAFETY: the loader's own terminated string.
        unsafe { CStr::from_ptr(loaded.name) }.to_bytes()
    };
    let mut executable = [0; 4096];
    let path = if path.is_empty() && is_first {
        executable_path(&mut executable)
    } else {
        path
    };
    description.name_bytes = copy(&mut description.name, file_name(path));
    description.is_runtime = is_runtime_module(description.identity().name);
    visit
        .table
        .note(visit.plan, visit.refresh, &description, range);
    0
}

fn is_load(header: &&ProgramHeader) -> bool {
    header.kind == PT_LOAD
}

/// The end of a segment, as a virtual address of the file.
fn end(header: &ProgramHeader) -> u64 {
    header.virtual_address.saturating_add(header.memory_bytes)
}

/// The addresses of a module's segments; `None` if no segment is loaded.
fn range(headers: &[ProgramHeader], bias: usize) -> Option<Range> {
    let low = headers
        .iter()
        .filter(is_load)
        .map(|header| header.virtual_address)
        .min()?;
    let high = headers.iter().filter(is_load).map(end).max().unwrap_or(low);
    let at = |file_address: u64| bias.wrapping_add(file_address as usize);
    let relro = headers.iter().find(|header| header.kind == PT_GNU_RELRO);
    let writable = |header: &&ProgramHeader| header.kind == PT_LOAD && header.flags & PF_W != 0;
    Some(Range {
        bias,
        low: at(low & !4095),
        // Memory is mapped in whole pages, and unnamed data of a module is recognised by its pages.
        high: at(high.saturating_add(4095) & !4095),
        writable: (
            headers
                .iter()
                .filter(writable)
                .map(|header| at(header.virtual_address))
                .min()
                .unwrap_or(0),
            headers
                .iter()
                .filter(writable)
                .map(|header| at(end(header)))
                .max()
                .unwrap_or(0),
        ),
        relro: relro.map_or((0, 0), |header| {
            (at(header.virtual_address), at(end(header)))
        }),
    })
}

/// The build id, from the notes of a module.
///
/// # Safety
/// The headers are those of a module that is loaded at `bias`.
unsafe fn describe_build(headers: &[ProgramHeader], bias: usize, description: &mut Description) {
    for note in headers.iter().filter(|header| header.kind == PT_NOTE) {
        let readable = headers.iter().filter(is_load).any(|segment| {
            segment.flags & PF_R != 0
                && segment.virtual_address <= note.virtual_address
                && end(note) <= segment.virtual_address.saturating_add(segment.file_bytes)
        });
        if readable && note.memory_bytes as usize <= NOTE_BYTES_MAX {
            // SAFETY: inside a readable segment of a loaded file.
            let notes = unsafe {
                core::slice::from_raw_parts(
                    bias.wrapping_add(note.virtual_address as usize) as *const u8,
                    note.memory_bytes as usize,
                )
            };
            if let Some(id) = build_id(notes, note.align as usize).filter(|id| id.len() <= 32) {
                description.build_id_bytes = copy(&mut description.build_id, id);
            }
        }
    }
}

/// The path of the running program, which the loader lists without a name.
fn executable_path(buffer: &mut [u8; 4096]) -> &[u8] {
    let length = sys::readlink(b"/proc/thread-self/exe\0", buffer).unwrap_or(0);
    buffer.get(..length).unwrap_or_default()
}

fn copy(to: &mut [u8], from: &[u8]) -> usize {
    to.iter_mut()
        .zip(from)
        .map(|(to, from)| *to = *from)
        .count()
}

/// The part of a path after its last slash.
pub fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The GNU build-id among the notes of one segment; `align` is the segment's (4, or 8).
pub fn build_id(mut notes: &[u8], align: usize) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let align = if align == 8 { 8 } else { 4 };
    loop {
        let word = |at: usize| Some(u32::from_le_bytes(notes.get(at..at + 4)?.try_into().ok()?));
        let (name_bytes, id_bytes, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let name = notes.get(12..12usize.checked_add(name_bytes)?)?;
        let start = 12usize
            .checked_add(name_bytes)?
            .checked_next_multiple_of(align)?;
        let end = start.checked_add(id_bytes)?;
        let id = notes.get(start..end)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(id);
        }
        notes = notes.get(end.checked_next_multiple_of(align)?..)?;
    }
}

#[cfg(test)]
mod tests;
