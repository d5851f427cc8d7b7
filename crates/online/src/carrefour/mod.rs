//! Carrefour, a policy that manages memory traffic (Dashti et al., ASPLOS 2013), §3.
//!
//! Once a second, the policy decides from the counts and samples of that second:
//!
//! - Threads that share data are brought together (`clustering`).
//! - For each application, four steps turn mechanisms on and off (`global`, from `counters`).
//! - Each page with enough samples is co-located, interleaved (`interleaving`) or replicated (`page_local`, from
//!   `profile`).
//! - The number of decisions sets the sampling rate until the next second (`rate`).
//!
//! The paper leaves some points open. Here, a page is decided by the application whose thread was first sampled on the
//! page. Pages that are replicated already count towards the 500 that replication needs. A page that has collapsed too
//! often stays with the last writer. A replicated page is not decided again until it has collapsed too often, its
//! copies were reclaimed, or its application stores too much.

mod clustering;
mod counters;
mod global;
mod interleaving;
mod page_local;
mod parameters;
mod profile;
mod rate;
mod replicas;

use nearpage_recording::ThreadIndex;

pub use counters::{controller_imbalance, imbalance};
pub use parameters::CarrefourParameters;

use self::counters::Counters;
use self::global::Mechanisms;
use self::page_local::PageDecision;
use self::profile::{Profile, Profiled};
use self::rate::Rate;
use self::replicas::Replicas;
use super::draw::Draws;
use super::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, ParameterError, Reason, Setting,
    Survivor, ThreadMove, View,
};

/// The policy `carrefour`.
#[derive(Clone, Debug)]
pub struct Carrefour {
    parameters: CarrefourParameters,
    nodes: usize,
    cpus_per_node: u32,
    /// The paper's nodes all have CPUs. A far node without them would look like an idle controller, which made the others
    /// seem loaded unevenly and drew pages.
    memory_nodes: u64,
    profile: Profile,
    rate: Rate,
    draws: Draws,
    /// Node on which each thread was last seen.
    thread_nodes: Vec<u16>,
    replicas: Replicas,
    thread_moves: Vec<ThreadMove>,
    why_idle: Option<String>,
}

/// No application.
const NONE: u16 = u16::MAX;

/// Mechanisms enabled for an application, and rows of the pages that it could replicate.
struct ManagedApplication {
    mechanisms: Mechanisms,
    /// The application reads enough for existing copies to stay.
    keeps_copies: bool,
    nodes: u64,
    candidates: Vec<usize>,
}

impl Carrefour {
    /// The policy with these parameters.
    ///
    /// # Errors
    /// Thresholds contradict each other, or only one node of the machine has memory.
    pub fn new(
        parameters: &CarrefourParameters,
        setting: &Setting,
    ) -> Result<Self, ParameterError> {
        parameters.check()?;
        if setting.near_memory_nodes.count_ones() < 2 {
            return Err(ParameterError(
                "carrefour: a machine with memory on one node, or beside CPUs on one, leaves nothing to place; choose one with two or more"
                    .to_owned(),
            ));
        }
        Ok(Self {
            parameters: *parameters,
            nodes: setting.nodes,
            cpus_per_node: setting.cpus_per_node,
            memory_nodes: setting.near_memory_nodes,
            profile: Profile::new(setting.pages, parameters.profiled_pages),
            rate: Rate::first(parameters),
            draws: Draws::new(setting.seed),
            thread_nodes: Vec::new(),
            replicas: Replicas::new(setting.pages),
            thread_moves: Vec::new(),
            why_idle: None,
        })
    }

    fn set_node(&mut self, thread: ThreadIndex, node: u16) {
        let at = thread.0 as usize;
        if self.thread_nodes.len() <= at {
            self.thread_nodes.resize(at + 1, 0);
        }
        self.thread_nodes[at] = node;
    }

    /// Counts a page's samples by the current nodes of its threads.
    fn count_by_node(&self, page: &Profiled, by_node: &mut [u32]) {
        by_node.fill(0);
        for &(thread, count) in &page.by_thread {
            by_node[usize::from(self.thread_nodes[thread.0 as usize])] += count;
        }
    }

    /// Does the page have copies, or is it to get them?
    pub fn is_replicated(&self, page: u32) -> bool {
        self.replicas.has(page)
    }

    /// May the page be replicated? A page that collapsed too often may not (§3.3.2).
    fn is_replicable(&self, page: u32) -> bool {
        self.replicas.collapses(page) <= self.parameters.collapses
    }

