//! How sure decisions are, and which of them are given up for lack of samples.
//!
//! A decision's confidence is the share of resamples of the recording ([`Attribution::confidences`]) from which the
//! same policy places the object alike: 95 % of its sampled pages (or of its sampled instances) on the same nodes, and
//! from the same moment on. Leaving an object to first touch is a decision, too. Confidence covers all that a policy
//! derives from samples: the pattern, its geometry, the choice among placements. It covers no differences between runs,
//! such as another input or another machine.
//!
//! Most decisions of little confidence are still better than none: uncertainty about the owner of some pages does not
//! make first touch right. So an object is left to first touch only if its decision also fails a second test. The test
//! decides from half of the samples and applies the decision to the other half. A decision fails if it makes fewer
//! accesses local than first touch in most resamples. Placements that spread pages make nothing local, but relieve
//! queues, so they pass. But if first touch has spread the pages already, they have to be sure.

use nearpage_amount::percent;
use nearpage_attribution::{Attribution, Confidence, ObjectGroup, RESAMPLE_SHARE};
use nearpage_plan::{Decision, Placement, Plan, Start, Subject};
use nearpage_recording::ObjectId;

use crate::auto::{is_spread, may_be_unmatched};
use crate::context::{Context, Input};
use crate::decide::decide;
use crate::effect::Tally;
use crate::group::{first_touched, worth_deciding};
use crate::holder::{Holder, ResolvedPlacement, of_instance};
use crate::instances::picks;
use crate::parameters::{Parameters, Policy};
use crate::placed_accesses::{Placing, placed_accesses};
use crate::subject::{decisions_about, subject};

/// Share of an object's pages, or instances, that two plans have in the same place if they decide alike.
const SAME_PLACE: f64 = 0.95;
/// Most pages or instances that are compared.
const COMPARED_MAX: usize = 1 << 10;

/// Where a plan has a page or an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spot {
    FirstTouch,
    /// On a node, by position, from a moment on.
    On(usize, Start),
    Spread(Start),
    Everywhere,
}

/// Results of resampling for the decisions about an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tested {
    pub confidence: Confidence,
    /// Share of the resamples whose decision passed: of the other half's accesses, it makes no fewer local than first
    /// touch.
    pub stood: f64,
}

/// Decisions that are not sure have to pass the test in this share of the resamples.
const STOOD_MIN: f64 = 0.5;

/// Tests a policy's decisions with resamples, and replaces doubtful ones by first touch. Returns the results for each
/// object of the recording, by position; none for objects that are not resampled or not worth a decision.
pub(crate) fn leave_doubtful(
    plan: &mut Plan,
    policy: Policy,
    input: &Input,
    parameters: &Parameters,
) -> Vec<Option<Tested>> {
    let found = tested(plan, policy, input, parameters);
    apply(plan, &found, input, parameters);
    found
}

/// The results of [`leave_doubtful`].
fn tested(
    plan: &Plan,
    policy: Policy,
    input: &Input,
    parameters: &Parameters,
) -> Vec<Option<Tested>> {
    let groups = &input.attribution.objects;
    // Samples do not change this policy's placements.
    if policy == Policy::Interleave {
        return vec![None; groups.len()];
    }
    let context = Context::new(input);
    let of_resample = parameters.of_resample();
    let is_wanted = |group: &ObjectGroup| {
        worth_deciding(&context, group, parameters) && subject(context.tables, group).is_some()
    };
    // By object: number of resamples, and of those that passed the test.
    let mut stood = vec![(0, 0); groups.len()];
    let confirms = |resample: &Attribution, positions: &[usize]| -> Vec<bool> {
        let again = Input {
            attribution: resample,
            ..input.clone()
        };
        let of_half = Context::new(&again);
        let again = decide(policy, &again, &of_resample);
        let is_same = |&position: &usize| {
            let (group, half) = (&groups[position], &resample.objects[position]);
            let stands =
                is_confirmed_by_half((&context, group), (&of_half, half), &again, parameters);
            stood[position].0 += 1;
            stood[position].1 += u32::from(stands);
            places_alike(&context, group, [plan, &again])
        };
        positions.iter().map(is_same).collect()
    };
    let found = input.attribution.confidences(is_wanted, confirms);
    let stood = stood
        .into_iter()
        .map(|(all, stood)| f64::from(stood) / f64::from(all));
    let tested = |(confidence, stood): (Option<Confidence>, f64)| {
        confidence.map(|confidence| Tested { confidence, stood })
    };
    found.into_iter().zip(stood).map(tested).collect()
}

