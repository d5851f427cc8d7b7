//! The plugin's entry point, and the callbacks of QEMU's user-mode emulator.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpage_wire::trace::{COUNT_AGAIN_MARK, LEAVE_OUT_MARK};
use nearpage_wire::tracer_setup::Setup;

use crate::calls::AfterFork;
use crate::dependences::FlowBuilder;
use crate::error::StartError;
use crate::instructions::{at, instruction_text, is_atomic, is_string_instruction};
use crate::process::Process;
use crate::qemu::{self, ALL_ACCESSES, AccessKind, Block, Id, Info, NO_REGISTERS, StoreBit};
use crate::thread::{Code, Run, Thread};
use crate::vcpus::{self, ThreadGuard, Vcpu};
use crate::{guest, lab, maps, messages};

/// How long the end of the trace waits for threads in system calls. Such a thread may be waiting for one that has stopped.
const CALLS_MAX: Duration = Duration::from_secs(2);
/// Blocks after which a thread's accesses count again in any case, because a signal handler may have jumped out of
/// the library. The library's longest work, finding the unwinder, takes about a tenth of this.
const LEFT_OUT_BLOCKS_MAX: u32 = 1 << 20;
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// The maps file before the program was loaded.
static MAPS_BEFORE: OnceLock<Vec<u8>> = OnceLock::new();
/// Host address minus guest address of code, + 1; 0: no block has been translated.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);
/// First and last address, + 1, of the preload library's code, whose accesses do not count; 0: it is not loaded.
static OWN_CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Locked while a thread is made or ends, and while all threads are ended. A forked child uses another mutex: a thread that
/// exists only in its parent may have locked this one.
static ENDING: AtomicPtr<Mutex<()>> = AtomicPtr::new(&raw const FIRST_ENDING as *mut Mutex<()>);
static FIRST_ENDING: Mutex<()> = Mutex::new(());

fn ending() -> MutexGuard<'static, ()> {
    // SAFETY: a static or a leaked one, and only read.
    let mutex = unsafe { &*ENDING.load(Relaxed) };
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn process() -> Option<&'static Process> {
    // SAFETY: null, or a process that was leaked.
    unsafe { PROCESS.load(Relaxed).as_ref() }
}

/// Host address of the program's address 0.
pub fn guest_base() -> u64 {
    GUEST_BASE.load(Relaxed).saturating_sub(1)
}

/// Sets the range of the preload library's code, before any of it runs.
pub fn own_code(range: Range<u64>) {
    OWN_CODE[0].store(range.start, Relaxed);
    OWN_CODE[1].store(range.end, Relaxed);
}

/// Begins a process's trace.
fn begin(setup: Setup<'static>, folder: &Path, parent_pid: u32) -> std::io::Result<()> {
    keep(Process::new(setup, folder, parent_pid)?);
    Ok(())
}

/// Begins a guest's trace.
pub(crate) fn begin_whole_system(
    setup: Setup<'static>,
    folder: &Path,
) -> std::io::Result<&'static Process> {
    Ok(keep(Process::of_whole_system(setup, folder)?))
}

fn keep(process: Process) -> &'static Process {
    let process: &'static Process = Box::leak(Box::new(process));
    PROCESS.store(std::ptr::from_ref(process).cast_mut(), Relaxed);
    process
}

/// The thread of the CPU, which is made at its first step.
fn thread(vcpu: &Vcpu) -> Option<ThreadGuard<'_>> {
    vcpu.thread(first_step)
}

/// Work for the preload library begins.
///
/// # Safety
/// QEMU calls it, as the ones below.
unsafe extern "C" fn leave_out(vcpu: c_uint, _: *mut c_void) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    let Some(mut thread) = thread(&vcpu) else {
        return;
    };
    if thread.left_out.depth == 0 {
        thread.catch_up();
        thread.left_out.blocks = 0;
        vcpu.stop_tracing();
    }
    thread.left_out.depth += 1;
}

/// Work for the preload library ends.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn left_out_ends(vcpu: c_uint, _: *mut c_void) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    if let Some(mut thread) = vcpu.untraced() {
        thread.left_out.depth -= 1;
        if thread.left_out.depth == 0 {
            vcpu.resume_tracing();
        }
    }
}

#[cold]
fn first_step() -> Option<Box<Thread>> {
    let process = process()?;
    let new_thread = process.take_new_thread();
    if new_thread.number == 0 {
        let before = MAPS_BEFORE.get().map_or(&[][..], Vec::as_slice);
        maps::write_initial(process, before, guest_base());
    }
    Thread::new(process, &new_thread)
}

/// The thread of the guest's CPU.
#[inline]
pub(crate) fn vcpu_thread(vcpu: &Vcpu) -> Option<ThreadGuard<'_>> {
    match vcpu.traced() {
        None => first_step_of_vcpu(vcpu),
        thread => thread,
    }
}

#[cold]
#[inline(never)]
fn first_step_of_vcpu(vcpu: &Vcpu) -> Option<ThreadGuard<'_>> {
    vcpu.thread(|| {
        let process = process()?;
        Thread::new(process, &process.vcpu(vcpu.number()))
    })
}

