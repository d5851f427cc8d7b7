//! Marked phases, and the results.

use nearpage_machine::{Energy, MoveCost};
use nearpage_online::OnlinePolicy;

use super::Replay;
use super::scheduling::MARK;
use crate::figures::{FS, Figures};
use crate::outcome::{MoveSplit, Outcome, Split, ThreadOutcome};
use crate::page_counts::PageCounts;
use crate::queues::Server;
use crate::thread::{MovePart, Thread};
use crate::timeline::Part;

/// Sums over the phases that count.
#[derive(Default)]
pub(super) struct Phases {
    time: u64,
    parallel_time: u64,
    latency: [u128; 2],
    moving_parts: [f64; MovePart::COUNT],
    instructions: u64,
    load: Vec<u64>,
    link_busy: Vec<u64>,
    pages: PageCounts,
}

impl Phases {
    pub fn new(figures: &Figures) -> Self {
        Self {
            load: vec![0; figures.nodes],
            link_busy: vec![0; figures.link_count],
            ..Self::default()
        }
    }
}

fn move_split(parts_ns: [f64; MovePart::COUNT]) -> MoveSplit {
    let of = |part: MovePart| parts_ns[part as usize];
    MoveSplit {
        interrupt_ns: of(MovePart::Interrupt),
        decision_ns: of(MovePart::Decision),
        lock_ns: of(MovePart::Lock),
        allocation_ns: of(MovePart::Allocation),
        mapping_ns: of(MovePart::Mapping),
        flush_ns: of(MovePart::Flush),
        flush_request_ns: of(MovePart::FlushRequest),
        copy_ns: of(MovePart::Copy),
        end_ns: of(MovePart::End),
        fault_ns: of(MovePart::Fault),
    }
}

