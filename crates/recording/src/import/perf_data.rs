//! `perf.data`, as `perf record` writes it on a little-endian machine.
//!
//! The data are records: type `u32`, misc `u16`, length `u16` that includes these eight bytes, body. perf gathers
//! records from the rings of all CPUs in turn; this reader sorts them by time first.
//! Sources: tools/perf/Documentation/perf.data-file-format.txt, include/uapi/linux/perf_event.h.
//!
//! No crate is used: linux-perf-data 0.13 leaves out weight and `data_src`, and trusts the lengths in a file.

use nearpage_machine::CpuId;
use nearpage_perf_abi::header::{self, Header, kind};
use nearpage_perf_abi::{
    Attributes, BuildId, Bytes, Malformed, Sideband, event, flag, sample_type as st,
};
use rustc_hash::FxHashMap;

use super::features::{self, feature};
use super::layout::{EventAttributes, FoundRecord, Sections, damaged, record};
use super::{EventKind, FileMetadata, Record, RecordBody, Sample};
use crate::Error;

const MAGIC: &[u8; 8] = b"PERFILE2";
/// Magic of a file from a big-endian machine.
const MAGIC_SWAPPED: &[u8; 8] = b"2ELIFREP";
/// A file with a valid structure.
pub(super) struct PerfData<'a> {
    bytes: &'a [u8],
    events: Vec<NamedEvent>,
    /// Positions in `events`, by the number in samples.
    by_id: FxHashMap<u64, usize>,
    /// Build-ids by path.
    build_ids: FxHashMap<&'a [u8], BuildId>,
    /// Time and byte offset of each record, in order of time.
    order: Vec<(u64, usize)>,
    features: FxHashMap<usize, &'a [u8]>,
}

struct NamedEvent {
    name: String,
    attributes: Attributes,
    kind: EventKind,
}

impl NamedEvent {
    fn new(name: String, attributes: Attributes) -> Self {
        use event::{PAGE_FAULTS, PAGE_FAULTS_MAJ, PAGE_FAULTS_MIN, TYPE_SOFTWARE};
        let faults = [PAGE_FAULTS, PAGE_FAULTS_MIN, PAGE_FAULTS_MAJ];
        let kind = match attributes.kind {
            TYPE_SOFTWARE if faults.contains(&attributes.config) => EventKind::Faults,
            _ => EventKind::named(&name),
        };
        Self {
            name,
            attributes,
            kind,
        }
    }

    /// Whether samples have the fields that the import needs: instruction, thread and address.
    fn has_addresses(&self) -> bool {
        const NEEDED: u64 = st::IP | st::TID | st::ADDR;
        self.attributes.sample_type & NEEDED == NEEDED
    }

    fn is_by_frequency(&self) -> bool {
        self.attributes.flags & flag::FREQ != 0
    }

    fn sample(&self, body: &[u8], misc: u16) -> Result<Sample, Malformed> {
        let sample = self.attributes.sample(body)?;
        let period = match self.is_by_frequency() {
            true => 1,
            false => self.attributes.sample_period.max(1),
        };
        Ok(Sample {
            pid: sample.pid,
            tid: sample.tid,
            cpu: sample.cpu.map(CpuId),
            user: header::is_user(misc),
            ip: sample.ip,
            address: sample.address,
            event: self.kind,
            data_src: sample.data_src,
            latency_cycles: sample.latency_cycles,
            period: sample.period.unwrap_or(period),
        })
    }
}

