//! One plan for the ranks of a job, with a part for each group of ranks that behave alike.
//!
//! Ranks of a group are samples of the same behaviour, so a part is decided from one rank: the one with most samples.

use std::collections::BTreeMap;

use nearpage_attribution::{Operations, RankGroups, RankProfile};
use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::{GroupPlan, JobPlan, Rank, RankList};
use nearpage_recording::Job;

use crate::analysis::Analysis;
use crate::decided::DecidedPlan;
use crate::error::Error;
use crate::parameters::{Parameters, Policy};
use crate::planner::Planner;

/// A job whose ranks were read and grouped.
#[derive(Clone, Copy, Debug)]
pub struct JobPlanner<'a> {
    /// The recordings of the ranks.
    pub job: &'a Job,
    /// Profiles of the ranks.
    pub profiles: &'a [RankProfile],
    /// Groups of ranks that behave alike.
    pub groups: &'a RankGroups,
    /// Machine to plan for; `None`: the one that the rank was recorded on.
    pub machine: Option<&'a Machine>,
    /// Layout of threads to assume; `None`: as for one recording.
    pub threads: Option<ThreadPlacement>,
}

/// Plans for a group of ranks that behave alike.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupDecision {
    /// Numbers of the ranks.
    pub ranks: Vec<u32>,
    /// Local ranks that more ranks of this group have than of any other group.
    pub local_ranks: Vec<u32>,
    /// The rank whose recording the part was decided from.
    pub decided_from: u32,
    /// A plan for each program of the ranks.
    pub plans: Vec<DecidedPlan>,
}

impl JobPlanner<'_> {
    /// Decides for each group, the largest first. `begun` is called with each rank whose recording is read.
    ///
    /// # Errors
    /// No rank has enough samples, or a recording cannot be read or has no threads.
    pub fn decide(
        &self,
        policy: Policy,
        parameters: &Parameters,
        begun: &dyn Fn(u32),
    ) -> Result<Vec<GroupDecision>, Error> {
        if self.groups.groups.is_empty() {
            return Err(Error::TooFewSamples(self.job.folder.clone()));
        }
        let local_ranks = self.local_ranks();
        let mut decisions = Vec::new();
        for (number, group) in self.groups.groups.iter().enumerate() {
            let Some(position) = group.representative(self.profiles) else {
                continue;
            };
            let recorded = &self.job.ranks[position];
            begun(recorded.rank);
            let analysis = Analysis::of(&recorded.folder, Operations::Both)?;
            let machine = self.machine.unwrap_or(&analysis.recording.machine);
            let planner = Planner::of(&analysis, machine, self.threads);
            let mut plans = planner.decide(&[policy], parameters)?;
            for decided in &mut plans {
                // The group of the plan file names the ranks.
                decided.plan.program.rank = None;
            }
            let rank_of = |&position: &usize| self.job.ranks[position].rank;
            decisions.push(GroupDecision {
                ranks: group.members.iter().map(rank_of).collect(),
                local_ranks: local_ranks.get(&number).cloned().unwrap_or_default(),
                decided_from: recorded.rank,
                plans,
            });
        }
        Ok(decisions)
    }

    /// Local ranks by group: each is in the group with most of its ranks; of groups with equally many, in the largest.
    fn local_ranks(&self) -> BTreeMap<usize, Vec<u32>> {
        let mut counts: BTreeMap<u32, BTreeMap<usize, u32>> = BTreeMap::new();
        for (number, group) in self.groups.groups.iter().enumerate() {
            for &position in &group.members {
                let launched = self.job.ranks[position].metadata.launched.as_ref();
                if let Some(local_rank) = launched.and_then(|launched| launched.local_rank) {
                    let groups = counts.entry(local_rank).or_default();
                    *groups.entry(number).or_default() += 1;
                }
            }
        }
        let mut of_group: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (local_rank, groups) in counts {
            let most = groups.into_iter().rev().max_by_key(|(_, count)| *count);
            if let Some((number, _)) = most {
                of_group.entry(number).or_default().push(local_rank);
            }
        }
        of_group
    }
}

/// The plan file of a job's decisions.
pub fn job_plan(decisions: &[GroupDecision]) -> JobPlan {
    let list = |ranks: &[u32]| -> RankList { ranks.iter().copied().map(Rank).collect() };
    let group = |decision: &GroupDecision| GroupPlan {
        ranks: list(&decision.ranks),
        local_ranks: list(&decision.local_ranks),
        plans: decision.plans.iter().map(|one| one.plan.clone()).collect(),
    };
    JobPlan {
        groups: decisions.iter().map(group).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::UNIX_EPOCH;

    use nearpage_attribution::RankGroup;
    use nearpage_recording::{Launched, Launcher, Metadata, RankRecording, Source};

    use super::*;

    /// A job whose ranks have these local ranks, in order.
    fn job(local_ranks: &[Option<u32>]) -> Job {
        let rank = |(rank, local_rank): (u32, &Option<u32>)| RankRecording {
            folder: PathBuf::from(format!("job/{rank}")),
            rank,
            host: "n1".to_owned(),
            metadata: Metadata {
                launched: Some(Launched {
                    launcher: Launcher::Slurm,
                    rank,
                    size: None,
                    local_rank: *local_rank,
                    node_index: None,
                    host: "n1".to_owned(),
                    job: None,
                    step: None,
                }),
                ..Metadata::begun(Source::Clock, UNIX_EPOCH, Vec::new())
            },
        };
        Job {
            folder: "job".into(),
            name: None,
            size: None,
            ranks: (0..).zip(local_ranks).map(rank).collect(),
            notes: Vec::new(),
        }
    }

    fn groups(members: &[&[usize]]) -> RankGroups {
        let group = |members: &&[usize]| {
            let mut group = RankGroup::default();
            group.members = members.to_vec();
            group
        };
        RankGroups {
            groups: members.iter().map(group).collect(),
            too_few: Vec::new(),
        }
    }

    fn planner<'a>(job: &'a Job, groups: &'a RankGroups) -> JobPlanner<'a> {
        JobPlanner {
            job,
            profiles: &[],
            groups,
            machine: None,
            threads: None,
        }
    }

    #[test]
    fn local_ranks_belong_to_the_group_that_most_of_them_are_in() {
        // Two hosts; local rank 1 is another program's on one host, local rank 2 on both.
        let job = job(&[Some(0), Some(1), Some(2), Some(0), Some(1), Some(2), None]);
        let groups = groups(&[&[0, 1, 3, 6], &[2, 4, 5]]);
        let planner = planner(&job, &groups);
        let expected = BTreeMap::from([(0, vec![0, 1]), (1, vec![2])]);
        assert_eq!(planner.local_ranks(), expected);
    }

    #[test]
    fn a_job_without_samples_has_no_plan() {
        let (job, groups) = (job(&[None]), groups(&[]));
        let decided =
            planner(&job, &groups).decide(Policy::Object, &Parameters::default(), &|_| ());
        let error = decided.unwrap_err().to_string();
        assert!(
            error.starts_with("job: ") && error.contains("--rate"),
            "{error}"
        );
    }
}
