//! Numbers as people read them.

/// Bytes: `2.5 MiB`, `640 KiB`, `17 B`. At most two digits after the point, none that are zero.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (count.max(1).ilog2() / 10) as usize;
    let scaled = count as f64 / (1u64 << (10 * unit)) as f64;
    // 1023.999 KiB is 1 MiB.
    let (scaled, unit) = if scaled >= 1023.995 && unit < 6 {
        (1.0, unit + 1)
    } else {
        (scaled, unit)
    };
    format!("{} {}", three_digits(scaled), UNITS[unit])
}

/// Accesses: `8123`, `412k`, `1.3M`.
pub fn count(count: f64) -> String {
    scaled(count, &[(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")])
}

/// Time: `12.3 s`, `85 ms`, `3.1 µs`.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        t if t < 0.5 => "0".to_owned(),
        t if t >= 1e9 => format!("{} s", three_digits(t / 1e9)),
        t if t >= 1e6 => format!("{} ms", three_digits(t / 1e6)),
        t if t >= 1e3 => format!("{} µs", three_digits(t / 1e3)),
        t => format!("{} ns", three_digits(t)),
    }
}

/// A share of 1 in percent: `58 %`, `3.2 %`, `<0.1 %`, `0 %`.
pub fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p <= 0.0 || !p.is_finite() => "0 %".to_owned(),
        p if p < 0.1 => "<0.1 %".to_owned(),
        p if p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

fn scaled(count: f64, units: &[(f64, &str)]) -> String {
    match units.iter().find(|(unit, _)| count >= *unit) {
        // 10000 and up in thousands.
        Some((1e4, unit)) => format!("{}{unit}", three_digits(count / 1e3)),
        Some((divisor, unit)) => format!("{}{unit}", three_digits(count / divisor)),
        None => format!("{count:.0}"),
    }
}

fn three_digits(number: f64) -> String {
    let text = match number {
        n if n >= 99.95 => format!("{n:.0}"),
        n if n >= 9.995 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        let cases = [
            (0, "0 B"),
            (17, "17 B"),
            (2_621_440, "2.5 MiB"),
            (655_360, "640 KiB"),
            (1_048_575, "1 MiB"),
        ];
        for (number, words) in cases {
            assert_eq!(bytes(number), words);
        }
        assert_eq!(
            [8123.0, 412_345.0, 1.3e6].map(count),
            ["8123", "412k", "1.3M"]
        );
        assert_eq!(
            [0.58, 0.032, 0.0002, 0.0].map(percent),
            ["58 %", "3.2 %", "<0.1 %", "0 %"]
        );
        assert_eq!([12.34e9, 85e6, 0.0].map(time), ["12.3 s", "85 ms", "0"]);
    }
}
