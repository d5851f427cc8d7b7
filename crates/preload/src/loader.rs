//! Answers of the dynamic loader: the next definition of a function behind this library's, the addresses of
//! modules, and the size of static thread-local storage.
//!
//! Symbols are looked up here rather than with `dlsym`, which allocates, has a newer version in
//! every other C library, and may itself be replaced. `dl_iterate_phdr` has none of these flaws, so the real `malloc` is
//! known before the first call of it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

#[repr(C)]
struct ModuleInfo {
    base: usize,
    name: *const c_char,
    segments: *const Segment,
    segment_count: u16,
}

#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: extern "C" fn(*const ModuleInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const PT_GNU_RELRO: u32 = 0x6474_e552;

const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;

/// Kinds of relocations that are the address of a function: `R_…_JUMP_SLOT`, `R_…_GLOB_DAT`.
#[cfg(target_arch = "x86_64")]
const CALLS: [u32; 2] = [7, 6];
#[cfg(target_arch = "aarch64")]
const CALLS: [u32; 2] = [1026, 1025];

/// A variable of this library: the module that contains it is this library.
static OWN_IMAGE: u8 = 1;

/// A loaded module, while the loader shows it.
struct Module<'info> {
    info: &'info ModuleInfo,
}

impl Module<'_> {
    fn segments(&self) -> &[Segment] {
        if self.info.segments.is_null() {
            return &[];
        }
        // SAFETY: the loader describes a loaded module's program headers.
        unsafe { core::slice::from_raw_parts(self.info.segments, self.info.segment_count.into()) }
    }

    /// Lowest and highest address of its segments.
    fn range(&self) -> [usize; 2] {
        let mut range = [usize::MAX, 0];
        for segment in self
            .segments()
            .iter()
            .filter(|segment| segment.kind == PT_LOAD)
        {
            let start = self.info.base.wrapping_add(segment.address as usize);
            range = [
                range[0].min(start),
                range[1].max(start.wrapping_add(segment.memory_bytes as usize)),
            ];
        }
        range
    }

    fn contains(&self, address: usize) -> bool {
        let [low, high] = self.range();
        (low..high).contains(&address)
    }

    /// Entries of its dynamic section: tag and value.
    fn each_dynamic(&self, mut visit: impl FnMut(usize, usize)) {
        let Some(dynamic) = self
            .segments()
            .iter()
            .find(|segment| segment.kind == PT_DYNAMIC)
        else {
            return;
        };
        let mut entry = self.info.base.wrapping_add(dynamic.address as usize) as *const [usize; 2];
        // SAFETY: the dynamic section of a loaded module, up to its terminator.
        unsafe {
            while (*entry)[0] != 0 {
                visit((*entry)[0], (*entry)[1]);
                entry = entry.add(1);
            }
        }
    }

    /// A pointer in its dynamic section. The loader has relocated them, except in the kernel's own module.
    fn pointer(&self, value: usize) -> usize {
        if value < self.info.base {
            self.info.base.wrapping_add(value)
        } else {
            value
        }
    }

    /// The words through which it calls functions of other modules, with their names.
    fn each_call(&self, mut visit: impl FnMut(&CStr, usize)) {
        let (mut symbols, mut strings) = (0, 0);
        // The relocations of the procedure linkage table, and those of data: calls compiled with `-fno-plt` are among these.
        let (mut tables, mut bytes) = ([0; 2], [0; 2]);
        self.each_dynamic(|tag, value| match tag {
            DT_STRTAB => strings = self.pointer(value),
            DT_SYMTAB => symbols = self.pointer(value),
            DT_JMPREL => tables[0] = self.pointer(value),
            DT_RELA => tables[1] = self.pointer(value),
            DT_PLTRELSZ => bytes[0] = value,
            DT_RELASZ => bytes[1] = value,
            _ => {}
        });
        if symbols == 0 || strings == 0 {
            return;
        }
        for (table, bytes) in tables.into_iter().zip(bytes) {
            let count = if table == 0 {
                0
            } else {
                bytes / size_of::<Relocation>()
            };
            for index in 0..count {
                // SAFETY: the tables of a loaded module: relocations name symbols, and these have names.
                let (relocation, name) = unsafe {
                    let relocation = &*(table as *const Relocation).add(index);
                    let symbol = &*(symbols as *const Symbol).add((relocation.info >> 32) as usize);
                    let name = (strings + symbol.name as usize) as *const c_char;
                    (relocation, CStr::from_ptr(name))
                };
                if CALLS.contains(&(relocation.info as u32)) {
                    visit(
                        name,
                        self.info.base.wrapping_add(relocation.offset as usize),
                    );
                }
            }
        }
    }

    /// Is this word read-only since the module was relocated?
    fn is_sealed(&self, address: usize, page_bytes: usize) -> bool {
        let page = |address: u64| self.info.base.wrapping_add(address as usize) & !(page_bytes - 1);
        self.segments().iter().any(|segment| {
            segment.kind == PT_GNU_RELRO
                && (page(segment.address)..page(segment.address + segment.memory_bytes))
                    .contains(&address)
        })
    }

    /// The address of a function it defines under its default version.
    fn symbol(&self, name: &CStr) -> Option<usize> {
        let (mut symbols, mut strings, mut hash, mut versions) = (0, 0, 0, 0);
        self.each_dynamic(|tag, value| match tag {
            DT_STRTAB => strings = self.pointer(value),
            DT_SYMTAB => symbols = self.pointer(value),
            0x6fff_fef5 => hash = self.pointer(value),
            0x6fff_fff0 => versions = self.pointer(value),
            _ => {}
        });
        // SAFETY: the tables of a loaded module.
        unsafe {
            if symbols == 0 || strings == 0 || hash == 0 {
                return None;
            }
            let wanted = name.to_bytes().iter().fold(5381u32, |sum, byte| {
                sum.wrapping_mul(33).wrapping_add((*byte).into())
            });
            let [buckets, first, bloom_words, bloom_shift] = *(hash as *const [u32; 4]);
            if buckets == 0 || bloom_words == 0 {
                return None;
            }
            let bloom = (hash + 16) as *const u64;
            let word = *bloom.add((wanted / 64 % bloom_words) as usize);
            if word >> (wanted % 64) & 1 == 0
                || word >> ((wanted >> (bloom_shift & 31)) % 64) & 1 == 0
            {
                return None;
            }
            let bucket_table = bloom.add(bloom_words as usize).cast::<u32>();
            let chain = bucket_table.add(buckets as usize);
            let mut index = *bucket_table.add((wanted % buckets) as usize);
            if index < first {
                return None;
            }
            let mut hidden = None;
            loop {
                let entry = *chain.add((index - first) as usize);
                let symbol = &*(symbols as *const Symbol).add(index as usize);
                if entry | 1 == wanted | 1
                    && symbol.section != 0
                    && CStr::from_ptr((strings + symbol.name as usize) as *const c_char) == name
                {
                    let mut address = self.info.base.wrapping_add(symbol.value as usize);
                    if symbol.info & 15 == 10 {
                        // An indirect function: its value is the function that chooses it.
                        address =
                            core::mem::transmute::<usize, extern "C" fn() -> usize>(address)();
                    }
                    let default = versions == 0
                        || *(versions as *const u16).add(index as usize) & 0x8000 == 0;
                    if default {
                        return Some(address);
                    }
                    hidden = Some(address);
                }
                if entry & 1 == 1 {
                    return hidden;
                }
                index += 1;
            }
        }
    }
}

