//! Rounding of parts to whole numbers that add up.

/// Rounds the parts in an array as [`rounded`] does.
pub(crate) fn whole_parts<const N: usize>(parts: [f64; N]) -> [u64; N] {
    let rounded = rounded(&parts);
    std::array::from_fn(|at| rounded[at])
}

/// Rounds parts so that they add up to the rounded sum: the parts with the largest remainders are rounded up.
pub(crate) fn rounded(parts: &[f64]) -> Vec<u64> {
    let mut whole: Vec<u64> = parts.iter().map(|part| part.floor() as u64).collect();
    let missing = (parts.iter().sum::<f64>().round() as u64).saturating_sub(whole.iter().sum());
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|&a, &b| {
        (parts[b].fract())
            .total_cmp(&parts[a].fract())
            .then(a.cmp(&b))
    });
    for &at in order.iter().take(missing as usize) {
        whole[at] += 1;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn parts_add_up() {
        assert_eq!(rounded(&[1.5, 1.5, 1.0]), [2, 1, 1]);
        assert_eq!(rounded(&[0.4, 0.4, 0.4]), [1, 0, 0]);
        assert_eq!(rounded(&[2.0, 0.0]), [2, 0]);
        assert_eq!(rounded(&[]), [] as [u64; 0]);
    }
}
