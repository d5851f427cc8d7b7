//! A NUMA machine: memory nodes, their CPUs, caches, and the cost of access from one node to another's memory.
//!
//! A [`Machine`] is read from the running system ([`Machine::local`]), from another machine's `/sys`
//! ([`Machine::from_sysfs`]), from a TOML file ([`Machine::from_toml`]) or hwloc's XML ([`Machine::from_hwloc_xml`]),
//! or taken from the [presets](preset). The crate `measurement` measures latencies and bandwidths.
//!
//! ```
//! use nearpage_machine::{Machine, NodeId, NodeList, ThreadPlacement, preset, thread_cpus};
//!
//! let machine: Machine = preset("opteron-4").unwrap();
//! // A CPU on node 1 waits 172 ns for memory on node 3: two hops.
//! assert_eq!(machine.weight(NodeId(1), NodeId(3)), Some(172.0));
//! // Eight threads on four CPUs; consecutive threads share a CPU.
//! let cpus = thread_cpus(&machine, 8, ThreadPlacement::Compact, None);
//! assert_eq!(machine.node_of(cpus[7]), Some(NodeId(3)));
//! let nodes = NodeList::parse_among("!0", &machine.node_ids()).unwrap();
//! assert_eq!(nodes.to_string(), "1-3");
//! ```

mod assumed;
mod device;
mod error;
mod figures;
mod hwloc;
mod interconnect;
mod list;
mod load;
mod moves;
mod near_memory;
mod placement;
mod presets;
mod sysfs;
mod text;
mod timing;
mod toml_file;
mod tools;
mod tree;
mod validate;

pub use assumed::Assumed;
pub use device::{Device, DeviceKind};
pub use error::{Error, Fault};
pub use figures::{Bandwidth, LoadedLatency, Matrix, if_known};
pub use interconnect::{Coherence, Prefetcher, Request};
pub use list::{CpuList, List, ListError, NodeList, Number};
pub use load::{LoadModel, LoadModelError};
pub use moves::{MoveCost, MoveSteps, Moves};
pub use placement::{ThreadPlacement, thread_cpus};
pub use presets::{PRESET_NAMES, preset};
pub use sysfs::online_cpus;
pub use text::wrap;
pub use timing::{Energy, Link, Memory, Processor, Route, SIMULATED_NODES_MAX, Timing, Tlb};

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A memory node, numbered as the kernel does. A node may have no CPUs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct NodeId(pub u16);

/// A logical CPU, numbered as the kernel does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct CpuId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Number of the node.
    pub id: NodeId,
    /// CPUs of the node, ascending; empty for a memory-only node. In TOML a list, or text such as `"0-5,24-29"`.
    #[serde(default, deserialize_with = "toml_file::cpus")]
    pub cpus: Vec<CpuId>,
    /// Memory installed, in bytes; absent where unknown, 0 for a node that has CPUs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Kind of the memory, where it is not the CPUs' ordinary memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_kind: Option<MemoryKind>,
}

/// Memory that is not the CPUs' ordinary memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// On a GPU.
    Gpu,
    /// On a CXL device.
    Cxl,
    /// High-bandwidth memory.
    Hbm,
    /// Persistent memory.
    Persistent,
}

/// CPUs of one kind, on machines with several kinds (`[[cpu_kind]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuKind {
    /// The kernel's name of the kind (`cpu_core`, `cpu_atom`), or another distinguishing name.
    pub name: String,
    /// The CPUs, ascending.
    #[serde(deserialize_with = "toml_file::cpus")]
    pub cpus: Vec<CpuId>,
}

/// A cache in front of a node's memory (`[[memory_cache]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryCache {
    /// Node whose memory is cached.
    pub node: NodeId,
    /// 1 is nearest to the memory.
    pub level: u8,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Line size in bytes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
}

/// One kind of cache; every CPU, or group of CPUs, of the machine has such a cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// 1 is nearest to the CPU.
    pub level: u8,
    /// Contents of the cache.
    pub kind: CacheKind,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Line size in bytes.
    pub line_bytes: u32,
    /// Ways; 0 where unknown.
    #[serde(default)]
    pub associativity: u32,
    /// Number of CPUs that share a cache.
    pub shared_by_cpus: u32,
    /// Time of a hit in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<f64>,
}

/// Memory for which the kernel uses huge pages by itself (`transparent_hugepage/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransparentHugePages {
    /// All anonymous memory.
    Always,
    /// Memory for which a program asks for huge pages.
    Madvise,
    /// No memory.
    Never,
}

