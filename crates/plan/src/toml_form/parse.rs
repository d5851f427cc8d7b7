//! Reads a plan from its TOML file: first its version, then every table. Errors name the line.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::VERSION;
use super::object::ObjectTable;
use super::print::quote;
use crate::{
    BuildId, Decision, Error, GroupPlan, JobPlan, OnlineMigration, Phase, Plan, PlanFile,
    PlanPrediction, Program, RankList, Subject, Team, ThreadLayout,
};

/// Position of a fault in bytes, and the message.
pub(super) type Fault = (usize, String);

pub(super) fn fault<T>(at: usize, message: &str) -> Result<T, Fault> {
    Err((at, message.to_owned()))
}

/// Name of a subject of which a plan has at most one decision.
pub(super) fn only_once(subject: &Subject) -> Option<&'static str> {
    match subject {
        Subject::Unmatched => Some("unmatched memory"),
        Subject::BrkHeap { .. } => Some("`brk_heap`"),
        _ => None,
    }
}

impl Plan {
    /// Reads a plan for a program; `origin` (its path) goes into messages.
    ///
    /// # Errors
    /// [`Error::Syntax`] names the line and what was expected there.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        let plan = match begin(text) {
            Ok(PlanHead { group, .. }) if !group.is_empty() => fault(
                group[0].span().start,
                "this is the plan of a job, with a part for each group of ranks: `nearpage run --plan` follows it, \
                 started by the job's launcher",
            ),
            Ok(_) => of_program(text),
            Err(fault) => Err(fault),
        };
        plan.map_err(|fault| named(fault, text, origin))
    }
}

impl PlanFile {
    /// Reads a plan for a program or for a job; `origin` (its path) goes into messages.
    ///
    /// # Errors
    /// [`Error::Syntax`] names the line and what was expected there.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        let read = begin(text).and_then(|beginning| match beginning.group.is_empty() {
            true => of_program(text).map(|plan| Self::Program(Box::new(plan))),
            false => of_job(text).map(Self::Job),
        });
        read.map_err(|fault| named(fault, text, origin))
    }
}

/// The error for a fault: it names file and line.
fn named((at, message): Fault, text: &str, origin: &str) -> Error {
    let before = &text.as_bytes()[..at.min(text.len())];
    Error::Syntax {
        origin: origin.to_owned(),
        line: before.iter().filter(|&&byte| byte == b'\n').count() + 1,
        message,
    }
}

