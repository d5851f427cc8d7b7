//! `nearpage report JOB`: what the recordings of a job's ranks say together.

use std::collections::BTreeMap;
use std::process::ExitCode;

use nearpage_attribution::{ObjectNames, Operations, RankProfile};
use nearpage_machine::Machine;
use nearpage_planner::Analysis;
use nearpage_recording::Job;
use nearpage_report::{JobBy, JobContent, job_json, job_text};

use crate::arguments::{GroupBy, Report};
use crate::progress::Progress;
use crate::{Usage, terminal};

pub fn report(arguments: &Report, job: &Job) -> anyhow::Result<ExitCode> {
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
        let rows = arguments.top.unwrap_or(crate::report::ROWS);
        terminal::print(&job_text(&content, by, terminal::width(), rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn for_recordings(options: &str, job: &Job) -> anyhow::Error {
    let folder = job.folder.display();
    Usage(format!(
        "{options} is for one recording, and {folder} is a job; name the folder of a rank in it"
    ))
    .into()
}

/// What was found in each rank's recording. One is in memory at a time.
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
        let all = job.ranks.len() as u64;
        let progress = Progress::new("reading ranks".to_owned());
        let mut failure = None;
        let mut number = 0;
        let notes = &mut job.notes;
        job.ranks.retain(|rank| {
            number += 1;
            progress.say(format!("reading rank {}", rank.rank));
            progress.done(number - 1, all);
            let analysis = match Analysis::of(&rank.folder, operations) {
                Ok(analysis) => analysis,
                Err(error) => {
                    notes.push(format!("rank {} left out: {error}", rank.rank));
                    failure.get_or_insert(error);
                    return false;
                }
            };
            let profile =
                RankProfile::of(&analysis.recording, &analysis.attribution, &mut read.names);
            match profile {
                Ok(profile) => read.profiles.push(profile),
                Err(error) => {
                    notes.push(format!("rank {} left out: {error}", rank.rank));
                    return false;
                }
            }
            read.machines
                .entry(rank.host.clone())
                .or_insert(analysis.recording.machine);
            true
        });
        match failure {
            Some(error) if job.ranks.is_empty() => Err(error.into()),
            _ => Ok(read),
        }
    }
}
