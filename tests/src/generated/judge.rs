//! A plan against the best static placement.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use nearpage_attribution::{Attribution, ObjectGroup, ObjectName, Operations};
use nearpage_machine::{Machine, NodeId, ThreadPlacement};
use nearpage_plan::Plan;
use nearpage_planner::{Analysis, thread_nodes};
use nearpage_recording::{ObjectId, Recording};

use super::placed::Placed;
use super::program::{LINE_BYTES, Object, Program, UNIT_LINES};
use super::run::{Run, Sidecar};
use super::truth::{ObjectTruth, Truth};

/// A page is used by all threads alike where none has more of the lines than an equal share and so much of the others.
const EVEN: f64 = 0.25;
/// Share of an object's pages that two plans have on the same nodes if they decide the same.
const SAME_HOMES: f64 = 0.95;

/// An object under a plan.
#[derive(Clone, Debug)]
pub struct JudgedObject {
    /// Its name.
    pub name: String,
    /// Its kind's name.
    pub kind: &'static str,
    /// Share of all lines.
    pub share: f64,
    /// Names of patterns that it may have.
    pub expected: Vec<&'static str>,
    /// The pattern that was found; empty: the recording does not have the object.
    pub pattern: String,
    /// It is one of those that it may have, with blocks as large as they are.
    pub is_pattern_right: bool,
    /// Samples that it was found from.
    pub samples: u64,
    /// How sure the pattern is, 0 to 1; none: that was not found out.
    pub pattern_confidence: Option<f64>,
    /// How sure the decision is, 0 to 1, as the plan says; none: there is none, or the plan does not say.
    pub decision_confidence: Option<f64>,
    /// Share of the cost of all recorded objects.
    pub cost_share: f64,
    /// What is decided about it.
    pub decision: String,
    /// The node that each page that is used ends on, by the plan or by first touch.
    pub homes: Vec<NodeId>,
    /// Share of lines on their thread's node: under the plan, at best, under first touch.
    pub local: [f64; 3],
}

impl JudgedObject {
    /// The plan's local share as a part of the best one.
    pub fn score(&self) -> f64 {
        part(self.local[0], self.local[1])
    }
}

impl JudgedObject {
    /// The word of its decision, without sizes and owners.
    fn decided(&self) -> &str {
        let word = self.decision.split([':', ' ', '@']).next();
        match word.unwrap_or_default() {
            // A decision for first touch does what none does.
            "first-touch" => "-",
            word => word,
        }
    }

    /// Do its pages end on the same nodes under both decisions? To leave an object alone is the same as a block for each
    /// thread where each thread fills its own. Pages that are interleaved go by their addresses, which differ.
    pub fn is_decided_as(&self, other: &Self) -> bool {
        let pairs = || self.homes.iter().zip(&other.homes);
        let same = pairs().filter(|(one, other)| one == other).count();
        self.decided() == "interleave" && other.decided() == "interleave"
            || same as f64 >= SAME_HOMES * self.homes.len() as f64
    }
}

/// A program under a plan.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Accesses that were recorded.
    pub accesses: u64,
    /// Share of accesses that are local, as the plan's file predicts it: under first touch, under the plan.
    pub predicted: Option<[f64; 2]>,
    /// In order.
    pub objects: Vec<JudgedObject>,
    /// Share of lines on their thread's node: under the plan, at best, under first touch.
    pub local: [f64; 3],
    /// What fetching all lines takes on an unloaded machine, object after object, each as long as its slowest thread takes:
    /// under the plan, under first touch. Where one thread fetches most of an object and the others wait for it, more lines may
    /// be remote and the program is quicker.
    pub waits_ns: [f64; 2],
}

impl Judgement {
    /// The plan's local share as a part of the best one.
    pub fn score(&self) -> f64 {
        part(self.local[0], self.local[1])
    }
}

/// A part of a whole, 1 of nothing.
fn part(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

/// What a run of the program is, in which a plan is judged.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Name of its recording.
    pub recording: &'a str,
    /// Its size.
    pub size: u64,
    /// Its team.
    pub team: u64,
    /// Its passes.
    pub passes: u64,
}

