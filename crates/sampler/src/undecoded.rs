//! Stand-in for [`crate::architecture`] on architectures whose instructions are not decoded yet.

pub(crate) use crate::x86_64::Decoder;

pub(crate) const REGISTER_MASK: u64 = 0;
pub(crate) const GENERAL_REGISTERS: usize = 0;

pub(crate) mod chase {
    use crate::calibrate::Places;

    pub(crate) fn run(chain: *const u8, _: u64) -> (*const u8, Places) {
        (
            chain,
            Places {
                begin: 0,
                load: 0,
                after: 0,
            },
        )
    }
}
