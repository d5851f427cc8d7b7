//! Threads of a team that work alike, apart from chance.
//!
//! The predicted time is that of the slowest thread. From a few hundred samples a thread, threads that do the same work
//! seem to differ by several per cent, as much as the distance of memory makes. The thread with most samples would then
//! decide, wherever it is. So the work of a team's threads is drawn towards its mean, the more, the more of its spread
//! chance explains (the estimate of James and Stein: what remains of a deviation is 1 less the ratio of the variance of
//! sampling to the variance seen). The main thread has work of its own, so its deviation counts by itself.

use nearpage_attribution::ObjectGroup;
use nearpage_recording::ThreadIndex;

use crate::context::Input;

/// Sampled work of a thread, and the variance that sampling gives it.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    ns: f64,
    variance_ns2: f64,
}

/// By [`ThreadIndex`]: factor between the work that a thread probably does and its sampled work. `computed`: samples
/// without an access, by thread, each of which stands for `each_ns`.
pub(super) fn factors(input: &Input, computed: &[f64], each_ns: f64) -> Vec<f64> {
    let works = works(&input.attribution.objects, computed, each_ns);
    let work = |thread: &ThreadIndex| works[thread.0 as usize];
    let is_main = |thread: &&ThreadIndex| input.tables.threads[thread.0 as usize].order == 0;
    let mut factors = vec![None; works.len()];
    // The largest team comes first; teams that the main thread joins come last.
    let teams = input.attribution.teams.iter();
    for team in teams.filter(|team| team.pid == input.pid) {
        let members = team.threads.iter().filter(|one| work(one).ns > 0.0);
        let (main, others): (Vec<_>, Vec<_>) = members.partition(is_main);
        let alike: Vec<Work> = others.iter().copied().map(work).collect();
        if alike.is_empty() {
            continue;
        }
        for (thread, factor) in others.iter().zip(remaining(&alike)) {
            factors[thread.0 as usize].get_or_insert(factor);
        }
        for thread in main {
            let (mean_ns, work) = (mean(&alike, |work| work.ns), work(thread));
            let seen_ns2 = (work.ns - mean_ns).powi(2);
            let factor = towards(mean_ns, work.ns, work.variance_ns2, seen_ns2);
            factors[thread.0 as usize].get_or_insert(factor);
        }
    }
    let factors = factors.into_iter();
    factors.map(|factor| factor.unwrap_or(1.0)).collect()
}

/// Work by [`ThreadIndex`], without initialisation of objects.
fn works(objects: &[ObjectGroup], computed: &[f64], each_ns: f64) -> Vec<Work> {
    let mut works = vec![Work::default(); computed.len()];
    let mut add = |thread: usize, ns: f64, samples: f64| {
        if let Some(work) = works.get_mut(thread).filter(|_| samples > 0.0) {
            work.ns += ns;
            work.variance_ns2 += ns * ns / samples;
        }
    };
    for cell in objects.iter().flat_map(|group| &group.affinity.cells) {
        let samples = f64::from(cell.samples);
        add(cell.thread.0 as usize, f64::from(cell.cost_ns), samples);
    }
    for (thread, samples) in computed.iter().enumerate() {
        add(thread, samples * each_ns, *samples);
    }
    works
}

/// Factors for threads that may differ by chance.
fn remaining(works: &[Work]) -> Vec<f64> {
    let mean_ns = mean(works, |work| work.ns);
    let by_chance_ns2 = mean(works, |work| work.variance_ns2);
    let squares: f64 = works.iter().map(|work| (work.ns - mean_ns).powi(2)).sum();
    let seen_ns2 = squares / (works.len() as f64 - 1.0).max(1.0);
    let of = |work: &Work| towards(mean_ns, work.ns, by_chance_ns2, seen_ns2);
    works.iter().map(of).collect()
}

fn mean(works: &[Work], of: impl Fn(&Work) -> f64) -> f64 {
    works.iter().map(of).sum::<f64>() / works.len() as f64
}

/// Factor that draws work towards the mean, by the share of the seen variance that chance explains.
fn towards(mean_ns: f64, work_ns: f64, by_chance_ns2: f64, seen_ns2: f64) -> f64 {
    let kept = 1.0 - (by_chance_ns2 / seen_ns2.max(f64::MIN_POSITIVE)).min(1.0);
    (mean_ns + kept * (work_ns - mean_ns)) / work_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of threads with these numbers of samples, each of which stands for a microsecond.
    fn sampled(samples: &[f64]) -> Vec<f64> {
        let works = works(&[], samples, 1e3);
        let found = remaining(&works);
        found
            .iter()
            .zip(samples)
            .map(|(factor, own)| factor * own)
            .collect()
    }

    #[test]
    fn threads_that_differ_by_chance_do_the_same_work() {
        // A standard deviation of 10 samples is expected.
        assert_eq!(sampled(&[95.0, 105.0, 108.0, 92.0]), [100.0; 4]);
        assert_eq!(sampled(&[50.0]), [50.0]);
    }

    #[test]
    fn threads_that_differ_more_keep_the_difference() {
        let found = sampled(&[1000.0, 1000.0, 2000.0]);
        assert!(found[2] > 1990.0, "{found:?}");
        assert!(
            (found.iter().sum::<f64>() - 4000.0).abs() < 1e-6,
            "{found:?}"
        );
    }
}
