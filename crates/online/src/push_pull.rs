//! ARS: migration by counts of a monitor on the network (Tao, Schulz and Karl, 2003), §4.1, §5.3 and §5.4.
//!
//! A monitor counts accesses to each page by node. At every check, a page moves to the node that dominates its
//! accesses, if that node stands out by more than the *threshold*: the factor times the page's mean count over all
//! nodes (unweighted in every variant). Except in the `-local` variants, the monitor does not see local accesses.
//!
//! | policy | moves page P from its home to the remote node N with the most accesses if |
//! | --- | --- |
//! | `out-u` | count(P, N) − mean of counts of P > threshold |
//! | `out-w` | R(P, N) − mean of R(P, ·) > threshold |
//! | `out-u-local` | count(P, N) − count(P, home) > threshold |
//! | `out-w-local` | R(P, N) − R(P, home) > threshold |
//! | `in-w` | (each node N decides for itself) R(P, N) − mean of R(·, N) over the remote pages that N accessed > threshold |
//!
//! R is a node's weighted sum of counts of the pages around P, with weight 1 − 2d/n and at least 0. Here d is the
//! distance from P in pages. For the `out` variants, n is the number of pages on P's home, and only those pages count
//! (§4.1.2). For `in-w`, the pages are the remote pages that the node accessed (§4.1.3); nodes check in order of their
//! numbers, and the first one takes the page.
//!
//! A page without accesses since the last check is not moved, whatever the counts of its neighbours.
//!
//! Large factors move nothing. Under `out-u` this is the case from nodes − 1 on: "memory accesses from any node cannot
//! exceed three times of the average accesses on a four-node system" (§5.3). Under `out-u-local` it is the case from
//! the number of nodes on, when one node has all accesses and the home has none. Sums over neighbours can exceed these
//! bounds. The published factor of 2 is two thirds of the bound on the paper's four nodes. On two and three nodes it is
//! at or above the bound, so the default there is two thirds of the bound ([`PushPullParameters::on`]).
//!
//! The paper leaves open the check interval, and whether counts restart at each check; both are parameters.

mod parameters;

use parameters::PUBLISHED_SHARE;
pub use parameters::{Monitor, PushPullParameters};

use super::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, ParameterError, Place, Reason,
    Setting,
};

/// No node.
const NONE: u16 = u16::MAX;

/// Adaptive factor: its relative change per check, its minimum, and the shares of pages with a new dominant node above
/// which it grows and below which it shrinks.
const STEP: f64 = 0.25;
const FACTOR_LEAST: f64 = 1.0;
const CHANGED_MOST: f64 = 0.5;
const CHANGED_LEAST: f64 = 0.1;

#[derive(Clone, Copy, Debug)]
struct Page {
    place: Place,
    /// Home of the page when last seen.
    home: u16,
    /// Node with the most accesses at the last check with accesses.
    dominant: u16,
    /// The page is in `accessed`.
    listed: bool,
    /// The page is in `counted`.
    counted: bool,
}

/// A policy of the ARS family.
#[derive(Clone, Debug)]
pub struct PushPull {
    monitor: Monitor,
    parameters: PushPullParameters,
    factor: f64,
    nodes: usize,
    pages: Vec<Page>,
    /// Accesses `[page × nodes + node]`, since the last check or over the whole run.
    counts: Vec<u32>,
    /// Pages accessed since the last check.
    accessed: Vec<u32>,
    /// Pages ever accessed, if counts do not restart at checks.
    counted: Vec<u32>,
    /// Number of seen pages by home, `[application × nodes + home]`.
    residents: Vec<u64>,
    /// Number of migrations of each page.
    migrations: Vec<u32>,
}

/// A page that may move, and its target node.
struct Candidate {
    page: u32,
    node: u16,
    /// By how much the node stands out, in accesses.
    excess: f64,
}

