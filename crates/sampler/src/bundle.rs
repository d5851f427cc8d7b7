//! Bundles: information on sampling for a maintainer without access to the machine. A bundle has the kernel's limits,
//! and raw records of each source from a test loop in nearpage.
//!
//! Bundles contain nothing about the machine's users. Samples outside the loop are dropped. Addresses of the loop's
//! code and data are moved to [`CODE`] and [`DATA`]; process and thread are 1; times begin at 0. Registers are 0
//! unless they hold an address of the loop or a small number. Branch targets and physical addresses are 0, too.
//!
//! [`replay`] chooses a source and decodes the records as on the bundle's machine. It takes bounded time and memory
//! for any bundle.

mod capture;

use nearpage_perf_abi::header;
use nearpage_recording::AccessKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::SkidSide;
use crate::instruction::{Code, Decode};
use crate::judge::Judge;
use crate::pmu::{Form, MemoryEvent, Observation, spe};
use crate::record::{self, Identifiers, RecordBody, Sample};
use crate::source::{Facts, RequestedSource, choose};
use crate::verdict::{REGISTERS, Registers, Verdict};
use crate::{aarch64, x86_64};

pub use capture::capture;

/// Largest number of records of each source.
pub const RECORDS: usize = 200;
/// Address of the loop's code in a bundle.
pub const CODE: u64 = 0x40_0000;
/// Address of the loop's data in a bundle.
pub const DATA: u64 = 0x7000_0000_0000;
/// Version of the bundle format.
const VERSION: u32 = 1;
/// Bytes of code kept from the beginning of the loop's function: more than the function has.
const CODE_BYTES: usize = 512;
/// Size of the loop's data in bytes: more than caches hold.
const DATA_BYTES: usize = 64 << 20;
/// Limits on the parts of a bundle that are read.
const SOURCES_MAX: usize = 64;
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Record layout of a source's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SampleLayout {
    Clock,
    PreciseLoads,
    PreciseStores,
    Ibs,
    /// Packets as the hardware writes them to an AUX area.
    Spe,
}

impl SampleLayout {
    fn of(event: &MemoryEvent) -> Self {
        match event.form {
            _ if event.packets => Self::Spe,
            Form::Precise(AccessKind::Store) => Self::PreciseStores,
            Form::Precise(_) => Self::PreciseLoads,
            Form::Ibs => Self::Ibs,
        }
    }

