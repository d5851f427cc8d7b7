//! The firmware's ratings of memory: ACPI's Heterogeneous Memory Attribute Table, revisions 1 and 2,
//! as `/sys/firmware/acpi/tables/HMAT` has it, as `acpidump` prints it, and as `iasl -d` does.
//!
//! The parser reads two kinds of structures (ACPI 6.5, 5.2.28): latencies and bandwidths of memory itself (type 1), and
//! memory-side caches (type 2). Nodes have the numbers of proximity domains. Linux numbers nodes in the order of the
//! table SRAT, which is usually the same.

use super::sections::{NODES_MAX, Pairs, Problem, shown};
use crate::NodeId;

const SIGNATURE: &[u8] = b"HMAT";
/// Bytes of an ACPI table's header and of four reserved bytes.
const HEADER_BYTES: usize = 40;
const LOCALITY: u64 = 1;
const SIDE_CACHE: u64 = 2;
/// Entry for pairs of domains without a path or a figure.
const UNREACHABLE: u64 = 0xffff;

/// Figures in the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rated {
    pub latency_ns: Pairs,
    /// MB/s of 10^6 bytes.
    pub read: Pairs,
    /// MB/s of 10^6 bytes.
    pub write: Pairs,
    /// Node, level, size in bytes, line size in bytes.
    pub caches: Vec<(NodeId, u8, u64, u32)>,
}

/// One structure of the table.
#[derive(Clone, Debug, Default)]
struct Structure {
    kind: u64,
    hierarchy: u64,
    data: u64,
    base: u64,
    initiators: Vec<u64>,
    targets: Vec<u64>,
    entries: Vec<u64>,
    domain: u64,
    size: u64,
    attributes: u64,
}

/// Are the bytes a table in the firmware's binary form?
pub(super) fn is_table(bytes: &[u8]) -> bool {
    bytes.starts_with(SIGNATURE) && bytes.len() >= HEADER_BYTES && bytes.contains(&0)
}

/// Reads a table in the firmware's binary form.
pub(super) fn table(bytes: &[u8]) -> Result<Rated, String> {
    let length = usize::try_from(little_endian(bytes, 4, 4)?).unwrap_or(usize::MAX);
    if !bytes.starts_with(SIGNATURE) || length < HEADER_BYTES || length > bytes.len() {
        return Err(format!(
            "expected an HMAT of {HEADER_BYTES} bytes or more, found {} bytes of a table of {length}",
            bytes.len()
        ));
    }
    let bytes = &bytes[..length];
    if bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte)) != 0 {
        return Err("the checksum of the HMAT is wrong: it is damaged".to_owned());
    }
    let revision = little_endian(bytes, 8, 1)?;
    let mut rated = Rated::default();
    let mut at = HEADER_BYTES;
    while at < length {
        let size = usize::try_from(little_endian(bytes, at + 4, 4)?).unwrap_or(usize::MAX);
        let end = at
            .checked_add(size)
            .filter(|&end| end <= length && size >= 8);
        let end = end.ok_or_else(|| {
            format!("a structure of the HMAT of {size} bytes at {at} of {length}")
        })?;
        rated.add(&structure(&bytes[at..end])?, revision)?;
        at = end;
    }
    Ok(rated)
}

/// One structure's bytes.
fn structure(bytes: &[u8]) -> Result<Structure, String> {
    let mut structure = Structure {
        kind: little_endian(bytes, 0, 2)?,
        ..Structure::default()
    };
    match structure.kind {
        LOCALITY => {
            structure.hierarchy = little_endian(bytes, 8, 1)? & 0xf;
            structure.data = little_endian(bytes, 9, 1)?;
            let initiators = little_endian(bytes, 12, 4)?;
            let targets = little_endian(bytes, 16, 4)?;
            structure.base = little_endian(bytes, 24, 8)?;
            let nodes = |count: u64| match count <= NODES_MAX as u64 {
                true => Ok(count as usize),
                false => Err(format!(
                    "an HMAT of {count} domains; expected {NODES_MAX} at most"
                )),
            };
            let (initiators, targets) = (nodes(initiators)?, nodes(targets)?);
            let list = |from: usize, count: usize, size: usize| {
                (0..count)
                    .map(|at| little_endian(bytes, from + at * size, size))
                    .collect::<Result<Vec<_>, _>>()
            };
            let entries = 32 + (initiators + targets) * 4;
            structure.initiators = list(32, initiators, 4)?;
            structure.targets = list(32 + initiators * 4, targets, 4)?;
            structure.entries = list(entries, initiators * targets, 2)?;
        }
        SIDE_CACHE => {
            structure.domain = little_endian(bytes, 8, 4)?;
            structure.size = little_endian(bytes, 16, 8)?;
            structure.attributes = little_endian(bytes, 24, 4)?;
        }
        _ => {}
    }
    Ok(structure)
}

