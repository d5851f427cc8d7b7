//! How sure findings are, and how much more to record where they are unsure.

use nearpage_amount::counted;
use nearpage_recording::{Metadata, ThreadIndex};

use crate::{Attribution, ObjectGroup, Pattern, Segment, Team, pattern::OWNER_SHARE};

/// How sure a finding about an object is: its pattern, or the decision about its pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// Number of samples behind the finding.
    pub samples: u64,
    /// Share of the resamples ([`Attribution::confidences`]) that lead to the same finding, 0 to 1. The share predicts
    /// other recordings of the same run, not runs with another input.
    pub share: f64,
}

impl Confidence {
    /// Smallest share of a sure finding: see `benches/results`.
    pub const SURE: f64 = 0.6;
    /// Number of an object's samples from which most findings are sure: see `benches/results`.
    pub const SAMPLES_SURE: f64 = 400.0;

    /// Whether the finding is sure enough to act on.
    pub fn is_sure(&self) -> bool {
        self.share >= Self::SURE
    }
}

/// Smallest share of sampled pages that two patterns must place near the same threads to count as the same placement.
const SAME_PLACE: f64 = 0.95;
/// Largest number of pages that are compared.
const COMPARED_MAX: usize = 1 << 10;

impl Attribution {
    /// Confidence in each object's pattern, by position. None for objects below 1 % of the cost, stacks and
    /// thread-local storage. Useful for sampled recordings only, as a trace has all accesses.
    ///
    /// A resample confirms a pattern if its own pattern places the object alike: 95 % of the sampled pages near the
    /// same threads, or the whole object shared. [`Pattern::Unknown`] is never confirmed.
    pub fn pattern_confidence(&self) -> Vec<Option<Confidence>> {
        self.confidences(
            |_| true,
            |resample, positions| {
                let is_same = |&position: &usize| {
                    let [one, other] = [self, resample].map(|of| &of.objects[position]);
                    are_placed_alike(one, other, &self.teams)
                };
                positions.iter().map(is_same).collect()
            },
        )
    }
}

impl ObjectGroup {
    /// Owner of a page by the pattern, where `teams` are the attribution's. None if the pattern gives pages no single
    /// owner.
    pub fn owner(&self, page: u32, teams: &[Team]) -> Option<ThreadIndex> {
        match (&self.pattern, implied_placement(self, page, teams)) {
            // These patterns give owners to instances, not to pages.
            (Pattern::PrivateEach | Pattern::PrivateRuns(_), _) => None,
            (_, ImpliedPlacement::Near(thread)) => Some(thread),
            (
                _,
                ImpliedPlacement::Shared | ImpliedPlacement::ByPage | ImpliedPlacement::Unknown,
            ) => None,
        }
    }

    /// Number of samples from which the pattern was found.
    pub fn sample_count(&self) -> u64 {
        let samples = self
            .affinity
            .pattern_cells()
            .iter()
            .map(|cell| f64::from(cell.samples));
        samples.sum::<f64>().round() as u64
    }
}

/// Where a pattern places a page or an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ImpliedPlacement {
    /// Near a thread.
    Near(ThreadIndex),
    /// Spread over the threads that share it.
    Shared,
    /// On the node of the thread that uses the page most.
    ByPage,
    /// No placement.
    Unknown,
}

