//! Several recordings of one program.
//!
//! Recordings of different inputs get one plan that holds for all ([`crate::several_inputs`]). Recordings of the same
//! input under different thread layouts are compared. No recording says what its threads would miss elsewhere, where
//! they would share other caches. So each recording gets a plan of its own, and the quickest is taken.

use std::cmp::Ordering;
use std::path::PathBuf;

use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::ThreadLayout;
use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::context::Input;
use crate::decided::{DecidedPlan, Judged};
use crate::error::Error;
use crate::layout::{has_recorded_cpus, pinned_layout, recorded_layout};
use crate::parameters::{Parameters, Policy};
use crate::planner::Planner;
use crate::replay::Replays;

/// Share of the time by which another recording than the first has to be quicker. Two traces of the same program differ
/// by some percent, by how their threads happened to take turns.
pub const MARGIN: f64 = 0.03;
/// A recording gets no plan if its times under first touch and all other simple rules are more than this many times the
/// time of another recording under its plan.
pub const PLANNED_RATIO_MAX: f64 = 1.25;

/// A recording and its predicted times, for runs whose parallel part is [`Choice::runtime_scale`] times as long as
/// recorded.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WeighedRecording {
    /// The recording's folder.
    pub recording: PathBuf,
    /// Where its threads ran: `compact`, `scatter`, or null for neither.
    pub threads: Option<&'static str>,
    /// How times were predicted.
    pub by: Judged,
    /// Time under first touch.
    pub first_touch_ns: f64,
    /// Time under its plan; null: no plan was made.
    pub planned_ns: Option<f64>,
    /// True if its plan was chosen.
    pub chosen: bool,
    /// Its plan; none: no plan was made.
    #[serde(skip)]
    pub planned: Option<DecidedPlan>,
}

/// Recordings that were compared; the plan of one of them is taken.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Choice {
    /// All recordings, in the order in which they were named.
    pub recordings: Vec<WeighedRecording>,
    /// Times are for runs whose parallel part is this many times as long as recorded.
    pub runtime_scale: f64,
}

impl Choice {
    /// Chooses the quickest recording.
    fn of(mut recordings: Vec<WeighedRecording>, runtime_scale: f64) -> Self {
        let times = recordings
            .iter()
            .map(|one| one.planned_ns.unwrap_or(f64::INFINITY));
        let taken = quickest(&times.collect::<Vec<f64>>());
        recordings[taken].chosen = true;
        Self {
            recordings,
            runtime_scale,
        }
    }

    /// The recording whose plan is taken.
    pub fn chosen(&self) -> &WeighedRecording {
        let mut recordings = self.recordings.iter();
        recordings
            .find(|one| one.chosen)
            .expect("one recording was chosen")
    }
}

/// True if recordings of one program differ in arguments, or in numbers of threads.
///
/// # Errors
/// The recordings are of different programs, or one is of several programs.
pub fn differ_in_input(analyses: &[Analysis], machine: &Machine) -> Result<bool, Error> {
    let planners = analyses.iter();
    let planners: Vec<Planner> = planners
        .map(|analysis| Planner::of(analysis, machine, None))
        .collect();
    let mut programs: Vec<Input> = Vec::new();
    for (analysis, planner) in analyses.iter().zip(&planners) {
        programs.push(one_program(analysis, planner)?);
    }
    let mut differ = false;
    for (analysis, program) in analyses.iter().zip(&programs) {
        same_build((&analyses[0], &programs[0]), (analysis, program))?;
        let [first, other] = [&analyses[0], analysis].map(|one| &one.recording.metadata.command);
        let is_known = !first.is_empty() && !other.is_empty();
        differ |= is_known && first[1..] != other[1..] || teams(&programs[0]) != teams(program);
    }
    Ok(differ)
}

