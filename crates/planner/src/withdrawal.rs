//! Withdraws plans of `auto`, or their decisions, whose saving is in doubt. Decisions stay that hardly make an access
//! slower: they have nothing to lose.

use std::mem;

use nearpage_amount::percent;
use nearpage_plan::{Decision, Placement, Plan, Start, Subject, is_slower};

use crate::auto::{self, Model, Times};
use crate::context::{Context, Input};
use crate::group::first_touched;
use crate::interval::{Doubt, Uncertainty, change, of_model};
use crate::model_error::ErrorSource;
use crate::parameters::Parameters;
use crate::subject::{decisions_about, subject};

/// How sure the saving of a plan of `auto` is, or why the plan was withdrawn.
pub(crate) type Saving = Result<Uncertainty, String>;

/// Withdraws a plan of `auto` whose saving is in doubt, except decisions that can hardly lose. None if the plan places
/// nothing, or nothing can be predicted. `is_traced`: the input has all accesses.
pub(crate) fn withdraw(
    plan: &mut Plan,
    input: &Input,
    parameters: &Parameters,
    is_traced: bool,
) -> Option<Saving> {
    if !plan.decisions.iter().any(places) {
        return None;
    }
    let (saved, found) = match predicted(plan, input, parameters, is_traced)? {
        Ok(found) => found,
        Err(why) => return Some(Err(why)),
    };
    let why = match found.doubt {
        Doubt::None => return Some(Ok(found)),
        Doubt::Samples => {
            let [least, most] = found.all_threads_change?.map(|change| -100.0 * change);
            format!(
                "with so few samples, what it saves of all threads' time lies between {most:+.1} % and {least:+.1} % (nine \
                 recordings in ten)"
            )
        }
        Doubt::Model => format!(
            "on machines {} most plans with no more than {} to save lost",
            found.model?.class.as_str(),
            percent(found.model?.turns_below)
        ),
    };
    // Errors measured by this user count for more than known latencies.
    let was_measured = found.doubt == Doubt::Model
        && found
            .model
            .is_some_and(|model| model.source == ErrorSource::History);
    if !was_measured && keep_what_loses_nothing(plan, input, parameters) {
        return Some(predicted(plan, input, parameters, is_traced)?.map(|(_, found)| found));
    }
    plan.decisions.clear();
    Some(Err(format!(
        "everything is left to first touch: the best plan would save {} of the time, but {why}",
        percent(saved)
    )))
}

/// The predicted saving of a plan, as a share of the time of the scaled run, and how sure it is; or why the plan, which
/// is slower, was withdrawn.
fn predicted(
    plan: &mut Plan,
    input: &Input,
    parameters: &Parameters,
    is_traced: bool,
) -> Option<Result<(f64, Uncertainty), String>> {
    let modelled = Model::new(input, parameters)?.expected_times(plan);
    let uncertainty = |plan: &Plan| of_model(is_traced, plan, input, parameters, &modelled);
    let saved = -change(&modelled.0[1]);
    Some(withdraw_slower(plan, &modelled, uncertainty).map(|found| (saved, found)))
}

/// Withdraws a plan that is slower by the slowest thread, in a run as long as the recorded one or in the scaled one,
/// and says so. If it is only a little slower, all threads together have to be slower, too: chance changes most which
/// thread is the slowest. For the same reason, a plan that is clearly slower stays if that is in doubt and all threads
/// together are surely quicker. A plan that only spreads pages is withdrawn all the same: such decisions follow from who
/// uses which part, not from times. Otherwise returns how sure the times are, which takes long to find out.
fn withdraw_slower(
    plan: &mut Plan,
    (times, of_all): &([Times; 2], f64),
    uncertainty: impl FnOnce(&Plan) -> Uncertainty,
) -> Result<Uncertainty, String> {
    let spreads = |one: &Decision| {
        matches!(
            one.placement,
            Placement::Interleave { .. } | Placement::FirstTouch
        )
    };
    let only_spreads = plan.decisions.iter().all(spreads);
    let slower = times.iter().map(change).fold(f64::NEG_INFINITY, f64::max);
    let is_clearly_slower = |one: &Times| is_slower([one.first_touch_ns, one.planned_ns]);
    let is_slower_for_all = slower > 0.0 && (*of_all > 0.0 || only_spreads);
    if !is_slower_for_all {
        let found = uncertainty(plan);
        if !times.iter().any(is_clearly_slower) || found.is_quicker_together() {
            return Ok(found);
        }
    }
    let what = match only_spreads {
        true => "spreading what all threads use",
        false => "the best plan",
    };
    plan.decisions.clear();
    Err(format!(
        "everything is left to first touch: {what} would take {} longer",
        percent(slower)
    ))
}

/// Does a decision place pages, rather than leave them to first touch?
fn places(decision: &Decision) -> bool {
    decision.placement != Placement::FirstTouch || decision.start != Start::Allocation
}

