//! Machine and command that a `perf.data` file states (feature sections,
//! tools/perf/Documentation/perf.data-file-format.txt).

use nearpage_machine::{CpuList, Machine, Node, NodeId};
use nearpage_perf_abi::{BuildId, Bytes};

use super::bare_machine;

/// Numbers of feature sections.
pub(super) mod feature {
    pub const BUILD_ID: usize = 2;
    pub const VERSION: usize = 5;
    pub const CPU_DESCRIPTION: usize = 8;
    pub const COMMAND: usize = 11;
    pub const EVENT_DESCRIPTION: usize = 12;
    pub const NUMA_TOPOLOGY: usize = 14;
}

/// Bit of a build-id record's `misc`: the build-id's length follows the build-id (since Linux 5.15).
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;
/// Bytes before a build-id record's path: header, process, build-id and the build-id's length.
const BUILD_ID_BYTES: usize = 8 + 4 + 24;

/// Reads a string: `u32` length, then text padded with zeros to this length.
pub(super) fn string(bytes: &mut Bytes<'_>) -> Option<String> {
    let length = bytes.u32().ok()?;
    let text = bytes.take(u64::from(length)).ok()?;
    Some(String::from_utf8_lossy(until_zero(text)).into_owned())
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Reads a `u32` count, then this number of strings.
pub(super) fn strings(bytes: &[u8]) -> Vec<String> {
    let mut bytes = Bytes(bytes);
    let count = bytes.u32().unwrap_or(0);
    (0..count).map_while(|_| string(&mut bytes)).collect()
}

/// Names of the events, in the order of their attributes.
pub(super) fn event_names(bytes: &[u8]) -> Vec<String> {
    let mut bytes = Bytes(bytes);
    let mut names = Vec::new();
    let (Ok(count), Ok(attribute_bytes)) = (bytes.u32(), bytes.u32()) else {
        return names;
    };
    for _ in 0..count {
        let mut event = || {
            bytes.take(u64::from(attribute_bytes)).ok()?;
            let ids = bytes.u32().ok()?;
            let name = string(&mut bytes)?;
            bytes.take(u64::from(ids) * 8).ok()?;
            Some(name)
        };
        match event() {
            Some(name) => names.push(name),
            None => break,
        }
    }
    names
}

/// Paths and build-ids of files that contain samples.
pub(super) fn build_ids(bytes: &[u8]) -> Vec<(&[u8], BuildId)> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while rest.len() > BUILD_ID_BYTES {
        let (misc, size) = (
            u16::from_le_bytes([rest[4], rest[5]]),
            usize::from(u16::from_le_bytes([rest[6], rest[7]])),
        );
        let Some(record) = rest.get(..size).filter(|_| size > BUILD_ID_BYTES) else {
            break;
        };
        let length = if misc & MISC_BUILD_ID_SIZE != 0 {
            usize::from(record[32]).min(20)
        } else {
            20
        };
        let path = until_zero(&record[BUILD_ID_BYTES..]);
        found.push((path, BuildId::new(&record[12..12 + length])));
        rest = &rest[size..];
    }
    found
}

/// Memory nodes and their CPUs. The file has no distances.
pub(super) fn machine(topology: &[u8], description: Option<&str>) -> Option<Machine> {
    let mut bytes = Bytes(topology);
    let count = bytes.u32().ok()?;
    let mut nodes = Vec::new();
    for _ in 0..count {
        let id = NodeId(u16::try_from(bytes.u32().ok()?).ok()?);
        let memory_kib = bytes.u64().ok()?;
        bytes.u64().ok()?;
        let cpus = string(&mut bytes)?;
        let cpus = match cpus.trim() {
            "" => CpuList::default(),
            cpus => cpus.parse().ok()?,
        };
        nodes.push(Node {
            id,
            cpus: cpus.as_slice().to_vec(),
            memory_bytes: memory_kib.checked_mul(1024),
            memory_kind: None,
        });
    }
    nodes.sort_by_key(|node| node.id);
    let machine = Machine {
        source: match description {
            Some(processor) => format!("perf.data: {processor}"),
            None => "perf.data".to_owned(),
        },
        ..bare_machine(nodes)
    };
    // Rejects what a machine file must not have, either: a CPU on two nodes, or a node twice.
    Machine::from_toml(&machine.to_toml(), "perf.data").ok()
}

/// Nominal frequency in a processor's name: `… CPU @ 2.70GHz`.
pub(super) fn ghz(description: &str) -> Option<f32> {
    let figure = description.split('@').nth(1)?.trim();
    let (figure, per_ghz) = match (figure.strip_suffix("GHz"), figure.strip_suffix("MHz")) {
        (Some(figure), _) => (figure, 1.0),
        (_, Some(figure)) => (figure, 1000.0),
        _ => return None,
    };
    let ghz = figure.trim().parse::<f32>().ok()? / per_ghz;
    (0.1..=20.0).contains(&ghz).then_some(ghz)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Vec<u8>, text: &str) {
        let padded = (text.len() + 1).next_multiple_of(64);
        out.extend((padded as u32).to_le_bytes());
        out.extend(text.as_bytes());
        out.extend(std::iter::repeat_n(0, padded - text.len()));
    }

    fn topology(nodes: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = (nodes.len() as u32).to_le_bytes().to_vec();
        for (id, cpus) in nodes {
            bytes.extend(id.to_le_bytes());
            bytes.extend(1_000_000u64.to_le_bytes());
            bytes.extend(500_000u64.to_le_bytes());
            put(&mut bytes, cpus);
        }
        bytes
    }

    #[test]
    fn nodes_and_cpus() {
        let machine =
            machine(&topology(&[(1, "4-7"), (0, "0-3"), (2, "")]), Some("a CPU")).unwrap();
        let cpus: Vec<usize> = machine.nodes.iter().map(|node| node.cpus.len()).collect();
        assert_eq!(cpus, [4, 4, 0]);
        assert_eq!(machine.nodes[0].memory_bytes, Some(1_024_000_000));
        assert_eq!(machine.source, "perf.data: a CPU");
    }

    #[test]
    fn no_machine_of_nonsense() {
        let mut cut = topology(&[(0, "0-3")]);
        cut.truncate(20);
        let nonsense = [
            topology(&[(0, "0-3"), (1, "3-4")]),
            topology(&[(0, "0-3"), (0, "4")]),
            topology(&[(0, "0-4294967295")]),
            topology(&[(70_000, "0")]),
            topology(&[]),
            cut,
        ];
        for bytes in nonsense {
            assert_eq!(machine(&bytes, None), None, "{bytes:?}");
        }
    }

    #[test]
    fn frequency_from_a_name() {
        let of = |text| ghz(text);
        assert_eq!(of("Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz"), Some(2.7));
        assert_eq!(of("Genuine CPU @ 900MHz"), Some(0.9));
        assert_eq!(of("AMD EPYC 7763 64-Core Processor"), None);
        assert_eq!(of("odd @ 900GHz"), None);
    }
}
