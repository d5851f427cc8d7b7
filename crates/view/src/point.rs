//! An access as pictures need it, in 21 bytes, and its colours.

use std::collections::BTreeMap;
use std::ops::Range;

use nearpage_attribution::counted_as;
use nearpage_machine::{Machine, NodeId};
use nearpage_recording::{AccessBatch, AccessKind, Level, Tables, ThreadIndex};

use crate::functions::{Functions, Lookup};
use crate::space::{Extent, Space, place};

/// Maximum number of threads with a colour of their own; the other threads, with the fewest accesses, share one colour.
pub const THREADS_MAX: usize = 64;
/// Number of colours for latency: none, then powers of two in nanoseconds.
const LATENCIES: usize = 24;
/// Maximum number of nodes that a point can encode.
const NODES_MAX: usize = 30;

/// An access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Place of the access, in units of [`Scale::line_bytes`].
    pub line: u32,
    /// Time since the recording began, in units of [`Scale::tick_ns`].
    pub tick: u32,
    /// Colour of the function that made the access.
    pub function: u8,
    /// Number of the thread.
    pub thread: u16,
    /// Kind (2 bits), level (3), node of the page + 1 (5), node of the CPU + 1 (5); 0 is unknown.
    tags: u16,
    /// Number of accesses that the point stands for.
    pub weight: f32,
    /// Time lost to these accesses, in nanoseconds.
    pub cost_ns: f32,
}

impl Point {
    /// Bytes of a point in memory and on disk.
    pub const BYTES: usize = 21;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.line.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tick.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.thread.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.tags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.weight.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.cost_ns.to_le_bytes());
        bytes[20] = self.function;
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        Self {
            line: u32::from_le_bytes(four(0)),
            tick: u32::from_le_bytes(four(4)),
            thread: u16::from_le_bytes([bytes[8], bytes[9]]),
            tags: u16::from_le_bytes([bytes[10], bytes[11]]),
            weight: f32::from_le_bytes(four(12)),
            cost_ns: f32::from_le_bytes(four(16)),
            function: bytes[20],
        }
    }

    fn kind(self) -> usize {
        usize::from(self.tags & 3)
    }

    pub(crate) fn level(self) -> usize {
        usize::from(self.tags >> 2 & 7)
    }

    /// Position of the page's node in the machine's nodes, from 1; 0 if unknown.
    pub fn page_node(self) -> usize {
        usize::from(self.tags >> 5 & 31)
    }

    /// Position of the CPU's node in the machine's nodes, from 1; 0 if unknown.
    pub fn cpu_node(self) -> usize {
        usize::from(self.tags >> 10 & 31)
    }
}

/// Property that determines a point's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColourBy {
    /// The thread that made the access.
    Thread,
    /// The node of the page.
    PageNode,
    /// The node of the CPU.
    CpuNode,
    /// Load, store or fetch.
    Kind,
    /// The cache level or memory that served the access.
    Level,
    /// Time lost to the access, by powers of two.
    Latency,
    /// Local or remote.
    Locality,
    /// The function that made the access.
    Function,
}

impl ColourBy {
    /// All properties, in the order of the pyramid's planes.
    pub const ALL: [Self; 8] = [
        Self::Thread,
        Self::PageNode,
        Self::CpuNode,
        Self::Kind,
        Self::Level,
        Self::Latency,
        Self::Locality,
        Self::Function,
    ];

    /// Name in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::PageNode => "node",
            Self::CpuNode => "cpu-node",
            Self::Kind => "kind",
            Self::Level => "level",
            Self::Latency => "latency",
            Self::Locality => "locality",
            Self::Function => "function",
        }
    }

    /// The property of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.as_str() == name)
    }
}

/// Units of points and colours of threads, common to all points of a recording.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Bytes of a line: 64, or more if places would not fit into 32 bits.
    pub line_bytes: u64,
    /// Nanoseconds of a tick: the fewest with which the recording fits into 32 bits.
    pub tick_ns: u64,
    /// CLOCK_MONOTONIC at tick 0.
    pub begin_ns: u64,
    /// Number of ticks, at least 1.
    pub ticks: u32,
    /// Number of lines of the address space, at least 1.
    pub lines: u32,
    /// Number of nodes of the machine.
    pub nodes: usize,
    /// The thread that each thread counts as ([`counted_as`]).
    pub counted_as: Vec<ThreadIndex>,
    /// Colour of each thread.
    pub thread_slots: Vec<u8>,
    /// Number of colours of threads.
    pub threads: usize,
    /// Number of colours of functions.
    pub functions: usize,
}