    fn action(
        page: &Profiled,
        kind: ActionKind,
        node: u16,
        rule: &'static str,
        counts: &[u32],
    ) -> Action {
        Action {
            page: page.page,
            kind,
            node,
            reason: Reason {
                rule,
                counts: counts.to_vec(),
                writes: page.stores,
                migrations: 0,
            },
        }
    }

    /// Decides about pages; returns the number of pages that are moved or copied.
    fn place_pages(
        &mut self,
        pages: &[Profiled],
        applications: &[u16],
        managed: &mut [Option<ManagedApplication>],
        node_maptu: &[f64],
        actions: &mut Vec<Action>,
    ) -> u64 {
        let leave = interleaving::leave(node_maptu);
        let arrive = interleaving::arrive(&leave, self.memory_nodes);
        let mut placed = 0;
        let mut to_interleave = Vec::new();
        let mut by_node = vec![0; self.nodes];
        for (row, page) in pages.iter().enumerate() {
            self.count_by_node(page, &mut by_node);
            let Some(&(first, _)) = page.by_thread.first() else {
                continue;
            };
            let application = applications.get(first.0 as usize).copied().unwrap_or(NONE);
            let Some(Some(managed)) = managed.get_mut(usize::from(application)) else {
                continue;
            };
            if self.is_replicated(page.page) {
                continue;
            }
            let replicable = self.is_replicable(page.page);
            let mechanisms = &managed.mechanisms;
            match page_local::decide(
                &by_node,
                page.stores,
                mechanisms,
                replicable,
                self.parameters.samples,
            ) {
                PageDecision::Colocated(node) if page.copies != Copies::at(node) => {
                    let rule = "sampled on one node alone";
                    actions.push(Self::action(
                        page,
                        ActionKind::Migrate,
                        node,
                        rule,
                        &by_node,
                    ));
                    placed += 1;
                }
                PageDecision::Replicated => managed.candidates.push(row),
                PageDecision::Interleaved => to_interleave.push(row),
                PageDecision::Stays | PageDecision::Colocated(_) => {}
            }
        }
        placed += self.replicate(pages, managed, &mut to_interleave, actions);
        for page in to_interleave.into_iter().map(|row: usize| &pages[row]) {
            let drawn = interleaving::draw(page.copies.home, &leave, &arrive, &mut self.draws);
            if let Some(node) = drawn {
                self.count_by_node(page, &mut by_node);
                let rule = "sampled on several nodes; drawn by the load of their memory";
                actions.push(Self::action(
                    page,
                    ActionKind::Interleave,
                    node,
                    rule,
                    &by_node,
                ));
                placed += 1;
            }
        }
        placed
    }

    /// Replicates candidates, which only loads were sampled on, in applications with enough candidates. In other
    /// applications, candidates may be interleaved. Returns the number of replicated pages.
    fn replicate(
        &mut self,
        pages: &[Profiled],
        managed: &mut [Option<ManagedApplication>],
        to_interleave: &mut Vec<usize>,
        actions: &mut Vec<Action>,
    ) -> u64 {
        let mut placed = 0;
        let mut by_node = vec![0; self.nodes];
        for (application, managed) in managed.iter_mut().enumerate() {
            let Some(managed) = managed else { continue };
            let candidates = std::mem::take(&mut managed.candidates);
            let application = application as u16;
            let marked = candidates.len() as u64 + self.replicas.count(application);
            if marked < self.parameters.candidates {
                if managed.mechanisms.interleaving {
                    to_interleave.extend(candidates);
                }
                continue;
            }
            for page in candidates.into_iter().map(|row| &pages[row]) {
                self.count_by_node(page, &mut by_node);
                let wanted = managed.nodes & self.memory_nodes & !page.copies.nodes;
                for node in (0..self.nodes as u16).filter(|node| wanted >> node & 1 == 1) {
                    let rule = "sampled on several nodes, loads alone";
                    actions.push(Self::action(
                        page,
                        ActionKind::Replicate,
                        node,
                        rule,
                        &by_node,
                    ));
                }
                self.replicas.add(page.page, application);
                self.replicas.reach(application, managed.nodes);
                placed += 1;
            }
        }
        placed
    }

