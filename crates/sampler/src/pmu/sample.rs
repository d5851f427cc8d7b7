//! Decodes hardware samples, in each of their layouts.
//!
//! ```text
//! precise   id:u64 ip:u64 pid:u32 tid:u32 time:u64 address:u64 cpu:u32 -:u32 period:u64
//!           weight:u64 data_src:u64
//! ibs       id:u64 ip:u64 pid:u32 tid:u32 time:u64 cpu:u32 -:u32 period:u64 size:u32 raw:[u8; size]
//! ```
//!
//! Fields are in the order of `perf_event_open(2)`, little-endian. The lower half of the weight is the latency in
//! cycles, for both PERF_SAMPLE_WEIGHT and PERF_SAMPLE_WEIGHT_STRUCT. Arm SPE writes packets instead, which
//! [`super::spe`] turns into precise samples.

use nearpage_machine::CpuId;
use nearpage_perf_abi::{DataSource, Malformed, fixed_offset, sample_type as st, u32_at, u64_at};
use nearpage_recording::{AccessKind, Level};

use super::ibs;

/// Layout of a hardware event's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Address, latency and `data_src`. The event's kind counts if `data_src` has none.
    Precise(AccessKind),
    /// Registers of AMD's IBS.
    Ibs,
}

/// Fields of precise samples.
pub(crate) const PRECISE_SAMPLE: u64 = st::IDENTIFIER
    | st::IP
    | st::TID
    | st::TIME
    | st::ADDR
    | st::CPU
    | st::PERIOD
    | st::WEIGHT
    | st::DATA_SRC;
/// Fields of IBS samples.
pub(crate) const IBS_SAMPLE: u64 =
    st::IDENTIFIER | st::IP | st::TID | st::TIME | st::CPU | st::PERIOD | st::RAW;

/// Observation of a hardware sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    Access {
        ip: u64,
        address: u64,
        kind: AccessKind,
        level: Level,
        /// 0 if the hardware measures none, as for most stores.
        latency_cycles: u32,
    },
    /// An op without memory access.
    NoAccess,
    /// An access whose address the hardware does not know.
    NoAddress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySample {
    pub cpu: CpuId,
    /// Number of events that the sample stands for.
    pub period: u64,
    pub user: bool,
    /// Whether all levels of the TLB missed; `None` if the hardware does not report it.
    pub tlb_miss: Option<bool>,
    /// A data source that this version does not know completely.
    pub unknown_source: Option<DataSource>,
    pub observation: Observation,
}

/// Decodes a sample's `body`, the bytes after the record's header.
pub(crate) fn decode(form: Form, body: &[u8], user: bool) -> Result<MemorySample, Malformed> {
    const fn precise(field: u64) -> usize {
        fixed_offset(PRECISE_SAMPLE, field)
    }
    const RAW_SIZE: usize = fixed_offset(IBS_SAMPLE, st::RAW);
    let ip = u64_at(body, const { precise(st::IP) })?;
    match form {
        Form::Precise(kind) => {
            let weight = u64_at(body, const { precise(st::WEIGHT) })?;
            let source = DataSource(u64_at(body, const { precise(st::DATA_SRC) })?);
            let observation = match u64_at(body, const { precise(st::ADDR) })? {
                0 => Observation::NoAddress,
                address => Observation::Access {
                    ip,
                    address,
                    kind: source.operation().map_or(kind, AccessKind::from),
                    level: source.level().into(),
                    latency_cycles: weight as u32,
                },
            };
            Ok(MemorySample {
                cpu: CpuId(u32_at(body, const { precise(st::CPU) })?),
                period: u64_at(body, const { precise(st::PERIOD) })?,
                user,
                tlb_miss: source.tlb_miss(),
                unknown_source: source.is_undecoded().then_some(source),
                observation,
            })
        }
        Form::Ibs => {
            let size = u32_at(body, RAW_SIZE)? as usize;
            let raw = body.get(RAW_SIZE + 4..).and_then(|rest| rest.get(..size));
            let raw = raw.ok_or(Malformed)?;
            Ok(MemorySample {
                cpu: CpuId(u32_at(body, const { fixed_offset(IBS_SAMPLE, st::CPU) })?),
                period: u64_at(body, const { fixed_offset(IBS_SAMPLE, st::PERIOD) })?,
                user,
                tlb_miss: ibs::tlb_miss(raw)?,
                unknown_source: None,
                observation: ibs::observe(raw, ip)?,
            })
        }
    }
}

