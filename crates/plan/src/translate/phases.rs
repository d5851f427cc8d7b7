//! Translates phases: rules that hold from the beginning of a phase, and threads that change places.

use nearpage_wire::compact_plan::{NONE, PHASES_MAX, Rule, placement, subject};

use super::{RuleRequest, Translation};
use crate::compact::Part;
use crate::recognise::{NotRecognised, Recogniser};
use crate::{
    Decision, Error, LatePlacement, Phase, Pinning, Placement, Plan, Subject, Target, Team,
};

impl<'a> Translation<'a> {
    /// The plan's phases that are carried out.
    pub(super) fn phases(
        &mut self,
        plan: &Plan,
        recogniser: &Recogniser<'_>,
        teams: &[&Team],
        by_hand: &[Rule],
    ) -> Result<Part, Error> {
        if self.target.later == LatePlacement::AsPlanned {
            // A simulated machine takes phases from the plan itself.
            return Ok([0, 0]);
        }
        let first = self.tables.phases.len();
        let mut target = self.target.clone();
        for phase in plan.phases.iter().filter(|phase| !phase.is_empty()) {
            if self.tables.phases.len() - first == PHASES_MAX {
                self.warn_of_phase(phase, &format!("only {PHASES_MAX} phases are carried out"));
                continue;
            }
            let Some((build_id, module, offset)) = recogniser.phase_function(phase) else {
                let module = match phase.module.as_str() {
                    "" => &plan.program.executable,
                    module => module,
                };
                self.warn_of_phase(phase, &format!("there is no such function in {module} now"));
                continue;
            };
            let pins = match self.exchanged(plan, phase) {
                Some(exchanged) => {
                    target = exchanged;
                    self.pin_teams(plan, recogniser, &target)
                }
                None => [0, 0],
            };
            // Pages follow the threads, in later phases, too.
            let rules = self.phase_rules(plan, phase, recogniser, teams, by_hand, &target)?;
            if rules.is_empty() && pins[1] == 0 {
                continue;
            }
            let module = self.tables.module(&build_id, &module);
            let rules = self.tables.add_rules(rules);
            self.tables.phase(module, offset, rules, pins);
            self.exchanges
                .push((pins[1] > 0).then(|| phase.function.clone()));
        }
        Ok([first as u32, (self.tables.phases.len() - first) as u32])
    }

    fn warn_of_phase(&mut self, phase: &Phase, why: &str) {
        self.warnings.push(format!(
            "what the plan changes when `{}` is first executed stays as it was before: {why}",
            phase.function
        ));
    }

    /// The target with the threads of the plan's first team at their places in a phase; none if they stay.
    fn exchanged(&mut self, plan: &Plan, phase: &Phase) -> Option<Target<'a>> {
        if phase.threads.is_empty() {
            return None;
        }
        let team = plan.teams.first();
        let cpus = team.map_or(&[][..], |team| self.target.cpus(&team.name));
        let why = if self.target.pinning != Pinning::Teams {
            "they are not pinned".to_owned()
        } else if cpus.len() != phase.threads.len() {
            format!("it is for {}, and there are others", phase.threads.len())
        } else {
            let cpus = phase.threads.iter().map(|&place| cpus[place as usize]);
            let mut target = self.target.clone();
            target.teams.insert(team?.name.clone(), cpus.collect());
            return Some(target);
        };
        self.warnings.push(format!(
            "threads do not change places when `{}` is first executed, as the plan has them: {why}",
            phase.function
        ));
        None
    }

    /// The rules of a phase; empty if no object moves.
    fn phase_rules(
        &mut self,
        plan: &Plan,
        phase: &Phase,
        recogniser: &Recogniser<'_>,
        teams: &[&Team],
        by_hand: &[Rule],
        target: &Target<'_>,
    ) -> Result<Vec<Rule>, Error> {
        let function = &phase.function;
        if phase.decisions.is_empty() {
            return Ok(Vec::new());
        }
        if self.target.later == LatePlacement::Never {
            self.warnings.push(format!(
                "objects stay where they were placed before when `{function}` is first executed: pages that are there \
                 cannot be moved by touching them"
            ));
            return Ok(Vec::new());
        }
        // Objects placed by hand stay there in every phase.
        let of_object = by_hand
            .iter()
            .filter(|rule| rule.subject != subject::UNMATCHED);
        let mut rules: Vec<Rule> = of_object
            .map(|rule| Rule {
                placement: placement::LEAVE,
                number: NONE,
                ..*rule
            })
            .collect();
        let kept = rules.len();
        let subjects = phase.decisions.iter().map(|decision| &decision.subject);
        let siblings: Vec<&Subject> = subjects.collect();
        for decision in &phase.decisions {
            let name = format!("{} from {function} on", decision.name);
            let request = RuleRequest {
                name: &name,
                decision: None,
                phase: Some(function),
                subject: &decision.subject,
                placement: &decision.placement,
            };
            match self.rules(
                &request,
                recogniser,
                &siblings,
                teams,
                plan.page_bytes,
                target,
            )? {
                Ok(more) => rules.extend(more),
                Err(NotRecognised::Nothing(message)) => {
                    let program = &plan.program.executable;
                    let rule = format!("the plan for {program}: `{name}`");
                    return Err(Error::MatchesNothing { rule, message });
                }
                Err(NotRecognised::Gone(message)) => self
                    .warnings
                    .push(format!("`{name}` is not placed: {message}")),
            }
        }
        let is_first_touch = |decision: &&Decision| decision.placement == Placement::FirstTouch;
        let left: Vec<String> = phase
            .decisions
            .iter()
            .filter(is_first_touch)
            .map(|decision| format!("`{}`", decision.name))
            .collect();
        if !left.is_empty() {
            let (stay, has) = match left.len() {
                1 => ("stays", "has its"),
                _ => ("stay", "has their"),
            };
            self.warnings.push(format!(
                "{} {stay} where placed before when `{function}` is first executed: the plan {has} pages move near \
                 who uses them next, for which there is no system call",
                left.join(", ")
            ));
        }
        if rules.len() == kept {
            rules.clear();
        }
        Ok(rules)
    }
}