/// Keeps a plan's decisions that hardly make an access slower, each judged by itself: they have nothing to lose. False
/// if there is none. Decisions for first touch stay: they keep objects apart from the memory around them, which another
/// decision may place. A decision that is not kept becomes such a one where its object lies in memory that is placed.
fn keep_what_loses_nothing(plan: &mut Plan, input: &Input, parameters: &Parameters) -> bool {
    let Ok(timing) = input.machine.timing() else {
        return false;
    };
    let context = Context::new(input);
    let mut is_kept = vec![false; plan.decisions.len()];
    let mut apart = vec![None; plan.decisions.len()];
    for group in &input.attribution.objects {
        let own = subject(context.tables, group);
        let about = decisions_about(plan, &context, group, own.as_ref());
        for &at in &about {
            let subject = plan.decisions[at].subject.clone();
            apart[at] = Some(first_touched(&context, group, subject, parameters));
        }
        // It is unknown what several decisions about the objects of one call site make slower.
        let &[at] = about.as_slice() else {
            continue;
        };
        let decision = &plan.decisions[at];
        let latency_ns = &timing.latency_ns;
        is_kept[at] = auto::loses_nothing(&context, group, decision, latency_ns, parameters)
            || auto::relieves_one_node(&context, group, decision, parameters);
    }
    keep(plan, &is_kept, apart);
    plan.decisions.iter().any(places)
}

/// Leaves out the decisions of a plan that are not kept. Where their objects lie in memory that is placed, decisions that
/// keep them apart from it replace them.
fn keep(plan: &mut Plan, is_kept: &[bool], apart: Vec<Option<Decision>>) {
    let is_placed = |is_around: fn(&Subject) -> bool| {
        let mut kept = plan.decisions.iter().zip(is_kept).filter(|one| *one.1);
        kept.any(|(one, _)| is_around(&one.subject) && places(one))
    };
    let unmatched_is_placed = is_placed(|one| *one == Subject::Unmatched);
    let heap_is_placed = is_placed(Subject::is_brk_heap);
    let decisions = mem::take(&mut plan.decisions).into_iter();
    let left = |((decision, is_kept), apart): ((Decision, &bool), Option<Decision>)| {
        if *is_kept || !places(&decision) {
            return Some(decision);
        }
        let is_of_heap = matches!(decision.subject, Subject::CallSite { .. });
        apart.filter(|_| unmatched_is_placed || heap_is_placed && is_of_heap)
    };
    plan.decisions = decisions.zip(is_kept).zip(apart).filter_map(left).collect();
}

#[cfg(test)]
mod tests {
    use nearpage_machine::NodeId;
    use nearpage_plan::Owner;

    use super::*;
    use crate::interval::of_replay;
    use crate::interval::tests::{with_blocks, with_threads};
    use crate::model_error::MachineClass;
    use crate::{ModelErrors, Planner, Policy};

    fn planned(planner: &Planner, policy: Policy) -> Plan {
        let plans = planner.plans(policy, &Parameters::default());
        plans.unwrap().remove(0)
    }

    #[test]
    fn a_plan_that_only_spreads_is_withdrawn_if_spreading_is_slower() {
        // All accesses of the only thread are local under first touch.
        with_threads(&[0], 1e6, |planner, input| {
            let mut plan = planned(planner, Policy::Interleave);
            assert!(!plan.decisions.is_empty());
            let saving = withdraw(&mut plan, input, &Parameters::default(), false).unwrap();
            let why = saving.unwrap_err();
            assert!(
                why.contains("spreading what all threads use would take"),
                "{why}"
            );
            assert_eq!(plan.decisions, []);
        });
        // Three of four threads have remote accesses under first touch, too.
        with_blocks(1e6, |planner, input| {
            let mut plan = planned(planner, Policy::Interleave);
            let decisions = plan.decisions.clone();
            let saving = withdraw(&mut plan, input, &Parameters::default(), false).unwrap();
            assert!(saving.is_ok(), "{saving:?}");
            assert_eq!(plan.decisions, decisions);
        });
    }

    #[test]
    fn what_keeps_objects_apart_stays_with_what_is_placed() {
        with_blocks(1e6, |planner, input| {
            let parameters = Parameters::default();
            let mut plan = planned(planner, Policy::Object);
            let placed = plan.decisions.clone();
            // An object that no sample has shown, in memory that the plan places.
            let apart = Decision {
                subject: Subject::CallSite {
                    frames: Vec::new(),
                    size_bytes: 1 << 16,
                    order: None,
                    thread: None,
                },
                placement: Placement::FirstTouch,
                start: Start::Allocation,
                ..placed[0].clone()
            };
            plan.decisions.push(apart.clone());
            assert!(keep_what_loses_nothing(&mut plan, input, &parameters));
            assert!(plan.decisions.iter().any(places), "{placed:?}");
            assert_eq!(plan.decisions.last(), Some(&apart));
            // Alone it has nothing to be kept apart from.
            plan.decisions.retain(|one| !places(one));
            assert!(!keep_what_loses_nothing(&mut plan, input, &parameters));
        });
    }

