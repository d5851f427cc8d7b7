//! Turns patterns over threads into sequences of nodes: which node gets which part of an object.

mod parts;

use std::borrow::Cow;

use nearpage_amount::counted;
use nearpage_machine::NodeId;
use nearpage_wire::compact_plan::{
    BRK_HEAP_BYTES_MAX, NONE, RULE_WEAK, Rule, Run, placement, subject,
};

use crate::compact::{Tables, run};
use crate::file::{REVERSED, joined, team_and_order};
use crate::{Error, Owner, PageRun, Placement, Target, Team, threads_of};

/// Most shares of the block pattern that a scaled list of page runs becomes.
const SHARES_MAX: u64 = 1 << 16;

/// Most bytes by which an array may differ from whole rows. With a page, one in four arrays of any size would pass for
/// whole rounds of two threads' blocks of 16 KiB.
const PADDING_BYTES_MAX: u64 = 64;

/// Deals the parts of one decision's objects to nodes.
pub(crate) struct Dealer<'a> {
    pub target: &'a Target<'a>,
    /// The plan's teams; patterns without a team mean the first.
    pub teams: &'a [&'a Team],
    /// Unit of the plan's page runs.
    pub plan_page_bytes: u64,
    /// True for a plan's patterns, which were seen with the team's recorded size. With another number of threads, the
    /// period of an object of whole periods stays, and is divided anew, as NumaMMA §4.1.3 carries 32 threads' pattern
    /// over to 8 nodes. A rule written by hand keeps its block as it is written.
    pub period_is_kept: bool,
    /// The rule's name, for messages.
    pub name: &'a str,
    pub tables: &'a mut Tables,
    pub warnings: &'a mut Vec<String>,
}