    fn form(self) -> Option<Form> {
        match self {
            Self::Clock | Self::Spe => None,
            Self::PreciseLoads => Some(Form::Precise(AccessKind::Load)),
            Self::PreciseStores => Some(Form::Precise(AccessKind::Store)),
            Self::Ibs => Some(Form::Ibs),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceRecords {
    /// `clock`, or the event in perf's notation.
    name: String,
    written: SampleLayout,
    /// Why there are no records; empty if there are some.
    missing: String,
    /// The concatenated records in hexadecimal.
    records: String,
}

/// What a machine allows for sampling, and records of each source.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerfBundle {
    version: u32,
    architecture: String,
    /// Facts from which sources are chosen.
    facts: Facts,
    /// The side of the sampled address on which the stalling instruction lies ([`SkidSide`]).
    side: String,
    /// The loop's code at [`CODE`], in hexadecimal.
    code: String,
    sources: Vec<SourceRecords>,
}

/// The records of one source, decoded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct DecodedSource {
    /// `clock`, or the event as perf would write it.
    pub name: String,
    /// Why there are no records; empty if there are some.
    pub missing: String,
    /// Records.
    pub records: usize,
    /// Records that could not be decoded.
    pub malformed: usize,
    /// Samples that are accesses.
    pub accesses: usize,
    /// Accesses among these to the data of the loop that was sampled.
    pub to_data: usize,
    /// Samples of computation.
    pub compute: usize,
    /// Samples whose address is unknown.
    pub undecoded: usize,
    /// The median latency in cycles; null if the hardware does not measure it.
    pub latency_cycles: Option<u32>,
}

/// What nearpage would do on a bundle's machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayedBundle {
    /// Architecture of the machine.
    pub architecture: String,
    /// For each `--source`: the description of the choice, or why there is none.
    pub choices: Vec<(&'static str, Result<String, String>)>,
    /// Decoded records of each source.
    pub sources: Vec<DecodedSource>,
}

impl PerfBundle {
    /// The bundle as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a bundle from untrusted JSON.
    ///
    /// # Errors
    /// A message if the text is no bundle.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }
}

/// Chooses a source and decodes the records, as on the bundle's machine.
///
/// # Errors
/// A message if the bundle is not valid.
pub fn replay(bundle: &PerfBundle) -> Result<ReplayedBundle, String> {
    if bundle.version != VERSION {
        return Err(format!(
            "it has version {}, and this nearpage reads {VERSION}",
            bundle.version
        ));
    }
    if bundle.sources.len() > SOURCES_MAX {
        return Err(format!("it has more than {SOURCES_MAX} sources"));
    }
    let code = bytes_of(&bundle.code, 8 * CODE_BYTES)
        .ok_or("its code is no hexadecimal number, or too long")?;
    let side: SkidSide = bundle
        .side
        .parse()
        .map_err(|_| "it names no side of samples")?;
    let requests = [
        ("auto", RequestedSource::Auto),
        ("pmu", RequestedSource::Pmu),
        ("clock", RequestedSource::Clock),
        ("signal", RequestedSource::Signal),
    ];
    let choice = |requested| {
        let chosen = choose(requested, &bundle.facts);
        chosen
            .map(|choice| choice.line)
            .map_err(|error| error.to_string())
    };
    let mut sources = Vec::new();
    for source in &bundle.sources {
        let records = bytes_of(&source.records, RECORD_BYTES_MAX).ok_or_else(|| {
            format!(
                "records of {} are no hexadecimal number, or too long",
                source.name
            )
        })?;
        let decoded = match bundle.architecture.as_str() {
            _ if source.written == SampleLayout::Spe => decoded_packets(&records),
            "aarch64" => decoded::<aarch64::Decoder>(&code, side, source.written, &records),
            _ => decoded::<x86_64::Decoder>(&code, side, source.written, &records),
        };
        sources.push(DecodedSource {
            name: source.name.clone(),
            missing: source.missing.clone(),
            ..decoded
        });
    }
    Ok(ReplayedBundle {
        architecture: bundle.architecture.clone(),
        choices: requests
            .map(|(name, requested)| (name, choice(requested)))
            .into(),
        sources,
    })
}

fn decoded<D: Decode + Default>(
    code: &[u8],
    side: SkidSide,
    written: SampleLayout,
    records: &[u8],
) -> DecodedSource {
    let identifiers = Identifiers {
        faults: Vec::new(),
        memory: written.form().map(|form| (1, form)).into_iter().collect(),
    };
    let code = Code {
        address: CODE,
        bytes: code,
        bitness: 64,
    };
    let flow = D::sweep(code, 0);
    let mut judge = Judge::<D>::default();
    let mut found = DecodedSource::default();
    let mut latencies = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        found.records += 1;
        let Ok(bytes) = header::record_bytes(rest) else {
            found.malformed += 1;
            break;
        };
        let (record, later) = rest.split_at(bytes);
        rest = later;
        match record::parse(record, &identifiers).map(|record| record.body) {
            Ok(RecordBody::Sample(sample)) => {
                let at = sample.ip.wrapping_sub(CODE);
                let verdict = match at < code.bytes.len() as u64 {
                    true => judge.judge(code, &flow, at as usize, side),
                    false => Verdict::Undecoded(crate::verdict::Undecoded::NoCode),
                };
                match verdict {
                    Verdict::Accesses { templates, .. } => {
                        let registers = registers(&sample);
                        found.accesses += 1;
                        let is_data =
                            |one: &crate::verdict::Template| is_data(one.address(&registers));
                        found.to_data += usize::from(templates.iter().any(is_data));
                    }
                    Verdict::Compute => found.compute += 1,
                    Verdict::Undecoded(_) => found.undecoded += 1,
                }
            }
            Ok(RecordBody::Memory(sample)) => match sample.observation {
                Observation::Access {
                    address,
                    latency_cycles,
                    ..
                } => {
                    found.accesses += 1;
                    found.to_data += usize::from(is_data(address));
                    latencies.extend((latency_cycles > 0).then_some(latency_cycles));
                }
                Observation::NoAccess => found.compute += 1,
                Observation::NoAddress => found.undecoded += 1,
            },
            Ok(_) => {}
            Err(_) => found.malformed += 1,
        }
    }
    latencies.sort_unstable();
    found.latency_cycles = latencies.get(latencies.len() / 2).copied();
    found
}

/// Decodes packets of SPE.
fn decoded_packets(packets: &[u8]) -> DecodedSource {
    let mut found = DecodedSource::default();
    let mut latencies = Vec::new();
    let malformed = spe::decode(packets, |operation| {
        found.records += 1;
        match operation.memory {
            None => found.compute += 1,
            Some(_) if operation.address == 0 => found.undecoded += 1,
            Some(_) => {
                found.accesses += 1;
                found.to_data += usize::from(is_data(operation.address));
                latencies
                    .extend((operation.latency_cycles > 0).then_some(operation.latency_cycles));
            }
        }
    });
    latencies.sort_unstable();
    DecodedSource {
        malformed: malformed as usize,
        records: found.records + malformed as usize,
        latency_cycles: latencies.get(latencies.len() / 2).copied(),
        ..found
    }
}

/// Whether the address is in the loop's data.
fn is_data(address: u64) -> bool {
    address.wrapping_sub(DATA) < DATA_BYTES as u64
}

