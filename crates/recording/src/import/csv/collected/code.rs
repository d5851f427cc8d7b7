//! Instructions and their lines of code. A line of code without an instruction's address gets a made-up address.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::super::row::Row;
use crate::source_lines::{MODULE, SourceLine, SourceLines};
use crate::{Module, ModuleId, ModuleMapping, Tables};

/// More lines of code are refused.
const LINES_MAX: usize = 1 << 20;
/// First made-up address; programs have no addresses from here on.
const MADE_UP: u64 = 1 << 62;
/// Lowest address of an instruction; nothing is mapped below.
const FIRST: u64 = 4096;

#[derive(Default)]
pub(super) struct Code {
    pub lines: SourceLines,
    /// Made-up addresses by function, file and line.
    made_up: FxHashMap<String, FxHashMap<String, FxHashMap<u32, u64>>>,
    made_up_count: u64,
}

impl Code {
    pub fn add(&mut self, row: &Row<'_>) -> Result<(), String> {
        if !is_known(row) || self.address_of_known_line(row).is_some() || self.find(row).is_some() {
            return Ok(());
        }
        if self.lines.len() == LINES_MAX {
            return Err(format!("more than {LINES_MAX} lines of code"));
        }
        let address = match own(row).filter(|address| !self.lines.contains_key(address)) {
            Some(address) => address,
            None => {
                let address = MADE_UP + 16 * self.made_up_count;
                self.made_up_count += 1;
                let files = self.made_up.entry(row.function.to_owned()).or_default();
                let lines = files.entry(row.file.to_owned()).or_default();
                lines.insert(row.line, address);
                address
            }
        };
        let line = SourceLine {
            function: row.function.to_owned(),
            file: row.file.to_owned(),
            line: row.line,
        };
        self.lines.insert(address, line);
        Ok(())
    }

    /// The instruction's own address, if the row states the line of code that is known for the address.
    fn address_of_known_line(&self, row: &Row<'_>) -> Option<u64> {
        let address = own(row)?;
        let known = self.lines.get(&address)?;
        let same = (known.function.as_str(), known.file.as_str(), known.line)
            == (row.function, row.file, row.line);
        same.then_some(address)
    }

    fn find(&self, row: &Row<'_>) -> Option<u64> {
        let lines = self.made_up.get(row.function)?.get(row.file)?;
        lines.get(&row.line).copied()
    }

    /// The address that stands for a row's instruction; 0 if unknown.
    pub fn address(&self, row: &Row<'_>) -> u64 {
        let known = || self.address_of_known_line(row).or_else(|| self.find(row));
        let known = is_known(row).then(known).flatten();
        known.or_else(|| own(row)).unwrap_or(0)
    }

    /// The module that stands for all code.
    pub fn module(&self) -> ModuleId {
        ModuleId(0)
    }

    /// Maps the module into all these processes.
    pub fn finish(&self, pids: &BTreeSet<u32>, tables: &mut Tables) {
        tables.modules.push(Module {
            path: MODULE.to_owned(),
            build_id: String::new(),
        });
        tables
            .mappings
            .extend(pids.iter().map(|&pid| ModuleMapping {
                pid,
                address: FIRST,
                size_bytes: (1 << 63) - FIRST,
                born_ns: 0,
                died_ns: u64::MAX,
                module: self.module(),
                bias: 0,
            }));
    }
}

/// The address of a row's instruction, if programs can have it.
fn own(row: &Row<'_>) -> Option<u64> {
    row.instruction
        .filter(|address| (FIRST..MADE_UP).contains(address))
}

/// Whether the row states its instruction's place in the source.
fn is_known(row: &Row<'_>) -> bool {
    !row.function.is_empty() || !row.file.is_empty() || row.line != 0
}
