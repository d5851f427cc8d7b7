//! Before time is modelled: nothing of the guest is looked at but marks.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use nearpage_wire::lab::LabSetup;
use nearpage_wire::trace::{BEGIN_MARK, BOOTED_MARK};

use super::emulator::QEMU;
use crate::guest::text;
use crate::instructions::at;
use crate::qemu::{self, Block, Id};

/// The guest stops for good where it says that it has booted.
static STOP_BOOTED: AtomicBool = AtomicBool::new(false);
/// Begin marks until time is modelled.
static BEGIN_MARKS_LEFT: AtomicU64 = AtomicU64::new(0);

/// What marks are to bring about.
pub(super) fn expect(setup: &LabSetup<'_>) {
    BEGIN_MARKS_LEFT.store(setup.begin_marks, Relaxed);
    STOP_BOOTED.store(setup.stop_booted, Relaxed);
}

/// Looks for marks alone.
///
/// # Safety
/// QEMU calls it, as the ones below.
pub(super) unsafe extern "C" fn translated(_: Id, block: *mut Block) {
    let Some(interface) = qemu::qemu() else {
        return;
    };
    // SAFETY: QEMU's functions, with the block that QEMU is translating and what belongs to it.
    unsafe {
        for number in 0..(interface.tb_n_insns)(block) {
            let instruction = (interface.tb_get_insn)(block, number);
            if instruction.is_null() {
                continue;
            }
            let text = text(interface, instruction);
            if text == BEGIN_MARK {
                at(
                    interface,
                    instruction,
                    begin_mark_before,
                    std::ptr::null::<()>(),
                );
            } else if text == BOOTED_MARK && STOP_BOOTED.load(Relaxed) {
                at(interface, instruction, booted, std::ptr::null::<()>());
            }
        }
    }
}

/// The guest has booted, and is to stop there.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn booted(_: c_uint, _: *mut c_void) {
    if let Some(qemu) = QEMU.get() {
        // SAFETY: QEMU's function, in a callback of a CPU.
        unsafe { (qemu.lab.pause)() };
    }
}

/// A begin mark before which nothing is modelled.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn begin_mark_before(_: c_uint, _: *mut c_void) {
    let before = BEGIN_MARKS_LEFT.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    if let Some(qemu) = QEMU.get().filter(|_| before == Ok(1)) {
        // SAFETY: QEMU's function, in a callback of a CPU.
        unsafe { (qemu.system.reset)(qemu.id, begin_now) };
    }
}

/// Begins to model once no CPU runs.
///
/// # Safety
/// QEMU calls it.
unsafe extern "C" fn begin_now(id: Id) {
    // SAFETY: no CPU runs while a plugin is reset.
    unsafe {
        super::listen(id);
        super::begin_mark(0, std::ptr::null_mut());
    }
}
