//! Parses one line of the file.

use std::str::FromStr;

use nearpage_machine::{CpuId, NodeId};
use nearpage_perf_abi::DataSource;

use super::columns::{Column, Columns};
use crate::import::ASSUMED_GHZ;
use crate::{AccessKind, Level, ObjectKind};

/// Later times are refused, so that sums of times stay within 64 bits.
const TIME_NS_MAX: u64 = i64::MAX as u64;
/// Larger weights are refused.
const WEIGHT_MAX: f32 = 1e12;
/// Larger costs are refused: more than a day lost to one access.
const COST_NS_MAX: f32 = 1e14;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row<'a> {
    pub time_ns: u64,
    pub pid: u32,
    /// `None` if the file does not say; each CPU then counts as a thread.
    pub tid: Option<u32>,
    pub thread_name: &'a str,
    pub cpu: CpuId,
    /// Node of the CPU.
    pub cpu_node: Option<NodeId>,
    /// Node of the memory.
    pub node: Option<NodeId>,
    pub kind: AccessKind,
    pub level: Level,
    /// Data source from which `level` was derived, if any.
    pub data_src: Option<DataSource>,
    pub address: Option<u64>,
    /// Bytes accessed.
    pub bytes: u64,
    /// Empty if unknown.
    pub object: &'a str,
    pub object_kind: ObjectKind,
    pub object_address: Option<u64>,
    pub object_offset: Option<u64>,
    pub object_bytes: Option<u64>,
    pub instruction: Option<u64>,
    pub function: &'a str,
    pub file: &'a str,
    pub line: u32,
    pub weight: f32,
    pub cost_ns: f32,
}

/// The fields of a line, by column.
struct Cells<'a, 'b> {
    columns: &'b Columns,
    fields: &'b [&'a str],
}

impl<'a> Cells<'a, '_> {
    /// Text of a column; empty if the column is missing.
    fn text(&self, column: Column) -> &'a str {
        let at = self.columns.of(column);
        at.and_then(|at| self.fields.get(at).copied())
            .unwrap_or_default()
            .trim()
    }

    /// Decimal number, or hexadecimal number with 0x.
    fn number(&self, column: Column) -> Result<Option<u64>, String> {
        let text = self.text(column);
        let number = match text.strip_prefix("0x") {
            Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
            _ => u64::from_str(text),
        };
        match (text, number) {
            ("", _) => Ok(None),
            (_, Ok(number)) => Ok(Some(number)),
            (_, Err(_)) => Err(self.bad(column, "a number")),
        }
    }

    fn small<T: TryFrom<u64>>(&self, column: Column) -> Result<Option<T>, String> {
        let number = self.number(column)?;
        let number = number.map(|number| T::try_from(number).map_err(|_| ()));
        number
            .transpose()
            .map_err(|()| self.bad(column, "a smaller number"))
    }

    /// Number from 0 to `max`.
    fn amount(&self, column: Column, max: f32) -> Result<Option<f32>, String> {
        match (self.text(column), f32::from_str(self.text(column))) {
            ("", _) => Ok(None),
            (_, Ok(amount)) if (0.0..=max).contains(&amount) => Ok(Some(amount)),
            _ => Err(self.bad(column, &format!("a number from 0 to {max}"))),
        }
    }

    fn bad(&self, column: Column, expected: &str) -> String {
        let found: String = self.text(column).chars().take(40).collect();
        format!("{}: expected {expected}, found {found:?}", column.name())
    }

    fn kind(&self, data_src: Option<DataSource>) -> Result<AccessKind, String> {
        match self.text(Column::Kind) {
            "" => {
                let operation = data_src.and_then(DataSource::operation);
                Ok(operation.map_or(AccessKind::Load, AccessKind::from))
            }
            "load" => Ok(AccessKind::Load),
            "store" => Ok(AccessKind::Store),
            "fetch" => Ok(AccessKind::Fetch),
            _ => Err(self.bad(Column::Kind, "load, store or fetch")),
        }
    }

    fn level(&self, data_src: Option<DataSource>) -> Result<Level, String> {
        match self.text(Column::Level) {
            "" => Ok(data_src.map_or(Level::Unknown, |word| word.level().into())),
            "level unknown" => Ok(Level::Unknown),
            "L1" => Ok(Level::L1),
            "L2" => Ok(Level::L2),
            "L3" => Ok(Level::L3),
            "line fill buffer" => Ok(Level::LineFillBuffer),
            "local memory" => Ok(Level::LocalMemory),
            "remote memory" => Ok(Level::RemoteMemory),
            "remote cache" => Ok(Level::RemoteCache),
            _ => Err(self.bad(
                Column::Level,
                "L1, L2, L3, line fill buffer, local memory, remote memory or remote cache",
            )),
        }
    }

    fn object_kind(&self) -> Result<ObjectKind, String> {
        match self.text(Column::ObjectKind) {
            "heap" => Ok(ObjectKind::Heap),
            "" | "unknown" | "static" => Ok(ObjectKind::Static),
            "mapping" => Ok(ObjectKind::Mapping),
            "stack" => Ok(ObjectKind::Stack),
            "tls" => Ok(ObjectKind::Tls),
            "code" => Ok(ObjectKind::Code),
            "heap-area" => Ok(ObjectKind::HeapArea),
            _ => Err(self.bad(
                Column::ObjectKind,
                "heap, static, mapping, stack, tls, code or heap-area",
            )),
        }
    }

    /// Time lost to the access, weight included.
    fn cost_ns(&self, weight: f32) -> Result<f32, String> {
        if let Some(cost) = self.amount(Column::Cost, COST_NS_MAX)? {
            return Ok(cost);
        }
        let latency_ns = match self.amount(Column::LatencyCycles, COST_NS_MAX)? {
            Some(cycles) => Some(cycles / ASSUMED_GHZ),
            None => self.amount(Column::LatencyNs, COST_NS_MAX)?,
        };
        Ok(latency_ns.map_or(0.0, |latency_ns| latency_ns * weight))
    }
}

