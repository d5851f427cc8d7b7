//! `nearpage plan` of several recordings of one program: which of them has its threads where it takes
//! least time.
//!
//! What threads elsewhere would miss no recording says, since they would share other caches. So the program is
//! recorded under each layout, and each recording has a plan of its own; the quickest is taken.

use std::cmp::Ordering;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::bail;
use nearpage_machine::Machine;
use nearpage_plan::Layout;
use nearpage_planner::{pinned_layout, recorded_layout};
use nearpage_report::printable;
use serde_json::{Value, json};

use super::Planned;
use crate::Usage;
use crate::analysis::{Analysis, OnMachine, naming};
use crate::arguments::{self, Policy, Threads};
use crate::compare::duration;
use crate::progress::Progress;
use crate::replay_judge::{ReplayTime, first_touch};

/// Another recording than the first has to take so much less time: two tracings of the same thing differ by
/// some percent, by how their threads happened to take turns.
const MARGIN: f64 = 0.03;
/// What takes so much longer than another recording under its plan is looked into no further, where neither first
/// touch nor any other rule for all objects brings it nearer.
const WORTH_A_LOOK: f64 = 1.25;

/// A recording, its plan, and what it was weighed by: times of runs whose parallel part is longer ([`Choice::longer`]).
pub struct Weighed {
    pub folder: PathBuf,
    pub layout: Option<Layout>,
    /// None: it was not looked into.
    pub planned: Option<Planned>,
    /// Time under first touch, in nanoseconds.
    first_touch_ns: f64,
    /// Under the plan.
    planned_ns: Option<f64>,
    replayed: bool,
}

/// The recordings, and the position of the one that is taken.
pub struct Choice {
    pub recordings: Vec<Weighed>,
    pub taken: usize,
    /// The parallel part of the runs that they were weighed for is so many times as long as recorded.
    longer: f64,
}

/// What can't be asked of several recordings, by the arguments alone.
pub fn refuse(arguments: &arguments::Plan) -> Result<(), Usage> {
    if let Some(threads @ (Threads::Compact | Threads::Scatter)) = arguments.threads {
        return Err(Usage(format!(
            "--threads {} contradicts several recordings: where threads run is what they are weighed by, each with its threads \
             where they were; leave it out, or name one recording",
            threads.as_str()
        )));
    }
    if let Some(policy) = arguments.policy.iter().find(|one| **one != Policy::Auto) {
        return Err(Usage(format!(
            "--policy {} predicts no time, by which several recordings could be weighed: take --policy auto, or name \
             one recording",
            policy.policy().as_str()
        )));
    }
    Ok(())
}