impl PushPull {
    /// The policy of a variant.
    ///
    /// # Errors
    /// The machine has one node, so no access is remote.
    pub fn new(
        monitor: Monitor,
        parameters: &PushPullParameters,
        setting: &Setting,
    ) -> Result<Self, ParameterError> {
        if setting.nodes < 2 {
            return Err(ParameterError(format!(
                "{}: a machine of one node has no remote accesses; choose one with two or more",
                monitor.as_str()
            )));
        }
        let untold = |number| Page {
            place: Place {
                application: 0,
                number,
            },
            home: NONE,
            dominant: NONE,
            listed: false,
            counted: false,
        };
        Ok(Self {
            monitor,
            parameters: *parameters,
            factor: parameters.on(monitor, setting.nodes).factor,
            nodes: setting.nodes,
            pages: (0..setting.pages as u64).map(untold).collect(),
            counts: vec![0; setting.pages * setting.nodes],
            accessed: Vec::new(),
            counted: Vec::new(),
            residents: Vec::new(),
            migrations: vec![0; setting.pages],
        })
    }

    /// The current factor.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    fn row(&self, page: u32) -> &[u32] {
        &self.counts[page as usize * self.nodes..][..self.nodes]
    }

    /// The page's mean count over all nodes.
    fn mean(&self, page: u32) -> f64 {
        let sum: u64 = self.row(page).iter().map(|&count| u64::from(count)).sum();
        sum as f64 / self.nodes as f64
    }

    fn resident(&mut self, page: u32) -> &mut u64 {
        let Page { place, home, .. } = self.pages[page as usize];
        let at = usize::from(place.application) * self.nodes + usize::from(home);
        if self.residents.len() <= at {
            self.residents.resize(at + 1, 0);
        }
        &mut self.residents[at]
    }

    fn move_home(&mut self, page: u32, home: u16) {
        if self.pages[page as usize].home != NONE {
            *self.resident(page) -= 1;
        }
        self.pages[page as usize].home = home;
        if home != NONE {
            *self.resident(page) += 1;
        }
    }

    /// Pages with counts, in the order of `first` and then of place. Neighbours count for their older accesses, too.
    fn in_order(&self, first: impl Fn(&Page) -> u16) -> Vec<u32> {
        let key = |&number: &u32| {
            let page = &self.pages[number as usize];
            (first(page), page.place, number)
        };
        // Each key is compared some fifteen times, so the keys are copied next to each other in memory.
        let with_counts = match self.parameters.afresh {
            true => &self.accessed,
            false => &self.counted,
        };
        let mut keys: Vec<(u16, Place, u32)> = with_counts.iter().map(key).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Candidates of the `out` variants.
    fn push(&mut self) -> Vec<Candidate> {
        let counted = self.in_order(|page| page.home);
        let weighted = matches!(self.monitor, Monitor::OutW | Monitor::OutWLocal);
        let mut candidates = Vec::new();
        let memory = |page: &u32| {
            let Page { place, home, .. } = self.pages[*page as usize];
            (home, place.application)
        };
        let same_memory = |a: &u32, b: &u32| memory(a) == memory(b);
        for group in counted.chunk_by(same_memory) {
            let Page { place, home, .. } = self.pages[group[0] as usize];
            let residents =
                self.residents[usize::from(place.application) * self.nodes + usize::from(home)];
            let by_node: Vec<Vec<f64>> = (0..self.nodes)
                .map(|node| match weighted {
                    true => self.around(group, node, residents),
                    false => group
                        .iter()
                        .map(|&page| f64::from(self.row(page)[node]))
                        .collect(),
                })
                .collect();
            for (at, &page) in group.iter().enumerate() {
                let remote = (0..self.nodes).filter(|&node| node != usize::from(home));
                let most = remote
                    .rev()
                    .max_by(|&a, &b| by_node[a][at].total_cmp(&by_node[b][at]));
                let node = most.expect("two nodes or more");
                let compared = match self.monitor.sees_local() {
                    true => by_node[usize::from(home)][at],
                    false => by_node.iter().map(|of| of[at]).sum::<f64>() / self.nodes as f64,
                };
                candidates.push(Candidate {
                    page,
                    node: node as u16,
                    excess: by_node[node][at] - compared,
                });
            }
        }
        candidates
    }

    /// Candidates of `in-w`: those of every node, in order of the nodes.
    fn pull(&self) -> Vec<Candidate> {
        let counted = self.in_order(|_| 0);
        let mut candidates = Vec::new();
        for node in 0..self.nodes as u16 {
            let remote = |&page: &u32| {
                self.pages[page as usize].home != node && self.row(page)[usize::from(node)] > 0
            };
            let pages: Vec<u32> = counted.iter().copied().filter(remote).collect();
            let application = |page: u32| self.pages[page as usize].place.application;
            for group in pages.chunk_by(|&a, &b| application(a) == application(b)) {
                let relative = self.around(group, usize::from(node), group.len() as u64);
                let mean = relative.iter().sum::<f64>() / relative.len() as f64;
                candidates.extend(
                    group
                        .iter()
                        .zip(relative)
                        .map(|(&page, relative)| Candidate {
                            page,
                            node,
                            excess: relative - mean,
                        }),
                );
            }
        }
        candidates
    }

    /// R(P, `node`) for pages in order of address: sums of counts weighted by a triangle that is 1 at P and 0 at n/2
    /// pages from P. It is computed in whole numbers from prefix sums, as n·R = Σ (n − 2d)·count.
    fn around(&self, group: &[u32], node: usize, n: u64) -> Vec<f64> {
        let number = |page: &u32| self.pages[*page as usize].place.number;
        let counts = group.iter().map(|&page| u64::from(self.row(page)[node]));
        let sum = counts.fold(0, u64::saturating_add);
        // Bound of the intermediate values on either side of a page.
        let span = group.last().map_or(0, number) - number(&group[0]);
        let most = n.checked_add(span.saturating_mul(4));
        match most.and_then(|most| most.checked_mul(sum.max(1))) {
            Some(most) if i64::try_from(most).is_ok() => self.around_in(
                group,
                node,
                n as i64,
                |number| number as i64,
                |sum| sum as f64,
            ),
            _ => self.around_in(group, node, n.into(), i128::from, |sum| sum as f64),
        }
    }

    /// [`PushPull::around`] with integers of type `N`, which must be wide enough for n·R.
    fn around_in<N>(
        &self,
        group: &[u32],
        node: usize,
        n: N,
        whole: impl Fn(u64) -> N,
        share: impl Fn(N) -> f64,
    ) -> Vec<f64>
    where
        N: Copy
            + PartialOrd
            + std::ops::Add<Output = N>
            + std::ops::Sub<Output = N>
            + std::ops::Mul<Output = N>
            + std::ops::Div<Output = N>,
    {
        let (zero, one, two) = (whole(0), whole(1), whole(2));
        let origin = self.pages[group[0] as usize].place.number;
        let numbers: Vec<N> = group
            .iter()
            .map(|&page| whole(self.pages[page as usize].place.number - origin))
            .collect();
        // Prefix sums of counts, and of counts times numbers.
        let mut sums = Vec::with_capacity(group.len() + 1);
        let (mut counts, mut moments) = (zero, zero);
        sums.push((counts, moments));
        for (&page, &number) in group.iter().zip(&numbers) {
            let count = whole(self.row(page)[node].into());
            (counts, moments) = (counts + count, moments + count * number);
            sums.push((counts, moments));
        }
        let reach = (n - one) / two;
        let (mut first, mut last) = (0, 0);
        let mut relative = Vec::with_capacity(group.len());
        for (at, &number) in numbers.iter().enumerate() {
            while numbers[first] < number - reach {
                first += 1;
            }
            while last < group.len() && numbers[last] <= number + reach {
                last += 1;
            }
            let (left, here, right) = (sums[first], sums[at], sums[last]);
            let below = (n - two * number) * (here.0 - left.0) + two * (here.1 - left.1);
            let above = (n + two * number) * (right.0 - here.0) - two * (right.1 - here.1);
            relative.push(share(below + above) / share(n));
        }
        relative
    }

    /// Adapts the factor to the access pattern, which the paper leaves to future work (§5.3). If more than half of the
    /// pages have a new dominant node since their last accesses, moves do not last, and the factor grows by a quarter.
    /// If fewer than a tenth have, it shrinks by a quarter, so that pages move earlier. The factor stays between 1 (two
    /// thirds on two nodes) and nodes − 1.
    fn adapt(&mut self) {
        let (mut known, mut changed) = (0u64, 0u64);
        for at in 0..self.accessed.len() {
            let page = self.accessed[at];
            let dominant = match self.row(page).iter().all(|&count| count == 0) {
                true => continue,
                false => self.most(page),
            };
            let before = std::mem::replace(&mut self.pages[page as usize].dominant, dominant);
            known += u64::from(before != NONE);
            changed += u64::from(before != NONE && before != dominant);
        }
        if known == 0 {
            return;
        }
        let share = changed as f64 / known as f64;
        let most = self.nodes as f64 - 1.0;
        let least = FACTOR_LEAST.min(most * PUBLISHED_SHARE);
        if share > CHANGED_MOST {
            self.factor = (self.factor + STEP).min(most);
        } else if share < CHANGED_LEAST {
            self.factor = (self.factor - STEP).max(least);
        }
    }

    /// The node with the most counted accesses, which may be the home.
    fn most(&self, page: u32) -> u16 {
        let row = self.row(page).iter().enumerate();
        let most = row.rev().max_by_key(|&(_, count)| count);
        most.map_or(NONE, |(node, _)| node as u16)
    }

    fn rule(&self) -> &'static str {
        match self.monitor {
            Monitor::OutU => "a remote node's accesses exceed the mean by more than the threshold",
            Monitor::OutW => {
                "a remote node's accesses around the page exceed their mean by more than the threshold"
            }
            Monitor::InW => {
                "this node's accesses around the page exceed those around its other remote pages by more than the threshold"
            }
            Monitor::OutULocal => {
                "a remote node's accesses exceed the local ones by more than the threshold"
            }
            Monitor::OutWLocal => {
                "a remote node's accesses around the page exceed the local ones by more than the threshold"
            }
        }
    }
}

