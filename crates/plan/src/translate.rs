//! Translates plans, and rules written by hand, into the compact form for one machine and one number of
//! threads.

mod phases;

use std::collections::HashSet;

use nearpage_machine::CpuId;
use nearpage_wire::compact_plan::{Header, NONE, RULE_LATER, RULE_WEAK, Rule, Section, subject};
use nearpage_wire::is_runtime_module;

use crate::compact::{Part, Tables, empty_header};
use crate::deal::Dealer;
use crate::recognise::{NotRecognised, Recogniser};
use crate::{
    Decision, Error, LatePlacement, Mechanism, Owner, Pinning, PlaceRule, Placement, Plan,
    ProgramImage, Start, Subject, Target, Team,
};

/// The file that the preload library reads, and what people should know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compact {
    /// The file, as [`nearpage_wire::compact_plan`] lays it out.
    pub bytes: Vec<u8>,
    /// Name of every rule, by the number that the library's summary reports it under.
    pub rule_names: Vec<String>,
    /// By the same number: position of the rule's decision in its plan; `None` for a rule written by hand or of a
    /// phase.
    pub decisions: Vec<Option<usize>>,
    /// By the same number: the function with which the rule's phase begins; `None` if the rule holds from the start.
    pub phases: Vec<Option<String>>,
    /// By number of the phase in the file: the function with which its threads change CPUs; `None` if they stay.
    pub exchanges: Vec<Option<String>>,
    /// Warnings about objects that were recognised by a weaker key, scaled, or left out; one line each.
    pub warnings: Vec<String>,
    /// The contents of `bytes`.
    pub(crate) tables: Tables,
}

/// Translates `plans` (for several executables or ranks) and `rules` for `target`. Rules come first, in every process
/// of the run. `programs` are those that the command line names, its own first.
///
/// # Errors
/// A rule matches nothing, or a node or team does not exist.
pub fn translate(
    plans: &[Plan],
    rules: &[PlaceRule],
    target: &Target<'_>,
    programs: &[ProgramImage],
) -> Result<Compact, Error> {
    let mut translation = Translation {
        target,
        programs,
        tables: Tables::default(),
        rule_names: Vec::new(),
        decisions: Vec::new(),
        phases: Vec::new(),
        exchanges: Vec::new(),
        warnings: Vec::new(),
    };
    let by_hand = translation.by_hand(rules, plans)?;
    for plan in plans {
        translation.plan(plan, &by_hand)?;
    }
    let pins = match target.pinning {
        Pinning::CreationOrder => translation.pin_in_order(&target.threads),
        Pinning::Teams if plans.is_empty() => translation.pin_in_order(&target.threads),
        Pinning::Teams | Pinning::None => [0, 0],
    };
    if !by_hand.is_empty() || pins[1] > 0 {
        translation.section([NONE, NONE], by_hand, pins, [0, 0]);
    }
    let Translation {
        mut tables,
        rule_names,
        decisions,
        phases,
        exchanges,
        mut warnings,
        ..
    } = translation;
    tables.page_bytes = target.page_bytes.into();
    let mut seen = HashSet::new();
    warnings.retain(|warning| seen.insert(warning.clone()));
    let header = Header {
        page_bytes: target.page_bytes,
        huge_page_bytes: target.huge_page_bytes.max(target.page_bytes),
        mappings_max: target.mappings_max,
        mechanism: match target.mechanism {
            Mechanism::Bind => 0,
            Mechanism::Touch => 1,
        },
        touch_pages_max: target.touch_pages_max,
        touch_group: target.touch_group.max(1),
        flags: u32::from(target.summary),
        ..empty_header()
    };
    Ok(Compact {
        bytes: tables.encode(header)?,
        rule_names,
        decisions,
        phases,
        exchanges,
        warnings,
        tables,
    })
}

/// Objects to recognise and their placement, under one name.
struct RuleRequest<'a> {
    name: &'a str,
    /// Position of the decision in the plan.
    decision: Option<usize>,
    /// Function with which the phase begins.
    phase: Option<&'a str>,
    subject: &'a Subject,
    placement: &'a Placement,
}

