//! Formats numbers for people, with units: in the terminal, in messages and, by the same rules, on the page
//! (`web/src/format.ts`). Tests hold both to `cases.json`.
//!
//! Sizes of memory are in powers of 1024 (IEC), times and rates in powers of 1000 (SI), shares in percent. Three digits
//! are enough to compare by eye; JSON has all digits. Files that are read again write sizes in another form
//! (`nearpage_plan::print_size`).
//!
//! ```
//! use nearpage_amount::{bytes, count, percent, time};
//!
//! let line = format!("{} accesses, {} of the time ({}) in {}", count(19_912.0), percent(0.034), time(85e6), bytes(8 << 20));
//! assert_eq!(line, "19.9k accesses, 3.4 % of the time (85 ms) in 8 MiB");
//! ```

/// Bytes: `2.5 MiB`, `640 KiB`, `17 B`. At most two digits after the point, without trailing zeros.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (count.max(1).ilog2() / 10) as usize;
    let scaled = count as f64 / (1u64 << (10 * unit)) as f64;
    // 1023.999 KiB is shown as 1 MiB.
    let (scaled, unit) = if scaled >= 1023.995 && unit < 6 {
        (1.0, unit + 1)
    } else {
        (scaled, unit)
    };
    format!("{} {}", three_digits(scaled), UNITS[unit])
}

/// A count: `8123`, `19.9k`, `1.3M`.
pub fn count(count: f64) -> String {
    // Counts from 10,000 on are in thousands.
    match count {
        c if c >= 1e12 => format!("{}T", three_digits(c / 1e12)),
        c if c >= 1e9 => format!("{}G", three_digits(c / 1e9)),
        c if c >= 1e6 => format!("{}M", three_digits(c / 1e6)),
        c if c >= 1e4 => format!("{}k", three_digits(c / 1e3)),
        c => format!("{c:.0}"),
    }
}

/// A count with its noun: `1 page`, `8123 pages`, `19.9k accesses`.
///
/// ```
/// # use nearpage_amount::counted;
/// assert_eq!(counted(0, "node"), "0 nodes");
/// assert_eq!(counted(1, "process"), "1 process");
/// assert_eq!(counted(19_912, "access"), "19.9k accesses");
/// ```
pub fn counted(number: u64, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(number as f64))
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

/// A relative change, as a share of 1: `25.1 % less`, `0.3 % more`. One digit after the point distinguishes changes
/// that differ by less than noise.
pub fn change(share: f64) -> String {
    match 100.0 * share {
        p if p < 0.0 => format!("{:.1} % less", -p),
        p => format!("{p:.1} % more"),
    }
}

/// A relative change with a sign, for a column: `-25.1 %`, `+0.3 %`.
pub fn signed_change(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// Bytes in a second, as vendors state them: `12.8 GB/s`.
pub fn bandwidth(bytes_per_second: f64) -> String {
    match bytes_per_second {
        b if b >= 1e9 => format!("{} GB/s", three_digits(b / 1e9)),
        b => format!("{} MB/s", three_digits(b / 1e6)),
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
    use serde_json::Value;

    /// The page's test reads the same cases (`crates/view/src/format.rs`).
    #[test]
    fn amounts_are_printed_as_in_the_table() {
        let cases: Value = serde_json::from_str(include_str!("../cases.json")).expect("JSON");
        let cases = cases.as_object().expect("functions");
        assert_eq!(cases.len(), 4, "each function of both has cases");
        for (function, cases) in cases {
            for case in cases.as_array().expect("cases") {
                let number = case[0].as_f64().expect("a number");
                let text = match function.as_str() {
                    "bytes" => super::bytes(number as u64),
                    "count" => super::count(number),
                    "time" => super::time(number),
                    "percent" => super::percent(number),
                    other => panic!("no function {other}"),
                };
                assert_eq!(Some(text.as_str()), case[1].as_str(), "{function} {number}");
            }
        }
    }

    #[test]
    fn changes_have_a_direction() {
        let texts = [-0.251, 0.003, 0.0].map(super::change);
        assert_eq!(texts, ["25.1 % less", "0.3 % more", "0.0 % more"]);
        let texts = [-0.251, 0.003, 0.0].map(super::signed_change);
        assert_eq!(texts, ["-25.1 %", "+0.3 %", "+0.0 %"]);
        assert_eq!(
            [12.8e9, 950e6].map(super::bandwidth),
            ["12.8 GB/s", "950 MB/s"]
        );
    }
}
