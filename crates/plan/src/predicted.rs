//! Prediction for a whole plan, in figures and in words.

use nearpage_amount::{change, percent, time};
use serde::{Deserialize, Serialize};

use crate::file::{Placement, Plan};

/// Prediction for a whole plan on its machine, made with the plan, for users who run the plan later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanPrediction {
    /// Share of all accesses that is local under first touch, 0 to 1.
    pub local_before: f64,
    /// Share of all accesses that is local under the plan, 0 to 1.
    pub local_after: f64,
    /// Time under first touch, in nanoseconds; absent where no time was predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_touch_ns: Option<f64>,
    /// Time under the plan, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_ns: Option<f64>,
    /// Bounds of the change of all threads' time together, as shares of their time under first touch. Only for a plan that
    /// seems slower by its slowest thread, where that is in doubt and the sum is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_threads_change: Option<[f64; 2]>,
}

/// Shares of local accesses that differ by less are equal to a reader.
const NO_DIFFERENCE: f64 = 0.0005;
/// Increase of the time over first touch, as a share of it, from which a plan counts as slower. Predictions tell no less.
const SLOWER_MIN: f64 = 0.005;
/// Loss of the local share, 0 to 1, from which there is a warning although the time is known not to grow.
const LOCAL_LOSS_MIN: f64 = 0.01;

/// Advice for a plan of a policy that does worse than first touch.
fn advice(policy: &str) -> &'static str {
    match policy {
        "auto" => "run without the plan",
        _ => "run without the plan, or make one with `nearpage plan --policy auto`",
    }
}

/// Does a plan take longer than first touch, by more than predictions tell?
pub fn is_slower([first_touch_ns, planned_ns]: [f64; 2]) -> bool {
    planned_ns > first_touch_ns * (1.0 + SLOWER_MIN)
}

/// Message that a policy's plan takes longer than first touch, with advice; none if it does not.
pub fn slower_than_first_touch(times_ns: [f64; 2], policy: &str) -> Option<String> {
    is_slower(times_ns).then(|| {
        format!(
            "slower than first touch: {}; {}",
            instead(times_ns),
            advice(policy)
        )
    })
}

/// A plan's time beside that of first touch, in words.
fn instead([first_touch_ns, planned_ns]: [f64; 2]) -> String {
    format!(
        "{} instead of {} ({})",
        time(planned_ns),
        time(first_touch_ns),
        change(planned_ns / first_touch_ns - 1.0)
    )
}

impl PlanPrediction {
    /// Times under first touch and under the plan.
    pub fn times_ns(&self) -> Option<[f64; 2]> {
        Some([self.first_touch_ns?, self.planned_ns?])
    }

    /// True if the plan is predicted to be slower than first touch; none if no time was predicted.
    pub fn is_slower(&self) -> Option<bool> {
        Some(is_slower(self.times_ns()?))
    }

    /// True if fewer accesses are predicted to be local than under first touch.
    pub fn is_less_local(&self) -> bool {
        self.local_after < self.local_before - NO_DIFFERENCE
    }

    /// Warning for a user of a policy's plan, with advice; none if the plan does no worse than first touch by any
    /// measure. `is_near_one`: the plan places an object near one thread.
    fn warning(&self, policy: &str, is_near_one: bool) -> Option<String> {
        let shares = || {
            let [before, after] = [self.local_before, self.local_after].map(percent);
            format!("{after} of the accesses are local instead of {before}")
        };
        let times_ns = self.times_ns();
        if let (Some(times_ns), Some([least, most])) = (times_ns, self.all_threads_change)
            && is_slower(times_ns)
        {
            return Some(format!(
                "the slowest thread is predicted to take longer under this plan than under first touch, {}, \
                 but another recording may show the opposite; the change of all threads' time together lies between {} and {}",
                instead(times_ns),
                change(least),
                change(most)
            ));
        }
        match times_ns.and_then(|times_ns| slower_than_first_touch(times_ns, policy)) {
            Some(slower) => Some(format!("this plan is predicted to be {slower}")),
            None if times_ns.is_some() && self.local_after > self.local_before - LOCAL_LOSS_MIN => {
                None
            }
            None if times_ns.is_some() => Some(format!(
                "this plan makes fewer accesses local than first touch ({}); the time is predicted not to grow, as {}",
                shares(),
                match is_near_one {
                    true =>
                        "threads that others wait for have more of them, or more memory controllers serve them",
                    false => "they are spread over more memory controllers",
                }
            )),
            None if self.is_less_local() => Some(format!(
                "this plan is predicted to do worse than first touch: {}; {}",
                shares(),
                advice(policy)
            )),
            _ => None,
        }
    }
}

