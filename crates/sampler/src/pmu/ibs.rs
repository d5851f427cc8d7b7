//! AMD instruction-based sampling of ops: the registers that the kernel copies into a sample.
//!
//! ```text
//! PERF_SAMPLE_RAW of ibs_op   caps:u32 IbsOpCtl IbsOpRip IbsOpData IbsOpData2 IbsOpData3
//!                             IbsDcLinAd IbsDcPhysAd (u64 each), then what newer models add
//! ```
//!
//! Sources: arch/x86/events/amd/ibs.c; fields: arch/x86/include/asm/amd/ibs.h, AMD's Processor Programming Reference.
//! The kernel's own decoding came late (about Linux 6.1), so this module decodes the registers.

use nearpage_perf_abi::{Malformed, u32_at, u64_at};
use nearpage_recording::{AccessKind, Level};

use super::sample::Observation;

/// Data sources have five bits (`IBS_CAPS_ZEN4`).
const CAPS_EXTENDED_SOURCES: u32 = 1 << 11;

/// IbsOpData.
const RIP_INVALID: u64 = 1 << 38;

/// IbsOpData2.
const REMOTE_NODE: u64 = 1 << 4;

/// IbsOpData3.
const LOAD: u64 = 1;
const STORE: u64 = 1 << 1;
/// Both levels of the TLB missed.
const TLB_MISS: u64 = 1 << 3;
const MISS: u64 = 1 << 7;
const UNCACHEABLE: u64 = 1 << 14;
/// The line was already being fetched.
const MISS_WITHOUT_BUFFER: u64 = 1 << 16;
const ADDRESS_VALID: u64 = 1 << 17;
const L2_MISS: u64 = 1 << 20;
const PREFETCH: u64 = 1 << 21;

/// Observation from the registers in `raw`, which begins with `caps`. IbsOpRip replaces `ip` if it is valid.
pub(crate) fn observe(raw: &[u8], ip: u64) -> Result<Observation, Malformed> {
    let caps = u32_at(raw, 0)?;
    let register = |index: usize| u64_at(raw, 4 + 8 * index);
    let (data, data2, data3) = (register(2)?, register(3)?, register(4)?);
    let load = data3 & LOAD != 0;
    if !load && data3 & STORE == 0 {
        return Ok(Observation::NoAccess);
    }
    if data3 & ADDRESS_VALID == 0 {
        return Ok(Observation::NoAddress);
    }
    Ok(Observation::Access {
        ip: match register(1)? {
            0 => ip,
            _ if data & RIP_INVALID != 0 => ip,
            own => own,
        },
        address: register(5)?,
        // An op with load and store is a read-modify-write.
        kind: match data3 & STORE {
            0 => AccessKind::Load,
            _ => AccessKind::Store,
        },
        level: level(caps, data2, data3),
        // The hardware measures only misses of loads.
        latency_cycles: match load && data3 & MISS != 0 {
            true => (data3 >> 32 & 0xffff) as u32,
            false => 0,
        },
    })
}

/// Whether all levels of the TLB missed; `None` for an op without memory access.
pub(crate) fn tlb_miss(raw: &[u8]) -> Result<Option<bool>, Malformed> {
    let data3 = u64_at(raw, 4 + 8 * 4)?;
    Ok((data3 & (LOAD | STORE) != 0).then_some(data3 & TLB_MISS != 0))
}

