//! `auto`: of all that may be done with each object, what makes the program take least time.
//!
//! For each object there are several choices (`alternatives`): leave it to first touch, the placement
//! of its pattern, blocks by thread, all of it near one thread, interleaving (evenly, or as its users
//! are spread), pages by Eq. 1 and 2, and, where the machine can, copies for all readers. A [`Judge`]
//! says how long the program takes under a selection of them: [`Model`] predicts it from affinities on
//! the machine's contention model, whatever kind of recording they are of; a replay of a full
//! recording is another judge (the simulator's, in the command).
//!
//! [`choose`] starts from the best of the selections that treat all objects by one rule, and then
//! takes objects one by one, the costliest first, until nothing changes. It prefers, in this order:
//! leaving an object alone, placements that fit other inputs and machines (patterns), and page runs;
//! each is passed over only for one that is faster by more than what is uncertain about the
//! prediction (but a pattern's placement that makes more local is preferred to one about as quick): two standard errors of the samples that it makes faster or slower, all of the object's
//! together (where the judge goes by samples, at least of their number, by which relief of queues grows
//! too), and a share of the time that says how far the judge is trusted ([`Margins`]). Page runs are chosen by the very accesses that they are
//! judged by: each page is taken to owe one sample to chance, so that pages with a sample each, which
//! runs would suit perfectly, are left alone.
//!
//! Where samples alone tell of accesses, an object's structure comes first (`preference`): a placement by its pattern that makes
//! hardly an access slower is kept whatever part of the time the object is, and gives way only to what is quicker by more than
//! times of samples are known. Two recordings of one program then give the same plan, though their times differ.
//!
//! Another input has another size, and a plan is judged as if it were there, too (`inputs`): placements
//! that have a size of their own (page runs, block-cyclic) are passed over where they would cost more than a
//! share of what they save if the object's pattern did not grow as they do, compared with leaving it alone and, of
//! the heap, with each placement that has no size. A plan as a whole must not cost anything then, and has to save more than
//! a share of what it makes slower, as the difference of two large sums is the first that changes with the
//! input. Even interleaving is exempt: it has no size, and relieves queues.
//!
//! Plans are for runs whose parallel part is half as long again as the recorded one's ([`Parameters::runtime_scale`]), as a
//! recording is of few steps, and a run of many. What one thread does alone before and after, which is slower where the
//! master thread initialises what others use, is taken to be as long as recorded. For an object that one thread fills, placements that
//! begin when a second thread runs are choices too, and each page near the thread that uses it first then
//! ([`Parameters::phases`]): the one phase change that is looked for, since any run of the program shows
//! it, whatever its input. What it saves is weighed against a move of every page. Where the judge knows in
//! which order accesses were made, they may hold only while several threads run; it judges copies of code,
//! too. A stable phase that is marked (`nearpage_begin`) counts alone.
//!
//! What another input asks for, and what changes as a program goes on, no placement has. A plan may say that online `auto`
//! moves its pages from there ([`Parameters::online_migration`]): the command's replay tells whether that pays.
//!
//! A phase of a run that is known otherwise ([`Parameters::of_phase`]: the command looks for functions with which
//! long ones begin) is decided about in the same way, from its own accesses: what is to change when it begins, given
//! what came before and what comes after.
//!
//! A replay is not asked about an object that could not save what is asked of a decision, if all that it misses were on
//! the farthest node, and then on the nearest: it is part of unmatched memory.
//!
//! What is in none of the objects worth deciding about, small objects, data without a name, is decided about
//! together (`rest`): rows and atoms of a few hundred bytes share pages, so that nothing can be said of them one by
//! one, but much is won where they are spread over the nodes, or each of their pages goes to the thread that is the
//! next to use it. That is tried last, and nothing else of a plan changes where it saves no more than an object has
//! to. An object that is left alone would be part of unmatched memory, and is kept apart by a decision then. Where it is
//! not known who touched most of it first, as many instances lie over each other in what samples say, a judge by samples
//! is not asked.
//!
//! A machine of one memory node, or one whose network cannot be modelled, has nothing to predict:
//! there the object's pattern decides, as under `object`, so that the plan serves other machines.

mod alternatives;
mod choice;
mod contention;
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
pub(crate) use preference::{loses_nothing, relieves_one_node};
pub use progress::SearchProgress;
pub(crate) use unmatched::may_be_unmatched;

use judged::Judged;
use nearpage_plan::Plan;

use crate::context::{Context, Input};
use crate::parameters::Parameters;

/// Says how long a program takes under a plan.
pub trait Judge {
    /// Why it can't.
    type Error;

    /// The time under each of some selections, in nanoseconds, of a run whose parallel part is
    /// [`Parameters::runtime_scale`] times as long as recorded.
    ///
    /// # Errors
    /// Whatever keeps it from saying so.
    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error>;

    /// How far it is trusted.
    fn margins(&self) -> Margins;

    /// Objects that are looked at one by one, the costliest first.
    fn objects_max(&self) -> usize;

    /// Where a display of progress looks, if there is one.
    fn progress(&self) -> Option<&SearchProgress> {
        None
    }
}

/// A plan, and the times that decided for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The plan.
    pub plan: Plan,
    /// Of runs that it was decided for ([`Parameters::runtime_scale`]).
    pub time: Times,
}

/// What a plan does to a run, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// If everything is left to first touch.
    pub first_touch_ns: f64,
    /// Under the plan.
    pub planned_ns: f64,
}

/// Makes the plan that a judge finds best; see the module.
///
/// # Errors
/// The judge's.
pub fn choose<J: Judge>(
    input: &Input,
    parameters: &Parameters,
    judge: &mut J,
) -> Result<Chosen, J::Error> {
    let chosen = choose_within(f64::INFINITY, input, parameters, judge)?;
    Ok(chosen.expect("no time is as long"))
}

/// The same, unless under all rules that treat objects alike the program takes longer than `limit_ns`.
///
/// # Errors
/// The judge's.
pub fn choose_within<J: Judge>(
    limit_ns: f64,
    input: &Input,
    parameters: &Parameters,
    judge: &mut J,
) -> Result<Option<Chosen>, J::Error> {
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
    // Preferences are of samples, whose judge is given no limit.
    let start = if preferred != nothing {
        preferred
    } else if let Some(alike) = judged.best_alike(first_touch_ns, limit_ns)? {
        alike
    } else {
        return Ok(None);
    };
    let mut decided: Vec<usize> = alternatives.costliest().take(objects_max).collect();
    let one_by_one = judged.one_by_one(start, &decided)?;
    let with_rest = judged.with_rest(one_by_one, &decided, first_touch_ns)?;
    decided.extend(alternatives.rest());
    let selection = judged.without_losses(with_rest, &decided, first_touch_ns)?;
    let planned_ns = judged.judged_ns(std::slice::from_ref(&selection))?[0];
    let worth = judged.worth_ns(&selection, &decided, planned_ns)?;
    Ok(Some(Chosen {
        plan: alternatives.plan(&selection, |object| {
            (!worth[object].is_nan()).then(|| worth[object] / first_touch_ns.max(1.0))
        }),
        time: Times {
            first_touch_ns,
            planned_ns,
        },
    }))
}
