//! Summary of a recording: time lost to memory, the costliest objects and functions, and warnings about the recording.

use nearpage_amount::{counted, percent};
use nearpage_attribution::{Confidence, Names, ObjectGroup, OperationTotals};
use nearpage_recording::Source;
use serde::Serialize;

use crate::opened::{Opened, Stage};

/// Number of named objects.
const OBJECTS: usize = 3;
/// Number of named functions.
const FUNCTIONS: usize = 2;
/// Share of samples or accesses from which a warning is given.
const ODD_SHARE: f64 = 0.05;

#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// Number of recorded accesses.
    samples: u64,
    /// Number of accesses that the recorded accesses stand for.
    accesses: f64,
    /// Share of the program's samples that were accesses to memory, 0 to 1; null if computation is not sampled.
    memory_share: Option<f64>,
    /// Time lost to accesses, in nanoseconds, as in the table of objects.
    cost_ns: f64,
    /// Part of `cost_ns` that was lost to other nodes' memory; null if no page's node is known.
    remote_cost_ns: Option<f64>,
    /// The costliest objects.
    objects: Vec<CostEntry>,
    /// The costliest functions.
    functions: Vec<CostEntry>,
    /// Warnings about the recording.
    warnings: Vec<Warning>,
    /// Share of the accesses that the figures represent, 0 to 1.
    share: f64,
}

#[derive(Debug, Serialize)]
struct CostEntry {
    name: String,
    /// Time lost, in nanoseconds.
    cost_ns: f64,
    /// Share of the cost of all objects, or of all functions.
    cost_share: f64,
    /// Part of `cost_ns` that was lost to other nodes' memory; null for functions, and if no page's node is known.
    remote_cost_ns: Option<f64>,
}

