//! `auto`: the placements of objects with which the program takes least time.
//!
//! Each object has several choices (`alternatives`): first touch, the placement of its pattern, blocks by thread, all
//! of it near one thread, interleaving (evenly, or as its users are spread), pages by Eq. 1 and 2, and, where the
//! machine supports them, copies for all readers. A [`Judge`] says how long the program takes under a selection of
//! choices. [`Model`] predicts this time from affinities and the machine's contention model, for recordings of any
//! kind. Replay of a trace is the other judge ([`crate::replay`]).
//!
//! [`choose`] starts from the best selection that treats all objects by one rule. Then it looks at objects one by one,
//! the costliest first, until nothing changes. It prefers, in this order: leaving an object alone, placements that fit
//! other inputs and machines (patterns), and page runs. A choice is passed over only for one that is faster by more
//! than the uncertainty of the prediction. The uncertainty is two standard errors of the samples that the choice makes
//! faster or slower, plus a share of the time that says how far the judge is trusted ([`Margins`]). A judge by samples
//! takes at least the error of the object's number of samples, as relief of queues grows with that number, too. Among
//! choices that are about as quick, a pattern's placement that makes more accesses local is preferred. Page runs are
//! chosen and judged by the same accesses. So each page is assumed to owe one sample to chance: otherwise runs would
//! fit pages with one sample each perfectly.
//!
//! If only samples tell of accesses, an object's structure comes first (`preference`). A placement by its pattern that
//! makes hardly an access slower is kept, whatever the object's share of the time. It gives way only to a choice that
//! is quicker by more than the uncertainty of sampled times. So two recordings of one program give the same plan,
//! though their times differ.
//!
//! An object that is near the thread that works on it alone only because the thread that fills it has the same node is
//! placed near its thread, if the plan places anything: it costs nothing, and holds for teams of other sizes, too.
//!
//! Another input has another size, and a plan is judged for that size, too (`inputs`). A placement that has a size of
//! its own (page runs, parts, block-cyclic) is passed over if it could cost too much: more than a share of its saving,
//! should the object's pattern not grow as the placement does. It is compared with leaving the object alone and, for the heap,
//! with each placement without a size. A plan as a whole must not cost anything with another size. It also has to save
//! more than a share of what it makes slower, as the difference of two large sums is the first to change with the
//! input. Even interleaving is exempt: it has no size, and relieves queues.
//!
//! Plans are for runs with a longer parallel part than the recorded one ([`Parameters::runtime_scale`]): a recording is
//! of few steps, and a run of many. Parts in which one thread runs alone, such as the main thread's initialisation, are
//! assumed to be as long as recorded. An object that one thread fills has more choices ([`Parameters::phases`]):
//! placements that begin when a second thread runs, and each page near the thread that uses it first from then on. No
//! other change of phase is looked for: this one occurs in any run of the program, whatever its input. Its saving is
//! weighed against a move of every page. A judge that knows the order of accesses also judges placements that hold only
//! while several threads run, and copies of code. If the program marks a stable phase (`nearpage_begin`), only this
//! phase counts.
//!
//! No placement covers differences between inputs, or changes as a program goes on. For these, a plan may say that
//! online `auto` moves its pages from there ([`Parameters::online_migration`]), if a replay shows that migration pays.
//!
//! A phase of a run that is known otherwise ([`Parameters::of_phase`]: the replay looks for functions with which long
//! phases begin) is decided in the same way, from its own accesses. Its decisions say what changes when the phase
//! begins, given what comes before and after.
//!
//! A replay is skipped for an object that could not save enough, even if all its misses went to the nearest node
//! instead of the farthest. Such an object is part of unmatched memory.
//!
//! Memory in no object worth deciding about, such as small objects and data without a name, is decided about together
//! (`unmatched`). Rows and atoms of a few hundred bytes share pages, so nothing can be said of them one by one. But
//! much is won if they are spread over the nodes, or each of their pages goes to the thread that uses it next. This is
//! tried last, and a plan changes only if it saves as much as an object has to. A decision then keeps objects apart
//! that are left alone: they would be part of unmatched memory otherwise. A judge by samples does not decide about
//! unmatched memory if the first touch of most of it is unknown, as many instances lie over each other.
//!
//! On a machine of one memory node, or with a network that cannot be modelled, nothing can be predicted. There the
//! object's pattern decides, as under `object`, so that the plan serves other machines.