struct Translation<'a> {
    target: &'a Target<'a>,
    programs: &'a [ProgramImage],
    tables: Tables,
    rule_names: Vec<String>,
    decisions: Vec<Option<usize>>,
    phases: Vec<Option<String>>,
    exchanges: Vec<Option<String>>,
    warnings: Vec<String>,
}

impl<'a> Translation<'a> {
    fn size_min_bytes(&self) -> u64 {
        2 * u64::from(self.target.page_bytes)
    }

    fn by_hand(&mut self, rules: &[PlaceRule], plans: &[Plan]) -> Result<Vec<Rule>, Error> {
        let recogniser = Recogniser {
            programs: self.programs,
            plan: None,
            own: None,
            size_min_bytes: self.size_min_bytes(),
        };
        let teams: Vec<&Team> = plans.iter().flat_map(|plan| &plan.teams).collect();
        let mut of_unmatched = rules
            .iter()
            .filter(|rule| rule.subject == Subject::Unmatched);
        if let (Some(first), Some(second)) = (of_unmatched.next(), of_unmatched.next()) {
            return Err(Error::UnmatchedTwice {
                rule: second.to_string(),
                first: first.to_string(),
            });
        }
        let mut compact = Vec::new();
        for rule in rules {
            let name = format!("--place '{rule}'");
            let request = RuleRequest {
                name: &name,
                decision: None,
                phase: None,
                subject: &rule.subject,
                placement: &rule.placement,
            };
            match self.rules(
                &request,
                &recogniser,
                &[],
                &teams,
                u64::from(self.target.page_bytes),
                self.target,
            )? {
                Ok(rules) => compact.extend(rules),
                Err(NotRecognised::Nothing(message) | NotRecognised::Gone(message)) => {
                    return Err(Error::MatchesNothing {
                        rule: name,
                        message,
                    });
                }
            }
        }
        Ok(compact)
    }

    fn plan(&mut self, plan: &Plan, by_hand: &[Rule]) -> Result<(), Error> {
        let own = self.own_program(plan);
        let recogniser = Recogniser {
            programs: own.map(std::slice::from_ref).unwrap_or_default(),
            plan: Some(plan),
            own,
            size_min_bytes: self.size_min_bytes(),
        };
        self.warn_of_build(plan, own);
        let teams: Vec<&Team> = plan.teams.iter().collect();
        let rules = self.decisions(plan, &recogniser, &teams, by_hand)?;
        let executable = &plan.program.executable;
        let module = match own {
            Some(own) => self
                .tables
                .module(&own.program.build_id, &own.program.file_name),
            None if executable.is_empty() && plan.program.build_id.is_empty() => NONE,
            None => self.tables.module(&plan.program.build_id, executable),
        };
        let pins = match self.target.pinning {
            Pinning::None => [0, 0],
            Pinning::CreationOrder => self.pin_in_order(&self.target.threads),
            Pinning::Teams => self.pin_teams(plan, &recogniser, self.target),
        };
        let phases = self.phases(plan, &recogniser, &teams, by_hand)?;
        let rank = plan.program.rank.unwrap_or(NONE);
        self.section([module, rank], rules, pins, phases);
        Ok(())
    }

    /// Warns if the command's program is another than the plan's, or another build.
    fn warn_of_build(&mut self, plan: &Plan, own: Option<&ProgramImage>) {
        let executable = &plan.program.executable;
        let build_id = &plan.program.build_id;
        match own {
            None if !self.programs.is_empty() => self.warnings.push(format!(
                "the plan for {executable} is used where the command starts that very build of it; the command \
                 itself is {}",
                self.programs[0].command.display()
            )),
            Some(own) if own.program.build_id != *build_id && !build_id.is_empty() => {
                self.warnings.push(format!(
                    "{executable} was rebuilt since its plan was made; objects are found again by name, \
                     heap objects by function, line and size class"
                ));
            }
            _ => {}
        }
    }

