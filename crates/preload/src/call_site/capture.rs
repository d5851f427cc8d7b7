//! What libgcc's unwinder calls with each frame.

use core::ffi::{c_int, c_void};

use nearpage_wire::CALL_SITE_DEPTH_MAX;

use super::{Caller, NO_PLACE};

/// What one unwinding found.
pub(super) struct Capture {
    pub(super) caller: Caller,
    pub(super) get_ip: extern "C" fn(*mut c_void) -> usize,
    pub(super) get_cfa: extern "C" fn(*mut c_void) -> usize,
    pub(super) found: bool,
    pub(super) last_cfa: usize,
    pub(super) stack_top: usize,
    pub(super) count: usize,
    pub(super) frames: [usize; CALL_SITE_DEPTH_MAX],
    pub(super) places: [u32; CALL_SITE_DEPTH_MAX],
}

impl Capture {
    pub(super) fn push(&mut self, frame: usize, place: u32) -> bool {
        if let (Some(to), Some(at)) = (
            self.frames.get_mut(self.count),
            self.places.get_mut(self.count),
        ) {
            (*to, *at) = (frame, place);
            self.count += 1;
        }
        self.count < CALL_SITE_DEPTH_MAX
    }

    /// Distance on the stack from the caller to the return address `frame`.
    pub(super) fn place(&self, frame: usize, cfa: usize) -> u32 {
        if self.stack_top == 0 || cfa <= self.caller.at || cfa > self.stack_top {
            return NO_PLACE;
        }
        let lowest = self.last_cfa.max(self.caller.at);
        let mut at = cfa - 8;
        for _ in 0..256 {
            if at < lowest {
                break;
            }
            // SAFETY: between the caller's stack pointer and the top of its stack.
            if at.is_multiple_of(8) && unsafe { *(at as *const usize) } == frame {
                return (at - self.caller.at) as u32;
            }
            if cfg!(target_arch = "x86_64") {
                break;
            }
            at -= 8;
        }
        NO_PLACE
    }
}

pub(super) extern "C" fn visit_frame(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: `unwind` passes its capture.
    let capture = unsafe { &mut *data.cast::<Capture>() };
    let (frame, cfa) = ((capture.get_ip)(context), (capture.get_cfa)(context));
    if frame == 0 {
        return 5;
    }
    if !capture.found {
        capture.found = frame == capture.caller.address && cfa >= capture.caller.at;
        if !capture.found {
            return 0;
        }
    }
    let place = capture.place(frame, cfa);
    capture.last_cfa = cfa;
    // 5 is _URC_END_OF_STACK: any answer but 0 ends the walk.
    if capture.push(frame, place) { 0 } else { 5 }
}