impl Dealer<'_> {
    /// The rule with its placement; two rules if page runs fit one size only.
    pub fn place(&mut self, rule: Rule, wanted: &Placement) -> Result<Vec<Rule>, Error> {
        let rule = for_growth(rule, wanted);
        let place = |placement: u32| Rule { placement, ..rule };
        Ok(vec![match wanted {
            Placement::Block { team } => {
                let nodes = self.team_nodes(team)?;
                Rule {
                    nodes: self.tables.add_nodes(nodes),
                    ..place(placement::BLOCK)
                }
            }
            Placement::BlockCyclic { block_bytes, team } => {
                let nodes = self.team_nodes(team)?;
                let threads = nodes.len() as u64;
                let block_bytes = self.block_bytes(*block_bytes, team, threads, rule.size_bytes)?;
                Rule {
                    nodes: self.tables.add_nodes(nodes),
                    block_bytes,
                    ..place(placement::BLOCK_CYCLIC)
                }
            }
            Placement::Interleave { nodes } if nodes.iter().all(|&(_, weight)| weight == 1) => {
                let nodes = match nodes.is_empty() {
                    true => self.target.machine.nodes_with_memory(),
                    false => self.checked(nodes.iter().map(|&(node, _)| node))?,
                };
                Rule {
                    nodes: self.tables.add_nodes(nodes),
                    ..place(placement::INTERLEAVE)
                }
            }
            Placement::Interleave { nodes } => {
                self.checked(nodes.iter().map(|&(node, _)| node))?;
                Rule {
                    weights: self.tables.add_weights(nodes),
                    ..place(placement::WEIGHTED_INTERLEAVE)
                }
            }
            Placement::Whole(owner) if rule.order != [0, NONE] => {
                return self.place_run(rule, owner);
            }
            Placement::Whole(owner) => {
                let node = self.owner_node(owner)?;
                Rule {
                    nodes: self.tables.add_nodes([node]),
                    ..place(placement::NODE)
                }
            }
            Placement::Parts { parts, team } => return self.place_parts(rule, parts, team),
            Placement::Tiles { tiles, team } => {
                let nodes = self.team_nodes(team)?;
                let [_, columns] = tiles.grid(nodes.len() as u32);
                Rule {
                    nodes: self.tables.add_nodes(nodes),
                    block_bytes: tiles.row_bytes(),
                    columns,
                    ..place(placement::TILES)
                }
            }
            Placement::RoundRobin { team } => return self.place_in_turn(rule, team, 0),
            Placement::ObjectBlocks { objects, team } => {
                return self.place_in_turn(rule, team, *objects);
            }
            Placement::Runs(runs) => return self.place_runs(rule, runs),
            Placement::Replicate => {
                if !self.target.has_copies {
                    self.warnings.push(format!(
                        "`{}` is to be replicated, which no stock kernel does within a process: it is interleaved",
                        self.name
                    ));
                }
                Rule {
                    nodes: self
                        .tables
                        .add_nodes(self.target.machine.nodes_with_memory()),
                    ..place(placement::INTERLEAVE)
                }
            }
            Placement::FirstTouch => place(placement::LEAVE),
        }])
    }

    /// A rule for the objects of a call site with consecutive numbers.
    fn place_run(&mut self, rule: Rule, owner: &Owner) -> Result<Vec<Rule>, Error> {
        let nodes = self.run_owner_nodes(owner, false)?;
        let parts = parts(rule.order, nodes.len());
        let rules = parts.into_iter().zip(nodes).map(|(order, node)| Rule {
            order,
            nodes: self.tables.add_nodes([node]),
            placement: placement::NODE,
            ..rule
        });
        Ok(rules.collect())
    }

    /// Rules for the objects of a call site, one for each thread of a team. Objects go to the threads in turn or, if
    /// their number `objects` is known, in shares.
    fn place_in_turn(&mut self, rule: Rule, team: &str, objects: u32) -> Result<Vec<Rule>, Error> {
        if rule.subject != subject::CALL_SITE {
            return Err(Error::NeedsCallSite {
                rule: self.name.to_owned(),
            });
        }
        let nodes = self.team_nodes(team)?;
        let count = nodes.len() as u32;
        let rules = nodes.into_iter().zip(0..).map(|(node, turn)| Rule {
            turn: [turn, count],
            objects,
            nodes: self.tables.add_nodes([node]),
            placement: placement::NODE,
            ..rule
        });
        Ok(rules.collect())
    }

    fn checked(&self, nodes: impl Iterator<Item = NodeId>) -> Result<Vec<NodeId>, Error> {
        nodes
            .map(|node| self.target.check_node(node, self.name))
            .collect()
    }

    /// The name of a team; the plan's first team if none is named.
    fn team_name<'b>(&'b self, team: &'b str) -> Result<Cow<'b, str>, Error> {
        let known = || self.teams.iter().map(|team| team.name.as_str());
        let is_known =
            |team: &str| known().any(|name| name == team) || self.target.teams.contains_key(team);
        let (base, is_reversed) = team_and_order(team, is_known);
        if base.is_empty() {
            let first = known().next().unwrap_or_default();
            return Ok(match is_reversed {
                true => Cow::Owned(format!("{first}{REVERSED}")),
                false => Cow::Borrowed(first),
            });
        }
        if joined(base, is_known).all(is_known) {
            return Ok(Cow::Borrowed(team));
        }
        let known: Vec<String> = known().map(|name| format!("`{name}`")).collect();
        Err(Error::NoSuchTeam {
            rule: self.name.to_owned(),
            found: base.to_owned(),
            known: if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            },
        })
    }

    fn team_nodes(&self, team: &str) -> Result<Vec<NodeId>, Error> {
        self.target.thread_nodes(&self.team_name(team)?)
    }

    /// Number of threads of a team when the plan was made; 0: the plan does not say.
    fn planned_threads(&self, team: &str) -> Result<u64, Error> {
        let name = self.team_name(team)?;
        let teams = self.teams.iter().copied();
        Ok(threads_of(teams, &name).unwrap_or(0))
    }

    /// Bytes of one piece for a number of threads. The period stays if the object consists of whole periods, but for a
    /// cache line of padding, as the rows of an array do; otherwise the block stays, as a constant of the program.
    fn block_bytes(
        &self,
        block_bytes: u64,
        team: &str,
        threads: u64,
        size_bytes: u64,
    ) -> Result<u64, Error> {
        let recorded = self.planned_threads(team)?;
        if !self.period_is_kept || recorded == 0 || recorded == threads {
            return Ok(block_bytes);
        }
        let page_bytes = u64::from(self.target.page_bytes).max(1);
        let period_bytes = block_bytes.saturating_mul(recorded).max(1);
        let left_bytes = size_bytes % period_bytes;
        if left_bytes.min(period_bytes - left_bytes) > PADDING_BYTES_MAX {
            return Ok(block_bytes);
        }
        Ok((period_bytes / threads.max(1)).max(page_bytes))
    }

    fn owner_node(&mut self, owner: &Owner) -> Result<NodeId, Error> {
        match owner {
            Owner::Node(node) => self.target.check_node(*node, self.name),
            Owner::Near(kind, number) => self.target.device_node(*kind, *number, self.name),
            Owner::Thread { team, index } => {
                let nodes = self.team_nodes(team)?;
                if *index as usize >= nodes.len() {
                    self.warnings.push(format!(
                        "`{}`: of thread {index} there is only thread {} in this run of {}",
                        self.name,
                        *index as usize % nodes.len(),
                        counted(nodes.len() as u64, "thread")
                    ));
                }
                Ok(nodes[*index as usize % nodes.len()])
            }
        }
    }

    /// The nodes of a run's owner, one after the other along the run. If the team has another size than planned, the
    /// owner stands for the threads with its share of the team: the middle thread in a smaller team, all of these
    /// threads in a larger one, in the order in which owners follow each other.
    fn run_owner_nodes(&mut self, owner: &Owner, descends: bool) -> Result<Vec<NodeId>, Error> {
        let Owner::Thread { team, index } = owner else {
            return Ok(vec![self.owner_node(owner)?]);
        };
        let planned = self.planned_threads(team)?;
        let nodes = self.team_nodes(team)?;
        let (now, index) = (nodes.len() as u64, u64::from(*index));
        if !self.period_is_kept || planned == now || index >= planned {
            return Ok(vec![self.owner_node(owner)?]);
        }
        let [first, end] = [index * now / planned, (index + 1) * now / planned];
        if first >= end {
            let middle = (2 * index + 1) * now / (2 * planned);
            return Ok(vec![nodes[middle.min(now - 1) as usize]]);
        }
        let mut share = nodes[first as usize..end as usize].to_vec();
        if descends {
            share.reverse();
        }
        Ok(share)
    }

    /// Rules with page runs: exactly as planned for objects of the planned size.
    fn place_runs(&mut self, rule: Rule, runs: &[PageRun]) -> Result<Vec<Rule>, Error> {
        let owned = self.owned_bytes(runs)?;
        let end = owned.last().map_or(0, |&(_, end, _)| end);
        match rule.subject {
            subject::STATIC => {
                let scale = self.static_scale(&rule, end);
                Ok(vec![self.with_runs(rule, &owned, scale)])
            }
            subject::CALL_SITE => {
                let planned_bytes = if rule.size_bytes > 0 {
                    rule.size_bytes
                } else {
                    end
                };
                Ok(self.place_owned(rule, &owned, planned_bytes, RULE_WEAK))
            }
            _ => Ok(vec![self.with_runs(rule, &owned, None)]),
        }
    }

    /// Rules for the objects of a call site: exact to the page for objects of the planned size; in the same proportions
    /// for other objects, by a rule with more flags.
    fn place_owned(
        &mut self,
        rule: Rule,
        owned: &[(u64, u64, NodeId)],
        planned_bytes: u64,
        flags_of_others: u32,
    ) -> Vec<Rule> {
        let page_bytes = u64::from(self.target.page_bytes).max(1);
        let pages = planned_bytes.div_ceil(page_bytes).max(1);
        let scaled = Rule {
            placement: placement::BLOCK,
            nodes: self.shares(owned, planned_bytes, pages),
            ..rule
        };
        if rule.order != [0, NONE] {
            // Size bounds would change which objects are counted. For the planned size, each share is a page.
            return vec![scaled];
        }
        let [low, high] = rule.size_bounds_bytes;
        let same = [
            ((pages - 1).saturating_mul(page_bytes) + 1).max(low),
            pages.saturating_mul(page_bytes).min(high),
        ];
        let exact = Rule {
            size_bounds_bytes: same,
            ..self.with_runs(rule, owned, None)
        };
        let other = Rule {
            flags: rule.flags | flags_of_others,
            ..scaled
        };
        match same[0] <= same[1] {
            true => vec![exact, other],
            false => vec![other],
        }
    }

    /// Begin, end and node of each run, in bytes.
    fn owned_bytes(&mut self, runs: &[PageRun]) -> Result<Vec<(u64, u64, NodeId)>, Error> {
        let bytes = self.plan_page_bytes.max(1);
        let mut owned = Vec::with_capacity(runs.len());
        for (number, run) in runs.iter().enumerate() {
            let start = run.first_page.saturating_mul(bytes);
            let end = run
                .first_page
                .saturating_add(run.pages)
                .saturating_mul(bytes);
            let beside = number.checked_sub(1).and_then(|before| runs.get(before));
            let descends = match (beside, runs.get(number + 1)) {
                (Some(before), _) => is_after(&before.owner, &run.owner),
                (None, Some(next)) => is_after(&run.owner, &next.owner),
                (None, None) => false,
            };
            let nodes = self.run_owner_nodes(&run.owner, descends)?;
            let part = |at: usize| {
                let offset = u128::from(end - start) * at as u128 / nodes.len() as u128;
                // Begin and end are whole pages of the plan.
                (start + offset as u64) / bytes * bytes
            };
            let parts = (0..nodes.len()).map(|at| (part(at), part(at + 1), nodes[at]));
            owned.extend(parts.filter(|part| part.0 < part.1));
        }
        Ok(owned)
    }

    /// Number of pages of a static object now and in the plan, whose runs end at `end`; `None` if the runs fit as they
    /// are.
    fn static_scale(&mut self, rule: &Rule, end: u64) -> Option<(u64, u64)> {
        let page_bytes = u64::from(self.target.page_bytes);
        let planned = end.div_ceil(page_bytes).max(1);
        let now = rule.size_bytes.div_ceil(page_bytes).max(1);
        // An object that begins inside a page has a page more than its size says.
        if planned.abs_diff(now) <= 1 {
            return None;
        }
        self.warnings.push(format!(
            "`{}` had {planned} pages and has {now}; its page runs are scaled",
            self.name
        ));
        Some((now, planned))
    }

    fn with_runs(
        &mut self,
        rule: Rule,
        owned: &[(u64, u64, NodeId)],
        scale: Option<(u64, u64)>,
    ) -> Rule {
        let runs = page_runs(owned, self.target.page_bytes.into(), scale);
        Rule {
            placement: placement::RUNS,
            runs: self.tables.add_runs(runs),
            ..rule
        }
    }

    /// One share per page, up to [`SHARES_MAX`], so that an object of any size is divided in the same proportions.
    fn shares(&mut self, owned: &[(u64, u64, NodeId)], planned_bytes: u64, pages: u64) -> [u32; 2] {
        let count = pages.min(SHARES_MAX);
        let mut at = 0;
        let shares: Vec<NodeId> = (0..count)
            .filter_map(|share| {
                let middle = (u128::from(planned_bytes) * (2 * u128::from(share) + 1)
                    / (2 * u128::from(count))) as u64;
                while owned
                    .get(at + 1)
                    .is_some_and(|&(start, ..)| start <= middle)
                {
                    at += 1;
                }
                owned.get(at).map(|&(_, _, node)| node)
            })
            .collect();
        self.tables.add_nodes(shares)
    }
}

