//! Machines that hwloc wrote as XML (`lstopo --of xml`), versions 1 and 2 of its format (and 3,
//! which differs in nothing that is read here).
//!
//! | here | there |
//! | --- | --- |
//! | node | `NUMANode`: `os_index`, `local_memory`; the `Machine` itself where there is none |
//! | CPUs | `PU`s in the node's `cpuset` |
//! | cores | `PU`s in a `Core` with several |
//! | caches | `L1Cache`, `L1iCache`, … (version 2), `Cache` (version 1): size, line, ways, kind |
//! | pages | the smallest two sizes of any `page_type` |
//! | distances | the latencies between NUMA nodes: `distances2`, in version 1 `distances` |
//! | latency, bandwidth | `memattr` `Latency` in ns, `Bandwidth`, `ReadBandwidth`, `WriteBandwidth` in MiB/s; bandwidths between NUMA nodes in `distances2`, in MB/s |
//!
//! hwloc gives memory that has no CPUs of its own (HBM, CXL) the `cpuset` of the place it is attached
//! to. A CPU belongs to the smallest of the sets it is in, and among equal ones to the node with the
//! lowest number, as firmware numbers nodes.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::{Document, Node as Element, ParsingOptions};

use crate::{
    Bandwidth, Cache, CacheKind, CpuId, CpuList, DISTANCE_LOCAL, Error, Machine, Matrix, Memory,
    Moves, Node, NodeId, Number, Processor, figures,
};

/// Elements of a document at most: a machine of thousands of CPUs, with all its devices, has some
/// 100,000.
const ELEMENTS_MAX: u32 = 4_000_000;
/// The most that TOML can hold.
const BYTES_MAX: u64 = i64::MAX as u64;
/// Nodes at most: what the kernel can be configured for (`NODES_SHIFT` of 10).
const NODES_MAX: usize = 1024;
/// Of `kind` in `distances2`: the values are what the operating system said; latencies; bandwidths
/// (hwloc/distances.h).
const KIND_FROM_OS: u32 = 1;
const KIND_LATENCY: u32 = 4;
const KIND_BANDWIDTH: u32 = 8;

impl Machine {
    /// Reads hwloc's XML; `origin` names it in messages, and the machine.
    ///
    /// # Errors
    /// Text that is not XML or not hwloc's, values that make no sense, and machines that cannot be
    /// ([`Machine::validate`]).
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

/// Where in the text, and what is wrong there.
type Problem = (usize, String);

fn problem<T>(element: Element, message: impl Into<String>) -> Result<T, Problem> {
    Err((element.range().start, message.into()))
}

/// A memory node, still with its set of CPUs.
struct Numa<'a, 'input> {
    element: Element<'a, 'input>,
    id: NodeId,
    cpus: CpuList,
    /// Elements between it and the root: what version 1 calls depth.
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

    let mut cpus = BTreeSet::new();
    for &object in of_type("PU") {
        cpus.insert(CpuId(number(object, "os_index", CpuId::MAX)?));
    }
    let cpus: CpuList = cpus.into_iter().collect();
    let mut numa = Vec::new();
    for &element in of_type("NUMANode").take(NODES_MAX + 1) {
        numa.push(Numa {
            element,
            id: NodeId(number(element, "os_index", u16::MAX)?),
            cpus: cpuset(element, "cpuset", &cpus)?,
            depth: element.ancestors().count(),
        });
    }
    if numa.is_empty() {
        // Version 1 of a machine with one memory.
        numa.push(Numa {
            element: whole,
            id: NodeId(0),
            cpus: cpus.clone(),
            depth: 0,
        });
    }
    if numa.len() > NODES_MAX {
        return problem(root, format!("more than {NODES_MAX} NUMA nodes"));
    }
    let mut nodes: Vec<Node> = Vec::new();
    for node in &numa {
        nodes.push(Node {
            id: node.id,
            cpus: Vec::new(),
            memory_bytes: match node.element.attribute("local_memory") {
                Some(_) => Some(number(node.element, "local_memory", BYTES_MAX)?),
                None => None,
            },
        });
    }
    for &cpu in cpus.as_slice() {
        let home = numa
            .iter()
            .enumerate()
            .filter(|(_, node)| node.cpus.contains(cpu))
            .min_by_key(|(_, node)| (node.cpus.as_slice().len(), node.id));
        match home {
            Some((at, _)) => nodes[at].cpus.push(cpu),
            None => return problem(whole, format!("CPU {cpu} is in no NUMA node's cpuset")),
        }
    }
    nodes.sort_by_key(|node| node.id);
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

