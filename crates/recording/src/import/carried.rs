//! Comments that carry a whole recording in the text of `perf script`. `nearpage export --to perf-script` writes them,
//! and `import` restores the recording from them and the samples. perf's own tools skip comments.
//!
//! ```text
//! # nearpage recording {…}         first line: recording.json
//! # nearpage machine "…"           the machine file
//! # nearpage module {…}            and so on: a line for each row of each table, in the tables' order
//! # nearpage exact 0.5 120.5 block -3    of the next sample: weight, cost in nanoseconds, resolution, skid in bytes
//! ```
//!
//! `(node N)` behind a sample's object is the sampled node. Further words in the parentheses say that none was sampled.

use std::io::{self, Write};
use std::path::Path;

use nearpage_files::bytes_to_text;
use nearpage_machine::{CpuId, Machine, NodeId};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::perf_script::Line;
use super::{BATCH, Imported, Sample, foreign};
use crate::error::IoContext;
use crate::source_lines::{self, SourceLine, SourceLines};
use crate::{
    Access, AccessBatch, AccessKind, Error, Metadata, Recording, Resolution, Status, Tables,
    ThreadIndex,
};

/// First bytes of a text that carries a recording.
const BEGIN: &str = "# nearpage recording ";
const COMMENT: &str = "# nearpage ";

/// Writes all of `recording` except its accesses.
///
/// # Errors
/// Errors of writing to `out`.
pub fn write_tables(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    fn row(out: &mut dyn Write, kind: &str, value: &impl Serialize) -> io::Result<()> {
        writeln!(out, "{COMMENT}{kind} {}", serde_json::to_string(value)?)
    }
    fn rows(out: &mut dyn Write, kind: &str, values: &[impl Serialize]) -> io::Result<()> {
        values.iter().try_for_each(|value| row(out, kind, value))
    }
    let tables = &recording.tables;
    row(out, "recording", &recording.metadata)?;
    row(out, "machine", &recording.machine.to_toml())?;
    rows(out, "module", &tables.modules)?;
    rows(out, "mapping", &tables.mappings)?;
    rows(out, "thread", &tables.threads)?;
    rows(out, "call-site", &tables.call_sites)?;
    rows(out, "object", &tables.objects)?;
    rows(out, "first-touch", &tables.first_touches)?;
    let imported = tables.modules.iter();
    let lines = imported.filter_map(|module| source_lines::map_of(&recording.folder, module));
    for lines in lines.filter_map(|file| source_lines::read(&file).ok()) {
        let mut sorted: Vec<(u64, SourceLine)> = lines.into_iter().collect();
        sorted.sort_unstable_by_key(|(address, _)| *address);
        rows(out, "source-line", &sorted)?;
    }
    Ok(())
}

/// Writes the properties of `access` that the next sample's line, with these figures, cannot express.
///
/// # Errors
/// Errors of writing to `out`.
pub fn write_exact(
    access: &Access,
    period: u64,
    latency_ns: u32,
    out: &mut dyn Write,
) -> io::Result<()> {
    if (access.weight, access.cost_ns) == figures(period, latency_ns)
        && access.resolution == Resolution::Exact
        && access.skid_bytes == 0
    {
        return Ok(());
    }
    let resolution = match access.resolution {
        Resolution::Exact => "exact",
        Resolution::Block => "block",
    };
    writeln!(
        out,
        "{COMMENT}exact {} {} {resolution} {}",
        access.weight, access.cost_ns, access.skid_bytes
    )
}

/// Weight and cost that a sample's line expresses.
fn figures(period: u64, latency_ns: u32) -> (f32, f32) {
    let weight = period as f32;
    (weight, latency_ns as f32 * weight)
}

/// Weight, cost, resolution and skid of a sample, from the comment before its line.
#[derive(Clone, Copy)]
struct SampleDetails {
    weight: f32,
    cost_ns: f32,
    resolution: Resolution,
    skid_bytes: i8,
}

impl SampleDetails {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut amount = || {
            let amount: f32 = words.next()?.parse().ok()?;
            (amount.is_finite() && amount >= 0.0).then_some(amount)
        };
        let (weight, cost_ns) = (amount()?, amount()?);
        let resolution = match words.next()? {
            "exact" => Resolution::Exact,
            "block" => Resolution::Block,
            _ => return None,
        };
        Some(Self {
            weight,
            cost_ns,
            resolution,
            skid_bytes: words.next()?.parse().ok()?,
        })
    }
}

/// Start, end and table position of a thread.
type Life = (u64, u64, ThreadIndex);

/// A text that carries a recording.
pub(super) struct Carried<'a> {
    text: std::borrow::Cow<'a, str>,
    metadata: Metadata,
    machine: Option<Machine>,
    tables: Tables,
    lines: SourceLines,
    /// Lives of the threads in the table, by process and thread id.
    threads: FxHashMap<(u32, u32), Vec<Life>>,
}