/// The body of a precise sample in the kernel's layout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Precise {
    pub id: u64,
    pub ip: u64,
    pub pid: u32,
    pub tid: u32,
    pub time_ns: u64,
    pub address: u64,
    pub cpu: u32,
    pub period: u64,
    pub latency_cycles: u32,
    pub data_src: u64,
}

impl Precise {
    /// Length of [`Precise::body`].
    pub const BYTES: usize = 72;

    pub fn body(&self) -> [u8; Self::BYTES] {
        let words = [
            self.id,
            self.ip,
            pair(self.pid, self.tid),
            self.time_ns,
            self.address,
            pair(self.cpu, 0),
            self.period,
            u64::from(self.latency_cycles),
            self.data_src,
        ];
        let mut body = [0; Self::BYTES];
        for (bytes, word) in body.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        body
    }
}

/// Two numbers, one after the other in memory.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_le_bytes());
    bytes[4..].copy_from_slice(&second.to_le_bytes());
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pmu::ibs;

    /// The body of an IBS sample around `raw`.
    pub(crate) fn ibs_body(id: u64, raw: &[u8]) -> Vec<u8> {
        let words = [id, 0x40_1000, pair(12, 13), 99, pair(3, 0), 4000];
        let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        body.extend((raw.len() as u32).to_le_bytes());
        body.extend(raw);
        body
    }

    #[test]
    fn reads_a_precise_sample() {
        let precise = Precise {
            id: 7,
            ip: 0x40_1000,
            pid: 12,
            tid: 13,
            time_ns: 99,
            address: 0x7f00,
            cpu: 3,
            period: 1009,
            latency_cycles: 310,
            data_src: 0x118_6810_0242,
        };
        let access = |kind| MemorySample {
            cpu: CpuId(3),
            period: 1009,
            user: true,
            tlb_miss: Some(false),
            unknown_source: None,
            observation: Observation::Access {
                ip: 0x40_1000,
                address: 0x7f00,
                kind,
                level: Level::LineFillBuffer,
                latency_cycles: 310,
            },
        };
        let form = Form::Precise(AccessKind::Store);
        assert_eq!(
            decode(form, &precise.body(), true),
            Ok(access(AccessKind::Load))
        );
        // Without an operation in `data_src`, the event's kind counts.
        let mut silent = precise;
        silent.data_src = silent.data_src & !0x1f | 1;
        assert_eq!(
            decode(form, &silent.body(), true),
            Ok(access(AccessKind::Store))
        );
        // PERF_SAMPLE_WEIGHT_STRUCT has other latencies in the upper half.
        let mut body = precise.body();
        body[60..64].copy_from_slice(&[9; 4]);
        assert_eq!(decode(form, &body, true), Ok(access(AccessKind::Load)));
        let nowhere = Precise {
            address: 0,
            ..precise
        };
        let sample = decode(form, &nowhere.body(), false).unwrap();
        assert_eq!(sample.observation, Observation::NoAddress);
        for cut in 0..Precise::BYTES {
            assert_eq!(decode(form, &precise.body()[..cut], true), Err(Malformed));
        }
    }

    #[test]
    fn reads_a_sample_of_ibs() {
        let raw = ibs::tests::raw(0x3ff, 0, 3, 1 | 1 << 7 | 1 << 17 | 1 << 20 | 200 << 32);
        let body = ibs_body(8, &raw);
        let sample = decode(Form::Ibs, &body, true).unwrap();
        assert_eq!((sample.cpu, sample.period), (CpuId(3), 4000));
        assert_eq!(sample.tlb_miss, Some(false));
        // The second level of the TLB missed; only the first missed; an op without memory.
        for (data3, expected) in [(1 | 0xc, Some(true)), (2 | 4, Some(false)), (0xc, None)] {
            let body = ibs_body(8, &ibs::tests::raw(0x3ff, 0, 3, data3));
            let sample = decode(Form::Ibs, &body, true).unwrap();
            assert_eq!(sample.tlb_miss, expected, "{data3:#x}");
        }
        assert_eq!(
            sample.observation,
            Observation::Access {
                ip: 0x40_1234,
                address: ibs::tests::ADDRESS,
                kind: AccessKind::Load,
                level: Level::LocalMemory,
                latency_cycles: 200,
            }
        );
        for cut in 0..body.len() {
            assert_eq!(decode(Form::Ibs, &body[..cut], true), Err(Malformed));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sample_or_malformed(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            for form in [Form::Precise(AccessKind::Load), Form::Ibs] {
                if let Ok(sample) = decode(form, &bytes, true) {
                    prop_assert!(bytes.len() >= 72, "{sample:?}");
                }
            }
        }
    }
}
