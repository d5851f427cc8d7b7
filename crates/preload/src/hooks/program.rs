//! Hooks of functions that load or unload code or execute another program, the markers, and this library's
//! constructor and destructor.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use super::entry::{announce, argument, enter};
use crate::launch::{self, Program};
use crate::place::unmatched_memory;
use crate::real::{self, Function};
use crate::seccomp;
use crate::sys::number;
use crate::thread::Thread;
use crate::tracker::TRACKER;
use crate::{deepbind, environment};

enter! {
    dlclose => dlclose_at, "rsi", "x1";
    nearpage_begin => begin_at, "rdi", "x0";
    nearpage_end => end_at, "rdi", "x0";
}

announce! {
    dlopen => note_loading;
    dlmopen => note_loading;
    dlsym => note_lookup;
    execl => note_replacing;
    execlp => note_replacing;
    execle => note_replacing;
    prctl => note_control;
    syscall => note_system_call;
    setuid => note_new_user;
    seteuid => note_new_user;
    setreuid => note_new_user;
    setresuid => note_new_user;
    chroot => note_new_root;
    setns => note_new_root;
    unshare => note_new_root;
}

extern "C" fn note_loading(at: usize, function: Function) -> usize {
    let flags = match function {
        Function::dlmopen => 2,
        _ => 1,
    };
    if let Some(mut observed) = TRACKER.observe(at) {
        // SAFETY: the entry stub keeps the arguments there.
        deepbind::loading(unsafe { *argument(at, flags) });
        TRACKER.loading(&mut observed, at);
    }
    real::entry(function)
}

/// `dlsym`: the program is about to use a library that a `dlopen` has loaded.
extern "C" fn note_lookup(at: usize, function: Function) -> usize {
    // SAFETY: the thread's own state.
    if unsafe { (*Thread::current()).loading_at } != 0 {
        drop(TRACKER.observe(at));
    }
    real::entry(function)
}

/// `execl`, `execlp` and `execle`, with any number of arguments: `execle` takes an environment after them, the others use the process's.
extern "C" fn note_replacing(at: usize, function: Function) -> usize {
    replacing(at);
    // SAFETY: the entry stub keeps the arguments there. The first is a path, the others are strings up to a null pointer.
    unsafe {
        let path = *argument(at, 0) as *const c_char;
        match function {
            Function::execle => {
                let mut number = 1;
                while *argument(at, number) != 0 {
                    number += 1;
                }
                let given = argument(at, number + 1).cast::<*const *const c_char>();
                *given = launch::environment(&Program::Path(path), *given);
            }
            Function::execlp => launch::adjust_own(&Program::Name(path)),
            _ => launch::adjust_own(&Program::Path(path)),
        }
    }
    real::entry(function)
}

/// `prctl`, which may install a filter of system calls.
extern "C" fn note_control(at: usize, function: Function) -> usize {
    // SAFETY: the entry stub keeps the arguments there.
    let [option, mode, filter] = [0, 1, 2].map(|number| unsafe { *argument(at, number) });
    if option as u32 as usize == seccomp::PRCTL_OPTION
        && seccomp::is_installed_by_prctl(mode, filter)
    {
        TRACKER.filter_is_installed(at);
    }
    real::entry(function)
}

/// `syscall`, which may do what functions that are noted here do.
extern "C" fn note_system_call(at: usize, function: Function) -> usize {
    // SAFETY: the entry stub keeps the arguments there.
    let [call, first, second, third] = [0, 1, 2, 3].map(|number| unsafe { *argument(at, number) });
    if seccomp::is_installed_by(call, [first, second, third]) {
        TRACKER.filter_is_installed(at);
    }
    match call {
        number::SETUID => TRACKER.user_changes(at, first as u32),
        number::SETREUID | number::SETRESUID => TRACKER.user_changes(at, second as u32),
        number::CHROOT | number::SETNS => TRACKER.access_may_end(at),
        number::UNSHARE if may_lose_folder(first) => TRACKER.access_may_end(at),
        _ => {}
    }
    real::entry(function)
}

/// `setuid` and its like: another user may not write into the log's folder.
extern "C" fn note_new_user(at: usize, function: Function) -> usize {
    let effective = match function {
        Function::setreuid | Function::setresuid => 1,
        _ => 0,
    };
    // SAFETY: the entry stub keeps the arguments there.
    TRACKER.user_changes(at, unsafe { *argument(at, effective) } as u32);
    real::entry(function)
}

