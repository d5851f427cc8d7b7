//! What `PERF_SAMPLE_DATA_SRC` says (`union perf_mem_data_src`, include/uapi/linux/perf_event.h):
//! in the kernel's rings, in perf.data and in what `perf script` prints.
//!
//! ```text
//! bits   0–4 mem_op    5–18 mem_lvl   19–23 mem_snoop  24–25 mem_lock  26–32 mem_dtlb
//!      33–36 mem_lvl_num  37 mem_remote  38–39 mem_snoopx  40–42 mem_blk  43–45 mem_hops
//! ```
//!
//! `mem_lvl_num`, `mem_remote` and `mem_hops` say it better where a kernel (4.14 and later) fills
//! them in; `mem_lvl` is a bit for each level that may have served the access. Snoops are
//! not kept, and of TLBs it is only looked whether they missed: an access has no room for them.

use crate::{AccessKind, Level};

/// Values of the fields above.
const OP_LOAD: u64 = 0x02;
const OP_STORE: u64 = 0x04;
const OP_PREFETCH: u64 = 0x08;
const OP_FETCH: u64 = 0x10;

const LEVEL_HIT: u64 = 0x02;
const LEVEL_MISS: u64 = 0x04;

/// `mem_dtlb`.
const TLB_NOT_AVAILABLE: u64 = 0x01;
const TLB_HIT: u64 = 0x02;
const TLB_MISS: u64 = 0x04;
const TLB_WALKER: u64 = 0x20;

/// `mem_lvl_num`, of those that say where the data was.
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod level_number {
    pub const L1: u64 = 0x1;
    pub const L2: u64 = 0x2;
    pub const L3: u64 = 0x3;
    /// Memory-side caches are the memory's.
    pub const L4: u64 = 0x4;
    pub const L2_MISS_HANDLING: u64 = 0x5;
    pub const MEMORY_SIDE_CACHE: u64 = 0x6;
    pub const CXL: u64 = 0x9;
    pub const ANY_CACHE: u64 = 0xb;
    pub const LINE_FILL_BUFFER: u64 = 0xc;
    pub const RAM: u64 = 0xd;
    pub const PERSISTENT: u64 = 0xe;
}

/// `mem_hops`: another core of the same node.
const HOPS_SAME_NODE: u64 = 1;

/// A load or store served by `number`, as [`level`] and [`kind`] read it.
pub fn encode(store: bool, number: u64, remote: bool) -> u64 {
    let op = if store { OP_STORE } else { OP_LOAD };
    op | number << 33 | u64::from(remote) << 37
}

/// Did no TLB have the page? `None` where the source does not say.
pub fn tlb_miss(data_src: u64) -> Option<bool> {
    match data_src >> 26 & 0x7f {
        tlb if tlb & TLB_NOT_AVAILABLE != 0 => None,
        tlb if tlb & TLB_MISS != 0 => Some(true),
        tlb if tlb & TLB_HIT != 0 => Some(false),
        _ => None,
    }
}

/// `mem_dtlb` of an access for which a page table was walked, or was not.
pub fn encode_tlb(walked: bool) -> u64 {
    let result = if walked { TLB_MISS } else { TLB_HIT };
    (TLB_WALKER | result) << 26
}

/// What kind of access it was; `None` where the source does not say.
pub fn kind(data_src: u64) -> Option<AccessKind> {
    match data_src & 0x1f {
        op if op & OP_STORE != 0 => Some(AccessKind::Store),
        op if op & (OP_LOAD | OP_PREFETCH) != 0 => Some(AccessKind::Load),
        op if op & OP_FETCH != 0 => Some(AccessKind::Fetch),
        _ => None,
    }
}

/// What served it.
pub fn level(data_src: u64) -> Level {
    use level_number::*;
    let levels = data_src >> 5 & 0x3fff;
    if levels & LEVEL_MISS != 0 && levels & LEVEL_HIT == 0 {
        // Not there; where, it does not say.
        return Level::Unknown;
    }
    let remote = data_src >> 37 & 1 != 0;
    let cache = match (remote, data_src >> 43 & 7) {
        (false, _) | (true, HOPS_SAME_NODE) => Level::L3,
        (true, _) => Level::RemoteCache,
    };
    match data_src >> 33 & 0xf {
        L1 => Level::L1,
        L2 | L2_MISS_HANDLING => Level::L2,
        L3 | ANY_CACHE => cache,
        LINE_FILL_BUFFER => Level::LineFillBuffer,
        L4 | MEMORY_SIDE_CACHE | RAM | PERSISTENT | CXL if remote => Level::RemoteMemory,
        L4 | MEMORY_SIDE_CACHE | RAM | PERSISTENT | CXL => Level::LocalMemory,
        _ => by_bits(levels),
    }
}

