//! Prints a plan as its TOML file: tables and keys always in the same order, without keys that say nothing.

use std::fmt::{Display, Write as _};

use super::VERSION;
use crate::place_rule::print_bounds;
use crate::{
    CallSiteFrame, Decision, Effect, JobPlan, PageRun, Phase, Placement, Plan, Program, Start,
    Subject,
};

/// Comment at the beginning of both forms of the file.
const PLACEMENTS: &str = "# placement: block, block-cyclic:20M, round-robin, object-blocks:2000, interleave, interleave:0,2-3, interleave:0=3,1=1,\n\
                          #   thread:2, node:1, runs, replicate, first-touch; block@TEAM for another team than the first,\n\
                          #   block@main+TEAM for the main thread and the team,\n\
                          #   block@TEAM:reversed for its last thread first.\n";
/// Name of a plan's table in a job's plan.
const GROUP_PLAN: &str = "group.plan";

impl JobPlan {
    /// The plan as a TOML file.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "# A nearpage plan of a job: a part for each group of ranks that behave alike. A rank follows the part that\n\
             # lists it in `ranks`, else the one that lists its number on its host in `local_ranks`, else the first.\n\
             {PLACEMENTS}version = {VERSION}\n"
        );
        for group in &self.groups {
            text.push_str("\n[[group]]\n");
            key(&mut text, "ranks", quote(&group.ranks.to_string()));
            key_unless_empty(&mut text, "local_ranks", &group.local_ranks.to_string());
            for plan in &group.plans {
                text += &format!("\n[[{GROUP_PLAN}]]\n");
                plan.write_toml(&format!("{GROUP_PLAN}."), &mut text);
            }
        }
        text
    }
}

impl Plan {
    /// The plan as a TOML file. Tables and keys always have the same order.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "# A nearpage plan: where the pages of each object go. The first [[object]] that fits wins.\n\
             {PLACEMENTS}version = {VERSION}\n"
        );
        self.write_toml("", &mut text);
        text
    }

    /// Keys and tables; the names of the tables begin with `prefix`.
    fn write_toml(&self, prefix: &str, text: &mut String) {
        key(text, "policy", quote(&self.policy));
        key(text, "machine", quote(&self.machine));
        key(text, "page_bytes", self.page_bytes);
        if let Some(layout) = self.threads {
            key(text, "threads", quote(layout.as_str()));
        }
        self.program.write_toml(prefix, text);
        if let Some(predicted) = &self.predicted {
            *text += &format!("\n[{prefix}predicted]\n");
            key(text, "local_before", share(predicted.local_before));
            key(text, "local_after", share(predicted.local_after));
            for (name, time_ns) in [
                ("first_touch_ns", predicted.first_touch_ns),
                ("planned_ns", predicted.planned_ns),
            ] {
                if let Some(time_ns) = time_ns {
                    key(text, name, figure(time_ns.round()));
                }
            }
            if let Some([least, most]) = predicted.all_threads_change {
                let bounds = format!("[{}, {}]", share(least), share(most));
                key(text, "all_threads_change", bounds);
            }
        }
        if let Some(online_migration) = &self.online_migration {
            *text += &format!("\n[{prefix}online_migration]\n");
            for (name, value) in &online_migration.parameters {
                key(text, &bare_key(name), integer(*value));
            }
        }
        for team in &self.teams {
            *text += &format!("\n[[{prefix}team]]\n");
            key(text, "name", quote(&team.name));
            key(text, "threads", team.threads);
            if team.beside > 0 {
                key(text, "beside", team.beside);
            }
            place_in_file(text, &team.module, &team.build_id, team.offset);
        }
        for decision in &self.decisions {
            decision.write_toml(&format!("{prefix}object"), text);
        }
        for phase in &self.phases {
            phase.write_toml(prefix, text);
        }
    }
}

impl Program {
    /// Writes a table whose name begins with `prefix`.
    pub(crate) fn write_toml(&self, prefix: &str, text: &mut String) {
        *text += &format!("\n[{prefix}program]\n");
        key(text, "executable", quote(&self.executable));
        key_unless_empty(text, "build_id", &self.build_id);
        let arguments = self.arguments.iter().map(|argument| quote(argument));
        key(text, "arguments", list(arguments));
        if let Some(rank) = self.rank {
            key(text, "rank", rank);
        }
    }
}

impl Phase {
    fn write_toml(&self, prefix: &str, text: &mut String) {
        *text += &format!("\n[[{prefix}phase]]\n");
        key(text, "function", quote(&self.function));
        place_in_file(text, &self.module, &self.build_id, self.offset);
        size_unless_zero(text, self.size_bytes);
        if !self.threads.is_empty() {
            key(text, "threads", list(self.threads.iter()));
        }
        for decision in &self.decisions {
            decision.write_toml(&format!("{prefix}phase.object"), text);
        }
    }
}