/// Judges the plan in a file by a recorded run and the truth about it.
///
/// # Errors
/// A recording or a plan that cannot be read or applied.
pub fn judge(program: &Program, run: &Run, plan: &Path, setting: Setting) -> io::Result<Judgement> {
    let truth = Truth::of(program, setting.size, setting.team, setting.passes);
    let folder = run.folder().join(setting.recording);
    let analysis = Analysis::of(&folder, Operations::Both).map_err(io::Error::other)?;
    let machine =
        Machine::by_name_or_path(program.machine, Path::new("/sys")).map_err(io::Error::other)?;
    let layout = match program.layout {
        "scatter" => ThreadPlacement::Scatter,
        _ => ThreadPlacement::Compact,
    };
    let plan = Plan::read(plan).map_err(io::Error::other)?;
    let executable = run.folder().join("program");
    let placed = Placed::new(
        &plan,
        &analysis.recording,
        &machine,
        layout,
        executable.as_os_str(),
    )
    .map_err(io::Error::other)?;
    let sidecar = run.sidecar(setting.recording)?;
    let threads = &analysis.recording.tables.threads;
    let nodes = thread_nodes(&analysis.attribution, threads, &machine, layout, None);
    let node_of = |tid: &u32| {
        let found = threads.iter().position(|thread| thread.tid == *tid);
        found.map_or(NodeId(0), |thread| nodes[thread])
    };
    let judge = Judge {
        plan: &plan,
        placed: &placed,
        attribution: &analysis.attribution,
        recording: &analysis.recording,
        nodes: sidecar.threads.iter().map(node_of).collect(),
        latency_ns: latencies(&machine)?,
        sidecar: &sidecar,
    };
    Ok(judge.all(program, &truth, setting))
}

/// Unloaded latencies by the CPU's and the memory's node.
fn latencies(machine: &Machine) -> io::Result<BTreeMap<[NodeId; 2], f64>> {
    let timing = machine.timing().map_err(io::Error::other)?;
    let numbered = || machine.nodes.iter().enumerate();
    let pairs = numbered().flat_map(|one| numbered().map(move |other| [one, other]));
    Ok(pairs
        .map(|[(at, from), (of, to)]| ([from.id, to.id], timing.latency_ns[at][of]))
        .collect())
}

struct Judge<'a> {
    plan: &'a Plan,
    placed: &'a Placed,
    attribution: &'a Attribution,
    recording: &'a Recording,
    sidecar: &'a Sidecar,
    /// Of each thread of the team, and of the main thread.
    nodes: Vec<NodeId>,
    latency_ns: BTreeMap<[NodeId; 2], f64>,
}

