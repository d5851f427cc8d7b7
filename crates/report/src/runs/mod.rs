//! How runs of a program differ: time, local share and objects, with the range over repetitions.

mod condition;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use nearpage_attribution::{Attribution, Names, ObjectGroup};
use nearpage_recording::Recording;
use schemars::JsonSchema;
use serde::Serialize;

pub use condition::Condition;
pub use text::runs_text;

/// An object changed if its share of the cost or its local share differs by as much.
const CHANGE_MIN: f64 = 0.05;

/// What is compared of one recorded run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its folder.
    recording: String,
    /// Elapsed time of what was recorded.
    elapsed_ns: f64,
    /// How many accesses its figures come from.
    accesses: f64,
    /// Accesses of objects, by weight: all whose page's node is known, and of these, local ones.
    nodes: KnownNodes,
    /// By display name.
    objects: BTreeMap<String, RunObject>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RunObject {
    cost_share: f64,
    nodes: KnownNodes,
}

/// Accesses by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct KnownNodes {
    /// Those whose page's node is known.
    known: f64,
    /// Of these: from a CPU of another node.
    remote: f64,
}

impl KnownNodes {
    fn add(&mut self, group: &ObjectGroup) {
        self.known += group.loads.node_known + group.stores.node_known;
        self.remote += group.loads.remote + group.stores.remote;
    }

    fn local_share(&self) -> Option<f64> {
        (self.known > 0.0).then(|| 1.0 - self.remote / self.known)
    }
}

impl Run {
    /// Of a recording, named as it was typed.
    pub fn new(name: String, recording: &Recording, attribution: &Attribution) -> Self {
        let metadata = &recording.metadata;
        let names = Names::new(&recording.tables, &attribution.objects);
        let cost_ns: f64 = attribution.objects.iter().map(ObjectGroup::cost_ns).sum();
        let mut nodes = KnownNodes::default();
        let mut objects: BTreeMap<String, RunObject> = BTreeMap::new();
        for group in &attribution.objects {
            nodes.add(group);
            let object = objects.entry(names.of(group)).or_default();
            object.cost_share += group.cost_ns() / cost_ns.max(f64::MIN_POSITIVE);
            object.nodes.add(group);
        }
        Self {
            recording: name,
            elapsed_ns: metadata.end_ns.saturating_sub(metadata.begin_ns) as f64,
            accesses: attribution.counts.accesses as f64,
            nodes,
            objects,
        }
    }
}

/// A figure of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
struct Spread {
    /// Of an even number of runs: the mean of the two in the middle.
    median: f64,
    /// The least.
    minimum: f64,
    /// The most.
    maximum: f64,
}

impl Spread {
    /// None of no figures.
    fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let (minimum, maximum) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self {
            median,
            minimum,
            maximum,
        })
    }

    /// Do the ranges have no figure in common?
    fn is_apart_from(&self, other: &Self) -> bool {
        self.maximum < other.minimum || other.maximum < self.minimum
    }
}

/// Repetitions of one setting.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct Setting {
    /// Their recordings.
    recordings: Vec<String>,
    /// Elapsed time of what was recorded.
    elapsed_ns: Spread,
    /// Share of the accesses to objects that were to the CPU's own node, 0 to 1; null: no page's node was recorded.
    local_share: Option<Spread>,
}

/// An object that is used otherwise than before.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct ChangedObject {
    /// Its display name.
    name: String,
    /// Its share of the cost of all objects, 0 to 1; null: no run before has the object.
    cost_share_before: Option<Spread>,
    /// The same after.
    cost_share_after: Option<Spread>,
    /// Share of its accesses that were local, 0 to 1; null: unknown.
    local_share_before: Option<Spread>,
    /// The same after.
    local_share_after: Option<Spread>,
}

/// A setting against the first one.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct SettingChange {
    #[serde(flatten)]
    setting: Setting,
    /// Change of the median time as a share of the time before: -0.2 is a fifth less.
    elapsed_change: f64,
    /// Change of the median local share: 0.1 is ten points more; null: unknown.
    local_change: Option<f64>,
    /// Do all its runs differ in time from all runs before, the same way?
    elapsed_ranges_apart: bool,
    /// Objects whose share of the cost or whose local share changed by 5 points or more, by more than repetitions differ,
    /// and by more than twice the standard error of so few accesses; largest change first.
    objects: Vec<ChangedObject>,
    /// Conditions of `--fail-if` that hold.
    failed: Vec<String>,
}

/// What `compare --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunComparison {
    /// Version of this form.
    version: u32,
    /// What the others are compared with.
    before: Setting,
    /// The others, in the order in which they were named.
    after: Vec<SettingChange>,
}

