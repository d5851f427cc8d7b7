//! A modelled ccNUMA machine that replays the misses of a trace under any policy.
//!
//! The simulation is the second of two stages. The tracer has run every reference through the caches once and kept the
//! misses. The simulator replays the misses in the order of simulated time, each thread with a clock of its own,
//! against memory controllers, links, a page table with replicas, and a policy that moves pages. It assumes that
//! placement does not change which references miss, as Verghese's thesis does (§6.1).
//!
//! The model:
//!
//! - **A miss** takes the unloaded latency from the CPU's node to the nearest copy of its page, plus the longest of its
//!   waits: for the controller, the directories and the links on its way. The miss enters all of these queues when it
//!   is issued. Links carry the line. Under a coherence protocol without a directory (`[coherence]` of a machine) they
//!   also carry the packets of requests, probes, answers and data heads. A line that another cache holds modified is
//!   fetched from the page's node, too; on machines with directories it also takes the hops to that cache. Upgrades
//!   wait for directories only. Write-backs occupy controllers and links, and no thread waits for them.
//! - **A CPU** waits for each miss, or has several outstanding misses and runs ahead of the oldest as far as its window
//!   allows. If the trace has the dependency, a miss whose address depends on an earlier miss's data waits for that
//!   miss. The CPU always waits for instruction fetches. It waits for all outstanding misses before its thread wakes,
//!   waits for, or makes way for another thread. Threads of one CPU share the CPU by time slices. At barriers that the
//!   tracer knows, threads wait for whichever comes last in the replay.
//! - **A prefetcher** (`[prefetcher]`) requests lines ahead of streams of misses. Requested lines count among the CPU's
//!   outstanding misses until they arrive. A line that the program never uses takes its place in the queues as well,
//!   and is assumed to be in no cache.
//! - **Hits** cost the machine's hit latencies if the trace has them (`--keep-hits`). TLB misses cost the sum of their
//!   levels; the misses of the page walk itself are not modelled. After the flush for a page that moved in steps, each
//!   page is missing from a TLB until its CPU uses the page again.
//! - **Page tables**: where moves cost by step, a thread that moves to another node keeps its old copy of a page. This
//!   ends when the page is moved or copied, or when the thread's misses make the page hot. Elsewhere a thread uses the
//!   nearest copy at once.
//! - **Moving a page** has one cost, or the steps of Verghese's Table 8 with their lock, batches and flushes. The CPU
//!   whose miss triggered the move pays at its next reference. Copying takes bandwidth of controllers and links where
//!   moves cost by step. Moves that a policy decides at fixed intervals (`carrefour`) are made by a kernel thread, page
//!   by page, on a CPU that no thread needs. Without such a CPU, the thread that is furthest behind pays.
//! - **A store to a replicated page** is a fault, after which only the master copy is left or, under `carrefour`, the
//!   writer's copy. Another node that had a copy then faults at its next miss and gets a new copy. Stores that hit in a
//!   cache fault, too. The trace has the first such store to each page in 100,000 instructions of a thread, so a copy
//!   outlives a store by no more than that.
//! - **Samples** (`carrefour`) are taken of each thread at even distances of its own time, and cost it time. The
//!   sampled instruction is random: a miss as often as instructions are misses, and a load or store that hits in the
//!   first level as often as programs load and store. Such a load counts for the page of the last data miss, such a
//!   store for the page that the thread is last known to have stored to. Where a policy is shown one miss in N, the
//!   distances between shown misses are random, too.
//! - **Hinting faults** (`kernel-balancing`) come at the first miss to a page after the page was unmapped, because
//!   references that hit in the first level are not in a trace.
//! - **A thread that moves** to another CPU, by a schedule ([`Schedule`]) or a policy, finds cold caches there. It is
//!   charged once for refilling them, one line after the other at the mean latency of its misses so far. The number of
//!   lines is that of the CPU's largest private cache, or of the thread's misses since its last move if that is less.
//!   The charge is an estimate ([`Outcome::estimated`]), because the trace does not have the misses in cold caches.
//!
//! [`simulate`] runs several policies in parallel. Each is a separate replay, so results do not depend on the number of
//! workers.

