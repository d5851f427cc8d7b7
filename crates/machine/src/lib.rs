//! A machine as nearpage sees it: memory nodes, the CPUs on them, caches, and what it costs to
//! reach the memory of one node from the CPUs of another.
//!
//! A [`Machine`] is read from the running system ([`Machine::local`]), from another machine's `/sys`
//! ([`Machine::from_sysfs`]), from a TOML file ([`Machine::from_toml`]) or hwloc's XML
//! ([`Machine::from_hwloc_xml`]), or taken from the [presets](preset); [`Measurement`] fills in what the system does not say about its memory.
//! Nothing here decides anything.
//!
//! ```
//! use nearpage_machine::{Machine, NodeId, NodeList, ThreadPlacement, preset, thread_cpus};
//!
//! let machine: Machine = preset("opteron-4").unwrap();
//! // A CPU on node 1 waits 172 ns for memory on node 3: two hops.
//! assert_eq!(machine.weight(NodeId(1), NodeId(3)), Some(172.0));
//! // Eight threads on four CPUs, neighbours together.
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
mod measure;
mod moves;
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
pub use figures::{Bandwidth, LoadedLatency, Matrix};
pub use interconnect::{Coherence, Prefetcher, Request};
pub use list::{CpuList, List, ListError, NodeList, Number};
pub use load::{LoadModel, LoadModelError};
pub use measure::{
    Effort, MeasureError, Measured, Measurement, PlacingPoint, SLOWDOWN_MIN, available_bytes,
    placing_threshold_per_us,
};
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

/// One memory node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its CPUs, ascending; empty for a memory-only node. In TOML a list of numbers, or a text in
    /// the kernel's format: `"0-5,24-29"`.
    #[serde(default, deserialize_with = "toml_file::cpus")]
    pub cpus: Vec<CpuId>,
    /// Memory installed, in bytes; absent where unknown, 0 for a node that has CPUs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// What its memory is, where it is not the CPUs' ordinary memory.
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

/// CPUs of one kind, where a machine has several (`[[cpu_kind]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuKind {
    /// What the kernel calls them (`cpu_core`, `cpu_atom`), or what tells them apart.
    pub name: String,
    /// The CPUs, ascending.
    #[serde(deserialize_with = "toml_file::cpus")]
    pub cpus: Vec<CpuId>,
}

/// A cache in front of a node's memory (`[[memory_cache]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryCache {
    /// The node.
    pub node: NodeId,
    /// 1 is nearest to the memory.
    pub level: u8,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Line size in bytes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
}

/// One kind of cache, as every CPU (or group of CPUs) of the machine has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// 1 is nearest to the CPU.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Line size in bytes.
    pub line_bytes: u32,
    /// Ways; 0 where unknown.
    #[serde(default)]
    pub associativity: u32,
    /// CPUs that share one of them.
    pub shared_by_cpus: u32,
    /// Time of a hit in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<f64>,
}

/// Where the kernel uses huge pages by itself, as `transparent_hugepage/enabled` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransparentHugePages {
    /// For all anonymous memory.
    Always,
    /// Where a program asks for them.
    Madvise,
    /// Nowhere.
    Never,
}

/// What a cache holds.
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
    /// `local`, a preset's name, or what a file says.
    pub name: String,
    /// Where the figures come from, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The year in which machines of this kind came out, or were described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub year: Option<u16>,
    /// What is assumed of it, missing or left out, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Huge page size in bytes, where the machine has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_page_bytes: Option<u64>,
    /// Where the kernel uses huge pages by itself; absent where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent_huge_pages: Option<TransparentHugePages>,
    /// Unloaded load latency in nanoseconds, as far as it is known: a node without CPUs has a row of
    /// `nan` in TOML. [`Machine::weight`] fills in the others. It need not be symmetric (Marathe
    /// Table 2 is not).
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
    /// Latency of memory that is busy, by node and then ascending in bandwidth.
    #[serde(
        default,
        rename = "loaded_latency",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub loaded_latencies: Vec<LoadedLatency>,
    /// SMT siblings: the CPUs of each core that has more than one, the one to use first first.
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
    /// Speed of its CPUs. This and what follows matters to simulations only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub processor: Processor,
    /// TLBs of a CPU, the one that is looked up first first.
    #[serde(default, rename = "tlb", skip_serializing_if = "Vec::is_empty")]
    pub tlbs: Vec<Tlb>,
    /// Memory controllers and directories.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Memory,
    /// Links between nodes.
    #[serde(default, rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Ways over the links that are not the shortest.
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// What keeping caches coherent sends over links beside data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coherence: Option<Coherence>,
    /// What CPUs fetch ahead of misses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetcher: Option<Prefetcher>,
    /// What it costs to move a page.
    #[serde(default, skip_serializing_if = "is_default")]
    pub moves: Moves,
    /// What accesses cost in energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// ACPI's distance of a node to itself.
const DISTANCE_LOCAL: u32 = 10;
/// What Linux takes for the distance of two nodes where the firmware has no table
/// (`REMOTE_DISTANCE` in include/linux/topology.h).
const DISTANCE_REMOTE: u32 = 20;

impl Machine {
    /// A machine of which nothing but its nodes is known, with pages of 4 KiB.
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

    /// The machine that `argument` names: `local` (read from `sys_root`, `/sys` but in tests), a
    /// preset, or a path: of a folder or an archive with another machine's `/sys`
    /// ([`Machine::from_sysfs`]), of hwloc's XML where its name ends in `.xml`, else of TOML.
    ///
    /// # Errors
    /// A name that is none of these, or a file that is damaged.
    pub fn by_name_or_path(argument: &str, sys_root: &Path) -> Result<Self, Error> {
        if argument == "local" {
            return Self::local(sys_root);
        }
        if let Some(machine) = preset(argument) {
            return Ok(machine);
        }
        let path = Path::new(argument);
        // What looks like a path is meant as one, so that the message says why it cannot be read.
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

    /// All nodes' numbers, ascending.
    pub fn node_ids(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// Nodes that pages can be put on: all but those that are known to have no memory.
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

    /// CPUs of a node, of the one with the fewest of those that have any.
    pub fn cpus_per_node(&self) -> u32 {
        let counts = self.nodes.iter().map(|node| node.cpus.len() as u32);
        counts.filter(|&cpus| cpus > 0).min().unwrap_or(0)
    }

    /// What an access from a CPU on `cpu_node` to memory on `memory_node` costs: nanoseconds where
    /// any latency is known, otherwise distances, otherwise Linux's 10 and 20. Figures of one machine
    /// compare with each other only. A latency that is not known is taken to be that of the opposite
    /// direction, else the distance times the nanoseconds that a unit of distance stands for: in the
    /// CPU node's access to itself, else on average over what is known. `None`: no such node.
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

    /// How much more an access to the farthest memory costs than to the nearest, for the CPUs of the
    /// node for which that is most; 1 where all memory is as near.
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

    /// By position.
    fn relative_distance(&self, row: usize, column: usize) -> f64 {
        f64::from(match &self.distance {
            Some(distance) => distance[row][column],
            None if row == column => DISTANCE_LOCAL,
            None => DISTANCE_REMOTE,
        })
    }

    /// [`Machine::weight`] of every pair, by position, `[CPU's node][memory's node]`.
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
