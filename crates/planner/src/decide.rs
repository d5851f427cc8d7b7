//! From a recording's attribution to a plan, without replaying anything.

use nearpage_plan::{Decision, Plan};
use nearpage_recording::ObjectKind;

use crate::auto::{Model, choose};
use crate::context::{Context, Input};
use crate::group::{decide_group, first_touched, worth_deciding};
use crate::parameters::{Parameters, Policy};
use crate::subject::subject;

/// Makes a plan. An object has no decision if it is not worth placing, cannot be recognised again, or is where it
/// should be by first touch.
pub fn decide(policy: Policy, input: &Input, parameters: &Parameters) -> Plan {
    if policy == Policy::Auto {
        return by_model(input, parameters);
    }
    let context = Context::new(input);
    let mut decisions: Vec<Decision> = Vec::new();
    let mut left: Vec<Decision> = Vec::new();
    for group in &input.attribution.objects {
        if group.kind == ObjectKind::Code || !worth_deciding(&context, group, parameters) {
            continue;
        }
        let Some(subject) = subject(context.tables, group) else {
            continue;
        };
        let decided = decide_group(policy, &context, group, &subject, parameters);
        if decided.is_empty() && group.kind == ObjectKind::Heap {
            left.push(first_touched(&context, group, subject, parameters));
        }
        decisions.extend(decided);
    }
    // A placement of the heap would move these objects, too.
    if decisions
        .iter()
        .any(|decision| decision.subject.is_brk_heap())
    {
        decisions.extend(left);
    }
    Plan {
        program: input.program.clone(),
        policy: policy.as_str().to_owned(),
        machine: input.machine.name.clone(),
        page_bytes: context.page_bytes,
        threads: None,
        teams: context.plan_teams(),
        decisions,
        predicted: None,
        online_migration: None,
        phases: Vec::new(),
    }
}

/// The plan that [`Model`] finds best; by pattern where nothing can be predicted.
fn by_model(input: &Input, parameters: &Parameters) -> Plan {
    let Some(mut model) = Model::new(input, parameters) else {
        let plan = decide(Policy::Object, input, parameters);
        return Plan {
            policy: Policy::Auto.as_str().to_owned(),
            ..plan
        };
    };
    match choose(input, parameters, &mut model) {
        Ok(chosen) => chosen.plan,
        Err(never) => match never {},
    }
}