    /// Adds or removes copies of replicated pages; returns the number of these. The paper: "we use the application-wide
    /// MRR and disable replication for the entire application if the MRR is low"; otherwise a copy is "on every memory
    /// node that runs threads from the corresponding application" (§3.3.2), including nodes that threads reach later.
    fn keep_copies(
        &mut self,
        managed: &[Option<ManagedApplication>],
        actions: &mut Vec<Action>,
    ) -> u64 {
        let mut placed = 0;
        for (application, managed) in (0..).zip(managed) {
            let Some(managed) = managed else { continue };
            if self.replicas.count(application) == 0 {
                continue;
            }
            let (kind, rule, nodes) = match managed.keeps_copies {
                true => (
                    ActionKind::Replicate,
                    "replicated, and threads have reached the node",
                    self.replicas
                        .reach(application, managed.nodes & self.memory_nodes),
                ),
                false => {
                    self.replicas.leave(application);
                    let rule = "replicated, and the application stores too much";
                    (ActionKind::Collapse, rule, 1)
                }
            };
            let wanted = (0..self.nodes as u16).filter(|node| nodes >> node & 1 == 1);
            for node in wanted {
                for page in self.replicas.pages(application) {
                    actions.push(Action {
                        page,
                        kind,
                        node,
                        reason: Reason::rule(rule),
                    });
                    placed += 1;
                }
            }
        }
        placed
    }

    /// Clusters the threads of managed applications, and updates the applications' nodes.
    fn cluster(
        &mut self,
        epoch: &Epoch<'_>,
        pages: &[Profiled],
        managed: &mut [Option<ManagedApplication>],
    ) {
        let machine = (self.nodes, self.cpus_per_node);
        self.thread_moves = clustering::swaps(epoch, pages, machine, &self.parameters);
        for at in 0..self.thread_moves.len() {
            let ThreadMove { thread, node, .. } = self.thread_moves[at];
            self.set_node(thread, node);
        }
        // From now on, copies are for the nodes that run threads after clustering.
        for managed in managed.iter_mut().flatten() {
            managed.nodes = 0;
        }
        for thread in epoch.threads {
            if let Some(managed) = &mut managed[usize::from(thread.application)] {
                managed.nodes |= 1 << self.thread_nodes[thread.thread.0 as usize];
            }
        }
    }
}

impl OnlinePolicy for Carrefour {
    fn epoch_ns(&self) -> Option<u64> {
        Some(self.parameters.decision_ns)
    }

    fn observe(&mut self, observation: &Observation, _: &mut Vec<Action>) {
        self.set_node(observation.thread, observation.node);
        self.profile.sample(observation);
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, actions: &mut Vec<Action>) {
        let counters = Counters::new(epoch, self.memory_nodes);
        let mut profile = std::mem::take(&mut self.profile);
        let mut managed: Vec<Option<ManagedApplication>> = counters
            .applications
            .iter()
            .map(|application| {
                Some(ManagedApplication {
                    mechanisms: global::decide(&counters, application, &self.parameters)?,
                    keeps_copies: global::loads_enough(application, &self.parameters),
                    nodes: application.nodes,
                    candidates: Vec::new(),
                })
            })
            .collect();
        let any = managed.iter().any(Option::is_some);
        self.why_idle = match any {
            true => None,
            false => global::why_unmanaged(&counters.applications, &self.parameters),
        };
        let mut applications = Vec::new();
        for thread in epoch.threads {
            self.set_node(thread.thread, thread.node);
            let at = thread.thread.0 as usize;
            if applications.len() <= at {
                applications.resize(at + 1, NONE);
            }
            applications[at] = thread.application;
        }
        if any && self.parameters.clustering != 0 {
            self.cluster(epoch, profile.pages(), &mut managed);
        }
        let kept = self.keep_copies(&managed, actions);
        let placed = self.place_pages(
            profile.pages(),
            &applications,
            &mut managed,
            &counters.node_maptu,
            actions,
        );
        profile.clear();
        self.profile = profile;
        self.rate = self.rate.next(any, kept + placed, &self.parameters);
    }

    fn forget(&mut self, page: u32) {
        self.profile.forget(page);
        self.replicas.forget(page);
    }

    fn view(&self) -> View {
        self.rate.view(&self.parameters)
    }

    fn why_idle(&self) -> Option<String> {
        self.why_idle.clone()
    }

    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        std::mem::take(&mut self.thread_moves)
    }

    // "We implemented Carrefour in the Linux kernel" (§3.3), with decisions once a second.
    fn has_kernel_thread(&self) -> bool {
        true
    }

    fn collapse(&mut self, page: u32) -> Survivor {
        match self.replicas.collapse(page) > self.parameters.collapses {
            false => Survivor::Writer,
            true => {
                self.replicas.settle(page, false);
                Survivor::WriterAlone
            }
        }
    }

    fn is_still_requested(&self, action: &Action) -> bool {
        action.kind != ActionKind::Replicate || self.is_replicable(action.page)
    }

    // A page whose copies could not be made or were reclaimed is decided again.
    fn settled(&mut self, page: u32, copies: Copies, stale: u64) {
        let is_replicated = !copies.nodes.is_power_of_two() || stale != 0;
        self.replicas.settle(page, is_replicated);
    }
}

#[cfg(test)]
mod tests;
