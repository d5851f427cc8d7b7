//! Instructions and blocks, packed into the word that QEMU passes to a callback.

/// Bits of a guest address.
pub(super) const ADDRESS_BITS: u32 = 47;

/// The bits of the kernel's addresses above those.
pub(super) const UPPER_HALF: u64 = u64::MAX << ADDRESS_BITS;

/// An instruction that accesses memory: its address, its number in its block, and properties of the access.
#[derive(Clone, Copy, Default)]
pub struct Code(pub u64);

impl Code {
    /// The access writes.
    pub(super) const STORE: u64 = 1 << 63;
    /// The instruction is in the kernel's half of a guest's address space.
    pub(super) const KERNEL: u64 = 1 << 62;
    pub(super) const REPEATS: u64 = 1 << 61;
    /// The instruction has the prefix of the segment register GS.
    pub(super) const GS: u64 = 1 << 60;
    /// Stands for the beginning of a block instead of an access.
    pub(super) const BLOCK: Self = Self(u64::MAX);

    /// Packs them; a block has at most 512 instructions. `repeats`: consecutive accesses are
    /// references of their own.
    pub fn new(instruction: u64, number: usize, repeats: bool) -> Self {
        let address = instruction & ((1 << ADDRESS_BITS) - 1);
        let repeats = if repeats { Self::REPEATS } else { 0 };
        Self(address | (number as u64 & 511) << ADDRESS_BITS | repeats)
    }

    /// The same instruction of a guest.
    pub fn in_guest(self, instruction: u64, gs: bool) -> Self {
        let kernel = if instruction >> 63 == 1 {
            Self::KERNEL
        } else {
            0
        };
        Self(self.0 | kernel | if gs { Self::GS } else { 0 })
    }

    #[inline]
    pub(super) fn is_kernel(self) -> bool {
        self.0 & Self::KERNEL != 0
    }

    #[inline]
    pub(super) fn instruction(self) -> u64 {
        let upper = if self.is_kernel() { UPPER_HALF } else { 0 };
        self.0 & ((1 << ADDRESS_BITS) - 1) | upper
    }

    #[inline]
    pub(super) fn number(self) -> u64 {
        self.0 >> ADDRESS_BITS & 511
    }
}

/// A block: its address, its number of instructions, and the number of lines that it spans.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run(pub u64);

/// A guest's block, in one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlacedRun {
    /// The block.
    pub run: Run,
    /// Page of the guest's memory ([`crate::memory`]).
    pub frame: u32,
    /// The block is the kernel's.
    pub kernel: bool,
}

impl Run {
    /// Packs them: at most 512 instructions, 256 lines.
    pub fn new(address: u64, instructions: usize, lines: u64) -> Self {
        Self(
            address & ((1 << ADDRESS_BITS) - 1)
                | ((instructions as u64 - 1) & 511) << ADDRESS_BITS
                | ((lines - 1) & 255) << 56,
        )
    }

    #[inline]
    pub(crate) fn address(self) -> u64 {
        self.0 & ((1 << ADDRESS_BITS) - 1)
    }

    /// Its address, if it is the kernel's.
    pub(crate) fn kernel_address(self) -> u64 {
        self.address() | UPPER_HALF
    }

    #[inline]
    pub(crate) fn instructions(self) -> u64 {
        (self.0 >> ADDRESS_BITS & 511) + 1
    }

    #[inline]
    pub(crate) fn lines(self) -> u64 {
        (self.0 >> 56) + 1
    }
}
