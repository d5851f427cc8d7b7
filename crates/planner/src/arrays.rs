//! Shares of an array, equal or not, and of several arrays in one allocation, from the contiguous parts that threads use.

use std::borrow::Cow;
use std::ops::Range;

use nearpage_attribution::{ObjectGroup, Segment};
use nearpage_plan::{Parts, Placement, Proportions, REVERSED};
use nearpage_recording::ThreadIndex;

use crate::blocks::{fitted_slack, samples_by_owner};
use crate::context::Context;

/// Shares of an object, or of several arrays in one allocation. The segments' users have to be the threads of a team in
/// order, or in reverse order, over and over. Shares are equal, unless unequal ones of one array explain clearly more
/// samples. None if both explain clearly fewer than the segments: of accesses, a single sample may stand for more than
/// many others.
pub(crate) fn arrays(
    context: &Context,
    group: &ObjectGroup,
    segments: &[Segment],
) -> Option<Placement> {
    let samples: f64 = segments.iter().map(|one| one.samples).sum();
    let by_users: f64 = segments.iter().map(|one| one.samples * one.share).sum();
    let least = by_users / samples.max(f64::MIN_POSITIVE) - SHARES_SLACK;
    let of_team = |(team, threads): (String, Cow<[ThreadIndex]>)| {
        let rounds = rounds(group, segments, &threads)?;
        let explained = |placement: Placement| {
            let own = samples_by_owner(context, group, &placement)?;
            (own >= least).then_some((own, placement))
        };
        let equal = parts_of_team(group, segments, &rounds, threads.len());
        let equal = equal.and_then(|parts| {
            let team = team.clone();
            explained(match parts.as_slice() {
                [whole] if *whole == (0..group.size_bytes) => Placement::Block { team },
                _ => {
                    let parts = Parts::new(parts, group.size_bytes)?;
                    Placement::Parts { parts, team }
                }
            })
        });
        let unequal = match rounds.as_slice() {
            [round] => unequal_shares(context, group, round, (&team, threads.len())),
            _ => None,
        };
        match (equal, unequal.filter(|unequal| unequal.0 >= least)) {
            (Some(equal), Some(unequal))
                if unequal.0 > equal.0 + fitted_slack(group, [equal.0, unequal.0]) =>
            {
                Some(unequal)
            }
            (equal, unequal) => equal.or(unequal),
        }
    };
    let orders = context.teams().flat_map(|(name, threads)| {
        let reversed = threads.iter().rev().copied().collect();
        [
            (name.to_owned(), Cow::Borrowed(threads)),
            (format!("{name}{REVERSED}"), Cow::Owned(reversed)),
        ]
    });
    let found = orders.filter_map(of_team);
    let best = found.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, placement)| placement)
}

/// A round with this share of the team's threads is whole: small arrays do not show all threads.
const WHOLE_ROUND: f64 = 0.75;

/// A thread's number in its team, and begin and end of its pages in bytes.
type Share = (usize, u64, u64);

/// Segments whose users are a team's threads, in rounds of ascending members. None if another thread uses one.
fn rounds(
    group: &ObjectGroup,
    segments: &[Segment],
    threads: &[ThreadIndex],
) -> Option<Vec<Vec<Share>>> {
    if threads.len() < 2 {
        return None;
    }
    let member = |user| threads.iter().position(|&thread| thread == user);
    let mut rounds: Vec<Vec<Share>> = Vec::new();
    for segment in segments.iter().filter(|one| one.share >= 0.5) {
        let number = member(segment.user)?;
        let [begin, end] = segment.part_bytes(&group.affinity);
        match rounds.last_mut().and_then(|round| round.last_mut()) {
            Some(last) if last.0 == number => last.2 = end,
            Some(last) if last.0 < number => {
                rounds.last_mut()?.push((number, begin, end));
            }
            _ => rounds.push(vec![(number, begin, end)]),
        }
    }
    Some(rounds)
}

/// Most of an object that may lie unused behind its last share, or before its first unequal one, without samples to
/// show it.
const UNSEEN_END: u64 = 32;