/// `chroot` and its like: the log's folder may have no path afterwards.
extern "C" fn note_new_root(at: usize, function: Function) -> usize {
    // SAFETY: the entry stub keeps the argument there.
    let flags = unsafe { *argument(at, 0) };
    if !matches!(function, Function::unshare) || may_lose_folder(flags) {
        TRACKER.access_may_end(at);
    }
    real::entry(function)
}

/// Does `unshare` with these flags change paths or rights?
fn may_lose_folder(flags: usize) -> bool {
    const CLONE_NEWNS: usize = 0x2_0000;
    const CLONE_NEWUSER: usize = 0x1000_0000;
    flags & (CLONE_NEWNS | CLONE_NEWUSER) != 0
}

/// The process, or its child by `vfork`, becomes another program.
fn replacing(at: usize) {
    TRACKER.replacing(at);
    unmatched_memory::leave();
}

/// Defines functions that execute another program with an environment that the caller passes.
macro_rules! replace {
    ($($name:ident($($argument:ident: $type:ty),*; $environment:ident; $($last:ident: $last_type:ty)?) of $program:expr;)*) => {$(
        /// Stands in front of the function of this name.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($argument: $type,)*
            arguments: *const c_void,
            $environment: *const *const c_char,
            $($last: $last_type)?
        ) -> c_int {
            replacing(&raw const arguments as usize);
            // SAFETY: the caller's promise.
            unsafe {
                let environment = launch::environment(&$program, $environment);
                real::$name($($argument,)* arguments, environment, $($last)?)
            }
        }
    )*};
}

replace! {
    execve(path: *const c_char; environment;) of Program::Path(path);
    execvpe(file: *const c_char; environment;) of Program::Name(file);
    fexecve(fd: c_int; environment;) of Program::At(fd, c"".as_ptr());
    execveat(folder: c_int, path: *const c_char; environment; flags: c_int) of Program::At(folder, path);
}

/// Defines functions that execute another program with the process's environment. If the new program needs a changed
/// environment, the function that takes an environment is called instead.
macro_rules! replace_with_own {
    ($($name:ident => $with_environment:ident, $program:path;)*) => {$(
        /// Stands in front of the function of this name.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, arguments: *const c_void) -> c_int {
            replacing(&raw const arguments as usize);
            // SAFETY: the caller's promise.
            unsafe {
                let own = environment::own();
                let environment = launch::environment(&$program(path), own);
                match environment == own {
                    true => real::$name(path, arguments),
                    false => real::$with_environment(path, arguments, environment),
                }
            }
        }
    )*};
}

replace_with_own! {
    execv => execve, Program::Path;
    execvp => execvpe, Program::Name;
}

/// Stands in front of `posix_spawn`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const c_void,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unmatched_memory::launching(|| unsafe {
        let environment = launch::environment(&Program::Path(path), environment);
        real::posix_spawn(pid, path, actions, attributes, arguments, environment)
    })
}

/// Stands in front of `posix_spawnp`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const c_void,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unmatched_memory::launching(|| unsafe {
        let environment = launch::environment(&Program::Name(file), environment);
        real::posix_spawnp(pid, file, actions, attributes, arguments, environment)
    })
}

/// What `popen` and `system` execute.
const SHELL: Program = Program::Path(c"/bin/sh".as_ptr());

/// Stands in front of `popen`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> usize {
    // SAFETY: the caller's promise.
    unmatched_memory::launching(|| unsafe {
        launch::adjust_own(&SHELL);
        real::popen(command, mode)
    })
}

/// Stands in front of `system`. A thread that is cancelled in `system` ends with the memory policy that the process was launched with.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unmatched_memory::launching(|| unsafe {
        launch::adjust_own(&SHELL);
        real::system(command)
    })
}

unsafe extern "C" fn dlclose_at(handle: usize, at: usize) -> c_int {
    // SAFETY: as the function itself.
    let result = unsafe { real::dlclose(handle) };
    if let Some(_observed) = TRACKER.observe(at) {
        TRACKER.unloaded();
    }
    result
}

extern "C" fn begin_at(at: usize) {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.mark(&mut observed, 1);
    }
}

extern "C" fn end_at(at: usize) {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.mark(&mut observed, 2);
    }
}

extern "C" fn construct() {
    let place = 0usize;
    TRACKER.constructed(&raw const place as usize);
}

extern "C" fn destruct() {
    let place = 0usize;
    TRACKER.finish(&raw const place as usize);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destruct;
