//! Homes of a trace's pages under a plan: the translated plan places objects as the preload library would, and pages
//! follow their objects. Also where the plan's phases begin.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use nearpage_online::AutoParameters;
use nearpage_plan::{Decision, OnlineMigration, Phase, Placement, Plan, Start, Subject};
use nearpage_recording::{Object, ObjectKind};
use nearpage_simulator::{Home, PhaseHomes, PlanHomes};

use crate::error::Error;
use crate::replay::process::{Process, Processes};
use crate::replay::unmatched;

/// The homes that plans give to pages.
pub struct Homes {
    /// By page; none: left to first touch. Online migration of the first plan that has it holds for all programs.
    pub plan: PlanHomes,
    /// Number of decisions.
    pub decisions: usize,
    /// Number of decisions with an object in the recording.
    pub found: usize,
    /// Number of pages that have a home as part of unmatched memory.
    of_unmatched: usize,
    /// By page: true if an object's decision is about it, even if the decision leaves it to first touch.
    decided: Vec<bool>,
    /// Names of decisions without an object in the recording.
    missing: Vec<String>,
    /// Warnings of the translation: objects found by weaker keys, or scaled.
    warnings: Vec<String>,
}

impl Homes {
    /// The homes of the recording's pages under `plans`, each of which is for one program, with threads on the CPUs
    /// that they were traced on. Pages are placed when their object is made, and stay there: if several objects have a
    /// page in turn, the first decides.
    ///
    /// # Errors
    /// A plan names nodes, teams or parameters of `auto` that do not exist.
    pub fn of(plans: &[Plan], processes: &Processes) -> Result<Self, Error> {
        let mut homes = Self::with_threads(plans, &[], processes)?;
        let online_migration = plans.iter().find_map(|plan| plan.online_migration.as_ref());
        homes.plan.online_migration = online_migration.map(auto_parameters).transpose()?;
        for plan in plans {
            let mut places: &[u32] = &[];
            for phase in plan.phases.iter().filter(|phase| !phase.is_empty()) {
                let before = places;
                if !phase.threads.is_empty() {
                    places = &phase.threads;
                }
                homes.add_phase(plan, phase, [before, places], processes)?;
            }
        }
        Ok(homes)
    }

