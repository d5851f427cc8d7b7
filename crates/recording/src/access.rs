//! One memory access ([`Access`]), and many accesses in columns ([`AccessBatch`]).

use nearpage_machine::{CpuId, NodeId};
use nearpage_perf_abi::data_src;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ColumnSelection, ThreadIndex};

/// What an access does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AccessKind {
    /// Reads.
    Load = 0,
    /// Writes, or reads and writes.
    Store = 1,
    /// An instruction fetch.
    Fetch = 2,
}

impl AccessKind {
    /// Decodes the number that files store.
    pub fn from_number(number: u8) -> Option<Self> {
        use AccessKind::*;
        [Load, Store, Fetch].get(usize::from(number)).copied()
    }
}

impl From<data_src::Operation> for AccessKind {
    fn from(operation: data_src::Operation) -> Self {
        match operation {
            data_src::Operation::Load => Self::Load,
            data_src::Operation::Store => Self::Store,
            data_src::Operation::Fetch => Self::Fetch,
        }
    }
}

/// Cache or memory that served an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Level {
    /// Not measured: the clock source knows neither latency nor level.
    Unknown = 0,
    /// First-level cache.
    L1 = 1,
    /// Second-level cache.
    L2 = 2,
    /// Third-level cache.
    L3 = 3,
    /// Line fill buffer: the cache line was already requested.
    LineFillBuffer = 4,
    /// Memory of the CPU's own node.
    LocalMemory = 5,
    /// Memory of another node.
    RemoteMemory = 6,
    /// Another node's cache.
    RemoteCache = 7,
}

impl Level {
    /// Decodes the number that files store.
    pub fn from_number(number: u8) -> Option<Self> {
        use Level::*;
        [
            Unknown,
            L1,
            L2,
            L3,
            LineFillBuffer,
            LocalMemory,
            RemoteMemory,
            RemoteCache,
        ]
        .get(usize::from(number))
        .copied()
    }
}

impl From<data_src::Level> for Level {
    fn from(level: data_src::Level) -> Self {
        match level {
            data_src::Level::Unknown => Self::Unknown,
            data_src::Level::L1 => Self::L1,
            data_src::Level::L2 => Self::L2,
            data_src::Level::L3 => Self::L3,
            data_src::Level::LineFillBuffer => Self::LineFillBuffer,
            data_src::Level::LocalMemory => Self::LocalMemory,
            data_src::Level::RemoteMemory => Self::RemoteMemory,
            data_src::Level::RemoteCache => Self::RemoteCache,
        }
    }
}

/// Where a recording's accesses come from; decides what `weight` and `cost_ns` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Source {
    /// Clock samples: `cost_ns` is elapsed time lost to the access (the sampling period); `weight`
    /// is 1 per sample, shared among the candidates under [`Resolution::Block`].
    Clock = 0,
    /// Hardware samples: `weight` is the period, `cost_ns` measured latency × weight.
    Pmu = 1,
    /// Misses that the tracer's cache filter let through: `weight` is 1.
    Tracer = 2,
    /// Samples taken by a timer signal inside the program; `weight` and `cost_ns` are as for clock samples.
    Signal = 3,
}

impl Source {
    /// Spelling in metadata and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Pmu => "pmu",
            Self::Tracer => "tracer",
            Self::Signal => "signal",
        }
    }

    /// Whether accesses come with their latency and the cache level that served them. Clock and timer signal measure
    /// neither: their `cost_ns` is the sampling period.
    pub fn measures_latency(self) -> bool {
        match self {
            Self::Pmu | Self::Tracer => true,
            Self::Clock | Self::Signal => false,
        }
    }
}

/// How precisely a sample identifies the accessing instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Resolution {
    /// Exactly one instruction.
    Exact = 0,
    /// One of several memory instructions in a straight-line run, which share the weight (under emulators).
    Block = 1,
}

impl Resolution {
    /// Decodes the number that files store.
    pub fn from_number(number: u8) -> Option<Self> {
        use Resolution::*;
        [Exact, Block].get(usize::from(number)).copied()
    }
}

/// One observed memory access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access {
    /// Time by CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Thread that made the access.
    pub thread: ThreadIndex,
    /// CPU that the thread ran on.
    pub cpu: CpuId,
    /// Virtual address accessed.
    pub address: u64,
    /// Address of the accessing instruction.
    pub instruction: u64,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// Cache or memory that served the access.
    pub level: Level,
    /// How precisely `instruction` is known.
    pub resolution: Resolution,
    /// Bytes from the sampled instruction pointer back to `instruction` (0: the sampled instruction itself).
    pub skid_bytes: i8,
    /// Number of accesses that this sample stands for.
    pub weight: f32,
    /// Time lost to the access, in nanoseconds.
    pub cost_ns: f32,
    /// Node of the page at the time of the sample, if the sampler asked for the node.
    pub page_node: Option<NodeId>,
}

/// Accesses in columns, all of the same length; see [`Access`] for each.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "a column per field of Access")]
pub struct AccessBatch {
    pub time_ns: Vec<u64>,
    pub thread: Vec<ThreadIndex>,
    pub cpu: Vec<CpuId>,
    pub address: Vec<u64>,
    pub instruction: Vec<u64>,
    pub kind: Vec<AccessKind>,
    pub level: Vec<Level>,
    pub resolution: Vec<Resolution>,
    pub skid_bytes: Vec<i8>,
    pub weight: Vec<f32>,
    pub cost_ns: Vec<f32>,
    pub page_node: Vec<Option<NodeId>>,
}