mod block_naive;
mod error;
mod figures;
mod interconnect;
mod mappings;
mod modified_lines;
mod movements;
mod options;
mod outcome;
mod page_counts;
mod pages;
mod plan_with_online_migration;
mod policy;
mod post_facto;
mod prefetching;
mod programs;
mod queues;
mod replay;
mod schedule;
mod shared_data;
#[cfg(test)]
mod tests;
mod thread;
mod timeline;
mod tournament;
mod trace;
mod watched;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nearpage_machine::{Machine, Timing};
use nearpage_online::{
    AdaptiveTrigger, Auto, Carrefour, Initial, KernelBalancing, MemoryTimes, MigrateReplicate,
    OnlinePolicy, Planned, PlannedChange, PlannedPhase, PushPull, ReplicateOnFirstTouch, Setting,
};

pub use error::Error;
pub use movements::{Movement, MovementKind, Movements, PageExtent};
pub use options::{Copy, EVERY_SAMPLED, Flush, Information, Job, NUMBERS, Options, Pages};
pub use outcome::{MoveSplit, Outcome, Split, ThreadOutcome};
pub use policy::{Home, MigrateReplicateMode, PhaseHomes, PlanHomes, SimulatedPolicy};
pub use programs::Programs;
pub use schedule::{Program, Schedule, Scheduler, ThreadMove};
pub use timeline::{Part, Timeline};
pub use trace::{FilePage, MemoryTrace, StepSource, ThreadSteps, Trace, is_marked};
pub use watched::Watched;

use figures::Figures;
use plan_with_online_migration::PlanWithOnlineMigration;
use replay::{Distances, Replay, StaticPlacement};