/// A CPU ends.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn vcpu_ended(_: Id, vcpu: c_uint) {
    let _alone = ending();
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    if let Some(mut thread) = vcpu.remove() {
        thread.end();
        let time = thread.time();
        thread.process.lockstep.remove(thread.member, time);
    }
}

/// A block runs.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn block(vcpu: c_uint, run: *mut c_void) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    let run = Run(run as u64);
    if let Err(vcpu) = vcpu.note_block(run) {
        block_in_full(vcpu, run);
    }
}

/// A block begins that could not be noted: the thread's turn is over, there is no thread yet, or its blocks don't count.
#[cold]
#[inline(never)]
fn block_in_full(vcpu: Vcpu, run: Run) {
    if let Some(mut thread) = vcpu.untraced() {
        thread.left_out.blocks += 1;
        if thread.left_out.blocks < LEFT_OUT_BLOCKS_MAX {
            return;
        }
        thread.left_out.depth = 0;
        vcpu.resume_tracing();
    }
    if let Some(mut thread) = thread(&vcpu) {
        thread.block(run);
    }
}

/// An instruction has accessed memory. That does not count before the thread's first block, nor during work for the preload
/// library.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn access(vcpu: c_uint, kind: AccessKind, address: u64, code: *mut c_void) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    vcpu.access(address, Code(code as u64), kind);
}

/// An instruction of the preload library's code has accessed memory: does nothing. QEMU 7.2 needs a callback for each
/// instruction. After an instruction that leaves the translated code, as a system call does, it would otherwise call
/// that instruction's callback for the next access in a helper.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn own_access(_: c_uint, _: AccessKind, _: u64, _: *mut c_void) {}

/// An instruction has accessed memory atomically. Its store stands for its load, too.
/// (While there is one thread, QEMU calls back for both; later, for one access that reads and writes.)
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn atomic_access(
    vcpu: c_uint,
    kind: AccessKind,
    address: u64,
    code: *mut c_void,
) {
    if kind.is_store(StoreBit::known()) {
        // SAFETY: as this function's.
        unsafe { access(vcpu, kind, address, code) };
    }
}

/// A block is translated.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn translated(_: Id, block: *mut Block) {
    let (Some(qemu), Some(process)) = (qemu::qemu(), process()) else {
        return;
    };
    // SAFETY: QEMU's functions, with the block that QEMU is translating and what belongs to it.
    unsafe {
        let instructions = (qemu.tb_n_insns)(block);
        let address = (qemu.tb_vaddr)(block);
        let mut end = address;
        let mut flow = process.flows.as_ref().map(|_| FlowBuilder::default());
        let own = (OWN_CODE[0].load(Relaxed)..OWN_CODE[1].load(Relaxed)).contains(&address);
        for number in 0..instructions {
            let instruction = (qemu.tb_get_insn)(block, number);
            if instruction.is_null() {
                continue;
            }
            let here = (qemu.insn_vaddr)(instruction);
            let size = (qemu.insn_size)(instruction);
            let bytes = (qemu.insn_haddr)(instruction);
            end = end.max(here + size as u64);
            if GUEST_BASE.load(Relaxed) == 0 && !bytes.is_null() {
                GUEST_BASE.store((bytes as u64).wrapping_sub(here) + 1, Relaxed);
            }
            let text = instruction_text(qemu, instruction, 15);
            if text == LEAVE_OUT_MARK {
                at(qemu, instruction, leave_out, std::ptr::null::<()>());
            } else if text == COUNT_AGAIN_MARK {
                at(qemu, instruction, left_out_ends, std::ptr::null::<()>());
            }
            if let Some(flow) = &mut flow {
                flow.add(number, here, text);
            }
            let code = Code::new(here, number, is_string_instruction(text));
            let callback = match (own, is_atomic(text)) {
                (true, _) => own_access,
                (_, true) => atomic_access,
                _ => access,
            };
            let data = code.0 as *mut c_void;
            (qemu.register_vcpu_mem_cb)(instruction, callback, NO_REGISTERS, ALL_ACCESSES, data);
        }
        if own || instructions == 0 || end <= address {
            return;
        }
        let shift = process.setup.line_bytes.trailing_zeros();
        let lines = ((end - 1) >> shift) - (address >> shift) + 1;
        let run = Run::new(address, instructions, lines);
        if let (Some(flows), Some(flow)) = (&process.flows, flow) {
            flows.add(run, flow.finish());
        }
        let run = run.0 as *mut c_void;
        (qemu.register_vcpu_tb_exec_cb)(block, self::block, NO_REGISTERS, run);
    }
}

/// A thread calls the kernel.
///
/// # Safety
/// QEMU calls it.
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn call(
    _: Id,
    vcpu: c_uint,
    number: i64,
    first: u64,
    second: u64,
    third: u64,
    fourth: u64,
    fifth: u64,
    sixth: u64,
    _: u64,
    _: u64,
) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    if let Some(mut thread) = thread(&vcpu.in_call()) {
        thread.catch_up();
        thread.call(number, [first, second, third, fourth, fifth, sixth]);
    }
}