/// Contents of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// A machine. All matrices are indexed by *position* in `nodes`, `[CPU's node][memory's node]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// `local`, a preset's name, or the name in a file.
    pub name: String,
    /// Source of the figures, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Year in which such machines were introduced or described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub year: Option<u16>,
    /// Assumptions about the machine, and data that is missing or left out, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Huge page size in bytes, where the machine has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_page_bytes: Option<u64>,
    /// Memory for which the kernel uses huge pages by itself; absent where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent_huge_pages: Option<TransparentHugePages>,
    /// Unloaded load latency in nanoseconds. The row of a node without CPUs is `nan` in TOML; [`Machine::weight`] fills
    /// in unknown figures. The matrix need not be symmetric (Marathe Table 2 is not).
    #[serde(
        default,
        deserialize_with = "figures::optional_matrix",
        skip_serializing_if = "Option::is_none"
    )]
    pub latency_ns: Option<Matrix>,
    /// The firmware's relative distances (ACPI SLIT): 10 is local.
    #[serde(
        default,
        alias = "directed_distance",
        deserialize_with = "toml_file::distances",
        skip_serializing_if = "Option::is_none"
    )]
    pub distance: Option<Vec<Vec<u32>>>,
    /// Bandwidth between nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bandwidth: Bandwidth,
    /// Latency of memory under load, by node and then ascending in bandwidth.
    #[serde(
        default,
        rename = "loaded_latency",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub loaded_latencies: Vec<LoadedLatency>,
    /// SMT siblings: the CPUs of each core with more than one CPU, in the order in which they should be used.
    #[serde(
        default,
        deserialize_with = "toml_file::cores",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub cores: Vec<Vec<CpuId>>,
    /// Kinds of CPUs, fastest first, where there are several.
    #[serde(default, rename = "cpu_kind", skip_serializing_if = "Vec::is_empty")]
    pub cpu_kinds: Vec<CpuKind>,
    /// Caches, nearest first.
    #[serde(default, rename = "cache")]
    pub caches: Vec<Cache>,
    /// Caches in front of nodes' memory.
    #[serde(
        default,
        rename = "memory_cache",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub memory_caches: Vec<MemoryCache>,
    /// GPUs, network adapters and NVMe controllers, by kind and number.
    #[serde(default, rename = "device", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Memory nodes, ascending by number.
    #[serde(default, rename = "node")]
    pub nodes: Vec<Node>,
    /// Speed of the CPUs. This field and the following ones matter to simulations only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub processor: Processor,
    /// TLBs of a CPU, in the order of look-up.
    #[serde(default, rename = "tlb", skip_serializing_if = "Vec::is_empty")]
    pub tlbs: Vec<Tlb>,
    /// Memory controllers and directories.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Memory,
    /// Links between nodes.
    #[serde(default, rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Routes over the links that are not the shortest.
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Packets of the coherence protocol, besides data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coherence: Option<Coherence>,
    /// Hardware prefetcher of the CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetcher: Option<Prefetcher>,
    /// Cost of moving a page.
    #[serde(default, skip_serializing_if = "is_default")]
    pub moves: Moves,
    /// Energy of accesses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Local distance in ACPI's SLIT.
const DISTANCE_LOCAL: u32 = 10;
/// Linux's distance of two nodes without a firmware table (`REMOTE_DISTANCE` in include/linux/topology.h).
const DISTANCE_REMOTE: u32 = 20;

impl Machine {
    /// A machine with these nodes, pages of 4 KiB and no other data.
    pub fn of_nodes(name: String, nodes: Vec<Node>) -> Self {
        Self {
            name,
            source: String::new(),
            year: None,
            notes: Vec::new(),
            page_bytes: 4096,
            huge_page_bytes: None,
            transparent_huge_pages: None,
            latency_ns: None,
            distance: None,
            bandwidth: Bandwidth::default(),
            loaded_latencies: Vec::new(),
            cores: Vec::new(),
            cpu_kinds: Vec::new(),
            caches: Vec::new(),
            memory_caches: Vec::new(),
            devices: Vec::new(),
            nodes,
            processor: Processor::default(),
            tlbs: Vec::new(),
            memory: Memory::default(),
            links: Vec::new(),
            routes: Vec::new(),
            coherence: None,
            prefetcher: None,
            moves: Moves::default(),
            energy: None,
        }
    }