impl OnlinePolicy for PushPull {
    fn epoch_ns(&self) -> Option<u64> {
        Some(self.parameters.check_ns)
    }

    #[inline]
    fn observe(&mut self, observation: &Observation, _: &mut Vec<Action>) {
        let &Observation {
            page, node, copies, ..
        } = observation;
        if self.pages[page as usize].home != copies.home {
            self.move_home(page, copies.home);
        }
        if node == copies.home && !self.monitor.sees_local() {
            return;
        }
        let count = &mut self.counts[page as usize * self.nodes + usize::from(node)];
        *count = count.saturating_add(1);
        let Page {
            listed, counted, ..
        } = &mut self.pages[page as usize];
        if !std::mem::replace(listed, true) {
            self.accessed.push(page);
            if !self.parameters.afresh && !std::mem::replace(counted, true) {
                self.counted.push(page);
            }
        }
    }

    fn end_epoch(&mut self, _: &Epoch<'_>, actions: &mut Vec<Action>) {
        if self.parameters.adaptive {
            self.adapt();
        }
        let candidates = match self.monitor {
            Monitor::InW => self.pull(),
            _ => self.push(),
        };
        let rule = self.rule();
        for Candidate { page, node, excess } in candidates {
            // A taken page leaves the list, so that later nodes ignore it. Pages without accesses are not on the list.
            let taken = !self.pages[page as usize].listed;
            if taken || excess <= self.factor * self.mean(page) {
                continue;
            }
            let counts = self.row(page).to_vec();
            let migrations = self.migrations[page as usize];
            self.migrations[page as usize] = migrations.saturating_add(1);
            actions.push(Action {
                page,
                kind: ActionKind::Migrate,
                node,
                reason: Reason {
                    rule,
                    counts,
                    writes: 0,
                    migrations,
                },
            });
            self.pages[page as usize].listed = false;
        }
        for page in std::mem::take(&mut self.accessed) {
            self.pages[page as usize].listed = false;
            if self.parameters.afresh {
                self.counts[page as usize * self.nodes..][..self.nodes].fill(0);
            }
        }
    }

    fn forget(&mut self, page: u32) {
        self.move_home(page, NONE);
        self.pages[page as usize].dominant = NONE;
        if std::mem::take(&mut self.pages[page as usize].listed) {
            self.accessed.retain(|&accessed| accessed != page);
        }
        if std::mem::take(&mut self.pages[page as usize].counted) {
            self.counted.retain(|&counted| counted != page);
        }
        self.counts[page as usize * self.nodes..][..self.nodes].fill(0);
        self.migrations[page as usize] = 0;
    }

    fn refused(&mut self, action: &Action, _: Copies) {
        let migrations = &mut self.migrations[action.page as usize];
        *migrations = migrations.saturating_sub(1);
    }

    fn settled(&mut self, page: u32, copies: Copies, _: u64) {
        self.move_home(page, copies.home);
    }

    fn place(&mut self, page: u32, place: Place) {
        let home = self.pages[page as usize].home;
        self.move_home(page, NONE);
        self.pages[page as usize].place = place;
        self.move_home(page, home);
    }
}

#[cfg(test)]
mod tests;