fn little_endian(bytes: &[u8], at: usize, size: usize) -> Result<u64, String> {
    let bytes = at.checked_add(size).and_then(|end| bytes.get(at..end));
    let bytes = bytes.ok_or_else(|| format!("the HMAT ends before its byte {at}"))?;
    let number = |sum: u64, &byte: &u8| sum << 8 | u64::from(byte);
    Ok(bytes.iter().rev().fold(0, number))
}

impl Rated {
    fn add(&mut self, structure: &Structure, revision: u64) -> Result<(), String> {
        match structure.kind {
            SIDE_CACHE => {
                let level = (structure.attributes >> 4 & 0xf).max(1) as u8;
                let line = (structure.attributes >> 16 & 0xffff) as u32;
                if structure.size > 0
                    && structure.size <= i64::MAX as u64
                    && self.caches.len() < NODES_MAX
                {
                    self.caches
                        .push((node(structure.domain)?, level, structure.size, line));
                }
                Ok(())
            }
            // Structures with another hierarchy are about memory-side caches.
            LOCALITY if structure.hierarchy == 0 => self.add_locality(structure, revision),
            _ => Ok(()),
        }
    }

    /// Adds latencies or bandwidths. Access figures (types 0 and 3) apply to loads and stores; figures for loads (1, 4)
    /// or stores (2, 5) alone come later and overwrite them.
    fn add_locality(&mut self, structure: &Structure, revision: u64) -> Result<(), String> {
        let (initiators, targets) = (&structure.initiators, &structure.targets);
        if initiators.len() * targets.len() != structure.entries.len() {
            return Err(format!(
                "an HMAT of {} initiators, {} targets and {} entries",
                initiators.len(),
                targets.len(),
                structure.entries.len()
            ));
        }
        let tables: &mut [&mut Pairs] = match structure.data {
            0 | 1 => &mut [&mut self.latency_ns],
            3 => &mut [&mut self.read, &mut self.write],
            4 => &mut [&mut self.read],
            5 => &mut [&mut self.write],
            _ => return Ok(()),
        };
        // As in Linux (drivers/acpi/numa/hmat.c): tenths of ns and MB/s in revision 1, picoseconds and MB/s from 2 on.
        let unit = match (revision, structure.data) {
            (0 | 1, _) => 0.1,
            (_, 0 | 1) => 1e-3,
            _ => 1.0,
        };
        let mut entries = structure.entries.iter();
        for &initiator in initiators {
            for (&target, &entry) in targets.iter().zip(entries.by_ref()) {
                let figure = entry as f64 * structure.base as f64 * unit;
                if entry == UNREACHABLE || figure <= 0.0 {
                    continue;
                }
                if figure >= 1e15 {
                    return Err(format!("an HMAT with the figure {figure:e}"));
                }
                for table in tables.iter_mut() {
                    table.insert((node(initiator)?, node(target)?), figure);
                }
            }
        }
        Ok(())
    }
}

fn node(domain: u64) -> Result<NodeId, String> {
    let node = u16::try_from(domain).map(NodeId);
    node.map_err(|_| format!("proximity domain {domain}; expected 65535 at most"))
}

/// Tables in text form: dumps of bytes, or named fields.
#[derive(Default)]
pub(super) struct Text {
    /// Bytes of the current dump.
    dump: Option<Vec<u8>>,
    /// Structures of the disassembled table.
    fields: Option<Fields>,
}

