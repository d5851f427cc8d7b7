//! x86: which memory accesses a sample stands for.

pub(crate) mod chase;
mod flow;
mod instruction;
mod judge;

use crate::error::Error;

pub(crate) use flow::{Code, Flow};
pub(crate) use judge::Judge;

/// `sample_regs_user`: AX BX CX DX SI DI BP SP R8–R15.
pub(crate) const REGISTER_MASK: u64 = 0xff_00ff;

/// Can samples be decoded here?
pub(crate) fn supported() -> Result<(), Error> {
    Ok(())
}
