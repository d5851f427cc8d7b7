//! Policies, and the thresholds by which they decide.

use nearpage_attribution::RESAMPLE_SHARE;

use crate::model_error::ModelErrors;

/// A policy that decides placement before a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The placement that takes least time by the machine's contention model ([`crate::auto`]).
    #[default]
    Auto,
    /// By the pattern found in each object: block, block-cyclic, interleave, one thread; page runs
    /// where no pattern fits (NumaMMA §4.1.3 and its future work).
    Object,
    /// Each page to the node with the most accesses to it (Marathe, Eq. 1).
    Uniform,
    /// Each page on the node from which its accesses cost least (Marathe, Eq. 2).
    HopSensitive,
    /// Every object round-robin by page (the baseline of Marathe §9.3).
    Interleave,
}

impl Policy {
    /// All policies, in the order of their documentation.
    pub const ALL: [Self; 5] = [
        Self::Auto,
        Self::Object,
        Self::Uniform,
        Self::HopSensitive,
        Self::Interleave,
    ];

    /// The name in commands and plan files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Object => "object",
            Self::Uniform => "uniform",
            Self::HopSensitive => "hop-sensitive",
            Self::Interleave => "interleave",
        }
    }

    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

/// Default of [`Parameters::runtime_scale`]. Recordings are of short runs, plans are for longer ones: a plan has to
/// serve inputs that are half as large again ([`crate::auto`]).
pub const RUNTIME_SCALE: f64 = 1.5;

/// Thresholds of the policies. None of the papers gives any: NumaMMA's reader looks at the picture, Marathe places
/// every page that was sampled. The thresholds keep plans short and ignore noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Objects with a smaller share of the recording's cost are left to first touch.
    pub cost_share_min: f64,
    /// Objects of fewer pages are left to first touch: at best one page would be their own.
    pub pages_min: u64,
    /// An object is left to first touch if this share of its accesses is by the thread that touched the page first
    /// (`object`). `uniform` and `hop-sensitive` leave it if they would make no more accesses local, but for
    /// [`Parameters::slack`].
    pub first_touch_local_min: f64,
    /// A pattern replaces page runs if it costs at most this share more.
    pub slack: f64,
    /// Most page runs of one object; if there are more, pages are decided in larger units. A whole plan may add a
    /// quarter of Linux's 65,530 mappings per process.
    pub runs_max: usize,
    /// Instances of a call site are placed one by one if the instances' main users make this share of their accesses.
    pub instance_share_min: f64,
    /// Samples per page that `auto` needs to decide page by page: with fewer samples, whichever thread made them seems
    /// to own the page.
    pub page_samples_min: f64,
    /// `auto` may decide for copies on all nodes, which simulated machines can have and stock kernels
    /// can't.
    pub replicas: bool,
    /// `auto` may decide that placements begin when a second thread runs, or hold while several threads run
    /// ([`nearpage_plan::Start`]). Only simulated machines support such placements.
    pub phases: bool,
    /// `auto` may decide that pages migrate while the program runs ([`nearpage_plan::OnlineMigration`]), if the judge
    /// can predict the effect.
    pub online_migration: bool,
    /// `auto` decides about one phase of a run ([`nearpage_plan::Phase`]), and the attribution has only this phase's
    /// accesses. It decides only about objects, wherever their pages were before.
    pub of_phase: bool,
    /// `auto` decides for runs whose parallel part is this many times as long as the recorded one: at least 1. The
    /// parallel part lasts from the second thread's begin to the last moment with several threads.
    pub runtime_scale: f64,
    /// Measured errors of the model's predictions.
    pub errors: ModelErrors,
    /// `auto` judges placements with the recorded input only, not also with an input of another size.
    pub same_input: bool,
}

impl Parameters {
    /// Parameters for a resample: it has a share of the samples, so fewer samples per page are enough.
    pub(crate) fn of_resample(&self) -> Self {
        Self {
            page_samples_min: RESAMPLE_SHARE * self.page_samples_min,
            ..*self
        }
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            cost_share_min: 0.001,
            pages_min: 2,
            first_touch_local_min: 0.9,
            slack: 0.01,
            runs_max: 4096,
            instance_share_min: 0.75,
            page_samples_min: 4.0,
            replicas: false,
            phases: false,
            online_migration: false,
            of_phase: false,
            runtime_scale: RUNTIME_SCALE,
            errors: ModelErrors::default(),
            same_input: false,
        }
    }
}