/// Limit of the duration, over a century. A recording can claim any times, and rounded-up ticks are multiplied by their
/// length again.
const DURATION_MAX_NS: u64 = 1 << 62;

impl Scale {
    /// Scale of a recording from `begin_ns` to `end_ns`, with `functions` colours of functions.
    pub fn new(
        space: &Space,
        tables: &Tables,
        machine: &Machine,
        functions: usize,
        (begin_ns, end_ns): (u64, u64),
    ) -> Self {
        let mut line_bytes = 64;
        while space.bytes().div_ceil(line_bytes) >= u64::from(u32::MAX) {
            line_bytes *= 2;
        }
        let duration_ns = end_ns.saturating_sub(begin_ns).min(DURATION_MAX_NS) + 1;
        let tick_ns = duration_ns.div_ceil(u64::from(u32::MAX)).max(1);
        // Threads that a program creates anew for every step count as one thread, as in reports.
        let counted_as = counted_as(&tables.threads);
        let mut accesses: BTreeMap<ThreadIndex, u64> = BTreeMap::new();
        for (thread, &member) in tables.threads.iter().zip(&counted_as) {
            let sum = accesses.entry(member).or_default();
            *sum = sum.saturating_add(thread.counts.accesses);
        }
        let members = accesses.len();
        let mut own: Vec<(ThreadIndex, u64)> = accesses.into_iter().collect();
        own.sort_by_key(|&(_, accesses)| std::cmp::Reverse(accesses));
        if own.len() > THREADS_MAX {
            own.truncate(THREADS_MAX - 1);
        }
        own.sort_unstable();
        let slot = |member: &ThreadIndex| {
            let found = own.binary_search_by_key(member, |one| one.0);
            found.unwrap_or(THREADS_MAX - 1) as u8
        };
        let thread_slots = counted_as.iter().map(slot).collect();
        Self {
            line_bytes,
            tick_ns,
            begin_ns,
            ticks: duration_ns.div_ceil(tick_ns).clamp(1, u64::from(u32::MAX)) as u32,
            lines: space.bytes().div_ceil(line_bytes).max(1) as u32,
            nodes: machine.nodes.len().min(NODES_MAX),
            threads: members.clamp(1, THREADS_MAX),
            functions,
            thread_slots,
            counted_as,
        }
    }