/// True if a decision spreads pages over nodes.
fn spreads(decision: &Decision) -> bool {
    matches!(decision.placement, Placement::Interleave { .. })
}

/// True if a plan made from half of a group's samples makes no fewer accesses of the other half local than first touch
/// does.
fn is_confirmed_by_half(
    (context, all): (&Context, &ObjectGroup),
    (of_half, half): (&Context, &ObjectGroup),
    plan: &Plan,
    parameters: &Parameters,
) -> bool {
    let own = subject(context.tables, all);
    let about = decisions_about(plan, context, all, own.as_ref());
    let about: Vec<&Decision> = about.iter().map(|&at| &plan.decisions[at]).collect();
    if about.is_empty() || about.iter().copied().any(spreads) {
        return true;
    }
    let local = |context: &Context, group: &ObjectGroup, decisions: &[&Decision]| {
        let found =
            placed_accesses::<Tally>(context, group, Placing::Decided(decisions), parameters);
        found.map_or(0.0, |(_, tally)| tally.local)
    };
    let of_others = |decisions: &[&Decision]| {
        local(context, all, decisions) - RESAMPLE_SHARE * local(of_half, half, decisions)
    };
    of_others(&about) >= of_others(&[])
}

/// Writes into decisions how sure they are, and replaces doubtful ones by first touch.
fn apply(plan: &mut Plan, tested: &[Option<Tested>], input: &Input, parameters: &Parameters) {
    let context = Context::new(input);
    for (group, tested) in input.attribution.objects.iter().zip(tested) {
        let (Some(tested), Some(own)) = (tested, subject(context.tables, group)) else {
            continue;
        };
        let about = decisions_about(plan, &context, group, Some(&own));
        let Some(&first) = about.first() else {
            continue;
        };
        let places = |&at: &usize| plan.decisions[at].placement != Placement::FirstTouch;
        let confidence = tested.confidence;
        let relieves_nothing = || {
            about.iter().any(|&at| spreads(&plan.decisions[at]))
                && is_spread(&context, group, parameters)
        };
        let is_doubtful = !confidence.is_sure() && (tested.stood < STOOD_MIN || relieves_nothing());
        if is_doubtful && about.iter().any(places) {
            let placement = plan.decisions[first].placement.to_string();
            let mut left = first_touched(&context, group, own.clone(), parameters);
            left.why = format!(
                "{}; too few samples to place it: `{placement}` is decided in {} of resamples",
                context.counters(group),
                percent(confidence.share),
            );
            plan.decisions[first] = left;
            for &at in about.iter().skip(1).rev() {
                plan.decisions.remove(at);
            }
        }
        for at in decisions_about(plan, &context, group, Some(&own)) {
            let effect = &mut plan.decisions[at].effect;
            effect.samples = Some(confidence.samples);
            effect.confidence = Some(confidence.share);
        }
    }
}

/// True if two plans place a group alike.
fn places_alike(context: &Context, group: &ObjectGroup, plans: [&Plan; 2]) -> bool {
    let own = subject(context.tables, group);
    let about = plans.map(|plan| {
        let about = decisions_about(plan, context, group, own.as_ref());
        let mut about: Vec<&Decision> = about.iter().map(|&at| &plan.decisions[at]).collect();
        if about.is_empty() && may_be_unmatched(group) {
            about.extend(plan.unmatched());
        }
        about
    });
    let picks = |one: &&Decision| {
        let by_number = matches!(&one.subject, Subject::CallSite { order: Some(_), .. })
            || one.placement.goes_by_number();
        by_number && !group.uses.is_empty()
    };
    let spots = match about.iter().flatten().any(picks) {
        true => about.map(|about| of_instances(context, group, &about)),
        false => about.map(|about| of_pages(context, group, about.first().copied())),
    };
    let same = spots[0].iter().zip(&spots[1]).filter(|(a, b)| a == b);
    !spots[0].is_empty() && same.count() as f64 >= SAME_PLACE * spots[0].len() as f64
}

