//! Machines in hwloc's XML (`lstopo --of xml`), versions 1 and 2 of the format, and 3 as far as it is read here.
//!
//! | machine | XML |
//! | --- | --- |
//! | node | `NUMANode`: `os_index`, `local_memory`; the `Machine` itself where there is none |
//! | CPUs | `PU`s in the node's `cpuset` |
//! | cores | `PU`s in a `Core` with several |
//! | caches | `L1Cache`, `L1iCache`, … (version 2), `Cache` (version 1): size, line, ways, kind |
//! | pages | the smallest two sizes of any `page_type` |
//! | distances | the latencies between NUMA nodes: `distances2`, in version 1 `distances` |
//! | devices | `PCIDev` of the classes that matter, next to the CPUs of the object around them |
//! | latency, bandwidth | `memattr` `Latency` in ns, `Bandwidth`, `ReadBandwidth`, `WriteBandwidth` in MiB/s; bandwidths between NUMA nodes in `distances2`, in MB/s |
//!
//! hwloc gives memory without CPUs of its own (HBM, CXL) the `cpuset` of the place that it is attached to. A CPU belongs to
//! the smallest of the sets that contain it, and among equal sets to the node with the lowest number, as firmware numbers
//! nodes. A CPU in no set is left out with a note. `cpuset`s and `nodeset`s lack what a control group hides: CPUs whose
//! memory may not be used are on the node of their `complete_nodeset`, which then has no memory.

mod attributes;
mod devices;
mod matrices;

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::{Document, Node as Element, ParsingOptions};

use crate::sysfs::caches_left_out;
use attributes::{cpuset, number};
use matrices::{distances, memory_attributes};

use crate::{
    Cache, CacheKind, CpuId, CpuList, Error, Machine, MemoryCache, MemoryKind, Node, NodeId, Number,
};

/// Maximum number of XML elements. A machine with thousands of CPUs and all its devices has some 100,000.
const ELEMENTS_MAX: u32 = 4_000_000;
/// Largest size that TOML can represent.
const BYTES_MAX: u64 = i64::MAX as u64;
/// Maximum number of nodes that the kernel can be configured for (`NODES_SHIFT` of 10).
const NODES_MAX: usize = 1024;
impl Machine {
    /// Reads hwloc's XML; `origin` is the text's name in messages and the machine's name if the text has none.
    ///
    /// # Errors
    /// The text is not XML or not hwloc's, a value is invalid, or the machine is ([`Machine::validate`]).
    pub fn from_hwloc_xml(text: &str, origin: &str) -> Result<Self, Error> {
        let options = ParsingOptions {
            allow_dtd: true,
            nodes_limit: ELEMENTS_MAX,
            ..ParsingOptions::default()
        };
        let syntax = |line: u32, message: String| Error::Syntax {
            origin: origin.to_owned(),
            line: line as usize,
            message,
        };
        let document = Document::parse_with_options(text, options).map_err(|error| {
            let position = format!(" at {}", error.pos());
            syntax(error.pos().row, error.to_string().replace(&position, ""))
        })?;
        let machine = read(&document, origin)
            .map_err(|(at, message)| syntax(document.text_pos_at(at).row, message))?;
        machine.validate().map_err(|fault| Error::Invalid {
            origin: origin.to_owned(),
            fault,
        })?;
        Ok(machine)
    }
}

/// Position in the text, and a message.
type Problem = (usize, String);

fn problem<T>(element: Element, message: impl Into<String>) -> Result<T, Problem> {
    Err((element.range().start, message.into()))
}

/// A memory node and its set of CPUs, which may overlap other nodes' sets.
struct Numa<'a, 'input> {
    element: Element<'a, 'input>,
    id: NodeId,
    cpus: CpuList,
    /// Number of elements between the node and the root: the depth in version 1.
    depth: usize,
}

