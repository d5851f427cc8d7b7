//! The machine at hand, from the kernel's `/sys/devices/system/{node,cpu}` and `/sys/kernel/mm`.
//!
//! Whatever is missing narrows the result: no `node` folder (containers, kernels without NUMA) is
//! one node, no `cache` folders no caches. What is there and cannot be read is an error.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{
    Bandwidth, Cache, CacheKind, CpuId, CpuList, Error, List, ListError, Machine, Matrix, Memory,
    Moves, Node, NodeId, NodeList, Number, Processor, TransparentHugePages, figures,
};

/// Where the auxiliary vector's page size is not to be had.
const PAGE_BYTES_USUAL: u64 = 4096;

impl Machine {
    /// Reads the running machine; `sys_root` is `/sys` but in tests.
    ///
    /// # Errors
    /// A file that is there but cannot be read or says something unexpected, or a machine that
    /// cannot be ([`Machine::validate`]).
    pub fn local(sys_root: &Path) -> Result<Self, Error> {
        let system = sys_root.join("devices/system");
        let online = online_cpus(sys_root)?;
        let node_folder = system.join("node");
        let nodes = numa_nodes(&node_folder, &online)?;
        let (nodes, distance, mut source) = match nodes {
            Some((nodes, distance)) => (nodes, distance, node_folder.display().to_string()),
            None => {
                let node = Node {
                    id: NodeId(0),
                    cpus: online.as_slice().to_vec(),
                    memory_bytes: None,
                };
                let source = format!("{}: not there, so taken as one node", node_folder.display());
                (vec![node], None, source)
            }
        };
        let (latency_ns, bandwidth) = rated(&node_folder, &nodes)?;
        if latency_ns.is_some() || bandwidth != Bandwidth::default() {
            source.push_str("; latency and bandwidth as the firmware rates them (ACPI HMAT)");
        }
        let mut caches: Vec<Cache> = Vec::new();
        let mut cores: BTreeMap<CpuId, Vec<CpuId>> = BTreeMap::new();
        for &cpu in online.as_slice() {
            let folder = system.join(format!("cpu/cpu{cpu}"));
            for cache in caches_of(&folder, &online)? {
                if !caches.contains(&cache) {
                    caches.push(cache);
                }
            }
            if let Some(core) = core_of(&folder, &online)?
                && let [first, _, ..] = core.as_slice()
            {
                cores
                    .entry(*first)
                    .or_insert_with(|| core.as_slice().to_vec());
            }
        }
        caches.sort_by_key(|cache| (cache.level, cache.kind as u8));
        let machine = Self {
            name: "local".to_owned(),
            source,
            page_bytes: page_bytes(),
            huge_page_bytes: huge_page_bytes(sys_root)?,
            transparent_huge_pages: transparent_huge_pages(sys_root)?,
            latency_ns,
            distance,
            bandwidth,
            loaded_latencies: Vec::new(),
            cores: cores.into_values().collect(),
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
        machine.validate().map_err(|fault| Error::Invalid {
            origin: system.display().to_string(),
            fault,
        })?;
        Ok(machine)
    }
}

/// A file's text without white space around it; `None` where it is not there.
fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        // An attribute of a CPU that goes off-line meanwhile is no longer there, or no longer a device.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(source) => Err(Error::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn unexpected(path: &Path, expected: &'static str, found: &str) -> Error {
    // One line of it, whatever is in there.
    let found = found.trim().chars().take(80);
    let found = found.map(|letter| if letter.is_control() { ' ' } else { letter });
    let found = found.collect();
    Error::Sysfs {
        path: path.to_owned(),
        expected,
        found,
    }
}

fn read_list<T: Number>(path: &Path) -> Result<Option<List<T>>, Error> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    let list: Result<List<T>, ListError> = text.parse();
    list.map(Some)
        .map_err(|_| unexpected(path, "a list such as `0,2-3`", &text))
}

fn read_number<N: std::str::FromStr>(path: &Path) -> Result<Option<N>, Error> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|_| unexpected(path, "a number", &text))
}

