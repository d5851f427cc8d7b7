//! Marks the library's own work, so that the tracer leaves it out of the trace.

#[cfg(target_arch = "x86_64")]
use nearpage_wire::trace::{COUNT_AGAIN_MARK, LEAVE_OUT_MARK};

/// Until this is dropped, the tracer does not count the calling thread's memory references. On a real processor, the marks
/// are two instructions without effect.
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
    /// Marks the beginning.
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
