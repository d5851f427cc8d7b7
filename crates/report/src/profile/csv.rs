//! CSV with a row for each access.

use std::io::{self, Write};

use super::Writer;
use super::labels::{Labelled, access_name, known_level_name};

const HEADER: &str = "time_ns,pid,tid,thread,cpu,cpu_node,node,kind,level,address,object,object_kind,object_address,function,file,line,weight,cost_ns";

pub(super) struct Csv;

impl Csv {
    pub fn begin(out: &mut dyn Write) -> io::Result<Self> {
        writeln!(out, "{HEADER}")?;
        Ok(Self)
    }
}

impl Writer for Csv {
    fn access(&mut self, labelled: &Labelled<'_>, out: &mut dyn Write) -> io::Result<()> {
        let Labelled { access, thread, .. } = labelled;
        let (pid, tid, name) =
            thread.map_or((0, 0, ""), |thread| (thread.pid, thread.tid, &thread.name));
        let node = |node: Option<_>| {
            node.map_or_else(String::new, |node: nearpage_machine::NodeId| {
                node.to_string()
            })
        };
        let function = &labelled.code.functions[0];
        write!(
            out,
            "{},{pid},{tid},{},{},",
            access.time_ns,
            quoted(name),
            access.cpu
        )?;
        write!(out, "{},{},", node(labelled.cpu_node), node(labelled.node))?;
        let level = known_level_name(access.level);
        write!(out, "{},{level},", access_name(access.kind))?;
        let base = labelled
            .object_address
            .map_or_else(String::new, |base| format!("{base:#x}"));
        write!(
            out,
            "{:#x},{},{},{base},",
            access.address,
            quoted(labelled.object),
            labelled.object_kind
        )?;
        write!(
            out,
            "{},{},",
            quoted(&function.name),
            quoted(&function.file)
        )?;
        let line = if function.line == 0 {
            String::new()
        } else {
            function.line.to_string()
        };
        writeln!(out, "{line},{},{}", access.weight, access.cost_ns)
    }

    fn finish(self: Box<Self>, _sampled: Option<&str>, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// Quotes a cell if necessary.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