/// A rule for a heap that may grow: shares and runs hold for the observed size, other placements also beyond.
fn for_growth(rule: Rule, wanted: &Placement) -> Rule {
    match (rule.subject, wanted) {
        (
            subject::BRK_HEAP,
            Placement::Block { .. }
            | Placement::Parts { .. }
            | Placement::Tiles { .. }
            | Placement::Runs(_),
        ) => rule,
        (subject::BRK_HEAP, _) => Rule {
            size_bytes: BRK_HEAP_BYTES_MAX,
            ..rule
        },
        _ => rule,
    }
}

/// True if one thread of a team comes after another thread of the same team.
fn is_after(one: &Owner, other: &Owner) -> bool {
    match (one, other) {
        (
            Owner::Thread { team, index },
            Owner::Thread {
                team: other_team,
                index: other,
            },
        ) => team == other_team && index > other,
        _ => false,
    }
}

/// Divides the numbers from `first` to `last` into equal parts, at most one for each number.
fn parts([first, last]: [u32; 2], count: usize) -> Vec<[u32; 2]> {
    let all = u64::from(last.saturating_sub(first)) + 1;
    let count = (count as u64).min(all);
    let begin = |part: u64| u64::from(first) + all * part / count;
    (0..count)
        .map(|part| [begin(part) as u32, (begin(part + 1) - 1) as u32])
        .collect()
}

