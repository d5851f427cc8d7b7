//! Prediction for a whole plan, in figures and in words.

use nearpage_amount::{change, percent, time};
use serde::{Deserialize, Serialize};

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
}

/// Shares of local accesses, and relations of times, that differ by less are equal to a reader.
const NO_DIFFERENCE: f64 = 0.0005;
/// Loss of the local share, 0 to 1, from which there is a warning although the time is known not to grow.
const LOCAL_LOSS_MIN: f64 = 0.01;

/// Advice for a plan that does worse than first touch.
const INSTEAD: &str = "run without the plan, or make one with `nearpage plan --policy auto`";

/// Message that a plan takes longer than first touch, with advice; none if it does not.
pub fn slower_than_first_touch([first_touch_ns, planned_ns]: [f64; 2]) -> Option<String> {
    (planned_ns > first_touch_ns * (1.0 + NO_DIFFERENCE)).then(|| {
        format!(
            "slower than first touch: {} instead of {} ({}); {INSTEAD}",
            time(planned_ns),
            time(first_touch_ns),
            change(planned_ns / first_touch_ns - 1.0),
        )
    })
}

impl PlanPrediction {
    /// Times under first touch and under the plan.
    pub fn times_ns(&self) -> Option<[f64; 2]> {
        Some([self.first_touch_ns?, self.planned_ns?])
    }

    /// True if the plan is predicted to be slower than first touch; none if no time was predicted.
    pub fn is_slower(&self) -> Option<bool> {
        Some(slower_than_first_touch(self.times_ns()?).is_some())
    }

    /// True if fewer accesses are predicted to be local than under first touch.
    pub fn is_less_local(&self) -> bool {
        self.local_after < self.local_before - NO_DIFFERENCE
    }

    /// Warning for a user of the plan, with advice; none if the plan does no worse than first touch by any measure.
    pub fn warning(&self) -> Option<String> {
        let shares = || {
            let [before, after] = [self.local_before, self.local_after].map(percent);
            format!("{after} of the accesses are local instead of {before}")
        };
        let times_ns = self.times_ns();
        match times_ns.and_then(slower_than_first_touch) {
            Some(slower) => Some(format!("this plan is predicted to be {slower}")),
            None if times_ns.is_some() && self.local_after > self.local_before - LOCAL_LOSS_MIN => {
                None
            }
            None if times_ns.is_some() => Some(format!(
                "this plan makes fewer accesses local than first touch ({}); the time is predicted not to grow, as they \
                 are spread over more memory controllers",
                shares()
            )),
            None if self.is_less_local() => Some(format!(
                "this plan is predicted to do worse than first touch: {}; {INSTEAD}",
                shares()
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PlanPrediction;

    fn warning(local_after: f64, planned_ns: Option<f64>) -> Option<String> {
        let predicted = PlanPrediction {
            local_before: 0.27,
            local_after,
            first_touch_ns: planned_ns.map(|_| 100.0),
            planned_ns,
        };
        predicted.warning()
    }

    #[test]
    fn a_loss_of_local_accesses_that_costs_no_time_is_named_from_a_point_on() {
        assert_eq!(warning(0.266, Some(80.0)), None);
        assert_eq!(warning(0.30, Some(100.0)), None);
        let words = warning(0.25, Some(80.0)).expect("a warning");
        assert!(
            words.contains("25 % of the accesses are local instead of 27 %"),
            "{words}"
        );
        let slower = warning(0.266, Some(120.0)).expect("a warning");
        assert!(slower.contains("slower than first touch"), "{slower}");
        // Without times, only shares are known.
        assert!(warning(0.266, None).is_some());
        assert_eq!(warning(0.27, None), None);
    }
}
