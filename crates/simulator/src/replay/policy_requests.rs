//! Requests of a policy besides page moves: samples, hinting faults, and thread moves.

use nearpage_machine::CpuId;
use nearpage_online::{Copies, Draws, OnlinePolicy, Place, View};
use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Miss, PageIndex, Served};

use rustc_hash::FxHashMap;

use super::Replay;
use crate::figures::femtoseconds;
use crate::options::{Information, Job};
use crate::thread::State;
use crate::trace::Trace;

/// Share of instructions that load data: 26 % in SPECint2000 on MIPS (Hennessy and Patterson, Computer Architecture,
/// 4th edition, Figure B.27).
const LOADS: f64 = 0.26;

/// Share of instructions that store data, from the same figure.
const STORES: f64 = 0.10;

/// Requests of the policy.
pub(super) struct PolicyRequests {
    pub view: View,
    /// By page: is the page unmapped, to get a hinting fault?
    unmapped: Vec<bool>,
    draws: Draws,
}

impl PolicyRequests {
    pub fn new(job: &Job, policy: &impl OnlinePolicy, pages: usize) -> Self {
        let view = match job.options.information {
            Information::ByPolicy => policy.view(),
            _ => View::All,
        };
        let faults = matches!(view, View::Faults { .. });
        Self {
            view,
            unmapped: vec![false; if faults { pages } else { 0 }],
            draws: Draws::new(job.options.seed),
        }
    }

    /// Does the next reference to a page take a hinting fault?
    #[inline]
    pub fn is_unmapped(&self, page: u32) -> bool {
        self.unmapped[page as usize]
    }
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    /// Tells the policy the process and number of each page.
    pub(super) fn introduce(&mut self, trace: &dyn Trace) {
        for page in 0..trace.pages() as u32 {
            let place = Place {
                application: trace.page_application(page),
                number: trace.page_number(page),
            };
            self.policy.place(page, place);
        }
    }

    /// Takes the samples that are due at a miss, or the hinting fault of an unmapped page.
    pub(super) fn look(&mut self, number: usize, miss: Miss, copies: Copies) {
        match self.policy_requests.view {
            // A write-back is no instruction and costs the thread no time, so no sample can hit it.
            View::Samples { .. } if miss.served == Served::WriteBack => {}
            View::Samples {
                cycles,
                cost_cycles,
            } => {
                let period = femtoseconds(cycles as f64 / self.figures.clock_ghz).max(1);
                let cost = femtoseconds(cost_cycles as f64 / self.figures.clock_ghz);
                self.sample(number, miss, period, cost);
            }
            View::Faults { fault_ns, .. } => {
                let unmapped = &mut self.policy_requests.unmapped[miss.page.0 as usize];
                if miss.served != Served::WriteBack && std::mem::take(unmapped) {
                    self.threads[number].spend_moving(femtoseconds(fault_ns as f64));
                    self.observe(number, miss, copies);
                }
            }
            View::All | View::Nothing => {}
        }
    }

    /// Takes samples of instructions at even distances of the thread's own time. Each instruction up to a miss is
    /// equally likely, so the miss itself is sampled once in that number of instructions. The other instructions are
    /// not in the trace. Loads and stores among them hit in the first-level cache, so the simulator assumes the pages
    /// that the thread used last: loads count for the page of its last data miss, stores for the page that it is last
    /// known to have stored to.
    fn sample(&mut self, number: usize, miss: Miss, period: u64, cost: u64) {
        let thread = &mut self.threads[number];
        let watched = &mut thread.watched;
        let now = watched.own(thread.time);
        let loaded = match miss.kind {
            AccessKind::Fetch => watched.page,
            _ => watched.page.replace(miss.page.0).or(watched.page),
        };
        let stored = watched.stored;
        if miss.kind == AccessKind::Store {
            watched.stored = Some(miss.page.0);
        }
        if watched.next_sample == 0 {
            // A random start keeps threads from sampling at the same time.
            let first = self.policy_requests.draws.share() * period as f64;
            watched.next_sample = now + 1 + first as u64;
        }
        while self.threads[number].watched.next_sample <= now {
            let thread = &mut self.threads[number];
            thread.watched.next_sample += period;
            thread.spend_moving(cost);
            let instructions = f64::from(miss.instructions.max(1));
            let sampled = if self.policy_requests.draws.share() * instructions < 1.0 {
                Some(miss)
            } else {
                let drawn = self.policy_requests.draws.share();
                let hit = match drawn {
                    _ if drawn < LOADS => loaded.map(|page| (page, AccessKind::Load)),
                    _ if drawn < LOADS + STORES => stored.map(|page| (page, AccessKind::Store)),
                    _ => None,
                };
                hit.map(|(page, kind)| Miss {
                    page: PageIndex(page),
                    kind,
                    served: Served::L1,
                    ..miss
                })
            };
            if let Some(sampled) = sampled {
                let copies = self.pages.copies(sampled.page.0);
                self.observe(number, sampled, copies);
            }
        }
    }

    /// Carries out the policy's requests at the end of an epoch. The thread `number` pays for unmapping pages.
    pub(super) fn carry_out_requests(&mut self, number: usize) {
        if self.job.options.information == Information::ByPolicy {
            self.policy_requests.view = self.policy.view();
        }
        let pages = self.policy.unmap();
        if let View::Faults { unmap_ns, .. } = self.policy_requests.view
            && !pages.is_empty()
        {
            let thread = &mut self.threads[number];
            thread.spend_moving(femtoseconds(unmap_ns as f64 * pages.len() as f64));
            self.turns.set(number, thread.time);
            for page in pages {
                self.policy_requests.unmapped[page as usize] = true;
            }
        }
        self.assign_cpus();
    }

    /// Chooses a CPU on the target node for each thread that the policy moves: the CPU with the fewest threads, not
    /// counting threads that leave; of equal CPUs, the lowest number.
    fn assign_cpus(&mut self) {
        let moves = self.policy.thread_moves();
        let mut movers: Vec<(usize, u16)> = Vec::new();
        for thread_move in moves {
            let position = self
                .threads
                .iter()
                .position(|t| t.index == thread_move.thread);
            movers.extend(position.map(|thread| (thread, thread_move.node)));
        }
        if movers.is_empty() {
            return;
        }
        let cpus: Vec<u32> = self.figures.cpus().collect();
        let mut load: FxHashMap<u32, u32> = FxHashMap::default();
        for (number, thread) in self.threads.iter().enumerate() {
            let alive = !matches!(thread.state, State::Unborn | State::Ended);
            if alive && !movers.iter().any(|&(mover, _)| mover == number) {
                *load
                    .entry(thread.ordered.unwrap_or(thread.cpu))
                    .or_default() += 1;
            }
        }
        for (number, node) in movers {
            let on_node = |cpu: &u32| {
                self.figures
                    .node(CpuId(*cpu))
                    .is_ok_and(|other| other == node)
            };
            let of_node = cpus.iter().copied().filter(on_node);
            let fewest = of_node.min_by_key(|cpu| load.get(cpu).copied().unwrap_or(0));
            if let Some(cpu) = fewest {
                *load.entry(cpu).or_default() += 1;
                self.order(number, cpu);
            }
        }
    }
}