/// Makes a plan of each recording that may be the quickest, with `plan`, and takes the quickest. `plan` gives up
/// where no simple rule brings the program within so many nanoseconds; it is told the time under first touch, where
/// that was replayed.
///
/// # Errors
/// Recordings whose times can't be compared.
pub fn choose(
    analyses: &[Analysis],
    machine: &Machine,
    longer: f64,
    plan: impl Fn(&Analysis, &OnMachine, f64, Option<ReplayTime>) -> anyhow::Result<Option<Planned>>,
) -> anyhow::Result<Choice> {
    if machine.nodes_with_memory().len() < 2 {
        bail!(
            "{} has one memory node, where it makes no difference on which node threads run; name another with \
             --machine, or one recording",
            machine.name
        );
    }
    let mut programs = Vec::new();
    for analysis in analyses {
        programs.push(only_program(analysis, machine)?);
    }
    for (analysis, program) in analyses.iter().zip(&programs) {
        comparable((&analyses[0], &programs[0]), (analysis, program), machine)?;
    }
    let mut touched = Vec::new();
    for Analysis { recording, .. } in analyses {
        let _progress = Progress::new(format!("simulating {}", recording.folder.display()));
        touched.push(first_touch(recording, machine).map_err(naming(recording))?);
    }
    let touch_ns = touched.iter().map(|time| Some((*time)?.longer_ns(longer)));
    let touch_ns: Vec<Option<f64>> = touch_ns.collect();
    replayed_alike(analyses, &touch_ns, machine)?;
    // The most promising first.
    let mut order: Vec<usize> = (0..analyses.len()).collect();
    order.sort_by(|&a, &b| {
        touch_ns[a]
            .partial_cmp(&touch_ns[b])
            .unwrap_or(Ordering::Equal)
    });
    let mut recordings: Vec<Option<Weighed>> = analyses.iter().map(|_| None).collect();
    let mut limit_ns = f64::INFINITY;
    for at in order {
        let (analysis, replayed) = (&analyses[at], touch_ns[at].is_some());
        let mut planned = plan(analysis, &programs[at], limit_ns, touched[at])?;
        let time = match &planned {
            Some(planned) => planned
                .decided
                .time
                .map(|time| (time.longer.first_touch_ns, Some(time.longer.planned_ns))),
            None => touch_ns[at].map(|first_touch_ns| (first_touch_ns, None)),
        };
        let folder = analysis.recording.folder.clone();
        let Some((first_touch_ns, planned_ns)) = time else {
            bail!(
                "{}: no time can be predicted on {}, by which several recordings could be weighed; name one recording",
                folder.display(),
                machine.name
            );
        };
        if let (Some(planned_ns), true) = (planned_ns, replayed) {
            limit_ns = limit_ns.min(WORTH_A_LOOK * planned_ns);
        }
        let layout = layout(analysis, machine);
        if let Some(planned) = &mut planned {
            planned.decided.plan.threads = layout;
        }
        recordings[at] = Some(Weighed {
            folder,
            layout,
            planned,
            first_touch_ns,
            planned_ns,
            replayed,
        });
    }
    let recordings: Vec<Weighed> = recordings.into_iter().flatten().collect();
    let times = recordings
        .iter()
        .map(|one| one.planned_ns.unwrap_or(f64::INFINITY));
    let taken = quickest(&times.collect::<Vec<f64>>());
    Ok(Choice {
        recordings,
        taken,
        longer,
    })
}

/// Refuses recordings of which some can be replayed and others can't.
fn replayed_alike(
    analyses: &[Analysis],
    touch_ns: &[Option<f64>],
    machine: &Machine,
) -> anyhow::Result<()> {
    let how = |time: &Option<f64>| {
        if time.is_some() {
            "replayed"
        } else {
            "modelled"
        }
    };
    for (analysis, time) in analyses.iter().zip(touch_ns) {
        if how(time) != how(&touch_ns[0]) {
            bail!(
                "the time of {} is {}, that of {} {}: they can't be compared; record both with --source full --machine \
                 {}, or both without",
                analyses[0].recording.folder.display(),
                how(&touch_ns[0]),
                analysis.recording.folder.display(),
                how(time),
                machine.name
            );
        }
    }
    Ok(())
}

/// Position of the least time, or of the first where that is not less by the margin.
fn quickest(times_ns: &[f64]) -> usize {
    let least = times_ns
        .iter()
        .enumerate()
        .min_by(|a, b| a.1.total_cmp(b.1));
    let less = least.filter(|(_, time_ns)| **time_ns < times_ns[0] * (1.0 - MARGIN));
    less.map_or(0, |(position, _)| position)
}

/// Where the threads of a recording ran, if the layout has a name.
fn layout(analysis: &Analysis, machine: &Machine) -> Option<Layout> {
    let recording = &analysis.recording;
    let said = pinned_layout(recording.metadata.thread_placement);
    recorded_layout(&recording.tables.threads, machine, said, |thread| {
        let totals = analysis.attribution.threads.get(thread.0 as usize);
        totals.map_or(&[], |totals| totals.cpus.as_slice())
    })
}

