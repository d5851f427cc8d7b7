//! The lab: a guest whose clock follows the model of a machine.
//!
//! QEMU with `qemu/lab.patch` counts guest time for each CPU, in units of an instruction's time. After each reference, this
//! plugin adds the time that the reference takes on the modelled machine, and all clocks of the guest show it. One host
//! thread runs all CPUs. So there is no lockstep, in which this thread would wait for itself, and nothing here is shared
//! between threads.
//!
//! Counts begin at the first begin mark, which is the command's beginning, and end at the first end mark. A later begin
//! mark, made by the program, starts the counts again. The setup says how many begin marks come before anything is modelled.

mod before;
mod emulator;
mod model;
mod queues;

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

use nearpage_wire::lab::{COUNTS_FIRST_LINE, LabCount, LabSetup};
use nearpage_wire::trace::{BEGIN_MARK, END_MARK};
use nearpage_wire::tracer_setup::Setup;

use crate::error::StartError;
use crate::guest::{Part, text};
use crate::instructions::{at, is_atomic, is_string_instruction};
use crate::memory::{self, Memory};
use crate::messages;
use crate::qemu::{
    self, ALL_ACCESSES, AccessKind, Block, Id, LabInterface, MemoryInterface, NO_REGISTERS,
    StoreBit, SystemInterface,
};
use crate::thread::PlacedRun;
use emulator::{MEMORY, QEMU, Qemu};
use model::{Access, Emulator, KernelBlock, Model};

const NS_FS: u64 = 1_000_000;

/// An instruction that accesses memory, packed into the word that QEMU passes to a callback.
#[derive(Clone, Copy)]
struct Code(u64);

impl Code {
    const KERNEL: u64 = 1 << 63;
    const REPEATS: u64 = 1 << 62;

    fn new(address: u64, repeats: bool) -> Self {
        let kernel = if address >> 63 == 1 { Self::KERNEL } else { 0 };
        let repeats = if repeats { Self::REPEATS } else { 0 };
        Self(address & (Self::REPEATS - 1) | kernel | repeats)
    }
}

/// The state that callbacks change.
struct Lab {
    model: Model,
    /// Runs that callbacks refer to, kept for good: the emulator often translates the same code again.
    runs: HashMap<PlacedRun, &'static KeptRun>,
    marks: u32,
    /// Instructions of warm-up left, after which the counts start again.
    warm_up_left: u64,
    began_ns: u64,
    began: Instant,
    ended: bool,
}

/// A run that a callback refers to.
struct KeptRun {
    run: PlacedRun,
    /// Where the model counts the time of a run of the kernel.
    kernel: Option<KernelBlock>,
}

struct Slot {
    in_use: AtomicBool,
    lab: UnsafeCell<Option<Lab>>,
}

// SAFETY: `enter` gives the only reference, on the one host thread that runs the guest's CPUs, or on another when
// QEMU has stopped that one.
unsafe impl Sync for Slot {}

static LAB: Slot = Slot {
    in_use: AtomicBool::new(false),
    lab: UnsafeCell::new(None),
};

/// The only reference to the lab's state.
struct LabGuard(());

impl Drop for LabGuard {
    fn drop(&mut self) {
        LAB.in_use.store(false, Release);
    }
}

impl LabGuard {
    #[inline]
    fn lab(&mut self) -> Option<&mut Lab> {
        // SAFETY: this is the only `Entered`, and borrowed mutably.
        unsafe { (*LAB.lab.get()).as_mut() }
    }
}

/// The state; `None` while an interrupted callback uses it.
///
/// # Safety
/// In a callback of QEMU's: they are made on the one host thread that runs CPUs, or while that one is stopped.
#[inline]
unsafe fn enter() -> Option<LabGuard> {
    if LAB.in_use.load(Acquire) {
        return None;
    }
    LAB.in_use.store(true, Relaxed);
    Some(LabGuard(()))
}

