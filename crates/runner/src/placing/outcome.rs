//! Reports the result of a plan, by rule over all processes, and the result of thread moves.

use std::collections::{HashMap, HashSet};
use std::io;

use nearpage_amount::counted;
use nearpage_report::printable;
use schemars::JsonSchema;
use serde::Serialize;

use super::summary::{PhaseSummary, ProcessSummary, RuleSummary};

/// Result of plans and placements by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Placed {
    /// Results of decisions and rules by hand, in order.
    pub rules: Vec<PlacedRule>,
    /// Threads that were pinned.
    pub threads_pinned: u64,
    /// Threads that could not be pinned.
    pub threads_not_pinned: u64,
    /// Processes that loaded the preload library.
    pub processes: u64,
    /// Processes that ended without a report.
    pub processes_unknown: u64,
    /// The results and problems as text.
    pub words: Vec<String>,
}

/// Result of one decision, summed over processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlacedRule {
    /// Name of the decision's objects.
    pub name: String,
    /// Objects placed.
    pub objects: u64,
    /// Number of pages of these objects.
    pub pages: u64,
    /// Number of bytes of these objects.
    pub placed_bytes: u64,
    /// Existing pages that were moved.
    pub moved_pages: u64,
    /// Existing pages that cannot be moved, because a device or the kernel holds them in place.
    pub pinned_pages: u64,
    /// Problems, as text.
    pub problems: Vec<String>,
}

impl Placed {
    /// `words`: the results as text.
    pub(super) fn new(
        processes: &[ProcessSummary],
        rule_names: &[String],
        phases: &[Option<String>],
        words: Vec<String>,
    ) -> Self {
        let rules = sums(processes, rule_names, phases);
        let rules = rules.iter().zip(rule_names);
        let pids: HashSet<u32> = processes.iter().map(|process| process.pid).collect();
        Self {
            rules: rules
                .map(|(rule, name)| PlacedRule {
                    name: name.clone(),
                    objects: rule.objects,
                    pages: rule.pages,
                    placed_bytes: rule.bytes,
                    moved_pages: rule.switched_moved,
                    pinned_pages: rule.pinned_pages,
                    problems: rule.troubles(),
                })
                .collect(),
            threads_pinned: processes.iter().map(|process| process.pins.pinned).sum(),
            threads_not_pinned: processes.iter().map(|process| process.pins.failed).sum(),
            processes: pids.len() as u64,
            processes_unknown: processes_without_end(processes) as u64,
            words,
        }
    }
}

/// Number of processes that began and did not report at their end.
fn processes_without_end(processes: &[ProcessSummary]) -> usize {
    let mut open: HashMap<u32, i64> = HashMap::new();
    for process in processes {
        *open.entry(process.pid).or_default() += if process.began { 1 } else { -1 };
    }
    open.values().filter(|began| **began > 0).count()
}

/// Sums of each rule over all processes.
fn sums(
    processes: &[ProcessSummary],
    rule_names: &[String],
    phases: &[Option<String>],
) -> Vec<RuleSummary> {
    let mut rules: Vec<RuleSummary> = (0..rule_names.len())
        .map(|number| RuleSummary {
            phase: phases.get(number).cloned().flatten(),
            ..RuleSummary::default()
        })
        .collect();
    for process in processes {
        for rule in &process.rules {
            if let Some(sum) = rules.get_mut(rule.number as usize) {
                sum.add(process.pid, rule);
            }
        }
    }
    rules
}

/// The line for a command none of whose processes has used a plan. `executables`: the programs that the plans are for; empty
/// if every program takes the placements.
pub(super) fn nothing_placed(executables: &[&str]) -> String {
    let ran = match executables {
        [] => "loaded the preload library".to_owned(),
        executables => {
            let names: Vec<String> = executables.iter().map(|name| printable(name)).collect();
            format!("ran {} with the preload library", names.join(" or "))
        }
    };
    format!(
        "nothing was placed: no process of the command {ran}; statically linked, setuid and setgid programs don't load \
         it; link the program dynamically, run it without privileges"
    )
}

