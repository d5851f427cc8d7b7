//! Callbacks of QEMU's system emulator. A guest's CPUs are the threads of its trace.
//!
//! Caches know lines by their places in the guest's memory ([`crate::memory`]). TLBs know pages by virtual address and
//! place, so pages of two processes at the same address are two entries, as in processors whose TLBs have address-space
//! identifiers. Nothing is flushed when the guest switches processes. All pages of a guest count as pages of 4 KiB, even
//! those of the kernel's direct map.
//!
//! A CPU that waits for an interrupt is left out of the lockstep until it goes on. While all
//! CPUs wait, virtual time stands still.
//!
//! The guest's clock follows the host's, and a traced guest is too slow for it: all CPUs together execute some millions of
//! instructions a second, most of which 250 timer ticks a second on each CPU would take. So the clock of a guest that is
//! traced runs `SLOWER` times as slowly.
//!
//! The trace begins at the begin mark if the setup says so, else at the first instruction. It ends at the end mark or with
//! the emulator. Outside the trace, no callbacks slow the guest.
//!
//! The trace leaves out references to devices (they are counted), accesses by devices, the processor's own accesses
//! (page tables, interrupt frames), and the second part of an access across a page boundary. Some of the processor's
//! accesses for an interrupt count as the interrupted instruction's.

use std::collections::HashSet;
use std::ffi::{c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{Builder, sleep};
use std::time::Duration;

use nearpage_wire::trace::{BEGIN_MARK, Counter, END_MARK};
use nearpage_wire::tracer_setup::Setup;

use crate::error::StartError;
use crate::instructions::{at, instruction_text, is_atomic, is_string_instruction, names_gs};
use crate::memory::{self, Memory, PAGE_BITS};
use crate::messages;
use crate::plugin::{self, process};
use crate::qemu::{
    self, ALL_ACCESSES, AccessKind, Block, ClockInterface, Id, Instruction, Interface,
    MemoryInterface, NO_REGISTERS, StoreBit, SystemInterface,
};
use crate::thread::{Code, PlacedRun, Run};
use crate::vcpus::Vcpu;

struct Guest {
    id: Id,
    setup: Setup<'static>,
    folder: PathBuf,
    system: SystemInterface,
    blocks: MemoryInterface,
    clock: ClockInterface,
    /// The guest's memory, found when tracing begins.
    memory: OnceLock<Memory>,
    /// Blocks that callbacks refer to. They are never freed, and are used again if the emulator translates the same code.
    runs: Mutex<HashSet<&'static PlacedRun>>,
    ending: AtomicBool,
}

static GUEST: OnceLock<Guest> = OnceLock::new();

/// Registers callbacks to trace the guest, from the beginning or from the mark.
pub fn install(id: Id, setup: Setup<'static>, folder: &Path) -> Result<(), StartError> {
    let missing = StartError::NoWholeSystem;
    if qemu::qemu().is_none() || qemu::is_newer() {
        return Err(missing("plugin API of version 1".into()));
    }
    let guest = Guest {
        id,
        setup,
        folder: folder.to_path_buf(),
        system: SystemInterface::find().map_err(|name| missing(format!("qemu_plugin_{name}")))?,
        blocks: MemoryInterface::find().map_err(|name| missing(format!("qemu_ram_{name}")))?,
        clock: ClockInterface::find().map_err(|name| missing(format!("cpu_{name}")))?,
        memory: OnceLock::new(),
        runs: Mutex::default(),
        ending: AtomicBool::new(false),
    };
    let from_mark = setup.from_mark;
    if GUEST.set(guest).is_err() {
        return Err(StartError::AlreadyStarted);
    }
    let Some(qemu) = qemu::qemu() else {
        return Ok(());
    };
    // SAFETY: QEMU's functions, with the callbacks that they are for.
    unsafe {
        if from_mark {
            (qemu.register_vcpu_tb_trans_cb)(id, untraced);
        } else {
            listen(id);
        }
    }
    Ok(())
}

/// # Safety
/// In `qemu_plugin_install`, or while no CPU runs.
unsafe fn listen(id: Id) {
    let (Some(qemu), Some(guest)) = (qemu::qemu(), GUEST.get()) else {
        return;
    };
    // SAFETY: QEMU's functions, with the callbacks that they are for.
    unsafe {
        (qemu.register_vcpu_tb_trans_cb)(id, translated);
        (guest.system.register_vcpu_idle_cb)(id, idle);
        (qemu.register_atexit_cb)(id, plugin::exiting, std::ptr::null_mut());
    }
}

/// Begins the trace. The guest's memory must exist.
fn begin(guest: &Guest) {
    let memory = guest.memory.get_or_init(|| Memory::find(&guest.blocks));
    match plugin::begin_whole_system(guest.setup, &guest.folder) {
        Ok(process) => {
            memory.write_blocks(&process.output);
            // If no thread can be made, the clock is not slowed.
            let _ = Builder::new().spawn(slow_the_clock);
        }
        Err(error) => messages::say(format_args!(
            "the guest is not traced: {}: {error}",
            guest.folder.display()
        )),
    }
}

/// How many times slower than the host's clock the guest's clock runs.
const SLOWER: u32 = 32;
/// How long the clock runs at a time: a quarter of a tick.
const CLOCK_STEP: Duration = Duration::from_millis(1);

/// Stops the guest's clock most of the time.
fn slow_the_clock() {
    let Some(guest) = GUEST.get() else { return };
    while process().is_some() {
        // SAFETY: QEMU's functions, which take a lock of their own.
        unsafe { (guest.clock.disable_ticks)() };
        sleep(CLOCK_STEP * (SLOWER - 1));
        // SAFETY: as above.
        unsafe { (guest.clock.enable_ticks)() };
        sleep(CLOCK_STEP);
    }
}

/// # Safety
/// QEMU calls it, as the ones below.
unsafe extern "C" fn begin_now(id: Id) {
    if let Some(guest) = GUEST.get() {
        begin(guest);
        // SAFETY: no CPU runs while a plugin is reset.
        unsafe { listen(id) };
    }
}

/// Begins the trace where the program says so.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn begin_mark(_: c_uint, _: *mut c_void) {
    if let Some(guest) = GUEST.get() {
        // SAFETY: QEMU's function, in a callback of a CPU; a second call does nothing.
        unsafe { (guest.system.reset)(guest.id, begin_now) };
    }
}

