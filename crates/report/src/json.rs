//! The report as JSON: every object, thread and hot instruction.

use std::collections::BTreeMap;

use nearpage_attribution::{Names, ObjectGroup, OperationTotals, Pattern, call_site};
use nearpage_recording::{Frame, ObjectKind, Source, Tables};
use serde::Serialize;

use crate::{Content, Locate, name::hot_frame, trace::TraceForm};

#[derive(Serialize)]
struct Report<'a> {
    accesses: u64,
    compute: u64,
    lost: u64,
    undecoded: u64,
    source: Source,
    notes: &'a [String],
    attribution: Kinds,
    objects: Vec<Object<'a>>,
    threads: Vec<Thread<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<TraceForm<'a>>,
}

#[derive(Serialize)]
struct Kinds {
    heap: u64,
    heap_unresolved: u64,
    r#static: u64,
    mapping: u64,
    stack: u64,
    tls: u64,
    code: u64,
    unknown: u64,
}

#[derive(Serialize)]
struct Object<'a> {
    name: String,
    kind: ObjectKind,
    size: u64,
    instances: u64,
    call_site: Vec<Call<'a>>,
    accesses: u64,
    /// Nanoseconds, as all costs.
    cost: f64,
    /// Of the cost of all objects, 0 to 1.
    share: f64,
    loads: Operations,
    stores: Operations,
    remote: u64,
    threads: BTreeMap<u32, ThreadUse>,
    pattern: PatternForm,
    hot: Vec<Instruction>,
}

#[derive(Serialize)]
struct Call<'a> {
    function: &'a str,
    file: &'a str,
    line: u32,
    module: &'a str,
    offset: u64,
}

#[derive(Serialize)]
struct Operations {
    count: u64,
    remote: u64,
    cost: f64,
}

#[derive(Default, Serialize)]
struct ThreadUse {
    loads: u64,
    stores: u64,
    cost: f64,
}

#[derive(Serialize)]
struct PatternForm {
    kind: &'static str,
    block_bytes: Option<u64>,
    period_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Instruction {
    function: String,
    file: String,
    line: u32,
    cost: f64,
}

#[derive(Serialize)]
struct Thread<'a> {
    tid: u32,
    name: &'a str,
    accesses: u64,
    /// Accesses by CPU number.
    cpus: BTreeMap<u32, u64>,
}

/// The whole report, of at most `rows` objects. Counts are whole numbers; parts of a whole (kinds of objects, loads and stores,
/// CPUs) are rounded so that they add up to it. Costs are nanoseconds. `threads` of an object are
/// by kernel thread id; under a reused id, added up.
pub fn json(content: &Content, rows: usize, locate: &mut impl Locate) -> String {
    let Content {
        attribution,
        tables,
        source,
        notes,
        ..
    } = *content;
    let totals = &attribution.totals;
    let kinds = [
        totals.heap,
        totals.heap_unresolved,
        totals.statics,
        totals.mapping,
        totals.stack,
        totals.tls,
        totals.code,
        totals.unknown,
    ];
    let accesses = kinds.iter().sum::<f64>().round() as u64;
    let [
        heap,
        heap_unresolved,
        r#static,
        mapping,
        stack,
        tls,
        code,
        unknown,
    ] = whole_parts(kinds);
    let names = Names::new(tables, &attribution.objects);
    let all_cost: f64 = attribution.objects.iter().map(ObjectGroup::cost_ns).sum();
    let report = Report {
        accesses,
        compute: attribution.counts.compute,
        lost: attribution.counts.lost,
        undecoded: attribution.counts.undecoded,
        source,
        notes,
        attribution: Kinds {
            heap,
            heap_unresolved,
            r#static,
            mapping,
            stack,
            tls,
            code,
            unknown,
        },
        objects: attribution
            .objects
            .iter()
            .take(rows)
            .map(|group| object(tables, &names, group, all_cost, locate))
            .collect(),
        threads: attribution
            .threads
            .iter()
            .zip(&tables.threads)
            .map(|(totals, thread)| {
                let parts: Vec<f64> = totals.cpus.iter().map(|&(_, count)| count).collect();
                let cpus = totals
                    .cpus
                    .iter()
                    .map(|&(cpu, _)| cpu.0)
                    .zip(rounded(&parts))
                    .collect();
                let accesses = parts.iter().sum::<f64>().round() as u64;
                Thread {
                    tid: thread.tid,
                    name: &thread.name,
                    accesses,
                    cpus,
                }
            })
            .collect(),
        trace: content.trace.map(TraceForm::from),
    };
    serde_json::to_string(&report).expect("strings, numbers and maps with numbers for keys")
}