/// Makes a plan for each recording that may be the quickest, and chooses the quickest.
///
/// # Errors
/// The recordings' times can't be compared, or can't be predicted.
pub fn choose(
    analyses: &[Analysis],
    machine: &Machine,
    parameters: &Parameters,
) -> Result<Choice, Error> {
    if machine.nodes_with_memory().len() < 2 {
        return Err(incomparable(format!(
            "{} has one memory node, where it makes no difference on which node threads run; name another with \
             --machine, or one recording",
            machine.name
        )));
    }
    let as_recorded = Some(ThreadPlacement::None);
    let planners = analyses.iter();
    let planners: Vec<Planner> = planners
        .map(|analysis| Planner::of(analysis, machine, as_recorded))
        .collect();
    let mut programs: Vec<Input> = Vec::new();
    for (analysis, planner) in analyses.iter().zip(&planners) {
        programs.push(only_program(analysis, planner, machine)?);
    }
    for (analysis, program) in analyses.iter().zip(&programs) {
        same_build((&analyses[0], &programs[0]), (analysis, program))?;
        comparable(&analyses[0], analysis, machine)?;
    }
    let mut replays = Vec::new();
    let mut touch_ns = Vec::new();
    for planner in &planners {
        let mut one = planner.replays(parameters.runtime_scale)?;
        let time = one.as_mut().map(|one| one.first_touch()).transpose()?;
        touch_ns.push(time.map(|time| time.scaled_ns(parameters.runtime_scale)));
        replays.push(one);
    }
    replayed_alike(analyses, &touch_ns, machine)?;
    // The most promising first.
    let mut order: Vec<usize> = (0..analyses.len()).collect();
    order.sort_by(|&a, &b| {
        touch_ns[a]
            .partial_cmp(&touch_ns[b])
            .unwrap_or(Ordering::Equal)
    });
    let mut recordings: Vec<Option<WeighedRecording>> = analyses.iter().map(|_| None).collect();
    let mut limit_ns = f64::INFINITY;
    for at in order {
        let one = weigh(
            (&analyses[at], &planners[at], &programs[at]),
            limit_ns,
            parameters,
            replays[at].as_mut(),
            touch_ns[at],
        )?;
        if let (Some(planned_ns), Judged::Replay) = (one.planned_ns, one.by) {
            limit_ns = limit_ns.min(PLANNED_RATIO_MAX * planned_ns);
        }
        recordings[at] = Some(one);
    }
    let recordings = recordings.into_iter().flatten().collect();
    Ok(Choice::of(recordings, parameters.runtime_scale))
}

/// Makes the plan of a recording, unless it takes longer than `limit_ns` under all simple rules. `touch_ns`: replayed
/// time under first touch, none if the recording can't be replayed.
fn weigh(
    (analysis, planner, program): (&Analysis, &Planner, &Input),
    limit_ns: f64,
    parameters: &Parameters,
    replays: Option<&mut Replays<'_>>,
    touch_ns: Option<f64>,
) -> Result<WeighedRecording, Error> {
    let by = match replays {
        Some(_) => Judged::Replay,
        None => Judged::Model,
    };
    let mut planned =
        planner.decide_within(limit_ns, Policy::Auto, program, parameters, replays)?;
    let time = match &planned {
        Some(planned) => planned
            .time
            .map(|time| (time.scaled_first_touch_ns, Some(time.scaled_planned_ns))),
        None => touch_ns.map(|first_touch_ns| (first_touch_ns, None)),
    };
    let folder = analysis.recording.folder.clone();
    let Some((first_touch_ns, planned_ns)) = time else {
        return Err(incomparable(format!(
            "{}: no time can be predicted on {}, by which several recordings could be weighed; name one recording",
            folder.display(),
            program.machine.name
        )));
    };
    let layout = layout(analysis, program.machine);
    if let Some(planned) = &mut planned {
        planned.plan.threads = layout;
    }
    Ok(WeighedRecording {
        recording: folder,
        threads: layout.map(ThreadLayout::as_str),
        by,
        first_touch_ns,
        planned_ns,
        chosen: false,
        planned,
    })
}

fn incomparable(message: String) -> Error {
    Error::Incomparable(message)
}

/// Refuses recordings if some can be replayed and others can't.
fn replayed_alike(
    analyses: &[Analysis],
    touch_ns: &[Option<f64>],
    machine: &Machine,
) -> Result<(), Error> {
    let how = |time: &Option<f64>| {
        if time.is_some() {
            "replayed"
        } else {
            "modelled"
        }
    };
    for (analysis, time) in analyses.iter().zip(touch_ns) {
        if how(time) != how(&touch_ns[0]) {
            return Err(incomparable(format!(
                "the time of {} is {}, that of {} {}: they can't be compared; record both with `nearpage trace --machine \
                 {}`, or both with `nearpage record`",
                analyses[0].recording.folder.display(),
                how(&touch_ns[0]),
                analysis.recording.folder.display(),
                how(time),
                machine.name
            )));
        }
    }
    Ok(())
}

