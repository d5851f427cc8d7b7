//! The judge that needs no replay: it combines affinities with the machine's contention model.
//!
//! A recording of samples does not say how often threads wait for each other. The predicted time is that of the slowest
//! thread, which counts whenever the same thread is the slowest of most steps. With many barriers, each after another
//! thread's longest step, the mean of all threads' times counts, too. So decisions take the effect of a plan half-way
//! between its effects on these two, and the time is longer by the greater loss of the two. Threads whose samples differ
//! no more than by chance do the same work ([`equal_work`]).

use std::convert::Infallible;

use nearpage_attribution::{ObjectGroup, counted_as};
use nearpage_machine::MoveCost;
use nearpage_plan::{Decision, Placement, Plan, Start, Subject};
use nearpage_recording::ThreadIndex;

use super::alternatives::{Alternatives, Selection};
use super::contention::{Contention, Demand, Pace, Time};
use super::equal_work;
use super::unmatched::may_be_unmatched;
use super::{Judge, Margins, Times};
use crate::context::{Context, Input};
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};
use crate::subject::{decisions_about, subject};

/// Share of the time that the model's omissions (the order of accesses, barriers, misses that need each other's data)
/// were found to be worth; see papers/reproduction.md. `slower` is 0, as the sampling error of a gain covers the accesses
/// that become slower.
const MARGINS: Margins = Margins {
    plan: 0.005,
    object: 0.002,
    slower: 0.0,
    resized: 1.0,
    of_samples: true,
};
const OBJECTS_MAX: usize = 24;

/// Predicts times from a recording of any kind.
pub struct Model<'a> {
    context: Context<'a>,
    parameters: Parameters,
    contention: Contention,
    /// Computation by thread.
    paces: Vec<Pace>,
    /// By thread: factor of its work ([`equal_work`]).
    factors: Vec<f64>,
    /// Computation of the main thread while it runs alone.
    alone_ns: f64,
    /// Demand of the groups that the alternatives do not cover.
    fixed: Option<Demand>,
    /// By object and choice: demand, and time that copying or moving pages takes each thread.
    known: Vec<Vec<(Demand, f64)>>,
    move_ns: f64,
}

impl<'a> Model<'a> {
    /// A model of the machine of `input`; none if the machine has one memory node, or a network that leaves nodes
    /// unreachable. If nothing is known of the machine's speed, a memory bandwidth is assumed
    /// ([`nearpage_machine::Machine::with_assumed_bandwidth`]).
    pub fn new(input: &Input<'a>, parameters: &Parameters) -> Option<Self> {
        if input.machine.nodes_with_memory().len() < 2 {
            return None;
        }
        let assumed = input.machine.with_assumed_bandwidth();
        let machine = assumed
            .as_ref()
            .map_or(input.machine, |assumed| &assumed.machine);
        let timing = machine.timing().ok()?;
        let mut contention = Contention::new(machine, &timing);
        // Samples by time have the time that CPUs waited for accesses, without what overlaps. Their number of misses is
        // derived from it as if CPUs had waited for each.
        let by_time = |group| is_sampled_by_time(contention.latency_ns(), group);
        if input.attribution.objects.iter().any(by_time) {
            contention = contention.without_overlap();
        }
        let (computed, each_ns) = computed(input);
        let factors = equal_work::factors(input, &computed, each_ns);
        let compute_ns: Vec<f64> = computed.iter().map(|samples| samples * each_ns).collect();
        let (paces, alone_ns) = paces(input, contention.latency_ns(), &compute_ns, &factors);
        Some(Self {
            paces,
            factors,
            alone_ns,
            contention,
            context: Context::new(input),
            parameters: *parameters,
            fixed: None,
            known: Vec::new(),
            move_ns: match timing.moves {
                MoveCost::Fixed(ns) => ns,
                MoveCost::Steps(steps) => {
                    steps.copy_ns + steps.allocation_ns + steps.mapping_replica_ns
                }
            },
        })
    }

