//! The machine file: TOML that people can read and edit, with a row of a matrix to a line.

use std::fmt::{Display, Write};

use serde::{Deserialize, Deserializer, de};

use crate::{Bandwidth, CpuId, CpuList, Error, Fault, Machine, Memory, NodeId, Number, Processor};

/// The key of distances that differ by direction, as some firmware has them.
const DIRECTED_DISTANCE: &str = "directed_distance";

/// Row and column of a distance that is another on the way back.
fn asymmetric(distance: &[Vec<u32>]) -> Option<(usize, usize)> {
    let pairs = (0..distance.len()).flat_map(|row| (0..row).map(move |column| (column, row)));
    pairs
        .into_iter()
        .find(|&(row, column)| distance[row][column] != distance[column][row])
}

impl Machine {
    /// Checks that the file with this `text` has as many hops there as back, unless it says
    /// that they differ. Not a part of [`Machine::validate`]: what a kernel says is how it is, and
    /// recordings keep it.
    pub(crate) fn validate_hops(&self, text: &str) -> Result<(), Fault> {
        let Some(distance) = &self.distance else {
            return Ok(());
        };
        let directed = |text: &str| {
            let table = text.parse::<toml::Table>();
            table.is_ok_and(|table| table.contains_key(DIRECTED_DISTANCE))
        };
        match asymmetric(distance) {
            Some((row, column)) if !directed(text) => Err(Fault::DistanceAsymmetric {
                from: self.nodes[row].id,
                to: self.nodes[column].id,
                there: distance[row][column],
                back: distance[column][row],
            }),
            _ => Ok(()),
        }
    }