impl<'a> Carried<'a> {
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(BEGIN.as_bytes())
    }

    pub fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let text = bytes_to_text(bytes);
        let first = text.lines().next().unwrap_or_default();
        let metadata = json(first.strip_prefix(BEGIN).unwrap_or_default());
        let metadata: Metadata = metadata.map_err(|cause| format!("line 1: {cause}"))?;
        if metadata.version != crate::folder::FORMAT_VERSION {
            return Err(format!(
                "line 1: a recording of format version {}, and this nearpage reads {}",
                metadata.version,
                crate::folder::FORMAT_VERSION
            ));
        }
        let mut carried = Self {
            metadata,
            machine: None,
            tables: Tables::default(),
            lines: SourceLines::default(),
            threads: FxHashMap::default(),
            text: std::borrow::Cow::Borrowed(""),
        };
        for (number, line) in (1..).zip(text.lines()).skip(1) {
            // Files of version 0.1 say `thinned`.
            if line.starts_with("# sampled: ") || line.starts_with("# thinned: ") {
                carried.metadata.notes.push(line[2..].to_owned());
            } else if let Some(comment) = line.strip_prefix(COMMENT) {
                let taken = carried.comment(comment);
                taken.map_err(|cause| format!("line {number}: {cause}"))?;
            }
        }
        let table = &mut carried.tables.mappings;
        table.sort_by_key(|mapping| (mapping.pid, mapping.address, mapping.born_ns));
        for (index, thread) in (0..).zip(&carried.tables.threads) {
            let lives = carried.threads.entry((thread.pid, thread.tid)).or_default();
            lives.push((thread.born_ns, thread.died_ns, ThreadIndex(index)));
        }
        carried.text = text;
        Ok(carried)
    }

    fn comment(&mut self, comment: &str) -> Result<(), String> {
        let (kind, value) = comment.split_once(' ').unwrap_or((comment, ""));
        let tables = &mut self.tables;
        match kind {
            "machine" => {
                let text: String = json(value)?;
                let machine = Machine::from_toml(&text, "machine");
                self.machine = Some(machine.map_err(|error| error.to_string())?);
            }
            "module" => tables.modules.push(json(value)?),
            "mapping" => tables.mappings.push(json(value)?),
            "thread" => tables.threads.push(json(value)?),
            "call-site" => tables.call_sites.push(json(value)?),
            "object" => tables.objects.push(json(value)?),
            "first-touch" => tables.first_touches.push(json(value)?),
            "source-line" => {
                let (address, line): (u64, SourceLine) = json(value)?;
                self.lines.insert(address, line);
            }
            "exact" => {}
            _ => return Err(format!("a comment of nearpage's, of unknown kind {kind:?}")),
        }
        Ok(())
    }

    /// Hands out all accesses, in batches.
    fn accesses(
        &self,
        each: &mut dyn FnMut(&AccessBatch) -> Result<(), Error>,
        error: &dyn Fn(String) -> Error,
    ) -> Result<u64, Error> {
        let mut batch = AccessBatch::default();
        let mut count = 0;
        let mut exact: Option<SampleDetails> = None;
        // A sample waits for its call chain, whose first line has the instruction.
        let mut waiting: Option<Access> = None;
        for (number, line) in (1..).zip(self.text.lines()) {
            let bad = |cause: &str| error(format!("line {number}: {cause}"));
            if let Some(figures) = line
                .strip_prefix(COMMENT)
                .and_then(|text| text.strip_prefix("exact "))
            {
                let figures = SampleDetails::parse(figures);
                exact = Some(figures.ok_or_else(|| bad("expected WEIGHT COST exact|block SKID"))?);
                continue;
            }
            match Line::parse(line).map_err(|cause| bad(&cause))? {
                Line::Skipped | Line::Record(_) => {}
                Line::Chain(ip) => {
                    let waits = waiting.as_mut().filter(|access| access.instruction == 0);
                    if let Some(access) = waits {
                        access.instruction = ip;
                    }
                }
                Line::Sample {
                    time_ns,
                    mut sample,
                    ..
                } => {
                    // The latency stands last, and the instruction in the call chain. A long latency must not be taken
                    // for an address.
                    let latency = line.split_whitespace().next_back();
                    let latency = latency.and_then(|word| word.parse().ok());
                    sample.latency_cycles = latency.ok_or_else(|| bad("expected a latency"))?;
                    sample.ip = 0;
                    let access = self.access(time_ns, sample, exact.take(), page_node(line));
                    let access = access.ok_or_else(|| bad("no thread of this number is known"))?;
                    if let Some(complete) = waiting.replace(access) {
                        batch.push(complete);
                    }
                    count += 1;
                }
            }
            if batch.len() >= BATCH {
                each(&batch)?;
                batch.clear();
            }
        }
        batch.extend(waiting.as_slice());
        each(&batch)?;
        Ok(count)
    }

    fn access(
        &self,
        time_ns: u64,
        sample: Sample,
        exact: Option<SampleDetails>,
        page_node: Option<NodeId>,
    ) -> Option<Access> {
        let lives = self.threads.get(&(sample.pid, sample.tid))?;
        let at = lives
            .iter()
            .find(|(born_ns, died_ns, _)| (*born_ns..=*died_ns).contains(&time_ns));
        let (.., thread) = at.or(lives.last())?;
        let (weight, cost_ns) = figures(sample.period, sample.latency_cycles);
        let exact = exact.unwrap_or(SampleDetails {
            weight,
            cost_ns,
            resolution: Resolution::Exact,
            skid_bytes: 0,
        });
        let operation = sample.data_src.operation();
        Some(Access {
            time_ns,
            thread: *thread,
            cpu: sample.cpu.unwrap_or(CpuId(0)),
            address: sample.address,
            instruction: sample.ip,
            kind: operation.map_or(AccessKind::Load, AccessKind::from),
            level: sample.data_src.level().into(),
            resolution: exact.resolution,
            skid_bytes: exact.skid_bytes,
            weight: exact.weight,
            cost_ns: exact.cost_ns,
            page_node,
        })
    }

    /// Restores the recording in the folder `output`.
    pub fn write(
        mut self,
        file: &Path,
        output: &Path,
        machine: Option<Machine>,
    ) -> Result<Imported, Error> {
        let machine = machine.or_else(|| self.machine.take());
        let machine = machine.ok_or_else(|| foreign(file, "it has no comment with the machine"))?;
        let fault = self.tables.check(file).err();
        if let Some(Error::Damaged { cause, .. }) = fault {
            return Err(foreign(
                file,
                format!("its comments contradict each other: {cause}"),
            ));
        }
        let metadata = &mut self.metadata;
        (metadata.status, metadata.tracing) = (Status::Complete, None);
        let note = "imported from the text that `nearpage export --to perf-script` wrote";
        metadata.notes.push(note.to_owned());
        let mut written = 0;
        Recording::write(output, &self.metadata, &machine, &self.tables, |writer| {
            if !self.lines.is_empty() {
                source_lines::write(output, &self.lines).at(output, "write lines of code into")?;
            }
            let error = |cause| foreign(file, cause);
            written = self.accesses(&mut |batch| writer.accesses(batch), &error)?;
            Ok(())
        })?;
        if written == 0 {
            return Err(foreign(file, "it has no samples"));
        }
        Ok(Imported {
            counts: self.metadata.counts,
            notes: self.metadata.notes,
        })
    }

    /// Entry point for `fuzz/`: does everything except writing files.
    pub fn check(&self) {
        let error = |cause| foreign(Path::new("fuzz"), cause);
        let mut each = |batch: &AccessBatch| {
            let threads = self.tables.threads.len();
            assert_eq!(crate::check::accesses(batch, threads), None);
            Ok(())
        };
        let _ = self.accesses(&mut each, &error);
        let _ = self.tables.check(Path::new("fuzz"));
    }
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The node in parentheses behind a sample's object, if the node was sampled.
fn page_node(line: &str) -> Option<NodeId> {
    let (before, _) = line.rsplit_once(" |OP ")?;
    let (before, _data_src) = before.trim_end().rsplit_once(' ')?;
    let (_, node) = before.trim_end().rsplit_once(" (node ")?;
    node.strip_suffix(')')?.parse().ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampled_node_is_told_from_others() {
        let of = |node: &str| {
            page_node(&format!(
                " a 1/1 [000] 1.5: 1 nearpage/loads/: 10 a (node 9) |OP x+0x0 ({node})   2 |OP LOAD|LVL L1|SNP N/A|TLB N/A|LCK N/A|BLK  N/A 0"
            ))
        };
        assert_eq!(of("node 3"), Some(NodeId(3)));
        assert_eq!(of("node 3, not sampled"), None);
        assert_eq!(of("node unknown"), None);
        assert_eq!(of("node 70000"), None);
    }

    #[test]
    fn figures_that_a_line_cannot_have_are_parsed() {
        assert!(SampleDetails::parse("0.5 1.25 block -3").is_some_and(|exact| exact.weight == 0.5));
        for text in [
            "",
            "1 1 exact",
            "NaN 1 exact 0",
            "1 -1 exact 0",
            "1 1 x 0",
            "1 1 exact 300",
        ] {
            assert!(SampleDetails::parse(text).is_none(), "{text}");
        }
    }
}
