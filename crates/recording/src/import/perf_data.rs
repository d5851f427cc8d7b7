//! `perf.data`, as `perf record` writes it to a file on a little-endian machine.
//!
//! ```text
//!      0    8  magic "PERFILE2"
//!      8    8  length of this header
//!     16    8  length of an entry of the attributes section
//!     24   16  attributes: offset and length of the section; an entry is a perf_event_attr, then
//!              offset and length of a section of the event's numbers (u64 each)
//!     40   16  data: offset and length
//!     56   16  event types; not used
//!     72   32  bitmap of features; their sections' offsets and lengths follow the data
//! ```
//!
//! Data are records: type `u32`, misc `u16`, length `u16` with these eight bytes, body. perf gathers
//! them from the rings of all CPUs in turn; here they are put in order of time before they are read.
//! Sources: tools/perf/Documentation/perf.data-file-format.txt, include/uapi/linux/perf_event.h.
//!
//! No crate is used for it: linux-perf-data 0.13 leaves out weight and `data_src`, and takes
//! the lengths that a file names for what there is.

use nearpage_machine::CpuId;
use nearpage_perf_abi::header::{self, Header, kind};
use nearpage_perf_abi::{
    Attributes, BuildId, Bytes, Malformed, Sideband, event, flag, sample_type as st,
};
use rustc_hash::FxHashMap;

use super::features::{self, feature};
use super::{About, EventKind, Record, Sample, What};
use crate::Error;

const MAGIC: &[u8; 8] = b"PERFILE2";
/// The same, written by a big-endian machine.
const MAGIC_SWAPPED: &[u8; 8] = b"2ELIFREP";
const HEADER_BYTES: usize = 104;
/// The header of what `perf record -o -` writes.
const PIPE_HEADER_BYTES: u64 = 16;

/// Types of records that perf adds to the kernel's.
mod record {
    /// Its data follow it and don't count to its length.
    pub const AUXTRACE: u32 = 71;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// A file whose structure was found sound.
pub(super) struct PerfData<'a> {
    bytes: &'a [u8],
    events: Vec<NamedEvent>,
    /// Which of `events` a number belongs to.
    by_id: FxHashMap<u64, usize>,
    /// Build-ids by path.
    build_ids: FxHashMap<&'a [u8], BuildId>,
    /// When, and where in `bytes`, in order of time.
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

    /// Are samples such as are imported: threads, times and addresses?
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

/// `offset`, `length` of a section of `bytes`.
fn section<'a>(bytes: &'a [u8], at: usize, what: &str) -> Result<&'a [u8], String> {
    let mut place = Bytes(bytes.get(at..).unwrap_or_default());
    let (Ok(offset), Ok(length)) = (place.u64(), place.u64()) else {
        return Err(cut_short(bytes, what));
    };
    let end = offset
        .checked_add(length)
        .and_then(|end| usize::try_from(end).ok());
    end.and_then(|end| bytes.get(offset as usize..end)).ok_or_else(|| {
        format!(
            "cut short: {what} should be {length} bytes from {offset} on, and the file has {}; copy or record it again",
            bytes.len()
        )
    })
}

fn cut_short(bytes: &[u8], what: &str) -> String {
    format!(
        "cut short: {} bytes end before {what}; copy or record it again",
        bytes.len()
    )
}

fn damaged(at: usize, what: &str) -> String {
    format!("damaged: {what} at byte {at}; copy or record it again")
}