/// The kernel returns to a thread.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn returned(_: Id, vcpu: c_uint, number: i64, result: i64) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    let vcpu = vcpu.in_call();
    let Some(mut thread) = thread(&vcpu) else {
        return;
    };
    if thread.returned(number, result) == AfterFork::Child {
        let process = thread.process;
        drop(thread);
        ENDING.store(Box::leak(Box::new(Mutex::new(()))), Relaxed);
        // SAFETY: a forked child has one host thread; the parent's threads are not in it.
        unsafe { vcpus::forget_all() };
        PROCESS.store(std::ptr::null_mut(), Relaxed);
        let parent = std::os::unix::process::parent_id();
        if let Err(error) = begin(process.setup, &process.folder, parent) {
            messages::say(format_args!("a forked child is not traced: {error}"));
        }
    }
}

/// QEMU ends.
///
/// # Safety
/// QEMU calls it.
pub(crate) unsafe extern "C" fn exiting(_: Id, _: *mut c_void) {
    // SAFETY: QEMU has stopped the other threads, but for some in system calls.
    unsafe { end_all() };
}

/// Ends the trace.
///
/// # Safety
/// No other thread of the program or CPU of the guest runs any more, but for some in system calls.
pub(crate) unsafe fn end_all() {
    let Some(process) = process() else {
        return;
    };
    // From here on, no thread is made.
    PROCESS.store(std::ptr::null_mut(), Relaxed);
    process.lockstep.end();
    let _alone = ending();
    let begun = Instant::now();
    let mut last = (0, 0);
    // The latest records of a thread that stays in a system call remain in its file, like those of a killed
    // program.
    let patient = || begun.elapsed() < CALLS_MAX;
    // SAFETY: as this function's, and `process` is none for whoever looks for a thread now.
    unsafe {
        vcpus::take_all(patient, |thread| {
            thread.end();
            last = last.max((thread.time(), thread.number));
        });
    }
    process.finish(last.1, last.0);
}

/// # Safety
/// QEMU gives what `qemu-plugin.h` says: `info`, and `count` terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: as this function's.
    let arguments = (0..count.max(0) as usize)
        .map(|place| unsafe { CStr::from_ptr(*arguments.add(place)) }.to_string_lossy());
    // SAFETY: as this function's.
    let info = unsafe { &*info };
    // SAFETY: as this function's.
    let target = unsafe { CStr::from_ptr(info.target_name) };
    match install(id, target, info.system_emulation, arguments) {
        // The recorder made the folder and the setup before the first program began, so the recording is over. A
        // program that still runs has started this one, which runs as it would without a tracer.
        Err(StartError::File { source, .. }) if source.kind() == ErrorKind::NotFound => 0,
        Ok(()) => 0,
        Err(message) => {
            messages::say(format_args!("the tracer does not start: {message}"));
            1
        }
    }
}

fn install<'a>(
    id: Id,
    target: &CStr,
    whole_system: bool,
    arguments: impl Iterator<Item = std::borrow::Cow<'a, str>>,
) -> Result<(), StartError> {
    if target != c"x86_64" {
        return Err(StartError::Target);
    }
    let (mut setup, mut folder, mut lab_setup) = (None, None, None);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("setup", path)) => setup = Some(path.to_owned()),
            Some(("out", path)) => folder = Some(path.to_owned()),
            Some(("lab", path)) => lab_setup = Some(path.to_owned()),
            _ => return Err(StartError::Argument(argument.into_owned())),
        }
    }
    let (Some(path), Some(folder)) = (setup, folder) else {
        return Err(StartError::ArgumentMissing);
    };
    messages::start(Path::new(&path));
    let file = |path: String| move |source| StartError::File { path, source };
    let folder = std::fs::canonicalize(&folder).map_err(file(folder))?;
    let text = std::fs::read_to_string(&path).map_err(file(path.clone()))?;
    let setup = Setup::parse(text.leak()).map_err(|source| StartError::Setup { path, source })?;
    let qemu = qemu::find()?;
    if let Some(path) = lab_setup {
        if !whole_system {
            return Err(StartError::NoLab);
        }
        return lab::install(id, &setup, &path, &folder);
    }
    if whole_system {
        return guest::install(id, setup, &folder);
    }
    let _ = MAPS_BEFORE.set(maps::read());
    begin(setup, &folder, 0).map_err(file(folder.display().to_string()))?;
    // SAFETY: QEMU's functions, with the callbacks that they are for.
    unsafe {
        (qemu.register_vcpu_exit_cb)(id, vcpu_ended);
        (qemu.register_vcpu_tb_trans_cb)(id, translated);
        (qemu.register_vcpu_syscall_cb)(id, call);
        (qemu.register_vcpu_syscall_ret_cb)(id, returned);
        (qemu.register_atexit_cb)(id, exiting, std::ptr::null_mut());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
