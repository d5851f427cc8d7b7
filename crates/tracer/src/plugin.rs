//! What QEMU calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpage_wire::trace::{COUNT_AGAIN_MARK, LEAVE_OUT_MARK};
use nearpage_wire::tracer_setup::Setup;

use crate::calls::After;
use crate::process::Process;
use crate::qemu::{
    self, ALL_ACCESSES, AccessKind, Block, BlockCallback, Id, Info, Instruction, Interface,
    NO_REGISTERS, StoreBit,
};
use crate::thread::{Code, Run, Thread};
use crate::{guest, maps};

/// Emulated CPUs, that is threads at one time, that are traced.
const VCPUS: usize = 4096;

/// A thread or none for each emulated CPU.
type Slots = [AtomicPtr<Thread>; VCPUS];
/// The thread that each emulated CPU is; numbers are used again when a thread ends.
static THREADS: Slots = [const { AtomicPtr::new(std::ptr::null_mut()) }; VCPUS];
/// The same of those whose thread is at what others do for the preload library. They are in
/// [`THREADS`] no longer, so that no access has to ask.
static LEFT_OUT: Slots = [const { AtomicPtr::new(std::ptr::null_mut()) }; VCPUS];
/// The thread is in [`call`] or [`returned`]. QEMU stops the others before a process ends, but for those
/// that are in system calls.
static IN_CALL: [AtomicBool; VCPUS] = [const { AtomicBool::new(false) }; VCPUS];
/// How long the end waits for those at the most: one may wait for another that is not heard any more.
const CALLS_MAX: Duration = Duration::from_secs(2);
/// Blocks after which a thread counts again all the same: a signal's handler may have jumped out of
/// the library. Finding the unwinder takes most, about a tenth of it.
const LEFT_OUT_BLOCKS_MAX: u32 = 1 << 20;
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// The maps file before the program was loaded.
static MAPS_BEFORE: OnceLock<Vec<u8>> = OnceLock::new();
/// Host address − guest address of code, + 1; 0: nothing has been translated.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);
/// First and last address, + 1, of the preload library's code, which does not count; 0: it is not there.
static OWN_CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Locked while a thread is made, ends, or all are ended. A forked child has another: in its parent a thread that the
/// child does not have may have locked this one.
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

/// Where the program's address 0 is.
pub fn guest_base() -> u64 {
    GUEST_BASE.load(Relaxed).saturating_sub(1)
}

/// The preload library's code is there, and nothing of it has run yet.
pub fn own_code(range: Range<u64>) {
    OWN_CODE[0].store(range.start, Relaxed);
    OWN_CODE[1].store(range.end, Relaxed);
}

/// Begins a process's trace.
fn begin(setup: Setup<'static>, folder: &Path, parent_pid: u32) -> std::io::Result<()> {
    keep(Process::new(setup, folder, parent_pid)?);
    Ok(())
}

/// Begins a guest's.
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

#[inline]
fn thread_in(slots: &Slots, vcpu: c_uint) -> Option<&'static mut Thread> {
    // SAFETY: null or a thread that only the calling host thread uses; it is freed by that one
    // alone, when it ends.
    unsafe { slots.get(vcpu as usize)?.load(Relaxed).as_mut() }
}

#[inline]
pub(crate) fn known_thread(vcpu: c_uint) -> Option<&'static mut Thread> {
    thread_in(&THREADS, vcpu)
}

/// The calling thread, if it is at what is left out.
fn left_out_thread(vcpu: c_uint) -> Option<&'static mut Thread> {
    thread_in(&LEFT_OUT, vcpu)
}

/// The calling thread.
fn thread(vcpu: c_uint) -> Option<&'static mut Thread> {
    known_thread(vcpu)
        .or_else(|| left_out_thread(vcpu))
        .or_else(|| first_step(THREADS.get(vcpu as usize)?))
}

/// The calling thread goes from one to the other.
fn pass(vcpu: c_uint, from: &Slots, to: &Slots) {
    if let (Some(from), Some(to)) = (from.get(vcpu as usize), to.get(vcpu as usize)) {
        to.store(from.swap(std::ptr::null_mut(), Relaxed), Relaxed);
    }
}

/// The calling thread counts again.
fn count_again(vcpu: c_uint) {
    pass(vcpu, &LEFT_OUT, &THREADS);
}

/// What is done for the preload library begins.
///
/// # Safety
/// QEMU calls it, as the ones below.
unsafe extern "C" fn leave_out(vcpu: c_uint, _: *mut c_void) {
    let Some(thread) = thread(vcpu) else {
        return;
    };
    if thread.left_out.depth == 0 {
        thread.catch_up();
        thread.left_out.blocks = 0;
        pass(vcpu, &THREADS, &LEFT_OUT);
    }
    thread.left_out.depth += 1;
}