/// Why runs cannot be compared.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunsError {
    /// A condition on the local share, where it is unknown.
    #[error(
        "{condition}: no page's node was recorded in {recordings}, so the local share is unknown"
    )]
    LocalUnknown {
        /// As it was typed.
        condition: String,
        /// Of the setting.
        recordings: String,
    },
}

impl RunComparison {
    /// Compares settings of at least one run each with the first setting.
    ///
    /// # Errors
    /// [`RunsError::LocalUnknown`].
    ///
    /// # Panics
    /// If there is no setting, or one without a run.
    pub fn new(settings: &[Vec<Run>], conditions: &[Condition]) -> Result<Self, RunsError> {
        let (first, others) = settings.split_first().expect("a setting");
        let before = setting(first);
        let mut after = Vec::new();
        for runs in others {
            let setting = setting(runs);
            let mut failed = Vec::new();
            for condition in conditions {
                if condition.holds(&before, &setting)? {
                    failed.push(condition.to_string());
                }
            }
            let local = |setting: &Setting| setting.local_share.map(|share| share.median);
            let before_ns = before.elapsed_ns.median.max(f64::MIN_POSITIVE);
            after.push(SettingChange {
                elapsed_change: setting.elapsed_ns.median / before_ns - 1.0,
                local_change: local(&setting)
                    .zip(local(&before))
                    .map(|(after, before)| after - before),
                elapsed_ranges_apart: setting.elapsed_ns.is_apart_from(&before.elapsed_ns),
                objects: changed_objects(first, runs),
                setting,
                failed,
            });
        }
        Ok(Self {
            version: nearpage_recording::JSON_VERSION,
            before,
            after,
        })
    }

    /// Does a condition hold for a setting?
    pub fn has_failed(&self) -> bool {
        self.after.iter().any(|after| !after.failed.is_empty())
    }
}

fn setting(runs: &[Run]) -> Setting {
    let elapsed = runs.iter().map(|run| run.elapsed_ns);
    Setting {
        recordings: runs.iter().map(|run| run.recording.clone()).collect(),
        elapsed_ns: Spread::of(elapsed).expect("a run"),
        local_share: Spread::of(runs.iter().filter_map(|run| run.nodes.local_share())),
    }
}

fn changed_objects(before: &[Run], after: &[Run]) -> Vec<ChangedObject> {
    let shares = |runs: &[Run], name: &str, share: fn(&RunObject) -> Option<f64>| {
        Spread::of(
            runs.iter()
                .filter_map(|run| run.objects.get(name).and_then(share)),
        )
    };
    let accesses = |runs: &[Run]| runs.iter().map(|run| run.accesses).sum();
    let cost = |object: &RunObject| Some(object.cost_share);
    let local = |object: &RunObject| object.nodes.local_share();
    let names: BTreeSet<&String> = before
        .iter()
        .chain(after)
        .flat_map(|run| run.objects.keys())
        .collect();
    let mut changed: Vec<(f64, ChangedObject)> = names
        .into_iter()
        .filter_map(|name| {
            let object = ChangedObject {
                name: name.clone(),
                cost_share_before: shares(before, name, cost),
                cost_share_after: shares(after, name, cost),
                local_share_before: shares(before, name, local),
                local_share_after: shares(after, name, local),
            };
            let change = object.change([before, after].map(accesses));
            (change >= CHANGE_MIN).then_some((change, object))
        })
        .collect();
    changed.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    changed.into_iter().map(|(_, object)| object).collect()
}

impl ChangedObject {
    /// The larger change of share of the cost and local share; 0 where repetitions or chance explain it.
    fn change(&self, accesses: [f64; 2]) -> f64 {
        const NOTHING: Spread = Spread {
            median: 0.0,
            minimum: 0.0,
            maximum: 0.0,
        };
        let cost =
            [self.cost_share_before, self.cost_share_after].map(|share| share.unwrap_or(NOTHING));
        let own = [0, 1].map(|at| accesses[at] * cost[at].median);
        let local = match (self.local_share_before, self.local_share_after) {
            (Some(before), Some(after)) => change([before, after], own),
            _ => 0.0,
        };
        change(cost, accesses).max(local)
    }
}

/// How much a share of so many accesses changed; 0 where the ranges overlap, or the change is less than twice its standard
/// error (of shares with one access more on either side, as a share of 0 or 1 is never certain).
fn change([before, after]: [Spread; 2], accesses: [f64; 2]) -> f64 {
    let variance = |share: f64, count: f64| {
        let share = (share * count + 1.0) / (count + 2.0);
        share * (1.0 - share) / (count + 2.0)
    };
    let error = (variance(before.median, accesses[0]) + variance(after.median, accesses[1])).sqrt();
    let change = (after.median - before.median).abs();
    match before.is_apart_from(&after) && change > 2.0 * error {
        true => change,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests;