/// Registers the callbacks that model the guest's time.
pub fn install(
    id: Id,
    setup: &Setup<'static>,
    lab_path: &str,
    folder: &Path,
) -> Result<(), StartError> {
    let text = std::fs::read_to_string(lab_path).map_err(|source| StartError::File {
        path: lab_path.to_owned(),
        source,
    })?;
    let lab = LabSetup::parse(text.leak()).map_err(|source| StartError::LabSetup {
        path: lab_path.to_owned(),
        source,
    })?;
    let missing = |_| StartError::NoLab;
    before::expect(&lab);
    let qemu = Qemu {
        id,
        system: SystemInterface::find().map_err(missing)?,
        blocks: MemoryInterface::find().map_err(missing)?,
        lab: LabInterface::find().map_err(missing)?,
        instruction_fs: lab.instruction_fs,
        line_shift: setup.line_bytes.trailing_zeros(),
        counts: folder.join("counts"),
    };
    // SAFETY: QEMU's function, while it installs plugins and runs no CPU. Figures fit: `LabSetup::check`.
    unsafe {
        (qemu.lab.start)(
            lab.instruction_fs as u32,
            lab.quantum_ns as u32,
            lab.pause_ns as u32,
        );
    }
    let state = Lab {
        model: Model::new(setup, &lab),
        runs: HashMap::new(),
        marks: 0,
        warm_up_left: lab.warm_up_instructions,
        began_ns: 0,
        began: Instant::now(),
        ended: false,
    };
    if QEMU.set(qemu).is_err() {
        return Err(StartError::AlreadyStarted);
    }
    let Some(interface) = qemu::qemu() else {
        return Err(StartError::NoLab);
    };
    // SAFETY: no callback is registered yet, so nobody else has the state; QEMU's functions, with the callbacks that
    // they are for.
    unsafe {
        *LAB.lab.get() = Some(state);
        if lab.begin_marks > 0 {
            (interface.register_vcpu_tb_trans_cb)(id, before::translated);
        } else {
            listen(id);
        }
    }
    Ok(())
}

/// # Safety
/// In `qemu_plugin_install`, or while no CPU runs.
unsafe fn listen(id: Id) {
    let Some(interface) = qemu::qemu() else {
        return;
    };
    // SAFETY: QEMU's functions, with the callbacks that they are for.
    unsafe {
        (interface.register_vcpu_tb_trans_cb)(id, translated);
        (interface.register_atexit_cb)(id, exiting, std::ptr::null_mut());
    }
}

impl Lab {
    fn begin(&mut self, qemu: &Qemu) {
        if !self.ended {
            self.marks += 1;
            self.restart(qemu);
        }
    }

    fn restart(&mut self, qemu: &Qemu) {
        self.began_ns = qemu.now_fs() / NS_FS;
        self.began = Instant::now();
        self.model.restart();
    }

    /// Counts instructions of the warm-up; at its end, the counts start again.
    #[cold]
    fn warm_up(&mut self, qemu: &Qemu, instructions: u64) {
        self.warm_up_left = self.warm_up_left.saturating_sub(instructions);
        if self.warm_up_left == 0 {
            self.restart(qemu);
        }
    }

    fn end(&mut self, qemu: &Qemu) {
        if self.marks > 0 && !self.ended {
            self.ended = true;
            let (began_ns, ended_ns) = (self.began_ns, qemu.now_fs() / NS_FS);
            self.model.count(LabCount::BeganNs, began_ns);
            self.model.count(LabCount::GuestNs, ended_ns - began_ns);
            let host_ns = self.began.elapsed().as_nanos() as u64;
            self.model.count(LabCount::HostNs, host_ns);
            self.write(qemu);
        }
    }

    fn write(&self, qemu: &Qemu) {
        let new = qemu.counts.with_extension("new");
        let lines = self.model.lines();
        let written = std::fs::File::create(&new).and_then(|mut file| {
            let mut text = format!("{COUNTS_FIRST_LINE}\n");
            for line in lines {
                text.push_str(&format!("{line}\n"));
            }
            file.write_all(text.as_bytes())
        });
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, &qemu.counts)) {
            let path = qemu.counts.display();
            messages::say(format_args!(
                "what was counted can't be written: {path}: {error}"
            ));
        }
    }

    /// The kept form of a run: always the same one, never freed.
    fn kept(&mut self, run: PlacedRun) -> &'static KeptRun {
        if let Some(known) = self.runs.get(&run) {
            return known;
        }
        let kernel = run.kernel.then(|| self.model.kernel_block(run.run));
        let kept: &'static KeptRun = Box::leak(Box::new(KeptRun { run, kernel }));
        self.runs.insert(run, kept);
        kept
    }
}

/// QEMU ends.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn exiting(_: Id, _: *mut c_void) {
    // SAFETY: QEMU has stopped the thread that runs CPUs.
    if let Some(mut entered) = unsafe { enter() }
        && let (Some(lab), Some(qemu)) = (entered.lab(), QEMU.get())
        && !lab.ended
    {
        lab.write(qemu);
    }
}

/// The measured part begins.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn begin_mark(_: c_uint, _: *mut c_void) {
    // SAFETY: as this function's.
    if let Some(mut entered) = unsafe { enter() }
        && let (Some(lab), Some(qemu)) = (entered.lab(), QEMU.get())
    {
        lab.begin(qemu);
    }
}