/// The program of a recording that is whole and of one program, as it ran on this machine.
fn only_program<'a>(analysis: &'a Analysis, machine: &'a Machine) -> anyhow::Result<OnMachine<'a>> {
    let recording = &analysis.recording;
    let folder = recording.folder.display();
    if !recording.is_complete() || recording.metadata.attached.is_some() {
        bail!(
            "{folder}: not of a whole run of the program, so that its time says nothing beside others'; record it from \
             start to end"
        );
    }
    let mut programs = analysis.on(machine, Threads::None.placement())?;
    if programs.len() > 1 {
        let names: Vec<&str> = programs.iter().map(OnMachine::name).collect();
        bail!(
            "{folder}: of {} programs ({}), and several recordings are weighed for one; name this recording alone",
            names.len(),
            names.join(", ")
        );
    }
    let used = analysis
        .attribution
        .threads
        .iter()
        .flat_map(|thread| &thread.cpus);
    let differs = |cpu| recording.machine.node_of(cpu) != machine.node_of(cpu);
    if used.map(|used| used.0).any(differs) {
        bail!(
            "{folder}: recorded on {}, and where its threads ran there says nothing of {}; record it with \
             --source full --machine {}",
            recording.machine.name,
            machine.name,
            machine.name
        );
    }
    Ok(programs.remove(0))
}

/// Refuses recordings that did not do the same.
fn comparable(
    (first, first_program): (&Analysis, &OnMachine),
    (other, program): (&Analysis, &OnMachine),
    machine: &Machine,
) -> anyhow::Result<()> {
    let folders = [first, other].map(|one| one.recording.folder.display().to_string());
    let [a, b] = &folders;
    if !first_program.is_build_of(program) {
        let (is_of, other_is_of) = (first_program.name(), program.name());
        let builds = if is_of == other_is_of {
            ", built differently"
        } else {
            ""
        };
        bail!(
            "{a} is of {is_of}, {b} of {other_is_of}{builds}: several recordings have to be of one program"
        );
    }
    let [first, other] = [first, other].map(|one| &one.recording.metadata);
    let redacted = first.command.is_empty() || other.command.is_empty();
    if !redacted && first.command[1..] != other.command[1..] {
        bail!(
            "{a} and {b} are of other arguments ({}; {}): what they did took other time wherever their threads ran; record \
             the same",
            first.command[1..].join(" "),
            other.command[1..].join(" ")
        );
    }
    let (teams, other_teams) = (first_program.teams(), program.teams());
    if teams != other_teams {
        let words = |teams: &[(String, usize)]| {
            let words = teams
                .iter()
                .map(|(name, threads)| format!("{name} {threads}"));
            words.collect::<Vec<_>>().join(", ")
        };
        bail!(
            "{a} and {b} have other numbers of threads ({}; {}): their times say nothing of where threads run; record the same",
            words(&teams),
            words(&other_teams)
        );
    }
    let keep_hits = |tracing: &Option<nearpage_recording::trace::Tracing>| {
        tracing.as_ref().map(|tracing| tracing.keep_hits())
    };
    let differences = [
        (first.source != other.source, "the source of their accesses"),
        (
            first.tracing.is_some() != other.tracing.is_some(),
            "whether every miss was kept",
        ),
        (
            first.marks.is_empty() != other.marks.is_empty(),
            "whether a marked phase alone counts",
        ),
        (
            keep_hits(&first.tracing) != keep_hits(&other.tracing),
            "--keep-hits",
        ),
    ];
    if let Some((_, what)) = differences.iter().find(|difference| difference.0) {
        bail!(
            "{a} and {b} differ in {what}, so that their times on {} can't be compared; record both alike",
            machine.name
        );
    }
    Ok(())
}

impl Choice {
    fn taken_recording(&self) -> &Weighed {
        &self.recordings[self.taken]
    }

    /// The plan that is taken.
    pub fn taken(&self) -> &Planned {
        let planned = self.taken_recording().planned.as_ref();
        planned.expect("what was not looked into is not the quickest")
    }