/// Whether the patterns of two groups of the same objects give the same placement.
fn are_placed_alike(one: &ObjectGroup, other: &ObjectGroup, teams: &[Team]) -> bool {
    if one.pattern == Pattern::Unknown {
        return false;
    }
    let is_by_instance = |group: &ObjectGroup| {
        matches!(
            group.pattern,
            Pattern::PrivateEach | Pattern::PrivateRuns(_)
        )
    };
    if is_by_instance(one) != is_by_instance(other) {
        return false;
    }
    // Instances come from the resample, as each of them is in the recording, too.
    let mut places: Vec<u32> = match is_by_instance(one) {
        true => other.uses.iter().map(|one| one.object.0).collect(),
        false => one
            .affinity
            .pattern_cells()
            .iter()
            .map(|cell| cell.page)
            .collect(),
    };
    places.dedup();
    let step = places.len().div_ceil(COMPARED_MAX).max(1);
    let compared = places.iter().step_by(step);
    let same =
        |&&at: &&u32| implied_placement(one, at, teams) == implied_placement(other, at, teams);
    let count = compared.clone().count();
    // Without samples, no pattern is confirmed.
    if count == 0 {
        return false;
    }
    compared.filter(same).count() as f64 >= SAME_PLACE * count as f64
}

/// Where a group's pattern places a page, or an instance by number.
fn implied_placement(group: &ObjectGroup, at: u32, teams: &[Team]) -> ImpliedPlacement {
    placement_by_pattern(&group.pattern, group, at, teams)
}

fn placement_by_pattern(
    pattern: &Pattern,
    group: &ObjectGroup,
    at: u32,
    teams: &[Team],
) -> ImpliedPlacement {
    let page_bytes = group.affinity.page_bytes;
    let offset = u64::from(at) * page_bytes + page_bytes / 2;
    let member = |team: usize, number: u64| match teams.get(team).map(|team| &team.threads) {
        Some(threads) if !threads.is_empty() => {
            ImpliedPlacement::Near(threads[(number as usize).min(threads.len() - 1)])
        }
        _ => ImpliedPlacement::Unknown,
    };
    match pattern {
        Pattern::Unknown => ImpliedPlacement::Unknown,
        Pattern::Private { thread } => ImpliedPlacement::Near(*thread),
        Pattern::PrivateEach => {
            let uses = group.uses.iter().filter(|one| one.object.0 == at);
            let most = uses.max_by(|a, b| {
                let by_samples = a.samples.total_cmp(&b.samples);
                by_samples.then(b.thread.cmp(&a.thread))
            });
            most.map_or(ImpliedPlacement::Unknown, |most| {
                ImpliedPlacement::Near(most.thread)
            })
        }
        Pattern::PrivateRuns(runs) => {
            let first = group.uses.first().map_or(0, |one| one.object.0);
            of_segment(runs, at.saturating_sub(first))
        }
        Pattern::Block { team, block_bytes } => member(*team, offset / (*block_bytes).max(1)),
        Pattern::PartialBlock {
            team,
            block_bytes,
            part_bytes,
        } => member(
            *team,
            offset.saturating_sub(part_bytes.start) / (*block_bytes).max(1),
        ),
        Pattern::BlockCyclic {
            team, block_bytes, ..
        } => {
            let members = teams.get(*team).map_or(1, |team| team.threads.len().max(1));
            member(*team, offset / (*block_bytes).max(1) % members as u64)
        }
        Pattern::Tiles {
            block_bytes,
            shares,
        } => {
            let share = shares.iter().find(|share| at < share.pages.end);
            let Some(share) = share.or(shares.last()) else {
                return ImpliedPlacement::Unknown;
            };
            let number = offset / (*block_bytes).max(1) % share.threads.len().max(1) as u64;
            ImpliedPlacement::Near(share.threads[number as usize])
        }
        // Compares the second, finer pattern: the coarser first one does not differ between resamples.
        Pattern::InTurn(patterns) => placement_by_pattern(&patterns[1], group, at, teams),
        Pattern::Shared | Pattern::ReadShared => ImpliedPlacement::Shared,
        Pattern::Segments(segments) => of_segment(segments, at),
        Pattern::Mixed => ImpliedPlacement::ByPage,
    }
}

/// Placement of a page by the segment that contains it, or by the last segment before it.
fn of_segment(segments: &[Segment], page: u32) -> ImpliedPlacement {
    let after = segments.partition_point(|one| one.first_page <= page);
    match segments.get(after.saturating_sub(1)) {
        Some(segment) if segment.share >= OWNER_SHARE => ImpliedPlacement::Near(segment.user),
        Some(_) => ImpliedPlacement::Shared,
        None => ImpliedPlacement::Unknown,
    }
}

