//! Moves of threads to other CPUs during a trace.

use std::path::Path;

use nearpage_machine::{CpuId, Machine};
use nearpage_recording::trace::TracedMove;
use nearpage_simulator::{Schedule, Scheduler, ThreadMove};

use crate::error::Error;

/// Moves of a schedule, with times in instructions.
pub(super) fn moves(path: &Path, machine: &Machine) -> Result<Vec<TracedMove>, Error> {
    let schedule = Schedule::read(path)?;
    if schedule.scheduler != Scheduler::Pinned {
        return Err(Error::ScheduleNotPinned(path.to_owned()));
    }
    if !schedule.programs.is_empty() || schedule.moves.iter().any(|step| step.program != 1) {
        return Err(Error::ScheduleOfPrograms(path.to_owned()));
    }
    let timing = machine.timing().map_err(|fault| Error::NoTiming {
        machine: machine.name.clone(),
        fault,
    })?;
    let traced = |step: &ThreadMove| TracedMove {
        thread: step.thread,
        instructions: (step.at_ns as f64 / timing.instruction_ns()) as u64,
        cpu: CpuId(step.cpu),
    };
    Ok(schedule.moves.iter().map(traced).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str) -> Result<Vec<TracedMove>, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schedule.toml");
        fs::write(&path, text).unwrap();
        moves(&path, &nearpage_machine::preset("opteron-4").unwrap())
    }

    #[test]
    fn times_become_instructions() {
        let machine = nearpage_machine::preset("opteron-4").unwrap();
        let timing = machine.timing().unwrap();
        let found = read("[[move]]\nthread = 2\nat_ns = 1000000\ncpu = 3\n").unwrap();
        let instructions = (1e6 / timing.instruction_ns()) as u64;
        assert!(instructions > 0);
        assert_eq!(
            found,
            [TracedMove {
                thread: 2,
                instructions,
                cpu: CpuId(3)
            }]
        );
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn policies_that_only_simulate_are_refused() {
        let error = read("scheduler = \"affinity\"\n").unwrap_err();
        assert!(matches!(error, Error::ScheduleNotPinned(_)), "{error}");
        for text in [
            "[[program]]\nstart_ns = 5\n",
            "[[move]]\nprogram = 2\nthread = 0\nat_ns = 1\ncpu = 0\n",
        ] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, Error::ScheduleOfPrograms(_)), "{error}");
        }
        let error = moves(
            Path::new("/no/such/file"),
            &nearpage_machine::preset("opteron-4").unwrap(),
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "/no/such/file: cannot be read"
        );
    }
}
