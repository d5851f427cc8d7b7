//! What the library does for itself, which the tracer leaves out.

#[cfg(target_arch = "x86_64")]
use nearpage_wire::trace::{COUNT_AGAIN_MARK, LEAVE_OUT_MARK};

/// While it lives, the calling thread's references are not the program's to a tracer that emulates
/// the processor. To a processor it is two instructions that do nothing.
#[derive(Debug)]
pub struct LeftOut(());

/// An instruction of eight bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! mark {
    ($bytes:expr) => {
        // SAFETY: a nop.
        unsafe {
            core::arch::asm!(
                ".quad {bytes}",
                bytes = const u64::from_le_bytes($bytes),
                options(nostack, preserves_flags),
            );
        }
    };
}

impl LeftOut {
    /// The calling thread's references are left out from here on.
    #[inline(always)]
    pub fn begin() -> Self {
        #[cfg(target_arch = "x86_64")]
        mark!(LEAVE_OUT_MARK);
        Self(())
    }
}

impl Drop for LeftOut {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        mark!(COUNT_AGAIN_MARK);
    }
}