    /// Reads a machine file; `origin` names it in messages.
    ///
    /// # Errors
    /// Text that is not TOML, keys that are unknown or missing, and machines that cannot be
    /// ([`Machine::validate`]).
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        let machine: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..before]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count();
            Error::Syntax {
                origin: origin.to_owned(),
                line,
                message: error.message().replace('\n', ", "),
            }
        })?;
        machine.validate().map_err(|fault| Error::Invalid {
            origin: origin.to_owned(),
            fault,
        })?;
        Ok(machine)
    }

    /// Writes a machine file that [`Machine::from_toml`] reads back as it was.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        pair(&mut out, "name", quoted(&self.name));
        if !self.source.is_empty() {
            pair(&mut out, "source", quoted(&self.source));
        }
        pair(&mut out, "page_bytes", self.page_bytes);
        if let Some(bytes) = self.huge_page_bytes {
            pair(&mut out, "huge_page_bytes", bytes);
        }
        if let Some(mode) = self.transparent_huge_pages {
            pair(&mut out, "transparent_huge_pages", quoted(mode.as_str()));
        }
        if let Some(latency_ns) = &self.latency_ns {
            out.push_str(
                "\n# Nanoseconds; rows are the CPU's node, columns the memory's, nan is not known.\n",
            );
            rows(&mut out, "latency_ns", latency_ns, cell);
        }
        if let Some(distance) = &self.distance {
            out.push_str("\n# ACPI SLIT; rows are the CPU's node, columns the memory's.\n");
            let key = match asymmetric(distance) {
                None => "distance",
                Some(_) => DIRECTED_DISTANCE,
            };
            rows(&mut out, key, distance, u32::to_string);
        }
        if !self.cores.is_empty() {
            out.push_str("\n# SMT siblings.\n");
            let cores: Vec<String> = self
                .cores
                .iter()
                .map(|core| quoted(&in_order(core)))
                .collect();
            let lines: Vec<Vec<String>> = cores.chunks(8).map(<[String]>::to_vec).collect();
            out.push_str("cores = [\n");
            for line in lines {
                let _ = writeln!(out, "  {},", line.join(", "));
            }
            out.push_str("]\n");
        }
        for node in &self.nodes {
            out.push_str("\n[[node]]\n");
            pair(&mut out, "id", node.id);
            pair(
                &mut out,
                "cpus",
                quoted(&node.cpus.iter().copied().collect::<CpuList>().to_string()),
            );
            if let Some(bytes) = node.memory_bytes {
                pair(&mut out, "memory_bytes", bytes);
            }
        }
        for cache in &self.caches {
            out.push_str("\n[[cache]]\n");
            pair(&mut out, "level", cache.level);
            pair(&mut out, "kind", quoted(cache.kind.as_str()));
            pair(&mut out, "size_bytes", cache.size_bytes);
            pair(&mut out, "line_bytes", cache.line_bytes);
            if cache.associativity > 0 {
                pair(&mut out, "associativity", cache.associativity);
            }
            pair(&mut out, "shared_by_cpus", cache.shared_by_cpus);
            optional(&mut out, "latency_ns", cache.latency_ns);
        }
        self.timing_to_toml(&mut out);
        self.bandwidth_to_toml(&mut out);
        out
    }

    fn bandwidth_to_toml(&self, out: &mut String) {
        if self.bandwidth != Bandwidth::default() {
            out.push_str("\n# Bytes per second, as latency_ns; mixed is two loads to a store.\n");
            out.push_str("[bandwidth]\n");
        }
        for (key, _, matrix) in self.bandwidth.matrices() {
            rows(out, key, matrix, cell);
        }
        for point in &self.loaded_latencies {
            out.push_str("\n[[loaded_latency]]\n");
            pair(out, "node", point.node);
            pair(
                out,
                "bandwidth_bytes_per_s",
                number(point.bandwidth_bytes_per_s),
            );
            pair(out, "latency_ns", number(point.latency_ns));
        }
    }

    fn timing_to_toml(&self, out: &mut String) {
        let Processor {
            clock_ghz,
            cycles_per_instruction,
            outstanding_misses,
            window_instructions,
        } = self.processor;
        if self.processor != Processor::default() {
            out.push_str("\n[processor]\n");
            optional(out, "clock_ghz", clock_ghz);
            optional(out, "cycles_per_instruction", cycles_per_instruction);
            optional(out, "outstanding_misses", outstanding_misses.map(f64::from));
            optional(
                out,
                "window_instructions",
                window_instructions.map(f64::from),
            );
        }
        for tlb in &self.tlbs {
            out.push_str("\n[[tlb]]\n");
            pair(out, "level", tlb.level);
            pair(out, "kind", quoted(tlb.kind.as_str()));
            pair(out, "entries", tlb.entries);
            for (key, count) in [
                ("associativity", tlb.associativity),
                ("reserved", tlb.reserved),
            ] {
                if count > 0 {
                    pair(out, key, count);
                }
            }
            pair(out, "miss_cycles", number(tlb.miss_cycles));
        }
        if self.memory != Memory::default() {
            out.push_str("\n[memory]\n");
            optional(
                out,
                "bandwidth_bytes_per_s",
                self.memory.bandwidth_bytes_per_s,
            );
            optional(out, "directory_ns", self.memory.directory_ns);
        }
        for link in &self.links {
            out.push_str("\n[[link]]\n");
            pair(
                out,
                "nodes",
                format!("[{}, {}]", link.nodes[0], link.nodes[1]),
            );
            pair(
                out,
                "bandwidth_bytes_per_s",
                number(link.bandwidth_bytes_per_s),
            );
        }
        for route in &self.routes {
            let nodes: Vec<String> = route.nodes.iter().map(ToString::to_string).collect();
            out.push_str("\n[[route]]\n");
            pair(out, "nodes", format!("[{}]", nodes.join(", ")));
        }
        if let Some(fixed_ns) = self.moves.fixed_ns {
            out.push_str("\n[moves]\n");
            pair(out, "fixed_ns", number(fixed_ns));
        }
        if let Some(steps) = &self.moves.steps {
            out.push_str("\n[moves.steps]\n");
            for (key, value) in steps.pairs() {
                pair(out, key, number(value));
            }
        }
        if let Some(energy) = &self.energy {
            out.push_str("\n[energy]\n");
            for (key, value) in energy.pairs() {
                pair(out, key, number(value));
            }
        }
    }
}