fn read(document: &Document, origin: &str) -> Result<Machine, Problem> {
    let root = document.root_element();
    if root.tag_name().name() != "topology" {
        return problem(
            root,
            "not hwloc's: expected `<topology>`, as `lstopo --of xml` writes",
        );
    }
    let objects: Vec<Element> = root
        .descendants()
        .filter(|element| element.has_tag_name("object"))
        .collect();
    let of_type = |name: &'static str| {
        let matches = move |object: &&Element| object.attribute("type") == Some(name);
        objects.iter().filter(matches)
    };
    let Some(&whole) = of_type("Machine").next() else {
        return problem(root, "no `object` of type `Machine`");
    };

    let mut elements = BTreeMap::new();
    for &object in of_type("PU") {
        elements.insert(CpuId(number(object, "os_index", CpuId::MAX)?), object);
    }
    let cpus: CpuList = elements.keys().copied().collect();
    let numa_nodes: Vec<Element> = of_type("NUMANode").take(NODES_MAX + 1).copied().collect();
    let numa = numa(&numa_nodes, whole, &cpus)?;
    if numa.len() > NODES_MAX {
        return problem(root, format!("more than {NODES_MAX} NUMA nodes"));
    }
    let (nodes, homeless) = nodes(&numa, &elements)?;
    let mut notes = match homeless.as_slice() {
        [] => Vec::new(),
        _ => vec![format!(
            "CPUs {homeless} belong to no node and are left out"
        )],
    };
    let cpus: CpuList = nodes
        .iter()
        .flat_map(|node| node.cpus.iter().copied())
        .collect();
    let positions: BTreeMap<NodeId, usize> = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| (node.id, at))
        .collect();

    let mut cores = Vec::new();
    for core in of_type("Core") {
        let core = cpuset(*core, "cpuset", &cpus)?;
        if core.as_slice().len() > 1 {
            cores.push(core.as_slice().to_vec());
        }
    }
    cores.sort();
    let caches = caches(&objects, &cpus, &mut notes)?;
    let mut page_sizes = page_sizes(root)?.into_iter();

    let mut machine = Machine {
        source: source(root, whole),
        notes,
        page_bytes: page_sizes.next().unwrap_or(4096),
        huge_page_bytes: page_sizes.next(),
        cores,
        caches,
        memory_caches: memory_caches(root, &positions)?,
        devices: devices::of(of_type("PCIDev"), &nodes, &cpus),
        ..Machine::of_nodes(name(whole, origin), nodes)
    };
    distances(&mut machine, root, &numa, &positions)?;
    memory_attributes(&mut machine, root, &numa, &positions, &cpus)?;
    Ok(machine)
}

/// The memory nodes. In version 1, a machine with one memory has no such element, and the machine itself is the node.
fn numa<'a, 'input>(
    elements: &[Element<'a, 'input>],
    whole: Element<'a, 'input>,
    cpus: &CpuList,
) -> Result<Vec<Numa<'a, 'input>>, Problem> {
    let mut numa: Vec<Numa> = Vec::new();
    for &element in elements {
        let id = NodeId(number(element, "os_index", u16::MAX)?);
        if numa.iter().any(|node| node.id == id) {
            return problem(element, format!("NUMANode {id} is there twice"));
        }
        numa.push(Numa {
            element,
            id,
            cpus: cpuset(element, "cpuset", cpus)?,
            depth: element.ancestors().count(),
        });
    }
    if numa.is_empty() {
        numa.push(Numa {
            element: whole,
            id: NodeId(0),
            cpus: cpus.clone(),
            depth: 0,
        });
    }
    Ok(numa)
}

/// The nodes by number with their CPUs, and the CPUs that are on no node.
fn nodes(numa: &[Numa], cpus: &BTreeMap<CpuId, Element>) -> Result<(Vec<Node>, CpuList), Problem> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut homeless = Vec::new();
    for node in numa {
        nodes.push(Node {
            id: node.id,
            cpus: Vec::new(),
            memory_bytes: match node.element.attribute("local_memory") {
                Some(_) => Some(number(node.element, "local_memory", BYTES_MAX)?),
                None => None,
            },
            memory_kind: memory_kind(node.element),
        });
    }
    let all: CpuList = (0..NODES_MAX as u32).map(CpuId).collect();
    for (&cpu, &element) in cpus {
        let home = numa
            .iter()
            .enumerate()
            .filter(|(_, node)| node.cpus.contains(cpu))
            .min_by_key(|(_, node)| (node.cpus.as_slice().len(), node.id));
        let home = match home {
            Some((_, node)) => Some(node.id),
            // A node that is listed has its own CPU set, so the CPU cannot be on it.
            None => hidden_node(element, &all)?.filter(|id| numa.iter().all(|node| node.id != *id)),
        };
        let Some(id) = home else {
            homeless.push(cpu);
            continue;
        };
        match nodes.iter_mut().find(|node| node.id == id) {
            Some(node) => node.cpus.push(cpu),
            None => nodes.push(Node {
                id,
                cpus: vec![cpu],
                memory_bytes: Some(0),
                memory_kind: None,
            }),
        }
    }
    nodes.sort_by_key(|node| node.id);
    Ok((nodes, homeless.into_iter().collect()))
}

/// The kind of a node's memory according to hwloc's subtype.
fn memory_kind(node: Element) -> Option<MemoryKind> {
    let subtype = node.attribute("subtype").or_else(|| info(node, "Type"))?;
    match subtype {
        "GPUMemory" => Some(MemoryKind::Gpu),
        "HBM" | "MCDRAM" => Some(MemoryKind::Hbm),
        "CXL-DRAM" | "CXL" => Some(MemoryKind::Cxl),
        "NVM" | "CXL-NVM" => Some(MemoryKind::Persistent),
        _ => None,
    }
}