/// Members of a folder that are a word and a number, as `node0`, `cpu3`, `index2`.
fn numbered(folder: &Path, word: &str) -> Result<Vec<(u32, PathBuf)>, Error> {
    let failed = |source: io::Error| Error::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if let Some(number) = name
            .to_str()
            .and_then(|name| name.strip_prefix(word))
            .and_then(|rest| rest.parse().ok())
        {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// CPUs that are online: `devices/system/cpu/online` under `sys_root`; without it every `cpuN` there; without these as many
/// as the process may use.
///
/// # Errors
/// A file that is there but cannot be read, or is no list.
pub fn online_cpus(sys_root: &Path) -> Result<CpuList, Error> {
    let system = sys_root.join("devices/system");
    if let Some(online) = read_list::<CpuId>(&system.join("cpu/online"))?
        && !online.as_slice().is_empty()
    {
        return Ok(online);
    }
    let folders = numbered(&system.join("cpu"), "cpu")?;
    if !folders.is_empty() {
        return Ok(folders
            .into_iter()
            .filter(|(cpu, _)| *cpu <= CpuId::MAX)
            .map(|(cpu, _)| CpuId(cpu))
            .collect());
    }
    let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    Ok((0..count).map(CpuId).collect())
}

/// Linux has no more (`NODES_SHIFT` is 10 at most), and distances take the square of them.
const NODES_MOST: usize = 1024;

type NodesAndDistances = (Vec<Node>, Option<Vec<Vec<u32>>>);

fn numa_nodes(folder: &Path, online: &CpuList) -> Result<Option<NodesAndDistances>, Error> {
    let ids = match read_list::<NodeId>(&folder.join("online"))? {
        Some(online) => online,
        None => numbered(folder, "node")?
            .into_iter()
            .filter(|(node, _)| *node <= NodeId::MAX)
            .map(|(node, _)| NodeId::from_number(node))
            .collect::<NodeList>(),
    };
    if ids.as_slice().is_empty() {
        return Ok(None);
    }
    if ids.as_slice().len() > NODES_MOST {
        let found = format!("{} nodes", ids.as_slice().len());
        return Err(unexpected(
            &folder.join("online"),
            "1024 nodes at most",
            &found,
        ));
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut distance = Vec::new();
    for &id in ids.as_slice() {
        let node = folder.join(format!("node{id}"));
        let cpus = read_list::<CpuId>(&node.join("cpulist"))?.unwrap_or_default();
        let cpus = cpus
            .as_slice()
            .iter()
            .copied()
            .filter(|&cpu| online.contains(cpu))
            // With `numa=fake` (Documentation/arch/x86/x86_64/fake-numa-for-cpusets.rst) all nodes that a real one was cut
            // into list its CPUs: they count to the first.
            .filter(|cpu| nodes.iter().all(|earlier| !earlier.cpus.contains(cpu)))
            .collect();
        nodes.push(Node {
            id,
            cpus,
            memory_bytes: memory_bytes(&node.join("meminfo"))?,
        });
        let path = node.join("distance");
        if let Some(text) = read(&path)? {
            let row: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
            let row = row.map_err(|_| unexpected(&path, "distances such as `10 20`", &text))?;
            if row.len() != ids.as_slice().len() {
                return Err(unexpected(
                    &path,
                    "one distance for each node that is on-line",
                    &text,
                ));
            }
            distance.push(row);
        }
    }
    let distance = (distance.len() == nodes.len()).then_some(distance);
    Ok(Some((nodes, distance)))
}

/// What the firmware says of each memory node as the nearest CPUs see it (ACPI HMAT):
/// `nodeN/accessC/initiators/{read,write}_{latency,bandwidth}`, in nanoseconds and MB/s of 10^6
/// bytes (Documentation/ABI/stable/sysfs-devices-node; numaperf.rst calls them MiB/s, ACPI 6.5
/// table 5.146 MB/s). Class 1 has CPUs only as initiators; class 0, which older kernels have alone,
/// may have devices. Other pairs of nodes are not shown.
fn rated(folder: &Path, nodes: &[Node]) -> Result<(Option<Matrix>, Bandwidth), Error> {
    const MEGABYTE: f64 = 1e6;
    let unknown = vec![vec![None; nodes.len()]; nodes.len()];
    let mut latency_ns = unknown.clone();
    let mut read = unknown.clone();
    let mut write = unknown;
    for (column, node) in nodes.iter().enumerate() {
        let initiators = ["access1", "access0"]
            .map(|class| folder.join(format!("node{}/{class}/initiators", node.id)))
            .into_iter()
            .find(|folder| folder.join("read_latency").exists());
        let Some(initiators) = initiators else {
            continue;
        };
        // The kernel writes 0 for what the firmware left out.
        let figure = |name: &str| {
            let number = read_number::<u32>(&initiators.join(name))?;
            Ok(number.filter(|&number| number > 0).map(f64::from))
        };
        for (row, cpu_node) in nodes.iter().enumerate() {
            if cpu_node.cpus.is_empty() || !initiators.join(format!("node{}", cpu_node.id)).exists()
            {
                continue;
            }
            latency_ns[row][column] = figure("read_latency")?;
            read[row][column] = figure("read_bandwidth")?.map(|rate| rate * MEGABYTE);
            write[row][column] = figure("write_bandwidth")?.map(|rate| rate * MEGABYTE);
        }
    }
    let bandwidth = Bandwidth {
        read_bytes_per_s: figures::if_known(read),
        write_bytes_per_s: figures::if_known(write),
        mixed_bytes_per_s: None,
    };
    Ok((figures::if_known(latency_ns), bandwidth))
}

/// `Node 0 MemTotal:  16313148 kB`.
fn memory_bytes(path: &Path) -> Result<Option<u64>, Error> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    let Some(line) = text.lines().find(|line| line.contains("MemTotal:")) else {
        return Ok(None);
    };
    let mut words = line.split_whitespace().rev();
    let kibibytes = match (words.next(), words.next()) {
        (Some("kB"), Some(number)) => number.parse::<u64>().ok(),
        _ => None,
    };
    let bytes = kibibytes.and_then(|number| number.checked_mul(1024));
    bytes
        .map(Some)
        .ok_or_else(|| unexpected(path, "`Node N MemTotal: M kB`", line))
}

fn core_of(cpu: &Path, online: &CpuList) -> Result<Option<CpuList>, Error> {
    let topology = cpu.join("topology");
    // The second is the name before Linux 5.3.
    let mut list = read_list::<CpuId>(&topology.join("core_cpus_list"))?;
    if list.is_none() {
        list = read_list(&topology.join("thread_siblings_list"))?;
    }
    Ok(list.map(|list| {
        list.as_slice()
            .iter()
            .copied()
            .filter(|&sibling| online.contains(sibling))
            .collect()
    }))
}

fn caches_of(cpu: &Path, online: &CpuList) -> Result<Vec<Cache>, Error> {
    let mut caches = Vec::new();
    for (_, folder) in numbered(&cpu.join("cache"), "index")? {
        // Virtual machines leave out what they do not know.
        let (Some(level), Some(kind), Some(size_bytes), Some(line_bytes)) = (
            read_number(&folder.join("level"))?,
            cache_kind(&folder.join("type"))?,
            cache_size(&folder.join("size"))?,
            read_number(&folder.join("coherency_line_size"))?,
        ) else {
            continue;
        };
        let shared = read_list::<CpuId>(&folder.join("shared_cpu_list"))?.unwrap_or_default();
        let shared = shared
            .as_slice()
            .iter()
            .filter(|&&cpu| online.contains(cpu))
            .count();
        caches.push(Cache {
            level,
            kind,
            size_bytes,
            line_bytes,
            associativity: read_number(&folder.join("ways_of_associativity"))?.unwrap_or(0),
            shared_by_cpus: shared.max(1) as u32,
            latency_ns: None,
        });
    }
    Ok(caches)
}

fn cache_kind(path: &Path) -> Result<Option<CacheKind>, Error> {
    match read(path)?.as_deref() {
        None => Ok(None),
        Some("Data") => Ok(Some(CacheKind::Data)),
        Some("Instruction") => Ok(Some(CacheKind::Instruction)),
        Some("Unified") => Ok(Some(CacheKind::Unified)),
        Some(other) => Err(unexpected(
            path,
            "`Data`, `Instruction` or `Unified`",
            other,
        )),
    }
}

/// `32K`; the kernel writes kibibytes only.
fn cache_size(path: &Path) -> Result<Option<u64>, Error> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    let kibibytes = text
        .strip_suffix('K')
        .and_then(|number| number.parse::<u64>().ok());
    let bytes = kibibytes.and_then(|number| number.checked_mul(1024));
    bytes
        .map(Some)
        .ok_or_else(|| unexpected(path, "a size such as `32K`", &text))
}

/// What transparent huge pages have; without them the smallest of `hugepages/hugepages-2048kB`….
fn huge_page_bytes(sys_root: &Path) -> Result<Option<u64>, Error> {
    let memory = sys_root.join("kernel/mm");
    if let Some(bytes) = read_number(&memory.join("transparent_hugepage/hpage_pmd_size"))? {
        return Ok(Some(bytes));
    }
    let Ok(entries) = fs::read_dir(memory.join("hugepages")) else {
        return Ok(None);
    };
    let size = |name: &str| {
        name.strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    Ok(entries
        .flatten()
        .filter_map(|entry| size(entry.file_name().to_str()?))
        .min())
}

/// `always [madvise] never`.
fn transparent_huge_pages(sys_root: &Path) -> Result<Option<TransparentHugePages>, Error> {
    let path = sys_root.join("kernel/mm/transparent_hugepage/enabled");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    let chosen = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some("always") => Ok(Some(TransparentHugePages::Always)),
        Some("madvise") => Ok(Some(TransparentHugePages::Madvise)),
        Some("never") => Ok(Some(TransparentHugePages::Never)),
        _ => Err(unexpected(
            &path,
            "`always`, `madvise` and `never`, one in brackets",
            &text,
        )),
    }
}

/// The page size of this process, from its auxiliary vector (getauxval(3), AT_PAGESZ).
fn page_bytes() -> u64 {
    const AT_PAGESZ: u64 = 6;
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes) as u64;
    let vector = fs::read("/proc/self/auxv").unwrap_or_default();
    vector
        .chunks_exact(2 * WORD)
        .find(|entry| word(&entry[..WORD]) == AT_PAGESZ)
        .map_or(PAGE_BYTES_USUAL, |entry| word(&entry[WORD..]))
}
