//! Columns of the file, from its header.

/// A column that nearpage knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Column {
    Time,
    Pid,
    Tid,
    ThreadName,
    Cpu,
    CpuNode,
    Node,
    Kind,
    Level,
    DataSource,
    Address,
    Bytes,
    Object,
    ObjectKind,
    ObjectAddress,
    ObjectOffset,
    ObjectSize,
    Instruction,
    Function,
    File,
    Line,
    Weight,
    Cost,
    LatencyNs,
    LatencyCycles,
}

/// Names of columns in a header, in the order of [`Column`].
const NAMES: [&str; 25] = [
    "time_ns",
    "pid",
    "tid",
    "thread",
    "cpu",
    "cpu_node",
    "node",
    "kind",
    "level",
    "data_src",
    "address",
    "size_bytes",
    "object",
    "object_kind",
    "object_address",
    "object_offset",
    "object_size_bytes",
    "instruction",
    "function",
    "file",
    "line",
    "weight",
    "cost_ns",
    "latency_ns",
    "latency_cycles",
];

impl Column {
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// Where each column is in a line.
pub(super) struct Columns {
    positions: [Option<usize>; NAMES.len()],
    pub count: usize,
    /// Names of unknown columns.
    unknown: Vec<String>,
}

impl Columns {
    pub fn new<'a>(header: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut columns = Self {
            positions: [None; NAMES.len()],
            count: 0,
            unknown: Vec::new(),
        };
        for name in header {
            let name = name.trim();
            match NAMES.iter().position(|known| *known == name) {
                Some(known) if columns.positions[known].is_some() => {
                    return Err(format!("the column `{name}` is there twice"));
                }
                Some(known) => columns.positions[known] = Some(columns.count),
                None => columns.unknown.push(name.to_owned()),
            }
            columns.count += 1;
        }
        let documented = "docs/reference/samples-csv.md has the columns";
        for needed in [Column::Time, Column::Cpu] {
            if columns.of(needed).is_none() {
                return Err(format!(
                    "the column `{}` is missing, which samples in CSV need; {documented}",
                    needed.name()
                ));
            }
        }
        if columns
            .of(Column::Address)
            .or(columns.of(Column::Object))
            .is_none()
        {
            return Err(format!(
                "neither the column `address` nor `object` is there, and samples in CSV need one of them; {documented}"
            ));
        }
        let costs = [Column::Cost, Column::LatencyNs, Column::LatencyCycles];
        let costs: Vec<&str> = costs
            .iter()
            .filter(|column| columns.of(**column).is_some())
            .map(|column| column.name())
            .collect();
        match costs.as_slice() {
            [] | [_] => Ok(columns),
            [first, second, ..] => Err(format!(
                "the columns `{first}` and `{second}` say the same: leave one out"
            )),
        }
    }

    pub fn of(&self, column: Column) -> Option<usize> {
        self.positions[column as usize]
    }

    /// Note about columns that were not read.
    pub fn note(&self) -> Option<String> {
        (!self.unknown.is_empty()).then(|| {
            format!(
                "columns that nearpage does not know were left out: {}",
                self.unknown.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(header: &str) -> Result<Columns, String> {
        Columns::new(header.split(','))
    }

    #[test]
    fn names_stand_in_the_order_of_columns() {
        assert_eq!(Column::Time.name(), "time_ns");
        assert_eq!(Column::Bytes.name(), "size_bytes");
        assert_eq!(Column::Weight.name(), "weight");
        assert_eq!(Column::LatencyCycles.name(), "latency_cycles");
    }

    #[test]
    fn a_header_needs_time_cpu_and_what_was_accessed() {
        let found = columns("cpu,address,other,time_ns").unwrap();
        assert_eq!(
            (found.of(Column::Cpu), found.of(Column::Time)),
            (Some(0), Some(3))
        );
        assert!(found.note().unwrap().contains("other"));
        for (header, word) in [
            ("cpu,address", "`time_ns`"),
            ("time_ns,object", "`cpu`"),
            ("time_ns,cpu,node", "`object`"),
            ("time_ns,cpu,cpu,address", "twice"),
            ("time_ns,cpu,address,cost_ns,latency_cycles", "same"),
        ] {
            let cause = columns(header).err().unwrap();
            assert!(cause.contains(word), "{header}: {cause}");
        }
    }
}
