//! How sure a finding is, and how much more has to be recorded where it is not.

use nearpage_amount::counted;
use nearpage_recording::{Metadata, ThreadIndex};

use crate::{Attribution, ObjectGroup, Pattern, Segment, Team, pattern::OWNER_SHARE};

/// How sure a finding about an object is: an object's pattern, or a decision about its pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// Samples that it was found from.
    pub samples: u64,
    /// Share of the resamples ([`Attribution::confidences`]) in which the same is found again, 0 to 1. It says what would become of
    /// the finding in another recording of the same run, not in a run with another input.
    pub share: f64,
}

impl Confidence {
    /// Findings of a smaller share are uncertain: see `benches/results`.
    pub const SURE: f64 = 0.6;
    /// Samples of an object from which most findings are sure: see `benches/results`.
    pub const SAMPLES_SURE: f64 = 400.0;

    /// Is it certain enough to act on?
    pub fn is_sure(&self) -> bool {
        self.share >= Self::SURE
    }
}

/// Two patterns place an object alike where they have this share of its sampled pages near the same threads.
const SAME_PLACE: f64 = 0.95;
/// Pages that are compared, at most.
const COMPARED_MAX: usize = 1 << 10;

impl Attribution {
    /// How sure each object's pattern is, by position; none where that was not found out: for objects below 1 % of the
    /// cost, stacks and thread-local storage. For recordings of samples: a trace has all accesses.
    ///
    /// A resample confirms a pattern where its own pattern would place the object the same: 95 % of its sampled pages
    /// near the same threads, or all of it shared. A pattern that too few accesses tell is never confirmed.
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
    /// Whose a page is by the pattern, among the attribution's teams; none where it says nothing of single threads.
    pub fn owner(&self, page: u32, teams: &[Team]) -> Option<ThreadIndex> {
        match (&self.pattern, place(self, page, teams)) {
            // These say whose an instance is.
            (Pattern::PrivateEach | Pattern::PrivateRuns(_), _) => None,
            (_, Place::Near(thread)) => Some(thread),
            (_, Place::Shared | Place::ByPage | Place::Unknown) => None,
        }
    }

    /// Samples that its pattern is told from.
    pub fn sample_count(&self) -> u64 {
        let samples = self
            .affinity
            .told_by()
            .iter()
            .map(|cell| f64::from(cell.samples));
        samples.sum::<f64>().round() as u64
    }
}

/// Where a pattern has a page, or an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// Near a thread.
    Near(ThreadIndex),
    /// Spread over those who share it.
    Shared,
    /// With whoever uses the page most.
    ByPage,
    /// Nothing is known.
    Unknown,
}

/// Would the patterns of two groups, found in the same objects, place them the same?
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
    // A resample has no instances that the recording has not.
    let mut places: Vec<u32> = match is_by_instance(one) {
        true => other.uses.iter().map(|one| one.object.0).collect(),
        false => one
            .affinity
            .told_by()
            .iter()
            .map(|cell| cell.page)
            .collect(),
    };
    places.dedup();
    let step = places.len().div_ceil(COMPARED_MAX).max(1);
    let compared = places.iter().step_by(step);
    let same = |&&at: &&u32| place(one, at, teams) == place(other, at, teams);
    let count = compared.clone().count();
    // Of nothing, nothing is certain.
    if count == 0 {
        return false;
    }
    compared.filter(same).count() as f64 >= SAME_PLACE * count as f64
}

/// The place of a page, or of an instance by number.
fn place(group: &ObjectGroup, at: u32, teams: &[Team]) -> Place {
    place_by(&group.pattern, group, at, teams)
}

fn place_by(pattern: &Pattern, group: &ObjectGroup, at: u32, teams: &[Team]) -> Place {
    let page_bytes = group.affinity.page_bytes;
    let offset = u64::from(at) * page_bytes + page_bytes / 2;
    let member = |team: usize, number: u64| match teams.get(team).map(|team| &team.threads) {
        Some(threads) if !threads.is_empty() => {
            Place::Near(threads[(number as usize).min(threads.len() - 1)])
        }
        _ => Place::Unknown,
    };
    match pattern {
        Pattern::Unknown => Place::Unknown,
        Pattern::Private { thread } => Place::Near(*thread),
        Pattern::PrivateEach => {
            let uses = group.uses.iter().filter(|one| one.object.0 == at);
            let most = uses.max_by(|a, b| {
                let by_samples = a.samples.total_cmp(&b.samples);
                by_samples.then(b.thread.cmp(&a.thread))
            });
            most.map_or(Place::Unknown, |most| Place::Near(most.thread))
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
                return Place::Unknown;
            };
            let number = offset / (*block_bytes).max(1) % share.threads.len().max(1) as u64;
            Place::Near(share.threads[number as usize])
        }
        // The coarser one is the same wherever a finer one is found.
        Pattern::InTurn(patterns) => place_by(&patterns[1], group, at, teams),
        Pattern::Shared | Pattern::ReadShared => Place::Shared,
        Pattern::Segments(segments) => of_segment(segments, at),
        Pattern::Mixed => Place::ByPage,
    }
}

/// Whose the segment is that a page is in, or the last one before it.
fn of_segment(segments: &[Segment], page: u32) -> Place {
    let after = segments.partition_point(|one| one.first_page <= page);
    match segments.get(after.saturating_sub(1)) {
        Some(segment) if segment.share >= OWNER_SHARE => Place::Near(segment.user),
        Some(_) => Place::Shared,
        None => Place::Unknown,
    }
}

/// How a recording sampled: what would make its findings surer. Traces have none, as they have all accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// How long it recorded.
    pub seconds: f64,
    /// Samples per second and CPU, on the average over that time.
    pub rate_hz: f64,
}

impl Sampling {
    /// Of a recording; none of a trace.
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

    /// What to record to be sure of the findings about objects' `what` (pattern, place), and how many objects are too
    /// small for that; none where all findings are sure.
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

/// The rates that `--rate` takes end here.
const RATE_MAX_HZ: f64 = 100_000.0;
/// Nobody records more than so many times as long to know an object that is a few percent of the cost.
const TIMES_MAX: f64 = 10.0;

/// As many times the samples are needed, at least twice: what is not sure with many is close to something else.
fn needed_times(samples: u64) -> f64 {
    (Confidence::SAMPLES_SURE / (samples.max(1) as f64)).max(2.0)
}

/// To two digits, and to no less.
fn round_up(number: f64) -> f64 {
    if number <= 0.0 || !number.is_finite() {
        return 0.0;
    }
    let digit = 10f64.powf(number.log10().floor() - 1.0).max(0.1);
    let up = (number / digit).ceil() * digit;
    // Without what is left of a division by ten.
    (up * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
