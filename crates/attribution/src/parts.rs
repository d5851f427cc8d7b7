//! Tests whether parts of an object belong to threads at all.

use nearpage_recording::ThreadIndex;

use crate::{
    Cell,
    ownership::Fit,
    pattern::{EVIDENCE_MIN, Effort},
};

/// Smallest skill with which nearby accesses predict a page's threads, for parts of the object to belong to threads.
const PARTS_SKILL_MIN: f64 = 0.4;

/// Whether nearby accesses predict a page's threads better than chance. Several widths are tried, as a page may have
/// too few samples.
pub(crate) fn has_parts(cells: &[Cell], samples: f64, most: f64, effort: Effort) -> bool {
    let pages = cells.last().map_or(0, |cell| cell.page);
    (0..32)
        .step_by(2)
        .take_while(|&width| width == 0 || pages >> width > 0)
        .any(|width| {
            // Cells are in order of pages, and so are the bins of each width.
            let mut explained = 0.0;
            let mut bin: Vec<(ThreadIndex, f64)> = Vec::new();
            let mut close = |bin: &mut Vec<(ThreadIndex, f64)>| {
                bin.sort_unstable_by_key(|&(thread, _)| thread);
                bin.dedup_by(|next, kept| {
                    let same = next.0 == kept.0;
                    kept.1 += if same { next.1 } else { 0.0 };
                    same
                });
                let top = bin.iter().map(|&(_, n)| n).fold(0.0, f64::max);
                let second = bin
                    .iter()
                    .map(|&(_, n)| n)
                    .filter(|&n| n < top)
                    .fold(0.0, f64::max);
                let tops = bin.iter().filter(|&&(_, n)| n >= top).count();
                // Leave-one-out prediction: a sample is predicted by the others of its bin, correctly if its thread
                // stays ahead.
                if tops == 1 && top >= second + 2.0 || bin.len() == 1 && top >= 2.0 {
                    explained += top;
                }
                bin.clear();
            };
            let mut number = 0;
            for cell in cells {
                if cell.page >> width != number {
                    close(&mut bin);
                    number = cell.page >> width;
                }
                bin.push((cell.thread, f64::from(cell.samples)));
            }
            close(&mut bin);
            let fit = Fit {
                explained: explained / samples,
                chance: most,
            };
            fit.skill() >= PARTS_SKILL_MIN
                && samples * fit.divergence() >= effort.enough(EVIDENCE_MIN)
        })
}