    let mut caches: Vec<Cache> = Vec::new();
    for &object in &objects {
        if let Some(cache) = cache(object, &cpus)?
            && !caches.contains(&cache)
        {
            caches.push(cache);
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.kind as u8));

    let mut page_sizes = BTreeSet::new();
    for page in root
        .descendants()
        .filter(|element| element.has_tag_name("page_type"))
    {
        page_sizes.insert(number(page, "size", BYTES_MAX)?);
    }
    let mut page_sizes = page_sizes.into_iter().filter(|&size| size > 0);

    let mut machine = Machine {
        name: name(whole, origin),
        source: source(root, whole),
        page_bytes: page_sizes.next().unwrap_or(4096),
        huge_page_bytes: page_sizes.next(),
        transparent_huge_pages: None,
        latency_ns: None,
        distance: None,
        bandwidth: Bandwidth::default(),
        loaded_latencies: Vec::new(),
        cores,
        caches,
        nodes,
        processor: Processor::default(),
        tlbs: Vec::new(),
        memory: Memory::default(),
        links: Vec::new(),
        routes: Vec::new(),
        moves: Moves::default(),
        energy: None,
    };
    distances(&mut machine, root, &numa, &positions)?;
    memory_attributes(&mut machine, root, &numa, &positions, &cpus)?;
    Ok(machine)
}

/// The product's name, or the file's.
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
    // Version 3 has it at the root.
    let version = info(whole, "hwlocVersion").or_else(|| info(root, "hwlocVersion"));
    format!("hwloc {}", version.unwrap_or("XML"))
}

/// `<info name= value=>` directly inside.
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
        // -1: fully associative.
        associativity: match object.attribute("cache_associativity") {
            None | Some("-1") => 0,
            Some(_) => number(object, "cache_associativity", u32::MAX)?,
        },
        shared_by_cpus: cpuset(object, "cpuset", cpus)?.as_slice().len() as u32,
        latency_ns: None,
    };
    // hwloc writes 0 for what it does not know.
    let known = cache.size_bytes > 0 && cache.line_bytes > 0 && cache.shared_by_cpus > 0;
    Ok(known.then_some(cache))
}

fn distances(
    machine: &mut Machine,
    root: Element,
    numa: &[Numa],
    positions: &BTreeMap<NodeId, usize>,
) -> Result<(), Problem> {
    let of_version_1 = distances_v1(root, numa);
    for element in root.descendants() {
        let (rows, values, kind) = match element.tag_name().name() {
            "distances2" if element.attribute("type") == Some("NUMANode") => {
                let kind = number(element, "kind", u32::MAX)?;
                let rows = indexes(element, numa)?;
                (rows, numbers(element, "u64values")?, kind)
            }
            "distances" if Some(element) == of_version_1 => {
                let rows = numa.iter().map(|node| node.id).collect();
                (rows, values_v1(element)?, KIND_FROM_OS | KIND_LATENCY)
            }
            _ => continue,
        };
        if rows.len() != numa.len() || values.len() != rows.len() * rows.len() {
            // Of some nodes only: nothing that a machine has a place for.
            continue;
        }
        let at: Vec<usize> = rows.iter().map(|id| positions[id]).collect();
        let mut matrix = vec![vec![0.0; rows.len()]; rows.len()];
        for (from, chunk) in at.iter().zip(values.chunks(rows.len())) {
            for (to, &value) in at.iter().zip(chunk) {
                matrix[*from][*to] = value;
            }
        }
        if kind & KIND_LATENCY != 0 && machine.distance.is_none() {
            machine.distance = Some(relative(matrix, kind & KIND_FROM_OS != 0, element)?);
        } else if kind & KIND_BANDWIDTH != 0 && machine.bandwidth.read_bytes_per_s.is_none() {
            let rate = |value: f64| (value > 0.0).then_some(value * 1e6);
            let matrix = matrix
                .into_iter()
                .map(|row| row.into_iter().map(rate).collect());
            machine.bandwidth.read_bytes_per_s = figures::if_known(matrix.collect());
        }
    }
    Ok(())
}