impl AccessBatch {
    /// Number of accesses: the length of the longest column, as columns that were not read stay empty.
    pub fn len(&self) -> usize {
        let wide = [
            self.time_ns.len(),
            self.thread.len(),
            self.cpu.len(),
            self.address.len(),
            self.instruction.len(),
        ];
        let narrow = [
            self.kind.len(),
            self.level.len(),
            self.resolution.len(),
            self.skid_bytes.len(),
        ];
        let figures = [self.weight.len(), self.cost_ns.len(), self.page_node.len()];
        wide.into_iter()
            .chain(narrow)
            .chain(figures)
            .max()
            .unwrap_or_default()
    }

    /// Whether there are no accesses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: &Self) {
        self.time_ns.extend_from_slice(&other.time_ns);
        self.thread.extend_from_slice(&other.thread);
        self.cpu.extend_from_slice(&other.cpu);
        self.address.extend_from_slice(&other.address);
        self.instruction.extend_from_slice(&other.instruction);
        self.kind.extend_from_slice(&other.kind);
        self.level.extend_from_slice(&other.level);
        self.resolution.extend_from_slice(&other.resolution);
        self.skid_bytes.extend_from_slice(&other.skid_bytes);
        self.weight.extend_from_slice(&other.weight);
        self.cost_ns.extend_from_slice(&other.cost_ns);
        self.page_node.extend_from_slice(&other.page_node);
    }

    /// Appends the given rows of the selected columns of `other`.
    pub(crate) fn gather(&mut self, other: &Self, rows: &[u32], columns: ColumnSelection) {
        fn column<T: Copy>(wanted: bool, to: &mut Vec<T>, from: &[T], rows: &[u32]) {
            if wanted {
                to.extend(rows.iter().map(|&row| from[row as usize]));
            }
        }
        macro_rules! gather {
            ($($name:ident),*) => {
                $(column(columns.$name, &mut self.$name, &other.$name, rows);)*
            };
        }
        gather!(time_ns, thread, cpu, address, instruction, kind);
        gather!(level, resolution, skid_bytes, weight, cost_ns, page_node);
    }

    /// Keeps only the chosen rows, in every column that was read.
    pub fn retain(&mut self, is_chosen: impl Fn(&Self, usize) -> bool) {
        fn column<T: Copy>(column: &mut Vec<T>, rows: &[u32]) {
            if !column.is_empty() {
                for (to, &from) in rows.iter().enumerate() {
                    column[to] = column[from as usize];
                }
                column.truncate(rows.len());
            }
        }
        let rows: Vec<u32> = (0..self.len() as u32)
            .filter(|&row| is_chosen(self, row as usize))
            .collect();
        macro_rules! retain {
            ($($name:ident),*) => {
                $(column(&mut self.$name, &rows);)*
            };
        }
        retain!(time_ns, thread, cpu, address, instruction, kind);
        retain!(level, resolution, skid_bytes, weight, cost_ns, page_node);
    }

    /// Appends all rows, a column at a time.
    pub fn extend(&mut self, rows: &[Access]) {
        self.time_ns.extend(rows.iter().map(|row| row.time_ns));
        self.thread.extend(rows.iter().map(|row| row.thread));
        self.cpu.extend(rows.iter().map(|row| row.cpu));
        self.address.extend(rows.iter().map(|row| row.address));
        self.instruction
            .extend(rows.iter().map(|row| row.instruction));
        self.kind.extend(rows.iter().map(|row| row.kind));
        self.level.extend(rows.iter().map(|row| row.level));
        self.resolution
            .extend(rows.iter().map(|row| row.resolution));
        self.skid_bytes
            .extend(rows.iter().map(|row| row.skid_bytes));
        self.weight.extend(rows.iter().map(|row| row.weight));
        self.cost_ns.extend(rows.iter().map(|row| row.cost_ns));
        self.page_node.extend(rows.iter().map(|row| row.page_node));
    }

    /// Appends one access.
    #[inline]
    pub fn push(&mut self, access: Access) {
        self.time_ns.push(access.time_ns);
        self.thread.push(access.thread);
        self.cpu.push(access.cpu);
        self.address.push(access.address);
        self.instruction.push(access.instruction);
        self.kind.push(access.kind);
        self.level.push(access.level);
        self.resolution.push(access.resolution);
        self.skid_bytes.push(access.skid_bytes);
        self.weight.push(access.weight);
        self.cost_ns.push(access.cost_ns);
        self.page_node.push(access.page_node);
    }

    /// The `row`th access. Panics past the end, as slices do.
    pub fn get(&self, row: usize) -> Access {
        Access {
            time_ns: self.time_ns[row],
            thread: self.thread[row],
            cpu: self.cpu[row],
            address: self.address[row],
            instruction: self.instruction[row],
            kind: self.kind[row],
            level: self.level[row],
            resolution: self.resolution[row],
            skid_bytes: self.skid_bytes[row],
            weight: self.weight[row],
            cost_ns: self.cost_ns[row],
            page_node: self.page_node[row],
        }
    }

    /// Removes all accesses, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.time_ns.clear();
        self.thread.clear();
        self.cpu.clear();
        self.address.clear();
        self.instruction.clear();
        self.kind.clear();
        self.level.clear();
        self.resolution.clear();
        self.skid_bytes.clear();
        self.weight.clear();
        self.cost_ns.clear();
        self.page_node.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_measures_no_more_than_the_clock() {
        let sources = [Source::Clock, Source::Signal, Source::Pmu, Source::Tracer];
        let measured = sources.map(Source::measures_latency);
        assert_eq!(measured, [false, false, true, true]);
        for source in sources {
            let written = serde_json::to_string(&source).unwrap();
            assert_eq!(written, format!("\"{}\"", source.as_str()));
            assert_eq!(serde_json::from_str::<Source>(&written).unwrap(), source);
        }
        assert!(serde_json::from_str::<Source>("\"ibs\"").is_err());
    }
}