/// Position of the least time; the first position unless the least time is less by [`MARGIN`].
fn quickest(times_ns: &[f64]) -> usize {
    let least = times_ns
        .iter()
        .enumerate()
        .min_by(|a, b| a.1.total_cmp(b.1));
    let less = least.filter(|(_, time_ns)| **time_ns < times_ns[0] * (1.0 - MARGIN));
    less.map_or(0, |(position, _)| position)
}

/// The layout of a recording's threads, if the layout has a name.
fn layout(analysis: &Analysis, machine: &Machine) -> Option<ThreadLayout> {
    let recording = &analysis.recording;
    let said = pinned_layout(recording.metadata.thread_placement);
    recorded_layout(&recording.tables.threads, machine, said, |thread| {
        let totals = analysis.attribution.threads.get(thread.0 as usize);
        totals.map_or(&[], |totals| totals.cpus.as_slice())
    })
}

/// The program of a recording that was made on this machine's CPUs and passes [`one_program`].
fn only_program<'a>(
    analysis: &Analysis,
    planner: &'a Planner<'_>,
    machine: &Machine,
) -> Result<Input<'a>, Error> {
    let recording = &analysis.recording;
    let folder = recording.folder.display();
    let program = one_program(analysis, planner)?;
    if !has_recorded_cpus(recording, &analysis.attribution, machine) {
        return Err(incomparable(format!(
            "{folder}: recorded on {}, and where its threads ran there says nothing of {}; record it with \
             `nearpage trace --machine {}`",
            recording.machine.name, machine.name, machine.name
        )));
    }
    Ok(program)
}

/// The program of a recording of a whole run, which has to be of one program only.
fn one_program<'a>(analysis: &Analysis, planner: &'a Planner<'_>) -> Result<Input<'a>, Error> {
    let recording = &analysis.recording;
    if !recording.is_complete() || recording.metadata.attached.is_some() {
        return Err(incomparable(format!(
            "{}: not of a whole run of the program, so that its time says nothing beside others'; record it from start \
             to end",
            recording.folder.display()
        )));
    }
    let mut programs = planner.programs()?;
    if programs.len() > 1 {
        let names: Vec<&str> = programs
            .iter()
            .map(|input| input.program.executable.as_str())
            .collect();
        return Err(incomparable(format!(
            "{}: of {} programs ({}), and several recordings are weighed for one; name this recording alone",
            recording.folder.display(),
            names.len(),
            names.join(", ")
        )));
    }
    Ok(programs.remove(0))
}

/// True if both are the same build of the same program.
fn is_build_of(one: &Input, other: &Input) -> bool {
    let (ours, theirs) = (&one.program, &other.program);
    ours.executable == theirs.executable && ours.build_id == theirs.build_id
}

/// Name and size of a program's teams, in order of name.
fn teams(input: &Input) -> Vec<(String, usize)> {
    let teams = input.attribution.teams.iter();
    let ours = teams.filter(|team| team.pid == input.pid && !team.is_joined);
    let mut teams: Vec<_> = ours
        .map(|team| (team.name.clone(), team.threads.len()))
        .collect();
    teams.sort_unstable();
    teams
}

/// Refuses recordings of different programs or builds.
fn same_build(
    (first, first_program): (&Analysis, &Input),
    (other, program): (&Analysis, &Input),
) -> Result<(), Error> {
    if is_build_of(first_program, program) {
        return Ok(());
    }
    let (is_of, other_is_of) = (
        &first_program.program.executable,
        &program.program.executable,
    );
    let builds = if is_of == other_is_of {
        ", built differently"
    } else {
        ""
    };
    Err(incomparable(format!(
        "{} is of {is_of}, {} of {other_is_of}{builds}: several recordings have to be of one program",
        first.recording.folder.display(),
        other.recording.folder.display()
    )))
}

/// Refuses recordings that were made in different ways.
fn comparable(first: &Analysis, other: &Analysis, machine: &Machine) -> Result<(), Error> {
    let folders = [first, other].map(|one| one.recording.folder.display().to_string());
    let [a, b] = &folders;
    let [first, other] = [first, other].map(|one| &one.recording.metadata);
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
        return Err(incomparable(format!(
            "{a} and {b} differ in {what}, so that their times on {} can't be compared; record both alike",
            machine.name
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
