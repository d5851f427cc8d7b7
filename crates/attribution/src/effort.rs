//! How thoroughly patterns are searched for, and how much evidence they need, in a recording and in its resamples.

/// Thoroughness of a search for a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Full search.
    Recording,
    /// Reduced search, as there are many resamples: fewer places for segment boundaries and fewer frequencies. A
    /// resample has half of the samples, so half of the evidence is enough.
    Resample {
        /// Whether to search for periods, which takes longer than all other steps together
        /// ([`crate::pattern::may_repeat`]).
        repeats: bool,
    },
}

impl Effort {
    /// Threshold on samples or evidence, from the threshold for a whole recording.
    pub fn enough(self, in_recording: f64) -> f64 {
        match self {
            Self::Recording => in_recording,
            Self::Resample { .. } => crate::RESAMPLE_SHARE * in_recording,
        }
    }
}
