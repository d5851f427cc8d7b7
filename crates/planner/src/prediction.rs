//! What a plan does on a machine: the accesses of the recording, one by one, under first touch, under
//! interleaving and under the plan. Uncontended: queues at memory controllers and links are not
//! modelled, so interleaving looks worse here than where bandwidth is short.

use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Decision, Plan, Subject};
use nearpage_recording::ObjectKind;

use crate::Parameters;
use crate::auto::may_be_rest;
use crate::effect::Tally;
use crate::holder::Layout;
use crate::interleave;
use crate::plan::{Context, Input};
use crate::subject::{means, names_of_groups, subject};
use crate::under::{Fate, under};

/// How accesses fare.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Share of the accesses that are to the accessing thread's own node, 0 to 1.
    pub local: f64,
    /// Mean weight of an access, in the unit of [`Prediction::unit`].
    pub mean_weight: f64,
}

impl From<Tally> for Outcome {
    fn from(tally: Tally) -> Self {
        let mean_weight = if tally.accesses > 0.0 {
            tally.weighted / tally.accesses
        } else {
            0.0
        };
        Self {
            local: tally.local_share(),
            mean_weight,
        }
    }
}

/// What a machine's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightUnit {
    /// Nanoseconds.
    Nanoseconds,
    /// Relative distance: 10 is local.
    Distance,
}

impl WeightUnit {
    /// As text after a number.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Distance => "distance",
        }
    }
}

/// How it is known who touched an object's pages first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstTouchBasis {
    /// From page faults.
    Observed,
    /// Assumed: by the thread that allocated it, or the main thread for static objects.
    Assumed,
}

/// The prediction for the objects of one symbol or call site.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectPrediction {
    /// Position in the attribution's objects.
    pub group: usize,
    /// Name for people.
    pub name: String,
    /// The largest one's bytes.
    pub size_bytes: u64,
    /// Accesses, by weight.
    pub accesses: f64,
    /// Share of the recording's cost, 0 to 1.
    pub cost_share: f64,
    /// Position in [`Plan::decisions`] of the first decision that applies, be it about the rest; none: left
    /// to first touch.
    pub decision: Option<usize>,
    /// Where first touch comes from.
    pub basis: FirstTouchBasis,
    /// Under first touch.
    pub first_touch: Outcome,
    /// Under interleaving over all nodes with memory.
    pub interleave: Outcome,
    /// Under the plan.
    pub plan: Outcome,
}

/// What a plan does on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The machine's name.
    pub machine: String,
    /// What weights are.
    pub unit: WeightUnit,
    /// Heap objects, mappings and static objects with accesses by the plan's process, by cost,
    /// descending; where the plan places it or the rest, the heap outside logged objects, too.
    pub objects: Vec<ObjectPrediction>,
    /// Their accesses.
    pub accesses: f64,
    /// All of them under first touch.
    pub first_touch: Outcome,
    /// All of them interleaved.
    pub interleave: Outcome,
    /// All of them under the plan; what it does not decide, under first touch.
    pub plan: Outcome,
}

/// Positions of a plan's decisions about a group, which is recognised as `own`; what is placed with the rest has
/// none.
pub(crate) fn decisions_about(
    plan: &Plan,
    context: &Context,
    group: &ObjectGroup,
    own: Option<&Subject>,
) -> Vec<usize> {
    let pages_min = Parameters::default().pages_min;
    let own = own.filter(|_| group.size_bytes >= pages_min * context.page_bytes);
    let applies = |position: &usize| {
        own.is_some_and(|own| means(&plan.decisions[*position].subject, own, group.kind))
    };
    (0..plan.decisions.len()).filter(applies).collect()
}

/// Predicts what a plan does to the accesses of a recording on the machine of `input`. The plan may
/// be one that [`crate::decide`] made, or one that was read from a file.
pub fn predict(plan: &Plan, input: &Input) -> Prediction {
    let mut context = Context::new(input);
    context.page_bytes = plan.page_bytes.max(1);
    let parameters = Parameters::default();
    let mut totals = [Tally::default(); 3];
    let mut objects = Vec::new();
    let mut decisions = plan.decisions.iter();
    let of_rest = decisions.position(|decision| decision.subject == Subject::Rest);
    for (position, group) in input.attribution.objects.iter().enumerate() {
        let (accesses, cost_share) = context.part(group);
        if accesses <= 0.0 {
            continue;
        }
        let rest = of_rest.filter(|_| may_be_rest(group));
        let own = subject(context.tables, group);
        let decisions = decisions_about(plan, &context, group, own.as_ref());
        let is_named = !decisions.is_empty();
        let placeable = match group.kind {
            ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping => true,
            ObjectKind::HeapArea => is_named || rest.is_some(),
            ObjectKind::Stack | ObjectKind::Tls | ObjectKind::Code => false,
        };
        if !placeable {
            continue;
        }
        let decisions = match is_named {
            true => decisions,
            false => rest.into_iter().collect(),
        };
        let Some(spread) = Layout::new(&interleave::everywhere(), &context, group.size_bytes)
        else {
            continue;
        };
        let about: Vec<&Decision> = decisions.iter().map(|&at| &plan.decisions[at]).collect();
        let fates = [
            Fate::Decided(&[]),
            Fate::Spread(&spread),
            Fate::Decided(&about),
        ];
        let under = |fate| under::<Tally>(&context, group, fate, &parameters);
        let [
            Some((basis, first_touch)),
            Some((_, spread)),
            Some((_, planned)),
        ] = fates.map(under)
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
        objects.push(ObjectPrediction {
            group: position,
            name: decisions
                .first()
                .filter(|_| is_named)
                .map(|&first| plan.decisions[first].name.clone())
                .unwrap_or_default(),
            size_bytes: group.size_bytes,
            accesses,
            cost_share,
            decision: decisions.first().copied(),
            basis,
            first_touch: tallies[0].into(),
            interleave: tallies[1].into(),
            plan: tallies[2].into(),
        });
    }
    let unnamed = objects.iter_mut().filter(|object| object.name.is_empty());
    let mut unnamed: Vec<&mut ObjectPrediction> = unnamed.collect();
    let groups = unnamed
        .iter()
        .map(|object| &input.attribution.objects[object.group]);
    let names = names_of_groups(context.tables, &groups.collect::<Vec<_>>());
    for (object, name) in unnamed.iter_mut().zip(names) {
        object.name = name;
    }
    objects.sort_by(|a, b| b.cost_share.total_cmp(&a.cost_share));
    Prediction {
        machine: input.machine.name.clone(),
        unit: if input.machine.latency_ns.is_some() {
            WeightUnit::Nanoseconds
        } else {
            WeightUnit::Distance
        },
        objects,
        accesses: totals[0].accesses,
        first_touch: totals[0].into(),
        interleave: totals[1].into(),
        plan: totals[2].into(),
    }
}
