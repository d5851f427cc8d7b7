//! Fourier transform, to find frequencies at which a signal repeats.

use std::sync::OnceLock;

/// Complex numbers with the operations of a Fourier transform.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Complex {
    pub re: f64,
    pub im: f64,
}

impl Complex {
    /// e^(2πi × `turns`).
    pub fn turn(turns: f64) -> Complex {
        let (im, re) = (turns * std::f64::consts::TAU).sin_cos();
        Complex { re, im }
    }

    fn times(self, other: Complex) -> Complex {
        Complex {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }

    pub fn norm_squared(self) -> f64 {
        self.re * self.re + self.im * self.im
    }
}

/// The first half of the 2^`bits` roots of unity, cached, as many objects have about the same number of pages.
fn roots(bits: u32) -> &'static [Complex] {
    static KNOWN: [OnceLock<Vec<Complex>>; u32::BITS as usize] =
        [const { OnceLock::new() }; u32::BITS as usize];
    let length = 1u64 << bits;
    let root = |k: u64| Complex::turn(k as f64 / length as f64);
    KNOWN[bits as usize].get_or_init(|| (0..length / 2).map(root).collect())
}

/// Discrete Fourier transform, in place: bin k becomes Σ x\[n\] e^(+2πi k n / N). Radix 2, so the length must be a
/// power of two.
pub(crate) fn transform(signal: &mut [Complex]) {
    let length = signal.len();
    assert!(length.is_power_of_two());
    if length == 1 {
        return;
    }
    let bits = length.trailing_zeros();
    for at in 0..length {
        let mirrored = at.reverse_bits() >> (usize::BITS - bits);
        if at < mirrored {
            signal.swap(at, mirrored);
        }
    }
    let roots = roots(bits);
    let mut half = 1;
    while half < length {
        let stride = length / (2 * half);
        for start in (0..length).step_by(2 * half) {
            for k in 0..half {
                let (low, high) = (
                    signal[start + k],
                    signal[start + k + half].times(roots[k * stride]),
                );
                signal[start + k] = Complex {
                    re: low.re + high.re,
                    im: low.im + high.im,
                };
                signal[start + k + half] = Complex {
                    re: low.re - high.re,
                    im: low.im - high.im,
                };
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition() {
        let signal: Vec<Complex> = (0..16)
            .map(|n| Complex {
                re: (n * n % 7) as f64,
                im: f64::from(n as u8 % 3),
            })
            .collect();
        let mut fast = signal.clone();
        transform(&mut fast);
        for (k, bin) in fast.iter().enumerate() {
            let mut sum = Complex::default();
            for (n, x) in signal.iter().enumerate() {
                let term = x.times(Complex::turn((k * n) as f64 / 16.0));
                sum = Complex {
                    re: sum.re + term.re,
                    im: sum.im + term.im,
                };
            }
            assert!(
                (sum.re - bin.re).abs() < 1e-9 && (sum.im - bin.im).abs() < 1e-9,
                "{k}: {sum:?} {bin:?}"
            );
        }
    }
}