/// Distances as ACPI has them. Those that people gave (`hwloc-annotate`) are in units of their own: the
/// least becomes 10.
fn relative(matrix: Vec<Vec<f64>>, from_os: bool, at: Element) -> Result<Vec<Vec<u32>>, Problem> {
    let least = matrix
        .iter()
        .flatten()
        .copied()
        .fold(f64::INFINITY, f64::min);
    if least <= 0.0 {
        return problem(at, "distances between NUMA nodes must be positive");
    }
    let local = f64::from(DISTANCE_LOCAL);
    let scale = if from_os && least >= local {
        1.0
    } else {
        local / least
    };
    let scaled = |value: f64| (value * scale).round().min(f64::from(u32::MAX)) as u32;
    Ok(matrix
        .into_iter()
        .map(|row| row.into_iter().map(scaled).collect())
        .collect())
}

/// The `NUMANode`s that the rows of `distances2` are of.
fn indexes(element: Element, numa: &[Numa]) -> Result<Vec<NodeId>, Problem> {
    let global = match element.attribute("indexing") {
        Some("gp") => true,
        Some("os") | None => false,
        Some(_) => return problem(element, "`indexing` is `os` or `gp`"),
    };
    let mut rows = Vec::new();
    for index in numbers(element, "indexes")? {
        let node = numa.iter().find(|node| {
            let own = if global {
                node.element
                    .attribute("gp_index")
                    .and_then(|text| text.parse().ok())
            } else {
                Some(f64::from(node.id.0))
            };
            own == Some(index)
        });
        match node {
            Some(node) if !rows.contains(&node.id) => rows.push(node.id),
            _ => {
                return problem(
                    element,
                    format!("index {index} is no NUMA node, or there twice"),
                );
            }
        }
    }
    Ok(rows)
}

/// The matrix of version 1 that is between all NUMA nodes: of those that have as many rows, the one
/// whose `relative_depth` leads to them, else the first (hwloc 2 writes another depth there).
fn distances_v1<'a, 'input>(
    root: Element<'a, 'input>,
    numa: &[Numa],
) -> Option<Element<'a, 'input>> {
    let count = numa.len().to_string();
    let candidates = || {
        root.descendants().filter(|element| {
            element.has_tag_name("distances") && element.attribute("nbobjs") == Some(&count)
        })
    };
    let leads_there = |element: &Element| {
        let depth = element.attribute("relative_depth");
        let depth = depth
            .and_then(|depth| depth.parse::<usize>().ok())
            .unwrap_or(0);
        // The element itself is one level below its parent, as level 1 is.
        let depth = element.ancestors().count() - 1 + depth;
        numa.iter().all(|node| node.depth == depth)
    };
    candidates()
        .find(leads_there)
        .or_else(|| candidates().next())
}

/// In multiples of a base, in the order of the document.
fn values_v1(element: Element) -> Result<Vec<f64>, Problem> {
    let base = decimal(element, element.attribute("latency_base").unwrap_or("1"))?;
    element
        .children()
        .filter(|child| child.has_tag_name("latency"))
        .map(|latency| Ok(base * decimal(latency, latency.attribute("value").unwrap_or(""))?))
        .collect()
}