fn level(caps: u32, data2: u64, data3: u64) -> Level {
    let extended = caps & CAPS_EXTENDED_SOURCES != 0;
    // In these cases, models before Zen 4 report wrong L2 and source bits (erratum 1293).
    let unreliable = !extended && data3 & (PREFETCH | MISS_WITHOUT_BUFFER) != 0;
    if data3 & UNCACHEABLE != 0 {
        return Level::Unknown;
    } else if data3 & MISS == 0 {
        return Level::L1;
    } else if data3 & L2_MISS == 0 && !unreliable {
        return Level::L2;
    }
    // The source is only valid for loads.
    let source = match data3 & LOAD != 0 && !unreliable {
        true if extended => data2 >> 3 & 0x18 | data2 & 7,
        true => data2 & 7,
        false => 0,
    };
    let remote = data2 & REMOTE_NODE != 0;
    match (extended, source) {
        // Another core's cache, in the same complex or a near one.
        (true, 1 | 2) | (false, 2) => Level::L3,
        (true, 5) | (false, 4) => Level::RemoteCache,
        // DRAM; persistent memory, extension memory.
        (_, 3) | (true, 6 | 8) if remote => Level::RemoteMemory,
        (_, 3) | (true, 6 | 8) => Level::LocalMemory,
        _ if data3 & MISS_WITHOUT_BUFFER != 0 => Level::LineFillBuffer,
        _ => Level::Unknown,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const ADDRESS: u64 = 0x7f00_1234_5678;
    const ZEN_3: u32 = 0x3ff;
    const ZEN_4: u32 = 0xfff;

    /// Registers in the kernel's layout.
    pub(crate) fn raw(caps: u32, data: u64, data2: u64, data3: u64) -> Vec<u8> {
        let mut bytes = caps.to_ne_bytes().to_vec();
        for register in [0x6_0000, 0x40_1234, data, data2, data3, ADDRESS, 0x1_2345] {
            bytes.extend(u64::to_ne_bytes(register));
        }
        bytes
    }

    fn level_of(caps: u32, data2: u64, data3: u64) -> Level {
        match observe(&raw(caps, 0, data2, data3 | ADDRESS_VALID), 1) {
            Ok(Observation::Access { level, .. }) => level,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_load_from_remote_memory() {
        let data3 = LOAD | MISS | L2_MISS | ADDRESS_VALID | 750 << 32;
        let observation = observe(&raw(ZEN_3, 0, 3 | REMOTE_NODE, data3), 1).unwrap();
        assert_eq!(
            observation,
            Observation::Access {
                ip: 0x40_1234,
                address: ADDRESS,
                kind: AccessKind::Load,
                level: Level::RemoteMemory,
                latency_cycles: 750,
            }
        );
    }

    #[test]
    fn levels_of_both_generations() {
        let far = LOAD | MISS | L2_MISS;
        for (caps, data2, data3, expected) in [
            (ZEN_3, 0, LOAD, Level::L1),
            (ZEN_3, 0, LOAD | MISS, Level::L2),
            (ZEN_3, 2, far, Level::L3),
            (ZEN_3, 3, far, Level::LocalMemory),
            (ZEN_3, 4, far, Level::RemoteCache),
            (ZEN_3, 7, far, Level::Unknown),
            (ZEN_3, 3, far | MISS_WITHOUT_BUFFER, Level::LineFillBuffer),
            (ZEN_3, 0, LOAD | MISS | PREFETCH, Level::Unknown),
            (ZEN_4, 1, far, Level::L3),
            (ZEN_4, 2, far, Level::L3),
            (ZEN_4, 3, far, Level::LocalMemory),
            (ZEN_4, 3 | REMOTE_NODE, far, Level::RemoteMemory),
            (ZEN_4, 5, far, Level::RemoteCache),
            // The two upper bits of the source are bits 6 and 7.
            (ZEN_4, 1 << 6, far, Level::LocalMemory),
            (ZEN_4, 1 << 6 | REMOTE_NODE, far, Level::RemoteMemory),
            (ZEN_4, 3, far | MISS_WITHOUT_BUFFER, Level::LocalMemory),
            (ZEN_4, 0, far | MISS_WITHOUT_BUFFER, Level::LineFillBuffer),
            (ZEN_4, 3, far | UNCACHEABLE, Level::Unknown),
            // The data source does not belong to a store.
            (ZEN_4, 3, STORE | MISS | L2_MISS, Level::Unknown),
            (ZEN_4, 3, STORE, Level::L1),
        ] {
            assert_eq!(
                level_of(caps, data2, data3),
                expected,
                "{caps:#x} {data2:#x} {data3:#x}"
            );
        }
    }

    #[test]
    fn what_is_no_access_or_has_no_address_is_told_apart() {
        let of = |data, data3| observe(&raw(ZEN_4, data, 0, data3), 99);
        assert_eq!(of(0, ADDRESS_VALID), Ok(Observation::NoAccess));
        assert_eq!(of(0, LOAD), Ok(Observation::NoAddress));
        let Ok(Observation::Access {
            ip,
            kind,
            latency_cycles,
            ..
        }) = of(RIP_INVALID, LOAD | STORE | ADDRESS_VALID | 9 << 32)
        else {
            panic!()
        };
        // A hit has no latency, even if the field is set.
        assert_eq!((ip, kind, latency_cycles), (99, AccessKind::Store, 0));
    }
}