/// Spots of the sampled pages, under one decision about all of them.
fn of_pages(context: &Context, group: &ObjectGroup, about: Option<&Decision>) -> Vec<Spot> {
    let affinity = &group.affinity;
    let mut pages: Vec<u32> = affinity
        .pattern_cells()
        .iter()
        .map(|cell| cell.page)
        .collect();
    pages.dedup();
    let offset = |page: u32| u64::from(page) * affinity.page_bytes + affinity.page_bytes / 2;
    let resolved = about.and_then(|about| {
        let resolved = ResolvedPlacement::new(&about.placement, context, group.size_bytes)?;
        Some((resolved, about.start))
    });
    let step = pages.len().div_ceil(COMPARED_MAX).max(1);
    let pages = pages.iter().step_by(step);
    pages
        .map(|&page| match &resolved {
            Some((resolved, start)) => spot(context, resolved.holder(offset(page)), *start),
            None => Spot::FirstTouch,
        })
        .collect()
}

/// Spots of the sampled instances, under decisions that may pick some of them each.
fn of_instances(context: &Context, group: &ObjectGroup, about: &[&Decision]) -> Vec<Spot> {
    let mut instances: Vec<ObjectId> = group.uses.iter().map(|one| one.object).collect();
    instances.dedup();
    let step = instances.len().div_ceil(COMPARED_MAX).max(1);
    let spot_of = |instance: &ObjectId| {
        let object = context.tables.objects.get(instance.0 as usize)?;
        let picked = |one: &&&Decision| picks(context.tables, &one.subject, object, object.thread);
        let decision = about.iter().find(picked)?;
        if let Some(holder) = of_instance(&decision.placement, context, object.order) {
            return Some(spot(context, holder, decision.start));
        }
        let resolved = ResolvedPlacement::new(&decision.placement, context, group.size_bytes)?;
        Some(spot(context, resolved.holder(0), decision.start))
    };
    let instances = instances.iter().step_by(step);
    instances
        .map(|instance| spot_of(instance).unwrap_or(Spot::FirstTouch))
        .collect()
}

