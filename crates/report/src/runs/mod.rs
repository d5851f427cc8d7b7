//! Comparison of a program's runs: time, local share and objects, with the range over repetitions.

mod condition;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use nearpage_attribution::{Attribution, Names, ObjectGroup};
use nearpage_recording::Recording;
use schemars::JsonSchema;
use serde::Serialize;

pub use condition::Condition;
pub use text::runs_text;

/// Minimum change of an object's share of the cost, or of its local share, that counts as a change.
const CHANGE_MIN: f64 = 0.05;

/// Figures of one recorded run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Folder of the recording.
    recording: String,
    /// Elapsed time of the recording.
    elapsed_ns: f64,
    /// Number of accesses behind the figures.
    accesses: f64,
    /// Accesses to objects, by weight.
    nodes: KnownNodes,
    /// Objects by display name.
    objects: BTreeMap<String, RunObject>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RunObject {
    cost_share: f64,
    nodes: KnownNodes,
}

/// Accesses by weight, for which the page's node is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct KnownNodes {
    /// All accesses to pages whose node is known.
    known: f64,
    /// Part of `known` from CPUs of another node.
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
    /// Figures of a recording; `name` is the folder as typed.
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

/// A figure's distribution over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
struct Spread {
    /// Median; for an even number of runs, the mean of the two middle figures.
    median: f64,
    /// Minimum.
    minimum: f64,
    /// Maximum.
    maximum: f64,
}

impl Spread {
    /// Distribution of figures; `None` without figures.
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

    /// Do the ranges not overlap?
    fn is_apart_from(&self, other: &Self) -> bool {
        self.maximum < other.minimum || other.maximum < self.minimum
    }
}

/// Repeated runs of one setting.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct Setting {
    /// Folders of the recordings.
    recordings: Vec<String>,
    /// Elapsed time of the recordings.
    elapsed_ns: Spread,
    /// Share of accesses to objects that were local, 0 to 1; null: no page's node was recorded.
    local_share: Option<Spread>,
}

/// An object with a changed use.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct ChangedObject {
    /// Display name of the object.
    name: String,
    /// Share of the cost of all objects, 0 to 1, in the first setting; null: no run has the object.
    cost_share_before: Option<Spread>,
    /// Share of the cost of all objects in the other setting.
    cost_share_after: Option<Spread>,
    /// Local share of the object's accesses, 0 to 1, in the first setting; null: unknown.
    local_share_before: Option<Spread>,
    /// Local share of the object's accesses in the other setting.
    local_share_after: Option<Spread>,
}

/// A setting compared with the first setting.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct SettingChange {
    #[serde(flatten)]
    setting: Setting,
    /// Change of the median time, as a share of the first setting's: -0.2 is a fifth less.
    elapsed_change: f64,
    /// Change of the median local share: 0.1 is ten points more; null: unknown.
    local_change: Option<f64>,
    /// Are all runs faster, or all slower, than every run of the first setting?
    elapsed_ranges_apart: bool,
    /// Objects whose share of the cost or local share changed by 5 points or more. The change is also larger than
    /// differences between repetitions, and than twice its standard error. Largest change first.
    objects: Vec<ChangedObject>,
    /// Conditions of `--fail-if` that hold.
    failed: Vec<String>,
}

/// What `compare --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunComparison {
    /// Version of this form.
    version: u32,
    /// The first setting.
    before: Setting,
    /// The other settings, in the order in which they were named.
    after: Vec<SettingChange>,
}

/// Why runs cannot be compared.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunsError {
    /// A condition is on the local share, which is unknown.
    #[error(
        "{condition}: no page's node was recorded in {recordings}, so the local share is unknown"
    )]
    LocalUnknown {
        /// The condition as typed.
        condition: String,
        /// Recordings of the setting.
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
    /// If there is no setting, or a setting has no run.
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

    /// Does any condition hold for a setting?
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
    /// The larger change of the share of the cost and the local share; 0 if repetitions or chance explain the change.
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

/// Change of a share of `accesses` accesses; 0 if the ranges overlap, or the change is less than twice its standard
/// error. The error is computed with an additional access on either side, because a share of 0 or 1 is never certain.
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