#[derive(Default)]
struct Fields {
    revision: u64,
    structures: Vec<Structure>,
    entries: usize,
}

impl Text {
    /// Reads a line; is it one of `acpidump` or `iasl -d`? Tables are complete at [`Text::finish`].
    pub fn line(&mut self, line: &str) -> Result<bool, String> {
        if let Some(dump) = &mut self.dump {
            if dump_line(line, dump)? {
                return Ok(true);
            }
        } else if line.starts_with("HMAT @ ") {
            self.dump = Some(Vec::new());
            return Ok(true);
        }
        let Some((name, value)) = line.split_once(" : ") else {
            return Ok(false);
        };
        let name = match name.split_once(']') {
            Some((offset, name)) if offset.starts_with('[') => name.trim(),
            _ => name.trim(),
        };
        if name == "Signature" {
            let is_hmat = value.trim_start().starts_with("\"HMAT\"");
            self.fields = is_hmat.then(Fields::default);
            return Ok(is_hmat);
        }
        match &mut self.fields {
            Some(fields) => fields.field(name, value),
            None => Ok(false),
        }
    }

    /// Figures in the text's tables.
    pub fn finish(self) -> Result<Option<Rated>, Problem> {
        let first = |message| (1, message);
        if let Some(dump) = self.dump {
            return table(&dump).map(Some).map_err(first);
        }
        let Some(fields) = self.fields else {
            return Ok(None);
        };
        let mut rated = Rated::default();
        for structure in &fields.structures {
            rated.add(structure, fields.revision).map_err(first)?;
        }
        Ok(Some(rated))
    }
}

/// Reads a line such as `    0010: 42 58 50 43 ... BXPCHMAT`; is it a line of the dump?
fn dump_line(line: &str, dump: &mut Vec<u8>) -> Result<bool, String> {
    const TABLE_MAX: usize = 8 << 20;
    let Some((offset, bytes)) = line.trim_start().split_once(": ") else {
        return Ok(false);
    };
    if offset.len() > 8 || usize::from_str_radix(offset, 16) != Ok(dump.len()) {
        return Ok(false);
    }
    let byte = |word: &str| (word.len() == 2).then(|| u8::from_str_radix(word, 16).ok())?;
    dump.extend(bytes.split(' ').take(16).map_while(byte));
    match dump.len() > TABLE_MAX {
        true => Err("an HMAT of more than 8 MiB".to_owned()),
        false => Ok(true),
    }
}

impl Fields {
    fn field(&mut self, name: &str, value: &str) -> Result<bool, String> {
        const STRUCTURES_MAX: usize = 10_000;
        let number = || {
            let word = value.split_whitespace().next().unwrap_or("");
            u64::from_str_radix(word, 16).map_err(|_| {
                format!(
                    "expected a hexadecimal number for `{name}`, found `{}`",
                    shown(word)
                )
            })
        };
        if name == "Revision" && self.structures.is_empty() {
            self.revision = number()?;
        }
        if name == "Structure Type" {
            let kind = number()?;
            self.structures.push(Structure {
                kind,
                ..Structure::default()
            });
            return match self.structures.len() > STRUCTURES_MAX {
                true => Err(format!("an HMAT of more than {STRUCTURES_MAX} structures")),
                false => Ok(true),
            };
        }
        let Some(structure) = self.structures.last_mut() else {
            return Ok(true);
        };
        match name {
            "Memory Hierarchy" => structure.hierarchy = number()?,
            "Data Type" => structure.data = number()?,
            "Entry Base Unit" => structure.base = number()?,
            "Initiator Proximity Domain List" => structure.initiators.push(number()?),
            "Target Proximity Domain List" => structure.targets.push(number()?),
            "Entry" => structure.entries.push(number()?),
            "Memory Proximity Domain" => structure.domain = number()?,
            "Memory Side Cache Size" => structure.size = number()?,
            "Cache Attributes (decoded below)" => structure.attributes = number()?,
            _ => {}
        }
        self.entries += 1;
        match self.entries > NODES_MAX * NODES_MAX {
            true => Err("an HMAT of more than a million fields".to_owned()),
            false => Ok(true),
        }
    }
}
