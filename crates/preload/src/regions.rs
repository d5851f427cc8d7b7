//! The calls by which a program enters parallel regions of OpenMP or makes tasks: each passes a body to the runtime.
//!
//! No function is exported to hook them. An exported `GOMP_parallel` would replace that of every OpenMP runtime in the process.
//! Plugins (of Python, say) bring runtimes of their own, in scopes that this library cannot see, and a team of one
//! runtime whose threads ask another runtime for their numbers computes nonsense. Instead, entries of global offset
//! tables are redirected here: those for the functions below, in modules in which a phase of the plan begins. From here
//! each call goes on to its original target with all its arguments.
//!
//! Only modules that are loaded when the program starts are redirected, as the loader writes the tables of others. An entry
//! that is still unresolved (lazy binding) is resolved here if one module alone defines the function; with several
//! definitions, the right one is not known before the call, and the entry is left alone. Calls that the linker has
//! resolved (a statically linked OpenMP runtime) have no such entry.

use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::loader::{self, CallSlot};
use crate::tracker::TRACKER;
use crate::{message, place, sys};

const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
/// Most words of one module that are redirected.
const SLOTS_MAX: usize = 64;

/// Defines a stub for each function: it passes the body, in register `$x86` or `$aarch`, to [`body_begins`], and then jumps
/// to the real function with all arguments as they were, including those on the stack and in vector registers.
macro_rules! entries {
    ($($name:ident $text:literal $x86:literal $aarch:literal;)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum Entry { $($name),* }

        /// Functions that take a body, and their stubs.
        const ENTRIES: &[(&CStr, unsafe extern "C" fn())] = &[$(($text, $name)),*];

        $(
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    "sub rsp, 184",
                    ".cfi_adjust_cfa_offset 184",
                    "movups [rsp], xmm0",
                    "movups [rsp + 16], xmm1",
                    "movups [rsp + 32], xmm2",
                    "movups [rsp + 48], xmm3",
                    "movups [rsp + 64], xmm4",
                    "movups [rsp + 80], xmm5",
                    "movups [rsp + 96], xmm6",
                    "movups [rsp + 112], xmm7",
                    "mov [rsp + 128], rdi",
                    "mov [rsp + 136], rsi",
                    "mov [rsp + 144], rdx",
                    "mov [rsp + 152], rcx",
                    "mov [rsp + 160], r8",
                    "mov [rsp + 168], r9",
                    "mov [rsp + 176], rax",
                    concat!("mov rdi, ", $x86),
                    "mov esi, {entry}",
                    "call {begins}",
                    "mov r11, rax",
                    "mov rdi, [rsp + 128]",
                    "mov rsi, [rsp + 136]",
                    "mov rdx, [rsp + 144]",
                    "mov rcx, [rsp + 152]",
                    "mov r8, [rsp + 160]",
                    "mov r9, [rsp + 168]",
                    "mov rax, [rsp + 176]",
                    "movups xmm0, [rsp]",
                    "movups xmm1, [rsp + 16]",
                    "movups xmm2, [rsp + 32]",
                    "movups xmm3, [rsp + 48]",
                    "movups xmm4, [rsp + 64]",
                    "movups xmm5, [rsp + 80]",
                    "movups xmm6, [rsp + 96]",
                    "movups xmm7, [rsp + 112]",
                    "add rsp, 184",
                    ".cfi_adjust_cfa_offset -184",
                    "jmp r11",
                    ".cfi_endproc",
                    begins = sym body_begins,
                    entry = const Entry::$name as usize,
                );
            }

            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    "stp x29, x30, [sp, #-208]!",
                    ".cfi_def_cfa_offset 208",
                    ".cfi_offset x29, -208",
                    ".cfi_offset x30, -200",
                    "mov x29, sp",
                    "stp x0, x1, [sp, #16]",
                    "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]",
                    "stp x6, x7, [sp, #64]",
                    "stp q0, q1, [sp, #80]",
                    "stp q2, q3, [sp, #112]",
                    "stp q4, q5, [sp, #144]",
                    "stp q6, q7, [sp, #176]",
                    concat!("mov x0, ", $aarch),
                    "mov x1, {entry}",
                    "bl {begins}",
                    "mov x16, x0",
                    "ldp q6, q7, [sp, #176]",
                    "ldp q4, q5, [sp, #144]",
                    "ldp q2, q3, [sp, #112]",
                    "ldp q0, q1, [sp, #80]",
                    "ldp x6, x7, [sp, #64]",
                    "ldp x4, x5, [sp, #48]",
                    "ldp x2, x3, [sp, #32]",
                    "ldp x0, x1, [sp, #16]",
                    "ldp x29, x30, [sp], #208",
                    ".cfi_def_cfa sp, 0",
                    ".cfi_restore x29",
                    ".cfi_restore x30",
                    "br x16",
                    ".cfi_endproc",
                    begins = sym body_begins,
                    entry = const Entry::$name as usize,
                );
            }
        )*

        /// The original target of each stub's calls; 0: no call is redirected to the stub.
        static REAL: [AtomicUsize; ENTRIES.len()] = [const { AtomicUsize::new(0) }; ENTRIES.len()];
    };
}