/// Ends the trace once no CPU runs.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn end_now(_: Id) {
    // SAFETY: no CPU runs while a plugin is reset.
    unsafe { plugin::end_all() };
}

/// Ends the trace where the program says so.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn end_mark(_: c_uint, _: *mut c_void) {
    if let (Some(guest), Some(process)) = (GUEST.get(), process())
        && !guest.ending.swap(true, Relaxed)
    {
        // Threads no longer wait for each other: QEMU is stopping all of them.
        process.lockstep.end();
        // SAFETY: QEMU's function, in a callback of a CPU.
        unsafe { (guest.system.reset)(guest.id, end_now) };
    }
}

/// A block is translated before the trace begins: looks for the begin mark alone.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn untraced(_: Id, block: *mut Block) {
    let Some(qemu) = qemu::qemu() else {
        return;
    };
    // SAFETY: QEMU's functions, with the block that QEMU is translating and what belongs to it.
    unsafe {
        for number in 0..(qemu.tb_n_insns)(block) {
            let instruction = (qemu.tb_get_insn)(block, number);
            if !instruction.is_null() && text(qemu, instruction) == BEGIN_MARK {
                at(qemu, instruction, begin_mark, std::ptr::null::<()>());
            }
        }
    }
}

/// An instruction's bytes within its page: the place of the next page is unknown.
///
/// # Safety
/// It belongs to the block that QEMU is translating.
pub(crate) unsafe fn text<'a>(qemu: &Interface, instruction: *const Instruction) -> &'a [u8] {
    // SAFETY: as this function's.
    unsafe {
        let in_page = (qemu.insn_vaddr)(instruction) & ((1 << PAGE_BITS) - 1);
        instruction_text(qemu, instruction, (1 << PAGE_BITS) - in_page as usize)
    }
}

/// The block of this run, which is never freed; the same run always gets the same block.
fn kept(guest: &Guest, run: PlacedRun) -> &'static PlacedRun {
    let mut runs = guest.runs.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = runs.get(&run) {
        return known;
    }
    let run: &'static PlacedRun = Box::leak(Box::new(run));
    runs.insert(run);
    run
}

/// A block within one page, or the part of a block in one page.
pub(crate) struct Part {
    pub first: *mut Instruction,
    address: u64,
    end: u64,
    host: u64,
    instructions: usize,
}

