//! Segments that consist of whole pieces of one size: chunks of a pool, or equal shares in any order.
//!
//! Free segments need evidence for each beginning, and gaps between samples blur the boundaries. If all segments begin
//! at multiples of one size, only this size must be found: fewer samples suffice, and boundaries are exact.

use crate::pattern::Effort;
use crate::segments::{Counts, Segment};

/// Largest number of equal shares that are tried.
const SHARES_MAX: u32 = 128;
/// Largest number of pieces of a typical chunk size.
const PIECES_MAX: u32 = 1024;
/// Smallest piece in pages.
const PIECE_PAGES_MIN: u32 = 4;
/// Evidence, in nats, by which pieces of one size must exceed free segments.
const PIECES_EVIDENCE_MARGIN: f64 = 3.0;

/// Segments of whole pieces of an object with `pages` pages. None unless their evidence clearly exceeds `anywhere`,
/// the evidence of segments that may begin at any page. The segments cover all pages, sampled or not.
pub(crate) fn segments_of_pieces(
    counts: &Counts,
    pages: u32,
    anywhere: f64,
    effort: Effort,
) -> Option<Vec<Segment>> {
    let sizes = sizes(pages, effort);
    let each = (sizes.len().max(1) as f64).ln();
    let evidence = |&size: &f64| -> f64 {
        let pieces = pieces(counts, pages, size);
        pieces
            .map(|(_, [first, end])| counts.evidence(first, end))
            .sum()
    };
    let found = sizes.iter().map(|size| (evidence(size) - each, *size));
    let (best, size) = found.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
    if best < anywhere + effort.enough(PIECES_EVIDENCE_MARGIN) {
        return None;
    }
    let mut found: Vec<Segment> = Vec::new();
    for ([first_page, end_page], [first, end]) in pieces(counts, pages, size) {
        let piece = Segment {
            first_page,
            last_page: end_page - 1,
            ..counts.segment(first, end)
        };
        match found.last_mut().filter(|last| last.user == piece.user) {
            Some(last) => {
                let samples = last.samples + piece.samples;
                let owned = last.share * last.samples + piece.share * piece.samples;
                (last.share, last.samples) = (owned / samples.max(f64::MIN_POSITIVE), samples);
                last.last_page = piece.last_page;
            }
            None => found.push(piece),
        }
    }
    (found.len() > 1).then_some(found)
}

/// Piece sizes to try, in pages: equal shares of the object, and typical chunk sizes (a power of two, or three times a
/// power of two).
fn sizes(pages: u32, effort: Effort) -> Vec<f64> {
    let most = match effort {
        Effort::Recording => [SHARES_MAX, PIECES_MAX],
        Effort::Resample { .. } => [SHARES_MAX / 4, PIECES_MAX / 4],
    };
    let shares = (2..=most[0].min(pages / PIECE_PAGES_MIN))
        .map(|shares| f64::from(pages) / f64::from(shares));
    let powers = (0..u32::BITS).map(|power| 1u64 << power);
    let chunks = powers.flat_map(|size| [size, 3 * size]).filter(|&size| {
        let (size, pages) = (size as f64, f64::from(pages));
        size >= f64::from(PIECE_PAGES_MIN) && size < pages && size * f64::from(most[1]) >= pages
    });
    shares.chain(chunks.map(|size| size as f64)).collect()
}

/// Pieces with samples: the first page and the page after the last, and the range of positions in `counts`.
fn pieces<'a>(
    counts: &'a Counts,
    pages: u32,
    size: f64,
) -> impl Iterator<Item = ([u32; 2], [usize; 2])> + 'a {
    let count = (f64::from(pages) / size).ceil() as u32;
    let page = move |piece: u32| ((f64::from(piece) * size).round() as u32).min(pages);
    let mut at = 0;
    (0..count).filter_map(move |piece| {
        let bounds = [page(piece), page(piece + 1)];
        let first = at;
        at = match piece + 1 == count {
            true => counts.pages.len(),
            false => counts.position(bounds[1], first),
        };
        (at > first && bounds[0] < bounds[1]).then_some((bounds, [first, at]))
    })
}

#[cfg(test)]
mod tests {
    use crate::segments::tests::{cell, each_page};
    use crate::segments::{Segment, segments_of};
    use crate::{Cell, pattern::Effort};

    fn bounds(cells: &[Cell], pages: u32) -> Vec<(u32, u32, u32)> {
        let found = segments_of(cells, pages, Effort::Recording);
        let bounds = |one: &Segment| (one.first_page, one.last_page, one.user.0);
        found.iter().map(bounds).collect()
    }

    #[test]
    fn chunks_of_a_pool_are_exact_with_a_few_samples_in_each() {
        let owners = [3, 1, 1, 0, 2, 5, 4, 3, 0, 6, 7, 2, 5, 5, 1, 4];
        let all = each_page(16 * 96, |page| owners[page as usize / 96]);
        let seen: Vec<Cell> = all.into_iter().filter(|cell| cell.page % 17 == 5).collect();
        let mut expected: Vec<(u32, u32, u32)> = Vec::new();
        for (chunk, &owner) in (0u32..).zip(&owners) {
            match expected.last_mut() {
                Some(last) if last.2 == owner => last.1 += 96,
                _ => expected.push((96 * chunk, 96 * chunk + 95, owner)),
            }
        }
        assert_eq!(bounds(&seen, 16 * 96), expected);
    }

    #[test]
    fn equal_shares_in_any_order_meet_where_they_do() {
        let owners = [4, 0, 2, 1, 3];
        let all = each_page(5 * 333, |page| owners[page as usize / 333]);
        let seen: Vec<Cell> = all.into_iter().filter(|cell| cell.page % 29 == 3).collect();
        let starts: Vec<u32> = bounds(&seen, 5 * 333).iter().map(|one| one.0).collect();
        assert_eq!(starts, [0, 333, 666, 999, 1332]);
    }

    #[test]
    fn parts_of_no_common_size_are_cut_where_samples_say() {
        let all = each_page(4001, |page| match page {
            0..=1012 => 1,
            1013..=2810 => 0,
            _ => 2,
        });
        assert_eq!(
            bounds(&all, 4001),
            [(0, 1012, 1), (1013, 2810, 0), (2811, 4000, 2)]
        );
    }

    #[test]
    fn no_pages_have_no_pieces() {
        assert_eq!(bounds(&[], 0), []);
        assert_eq!(bounds(&[cell(0, 1, 1.0)], 1), [(0, 0, 1)]);
    }
}
