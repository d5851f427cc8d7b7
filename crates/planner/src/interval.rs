//! How sure a predicted change of time is: by the number of samples, by the model's own error and, for traces, by the
//! difference between model and replay.
//!
//! Paired resampling judges the number of samples. Each resample ([`Attribution::resampled`]) gives a time under first
//! touch and a time under the plan, by the same model. Their difference is far surer than either time, as chance does
//! nearly the same to both. 90 % of the differences lie between the bounds, which are moved so that the recording's own
//! difference is their centre of mass. Every resample has the recorded plan: a decision's confidence says whether
//! another recording would have given another plan.
//!
//! Doubt is decided by the time of all threads together: chance changes most which thread is the slowest.
//!
//! The model's error is that of its class of machines, from `benches/accuracy` (docs/explain/accuracy.md) or, once
//! there are enough, from runs that this user measured. It matters only for the sign: most plans with very small
//! predicted savings lost time. If a plan's saving is in doubt, the decisions stay that hardly make an access slower:
//! they have nothing to lose.
//!
//! [`Attribution::resampled`]: nearpage_attribution::Attribution::resampled

use nearpage_amount::percent;
use nearpage_plan::{Decision, Placement, Plan, Start, Subject};
use schemars::JsonSchema;
use serde::Serialize;

use crate::auto::{self, Model, Times};
use crate::context::{Context, Input};
use crate::group::keep_apart;
use crate::model_error::{ErrorSource, MachineClass, ModelError};
use crate::parameters::Parameters;
use crate::subject::{decisions_about, subject};

/// Share of the resamples that is between the bounds.
const LEVEL: f64 = 0.9;

/// Reason to doubt the sign of a predicted change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// There is no doubt.
    None,
    /// Other recordings of the same length might have shown the opposite.
    Samples,
    /// Most plans with such a small predicted saving lost time.
    Model,
}

/// How sure a predicted change of time is. Changes are shares of the time under first touch: −0.2 is a fifth less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Uncertainty {
    /// Share of the resamples that is between the bounds, 0 to 1.
    pub level: f64,
    /// Bounds of the change in a run as long as the recorded one, by the number of samples; null for traces, which have
    /// all accesses.
    pub change: Option<[f64; 2]>,
    /// Bounds of the change in a run that the plan is for.
    pub scaled_change: Option<[f64; 2]>,
    /// Bounds of the change of all threads' time together. They decide about doubt: chance changes most which thread is
    /// the slowest.
    pub all_threads_change: Option<[f64; 2]>,
    /// Number of resamples.
    pub resamples: u32,
    /// The model's error; null where the time was replayed.
    pub model: Option<ModelError>,
    /// The model's predicted change minus the replayed change; null where there is no trace.
    pub model_less_replay: Option<f64>,
    /// Reason to doubt the sign of the change.
    pub doubt: Doubt,
}

/// A plan's change of a time, as a share of the time under first touch.
pub(crate) fn change(times: &Times) -> f64 {
    times.planned_ns / times.first_touch_ns.max(f64::MIN_POSITIVE) - 1.0
}

/// How sure the model is of a plan, for a recording of samples. `times`: predicted times; `of_all`: change of all
/// threads' time.
pub(crate) fn of_samples(
    plan: &Plan,
    input: &Input,
    parameters: &Parameters,
    (times, of_all): &([Times; 2], f64),
) -> Uncertainty {
    let changes = [change(&times[0]), change(&times[1]), *of_all];
    let of_resample = |resample: &nearpage_attribution::Attribution| {
        let again = Input {
            attribution: resample,
            ..input.clone()
        };
        let (times, of_all) = Model::new(&again, parameters)?.expected_times(plan);
        Some([change(&times[0]), change(&times[1]), of_all])
    };
    let found: Vec<[f64; 3]> = match changes == [0.0; 3] && plan.decisions.is_empty() {
        true => Vec::new(),
        false => {
            let found = input.attribution.resampled(of_resample);
            found.into_iter().flatten().collect()
        }
    };
    let bounds = [0, 1, 2].map(|at| {
        let all: Vec<f64> = found.iter().map(|one| one[at]).collect();
        bounds(changes[at], all)
    });
    let model = parameters.errors.of(MachineClass::of(input.machine));
    Uncertainty {
        level: LEVEL,
        change: Some(bounds[0]),
        scaled_change: Some(bounds[1]),
        all_threads_change: Some(bounds[2]),
        resamples: found.len() as u32,
        model: Some(model),
        model_less_replay: None,
        doubt: doubt(changes[1], bounds[2], &model),
    }
}