/// Caches in front of the memory nodes that they contain: `MemCache`.
fn memory_caches(
    root: Element,
    positions: &BTreeMap<NodeId, usize>,
) -> Result<Vec<MemoryCache>, Problem> {
    let of_type = |element: &Element, kind| element.attribute("type") == Some(kind);
    let mut caches = Vec::new();
    for cache in root
        .descendants()
        .filter(|element| of_type(element, "MemCache"))
    {
        let size_bytes = number(cache, "cache_size", BYTES_MAX)?;
        let line_bytes = match cache.attribute("cache_linesize") {
            Some(_) => Some(number(cache, "cache_linesize", u32::MAX)?),
            None => None,
        };
        for node in cache
            .descendants()
            .filter(|element| of_type(element, "NUMANode"))
        {
            let node = NodeId(number(node, "os_index", u16::MAX)?);
            if size_bytes > 0 && positions.contains_key(&node) {
                caches.push(MemoryCache {
                    node,
                    level: number(cache, "depth", u8::MAX)?.max(1),
                    size_bytes,
                    line_bytes: line_bytes.filter(|&line| line > 0),
                });
            }
        }
    }
    Ok(caches)
}

/// The node of a CPU whose memory is hidden: the first node in the `complete_nodeset` of the CPU or of the closest
/// ancestor that has one. `all`: numbers that nodes can have.
fn hidden_node(cpu: Element, all: &CpuList) -> Result<Option<NodeId>, Problem> {
    for object in cpu
        .ancestors()
        .filter(|object| object.has_attribute("complete_nodeset"))
    {
        if let Some(first) = cpuset(object, "complete_nodeset", all)?.as_slice().first() {
            return Ok(Some(NodeId(first.0 as u16)));
        }
    }
    Ok(None)
}

/// The distinct kinds of caches. hwloc writes 0 for unknown sizes; such caches are left out with a note.
fn caches(
    objects: &[Element],
    cpus: &CpuList,
    notes: &mut Vec<String>,
) -> Result<Vec<Cache>, Problem> {
    let mut caches: Vec<Cache> = Vec::new();
    let mut left_out = BTreeSet::new();
    for &object in objects {
        let Some(cache) = cache(object, cpus)? else {
            continue;
        };
        if cache.size_bytes == 0 || cache.line_bytes == 0 {
            left_out.insert(cache.level);
        } else if !caches.contains(&cache) {
            caches.push(cache);
        }
    }
    notes.extend(caches_left_out(&left_out));
    caches.sort_by_key(|cache| (cache.level, cache.kind as u8));
    Ok(caches)
}

/// Known page sizes, ascending.
fn page_sizes(root: Element) -> Result<BTreeSet<u64>, Problem> {
    let mut page_sizes = BTreeSet::new();
    for page in root
        .descendants()
        .filter(|element| element.has_tag_name("page_type"))
    {
        page_sizes.insert(number(page, "size", BYTES_MAX)?);
    }
    page_sizes.remove(&0);
    Ok(page_sizes)
}

/// The product's name, or the name of the file.
fn name(whole: Element, origin: &str) -> String {
    let product = info(whole, "DMIProductName").map(str::trim);
    let file = || {
        let stem = std::path::Path::new(origin).file_stem()?;
        stem.to_str()
    };
    let name = product.filter(|name| !name.is_empty()).or_else(file);
    name.unwrap_or(origin).to_owned()
}

fn source(root: Element, whole: Element) -> String {
    // In version 3 the root has the attribute.
    let version = info(whole, "hwlocVersion").or_else(|| info(root, "hwlocVersion"));
    format!("hwloc {}", version.unwrap_or("XML"))
}

/// Value of the `<info name= value=>` with this name directly inside the element.
fn info<'a>(element: Element<'a, '_>, name: &str) -> Option<&'a str> {
    element
        .children()
        .find(|child| child.has_tag_name("info") && child.attribute("name") == Some(name))?
        .attribute("value")
}

fn cache(object: Element, cpus: &CpuList) -> Result<Option<Cache>, Problem> {
    let Some(kind) = object.attribute("type") else {
        return Ok(None);
    };
    // `Cache` in version 1; `L3Cache`, `L1iCache` in version 2. `MemCache` is on the memory's side.
    if kind != "Cache" && !(kind.starts_with('L') && kind.ends_with("Cache")) {
        return Ok(None);
    }
    let cache = Cache {
        level: number(object, "depth", u8::MAX)?,
        kind: match number(object, "cache_type", 2u8)? {
            0 => CacheKind::Unified,
            1 => CacheKind::Data,
            _ => CacheKind::Instruction,
        },
        size_bytes: number(object, "cache_size", BYTES_MAX)?,
        line_bytes: number(object, "cache_linesize", u32::MAX)?,
        // -1 means fully associative.
        associativity: match object.attribute("cache_associativity") {
            None | Some("-1") => 0,
            Some(_) => number(object, "cache_associativity", u32::MAX)?,
        },
        shared_by_cpus: cpuset(object, "cpuset", cpus)?.as_slice().len() as u32,
        latency_ns: None,
    };
    Ok((cache.shared_by_cpus > 0).then_some(cache))
}