fn optional(out: &mut String, key: &str, value: Option<f64>) {
    if let Some(value) = value {
        pair(out, key, number(value));
    }
}

fn pair(out: &mut String, key: &str, value: impl Display) {
    let _ = writeln!(out, "{key} = {value}");
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Whole numbers without a fraction, all others so that they read back exactly.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{value}")
    } else {
        format!("{value:?}")
    }
}

/// `nan` where it is not known.
fn cell(value: &Option<f64>) -> String {
    value.map_or("nan".to_owned(), number)
}

fn rows<T>(out: &mut String, key: &str, matrix: &[Vec<T>], format: impl Fn(&T) -> String) {
    let _ = writeln!(out, "{key} = [");
    for row in matrix {
        let cells: Vec<String> = row.iter().map(&format).collect();
        let _ = writeln!(out, "  [{}],", cells.join(", "));
    }
    out.push_str("]\n");
}

/// A core's CPUs, the first one first (so not in the kernel's format, which is ascending).
fn in_order(core: &[CpuId]) -> String {
    core.iter()
        .map(CpuId::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cpus {
    Text(String),
    Numbers(Vec<CpuId>),
}

impl Cpus {
    fn read<E: de::Error>(self) -> Result<Vec<CpuId>, E> {
        let cpus = match self {
            Self::Text(text) => text
                .parse::<CpuList>()
                .map_err(E::custom)?
                .as_slice()
                .to_vec(),
            Self::Numbers(cpus) => cpus,
        };
        match cpus.iter().find(|cpu| cpu.number() > CpuId::MAX) {
            Some(cpu) => Err(E::custom(format!("CPU {cpu} is beyond {}", CpuId::MAX))),
            None => Ok(cpus),
        }
    }
}

pub(crate) fn cpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CpuId>, D::Error> {
    let mut cpus = Cpus::deserialize(deserializer)?.read()?;
    cpus.sort_unstable();
    Ok(cpus)
}

/// A link's, of which an array would leave out the third.
pub(crate) fn ends<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[NodeId; 2], D::Error> {
    let nodes = Vec::<NodeId>::deserialize(deserializer)?;
    <[NodeId; 2]>::try_from(nodes).map_err(|nodes| {
        de::Error::custom(format!("a link has two `nodes`, found {}", nodes.len()))
    })
}

pub(crate) fn distances<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Vec<u32>>>, D::Error> {
    let matrix = Vec::<Vec<i64>>::deserialize(deserializer)?;
    let row = |(row, values): (usize, Vec<i64>)| {
        let values = values.into_iter().enumerate();
        let distance = values.map(|(column, value)| {
            u32::try_from(value).map_err(|_| {
                de::Error::custom(format!(
                    "`distance`[{row}][{column}] is {value}; the least there is, a node's own, is 10"
                ))
            })
        });
        distance.collect()
    };
    let rows: Result<_, D::Error> = matrix.into_iter().enumerate().map(row).collect();
    rows.map(Some)
}

/// Cores keep their order where it is written out one by one.
pub(crate) fn cores<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Vec<CpuId>>, D::Error> {
    Vec::<Cpus>::deserialize(deserializer)?
        .into_iter()
        .map(|core| match core {
            Cpus::Text(text) if !text.contains('-') => text
                .split(',')
                .map(|cpu| cpu.trim().parse().map(CpuId))
                .collect::<Result<_, _>>()
                .map_err(|_| {
                    de::Error::custom(format!("`{text}`: expected CPU numbers such as `0,16`"))
                }),
            other => other.read(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Cache, CacheKind, Energy, Link, LoadedLatency, MoveSteps, Moves, Node, NodeId,
        PRESET_NAMES, Route, Tlb, TransparentHugePages, preset,
    };

    const TWO_NODES: &str = "\
name = \"two\"
page_bytes = 4096
distance = [[10, 20], [20, 10]]
[[node]]
id = 0
cpus = \"0-1\"
[[node]]
id = 1
cpus = [2, 3]
";

    fn fault(from: &str, to: &str) -> String {
        assert!(TWO_NODES.contains(from), "{from}");
        Machine::from_toml(&TWO_NODES.replace(from, to), "two.toml")
            .expect_err(to)
            .to_string()
    }

    #[test]
    fn reads_cpus_as_text_and_as_numbers() {
        let machine = Machine::from_toml(TWO_NODES, "two.toml").expect("reads");
        assert_eq!(machine.nodes[0].cpus, [CpuId(0), CpuId(1)]);
        assert_eq!(machine.nodes[1].cpus, [CpuId(2), CpuId(3)]);
    }

    #[test]
    fn messages_name_the_place_and_the_fault() {
        let nowhere = TWO_NODES.replace("id =", "memory_bytes = 0\nid =");
        let error = Machine::from_toml(&nowhere, "two.toml").expect_err("memory");
        assert_eq!(
            error.to_string(),
            "two.toml: no node has memory: `memory_bytes` is 0 of all"
        );
        let gigabytes = TWO_NODES.replace("id =", "memory_bytes = 64\nid =");
        let error = Machine::from_toml(&gigabytes, "two.toml").expect_err("memory");
        assert_eq!(
            error.to_string(),
            "two.toml: `memory_bytes` of node 0 is 64, less than a page of 4096; it counts bytes, and 0 is a node without memory"
        );
        let idle = format!("{TWO_NODES}[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 0\n");
        let error = Machine::from_toml(&idle, "two.toml").expect_err("bandwidth");
        assert_eq!(
            error.to_string(),
            "two.toml: `link.bandwidth_bytes_per_s` is 0; expected a positive number"
        );
        for (from, to, message) in [
            ("[20, 10]]", "[20, 10]", "two.toml: line 4: "),
            (
                "page_bytes = 4096",
                "pages = 4096",
                "two.toml: line 2: unknown field `pages`",
            ),
            (
                "page_bytes = 4096",
                "page_bytes = 5000",
                "two.toml: `page_bytes` is 5000; expected a power of two",
            ),
            (
                "[20, 10]]",
                "[20, 10], [1, 1]]",
                "two.toml: `distance` has 3 rows; expected 2, one for each node",
            ),
            (
                "[20, 10]",
                "[20]",
                "two.toml: row 1 of `distance` has 1 number; expected 2",
            ),
            (
                "[10, 20]",
                "[10, 9]",
                "two.toml: `distance`[0][1] is 9; the least there is, a node's own, is 10",
            ),
            (
                "[10, 20]",
                "[15, 12]",
                "two.toml: `distance`[0][1] is 12, nearer than the node itself (15)",
            ),
            ("id = 1", "id = 0", "two.toml: node 0 is there twice"),
            (
                "[2, 3]",
                "[1, 3]",
                "two.toml: CPU 1 is on node 0 and on node 1; a CPU is on one node",
            ),
            (
                "\"0-1\"",
                "\"0-\"",
                "expected a list of CPU numbers such as `0,2-3`, found ``",
            ),
            (
                "distance = [[10, 20], [20, 10]]",
                "latency_ns = [[1, 2], [0, 1]]",
                "`latency_ns`[1][0] is 0; expected a positive number",
            ),
            ("[2, 3]", "[99999999]", "CPU 99999999 is beyond 65535"),
            (
                "[20, 10]]",
                "[-20, 10]]",
                "two.toml: line 3: `distance`[1][0] is -20; the least there is, a node's own, is 10",
            ),
            (
                "distance = [[10, 20], [20, 10]]",
                "latency_ns = [[1, -2], [2, 1]]",
                "two.toml: `latency_ns`[0][1] is -2; expected a positive number",
            ),
            (
                "distance = [[10, 20], [20, 10]]",
                "latency_ns = [[nan, nan], [nan, nan]]",
                "two.toml: `latency_ns` has no figure in it; leave it out",
            ),
            (
                "distance = [[10, 20], [20, 10]]",
                "bandwidth.read_bytes_per_s = [[1, 0], [2, 1]]",
                "two.toml: `bandwidth.read_bytes_per_s`[0][1] is 0; expected a positive number",
            ),
            (
                "distance = [[10, 20], [20, 10]]",
                "link = [{ nodes = [0, 1, 0], bandwidth_bytes_per_s = 1 }]",
                "two.toml: line 3: a link has two `nodes`, found 3",
            ),
            (
                "distance = [[10, 20], [20, 10]]",
                "loaded_latency = [{ node = 3, bandwidth_bytes_per_s = 1, latency_ns = 1 }]",
                "two.toml: a loaded latency names node 3, which is not there",
            ),
        ] {
            let found = fault(from, to);
            assert!(found.contains(message), "{to}: {found}");
            assert!(!found.contains('\n'), "one line: {found}");
        }
    }

    #[test]
    fn both_directions_have_their_own_figures() {
        // A link may be slower one way: ACPI stores every distance of the SLIT twice for that.
        for matrix in [
            "distance = [[10, 16], [22, 10]]",
            "latency_ns = [[10, 16], [22, 10]]",
        ] {
            let text = TWO_NODES.replace("distance = [[10, 20], [20, 10]]", matrix);
            let machine = Machine::from_toml(&text, "two.toml").expect(matrix);
            assert_eq!(machine.weights(), [[10.0, 16.0], [22.0, 10.0]]);
        }
    }

    #[test]
    fn hops_of_a_file_are_the_same_both_ways_unless_it_says_otherwise() {
        let folder = tempfile::tempdir().expect("folder");
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            let argument = path.to_str().expect("UTF-8").to_owned();
            Machine::by_name_or_path(&argument, Path::new("/nonexistent"))
                .map_err(|error| error.to_string().replace(&argument, "FILE"))
        };
        let with = |matrix: &str| TWO_NODES.replace("distance = [[10, 20], [20, 10]]", matrix);
        assert_eq!(
            read("a.toml", &with("distance = [[10, 16], [22, 10]]")),
            Err(
                "FILE: `distance` from node 0 to node 1 is 16, and 22 back; hops are the same both \
                 ways: for what differs give `latency_ns`, or call it `directed_distance`"
                    .to_owned()
            )
        );
        for matrix in [
            "distance = [[10, 20], [20, 10]]",
            "latency_ns = [[10, 16], [22, 10]]",
            "directed_distance = [[10, 16], [22, 10]]",
        ] {
            let machine = read("b.toml", &with(matrix)).expect(matrix);
            // What is written of it can be given again.
            assert_eq!(read("c.toml", &machine.to_toml()), Ok(machine));
        }
        let twice = with("distance = [[10, 20], [20, 10]]\ndirected_distance = [[10, 1], [2, 10]]");
        assert!(read("d.toml", &twice).is_err());
    }

    #[test]
    fn presets_survive_writing() {
        for name in PRESET_NAMES {
            let machine = preset(name).expect(name);
            assert_eq!(
                Machine::from_toml(&machine.to_toml(), name).expect(name),
                machine
            );
        }
        assert!(
            preset("opteron-4")
                .expect("preset")
                .to_toml()
                .contains("\n  [102, 138, 172, 140],\n")
        );
    }

    fn machines() -> impl Strategy<Value = Machine> {
        let latency = prop::collection::vec(0.1f64..1e18, 16);
        (1usize..5, 1u32..5, latency, any::<bool>(), ".{0,20}").prop_map(
            |(nodes, cpus, latency, smt, name)| Machine {
                name,
                source: "a \"source\"\\\n".to_owned(),
                page_bytes: 4096,
                huge_page_bytes: smt.then_some(1 << 21),
                transparent_huge_pages: smt.then_some(TransparentHugePages::Madvise),
                latency_ns: Some(
                    (0..nodes)
                        .map(|row| {
                            // The last row is not known, but for one figure.
                            let known = |at: usize| row + 1 < nodes || at == 0;
                            (0..nodes)
                                .map(|at| known(at).then_some(latency[row * 4 + at]))
                                .collect()
                        })
                        .collect(),
                ),
                distance: None,
                bandwidth: Bandwidth {
                    read_bytes_per_s: smt.then(|| vec![vec![Some(latency[7]); nodes]; nodes]),
                    write_bytes_per_s: None,
                    mixed_bytes_per_s: Some(vec![vec![Some(latency[8]); nodes]; nodes]),
                },
                loaded_latencies: vec![LoadedLatency {
                    node: NodeId(0),
                    bandwidth_bytes_per_s: latency[9],
                    latency_ns: latency[10],
                }],
                cores: if smt && cpus > 1 {
                    vec![vec![CpuId(1), CpuId(0)]]
                } else {
                    Vec::new()
                },
                caches: vec![Cache {
                    level: 1,
                    kind: CacheKind::Data,
                    size_bytes: 32768,
                    line_bytes: 64,
                    associativity: u32::from(smt),
                    shared_by_cpus: 1,
                    latency_ns: smt.then_some(1.5),
                }],
                processor: Processor {
                    clock_ghz: smt.then_some(0.3),
                    cycles_per_instruction: (!smt).then_some(latency[0]),
                    outstanding_misses: smt.then_some(10),
                    window_instructions: None,
                },
                tlbs: vec![Tlb {
                    level: 2,
                    kind: CacheKind::Instruction,
                    entries: 64,
                    associativity: u32::from(smt),
                    reserved: 8,
                    miss_cycles: latency[1],
                }],
                memory: Memory {
                    bandwidth_bytes_per_s: smt.then_some(latency[2]),
                    directory_ns: (!smt).then_some(20.0),
                },
                links: (1..nodes as u16)
                    .map(|to| Link {
                        nodes: [NodeId(3 * (to - 1)), NodeId(3 * to)],
                        bandwidth_bytes_per_s: latency[3],
                    })
                    .collect(),
                routes: (1..nodes as u16)
                    .map(|to| Route {
                        nodes: vec![NodeId(3 * to), NodeId(3 * (to - 1))],
                    })
                    .collect(),
                moves: Moves {
                    fixed_ns: smt.then_some(latency[4]),
                    steps: (!smt).then_some(MoveSteps {
                        interrupt_ns: 1.0,
                        decision_ns: 2.5,
                        allocation_ns: latency[5],
                        mapping_replica_ns: 4.0,
                        mapping_migration_ns: 5.0,
                        flush_ns: 6.0,
                        flush_request_ns: 7.0,
                        copy_ns: 8.0,
                        end_replica_ns: 9.0,
                        end_migration_ns: 10.0,
                        fault_ns: 11.0,
                        collapse_ns: (latency[5] > 1.0).then_some(12.0),
                    }),
                },
                energy: smt.then_some(Energy {
                    local_nj: 1.0,
                    remote_nj: latency[6],
                    page_copy_nj: 3.0,
                    static_w: 0.0,
                }),
                nodes: (0..nodes as u32)
                    .map(|id| Node {
                        id: NodeId(id as u16 * 3),
                        cpus: (id * cpus..(id + 1) * cpus).map(CpuId).collect(),
                        memory_bytes: smt.then_some(u64::from(id + 1) << 30),
                    })
                    .collect(),
            },
        )
    }

    proptest! {
        #[test]
        fn any_machine_survives_writing(machine in machines()) {
            let read = Machine::from_toml(&machine.to_toml(), "written");
            prop_assert!(read.is_ok(), "{:?}\n{}", read, machine.to_toml());
            prop_assert_eq!(read.unwrap(), machine);
        }

        #[test]
        fn damage_is_an_error_and_never_a_panic(at in 0usize..200, byte in any::<u8>()) {
            let mut bytes = TWO_NODES.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Machine::from_toml(&String::from_utf8_lossy(&bytes), "damaged");
        }
    }
}
