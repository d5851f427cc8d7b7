//! A plan for the ranks of a job: a part for each group of ranks that behave alike.

use std::fmt;

use nearpage_machine::{List, Number};

use crate::Plan;

/// Number of a process in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Number for Rank {
    const NOUN: &'static str = "rank";
    /// No launcher starts more ranks (`launched` in `recording.json`).
    const MAX: u32 = (1 << 24) - 1;

    fn number(self) -> u32 {
        self.0
    }

    fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Ranks, as in `0,8-15`.
pub type RankList = List<Rank>;

/// The part of a plan that ranks of a group follow.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPlan {
    /// Ranks that were recorded and behave alike.
    pub ranks: RankList,
    /// Ranks that were not recorded follow this part if their local rank is one of these.
    pub local_ranks: RankList,
    /// A plan for each program of the ranks.
    pub plans: Vec<Plan>,
}

/// A plan for a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlan {
    /// The parts, at least one. Ranks that no other part is for follow the first part, which is for the largest group.
    pub groups: Vec<GroupPlan>,
}

/// Reason why a rank follows a part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartChoice {
    /// The rank was recorded in this group.
    Recorded,
    /// The rank was not recorded; most ranks with its local rank are in this group.
    LocalRank(Rank),
    /// The rank was not recorded, and nothing is known of its local rank: this group is the largest.
    Largest,
}

impl JobPlan {
    /// The part of the plan that a rank follows, its position, and the reason.
    ///
    /// # Panics
    /// If the plan has no parts; a plan that was read has some.
    pub fn part(&self, rank: Rank, local_rank: Option<Rank>) -> (usize, &GroupPlan, PartChoice) {
        let find = |is_for: &dyn Fn(&GroupPlan) -> bool| self.groups.iter().position(is_for);
        let recorded = find(&|group| group.ranks.contains(rank));
        let chosen = recorded.map(|at| (at, PartChoice::Recorded)).or_else(|| {
            let local_rank = local_rank?;
            let at = find(&|group| group.local_ranks.contains(local_rank))?;
            Some((at, PartChoice::LocalRank(local_rank)))
        });
        let (at, why) = chosen.unwrap_or((0, PartChoice::Largest));
        (at, &self.groups[at], why)
    }
}

/// Content of a plan file.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanFile {
    /// A plan for a program.
    Program(Box<Plan>),
    /// A part for each group of a job's ranks.
    Job(JobPlan),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    const FILE: &str = "version = 1\n\
        [[group]]\nranks = \"0-5\"\nlocal_ranks = \"0,2-3\"\n[[group.plan]]\npolicy = \"auto\"\n\
        [group.plan.program]\nexecutable = \"app\"\n\
        [[group.plan.object]]\nname = \"a\"\nsymbol = \"a\"\nplacement = \"block\"\n\
        [[group.plan.phase]]\nfunction = \"f\"\n\
        [[group.plan.phase.object]]\nname = \"a\"\nsymbol = \"a\"\nplacement = \"interleave\"\n\
        [[group]]\nranks = \"6\"\nlocal_ranks = \"1\"\n[[group.plan]]\nprogram = { executable = \"app\" }\n\
        [[group.plan]]\nprogram = { executable = \"child\" }\n";

    fn job(text: &str) -> Result<JobPlan, String> {
        match PlanFile::from_toml(text, "p") {
            Ok(PlanFile::Job(job)) => Ok(job),
            Ok(PlanFile::Program(plan)) => panic!("no job: {plan:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_rank_follows_the_part_of_its_group() {
        let job = job(FILE).unwrap();
        let part = |rank, local_rank: Option<u32>| {
            let (at, _, why) = job.part(Rank(rank), local_rank.map(Rank));
            (at, why)
        };
        assert_eq!(part(5, Some(1)), (0, PartChoice::Recorded));
        assert_eq!(part(6, None), (1, PartChoice::Recorded));
        // More ranks than were recorded.
        assert_eq!(part(7, Some(1)), (1, PartChoice::LocalRank(Rank(1))));
        assert_eq!(part(7, Some(3)), (0, PartChoice::LocalRank(Rank(3))));
        assert_eq!(part(7, Some(4)), (0, PartChoice::Largest));
        assert_eq!(part(7, None), (0, PartChoice::Largest));
    }

    #[test]
    fn a_job_plan_reads_as_it_was_written() {
        let read = job(FILE).unwrap();
        let plans: Vec<usize> = read.groups.iter().map(|group| group.plans.len()).collect();
        assert_eq!(plans, [1, 2]);
        assert_eq!(read.groups[0].plans[0].phases[0].decisions.len(), 1);
        assert_eq!(job(&read.to_toml()).unwrap(), read);
    }

    #[test]
    fn faults_of_a_job_plan_are_named_with_their_line() {
        for (from, to, line, words) in [
            ("\"0-5\"", "\"5-0\"", 3, "runs backwards"),
            ("\"0-5\"", "\"0-4294967295\"", 3, "16777215"),
            ("\"6\"", "\"5-6\"", 20, "rank 5 is in two groups"),
            (
                "local_ranks = \"1\"",
                "local_ranks = \"2\"",
                21,
                "local rank 2 is in two groups",
            ),
            ("\"block\"", "\"blocks\"", 12, "blocks"),
            ("policy", "policies", 6, "unknown key `policies`"),
            (
                "version = 1\n",
                "version = 1\npolicy = \"auto\"\n",
                2,
                "unknown key `policy`",
            ),
        ] {
            let error = job(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.starts_with(&format!("p:{line}: ")), "{error}");
            assert!(error.contains(words), "{error}");
        }
        let none = job("version = 1\n[[group]]\nranks = \"0\"\n").unwrap_err();
        assert!(none.contains("[[group.plan]]"), "{none}");
    }

    #[test]
    fn commands_for_one_plan_refuse_job_plans() {
        let error = Plan::from_toml(FILE, "p").unwrap_err();
        assert!(matches!(error, Error::Syntax { line: 2, .. }), "{error}");
        assert!(error.to_string().contains("nearpage run --plan"), "{error}");
    }
}