    /// Duration of the recording, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        u64::from(self.ticks) * self.tick_ns
    }

    /// Tick of a time by CLOCK_MONOTONIC.
    #[inline]
    pub fn tick(&self, time_ns: u64) -> u32 {
        let since_ns = time_ns.saturating_sub(self.begin_ns);
        (since_ns / self.tick_ns).min(u64::from(self.ticks - 1)) as u32
    }

    /// Ticks that overlap a range of nanoseconds since the recording began: at least one.
    pub fn ticks_of(&self, from_ns: u64, to_ns: u64) -> Range<u32> {
        bounded(from_ns, to_ns, self.tick_ns, self.ticks)
    }

    /// Lines that overlap a range of places: at least one.
    pub fn lines_of(&self, place_from: u64, place_to: u64) -> Range<u32> {
        bounded(place_from, place_to, self.line_bytes, self.lines)
    }

    /// Number of colours of a picture.
    pub fn slots(&self, by: ColourBy) -> usize {
        match by {
            ColourBy::Thread => self.threads,
            ColourBy::PageNode | ColourBy::CpuNode => self.nodes + 1,
            ColourBy::Kind => 3,
            ColourBy::Level => 8,
            ColourBy::Latency => LATENCIES,
            ColourBy::Locality => 3,
            ColourBy::Function => self.functions,
        }
    }

    /// Colours of an access, in the order of [`ColourBy::ALL`].
    #[inline]
    pub fn every_slot(&self, point: &Point) -> [usize; ColourBy::ALL.len()] {
        [
            self.slot(ColourBy::Thread, point),
            self.slot(ColourBy::PageNode, point),
            self.slot(ColourBy::CpuNode, point),
            self.slot(ColourBy::Kind, point),
            self.slot(ColourBy::Level, point),
            self.slot(ColourBy::Latency, point),
            self.slot(ColourBy::Locality, point),
            self.slot(ColourBy::Function, point),
        ]
    }

    /// Colour of an access.
    #[inline(always)]
    pub fn slot(&self, by: ColourBy, point: &Point) -> usize {
        match by {
            ColourBy::Thread => usize::from(
                self.thread_slots
                    .get(usize::from(point.thread))
                    .copied()
                    .unwrap_or(0),
            ),
            ColourBy::PageNode => point.page_node().min(self.nodes),
            ColourBy::CpuNode => point.cpu_node().min(self.nodes),
            ColourBy::Kind => point.kind().min(2),
            ColourBy::Level => point.level(),
            ColourBy::Latency => {
                let ns = point.cost_ns / point.weight;
                // Division by a weight of 0 gives NaN, which compares false, so such an access has no latency.
                if ns >= 1.0 {
                    ((ns as u64).ilog2() as usize + 1).min(LATENCIES - 1)
                } else {
                    0
                }
            }
            ColourBy::Locality => match (point.cpu_node(), point.page_node()) {
                (0, _) | (_, 0) => 0,
                (cpu, page) if cpu == page => 1,
                _ => 2,
            },
            ColourBy::Function => usize::from(point.function).min(self.functions - 1),
        }
    }
}

/// Units that overlap a range of bytes or nanoseconds: at least one.
fn bounded(from: u64, to: u64, unit: u64, end: u32) -> Range<u32> {
    let end = u64::from(end.max(1));
    let first = (from / unit).min(end - 1);
    let last = to.div_ceil(unit).clamp(first + 1, end);
    first as u32..last as u32
}

/// Turns accesses into points.
pub(crate) struct Points<'a> {
    scale: &'a Scale,
    functions: &'a Functions,
    /// Process of each thread, and the process's extents.
    extents: Vec<(u32, &'a [Extent])>,
    /// Node of each CPU, as a point encodes it.
    cpu_nodes: Vec<u16>,
    /// Position of each node number, as a point encodes it.
    page_nodes: Vec<u16>,
}

impl<'a> Points<'a> {
    pub fn new(
        scale: &'a Scale,
        functions: &'a Functions,
        space: &'a Space,
        tables: &Tables,
        machine: &Machine,
    ) -> Self {
        let position = |node: NodeId| {
            let at = machine.position(node).filter(|&at| at < NODES_MAX);
            at.map_or(0, |at| at as u16 + 1)
        };
        let cpus = machine.nodes.iter().flat_map(|node| &node.cpus);
        let mut cpu_nodes = vec![0; cpus.map(|cpu| cpu.0 as usize + 1).max().unwrap_or(0)];
        let mut page_nodes = Vec::new();
        for node in &machine.nodes {
            for cpu in &node.cpus {
                cpu_nodes[cpu.0 as usize] = position(node.id);
            }
            let number = usize::from(node.id.0);
            page_nodes.resize(page_nodes.len().max(number + 1), 0);
            page_nodes[number] = position(node.id);
        }
        let threads = tables.threads.iter();
        Self {
            scale,
            functions,
            extents: threads
                .map(|thread| (thread.pid, space.of_process(thread.pid)))
                .collect(),
            cpu_nodes,
            page_nodes,
        }
    }