fn object<'a>(
    tables: &'a Tables,
    names: &Names<'a>,
    group: &ObjectGroup,
    all_cost: f64,
    locate: &mut impl Locate,
) -> Object<'a> {
    let [loads, stores] = whole_parts([group.loads.count, group.stores.count]);
    // Rounded alone, a remote share could exceed the count.
    let operations = |count: u64, totals: &OperationTotals| Operations {
        count,
        remote: (totals.remote.round() as u64).min(count),
        cost: totals.cost_ns,
    };
    let (loads, stores) = (
        operations(loads, &group.loads),
        operations(stores, &group.stores),
    );
    let mut threads: BTreeMap<u32, ThreadUse> = BTreeMap::new();
    for &(index, thread_loads, thread_stores, cost_ns) in &group.threads {
        if let Some(thread) = tables.threads.get(index.0 as usize) {
            let sum = threads.entry(thread.tid).or_default();
            sum.loads += thread_loads.round() as u64;
            sum.stores += thread_stores.round() as u64;
            sum.cost += cost_ns;
        }
    }
    let frames = call_site(tables, group).map_or(&[][..], |site| &site.frames);
    Object {
        name: names.of(group),
        kind: group.kind,
        size: group.size_bytes,
        instances: group.instances,
        call_site: frames.iter().map(|frame| call(tables, frame)).collect(),
        accesses: loads.count + stores.count,
        cost: group.cost_ns(),
        share: if all_cost > 0.0 {
            group.cost_ns() / all_cost
        } else {
            0.0
        },
        remote: loads.remote + stores.remote,
        loads,
        stores,
        threads,
        pattern: pattern(&group.pattern),
        hot: group
            .hot
            .iter()
            .map(|hot| {
                let Frame {
                    function,
                    file,
                    line,
                    ..
                } = hot_frame(hot.module, hot.offset, locate);
                Instruction {
                    function,
                    file,
                    line,
                    cost: hot.cost_ns,
                }
            })
            .collect(),
    }
}

fn call<'a>(tables: &'a Tables, frame: &'a Frame) -> Call<'a> {
    let module = frame
        .module
        .and_then(|id| tables.modules.get(id.0 as usize))
        .map_or("", |module| &module.path);
    Call {
        function: &frame.function,
        file: &frame.file,
        line: frame.line,
        module,
        offset: frame.offset,
    }
}

/// `mixed` also stands for objects with too few accesses to tell.
fn pattern(pattern: &Pattern) -> PatternForm {
    let (kind, block_bytes, period_bytes) = match *pattern {
        Pattern::Private { .. } | Pattern::PrivateEach => ("private", None, None),
        Pattern::Block { block_bytes, .. } => ("block", Some(block_bytes), None),
        Pattern::BlockCyclic {
            block_bytes,
            period_bytes,
            ..
        } => ("block-cyclic", Some(block_bytes), Some(period_bytes)),
        Pattern::Shared => ("shared", None, None),
        Pattern::ReadShared => ("read-shared", None, None),
        Pattern::Mixed | Pattern::Unknown => ("mixed", None, None),
    };
    PatternForm {
        kind,
        block_bytes,
        period_bytes,
    }
}

fn whole_parts<const N: usize>(parts: [f64; N]) -> [u64; N] {
    let rounded = rounded(&parts);
    std::array::from_fn(|at| rounded[at])
}

/// Rounds parts so that they add up to the rounded sum: those with the largest remainders go up.
pub(crate) fn rounded(parts: &[f64]) -> Vec<u64> {
    let mut whole: Vec<u64> = parts.iter().map(|part| part.floor() as u64).collect();
    let missing = (parts.iter().sum::<f64>().round() as u64).saturating_sub(whole.iter().sum());
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|&a, &b| {
        (parts[b].fract())
            .total_cmp(&parts[a].fract())
            .then(a.cmp(&b))
    });
    for &at in order.iter().take(missing as usize) {
        whole[at] += 1;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn parts_add_up() {
        assert_eq!(rounded(&[1.5, 1.5, 1.0]), [2, 1, 1]);
        assert_eq!(rounded(&[0.4, 0.4, 0.4]), [1, 0, 0]);
        assert_eq!(rounded(&[2.0, 0.0]), [2, 0]);
        assert_eq!(rounded(&[]), [] as [u64; 0]);
    }
}