    /// A group's demand under decisions, and the time that copying or moving its pages takes each thread.
    fn demand(&self, group: &ObjectGroup, decisions: &[Decision]) -> (Demand, f64) {
        let context = &self.context;
        let decisions: Vec<&Decision> = decisions.iter().collect();
        let mut demand = Demand::default();
        let found = placed_accesses::<Demand>(
            context,
            group,
            Placing::Decided(&decisions),
            &self.parameters,
        );
        if let Some((_, found)) = found {
            let misses = misses_an_access(self.contention.latency_ns(), group);
            demand.add_scaled(&found, misses);
            demand.scale_use(&self.factors);
        }
        let any = |of: &dyn Fn(&Decision) -> bool| decisions.iter().any(|&decision| of(decision));
        let of_unmatched = any(&|decision| decision.subject == Subject::Unmatched);
        let instances = if of_unmatched { group.instances } else { 1 };
        let pages = group.size_bytes.saturating_mul(instances) / context.page_bytes;
        let moved = if any(&|decision| decision.placement == Placement::Replicate) {
            pages * (context.machine.nodes.len() as u64 - 1)
        } else if any(&|decision| decision.start != Start::Allocation) {
            pages
        } else {
            0
        };
        let threads = group.threads.len().max(1) as f64;
        (demand, moved as f64 * self.move_ns / threads)
    }

    fn selected(&self, fixed: &Demand, selection: &Selection, runtime_scale: f64) -> Time {
        let mut demand = fixed.clone();
        let mut copying_ns = 0.0;
        for (object, choices) in self.known.iter().enumerate() {
            let (own, copying) = &choices[selection.choice(object)];
            demand.add_scaled(own, 1.0);
            copying_ns += copying;
        }
        self.time(&demand, copying_ns, runtime_scale)
    }

    /// The time of a demand; copies and moves take each thread `copying_ns`.
    fn time(&self, demand: &Demand, copying_ns: f64, runtime_scale: f64) -> Time {
        let pace = |thread: ThreadIndex| {
            let own = self.paces.get(thread.0 as usize).copied();
            let own = own.unwrap_or_default();
            Pace {
                // Copies are made once, however long the run is.
                compute_ns: own.compute_ns + copying_ns / runtime_scale,
                ..own
            }
        };
        let time = self.contention.time_ns(demand, pace, runtime_scale);
        Time {
            slowest_ns: self.alone_ns + time.slowest_ns,
            mean_ns: self.alone_ns + time.mean_ns,
        }
    }

