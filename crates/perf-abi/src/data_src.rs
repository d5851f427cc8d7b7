//! Decodes `PERF_SAMPLE_DATA_SRC` (`union perf_mem_data_src`, include/uapi/linux/perf_event.h): in the kernel's rings,
//! in perf.data and in the text of `perf script`.
//!
//! ```text
//! bits   0–4 mem_op    5–18 mem_lvl   19–23 mem_snoop  24–25 mem_lock  26–32 mem_dtlb
//!      33–36 mem_lvl_num  37 mem_remote  38–39 mem_snoopx  40–42 mem_blk  43–45 mem_hops
//!      46–50 mem_region
//! ```
//!
//! `mem_lvl_num`, `mem_remote` and `mem_hops` are more precise if a kernel (4.14 and later) sets them; `mem_lvl` has a
//! bit for each level that may have served the access. Of snoops, only answers by another core's cache on Arm are
//! decoded. Of the TLB field, only whether all TLBs missed is decoded, and of regions (Linux 7.0 and later, Intel's
//! Diamond Rapids), only whether they are devices'. Values of later kernels make a word
//! [undecoded](DataSource::is_undecoded), with an unknown level.

/// Values of `mem_op`.
const OP_LOAD: u64 = 0x02;
const OP_STORE: u64 = 0x04;
const OP_PREFETCH: u64 = 0x08;
const OP_FETCH: u64 = 0x10;

const LEVEL_NOT_AVAILABLE: u64 = 0x01;
const LEVEL_HIT: u64 = 0x02;
const LEVEL_MISS: u64 = 0x04;

/// `mem_dtlb`.
const TLB_NOT_AVAILABLE: u64 = 0x01;
const TLB_HIT: u64 = 0x02;
const TLB_MISS: u64 = 0x04;
const TLB_WALKER: u64 = 0x20;

/// Values of `mem_lvl_num` (`PERF_MEM_LVLNUM_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod level_number {
    pub const L1: u64 = 0x1;
    pub const L2: u64 = 0x2;
    pub const L3: u64 = 0x3;
    /// Memory-side caches count as the memory that they belong to.
    pub const L4: u64 = 0x4;
    pub const L2_MISS_HANDLING: u64 = 0x5;
    pub const MEMORY_SIDE_CACHE: u64 = 0x6;
    /// Intel's Panther Cove has a level before the first.
    pub const L0: u64 = 0x7;
    pub const CXL: u64 = 0x9;
    pub const ANY_CACHE: u64 = 0xb;
    pub const LINE_FILL_BUFFER: u64 = 0xc;
    pub const RAM: u64 = 0xd;
    pub const PERSISTENT: u64 = 0xe;
    pub const NOT_AVAILABLE: u64 = 0xf;
}

/// `mem_hops` of another core on the same node.
const HOPS_SAME_NODE: u64 = 1;
/// Largest known `mem_hops`: another board.
const HOPS_MAX: u64 = 4;
/// `mem_region` of devices' registers.
const REGION_DEVICES: u64 = 7;
/// Largest known `mem_region`: the last of eight regions of memory.
const REGION_MAX: u64 = 15;
/// Number of bits up to the end of `mem_region`.
const BITS: u32 = 51;
/// `mem_snoopx` if a cache of another core had the data.
const SNOOP_PEER: u64 = 2;

/// What an instruction did to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A load or a prefetch.
    Load,
    /// A store, or a load and a store.
    Store,
    /// An instruction fetch.
    Fetch,
}

/// Where the data was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "levels of the memory hierarchy")]
pub enum Level {
    Unknown,
    L1,
    L2,
    /// The node's last-level cache, or a cache of another core of the node.
    L3,
    LineFillBuffer,
    LocalMemory,
    RemoteMemory,
    RemoteCache,
}

/// The `data_src` word of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSource(pub u64);

impl DataSource {
    /// An access of unknown origin.
    pub fn new(operation: Operation) -> Self {
        let op = match operation {
            Operation::Load => OP_LOAD,
            Operation::Store => OP_STORE,
            Operation::Fetch => OP_FETCH,
        };
        Self(op)
    }

    /// Sets the level at which the data was. `number` is a `mem_lvl_num`, so that a source can be more precise than a
    /// [`Level`].
    pub fn served_by(self, number: u64) -> Self {
        Self(self.0 | number << 33)
    }