/// Calls `visit` for every module in the loader's order until it returns false. The loader's lock
/// is held meanwhile: `visit` neither allocates nor waits.
fn each_module<F: FnMut(&Module<'_>) -> bool>(mut visit: F) {
    extern "C" fn callback<F: FnMut(&Module<'_>) -> bool>(
        info: *const ModuleInfo,
        _: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `data` is the closure below, and the loader passes a valid description.
        let (visit, info) = unsafe { (&mut *data.cast::<F>(), &*info) };
        c_int::from(!visit(&Module { info }))
    }
    // SAFETY: the callback gets the closure it expects.
    unsafe { dl_iterate_phdr(callback::<F>, (&raw mut visit).cast()) };
}

/// Stores, for every name, the address of its first definition behind this library in the loader's
/// order; leaves the slots of names without one alone.
pub fn find_next(names: &[&CStr], slots: &[AtomicUsize]) {
    let mut behind = false;
    each_module(|module| {
        if !behind {
            behind = module.contains(&raw const OWN_IMAGE as usize);
            return true;
        }
        for (name, slot) in names.iter().zip(slots) {
            if slot.load(Ordering::Relaxed) == 0
                && let Some(address) = module.symbol(name)
            {
                slot.store(address, Ordering::Release);
            }
        }
        true
    });
}

/// The first definition of `name` in any module, this library's left out.
pub fn find(name: &CStr) -> Option<usize> {
    let mut found = None;
    each_module(|module| {
        if !module.contains(&raw const OWN_IMAGE as usize) {
            found = module.symbol(name);
        }
        found.is_none()
    });
    found
}

/// The definition of `name` where but one module has any, this library's left out.
pub fn find_only(name: &CStr) -> Option<usize> {
    let (mut found, mut count) = (None, 0);
    each_module(|module| {
        if !module.contains(&raw const OWN_IMAGE as usize)
            && let Some(address) = module.symbol(name)
        {
            (found, count) = (Some(address), count + 1);
        }
        true
    });
    found.filter(|_| count == 1)
}

/// A word through which a module calls a function of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSlot {
    /// Its address.
    pub address: usize,
    /// It is read-only since the module was relocated.
    pub is_sealed: bool,
}

/// Visits the words through which the module that holds `code` calls functions of others, with their names. The
/// loader's lock is held meanwhile: `visit` neither allocates nor waits.
pub fn each_call(code: usize, page_bytes: usize, mut visit: impl FnMut(&CStr, CallSlot)) {
    each_module(|module| {
        let there = module.contains(code);
        if there {
            module.each_call(|name, address| {
                let is_sealed = module.is_sealed(address, page_bytes);
                visit(name, CallSlot { address, is_sealed });
            });
        }
        !there
    });
}

