//! Predicted effect of a plan on a machine: the accesses of the recording, one by one, under first touch, under
//! interleaving and under the plan. Queues at memory controllers and links are not modelled, so interleaving looks
//! worse here than where bandwidth is short.

use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Decision, Plan, Subject};
use nearpage_recording::ObjectKind;
use schemars::JsonSchema;
use serde::Serialize;

use crate::auto::may_be_unmatched;
use crate::context::{Context, FirstTouchBasis, Input};
use crate::effect::Tally;
use crate::holder::ResolvedPlacement;
use crate::interleave;
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};
use crate::subject::{decisions_about, subject};

/// Locality and mean latency of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Outcome {
    /// Share of the accesses that are to the accessing thread's own node, 0 to 1.
    pub local_share: f64,
    /// Mean latency of an access in nanoseconds, without contention; absent if the machine's latencies are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_latency_ns: Option<f64>,
    /// Mean distance of an access, 10 being local; present if the machine's latencies are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_distance: Option<f64>,
}

impl Outcome {
    fn new(tally: Tally, knows_latencies: bool) -> Self {
        let mean = match tally.accesses > 0.0 {
            true => tally.weighted / tally.accesses,
            false => 0.0,
        };
        Self {
            local_share: tally.local_share(),
            mean_latency_ns: knows_latencies.then_some(mean),
            mean_distance: (!knows_latencies).then_some(mean),
        }
    }

    /// The mean latency, or distance where no latencies are known.
    pub fn mean(&self) -> f64 {
        self.mean_latency_ns.or(self.mean_distance).unwrap_or(0.0)
    }
}

/// The prediction for the objects of one symbol or call site.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ObjectPrediction {
    /// Position in the report's objects.
    #[serde(rename = "object")]
    pub group: usize,
    /// The object's name.
    pub name: String,
    /// Size of the largest object in bytes.
    pub size_bytes: u64,
    /// Number of objects of this name.
    pub instances: u64,
    /// Accesses, by weight.
    pub accesses: f64,
    /// Share of the recording's cost, 0 to 1.
    pub cost_share: f64,
    /// Placement of its pages by the plan, as plan files write it.
    pub placement: String,
    /// Reason for the decision; null if no decision covers the object.
    pub why: Option<String>,
    /// True if the decision about unmatched memory places the object.
    pub unmatched: bool,
    /// Positions in [`Plan::decisions`] of the decisions that apply, including one about unmatched memory; empty: left
    /// to first touch.
    #[serde(skip)]
    pub decisions: Vec<usize>,
    /// True if it is assumed which thread touched its pages first.
    pub first_touch_assumed: bool,
    /// Number of samples of its accesses; in a trace, number of its accesses.
    pub samples: u64,
    /// Share of resamples of the recording that give the same decision about the object, 0 to 1; absent for traces, for
    /// objects below 1 % of the cost, and for plans that were read from a file without confidences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Share of its accesses that were local during recording; absent where page nodes were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_local_share: Option<f64>,
    /// Its accesses under first touch.
    pub first_touch: Outcome,
    /// Its accesses under interleaving over all nodes with memory.
    pub interleave: Outcome,
    /// Its accesses under the plan.
    pub planned: Outcome,
}

/// Predicted effect of a plan on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Prediction {
    /// Heap objects, mappings and static objects that the plan's process accessed, by descending cost. The heap outside
    /// logged objects is among them if the plan places it or unmatched memory.
    pub objects: Vec<ObjectPrediction>,
    /// Accesses to these objects, by weight.
    pub accesses: f64,
    /// Share of these accesses that were local during recording; absent where page nodes were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_local_share: Option<f64>,
    /// All objects under first touch.
    pub first_touch: Outcome,
    /// All objects interleaved over all nodes with memory.
    pub interleave: Outcome,
    /// All objects under the plan; objects without a decision are under first touch.
    pub planned: Outcome,
}

/// Accesses whose page's node was recorded, and those of them that were remote.
#[derive(Clone, Copy, Default)]
struct Recorded {
    known: f64,
    remote: f64,
}

impl Recorded {
    fn of(group: &ObjectGroup) -> Self {
        Self {
            known: group.loads.node_known + group.stores.node_known,
            remote: group.loads.remote + group.stores.remote,
        }
    }