/// It ends.
///
/// # Safety
/// As above.
unsafe extern "C" fn left_out_ends(vcpu: c_uint, _: *mut c_void) {
    if let Some(thread) = left_out_thread(vcpu) {
        thread.left_out.depth -= 1;
        if thread.left_out.depth == 0 {
            count_again(vcpu);
        }
    }
}

#[cold]
fn first_step(slot: &AtomicPtr<Thread>) -> Option<&'static mut Thread> {
    let process = process()?;
    let birth = process.born();
    if birth.number == 0 {
        let before = MAPS_BEFORE.get().map_or(&[][..], Vec::as_slice);
        maps::tell_initial(process, before, guest_base());
    }
    let thread = Box::into_raw(Thread::new(process, &birth)?);
    slot.store(thread, Relaxed);
    // SAFETY: it was just made.
    unsafe { thread.as_mut() }
}

/// The guest's CPU of that number, which the calling host thread runs.
#[inline]
pub(crate) fn vcpu_thread(vcpu: c_uint) -> Option<&'static mut Thread> {
    match known_thread(vcpu) {
        None => first_step_of_vcpu(vcpu),
        thread => thread,
    }
}

#[cold]
#[inline(never)]
fn first_step_of_vcpu(vcpu: c_uint) -> Option<&'static mut Thread> {
    let slot = THREADS.get(vcpu as usize)?;
    let process = process()?;
    let thread = Box::into_raw(Thread::new(process, &process.vcpu(vcpu))?);
    slot.store(thread, Relaxed);
    // SAFETY: it was just made.
    unsafe { thread.as_mut() }
}

/// # Safety
/// As above.
unsafe extern "C" fn vcpu_ended(_: Id, vcpu: c_uint) {
    let _alone = ending();
    if left_out_thread(vcpu).is_some() {
        count_again(vcpu);
    }
    let Some(slot) = THREADS.get(vcpu as usize) else {
        return;
    };
    let thread = slot.swap(std::ptr::null_mut(), Relaxed);
    if !thread.is_null() {
        // SAFETY: `first_step` made it from a box, and it is in no slot any more.
        let mut thread = unsafe { Box::from_raw(thread) };
        thread.end();
        let time = thread.time();
        thread.process.lockstep.remove(thread.member, time);
    }
}

/// # Safety
/// As above.
unsafe extern "C" fn block(vcpu: c_uint, run: *mut c_void) {
    match known_thread(vcpu) {
        Some(thread) => thread.block(Run(run as u64)),
        None => first_block(vcpu, run),
    }
}

#[cold]
#[inline(never)]
extern "C" fn first_block(vcpu: c_uint, run: *mut c_void) {
    if let Some(thread) = left_out_thread(vcpu) {
        thread.left_out.blocks += 1;
        if thread.left_out.blocks < LEFT_OUT_BLOCKS_MAX {
            return;
        }
        thread.left_out.depth = 0;
        count_again(vcpu);
    }
    if let Some(thread) = thread(vcpu) {
        thread.block(Run(run as u64));
    }
}

/// What a thread accesses that has begun no block, or is at what is left out, does not count.
///
/// # Safety
/// As above.
unsafe extern "C" fn access(vcpu: c_uint, kind: AccessKind, address: u64, code: *mut c_void) {
    if let Some(thread) = known_thread(vcpu) {
        thread.access(address, Code(code as u64), kind);
    }
}

/// Of the preload library's code. QEMU 7.2 needs one: an instruction that leaves the processor, as a
/// system call does, leaves its callback for the next that accesses memory in a helper without one.
///
/// # Safety
/// As above.
unsafe extern "C" fn own_access(_: c_uint, _: AccessKind, _: u64, _: *mut c_void) {}

/// Of an instruction that changes memory atomically: what it writes stands for what it read, too.
/// (QEMU tells of both while there is one thread, and of one access that reads and writes later.)
///
/// # Safety
/// As above.
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

/// # Safety
/// As above.
unsafe extern "C" fn translated(_: Id, block: *mut Block) {
    let (Some(qemu), Some(process)) = (qemu::qemu(), process()) else {
        return;
    };
    // SAFETY: QEMU's functions, with the block that QEMU is translating and what belongs to it.
    unsafe {
        let instructions = (qemu.tb_n_insns)(block);
        let address = (qemu.tb_vaddr)(block);
        let mut end = address;
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
        let run = Run::new(address, instructions, lines).0 as *mut c_void;
        (qemu.register_vcpu_tb_exec_cb)(block, self::block, NO_REGISTERS, run);
    }
}

