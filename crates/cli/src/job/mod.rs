//! What the recordings of a job's ranks say together: `nearpage report JOB`, `plan JOB`, `merge JOB`.

mod merge;
mod plan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use nearpage_attribution::{ObjectNames, Operations, RankProfile, group_ranks};
use nearpage_machine::Machine;
use nearpage_planner::{Analysis, Error};
use nearpage_recording::{Job, RankRecording, rank_words};
use nearpage_report::{JobBy, JobContent, TextOptions, asks_nothing, job_json, job_text};

use crate::arguments::{GroupBy, Report};
use crate::progress::Progress;
use crate::{Usage, terminal};

pub use merge::{MergeOutput, merge, merge_jobs};
pub use plan::{PlannedJob, plan};

pub fn report(arguments: &Report, job: &Job) -> anyhow::Result<ExitCode> {
    for (is_given, option) in [
        (arguments.heatmap.is_some(), "--heatmap"),
        (arguments.html.is_some(), "--html"),
    ] {
        if is_given {
            return Err(for_recordings(option, job));
        }
    }
    let by = match arguments.by {
        None | Some(GroupBy::Group) => JobBy::Group,
        Some(GroupBy::Rank) => JobBy::Rank,
        Some(GroupBy::Host) => JobBy::Host,
        Some(
            GroupBy::Object | GroupBy::Thread | GroupBy::Page | GroupBy::Matrix | GroupBy::CallSite,
        ) => {
            return Err(for_recordings("--by object, thread, page and matrix", job));
        }
    };
    let mut job = job.clone();
    let read = Ranks::read(&mut job, arguments.operations())?;
    let content = JobContent::new(&job, &read.profiles, &read.names, &read.machines);
    if arguments.json {
        terminal::print(&(job_json(&content) + "\n"))?;
    } else {
        job.notes.iter().for_each(|note| terminal::say(note));
        for (note, ranks) in job.rank_notes() {
            if !asks_nothing(note) {
                terminal::say(&format!("{}: {note}", rank_words(&ranks)));
            }
        }
        let options = TextOptions {
            width: terminal::width(),
            top: arguments.top.unwrap_or(crate::report::ROWS),
            colour: terminal::colour(),
            ..TextOptions::default()
        };
        terminal::print(&job_text(&content, by, &options))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Recordings that speak for a job where one or two can be shown: a rank of the largest group, and one of the next group.
pub fn shown(job: &Job) -> anyhow::Result<Vec<PathBuf>> {
    let mut job = job.clone();
    let read = Ranks::read(&mut job, Operations::Both)?;
    let groups = group_ranks(&read.profiles);
    let shown = groups.groups.iter().take(2);
    let mut positions: Vec<usize> = shown
        .filter_map(|group| group.representative(&read.profiles))
        .collect();
    if positions.is_empty() {
        positions.push(0);
    }
    job.notes.iter().for_each(|note| terminal::say(note));
    let words = positions
        .iter()
        .zip(&groups.groups)
        .map(|(&position, group)| {
            let ranks = group.members.iter().map(|&member| job.ranks[member].rank);
            let ranks: Vec<u32> = ranks.collect();
            format!(
                "rank {} of {}",
                job.ranks[position].rank,
                rank_words(&ranks)
            )
        });
    let words: Vec<String> = words.collect();
    terminal::say(&format!(
        "{} is a job: showing {}; `nearpage view {}` shows another rank",
        job.folder.display(),
        match words.is_empty() {
            true => format!(
                "rank {}, as no rank has samples enough for a group",
                job.ranks[0].rank
            ),
            false => words.join(", compared with "),
        },
        job.folder.join("FOLDER").display()
    ));
    let folder = |&position: &usize| job.ranks[position].folder.clone();
    Ok(positions.iter().map(folder).collect())
}

fn for_recordings(options: &str, job: &Job) -> anyhow::Error {
    let folder = job.folder.display();
    Usage(format!(
        "{options} is for one recording, and {folder} is a job; name the folder of a rank in it"
    ))
    .into()
}

/// Recordings that are read at once: each is in memory until its profile is made.
const READ_AT_ONCE_MAX: usize = 4;

/// What was found in each rank's recording.
struct Ranks {
    profiles: Vec<RankProfile>,
    names: ObjectNames,
    /// By host.
    machines: BTreeMap<String, Machine>,
}

impl Ranks {
    /// Ranks whose recordings can't be read are left out, and noted.
    fn read(job: &mut Job, operations: Operations) -> anyhow::Result<Self> {
        let mut read = Self {
            profiles: Vec::new(),
            names: ObjectNames::default(),
            machines: BTreeMap::new(),
        };
        let ranks = std::mem::take(&mut job.ranks);
        let progress = Progress::new("reading ranks".to_owned());
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = at_once.min(READ_AT_ONCE_MAX);
        let mut failure = None;
        for (number, ranks_at_once) in ranks.chunks(at_once).enumerate() {
            progress.say(format!("reading rank {}", ranks_at_once[0].rank));
            progress.done((number * at_once) as u64, ranks.len() as u64);
            // In order, so that names do not depend on who is done first.
            for (rank, analysis) in ranks_at_once
                .iter()
                .zip(analysed(ranks_at_once, operations))
            {
                match analysis
                    .map_err(anyhow::Error::from)
                    .and_then(|one| read.add(rank, one))
                {
                    Ok(()) => job.ranks.push(rank.clone()),
                    Err(error) => {
                        let note = format!("rank {} left out: {error}", rank.rank);
                        job.notes.push(note);
                        failure.get_or_insert(error);
                    }
                }
            }
        }
        match failure {
            Some(error) if job.ranks.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    fn add(&mut self, rank: &RankRecording, analysis: Analysis) -> anyhow::Result<()> {
        let names = &mut self.names;
        let profile = RankProfile::of(&analysis.recording, &analysis.attribution, names)
            .map_err(anyhow::Error::from_boxed)?;
        self.profiles.push(profile);
        let machine = analysis.recording.machine;
        self.machines.entry(rank.host.clone()).or_insert(machine);
        Ok(())
    }
}

/// Recordings read on a thread each, in their order.
fn analysed(ranks: &[RankRecording], operations: Operations) -> Vec<Result<Analysis, Error>> {
    let read = |rank: &RankRecording| Analysis::of(&rank.folder, operations);
    std::thread::scope(|scope| {
        let reading: Vec<_> = ranks
            .iter()
            .map(|rank| scope.spawn(move || read(rank)))
            .collect();
        let read = reading
            .into_iter()
            .map(|thread| thread.join().expect("a panic ends the process"));
        read.collect()
    })
}
