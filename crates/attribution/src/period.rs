//! After how many bytes a pattern repeats.

use crate::{
    ownership::Ownership,
    pattern::{Effort, SKILL_MIN, SKILL_TIE},
    spectrum::{Complex, transform},
};

/// Bins that frequencies are looked for in, at most; objects of more pages have wider bins.
const BINS_MAX: u64 = 1 << 17;
/// Frequencies that are looked into.
const PEAKS_MAX: usize = 8;
/// The same in a resample.
const PEAKS_RESAMPLE: usize = 3;
/// Where threads go round, so much of the signal at least is at their frequency: two threads' blocks, half of the
/// accesses strays, have 0.3 of it. What is weaker is noise, which many pieces make slow to look into.
const PEAK_MIN: f64 = 0.1;

/// Pieces of a third of the size explain about as much where they are near a page, which two of them share then, but with
/// less evidence against chance: skills that are as near are told apart by that.
const SKILL_ALIAS: f64 = 0.1;

/// The size of pieces that explains most, to the precision of the samples; the largest of several
/// that explain as much.
pub(crate) fn best_cyclic(
    ownership: &Ownership,
    page: f64,
    size: f64,
    effort: Effort,
) -> Option<f64> {
    let members = ownership.team() as f64;
    // Block, skill, evidence.
    let mut best: Option<[f64; 3]> = None;
    let peaks_max = match effort {
        Effort::Recording => PEAKS_MAX,
        Effort::Resample { repeats: true } => PEAKS_RESAMPLE,
        Effort::Resample { repeats: false } => return None,
    };
    for frequency in peaks(ownership).into_iter().take(peaks_max) {
        // Cycles per page to bytes of a piece.
        let coarse = page / frequency / members;
        if coarse < 0.75 * page
            || coarse * members > 1.5 * size.max(ownership.end_page() as f64 * page)
        {
            continue;
        }
        let (block, skill) = refine(ownership, coarse.max(page), page, SKILL_MIN / 2.0);
        let evidence = ownership.fit(block).divergence();
        let better = match best {
            None => true,
            Some([other, known, known_evidence]) => match block > other {
                _ if (skill - known).abs() > SKILL_ALIAS => skill > known,
                true => evidence > known_evidence - SKILL_TIE,
                false => evidence > known_evidence + SKILL_TIE,
            },
        };
        if better {
            best = Some([block, skill, evidence]);
        }
    }
    best.map(|one| one[0])
}

/// Frequencies, in cycles per page, at which thread numbers go round most clearly.
fn peaks(ownership: &Ownership) -> Vec<f64> {
    let mut shift = 0;
    while ownership.end_page() >> shift > BINS_MAX {
        shift += 1;
    }
    let pages = ((ownership.end_page() >> shift) + 1) as usize;
    let members = ownership.team() as f64;
    // A page's threads as a direction; half a page and half a thread don't matter to the power.
    let mut signal = vec![Complex::default(); (2 * pages).next_power_of_two()];
    let mut samples = vec![0.0; pages];
    ownership.each_cell(|page, member, count| {
        let direction = Complex::turn(-(member as f64) / members);
        let bin = (page >> shift) as usize;
        signal[bin].re += count * direction.re;
        signal[bin].im += count * direction.im;
        samples[bin] += count;
    });
    // Pages count alike, however hot; those with few samples a little less.
    let mut mean = Complex::default();
    let mut weights = 0.0;
    for (bin, &count) in signal
        .iter_mut()
        .zip(&samples)
        .filter(|(_, count)| **count > 0.0)
    {
        bin.re /= count + 1.0;
        bin.im /= count + 1.0;
        mean.re += bin.re;
        mean.im += bin.im;
        weights += count / (count + 1.0);
    }
    // A thread that is everywhere has no part in what repeats.
    for (bin, &count) in signal
        .iter_mut()
        .zip(&samples)
        .filter(|(_, count)| **count > 0.0)
    {
        let weight = count / (count + 1.0) / weights;
        bin.re -= mean.re * weight;
        bin.im -= mean.im * weight;
    }
    transform(&mut signal);
    let length = signal.len();
    let power: Vec<f64> = signal.iter().map(|bin| bin.norm_squared()).collect();
    // Thread numbers that ascend with the address turn one way only: all bins below the page
    // frequency are theirs.
    let mut peaks: Vec<usize> = (1..length - 1)
        .filter(|&k| power[k] > power[k - 1] && power[k] >= power[k + 1])
        .collect();
    peaks.retain(|&k| power[k] >= (PEAK_MIN * weights).powi(2));
    peaks.sort_by(|&a, &b| power[b].total_cmp(&power[a]).then(a.cmp(&b)));
    peaks.truncate(PEAKS_MAX);
    peaks
        .into_iter()
        .map(|k| {
            // The top of the parabola through the peak and its neighbours.
            let (left, top, right) = (power[k - 1].sqrt(), power[k].sqrt(), power[k + 1].sqrt());
            let bend = left - 2.0 * top + right;
            let aside = if bend < 0.0 {
                0.5 * (left - right) / bend
            } else {
                0.0
            };
            (k as f64 + aside) / length as f64 / f64::from(1u32 << shift)
        })
        .collect()
}

