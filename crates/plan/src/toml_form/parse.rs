//! A plan read from its TOML file: its version first, then every table, and in which line a fault is.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::VERSION;
use super::object::ObjectTable;
use super::print::quote;
use crate::{
    BuildId, Decision, Error, Layout, OnlineMigration, Phase, Plan, Predicted, Program, Subject,
    Team,
};

/// At which byte of the file, and what is wrong.
pub(super) type Fault = (usize, String);

pub(super) fn fault<T>(at: usize, message: &str) -> Result<T, Fault> {
    Err((at, message.to_owned()))
}

/// Of what a plan has one decision at the most.
pub(super) fn only_once(subject: &Subject) -> Option<&'static str> {
    match subject {
        Subject::Unmatched => Some("unmatched memory"),
        Subject::BrkHeap { .. } => Some("`brk_heap`"),
        _ => None,
    }
}

impl Plan {
    /// Reads a plan; `origin` (its path) goes into messages.
    ///
    /// # Errors
    /// [`Error::Syntax`] names the line and what was expected there.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        parse(text).map_err(|(at, message)| Error::Syntax {
            origin: origin.to_owned(),
            line: text.as_bytes()[..at.min(text.len())]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count()
                + 1,
            message,
        })
    }
}

#[derive(Deserialize)]
struct VersionOnly {
    version: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    #[serde(rename = "version")]
    _version: u32,
    #[serde(default)]
    policy: String,
    #[serde(default)]
    machine: String,
    #[serde(default = "ordinary_page")]
    page_bytes: Spanned<u64>,
    threads: Option<Spanned<String>>,
    program: Program,
    predicted: Option<Predicted>,
    /// Version 0.1 called it `live`.
    #[serde(alias = "live")]
    online_migration: Option<BTreeMap<String, u64>>,
    #[serde(default, rename = "team")]
    teams: Vec<Team>,
    #[serde(default, rename = "object")]
    objects: Vec<Spanned<ObjectTable>>,
    #[serde(default, rename = "phase")]
    phases: Vec<Spanned<PhaseTable>>,
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

fn parse(text: &str) -> Result<Plan, Fault> {
    // Alone and first: what a newer version added would be refused as unknown otherwise.
    let version = toml::from_str::<VersionOnly>(text).map_err(syntax)?.version;
    if *version.get_ref() != i64::from(VERSION) {
        let message = format!(
            "this is a plan of version {}; expected version {VERSION}; make it again with `nearpage plan`",
            version.get_ref()
        );
        return Err((version.span().start, message));
    }
    let file: PlanFile = toml::from_str(text).map_err(syntax)?;
    let page_bytes = *file.page_bytes.get_ref();
    if !page_bytes.is_power_of_two() || page_bytes > 1 << 40 {
        let message = format!("`page_bytes` is {page_bytes}; expected a power of two");
        return Err((file.page_bytes.span().start, message));
    }
    let threads = file.threads.map(layout).transpose()?;
    let mut decisions = Vec::with_capacity(file.objects.len());
    for object in file.objects {
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
    let phases = file.phases.into_iter().map(|phase| {
        let start = phase.span().start;
        phase.into_inner().phase(start)
    });
    Ok(Plan {
        phases: phases.collect::<Result<_, _>>()?,
        program: file.program,
        policy: file.policy,
        machine: file.machine,
        page_bytes,
        threads,
        predicted: file.predicted,
        teams: file.teams,
        decisions,
        online_migration: file
            .online_migration
            .map(|parameters| OnlineMigration { parameters }),
    })
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

fn layout(text: Spanned<String>) -> Result<Layout, Fault> {
    Layout::from_name(text.get_ref()).ok_or_else(|| {
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
