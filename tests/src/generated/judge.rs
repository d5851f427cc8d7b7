//! Compares a plan with the best static placement.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use nearpage_attribution::{Attribution, ObjectGroup, ObjectName, Operations};
use nearpage_machine::{Machine, NodeId, ThreadPlacement};
use nearpage_plan::Plan;
use nearpage_planner::Analysis;
use nearpage_recording::{ObjectId, Recording};

use super::placed::PlannedHomes;
use super::program::{LINE_BYTES, Object, Program, UNIT_LINES};
use super::run::{Run, Sidecar};
use super::truth::{ObjectTruth, Truth};

/// A page counts as used evenly if no thread's share exceeds an equal share by more than this part of the remainder.
const EVEN_DIFFERENCE_MAX: f64 = 0.25;
/// Two decisions count as equal if they put at least this share of an object's pages on the same nodes.
const SAME_HOMES: f64 = 0.95;

/// Result for an object under a plan.
#[derive(Clone, Debug)]
pub struct JudgedObject {
    /// The object's name.
    pub name: String,
    /// Name of the object's kind.
    pub kind: &'static str,
    /// The object's share of all fetched lines.
    pub share: f64,
    /// Names of acceptable patterns.
    pub expected: Vec<&'static str>,
    /// The detected pattern; empty if the recording does not have the object.
    pub pattern: String,
    /// Is the pattern acceptable, with the right block size?
    pub is_pattern_right: bool,
    /// Samples of the object.
    pub samples: u64,
    /// Confidence in the pattern, 0 to 1; none if it was not computed.
    pub pattern_confidence: Option<f64>,
    /// The plan's confidence in the decision, 0 to 1; none if there is no decision or the plan has no confidence.
    pub decision_confidence: Option<f64>,
    /// The object's share of the cost of all recorded objects.
    pub cost_share: f64,
    /// The decision, in words.
    pub decision: String,
    /// Final node of each used page, by the plan or by first touch.
    pub homes: Vec<NodeId>,
    /// Share of lines on the node of their thread: under the plan, at best, under first touch.
    pub local: [f64; 3],
}

impl JudgedObject {
    /// The plan's local share relative to the best.
    pub fn score(&self) -> f64 {
        part(self.local[0], self.local[1])
    }
}

impl JudgedObject {
    /// The first word of the decision, without sizes and owners.
    fn decided(&self) -> &str {
        let word = self.decision.split([':', ' ', '@']).next();
        match word.unwrap_or_default() {
            // A decision for first touch has the same effect as no decision.
            "first-touch" => "-",
            word => word,
        }
    }

    /// Do both decisions put the pages on the same nodes? Without a decision, pages are as under `block` if each thread
    /// initialises its own. Interleaved pages are equal by definition: their nodes depend on addresses, which differ.
    pub fn is_decided_as(&self, other: &Self) -> bool {
        let pairs = || self.homes.iter().zip(&other.homes);
        let same = pairs().filter(|(one, other)| one == other).count();
        self.decided() == "interleave" && other.decided() == "interleave"
            || same as f64 >= SAME_HOMES * self.homes.len() as f64
    }
}

/// Result for a program under a plan.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Recorded accesses.
    pub accesses: u64,
    /// Local share of the accesses that the plan's file predicts: under first touch, under the plan.
    pub predicted: Option<[f64; 2]>,
    /// Results for the objects, in the program's order.
    pub objects: Vec<JudgedObject>,
    /// Share of lines on the node of their thread: under the plan, at best, under first touch.
    pub local: [f64; 3],
    /// Time to fetch all lines on an unloaded machine, under the plan and under first touch: the sum over objects of
    /// the slowest thread's time. Where one thread fetches most of an object and the others wait for it, a plan may
    /// have more remote lines and still be quicker.
    pub waits_ns: [f64; 2],
}

impl Judgement {
    /// The plan's local share relative to the best.
    pub fn score(&self) -> f64 {
        part(self.local[0], self.local[1])
    }
}

/// `part / whole`, or 1 if the whole is 0.
fn part(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

/// The run of the program in which a plan is judged.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Name of the recording.
    pub recording: &'a str,
    /// Size factor.
    pub size: u64,
    /// Threads of the team.
    pub team: u64,
    /// Number of passes.
    pub passes: u64,
}

/// Judges the plan in a file by a recorded run and the program's known accesses.
///
/// # Errors
/// A recording or plan can't be read or applied.
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
    let placed = PlannedHomes::new(
        &plan,
        &analysis.recording,
        &machine,
        layout,
        executable.as_os_str(),
    )
    .map_err(io::Error::other)?;
    let sidecar = run.sidecar(setting.recording)?;
    let threads = &analysis.recording.tables.threads;
    // As the plan has them, which knows whether the main thread works beside a team. A short recording of another size may
    // not.
    let node_of = |tid: &u32| {
        let found = threads.iter().position(|thread| thread.tid == *tid);
        found.map_or(NodeId(0), |thread| placed.thread_node(thread))
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

/// Unloaded latencies by the CPU's node and the memory's node.
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
    placed: &'a PlannedHomes,
    attribution: &'a Attribution,
    recording: &'a Recording,
    sidecar: &'a Sidecar,
    /// Nodes of the team's threads, then the main thread's.
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
                // The page of the unit's middle, because pieces don't begin at page boundaries.
                let first = unit * UNIT_LINES;
                let count = UNIT_LINES.min(lines - first);
                piece + (2 * first + count) * LINE_BYTES / 2
            })
        })
    }

    /// Lines of an object on the node of their thread: under the plan, at best, under first touch.
    ///
    /// A page that all threads use about equally has no best node: the node with one thread more would be slightly more
    /// local, but its memory would serve everybody. The best placement spreads such pages over the threads' nodes, and
    /// no plan counts as better.
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
            let is_even =
                of_thread as f64 <= (equal + EVEN_DIFFERENCE_MAX * (1.0 - equal)) * all as f64;
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

    /// Time in which the slowest thread fetches its lines of an object: under the plan, under first touch.
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

    /// The recorded group of objects that contains the object's pieces, and the group's position.
    fn group(&self, object: &Object) -> Option<(usize, &ObjectGroup)> {
        let pieces = self.sidecar.pieces.get(&object.name)?;
        let objects = &self.recording.tables.objects;
        // The latest object counts: `realloc` moves an array, and another object may take the old address.
        let born = |id: &ObjectId| {
            let one = &objects[id.0 as usize];
            let range = one.address..one.address + one.size_bytes;
            let has = pieces.iter().any(|address| range.contains(address));
            has.then_some(one.born_ns)
        };
        let groups = self.attribution.objects.iter().enumerate();
        let named = groups.filter(|(_, group)| !matches!(group.name, ObjectName::Other(_)));
        let with_samples = named.filter_map(|(position, group)| {
            let last = group.listed_instances.iter().filter_map(born).max()?;
            Some((last, position, group))
        });
        // Among several, the first: groups are in order of their cost.
        let last = with_samples.reduce(|found, next| if next.0 > found.0 { next } else { found });
        last.map(|(_, position, group)| (position, group))
    }

    /// Number of the object's pages by decision.
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

    /// Words for the decision about most pages of an object.
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

/// Is a pattern, in its `Debug` form, acceptable for the object, with the right block size?
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
