//! AArch64: the instruction decoder, and the registers in samples.

#[cfg(target_arch = "aarch64")]
pub(crate) mod chase;
mod decode;

pub(crate) use decode::Decoder;

/// `sample_regs_user`: X0–X30 SP (`arch/arm64/include/uapi/asm/perf_regs.h`).
#[cfg(target_arch = "aarch64")]
pub(crate) const REGISTER_MASK: u64 = 0xffff_ffff;

/// Number of the registers in the mask.
#[cfg(target_arch = "aarch64")]
pub(crate) const GENERAL_REGISTERS: usize = 32;

#[cfg(test)]
mod tests;