mod alternatives;
mod choice;
mod contention;
mod equal_work;
mod inputs;
mod judged;
mod margins;
mod model;
mod object_alternatives;
mod preference;
mod progress;
mod unmatched;

pub use alternatives::{Alternatives, Selection};
pub use margins::Margins;
pub use model::Model;
pub(crate) use preference::{is_spread, loses_nothing, relieves_one_node};
pub use progress::SearchProgress;
pub(crate) use unmatched::may_be_unmatched;

use judged::Judged;
use nearpage_plan::Plan;

use crate::context::{Context, Input};
use crate::parameters::Parameters;

/// Predicts how long a program takes under a plan.
pub trait Judge {
    /// Error of a prediction.
    type Error;

    /// Times under some selections, in nanoseconds, of a run whose parallel part is [`Parameters::runtime_scale`] times
    /// as long as recorded.
    ///
    /// # Errors
    /// The judge cannot predict a time.
    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error>;

    /// How far the judge is trusted.
    fn margins(&self) -> Margins;

    /// Most objects that are looked at one by one, the costliest first.
    fn objects_max(&self) -> usize;

    /// Progress for a display, if there is one.
    fn progress(&self) -> Option<&SearchProgress> {
        None
    }
}

/// A plan, and the times that decided for it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenPlan {
    /// The plan.
    pub plan: Plan,
    /// Times of runs that the plan is for ([`Parameters::runtime_scale`]).
    pub time: Times,
}

/// Times of a run without and with a plan, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Time if everything is left to first touch.
    pub first_touch_ns: f64,
    /// Time under the plan.
    pub planned_ns: f64,
}

/// Makes the plan that a judge finds best, as the module's documentation says.
///
/// # Errors
/// The judge cannot predict a time.
pub fn choose<J: Judge>(
    input: &Input,
    parameters: &Parameters,
    judge: &mut J,
) -> Result<ChosenPlan, J::Error> {
    let chosen = choose_within(f64::INFINITY, input, parameters, judge)?;
    Ok(chosen.expect("no time is as long"))
}

/// As [`choose`], but none if the program takes longer than `limit_ns` under all rules that treat objects alike.
///
/// # Errors
/// The judge cannot predict a time.
pub fn choose_within<J: Judge>(
    limit_ns: f64,
    input: &Input,
    parameters: &Parameters,
    judge: &mut J,
) -> Result<Option<ChosenPlan>, J::Error> {
    let context = Context::new(input);
    let (margins, objects_max) = (judge.margins(), judge.objects_max());
    let alternatives = Alternatives::new(&context, input, parameters, &margins);
    let mut judged = Judged {
        judge,
        alternatives: &alternatives,
        known: Vec::new(),
    };
    let nothing = alternatives.nothing();
    let first_touch_ns = judged.times_ns(std::slice::from_ref(&nothing))?[0];
    let preferred = alternatives.preferred();
    // Only a judge by samples has preferences, and such a judge gets no limit.
    let start = if preferred != nothing {
        preferred
    } else if let Some(alike) = judged.best_alike(first_touch_ns, limit_ns)? {
        alike
    } else {
        return Ok(None);
    };
    let mut decided: Vec<usize> = alternatives.costliest().take(objects_max).collect();
    let one_by_one = judged.one_by_one(start, &decided)?;
    let with_unmatched = judged.with_unmatched(one_by_one, &decided, first_touch_ns)?;
    decided.extend(alternatives.unmatched());
    let selection = judged.without_losses(with_unmatched, &decided, first_touch_ns)?;
    let planned_ns = judged.judged_ns(std::slice::from_ref(&selection))?[0];
    let worth = judged.worth_ns(&selection, &decided, planned_ns)?;
    Ok(Some(ChosenPlan {
        plan: alternatives.plan(&selection, |object| {
            (!worth[object].is_nan()).then(|| worth[object] / first_touch_ns.max(1.0))
        }),
        time: Times {
            first_touch_ns,
            planned_ns,
        },
    }))
}