fn total_split(threads: &[ThreadOutcome]) -> Split {
    let sum = |of: &dyn Fn(&Split) -> f64| threads.iter().map(|thread| of(&thread.split)).sum();
    Split {
        compute_ns: sum(&|split| split.compute_ns),
        local_stall_ns: sum(&|split| split.local_stall_ns),
        remote_stall_ns: sum(&|split| split.remote_stall_ns),
        move_ns: sum(&|split| split.move_ns),
        wait_ns: sum(&|split| split.wait_ns),
    }
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    /// Begins or ends a program's marked phase. Of several programs, the first begin and the last end count.
    pub(super) fn mark(&mut self, program: usize, begin: bool, now: u64) {
        let before = self.marked.contains(&true);
        self.marked[program] = begin;
        let during = self.marked.contains(&true);
        if ACTIVE && during != before {
            self.policy.marked(during);
        }
        if begin && !before {
            self.since = Some(now);
            self.running.restart(now);
            for number in 0..self.threads.len() {
                let thread = &self.threads[number];
                if thread.awaits == MARK {
                    self.wake(number, now.saturating_add(thread.time));
                }
            }
            self.follow(now);
            if let Some(timeline) = &mut self.timeline {
                timeline.restart();
            }
            self.threads.iter_mut().for_each(Thread::restart);
            self.queues.all().for_each(Server::restart);
            self.epoch.requests.fill(0);
            self.pages.restart(now);
        } else if before && !self.marked.contains(&true) {
            self.collect(now);
        }
    }

    /// Ends the phase that counts, and adds its counts to the result.
    pub(super) fn collect(&mut self, now: u64) {
        let Some(since) = self.since.take() else {
            return;
        };
        let phases = &mut self.phases;
        phases.time += now.saturating_sub(since);
        phases.parallel_time += self.running.parallel_time(now);
        for thread in &mut self.threads {
            thread.collect();
            phases.instructions += thread.totals.instructions;
            let parts = phases.moving_parts.iter_mut();
            for (sum, ns) in parts.zip(thread.totals.moving_parts) {
                *sum += ns;
            }
            for side in 0..2 {
                phases.latency[side] += thread.totals.latency[side];
            }
        }
        for (sum, server) in phases.load.iter_mut().zip(&self.queues.controllers) {
            *sum += server.requests;
        }
        for (sum, server) in phases.link_busy.iter_mut().zip(&self.queues.links) {
            *sum += server.busy;
        }
        phases.pages.add(&self.pages.counted(now));
    }

    pub(super) fn outcome(&mut self, clock_ghz: f64, energy: Option<&Energy>) -> Outcome {
        let end = self
            .threads
            .iter()
            .map(|thread| thread.time)
            .max()
            .unwrap_or(0);
        self.collect(end);
        self.follow(end);
        let movements = self.pages.movements();
        #[cfg(test)]
        self.pages.check();
        let threads: Vec<ThreadOutcome> = self.threads.iter().map(|thread| thread.result).collect();
        let local: u64 = threads.iter().map(|thread| thread.local).sum();
        let remote: u64 = threads.iter().map(|thread| thread.remote).sum();
        let Phases {
            time,
            parallel_time,
            latency,
            moving_parts,
            instructions,
            load,
            pages,
            ..
        } = &self.phases;
        let mean = |sum: u128, count: u64| (count > 0).then(|| sum as f64 / FS / count as f64);
        let time_ns = *time as f64 / FS;
        let copied = pages.migrated + pages.replicated + pages.interleaved + pages.refreshed;
        Outcome {
            policy: self.job.policy.name().to_owned(),
            parameters: self.job.parameters(),
            time_ns,
            parallel_ns: *parallel_time as f64 / FS,
            split: total_split(&threads),
            misses: local + remote,
            local,
            local_latency_ns: mean(latency[0], local),
            remote_latency_ns: mean(latency[1], remote),
            controller_load: load.clone(),
            memory_nodes: self.figures.memory_bits(),
            link_use: self.link_use(),
            instructions: *instructions,
            clock_ghz,
            migrated: pages.migrated,
            replicated: pages.replicated,
            interleaved: pages.interleaved,
            collapsed: pages.collapsed,
            refreshed: pages.refreshed,
            reclaimed: pages.reclaimed,
            ping_pong: pages.ping_pong,
            multiple: pages.multiple,
            incorrect: pages.incorrect,
            pages_mean: pages.page_time as f64 / (*time).max(1) as f64,
            pages_max: pages.pages_max,
            move_split: matches!(self.figures.moves, MoveCost::Steps(_))
                .then(|| move_split(*moving_parts)),
            energy_j: energy.map(|energy| {
                let nj = local as f64 * energy.local_nj
                    + remote as f64 * energy.remote_nj
                    + copied as f64 * energy.page_copy_nj;
                (nj + time_ns * energy.static_w) * 1e-9
            }),
            signals_missing: self.signals_missing,
            threads_moved: self.assigning.moved,
            moves_left: self
                .threads
                .iter()
                .map(|thread| thread.moves.len() as u64)
                .sum(),
            refilled_lines: self.assigning.refilled_lines,
            overcommitted: pages.overcommitted,
            movements,
            timeline: self.timeline.take(),
            threads,
        }
    }

    /// Adds the counts up to `now` to the timeline.
    #[cold]
    pub(super) fn follow(&mut self, now: u64) {
        let Some(timeline) = &mut self.timeline else {
            return;
        };
        let misses = |side: usize| {
            let threads = self.threads.iter();
            threads.map(|thread| thread.totals.misses[side]).sum()
        };
        let pages = &self.pages.counts;
        let controllers = self.queues.controllers.iter();
        let counted = Part {
            local: misses(0),
            remote: misses(1),
            migrated: pages.migrated + pages.interleaved,
            replicated: pages.replicated + pages.refreshed,
            collapsed: pages.collapsed,
            controller_load: controllers.map(|server| server.requests).collect(),
        };
        timeline.take(now, counted);
        self.next_part = timeline.next();
    }

    /// Share of the time that each link was busy; empty where links have no limit.
    fn link_use(&self) -> Vec<f64> {
        if self.figures.link_count == 0 {
            return Vec::new();
        }
        let time = self.phases.time.max(1) as f64;
        let busy = self.phases.link_busy.iter();
        busy.map(|&busy| busy as f64 / time).collect()
    }
}