    /// A row for each recording, and what was taken why.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let taken = self.taken_recording();
        let _ = writeln!(
            text,
            "{:<8} {:>12} {:>12}  recording",
            "threads", "first touch", "planned"
        );
        for one in &self.recordings {
            let _ = writeln!(
                text,
                "{:<8} {:>12} {:>12}  {}",
                one.layout.map_or("–", Layout::as_str),
                duration(one.first_touch_ns),
                one.planned_ns.map_or("–".to_owned(), duration),
                printable(&one.folder.to_string_lossy())
            );
        }
        if self.longer > 1.0 {
            let _ = writeln!(
                text,
                "of runs with a parallel part {} times as long as recorded",
                self.longer
            );
        }
        if self.recordings.iter().any(|one| one.planned_ns.is_none()) {
            let _ = writeln!(
                text,
                "–: not planned; no rule for all objects brings it within {:.0} % of the quickest",
                100.0 * (WORTH_A_LOOK - 1.0)
            );
        }
        let others = self.recordings[1..].iter();
        let best_ns = others
            .filter_map(|one| one.planned_ns)
            .fold(f64::INFINITY, f64::min);
        let needed = 100.0 * MARGIN;
        let percent = |first_ns: f64| 100.0 * (1.0 - best_ns / first_ns);
        let why = match (self.taken, self.recordings[0].planned_ns) {
            (0, Some(first_ns)) if best_ns < first_ns => format!(
                "the others take {:.1} % less time at the best, and {needed:.0} % is what two recordings of the same may \
                 differ by",
                percent(first_ns)
            ),
            (0, _) => "no other takes less time".to_owned(),
            (_, Some(first_ns)) => format!(
                "it takes {:.1} % less time than the first",
                percent(first_ns)
            ),
            (_, None) => "the first takes far more".to_owned(),
        };
        let _ = writeln!(text, "taken: {}; {why}", taken.folder.display());
        let _ = match taken.layout {
            Some(layout) => writeln!(text, "threads: {}, as the plan says", layout.as_str()),
            None => writeln!(
                text,
                "threads: they ran neither compact nor scatter there, so that the plan says nothing of them; pin them as you did"
            ),
        };
        text
    }

    /// Keys beside `plans`.
    pub fn add_to(&self, json: &mut Value) {
        let name = |layout: Option<Layout>| layout.map(Layout::as_str);
        let recordings: Vec<Value> = (self.recordings.iter().enumerate())
            .map(|(position, one)| {
                json!({
                    "recording": one.folder,
                    "threads": name(one.layout),
                    "time": {
                        "first_touch_ns": one.first_touch_ns,
                        "plan_ns": one.planned_ns,
                        "replayed": one.replayed,
                    },
                    "taken": position == self.taken,
                })
            })
            .collect();
        json["longer"] = json!(self.longer);
        json["recordings"] = recordings.into();
        json["recording"] = json!(self.taken_recording().folder);
        json["threads"] = json!(name(self.taken_recording().layout));
    }
}

#[cfg(test)]
mod tests {
    use nearpage_plan::Plan;
    use nearpage_planner::auto::Times;
    use nearpage_planner::{Outcome, Prediction, WeightUnit};

    use super::*;
    use crate::replay_judge::{Decided, Predicted};

    #[test]
    fn another_than_the_first_has_to_be_quicker_by_the_margin() {
        assert_eq!(quickest(&[10.0]), 0);
        assert_eq!(quickest(&[10.0, 9.8]), 0);
        assert_eq!(quickest(&[10.0, 9.6]), 1);
        assert_eq!(quickest(&[10.0, 12.0, 9.6, 9.5]), 3);
        assert_eq!(quickest(&[9.5, 12.0, 10.0]), 0);
        assert_eq!(quickest(&[10.0, 5.0, 5.0]), 1);
        assert_eq!(quickest(&[f64::INFINITY, 5.0]), 1);
    }

