//! What a plan does on a machine: the accesses of the recording, one by one, under first touch, under
//! interleaving and under the plan. Uncontended: queues at memory controllers and links are not
//! modelled, so interleaving looks worse here than where bandwidth is short.

use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Placement, Plan, Subject};
use nearpage_recording::{ObjectKind, ThreadIndex};

use crate::Parameters;
use crate::effect::{Tally, under_first_touch, under_layout};
use crate::holder::{Holder, Layout};
use crate::instances::{self, Instances};
use crate::interleave;
use crate::plan::{Context, Input};
use crate::subject::{means, names, subject};

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
    /// Position in [`Plan::decisions`] of the first decision that applies; none: left to first touch.
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
    /// descending.
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

/// Predicts what a plan does to the accesses of a recording on the machine of `input`. The plan may
/// be one that [`crate::decide`] made, or one that was read from a file.
pub fn predict(plan: &Plan, input: &Input) -> Prediction {
    let mut context = Context::new(input);
    context.page_bytes = plan.page_bytes.max(1);
    let parameters = Parameters::default();
    let mut totals = [Tally::default(); 3];
    let mut objects = Vec::new();
    for (position, group) in input.attribution.objects.iter().enumerate() {
        let (accesses, cost_share) = context.part(group);
        let placeable = matches!(
            group.kind,
            ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping
        );
        if !placeable || accesses <= 0.0 {
            continue;
        }
        let own = subject(context.tables, group);
        let worth_placing = group.size_bytes >= parameters.pages_min * context.page_bytes;
        let decisions: Vec<usize> = match &own {
            Some(own) if worth_placing => {
                let applies =
                    |position: &usize| means(&plan.decisions[*position].subject, own, group.kind);
                (0..plan.decisions.len()).filter(applies).collect()
            }
            _ => Vec::new(),
        };
        let Some((basis, tallies)) = tallies(&context, group, plan, &decisions, &parameters) else {
            continue;
        };
        for (total, tally) in totals.iter_mut().zip(tallies) {
            total.add_scaled(tally, accesses / tally.accesses);
        }
        let name = own.as_ref().and_then(|own| names(own).into_iter().next());
        objects.push(ObjectPrediction {
            group: position,
            name: decisions
                .first()
                .map(|&first| plan.decisions[first].name.clone())
                .or(name)
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

/// A group under first touch, interleaving and the plan; none without accesses by page.
fn tallies(
    context: &Context,
    group: &ObjectGroup,
    plan: &Plan,
    decisions: &[usize],
    parameters: &Parameters,
) -> Option<(FirstTouchBasis, [Tally; 3])> {
    let spread = Layout::new(&interleave::everywhere(), context, group.size_bytes)?;
    let layout = |position: usize| {
        Layout::new(
            &plan.decisions[position].placement,
            context,
            group.size_bytes,
        )
    };
    let by_instance = !matches!(
        instances::of(context, group, parameters),
        Instances::Together
    );
    let (basis, tallies) = if by_instance {
        let first_touch = over_instances(context, group, |_, allocator| Some(allocator), None);
        let interleaved = over_instances(context, group, |_, _| None, Some(&spread));
        let planned = instances_planned(context, group, plan, decisions);
        (
            FirstTouchBasis::Assumed,
            [first_touch, interleaved, planned],
        )
    } else {
        let (basis, first_touch) = match under_first_touch(context, group) {
            Some(tally) => (FirstTouchBasis::Observed, tally),
            None => {
                let toucher = Layout::Whole(Holder::Thread(assumed_toucher(context, group)?));
                (
                    FirstTouchBasis::Assumed,
                    under_layout(context, group, &toucher),
                )
            }
        };
        let planned = decisions.first().and_then(|&first| layout(first));
        let planned = planned.map_or(first_touch, |layout| under_layout(context, group, &layout));
        (
            basis,
            [first_touch, under_layout(context, group, &spread), planned],
        )
    };
    tallies
        .iter()
        .all(|tally| tally.accesses > 0.0)
        .then_some((basis, tallies))
}

/// Who is taken to have touched an object first: the thread that allocated it, else the main thread.
pub(crate) fn assumed_toucher(context: &Context, group: &ObjectGroup) -> Option<ThreadIndex> {
    let objects = &context.tables.objects;
    let allocator = group
        .samples
        .iter()
        .find_map(|id| objects.get(id.0 as usize)?.thread);
    let allocator = allocator.filter(|&thread| context.places.knows(thread));
    let threads = context.tables.threads.iter().zip(0..);
    let main = || {
        threads
            .clone()
            .find(|(thread, index)| thread.order == 0 && context.places.knows(ThreadIndex(*index)))
    };
    let any = || {
        group
            .threads
            .iter()
            .map(|thread| thread.0)
            .find(|&thread| context.places.knows(thread))
    };
    allocator
        .or_else(|| main().map(|(_, index)| ThreadIndex(index)))
        .or_else(any)
}

/// Adds up a group's sampled instances, each held by the thread that `holder` says (given its
/// position and its allocating thread), or spread.
fn over_instances(
    context: &Context,
    group: &ObjectGroup,
    holder: impl Fn(usize, ThreadIndex) -> Option<ThreadIndex>,
    spread: Option<&Layout>,
) -> Tally {
    let all: f64 = group
        .threads
        .iter()
        .map(|(_, loads, stores, _)| loads + stores)
        .sum();
    let mut tally = Tally::default();
    for (position, (id, user)) in group.samples.iter().zip(&group.users).enumerate() {
        let object = context.tables.objects.get(id.0 as usize);
        let allocator = object
            .and_then(|object| object.thread)
            .unwrap_or(user.thread);
        let holder = match (holder(position, allocator), spread) {
            (Some(thread), _) => Holder::Thread(thread),
            (None, Some(spread)) => spread.holder(0),
            (None, None) => continue,
        };
        tally.add(context, user.thread, user.accesses * user.share, holder);
        // Whose the other accesses are was not kept: as the group's on the whole.
        let others = user.accesses * (1.0 - user.share) / all.max(f64::MIN_POSITIVE);
        for &(thread, loads, stores, _) in &group.threads {
            tally.add(context, thread, others * (loads + stores), holder);
        }
    }
    tally
}

fn instances_planned(
    context: &Context,
    group: &ObjectGroup,
    plan: &Plan,
    decisions: &[usize],
) -> Tally {
    let owner = |position: usize, allocator: ThreadIndex| {
        let object = group
            .samples
            .get(position)
            .and_then(|id| context.tables.objects.get(id.0 as usize))?;
        let creation = context
            .tables
            .threads
            .get(allocator.0 as usize)
            .map(|thread| thread.order);
        decisions
            .iter()
            .map(|&decision| &plan.decisions[decision])
            .find_map(|decision| {
                if let Subject::CallSite { order, thread, .. } = &decision.subject {
                    let fits = order
                        .is_none_or(|(first, last)| (first..=last).contains(&object.order))
                        && thread.is_none_or(|thread| Some(thread) == creation);
                    if !fits {
                        return None;
                    }
                }
                match (
                    &decision.placement,
                    Layout::new(&decision.placement, context, group.size_bytes)?,
                ) {
                    (Placement::Whole(_), Layout::Whole(Holder::Thread(thread))) => Some(thread),
                    _ => None,
                }
            })
    };
    // Where decisions for the whole call site spread its objects, page by page is all that is known.
    let whole = decisions.first().map(|&first| &plan.decisions[first]);
    let layout = whole
        .filter(|decision| !matches!(decision.placement, Placement::Whole(_)))
        .and_then(|decision| Layout::new(&decision.placement, context, group.size_bytes));
    match layout {
        Some(layout) => under_layout(context, group, &layout),
        None => over_instances(
            context,
            group,
            |position, allocator| owner(position, allocator).or(Some(allocator)),
            None,
        ),
    }
}
