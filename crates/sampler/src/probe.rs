//! Finds out what this machine allows the sampler, for `nearpage doctor`.

use std::path::Path;

use nearpage_perf_abi::{event, flag};

use crate::calibrate::{calibrate, page_bytes};
use crate::error::{NoPreload, Refusal, paranoid_level};
use crate::perf_event::{PerfEvent, Scope, software_attributes};
use crate::ring::Ring;
use crate::sampler::{Options, choose_source};
use crate::source::RequestedSource;

/// One feature that is available or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the feature, in a few words.
    pub subject: &'static str,
    /// Whether the feature is available.
    pub available: bool,
    /// What was found.
    pub found: String,
    /// Why the feature is missing; empty if it is available.
    pub cause: String,
    /// Remedy; empty if there is none, or if none is needed.
    pub remedy: String,
}

impl Finding {
    fn there(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            available: true,
            found: found.into(),
            cause: String::new(),
            remedy: String::new(),
        }
    }

    fn refused(subject: &'static str, refusal: Refusal) -> Self {
        Self {
            subject,
            available: false,
            found: refusal.source.to_string(),
            cause: refusal.cause,
            remedy: refusal.remedy,
        }
    }
}

/// Tests each feature that the sampler uses. `preload` is [`Options::preload`]; `proc_root` is `/proc`, except in
/// tests.
pub fn probe(preload: &Result<(), NoPreload>, proc_root: &Path) -> Vec<Finding> {
    let source = |subject, requested| source(subject, requested, preload, proc_root);
    let open = |counted, kernel: bool| {
        let mut attributes = software_attributes(counted);
        attributes.sample_period = 1_000_000;
        if !kernel {
            attributes.flags |= flag::EXCLUDE_KERNEL;
        }
        PerfEvent::open(&attributes, Scope::ThisThread)
            .map_err(|error| Refusal::explain(error, proc_root))
    };
    let clock = open(event::CPU_CLOCK, false);
    let mut findings = vec![paranoid(proc_root)];
    if let Ok(event) = &clock {
        findings.push(ring(event));
    }
    if let Ok(calibration) = calibrate() {
        let rate_hz = calibration.default_rate_hz();
        let found = format!("{rate_hz} Hz; instructions sampled {calibration}");
        findings.push(Finding::there("default rate", found));
    }
    findings.insert(
        0,
        finding(
            "clock samples",
            clock,
            "PERF_COUNT_SW_CPU_CLOCK with user registers",
        ),
    );
    findings.push(finding(
        "page-fault samples",
        open(event::PAGE_FAULTS, false),
        "PERF_COUNT_SW_PAGE_FAULTS with address",
    ));
    findings.push(match open(event::CPU_CLOCK, true) {
        Ok(_) => Finding::there("samples in the kernel", "allowed"),
        Err(refusal) => in_the_kernel(refusal, paranoid_level(proc_root)),
    });
    findings.push(source("hardware samples (PMU)", RequestedSource::Pmu));
    findings.push(source("timer signals", RequestedSource::Signal));
    findings.push(source("record --source auto", RequestedSource::Auto));
    findings
}

/// The source that `record` would choose.
fn source(
    subject: &'static str,
    requested: RequestedSource,
    preload: &Result<(), NoPreload>,
    proc_root: &Path,
) -> Finding {
    let mut options = Options::new(Vec::<std::ffi::OsString>::new());
    options.source = requested;
    options.preload.clone_from(preload);
    options.proc_root = proc_root.to_owned();
    match choose_source(&options) {
        Ok(choice) => Finding::there(subject, choice.line),
        Err(error) => Finding {
            available: false,
            cause: without_source(&error.to_string()).to_owned(),
            ..Finding::there(subject, "unavailable")
        },
    }
}

/// The reason without the name of the source.
fn without_source(words: &str) -> &str {
    let named = words.strip_prefix("source ");
    let parts = named.and_then(|words| words.split_once(": "));
    parts.map_or(words, |(_, why)| why)
}

/// Level 2 of kernel.perf_event_paranoid allows samples, except in the kernel.
fn in_the_kernel(refusal: Refusal, paranoid: Option<i32>) -> Finding {
    let refused = Finding::refused("samples in the kernel", refusal);
    match paranoid {
        Some(2) => Finding {
            cause: "kernel.perf_event_paranoid is 2".to_owned(),
            remedy: "run `sysctl kernel.perf_event_paranoid=1`, or give nearpage CAP_PERFMON"
                .to_owned(),
            ..refused
        },
        _ => refused,
    }
}

fn finding(subject: &'static str, opened: Result<PerfEvent, Refusal>, found: &str) -> Finding {
    match opened {
        Ok(_) => Finding::there(subject, found),
        Err(refusal) => Finding::refused(subject, refusal),
    }
}

fn paranoid(proc_root: &Path) -> Finding {
    match paranoid_level(proc_root) {
        Some(level) => Finding::there("kernel.perf_event_paranoid", level.to_string()),
        None => Finding {
            available: false,
            cause: "the file is empty or missing, as in some containers and sandboxes".to_owned(),
            ..Finding::there("kernel.perf_event_paranoid", "unknown")
        },
    }
}

fn ring(event: &PerfEvent) -> Finding {
    let page_bytes = page_bytes();
    let mut data_bytes = 512 << 10;
    loop {
        match Ring::map(event, page_bytes, data_bytes) {
            Ok(_) => {
                return Finding::there(
                    "memory for samples",
                    format!("{} KiB per CPU", data_bytes >> 10),
                );
            }
            Err(_) if data_bytes > 4 * page_bytes => data_bytes /= 2,
            Err(error) => {
                return Finding {
                    subject: "memory for samples",
                    available: false,
                    found: error.to_string(),
                    cause: "no memory may be locked for samples".to_owned(),
                    remedy: "raise kernel.perf_event_mlock_kb, or the limit on locked memory (ulimit -l)"
                        .to_owned(),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A security filter was once blamed for the effect of level 2.
    #[test]
    fn the_kernel_is_not_sampled_at_level_2_by_its_own_rule() {
        let refusal = || Refusal {
            source: std::io::Error::from_raw_os_error(libc::EACCES),
            cause: "a filter".to_owned(),
            remedy: "allow it".to_owned(),
        };
        let finding = in_the_kernel(refusal(), Some(2));
        assert_eq!(finding.cause, "kernel.perf_event_paranoid is 2");
        assert!(
            finding.remedy.contains("perf_event_paranoid=1"),
            "{finding:?}"
        );
        for level in [Some(1), Some(3), None] {
            let finding = in_the_kernel(refusal(), level);
            assert_eq!(
                (finding.cause.as_str(), finding.remedy.as_str()),
                ("a filter", "allow it")
            );
        }
    }

    #[test]
    fn a_finding_names_its_source_once() {
        let why = "the kernel names no PMU (a guest: has none)";
        assert_eq!(without_source(&format!("source pmu: {why}")), why);
        assert_eq!(without_source(why), why);
    }
}
