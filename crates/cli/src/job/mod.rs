//! Commands on the recordings of a job's ranks together: `nearpage report JOB`, `plan JOB` and `merge JOB`.

mod merge;
mod plan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use nearpage_attribution::{ObjectNames, Operations, RankFindings, RankProfile};
use nearpage_machine::Machine;
use nearpage_recording::{Job, RankRecording, Recording, rank_words};
use nearpage_report::{JobBy, JobContent, TextOptions, job_json, job_text, needs_no_action};
use nearpage_view::JobRanks;

use crate::arguments::{GroupBy, Report};
use crate::progress::Progress;
use crate::{Usage, terminal};

pub use merge::{MergeOutput, merge, merge_jobs};
pub use plan::{PlannedJob, plan};

pub fn report(arguments: &Report, job: &Job) -> anyhow::Result<ExitCode> {
    if arguments.heatmap.is_some() {
        return Err(for_recordings("--heatmap", job));
    }
    if let Some(file) = &arguments.html {
        return crate::view::write_job(job, file);
    }
    let by = match arguments.by {
        None | Some(GroupBy::Group) => JobBy::Group,
        Some(GroupBy::Rank) => JobBy::Rank,
        Some(GroupBy::Host) => JobBy::Host,
        Some(GroupBy::Node) => JobBy::Node,
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
            if !needs_no_action(note) {
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

/// Content of a job's page: the report, and the recordings that are open from the start.
pub struct JobPage {
    /// Recordings of one rank of the largest group and one rank of the next group.
    pub recordings: Vec<PathBuf>,
    /// The report, and the folders of the ranks' recordings.
    pub ranks: JobRanks,
}

pub fn page(job: &Job) -> anyhow::Result<JobPage> {
    let mut job = job.clone();
    let read = Ranks::read(&mut job, Operations::Both)?;
    let content = JobContent::new(&job, &read.profiles, &read.names, &read.machines);
    job.notes.iter().for_each(|note| terminal::say(note));
    let report = serde_json::from_str(&job_json(&content))?;
    let shown = content.groups().groups.iter().take(2);
    let mut positions: Vec<usize> = shown
        .filter_map(|group| group.representative(&read.profiles))
        .collect();
    if positions.is_empty() {
        positions.push(0);
    }
    let folder = |position: usize| job.ranks[position].folder.clone();
    let name = job.folder.display().to_string();
    let folders = (0..job.ranks.len()).map(folder).collect();
    Ok(JobPage {
        recordings: positions.iter().map(|&position| folder(position)).collect(),
        ranks: JobRanks::new(name, report, folders, &positions),
    })
}

fn for_recordings(options: &str, job: &Job) -> anyhow::Error {
    let folder = job.folder.display();
    Usage(format!(
        "{options}: only of one recording, and {folder} is a job; name the folder of a rank in it"
    ))
    .into()
}

/// Number of recordings that are read at once. Each stays in memory until its profile is made.
const READ_AT_ONCE_MAX: usize = 4;

/// Findings from each rank's recording.
struct Ranks {
    profiles: Vec<RankProfile>,
    names: ObjectNames,
    /// Machines by host name.
    machines: BTreeMap<String, Machine>,
}

impl Ranks {
    /// Reads all ranks. Ranks whose recordings can't be read are left out, and noted.
    fn read(job: &mut Job, operations: Operations) -> anyhow::Result<Self> {
        let mut read = Self {
            profiles: Vec::new(),
            names: ObjectNames::default(),
            machines: BTreeMap::new(),
        };
        let ranks = std::mem::take(&mut job.ranks);
        let progress = Progress::new("reading ranks".to_owned());
        let mut failure = None;
        for_each_in_order(&ranks, operations, |position, found| {
            let rank = &ranks[position];
            progress.say(format!("reading rank {}", rank.rank));
            progress.done(position as u64, ranks.len() as u64);
            match found {
                Ok((found, machine)) => {
                    read.profiles.push(RankProfile::new(found, &mut read.names));
                    read.machines.entry(rank.host.clone()).or_insert(machine);
                    job.ranks.push(rank.clone());
                }
                Err(error) => {
                    let note = format!("rank {} left out: {error}", rank.rank);
                    job.notes.push(note);
                    failure.get_or_insert(error);
                }
            }
        });
        match failure {
            Some(error) if job.ranks.is_empty() => Err(error),
            _ => Ok(read),
        }
    }
}

type Found = anyhow::Result<(RankFindings, Machine)>;

/// Reads several recordings at once, and calls `take` with the findings of each, in the order of `ranks`.
fn for_each_in_order(
    ranks: &[RankRecording],
    operations: Operations,
    mut take: impl FnMut(usize, Found),
) {
    let find = |rank: &RankRecording| {
        let recording = Recording::open(&rank.folder)?;
        let found = RankFindings::of(&recording, operations)?;
        Ok((found, recording.machine))
    };
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = at_once.min(READ_AT_ONCE_MAX);
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            let (send, next, find) = (send.clone(), &next, &find);
            scope.spawn(move || {
                while let Some((position, rank)) = {
                    let position = next.fetch_add(1, Ordering::Relaxed);
                    ranks.get(position).map(|rank| (position, rank))
                } {
                    // Sending fails only after the receiver is gone, when this process ends.
                    let _ = send.send((position, find(rank)));
                }
            });
        }
        drop(send);
        let mut early = BTreeMap::new();
        let mut turn = 0;
        for (position, found) in receive {
            early.insert(position, found);
            while let Some(found) = early.remove(&turn) {
                take(turn, found);
                turn += 1;
            }
        }
    });
}