/// The measured part ends.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn end_mark(_: c_uint, _: *mut c_void) {
    // SAFETY: as this function's.
    if let Some(mut entered) = unsafe { enter() }
        && let (Some(lab), Some(qemu)) = (entered.lab(), QEMU.get())
    {
        lab.end(qemu);
    }
}

/// # Safety
/// QEMU calls it: a block is translated.
unsafe extern "C" fn translated(_: Id, block: *mut Block) {
    // SAFETY: as this function's.
    let Some(mut entered) = (unsafe { enter() }) else {
        return;
    };
    let (Some(lab), Some(qemu), Some(interface)) = (entered.lab(), QEMU.get(), qemu::qemu()) else {
        return;
    };
    let memory = MEMORY.get_or_init(|| Memory::find(&qemu.blocks));
    let mut parts: Vec<Part> = Vec::with_capacity(2);
    // SAFETY: QEMU's functions, with the block that QEMU is translating and what belongs to it.
    unsafe {
        for number in 0..(interface.tb_n_insns)(block) {
            let instruction = (interface.tb_get_insn)(block, number);
            if instruction.is_null() {
                continue;
            }
            let here = (interface.insn_vaddr)(instruction);
            let text = text(interface, instruction);
            Part::with(&mut parts, interface, instruction).add_instruction();
            let callback = if is_atomic(text) {
                atomic_access
            } else {
                access
            };
            let code = Code::new(here, is_string_instruction(text)).0 as *mut c_void;
            (interface.register_vcpu_mem_cb)(
                instruction,
                callback,
                NO_REGISTERS,
                ALL_ACCESSES,
                code,
            );
            if text == BEGIN_MARK {
                at(interface, instruction, begin_mark, std::ptr::null::<()>());
            } else if text == END_MARK {
                at(interface, instruction, end_mark, std::ptr::null::<()>());
            }
        }
    }
    for (number, part) in parts.iter().enumerate() {
        let Some(run) = part.run(memory, qemu.line_shift) else {
            continue;
        };
        let run = std::ptr::from_ref(lab.kept(run));
        // SAFETY: QEMU's functions, with the block that QEMU is translating and its instruction.
        unsafe {
            if number == 0 {
                let data = run.cast_mut().cast();
                (interface.register_vcpu_tb_exec_cb)(block, self::block, NO_REGISTERS, data);
            } else {
                at(interface, part.first, self::block, run);
            }
        }
    }
}

/// # Safety
/// QEMU calls it: a block runs.
unsafe extern "C" fn block(vcpu: c_uint, run: *mut c_void) {
    // SAFETY: as this function's.
    let Some(mut entered) = (unsafe { enter() }) else {
        return;
    };
    let (Some(lab), Some(qemu)) = (entered.lab(), QEMU.get()) else {
        return;
    };
    // SAFETY: `translated` gave a run that is kept for good.
    let kept = unsafe { &*run.cast::<KeptRun>() };
    if lab.warm_up_left > 0 && lab.marks > 0 && !lab.ended {
        lab.warm_up(qemu, kept.run.run.instructions());
    }
    lab.model.enter(vcpu as usize, kept.kernel);
    let stall = lab.model.block(vcpu as usize, &kept.run, qemu);
    if stall > 0 {
        // SAFETY: QEMU's function, in a callback of a CPU.
        unsafe { (qemu.lab.stall)(stall) };
    }
}

/// An instruction has accessed memory.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn access(vcpu: c_uint, kind: AccessKind, address: u64, code: *mut c_void) {
    // SAFETY: as this function's.
    let Some(mut entered) = (unsafe { enter() }) else {
        return;
    };
    let (Some(lab), Some(qemu), Some(memory)) = (entered.lab(), QEMU.get(), MEMORY.get()) else {
        return;
    };
    // SAFETY: QEMU's functions, in a callback for that access.
    let place = unsafe {
        let found = (qemu.system.get_hwaddr)(kind.0, address);
        if found.is_null() || (qemu.system.hwaddr_is_io)(found) {
            None
        } else {
            memory.place(memory::host_address(found))
        }
    };
    let Some(place) = place else {
        lab.model.count(LabCount::DeviceReferences, 1);
        return;
    };
    let code = code as u64;
    let reference = Access {
        cpu: vcpu as usize,
        address,
        place,
        instruction: code,
        size_bytes: kind.size_bytes(),
        kernel: code & Code::KERNEL != 0,
        repeats: code & Code::REPEATS != 0,
    };
    let store = kind.is_store(StoreBit::known());
    let stall = lab.model.access(&reference, store, qemu);
    if stall > 0 {
        // SAFETY: QEMU's function, in a callback of a CPU.
        unsafe { (qemu.lab.stall)(stall) };
    }
}

/// An instruction has accessed memory atomically. Its store stands for its load, too.
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
