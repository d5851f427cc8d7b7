//! Sampling small allocations by bytes.
//!
//! The bytes of all small allocations of a thread form a line, on which sampling points lie at
//! exponentially distributed distances of mean `period` (a Poisson process). An allocation of s
//! bytes is sampled when at least one point falls on it, that is with probability
//! p = 1 − exp(−s / period). It stands for 1 / p allocations of its size: Horvitz and Thompson's
//! estimator, unbiased for counts and, multiplied by s, for bytes. The process is
//! memoryless, so the distance is drawn anew after each sample.

const LN_2: f64 = core::f64::consts::LN_2;

/// Natural logarithm of a positive, normal number.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // ln m = 2 artanh((m − 1) / (m + 1)); the argument is at most 1/3.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut term, mut sum, mut odd) = (z, 0.0, 1.0);
    while term > 1e-17 {
        sum += term / odd;
        term *= z * z;
        odd += 2.0;
    }
    2.0 * sum + exponent as f64 * LN_2
}

/// 1 − exp(−x) for x ≥ 0.
fn one_minus_exp(x: f64) -> f64 {
    if x > 40.0 {
        return 1.0;
    }
    // Halved until the series is short; 1 − e^−2y = d (2 − d) with d = 1 − e^−y undoes it.
    let (mut y, mut halvings) = (x, 0);
    while y > 0.5 {
        y /= 2.0;
        halvings += 1;
    }
    let (mut term, mut sum, mut n) = (y, 0.0, 1.0);
    while !(-1e-17..=1e-17).contains(&term) {
        sum += term;
        n += 1.0;
        term *= -y / n;
    }
    for _ in 0..halvings {
        sum *= 2.0 - sum;
    }
    sum
}

/// Bytes to the next sampling point, from 64 random bits.
pub fn gap_bytes(period_bytes: u64, random: u64) -> i64 {
    // In (0, 1], so that the logarithm is finite.
    let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-ln(uniform) * period_bytes as f64) as i64
}

/// How many allocations of `size` bytes a sampled one stands for, in thousandths.
pub fn weight_thousandths(period_bytes: u64, size: usize) -> u64 {
    let probability = one_minus_exp(size.max(1) as f64 / period_bytes.max(1) as f64);
    (1000.0 / probability + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_agree_with_the_library() {
        for x in [1e-300, 1e-9, 0.1, 0.5, 0.999, 1.0, 1.5, 2.0, 700.0, 1e300] {
            assert!(
                (ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0),
                "ln {x}"
            );
        }
        for x in [0.0, 1e-12, 1e-4, 0.3, 0.5, 0.51, 1.0, 7.0, 39.0, 1e6] {
            assert!(
                (one_minus_exp(x) + (-x).exp_m1()).abs() <= 1e-14,
                "1 - exp -{x}"
            );
        }
    }

    #[test]
    fn counts_are_estimated_without_bias() {
        let (thread, _token) = crate::thread::Thread::enter().unwrap();
        thread.random = 0x1234_5678_9abc_def1;
        for (size, period) in [(16usize, 1024u64), (1000, 1024), (4000, 1024), (100, 65536)] {
            let (allocations, mut estimate, mut countdown) =
                (3_000_000u64, 0u64, gap_bytes(period, thread.next_random()));
            for _ in 0..allocations {
                countdown -= size as i64;
                if countdown < 0 {
                    estimate += weight_thousandths(period, size);
                    countdown = gap_bytes(period, thread.next_random());
                }
            }
            let ratio = estimate as f64 / 1000.0 / allocations as f64;
            assert!(
                (0.95..1.05).contains(&ratio),
                "{size} bytes every {period}: {ratio}"
            );
        }
    }
}
