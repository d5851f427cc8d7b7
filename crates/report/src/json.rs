//! JSON of the report: all objects, threads and hot instructions.

mod kinds;
mod pages;
mod rounded;
pub(crate) mod single;

use std::collections::BTreeMap;

use nearpage_attribution::{
    Attribution, Confidence, Names, ObjectGroup, OperationTotals, Pattern, ThreadTotals, call_site,
};
use nearpage_recording::{Frame, ObjectKind, Source, Tables};
use schemars::JsonSchema;
use serde::Serialize;

use self::kinds::Kinds;
use self::pages::{PageForm, add_use, pages};
use self::rounded::{rounded, whole_parts};
use crate::name::{created, hot_frame};
use crate::{Content, GroupBy, Locate, trace::TraceForm};

/// What `report --json` prints: every object, thread and hot instruction.
#[derive(Serialize, JsonSchema)]
pub struct ReportOutput<'a> {
    /// Version of this form.
    version: u32,
    /// Number of recorded accesses.
    accesses: u64,
    /// Samples of accesses that a cache served, which have no cost; they count as accesses.
    cached: u64,
    /// Samples that were of computation.
    compute: u64,
    /// Samples that the kernel lost.
    lost: u64,
    /// Samples whose address could not be recovered.
    undecoded: u64,
    /// Source of the accesses.
    source: Source,
    /// Notes that a reader of the figures needs.
    notes: &'a [String],
    /// Accesses by kind of object.
    attribution: Kinds,
    /// Objects, the costliest first unless `--sort` says otherwise.
    objects: Vec<Object<'a>>,
    /// Recording options with which all patterns would be sure; absent if all are sure, and for traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Threads in order of creation.
    threads: Vec<Thread<'a>>,
    /// For a trace, sums over all misses.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<TraceForm<'a>>,
}

/// Objects that are shown as one: all of one call site, or one symbol.
#[derive(Serialize, JsonSchema)]
struct Object<'a> {
    /// Display name of the object.
    name: String,
    /// Kind of the object.
    kind: ObjectKind,
    /// Size of the largest instance.
    size_bytes: u64,
    /// Number of instances.
    instances: u64,
    /// Number of processes that access the same memory; absent for memory of one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    sharing_processes: Option<u64>,
    /// Calls that allocated the object, innermost frame first.
    call_site: Vec<Call<'a>>,
    /// Accesses to the object.
    accesses: u64,
    /// Time lost to the accesses.
    cost_ns: f64,
    /// Share of the cost of all objects.
    cost_share: f64,
    /// Loads.
    loads: Operations,
    /// Stores.
    stores: Operations,
    /// Accesses to another node's memory, among accesses to pages whose node is known.
    remote: u64,
    /// Accesses by kernel thread id; summed if an id was reused.
    threads: BTreeMap<u32, ThreadUse>,
    /// Pattern of the threads' accesses to parts of the object.
    pattern: PatternForm,
    /// With `--by page`: accessed pages of the object, in order (NumaMMA §3.4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<Vec<PageForm>>,
    /// The costliest instructions.
    hot: Vec<Instruction>,
}

/// A frame of a stack.
#[derive(Serialize, JsonSchema)]
struct Call<'a> {
    /// Empty: not known.
    function: &'a str,
    /// Empty: not known.
    file: &'a str,
    /// 0: not known.
    line: u32,
    /// Path of the program or library; empty: generated code.
    module: &'a str,
    /// Return address, as an offset in the module.
    offset: u64,
}

/// Loads, or stores.
#[derive(Serialize, JsonSchema)]
struct Operations {
    /// Number of accesses.
    count: u64,
    /// Part of `count` to another node's memory.
    remote: u64,
    /// Part of `count` to pages whose node is known; includes `remote`.
    node_known: u64,
    /// Time lost to the accesses.
    cost_ns: f64,
    /// Part of `cost_ns` that was lost to another node's memory, among pages whose node is known.
    remote_cost_ns: f64,
}

/// A thread's accesses to an object.
#[derive(Default, Serialize, JsonSchema)]
struct ThreadUse {
    /// Loads.
    loads: u64,
    /// Stores.
    stores: u64,
    /// Time lost to the accesses.
    cost_ns: f64,
}

/// Pattern of the threads' accesses to parts of an object.
#[derive(Serialize, JsonSchema)]
struct PatternForm {
    /// The pattern.
    kind: PatternKind,
    /// Number of samples on which the pattern is based; in a trace, accesses.
    samples: u64,
    /// Share of resamples of the recording whose own pattern leads to the same placement, 0 to 1; null for objects
    /// below 1 % of the cost, stacks, thread-local storage, and in traces.
    confidence: Option<f64>,
    /// Bytes of a thread's block.
    block_bytes: Option<u64>,
    /// Bytes from the start of a thread's block to the start of its next block.
    period_bytes: Option<u64>,
    /// Offsets of the part that is divided into blocks; null: the whole object.
    part_bytes: Option<[u64; 2]>,
    /// Contiguous parts, if the pattern is `segments`.
    segments: Vec<SegmentForm>,
    /// For the pattern `in-turn`, the two patterns that alternate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_turn: Vec<PatternForm>,
}