    /// Times of runs whose parallel part is `runtime_scale` times as long as recorded.
    fn scaled_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
        runtime_scale: f64,
    ) -> Vec<f64> {
        let fixed = self.prepare(alternatives);
        let first_touch = self.selected(&fixed, &alternatives.nothing(), runtime_scale);
        let time_ns = |selection: &Selection| {
            cautious_ns(
                &first_touch,
                &self.selected(&fixed, selection, runtime_scale),
            )
        };
        selections.iter().map(time_ns).collect()
    }

    /// Times of a plan as decisions use them: of a run as long as the recorded one, and of the scaled run. A plan's
    /// loss counts twice. Phases and online migration are not modelled.
    pub fn times(&self, plan: &Plan) -> [Times; 2] {
        self.times_by(plan, cautious_ns)
    }

    /// Times of a plan as predictions show them: losses count as much as gains. Also the change of all threads' time
    /// together in the scaled run, as a share of that time under first touch: chance changes most which thread is the
    /// slowest.
    pub fn expected_times(&self, plan: &Plan) -> ([Times; 2], f64) {
        let mut of_all = 0.0;
        let times = self.times_by(plan, |first_touch, planned| {
            // The scaled run comes last, so its ratio remains.
            of_all = ratios(first_touch, planned)[1];
            planned.slowest_ns
        });
        (times, of_all - 1.0)
    }

    fn times_by(&self, plan: &Plan, mut planned_ns: impl FnMut(&Time, &Time) -> f64) -> [Times; 2] {
        let context = &self.context;
        let unmatched = plan.unmatched();
        let [mut before, mut after] = [Demand::default(), Demand::default()];
        let mut moving_ns = 0.0;
        for group in &context.attribution.objects {
            before.add_scaled(&self.demand(group, &[]).0, 1.0);
            let own = subject(context.tables, group);
            let about = decisions_about(plan, context, group, own.as_ref());
            let about = about.into_iter().map(|at| plan.decisions[at].clone());
            let mut about: Vec<Decision> = about.collect();
            if about.is_empty() && may_be_unmatched(group) {
                about.extend(unmatched.cloned());
            }
            let (demand, moved_ns) = self.demand(group, &about);
            after.add_scaled(&demand, 1.0);
            moving_ns += moved_ns;
        }
        [1.0, self.parameters.runtime_scale].map(|runtime_scale| {
            let first_touch = self.time(&before, 0.0, runtime_scale);
            let planned = self.time(&after, moving_ns, runtime_scale);
            Times {
                first_touch_ns: first_touch.slowest_ns,
                planned_ns: planned_ns(&first_touch, &planned),
            }
        })
    }

    /// Computes the demands of all choices, once, and returns the demand of the remaining groups.
    fn prepare(&mut self, alternatives: &Alternatives) -> Demand {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let groups = &self.context.attribution.objects;
        let mut fixed = Demand::default();
        for (position, group) in groups.iter().enumerate() {
            let is_chosen = alternatives
                .objects
                .iter()
                .any(|object| object.groups.contains(&position));
            if !is_chosen {
                fixed.add_scaled(&self.demand(group, &[]).0, 1.0);
            }
        }
        for (number, object) in alternatives.objects.iter().enumerate() {
            let of_choice = |choice: usize| {
                let decisions = alternatives.decisions(number, choice);
                let (mut demand, mut copying_ns) = (Demand::default(), 0.0);
                for &group in &object.groups {
                    let (own, own_ns) = self.demand(&groups[group], decisions);
                    demand.add_scaled(&own, 1.0);
                    copying_ns += own_ns;
                }
                (demand, copying_ns)
            };
            let choices = 0..alternatives.choices(number);
            let demands = choices.map(of_choice).collect();
            self.known.push(demands);
        }
        self.fixed = Some(fixed.clone());
        fixed
    }
}

impl Judge for Model<'_> {
    type Error = Infallible;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Infallible> {
        Ok(self.scaled_ns(alternatives, selections, self.parameters.runtime_scale))
    }

    fn margins(&self) -> Margins {
        MARGINS
    }

    fn objects_max(&self) -> usize {
        OBJECTS_MAX
    }
}

/// The time that decisions use: by the mean of the effects on the slowest thread and on all threads together, and
/// longer by the greater loss of the two, so that decisions are on the safe side.
fn cautious_ns(first_touch: &Time, time: &Time) -> f64 {
    let [slowest, mean] = ratios(first_touch, time);
    let lost = (slowest.max(mean) - 1.0).max(0.0);
    first_touch.slowest_ns * ((slowest + mean) / 2.0 + lost)
}

/// Ratios of the slowest thread's time and of the mean time to those under first touch.
fn ratios(first_touch: &Time, time: &Time) -> [f64; 2] {
    let ratio = |ns: f64, before_ns: f64| ns / before_ns.max(f64::MIN_POSITIVE);
    [
        ratio(time.slowest_ns, first_touch.slowest_ns),
        ratio(time.mean_ns, first_touch.mean_ns),
    ]
}