    /// Of recordings `a`, `b` and so on: layouts, times under first touch and, of those that were looked into, under
    /// their plans.
    fn choice(recordings: &[(Option<Layout>, f64, Option<f64>)]) -> Choice {
        let plan = Plan::from_toml("version = 1\n[program]\nexecutable = \"x\"\n", "p");
        let plan = plan.expect("plan");
        let planned = |first_touch_ns, planned_ns| Planned {
            decided: Decided {
                plan: plan.clone(),
                time: Some(Predicted {
                    recorded: Times {
                        first_touch_ns: 0.0,
                        planned_ns: 0.0,
                    },
                    longer: Times {
                        first_touch_ns,
                        planned_ns,
                    },
                    replayed: true,
                }),
                assumed: None,
            },
            prediction: Prediction {
                machine: String::new(),
                unit: WeightUnit::Distance,
                objects: Vec::new(),
                accesses: 0.0,
                first_touch: Outcome::default(),
                interleave: Outcome::default(),
                plan: Outcome::default(),
            },
        };
        let recordings: Vec<Weighed> = recordings
            .iter()
            .zip('a'..)
            .map(|(&(layout, first_touch_ns, planned_ns), name)| Weighed {
                folder: name.to_string().into(),
                layout,
                planned: planned_ns.map(|planned_ns| planned(first_touch_ns, planned_ns)),
                first_touch_ns,
                planned_ns,
                replayed: true,
            })
            .collect();
        let times = recordings
            .iter()
            .map(|one| one.planned_ns.unwrap_or(f64::INFINITY));
        let taken = quickest(&times.collect::<Vec<f64>>());
        Choice {
            recordings,
            taken,
            longer: 1.5,
        }
    }

    #[test]
    fn a_table_says_what_was_taken_and_why() {
        let (compact, scatter) = (Some(Layout::Compact), Some(Layout::Scatter));
        let near = [
            (scatter, 12e6, Some(10e6)),
            (compact, 11e6, Some(9.8e6)),
            (None, 40e6, None),
        ];
        assert_eq!(
            choice(&near).to_text(),
            "threads   first touch      planned  recording\n\
             scatter       12.0 ms      10.0 ms  a\n\
             compact       11.0 ms       9.8 ms  b\n\
             –             40.0 ms            –  c\n\
             of runs with a parallel part 1.5 times as long as recorded\n\
             –: not planned; no rule for all objects brings it within 25 % of the quickest\n\
             taken: a; the others take 2.0 % less time at the best, and 3 % is what two recordings of the same may differ by\n\
             threads: scatter, as the plan says\n"
        );
        let said = |recordings: &[_]| {
            let text = choice(recordings).to_text();
            let from = text.find("taken").expect("what was taken");
            text[from..].to_owned()
        };
        assert_eq!(
            said(&[(scatter, 12e6, Some(10e6)), (compact, 6e6, Some(5e6))]),
            "taken: b; it takes 50.0 % less time than the first\nthreads: compact, as the plan says\n"
        );
        assert_eq!(
            said(&[(scatter, 12e6, None), (compact, 6e6, Some(5e6))]),
            "taken: b; the first takes far more\nthreads: compact, as the plan says\n"
        );
        let nowhere = [(None, 12e6, Some(10e6)), (compact, 20e6, None)];
        assert_eq!(
            said(&nowhere),
            "taken: a; no other takes less time\n\
             threads: they ran neither compact nor scatter there, so that the plan says nothing of them; pin them as you did\n"
        );
        let mut whole = json!({});
        choice(&nowhere).add_to(&mut whole);
        assert_eq!(
            whole,
            json!({
                "longer": 1.5,
                "recording": "a",
                "threads": null,
                "recordings": [
                    {
                        "recording": "a", "threads": null, "taken": true,
                        "time": { "first_touch_ns": 12e6, "plan_ns": 10e6, "replayed": true },
                    },
                    {
                        "recording": "b", "threads": "compact", "taken": false,
                        "time": { "first_touch_ns": 20e6, "plan_ns": null, "replayed": true },
                    },
                ],
            })
        );
    }
}
