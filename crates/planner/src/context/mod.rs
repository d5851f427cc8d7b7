//! The inputs of decisions: a recording's attribution, a machine, and the nodes of the threads.

mod first_touch;

use std::borrow::Cow;
use std::cell::OnceCell;

use nearpage_amount::counted;
use nearpage_attribution::{Attribution, Names, ObjectGroup};
use nearpage_machine::{Machine, NodeId};
use nearpage_plan::{Owner, Program, Team, team_and_order};
use nearpage_recording::{Tables, ThreadIndex};

use crate::place::Places;

pub use first_touch::FirstTouchBasis;
pub(crate) use first_touch::{FirstTouches, main_user};

/// A program of a recording, with its threads laid out on a machine.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// Accesses of each thread to each object and page. Accesses by other processes count only for memory that the
    /// process shares with them ([`Attribution::of_process`]).
    pub attribution: &'a Attribution,
    /// The recording's threads, objects, call sites and modules.
    pub tables: &'a Tables,
    /// Names of the objects, each unique in the recording.
    pub names: &'a Names<'a>,
    /// The machine that the plan is for.
    pub machine: &'a Machine,
    /// The node of each thread on that machine, by [`ThreadIndex`]: [`crate::thread_nodes`].
    pub thread_nodes: &'a [NodeId],
    /// The process that the plan is for: a plan serves one program.
    pub pid: u32,
    /// The program that the process executes.
    pub program: Program,
    /// Unit of placement in bytes: the page, or the huge page where these are in use.
    pub page_bytes: u64,
}

/// An [`Input`] with values derived from it.
pub(crate) struct Context<'a> {
    pub tables: &'a Tables,
    pub names: &'a Names<'a>,
    pub machine: &'a Machine,
    pub thread_nodes: &'a [NodeId],
    pub page_bytes: u64,
    /// Weights `[CPU's node][memory's node]`, by position.
    pub weights: Vec<Vec<f64>>,
    pub places: Places,
    /// The process's teams: name, position in the attribution's teams, and threads.
    teams: Vec<(String, usize, &'a [ThreadIndex])>,
    /// Team and index of each thread, by [`ThreadIndex`].
    members: Vec<Option<(usize, u32)>>,
    pub attribution: &'a Attribution,
    pid: u32,
    /// Cost of the whole recording.
    cost_ns: f64,
    /// By object, computed at first use.
    first_touches: Vec<OnceCell<FirstTouches<'a>>>,
}

impl<'a> Context<'a> {
    pub fn new(input: &Input<'a>) -> Self {
        let mut teams: Vec<(String, usize, &[ThreadIndex])> = Vec::new();
        let mut members = vec![None; input.tables.threads.len()];
        for (position, team) in input.attribution.teams.iter().enumerate() {
            if team.pid != input.pid || team.threads.is_empty() {
                continue;
            }
            let taken = |name: &str| teams.iter().any(|team| team.0 == name);
            let mut name = team.name.clone();
            if team.is_joined {
                let of = |thread: &ThreadIndex| members.get(thread.0 as usize).copied().flatten();
                let mut parts: Vec<usize> = team
                    .threads
                    .iter()
                    .filter_map(of)
                    .map(|of: (usize, u32)| of.0)
                    .collect();
                parts.dedup();
                let parts: Vec<&str> = parts.iter().map(|&part| teams[part].0.as_str()).collect();
                name = parts.join("+");
            }
            let mut number = 2;
            while taken(&name) {
                name = format!("{}-{number}", team.name);
                number += 1;
            }
            for (index, thread) in team.threads.iter().enumerate() {
                if let Some(member) = members.get_mut(thread.0 as usize) {
                    *member = member.or(Some((teams.len(), index as u32)));
                }
            }
            teams.push((name, position, &team.threads));
        }
        Self {
            tables: input.tables,
            names: input.names,
            machine: input.machine,
            thread_nodes: input.thread_nodes,
            page_bytes: input.page_bytes.max(1),
            weights: input.machine.weights(),
            places: Places::new(
                input.machine,
                input.thread_nodes,
                &input.tables.threads,
                input.attribution,
                input.pid,
            ),
            teams,
            members,
            attribution: input.attribution,
            pid: input.pid,
            cost_ns: input
                .attribution
                .objects
                .iter()
                .map(ObjectGroup::cost_ns)
                .sum(),
            first_touches: vec![OnceCell::new(); input.attribution.objects.len()],
        }
    }

