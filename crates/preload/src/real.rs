//! The real functions behind the hooks: the next definition of each after this library's own.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{loader, message, sys};

macro_rules! functions {
    ($($name:ident $text:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The functions, by position in [`ADDRESSES`].
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy, Debug)]
        #[repr(usize)]
        pub enum Function { $(#[allow(missing_docs)] $name),* }

        const NAMES: &[&CStr] = &[$($text),*];
        const COUNT: usize = NAMES.len();

        $(
            /// The real function of this name.
            ///
            /// # Safety
            /// As the function itself.
            pub unsafe fn $name($($argument: $type),*) -> $result {
                let address = address(Function::$name);
                // SAFETY: the address is that of the function, whose type is declared here.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $result = core::mem::transmute(address);
                    function($($argument),*)
                }
            }
        )*
    };
}

functions! {
    malloc c"malloc" (size: usize) -> usize;
    calloc c"calloc" (count: usize, size: usize) -> usize;
    realloc c"realloc" (old: usize, size: usize) -> usize;
    free c"free" (address: usize) -> ();
    posix_memalign c"posix_memalign" (out: *mut usize, alignment: usize, size: usize) -> c_int;
    aligned_alloc c"aligned_alloc" (alignment: usize, size: usize) -> usize;
    memalign c"memalign" (alignment: usize, size: usize) -> usize;
    valloc c"valloc" (size: usize) -> usize;
    pvalloc c"pvalloc" (size: usize) -> usize;
    malloc_usable_size c"malloc_usable_size" (address: usize) -> usize;
    mmap c"mmap" (address: usize, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: isize) -> usize;
    mremap c"mremap" (old: usize, old_length: usize, new_length: usize, flags: c_int, new: usize) -> usize;
    munmap c"munmap" (address: usize, length: usize) -> c_int;
    brk c"brk" (end: usize) -> c_int;
    sbrk c"sbrk" (increment: isize) -> usize;
    pthread_create c"pthread_create" (thread: *mut usize, attributes: *const c_void, start: usize, argument: usize) -> c_int;
    thrd_create c"thrd_create" (thread: *mut usize, start: usize, argument: usize) -> c_int;
    pthread_attr_init c"pthread_attr_init" (attributes: *mut c_void) -> c_int;
    pthread_attr_destroy c"pthread_attr_destroy" (attributes: *mut c_void) -> c_int;
    pthread_attr_getstack c"pthread_attr_getstack" (attributes: *const c_void, low: *mut usize, bytes: *mut usize) -> c_int;
    pthread_attr_getstacksize c"pthread_attr_getstacksize" (attributes: *const c_void, bytes: *mut usize) -> c_int;
    pthread_key_create c"pthread_key_create" (key: *mut u32, destructor: usize) -> c_int;
    pthread_setspecific c"pthread_setspecific" (key: u32, value: usize) -> c_int;
    fork c"fork" () -> c_int;
    _fork c"_Fork" () -> c_int;
    _exit c"_exit" (status: c_int) -> ();
    dlopen c"dlopen" (name: *const c_char, mode: c_int) -> usize;
    dlmopen c"dlmopen" (space: c_long, name: *const c_char, mode: c_int) -> usize;
    dlclose c"dlclose" (handle: usize) -> c_int;
    prctl c"prctl" () -> c_int;
    syscall c"syscall" () -> c_long;
    setuid c"setuid" () -> c_int;
    seteuid c"seteuid" () -> c_int;
    setreuid c"setreuid" () -> c_int;
    setresuid c"setresuid" () -> c_int;
    chroot c"chroot" () -> c_int;
    setns c"setns" () -> c_int;
    unshare c"unshare" () -> c_int;
    execve c"execve" (path: *const c_char, arguments: *const c_void, environment: *const *const c_char) -> c_int;
    execv c"execv" (path: *const c_char, arguments: *const c_void) -> c_int;
    execvp c"execvp" (file: *const c_char, arguments: *const c_void) -> c_int;
    execvpe c"execvpe" (file: *const c_char, arguments: *const c_void, environment: *const *const c_char) -> c_int;
    execveat c"execveat" (folder: c_int, path: *const c_char, arguments: *const c_void, environment: *const *const c_char, flags: c_int) -> c_int;
    fexecve c"fexecve" (fd: c_int, arguments: *const c_void, environment: *const *const c_char) -> c_int;
    execl c"execl" () -> c_int;
    execlp c"execlp" () -> c_int;
    execle c"execle" () -> c_int;
    posix_spawn c"posix_spawn" (pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const c_void, environment: *const *const c_char) -> c_int;
    posix_spawnp c"posix_spawnp" (pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const c_void, environment: *const *const c_char) -> c_int;
    popen c"popen" (command: *const c_char, mode: *const c_char) -> usize;
    system c"system" (command: *const c_char) -> c_int;
    dlsym c"dlsym" (handle: usize, name: *const c_char) -> usize;
    libc_dlopen_mode c"__libc_dlopen_mode" (name: *const c_char, mode: c_int) -> usize;
    sigaction c"sigaction" (signal: c_int, new: *const c_void, old: *mut c_void) -> c_int;
    signal c"signal" (signal: c_int, handler: usize) -> usize;
    bsd_signal c"bsd_signal" (signal: c_int, handler: usize) -> usize;
    sysv_signal c"__sysv_signal" (signal: c_int, handler: usize) -> usize;
    sigset c"sigset" (signal: c_int, handler: usize) -> usize;
    sigwait c"sigwait" (set: *const c_void, signal: *mut c_int) -> c_int;
    sigwaitinfo c"sigwaitinfo" (set: *const c_void, info: *mut c_void) -> c_int;
    sigtimedwait c"sigtimedwait" (set: *const c_void, info: *mut c_void, timeout: *const c_void) -> c_int;
    signalfd c"signalfd" (fd: c_int, set: *const c_void, flags: c_int) -> c_int;
    gnu_get_libc_version c"gnu_get_libc_version" () -> *const c_char;
}