    /// Homes from the start of the run, with threads of the first team in each other's places ([`Phase::threads`]).
    fn with_threads(plans: &[Plan], places: &[u32], processes: &Processes) -> Result<Self, Error> {
        let mut homes = Self {
            plan: PlanHomes::nothing(processes.pages),
            decisions: plans.iter().map(|plan| plan.decisions.len()).sum(),
            found: 0,
            of_unmatched: 0,
            decided: vec![false; processes.pages],
            missing: Vec::new(),
            warnings: Vec::new(),
        };
        let mut found: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); plans.len()];
        for process in &processes.all {
            for (plan, found) in plans.iter().zip(&mut found) {
                if process.runs(plan) {
                    homes.place(plan, places, process, found)?;
                }
            }
        }
        for (plan, found) in plans.iter().zip(found) {
            for (position, decision) in plan.decisions.iter().enumerate() {
                match found.contains(&position) {
                    true => homes.found += 1,
                    false => homes.missing.push(decision.name.clone()),
                }
            }
        }
        Ok(homes)
    }

    /// Adds homes of a phase. `places`: for each thread, the thread whose place it has, before the phase and in it.
    fn add_phase(
        &mut self,
        plan: &Plan,
        phase: &Phase,
        places: [&[u32]; 2],
        processes: &Processes,
    ) -> Result<(), Error> {
        let from_then_on = |decision: &Decision| Decision {
            start: match decision.placement {
                Placement::FirstTouch => Start::SecondThread,
                _ => Start::Allocation,
            },
            ..decision.clone()
        };
        let alone = Plan {
            decisions: phase.decisions.iter().map(from_then_on).collect(),
            ..plan.clone()
        };
        let homes = Self::with_threads(&[alone], places[1], processes)?;
        self.decisions += homes.decisions;
        self.found += homes.found;
        let missing = homes.missing.iter();
        self.missing
            .extend(missing.map(|name| format!("{name} from {} on", phase.function)));
        self.warn(homes.warnings);
        let entry = processes.all.iter().flat_map(|one| one.entry_of(phase));
        let entry: Vec<(u32, Range<u32>)> = entry.collect();
        if entry.is_empty() {
            self.warnings.push(format!(
                "`{}`, with which a phase of the plan begins, was not executed in {}: nothing moves then",
                phase.function,
                processes.recording.folder.display()
            ));
        }
        let mut threads = Vec::new();
        let run_it = processes.all.iter().filter(|process| process.runs(plan));
        for process in run_it.filter(|_| !phase.threads.is_empty()) {
            match process.moved(plan, places) {
                Some(moves) => threads.extend(moves),
                None => self.warnings.push(format!(
                    "threads stay where they are when `{}` begins: the plan is for {}, and there are others",
                    phase.function,
                    phase.threads.len()
                )),
            }
        }
        self.plan.phases.push(PhaseHomes {
            entry,
            homes: homes.plan.homes,
            threads,
        });
        Ok(())
    }

    fn place(
        &mut self,
        plan: &Plan,
        places: &[u32],
        process: &Process,
        found: &mut BTreeSet<usize>,
    ) -> Result<(), Error> {
        let compact = process.translate(plan, places)?;
        self.warn(compact.warnings.iter().cloned());
        for (position, decision) in plan.decisions.iter().enumerate() {
            let Subject::Code {
                module,
                build_id,
                pages,
            } = &decision.subject
            else {
                continue;
            };
            let same_build = build_id.is_empty() || process.has_build(module, build_id);
            let runs: &[(u64, u64)] = match pages.is_empty() || !same_build {
                true => &[(0, u64::MAX)],
                false => pages,
            };
            let is_code = |object: &&Object| {
                object.kind == ObjectKind::Code
                    && object.pid == process.pid
                    && object.name == *module
            };
            for object in process.recording.tables.objects.iter().filter(is_code) {
                found.insert(position);
                let end = object.address.saturating_add(object.size_bytes);
                for &(first, count) in runs {
                    let at = |page: u64| page.saturating_mul(plan.page_bytes);
                    let address = |page: u64| object.address.saturating_add(at(page)).min(end);
                    let range = address(first)..address(first.saturating_add(count));
                    self.take(process, object, range, |_| Some(Home::Copies));
                }
            }
        }
        process.place_objects(&compact, |object, evaluated| {
            let Some(position) = compact.decisions[evaluated.rule] else {
                return;
            };
            found.insert(position);
            let Decision {
                placement, start, ..
            } = &plan.decisions[position];
            let home = |node: Option<u16>| match start {
                _ if *placement == Placement::Replicate => Some(Home::Copies),
                Start::Allocation => node.map(Home::Node),
                Start::SecondThread => Some(Home::Later(node)),
                Start::Parallel => Some(Home::Parallel(node)),
            };
            let pages = match (placement, start) {
                (Placement::FirstTouch, Start::Allocation) => process.pages_of(object),
                // The next user of a page also takes the other objects on it.
                (Placement::FirstTouch, _) => {
                    let first = object.address & !(process.machine.page_bytes - 1);
                    Some(first..object.address.saturating_add(object.size_bytes))
                }
                _ => None,
            };
            if let Some(pages) = pages {
                self.take(process, object, pages, |_| home(None));
            }
            for placed in &evaluated.pages {
                self.take(process, object, placed.start..placed.end, |address| {
                    let node = placed.node(address, process.machine.page_bytes)?;
                    home(Some(process.machine.position(node)? as u16))
                });
            }
        });
        let numbered = plan.decisions.iter().enumerate();
        for (position, decision) in numbered.filter(|(_, one)| one.subject == Subject::Unmatched) {
            found.insert(position);
            let nodes = compact.unmatched_nodes(process.executable(), process.rank());
            let nodes = nodes.unwrap_or_default();
            for (page, home) in unmatched::homes(decision.start, &nodes, process, &self.decided) {
                self.plan.homes[page] = Some(home);
                self.of_unmatched += 1;
            }
        }
        Ok(())
    }

    /// Sets the homes of an object's pages that begin in a range of addresses; `home_of` gives the home for a page's
    /// address.
    fn take(
        &mut self,
        process: &Process,
        object: &Object,
        range: Range<u64>,
        home_of: impl Fn(u64) -> Option<Home>,
    ) {
        for page in process.pages_within(range) {
            if !self.decided[page.number] && page.is_of(object) {
                self.plan.homes[page.number] = home_of(page.address);
                self.decided[page.number] = true;
            }
        }
    }

    /// Adds the warnings that are new.
    fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// Lines for users: how much of a plan is in the recording, and warnings.
    pub fn notes(&self, plan: &str) -> Vec<String> {
        let pages = self.plan.homes.iter().flatten().count();
        let mut note = format!(
            "{plan}: objects of {} of {} decisions are in the recording; {pages} of {} pages are placed.",
            self.found,
            self.decisions,
            self.plan.homes.len(),
        );
        if self.of_unmatched > 0 {
            note += &format!(" Of these, {} are of unmatched memory.", self.of_unmatched);
        }
        if self.plan.online_migration.is_some() {
            note += " `auto` migrates pages online.";
        }
        if !self.missing.is_empty() {
            note += &format!(" Not found: {}.", self.missing.join(", "));
        }
        let warnings = self.warnings.iter();
        std::iter::once(note)
            .chain(warnings.map(|warning| format!("{plan}: {warning}.")))
            .collect()
    }
}

/// Parameters of `auto` for a plan with online migration.
fn auto_parameters(online_migration: &OnlineMigration) -> Result<AutoParameters, Error> {
    let mut parameters = AutoParameters::default();
    for (name, value) in &online_migration.parameters {
        if !parameters.set(name, &value.to_string())? {
            return Err(Error::UnknownParameter(name.clone()));
        }
    }
    Ok(parameters)
}

/// The homes of pages under the plan in `file`.
///
/// # Errors
/// No object of the plan is in the recording, or [`Homes::of`] fails.
pub fn of_file(file: &Path, plan: &Plan, processes: &Processes) -> Result<Homes, Error> {
    let homes = Homes::of(std::slice::from_ref(plan), processes)?;
    if homes.decisions > 0 && homes.found == 0 {
        return Err(Error::NothingOfPlan {
            file: file.display().to_string(),
            program: plan.program.executable.clone(),
            folder: processes.recording.folder.display().to_string(),
        });
    }
    Ok(homes)
}

#[cfg(test)]
mod tests;
