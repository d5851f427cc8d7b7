//! Simulates plans on one trace and reports the time that each takes.

use nearpage_machine::Machine;
use nearpage_plan::Plan;
use nearpage_recording::Recording;
use nearpage_simulator::{Job, Outcome, SimulatedPolicy, Watched, simulate};

use nearpage_planner::replay::homes::Homes;
use nearpage_planner::replay::process::Processes;
use nearpage_planner::replay::trace::Replayed;

use crate::progress::Progress;

pub struct Simulated {
    /// The recording that was replayed.
    pub recording: String,
    /// Result without a plan.
    pub first_touch: Outcome,
    /// Results by position of the plans; `None` for a plan that places nothing in this trace.
    pub planned: Vec<Option<Outcome>>,
}

/// Replays `recording` under first touch and under the plans of each compared recording. `notes` gets the limits of the
/// simulation.
pub fn replay(
    recording: &Recording,
    machine: &Machine,
    plans: &[(String, Vec<Plan>)],
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<Simulated>> {
    let folder = recording.folder.display().to_string();
    let tracing = recording.metadata.tracing.clone().unwrap_or_default();
    if let Err(difference) = tracing.serves(machine) {
        notes.push(format!("not simulated: {folder}: {difference}"));
        return Ok(None);
    }
    let progress = Progress::new(format!("simulating {folder}"));
    let mut trace = Replayed::new(recording, recording.trace()?);
    trace.keep_steps()?;
    let mut jobs = vec![Job::new(
        SimulatedPolicy::from_name("first-touch").expect("it has that name"),
    )];
    let mut position = Vec::new();
    let processes = Processes::of(recording, &trace.trace, machine);
    for (name, plans) in plans {
        match Homes::of(plans, &processes) {
            Ok(homes) => {
                position.push(Some(jobs.len()));
                jobs.push(Job::new(SimulatedPolicy::Homes {
                    name: name.clone(),
                    plan: homes.plan,
                }));
            }
            Err(error) => {
                position.push(None);
                notes.push(format!("{name}: its plan is not simulated: {error}"));
            }
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let all = recording.access_count().saturating_mul(jobs.len() as u64);
    let watch = |read: u64| progress.done(read.min(all), all);
    let outcomes = simulate(&Watched::new(&trace, &watch), machine, &jobs, workers)
        .map_err(|error| anyhow::Error::from(error).context(folder.clone()))?;
    Ok(Some(Simulated {
        recording: folder,
        planned: position
            .into_iter()
            .map(|at| at.map(|at| outcomes[at].clone()))
            .collect(),
        first_touch: outcomes.into_iter().next().expect("one for each job"),
    }))
}