/// Replays `trace` on `machine` once for each job, with at most `workers` replays in parallel. The results are in the
/// order of the jobs.
///
/// # Errors
/// The error of the first job that fails.
pub fn simulate(
    trace: &dyn Trace,
    machine: &Machine,
    jobs: &[Job],
    workers: usize,
) -> Result<Vec<Outcome>, Error> {
    let timing = machine.timing()?;
    Job::check_effects(jobs, &timing)?;
    let workers = workers.min(at_once(
        trace.pages() as u64,
        jobs,
        machine.nodes.len() as u64,
    ));
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    let work = || {
        while let Some((number, job)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(number).map(|job| (number, job))
        } {
            let result = simulate_one(trace, machine, &timing, job);
            results
                .lock()
                .expect("no worker panics")
                .push((number, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers.clamp(1, jobs.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().expect("no worker panics");
    results.sort_by_key(|result| result.0);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Number of replays whose memory fits at once. A simulation may take 512 MiB and 64 bytes per page; 192 MiB of the 512
/// MiB are for per-page state, the others for kept steps and everything else.
fn at_once(pages: u64, jobs: &[Job], nodes: u64) -> usize {
    const BY_PAGE_MAX: u64 = 192 << 20;
    let each = jobs.iter().map(|job| job.bytes_a_page(nodes)).max();
    let each = each.unwrap_or(0).saturating_mul(pages).max(1);
    let room = BY_PAGE_MAX + 64 * pages;
    usize::try_from(room / each).unwrap_or(usize::MAX).max(1)
}

fn simulate_one(
    trace: &dyn Trace,
    machine: &Machine,
    timing: &Timing,
    job: &Job,
) -> Result<Outcome, Error> {
    let job = &job.on(machine.nodes.len());
    let figures = Figures::new(machine, timing, &job.options);
    let homes = first_homes(trace, timing, &figures, job)?;
    if let Some(reason) = job.policy.unsuitable_on(timing) {
        return Err(Error::UnsuitablePolicy {
            policy: job.policy.name().to_owned(),
            reason,
        });
    }
    let setting = Setting {
        nodes: figures.nodes,
        pages: trace.pages(),
        memory_nodes: figures.memory_bits(),
        near_memory_nodes: figures.near_memory_bits(machine),
        cpus_per_node: machine.cpus_per_node(),
        clock_ghz: timing.clock_ghz,
        every: job.options.every,
        seed: job.options.seed,
    };
    let run = Run {
        trace,
        timing,
        figures: &figures,
        job,
        homes,
    };
    match &job.policy {
        SimulatedPolicy::Homes { plan, .. }
            if plan.online_migration.is_some()
                || !plan.phases.is_empty()
                || plan
                    .homes
                    .iter()
                    .any(|home| change(home) != PlannedChange::Nothing) =>
        {
            run.under_plan(plan, setting)
        }
        SimulatedPolicy::Static(_)
        | SimulatedPolicy::PostFacto
        | SimulatedPolicy::BlockNaive
        | SimulatedPolicy::Homes { .. } => run.under::<_, false>(StaticPlacement),
        SimulatedPolicy::MigrateReplicate {
            thresholds,
            mode,
            adaptive,
        } => {
            let policy = MigrateReplicate::new(thresholds, &setting)?;
            let policy = match mode {
                MigrateReplicateMode::Both => policy,
                MigrateReplicateMode::Migrate => policy.migrate_only(),
                MigrateReplicateMode::Replicate => policy.replicate_only(),
            };
            match adaptive {
                false => run.under::<_, true>(policy),
                true => run.under::<_, true>(AdaptiveTrigger::new(policy)),
            }
        }
        SimulatedPolicy::ReplicateOnFirstTouch => {
            run.under::<_, true>(ReplicateOnFirstTouch::new(&setting))
        }
        SimulatedPolicy::PushPull(monitor, parameters) => {
            run.under::<_, true>(PushPull::new(*monitor, parameters, &setting)?)
        }
        SimulatedPolicy::Auto(parameters) => {
            let auto = Auto::new(parameters, &setting, Some(&run.memory_times()))?;
            run.under::<_, true>(auto)
        }
        SimulatedPolicy::Carrefour(parameters) => {
            run.under::<_, true>(Carrefour::new(parameters, &setting)?)
        }
        SimulatedPolicy::KernelBalancing(parameters) => {
            let nodes = machine.nodes.iter();
            let cpus: Vec<u32> = nodes
                .map(|node| node.cpus.as_slice().len() as u32)
                .collect();
            let policy = KernelBalancing::new(parameters, &setting, machine.page_bytes, &cpus)?;
            run.under::<_, true>(policy)
        }
    }
}

/// First node of each page, for policies that decide it for each page in advance.
fn first_homes(
    trace: &dyn Trace,
    timing: &Timing,
    figures: &Figures,
    job: &Job,
) -> Result<Option<Vec<Option<u16>>>, Error> {
    Ok(match &job.policy {
        SimulatedPolicy::PostFacto => {
            // With markers or moved threads, only a replay tells which misses count and from which node they come.
            let misses = match job.schedule.moves_threads() || trace.may_be_marked() {
                false => post_facto::traced(trace, figures)?,
                true => watched(trace, timing, figures, job)?,
            };
            Some(post_facto::homes(&misses, figures, &timing.latency_ns))
        }
        SimulatedPolicy::BlockNaive => Some(block_naive::homes(trace, figures)),
        SimulatedPolicy::Homes { plan, .. } => {
            let node = |home: &Option<Home>| match home {
                Some(Home::Node(node)) => Some(*node),
                Some(Home::Copies | Home::Later(_) | Home::Parallel(_)) | None => None,
            };
            Some(plan.homes.iter().map(node).collect())
        }
        _ => None,
    })
}

/// Misses of each page by node, counted in a replay under first touch: threads run where the schedule has them, and
/// only marked phases count.
fn watched(
    trace: &dyn Trace,
    timing: &Timing,
    figures: &Figures,
    job: &Job,
) -> Result<post_facto::Misses, Error> {
    let mut misses = vec![0; trace.pages() * figures.nodes];
    let mut job = job.clone();
    job.policy = SimulatedPolicy::Static(Initial::FirstTouch);
    (job.options.information, job.options.every) = (Information::Cache, 1);
    job.options.movements_max = 0;
    let run = Run {
        trace,
        timing,
        figures,
        job: &job,
        homes: None,
    };
    run.under::<_, true>(post_facto::Watching::new(&mut misses, figures.nodes))?;
    Ok(misses)
}

/// The change that a plan asks for after a page's first touch.
fn change(home: &Option<Home>) -> PlannedChange {
    match home {
        Some(Home::Copies) => PlannedChange::Copies,
        Some(Home::Later(node)) => PlannedChange::Later(*node),
        Some(Home::Parallel(node)) => PlannedChange::Parallel(*node),
        Some(Home::Node(_)) | None => PlannedChange::Nothing,
    }
}

/// The change that a plan asks for when a phase begins.
fn change_in_phase(home: &Option<Home>) -> PlannedChange {
    match home {
        Some(Home::Copies) => PlannedChange::Copies,
        Some(Home::Node(node)) => PlannedChange::Next(Some(*node)),
        Some(Home::Later(node) | Home::Parallel(node)) => PlannedChange::Next(*node),
        None => PlannedChange::Nothing,
    }
}

/// Inputs of one replay.
struct Run<'a> {
    trace: &'a dyn Trace,
    timing: &'a Timing,
    figures: &'a Figures,
    job: &'a Job,
    homes: Option<Vec<Option<u16>>>,
}

impl Run<'_> {
    /// Replays under a plan that moves or copies pages while the program runs.
    fn under_plan(self, plan: &PlanHomes, setting: Setting) -> Result<Outcome, Error> {
        let pages = setting.pages;
        let mut changes: Vec<PlannedChange> = plan.homes.iter().map(change).collect();
        // The plan may have been made for a trace with fewer pages.
        changes.resize(pages, PlannedChange::Nothing);
        let phases = plan.phases.iter().map(|phase| PlannedPhase {
            entry: phase.entry.clone(),
            changes: phase
                .homes
                .iter()
                .take(pages)
                .map(change_in_phase)
                .collect(),
            threads: phase.threads.clone(),
        });
        let planned = Planned::new(changes, phases.collect(), setting.memory_nodes);
        let Some(parameters) = &plan.online_migration else {
            return self.under::<_, true>(planned);
        };
        let every = EVERY_SAMPLED;
        let setting = Setting { every, ..setting };
        let auto = Auto::new(parameters, &setting, Some(&self.memory_times()))?;
        self.under::<_, true>(PlanWithOnlineMigration {
            planned,
            auto,
            shown: Distances::new(every, setting.nodes, setting.seed),
        })
    }

    fn memory_times(&self) -> MemoryTimes {
        let figures = self.figures;
        MemoryTimes {
            latency_ns: self.timing.latency_ns.clone(),
            service_ns: figures.controller as f64 / figures::FS,
            move_ns: figures.mean_move_ns(self.job.options.batch_pages),
            collapse_ns: figures.collapse_ns(),
            private_lines: figures.private_lines,
        }
    }

    fn under<P: OnlinePolicy, const ACTIVE: bool>(self, policy: P) -> Result<Outcome, Error> {
        let Self {
            trace,
            timing,
            figures,
            job,
            homes,
        } = self;
        let threads = trace.threads()?;
        let shared = match job.options.pages {
            Pages::All => None,
            Pages::Shared => Some(shared_data::shared_data(trace)?),
        };
        Replay::<_, ACTIVE>::new(figures, job, policy, trace, (homes, shared), threads)?
            .run(timing.clock_ghz, timing.energy.as_ref())
    }
}

#[cfg(test)]
mod memory_tests {
    use super::*;

    #[test]
    fn few_replays_at_once_where_there_are_many_pages() {
        let jobs = ["first-touch", "migrate-replicate"]
            .map(|name| Job::new(SimulatedPolicy::from_name(name).expect(name)));
        // At 64 bytes per page and replay, 3 Mi pages fill the 192 MiB.
        assert_eq!(jobs[1].bytes_a_page(8), 64);
        assert_eq!(at_once(1 << 20, &jobs, 8), 4);
        assert_eq!(at_once(3 << 20, &jobs, 8), 2);
        assert_eq!(at_once(4 << 20, &jobs, 8), 1);
        assert_eq!(at_once(8 << 20, &jobs[..1], 8), 5);
        assert_eq!(at_once(0, &[], 1), 192 << 20);
    }
}