    /// The machine that `argument` names: `local` (read from `sys_root`, which is `/sys` outside of tests), a preset,
    /// or a path. The path leads to a folder or archive with another machine's `/sys` ([`Machine::from_sysfs`]), to
    /// hwloc's XML if its name ends in `.xml`, or to TOML.
    ///
    /// # Errors
    /// The argument names no machine, or the file is damaged.
    pub fn by_name_or_path(argument: &str, sys_root: &Path) -> Result<Self, Error> {
        if argument == "local" {
            return Self::local(sys_root);
        }
        if let Some(machine) = preset(argument) {
            return Ok(machine);
        }
        let path = Path::new(argument);
        // An argument that looks like a path is read as one, so that the message says why the file cannot be read.
        let looks_like_path = argument.contains('/')
            || path
                .extension()
                .is_some_and(|extension| extension == "toml" || extension == "xml");
        if !looks_like_path && !path.exists() {
            return Err(Error::Unknown {
                argument: argument.to_owned(),
                presets: PRESET_NAMES.map(|name| format!("`{name}`")).join(", "),
            });
        }
        if path.is_dir() || sysfs::is_archive(path) {
            return Self::from_sysfs(path);
        }
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("xml"))
        {
            return Self::from_hwloc_xml(&text, argument);
        }
        let machine = Self::from_toml(&text, argument)?;
        machine
            .validate_hops(&text)
            .map_err(|fault| Error::Invalid {
                origin: argument.to_owned(),
                fault,
            })?;
        Ok(machine)
    }

    /// Position of a node in [`Machine::nodes`] and in the matrices.
    pub fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|candidate| candidate.id == node)
    }

    /// The node that a CPU is on.
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.nodes
            .iter()
            .find(|node| node.cpus.contains(&cpu))
            .map(|node| node.id)
    }

    /// Numbers of all nodes, ascending.
    pub fn node_ids(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// All nodes except those that are known to have no memory.
    pub fn nodes_with_memory(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|node| node.memory_bytes != Some(0))
            .map(|node| node.id)
            .collect()
    }

    /// All CPUs.
    pub fn cpus(&self) -> CpuList {
        self.nodes
            .iter()
            .flat_map(|node| node.cpus.iter().copied())
            .collect()
    }

    /// Number of CPUs of the node with the fewest CPUs, not counting nodes without CPUs.
    pub fn cpus_per_node(&self) -> u32 {
        let counts = self.nodes.iter().map(|node| node.cpus.len() as u32);
        counts.filter(|&cpus| cpus > 0).min().unwrap_or(0)
    }

    /// Cost of an access from a CPU on `cpu_node` to memory on `memory_node`: nanoseconds if the machine has any
    /// latency, otherwise distances, otherwise Linux's 10 and 20. Weights of different machines cannot be compared. An
    /// unknown latency is taken from the opposite direction. If that is unknown, too, it is the distance times the
    /// nanoseconds per unit of distance of the CPU node's own memory, or else their mean over all known latencies.
    /// `None`: no such node.
    pub fn weight(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<f64> {
        let (row, column) = (self.position(cpu_node)?, self.position(memory_node)?);
        let distance = self.relative_distance(row, column);
        let Some(latency_ns) = &self.latency_ns else {
            return Some(distance);
        };
        if let Some(known) = latency_ns[row][column].or(latency_ns[column][row]) {
            return Some(known);
        }
        let own = latency_ns[row][row].map(|ns| ns / self.relative_distance(row, row));
        let ns_per_distance = own.unwrap_or_else(|| {
            let known: Vec<f64> = validate::entries(latency_ns)
                .filter_map(|(row, column, ns)| {
                    ns.map(|ns| ns / self.relative_distance(row, column))
                })
                .collect();
            known.iter().sum::<f64>() / known.len() as f64
        });
        Some(distance * ns_per_distance)
    }

    /// Highest ratio of the costs of the farthest and the nearest memory, over all nodes with CPUs, and at least 1.
    pub fn far_to_near(&self) -> f64 {
        let memory = self.nodes_with_memory();
        let ratio = |node: &Node| {
            let weights = memory
                .iter()
                .filter_map(|&memory| self.weight(node.id, memory));
            let (near, far) = weights.fold((f64::INFINITY, 0.0f64), |(near, far), weight| {
                (near.min(weight), far.max(weight))
            });
            far / near
        };
        let with_cpus = self.nodes.iter().filter(|node| !node.cpus.is_empty());
        with_cpus.map(ratio).fold(1.0, f64::max)
    }

    /// Distance by positions; Linux's default where unknown.
    fn relative_distance(&self, row: usize, column: usize) -> f64 {
        f64::from(match &self.distance {
            Some(distance) => distance[row][column],
            None if row == column => DISTANCE_LOCAL,
            None => DISTANCE_REMOTE,
        })
    }

    /// [`Machine::weight`] of every pair of nodes, by position, `[CPU's node][memory's node]`.
    pub fn weights(&self) -> Vec<Vec<f64>> {
        let ids = self.node_ids();
        ids.iter()
            .map(|&cpu| {
                ids.iter()
                    .map(|&memory| self.weight(cpu, memory).unwrap_or(0.0))
                    .collect()
            })
            .collect()
    }
}