/// Addresses by [`Function`], 0 while unknown. The assembly hooks jump through it.
pub static ADDRESSES: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// 1 if the word before a heap object is its chunk's size, as in every glibc. The word is then read instead of
/// calling `malloc_usable_size`.
pub static SIZE_BEFORE_POINTER: AtomicUsize = AtomicUsize::new(0);

/// 1 if the allocator has its own `malloc_usable_size`, which may then be called.
static TELLS_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Usable bytes of an object of the real allocator; `None` if the allocator does not tell.
///
/// # Safety
/// `address` is that of an object of the real allocator.
#[inline(always)]
pub unsafe fn usable_bytes(address: usize) -> Option<usize> {
    // SAFETY: the caller's promise; under glibc the chunk's size stands before the object.
    unsafe {
        if SIZE_BEFORE_POINTER.load(Ordering::Relaxed) == 1 {
            Some((*((address - 8) as *const usize) & !7).saturating_sub(8))
        } else if TELLS_SIZE.load(Ordering::Relaxed) == 1 {
            Some(malloc_usable_size(address))
        } else {
            None
        }
    }
}

/// The address of the real function.
pub fn entry(function: Function) -> usize {
    address(function)
}

/// The address of the real function of this name, if it is hooked and known.
pub fn behind(name: &CStr) -> Option<usize> {
    let number = NAMES.iter().position(|known| *known == name)?;
    let address = ADDRESSES.get(number)?.load(Ordering::Acquire);
    (address != 0).then_some(address)
}

/// Does any module define the function?
pub fn exists(function: Function) -> bool {
    resolve();
    slot(function).load(Ordering::Acquire) != 0
}

fn slot(function: Function) -> &'static AtomicUsize {
    // An enum of COUNT variants cannot point elsewhere.
    ADDRESSES.get(function as usize).unwrap_or(&ADDRESSES[0])
}

fn address(function: Function) -> usize {
    let known = slot(function).load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    loader::find_next(NAMES, &ADDRESSES);
    let found = slot(function).load(Ordering::Acquire);
    if found == 0 {
        // The program called a function that exists nowhere but here.
        let name = NAMES
            .get(function as usize)
            .and_then(|name| name.to_str().ok())
            .unwrap_or("?");
        message::line(format_args!(
            "no library behind this one defines {name}, which the program calls"
        ));
        // SAFETY: ends the process, as the loader would have done without this library.
        let _ = unsafe { sys::call(sys::number::EXIT_GROUP, [127, 0, 0, 0, 0, 0]) };
    }
    found
}

/// Finds all functions, once.
#[inline(always)]
pub fn resolve() {
    if slot(Function::malloc).load(Ordering::Acquire) == 0 {
        resolve_now();
    }
}

#[cold]
fn resolve_now() {
    let malloc = address(Function::malloc);
    let glibc = cfg!(target_arch = "x86_64") && loader::defines(malloc, c"gnu_get_libc_version");
    let tells = loader::defines(malloc, c"malloc_usable_size");
    TELLS_SIZE.store(tells.into(), Ordering::Relaxed);
    SIZE_BEFORE_POINTER.store(glibc.into(), Ordering::Release);
}