/// A warning about the recording, and the view with details.
#[derive(Debug, PartialEq, Serialize)]
struct Warning {
    words: String,
    view: &'static str,
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn remote(operations: [&OperationTotals; 2]) -> Option<f64> {
    let known: f64 = operations.iter().map(|one| one.node_known).sum();
    (known > 0.0).then(|| operations.iter().map(|one| one.remote_cost_ns).sum())
}

/// Summary of all of the time, or of the selection that `stage` belongs to.
pub(crate) fn summary(opened: &Opened, stage: &Stage, is_selection: bool) -> Summary {
    let attribution = &stage.attribution;
    let groups = &attribution.objects;
    let names = Names::new(&opened.recording.tables, groups);
    let cost_ns = groups
        .iter()
        .map(ObjectGroup::cost_ns)
        .fold(0.0, |sum, cost| sum + cost);
    let of_group = |group: &ObjectGroup| remote([&group.loads, &group.stores]);
    let known: Vec<f64> = groups.iter().filter_map(of_group).collect();
    let counts = attribution.counts;
    let samples = match is_selection {
        true => counts.samples,
        false => opened.recording.access_count(),
    };
    let metadata = &opened.recording.metadata;
    let counts_computation = matches!(metadata.source, Source::Clock | Source::Signal);
    Summary {
        samples,
        accesses: attribution.totals.accesses,
        memory_share: (counts_computation && !is_selection && counts.samples > 0)
            .then(|| share(counts.accesses as f64, counts.samples as f64)),
        cost_ns,
        remote_cost_ns: (!known.is_empty()).then(|| known.iter().sum()),
        objects: groups
            .iter()
            .take(OBJECTS)
            .map(|group| CostEntry {
                name: names.of(group),
                cost_ns: group.cost_ns(),
                cost_share: share(group.cost_ns(), cost_ns),
                remote_cost_ns: of_group(group),
            })
            .collect(),
        functions: functions(opened, stage),
        warnings: warnings(opened, stage, samples, is_selection),
        share: stage.share,
    }
}

fn functions(opened: &Opened, stage: &Stage) -> Vec<CostEntry> {
    let costs = &stage.timeline.functions_cost_ns;
    let all: f64 = costs.iter().sum();
    // The last name stands for all other functions.
    let own = opened.functions.names.iter().zip(costs);
    let own = own.take(costs.len().saturating_sub(1));
    let mut own: Vec<(&String, f64)> = own.map(|(name, &cost)| (name, cost)).collect();
    own.sort_by(|a, b| b.1.total_cmp(&a.1));
    own.into_iter()
        .filter(|(_, cost)| *cost > 0.0)
        .take(FUNCTIONS)
        .map(|(name, cost_ns)| CostEntry {
            name: name.clone(),
            cost_ns,
            cost_share: share(cost_ns, all),
            remote_cost_ns: None,
        })
        .collect()
}

fn warnings(opened: &Opened, stage: &Stage, accesses: u64, is_selection: bool) -> Vec<Warning> {
    let mut found = Vec::new();
    let mut warn = |view, words: String| found.push(Warning { words, view });
    let attribution = &stage.attribution;
    let counts = attribution.counts;
    let source = opened.recording.metadata.source;
    let what = if is_selection {
        "selection"
    } else {
        "recording"
    };
    if accesses == 0 {
        warn(
            "space",
            format!(
                "The {what} has no access to memory: {}.",
                match is_selection {
                    true => "select a longer time",
                    false => "record for longer, or with a higher --rate",
                }
            ),
        );
    } else if (accesses as f64) < Confidence::SAMPLES_SURE && source != Source::Tracer {
        warn(
            "objects",
            format!(
                "Few samples: the {what} has {} to memory; patterns and shares are guesses below {:.0}.",
                counted(accesses, "access"),
                Confidence::SAMPLES_SURE
            ),
        );
    }
    if counts.lost > 0 {
        let all = (counts.samples + counts.lost) as f64;
        let lost = counted(counts.lost, "sample");
        warn(
            "objects",
            format!(
                "{lost} of {all} were lost ({}): the kernel's buffer was full.",
                percent(counts.lost as f64 / all)
            ),
        );
    }
    let undecoded = share(counts.undecoded as f64, counts.samples as f64);
    if undecoded >= ODD_SHARE {
        warn(
            "objects",
            format!(
                "{} of the samples could not be decoded: it is not known which address they accessed.",
                percent(undecoded)
            ),
        );
    }
    if !opened.recording.metadata.marks.is_empty() {
        warn(
            "space",
            "Tables count only the stable phase that the program marked; pictures show all of the time.".to_owned(),
        );
    }
    let elsewhere = share(stage.elsewhere, attribution.totals.accesses);
    if elsewhere >= ODD_SHARE {
        warn(
            "space",
            format!(
                "{} of the accesses were to addresses where no object or module is known: they are in no picture.",
                percent(elsewhere)
            ),
        );
    }
    if let Some(words) = one_node(opened, stage) {
        warn("machine", words);
    }
    found
}

/// Why no access can be remote; `None` if accesses can be remote.
fn one_node(opened: &Opened, stage: &Stage) -> Option<String> {
    let machine = &opened.recording.machine;
    if machine.nodes.len() == 1 {
        return Some(format!(
            "It was made on {}, which has one memory node: every access there is local.",
            machine.name
        ));
    }
    let threads = stage.attribution.threads.iter();
    let working: Vec<_> = threads.filter(|thread| !thread.cpus.is_empty()).collect();
    let cpus = working.iter().flat_map(|thread| &thread.cpus);
    let mut nodes: Vec<_> = cpus.map(|&(cpu, _)| machine.node_of(cpu)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    match nodes[..] {
        [Some(node)] if working.len() > 1 => Some(format!(
            "All {} threads ran on node {node} of {}: `nearpage record --threads scatter` spreads them.",
            working.len(),
            counted(machine.nodes.len() as u64, "node")
        )),
        _ => None,
    }
}
