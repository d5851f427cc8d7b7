//! What is asked of decisions, and their thresholds.

use nearpage_attribution::RESAMPLE_SHARE;

use crate::model_error::ModelErrors;

/// How decisions are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Whatever makes the program take least time on the machine's contention model ([`crate::auto`]).
    #[default]
    Auto,
    /// By the pattern found in each object: block, block-cyclic, interleave, one thread; page runs
    /// where no pattern fits (NumaMMA §4.1.3 and its future work).
    Object,
    /// Each page to the node with the most accesses to it (Marathe, Eq. 1).
    Uniform,
    /// Each page where its accesses cost least (Marathe, Eq. 2).
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

    /// As the command line and plan files write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Object => "object",
            Self::Uniform => "uniform",
            Self::HopSensitive => "hop-sensitive",
            Self::Interleave => "interleave",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

/// Recordings are of short runs, plans for longer ones: half as long again, as the inputs of another size that a plan has
/// to serve are half as large again ([`crate::auto`]).
pub const RUNTIME_SCALE: f64 = 1.5;

/// Thresholds of the policies. None of the papers gives any: NumaMMA's reader looks at the picture,
/// Marathe places every page that was sampled. These keep a plan short and its noise out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Objects with a smaller share of the recording's cost are left to first touch.
    pub cost_share_min: f64,
    /// Objects that span fewer pages are left alone: at best one page would be their own.
    pub pages_min: u64,
    /// First touch is left as it is where it made this share of an object's accesses local to the
    /// thread (`object`), or as many accesses local as the policy would, but for
    /// [`Parameters::slack`] (`uniform`, `hop-sensitive`).
    pub first_touch_local_min: f64,
    /// A pattern replaces page runs where it costs no more than this share over them.
    pub slack: f64,
    /// Page runs of one object at the most; beyond it pages are decided in larger units. A quarter of
    /// Linux's 65,530 mappings of a process is all that a plan may add.
    pub runs_max: usize,
    /// Instances of a call site belong to threads one by one where the instances' main users make
    /// this share of their accesses.
    pub instance_share_min: f64,
    /// `auto` decides about an object page by page where so many samples at least are of each of its pages: with fewer,
    /// whoever made them seems to own it.
    pub page_samples_min: f64,
    /// `auto` may decide for copies on all nodes, which simulated machines can have and stock kernels
    /// can't.
    pub replicas: bool,
    /// `auto` may decide that placements begin when a second thread runs, or hold while several do
    /// ([`nearpage_plan::Start`]), which is done on simulated machines alone.
    pub phases: bool,
    /// `auto` may decide that pages migrate while the program runs ([`nearpage_plan::OnlineMigration`]), where the judge can tell
    /// what comes of that.
    pub online_migration: bool,
    /// `auto` decides about a phase of a run ([`nearpage_plan::Phase`]), of which alone the attribution is: about
    /// objects, wherever their pages were before.
    pub of_phase: bool,
    /// `auto` decides for runs whose parallel part, from the second thread's begin to the last moment with several
    /// threads, is so many times as long as that of the recorded run: at least 1.
    pub runtime_scale: f64,
    /// How far the model's predictions were from what came of them.
    pub errors: ModelErrors,
    /// `auto` weighs the recorded input alone, not what its placements would come to with an input of another size.
    pub same_input: bool,
}

impl Parameters {
    /// The same for a resample, which has a share of the samples: as many are enough.
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
