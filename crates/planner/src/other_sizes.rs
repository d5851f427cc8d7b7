//! Note on objects about which `auto` decides otherwise than the recorded input asks for, so that the plan suits inputs
//! of another size.

use nearpage_plan::{Decision, Placement, Plan};

use crate::context::Input;
use crate::decide::decide;
use crate::parameters::{Parameters, Policy};

/// Most objects that the note names.
const NAMED_MAX: usize = 4;

/// The note; none if the plan would be the same.
pub(crate) fn note(plan: &Plan, input: &Input, parameters: &Parameters) -> Option<String> {
    if parameters.same_input {
        return None;
    }
    let parameters = Parameters {
        same_input: true,
        ..*parameters
    };
    let recorded = decide(Policy::Auto, input, &parameters);
    let is_known = |one: &Decision| {
        let mut decisions = plan.decisions.iter();
        decisions.any(|other| other.subject == one.subject && other.placement == one.placement)
    };
    let others = recorded.decisions.iter();
    let others = others.filter(|one| !is_known(one) && one.placement != Placement::FirstTouch);
    let mut words: Vec<String> = others
        .map(|one| format!("{} ({})", one.name, one.placement))
        .collect();
    words.dedup();
    let more = words.len().saturating_sub(NAMED_MAX);
    words.truncate(NAMED_MAX);
    if more > 0 {
        words.push(format!("{more} more"));
    }
    (!words.is_empty()).then(|| {
        format!(
            "another size of input may change what these placements do, so that others are planned: {}; --same-input \
             weighs the recorded input alone",
            words.join(", ")
        )
    })
}
