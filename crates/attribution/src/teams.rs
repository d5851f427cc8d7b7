//! Threads that work together.

use std::collections::BTreeMap;

use nearpage_recording::{Thread, ThreadIndex};

use crate::Team;

/// Teams of the thread table, largest first. Of several threads with one index in a team (a number
/// used again), the first one counts.
pub(crate) fn teams(threads: &[Thread]) -> Vec<Team> {
    let mut members: BTreeMap<(u32, &str), BTreeMap<u32, ThreadIndex>> = BTreeMap::new();
    for (index, thread) in threads.iter().enumerate() {
        let team = members.entry((thread.pid, &thread.team)).or_default();
        team.entry(thread.team_index)
            .or_insert(ThreadIndex(index as u32));
    }
    let mut teams: Vec<Team> = members
        .into_iter()
        .map(|((pid, name), threads)| Team {
            name: name.to_owned(),
            pid,
            threads: threads.into_values().collect(),
        })
        .collect();
    teams.sort_by(|a, b| {
        b.threads
            .len()
            .cmp(&a.threads.len())
            .then(a.pid.cmp(&b.pid))
            .then(a.name.cmp(&b.name))
    });
    teams
}
