//! Errors of reading and validating machines.

use std::io;
use std::path::PathBuf;

use crate::{CpuId, DeviceKind, NodeId};
use nearpage_amount::counted;

/// Why a machine cannot be read. Every message names the file and, where possible, a remedy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: expected {expected}, found `{found}`", path.display())]
    Sysfs {
        path: PathBuf,
        expected: &'static str,
        found: String,
    },
    #[error("{}: {problem}", path.display())]
    Tree { path: PathBuf, problem: String },
    #[error("{origin}: line {line}: {message}")]
    Syntax {
        origin: String,
        line: usize,
        message: String,
    },
    #[error("{origin}: {fault}")]
    Invalid { origin: String, fault: Fault },
    #[error(
        "{argument}: no such machine; there are `local`, {presets}, or the path of a TOML or hwloc XML file"
    )]
    Unknown { argument: String, presets: String },
}

/// Ends the message about a figure: 0 is allowed for some figures, so the text mentions it unless the value is 0.
fn or_zero(value: f64) -> &'static str {
    match value {
        0.0 => "",
        _ => ", or 0 where that makes sense",
    }
}

/// Inconsistency in a machine's description.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Fault {
    #[error("a machine has at least one `[[node]]`")]
    NoNode,
    #[error("node {0} is there twice")]
    NodeTwice(NodeId),
    #[error("nodes must be in ascending order, but node {1} follows node {0}")]
    NodesUnordered(NodeId, NodeId),
    #[error("CPU {cpu} is on node {first} and on node {second}; a CPU is on one node")]
    CpuTwice {
        cpu: CpuId,
        first: NodeId,
        second: NodeId,
    },
    #[error("no node has a CPU")]
    NoCpu,
    #[error("no node has memory: `memory_bytes` is 0 of all")]
    NoMemory,
    #[error(
        "`memory_bytes` of node {node} is {bytes}, less than a page of {page}; it counts bytes, and 0 is a node without memory"
    )]
    LessThanAPage { node: NodeId, bytes: u64, page: u64 },
    #[error("`{key}` is {value}; expected a power of two, in bytes, from 4096 to 16 GiB")]
    PageSize { key: &'static str, value: u64 },
    #[error("`huge_page_bytes` {huge} is smaller than `page_bytes` {page}")]
    HugeSmallerThanPage { huge: u64, page: u64 },
    #[error("`{key}` has {}; expected {expected}, one for each node", counted(*found as u64, "row"))]
    Rows {
        key: &'static str,
        found: usize,
        expected: usize,
    },
    #[error("row {row} of `{key}` has {}; expected {expected}, one for each node", counted(*found as u64, "number"))]
    Columns {
        key: &'static str,
        row: usize,
        found: usize,
        expected: usize,
    },
    #[error("`{key}`[{row}][{column}] is {value}; expected a positive number")]
    NotPositive {
        key: &'static str,
        row: usize,
        column: usize,
        value: f64,
    },
    #[error("`{key}` has no figure in it; leave it out")]
    NothingKnown { key: &'static str },
    #[error("a loaded latency names node {0}, which is not there")]
    LoadOfUnknownNode(NodeId),
    #[error("`distance`[{row}][{column}] is {value}; the least there is, a node's own, is 10")]
    DistanceTooShort {
        row: usize,
        column: usize,
        value: u32,
    },
    #[error(
        "`distance`[{row}][{column}] is {value}, nearer than the node itself ({own}); rows are CPUs' nodes, columns memory nodes"
    )]
    NearerThanSelf {
        row: usize,
        column: usize,
        value: u32,
        own: u32,
    },
    #[error(
        "`distance` from node {from} to node {to} is {there}, and {back} back; hops are the same both ways: for what differs give `latency_ns`, or call it `directed_distance`"
    )]
    DistanceAsymmetric {
        from: NodeId,
        to: NodeId,
        there: u32,
        back: u32,
    },
    #[error("a core of `cores` names CPU {0}, which is on no node")]
    CoreOfUnknownCpu(CpuId),
    #[error("a `[[cpu_kind]]` names CPU {0}, which is on no node")]
    KindOfUnknownCpu(CpuId),
    #[error(
        "a `[[memory_cache]]` of node {0}: expected a node that is there, and a size of at least 1"
    )]
    MemoryCache(NodeId),
    /// A device on an unknown node, listed twice, or without a PCI address.
    #[error("the device {}{_1} is on a node that does not exist, is there twice, or has no PCI address such as 0000:3b:00.0", _0.as_str())]
    Device(DeviceKind, u32),
    #[error("CPU {0} is in two of `cores`")]
    CoreTwice(CpuId),
    #[error("cache {0}: level, size, line and sharing CPUs are at least 1")]
    Cache(usize),
    #[error("`{key}` is {value}; expected a positive number{}", or_zero(*value))]
    Figure { key: &'static str, value: f64 },
    #[error("a prefetcher follows 256 streams at most, and is 16 steps ahead at most")]
    Prefetcher,
    #[error(
        "a TLB has a level of at least 1, more entries than are reserved, and no more ways than entries"
    )]
    Tlb,
    #[error("a link from node {0} to node {1}: expected two different nodes, linked once")]
    Link(NodeId, NodeId),
    #[error("a route over nodes {0}: expected two nodes or more, each linked to the next")]
    Route(String),
    #[error("there is no way over the links from node {from} to node {to}")]
    NoRoute { from: NodeId, to: NodeId },
    #[error("{0} nodes cannot be simulated; 64 are the most")]
    TooManyNodes(usize),
}