/// Duration and rate of a sampled recording, to say what more to record. Traces have neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Duration of the recording in seconds.
    pub seconds: f64,
    /// Samples per second and CPU, averaged over the duration.
    pub rate_hz: f64,
}

impl Sampling {
    /// Sampling of a recording; none for a trace.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        if metadata.tracing.is_some() {
            return None;
        }
        let (begin_ns, end_ns) = (metadata.begin_ns, metadata.end_ns.max(metadata.begin_ns));
        let seconds = (end_ns - begin_ns) as f64 / 1e9;
        let until = metadata.rates.iter().skip(1).map(|change| change.time_ns);
        let until = until.chain([end_ns]);
        let samples = metadata.rates.iter().zip(until).map(|(change, until)| {
            let from_ns = change.time_ns.clamp(begin_ns, end_ns);
            let until_ns = until.clamp(from_ns, end_ns);
            change.rate_hz * (until_ns - from_ns) as f64 / 1e9
        });
        let samples: f64 = samples.sum();
        let rate_hz = match samples > 0.0 && seconds > 0.0 {
            true => samples / seconds,
            false => metadata.rate_hz,
        };
        Some(Self { seconds, rate_hz })
    }

    /// Advice on how long, or how fast, to record to be sure of the findings, and how many objects are too small for
    /// that. `what` names the finding (pattern, place). None if all findings are sure.
    pub fn remedy(&self, findings: &[Confidence], what: &str) -> Option<String> {
        let unsure = findings.iter().filter(|one| !one.is_sure());
        let (within_reach, too_small): (Vec<f64>, Vec<f64>) = unsure
            .map(|one| needed_times(one.samples))
            .partition(|&times| times <= TIMES_MAX && self.seconds > 0.0);
        let have_too_few = |objects: usize| {
            let (have, whose) = match objects {
                1 => ("has", format!("its {what}")),
                _ => ("have", format!("their {what}s")),
            };
            let objects = counted(objects as u64, "object");
            format!("{objects} {have} too few samples to be sure of {whose}")
        };
        let times = within_reach.iter().copied().fold(0.0, f64::max);
        let to_record = (!within_reach.is_empty()).then(|| {
            let seconds = round_up(times * self.seconds);
            let at_rate = match round_up(times * self.rate_hz) {
                hz if (1.0..=RATE_MAX_HZ).contains(&hz) => format!(", or use --rate {hz}"),
                _ => String::new(),
            };
            let objects = have_too_few(within_reach.len());
            format!("{objects}: record a run of {seconds} s{at_rate}")
        });
        let beyond = (!too_small.is_empty()).then(|| {
            let objects = have_too_few(too_small.len());
            format!("{objects}, and a run {TIMES_MAX} times as long would not give enough, either")
        });
        let parts: Vec<String> = to_record.into_iter().chain(beyond).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Largest rate that `--rate` accepts.
const RATE_MAX_HZ: f64 = 100_000.0;
/// Longest run that is recommended, as a multiple of the recorded one. Objects that need more are called too small.
const TIMES_MAX: f64 = 10.0;

/// Factor by which the number of samples must grow, at least 2: a finding that is unsure despite many samples is a
/// close decision.
fn needed_times(samples: u64) -> f64 {
    (Confidence::SAMPLES_SURE / (samples.max(1) as f64)).max(2.0)
}

/// Rounds up to two digits, or to tenths for small numbers.
fn round_up(number: f64) -> f64 {
    if number <= 0.0 || !number.is_finite() {
        return 0.0;
    }
    let digit = 10f64.powf(number.log10().floor() - 1.0).max(0.1);
    let up = (number / digit).ceil() * digit;
    // Removes the rounding error of the division by tenths.
    (up * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