    fn local_share(self) -> Option<f64> {
        (self.known > 0.0).then(|| 1.0 - self.remote / self.known)
    }
}

/// Predicts the effect of a plan on the accesses of a recording, on the machine of `input`. The plan may be from
/// [`crate::decide()`] or from a file.
pub fn predict(plan: &Plan, input: &Input) -> Prediction {
    let mut context = Context::new(input);
    context.page_bytes = plan.page_bytes.max(1);
    let parameters = Parameters::default();
    let knows_latencies = input.machine.latency_ns.is_some();
    let outcome = |tally| Outcome::new(tally, knows_latencies);
    let mut totals = [Tally::default(); 3];
    let mut recorded = Recorded::default();
    let mut objects = Vec::new();
    for (position, group) in input.attribution.objects.iter().enumerate() {
        let (accesses, cost_share) = context.part(group);
        if accesses <= 0.0 {
            continue;
        }
        let Some(decisions) = decisions_placing(plan, &context, group) else {
            continue;
        };
        let Some(spread) =
            ResolvedPlacement::new(&interleave::everywhere(), &context, group.size_bytes)
        else {
            continue;
        };
        let about: Vec<&Decision> = decisions.iter().map(|&at| &plan.decisions[at]).collect();
        let placings = [
            Placing::Decided(&[]),
            Placing::Spread(&spread),
            Placing::Decided(&about),
        ];
        let under = |placing| placed_accesses::<Tally>(&context, group, placing, &parameters);
        let [
            Some((basis, first_touch)),
            Some((_, spread)),
            Some((_, planned)),
        ] = placings.map(under)
        else {
            continue;
        };
        let tallies = [first_touch, spread, planned];
        if tallies.iter().any(|tally| tally.accesses <= 0.0) {
            continue;
        }
        for (total, tally) in totals.iter_mut().zip(tallies) {
            total.add_scaled(tally, accesses / tally.accesses);
        }
        let own = Recorded::of(group);
        recorded.known += own.known;
        recorded.remote += own.remote;
        let decision = decisions.first().map(|&at| &plan.decisions[at]);
        objects.push(ObjectPrediction {
            group: position,
            name: input.names.of(group),
            size_bytes: group.size_bytes,
            instances: group.instances,
            accesses,
            cost_share,
            placement: decision.map_or("first-touch".to_owned(), |one| one.placement.to_string()),
            why: decision.map(|one| one.why.clone()),
            unmatched: decision.is_some_and(|one| one.subject == Subject::Unmatched),
            decisions,
            first_touch_assumed: basis == FirstTouchBasis::Assumed,
            samples: group.sample_count(),
            confidence: decision.and_then(|one| one.effect.confidence),
            recorded_local_share: own.local_share(),
            first_touch: outcome(tallies[0]),
            interleave: outcome(tallies[1]),
            planned: outcome(tallies[2]),
        });
    }
    objects.sort_by(|a, b| b.cost_share.total_cmp(&a.cost_share));
    Prediction {
        objects,
        accesses: totals[0].accesses,
        recorded_local_share: recorded.local_share(),
        first_touch: outcome(totals[0]),
        interleave: outcome(totals[1]),
        planned: outcome(totals[2]),
    }
}

/// Positions of the decisions that place a group, else of the one about unmatched memory; none for memory that no plan
/// places.
pub(crate) fn decisions_placing(
    plan: &Plan,
    context: &Context,
    group: &ObjectGroup,
) -> Option<Vec<usize>> {
    let mut decisions = plan.decisions.iter();
    let unmatched = decisions
        .position(|decision| decision.subject == Subject::Unmatched)
        .filter(|_| may_be_unmatched(group));
    let own = subject(context.tables, group);
    let decisions = decisions_about(plan, context, group, own.as_ref());
    let is_named = !decisions.is_empty();
    let placeable = match group.kind {
        ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping => true,
        ObjectKind::HeapArea => is_named || unmatched.is_some(),
        ObjectKind::Stack | ObjectKind::Tls | ObjectKind::Code => false,
    };
    placeable.then(|| match is_named {
        true => decisions,
        false => unmatched.into_iter().collect(),
    })
}
