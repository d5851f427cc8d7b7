//! x86: the instruction decoder, and the registers in samples.

#[cfg(target_arch = "x86_64")]
pub(crate) mod chase;
mod decode;

pub(crate) use decode::Decoder;

/// `sample_regs_user`: AX BX CX DX SI DI BP SP R8–R15.
#[cfg(target_arch = "x86_64")]
pub(crate) const REGISTER_MASK: u64 = 0xff_00ff;

/// Number of the registers in the mask.
#[cfg(target_arch = "x86_64")]
pub(crate) const GENERAL_REGISTERS: usize = 16;

#[cfg(test)]
mod tests;