/// Shares of one array that differ in size, for a round of all `count` threads of a team. If the sizes repeat along the
/// team, they follow from the thread's number. Otherwise they may as well follow from the data. Also returns the share of
/// the samples that they explain.
fn unequal_shares(
    context: &Context,
    group: &ObjectGroup,
    round: &[Share],
    (team, count): (&str, usize),
) -> Option<(f64, Placement)> {
    if round.len() != count {
        return None;
    }
    let size = group.size_bytes;
    let unseen = (size / UNSEEN_END).max(2 * group.affinity.page_bytes);
    let mut ends: Vec<u64> = boundaries(round, count)
        .into_iter()
        .map(|one| one.1)
        .collect();
    let [first, .., last] = ends.as_mut_slice() else {
        return None;
    };
    if *first <= unseen {
        *first = 0;
    }
    if last.abs_diff(size) <= unseen {
        *last = size;
    }
    let part = *first..*last;
    let bytes: Vec<f64> = ends
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]) as f64)
        .collect();
    let placement = |bytes: &[f64], repeat: bool| {
        let proportions = Proportions::new(proportions(bytes), repeat)?;
        let parts = Parts::new(vec![part.clone()], size)?.with_proportions(proportions);
        let team = team.to_owned();
        let placement = Placement::Parts { parts, team };
        let own = samples_by_owner(context, group, &placement)?;
        Some((own, placement))
    };
    let all = placement(&bytes, false)?;
    let repeating = (2..count).find_map(|period| {
        let mean = |turn: usize| {
            let of_turn: Vec<f64> = bytes.iter().copied().skip(turn).step_by(period).collect();
            of_turn.iter().sum::<f64>() / of_turn.len() as f64
        };
        let means: Vec<f64> = (0..period).map(mean).collect();
        let found = placement(&means, true)?;
        let slack = fitted_slack(group, [all.0, found.0]);
        (found.0 >= all.0 - slack).then_some(found)
    });
    Some(repeating.unwrap_or(all))
}

/// Proportions of sizes, of which the largest is 1000.
fn proportions(bytes: &[f64]) -> Vec<u16> {
    let most = bytes.iter().copied().fold(1.0, f64::max);
    let proportion = |&bytes: &f64| (bytes / most * 1000.0).round().max(1.0) as u16;
    bytes.iter().map(proportion).collect()
}

/// The arrays that a team's threads go through in order. A used part between two of them is an array, too, though it
/// has too few samples to show its shares.
fn parts_of_team(
    group: &ObjectGroup,
    segments: &[Segment],
    rounds: &[Vec<Share>],
    count: usize,
) -> Option<Vec<Range<u64>>> {
    let page = group.affinity.page_bytes;
    let ends = |round: &[Share]| {
        let is_whole = round.len() as f64 >= WHOLE_ROUND * count as f64;
        is_whole.then(|| equal_shares(&boundaries(round, count), count))
    };
    let whole: Vec<(f64, f64)> = rounds.iter().filter_map(|round| ends(round)).collect();
    if whole.is_empty() {
        return None;
    }
    let begin_of = |segment: &Segment| segment.part_bytes(&group.affinity)[0];
    let is_used = |from: u64, to: u64| {
        let mut begins = segments.iter().map(begin_of);
        begins.any(|begin| begin >= from && begin < to)
    };
    let mut parts: Vec<Range<u64>> = Vec::new();
    for (start, end) in whole {
        let mut start = start.max(0.0).round() as u64;
        let end = end.max(0.0).round() as u64;
        let near_bytes = end.saturating_sub(start) / 16;
        if let Some(before) = parts.last_mut() {
            // Neighbouring arrays meet half-way, unless an unused part or a small array lies between them.
            if start < before.end || start - before.end <= near_bytes {
                before.end = before.end.midpoint(start);
                start = before.end;
            } else if is_used(before.end, start) {
                let between = before.end..start;
                parts.push(between);
            }
        } else if start <= 2 * page {
            start = 0;
        } else if is_used(0, start.saturating_sub(near_bytes)) {
            parts.push(0..start);
        }
        parts.push(start..end);
    }
    let last = parts.last_mut()?;
    let (end, size) = (last.end, group.size_bytes);
    if end.abs_diff(size) <= (size / UNSEEN_END).max(2 * page) {
        last.end = size;
    } else if end < size && is_used(end, size) {
        parts.push(end..size);
    }
    Some(parts)
}

/// Boundaries between a round's shares, by number, as far as its members show them: half-way between neighbouring
/// members.
fn boundaries(round: &[Share], count: usize) -> Vec<(usize, u64)> {
    let mut known: Vec<(usize, u64)> = Vec::new();
    let (first, last) = (round[0], round[round.len() - 1]);
    if first.0 == 0 {
        known.push((0, first.1));
    }
    for pair in round.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0) {
        known.push((pair[1].0, pair[0].2.midpoint(pair[1].1)));
    }
    if last.0 + 1 == count {
        known.push((count, last.2));
    }
    known
}

/// Share of the accesses by which equal shares may explain less than segments, which begin where samples suit them.
const SHARES_SLACK: f64 = 0.03;

/// First and last of boundaries at equal distances, fitted to the known ones by least squares. Boundaries have numbers
/// from 0 to `count`.
fn equal_shares(boundaries: &[(usize, u64)], count: usize) -> (f64, f64) {
    let known = (boundaries.len() as f64).max(1.0);
    let middle: f64 = boundaries.iter().map(|one| one.0 as f64).sum::<f64>() / known;
    let mean: f64 = boundaries.iter().map(|one| one.1 as f64).sum::<f64>() / known;
    let (mut slope, mut squares) = (0.0, 0.0);
    for &(number, boundary) in boundaries {
        let aside = number as f64 - middle;
        slope += aside * boundary as f64;
        squares += aside * aside;
    }
    let each = slope / squares.max(f64::MIN_POSITIVE);
    let at = |number: f64| mean + each * (number - middle);
    (at(0.0), at(count as f64))
}
