//! Finds the number of bytes after which a pattern repeats.

use crate::{
    ownership::Ownership,
    pattern::{Effort, SKILL_MIN, SKILL_TIE},
    spectrum::{Complex, transform},
};

/// Largest number of bins of the frequency analysis; objects with more pages have wider bins.
const BINS_MAX: u64 = 1 << 17;
/// Largest number of frequencies that are examined.
const PEAKS_MAX: usize = 8;
/// Largest number of frequencies that are examined in a resample.
const PEAKS_RESAMPLE: usize = 3;
/// Smallest share of the signal at the frequency of the threads' period. Two threads' blocks with half of the accesses
/// stray have 0.3. Weaker peaks are noise, and their many pieces make them slow to examine.
const PEAK_MIN: f64 = 0.1;

/// Largest difference in skill at which two piece sizes are compared by evidence against chance instead. Pieces of a
/// third of the true size explain about as many accesses if they are near a page in size, as two pieces share each
/// page, but they have less evidence.
const SKILL_ALIAS: f64 = 0.1;

/// The piece size that explains most accesses, to the precision of the samples; the largest of equally good sizes.
pub(crate) fn best_cyclic(
    ownership: &Ownership,
    page: f64,
    size: f64,
    effort: Effort,
) -> Option<f64> {
    let members = ownership.team() as f64;
    // The best block so far: size, skill, evidence.
    let mut best: Option<[f64; 3]> = None;
    let peaks_max = match effort {
        Effort::Recording => PEAKS_MAX,
        Effort::Resample { repeats: true } => PEAKS_RESAMPLE,
        Effort::Resample { repeats: false } => return None,
    };
    for frequency in peaks(ownership).into_iter().take(peaks_max) {
        // Converts cycles per page into bytes of a piece.
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

/// Frequencies, in cycles per page, at which thread numbers repeat most clearly.
fn peaks(ownership: &Ownership) -> Vec<f64> {
    let mut shift = 0;
    while ownership.end_page() >> shift > BINS_MAX {
        shift += 1;
    }
    let pages = ((ownership.end_page() >> shift) + 1) as usize;
    let members = ownership.team() as f64;
    // Represents each page's threads as a direction. Offsets by half a page or half a thread do not change the power.
    let mut signal = vec![Complex::default(); (2 * pages).next_power_of_two()];
    let mut samples = vec![0.0; pages];
    ownership.each_cell(|page, member, count| {
        let direction = Complex::turn(-(member as f64) / members);
        let bin = (page >> shift) as usize;
        signal[bin].re += count * direction.re;
        signal[bin].im += count * direction.im;
        samples[bin] += count;
    });
    // All pages have nearly the same weight, however many samples they have; pages with few samples have slightly
    // less.
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
    // Removes the mean: a thread that is everywhere contributes nothing periodic.
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
    // Thread numbers that ascend with the address turn in one direction only, so all bins up to the page frequency are
    // usable.
    let mut peaks: Vec<usize> = (1..length - 1)
        .filter(|&k| power[k] > power[k - 1] && power[k] >= power[k + 1])
        .collect();
    peaks.retain(|&k| power[k] >= (PEAK_MIN * weights).powi(2));
    peaks.sort_by(|&a, &b| power[b].total_cmp(&power[a]).then(a.cmp(&b)));
    peaks.truncate(PEAKS_MAX);
    peaks
        .into_iter()
        .map(|k| {
            // The vertex of the parabola through the peak and its neighbours.
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

/// Number of samples that the best piece size explains by chance, approximately.
const CHANCE_SAMPLES: f64 = 3.0;

/// Moves from a coarse piece size to the best size, then to the roundest size that explains as much. Returns the size
/// and its skill. Stops if sizes near the coarse one have a skill below `least`, as finer steps improve little.
pub(crate) fn refine(ownership: &Ownership, coarse: f64, page: f64, least: f64) -> (f64, f64) {
    let end = ownership.end_page() as f64 * page;
    let pieces = (end / coarse).max(1.0);
    let skill = |block: f64| ownership.fit(block).skill();
    // With this error in the size, the last piece is off by two pieces.
    let mut reach = 2.0 * coarse / pieces;
    let (mut best, mut best_skill) = (coarse, skill(coarse));
    // For pieces of a few pages, the first steps already move the last boundary by less than a page.
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
    // The best size fits a few samples by chance. The last boundary is known only to the distance between samples.
    let by_chance = CHANCE_SAMPLES / ownership.samples.max(100.0);
    let apart = page.max(end / ownership.samples.max(1.0));
    let (mut low, mut high) = plateau(&skill, best, best_skill - by_chance, apart / pieces);
    // Programs deal whole pages more often than pieces a few bytes off, so whole pages win unless samples contradict.
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

/// Bounds of the sizes around `best` at which the skill stays at least `least`, up to 2 × `reach` on each side.
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

/// The multiple of the greatest power of two between two sizes; of several, the one nearest the middle.
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