impl Judge<'_> {
    fn all(&self, program: &Program, truth: &Truth, setting: Setting) -> Judgement {
        let all = truth.fetched() as f64;
        let cost: f64 = self
            .attribution
            .objects
            .iter()
            .map(ObjectGroup::cost_ns)
            .sum();
        let confidences = self.attribution.pattern_confidence();
        let (mut sums, mut waits_ns) = ([0.0; 3], [0.0; 2]);
        let mut objects = Vec::new();
        for (object, truth) in program.objects.iter().zip(&truth.objects) {
            let lines = self.lines(object, truth, setting);
            for (sum, lines) in sums.iter_mut().zip(lines) {
                *sum += lines;
            }
            let own_ns = self.waits_ns(object, truth, setting);
            for (sum, own_ns) in waits_ns.iter_mut().zip(own_ns) {
                *sum += own_ns;
            }
            let group = self.group(object);
            let confidence = group.and_then(|(position, _)| confidences[position]);
            let group = group.map(|(_, group)| group);
            let pattern = group.map_or(String::new(), |group| format!("{:?}", group.pattern));
            let fetched = truth.fetched() as f64;
            let expected = program.patterns(object);
            objects.push(JudgedObject {
                name: object.name.clone(),
                kind: object.kind.name(),
                share: fetched / all,
                is_pattern_right: is_right(object, &expected, setting, &pattern),
                expected,
                pattern,
                samples: group.map_or(0, ObjectGroup::sample_count),
                pattern_confidence: confidence.map(|confidence| confidence.share),
                decision_confidence: self
                    .most_decided(object, truth, setting)
                    .and_then(|at| self.plan.decisions[at].effect.confidence),
                cost_share: group.map_or(0.0, |group| part(group.cost_ns(), cost)),
                decision: self.decision(object, truth, setting),
                homes: self
                    .addresses(object, truth, setting)
                    .enumerate()
                    .filter(|(unit, _)| {
                        let mut threads = truth.unit(*unit as u64).iter();
                        threads.any(|one| one.fetched > 0)
                    })
                    .map(|(unit, address)| {
                        let first = self.nodes[truth.initialiser(unit as u64)];
                        self.placed.node(address).unwrap_or(first)
                    })
                    .collect(),
                local: lines.map(|lines| part(lines, fetched)),
            });
        }
        let counts = &self.attribution.counts;
        Judgement {
            accesses: counts.accesses,
            predicted: self
                .plan
                .predicted
                .map(|predicted| [predicted.local_before, predicted.local_after]),
            objects,
            local: sums.map(|sum| part(sum, all)),
            waits_ns,
        }
    }

    /// Addresses of an object's units.
    fn addresses(
        &self,
        object: &Object,
        truth: &ObjectTruth,
        setting: Setting,
    ) -> impl Iterator<Item = u64> {
        let pieces = self.sidecar.pieces.get(&object.name);
        let pieces = pieces.into_iter().flatten();
        let lines = object.pieces(setting.size, setting.team).1;
        let units = truth.piece_units;
        pieces.flat_map(move |&piece| {
            (0..units).map(move |unit| {
                // The page of its middle: pieces do not begin with pages.
                let first = unit * UNIT_LINES;
                let count = UNIT_LINES.min(lines - first);
                piece + (2 * first + count) * LINE_BYTES / 2
            })
        })
    }

    /// Lines of an object that are on their thread's node: under the plan, at best, under first touch.
    ///
    /// A page that all threads use about as much has no best node: all of them on the node with a thread more than
    /// others would be a little more local, and that node's memory would serve everybody. At best such pages are
    /// spread over the threads' nodes, and no plan counts as better.
    fn lines(&self, object: &Object, truth: &ObjectTruth, setting: Setting) -> [f64; 3] {
        let team = &self.nodes[..setting.team as usize];
        let nodes_used = team.iter().collect::<BTreeSet<_>>().len() as f64;
        let (mut owned, mut even) = ([0.0; 3], [0.0; 3]);
        for (unit, address) in self.addresses(object, truth, setting).enumerate() {
            let threads = truth.unit(unit as u64);
            let mut by_node: BTreeMap<NodeId, u64> = BTreeMap::new();
            for (thread, unit) in threads.iter().enumerate() {
                *by_node.entry(self.nodes[thread]).or_default() += unit.fetched;
            }
            let on = |node: NodeId| by_node.get(&node).copied().unwrap_or(0) as f64;
            let first = self.nodes[truth.initialiser(unit as u64)];
            let all: u64 = by_node.values().sum();
            let most = by_node.values().copied().max().unwrap_or(0) as f64;
            let of_thread = threads.iter().map(|unit| unit.fetched).max().unwrap_or(0);
            let equal = 1.0 / setting.team as f64;
            let is_even = of_thread as f64 <= (equal + EVEN * (1.0 - equal)) * all as f64;
            let (sums, best) = match is_even {
                true => (&mut even, all as f64 / nodes_used),
                false => (&mut owned, most),
            };
            let planned = on(self.placed.node(address).unwrap_or(first));
            for (sum, lines) in sums.iter_mut().zip([planned, best, on(first)]) {
                *sum += lines;
            }
        }
        [0, 1, 2].map(|at| owned[at] + even[at].min(even[1]))
    }

    /// What the slowest thread takes to fetch its lines of an object: under the plan, under first touch.
    fn waits_ns(&self, object: &Object, truth: &ObjectTruth, setting: Setting) -> [f64; 2] {
        let mut by_thread = vec![[0.0; 2]; self.nodes.len()];
        for (unit, address) in self.addresses(object, truth, setting).enumerate() {
            let first = self.nodes[truth.initialiser(unit as u64)];
            let homes = [self.placed.node(address).unwrap_or(first), first];
            for (thread, unit) in truth.unit(unit as u64).iter().enumerate() {
                for (sum, home) in by_thread[thread].iter_mut().zip(homes) {
                    let each_ns = self.latency_ns.get(&[self.nodes[thread], home]);
                    *sum += unit.fetched as f64 * each_ns.copied().unwrap_or(0.0);
                }
            }
        }
        let most = |at: usize| by_thread.iter().map(|sums| sums[at]).fold(0.0, f64::max);
        [most(0), most(1)]
    }

    /// The recorded objects that an object's pieces are among, and their position.
    fn group(&self, object: &Object) -> Option<(usize, &ObjectGroup)> {
        let pieces = self.sidecar.pieces.get(&object.name)?;
        let objects = &self.recording.tables.objects;
        // The last one that was there: `realloc` moves an array, and another object may have the place where it was.
        let born = |id: &ObjectId| {
            let one = &objects[id.0 as usize];
            let range = one.address..one.address + one.size_bytes;
            let has = pieces.iter().any(|address| range.contains(address));
            has.then_some(one.born_ns)
        };
        let groups = self.attribution.objects.iter().enumerate();
        let named = groups.filter(|(_, group)| !matches!(group.name, ObjectName::Other(_)));
        let with_samples = named.filter_map(|(position, group)| {
            let last = group.samples.iter().filter_map(born).max()?;
            Some((last, position, group))
        });
        // Of several, the first: the one with most of the cost.
        let last = with_samples.reduce(|found, next| if next.0 > found.0 { next } else { found });
        last.map(|(_, position, group)| (position, group))
    }

    /// How many pages of an object each decision is about.
    fn decided(
        &self,
        object: &Object,
        truth: &ObjectTruth,
        setting: Setting,
    ) -> BTreeMap<Option<usize>, u64> {
        let mut counts = BTreeMap::new();
        for address in self.addresses(object, truth, setting) {
            *counts.entry(self.placed.decision(address)).or_default() += 1;
        }
        counts
    }

    /// The decision about most pages of an object.
    fn most_decided(
        &self,
        object: &Object,
        truth: &ObjectTruth,
        setting: Setting,
    ) -> Option<usize> {
        let counts = self.decided(object, truth, setting).into_iter();
        counts.max_by_key(|&(_, pages)| pages)?.0
    }

    /// What is decided about an object: of its pages, most.
    fn decision(&self, object: &Object, truth: &ObjectTruth, setting: Setting) -> String {
        let several = self.decided(object, truth, setting).len();
        let words = match self.most_decided(object, truth, setting) {
            Some(decision) => {
                let text = self.plan.decisions[decision].placement.to_string();
                text.chars().take(60).collect()
            }
            None => "-".to_owned(),
        };
        match several {
            0 | 1 => words,
            _ => format!("{words} and {} more", several - 1),
        }
    }
}

/// Is a pattern, as `Debug` prints it, one that the object may have, with blocks as large as they are?
fn is_right(object: &Object, expected: &[&str], setting: Setting, pattern: &str) -> bool {
    let name = pattern.split([' ', '{', '(']).next().unwrap_or_default();
    if !expected.contains(&name) {
        return false;
    }
    if name == "InTurn" {
        let parts = object.kind.in_turn();
        return parts.iter().all(|part| {
            pattern.contains(&format!("[{part} {{")) || pattern.contains(&format!(", {part} {{"))
        });
    }
    let Setting { size, team, .. } = setting;
    let lines = object.lines_at(size, team);
    let block = object.kind.block_lines(lines, team);
    let found = pattern
        .split_once("block_bytes: ")
        .and_then(|(_, rest)| rest.split([',', ' ', '}']).next()?.parse::<f64>().ok());
    match (block, found) {
        (Some(block), Some(found)) => {
            let bytes = (block * LINE_BYTES) as f64;
            (found - bytes).abs() <= (bytes / 10.0).max(4096.0)
        }
        _ => true,
    }
}
