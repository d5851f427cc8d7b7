//! How much is tried, and how much evidence is enough, in a recording and in a resample of it.

/// How much is tried to find a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// All that is worth it.
    Recording,
    /// Of resamples there are many: fewer places where an object might be cut, fewer frequencies. Half of the samples are
    /// enough, and half of the evidence, as they have no more.
    Resample {
        /// Look for a period, too: the search takes longer than everything else together
        /// ([`crate::pattern::may_repeat`]).
        repeats: bool,
    },
}

impl Effort {
    /// A number of samples, or evidence from them, that is enough in a recording.
    pub fn enough(self, in_recording: f64) -> f64 {
        match self {
            Self::Recording => in_recording,
            Self::Resample { .. } => crate::RESAMPLE_SHARE * in_recording,
        }
    }
}
