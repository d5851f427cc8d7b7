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
//! predicted savings lost time.
//!
//! [`Attribution::resampled`]: nearpage_attribution::Attribution::resampled

use nearpage_plan::Plan;
use schemars::JsonSchema;
use serde::Serialize;

use crate::auto::{Model, Times};
use crate::context::Input;
use crate::model_error::{MachineClass, ModelError};
use crate::parameters::Parameters;

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

impl Uncertainty {
    /// True if samples leave open whether the slowest thread takes longer, and all threads together surely take less time.
    /// In a program whose threads take work from each other, on few CPUs, it is chance which thread was slowest.
    pub fn is_quicker_together(&self) -> bool {
        let may_be_quicker = self.scaled_change.is_some_and(|[least, _]| least < 0.0);
        may_be_quicker && self.all_threads_change.is_some_and(|[_, most]| most < 0.0)
    }
}

/// A plan's change of a time, as a share of the time under first touch.
pub(crate) fn change(times: &Times) -> f64 {
    times.planned_ns / times.first_touch_ns.max(f64::MIN_POSITIVE) - 1.0
}

/// How sure the model is of a plan, for a recording of samples. `times`: predicted times; `of_all`: change of all
/// threads' time.
fn of_samples(
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

/// How sure the model is of a plan's times, of a trace that is not replayed or of samples.
pub(crate) fn of_model(
    is_traced: bool,
    plan: &Plan,
    input: &Input,
    parameters: &Parameters,
    modelled: &([Times; 2], f64),
) -> Uncertainty {
    match is_traced {
        true => of_all(input, parameters, &modelled.0),
        false => of_samples(plan, input, parameters, modelled),
    }
}

/// How sure the model is of a trace, which has all accesses, but cannot be replayed here.
fn of_all(input: &Input, parameters: &Parameters, times: &[Times; 2]) -> Uncertainty {
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
pub(crate) mod tests {
    use nearpage_attribution::{Attribution, Cell};
    use nearpage_machine::preset;

    use super::*;
    use crate::making::Samples;
    use crate::{ModelErrors, Planner, Policy};

    /// Calls `check` with a program whose four threads use a block each of a grid that the main thread filled. Each
    /// page and thread has at most this many samples.
    pub(crate) fn with_blocks(samples: f32, check: impl FnOnce(&Planner, &Input)) {
        with_threads(&[0, 1, 2, 3], samples, check);
    }

    /// The same program with a thread on each of these CPUs.
    pub(crate) fn with_threads(cpus: &[u32], samples: f32, check: impl FnOnce(&Planner, &Input)) {
        let (mut analysis, _folder) = Samples::of("opteron-4", cpus).analysed().into_parts();
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
        assert!(few > 1.5 * many, "{few} {many}");
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
}