    #[test]
    fn what_is_withdrawn_from_placed_memory_is_kept_apart_from_it() {
        with_blocks(1e6, |planner, _| {
            let mut plan = planned(planner, Policy::Object);
            let of_object = plan.decisions[0].clone();
            let apart = Decision {
                placement: Placement::FirstTouch,
                start: Start::Allocation,
                ..of_object.clone()
            };
            let unmatched = Decision {
                subject: Subject::Unmatched,
                ..of_object.clone()
            };
            for (kept, left) in [(of_object.clone(), None), (unmatched, Some(&apart))] {
                plan.decisions = vec![of_object.clone(), kept.clone()];
                keep(&mut plan, &[false, true], vec![Some(apart.clone()), None]);
                let expected: Vec<Decision> = left.into_iter().cloned().chain([kept]).collect();
                assert_eq!(plan.decisions, expected);
            }
        });
    }

    #[test]
    fn what_is_left_of_a_plan_is_withdrawn_if_it_only_spreads_and_is_slower() {
        let parameters = Parameters::default();
        with_threads(&[0], 1e6, |planner, input| {
            let mut plan = planned(planner, Policy::Interleave);
            let saving = predicted(&mut plan, input, &parameters, false).unwrap();
            assert!(saving.is_err(), "{saving:?}");
            assert_eq!(plan.decisions, []);
        });
        with_blocks(1e6, |planner, input| {
            let mut plan = planned(planner, Policy::Interleave);
            let saving = predicted(&mut plan, input, &parameters, false).unwrap();
            assert!(saving.is_ok(), "{saving:?}");
            assert!(!plan.decisions.is_empty());
        });
    }

    /// The only thread uses memory of its own node under first touch.
    #[test]
    fn a_plan_that_is_slower_in_both_ways_of_waiting_is_withdrawn() {
        let parameters = Parameters::default();
        for is_traced in [false, true] {
            with_threads(&[0], 1e6, |planner, input| {
                let mut plan = planned(planner, Policy::Interleave);
                for one in &mut plan.decisions {
                    one.placement = Placement::Whole(Owner::Node(NodeId(3)));
                }
                let saving = withdraw(&mut plan, input, &parameters, is_traced).unwrap();
                let why = saving.unwrap_err();
                assert!(why.contains("the best plan would take"), "{why}");
                assert_eq!(plan.decisions, []);
            });
        }
    }

    #[test]
    fn a_slower_plan_stays_only_if_all_threads_together_are_surely_quicker() {
        with_blocks(1e6, |planner, _| {
            let is_withdrawn = |longer: f64, of_all: f64, bounds: [f64; 2], of_all_most: f64| {
                let mut plan = planned(planner, Policy::Object);
                let time = Times {
                    first_touch_ns: 1e9,
                    planned_ns: 1e9 * (1.0 + longer),
                };
                let uncertainty = Uncertainty {
                    scaled_change: Some(bounds),
                    all_threads_change: Some([-0.5, of_all_most]),
                    ..of_replay(&time, None)
                };
                let found = withdraw_slower(&mut plan, &([time; 2], of_all), |_| uncertainty);
                assert_eq!(found.is_err(), plan.decisions.is_empty());
                found.is_err()
            };
            let sure = [0.001, 0.02];
            assert!(is_withdrawn(0.01, -0.1, sure, -0.05), "clearly slower");
            let unsure = [-0.02, 0.04];
            assert!(is_withdrawn(0.01, -0.1, unsure, 0.05));
            assert!(
                !is_withdrawn(0.01, -0.1, unsure, -0.05),
                "all threads are surely quicker"
            );
            assert!(
                !is_withdrawn(0.004, -0.1, sure, 0.05),
                "chance makes a thread the slowest"
            );
            assert!(is_withdrawn(0.004, 0.001, unsure, 0.05));
            assert!(!is_withdrawn(0.0, 0.1, unsure, 0.2));
        });
    }

    #[test]
    fn a_trace_is_not_said_to_have_few_samples() {
        with_blocks(1.0, |planner, input| {
            let bounds = |is_traced| {
                let mut plan = planned(planner, Policy::Object);
                let saving = withdraw(&mut plan, input, &Parameters::default(), is_traced);
                assert!(!plan.decisions.is_empty());
                saving.unwrap().unwrap().all_threads_change
            };
            assert!(bounds(false).is_some());
            assert_eq!(bounds(true), None);
        });
    }

    #[test]
    fn a_plan_is_withdrawn_with_the_reason_where_such_savings_were_losses() {
        with_blocks(1e6, |planner, _| {
            let class = MachineClass::SeveralHops;
            let lost = crate::Change {
                predicted: -0.9,
                measured: 0.1,
            };
            let errors = ModelErrors::learned(vec![(class, lost); 30]);
            assert_eq!(errors.of(class).source, ErrorSource::History);
            let parameters = Parameters {
                errors,
                ..Parameters::default()
            };
            let decided = &planner.decide(&[Policy::Auto], &parameters).unwrap()[0];
            assert!(decided.plan.decisions.is_empty());
            let note = decided
                .notes
                .iter()
                .find(|note| note.starts_with("everything is left"));
            assert!(
                note.is_some_and(|note| note.contains("to save lost")),
                "{:?}",
                decided.notes
            );
            assert_eq!(
                planner.plans(Policy::Auto, &parameters).unwrap()[0].decisions,
                []
            );
        });
    }
}