// The body is the first argument of GCC's functions (libgomp_g.h), and the third of LLVM's (kmp.h), of a task the sixth.
entries! {
    gomp_parallel c"GOMP_parallel" "rdi" "x0";
    gomp_parallel_start c"GOMP_parallel_start" "rdi" "x0";
    gomp_parallel_reductions c"GOMP_parallel_reductions" "rdi" "x0";
    gomp_sections c"GOMP_parallel_sections" "rdi" "x0";
    gomp_sections_start c"GOMP_parallel_sections_start" "rdi" "x0";
    gomp_static c"GOMP_parallel_loop_static" "rdi" "x0";
    gomp_static_start c"GOMP_parallel_loop_static_start" "rdi" "x0";
    gomp_dynamic c"GOMP_parallel_loop_dynamic" "rdi" "x0";
    gomp_dynamic_start c"GOMP_parallel_loop_dynamic_start" "rdi" "x0";
    gomp_guided c"GOMP_parallel_loop_guided" "rdi" "x0";
    gomp_guided_start c"GOMP_parallel_loop_guided_start" "rdi" "x0";
    gomp_runtime c"GOMP_parallel_loop_runtime" "rdi" "x0";
    gomp_runtime_start c"GOMP_parallel_loop_runtime_start" "rdi" "x0";
    gomp_nonmonotonic_dynamic c"GOMP_parallel_loop_nonmonotonic_dynamic" "rdi" "x0";
    gomp_nonmonotonic_guided c"GOMP_parallel_loop_nonmonotonic_guided" "rdi" "x0";
    gomp_nonmonotonic_runtime c"GOMP_parallel_loop_nonmonotonic_runtime" "rdi" "x0";
    gomp_maybe_nonmonotonic_runtime c"GOMP_parallel_loop_maybe_nonmonotonic_runtime" "rdi" "x0";
    gomp_teams c"GOMP_teams_reg" "rdi" "x0";
    gomp_task c"GOMP_task" "rdi" "x0";
    gomp_taskloop c"GOMP_taskloop" "rdi" "x0";
    gomp_taskloop_ull c"GOMP_taskloop_ull" "rdi" "x0";
    kmpc_fork_call c"__kmpc_fork_call" "rdx" "x2";
    kmpc_fork_call_if c"__kmpc_fork_call_if" "rdx" "x2";
    kmpc_fork_teams c"__kmpc_fork_teams" "rdx" "x2";
    kmpc_omp_task_alloc c"__kmpc_omp_task_alloc" "r9" "x5";
}

/// Notes that a region is entered or a task made; returns the call's original target.
extern "C" fn body_begins(body: usize, entry: usize) -> usize {
    if place::awaits_function() {
        let place = 0usize;
        TRACKER.function_begins(body, &raw const place as usize);
    }
    // The stubs' numbers are those of the table.
    REAL.get(entry).map_or(0, |real| real.load(Acquire))
}

/// Redirects to the stubs the calls by which the module that holds `code` enters regions.
pub fn redirect_calls(code: usize, page_bytes: usize) {
    let mut slots = [(0, CallSlot::default()); SLOTS_MAX];
    let mut count = 0;
    loader::each_call(code, page_bytes, |name, slot| {
        let entry = ENTRIES.iter().position(|(known, _)| *known == name);
        if let (Some(entry), Some(place)) = (entry, slots.get_mut(count)) {
            *place = (entry, slot);
            count += 1;
        }
    });
    for (entry, slot) in slots.iter().take(count) {
        if let Some((name, _)) = ENTRIES.get(*entry)
            && redirect_call(code, *slot, *entry, page_bytes).is_none()
        {
            message::line(format_args!(
                "phases of the plan that begin with a call of {} do not begin: where it leads is not known (several \
                 OpenMP runtimes are loaded: LD_BIND_NOW=1 has it known at start), or its word cannot be written",
                name.to_str().unwrap_or("an OpenMP runtime")
            ));
        }
    }
}

/// Redirects one word to its stub; `None` if that is not safe.
fn redirect_call(code: usize, slot: CallSlot, entry: usize, page_bytes: usize) -> Option<()> {
    let (name, stub) = ENTRIES.get(entry)?;
    let (stub, real) = (*stub as usize, REAL.get(entry)?);
    // SAFETY: a word of a loaded module, eight bytes long and aligned; the loader may be writing it.
    let word = unsafe { AtomicUsize::from_ptr(slot.address as *mut usize) };
    let [low, high] = loader::module_range(code)?;
    let led_to = word.load(Acquire);
    // The word is redirected already, for another phase of the module, or no module defines the function.
    if led_to == stub || led_to == 0 {
        return Some(());
    }
    let goes_on = match (low..high).contains(&led_to) {
        // An address in the module's own procedure linkage table: the loader has not looked the function up yet.
        true => loader::find_only(name)?,
        false => loader::module_range(led_to).map(|_| led_to)?,
    };
    if let Err(known) = real.compare_exchange(0, goes_on, AcqRel, Acquire)
        && known != goes_on
    {
        return None;
    }
    let page = slot.address & !(page_bytes - 1);
    let protect = |protection: usize| {
        let arguments = [page, page_bytes, protection, 0, 0, 0];
        // SAFETY: a page that the loader made read-only once it was relocated, and for a moment is not.
        unsafe { sys::call(sys::number::MPROTECT, arguments) }
    };
    if slot.is_sealed {
        protect(PROT_READ | PROT_WRITE).ok()?;
    }
    word.store(stub, Release);
    if slot.is_sealed {
        let _ = protect(PROT_READ);
    }
    Some(())
}