/// Samples of computation by [`ThreadIndex`], and the time that each stands for: as much as one with an access. What a
/// cache serves takes time, too, wherever its page is.
fn computed(input: &Input) -> (Vec<f64>, f64) {
    let (threads, cached) = (&input.tables.threads, &input.tables.cached_samples);
    let mut computed = vec![0.0; threads.len()];
    for (at, (thread, first)) in threads.iter().zip(counted_as(threads)).enumerate() {
        let cached = cached.get(at).copied().unwrap_or(0);
        let samples = thread.counts.compute + thread.counts.undecoded + cached;
        computed[first.0 as usize] += samples as f64;
    }
    let objects = input.attribution.objects.iter();
    let cost_ns: f64 = objects.map(ObjectGroup::cost_ns).sum();
    let accesses: u64 = threads.iter().map(|thread| thread.counts.accesses).sum();
    let misses = accesses.saturating_sub(cached.iter().sum());
    (computed, cost_ns / misses.max(1) as f64)
}

/// Computation of threads, by [`ThreadIndex`], and the time in which the main thread computed while it ran alone. If the
/// main thread computes more than each other thread, it computes the difference alone: before, between and after
/// parallel parts.
fn paces(
    input: &Input,
    latency_ns: &[Vec<f64>],
    compute_ns: &[f64],
    factors: &[f64],
) -> (Vec<Pace>, f64) {
    let objects = &input.attribution.objects;
    let threads = &input.tables.threads;
    let mut misses = vec![0.0; threads.len()];
    for group in objects {
        let each = misses_an_access(latency_ns, group);
        for (thread, loads, stores, _) in &group.threads {
            if let Some(own) = misses.get_mut(thread.0 as usize) {
                *own += each * (loads + stores);
            }
        }
    }
    // A thread's factor holds for its misses as well, so that the time between them stays.
    let pace = |((&compute_ns, &misses), &factor): ((&f64, &f64), &f64)| Pace {
        compute_ns: factor * compute_ns,
        gap_ns: compute_ns / misses.max(f64::MIN_POSITIVE),
    };
    let sampled = compute_ns.iter().zip(&misses);
    let mut paces: Vec<Pace> = sampled.zip(factors).map(pace).collect();
    let of_process = |&at: &usize| threads[at].pid == input.pid;
    let own: Vec<usize> = (0..threads.len()).filter(of_process).collect();
    let main = own.iter().copied().find(|&at| threads[at].order == 0);
    let others = own.iter().filter(|&&at| Some(at) != main);
    let most = others.map(|&at| paces[at].compute_ns).reduce(f64::max);
    let (Some(main), Some(most)) = (main, most) else {
        return (paces, 0.0);
    };
    let alone_ns = (paces[main].compute_ns - most).max(0.0);
    paces[main].compute_ns -= alone_ns;
    (paces, alone_ns)
}

/// Misses per access of a group, on a machine of these latencies whose CPUs wait for each miss. Samples by time do not
/// tell numbers of misses, and counted accesses include hits. So the number of misses follows from the cost, as if they
/// were local.
pub(crate) fn misses_an_access(latency_ns: &[Vec<f64>], group: &ObjectGroup) -> f64 {
    let (accesses, cost_ns) = (group.accesses(), group.cost_ns());
    if accesses <= 0.0 || cost_ns <= 0.0 {
        return 1.0;
    }
    let misses = cost_ns / accesses / local_ns(latency_ns);
    match is_sampled_by_time(latency_ns, group) {
        true => misses,
        false => misses.min(1.0),
    }
}

/// Does an access of a group stand for time, not for one access?
fn is_sampled_by_time(latency_ns: &[Vec<f64>], group: &ObjectGroup) -> bool {
    let most = latency_ns.iter().flatten().copied().fold(0.0, f64::max);
    group.cost_ns() > SAMPLED_BY_TIME * most * group.accesses()
}

/// Latency of a node's own memory, of the node where it is lowest.
fn local_ns(latency_ns: &[Vec<f64>]) -> f64 {
    let local = (0..latency_ns.len()).map(|node| latency_ns[node][node]);
    local.fold(f64::MAX, f64::min)
}

/// An access that costs more than this many of the slowest misses stands for time, not for one access.
const SAMPLED_BY_TIME: f64 = 10.0;