impl Decision {
    /// Writes a table of this name.
    fn write_toml(&self, table: &str, text: &mut String) {
        *text += &format!("\n[[{table}]]\n");
        key(text, "name", quote(&self.name));
        self.subject.write_toml(text);
        key(text, "placement", quote(&self.placement.to_string()));
        if let Placement::Runs(runs) = &self.placement {
            text.push_str("runs = [\n");
            for four in runs.chunks(4) {
                *text += &format!("  {},\n", with_commas(four.iter().map(quoted_run)));
            }
            text.push_str("]\n");
        }
        if self.start != Start::default() {
            key(text, "start", quote(self.start.as_str()));
        }
        key_unless_empty(text, "why", &self.why);
        if self.effect != Effect::default() {
            let Effect {
                accesses,
                cost_share,
                local_before,
                local_after,
                samples,
                confidence,
            } = self.effect;
            *text += &format!("predicted = {{ accesses = {}", figure(accesses.round()));
            *text += &format!(", cost_share = {}", share(cost_share));
            if let Some(local_before) = local_before {
                *text += &format!(", local_before = {}", share(local_before));
            }
            *text += &format!(", local_after = {}", share(local_after));
            if let Some(samples) = samples {
                *text += &format!(", samples = {}", integer(samples));
            }
            if let Some(confidence) = confidence {
                *text += &format!(", confidence = {}", share(confidence));
            }
            text.push_str(" }\n");
        }
    }
}

impl Subject {
    fn write_toml(&self, text: &mut String) {
        match self {
            Self::Symbol {
                symbol,
                module,
                build_id,
                offset,
                size_bytes,
            } => {
                key(text, "symbol", quote(symbol));
                place_in_file(text, module, build_id, *offset);
                size_unless_zero(text, *size_bytes);
            }
            Self::CallSite {
                frames,
                size_bytes,
                order,
                thread,
            } => {
                text.push_str("call_site = [\n");
                for frame in frames {
                    *text += &format!("  {{ {} }},\n", print_frame(frame));
                }
                text.push_str("]\n");
                size_unless_zero(text, *size_bytes);
                if let Some((first, last)) = order {
                    key(text, "order", list([first, last].into_iter()));
                }
                if let Some(thread) = thread {
                    key(text, "thread", thread);
                }
            }
            Self::Code {
                module,
                build_id,
                pages,
            } => {
                key(text, "code", quote(module));
                key_unless_empty(text, "build_id", build_id);
                if !pages.is_empty() {
                    let pages = pages.iter();
                    let pages = pages.map(|(first, count)| quote(&format!("{first}+{count}")));
                    key(text, "pages", list(pages));
                }
            }
            Self::BrkHeap { size_bytes } => {
                key(text, "brk_heap", true);
                key(text, "size", integer(*size_bytes));
            }
            Self::Unmatched => key(text, "unmatched", true),
            Self::Heap {
                size_min_bytes,
                size_max_bytes,
            } => {
                let bounds = print_bounds(*size_min_bytes, *size_max_bytes);
                key(text, "heap", quote(&bounds));
            }
            Self::Mapping {
                size_min_bytes,
                size_max_bytes,
            } => {
                let bounds = print_bounds(*size_min_bytes, *size_max_bytes);
                key(text, "mapping", quote(&bounds));
            }
        }
    }
}

fn print_frame(frame: &CallSiteFrame) -> String {
    let mut keys = Vec::new();
    if !frame.function.is_empty() {
        keys.push(format!("function = {}", quote(&frame.function)));
    }
    if frame.line != 0 {
        keys.push(format!("line = {}", frame.line));
    }
    keys.push(format!("module = {}", quote(&frame.module)));
    keys.push(format!("offset = {}", address(frame.offset)));
    if !frame.build_id.is_empty() {
        keys.push(format!("build_id = {}", quote(&frame.build_id)));
    }
    keys.join(", ")
}

fn quoted_run(run: &PageRun) -> String {
    quote(&run.to_string())
}

fn key(text: &mut String, key: &str, value: impl Display) {
    *text += &format!("{key} = {value}\n");
}

/// A key, in quotes where it needs them.
fn bare_key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match !name.is_empty() && name.bytes().all(is_bare) {
        true => name.to_owned(),
        false => quote(name),
    }
}

fn key_unless_empty(text: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        key(text, name, quote(value));
    }
}

/// Writes the file and the address in it, as far as they are known.
fn place_in_file(text: &mut String, module: &str, build_id: &str, offset: u64) {
    key_unless_empty(text, "module", module);
    key_unless_empty(text, "build_id", build_id);
    if offset != 0 {
        key(text, "offset", address(offset));
    }
}

fn size_unless_zero(text: &mut String, size_bytes: u64) {
    if size_bytes != 0 {
        key(text, "size", integer(size_bytes));
    }
}

fn list(values: impl Iterator<Item = impl Display>) -> String {
    format!("[{}]", with_commas(values))
}

fn with_commas(values: impl Iterator<Item = impl Display>) -> String {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    values.join(", ")
}

/// A TOML integer has 63 bits; nothing in a program's address space needs more.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn address(offset: u64) -> String {
    format!("{:#x}", integer(offset))
}

fn share(share: f64) -> String {
    figure((share * 1e4).round() / 1e4)
}

fn figure(value: f64) -> String {
    match value {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "inf" } else { "-inf" }.to_owned(),
        _ => format!("{value:?}"),
    }
}

/// A TOML basic string on one line.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
