//! Text as `perf script` prints it. Object and node stand for the symbol and file of the address. The call chain has
//! the function with inlined functions, and outermost the object. Latencies are nanoseconds, which equal cycles of a 1
//! GHz processor. Comments contain further data of the recording for `import`.

use std::io::{self, Write};

use nearpage_perf_abi::DataSource;
use nearpage_perf_abi::data_src::{Operation, level_number};
use nearpage_recording::import::{write_exact, write_tables};
use nearpage_recording::{AccessKind, Level, Recording};

use super::Writer;
use super::labels::{Labelled, level_name, node_name};

pub(super) struct PerfScript;

impl PerfScript {
    pub fn begin(
        recording: &Recording,
        sampled: Option<&str>,
        out: &mut dyn Write,
    ) -> io::Result<Self> {
        write_tables(recording, out)?;
        writeln!(out, "# cpudesc : latencies in nanoseconds @ 1.00GHz")?;
        let command = &recording.metadata.command;
        writeln!(out, "# cmdline : {}", crate::printable(&command.join(" ")))?;
        if let Some(sampled) = sampled {
            writeln!(out, "# {sampled}")?;
        }
        Ok(Self)
    }
}

impl Writer for PerfScript {
    fn access(&mut self, labelled: &Labelled<'_>, out: &mut dyn Write) -> io::Result<()> {
        let Labelled {
            access,
            thread,
            code,
            ..
        } = labelled;
        let (pid, tid, name) = thread.map_or((0, 0, ""), |thread| {
            (thread.pid, thread.tid, thread.name.as_str())
        });
        let name = if name.is_empty() { "unknown" } else { name };
        let (event, op, operation) = match access.kind {
            AccessKind::Store => ("stores", "STORE", Operation::Store),
            AccessKind::Load => ("loads", "LOAD", Operation::Load),
            AccessKind::Fetch => ("fetches", "EXEC", Operation::Fetch),
        };
        let (number, remote) = match access.level {
            Level::Unknown => (level_number::NOT_AVAILABLE, false),
            Level::L1 => (level_number::L1, false),
            Level::L2 => (level_number::L2, false),
            Level::L3 => (level_number::L3, false),
            Level::LineFillBuffer => (level_number::LINE_FILL_BUFFER, false),
            Level::LocalMemory => (level_number::RAM, false),
            Level::RemoteMemory => (level_number::RAM, true),
            Level::RemoteCache => (level_number::ANY_CACHE, true),
        };
        let data_src = DataSource::new(operation).served_by(number);
        let data_src = data_src.on_other_node(remote).0;
        let period = access.weight.round().max(1.0) as u64;
        let latency_ns = (access.cost_ns / access.weight.max(f32::MIN_POSITIVE)).round() as u32;
        let (seconds, ns) = (
            access.time_ns / 1_000_000_000,
            access.time_ns % 1_000_000_000,
        );
        let offset = labelled
            .object_address
            .map_or(access.address, |base| access.address.wrapping_sub(base));
        let node = match access.page_node {
            None if labelled.node.is_some() => format!("{}, not sampled", node_name(labelled.node)),
            _ => node_name(labelled.node),
        };
        let level = level_name(access.level);
        write_exact(access, period, latency_ns, out)?;
        write!(
            out,
            "{:>16} {pid:>5}/{tid:<5} [{:03}] {seconds:>5}.{ns:09}: ",
            crate::printable(name),
            access.cpu.0
        )?;
        write!(
            out,
            "{period:>10} nearpage/{event}/: {:>16x} ",
            access.address
        )?;
        write!(
            out,
            "{}+{offset:#x} ({node}) {data_src:>15x} ",
            labelled.object
        )?;
        writeln!(
            out,
            "|OP {op}|LVL {level}|SNP N/A|TLB N/A|LCK N/A|BLK  N/A {latency_ns:>16}"
        )?;
        for function in &code.functions {
            writeln!(
                out,
                "\t{:>16x} {} ({})",
                access.instruction, function.name, code.module_name
            )?;
        }
        writeln!(out, "\t{:>16x} {} ({node}, {level})\n", 0, labelled.object)
    }

    fn finish(self: Box<Self>, _sampled: Option<&str>, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