/// Runs in units of `page_bytes`, strictly ascending, neighbours on different nodes. Page numbers are scaled by
/// `scale.0 / scale.1`.
fn page_runs(owned: &[(u64, u64, NodeId)], page_bytes: u64, scale: Option<(u64, u64)>) -> Vec<Run> {
    let page = |bytes: u64| {
        let page = u128::from(bytes / page_bytes);
        match scale {
            Some((now, planned)) => (page * u128::from(now) / u128::from(planned)) as u64,
            None => page as u64,
        }
    };
    let mut runs: Vec<Run> = Vec::new();
    for &(start, end, node) in owned {
        let (first, last) = (page(start), page(end).max(page(start) + 1));
        match runs.last_mut() {
            // The run is empty after rounding, or continues the one before.
            Some(before) if before.first_page >= first || before.node == u32::from(node.0) => {
                let pages = last.saturating_sub(before.first_page);
                before.pages = before.pages.max(u32::try_from(pages).unwrap_or(u32::MAX));
            }
            _ => runs.push(run(first, last - first, node)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::parts;

    proptest! {
        #[test]
        fn parts_have_every_number_once(first in any::<u32>(), more in any::<u32>(), count in 1usize..40) {
            let last = first.saturating_add(more);
            let found = parts([first, last], count);
            prop_assert!(found.len() <= count);
            prop_assert_eq!((found[0][0], found[found.len() - 1][1]), (first, last));
            for pair in found.windows(2) {
                prop_assert_eq!(u64::from(pair[0][1]) + 1, u64::from(pair[1][0]));
            }
        }
    }
}
