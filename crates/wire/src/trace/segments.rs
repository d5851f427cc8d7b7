//! Regions of the address space of Linux on x86-64, and marks by which a guest or the preload library says what is to
//! be traced.

/// A region of the kernel's address space, as Linux lays it out on x86-64 (`Documentation/arch/x86/x86_64/mm.rst`),
/// with page tables of four or five levels. The region of an address is known only if the kernel was started with
/// `nokaslr`: otherwise, the kernel moves the direct map, vmalloc and struct page elsewhere within the same range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Segment {
    /// The lower half: programs' memory, including copies by the kernel from or to it.
    #[default]
    User = 0,
    /// Text and static data of the kernel's image.
    KernelImage = 1,
    /// Text and data of modules.
    Modules = 2,
    /// All memory as the kernel sees it: memory of its page and slab allocators, the page cache, page tables.
    DirectMap = 3,
    /// vmalloc and ioremap: stacks of the kernel, tables.
    Vmalloc = 4,
    /// vmemmap: `struct page`.
    PageStructs = 5,
    /// Accesses through GS: data of each CPU, which lies in the direct map or in vmalloc.
    PerCpu = 6,
    /// Anything else: entry stacks, fixed mappings.
    Other = 7,
}

impl Segment {
    /// All regions, by number.
    pub const ALL: [Self; 8] = [
        Self::User,
        Self::KernelImage,
        Self::Modules,
        Self::DirectMap,
        Self::Vmalloc,
        Self::PageStructs,
        Self::PerCpu,
        Self::Other,
    ];

    /// The region with this number.
    #[inline]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The region of a virtual address; `gs` tells whether the instruction names the segment register GS.
    #[inline]
    pub fn of(address: u64, gs: bool) -> Self {
        if address >> 63 == 0 {
            return Self::User;
        }
        match address {
            0xffff_ffff_8000_0000..0xffff_ffff_a000_0000 if !gs => Self::KernelImage,
            _ if gs => Self::PerCpu,
            0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000 => Self::Modules,
            0xffff_8880_0000_0000..0xffff_c880_0000_0000
            | 0xff11_0000_0000_0000..0xff91_0000_0000_0000 => Self::DirectMap,
            0xffff_c900_0000_0000..0xffff_e900_0000_0000
            | 0xffa0_0000_0000_0000..0xffd2_0000_0000_0000 => Self::Vmalloc,
            0xffff_ea00_0000_0000..0xffff_eb00_0000_0000
            | 0xffd4_0000_0000_0000..0xffd6_0000_0000_0000 => Self::PageStructs,
            _ => Self::Other,
        }
    }

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::KernelImage => "kernel image",
            Self::Modules => "modules",
            Self::DirectMap => "direct map",
            Self::Vmalloc => "vmalloc",
            Self::PageStructs => "struct page",
            Self::PerCpu => "per-CPU",
            Self::Other => "other",
        }
    }
}

/// An instruction that does nothing, by which a program in a guest says that tracing begins:
/// `nopl 0x314d504e(%rax,%rax,1)`, the last four bytes "NPM1".
pub const BEGIN_MARK: [u8; 8] = *b"\x0f\x1f\x84\x00NPM1";
/// An instruction that does nothing, by which a program in a guest says that tracing ends.
pub const END_MARK: [u8; 8] = *b"\x0f\x1f\x84\x00NPM2";
/// An instruction that does nothing, by which the preload library says that the thread's next instructions are not the
/// program's and a tracer must leave them out. Such stretches may be nested.
pub const LEAVE_OUT_MARK: [u8; 8] = *b"\x0f\x1f\x84\x00NPM3";
/// The end of such a stretch.
pub const COUNT_AGAIN_MARK: [u8; 8] = *b"\x0f\x1f\x84\x00NPM4";
/// An instruction that does nothing, by which a guest of the lab says that it has booted, and needs nothing of the host
/// yet.
pub const BOOTED_MARK: [u8; 8] = *b"\x0f\x1f\x84\x00NPM5";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_four_levels_and_of_five() {
        for (address, segment) in [
            (0x7fff_ffff_f000, Segment::User),
            (0xffff_8880_0000_0000, Segment::DirectMap),
            (0xffff_c87f_ffff_ffff, Segment::DirectMap),
            (0xffff_c900_0000_4000, Segment::Vmalloc),
            (0xffff_ea00_0012_3440, Segment::PageStructs),
            (0xffff_fe00_0000_2000, Segment::Other),
            (0xffff_ffff_8100_0000, Segment::KernelImage),
            (0xffff_ffff_a000_0000, Segment::Modules),
            (0xffff_ffff_c012_3000, Segment::Modules),
            (0xffff_ffff_ff57_9000, Segment::Other),
            (0xff11_0000_0000_1000, Segment::DirectMap),
            (0xffa0_0000_0000_1000, Segment::Vmalloc),
            (0xffd4_0000_0000_1000, Segment::PageStructs),
        ] {
            assert_eq!(Segment::of(address, false), segment, "{address:#x}");
        }
        assert_eq!(Segment::of(0xffff_8880_3e00_0000, true), Segment::PerCpu);
        assert_eq!(Segment::of(0x7fff_0000_1000, true), Segment::User);
        for (number, segment) in (0..).zip(Segment::ALL) {
            assert_eq!(Segment::from_number(number), Some(segment));
            assert_eq!(segment as u8, number);
        }
        assert_eq!(Segment::from_number(8), None);
    }
}
