//! Notes on simple policies that seem to make a program quicker than `auto`'s plan does.
//!
//! A plan of single pages fits the samples that it was made from, chance included, and is judged by the same samples.
//! Its worth shows with other samples: the plan that a policy makes from half of them ([`Attribution::resampled`]) is
//! predicted with the other half.
//!
//! [`Attribution::resampled`]: nearpage_attribution::Attribution::resampled

use nearpage_amount::percent;
use nearpage_attribution::Attribution;
use nearpage_plan::Plan;

use crate::auto::Model;
use crate::confidence::leave_doubtful;
use crate::context::Input;
use crate::decide::decide;
use crate::parameters::{Parameters, Policy};

/// A note names a simple policy if its plan seems quicker by more than this share of the time.
const QUICKER: f64 = 0.005;

/// Note that says why a plan of `auto`, made from samples, is not that of the simple policy that seems quickest; none
/// if no simple policy seems quicker.
pub(crate) fn note(plan: &Plan, input: &Input, parameters: &Parameters) -> Option<String> {
    let model = Model::new(input, parameters)?;
    let simple = Policy::ALL.into_iter().filter(|&one| one != Policy::Auto);
    let decided = simple.map(|policy| (policy, decide(policy, input, parameters)));
    // Resampling takes long, so only plans that would be quicker lose what the policy's user does not get.
    let quicker = decided.filter(|(_, other)| change(&model, other, plan) < -QUICKER);
    let seems = quicker.map(|(policy, mut other)| {
        leave_doubtful(&mut other, policy, input, parameters);
        (policy, change(&model, &other, plan))
    });
    let (policy, seen) = seems.min_by(|a, b| a.1.total_cmp(&b.1))?;
    if seen >= -QUICKER {
        return None;
    }
    let unseen = change_with_other_samples(policy, plan, input, parameters)?;
    let why = match unseen < -QUICKER {
        true => format!(
            "{} quicker with samples that it was not made from: `auto` keeps what fits other inputs, too, unless another plan is \
             clearly quicker",
            percent(-unseen)
        ),
        false if unseen > QUICKER => format!(
            "but {} slower with samples that it was not made from",
            percent(unseen)
        ),
        false => "but no quicker with samples that it was not made from".to_owned(),
    };
    Some(format!(
        "the plan of --policy {} is predicted {} quicker, {why}",
        policy.as_str(),
        percent(-seen)
    ))
}

/// Difference between the times under `other` and under `plan`, as a share of the latter, in runs that plans are for.
fn change(model: &Model, other: &Plan, plan: &Plan) -> f64 {
    let [other_ns, planned_ns] =
        [other, plan].map(|plan| model.expected_times(plan).0[1].planned_ns);
    other_ns / planned_ns.max(1.0) - 1.0
}

/// The same difference between a policy's plans from half of the samples and `plan`, with the other half: the median.
fn change_with_other_samples(
    policy: Policy,
    plan: &Plan,
    input: &Input,
    parameters: &Parameters,
) -> Option<f64> {
    let of_half = parameters.of_resample();
    let found = input.attribution.resampled(|half: &Attribution| {
        let rest = input.attribution.other_half(half);
        let of = |attribution| Input {
            attribution,
            ..input.clone()
        };
        let other = decide(policy, &of(half), &of_half);
        let model = Model::new(&of(&rest), parameters)?;
        Some(change(&model, &other, plan))
    });
    let mut changes: Vec<f64> = found.into_iter().flatten().collect();
    changes.sort_by(f64::total_cmp);
    changes.get(changes.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use nearpage_amount::percent;
    use nearpage_attribution::{Cell, Pattern};
    use nearpage_machine::preset;
    use nearpage_recording::ThreadIndex;

    use super::QUICKER;
    use crate::making::Samples;
    use crate::{DecidedPlan, Parameters, Planner, Policy};

    /// Plans of some policies for a program with a grid of a pattern, filled by the first of its threads. Each page of the
    /// grid has `samples` samples of one thread chosen by chance, of the first thread twice as often.
    fn plans(pattern: Pattern, samples: f32, policies: &[Policy]) -> Vec<DecidedPlan> {
        let recording = Samples::of("opteron-4", &[0, 1, 2, 3]).analysed();
        let (mut analysis, _folder) = recording.into_parts();
        let objects = analysis.attribution.objects.iter_mut();
        let grid = objects
            .max_by(|a, b| a.cost_ns().total_cmp(&b.cost_ns()))
            .unwrap();
        let mut threads: Vec<ThreadIndex> = grid.threads.iter().map(|thread| thread.0).collect();
        threads.truncate(4);
        grid.pattern = pattern;
        grid.affinity.initialisation.clear();
        grid.first_touches = (0..grid.affinity.pages)
            .map(|page| (page, threads[0]))
            .collect();
        let scale = grid.accesses() / f64::from(grid.affinity.pages);
        grid.affinity.cells = (0..grid.affinity.pages)
            .map(|page| Cell {
                page,
                thread: threads[(page * 7919 % 101 % 5 % 4) as usize],
                loads: scale as f32,
                stores: 0.0,
                cost_ns: scale as f32 * 100.0,
                samples,
            })
            .collect();
        let machine = preset("opteron-4").unwrap();
        let planner = Planner::of(&analysis, &machine, None);
        planner.decide(policies, &Parameters::default()).unwrap()
    }

    /// The note on a simple policy, of a plan of `auto`.
    fn note(plan: &DecidedPlan) -> Option<&String> {
        plan.notes.iter().find(|note| note.contains("--policy"))
    }

    #[test]
    fn the_note_promises_what_the_simple_policy_gives() {
        for samples in [0.25, 0.5, 1.0] {
            let plans = plans(Pattern::Shared, samples, &Policy::ALL);
            let (auto, simple) = plans.split_first().unwrap();
            let planned_ns = |plan: &DecidedPlan| plan.time.unwrap().scaled_planned_ns;
            let saves = |plan: &DecidedPlan| 1.0 - planned_ns(plan) / planned_ns(auto);
            let promise = |plan: &DecidedPlan| {
                format!(
                    "the plan of --policy {} is predicted {} quicker",
                    plan.policy,
                    percent(saves(plan))
                )
            };
            let best = simple.iter().map(saves).fold(0.0, f64::max);
            match note(auto) {
                Some(note) => {
                    let named = simple.iter().find(|plan| note.contains(&promise(plan)));
                    let named = named.unwrap_or_else(|| panic!("{samples}: {note}"));
                    assert!(saves(named) > best - 1e-9, "{samples}: {note}");
                }
                None => assert!(best <= QUICKER, "{samples}: {best}"),
            }
        }
    }

    #[test]
    fn savings_without_support_by_other_samples_are_noted() {
        let plans = plans(Pattern::Mixed, 1.0, &[Policy::Auto]);
        let note = note(&plans[0]).unwrap_or_else(|| panic!("{:?}", plans[0].notes));
        let (seen, unseen) = note.split_once(" quicker, ").unwrap();
        assert!(
            unseen.contains("with samples that it was not made from"),
            "{note}"
        );
        // Spreading pages by chance relieves memory and links, whichever threads use them.
        let last_percent = |words: &str| {
            let mut numbers = words
                .split(' ')
                .rev()
                .filter_map(|word| word.parse::<f64>().ok());
            numbers.next().unwrap_or(0.0)
        };
        let is_quicker = unseen.contains("quicker with");
        assert!(
            !is_quicker || last_percent(unseen) < 0.6 * last_percent(seen),
            "{note}"
        );
    }
}
