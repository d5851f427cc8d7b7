//! Detection of options that were set and have no effect.

use nearpage_machine::{MoveCost, Timing};
use nearpage_online::{Initial, ParameterError};

use super::{Copy, Information, Job, Options};
use crate::policy::SimulatedPolicy;

/// Options about the steps of moving a page.
pub(super) const OF_STEPS: [&str; 4] = ["copy", "flush", "batch_pages", "batch_ns"];
/// Options about what a policy is shown.
pub(super) const OF_VIEW: [&str; 3] = ["source", "every", "min_latency"];
/// Which pages are placed.
pub(super) const OF_PAGES: [&str; 1] = ["pages"];

impl Job {
    /// Why an option has no effect on this job; `None`: it has one.
    fn without_effect(&self, name: &str, timing: &Timing) -> Option<&'static str> {
        let pages_stay = matches!(
            self.policy,
            SimulatedPolicy::Static(_) | SimulatedPolicy::PostFacto | SimulatedPolicy::BlockNaive
        );
        let Options {
            information,
            move_ns,
            copy,
            ..
        } = self.options;
        if OF_PAGES.contains(&name) {
            let stay = matches!(self.policy, SimulatedPolicy::Static(Initial::FirstTouch));
            return stay.then_some("first touch has every page where it is first touched");
        }
        if OF_VIEW.contains(&name) {
            return match () {
                () if pages_stay => Some("no policy decides while the program runs"),
                () if name == "min_latency" && information != Information::Loads => {
                    Some("it is for source=loads")
                }
                () => None,
            };
        }
        match timing.moves {
            _ if pages_stay => Some("no policy moves pages"),
            _ if move_ns.is_some() => Some("move_ns makes the cost of a move one number"),
            MoveCost::Fixed(_) => {
                Some("the cost of a move is one number on this machine, without [moves.steps]")
            }
            MoveCost::Steps(steps) => {
                let cannot = copy == Copy::Hardware && steps.hardware_copy_ns.is_none();
                (name == "copy" && cannot)
                    .then_some("the machine does not say how long its directory controllers take to copy a page (hardware_copy_ns in [moves.steps])")
            }
        }
    }

    /// Refuses options that were set and have no effect on any of the jobs.
    ///
    /// # Errors
    /// Such an option, and why.
    pub(crate) fn check_effects(jobs: &[Self], timing: &Timing) -> Result<(), ParameterError> {
        let given = jobs.iter().flat_map(|job| &job.given);
        for name in given {
            let set = jobs.iter().filter(|job| job.given.contains(name));
            let reasons = set.map(|job| job.without_effect(name, timing));
            let reasons: Option<Vec<&str>> = reasons.collect();
            // Where policies that move pages are among them, theirs says more.
            if let Some(reason) = reasons.and_then(|reasons| reasons.into_iter().max()) {
                return Err(ParameterError(format!("{name} has no effect: {reason}")));
            }
        }
        Ok(())
    }
}
