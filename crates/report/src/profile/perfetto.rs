//! Chrome's trace event format. Each access is an instant event on its thread's track. Each memory node and level has a
//! counter of the time lost, summed over a five-hundredth of the recording.

use std::collections::BTreeMap;
use std::io::{self, Write};

use nearpage_recording::Recording;
use serde_json::json;

use super::Writer;
use super::labels::{Labelled, access_name, level_name, node_name};
use crate::name::{process_name, thread_name};

const BUCKETS: u64 = 500;

pub(super) struct Perfetto {
    begin_ns: u64,
    bucket_ns: u64,
    /// Nanoseconds lost, by node and level, then by bucket.
    lost: BTreeMap<(String, &'static str), BTreeMap<u64, f64>>,
}

impl Perfetto {
    pub fn begin(recording: &Recording, out: &mut dyn Write) -> io::Result<Self> {
        let metadata = &recording.metadata;
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}",
            json!({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "time lost"}})
        )?;
        let threads = &recording.tables.threads;
        let process = |pid: u32| json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process_name(threads, pid)}});
        for pid in threads
            .iter()
            .map(|thread| thread.pid)
            .collect::<std::collections::BTreeSet<_>>()
        {
            write!(out, ",\n{}", process(pid))?;
        }
        for thread in threads {
            let named = json!({"ph": "M", "name": "thread_name", "pid": thread.pid, "tid": thread.tid, "args": {"name": thread_name(thread)}});
            write!(out, ",\n{named}")?;
        }
        let whole_ns = metadata.end_ns.saturating_sub(metadata.begin_ns);
        Ok(Self {
            begin_ns: metadata.begin_ns,
            bucket_ns: whole_ns.div_ceil(BUCKETS).max(1),
            lost: BTreeMap::new(),
        })
    }

    fn microseconds(time_ns: u64) -> f64 {
        time_ns as f64 / 1e3
    }
}

impl Writer for Perfetto {
    fn access(&mut self, labelled: &Labelled<'_>, out: &mut dyn Write) -> io::Result<()> {
        let Labelled { access, thread, .. } = labelled;
        let (pid, tid) = thread.map_or((0, 0), |thread| (thread.pid, thread.tid));
        let (node, level) = (node_name(labelled.node), level_name(access.level));
        let since_ns = access.time_ns.saturating_sub(self.begin_ns);
        let counter = self.lost.entry((node.clone(), level)).or_default();
        *counter.entry(since_ns / self.bucket_ns).or_default() += f64::from(access.cost_ns);
        let event = json!({
            "ph": "i", "s": "t", "name": labelled.object, "cat": level,
            "ts": Self::microseconds(since_ns), "pid": pid, "tid": tid,
            "args": {
                "object": labelled.object, "object kind": labelled.object_kind, "node": node,
                "CPU": access.cpu.0, "CPU node": node_name(labelled.cpu_node), "level": level,
                "kind": access_name(access.kind), "address": format!("{:#x}", access.address),
                "function": labelled.code.functions[0].name,
                "weight": access.weight, "cost_ns": access.cost_ns,
            },
        });
        write!(out, ",\n{event}")
    }

    fn finish(self: Box<Self>, sampled: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
        for ((node, level), buckets) in &self.lost {
            let name = format!("{node}, {level}");
            let mut count = |bucket: u64, ns: f64| {
                let at = Self::microseconds(bucket * self.bucket_ns);
                let event =
                    json!({"ph": "C", "name": name, "pid": 0, "ts": at, "args": {"ns": ns}});
                write!(out, ",\n{event}")
            };
            for (bucket, ns) in buckets {
                count(*bucket, *ns)?;
                // The counter returns to 0, unless the next bucket follows.
                if !buckets.contains_key(&(bucket + 1)) {
                    count(bucket + 1, 0.0)?;
                }
            }
        }
        let made = json!({"written by": "nearpage", "sampled": sampled});
        writeln!(out, "\n],\"otherData\":{made}}}")
    }
}
