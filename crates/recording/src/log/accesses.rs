//! Layout of accesses in a frame: column after column, 46 bytes an access.

use nearpage_machine::{CpuId, NodeId};

use crate::{AccessBatch, AccessKind, Level, Resolution, ThreadIndex};

/// Bytes of one access.
pub(super) const ACCESS_BYTES: usize = 46;
/// `page_node` of an access whose page's node is unknown.
const NO_NODE: u16 = u16::MAX;

/// Appends `batch` to `out`.
pub(super) fn encode(batch: &AccessBatch, out: &mut Vec<u8>) {
    out.reserve(batch.len() * ACCESS_BYTES);
    for value in &batch.time_ns {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for value in &batch.address {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for value in &batch.instruction {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for value in &batch.thread {
        out.extend_from_slice(&value.0.to_le_bytes());
    }
    for value in &batch.cpu {
        out.extend_from_slice(&value.0.to_le_bytes());
    }
    for value in &batch.weight {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for value in &batch.cost_ns {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for value in &batch.page_node {
        out.extend_from_slice(&value.map_or(NO_NODE, |node| node.0).to_le_bytes());
    }
    out.extend(batch.kind.iter().map(|kind| *kind as u8));
    out.extend(batch.level.iter().map(|level| *level as u8));
    out.extend(batch.resolution.iter().map(|resolution| *resolution as u8));
    out.extend(batch.skid_bytes.iter().map(|distance| *distance as u8));
}

/// Appends the accesses in `bytes` to `batch`. If `bytes` are invalid, returns `None` and leaves `batch` unchanged.
pub(super) fn decode(bytes: &[u8], batch: &mut AccessBatch) -> Option<()> {
    if !bytes.len().is_multiple_of(ACCESS_BYTES) {
        return None;
    }
    let rows = bytes.len() / ACCESS_BYTES;
    let mut rest = bytes;
    let mut column = |width: usize| {
        let (column, after) = rest.split_at(rows * width);
        rest = after;
        column
    };
    let (time_ns, address, instruction) = (column(8), column(8), column(8));
    let (thread, cpu, weight, cost_ns) = (column(4), column(4), column(4), column(4));
    let (page_node, kind, level, resolution, distance) =
        (column(2), column(1), column(1), column(1), column(1));
    let codes_known = kind
        .iter()
        .all(|code| AccessKind::from_number(*code).is_some())
        && level.iter().all(|code| Level::from_number(*code).is_some())
        && resolution
            .iter()
            .all(|code| Resolution::from_number(*code).is_some());
    let amounts = [weight, cost_ns].into_iter().flat_map(words);
    let mut amounts = amounts.map(f32::from_le_bytes);
    if !codes_known || !amounts.all(|amount| amount.is_finite() && amount >= 0.0) {
        return None;
    }
    batch.time_ns.extend(words(time_ns).map(u64::from_le_bytes));
    batch.address.extend(words(address).map(u64::from_le_bytes));
    batch
        .instruction
        .extend(words(instruction).map(u64::from_le_bytes));
    batch
        .thread
        .extend(words(thread).map(|bytes| ThreadIndex(u32::from_le_bytes(bytes))));
    batch
        .cpu
        .extend(words(cpu).map(|bytes| CpuId(u32::from_le_bytes(bytes))));
    batch.weight.extend(words(weight).map(f32::from_le_bytes));
    batch.cost_ns.extend(words(cost_ns).map(f32::from_le_bytes));
    batch.page_node.extend(
        words(page_node)
            .map(u16::from_le_bytes)
            .map(|node| (node != NO_NODE).then_some(NodeId(node))),
    );
    batch.kind.extend(
        kind.iter()
            .filter_map(|code| AccessKind::from_number(*code)),
    );
    batch
        .level
        .extend(level.iter().filter_map(|code| Level::from_number(*code)));
    batch.resolution.extend(
        resolution
            .iter()
            .filter_map(|code| Resolution::from_number(*code)),
    );
    batch
        .skid_bytes
        .extend(distance.iter().map(|byte| *byte as i8));
    Some(())
}

/// Calls `each` with thread and CPU of every access in `bytes`, without decoding the other columns.
pub(super) fn threads_and_cpus(bytes: &[u8], mut each: impl FnMut(ThreadIndex, CpuId)) {
    let rows = bytes.len() / ACCESS_BYTES;
    let (threads, cpus) = bytes[24 * rows..32 * rows].split_at(4 * rows);
    for (thread, cpu) in words(threads).zip(words(cpus)) {
        each(
            ThreadIndex(u32::from_le_bytes(thread)),
            CpuId(u32::from_le_bytes(cpu)),
        );
    }
}

fn words<const WIDTH: usize>(column: &[u8]) -> impl Iterator<Item = [u8; WIDTH]> {
    column.as_chunks::<WIDTH>().0.iter().copied()
}