/// Registers of a clock sample, in the kernel's order.
fn registers(sample: &Sample<'_>) -> Registers {
    let mut registers: Registers = [0; REGISTERS];
    for (register, bytes) in registers.iter_mut().zip(sample.all_registers()) {
        *register = u64::from_le_bytes(*bytes);
    }
    registers
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a hexadecimal number; none if it is malformed or has more than `bytes_max` bytes.
fn bytes_of(text: &str, bytes_max: usize) -> Option<Vec<u8>> {
    if text.len() > 2 * bytes_max || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured() -> PerfBundle {
        let options = crate::Options::new(Vec::<std::ffi::OsString>::new());
        capture(&options).unwrap()
    }

    #[test]
    fn packets_are_decoded_from_a_bundle() {
        let mut bundle = captured();
        let load = spe::tests::load(0x40e, 350, 0);
        let moved = |address| match address {
            0x40_1234 => Some(CODE + 16),
            _ => Some(DATA + 64),
        };
        let records = spe::rebased(&[load.clone(), load].concat(), moved).concat();
        bundle.architecture = "aarch64".to_owned();
        bundle.sources = vec![SourceRecords {
            name: "arm_spe_0".to_owned(),
            written: SampleLayout::Spe,
            missing: String::new(),
            records: hexadecimal(&records),
        }];
        let bundle = PerfBundle::from_json(bundle.to_json().as_bytes()).unwrap();
        let decoded = &replay(&bundle).unwrap().sources[0];
        let expected = DecodedSource {
            name: "arm_spe_0".to_owned(),
            records: 2,
            accesses: 2,
            to_data: 2,
            latency_cycles: Some(350),
            ..DecodedSource::default()
        };
        assert_eq!(decoded, &expected);
    }

    #[test]
    fn samples_captured_here_are_decoded_from_the_bundle() {
        let bundle = PerfBundle::from_json(captured().to_json().as_bytes()).unwrap();
        let replayed = replay(&bundle).unwrap();
        let clock = &replayed.sources[0];
        assert_eq!(clock.name, "clock");
        if clock.missing.is_empty() {
            assert!(clock.records > 0 && clock.records <= RECORDS, "{clock:?}");
            assert_eq!(clock.malformed, 0);
            assert!(
                clock.accesses > 0 && 2 * clock.to_data > clock.accesses,
                "{clock:?}"
            );
        }
        let chosen = crate::choose_source(&crate::Options::new(Vec::<std::ffi::OsString>::new()));
        let chosen = chosen
            .map(|choice| choice.line)
            .map_err(|error| error.to_string());
        assert_eq!(replayed.choices[0], ("auto", chosen));
    }

    #[test]
    fn no_address_of_this_process_is_in_a_bundle() {
        let bundle = captured();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().map(|line| {
            let ends = line.split([' ', '-']).take(2);
            let ends: Vec<u64> = ends
                .map(|end| u64::from_str_radix(end, 16).unwrap())
                .collect();
            ends[0]..ends[1]
        });
        let mapped: Vec<std::ops::Range<u64>> = mapped.collect();
        for source in &bundle.sources {
            let records = bytes_of(&source.records, RECORD_BYTES_MAX).unwrap();
            for word in records.as_chunks().0 {
                let word = u64::from_le_bytes(*word);
                let is_moved = (CODE..CODE + CODE_BYTES as u64).contains(&word)
                    || (DATA..DATA + DATA_BYTES as u64).contains(&word);
                assert!(
                    is_moved || !mapped.iter().any(|range| range.contains(&word)),
                    "{word:#x}"
                );
            }
        }
    }

    #[test]
    fn false_bundles_are_refused_or_decoded_to_nothing() {
        let good = captured();
        let refusal = |change: &dyn Fn(&mut PerfBundle)| {
            let mut bundle = good.clone();
            change(&mut bundle);
            replay(&bundle)
        };
        assert!(refusal(&|bundle| bundle.version = 2).is_err());
        assert!(refusal(&|bundle| bundle.code = "0".to_owned()).is_err());
        assert!(refusal(&|bundle| bundle.code = "zz".to_owned()).is_err());
        assert!(refusal(&|bundle| bundle.side = "beyond".to_owned()).is_err());
        assert!(refusal(&|bundle| bundle.sources[0].records = "00".repeat(1 << 21)).is_err());
        let many = |bundle: &mut PerfBundle| {
            bundle.sources = vec![bundle.sources[0].clone(); SOURCES_MAX + 1];
        };
        assert!(refusal(&many).is_err());
        let cut = refusal(&|bundle| bundle.sources[0].records = "0900000002002000ff".to_owned());
        assert_eq!(cut.unwrap().sources[0].malformed, 1);
        let no_code = refusal(&|bundle| bundle.code.clear()).unwrap();
        assert_eq!(no_code.sources[0].accesses, 0);
    }
}