impl<'a> Row<'a> {
    pub fn new(columns: &Columns, fields: &[&'a str]) -> Result<Self, String> {
        if fields.len() != columns.count {
            return Err(format!(
                "{} where the header has {} (a field with a comma or a quote stands in quotes; none has a line break)",
                nearpage_amount::counted(fields.len() as u64, "field"),
                columns.count
            ));
        }
        let cells = Cells { columns, fields };
        let needed = |column: Column, number: Option<u64>| {
            number.ok_or_else(|| format!("{}: empty, and every line needs it", column.name()))
        };
        let time_ns = needed(Column::Time, cells.number(Column::Time)?)?;
        if time_ns > TIME_NS_MAX {
            return Err(cells.bad(Column::Time, "a smaller number"));
        }
        let cpu = cells.small::<u32>(Column::Cpu)?.map(u64::from);
        let cpu = needed(Column::Cpu, cpu)? as u32;
        let data_src = cells.number(Column::DataSource)?.map(DataSource);
        let weight = cells.amount(Column::Weight, WEIGHT_MAX)?.unwrap_or(1.0);
        Ok(Self {
            time_ns,
            pid: cells.small(Column::Pid)?.unwrap_or(1),
            tid: cells.small(Column::Tid)?,
            thread_name: cells.text(Column::ThreadName),
            cpu: CpuId(cpu),
            cpu_node: cells.small(Column::CpuNode)?.map(NodeId),
            node: cells.small(Column::Node)?.map(NodeId),
            kind: cells.kind(data_src)?,
            level: cells.level(data_src)?,
            data_src: data_src.filter(|_| cells.text(Column::Level).is_empty()),
            address: cells
                .number(Column::Address)?
                .filter(|address| *address != 0),
            bytes: u64::from(cells.small::<u16>(Column::Bytes)?.unwrap_or(1)),
            object: match cells.text(Column::Object) {
                "unknown" if cells.text(Column::ObjectKind) == "unknown" => "",
                name => name,
            },
            object_kind: cells.object_kind()?,
            object_address: cells.number(Column::ObjectAddress)?,
            object_offset: cells.number(Column::ObjectOffset)?,
            object_bytes: cells.number(Column::ObjectSize)?,
            instruction: cells.number(Column::Instruction)?,
            function: cells.text(Column::Function),
            file: cells.text(Column::File),
            line: cells.small(Column::Line)?.unwrap_or(0),
            weight,
            cost_ns: cells.cost_ns(weight)?,
        })
    }

    /// Whether the instruction or the address is in the kernel's half of the address space.
    pub fn is_of_kernel(&self) -> bool {
        let is_upper = |address: Option<u64>| address.is_some_and(|address| address >> 63 != 0);
        is_upper(self.instruction) || is_upper(self.address)
    }

    /// Whether the row is an access in user mode with a known address or object.
    pub fn is_access(&self) -> bool {
        !self.is_of_kernel() && (self.address.is_some() || !self.object.is_empty())
    }
}