/// Keys that are read first, so that a plan of a newer version is refused for its version, not for unknown keys.
#[derive(Deserialize)]
struct PlanHead {
    version: Spanned<i64>,
    #[serde(default)]
    group: Vec<Spanned<IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanTable {
    /// [`begin`] has checked the version; the parts of a job's plan have none.
    #[serde(default, rename = "version")]
    _version: u32,
    #[serde(default)]
    policy: String,
    #[serde(default)]
    machine: String,
    #[serde(default = "ordinary_page")]
    page_bytes: Spanned<u64>,
    threads: Option<Spanned<String>>,
    program: Program,
    predicted: Option<PlanPrediction>,
    /// Called `live` in version 0.1.
    #[serde(alias = "live")]
    online_migration: Option<BTreeMap<String, u64>>,
    #[serde(default, rename = "team")]
    teams: Vec<Team>,
    #[serde(default, rename = "object")]
    objects: Vec<Spanned<ObjectTable>>,
    #[serde(default, rename = "phase")]
    phases: Vec<Spanned<PhaseTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobTable {
    #[serde(rename = "version")]
    _version: u32,
    #[serde(rename = "group")]
    groups: Vec<Spanned<GroupTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupTable {
    ranks: Spanned<String>,
    local_ranks: Option<Spanned<String>>,
    #[serde(default, rename = "plan")]
    plans: Vec<PlanTable>,
}

fn ordinary_page() -> Spanned<u64> {
    Spanned::new(0..0, 4096)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseTable {
    function: String,
    #[serde(default)]
    module: String,
    #[serde(default)]
    build_id: BuildId,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    size: u64,
    threads: Option<Spanned<Vec<u32>>>,
    #[serde(default, rename = "object")]
    objects: Vec<Spanned<ObjectTable>>,
}

fn begin(text: &str) -> Result<PlanHead, Fault> {
    let beginning: PlanHead = toml::from_str(text).map_err(syntax)?;
    let version = &beginning.version;
    if *version.get_ref() != i64::from(VERSION) {
        let message = format!(
            "this is a plan of version {}; expected version {VERSION}; make it again with `nearpage plan`",
            version.get_ref()
        );
        return Err((version.span().start, message));
    }
    Ok(beginning)
}

fn of_program(text: &str) -> Result<Plan, Fault> {
    toml::from_str::<PlanTable>(text).map_err(syntax)?.plan()
}

fn of_job(text: &str) -> Result<JobPlan, Fault> {
    let file: JobTable = toml::from_str(text).map_err(syntax)?;
    let mut groups: Vec<GroupPlan> = Vec::with_capacity(file.groups.len());
    for group in file.groups {
        let start = group.span().start;
        let group = group.into_inner();
        if group.plans.is_empty() {
            return fault(start, "a group needs a [[group.plan]]");
        }
        let ranks = ranks(group.ranks, "rank", groups.iter().map(|group| &group.ranks))?;
        let others = groups.iter().map(|group| &group.local_ranks);
        let local_ranks = group.local_ranks;
        let local_ranks = local_ranks.map(|text| self::ranks(text, "local rank", others));
        let plans = group.plans.into_iter().map(PlanTable::plan);
        groups.push(GroupPlan {
            ranks,
            local_ranks: local_ranks.transpose()?.unwrap_or_default(),
            plans: plans.collect::<Result<_, _>>()?,
        });
    }
    Ok(JobPlan { groups })
}

/// Reads a list of ranks; none of them may be in another group.
fn ranks<'a>(
    text: Spanned<String>,
    noun: &str,
    mut others: impl Iterator<Item = &'a RankList>,
) -> Result<RankList, Fault> {
    let at = text.span().start;
    let parsed = text.get_ref().parse::<RankList>();
    let ranks = parsed.map_err(|error| (at, error.to_string()))?;
    let taken = others.find_map(|other| {
        let mut both = ranks.as_slice().iter();
        both.find(|rank| other.contains(**rank))
    });
    match taken {
        Some(rank) => fault(at, &format!("{noun} {rank} is in two groups")),
        None => Ok(ranks),
    }
}

impl PlanTable {
    fn plan(self) -> Result<Plan, Fault> {
        let page_bytes = *self.page_bytes.get_ref();
        if !page_bytes.is_power_of_two() || page_bytes > 1 << 40 {
            let message = format!("`page_bytes` is {page_bytes}; expected a power of two");
            return Err((self.page_bytes.span().start, message));
        }
        let threads = self.threads.map(layout).transpose()?;
        let mut decisions = Vec::with_capacity(self.objects.len());
        for object in self.objects {
            let start = object.span().start;
            let decision = object.into_inner().decision(start)?;
            if let Some(what) = only_once(&decision.subject)
                && decisions
                    .iter()
                    .any(|other: &Decision| only_once(&other.subject) == Some(what))
            {
                let message = format!("there is one decision about {what} already");
                return Err((start, message));
            }
            decisions.push(decision);
        }
        let phases = self.phases.into_iter().map(|phase| {
            let start = phase.span().start;
            phase.into_inner().phase(start)
        });
        Ok(Plan {
            phases: phases.collect::<Result<_, _>>()?,
            program: self.program,
            policy: self.policy,
            machine: self.machine,
            page_bytes,
            threads,
            predicted: self.predicted,
            teams: self.teams,
            decisions,
            online_migration: self
                .online_migration
                .map(|parameters| OnlineMigration { parameters }),
        })
    }
}

fn syntax(error: toml::de::Error) -> Fault {
    let message = error
        .message()
        .replace("unknown field", "unknown key")
        .replace("missing field", "missing key");
    (
        error.span().map_or(0, |span| span.start),
        message.trim_end().replace('\n', ", "),
    )
}

fn layout(text: Spanned<String>) -> Result<ThreadLayout, Fault> {
    ThreadLayout::from_name(text.get_ref()).ok_or_else(|| {
        let found = quote(text.get_ref());
        let message = format!("`threads` is {found}; it can be \"compact\" or \"scatter\"");
        (text.span().start, message)
    })
}

impl PhaseTable {
    fn phase(self, start: usize) -> Result<Phase, Fault> {
        let mut decisions = Vec::with_capacity(self.objects.len());
        for object in self.objects {
            let start = object.span().start;
            let object = object.into_inner();
            if !object.fits_phase() {
                return fault(
                    start,
                    "`start`, `unmatched`, `brk_heap` and `code` do not go with an object of a phase",
                );
            }
            decisions.push(object.decision(start)?);
        }
        let threads = self.threads.map(exchange).transpose()?.unwrap_or_default();
        if decisions.is_empty() && threads.is_empty() {
            return fault(
                start,
                "a phase needs `threads` or a `[[phase.object]]`, or nothing begins with it",
            );
        }
        Ok(Phase {
            threads,
            function: self.function,
            module: self.module,
            build_id: self.build_id,
            offset: self.offset,
            size_bytes: self.size,
            decisions,
        })
    }
}

fn exchange(threads: Spanned<Vec<u32>>) -> Result<Vec<u32>, Fault> {
    let at = threads.span().start;
    let threads = threads.into_inner();
    let mut sorted = threads.clone();
    sorted.sort_unstable();
    match sorted.into_iter().eq(0..threads.len() as u32) {
        true => Ok(threads),
        false => fault(at, "`threads` has to name each thread from 0 on once"),
    }
}