/// A contiguous part of an object with the same users.
#[derive(Serialize, JsonSchema)]
struct SegmentForm {
    /// Offsets of the first sampled byte and of the end of the last sampled byte.
    part_bytes: [u64; 2],
    /// Position in `threads` of the recording of the thread with the most accesses.
    thread: u32,
    /// Share of this thread's accesses, 0 to 1.
    share: f64,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum PatternKind {
    /// One thread uses the object; for several objects, one thread uses each.
    Private,
    /// For several objects of one call site, each thread uses objects that were allocated consecutively.
    PrivateRuns,
    /// Each thread uses a contiguous block.
    Block,
    /// Blocks of one size go to the threads in turn.
    BlockCyclic,
    /// All threads use the whole object.
    Shared,
    /// All threads read the whole object.
    ReadShared,
    /// Each thread uses a block of a part of the object; other parts are unused.
    PartialBlock,
    /// The rows are divided into shares, and the columns of each share among some threads.
    Tiles,
    /// Contiguous parts, each used mostly by one thread, in no regular order.
    Segments,
    /// Two patterns alternate, such as rows in one phase and columns in another.
    InTurn,
    /// Parts belong to threads without a rule.
    Mixed,
    /// There are too few accesses to find a pattern.
    Unknown,
}

/// An instruction.
#[derive(Serialize, JsonSchema)]
struct Instruction {
    /// Function of the instruction; empty: not known.
    function: String,
    /// Source file of the instruction; empty: not known.
    file: String,
    /// 0: not known.
    line: u32,
    /// Time lost to the instruction's accesses to the object.
    cost_ns: f64,
}

/// A thread.
#[derive(Serialize, JsonSchema)]
struct Thread<'a> {
    /// Kernel thread id.
    tid: u32,
    /// Name of the thread in the kernel.
    name: &'a str,
    /// Number of threads that were created in this thread's place, including itself; absent if there are no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<u32>,
    /// Accesses of the thread, and of the threads that count as this thread.
    accesses: u64,
    /// Part of `accesses` to another node's memory.
    remote: u64,
    /// Part of `accesses` to pages whose node is known; includes `remote`.
    node_known: u64,
    /// Time lost to the accesses.
    cost_ns: f64,
    /// Part of `cost_ns` that was lost to another node's memory, among pages whose node is known.
    remote_cost_ns: f64,
    /// Accesses by CPU number.
    cpus: BTreeMap<u32, u64>,
}

/// JSON of the report, with at most `rows` objects, and their pages for `GroupBy::Page`. Counts are whole numbers.
/// Parts (kinds of objects, loads and stores, CPUs) are rounded so that they add up to their whole.
pub fn json(content: &Content, rows: usize, by: GroupBy, locate: &mut impl Locate) -> String {
    let Content {
        attribution,
        tables,
        source,
        notes,
        ..
    } = *content;
    let (accesses, kinds) = Kinds::of(&attribution.totals);
    let names = Names::new(tables, &attribution.objects);
    let (confidences, remedy) = content.confidences();
    let all_cost: f64 = attribution.objects.iter().map(ObjectGroup::cost_ns).sum();
    let report = ReportOutput {
        version: nearpage_recording::JSON_VERSION,
        accesses,
        cached: tables.cached_samples.iter().sum(),
        compute: attribution.counts.compute,
        lost: attribution.counts.lost,
        undecoded: attribution.counts.undecoded,
        source,
        notes,
        attribution: kinds,
        objects: attribution
            .objects
            .iter()
            .zip(&confidences)
            .take(rows)
            .map(|(group, confidence)| Object {
                pattern: pattern(group, *confidence),
                ..object(tables, &names, group, (all_cost, by), locate)
            })
            .collect(),
        remedy,
        threads: threads(attribution, tables),
        trace: content.trace.map(TraceForm::from),
    };
    serde_json::to_string(&report).expect("strings, numbers and maps with numbers for keys")
}

fn threads<'a>(attribution: &Attribution, tables: &'a Tables) -> Vec<Thread<'a>> {
    let created = created(&tables.threads);
    let thread = |(number, totals): (usize, &ThreadTotals)| {
        let (thread, created) = (tables.threads.get(number)?, created[number]);
        let parts: Vec<f64> = totals.cpus.iter().map(|&(_, count)| count).collect();
        let cpus = totals.cpus.iter().map(|&(cpu, _)| cpu.0);
        let accesses = parts.iter().sum::<f64>().round() as u64;
        let known = totals.loads.node_known + totals.stores.node_known;
        (created > 0).then(|| Thread {
            tid: thread.tid,
            name: &thread.name,
            created: (created > 1).then_some(created),
            accesses,
            remote: ((totals.loads.remote + totals.stores.remote).round() as u64).min(accesses),
            node_known: (known.round() as u64).min(accesses),
            cost_ns: totals.loads.cost_ns + totals.stores.cost_ns,
            remote_cost_ns: totals.loads.remote_cost_ns + totals.stores.remote_cost_ns,
            cpus: cpus.zip(rounded(&parts)).collect(),
        })
    };
    let threads = attribution.threads.iter().enumerate();
    threads.filter_map(thread).collect()
}

