//! Runs that `optimize` compares.

use std::ffi::OsString;
use std::path::PathBuf;

use nearpage_recording::ThreadPinning;
use nearpage_sampler::{State, Target, shell_status};

use super::{ObserveOptions, Observed, observe};
use crate::Reporter;
use crate::environment::Environment;
use crate::error::Error;

/// A run of a command, to be compared with other runs that are sampled in the same way.
#[derive(Clone, Debug)]
pub struct ComparedRun {
    /// Folder of the recording. An earlier recording in the folder is replaced.
    pub output: PathBuf,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Samples per second and CPU; `None`: as many as the sample budget allows.
    pub rate_hz: Option<f64>,
    /// Variables that enforce a plan; empty: the command runs without a plan.
    pub environment: Environment,
}

impl ComparedRun {
    /// Runs the command to its end and records it. `say` gets a line if the command failed.
    ///
    /// # Errors
    /// Those of [`observe`], and an interrupted run.
    pub fn observe(self, say: Reporter<'_>) -> Result<Observed, Error> {
        let observed = observe(&self.options(), say)?;
        match observed.state {
            State::Ended(status) => {
                if !status.success() {
                    let status = shell_status(status);
                    say(&format!("the command ended with status {status}"));
                }
                Ok(observed)
            }
            State::Running | State::Detached | State::TargetEnded => Err(Error::Interrupted),
        }
    }

    fn options(self) -> ObserveOptions {
        ObserveOptions {
            replace: true,
            rate_hz: self.rate_hz,
            // Sampling must cost the same in all runs, so only the rate or the budget limits it.
            max_overhead: None,
            thread_placement: match self.environment.is_empty() {
                true => ThreadPinning::None,
                false => ThreadPinning::Plan,
            },
            environment: self.environment,
            ..ObserveOptions::new(self.output, Target::Command(self.command))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_runs_differ_in_placement_alone() {
        let run = |environment| ComparedRun {
            output: "before".into(),
            command: vec!["cg".into()],
            rate_hz: Some(97.0),
            environment,
        };
        let before = run(Environment::new()).options();
        let after = run(vec![("NEARPAGE_PLAN".into(), "/plan".into())]).options();
        assert_eq!(before.thread_placement, ThreadPinning::None);
        assert_eq!(after.thread_placement, ThreadPinning::Plan);
        for options in [before, after] {
            assert!(options.replace && options.rate_hz == Some(97.0));
            assert_eq!(options.max_overhead, None, "the rate stays as it is");
            assert_eq!(options.target, Target::Command(vec!["cg".into()]));
        }
    }
}