/// An instruction's bytes, at most so many; none where the host has no copy of it.
///
/// # Safety
/// It belongs to the block that QEMU is translating.
pub(crate) unsafe fn instruction_text<'a>(
    qemu: &Interface,
    instruction: *const Instruction,
    bytes_max: usize,
) -> &'a [u8] {
    // SAFETY: as this function's; QEMU has as many bytes there as it says.
    unsafe {
        let bytes = (qemu.insn_haddr)(instruction);
        if bytes.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(bytes, (qemu.insn_size)(instruction).min(bytes_max))
    }
}

/// Has a callback made before the instruction runs.
///
/// # Safety
/// The instruction belongs to the block that QEMU is translating.
pub(crate) unsafe fn at<T>(
    qemu: &Interface,
    instruction: *mut Instruction,
    callback: BlockCallback,
    data: *const T,
) {
    // SAFETY: as this function's.
    unsafe {
        (qemu.register_vcpu_insn_exec_cb)(
            instruction,
            callback,
            NO_REGISTERS,
            data.cast_mut().cast(),
        );
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// Has it a lock prefix, or is it `xchg`, which needs none?
pub(crate) fn is_atomic(text: &[u8]) -> bool {
    let mut opcode = text.iter().skip_while(|byte| is_prefix(**byte));
    let locked = text
        .iter()
        .take_while(|byte| is_prefix(**byte))
        .any(|byte| *byte == 0xf0);
    locked || matches!(opcode.next(), Some(0x86 | 0x87))
}

/// Is it `movs`, `stos`, `lods`, `cmps`, `scas`, `ins` or `outs`? Each round of those is a reference of
/// its own, though the addresses follow each other.
pub(crate) fn is_string_instruction(text: &[u8]) -> bool {
    let opcode = text.iter().find(|byte| !is_prefix(**byte));
    matches!(opcode, Some(0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf))
}

/// Has it the prefix of the segment register GS?
pub(crate) fn names_gs(text: &[u8]) -> bool {
    text.iter()
        .take_while(|byte| is_prefix(**byte))
        .any(|byte| *byte == 0x65)
}

/// While it lives, [`end_all`] waits for the thread, unless that was first.
struct InCall(&'static AtomicBool);

impl InCall {
    fn enter(vcpu: c_uint) -> Option<Self> {
        let entered = IN_CALL.get(vcpu as usize)?;
        entered.store(true, Relaxed);
        fence(SeqCst);
        Some(Self(entered))
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// # Safety
/// As above.
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
    let Some(_in_call) = InCall::enter(vcpu) else {
        return;
    };
    if let Some(thread) = thread(vcpu) {
        thread.catch_up();
        thread.call(number, [first, second, third, fourth, fifth, sixth]);
    }
}

/// # Safety
/// As above.
unsafe extern "C" fn returned(_: Id, vcpu: c_uint, number: i64, result: i64) {
    let Some(_in_call) = InCall::enter(vcpu) else {
        return;
    };
    let Some(thread) = thread(vcpu) else {
        return;
    };
    if thread.returned(number, result) == After::Child {
        let process = thread.process;
        ENDING.store(Box::leak(Box::new(Mutex::new(()))), Relaxed);
        // What the parent's threads are doing is not ours, and their memory stays as it is.
        for slot in THREADS.iter().chain(&LEFT_OUT) {
            slot.store(std::ptr::null_mut(), Relaxed);
        }
        IN_CALL
            .iter()
            .for_each(|entered| entered.store(false, Relaxed));
        PROCESS.store(std::ptr::null_mut(), Relaxed);
        let parent = std::os::unix::process::parent_id();
        if let Err(error) = begin(process.setup, &process.folder, parent) {
            eprintln!("nearpage: a forked child is not traced: {error}");
        }
    }
}

/// # Safety
/// As above.
pub(crate) unsafe extern "C" fn exiting(_: Id, _: *mut c_void) {
    end_all();
}

/// Ends the trace; no other thread runs any more, but for some in system calls.
pub(crate) fn end_all() {
    let Some(process) = process() else {
        return;
    };
    // Whoever finds no thread from here on makes none.
    PROCESS.store(std::ptr::null_mut(), Relaxed);
    process.lockstep.end();
    let _alone = ending();
    let begun = Instant::now();
    let mut last = (0, 0);
    for (vcpu, in_call) in IN_CALL.iter().enumerate() {
        let take = || {
            let slots = [&THREADS[vcpu], &LEFT_OUT[vcpu]];
            let taken = slots.map(|slot| slot.swap(std::ptr::null_mut(), Relaxed));
            taken.into_iter().find(|thread| !thread.is_null())
        };
        let known = take();
        fence(SeqCst);
        while in_call.load(Acquire) && begun.elapsed() < CALLS_MAX {
            std::thread::yield_now();
        }
        if in_call.load(Acquire) {
            // What it has recorded last stays in its file of a killed program.
            continue;
        }
        let Some(thread) = known.or_else(take) else {
            continue;
        };
        // SAFETY: QEMU has stopped the other threads, and this one is in no callback and finds itself in
        // none any more; their memory is never freed.
        if let Some(thread) = unsafe { thread.as_mut() } {
            thread.end();
            last = last.max((thread.time(), thread.number));
        }
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
        Ok(()) => 0,
        Err(message) => {
            eprintln!("nearpage: the tracer does not start: {message}");
            1
        }
    }
}

fn install<'a>(
    id: Id,
    target: &CStr,
    whole_system: bool,
    arguments: impl Iterator<Item = std::borrow::Cow<'a, str>>,
) -> Result<(), String> {
    if target != c"x86_64" {
        return Err("only programs and guests for x86_64 can be traced".into());
    }
    let (mut setup, mut folder) = (None, None);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("setup", path)) => setup = Some(path.to_owned()),
            Some(("out", path)) => folder = Some(path.to_owned()),
            _ => return Err(format!("'{argument}' is not setup=FILE or out=FOLDER")),
        }
    }
    let (Some(path), Some(folder)) = (setup, folder) else {
        return Err("it needs setup=FILE and out=FOLDER".into());
    };
    let folder = std::fs::canonicalize(&folder).map_err(|error| format!("{folder}: {error}"))?;
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let setup = Setup::parse(text.leak()).map_err(|error| format!("{path}: {error}"))?;
    let qemu = qemu::find()?;
    if whole_system {
        return guest::install(id, setup, &folder);
    }
    let _ = MAPS_BEFORE.set(maps::read());
    begin(setup, &folder, 0).map_err(|error| format!("{}: {error}", folder.display()))?;
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
mod tests {
    use std::sync::mpsc::channel;

    use nearpage_wire::trace::{
        Decoder, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Record,
    };

    use super::*;
    use crate::process::tests::SETUP;

    #[test]
    fn the_end_waits_for_a_thread_that_is_in_a_system_call() {
        const RECORDS: u32 = 20_000;
        const VCPU: c_uint = 7;
        let folder = std::env::temp_dir().join(format!("nearpage-ends-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        begin(Setup::parse(SETUP).expect("it is right"), &folder, 0)
            .expect("TMPDIR can be written to");
        let (tell, hear) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _in_call = InCall::enter(VCPU);
                let thread = thread(VCPU).expect("its process has begun");
                tell.send(()).expect("it is heard");
                for time_ns in 0..u64::from(RECORDS) {
                    thread.record(&Record::Clock { time_ns });
                }
            });
            hear.recv().expect("it is told");
            end_all();
        });
        assert!(known_thread(VCPU).is_none() && thread(VCPU).is_none());
        let traces = std::fs::read_dir(&folder)
            .expect("it is ours")
            .map(|file| file.expect("file").path());
        let mut traces = traces.filter(|path| path.extension().is_some_and(|kind| kind == "trace"));
        let bytes = std::fs::read(traces.next().expect("a trace")).expect("a trace");
        let (mut rest, mut clocks) = (&bytes[FILE_HEADER_BYTES..], 0);
        while !rest.is_empty() {
            let header = FrameHeader::from_bytes(rest).expect("frame");
            let (frame, behind) = rest.split_at(FRAME_HEADER_BYTES + header.payload_bytes as usize);
            assert!(FrameHeader::intact(frame));
            if header.kind == FrameKind::Records {
                let records = Decoder::new(&frame[FRAME_HEADER_BYTES..]);
                clocks += records.filter(Result::is_ok).count();
            }
            rest = behind;
        }
        assert_eq!(clocks, RECORDS as usize);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn instructions_are_known_by_their_bytes() {
        // lock inc, lock xadd with REX, xchg with memory.
        for text in [
            &b"\xf0\xff\x00"[..],
            b"\xf0\x48\x0f\xc1\x07",
            b"\x48\x87\x07",
        ] {
            assert!(is_atomic(text) && !is_string_instruction(text));
        }
        // rep movsb, stosq.
        for text in [&b"\xf3\xa4"[..], b"\x48\xab"] {
            assert!(is_string_instruction(text) && !is_atomic(text));
        }
        // inc, mov with an immediate that looks like a prefix.
        for text in [&b"\xff\x00"[..], b"\xc6\x00\xf0", b""] {
            assert!(!is_string_instruction(text) && !is_atomic(text));
        }
    }
}