fn object<'a>(
    tables: &'a Tables,
    names: &Names<'a>,
    group: &ObjectGroup,
    (all_cost, by): (f64, GroupBy),
    locate: &mut impl Locate,
) -> Object<'a> {
    let [loads, stores] = whole_parts([group.loads.count, group.stores.count]);
    // The remote count is rounded separately, so it is limited to the rounded count.
    let operations = |count: u64, totals: &OperationTotals| Operations {
        count,
        remote: (totals.remote.round() as u64).min(count),
        node_known: (totals.node_known.round() as u64).min(count),
        cost_ns: totals.cost_ns,
        remote_cost_ns: totals.remote_cost_ns,
    };
    let (loads, stores) = (
        operations(loads, &group.loads),
        operations(stores, &group.stores),
    );
    let mut threads: BTreeMap<u32, ThreadUse> = BTreeMap::new();
    for &(index, thread_loads, thread_stores, cost_ns) in &group.threads {
        add_use(
            &mut threads,
            tables,
            index,
            [thread_loads, thread_stores, cost_ns],
        );
    }
    let frames = call_site(tables, group).map_or(&[][..], |site| &site.frames);
    Object {
        name: names.of(group),
        kind: group.kind,
        size_bytes: group.size_bytes,
        instances: group.instances,
        sharing_processes: group.sharing_processes(&tables.threads),
        call_site: frames.iter().map(|frame| call(tables, frame)).collect(),
        accesses: loads.count + stores.count,
        cost_ns: group.cost_ns(),
        cost_share: group.cost_ns() / all_cost.max(f64::MIN_POSITIVE),
        remote: loads.remote + stores.remote,
        loads,
        stores,
        threads,
        pattern: pattern(group, None),
        pages: matches!(by, GroupBy::Page | GroupBy::Matrix).then(|| pages(tables, group)),
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
                    cost_ns: hot.cost_ns,
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

fn pattern(group: &ObjectGroup, confidence: Option<Confidence>) -> PatternForm {
    pattern_form(&group.pattern, group, confidence)
}

fn pattern_form(
    pattern: &Pattern,
    group: &ObjectGroup,
    confidence: Option<Confidence>,
) -> PatternForm {
    let form = |kind| PatternForm {
        kind,
        samples: group.sample_count(),
        confidence: confidence.map(|confidence| confidence.share),
        block_bytes: None,
        period_bytes: None,
        part_bytes: None,
        segments: Vec::new(),
        in_turn: Vec::new(),
    };
    match pattern {
        Pattern::Private { .. } | Pattern::PrivateEach => form(PatternKind::Private),
        Pattern::PrivateRuns(_) => form(PatternKind::PrivateRuns),
        Pattern::Block { block_bytes, .. } => PatternForm {
            block_bytes: Some(*block_bytes),
            ..form(PatternKind::Block)
        },
        Pattern::PartialBlock {
            block_bytes,
            part_bytes,
            ..
        } => PatternForm {
            block_bytes: Some(*block_bytes),
            part_bytes: Some([part_bytes.start, part_bytes.end]),
            ..form(PatternKind::PartialBlock)
        },
        Pattern::BlockCyclic {
            block_bytes,
            period_bytes,
            ..
        } => PatternForm {
            block_bytes: Some(*block_bytes),
            period_bytes: Some(*period_bytes),
            ..form(PatternKind::BlockCyclic)
        },
        Pattern::Tiles { block_bytes, .. } => PatternForm {
            block_bytes: Some(*block_bytes),
            ..form(PatternKind::Tiles)
        },
        Pattern::Shared => form(PatternKind::Shared),
        Pattern::ReadShared => form(PatternKind::ReadShared),
        Pattern::Segments(segments) => PatternForm {
            segments: segments
                .iter()
                .map(|segment| SegmentForm {
                    part_bytes: segment.part_bytes(&group.affinity),
                    thread: segment.user.0,
                    share: segment.share,
                })
                .collect(),
            ..form(PatternKind::Segments)
        },
        Pattern::InTurn(patterns) => PatternForm {
            in_turn: patterns
                .iter()
                .map(|pattern| pattern_form(pattern, group, confidence))
                .collect(),
            ..form(PatternKind::InTurn)
        },
        Pattern::Mixed => form(PatternKind::Mixed),
        Pattern::Unknown => form(PatternKind::Unknown),
    }
}