pub(super) fn outcome(
    processes: &[ProcessSummary],
    rule_names: &[String],
    phases: &[Option<String>],
) -> Vec<String> {
    let without_end = processes_without_end(processes);
    if without_end > 0 && processes.iter().all(|process| process.began) {
        return vec![
            "what was placed is not known: the command ended abruptly, most likely by a signal, or could not tell"
                .to_owned(),
        ];
    }
    let rules = sums(processes, rule_names, phases);
    let mut lines = Vec::new();
    for (rule, name) in rules.iter().zip(rule_names) {
        let name = printable(name);
        let mut line = format!("{name}: {}", rule.done());
        let troubles = rule.troubles();
        if !troubles.is_empty() {
            line += &format!(" ({})", troubles.join("; "));
        }
        lines.push(line);
    }
    let mut lines = without_repetitions(lines);
    let pinned: u64 = processes.iter().map(|process| process.pins.pinned).sum();
    let failed: u64 = processes.iter().map(|process| process.pins.failed).sum();
    if pinned + failed > 0 {
        let failed = if failed > 0 {
            format!(", {failed} could not be")
        } else {
            String::new()
        };
        lines.push(format!("{} pinned{failed}", counted(pinned, "thread")));
    }
    if without_end > 0 {
        lines.push(format!(
            "{} ended abruptly, most likely by a signal: what was placed there is not known",
            counted(without_end as u64, "process")
        ));
    }
    if let Some(errno) = processes.iter().find_map(|process| process.bind_refused) {
        lines.push(format!(
            "mbind is refused here ({}): pages were touched from their nodes instead; a container needs CAP_SYS_NICE \
             or a seccomp profile that allows mbind",
            io::Error::from_raw_os_error(errno)
        ));
    } else if processes.iter().any(|process| process.mechanism == "touch") {
        lines.push("pages were touched from their nodes".to_owned());
    }
    lines
}

/// Lines on the threads that changed places at the start of each phase that moves threads.
pub(super) fn changed_places(
    processes: &[ProcessSummary],
    exchanges: &[Option<String>],
) -> Vec<String> {
    let of_phase = |(number, function): (u32, &Option<String>)| {
        let function = printable(function.as_ref()?);
        let phases = processes.iter().flat_map(|process| &process.phases);
        let ours = || phases.clone().filter(|phase| phase.number == number);
        // If no process reported anything, `outcome` says so.
        ours().next()?;
        if !ours().any(|phase| phase.begun) {
            return Some(format!(
                "no thread changed place: `{function}` was not seen to be executed"
            ));
        }
        let sum = |count: fn(&PhaseSummary) -> u64| ours().map(count).sum::<u64>();
        let mut line = format!(
            "{} changed place when `{function}` was first executed",
            counted(sum(|phase| phase.changed), "thread")
        );
        let left = sum(|phase| phase.left);
        if left > 0 {
            line += &format!(
                ", {left} stayed, as the program or its OpenMP runtime has set their affinity since"
            );
        }
        let failed = sum(|phase| phase.failed);
        if failed > 0 {
            line += &format!(", {failed} could not be pinned there");
        }
        Some(line)
    };
    (0..).zip(exchanges).filter_map(of_phase).collect()
}

