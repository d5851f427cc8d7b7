//! Teams: threads that work together.

use std::collections::BTreeMap;

use nearpage_recording::{Thread, ThreadIndex};

use crate::Team;

/// By process and team name: the first thread with each number in the team.
type Members<'a> = BTreeMap<(u32, &'a str), BTreeMap<u32, ThreadIndex>>;

fn members(threads: &[Thread]) -> Members<'_> {
    let mut members = Members::new();
    for (index, thread) in threads.iter().enumerate() {
        let team = members.entry((thread.pid, &thread.team)).or_default();
        team.entry(thread.team_index)
            .or_insert(ThreadIndex(index as u32));
    }
    members
}

/// Thread under which each thread's accesses are counted, by [`ThreadIndex`]. A program may create new threads for
/// every step. All threads with the same place in a team count as one member: the first of them.
pub fn counted_as(threads: &[Thread]) -> Vec<ThreadIndex> {
    let members = members(threads);
    let first = |thread: &Thread| members[&(thread.pid, thread.team.as_str())][&thread.team_index];
    threads.iter().map(first).collect()
}

/// Teams of the thread table, largest first, then the main threads joined with each other team of their process. The
/// first of several threads with one number represents all.
pub(crate) fn teams(threads: &[Thread]) -> Vec<Team> {
    let mut teams: Vec<Team> = members(threads)
        .into_iter()
        .map(|((pid, name), threads)| Team {
            name: name.to_owned(),
            pid,
            threads: threads.into_values().collect(),
            is_joined: false,
        })
        .collect();
    teams.sort_by(|a, b| {
        b.threads
            .len()
            .cmp(&a.threads.len())
            .then(a.pid.cmp(&b.pid))
            .then(a.name.cmp(&b.name))
    });
    let joined: Vec<Team> = teams
        .iter()
        .filter_map(|team| joined(&teams, team))
        .collect();
    teams.extend(joined);
    teams
}

/// The main thread joined with another team of its process, for programs that give the main thread a share of the
/// work.
fn joined(teams: &[Team], team: &Team) -> Option<Team> {
    let main = teams
        .iter()
        .find(|other| other.pid == team.pid && other.is_main_alone())
        .filter(|_| !team.is_main_alone())?;
    Some(Team {
        name: format!("{}+{}", main.name, team.name),
        pid: team.pid,
        threads: main.threads.iter().chain(&team.threads).copied().collect(),
        is_joined: true,
    })
}

#[cfg(test)]
mod tests {
    use nearpage_recording::SampleCounts;

    use super::*;

    #[test]
    fn a_main_thread_is_joined_with_each_team_that_it_created() {
        let thread = |pid, team: &str, team_index| Thread {
            pid,
            team: team.to_owned(),
            team_index,
            tid: pid,
            name: String::new(),
            born_ns: 0,
            died_ns: u64::MAX,
            order: 0,
            start: None,
            start_function: String::new(),
            cpus: Vec::new(),
            counts: SampleCounts::default(),
        };
        let threads = [
            thread(1, "main", 0),
            thread(1, "worker", 0),
            thread(1, "worker", 1),
            thread(1, "logger", 0),
            thread(2, "openmp", 0),
            thread(2, "openmp", 1),
            thread(3, "main", 0),
        ];
        let found = teams(&threads);
        let found: Vec<(&str, Vec<u32>, bool)> = found
            .iter()
            .map(|team| {
                let threads = team.threads.iter().map(|thread| thread.0).collect();
                (team.name.as_str(), threads, team.is_joined)
            })
            .collect();
        let expected = [
            ("worker", vec![1, 2], false),
            ("openmp", vec![4, 5], false),
            ("logger", vec![3], false),
            ("main", vec![0], false),
            ("main", vec![6], false),
            ("main+worker", vec![0, 1, 2], true),
            ("main+logger", vec![0, 3], true),
        ];
        assert_eq!(found, expected);
    }
}