/// Visits those words of every module but this library's, with the range of the module.
pub fn each_call_of_others(page_bytes: usize, mut visit: impl FnMut(&CStr, CallSlot, [usize; 2])) {
    each_module(|module| {
        if !module.contains(&raw const OWN_IMAGE as usize) {
            let range = module.range();
            module.each_call(|name, address| {
                let is_sealed = module.is_sealed(address, page_bytes);
                visit(name, CallSlot { address, is_sealed }, range);
            });
        }
        true
    });
}

/// This library's own definition of `name`.
pub fn own(name: &CStr) -> Option<usize> {
    let mut found = None;
    each_module(|module| {
        let is_own = module.contains(&raw const OWN_IMAGE as usize);
        if is_own {
            found = module.symbol(name);
        }
        !is_own
    });
    found
}

/// Does the module that holds `address` export a function of that name?
pub fn defines(address: usize, name: &CStr) -> bool {
    let mut answer = false;
    each_module(|module| {
        let there = module.contains(address);
        if there {
            answer = module.symbol(name).is_some();
        }
        !there
    });
    answer
}

/// The address range of the module that holds `address`.
pub fn module_range(address: usize) -> Option<[usize; 2]> {
    let mut range = None;
    each_module(|module| {
        if module.contains(address) {
            range = Some(module.range());
        }
        range.is_none()
    });
    range
}

/// Is `address` in a module's executable segment?
pub fn is_code(address: usize) -> bool {
    const PF_X: u32 = 1;
    segment_flags(address) & PF_X != 0
}

/// May the word at `address` be read, in a segment of a module?
pub fn is_readable(address: usize) -> bool {
    const PF_R: u32 = 4;
    segment_flags(address) & PF_R != 0 && segment_flags(address | 7) & PF_R != 0
}

/// Flags of the loaded segment that holds `address`; 0 where none does.
fn segment_flags(address: usize) -> u32 {
    let mut flags = 0;
    each_module(|module| {
        let mut loaded = module
            .segments()
            .iter()
            .filter(|segment| segment.kind == PT_LOAD);
        let holder = loaded.find(|segment| {
            let start = module.info.base.wrapping_add(segment.address as usize);
            address.wrapping_sub(start) < segment.memory_bytes as usize
        });
        flags = holder.map_or(0, |segment| segment.flags);
        holder.is_none()
    });
    flags
}

/// Bytes of static thread-local storage of the modules loaded now, each padded to its alignment.
pub fn static_tls_bytes() -> usize {
    let mut bytes = 0usize;
    each_module(|module| {
        for segment in module
            .segments()
            .iter()
            .filter(|segment| segment.kind == PT_TLS)
        {
            bytes = bytes
                .saturating_add(segment.memory_bytes as usize)
                .next_multiple_of((segment.alignment as usize).max(1));
        }
        true
    });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_go_through_words_that_lead_there() {
        unsafe extern "C" {
            fn getenv(name: *const c_char) -> *const c_char;
        }
        let code = calls_go_through_words_that_lead_there as *const () as usize;
        let mut slots = [CallSlot::default(); 4];
        let mut found = slots.iter_mut();
        each_call(code, 4096, |name, slot| {
            if name == c"getenv"
                && let Some(place) = found.next()
            {
                *place = slot;
            }
        });
        assert_ne!(slots[0], CallSlot::default());
        // SAFETY: a word of this program's, which the loader has filled in.
        let led_to = unsafe { *(slots[0].address as *const usize) };
        let [low, high] = module_range(code).unwrap();
        assert!(led_to == getenv as *const () as usize || (low..high).contains(&led_to));
        assert_eq!(find_only(c"getenv"), find(c"getenv"));
        assert_eq!(find_only(c"nearpage_no_such_function"), None);
    }

    #[test]
    fn code_is_told_from_data() {
        static CONSTANT: [usize; 2] = [1; 2];
        let constant = &raw const CONSTANT as usize;
        assert!(is_code(is_code as *const () as usize));
        assert!(is_readable(constant) && !is_code(constant));
        assert!(!is_readable(8) && !is_code(&raw const constant as usize));
    }

    #[test]
    fn symbols_are_those_of_the_library() {
        unsafe extern "C" {
            fn getenv(name: *const c_char) -> *const c_char;
        }
        let address = find(c"getenv").unwrap();
        assert_eq!(address, getenv as *const () as usize);
        assert_eq!(find(c"nearpage_no_such_function"), None);
        assert!(defines(address, c"setenv") && !defines(address, c"nearpage_no_such_function"));
        let [low, high] = module_range(address).unwrap();
        assert!(low < address && address < high);
        let slots = [const { AtomicUsize::new(0) }; 2];
        find_next(&[c"malloc", c"nearpage_no_such_function"], &slots);
        assert_ne!(slots[0].load(Ordering::Relaxed), 0);
        assert_eq!(slots[1].load(Ordering::Relaxed), 0);
        assert!(static_tls_bytes() >= 128);
    }
}