fn spot(context: &Context, holder: Holder, start: Start) -> Spot {
    match holder {
        Holder::Thread(thread) => context
            .node_position(thread)
            .map_or(Spot::FirstTouch, |node| Spot::On(node, start)),
        Holder::Node(node) => context
            .machine
            .position(node)
            .map_or(Spot::FirstTouch, |node| Spot::On(node, start)),
        Holder::Spread(_) => Spot::Spread(start),
        Holder::Everywhere => Spot::Everywhere,
    }
}

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;
    use nearpage_recording::ThreadIndex;

    use super::*;
    use crate::Planner;
    use crate::making::{Samples, shares_on};

    /// Calls `check` with a program whose four threads use a block each of a grid that the main thread filled; the
    /// first sample is the initialisation.
    fn with_blocks(check: impl FnOnce(&Planner, &Input)) {
        let samples = Samples::of("opteron-4", &[0, 1, 2, 3]).analysed();
        let machine = preset("opteron-4").unwrap();
        let planner = Planner::of(&samples.analysis, &machine, None);
        let programs = planner.programs().unwrap();
        check(&planner, &programs[0]);
    }

    #[test]
    fn blocks_with_many_samples_are_decided_alike_from_all_resamples() {
        with_blocks(|_, input| {
            for policy in [Policy::Auto, Policy::Object, Policy::Uniform] {
                let parameters = Parameters::default();
                let plan = decide(policy, input, &parameters);
                let found = tested(&plan, policy, input, &parameters);
                let confidence = Confidence {
                    samples: 3_999,
                    share: 1.0,
                };
                let expected = Tested {
                    confidence,
                    stood: 1.0,
                };
                assert_eq!(found, [Some(expected)], "{}", policy.as_str());
            }
        });
    }

    #[test]
    fn a_plan_that_no_resample_gives_is_not_confirmed() {
        with_blocks(|_, input| {
            let parameters = Parameters::default();
            let plan = decide(Policy::Interleave, input, &parameters);
            let found = tested(&plan, Policy::Object, input, &parameters);
            assert_eq!(found[0].unwrap().confidence.share, 0.0);
        });
    }

    #[test]
    fn interleaving_what_first_touch_has_spread_already_has_to_be_sure() {
        let placed = |touchers: &[u32], share| {
            let (mut analysis, _folder) = Samples::of("opteron-4", &[0, 1, 2, 3])
                .analysed()
                .into_parts();
            let grid = &mut analysis.attribution.objects[0];
            let pages = (grid.size_bytes / grid.affinity.page_bytes) as u32;
            let toucher = |page: u32| ThreadIndex(touchers[page as usize % touchers.len()]);
            grid.first_touches = (0..pages).map(|page| (page, toucher(page))).collect();
            let machine = preset("opteron-4").unwrap();
            let planner = Planner::of(&analysis, &machine, None);
            let input = &planner.programs().unwrap()[0];
            let parameters = Parameters::default();
            let mut plan = decide(Policy::Interleave, input, &parameters);
            let confidence = Confidence { samples: 9, share };
            let tested = Tested {
                confidence,
                stood: 1.0,
            };
            apply(&mut plan, &[Some(tested)], input, &parameters);
            plan.decisions.remove(0).placement
        };
        let unsure = 0.35;
        assert_ne!(placed(&[0], unsure), Placement::FirstTouch);
        let half = placed(&[0, 1], unsure);
        assert_ne!(half, Placement::FirstTouch, "two of four nodes have it");
        assert_eq!(placed(&[0, 1, 2, 3], unsure), Placement::FirstTouch);
        assert_ne!(placed(&[0, 1, 2, 3], 1.0), Placement::FirstTouch);
    }

    #[test]
    fn unconfirmed_decisions_become_first_touch_with_a_reason() {
        with_blocks(|_, input| {
            let parameters = Parameters::default();
            let plan = decide(Policy::Object, input, &parameters);
            let with = |share, stood| {
                let mut plan = plan.clone();
                let confidence = Confidence { samples: 9, share };
                let tested = Tested { confidence, stood };
                apply(&mut plan, &[Some(tested)], input, &parameters);
                let [decision] = plan.decisions.as_slice() else {
                    panic!("{:?}", plan.decisions);
                };
                assert_eq!(decision.effect.samples, Some(9));
                assert_eq!(decision.effect.confidence, Some(share));
                decision.clone()
            };
            for (share, stood) in [(1.0, 0.0), (0.0, 1.0)] {
                assert_eq!(with(share, stood).placement, plan.decisions[0].placement);
            }
            let left = with(0.0, 0.0);
            assert_eq!(left.placement, Placement::FirstTouch);
            assert_eq!(left.effect.local_after, 0.25);
            let why = "too few samples to place it: `block` is decided in 0 % of resamples";
            assert!(left.why.ends_with(why), "{}", left.why);
        });
    }

    #[test]
    fn decided_plans_say_how_sure_they_are_and_those_of_traces_do_not() {
        let parameters = Parameters::default();
        with_blocks(|planner, _| {
            let decided = &planner.decide(&[Policy::Auto], &parameters).unwrap()[0];
            let object = &decided.prediction.objects[0];
            assert_eq!((object.samples, object.confidence), (3_999, Some(1.0)));
            assert_eq!(decided.plan.decisions[0].effect.confidence, Some(1.0));
            assert!(!decided.notes.iter().any(|note| note.contains("too few")));
        });
        let traced = shares_on([0, 1, 2, 3], 40).analysed();
        let (analysis, _folder) = traced.into_parts();
        let machine = preset("flash-8").unwrap();
        let planner = Planner::of(&analysis, &machine, None);
        let decided = &planner.decide(&[Policy::Auto], &parameters).unwrap()[0];
        assert_eq!(decided.prediction.objects[0].confidence, None);
        let effects = decided.plan.decisions.iter().map(|one| one.effect);
        assert!(
            effects
                .into_iter()
                .all(|one| (one.samples, one.confidence) == (None, None))
        );
    }
}