/// Replaces equal lines by one line with their number, at the place of the first. If one function allocates objects on
/// several paths, each path may have a rule.
fn without_repetitions(lines: Vec<String>) -> Vec<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for line in &lines {
        *counts.entry(line.clone()).or_default() += 1;
    }
    lines
        .into_iter()
        .filter_map(|line| match counts.remove(&line)? {
            1 => Some(line),
            count => Some(format!("{count} × {line}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text on one rule in one process.
    fn said(rule: &str, phase: Option<String>, counters: &str) -> String {
        let line = format!(r#"{{"pid":1,"mechanism":"bind","rules":[{{"number":0{counters}}}]}}"#);
        let processes = [serde_json::from_str(&line).unwrap()];
        outcome(&processes, &[rule.to_owned()], &[phase]).join("\n")
    }

    #[test]
    fn placements_that_begin_later_are_told_apart() {
        let said = |counters: &str| said("a", None, counters);
        let placed = r#","objects":2,"pages":512,"bytes":2097152"#;
        assert_eq!(
            said(&format!(
                r#"{placed},"switched":2,"switched_moved":384,"switched_ns":5300000"#
            )),
            "a: placed 2 objects, 2 MiB in 512 pages, when the second thread was created: 384 pages moved, 5.3 ms"
        );
        assert_eq!(
            said(&format!(
                r#"{placed},"switched":1,"switched_moved":1,"switched_ns":42000,"waited":3"#
            )),
            "a: placed 2 objects, 2 MiB in 512 pages, 1 of them when the second thread was created: 1 page moved, 42 µs \
             (3 left to first touch: no second thread was created while they were there)"
        );
        assert_eq!(
            said(r#","waited":1"#),
            "a: 1 object recognised, none placed (1 left to first touch: no second thread was created while they \
             were there)"
        );
        assert_eq!(
            said(&format!(r#"{placed},"early":2"#)),
            "a: placed 2 objects, 2 MiB in 512 pages (2 placed at their allocation, not when the second thread was \
             created: pages that are there can't be moved)"
        );
        assert_eq!(
            said(r#","left":2"#),
            "a: 2 objects left to first touch, as planned"
        );
    }

    #[test]
    fn placements_of_phases_are_told_apart() {
        let said = |counters: &str| said("a from f on", Some("f._omp_fn.0".to_owned()), counters);
        let placed = r#","objects":2,"pages":512,"bytes":2097152"#;
        assert_eq!(
            said(&format!(
                r#"{placed},"switched":1,"switched_moved":384,"switched_ns":5300000,"waited":1"#
            )),
            "a from f on: placed 2 objects, 2 MiB in 512 pages, 1 of them when `f._omp_fn.0` was first executed: 384 \
             pages moved, 5.3 ms (1 left where placed before: `f._omp_fn.0` was not seen to be executed while they \
             were there)"
        );
        assert_eq!(
            said(r#","left":1"#),
            "a from f on: 1 object left where placed before, as planned"
        );
        assert_eq!(
            said(r#","early":1"#),
            "a from f on: 1 object recognised, none placed (1 left where placed before: pages that are there can't \
             be moved by touching them)"
        );
    }

    #[test]
    fn threads_that_change_places_are_reported_by_phase() {
        let said = |phases: &[&str]| {
            let line = |phases: &&str| format!(r#"{{"pid":1,"phases":[{phases}]}}"#);
            let lines = phases.iter().map(line);
            let processes: Vec<ProcessSummary> = lines
                .map(|line| serde_json::from_str(&line).unwrap())
                .collect();
            changed_places(&processes, &[None, Some("f._omp_fn.0".to_owned())]).join("\n")
        };
        let all = r#"{"number":1,"begun":true,"changed":3,"left":0,"failed":0}"#;
        let when = "changed place when `f._omp_fn.0` was first executed";
        assert_eq!(said(&[all]), format!("3 threads {when}"));
        let some = r#"{"number":1,"begun":true,"changed":1,"left":2,"failed":1}"#;
        assert_eq!(
            said(&[some]),
            format!(
                "1 thread {when}, 2 stayed, as the program or its OpenMP runtime has set their affinity since, 1 could not be \
                 pinned there"
            )
        );
        let none = r#"{"number":1,"begun":false,"changed":0,"left":0,"failed":0}"#;
        assert_eq!(said(&[all, none, all]), format!("6 threads {when}"));
        assert_eq!(
            said(&[none, none]),
            "no thread changed place: `f._omp_fn.0` was not seen to be executed"
        );
        assert_eq!(said(&["", r#"{"number":0,"begun":true}"#]), "");
    }

    #[test]
    fn outcome_for_unmatched_memory_is_that_of_its_processes() {
        let said = |processes: &[(u32, &str)]| {
            let line = |&(pid, unmatched): &(u32, &str)| {
                let line = format!(
                    r#"{{"pid":{pid},"mechanism":"bind","rules":[{{"number":0,{unmatched}}}]}}"#
                );
                serde_json::from_str(&line).unwrap()
            };
            let processes: Vec<ProcessSummary> = processes.iter().map(line).collect();
            outcome(&processes, &["unmatched".to_owned()], &[]).join("\n")
        };
        let set = r#""unmatched":"set""#;
        assert_eq!(said(&[(1, set)]), "unmatched: policy set in 1 process");
        assert_eq!(
            said(&[(1, set), (2, set), (1, set)]),
            "unmatched: policy set in 2 processes",
            "one that became another program is one"
        );
        assert_eq!(
            said(&[(
                1,
                r#""unmatched":"set","switched":1,"switched_moved":7,"switched_ns":42000"#
            )]),
            "unmatched: policy set in 1 process when the second thread was created: 7 pages moved, 42 µs"
        );
        assert_eq!(
            said(&[
                (1, r#""unmatched":"waits""#),
                (2, set),
                (
                    3,
                    r#""unmatched":"failed","failures":[{"call":"set_mempolicy","errno":1,"count":1}]"#
                )
            ]),
            "unmatched: policy set in 1 process; left to first touch, as no second thread was created, in 1 process; could \
             not be placed in 1 process (1 × set_mempolicy failed: Operation not permitted (os error 1))"
        );
        assert_eq!(
            said(&[(1, r#""unmatched":"left""#)]),
            "unmatched: left to first touch, as planned, in 1 process"
        );
    }

    #[test]
    fn a_command_that_never_starts_the_plans_program_is_told_its_name() {
        assert!(
            nothing_placed(&["b", "c\n"]).contains("ran b or c\u{fffd} with the preload library")
        );
        assert!(nothing_placed(&[]).contains("of the command loaded the preload library"));
    }

    #[test]
    fn outcome_adds_up_processes_and_names_failures() {
        let line = r#"{"pid":1,"mechanism":"bind","bind_refused":null,"pins":{"pinned":3,"failed":1},
            "rules":[{"number":0,"objects":1,"pages":256,"bytes":1048576},
                     {"number":1,"failures":[{"call":"mbind","errno":12,"count":2}]}]}"#;
        let process = || serde_json::from_str(line).unwrap();
        let names = ["a".to_owned(), "b".to_owned()];
        let lines = outcome(&[process(), process()], &names, &[]);
        assert_eq!(lines[0], "a: placed 2 objects, 2 MiB in 512 pages");
        assert!(
            lines[1].starts_with("b: matched nothing (4 × mbind failed: Cannot allocate memory"),
            "{lines:?}"
        );
        assert_eq!(lines[2], "6 threads pinned, 2 could not be");
        let alike = ["c", "a", "c", "c"].map(str::to_owned);
        let lines = outcome(&[process()], &alike, &[]);
        assert_eq!(lines[0], "c: placed 1 object, 1 MiB in 256 pages");
        assert_eq!(lines[2], "2 × c: matched nothing");
        assert_eq!(lines.len(), 4, "{lines:?}");
        let began = |pid| ProcessSummary {
            pid,
            began: true,
            ..ProcessSummary::default()
        };
        let lines = outcome(&[began(1)], &names, &[]);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("ended abruptly"), "{lines:?}");
        let lines = outcome(&[began(1), began(2), process()], &names, &[]);
        assert_eq!(lines[0], "a: placed 1 object, 1 MiB in 256 pages");
        assert!(
            lines[3].starts_with("1 process ended abruptly"),
            "{lines:?}"
        );
        let lines = outcome(&[began(1), process()], &names, &[]);
        assert!(!lines.concat().contains("abruptly"), "{lines:?}");
    }
}