impl<'a> PerfData<'a> {
    /// Whether the bytes begin like a `perf.data` file.
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC) || bytes.starts_with(MAGIC_SWAPPED)
    }

    /// Reads the header and finds all records.
    pub fn new(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.starts_with(MAGIC_SWAPPED) {
            return Err("recorded on a big-endian machine, which this reader does not take; import the text that `perf script` prints there".to_owned());
        }
        let Sections {
            begin,
            length,
            attributes,
            features,
            build_ids,
        } = Sections::of(bytes)?;
        let (events, by_id) = named(&attributes, &features)?;
        let Some(first) = events.first() else {
            return Err("damaged: it has no events; copy or record it again".to_owned());
        };
        if !events.iter().any(|event| event.has_addresses()) {
            let auxiliary = if events.iter().any(|event| event.name.contains("arm_spe")) {
                "; Arm's SPE is packets until perf decodes them: import the text of `perf script --itrace=M`"
            } else {
                ""
            };
            return Err(format!(
                "no event in it ({}) samples addresses; record with `perf mem record` or `perf record -d`{auxiliary}",
                list(&events)
            ));
        }
        if !events
            .iter()
            .all(|event| event.attributes.is_distinguishable_from(&first.attributes))
        {
            return Err(format!(
                "its events ({}) are laid out differently, with no identifier to tell them by; record them one at a time",
                list(&events)
            ));
        }
        let mut found = Self {
            bytes,
            events,
            by_id,
            build_ids,
            order: Vec::new(),
            features,
        };
        found.order = found.in_order(begin, length)?;
        Ok(found)
    }

    /// All records of the data, by time. A record without a time follows its predecessor.
    fn in_order(&self, begin: usize, length: usize) -> Result<Vec<(u64, usize)>, String> {
        let mut order = Vec::new();
        let (mut at, end, mut latest_ns) = (begin, begin + length, 0);
        while at < end {
            let found = FoundRecord::at(self.bytes, at, end)?;
            let body = found.body;
            match found.header.kind {
                record::COMPRESSED | record::COMPRESSED2 => {
                    return Err("compressed (`perf record -z`), which this reader does not take; import the text that `perf script` prints".to_owned());
                }
                kind::MMAP..=kind::EXIT | kind::FORK | kind::MMAP2 | kind::LOST_SAMPLES => {
                    let time = self.events[0].attributes.trailer_time_ns(body);
                    latest_ns = time.unwrap_or(latest_ns);
                    order.push((latest_ns, at));
                }
                kind::SAMPLE => {
                    let time = self.event(body).attributes.sample_time_ns(body);
                    latest_ns = time.unwrap_or(latest_ns);
                    order.push((latest_ns, at));
                }
                _ => {}
            }
            at = found.next;
        }
        order.sort_by_key(|(time_ns, _)| *time_ns);
        Ok(order)
    }

    /// The event of a sample.
    fn event(&self, body: &[u8]) -> &NamedEvent {
        let id = self.events[0].attributes.sample_id(body);
        let number = id.and_then(|id| self.by_id.get(&id)).copied();
        &self.events[number.unwrap_or(0)]
    }

    /// Facts about the whole file.
    pub fn about(&self) -> FileMetadata {
        let text = |number| {
            let section = self.features.get(&number)?;
            features::string(&mut Bytes(section))
        };
        let description = text(feature::CPU_DESCRIPTION);
        let topology = self.features.get(&feature::NUMA_TOPOLOGY);
        let machine =
            topology.and_then(|topology| features::machine(topology, description.as_deref()));
        let mut notes = vec![format!(
            "imported from a perf.data{}; times are those of perf's clock",
            text(feature::VERSION)
                .map_or_else(String::new, |version| format!(" of perf {version}"))
        )];
        if machine
            .as_ref()
            .is_some_and(|machine| machine.nodes.len() > 1)
        {
            notes.push("perf.data has no distances between nodes: 10 and 20 are assumed; name the machine with --machine".to_owned());
        }
        let strings = |number| {
            self.features
                .get(&number)
                .map(|section| features::strings(section))
        };
        FileMetadata {
            command: strings(feature::COMMAND).unwrap_or_default(),
            machine,
            ghz: description.as_deref().and_then(features::ghz),
            events: self.events.iter().map(|event| event.name.clone()).collect(),
            rate_hz: match &self.events[0] {
                event if event.is_by_frequency() => event.attributes.sample_period as f64,
                _ => 0.0,
            },
            notes,
        }
    }

    /// Hands out all records in order of time.
    pub fn records(
        &self,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
        error: impl Fn(String) -> Error,
    ) -> Result<(), Error> {
        for (time_ns, at) in &self.order {
            let what = self
                .record_body(*at)
                .map_err(|Malformed| error(damaged(*at, "a record cut short")))?;
            if let Some(what) = what {
                each(Record {
                    time_ns: *time_ns,
                    what,
                })?;
            }
        }
        Ok(())
    }

    /// Parses the record at byte `at`.
    fn record_body(&self, at: usize) -> Result<Option<RecordBody<'a>>, Malformed> {
        let (Header { kind, misc }, body) = header::split(&self.bytes[at..])?;
        if kind == kind::SAMPLE {
            let event = self.event(body);
            let sample = event.has_addresses().then(|| event.sample(body, misc));
            return Ok(sample.transpose()?.map(RecordBody::Sample));
        }
        let mut sideband = Sideband::parse(kind, misc, body)?;
        if let Some(Sideband::Map(map)) = &mut sideband
            && map.build_id.is_empty()
        {
            map.build_id = self.build_ids.get(map.path).copied().unwrap_or_default();
        }
        Ok(sideband.map(RecordBody::Sideband))
    }
}

type Events = (Vec<NamedEvent>, FxHashMap<u64, usize>);

/// Events with their names, and positions of events by the number in samples.
fn named(
    attributes: &[EventAttributes<'_>],
    features: &FxHashMap<usize, &[u8]>,
) -> Result<Events, String> {
    let names = features
        .get(&feature::EVENT_DESCRIPTION)
        .map(|section| features::event_names(section));
    let mut names = names.unwrap_or_default().into_iter();
    let (mut events, mut by_id) = (Vec::new(), FxHashMap::default());
    for event in attributes {
        let attributes = Attributes::parse(event.attributes)
            .map_err(|Malformed| damaged(event.at, "an event's attributes"))?;
        for id in event.numbers.chunks_exact(8) {
            by_id.insert(Bytes(id).u64().unwrap_or(0), events.len());
        }
        let name = names.next().unwrap_or_else(|| "event".to_owned());
        events.push(NamedEvent::new(name, attributes));
    }
    Ok((events, by_id))
}

fn list(events: &[NamedEvent]) -> String {
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    names.join(", ")
}
