//! The main loop: sampler, daemon and time.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nearpage_machine::NodeId;
use nearpage_online::View;
use nearpage_sampler::{Sampler, State, Summary};

use crate::daemon::{Daemon, Report};
use crate::error::Error;
use crate::free_memory::FreeMemory;
use crate::kernel::Kernel;
use crate::observer::Observer;

/// Moving pages may take one part in this number of an interval. The rest is for taking in samples that came meanwhile.
const MOVING_PART: u32 = 2;

/// Longest wait for samples, and so the longest time before the daemon reacts to a request to end.
const SAMPLE_WAIT_MAX: Duration = Duration::from_millis(200);

/// Lowest sampling rate, for targets that a policy does not manage at the moment. Accesses are counted by samples, so
/// without samples the daemon could not notice that this changes.
pub const RATE_MIN_HZ: f64 = 97.0;

/// The sampling rate that a policy requests; `None`: the policy does not request one.
fn requested_rate_hz(view: View, clock_hz: f64) -> Option<f64> {
    match view {
        View::Samples { cycles, .. } => Some(clock_hz / cycles.max(1) as f64),
        View::Nothing => Some(RATE_MIN_HZ),
        View::All | View::Faults { .. } => None,
    }
}

/// Manages the sampler's targets until they end or the daemon is told to end, and decides at the end of every interval.
/// `each` is called with every report.
///
/// # Errors
/// The sampler fails, or the log cannot be written. The targets continue in any case.
pub fn watch(
    mut sampler: Sampler,
    daemon: &mut Daemon,
    kernel: &mut dyn Kernel,
    interval: Duration,
    log: Option<&mut dyn Write>,
    each: impl FnMut(&Report),
) -> Result<Summary, Error> {
    let mut observer = Observer::new(sampler.period_ns());
    let state = until_over(
        &mut sampler,
        &mut observer,
        daemon,
        kernel,
        interval,
        log,
        each,
    );
    // Threads are unpinned after errors, too.
    daemon.restore_affinities(kernel);
    Ok(sampler.finish(state?, &mut observer)?)
}

fn until_over(
    sampler: &mut Sampler,
    observer: &mut Observer,
    daemon: &mut Daemon,
    kernel: &mut dyn Kernel,
    interval: Duration,
    mut log: Option<&mut dyn Write>,
    mut each: impl FnMut(&Report),
) -> Result<State, Error> {
    let interval_ns = interval.as_nanos() as u64;
    let nodes: Vec<NodeId> = daemon.nodes().to_vec();
    let clock_hz = 1e9 * daemon.head().setting().clock_ghz;
    let mut next_ns = kernel.now_ns() + interval_ns;
    loop {
        let left = Duration::from_nanos(next_ns.saturating_sub(kernel.now_ns()));
        let state = sampler.drain(left.min(SAMPLE_WAIT_MAX), observer)?;
        observer.set_period_ns(sampler.period_ns());
        let over = state != State::Running;
        if over || kernel.now_ns() >= next_ns {
            let free = FreeMemory::read(Path::new("/sys"), &nodes);
            let budget_ns = match over {
                // The daemon is ending, so it starts no more moves.
                true => 0,
                false => interval_ns / u64::from(MOVING_PART),
            };
            let log: Option<&mut dyn Write> = match &mut log {
                Some(log) => Some(*log),
                None => None,
            };
            let report = daemon.step(observer, kernel, &free, budget_ns, log)?;
            each(&report);
            if let Some(rate_hz) = report
                .view
                .and_then(|view| requested_rate_hz(view, clock_hz))
            {
                sampler.ask_rate(rate_hz);
            }
            next_ns = kernel.now_ns().max(next_ns) + interval_ns;
        }
        if over {
            return Ok(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_wants_nothing_lowers_the_rate_and_cycles_are_of_the_clock() {
        let samples = |cycles| View::Samples {
            cycles,
            cost_cycles: 0,
        };
        let clock_hz = 2.6e9;
        assert_eq!(requested_rate_hz(samples(65_000), clock_hz), Some(40_000.0));
        assert_eq!(
            requested_rate_hz(samples(260_000), clock_hz),
            Some(10_000.0)
        );
        assert_eq!(
            requested_rate_hz(View::Nothing, clock_hz),
            Some(RATE_MIN_HZ)
        );
        assert_eq!(requested_rate_hz(View::All, clock_hz), None);
    }
}