/// What the firmware (HMAT) or people say of each node's memory as the CPUs of others see it.
fn memory_attributes(
    machine: &mut Machine,
    root: Element,
    numa: &[Numa],
    positions: &BTreeMap<NodeId, usize>,
    cpus: &CpuList,
) -> Result<(), Problem> {
    const MEBIBYTE: f64 = (1u64 << 20) as f64;
    let count = machine.nodes.len();
    let by_index: BTreeMap<&str, Element> = root
        .descendants()
        .filter(|element| element.has_tag_name("object"))
        .filter_map(|object| Some((object.attribute("gp_index")?, object)))
        .collect();
    // By name: a matrix, and what its unit is here. `Bandwidth` is that of reads where hwloc has both
    // (it is their mean), so it comes first and is overwritten.
    let names = [
        "Latency",
        "ReadLatency",
        "Bandwidth",
        "ReadBandwidth",
        "WriteBandwidth",
    ];
    let attributes = names.iter().flat_map(|&name| {
        root.descendants().filter(move |element| {
            element.has_tag_name("memattr") && element.attribute("name") == Some(name)
        })
    });
    for attribute in attributes {
        let mut matrix: Matrix = vec![vec![None; count]; count];
        for value in attribute
            .children()
            .filter(|child| child.has_tag_name("memattr_value"))
        {
            if value.attribute("target_obj_type") != Some("NUMANode") {
                continue;
            }
            // A set, or an object that has one.
            let initiators = match value.attribute("initiator_obj_gp_index") {
                None if value.attribute("initiator_cpuset").is_none() => continue,
                None => cpuset(value, "initiator_cpuset", cpus)?,
                Some(index) => match by_index.get(index) {
                    Some(&object) => cpuset(object, "cpuset", cpus)?,
                    None => return problem(value, "the initiator is no object"),
                },
            };
            let target = numa.iter().find(|node| {
                let own = node.element.attribute("gp_index");
                own.is_some() && own == value.attribute("target_obj_gp_index")
            });
            let Some(target) = target else {
                return problem(value, "the target is no NUMA node");
            };
            let figure = number::<u64>(value, "value", u64::MAX)? as f64;
            for (row, node) in machine.nodes.iter().enumerate() {
                if figure > 0.0 && node.cpus.iter().any(|&cpu| initiators.contains(cpu)) {
                    matrix[row][positions[&target.id]] = Some(figure);
                }
            }
        }
        let Some(mut matrix) = figures::if_known(matrix) else {
            continue;
        };
        let name = attribute.attribute("name").unwrap_or("");
        if name.ends_with("Bandwidth") {
            for figure in matrix.iter_mut().flatten().flatten() {
                *figure *= MEBIBYTE;
            }
        }
        match name {
            "Latency" | "ReadLatency" => machine.latency_ns = Some(matrix),
            "Bandwidth" | "ReadBandwidth" => machine.bandwidth.read_bytes_per_s = Some(matrix),
            _ => machine.bandwidth.write_bytes_per_s = Some(matrix),
        }
    }
    Ok(())
}

/// A whole number of an attribute, at most `max`.
fn number<N>(element: Element, name: &str, max: N) -> Result<N, Problem>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = element.attribute(name) else {
        return problem(element, format!("`{name}` is missing"));
    };
    match text.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => {
            let text: String = text.chars().take(40).collect();
            problem(
                element,
                format!("`{name}` is {text:?}; expected a whole number of at most {max}"),
            )
        }
    }
}

fn decimal(element: Element, text: &str) -> Result<f64, Problem> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => {
            let text: String = text.chars().take(40).collect();
            problem(
                element,
                format!("expected a number of at least 0, found {text:?}"),
            )
        }
    }
}

/// Numbers between white space in all child elements of this name.
fn numbers(element: Element, name: &str) -> Result<Vec<f64>, Problem> {
    let mut all = Vec::new();
    for child in element.children().filter(|child| child.has_tag_name(name)) {
        for word in child.text().unwrap_or("").split_whitespace() {
            all.push(decimal(child, word)?);
        }
    }
    Ok(all)
}

/// Those of `known` that are in one of hwloc's sets: 32-bit words in hexadecimal, the most significant
/// first, `0xf...f` in front where all further bits are set.
fn cpuset(element: Element, name: &str, known: &CpuList) -> Result<CpuList, Problem> {
    let Some(text) = element.attribute(name) else {
        return problem(element, format!("`{name}` is missing"));
    };
    let (words, infinite) = match text.strip_prefix("0xf...f") {
        Some(rest) => (rest.strip_prefix(',').unwrap_or(rest), true),
        None => (text, false),
    };
    let mut bits: Vec<u32> = Vec::new();
    for word in words.rsplit(',') {
        // An empty word between commas is 0.
        let bits_of = match word.strip_prefix("0x").unwrap_or(word) {
            "" => Ok(0),
            digits => u32::from_str_radix(digits, 16),
        };
        let Ok(word) = bits_of else {
            let text: String = text.chars().take(40).collect();
            let message = format!("`{name}` is {text:?}; expected a set such as 0x000000ff");
            return problem(element, message);
        };
        bits.push(word);
    }
    if infinite && words.is_empty() {
        bits.clear();
    }
    let member = |cpu: &CpuId| match bits.get(cpu.0 as usize / 32) {
        Some(word) => word >> (cpu.0 % 32) & 1 == 1,
        None => infinite,
    };
    Ok(known.as_slice().iter().copied().filter(member).collect())
}