    /// Appends the points of a batch, which must have all columns. Returns the accesses, by weight, to addresses where
    /// no object or module ever was.
    pub fn of(&self, batch: &AccessBatch, points: &mut Vec<Point>) -> f64 {
        let mut elsewhere = 0.0;
        let mut lookup = Lookup::new(self.functions);
        points.reserve(batch.len());
        for row in 0..batch.len() {
            let thread = batch.thread[row].0 as usize;
            let weight = batch.weight[row];
            let found = self
                .extents
                .get(thread)
                .and_then(|(pid, extents)| Some((*pid, place(extents, batch.address[row])?)));
            let Some((pid, found)) = found else {
                elsewhere += f64::from(weight);
                continue;
            };
            let kind: AccessKind = batch.kind[row];
            let level: Level = batch.level[row];
            let node = |nodes: &[u16], number: usize| nodes.get(number).copied().unwrap_or(0);
            let page = batch.page_node[row]
                .map_or(0, |id: NodeId| node(&self.page_nodes, usize::from(id.0)));
            let cpu = node(&self.cpu_nodes, batch.cpu[row].0 as usize);
            points.push(Point {
                line: (found / self.scale.line_bytes) as u32,
                tick: self.scale.tick(batch.time_ns[row]),
                thread: thread.min(usize::from(u16::MAX)) as u16,
                tags: kind as u16 | (level as u16) << 2 | page << 5 | cpu << 10,
                weight,
                cost_ns: batch.cost_ns[row],
                function: lookup.slot(pid, batch.instruction[row]),
            });
        }
        elsewhere
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nearpage_machine::CpuId;
    use nearpage_recording::{Access, Resolution, SampleCounts, Thread};
    use proptest::prelude::*;

    use super::*;

    /// A thread at a position in a team.
    pub fn thread(order: u32, team: &str, team_index: u32) -> Thread {
        Thread {
            pid: 1,
            tid: order,
            name: String::new(),
            born_ns: 0,
            died_ns: u64::MAX,
            order,
            start: None,
            start_function: String::new(),
            team_index,
            team: team.to_owned(),
            cpus: Vec::new(),
            counts: SampleCounts::default(),
        }
    }

    /// A load of the first thread.
    pub fn access() -> Access {
        Access {
            time_ns: 0,
            thread: ThreadIndex(0),
            cpu: CpuId(0),
            address: 0,
            instruction: 0,
            kind: AccessKind::Load,
            level: Level::Unknown,
            resolution: Resolution::Exact,
            skid_bytes: 0,
            weight: 1.0,
            cost_ns: 1.0,
            page_node: None,
        }
    }

    pub fn point(line: u32, tick: u32, thread: u16, tags: u16, cost_ns: f32) -> Point {
        Point {
            line,
            tick,
            thread,
            tags,
            weight: 1.0,
            cost_ns,
            function: (line % 3) as u8,
        }
    }

    pub fn scale(lines: u32, ticks: u32, threads: usize, nodes: usize) -> Scale {
        Scale {
            line_bytes: 64,
            tick_ns: 1,
            begin_ns: 0,
            ticks,
            lines,
            nodes,
            counted_as: (0..threads as u32).map(ThreadIndex).collect(),
            thread_slots: (0..threads)
                .map(|thread| thread.min(THREADS_MAX - 1) as u8)
                .collect(),
            threads: threads.min(THREADS_MAX),
            functions: 3,
        }
    }

    #[test]
    fn colours_of_a_point() {
        let scale = scale(10, 10, 4, 2);
        // A store (1) from level 6, page on node 1 (2), CPU on node 0 (1), 100 ns.
        let remote = point(0, 0, 3, 1 | 6 << 2 | 2 << 5 | 1 << 10, 100.0);
        let slots = scale.every_slot(&remote);
        assert_eq!(slots, ColourBy::ALL.map(|by| scale.slot(by, &remote)));
        assert_eq!(slots, [3, 2, 1, 1, 6, 7, 2, 0]);
        let unknown = point(0, 0, 9, 0, 0.0);
        assert_eq!(ColourBy::ALL.map(|by| scale.slot(by, &unknown)), [0; 8]);
        assert!(
            ColourBy::ALL
                .iter()
                .all(|by| ColourBy::from_name(by.as_str()) == Some(*by))
        );
    }

    proptest! {
        #[test]
        fn bytes_and_back(line: u32, tick: u32, thread: u16, tags: u16, cost_ns in 0f32..1e9) {
            let point = point(line, tick, thread, tags, cost_ns);
            prop_assert_eq!(Point::from_bytes(&point.to_bytes()), point);
        }
    }
}