    /// The rules written by hand, then those of the plan's decisions.
    fn decisions(
        &mut self,
        plan: &Plan,
        recogniser: &Recogniser<'_>,
        teams: &[&Team],
        by_hand: &[Rule],
    ) -> Result<Vec<Rule>, Error> {
        let executable = &plan.program.executable;
        let subjects = plan.decisions.iter().map(|decision| &decision.subject);
        let siblings: Vec<&Subject> = subjects.collect();
        let mut rules = by_hand.to_vec();
        let mut gone = None;
        for (position, decision) in plan.decisions.iter().enumerate() {
            if matches!(decision.subject, Subject::Code { .. }) {
                if !self.target.has_copies {
                    self.warnings.push(format!(
                        "`{}` is to be replicated, which no stock kernel does within a process: it stays where it is",
                        decision.name
                    ));
                }
                continue;
            }
            let is_said = |rule: &Rule| rule.subject == subject::UNMATCHED;
            if decision.subject == Subject::Unmatched && by_hand.iter().any(is_said) {
                continue;
            }
            let request = RuleRequest {
                name: &decision.name,
                decision: Some(position),
                phase: None,
                subject: &decision.subject,
                placement: &decision.placement,
            };
            self.warn_of_start(decision);
            let is_later = decision.start != Start::Allocation
                && decision.placement != Placement::FirstTouch
                && self.target.later != LatePlacement::Never;
            let flags = if is_later { RULE_LATER } else { 0 };
            let (page_bytes, target) = (plan.page_bytes, self.target);
            match self.rules(&request, recogniser, &siblings, teams, page_bytes, target)? {
                Ok(more) => rules.extend(more.into_iter().map(|rule| Rule {
                    flags: rule.flags | flags,
                    ..rule
                })),
                Err(NotRecognised::Nothing(message)) => {
                    let rule = format!("the plan for {executable}: `{}`", decision.name);
                    return Err(Error::MatchesNothing { rule, message });
                }
                Err(NotRecognised::Gone(message)) => {
                    self.warnings
                        .push(format!("`{}` is not placed: {message}", decision.name));
                    gone = Some(message);
                }
            }
        }
        match gone {
            Some(message) if rules.len() == by_hand.len() => Err(Error::MatchesNothing {
                rule: format!("the plan for {executable}"),
                message,
            }),
            _ => Ok(rules),
        }
    }

    /// Warns if a decision's start cannot be carried out as planned.
    fn warn_of_start(&mut self, decision: &Decision) {
        let name = &decision.name;
        let warning = match (self.target.later, decision.start, &decision.placement) {
            (_, Start::Allocation, _) | (LatePlacement::AsPlanned, ..) => return,
            (_, _, Placement::FirstTouch) => format!(
                "`{name}` stays where it is first touched: the plan has its pages move near who uses them next from \
                 the second thread on, for which there is no system call"
            ),
            (LatePlacement::Never, ..) => format!(
                "`{name}` is placed from its allocation on: the plan has it wait for the second thread, and pages that \
                 are there cannot be moved by touching them"
            ),
            (LatePlacement::Once, Start::SecondThread, _) => return,
            (LatePlacement::Once, Start::Parallel, _) => format!(
                "`{name}` is moved once, when the second thread is created: the plan has it move back whenever one \
                 thread runs alone, which is not done, as nobody knows then for how long"
            ),
        };
        self.warnings.push(warning);
    }