impl Plan {
    /// Warning for a user of the plan, with advice; none if it was predicted to do no worse than first touch by any
    /// measure, or if nothing was predicted.
    pub fn warning(&self) -> Option<String> {
        let mut placements = self.decisions.iter().map(|one| &one.placement);
        let is_near_one = placements.any(|one| matches!(one, Placement::Whole(_)));
        self.predicted?.warning(&self.policy, is_near_one)
    }
}

#[cfg(test)]
mod tests {
    use super::PlanPrediction;

    /// The warning about a plan of the policy `object`.
    fn warning(local: [f64; 2], times_ns: Option<[f64; 2]>) -> Option<String> {
        predicted(local, times_ns).warning("object", false)
    }

    fn predicted(local: [f64; 2], times_ns: Option<[f64; 2]>) -> PlanPrediction {
        PlanPrediction {
            local_before: local[0],
            local_after: local[1],
            first_touch_ns: times_ns.map(|times| times[0]),
            planned_ns: times_ns.map(|times| times[1]),
            all_threads_change: None,
        }
    }

    #[test]
    fn a_plan_that_is_quicker_for_all_threads_together_is_not_advised_against() {
        let with = |times_ns| PlanPrediction {
            all_threads_change: Some([-0.094, -0.045]),
            ..predicted([0.1, 0.3], Some(times_ns))
        };
        assert_eq!(
            with([559e6, 580e6])
                .warning("auto", false)
                .expect("a warning"),
            "the slowest thread is predicted to take longer under this plan than under first touch, 580 ms instead of \
             559 ms (3.8 % more), but another recording may show the opposite; the change of all threads' time together \
             lies between 9.4 % less and 4.5 % less"
        );
        assert_eq!(with([559e6, 500e6]).warning("auto", false), None);
    }

    #[test]
    fn a_plan_that_does_worse_than_first_touch_says_so() {
        assert_eq!(warning([0.5, 0.9], None), None);
        assert_eq!(warning([0.5, 0.9], Some([100e6, 90e6])), None);
        assert_eq!(warning([0.5, 0.5], Some([100e6, 100e6])), None);
        assert_eq!(warning([0.5, 0.6], Some([100e6, 100.4e6])), None);
        assert_eq!(
            warning([0.76, 0.43], None).expect("a warning"),
            "this plan is predicted to do worse than first touch: 43 % of the accesses are local instead of 76 %; \
             run without the plan, or make one with `nearpage plan --policy auto`"
        );
        assert_eq!(
            warning([0.5, 0.9], Some([267e6, 293e6])).expect("a warning"),
            "this plan is predicted to be slower than first touch: 293 ms instead of 267 ms (9.7 % more); run \
             without the plan, or make one with `nearpage plan --policy auto`"
        );
        let faster = warning([0.9, 0.25], Some([100e6, 90e6])).expect("a warning");
        assert!(
            faster.contains("25 % of the accesses are local instead of 90 %"),
            "{faster}"
        );
        assert!(
            faster.ends_with("spread over more memory controllers"),
            "{faster}"
        );
        let alone = predicted([0.9, 0.8], Some([100e6, 90e6])).warning("auto", true);
        let words = alone.expect("a warning");
        assert!(words.contains("as threads that others wait for"), "{words}");
    }

    #[test]
    fn a_loss_of_local_accesses_that_costs_no_time_is_named_from_a_point_on() {
        let quicker = Some([100.0, 80.0]);
        assert_eq!(warning([0.27, 0.266], quicker), None);
        assert_eq!(warning([0.27, 0.30], Some([100.0, 100.0])), None);
        let words = warning([0.27, 0.25], quicker).expect("a warning");
        assert!(
            words.contains("25 % of the accesses are local instead of 27 %"),
            "{words}"
        );
        // Without times, only shares are known.
        assert!(warning([0.27, 0.266], None).is_some());
        assert_eq!(warning([0.27, 0.27], None), None);
    }

    #[test]
    fn users_of_a_plan_of_auto_are_not_advised_to_make_one() {
        let slower = predicted([0.5, 0.9], Some([100.0, 120.0]));
        let words = slower.warning("auto", false).expect("a warning");
        assert!(words.ends_with("; run without the plan"), "{words}");
    }
}