impl<'a> PerfData<'a> {
    /// Does it look like one?
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC) || bytes.starts_with(MAGIC_SWAPPED)
    }

    /// Reads the header and finds all records.
    pub fn new(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.starts_with(MAGIC_SWAPPED) {
            return Err("recorded on a big-endian machine, which this reader does not take; import the text that `perf script` prints there".to_owned());
        }
        let field = |at: usize| Bytes(bytes.get(at..).unwrap_or_default()).u64();
        if field(8) == Ok(PIPE_HEADER_BYTES) {
            return Err("written to a pipe (`perf record -o -`); make a file of it with `perf inject -i FILE -o OTHER`".to_owned());
        }
        if bytes.len() < HEADER_BYTES {
            return Err(cut_short(bytes, "the end of the header"));
        }
        if field(48) == Ok(0) {
            return Err("has no data: `perf record` was killed before it could finish the file; record it again".to_owned());
        }
        let data = section(bytes, 40, "data")?;
        let features = find_features(bytes)?;
        let (events, by_id) = find_events(bytes, &features)?;
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
            .all(|event| event.attributes.is_laid_out_as(&first.attributes))
        {
            return Err(format!(
                "its events ({}) are laid out differently, with no identifier to tell them by; record them one at a time",
                list(&events)
            ));
        }
        let build_ids = features
            .get(&feature::BUILD_ID)
            .map(|section| features::build_ids(section));
        let mut found = Self {
            bytes,
            events,
            by_id,
            build_ids: build_ids.into_iter().flatten().collect(),
            order: Vec::new(),
            features,
        };
        found.order =
            found.in_order(data.as_ptr() as usize - bytes.as_ptr() as usize, data.len())?;
        Ok(found)
    }

    /// All records of the data, by time; those without one come with their predecessor.
    fn in_order(&self, begin: usize, length: usize) -> Result<Vec<(u64, usize)>, String> {
        let mut order = Vec::new();
        let (mut at, end, mut latest_ns) = (begin, begin + length, 0);
        while at < end {
            let (header, body) = header::split(&self.bytes[at..end])
                .map_err(|Malformed| damaged(at, "no record"))?;
            let next = at + header::BYTES + body.len();
            match header.kind {
                record::COMPRESSED | record::COMPRESSED2 => {
                    return Err("compressed (`perf record -z`), which this reader does not take; import the text that `perf script` prints".to_owned());
                }
                record::AUXTRACE => {
                    let data = Bytes(body)
                        .u64()
                        .map_err(|_| damaged(at, "a record cut short"))?;
                    let data = usize::try_from(data)
                        .ok()
                        .and_then(|data| next.checked_add(data));
                    at = data
                        .filter(|next| *next <= end)
                        .ok_or_else(|| damaged(at, "a record cut short"))?;
                    continue;
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
            at = next;
        }
        order.sort_by_key(|(time_ns, _)| *time_ns);
        Ok(order)
    }

    /// The event that a sample is of.
    fn event(&self, body: &[u8]) -> &NamedEvent {
        let id = self.events[0].attributes.sample_id(body);
        let number = id.and_then(|id| self.by_id.get(&id)).copied();
        &self.events[number.unwrap_or(0)]
    }

    /// What holds for the whole.
    pub fn about(&self) -> About {
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
        About {
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
                .what(*at)
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

    /// What the record at `at` says.
    fn what(&self, at: usize) -> Result<Option<What<'a>>, Malformed> {
        let (Header { kind, misc }, body) = header::split(&self.bytes[at..])?;
        if kind == kind::SAMPLE {
            let event = self.event(body);
            let sample = event.has_addresses().then(|| event.sample(body, misc));
            return Ok(sample.transpose()?.map(What::Sample));
        }
        let mut sideband = Sideband::parse(kind, misc, body)?;
        if let Some(Sideband::Map(map)) = &mut sideband
            && map.build_id.is_empty()
        {
            map.build_id = self.build_ids.get(map.path).copied().unwrap_or_default();
        }
        Ok(sideband.map(What::Sideband))
    }
}

/// Feature sections by number.
fn find_features(bytes: &[u8]) -> Result<FxHashMap<usize, &[u8]>, String> {
    let word = |at: usize| Bytes(&bytes[at..]).u64().unwrap_or(0);
    // Sound: the data section was found.
    let mut at = (word(40) + word(48)) as usize;
    let mut found = FxHashMap::default();
    for number in (0..256).filter(|number| word(72 + number / 64 * 8) >> (number % 64) & 1 != 0) {
        found.insert(number, section(bytes, at, "a feature section")?);
        at += 16;
    }
    Ok(found)
}

type Events = (Vec<NamedEvent>, FxHashMap<u64, usize>);

/// Events with their names, and which numbers are whose.
fn find_events(bytes: &[u8], features: &FxHashMap<usize, &[u8]>) -> Result<Events, String> {
    let entry_bytes = Bytes(&bytes[16..]).u64().unwrap_or(0);
    let entry_bytes = usize::try_from(entry_bytes).unwrap_or(usize::MAX);
    let attributes = section(bytes, 24, "attributes")?;
    if entry_bytes <= 16 {
        return Err(damaged(16, "a length of attributes"));
    }
    let names = features
        .get(&feature::EVENT_DESCRIPTION)
        .map(|section| features::event_names(section));
    let mut names = names.unwrap_or_default().into_iter();
    let (mut events, mut by_id) = (Vec::new(), FxHashMap::default());
    for entry in attributes.chunks_exact(entry_bytes) {
        let (attribute, _) = entry.split_at(entry_bytes - 16);
        let at = entry.as_ptr() as usize - bytes.as_ptr() as usize;
        let attributes = Attributes::parse(attribute)
            .map_err(|Malformed| damaged(at, "an event's attributes"))?;
        let ids = section(bytes, at + entry_bytes - 16, "an event's numbers")?;
        for id in ids.chunks_exact(8) {
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