/// Samples that the best size of pieces explains by chance, about.
const CHANCE_SAMPLES: f64 = 3.0;

/// Moves from a coarse size of pieces to the one that explains most, then to the roundest of those
/// that explain as much. Returns it with its skill. Where sizes near the coarse one explain less than `least`, the search
/// ends there: finer steps make little more of it.
pub(crate) fn refine(ownership: &Ownership, coarse: f64, page: f64, least: f64) -> (f64, f64) {
    let end = ownership.end_page() as f64 * page;
    let pieces = (end / coarse).max(1.0);
    let skill = |block: f64| ownership.fit(block).skill();
    // Off by this much, the last piece would be off by two.
    let mut reach = 2.0 * coarse / pieces;
    let (mut best, mut best_skill) = (coarse, skill(coarse));
    // Where a piece is a few pages, a step moves the last boundary by less than that already.
    while reach * pieces > 0.1 * page {
        let centre = best;
        for step in -8i32..=8 {
            let block = centre + reach * f64::from(step) / 8.0;
            if step == 0 || block < page {
                continue;
            }
            let found = skill(block);
            if found > best_skill {
                (best, best_skill) = (block, found);
            }
        }
        if best_skill < least {
            return (best, best_skill);
        }
        reach /= 4.0;
    }
    // The best size fits chance, too: by some samples. Where the last boundary is, no sample nearer than the next says.
    let by_chance = CHANCE_SAMPLES / ownership.samples.max(100.0);
    let apart = page.max(end / ownership.samples.max(1.0));
    let (mut low, mut high) = plateau(&skill, best, best_skill - by_chance, apart / pieces);
    // Programs deal whole pages more often than pieces a few bytes off: those are as good unless samples say otherwise.
    let whole = (best / page).round() * page;
    if (whole - best).abs() * pieces <= page && skill(whole) >= best_skill - SKILL_TIE {
        (low, high) = (low.min(whole), high.max(whole));
    }
    let round = roundest(low.max(page), high);
    let block = if skill(round) >= best_skill - SKILL_TIE {
        round
    } else {
        best
    };
    (block, skill(block))
}

/// How far to each side of `best` the skill stays at least `least`, within `reach`.
fn plateau(skill: &impl Fn(f64) -> f64, best: f64, least: f64, reach: f64) -> (f64, f64) {
    let edge = |direction: f64| {
        let (mut inside, mut outside) = (0.0, 2.0 * reach);
        for _ in 0..10 {
            let middle = 0.5 * (inside + outside);
            if skill(best + direction * middle) >= least {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        best + direction * inside
    };
    (edge(-1.0), edge(1.0))
}

/// The multiple of the greatest power of two between two sizes, and of those the one in the middle.
fn roundest(low: f64, high: f64) -> f64 {
    let middle = 0.5 * (low + high);
    let mut power = (2f64).powi(52);
    while power >= 1.0 {
        let nearest = (middle / power).round() * power;
        if nearest > 0.0 && nearest >= low && nearest <= high {
            return nearest;
        }
        power /= 2.0;
    }
    middle
}