impl Part {
    /// Adds an instruction to a block; returns the part that it belongs to.
    ///
    /// # Safety
    /// The instruction belongs to the block that QEMU is translating.
    pub unsafe fn with<'a>(
        parts: &'a mut Vec<Self>,
        qemu: &Interface,
        instruction: *mut Instruction,
    ) -> &'a mut Self {
        // SAFETY: as this function's.
        let (here, host, size) = unsafe {
            (
                (qemu.insn_vaddr)(instruction),
                (qemu.insn_haddr)(instruction) as u64,
                (qemu.insn_size)(instruction) as u64,
            )
        };
        let page = here >> PAGE_BITS;
        let goes_on = parts
            .last()
            .is_some_and(|part| part.address >> PAGE_BITS == page);
        if !goes_on {
            parts.push(Self {
                first: instruction,
                address: here,
                end: here,
                host,
                instructions: 0,
            });
        }
        let at = parts.len() - 1;
        let part = &mut parts[at];
        // Bytes in the next page are fetched with the part there, if the block goes on there.
        let page_end = (page + 1) << PAGE_BITS;
        part.end = (here + size).min(page_end);
        part
    }

    pub fn add_instruction(&mut self) {
        self.instructions += 1;
    }

    /// The part as a run; `None` if its place in the guest's memory is unknown, or it is empty.
    pub fn run(&self, memory: &Memory, line_shift: u32) -> Option<PlacedRun> {
        let place = memory.place(self.host)?;
        if self.end <= self.address {
            return None;
        }
        let lines = ((self.end - 1) >> line_shift) - (self.address >> line_shift) + 1;
        Some(PlacedRun {
            run: Run::new(self.address, self.instructions, lines),
            frame: (place >> PAGE_BITS) as u32,
            kernel: self.address >> 63 == 1,
        })
    }
}

/// A block is translated.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn translated(_: Id, block: *mut Block) {
    let (Some(qemu), Some(guest)) = (qemu::qemu(), GUEST.get()) else {
        return;
    };
    if process().is_none() && !guest.setup.from_mark {
        static FIRST: Mutex<()> = Mutex::new(());
        let _alone = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        if process().is_none() && !guest.ending.load(Relaxed) {
            begin(guest);
        }
    }
    let (Some(process), Some(memory)) = (process(), guest.memory.get()) else {
        return;
    };
    let mut parts: Vec<Part> = Vec::with_capacity(2);
    // SAFETY: QEMU's functions, with the block that QEMU is translating and what belongs to it.
    unsafe {
        for number in 0..(qemu.tb_n_insns)(block) {
            let instruction = (qemu.tb_get_insn)(block, number);
            if instruction.is_null() {
                continue;
            }
            let here = (qemu.insn_vaddr)(instruction);
            let text = text(qemu, instruction);
            let part = Part::with(&mut parts, qemu, instruction);
            let code = Code::new(here, part.instructions, is_string_instruction(text))
                .in_guest(here, names_gs(text));
            part.add_instruction();
            let callback = if is_atomic(text) {
                atomic_access
            } else {
                access
            };
            (qemu.register_vcpu_mem_cb)(
                instruction,
                callback,
                NO_REGISTERS,
                ALL_ACCESSES,
                code.0 as *mut c_void,
            );
            if text == END_MARK {
                at(qemu, instruction, end_mark, std::ptr::null::<()>());
            }
        }
    }
    let shift = process.setup.line_bytes.trailing_zeros();
    for (number, part) in parts.iter().enumerate() {
        let Some(run) = part.run(memory, shift) else {
            continue;
        };
        let run = std::ptr::from_ref(kept(guest, run));
        // SAFETY: QEMU's functions, with the block that QEMU is translating and its instruction.
        unsafe {
            if number == 0 {
                let data = run.cast_mut().cast();
                (qemu.register_vcpu_tb_exec_cb)(block, self::block, NO_REGISTERS, data);
            } else {
                at(qemu, part.first, self::block, run);
            }
        }
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
    if let Some(mut thread) = plugin::vcpu_thread(&vcpu) {
        // SAFETY: `translated` gave a run that is kept for good.
        thread.placed_block(unsafe { &*run.cast::<PlacedRun>() });
    }
}

/// An instruction has accessed memory.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn access(vcpu: c_uint, kind: AccessKind, address: u64, code: *mut c_void) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    let (Some(mut thread), Some(guest)) = (vcpu.traced(), GUEST.get()) else {
        return;
    };
    // SAFETY: QEMU's functions, in a callback for that access.
    let place = unsafe {
        let found = (guest.system.get_hwaddr)(kind.0, address);
        if found.is_null() || (guest.system.hwaddr_is_io)(found) {
            None
        } else {
            let memory = guest.memory.get();
            memory.and_then(|memory| memory.place(memory::host_address(found)))
        }
    };
    match place {
        Some(place) => {
            thread.placed_access(
                address,
                (place >> PAGE_BITS) as u32,
                Code(code as u64),
                kind,
            );
        }
        None => thread.count(Counter::DeviceReferences),
    }
}

/// An instruction has accessed memory atomically. Its store stands for its load, too, as in [`plugin`].
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

/// A CPU begins to wait for an interrupt.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn idle(_: Id, vcpu: c_uint) {
    // SAFETY: QEMU calls back for this CPU.
    let Some(vcpu) = (unsafe { Vcpu::of_callback(vcpu) }) else {
        return;
    };
    if let Some(mut thread) = vcpu.traced() {
        thread.idles();
    }
}
