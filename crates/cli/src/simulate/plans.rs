//! Plans in simulations: where they put the pages of traces, and notes on them.

use std::cell::OnceCell;
use std::path::Path;

use anyhow::bail;
use nearpage_attribution::Operations;
use nearpage_machine::Machine;
use nearpage_plan::{Plan, ThreadLayout};
use nearpage_planner::replay::homes::{self, Homes};
use nearpage_planner::replay::process::Processes;
use nearpage_planner::replay::trace::Replayed;
use nearpage_planner::{Analysis, Planner, recorded_layout};
use nearpage_recording::Recording;
use nearpage_report::ThreadsElsewhere;
use nearpage_simulator::PlanHomes;

use super::PLAN;
use crate::analysis;
use crate::arguments::Deciding;
use crate::progress::Progress;

/// Finds the pages' homes under plans, and collects notes.
pub struct Plans<'a> {
    pub deciding: &'a Deciding,
    pub recordings: &'a [Recording],
    pub traces: &'a [Replayed],
    /// Processes by recording, shared by all plans.
    pub processes: Vec<OnceCell<Processes<'a>>>,
    pub machine: &'a Machine,
    pub notes: Vec<String>,
    pub elsewhere: Vec<ThreadsElsewhere>,
}

impl Plans<'_> {
    /// Homes of the pages under the plan that a policy's name refers to, by recording. A plan may fit only some
    /// programs.
    pub fn find(&mut self, name: &str) -> anyhow::Result<Vec<PlanHomes>> {
        let wanted = name.strip_prefix(PLAN).unwrap_or(name);
        let file = Path::new(wanted);
        let planned_by = match nearpage_planner::Policy::from_name(wanted) {
            Some(policy) => PlannedBy::Policy(policy),
            None if matches!(file.try_exists(), Ok(false)) => {
                bail!("{name}: there is no file `{wanted}`, and no policy of that name that plans")
            }
            None => PlannedBy::File(Box::new(Plan::read(file)?)),
        };
        if let PlannedBy::File(plan) = &planned_by {
            let warning = plan.warning();
            self.notes
                .extend(warning.map(|warning| format!("{name}: when it was made: {warning}.")));
        }
        let mut found = Vec::new();
        let mut refused = None;
        for number in 0..self.recordings.len() {
            match self.find_in(number, name, &planned_by) {
                Ok(homes) => found.push(Some(homes)),
                Err(error) => {
                    found.push(None);
                    refused.get_or_insert(error);
                }
            }
        }
        match refused.filter(|_| found.iter().all(Option::is_none)) {
            Some(error) => Err(error),
            None => Ok(found.into_iter().map(Option::unwrap_or_default).collect()),
        }
    }

    fn find_in(
        &mut self,
        number: usize,
        name: &str,
        planned_by: &PlannedBy,
    ) -> anyhow::Result<PlanHomes> {
        let (recording, trace) = (&self.recordings[number], &self.traces[number].trace);
        let machine = self.machine;
        let processes =
            self.processes[number].get_or_init(|| Processes::of(recording, trace, machine));
        let homes =
            match planned_by {
                PlannedBy::Policy(policy) => {
                    let (homes, notes) =
                        planned_for(*policy, self.deciding, recording, processes, machine)?;
                    self.notes
                        .extend(notes.into_iter().map(|note| format!("{name}: {note}.")));
                    homes
                }
                PlannedBy::File(plan) => {
                    let file = Path::new(name.strip_prefix(PLAN).unwrap_or(name));
                    let homes = homes::of_file(file, plan, processes)?;
                    self.elsewhere.extend(plan.threads.and_then(|layout| {
                        threads_elsewhere(name, layout, recording, trace, machine)
                    }));
                    homes
                }
            };
        self.notes.extend(homes.notes(name));
        Ok(homes.plan)
    }
}

/// Homes of the pages under the plan that nearpage decides from the recording itself, with the plan's notes.
fn planned_for(
    policy: nearpage_planner::Policy,
    deciding: &Deciding,
    recording: &Recording,
    processes: &Processes,
    machine: &Machine,
) -> anyhow::Result<(Homes, Vec<String>)> {
    let Analysis { attribution, .. } = analysis::read(&recording.folder, Operations::Both)?;
    let planner = Planner::new(recording, &attribution, machine, deciding.threads());
    let _progress = Progress::deciding(&recording.folder, planner.progress());
    let decided = planner.decide(&[policy], &deciding.parameters())?;
    let mut notes = Vec::new();
    for one in &decided {
        notes.extend(one.notes.iter().chain(&one.warnings).cloned());
    }
    let plans: Vec<Plan> = decided.into_iter().map(|one| one.plan).collect();
    Ok((Homes::of(&plans, processes)?, notes))
}

/// A remark if the plan is for threads in a layout and the trace has them in another.
fn threads_elsewhere(
    policy: &str,
    planned: ThreadLayout,
    recording: &Recording,
    trace: &nearpage_recording::trace::Trace,
    machine: &Machine,
) -> Option<ThreadsElsewhere> {
    let threads = &recording.tables.threads;
    let mut cpus = vec![Vec::new(); threads.len()];
    for traced in trace.threads() {
        if let Some(cpus) = cpus.get_mut(traced.thread.0 as usize) {
            cpus.push((traced.cpu, 1.0));
        }
    }
    // If both layouts are equal on the machine, the threads count as recorded in the planned layout.
    let recorded = recorded_layout(threads, machine, Some(planned), |thread| {
        cpus.get(thread.0 as usize).map_or(&[], Vec::as_slice)
    });
    (recorded != Some(planned)).then(|| ThreadsElsewhere {
        policy: policy.to_owned(),
        recording: recording.folder.display().to_string(),
        planned: planned.as_str(),
        recorded: recorded.map(ThreadLayout::as_str),
    })
}

/// Source of the plan that a policy `plan:…` names.
enum PlannedBy {
    /// A policy that plans from the simulated recording.
    Policy(nearpage_planner::Policy),
    /// A plan file.
    File(Box<Plan>),
}