/// How sure the saving of a plan of `auto` is, or why the plan was withdrawn.
pub(crate) type Saving = Result<Uncertainty, String>;

/// Withdraws a plan of `auto` whose saving is in doubt, except decisions that can hardly lose. None if the plan places
/// nothing, or nothing can be predicted.
pub(crate) fn withdraw(plan: &mut Plan, input: &Input, parameters: &Parameters) -> Option<Saving> {
    if !plan.decisions.iter().any(places) {
        return None;
    }
    let times = Model::new(input, parameters)?.expected_times(plan);
    let found = of_samples(plan, input, parameters, &times);
    let [least, most] = found.all_threads_change?.map(|change| -100.0 * change);
    let saved = -change(&times.0[1]);
    if let Some(why) = withdraw_spreading(plan, saved) {
        return Some(Err(why));
    }
    let why = match found.doubt {
        Doubt::None => return Some(Ok(found)),
        Doubt::Samples => format!(
            "with so few samples, what it saves of all threads' time lies between {most:+.1} % and {least:+.1} % (nine recordings in \
             ten)"
        ),
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
    let decisions = plan.decisions.len();
    if !was_measured && keep_what_loses_nothing(plan, input, parameters) {
        if plan.decisions.len() == decisions {
            return Some(Ok(found));
        }
        let times = Model::new(input, parameters)?.expected_times(plan);
        return Some(match withdraw_spreading(plan, -change(&times.0[1])) {
            Some(why) => Err(why),
            None => Ok(of_samples(plan, input, parameters, &times)),
        });
    }
    plan.decisions.clear();
    Some(Err(format!(
        "everything is left to first touch: the best plan would save {} of the time, but {why}",
        percent(saved)
    )))
}

/// Withdraws a plan that only spreads pages if it saves less than nothing, and says so. Such decisions follow from who
/// uses which part, not from times.
fn withdraw_spreading(plan: &mut Plan, saved: f64) -> Option<String> {
    let spreads = |one: &Decision| {
        matches!(
            one.placement,
            Placement::Interleave { .. } | Placement::FirstTouch
        )
    };
    if saved >= 0.0 || !plan.decisions.iter().all(spreads) {
        return None;
    }
    plan.decisions.clear();
    Some(format!(
        "everything is left to first touch: spreading what all threads use would take {} longer",
        percent(-saved)
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
    for group in &input.attribution.objects {
        let own = subject(context.tables, group);
        // It is unknown what several decisions about the objects of one call site make slower.
        let &[at] = decisions_about(plan, &context, group, own.as_ref()).as_slice() else {
            continue;
        };
        let decision = &plan.decisions[at];
        let latency_ns = &timing.latency_ns;
        is_kept[at] = auto::loses_nothing(&context, group, decision, latency_ns, parameters)
            || auto::relieves_one_node(&context, group, decision, parameters);
    }
    keep(plan, &is_kept);
    plan.decisions.iter().any(places)
}

/// Leaves out the decisions of a plan that are not kept, and keeps their objects apart from memory that is placed.
fn keep(plan: &mut Plan, is_kept: &[bool]) {
    let is_placed = |is_around: fn(&Subject) -> bool| {
        let mut kept = plan.decisions.iter().zip(is_kept).filter(|one| *one.1);
        kept.any(|(one, _)| is_around(&one.subject) && places(one))
    };
    let unmatched_is_placed = is_placed(|one| *one == Subject::Unmatched);
    let heap_is_placed = is_placed(Subject::is_brk_heap);
    let mut numbered = is_kept.iter();
    plan.decisions.retain_mut(|one| {
        if numbered.next() == Some(&true) || !places(one) {
            return true;
        }
        let is_of_heap = matches!(one.subject, Subject::CallSite { .. });
        let lies_in_placed = unmatched_is_placed || heap_is_placed && is_of_heap;
        if lies_in_placed && one.subject != Subject::Unmatched {
            keep_apart(one);
            return true;
        }
        false
    });
}

/// How sure the model is of a trace, which has all accesses, but cannot be replayed here.
pub(crate) fn of_all(input: &Input, parameters: &Parameters, times: &[Times; 2]) -> Uncertainty {
    let changes = [0, 1].map(|at| change(&times[at]));
    let model = parameters.errors.of(MachineClass::of(input.machine));
    Uncertainty {
        level: LEVEL,
        change: None,
        scaled_change: None,
        all_threads_change: None,
        resamples: 0,
        model: Some(model),
        model_less_replay: None,
        doubt: doubt(changes[1], [changes[1]; 2], &model),
    }
}

/// How sure a replay is: it has all accesses. `modelled`: the model's times for the same plan.
pub(crate) fn of_replay(replayed: &Times, modelled: Option<&Times>) -> Uncertainty {
    Uncertainty {
        level: LEVEL,
        change: None,
        scaled_change: None,
        all_threads_change: None,
        resamples: 0,
        model: None,
        model_less_replay: modelled.map(|modelled| change(modelled) - change(replayed)),
        doubt: Doubt::None,
    }
}

/// Reason to doubt the sign of a change, given its bounds.
fn doubt(change: f64, bounds: [f64; 2], model: &ModelError) -> Doubt {
    if bounds[0] <= 0.0 && bounds[1] >= 0.0 && change != 0.0 {
        return Doubt::Samples;
    }
    match change < 0.0 && -change <= model.turns_below {
        true => Doubt::Model,
        false => Doubt::None,
    }
}

/// Bounds of 90 % of some figures, moved to where their mean is `centre`.
fn bounds(centre: f64, mut all: Vec<f64>) -> [f64; 2] {
    if all.is_empty() {
        return [centre; 2];
    }
    all.sort_by(f64::total_cmp);
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    // With 99 figures, the fifth from either end.
    let outside = (((all.len() + 1) as f64 * (1.0 - LEVEL) / 2.0).round() as usize).max(1);
    let ends = [all[outside - 1], all[all.len() - outside]];
    ends.map(|end| centre + end - mean)
}

#[cfg(test)]
mod tests {
    use nearpage_attribution::{Attribution, Cell, Operations};
    use nearpage_machine::preset;
    use nearpage_plan::Subject;
    use tempfile::TempDir;

    use super::*;
    use crate::making::Samples;
    use crate::{Analysis, ModelErrors, Planner, Policy};

    /// Calls `check` with a program whose four threads use a block each of a grid that the main thread filled. Each
    /// page and thread has at most this many samples.
    fn with_blocks(samples: f32, check: impl FnOnce(&Planner, &Input)) {
        with_threads(&[0, 1, 2, 3], samples, check);
    }

    /// The same program with a thread on each of these CPUs.
    fn with_threads(cpus: &[u32], samples: f32, check: impl FnOnce(&Planner, &Input)) {
        let folder = TempDir::new().unwrap();
        let recording = folder.path().join("r");
        Samples::of("opteron-4", cpus).write(&recording);
        let mut analysis = Analysis::of(&recording, Operations::Both).unwrap();
        fewer(&mut analysis.attribution, samples);
        let machine = preset("opteron-4").unwrap();
        let planner = Planner::of(&analysis, &machine, None);
        let programs = planner.programs().unwrap();
        check(&planner, &programs[0]);
    }

    fn fewer(attribution: &mut Attribution, samples: f32) {
        let cells = attribution.objects.iter_mut();
        for cell in cells.flat_map(|group| &mut group.affinity.cells) {
            let Cell { samples: own, .. } = cell;
            *own = own.min(samples);
        }
    }

    fn uncertainty(planner: &Planner, policy: Policy) -> Uncertainty {
        let decided = planner.decide(&[policy], &Parameters::default()).unwrap();
        decided[0].time.unwrap().uncertainty
    }

    #[test]
    fn bounds_are_as_far_from_the_change_as_resamples_are_from_their_mean() {
        let even: Vec<f64> = (0..99).map(f64::from).collect();
        assert_eq!(bounds(100.0, even), [55.0, 145.0]);
        let few: Vec<f64> = (0..19).map(f64::from).collect();
        assert_eq!(bounds(0.0, few), [-9.0, 9.0]);
        assert_eq!(bounds(0.5, Vec::new()), [0.5, 0.5]);
    }

    #[test]
    fn few_samples_widen_the_bounds_and_the_change_stays_inside() {
        let width = |samples| {
            let mut width = 0.0;
            with_blocks(samples, |planner, _| {
                let decided = planner
                    .decide(&[Policy::Object], &Parameters::default())
                    .unwrap();
                let time = decided[0].time.unwrap();
                let Uncertainty {
                    change: Some([least, most]),
                    resamples: 99,
                    ..
                } = time.uncertainty
                else {
                    panic!("{time:?}");
                };
                let change = time.planned_ns / time.first_touch_ns - 1.0;
                assert!(least < change && change < most, "{least} {change} {most}");
                width = most - least;
            });
            width
        };
        let (many, few) = (width(1e6), width(2.0));
        assert!(few > 2.0 * many, "{few} {many}");
    }

    #[test]
    fn a_sure_saving_is_kept_and_one_that_chance_may_explain_is_not() {
        with_blocks(1e6, |planner, _| {
            let found = uncertainty(planner, Policy::Auto);
            assert_eq!(found.doubt, Doubt::None);
            assert!(found.all_threads_change.unwrap()[1] < 0.0, "{found:?}");
        });
        let model = ModelErrors::default().of(MachineClass::OneHop);
        assert_eq!(doubt(-0.05, [-0.12, 0.01], &model), Doubt::Samples);
        assert_eq!(doubt(0.0, [0.0, 0.0], &model), Doubt::None);
        let model = ModelError {
            turns_below: 0.02,
            ..model
        };
        assert_eq!(doubt(-0.015, [-0.02, -0.01], &model), Doubt::Model);
        assert_eq!(doubt(-0.03, [-0.04, -0.02], &model), Doubt::None);
    }

    #[test]
    fn a_plan_that_only_spreads_is_withdrawn_if_spreading_is_slower() {
        let spread = |planner: &Planner| {
            let parameters = Parameters::default();
            planner
                .plans(Policy::Interleave, &parameters)
                .unwrap()
                .remove(0)
        };
        // All accesses of the only thread are local under first touch.
        with_threads(&[0], 1e6, |planner, input| {
            let mut plan = spread(planner);
            assert!(!plan.decisions.is_empty());
            let saving = withdraw(&mut plan, input, &Parameters::default()).unwrap();
            let why = saving.unwrap_err();
            assert!(
                why.contains("spreading what all threads use would take"),
                "{why}"
            );
            assert_eq!(plan.decisions, []);
        });
        // Three of four threads have remote accesses under first touch, too.
        with_blocks(1e6, |planner, input| {
            let mut plan = spread(planner);
            let decisions = plan.decisions.clone();
            let saving = withdraw(&mut plan, input, &Parameters::default()).unwrap();
            assert!(saving.is_ok(), "{saving:?}");
            assert_eq!(plan.decisions, decisions);
        });
    }

    #[test]
    fn what_keeps_objects_apart_stays_with_what_is_placed() {
        with_blocks(1e6, |planner, input| {
            let parameters = Parameters::default();
            let mut plan = planner
                .plans(Policy::Object, &parameters)
                .unwrap()
                .remove(0);
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
            let mut plan = planner
                .plans(Policy::Object, &Parameters::default())
                .unwrap()
                .remove(0);
            let of_object = plan.decisions[0].clone();
            let is_of_heap = |one: &Decision| matches!(one.subject, Subject::CallSite { .. });
            // A decision about an object that no sample has shown is not kept.
            let unseen = Decision {
                subject: Subject::CallSite {
                    frames: Vec::new(),
                    size_bytes: 1 << 16,
                    order: None,
                    thread: None,
                },
                ..of_object.clone()
            };
            for (subject, stays) in [
                (of_object.subject.clone(), false),
                (Subject::Unmatched, true),
            ] {
                plan.decisions = vec![
                    unseen.clone(),
                    Decision {
                        subject,
                        ..of_object.clone()
                    },
                ];
                let is_kept = vec![false, true];
                keep(&mut plan, &is_kept);
                let apart = plan.decisions.iter().find(|one| !places(one));
                assert_eq!(apart.is_some(), stays, "{:?}", plan.decisions);
                assert!(apart.is_none_or(is_of_heap));
            }
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