    /// The program of the command line that a plan is for: by build-id, or by name where it was
    /// rebuilt.
    fn own_program(&self, plan: &Plan) -> Option<&'a ProgramImage> {
        let crate::Program {
            executable,
            build_id,
            ..
        } = &plan.program;
        let programs = || self.programs.iter().filter(|one| !one.is_script);
        programs()
            .find(|one| !build_id.is_empty() && one.program.build_id == *build_id)
            .or_else(|| programs().find(|one| one.program.file_name == *executable))
            .or_else(|| {
                programs()
                    .next()
                    .filter(|_| executable.is_empty() && build_id.is_empty())
            })
    }

    /// The compact rules of one request, most exact first.
    fn rules(
        &mut self,
        request: &RuleRequest<'_>,
        recogniser: &Recogniser<'_>,
        siblings: &[&Subject],
        teams: &[&Team],
        plan_page_bytes: u64,
        target: &Target<'_>,
    ) -> Result<Result<Vec<Rule>, NotRecognised>, Error> {
        if *request.subject == Subject::Unmatched {
            self.check_unmatched(request)?;
        }
        let keys = match recogniser.keys(
            request.subject,
            siblings,
            &mut self.tables,
            &mut self.warnings,
        ) {
            Ok(keys) => keys,
            Err(unmatched) => return Ok(Err(unmatched)),
        };
        let number = self.rule_names.len() as u32;
        self.rule_names.push(request.name.to_owned());
        self.decisions.push(request.decision);
        self.phases.push(request.phase.map(str::to_owned));
        let mut rules = Vec::new();
        for key in keys {
            let mut dealer = Dealer {
                target,
                teams,
                plan_page_bytes,
                period_is_kept: recogniser.plan.is_some(),
                name: request.name,
                tables: &mut self.tables,
                warnings: &mut self.warnings,
            };
            rules.extend(dealer.place(Rule { number, ..key }, request.placement)?);
        }
        if rules.iter().any(|rule| rule.flags & RULE_WEAK != 0)
            && !rules.iter().any(|rule| rule.flags & RULE_WEAK == 0)
        {
            self.warnings.push(format!(
                "`{}` is recognised by function, line and size class only",
                request.name
            ));
        }
        Ok(Ok(rules))
    }

    /// Checks a placement of unmatched memory: the nodes must exist, as a policy of the process reports no failures.
    fn check_unmatched(&self, request: &RuleRequest<'_>) -> Result<(), Error> {
        let nodes: &[_] = match request.placement {
            Placement::Interleave { nodes } => nodes,
            Placement::Whole(Owner::Node(node)) => &[(*node, 1)],
            Placement::Whole(Owner::Near(kind, number)) => {
                self.target.device_node(*kind, *number, request.name)?;
                &[]
            }
            _ => &[],
        };
        nodes
            .iter()
            .try_for_each(|&(node, _)| self.target.check_memory(node, request.name))
    }

    fn section(
        &mut self,
        [executable, rank]: [u32; 2],
        rules: Vec<Rule>,
        pins: Part,
        phases: Part,
    ) {
        let rules = self.tables.add_rules(rules);
        self.tables.sections.push(Section {
            executable,
            rank,
            rules,
            pins,
            phases,
        });
    }

    fn pin_in_order(&mut self, cpus: &[CpuId]) -> Part {
        let first = self.tables.pins.len();
        for (index, cpu) in cpus.iter().enumerate() {
            self.tables.pin(NONE, 0, index, cpu.0);
        }
        [first as u32, cpus.len() as u32]
    }

    fn pin_teams(&mut self, plan: &Plan, recogniser: &Recogniser<'_>, target: &Target<'_>) -> Part {
        let first = self.tables.pins.len();
        for team in &plan.teams {
            let cpus = target.cpus(&team.name);
            if team.module.is_empty() && team.threads == 1 {
                // The main thread alone.
                if let Some(cpu) = cpus.first() {
                    self.tables.pin(NONE, 0, 0, cpu.0);
                }
                continue;
            }
            let routine = match team.module.is_empty() {
                true => None,
                false => recogniser.start_routine(team),
            };
            match routine {
                Some((build_id, name, offset)) => {
                    let module = self.tables.module(&build_id, &name);
                    // The main thread, which has not been created, is the first of an OpenMP team.
                    let is_openmp = team.name == Team::OPENMP;
                    for (index, cpu) in cpus.iter().enumerate() {
                        match index.checked_sub(is_openmp.into()) {
                            Some(index) => self.tables.pin(module, offset, index, cpu.0),
                            None => self.tables.pin(NONE, 0, 0, cpu.0),
                        }
                    }
                }
                None => {
                    let module = &team.module;
                    let why = if module.is_empty() {
                        "the plan does not name it".to_owned()
                    } else if is_runtime_module(module.as_bytes()) {
                        format!("{module} is another build since the plan was made")
                    } else {
                        format!("{module} is rebuilt since the plan was made")
                    };
                    self.warnings.push(format!(
                        "the start routine of team `{}` is not found ({why}): threads are pinned in order of creation",
                        team.name
                    ));
                    self.tables.pins.truncate(first);
                    return self.pin_in_order(cpus);
                }
            }
        }
        [first as u32, (self.tables.pins.len() - first) as u32]
    }
}