    /// Sets whether the data was on another node.
    pub fn on_other_node(self, remote: bool) -> Self {
        Self(self.0 | u64::from(remote) << 37)
    }

    /// Sets whether a page table was walked for the access; otherwise, a TLB had the page.
    pub fn with_tlb_miss(self, missed: bool) -> Self {
        let result = if missed { TLB_MISS } else { TLB_HIT };
        Self(self.0 | (TLB_WALKER | result) << 26)
    }

    /// Whether no TLB had the page; `None` if the source does not say.
    pub fn tlb_miss(self) -> Option<bool> {
        match self.0 >> 26 & 0x7f {
            tlb if tlb & TLB_NOT_AVAILABLE != 0 => None,
            tlb if tlb & TLB_MISS != 0 => Some(true),
            tlb if tlb & TLB_HIT != 0 => Some(false),
            _ => None,
        }
    }

    /// Operation of the access; `None` if the source does not say.
    pub fn operation(self) -> Option<Operation> {
        match self.0 & 0x1f {
            op if op & OP_STORE != 0 => Some(Operation::Store),
            op if op & (OP_LOAD | OP_PREFETCH) != 0 => Some(Operation::Load),
            op if op & OP_FETCH != 0 => Some(Operation::Fetch),
            _ => None,
        }
    }

    /// Whether the word has values that this module does not know, as a later kernel's may.
    pub fn is_undecoded(self) -> bool {
        self.hops() > HOPS_MAX || self.region() > REGION_MAX || self.0 >> BITS != 0
    }

    fn hops(self) -> u64 {
        self.0 >> 43 & 7
    }

    fn region(self) -> u64 {
        self.0 >> 46 & 0x1f
    }

    /// Level that served the access.
    pub fn level(self) -> Level {
        use level_number::*;
        let levels = self.0 >> 5 & 0x3fff;
        if self.is_undecoded() || self.region() == REGION_DEVICES {
            return Level::Unknown;
        }
        if levels & LEVEL_MISS != 0 && levels & LEVEL_HIT == 0 {
            // The data was not at this level; the record does not say where it was.
            return Level::Unknown;
        }
        let remote = self.0 >> 37 & 1 != 0;
        let cache = match (remote, self.hops()) {
            (false, _) | (true, HOPS_SAME_NODE) => Level::L3,
            (true, _) => Level::RemoteCache,
        };
        let peer = self.0 >> 38 & 3 == SNOOP_PEER;
        match self.0 >> 33 & 0xf {
            // perf writes this for stores on Neoverse, whose hardware does not say what served them.
            ANY_CACHE if levels & LEVEL_NOT_AVAILABLE != 0 => Level::Unknown,
            L1 | L2 if peer => cache,
            L0 | L1 => Level::L1,
            L2 | L2_MISS_HANDLING => Level::L2,
            L3 | ANY_CACHE => cache,
            LINE_FILL_BUFFER => Level::LineFillBuffer,
            // Arm's value for another socket: the cache of a core there, at any level.
            NOT_AVAILABLE if remote && peer => Level::RemoteCache,
            L4 | MEMORY_SIDE_CACHE | RAM | PERSISTENT | CXL if remote => Level::RemoteMemory,
            L4 | MEMORY_SIDE_CACHE | RAM | PERSISTENT | CXL => Level::LocalMemory,
            _ => by_bits(levels),
        }
    }
}