/// By `mem_lvl`; the farthest of several.
fn by_bits(levels: u64) -> Level {
    match levels {
        _ if levels & 0x300 != 0 => Level::RemoteMemory,
        _ if levels & 0x080 != 0 => Level::LocalMemory,
        _ if levels & 0xc00 != 0 => Level::RemoteCache,
        _ if levels & 0x040 != 0 => Level::L3,
        _ if levels & 0x010 != 0 => Level::LineFillBuffer,
        _ if levels & 0x020 != 0 => Level::L2,
        _ if levels & 0x008 != 0 => Level::L1,
        _ => Level::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values seen on real machines (as perf printed them).
    #[test]
    fn real_values() {
        for (data_src, expected) in [
            (0x102_6810_0142, Level::L1),
            (0x104_5010_0442, Level::L2),
            (0x106_6810_0842, Level::L3),
            (0x118_6810_0242, Level::LineFillBuffer),
            (0x508_0022, Level::Unknown),
        ] {
            assert_eq!(level(data_src), expected, "{data_src:#x}");
            assert_eq!(kind(data_src), Some(AccessKind::Load), "{data_src:#x}");
        }
    }

    #[test]
    fn tlb_results() {
        for (data_src, expected) in [
            // As perf prints them: L1 or L2 hit, L2 miss, L1 or L2 hit, not available.
            (0x102_6810_0142, Some(false)),
            (0x104_5010_0442, Some(true)),
            (0x118_6810_0242, Some(false)),
            (0x508_0022, None),
            (0, None),
            (encode_tlb(true), Some(true)),
            (encode_tlb(false), Some(false)),
        ] {
            assert_eq!(tlb_miss(data_src), expected, "{data_src:#x}");
        }
    }

    fn fields(op: u64, lvl: u64, number: u64, remote: u64, hops: u64) -> u64 {
        op | lvl << 5 | number << 33 | remote << 37 | hops << 43
    }

    /// As the kernel's tables write them (arch/x86/events/intel/ds.c, amd/ibs.c; perf_event.h).
    #[test]
    fn every_level_by_number_and_by_bits() {
        use level_number::*;
        for (number, remote, hops, expected) in [
            (RAM, 0, 0, Level::LocalMemory),
            (RAM, 1, 2, Level::RemoteMemory),
            (PERSISTENT, 0, 0, Level::LocalMemory),
            (CXL, 1, 0, Level::RemoteMemory),
            (MEMORY_SIDE_CACHE, 0, 0, Level::LocalMemory),
            (ANY_CACHE, 0, 0, Level::L3),
            // AMD: a neighbour's cache on the node, and a far one.
            (ANY_CACHE, 1, 1, Level::L3),
            (ANY_CACHE, 1, 2, Level::RemoteCache),
            (L3, 1, 0, Level::RemoteCache),
            (L2_MISS_HANDLING, 0, 0, Level::L2),
            // Not available, not cached, I/O.
            (0xf, 0, 0, Level::Unknown),
            (0x8, 0, 0, Level::Unknown),
            (0xa, 0, 0, Level::Unknown),
        ] {
            let data_src = fields(OP_LOAD, 0, number, remote, hops);
            assert_eq!(level(data_src), expected, "{data_src:#x}");
        }
        for (bits, expected) in [
            (0x08, Level::L1),
            (0x10, Level::LineFillBuffer),
            (0x20, Level::L2),
            (0x40, Level::L3),
            (0x80, Level::LocalMemory),
            (0x100, Level::RemoteMemory),
            (0x200, Level::RemoteMemory),
            (0x400, Level::RemoteCache),
            (0x800, Level::RemoteCache),
            // I/O, not cached.
            (0x1000, Level::Unknown),
            (0x2000, Level::Unknown),
        ] {
            let hit = fields(OP_LOAD, bits | LEVEL_HIT, 0, 0, 0);
            assert_eq!(level(hit), expected, "{hit:#x}");
            let miss = fields(OP_STORE, bits | LEVEL_MISS, 0, 0, 0);
            assert_eq!(level(miss), Level::Unknown, "{miss:#x}");
        }
    }

    #[test]
    fn kinds() {
        for (op, expected) in [
            (0x01, None),
            (0x00, None),
            (0x02, Some(AccessKind::Load)),
            (0x04, Some(AccessKind::Store)),
            (0x06, Some(AccessKind::Store)),
            (0x08, Some(AccessKind::Load)),
            (0x10, Some(AccessKind::Fetch)),
        ] {
            assert_eq!(kind(op | 0xffff << 5), expected, "{op}");
        }
        assert_eq!(kind(encode(true, 1, false)), Some(AccessKind::Store));
    }
}
