//! Sampling rate (§3.3.1).

use super::parameters::CarrefourParameters;
use crate::View;

/// - Samples are off while no application is managed (step 1 of §3.2.1: "no reason to subject them to sampling
///   overhead"). This includes the time before the first decision, unless `early_samples` is set, which interprets
///   §3.3.1 as sampling from the start.
/// - The rate is fast when an application becomes managed, and after a decision that placed ten pages or more.
/// - The rate is slow after a decision that placed fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Fast,
    Slow,
    Off,
}

impl Rate {
    /// The rate before the first decision.
    pub fn first(parameters: &CarrefourParameters) -> Self {
        match parameters.early_samples {
            0 => Self::Off,
            _ => Self::Fast,
        }
    }

    /// The rate after a decision that placed `actions` pages; `managed` tells whether any application is managed.
    pub fn next(self, managed: bool, actions: u64, parameters: &CarrefourParameters) -> Self {
        match self {
            _ if !managed => Self::Off,
            Self::Off => Self::Fast,
            _ if actions < parameters.actions => Self::Slow,
            _ => Self::Fast,
        }
    }

    /// The samples that the policy asks the driver for.
    pub fn view(self, parameters: &CarrefourParameters) -> View {
        let cycles = match self {
            Self::Fast => parameters.fast_cycles,
            Self::Slow => parameters.slow_cycles,
            Self::Off => return View::Nothing,
        };
        View::Samples {
            cycles,
            cost_cycles: parameters.sample_cost_cycles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_actions_keep_the_rate_high() {
        let parameters = CarrefourParameters::default();
        let next = |rate: Rate, managed, actions| rate.next(managed, actions, &parameters);
        assert_eq!(next(Rate::Fast, true, 10), Rate::Fast);
        assert_eq!(next(Rate::Fast, true, 9), Rate::Slow);
        assert_eq!(next(Rate::Slow, true, 9), Rate::Slow);
        assert_eq!(next(Rate::Slow, true, 10), Rate::Fast);
        assert_eq!(next(Rate::Fast, false, 0), Rate::Off);
        assert_eq!(next(Rate::Off, true, 0), Rate::Fast);
        let cycles = |rate: Rate| match rate.view(&parameters) {
            View::Samples { cycles, .. } => Some(cycles),
            _ => None,
        };
        assert_eq!(
            [Rate::Fast, Rate::Slow, Rate::Off].map(cycles),
            [Some(65_000), Some(260_000), None]
        );
    }
}