    /// Threads that touched the pages of one of the attribution's objects first.
    ///
    /// # Panics
    /// The group is of another attribution.
    pub fn first_touches(&self, group: &ObjectGroup) -> &FirstTouches<'a> {
        let objects = &self.attribution.objects;
        let at = objects.element_offset(group);
        let at = at.expect("a context knows the groups of its own attribution");
        self.first_touches[at].get_or_init(|| FirstTouches::of(self, &objects[at]))
    }

    /// A thread as plans name it; none for threads of no team.
    pub fn owner(&self, thread: ThreadIndex) -> Option<Owner> {
        let (team, index) = (*self.members.get(thread.0 as usize)?)?;
        Some(Owner::Thread {
            team: self.teams[team].0.clone(),
            index,
        })
    }

    /// Name of the team at `position` in the attribution's teams, as placements write it: empty for the process's first
    /// team.
    pub fn team_name(&self, position: usize) -> Option<String> {
        let found = self.teams.iter().position(|team| team.1 == position)?;
        Some(if found == 0 {
            String::new()
        } else {
            self.teams[found].0.clone()
        })
    }

    /// Words for the team at `position` in the attribution's teams.
    pub fn team_words(&self, position: usize) -> String {
        match self.teams.iter().find(|team| team.1 == position) {
            Some((name, _, threads)) => format!("the {} threads of {name}", threads.len()),
            None => "a team's threads".to_owned(),
        }
    }

    /// The process's teams with their threads, named as placements write them: the first team's name is empty.
    pub fn teams(&self) -> impl Iterator<Item = (&str, &'a [ThreadIndex])> {
        let numbered = self.teams.iter().enumerate();
        numbered.map(|(number, (name, _, threads))| {
            (if number == 0 { "" } else { name.as_str() }, *threads)
        })
    }

    /// Threads of the team that a plan names, in the order in which they take their shares.
    pub fn team(&self, name: &str) -> Option<Cow<'a, [ThreadIndex]>> {
        let is_known = |name: &str| self.teams.iter().any(|team| team.0 == name);
        let (name, is_reversed) = team_and_order(name, is_known);
        let mut teams = self.teams.iter();
        let found = if name.is_empty() {
            teams.next()
        } else {
            teams.find(|team| team.0 == name)
        };
        let threads = found?.2;
        Some(match is_reversed {
            true => Cow::Owned(threads.iter().rev().copied().collect()),
            false => Cow::Borrowed(threads),
        })
    }

    /// Whether a thread belongs to the process.
    pub fn is_own(&self, thread: ThreadIndex) -> bool {
        let thread = self.tables.threads.get(thread.0 as usize);
        thread.is_some_and(|thread| thread.pid == self.pid)
    }

    /// Whether threads of several processes access a group. Their threads have no names in a plan, which serves each
    /// process by itself.
    pub fn is_of_processes(&self, group: &ObjectGroup) -> bool {
        let mut threads = group.threads.iter();
        group.is_shared_memory && threads.any(|one| self.places.knows(one.0) && !self.is_own(one.0))
    }

    /// Position of the node that a thread of the process runs on.
    pub fn node_position(&self, thread: ThreadIndex) -> Option<usize> {
        self.places.of(thread)?;
        self.machine
            .position(*self.thread_nodes.get(thread.0 as usize)?)
    }

    /// Accesses of the process to a group, and their share of the recording's cost.
    pub fn part(&self, group: &ObjectGroup) -> (f64, f64) {
        let ours = group
            .threads
            .iter()
            .filter(|(thread, ..)| self.places.knows(*thread));
        let (accesses, cost_ns) = ours.fold((0.0, 0.0), |sum, (_, loads, stores, cost)| {
            (sum.0 + loads + stores, sum.1 + cost)
        });
        (
            accesses,
            if self.cost_ns > 0.0 {
                cost_ns / self.cost_ns
            } else {
                0.0
            },
        )
    }

    /// Numbers of loads, stores and threads of a group, in words.
    pub fn counters(&self, group: &ObjectGroup) -> String {
        let ours = || {
            group
                .threads
                .iter()
                .filter(|(thread, ..)| self.places.knows(*thread))
        };
        let (loads, stores) = ours().fold((0.0, 0.0), |sum, thread| {
            (sum.0 + thread.1, sum.1 + thread.2)
        });
        format!(
            "{} and {} by {}",
            counted(loads.round_ties_even() as u64, "load"),
            counted(stores.round_ties_even() as u64, "store"),
            counted(ours().count() as u64, "thread")
        )
    }

    /// The teams that a plan lists. Joined teams are left out: their names consist of their parts.
    pub fn plan_teams(&self) -> Vec<Team> {
        let beside_main = self.attribution.beside_main(self.pid);
        let is_joined = |position: usize| self.attribution.teams[position].is_joined;
        self.teams
            .iter()
            .filter(|(_, position, _)| !is_joined(*position))
            .map(|(name, _, threads)| {
                let threads_table = &self.tables.threads;
                let start = threads
                    .iter()
                    .find_map(|thread| threads_table.get(thread.0 as usize)?.start);
                let module =
                    start.and_then(|(module, _)| self.tables.modules.get(module.0 as usize));
                let count = |threads: usize| u32::try_from(threads).unwrap_or(u32::MAX);
                let is_main = threads.len() == 1 && start.is_none();
                Team {
                    name: name.clone(),
                    threads: count(threads.len()),
                    beside: if is_main {
                        count(beside_main.map_or(0, <[_]>::len))
                    } else {
                        0
                    },
                    module: module.map_or_else(String::new, |module| module.file_name().to_owned()),
                    build_id: module.map_or_else(String::new, |module| module.build_id.clone()),
                    offset: start.map_or(0, |(_, offset)| offset),
                }
            })
            .collect()
    }
}