/// The level by `mem_lvl`; if several bits are set, the farthest level.
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
            assert_eq!(DataSource(data_src).level(), expected, "{data_src:#x}");
            assert_eq!(
                DataSource(data_src).operation(),
                Some(Operation::Load),
                "{data_src:#x}"
            );
        }
    }

    #[test]
    fn tlb_results() {
        for (data_src, expected) in [
            // perf prints these as: L1 or L2 hit, L2 miss, L1 or L2 hit, not available.
            (0x102_6810_0142, Some(false)),
            (0x104_5010_0442, Some(true)),
            (0x118_6810_0242, Some(false)),
            (0x508_0022, None),
            (0, None),
            (DataSource(0).with_tlb_miss(true).0, Some(true)),
            (DataSource(0).with_tlb_miss(false).0, Some(false)),
        ] {
            assert_eq!(DataSource(data_src).tlb_miss(), expected, "{data_src:#x}");
        }
    }

    fn fields(op: u64, lvl: u64, number: u64, remote: u64, hops: u64) -> u64 {
        op | lvl << 5 | number << 33 | remote << 37 | hops << 43
    }

    /// Values as the kernel's tables write them (arch/x86/events/intel/ds.c, amd/ibs.c; perf_event.h).
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
            // AMD: another core's cache on the same node, and a cache on another node.
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
            assert_eq!(DataSource(data_src).level(), expected, "{data_src:#x}");
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
            assert_eq!(DataSource(hit).level(), expected, "{hit:#x}");
            let miss = fields(OP_STORE, bits | LEVEL_MISS, 0, 0, 0);
            assert_eq!(DataSource(miss).level(), Level::Unknown, "{miss:#x}");
        }
    }

    const SNOOP_NONE: u64 = 0x02 << 19;
    const SNOOP_HIT: u64 = 0x04 << 19;
    const SNOOP_HITM: u64 = 0x10 << 19;
    const SNOOP_FORWARD: u64 = 1 << 38;

    fn load_hit(lvl: u64, number: u64, remote: u64, hops: u64, snoop: u64) -> u64 {
        fields(OP_LOAD, lvl | LEVEL_HIT, number, remote, hops) | snoop
    }

    fn levels_are(words: &[(&str, u64, Level)]) {
        for &(printed, data_src, expected) in words {
            let level = DataSource(data_src).level();
            assert_eq!(level, expected, "{printed}: {data_src:#x}");
        }
    }

    /// Words as tools/perf/util/arm-spe.c writes them, with the text that perf prints.
    #[test]
    fn words_of_todays_kernels_on_neoverse() {
        use level_number::*;
        const PEER: u64 = SNOOP_PEER << 38;
        levels_are(&[
            (
                "Neoverse: L1 hit, None",
                load_hit(0x08, L1, 0, 0, SNOOP_NONE),
                Level::L1,
            ),
            (
                "Neoverse: L2 hit, Peer",
                load_hit(0x20, L2, 0, 0, PEER),
                Level::L3,
            ),
            (
                "Neoverse: L3 hit, Peer",
                load_hit(0x40, L3, 0, 0, PEER),
                Level::L3,
            ),
            (
                "Neoverse: L3 hit, Hit",
                load_hit(0x40, L3, 0, 0, SNOOP_HIT),
                Level::L3,
            ),
            (
                "Neoverse: Remote RAM hit, Peer",
                load_hit(0x100, RAM, 1, 0, PEER),
                Level::RemoteMemory,
            ),
            (
                "Neoverse: RAM hit, None",
                load_hit(0x80, RAM, 0, 0, SNOOP_NONE),
                Level::LocalMemory,
            ),
            // Linux 6.14 and later.
            (
                "Neoverse: N/A, Peer, from another socket",
                fields(OP_LOAD, LEVEL_NOT_AVAILABLE, NOT_AVAILABLE, 1, 0) | PEER,
                Level::RemoteCache,
            ),
            (
                "HiSilicon: Remote Any cache, HitM or Peer",
                fields(OP_LOAD, 0x800, ANY_CACHE, 1, 0) | SNOOP_HITM | PEER,
                Level::RemoteCache,
            ),
            (
                "HiSilicon: L2 hit, HitM or Peer",
                load_hit(0x20, L2, 0, 0, SNOOP_HITM | PEER),
                Level::L3,
            ),
            (
                "generic: L3 miss",
                fields(OP_LOAD, 0x40 | LEVEL_MISS, L3, 0, 0),
                Level::Unknown,
            ),
            (
                "Neoverse: a store, N/A",
                fields(OP_STORE, LEVEL_NOT_AVAILABLE, ANY_CACHE, 0, 0),
                Level::Unknown,
            ),
        ]);
    }

    /// Words as arch/x86/events/intel/ds.c (Skylake on, Alder Lake's and Lunar Lake's cores) and
    /// arch/x86/events/amd/ibs.c (Zen 4) write them, with the text that perf prints.
    #[test]
    fn words_of_todays_kernels_on_x86() {
        use level_number::*;
        levels_are(&[
            (
                "Intel: L3 hit, HitM",
                load_hit(0x40, L3, 0, 0, SNOOP_HITM | SNOOP_FORWARD),
                Level::L3,
            ),
            (
                "Intel: Remote L3 hit, HitM",
                load_hit(0x400, L3, 1, 0, SNOOP_HITM),
                Level::RemoteCache,
            ),
            (
                "Intel: Remote RAM hit, Hit",
                load_hit(0x100, RAM, 1, 0, SNOOP_HIT),
                Level::RemoteMemory,
            ),
            (
                "Intel: LFB hit",
                load_hit(0x10, LINE_FILL_BUFFER, 0, 0, SNOOP_NONE),
                Level::LineFillBuffer,
            ),
            (
                "Intel: L2 MHB hit",
                load_hit(0, L2_MISS_HANDLING, 0, 0, SNOOP_NONE),
                Level::L2,
            ),
            (
                "Intel: MSC hit",
                load_hit(0, MEMORY_SIDE_CACHE, 0, 0, SNOOP_NONE),
                Level::LocalMemory,
            ),
            (
                "AMD: Any cache, core of the node",
                load_hit(0, ANY_CACHE, 1, 1, 0),
                Level::L3,
            ),
            (
                "AMD: Any cache, another node",
                load_hit(0, ANY_CACHE, 1, 2, 0),
                Level::RemoteCache,
            ),
            (
                "AMD: CXL hit",
                load_hit(0, CXL, 0, 0, 0),
                Level::LocalMemory,
            ),
        ]);
    }

    /// Words as `pnc_latency_data` of arch/x86/events/intel/ds.c writes them for Panther Cove and Diamond Rapids.
    #[test]
    fn words_with_regions() {
        use level_number::*;
        const REGION: u32 = 46;
        levels_are(&[
            ("L0 hit", load_hit(0, L0, 0, 0, SNOOP_NONE), Level::L1),
            (
                "L3 hit, the node's shared cache",
                load_hit(0x40, L3, 0, 0, SNOOP_HIT) | 2 << REGION,
                Level::L3,
            ),
            (
                "Remote L3 hit, HitM, another's cache",
                load_hit(0x440, L3, 1, 0, SNOOP_HITM) | 6 << REGION,
                Level::RemoteCache,
            ),
            (
                "RAM hit, memory region 0",
                load_hit(0x80, RAM, 0, 0, SNOOP_HIT) | 8 << REGION,
                Level::LocalMemory,
            ),
            (
                "Remote RAM hit, memory region 7",
                load_hit(0x100, RAM, 1, 0, SNOOP_HIT) | 15 << REGION,
                Level::RemoteMemory,
            ),
            (
                "RAM hit, registers of devices",
                load_hit(0, RAM, 0, 0, SNOOP_HIT) | 7 << REGION,
                Level::Unknown,
            ),
        ]);
    }

    #[test]
    fn values_of_later_kernels_are_undecoded() {
        use level_number::*;
        let known = load_hit(0x80, RAM, 1, 4, SNOOP_HIT) | 15 << 46;
        assert!(!DataSource(known).is_undecoded());
        for later in [
            fields(OP_LOAD, LEVEL_HIT, RAM, 1, 5),
            known | 16 << 46,
            known | 1 << 51,
        ] {
            let source = DataSource(later);
            assert!(source.is_undecoded(), "{later:#x}");
            assert_eq!(source.level(), Level::Unknown, "{later:#x}");
        }
    }

    #[test]
    fn kinds() {
        for (op, expected) in [
            (0x01, None),
            (0x00, None),
            (0x02, Some(Operation::Load)),
            (0x04, Some(Operation::Store)),
            (0x06, Some(Operation::Store)),
            (0x08, Some(Operation::Load)),
            (0x10, Some(Operation::Fetch)),
        ] {
            assert_eq!(DataSource(op | 0xffff << 5).operation(), expected, "{op}");
        }
        for operation in [Operation::Load, Operation::Store, Operation::Fetch] {
            let source = DataSource::new(operation).served_by(level_number::RAM);
            assert_eq!(source.operation(), Some(operation));
            assert_eq!(source.level(), Level::LocalMemory);
            assert_eq!(source.on_other_node(true).level(), Level::RemoteMemory);
        }
    }
}
