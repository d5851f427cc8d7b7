//! Predicts what one plan does: the shares of local accesses, the times, and how sure they are.

use nearpage_machine::Assumed;
use nearpage_plan::{Plan, PlanPrediction, Team, is_slower};
use nearpage_recording::Metadata;

use crate::auto::{Model, Times};
use crate::context::{Context, Input};
use crate::decided::{DecidedPlan, Judged, PhaseDecisions, PlanTime, Threads};
use crate::error::Error;
use crate::interval::{self, Uncertainty};
use crate::parameters::Parameters;
use crate::prediction::{Prediction, predict};
use crate::replay::Replays;
use crate::translated::translated;

/// What predictions need to know of the recording and its threads.
pub(crate) struct PlanPredictor<'a> {
    pub metadata: &'a Metadata,
    /// The machine with assumptions where figures are unknown; none if all are known.
    pub assumed: Option<&'a Assumed>,
    pub threads: &'a Threads,
    /// True if threads run where they were recorded.
    pub is_as_recorded: bool,
}

impl PlanPredictor<'_> {
    /// Predicts a plan; `known` is how sure the time is, if that was computed already.
    pub(crate) fn predicted(
        &self,
        mut plan: Plan,
        input: &Input,
        parameters: &Parameters,
        replays: Option<&mut Replays<'_>>,
        known: Option<Uncertainty>,
    ) -> Result<DecidedPlan, Error> {
        let translated = is_of_other_run(&plan, input).then(|| translated(&plan, input));
        let translated = translated.transpose()?;
        let here = translated
            .as_ref()
            .map_or(&plan, |translated| &translated.plan);
        let mut prediction = predict(here, input);
        let known = known.filter(|_| translated.is_none());
        let times = self.times(&plan, here, input, parameters, replays, known)?;
        if let Some(translated) = &translated {
            translated.name_decisions(&plan, &mut prediction);
        }
        let time = times.map(|(by, [recorded, scaled], uncertainty)| PlanTime {
            by,
            first_touch_ns: recorded.first_touch_ns,
            planned_ns: recorded.planned_ns,
            runtime_scale: parameters.runtime_scale,
            scaled_first_touch_ns: scaled.first_touch_ns,
            scaled_planned_ns: scaled.planned_ns,
            uncertainty,
        });
        note_effects(&mut plan, &prediction);
        let predicted = PlanPrediction {
            local_before: prediction.first_touch.local_share,
            local_after: prediction.planned.local_share,
            first_touch_ns: time.map(|time| time.scaled_first_touch_ns),
            planned_ns: time.map(|time| time.scaled_planned_ns),
            all_threads_change: time
                .filter(|one| is_slower([one.scaled_first_touch_ns, one.scaled_planned_ns]))
                .filter(|one| one.uncertainty.is_quicker_together())
                .and_then(|one| one.uncertainty.all_threads_change),
        };
        plan.predicted = (prediction.accesses > 0.0).then_some(predicted);
        let warning = plan.warning();
        let changes_something = !plan.decisions.is_empty()
            || !plan.phases.is_empty()
            || plan.online_migration.is_some();
        Ok(DecidedPlan {
            version: nearpage_recording::JSON_VERSION,
            file: None,
            program: input.program.executable.clone(),
            machine: input.machine.name.clone(),
            policy: plan.policy.clone(),
            threads: self.threads.clone(),
            assumed: self
                .assumed
                .filter(|_| time.is_some())
                .map(|assumed| assumed.words.clone()),
            time,
            online_migration: plan
                .online_migration
                .as_ref()
                .map(|online_migration| online_migration.parameters.clone()),
            phases: plan.phases.iter().map(PhaseDecisions::from).collect(),
            warnings: warning.filter(|_| changes_something).into_iter().collect(),
            notes: self.threads.notes(
                input.machine,
                self.metadata.tracing.is_some() && self.is_as_recorded,
            ),
            prediction,
            plan,
        })
    }

    /// Predicts a plan's effect on the time, and how sure the prediction is; `here` is the plan in terms of this
    /// recording. `None` if no prediction is possible.
    fn times(
        &self,
        plan: &Plan,
        here: &Plan,
        input: &Input,
        parameters: &Parameters,
        replays: Option<&mut Replays<'_>>,
        known: Option<Uncertainty>,
    ) -> Result<Option<PredictedTimes>, Error> {
        let model = Model::new(input, parameters);
        let modelled = model.as_ref().map(|model| model.expected_times(here));
        if let Some(replays) = replays {
            let replayed = replays.times(plan)?;
            let modelled = modelled.as_ref().map(|(modelled, _)| &modelled[0]);
            let uncertainty = interval::of_replay(&replayed[0], modelled);
            return Ok(Some((Judged::Replay, replayed, uncertainty)));
        }
        Ok(modelled.map(|modelled| {
            let is_traced = self.metadata.tracing.is_some();
            let uncertainty = known.unwrap_or_else(|| {
                interval::of_model(is_traced, here, input, parameters, &modelled)
            });
            (Judged::Model, modelled.0, uncertainty)
        }))
    }
}

/// How times were predicted, the times of a run as long as the recorded one and of a longer one, and how sure they are.
type PredictedTimes = (Judged, [Times; 2], Uncertainty);

/// True if a plan was made from a run with other arguments or team sizes: patterns over threads are then dealt anew.
fn is_of_other_run(plan: &Plan, input: &Input) -> bool {
    let own = Context::new(input).plan_teams();
    let other_size = |team: &Team| {
        let mut same = own.iter().filter(|one| one.name == team.name);
        same.any(|one| one.threads != team.threads)
    };
    let [planned, recorded] = [&plan.program.arguments, &input.program.arguments];
    let is_known = !planned.is_empty() && !recorded.is_empty();
    is_known && planned != recorded || plan.teams.iter().any(other_size)
}

/// Sets the expected effects of decisions to the prediction for their objects, so that the plan's file agrees with
/// the output of every command.
fn note_effects(plan: &mut Plan, prediction: &Prediction) {
    let mut of_decision: Vec<Vec<usize>> = vec![Vec::new(); plan.decisions.len()];
    for (number, object) in prediction.objects.iter().enumerate() {
        for &at in &object.decisions {
            of_decision[at].push(number);
        }
    }
    for (decision, objects) in plan.decisions.iter_mut().zip(of_decision) {
        let objects = || objects.iter().map(|&number| &prediction.objects[number]);
        let accesses: f64 = objects().map(|object| object.accesses).sum();
        if accesses <= 0.0 {
            continue;
        }
        let mean = |share: fn(&crate::ObjectPrediction) -> f64| {
            objects()
                .map(|object| share(object) * object.accesses)
                .sum::<f64>()
                / accesses
        };
        let is_known = objects().all(|object| !object.first_touch_assumed);
        decision.effect.local_before = is_known.then(|| mean(|one| one.first_touch.local_share));
        decision.effect.local_after = mean(|one| one.planned.local_share);
    }
}
